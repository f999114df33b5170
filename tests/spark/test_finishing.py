"""When Spark's own Kafka source has finished a batch, its offsets are stored in ZooKeeper."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)
from support.wait import eventually
from support.zk.client import peer_of

from zkconsumer.errors import ConfigError, SparkSourceError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.sandbox.ports import free_port
from zkconsumer.sandbox.proxy import Proxy
from zkconsumer.spark.finishing import CommitListener, committing, ranges_of
from zkconsumer.spark.offset_ranges import OffsetRange

# Progress that pyspark 4.0.0 with its own connector (4.0.0) reported for two batches of a query
# named `orders`. A 3.9.1 broker had the topics orders and payments; maxOffsetsPerTrigger was 40,
# the trigger Trigger.AvailableNow.
RECORDED = Path(__file__).parents[1] / "golden" / "spark" / "kafka-connector-4.0.0.json"
SCHEMA = "key binary, value binary, topic string, partition int, offset long"


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    with peer_of(zookeeper.connect) as made:
        yield made


def stored(client: KazooClient, group: str) -> dict[str, int]:
    """Return the offset znodes of the group."""
    parent = paths.offsets(group)
    return {
        f"{topic}-{partition}": int(client.get(f"{parent}/{topic}/{partition}")[0])
        for topic in (client.get_children(parent) if client.exists(parent) else ())
        for partition in client.get_children(f"{parent}/{topic}")
    }


def events(*, name: str = "orders") -> list[QueryProgressEvent]:
    recorded = json.loads(RECORDED.read_text())
    return [
        QueryProgressEvent(StreamingQueryProgress.fromJson({**one, "name": name}))
        for one in recorded
    ]


def rows(spark: SparkSession, *offsets: tuple[str, int, int]) -> DataFrame:
    """Return a batch of (topic, partition, offset) rows with the columns of Spark's source."""
    return spark.createDataFrame([(None, b"v", *one) for one in offsets], SCHEMA)


# ---- the listener -------------------------------------------------------------------------------


def test_the_connectors_own_progress(
    zookeeper: ZooKeeperServer, client: KazooClient, unique: Callable[[str], str]
) -> None:
    """The end offsets of each batch are stored, but only for the query of the given name."""
    group = unique("group")
    first, second = events()
    ends = {"orders-0": 20, "orders-1": 21, "orders-2": 22, "payments-0": 2}
    with Proxy(zookeeper.connect) as proxy:
        listener = CommitListener(query="orders", zookeeper=proxy.address, group=group)
        for event in events(name="another"):
            listener.onQueryProgress(event)
        assert stored(client, group) == {}
        assert proxy.open_connections == 0
        listener.onQueryProgress(first)
        eventually(lambda: proxy.open_connections == 1)
        assert stored(client, group) == {
            "orders-0": 12,
            "orders-1": 12,
            "orders-2": 13,
            "payments-0": 1,
        }
        listener.onQueryProgress(second)
        assert stored(client, group) == ends
        listener.onQueryProgress(first)  # After a restart, Spark reports the last batch again.
        assert stored(client, group) == ends
        progress = second.progress
        listener.onQueryTerminated(QueryTerminatedEvent(progress.id, progress.runId, None, None))
        eventually(lambda: proxy.open_connections == 0)


