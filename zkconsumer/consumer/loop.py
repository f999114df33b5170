"""One member's turns: take an item, step the machine, run its commands, then do what is due.

The coordinator's thread and the simulator drive the same `MemberLoop`. It has no thread, no inbox
and no clock of its own: a `Host` provides them.

The order within a turn:

1. The item becomes at most one event. A turn without an item is a `Tick`.
2. The machine steps, observers see the transition, and then the commands run in their order. A
   command that produces an event (`CollectPositions`) steps the machine at once: the commands of
   that nested step run before the remaining commands of the outer step.
3. While a deadline has passed, the machine steps with another `Tick`, so that a busy inbox delays
   neither a renewal of the lease nor a back-off. A `Tick` serves one deadline of a phase, and a
   member that was frozen has several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol

from zkconsumer.consumer import commit_requests
from zkconsumer.consumer.commit_requests import Answer, CommitAsked, CommitGivenUp
from zkconsumer.consumer.executor import Executor, Resume, WatchFired, event_of_watch
from zkconsumer.consumer.status import FOR_IDLE, NO_SHARE, error_for, held_by
from zkconsumer.consumer.stream_partitions import Coverage, Grant, PartitionSink
from zkconsumer.errors import NotOwnedError, ZkConsumerError
from zkconsumer.member import commands as cmd
from zkconsumer.member import events
from zkconsumer.member.machine import awaits, next_deadline, step
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import Settings, State, enter
from zkconsumer.protocol.model import (
    Ownership,
    Positions,
    Purpose,
    Session,
    ThreadId,
    TopicPartition,
)

Key = tuple[str | None, str]
"""A stream's topic (None: all topics of a filter) and consumer thread id."""

PartitionSinks = Mapping[Key, PartitionSink]
"""The streams of a member."""

_WHICH = {
    Purpose.AUTO: Coverage.FINISHED,
    Purpose.RELEASE: Coverage.FINISHED,
    Purpose.EXPLICIT: Coverage.DELIVERED,
    Purpose.LEAVE: Coverage.DELIVERED,
}


TICKS_PER_TURN = 8
"""How many `Tick`s end a turn at most; deadlines that are left over are due in the next turn.

The state has nine deadlines, and at most three of them need a `Tick` of their own. The bound keeps
the thread's other work alive if a `Tick` ever leaves its deadline in the past.
"""


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The connection's state changed: connected in this session, or (None) not connected."""

    session: Session | None


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The user shuts the member down."""

    purpose: Purpose


@dataclass(frozen=True, slots=True)
class ReleaseDone:
    """The callback for a stream whose user holds no message of `partitions`; for any thread."""

    partitions: frozenset[TopicPartition]
    host: Host

    def __call__(self) -> None:
        now = self.host.clock()
        self.host.post(events.ReleaseReady(now=now, partitions=self.partitions))


@dataclass(frozen=True, slots=True)
class _Owned:
    """The streams that have partitions: by the partition's name, and all of them."""

    owned: Mapping[TopicPartition, Ownership]
    by_name: Mapping[str, Key]
    busy: frozenset[Key]


class Gate(Protocol):
    """The part of `LeaseGate` that a turn uses."""

    def open(self, deadline: float) -> None: ...
    def shut(self) -> None: ...


class Host(Protocol):
    """Provides time and an inbox to a `MemberLoop`, and sees what it does."""

    def clock(self) -> float:
        """Return the time of the lease's clock, in seconds."""

    def wall_ms(self) -> int:
        """Return the wall clock's time in milliseconds since 1970, for registrations."""

    def post(self, item: Any) -> None:
        """Put an item into the inbox; any thread may call it."""

    def observe(
        self, before: State, event: events.Event, after: State, commands: tuple[cmd.Command, ...]
    ) -> None:
        """See a transition, before its commands run."""

    def noticed(self, notice: cmd.Notice, error: ZkConsumerError) -> None:
        """Log and count a notice; `error` carries it to the streams."""

    def call_listener(self, command: cmd.CallListener) -> None:
        """Call the user's rebalance listener; its end comes through the inbox."""

    def recreate_client(self) -> None:
        """Replace the ZooKeeper client, which has died, by a new one; return at once."""

    def gave_up(self, command: cmd.GiveUp) -> ZkConsumerError:
        """Return the error with which every stream and every waiting call ends."""

    def translate(self, item: Any) -> events.Event | None:
        """Return the event of an item that the loop does not know.

        Raises:
            TypeError: the host does not know the item either.
        """


