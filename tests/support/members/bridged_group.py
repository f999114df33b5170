"""A real group that a bridge divides: old and new members, bridges as processes, and the evidence.

Old members are Kafka's own consumer of 0.8 to 1.1, or zkconsumer. New members are Java's
`KafkaConsumer` of 3.9.1, or librdkafka. Each member and each bridge has its own process.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from support.jvm.member import TO_STDERR, JvmMember
from support.kafka.traffic import Traffic
from support.members.crew import MemberProcess, Program, environment
from support.members.evidence import Delivery, deliveries, missing
from support.members.later_member import LaterMember
from support.members.program import Request
from support.wait import LIMIT_S, wait_for
from support.zk.log import history
from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.history.offset_records import CommitKey, decode_commit, decode_key
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox, guard
from zkconsumer.sandbox.topics import client_settings

COMMIT_S = 0.5
"""How often, in seconds, each member commits."""

SESSION_S = 15.0
"""The session timeout of each member, in seconds, so that a killed member is soon replaced."""

BACKOFF_S = 2.0
"""How long, in seconds, a JVM member of the old side waits between two attempts to claim."""

MIRROR_S = 5.0
"""How often, in seconds, a bridge copies Kafka's offsets to ZooKeeper (`process.MIRROR_S`)."""

SLACK_S = 5.0
"""How late, in seconds, a commit or a report may be on a busy machine."""

LOG_S = 0.01
"""How far, in seconds, a log's time may be from the time of an event: it is cut to milliseconds."""

COOPERATIVE = {
    "java": (
        re.compile(
            r"^(?P<at>\S+ \S+) INFO .*\] (?:(?P<joins>\(Re-\)joining group)"
            r"|(?P<revokes>Revoke previously assigned)|(?P<ends>Adding newly assigned))",
            re.MULTILINE,
        ),
        "a Java member revokes",
    ),
    "librdkafka": (
        re.compile(
            r"^%7\|(?P<at>[\d.]+)\|(?:(?P<joins>REJOIN)|(?P<revokes>CLOSE)\|.*Closing consumer"
            r"|(?P<ends>COMMIT)\|.*Committing offsets .* in join-state steady: cgrp auto commit)",
            re.MULTILINE,
        ),
        "a librdkafka member leaves during a rebalance",
    ),
}
"""What the log of a cooperative member shows of a rebalance, and why the member then redelivers."""

COMMITS = re.compile(r"^(?P<at>\S+ \S+) INFO .*\], Committing all offsets after", re.MULTILINE)
"""What the log of Kafka's old consumer says when it commits for a rebalance."""

NEW_LOG4J = f"""\
log4j.rootLogger=WARN, err
log4j.logger.org.apache.kafka.clients.consumer.internals=INFO
{TO_STDERR}"""

OLD = ("0.8.2.2", "1.1.1", "zkconsumer")
NEW = ("java", "librdkafka")


class Bridge:
    """The command `zkconsumer bridge run` as a process; its output goes to a file."""

    def __init__(self, name: str, arguments: Sequence[str], directory: Path) -> None:
        self.name, self.gone_at = name, float("inf")
        self._out = directory / f"{name}.out"
        command = [sys.executable, "-m", "zkconsumer", "bridge", "run", *arguments]
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env=environment(), start_new_session=True
            )
        # The guard ends the process if the test's own process is killed.
        self._birth = guard.start_time(self.process.pid) or ""
        guard.watch(self.process.pid, self._birth)

    def text(self) -> str:
        """Return what the command has printed."""
        return self._out.read_text()

    def last_line(self) -> str:
        """Return the last line that the command has printed."""
        return self.text().splitlines()[-1]

    def wait(self, words: str) -> None:
        """Wait until the command has printed these words."""
        wait_for(lambda: words in self.text(), lambda: f"{self.name}: {words!r} in {self.text()}")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def freeze(self) -> None:
        """Stop the process; its sessions expire if it does not continue in time."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the process continue."""
        self.process.send_signal(signal.SIGCONT)

    def wait_for_end(self) -> int:
        """Return the exit code when the process has ended."""
        code = self.process.wait(LIMIT_S)
        self.gone_at = min(self.gone_at, boottime())
        return code

    def wait_until(self, moment: float) -> None:
        """Wait until a time of `boottime`; fail if the process ends earlier."""
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(max(0.0, moment - boottime()))
            raise AssertionError(f"{self.name} has ended with {code}: {self.text()}")

    def kill(self) -> None:
        """Kill the process: it revokes nothing, and its sessions expire later."""
        self.process.kill()
        self.wait_for_end()

    def end(self) -> None:
        """End the process, whatever state it is in."""
        self.kill()
        guard.release(self.process.pid, self._birth)


