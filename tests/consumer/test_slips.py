"""Slips that everybody makes: a stream that nobody reads, a forgotten shutdown, a failed thread."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.logged import logged
from support.members.group import SETTINGS, Group
from support.wait import LIMIT_S, eventually

from zkconsumer import (
    ConfigError,
    ConsumerConfig,
    ConsumerConnector,
    ConsumerTimeoutError,
    MalformedZnodeError,
    Stream,
    StreamInUseError,
    ZkConsumerError,
    aio,
)
from zkconsumer.consumer.stream import reader_of
from zkconsumer.consumer.stuck_streams import STUCK_S, UNREAD_S, StuckStreams
from zkconsumer.protocol.model import TopicPartition


def config_of(group: Group, **settings: Any) -> ConsumerConfig:
    given = {**SETTINGS, "zookeeper_connect": group.sandbox.zookeeper_connect, **settings}
    return ConsumerConfig(group_id=group.name, **(given | {"consumer_timeout_s": None} | settings))


# ---- streams that nobody reads -------------------------------------------------------------------


class Watched:
    """A stream whose state the test sets."""

    def __init__(self) -> None:
        self.thread_id = "g_m-0"
        self.user: threading.Thread | None = None
        self.is_asked = self.closed = False
        self.may_deliver = self.has_messages = True
        self.unpaused = frozenset({TopicPartition("t", 0)})
        self.progress: object = 0


def test_a_stream_that_nobody_reads_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """A thread that ended, that asks for nothing, or that never asked is reported until it asks."""
    now, stream = [100.0], Watched()
    stuck = StuckStreams("g_m", [stream], lambda: now[0])

    def look(later_s: float) -> str:
        now[0] += later_s
        stuck.look()
        return stuck.reasons.get("g_m-0", "")

    assert not look(0.0) and not look(UNREAD_S - 2)
    assert "no thread has asked it" in look(3.0)
    stream.user, stream.progress = threading.current_thread(), 1
    assert not look(1.0) and not look(STUCK_S - 2)
    stream.progress = 2  # the thread takes a message
    assert not look(1.0) and not look(STUCK_S - 1)
    assert "has not asked for a message for 5 s" in look(1.0)
    stream.has_messages = False  # nothing waits, so nothing is wrong
    assert not look(STUCK_S)
    stream.user, stream.progress = threading.Thread(name="gone"), 3
    assert not look(1.0)
    assert "its thread gone has ended" in look(1.0)
    stream.unpaused = frozenset()
    assert not look(1.0)
    assert stuck.count == 3 == len(logged(caplog, "zkconsumer.consumer.stuck_streams"))
    assert "let the thread continue to read, or call shutdown()" in caplog.text


def test_a_pool_inside_the_block_is_reported(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """If a pool's worker has failed, the log, the status and a metric name its stream."""

    def work(number: int, stream: Stream[bytes, bytes]) -> None:
        for _ in stream:
            if number == 0:
                raise ValueError("boom")

    with ConsumerConnector(config_of(group)) as connector:
        streams = connector.create_message_streams({group.topic: 2})[group.topic]
        pool = ThreadPoolExecutor(2)
        futures = [pool.submit(work, number, one) for number, one in enumerate(streams)]
        with pytest.raises(ValueError, match="boom"):
            futures[0].result(LIMIT_S)
        eventually(lambda: connector.status().stuck_streams)
        (thread,) = connector.status().stuck_streams
        assert thread == streams[0].thread_id
        assert connector.metrics()["stuck_streams"] == 1
        assert f"nobody reads {streams[0]!r}" in caplog.text
    pool.shutdown()


# ---- run -----------------------------------------------------------------------------------------


def test_run_ends_every_thread_when_one_fails(group: Group) -> None:
    """`run` raises the first exception after all threads have ended; the block then leaves."""
    threads: set[threading.Thread] = set()

    def work(stream: Stream[bytes, bytes]) -> None:
        threads.add(threading.current_thread())
        for _ in stream:
            if stream.number == 0:
                raise ValueError("boom")

    with (
        pytest.raises(ValueError, match="boom"),
        ConsumerConnector(config_of(group)) as connector,
    ):
        streams = connector.create_message_streams({group.topic: 2})[group.topic]
        connector.run(work, streams)
    assert len(threads) == 2 and not any(thread.is_alive() for thread in threads)


def test_run_waits_for_its_threads_after_ctrl_c(group: Group) -> None:
    """After Ctrl-C, `run` raises only when each thread has finished with its message."""
    finished: list[int] = []

    def work(stream: Stream[bytes, bytes]) -> None:
        for _ in stream:
            if stream.number == 0:
                signal.raise_signal(signal.SIGINT)
        finished.append(stream.number)

    with ConsumerConnector(config_of(group)) as connector:
        streams = connector.create_message_streams({group.topic: 2})[group.topic]
        with pytest.raises(KeyboardInterrupt):
            connector.run(work, streams)
        assert sorted(finished) == [0, 1]


