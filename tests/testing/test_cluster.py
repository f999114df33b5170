"""A fake cluster serves zkconsumer and confluent-kafka, in every release, and has faults."""

from __future__ import annotations

import inspect
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from support.kafka.offsets import Wire, header
from support.wait import LIMIT_S, eventually

from zkconsumer import ConsumerConfig, ConsumerConnector, TopicPartition
from zkconsumer.errors import ConfigError, FakeServerError
from zkconsumer.kafka.fetcher import AutoOffsetReset
from zkconsumer.kafka.group_offsets import GroupOffsets
from zkconsumer.protocol.model import OffsetAndMetadata
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.topics import client_settings
from zkconsumer.sim.logs import MemoryFetcher
from zkconsumer.testing import RELEASES, Delay, FakeCluster, Fault, LegacyKafka, StoppedClock
from zkconsumer.testing.errors import ErrorCode

LAST = RELEASES[-1]


@pytest.fixture
def kafka() -> Iterator[FakeCluster]:
    """Two brokers of 3.9, and a topic of two partitions, each led by one broker."""
    with FakeCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=2)
        yield cluster


def settings(cluster: FakeCluster, **more: Any) -> dict[str, Any]:
    """Return librdkafka's settings for the cluster."""
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {**client_settings(cluster.zookeeper_connect), "error_cb": lambda _: None, **named}


def taken(consumer: Consumer, count: int) -> list[tuple[int, int, bytes | None]]:
    """Return partition, offset and value of the next messages."""
    found: list[tuple[int, int, bytes | None]] = []

    def is_read() -> bool:
        one = consumer.poll(0.05)
        if one is not None and one.error() is None:
            found.append((one.partition() or 0, one.offset() or 0, one.value()))
        return len(found) >= count

    eventually(is_read)
    return found


def member(cluster: FakeCluster, group: str, **more: Any) -> ConsumerConnector:
    config = ConsumerConfig(
        group_id=group,
        zookeeper_connect=cluster.zookeeper_connect,
        auto_offset_reset="smallest",
        consumer_timeout_s=LIMIT_S,
        **more,
    )
    return ConsumerConnector(config)


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_serves_both_clients(release: str) -> None:
    """A librdkafka producer writes, and zkconsumer and a librdkafka consumer read the same."""
    with FakeCluster(release=release) as cluster:
        cluster.create_topic("t")
        producer = Producer(settings(cluster, linger_ms=0))
        for number in range(3):
            producer.produce("t", f"value {number}", key="k", partition=0)
        assert producer.flush(LIMIT_S) == 0
        consumer = Consumer(settings(cluster, group_id="g", fetch_wait_max_ms=20))
        consumer.assign([RawPartition("t", 0, 1)])
        expected = [(0, number, f"value {number}".encode()) for number in range(3)]
        assert taken(consumer, 2) == expected[1:]
        consumer.close()
        with member(cluster, "old") as connector:
            (stream,) = connector.create_message_streams({"t": 1})["t"]
            messages = [next(stream) for _ in range(3)]
        assert [(one.partition, one.offset, one.value) for one in messages] == expected
        assert [one.key for one in messages] == [b"k"] * 3
        has_times = release not in ("0.8.2.2", "0.9.0.1")
        assert {one.timestamp is not None for one in messages} == {has_times}


# Methods of a sandbox report their progress, which a fake does not need.
OF_SANDBOX = {"on_progress"}


@pytest.mark.parametrize("fake", [FakeCluster, LegacyKafka])
def test_methods_take_what_those_of_a_sandbox_take(fake: type) -> None:
    """A test that calls a method of real servers can call the fake's with the same arguments."""
    shared = {name for name in {*dir(fake)} & {*dir(Sandbox)} if not name.startswith("_")}
    methods = {name for name in shared if inspect.isfunction(getattr(Sandbox, name))}
    assert {"create_topic", "messages", "produce"} <= methods
    for name in methods:
        of_fake, of_sandbox = (
            inspect.signature(getattr(one, name)).parameters for one in (fake, Sandbox)
        )
        assert {*of_sandbox} - OF_SANDBOX <= {*of_fake}, name


