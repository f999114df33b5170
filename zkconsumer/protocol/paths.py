"""Where everything lies in ZooKeeper: the only module that knows paths (Kafka's `ZkUtils`).

All paths are relative to the chroot of `zookeeper.connect`. The functions that build paths trust
their arguments: names from users pass `validate_*` first, names from registrations pass
`znode_fault` in the decoder.

Topic counts and the names that follow from them: consumer ids and consumer thread ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from zkconsumer.errors import ConfigError, InvalidNameError, shown
from zkconsumer.protocol.java.text import MAX_INT32, MIN_INT32
from zkconsumer.protocol.model import TopicPartition

CONSUMERS = "/consumers"
BROKERS = "/brokers"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"

# Characters. Kafka 0.10+ refuses longer topics, because "<topic>-<partition>" must fit in a file
# name of 255; for groups the JVM has no limit and we take the same. Longer names are refused.
MAX_NAME_LENGTH = 249

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME_LENGTH}}}")
_PARTITION = re.compile(r"0|-?[1-9][0-9]{0,9}")
# What ZooKeeper refuses in a path (`PathUtils.validatePath`, seen with 3.8.4): control characters,
# private use, specials, and the surrogates that stand for everything beyond U+FFFF.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


def validate_group(name: str) -> str:
    """Return a usable `group.id`, or raise InvalidNameError.

    `ConsumerConfig.validateChars` allows the empty name, "." and ".." as well, but ZooKeeper then
    refuses the paths, so no JVM consumer ever runs in such a group.
    """
    return _validate("group", name)


def validate_topic(name: str) -> str:
    """Return a legal topic name (`kafka.common.Topic.validate`), or raise InvalidNameError."""
    return _validate("topic", name)


def _validate(kind: str, name: str) -> str:
    if not is_topic(name):
        raise InvalidNameError(
            f"{shown(name)} is no legal {kind} name",
            where=kind,
            remedy=f"use 1 to {MAX_NAME_LENGTH} of the characters A-Z a-z 0-9 . _ -"
            " and neither '.' nor '..'",
        )
    return name


def is_topic(name: str) -> bool:
    """Whether `validate_topic` would take it."""
    return name not in (".", "..") and _NAME.fullmatch(name) is not None


def validate_consumer_id(name: str) -> str:
    """Return a consumer id that can be one znode, or raise InvalidNameError.

    The JVM does not check `consumer.id`; with a slash in it, its registration breaks the group.
    """
    fault = "it contains '/'" if "/" in name else znode_fault(name)
    if fault:
        raise InvalidNameError(
            f"{shown(name)} cannot be a consumer id: {fault}",
            where="consumer.id",
            remedy="choose another, or leave it out for a generated one",
        )
    return name


def znode_fault(name: str) -> str:
    """Why ZooKeeper would refuse `name` below a parent, or "" if it would not.

    `name` may hold slashes: the JVM takes a subscribed topic "a/b" for a path of two levels.
    """
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "a path element is empty, '.' or '..'"
    match = _REFUSED.search(name)
    return f"ZooKeeper refuses the character U+{ord(match[0]):04X}" if match else ""


# ---- building -----------------------------------------------------------------------------------


def group(name: str) -> str:
    """A group's own znode."""
    return f"{CONSUMERS}/{name}"


def ids(group: str) -> str:
    """Parent of the group's registrations."""
    return f"{CONSUMERS}/{group}/ids"


def member(group: str, consumer_id: str) -> str:
    """One member's registration (ephemeral)."""
    return f"{CONSUMERS}/{group}/ids/{consumer_id}"


def owners(group: str) -> str:
    """Parent of the topics that have owners."""
    return f"{CONSUMERS}/{group}/owners"


def owners_of(group: str, topic: str) -> str:
    """Parent of the owner znodes of a topic."""
    return f"{CONSUMERS}/{group}/owners/{topic}"


def owner(group: str, tp: TopicPartition) -> str:
    """The owner znode of a partition (ephemeral)."""
    return f"{CONSUMERS}/{group}/owners/{tp.topic}/{tp.partition}"


def offsets(group: str) -> str:
    """Parent of the topics that have offsets."""
    return f"{CONSUMERS}/{group}/offsets"


def offsets_of(group: str, topic: str) -> str:
    """Parent of the offset znodes of a topic."""
    return f"{CONSUMERS}/{group}/offsets/{topic}"


def offset(group: str, tp: TopicPartition) -> str:
    """The offset znode of a partition (persistent)."""
    return f"{CONSUMERS}/{group}/offsets/{tp.topic}/{tp.partition}"


def edits(group: str) -> str:
    """Parent of the marks that our own tools leave when they edit offsets (no JVM reads it)."""
    return f"{CONSUMERS}/{group}/edits"


def edit(group: str, n: int) -> str:
    """One mark of an edit (persistent)."""
    return f"{CONSUMERS}/{group}/edits/{n}"


def broker(broker_id: str | int) -> str:
    """The registration of a broker (ephemeral)."""
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    """The partitions of a topic."""
    return f"{TOPICS}/{name}"


def partition_state(name: str, partition: int) -> str:
    """Leader and in-sync replicas of a partition, as its controller last said."""
    return f"{TOPICS}/{name}/partitions/{partition}/state"


