"""Topics of a cluster in ZooKeeper mode, and messages for them.

Topics are made as `kafka-topics.sh --zookeeper` made them (kafka.admin.AdminUtils): the assignment
is written to `/brokers/topics/TOPIC`, and the controller does the rest. That works with every
release from 0.8.2 to 3.9, with no admin protocol.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from zkconsumer.errors import SandboxError
from zkconsumer.protocol.paths import BROKER_IDS, TOPICS, broker, topic, validate_topic
from zkconsumer.protocol.payloads import Broker, decode_broker
from zkconsumer.sandbox.process import until

if TYPE_CHECKING:
    from kazoo.client import KazooClient

# The controller needs 10 ms per partition on a busy machine; after this many seconds without
# leaders for all of a topic's partitions something is wrong with the brokers.
LEADERS_LIMIT_S = 30.0

# Seconds until a message must be in the log; librdkafka's default of 300 hides a broker's absence.
DELIVERY_LIMIT_S = 30.0


class PartitionPlacement(NamedTuple):
    """Where a partition lives: the broker ids of its replicas, and its leader (None: none yet)."""

    partition: int
    replicas: tuple[int, ...]
    leader: int | None


class Placed(NamedTuple):
    """Where a produced message went."""

    partition: int
    offset: int


@contextmanager
def session(zookeeper_connect: str) -> Iterator[KazooClient]:
    """A ZooKeeper session for a few operations.

    Raises:
        SandboxError: no session within 5 s, or an operation failed in ZooKeeper.
    """
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(zookeeper_connect, timeout=10.0)
    try:
        client.start(timeout=5.0)
        yield client
    except (KazooException, KazooTimeoutError) as error:
        raise SandboxError(
            f"ZooKeeper failed: {error or type(error).__name__}",
            where=zookeeper_connect,
            remedy="is the sandbox up, and the chroot right?",
        ) from error
    finally:
        with suppress(AttributeError):  # kazoo's own, where Ctrl-C came within `start`
            client.stop()
        client.close()


def client_settings(zookeeper_connect: str) -> dict[str, str | bool]:
    """With what librdkafka reaches the registered brokers; those of old ones name the protocol.

    Raises:
        SandboxError: no broker is registered.
    """
    from zkconsumer.kafka.client_settings import broker_settings

    with session(zookeeper_connect) as zk:
        return broker_settings(list(_brokers(zk).values()))


def create_topic(
    zookeeper_connect: str,
    name: str,
    *,
    partitions: int = 1,
    replicas: int = 1,
    config: Mapping[str, object] | None = None,
) -> tuple[PartitionPlacement, ...]:
    """Creates a topic and waits until every broker knows a leader of every partition.

    Replica r of partition p lies on the (p + r)-th broker of the live ones, counted round.

    Raises:
        SandboxError: the topic exists, there are fewer brokers than replicas, or no leaders come.
    """
    validate_topic(name)
    with session(zookeeper_connect) as zk:
        if zk.exists(topic(name)):
            raise SandboxError(f"topic {name} exists", remedy="choose another name")
        assignment = _assignment(sorted(_brokers(zk)), range(partitions), replicas)
        settings = {key: str(value) for key, value in (config or {}).items()}
        # In the order of AdminUtils: the configuration first, for the assignment is the trigger.
        _write(zk, f"/config/topics/{name}", {"version": 1, "config": settings})
        _write(zk, topic(name), {"version": 1, "partitions": assignment})
        return _await_leaders(zk, name)


def add_partitions(
    zookeeper_connect: str, name: str, *, partitions: int
) -> tuple[PartitionPlacement, ...]:
    """Raises a topic's partition count to `partitions` and waits for the leaders.

    Raises:
        SandboxError: the topic is unknown or has as many already, or no leaders come.
    """
    with session(zookeeper_connect) as zk:
        record = _topic_record(zk, name)
        present: dict[str, list[int]] = record["partitions"]
        if partitions <= len(present):
            raise SandboxError(
                f"topic {name} has {len(present)} partitions", remedy="a topic can only grow"
            )
        replicas = max(map(len, present.values()))
        fresh = _assignment(sorted(_brokers(zk)), range(len(present), partitions), replicas)
        _write(zk, topic(name), record | {"partitions": present | fresh})
        return _await_leaders(zk, name)


def delete_topic(zookeeper_connect: str, name: str) -> None:
    """Deletes a topic and waits until the controller has removed it.

    Raises:
        SandboxError: the topic is unknown, or still there after 30 s.
    """
    with session(zookeeper_connect) as zk:
        _topic_record(zk, name)
        zk.ensure_path("/admin/delete_topics")
        zk.create(f"/admin/delete_topics/{name}")
        if not until(lambda: not zk.exists(topic(name)), limit_s=LEADERS_LIMIT_S):
            raise SandboxError(
                f"topic {name} is still there", remedy="deletion needs all its replicas' brokers"
            )


def list_topics(zookeeper_connect: str) -> tuple[str, ...]:
    """The names of all topics, sorted."""
    with session(zookeeper_connect) as zk:
        return tuple(sorted(zk.get_children(TOPICS)))


def describe_topic(zookeeper_connect: str, name: str) -> tuple[PartitionPlacement, ...]:
    """Where a topic's partitions live.

    Raises:
        SandboxError: the topic is unknown.
    """
    with session(zookeeper_connect) as zk:
        return _placements(zk, name)


def _brokers(zk: KazooClient) -> dict[int, Broker]:
    """The live brokers by id; at least one."""
    ids = zk.get_children(BROKER_IDS) if zk.exists(BROKER_IDS) else []
    if not ids:
        raise SandboxError("no broker is registered", where=BROKER_IDS, remedy="start one")
    return {int(i): decode_broker(zk.get(broker(i))[0], where=broker(i)) for i in ids}


def _assignment(
    brokers: list[int], partitions: Iterable[int], replicas: int
) -> dict[str, list[int]]:
    count = len(brokers)
    if not 1 <= replicas <= count:
        most = "1, for there is one broker" if count == 1 else f"1 to {count}, one per broker"
        raise SandboxError(
            f"{replicas} replicas cannot be placed", remedy=f"ask for {most}, or start more brokers"
        )
    return {str(p): [brokers[(p + r) % count] for r in range(replicas)] for p in partitions}


def _write(zk: KazooClient, path: str, record: Mapping[str, object]) -> None:
    payload = json.dumps(record, separators=(",", ":")).encode()
    if zk.exists(path):
        zk.set(path, payload)
    else:
        zk.create(path, payload, makepath=True)


def _topic_record(zk: KazooClient, name: str) -> dict[str, Any]:
    if not zk.exists(topic(validate_topic(name))):
        raise SandboxError(f"topic {name} is unknown", where=topic(name), remedy="create it first")
    record: dict[str, Any] = json.loads(zk.get(topic(name))[0])
    return record


def _placements(zk: KazooClient, name: str) -> tuple[PartitionPlacement, ...]:
    from kazoo.exceptions import NoNodeError

    assignment = {int(p): tuple(ids) for p, ids in _topic_record(zk, name)["partitions"].items()}
    pending = {p: zk.get_async(f"{topic(name)}/partitions/{p}/state") for p in sorted(assignment)}
    placements = []
    for partition, result in pending.items():
        try:
            leader = json.loads(result.get()[0])["leader"]
        except NoNodeError:
            leader = -1
        placements.append(
            PartitionPlacement(partition, assignment[partition], leader if leader >= 0 else None)
        )
    return tuple(placements)


def _await_leaders(zk: KazooClient, name: str) -> tuple[PartitionPlacement, ...]:
    found: list[PartitionPlacement] = []

    def led() -> bool:
        found[:] = _placements(zk, name)
        return all(placement.leader is not None for placement in found)

    if not until(led, limit_s=LEADERS_LIMIT_S):
        without = [placement.partition for placement in found if placement.leader is None]
        raise SandboxError(
            f"no leader after {LEADERS_LIMIT_S:.0f} s for partitions {without} of {name}",
            remedy="see the brokers' logs",
        )
    for one in _brokers(zk).values():
        _await_metadata(one, name, len(found))
    return tuple(found)


def _await_metadata(one: Broker, name: str, partitions: int) -> None:
    """The controller tells the brokers after ZooKeeper; a client that comes between is refused."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from zkconsumer.kafka.client_settings import broker_settings

    admin = AdminClient({**broker_settings([one]), "log_level": 0})

    def known() -> bool:
        try:
            answer = admin.list_topics(name, timeout=5.0).topics[name]
        except KafkaException:
            return False
        leaders = [p.leader for p in answer.partitions.values() if p.error is None]
        return len(leaders) >= partitions and min(leaders) >= 0

    if not until(known, limit_s=LEADERS_LIMIT_S):
        raise SandboxError(
            f"topic {name} is unknown to a broker after {LEADERS_LIMIT_S:.0f} s",
            where=f"{one.host}:{one.port}",
            remedy="see the brokers' logs",
        )


