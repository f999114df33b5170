"""`judge --sandbox`: the same program in a group on a real ZooKeeper and a real broker.

A run has a fixed course, which `COURSES` lists: members join, messages arrive, a connection breaks,
a member is killed or frozen, or Kafka's own consumer takes part. After each step the group must
settle. `ProgramMember` speaks with the program as in the simulation; its requests go to a real
session. At the end the judge reads the topic from the broker, and compares. The promises are those
of the simulation, as far as they can be observed from outside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Final, Self

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as BrokerPartition

from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.consumer.executor import WatchFired
from zkconsumer.judge.member import ProgramMember
from zkconsumer.judge.messages import Request
from zkconsumer.judge.program import Program
from zkconsumer.judge.promises import registers_for_every_release, writes_readable_offsets
from zkconsumer.member.state import Settings
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.assignors import Strategy, assign
from zkconsumer.protocol.model import Session, TopicPartition
from zkconsumer.protocol.payloads import decode_offset
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sandbox import Sandbox, SandboxError
from zkconsumer.sandbox.proxy import Proxy, Wire
from zkconsumer.sandbox.real_group import MemberKind, MemberProcess
from zkconsumer.sandbox.topics import client_settings, session
from zkconsumer.sim import promises
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.zk.client import ZooKeeperClient
from zkconsumer.zk.session import ZooKeeperSession

GROUP, TOPIC = "g", "t"
MEMBERS, PARTITIONS, MESSAGES = 3, 4, 5
"""The most members that the program plays, the partitions of the topic, and the messages that each
step adds to each."""

JVM: Final = 2
"""The number of the JVM member."""

SESSION_S: Final = 6.0

SETTLE_S: Final = 60.0
"""Seconds within which the group must settle after each step: ten session timeouts."""

READ_S: Final = 30.0
"""Seconds within which a broker must answer with a message; an idle one needs milliseconds."""

Say = Callable[[str], None]
"""Gets a sentence about each step."""

CHECK_S: Final = 0.3
"""Seconds between two looks at the owner and offset znodes."""

FREEZE_TRIES, DELIVERY_S = 5, 3.0
"""How often the judge adds messages to find a member with an uncommitted one, and for how many
seconds it waits each time."""

STEP_S: Final = 0.02
"""Seconds that the judge waits for the next event before it looks at the ticks and the users."""

Post = Callable[[Callable[[], None]], None]
"""Lets the judge's thread do something."""

OnWrite = Callable[["RealMember", rq.Create | rq.SetData], None]
"""Gets a member and a write that the server has executed for it, on the judge's thread."""


