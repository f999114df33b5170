"""A simulated member: the production loop, executor, state machine and operations in virtual time.

The world replaces the member's thread: it calls `receive`, `overtake` and `wake`.
`sim.session` replaces kazoo. `SimStreams` replaces the streams: a partition is a position and at
most one unfinished message.

The exhaustive search copies members often, so a member's operations can be copied
(`kernel.programs`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self, cast

from zkconsumer.consumer.commit_requests import Answer, CommitAbandoned, CommitRequested
from zkconsumer.consumer.executor import (
    Executor,
    OperationRequests,
    Resume,
    Running,
    RunningOperation,
    WatchFired,
    operation,
)
from zkconsumer.consumer.loop import (
    Gate,
    Host,
    LeaveRequested,
    MemberLoop,
    PartitionSinks,
    ReleaseDone,
)
from zkconsumer.consumer.stream_partitions import CommitScope, Grant
from zkconsumer.errors import ZkConsumerError
from zkconsumer.frozen import dataclass
from zkconsumer.member import commands as cmd
from zkconsumer.member import events, machine, phases
from zkconsumer.member.events import Event
from zkconsumer.member.operations import MemberIdentity as Identity
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import NEVER, Settings, State
from zkconsumer.protocol.model import Ownership, Position, Purpose, Session, TopicPartition
from zkconsumer.protocol.paths import thread_ids
from zkconsumer.protocol.requests import OffsetRequest, Reply, Request
from zkconsumer.sim.kernel.programs import Repeatable
from zkconsumer.sim.kernel.promises import Reason, promise
from zkconsumer.sim.plan import Rare
from zkconsumer.sim.session import SimSession

OnTransition = Callable[["SimMember", State, Event, tuple[cmd.Command, ...]], None]


class Replayed(Repeatable[OperationRequests, Sequence[Reply], object]):
    """An operation that can be copied: its command, and the replies that were sent to it."""

    __slots__ = ("command", "started")

    def __init__(self, command: cmd.Command, me: Identity, started: float) -> None:
        super().__init__(lambda: operation(command, me, started)[1])
        self.command, self.started = command, started


class CopyableExecutor(Executor):
    """The production executor, whose operations can be copied."""

    def operation(
        self, command: cmd.Command, me: Identity, now: float
    ) -> tuple[int, RunningOperation]:
        op, _ = operation(command, me, now)
        return op, Replayed(command, me, now)

    def take_over(self, other: Executor) -> None:
        """Continue the running operations of another executor."""
        self.last_ticket = other.last_ticket
        for ticket, one in other.running.items():
            assert isinstance(one.steps, Replayed)
            self.running[ticket] = Running(one.op, one.session_id, one.steps.copy())


class CopyableLoop(MemberLoop):
    """The production loop, which can be copied."""

    def copy(
        self, *, host: Host, gate: Gate, executor: Executor, streams: PartitionSinks
    ) -> CopyableLoop:
        """Return a loop in the same state."""
        twin = copy(self)
        twin._host, twin._gate, twin.executor, twin._streams = host, gate, executor, streams
        twin._commit_answers = self._commit_answers.copy()
        twin._refusal_reported = self._refusal_reported.copy()
        return twin

    def answer_commits(self, answer: Answer) -> None:
        """Let `answer` receive the outcome of each explicit commit that has not ended."""
        self._commit_answers = dict.fromkeys(self._commit_answers, answer)


@dataclass(frozen=True, slots=True)
class Feed:
    """One granted partition: the next offset to deliver, and whether the last message is
    unfinished.
    """

    epoch: int
    delivered: int | None
    unfinished: bool = False
    asked: bool = False

    def position(self, which: CommitScope) -> Position | None:
        if self.delivered is None:
            return None
        is_excluded = self.unfinished and which is CommitScope.FINISHED
        return Position(self.epoch, self.delivered - is_excluded)


class SimStreams:
    """The streams of a member as one sink, including the user's side.

    Attributes:
        feeds: the partitions that were granted and not withdrawn.
        releases: requests to release that wait for an unfinished message.
    """

    def __init__(self, host: Host) -> None:
        self.feeds: dict[TopicPartition, Feed] = {}
        self.releases: tuple[Mapping[TopicPartition, Ownership], ...] = ()
        self._host = host

    def copy(self, host: Host) -> SimStreams:
        twin = SimStreams(host)
        twin.feeds, twin.releases = self.feeds.copy(), self.releases
        return twin

    # ---- called by the member's thread: `consumer.stream_partitions.PartitionSink` ---------------

    def grant(self, grants: Iterable[Grant]) -> None:
        for one in grants:
            self.feeds[one.tp] = Feed(one.epoch, one.offset)

    def withdraw(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self.feeds.pop(tp, None)

    def ask_release(self, tps: Iterable[TopicPartition], done: Callable[[], None]) -> None:
        # `done` is a value and not a method, so that a copied member answers with its own streams.
        assert isinstance(done, ReleaseDone)
        for tp in tps:
            if tp in self.feeds:
                self.feeds[tp] = replace(self.feeds[tp], asked=True)
        self.releases = (*self.releases, done.partitions)
        self._answer_releases()

    def _answer_releases(self) -> None:
        """Answer the releases whose partitions have no unfinished message, in the order of the
        requests.
        """
        unfinished = {tp for tp, feed in self.feeds.items() if feed.unfinished}
        waiting = []
        for partitions in self.releases:
            if unfinished.isdisjoint(partitions):
                ReleaseDone(partitions, self._host)()
            else:
                waiting.append(partitions)
        self.releases = tuple(waiting)

    def positions(self, which: CommitScope) -> dict[TopicPartition, Position]:
        found = {tp: feed.position(which) for tp, feed in self.feeds.items()}
        return {tp: at for tp, at in found.items() if at is not None}

    def explain(self, idle_reason: str, shortfall: str) -> None:
        """Do nothing: no user reads the reason here."""

    def fail(self, error: Exception) -> None:
        """Do nothing: no user catches the error here."""

    def end(self, error: ZkConsumerError) -> None:
        """Stop delivery, because the member gives up."""
        self.feeds, self.releases = {}, ()

    # ---- called by the user ----------------------------------------------------------------------

    def finish_all(self) -> None:
        """The user asks for the next message and so finishes the earlier messages."""
        for tp, feed in self.feeds.items():
            if feed.unfinished:
                self.feeds[tp] = replace(feed, unfinished=False)
        if self.releases:
            self._answer_releases()

    def deliver(self, tp: TopicPartition) -> tuple[int, int]:
        """Deliver the next message of `tp`; return (offset, epoch)."""
        feed = self.feeds[tp]
        offset = feed.delivered or 0
        self.feeds[tp] = replace(feed, delivered=offset + 1, unfinished=True)
        return offset, feed.epoch


class _IgnoredAnswer:
    """Ignores the answer to an explicit commit; the monitor counts the answers itself."""

    def set_result(self, result: None, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


COMMIT = CommitRequested(None, None, cast(Any, _IgnoredAnswer()))  # Any: it stands for a Future

USER_THREAD_ITEMS = (events.ReleaseReady, CommitRequested, CommitAbandoned)
"""Items of the inbox that a user's thread posts."""

