"""Scenarios are played two at a time: most of their time they wait for a session to expire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from jvmmember import RELEASES
from mixed.groups import NEWEST_BROKER, Cast
from mixed.scenario import Outcome, Scenario

from zkconsumer.core.assignors import Strategy
from zkconsumer.core.records import Pattern
from zkconsumer.sandbox import Sandbox

AT_ONCE = 2

RANGE = tuple(Cast((release,)) for release in RELEASES)
ROUND_ROBIN = tuple(Cast((release,), Strategy.ROUND_ROBIN) for release in RELEASES)
WILDCARD = tuple(replace(cast, pattern=Pattern.WHITE_LIST) for cast in RANGE + ROUND_ROBIN)
# Two releases at once; round-robin has one order up to 0.11, and another one from 1.0 on.
TWO = (
    Cast(("0.8.2.2", "1.1.1")),
    Cast(("0.9.0.1", "0.11.0.3")),
    Cast(("0.10.2.2", "1.1.1"), pattern=Pattern.WHITE_LIST),
    Cast(("0.8.2.2", "0.9.0.1"), Strategy.ROUND_ROBIN),
    Cast(("0.10.2.2", "0.11.0.3"), Strategy.ROUND_ROBIN),
)
OLD_BROKER = tuple(
    replace(cast, broker="0.8.2.2")
    for cast in RANGE + ROUND_ROBIN
    if cast.releases == ("0.8.2.2",)
)
ALL = RANGE + ROUND_ROBIN + WILDCARD + TWO + OLD_BROKER
NEWEST = (replace(RANGE[-1], pattern=Pattern.WHITE_LIST),)
CASTS = {"some": RANGE + NEWEST, "all": ALL}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The scenarios that `--mixed` names."""
    if "cast" in metafunc.fixturenames:
        casts = CASTS[metafunc.config.getoption("--mixed")]
        metafunc.parametrize("cast", casts, ids=str, scope="module")


@pytest.fixture(scope="session")
def old_sandbox() -> Iterator[Sandbox]:
    """A ZooKeeper and a 0.8.2.2 broker."""
    with Sandbox(release="0.8.2.2", tick_time_s=0.1) as servers:
        yield servers


@pytest.fixture(scope="module")
def plays(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Cast], Outcome]]:
    """Plays the scenarios of the tests that were chosen, in their order; each is waited for."""
    casts = dict.fromkeys(
        item.callspec.params["cast"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "cast" in getattr(item, "callspec", item).params
    )

    def play(cast: Cast, sandbox: Sandbox, directory: Path) -> Outcome:
        with ExitStack() as stack:
            return Scenario(cast, sandbox, str(cast), directory, stack).play()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        played: dict[Cast, Future[Outcome]] = {}
        for cast in casts:
            fixture = "sandbox" if cast.broker == NEWEST_BROKER else "old_sandbox"
            servers, directory = request.getfixturevalue(fixture), tmp_path_factory.mktemp("mixed")
            played[cast] = pool.submit(play, cast, servers, directory)
        yield lambda cast: played[cast].result()
        pool.shutdown(cancel_futures=True)
