"""Members that wait at the end of a log deliver what is produced later, however they ask.

The streams read through the columnar reader, at the first use on a machine, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.members.group import SETTINGS
from support.packages import ROOT
from support.wait import LIMIT_S

import brokers.uncompiled as program
from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.consumer.stream import Stream
from zkconsumer.errors import ConsumerTimeoutError
from zkconsumer.sandbox import Sandbox

PARTITIONS, EACH = 4, 10

Found = list[tuple[int, int]]
"""Partitions and offsets of messages."""
Call = Callable[[Stream[Any, Any]], Found]


def poll(stream: Stream[Any, Any], timeout_s: float) -> Found:
    return [(one.partition, one.offset) for one in stream.poll(timeout_s=timeout_s)]


def poll_arrow(stream: Stream[Any, Any], timeout_s: float) -> Found:
    rows = stream.poll_arrow(timeout_s=timeout_s).to_pylist()
    return [(row["partition"], row["offset"]) for row in rows]


def iterate(stream: Stream[Any, Any]) -> Found:
    """Iterate until `consumer.timeout.ms` ends the iteration."""
    found: Found = []
    try:
        for one in stream:
            found.append((one.partition, one.offset))
    except ConsumerTimeoutError:
        pass
    return found


CALLS: dict[str, Call] = {
    "iteration": iterate,
    **{f"poll-{one}": partial(poll, timeout_s=one) for one in (0, 0.05, 0.5)},
    **{f"poll_arrow-{one}": partial(poll_arrow, timeout_s=one) for one in (0, 0.05)},
}


@pytest.fixture
def stream(cluster: Sandbox, topic: str, stack: ExitStack) -> Stream[Any, Any]:
    """The stream of a member that has settled on the empty topic."""
    config = ConsumerConfig(
        group_id=f"of-{topic}",
        fetch_engine="columns",
        **{**SETTINGS, "zookeeper_connect": cluster.zookeeper_connect},
    )
    connector = stack.enter_context(ConsumerConnector(config))
    (found,) = connector.create_message_streams({topic: 1})[topic]
    connector.wait_until_assigned(LIMIT_S)
    return found


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_messages_after_a_pause(
    stream: Stream[Any, Any], cluster: Sandbox, topic: str, call: Call
) -> None:
    """The topic is empty, is filled, becomes idle and is filled again: each message comes once."""
    for already in (0, EACH, 2 * EACH):
        assert call(stream) == []
        for partition in range(PARTITIONS):
            cluster.produce(topic, map(str, range(EACH)), partition=partition)
        found: Found = []
        deadline = time.monotonic() + LIMIT_S
        while len(found) < PARTITIONS * EACH:
            assert time.monotonic() < deadline, (found, stream.waiting_for)
            found += call(stream)
        offsets = range(already, already + EACH)
        assert sorted(found) == [(part, at) for part in range(PARTITIONS) for at in offsets]


@pytest.mark.parametrize("way", ["poll", "poll_arrow"])
def test_members_do_not_wait_for_the_compiler(
    cluster: Sandbox, topic: str, tmp_path: Path, way: str
) -> None:
    """While numba compiles the reader for the first time, a member already delivers messages."""
    for partition in range(PARTITIONS):
        # One response has no room for all messages; the reader loads numba for the second one.
        cluster.produce(topic, ["x" * 150_000] * EACH, partition=partition)
    words = [cluster.zookeeper_connect, topic, f"of-{topic}", str(PARTITIONS * EACH), way]
    done = subprocess.run(
        [sys.executable, str(program.__file__), *words],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=4 * LIMIT_S,  # beside other tests, the compiler has a small part of a core
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    everything = [[partition, at] for partition in range(PARTITIONS) for at in range(EACH)]
    assert json.loads(done.stdout) == {"found": everything, "compiling": True}
