"""`mode=group` on a real Spark: what a single query reports, refuses and reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from spark.queries import QueryGroup, wait

from zkconsumer.protocol import paths
from zkconsumer.sandbox import Sandbox
from zkconsumer.spark.progress_listener import progress_of


class BatchGroup(QueryGroup):
    """A topic of four partitions, a group, and the DataFrames and queries of one test."""

    def __init__(self, *where: Any, **more: Any) -> None:
        super().__init__(*where, **more)
        self.rows: list[tuple[int, int]] = []
        # The members of the group, noted during each batch.
        self.members: list[list[str]] = []

    def frame(self, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("zkconsumer")
        return reader.options(**self.options(**options)).load()

    def start(self, frame: DataFrame, *, name: str = "query", **trigger: Any) -> Any:
        """Start a query; it is stopped when the test ends."""
        writer = frame.writeStream.foreachBatch(self._take)
        writer = writer.trigger(**trigger) if trigger else writer
        query = writer.option("checkpointLocation", str(self.directory / name)).start()
        self.stack.callback(query.stop)
        return query

    def run(self, frame: DataFrame, **trigger: bool) -> Any:
        """Run a query until it ends by itself, by default with AvailableNow; raise its error."""
        query = self.start(frame, **(trigger or {"availableNow": True}))
        wait(lambda: not query.isActive, "the query to end")
        if (error := query.exception()) is not None:
            raise error
        return query

    def _take(self, batch: DataFrame, number: int) -> None:
        ids = paths.ids(self.name)
        self.members.append(self.admin.get_children(ids) if self.admin.exists(ids) else [])
        self.rows += [
            (row.partition, row.offset) for row in batch.select("partition", "offset").collect()
        ]


@pytest.fixture
def scene(
    spark: SparkSession, sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path
) -> Iterator[BatchGroup]:
    """Five messages in each partition, and an empty group."""
    topic = unique("queries")
    sandbox.create_topic(topic, partitions=4)
    for partition in range(4):
        sandbox.produce(topic, 5, partition=partition)
    with ExitStack() as stack:
        yield BatchGroup(sandbox, unique("group"), topic, stack, spark=spark, directory=tmp_path)


# ---- Trigger.AvailableNow ------------------------------------------------------------------------


def owned_by_another(scene: BatchGroup, *partitions: int) -> None:
    """Let a live session that belongs to no member own these partitions all the time."""
    for partition in partitions:
        scene.admin.create(scene.owner(partition), b"another-0", ephemeral=True, makepath=True)


def test_a_run_without_its_share_fails(scene: BatchGroup) -> None:
    """If another client owns all partitions, AvailableNow ends with MissingShareError."""
    owned_by_another(scene, 0, 1, 2, 3)
    with pytest.raises(StreamingQueryException) as raised:
        scene.run(scene.frame())
    assert "MissingShareError" in str(raised.value)
    assert "does not give this query its share of the partitions" in str(raised.value)
    assert "another-0" in str(raised.value)


def test_a_run_without_its_share_may_continue(scene: BatchGroup) -> None:
    """With failOnMissingShare=false a run reads its own partitions, and reports the others' lag."""
    owned_by_another(scene, 2, 3)
    query = scene.run(scene.frame(failOnMissingShare="false"))
    assert sorted(scene.rows) == [(part, offset) for part in (0, 1) for offset in range(5)]
    (source,) = query.lastProgress.sources
    assert json.loads(source.latestOffset)[scene.topic]["3"] == [0, 5]
    lags = {one.tp.partition: one.lag for one in progress_of(source)}
    assert lags == {0: 0, 1: 0, 2: 5, 3: 5}


# ---- the warm-up ---------------------------------------------------------------------------------


def test_a_query_joins_after_a_batch(scene: BatchGroup) -> None:
    """While Spark runs its first batch, which is empty, no member is registered."""
    scene.run(scene.frame())
    assert scene.members[0] == [] and len(scene.members[1]) == 1
    assert sorted(scene.rows) == [(part, offset) for part in range(4) for offset in range(5)]


def test_the_only_batch_reads(scene: BatchGroup) -> None:
    """With Trigger.Once, the only batch reads messages."""
    scene.run(scene.frame(), once=True)
    assert len(scene.members) == 1
    assert sorted(scene.rows) == [(part, offset) for part in range(4) for offset in range(5)]


# ---- one DataFrame, used twice -------------------------------------------------------------------


def test_a_self_union_reads_each_message_twice(scene: BatchGroup) -> None:
    """Spark reads both sides of a self-union through one member, so each message appears twice."""
    frame = scene.frame()
    scene.run(frame.union(frame))
    every = [(part, offset) for part in range(4) for offset in range(5)]
    assert sorted(scene.rows) == sorted(every * 2)


def test_a_join_with_itself_is_refused(scene: BatchGroup) -> None:
    """A self-join is refused, because it would create two members that divide the messages."""
    frame = scene.frame()
    one, other = frame.alias("one"), frame.alias("other")
    with pytest.raises(StreamingQueryException) as raised:
        scene.run(
            one.join(
                other, sf.expr("one.partition = other.partition and one.offset = other.offset")
            ).select("one.partition", "one.offset")
        )
    assert "this DataFrame of mode=group has another reader" in str(raised.value)
    assert scene.rows == []


def test_a_query_is_started_again(scene: BatchGroup) -> None:
    """If the query of a DataFrame has ended, other queries may read the DataFrame in turn."""
    frame = scene.frame()
    for _ in range(2):
        scene.run(frame)
    assert len(scene.rows) == 20
