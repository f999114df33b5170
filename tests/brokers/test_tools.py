"""The tools read log ends and times from brokers of every release, and create no topic."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kafka.logs import TOOL_S, tool
from support.scenes import connect_clients
from support.wait import LIMIT_S
from support.zk.client import peer_of
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.exits import Exit
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.logs import (
    NO_TOPIC,
    LogRange,
    are_times_exact,
    committed_in_kafka,
    log_ends,
    offsets_at,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import OFFSETS_TOPIC, TopicPartition
from zkconsumer.protocol.payloads import decode_broker
from zkconsumer.sandbox import Sandbox


def test_log_ends_and_times(cluster: Sandbox, unique: Callable[[str], str]) -> None:
    """Log ends and times are returned; a missing topic is reported, but not created."""
    # A broker before 0.11 creates a topic if a client requests it by name. Every broker creates the
    # offsets topic if a client looks for a coordinator.
    topic, missing = unique("tools"), unique("missing")
    cluster.create_topic(topic)
    cluster.produce(topic, 5)
    here, nowhere = TopicPartition(topic, 0), TopicPartition(missing, 0)
    with peer_of(cluster.zookeeper_connect) as client:
        broker = decode_broker(client.get(paths.broker(0))[0], where="")
        stored = client.exists(paths.topic(OFFSETS_TOPIC))
        found = log_ends(Brokers([broker]), [here, nowhere], limit_s=LIMIT_S)
        assert found == {here: LogRange(0, 5), nowhere: NO_TOPIC}
        later_ms = round(time.time() * 1000) + 3_600_000
        at = offsets_at(Brokers([broker]), [here], later_ms, limit_s=LIMIT_S)[here]
        assert at == (None if are_times_exact([broker]) else 5)
        assert are_times_exact([broker]) is (not cluster.broker.release.startswith(("0.8", "0.9")))
        known = Brokers([broker], has_offsets_topic=stored is not None)
        none = committed_in_kafka(known, "nobody", [here], limit_s=LIMIT_S)
        assert none == {here: None}
        assert not client.exists(paths.topic(missing))
        assert bool(client.exists(paths.topic(OFFSETS_TOPIC))) is bool(stored)


# Age of the older segments of a log, in seconds.
AGO_S = 7200


@pytest.fixture
def aged(cluster: Sandbox, unique: Callable[[str], str]) -> str:
    """A topic of three segments of two messages each; the first two segments are old."""
    topic = unique("aged")
    cluster.create_topic(topic, config={"segment.bytes": 1024})
    for _ in range(6):
        cluster.produce(topic, [bytes(400)])
    folder = cluster.broker.directory / "data" / f"{topic}-0"
    segments = sorted(folder.glob("*.log"))
    assert [int(segment.stem) for segment in segments] == [0, 2, 4]
    for segment in segments[:2]:
        os.utime(segment, (time.time() - AGO_S,) * 2)
    return topic


@pytest.mark.real("a log of a fake broker has one segment")
@pytest.mark.also("0.9.0.1")
def test_moving_by_time(
    cluster: Sandbox, unique: Callable[[str], str], aged: str, tmp_path: Path
) -> None:
    """Before 0.10 a reset to a time is refused; --approximate resets to a segment's begin."""
    group, tp = unique("group"), TopicPartition(aged, 0)
    is_exact = not cluster.broker.release.startswith(("0.8", "0.9"))
    reset = (
        "offsets",
        "reset",
        "-z",
        cluster.zookeeper_connect,
        "-g",
        group,
        "-t",
        aged,
        "--timeout",
        "30",
        "--backup-dir",
        str(tmp_path),
    )
    with connect_clients(cluster.zookeeper_connect) as clients:
        for aim, segment, message in (
            ("--by-duration=PT1H", 2, 0),
            ("--by-duration=P1D", 0, 0),
            ("--to-datetime=2015-01-01", 0, 0),
            ("--to-datetime=2099-01-01", 6, 6),
        ):
            clients.offsets(group, {tp: 3})
            plain = CliRunner().invoke(app, [*reset, aim])
            assert plain.exit_code == (Exit.OK if is_exact else Exit.REFUSED), plain.stderr
            assert ("--approximate" in plain.stderr) is not is_exact
            done = CliRunner().invoke(app, [*reset, aim, "--approximate", "--execute"])
            assert done.exit_code == Exit.OK, done.stderr
            assert ("approximately" in done.stderr) is not is_exact
            expected = message if is_exact else segment
            assert (aim, clients.stored(group)[tp]) == (aim, str(expected))


@pytest.mark.real("a log of a fake broker has one segment")
@pytest.mark.also("0.9.0.1")
def test_get_offset_shell(cluster: Sandbox, aged: str) -> None:
    """Log ends and offsets by time equal the output of the JVM's GetOffsetShell."""
    asked = ("--broker-list", cluster.bootstrap, "--topic", aged, "--time")
    for ago_s, expected in ((None, ":0:6"), (3600, ":0:2"), (365 * 86_400, ":0:")):
        at = "-1" if ago_s is None else str(round((time.time() - ago_s) * 1000))
        with tool("1.1.1", "kafka.tools.GetOffsetShell", *asked, at) as process:
            theirs = process.communicate(timeout=TOOL_S)[0]
        ours = CliRunner().invoke(app, ["legacy", "GetOffsetShell", *asked, at])
        assert (ours.exit_code, ours.stdout) == (0, theirs), ours.stderr
        assert theirs == f"{aged}{expected}\n"
    ours = CliRunner().invoke(app, ["legacy", "GetOffsetShell", *asked, "-2"])
    assert ours.stdout == f"{aged}:0:0\n"
