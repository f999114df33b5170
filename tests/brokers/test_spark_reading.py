"""The tasks of a Spark query, run without Spark, read from brokers of every release."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support.kafka.logs import CODECS, LARGE, Keyed, contents, write
from support.wait import LIMIT_S

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.process import until
from zkconsumer.spark.cluster_logs import brokers_of
from zkconsumer.spark.offset_ranges import OffsetRange
from zkconsumer.spark.task_reader import ReadSettings, client_settings, read_ranges

COLUMNS = ("offset", "key", "value", "timestamp", "timestampType")


@pytest.fixture
def settings(cluster: Sandbox) -> ReadSettings:
    """Return the settings of tasks, from the registrations of the brokers."""
    config = ConsumerConfig(group_id="none", zookeeper_connect=cluster.zookeeper_connect)
    return ReadSettings(client_settings(config, brokers_of(config)), patience_s=120.0)


def rows(settings: ReadSettings, *ranges: OffsetRange) -> list[tuple[object, ...]]:
    found = read_ranges(ranges, COLUMNS, settings)
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()]


def test_every_codec(
    cluster: Sandbox, unique: Callable[[str], str], settings: ReadSettings
) -> None:
    """Null, empty and 1 MiB messages are read from within a batch; before 0.10 without times."""
    large = b"".join(os.urandom(512) + bytes(512) for _ in range(1024))
    odd: list[Keyed] = [(None, None), ("k", None), (None, ""), ("", "")]
    many: list[Keyed] = [*odd, *((f"{n % 7}", f"{n}") for n in range(200)), ("large", large)]
    topic = unique("spark")
    cluster.create_topic(topic, partitions=len(CODECS), config=LARGE)
    for partition, codec in enumerate(CODECS):
        write(cluster, topic, many, partition=partition, codec=codec)
    expected = [
        (
            n,
            None if key is None else key.encode(),
            value.encode() if isinstance(value, str) else value,
        )
        for n, (key, value) in enumerate(many)
        if isinstance(key, str) or key is None
    ]
    has_times = cluster.broker.release not in ("0.8.2.2", "0.9.0.1")
    for partition in range(len(CODECS)):
        found = rows(settings, OffsetRange(topic, partition, 2, len(many)))
        assert [row[:3] for row in found] == expected[2:]
        assert {(row[3] is not None, row[4]) for row in found} == {
            (has_times, 0 if has_times else -1)
        }


@pytest.mark.real("a fake broker has no log cleaner")
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_compacted_topics(
    cluster: Sandbox, unique: Callable[[str], str], settings: ReadSettings, codec: str
) -> None:
    """A compacted topic's range gives each remaining message once, wherever it begins or ends."""
    topic = unique("compacted")
    config = {"cleanup.policy": "compact", "segment.bytes": 8192, "min.cleanable.dirty.ratio": 0.01}
    cluster.create_topic(topic, config=config)
    for _ in range(15):
        some: list[Keyed] = [(f"{n % 7}", os.urandom(50).hex()) for n in range(20)]
        write(cluster, topic, some, partition=0, codec=codec)

    def left() -> set[int]:
        return {message.offset() or 0 for message in contents(cluster, topic)}

    assert until(lambda: len(left()) < 150, limit_s=LIMIT_S), (
        "the log cleaner has not compacted the topic"
    )
    holes = sorted(set(range(300)) - left())
    hole = holes[len(holes) // 2]
    for asked in ((0, 300), (hole, 300), (0, hole + 1), (hole, hole + 1)):
        read = [row[0] for row in rows(settings, OffsetRange(topic, 0, *asked))]
        # The cleaner may have continued meanwhile, so the remaining messages are a subset of those
        # read.
        assert read == sorted(set(read))
        assert left() & set(range(*asked)) <= set(read) <= set(range(*asked)) - {hole}
