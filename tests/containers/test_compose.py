"""docker/compose.yaml: the servers start in order, and the command line reads from them.

The test replaces the official images by the project's own image, because a test may need no
registry.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

COMPOSE = Path(__file__).parents[2] / "docker" / "compose.yaml"
JAVA, PYTHON = "/opt/jre/bin/java", "/opt/python/bin/python3"
CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 1)"
LIMIT_S = 300


def _local(image: str, server: str, port: int) -> dict[str, object]:
    probe = {"test": ["CMD", PYTHON, "-c", CONNECT, str(port)], "interval": "1s"}
    return {"image": image, "entrypoint": [JAVA, f"@/conf/{server}.args"], "healthcheck": probe}


@pytest.fixture
def compose(image: str, tmp_path: Path) -> Iterator[list[str]]:
    """The command of Docker Compose for this file; stops its servers at the end."""
    program = next((one for one in (["docker", "compose"], ["docker-compose"]) if _runs(one)), [])
    if not program:
        pytest.skip("there is no Docker Compose")
    services = {
        "zookeeper": _local(image, "zookeeper", 2181),
        "kafka": _local(image, "kafka", 9092),
        "cli": {"image": image},
    }
    local = tmp_path / "local.json"
    local.write_text(json.dumps({"services": services}))
    command = [*program, "--file", str(COMPOSE), "--file", str(local)]
    yield command
    _run(*command, "down", "--volumes", "--timeout", "5")


def _runs(program: list[str]) -> bool:
    try:
        done = subprocess.run([*program, "version", "--short"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def _run(*command: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_servers_serve_the_command_line(compose: list[str]) -> None:
    """The broker waits for ZooKeeper, and `cli` consumes the messages that were produced."""
    # `up --wait` would be enough for Compose 2; Compose 1 of Debian 12 does not have it.
    _run(*compose, "up", "--detach")
    producer = Producer({"bootstrap.servers": "127.0.0.1:9092"})
    producer.produce("orders", b"first")
    assert producer.flush(LIMIT_S) == 0
    words = ("--group", "billing", "--topic", "orders", "--from-beginning", "--max-messages", "1")
    command = ("run", "--rm", "-T", "cli", "consume", "--zookeeper", "zookeeper:2181", *words)
    assert _run(*compose, *command).splitlines()[-1] == "first"
