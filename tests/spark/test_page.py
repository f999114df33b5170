"""The programs of docs/spark.md run one after another on real servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.zk.client import peer_of

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.process import until

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# Time limit of each wait in seconds. On an idle machine each wait takes about 1 s.
LIMIT_S = 120


class Page:
    """Runs the programs of the page in one namespace, with names that the tests use."""

    def __init__(self, spark: SparkSession, **names: str) -> None:
        self.space: dict[str, Any] = {"spark": spark}
        self._names = names

    def run(self, beginning: str) -> None:
        (program,) = [one for one in PROGRAMS if one.startswith(beginning)]
        for old, new in self._names.items():
            program = program.replace(old, new)
        # The page is a file of this repository.
        exec(compile(program, "spark.md", "exec"), self.space)


@contextmanager
def stopped(page: Page, beginning: str) -> Iterator[None]:
    """Run a program, and stop its query at the end of the `with` block."""
    page.run(beginning)
    query = page.space["query"]
    try:
        yield
    finally:
        query.stop()


def test_the_programs(
    spark: SparkSession,
    sandbox: Sandbox,
    unique: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Queries, batch reads, listeners and the function do what the page says."""
    topic, group, connect = unique("orders"), unique("billing"), sandbox.zookeeper_connect
    sandbox.create_topic(topic, partitions=2)
    znodes = [paths.offset(group, TopicPartition(topic, number)) for number in range(2)]
    with peer_of(connect) as client:  # The group existed before the query.
        for znode in znodes:
            client.create(znode, b"0", makepath=True)
    names = {
        "zk1:2181/kafka": connect,
        '"billing"': f'"{group}"',
        '"subscribe", "orders"': f'"subscribe", "{topic}"',
        '"orders-checkpoint"': f'"{tmp_path}/checkpoint"',
        '"path", "orders"': f'"path", "{tmp_path}/orders"',
        "orders/batch=": f"{tmp_path}/batch=",
        '"moves"': f'"{tmp_path}/moves"',
        '"moves-checkpoint"': f'"{tmp_path}/moves-checkpoint"',
        "billing.*": f"{group}.*",
    }
    page = Page(spark, **names)
    page.run("from zkconsumer.spark.progress_listener")
    page.run("from zkconsumer.spark.finishing import CommitListener")
    page.run("from zkconsumer.spark.data_source import ZkConsumerSource")
    with stopped(page, "orders = ("):
        sandbox.produce(topic, [str(number) for number in range(30)])
        written = spark.read.schema("value string").parquet
        assert until(lambda: _count(written, tmp_path / "orders") == 30, limit_s=LIMIT_S)
        page.run("from zkconsumer.spark import tables")
        with stopped(page, "moves = "):
            moved = spark.read.schema("topic string").parquet
            assert until(lambda: _count(moved, tmp_path / "moves") == 2, limit_s=LIMIT_S)
    assert "sum(lag)" in capsys.readouterr().out
    page.run("rows = (")
    counts = re.findall(r"count=(\d+)", capsys.readouterr().out)
    assert sum(map(int, counts)) == 30
    # The test replaces format("kafka") on the page by zkconsumer's format, which has the same
    # columns.
    options = {"zookeeper": connect, "subscribe": topic, "startingOffsets": "earliest"}
    page.space["rows"] = spark.readStream.format("zkconsumer").options(**options).load()
    with stopped(page, "from zkconsumer.spark.finishing import committing"):
        page.space["query"].processAllAvailable()
    with peer_of(connect) as client:
        assert sum(int(client.get(znode)[0]) for znode in znodes) == 30


def _count(read: Any, path: Path) -> int:
    return int(read(str(path)).count()) if path.exists() else 0


def test_every_program_is_run() -> None:
    """The tests run every program that the page contains."""
    assert len(PROGRAMS) == 8
