"""Groups with offsets in Kafka: JVM and zkconsumer members continue each other's work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.jvm.member import JvmMember
from support.kafka.offsets import Foreign, foreign
from support.members.group import Group, MemberUnderTest, group_on
from support.members.mixed_groups import NEWEST_BROKER
from support.wait import wait_for

from zkconsumer import OffsetAndMetadata
from zkconsumer.sandbox import Sandbox

RELEASES = ("0.8.2.2", "0.9.0.1", "1.1.1")
# JVM releases on the newest broker, and on brokers of their own release, which know only older
# requests.
ON_THE_NEWEST = tuple((release, NEWEST_BROKER) for release in RELEASES)
ON_THEIR_OWN = (("0.8.2.2", "0.8.2.2"), ("0.9.0.1", "0.9.0.1"))
MESSAGES = 30
# The settings for both kinds of members: offsets in Kafka, or in Kafka and ZooKeeper.
STORAGES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "kafka": (
        {"offsets_storage": "kafka", "dual_commit_enabled": False},
        {"offsets.storage": "kafka", "dual.commit.enabled": "false"},
    ),
    "dual": ({"offsets_storage": "kafka"}, {"offsets.storage": "kafka"}),
}


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, sandbox_of: Callable[[str, str], Sandbox]
) -> Iterator[Sandbox]:
    """A broker of the requested release."""
    if request.param in (NEWEST_BROKER, "0.8.2.2"):
        yield sandbox_of(request.param, "")
        return
    with Sandbox(release=request.param, tick_time_s=0.1) as servers:
        yield servers


@pytest.fixture
def group(cluster: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group without members, and a topic with one partition of thirty messages."""
    with group_on(cluster, unique, partitions=1, messages=MESSAGES) as one:
        yield one


@pytest.fixture
def somebody(group: Group) -> Iterator[Foreign]:
    """A second client, which reads and commits the group's offsets."""
    with foreign(group.sandbox.zookeeper_connect, group.name, group.topic) as one:
        yield one


class Jvm:
    """A JVM member that takes `count` messages, commits, and leaves."""

    def __init__(self, group: Group, release: str, settings: Mapping[str, Any]) -> None:
        self._group, self._release, self._settings = group, release, settings
        self._number = 0

    def take(self, count: int, directory: Path) -> list[int]:
        """Return the offsets of the delivered messages, which are committed when this returns."""
        self._number += 1
        name = f"j{self._number}"
        member = JvmMember(
            self._release,
            self._group.sandbox.zookeeper_connect,
            self._group.name,
            name=name,
            directory=directory,
            topics=[self._group.topic],
            consume=count,
            properties={**self._settings, "auto.commit.enable": "false"},
        )
        try:
            member.wait("joined")
            wait_for(lambda: len(member.delivered) == count, f"{count} messages")
            # A member that leaves empties its streams.
            taken = [one.offset for one in member.delivered]
            member.tell("commit")
            member.wait("committed")
            wait_for(lambda: member.quiet_s > 1.0, "the end of the JVM member's rebalances")
            member.leave()
            return taken
        finally:
            member.end()


def ours(group: Group, settings: Mapping[str, Any], count: int, metadata: str = "") -> list[int]:
    """Return the first messages that a zkconsumer member reads; it commits `count` and leaves."""
    one: MemberUnderTest = group.join("ours", auto_commit_enable=False, **settings)
    one.read(count)
    taken = one.readers[0].offsets(0)[:count]
    one.connector.commit_offsets({group.tp(0): OffsetAndMetadata(taken[-1] + 1, metadata)})
    one.close()
    return taken


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("release", "cluster"), ON_THE_NEWEST + ON_THEIR_OWN, indirect=["cluster"])
def test_jvm_and_zkconsumer_members_in_turn(
    release: str, storage: str, group: Group, somebody: Foreign, tmp_path: Path
) -> None:
    """JVM and zkconsumer members, in turn, each start after the last committed message."""
    mine, theirs = STORAGES[storage]
    jvm = Jvm(group, release, theirs)
    assert jvm.take(5, tmp_path) == [*range(5)]
    assert somebody.committed(0) == {0: (5, "")}
    assert ours(group, mine, 6, "a note") == [*range(5, 11)]
    assert somebody.committed(0) == {0: (11, "a note")}
    # A JVM member ignores metadata and the NUL after it; the member's next commit deletes both.
    assert jvm.take(7, tmp_path) == [*range(11, 18)]
    assert somebody.committed(0) == {0: (18, "")}
    assert ours(group, mine, 8) == [*range(18, 26)]
    assert somebody.committed(0) == {0: (26, "")}
    assert group.stored(0) == ("26" if storage == "dual" else None)


@pytest.mark.parametrize(("release", "cluster"), ON_THE_NEWEST, indirect=["cluster"])
def test_a_group_moves_to_kafka_member_by_member(
    release: str, group: Group, somebody: Foreign, tmp_path: Path
) -> None:
    """A group moves from ZooKeeper to both stores to Kafka; no message repeats or is skipped."""
    assert Jvm(group, release, {}).take(4, tmp_path) == [*range(4)]
    assert ours(group, STORAGES["dual"][0], 5) == [*range(4, 9)]
    assert (group.stored(0), somebody.offsets(0)) == ("9", {0: 9})
    assert Jvm(group, release, STORAGES["dual"][1]).take(4, tmp_path) == [*range(9, 13)]
    assert ours(group, STORAGES["kafka"][0], 5) == [*range(13, 18)]
    assert (group.stored(0), somebody.offsets(0)) == ("13", {0: 18})
    assert Jvm(group, release, STORAGES["kafka"][1]).take(4, tmp_path) == [*range(18, 22)]