@dataclass(frozen=True)
class Verdict:
    """What happened to the messages and the offsets of a group.

    Attributes:
        produced: the number of messages.
        lost: messages that no member has received.
        explained: messages that were delivered again, by the reason that permits it.
        unexplained: the other redeliveries, each with its first and its second delivery.
        moved_back: the offsets that were lowered, in ZooKeeper and in Kafka.
    """

    produced: int
    lost: Mapping[TopicPartition, list[int]]
    explained: Mapping[str, int]
    unexplained: list[tuple[Delivery, Delivery]]
    moved_back: list[str]

    @property
    def violations(self) -> list[str]:
        """The broken promises, each as a line."""
        return [
            *(f"lost: {tp} {offsets}" for tp, offsets in self.lost.items()),
            *_ranges(self.unexplained),
            *self.moved_back,
        ]

    def __str__(self) -> str:
        lost = sum(map(len, self.lost.values()))
        return (
            f"{self.produced} messages, {lost} lost, {len(self.unexplained)} redelivered without"
            f" a reason, {len(self.moved_back)} offsets moved back, redelivered {self.explained}"
        )


@dataclass
class Excuse:
    """A time in which messages may be redelivered.

    Attributes:
        reason: why.
        first: when the first of both deliveries may be, from and to.
        member: the first receiver; empty: any.
    """

    reason: str
    first: tuple[float, float]
    member: str = ""


