"""A stream: the iterator of one consumer thread's messages, with pause and seek.

A stream corresponds to Kafka's `kafka.consumer.KafkaStream` and `ConsumerIterator` (0.8.0 to 1.1).
The JVM's old consumer can neither pause nor seek. Only the user's thread uses the stream's broker
client. `stream_partitions` describes how the member's thread revokes a partition while the user's
thread hands out messages.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from copy import copy
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, cast

from zkconsumer.consumer.messages import Batch, Message, Part
from zkconsumer.consumer.stream_fetcher import (
    Background,
    ReportKind,
    StreamFetcher,
    StreamReport,
    inline,
)
from zkconsumer.consumer.stream_partitions import (
    Codec,
    CommitScope,
    Decoded,
    Grant,
    GrantedPartition,
    LeaseGate,
    Place,
    StreamPartitions,
)
from zkconsumer.errors import (
    ConfigError,
    ConnectorClosedError,
    ConsumerTimeoutError,
    NotOwnedError,
    StreamInUseError,
    ZkConsumerError,
)
from zkconsumer.kafka.engines import RunFetcher
from zkconsumer.kafka.fetcher import (
    BUFFER_MESSAGES,
    TURN_S,
    AutoOffsetReset,
    Fetcher,
    MessageRun,
    Run,
)
from zkconsumer.protocol import arguments
from zkconsumer.protocol.model import Position, TopicPartition

__all__ = [
    "BUFFER_MESSAGES",
    "CommitScope",
    "Grant",
    "ReportKind",
    "Stream",
    "StreamReader",
    "StreamReport",
    "Streams",
]

if TYPE_CHECKING:
    import pyarrow

K = TypeVar("K")
V = TypeVar("V")

# Default upper bound of the number of messages that one `poll_arrow` returns. The reader fills its
# batches up to this number.
ARROW_MESSAGES: Final = 20_000


def to_arrow() -> ModuleType:
    """Return the module that makes Arrow record batches; raise ConfigError without pyarrow."""
    try:
        from zkconsumer.consumer import arrow_batches  # noqa: PLC0415 - see the error
    except ImportError as error:
        raise ConfigError(
            f"messages cannot be returned as columns: {error}",
            where="poll_arrow",
            remedy="install zkconsumer[fast], or zkconsumer[arrow] without the compiled reader",
        ) from error
    return arrow_batches


class StreamReader(Generic[K, V]):
    """The reader behind a `Stream`; the connector, the member's thread and asyncio streams use it.

    Attributes:
        user: the thread that has last asked for a message; None if no thread has.
    """

    _fork_error: ZkConsumerError | None = None  # set in the child process of a fork
    as_columns = False  # whether the user's last call asked for columns
    # Whether an exception may have lost fetched messages; the next call fetches them again.
    _is_interrupted = False
    user: threading.Thread | None = None
    _waits = 0  # number of calls of `wait`
    _iterations = 0  # number of generators of `ready` that have started and not ended
    _iterator: Iterator[Message[K, V]] | None = None

    def __init__(
        self,
        *,
        topic: str | None,
        thread_id: str,
        number: int,
        gate: LeaseGate,
        connect: Callable[[], Fetcher | None],
        connect_columns: Callable[[], RunFetcher | None] | None = None,
        brokers_moved: Callable[[], bool] = lambda: False,
        reset: AutoOffsetReset,
        timeout_s: float | None,
        retry_s: float,
        codec: Codec[K, V],
        report: Callable[[StreamReport], None],
        background: Background = inline,
        turn_s: float = TURN_S,
        on_error: Callable[[ZkConsumerError], object] | None = None,
    ) -> None:
        """Create a stream; only the connector does this.

        Args:
            gate: the member's lease. Its `clock` measures all timeouts and pauses.
            connect: makes the fetcher when the first partition is granted; returns None while no
                broker is registered.
            connect_columns: like `connect`, for `poll_arrow`; None: messages are converted.
            brokers_moved: whether all brokers have moved; called if none can be reached.
            timeout_s: `consumer.timeout.ms`, in seconds; None waits without a limit.
            retry_s: back-off after a failed look-up, in seconds (`refresh.leader.backoff.ms`).
            report: receives the stream's reports. It must only enqueue them.
            background: runs `connect` and `brokers_moved`, for which the user's thread never waits.
            turn_s: maximum duration of one call of the fetcher's `consume`, in seconds.
            on_error: gets each error that does not end the member; None: the stream raises it.
        """
        self.topic = topic
        self.thread_id = thread_id
        self.number = number
        self._gate = gate
        self.timeout_s = timeout_s
        self._report = report
        self._partitions = StreamPartitions(codec)
        self._fetcher = StreamFetcher(
            topic=topic,
            thread_id=thread_id,
            partitions=self._partitions,
            connect=connect,
            connect_columns=connect_columns,
            brokers_moved=brokers_moved,
            reset=reset,
            retry_s=retry_s,
            report=report,
            clock=gate.clock,
            background=background,
            turn_s=turn_s,
        )
        self._turn_s = turn_s
        self._on_error = on_error
        self._in_use = threading.Lock()  # held while a thread uses the stream

    def __repr__(self) -> str:
        return f"Stream({self.topic!r}, {self.thread_id!r})"

    # ---- called by the user ----------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message[K, V]]:
        """Iterate the messages.

        The iteration ends when the connector is shut down. If an error ends the member, the
        iteration raises it once and then ends. It raises ConsumerTimeoutError after
        `consumer.timeout.ms` without a message (JVM: ConsumerTimeoutException). It also raises
        FetchError, RebalanceBlockedError and other errors. Iterate again to continue after an
        error.
        """
        return itertools.chain.from_iterable(_Iteration(self))

    def __next__(self) -> Message[K, V]:
        self._check_caller()  # an error for a second thread must not end the first one's iterator
        if self._iterator is None:
            self._iterator = iter(self)
        try:
            return next(self._iterator)
        except BaseException:
            self._iterator = None
            raise

    def poll(
        self, *, max_messages: int = BUFFER_MESSAGES, timeout_s: float | None = 0.5
    ) -> Batch[K, V]:
        arguments.count(max_messages)
        limit_s = arguments.time_limit(timeout_s)
        try:
            self.as_columns = False
            if self.wait(limit_s, max_messages):
                return self.take(max_messages)
        except ConsumerTimeoutError:
            return self.take(0)
        raise self.closed_error()

    def poll_arrow(
        self, *, max_messages: int = ARROW_MESSAGES, timeout_s: float | None = 0.5
    ) -> pyarrow.RecordBatch:
        arguments.count(max_messages)
        limit_s = arguments.time_limit(timeout_s)
        to_arrow()
        try:
            self.as_columns = self.has_columns
            if self.wait(limit_s, max_messages):
                return self.take_arrow(max_messages)
        except ConsumerTimeoutError:
            return self.take_arrow(0)
        raise self.closed_error()

    # ---- waiting, then handing out ---------------------------------------------------------------

    def wait(self, timeout_s: float | None, max_messages: int) -> bool:
        """Wait until a message can be handed out; return False when the stream is closed.

        When it returns True, it has just found the lease valid, and the user has finished every
        message that was handed out before.
        """
        self._check_caller()
        self.user = threading.current_thread()
        self._waits += 1
        try:
            # `with` is necessary: a signal handler can run between a call of `acquire` and the next
            # line, but not between the start of `with` and its block. This thread waits for the
            # lock only while `close` closes the fetcher.
            with self._in_use:
                return self._wait_on(timeout_s, max_messages)
        except ZkConsumerError:
            raise
        except BaseException:
            # A KeyboardInterrupt may have discarded messages that the broker client had just
            # returned. Fetch again after the last message that was handed out.
            self._is_interrupted = True
            raise
        finally:
            if self.closed:
                self._close_if_unused()

    def _check_caller(self) -> None:
        """Raise ForkedError in a fork, and StreamInUseError while another thread waits."""
        if self._fork_error is not None:
            raise copy(self._fork_error)
        if self._in_use.locked() and not self.closed:
            raise StreamInUseError(
                "a stream was asked for messages by two threads at once",
                where=self.thread_id,
                remedy="give each thread its own stream",
            )

    def ready(self) -> Generator[Message[K, V], None, None]:
        """Hand out the fetched messages one by one; stop at a change or at the end of the lease."""
        self._iterations += 1
        gate, partitions = self._gate, self._partitions
        clock = gate.clock
        try:
            while (unread := self._fetcher.first()) is not None:
                run = cast(MessageRun, unread.run)  # as in `take`
                state = self._fetcher.states[run.tp]
                unread.is_iterated = True
                for number in unread.numbers:
                    state.unfinished = None  # FINISH
                    if partitions.has_changed or clock() >= gate.deadline:  # LOOK
                        unread.give_back(number)
                        return
                    message: Message[K, V] = Message()  # as `made` does; a call would cost more
                    message._run = run
                    message._number = number
                    message._held = state
                    state.unfinished = message  # MARK
                    if not state.granted:  # CONFIRM
                        state.unfinished = None
                        continue
                    state.last = message
                    yield message
                # The next run may be of another partition, whose CONFIRM does not read this grant:
                # only the LOOK after this step finds a release of this partition.
                state.unfinished = None  # FINISH
                if (last := state.last) is not None:
                    state.last = Place(last.offset)  # keeps no memory of the run
        except GeneratorExit:
            raise
        except BaseException:
            self._redeliver()
            raise
        finally:
            self._iterations -= 1

    @property
    def has_columns(self) -> bool:
        """Whether `poll_arrow` reads columns; otherwise it converts librdkafka's messages."""
        return self._fetcher.has_columns

    def is_ready(self) -> bool:
        """Return whether `wait` would return True at once, with messages that have arrived.

        The call never blocks. As in `wait`, the user has finished every message that was handed out
        before. Another call of `wait` must not be running.
        """
        if self._fork_error is not None or self._is_interrupted or self.closed:
            return False
        self.user = threading.current_thread()
        self._waits += 1
        self._finish()
        return self.may_hand_out and (self._fetcher.first() is not None or self._has_arrived())

    def _has_arrived(self) -> bool:
        """Take messages that have arrived, unless another thread closes the fetcher."""
        if not self._in_use.acquire(blocking=False):
            return False
        try:
            return self._fetcher.take_arrived(BUFFER_MESSAGES)
        except BaseException:
            self._is_interrupted = True  # as in `wait`
            raise
        finally:
            self._in_use.release()
            if self.closed:
                self._close_if_unused()

    def _finish(self) -> None:
        for state in self._fetcher.states.values():
            state.unfinished = None  # FINISH

    @property
    def may_hand_out(self) -> bool:
        """Return whether the lease still holds and nothing has changed since `wait` returned."""
        return (
            self._gate.is_open
            and not self._partitions.has_changed
            and self._fetcher.is_columns is self.as_columns
        )

    def take(self, max_messages: int) -> Batch[K, V]:
        """Hand out the fetched messages as a batch of at most `max_messages`."""
        try:
            # The client fetches messages, unless columns were asked for.
            return Batch(cast(list[Part[MessageRun]], self._taken(max_messages)))
        except BaseException:
            self._redeliver()
            raise

    def take_arrow(self, max_messages: int) -> pyarrow.RecordBatch:
        """Hand out at most `max_messages` fetched messages as columns."""
        try:
            parts = self._taken(max_messages)
            return to_arrow().joined([(run, numbers, held.epoch) for run, numbers, held in parts])
        except BaseException:
            self._redeliver()
            raise

    def _taken(self, max_messages: int) -> list[Part[Run]]:
        """Hand out at most `max_messages` fetched messages, as parts of runs."""
        taken: list[tuple[Run, range]] = []
        left = max_messages
        while left > 0 and (unread := self._fetcher.first()) is not None:
            taken.append((unread.run, unread.take(left)))
            left -= len(taken[-1][1])
        if not taken:
            return []
        first: dict[TopicPartition, Place] = {}
        for run, numbers in taken:
            first.setdefault(run.tp, Place(run.offset(numbers[0])))
        held, gone = self._marked(first)
        parts = [Part(run, numbers, held[run.tp]) for run, numbers in taken if run.tp in held]
        for part in parts:
            part.held.last = Place(part.run.offset(part.numbers[-1]))
        if gone:
            self._partitions.recheck_releases()
        return parts

    def _marked(
        self, first: Mapping[TopicPartition, Place]
    ) -> tuple[dict[TopicPartition, GrantedPartition], set[TopicPartition]]:
        """Mark the first message of each partition as unfinished.

        Return the partitions that are still granted, and the revoked partitions.
        """
        if self._iterations:
            # If an iteration of this stream continues after this batch, it finishes only its own
            # last message. The flag makes the iteration stop and call `wait`, which also
            # finishes this batch.
            self._partitions.has_changed = True
        held = {tp: self._fetcher.states[tp] for tp in first}
        for tp, state in held.items():
            state.unfinished = first[tp]  # MARK
        gone = {tp for tp, state in held.items() if not state.granted}  # CONFIRM
        for tp in gone:
            held.pop(tp).unfinished = None
        return held, gone

    def _wait_on(self, timeout_s: float | None, max_messages: int) -> bool:
        """Wait, as `_wait_for_messages` does, and pass errors to the user's `on_error`, if any."""
        if self._on_error is None:
            return self._wait_for_messages(timeout_s, max_messages)
        limit = None if timeout_s is None else self._gate.clock() + timeout_s
        while True:
            left = None if limit is None else max(0.0, limit - self._gate.clock())
            try:
                return self._wait_for_messages(left, max_messages)
            except ConsumerTimeoutError:
                raise self.timeout_error(timeout_s) from None
            except ZkConsumerError as error:
                if error.fatal:
                    raise
                self._on_error(error)

    def _wait_for_messages(self, timeout_s: float | None, max_messages: int) -> bool:
        partitions, gate = self._partitions, self._gate
        limit = None if timeout_s is None else gate.clock() + timeout_s
        self._finish()
        while True:
            self._fetcher.use_columns(self.as_columns)
            if self._is_interrupted:
                self._fetcher.restart()
                partitions.has_changed = True  # the interrupted call may have cleared this flag
                self._is_interrupted = False
            if partitions.has_changed:  # LOOK
                self._fetcher.apply_grants()
            if partitions.closed:
                # `end` queues its error, then sets `closed`, then `has_changed`. This thread may
                # have read `has_changed` before `end` set it, and must still raise the error before
                # it ends the iteration.
                partitions.raise_failure()
                return False
            left = None if limit is None else max(0.0, limit - gate.clock())
            if not gate.is_open:
                gate.wait(partitions, self._turn_s if left is None else min(left, self._turn_s))
            elif self._fetcher.first() is None:
                self._fetcher.fetch(left, max_messages)
                if self._fetcher.first() is not None:
                    continue  # the wait took time: check the lease and the changes again
            else:
                return True
            if limit is not None and gate.clock() >= limit:
                raise self.timeout_error(timeout_s)

    def _redeliver(self) -> None:
        """Deliver again the messages whose delivery an exception interrupted."""
        self._is_interrupted = True
        self._fetcher.redeliver()

    def _close_if_unused(self) -> None:
        """Close the fetcher, unless a thread uses the stream; that thread then closes it.

        The user's thread releases `_in_use` and then reads `closed`. `close` sets `closed` and then
        tries to take `_in_use`. So at least one of the two threads notices the other, and only one
        of them closes the fetcher.
        """
        if self._in_use.acquire(blocking=False):
            try:
                self._fetcher.close()
            finally:
                self._in_use.release()

    def timeout_error(self, timeout_s: float | None) -> ConsumerTimeoutError:
        assert timeout_s is not None  # without a limit there is no timeout
        of = f" of {self.topic}" if self.topic is not None else ""
        return ConsumerTimeoutError(
            f"no message{of} within {timeout_s:g} s",
            where=f"thread {self.thread_id}",
            remedy=self.waiting_for
            or "call again; consumer_timeout_s=None (consumer.timeout.ms=-1) sets no limit",
        )

    def closed_error(self) -> ZkConsumerError:
        if self._partitions.failure is not None:
            # Copy the error: each raise adds a traceback to an exception.
            return copy(self._partitions.failure)
        return ConnectorClosedError(
            "the connector was shut down", where=self.thread_id, remedy="stop reading"
        )

    def raise_failure(self) -> None:
        """Raise the oldest error that `fail` or `end` has queued, if any."""
        self._partitions.raise_failure()

    @property
    def closed(self) -> bool:
        """Whether the stream has ended: the connector was shut down, or the member has failed."""
        return self._partitions.closed

    # ---- called by the member's thread: any thread, never blocks ---------------------------------

    @property
    def wake_signal(self) -> StreamPartitions:
        """The object that wakes the user's thread; a shared fetcher waits on it for messages."""
        return self._partitions

    @property
    def waiting_for(self) -> str:
        """Why no message can be delivered now; empty if a message can be delivered.

        If another member keeps some of the thread's partitions because it follows another
        assignment strategy, the text says so even while messages of other partitions are delivered.
        """
        if self._partitions.failure is not None:
            return str(self._partitions.failure)
        if self._partitions.closed:
            return "the connector was shut down"
        if not self._partitions.holds_any:
            return self._partitions.idle_reason or "no partition is assigned to this thread"
        if not self._gate.is_open:
            return "ZooKeeper has not confirmed the session, so the lease has ended"
        reasons = self._fetcher.not_fetched.copy()
        shortfall = self._partitions.shortfall
        named = [f"{tp}: {reasons[tp].reason}" for tp in sorted(reasons)]
        return "; ".join([*named, shortfall] if shortfall else named)

    # ---- read by `StuckStreams`: any thread ------------------------------------------------------

    @property
    def is_asked(self) -> bool:
        """Whether a thread waits for a message now."""
        return self._in_use.locked()

    @property
    def may_deliver(self) -> bool:
        """Whether the lease holds."""
        return self._gate.is_open

    @property
    def unpaused(self) -> frozenset[TopicPartition]:
        """The partitions that are served and not paused."""
        return frozenset(self.served) - self.paused

    @property
    def has_messages(self) -> bool:
        """Whether a message is known to wait: it is fetched, or before the known end of its log."""
        if self.queued:
            return True
        # The member's thread looks here, while the user's thread may add an end.
        ends, positions = dict(self.ends), self.positions(CommitScope.DELIVERED)
        return any(tp in positions and positions[tp].offset < end for tp, end in ends.items())

    @property
    def progress(self) -> tuple[int, Mapping[TopicPartition, Position]]:
        """A value that changes whenever a thread asks for a message."""
        return self._waits, self.positions(CommitScope.DELIVERED)

    @property
    def queued(self) -> int:
        """The number of fetched messages not yet handed out, except those inside librdkafka.

        The JVM's FetchQueueSize counts chunks instead.
        """
        return self._fetcher.queued

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The known log ends of the fetched partitions; they are a few seconds old."""
        return self._fetcher.ends

    @property
    def fetched_bytes(self) -> Mapping[str, float]:
        """Topic -> bytes of keys and values fetched, estimated from samples of large batches."""
        return dict(self._fetcher.fetched_bytes)

    def explain(self, idle_reason: str, shortfall: str) -> None:
        """Set the reason, for timeout errors and `waiting_for`, why the thread lacks partitions."""
        self._partitions.idle_reason = idle_reason
        self._partitions.shortfall = shortfall

    def grant(self, grants: Iterable[Grant]) -> None:
        """Serve these partitions; a new grant of a served partition replaces the old grant."""
        self._partitions.grant(grants)

    def withdraw(self, tps: Iterable[TopicPartition]) -> None:
        """Stop delivering these partitions now."""
        self._partitions.withdraw(tps)

    def ask_release(self, tps: Iterable[TopicPartition], done: Callable[[], None]) -> None:
        """Stop delivering these partitions; call `done` once, when the user has finished.

        This thread or the user's thread calls `done`, so `done` must only enqueue.
        """
        self._partitions.ask_release(tps, done)

    def positions(self, which: CommitScope) -> dict[TopicPartition, Position]:
        """Return the known positions of the partitions that were granted and not withdrawn."""
        return self._partitions.positions(which)

    @property
    def served(self) -> list[TopicPartition]:
        """The partitions whose messages are delivered, including paused partitions."""
        return self._partitions.served

    def serves(self, tp: TopicPartition) -> bool:
        """Return whether the partition's messages are delivered, even if it is paused."""
        return self._partitions.serves(tp)

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Stop delivering these partitions until `resume`.

        The pause also ends when the member loses a partition and claims it again.
        """
        self._partitions.pause(tps)

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Deliver these partitions again, from the position at which they were paused."""
        self._partitions.resume(tps)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are served and paused."""
        return self._partitions.paused

    def seek(self, tp: TopicPartition, offset: int) -> bool:
        """Deliver `offset` next; return False if the partition is not served."""

        def report(epoch: int) -> None:
            text = f"the user continues from offset {offset}"
            self._report(StreamReport(ReportKind.SOUGHT, self.thread_id, text, tp, epoch, offset))

        return self._partitions.seek(tp, offset, report)

    def fail(self, error: Exception) -> None:
        """Raise `error` once, when the user next asks for messages."""
        self._partitions.fail(error)

    def end(self, error: ZkConsumerError) -> None:
        """End the stream because the member has failed: raise `error` once, then end the iteration.

        The user's thread or `close` closes the fetcher.
        """
        self._partitions.end(error)

    def forked(self, error: ZkConsumerError) -> None:
        """Make each later call raise `error`, in the child process of a fork.

        The call takes no lock, because a thread of the parent process may have held it.
        """
        self._partitions.failure = error
        self._partitions.closed = self._partitions.has_changed = True
        self._fork_error = error

    def end_iteration(self) -> None:
        """End the iteration; a waiting user's thread returns within `TURN_S` seconds.

        The user's thread or `close` closes the fetcher.
        """
        self._partitions.close()

    def close(self) -> None:
        """End the iteration and close the fetcher.

        If a thread uses the stream, that thread closes the fetcher.
        """
        self.end_iteration()
        self._close_if_unused()


class _Iteration(Generic[K, V]):
    """One iteration of a stream for `itertools.chain`: each step waits, and returns `ready`.

    This is not a generator: if a second thread calls a running generator, `chain` frees it, and the
    interpreter crashes. `chain` also ends the iteration of both threads if `__next__` raises, so
    the second thread gets StreamInUseError from the iterator that `__next__` returns.
    """

    def __init__(self, reader: StreamReader[K, V]) -> None:
        self._reader = reader

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Iterator[Message[K, V]]:
        reader = self._reader
        reader.as_columns = False
        try:
            if reader.wait(reader.timeout_s, BUFFER_MESSAGES):
                return reader.ready()
        except StreamInUseError as error:
            return _raising(error)
        raise StopIteration


def _raising(error: StreamInUseError) -> Generator[Any, None, None]:  # Any: it yields nothing
    """Raise this error at the first step."""
    yield from ()
    raise error


class Stream(Generic[K, V]):
    """The messages of one consumer thread; a partition's messages come in order while it is owned.

    Iterate the stream, call `next` on it, or `poll` batches, from one thread at a time. If the
    stream fails, the next of these calls raises an error of this package, once; the stream can be
    used again afterwards. A message is finished when the user asks for the next one. Auto-commit
    stores offsets of finished messages only.
    """

    __slots__ = ("_reader",)

    def __init__(self, reader: StreamReader[K, V]) -> None:
        """Create a stream; only the connector does this."""
        self._reader = reader

    def __repr__(self) -> str:
        return repr(self._reader)

    @property
    def topic(self) -> str | None:
        """The topic; None for the stream of a filter, which delivers all topics that match."""
        return self._reader.topic

    @property
    def thread_id(self) -> str:
        """The consumer thread id."""
        return self._reader.thread_id

    @property
    def number(self) -> int:
        """The number of the consumer thread, from 0."""
        return self._reader.number

    @property
    def waiting_for(self) -> str:
        """Why no message can be delivered now; empty if a message can be delivered."""
        return self._reader.waiting_for

    def __iter__(self) -> Iterator[Message[K, V]]:
        """Iterate the messages, which is faster than calling `next` for each of them.

        The iteration ends when the connector is shut down. If an error ends the member, the
        iteration raises it once and then ends. It raises ConsumerTimeoutError after
        `consumer.timeout.ms` without a message (JVM: ConsumerTimeoutException). It also raises
        FetchError, RebalanceBlockedError and other errors, unless the connector has `on_error`.
        Iterate again to continue after an error. If two threads share one iterator, the second one
        gets StreamInUseError, or Python's ValueError while the first one takes a fetched message.
        """
        return iter(self._reader)

    def __next__(self) -> Message[K, V]:
        """Return the next message; raise StopIteration after the shutdown.

        After any other error the stream can be used again.
        """
        return next(self._reader)

    def poll(
        self, *, max_messages: int = BUFFER_MESSAGES, timeout_s: float | None = 0.5
    ) -> Batch[K, V]:
        """Return at most `max_messages` messages; wait at most `timeout_s` seconds for the first.

        With None the call waits without a limit. The batch is empty if no message came in time. All
        its messages are finished when the user asks for the next batch.

        Raises:
            ConfigError: `max_messages` is not an integer of at least 1, or `timeout_s` is negative.
            ConnectorClosedError: the connector was shut down.
            ZkConsumerError: as for an iteration, but without ConsumerTimeoutError. If an error
                ended the member, every call raises that error.
        """
        return self._reader.poll(max_messages=max_messages, timeout_s=timeout_s)

    def poll_arrow(
        self, *, max_messages: int = ARROW_MESSAGES, timeout_s: float | None = 0.5
    ) -> pyarrow.RecordBatch:
        """Return the available messages as columns; wait at most `timeout_s` s for the first.

        The columns are those of Spark's Kafka connector (key, value, topic, partition, offset,
        timestamp, timestampType) and `token`, the fencing token. Keys and values are not decoded.
        As with `poll`, all messages are finished when the user asks for the next batch. If a
        program switches between this method and the others, fetched messages that were not handed
        out are fetched again.

        Raises:
            ConfigError: pyarrow is not installed, or an argument is invalid, as for `poll`.
            ConnectorClosedError: the connector was shut down.
            ZkConsumerError: the same errors as `poll`.
        """
        return self._reader.poll_arrow(max_messages=max_messages, timeout_s=timeout_s)


def reader_of(stream: Stream[K, V]) -> StreamReader[K, V]:
    """Return the reader behind a stream."""
    return stream._reader


Streams = Mapping[tuple[str | None, str], StreamReader[Decoded, Decoded]]
"""The streams by topic and consumer thread id.

