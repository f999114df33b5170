"""ZookeeperConsumerConnectorTest of the Scala and the Java API, run on a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.members.group import Group, MemberUnderTest, Reader
from support.wait import LIMIT_S, eventually

from zkconsumer.errors import ConsumerTimeoutError, MessageStreamsExistError
from zkconsumer.protocol import paths
from zkconsumer.sandbox import Sandbox


def _send(group: Group, count: int) -> None:
    """Produce this number of messages to each of the two partitions."""
    for partition in range(2):
        values = [f"{partition}-{number}" for number in range(count)]
        group.sandbox.produce(group.topic, values, partition=partition)


def test_basic(group: Group) -> None:
    """ZookeeperConsumerConnectorTest.testBasic: a timeout; then one member, two, an idle one."""
    none = group.member("consumer0", consumer_timeout_s=0.2)
    (stream,) = none.connector.create_message_streams({group.topic: 1})[group.topic]
    for _ in range(2):
        with pytest.raises(ConsumerTimeoutError):
            next(stream)
    none.close()

    _send(group, 2)
    first = group.join("consumer1")
    first.read(4)
    assert group.owners() == [f"{group.name}_consumer1-0"] * 2
    first.connector.commit_offsets()

    second = group.join("consumer2", rebalance_backoff_s=5.0)
    halves = [f"{group.name}_consumer1-0", f"{group.name}_consumer2-0"]
    eventually(lambda: group.owners() == halves)
    _send(group, 2)
    second.read(2)
    first.read(6)

    third = group.member("consumer3")
    assert third.connector.create_message_streams({}) == {}
    eventually(lambda: len(group.admin.get_children(paths.ids(group.name))) == 3)
    _send(group, 2)
    first.read(8)
    second.read(4)
    assert group.owners() == halves
    assert [m.value for m in first.readers[0].messages[-4:]] == [b"0-0", b"0-1"] * 2
    assert [m.value for m in second.readers[0].messages] == [b"1-0", b"1-1"] * 2
    with pytest.raises(MessageStreamsExistError):
        third.connector.create_message_streams({})


def test_decoder(group: Group) -> None:
    """ZookeeperConsumerConnectorTest.testConsumerDecoder: the decoder returns texts."""
    _send(group, 2)
    one = group.member("consumer0", consumer_timeout_s=LIMIT_S)
    (stream,) = one.connector.create_message_streams({group.topic: 1}, value_decoder=bytes.decode)[
        group.topic
    ]
    assert sorted(next(stream).value for _ in range(4)) == ["0-0", "0-1", "1-0", "1-1"]


def test_one_partition(group: Group, sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """ZookeeperConsumerConnectorTest.testLeaderSelectionForPartition: one member owns and reads."""
    group.topic = unique("single")
    sandbox.create_topic(group.topic, partitions=1)
    sandbox.produce(group.topic, 100, partition=0)
    one = group.join("consumer1")
    one.read(100)
    assert {name: list(held) for name, held in one.status.owned.items()} == {
        f"{group.name}_consumer1-0": [group.tp(0)]
    }
    assert group.owners()[:1] == [f"{group.name}_consumer1-0"]
    assert [m.value for m in one.readers[0].messages] == [b"%d" % n for n in range(100)]


def test_two_streams(group: Group) -> None:
    """javaapi ZookeeperConsumerConnectorTest.testBasic: two streams yield all sent messages."""
    _send(group, 4)
    one: MemberUnderTest = group.member("consumer1")
    streams = one.connector.create_message_streams({group.topic: 2}, value_decoder=bytes.decode)
    one.readers += [Reader(stream) for stream in streams[group.topic]]
    for reader in one.readers:
        reader.start()
    eventually(lambda: all(len(reader.messages) == 4 for reader in one.readers))
    found = {m.value for reader in one.readers for m in reader.messages}
    assert found == {f"{partition}-{number}" for partition in range(2) for number in range(4)}
    with pytest.raises(MessageStreamsExistError):
        one.connector.create_message_streams({group.topic: 2})


def test_fetching(group: Group) -> None:
    """FetcherTest.testFetcher: exactly two messages arrive, and then exactly two more."""
    one = group.join("consumer1")
    (reader,) = one.readers
    for count in (2, 4):
        group.sandbox.produce(group.topic, 2, partition=0)
        one.read(count)
        timeouts = reader.timeouts
        eventually(lambda timeouts=timeouts: reader.timeouts > timeouts + 1)
        assert [message.offset for message in reader.messages] == list(range(count))


def test_a_closed_member_leaves_no_node(group: Group) -> None:
    """ZKEphemeralTest.testEphemeralNodeCleanup: closing a connector deletes its ephemerals."""
    one = group.join("consumer1")
    one.settled(0, 1)
    assert group.owners() == [f"{group.name}_consumer1-0"] * 2
    one.close()
    eventually(lambda: not group.admin.get_children(paths.ids(group.name)))
    assert group.owners() == []
