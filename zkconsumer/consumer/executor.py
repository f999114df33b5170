"""Runs the state machine's ZooKeeper commands as operations, and reports their outcomes.

The executor belongs to the member's thread. kazoo's threads put replies and watches into its inbox
as `Resume` and `WatchFired`, and it passes them to `Executor.resume` and `event_of_watch`. This
module does not import kazoo: the simulator runs the same executor over a simulated session.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from zkconsumer.consumer.topic_matcher import match_topics
from zkconsumer.frozen import dataclass
from zkconsumer.member import commands, events, operations, read_group
from zkconsumer.member.events import Event, Interrupted, Outcome, Synced, Trigger
from zkconsumer.member.operations import MemberIdentity
from zkconsumer.member.state import Settings
from zkconsumer.protocol import paths
from zkconsumer.protocol.filters import MatchTopics
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.requests import (
    WATCH_CREATED,
    WATCH_DELETED,
    Code,
    OffsetRequest,
    Operation,
    Reply,
    Requests,
    SyncLeader,
)


@dataclass(frozen=True, slots=True)
class Resume:
    """The replies to the last batch of the operation with this ticket."""

    ticket: int
    replies: Sequence[Reply]


@dataclass(frozen=True, slots=True)
class WatchFired:
    """A one-shot watch fired; `kind` is the name of ZooKeeper's event type."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Done:
    """The callback that posts the replies to one batch. Any thread may call it, once."""

    ticket: int
    post: Callable[[Resume], None]

    def __call__(self, replies: Sequence[Reply]) -> None:
        self.post(Resume(self.ticket, replies))


class Session(Protocol):
    """The part of `ZooKeeperSession` that the executor uses."""

    def is_over(self, session_id: int) -> bool: ...
    def submit(self, batch: Requests, done: Done) -> None: ...


class AskMatcher(Protocol):
    """A function that evaluates filters; another thread calls `done` with the only reply."""

    def __call__(self, request: MatchTopics, done: Done) -> None: ...


class AskKafka(Protocol):
    """A function that sends a request for offsets; another thread calls `done` with the reply."""

    def __call__(self, request: OffsetRequest, done: Done) -> None: ...


OperationRequests = Requests | OffsetRequest | MatchTopics
"""The requests that an operation sends at one time."""


RunningOperation = Generator[OperationRequests, Sequence[Reply], object]
"""An operation; it returns an outcome, or a function that makes an event from the time."""


@dataclass(slots=True)
class Running:
    """An operation that waits for the replies to one batch.

    Attributes:
        op: the number under which the state machine awaits the outcome; 0 if it awaits no outcome.
        session_id: the session in which the operation began.
    """

    op: int
    session_id: int
    steps: RunningOperation


class Executor:
    """Runs operations; not thread-safe.

    Attributes:
        running: ticket -> the running operation. Several operations may have the number 0, so each
            has its own ticket.
        requests: number of requests sent to ZooKeeper.
    """

    def __init__(
        self,
        session: Session,
        settings: Settings,
        *,
        post: Callable[[Resume], None],
        clock: Callable[[], float],
        ask_kafka: AskKafka | None = None,
        ask_matcher: AskMatcher | None = None,
    ) -> None:
        """Create an executor.

        Args:
            session: sends the batches.
            post: puts a `Resume` into the member's inbox; any thread may call it.
            clock: returns the lease clock's time in seconds.
            ask_kafka: sends requests for offsets; None with `offsets.storage=zookeeper`.
            ask_matcher: evaluates topic filters; None evaluates them on the executor's thread.
        """
        self._session, self._settings = session, settings
        self._post, self._clock, self._ask_kafka = post, clock, ask_kafka
        self._ask_matcher = ask_matcher
        self.running: dict[int, Running] = {}
        self.last_ticket = 0
        self.requests = 0

    def start(self, command: commands.Command, session_id: int) -> None:
        """Start the operation of a command; `resume` later returns the event of its end."""
        me = MemberIdentity.of(self._settings, session_id)
        op, steps = self.operation(command, me, self._clock())
        self.last_ticket += 1
        self.running[self.last_ticket] = running = Running(op, session_id, steps)
        self._send(self.last_ticket, running, next(steps))

    def operation(
        self, command: commands.Command, me: MemberIdentity, now: float
    ) -> tuple[int, RunningOperation]:
        """Return the operation of a command and its number, as the function `operation` does."""
        return operation(command, me, now)

    def resume(self, resume: Resume, awaits: Callable[[int], bool]) -> Event | None:
        """Continue an operation with its replies.

        Args:
            resume: the replies.
            awaits: tells whether the state machine still awaits the operation with this number.

        Returns:
            The event of the operation's end; None if the operation continues or is no longer
                awaited.
        """
        running = self.running[resume.ticket]
        if not awaits(running.op):
            return self._end(resume.ticket, None)
        if any(reply.code is Code.BROKEN for reply in resume.replies):
            return self._end(resume.ticket, Interrupted())
        try:
            batch = running.steps.send(resume.replies)
            while isinstance(batch, MatchTopics) and self._ask_matcher is None:
                batch = running.steps.send([match_topics(batch)])
        except StopIteration as end:
            return self._end(resume.ticket, end.value)
        self._send(resume.ticket, running, batch)
        return None

    def _send(self, ticket: int, running: Running, batch: OperationRequests) -> None:
        done = Done(ticket, self._post)
        if self._session.is_over(running.session_id):
            # An operation must not continue in the next session. Otherwise a stale commit could
            # succeed: 1. The commit waits for a reply. 2. Its session expires, and the member
            # registers again in a new session. 3. The commit's check of the id znode finds the new
            # registration.
            done([Reply(Code.BROKEN)])
        elif isinstance(batch, OffsetRequest):
            assert self._ask_kafka is not None, "offsets.storage is zookeeper"
            self._ask_kafka(batch, done)
        elif isinstance(batch, MatchTopics):
            assert self._ask_matcher is not None, "without a matcher, `resume` answers it"
            self._ask_matcher(batch, done)
        else:
            self.requests += len(batch)
            self._session.submit(batch, done)

    def _end(self, ticket: int, outcome: object) -> Event | None:
        running = self.running.pop(ticket)
        running.steps.close()
        now = self._clock()
        if isinstance(outcome, Outcome):
            return events.Finished(now=now, op=running.op, outcome=outcome)
        return outcome(now) if callable(outcome) else None


