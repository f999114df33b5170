"""When a member ends with an error, all its streams, calls and the status report the error."""

from __future__ import annotations

import asyncio
import logging
from types import ModuleType

import pytest
from support.internals import connector_of, crash
from support.members.group import SETTINGS, Group, MemberUnderTest
from support.wait import LIMIT_S, eventually, soon

from zkconsumer import ConsumerConfig, aio
from zkconsumer.consumer import jvm_log_lines, member_thread
from zkconsumer.errors import ZkConsumerError
from zkconsumer.protocol import paths
from zkconsumer.safe_logger import SafeLogger


def settled(group: Group, **settings: object) -> MemberUnderTest:
    one = group.join(**settings)
    one.settled(0, 1, 2, 3)
    one.read(40)
    return one


def close_quietly(one: MemberUnderTest) -> None:
    """Close the readers of a failed member; its shutdown would raise at the end of the test."""
    with pytest.raises(ZkConsumerError, match="thread stopped"):
        one.connector.shutdown()


def test_a_crash_ends_every_stream_with_its_error(group: Group) -> None:
    """When the member's thread fails, a loop ends even if it catches each error and continues."""
    one = settled(group)
    crash(one.connector)
    (reader,) = one.readers
    reader.join(LIMIT_S)
    assert not reader.is_alive()
    (error,) = reader.errors
    assert "TypeError" in error.what and error.where == one.connector.consumer_id and error.remedy
    for _ in range(2):
        with pytest.raises(ZkConsumerError, match="thread stopped"):
            reader.stream.poll(timeout_s=0.0)
    assert next(iter(reader.stream), None) is None
    assert "thread stopped" in reader.stream.waiting_for
    close_quietly(one)


def test_a_crash_reaches_calls_and_status(group: Group) -> None:
    """After a crash, commits, the status and the first shutdown report the error."""
    one = settled(group)
    crash(one.connector)
    eventually(lambda: one.status.phase == "closed")  # the error is there before
    assert str(one.status.error).startswith("the member's thread stopped: TypeError")
    for call in (one.connector.commit_offsets, lambda: one.connector.seek(group.tp(0), 0)):
        with pytest.raises(ZkConsumerError, match="thread stopped"):
            call()
    close_quietly(one)
    one.connector.shutdown()
    assert group.admin.get_children(paths.ids(group.name)) == []


def test_a_crash_ends_the_streams_of_a_loop(group: Group) -> None:
    """An asyncio stream raises the error at its next call, and then ends."""

    async def main() -> None:
        config = ConsumerConfig(
            group_id=group.name, zookeeper_connect=group.sandbox.zookeeper_connect, **SETTINGS
        )
        connector = aio.ConsumerConnector(config)
        await connector.start()
        (stream,) = (await connector.create_message_streams({group.topic: 1}))[group.topic]
        while not await stream.poll():
            pass
        core = connector_of(connector)
        assert core is not None
        crash(core)
        await soon(lambda: connector.status().error is not None)
        with pytest.raises(ZkConsumerError, match="thread stopped"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        with pytest.raises(ZkConsumerError, match="thread stopped"):
            await stream.poll()
        with pytest.raises(ZkConsumerError, match="thread stopped"):
            await connector.shutdown()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


@pytest.mark.parametrize("module", [jvm_log_lines, member_thread], ids=["journal", "member_thread"])
def test_a_log_filter_that_raises_ends_no_member(
    group: Group,
    module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If a log filter raises an error for every line, it is reported once; the member continues."""

    def refuse(record: logging.LogRecord) -> bool:
        raise ValueError(f"the filter does not like {record.msg}")

    log: logging.Logger = module.logger.logger
    # The module's own logger may have reported an error in an earlier test of this process.
    monkeypatch.setattr(module, "logger", SafeLogger(log))
    before = log.level
    log.setLevel(logging.DEBUG)
    log.addFilter(refuse)
    try:
        one = settled(group)
        one.connector.commit_offsets()
        assert one.status.error is None
        one.close()
    finally:
        log.removeFilter(refuse)
        log.setLevel(before)
    assert capsys.readouterr().err.count("ValueError: the filter does not like") == 1
