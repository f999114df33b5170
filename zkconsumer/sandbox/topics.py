"""Topics of a cluster in ZooKeeper mode, and messages for them.

Topics are created as `kafka-topics.sh --zookeeper` created them (kafka.admin.AdminUtils): the
assignment is written to `/brokers/topics/TOPIC`, and the controller does the rest. This way works
with every release from 0.8.2 to 3.9, and needs no admin protocol.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

from zkconsumer.errors import SandboxError, ZkConsumerError, first_few
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.protocol.paths import (
    BROKER_IDS,
    TOPICS,
    broker,
    partition_state,
    topic,
    validate_topic,
)
from zkconsumer.protocol.payloads import Broker, decode_broker, topic_config
from zkconsumer.protocol.requests import Code, Create, SetData, Write
from zkconsumer.sandbox.process import until

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer

    from zkconsumer.kafka.client_settings import Settings
    from zkconsumer.zk.client import ZooKeeperClient

# The controller and the brokers have a problem if, for this many seconds and the seconds for each
# partition of the topic, no more partitions have become usable. A busy broker takes tens of
# milliseconds to create a partition's log, and reports none of a request before it has created all.
LEADERS_LIMIT_S = 30.0
LEADERS_LIMIT_PER_PARTITION_S = 0.05

OnProgress = Callable[[int, int], object]
"""Called with the number of partitions that are ready, and the number of all partitions."""

# Seconds within which a message must be in the log; librdkafka's default of 300 s would hide that a
# broker is down.
DELIVERY_LIMIT_S = 30.0
# Seconds that a broker may take to answer a reader.
READ_LIMIT_S = 30.0


_PRODUCER: Settings = {
    "partitioner": "murmur2_random",
    "linger.ms": 1,
    "delivery.timeout.ms": round(DELIVERY_LIMIT_S * 1000),
    "topic.metadata.refresh.interval.ms": 1000,
    "log_level": 0,
}


class PartitionPlacement(NamedTuple):
    """The broker ids of a partition's replicas, and its leader (None if it has none yet)."""

    partition: int
    replicas: tuple[int, ...]
    leader: int | None


class Placed(NamedTuple):
    """The partition and offset of a produced message."""

    partition: int
    offset: int


class TopicOptions(TypedDict, total=False):
    """The options of a new topic, in the sandbox and on the fake servers.

    Attributes:
        partitions: the number of partitions, at least 1; default: 1.
        replicas: the number of replicas of each partition; default: 1.
        config: Kafka's settings of the topic, such as `retention.ms`; default: none.
    """

    partitions: int
    replicas: int
    config: Mapping[str, object] | None


@contextmanager
def session(zookeeper_connect: str) -> Iterator[ZooKeeperClient]:
    """Connect to ZooKeeper for a few operations.

    Raises:
        SandboxError: there is no session within 5 s, or an operation failed in ZooKeeper.
    """
    from zkconsumer.config.settings import ConnectionConfig
    from zkconsumer.zk.client import ZooKeeperClient

    config = ConnectionConfig(
        zookeeper_connect=zookeeper_connect,
        zookeeper_session_timeout_s=10.0,
        zookeeper_connection_timeout_s=5.0,
    )
    try:
        with ZooKeeperClient(config) as client:
            yield client
    except SandboxError:
        raise
    except ZkConsumerError as error:
        raise SandboxError(
            f"ZooKeeper failed: {error.what}",
            where=zookeeper_connect,
            remedy="check that the sandbox runs and that the chroot is right",
        ) from error


def client_settings(zookeeper_connect: str) -> Settings:
    """Return librdkafka's settings for the registered brokers, including the protocol of old
    brokers.

    Raises:
        SandboxError: no broker is registered.
    """
    from zkconsumer.kafka.client_settings import Brokers, broker_settings

    with session(zookeeper_connect) as zk:
        return broker_settings(Brokers(_brokers(zk).values()))


def _brokers(zk: ZooKeeperClient) -> dict[int, Broker]:
    """Return the live brokers by id. Raises SandboxError if there is none."""
    ids = zk.children([BROKER_IDS]).get(BROKER_IDS, ())
    nodes = zk.read(map(broker, ids))
    found = {
        int(number): decode_broker(nodes[path].data, where=path)
        for number in ids
        if (path := broker(number)) in nodes
    }
    if not found:
        raise SandboxError("no broker is registered", where=BROKER_IDS, remedy="start a broker")
    return found


