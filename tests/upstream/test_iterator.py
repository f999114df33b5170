"""ConsumerIteratorTest: a stream that begins inside a set, and a decoder that always fails."""

from __future__ import annotations

from typing import NoReturn

import pytest
from support.kafka.logs import Keyed, write
from support.members.group import Group
from support.wait import LIMIT_S

from zkconsumer.errors import DecodeError


def _send(group: Group, codec: str) -> None:
    values: list[Keyed] = [(None, str(number)) for number in range(10)]
    write(group.sandbox, group.topic, values, partition=0, codec=codec)
    group.write(0, b"5")


def test_begins_inside_a_compressed_set(group: Group) -> None:
    """ConsumerIteratorTest.testConsumerIteratorDeduplicationDeepIterator: only "5" to "9" come."""
    _send(group, "gzip")
    one = group.member("consumer1", consumer_timeout_s=LIMIT_S)
    (stream,) = one.connector.create_message_streams({group.topic: 1}, value_decoder=bytes.decode)[
        group.topic
    ]
    found = [next(stream) for _ in range(5)]
    assert [(m.offset, m.value) for m in found] == [(n, str(n)) for n in range(5, 10)]
    one.connector.shutdown()
    with pytest.raises(StopIteration):
        next(stream)


def test_a_decoder_that_always_fails(group: Group) -> None:
    """ConsumerIteratorTest.testConsumerIteratorDecodingFailure: offsets work, values raise."""

    def fail(_: bytes) -> NoReturn:
        raise NotImplementedError("this decoder does not work at all")

    _send(group, "none")
    one = group.member("consumer1", consumer_timeout_s=LIMIT_S)
    (stream,) = one.connector.create_message_streams({group.topic: 1}, value_decoder=fail)[
        group.topic
    ]
    for offset in range(5, 10):
        message = next(stream)
        assert message.offset == offset
        with pytest.raises(DecodeError, match="does not work at all"):
            _ = message.value
