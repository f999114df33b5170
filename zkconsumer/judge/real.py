"""`judge --sandbox`: the same program in a group on a real ZooKeeper and a real broker.

The run has a fixed course: members join one after the other, messages arrive, the topic grows, a
connection breaks, and the members leave. After each step the group must settle. `ProgramMember`
speaks with the program as in the simulation; its requests go to a real session. At the end the
judge reads the topic from the broker, and compares. The promises are those of the simulation, as
far as they can be observed from outside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Self

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as BrokerPartition

from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.consumer.executor import WatchFired
from zkconsumer.judge.member import ProgramMember
from zkconsumer.judge.program import Program
from zkconsumer.member.state import Settings
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.assignors import Strategy, assign
from zkconsumer.protocol.model import Session, TopicPartition
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sandbox import Sandbox, SandboxError
from zkconsumer.sandbox.proxy import Proxy
from zkconsumer.sandbox.topics import client_settings, session
from zkconsumer.sim import promises
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.zk.client import ZooKeeperClient
from zkconsumer.zk.session import ZooKeeperSession

GROUP, TOPIC = "g", "t"
MEMBERS, PARTITIONS, MESSAGES = 3, 4, 5
"""Members of the group, partitions of the topic, and messages that each step adds to each."""

SESSION_S: Final = 6.0

SETTLE_S: Final = 60.0
"""Seconds within which the group must settle after each step: ten session timeouts."""

READ_S: Final = 30.0
"""Seconds within which a broker must answer with a message; an idle one needs milliseconds."""

Say = Callable[[str], None]
"""Gets a sentence about each step."""

CHECK_S: Final = 0.3
"""Seconds between two looks at the owner and offset znodes."""

STEP_S: Final = 0.02
"""Seconds that the judge waits for the next event before it looks at the ticks and the users."""

Post = Callable[[Callable[[], None]], None]
"""Lets the judge's thread do something."""


class RealMember:
    """One process of the program, with its session at a real ZooKeeper behind a proxy.

    Attributes:
        core: speaks with the program, and has its requests and its deliveries.
        session_id: the id of the present session; 0 without a connection.
    """

    def __init__(self, who: int, program: Program, sandbox: Sandbox, post: Post) -> None:
        name = f"{GROUP}_{who}"
        settings = Settings(group=GROUP, consumer=name, subscription={TOPIC: 1})
        self.core = ProgramMember(settings, program, TOPIC, lambda *_: None)
        self.proxy = Proxy(sandbox.zookeeper_connect)
        self.session_id = 0
        self._post, self._connection = post, 0
        self._session = ZooKeeperSession(
            ConnectionConfig(
                zookeeper_connect=self.proxy.address,
                zookeeper_session_timeout_s=SESSION_S,
                zookeeper_connection_timeout_s=SETTLE_S,
            ),
            on_state=lambda session: post(partial(self._state, session)),
            on_watch=lambda kind, path: post(partial(self._watch, WatchFired(kind, path))),
        )

    def __enter__(self) -> Self:
        self.proxy.__enter__()
        self._session.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_session()
        self.proxy.__exit__()

    def end_session(self) -> None:
        """End the session, with its ephemeral znodes; a second call does nothing."""
        self._session.stop()

    # ---- on the judge's thread -------------------------------------------------------------------

    def _state(self, session: Session | None) -> None:
        self._connection += 1
        if session is None:
            self.session_id = 0
            self.core.disconnect(time.monotonic())
        else:
            self.session_id = session.id
            self.core.connect(session, time.monotonic(), int(time.time() * 1000))

    def _watch(self, fired: WatchFired) -> None:
        self.core.watch(fired)
        self.core.receive(time.monotonic())

    def _replied(self, connection: int, number: int, replies: Sequence[Reply]) -> None:
        """Pass a reply on, unless its connection has broken: then the program has been told."""
        if connection == self._connection and replies[0].code is not Code.BROKEN:
            self.core.replied(number, replies[0])
            self.core.receive(time.monotonic())

    def send(self) -> None:
        """Send what the program has asked for, if there is a connection."""
        while self.session_id and self.core.wire:
            number, request = self.core.wire.popleft()
            if isinstance(request, rq.SetData | rq.Delete | rq.Check):
                request = rq.Multi((request,))  # a session sends these only in transactions
            self._session.submit([request], partial(self._answered, self._connection, number))

    def _answered(self, connection: int, number: int, replies: Sequence[Reply]) -> None:
        """Queue a reply; the session's thread calls this."""
        self._post(partial(self._replied, connection, number, replies))


