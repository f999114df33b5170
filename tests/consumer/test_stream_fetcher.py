"""When a stream's fetcher reports errors, and when the stream replaces it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

import pytest
from confluent_kafka import TopicPartition as Raw
from support.internals import librdkafka_of
from support.kafka.streams import KafkaLog, MemoryLog, Reader, fetcher_of, settings_for
from support.wait import LIMIT_S, eventually

from zkconsumer.consumer import stream_fetcher
from zkconsumer.consumer.stream_fetcher import ReportKind
from zkconsumer.errors import FetchError
from zkconsumer.kafka import progress
from zkconsumer.kafka.columns import fetcher as columns
from zkconsumer.kafka.columns.column_fetcher import ColumnFetcher
from zkconsumer.kafka.columns.fetcher import RecordFetcher
from zkconsumer.kafka.columns.record_sets import plain_engine
from zkconsumer.kafka.fetcher import Answers, AutoOffsetReset
from zkconsumer.kafka.librdkafka import KafkaFetcher
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.sim.logs import MemoryFetcher
from zkconsumer.testing import Delay, FakeCluster
from zkconsumer.testing.logs import PartitionLog, Slice


class Unanswered(MemoryFetcher):
    """A fetcher whose brokers answer no request for offsets."""

    def resolve(self, tps: Iterable[TopicPartition], reset: AutoOffsetReset) -> Future[Answers]:
        return stream_fetcher.inline(lambda: dict.fromkeys(tps, "timed out"))


def test_one_fault_of_many_partitions_is_one_report() -> None:
    """If a broker of 600 partitions does not answer, there is one log line, not 600."""
    log = MemoryLog("many")
    reader = Reader(log, connect=lambda: fetcher_of(log, kind=Unanswered))
    for partition in range(600):
        reader.grant(partition, None)
    eventually(lambda: reader.stream.poll(timeout_s=0.05) or reader.reports)
    reader.stream.poll(timeout_s=0.2)  # The offsets are requested again every 0.05 s.
    reader.stream.close()
    (report,) = reader.reports
    assert report.kind is ReportKind.FETCH_TROUBLE
    assert report.text == "timed out (and 599 more partitions)"


def test_a_stalled_fetcher_is_replaced(
    sandbox: Sandbox, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a fetcher stalls without an error, the stream replaces it."""
    monkeypatch.setattr(progress, "SILENT_S", 0.5)
    log, made = KafkaLog(unique("still"), sandbox), list[KafkaFetcher]()
    sandbox.create_topic(log.topic)

    def connect() -> KafkaFetcher:
        made.append(KafkaFetcher(settings_for(sandbox.bootstrap)))
        return made[-1]

    reader = Reader(log, connect=connect)
    log.append(0, ["one"])
    reader.grant(0, 0)
    assert list(reader.take(1)) == [(0, 0)]
    count = len(made)  # On a busy machine, a new fetcher may be silent for half a second, too.
    librdkafka_of(made[-1]).pause([Raw(log.topic, 0)])
    came: list[int] = []

    def comes() -> bool:
        log.append(0, ["another"])  # The first message may come from a running fetch.
        came.extend(one.offset for one in reader.stream.poll(timeout_s=0.2))
        return bool(came)

    eventually(comes)
    assert came[0] == 1
    assert len(made) > count
    assert any("fetching restarts" in one.text for one in reader.reports)
    reader.stream.close()


class Checked(MemoryFetcher):
    """A fetcher that counts how often its stream asks for the ends of logs."""

    checks = 0

    def resolve(self, tps: Iterable[TopicPartition], reset: AutoOffsetReset) -> Future[Answers]:
        self.checks += reset is AutoOffsetReset.LARGEST
        return super().resolve(tps, reset)


def connected(log: MemoryLog, kind: type[Checked], made: list[Checked]) -> Checked:
    """Create a fetcher of this kind, and append it to `made`."""
    found = fetcher_of(log, kind=kind)
    assert isinstance(found, Checked)
    made.append(found)
    return found