class RealMember:
    """One process of the program, with its session at a real ZooKeeper behind a proxy.

    Attributes:
        core: speaks with the program, and has its requests and its deliveries.
        session_id: the id of the last session, which may live on without a connection; 0 before
            the first one.
        is_connected: whether there is a connection.
        is_frozen: whether nothing happens in the process; what arrives waits.
    """

    def __init__(
        self, who: int, program: Program, sandbox: Sandbox, post: Post, on_write: OnWrite
    ) -> None:
        name = f"{GROUP}_{who}"
        self.is_frozen = self.is_connected = False
        self._program, self._waiting = program, list[Callable[[], None]]()
        settings = Settings(group=GROUP, consumer=name, subscription={TOPIC: 1})
        self.core = ProgramMember(settings, program, TOPIC, lambda *_: None)
        self.proxy = Proxy(sandbox.zookeeper_connect)
        self.session_id = 0
        self._post, self._connection = partial(self._arrives, post), 0
        self._on_write = on_write
        self._session = ZooKeeperSession(
            ConnectionConfig(
                zookeeper_connect=self.proxy.address,
                zookeeper_session_timeout_s=SESSION_S,
                zookeeper_connection_timeout_s=SETTLE_S,
            ),
            on_state=lambda session: self._post(partial(self.connection_changed, session)),
            on_watch=lambda kind, path: self._post(partial(self._watch, WatchFired(kind, path))),
        )

    def __enter__(self) -> Self:
        self.proxy.__enter__()
        self._session.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.proxy.wire is Wire.PASS:
            self.end_session()
            self.proxy.__exit__()
        else:  # a silent connection cannot end its session
            self.proxy.__exit__()
            self.end_session()

    def end_session(self) -> None:
        """End the session, with its ephemeral znodes; a second call does nothing."""
        self._session.stop()

    # ---- faults ----------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop the process, and its connection with it."""
        self.is_frozen, self.proxy.wire = True, Wire.SILENT

    def thaw(self) -> None:
        """Let the process go on with what has arrived meanwhile."""
        self.is_frozen, self.proxy.wire = False, Wire.PASS
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()

    def kill(self) -> None:
        """End the process; its session ends by its timeout."""
        self.freeze()
        self._program.end()

    # ---- on the judge's thread -------------------------------------------------------------------

    def _arrives(self, post: Post, work: Callable[[], None]) -> None:
        """Queue what has arrived; any thread may call this."""
        post(partial(self._handle, work))

    def _handle(self, work: Callable[[], None]) -> None:
        if self.is_frozen:
            self._waiting.append(work)
        else:
            work()

    def connection_changed(self, session: Session | None) -> None:
        """Tell the program that its session is connected, or (None) that the connection broke."""
        self._connection += 1
        self.is_connected = session is not None
        if session is None:
            self.core.disconnect(time.monotonic())
        else:
            self.session_id = session.id
            self.core.connect(session, time.monotonic(), int(time.time() * 1000))

    def _watch(self, fired: WatchFired) -> None:
        self.core.watch(fired)
        self.core.receive(time.monotonic())

    def _replied(
        self, connection: int, number: int, request: Request, replies: Sequence[Reply]
    ) -> None:
        """Pass a reply on, unless its connection has broken: then the program has been told."""
        if replies[0].code is Code.OK:
            for one in request.writes if isinstance(request, rq.Multi) else (request,):
                if isinstance(one, rq.Create | rq.SetData):
                    self._on_write(self, one)
        if connection == self._connection and replies[0].code is not Code.BROKEN:
            self.core.replied(number, replies[0])
            self.core.receive(time.monotonic())

    def send(self) -> None:
        """Send what the program has asked for, if there is a connection."""
        while self.is_connected and self.core.wire:
            number, request = self.core.wire.popleft()
            if isinstance(request, rq.SetData | rq.Delete | rq.Check):
                request = rq.Multi((request,))  # a session sends these only in transactions
            answered = partial(self._answered, self._connection, number, request)
            self._session.submit([request], answered)

    def _answered(
        self, connection: int, number: int, request: Request, replies: Sequence[Reply]
    ) -> None:
        """Queue a reply; the session's thread calls this."""
        self._post(partial(self._replied, connection, number, request, replies))