def test_messages_of_one_partition(kafka: FakeCluster) -> None:
    """`messages` reads one partition if its number is given, and refuses an unknown one."""
    kafka.produce_keyed("t", [(None, "a"), (b"k", "b")], partition=1, timestamp_ms=5_000)
    kafka.produce("t", ["c"], partition=0)
    found = kafka.messages("t", partition=1)
    assert [(one.key(), one.value()) for one in found] == [(None, b"a"), (b"k", b"b")]
    assert [one.timestamp()[1] for one in found] == [5_000] * 2
    with pytest.raises(FakeServerError, match="7"):
        kafka.messages("t", partition=7)


def test_messages_that_the_test_appends(kafka: FakeCluster) -> None:
    """`produce` places messages by their key, keeps timestamps and headers, and returns places."""
    headers = (("name", b"value"), ("none", None))
    placed = kafka.produce("t", ["a", None, b"c"], key="k", timestamp_ms=5_000, headers=headers)
    (partition,) = {number for number, _ in placed}
    assert [offset for _, offset in placed] == [0, 1, 2]
    found = kafka.messages("t")
    assert [one.value() for one in found] == [b"a", None, b"c"]
    assert {one.partition() for one in found} == {partition}
    assert [one.timestamp()[1] for one in found] == [5_000] * 3
    assert found[0].headers() == list(headers)
    assert {number for number, _ in kafka.produce("t", 4)} == {0, 1}


def test_the_simulators_fetcher_reads_the_same_logs(kafka: FakeCluster) -> None:
    """The simulator's `MemoryFetcher` reads the logs that the brokers serve."""
    kafka.produce("t", 60, partition=1)
    kafka.delete_records("t", 1, 10)
    tp = TopicPartition("t", 1)
    fetcher = MemoryFetcher(kafka.logs)
    assert fetcher.resolve([tp], AutoOffsetReset.SMALLEST).result() == {tp: 10}
    fetcher.assign({tp: 10})
    (run,) = fetcher.fetch(0, 3)
    assert [run.value(number) for number in range(3)] == [b"10", b"11", b"12"]
    assert fetcher.ends([tp]) == {tp: 60}


def test_topics_change_by_the_admin_protocol(kafka: FakeCluster) -> None:
    """An AdminClient creates, enlarges and deletes topics; errors have Kafka's codes."""
    admin = AdminClient(settings(kafka))
    topic = NewTopic("new", num_partitions=1, replication_factor=2)
    admin.create_topics([topic])["new"].result(LIMIT_S)
    with pytest.raises(Exception, match="new exists"):
        admin.create_topics([topic])["new"].result(LIMIT_S)
    admin.create_partitions([NewPartitions("new", 3)])["new"].result(LIMIT_S)
    assert kafka.topics() == {"new": 3, "t": 2}
    admin.delete_topics(["new"])["new"].result(LIMIT_S)
    assert kafka.topics() == {"t": 2}
    assert not kafka.zookeeper.exists("/brokers/topics/new")


def test_a_moved_leader_is_found(kafka: FakeCluster) -> None:
    """A consumer and a producer follow a partition to its new leader, and no message is lost."""
    producer = Producer(settings(kafka, linger_ms=0))
    consumer = Consumer(settings(kafka, group_id="g", fetch_wait_max_ms=20))
    consumer.assign([RawPartition("t", 0, 0)])
    producer.produce("t", "before", partition=0)
    assert taken(consumer, 1) == [(0, 0, b"before")]
    leader = kafka.leader("t", 0)
    assert leader is not None
    kafka.move_leader("t", 0, 1 - leader)
    assert kafka.leader("t", 0) == 1 - leader
    producer.produce("t", "after", partition=0)
    assert taken(consumer, 1) == [(0, 1, b"after")]
    consumer.close()


def test_a_stopped_broker_gives_its_partitions_up(kafka: FakeCluster) -> None:
    """A partition with two replicas gets the other leader; one with a single replica gets none."""
    kafka.create_topic("safe", replicas=2)
    kafka.produce("safe", ["a"])
    first = kafka.leader("safe", 0)
    assert first is not None
    kafka.brokers[first].stop()
    assert kafka.leader("safe", 0) == 1 - first
    alone = next(number for number in (0, 1) if kafka.leader("t", number) is None)
    kafka.brokers[first].start()
    assert kafka.leader("t", alone) == first
    consumer = Consumer(settings(kafka, group_id="g"))
    consumer.assign([RawPartition("safe", 0, 0)])
    assert taken(consumer, 1) == [(0, 0, b"a")]
    consumer.close()


