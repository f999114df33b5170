"""The callbacks on_assigned, on_revoked and on_lost, in a real group."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from support.members.group import SETTINGS, Group
from support.wait import LIMIT_S, eventually

from zkconsumer import (
    ConfigError,
    ConsumerConfig,
    ConsumerConnector,
    RebalanceCallbacks,
    TopicPartition,
    aio,
)
from zkconsumer.protocol import paths
from zkconsumer.sandbox import Sandbox


class Heard:
    """Callbacks that record their calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, set[int]]] = []
        self.commit: Callable[[], None] = lambda: None

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("assigned", {tp.partition for tp in partitions}))

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.commit()
        self.calls.append(("revoked", {tp.partition for tp in partitions}))

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("lost", {tp.partition for tp in partitions}))


def connected(group: Group, callbacks: RebalanceCallbacks, **settings: Any) -> ConsumerConnector:
    connect = group.sandbox.zookeeper_connect
    given = {**SETTINGS, "zookeeper_connect": connect, "release_grace_s": LIMIT_S, **settings}
    return ConsumerConnector(ConsumerConfig(group_id=group.name, **given), callbacks=callbacks)


def test_assigned_and_revoked(group: Group) -> None:
    """on_assigned gets claimed partitions; on_revoked gets moved ones, and at the end the rest."""
    heard = Heard()
    with connected(group, heard, consumer_id="a", auto_commit_enable=False) as connector:
        (stream,) = connector.create_message_streams({group.topic: 1})[group.topic]
        eventually(lambda: heard.calls == [("assigned", {0, 1, 2, 3})])
        read = 0
        while read < 40:
            read += len(stream.poll(timeout_s=LIMIT_S))
        heard.commit = connector.commit_offsets
        group.join("b")
        eventually(lambda: (stream.poll(timeout_s=0.1), len(heard.calls) == 2)[1])
        assert heard.calls[1:] == [("revoked", {2, 3})]
        assert [group.stored(n) for n in (2, 3)] == ["10", "10"]
        group.sandbox.produce(group.topic, 2, partition=0)
        eventually(lambda: len(stream.poll(timeout_s=0.1)))
    assert heard.calls[2:] == [("revoked", {0, 1})]
    assert group.stored(0) in ("11", "12")


def test_a_partition_that_frees_up_during_the_shutdown_is_not_announced(group: Group) -> None:
    """While on_revoked runs at the shutdown, the member claims and announces nothing."""
    heard, entered, free = Heard(), threading.Event(), threading.Event()
    path = group.owner(1)
    group.admin.create(path, f"{group.name}_x-0".encode(), ephemeral=True, makepath=True)

    def last() -> None:
        entered.set()
        assert free.wait(LIMIT_S)

    with connected(group, heard, release_grace_s=LIMIT_S) as connector:
        connector.create_message_streams({group.topic: 1})
        eventually(lambda: heard.calls == [("assigned", {0, 2, 3})])
        heard.commit = last
        leaving = threading.Thread(target=connector.shutdown)
        leaving.start()
        assert entered.wait(LIMIT_S)
        group.admin.delete(path)
        # The reply to a commit shows that the member has handled the watch's event.
        connector.commit_offsets()
        assert connector.status().phase == "leaving"
        free.set()
        leaving.join(LIMIT_S)
    assert heard.calls == [("assigned", {0, 2, 3}), ("revoked", {0, 2, 3})]


def test_every_shutdown_waits_until_the_member_has_left(group: Group) -> None:
    """A second shutdown and the end of the block return after the first shutdown has ended."""
    heard, entered, free = Heard(), threading.Event(), threading.Event()

    def last() -> None:
        entered.set()
        assert free.wait(LIMIT_S)

    heard.commit = last
    ended: list[bool] = []

    def end(connector: ConsumerConnector) -> None:
        connector.shutdown()
        ended.append(group.admin.get_children(paths.ids(group.name)) == [])

    with connected(group, heard, release_grace_s=LIMIT_S) as connector:
        connector.create_message_streams({group.topic: 1})
        eventually(lambda: heard.calls)
        threads = [threading.Thread(target=end, args=(connector,)) for _ in range(2)]
        threads[0].start()
        assert entered.wait(LIMIT_S)
        threads[1].start()
        timer = threading.Timer(0.3, free.set)
        timer.start()
    assert group.admin.get_children(paths.ids(group.name)) == []
    for thread in threads:
        thread.join(LIMIT_S)
    assert ended == [True, True]


