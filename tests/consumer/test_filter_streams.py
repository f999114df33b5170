"""On a real broker, streams of a filter deliver every matching topic from its creation on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.members.group import Group, Reader
from support.wait import eventually

from zkconsumer import ConsumerConnector, black_list, white_list
from zkconsumer.errors import ConfigError, MessageStreamsExistError


def test_topics_join_a_filter_s_streams_as_they_are_created(
    group: Group, unique: Callable[[str], str]
) -> None:
    """Two threads share every matching topic; a topic that is created later needs no restart."""
    family = unique("family")
    topics = [f"{family}.{number}" for number in range(3)]

    def create(topic: str) -> None:
        group.sandbox.create_topic(topic, partitions=2)
        for partition in range(2):
            group.sandbox.produce(topic, [topic] * 5, partition=partition)

    create(topics[0])
    create(topics[1])
    one = group.member()
    streams = one.connector.create_message_streams_by_filter(
        white_list(f"{family}[.].*"), 2, value_decoder=bytes.decode
    )
    one.readers += [Reader(stream) for stream in streams]
    for reader in one.readers:
        reader.start()

    def seen() -> set[tuple[int, str, int, int, str]]:
        return {
            (number, m.topic, m.partition, m.offset, m.value)
            for number, reader in enumerate(one.readers)
            for m in reader.messages
        }

    def expected(count: int) -> set[tuple[int, str, int, int, str]]:
        # With range, the stream of the first thread gets the first partition of each topic.
        return {
            (number, topic, number, offset, topic)
            for topic in topics[:count]
            for number in range(2)
            for offset in range(5)
        }

    eventually(lambda: seen() == expected(2))
    create(topics[2])
    eventually(lambda: seen() == expected(3))
    one.connector.commit_offsets()
    assert sum(len(held) for held in one.status.owned.values()) == 6
    assert sum(len(reader.messages) for reader in one.readers) == 30


def test_streams_are_made_once(group: Group) -> None:
    """Streams are created by one call of one method; an invalid number of streams is refused."""
    listed, filtered = group.member("listed"), group.member("filtered")
    wanted = black_list(f"(?!{group.topic}).*")
    for number in (0, -1):
        with pytest.raises(ConfigError, match="the number of streams is"):
            filtered.connector.create_message_streams_by_filter(wanted, number)
    listed.connector.create_message_streams({group.topic: 1})
    filtered.connector.create_message_streams_by_filter(wanted)

    def again(connector: ConsumerConnector) -> None:
        with pytest.raises(MessageStreamsExistError):
            connector.create_message_streams({group.topic: 1})
        with pytest.raises(MessageStreamsExistError):
            connector.create_message_streams_by_filter(wanted)

    again(listed.connector)
    again(filtered.connector)