def test_a_fetcher_without_new_messages_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long silence does not replace a fetcher if the logs have no new messages."""
    monkeypatch.setattr(progress, "SILENT_S", 0.1)
    log, made = MemoryLog("quiet"), list[Checked]()
    reader = Reader(log, connect=lambda: connected(log, Checked, made))
    log.append(0, ["one"])
    reader.grant(0, 0)
    assert list(reader.take(1)) == [(0, 0)]

    def checked_often() -> bool:
        assert not reader.stream.poll(timeout_s=0.05)
        return made[0].checks > 3

    eventually(checked_often)
    assert len(made) == 1
    assert not reader.reports
    reader.stream.close()


class Silent(Checked):
    """A fetcher whose broker answers no fetch, so it knows no end of a log."""

    def ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {}


@pytest.mark.parametrize("position", [0, 2], ids=["an empty log", "all messages read"])
def test_a_fetcher_that_lacks_no_message_is_kept(
    position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no fetch is answered, a fetcher whose positions are the logs' ends is not replaced."""
    monkeypatch.setattr(progress, "SILENT_S", 0.1)
    log, made = MemoryLog("busy"), list[Checked]()
    reader = Reader(log, connect=lambda: connected(log, Silent, made))
    log.append(0, ["message"] * position)
    reader.grant(0, position)

    def checked_often() -> bool:
        assert not reader.stream.poll(timeout_s=0.05)
        return bool(reader.reports) or made[0].checks > 3

    eventually(checked_often)
    assert not reader.reports
    assert len(made) == 1
    reader.stream.close()


class Patient(Checked):
    """A fetcher that lets its broker delay a response by an hour."""

    wait_s = 3600.0


def test_a_stream_waits_for_a_delayed_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """If `fetch.wait.max.ms` is long, the stream waits longer before it checks the fetcher."""
    monkeypatch.setattr(progress, "SILENT_S", 0.1)
    log, made = MemoryLog("patient"), list[Checked]()
    readers = [
        Reader(log, connect=lambda: connected(log, Patient, made)),
        Reader(log, connect=lambda: connected(log, Checked, made)),
    ]
    log.append(0, ["one"])
    for reader in readers:
        reader.grant(0, 0)
        assert list(reader.take(1)) == [(0, 0)]
    patient, impatient = made

    def checked_often() -> bool:
        for reader in readers:
            reader.stream.poll(timeout_s=0.05)
        return impatient.checks > 3

    eventually(checked_often)
    assert patient.checks <= 1, "the fetcher was checked before the broker's delay ended"
    for reader in readers:
        reader.stream.close()


def test_a_client_that_cannot_be_made_is_made_again_after_a_pause() -> None:
    """The error is raised and reported once; until the next attempt, the stream only waits."""
    made = 0

    def connect() -> ColumnFetcher:
        nonlocal made
        made += 1
        raise FetchError("no PLAINTEXT endpoint")

    reader = Reader(MemoryLog("t"), connect_columns=connect)
    reader.grant(0, 0)
    with pytest.raises(FetchError, match="PLAINTEXT"):
        reader.stream.poll_arrow(timeout_s=LIMIT_S)
    assert reader.stream.poll_arrow(timeout_s=0.2).num_rows == 0
    assert "PLAINTEXT" in reader.stream.waiting_for
    assert [one.kind for one in reader.reports] == [ReportKind.FETCH_FAILED]
    assert made == 1
    reader.stream.close()


# A partition's part of a response, in bytes, and a message that fills a response alone.
RESPONSE_BYTES = 64 * 1024
LARGE = "x" * (RESPONSE_BYTES - 10)


def test_nothing_after_a_damaged_batch_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged batch ends the delivery, also if its fault waits while later messages arrive."""
    read = PartitionLog.read

    def damaged(self: PartitionLog, offset: int, size: int, *, magic: int, until: int) -> Slice:
        found = read(self, offset, size, magic=magic, until=until)
        return found._replace(data=found.data.replace(b"good", b"evil"))

    monkeypatch.setattr(PartitionLog, "read", damaged)
    monkeypatch.setattr(columns, "is_decided", lambda: True)
    with FakeCluster() as cluster:
        cluster.create_topic("t")
        # The responses: 0; 1 to 3, of which 2 is damaged; 4; 5.
        for value in (LARGE, "small", "good", "small", LARGE, LARGE):
            cluster.produce("t", [value])
        fetches = cluster.broker.inject(Delay(0.0), "Fetch", times=None)
        settings = settings_for(
            cluster.bootstrap,
            fetch_message_max_bytes=RESPONSE_BYTES,
            queued_max_message_chunks=1,
        )
        reader = Reader(
            KafkaLog("t", cluster), connect=lambda: RecordFetcher(settings, engine=plain_engine())
        )
        reader.grant(0, 0)
        assert [one.offset for one in reader.stream.poll(timeout_s=LIMIT_S)] == [0]
        eventually(reader.stream.is_ready)  # as an event loop looks for messages
        assert [one.offset for one in reader.stream.poll(timeout_s=LIMIT_S)] == [1]
        eventually(lambda: fetches.count == 3)
        with pytest.raises(FetchError, match="t-0, next offset 2"):
            reader.stream.poll(timeout_s=LIMIT_S)
        assert not reader.stream.poll(timeout_s=0.1)
        assert reader.delivered(0) == 2
        reader.stream.close()
