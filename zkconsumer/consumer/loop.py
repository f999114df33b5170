"""The turns of a member: take an item, step the state machine, run commands, handle deadlines.

The member's thread runs a `MemberLoop`, and so does the simulator. The loop has no thread,
inbox or clock; a `Host` provides them.

The order within a turn:

1. The item becomes at most one event. A turn without an item is a `Tick`.
2. The machine steps. Observers see the transition. Then the commands run in their order. A command
   that produces an event (`CollectPositions`) steps the state machine at once; the commands of that
   nested step run before the remaining commands of the outer step.
3. As long as a deadline has passed, the machine steps with another `Tick`. So a busy inbox delays
   neither a renewal of the lease nor the end of a back-off. One `Tick` handles one deadline of a
   phase; a member that was frozen may have missed several deadlines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from zkconsumer.consumer import commit_requests
from zkconsumer.consumer.commit_requests import Answer, CommitAbandoned, CommitRequested
from zkconsumer.consumer.executor import Executor, Resume, WatchFired, event_of_watch
from zkconsumer.consumer.status import FOR_IDLE, NO_SHARE, error_for, held_by
from zkconsumer.consumer.stream_partitions import CommitScope, Grant, PartitionSink
from zkconsumer.errors import NotOwnedError, ZkConsumerError
from zkconsumer.frozen import dataclass
from zkconsumer.member import commands as cmd
from zkconsumer.member import events
from zkconsumer.member.machine import awaits, next_deadline, step
from zkconsumer.member.offset_ledger import Commit
from zkconsumer.member.phases import Phase
from zkconsumer.member.rebalance import abort
from zkconsumer.member.state import Settings, State
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
    Purpose.AUTO: CommitScope.FINISHED,
    Purpose.RELEASE: CommitScope.FINISHED,
    Purpose.LOST: CommitScope.FINISHED,
    Purpose.EXPLICIT: CommitScope.DELIVERED,
    Purpose.LEAVE: CommitScope.DELIVERED,
}


TICKS_PER_TURN = 8
"""Upper bound of the number of `Tick`s in a turn; later turns handle the remaining deadlines.

The state has nine deadlines, and at most three of them need their own `Tick`. The bound keeps the
thread working if a `Tick` ever leaves its deadline in the past.
"""


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The connection's state changed: connected in `session`, or disconnected (None)."""

    session: Session | None


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The user shuts the member down."""

    purpose: Purpose


@dataclass(frozen=True, slots=True)
class ReleaseDone:
    """Posts the event that the user has finished all messages of `partitions`.

    Any thread may call the callback, at any time: see `events.ReleaseReady`.
    """

    partitions: Mapping[TopicPartition, Ownership]
    host: Host

    def __call__(self) -> None:
        now = self.host.clock()
        self.host.post(events.ReleaseReady(now=now, partitions=self.partitions))


@dataclass(frozen=True, slots=True)
class _OwningStreams:
    """The streams that own partitions, by the partition's name and as a set."""

    owned: Mapping[TopicPartition, Ownership]
    by_name: Mapping[str, Key]
    busy: frozenset[Key]


class Gate(Protocol):
    """The part of `LeaseGate` that a turn uses."""

    def open(self, deadline: float) -> None: ...
    def shut(self) -> None: ...


class Host(Protocol):
    """Provides time and an inbox to a `MemberLoop`, and observes it."""

    def clock(self) -> float:
        """Return the lease clock's time in seconds."""

    def wall_ms(self) -> int:
        """Return the wall clock's time in milliseconds since 1970, for registrations."""

    def post(self, item: object) -> None:
        """Put an item into the inbox; any thread may call it."""

    def observe(
        self, before: State, event: events.Event, after: State, commands: tuple[cmd.Command, ...]
    ) -> None:
        """Observe a transition, before its commands run."""

    def noticed(self, notice: cmd.Notice, error: ZkConsumerError) -> None:
        """Log and count a notice; `error` is the error that streams raise for it."""

    def call_listener(self, command: cmd.CallListener) -> None:
        """Call the user's rebalance listener; post an event when the call returns."""

    def recreate_client(self) -> None:
        """Replace the dead ZooKeeper client with a new one; return at once."""

    def gave_up(self, command: cmd.GiveUp) -> ZkConsumerError:
        """Return the error with which every stream and every waiting call ends."""

    def translate(self, item: object) -> events.Event | None:
        """Return the event of an item that the loop does not know.

        Raises:
            TypeError: the host does not know the item either.
        """