def operation(
    command: commands.Command, me: MemberIdentity, now: float
) -> tuple[int, RunningOperation]:
    """Return a command's operation and its number; 0 if the state machine awaits no outcome."""
    match command:
        case commands.Register(op, wall_ms):
            return op, operations.register(me, wall_ms)
        case commands.ReadView(op, known):
            return op, read_group.read_view(me, known)
        case commands.Verify(op, partitions):
            return op, operations.verify(me, partitions)
        case commands.Release(op, partitions, watched):
            return op, operations.release(me, partitions, watched)
        case commands.Claim(op, threads, known, ask, eager):
            return op, operations.claim(me, threads, known, ask=ask, all_or_nothing=eager)
        case commands.LoadOffsets(op, partitions, storage, kept):
            return op, operations.load(me, partitions, storage, kept)
        case commands.CommitOffsets(op, plan):
            return op, operations.commit(me, plan)
        case commands.ListOwners(op, topics):
            return op, operations.list_owners(me, sorted(topics))
        case commands.Nudge(op, wall_ms):
            return op, operations.nudge(me, wall_ms)
        case commands.Sync(op):
            return op, _sync(me, now)
        case commands.RearmTopic() | commands.Diagnose():
            return 0, _unawaited(command, me)
    raise TypeError(f"not a command for ZooKeeper: {command!r}")


def _sync(me: MemberIdentity, sent_at: float) -> Generator[Requests, Sequence[Reply], Outcome]:
    """Let ZooKeeper's leader confirm the session, which prolongs the lease."""
    (reply,) = yield [SyncLeader(me.path)]
    return Synced(sent_at) if reply.code is Code.OK else Interrupted()


def _unawaited(command: commands.RearmTopic | commands.Diagnose, me: MemberIdentity) -> Operation:
    if isinstance(command, commands.Diagnose):
        return read_group.diagnose(me)
    return _wait_for_topic(command.topic)


def _wait_for_topic(topic: str) -> Generator[Requests, Sequence[Reply], object]:
    """Watch a deleted topic, and read the group when the topic exists again."""
    there = yield from operations.wait_for_topic(topic)
    if not there:
        return None
    return lambda now: events.Triggered(now=now, trigger=Trigger.TOPIC, subject=topic)


def event_of_watch(fired: WatchFired, settings: Settings, now: float) -> Event | None:
    """Return the event for a fired watch; None if the member does not need it."""
    at = paths.locate(fired.path)
    deleted = fired.kind == WATCH_DELETED
    match at.kind:
        case ZnodeKind.IDS:
            return events.Triggered(now=now, trigger=Trigger.MEMBERS)
        case ZnodeKind.MEMBER if at.name == settings.consumer and fired.kind != WATCH_CREATED:
            return events.Triggered(now=now, trigger=Trigger.OWN_MEMBER_NODE)
        case ZnodeKind.MEMBER if fired.kind not in (WATCH_CREATED, WATCH_DELETED):
            return events.Triggered(now=now, trigger=Trigger.REGISTRATION, subject=at.name)
        case ZnodeKind.TOPIC if deleted:
            return events.TopicDeleted(now=now, topic=at.name)
        case ZnodeKind.TOPIC:
            return events.Triggered(now=now, trigger=Trigger.TOPIC, subject=at.name)
        case ZnodeKind.TOPICS:
            return events.Triggered(now=now, trigger=Trigger.TOPICS)
        case ZnodeKind.BROKER_IDS:
            return events.Triggered(now=now, trigger=Trigger.BROKERS)
        case ZnodeKind.BROKER:
            return events.Triggered(now=now, trigger=Trigger.BROKERS, subject=at.name)
        case ZnodeKind.OWNER if fired.kind != WATCH_CREATED:
            partition = TopicPartition(at.name, at.partition)
            return events.OwnerNodeChanged(now=now, partition=partition)
        case ZnodeKind.OFFSET:
            partition = TopicPartition(at.name, at.partition)
            return events.OffsetNodeChanged(now=now, partition=partition)
        case ZnodeKind.OWNERS_OF:
            return events.OwnersChanged(now=now, topic=at.name)
    return None
