"""The connection to ZooKeeper breaks, carries no data, or loses a reply."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient
from support.internals import client_of
from support.members.crew import BRIEF, LIMIT_S, MEASURED, Crew, wait_for
from support.zk.proxies import Trap, Wire

from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.protocol import paths

pytestmark = pytest.mark.usefixtures("topic")

TROUBLE = ("ownership_lost", "foreign_offset_overwritten", "foreign_offset_left", "commit_failed")


def _cut_and_reconnect(trap: Trap) -> None:
    before = trap.connections
    trap.cut()
    wait_for(lambda: trap.connections > before, "a new connection")


def test_a_cut_connection(crew: Crew, trap: Trap) -> None:
    """If its connection breaks, a member keeps its session: no rebalance, no duplicates."""
    first, second = crew.join(), crew.join(zookeeper=trap.address)
    crew.settle(first, second)
    crew.flowing(first, second)
    owners, rebalances = crew.observer.snapshot().owners, first.rebalances
    session = second.last("session")
    for _ in range(3):
        _cut_and_reconnect(trap)
        crew.flowing(first, second)
    crew.settle(first, second)
    assert second.last("session") == session
    assert crew.observer.snapshot().owners == owners
    assert first.rebalances == rebalances
    assert crew.finish().duplicates() == 0


def test_a_connection_without_replies(crew: Crew, trap: Trap) -> None:
    """Without replies, a member stops delivery within two thirds of the session timeout."""
    first, second = crew.join(), crew.join(zookeeper=trap.address, **MEASURED)
    crew.settle(first, second)
    crew.flowing(first, second)
    silent_at = boottime()
    trap.wire = Wire.SILENT
    crew.settle(first)
    crew.assert_paused(second, silent_at)
    trap.wire = Wire.PASS
    trap.cut()
    crew.settle(first, second)
    crew.flowing(first, second)
    crew.finish()


def test_a_server_that_accepts_and_does_not_reply(crew: Crew, trap: Trap) -> None:
    """If a server accepts one attempt to reconnect but does not reply, the session survives."""
    member = crew.join(zookeeper=trap.address)
    crew.settle(member)
    crew.flowing(member)
    session = member.last("session")
    trap.wire = Wire.SILENT
    trap.cut()
    wait_for(lambda: trap.unanswered > 0, "an attempt to reconnect")
    trap.wire = Wire.PASS
    crew.flowing(member)
    assert member.last("session") == session
    assert crew.finish().duplicates() == 0


def test_a_server_without_its_leader(crew: Crew, trap: Trap) -> None:
    """Without replies from the leader no lease is renewed, so delivery stops."""
    first, second = crew.join(), crew.join_here(zookeeper=trap.address, **MEASURED)
    crew.settle(first, second)
    crew.flowing(first, second)
    silent_at, connections = boottime(), trap.connections
    trap.pings_only.set()
    wait_for(lambda: boottime() > silent_at + second.session_s, "a session's time to pass")
    crew.assert_paused(second, silent_at)
    assert trap.connections == connections
    assert client_of(second.connector).connected
    trap.pings_only.clear()
    trap.cut()
    crew.settle(first, second)
    crew.flowing(first, second)
    crew.finish()


def test_a_lost_reply_to_a_claim(crew: Crew, trap: Trap) -> None:
    """If a claim gets no reply, it is recognised later: no owner znode is created twice."""
    trap.set(b"/owners/")
    member = crew.join_here(zookeeper=trap.address)
    assert trap.sprung.wait(LIMIT_S)
    wait_for(lambda: len(crew.observer.snapshot().owners) == 8, "the claim to be done")
    owners = crew.observer.snapshot().owners
    assert member.owned == set()
    trap.cut()
    crew.settle(member)
    assert crew.observer.snapshot().owners == owners
    assert not member.metrics().keys() & set(TROUBLE)
    crew.flowing(member)
    assert {one.token for one in member.delivered} <= {info.czxid for info in owners.values()}
    assert crew.finish().duplicates() == 0


def test_a_lost_reply_to_a_claim_that_is_another_s_by_now(crew: Crew, trap: Trap) -> None:
    """If a partition was claimed without a reply and is then reassigned, it is released."""
    trap.set(b"/owners/")
    first = crew.join_here(zookeeper=trap.address)
    assert trap.sprung.wait(LIMIT_S)
    wait_for(lambda: len(crew.observer.snapshot().owners) == 8, "the claim to be done")
    # This member runs in this process: another process may start too slowly for the first member's
    # ping timeout.
    second = crew.join_here()
    wait_for(lambda: second.phase == "waiting", "the second member to be blocked")
    trap.cut()
    crew.settle(first, second)
    crew.flowing(first, second)
    assert crew.finish().duplicates() == 0


@pytest.mark.parametrize("bait", [b"/owners/", b"/offsets/"], ids=["claim", "commit"])
def test_a_kill_amid_a_transaction(crew: Crew, trap: Trap, bait: bytes) -> None:
    """If a member is killed in a transaction, others own its partitions after its session."""
    first = crew.join()
    crew.settle(first)
    crew.flowing(first)
    trap.set(bait)
    second = crew.start(zookeeper=trap.address, **BRIEF)
    assert trap.sprung.wait(LIMIT_S)
    second.kill()
    crew.settle(first)
    crew.flowing(first)
    crew.finish()


def test_a_kill_amid_a_release(crew: Crew, trap: Trap) -> None:
    """If a member is killed in a release, the new one owns all partitions after its session."""
    first = crew.join(zookeeper=trap.address, **BRIEF)
    crew.settle(first)
    crew.flowing(first)
    trap.set(b"/owners/")
    second = crew.join()
    assert trap.sprung.wait(LIMIT_S)
    first.kill()
    crew.settle(second)
    crew.flowing(second)
    crew.finish()


def test_a_lost_reply_to_a_release(crew: Crew, trap: Trap) -> None:
    """A release without a reply is neither repeated nor reported as another client's act."""
    first = crew.join_here(zookeeper=trap.address)
    crew.settle(first)
    crew.flowing(first)
    trap.set(b"/owners/")
    second = crew.join()
    assert trap.sprung.wait(LIMIT_S)
    wait_for(lambda: len(second.owned) == 4, "the second member to own its half")
    trap.cut()
    crew.settle(first, second)
    crew.flowing(first, second)
    assert not first.metrics().keys() & set(TROUBLE)
    assert crew.finish().duplicates() == 0