class MemberLoop:
    """One member: the state of its state machine, its operations and its streams.

    Attributes:
        state: the state machine's state, a frozen value; any thread may read it.
        due: when the next turn is due without an item, in seconds of the lease's clock; infinity if
            no deadline is set.
        executor: runs the state machine's ZooKeeper commands.
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
        self._commit_answers: dict[int, Answer] = {}
        self._last_request = 0
        # Streams that have received the error of a refusal since they last had a partition.
        self._refusal_reported: set[Key] = set()
        self._refusal_owned: Mapping[TopicPartition, Ownership] | None = None
        # A cache computed from `owned` for the notices of one step; `_owning_streams` updates it.
        self._owning = _OwningStreams(self.state.owned, {}, frozenset())

    # ---- a turn ----------------------------------------------------------------------------------

    def take(self, item: object | None) -> None:
        """Take one turn with the next item of the inbox; None if no item came before `due`."""
        now = self._host.clock()
        event = events.Tick(now=now) if item is None else self._event(item, now)
        if event is not None:
            self._step(event)
        for _ in range(TICKS_PER_TURN):
            if self.due > (now := self._host.clock()):
                return
            self._step(events.Tick(now=now))

    def overtakes(self, item: object) -> bool:
        """Return whether this item must be handled before all others; any thread may call it.

        Only the reply to the `sync` that renews the lease overtakes other items. This reply proves
        that ZooKeeper's leader knew the session when the `sync` was sent; later events do not
        change this fact. The renewed lease ends two thirds of a session timeout after the `sync`
        was sent.
        """
        if not isinstance(item, Resume):
            return False
        running = self.executor.running.get(item.ticket)
        return running is not None and running.op == self.state.lease.op

    def _event(self, item: object, now: float) -> events.Event | None:
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
            case CommitRequested():
                return self._commit_asked(item, now)
            case CommitAbandoned(answer):
                request = next((n for n, one in self._commit_answers.items() if one is answer), 0)
                if not self._commit_answers.pop(request, None):
                    return None  # the commit was answered meanwhile
                return events.CommitTimedOut(now=now, request=request)
            case LeaveRequested(purpose):
                return events.CloseRequested(now=now, purpose=purpose)
        return self._host.translate(item)

    def _commit_asked(self, asked: CommitRequested, now: float) -> events.Event | None:
        request = self._last_request = self._last_request + 1
        try:
            if asked.given is None:
                event = self._collected(Purpose.EXPLICIT, None, request)
            else:
                owned = self.state.owned
                event = commit_requests.commit_event(asked, owned, request=request, now=now)
        except NotOwnedError as error:
            asked.answer.set_exception(error)
            return None
        self._commit_answers[request] = asked.answer
        return replace(event, commit=replace(event.commit, retries=asked.retries))

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
                pass  # the host ends the session when the phase is CLOSED
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
                assert self.state.session is not None
                session = self.state.session.id
                for key, given in self._by_stream(grants).items():
                    self._refusal_reported.discard(key)
                    self._streams[key].grant(
                        [Grant(tp, grants[tp][1], grants[tp][0].epoch, session) for tp in given]
                    )
            case cmd.Withdraw(partitions):
                for (topic, _), stream in self._streams.items():
                    stream.withdraw([tp for tp in partitions if topic in (None, tp.topic)])
            case cmd.AskRelease(partitions):
                for key, asked in self._by_stream(partitions).items():
                    under = {tp: self.state.owned[tp] for tp in asked}
                    self._streams[key].ask_release(asked, ReleaseDone(under, self._host))

    def _by_stream(self, partitions: Iterable[TopicPartition]) -> dict[Key, list[TopicPartition]]:
        groups: dict[Key, list[TopicPartition]] = {}
        for tp in sorted(partitions):  # sorted, so that the simulator's runs are reproducible
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
        commit = Commit(purpose, chosen, requests=(request,) if request else ())
        return events.PositionsCollected(now=self._host.clock(), commit=commit)

    def positions(self, which: CommitScope) -> Positions:
        """Return the streams' positions; any thread may call it."""
        return {tp: at for one in self._streams.values() for tp, at in one.positions(which).items()}

    def _answer(self, request: int, failures: Mapping[TopicPartition, str]) -> None:
        answer = self._commit_answers.pop(request, None)
        if answer is None:
            return  # the caller has reached its timeout, or `fail` has answered
        if failures:
            answer.set_exception(commit_requests.commit_error(failures))
        else:
            answer.set_result(None)

    # ---- errors and reasons for the streams ------------------------------------------------------

    def _notice(self, notice: cmd.Notice) -> None:
        error = error_for(notice)
        self._host.noticed(notice, error)
        if notice.kind is cmd.NoticeKind.OFFSET_MALFORMED:
            self._fail_streams(self._owners_of(notice.where), error)
        elif notice.kind is cmd.NoticeKind.DENIED or (
            # Without a view the member has never joined, and `create_message_streams` still waits.
            notice.kind is cmd.NoticeKind.ID_TAKEN and self.state.view is not None
        ):
            # The state machine repeats the notice after every back-off and for each partition. A
            # stream gets only the first notice until `owned` changes, because the stream stays idle
            # until then.
            if self._refusal_owned is self.state.owned:
                return
            self._refusal_owned = self.state.owned
            new = [key for key in self._idle_streams() if key not in self._refusal_reported]
            self._refusal_reported.update(new)
            self._fail_streams(new, error)
        elif notice.kind is cmd.NoticeKind.BLOCKED:
            wanted = self.state.assigned
            waiting = self._keys_for(
                (tp, wanted.get(tp, "")) for tp in self.state.blocked.partitions
            )
            self._fail_streams([key for key in self._idle_streams() if key in waiting], error)
        elif notice.kind in FOR_IDLE:
            self._fail_streams(self._idle_streams(), error)

    def _owning_streams(self) -> _OwningStreams:
        """Return the streams that own partitions, from a cache that is valid for one `owned`.

        A refusal may concern thousands of partitions, and one step has a notice for each.
        """
        owned = self.state.owned
        if self._owning.owned is not owned:
            keys = {str(tp): self._key_of(tp.topic, mine.thread) for tp, mine in owned.items()}
            self._owning = _OwningStreams(owned, keys, frozenset(keys.values()))
        return self._owning

    def _owners_of(self, partition: str) -> list[Key]:
        """Return the key of the stream that owns the partition with this name in a notice."""
        key = self._owning_streams().by_name.get(partition)
        return [] if key is None else [key]

    def _fail_streams(self, keys: Iterable[Key], error: ZkConsumerError) -> None:
        for key in keys:
            self._streams[key].fail(error)

    def _idle_streams(self) -> list[Key]:
        busy = self._owning_streams().busy
        return [key for key in self._streams if key not in busy]

    def _keys_for(self, assigned: Iterable[tuple[TopicPartition, ThreadId]]) -> set[Key]:
        """Return the keys of this member's streams for these assigned threads."""
        keys = {(topic, thread) for tp, thread in assigned for topic in (tp.topic, None)}
        return keys.intersection(self._streams)

    def _explain_idle(self) -> None:
        """Set the reason that a timeout error gives for a stream without a partition."""
        wanted = self._keys_for(self.state.assigned.items())
        waiting, held = self.state.waiting_for, held_by(self.state)
        blocked = self.state.blocked
        lacking = self._keys_for((tp, self.state.assigned.get(tp, "")) for tp in blocked.partitions)
        for key, stream in self._streams.items():
            shortfall = blocked.reason if key in lacking else ""
            stream.explain(waiting or (held if key in wanted else NO_SHARE), shortfall)

    # ---- the end ---------------------------------------------------------------------------------

    def fail(self, error: ZkConsumerError) -> None:
        """Stop delivery; `error` ends every stream and answers every waiting commit."""
        self._gate.shut()
        for stream in self._streams.values():
            stream.end(error)
        for answer in self._commit_answers.values():
            answer.set_exception(error)
        self._commit_answers.clear()

    def close(self) -> None:
        """End the loop, in any phase of the member, after an exception in its own code."""
        self.state, calls = abort(self.state)
        for command in calls:
            self._run(command)
