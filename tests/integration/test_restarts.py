"""Servers stop and return under a running group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.members.crew import BRIEF, MEASURED, STEADY_S, Crew, MemberProcess, wait_for

from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.sandbox import BrokerServer, Sandbox, ZooKeeperEnsemble
from zkconsumer.sandbox.topics import ServerTopics

TICK_S = 0.1


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


def test_zookeeper_restarts(
    crew: Crew, sandbox: Sandbox, pair: tuple[MemberProcess, MemberProcess]
) -> None:
    """While ZooKeeper is down all members pause at once; afterwards they continue."""
    owners = crew.observer.snapshot().owners
    sessions = [one.last("session") for one in pair]
    sandbox.zookeeper.stop()
    stopped_at = boottime()
    _quiet(crew)
    # The lease lasts 20 s, so a stream that pauses earlier has another reason.
    assert max(d.t for d in crew.evidence().deliveries) < stopped_at + STEADY_S / 3
    sandbox.zookeeper.start()
    crew.flowing(*pair)
    crew.settle(*pair)
    assert [one.last("session") for one in pair] == sessions
    assert crew.observer.snapshot().owners == owners
    assert crew.finish().duplicates() == 0


@pytest.mark.usefixtures("topic")
def test_zookeeper_is_killed_for_longer_than_a_session(crew: Crew, sandbox: Sandbox) -> None:
    """After an outage longer than the lease, all members continue at their positions."""
    pair = crew.join(**BRIEF), crew.join(**BRIEF)
    crew.settle(*pair)
    crew.flowing(*pair)
    sandbox.zookeeper.kill()
    _quiet(crew)
    sandbox.zookeeper.start()
    crew.flowing(*pair)
    crew.settle(*pair)
    crew.finish()


def test_the_broker_restarts(
    crew: Crew, sandbox: Sandbox, pair: tuple[MemberProcess, MemberProcess]
) -> None:
    """If the broker restarts, no partition moves, and all members continue."""
    owners = crew.observer.snapshot().owners
    counts = [one.rebalances for one in pair]
    sandbox.broker.restart()
    crew.flowing(*pair)
    crew.settle(*pair)
    assert crew.observer.snapshot().owners == owners
    assert [one.rebalances for one in pair] == counts
    assert crew.finish().duplicates() == 0


def test_the_broker_is_killed(
    crew: Crew, sandbox: Sandbox, pair: tuple[MemberProcess, MemberProcess]
) -> None:
    """After the broker's SIGKILL and restart nothing moves, is lost, or is redelivered."""
    owners = crew.observer.snapshot().owners
    counts = [one.rebalances for one in pair]
    sandbox.broker.kill()
    sandbox.broker.start()
    crew.flowing(*pair)
    crew.settle(*pair)
    assert crew.observer.snapshot().owners == owners
    assert [one.rebalances for one in pair] == counts
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
    """A group on the ensemble, with a flow of messages."""
    topic = unique("topic")
    ServerTopics(ensemble.connect).create_topic(topic, partitions=8)
    crew = Crew(ensemble.connect, ensemble_bootstrap, unique("group"), tmp_path, stack)
    crew.feed(topic, 8)
    return crew


def _three(crew: Crew, **settings: Any) -> list[MemberProcess]:
    """Let three members join, and wait until each receives messages."""
    members = [crew.join(**settings) for _ in range(3)]
    crew.settle(*members)
    crew.flowing(*members)
    return members


def test_the_leader_of_an_ensemble_is_killed(
    ensemble_crew: Crew, ensemble: ZooKeeperEnsemble
) -> None:
    """If the leader of three servers dies, no session ends; nothing moves or repeats."""
    crew, members = ensemble_crew, _three(ensemble_crew)
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
    # A member of the frozen server connects to another one after two thirds of its session timeout.
    crew, members = ensemble_crew, _three(ensemble_crew, **MEASURED)
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
