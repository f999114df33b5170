"""A ZooKeeper, and a sandbox with a broker, that all workers of a run share.

The process that controls the workers starts both, so that each run pays once for their start and
for their idle time. Without workers, each server starts when a test first requests it. No test may
stop these servers, pause them or change what concerns other tests; each test uses names or a chroot
of its own. Nor may a test create a topic there whose znode the broker cannot parse: Kafka 3.9.1
(KafkaController.processTopicChange) then ignores all topics that appeared at the same moment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Protocol, cast

import lanes
import pytest
from lanes import Lane

from support.zk.servers import shared_release
from zkconsumer.sandbox import Sandbox, ZooKeeperServer

# ZooKeeper's tick time in tests, in seconds; it permits a session timeout of 0.6 s.
TICK_S = 0.1

# Settings of brokers that many tests share: a busy machine must not end a broker's session. A test
# during which a broker is not registered fails.
LONG_SESSION = {"zookeeper.session.timeout.ms": 30_000}

# A broker logs this if it cannot parse the znode of a new topic.
TOPICS_IGNORED = "Error processing event TopicChange"

# The shared servers by the names of their fixtures: the number of brokers of each.
_BROKERS = {"zookeeper": 0, "sandbox": 1}
_STARTED = pytest.StashKey["_Servers"]()


class _Node(Protocol):
    """A worker, as pytest-xdist passes it to its hooks."""

    config: pytest.Config
    workerinput: dict[str, str]


class _Servers:
    """The servers of a run, in the process that controls the workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._stack = ExitStack()
        self.directories = {
            key: str(self._stack.enter_context(_sandbox(config, key)).directory) for key in _BROKERS
        }

    def stop(self) -> None:
        self._stack.close()


def _sandbox(config: pytest.Config, key: str, directory: str | None = None) -> Sandbox:
    release = shared_release(config)
    return Sandbox(
        directory,
        brokers=_BROKERS[key],
        zookeeper_release=release,
        tick_time_s=TICK_S,
        overrides=LONG_SESSION,
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Start the servers before the workers, if this lane contains tests that need a server."""
    if lanes.of_run(config) is not Lane.QUICK:
        config.stash[_STARTED] = _Servers(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: _Node) -> None:
    """Tell a worker the directories of the servers."""
    if (servers := node.config.stash.get(_STARTED, None)) is not None:
        node.workerinput |= servers.directories


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers after the workers."""
    if (servers := config.stash.get(_STARTED, None)) is not None:
        servers.stop()


def _attached(config: pytest.Config, key: str) -> Sandbox | None:
    """Return the servers that the controlling process started, if it did."""
    directory = getattr(config, "workerinput", {}).get(key)
    if directory is None:
        return None
    servers = _sandbox(config, key, directory)
    assert servers.attach(), f"a server of {directory} has ended"
    return servers


@pytest.fixture(scope="session")
def zookeeper(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper for the whole run; each test uses its own names."""
    shared = _attached(pytestconfig, "zookeeper")
    if shared is not None:
        yield shared.zookeeper
        return
    directory, release = tmp_path_factory.mktemp("zookeeper"), shared_release(pytestconfig)
    with ZooKeeperServer(directory, release=release, tick_time_s=TICK_S) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_of(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    zookeeper_release: str,
) -> Iterator[Callable[[str], ZooKeeperServer]]:
    """Returns the session's server of a given release; each test uses its own names."""
    with ExitStack() as stack:

        @functools.cache
        def server(release: str) -> ZooKeeperServer:
            if release == zookeeper_release:
                return cast("ZooKeeperServer", request.getfixturevalue("zookeeper"))
            directory = tmp_path_factory.mktemp(f"zookeeper-{release}")
            return stack.enter_context(
                ZooKeeperServer(directory, release=release, tick_time_s=TICK_S)
            )

        yield server


@pytest.fixture(scope="session")
def sandbox(pytestconfig: pytest.Config) -> Iterator[Sandbox]:
    """A ZooKeeper and a 3.9 broker for the whole run; each test uses its own topics."""
    with ExitStack() as stack:
        shared = _attached(pytestconfig, "sandbox")
        servers = shared or stack.enter_context(_sandbox(pytestconfig, "sandbox"))
        yield servers
        with servers.broker.log.open(errors="replace") as log:
            assert not any(TOPICS_IGNORED in line for line in log), (
                "a test has created a topic's znode that the broker cannot parse"
            )
