"""Messages in broker logs: written in every format, parsed on disk, read by other clients."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import Message, Producer

from zkconsumer.protocol.model import TopicPartition as Place
from zkconsumer.sandbox import Sandbox, jars
from zkconsumer.sandbox.jars import find_java
from zkconsumer.sandbox.topics import client_settings
from zkconsumer.testing import FakeCluster

CODECS = ("none", "gzip", "snappy", "lz4")

# Time limits in seconds: of one request, and of a JVM that runs a tool.
REQUEST_S, TOOL_S = 30.0, 120.0
# In bytes; a broker's default of 1,000,012 refuses a message of one MiB.
LARGE = {"max.message.bytes": 2 * 1024 * 1024}

Keyed = tuple[str | bytes | None, str | bytes | None]


def producer(sandbox: Sandbox, **settings: Any) -> Producer:
    """Return a librdkafka producer that sends the messages of a twentieth of a second together."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    own = {"linger.ms": 50, "message.max.bytes": 2_000_000, "log_level": 0}
    return Producer({**client_settings(sandbox.zookeeper_connect), **own, **named})


COMMITTED, ABORTED = "committed", "aborted"


def transact(sandbox: Sandbox, topic: str, *ends: str, partition: int = 0) -> None:
    """For each value in `ends`, write a transaction of five messages, from this value on."""
    one = producer(sandbox, transactional_id=f"{topic}-{partition}")
    one.init_transactions(REQUEST_S)
    for end in ends:
        one.begin_transaction()
        for number in range(5):
            one.produce(topic, f"{end} {number}", partition=partition)
        assert one.flush(REQUEST_S) == 0
        if end == COMMITTED:
            one.commit_transaction(REQUEST_S)
        else:
            one.abort_transaction(REQUEST_S)
    _await_markers(sandbox, f"{topic}-{partition}")


def _await_markers(sandbox: Sandbox, transactional_id: str) -> None:
    """Wait until the log has the marker of the last transaction.

    The coordinator confirms the end of a transaction before it writes the marker. It refuses the
    next producer with this id until the marker is written.
    """
    producer(sandbox, transactional_id=transactional_id).init_transactions(REQUEST_S)


@contextmanager
def open_transaction(
    sandbox: Sandbox, topic: str, values: Iterable[str] = ("open",)
) -> Iterator[None]:
    """Write messages to partition 0 in a transaction, which is aborted at the end of the block."""
    one = producer(sandbox, transactional_id=f"{topic}-open")
    one.init_transactions(REQUEST_S)
    one.begin_transaction()
    for value in values:
        one.produce(topic, value, partition=0)
    assert one.flush(REQUEST_S) == 0
    yield
    one.abort_transaction(REQUEST_S)
    _await_markers(sandbox, f"{topic}-open")


def write(
    sandbox: Sandbox, topic: str, messages: Iterable[Keyed], *, partition: int, codec: str
) -> None:
    """Produce to one partition, and wait until the log has all messages.

    No message is sent before the last one is queued (the flush ends the wait). Otherwise a slow
    machine would send small batches, and librdkafka sends a batch uncompressed if compression does
    not shrink it. The leader is looked up before the first message: messages that wait for a leader
    are sent one by one.
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
    """Return all messages in a partition's log, even aborted ones, as librdkafka reads them."""
    return sandbox.messages(topic, partition=partition)


class StoredFormat(NamedTuple):
    """The format of a message, set or batch on disk; `codec` is a value of `CODECS`."""

    magic: int
    codec: str
    raw: bytes


def kept(cluster: Sandbox | FakeCluster, topic: str, partition: int = 0) -> list[StoredFormat]:
    """Return the entries in a partition's log: messages of v0 and v1, or batches of v2."""
    if isinstance(cluster, FakeCluster):
        return list(_entries(cluster.logs.data(Place(topic, partition))))
    folder = cluster.broker.directory / "data" / f"{topic}-{partition}"
    segments = (segment.read_bytes() for segment in sorted(folder.glob("*.log")))
    return [one for data in segments for one in _entries(data)]


def _entries(data: bytes) -> Iterable[StoredFormat]:
    at = 0
    while at + 17 < len(data):
        # An entry has an offset (8 bytes), a size (4), 4 bytes whose meaning depends on the format,
        # and the magic byte.
        size = int.from_bytes(data[at + 8 : at + 12])
        if size == 0:
            return  # The rest of the file is preallocated.
        magic = data[at + 16]
        attributes = data[at + 17] if magic < 2 else data[at + 22]
        yield StoredFormat(magic, CODECS[attributes & 7], data[at : at + 12 + size])
        at += 12 + size


def java(release: str, main_class: str) -> list[str]:
    """Return the command that runs a program of a Kafka release, without arguments."""
    class_path = os.pathsep.join(map(str, jars.resolve(f"kafka-{release}")))
    options = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", class_path)
    return [str(find_java().executable), *options, main_class]


@contextmanager
def tool(release: str, main_class: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a tool of a Kafka release with pipes; the end of the block closes the tool's input."""
    process = subprocess.Popen(
        [*java(release, main_class), *arguments],
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
