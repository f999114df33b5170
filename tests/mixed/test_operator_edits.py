"""An operator's edits while a real JVM member is live are refused, or are overwritten."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.jvm.member import JvmMember
from support.scenes import connect_clients
from support.wait import wait_for

from zkconsumer.admin.apply import Live, apply
from zkconsumer.admin.group_changes import plan_delete_group, plan_offsets
from zkconsumer.errors import RefusedError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox


def test_a_jvm_member(sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path) -> None:
    """A JVM member is not affected by a refused edit, and overwrites a forced edit."""
    topic, group = unique("topic"), unique("group")
    sandbox.create_topic(topic)
    sandbox.produce(topic, 10)
    with ExitStack() as stack:
        clients = stack.enter_context(connect_clients(sandbox.zookeeper_connect))
        member = JvmMember(
            "1.1.1",
            sandbox.zookeeper_connect,
            group,
            name="m",
            directory=tmp_path,
            topics=[topic],
            # No stall of a busy machine ends the session.
            properties={"zookeeper.session.timeout.ms": 30_000},
        )
        stack.callback(member.end)
        tp = TopicPartition(topic, 0)
        wait_for(lambda: clients.stored(group).get(tp) == "10", "the JVM member's first commits")
        wait_for(lambda: member.quiet_s > 1.0, "the JVM member's rebalances to end")
        before = clients.other.exists(paths.owner(group, tp)).czxid
        for plan in (
            plan_offsets(clients.tools, "offsets set", {group: {tp: 3}}),
            plan_delete_group(clients.tools, group),
        ):
            with pytest.raises(RefusedError, match="live members"):
                apply(clients.tools, plan, backup_dir=tmp_path)
        edit = plan_offsets(clients.tools, "offsets set", {group: {tp: 3}})
        apply(clients.tools, edit, backup_dir=tmp_path, live=Live.FORCE)
        assert clients.stored(group)[tp] == "3"
        sandbox.produce(topic, 1)
        wait_for(lambda: clients.stored(group)[tp] == "11", "the JVM member to overwrite the edit")
        assert clients.other.exists(paths.owner(group, tp)).czxid == before
        assert [one.offset for one in member.delivered] == list(range(11))
        member.leave()
        assert member.trouble() == []
        apply(clients.tools, plan_delete_group(clients.tools, group), backup_dir=tmp_path)
        assert clients.tree(group) == {}
