"""The ends of logs, and a group's offsets, are read from brokers; no topic is created."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient
from support.kafka.logs import COMMITTED, open_transaction, producer, transact
from support.kafka.offsets import commit_as_another_client, store_of
from support.wait import LIMIT_S
from support.zk.client import peer_of

from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.errors import BrokersUnreachableError, ConfigError
from zkconsumer.kafka import log_answers
from zkconsumer.kafka.client_settings import Brokers, broker_settings
from zkconsumer.kafka.columns.lookups import Lookup
from zkconsumer.kafka.fetcher import AutoOffsetReset
from zkconsumer.kafka.group_offsets import UNREADABLE, GroupOffsets
from zkconsumer.kafka.logs import (
    NO_BROKER,
    NO_TOPIC,
    KeptLogs,
    LogClient,
    LogRange,
    are_times_exact,
    committed_in_kafka,
    group_offsets,
    log_ends,
    offsets_at,
)
from zkconsumer.kafka.refusals import Refusals
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.payloads import Broker, decode_broker
from zkconsumer.protocol.requests import FetchOffsets
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.topics import client_settings

NOBODY = Broker("127.0.0.1", 1, 4, ("PLAINTEXT://127.0.0.1:1",))


@pytest.fixture
def brokers(sandbox: Sandbox) -> Brokers:
    """The brokers, as ZooKeeper has their registrations."""
    path = paths.broker(0)
    with peer_of(sandbox.zookeeper_connect) as client:
        return Brokers([decode_broker(client.get(path)[0], where=path)])


def test_log_ends(
    sandbox: Sandbox,
    brokers: Brokers,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several requests return both ends of each log; an unknown partition gets a reason."""
    topic, missing = unique("logs"), unique("missing")
    sandbox.create_topic(topic, partitions=3)
    sandbox.produce(topic, 30)
    sandbox_end = 30
    monkeypatch.setattr(log_answers, "PARTITIONS_PER_REQUEST", 2)
    wanted = [TopicPartition(topic, n) for n in range(4)] + [TopicPartition(missing, 0)]
    found = log_ends(brokers, wanted, limit_s=LIMIT_S)
    assert list(found) == wanted
    ranges = [one for one in found.values() if isinstance(one, LogRange)]
    assert [one.start for one in ranges] == [0, 0, 0]
    assert sum(one.end for one in ranges) == sandbox_end
    assert [found[tp] for tp in wanted[3:]] == [NO_TOPIC, NO_TOPIC]
    with peer_of(sandbox.zookeeper_connect) as client:
        assert not client.exists(paths.topic(missing))


def test_committed_log_ends(
    sandbox: Sandbox, brokers: Brokers, unique: Callable[[str], str]
) -> None:
    """With `isolation.level=read_committed` a log ends before its first open transaction."""
    topic = unique("committed")
    sandbox.create_topic(topic)
    transact(sandbox, topic, COMMITTED)
    tp = TopicPartition(topic, 0)
    config = ConnectionConfig(zookeeper_connect="unused:1", isolation_level="read_committed")
    committed = Brokers(brokers, config)
    with open_transaction(sandbox, topic):
        sandbox.produce(topic, 1, partition=0)
        for known, end in ((brokers, 8), (committed, 6)):
            assert log_ends(known, [tp], limit_s=LIMIT_S) == {tp: LogRange(0, end)}
            assert LogClient(known, limit_s=LIMIT_S).latest([tp]) == {tp: end}
            lookup = Lookup({**broker_settings(known), "isolation.level": known.isolation})
            assert lookup.ends([tp], AutoOffsetReset.LARGEST) == {tp: end}
            lookup.close()
    assert log_ends(committed, [tp], limit_s=LIMIT_S) == {tp: LogRange(0, 9)}