@pytest.mark.parametrize("fault", [Fault.CUT_AFTER, Fault.CUT_BEFORE, Delay(0.05)])
def test_an_idempotent_producer_survives_faults(kafka: FakeCluster, fault: Fault | Delay) -> None:
    """A lost request, a lost response or a late one leaves exactly one copy of a message."""
    leader = kafka.leader("t", 0)
    injected = kafka.brokers[leader or 0].inject(fault, "Produce")
    producer = Producer(settings(kafka, linger_ms=0, enable_idempotence=True))
    producer.produce("t", "once", partition=0)
    assert producer.flush(LIMIT_S) == 0
    assert injected.count == 1
    assert [one.value() for one in kafka.messages("t")] == [b"once"]


def test_a_paused_broker_answers_later(kafka: FakeCluster) -> None:
    """A frozen broker answers nothing; after `resume` it answers what has arrived meanwhile."""
    consumer = Consumer(settings(kafka, group_id="g"))
    kafka.broker.pause()
    kafka.brokers[1].pause()
    with pytest.raises(Exception, match="Failed to get watermark offsets"):
        consumer.get_watermark_offsets(RawPartition("t", 0), 0.1)

    def resume() -> None:
        for one in kafka.brokers:
            one.resume()

    threading.Timer(0.05, resume).start()
    assert consumer.get_watermark_offsets(RawPartition("t", 0), LIMIT_S) == (0, 0)
    consumer.close()


def test_a_paused_broker_does_not_end_a_wait_for_messages(kafka: FakeCluster) -> None:
    """A fetch that waits at a frozen broker is answered after `resume`, even if messages come."""
    kafka.produce("t", ["before"], partition=0)
    leader = kafka.brokers[kafka.leader("t", 0) or 0]
    fetches = leader.inject(Delay(0.0), "Fetch", times=2)
    consumer = Consumer(settings(kafka, group_id="g", fetch_wait_max_ms=20_000))
    consumer.assign([RawPartition("t", 0, 0)])
    assert taken(consumer, 1) == [(0, 0, b"before")]
    eventually(lambda: fetches.count == 2)  # the second fetch waits for messages
    leader.pause()
    kafka.produce("t", ["after"], partition=0)
    assert consumer.poll(0.3) is None
    leader.resume()
    assert taken(consumer, 1) == [(0, 1, b"after")]
    consumer.close()


def test_transactions(kafka: FakeCluster) -> None:
    """`read_committed` skips aborted messages, and ends before an open transaction."""
    producer = Producer(settings(kafka, transactional_id="x", linger_ms=0))
    producer.init_transactions(LIMIT_S)
    for value in ("aborted", "committed"):
        producer.begin_transaction()
        producer.produce("t", value, partition=0)
        producer.flush(LIMIT_S)
        getattr(producer, "abort_transaction" if value == "aborted" else "commit_transaction")()
    producer.begin_transaction()
    producer.produce("t", "open", partition=0)
    producer.flush(LIMIT_S)
    consumer = Consumer(settings(kafka, group_id="g", enable_partition_eof=True))
    consumer.assign([RawPartition("t", 0, 0)])
    assert taken(consumer, 1) == [(0, 2, b"committed")]
    end = consumer.poll(LIMIT_S)
    assert end is not None
    failed = end.error()
    assert failed is not None
    assert failed.name() == "_PARTITION_EOF"
    assert end.offset() == 4
    consumer.close()
    assert len(kafka.messages("t")) == 3


