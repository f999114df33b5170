"""On real Spark a batch read returns the messages between two offsets, once and unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan
from support.kafka.logs import REQUEST_S, producer
from support.kafka.streams import KafkaLog
from support.wait import LIMIT_S
from support.zk.client import peer_of

from zkconsumer.errors import ZkConsumerError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.spark.batch import BatchReader, PushingBatchReader
from zkconsumer.spark.direct_stream import DirectStreamReader
from zkconsumer.spark.group_stream import GroupStreamReader
from zkconsumer.spark.options import SourceOptions
from zkconsumer.spark.task_reader import RangesPartition

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
# Timestamp of the first message in ms; each following timestamp is one second later.
BEGIN_MS = 1_600_000_000_000
MESSAGES = 60

Place = tuple[int, int]


@pytest.fixture(scope="module")
def topic(sandbox: Sandbox) -> str:
    """Three partitions of 60 messages; each value names its partition and its offset."""
    name = "batch-reads"
    # Retention has no limit: timestamps this old would make it delete all messages at once.
    sandbox.create_topic(name, partitions=3, config={"retention.ms": -1})
    one = producer(sandbox)
    for partition in range(3):
        for n in range(MESSAGES):
            one.produce(
                name,
                f"{partition}/{n}",
                None if n % 2 else f"k{n}",
                partition=partition,
                timestamp=BEGIN_MS + 1000 * n,
            )
    assert one.flush(REQUEST_S) == 0
    return name


@pytest.fixture
def own(sandbox: Sandbox, unique: Callable[[str], str]) -> str:
    """A topic of one partition with the values 0 to 99, for one test."""
    name = unique("batch")
    sandbox.create_topic(name)
    sandbox.produce(name, 100)
    return name


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Let Spark offer filters to Python sources."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def load(
    spark: SparkSession, sandbox: Sandbox, options: dict[str, object], schema: str = ""
) -> DataFrame:
    reader = spark.read.format("zkconsumer").option("zookeeper", sandbox.zookeeper_connect)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return (reader.schema(schema) if schema else reader).load()


def places(frame: DataFrame) -> list[Place]:
    """Return the partition and the offset of each row, sorted."""
    rows = frame.select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in rows)


def span(start: int, end: int) -> list[Place]:
    """Return the same offsets in each of the three partitions."""
    return [(partition, offset) for partition in range(3) for offset in range(start, end)]


def test_a_whole_topic(spark: SparkSession, sandbox: Sandbox, topic: str) -> None:
    """Without registering the format, a read returns every produced row, in several tasks."""
    frame = load(spark, sandbox, {"subscribe": topic, "minPartitions": 7})
    assert 6 <= frame.rdd.getNumPartitions() <= 8
    rows = sorted(frame.collect(), key=lambda row: (row.partition, row.offset))
    assert [tuple(row) for row in rows] == [
        (
            None if n % 2 else bytearray(b"k%d" % n),
            bytearray(b"%d/%d" % (partition, n)),
            topic,
            partition,
            n,
            datetime.fromtimestamp(BEGIN_MS / 1000 + n),
            0,
        )
        for partition, n in span(0, MESSAGES)
    ]


@pytest.mark.parametrize("name", ["zkconsumer", "zkconsumer-groups", "zkconsumer-history"])
def test_a_write_is_refused(spark: SparkSession, name: str) -> None:
    """`write` fails with one sentence, even if the options lack what a read needs."""
    with pytest.raises(AnalysisException, match="SparkSourceError: zkconsumer only reads"):
        spark.range(1).write.format(name).mode("append").save()


def test_a_stream_is_not_written(spark: SparkSession, tmp_path: Path) -> None:
    """`writeStream` fails with the same sentence."""
    rows = spark.readStream.format("rate").load()
    writer = rows.writeStream.format("zkconsumer").option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match="SparkSourceError: zkconsumer only reads"):
        writer.start().awaitTermination(LIMIT_S)


MISTAKES = {
    "no chroot": ({"zookeeper": "{connect}/nope"}, "ChrootMissingError: the chroot /nope does not"),
    "another cluster": ({"zookeeper": "{connect}/empty"}, "SparkSourceError: no broker is regist"),
    "a wrong port": (
        {"zookeeper": "127.0.0.1:1", "zookeeper.connection.timeout.ms": "500"},
        "ZooKeeperUnreachableError: ",
    ),
    "JAAS": ({"kafka.sasl.jaas.config": "x"}, "ConfigError: librdkafka refuses the properties: Ja"),
    "a truststore": (
        {"kafka.ssl.truststore.location": "x.jks"},
        "ConfigError: librdkafka refuses the properties: Java TrustStores are not supported",
    ),
    "a deserializer": (
        {"kafka.value.deserializer": "x"},
        'ConfigError: librdkafka refuses the properties: No such .*"value.deserializer"',
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("mode", ["batch", "direct", "group"])
def test_a_mistake_that_no_retry_corrects(sandbox: Sandbox, mistake: str, mode: str) -> None:
    """Each use fails at its first request with the sentence that names the mistake."""
    options, expected = MISTAKES[mistake]
    with peer_of(sandbox.zookeeper_connect) as client:
        client.ensure_path("/empty")
    given = {"zookeeper": "{connect}", "subscribe": "t", "zookeeper.session.timeout.ms": "6000"}
    given |= options
    given["zookeeper"] = given["zookeeper"].format(connect=sandbox.zookeeper_connect)
    given |= {"mode": "group", "group.id": "g"} if mode == "group" else {}
    parsed = SourceOptions.parse(given)
    call: Callable[[], object]
    if mode == "batch":
        call = BatchReader(parsed.for_batch(), ("offset",)).partitions
    else:
        kind = GroupStreamReader if mode == "group" else DirectStreamReader
        reader = kind(parsed.for_stream(), ("offset",))
        call = partial(reader.latestOffset, {}, reader.getDefaultReadLimit())
    with pytest.raises(ZkConsumerError) as caught:
        call()
    assert re.match(expected, f"{type(caught.value).__name__}: {caught.value}")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {
                "subscribe": "batch-reads",
                "startingOffsets": '{"batch-reads":{"0":58,"1":-2,"2":-2}}',
                "endingOffsets": '{"batch-reads":{"0":-1,"1":2,"2":0}}',
            },
            [(0, 58), (0, 59), (1, 0), (1, 1)],
        ),
        (
            {
                "subscribe": "batch-reads",
                "startingTimestamp": BEGIN_MS + 56_500,
                "endingTimestamp": BEGIN_MS + 58_000,
            },
            span(57, 58),
        ),
        (
            {
                "subscribe": "batch-reads",
                "startingTimestamp": BEGIN_MS + 10**9,
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [],
        ),
        ({"subscribePattern": "batch-r.*"}, span(0, MESSAGES)),
        ({"assign": '{"batch-reads":[2]}'}, span(0, MESSAGES)[2 * MESSAGES :]),
    ],
    ids=["json", "times", "behind all", "pattern", "assign"],
)
def test_where_it_begins_and_ends(
    spark: SparkSession,
    sandbox: Sandbox,
    topic: str,
    options: dict[str, object],
    expected: list[Place],
) -> None:
    """A read returns the requested range of each partition; an empty range gives no rows."""
    assert places(load(spark, sandbox, options)) == expected


def test_starting_at_the_groups_offsets(spark: SparkSession, sandbox: Sandbox, own: str) -> None:
    """`zookeeper` reads from the group's stored offset, but does not join or change the group."""
    with peer_of(sandbox.zookeeper_connect) as zk:
        node = paths.offset(own, TopicPartition(own, 0))
        zk.create(node, b"95", makepath=True)
        options = {"subscribe": own, "group.id": own, "startingOffsets": "zookeeper"}
        assert places(load(spark, sandbox, options)) == [(0, n) for n in range(95, 100)]
        assert zk.get_children(paths.group(own)) == ["offsets"]
        assert zk.get(node)[0] == b"95"


