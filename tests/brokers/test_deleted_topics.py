"""A consumer never creates a topic: not even a topic that was just deleted, on brokers that create
topics on request."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from kazoo.client import KazooClient
from support.wait import eventually
from support.zk.client import peer_of

from zkconsumer import ConnectorClosedError, ConsumerConfig, ConsumerConnector, white_list
from zkconsumer.consumer.stream import Stream
from zkconsumer.sandbox import Sandbox

DELETIONS = 100

# A broker creates a topic again within 0.3 s after its deletion, if a client names it.
SETTLED_S = 5.0


def deleted_topics_that_came_back(
    sandbox: Sandbox, *, count: int, engine: Literal["auto", "librdkafka", "columns"]
) -> list[str]:
    """Delete topics while a member reads them; return those that exist afterwards."""
    names = [f"gone-{number}" for number in range(count)]
    for name in names:
        sandbox.create_topic(name)
    config = ConsumerConfig(
        group_id=f"deletions-{engine}",
        zookeeper_connect=sandbox.zookeeper_connect,
        auto_offset_reset="smallest",
        fetch_engine=engine,
    )
    read: set[str] = set()

    def reads(stream: Stream[bytes, bytes]) -> None:
        while True:
            try:
                read.update(message.topic for message in stream.poll(timeout_s=0.2))
            except ConnectorClosedError:
                return

    with peer_of(sandbox.zookeeper_connect) as zk, ConsumerConnector(config) as connector:
        for name in names:
            sandbox.produce(name, 1)
        (stream,) = connector.create_message_streams_by_filter(white_list("gone-.*"))
        thread = threading.Thread(target=reads, args=[stream])
        thread.start()
        eventually(lambda: len(read) == count, limit_s=120.0)
        for name in names:
            zk.create(f"/admin/delete_topics/{name}", b"", makepath=True)
        eventually(lambda: not zk.get_children("/admin/delete_topics"), limit_s=120.0)
        with suppress(AssertionError):  # usually, not all of them come back
            eventually(lambda: existing(zk) >= set(names), SETTLED_S)
        back = existing(zk) & set(names)
        connector.shutdown()
        thread.join()
    return sorted(back)


def existing(zk: KazooClient) -> set[str]:
    return set(zk.get_children("/brokers/topics"))


@pytest.mark.parametrize("release", ["0.8.2.2", "0.9.0.1", "0.10.2.2"])
def test_a_deleted_topic_stays_deleted(tmp_path: Path, release: str) -> None:
    """On a broker before 0.11 that creates topics on request, no deleted topic comes back."""
    with Sandbox(
        tmp_path, release=release, overrides={"auto.create.topics.enable": "true"}
    ) as sandbox:
        assert not deleted_topics_that_came_back(sandbox, count=DELETIONS, engine="auto")
