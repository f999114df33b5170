"""What the programs of users with `fetch.engine=columns` share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from zkconsumer import ConsumerConfig, ConsumerConnector


@contextmanager
def one_stream(connect: str, topic: str, group: str) -> Iterator[tuple[ConsumerConnector, Any]]:
    """A member with one stream of a topic, from its beginning; both are in the result."""
    config = ConsumerConfig(
        group_id=group,
        zookeeper_connect=connect,
        auto_offset_reset="smallest",
        fetch_engine="columns",
    )
    with ConsumerConnector(config) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        yield connector, stream


def arrow_places(stream: Any, *, timeout_s: float) -> list[tuple[int, int]]:
    """Return partition and offset of the messages of the next `poll_arrow`."""
    rows = stream.poll_arrow(timeout_s=timeout_s).to_pylist()
    return [(row["partition"], row["offset"]) for row in rows]