def test_groups_of_the_new_consumer(kafka: FakeCluster) -> None:
    """Two members of a new group share partitions; readers find offsets on a new coordinator."""
    kafka.produce("t", 10)
    ours = settings(kafka, group_id="new", auto_offset_reset="earliest", enable_auto_commit=False)
    consumers = [Consumer(ours) for _ in range(2)]
    for one in consumers:
        one.subscribe(["t"])

    def shared() -> bool:
        for one in consumers:
            one.poll(0.01)
        return all(len(one.assignment()) == 1 for one in consumers)

    eventually(shared)
    consumers[0].commit(offsets=[RawPartition("t", 0, 3, "note")], asynchronous=False)
    for one in consumers:
        one.close()
    tp = TopicPartition("t", 0)
    kept = GroupOffsets({"bootstrap.servers": kafka.bootstrap})
    stored = {"new": {tp: OffsetAndMetadata(3, "note")}, "other": {tp: None}}
    assert kept.read_all({group: [tp] for group in stored}, limit_s=LIMIT_S) == stored
    first = kafka.leader("__consumer_offsets", 0)
    for number in range(4):
        kafka.move_leader("__consumer_offsets", number, 1 - (first or 0))
    assert kafka.offsets_in_kafka("new")[tp].offset == 3
    assert kept.read_all({group: [tp] for group in stored}, limit_s=LIMIT_S) == stored
    kept.close()
    reader = Consumer(ours)
    (found,) = reader.committed([RawPartition("t", 0)], LIMIT_S)
    assert (found.offset, (found.metadata or "").rstrip("\0")) == (3, "note")
    reader.close()


def test_the_tests_own_time() -> None:
    """With a stopped clock, timestamps are exact, and sessions expire only by `advance`."""
    clock = StoppedClock(start=1_000.0)
    with FakeCluster(clock=clock) as cluster:
        cluster.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
        cluster.produce("t", 1)
        cluster.advance(60)
        producer = Producer(settings(cluster, linger_ms=0))
        producer.produce("t", "x")
        producer.flush(LIMIT_S)
        times = [one.timestamp() for one in cluster.messages("t")]
        assert times == [(2, 1_000_000), (2, 1_060_000)]


@pytest.mark.parametrize(
    ("api", "version", "name"), [(32, 0, "DescribeConfigs"), (1, 12, "Fetch"), (99, 0, "99")]
)
def test_a_refused_request_is_named(
    caplog: pytest.LogCaptureFixture, api: int, version: int, name: str
) -> None:
    """A request that the fake lacks, or a version that the release lacks, is named in the log."""
    with FakeCluster(release="1.1.1") as old:
        wire = Wire(old.bootstrap)
        with pytest.raises(AssertionError, match="the broker closed the connection"):
            wire.ask(header(api, version))
        wire.close()
    assert f"release 1.1.1 does not serve version {version} of" in caplog.text
    assert name in caplog.text


def test_errors_say_what_is_wrong(kafka: FakeCluster) -> None:
    """A wrong call raises FakeServerError or ConfigError with the reason."""
    with pytest.raises(FakeServerError, match="t exists"):
        kafka.create_topic("t")
    with pytest.raises(FakeServerError, match="does not exist"):
        kafka.produce("9", 1)
    with pytest.raises(FakeServerError, match="3 replicas cannot be placed on 2"):
        kafka.create_topic("u", replicas=3)
    with pytest.raises(FakeServerError, match="serves Fetsch"):
        kafka.broker.inject(Fault.SILENCE, "Fetsch")
    with pytest.raises(ConfigError, match=r"no fake broker of release 2\.4"):
        FakeCluster(release="2.4.0")
    with pytest.raises(FakeServerError, match="the fake cluster is not running"):
        FakeCluster().create_topic("t")


def test_what_the_test_appends_obeys_the_largest_size(kafka: FakeCluster) -> None:
    """`produce` divides batches that are too large, and refuses a message that is too large."""
    kafka.create_topic("small", config={"max.message.bytes": 1_000})
    placed = kafka.produce("small", [bytes(300)] * 9)
    assert [offset for _, offset in placed] == [*range(9)]
    assert [one.offset() for one in kafka.messages("small")] == [*range(9)]
    with pytest.raises(FakeServerError, match=r"exceed max\.message\.bytes"):
        kafka.produce("small", [bytes(1_000)])
    assert len(kafka.messages("small")) == 9


def fake_servers() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "fake servers"}


def test_stop_leaves_nothing_and_start_continues() -> None:
    """`stop` ends the thread and the ports; after another `start` the messages are there."""
    before = fake_servers()
    cluster = FakeCluster()
    cluster.start()
    cluster.create_topic("t")
    cluster.produce("t", ["a"])
    cluster.stop()
    cluster.stop()
    assert not fake_servers() - before
    with cluster:
        assert [one.value() for one in cluster.messages("t")] == [b"a"]
        assert cluster.leader("t", 0) == 0


