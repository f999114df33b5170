"""Every tool works after transactions of members that ZooKeeper has refused, on each release."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.zk.client import peer_of
from support.zk.servers import zookeeper_releases

from zkconsumer.admin.apply import Live, apply
from zkconsumer.admin.group_changes import (
    plan_copy_group,
    plan_delete_group,
    plan_delete_offsets,
    plan_forget_topics,
    plan_offsets,
    plan_rename_group,
    plan_undo,
)
from zkconsumer.admin.plan import Plan
from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.zk.client import ZooKeeperClient

T0 = TopicPartition("t", 0)

TOOLS: dict[str, Callable[[ZooKeeperClient, str], Plan]] = {
    "offsets-set": lambda zk, group: plan_offsets(zk, "offsets set", {group: {T0: 3}}),
    "offsets-delete": lambda zk, group: plan_delete_offsets(zk, group, topics={"t": None}),
    "groups-delete": plan_delete_group,
    "groups-copy": lambda zk, group: plan_copy_group(zk, group, f"{group}-copy"),
    "groups-rename": lambda zk, group: plan_rename_group(zk, group, f"{group}-new"),
    "topics-forget": lambda zk, group: plan_forget_topics(zk, ["t"], groups=[group]),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests on the releases that `--zookeeper` names."""
    metafunc.parametrize("release", zookeeper_releases(metafunc.config))


def _fail_transactions(connect: str, client: KazooClient, group: str) -> None:
    """Let a member's commit and claim be refused, and end the member."""
    member = f"{group}_m"
    client.create(paths.offset(group, T0), b"1", makepath=True)
    client.ensure_path(paths.owners_of(group, "t"))
    with peer_of(connect) as session:
        session.create(paths.member(group, member), b"{}", ephemeral=True, makepath=True)
        session.create(paths.owner(group, T0), f"{member}-0".encode(), ephemeral=True)
        for write in (
            lambda it: it.set_data(paths.offset(group, T0), b"2", version=99),
            lambda it: it.create(paths.owner(group, T0), b"", ephemeral=True),
        ):
            transaction = session.transaction()
            transaction.check(paths.member(group, member), 0)
            write(transaction)
            assert all(isinstance(one, Exception) for one in transaction.commit())


@pytest.mark.parametrize("live", list(Live))
def test_every_tool(
    zookeeper_of: Callable[[str], ZooKeeperServer],
    unique: Callable[[str], str],
    tmp_path: Path,
    release: str,
    live: Live,
) -> None:
    """No tool is refused after the members' refused transactions, with and without guards."""
    connect = zookeeper_of(release).connect
    with (
        peer_of(connect) as client,
        ZooKeeperClient(ConnectionConfig(zookeeper_connect=connect)) as tools,
    ):
        for name, plan_of in TOOLS.items():
            group = unique(name)
            _fail_transactions(connect, client, group)
            plan = plan_of(tools, group)
            report = apply(tools, plan, backup_dir=tmp_path, live=live)
            assert report.applied == len(plan) > 0, name
            undo = plan_undo(tools, plan)
            assert apply(tools, undo, backup_dir=tmp_path, live=live).applied == len(undo), name
