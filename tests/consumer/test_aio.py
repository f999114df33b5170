"""The asyncio connector keeps the promises of streams, even after cancellations."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from support.internals import connector_of, wait_of
from support.kafka.streams import ColumnLog, KafkaLog, Log, MemoryLog, Reader, log_cases, opened
from support.members.group import SETTINGS, Group
from support.wait import LIMIT_S, eventually, soon

from zkconsumer import ConsumerConfig, ConsumerConnector, TopicPartition, aio, white_list
from zkconsumer.errors import (
    ConfigError,
    ConnectorClosedError,
    ConsumerTimeoutError,
    MessageStreamsExistError,
    RebalanceBlockedError,
    ZkConsumerError,
    ZooKeeperUnreachableError,
)


@pytest.fixture(params=log_cases("memory", "kafka"))
def log(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> Iterator[Log]:
    """A log of three partitions with 3,000 messages in the first."""
    with opened(request, unique("aio")) as log:
        log.append(0, map(str, range(3000)))
        yield log


class Both(Reader):
    """A reader whose stream is read by an event loop."""

    def __init__(self, log: Log, **settings: Any) -> None:
        super().__init__(log, **settings)
        self.aio = aio.Stream(self.stream)

    def close(self) -> None:
        self.stream.close()
        aio.stop(self.aio)


@pytest.fixture
def reader(log: Log) -> Iterator[Both]:
    reader = Both(log, timeout_s=None)
    yield reader
    reader.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine with a time limit, so that a test that hangs fails."""
    asyncio.run(asyncio.wait_for(main, 3 * LIMIT_S))


async def waits(reader: Both) -> None:
    """Let a new task request a message; return when the stream's thread waits for one."""
    await asyncio.sleep(0)
    await soon(lambda: reader.stream.is_asked)


# ---- columns ----------------------------------------------------------------------------------


def test_columns_can_be_awaited(log: Log) -> None:
    """`poll_arrow` returns every message once, even if it alternates with `poll`."""
    columns = ColumnLog(log.topic, log.sandbox).columns if isinstance(log, KafkaLog) else None
    reader = Both(log, timeout_s=None, connect_columns=columns)
    reader.grant(0, 0)
    found: list[int] = []

    async def main() -> None:
        while len(found) < 3000:
            batch = await reader.aio.poll_arrow(max_messages=700, timeout_s=LIMIT_S)
            found.extend(batch["offset"].to_pylist())
            if len(found) == 1400:
                messages = await reader.aio.poll(max_messages=10, timeout_s=LIMIT_S)
                found.extend(one.offset for one in messages)
        assert (await reader.aio.poll_arrow(timeout_s=0.05)).num_rows == 0

    run(main())
    reader.close()
    assert found == list(range(3000))


# ---- a stream -----------------------------------------------------------------------------------


def test_messages_come_in_order_and_are_finished_one_by_one(reader: Both) -> None:
    """A request for the next message finishes only the current one, however many were fetched."""
    reader.grant(0, 0)

    async def main() -> None:
        count = 0
        async for message in reader.aio:
            assert message.offset == count
            assert (reader.finished(0), reader.delivered(0)) == (count, count + 1)
            count += 1
            if count == 3000:
                break
        assert (await reader.aio.poll(timeout_s=0.05)).__len__() == 0
        assert reader.finished(0) == 3000
        for poll in (reader.aio.poll, reader.aio.poll_arrow):
            with pytest.raises(ConfigError, match="max_messages"):
                await poll(max_messages=0)

    run(main())


