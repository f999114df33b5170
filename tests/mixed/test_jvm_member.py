"""Tests for the helper that adds real JVM consumers to groups."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.jvm.member import RELEASES, JvmMember
from support.wait import wait_for
from support.zk.client import data_of, peer_of

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox


def offset(client: KazooClient, group: str, topic: str) -> int | None:
    data = data_of(client, paths.offset(group, TopicPartition(topic, 0)))
    return None if data is None else int(data)


@pytest.mark.parametrize("release", RELEASES)
def test_a_member_of_each_release(
    release: str, sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """A JVM member takes only the messages it may, commits, survives an expiry, and leaves."""
    topic, group = unique("topic"), unique("group")
    sandbox.create_topic(topic)
    sandbox.produce(topic, 10)
    with ExitStack() as stack:
        client = stack.enter_context(peer_of(sandbox.zookeeper_connect))
        member = JvmMember(
            release,
            sandbox.zookeeper_connect,
            group,
            name="m",
            directory=tmp_path,
            topics=[topic],
            consume=3,
            # No stall of a busy machine ends the session, only the test does.
            properties={"auto.commit.interval.ms": 60_000, "zookeeper.session.timeout.ms": 30_000},
        )
        stack.callback(member.end)
        wait_for(lambda: len(member.delivered) == 3, "three messages")
        assert offset(client, group, topic) in (None, 0)
        member.tell("commit")
        member.wait("committed")
        assert offset(client, group, topic) == 3
        first = member.last("session")
        member.expire(sandbox.zookeeper_connect)
        node = paths.member(group, member.consumer)
        wait_for(lambda: client.exists(node), "the JVM member to register again")
        member.tell("session")
        assert member.wait("session", after=1)["id"] != first["id"]
        member.tell("consume")
        wait_for(lambda: {d.offset for d in member.delivered} == set(range(10)), "the others")
        wait_for(lambda: member.quiet_s > 1.0, "the JVM member's rebalances to end")
        member.leave()
        assert not client.exists(node)
        assert offset(client, group, topic) == 10
        assert member.trouble() == []


@pytest.mark.parametrize("release", ["0.9.0.1", "1.1.1"])
def test_a_member_newer_than_the_brokers(
    release: str,
    sandbox_of: Callable[[str, str], Sandbox],
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """On a broker of 0.8.2.2, a newer JVM member joins, owns a partition, and fetches nothing."""
    topic, group = unique("topic"), unique("group")
    servers = sandbox_of("0.8.2.2", "")
    servers.create_topic(topic)
    servers.produce(topic, 10)
    member = JvmMember(
        release,
        servers.zookeeper_connect,
        group,
        name="m",
        directory=tmp_path,
        topics=[topic],
    )
    try:
        with peer_of(servers.zookeeper_connect) as client:
            owner = paths.owner(group, TopicPartition(topic, 0))
            wait_for(lambda: client.exists(owner), "the JVM member to own the partition")
        # 0.9 names a failed fetch; 1.1.1 connects again after each one.
        failed = re.compile("Error in fetch|Reconnect due to error")
        wait_for(lambda: len(failed.findall(member.errors())) > 2, "three failed fetches")
        assert not member.delivered
    finally:
        member.end()