def test_by_time(sandbox: Sandbox, brokers: Brokers, unique: Callable[[str], str]) -> None:
    """A look-up by time gives the first message at or after it; None after the last message."""
    topic = unique("times")
    sandbox.create_topic(topic)
    tp, first_ms = TopicPartition(topic, 0), round(time.time() * 1000) - 60_000
    one = producer(sandbox)
    for number in range(3):
        one.produce(topic, b"x", partition=0, timestamp=first_ms + 1000 * number)
    assert one.flush(LIMIT_S) == 0
    asked = [first_ms + 1000 * number + later for number in range(3) for later in (0, 1)]
    found = [offsets_at(brokers, [tp], at_ms, limit_s=LIMIT_S)[tp] for at_ms in asked]
    assert found == [0, 1, 1, 2, 2, None]
    assert are_times_exact(brokers)
    assert not are_times_exact([*brokers, Broker("h", 1, 2, ())])


def test_committed(sandbox: Sandbox, brokers: Brokers, unique: Callable[[str], str]) -> None:
    """A group's offsets in Kafka are returned with metadata; None if there is no offset."""
    topic, group = unique("stored"), unique("group")
    sandbox.create_topic(topic, partitions=2)
    wanted = [TopicPartition(topic, n) for n in range(2)]
    consumer = Consumer({**client_settings(sandbox.zookeeper_connect), "group.id": group})
    consumer.commit(offsets=[RawPartition(topic, 0, 7, "note")], asynchronous=False)
    consumer.close()
    expected = {wanted[0]: OffsetAndMetadata(7, "note"), wanted[1]: None}
    assert committed_in_kafka(brokers, group, wanted, limit_s=LIMIT_S) == expected
    assert committed_in_kafka(brokers, group, [], limit_s=LIMIT_S) == {}
    with closing(group_offsets(brokers, limit_s=LIMIT_S)) as kept:
        assert kept.read(group, wanted, limit_s=LIMIT_S) == expected
        nowhere = TopicPartition("no.such", 0)
        nothing = dict.fromkeys([*wanted, nowhere])
        assert kept.read("nobody", nothing, limit_s=LIMIT_S) == nothing
        assert kept.read(group, [], limit_s=LIMIT_S) == {}


def test_the_offsets_of_many_groups(
    sandbox: Sandbox, brokers: Brokers, unique: Callable[[str], str]
) -> None:
    """Each of many groups that are read together gets its own offsets, as if it were read alone."""
    topic, prefix = unique("many"), unique("group")
    sandbox.create_topic(topic)
    tp = TopicPartition(topic, 0)
    wanted = {f"{prefix}-{number}": [tp] for number in range(600)}
    written = {f"{prefix}-{number}": number + 1 for number in (0, 250, 599)}
    for group, offset in written.items():
        commit_as_another_client(sandbox.bootstrap, group, tp, offset, group.encode())
    expected = {
        group: {tp: OffsetAndMetadata(written[group], group) if group in written else None}
        for group in wanted
    }
    with closing(group_offsets(brokers, limit_s=LIMIT_S)) as kept:
        assert kept.read_all({**wanted, "none": []}, limit_s=LIMIT_S) == {**expected, "none": {}}
        assert {one: kept.read(one, [tp], limit_s=LIMIT_S) for one in written} == {
            one: expected[one] for one in written
        }


FOREIGN = {
    0: b'{"consumer_id": "pk", "hostname": "h"}',
    1: b"",
    2: b"\xff\xfe not a text",
    3: b"n\xc3\xa4h",
    4: b"x" * 4000,
    5: b"a\0b",
}


def test_metadata_of_other_clients_are_read_as_they_were_written(
    sandbox: Sandbox, brokers: Brokers, unique: Callable[[str], str]
) -> None:
    """Metadata without a NUL, or with bytes that are no text, are no error and show no memory."""
    topic, group = unique("foreign"), unique("group")
    sandbox.create_topic(topic, partitions=len(FOREIGN))
    tps = [TopicPartition(topic, number) for number in FOREIGN]
    for number, metadata in FOREIGN.items():
        commit_as_another_client(sandbox.bootstrap, group, tps[number], 5, metadata)
    written = {
        tps[number]: OffsetAndMetadata(5, metadata.decode(errors="replace"))
        for number, metadata in FOREIGN.items()
    }
    for _ in range(5):
        assert committed_in_kafka(brokers, group, tps, limit_s=LIMIT_S) == written
    with store_of(sandbox.zookeeper_connect, group) as ask:
        assert ask(FetchOffsets(tuple(tps))).value == written
    # On a PLAINTEXT listener the property has no effect, but only librdkafka honours it.
    settings = {**broker_settings(brokers), "ssl.curves.list": "P-256"}
    found = GroupOffsets(settings).read(group, tps, limit_s=LIMIT_S)
    for tp, metadata in zip(tps, FOREIGN.values(), strict=True):
        assert found[tp] == OffsetAndMetadata(5, UNREADABLE if metadata else "")