class Run:
    """A group on real servers, and what it has delivered and stored.

    All members' sessions post what happens to one queue, which one thread handles. So the messages
    to a program keep their order, as in the simulation.
    """

    def __init__(self, sandbox: Sandbox, client: ZooKeeperClient, reader: Consumer) -> None:
        self._sandbox, self._client, self._reader = sandbox, client, reader
        self._items: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.members: list[RealMember] = []
        self._ends = [0] * PARTITIONS
        self._delivered_below: dict[TopicPartition, int] = {}
        self._stored: dict[TopicPartition, int] = {}
        self.deliveries = 0

    def join(self, member: RealMember) -> None:
        self.members.append(member)

    def post(self, work: Callable[[], None]) -> None:
        """Let the judge's thread do something; any thread may call this."""
        self._items.put(work)

    def produce(self) -> None:
        """Add messages to each partition."""
        for number in range(len(self._ends)):
            self._sandbox.produce(TOPIC, MESSAGES, partition=number)
            self._ends[number] += MESSAGES

    def grow(self) -> None:
        """Add a partition to the topic."""
        self._ends.append(0)
        self._sandbox.add_partitions(TOPIC, partitions=len(self._ends))

    def close(self, member: RealMember) -> None:
        """Let the user of a member close it, and wait until it has left."""
        member.core.leave(time.monotonic())
        self._until(lambda: None if member.core.closed and not member.core.wire else "it stays")
        self.members.remove(member)
        member.end_session()

    def settle(self) -> None:
        """Run until the group has settled. Raises InvariantViolation."""
        self._until(self._unsettled)

    # ---- one step after the other ----------------------------------------------------------------

    def _until(self, reason: Callable[[], str | None]) -> None:
        deadline = time.monotonic() + SETTLE_S
        while True:
            checked_at = time.monotonic()
            while time.monotonic() < checked_at + CHECK_S:
                self._step()
            self._check_offsets()
            why = reason()
            if why is None:
                return
            if time.monotonic() > deadline:
                raise promises.group_settles.broken(f"after {SETTLE_S:g} s: {why}")

    def _step(self) -> None:
        with suppress(Empty):
            self._items.get(timeout=STEP_S)()
        now = time.monotonic()
        for member in self.members:
            core = member.core
            if core.due <= now:
                core.wake(now)
            if core.has_work(tuple(self._ends)) and not core.leaving:
                found = core.poll(now, tuple(self._ends))
                if found is not None:
                    self._delivered(member, TopicPartition(TOPIC, found[0]), found[1])
            member.send()

    # ---- the promises ----------------------------------------------------------------------------

    def _delivered(self, member: RealMember, tp: TopicPartition, offset: int) -> None:
        path, name = paths.owner(GROUP, tp), member.core.name
        owner = self._client.read([path]).get(path)
        if owner is None or owner.stat.owner != member.session_id:
            holder = "nobody" if owner is None else (owner.data or b"").decode(errors="replace")
            raise promises.owner_delivers.broken(f"{name} delivers {tp}, which {holder} owns")
        below = self._delivered_below.get(tp, 0)
        if offset > below:
            raise promises.no_message_is_skipped.broken(f"{tp} skips from {below} to {offset}")
        if offset < below:
            raise promises.repeats_only_after_a_fault.broken(
                f"{name} delivers {tp} {offset} again, without a fault"
            )
        self._delivered_below[tp] = offset + 1
        self.deliveries += 1

    def check_log(self) -> None:
        """Read the topic from the broker, and check that the members have delivered all of it."""
        self._reader.assign([BrokerPartition(TOPIC, tp.partition, 0) for tp in self._partitions()])
        found: dict[TopicPartition, list[int]] = {}
        for _ in range(sum(self._ends)):
            message = self._reader.poll(READ_S)
            if message is None or message.error():
                raise SandboxError("the broker has not returned all messages of the topic")
            tp = TopicPartition(TOPIC, message.partition() or 0)
            found.setdefault(tp, []).append(message.offset() or 0)
        wanted = {tp: list(range(end)) for tp, end in self._delivered_below.items()}
        if found != wanted:
            raise promises.no_message_is_skipped.broken("the broker's log has other messages")

    def _check_offsets(self) -> None:
        found = self._client.read(paths.offset(GROUP, tp) for tp in self._partitions())
        for tp in self._partitions():
            node = found.get(paths.offset(GROUP, tp))
            if node is None:
                continue
            offset, before = int(node.data or 0), self._stored.get(tp, 0)
            if offset < before:
                raise promises.lowers_only_what_was_moved.broken(
                    f"the offset of {tp} goes back from {before} to {offset}"
                )
            if offset > self._delivered_below.get(tp, 0):
                raise promises.commits_only_what_is_finished.broken(
                    f"{tp} at {offset} is too early"
                )
            self._stored[tp] = offset

    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, number) for number in range(len(self._ends))]

    def _unsettled(self) -> str | None:
        """Return why the group has not settled; None if it has."""
        subscriptions = {one.core.name: {TOPIC: 1} for one in self.members}
        numbers = {TOPIC: list(range(len(self._ends)))}
        wanted = assign(Strategy.RANGE, subscriptions=subscriptions, partitions=numbers)
        nodes = self._client.read(paths.owner(GROUP, tp) for tp in self._partitions())
        for tp, thread in wanted.items():
            node = nodes.get(paths.owner(GROUP, tp))
            holder = "nobody" if node is None else (node.data or b"").decode(errors="replace")
            if holder != thread:
                return f"{tp} belongs to {holder}, not to {thread}"
            if self._delivered_below.get(tp, 0) < self._ends[tp.partition]:
                return f"{tp} is not delivered to its end"
        return None


