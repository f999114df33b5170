"""`doctor`: find what is wrong with groups, and plan the repairs.

`doctor` reads many groups at once, and runs the checks of `admin.checks` on each. A rebalance
causes some findings temporarily. `doctor` examines such a group twice, and reports only what it
finds both times. It also examines a group twice if an offset that no member owns was written
recently, because only a second reading shows a client that commits without a registration.

`plan_fixes` makes a plan of the findings' fixes, which `apply` executes. A fix changes only
persistent znodes, and only if they have not changed since their examination.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from zkconsumer.admin.apply import Live
from zkconsumer.admin.checks import offsets, owners, registrations, rights
from zkconsumer.admin.findings import ExaminedGroup, Finding, LogEnds, Severity
from zkconsumer.admin.group_changes import plan_writes
from zkconsumer.admin.groups import (
    in_slices,
    read_all_topic_payloads,
    read_brokers,
    read_group_names,
    read_readable_parts,
    registered_brokers,
    unknown_group,
)
from zkconsumer.admin.health import read_again
from zkconsumer.admin.lag import FEW
from zkconsumer.admin.plan import Plan
from zkconsumer.admin.verify import MALFORMED, NO_OWNER, UNREGISTERED
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import RefusedError, first_few
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.logs import log_ends, without_messages
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_health import PATIENCE_S
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.zk.client import ZooKeeperClient

T = TypeVar("T")
Logs = Mapping[TopicPartition, LogEnds | str]
AskLogs = Callable[[Brokers, Sequence[TopicPartition]], Logs]
MemberSettings = Callable[[str], ConsumerConfig | None]
"""Group name -> the settings of its members, or None if they are unknown."""

TRANSIENT = frozenset(
    {
        MALFORMED,
        NO_OWNER,
        UNREGISTERED,
        owners.STALE,
        offsets.EMPTY_OFFSET,
        registrations.DISAGREEMENT,
        registrations.NO_BROKERS,
    }
)
"""Codes of findings that a rebalance, a registration or a restart may cause temporarily."""


TAILS_S = 5.0
"""Time limit of each request that asks whether only transaction markers are left, in seconds."""


CHECKS = (
    rights.of_access,
    registrations.of_users,
    registrations.of_members,
    registrations.of_settings,
    owners.of_owners,
    registrations.of_layouts,
    registrations.of_agreement,
    offsets.of_offsets,
    rights.of_rights,
)
OF_WHOLE_GROUPS = frozenset({registrations.of_users, owners.of_owners, registrations.of_agreement})
"""The checks that compare znodes of the group with each other, so that an unreadable znode would
look like a missing one."""


def examine(examined: ExaminedGroup) -> list[Finding]:
    """Return everything that is wrong with a group, most severe first. Performs no I/O.

    A group that can be read only in part gets no fixes, because they could destroy what is unknown.
    """
    if not examined.image.denial:
        return _sorted(one for check in CHECKS for one in check(examined))
    checks = [one for one in CHECKS if one not in OF_WHOLE_GROUPS]
    found = (one for check in checks for one in check(examined))
    return _sorted(replace(one, fixes=(), advice=None) if one.fixes else one for one in found)


def _sorted(found: Iterable[Finding]) -> list[Finding]:
    severities = list(Severity)
    return sorted(found, key=lambda one: severities.index(one.severity))


def doctor(
    connection: ZooKeeperClient,
    groups: Iterable[str] | None = None,
    *,
    settings: MemberSettings | None = None,
    ask_logs: AskLogs | None = None,
    patience_s: float = PATIENCE_S,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_wait: Callable[[int, float], None] = lambda groups, left_s: None,
) -> list[Finding]:
    """Return what is wrong with groups; None means all groups. Changes nothing.

    Args:
        settings: returns the settings of a group's members (retries, back-off, session timeout,
            strategy); None: the settings are not checked.
        ask_logs: returns the logs of partitions; None: offsets are not compared with logs.
        patience_s: seconds after which a group is examined again, if it has temporary findings or
            a recently written offset that no member owns.
        on_progress: called with the number of groups read so far and the total number.
        on_wait: called with the number of groups that are examined again, and the seconds until
            then.

    Raises:
        UnknownGroupError: one of `groups` does not exist.
        ZooKeeperUnreachableError: the connection is lost.
    """
    names = read_group_names(connection) if groups is None else list(groups)
    by_name: dict[str, ExaminedGroup] = {}
    for some in in_slices(names, on_progress):
        by_name |= _read_examined(connection, some, settings)
    if groups is not None:
        for name in names:
            if name not in by_name:
                raise unknown_group(name, connection)
    read_at_s = time.monotonic()
    by_name = _with_logs(connection, by_name, ask_logs)
    found = {name: examine(examined) for name, examined in by_name.items()}

    def read_second(transient: Sequence[str]) -> dict[str, ExaminedGroup]:
        second = _read_examined(connection, transient, settings) if transient else {}
        return _with_logs(connection, second, ask_logs)

    def wait(again: int) -> None:
        left_s = max(0.0, read_at_s + patience_s - time.monotonic())
        on_wait(again, left_s)
        time.sleep(left_s)

    _examine_again(connection, by_name, found, read_second=read_second, wait=wait)
    return [one for name in names for one in found.get(name, ())]


def _examine_again(
    connection: ZooKeeperClient,
    by_name: Mapping[str, ExaminedGroup],
    found: dict[str, list[Finding]],
    *,
    read_second: Callable[[Sequence[str]], dict[str, ExaminedGroup]],
    wait: Callable[[int], None],
) -> None:
    """Update `found`, the findings of each group, where only a second reading decides.

    Groups with temporary findings are examined again as a whole. Of groups with a recently written
    offset that no member owns, only the users are read again.
    """
    transient = [name for name, some in found.items() if any(one.code in TRANSIENT for one in some)]
    written = {
        name: one.image.reading
        for name, one in by_name.items()
        if one.health.write_age_s(time.time()) is not None and not one.image.denial
    }
    if not transient and not written:
        return
    wait(len({*transient, *written}))
    seen = read_again(connection, written)
    second = read_second(transient)
    for name in transient:
        before = found.pop(name)
        if name in second:
            present = replace(second[name], seen=seen.get(name))
            found[name] = _confirmed(before, examine(present))
    for name in written.keys() - set(transient):
        before = found.pop(name)
        if name in seen:
            found[name] = _with_users(before, replace(by_name[name], seen=seen[name]))


def _with_users(found: Iterable[Finding], examined: ExaminedGroup) -> list[Finding]:
    """Return the findings with those on the group's users from two readings."""
    others = [one for one in found if one.code not in registrations.OF_USERS]
    return _sorted([*registrations.of_users(examined), *others])


