"""The thread that runs a member's turns: it takes items from an inbox and gives them to the loop.

The inbox puts all inputs of a member into one order: ZooKeeper's replies and watch events, the
streams' reports, and the user's requests. No other thread writes znodes.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final

from zkconsumer.consumer import commit_requests
from zkconsumer.consumer.commit_requests import CommitAbandoned, CommitRequested
from zkconsumer.consumer.executor import Executor, WatchFired
from zkconsumer.consumer.jvm_log_lines import JvmLogWriter
from zkconsumer.consumer.listener import Callbacks, ConsumerRebalanceListener, ListenerThread
from zkconsumer.consumer.loop import LeaveRequested, MemberLoop, PartitionSinks, SessionChanged
from zkconsumer.consumer.metrics import MemberCounters
from zkconsumer.consumer.status import NoticeLog, TroubleLog
from zkconsumer.consumer.stream_fetcher import ReportKind, StreamReport
from zkconsumer.consumer.stream_partitions import CommitScope, LeaseGate
from zkconsumer.consumer.topic_matcher import match_topics_apart
from zkconsumer.errors import ZkConsumerError
from zkconsumer.kafka.offset_storage import KafkaOffsetStore
from zkconsumer.member import commands as cmd
from zkconsumer.member import events
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import Settings, State
from zkconsumer.protocol.model import Purpose, Session, TopicPartition
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.trace import TraceFile
from zkconsumer.zk.session import ClientDeath, ZooKeeperSession

logger = SafeLogger(logging.getLogger(__name__))

Observer = Callable[[State, events.Event, State, Iterable[cmd.Command]], None]
"""A function that receives each transition: state before, event, state after, commands."""


class Inbox:
    """The member's items in the order of arrival, except that some items overtake all others.

    `overtakes` selects the items that go before all others. Any thread may put an item; only one
    thread at a time may get one.
    """

    def __init__(self, overtakes: Callable[[object], bool]) -> None:
        self._overtakes = overtakes
        self._first: deque[object] = deque()
        self._others: deque[object] = deque()
        # One token for each item. An item is queued before its token, so `get` always finds an
        # item.
        self._counted: queue.SimpleQueue[None] = queue.SimpleQueue()

    def put(self, item: object) -> None:
        """Add an item; never blocks."""
        (self._first if self._overtakes(item) else self._others).append(item)
        self._counted.put(None)

    def get(self, timeout: float | None = None) -> object:
        """Remove the next item; wait at most `timeout` seconds, then raise queue.Empty."""
        self._counted.get(timeout=timeout)
        return (self._first or self._others).popleft()

    def get_nowait(self) -> object:
        """Remove the next item; raise queue.Empty if there is none."""
        return self.get(timeout=0)

    def __len__(self) -> int:
        return len(self._first) + len(self._others)


_JOIN_S: Final = 0.1
"""Longest single `join` of `MemberThread.wait_for_end`, in seconds."""


class MemberThread(threading.Thread):
    """One member's thread, and the `Host` of its loop.

    Attributes:
        counters: event name -> count, as in `ConsumerConnector.metrics`.
        troubles: counts of the failures that streams report. They are not in `counters`, because
            user threads increase them.
        tally: metrics counted from the member's transitions.
        phase_changed: notified when the member's phase has changed, or the member has ended.
        joined: completes when the member is registered; gets the error if the member cannot
            register.
        failure: the error that ended the member; None while it works and after a shutdown.
        still_running: the calls that had not ended in time when the thread ended.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        gate: LeaseGate,
        session: ZooKeeperSession,
        streams: PartitionSinks,
        store: KafkaOffsetStore | None = None,
        trace: TraceFile | None = None,
        listener: ConsumerRebalanceListener | None = None,
        callbacks: Callbacks | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the thread; `start` starts it.

        Args:
            session: sends the requests; its callbacks must call `session_changed`, `watch_fired`
                and `client_died`.
            streams: the streams that serve the member's partitions.
            store: stores offsets in Kafka; None with `offsets.storage=zookeeper`.
            look: looks for streams that nobody reads; called after every turn, until it raises an
                exception.
        """
        super().__init__(name=f"{settings.consumer}-member", daemon=True)
        self.counters: Counter[str] = Counter()
        self.joined: Future[None] = Future()
        self.phase_changed = threading.Condition()
        self._look = look
        self.failure: ZkConsumerError | None = None
        self.still_running: Sequence[str] = ()
        self.clock = gate.clock
        self.troubles = TroubleLog(logger, gate.clock)
        self._settings, self._trace, self._ended = settings, trace, False
        self._session, self._store = session, store
        executor = Executor(
            session,
            settings,
            post=self.post,
            clock=self.clock,
            ask_kafka=store.submit if store else None,
            ask_matcher=match_topics_apart,
        )
        self._loop = MemberLoop(settings, host=self, gate=gate, executor=executor, streams=streams)
        self._inbox = Inbox(self._loop.overtakes)
        self.tally = MemberCounters(lambda: self._loop.positions(CommitScope.DELIVERED))
        # An observer that raises an exception is removed; the member continues.
        self._observers: dict[str, Observer] = {
            "journal": JvmLogWriter(settings.consumer).observe,
            "tally": self.tally.observe,
        }
        if trace is not None:
            self._observers["trace"] = trace.write
        self._log = NoticeLog(logger, settings.consumer, gate.clock)
        self._listener: ListenerThread | None = None
        if listener is not None or callbacks is not None:
            self._listener = ListenerThread(
                listener, settings.consumer, callbacks=callbacks, post=self.post, clock=self.clock
            )

    @property
    def state(self) -> State:
        """The state machine's state, a frozen value; any thread may read it."""
        return self._loop.state

    @property
    def requests(self) -> int:
        """Requests sent to ZooKeeper so far."""
        return self._loop.executor.requests

    # ---- called by any thread; each call only enqueues -------------------------------------------

    def session_changed(self, session: Session | None) -> None:
        self.post(SessionChanged(session))

    def client_died(self, death: ClientDeath) -> None:
        self.post(events.ClientDied(now=self.clock(), reason=death.reason, refused=death.refused))

    def watch_fired(self, kind: str, path: str) -> None:
        self.post(WatchFired(kind, path))

    def stream_reported(self, report: StreamReport) -> None:
        """Handle a stream's report of a changed position or of a failure.

        A changed position becomes an event; a failure is counted and logged. A decoder that always
        fails may report a million failures a second. So the caller's thread counts and logs
        failures, and they do not delay the replies that renew the lease.
        """
        if report.offset is None or report.tp is None:
            self.troubles.add(report)
            return
        if report.kind is ReportKind.POSITION_RESET:  # before a seek, `counting_seek` has counted
            self.tally.count_before_reset(report.tp, self.clock())
        self.tally.reset(report.tp, report.epoch, report.offset)
        self.post(report)

    def counting_seek(self, tp: TopicPartition) -> None:
        """Count the messages before a seek, during which the position of `tp` cannot be read."""
        self.tally.count_before_reset(tp, self.clock())

    def commit(self, asked: CommitRequested) -> Future[None]:
        """Request an explicit commit; the returned future gets its result."""
        self.post(asked)
        if self._ended:  # `_finish` has already refused the earlier items of the inbox
            commit_requests.refuse_late(self._inbox, self._settings.consumer, self.failure)
        return asked.answer

    def give_up(self, asked: CommitRequested) -> None:
        """Drop an explicit commit whose caller timed out, unless the commit is already running."""
        self.post(CommitAbandoned(asked.answer))

    def wait_settled(self, limit_s: float | None) -> bool:
        """Wait until the member has settled or ended, at most `limit_s` s; return whether it has.

        The member's thread must not call it.
        """
        with self.phase_changed:
            return self.phase_changed.wait_for(
                lambda: self._ended or self.state.phase is Phase.SETTLED, limit_s
            )

    def leave(self, purpose: Purpose) -> None:
        self.post(LeaveRequested(purpose))

    def wait_for_end(self, limit_s: float) -> bool:
        """Return whether the member has ended, and wait for at most `limit_s` seconds.

        A signal handler may call this while the thread that it interrupts is in this method.
        `Thread.join` cannot be called so: the inner call waits for a lock that the outer one holds.
        """
        deadline = time.monotonic() + limit_s
        while not self._ended and (left_s := deadline - time.monotonic()) > 0:
            self.join(min(_JOIN_S, left_s))
        if self._ended:
            self.join(_JOIN_S)  # the thread's last lines
        return self._ended

    # ---- the thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start this thread, and the threads of the offset store and of the listener."""
        if self._store is not None:
            self._store.start()
        if self._listener is not None:
            self._listener.start()
        super().start()

    def run(self) -> None:
        try:
            while self.state.phase is not Phase.CLOSED:
                self._turn()
        except BaseException as error:  # noqa: BLE001  # the thread's boundary: users get the error
            self._crashed(error)
        finally:
            self._finish()

    def _turn(self) -> None:
        wait_s = self._loop.due - self.clock()
        try:
            timeout_s = None if wait_s == float("inf") else max(0.0, wait_s)
            item = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            item = None
        self._loop.take(item)
        if not self.joined.done() and self.state.registered:
            self.joined.set_result(None)
        self._look_at_streams()

    def _look_at_streams(self) -> None:
        try:
            self._look()
        except Exception:  # noqa: BLE001  # `_switched_off` logs it
            self._look = lambda: None
            self._switched_off("stuck_streams")

    def _switched_off(self, name: str) -> None:
        """Count and log the exception of a part that only watches the member."""
        self.counters[f"{name}_failed"] += 1
        logger.exception(
            "%s: the %s failed and is switched off; the member continues",
            self._settings.consumer,
            name,
        )

    # ---- the loop's host -------------------------------------------------------------------------

    def post(self, item: object) -> None:
        self._inbox.put(item)

    def wall_ms(self) -> int:
        return int(time.time() * 1000)

    def observe(
        self, before: State, event: events.Event, after: State, commands: tuple[cmd.Command, ...]
    ) -> None:
        for name, observe in tuple(self._observers.items()):
            try:
                observe(before, event, after, commands)
            except Exception:  # noqa: BLE001  # `_switched_off` logs it
                del self._observers[name]
                self._switched_off(name)
        if answered := sum(isinstance(one, cmd.AnswerCommit) for one in commands):
            self.counters["commits"] += answered
        if before.phase is not after.phase:
            name, old, new = self._settings.consumer, before.phase.value, after.phase.value
            logger.debug("%s: %s -> %s", name, old, new)
            self.counters["rebalances"] += after.phase is Phase.READING
            with self.phase_changed:
                self.phase_changed.notify_all()

    def noticed(self, notice: cmd.Notice, error: ZkConsumerError) -> None:
        self.counters[notice.kind.value] += 1
        self._log.write(notice, error)
        if notice.kind is cmd.NoticeKind.DENIED and not self.state.registered:
            self._reject(error)

    def call_listener(self, command: cmd.CallListener) -> None:
        assert self._listener is not None
        if merged := self._listener.call(command):
            self.counters["listener_merged"] += merged

    def recreate_client(self) -> None:
        self._session.recreate()

    def gave_up(self, command: cmd.GiveUp) -> ZkConsumerError:
        death = ClientDeath(command.reason, command.refused)
        self.failure = self._session.death_error(death).mark_fatal()
        self._reject(self.failure)
        logger.error("%s: the member ends: %s", self._settings.consumer, self.failure)
        return self.failure

    def translate(self, item: object) -> events.Event | None:
        if not isinstance(item, StreamReport):
            raise TypeError(f"unknown item: {item!r}")
        self.counters[item.kind.value] += 1
        logger.debug("%s: %s %s", item.thread_id, item.tp or "", item.text)
        if item.tp and item.offset is not None:
            return events.PositionReset(
                now=self.clock(), partition=item.tp, epoch=item.epoch, offset=item.offset
            )
        return None

    # ---- the end ---------------------------------------------------------------------------------

    def _reject(self, error: Exception) -> None:
        if not self.joined.done():
            self.joined.set_exception(error)

    def _crashed(self, error: BaseException) -> None:
        """End the member after an exception in its own code, which is a bug."""
        failure = ZkConsumerError(
            f"the member's thread stopped: {type(error).__name__}: {error}",
            where=self._settings.consumer,
            remedy="create a new connector; please report this",
        ).mark_fatal()
        failure.__cause__ = error
        self._fail(failure)
        self._loop.close()
        logger.error("%s: the member's thread failed", self._settings.consumer, exc_info=error)

    def _fail(self, error: ZkConsumerError) -> None:
        """End the member: `error` ends every stream and answers every waiting call."""
        self.failure = error
        self._reject(error)
        self._loop.fail(error)

    def _finish(self) -> None:
        """End the session, and then all other parts of the member.

        The session ends first, so that other members can claim the partitions. Each step has its
        own time limit; `still_running` names the steps that have not ended in time.
        """
        ends: list[Callable[[], None]] = [self._session.stop]
        ends += [self._store.stop] if self._store is not None else []
        ends += [one.close for one in (self._trace, self._listener) if one is not None]
        for end in ends:
            try:
                end()
            except Exception:
                logger.exception("%s: a step of the shutdown failed", self._settings.consumer)
        listener = self._listener
        running = {
            "the connection to ZooKeeper": self._session.is_ending,
            "a request for offsets in Kafka": self._store is not None and self._store.is_alive(),
            "a call of the rebalance listener": listener is not None and listener.is_calling,
        }
        self.still_running = [what for what, is_running in running.items() if is_running]
        self._ended = True
        with self.phase_changed:
            self.phase_changed.notify_all()
        commit_requests.refuse_late(self._inbox, self._settings.consumer, self.failure)