class Run:
    """A group on real servers, and what it has delivered and stored.

    All members' sessions post what happens to one queue, which one thread handles. So the messages
    to a program keep their order, as in the simulation.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        sandbox: Sandbox,
        client: ZooKeeperClient,
        reader: Consumer,
        *,
        say: Say,
        stack: ExitStack,
    ) -> None:
        self._programs, self._sandbox, self._client = programs, sandbox, client
        self._reader, self._say, self._stack = reader, say, stack
        self._items: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._members: dict[int, RealMember] = {}
        self._jvm: MemberProcess | None = None
        self._ends = [0] * PARTITIONS
        self._delivered_below: dict[TopicPartition, int] = {}
        self._stored: dict[TopicPartition, int] = {}
        # A fault or a JVM member may cause redelivery.
        self._is_harmed = self._had_jvm = False
        self._is_stopped = False
        self.deliveries = 0

    def stop(self) -> None:
        """End the course soon; any thread may call this."""
        self._is_stopped = True

    # ---- the steps of a course -------------------------------------------------------------------

    def join(self, who: int) -> None:
        """Let a process of the program join, or join again under its old id."""
        self._say(f"{_name(who)} joins, and messages arrive")
        program = self._programs[who]
        member = RealMember(who, program, self._sandbox, self._items.put, self.written)
        self._members[who] = self._stack.enter_context(member)
        self.settle()

    def join_jvm(self) -> None:
        """Let Kafka's own consumer join the group."""
        self._say(f"{_name(JVM)} joins, a JVM member of Kafka, and messages arrive")
        self._is_harmed = self._had_jvm = True
        self._jvm = MemberProcess(
            JVM,
            MemberKind.JVM,
            group=GROUP,
            topic=TOPIC,
            proxy=self._stack.enter_context(Proxy(self._sandbox.zookeeper_connect)),
            session_s=SESSION_S,
            directory=self._sandbox.directory,
        )
        self._stack.callback(self._jvm.end)
        self._jvm.start()
        self.settle()

    def kill_jvm(self) -> None:
        assert self._jvm is not None
        self._say(f"{self._jvm.name}, the JVM member, is killed")
        self._jvm.kill()
        self._jvm = None
        self.settle()

    def grow(self) -> None:
        """Add a partition to the topic."""
        self._say("the topic gets another partition")
        self._ends.append(0)
        self._sandbox.add_partitions(TOPIC, partitions=len(self._ends))
        self.settle()

    def cut(self, who: int) -> None:
        self._say(f"the connection of {_name(who)} breaks")
        self._members[who].proxy.cut()
        self.settle()

    def kill(self, who: int) -> None:
        self._say(f"{_name(who)} is killed")
        self._is_harmed = True
        self._members.pop(who).kill()
        self.settle()

    def silence(self, who: int) -> None:
        """Let the packets of a member vanish until its session has expired."""
        self._say(f"the packets of {_name(who)} vanish until its session has expired")
        self._is_harmed = True
        member = self._members[who]
        member.proxy.wire = Wire.SILENT
        self.settle(without=who)
        member.proxy.wire = Wire.PASS
        self.settle()

    def freeze(self, who: int) -> None:
        """Freeze a member until the others have committed every message.

        At the beginning of the freeze, the member has delivered messages without a commit, unless
        it commits each message at once.
        """
        member = self._members[who]
        self._is_harmed = True
        for _ in range(FREEZE_TRIES):
            self._produce()
            if self._await_delivery(member.core):
                break
        self._say(f"{_name(who)} freezes until its session has expired")
        member.freeze()
        self.settle(without=who)
        self._until(self._uncommitted)
        self._say(
            f"{_name(who)} continues; before anything else, its user asks for the next message"
        )
        self._poll(member)
        member.thaw()
        # Without new messages: a commit of them would hide an offset that has moved back.
        self._until(self._unsettled)
        self.settle()

    def leave(self) -> None:
        """Let the users of all members close them, one after the other."""
        for who, member in list(self._members.items()):
            self._say(f"{_name(who)} leaves")
            member.core.leave(time.monotonic())
            self._until(partial(_stays, member.core))
            del self._members[who]
            member.end_session()
            if self._members:
                self.settle()

    def settle(self, *, without: int = -1) -> None:
        """Add messages, and run until the group has settled. Raises InvariantViolation.

        `without` names a member that is not expected to own a partition.
        """
        self._produce()
        self._until(lambda: self._unsettled(without))

    def _produce(self) -> None:
        for number in range(len(self._ends)):
            self._sandbox.produce(TOPIC, MESSAGES, partition=number)
            self._ends[number] += MESSAGES

    # ---- one step after the other ----------------------------------------------------------------

    def _until(self, reason: Callable[[], str | None]) -> None:
        deadline = time.monotonic() + SETTLE_S
        while True:
            self._run_for(CHECK_S)
            self.check_offsets()
            why = reason()
            if why is None:
                return
            if time.monotonic() > deadline:
                raise promises.group_settles.broken(f"after {SETTLE_S:g} s: {why}")

    def _run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            if self._is_stopped:
                raise CancelledError
            self._step()
            if time.monotonic() >= end:
                return

    def _step(self) -> None:
        with suppress(Empty):
            self._items.get(timeout=STEP_S)()
        now = time.monotonic()
        for member in self._members.values():
            if member.is_frozen:
                continue
            if member.core.due <= now:
                member.core.wake(now)
            self._poll(member)
            member.send()

    def _await_delivery(self, core: ProgramMember) -> bool:
        """Run until a member has delivered a message and no request of it is on the way, so that it
        has not committed the message. Return whether this has happened."""
        end = time.monotonic() + DELIVERY_S
        while time.monotonic() < end:
            self._run_for(0.0)  # one step
            if core.unfinished is not None and core.settled:
                return True
        return False

    def _poll(self, member: RealMember) -> None:
        """Let the user of a member ask for the next message, if there may be one."""
        core, ends = member.core, tuple(self._ends)
        if core.leaving or not core.has_work(ends):
            return
        found = core.poll(time.monotonic(), ends)
        if found is not None:
            self.delivered(member, TopicPartition(TOPIC, found[0]), found[1])

    # ---- the promises ----------------------------------------------------------------------------

    def delivered(self, member: RealMember, tp: TopicPartition, offset: int) -> None:
        """Take a delivery. Raises InvariantViolation if it breaks a promise."""
        owner, name = self._read(paths.owner(GROUP, tp)), member.core.name
        if owner is None or owner.stat.owner != member.session_id:
            holder = "nobody" if owner is None else (owner.data or b"").decode(errors="replace")
            raise promises.owner_delivers.broken(f"{name} delivers {tp}, which {holder} owns")
        below = self._passed(tp)
        if offset > below:
            raise promises.no_message_is_skipped.broken(f"{tp} skips from {below} to {offset}")
        if offset < below and not self._is_harmed:
            raise promises.repeats_only_after_a_fault.broken(
                f"{name} delivers {tp} {offset} again, without a fault"
            )
        self._delivered_below[tp] = max(below, offset + 1)
        self.deliveries += 1

    def written(self, member: RealMember, write: rq.Create | rq.SetData) -> None:
        """Take a write. Raises InvariantViolation if it breaks a promise."""
        if isinstance(write, rq.Create):
            stat = rq.Stat(0, 0, 0, member.session_id if write.ephemeral else 0)
        elif (node := self._read(write.path)) is not None:
            stat = node.stat
        else:
            return  # it has been deleted since
        new = rq.Node(write.data, stat)
        registers_for_every_release.check(member.core.settings, write.path, new)

    def _passed(self, tp: TopicPartition) -> int:
        """Return the offset below which every message was delivered. What a JVM member has
        delivered is known from its commits alone."""
        below = self._delivered_below.get(tp, 0)
        if self._had_jvm:
            below = self._delivered_below[tp] = max(below, self._offset(tp))
        return below

    def _offset(self, tp: TopicPartition) -> int:
        node = self._read(paths.offset(GROUP, tp))
        return 0 if node is None else _decoded(tp, node)

    def _read(self, path: str) -> rq.Node | None:
        return self._client.read([path]).get(path)

    def _uncommitted(self) -> str | None:
        left = [tp for tp in self._partitions() if self._offset(tp) < self._ends[tp.partition]]
        return f"not committed: {', '.join(map(str, left))}" if left else None

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
        wanted = {tp: list(range(self._passed(tp))) for tp in self._partitions()}
        if found != wanted:
            raise promises.no_message_is_skipped.broken("the broker's log has other messages")

    def check_offsets(self) -> None:
        """Read the stored offsets, and compare them with the deliveries and with the last ones.

        Raises InvariantViolation.
        """
        found = self._client.read(paths.offset(GROUP, tp) for tp in self._partitions())
        for tp in self._partitions():
            node = found.get(paths.offset(GROUP, tp))
            if node is None:
                continue
            offset, before = _decoded(tp, node), self._stored.get(tp, 0)
            if offset < before:
                raise promises.lowers_only_what_was_moved.broken(
                    f"the offset of {tp} goes back from {before} to {offset}"
                )
            if offset > self._passed(tp):
                raise promises.commits_only_what_is_finished.broken(
                    f"{tp} at {offset} is too early"
                )
            self._stored[tp] = offset

    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, number) for number in range(len(self._ends))]

    def _unsettled(self, without: int = -1) -> str | None:
        """Return why the group has not settled; None if it has."""
        names = [one.core.name for who, one in self._members.items() if who != without]
        names += [self._jvm.name] if self._jvm is not None else []
        wanted = assign(
            Strategy.RANGE,
            subscriptions={name: {TOPIC: 1} for name in names},
            partitions={TOPIC: list(range(len(self._ends)))},
        )
        nodes = self._client.read(paths.owner(GROUP, tp) for tp in self._partitions())
        for tp, thread in wanted.items():
            node = nodes.get(paths.owner(GROUP, tp))
            holder = "nobody" if node is None else (node.data or b"").decode(errors="replace")
            if holder != thread:
                return f"{tp} belongs to {holder}, not to {thread}"
            if self._passed(tp) < self._ends[tp.partition]:
                return f"{tp} is not delivered to its end"
        return None


