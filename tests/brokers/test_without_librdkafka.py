"""Members, tools, the exporter and Spark read from old brokers in a process without librdkafka.

librdkafka 3 will not support brokers before 0.10.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kafka.offsets import commit_as_another_client
from support.packages import ROOT
from support.wait import LIMIT_S

import brokers.without_librdkafka as program
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox

TOPIC, PARTITIONS, MESSAGES = "plain", 2, 30
EACH = MESSAGES // PARTITIONS


@pytest.fixture(scope="module", params=["0.8.2.2", "0.9.0.1"])
def old(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Sandbox]:
    """Servers of an old release, with a topic."""
    directory = tmp_path_factory.mktemp("old")
    with Sandbox(directory, release=request.param, zookeeper_release="3.4.14") as sandbox:
        sandbox.create_topic(TOPIC, partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            sandbox.produce(TOPIC, EACH, partition=partition)
        yield sandbox


def run(sandbox: Sandbox, tmp_path: Path, part: str, group: str) -> Any:
    """Run a part of the program in a process in which confluent_kafka cannot be imported."""
    hidden = tmp_path / "hidden" / "confluent_kafka"
    hidden.mkdir(parents=True)
    hidden.joinpath("__init__.py").write_text("raise ImportError('librdkafka is hidden')\n")
    file = str(program.__file__)
    words = [file, part, sandbox.zookeeper_connect, TOPIC, group, str(MESSAGES)]
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": f"{hidden.parent}{os.pathsep}{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=4 * LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["loaded"] == []
    return answer["found"]


ALL = [[partition, offset] for partition in range(PARTITIONS) for offset in range(EACH)]


def test_a_member_and_the_tools(old: Sandbox, tmp_path: Path) -> None:
    """A member reads and commits; tools and exporter show offsets, in both stores, and log ends."""
    group, tp = "hidden", TopicPartition(TOPIC, 0)
    commit_as_another_client(old.bootstrap, group, tp, 7, b"note", version=1)
    found = run(old, tmp_path, "member", group)
    assert found["read"] == ALL
    assert found["committed"] == [EACH] * PARTITIONS
    assert found["starts"] == [0] * PARTITIONS
    assert found["ends"] == [EACH] * PARTITIONS
    lags = json.loads(found["lag"]["output"])
    assert [row["log_end"] for row in lags] == [EACH] * PARTITIONS
    assert "note" in found["offsets"]["output"]
    assert f'topic="{TOPIC}"' in found["exporter"]["output"]
    assert "librdkafka" not in json.dumps(found)
    assert found["reset"]["code"] == 0, found["reset"]["notes"]


def test_spark(old: Sandbox, tmp_path: Path) -> None:
    """A batch of Spark reads all messages; neither its driver nor its worker loads librdkafka."""
    assert run(old, tmp_path, "spark", "spark") == ALL
