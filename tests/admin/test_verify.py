"""`verify` checks the conditions that VerifyConsumerRebalance was meant to check."""

from __future__ import annotations

import pytest
from kazoo.security import make_acl
from support.scenes import Scene

from zkconsumer.admin.findings import Finding, ranges
from zkconsumer.admin.verify import verify
from zkconsumer.errors import AccessDeniedError, UnknownGroupError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration
from zkconsumer.zk.client import ZooKeeperClient

TWO = {"g_a": {"orders": 2}, "g_b": {"orders": 1, "logs": 1}}
SIZES = {"orders": 7, "logs": 2}


def findings(scene: Scene, *, exclude_internal: bool = True) -> list[Finding]:
    """Return the findings of group g."""
    with ZooKeeperClient(scene.config()) as connection:
        return verify(connection, "g", exclude_internal=exclude_internal)


def test_a_settled_group(scene: Scene) -> None:
    """If each partition has the owner it should have, there is no finding."""
    scene.settled(TWO, SIZES)
    assert findings(scene) == []


def test_partitions_without_owner(scene: Scene) -> None:
    """For each topic, one finding names all subscribed partitions without an owner."""
    scene.settled(TWO, SIZES)
    for number in (1, 2, 5):
        scene.session.delete(paths.owner("g", TopicPartition("orders", number)))
    scene.session.delete(paths.owners_of("g", "logs"), recursive=True)
    logs, orders = findings(scene)
    assert (logs.code, logs.subject, logs.what) == ("no-owner", "logs", "no partition has an owner")
    assert (orders.partitions, orders.what) == ((1, 2, 5), "partitions 1-2, 5 without an owner")


@pytest.mark.parametrize("thread", ["g_gone-0", "g_a-2", "g_gone", "x"])
def test_an_owner_that_is_not_registered(scene: Scene, thread: str) -> None:
    """An owner must be a thread that a member has registered for the topic."""
    scene.settled(TWO, SIZES)
    scene.owner("orders", 3, thread)
    (one,) = findings(scene)
    assert (one.code, one.subject, one.partitions) == ("unregistered-owner", "orders", (3,))
    assert thread in one.what


def test_patterns_are_expanded(scene: Scene) -> None:
    """If a member has a pattern, all matching topics need owners; internal ones on request."""
    for topic in ("orders", "other", "__consumer_offsets"):
        scene.topic(topic, 1)
    payload = encode_registration(Registration({".*o.*": 1}, Pattern.WHITE_LIST, 1))
    scene.hold(paths.member("g", "g_w"), payload)
    scene.owner("orders", 0, "g_w-0")
    assert [one.subject for one in findings(scene)] == ["other"]
    subjects = [one.subject for one in findings(scene, exclude_internal=False)]
    assert subjects == ["__consumer_offsets", "other"]


def test_offsets_that_may_not_be_read(scene: Scene) -> None:
    """Offsets are not needed; only the time of the last commit is then unknown."""
    scene.settled(TWO, SIZES)
    scene.offset("orders", 0, 1)
    scene.session.set_acls(paths.offsets("g"), [make_acl("digest", "alice:hash", all=True)])
    assert findings(scene) == []
    for name in TWO:
        scene.session.delete(paths.member("g", name))
    nobody = next(one for one in findings(scene) if one.code == "no-members")
    assert "its last commit is unknown" in nobody.what
    assert paths.offsets("g") in nobody.what


@pytest.mark.parametrize(
    "path", [paths.ids("g"), paths.member("g", "g_a"), paths.owners_of("g", "orders")]
)
def test_members_or_owners_that_may_not_be_read(scene: Scene, path: str) -> None:
    """Without the members and owners nothing is verified, and the error names the znode."""
    scene.settled(TWO, SIZES)
    scene.session.set_acls(path, [make_acl("digest", "alice:hash", all=True)])
    with pytest.raises(AccessDeniedError, match=path):
        findings(scene)


def test_an_unreadable_znode_is_a_finding(scene: Scene) -> None:
    """An unreadable registration or topic is a finding, because its content is unknown."""
    scene.settled(TWO, SIZES)
    scene.hold(paths.member("g", "g_x"), b"hello")
    scene.put(paths.topic("logs"), b'{"partitions":{"x":[0]}}')
    assert [(one.code, one.subject) for one in findings(scene)] == [
        ("malformed-registration", "g_x"),
        ("malformed-topic", "logs"),
    ]


@pytest.mark.parametrize("thread", ["g_b", "g_a"])
def test_an_owner_znode_with_a_bare_consumer_id(scene: Scene, thread: str) -> None:
    """An owner znode may hold the bare id of a registered member, as kafka-node writes it."""
    scene.settled(TWO, SIZES)
    scene.owner("orders", 3, thread)
    assert findings(scene) == []


def test_znodes_without_a_session(scene: Scene) -> None:
    """A registration and an owner znode without a session are findings, and no member."""
    scene.topic("t", 1)
    payload = encode_registration(Registration({"t": 1}, Pattern.STATIC, 1))
    scene.put(paths.member("g", "g_old"), payload)
    scene.put(paths.owner("g", TopicPartition("t", 0)), b"g_old-0")
    assert [(one.code, one.subject) for one in findings(scene)] == [
        ("no-members", "g"),
        ("persistent-registration", "g_old"),
        ("persistent-owner", "t"),
    ]


def test_groups_without_members_and_without_a_znode(scene: Scene) -> None:
    """A group without members has not settled; an unknown group is an error."""
    scene.offset("orders", 0, 5)
    (one,) = findings(scene)
    assert one.code == "no-members"
    assert "last write" in one.what and "ago" in one.what
    with ZooKeeperClient(scene.config()) as connection, pytest.raises(UnknownGroupError):
        verify(connection, "nobody")


def test_ranges_are_short() -> None:
    """Partition numbers are sorted, made unique, and shortened to ranges."""
    assert ranges([7, 3, 2, 1, 9, 10, 3]) == "1-3, 7, 9-10"
    assert ranges([]) == ""
