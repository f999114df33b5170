"""A server for the contract, and sessions on it, which end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest
from support.sim.contract import SimServer
from support.zk.contract import Server
from support.zk.servers import release_number, zookeeper_releases

from zkconsumer.sandbox.zookeeper import DEFAULT_ZOOKEEPER, ZOOKEEPER_RELEASES
from zkconsumer.testing import FakeZooKeeper

# The servers on which the tests run by default; the simulated one and the fake one are modelled on
# the default release.
DEFAULT = ("simulated", "fake", "sandbox", "container")
# The other releases that the fake server imitates, except 3.4.6: the fake has no znodes that cannot
# be deleted after a failed transaction.
FAKES = {
    f"fake-{release}": release
    for release in ZOOKEEPER_RELEASES
    if release not in ("3.4.6", DEFAULT_ZOOKEEPER)
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test on the default release and those of `--zookeeper` that its marks permit."""
    fixture = next((one for one in ("server", "address") if one in metafunc.fixturenames), None)
    if fixture is None:
        return
    others = (one for one in zookeeper_releases(metafunc.config) if one != DEFAULT_ZOOKEEPER)
    kinds = [kind for kind in (*DEFAULT, *FAKES, *others) if _holds(metafunc.definition, kind)]
    if fixture == "address":
        kinds.remove("simulated")
    metafunc.parametrize(fixture, kinds, indirect=True)


def _holds(test: pytest.Item, kind: str) -> bool:
    """Return whether a test applies to this server."""
    release = release_number(DEFAULT_ZOOKEEPER if kind in DEFAULT else FAKES.get(kind, kind))
    since, until = test.get_closest_marker("since"), test.get_closest_marker("until")
    return (since is None or release >= release_number(since.args[0])) and (
        until is None or release < release_number(until.args[0])
    )


@pytest.fixture(scope="package")
def fake_server() -> Iterator[Callable[[str], str]]:
    """Return the connect string of the fake server of a release."""
    with ExitStack() as stack:

        @cache
        def start(release: str) -> str:
            return stack.enter_context(FakeZooKeeper(release=release, tick_time_s=0.5)).connect

        yield start


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server | SimServer]:
    """The simulated server, the fake one, or a real one, with an empty directory for this test."""
    if request.param == "simulated":
        yield SimServer()
        return
    with ExitStack() as stack:
        yield Server(_address(request), stack)


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    """The connect string of the fake server or of a real one."""
    return _address(request)


def _address(request: pytest.FixtureRequest) -> str:
    """Return the connect string of the server that the test's parameter names."""
    kind: str = request.param
    if kind in ("fake", *FAKES):
        start: Callable[[str], str] = request.getfixturevalue("fake_server")
        return start(FAKES.get(kind, DEFAULT_ZOOKEEPER))
    if kind == "container":
        return str(request.getfixturevalue("container_zookeeper"))
    release = DEFAULT_ZOOKEEPER if kind == "sandbox" else kind
    return str(request.getfixturevalue("zookeeper_of")(release).connect)
