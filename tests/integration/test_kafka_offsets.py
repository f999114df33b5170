"""Offsets in Kafka on real brokers: what is stored, where reading starts, which errors come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from support.captures import captured
from support.kafka.offsets import (
    LIMIT_S,
    Foreign,
    Wire,
    commit_request,
    coordinator_of,
    errors_in,
    foreign,
    kept,
    new_style_member,
    offsets_of,
    store_of,
)
from support.members.group import Group, MemberUnderTest, group_on
from support.shared_servers import LONG_SESSION
from support.wait import eventually

from zkconsumer import OffsetAndMetadata, TopicPartition
from zkconsumer.errors import CommitError, ConfigError, NotOwnedError
from zkconsumer.protocol.requests import FetchOffsets, NotStored, StoreOffsets
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.process import until

KAFKA = {"offsets_storage": "kafka", "dual_commit_enabled": False}
DUAL = {"offsets_storage": "kafka"}
# Only calls by the test commit.
BY_HAND = {"auto_commit_enable": False}
MESSAGES = 20


@pytest.fixture(scope="module", params=["0.8.2.2", "0.9.0.1", "3.9.1"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """Brokers with the first and the second protocol for offsets, and the newest broker."""
    if request.param == "3.9.1":
        yield request.getfixturevalue("sandbox")
        return
    with Sandbox(release=request.param, tick_time_s=0.1, overrides=LONG_SESSION) as servers:
        yield servers


@pytest.fixture
def group(cluster: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group without members, and a topic with three partitions of twenty messages."""
    with group_on(cluster, unique, partitions=3, messages=MESSAGES) as one:
        yield one


@pytest.fixture
def somebody(group: Group) -> Iterator[Foreign]:
    """A second client, which reads and commits the group's offsets."""
    with foreign(group.sandbox.zookeeper_connect, group.name, group.topic) as one:
        yield one


@pytest.fixture
def wire(cluster: Sandbox) -> Iterator[Wire]:
    """A connection for raw requests."""
    one = Wire(cluster.broker.bootstrap)
    yield one
    one.close()


def first_offsets(one: MemberUnderTest) -> dict[int, int]:
    """Return the offset of the first delivered message of each partition."""
    return {
        number: one.readers[0].offsets(number)[0]
        for number in range(3)
        if one.readers[0].offsets(number)
    }


def test_kafka_stores_the_same_for_both_kinds_of_members(
    cluster: Sandbox, wire: Wire, unique: Callable[[str], str]
) -> None:
    """Captured commits of the JVM and zkconsumer's are answered and stored alike."""
    topic, old = unique("kept"), cluster.broker.release == "0.8.2.2"
    cluster.create_topic(topic, partitions=3)
    broker = cluster.broker.bootstrap
    # The first look-up of a coordinator creates the offsets topic.
    assert until(lambda: coordinator_of(broker, "any") is not None, limit_s=LIMIT_S)
    for request, answer in captured_commits():
        if old and request[3] > 1:
            continue  # The broker does not know this version of the request.
        theirs, ours = unique("jvm"), unique("our")
        asked, expected = commit_request(request, theirs, topic), errors_in(answer)
        assert until(lambda a=asked, e=expected: errors_in(wire.ask(a)) == e, limit_s=LIMIT_S)
        with store_of(cluster.zookeeper_connect, ours) as ask:
            wanted = {
                TopicPartition(topic, number): OffsetAndMetadata(*at)
                for number, at in offsets_of(request).items()
            }
            assert ask(StoreOffsets(wanted)).value == NotStored({}, {})
            assert ask(FetchOffsets(tuple(wanted))).value == wanted
        assert kept(wire, ours, topic, 3) == kept(wire, theirs, topic, 3)


def captured_commits() -> list[tuple[bytes, bytes]]:
    """Return the commits that JVM consumers sent, one of each form, with the brokers' responses."""
    found: dict[tuple[int, str], tuple[bytes, bytes]] = {}
    for row in captured("kafka_commits"):
        request, answer = bytes.fromhex(row["request_hex"]), bytes.fromhex(row["response_hex"])
        if "new-style" not in row["label"]:
            found[row["version"], str(offsets_of(request))] = request, answer
    return list(found.values())


def test_the_next_owner_starts_at_the_committed_offset(group: Group, somebody: Foreign) -> None:
    """Offsets are stored only in Kafka, and read from there; there are no offset znodes."""
    one = group.join(**KAFKA, **BY_HAND)
    one.read(3 * MESSAGES)
    one.connector.commit_offsets()
    assert somebody.offsets(0, 1, 2) == {0: 20, 1: 20, 2: 20}
    one.connector.commit_offsets({group.tp(0): 7, group.tp(1): 0})
    assert somebody.offsets(0, 1, 2) == {0: 7, 1: 0, 2: 20}
    one.close()
    assert group.stored(0) is None
    other = group.join("n", **KAFKA, **BY_HAND)
    other.read(13 + 20)
    assert first_offsets(other) == {0: 7, 1: 0}


