"""The paths of all znodes, consumer ids and consumer thread ids (Kafka: `ZkUtils`, `TopicCount`).

Only this module knows how paths are built. All paths are relative to the chroot of
`zookeeper.connect`. The functions that build paths do not check their arguments: names from users
pass `validate_*` first, and the decoder checks names from registrations with `znode_fault`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from zkconsumer.errors import ConfigError, InvalidNameError, quoted
from zkconsumer.protocol import arguments
from zkconsumer.protocol.java.text import MAX_INT32, MIN_INT32
from zkconsumer.protocol.model import TopicPartition

CONSUMERS = "/consumers"
BROKERS = "/brokers"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"

# Maximum number of characters of a topic or group; a longer name is rejected. Kafka 0.10 and later
# reject longer topics, because "<topic>-<partition>" must fit into a file name of 255 characters.
# The JVM has no limit for groups; zkconsumer applies the limit for topics to groups, too.
MAX_NAME_LENGTH = 249

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME_LENGTH}}}")
_PARTITION = re.compile(r"0|-?[1-9][0-9]{0,9}")
# Characters that ZooKeeper rejects in a path (`PathUtils.validatePath`, verified with 3.8.4):
# control characters, private use, specials, and the surrogates of all characters beyond U+FFFF.
_REFUSED: Final = "[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]"


def validate_group(name: str) -> str:
    """Return a usable `group.id`, or raise InvalidNameError.

    Kafka's `ConsumerConfig.validateChars` also allows the empty name, "." and "..". ZooKeeper
    rejects the resulting paths, so no JVM consumer can run in such a group.
    """
    return _validate("group", name)


def validate_group_znode(name: str) -> str:
    """Return the name of a group that may exist in ZooKeeper, or raise InvalidNameError.

    Other clients do not check the name as Kafka does, so tools meet groups whose names contain
    blanks, `#` or `:`. No consumer of Kafka or zkconsumer can join such a group.
    """
    fault = "it contains '/'" if "/" in name else znode_fault(name)
    if fault:
        raise InvalidNameError(
            f"{quoted(name)} is not a legal group name: {fault}",
            where="group",
            remedy="list the existing groups",
        )
    return name


def validate_topic(name: str) -> str:
    """Return a legal topic name (`kafka.common.Topic.validate`), or raise InvalidNameError."""
    return _validate("topic", name)


def _validate(kind: str, name: str) -> str:
    if not is_topic(name):
        raise InvalidNameError(
            f"{quoted(name)} is not a legal {kind} name",
            where=kind,
            remedy=f"use 1 to {MAX_NAME_LENGTH} of the characters A-Z a-z 0-9 . _ -"
            " and neither '.' nor '..'",
        )
    return name


def is_topic(name: str) -> bool:
    """Return whether `validate_topic` accepts the name."""
    return name not in (".", "..") and _NAME.fullmatch(name) is not None


def validate_consumer_id(name: str) -> str:
    """Return a consumer id that can be the name of one znode, or raise InvalidNameError.

    The JVM does not check `consumer.id`. A registration under an id with a slash makes every member
    of the group fail.
    """
    fault = "it contains '/'" if "/" in name else znode_fault(name)
    if fault:
        raise InvalidNameError(
            f"{quoted(name)} cannot be a consumer id: {fault}",
            where="consumer.id",
            remedy="choose another id, or omit it: zkconsumer then generates one",
        )
    return name


def znode_fault(name: str) -> str:
    """Return why ZooKeeper would reject `name` below a parent, or "" if it would accept it.

    `name` may contain slashes: the JVM treats a subscribed topic "a/b" as a path of two levels.
    """
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "a path element is empty, '.' or '..'"
    if name.isascii() and name.isprintable():
        return ""  # most names; compiling the expression takes 0.8 ms
    match = re.search(_REFUSED, name)
    return f"ZooKeeper refuses the character U+{ord(match[0]):04X}" if match else ""


# ---- building paths -----------------------------------------------------------------------------


def group(name: str) -> str:
    """A group's own znode."""
    return f"{CONSUMERS}/{name}"


def ids(group: str) -> str:
    """The parent of the group's registrations."""
    return f"{CONSUMERS}/{group}/ids"


def member(group: str, consumer_id: str) -> str:
    """The registration of one member (ephemeral)."""
    return f"{CONSUMERS}/{group}/ids/{consumer_id}"


