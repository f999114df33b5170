"""`--offsets-log`: the commits in Kafka, in the commands that read servers' logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Run
from support.kafka.offsets import foreign

from zkconsumer.sandbox import Sandbox

GOLDEN = Path(__file__).parents[1] / "golden"
KAFKA = str(GOLDEN / "offsets" / "3.9.1.tar.gz")
ZOOKEEPER = str(GOLDEN / "history" / "incident.tar.gz")


def test_kafka_alone(call: Run) -> None:
    """Without ZooKeeper's files, report, timeline and tables show what is in Kafka."""
    code, out, err = call("history", "report", "--offsets-log", KAFKA, "-o", "json")
    found = json.loads(out)
    groups = {row["group"]: row for row in found["groups"]}
    assert code == 0
    assert groups.keys() == {"batch", "dual", "kafka", "new", "tool"}
    assert all(row["commits"] == row["in_kafka"] > 0 for row in groups.values())
    assert {(one["kind"], one["store"], one["zxid"]) for one in found["incidents"]} == {
        ("offset moved back", "kafka", None)
    }
    assert "records of __consumer_offsets read" in err
    rows = json.loads(call("history", "show", "commits", "--offsets-log", KAFKA, "-o", "json")[1])
    assert {(row["store"], row["zxid"], row["last_zxid"]) for row in rows} == {
        ("kafka", None, None)
    }
    (new,) = {row["by"] for row in rows if row["group"] == "new"}
    assert new.startswith("rdkafka-")


def test_one_timeline(call: Run) -> None:
    """The events of both stores are in the order of their times, and each names its store."""
    both = "--data-dir", ZOOKEEPER, "--offsets-log", KAFKA
    lines = json.loads(call("history", "timeline", *both, "-o", "json")[1])
    times = [line["time"] for line in lines if line["kind"] != "incident"]
    assert times == sorted(times)
    assert {line["store"] for line in lines} == {"kafka", "zookeeper"}
    assert all((line["zxid"] is None) == (line["store"] == "kafka") for line in lines)
    table = call("history", "timeline", *both)[1]
    assert table.splitlines()[0].split()[:5] == ["TIME", "GROUP", "KIND", "WHAT", "STORE"]
    assert "began to commit orders-0 in Kafka at" in table


def test_the_span_of_time_and_the_group(call: Run) -> None:
    """--group and --from limit the commits in Kafka, too."""
    words = "history", "show", "commits", "--offsets-log", KAFKA, "-o", "json"
    rows = json.loads(call(*words, "--group", "tool")[1])
    assert {row["group"] for row in rows} == {"tool"}
    assert json.loads(call(*words, "--from", "2100-01-01")[1]) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("history", "report"), "no files are given"),
        (
            ("history", "show", "transactions", "--offsets-log", KAFKA),
            "contains the operations of ZooKeeper only",
        ),
        (
            ("offsets", "restore", "-g", "tool", "--undo-tool", "--offsets-log", KAFKA),
            "neither transactions nor sessions",
        ),
        (
            ("offsets", "restore", "-g", "tool", "--at", "2026-01-01"),
            "no source of the offsets of the past is given",
        ),
        (("history", "report", "--offsets-log", "/missing"), "the path does not exist"),
        (("history", "report", "--offsets-log", KAFKA, "--offsets-topic"), "give one of the two"),
        (
            ("history", "report", "--offsets-log", KAFKA, "--bootstrap", "k:1"),
            "only --offsets-topic",
        ),
        (("history", "timeline", "--offsets-topic", "--follow"), "--follow reads files only"),
        (("history", "report", "--offsets-topic"), "the address of ZooKeeper is missing"),
    ],
)
def test_wrong_options(call: Run, words: tuple[str, ...], text: str) -> None:
    """A wrong combination ends with code 2, and the error says what to give."""
    code, _, err = call(*words)
    assert code == 2
    assert text in err


@pytest.mark.server
def test_the_topic(call: Run, sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """The brokers' topic has the rows of their segments, whoever names the brokers."""
    group, topic = unique("group"), unique("topic")
    sandbox.create_topic(topic)
    with foreign(sandbox.zookeeper_connect, group, topic) as one:
        for offset in (3, 5, 2):
            one.commit({0: offset})
    words = "history", "show", "commits", "--group", group, "-o", "json", "--columns"
    words += ("time_ms,begins,first,last,count,place",)
    code, segments, err = call(*words, "--offsets-log", str(sandbox.broker.directory / "data"))
    assert (code, [row["last"] for row in json.loads(segments)]) == (0, [5, 2]), err
    for brokers in (("-z", sandbox.zookeeper_connect), ("--bootstrap", sandbox.bootstrap)):
        assert call(*words, "--offsets-topic", *brokers)[:2] == (0, segments)
