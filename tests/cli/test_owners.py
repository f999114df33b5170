"""The command `zkconsumer owners` on a real ZooKeeper."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from cli.conftest import Run, Spawn
from kazoo.client import KazooClient
from kazoo.security import make_acl
from support.wait import LIMIT_S
from support.zk.clients import address_of

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration
from zkconsumer.sandbox import ZooKeeperServer

T0, T1, T2 = (TopicPartition("orders", partition) for partition in range(3))


@pytest.fixture
def group(client: KazooClient, unique: Callable[[str], str]) -> str:
    """A group with a live member, a member that has left, and an unreadable offset."""
    name = unique("group")
    registration = encode_registration(Registration({"orders": 1}, Pattern.STATIC, 1))
    client.create(paths.member(name, "g_a"), registration, ephemeral=True, makepath=True)
    client.create(paths.owner(name, T0), b"g_a-0", ephemeral=True, makepath=True)
    client.create(paths.owner(name, T1), b"g_b-10", ephemeral=True)
    client.create(paths.offset(name, T0), b"0", makepath=True)
    client.create(paths.offset(name, T2), b"x", makepath=True)
    return name


def test_a_table(zookeeper: ZooKeeperServer, group: str, call: Run) -> None:
    """Each partition with an owner or an offset is a row; malformed znodes are on stderr."""
    code, out, err = call("owners", "--zookeeper", zookeeper.connect, "--group", group)
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["TOPIC", "PARTITION", "OWNER", "CONSUMER", "OFFSET"],
        ["orders", "0", "g_a-0", "g_a", "0"],
        ["orders", "1", "g_b-10", "g_b", "(not", "registered)", "-"],
        ["orders", "2", "-", "-", "unknown"],
    ]
    assert "orders-2" in err
    assert "is not an offset" in err


def test_an_offset_that_may_not_be_read(
    zookeeper: ZooKeeperServer, client: KazooClient, group: str, call: Run
) -> None:
    """The owners and the other offsets are shown; the unread offset is unknown, with its reason."""
    client.set_acls(paths.offset(group, T0), [make_acl("digest", "alice:hash", all=True)])
    code, out, err = call("owners", "--zookeeper", zookeeper.connect, "--group", group)
    assert code == 0
    assert out.splitlines()[1].split() == ["orders", "0", "g_a-0", "g_a", "unknown"]
    assert "orders-0: ZooKeeper does not allow this client to read the znode" in err


def test_json(zookeeper: ZooKeeperServer, client: KazooClient, group: str, call: Run) -> None:
    """In JSON the output is one object with the members and the partitions."""
    arguments = ("--zookeeper", zookeeper.connect, "--group", group, "--output", "json")
    document = json.loads(call("owners", *arguments)[1])
    assert document["members"] == {"g_a": {"orders": 1}}
    assert document["partitions"][0] == {
        "group": group,
        "topic": "orders",
        "partition": 0,
        "owner": "g_a-0",
        "consumer": "g_a",
        "session": f"0x{client.client_id[0]:x}",
        "client": address_of(zookeeper, client),
        "offset": 0,
        "fault": "",
    }


def test_an_unknown_group(zookeeper: ZooKeeperServer, call: Run) -> None:
    """For a group that does not exist, the error names the group; exit code 1."""
    code, out, err = call("owners", "--zookeeper", zookeeper.connect, "--group", "nobody")
    assert (code, out) == (1, "")
    assert err.startswith("zkconsumer: group nobody does not exist")


def test_a_missing_chroot(zookeeper: ZooKeeperServer, call: Run) -> None:
    """For a chroot that does not exist, the error names the chroot; exit code 3."""
    code, _, err = call("owners", "--zookeeper", f"{zookeeper.connect}/none", "--group", "g")
    assert (code, err.count("\n")) == (3, 1)
    assert "/none" in err


def test_watch(zookeeper: ZooKeeperServer, client: KazooClient, group: str, spawn: Spawn) -> None:
    """`--watch` adds a line for each change until Ctrl-C; then the exit code is 130."""
    process = spawn("owners", "--zookeeper", zookeeper.connect, "--group", group, "--watch")
    assert process.stdout is not None
    lines = iter(process.stdout.readline, b"")
    assert len([next(lines) for _ in range(4)]) == 4
    client.delete(paths.owner(group, T0))
    client.create(paths.owner(group, T0), b"g_c-0", ephemeral=True)
    seen = next(line for line in lines if b"-> g_c-0" in line)
    assert b"orders-0 owner:" in seen
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=LIMIT_S) == 130
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("option", [("-o", "csv"), ("-o", "yaml"), ("--sort", "topic")])
def test_watch_refuses_options_that_it_would_ignore(
    zookeeper: ZooKeeperServer, group: str, call: Run, option: tuple[str, str]
) -> None:
    """Lines of changes are no table: an option for tables is an error and is not ignored."""
    address = ("--zookeeper", zookeeper.connect, "--group", group)
    code, _, err = call("owners", *address, "--watch", *option)
    assert (code, option[0].replace("-o", "--output") in err) == (2, True)


def test_watch_json(
    zookeeper: ZooKeeperServer, client: KazooClient, group: str, spawn: Spawn
) -> None:
    """`--watch --output json` prints the existing owners first, then one object per change."""
    arguments = ("--zookeeper", zookeeper.connect, "--group", group, "--output", "json")
    process = spawn("owners", *arguments, "--watch")
    assert process.stdout is not None
    changes = map(json.loads, iter(process.stdout.readline, b""))
    first = []
    for change in changes:
        first.append(change)
        if change["what"] == "read":
            break
    member = {"what": "member", "consumer": "g_a", "before": None, "after": {"orders": 1}}
    assert member.items() <= first[0].items()
    client.delete(paths.owner(group, T0))
    change = next(changes)
    assert (change["what"], change["before"], change["after"]) == ("owner", "g_a-0", None)
    assert (change["topic"], change["partition"]) == ("orders", 0)
