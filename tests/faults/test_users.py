"""User code that blocks or raises, and other clients that flood the group or block partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient
from support.members.crew import Crew
from support.members.group import SETTINGS, Reader
from support.wait import LIMIT_S, wait_for

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import Sandbox

# The lease of this session lasts 4 s, and no stall of a busy machine is so long.
SESSION_S = 6.0
CROWD = 200
MESSAGES = 30


@pytest.fixture
def connector(sandbox: Sandbox, crew: Crew) -> Iterator[ConsumerConnector]:
    """A member in this process, which is the only member of its group."""
    more = {**SETTINGS, "zookeeper_session_timeout_s": SESSION_S, "consumer_timeout_s": None}
    config = ConsumerConfig(
        group_id=crew.group, zookeeper_connect=sandbox.zookeeper_connect, **more
    )
    with ConsumerConnector(config) as one:
        yield one


@pytest.fixture
def filled(sandbox: Sandbox, unique: Callable[[str], str]) -> str:
    """A topic of one partition with a few messages."""
    name = unique("filled")
    sandbox.create_topic(name, partitions=1)
    sandbox.produce(name, MESSAGES)
    return name


def test_a_decoder_that_blocks(crew: Crew, connector: ConsumerConnector, filled: str) -> None:
    """If a decoder blocks for longer than a session timeout, its member loses no partition."""
    entered, go_on = threading.Event(), threading.Event()

    def hang(payload: bytes) -> bytes:
        entered.set()
        go_on.wait(LIMIT_S)
        return payload

    streams = connector.create_message_streams({filled: 1}, value_decoder=hang)
    values: list[bytes] = []

    def read() -> None:
        for message in streams[filled][0]:
            values.append(message.value)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert entered.wait(LIMIT_S)
    owners, session = crew.observer.snapshot().owners, connector.status().session
    assert list(owners) == [TopicPartition(filled, 0)]
    hung_at = boottime()
    limit = hung_at + 1.5 * SESSION_S
    wait_for(lambda: boottime() > limit, "more than the session timeout to pass")
    assert crew.observer.snapshot().owners == owners
    assert connector.status().session == session
    assert connector.status().lease_s > 0
    go_on.set()
    wait_for(lambda: len(values) == MESSAGES, "all messages")
    connector.shutdown()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_decoder_that_raises(connector: ConsumerConnector, filled: str) -> None:
    """If a decoder raises for every third value, all messages are still delivered in order."""
    numbers = iter(range(1, 1 << 30))

    def sometimes(payload: bytes) -> bytes:
        if next(numbers) % 3 == 0:
            raise RuntimeError("no such value")
        return payload

    stream = connector.create_message_streams({filled: 1}, value_decoder=sometimes)[filled][0]
    reader = Reader(stream)
    reader.start()
    wait_for(lambda: len(reader.messages) == MESSAGES, "all messages")
    assert reader.offsets(0) == list(range(MESSAGES))
    failed = 0
    for message in reader.messages:
        try:
            assert message.value is not None
        except Exception as error:  # noqa: BLE001 - whichever it is, it is the package's
            assert type(error).__name__ == "DecodeError"
            failed += 1
    assert failed == MESSAGES // 3
    reader.ended.set()
    connector.shutdown()
    reader.join(LIMIT_S)


@pytest.mark.usefixtures("topic")
def test_a_stuck_owner(crew: Crew, admin: KazooClient, topic: str) -> None:
    """A persistent owner znode is reported until it is deleted; other partitions are delivered."""
    stuck = TopicPartition(topic, 3)
    admin.create(paths.owner(crew.group, stuck), b"ghost_1-0", makepath=True)
    member = crew.join(rebalance_max_retries=1)
    wait_for(lambda: len(member.owned) == 7, "the member to own seven partitions")
    wait_for(lambda: member.last("status")["blocked"] == [str(stuck)], "the owner to be reported")
    crew.flowing(member)
    assert not any(one.partition == stuck for one in member.delivered)
    admin.delete(paths.owner(crew.group, stuck))
    crew.settle(member)
    crew.flowing(member)
    assert crew.finish().duplicates() == 0


@pytest.mark.usefixtures("topic")
def test_many_members_join_and_leave(
    crew: Crew, sandbox: Sandbox, stack: ExitStack, topic: str
) -> None:
    """After 200 sessions join and vanish at once, the group settles and no message is lost."""
    members = [crew.join() for _ in range(2)]
    crew.settle(*members)
    crew.flowing(*members)
    payload = encode_registration(Registration({topic: 1}, timestamp_ms=1))
    clients = [KazooClient(sandbox.zookeeper_connect, timeout=20.0) for _ in range(CROWD)]
    for client in clients:
        client.start_async()
        stack.callback(client.close)
        stack.callback(client.stop)
    wait_for(lambda: all(client.connected for client in clients), "200 sessions", 2 * LIMIT_S)
    for number, client in enumerate(clients):
        # This id sorts before those of zkconsumer's members, which therefore get no partitions.
        client.create_async(paths.member(crew.group, f"a_{number:03}"), payload, ephemeral=True)
    wait_for(
        lambda: not any(one.owned for one in members), "the 200 members to be seen", 2 * LIMIT_S
    )
    for client in clients:
        client.stop()
    crew.settle(*members)
    crew.flowing(*members)
    assert crew.finish().duplicates() == 0
