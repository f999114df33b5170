"""The stream of a filter whose topics are created and deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from support.kafka.streams import KafkaLog, Log, MemoryLog, Reader, log_cases
from support.wait import eventually

from zkconsumer.consumer.stream_partitions import CommitScope
from zkconsumer.errors import ConsumerTimeoutError
from zkconsumer.kafka.fetcher import AutoOffsetReset
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox


@pytest.fixture(params=log_cases("memory", "kafka"))
def logs(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> list[Log]:
    """Three topics of two partitions, with 500 messages in each partition."""
    logs: list[Log] = []
    changed = threading.Condition()
    for number in range(3):
        topic = unique(f"many{number}")
        if request.param == "memory":
            logs.append(MemoryLog(topic, changed))
        else:
            sandbox: Sandbox = request.getfixturevalue("sandbox")
            sandbox.create_topic(topic, partitions=2)
            logs.append(KafkaLog(topic, sandbox))
    for log in logs:
        for partition in range(2):
            log.append(partition, (f"{log.topic}-{partition}-{n}" for n in range(500)))
    return logs


@pytest.fixture
def reader(logs: list[Log]) -> Iterator[Reader]:
    reader = Reader(*logs)
    yield reader
    reader.stream.close()


@pytest.mark.parametrize("way", ["iterate", "poll"])
def test_every_message_says_its_topic_and_its_token(
    logs: list[Log], reader: Reader, way: str
) -> None:
    """Partitions with the same number in different topics have their own positions and tokens."""
    tps = [log.tp(partition) for log in logs for partition in range(2)]
    tokens = {tp: reader.grant(tp, 0) for tp in tps}
    seen: dict[TopicPartition, list[int]] = {tp: [] for tp in tps}
    while sum(map(len, seen.values())) < 3000:
        for message in [next(reader.stream)] if way == "iterate" else reader.stream.poll():
            tp = TopicPartition(message.topic, message.partition)
            seen[tp].append(message.offset)
            assert message.token == tokens[tp]
            assert message.value == f"{tp}-{message.offset}".encode()
    assert seen == {tp: list(range(500)) for tp in tps}
    assert {tp: at.offset for tp, at in reader.stream.positions(CommitScope.DELIVERED).items()} == (
        dict.fromkeys(tps, 500)
    )


def test_topics_come_and_go(logs: list[Log], reader: Reader) -> None:
    """A revoked topic stops within a fetched buffer; a new topic is delivered at once."""
    first, second, third = (log.tp(0) for log in logs)
    reader.grant(first, 0)
    reader.grant(second, 0)
    seen = {first: 0, second: 0, third: 0}

    def read_until(goal: Callable[[], bool]) -> None:
        while not goal():
            message = next(reader.stream)
            tp = TopicPartition(message.topic, message.partition)
            assert message.offset == seen[tp]
            seen[tp] += 1

    read_until(lambda: seen[first] >= 3)
    reader.stream.withdraw([first])
    stopped_at = seen[first]
    reader.grant(third, 0)
    read_until(lambda: seen[second] == seen[third] == 500)
    assert seen[first] == stopped_at


def test_positions_of_several_topics_are_resolved_together(logs: list[Log]) -> None:
    """Without stored offsets, `largest` applies to each partition; then messages are delivered."""
    reader = Reader(*logs, reset=AutoOffsetReset.LARGEST)
    tps = [log.tp(partition) for log in logs for partition in range(2)]
    for tp in tps:
        reader.grant(tp, None)

    def known() -> bool:
        reader.stream.poll(timeout_s=0.05)
        return len(reader.stream.positions(CommitScope.DELIVERED)) == len(tps)

    eventually(known)
    assert {one.tp: one.offset for one in reader.news} == dict.fromkeys(tps, 500)
    logs[1].append(1, ["new"])
    message = next(reader.stream)
    assert (message.topic, message.partition, message.offset) == (logs[1].topic, 1, 500)
    reader.stream.close()


def test_a_time_out_names_no_topic(logs: list[Log]) -> None:
    """The ConsumerTimeoutError of a filter's stream names its thread, but no topic."""
    reader = Reader(*logs, timeout_s=0.01)
    with pytest.raises(ConsumerTimeoutError, match=r"^no message within 0.01 s \(thread tests_"):
        next(reader.stream)
    reader.stream.close()
