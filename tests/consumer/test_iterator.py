"""The claims of upstream's ConsumerIteratorTest, and large messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from support.kafka.streams import KafkaLog, Reader, settings_for
from support.wait import LIMIT_S

from zkconsumer.consumer.stream_partitions import Codec
from zkconsumer.errors import ConnectorClosedError, DecodeError
from zkconsumer.kafka.librdkafka import KafkaFetcher
from zkconsumer.sandbox import Sandbox


@pytest.fixture
def log(sandbox: Sandbox, unique: Callable[[str], str]) -> KafkaLog:
    """A topic of one empty partition."""
    topic = unique("iterator")
    sandbox.create_topic(topic, partitions=1)
    return KafkaLog(topic, sandbox)


def append_set(log: KafkaLog, codec: str) -> None:
    """Append ten messages, "0" to "9", in one message set."""
    producer = Producer(
        {"bootstrap.servers": log.sandbox.bootstrap, "compression.type": codec, "linger.ms": 500}
    )
    for number in range(10):
        producer.produce(log.topic, str(number).encode(), partition=0)
    assert producer.flush(LIMIT_S) == 0


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_set_that_begins_before_the_position(log: KafkaLog, codec: str) -> None:
    """ConsumerIteratorTest.testConsumerIteratorDeduplicationDeepIterator: only 5 to 9 are read."""
    append_set(log, codec)
    reader = Reader(log)
    reader.grant(0, 5)
    assert [next(reader.stream).value for _ in range(5)] == [b"5", b"6", b"7", b"8", b"9"]
    reader.stream.close()
    assert list(reader.stream) == []
    with pytest.raises(StopIteration):
        next(reader.stream)
    with pytest.raises(ConnectorClosedError):
        reader.stream.poll()


def test_decoders_that_always_fail(log: KafkaLog) -> None:
    """ConsumerIteratorTest.testConsumerIteratorDecodingFailure: only reading the value raises."""

    def fail(raw: bytes) -> object:
        raise NotImplementedError("This decoder does not work.")

    append_set(log, "none")
    reader = Reader(log, codec=Codec(value=fail))
    reader.grant(0, 5)
    for offset in range(5, 10):
        message = next(reader.stream)
        assert message.offset == offset
        with pytest.raises(DecodeError, match="This decoder does not work"):
            _ = message.value
    reader.stream.close()


def test_messages_larger_than_a_fetch_are_delivered(log: KafkaLog) -> None:
    """The fetch size grows for a larger message; the JVM raises MessageSizeTooLargeException."""
    sizes = [0, 990_000, 1, 900_000, 10]
    for size in sizes:
        log.append(0, [b"x" * size])
    settings = settings_for(log.sandbox.bootstrap, fetch_message_max_bytes=1000)
    reader = Reader(log, connect=lambda: KafkaFetcher(settings))
    reader.grant(0, 0)
    # The type stubs do not know that a value is bytes if there is no decoder.
    assert [len(next(reader.stream).value or b"") for _ in sizes] == sizes  # type: ignore[arg-type]
    reader.stream.close()
