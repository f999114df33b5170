"""Like the old consumer, streams ignore transactions: they deliver every message in the log."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from support.kafka.logs import (
    ABORTED,
    COMMITTED,
    REQUEST_S,
    contents,
    open_transaction,
    producer,
    tool,
    transact,
)
from support.kafka.streams import assert_engines_agree
from support.members.group import Group
from support.wait import eventually

from zkconsumer.kafka.engines import OWN_CLIENTS
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox

pytestmark = pytest.mark.since("0.11.0.3")


def test_every_message_comes_and_no_marker_does(group: Group, cluster: Sandbox) -> None:
    """Aborted messages are delivered, as in the JVM's old consumer; markers are skipped."""
    transact(cluster, group.topic, COMMITTED, ABORTED, COMMITTED)
    one = group.join()
    one.read(15)
    # A control batch takes one offset after every five messages.
    assert one.readers[0].offsets(0) == [*range(5), *range(6, 11), *range(12, 17)]
    values = [message.value.decode().split()[0] for message in one.readers[0].messages]
    assert values == [COMMITTED] * 5 + [ABORTED] * 5 + [COMMITTED] * 5
    tp = TopicPartition(group.topic, 0)
    eventually(lambda: one.connector.position(tp) == 18)
    one.close()
    assert len(assert_engines_agree(cluster, tp, 0, 17)) == 15
    # The last offset of the log is a marker.
    assert group.stored(0) == "18"
    cluster.produce(group.topic, 1, partition=0)
    again = group.join("again")
    again.read(1)
    assert again.readers[0].offsets(0) == [18]


@pytest.mark.parametrize("engine", ["librdkafka", "columns"])
@pytest.mark.parametrize("threads", [1, OWN_CLIENTS + 1])
def test_the_position_moves_over_a_marker_at_the_end(
    group: Group, cluster: Sandbox, engine: str, threads: int
) -> None:
    """A member that starts at a marker has no lag, and commits the end of the log."""
    transact(cluster, group.topic, COMMITTED)
    group.write(0, b"5")
    one = group.join(threads=threads, fetch_engine=engine, auto_commit_interval_s=0.1)
    tp = TopicPartition(group.topic, 0)
    eventually(lambda: one.connector.lag().get(tp) == 0)
    eventually(lambda: group.stored(0) == "6")
    assert one.connector.position(tp) == 6


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
    transact(cluster, group.topic, COMMITTED, ABORTED)
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


@pytest.mark.parametrize("engine", ["librdkafka", "columns"])
def test_committed_messages_only(group: Group, cluster: Sandbox, engine: str) -> None:
    """With read_committed no aborted message is delivered, and the log ends before open ones."""
    values = interleaved(cluster, group.topic)
    tp = TopicPartition(group.topic, 0)
    with open_transaction(cluster, group.topic):
        one = group.join(fetch_engine=engine, isolation_level="read_committed")
        one.read(len(values))
        end = one.connector.end_offsets([tp])[tp]
        eventually(lambda: one.connector.position(tp) == end)
        eventually(lambda: one.connector.lag().get(tp) == 0)
        assert [message.value.decode() for message in one.readers[0].messages] == values
        assert (
            end == one.readers[0].messages[-1].offset + 1 + 2 + 3 + 1
        )  # two markers, and the aborted end
    eventually(lambda: one.connector.position(tp) == end + 2)
    assert len(one.readers[0].messages) == len(values)


def interleaved(cluster: Sandbox, topic: str) -> list[str]:
    """Write transactions of two producers, which overlap; return the committed values.

    The last transaction is aborted. The producer of an aborted transaction also commits one.
    """
    first, second = (producer(cluster, transactional_id=f"{topic}-{n}") for n in range(2))

    def write(one: Producer, value: str) -> None:
        one.begin_transaction()
        for number in range(3):
            one.produce(topic, f"{value} {number}", partition=0)
        assert one.flush(REQUEST_S) == 0

    for one in (first, second):
        one.init_transactions(REQUEST_S)
    write(first, "aborted")
    write(second, "kept")
    first.abort_transaction(REQUEST_S)
    write(first, "kept, too")
    second.commit_transaction(REQUEST_S)
    first.commit_transaction(REQUEST_S)
    write(second, "aborted")
    second.abort_transaction(REQUEST_S)
    return [f"{value} {number}" for value in ("kept", "kept, too") for number in range(3)]
