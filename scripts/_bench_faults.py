"""Measure the costs of faults on real servers: time, redelivered messages, requests to ZooKeeper.

`kill`: the time after SIGKILL until another member reads the killed member's partitions. `freeze`:
the messages that a process delivers after the next owner has started, if it was stopped for longer
than its session timeout. `faults`: lost and redelivered messages by fault. `requests`: the number
of ZooKeeper requests that one join causes, as the group grows. `payload`: the time from the payload
of a client that registered empty, as kafka-node does, until the members have settled beside it.

The simulator's monitor judges every run. A broken promise ends the benchmark, which then names the
promise.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, count
from pathlib import Path
from socket import socket
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import _records
from _bench import Result, add_json, at_least, at_most, show, without_goal
from kazoo.client import KazooClient
from support.members.crew import BRIEF, Crew, MemberProcess, frozen
from support.members.evidence import Evidence
from support.wait import wait_for
from support.zk.proxies import (
    Proxy,
    Trap,
    Wire,
)

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import Sandbox
from zkconsumer.zk.observer import GroupPart, Observer

PARTITIONS = 8
# Seconds beyond the session timeout within which another member must read the partitions: the
# server's tick, a rebalance, and a first message (docs/verification.md).
BEYOND_S = 1.0
SIZES = (2, 4, 8, 16, 32)
WIDE = 64  # partitions: two for each of 32 members
QUIET_S = 1.0  # a rebalance has ended after this time with no requests but pings and leases


class Bench:
    """The servers, and groups that share no topic."""

    def __init__(self, sandbox: Sandbox, directory: Path, *, records: bool = False) -> None:
        self.sandbox = sandbox
        self.records = records
        self._directory, self._numbers = directory, count()

    def topic(self, partitions: int) -> str:
        name = f"bench-{next(self._numbers)}"
        self.sandbox.create_topic(name, partitions=partitions)
        return name

    @contextmanager
    def crew(self) -> Iterator[tuple[Crew, Trap]]:
        """Yield a group with a constant flow of messages, and a proxy for members that get
        faults.
        """
        topic = self.topic(PARTITIONS)
        directory = self._directory / topic
        directory.mkdir()
        with ExitStack() as stack:
            crew = Crew(
                self.sandbox.zookeeper_connect, self.sandbox.bootstrap, topic, directory, stack
            )
            crew.feed(topic, PARTITIONS)
            yield crew, stack.enter_context(Trap(self.sandbox.zookeeper_connect))


def pair(crew: Crew, **second: object) -> tuple[MemberProcess, MemberProcess]:
    """Return two members that receive messages."""
    members = crew.join(**BRIEF), crew.join(**BRIEF, **second)
    crew.settle(*members)
    crew.flowing(*members)
    return members


# ---- SIGKILL -------------------------------------------------------------------------------------


def kill(bench: Bench, rounds: int) -> list[Result]:
    took: list[float] = []
    with bench.crew() as (crew, _):
        first = crew.join(**BRIEF)
        for number in range(rounds):
            second = crew.join(**BRIEF)
            crew.settle(first, second)
            crew.flowing(first, second)
            lost = second.owned
            second.kill()
            killed_at = second.gone_at
            assert killed_at is not None
            crew.settle(first)
            crew.flowing(first)
            took += _read_again(first, lost, killed_at)
            print(f"kill {number + 1}: {max(took[-len(lost) :]):.3f} s", flush=True)
        evidence = crew.finish()
    hundredths = statistics.quantiles(took, n=100, method="inclusive")
    limit = first.session_s + BEYOND_S
    print(f"{len(took)} partitions, {rounds} killed members, session timeout {first.session_s} s")
    return [
        at_most("kill", "takeover_p50", hundredths[49], "s", limit),
        at_most("kill", "takeover_p99", hundredths[98], "s", limit),
        at_most("kill", "takeover_max", max(took), "s", limit),
        *_lost("kill", evidence),
    ]


def _read_again(
    member: MemberProcess, partitions: set[TopicPartition], after: float
) -> list[float]:
    """Return the seconds from `after` to the first message of each partition."""

    def first() -> dict[TopicPartition, float]:
        given = [one for one in reversed(member.delivered) if one.t > after]
        return {one.partition: one.t - after for one in given}

    wait_for(lambda: first().keys() >= partitions, "all to be read again")
    return [first()[tp] for tp in sorted(partitions)]


def _lost(case: str, evidence: Evidence) -> list[Result]:
    return [
        at_most(case, "lost", _missing(evidence), "messages", 0),
        at_least(case, "of", len(evidence.deliveries), "messages", 1),
    ]


def _missing(evidence: Evidence) -> int:
    return sum(map(len, evidence.undelivered().values()))


# ---- SIGSTOP -------------------------------------------------------------------------------------


def freeze(bench: Bench, rounds: int) -> list[Result]:
    # The user processes messages most of the time, so that a freeze finds unfinished messages.
    works = {"iterate": 0.0003, "poll": 0.05}
    return [one for take in works for one in _freeze(bench, take, works[take], rounds)]


def _freeze(bench: Bench, take: str, work_s: float, rounds: int) -> list[Result]:
    case = f"freeze {take}"
    with bench.crew() as (crew, _):
        first, second = pair(crew, take=take, work_s=work_s)
        for number in range(rounds):
            for partition in sorted(second.owned):
                crew.traffic.burst(partition, 200)
            crew.flowing(second)
            with frozen(second):
                crew.settle(first)
                crew.flowing(first)
            crew.settle(first, second)
            crew.flowing(first, second)
            print(f"{case} {number + 1}", flush=True)
        evidence = crew.finish()
    hands = _in_hand(evidence, second)
    stops = [stop for stop, _ in second.frozen]
    by_freeze = Counter(bisect_right(stops, t) for t, _, _ in hands)
    messages, longest = sum(n for _, n, _ in hands), max((s for *_, s in hands), default=0)
    print(
        f"{case}: {len(by_freeze)} of {rounds} freezes had messages in hand, {messages} "
        f"in all, processed up to {longest:.2f} s after the next owner's first message"
    )
    return [
        at_most(case, "overlap_max", max(by_freeze.values(), default=0), "in hand", 1),
        at_most(case, "twice", evidence.duplicates(), "messages", len(evidence.deliveries)),
        *_lost(case, evidence),
    ]


def _in_hand(evidence: Evidence, member: MemberProcess) -> list[tuple[float, int, float]]:
    """Return the messages that a user was still processing when the next owner had started.

    There is one entry for each message or polled batch: (end of processing, number of messages,
    seconds since the next owner's first message).
    """
    firsts: dict[TopicPartition, dict[int, float]] = {}
    for one in evidence.deliveries:
        tokens = firsts.setdefault(one.partition, {})
        tokens[one.token] = min(one.t, tokens.get(one.token, one.t))
    found = []
    for given, done in zip(member.of("delivered"), member.of("finished"), strict=True):
        later = [
            (len(offsets), done["t"] - first)
            for topic, number, token, offsets in given["runs"]
            for newer, first in firsts[TopicPartition(topic, number)].items()
            if newer > token and first < done["t"]
        ]
        if later:
            found.append((done["t"], sum(n for n, _ in later), max(s for _, s in later)))
    return found


# ---- Redelivered messages, by fault --------------------------------------------------------------


def _leave(crew: Crew, _trap: Trap) -> None:
    first, second = pair(crew)
    second.leave()
    crew.settle(first)
    crew.flowing(first)


def _kill(crew: Crew, _trap: Trap) -> None:
    first, second = pair(crew)
    second.kill()
    crew.settle(first)
    crew.flowing(first)


def _stop(crew: Crew, _trap: Trap) -> None:
    first, second = pair(crew)
    with frozen(second):
        crew.settle(first)
        crew.flowing(first)
    crew.settle(first, second)
    crew.flowing(first, second)


def _expire(crew: Crew, _trap: Trap) -> None:
    first, second = pair(crew)
    second.expire(crew.zookeeper)
    wait_for(lambda: len(second.of("session")) > 1, "a new session")
    crew.settle(first, second)
    crew.flowing(first, second)


def _cut(crew: Crew, trap: Trap) -> None:
    first, second = pair(crew, zookeeper=trap.address)
    trap.cut()
    crew.settle(first, second)
    crew.flowing(first, second)


def _lose(crew: Crew, trap: Trap, wire: Wire) -> None:
    first, second = pair(crew, zookeeper=trap.address)
    trap.wire = wire
    until = boottime() + 2 * second.session_s
    wait_for(lambda: boottime() > until, "two session timeouts to pass")
    trap.wire = Wire.PASS
    trap.cut()
    crew.settle(first, second)
    crew.flowing(first, second)


def _swallow(crew: Crew, trap: Trap) -> None:
    """Lose the reply to a commit, and break the connection directly afterwards."""
    first, second = pair(crew, zookeeper=trap.address)
    trap.set(b"/offsets/")
    assert trap.sprung.wait(10)
    trap.cut()
    crew.settle(first, second)
    crew.flowing(first, second)


FAULTS: dict[str, Callable[[Crew, Trap], None]] = {
    "join and leave": _leave,
    "SIGKILL": _kill,
    "SIGSTOP": _stop,
    "session expired": _expire,
    "connection cut": _cut,
    "reply swallowed": _swallow,
    "replies lost": lambda crew, trap: _lose(crew, trap, Wire.LOSE_REPLIES),
    "black hole": lambda crew, trap: _lose(crew, trap, Wire.SILENT),
}
CLEAN = ("join and leave", "connection cut", "reply swallowed")
"""Faults that must not cause a single redelivery."""


def faults(bench: Bench, rounds: int) -> list[Result]:
    results = []
    for name, act in FAULTS.items():
        found = []
        for _ in range(rounds):
            with bench.crew() as (crew, trap):
                act(crew, trap)
                found.append(crew.finish())
        twice = [one.duplicates() for one in found]
        delivered = sum(len(one.deliveries) for one in found)
        print(f"{name}: {twice} redelivered of {delivered} delivered, 0 lost", flush=True)
        allowed = 0 if name in CLEAN else delivered
        results += [
            at_most(name, "twice_max", max(twice), "messages", allowed),
            at_most(name, "lost", sum(map(_missing, found)), "messages", 0),
            at_least(name, "of", delivered, "messages", 1),
        ]
    return results


# ---- Requests to ZooKeeper -----------------------------------------------------------------------


MULTI_READ = 22  # `ZooDefs.OpCode.multiRead`


def _reads_in(body: bytes) -> int:
    """Return the number of reads in a `multiRead`: headers of 9 bytes, paths, and watch flags."""
    count = at = 0
    while not body[at + 4]:  # `MultiHeader`: the operation, whether it is the last one, the error
        length = int.from_bytes(body[at + 9 : at + 13], "big")
        at += 9 + 4 + length + 1
        count += 1
    return count


class Meter(Proxy):
    """Counts the members' requests to ZooKeeper by kind, without pings and the lease's requests."""

    KINDS = MappingProxyType(
        dict.fromkeys((1, 2, 5, 14), "write") | dict.fromkeys((3, 4, 8, 12, MULTI_READ), "read")
    )

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.asked: Counter[str] = Counter()
        self.last_at = time.monotonic()

    def _requests(self, client: socket, server: socket) -> None:
        pending, is_handshake = b"", True
        while chunk := self._receive(client):
            pending += chunk
            while len(pending) >= 4 and len(pending) >= (
                size := 4 + int.from_bytes(pending[:4], "big")
            ):
                number = int.from_bytes(pending[8:12], "big", signed=True)
                kind = self.KINDS.get(number)
                if kind and not is_handshake:
                    self.asked[kind] += _reads_in(pending[12:size]) if number == MULTI_READ else 1
                    self.last_at = time.monotonic()
                pending, is_handshake = pending[size:], False
            self._send(server, chunk)
        self.end(client, server)


def requests(bench: Bench, _rounds: int) -> list[Result]:
    topic, results = bench.topic(WIDE), []
    counts: dict[str, dict[str, int]] = {}
    began = time.monotonic()
    with ExitStack() as stack:
        meter = stack.enter_context(Meter(bench.sandbox.zookeeper_connect))
        observer = stack.enter_context(
            Observer(bench.sandbox.zookeeper_connect, topic, follow={GroupPart.OWNERS})
        )
        members: list[ConsumerConnector] = []

        def join() -> None:
            config = ConsumerConfig(
                group_id=topic,
                zookeeper_connect=meter.address,
                auto_commit_enable=False,
                zookeeper_session_timeout_s=10.0,
            )
            members.append(stack.enter_context(ConsumerConnector(config)))
            members[-1].create_message_streams({topic: 1})

        def quiet() -> bool:
            settled = all(one.status().phase == "settled" for one in members)
            rested = time.monotonic() > meter.last_at + QUIET_S
            return settled and rested and len(observer.snapshot().owners) == WIDE

        for size in range(1, max(SIZES) + 1):
            meter.asked.clear()
            join()
            wait_for(quiet, f"{size} members at rest", 120.0)
            if size in SIZES:
                results += _of_a_join(size, meter.asked)
                counts[str(size)] = {"reads": meter.asked["read"], "writes": meter.asked["write"]}
    if bench.records:
        seconds = time.monotonic() - began
        _records.write(
            "faults",
            seconds=seconds,
            counts=counts,
            name="requests",
            case="requests",
            partitions=WIDE,
        )
    return results


def _of_a_join(size: int, asked: Counter[str]) -> list[Result]:
    """Return the results of one join.

    The member that joins reads each registration. Each other member reads the listing, the new
    registration, and the owners of the topic if it gains partitions. A partition that moves costs
    two reads: its offset, and its owner znode.
    """
    print(f"join of member {size}: {asked['read']} reads, {asked['write']} writes", flush=True)
    case = f"join of {size}"
    return [
        at_most(case, "reads", asked["read"], "", 4 * size + 2 * WIDE),
        at_most(case, "writes", asked["write"], "", 2 * size + 4),
    ]


# Seconds within which the members must have settled after the payload.
ROOM_S = 1.0
# Seconds between the two requests of the client: the members have read the empty registration.
EMPTY_S = 0.2


def payload(bench: Bench, rounds: int) -> list[Result]:
    """Let a client register with two requests, in a group of three members that read messages."""
    topic, took = bench.topic(PARTITIONS), []
    filled = encode_registration(Registration({topic: 1}, timestamp_ms=1))
    with ExitStack() as stack:
        peer = KazooClient(bench.sandbox.zookeeper_connect)
        peer.start()
        stack.callback(peer.stop)
        members = [
            stack.enter_context(
                ConsumerConnector(
                    ConsumerConfig(
                        group_id=topic,
                        consumer_id=name,
                        zookeeper_connect=bench.sandbox.zookeeper_connect,
                    )
                )
            )
            for name in "abc"
        ]
        for one in members:
            one.create_message_streams({topic: 1})

        def settled(count: int) -> bool:
            owned = [*chain.from_iterable(one.assignment() for one in members)]
            at_rest = all(one.status().phase == "settled" for one in members)
            return at_rest and len(owned) == count

        path = paths.member(topic, f"{topic}_0")  # it sorts first, and gets the first share
        for number in range(rounds):
            wait_for(lambda: settled(PARTITIONS), "three members at rest", 60.0)
            peer.create(path, None, ephemeral=True)
            time.sleep(EMPTY_S)
            peer.set(path, filled)
            since = time.monotonic()
            wait_for(lambda: settled(PARTITIONS * 3 // 4), "room for the peer", 60.0)
            took.append(time.monotonic() - since)
            print(f"payload {number + 1}: {took[-1]:.3f} s", flush=True)
            peer.delete(path)
    return [
        without_goal("payload", "median", statistics.median(took), "s"),
        at_most("payload", "max", max(took), "s", ROOM_S),
    ]


CASES = {"kill": kill, "freeze": freeze, "faults": faults, "requests": requests, "payload": payload}
ROUNDS = {"kill": 25, "freeze": 10, "faults": 3, "requests": 1, "payload": 10}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--case", choices=sorted(CASES), action="append")
    parser.add_argument("--rounds", type=int, help=f"rounds of each case (default {ROUNDS})")
    add_json(parser)
    parser.add_argument(
        "--record", action="store_true", help="write the result of `requests` to docs/records/"
    )
    given = parser.parse_args()
    results: list[Result] = []
    directory = tempfile.TemporaryDirectory(prefix="zkconsumer-bench-")
    with directory as path, Sandbox(tick_time_s=0.1) as sandbox:
        bench = Bench(sandbox, Path(path), records=given.record)
        for case in given.case or CASES:
            results += CASES[case](bench, given.rounds or ROUNDS[case])
    return show("faults", results, output=given.output)


if __name__ == "__main__":
    sys.exit(main())
