"""Pausing, resuming and seeking: what the JVM's old consumer never had."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zkconsumer.consumer.stream import Stream
from zkconsumer.core.model import TopicPartition
from zkconsumer.errors import ConfigError, NotOwnedError

AnyStream = Stream[Any, Any]

# The greatest offset of a log; more does not fit into a request to a broker.
MAX_OFFSET = 2**63 - 2


def by_stream(
    streams: Iterable[AnyStream], partitions: Iterable[TopicPartition]
) -> dict[AnyStream, list[TopicPartition]]:
    """Who serves each of these; raises NotOwnedError, naming all that nobody serves."""
    found: dict[AnyStream, list[TopicPartition]] = {}
    wanted = [TopicPartition(*one) for one in partitions]
    for stream in streams:
        served = [tp for tp in wanted if stream.serves(tp)]
        if served:
            found[stream] = served
    missing = sorted(set(wanted).difference(*found.values()))
    if missing:
        raise _not_owned(missing)
    return found


def seek(streams: Iterable[AnyStream], partition: TopicPartition, offset: int) -> None:
    """Go on from `offset`; raises NotOwnedError, or ConfigError for an impossible offset."""
    if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
        raise ConfigError(
            f"{offset!r} is no offset", where=str(TopicPartition(*partition)),
            remedy="give an integer of at least 0",
        )
    for stream, (tp,) in by_stream(streams, [partition]).items():
        if not stream.seek(tp, offset):
            raise _not_owned([tp])


def _not_owned(missing: Iterable[TopicPartition]) -> NotOwnedError:
    return NotOwnedError(
        "this member is not serving the partition",
        where=", ".join(map(str, missing)),
        remedy="ask `status().owned` first; what is about to move away counts no more",
    )
