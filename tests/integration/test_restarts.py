"""Servers stop and return under a running group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.members.crew import SESSION_S, Crew, MemberProcess, wait_for

from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.sandbox import BrokerServer, Sandbox, ZooKeeperEnsemble
from zkconsumer.sandbox.topics import create_topic

TICK_S = 0.1
# The lease lasts four seconds, so a stream that pauses earlier has another reason.
LONG_SESSION_S = 6.0
# A member that loses its connection rebalances, even if no partition moves.
STEADY_SESSION_S = 30.0


@pytest.fixture(scope="module")
def sandbox(zookeeper_release: str) -> Iterator[Sandbox]:
    """Separate servers for this module, because it stops them."""
    # A broker that was killed can start again only when its session has expired.
    overrides = {"zookeeper.session.timeout.ms": 2000}
    with Sandbox(
        zookeeper_release=zookeeper_release, tick_time_s=TICK_S, overrides=overrides
    ) as servers:
        yield servers


@pytest.fixture
def steady_pair(crew: Crew, topic: str) -> tuple[MemberProcess, MemberProcess]:
    """Two settled members that keep their connections to ZooKeeper while a broker's start takes all
    processor time; a producer writes all the time.
    """
    first, second = (crew.join(zookeeper_session_timeout_s=STEADY_SESSION_S) for _ in range(2))
    crew.settle(first, second)
    crew.flowing(first, second)
    return first, second


@pytest.fixture
def pair(crew: Crew, topic: str) -> tuple[MemberProcess, MemberProcess]:
    """Two settled members; a producer writes all the time."""
    first, second = crew.join(), crew.join()
    crew.settle(first, second)
    crew.flowing(first, second)
    return first, second


def _quiet(crew: Crew) -> None:
    """Wait until no message is delivered any more, although undelivered messages exist."""
    counts = [-1]

    def same() -> bool:
        counts.append(len(crew.evidence().deliveries))
        return len(counts) > 50 and counts[-1] == counts[-50]

    wait_for(same, "deliveries to pause")


@pytest.mark.usefixtures("topic")
def test_zookeeper_restarts(crew: Crew, sandbox: Sandbox) -> None:
    """While ZooKeeper is down all members pause at once; afterwards they continue."""
    pair = [crew.join(zookeeper_session_timeout_s=LONG_SESSION_S) for _ in range(2)]
    crew.settle(*pair)
    crew.flowing(*pair)
    owners = crew.observer.snapshot().owners
    sessions = [one.last("session") for one in pair]
    sandbox.zookeeper.stop()
    stopped_at = boottime()
    _quiet(crew)
    assert max(d.t for d in crew.evidence().deliveries) < stopped_at + LONG_SESSION_S / 6
    sandbox.zookeeper.start()
    crew.flowing(*pair)
    crew.settle(*pair)
    assert [one.last("session") for one in pair] == sessions
    assert crew.observer.snapshot().owners == owners
    assert crew.finish().duplicates() == 0


def test_zookeeper_is_killed_for_longer_than_a_session(
    crew: Crew, sandbox: Sandbox, pair: tuple[MemberProcess, MemberProcess]
) -> None:
    """After an outage longer than the lease, all members continue at their positions."""
    sandbox.zookeeper.kill()
    _quiet(crew)
    sandbox.zookeeper.start()
    crew.flowing(*pair)
    crew.settle(*pair)
    crew.finish()


def test_the_broker_restarts(
    crew: Crew, sandbox: Sandbox, steady_pair: tuple[MemberProcess, MemberProcess]
) -> None:
    """If the broker restarts, no partition moves, and all members continue."""
    owners = crew.observer.snapshot().owners
    counts = [one.rebalances for one in steady_pair]
    sandbox.broker.restart()
    crew.flowing(*steady_pair)
    crew.settle(*steady_pair)
    assert crew.observer.snapshot().owners == owners
    assert [one.rebalances for one in steady_pair] == counts
    assert crew.finish().duplicates() == 0


def test_the_broker_is_killed(
    crew: Crew, sandbox: Sandbox, steady_pair: tuple[MemberProcess, MemberProcess]
) -> None:
    """After the broker's SIGKILL and restart nothing moves, is lost, or is redelivered."""
    owners = crew.observer.snapshot().owners
    counts = [one.rebalances for one in steady_pair]
    sandbox.broker.kill()
    sandbox.broker.start()
    crew.flowing(*steady_pair)
    crew.settle(*steady_pair)
    assert crew.observer.snapshot().owners == owners
    assert [one.rebalances for one in steady_pair] == counts
    assert crew.finish().duplicates() == 0


