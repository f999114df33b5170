"""Messages on brokers of every release are read as they were written, in each format."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support.kafka.logs import CODECS, LARGE, Keyed, contents, kept, tool, write
from support.kafka.streams import assert_engines_agree
from support.members.group import Group, MemberUnderTest, Reader
from support.wait import LIMIT_S, eventually

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.process import until

MIB = 1 << 20
# The broker's own format, and the formats that a topic may set; 3.9 ignores the setting.
FORMATS: dict[str, dict[str, int]] = {
    "0.8.2.2": {"": 0},
    "0.9.0.1": {"": 0},
    "0.10.2.2": {"": 1, "0.9.0.1": 0},
    "0.11.0.3": {"": 2, "0.10.2": 1, "0.9.0.1": 0},
    "1.1.1": {"": 2, "0.10.2": 1, "0.9.0.1": 0},
    "3.9.1": {"": 2},
}


def _messages() -> list[Keyed]:
    odd: list[Keyed] = [(None, None), ("k", None), (None, ""), ("", ""), ("k", "v")]
    # librdkafka keeps compressed data only if it is smaller: small messages and noise stay
    # uncompressed.
    large = b"".join(os.urandom(512) + bytes(512) for _ in range(MIB // 1024))
    return [*odd, *((f"{n % 7}", f"{n}") for n in range(200)), ("large", large)]


def _wire(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _read(one: MemberUnderTest, partition: int) -> list[tuple[int, bytes | None, bytes | None]]:
    reader: Reader = one.readers[0]
    seen = [message for message in reader.messages if message.partition == partition]
    return [(message.offset, message.key, message.value) for message in seen]


def test_every_codec_in_every_format(
    group: Group, cluster: Sandbox, unique: Callable[[str], str]
) -> None:
    """Null, empty and 1 MiB messages are delivered once, with the contents produced."""
    messages = _messages()
    expected = [(n, _wire(key), _wire(value)) for n, (key, value) in enumerate(messages)]
    for version, magic in FORMATS[cluster.broker.release].items():
        topic = unique("format")
        told = {"message.format.version": version} if version else {}
        cluster.create_topic(topic, partitions=len(CODECS), config=LARGE | told)
        for partition, codec in enumerate(CODECS):
            write(cluster, topic, messages, partition=partition, codec=codec)
            entries = kept(cluster, topic, partition)
            assert {(one.magic, one.codec) for one in entries} == {(magic, codec)}
            assert codec == "none" or len(entries) < len(messages) / 2
        one = group.member(unique("m"))
        one.subscribe(topic)
        one.read(len(CODECS) * len(messages))
        for partition in range(len(CODECS)):
            assert _read(one, partition) == expected
            tp = TopicPartition(topic, partition)
            assert len(assert_engines_agree(cluster, tp, 0, len(messages))) == len(messages)
        stamped = {message.timestamp is not None for message in one.readers[0].messages}
        assert stamped == {magic > 0}
        assert not one.readers[0].errors
        one.close()


@pytest.mark.parametrize("codec", CODECS[1:])
def test_the_release_s_own_producer(
    group: Group, cluster: Sandbox, unique: Callable[[str], str], codec: str
) -> None:
    """Data that a JVM compressed, even in lz4's wrong frames, is read from within a batch."""
    release, topic = cluster.broker.release, unique("own")
    cluster.create_topic(topic)
    with tool(
        release,
        "kafka.tools.ConsoleProducer",
        "--broker-list",
        cluster.bootstrap,
        "--topic",
        topic,
        "--compression-codec",
        codec,
    ) as process:
        assert process.stdin is not None
        process.stdin.writelines(f"{n}\n" for n in range(500))
        process.stdin.flush()
        # At the end of its input, the producer of 0.9 does not wait for its messages.
        eventually(lambda: len(contents(cluster, topic)) == 500)
    entries = kept(cluster, topic)
    assert {one.codec for one in entries} == {codec}
    if codec == "lz4" and release in ("0.8.2.2", "0.9.0.1"):
        # The frame header has the magic number and flags, then a checksum, which would be 82 over
        # 60 40 alone.
        frames = [one.raw.partition(b"\x04\x22\x4d\x18\x60\x40")[2][:1] for one in entries]
        assert b"\x82" not in frames and b"" not in frames
    written = [(n, b"%d" % n) for n in range(500)]
    group.topic = topic
    group.write(0, b"123")
    one = group.join()
    one.read(377)
    assert [(m.offset, m.value) for m in one.readers[0].messages] == written[123:]
    assert len(assert_engines_agree(cluster, TopicPartition(topic, 0), 123, 500)) == 377


