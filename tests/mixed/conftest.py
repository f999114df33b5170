"""Plays two scenarios at a time, because a scenario mostly waits for sessions to expire."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from mixed.scenario import OURS, SECOND, Outcome, Scenario
from support.jvm.member import RELEASES
from support.members.mixed_groups import NEWEST_BROKER, GroupSetup
from support.shared_servers import LONG_SESSION

from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.registrations import Pattern
from zkconsumer.sandbox import ZOOKEEPER_RELEASES, Sandbox
from zkconsumer.sandbox.zookeeper import DEFAULT_ZOOKEEPER

AT_ONCE = 2

RANGE = tuple(GroupSetup((release,)) for release in RELEASES)
ROUND_ROBIN = tuple(GroupSetup((release,), Strategy.ROUND_ROBIN) for release in RELEASES)
WILDCARD = tuple(replace(setup, pattern=Pattern.WHITE_LIST) for setup in RANGE + ROUND_ROBIN)
# In these groups, most members subscribe by a pattern and some by name.
PATTERN_AND_NAME = tuple(
    replace(setup, pattern=Pattern.WHITE_LIST, by_name=frozenset({OURS, SECOND})) for setup in RANGE
)
# Two releases in one group: round-robin sorts in one order up to 0.11, and in another from 1.0.
TWO = (
    GroupSetup(("0.8.2.2", "1.1.1")),
    GroupSetup(("0.9.0.1", "0.11.0.3")),
    GroupSetup(("0.10.2.2", "1.1.1"), pattern=Pattern.WHITE_LIST),
    GroupSetup(("0.8.2.2", "0.9.0.1"), Strategy.ROUND_ROBIN),
    GroupSetup(("0.10.2.2", "0.11.0.3"), Strategy.ROUND_ROBIN),
)
# The oldest and the newest JVM release, on each release of ZooKeeper.
ZOOKEEPERS = tuple(
    replace(setup, zookeeper=release)
    for release in ZOOKEEPER_RELEASES
    for setup in (RANGE[0], RANGE[-1])
    if release != DEFAULT_ZOOKEEPER
)
OLD_BROKER = tuple(
    replace(setup, broker="0.8.2.2")
    for setup in RANGE + ROUND_ROBIN
    if setup.releases == ("0.8.2.2",)
)
ALL = RANGE + ROUND_ROBIN + WILDCARD + PATTERN_AND_NAME + TWO + OLD_BROKER
# The newest release with each strategy, by name and by pattern; range with both in a group.
NEWEST = (
    ROUND_ROBIN[-1],
    replace(ROUND_ROBIN[-1], pattern=Pattern.WHITE_LIST),
    PATTERN_AND_NAME[-1],
)
# The oldest JVM on the oldest ZooKeeper with each strategy, and the newest JVM on the newest.
OLDEST = (replace(ROUND_ROBIN[0], zookeeper=ZOOKEEPER_RELEASES[0]), ZOOKEEPERS[0])
SOME = (*OLDEST, *RANGE[1:-1], ZOOKEEPERS[-1], *NEWEST)


def setups_of(mixed: str, zookeeper: str) -> tuple[GroupSetup, ...]:
    """Return the scenarios that the options `--mixed` and `--zookeeper` select."""
    if zookeeper == "all":
        return ZOOKEEPERS if mixed == "some" else (OLDEST[0], *ALL, *ZOOKEEPERS)
    return SOME if mixed == "some" else ALL


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with the scenarios that the options select."""
    if "setup" in metafunc.fixturenames:
        option = metafunc.config.getoption
        setups = setups_of(option("--mixed"), option("--zookeeper"))
        metafunc.parametrize("setup", setups, ids=str, scope="module")


PLAYED = pytest.StashKey[dict[str, Outcome]]()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """With `--mixed all`, print the figures of scenarios in the format of docs/compatibility.md."""
    played = config.stash.get(PLAYED, {})
    if config.getoption("--mixed") == "all" and played:
        terminalreporter.section("mixed groups, beside JVM members alone")
        heads = "scenario", "messages", "repeated", "without a session", "moves back"
        terminalreporter.line(f"| {' | '.join(heads)} |")
        for name, outcome in sorted(played.items()):
            groups = [one for one in (outcome.mixed, outcome.reference) if one is not None]
            cells = [
                name,
                f"{outcome.messages:,}",
                " / ".join(str(one.repeated.total()) for one in groups),
                " / ".join(str(one.zombie.total()) for one in groups),
                " / ".join(str(len(one.moves_back)) for one in groups),
            ]
            terminalreporter.line(f"| {' | '.join(cells)} |")


@pytest.fixture(scope="session")
def sandbox_of(
    request: pytest.FixtureRequest, zookeeper_release: str
) -> Iterator[Callable[[str, str], Sandbox]]:
    """Return servers of these releases; without a ZooKeeper release, the shared ZooKeeper."""
    with ExitStack() as stack:

        @functools.cache
        def servers(broker: str, zookeeper: str) -> Sandbox:
            if (broker, zookeeper) == (NEWEST_BROKER, zookeeper_release):
                return typing.cast("Sandbox", request.getfixturevalue("sandbox"))
            return stack.enter_context(
                Sandbox(
                    release=broker,
                    zookeeper_release=zookeeper,
                    tick_time_s=0.1,
                    overrides=LONG_SESSION,
                )
            )

        yield lambda broker, zookeeper: servers(broker, zookeeper or zookeeper_release)


@pytest.fixture(scope="module")
def plays(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    sandbox_of: Callable[[str, str], Sandbox],
) -> Iterator[Callable[[GroupSetup], Outcome]]:
    """Plays the scenarios of the selected tests in order; a test waits for its own scenario.

    The scenarios have a reference group only if a selected test uses the fixture `reference`.
    """
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    params = [spec.params.get("setup") for spec in specs if spec is not None]
    setups = dict.fromkeys(setup for setup in params if isinstance(setup, GroupSetup))
    is_compared = any(
        "reference" in getattr(item, "fixturenames", ()) for item in request.session.items
    )

    def play(setup: GroupSetup, sandbox: Sandbox, directory: Path) -> Outcome:
        with ExitStack() as stack:
            scenario = Scenario(
                setup, sandbox, str(setup), directory, stack, is_compared=is_compared
            )
            return scenario.play()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        played: dict[GroupSetup, Future[Outcome]] = {}
        for setup in setups:
            servers = sandbox_of(setup.broker, setup.zookeeper)
            directory = tmp_path_factory.mktemp("mixed")
            played[setup] = pool.submit(play, setup, servers, directory)

        def outcome(setup: GroupSetup) -> Outcome:
            found = played[setup].result()
            request.config.stash.setdefault(PLAYED, {})[str(setup)] = found
            return found

        yield outcome
        pool.shutdown(cancel_futures=True)