def owners(group: str) -> str:
    """The parent of the topics that have owner znodes."""
    return f"{CONSUMERS}/{group}/owners"


def owners_of(group: str, topic: str) -> str:
    """The parent of a topic's owner znodes."""
    return f"{CONSUMERS}/{group}/owners/{topic}"


def owner(group: str, tp: TopicPartition) -> str:
    """The owner znode of a partition (ephemeral)."""
    return f"{CONSUMERS}/{group}/owners/{tp.topic}/{tp.partition}"


def offsets(group: str) -> str:
    """The parent of the topics that have offset znodes."""
    return f"{CONSUMERS}/{group}/offsets"


def offsets_of(group: str, topic: str) -> str:
    """The parent of a topic's offset znodes."""
    return f"{CONSUMERS}/{group}/offsets/{topic}"


def offset(group: str, tp: TopicPartition) -> str:
    """The offset znode of a partition (persistent)."""
    return f"{CONSUMERS}/{group}/offsets/{tp.topic}/{tp.partition}"


def edits(group: str) -> str:
    """The parent of the edit marks; zkconsumer's tools create a mark when they change offsets.

    No JVM consumer reads the marks.
    """
    return f"{CONSUMERS}/{group}/edits"


def edit(group: str, n: int) -> str:
    """One edit mark (persistent)."""
    return f"{CONSUMERS}/{group}/edits/{n}"


def broker(broker_id: str | int) -> str:
    """The registration of a broker (ephemeral)."""
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    """The znode of a topic, which lists its partitions."""
    return f"{TOPICS}/{name}"


def partition_state(name: str, partition: int) -> str:
    """The state of a partition: its leader and in-sync replicas, written by the controller."""
    return f"{TOPICS}/{name}/partitions/{partition}/state"


# ---- parsing paths ------------------------------------------------------------------------------


class ZnodeKind(Enum):
    """The kinds of paths; each comment names the fields of `ParsedPath` besides the group."""

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


class ParsedPath(NamedTuple):
    """The meaning of a path; a field that does not apply is empty, or -1 for the partition."""

    kind: ZnodeKind
    group: str = ""
    name: str = ""
    partition: int = -1


_OTHER = ParsedPath(ZnodeKind.OTHER)
# (element below the group, number of elements below that one) -> kind
_IN_GROUP = {
    ("ids", 0): ZnodeKind.IDS,
    ("ids", 1): ZnodeKind.MEMBER,
    ("owners", 1): ZnodeKind.OWNERS_OF,
    ("owners", 2): ZnodeKind.OWNER,
    ("offsets", 1): ZnodeKind.OFFSETS_OF,
    ("offsets", 2): ZnodeKind.OFFSET,
    ("edits", 0): ZnodeKind.EDITS,
}
GROUP_PARTS: Final = frozenset({"ids", "owners", "offsets", "edits"})
"""The children of a group's znode in the layout of the consumers and of zkconsumer's tools."""
_IN_BROKERS = {
    ("ids", 0): ZnodeKind.BROKER_IDS,
    ("ids", 1): ZnodeKind.BROKER,
    ("topics", 0): ZnodeKind.TOPICS,
    ("topics", 1): ZnodeKind.TOPIC,
}


def is_partition(name: str) -> bool:
    """Return whether a znode's name is a partition number as `owner` and `offset` write it."""
    return bool(_PARTITION.fullmatch(name)) and MIN_INT32 <= int(name) <= MAX_INT32


def locate(path: str) -> ParsedPath:
    """Return the meaning of a path, for example of the path of a watch event; never raises.

    The function recognises a partition number only in the form that `owner` and `offset` write.
    """
    match path.split("/"):
        case ["", "consumers", group, directory, *below]:
            kind = _IN_GROUP.get((directory, len(below)), ZnodeKind.OTHER)
        case ["", "brokers", directory, *below]:
            group, kind = "", _IN_BROKERS.get((directory, len(below)), ZnodeKind.OTHER)
        case _:
            return _OTHER
    if kind is ZnodeKind.OTHER:
        return _OTHER
    if kind not in (ZnodeKind.OWNER, ZnodeKind.OFFSET):
        return ParsedPath(kind, group, below[0] if below else "")
    name, number = below
    if not is_partition(number):
        return _OTHER
    return ParsedPath(kind, group, name, int(number))


_BELOW_CHROOT = re.compile(
    r"(.*?)(/(?:consumers/[^/]+/(?:ids|owners|offsets|edits)|brokers/topics)/.+)"
)