def test_a_refused_commit_is_no_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without ZooKeeper the listener logs one warning, and the next batch stores the offsets."""
    group, server = "group", ZooKeeperServer(tmp_path, port=free_port())
    listener = CommitListener(
        query="orders",
        zookeeper=server.connect,
        group=group,
        properties={"zookeeper.connection.timeout.ms": "5000"},
    )
    first, second = events()
    listener.onQueryProgress(first)
    lines = [one.getMessage() for one in caplog.records if one.name.startswith("zkconsumer.spark")]
    (line,) = [one for one in lines if one.startswith("query orders: ")]
    assert line.startswith("query orders: offsets were not written to ZooKeeper: ")
    with server:
        with peer_of(server.connect) as client:

            def is_stored() -> bool:
                # A busy server may answer too late for the listener's time limit.
                listener.onQueryProgress(second)
                return stored(client, group).get("orders-2") == 22

            eventually(is_stored)
        listener.close()


# ---- the function -------------------------------------------------------------------------------


def test_only_finished_messages_are_committed(
    spark: SparkSession,
    zookeeper: ZooKeeperServer,
    client: KazooClient,
    unique: Callable[[str], str],
) -> None:
    """A batch's end offsets are stored, unless the function raises or higher ones exist."""
    group, seen = unique("group"), []

    def process(batch: DataFrame, number: int) -> None:
        assert stored(client, group) == ({} if number < 2 else {"a-0": 13, "a-1": 6, "b-0": 1})
        if number == 0:
            raise OSError("the sink is full")
        seen.append((number, batch.count()))

    function = committing(process, zookeeper=zookeeper.connect, group=group)
    batch = rows(spark, ("a", 0, 11), ("a", 0, 12), ("a", 1, 5), ("b", 0, 0))
    with pytest.raises(OSError, match="full"):
        function(batch, 0)
    assert stored(client, group) == {}
    function(batch, 1)
    assert stored(client, group) == {"a-0": 13, "a-1": 6, "b-0": 1}
    function(rows(spark, ("a", 0, 3)), 2)
    function(rows(spark), 3)
    assert stored(client, group) == {"a-0": 13, "a-1": 6, "b-0": 1}
    assert seen == [(1, 4), (2, 1), (3, 0)]
    function.close()


def test_the_function_can_be_sent(
    spark: SparkSession,
    zookeeper: ZooKeeperServer,
    client: KazooClient,
    unique: Callable[[str], str],
) -> None:
    """A function that has committed is pickled without its session, and its copy can commit."""
    group = unique("group")
    function = committing(_ignore, zookeeper=zookeeper.connect, group=group)
    function(rows(spark, ("a", 0, 1)), 0)
    copy = pickle.loads(pickle.dumps(function))
    copy(rows(spark, ("a", 0, 2)), 1)
    assert stored(client, group) == {"a-0": 3}
    function.close()
    copy.close()


def _ignore(batch: DataFrame, number: int) -> None:
    pass


def test_a_batch_is_read_once(
    spark: SparkSession, zookeeper: ZooKeeperServer, unique: Callable[[str], str]
) -> None:
    """A batch is persisted while its offsets are computed, and is released afterwards."""
    counted = spark.sparkContext.accumulator(0)

    def count(row: Any) -> Any:
        counted.add(1)
        return row

    batch = spark.createDataFrame(rows(spark, ("a", 0, 1), ("a", 0, 2)).rdd.map(count), SCHEMA)
    function = committing(
        lambda one, _: one.count(), zookeeper=zookeeper.connect, group=unique("group")
    )
    function(batch, 0)
    assert counted.value == 2
    assert not batch.is_cached
    function.close()


def test_ranges(spark: SparkSession) -> None:
    """Ranges are computed from a batch's rows; missing columns are an error that names them."""
    batch = rows(spark, ("b", 0, 7), ("a", 1, 5), ("a", 0, 11), ("a", 0, 12))
    wanted = [OffsetRange("a", 0, 11, 13), OffsetRange("a", 1, 5, 6), OffsetRange("b", 0, 7, 8)]
    assert ranges_of(batch) == wanted
    with pytest.raises(SparkSourceError, match="the batch lacks columns") as caught:
        ranges_of(batch.select("topic", "value"))
    assert "partition, offset" in str(caught.value)


def test_a_wrong_property_is_refused(zookeeper: ZooKeeperServer) -> None:
    """A wrong property is an error before the function is sent to a query."""
    with pytest.raises(ConfigError):
        committing(
            print, zookeeper=zookeeper.connect, group="g", properties={"auto.offset.reset": "x"}
        )


def test_a_partition_is_named_as_everywhere() -> None:
    """The partition of a range has the same type as the partition of a stored offset."""
    assert OffsetRange("a", 1, 5, 6).tp == TopicPartition("a", 1)
