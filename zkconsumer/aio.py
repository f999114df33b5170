"""The connector for asyncio: the same core, waited for in the loop.

    async with ConsumerConnector(config) as connector:
        (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
        async for message in stream:
            ...

Whatever waits does so in a thread, of each stream's own; messages are handed out in the loop. A
wait that is cancelled goes on in its thread and loses nothing: what it finds is there for whoever
asks next.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer import connector as core
from zkconsumer.consumer.commit_requests import COMMIT_TIMEOUT_S, Given
from zkconsumer.consumer.messages import Batch, Message
from zkconsumer.consumer.status import Status
from zkconsumer.consumer.stream import BUFFER_MESSAGES
from zkconsumer.consumer.stream import Stream as CoreStream
from zkconsumer.errors import ConnectorClosedError, ZkConsumerError
from zkconsumer.protocol.model import TopicPartition

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from zkconsumer.consumer.listener import ConsumerRebalanceListener
    from zkconsumer.protocol.filters import TopicFilter

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class Stream(Generic[K, V]):
    """One thread's messages, for one task at a time; see `zkconsumer.Stream`.

    A message is finished, and may be committed by the auto-commit, when the next is asked for.
    """

    def __init__(self, stream: CoreStream[K, V]) -> None:
        """For the connector."""
        self._stream = stream
        self._worker = _Worker(f"{stream.thread_id}-{stream.topic or 'filter'}")
        self._waiting: Future[bool] | None = None  # outlives those that wait for it
        self._over: asyncio.Future[bool] | None = None  # the same, in the loop that asked last
        self._asked = False
        self._iterator: AsyncGenerator[Message[K, V], None] | None = None

    def __repr__(self) -> str:
        return f"aio.{self._stream!r}"

    @property
    def topic(self) -> str | None:
        """None for the stream of a filter."""
        return self._stream.topic

    @property
    def thread_id(self) -> str:
        """The consumer thread id."""
        return self._stream.thread_id

    @property
    def waiting_for(self) -> str:
        """Why no message can come at present; empty when one can."""
        return self._stream.waiting_for

    def __aiter__(self) -> AsyncGenerator[Message[K, V], None]:
        """Ends when the connector is shut down; raises what the iterator of a Stream raises."""
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
        """The next message; StopAsyncIteration after the shutdown. Any error leaves it usable."""
        if self._iterator is None:
            self._iterator = self._messages()
        try:
            return await anext(self._iterator)
        except BaseException:
            self._iterator = None
            raise

    async def poll(
        self, *, max_messages: int = BUFFER_MESSAGES, timeout_s: float = 0.5
    ) -> Batch[K, V]:
        """The messages that are there, at most `max_messages`; empty when none came in time.

        The whole batch is finished when the next is asked for. Raises as iterating does, but for
        the timeout, and ConnectorClosedError after the shutdown.
        """
        if await self._wait(timeout_s):
            return self._stream.take(max_messages)
        if self._stream.closed:
            raise self._stream.closed_error()
        return self._stream.take(0)

    async def _wait(self, timeout_s: float | None) -> bool:
        """Wait in the stream's thread until there is something to hand out; False when not in time.

        The thread's own wait has no limit, so that one will do for whoever asks, and how often.
        """
        if self._asked:
            raise ZkConsumerError(
                "a stream was asked for messages by two tasks at once",
                where=self._stream.thread_id,
                remedy="give each task its own stream",
            )
        self._asked = True
        try:
            async with asyncio.timeout(timeout_s):
                # A wait that was submitted before the stream was closed may hold an error.
                while self._waiting is not None or not self._stream.closed:
                    if await self._waited() and self._stream.may_hand_out:
                        return True
        except TimeoutError:
            pass
        finally:
            self._asked = False
        if self._stream.closed:
            self._stream.raise_failure()
        return False

    async def _waited(self) -> bool:
        if self._waiting is None:
            self._waiting = self._worker.submit(lambda: self._stream.wait(None, BUFFER_MESSAGES))
        if not self._waiting.done():
            # One for all who ask, however often: nothing is as short-lived as their patience.
            if self._over is None or self._over.get_loop() is not asyncio.get_running_loop():
                self._over = asyncio.wrap_future(self._waiting)
                self._over.add_done_callback(_look_at)
            await asyncio.wait([self._over])  # which leaves it alone when it is cancelled itself
        waited, self._waiting, self._over = self._waiting, None, None
        return waited.result()

    def stop(self) -> None:
        """For the connector: the stream is closed, and its thread has nothing more to do."""
        self._worker.stop()


class ConsumerConnector:
    """A member of a group; see `zkconsumer.ConsumerConnector`, of which this is a face.

    As an asynchronous context manager it connects at the beginning and leaves the group at the end:
    after an exception, a cancellation included, the message in hand counts as not finished.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self.config = config
        self._core: core.ConsumerConnector | None = None
        self._given_up = False
        self._streams: list[Stream[Any, Any]] = []

    async def start(self) -> None:
        """Connect to ZooKeeper; raises as `zkconsumer.ConsumerConnector` does."""
        try:
            await asyncio.to_thread(self._connect)
        except asyncio.CancelledError:
            self._given_up = True  # first, for the thread looks at it last
            if self._core is not None:
                _Worker("discard").submit(self._core.shutdown)
            raise

    def _connect(self) -> None:
        self._core = core.ConsumerConnector(self.config)
        if self._given_up:
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
        self, topic_counts: Mapping[str, int], **decoders: Any
    ) -> dict[str, list[Stream[Any, Any]]]:
        """Register in the group and return the streams: topic -> one stream for each thread."""
        create: Callable[..., Any] = self._started.create_message_streams
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
        self, topic_filter: TopicFilter, streams: int = 1, **decoders: Any
    ) -> list[Stream[Any, Any]]:
        """Register in the group for all topics of a filter, also those that are created later."""
        create: Callable[..., Any] = self._started.create_message_streams_by_filter
        return self._wrapped(await asyncio.to_thread(create, topic_filter, streams, **decoders))

    def _wrapped(self, streams: Iterable[CoreStream[Any, Any]]) -> list[Stream[Any, Any]]:
        made = [Stream(one) for one in streams]
        self._streams += made
        return made

    async def commit_offsets(
        self,
        offsets: Given | None = None,
        *,
        retries: int | None = None,
        timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> None:
        """Commit everything handed out so far, or `offsets`; `timeout_s` is 120 s by default.

        If the task is cancelled, the offsets may still be stored.
        """
        await asyncio.to_thread(
            self._started.commit_offsets, offsets, retries=retries, timeout_s=timeout_s
        )

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver no more of these until they are resumed."""
        self._started.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver these again."""
        self._started.resume(partitions)

    def paused(self) -> frozenset[TopicPartition]:
        """What is paused."""
        return self._started.paused()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Deliver `offset` next."""
        self._started.seek(partition, offset)

    def set_consumer_rebalance_listener(self, listener: ConsumerRebalanceListener) -> None:
        """Before there are streams. It is called in a thread, never in the loop."""
        self._started.set_consumer_rebalance_listener(listener)

    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Show this member's figures in a registry of prometheus-client."""
        self._started.register_metrics(registry)

    def status(self) -> Status:
        """What this member owns, what blocks it, and what it waits for."""
        return self._started.status()

    def metrics(self) -> dict[str, float]:
        """Counters since the start, and gauges of the moment."""
        return self._started.metrics()

    async def shutdown(self) -> None:
        """Leave the group: stop delivering, commit everything handed out, end the session."""
        await self.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await asyncio.to_thread(self._started.__exit__, kind, error, trace)
        finally:
            for stream in self._streams:
                stream.stop()


def _look_at(over: asyncio.Future[bool]) -> None:
    """An error is no news to asyncio: whoever asks next is told of it."""
    if not over.cancelled():
        over.exception()


class _Worker:
    """A thread for what blocks, one after the other.

    Of ours, and not an executor's: those are waited for when a loop or the interpreter ends, and a
    wait for messages has no end of its own.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
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
            except BaseException as error:  # noqa: BLE001  # the thread's boundary: whoever waits has it
                done.set_exception(error)