def _confirmed(before: Iterable[Finding], now: Iterable[Finding]) -> list[Finding]:
    """Return the findings of the second examination, the temporary ones only if the first one had
    them, too."""
    known = {(one.code, one.subject) for one in before}
    return [one for one in now if one.code not in TRANSIENT or (one.code, one.subject) in known]


def kafka_logs(limit_s: float) -> AskLogs:
    """Return a function that asks the brokers for logs, with `limit_s` seconds per request."""

    def ask(brokers: Brokers, partitions: Sequence[TopicPartition]) -> Logs:
        return log_ends(brokers, partitions, limit_s=limit_s)

    return ask


# ---- reading ------------------------------------------------------------------------------------


def _read_examined(
    connection: ZooKeeperClient,
    names: Sequence[str],
    settings: MemberSettings | None,
) -> dict[str, ExaminedGroup]:
    payloads = read_all_topic_payloads(connection)
    brokers = read_brokers(connection)
    images = read_readable_parts(connection, names)
    by_name = {
        name: ExaminedGroup(
            image,
            payloads,
            settings=settings(name) if settings else None,
            has_brokers=bool(brokers),
        )
        for name, image in images.items()
    }
    extra = {name: _to_read_whole(examined) for name, examined in by_name.items()}
    nodes, refused = connection.tree_allowed(*(path for roots in extra.values() for path in roots))
    found, unread = _by_group(nodes), _by_group(refused)
    for name in found.keys() | unread.keys():
        image = by_name[name].image
        image = replace(
            image,
            nodes={**image.nodes, **found.get(name, {})},
            unreadable={**image.unreadable, **unread.get(name, {})},
        )
        by_name[name] = replace(by_name[name], image=image)
    by_name = _with_rights(connection, by_name, rights.places)
    return _with_rights(connection, by_name, rights.more_places)