@pytest.mark.parametrize("brokers", [Brokers(), Brokers([NOBODY])])
def test_without_a_reachable_broker_there_is_a_reason(brokers: Brokers) -> None:
    """If no broker can be reached, a reason replaces the numbers."""
    tp = TopicPartition("t", 0)
    reasons = [
        log_ends(brokers, [tp], limit_s=0.3)[tp],
        offsets_at(brokers, [tp], 0, limit_s=0.3)[tp],
        committed_in_kafka(brokers, "g", [tp], limit_s=0.3)[tp],
    ]
    assert all(isinstance(one, str) and one for one in reasons)
    assert brokers or set(reasons) == {NO_BROKER}


def test_a_reading_asks_silent_brokers_once() -> None:
    """Each reading connects to a silent broker equally often, however many groups it reads."""
    tp, connections = TopicPartition("t", 0), 0
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        silent.setblocking(False)
        brokers = Brokers([Broker("127.0.0.1", silent.getsockname()[1], 1, ())])

        def read(*groups: str) -> int:
            nonlocal connections
            reading = kept.reading()
            found = [reading.committed(brokers, {group: [tp]})[group][tp] for group in groups]
            assert all(isinstance(one, str) and "the brokers do not answer" in one for one in found)
            opened = 0
            with suppress(BlockingIOError):
                while True:
                    silent.accept()[0].close()
                    opened += 1
            return opened

        with closing(KeptLogs(limit_s=0.2)) as kept:
            first = read("a")
            assert first > 0
            assert read(*"bcdef") == first


def test_a_reading_without_brokers_asks_no_more() -> None:
    """If no broker returns the ends of the logs, none is asked for the groups' offsets."""
    tp, brokers = TopicPartition("t", 0), Brokers([NOBODY])
    with closing(KeptLogs(limit_s=0.3)) as kept:
        reading = kept.reading()
        ends = reading.ends(brokers, [tp])
        assert reading.committed(brokers, {"g": [tp]}) == {"g": ends}
        assert f"127.0.0.1:{NOBODY.port}: [Errno " in str(ends[tp])


def test_an_error_about_brokers_names_the_address_and_the_cause() -> None:
    """If a broker's advertised name cannot be resolved, each reason names the host and says so."""
    tp, brokers = TopicPartition("t", 0), Brokers([Broker("kafka.invalid", 9092, 1, ())])
    for one in (
        log_ends(brokers, [tp], limit_s=LIMIT_S)[tp],
        committed_in_kafka(brokers, "g", [tp], limit_s=LIMIT_S)[tp],
    ):
        assert "kafka.invalid:9092" in str(one)
        assert "resolve" in str(one)


def test_brokers_that_answered_are_not_called_silent() -> None:
    """Only the error of a request without an answer says that the brokers do not answer."""
    brokers = Brokers([NOBODY])
    client = AdminClient(broker_settings(brokers))
    refusals = Refusals({})
    denied = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert "do not answer" not in str(refusals.explain(client, denied))
    with pytest.raises(BrokersUnreachableError, match="do not answer"):
        LogClient(brokers, limit_s=0.3).topics()


def test_a_property_that_nobody_knows_is_refused() -> None:
    """A wrong `kafka.` property is refused before a broker is asked."""
    config = ConnectionConfig(zookeeper_connect="unused:1", kafka={"no.such": "1"})
    with pytest.raises(ConfigError, match="No such configuration property"):
        LogClient(Brokers([NOBODY], config), limit_s=LIMIT_S)


def test_no_plaintext() -> None:
    """If the brokers offer only TLS, a reason replaces the numbers."""
    tp = TopicPartition("t", 0)
    broker = Broker(None, -1, 4, ("SSL://h:1",))
    assert "PLAINTEXT" in str(log_ends(Brokers([broker]), [tp], limit_s=1)[tp])