def test_run_returns_the_results_of_its_threads(group: Group) -> None:
    """`run` returns one result for each stream, in their order, when all calls have returned."""

    def work(stream: Stream[bytes, bytes]) -> tuple[int, int]:
        return stream.number, next(stream).offset

    with ConsumerConnector(config_of(group)) as connector:
        streams = connector.create_message_streams({group.topic: 4})[group.topic]
        assert connector.run(work, streams) == [(number, 0) for number in range(4)]


def test_run_of_tasks_cancels_the_others_when_one_fails(group: Group) -> None:
    """With asyncio, `run` awaits one task for each stream, and raises the first exception."""
    cancelled: list[int] = []

    async def work(stream: aio.Stream[bytes, bytes]) -> None:
        try:
            async for _ in stream:
                if stream.number == 0:
                    raise ValueError("boom")
        except asyncio.CancelledError:
            cancelled.append(stream.number)
            raise

    async def main() -> None:
        async with aio.ConsumerConnector(config_of(group)) as connector:
            made = await connector.create_message_streams({group.topic: 2})
            await connector.wait_until_assigned(LIMIT_S)
            wrong: Any = print
            with pytest.raises(ConfigError, match="async def work"):
                await connector.run(wrong, made[group.topic])
            await connector.run(work, made[group.topic])

    with pytest.raises(ValueError, match="boom"):
        asyncio.run(asyncio.wait_for(main(), LIMIT_S))
    assert cancelled == [1]


# ---- commits, errors, assignment -----------------------------------------------------------------


def test_a_commit_need_not_be_awaited(group: Group) -> None:
    """`commit(wait=False)` returns a future; a shutdown waits until the commit is stored."""
    with ConsumerConnector(config_of(group, auto_commit_enable=False)) as connector:
        (stream,) = connector.create_message_streams({group.topic: 1})[group.topic]
        message = next(stream)
        done = connector.commit(message, wait=False)
        assert done.result(LIMIT_S) is None
        assert group.stored(message.partition) == "1"
        last = connector.commit_offsets({group.tp(message.partition): 5}, wait=False)
        assert not last.cancel()
    assert last.result(0) is None
    assert group.stored(message.partition) == "5"


def test_on_error_gets_what_need_not_end_the_loop(group: Group) -> None:
    """With `on_error`, a malformed offset is reported, and the loop continues."""
    group.write(0, b"x")
    errors: list[ZkConsumerError] = []
    with ConsumerConnector(config_of(group), on_error=errors.append) as connector:
        (stream,) = connector.create_message_streams({group.topic: 1})[group.topic]
        read = {message.partition for _, message in zip(range(30), stream, strict=False)}
        assert read == {1, 2, 3}
        eventually(lambda: (stream.poll(timeout_s=0.05), errors)[1])
        assert isinstance(errors[0], MalformedZnodeError)


def test_wait_until_assigned_says_what_it_waits_for(group: Group) -> None:
    """If another client holds a partition, the error names the partition."""
    group.hold(3)
    with ConsumerConnector(config_of(group)) as connector:
        connector.create_message_streams({group.topic: 1})
        eventually(lambda: connector.status().blocked)
        with pytest.raises(ConsumerTimeoutError, match="-3 is held by"):
            connector.wait_until_assigned(0.01)
        connector.close()
        connector.close()


def test_a_stream_in_two_threads_has_its_own_error(group: Group) -> None:
    """A second thread that asks a stream for messages gets StreamInUseError."""
    with ConsumerConnector(config_of(group, auto_offset_reset="largest")) as connector:
        (stream,) = connector.create_message_streams({group.topic: 1})[group.topic]
        thread = threading.Thread(target=lambda: next(stream, None), daemon=True)
        thread.start()
        eventually(lambda: reader_of(stream).is_asked)
        with pytest.raises(StreamInUseError):
            stream.poll(timeout_s=0.0)
    thread.join(LIMIT_S)


def test_a_session_timeout_that_the_server_changes_is_reported(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """If ZooKeeper grants another session timeout than the requested one, a warning names both."""
    with ConsumerConnector(config_of(group, zookeeper_session_timeout_s=3000.0)):
        assert "grants a session timeout of" in caplog.text
        assert "not of 3000 s" in caplog.text


# ---- a forgotten shutdown ------------------------------------------------------------------------


FORGOTTEN = """
import sys
from zkconsumer import ConsumerConnector

properties = {"group.id": sys.argv[2], "zookeeper.connect": sys.argv[1]}
connector = ConsumerConnector(properties)
connector.create_message_streams({sys.argv[3]: 1})
"""


def test_a_forgotten_shutdown_causes_a_warning(group: Group) -> None:
    """A connector without a shutdown warns when it is deleted or when the program ends."""
    connect = group.sandbox.zookeeper_connect
    command = [sys.executable, "-W", "default::ResourceWarning", "-c", FORGOTTEN]
    ended = subprocess.run(
        [*command, connect, group.name, group.topic],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert ended.stderr.count("was not shut down") == 1
    with pytest.warns(ResourceWarning, match="was not shut down"):
        connector = ConsumerConnector(config_of(group))
        member = connector.__dict__["_member"]
        del connector
        gc.collect()
    member.stop()
