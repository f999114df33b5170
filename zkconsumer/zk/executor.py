"""Runs the machine's ZooKeeper commands: drives operations over a session, and says how they end.

Everything happens on the coordinator's thread, except that replies and watches are put into its
inbox by kazoo's threads: `Resume` and `WatchFired` come back through `Executor.resume` and
`meaning`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.protocol.states import EventType

from zkconsumer.core import commands, events, paths
from zkconsumer.core.events import Event, Interrupted, Outcome, Synced, Trigger
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.paths import Kind
from zkconsumer.core.state import Settings
from zkconsumer.zk import claiming, committing, diagnosing, operations, viewing
from zkconsumer.zk.operations import Member
from zkconsumer.zk.requests import Batch, Code, OffsetRequest, Operation, Reply, SyncLeader
from zkconsumer.zk.session import ZooKeeperSession


@dataclass(frozen=True, slots=True)
class Resume:
    """Replies for an operation under way, and the session in which it began."""

    op: int
    session_id: int
    running: Generator[Batch | OffsetRequest, Sequence[Reply], Any]
    replies: Sequence[Reply]


@dataclass(frozen=True, slots=True)
class WatchFired:
    """A one-shot watch fired."""

    kind: str
    path: str


AskKafka = Callable[[OffsetRequest, Callable[[Sequence[Reply]], None]], None]


class Executor:
    """Operations by number; `post` puts something into the coordinator's inbox from any thread.

    `ask_kafka` sends a request for offsets, and hands its reply over on a thread of its own.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        settings: Settings,
        *,
        post: Callable[[Resume], None],
        clock: Callable[[], float],
        ask_kafka: AskKafka | None = None,
    ) -> None:
        self._session, self._settings = session, settings
        self._post, self._clock, self._ask_kafka = post, clock, ask_kafka
        self.requests = 0

    def start(self, command: commands.Command, session_id: int) -> None:
        """Begin what a command asks for; its end comes out of `resume` later."""
        op, running = operation(command, self._member(session_id), self._clock())
        self._send(op, session_id, running, next(running))

    def resume(self, resume: Resume) -> Event | None:
        """Go on with an operation; the event of its end, if it has ended."""
        if any(reply.code is Code.BROKEN for reply in resume.replies):
            resume.running.close()
            return self._ended(resume.op, Interrupted())
        try:
            batch = resume.running.send(resume.replies)
        except StopIteration as end:
            return self._ended(resume.op, end.value)
        self._send(resume.op, resume.session_id, resume.running, batch)
        return None

    def _send(
        self, op: int, session_id: int, running: Any, batch: Batch | OffsetRequest
    ) -> None:
        def done(replies: Sequence[Reply]) -> None:
            self._post(Resume(op, session_id, running, replies))

        if self._session.is_over(session_id):
            # What began in one session does not go on in the next: there the check of our id znode
            # may find the next registration, and a commit of before would be let through.
            done([Reply(Code.BROKEN)])
            return
        if isinstance(batch, OffsetRequest):
            assert self._ask_kafka is not None, "offsets.storage is zookeeper"
            self._ask_kafka(batch, done)
            return
        self.requests += len(batch)
        self._session.submit(batch, done)

    def _ended(self, op: int, outcome: Any) -> Event | None:
        now = self._clock()
        if isinstance(outcome, Outcome):
            return events.Finished(now=now, op=op, outcome=outcome)
        return outcome(now) if callable(outcome) else None

    def _member(self, session_id: int) -> Member:
        return Member.of(self._settings, session_id)


def operation(command: commands.Command, me: Member, now: float) -> tuple[int, Operation]:
    """The operation that does what a command asks for, and its number (0: nobody waits for it)."""
    match command:
        case commands.Register(op, wall_ms):
            return op, operations.register(me, wall_ms)
        case commands.ReadView(op):
            return op, viewing.read_view(me)
        case commands.Verify(op, partitions):
            return op, operations.verify(me, partitions)
        case commands.Release(op, partitions):
            return op, operations.release(me, partitions)
        case commands.Claim(op, threads, known, ask, eager):
            return op, claiming.claim(me, threads, known, ask=ask, all_or_nothing=eager)
        case commands.LoadOffsets(op, partitions, storage):
            return op, committing.load(me, partitions, storage)
        case commands.CommitOffsets(op, plan):
            return op, committing.commit(me, plan)
        case commands.ListOwners(op, topics):
            return op, operations.list_owners(me, sorted(topics))
        case commands.Nudge(op, wall_ms):
            return op, operations.nudge(me, wall_ms)
        case commands.Sync(op):
            return op, _sync(me, now)
        case commands.RearmTopic() | commands.Diagnose():
            return 0, _aside(command, me)
    raise TypeError(f"not a command for ZooKeeper: {command!r}")


def _sync(me: Member, sent_at: float) -> Generator[Batch, Sequence[Reply], Outcome]:
    (reply,) = yield [SyncLeader(me.path)]
    return Synced(sent_at) if reply.code is Code.OK else Interrupted()


def _aside(command: commands.RearmTopic | commands.Diagnose, me: Member) -> Operation:
    if isinstance(command, commands.Diagnose):
        return diagnosing.diagnose(me)
    return _topic_back(command.topic)


def _topic_back(topic: str) -> Generator[Batch, Sequence[Reply], Any]:
    there = yield from operations.wait_for_topic(topic)
    if not there:
        return None
    return lambda now: events.Triggered(now=now, trigger=Trigger.TOPIC, subject=topic)


def meaning(fired: WatchFired, settings: Settings, now: float) -> Event | None:
    """What a fired watch means to the member; None for what it need not know."""
    at = paths.locate(fired.path)
    deleted = fired.kind == EventType.DELETED
    match at.kind:
        case Kind.IDS:
            return events.Triggered(now=now, trigger=Trigger.MEMBERS)
        case Kind.MEMBER if at.name == settings.consumer and fired.kind != EventType.CREATED:
            return events.Triggered(now=now, trigger=Trigger.OWN_MEMBER_NODE)
        case Kind.TOPIC if deleted:
            return events.TopicDeleted(now=now, topic=at.name)
        case Kind.TOPIC:
            return events.Triggered(now=now, trigger=Trigger.TOPIC, subject=at.name)
        case Kind.TOPICS:
            return events.Triggered(now=now, trigger=Trigger.TOPICS)
        case Kind.BROKER_IDS:
            return events.Triggered(now=now, trigger=Trigger.BROKERS)
        case Kind.OWNER if fired.kind != EventType.CREATED:
            partition = TopicPartition(at.name, at.partition)
            return events.OwnerNodeChanged(now=now, partition=partition)
        case Kind.OWNERS_OF:
            return events.OwnersChanged(now=now, topic=at.name)
    return None
