"""What `doctor --fix` does: the findings' mends as a plan, to be shown and applied like any other.

Only znodes that no session holds, and only as long as each is still what was found wrong.
"""

from __future__ import annotations

from collections.abc import Iterable

from zkconsumer.admin.apply import Live
from zkconsumer.admin.changes import plan_writes
from zkconsumer.admin.findings import Finding
from zkconsumer.admin.plan import Plan
from zkconsumer.core import paths
from zkconsumer.errors import RefusedError
from zkconsumer.zk.connection import Connection


def plan_mends(connection: Connection, findings: Iterable[Finding]) -> Plan:
    """A plan of all that these findings' mends are; empty where they have none.

    Raises RefusedError where a znode is no longer what was found, or belongs to a session by now.
    """
    mends = {mend.path: mend for one in findings for mend in one.mends}
    plan = plan_writes(connection, "doctor", {path: one.data for path, one in mends.items()})
    changed = [
        one.path for one in plan.changes
        if one.before is None or one.before.mzxid != mends[one.path].mzxid
    ]
    if changed:
        raise RefusedError(
            "znodes changed since they were examined", where=", ".join(changed[:5]),
            remedy="nothing was written: doctor again",
        )
    return plan


def live_of(plan: Plan) -> Live:
    """How such a plan meets a group with members.

    What blocks members is taken away under their eyes: that is what it is for, and nothing of it is
    theirs. Offsets of a group with members are refused, as always.
    """
    of_offsets = any(
        one.path.startswith(f"{paths.offsets(one.group)}/") for one in plan.changes
    )
    return Live.REFUSE if of_offsets else Live.FORCE
