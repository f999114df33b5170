"""A group under test: its members, the messages produced for it, and the evidence against it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from support.kafka.traffic import Traffic
from support.members.evidence import Delivery, Evidence, deliveries
from support.members.group import STEADY_S
from support.members.program import Member, Request
from support.members.replay import LATE_S, Record, Replay
from support.wait import LIMIT_S, wait_for
from support.zk.log import history
from support.zk.takeover import expire
from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox.topics import client_settings
from zkconsumer.testing import wait_until_settled
from zkconsumer.zk.observer import GroupPart, Observer

REST_S = 0.7  # longer than a member waits before it reads back kept owner znodes
# The settings of a member that a test kills or freezes: the other members wait until its session
# has ended.
BRIEF: Mapping[str, Any] = {"zookeeper_session_timeout_s": 1.5}
# The settings of a member whose lease a test measures (`Crew.assert_paused`).
MEASURED: Mapping[str, Any] = {"zookeeper_session_timeout_s": 4.0}

SETTINGS: Mapping[str, Any] = {
    "auto_offset_reset": "smallest",
    "auto_commit_interval_s": 0.2,
    "rebalance_backoff_s": 0.5,
    "zookeeper_session_timeout_s": STEADY_S,
    "zookeeper_connection_timeout_s": LIMIT_S,
}


def environment() -> dict[str, str]:
    """Return an environment in which a program of tests/support finds the other modules there."""
    before = os.environ.get("PYTHONPATH")
    tests = str(Path(__file__).parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join([tests, before] if before else [tests])}


class Observed:
    """Queries on a member's events.

    `frozen` has the intervals in which the process was frozen; `gone_at` is when it was killed.
    """

    events: list[dict[str, Any]]
    name: str
    request: Request
    frozen: list[tuple[float, float]]
    gone_at: float | None = None

    def of(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]

    def last(self, event: str) -> dict[str, Any]:
        found = self.of(event)
        assert found, f"{self.name} has not reported {event}"
        return found[-1]

    def wait(self, event: str, *, after: int = 0) -> dict[str, Any]:
        """Wait for the first event of a kind after the first `after` ones, and return it."""
        wait_for(
            lambda: len(self.of(event)) > after,
            lambda: f"{self.name}: {event}; it has said {self.events[-1:]} {self.errors()[-1000:]}",
        )
        return self.of(event)[after]

    def errors(self) -> str:
        """Return the member's standard error, if it has a separate one."""
        return ""

    @property
    def consumer(self) -> str:
        return str(self.wait("joined")["consumer"])

    @property
    def owned(self) -> set[TopicPartition]:
        said = self.of("status")
        held = said[-1]["owned"].values() if said else ()
        return {TopicPartition(*tp) for one in held for tp in one}

    @property
    def phase(self) -> str:
        said = self.of("status")
        return str(said[-1]["phase"]) if said else ""

    def serves(self, owners: Mapping[TopicPartition, str]) -> bool:
        """Return whether the member has said that it reads exactly what it owns by `owners`."""
        mine = {tp for tp, thread in owners.items() if paths.consumer_of(thread) == self.consumer}
        return self.owned == mine

    @property
    def rebalances(self) -> float:
        """Return how often the member has read the group so far."""
        return self.metrics()["rebalances"]

    def metrics(self) -> dict[str, float]:
        """Return the connector's counters at this moment."""
        before = len(self.of("metrics"))
        self.tell("metrics")
        return dict(self.wait("metrics", after=before)["values"])

    def tell(self, word: str) -> None:
        raise NotImplementedError

    def expire(self, zookeeper: str) -> None:
        """End the last session that the member has reported, on the server."""
        session = self.last("session")
        expire(zookeeper, (session["id"], bytes.fromhex(session["password"])))

    @property
    def session_s(self) -> float:
        """Return the session timeout of a zkconsumer member, in seconds."""
        return float(self.request.settings["zookeeper_session_timeout_s"])

    @property
    def delivered(self) -> list[Delivery]:
        return deliveries(self.name, self.events)