def test_a_cancelled_wait_loses_nothing(log: Log, reader: Both) -> None:
    """A reader whose waits are cancelled at any moment gets each message once, in order."""
    reader.grant(0, 0)
    reader.grant(1, 0)
    log.append(1, ["a"])

    async def main() -> None:
        seen: dict[int, list[int]] = {0: [], 1: []}
        cancelled = 0
        while len(seen[0]) < 3000 or not seen[1]:
            try:
                async with asyncio.timeout(0.0005 * (cancelled % 4)):
                    async for message in reader.aio:
                        seen[message.partition].append(message.offset)
                        if message.offset % 100 == 0:
                            await asyncio.sleep(0)
            except TimeoutError:
                cancelled += 1
        assert seen == {0: list(range(3000)), 1: [0]}
        assert cancelled > 0
        waiting = asyncio.ensure_future(anext(reader.aio))
        await waits(reader)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        log.append(0, ["late"])
        assert (await anext(reader.aio)).offset == 3000

    run(main())


def test_other_tasks_run_while_a_stream_waits(log: Log, reader: Both) -> None:
    """The event loop is not blocked: one task waits for a message that another task produces."""
    reader.grant(2, 0)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            message = tasks.create_task(reader.aio.__anext__())
            await waits(reader)
            assert not message.done()
            tasks.create_task(asyncio.to_thread(log.append, 2, ["x"]))
        assert message.result().value == b"x"

    run(main())


def test_poll_gives_batches_and_never_more_than_asked_for(reader: Both) -> None:
    """Each poll finishes the previous batch, which may be empty; polls and loops can alternate."""
    reader.grant(0, 0)

    async def main() -> None:
        seen: list[int] = []
        while len(seen) < 2000:
            batch = await reader.aio.poll(max_messages=300, timeout_s=LIMIT_S)
            assert 0 < len(batch) <= 300
            assert reader.finished(0) == len(seen)
            seen += [message.offset for message in batch]
            seen.append((await anext(reader.aio)).offset)
        while len(seen) < 3000:
            seen += [one.offset for one in await reader.aio.poll(timeout_s=LIMIT_S)]
        assert seen == list(range(3000))

    run(main())


def test_a_poll_without_a_wait_returns_available_messages(reader: Both) -> None:
    """`timeout_s=0` delivers messages that earlier calls have already fetched."""
    reader.grant(0, 0)

    async def main() -> None:
        seen = 0
        while seen < 3000:
            seen += len(await reader.aio.poll(timeout_s=0.0))

    run(main())


def test_polls_of_fetched_messages_stay_in_the_loop(reader: Both) -> None:
    """Polls of fetched messages need no other thread, let other tasks run, and see their pauses."""
    reader.grant(0, 0)
    turns: list[str] = []
    next_turn = ["count"]

    async def other() -> None:
        while next_turn == ["count"]:
            turns.append(*next_turn)
            await asyncio.sleep(0)
        reader.stream.pause([reader.tp(0)])

    async def main() -> None:
        task = asyncio.create_task(other())
        seen = in_loop = 0
        while in_loop < 20 or not reader.stream.queued:
            before, is_fetched = len(turns), reader.stream.queued > 0
            (message,) = await reader.aio.poll(max_messages=1, timeout_s=LIMIT_S)
            assert message.offset == seen
            assert len(turns) > before
            seen += 1
            if is_fetched:
                assert reader.stream.user is threading.current_thread()
                in_loop += 1
        next_turn[:] = ["pause"]
        assert not await reader.aio.poll(timeout_s=0.05)
        await task
        reader.stream.resume([reader.tp(0)])
        assert (await anext(reader.aio)).offset == seen

    run(main())


def test_messages_that_have_arrived_are_taken_in_the_loop() -> None:
    """A poll without a fetched message takes those that have arrived, without another thread."""
    log = MemoryLog("arrived")
    log.append(0, map(str, range(3000)))
    reader = Both(log, timeout_s=None)
    reader.grant(0, 0)

    async def main() -> None:
        seen = len(await reader.aio.poll(timeout_s=LIMIT_S))  # connects in the stream's thread
        while seen < 3000:
            assert not reader.stream.queued
            seen += len(await reader.aio.poll(timeout_s=LIMIT_S))
            assert reader.stream.user is threading.current_thread()

    run(main())
    reader.close()


