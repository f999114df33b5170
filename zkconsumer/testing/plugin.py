"""A pytest plugin with the fixture `legacy_kafka`; a `conftest.py` must name it.

    # conftest.py
    pytest_plugins = ["zkconsumer.testing.plugin"]

The option `--legacy-kafka` chooses the servers of a run: `fake` (the default), `sandbox` or
`containers`. The mark `legacy_kafka(backend=..., release=..., brokers=...)` chooses those of one
test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeAlias

import pytest

from zkconsumer.errors import ConfigError
from zkconsumer.testing.cluster import DEFAULT_BROKER
from zkconsumer.testing.legacy_kafka import (
    Backend,
    LegacyKafka,
    Servers,
    open_legacy_kafka,
    run_servers,
)

_BACKENDS = [one.value for one in Backend]
_MARK = "legacy_kafka"

RunServers: TypeAlias = Callable[[Backend, str, int], Servers]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fixture `legacy_kafka`."""
    group = parser.getgroup("legacy Kafka")
    group.addoption(
        "--legacy-kafka",
        choices=_BACKENDS,
        default=Backend.FAKE.value,
        help="servers of the fixture legacy_kafka: in this process, as processes, or in containers"
        " (default: fake)",
    )
    group.addoption(
        "--legacy-kafka-release",
        default=DEFAULT_BROKER,
        metavar="RELEASE",
        help=f"release of the brokers of the fixture legacy_kafka (default: {DEFAULT_BROKER})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark of the fixture `legacy_kafka`."""
    config.addinivalue_line(
        "markers",
        "legacy_kafka(backend, release, brokers): servers of the fixture legacy_kafka in this test",
    )


@pytest.fixture(scope="session")
def _legacy_kafka_servers() -> Iterator[RunServers]:
    """Real servers, started when a test first needs them, and shared by all later tests."""
    with ExitStack() as stack:
        running: dict[tuple[Backend, str, int], Servers] = {}

        def run(backend: Backend, release: str, brokers: int) -> Servers:
            key = backend, release, brokers
            if key not in running:
                servers = run_servers(backend, release=release, brokers=brokers)
                running[key] = stack.enter_context(servers)
            return running[key]

        yield run


@pytest.fixture
def legacy_kafka(
    request: pytest.FixtureRequest, _legacy_kafka_servers: RunServers
) -> Iterator[LegacyKafka]:
    """A ZooKeeper and Kafka brokers without topics and groups of other tests.

    The fake servers are new for each test. Real servers are shared: after each test, the topics and
    the groups that it has created are deleted.
    """
    mark = request.node.get_closest_marker(_MARK)
    wanted = dict(mark.kwargs) if mark is not None else {}
    name = wanted.pop("backend", request.config.getoption("--legacy-kafka"))
    release = wanted.pop("release", request.config.getoption("--legacy-kafka-release"))
    brokers = wanted.pop("brokers", 1)
    if wanted or (mark is not None and mark.args) or name not in _BACKENDS:
        raise ConfigError(
            "the mark legacy_kafka takes backend, release and brokers as keywords",
            where=request.node.nodeid,
            remedy=f"write for example legacy_kafka(backend={_BACKENDS[0]!r}, release='0.9.0.1')",
        )
    backend = Backend(name)
    if backend is Backend.FAKE:
        with open_legacy_kafka(backend, release=release, brokers=brokers) as kafka:
            yield kafka
        return
    with _legacy_kafka_servers(backend, release, brokers).lend() as kafka:
        yield kafka
