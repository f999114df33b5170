"""Measure how fast a mixed group settles when a JVM member joins or leaves.

There are two groups of five on one ZooKeeper and one broker, each member in its own process. In one
group (`mixed`) the third member is zkconsumer's and the others are JVM consumers; in the other
group (`jvm`) all members are JVM consumers. In turn, a sixth member, whose JVM is already running,
joins each group and leaves it again. All members have the default properties, except that the JVM
members get enough attempts for a busy machine. The order of the groups alternates. Before each
change both groups are at rest and the JVMs of their next joiners are running, because a starting
JVM would take processor time from the measured members.

`settled_s` is the time from the change of the members in ZooKeeper to the last change of the
owners, which then equal the assignor's result. The figure is the ratio of the mixed group's time to
the JVM group's, the median over the pairs. `own_part_s` is the part that zkconsumer's member
causes: the time from the change until it has released what it must release, plus the time from the
release of its new partitions by others until it serves them. The time that it waits for JVM members
is not included. The times come from ZooKeeper's own log and, for the end, from the member's status.

A single time is either below a second or above the JVM's back-off of 2 s. A JVM member whose claim
meets an existing owner znode releases its claims, sleeps, and starts over. The benchmark counts
these znodes. JVM members of both groups meet owner znodes of JVM members, depending on who releases
first. So it depends on chance whether the median time of a group is a short or a long one. The
ratio of a pair is therefore small, near 1, or large. A ratio near 1 is the most frequent if both
groups meet such znodes equally often. `--repeat 20` and the means, which are also printed, are more
reliable than five pairs.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from _bench import Result, add_json, at_most, show
from _bench_rebalance import Looks, Observer, prepare
from kazoo.client import KazooClient
from support.jvm.member import JvmMember
from support.members.crew import MemberProcess
from support.members.program import Request
from support.wait import wait_for
from support.zk.log import history

from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.member.phases import Phase
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox

RELEASE = "1.1.1"
PARTITIONS = 512
NAMES = ("a", "b", "c", "d", "e")  # in the order of the assignor; the joiner is the last
OURS = "c"
# The defaults (2 s, four attempts) except for the number of attempts: on a busy machine a JVM
# member would give up.
JVM_PROPERTIES = {
    "rebalance.backoff.ms": 2000,
    "rebalance.max.retries": 10,
    "zookeeper.session.timeout.ms": 6000,
    "auto.commit.interval.ms": 60_000,
}
OUR_SETTINGS = {"auto_offset_reset": "smallest", "auto_commit_interval_s": 60.0}
# Seconds without a log line after which a JVM member counts as settled. JVM members rebalance again
# after they have settled, so this is longer than their back-off.
SILENCE_S = 2.5
BOOT_LIMIT_S = 60.0
# The phases of a member that serves all partitions that it owns.
SERVING = (Phase.VERIFYING.value, Phase.SETTLED.value)
# The JVM's log line about an existing owner znode that prevents a claim, with its partition.
REFUSED = re.compile(r"waiting for the partition ownership to be deleted: (\d+)")

GOALS = {"ratio_to_all_jvm": 1.1, "own_part_s": 0.15}
CASES = ("join", "leave")


class Watch(Observer):
    """An observer that detects the end of a case. It reads seldom, in order not to disturb the
    group.
    """

    look_s = 0.05


@dataclass(frozen=True)
class Written:
    """The creation or deletion of an owner znode."""

    t: float
    session: int
    is_made: bool
    partition: int


@dataclass(frozen=True)
class Change:
    """The result of one join or leave.

    The result has the duration, the seconds that zkconsumer's member needed to release and to
    serve, and the number of existing owner znodes that prevented claims of JVM members, separately
    for znodes of zkconsumer's member and of JVM members.
    """

    settled_s: float
    released_s: float
    served_s: float
    in_the_way: tuple[int, int]


class Group:
    """One of the two groups."""

    def __init__(
        self,
        sandbox: Sandbox,
        topic: str,
        group: str,
        *,
        ours: str,
        client: KazooClient,
        directory: Path,
        stack: ExitStack,
    ) -> None:
        self._sandbox, self._topic, self._group = sandbox, topic, group
        self._directory, self._stack = directory / group, stack
        self._directory.mkdir()
        self._watch = Watch(client, group, topic, PARTITIONS)
        self._members = [self._jvm(name) for name in NAMES if name != ours]
        self._joiner = self._jvm("f0")
        self._joins = 0
        self.our: MemberProcess | None = None
        for member in self._members:
            member.wait("booted")
            member.tell("join")
        if ours:
            request = Request(
                zookeeper=sandbox.zookeeper_connect,
                group=group,
                topics={topic: 1},
                settings={**OUR_SETTINGS, "consumer_id": ours},
            )
            self.our = MemberProcess(ours, request, self._directory)
            stack.callback(self.our.end)
        self._watch.watch(Looks(time.perf_counter()), len(NAMES))

    def is_at_rest(self) -> bool:
        """Whether no member rebalances and no JVM starts."""
        members = [*self._members, self._joiner]
        return bool(self._joiner.of("booted")) and all(m.quiet_s > SILENCE_S for m in members)

    def change(self, case: str) -> Change:
        """Let the joiner join, or let it leave and start the next one."""
        joins = case == "join"
        members = [*self._members, self._joiner]
        known = [len(_refused(member)) for member in members]
        self._joiner.tell(case)
        looks = Looks(time.perf_counter())
        self._watch.watch(looks, len(NAMES) + joins)
        if not joins:
            self._joiner.process.wait()
        refused = [
            partition
            for member, count in zip(members, known, strict=True)
            for partition in _refused(member)[count:]
        ]
        change = self._measured(refused)
        if not joins:
            self._joins += 1
            self._joiner = self._jvm(f"f{self._joins}")
        return change

    def _measured(self, refused: Iterable[int]) -> Change:
        """Return the duration and the parts of the last change of the members."""
        log = self._sandbox.zookeeper.directory / "data" / "version-2"
        root = f"{paths.CONSUMERS}/{self._group}/"
        located = [
            (one.t_ms / 1000, one.session, one.change, paths.locate(one.change.path))
            for one in history([log], root=root)
            if one.change is not None
        ]
        began = max(t for t, _, _, where in located if where.kind is paths.ZnodeKind.MEMBER)
        written = [
            Written(t, session, change.new is not None, where.partition)
            for t, session, change, where in located
            if where.kind is paths.ZnodeKind.OWNER
        ]
        held = {one.partition: one.session for one in written if one.t < began and one.is_made}
        since = [one for one in written if one.t >= began]
        settled_s = max(one.t for one in since) - began
        ours = self.our.last("session")["id"] if self.our else None
        of_ours = [held.get(partition) == ours for partition in refused]
        in_the_way = sum(of_ours), len(of_ours) - sum(of_ours)
        return Change(settled_s, *self._own_part(began, since), in_the_way)

    def _own_part(self, began: float, owners: list[Written]) -> tuple[float, float]:
        """Return the seconds that zkconsumer's member needed to release and to serve."""
        if self.our is None:
            return 0.0, 0.0
        ours = self.our.last("session")["id"]
        released = max(
            (one.t for one in owners if one.session == ours and not one.is_made), default=began
        )
        claimed = {one.partition for one in owners if one.session == ours and one.is_made}
        freed = max(
            (
                one.t
                for one in owners
                if one.session != ours and not one.is_made and one.partition in claimed
            ),
            default=began,
        )
        said = [e for e in self.our.of("status") if e["phase"] in SERVING]
        held = {TopicPartition(*tp) for one in said[-1]["owned"].values() for tp in one}
        ahead_s = time.time() - boottime()
        first: float = next(
            e["t"] + ahead_s
            for e in said
            if e["t"] + ahead_s >= began
            and {TopicPartition(*tp) for one in e["owned"].values() for tp in one} == held
        )
        return released - began, first - max(freed, released)

    def _jvm(self, name: str) -> JvmMember:
        member = JvmMember(
            RELEASE,
            self._sandbox.zookeeper_connect,
            self._group,
            name=name,
            directory=self._directory,
            topics=[self._topic],
            properties=JVM_PROPERTIES,
            starts="booted",
        )
        self._stack.callback(member.end)
        return member


