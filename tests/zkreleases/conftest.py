"""Groups, tools and faults on each ZooKeeper release that `--zookeeper` names.

Most tests of this directory are imported from other directories: they run again on the servers that
the fixtures here start.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.conftest import admin, crew, stack, topic, trap
from support.shared_servers import LONG_SESSION
from support.zk.servers import zookeeper_releases

from zkconsumer.sandbox import Sandbox, ZooKeeperEnsemble, ZooKeeperServer

__all__ = ["admin", "crew", "stack", "topic", "trap"]

# Kafka releases that were in use with these ZooKeeper releases; with all others, the newest broker.
BROKERS = {"3.4.6": "0.8.2.2", "3.4.14": "1.1.1"}
TICK_S = 0.1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test on the releases that `--zookeeper` names, unless the test names its own."""
    named = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    for fixture in ("sandbox", "ensemble"):
        if fixture in metafunc.fixturenames and fixture not in named:
            releases = zookeeper_releases(metafunc.config)
            metafunc.parametrize(fixture, releases, indirect=True, scope="package")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect the long selection only if `--zookeeper` requests it."""
    is_long = collection_path.name.startswith("test_long_")
    return True if is_long and config.getoption("--zookeeper") == "some" else None


@pytest.fixture(scope="package")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A ZooKeeper of one release, and a broker that was used with this release."""
    broker = BROKERS.get(request.param, "3.9.1")
    with Sandbox(
        release=broker,
        zookeeper_release=request.param,
        tick_time_s=TICK_S,
        overrides=LONG_SESSION,
    ) as servers:
        yield servers


@pytest.fixture
def zookeeper(sandbox: Sandbox) -> ZooKeeperServer:
    """The ZooKeeper of this release."""
    return sandbox.zookeeper


@pytest.fixture(scope="package")
def ensemble(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeperEnsemble]:
    """Three ZooKeeper servers of one release."""
    directory = tmp_path_factory.mktemp("ensemble")
    with ZooKeeperEnsemble(directory, release=request.param, tick_time_s=TICK_S) as servers:
        yield servers