class MemberLoop:
    """One member: the machine's state, its operations and its streams.

    Attributes:
        state: the machine's state, a frozen value: any thread may read it.
        due: when the next turn is due without an item, in seconds of the lease's clock; infinity
            for never.
        executor: runs the machine's commands for ZooKeeper.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        host: Host,
        gate: Gate,
        executor: Executor,
        streams: PartitionSinks,
    ) -> None:
        self.state = State(settings)
        self.due = next_deadline(self.state)
        self.executor = executor
        self._settings, self._host, self._gate = settings, host, gate
        self._streams = streams
        self._answers: dict[int, Answer] = {}
        self._last_request = 0
        # Keys of streams that were told of a refusal since they last had a partition.
        self._refused: set[Key] = set()
        self._refused_with: Mapping[TopicPartition, Ownership] | None = None
        # What follows from `owned`, for the many notices of one step; `_who_owns` renews it.
        self._known = _Owned(self.state.owned, {}, frozenset())

    def copy(
        self, *, host: Host, gate: Gate, executor: Executor, streams: PartitionSinks
    ) -> MemberLoop:
        """Return a second loop in the same state, for the simulator's exhaustive search."""
        twin = copy(self)
        twin._host, twin._gate, twin.executor, twin._streams = host, gate, executor, streams
        twin._answers, twin._refused = self._answers.copy(), self._refused.copy()
        return twin

    # ---- a turn ----------------------------------------------------------------------------------

    def take(self, item: Any | None) -> None:
        """Take one turn, with the next item of the inbox; None if nothing came until `due`."""
        now = self._host.clock()
        event = events.Tick(now=now) if item is None else self._event(item, now)
        if event is not None:
            self._step(event)
        for _ in range(TICKS_PER_TURN):
            if self.due > (now := self._host.clock()):
                return
            self._step(events.Tick(now=now))

    def overtakes(self, item: Any) -> bool:
        """Is this item to be taken before all others? Any thread may call it.

        The reply to the `sync` that renews the lease may overtake, because it proves that
        ZooKeeper's leader knew the session when the `sync` was sent, whatever happened since: the
        lease ends two thirds of a session timeout later.
        """
        if not isinstance(item, Resume):
            return False
        running = self.executor.running.get(item.ticket)
        return running is not None and running.op == self.state.lease.op

    def _event(self, item: Any, now: float) -> events.Event | None:
        match item:
            case events.Event():
                return item
            case Resume():
                return self.executor.resume(item, lambda op: awaits(self.state, op))
            case WatchFired():
                return event_of_watch(item, self._settings, now)
            case SessionChanged(session) if session is None:
                return events.Suspended(now=now)
            case SessionChanged(Session() as session):
                return events.Connected(now=now, session=session, wall_ms=self._host.wall_ms())
            case CommitAsked():
                return self._commit_asked(item, now)
            case CommitGivenUp(answer):
                request = next((n for n, one in self._answers.items() if one is answer), 0)
                if not self._answers.pop(request, None):
                    return None  # answered meanwhile
                return events.CommitTimedOut(now=now, request=request)
            case LeaveAsked(purpose):
                return events.CloseRequested(now=now, purpose=purpose)
        return self._host.translate(item)

    def _commit_asked(self, asked: CommitAsked, now: float) -> events.Event | None:
        request = self._last_request = self._last_request + 1
        try:
            if asked.given is None:
                event = self._collected(Purpose.EXPLICIT, None, request)
            else:
                owned = self.state.owned
                event = commit_requests.positions_given(
                    asked.given, owned, request=request, now=now
                )
        except NotOwnedError as error:
            asked.answer.set_exception(error)
            return None
        self._answers[request] = asked.answer
        return replace(event, retries=asked.retries)

    def _step(self, event: events.Event) -> None:
        before = self.state
        self.state, commands = step(before, event)
        self.due = next_deadline(self.state)
        self._host.observe(before, event, self.state, commands)
        if before.phase is not self.state.phase in (Phase.SETTLED, Phase.WAITING):
            self._explain_idle()
        for command in commands:
            self._run(command)

    # ---- commands --------------------------------------------------------------------------------

    def _run(self, command: cmd.Command) -> None:
        match command:
            case cmd.StartFetching() | cmd.Withdraw() | cmd.AskRelease():
                self._run_on_streams(command)
            case cmd.CollectPositions(purpose, partitions):
                self._step(self._collected(purpose, partitions, 0))
            case cmd.OpenGate(deadline):
                self._gate.open(deadline)
            case cmd.ShutGate():
                self._gate.shut()
            case cmd.AnswerCommit(request, failures):
                self._answer(request, failures)
            case cmd.Notice():
                self._notice(command)
            case cmd.CloseSession():
                pass  # the host ends the session once the phase is CLOSED
            case cmd.RecreateClient():
                self._host.recreate_client()
            case cmd.GiveUp():
                self.fail(self._host.gave_up(command))
            case cmd.CallListener():
                self._host.call_listener(command)
            case _:
                assert self.state.session is not None
                self.executor.start(command, self.state.session.id)

    def _run_on_streams(self, command: cmd.Command) -> None:
        match command:
            case cmd.StartFetching(grants):
                for key, given in self._by_stream(grants).items():
                    self._refused.discard(key)
                    self._streams[key].grant(
                        [Grant(tp, grants[tp][1], grants[tp][0].epoch) for tp in given]
                    )
            case cmd.Withdraw(partitions):
                for (topic, _), stream in self._streams.items():
                    stream.withdraw([tp for tp in partitions if topic in (None, tp.topic)])
            case cmd.AskRelease(partitions):
                for key, asked in self._by_stream(partitions).items():
                    done = ReleaseDone(frozenset(asked), self._host)
                    self._streams[key].ask_release(asked, done)

    def _by_stream(self, partitions: Iterable[TopicPartition]) -> dict[Key, list[TopicPartition]]:
        groups: dict[Key, list[TopicPartition]] = {}
        for tp in partitions:
            key = self._key_of(tp.topic, self.state.owned[tp].thread)
            groups.setdefault(key, []).append(tp)
        return groups

    def _key_of(self, topic: str, thread: ThreadId) -> Key:
        return (topic, thread) if (topic, thread) in self._streams else (None, thread)

    def _collected(
        self, purpose: Purpose, only: frozenset[TopicPartition] | None, request: int
    ) -> events.PositionsCollected:
        found = self.positions(_WHICH[purpose])
        chosen = {tp: at for tp, at in found.items() if only is None or tp in only}
        return events.PositionsCollected(
            now=self._host.clock(), purpose=purpose, positions=chosen, request=request
        )

    def positions(self, which: Coverage) -> Positions:
        """Return the streams' positions; any thread may call it."""
        return {tp: at for one in self._streams.values() for tp, at in one.positions(which).items()}

    def _answer(self, request: int, failures: Mapping[TopicPartition, str]) -> None:
        answer = self._answers.pop(request, None)
        if answer is None:
            return  # the caller has reached its time-out, or `fail` has answered it
        if failures:
            answer.set_exception(commit_requests.failed(failures))
        else:
            answer.set_result(None)

    # ---- what streams are told -------------------------------------------------------------------

    def _notice(self, notice: cmd.Notice) -> None:
        error = error_for(notice)
        self._host.noticed(notice, error)
        if notice.kind is cmd.NoticeKind.OFFSET_MALFORMED:
            self._tell(self._owners_of(notice.where), error)
        elif notice.kind is cmd.NoticeKind.DENIED or (
            # Without a view the member has never joined: `create_message_streams` still waits.
            notice.kind is cmd.NoticeKind.ID_TAKEN and self.state.view is not None
        ):
            # The machine repeats the notice after every back-off and for each partition; a stream
            # gets only the first. A stream stays idle as long as `owned` stays as it is.
            if self._refused_with is self.state.owned:
                return
            self._refused_with = self.state.owned
            news = [key for key in self._idle_streams() if key not in self._refused]
            self._refused.update(news)
            self._tell(news, error)
        elif notice.kind is cmd.NoticeKind.BLOCKED:
            wanted = self.state.assigned
            waiting = self._keys_for((tp, wanted.get(tp, "")) for tp in self.state.blocked)
            self._tell([key for key in self._idle_streams() if key in waiting], error)
        elif notice.kind in FOR_IDLE:
            self._tell(self._idle_streams(), error)

    def _who_owns(self) -> _Owned:
        """Return what follows from the owned partitions; computed once for the notices of a step.

        A refusal may concern thousands of partitions, with a notice for each of them.
        """
        owned = self.state.owned
        if self._known.owned is not owned:
            keys = {str(tp): self._key_of(tp.topic, mine.thread) for tp, mine in owned.items()}
            self._known = _Owned(owned, keys, frozenset(keys.values()))
        return self._known

    def _owners_of(self, partition: str) -> list[Key]:
        """Return the stream that owns a partition, which is named as in a notice."""
        key = self._who_owns().by_name.get(partition)
        return [] if key is None else [key]

    def _tell(self, keys: Iterable[Key], error: ZkConsumerError) -> None:
        for key in keys:
            self._streams[key].fail(error)

    def _idle_streams(self) -> list[Key]:
        busy = self._who_owns().busy
        return [key for key in self._streams if key not in busy]

    def _keys_for(self, assigned: Iterable[tuple[TopicPartition, ThreadId]]) -> set[Key]:
        """Return the streams of those of these threads that belong to this member."""
        keys = {(topic, thread) for tp, thread in assigned for topic in (tp.topic, None)}
        return keys.intersection(self._streams)

    def _explain_idle(self) -> None:
        """Give each stream the reason that its time-outs name if it has no partition."""
        wanted = self._keys_for(self.state.assigned.items())
        waiting, held = self.state.waiting_for, held_by(self.state)
        for key, stream in self._streams.items():
            stream.explain(waiting or (held if key in wanted else NO_SHARE))

    # ---- the end ---------------------------------------------------------------------------------

    def fail(self, error: ZkConsumerError) -> None:
        """Stop delivery; `error` ends every stream and answers every waiting commit."""
        self._gate.shut()
        for stream in self._streams.values():
            stream.end(error)
        for answer in self._answers.values():
            answer.set_exception(error)
        self._answers.clear()

    def close(self) -> None:
        """Close the member without a step, because its thread failed.

        This is the one change of phase that the table in `member.phases` does not hold: it is legal
        in every phase, and no event causes it.
        """
        self.state = enter(self.state, Phase.CLOSED)