def test_a_foreign_commit_is_where_we_begin(group: Group, somebody: Foreign) -> None:
    """A member starts at another client's commit, which the member's next commit replaces."""
    somebody.commit({0: 5, 1: 19, 2: 20}, "theirs")
    one = group.join(**KAFKA)
    one.read(15 + 1)
    assert first_offsets(one) == {0: 5, 1: 19}
    one.close()
    # A commit that moves an offset deletes its metadata; an offset that has not moved keeps it.
    assert somebody.committed(0, 1, 2) == {0: (20, ""), 1: (20, ""), 2: (20, "theirs")}


def test_metadata(group: Group, somebody: Foreign, wire: Wire) -> None:
    """OffsetCommitTest.testUpdateOffsets: metadata is stored, and removed with the next offset."""
    one = group.join(**KAFKA, **BY_HAND)
    one.read(3 * MESSAGES)
    noted = {group.tp(0): OffsetAndMetadata(20, "done é"), group.tp(1): OffsetAndMetadata(4, "x")}
    one.connector.commit_offsets(noted)
    assert somebody.committed(0, 1, 2) == {0: (20, "done é"), 1: (4, "x")}
    # confluent-kafka appends a NUL to metadata and removes it when it reads; other clients see it.
    assert kept(wire, group.name, group.topic, 2) == {
        0: (20, "done é\0".encode(), 0),
        1: (4, b"x\0", 0),
    }
    one.connector.commit_offsets()
    assert somebody.committed(0, 1, 2) == {0: (20, "done é"), 1: (20, ""), 2: (20, "")}


def test_what_kafka_refuses_of_a_commit_is_named(
    group: Group, somebody: Foreign, cluster: Sandbox
) -> None:
    """OffsetCommitTest.testLargeMetadataPayload: a refused offset is named, others are stored."""
    one = group.join(**KAFKA, **BY_HAND)
    one.read(3 * MESSAGES)
    long = {group.tp(0): OffsetAndMetadata(3, "x" * 5000), group.tp(1): 4}
    if cluster.broker.release == "0.8.2.2":  # The broker returns an error and stores both offsets.
        one.connector.commit_offsets(long)
        assert somebody.offsets(0, 1) == {0: 3, 1: 4}
        return
    with pytest.raises(
        CommitError, match=r"1 offsets were not committed.*too large: shorten the metadata"
    ):
        one.connector.commit_offsets(long)
    assert somebody.offsets(0, 1) == {1: 4}


def test_dual_commit_writes_both_and_begins_at_the_larger(group: Group, somebody: Foreign) -> None:
    """Kafka has 6, 6 and none, ZooKeeper 3, 9 and 18; a member begins at 6, 9 and 18."""
    somebody.commit({0: 6, 1: 6})
    for partition, offset in enumerate((3, 9, 18)):
        group.write(partition, str(offset).encode())
    one = group.join(**DUAL, **BY_HAND)
    one.read(14 + 11 + 2)
    assert first_offsets(one) == {0: 6, 1: 9, 2: 18}
    assert one.counted["offset_migrated"] == 1
    one.connector.commit_offsets()
    assert somebody.offsets(0, 1, 2) == {0: 20, 1: 20, 2: 20}
    assert [group.stored(n) for n in range(3)] == ["20", "20", "20"]


def test_a_group_that_moves_to_kafka_begins_where_zookeeper_has_it(
    group: Group, somebody: Foreign
) -> None:
    """Without dual commit Kafka's offset counts; if there is none, ZooKeeper's."""
    somebody.commit({0: 6, 1: 6})
    for partition, offset in enumerate((3, 9, 18)):
        group.write(partition, str(offset).encode())
    one = group.join(**KAFKA)
    one.read(14 + 14 + 2)
    assert first_offsets(one) == {0: 6, 1: 6, 2: 18}
    one.close()
    assert somebody.offsets(0, 1, 2) == {0: 20, 1: 20, 2: 20}
    assert [group.stored(n) for n in range(3)] == ["3", "9", "18"]