def test_polls_without_messages_leave_no_task(reader: Both) -> None:
    """After polls of an idle stream have ended, none of their tasks is left."""
    reader.grant(1, 0)

    def futures() -> int:
        gc.collect()
        return sum(issubclass(type(one), asyncio.Future) for one in gc.get_objects())

    async def main() -> None:
        assert not await reader.aio.poll(timeout_s=0.0)
        before = futures()
        for _ in range(100):
            assert not await reader.aio.poll(timeout_s=0.0)
        # The number may be lower: the garbage collector may have freed an earlier test's future. If
        # the stream's thread is just ending a wait, the event loop holds one more future until its
        # next turn.
        await soon(lambda: futures() <= before)

    run(main())


def test_the_time_out_can_be_repeated(log: Log) -> None:
    """Each call that gets no message raises ConsumerTimeoutError, until a message arrives."""
    reader = Both(log, timeout_s=0.05)
    reader.grant(1, 0)

    async def main() -> None:
        for _ in range(3):
            with pytest.raises(ConsumerTimeoutError, match=rf"no message of {log.topic}"):
                await anext(reader.aio)
        with pytest.raises(ConsumerTimeoutError):
            async for _ in reader.aio:
                pass
        log.append(1, ["a"])
        while True:
            try:
                assert (await anext(reader.aio)).value == b"a"
                return
            except ConsumerTimeoutError:
                pass

    run(main())
    reader.close()


def test_errors_are_raised_once_even_past_a_cancellation(reader: Both) -> None:
    """If an error arrives during a cancelled wait, the next call raises it."""
    reader.grant(1, 0)

    async def main() -> None:
        assert not await reader.aio.poll(timeout_s=0.01)
        reader.stream.fail(RebalanceBlockedError("blocked", where="here"))
        eventually(wait_of(reader.aio).done)
        gc.collect()
        with pytest.raises(RebalanceBlockedError):
            await anext(reader.aio)
        assert not await reader.aio.poll(timeout_s=0.01)

    run(main())


def test_messages_of_a_cancelled_wait_are_checked_again(reader: Both) -> None:
    """Messages of a cancelled poll are also withheld after a pause, a shut gate or a revocation."""
    reader.grant(0, 0)

    async def main() -> None:
        async def fetched() -> None:
            assert not await reader.aio.poll(timeout_s=0.0)
            eventually(wait_of(reader.aio).done)

        await fetched()
        reader.stream.pause([reader.tp(0)])
        assert not await reader.aio.poll(timeout_s=0.1)
        reader.stream.resume([reader.tp(0)])
        assert (await reader.aio.poll(max_messages=10, timeout_s=LIMIT_S))[0].offset == 0
        reader.gate.shut()
        assert not await reader.aio.poll(timeout_s=0.1)
        reader.gate.open(reader.gate.clock() + 3600)
        reader.withdraw(0)
        reader.grant(0, 100)
        assert (await anext(reader.aio)).offset == 100

    run(main())


def test_two_tasks_at_once_are_an_error(log: Log, reader: Both) -> None:
    """If a second task uses a stream, it gets an error, and the first task is not affected."""
    reader.grant(1, 0)

    async def main() -> None:
        first = asyncio.ensure_future(anext(reader.aio))
        await asyncio.sleep(0)
        with pytest.raises(ZkConsumerError, match="two tasks"):
            await reader.aio.poll()
        await asyncio.to_thread(log.append, 1, ["a"])
        assert (await first).value == b"a"

    run(main())


def test_after_the_shutdown_the_stream_has_ended(reader: Both) -> None:
    """A shutdown ends waits, loops and the stream's thread; then `poll` raises an error."""
    reader.grant(1, 0)
    seen: set[str] = set()

    async def main() -> None:
        async def use() -> None:
            async for _ in reader.aio:
                pass

        user = asyncio.ensure_future(use())
        await waits(reader)
        seen.update(one.name for one in threading.enumerate())
        reader.close()
        await user
        with pytest.raises(StopAsyncIteration):
            await anext(reader.aio)
        with pytest.raises(ConnectorClosedError):
            await reader.aio.poll()

    run(main())
    name = f"{reader.stream.thread_id}-{reader.topic}"
    assert name in seen
    eventually(lambda: name not in {one.name for one in threading.enumerate()})


