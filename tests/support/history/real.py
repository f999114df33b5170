"""Real groups under random faults; their tables are compared with what really happened."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from support.history.truth import Differences, MemberReports, Moment, Truth, differences
from support.members.crew import Crew
from support.members.random_faults import Mixture
from support.members.replay import Record
from support.zk.log import Tree, entries, is_refused
from support.zk.proxies import Trap
from zkconsumer.history.describe import Description
from zkconsumer.history.inputs import find_servers
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.releases import DEFAULT, Profile
from zkconsumer.sandbox import Sandbox

PARTITIONS = 8


def moments(directories: Sequence[Path]) -> list[Moment]:
    """Return the transactions of one server, or of the servers of an ensemble."""
    tree, found = Tree("/"), []
    for entry in entries(directories):
        changes = tuple(one.change for one in tree.apply(entry) if one.change is not None)
        found.append(Moment(entry.zxid, entry.t_ms, entry.session, changes, is_refused(entry)))
    return found


def reports(records: Iterable[Record]) -> MemberReports:
    """Return what the members report in their traces and in the logs of their users."""
    found = MemberReports()
    for record in records:
        for step in record.steps():
            session = step.before.session.id if step.before.session else 0
            found.add(step.before.settings.consumer, session, step.event)
        for handed in record.handed():
            found.delivered |= {(tp, token) for tp, token, _ in handed.messages}
    return found


def compared(
    logs: Sequence[Path],
    group: str,
    records: Iterable[Record],
    *,
    strategy: Strategy = Strategy.RANGE,
    rules: Profile = DEFAULT,
) -> Differences:
    """Compare a group's tables with the servers' logs and the members' traces.

    The servers continue to write, so both sides read a copy.
    """
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder, str(number), "version-2") for number in range(len(logs))]
        for log, copy in zip(logs, copies, strict=True):
            shutil.copytree(log, copy)
        description = Description(find_servers([folder]), [group])
        description.read()
        truth = Truth(moments(copies), group, strategy=strategy, rules=rules)
        return differences(truth, description.result(), reports(records))


def run(
    sandbox: Sandbox, name: str, seed: int, *, seconds: float, say: Callable[[str], None]
) -> Differences:
    """Run a group under random faults for a time, and compare its tables."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sandbox.create_topic(name, partitions=PARTITIONS)
        crew = Crew(sandbox.zookeeper_connect, sandbox.bootstrap, name, directory, stack)
        crew.feed(name, PARTITIONS)
        trap = stack.enter_context(Trap(sandbox.zookeeper_connect))
        mixture = Mixture(crew, trap, seed, say)
        mixture.run(seconds)
        mixture.judge()
        return compared(crew.logs, name, crew.records())