def locate_below_chroot(path: str) -> tuple[str, ParsedPath]:
    """Return the chroot of an absolute path in ZooKeeper, and the meaning of the path below it.

    The chroot is "" if there is none. An edit mark has no separate kind: it is `EDITS` with the
    mark's name. Every other path is `OTHER`.
    """
    match = _BELOW_CHROOT.fullmatch(path)
    if match is None:
        return "", _OTHER
    chroot, rest = match.groups()
    found = locate(rest)
    if found.kind is ZnodeKind.OTHER and (above := locate(parent(rest))).kind is ZnodeKind.EDITS:
        found = ParsedPath(ZnodeKind.EDITS, above.group, rest.rpartition("/")[2])
    return chroot, found


def parent(path: str) -> str:
    """Return the path of a znode's parent; "/" for a znode below the root."""
    return path.rpartition("/")[0] or "/"


# ---- consumer ids and thread ids ----------------------------------------------------------------


# Maximum number of streams over all topics of one member. A larger number is rejected in this
# member's subscription and in other members' registrations. A JVM member with millions of streams
# runs out of memory; 100,000 are far more than any member needs, and sorting them is fast.
MAX_STREAMS = 100_000


def validate_topic_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the topic counts in their order, or raise ConfigError (InvalidNameError for a name).

    An empty mapping is allowed, as in the JVM: such a member is registered and owns no partition.
    `createMessageStreams` in Kafka 0.8.2-1.1 asserts that every count is at least 1.
    """
    if not isinstance(counts, Mapping):
        right = "{'orders': 1}: topic -> number of streams"
        raise arguments.wrong(counts, "a mapping from topics", where="topic_counts", right=right)
    for topic, count in counts.items():
        if not isinstance(topic, str):
            raise arguments.wrong(topic, "a topic", where="topic_counts", right="a text")
        validate_streams(count, where=validate_topic(topic))
    validate_streams(max(1, sum(counts.values())), where="all topics")
    return dict(counts)


def validate_streams(count: int, *, where: str) -> int:
    """Return the number of streams of one connector, or raise ConfigError.

    `createMessageStreamsByFilter` (Kafka 0.8.2-1.1) also accepts numbers below 1, and registers a
    subscription that makes every member of the group fail.
    """
    if type(count) is not int or count < 1:
        raise ConfigError(
            f"the number of streams is {count!r}",
            where=where,
            remedy="use an integer of at least 1",
        )
    if count > MAX_STREAMS:
        raise ConfigError(
            f"more than {MAX_STREAMS} streams in one connector",
            where=where,
            remedy="use fewer streams: those beyond the number of partitions stay idle",
        )
    return count


def default_suffix(*, hostname: str, epoch_ms: int, uuid_msb: int) -> str:
    """Return the part after the group of a generated consumer id (`ZookeeperConsumerConnector`).

    `uuid_msb` is the upper half (64 bits, unsigned) of a random UUID. The suffix contains its first
    eight hexadecimal digits without leading zeros.
    """
    return f"{hostname}-{epoch_ms}-{uuid_msb:x}"[: len(f"{hostname}-{epoch_ms}-") + 8]


def consumer_id(group: str, suffix: str) -> str:
    """Return `<group>_<suffix>`, or raise InvalidNameError if no znode can have that name."""
    return validate_consumer_id(f"{group}_{suffix}")


def thread_id(consumer: str, number: int) -> str:
    """Return the consumer thread id in an owner znode: `<consumer id>-<n>`, with n from 0."""
    return f"{consumer}-{number}"


def consumer_of(thread: str) -> str:
    """Return the consumer id in a thread id: the text before the last `-`.

    `kafka.admin.ConsumerGroupCommand` cuts a thread id in the same way.
    """
    return thread.rpartition("-")[0]


def thread_ids(consumer: str, count: int) -> tuple[str, ...]:
    """Return the thread ids of a consumer for a topic with `count` streams, ordered by number."""
    return tuple(thread_id(consumer, number) for number in range(count))


_GENERATED = re.compile(r"(.+)-\d{13}-[0-9a-f]{1,8}")


def host_of(group: str, consumer_id: str) -> str:
    """Return the name of the host in a generated consumer id (`default_suffix`); "" if the id was
    chosen by the user."""
    match = _GENERATED.fullmatch(consumer_id.removeprefix(f"{group}_"))
    return match[1] if match else ""
