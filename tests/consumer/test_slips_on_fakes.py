"""Slips in the use of streams and futures, on fake servers."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from support.logged import logged
from support.members.group import SETTINGS
from support.wait import LIMIT_S, eventually

from zkconsumer import ConsumerConfig, ConsumerConnector, StreamInUseError, aio
from zkconsumer.consumer.stream import reader_of
from zkconsumer.testing import FakeCluster


@pytest.fixture
def kafka() -> Iterator[FakeCluster]:
    """A fake cluster with an empty topic."""
    with FakeCluster() as kafka:
        kafka.create_topic("t")
        yield kafka


def config(kafka: FakeCluster) -> ConsumerConfig:
    settings = {**SETTINGS, "consumer_timeout_s": LIMIT_S}
    return ConsumerConfig(group_id="g", zookeeper_connect=kafka.zookeeper_connect, **settings)


def test_the_next_message_for_two_threads(kafka: FakeCluster) -> None:
    """A second thread that calls `next` gets StreamInUseError; the first one gets its message."""
    found: list[bytes | None] = []
    with ConsumerConnector(config(kafka)) as connector:
        (stream,) = connector.create_message_streams({"t": 1})["t"]
        thread = threading.Thread(
            target=lambda: found.extend(next(stream).value for _ in range(2)), daemon=True
        )
        thread.start()
        eventually(lambda: reader_of(stream).is_asked)
        for _ in range(2):
            with pytest.raises(StreamInUseError, match="two threads"):
                next(stream)
        kafka.produce("t", ["one", "two"])
        thread.join(LIMIT_S)
    assert found == [b"one", b"two"]


def test_an_iterator_that_two_threads_share(kafka: FakeCluster) -> None:
    """The second thread gets StreamInUseError, and can use the iterator after the first thread."""
    found: list[bytes | None] = []
    with ConsumerConnector(config(kafka)) as connector:
        (stream,) = connector.create_message_streams({"t": 1})["t"]
        messages = iter(stream)
        first_two = itertools.islice(messages, 2)
        thread = threading.Thread(
            target=lambda: found.extend(one.value for one in first_two), daemon=True
        )
        thread.start()
        for produced in ("one", "two"):
            eventually(lambda: reader_of(stream).is_asked)
            for _ in range(2):
                with pytest.raises(StreamInUseError, match="two threads"):
                    next(messages)
            kafka.produce("t", [produced])
            eventually(lambda produced=produced: produced.encode() in found)  # type: ignore[misc]  # a default
        thread.join(LIMIT_S)
        kafka.produce("t", ["three"])
        assert next(messages).value == b"three"
    assert found == [b"one", b"two"]


def test_the_next_message_for_two_tasks(kafka: FakeCluster) -> None:
    """A second task that calls `anext` gets StreamInUseError; the first one gets its message."""

    async def main() -> None:
        async with aio.ConsumerConnector(config(kafka)) as connector:
            (stream,) = (await connector.create_message_streams({"t": 1}))["t"]

            async def read() -> list[bytes | None]:
                return [(await anext(stream)).value for _ in range(2)]

            first = asyncio.create_task(read())
            await asyncio.sleep(0)
            for _ in range(2):
                with pytest.raises(StreamInUseError, match="two tasks"):
                    await anext(stream)
            kafka.produce("t", ["one", "two"])
            assert await first == [b"one", b"two"]

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_a_callback_of_a_commit_that_exits(
    kafka: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """If a callback of a commit's future calls sys.exit, this is logged; the member continues."""
    with ConsumerConnector(config(kafka)) as connector:
        (stream,) = connector.create_message_streams({"t": 1})["t"]
        kafka.produce("t", ["one"])
        next(stream)
        called: list[Future[None]] = []
        kafka.zookeeper.pause()
        future = connector.commit_offsets(wait=False)
        future.add_done_callback(lambda _: sys.exit("no disk"))
        future.add_done_callback(called.append)
        kafka.zookeeper.resume()
        eventually(lambda: called == [future])
        assert len(logged(caplog, "zkconsumer.consumer.commit_requests")) == 1
        connector.commit_offsets()
        assert connector.status().error is None