def test_a_release_waits_for_a_tasks_unfinished_message(reader: Both) -> None:
    """A release waits until the task requests the next message."""
    reader.grant(0, 0)
    done: list[int | None] = []

    async def main() -> None:
        assert (await anext(reader.aio)).offset == 0
        reader.stream.ask_release([reader.tp(0)], lambda: done.append(reader.finished(0)))
        assert done == []
        assert not await reader.aio.poll(timeout_s=0.05)
        assert done == [1]

    run(main())


# ---- a connector --------------------------------------------------------------------------------


def config_of(group: Group, **settings: Any) -> ConsumerConfig:
    return ConsumerConfig(
        group_id=group.name,
        zookeeper_connect=group.sandbox.zookeeper_connect,
        **{**SETTINGS, "consumer_timeout_s": None, **settings},
    )


def test_a_member_in_a_loop(group: Group) -> None:
    """In an event loop a connector joins, reads, commits delivered messages, seeks, and leaves."""

    async def main() -> None:
        async with aio.ConsumerConnector(config_of(group)) as connector:
            made = await connector.create_message_streams(
                {group.topic: 1}, value_decoder=bytes.decode
            )
            (stream,) = made[group.topic]
            seen: list[tuple[int, int]] = []
            async for message in stream:
                seen.append((message.partition, message.offset))
                if len(seen) == 15:
                    await connector.commit_offsets()
                    stored = [int(group.stored(number) or 0) for number in range(4)]
                    assert sum(stored) == 15
                if len(seen) == 40:
                    break
            assert sorted(seen) == [(number, at) for number in range(4) for at in range(10)]
            connector.seek(TopicPartition(group.topic, 3), 5)
            again = [await anext(stream) for _ in range(5)]
            assert [(m.partition, m.offset) for m in again] == [(3, at) for at in range(5, 10)]
            assert connector.status().phase == "settled"
            assert connector.metrics()["seeks"] == 1
        assert [group.stored(number) for number in range(4)] == ["10"] * 4
        with pytest.raises(ConnectorClosedError):
            await connector.commit_offsets()

    run(main())
    assert not [one for one in threading.enumerate() if f"{group.name}_" in one.name]


def test_a_time_limit_of_on_error(group: Group) -> None:
    """A TimeoutError that `on_error` raises ends the loop, as any other exception of it does."""
    group.write(0, b"x")

    async def on_error(error: ZkConsumerError) -> None:
        raise TimeoutError("the alert was not sent")

    async def main() -> None:
        async with aio.ConsumerConnector(config_of(group), on_error=on_error) as connector:
            (stream,) = (await connector.create_message_streams({group.topic: 1}))[group.topic]
            with pytest.raises(TimeoutError, match="the alert"):
                while True:
                    await stream.poll(timeout_s=LIMIT_S)

    run(main())


def test_on_error_runs_in_the_loop(group: Group) -> None:
    """A plain function gets the stream's errors in the event loop, as a coroutine function does."""
    group.write(0, b"x")
    seen: list[tuple[str, asyncio.AbstractEventLoop]] = []

    def plain(error: ZkConsumerError) -> None:
        seen.append((type(error).__name__, asyncio.get_running_loop()))

    async def coroutine(error: ZkConsumerError) -> None:
        plain(error)

    async def main() -> None:
        for number, on_error in enumerate((plain, coroutine), 1):
            config = config_of(group)
            async with aio.ConsumerConnector(config, on_error=on_error) as connector:
                (stream,) = (await connector.create_message_streams({group.topic: 1}))[group.topic]
                while len(seen) < number:
                    await stream.poll(timeout_s=0.05)
            assert seen[-1] == ("MalformedZnodeError", asyncio.get_running_loop())

    run(main())


