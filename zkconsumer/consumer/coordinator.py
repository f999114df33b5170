"""The one thread that decides and writes: it drains an inbox, steps the machine, runs its commands.

Everything that happens to a member comes through the inbox, in one order: ZooKeeper's replies and
watches, what the streams report, what the user asks. Nothing else writes coordination znodes.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from zkconsumer.consumer import commits
from zkconsumer.consumer.commits import CommitAsked
from zkconsumer.consumer.gate import LeaseGate
from zkconsumer.consumer.holdings import Grant, Outlet, Which
from zkconsumer.consumer.journal import Journal
from zkconsumer.consumer.listener import ConsumerRebalanceListener, ListenerThread
from zkconsumer.consumer.metrics import Tally
from zkconsumer.consumer.notices import FOR_IDLE, NO_SHARE, NoticeLog, error_for, held_by
from zkconsumer.consumer.stream import StreamReport
from zkconsumer.core import commands as cmd
from zkconsumer.core import events
from zkconsumer.core.machine import awaits, next_deadline, step
from zkconsumer.core.model import Positions, Purpose, Session, ThreadId, TopicPartition
from zkconsumer.core.state import Phase, Settings, State
from zkconsumer.errors import NotOwnedError, ZkConsumerError
from zkconsumer.kafka.offsets import KafkaOffsetStore
from zkconsumer.trace import TraceFile
from zkconsumer.zk.executor import Executor, Resume, WatchFired, meaning
from zkconsumer.zk.session import ZooKeeperSession

logger = logging.getLogger(__name__)

Outlets = Mapping[tuple[str | None, str], Outlet]
"""As `Streams`: by topic, or None, and consumer thread id."""

_WHICH = {
    Purpose.AUTO: Which.FINISHED,
    Purpose.RELEASE: Which.FINISHED,
    Purpose.EXPLICIT: Which.DELIVERED,
    Purpose.LEAVE: Which.DELIVERED,
}


@dataclass(frozen=True, slots=True)
class _SessionChanged:
    session: Session | None


@dataclass(frozen=True, slots=True)
class _LeaveAsked:
    purpose: Purpose


class Coordinator(threading.Thread):
    """One member's decisions.

    Attributes:
        state: the machine's state, a frozen value: any thread may read it.
        counters: how often what happened; names as in `ConsumerConnector.metrics`.
        tally: what is counted of its transitions.
        joined: done when the member is registered; holds the error when it cannot be.
    """

    def __init__(
        self, settings: Settings, *, gate: LeaseGate, trace: TraceFile | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        super().__init__(name=f"{settings.consumer}-coordinator", daemon=True)
        self.state = State(settings)
        self.counters: Counter[str] = Counter()
        self.joined: Future[None] = Future()
        self.tally = Tally(lambda: self._positions(Which.DELIVERED))
        self._observers = (Journal(settings.consumer).observe, self.tally.observe)
        self._settings, self._gate, self._trace = settings, gate, trace
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._listener = None if listener is None else ListenerThread(
            listener, settings.consumer, post=self._inbox.put, clock=gate.clock
        )
        self._streams: Outlets = {}
        self._answers: dict[int, Future[None]] = {}
        self._refused: set[Outlet] = set()  # told of a refusal since they had a partition
        self._last_request, self._ended = 0, False
        self._log = NoticeLog(logger, settings.consumer, gate.clock)
        self._session: ZooKeeperSession | None = None
        self._store: KafkaOffsetStore | None = None
        self._executor: Executor | None = None

    def attach(
        self, session: ZooKeeperSession, streams: Outlets, store: KafkaOffsetStore | None = None
    ) -> None:
        """Give it the session whose events it gets and the streams it feeds; then `start` it.

        `store` keeps offsets in Kafka, None with `offsets.storage=zookeeper`.
        """
        self._session, self._streams, self._store = session, streams, store
        self._executor = Executor(
            session, self._settings, post=self._inbox.put, clock=self._gate.clock,
            ask_kafka=store.submit if store else None,
        )
        if store is not None:
            store.start()

    @property
    def requests(self) -> int:
        """Requests sent to ZooKeeper so far."""
        return self._executor.requests if self._executor else 0

    # ---- any thread: only enqueues ---------------------------------------------------------------

    def session_changed(self, session: Session | None) -> None:
        self._inbox.put(_SessionChanged(session))

    def watch_fired(self, kind: str, path: str) -> None:
        self._inbox.put(WatchFired(kind, path))

    def stream_reported(self, report: StreamReport) -> None:
        self._inbox.put(report)

    def commit(self, asked: CommitAsked) -> Future[None]:
        """Ask for an explicit commit."""
        self._inbox.put(asked)
        if self._ended:  # who asks before that is heard by `_finish`
            commits.refuse_late(self._inbox, self._settings.consumer)
        return asked.answer

    def leave(self, purpose: Purpose) -> None:
        self._inbox.put(_LeaveAsked(purpose))

    # ---- the thread ------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            while self.state.phase is not Phase.CLOSED:
                self._turn()
        except Exception as error:  # the thread's boundary: it must not die unnoticed
            logger.exception("coordinator of %s failed", self._settings.consumer)
            self._fail(error)
        finally:
            self._finish()

    def _turn(self) -> None:
        wait_s = next_deadline(self.state) - self._gate.clock()
        try:
            timeout_s = None if wait_s == float("inf") else max(0.0, wait_s)
            item = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            item = None
        now = self._gate.clock()
        event = self._event(item, now) if item is not None else events.Tick(now=now)
        if event is not None:
            self._step(event)
        # A busy inbox must not keep the lease from being renewed.
        if item is not None and next_deadline(self.state) <= self._gate.clock():
            self._step(events.Tick(now=self._gate.clock()))

    def _event(self, item: Any, now: float) -> events.Event | None:
        match item:
            case events.Event():
                return item
            case Resume():
                assert self._executor is not None
                if not awaits(self.state, item.op):
                    item.running.close()
                    return None
                return self._executor.resume(item)
            case WatchFired():
                return meaning(item, self._settings, now)
            case StreamReport():
                return self._reported(item, now)
            case _SessionChanged(session) if session is None:
                return events.Suspended(now=now)
            case _SessionChanged(Session() as session):
                wall_ms = int(time.time() * 1000)
                return events.Connected(now=now, session=session, wall_ms=wall_ms)
            case CommitAsked():
                return self._commit_asked(item, now)
            case _LeaveAsked(purpose):
                return events.CloseRequested(now=now, purpose=purpose)
        raise TypeError(f"nothing known of {item!r}")

    def _commit_asked(self, asked: CommitAsked, now: float) -> events.Event | None:
        request = self._last_request = self._last_request + 1
        try:
            if asked.given is None:
                event = self._collected(Purpose.EXPLICIT, None, request)
            else:
                owned = self.state.owned
                event = commits.positions_given(asked.given, owned, request=request, now=now)
        except NotOwnedError as error:
            asked.answer.set_exception(error)
            return None
        self._answers[request] = asked.answer
        return replace(event, retries=asked.retries)

    def _reported(self, report: StreamReport, now: float) -> events.Event | None:
        self.counters[report.kind.value] += 1
        log = logger.debug if report.offset is not None else logger.warning
        log("%s: %s %s", report.thread_id, report.tp or "", report.text)
        if report.tp and report.offset is not None:
            return events.PositionReset(now=now, partition=report.tp, offset=report.offset)
        return None

    def _step(self, event: events.Event) -> None:
        before = self.state
        self.state, commands = step(before, event)
        self._write_trace(before, event, commands)
        for observe in self._observers:
            observe(before, event, self.state, commands)
        if before.phase is not self.state.phase:
            self._entered(before.phase, self.state.phase)
        for command in commands:
            self._run(command)
        if not self.joined.done() and self.state.registered:
            self.joined.set_result(None)

    def _write_trace(
        self, before: State, event: events.Event, commands: Iterable[cmd.Command]
    ) -> None:
        """A trace that cannot be written on (disk full) ends; the member does not."""
        if self._trace is None:
            return
        try:
            self._trace.write(before, event, self.state, commands)
        except OSError as error:
            logger.error("%s: the trace ends here: %s", self._settings.consumer, error)
            self.counters["trace_failed"] += 1
            self._trace = None

    def _entered(self, before: Phase, now: Phase) -> None:
        logger.debug("%s: %s -> %s", self._settings.consumer, before.value, now.value)
        self.counters["rebalances"] += now is Phase.READING
        if now in (Phase.SETTLED, Phase.WAITING):
            self._explain_idle()

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
                pass  # `_finish` ends the session
            case cmd.CallListener():
                assert self._listener is not None
                self._listener.call(command)
            case _:
                assert self._executor is not None and self.state.session is not None
                self._executor.start(command, self.state.session.id)

    def _run_on_streams(self, command: cmd.Command) -> None:
        match command:
            case cmd.StartFetching(grants):
                for stream, given in self._by_stream(grants).items():
                    self._refused.discard(stream)
                    stream.grant([Grant(tp, grants[tp][1], grants[tp][0].epoch) for tp in given])
            case cmd.Withdraw(partitions):
                for (topic, _), stream in self._streams.items():
                    stream.withdraw([tp for tp in partitions if topic in (None, tp.topic)])
            case cmd.AskRelease(partitions):
                for stream, asked in self._by_stream(partitions).items():
                    stream.ask_release(asked, self._on_released(frozenset(asked)))

    def _by_stream(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[Outlet, list[TopicPartition]]:
        groups: dict[Outlet, list[TopicPartition]] = {}
        for tp in partitions:
            stream = self._stream_of(tp.topic, self.state.owned[tp].thread)
            groups.setdefault(stream, []).append(tp)
        return groups

    def _stream_of(self, topic: str, thread: ThreadId) -> Outlet:
        return self._streams.get((topic, thread)) or self._streams[None, thread]

    def _on_released(self, partitions: frozenset[TopicPartition]) -> Callable[[], None]:
        def done() -> None:
            self._inbox.put(events.ReleaseReady(now=self._gate.clock(), partitions=partitions))

        return done

    def _collected(
        self, purpose: Purpose, only: frozenset[TopicPartition] | None, request: int
    ) -> events.PositionsCollected:
        found = self._positions(_WHICH[purpose])
        chosen = {tp: at for tp, at in found.items() if only is None or tp in only}
        return events.PositionsCollected(
            now=self._gate.clock(), purpose=purpose, positions=chosen, request=request
        )

    def _positions(self, which: Which) -> Positions:
        return {tp: at for one in self._streams.values() for tp, at in one.positions(which).items()}

    def _answer(self, request: int, failures: Mapping[TopicPartition, str]) -> None:
        answer = self._answers.pop(request)
        self.counters["commits"] += 1
        if not failures:
            answer.set_result(None)
            return
        answer.set_exception(commits.failed(failures))

    def _notice(self, notice: cmd.Notice) -> None:
        self.counters[notice.kind.value] += 1
        error = error_for(notice)
        self._log.write(notice, error)
        if notice.kind is cmd.NoticeKind.DENIED and not self.state.registered:
            self._reject(error)
        if notice.kind is cmd.NoticeKind.OFFSET_MALFORMED:
            self._tell(self._streams_of(notice.where), error)
        elif notice.kind is cmd.NoticeKind.DENIED:
            # Tried again after every back-off, for each partition: a stream hears of the first.
            news = [stream for stream in self._idle_streams() if stream not in self._refused]
            self._refused.update(news)
            self._tell(news, error)
        elif notice.kind is cmd.NoticeKind.BLOCKED:
            wanted = self.state.wanted
            waiting = self._streams_for((tp, wanted.get(tp, "")) for tp in self.state.blocked)
            self._tell([s for s in self._idle_streams() if s in waiting], error)
        elif notice.kind in FOR_IDLE:
            self._tell(self._idle_streams(), error)

    def _streams_of(self, partition: str) -> list[Outlet]:
        """The stream that owns a partition, given as in a notice."""
        return [
            self._stream_of(tp.topic, mine.thread)
            for tp, mine in self.state.owned.items()
            if str(tp) == partition
        ]

    def _reject(self, error: Exception) -> None:
        if not self.joined.done():
            self.joined.set_exception(error)

    def _tell(self, streams: Iterable[Outlet], error: ZkConsumerError) -> None:
        for stream in streams:
            stream.fail(error)

    def _idle_streams(self) -> list[Outlet]:
        busy = self._streams_for((tp, mine.thread) for tp, mine in self.state.owned.items())
        return [stream for stream in self._streams.values() if stream not in busy]

    def _streams_for(
        self, assigned: Iterable[tuple[TopicPartition, ThreadId]]
    ) -> set[Outlet]:
        """The streams of these threads of ours; of other members' threads, none."""
        keys = {(topic, thread) for tp, thread in assigned for topic in (tp.topic, None)}
        return {self._streams[key] for key in keys if key in self._streams}

    def _explain_idle(self) -> None:
        """A stream without a partition says why in its time-outs."""
        wanted = self._streams_for(self.state.wanted.items())
        waiting, held = self.state.waiting_for, held_by(self.state)
        for stream in self._streams.values():
            stream.explain(waiting or (held if stream in wanted else NO_SHARE))

    # ---- the end ---------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        """Nothing silent: what ended this thread reaches every iterator and every waiting call."""
        told = ZkConsumerError(
            f"the coordinator stopped: {type(error).__name__}: {error}",
            where=self._settings.consumer, remedy="create a new connector; please report this",
        )
        self._gate.shut()
        self._reject(told)
        for stream in self._streams.values():
            stream.fail(told)
        for answer in self._answers.values():
            answer.set_exception(told)
        self._answers.clear()
        self.state = replace(self.state, phase=Phase.CLOSED)

    def _finish(self) -> None:
        for one in (self._session, self._store):
            if one is not None:
                one.stop()
        if self._trace is not None:
            self._trace.close()
        if self._listener is not None:
            self._listener.close()
        self._ended = True
        commits.refuse_late(self._inbox, self._settings.consumer)
