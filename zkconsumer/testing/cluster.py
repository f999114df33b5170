"""A fake Kafka cluster in the test's own process: ZooKeeper and brokers on loopback ports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Final, Self, TypeVar, Unpack

from confluent_kafka import Message

from zkconsumer.errors import FakeServerError
from zkconsumer.protocol.later.placement import murmur2
from zkconsumer.protocol.model import OFFSETS_TOPIC, OffsetAndMetadata, TopicPartition
from zkconsumer.testing.broker import FakeBroker
from zkconsumer.testing.broker_calls import Site
from zkconsumer.testing.broker_groups import offsets_partition
from zkconsumer.testing.broker_transactions import Transactions
from zkconsumer.testing.broker_versions import broker_profile
from zkconsumer.testing.clock import Clock
from zkconsumer.testing.cluster_metadata import LiveBroker, Partition
from zkconsumer.testing.controller import Controller
from zkconsumer.testing.errors import ErrorCode, KafkaFault
from zkconsumer.testing.logs import Logs, PartitionLog, message_of
from zkconsumer.testing.record_sets import CODECS, Headers, Record, UnsupportedCodecError
from zkconsumer.testing.server import HOST, ServerEngine
from zkconsumer.testing.zookeeper import DEFAULT_RELEASE, FakeZooKeeper

if TYPE_CHECKING:
    from zkconsumer.sandbox.topics import TopicOptions

Result = TypeVar("Result")
Content = str | bytes | None

DEFAULT_BROKER: Final = "3.9.1"

BATCH_BYTES: Final = 16_384
"""The size, in bytes, at which `produce` begins another batch: the JVM producer's `batch.size`."""


