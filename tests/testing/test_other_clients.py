"""Clients of other people run against a fake cluster: kafka-python, kafka-node."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import pytest
from support.packages import node_packages, pip
from support.wait import LIMIT_S

from zkconsumer.protocol.model import TopicPartition
from zkconsumer.testing import FakeCluster, committed

KAFKA_PYTHON = "3.0.12"
# The last release whose consumers are members of ZooKeeper's groups.
KAFKA_NODE = "2.6.1"
PARTITIONS, EACH = 2, 10

# Writes one message to partition 0, reads COUNT messages as a member of the group, and commits.
KAFKA_PYTHON_PROGRAM = """
import sys
from kafka import KafkaConsumer, KafkaProducer
bootstrap, topic, group, count = sys.argv[1:]
producer = KafkaProducer(bootstrap_servers=bootstrap)
producer.send(topic, b"from kafka-python", key=b"k", partition=0).get(60)
producer.close()
consumer = KafkaConsumer(
    topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
)
for _ in range(int(count)):
    message = next(consumer)
    print(message.partition, message.offset, flush=True)
consumer.commit()
consumer.close()
"""
NODE_PROGRAM = Path(__file__).parents[1] / "strangers" / "kafka_node.js"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter in whose environment kafka-python is installed."""
    directory = tmp_path_factory.mktemp("kafka-python")
    venv.create(directory, with_pip=False, symlinks=True)
    made = directory / "bin" / "python"
    pip("--python", str(made), "install", f"kafka-python=={KAFKA_PYTHON}")
    return made


def filled(release: str) -> FakeCluster:
    """Return a running cluster with messages in the topic `t`."""
    cluster = FakeCluster(release=release)
    cluster.start()
    cluster.create_topic("t", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        cluster.produce("t", EACH, partition=partition)
    return cluster


@pytest.mark.parametrize("release", ["0.10.2.2", "0.11.0.3", "1.1.1", "3.9.1"])
def test_kafka_python(python: Path, release: str) -> None:
    """A producer writes, and a member of a new group reads each message once and commits."""
    with filled(release) as cluster:
        count = PARTITIONS * EACH + 1
        done = subprocess.run(
            [python, "-c", KAFKA_PYTHON_PROGRAM, cluster.bootstrap, "t", "g", str(count)],
            capture_output=True,
            text=True,
            timeout=2 * LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        places = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
        assert sorted(places) == [
            *((0, offset) for offset in range(EACH + 1)),
            *((1, offset) for offset in range(EACH)),
        ]
        stored = {tp: one.offset for tp, one in cluster.offsets_in_kafka("g").items()}
        assert stored == {TopicPartition("t", 0): EACH + 1, TopicPartition("t", 1): EACH}


@pytest.mark.parametrize("release", ["0.8.2.2", "0.9.0.1", "1.1.1"])
def test_kafka_node(tmp_path: Path, release: str) -> None:
    """A HighLevelConsumer joins, reads each message once, and commits to ZooKeeper."""
    modules = node_packages(tmp_path, {"kafka-node": KAFKA_NODE})
    with filled(release) as cluster:
        command = ["node", str(NODE_PROGRAM), cluster.zookeeper_connect, "g", "t"]
        environment = {**os.environ, "NODE_PATH": str(modules)}
        places: list[tuple[int, ...]] = []
        said: list[str] = []
        with subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as member:
            assert member.stdin is not None
            assert member.stdout is not None
            while len(places) < PARTITIONS * EACH:
                line = member.stdout.readline()
                assert line, said
                said.append(line)
                assert not line.startswith("error"), said
                if line[0].isdecimal():
                    places.append(tuple(map(int, line.split())))
            member.stdin.close()
            assert member.wait(LIMIT_S) == 0
        wanted = [(number, offset) for number in range(PARTITIONS) for offset in range(EACH)]
        assert sorted(places) == wanted
        # Its OffsetCommit has version 0, which brokers store in ZooKeeper.
        expected = {TopicPartition("t", number): EACH for number in range(PARTITIONS)}
        assert committed(cluster.zookeeper_connect, "g") == expected