def _assignment(brokers: list[int], partitions: range, replicas: int) -> dict[str, list[int]]:
    """Return the replicas of new partitions. Raises SandboxError."""
    if not partitions:
        raise SandboxError("a topic has at least one partition", remedy="ask for one or more")
    count = len(brokers)
    if not 1 <= replicas <= count:
        most = "1, because there is one broker" if count == 1 else f"1 to {count}, one per broker"
        raise SandboxError(
            f"{replicas} replicas cannot be placed", remedy=f"ask for {most}, or start more brokers"
        )
    return {str(p): [brokers[(p + r) % count] for r in range(replicas)] for p in partitions}


def _write(zk: ZooKeeperClient, path: str, record: Mapping[str, object] | None) -> None:
    """Write a znode in one transaction, with the parents that are missing; None is no payload."""
    payload = b"" if record is None else json.dumps(record, separators=(",", ":")).encode()
    parents = ["/".join(path.split("/")[:end]) for end in range(2, path.count("/") + 1)]
    there = zk.stats([*parents, path])
    writes: list[Write] = [Create(parent) for parent in parents if parent not in there]
    writes.append(SetData(path, payload, -1) if path in there else Create(path, payload))
    reply = zk.write(writes)
    if reply.code is not Code.OK:
        raise SandboxError(
            f"ZooKeeper has not written the znode ({reply.code.name})",
            where=path,
            remedy="check that the sandbox runs, and try again",
        )


def _topic_record(zk: ZooKeeperClient, name: str) -> JsonObject:
    found = zk.read([topic(validate_topic(name))]).get(topic(name))
    if found is None:
        raise SandboxError(
            f"topic {name} does not exist", where=topic(name), remedy="create it first"
        )
    record: JsonObject = json.loads(found.data or b"")
    return record


def _placements(zk: ZooKeeperClient, name: str) -> tuple[PartitionPlacement, ...]:
    assignment = {int(p): tuple(ids) for p, ids in _topic_record(zk, name)["partitions"].items()}
    states = zk.read(partition_state(name, p) for p in assignment)
    placements = []
    for partition in sorted(assignment):
        state = states.get(partition_state(name, partition))
        leader = json.loads(state.data or b"")["leader"] if state else -1
        placements.append(
            PartitionPlacement(partition, assignment[partition], leader if leader >= 0 else None)
        )
    return tuple(placements)


def _await_leaders(
    zk: ZooKeeperClient, name: str, on_progress: OnProgress
) -> tuple[PartitionPlacement, ...]:
    found: list[PartitionPlacement] = []

    def led() -> int:
        found[:] = _placements(zk, name)
        return sum(placement.leader is not None for placement in found)

    total = len(_topic_record(zk, name)["partitions"])
    if (stuck_s := _stuck_s(led, total, on_progress)) is not None:
        without = [placement.partition for placement in found if placement.leader is None]
        raise SandboxError(
            f"{len(without)} of {total} partitions of {name} have no leader, and none got one for"
            f" {stuck_s:.0f} s: {first_few(without, 10)}",
            remedy="see the brokers' logs",
        )
    for one in _brokers(zk).values():
        _await_metadata(one, name, total, on_progress)
    return tuple(found)


def _stuck_s(ready: Callable[[], int], total: int, on_progress: OnProgress) -> float | None:
    """Wait until `ready()` returns `total`. Return the seconds without progress after which the
    wait was given up, or None."""
    limit_s = LEADERS_LIMIT_S + total * LEADERS_LIMIT_PER_PARTITION_S
    most = -1

    def has_grown() -> bool:
        nonlocal most
        before, most = most, max(most, ready())
        return most > before

    while until(has_grown, limit_s=limit_s):
        on_progress(most, total)
        if most >= total:
            return None
    return limit_s


