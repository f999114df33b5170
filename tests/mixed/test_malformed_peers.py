"""A registration that no JVM consumer can parse: its effect on both kinds of members."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.jvm.member import JvmMember
from support.members.group import Group
from support.wait import eventually

from zkconsumer.protocol import paths
from zkconsumer.sandbox import Sandbox


@pytest.mark.parametrize("release", ["0.8.2.2", "1.1.1"])
def test_a_malformed_registration_stalls_only_the_jvm(
    release: str,
    sandbox: Sandbox,
    unique: Callable[[str], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A malformed registration fails each rebalance of the JVM member; zkconsumer reports it."""
    topic = unique("topic")
    sandbox.create_topic(topic, partitions=2)
    with ExitStack() as stack:
        group = Group(sandbox, unique("group"), topic, stack)
        jvm = JvmMember(
            release,
            sandbox.zookeeper_connect,
            group.name,
            name="j",
            directory=tmp_path,
            topics=[topic],
        )
        stack.callback(jvm.end)
        jvm.wait("joined")
        ours = group.join("o")
        both = [f"{group.name}_j-0", f"{group.name}_o-0"]
        eventually(lambda: group.owners() == both)
        fatal = paths.member(group.name, "rogue")
        with caplog.at_level(logging.WARNING, logger="zkconsumer"):
            group.admin.create(fatal, b'{"version":1}', ephemeral=True)
            eventually(jvm.trouble)  # Other tests assert that `trouble` is empty.
            eventually(lambda: "rogue" in ours.status.malformed_peers)
            eventually(lambda: any("rogue" in one for one in caplog.messages))
        (told,) = [one for one in caplog.messages if "rogue" in one]
        assert "this registration fails every JVM member of the group" in told
        assert told.endswith("(ids/rogue): stop that consumer, or delete its id znode")
        assert any("error constructing TopicCount" in one for one in jvm.trouble())
        sandbox.produce(topic, 3, partition=1)
        ours.read(3)
        assert jvm.delivered == []
        group.admin.delete(fatal)
        sandbox.produce(topic, 3, partition=0)
        # The JVM member may rebalance twice, and then it gets a message again.
        eventually(lambda: {one.offset for one in jvm.delivered} == {0, 1, 2})
        eventually(lambda: group.owners() == both)
        eventually(lambda: jvm.quiet_s > 1.0)
        jvm.leave()
