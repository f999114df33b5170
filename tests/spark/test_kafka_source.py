"""The helpers for queries that keep `format("kafka")`, on Spark 4.0.0 with its own connector.

These tests need `--kafka-source`: they download half a gigabyte once (`scripts/_kafka_source.py`).
"""

from __future__ import annotations

import importlib.util
import site
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

from support.zk.client import data_of, peer_of

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.process import until

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0

# Run both helpers on one topic, each with its own query and group, in batches of 50.
PROGRAM = """
import sys
jars, directory, *found, bootstrap, zookeeper, topic, group = sys.argv[1:]
sys.path += found  # after that environment's own pyspark
from pyspark.sql import SparkSession
from zkconsumer.spark.finishing import CommitListener, committing
builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
for key, value in {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
                   "spark.driver.bindAddress": "127.0.0.1", "spark.local.dir": directory,
                   "spark.sql.shuffle.partitions": "1"}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
listener = CommitListener(query="heard", zookeeper=zookeeper, group=f"{group}-heard")
spark.streams.addListener(listener)
rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
rows = rows.option("subscribe", topic).option("startingOffsets", "earliest")
rows = rows.option("maxOffsetsPerTrigger", "50").load()
function = committing(lambda batch, _: batch.count(), zookeeper=zookeeper, group=f"{group}-called")
for name, sink in (("heard", lambda batch, _: batch.count()), ("called", function)):
    query = rows.writeStream.queryName(name).foreachBatch(sink).trigger(availableNow=True)
    query = query.option("checkpointLocation", f"{directory}/{name}").start()
    query.awaitTermination()
print("done", flush=True)
sys.stdin.read()  # the listener gets the event of the last batch after its end
spark.stop()
"""


def kafka_source() -> ModuleType:
    """The benchmarks' script that creates Spark's environment."""
    path = ROOT / "scripts" / "_kafka_source.py"
    spec = importlib.util.spec_from_file_location("_kafka_source", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_spark_s_own_source(sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path) -> None:
    """The listener and the function store the topic's end offsets as offsets of the group."""
    topic, group = unique("kept"), unique("group")
    sandbox.create_topic(topic, partitions=3)
    for number in range(3):
        sandbox.produce(topic, 40 + number, partition=number)

    def has_all(name: str) -> bool:
        nodes = [paths.offset(f"{group}-{name}", TopicPartition(topic, n)) for n in range(3)]
        with peer_of(sandbox.zookeeper_connect) as zk:
            return [data_of(zk, path) for path in nodes] == [b"40", b"41", b"42"]

    arguments = [str(ROOT), *site.getsitepackages(), sandbox.bootstrap, sandbox.zookeeper_connect]
    process = kafka_source().start(PROGRAM, *arguments, topic, group, directory=tmp_path)
    try:
        assert "done\n" in process.stdout
        for name in ("heard", "called"):
            assert until(partial(has_all, name), limit_s=LIMIT_S)
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