def test_only_the_columns_asked_for(spark: SparkSession, sandbox: Sandbox, own: str) -> None:
    """The user's schema selects the columns and their order."""
    frame = load(spark, sandbox, {"subscribe": own}, "offset long, value binary")
    assert frame.columns == ["offset", "value"]
    assert [tuple(row) for row in frame.collect()] == [
        (n, bytearray(b"%d" % n)) for n in range(100)
    ]


def test_a_frame_does_not_change(spark: SparkSession, sandbox: Sandbox, own: str) -> None:
    """Messages that are produced after the first use of a DataFrame do not appear in it."""
    frame = load(spark, sandbox, {"subscribe": own})
    assert frame.count() == 100
    sandbox.produce(own, 100)
    assert frame.count() == 100
    assert load(spark, sandbox, {"subscribe": own}).count() == 200


def test_what_is_lost_before_and_after_the_plan(
    spark: SparkSession, sandbox: Sandbox, own: str
) -> None:
    """Lost messages are an error of one sentence; with failOnDataLoss=false they are skipped."""
    offsets = {"subscribe": own, "startingOffsets": f'{{"{own}":{{"0":20}}}}'}
    strict = load(spark, sandbox, offsets)
    lossy = load(spark, sandbox, {**offsets, "failOnDataLoss": "false"})
    assert strict.count() == lossy.count() == 80
    KafkaLog(own, sandbox).cut(0, 30)
    with pytest.raises(PySparkException) as caught:
        strict.count()
    said = str(caught.value)
    assert (
        f"10 messages are no longer in the log ({own}-0: offsets 20 to 29 of the range 20 to 99"
        in said
    )
    assert "Traceback" not in said
    assert lossy.count() == 70
    with pytest.raises(
        PySparkException, match=f"messages 20 to 29 of {own}-0 are no longer in the log"
    ):
        load(spark, sandbox, offsets).count()
    assert places(load(spark, sandbox, {**offsets, "failOnDataLoss": "false"})) == [
        (0, n) for n in range(30, 100)
    ]


