"""Messages as brokers keep them: written in every form, looked at on the disk, read without us."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from zkconsumer.sandbox import Sandbox, jars
from zkconsumer.sandbox.jars import find_java
from zkconsumer.sandbox.topics import client_settings

CODECS = ("none", "gzip", "snappy", "lz4")

# Seconds for one request, and for a whole JVM that runs a tool.
REQUEST_S, TOOL_S = 30.0, 120.0
# Bytes; the JVM's default of 1,000,012 for a broker does not take a message of one MiB.
LARGE = {"max.message.bytes": 2 * 1024 * 1024}

Keyed = tuple[str | bytes | None, str | bytes | None]


def producer(sandbox: Sandbox, **settings: Any) -> Producer:
    """A librdkafka producer that puts together what is produced within a twentieth of a second."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    own = {"linger.ms": 50, "message.max.bytes": 2_000_000, "log_level": 0}
    return Producer({**client_settings(sandbox.zookeeper_connect), **own, **named})


def write(
    sandbox: Sandbox, topic: str, messages: Iterable[Keyed], *, partition: int, codec: str
) -> None:
    """Produce to one partition, and wait until all is in its log.

    Nothing is sent before the last is there (the flush ends the waiting): of the few that a slow
    machine gets together in time, librdkafka sends uncompressed what compression would not shrink.
    The leader is known before the first: messages that wait for it come to it one by one.
    """
    failed: list[Any] = []
    one = producer(sandbox, compression_codec=codec, linger_ms=1000 * REQUEST_S)
    one.list_topics(topic, REQUEST_S)
    for key, value in messages:
        one.produce(
            topic,
            value,
            key,
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert one.flush(REQUEST_S) == 0
    assert not failed, failed


def contents(sandbox: Sandbox, topic: str, partition: int = 0) -> list[Message]:
    """All that is in a partition's log, aborted transactions included, read by librdkafka alone."""
    consumer = Consumer(
        {
            **client_settings(sandbox.zookeeper_connect),
            "group.id": "contents",
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        first, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), REQUEST_S)
        consumer.assign([TopicPartition(topic, partition, first)])
        found: list[Message] = []
        while True:
            message = consumer.poll(REQUEST_S)
            assert message is not None, f"nothing more after {len(found)} messages"
            if message.error():
                return found  # its end, the only error without a fault
            found.append(message)
    finally:
        consumer.close()


class Kept(NamedTuple):
    """How a message, or a set or batch of them, lies on the disk; `codec` as in `CODECS`."""

    magic: int
    codec: str
    raw: bytes


def kept(sandbox: Sandbox, topic: str, partition: int = 0) -> list[Kept]:
    """The entries of a partition's segments: messages of formats v0 and v1, or batches of v2."""
    folder = sandbox.broker.directory / "data" / f"{topic}-{partition}"
    return [one for segment in sorted(folder.glob("*.log")) for one in _entries(segment)]


def _entries(segment: Path) -> Iterable[Kept]:
    data, at = segment.read_bytes(), 0
    while at + 17 < len(data):
        # Offset (8 bytes), size (4), then 4 bytes of another meaning in each format, then magic.
        size = int.from_bytes(data[at + 8 : at + 12])
        if size == 0:
            return  # preallocated
        magic = data[at + 16]
        attributes = data[at + 17] if magic < 2 else data[at + 22]
        yield Kept(magic, CODECS[attributes & 7], data[at : at + 12 + size])
        at += 12 + size


@contextmanager
def tool(release: str, main_class: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A tool of that release of Kafka, with pipes; the block's end is the end of its input."""
    class_path = os.pathsep.join(map(str, jars.resolve(f"kafka-{release}")))
    process = subprocess.Popen(
        [
            str(find_java().executable),
            "-Xmx128m",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            class_path,
            main_class,
            *arguments,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            yield process
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(TOOL_S) == 0
        finally:
            process.kill()
