"""Like the old consumer, streams ignore transactions: they deliver every message in the log."""

from __future__ import annotations

import pytest
from support.kafka.logs import REQUEST_S, contents, producer, tool
from support.kafka.streams import assert_engines_agree
from support.members.group import Group

from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox

pytestmark = pytest.mark.since("0.11.0.3")
COMMITTED, ABORTED = "committed", "aborted"


def _transact(cluster: Sandbox, topic: str, *ends: str) -> None:
    """For each value in `ends`, write a transaction of five messages, from this value on."""
    one = producer(cluster, transactional_id=topic)
    one.init_transactions(REQUEST_S)
    for end in ends:
        one.begin_transaction()
        for number in range(5):
            one.produce(topic, f"{end} {number}", partition=0)
        assert one.flush(REQUEST_S) == 0
        if end == COMMITTED:
            one.commit_transaction(REQUEST_S)
        else:
            one.abort_transaction(REQUEST_S)


def test_every_message_comes_and_no_marker_does(group: Group, cluster: Sandbox) -> None:
    """Aborted messages are delivered, as in the JVM's old consumer; markers are skipped."""
    _transact(cluster, group.topic, COMMITTED, ABORTED, COMMITTED)
    one = group.join()
    one.read(15)
    # A control batch takes one offset after every five messages.
    assert one.readers[0].offsets(0) == [*range(5), *range(6, 11), *range(12, 17)]
    values = [message.value.decode().split()[0] for message in one.readers[0].messages]
    assert values == [COMMITTED] * 5 + [ABORTED] * 5 + [COMMITTED] * 5
    one.close()
    assert len(assert_engines_agree(cluster, TopicPartition(group.topic, 0), 0, 17)) == 15
    assert group.stored(0) == "17"
    # A marker is between the last message and the log's end; the consumer must skip the marker.
    cluster.produce(group.topic, 1, partition=0)
    again = group.join("again")
    again.read(1)
    assert again.readers[0].offsets(0) == [18]


def test_messages_of_an_open_transaction_are_delivered(group: Group, cluster: Sandbox) -> None:
    """Messages of an open transaction and later messages are delivered without waiting."""
    one = group.join()
    open_one = producer(cluster, transactional_id=group.topic)
    open_one.init_transactions(REQUEST_S)
    open_one.begin_transaction()
    open_one.produce(group.topic, "open", partition=0)
    assert open_one.flush(REQUEST_S) == 0
    cluster.produce(group.topic, 1, partition=0)
    one.read(2)
    assert one.readers[0].offsets(0) == [0, 1]
    open_one.abort_transaction(REQUEST_S)


def test_the_jvms_consumer_reads_the_same_messages(group: Group, cluster: Sandbox) -> None:
    """From the same log, the JVM's old consumer prints the same messages."""
    _transact(cluster, group.topic, COMMITTED, ABORTED)
    kept = [message.value().decode() for message in contents(cluster, group.topic)]
    with tool(
        "1.1.1",
        "kafka.tools.ConsoleConsumer",
        "--zookeeper",
        cluster.zookeeper_connect,
        "--topic",
        group.topic,
        "--from-beginning",
        "--max-messages",
        "10",
    ) as process:
        assert process.stdout is not None
        said = process.stdout.read()
    one = group.join()
    one.read(10)
    assert [message.value.decode() for message in one.readers[0].messages] == kept
    assert said.splitlines() == kept
