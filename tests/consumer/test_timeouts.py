"""Timeouts while brokers accept connections but answer no request."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from kazoo.client import KazooClient
from support.kafka.streams import KafkaLog, Reader, settings_for
from support.members.group import SETTINGS, register_broker
from support.wait import LIMIT_S, eventually
from support.zk.proxies import Proxy, Wire

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.consumer.stream import Stream
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.librdkafka import KafkaFetcher
from zkconsumer.kafka.logs import KeptLogs
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import Broker
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.server import JavaServer

# Seconds by which polls may be later than plain waits. A poll that waits for a broker is late by a
# second.
TOLERANCE_S = 0.25


@pytest.fixture
def silent(sandbox: Sandbox) -> Iterator[str]:
    """The address of a broker that accepts connections but answers no request."""
    with Proxy(sandbox.bootstrap) as proxy:
        proxy.wire = Wire.SILENT
        yield proxy.address


def expect_exact(stream: Stream[object, object], timeout_s: float = 0.1) -> None:
    """Poll 15 times: each poll returns empty and not too early, and the median is in time.

    Plain waits between the polls show how late the machine itself is. Other processes may delay
    single polls, so the medians are compared.
    """
    never, late, plainly_late = threading.Event(), list[float](), list[float]()
    for _ in range(15):
        start = time.monotonic()
        never.wait(timeout_s)
        middle = time.monotonic()
        assert not stream.poll(timeout_s=timeout_s)
        plainly_late.append(middle - start - timeout_s)
        late.append(time.monotonic() - middle - timeout_s)
    assert min(late) > -0.001
    allowed = statistics.median(plainly_late) + TOLERANCE_S
    assert statistics.median(late) <= allowed, (late, plainly_late)


@pytest.mark.parametrize("offset", [0, None])
def test_a_poll_returns_in_time_while_its_broker_is_silent(
    silent: str, unique: Callable[[str], str], sandbox: Sandbox, offset: int | None
) -> None:
    """While a leader or an offset is looked up, polls still return in time."""
    reader = Reader(
        KafkaLog(unique("silent"), sandbox), connect=lambda: KafkaFetcher(settings_for(silent))
    )
    for partition in range(3):
        reader.grant(partition, offset)
        expect_exact(reader.stream)
    assert reader.stream.waiting_for or offset is not None
    reader.stream.close()


def test_a_member_polls_in_time_while_its_brokers_are_silent(
    silent: str, unique: Callable[[str], str], cluster: tuple[KazooClient, str]
) -> None:
    """A member's polls return in time while its only broker answers no request."""
    client, connect = cluster
    topic = unique("silent")
    register_broker(client, 0, silent)
    client.create(paths.topic(topic), b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
    config = ConsumerConfig(group_id="g", zookeeper_connect=connect, **SETTINGS)
    with ConsumerConnector(config) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        eventually(lambda: connector.status().owned)
        expect_exact(stream)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sandbox, int, int]]:
    """Two brokers, and the partitions of the topic `half` that the first and the second lead."""
    # A stopped broker remains the leader while its session lasts.
    patient = {"zookeeper.session.timeout.ms": 40_000}
    with Sandbox(tmp_path_factory.mktemp("half"), brokers=2, overrides=patient) as sandbox:
        placements = sandbox.create_topic("half", partitions=2, replicas=1)
        leaders = {one.leader: one.partition for one in placements}
        yield sandbox, leaders[0], leaders[1]


@pytest.fixture
def second(half: tuple[Sandbox, int, int]) -> Iterator[JavaServer]:
    """The second broker, which answers again after the test."""
    broker = half[0].brokers[1]
    yield broker
    broker.resume()


def test_a_silent_broker_does_not_delay_the_partitions_of_another(
    half: tuple[Sandbox, int, int], second: JavaServer
) -> None:
    """A partition whose leader is stopped does not delay the messages of other partitions."""
    sandbox, flowing, stopped = half
    log = KafkaLog("half", sandbox)
    reader = Reader(log)
    log.append(flowing, ["first"])
    reader.grant(flowing, 0)
    assert list(reader.take(1)) == [(flowing, 0)]
    second.pause()
    reader.grant(stopped, None)
    expect_exact(reader.stream)
    for _ in range(15):
        # The poll would wait for its whole limit, if the stopped leader delayed the other one.
        log.append(flowing, ["more"])
        assert reader.stream.poll(timeout_s=LIMIT_S)
    reader.stream.close()


def test_a_reading_asks_a_silent_leader_once(
    half: tuple[Sandbox, int, int], second: JavaServer
) -> None:
    """A leader that does not answer is asked once in a reading, however often it is needed."""
    sandbox, flowing, stopped = half
    brokers = Brokers([Broker("127.0.0.1", one.port, 4, ()) for one in sandbox.brokers])
    asked = [TopicPartition("half", flowing), TopicPartition("half", stopped)]
    with closing(KeptLogs(limit_s=2.0)) as kept:
        known = kept.ends(brokers, asked)
        assert not any(isinstance(one, str) for one in known.values()), known
        second.pause()
        first = known
        while isinstance(first[asked[0]], str) or first is known:
            # If the stopped broker is asked for the leaders, the reading may know nothing.
            reading = kept.reading()
            first = reading.ends(brokers, asked)
        assert "does not answer" in str(first[asked[1]])
        second.resume()
        assert reading.ends(brokers, asked) == first
        eventually(lambda: kept.reading().ends(brokers, asked) == known)
