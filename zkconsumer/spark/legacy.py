"""The names of `pyspark.streaming.kafka` (Spark 1.3 to 2.4, gone in 3.0), for readers of old code.

What were DStreams and RDDs of pairs are DataFrames here, with the columns of `format("zkconsumer")`
and `key` and `value` decoded. Arguments, defaults and TypeErrors are those of `KafkaUtils` in Spark
2.4, but for these: a decoder is a function of a column (`udf(old_decoder, "string")` makes one of
an old one); storageLevel is gone, since nothing is stored on the way; messageHandler and leaders
are gone, since all columns are there and leaders are looked up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from zkconsumer.protocol.model import TopicPartition
from zkconsumer.spark.finishing import ranges_of
from zkconsumer.spark.process_lifecycle import load

TopicAndPartition = TopicPartition
Decoder = Callable[[Column], Column]

# Where the old direct stream found its brokers; ours finds them in ZooKeeper.
_BROKERS: Final = ("metadata.broker.list", "bootstrap.servers")


class OffsetRange(NamedTuple):
    """Messages `fromOffset` to `untilOffset` - 1 of a partition."""

    topic: str
    partition: int
    fromOffset: int
    untilOffset: int


def utf8_decoder(column: Column) -> Column:
    """The default: text, None for None; what is no UTF-8 fails the query, as it did."""
    return sf.decode(column, "UTF-8")


def bytes_decoder(column: Column) -> Column:
    """The bytes as they are."""
    return column


def create_stream(
    spark: SparkSession,
    zk_quorum: str,
    group_id: str,
    topics: dict[str, int],
    kafka_params: Mapping[str, str] | None = None,
    *,
    key_decoder: Decoder = utf8_decoder,
    value_decoder: Decoder = utf8_decoder,
) -> DataFrame:
    """`KafkaUtils.createStream`: the query is a member of the group, with so many threads a topic.

    Other than the old receiver it commits only what the sink has finished.

    Args:
        zk_quorum: `host:port,.../chroot`.
        topics: topic to number of threads.
        kafka_params: further properties of the old consumer. `zookeeper.connect`, `group.id` and
            `zookeeper.connection.timeout.ms` (10000) are set over them, as they were.

    Raises:
        TypeError: `topics` is no dict.
    """
    if not isinstance(topics, dict):
        raise TypeError("topics should be dict")
    options = {
        **(kafka_params or {}),
        "zookeeper.connect": zk_quorum,
        "group.id": group_id,
        "zookeeper.connection.timeout.ms": "10000",
        "mode": "group",
        "subscribe": ",".join(f"{topic}:{threads}" for topic, threads in topics.items()),
    }
    rows = load(spark.readStream.format("zkconsumer").options(**options))
    return _decoded(rows, key_decoder, value_decoder)


def create_direct_stream(
    spark: SparkSession,
    topics: list[str],
    kafka_params: Mapping[str, str],
    from_offsets: Mapping[TopicPartition, int] | None = None,
    *,
    key_decoder: Decoder = utf8_decoder,
    value_decoder: Decoder = utf8_decoder,
) -> DataFrame:
    """`KafkaUtils.createDirectStream`: all partitions, offsets from the checkpoint alone.

    Without a checkpoint it begins at `from_offsets`, of which it then reads just the partitions;
    else at the log's end, or with `auto.offset.reset=smallest` at its beginning. What the group has
    stored is not looked at; with `mirrorOffsets` among the parameters it is written.

    Args:
        kafka_params: properties of the old consumer, `zookeeper.connect` among them; the brokers
            come from there, and `metadata.broker.list` and `bootstrap.servers` are left out.

    Raises:
        TypeError: `topics` is no list, or `kafka_params` no dict.
        ValueError: `from_offsets` has other topics than `topics`.
    """
    if not isinstance(topics, list):
        raise TypeError("topics should be list")
    options = _options(kafka_params)
    if from_offsets:
        if {tp.topic for tp in from_offsets} != set(topics):
            named = " ".join(sorted({tp.topic for tp in from_offsets}))
            raise ValueError(
                f"The specified topics: {' '.join(topics)} do not equal to the topic from offsets:"
                f" {named}"
            )
        options |= {"assign": _partitions(from_offsets), "startingOffsets": _json(from_offsets)}
    else:
        smallest = options.get("auto.offset.reset", "").lower() == "smallest"
        options |= {
            "subscribe": ",".join(topics),
            "startingOffsets": "earliest" if smallest else "latest",
        }
    rows = load(spark.readStream.format("zkconsumer").options(**options))
    return _decoded(rows, key_decoder, value_decoder)


def create_rdd(
    spark: SparkSession,
    kafka_params: Mapping[str, str],
    offset_ranges: list[OffsetRange],
    *,
    key_decoder: Decoder = utf8_decoder,
    value_decoder: Decoder = utf8_decoder,
) -> DataFrame:
    """`KafkaUtils.createRDD`: just these messages, as a batch. A partition has one range at most.

    Raises:
        TypeError: `kafka_params` is no dict, or `offset_ranges` no list.
        ValueError: a partition has two ranges.
    """
    options = _options(kafka_params)
    if not isinstance(offset_ranges, list):
        raise TypeError("offsetRanges should be list")
    starts = {TopicPartition(one.topic, one.partition): one.fromOffset for one in offset_ranges}
    ends = {TopicPartition(one.topic, one.partition): one.untilOffset for one in offset_ranges}
    if len(starts) < len(offset_ranges):
        raise ValueError("a partition has two ranges: read them one after the other")
    options |= {
        "assign": _partitions(starts),
        "startingOffsets": _json(starts),
        "endingOffsets": _json(ends),
    }
    rows = load(spark.read.format("zkconsumer").options(**options))
    return _decoded(rows, key_decoder, value_decoder)


def offset_ranges(batch: DataFrame) -> list[OffsetRange]:
    """`rdd.offsetRanges()`: which messages a batch holds, for use in `foreachBatch`.

    A pass over the rows of the batch: `persist()` it first. See `finishing.ranges_of`.
    """
    return [OffsetRange(*one) for one in ranges_of(batch)]


# ---- parts --------------------------------------------------------------------------------------


def _decoded(rows: DataFrame, key_decoder: Decoder, value_decoder: Decoder) -> DataFrame:
    decoded = {"key": key_decoder(sf.col("key")), "value": value_decoder(sf.col("value"))}
    return rows.withColumns(decoded)


def _options(kafka_params: Any) -> dict[str, str]:
    if not isinstance(kafka_params, dict):
        raise TypeError("kafkaParams should be dict")
    return {key: value for key, value in kafka_params.items() if key not in _BROKERS}


def _partitions(offsets: Mapping[TopicPartition, int]) -> str:
    topics = sorted({tp.topic for tp in offsets})
    return json.dumps(
        {one: sorted(tp.partition for tp in offsets if tp.topic == one) for one in topics}
    )


def _json(offsets: Mapping[TopicPartition, int]) -> str:
    found: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(offsets.items()):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return json.dumps(found)