class Program(Observed):
    """A member as a program in its own process, which gets its `request` as JSON."""

    def __init__(
        self, name: str, script: Path, request: Mapping[str, Any], directory: Path
    ) -> None:
        self.name = name
        self._log = directory / f"{name}.jsonl"
        with self._log.open("wb") as out, self._log.with_suffix(".err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(script), json.dumps(request)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=environment(),
                start_new_session=True,
            )
        self._read, self._events = 0, list[dict[str, Any]]()
        self.frozen: list[tuple[float, float]] = []

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return all events so far, without a line that the process is still writing."""
        with self._log.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        self._events += map(json.loads, whole.splitlines())
        return self._events

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()

    def leave(self) -> None:
        """Let the member leave cleanly, and wait until the process has ended."""
        self.tell("leave")
        assert self.process.wait(LIMIT_S) == 0, self.errors()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)
        self.gone_at = boottime()

    def freeze(self) -> None:
        self.frozen.append((boottime(), float("inf")))
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        self.frozen[-1] = self.frozen[-1][0], boottime()
        os.kill(self.process.pid, signal.SIGCONT)

    def errors(self) -> str:
        """Return what the process wrote to standard error."""
        return self._log.with_suffix(".err").read_text()

    def end(self) -> None:
        """End the process at the end of a test, whatever state the process is in."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


class MemberProcess(Program):
    """A zkconsumer member in its own process."""

    def __init__(self, name: str, request: Request, directory: Path) -> None:
        self.request = request
        super().__init__(name, Path(__file__).with_name("program.py"), asdict(request), directory)

    def stacks(self) -> str:
        """Return the stacks of the member's threads, for the error of a failed wait."""
        known = len(self.errors())
        os.kill(self.process.pid, signal.SIGUSR1)
        wait_for(lambda: len(self.errors()) > known, f"the stacks of {self.name}")
        return self.errors()[known:]


class LocalMember(Observed):
    """A member in the process of the test, which can therefore read the member's state."""

    def __init__(self, name: str, request: Request) -> None:
        self.name, self.request = name, request
        self.events: list[dict[str, Any]] = []
        self.frozen: list[tuple[float, float]] = []
        self.member = Member(request, self.events.append)
        self.connector = self.member.connector
        self.member.start()

    @property
    def is_alive(self) -> bool:
        return not self.of("left")

    def tell(self, word: str) -> None:
        self.member.obey(word)

    def leave(self) -> None:
        self.member.leave()

    def end(self) -> None:
        self.member.leave()