def _decoded(tp: TopicPartition, node: rq.Node) -> int:
    """Return the offset in an offset znode. Raises InvariantViolation if there is none."""
    writes_readable_offsets.check(tp, node.data)
    return decode_offset(node.data, where=paths.offset(GROUP, tp))


def _stays(core: ProgramMember) -> str | None:
    """Return why a member that its user has closed has not left; None if it has."""
    if not core.closed:
        return f"{core.name} has not answered `done` with `closed`"
    return f"{core.name} has requests that are not sent" if core.wire else None


def _name(who: int) -> str:
    return f"{GROUP}_{who}"


# ---- the courses ---------------------------------------------------------------------------------

Course = Callable[[Run], None]
"""What happens until all members leave."""


def _usual(run: Run) -> None:
    """Three members join, the topic grows, and a connection breaks."""
    for who in range(MEMBERS):
        run.join(who)
    run.grow()
    run.cut(1)


def _session(run: Run) -> None:
    """A member is killed and joins again under its old id; another one's session expires."""
    for who in range(2):
        run.join(who)
    run.kill(1)
    run.join(1)
    run.silence(0)


def _zombie(run: Run) -> None:
    """A member freezes until its session has expired, and goes on."""
    for who in range(2):
        run.join(who)
    run.freeze(1)


