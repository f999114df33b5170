"""The asyncio connector: the same member as `zkconsumer.ConsumerConnector`, without blocking calls.

    async with ConsumerConnector(config) as connector:
        (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
        async for message in stream:
            ...

Blocking calls run in threads; each stream has its own thread. Messages are handed out in the event
loop, which waits for the thread only if no fetched message is left. A cancelled wait continues in
its thread and loses no message: the next call returns the messages that it finds.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar, overload

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer import connector as core
from zkconsumer.consumer.commit_requests import COMMIT_TIMEOUT_S, ExplicitOffsets
from zkconsumer.consumer.listener import Callbacks, RebalanceCallbacks
from zkconsumer.consumer.messages import Batch, Message
from zkconsumer.consumer.positions import ASK_S, OwnedPartition
from zkconsumer.consumer.status import Status
from zkconsumer.consumer.stream import (
    ARROW_MESSAGES,
    BUFFER_MESSAGES,
    StreamReader,
    reader_of,
    to_arrow,
)
from zkconsumer.consumer.stream import Stream as UserStream
from zkconsumer.consumer.stream_partitions import Decoded
from zkconsumer.errors import ConnectorClosedError, StreamInUseError, ZkConsumerError
from zkconsumer.protocol import arguments
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import pyarrow
    from prometheus_client import CollectorRegistry

    from zkconsumer.consumer.listener import ConsumerRebalanceListener
    from zkconsumer.protocol.filters import TopicFilter

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class Stream(Generic[K, V]):
    """The messages of one consumer thread, for one task at a time; see `zkconsumer.Stream`.

    A message is finished when the task asks for the next one. Auto-commit stores offsets of
    finished messages only.
    """

    def __init__(self, stream: StreamReader[K, V]) -> None:
        """Create a stream; only the connector calls this."""
        self._stream = stream
        self._worker = _Worker(f"{stream.thread_id}-{stream.topic or 'filter'}")
        self._waiting: Future[bool] | None = None  # the thread's wait; it outlives cancelled tasks
        self._loop_wait: asyncio.Future[bool] | None = None  # the wait, for the event loop
        self._is_waiting = False
        self._iterator: AsyncGenerator[Message[K, V], None] | None = None

    def __repr__(self) -> str:
        return f"aio.{self._stream!r}"

    @property
    def topic(self) -> str | None:
        """The topic; None for the stream of a filter."""
        return self._stream.topic

    @property
    def thread_id(self) -> str:
        """The consumer thread id."""
        return self._stream.thread_id

    @property
    def number(self) -> int:
        """The number of the consumer thread, from 0."""
        return self._stream.number

    @property
    def waiting_for(self) -> str:
        """Why no message can be delivered now; empty if a message can be delivered."""
        return self._stream.waiting_for

    def __aiter__(self) -> AsyncGenerator[Message[K, V], None]:
        """Iterate the messages; the iteration ends when the connector is shut down.

        It raises the same errors as iterating a `zkconsumer.Stream`. If two tasks share one
        iterator, the second one gets Python's RuntimeError instead of StreamInUseError.
        """
        return self._messages()

    async def _messages(self) -> AsyncGenerator[Message[K, V], None]:
        timeout_s = self._stream.timeout_s
        while True:
            if await self._wait(timeout_s):
                for message in self._stream.ready():
                    yield message
            elif self._stream.closed:
                return
            else:
                raise self._stream.timeout_error(timeout_s)

    async def __anext__(self) -> Message[K, V]:
        """Return the next message; raise StopAsyncIteration after the shutdown.

        After any other error the stream can be used again.
        """
        self._check_caller()  # Python's own error for an iterator in use is a RuntimeError
        if self._iterator is None:
            self._iterator = self._messages()
        try:
            return await anext(self._iterator)
        except BaseException:
            self._iterator = None
            raise

    async def poll(
        self, *, max_messages: int = BUFFER_MESSAGES, timeout_s: float | None = 0.5
    ) -> Batch[K, V]:
        """Return at most `max_messages` messages; wait at most `timeout_s` seconds for the first.

        The batch is empty if no message came in time. All its messages are finished when the task
        asks for the next batch.

        Raises:
            ConfigError: `max_messages` is not an integer of at least 1, or `timeout_s` is negative.
            ConnectorClosedError: the connector was shut down.
            ZkConsumerError: as for an iteration, but without ConsumerTimeoutError.
        """
        arguments.count(max_messages)
        if await self._wait(arguments.time_limit(timeout_s)):
            return self._stream.take(max_messages)
        if self._stream.closed:
            raise self._stream.closed_error()
        return self._stream.take(0)

    async def poll_arrow(
        self, *, max_messages: int = ARROW_MESSAGES, timeout_s: float | None = 0.5
    ) -> pyarrow.RecordBatch:
        """Return the available messages as columns; see `zkconsumer.Stream.poll_arrow`."""
        arguments.count(max_messages)
        limit_s = arguments.time_limit(timeout_s)
        to_arrow()
        if await self._wait(limit_s, as_columns=self._stream.has_columns):
            return self._stream.take_arrow(max_messages)
        if self._stream.closed:
            raise self._stream.closed_error()
        return self._stream.take_arrow(0)

    async def _wait(self, timeout_s: float | None, *, as_columns: bool = False) -> bool:
        """Wait until a message can be handed out; return False after the timeout or the shutdown.

        With `as_columns` it waits for messages as columns. The wait in the stream's thread has no
        limit, so one wait serves several calls.
        """
        self._check_caller()
        self._is_waiting = True
        self._stream.as_columns = as_columns
        limit: asyncio.Timeout | None = None
        try:
            if self._waiting is None and self._stream.is_ready():
                await asyncio.sleep(0)  # other tasks run between two batches
                if self._stream.may_hand_out:
                    return True
            async with asyncio.timeout(timeout_s) as limit:
                # A wait that began before the stream was closed may hold an error.
                while self._waiting is not None or not self._stream.closed:
                    if await self._waited() and self._stream.may_hand_out:
                        return True
        except TimeoutError:
            if limit is None or not limit.expired():
                raise  # `on_error` has raised it
        finally:
            self._is_waiting = False
        if self._stream.closed:
            self._stream.raise_failure()
        return False

    def _check_caller(self) -> None:
        if self._is_waiting:
            raise StreamInUseError(
                "a stream was asked for messages by two tasks at once",
                where=self._stream.thread_id,
                remedy="give each task its own stream",
            )

    async def _waited(self) -> bool:
        if self._waiting is None:
            self._waiting = self._worker.submit(lambda: self._stream.wait(None, BUFFER_MESSAGES))
        if not self._waiting.done():
            # Wrap the future once and not for every call, because calls with short timeouts are
            # frequent.
            if (
                self._loop_wait is None
                or self._loop_wait.get_loop() is not asyncio.get_running_loop()
            ):
                self._loop_wait = asyncio.wrap_future(self._waiting)
                self._loop_wait.add_done_callback(_mark_seen)
            await asyncio.wait([self._loop_wait])  # a cancellation does not cancel the future
        waited, self._waiting, self._loop_wait = self._waiting, None, None
        return waited.result()


def stop(stream: Stream[Any, Any]) -> None:  # Any: it hands out no message
    """End a stream's thread; only the connector calls it, after closing the stream."""
    stream._worker.stop()


