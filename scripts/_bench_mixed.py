"""How fast a group settles that has a member of ours and real JVM consumers, when a JVM one joins
and leaves, beside a group of JVM consumers alone.

Two groups of five live side by side on one ZooKeeper and one broker, each member in a process of
its own; in one of them the third is ours. In turn each of the two is joined by a sixth, a JVM
member that stands ready, and left by it again. All have the default properties, but attempts enough
for a busy machine.

`settled_s` is the time from the change of the members in ZooKeeper to the last change of the
owners, which then equal the assignor's result; the figure is the median of our group over that of
the JVM's. `own_part_s` is what of it our member takes for itself: the time from the change until it
has released what moves, and from the moment when nobody holds what it is to have until it serves
all of that; that it waits for JVM members to release is not its part. The moments are those of
ZooKeeper's own log, the end that of the member's status.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "integration"), str(ROOT)]

from _bench import Result, at_most, show  # noqa: E402
from _bench_rebalance import Looks, Observer, prepare  # noqa: E402
from crew import MemberProcess  # noqa: E402
from jvmmember import JvmMember  # noqa: E402
from kazoo.client import KazooClient  # noqa: E402
from member import Request  # noqa: E402
from transactionlog import history  # noqa: E402
from waiting import wait_for  # noqa: E402

from zkconsumer.consumer.gate import boottime  # noqa: E402
from zkconsumer.core import paths  # noqa: E402
from zkconsumer.core.model import TopicPartition  # noqa: E402
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

GOALS = {"ratio_to_all_jvm": 1.1, "own_part_s": 0.15}
CASES = ("join", "leave")


class Watch(Observer):
    """As for `bench_rebalance`; `member_gone_at` is when the members changed, either way."""

    def _look(self, looks: Looks) -> None:
        before, known = looks.members, bool(looks.at)
        super()._look(looks)
        if known and looks.members != before and looks.member_gone_at is None:
            looks.member_gone_at = looks.at[-1]


class Group:
    """One of the two groups."""

    def __init__(
        self, sandbox: Sandbox, topic: str, group: str, *, ours: str, client: KazooClient,
        directory: Path, stack: ExitStack,
    ) -> None:  # fmt: skip
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
                zookeeper=sandbox.zookeeper_connect, group=group, topics={topic: 1},
                settings={**OUR_SETTINGS, "consumer_id": ours},
            )  # fmt: skip
            self.our = MemberProcess(ours, request, self._directory)
            stack.callback(self.our.end)
        self._watch.watch(Looks(time.perf_counter()), len(NAMES))

    def join(self) -> float:
        """The joiner joins; in how many seconds the group had settled."""
        wait_for(lambda: self._joiner.of("booted"), "the JVM", limit_s=BOOT_LIMIT_S)
        self._quiet()
        looks = Looks(time.perf_counter())
        self._joiner.tell("join")
        return self._settled(looks, len(NAMES) + 1)

    def leave(self) -> float:
        """It leaves again, and the next one is made ready."""
        self._quiet()
        looks = Looks(time.perf_counter())
        self._joiner.tell("leave")
        took = self._settled(looks, len(NAMES))
        self._joiner.process.wait()
        self._joins += 1
        self._joiner = self._jvm(f"f{self._joins}")
        return took

    def own_part(self) -> tuple[float, float]:
        """How long our member took with the last change of the group: to release, and to serve."""
        assert self.our is not None
        log = self._sandbox.zookeeper.directory / "data" / "version-2"
        root = f"{paths.CONSUMERS}/{self._group}/"
        located = [
            (one.t_ms / 1000, one.session, one.change, paths.locate(one.change.path))
            for one in history([log], root=root)
            if one.change is not None
        ]
        began = max(t for t, _, _, where in located if where.kind is paths.Kind.MEMBER)
        ours = self.our.last("session")["id"]
        owners = [
            (t, session, change.new is not None, where.partition)
            for t, session, change, where in located
            if t >= began and where.kind is paths.Kind.OWNER
        ]
        released = max((t for t, who, made, _ in owners if who == ours and not made), default=began)
        claimed = {partition for _, who, made, partition in owners if who == ours and made}
        freed = max(
            (t for t, who, made, p in owners if who != ours and not made and p in claimed),
            default=began,
        )
        said = [e for e in self.our.of("status") if e["phase"] == "settled"]
        held = {TopicPartition(*tp) for one in said[-1]["owned"].values() for tp in one}
        ahead_s = time.time() - boottime()
        first: float = next(
            e["t"] + ahead_s
            for e in said
            if e["t"] + ahead_s >= began
            and {TopicPartition(*tp) for one in e["owned"].values() for tp in one} == held
        )
        return released - began, first - max(freed, released)

    def _settled(self, looks: Looks, members: int) -> float:
        self._watch.watch(looks, members)
        assert looks.member_gone_at is not None
        return looks.changed_at - looks.member_gone_at

    def _quiet(self) -> None:
        wait_for(
            lambda: all(member.quiet_s > SILENCE_S for member in self._members),
            "the JVM members to be silent", look_s=0.1, limit_s=BOOT_LIMIT_S,
        )  # fmt: skip

    def _jvm(self, name: str) -> JvmMember:
        member = JvmMember(
            RELEASE, self._sandbox.zookeeper_connect, self._group, name=name,
            directory=self._directory, topics=[self._topic], properties=JVM_PROPERTIES,
            starts="booted",
        )  # fmt: skip
        self._stack.callback(member.end)
        return member


def measure(sandbox: Sandbox, repeat: int, stack: ExitStack) -> list[Result]:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zkconsumer-bench-")))
    client = KazooClient(sandbox.zookeeper_connect)
    client.start()
    stack.callback(client.close)
    stack.callback(client.stop)
    topic = prepare(sandbox, PARTITIONS)
    print("  two groups of five ...", file=sys.stderr)
    mixed, jvm = (
        Group(sandbox, topic, name, ours=ours, client=client, directory=directory, stack=stack)
        for name, ours in (("mixed", OURS), ("jvm", ""))
    )
    settled: dict[tuple[str, str], list[float]] = {}
    own: dict[str, list[float]] = {}
    for number in range(repeat):
        for case in CASES:
            for name, group in (("mixed", mixed), ("jvm", jvm)):
                took = group.join() if case == "join" else group.leave()
                settled.setdefault((case, name), []).append(took)
                if group is mixed:
                    released, served = group.own_part()
                    own.setdefault(case, []).append(released + served)
            pair = ", ".join(f"{name} {settled[case, name][-1]:.3f} s" for name in ("mixed", "jvm"))
            part = f"own part {released:.3f} s + {served:.3f} s"
            print(f"  {number + 1} {case:<6} {pair}, {part}", file=sys.stderr)
    return [result for case in CASES for result in _results(case, settled, own[case])]


def _results(
    case: str, settled: dict[tuple[str, str], list[float]], own: list[float]
) -> list[Result]:
    mixed, jvm = (statistics.median(settled[case, name]) for name in ("mixed", "jvm"))
    print(f"  {case}: settled after {mixed:.3f} s, JVM members alone {jvm:.3f} s", file=sys.stderr)
    return [
        at_most(case, "ratio_to_all_jvm", mixed / jvm, "", GOALS["ratio_to_all_jvm"]),
        at_most(case, "own_part_s", statistics.median(own), "s", GOALS["own_part_s"]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_mixed", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--repeat", type=int, default=5, help="repetitions (default 5)")
    parser.add_argument(
        "--json", action="store_const", dest="output", const="json", default="table"
    )
    options = parser.parse_args()
    patient = {"zookeeper.session.timeout.ms": 30_000}
    with Sandbox(overrides=patient) as sandbox, ExitStack() as stack:
        # The observer looks in time even while the members have every core; root may do that.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, -10)
        results = measure(sandbox, options.repeat, stack)
    return show("bench_mixed", results, output=options.output)


if __name__ == "__main__":
    sys.exit(main())
