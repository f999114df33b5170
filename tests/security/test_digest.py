"""Digest users, and the access lists of a group's znodes, on a real ZooKeeper."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
from support.members.group import SETTINGS, Group, MemberUnderTest

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.errors import AccessDeniedError, ConfigError
from zkconsumer.protocol import paths

ALICE, BOB = "alice:canary-one", "bob:canary-two"
Clients = Callable[..., KazooClient]


def config(group: Group, credential: str, **more: Any) -> ConsumerConfig:
    return ConsumerConfig(
        group_id=group.name,
        zookeeper_connect=group.sandbox.zookeeper_connect,
        zookeeper_auth_scheme="digest",
        zookeeper_auth_credential=credential,
        **{**SETTINGS, "zookeeper_acl": "creator", **more},
    )


@pytest.fixture
def alice(group: Group) -> Iterator[MemberUnderTest]:
    """Alice's member, which has read and committed all messages."""
    member = MemberUnderTest(config(group, ALICE))
    try:
        member.subscribe(group.topic)
        member.read(40)
        member.connector.commit_offsets()
        yield member
    finally:
        member.close()


def _subtree(client: KazooClient, path: str) -> list[str]:
    below = [f"{path}/{name}" for name in client.get_children(path)]
    return [path, *(one for child in below for one in _subtree(client, child))]


@pytest.mark.usefixtures("alice")
def test_the_whole_subtree_is_the_creators(group: Group, clients: Clients) -> None:
    """ZkAuthorizationTest: the group's znodes belong to its user alone, those above to nobody."""
    mine = clients(group.sandbox.zookeeper_connect, ALICE)
    root = f"{paths.CONSUMERS}/{group.name}"
    nodes = _subtree(mine, root)
    assert {paths.owner(group.name, group.tp(0)), group.offset(3)} <= set(nodes)
    only_alice = [make_digest_acl(*ALICE.split(":"), all=True)]
    assert {path: mine.get_acls(path)[0] for path in nodes} == dict.fromkeys(nodes, only_alice)
    assert mine.get_acls(paths.CONSUMERS)[0] == OPEN_ACL_UNSAFE
    for other in (group.admin, clients(group.sandbox.zookeeper_connect, BOB)):
        with pytest.raises(NoAuthError):
            other.get_children(root)
        with pytest.raises(NoAuthError):
            other.set(group.offset(0), b"0")
        with pytest.raises(NoAuthError):
            other.delete(paths.owner(group.name, group.tp(0)))


@pytest.mark.usefixtures("alice")
@pytest.mark.parametrize("credential", [BOB, "alice:wrong"])
def test_a_wrong_credential_is_noticed_at_the_start(group: Group, credential: str) -> None:
    """ZooKeeper accepts another user or a wrong password, but the member refuses it."""
    with pytest.raises(AccessDeniedError) as caught:
        ConsumerConnector(config(group, credential))
    assert caught.value.where == f"{paths.CONSUMERS}/{group.name}"
    assert credential.partition(":")[0] in caught.value.what
    assert credential.partition(":")[2] not in str(caught.value)


def test_two_members_of_one_user_share(group: Group, alice: MemberUnderTest) -> None:
    """A second member with the same credential gets half of the partitions."""
    second = MemberUnderTest(config(group, ALICE))
    try:
        second.subscribe(group.topic)
        halves = ({0, 1}, {2, 3})
        mine = halves[alice.connector.consumer_id > second.connector.consumer_id]
        alice.settled(*mine)
        second.settled(*({0, 1, 2, 3} - mine))
    finally:
        second.close()


def test_a_group_that_was_open_before_is_warned_of(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """`creator` does not restrict existing open znodes; a warning names them."""
    root = f"{paths.CONSUMERS}/{group.name}"
    group.admin.ensure_path(root)
    with caplog.at_level(logging.WARNING, "zkconsumer"):
        ConsumerConnector(config(group, ALICE)).shutdown()
    assert f"any client may change them: {root}" in caplog.text


def test_a_user_who_sees_no_hash_is_accepted(group: Group) -> None:
    """If a user may read but not administer, no hash is visible, and the user is accepted."""
    acl = [
        make_digest_acl(*ALICE.split(":"), read=True, create=True, write=True, delete=True),
        make_digest_acl(*BOB.split(":"), all=True),
    ]
    group.admin.create(f"{paths.CONSUMERS}/{group.name}", acl=acl)
    ConsumerConnector(config(group, ALICE)).shutdown()


@pytest.mark.parametrize(
    "connect", ["10.0.0.1:2181", "zk.example.com:2181", "127.0.0.1:2181,zk2:2181", "[fe80::1]:2181"]
)
def test_a_password_in_clear_text_is_refused(connect: str) -> None:
    """Digest without TLS is sent only to this machine, unless a property permits more."""
    how: dict[str, Any] = {
        "group_id": "g",
        "zookeeper_connect": connect,
        "zookeeper_auth_scheme": "digest",
        "zookeeper_auth_credential": ALICE,
    }
    with pytest.raises(ConfigError, match="clear text"):
        ConsumerConfig(**how)
    ConsumerConfig(**how, zookeeper_auth_insecure_plaintext=True)
    ConsumerConfig(**how, zookeeper_ssl_enable=True)
    for here in ("localhost", "127.0.0.1:2181,[::1]:2181", "127.8.9.1/chroot"):
        ConsumerConfig(**{**how, "zookeeper_connect": here})
