"""Measure how fast a group settles when members join, leave and die, and how long partitions have
no owner.

All servers and members are real and on this machine: a ZooKeeper, a broker for each 5,000
partitions of a topic with a message in each partition, and members in separate processes. For 32
members there are four processes, and one more for the member that joins. Members are connected to
ZooKeeper and have imported everything before they are told to join. Each member runs the whole
connector, and a thread iterates its stream.

An observer with its own ZooKeeper session reads the Stat of `owners/TOPIC` (number and version of
its children) and of `ids` every few milliseconds. `settled_s` ends at the first read that shows the
last change of the owners; afterwards the znodes themselves are read and compared with the
assignor's result. `unowned_partition_seconds` is the time without an owner znode, summed over the
partitions, from the order until that moment (`kill`: from the deletion of the id znode).

`join`: one more member joins a settled group. `leave`: that member leaves. `kill`: a member is
killed with SIGKILL, and its session expires after 6 s. `cold`: all members join at once.
`reads_per_member` is the number of znodes and listings that the members read from the order until
the group was found settled, divided by the number of members. For a join and a departure its limit
is 4 reads for each member and 2 for each partition, in the whole group. Each figure is the median
of the repetitions; minimum and maximum are printed beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from _bench import Result, add_json, at_most, show
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy, assign
from zkconsumer.protocol.payloads import decode_owner, decode_topic
from zkconsumer.protocol.registrations import decode_registration
from zkconsumer.sandbox import Sandbox

LOOK_S = 0.003  # seconds between two reads of the observer
QUIET_S = 0.25  # seconds without a change before owners are compared with the assignor's result
READ_AT_ONCE = 50  # owners that the observer reads before it reads the Stats again
LIMIT_S = 30.0  # time limit of a case, without the time for each partition
LIMIT_PER_PARTITION_S = 0.02
PARTITIONS_OF_BROKER = 5_000  # each takes a file descriptor and two memory maps of its broker
SESSION_S = 6.0
FETCH_WAIT_S = 0.1  # fetch.wait.max.ms, its default
# If one broker does not suffice, members wait for seconds on a busy machine; and with the default,
# their fetches without messages would take all of its time.
LONG_SESSION_S, LONG_FETCH_WAIT_S = 30.0, 10.0
PROCESSES_OF_MANY = 4  # processes if there are more than `ONE_EACH` members
ONE_EACH = 8
TOPIC = "load"
STEP = 1000  # number of partitions created at once

GOALS: dict[tuple[int, int], dict[str, dict[str, float]]] = {
    (512, 8): {
        "cold": {"settled_s": 1.0},
        "join": {"settled_s": 0.1, "unowned_partition_seconds": 5},
        "leave": {"settled_s": 0.1, "unowned_partition_seconds": 5},
        "kill": {"settled_after_expiry_s": 0.3},
    },
    (512, 32): {"join": {"settled_s": 0.4, "unowned_partition_seconds": 20}},
    (5000, 8): {"cold": {"settled_s": 3.0}, "join": {"settled_s": 0.6}},
    (5000, 32): {"join": {"settled_s": 0.8}},
    (2000, 200): {"cold": {"settled_s": 6.0}, "join": {"settled_s": 1.5}},
    (20_000, 100): {"cold": {"settled_s": 60.0}, "join": {"settled_s": 15.0}},
}


class Process:
    """A process with members; it answers each order when it has executed it."""

    def __init__(
        self, zookeeper: str, topic: str, members: int, *, session_s: float, fetch_wait_s: float
    ) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("_bench_member.py")),
                "--zookeeper",
                zookeeper,
                "--topic",
                topic,
                "--members",
                str(members),
                "--session-s",
                str(session_s),
                "--fetch-wait-s",
                str(fetch_wait_s),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 0)  # not the observer's priority

    def tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()

    def answered(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "done\n":
            raise SystemExit("a member process ended too early: see its output above")

    def counts(self) -> Counter[str]:
        """Return what the process's members have sent to ZooKeeper since the last call."""
        self.tell("counts")
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("a member process ended too early: see its output above")
        return Counter(json.loads(answer))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class Looks:
    """The observer's reads during one case."""

    started: float
    at: list[float] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    members: int = 0
    version: int = -2
    changed_at: float = 0.0
    member_gone_at: float | None = None

    def unowned(self, partitions: int, since: float) -> float:
        """Return the partition-seconds without an owner, from `since` to the last change."""
        total = 0.0
        for before, now, owned in zip(self.at, self.at[1:], self.owners, strict=False):
            if before >= since and now <= self.changed_at:
                total += (partitions - owned) * (now - before)
        return total


