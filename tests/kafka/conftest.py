"""The tests of brokers' clients run on a real broker, and on a fake one that must not differ."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from zkconsumer.sandbox import Sandbox
from zkconsumer.testing import FakeCluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real(reason): run the test on real brokers only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that uses the sandbox itself on both kinds of servers."""
    if "sandbox" in metafunc.fixturenames and not metafunc.definition.get_closest_marker("real"):
        metafunc.parametrize("sandbox", ["real", "fake"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def fake_cluster() -> Iterator[FakeCluster]:
    """A fake cluster; each test uses its own topics."""
    with FakeCluster(auto_create_topics=False) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def sandbox(request: pytest.FixtureRequest) -> Sandbox | FakeCluster:
    """The servers of the whole run, or the fake ones; without a parameter the real ones."""
    is_fake = getattr(request, "param", "real") == "fake"
    servers: Sandbox | FakeCluster
    servers = request.getfixturevalue("fake_cluster" if is_fake else "sandbox")
    return servers
