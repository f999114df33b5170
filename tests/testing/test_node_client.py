"""The ZooKeeper client of kafka-node runs against the fake ZooKeeper."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.packages import node_packages
from support.wait import LIMIT_S

from zkconsumer.testing import FakeZooKeeper

CLIENT = "0.2.3"
"""The release of node-zookeeper-client that kafka-node 2.6.1 requires."""

SAID = """\
numbered /a/n-0000000001
data 1 0 2
children n-0000000001,quiet
watching
disconnected
reconnected
event NODE_DATA_CHANGED /a
event NODE_CREATED /later
event NODE_DATA_CHANGED /a/quiet
refused NODE_EXISTS
acl 31 world anyone
"""


@pytest.mark.parametrize("release", ["3.4.14", "3.8.4"])
def test_the_client_of_kafka_node(tmp_path: Path, release: str) -> None:
    """It reads and writes; after a restart of the server its watches tell what it has missed."""
    modules = node_packages(tmp_path, {"node-zookeeper-client": CLIENT})
    said: list[str] = []
    with FakeZooKeeper(release=release) as fake:
        command = ["node", str(Path(__file__).with_name("node_zookeeper.js")), fake.connect]
        environment = {**os.environ, "NODE_PATH": str(modules)}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as client:
            assert client.stdout is not None
            for line in client.stdout:
                said.append(line)
                if line == "watching\n":
                    fake.kill()
                    fake.set("/a", b"9")
                    fake.create("/later")
                    fake.restart()
                elif line == "event NODE_CREATED /later\n":
                    fake.set("/a/quiet", b"1")
                elif line == "event NODE_DATA_CHANGED /a/quiet\n":
                    fake.create("/end")
            assert client.wait(LIMIT_S) == 0, said
        assert "".join(said).startswith(SAID), said
        assert fake.get("/t") == b"2"
        assert fake.sessions == ()
