"""The tools' figures for real JVM members equal those of Kafka's own tool."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.jvm.member import JvmMember
from support.kafka.logs import TOOL_S, tool
from support.wait import wait_for
from support.zk.client import peer_of
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox

RELEASE = "1.1.1"


def _theirs(sandbox: Sandbox, group: str) -> str:
    """Return the standard output of `ConsumerGroupCommand --describe`."""
    with tool(
        RELEASE,
        "kafka.admin.ConsumerGroupCommand",
        "--zookeeper",
        sandbox.zookeeper_connect,
        "--describe",
        "--group",
        group,
    ) as process:
        return process.communicate(timeout=TOOL_S)[0]


def _ours(sandbox: Sandbox, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--zookeeper", sandbox.zookeeper_connect])
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


def test_the_same_figures(sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path) -> None:
    """For a JVM member that owns and one that is idle, four commands print Kafka's figures."""
    topic, group = unique("topic"), unique("group")
    sandbox.create_topic(topic, partitions=2)
    # Each partition alone has seven messages: a thread of the JVM member reserves its next message
    # before it waits for the message, and could otherwise reserve the last one at an empty
    # partition.
    for number in range(2):
        sandbox.produce(topic, 10, partition=number)
    members = [
        JvmMember(
            RELEASE,
            sandbox.zookeeper_connect,
            group,
            name=name,
            directory=tmp_path,
            topics=[topic],
            streams=2,
            consume=count,
            # One thread fetches both partitions, so it must not wait for a stream that takes no
            # more messages.
            properties={"auto.commit.interval.ms": 60_000, "queued.max.message.chunks": 100},
        )
        for name, count in (("a", 7), ("b", 0))
    ]
    try:
        wait_for(lambda: len(members[0].delivered) == 7, "seven messages")
        with peer_of(sandbox.zookeeper_connect) as client:
            nodes = [paths.owner(group, TopicPartition(topic, n)) for n in range(2)]
            ids = paths.ids(group)
            wait_for(lambda: len(client.get_children(ids)) == 2, "both members")
            wait_for(
                lambda: all(member.quiet_s > 1 for member in members), "both JVM members to settle"
            )
            wait_for(lambda: all(map(client.exists, nodes)), "owners")
        for member in members:
            member.tell("commit")
            member.wait("committed")
        theirs = _theirs(sandbox, group)
        assert _ours(sandbox, "lag", "--group", group, "--output", "legacy") == theirs
        _compare(theirs, sandbox, group)
    finally:
        for member in members:
            member.end()


def _compare(theirs: str, sandbox: Sandbox, group: str) -> None:
    """Compare row by row; Kafka's rows name members, but zkconsumer's rows name threads."""
    rows = [line.split() for line in theirs.splitlines()[2:]]
    owned = [row for row in rows if row[0] != "-"]
    shown: Any = json.loads(_ours(sandbox, "groups", "show", group, "--output", "json"))
    lag: Any = json.loads(_ours(sandbox, "lag", "--group", group, "--output", "json"))
    # Only `lag` judges the status of a partition.
    without = [{name: row[name] for name in row if name != "status"} for row in lag]
    assert shown["partitions"] == without
    assert [
        [
            row["topic"],
            str(row["partition"]),
            str(row["offset"]),
            str(row["log_end"]),
            str(row["lag"]),
            row["owner"].rpartition("-")[0],
        ]
        for row in lag
    ] == owned
    idle = [one["member"] for one in shown["members"] if not one["owned"]]
    assert idle == [row[5] for row in rows if row[0] == "-"]
    stored: Any = json.loads(_ours(sandbox, "offsets", "get", "--group", group, "-o", "json"))
    assert [str(row["zookeeper"]) for row in stored] == [row[2] for row in owned]
    owners: Any = json.loads(_ours(sandbox, "owners", "--group", group, "-o", "json"))
    assert [row["consumer"] for row in owners["partitions"]] == [row[5] for row in owned]