def test_gzip_in_a_group(group: Group, cluster: Sandbox, unique: Callable[[str], str]) -> None:
    """ZookeeperConsumerConnectorTest.testCompression: the owners and messages of 1 to 3 members."""
    topic = group.topic = unique("gzip")
    cluster.create_topic(topic, partitions=2)

    def send() -> None:
        for partition in range(2):
            two: list[Keyed] = [(None, f"{partition}-{n}") for n in range(2)]
            write(cluster, topic, two, partition=partition, codec="gzip")

    send()
    first = group.join("consumer1")
    first.read(4)
    assert group.owners() == [f"{group.name}_consumer1-0"] * 2
    first.connector.commit_offsets()
    second = group.join("consumer2")
    halves = [f"{group.name}_consumer1-0", f"{group.name}_consumer2-0"]
    eventually(lambda: group.owners() == halves)
    send()
    second.read(2)
    first.read(6)
    third = group.member("consumer3")
    assert third.connector.create_message_streams({}) == {}
    eventually(lambda: len(group.admin.get_children(paths.ids(group.name))) == 3)
    send()
    first.read(8)
    second.read(4)
    assert group.owners() == halves
    assert first.readers[0].offsets(0) == [0, 1, 2, 3, 4, 5]
    assert first.readers[0].offsets(1) == [0, 1]
    assert second.readers[0].offsets(1) == [2, 3, 4, 5]


def test_a_topic_with_a_short_name(group: Group, cluster: Sandbox) -> None:
    """A topic of one letter with one partition is read; librdkafka alone rejects its metadata."""
    topic = group.topic = "s"
    cluster.create_topic(topic)
    write(cluster, topic, [(None, "1"), (None, "2")], partition=0, codec="none")
    one = group.join()
    one.read(2)
    assert one.readers[0].offsets(0) == [0, 1]
    assert [message.value() for message in contents(cluster, topic)] == [b"1", b"2"]


def test_compressed_sets(group: Group, cluster: Sandbox, unique: Callable[[str], str]) -> None:
    """ZookeeperConsumerConnectorTest.testCompressionSetConsumption: 200 messages per partition."""
    topic = group.topic = unique("sets")
    cluster.create_topic(topic, partitions=2)
    for partition in range(2):
        many: list[Keyed] = [(None, f"{partition}-{n}") for n in range(200)]
        write(cluster, topic, many, partition=partition, codec="gzip")
    one = group.join("consumer0")
    one.read(400)
    assert [one.readers[0].offsets(partition) for partition in range(2)] == [list(range(200))] * 2
    for partition in range(2):
        assert group.admin.get(group.owner(partition))[0].decode() == f"{group.name}_consumer0-0"


@pytest.mark.real("a fake broker has no log cleaner")
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_compacted_topics(
    group: Group, cluster: Sandbox, unique: Callable[[str], str], codec: str
) -> None:
    """A compacted topic gives its remaining messages once, even from an offset that is missing."""
    topic = group.topic = unique("compacted")
    config = {"cleanup.policy": "compact", "segment.bytes": 8192, "min.cleanable.dirty.ratio": 0.01}
    cluster.create_topic(topic, config=config)
    for _ in range(15):
        some: list[Keyed] = [(f"{n % 7}", os.urandom(50).hex()) for n in range(20)]
        write(cluster, topic, some, partition=0, codec=codec)

    def left() -> list[int]:
        return [message.offset() or 0 for message in contents(cluster, topic)]

    assert until(lambda: len(left()) < 150, limit_s=LIMIT_S), (
        "the log cleaner has not compacted the topic"
    )
    one = group.join()
    eventually(lambda: one.readers[0].offsets(0)[-1:] == [299])
    read = one.readers[0].offsets(0)
    assert read == sorted(set(read))
    # The cleaner may have continued meanwhile, so the remaining messages are a subset of those
    # read.
    assert set(left()) <= set(read)
    one.close()
    assert group.stored(0) == "300"
    group.write(0, b"1")
    again = group.join("again")
    eventually(lambda: again.readers[0].offsets(0)[-1:] == [299])
    assert again.readers[0].offsets(0)[0] > 1
    assert not again.readers[0].errors
    again.close()
    assert_engines_agree(cluster, TopicPartition(topic, 0), 1, 300)
