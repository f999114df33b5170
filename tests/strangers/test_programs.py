"""zkconsumer beside real programs of other people, in the releases that are named here."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from strangers.conftest import MESSAGES, PARTITIONS, Start, Tools
from support.members.group import Group
from support.wait import eventually

KAFKA_NODE = "2.6.1"
# Seconds in which npm or pip installs a program on a busy machine.
INSTALL_S = 280


@pytest.fixture(scope="module")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """kafka-node and what it requires, from npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    directory = tmp_path_factory.mktemp("npm")
    wanted = {"private": True, "dependencies": {"kafka-node": KAFKA_NODE}}
    (directory / "package.json").write_text(json.dumps(wanted))
    options = ("--omit=optional", "--no-audit", "--no-fund")
    done = subprocess.run(
        [npm, "install", *options],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory / "node_modules"


def test_kafka_node(group: Group, tools: Tools, node_modules: Path, start: Start) -> None:
    """Ten times kafka-node joins three members and leaves: all settle, and nothing is lost."""
    members = [group.join(name) for name in "abc"]
    eventually(lambda: sum(len(one.owned) for one in members) == PARTITIONS)
    script = Path(__file__).with_name("kafka_node.js")
    connect, seen = group.sandbox.zookeeper_connect, set[tuple[int, int]]()
    for number in range(10):
        node = start("node", script, connect, group.name, group.topic, NODE_PATH=str(node_modules))
        eventually(lambda node=node: "rebalanced" in node.lines())
        eventually(lambda: tools.run("verify", group.name).exit_code == 0)
        assert tools.listed() == (4, "live"), number
        assert [one["owned"] for one in tools.rows("members", group.name)] == [1] * 4
        assert tools.findings() == []
        for partition in range(PARTITIONS):
            group.sandbox.produce(group.topic, 1, partition=partition)
        eventually(lambda node=node: bool(node.delivered()))
        node.leave()
        seen.update(node.delivered())
        eventually(lambda: tools.run("verify", group.name).exit_code == 0)
    wanted = {(partition, n) for partition in range(PARTITIONS) for n in range(MESSAGES + 10)}

    def found() -> set[tuple[int, int]]:
        messages = (message for one in members for message in one.readers[0].messages)
        return seen | {(message.partition, message.offset) for message in messages}

    eventually(lambda: found() == wanted)
