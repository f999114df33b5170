"""How fast a group settles that has a member of ours and real JVM consumers, when a JVM one joins
and leaves, beside a group of JVM consumers alone.

Two groups of five live side by side on one ZooKeeper and one broker, each member in a process of
its own; in one of them the third is ours. In turn each of the two is joined by a sixth, a JVM
member that stands ready, and left by it again. All have the default properties, but attempts enough
for a busy machine. Which group comes first alternates, and before each change both are at rest with
their next joiner standing: a JVM that starts meanwhile takes the processors from whom is measured.

`settled_s` is the time from the change of the members in ZooKeeper to the last change of the
owners, which then equal the assignor's result; the figure is that of our group over that of the
JVM's, the median over the pairs, as in the other benches. `own_part_s` is what of it our member
takes for itself: the time from the change until it has released what moves, and from the moment
when nobody holds what it is to have until it serves all of that; that it waits for JVM members to
release is not its part. The moments are those of ZooKeeper's own log, the end that of the member's
status.

A single time is either below a second or above the JVM's back-off of 2 s: a JVM member that finds
an owner node in its way gives back what it has claimed, sleeps, and begins anew. What was in the
way is counted beside the times: JVM members of both groups meet nodes of JVM members, whichever has
released first. So the median of either group's times is chance, of one kind or the other. Ratios of
pairs are of three kinds; the middle one, near 1, is the most frequent where both groups meet as
often. `--repeat 20`, and the means, which are printed, too, tell more than five pairs.
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

from _bench import Result, at_most, show  # noqa: E402
from _bench_rebalance import Looks, Observer, prepare  # noqa: E402
from kazoo.client import KazooClient  # noqa: E402
from support.crew import MemberProcess  # noqa: E402
from support.jvm import JvmMember  # noqa: E402
from support.member_program import Request  # noqa: E402
from support.wait import wait_for  # noqa: E402
from support.zk_log import history  # noqa: E402

from zkconsumer.consumer.stream_partitions import boottime  # noqa: E402
from zkconsumer.member.phases import Phase  # noqa: E402
from zkconsumer.protocol import paths  # noqa: E402
from zkconsumer.protocol.model import TopicPartition  # noqa: E402
from zkconsumer.sandbox import Sandbox  # noqa: E402

RELEASE = "1.1.1"
PARTITIONS = 512
NAMES = ("a", "b", "c", "d", "e")  # in the order of the assignor; the joiner is the last
OURS = "c"
# The defaults (2 s, four attempts) but for the number: on a busy machine a JVM member gives up.
JVM_PROPERTIES = {
    "rebalance.backoff.ms": 2000,
    "rebalance.max.retries": 10,
    "zookeeper.session.timeout.ms": 6000,
    "auto.commit.interval.ms": 60_000,
}
OUR_SETTINGS = {"auto_offset_reset": "smallest", "auto_commit_interval_s": 60.0}
# JVM members rebalance again after they have settled; they are silent for so long when they are
# done, in seconds. It is more than their back-off.
SILENCE_S = 2.5
BOOT_LIMIT_S = 60.0
# Where a member stands when it serves all that it owns.
SERVING = (Phase.VERIFYING.value, Phase.SETTLED.value)
# Which partition's owner node stood in the way of a claim, as the JVM logs it.
REFUSED = re.compile(r"waiting for the partition ownership to be deleted: (\d+)")

GOALS = {"ratio_to_all_jvm": 1.1, "own_part_s": 0.15}
CASES = ("join", "leave")


class Watch(Observer):
    """It only tells when a case is over: seldom, so as not to take part in it."""

    look_s = 0.05


@dataclass(frozen=True)
class Written:
    """An owner znode made or deleted."""

    t: float
    session: int
    is_made: bool
    partition: int


@dataclass(frozen=True)
class Change:
    """One join or leave: how long it took, what of it was our member's part in releasing and in
    serving, and how many owner nodes were in the way of JVM members, ours and theirs."""

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
        """Nobody rebalances, and no JVM is starting."""
        members = [*self._members, self._joiner]
        return bool(self._joiner.of("booted")) and all(m.quiet_s > SILENCE_S for m in members)

    def change(self, case: str) -> Change:
        """The joiner joins, or it leaves again and the next one is made ready."""
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
        """What the last change of the members has come to."""
        log = self._sandbox.zookeeper.directory / "data" / "version-2"
        root = f"{paths.CONSUMERS}/{self._group}/"
        located = [
            (one.t_ms / 1000, one.session, one.change, paths.locate(one.change.path))
            for one in history([log], root=root)
            if one.change is not None
        ]
        began = max(t for t, _, _, where in located if where.kind is paths.Kind.MEMBER)
        written = [
            Written(t, session, change.new is not None, where.partition)
            for t, session, change, where in located
            if where.kind is paths.Kind.OWNER
        ]
        held = {one.partition: one.session for one in written if one.t < began and one.is_made}
        since = [one for one in written if one.t >= began]
        settled_s = max(one.t for one in since) - began
        ours = self.our.last("session")["id"] if self.our else None
        of_ours = [held.get(partition) == ours for partition in refused]
        in_the_way = sum(of_ours), len(of_ours) - sum(of_ours)
        return Change(settled_s, *self._own_part(began, since), in_the_way)

    def _own_part(self, began: float, owners: list[Written]) -> tuple[float, float]:
        """How long our member took to release, and to serve."""
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
    """The partitions that this member has found in another's hands so far."""
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
        f" and {mean_alone:.3f} s); owner nodes in the way of JVM members: {ours} of ours and"
        f" {theirs} of their own, alone"
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
    parser.add_argument(
        "--json", action="store_const", dest="output", const="json", default="table"
    )
    options = parser.parse_args()
    patient = {"zookeeper.session.timeout.ms": 30_000}
    with Sandbox(overrides=patient) as sandbox, ExitStack() as stack:
        results = measure(sandbox, options.repeat, stack)
    return show("bench_mixed", results, output=options.output)


if __name__ == "__main__":
    sys.exit(main())