@dataclass
class BridgedGroup:
    """The group, whose topic has the group's name, its processes, and the evidence.

    A message arrives every `pace_s` seconds, in each partition in turn.
    """

    sandbox: Sandbox
    directory: Path
    stack: ExitStack
    name: str = "billing"
    partitions: int = 6
    pace_s: float = 0.01
    replicas: int = 1
    members: dict[str, Program] = field(default_factory=dict)
    bridges: list[Bridge] = field(default_factory=list)
    excuses: list[Excuse] = field(default_factory=list)
    sides: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._read: Counter[str] = Counter()
        self._known: dict[str, list[Delivery]] = defaultdict(list)
        self._cooperative: dict[str, tuple[re.Pattern[str], str]] = {}
        self.sandbox.create_topic(self.name, partitions=self.partitions, replicas=self.replicas)
        cluster = client_settings(self.sandbox.zookeeper_connect)
        self.traffic = Traffic(cluster, pace_s=self.pace_s)
        self.stack.callback(self.traffic.stop)
        self.traffic.feed(self.name, self.partitions)

    def grow(self, partitions: int) -> None:
        """Add partitions to the topic; `partitions` is the new number."""
        self.sandbox.add_partitions(self.name, partitions=partitions)
        self.partitions = partitions
        self.traffic.feed(self.name, partitions)

    # ---- processes -------------------------------------------------------------------------------

    def bridge(self, *options: str) -> Bridge:
        """Start a bridge; do not wait until it leads the group."""
        name = f"{self.name}-bridge-{len(self.bridges)}"
        where = () if "-z" in options else ("-z", self.sandbox.zookeeper_connect)
        one = Bridge(name, [self.name, *where, *options], self.directory)
        self.bridges.append(one)
        self.stack.callback(one.end)
        return one

    def divide(
        self, *options: str, new: str = "librdkafka", assignor: str = "range"
    ) -> tuple[Bridge, Program]:
        """Start a bridge and a new member, beside one old member; each side then reads half."""
        bridge = self.bridge(*options)
        bridge.wait("runs")
        member = self.new(new, assignor)
        self.wait_for_share("new", self.partitions // 2)
        return bridge, member

    def old(self, kind: str, **properties: object) -> Program:
        """Start an old member: a release of Kafka, or `zkconsumer`."""
        name = f"{self.name}-old-{next(self._numbers)}"
        connect = self.sandbox.zookeeper_connect
        member: Program
        if kind == "zkconsumer":
            settings: dict[str, Any] = {
                "auto_offset_reset": "smallest",
                "auto_commit_interval_s": COMMIT_S,
                "zookeeper_session_timeout_s": SESSION_S,
                "consumer_id": name,
                **properties,
            }
            topics = {self.name: 1}
            request = Request(zookeeper=connect, group=self.name, topics=topics, settings=settings)
            member = MemberProcess(name, request, self.directory)
        else:
            milliseconds = {
                "auto.commit.interval.ms": int(COMMIT_S * 1000),
                "zookeeper.session.timeout.ms": int(SESSION_S * 1000),
                "rebalance.max.retries": 4,
                "rebalance.backoff.ms": int(BACKOFF_S * 1000),
            }
            member = JvmMember(
                kind,
                connect,
                self.name,
                name=name,
                directory=self.directory,
                topics=[self.name],
                properties={**milliseconds, **properties},
            )
        return self._add(member, "old")

    def new(self, kind: str, assignor: str, **properties: object) -> Program:
        """Start a new member: `java` or `librdkafka`."""
        name = f"{self.name}-new-{next(self._numbers)}"
        settings: dict[str, object] = {
            "bootstrap.servers": self.sandbox.bootstrap,
            "group.id": self.name,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": assignor,
            "auto.commit.interval.ms": int(COMMIT_S * 1000),
            "session.timeout.ms": int(SESSION_S * 1000),
            "heartbeat.interval.ms": 1000,
            **properties,
        }
        if kind == "librdkafka":
            settings["debug"] = "cgrp"  # its log then says what Java's says
        member = LaterMember(
            name,
            client="jvm" if kind == "java" else "confluent",
            topic=self.name,
            properties=settings,
            directory=self.directory,
            log4j=NEW_LOG4J,
            reports_messages=True,
        )
        self._add(member, "new")
        if assignor == "cooperative-sticky":
            self._cooperative[name] = COOPERATIVE[kind]
        return member

    def _add(self, member: Program, side: str) -> Program:
        self.members[member.name] = member
        self.sides[member.name] = side
        self.stack.callback(member.end)
        return member

    def kill(self, member: Program) -> None:
        """Kill a member: what it has delivered since its last commit may be delivered again."""
        member.kill()
        assert member.gone_at is not None
        since = member.gone_at - COMMIT_S - SLACK_S
        self.excuses.append(Excuse("a member is killed", (since, member.gone_at), member.name))

    @contextmanager
    def excusing(self, reason: str, *, before_s: float = 0.0) -> Iterator[None]:
        """Excuse redeliveries of what is delivered in the block, or `before_s` seconds before."""
        since = boottime() - before_s
        yield
        self.excuses.append(Excuse(reason, (since, boottime())))

    @contextmanager
    def without(self, bridge: Bridge) -> Iterator[None]:
        """Kill a bridge; until the end of the block both sides may read the same messages.

        They also read again what the other side has read since the last copy of the offsets.
        """
        with self.excusing("a bridge is killed", before_s=MIRROR_S + SLACK_S):
            bridge.kill()
            yield

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another command of `zkconsumer`."""
        command = [sys.executable, "-m", "zkconsumer", *words]
        command += ["-z", self.sandbox.zookeeper_connect]
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
            timeout=LIMIT_S,
        )

    def status(self) -> list[dict[str, Any]]:
        """Return the rows of `zkconsumer bridge status`."""
        done = self.command("bridge", "status", self.name, "--output", "json")
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    def order(self, word: str, *options: str) -> None:
        """Run `zkconsumer bridge WORD`."""
        done = self.command("bridge", word, self.name, *options)
        assert done.returncode == 0, done.stderr

    # ---- what is read ----------------------------------------------------------------------------

    def readers(self, since: float) -> dict[int, set[str]]:
        """Return the members that have read each partition since a time of `boottime`."""
        found: dict[int, set[str]] = defaultdict(set)
        for one in self.deliveries():
            if one.t >= since:
                found[one.partition.partition].add(one.member)
        return found

    def wait_for_share(self, side: str, *counts: int) -> None:
        """Wait until every partition is read, and the side reads one of these numbers of them."""
        since = boottime()

        def is_right() -> bool:
            nonlocal since
            last: dict[int, str] = {}
            for one in sorted(self.deliveries(since)):
                last[one.partition.partition] = self.sides[one.member]
            if len(last) < self.partitions:
                return False
            if sum(one == side for one in last.values()) in counts:
                return True
            since = boottime()
            return False

        wait_for(
            is_right,
            lambda: f"the {side} side reads {counts} partitions: {self.describe()}",
            look_s=0.5,
        )

    def wait_for_all(self, side: str) -> None:
        """Wait until the members of one side read every partition."""
        self.wait_for_share(side, self.partitions)

    def describe(self) -> str:
        """Return the state of the group, for the error of a failed wait."""
        read = self.readers(boottime() - 5.0)
        bridges = "".join(f"\n{one.name}: {one.text()}" for one in self.bridges)
        trouble = [(one.name, one.events[-1:]) for one in self.members.values()]
        return f"read in the last 5 s {dict(read)}, {trouble}{bridges}"

    def deliveries(self, since: float = 0.0) -> list[Delivery]:
        """Return all deliveries since a time of `boottime`, by member and time."""
        for name, member in self.members.items():
            events, known = member.events, self._read[name]
            self._read[name] = len(events)
            self._known[name] += deliveries(name, events[known:])
        found = []
        for of_member in self._known.values():
            found += of_member[bisect_left(of_member, since, key=lambda one: one.t) :]
        return found

    # ---- the verdict -----------------------------------------------------------------------------

    def finish(self) -> Verdict:
        """Stop the traffic, wait until every message is read, and return the verdict."""
        self.traffic.stop()
        wait_for(
            lambda: not self._lost(),
            lambda: f"all messages are read; missing {self._lost()}; {self.describe()}",
            look_s=0.5,
        )
        return self.verdict()

    def _lost(self) -> dict[TopicPartition, list[int]]:
        return missing(self.deliveries(), self.traffic.produced)

    def verdict(self) -> Verdict:
        """Return what has happened so far."""
        given: dict[tuple[TopicPartition, int], list[Delivery]] = defaultdict(list)
        for one in self.deliveries():
            given[one.partition, one.offset].append(one)
        explained: Counter[str] = Counter()
        unexplained = []
        excuses = [*self.excuses, *self._revocations(), *self._taken_messages(), *self._removals()]
        for ones in given.values():
            for first, again in itertools.pairwise(sorted(ones)):
                reason = _reason(first, excuses)
                if reason:
                    explained[reason] += 1
                else:
                    unexplained.append((first, again))
        moved = [*self._moved_in_zookeeper(), *self._moved_in_kafka()]
        return Verdict(self.traffic.count, self._lost(), explained, unexplained, moved)

    def _removals(self) -> Iterator[Excuse]:
        """Yield an excuse for each removal of a new member by the brokers.

        A busy machine may delay its heartbeats. Then its last commits are refused.
        """
        for member in self.members.values():
            for one in member.of("lost"):
                since = one["t"] - SESSION_S - SLACK_S
                yield Excuse("a member is removed", (since, one["t"]), member.name)

    def _revocations(self) -> Iterator[Excuse]:
        """Yield an excuse for what a cooperative member delivers in a rebalance and never commits.

        Both clients go on delivering until the brokers answer their JoinGroup, which may last until
        a killed member is removed. Java commits no partition that it revokes after the answer.
        librdkafka's timer commits nothing while it waits for the answer, and it may join again at
        once after the answer. If it closes then, its last commit waits for the answer, too, and is
        refused, because its generation is over.
        """
        for name, (pattern, reason) in self._cooperative.items():
            joined_at: float | None = None  # None: since then, the member has committed or revoked
            for found in pattern.finditer(self.members[name].errors()):
                at = _log_time(found["at"])
                if found["joins"]:
                    joined_at = at if joined_at is None else joined_at
                elif found["revokes"] and joined_at is not None:
                    first = joined_at - COMMIT_S - SLACK_S, at + LOG_S
                    yield Excuse(reason, first, name)
                elif found["ends"]:
                    joined_at = None

    def _taken_messages(self) -> Iterator[Excuse]:
        """Yield an excuse for the first message that a JVM member delivers after a rebalance began.

        Its iterator may have taken this message before the member has committed and released its
        partitions.
        """
        for name, member in self.members.items():
            if isinstance(member, JvmMember):
                times = [one.t for one in self._known[name]]
                for found in COMMITS.finditer(member.errors()):
                    at = _log_time(found["at"])
                    next_ = bisect_left(times, at + LOG_S)
                    if next_ < len(times):
                        yield Excuse("a JVM member rebalances", (at, times[next_]), name)

    def _moved_in_zookeeper(self) -> Iterator[str]:
        log = self.sandbox.zookeeper.directory / "data" / "version-2"
        last: dict[TopicPartition, int] = {}
        for one in history([log], root=f"{paths.CONSUMERS}/{self.name}/"):
            if one.change is None or one.change.new is None:
                continue
            where = paths.locate(one.change.path)
            if where.kind is paths.ZnodeKind.OFFSET:
                tp, offset = TopicPartition(where.name, where.partition), int(one.change.new.data)
                if offset < last.get(tp, 0):
                    yield f"ZooKeeper: {tp} from {last[tp]} to {offset}"
                last[tp] = offset

    def _moved_in_kafka(self) -> Iterator[str]:
        last: dict[TopicPartition, int] = {}
        for one in self.sandbox.messages("__consumer_offsets"):
            about, value = decode_key(one.key() or b""), one.value()
            if not isinstance(about, CommitKey) or about.group != self.name or value is None:
                continue
            offset = decode_commit(value).offset
            if offset < last.get(about.tp, 0):
                yield f"Kafka: {about.tp} from {last[about.tp]} to {offset}"
            last[about.tp] = offset


def _ranges(unexplained: Iterable[tuple[Delivery, Delivery]]) -> Iterator[str]:
    """Yield a line for each partition and pair of members, with the range of the redelivered."""
    found = defaultdict(list)
    for first, again in unexplained:
        found[first.partition, first.member, again.member].append((first, again))
    for (tp, one, other), pairs in found.items():
        (first, again), (last, _) = min(pairs), max(pairs)
        yield (
            f"redelivered: {len(pairs)} messages of {tp}, offsets {first.offset} to {last.offset},"
            f" by {one} from {first.t:.3f} to {last.t:.3f}, then by {other} from {again.t:.3f}"
        )


def _log_time(text: str) -> float:
    """Return the time of a line of log4j or of librdkafka, as a time of `boottime`."""
    ahead_s = time.time() - boottime()
    if " " not in text:
        return float(text) - ahead_s
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").timestamp() - ahead_s


def _reason(first: Delivery, excuses: Sequence[Excuse]) -> str:
    for one in excuses:
        if one.member in ("", first.member) and one.first[0] <= first.t <= one.first[1]:
            return one.reason
    return ""