# ---- taking apart -------------------------------------------------------------------------------


class Kind(Enum):
    """What a path is, with what `Located` then says beside the group."""

    IDS = auto()
    MEMBER = auto()  # name: consumer id
    OWNERS_OF = auto()  # name: topic
    OWNER = auto()  # name: topic; partition
    OFFSETS_OF = auto()  # name: topic
    OFFSET = auto()  # name: topic; partition
    EDITS = auto()
    BROKER_IDS = auto()
    BROKER = auto()  # name: broker id
    TOPICS = auto()
    TOPIC = auto()  # name: topic
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Located:
    """The meaning of a path; what does not apply is empty, or -1 for the partition."""

    kind: Kind
    group: str = ""
    name: str = ""
    partition: int = -1


_OTHER = Located(Kind.OTHER)
# (room, number of elements below it) -> meaning
_IN_GROUP = {
    ("ids", 0): Kind.IDS,
    ("ids", 1): Kind.MEMBER,
    ("owners", 1): Kind.OWNERS_OF,
    ("owners", 2): Kind.OWNER,
    ("offsets", 1): Kind.OFFSETS_OF,
    ("offsets", 2): Kind.OFFSET,
    ("edits", 0): Kind.EDITS,
}
_IN_BROKERS = {
    ("ids", 0): Kind.BROKER_IDS,
    ("ids", 1): Kind.BROKER,
    ("topics", 0): Kind.TOPICS,
    ("topics", 1): Kind.TOPIC,
}


def is_partition(name: str) -> bool:
    """Whether a znode's name is a partition, in the form that `owner` and `offset` write."""
    return bool(_PARTITION.fullmatch(name)) and MIN_INT32 <= int(name) <= MAX_INT32


def locate(path: str) -> Located:
    """Say what a path is, to turn a watch event into meaning; never raises.

    A partition counts only in the form that `owner` and `offset` write.
    """
    match path.split("/"):
        case ["", "consumers", group, room, *below]:
            kind = _IN_GROUP.get((room, len(below)), Kind.OTHER)
        case ["", "brokers", room, *below]:
            group, kind = "", _IN_BROKERS.get((room, len(below)), Kind.OTHER)
        case _:
            return _OTHER
    if kind is Kind.OTHER:
        return _OTHER
    if kind not in (Kind.OWNER, Kind.OFFSET):
        return Located(kind, group, below[0] if below else "")
    name, number = below
    if not is_partition(number):
        return _OTHER
    return Located(kind, group, name, int(number))


# ---- topics --------------------------------------------------------------------------------------


# Streams over all topics of one member. A JVM member asked for millions dies of its memory; this
# many threads are far beyond use and still cheap to sort. More are refused, in our own counts and
# in a peer's registration.
MAX_STREAMS = 100_000


def validate_topic_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the topic counts in their order, or raise ConfigError (InvalidNameError for a name).

    An empty mapping is allowed, as in the JVM: such a member counts as one and owns nothing.
    `createMessageStreams` in Kafka 0.8.2-1.1 asserts that every count is at least 1.
    """
    for topic, count in counts.items():
        validate_streams(count, where=validate_topic(topic))
    validate_streams(max(1, sum(counts.values())), where="all topics")
    return dict(counts)


def validate_streams(count: int, *, where: str) -> int:
    """Return a number of streams of one connector, or raise ConfigError.

    `createMessageStreamsByFilter` (Kafka 0.8.2-1.1) takes numbers under 1, too, and registers what
    fails every member of the group.
    """
    if type(count) is not int or count < 1:
        raise ConfigError(
            f"{count!r} streams of a topic are impossible",
            where=where,
            remedy="ask for an integer of at least 1",
        )
    if count > MAX_STREAMS:
        raise ConfigError(
            f"more than {MAX_STREAMS} streams in one connector",
            where=where,
            remedy="more streams than partitions are idle: ask for fewer",
        )
    return count


def default_suffix(*, hostname: str, epoch_ms: int, uuid_msb: int) -> str:
    """A generated consumer id's part after the group (`ZookeeperConsumerConnector`).

    `uuid_msb` is the upper half (64 bits, unsigned) of a random UUID; eight hexadecimal digits of
    it are used, counted after leading zeros have gone.
    """
    return f"{hostname}-{epoch_ms}-{uuid_msb:x}"[: len(f"{hostname}-{epoch_ms}-") + 8]


def consumer_id(group: str, suffix: str) -> str:
    """`<group>_<suffix>`; raises InvalidNameError if it cannot be one znode."""
    return validate_consumer_id(f"{group}_{suffix}")


def thread_id(consumer: str, number: int) -> str:
    """The consumer thread id that an owner znode holds: `<consumer id>-<n>`, n from 0."""
    return f"{consumer}-{number}"


def consumer_of(thread: str) -> str:
    """Return the consumer id in a thread id: the text before the last `-`.

    `kafka.admin.ConsumerGroupCommand` cuts a thread id in the same way.
    """
    return thread.rpartition("-")[0]


def thread_ids(consumer: str, count: int) -> tuple[str, ...]:
    """A consumer's thread ids for a topic with `count` streams, by number."""
    return tuple(thread_id(consumer, number) for number in range(count))
