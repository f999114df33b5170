"""ZooKeeper changes while the group runs: deleted data, withdrawn rights, a full disk, clock
jumps."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, Id, Permissions
from support.members.crew import Crew, LocalMember
from support.wait import wait_for

from zkconsumer.consumer import group_member
from zkconsumer.member import rebalance
from zkconsumer.protocol import paths
from zkconsumer.sandbox import BrokerServer, ZooKeeperServer
from zkconsumer.sandbox.topics import ServerTopics

HOUR_S = 3600.0


@pytest.fixture
def pair(crew: Crew, topic: str) -> tuple[LocalMember, LocalMember]:
    """Two settled members in this process; a producer writes all the time."""
    assert crew.counts == {topic: 8}
    pair = crew.join_here(), crew.join_here()
    crew.settle(*pair)
    crew.flowing(*pair)
    return pair


def test_all_data_of_the_group_is_wiped(
    crew: Crew, admin: KazooClient, pair: tuple[LocalMember, LocalMember]
) -> None:
    """After the group's data was deleted, both members register and claim again."""
    before = crew.observer.snapshot().owners
    wait_for(lambda: _wipe(admin, f"{paths.CONSUMERS}/{crew.group}"), "the group to be deleted")
    crew.settle(*pair)
    after = crew.observer.snapshot().owners
    assert len(before) == 8
    assert all(after[tp].czxid > before[tp].czxid for tp in before)
    crew.flowing(*pair)
    wait_for(
        lambda: len(crew.observer.snapshot().offsets) == 8, "the members to commit offsets again"
    )
    crew.finish()


def _wipe(admin: KazooClient, path: str) -> bool:
    """Delete all data in one transaction, so that no member returns before the end."""
    transaction = admin.transaction()
    for one in [*_below(admin, path), path]:
        transaction.delete(one)
    return not any(isinstance(result, Exception) for result in transaction.commit())


def _below(admin: KazooClient, path: str) -> list[str]:
    """Yield children before their parents."""
    names = [f"{path}/{name}" for name in admin.get_children(path)]
    return [one for name in names for one in (*_below(admin, name), name)]


EVERYTHING = [ACL(Permissions.ALL, Id("world", "anyone"))]


def _allowed(*rights: int) -> list[ACL]:
    return [ACL(sum(rights), Id("world", "anyone"))]


def test_the_right_to_claim_is_taken_and_given_back(
    crew: Crew, admin: KazooClient, topic: str
) -> None:
    """Without CREATE a new member reports the refusal; with CREATE it gets its share."""
    first = crew.join_here()
    crew.settle(first)
    crew.flowing(first)
    owners = paths.owners_of(crew.group, topic)
    admin.set_acls(owners, _allowed(Permissions.READ, Permissions.DELETE, Permissions.ADMIN))
    second = crew.join_here(rebalance_max_retries=1)
    wait_for(lambda: second.metrics().get("denied", 0) > 0, "the refusal to be reported")
    assert second.owned == set()
    crew.flowing(first)
    admin.set_acls(owners, EVERYTHING)
    crew.settle(first, second)
    crew.flowing(first, second)
    assert crew.finish().duplicates() == 0


def test_the_right_to_commit_is_taken_and_given_back(
    crew: Crew, admin: KazooClient, pair: tuple[LocalMember, LocalMember], topic: str
) -> None:
    """Without WRITE on an offset, its owner reports the refusal; with WRITE it commits again."""
    member, tp = pair[0], min(pair[0].owned)
    path = paths.offset(crew.group, tp)
    wait_for(lambda: admin.exists(path), "a first commit")
    admin.set_acls(path, _allowed(Permissions.READ, Permissions.ADMIN))
    wait_for(lambda: member.metrics().get("commit_failed", 0) > 0, "the refusal to be reported")
    crew.flowing(*pair)
    stored = crew.observer.snapshot().offsets[tp]
    crew.flowing(*pair)
    assert crew.observer.snapshot().offsets[tp] == stored
    admin.set_acls(path, EVERYTHING)
    wait_for(
        lambda: crew.observer.snapshot().offsets[tp] > stored,
        "commits to continue after the right was restored",
    )
    assert crew.finish().duplicates() == 0


def test_the_right_to_read_the_group_is_taken_and_given_back(
    crew: Crew, admin: KazooClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without READ on ids no partition moves; with READ the group recovers at the next reading."""
    # From 3.8.4 on, ZooKeeper silently drops a watch if the client may not read its event.
    assert crew.counts == {topic: 8}
    # The group is read again after 3 s, a tenth of the session timeout, instead of 150 s.
    monkeypatch.setattr(group_member, "REFRESH_S", 0.0)
    monkeypatch.setattr(rebalance, "REFRESH_SESSIONS", 0.1)
    pair = [crew.join_here() for _ in range(2)]
    crew.settle(*pair)
    crew.flowing(*pair)
    ids = paths.ids(crew.group)
    admin.set_acls(ids, _allowed(Permissions.CREATE, Permissions.DELETE, Permissions.ADMIN))
    third = crew.join_here()
    wait_for(lambda: third.metrics().get("denied", 0) > 0, "the refusal to be reported")
    crew.flowing(*pair)
    admin.set_acls(ids, EVERYTHING)
    crew.settle(*pair, third)
    crew.flowing(*pair, third)
    assert crew.finish().duplicates() == 0


def _fill(server: ZooKeeperServer) -> None:
    """Let writes to the server's log fail, as on a full disk."""
    log = max((server.directory / "data" / "version-2").glob("log.*"))
    end = len(log.read_bytes().rstrip(b"\0"))
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (end, resource.RLIM_INFINITY))


@pytest.fixture
def lonely(
    tmp_path: Path, stack: ExitStack, unique: Callable[[str], str]
) -> Iterator[tuple[ZooKeeperServer, Crew]]:
    """A group on its own ZooKeeper."""
    server = ZooKeeperServer(tmp_path / "zookeeper", tick_time_s=0.1)
    stack.callback(server.stop)
    server.start()
    broker = stack.enter_context(
        BrokerServer(tmp_path / "broker", zookeeper_connect=server.connect)
    )
    ServerTopics(server.connect).create_topic("orders", partitions=8)
    crew = Crew(server.connect, broker.bootstrap, unique("group"), tmp_path, stack)
    crew.feed("orders", 8)
    yield server, crew


def test_no_space_is_left(lonely: tuple[ZooKeeperServer, Crew]) -> None:
    """If a write fails the server ends; members pause, and continue once there is space again."""
    server, crew = lonely
    members = [crew.join() for _ in range(2)]
    crew.settle(*members)
    crew.flowing(*members)
    _fill(server)
    wait_for(lambda: not server.alive, "the server to end after the failed write")
    server.start()
    crew.settle(*members)
    crew.flowing(*members)
    assert crew.finish().duplicates() == 0


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S], ids=["forward", "back"])
def test_the_wall_clock_is_set(crew: Crew, topic: str, by_s: float) -> None:
    """If a member's clock jumps by an hour, no partition moves and no message is redelivered."""
    assert crew.counts == {topic: 8}
    first, second = crew.join(), crew.join()
    crew.settle(first, second)
    crew.flowing(first, second)
    owners, rebalances = crew.observer.snapshot().owners, first.rebalances
    second.tell(f"jump {by_s:g}")
    second.wait("jumped")
    crew.flowing(first, second)
    assert crew.observer.snapshot().owners == owners
    assert first.rebalances == rebalances
    third = crew.join()
    crew.settle(first, second, third)
    crew.flowing(first, second, third)
    assert crew.finish().duplicates() == 0
