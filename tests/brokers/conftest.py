"""Brokers of each release, real and fake, and a group on them; `--brokers` selects the releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.members.crew import Crew
from support.members.group import Group
from support.shared_servers import LONG_SESSION

from zkconsumer.sandbox import Sandbox
from zkconsumer.testing import FakeCluster
from zkconsumer.testing.broker_versions import RELEASES

# One release for each message format: 0.8.2.2 (v0, without ApiVersions), 0.10.2.2 (v1), and 3.9.1
# (v2).
SOME = ("0.8.2.2", "0.10.2.2", "3.9.1")

# The parameters of fake brokers begin with this word.
FAKE = "fake-"

# The log cleaner runs as often as possible, and with little memory. Compacted topics have gaps in
# their offsets.
OVERRIDES = {
    **LONG_SESSION,
    "log.cleaner.enable": "true",
    "log.cleaner.dedupe.buffer.size": 2 * 1024 * 1024,
    "log.cleaner.backoff.ms": 100,
}


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "also(release): run the test on this release, too")
    config.addinivalue_line("markers", "real(reason): run the test on real brokers only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test on a cluster of each selected release that the test supports."""
    if "cluster" not in metafunc.fixturenames:
        return
    word = metafunc.config.getoption("--brokers")
    also = metafunc.definition.get_closest_marker("also")
    some = (*SOME, *also.args) if also else SOME
    releases = {"some": some, "all": RELEASES}.get(word, (word,))
    since = metafunc.definition.get_closest_marker("since")
    first = _number(since.args[0]) if since else ()
    until = metafunc.definition.get_closest_marker("until")
    last = _number(until.args[0] if until else RELEASES[-1])
    known = [release for release in releases if first <= _number(release) <= last]
    cases = [pytest.param(release, marks=pytest.mark.server) for release in known]
    # The evidence of a crew contains the transaction log of a real ZooKeeper.
    is_real = "crew" in metafunc.fixturenames or metafunc.definition.get_closest_marker("real")
    cases += [] if is_real else [f"{FAKE}{release}" for release in known]
    metafunc.parametrize("cluster", cases, indirect=True, scope="package")


@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[Sandbox | FakeCluster]:
    """A ZooKeeper and a broker of one release; each test uses its own topics."""
    servers: Sandbox | FakeCluster
    if request.param.startswith(FAKE):
        servers = FakeCluster(release=request.param.removeprefix(FAKE), auto_create_topics=False)
    else:
        servers = Sandbox(release=request.param, tick_time_s=0.1, overrides=OVERRIDES)
    with servers:
        yield servers


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends every context that was entered, in reverse order."""
    with ExitStack() as ends:
        yield ends


@pytest.fixture
def topic(unique: Callable[[str], str], cluster: Sandbox) -> str:
    """An empty topic of four partitions."""
    name = unique("topic")
    cluster.create_topic(name, partitions=4)
    return name


@pytest.fixture
def crew(
    cluster: Sandbox, unique: Callable[[str], str], topic: str, tmp_path: Path, stack: ExitStack
) -> Crew:
    """A group without members; a producer writes to its topic all the time."""
    one = Crew(cluster.zookeeper_connect, cluster.bootstrap, unique("group"), tmp_path, stack)
    one.feed(topic, 4)
    return one


@pytest.fixture
def group(cluster: Sandbox, unique: Callable[[str], str], topic: str, stack: ExitStack) -> Group:
    """A group without members; its members will run in this process."""
    return Group(cluster, unique("group"), topic, stack)
