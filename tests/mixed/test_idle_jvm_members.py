"""JVM members that have given up, and zkconsumer members that wake them (`peers.nudge`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.jvm.member import JvmMember
from support.wait import wait_for
from support.zk.client import data_of, peer_of

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.consumer import group_member
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox


def test_a_member_that_gave_up_behind_a_frozen_one_is_woken(
    sandbox: Sandbox,
    unique: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frozen JVM member keeps a partition of another, which gives up; later that one is woken."""
    monkeypatch.setattr(group_member, "NUDGE_S", 3.0)
    topic, group = unique("topic"), unique("group")
    sandbox.create_topic(topic, partitions=6)
    connect = sandbox.zookeeper_connect
    config = ConsumerConfig(
        group_id=group,
        zookeeper_connect=connect,
        rebalance_backoff_s=0.2,
        rebalance_max_retries=2,
        peers_nudge=True,
    )
    jvm = partial(
        JvmMember,
        "1.1.1",
        connect,
        group,
        directory=tmp_path,
        topics=[topic],
        properties={"rebalance.max.retries": 4, "zookeeper.session.timeout.ms": 60_000},
    )
    with ExitStack() as stack:
        client = stack.enter_context(peer_of(connect))

        def joins(name: str) -> ConsumerConnector:
            member = ConsumerConnector(replace(config, consumer_id=name))
            stack.enter_context(member).create_message_streams({topic: 1})
            return member

        def owned_by(names: str) -> bool:
            """Return whether the owners of the partitions, in their order, have these names."""
            found = [paths.owner(group, TopicPartition(topic, one)) for one in range(6)]
            owners = [data_of(client, path) for path in found]
            return owners == [f"{group}_{name}-0".encode() for name in names.split()]

        joins("a")
        members = {name: jvm(name=name) for name in ("c", "d")}
        for member in members.values():
            stack.callback(member.end)
        wait_for(lambda: owned_by("a a c c d d"), "three members to share")
        wait_for(lambda: all(one.quiet_s > 1.0 for one in members.values()), "the rebalances' end")
        members["d"].freeze()
        joins("b")
        wait_for(lambda: any("can't" in one for one in members["c"].trouble()), "c to give up")
        assert owned_by("a a b b d d")
        members["d"].thaw()
        wait_for(lambda: owned_by("a a b b c d"), "c to be woken")