class Observer:
    """Reads a group's znodes over its own session."""

    look_s = LOOK_S

    def __init__(self, client: KazooClient, group: str, topic: str, partitions: int) -> None:
        self._client = client
        self._ids, self._owners = paths.ids(group), paths.owners_of(group, topic)
        self._group, self._topic, self._partitions = group, topic, partitions

    def watch(self, looks: Looks, members: int) -> Looks:
        """Read until there are `members` members and the owners equal the assignor's result."""
        limit_s = LIMIT_S + LIMIT_PER_PARTITION_S * self._partitions
        while time.perf_counter() - looks.started < limit_s:
            self._look(looks)
            quiet = looks.at[-1] - looks.changed_at > QUIET_S
            full = looks.members == members and looks.owners[-1] == self._partitions
            if quiet and full and self._as_assigned(looks):
                return looks
            time.sleep(self.look_s)
        raise SystemExit(f"not settled after {limit_s:g} s: {looks.owners[-1]} owners")

    def _look(self, looks: Looks) -> None:
        pending = self._client.exists_async(self._ids), self._client.exists_async(self._owners)
        ids, owners = (reply.get() for reply in pending)
        now = time.perf_counter()
        version = owners.cversion if owners else -1
        if version != looks.version:
            looks.version, looks.changed_at = version, now
        members = ids.numChildren if ids else 0
        if members < looks.members and looks.member_gone_at is None:
            looks.member_gone_at = now
        looks.members = members
        looks.at.append(now)
        looks.owners.append(owners.numChildren if owners else 0)

    def _as_assigned(self, looks: Looks) -> bool:
        """Return whether the owners equal the assignor's result and do not change during the
        comparison.
        """
        client, version = self._client, looks.version
        subscriptions = {
            name: decode_registration(client.get(f"{self._ids}/{name}")[0], where=name).subscription
            for name in client.get_children(self._ids)
        }
        payload, _ = client.get(paths.topic(self._topic))
        partitions = {self._topic: decode_topic(payload, where=self._topic)}
        wanted = assign(Strategy.RANGE, subscriptions=subscriptions, partitions=partitions)
        todo = list(wanted.items())
        while todo and looks.version == version:
            some, todo = todo[:READ_AT_ONCE], todo[READ_AT_ONCE:]
            asked = [client.get_async(paths.owner(self._group, tp)) for tp, _ in some]
            try:
                found = [decode_owner(reply.get()[0], where="") for reply in asked]
            except NoNodeError:
                return False  # the group has not settled yet
            if found != [thread for _, thread in some]:
                return False
            self._look(looks)
        return looks.version == version


class Bench:
    """The benchmark of one size of group: the processes, and the figures by case and metric."""

    def __init__(self, sandbox: Sandbox, topic: str, partitions: int, members: int) -> None:
        self._connect, self._topic = sandbox.zookeeper_connect, topic
        self._partitions, self._members = partitions, members
        self.goals = GOALS.get((partitions, members), GOALS[512, 8])
        self._waits = {"session_s": SESSION_S, "fetch_wait_s": FETCH_WAIT_S}
        if partitions > PARTITIONS_OF_BROKER:
            self._waits = {"session_s": LONG_SESSION_S, "fetch_wait_s": LONG_FETCH_WAIT_S}
        # SIGKILL ends a process with all its members, so the first process has only one member.
        kills = "kill" in self.goals
        self._shares = [1, *_shares(members - 1)] if kills else _shares(members)
        self.figures: dict[tuple[str, str], list[float]] = {}

    def repeat(self, client: KazooClient, group: str) -> None:
        """Run each case once, in a new group."""
        observer = Observer(client, group, self._topic, self._partitions)
        with self._processes([*self._shares, 1], group) as (*first, joining):
            group_of = [*first, joining]
            _counts(group_of)
            looks = self._tell(first, "join", observer, self._members)
            self._note("cold", looks, _counts(group_of), self._members)
            for _ in range(1 if "kill" in self.goals else 2):
                looks = self._tell([joining], "join", observer, self._members + 1)
                self._note("join", looks, _counts(group_of), self._members + 1)
                looks = self._tell([joining], "leave", observer, self._members)
                self._note("leave", looks, _counts(group_of), self._members)
                joining.tell(f"warm {group}")
                joining.answered()
                _counts(group_of)
            if "kill" in self.goals:
                looks = Looks(time.perf_counter())
                first[0].kill()
                observer.watch(looks, self._members - 1)
                self._note("kill", looks, _counts(group_of[1:]), self._members - 1)

    @contextmanager
    def _processes(self, shares: Sequence[int], group: str) -> Iterator[list[Process]]:
        with ExitStack() as stack:
            found = []
            for share in shares:
                found.append(Process(self._connect, self._topic, share, **self._waits))
                stack.callback(found[-1].kill)
            for one in found:  # sequentially, so that the last has the highest consumer id
                one.tell(f"warm {group}")
                one.answered()
            yield found

    @staticmethod
    def _tell(processes: Sequence[Process], order: str, observer: Observer, members: int) -> Looks:
        looks = Looks(time.perf_counter())
        for one in processes:
            one.tell(order)
        observer.watch(looks, members)
        for one in processes:
            one.answered()
        return looks

    def _note(self, case: str, looks: Looks, counts: Counter[str], members: int) -> None:
        reads = counts["reads"] / members
        since = looks.started if looks.member_gone_at is None else looks.member_gone_at
        metrics = {
            "settled_s": looks.changed_at - looks.started,
            "settled_after_expiry_s": looks.changed_at - since,
            "unowned_partition_seconds": looks.unowned(self._partitions, looks.started),
            "reads_per_member": reads,
        }
        gaps = [b - a for a, b in zip(looks.at, looks.at[1:], strict=False)]
        apart = f"{1e3 * statistics.median(gaps):.1f} ms apart, {1e3 * max(gaps):.0f} at most"
        print(
            f"  {self._partitions} x {self._members} {case:<6}"
            f" {metrics['settled_after_expiry_s' if case == 'kill' else 'settled_s']:7.3f} s"
            f" {metrics['unowned_partition_seconds']:9.2f} partition-seconds unowned"
            f" {reads:7.1f} reads per member"
            f"  (looks {apart})",
            file=sys.stderr,
        )
        print(_described(counts), file=sys.stderr)
        for metric in self._limits(case):
            self.figures.setdefault((case, metric), []).append(metrics[metric])

    def _limits(self, case: str) -> dict[str, float]:
        """Return the upper bound of each metric of a case."""
        limits = dict(self.goals.get(case, {}))
        if case in ("join", "leave"):
            limits["reads_per_member"] = 4 + 2 * self._partitions / self._members
        return limits

    def results(self, prefix: str) -> list[Result]:
        found = []
        for (case, metric), values in self.figures.items():
            print(
                f"  {prefix}{case} {metric}: {len(values)} times, "
                f"{min(values):.3f} to {max(values):.3f}",
                file=sys.stderr,
            )
            median = statistics.median(values)
            unit = "" if metric == "reads_per_member" else "s"
            goal = self._limits(case)[metric]
            found.append(at_most(f"{prefix}{case}", metric, median, unit, goal))
        return found