def test_a_member_joins_while_no_broker_is_there(
    crew: Crew, sandbox: Sandbox, pair: tuple[MemberProcess, MemberProcess]
) -> None:
    """Without brokers no partition is released; a new member gets its share later."""
    owners = crew.observer.snapshot().owners
    sandbox.broker.stop()
    third = crew.join()
    wait_for(lambda: third.last("status")["phase"] == "waiting", "the joiner to wait")
    assert "no brokers" in third.last("status")["waiting_for"]
    assert crew.observer.snapshot().owners == owners
    assert set().union(*(one.owned for one in pair)) == owners.keys()
    sandbox.broker.start()
    crew.settle(*pair, third)
    crew.flowing(*pair, third)
    crew.finish()


@pytest.fixture(scope="module")
def ensemble(
    tmp_path_factory: pytest.TempPathFactory, zookeeper_release: str
) -> Iterator[ZooKeeperEnsemble]:
    """Three servers for this module."""
    directory = tmp_path_factory.mktemp("ensemble")
    with ZooKeeperEnsemble(directory, release=zookeeper_release, tick_time_s=TICK_S) as servers:
        yield servers


@pytest.fixture(scope="module")
def ensemble_bootstrap(
    ensemble: ZooKeeperEnsemble, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a broker that is registered in the ensemble."""
    directory = tmp_path_factory.mktemp("broker")
    with BrokerServer(directory, zookeeper_connect=ensemble.connect) as broker:
        yield broker.bootstrap


@pytest.fixture
def ensemble_crew(
    ensemble: ZooKeeperEnsemble,
    ensemble_bootstrap: str,
    unique: Callable[[str], str],
    tmp_path: Path,
    stack: ExitStack,
) -> Crew:
    """Three settled members on the ensemble, with a flow of messages."""
    topic = unique("topic")
    create_topic(ensemble.connect, topic, partitions=8)
    crew = Crew(ensemble.connect, ensemble_bootstrap, unique("group"), tmp_path, stack)
    crew.feed(topic, 8)
    for _ in range(3):
        crew.join(zookeeper_session_timeout_s=2 * SESSION_S)
    crew.settle(*crew.members)
    crew.flowing(*crew.members)
    return crew


def test_the_leader_of_an_ensemble_is_killed(
    ensemble_crew: Crew, ensemble: ZooKeeperEnsemble
) -> None:
    """If the leader of three servers dies, no session ends; nothing moves or repeats."""
    crew, members = ensemble_crew, ensemble_crew.members
    owners = crew.observer.snapshot().owners
    sessions = [one.last("session") for one in members]
    killed = ensemble.leader()
    killed.kill()
    try:
        assert ensemble.leader() is not killed
        crew.flowing(*members)
        crew.settle(*members)
        assert [one.last("session") for one in members] == sessions
        assert crew.observer.snapshot().owners == owners
        assert crew.finish().duplicates() == 0
    finally:
        killed.start()


def test_the_leader_of_an_ensemble_is_frozen(
    ensemble_crew: Crew, ensemble: ZooKeeperEnsemble
) -> None:
    """A leader that was frozen and deposed misleads no member when it wakes up."""
    crew, members = ensemble_crew, ensemble_crew.members
    frozen = ensemble.leader()
    others = [server for server in ensemble.servers if server is not frozen]
    frozen.pause()
    try:
        wait_for(lambda: any(one.mode == "leader" for one in others), "another leader")
        crew.flowing(*members)
        crew.settle(*members)
    finally:
        frozen.resume()
    wait_for(lambda: frozen.mode == "follower", "the server to follow")
    crew.flowing(*members)
    crew.settle(*members)
    crew.finish()