def test_the_ranges_of_a_query_s_progress(
    spark: SparkSession, sandbox: Sandbox, topic: str
) -> None:
    """`startingOffsets` in the form of `endOffset` reads exactly the batch that it describes."""
    ranges = f'{{"{topic}":{{"2":[7,9,0,123],"0":[3,5]}}}}'
    found = load(spark, sandbox, {"subscribe": topic, "startingOffsets": ranges})
    assert places(found) == [(0, 3), (0, 4), (2, 7), (2, 8)]


def test_no_such_topic(spark: SparkSession, sandbox: Sandbox) -> None:
    """For an unknown topic, the error is one sentence with the name of the topic."""
    with pytest.raises(
        PySparkException, match=r"a topic or partition to read does not exist \(no-such-topic\)"
    ):
        load(spark, sandbox, {"subscribe": "no-such-topic"}).count()


# ---- filters -------------------------------------------------------------------------------------


def planned(sandbox: Sandbox, topic: str, *filters: Filter) -> list[tuple[int, int, int]]:
    """Return the ranges planned for these filters, as (partition, start, end)."""
    options = {"zookeeper": sandbox.zookeeper_connect, "subscribe": topic, "pushFilters": "true"}
    reader = PushingBatchReader(SourceOptions.parse(options).for_batch(), ["value"])
    reader.pushFilters(list(filters))
    tasks = reader.partitions()
    ranges = [task.ranges for task in tasks if isinstance(task, RangesPartition)]
    assert len(ranges) == len(tasks)
    return sorted((one.partition, one.start, one.end) for some in ranges for one in some)


def test_filters_narrow_the_planned_ranges(sandbox: Sandbox, topic: str) -> None:
    """Partition and offset filters narrow the plan exactly; timestamps use the brokers' index."""
    bounds = (GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 9))
    assert planned(sandbox, topic, EqualTo(("partition",), 1), *bounds) == [(1, 5, 9)]
    since = datetime.fromtimestamp(BEGIN_MS / 1000 + 57, UTC)
    assert planned(sandbox, topic, GreaterThanOrEqual(("timestamp",), since)) == [
        (partition, 57, 60) for partition in range(3)
    ]
    late = since.replace(year=2030)
    assert planned(sandbox, topic, GreaterThanOrEqual(("timestamp",), late)) == []


@pytest.mark.parametrize(
    "condition",
    [
        "partition = 1 AND offset >= 5 AND offset < 9",
        "partition IN (0, 2) AND offset IN (3, 58, 70)",
        "timestamp >= timestamp_seconds(1600000050) AND timestamp < timestamp_seconds(1600000053)",
        "partition = 7",
        "topic = 'batch-reads' AND (offset = 1 OR offset = 59) AND value IS NOT NULL",
    ],
)
@pytest.mark.usefixtures("pushdown")
def test_filters_change_no_result(
    spark: SparkSession, sandbox: Sandbox, topic: str, condition: str
) -> None:
    """With pushed filters a read returns the same rows as Spark's own filtering."""
    whole = load(spark, sandbox, {"subscribe": topic})
    pushed = load(spark, sandbox, {"subscribe": topic, "pushFilters": "true"})
    # A cached result is filtered by Spark itself.
    expected = spark.createDataFrame(whole.toArrow()).where(condition)
    assert places(pushed.where(condition)) == places(expected)


def test_filters_that_spark_does_not_offer(
    spark: SparkSession, sandbox: Sandbox, topic: str
) -> None:
    """If Spark does not push filters, the option is an error that names Spark's setting."""
    with pytest.raises(PySparkException, match=PUSHDOWN):
        load(spark, sandbox, {"subscribe": topic, "pushFilters": "true"}).count()
