"""The users' tests of `legacy_kafka` on servers in containers: a few here, all in their own run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from testcontainers.core.config import ConnectionMode, testcontainers_config
from testing.test_users_suite import (
    start,
    test_a_member_leaves,
    test_another_client_reads_the_same,
    test_where_offsets_are_stored,
)

from zkconsumer.errors import SandboxError
from zkconsumer.testing import open_legacy_kafka
from zkconsumer.testing.containers import LegacyKafkaContainer, ZooKeeperContainer

# The tests and their fixture, which pytest finds by their names.
__all__ = [
    "start",
    "test_a_member_leaves",
    "test_another_client_reads_the_same",
    "test_where_offsets_are_stored",
]
pytestmark = [
    pytest.mark.legacy_kafka(backend="containers"),
    pytest.mark.usefixtures("server_images"),
]
LIMIT_S = 1800


@pytest.mark.timeout(LIMIT_S + 100)
def test_all_fifty() -> None:
    """tests/testing/test_users_suite.py passes with `--legacy-kafka containers`."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
            *("--legacy-kafka", "containers", "tests/testing/test_users_suite.py"),
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b50 passed\b", done.stdout)


def test_a_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the server's, not one of the network, which is removed with the container."""
    container = ZooKeeperContainer()
    container.with_env("ZOO_TICK_TIME", "none")
    with pytest.raises(RuntimeError, match="exited"), container:
        pass
    networks = container.get_docker_client().client.networks.list(names=[container.network.name])
    assert networks == []
    monkeypatch.setenv("ZKCONSUMER_ZOOKEEPER_IMAGE", "zkconsumer:no-such-image")
    refused = pytest.raises(SandboxError, match=r"containers do not start.*no-such-image")
    with refused, open_legacy_kafka("containers"):
        pass


def test_the_address_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """If clients use the container's own address, the error says what to set."""
    mode = ConnectionMode.bridge_ip
    monkeypatch.setattr(testcontainers_config, "connection_mode_override", mode)
    with pytest.raises(SandboxError, match="CONNECTION_MODE=gateway_ip"):
        LegacyKafkaContainer(ZooKeeperContainer())