def _counts(processes: Sequence[Process]) -> Counter[str]:
    return sum((one.counts() for one in processes), Counter())


def _described(counts: Counter[str]) -> str:
    """Return the members' processor time, and a line for each kind of operation."""
    lines = [f"    {counts['cpu_ms'] / 1000:.1f} s of the members' processor time"]
    for key in sorted(counts):
        kind, _, what = key.partition(" ")
        if what == "starts":
            lines.append(
                f"    {kind:<13} {counts[key]:7} operations"
                f" {counts[f'{kind} requests']:8} requests {counts[f'{kind} names']:9} names listed"
            )
    return "\n".join(lines)


def _shares(members: int) -> list[int]:
    """Return the number of members of each process."""
    if members <= ONE_EACH:
        return [1] * members
    return [len(range(n, members, PROCESSES_OF_MANY)) for n in range(PROCESSES_OF_MANY)]


def prepare(sandbox: Sandbox, partitions: int) -> str:
    """Create a topic on the broker, with a message in each partition."""
    topic = f"{TOPIC}-{partitions}"
    print(f"  a topic of {partitions} partitions ...", file=sys.stderr)
    started = time.monotonic()
    # Create it in steps, because a broker reports no partition of a request before it has created
    # the logs of all.
    sandbox.create_topic(topic, partitions=min(STEP, partitions))
    for count in range(2 * STEP, partitions + STEP, STEP):
        sandbox.add_partitions(topic, partitions=min(count, partitions))
        print(f"    {count} after {time.monotonic() - started:.0f} s", file=sys.stderr)
    sandbox.produce(topic, partitions)
    return topic


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_rebalance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--partitions", type=int, default=512)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument(
        "--all",
        action="store_const",
        const=[one for one in GOALS if one[0] <= PARTITIONS_OF_BROKER],
        dest="sizes",
        help="run every size that has goals and needs one broker, and name the size of each case",
    )
    parser.add_argument("--repeat", type=int, default=3, help="repetitions (default 3)")
    add_json(parser)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    sizes = options.sizes or [(options.partitions, options.members)]
    results: list[Result] = []
    # On a busy machine a broker with 5,000 partitions may be silent for longer than its usual
    # session timeout of 6 s.
    patient = {"zookeeper.session.timeout.ms": 30_000}
    brokers = math.ceil(max(count for count, _ in sizes) / PARTITIONS_OF_BROKER)
    with Sandbox(brokers=brokers, overrides=patient) as sandbox, ExitStack() as stack:
        # Raise the observer's priority, so that it reads in time even if the members use every
        # core; only root may do that.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, -10)
        client = KazooClient(sandbox.zookeeper_connect, timeout=LONG_SESSION_S)
        client.start()
        stack.callback(client.close)
        stack.callback(client.stop)
        topics = {count: prepare(sandbox, count) for count in sorted({one for one, _ in sizes})}
        for partitions, members in sizes:
            bench = Bench(sandbox, topics[partitions], partitions, members)
            for number in range(options.repeat):
                bench.repeat(client, f"group-{partitions}-{members}-{number}")
            prefix = f"{partitions} x {members}: " if options.sizes else ""
            results += bench.results(prefix)
    return show("bench_rebalance", results, output=options.output)


if __name__ == "__main__":
    sys.exit(main())