@pytest.mark.parametrize("commits_before", [0, 1], ids=["create", "set"])
def test_a_lost_reply_to_a_commit(
    crew: Crew, trap: Trap, admin: KazooClient, commits_before: int
) -> None:
    """If a commit gets no reply, it counts as the member's own write, and is not repeated."""
    member = crew.join_here(zookeeper=trap.address, auto_commit_enable=False)
    crew.settle(member)
    for _ in range(commits_before):
        crew.flowing(member)
        member.connector.commit_offsets()
    wait_for(lambda: {one.partition for one in member.delivered} == member.owned, "all partitions")
    crew.traffic.stop()
    wait_for(lambda: not crew.evidence().undelivered(), "everything delivered")
    end = crew.traffic.ends
    trap.set(b"/offsets/")
    with ThreadPoolExecutor() as pool:
        commit = pool.submit(member.connector.commit_offsets, timeout_s=LIMIT_S)
        assert trap.sprung.wait(LIMIT_S)
        wait_for(lambda: crew.observer.snapshot().offsets == end, "the commit to be done")
        assert not commit.done()
        versions = _offset_versions(crew, admin)
        trap.cut()
        commit.result(LIMIT_S)
    assert _offset_versions(crew, admin) == versions
    assert not member.metrics().keys() & set(TROUBLE)
    crew.finish()


def test_a_commit_after_a_lost_reply(crew: Crew, trap: Trap) -> None:
    """The next commit after one without a reply stores the later messages."""
    member = crew.join_here(zookeeper=trap.address, auto_commit_enable=False)
    crew.settle(member)
    crew.flowing(member)
    trap.set(b"/offsets/")
    with ThreadPoolExecutor() as pool:
        commit = pool.submit(member.connector.commit_offsets, timeout_s=LIMIT_S)
        assert trap.sprung.wait(LIMIT_S)
        crew.flowing(member)
        trap.cut()
        commit.result(LIMIT_S)
    crew.flowing(member)
    crew.traffic.stop()
    wait_for(lambda: not crew.evidence().undelivered(), "everything delivered")
    member.connector.commit_offsets()
    end = crew.traffic.ends
    assert crew.observer.snapshot().offsets == end
    assert not member.metrics().keys() & set(TROUBLE)
    crew.finish()


def _offset_versions(crew: Crew, admin: KazooClient) -> dict[str, int]:
    found = {}
    for tp in crew.traffic.partitions:
        stat = admin.exists(paths.offset(crew.group, tp))
        assert stat is not None
        found[str(tp)] = stat.version
    return found