def judge(programs: Sequence[Program], say: Say) -> InvariantViolation | None:
    """Run the course on new servers, and return the promise that the program breaks.

    Raises SandboxError if the servers cannot be started, or fail.
    """
    with ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox(progress=say))
        sandbox.create_topic(TOPIC, partitions=PARTITIONS)
        client = stack.enter_context(session(sandbox.zookeeper_connect))
        settings = {**client_settings(sandbox.zookeeper_connect), "group.id": "judge"}
        reader = Consumer({**settings, "enable.auto.commit": False})
        stack.callback(reader.close)
        run = Run(sandbox, client, reader)
        # Not on the main thread: there, a session sends each request on a thread of its own.
        pool = stack.enter_context(ThreadPoolExecutor(1))
        return pool.submit(_course, run, sandbox, programs, say).result()


def _course(
    run: Run, sandbox: Sandbox, programs: Sequence[Program], say: Say
) -> InvariantViolation | None:
    try:
        with ExitStack() as stack:
            for who, program in enumerate(programs):
                say(f"{GROUP}_{who} joins, and messages arrive")
                run.join(stack.enter_context(RealMember(who, program, sandbox, run.post)))
                run.produce()
                run.settle()
            say("the topic gets another partition")
            run.grow()
            run.produce()
            run.settle()
            say(f"the connection of {GROUP}_1 breaks")
            run.members[1].proxy.cut()
            run.produce()
            run.settle()
            for member in run.members[:-1]:
                say(f"{member.core.name} leaves")
                run.close(member)
                run.produce()
                run.settle()
            run.close(run.members[0])
            run.check_log()
            say(f"all members have left; {run.deliveries} messages were delivered")
    except InvariantViolation as found:
        return found
    return None