A consumer thread has one stream for each of its topics. With a filter it has one stream, under the
topic None.
"""


# ---- pause and seek ------------------------------------------------------------------------------


AnyStream = StreamReader[Decoded, Decoded]

# The greatest offset of a log; a request to a broker cannot contain a greater offset.
MAX_OFFSET = 2**63 - 2


def by_stream(
    streams: Iterable[AnyStream], partitions: Iterable[TopicPartition]
) -> dict[AnyStream, list[TopicPartition]]:
    """Return the partitions grouped by the stream that serves them.

    Raises NotOwnedError, which names all partitions that no stream serves.
    """
    found: dict[AnyStream, list[TopicPartition]] = {}
    wanted = [*partitions]
    for stream in streams:
        served = [tp for tp in wanted if stream.serves(tp)]
        if served:
            found[stream] = served
    missing = sorted(set(wanted).difference(*found.values()))
    if missing:
        raise _not_owned(missing)
    return found


def seek(streams: Iterable[AnyStream], partition: TopicPartition, offset: int) -> None:
    """Continue a partition from `offset`.

    Raises:
        NotOwnedError: no stream serves the partition.
        ConfigError: `offset` is not an integer from 0 to `MAX_OFFSET`.
    """
    if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
        raise ConfigError(
            f"{offset!r} is not an offset",
            where=str(partition),
            remedy="give an integer of at least 0",
        )
    for stream, (tp,) in by_stream(streams, [partition]).items():
        if not stream.seek(tp, offset):
            raise _not_owned([tp])


def _not_owned(missing: Iterable[TopicPartition]) -> NotOwnedError:
    return NotOwnedError(
        "this member is not serving the partition",
        where=", ".join(map(str, missing)),
        remedy="read `assignment()`; a partition that is being released is no longer served",
    )
