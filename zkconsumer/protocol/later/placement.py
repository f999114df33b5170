"""Kafka's placement rules: the partition of a key, replicas on brokers.

Sources: `Utils.murmur2` of Kafka 3.9.1, `DefaultPartitioner` and
`ByteArrayPartitioner` of the Scala producer 0.8.0-1.1, and `AdminUtils` of 0.8.2-3.9. Brokers in
KRaft mode place replicas with another class (`StripedReplicaPlacer`), which is not described here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest

from zkconsumer.errors import ConfigError
from zkconsumer.protocol.java.text import java_abs, utf16_key

_MURMUR_SEED = 0x9747B28C
_MURMUR_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


# ---- partitioners --------------------------------------------------------------------------------


def bytes_hash(data: bytes) -> int:
    """Return `Arrays.hashCode(byte[])`, a signed number of 32 bits."""
    value = 1
    for byte in data:
        value = (31 * value + (byte - 256 if byte > 127 else byte)) & _MASK
    return _signed(value)


def murmur2(data: bytes) -> int:
    """Return `Utils.murmur2`, a signed number of 32 bits."""
    value = _MURMUR_SEED ^ len(data)
    whole = len(data) - len(data) % 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MURMUR_FACTOR & _MASK
        word = (word ^ word >> 24) * _MURMUR_FACTOR & _MASK
        value = (value * _MURMUR_FACTOR & _MASK) ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MURMUR_FACTOR & _MASK
    value = (value ^ value >> 13) * _MURMUR_FACTOR & _MASK
    return _signed(value ^ value >> 15)


def partition_of_hash(code: int, partitions: int) -> int:
    """Return the Scala producer's partition for a hash code, from 0.8.2 on: `abs(code) % n`."""
    return java_abs(code) % partitions


def partition_of_masked_hash(code: int, partitions: int) -> int:
    """Return the Scala producer's partition in 0.8.0 and 0.8.1: `(code & 0x7fffffff) % n`.

    The result differs from `partition_of_hash` for negative hash codes.
    """
    return (code & 0x7FFFFFFF) % partitions


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the Java producer's partition for a serialized key (`BuiltInPartitioner`)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def _signed(value: int) -> int:
    return value - 2**32 if value >> 31 else value


# ---- replicas ------------------------------------------------------------------------------------


def simple_placement(
    brokers: Sequence[int], partitions: int, replicas: int
) -> dict[int, list[int]]:
    """Return the placement in many tutorials: replica j of partition i on broker (i + j) mod n.

    Raises:
        ConfigError: in the cases of `place_replicas`.
    """
    order = _checked(brokers, partitions, replicas)
    return {
        one: [order[(one + replica) % len(order)] for replica in range(replicas)]
        for one in range(partitions)
    }


def place_replicas(
    brokers: Sequence[int],
    partitions: int,
    replicas: int,
    *,
    start: int,
    shift: int,
    first_partition: int = 0,
    racks: Mapping[int, str] | None = None,
) -> dict[int, list[int]]:
    """Return the brokers of each partition, leader first (`AdminUtils.assignReplicasToBrokers`).

    Args:
        brokers: broker ids.
        partitions: number of partitions to place.
        replicas: number of replicas of each partition.
        start: index of the broker that leads partition 0; Kafka draws it at random.
        shift: distance between the first two replicas, minus 1; Kafka draws it at random.
        first_partition: number of the first partition, if partitions are added to a topic.
        racks: rack of each broker; None: racks are ignored.

    Raises:
        ConfigError: a number is too small, there are fewer brokers than replicas, a broker occurs
            twice, or some brokers have a rack and others have none.
    """
    order = _checked(brokers, partitions, replicas)
    if start < 0 or shift < 0 or first_partition < 0:
        raise ConfigError("start, shift and the first partition cannot be negative")
    if racks:
        if any(broker not in racks for broker in order):
            raise ConfigError(
                "some brokers have a rack and others have none",
                remedy="give the rack of each broker, or of none",
            )
        order = rack_alternated(racks, order)
    placement = {}
    for number in range(first_partition, first_partition + partitions):
        shift += number > 0 and number % len(order) == 0
        first = (number + start) % len(order)
        placement[number] = _replicas_of(order, first, shift, replicas, racks)
    return placement


def rack_alternated(racks: Mapping[int, str], brokers: Sequence[int]) -> list[int]:
    """Order brokers so that neighbours are in different racks (`getRackAlternatedBrokerList`).

    The list takes one broker of each rack in turn, in the order of racks, while racks have brokers.
    """
    in_rack: dict[str, list[int]] = {}
    for broker in sorted(brokers):
        in_rack.setdefault(racks[broker], []).append(broker)
    columns = zip_longest(*(in_rack[rack] for rack in sorted(in_rack, key=utf16_key)))
    return [broker for broker in chain.from_iterable(columns) if broker is not None]


def _replicas_of(
    order: list[int], first: int, shift: int, replicas: int, racks: Mapping[int, str] | None
) -> list[int]:
    found = [order[first]]
    if racks:
        known = {racks[broker] for broker in order}
        shift *= len(known)
    step = 0
    while len(found) < replicas:
        broker = order[(first + 1 + (shift + step) % (len(order) - 1)) % len(order)]
        step += 1
        if racks:
            covered = {racks[one] for one in found}
            if broker in found or (racks[broker] in covered and covered != known):
                continue
        found.append(broker)
    return found


def _checked(brokers: Sequence[int], partitions: int, replicas: int) -> list[int]:
    if partitions < 1 or replicas < 1:
        raise ConfigError("there must be at least one partition and one replica")
    if replicas > len(brokers):
        raise ConfigError(f"{replicas} replicas do not fit on {len(brokers)} brokers")
    if len(set(brokers)) < len(brokers):
        raise ConfigError("a broker id occurs twice", remedy="name each broker once")
    return sorted(brokers)