def _octets(content: Content) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _in_batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield records in batches of about `BATCH_BYTES`."""
    batch: list[Record] = []
    size = 0
    for one in records:
        added = len(one.key or b"") + len(one.value or b"")
        if batch and size + added > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += added
    if batch:
        yield batch


def _append_split(log: PartitionLog, records: list[Record], codec: int) -> None:
    """Append records; divide a batch that is too large, as the JVM producer does."""
    try:
        log.append_records(records, codec=codec)
    except KafkaFault as fault:
        if fault.code is not ErrorCode.MESSAGE_TOO_LARGE or len(records) == 1:
            raise
        half = len(records) // 2
        _append_split(log, records[:half], codec)
        _append_split(log, records[half:], codec)


class FakeCluster:
    """A fake ZooKeeper and fake brokers; as a context manager it runs in the block.

    A group of zkconsumer, of the JVM's old consumer or of another client connects to
    `zookeeper_connect`; every client of Kafka connects to `bootstrap`. The methods may be called on
    any thread while the cluster runs.

    Attributes:
        zookeeper: the ZooKeeper server, with its own faults.
        brokers: the brokers, with ids 0, 1, ..., each with its own faults.
        clock: the time of all servers; `advance` puts it forward.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        release: str = DEFAULT_BROKER,
        zookeeper_release: str = DEFAULT_RELEASE,
        clock: Clock | None = None,
        tick_time_s: float = 0.1,
        auto_create_topics: bool = True,
    ) -> None:
        """
        Args:
            brokers: the number of brokers.
            release: the brokers' release, one of `broker_versions.RELEASES`.
            zookeeper_release: ZooKeeper's release.
            clock: the time; by default the machine's. With a `StoppedClock`, the time is the
                test's own: sessions expire, and timestamps change, only by `advance`.
            tick_time_s: the unit in which ZooKeeper sessions expire, in seconds.
            auto_create_topics: the brokers' `auto.create.topics.enable`: whether a topic is created
                because a client asks for its metadata, as a producer does. Clients can refuse this
                in their requests (`allow.auto.create.topics`), from release 0.11 on.

        Raises:
            ConfigError: there are no fake brokers of this release.
            FakeServerError: there is no fake ZooKeeper of this release, or no broker is wanted.
        """
        if brokers < 1:
            raise FakeServerError(
                f"a cluster cannot have {brokers} brokers", remedy="use 1 or more"
            )
        self.release = release
        self.clock = clock or Clock()
        self._engine = ServerEngine("fake cluster")
        self.zookeeper = FakeZooKeeper(
            release=zookeeper_release,
            clock=self.clock,
            engine=self._engine,
            tick_time_s=tick_time_s,
        )
        profile = broker_profile(release)
        self._controller = Controller(self.zookeeper, profile, self.clock, self._engine)
        self._metadata = self._controller.metadata
        transactions = Transactions()
        sites = (
            Site(number, profile, self._controller, self.clock, self._engine, auto_create_topics)
            for number in range(brokers)
        )
        self.brokers = tuple(FakeBroker(site, transactions) for site in sites)
        self._metadata.listen(self._move_groups)
        self.zookeeper.listen_to_losses(self._return)
        self._turn = count()
        self._is_running = False

    # ---- life -----------------------------------------------------------------------------------

    @property
    def zookeeper_connect(self) -> str:
        """ZooKeeper's `host:port`."""
        return self.zookeeper.connect

    @property
    def broker(self) -> FakeBroker:
        """The first broker."""
        return self.brokers[0]

    @property
    def bootstrap(self) -> str:
        """The brokers' `host:port`, separated by commas."""
        return ",".join(one.bootstrap for one in self.brokers)

    def start(self) -> None:
        """Start all servers; do nothing if the cluster is running."""
        if self._is_running:
            return
        self._engine.start()
        self._is_running = True
        try:
            self.zookeeper.start()
            self._call(self._controller.start)
            for one in self.brokers:
                one.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all servers; another call does nothing. The object keeps the data.

        In a fork of the process, the call does nothing: the servers belong to the parent.
        """
        if not self._is_running or self._engine.is_of_parent:
            return
        self._is_running = False
        for one in self.brokers:
            one.stop()
        self._call(self._controller.stop)
        self._call(self._end_timers)
        self.zookeeper.stop()
        self._engine.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def advance(self, seconds: float) -> None:
        """Put the time of all servers forward, and let them do at once what has become due."""
        self.clock.advance(seconds)

    # ---- topics ---------------------------------------------------------------------------------

    def create_topic(self, name: str, **options: Unpack[TopicOptions]) -> None:
        """Create a topic; its leaders are known when the call returns.

        Args:
            options: `partitions=1`, `replicas=1`, and `config=None`, the topic's settings.
                `message.format.version`, `message.timestamp.type`, `compression.type` and
                `max.message.bytes` have an effect.

        Raises:
            FakeServerError: the topic exists, its name is not legal, or there are too few brokers.
        """
        self._do(lambda: self._controller.create_topic(name, **options))

    def add_partitions(self, name: str, *, partitions: int) -> None:
        """Raise a topic's number of partitions to `partitions`.

        Raises:
            FakeServerError: there is no such topic, or it already has as many partitions.
        """
        self._do(lambda: self._controller.add_partitions(name, partitions))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages.

        Raises:
            FakeServerError: there is no such topic.
        """
        self._do(lambda: self._controller.delete_topic(name))

    def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic, by name."""
        topics = self._metadata.topics
        return self._call(lambda: {name: len(one.partitions) for name, one in topics.items()})

    # ---- leaders --------------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the broker id of a partition's leader; None if no replica is alive.

        Raises:
            FakeServerError: there is no such partition.
        """
        found = self._do(lambda: self._partition(topic, partition).leader)
        return found if found >= 0 else None

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Let another broker lead a partition, as after a reassignment.

        Raises:
            FakeServerError: there is no such partition, or the broker is not alive.
        """
        tp = TopicPartition(topic, partition)
        self._do(lambda: self._controller.move_leader(tp, to))

    # ---- messages -------------------------------------------------------------------------------

    def produce(
        self,
        name: str,
        messages: int | Iterable[Content],
        *,
        key: Content = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
        codec: str = "none",
    ) -> list[tuple[int, int]]:
        """Append messages without a client.

        Args:
            messages: the values in order; a number n means the n values `0`, `1`, ... `n-1`.
            key: the key of every message. It determines the partition as in the Java producer
                (murmur2 hash); messages without a key go to the partitions in turn.
            partition: the partition of all messages.
            timestamp_ms: the timestamp of all messages in ms since 1970; None: the cluster's time.
            headers: the headers of every message; only message format v2 stores them.
            codec: the compression of each batch: none, gzip, snappy, lz4 or zstd.

        Returns:
            Partition and offset of each message, in the given order.

        Raises:
            FakeServerError: there is no such topic or partition, or no such codec, or a message is
                larger than the topic's `max.message.bytes`.
        """
        values = map(str, range(messages)) if isinstance(messages, int) else messages
        pairs = [(key, one) for one in values]
        return self._produce(name, pairs, partition, timestamp_ms, headers=headers, codec=codec)

    def produce_keyed(
        self,
        name: str,
        messages: Iterable[tuple[Content, Content]],
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[tuple[int, int]]:
        """Append pairs of key and value as `produce` does, each message with its own key."""
        return self._produce(name, messages, partition, timestamp_ms)

    def _produce(
        self,
        name: str,
        messages: Iterable[tuple[Content, Content]],
        partition: int | None,
        timestamp_ms: int | None,
        *,
        headers: Headers = (),
        codec: str = "none",
    ) -> list[tuple[int, int]]:
        stamp = round(self.clock.now() * 1000) if timestamp_ms is None else timestamp_ms
        records = [Record(0, _octets(key), _octets(one), stamp, headers) for key, one in messages]
        return self._do(lambda: self._append(name, records, partition, codec))

    def _append(
        self, name: str, records: list[Record], partition: int | None, codec: str
    ) -> list[tuple[int, int]]:
        if codec not in CODECS:
            raise FakeServerError(
                f"there is no codec {codec!r}", remedy=f"use one of {', '.join(CODECS)}"
            )
        places = [self._place(name, one) if partition is None else partition for one in records]
        batches: dict[int, list[Record]] = {}
        found = []
        for place, record in zip(places, records, strict=True):
            batch = batches.setdefault(place, [])
            found.append((place, self._partition(name, place).log.end + len(batch)))
            batch.append(record)
        try:
            for place, batch in batches.items():
                log = self._partition(name, place).log
                for part in _in_batches(batch):
                    _append_split(log, part, CODECS[codec])
        except UnsupportedCodecError as error:
            raise FakeServerError(str(error)) from error
        self._metadata.changed()
        return found

    def _place(self, name: str, record: Record) -> int:
        self._partition(name, 0)
        partitions = len(self._metadata.topics[name].partitions)
        number = next(self._turn) if record.key is None else murmur2(record.key) & 0x7FFFFFFF
        return number % partitions

    def messages(self, topic: str, *, partition: int | None = None) -> list[Message]:
        """Return all messages of a topic now, including those of aborted transactions.

        Args:
            topic: the topic.
            partition: the only partition to read; None: all.

        Raises:
            FakeServerError: there is no such topic or partition.
        """

        def read() -> list[Message]:
            self._partition(topic, partition or 0)
            return [
                message_of(TopicPartition(topic, number), entry, record)
                for number, one in sorted(self._metadata.topics[topic].partitions.items())
                if partition in (None, number)
                for entry, record in one.log.records()
            ]

        return self._do(read)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the messages before an offset, as retention does.

        Raises:
            FakeServerError: there is no such partition.
        """

        def cut() -> None:
            self._partition(topic, partition).log.cut(before)
            self._metadata.changed()

        self._do(cut)

    def log_range(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset of a log, and the offset of the next message.

        Raises:
            FakeServerError: there is no such partition.
        """

        def read() -> tuple[int, int]:
            log = self._partition(topic, partition).log
            return log.start, log.end

        return self._do(read)

    @property
    def logs(self) -> Logs:
        """The logs, for the simulator's fetcher; only while no client changes them."""
        return Logs({tp: one.log for tp, one in self._metadata.all_partitions()})

    # ---- groups ---------------------------------------------------------------------------------

    def offsets_in_kafka(self, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that a group has committed to Kafka."""

        def read() -> Mapping[TopicPartition, OffsetAndMetadata]:
            if OFFSETS_TOPIC not in self._metadata.topics:
                return {}
            leader = self._metadata.partition(offsets_partition(group)).leader
            return self.brokers[leader].groups.offsets(group) if leader >= 0 else {}

        return self._do(read)

    def _return(self) -> None:
        """Let the brokers that run register in a ZooKeeper that has lost its data."""
        self._controller.lose_sessions()
        for one in self.brokers:
            if one.is_running:
                self._controller.register(LiveBroker(one.id, HOST, one.port))

    def _move_groups(self) -> None:
        for one in self.brokers:
            one.groups.resign()
        for one in self.brokers:
            one.groups.load()

    # ---- on the servers' thread -----------------------------------------------------------------

    def _partition(self, topic: str, partition: int) -> Partition:
        return self._metadata.partition(TopicPartition(topic, partition))

    def _end_timers(self) -> None:
        for one in self.brokers:
            one.groups.end_timer()

    def _call(self, function: Callable[[], Result]) -> Result:
        return self._engine.call(function)

    def _do(self, function: Callable[[], Result]) -> Result:
        """Run a function on the servers' thread; raise a refusal as FakeServerError."""
        if not self._is_running:
            raise FakeServerError("the fake cluster is not running", remedy="call start()")
        try:
            return self._call(function)
        except KafkaFault as fault:
            raise FakeServerError(fault.why) from fault
