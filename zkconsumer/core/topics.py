"""Topic counts and the names that follow from them: consumer ids and consumer thread ids."""

from __future__ import annotations

from collections.abc import Mapping

from zkconsumer.core.paths import validate_consumer_id, validate_topic
from zkconsumer.errors import ConfigError

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


def thread_ids(consumer: str, count: int) -> tuple[str, ...]:
    """A consumer's thread ids for a topic with `count` streams, by number."""
    return tuple(thread_id(consumer, number) for number in range(count))
