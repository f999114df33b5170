"""Plans are applied while replies are lost, or while the connection does not return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.scenes import Clients
from support.wait import LIMIT_S
from support.zk.proxies import Proxy, Wire

from zkconsumer.admin import plan as plan_file
from zkconsumer.admin.apply import apply
from zkconsumer.admin.group_changes import plan_delete_group, plan_offsets
from zkconsumer.admin.plan import Plan
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import Advice, AppliedInPartError, RemedyOperation
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.sandbox.process import until
from zkconsumer.zk.client import ZooKeeperClient

T = [TopicPartition("t", number) for number in range(9)]


@pytest.fixture
def line(zookeeper: ZooKeeperServer) -> Iterator[Proxy]:
    """The proxy between the tools and the server."""
    with Proxy(zookeeper.connect) as proxy:
        yield proxy


@pytest.fixture
def group(clients: Clients, unique: Callable[[str], str]) -> str:
    """An idle group with nine offsets."""
    name = unique("group")
    clients.other.ensure_path(paths.ids(name))
    clients.offsets(name, dict.fromkeys(T, 1))
    return name


def setting(clients: Clients, group: str) -> Plan:
    return plan_offsets(clients.tools, "offsets set", {group: dict.fromkeys(T, 7)})


def through(line: Proxy, timeout_s: float) -> ZooKeeperClient:
    """Connect through the proxy, with this time limit."""
    return ZooKeeperClient(
        ConsumerConfig(
            group_id="none",
            zookeeper_connect=line.address,
            zookeeper_session_timeout_s=3.0,
            zookeeper_connection_timeout_s=timeout_s,
        )
    )


@pytest.mark.parametrize("planned", [setting, lambda h, g: plan_delete_group(h.tools, g)])
def test_a_lost_reply(
    clients: Clients,
    line: Proxy,
    group: str,
    tmp_path: Path,
    planned: Callable[[Clients, str], Plan],
) -> None:
    """If a reply is lost, the tool reads the result, counts the transaction once, and continues."""
    plan = planned(clients, group)
    has_happened = threading.Event()

    def mend() -> None:
        """Drop the reply of the second executed transaction, and break the connection."""
        last = plan.changes[5]

        def done() -> bool:
            stat = clients.other.exists(last.path)
            return stat is None if last.after is None else stat.version == 2

        if until(done, limit_s=LIMIT_S):
            has_happened.set()
        line.wire = Wire.PASS
        line.cut()

    mender = threading.Thread(target=mend, daemon=True)

    def progress(done: int, total: int) -> None:
        if done == 3:
            line.wire = Wire.LOSE_REPLIES
            mender.start()

    with through(line, LIMIT_S) as tools:
        report = apply(tools, plan, backup_dir=tmp_path, max_writes=3, on_progress=progress)
    mender.join(2 * LIMIT_S)
    assert has_happened.is_set()
    assert (report.applied, report.already) == (len(plan), 0)
    if plan.kind == "offsets set":
        assert set(clients.stored(group).values()) == {"7"}
        assert len(clients.other.get_children(paths.edits(group))) == 3
    else:
        assert clients.tree(group) == {}


def test_zookeeper_does_not_return(
    clients: Clients, line: Proxy, group: str, tmp_path: Path
) -> None:
    """If ZooKeeper does not return, the error counts the changes; applying again does the rest."""

    def progress(done: int, total: int) -> None:
        if done == 3:
            line.wire = Wire.SILENT
            line.cut()

    with (
        pytest.raises(AppliedInPartError, match="3 of 9 changes are made") as caught,
        through(line, 6.0) as tools,
    ):
        apply(
            tools, setting(clients, group), backup_dir=tmp_path, max_writes=3, on_progress=progress
        )
    (backup,) = tmp_path.iterdir()
    assert caught.value.advice == Advice(RemedyOperation.COMPLETE_OR_UNDO, value=str(backup))
    assert list(clients.stored(group).values()).count("7") == 3
    report = apply(clients.tools, plan_file.load_plan(backup), backup_dir=tmp_path)
    assert (report.applied, report.already) == (6, 3)
    assert set(clients.stored(group).values()) == {"7"}


def test_another_client_writes_after_a_lost_reply(
    clients: Clients, line: Proxy, group: str, tmp_path: Path
) -> None:
    """If another client's write hides the tool's, the error gives a minimum of the changes."""
    plan = setting(clients, group)
    path = plan.changes[0].path

    def write_after_tool() -> None:
        if until(lambda: clients.other.exists(path).version == 2, limit_s=LIMIT_S):
            clients.other.set(path, b"5")
        line.wire = Wire.PASS
        line.cut()

    writer = threading.Thread(target=write_after_tool, daemon=True)

    def progress(done: int, total: int) -> None:
        if done == 0:
            line.wire = Wire.LOSE_REPLIES
            writer.start()

    with (
        through(line, LIMIT_S) as tools,
        pytest.raises(AppliedInPartError, match=r"^at least 0 of 9 changes are made") as caught,
    ):
        apply(tools, plan, backup_dir=tmp_path, max_writes=3, on_progress=progress)
    writer.join(2 * LIMIT_S)
    assert "nothing was written" not in str(caught.value)
    assert list(clients.stored(group).values()).count("7") == 2
