"""`explain` computes what the assignors compute, and describes the present owners."""

from __future__ import annotations

from kazoo.security import make_acl
from support.scenes import Scene

from zkconsumer.admin.explain import Explanation, explain
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.zk.client import ZooKeeperClient

MEMBERS = {"g_a": {"orders": 2}, "g_b": {"orders": 1, "logs": 1}, "g_c": {"logs": 3}}
SIZES = {"orders": 7, "logs": 2}


def explained(scene: Scene, **settings: str) -> Explanation:
    """Return the explanation of group g, computed with the settings of its members."""
    with ZooKeeperClient(scene.config()) as connection:
        return explain(connection, "g", settings=scene.config(**settings))


def shares(found: Explanation, topic: str) -> list[tuple[int, str, tuple[int, ...]]]:
    """Return the position, the thread and the partitions of each thread of a topic."""
    return [
        (one.position, one.thread, one.partitions) for one in found.shares if one.topic == topic
    ]


def test_range(scene: Scene) -> None:
    """For each topic there are size, shares, extra partitions, order of threads, idle threads."""
    scene.settled(MEMBERS, SIZES)
    found = explained(scene)
    assert "range of 0.8.2-0.11" in found.rules
    assert shares(found, "orders") == [
        (1, "g_a-0", (0, 1, 2)),
        (2, "g_a-1", (3, 4)),
        (3, "g_b-0", (5, 6)),
    ]
    assert found.topics["orders"] == (
        "7 partitions / 3 threads = 2 each, and 7 mod 3 = 1: the first gets one more."
    )
    assert "4 threads, 2 partitions: 2 idle by design" in found.topics["logs"]
    first, *_, idle = (one for one in found.shares if one.topic == "logs")
    assert "thread 1 of 4 gets 0 + 1 partitions: number 1 of 2" in first.why
    assert idle.why == "thread 4 of 4 gets none: the topic has 2 partitions"
    assert all(one.owned == one.partitions for one in found.shares)
    assert not found.failures


def test_round_robin(scene: Scene) -> None:
    """The owner znodes show the strategy; each share names the turns that the thread takes."""
    members = {name: {"orders": 1, "logs": 1} for name in ("g_a", "g_b")}
    scene.settled(members, SIZES, strategy=Strategy.ROUND_ROBIN)
    found = explained(scene)
    assert "roundrobin" in found.rules
    assert any("hash code" in text for text in found.words)
    assert "[topic,n]" in " ".join(found.words)
    assert all(one.owned == one.partitions for one in found.shares)
    assert {tp for one in found.shares for tp in one.partitions} == set(range(7))
    assert "on the circle: gets number" in found.shares[0].why


def test_a_share_names_the_holder_of_a_missing_partition(scene: Scene) -> None:
    """A share names who owns a partition that it lacks, and to whom an extra one belongs."""
    scene.settled(MEMBERS, SIZES)
    scene.owner("orders", 3, "g_b-0")
    lacking = next(one for one in explained(scene).shares if one.thread == "g_a-1")
    assert "does not own partition 3 (held: 3 by g_b-0)" in lacking.why
    holding = next(
        one for one in explained(scene).shares if one.thread == "g_b-0" and one.topic == "orders"
    )
    assert "owns partition 3 assigned to another thread" in holding.why


def test_members_that_fail(scene: Scene) -> None:
    """If a registration makes all members fail, the exception that each throws is named."""
    scene.settled(MEMBERS, SIZES)
    scene.hold(paths.member("g", "g_x"), b"hello")
    found = explained(scene)
    assert found.failures.keys() == {*MEMBERS, "g_x"}
    assert all("kafka.common.KafkaException" in why for why in found.failures.values())


def test_a_member_that_is_no_jvm_member(scene: Scene) -> None:
    """A member that has claimed a partition beside an unreadable registration does not fail."""
    scene.settled(MEMBERS, SIZES)
    scene.hold(paths.member("g", "g_x"), b"hello")
    path = paths.owner("g", TopicPartition("orders", 6))
    scene.session.delete(path)
    scene.hold(path, b"g_b-0")
    assert explained(scene).failures.keys() == {"g_a", "g_c", "g_x"}


def test_settings_apply_where_no_partition_has_an_owner(scene: Scene) -> None:
    """If there are no owner znodes, the strategy is taken from the members' settings."""
    scene.settled({"g_a": {"orders": 1}}, {"orders": 2})
    for number in (0, 1):
        scene.session.delete(paths.owner("g", TopicPartition("orders", number)))
    assert "range" in explained(scene).rules
    found = explained(scene, partition_assignment_strategy="roundrobin")
    assert "roundrobin" in found.rules
    assert "defaults" in found.words[0]


def test_a_group_without_members(scene: Scene) -> None:
    """In a group without members, no partition is assigned."""
    scene.offset("orders", 0, 1)
    found = explained(scene)
    assert (found.shares, found.topics) == ((), {})
    assert "No member" in found.words[0]


def test_offsets_that_may_not_be_read(scene: Scene) -> None:
    """The shares are explained as usual; the words say that the last commit is unknown."""
    scene.settled(MEMBERS, SIZES)
    scene.offset("orders", 0, 1)
    before = explained(scene)
    path = paths.offset("g", TopicPartition("orders", 0))
    scene.session.set_acls(path, [make_acl("digest", "alice:hash", all=True)])
    found = explained(scene)
    assert (found.shares, found.topics) == (before.shares, before.topics)
    (new,) = set(found.words) - set(before.words)
    assert new.startswith("The last commit is unknown")
    assert path in new