def test_a_callback_whose_loop_is_closed_ends(group: Group) -> None:
    """If the loop is closed, a stream's thread does not wait for `on_error` for ever."""
    group.write(0, b"x")
    loop, has_begun = asyncio.new_event_loop(), asyncio.Event()

    async def on_error(error: ZkConsumerError) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    async def main() -> tuple[ConsumerConnector, Future[Any]]:
        connector = aio.ConsumerConnector(config_of(group), on_error=on_error)
        await connector.start()
        (stream,) = (await connector.create_message_streams({group.topic: 1}))[group.topic]
        while not has_begun.is_set():
            await stream.poll(timeout_s=0.05)
        core = connector_of(connector)
        assert core is not None
        return core, wait_of(stream)

    core, waiting = loop.run_until_complete(main())
    loop.close()
    try:
        assert isinstance(waiting.exception(LIMIT_S), RuntimeError)
    finally:
        core.shutdown()


def test_streams_of_a_filter_in_a_loop(group: Group) -> None:
    """Each of several streams has its own task; pause and resume need no await."""

    async def main() -> None:
        async with aio.ConsumerConnector(config_of(group)) as connector:
            streams = await connector.create_message_streams_by_filter(
                white_list(group.topic), 2, value_decoder=bytes.decode
            )
            assert [stream.topic for stream in streams] == [None, None]

            async def read(stream: aio.Stream[bytes, str]) -> set[tuple[str, int, int]]:
                some = [await anext(stream) for _ in range(20)]
                return {(m.topic, m.partition, m.offset) for m in some}

            first, second = await asyncio.gather(*map(read, streams))
            assert first == {(group.topic, p, at) for p in (0, 1) for at in range(10)}
            assert second == {(group.topic, p, at) for p in (2, 3) for at in range(10)}
            connector.pause([group.tp(0)])
            assert connector.paused() == {group.tp(0)}
            connector.resume([group.tp(0)])
            assert not connector.paused()
            with pytest.raises(MessageStreamsExistError):
                await connector.create_message_streams({group.topic: 1})

    run(main())


def test_a_cancelled_body_does_not_commit_its_unfinished_message(group: Group) -> None:
    """If a task is cancelled, its unfinished message is not committed, and is redelivered."""

    async def main() -> None:
        in_hand = asyncio.Event()

        async def use() -> None:
            async with aio.ConsumerConnector(config_of(group)) as connector:
                (stream,) = (await connector.create_message_streams({group.topic: 1}))[group.topic]
                count = 0
                async for _ in stream:
                    count += 1
                    if count == 40:
                        in_hand.set()
                        await asyncio.sleep(3600)

        user = asyncio.ensure_future(use())
        await in_hand.wait()
        user.cancel()
        with pytest.raises(asyncio.CancelledError):
            await user

    run(main())
    assert sum(int(group.stored(number) or 0) for number in range(4)) == 39


def is_shut_down(connector: ConsumerConnector) -> bool:
    """Return whether a connector is shut down: it then refuses a commit without streams."""
    try:
        connector.commit_offsets()
    except ConnectorClosedError:
        return True
    return False


def test_a_start_that_is_cancelled_leaves_nothing_behind(group: Group) -> None:
    """A connection that opens after a cancellation is closed; a failed one raises its error."""

    async def main() -> None:
        connector = aio.ConsumerConnector(config_of(group))
        with pytest.raises(ConnectorClosedError, match="not started"):
            connector.status()
        starting = asyncio.ensure_future(connector.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await soon(lambda: connector_of(connector) is not None)
        core = connector_of(connector)
        assert core is not None
        await asyncio.to_thread(eventually, lambda: is_shut_down(core))
        nowhere = ConsumerConfig(
            group_id="g", zookeeper_connect="127.0.0.1:1", zookeeper_connection_timeout_s=0.2
        )
        with pytest.raises(ZooKeeperUnreachableError):
            await aio.ConsumerConnector(nowhere).start()

    run(main())