class ConsumerConnector:
    """A member of a group; see `zkconsumer.ConsumerConnector`, to which it delegates.

    As an asynchronous context manager it connects at the start of the block and shuts down at its
    end. After an exception or a cancellation, the message that the user was processing is not
    committed, so it is redelivered.
    """

    def __init__(
        self,
        config: ConsumerConfig | Mapping[str, object],
        *,
        on_assigned: Callable[[list[TopicPartition]], object] | None = None,
        on_revoked: Callable[[list[TopicPartition]], object] | None = None,
        on_lost: Callable[[list[TopicPartition]], object] | None = None,
        callbacks: RebalanceCallbacks | None = None,
        on_error: Callable[[ZkConsumerError], object] | None = None,
    ) -> None:
        """Store the arguments; `start` connects.

        The arguments are those of `zkconsumer.ConsumerConnector`. Callbacks that are coroutine
        functions run in the event loop, and so does `on_error`. Other callbacks run in a thread.
        """
        self._on_error = arguments.function(on_error, "on_error")
        self._functions = Callbacks.of(
            callbacks, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost
        )
        if not isinstance(config, ConsumerConfig):
            config = ConsumerConfig(config)
        self.config = config
        self._core: core.ConsumerConnector | None = None
        self._is_cancelled = False
        self._streams: list[Stream[Decoded, Decoded]] = []

    async def start(self) -> None:
        """Connect to ZooKeeper; raises the same errors as `zkconsumer.ConsumerConnector()`."""
        loop = asyncio.get_running_loop()
        try:
            await asyncio.to_thread(self._connect, loop)
        except asyncio.CancelledError:
            # Write this attribute before reading `_core`; the thread writes `_core` before it reads
            # this attribute.
            self._is_cancelled = True
            if self._core is not None:
                _Worker("discard").submit(self._core.shutdown)
            raise

    def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        given = self._functions or Callbacks()
        self._core = core.ConsumerConnector(
            self.config,
            on_assigned=_in_loop(given.on_assigned, loop),
            on_revoked=_in_loop(given.on_revoked, loop),
            on_lost=_in_loop(given.on_lost, loop),
            on_error=_in_loop(self._on_error, loop, is_plain_too=True),
        )
        if self._is_cancelled:
            self._core.shutdown()

    @property
    def consumer_id(self) -> str:
        return self._started.consumer_id

    @property
    def _started(self) -> core.ConsumerConnector:
        if self._core is None:
            raise ConnectorClosedError(
                "the connector was not started",
                where=self.config.group_id,
                remedy="use `async with`, or await start() first",
            )
        return self._core

    @overload
    async def create_message_streams(
        self, topic_counts: Mapping[str, int]
    ) -> dict[str, list[Stream[bytes, bytes]]]: ...
    @overload
    async def create_message_streams(
        self,
        topic_counts: Mapping[str, int],
        *,
        key_decoder: Callable[[bytes], K],
        value_decoder: Callable[[bytes], V],
    ) -> dict[str, list[Stream[K, V]]]: ...
    @overload
    async def create_message_streams(
        self, topic_counts: Mapping[str, int], *, value_decoder: Callable[[bytes], V]
    ) -> dict[str, list[Stream[bytes, V]]]: ...
    async def create_message_streams(
        self, topic_counts: Mapping[str, int], **decoders: object
    ) -> dict[str, list[Stream[Decoded, Decoded]]]:
        """Register in the group; return topic -> one stream for each consumer thread.

        Arguments and errors are those of `zkconsumer.ConsumerConnector.create_message_streams`.
        """
        create: Callable[..., Any] = self._started.create_message_streams  # Any: overloaded
        made = await asyncio.to_thread(create, topic_counts, **decoders)
        return {topic: self._wrapped(streams) for topic, streams in made.items()}

    @overload
    async def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, streams: int = 1
    ) -> list[Stream[bytes, bytes]]: ...
    @overload
    async def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        streams: int = 1,
        *,
        key_decoder: Callable[[bytes], K],
        value_decoder: Callable[[bytes], V],
    ) -> list[Stream[K, V]]: ...
    @overload
    async def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, streams: int = 1, *, value_decoder: Callable[[bytes], V]
    ) -> list[Stream[bytes, V]]: ...
    async def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, streams: int = 1, **decoders: object
    ) -> list[Stream[Decoded, Decoded]]:
        """Register in the group for every topic that the filter matches, now and later.

        Arguments and errors are those of
        `zkconsumer.ConsumerConnector.create_message_streams_by_filter`.
        """
        started = self._started
        create: Callable[..., Any] = started.create_message_streams_by_filter  # Any: overloaded
        return self._wrapped(await asyncio.to_thread(create, topic_filter, streams, **decoders))

    def _wrapped(
        self, streams: Iterable[UserStream[Decoded, Decoded]]
    ) -> list[Stream[Decoded, Decoded]]:
        made = [Stream(reader_of(one)) for one in streams]
        self._streams += made
        return made

    @overload
    async def commit_offsets(
        self,
        offsets: ExplicitOffsets | None = None,
        *,
        retries: int | None = None,
        timeout_s: float | None = COMMIT_TIMEOUT_S,
        wait: Literal[True] = True,
    ) -> None: ...
    @overload
    async def commit_offsets(
        self,
        offsets: ExplicitOffsets | None = None,
        *,
        retries: int | None = None,
        wait: Literal[False],
    ) -> asyncio.Future[None]: ...
    async def commit_offsets(
        self,
        offsets: ExplicitOffsets | None = None,
        *,
        retries: int | None = None,
        timeout_s: float | None = COMMIT_TIMEOUT_S,
        wait: bool = True,
    ) -> asyncio.Future[None] | None:
        """Commit the offsets of every message handed out so far, or `offsets`.

        Arguments and errors are those of `zkconsumer.ConsumerConnector.commit_offsets`. If the task
        is cancelled, the offsets may still be stored.
        """
        commit = self._started.commit_offsets
        if wait:
            await asyncio.to_thread(commit, offsets, retries=retries, timeout_s=timeout_s)
            return None
        return asyncio.wrap_future(commit(offsets, retries=retries, wait=False))

    @overload
    async def commit(
        self,
        messages: Message[Decoded, Decoded] | Iterable[Message[Decoded, Decoded]] | None = None,
        *,
        retries: int | None = None,
        timeout_s: float | None = COMMIT_TIMEOUT_S,
        wait: Literal[True] = True,
    ) -> None: ...
    @overload
    async def commit(
        self,
        messages: Message[Decoded, Decoded] | Iterable[Message[Decoded, Decoded]] | None = None,
        *,
        retries: int | None = None,
        wait: Literal[False],
    ) -> asyncio.Future[None]: ...
    async def commit(
        self,
        messages: Message[Decoded, Decoded] | Iterable[Message[Decoded, Decoded]] | None = None,
        *,
        retries: int | None = None,
        timeout_s: float | None = COMMIT_TIMEOUT_S,
        wait: bool = True,
    ) -> asyncio.Future[None] | None:
        """Commit the positions after a message, a batch, or any messages.

        None means every message handed out. Arguments and errors are those of
        `zkconsumer.ConsumerConnector.commit`.
        """
        commit = self._started.commit
        if wait:
            await asyncio.to_thread(commit, messages, retries=retries, timeout_s=timeout_s)
            return None
        return asyncio.wrap_future(commit(messages, retries=retries, wait=False))

    async def wait_until_assigned(
        self, timeout_s: float | None = core.ASSIGNED_S
    ) -> dict[TopicPartition, OwnedPartition]:
        """Wait until the member owns its partitions, as `ConsumerConnector.wait_until_assigned`."""
        return await asyncio.to_thread(self._started.wait_until_assigned, timeout_s)

    async def run(
        self,
        work: Callable[[Stream[K, V]], Coroutine[object, object, T]],
        streams: Iterable[Stream[K, V]],
    ) -> list[T]:
        """Await `work(stream)` for each stream, each in a task of its own.

        If a task raises an exception, the others are cancelled, and `run` raises the first
        exception when they have ended. The result holds the tasks' results, in the order of the
        streams.
        """
        if not asyncio.iscoroutinefunction(work):
            right = "async def work(stream)"
            raise arguments.wrong(work, "a coroutine function", where="work", right=right)
        tasks = [asyncio.create_task(work(stream)) for stream in streams]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def committed(
        self, partitions: core.Partitions, *, timeout_s: float | None = ASK_S
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's stored offsets, as `zkconsumer.ConsumerConnector.committed`."""
        return await asyncio.to_thread(self._started.committed, partitions, timeout_s=timeout_s)

    async def beginning_offsets(
        self, partitions: core.Partitions, *, timeout_s: float | None = ASK_S
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each log, as `ConsumerConnector.beginning_offsets`."""
        ask = self._started.beginning_offsets
        return await asyncio.to_thread(ask, partitions, timeout_s=timeout_s)

    async def end_offsets(
        self, partitions: core.Partitions, *, timeout_s: float | None = ASK_S
    ) -> dict[TopicPartition, int]:
        """Return the end of each log, as `zkconsumer.ConsumerConnector.end_offsets`."""
        return await asyncio.to_thread(self._started.end_offsets, partitions, timeout_s=timeout_s)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, timeout_s: float | None = ASK_S
    ) -> dict[TopicPartition, int | None]:
        """Return offsets by time, as `zkconsumer.ConsumerConnector.offsets_for_times`."""
        return await asyncio.to_thread(self._started.offsets_for_times, times, timeout_s=timeout_s)

    async def seek_to_beginning(
        self, partitions: core.Partitions, *, timeout_s: float | None = ASK_S
    ) -> None:
        """Seek to the first message of each log."""
        await asyncio.to_thread(self._started.seek_to_beginning, partitions, timeout_s=timeout_s)

    async def seek_to_end(
        self, partitions: core.Partitions, *, timeout_s: float | None = ASK_S
    ) -> None:
        """Seek to the end of each log."""
        await asyncio.to_thread(self._started.seek_to_end, partitions, timeout_s=timeout_s)

    async def seek_to_timestamp(
        self,
        partitions: core.Partitions,
        timestamp_ms: int,
        *,
        timeout_s: float | None = ASK_S,
    ) -> None:
        """Seek to the first message at or after a time, or to the end if there is none."""
        ask = self._started.seek_to_timestamp
        await asyncio.to_thread(ask, partitions, timestamp_ms, timeout_s=timeout_s)

    def assignment(self) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions that this member owns, each with its thread and fencing token."""
        return self._started.assignment()

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next message to hand out; None while it is not known yet."""
        return self._started.position(partition)

    def lag(self) -> dict[TopicPartition, int | None]:
        """Return the lag of each partition: the number of messages between position and log end."""
        return self._started.lag()

    def pause(self, partitions: core.Partitions) -> None:
        """Stop delivering and fetching these partitions until `resume`."""
        self._started.pause(partitions)

    def resume(self, partitions: core.Partitions) -> None:
        """Deliver these partitions again, from the position at which they were paused."""
        self._started.resume(partitions)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        return self._started.paused()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Deliver `offset` next; discard messages of the partition that were already fetched."""
        self._started.seek(partition, offset)

    def set_consumer_rebalance_listener(self, listener: ConsumerRebalanceListener) -> None:
        """Call `listener` at every rebalance, in a thread and never in the event loop.

        Raises MessageStreamsExistError if this connector already has streams.
        """
        self._started.set_consumer_rebalance_listener(listener)

    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Export this member's metrics in a registry of prometheus-client until the shutdown."""
        self._started.register_metrics(registry)

    def status(self) -> Status:
        """Return what this member owns, what blocks it, and what it waits for."""
        return self._started.status()

    def metrics(self) -> dict[str, float]:
        """Return the counters since the start, and the gauges (`zkconsumer docs metrics`)."""
        return self._started.metrics()

    async def shutdown(self) -> None:
        """Leave the group: stop delivering, commit every message handed out, end the session."""
        await self.__aexit__(None, None, None)

    async def close(self) -> None:
        """Leave the group: another name of `shutdown`."""
        await self.shutdown()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await asyncio.to_thread(self._started.__exit__, kind)
        finally:
            for stream in self._streams:
                stop(stream)


def _in_loop(
    function: Callable[[T], object] | None,
    loop: asyncio.AbstractEventLoop,
    *,
    is_plain_too: bool = False,
) -> Callable[[T], object] | None:
    """Return a function for another thread that runs a coroutine function in the loop, and with
    `is_plain_too` also a plain function."""
    if function is None:
        return None

    async def called(given: T) -> object:
        result: object = function(given)
        return await result if asyncio.iscoroutine(result) else result

    def call(given: T) -> object:
        result: object = called(given) if is_plain_too else function(given)
        return _result_in(loop, result) if asyncio.iscoroutine(result) else result

    return call


# Seconds between two checks whether the loop of a running callback has been closed. Such a callback
# never ends, and a closed loop tells nobody.
_LOOP_CHECK_S: Final = 1.0


def _result_in(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, object],  # Any: it yields to the loop only
) -> object:
    """Run a coroutine in the loop of another thread, and return its result.

    Raises RuntimeError if the loop is closed before the result is there.
    """
    try:
        running = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise
    while not wait([running], _LOOP_CHECK_S).done:
        if loop.is_closed():
            raise RuntimeError("the event loop was closed while it ran a callback")
    return running.result()


def _mark_seen(over: asyncio.Future[bool]) -> None:
    """Mark an error as seen, so that asyncio does not log it.

    The next call of the stream raises the error.
    """
    if not over.cancelled():
        over.exception()


_Job = tuple[Future[Any], Callable[[], Any]]  # Any: the result of the call


class _Worker:
    """A thread that runs blocking jobs, one after the other.

    It does not belong to an executor: asyncio and the interpreter wait for an executor's threads
    when they end, and a wait for messages may never end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None]
        self._jobs = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], T]) -> Future[T]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        done: Future[T] = Future()
        self._jobs.put((done, job))
        return done

    def stop(self) -> None:
        self._jobs.put(None)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            done, job = item
            try:
                done.set_result(job())
            except BaseException as error:  # noqa: BLE001  # the thread's boundary: `Future.result` raises it
                done.set_exception(error)