LAST_REPLY = 6
"""The index of the last reply that `member.read_group.diagnose` awaits."""

FOREVER = float("inf")
PREEMPTED_S = 3.0
"""Seconds for which a thread may be preempted: longer than the shortest grace period."""


@promise("I9")
def answers_after_its_user(member: SimMember, answer: events.ReleaseReady) -> Reason:
    """A stream answers a release after its user has finished; a query, after the batch in flight.

    Outside of STOPPING, the answer comes too late and has no effect.
    """
    if member.state.phase is not Phase.STOPPING:
        return None
    held = member.held & {(tp, mine.epoch) for tp, mine in answer.partitions.items()}
    return f"{member.name} releases {held}, which its users hold" if held else None


class SimMember:
    """One member, and the `Host` of its loop.

    Attributes:
        gate: the end of the lease, in virtual seconds.
        turn_at: the time of the current turn, or of the last turn.
        aim: the phase at which the world aims its faults; None for faults at any time.
        rare: the rare pairs that the world prefers in this phase.
        unposted: in an aimed world, the item that a preempted thread of the user or of the listener
            has not posted yet.
        post_at: the virtual time at which that thread runs again, in seconds, whatever the phase.
    """

    def __init__(
        self,
        settings: Settings,
        on_transition: OnTransition,
        *,
        aim: Phase | None = None,
        rare: Rare | None = None,
    ) -> None:
        self.settings = settings
        self.aim = aim
        self.rare = rare
        self.unposted: object = None
        self.post_at = FOREVER
        self.gate = NEVER
        self.turn_at = 0.0
        self.session = SimSession(self._overtakes)
        self.streams = SimStreams(self)
        self._wall_ms = 0
        self._on_transition = on_transition
        self.loop = CopyableLoop(
            settings, host=self, gate=self, executor=self._executor(), streams=self._sinks()
        )

    def _executor(self) -> CopyableExecutor:
        session = self.session
        return CopyableExecutor(
            session,
            self.settings,
            post=session.post,
            clock=self.clock,
            ask_kafka=session.ask_kafka,
        )

    def _sinks(self) -> PartitionSinks:
        threads = thread_ids(self.name, max(self.settings.subscription.values()))
        return {(None, thread): self.streams for thread in threads}

    def copy(self, on_transition: OnTransition) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._on_transition = on_transition
        twin.session = self.session.copy(twin._overtakes)
        twin.streams = self.streams.copy(twin)
        executor = twin._executor()
        executor.take_over(self.loop.executor)
        twin.loop = self.loop.copy(host=twin, gate=twin, executor=executor, streams=twin._sinks())
        return twin

    def _overtakes(self, item: object) -> bool:
        return self.loop.overtakes(item)

    # ---- what a world and a monitor read ---------------------------------------------------------

    @property
    def name(self) -> str:
        return self.settings.consumer

    @property
    def state(self) -> State:
        return self.loop.state

    @property
    def due(self) -> float:
        return self.loop.due

    @property
    def feeds(self) -> dict[TopicPartition, Feed]:
        return self.streams.feeds

    @property
    def held(self) -> set[tuple[TopicPartition, int]]:
        """The partitions of which the user holds unfinished messages, each with the fencing token
        of these messages.
        """
        return {(tp, feed.epoch) for tp, feed in self.feeds.items() if feed.unfinished}

    @property
    def running(self) -> dict[int, Running]:
        """The running operations, by ticket."""
        return self.loop.executor.running

    @property
    def diagnosis(self) -> int | None:
        """The number of replies that the operation `Diagnose` has received; None if none runs."""
        for _, steps in self._diagnoses():
            return len(steps.sent)
        return None

    @property
    def is_diagnosed(self) -> bool:
        """Whether the last reply to `Diagnose` is in the inbox."""
        return any(
            isinstance(item, Resume) and item.ticket in self._ending() for item in self.inbox
        )

    @property
    def awaits_last_reply(self) -> bool:
        """Whether `Diagnose` has sent its last request, and the reply is not in the inbox."""
        return bool(self._ending()) and not self.is_diagnosed

    def _ending(self) -> set[int]:
        """Return the tickets of the operations `Diagnose` that need only the last reply."""
        return {ticket for ticket, steps in self._diagnoses() if len(steps.sent) >= LAST_REPLY}

    def _diagnoses(self) -> Iterator[tuple[int, Replayed]]:
        for ticket, one in self.running.items():
            assert isinstance(one.steps, Replayed)
            if isinstance(one.steps.command, cmd.Diagnose):
                yield ticket, one.steps

    @property
    def wire(self) -> deque[tuple[int, Request | OffsetRequest]]:
        return self.session.wire

    @property
    def inbox(self) -> deque[object]:
        return self.session.inbox

    @property
    def changes(self) -> int:
        """Number of connection changes in the inbox."""
        return self.session.changes

    @property
    def unread(self) -> bool:
        """Whether a broken connection would lose a reply or a watch."""
        return self.session.unread()

    @property
    def may_overtake(self) -> bool:
        """Whether a connection change may be handled before older replies and watches."""
        return self.session.may_overtake()

    @property
    def has_client(self) -> bool:
        """Whether the ZooKeeper client works, so that it can connect."""
        return self.session.has_client

    @property
    def closed(self) -> bool:
        return self.loop.state.phase is Phase.CLOSED

    @property
    def settled(self) -> bool:
        """Whether the member owns and serves all its assigned partitions."""
        return self.loop.state.phase is Phase.SETTLED

    @property
    def is_at_rest(self) -> bool:
        """Whether the member is settled, awaits no reply, and has handled its whole inbox."""
        return self.settled and not self.inbox and not self.wire

    # ---- actions of the member's thread ----------------------------------------------------------

    def receive(self, now: float) -> None:
        """Take the next item of the inbox."""
        self._take(self.session.take(), now)

    def overtake(self, now: float) -> None:
        """Take the first item that is neither a reply nor a watch.

        kazoo may deliver replies and watches late.
        """
        self._take(self.session.overtake(), now)

    def wake(self, now: float) -> None:
        """Wake the thread: it takes an item of the inbox, or a `Tick` if there is none."""
        self._take(self.session.take() if self.session.inbox else None, now)

    def _take(self, item: object, now: float) -> None:
        self.turn_at = now
        if not self.closed:
            self.loop.take(item)

    # ---- actions of preempted threads ------------------------------------------------------------

    def may_post(self, now: float) -> bool:
        """Return whether a preempted thread may post its item.

        The thread posts in the phase at which the world aims, after a diagnosis, or after
        `PREEMPTED_S`.
        """
        if self.unposted is None:
            return False
        if self.may_release_early or now >= self.post_at:
            return True
        return self.state.phase is self.aim and self.diagnosis is None

    @property
    def delays_user(self) -> bool:
        """Whether a preempted thread of the user delays its item."""
        return isinstance(self.unposted, USER_THREAD_ITEMS)

    @property
    def may_release_early(self) -> bool:
        """Whether a user releases its partitions just before the last reply to a diagnosis.

        The user does so in a world that aims at COMMITTING, so that the reply may come during the
        commit.
        """
        if self.aim is not Phase.COMMITTING or self.state.phase is not Phase.STOPPING:
            return False
        return self.unposted is not None and self.awaits_last_reply

    def run_thread(self) -> None:
        """Let the preempted thread, if there is one, post its item."""
        if self.unposted is not None:
            self.session.post(self.unposted)
            self.unposted, self.post_at = None, FOREVER

    def end_threads(self) -> None:
        """The process ends: its threads post nothing more."""
        self.inbox.clear()
        self.unposted, self.post_at = None, FOREVER

    # ---- actions of kazoo's threads --------------------------------------------------------------

    def replied(self, ticket: int, reply: Reply) -> None:
        self.session.replied(ticket, reply)

    def watch(self, fired: WatchFired) -> None:
        self.post(fired)

    def read(self) -> None:
        """The client reads one more reply or watch event before it notices that its connection is
        broken.
        """
        self.session.read += 1

    def disconnect(self, now: float) -> None:
        """The client notices that its connection is broken."""
        self.session.broke()

    def client_died(self, now: float, *, reason: str, refused: bool) -> None:
        """The client fails permanently, and does not connect again."""
        self.session.died(events.ClientDied(now=now, reason=reason, refused=refused))

    def connect(self, session: Session, now: float, wall_ms: int) -> None:
        self._wall_ms = wall_ms
        self.session.connected(session)

    # ---- actions of the user ---------------------------------------------------------------------

    def commit(self, now: float) -> None:
        """Commit every delivered message."""
        self.post(COMMIT)

    def leave(self, now: float) -> None:
        self.post(LeaveRequested(Purpose.LEAVE))

    def may_ask(self, now: float) -> bool:
        return now < self.gate

    def finish_all(self, now: float) -> None:
        """The user asks for the next message and so finishes the earlier messages."""
        self.turn_at = now
        self.streams.finish_all()

    def deliverable(self, tp: TopicPartition, log_end: int, now: float) -> bool:
        """Return whether a message may be delivered (`auto.offset.reset=smallest`)."""
        feed = self.feeds.get(tp)
        return (
            feed is not None
            and not feed.asked
            and (feed.delivered or 0) < log_end
            and self.may_ask(now)
        )

    def deliver(self, tp: TopicPartition) -> tuple[int, int]:
        """Deliver the next message of `tp`; return (offset, epoch)."""
        return self.streams.deliver(tp)

    # ---- the loop's host and gate ----------------------------------------------------------------

    def clock(self) -> float:
        return self.turn_at

    def wall_ms(self) -> int:
        return self._wall_ms

    def post(self, item: object) -> None:
        """Put an item into the inbox; in an aimed world, its thread may be preempted before.

        Only one thread at a time is preempted, because the next such item may come from the same
        thread. If another thread posts an item, the preempted one continues. In a world that
        prefers failures of commits, a preempted listener does not continue when the user posts.
        """
        if isinstance(item, events.ReleaseReady):
            answers_after_its_user.check(self, item)
        is_of_user = isinstance(item, USER_THREAD_ITEMS)
        keeps_listener = self.rare is Rare.COMMIT and is_of_user and not self.delays_user
        if not self._may_be_preempted(item) or (self.unposted is not None and keeps_listener):
            self.session.post(item)
            return
        self.run_thread()
        self.unposted, self.post_at = item, self.turn_at + PREEMPTED_S

    def _may_be_preempted(self, item: object) -> bool:
        if self.aim is None:
            return False
        if isinstance(item, USER_THREAD_ITEMS):
            return True
        is_of_listener = isinstance(item, events.Finished) and isinstance(
            item.outcome, events.ListenerReturned
        )
        return is_of_listener and self.state.phase is self.aim

    def observe(
        self, before: State, event: Event, after: State, commands: tuple[cmd.Command, ...]
    ) -> None:
        if after.phase is not before.phase:
            phases.check_change(before.phase, machine.causes(before, event), after.phase)
        self._on_transition(self, before, event, commands)

    def noticed(self, notice: cmd.Notice, error: ZkConsumerError) -> None:
        """Do nothing: notices are commands, which `observe` shows."""

    def recreate_client(self) -> None:
        self.session.has_client = True

    def gave_up(self, command: cmd.GiveUp) -> ZkConsumerError:
        return ZkConsumerError(command.reason, where=self.name, remedy="start the member again")

    def call_listener(self, command: cmd.CallListener) -> None:
        """The user's function returns at once."""
        if not command.op:
            return
        outcome = events.ListenerReturned(command.callback)
        self.post(events.Finished(now=self.turn_at, op=command.op, outcome=outcome))

    def translate(self, item: object) -> Event | None:
        raise TypeError(f"unknown item: {item!r}")

    def open(self, deadline: float) -> None:
        self.gate = deadline

    def shut(self) -> None:
        self.gate = NEVER
