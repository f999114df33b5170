"""The functions of `pyspark.streaming.kafka` (Spark 1.3 to 2.4, removed in 3.0), to ease porting.

The functions return DataFrames with the columns of `format("zkconsumer")` and decoded `key` and
`value`, where the originals returned DStreams and RDDs of pairs. Arguments, defaults and TypeErrors
are those of `KafkaUtils` in Spark 2.4, with three exceptions. A decoder is a function of a column;
`udf(old_decoder, "string")` converts an old decoder. There is no storageLevel, because no data are
stored between Kafka and the query. There are no messageHandler and leaders, because a row has all
columns and leaders are looked up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from zkconsumer.protocol.model import TopicPartition
from zkconsumer.spark.finishing import ranges_of
from zkconsumer.spark.process_lifecycle import load

TopicAndPartition = TopicPartition
Decoder = Callable[[Column], Column]

# The old direct stream found its brokers through these properties; this package finds them in
# ZooKeeper.
_BROKERS: Final = ("metadata.broker.list", "bootstrap.servers")


class OffsetRange(NamedTuple):
    """Messages `fromOffset` to `untilOffset` - 1 of a partition."""

    topic: str
    partition: int
    fromOffset: int
    untilOffset: int


def utf8_decoder(column: Column) -> Column:
    """Decode UTF-8 text; null stays null. Invalid UTF-8 makes the query fail, as in the
    original."""
    return sf.decode(column, "UTF-8")


def bytes_decoder(column: Column) -> Column:
    """Return the bytes unchanged."""
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
    """`KafkaUtils.createStream`: a query that is a member of the group.

    Unlike the old receiver, it commits only offsets of batches that the sink has finished.

    Args:
        zk_quorum: `host:port,.../chroot`.
        topics: the number of threads of each topic.
        kafka_params: further properties of the old consumer. The function overrides
            `zookeeper.connect`, `group.id` and `zookeeper.connection.timeout.ms` (10000), as the
            original did.

    Raises:
        TypeError: `topics` is not a dict.
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
    """`KafkaUtils.createDirectStream`: a query of all partitions, with its offsets in the
    checkpoint only.

    Without a checkpoint the query starts at `from_offsets` and reads only the partitions named
    there. Without `from_offsets` it starts at the ends of the logs, or at their beginnings with
    `auto.offset.reset=smallest`. The query ignores the group's stored offsets; with `mirrorOffsets`
    in `kafka_params` it writes them.

    Args:
        kafka_params: properties of the old consumer, including `zookeeper.connect`.
            `metadata.broker.list` and `bootstrap.servers` are ignored, because the brokers are
            found in ZooKeeper.

    Raises:
        TypeError: `topics` is not a list, or `kafka_params` is not a dict.
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
    """`KafkaUtils.createRDD`: a batch of exactly these messages. A partition may have one range.

    Raises:
        TypeError: `kafka_params` is not a dict, or `offset_ranges` is not a list.
        ValueError: a partition has two ranges.
    """
    options = _options(kafka_params)
    if not isinstance(offset_ranges, list):
        raise TypeError("offsetRanges should be list")
    starts = {TopicPartition(one.topic, one.partition): one.fromOffset for one in offset_ranges}
    ends = {TopicPartition(one.topic, one.partition): one.untilOffset for one in offset_ranges}
    if len(starts) < len(offset_ranges):
        raise ValueError("a partition has two ranges; read them in two calls")
    options |= {
        "assign": _partitions(starts),
        "startingOffsets": _json(starts),
        "endingOffsets": _json(ends),
    }
    rows = load(spark.read.format("zkconsumer").options(**options))
    return _decoded(rows, key_decoder, value_decoder)


def offset_ranges(batch: DataFrame) -> list[OffsetRange]:
    """`rdd.offsetRanges()`: return the offset ranges of a batch, for use in `foreachBatch`.

    The function reads all rows of the batch, so call `persist()` on the batch first. See
    `finishing.ranges_of`.
    """
    return [OffsetRange(*one[:4]) for one in ranges_of(batch)]


# ---- Options and decoders ------------------------------------------------------------------------


def _decoded(rows: DataFrame, key_decoder: Decoder, value_decoder: Decoder) -> DataFrame:
    decoded = {"key": key_decoder(sf.col("key")), "value": value_decoder(sf.col("value"))}
    return rows.withColumns(decoded)


def _options(kafka_params: object) -> dict[str, str]:
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