def test_a_new_owner_starts_at_the_committed_offset(group: Group, somebody: Foreign) -> None:
    """A new member starts where the old owner has committed to Kafka."""
    one = group.join("m", **KAFKA)
    one.read(3 * MESSAGES)
    other = group.join("n", **KAFKA)
    eventually(lambda: one.owned and other.owned and len(one.owned | other.owned) == 3)
    for partition in range(3):
        group.sandbox.produce(group.topic, 5, partition=partition)
    eventually(lambda: len(one.readers[0].messages) + len(other.readers[0].messages) >= 75)
    assert len(one.readers[0].messages) + len(other.readers[0].messages) == 75
    other.close()
    one.close()
    assert somebody.offsets(0, 1, 2) == {0: 25, 1: 25, 2: 25}


def test_offsets_that_are_not_ours_are_refused(group: Group, somebody: Foreign) -> None:
    """If one partition or offset is not allowed, the whole call is refused."""
    one = group.member(**KAFKA, **BY_HAND)
    one.connector.commit_offsets()
    with pytest.raises(NotOwnedError):
        one.connector.commit_offsets({group.tp(0): 5})
    one.subscribe(group.topic)
    one.settled(0, 1, 2)
    foreign_one = group.tp(3)
    with pytest.raises(NotOwnedError, match=str(foreign_one)):
        one.connector.commit_offsets({group.tp(0): 5, foreign_one: 5})
    for bad in (-1, 2**63, True, "5"):
        with pytest.raises(ConfigError, match="is not an offset"):
            one.connector.commit_offsets({group.tp(0): bad})  # type: ignore[dict-item]  # wrong types
    assert somebody.offsets(0, 1, 2) == {}


def test_a_member_of_the_new_kind_is_named(group: Group, cluster: Sandbox) -> None:
    """While a new consumer is in the group, commits fail, and the error has a remedy."""
    if cluster.broker.release == "0.8.2.2":
        return  # these brokers do not support groups of the new consumer
    one = group.join(**KAFKA, **BY_HAND)
    one.read(3 * MESSAGES)
    with (
        new_style_member(cluster.zookeeper_connect, group.name, group.topic),
        pytest.raises(CommitError, match=r"a new consumer.*another group\.id"),
    ):
        one.connector.commit_offsets()
    # The new consumer has left; after some time the coordinator considers the group empty.
    assert until(lambda: _commits(one), limit_s=LIMIT_S)


def _commits(one: MemberUnderTest) -> bool:
    try:
        one.connector.commit_offsets()
    except CommitError:
        return False
    return True


def test_a_commit_outlasts_a_restart(unique: Callable[[str], str]) -> None:
    """While the broker is down the commit is retried, and is stored when the broker is back."""
    with Sandbox(tick_time_s=0.1) as servers, ExitStack() as stack:
        group = _group(servers, unique, stack)
        one = group.join(**KAFKA, **BY_HAND, **PATIENT)
        one.read(MESSAGES)
        servers.broker.kill()
        done = threading.Thread(
            target=lambda: one.connector.commit_offsets(retries=1000), daemon=True
        )
        done.start()
        eventually(lambda: one.counted.get("commit_retried", 0) >= 2)
        assert done.is_alive()
        servers.broker.start()
        done.join(LIMIT_S)
        assert not done.is_alive()
        with foreign(servers.zookeeper_connect, group.name, group.topic) as somebody:
            assert somebody.offsets(0) == {0: MESSAGES}


def test_a_commit_follows_the_coordinator(unique: Callable[[str], str]) -> None:
    """If the coordinator dies, the commit goes to the next coordinator."""
    replicated = {"offsets.topic.replication.factor": 2}
    with Sandbox(tick_time_s=0.1, brokers=2, overrides=replicated) as servers, ExitStack() as stack:
        group = _group(servers, unique, stack, replicas=2)
        one = group.join(**KAFKA, **BY_HAND, **PATIENT)
        one.read(MESSAGES)
        one.connector.commit_offsets({group.tp(0): 7})
        number = coordinator_of(servers.broker.bootstrap, group.name)
        assert number is not None
        servers.brokers[number].kill()
        with foreign(servers.zookeeper_connect, group.name, group.topic) as somebody:
            assert somebody.offsets(0) == {0: 7}
            one.connector.commit_offsets(retries=1000)
            assert somebody.offsets(0) == {0: MESSAGES}
        assert coordinator_of(servers.brokers[1 - number].bootstrap, group.name) == 1 - number


PATIENT = {"offsets_channel_socket_timeout_s": 1.0, "offsets_channel_backoff_s": 0.1}


def _group(
    servers: Sandbox, unique: Callable[[str], str], stack: ExitStack, *, replicas: int = 1
) -> Group:
    """A group, and a topic with one partition of twenty messages."""
    topic = unique("stored")
    servers.create_topic(topic, replicas=replicas)
    servers.produce(topic, MESSAGES)
    return Group(servers, unique("group"), topic, stack)