class Crew:
    """A group. A test calls `join`, then `settle`, performs actions, and calls `finish`."""

    def __init__(
        self, zookeeper: str, bootstrap: str, group: str, directory: Path, stack: ExitStack
    ) -> None:
        self.zookeeper, self.group = zookeeper, group
        self.members: list[MemberProcess | LocalMember] = []
        # ZooKeeper has registrations of old brokers, which do not answer a version request.
        self.traffic = Traffic(client_settings(zookeeper) | {"bootstrap.servers": bootstrap})
        self.counts = self.traffic.counts
        self._directory, self._stack = directory, stack
        stack.callback(self.traffic.stop)
        self.observer = stack.enter_context(
            Observer(
                zookeeper, group, follow={GroupPart.MEMBERS, GroupPart.OWNERS, GroupPart.OFFSETS}
            )
        )
        self._began_ms = int(time.time() * 1000) - 1
        self._ahead_s = time.time() - boottime()
        self.logs = [_log_of(server) for server in zookeeper.split(",")]

    # ---- topics ----------------------------------------------------------------------------------

    def feed(self, topic: str, partitions: int) -> None:
        """From now on, produce to this topic, and expect the group to consume it."""
        self.traffic.feed(topic, partitions)

    # ---- members ---------------------------------------------------------------------------------

    def request(
        self,
        *,
        threads: int = 1,
        take: Any = "iterate",
        work_s: float = 0.0,
        zookeeper: str = "",
        **settings: Any,
    ) -> Request:
        trace = {"trace_file": str(self._trace(self._name()))}
        return Request(
            zookeeper=zookeeper or self.zookeeper,
            group=self.group,
            topics=dict.fromkeys(self.counts, threads),
            take=take,
            work_s=work_s,
            settings={**SETTINGS, **trace, **settings},
        )

    def start(self, **how: Any) -> MemberProcess:
        """Start a member in a separate process; do not wait until it has joined."""
        member = MemberProcess(self._name(), self.request(**how), self._directory)
        self._stack.callback(member.end)
        self.members.append(member)
        return member

    def join(self, **how: Any) -> MemberProcess:
        member = self.start(**how)
        member.wait("joined")
        return member

    def join_here(self, **how: Any) -> LocalMember:
        """Start a member in this process."""
        member = LocalMember(self._name(), self.request(**how))
        self._stack.callback(member.end)
        self.members.append(member)
        return member

    def _name(self) -> str:
        return f"member-{len(self.members)}"

    def _trace(self, name: str) -> Path:
        return self._directory / f"{name}.trace"

    def settle(self, *members: MemberProcess | LocalMember) -> None:
        """Wait until the group has these members, and each owns and serves its partitions."""
        names = {one.consumer for one in members}

        def all_serve() -> bool:
            owners = wait_until_settled(
                self.zookeeper, self.group, members=names, timeout_s=LIMIT_S
            )
            return all(one.phase == "settled" and one.serves(owners) for one in members)

        wait_for(all_serve, lambda: f"settled: {_said_by(members)}")

    def _rest(self, *members: MemberProcess | LocalMember) -> None:
        """Wait until the group has been settled for a while, because the members report their
        status late."""
        since = [0.0]

        def rests() -> bool:
            if not all(one.phase == "settled" for one in members):
                since[0] = boottime()
            return boottime() - since[0] >= REST_S

        self.settle(*members)
        since[0] = boottime()
        wait_for(rests, lambda: f"rest: {_said_by(members)}")
        self.settle(*members)

    def flowing(self, *members: MemberProcess | LocalMember) -> None:
        """Wait until each of these members has received new messages."""
        counts = [len(member.delivered) for member in members]
        wait_for(
            lambda: all(
                len(member.delivered) > count for member, count in zip(members, counts, strict=True)
            ),
            lambda: f"messages for all: {[(m.name, len(m.delivered)) for m in members]}, {counts}",
        )

    def assert_paused(self, member: MemberProcess | LocalMember, since: float) -> None:
        """Check that a member without replies since then has not delivered after its lease.

        The lease lasts two thirds of the session timeout. A message is logged a little later.
        """
        limit_s = member.session_s * 2 / 3 + LATE_S
        assert limit_s < member.session_s, "after its session, another member owns the partitions"
        late_s = max(one.t for one in member.delivered) - since
        assert late_s < limit_s, f"{member.name} delivered {late_s:.3f} s after the last reply"

    # ---- the end ---------------------------------------------------------------------------------

    def evidence(self) -> Evidence:
        found = [one for member in self.members for one in member.delivered]
        return Evidence(tuple(found), self._produced())

    def _produced(self) -> dict[TopicPartition, frozenset[int]]:
        return {tp: frozenset(offsets) for tp, offsets in self.traffic.produced.items()}

    def finish(self) -> Evidence:
        """Wait until all messages are delivered and the group has settled; end and check it."""
        self.traffic.stop()
        wait_for(
            lambda: not self.evidence().undelivered(),
            lambda: f"all delivered; missing: {self.evidence().undelivered()}",
        )
        live = [member for member in self.members if member.is_alive]
        if live:
            self._rest(*live)
        rest_at = boottime()
        for member in live:
            member.leave()
        replay = self.replay()
        replay.run(rest_at=rest_at)
        return replace(self.evidence(), late=tuple(replay.late))

    def records(self) -> list[Record]:
        """Return the records of the members that have begun."""
        # A member that could not join has no trace, or a trace without any step.
        traces = {one.name: self._trace(one.name) for one in self.members}
        began = [
            one
            for one in self.members
            if traces[one.name].exists() and traces[one.name].read_bytes().count(b"\n") > 1
        ]
        return [
            Record(one.name, traces[one.name], one.events, one.frozen, one.gone_at) for one in began
        ]

    def replay(self) -> Replay:
        """Return the run so far, for the monitor."""
        ends = self.traffic.ends
        return Replay(
            self.records(),
            history(self.logs, root=f"{paths.CONSUMERS}/{self.group}/", since_ms=self._began_ms),
            ahead_s=self._ahead_s,
            log_end={
                TopicPartition(topic, n): ends.get(TopicPartition(topic, n), 0)
                for topic, count in self.counts.items()
                for n in range(count)
            },
        )


def _said_by(members: Iterable[Observed]) -> list[tuple[str, str, list[TopicPartition]]]:
    """Return each member's name, phase and partitions, for the error of a failed wait."""
    return [(one.name, one.phase, sorted(one.owned)) for one in members]


def _log_of(server: str) -> Path:
    """Return the directory of a server's transaction log, as the server reports it."""
    host, _, port = server.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        connection.sendall(b"conf")
        said = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return Path(said.partition("dataLogDir=")[2].partition("\n")[0])


@contextmanager
def frozen(member: MemberProcess) -> Iterator[None]:
    """Freeze the process until the block ends."""
    member.freeze()
    try:
        yield
    finally:
        member.thaw()
