"""A program of a user that must run without librdkafka: a member, tools and Spark.

tests/brokers/test_without_librdkafka.py starts it in a process in which confluent_kafka cannot be
imported. It prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from brokers.columnar_program import arrow_places, one_stream
from zkconsumer.cli import app


def member(connect: str, topic: str, group: str, count: int) -> dict[str, Any]:
    """Read all messages by three calls, commit, and ask for offsets and the ends of the logs."""
    found: list[tuple[int, int]] = []
    with one_stream(connect, topic, group) as (connector, stream):
        first = next(stream)
        found.append((first.partition, first.offset))
        found += [(one.partition, one.offset) for one in stream.poll(max_messages=2, timeout_s=30)]
        while len(found) < count:
            found += arrow_places(stream, timeout_s=30)
        connector.commit_offsets()
        partitions = sorted(connector.assignment())
        return {
            "read": sorted(found),
            "committed": [at and at.offset for at in connector.committed(partitions).values()],
            "starts": list(connector.beginning_offsets(partitions).values()),
            "ends": list(connector.end_offsets(partitions).values()),
        }


def tools(connect: str, group: str) -> dict[str, Any]:
    """Return the output of the tools that ask the brokers, with their exit codes."""
    commands = {
        "lag": ["lag", "-g", group, "-o", "json"],
        "exporter": ["lag", "-g", group, "-o", "prometheus"],
        "offsets": ["offsets", "get", group, "-o", "json"],
        "doctor": ["doctor", group],
        "reset": ["offsets", "reset", group, "--all-topics", "--to-earliest"],
    }
    found: dict[str, Any] = {}
    for name, words in commands.items():
        result = CliRunner().invoke(app, [*words, "-z", connect])
        found[name] = {"code": result.exit_code, "output": result.stdout, "notes": result.stderr}
    return found


def spark(connect: str, topic: str) -> list[tuple[int, int]]:
    """Read the topic as a batch of Spark."""
    from zkconsumer.sandbox import spark as local  # noqa: PLC0415 - an extra

    directory = tempfile.TemporaryDirectory()
    session = local.session(Path(directory.name))
    try:
        rows = (
            session.read.format("zkconsumer")
            .option("zookeeper", connect)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("endingOffsets", "latest")
            .option("fetch.engine", "columns")
            .load()
            .select("partition", "offset")
            .collect()
        )
        return sorted((row["partition"], row["offset"]) for row in rows)
    finally:
        session.stop()


if __name__ == "__main__":
    part, connect, topic, group, count = sys.argv[1:]
    found: Any
    if part == "member":
        found = {**member(connect, topic, group, int(count)), **tools(connect, group)}
    else:
        found = spark(connect, topic)
    loaded = sorted(name for name in sys.modules if name.startswith("confluent_kafka"))
    sys.stdout.write(json.dumps({"found": found, "loaded": loaded}) + "\n")