def _await_metadata(one: Broker, name: str, partitions: int, on_progress: OnProgress) -> None:
    """Wait until a broker knows the topic: the controller informs brokers after ZooKeeper, and
    until then clients get errors.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from zkconsumer.kafka.client_settings import Brokers, broker_settings

    admin = AdminClient({**broker_settings(Brokers([one])), "log_level": 0})

    def known() -> int:
        try:
            answer = admin.list_topics(name, timeout=5.0).topics[name]
        except KafkaException:
            return 0
        return sum(p.error is None and p.leader >= 0 for p in answer.partitions.values())

    if (stuck_s := _stuck_s(known, partitions, on_progress)) is not None:
        raise SandboxError(
            f"a broker does not know all {partitions} partitions of topic {name}, and learnt of no"
            f" more for {stuck_s:.0f} s",
            where=f"{one.host}:{one.port}",
            remedy="see the brokers' logs",
        )


def _check_partition(name: str, partition: int | None, partitions: int) -> None:
    if partition is not None and not 0 <= partition < partitions:
        raise SandboxError(
            f"topic {name} has no partition {partition}", remedy=f"it has {partitions} partitions"
        )


def _send(producer: Producer, name: str, **message: Json) -> None:
    """Pass a message to librdkafka. If its queue of 100,000 messages is full, wait for
    deliveries.
    """
    deadline = time.monotonic() + DELIVERY_LIMIT_S
    while True:
        try:
            producer.produce(name, **message)
        except BufferError:
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"the producer's queue for {name} stays full",
                    remedy="check that the broker runs; see its log",
                ) from None
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def _read(consumer: Consumer, name: str, number: int) -> Iterator[Message]:
    """Yield the messages of a partition up to its end now. Raises KafkaException."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    first, end = _log_range(consumer, name, number)
    if first == end:
        return
    consumer.assign([TopicPartition(name, number, first)])
    while (one := consumer.poll(READ_LIMIT_S)) is not None:
        error = one.error()
        if error is None:
            yield one
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        else:
            raise KafkaException(error)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _log_range(consumer: Consumer, name: str, number: int) -> tuple[int, int]:
    """Return the first offset of a log, and the offset of the next message. Raises KafkaException.

    Brokers before 0.10.1 copy the list of segments without a lock (KafkaApis.fetchOffsetsBefore).
    If the log cleaner removes a segment meanwhile, the copy ends with null, and the broker answers
    with the code UNKNOWN. The next request succeeds.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    attempts = 10
    while True:
        try:
            first, end = consumer.get_watermark_offsets(TopicPartition(name, number), READ_LIMIT_S)
        except KafkaException as error:
            attempts -= 1
            if error.args[0].code() != KafkaError.UNKNOWN or not attempts:
                raise
        else:
            return int(first), int(end)


class ServerTopics:
    """The topics of the brokers that are registered in one ZooKeeper."""

    def __init__(self, zookeeper_connect: str) -> None:
        self._connect = zookeeper_connect

    @property
    def zookeeper_connect(self) -> str:
        """The value of `zookeeper.connect`."""
        return self._connect

    def create_topic(
        self,
        name: str,
        *,
        on_progress: OnProgress = lambda ready, total: None,
        **options: Unpack[TopicOptions],
    ) -> tuple[PartitionPlacement, ...]:
        """Create a topic and wait until every broker knows a leader of every partition.

        Replica r of partition p is on the live broker with index (p + r) modulo the number of live
        brokers. The wait lasts as long as more partitions become ready; `on_progress` reports them.

        Raises:
            SandboxError: the topic exists, it has no partition, there are fewer brokers than
                replicas, or a partition gets no leader.
        """
        validate_topic(name)
        with session(self.zookeeper_connect) as zk:
            if zk.stats([topic(name)]):
                raise SandboxError(f"topic {name} already exists", remedy="choose another name")
            numbers = range(options.get("partitions", 1))
            assignment = _assignment(sorted(_brokers(zk)), numbers, options.get("replicas", 1))
            config = topic_config(options.get("config"))
            # Write in the order of AdminUtils: the configuration first, because the assignment
            # triggers the controller.
            _write(zk, f"/config/topics/{name}", config)
            _write(zk, topic(name), {"version": 1, "partitions": assignment})
            return _await_leaders(zk, name, on_progress)

    def add_partitions(
        self,
        name: str,
        *,
        partitions: int,
        on_progress: OnProgress = lambda ready, total: None,
    ) -> tuple[PartitionPlacement, ...]:
        """Raise a topic's partition count to `partitions`; wait for the leaders as `create_topic`.

        Raises:
            SandboxError: the topic does not exist or already has as many partitions, or a partition
                gets no leader.
        """
        with session(self.zookeeper_connect) as zk:
            record = _topic_record(zk, name)
            present: dict[str, list[int]] = record["partitions"]
            if partitions <= len(present):
                raise SandboxError(
                    f"topic {name} has {len(present)} partitions", remedy="a topic can only grow"
                )
            replicas = max(map(len, present.values()))
            fresh = _assignment(sorted(_brokers(zk)), range(len(present), partitions), replicas)
            _write(zk, topic(name), record | {"partitions": present | fresh})
            return _await_leaders(zk, name, on_progress)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until the controller has removed it.

        Raises:
            SandboxError: the topic does not exist, or still exists after 30 s.
        """
        with session(self.zookeeper_connect) as zk:
            _topic_record(zk, name)
            _write(zk, f"/admin/delete_topics/{name}", None)
            if not until(lambda: not zk.stats([topic(name)]), limit_s=LEADERS_LIMIT_S):
                raise SandboxError(
                    f"topic {name} still exists",
                    remedy="deletion needs the brokers of all its replicas",
                )

    def list_topics(self) -> tuple[str, ...]:
        """Return the names of all topics, sorted."""
        with session(self.zookeeper_connect) as zk:
            return tuple(zk.children([TOPICS]).get(TOPICS, ()))

    def produce(
        self,
        name: str,
        messages: int | Iterable[str | bytes | None],
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[Placed]:
        """Produce messages and wait until all are in the log.

        Args:
            name: the topic; it must exist.
            messages: the values in order; a number n means the n values `0`, `1`, ... `n-1`.
            key: the key of every message; it determines the partition as in the Java producer
                (murmur2 hash).
            partition: the partition of all messages; None: the key determines it.
            timestamp_ms: the timestamp of all messages, in ms since 1970; None: the current time.

        Returns:
            Partition and offset of each message, in the given order.

        Raises:
            SandboxError: the topic or partition does not exist, or a message was not accepted
                within 30 s.
        """
        if isinstance(messages, int):
            messages = map(str, range(messages))
        keyed = ((key, message) for message in messages)
        return self.produce_keyed(name, keyed, partition=partition, timestamp_ms=timestamp_ms)

    def produce_keyed(
        self,
        name: str,
        messages: Iterable[tuple[str | bytes | None, str | bytes | None]],
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[Placed]:
        """Produce pairs of key and value as `produce` does, each message with its own key."""
        from confluent_kafka import KafkaException, Producer

        from zkconsumer.kafka.client_settings import Brokers, broker_settings

        with session(self.zookeeper_connect) as zk:
            partitions = len(_topic_record(zk, name)["partitions"])
            cluster = broker_settings(Brokers(_brokers(zk).values()))
        _check_partition(name, partition, partitions)
        producer = Producer({**cluster, **_PRODUCER})
        placed: list[Placed | None] = []
        failures: list[str] = []
        given = {"partition": partition, "timestamp": timestamp_ms}
        target = {name: number for name, number in given.items() if number is not None}

        def deliver(number: int) -> Callable[[KafkaError | None, Message], None]:
            def delivered(error: KafkaError | None, message: Message) -> None:
                if error is None:
                    # A delivered message has a partition and an offset.
                    placed[number] = Placed(message.partition() or 0, message.offset() or 0)
                else:
                    failures.append(error.str())

            return delivered

        try:
            for number, (key, value) in enumerate(messages):
                placed.append(None)
                _send(producer, name, value=value, key=key, on_delivery=deliver(number), **target)
                if failures:
                    break
        except KafkaException as error:
            failures.append(error.args[0].str())
        producer.flush(DELIVERY_LIMIT_S)
        done = [place for place in placed if place is not None]
        if failures or len(done) < len(placed):
            raise SandboxError(
                f"{len(done)} of {len(placed)} messages reached {name}",
                where=failures[0] if failures else f"no answer within {DELIVERY_LIMIT_S:.0f} s",
                remedy="see the brokers' logs",
            )
        return done

    def messages(self, topic: str, *, partition: int | None = None) -> list[Message]:
        """Return the messages of a topic now, each partition's in their order.

        Messages of open and of aborted transactions are among them.

        Args:
            topic: the topic.
            partition: the only partition to read; None: all.

        Raises:
            SandboxError: there is no such topic or partition, or a broker does not answer within
                30 s.
        """
        from confluent_kafka import Consumer, KafkaException

        from zkconsumer.kafka.client_settings import Brokers, broker_settings

        with session(self.zookeeper_connect) as zk:
            numbers = range(len(_topic_record(zk, topic)["partitions"]))
            cluster = broker_settings(Brokers(_brokers(zk).values()))
        _check_partition(topic, partition, len(numbers))
        settings = {
            **cluster,
            "group.id": "zkconsumer.sandbox",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
        with closing(Consumer(settings)) as consumer:
            try:
                return [
                    one
                    for number in (numbers if partition is None else [partition])
                    for one in _read(consumer, topic, number)
                ]
            except KafkaException as error:
                raise SandboxError(
                    f"the messages of {topic} cannot be read: {error.args[0].str()}",
                    remedy="see the brokers' logs",
                ) from error