def _refused(member: JvmMember) -> list[int]:
    """Return the partitions whose owner znodes have prevented claims of this member so far."""
    return [int(partition) for partition in REFUSED.findall(member.errors())]


def measure(sandbox: Sandbox, repeat: int, stack: ExitStack) -> list[Result]:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zkconsumer-bench-")))
    client = KazooClient(sandbox.zookeeper_connect)
    client.start()
    stack.callback(client.close)
    stack.callback(client.stop)
    topic = prepare(sandbox, PARTITIONS)
    print("  two groups of five ...", file=sys.stderr)
    groups = {
        name: Group(
            sandbox, topic, name, ours=ours, client=client, directory=directory, stack=stack
        )
        for name, ours in (("mixed", OURS), ("jvm", ""))
    }
    seen: dict[tuple[str, str], list[Change]] = {}
    for number in range(repeat):
        for case in CASES:
            for name in sorted(groups, reverse=number % 2 == 0):
                wait_for(
                    lambda: all(group.is_at_rest() for group in groups.values()),
                    "the JVM members to be at rest",
                    look_s=0.1,
                    limit_s=BOOT_LIMIT_S,
                )
                seen.setdefault((case, name), []).append(groups[name].change(case))
            mixed, jvm = (seen[case, name][-1] for name in groups)
            print(
                f"  {number + 1} {case:<6} mixed {mixed.settled_s:.3f} s, jvm {jvm.settled_s:.3f} s"
                f", own part {mixed.released_s:.3f} s + {mixed.served_s:.3f} s",
                file=sys.stderr,
            )
    return [
        result
        for case in CASES
        for result in _results(case, mixed=seen[case, "mixed"], jvm=seen[case, "jvm"])
    ]


