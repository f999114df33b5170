"""Which partitions a query's progress reports, for this package's source and Spark's own
connector."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from zkconsumer.protocol.model import TopicPartition
from zkconsumer.spark.progress_listener import (
    LagListener,
    description_of,
    positions,
    progress_of,
)

RECORDED = Path(__file__).parents[1] / "golden" / "spark" / "kafka-connector-4.0.0.json"
# As zkconsumer's source reports it: the end offset of a batch also contains its start.
OURS = {
    "startOffset": {"orders": {"0": [0, 40]}},
    "endOffset": {"orders": {"0": [40, 100], "1": [7, 7]}},
    "latestOffset": {"orders": {"0": [103, 103], "1": [9, 9]}},
}


def recorded(**source: object) -> list[QueryProgressEvent]:
    told = json.loads(RECORDED.read_text())
    for one in told:
        one["sources"][0] |= source
    return [QueryProgressEvent(StreamingQueryProgress.fromJson(one)) for one in told]


def test_progress_of_a_zkconsumer_source() -> None:
    """A range is taken from a batch's end offset, and the lag from the latest offset."""
    (event, _) = recorded(**OURS)
    (source,) = event.progress.sources
    told = list(map(str, progress_of(source)))
    assert told == ["orders-0 [40,100) lag 3", "orders-1 [7,7) lag 2"]


def test_the_connectors_progress() -> None:
    """With Spark's own source, a range starts at the end of the previous batch."""
    told = [list(map(str, progress_of(*event.progress.sources))) for event in recorded()]
    assert told[0][0] == "orders-0 [,12) lag 8"
    assert told[1] == [
        "orders-0 [12,20) lag 0",
        "orders-1 [12,21) lag 0",
        "orders-2 [13,22) lag 0",
        "payments-0 [1,2) lag 0",
    ]


def test_offsets_of_other_sources() -> None:
    """Offsets that other sources (rate, files) report are ignored."""
    for offset in (None, "", "17", '{"logOffset":3}', '{"a":{"b":1}}', "[1]"):
        assert positions(offset) == {}
    (event, _) = recorded(endOffset={"logOffset": 3}, startOffset=None)
    lines: list[str] = []
    LagListener(lines.append).onQueryProgress(event)
    assert lines == []


PYTHON = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@1b2c"


def test_a_source_has_a_readable_description() -> None:
    """A source in Python is described by its topics, and Spark's own source by Spark."""
    (event, _) = recorded(**OURS, description=PYTHON)
    (source,) = event.progress.sources
    assert description_of(source) == "zkconsumer[orders]"
    (other, _) = recorded()
    assert description_of(*other.progress.sources) == other.progress.sources[0].description


def test_a_query_without_a_name() -> None:
    """A line about a query without a name has the query's id and the description of its source."""
    told = json.loads(RECORDED.read_text())[0] | {"name": None}
    told["sources"][0] |= {**OURS, "description": PYTHON}
    progress = StreamingQueryProgress.fromJson(told)
    lines: list[str] = []
    LagListener(lines.append).onQueryProgress(QueryProgressEvent(progress))
    assert lines[0].startswith(f"{progress.id} zkconsumer[orders]: batch 0, ")


def test_each_batch_is_one_line() -> None:
    """One log line per batch has the ranges, the duration, and the partitions with most lag."""
    lines: list[str] = []
    listener = LagListener(lines.append)
    first, second = recorded()
    listener.onQueryProgress(first)
    listener.onQueryProgress(second)
    progress = first.progress
    listener.onQueryTerminated(QueryTerminatedEvent(progress.id, progress.runId, "x", None))
    assert lines[0] == (
        "orders: batch 0, 38 rows in 17.13 s, lag 27 in 4 partitions: orders-1 [,12) lag 9,"
        " orders-2 [,13) lag 9, orders-0 [,12) lag 8, payments-0 [,1) lag 1"
    )
    assert lines[2].endswith(": failed")
    assert set(listener.lag["orders"].values()) == {0}
    assert TopicPartition("payments", 0) in listener.lag["orders"]