# ---- topics and ZooKeeper -----------------------------------------------------------------------


@pytest.mark.parametrize("release", ["0.8.2.2", "0.10.2.2", LAST])
def test_a_producer_creates_its_topic(release: str) -> None:
    """By default, brokers create a topic that a producer names, as `auto.create.topics.enable`."""
    with FakeCluster(release=release) as cluster:
        producer = Producer(settings(cluster, linger_ms=0))
        producer.produce("new", b"first")
        assert producer.flush(LIMIT_S) == 0
        assert cluster.topics() == {"new": 1}
        assert [one.value() for one in cluster.messages("new")] == [b"first"]


def test_a_topic_is_not_created_against_the_request_or_the_setting() -> None:
    """Neither a client that refuses it nor brokers without the setting create a topic."""
    with FakeCluster() as cluster, FakeCluster(auto_create_topics=False) as strict:
        for servers, allowed in ((cluster, False), (strict, True)):
            named = settings(servers, group_id="g", allow_auto_create_topics=allowed)
            consumer = Consumer(named)
            metadata = consumer.list_topics("new", LIMIT_S)
            assert metadata.topics["new"].error is not None
            assert "new" not in servers.topics()
            consumer.close()


@pytest.mark.parametrize("payload", [b"", b"null", b"[" * 100_000, b'{"partitions":{"a":[0]}}'])
def test_a_topic_that_cannot_be_read(
    kafka: FakeCluster, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller names a topic whose payload it cannot read, and serves the next topic."""
    kafka.zookeeper.create("/brokers/topics/broken", payload)
    kafka.create_topic("whole")
    kafka.produce("whole", ["a"])
    assert kafka.topics() == {"t": 2, "whole": 1}
    assert "cannot read topic broken" in caplog.text


def test_a_topic_costs_the_same_beside_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller reads as many znodes for the fortieth topic as for the first."""
    with FakeCluster() as cluster:
        counts: list[int] = []
        read = cluster.zookeeper.exists

        def exists(path: str) -> bool:
            counts[-1] += 1
            return read(path)

        monkeypatch.setattr(cluster.zookeeper, "exists", exists)
        for number in range(41):
            counts.append(0)
            cluster.create_topic(f"topic-{number}", partitions=2)
        # The first topic also creates the parents, which later ones find.
        assert counts[1] == counts[-1] > 0


def test_brokers_register_again_after_a_loss_of_data() -> None:
    """Topics of the backup keep their messages; later topics are gone; a crashed broker stays."""
    with FakeCluster(brokers=2, release="1.1.1") as cluster:
        cluster.create_topic("kept", partitions=2)
        cluster.zookeeper.back_up()
        cluster.add_partitions("kept", partitions=3)
        cluster.produce("kept", 2, partition=1)
        cluster.create_topic("lost")
        cluster.brokers[1].kill()
        cluster.zookeeper.lose_data()
        assert cluster.zookeeper.children("/brokers/ids") == ("0",)
        assert cluster.zookeeper.owner("/controller") == cluster.zookeeper.owner("/brokers/ids/0")
        assert cluster.topics() == {"kept": 2}
        assert [cluster.leader("kept", number) for number in range(2)] == [0, None]
        cluster.brokers[1].start()
        assert cluster.leader("kept", 1) == 1
        assert len(cluster.messages("kept")) == 2
        with member(cluster, "g") as connector:
            (stream,) = connector.create_message_streams({"kept": 1})["kept"]
            assert [next(stream).offset for _ in range(2)] == [0, 1]


def test_no_coordinator_without_registered_brokers() -> None:
    """While no broker is registered, a group has no coordinator, and the connection continues."""
    with FakeCluster() as cluster:
        cluster.zookeeper.delete("/brokers/ids/0")
        wire = Wire(cluster.bootstrap)
        question = header(10, 0) + struct.pack(">h", 1) + b"g"
        for _ in range(2):
            _, error = struct.unpack_from(">ih", wire.ask(question))
            assert error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        wire.close()