def _by_group(znodes: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """Return group -> path -> value, for paths of groups."""
    found: dict[str, dict[str, T]] = {}
    for path, one in znodes.items():
        found.setdefault(path.split("/")[2], {})[path] = one
    return found


def _with_rights(
    connection: ZooKeeperClient,
    by_name: dict[str, ExaminedGroup],
    places: Callable[[ExaminedGroup], list[str]],
) -> dict[str, ExaminedGroup]:
    wanted = {name: where for name, examined in by_name.items() if (where := places(examined))}
    lists = connection.rights(path for where in wanted.values() for path in where)
    found = dict(by_name)
    for name, where in wanted.items():
        known = {path: lists[path] for path in where if path in lists}
        found[name] = replace(by_name[name], rights={**by_name[name].rights, **known})
    return found


def _to_read_whole(examined: ExaminedGroup) -> Iterator[str]:
    """Yield the znodes whose whole subtree is read, since a fix may delete the subtree.

    These are znodes of other clients' layouts, and directories of topics that do not exist.
    """
    yield from registrations.foreign_nodes(examined)
    for parent, at in examined.image.topic_parents.items():
        if at.name not in examined.topics:
            yield parent


def _with_logs(
    connection: ZooKeeperClient, by_name: dict[str, ExaminedGroup], ask_logs: AskLogs | None
) -> dict[str, ExaminedGroup]:
    wanted = {name: offsets.offsets_to_compare(examined) for name, examined in by_name.items()}
    partitions = sorted({tp for tps in wanted.values() for tp in tps})
    if ask_logs is None or not partitions:
        return by_name
    brokers = registered_brokers(connection)
    logs = ask_logs(brokers, partitions)
    found = {
        name: replace(examined, logs={tp: logs[tp] for tp in wanted[name] if tp in logs})
        for name, examined in by_name.items()
    }
    return _with_tails(brokers, found)


def _with_tails(brokers: Brokers, by_name: dict[str, ExaminedGroup]) -> dict[str, ExaminedGroup]:
    """Find the partitions that groups without members have read up to transaction markers."""
    tails = {
        name: {
            tp: (at, log.end)
            for tp, log in examined.logs.items()
            if not isinstance(log, str)
            and (at := examined.image.offsets[tp].value) is not None
            and log.start <= at < log.end <= at + FEW
        }
        for name, examined in by_name.items()
        if not examined.health.live
    }
    asked = {tp: tail for of_group in tails.values() for tp, tail in of_group.items()}
    found = without_messages(brokers, asked, limit_s=TAILS_S)
    read = {tp: asked[tp] for tp, is_read in found.items() if is_read}
    return {
        name: replace(
            examined,
            read=frozenset(tp for tp, tail in tails.get(name, {}).items() if read.get(tp) == tail),
        )
        for name, examined in by_name.items()
    }


# ---- fixes ---------------------------------------------------------------------------------------


def plan_fixes(connection: ZooKeeperClient, findings: Iterable[Finding]) -> Plan:
    """Plan all fixes of these findings; the plan is empty if they have none.

    Raises RefusedError if a znode has changed since it was examined, or belongs to a session now.
    """
    fixes = {fix.path: fix for one in findings for fix in one.fixes}
    plan = plan_writes(connection, "doctor", {path: one.data for path, one in fixes.items()})
    changed = [
        one.path
        for one in plan.changes
        if one.before is None or one.before.mzxid != fixes[one.path].mzxid
    ]
    if changed:
        raise RefusedError(
            "znodes have changed since they were examined; nothing was written",
            where=first_few(changed, 5),
            remedy="examine the group again",
        )
    return plan


def live_of(plan: Plan) -> Live:
    """Return what `apply` does with a plan of fixes if the group has members.

    Znodes that block members are deleted while the members run, since no member holds them. A plan
    that changes offsets is refused while the group has members.
    """
    of_offsets = any(one.path.startswith(f"{paths.offsets(one.group)}/") for one in plan.changes)
    return Live.REFUSE if of_offsets else Live.FORCE
