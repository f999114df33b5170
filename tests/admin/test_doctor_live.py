"""`doctor`, `verify` and `explain` for a group of real members on a real broker."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.members.group import Group, group_on
from support.wait import LIMIT_S, eventually
from typer.testing import CliRunner

from zkconsumer import ConsumerConfig
from zkconsumer.admin.doctor import doctor, kafka_logs
from zkconsumer.admin.explain import explain
from zkconsumer.admin.findings import Finding
from zkconsumer.admin.verify import verify
from zkconsumer.cli import app
from zkconsumer.cli.output import command_of
from zkconsumer.protocol import paths
from zkconsumer.sandbox import Sandbox
from zkconsumer.zk.client import ZooKeeperClient


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group without members, and a topic with four partitions of ten messages."""
    with group_on(sandbox, unique, partitions=4) as one:
        yield one


def config(group: Group) -> ConsumerConfig:
    return ConsumerConfig(
        group_id=group.name,
        zookeeper_connect=group.sandbox.zookeeper_connect,
        zookeeper_connection_timeout_s=LIMIT_S,
        rebalance_backoff_s=2.0,
    )


def examined(group: Group) -> list[Finding]:
    """Return the findings of the group, examined with its logs and settings."""
    with ZooKeeperClient(config(group)) as connection:
        return doctor(
            connection, [group.name], settings=lambda _: config(group), ask_logs=kafka_logs(LIMIT_S)
        )


def test_a_zkconsumer_group_has_no_finding(group: Group) -> None:
    """`doctor` finds nothing in a group of two live members, and `explain` gives their owners."""
    one, two = group.join("a"), group.join("b")
    eventually(lambda: len(one.owned) == len(two.owned) == 2)
    one.connector.commit_offsets()
    assert examined(group) == []
    with ZooKeeperClient(config(group)) as connection:
        assert verify(connection, group.name) == []
        shares = explain(connection, group.name).shares
    assert [one.partitions for one in shares] == [(0, 1), (2, 3)]
    assert all(share.owned == share.partitions for share in shares)


def test_the_remedy_moves_offsets_into_the_log(group: Group, tmp_path: Path) -> None:
    """The remedy that a finding names moves the offsets into the log."""
    for number, value in enumerate((b"99", b"10", b"0")):
        path = paths.offset(group.name, group.tp(number))
        group.admin.create(path, value, makepath=True)
    one, nobody = examined(group)
    assert nobody.what.startswith("no member is registered, and 10 messages wait")
    assert (one.code, one.partitions) == ("offset-beyond-log", (0,))
    assert one.advice is not None
    assert one.what == "partition 0: the offset is 99, beyond the end of the log (0 to 10)"
    command = [
        *shlex.split(command_of(one.advice))[1:],
        "--backup-dir",
        str(tmp_path),
        "--zookeeper",
        group.sandbox.zookeeper_connect,
        "--timeout",
        str(LIMIT_S),
        "--patience",
        "1",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    assert group.admin.get(paths.offset(group.name, group.tp(0)))[0] == b"10"
    assert [one.code for one in examined(group)] == ["no-members"]