def test_a_signal_handler_may_shut_down_during_the_shutdown(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler that interrupts the shutdown's thread and shuts down again does not wait for it."""
    heard = Heard()

    def last() -> None:
        signal.raise_signal(signal.SIGUSR1)

    with connected(group, heard) as connector:
        before = signal.signal(signal.SIGUSR1, lambda *_: connector.shutdown())
        try:
            connector.create_message_streams({group.topic: 1})
            eventually(lambda: heard.calls)
            heard.commit = last
            connector.shutdown()
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert heard.calls == [("assigned", {0, 1, 2, 3}), ("revoked", {0, 1, 2, 3})]
    assert "has not ended" not in caplog.text


def test_a_partition_is_lost_with_its_owner_znode(group: Group) -> None:
    """If another client deletes an owner znode, on_lost is called, and then on_assigned."""
    heard = Heard()
    with connected(group, heard) as connector:
        connector.create_message_streams({group.topic: 1})
        eventually(lambda: heard.calls == [("assigned", {0, 1, 2, 3})])
        group.admin.delete(group.owner(2))
        eventually(lambda: heard.calls[1:] == [("lost", {2}), ("assigned", {2})])


def test_callbacks_as_parameters_that_raise(group: Group) -> None:
    """If a callback raises an exception it is counted, and the member continues."""

    def bad(partitions: list[TopicPartition]) -> None:
        raise ValueError(partitions)

    connect = group.sandbox.zookeeper_connect
    settings = {**SETTINGS, "zookeeper_connect": connect, "consumer_timeout_s": LIMIT_S}
    config = ConsumerConfig(group_id=group.name, **settings)
    with ConsumerConnector(config, on_assigned=bad) as connector:
        (stream,) = connector.create_message_streams({group.topic: 1})[group.topic]
        assert next(stream).offset == 0
        eventually(lambda: connector.metrics().get("listener_failed") == 1)


def test_coroutine_functions(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """With asyncio, a coroutine callback runs in the event loop, and may await a commit."""
    topic = unique("callbacks")
    sandbox.create_topic(topic)
    sandbox.produce(topic, 3)
    tp = TopicPartition(topic, 0)
    calls: list[tuple[str, list[TopicPartition]]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()

        async def revoked(partitions: list[TopicPartition]) -> None:
            assert asyncio.get_running_loop() is loop
            await connector.commit_offsets()
            calls.append(("revoked", partitions))

        connect = sandbox.zookeeper_connect
        settings = {**SETTINGS, "zookeeper_connect": connect, "consumer_timeout_s": LIMIT_S}
        config = ConsumerConfig(group_id=topic, **settings)
        async with aio.ConsumerConnector(
            config, on_assigned=lambda one: calls.append(("assigned", one)), on_revoked=revoked
        ) as connector:
            (stream,) = (await connector.create_message_streams({topic: 1}))[topic]
            await anext(stream)

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))
    assert calls == [("assigned", [tp]), ("revoked", [tp])]


def test_a_callback_that_cannot_be_called_is_a_config_error() -> None:
    """Both connectors refuse a callback that is no function, and an object without callbacks."""
    properties = {"group.id": "g", "zookeeper.connect": "127.0.0.1:1"}
    wrong: Any = {"on_assigned": "flush"}
    for kind in (ConsumerConnector, aio.ConsumerConnector):
        with pytest.raises(ConfigError, match=r"'flush' cannot be called \(on_assigned\)"):
            kind(properties, **wrong)
        with pytest.raises(ConfigError, match="object has none of the methods on_assigned"):
            kind(properties, callbacks=cast(Any, object()))