def _mixed(run: Run) -> None:
    """Kafka's own consumer joins between two members of the program, and is killed."""
    run.join(0)
    run.join_jvm()
    run.join(1)
    run.kill_jvm()


USUAL: Final = ""
"""The course of no single challenge."""

COURSES: Final[Mapping[str, Course]] = MappingProxyType(
    {USUAL: _usual, "session": _session, "zombie": _zombie, "mixed": _mixed}
)
"""The course of each challenge that has one; the docstring of a course says what happens."""


def judge(
    programs: Sequence[Program], say: Say, challenge: str = USUAL
) -> InvariantViolation | None:
    """Run the course of a challenge on new servers, and return the promise that the program breaks.

    Raises SandboxError if the servers cannot be started, or fail.
    """
    with ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox(progress=say))
        sandbox.create_topic(TOPIC, partitions=PARTITIONS)
        client = stack.enter_context(session(sandbox.zookeeper_connect))
        settings = {**client_settings(sandbox.zookeeper_connect), "group.id": "judge"}
        reader = Consumer({**settings, "enable.auto.commit": False})
        stack.callback(reader.close)
        run = Run(programs, sandbox, client, reader, say=say, stack=stack)
        # Not on the main thread: there, a session sends each request on a thread of its own.
        pool = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(run.stop)  # before the pool waits for its thread, for instance after Ctrl-C
        return pool.submit(_broken, run, COURSES[challenge], say).result()


def _broken(run: Run, course: Course, say: Say) -> InvariantViolation | None:
    """Run a course, let all members leave, and return the promise that is broken."""
    try:
        course(run)
        run.leave()
        run.check_log()
    except InvariantViolation as found:
        return found
    say(f"all members have left; {run.deliveries} messages of the program were delivered")
    return None