def _results(case: str, *, mixed: list[Change], jvm: list[Change]) -> list[Result]:
    ratios = [one.settled_s / other.settled_s for one, other in zip(mixed, jvm, strict=True)]
    took, alone = (statistics.median(one.settled_s for one in each) for each in (mixed, jvm))
    mean, mean_alone = (statistics.fmean(one.settled_s for one in each) for each in (mixed, jvm))
    own = statistics.median(one.released_s + one.served_s for one in mixed)
    ours, theirs = (sum(one.in_the_way[i] for one in mixed) for i in (0, 1))
    print(
        f"  {case}: settled after {took:.3f} s, JVM members alone {alone:.3f} s (means {mean:.3f} s"
        f" and {mean_alone:.3f} s); owner znodes in the way of JVM members: {ours} of zkconsumer's"
        f" and {theirs} of JVM members, in the JVM group"
        f" {sum(one.in_the_way[1] for one in jvm)}",
        file=sys.stderr,
    )
    return [
        at_most(case, "ratio_to_all_jvm", statistics.median(ratios), "", GOALS["ratio_to_all_jvm"]),
        at_most(case, "own_part_s", own, "s", GOALS["own_part_s"]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_mixed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeat", type=int, default=5, help="repetitions (default 5)")
    add_json(parser)
    options = parser.parse_args()
    patient = {"zookeeper.session.timeout.ms": 30_000}
    with Sandbox(overrides=patient) as sandbox, ExitStack() as stack:
        results = measure(sandbox, options.repeat, stack)
    return show("bench_mixed", results, output=options.output)


if __name__ == "__main__":
    sys.exit(main())