def produce(
    zookeeper_connect: str,
    name: str,
    messages: int | Iterable[str | bytes | None],
    *,
    key: str | bytes | None = None,
    partition: int | None = None,
) -> list[Placed]:
    """Produces messages and waits until all are in the log.

    Args:
        zookeeper_connect: where the brokers are registered.
        name: the topic; it must exist.
        messages: the values in order; a number n stands for the n values `0`, `1`, ... `n-1`.
        key: of every message; the partition is chosen from it as the Java producer does (murmur2).
        partition: for all messages, instead of that choice.

    Returns:
        Partition and offset of each message, in the order given.

    Raises:
        SandboxError: there is no such topic or partition, or a message was not accepted within
            30 s.
    """
    if isinstance(messages, int):
        messages = map(str, range(messages))
    keyed = ((key, message) for message in messages)
    return produce_keyed(zookeeper_connect, name, keyed, partition=partition)


def produce_keyed(
    zookeeper_connect: str,
    name: str,
    messages: Iterable[tuple[str | bytes | None, str | bytes | None]],
    *,
    partition: int | None = None,
) -> list[Placed]:
    """As `produce`, each message with a key of its own: pairs of key and value."""
    from confluent_kafka import KafkaException, Producer

    from zkconsumer.kafka.client_settings import broker_settings

    with session(zookeeper_connect) as zk:
        partitions = len(_topic_record(zk, name)["partitions"])
        cluster = broker_settings(list(_brokers(zk).values()))
    if partition is not None and not 0 <= partition < partitions:
        raise SandboxError(
            f"topic {name} has no partition {partition}", remedy=f"it has {partitions}"
        )
    producer = Producer(
        {
            **cluster,
            "partitioner": "murmur2_random",
            "linger.ms": 1,
            "delivery.timeout.ms": round(DELIVERY_LIMIT_S * 1000),
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
        }
    )
    placed: list[Placed | None] = []
    failures: list[str] = []
    target = {} if partition is None else {"partition": partition}

    def deliver(number: int) -> Any:
        def delivered(error: Any, message: Any) -> None:
            if error is None:
                placed[number] = Placed(message.partition(), message.offset())
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


def _send(producer: Any, name: str, **message: Any) -> None:
    """Hands a message to librdkafka; when its queue (100,000) is full, waits for deliveries."""
    deadline = time.monotonic() + DELIVERY_LIMIT_S
    while True:
        try:
            producer.produce(name, **message)
        except BufferError:
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"the producer's queue for {name} stays full",
                    remedy="is the broker up? see its log",
                ) from None
            producer.poll(0.1)
        else:
            producer.poll(0)
            return
