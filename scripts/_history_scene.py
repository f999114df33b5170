"""The group of the history demo: an ensemble, a broker, members of both kinds, and their faults.

The members are zkconsumer's and Kafka's own console consumer. Each connects to one server of
the ensemble through its own proxy. Each keeps a record: a trace for a zkconsumer member, a log for
a JVM member.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from zkconsumer.errors import SandboxError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import encode_offset
from zkconsumer.protocol.requests import Code, Create, Delete, SetData, Write
from zkconsumer.sandbox import BrokerServer, ZooKeeperEnsemble, topics
from zkconsumer.sandbox.jars import Progress
from zkconsumer.sandbox.process import until
from zkconsumer.sandbox.proxy import Proxy, Wire
from zkconsumer.sandbox.real_group import MemberKind, MemberProcess, PeriodicProducer, ProcessState
from zkconsumer.zk.client import ZooKeeperClient

GROUP, TOPIC, PARTITIONS = "billing", "orders", 8

MEMBER_KINDS = (
    *(MemberKind.ZKCONSUMER, MemberKind.JVM, MemberKind.ZKCONSUMER),
    *(MemberKind.JVM, MemberKind.ZKCONSUMER),
)

UNTOUCHED_MEMBERS = 2
"""Number of members that stay in the group throughout."""

SESSION_S = 4.0
"""The session timeout in seconds. The timeout is shorter than the JVM's default of 6 s, so that
more sessions expire."""

FOREIGN_OWNER_S = 12.0
"""Seconds for which another client keeps a partition. This is longer than the 10 s after which the
history reports a blocked partition."""

PAUSE_S = (0.3, 2.0)
"""Shortest and longest pause between two faults in seconds."""

FAULT_DURATION_S = (0.5 * SESSION_S, 2 * SESSION_S)
"""Shortest and longest pause of a process, or silence of a connection, in seconds. Some pauses
outlast the session."""

_PATIENCE_S = 60.0
"""Seconds within which a member must leave: it takes a second on an idle machine."""

_QUIET_S = 20.0
"""Seconds that the group gets after the last fault until all partitions have an owner."""

_CLAIMED = re.compile(r" (\S+) successfully owned partition (\d+) for topic (\S+)")
"""A claim in the log of a JVM member (`reflectPartitionOwnershipDecision` of Kafka 1.1.1)."""

Claims = Counter[tuple[str, TopicPartition]]
"""Number of claims by thread and partition."""


class RecordedMember(MemberProcess):
    """A member whose records are kept.

    Attributes:
        traces: the traces of a zkconsumer member, one for each process.
        interruptions: the number of faults that hit its process, its connection or its server.
            After each of these faults, the log of a JVM member may lack the claim that was in
            progress.
    """

    def __init__(self, number: int, kind: MemberKind, *, proxy: Proxy, directory: Path) -> None:
        super().__init__(
            number,
            kind,
            group=GROUP,
            topic=TOPIC,
            proxy=proxy,
            session_s=SESSION_S,
            directory=directory,
        )
        self.traces: list[Path] = []
        self.interruptions = 0
        self._log = directory / f"{self.name}.log"

    def start(self) -> None:
        if self.kind is MemberKind.ZKCONSUMER:
            self.traces.append(self._log.with_suffix(f".{len(self.traces)}.trace"))
            self._properties["trace.file"] = str(self.traces[-1])
        super().start()

    @property
    def claims(self) -> Claims:
        """The claims in the log of a JVM member."""
        return claims(self._log.read_text(errors="replace") if self._log.exists() else "")


def claims(text: str) -> Claims:
    """Return the claims that a JVM member has logged."""
    return Counter(
        (thread, TopicPartition(topic, int(number)))
        for thread, number, topic in _CLAIMED.findall(text)
    )


class Scene:
    """The servers and the members; the end of the `with` block ends all of them."""

    def __init__(self, directory: Path, *, seed: int, say: Progress) -> None:
        self._random, self._say = random.Random(seed), say
        self._directory = directory
        self._never = threading.Event()
        self._stack = ExitStack()
        self.faults: Counter[str] = Counter()
        self.members: list[RecordedMember] = []
        # Without a purge, every server keeps all of its logs.
        self.ensemble = ZooKeeperEnsemble(
            directory, settings={"autopurge.purgeInterval": 0}, progress=say
        )

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._say("starting three ZooKeeper servers and a broker")
            stack.enter_context(self.ensemble)
            connect = self.ensemble.connect
            broker = BrokerServer(
                self._directory / "broker", zookeeper_connect=connect, progress=self._say
            )
            stack.enter_context(broker)
            topics.ServerTopics(connect).create_topic(TOPIC, partitions=PARTITIONS)
            stack.callback(PeriodicProducer(connect, TOPIC, PARTITIONS).stop)
            self._client = stack.enter_context(topics.session(connect))
            for number, kind in enumerate(MEMBER_KINDS):
                server = self.ensemble.servers[number % len(self.ensemble.servers)]
                member = RecordedMember(
                    number,
                    kind,
                    proxy=stack.enter_context(Proxy(server.connect)),
                    directory=self._directory,
                )
                stack.callback(member.end)
                self.members.append(member)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def logs(self) -> list[Path]:
        """The directory of each server's transaction log."""
        return [server.directory / "data" / "version-2" for server in self.ensemble.servers]

    # ---- course of events ------------------------------------------------------------------------

    def run(self, faults: int, limit_s: float) -> float:
        """Inject this number of faults, but none after `limit_s`; return how many seconds it took.

        All kinds happen equally often, in a random order.
        """
        for member in self.members[:-1]:
            member.start()
        self._settle()
        deck: list[Callable[[], str]] = []
        while len(deck) < faults:
            kinds = self._kinds()
            self._random.shuffle(kinds)
            deck += kinds
        began = time.monotonic()
        for number, fault in enumerate(deck[:faults], start=1):
            if time.monotonic() > began + limit_s:
                self._say(f"{limit_s / 60:g} minutes are over after {number - 1} faults")
                break
            told = fault()
            self.faults[fault.__name__.strip("_").replace("_", " ")] += 1
            self._say(f"fault {number} of {faults}: {told}")
            self._wait(PAUSE_S)
        self._settle()
        return time.monotonic() - began

    def leave(self) -> None:
        """Make all running members leave, and wait until their processes have ended."""
        running = self._in(ProcessState.UP)
        for member in running:
            member.leave()
        until(lambda: all(one.state is ProcessState.LEFT for one in running), limit_s=_PATIENCE_S)

    def _settle(self) -> None:
        """Wait until each partition has an owner; after a time limit, continue even if some
        partitions have none.
        """
        parent = paths.owners_of(GROUP, TOPIC)

        def owned() -> bool:
            return len(self._client.children([parent]).get(parent, ())) == PARTITIONS

        until(owned, limit_s=_QUIET_S)

    def _wait(self, limits: tuple[float, float]) -> None:
        self._never.wait(self._random.uniform(*limits))

    def _in(self, *states: ProcessState) -> list[RecordedMember]:
        return [one for one in self.members if one.state in states]

    def _kinds(self) -> list[Callable[[], str]]:
        return [
            *(self._join, self._leave, self._kill, self._pause, self._pause, self._cut),
            *(self._silence, self._lose_a_reply, self._stop_the_leader, self._take_an_owner_away),
            *(self._set_an_offset_back, self._delete_an_offset, self._block_a_partition),
        ]

    # ---- faults of members -----------------------------------------------------------------------

    def _join(self) -> str:
        away = self._in(ProcessState.AWAY, ProcessState.LEFT, ProcessState.DEAD)
        if not away:
            return self._leave()
        member = self._random.choice(away)
        member.start()
        return f"{member.name} joins"

    def _leave(self) -> str:
        running = self._in(ProcessState.UP)
        if len(running) <= UNTOUCHED_MEMBERS:
            return self._join()
        member = self._random.choice(running)
        member.leave()
        until(lambda: member.state is ProcessState.LEFT, limit_s=_PATIENCE_S)
        return f"{member.name} leaves"

    def _kill(self) -> str:
        running = self._in(ProcessState.UP)
        if len(running) <= UNTOUCHED_MEMBERS:
            return self._join()
        member = self._random.choice(running)
        member.interruptions += 1
        member.kill()
        return f"{member.name} is killed"

    def _pause(self) -> str:
        """Pause the running member with the lowest name, so that the session of one member expires
        repeatedly."""
        member = self._in(ProcessState.UP)[0]
        member.interruptions += 1
        member.freeze()
        self._wait(FAULT_DURATION_S)
        member.thaw()
        return f"the process of {member.name} was paused"

    # ---- faults of connections and servers -------------------------------------------------------

    def _cut(self) -> str:
        member = self._random.choice(self._in(ProcessState.UP))
        member.interruptions += 1
        member.proxy.cut()
        return f"the connection of {member.name} breaks"

    def _silence(self) -> str:
        member = self._random.choice(self._in(ProcessState.UP))
        member.interruptions += 1
        member.proxy.wire = Wire.SILENT
        self._wait(FAULT_DURATION_S)
        member.proxy.wire = Wire.PASS
        member.proxy.cut()
        return f"the connection of {member.name} was silent"

    def _lose_a_reply(self) -> str:
        member = self._random.choice(self._in(ProcessState.UP))
        member.interruptions += 1
        member.proxy.lose_next_reply()
        return f"the next reply to {member.name} is lost"

    def _stop_the_leader(self) -> str:
        leader = self.ensemble.leader()
        for member in self.members:  # all connections break when the leader is lost
            member.interruptions += 1
        leader.kill()
        self.ensemble.leader()
        leader.start()
        return f"{leader.name}, the leader, was killed and started again"

    # ---- faults of znodes ------------------------------------------------------------------------

    def _take_an_owner_away(self) -> str:
        tp = self._partition()
        self._write(Delete(paths.owner(GROUP, tp)))
        return f"another client deletes the owner znode of {tp.topic}-{tp.partition}"

    def _set_an_offset_back(self) -> str:
        tp = self._partition()
        self._write(SetData(paths.offset(GROUP, tp), encode_offset(0), -1))
        return f"another client sets the offset of {tp.topic}-{tp.partition} to 0"

    def _delete_an_offset(self) -> str:
        tp = self._partition()
        self._write(Delete(paths.offset(GROUP, tp)))
        return f"another client deletes the offset of {tp.topic}-{tp.partition}"

    def _block_a_partition(self) -> str:
        """In one transaction, replace an owner znode by one of a client that is not a member."""
        tp = self._partition()
        path = paths.owner(GROUP, tp)
        with topics.session(self.ensemble.connect) as stranger:
            done = until(lambda: self._replace(stranger, path), limit_s=_QUIET_S)
            if done:
                self._never.wait(FOREIGN_OWNER_S)
        return f"another client held {tp.topic}-{tp.partition} for {FOREIGN_OWNER_S:g} s"

    def _partition(self) -> TopicPartition:
        return TopicPartition(TOPIC, self._random.randrange(PARTITIONS))

    def _write(self, change: Write) -> None:
        """Change a znode; do nothing if it does not exist at this moment."""
        reply = self._client.write([change])
        if reply.code not in (Code.OK, Code.NO_NODE):
            raise SandboxError(f"ZooKeeper refused: {reply.code.name}", where=change.path)

    @staticmethod
    def _replace(client: ZooKeeperClient, path: str) -> bool:
        old = [Delete(path)] if client.stats([path]) else []
        new = Create(path, f"{GROUP}_stranger-0".encode(), ephemeral=True)
        return client.write([*old, new]).code is Code.OK
