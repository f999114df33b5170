"""Tests for the helper that adds real JVM consumers to groups."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.jvm.member import RELEASES, JvmMember
from support.wait import wait_for
from support.zk.client import peer_of
from support.zk.takeover import expire

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox


def offset(client: KazooClient, group: str, topic: str) -> int | None:
    path = paths.offset(group, TopicPartition(topic, 0))
    return int(client.get(path)[0]) if client.exists(path) else None


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
            properties={"auto.commit.interval.ms": 60_000},
        )
        stack.callback(member.end)
        wait_for(lambda: len(member.delivered) == 3, "three messages")
        assert offset(client, group, topic) in (None, 0)
        member.tell("commit")
        member.wait("committed")
        assert offset(client, group, topic) == 3
        first = member.last("session")
        expire(sandbox.zookeeper_connect, (first["id"], bytes.fromhex(first["password"])))
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
