"""Streams as their users see them; every test runs on a log in memory and on a real broker."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

import pytest
from confluent_kafka import Producer
from support.kafka.streams import KafkaLog, Log, Reader, log_cases, opened
from support.wait import LIMIT_S, eventually

from zkconsumer.consumer.messages import Batch, Message, TimestampType
from zkconsumer.consumer.stream_fetcher import ReportKind
from zkconsumer.consumer.stream_partitions import Codec
from zkconsumer.errors import (
    ConfigError,
    ConnectorClosedError,
    ConsumerTimeoutError,
    DecodeError,
    FetchError,
    RebalanceBlockedError,
    ZkConsumerError,
)
from zkconsumer.kafka.fetcher import Answers, AutoOffsetReset
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox


@pytest.fixture(params=log_cases("memory", "kafka", "shared", "columns"))
def log(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> Iterator[Log]:
    """A log of three empty partitions."""
    with opened(request, unique("stream")) as log:
        yield log


@pytest.fixture
def readers() -> Iterator[list[Reader]]:
    made: list[Reader] = []
    yield made
    for one in made:
        one.stream.close()


@pytest.fixture
def reader(log: Log, readers: list[Reader]) -> Reader:
    readers.append(Reader(log))
    return readers[0]


# ---- messages -----------------------------------------------------------------------------------


def test_a_message_carries_all_that_is_promised(log: Log, reader: Reader) -> None:
    """A message has topic, partition, offset, key, value, timestamp in ms, and fencing token."""
    before = round(time.time() * 1000)
    log.append_keyed(1, "k", "v")
    token = reader.grant(1, 0)
    message = next(reader.stream)
    assert (message.topic, message.partition, message.offset) == (log.topic, 1, 0)
    assert (message.key, message.value, message.token) == (b"k", b"v", token)
    assert message.timestamp is not None
    assert before - 1000 <= message.timestamp <= time.time() * 1000 + 1000
    assert message.timestamp_type is TimestampType.CREATE_TIME
    assert message.headers == []
    assert not hasattr(message, "__len__")
    assert f"{log.topic}-1 at 0" in repr(message)


def test_missing_keys_and_values_reach_no_decoder(log: Log, readers: list[Reader]) -> None:
    """A null key or value is None, whatever the decoder is (MessageAndMetadata)."""
    readers.append(Reader(log, codec=Codec(key=bytes.decode, value=int)))
    log.append_keyed(0, None, None)
    log.append_keyed(0, "k", "7")
    readers[0].grant(0, 0)
    null, full = next(readers[0].stream), next(readers[0].stream)
    assert (null.key, null.value, bool(null)) == (None, None, True)
    assert (full.key, full.value) == ("k", 7)


def test_a_message_can_be_pickled(log: Log, readers: list[Reader]) -> None:
    """A pickle has every attribute, and the key and value as the decoders have returned them."""
    readers.append(Reader(log, codec=Codec(value=lambda raw: {"n": int(raw)})))
    log.append_keyed(0, "k", "7")
    readers[0].grant(0, 0)
    message = next(readers[0].stream)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(message))))
    names = [name for name, kind in vars(Message).items() if isinstance(kind, property)]
    assert {name: getattr(again, name) for name in names} == {
        name: getattr(message, name) for name in names
    }
    assert (again.value, repr(again)) == ({"n": 7}, repr(message))


def test_headers_and_leader_epoch(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """From a 3.9 broker, messages have their headers and the leader epoch, even after pickling."""
    topic = unique("headers")
    sandbox.create_topic(topic)
    producer = Producer({"bootstrap.servers": sandbox.bootstrap})
    headers = [("a", b"1"), ("a", None)]
    producer.produce(topic, b"v", headers=headers)  # type: ignore[arg-type]  # None is valid
    producer.flush(LIMIT_S)
    reader = Reader(KafkaLog(topic, sandbox))
    try:
        reader.grant(0, 0)
        message = next(reader.stream)
        assert (message.headers, message.leader_epoch) == (headers, 0)
        assert pickle.loads(pickle.dumps(message)).headers == headers
    finally:
        reader.stream.close()


def test_a_failing_decoder_affects_no_other_message(log: Log, readers: list[Reader]) -> None:
    """Each access to a value that cannot be decoded raises DecodeError; the stream continues."""
    failures: list[str] = []
    readers.append(Reader(log, codec=Codec(value=int, failed=failures.append)))
    log.append(0, ["1", "x", "3"])
    readers[0].grant(0, 0)
    one, bad, three = (next(readers[0].stream) for _ in range(3))
    assert (one.value, three.value) == (1, 3)
    for _ in range(2):
        with pytest.raises(DecodeError, match=rf"{log.topic}-0 at offset 1") as caught:
            _ = bad.value
        assert isinstance(caught.value.__cause__, ValueError)
    assert bad.key is None
    assert len(failures) == 2


# ---- where a stream begins ----------------------------------------------------------------------


def test_begins_at_the_stored_offset(log: Log, reader: Reader) -> None:
    """The first message that is delivered has the offset of the grant."""
    log.append(0, map(str, range(10)))
    reader.grant(0, 4)
    assert list(reader.take(6)) == [(0, offset) for offset in range(4, 10)]
    assert not reader.news


@pytest.mark.parametrize("offset", [None, 99, 3], ids=["missing", "behind", "before"])
@pytest.mark.parametrize(
    ("reset", "first"), [(AutoOffsetReset.SMALLEST, 10), (AutoOffsetReset.LARGEST, 20)]
)
def test_without_a_usable_offset_the_policy_decides(
    log: Log, readers: list[Reader], reset: AutoOffsetReset, first: int, offset: int | None
) -> None:
    """`auto.offset.reset` replaces a missing or out-of-range offset, and sets the position."""
    reader = Reader(log, reset=reset)
    readers.append(reader)
    log.append(0, map(str, range(20)))
    log.cut(0, 10)
    epoch = reader.grant(0, offset)
    if offset is None:
        assert reader.delivered(0) is None

    def reset_reported() -> bool:
        reader.stream.poll(timeout_s=0.05)
        return bool(reader.news)

    eventually(reset_reported)
    report = reader.news[0]
    assert (report.kind, report.tp, report.epoch) == (
        ReportKind.POSITION_RESET,
        reader.tp(0),
        epoch,
    )
    assert report.offset == first
    # The position can be committed even if no message has been consumed yet (KAFKA-2759).
    assert (reader.delivered(0) or 0) >= first
    log.append(0, ["new"])
    if reset is AutoOffsetReset.LARGEST:
        assert list(reader.take(1)) == [(0, 20)]


def test_largest_of_many_partitions_at_once(
    sandbox: Sandbox,
    unique: Callable[[str], str],
    readers: list[Reader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The positions of 64 partitions are resolved in parallel."""
    topic = unique("wide")
    sandbox.create_topic(topic, partitions=64)
    fetcher, asked = KafkaLog(topic, sandbox).fetcher(), list[int]()
    look_up = fetcher.resolve

    def resolve(tps: Iterable[TopicPartition], reset: AutoOffsetReset) -> Future[Answers]:
        together = list(tps)
        asked.append(len(together))
        return look_up(together, reset)

    monkeypatch.setattr(fetcher, "resolve", resolve)
    reader = Reader(
        KafkaLog(topic, sandbox), reset=AutoOffsetReset.LARGEST, connect=lambda: fetcher
    )
    readers.append(reader)
    for partition in range(64):
        reader.grant(partition, None)

    def found() -> bool:
        reader.stream.poll(timeout_s=0.05)
        return [reader.delivered(one) for one in range(64)] == [0] * 64

    eventually(found)
    assert asked[0] == 64


# ---- waiting ------------------------------------------------------------------------------------


def test_the_time_out_can_be_repeated_and_survived(log: Log, readers: list[Reader]) -> None:
    """ConsumerTimeoutError names topic and thread, and is raised again until a message comes."""
    reader = Reader(log, timeout_s=0.05)
    readers.append(reader)
    reader.grant(0, 0)
    for _ in range(3):
        with pytest.raises(ConsumerTimeoutError, match=rf"{log.topic}.*tests_member-0"):
            next(reader.stream)
    with pytest.raises(ConsumerTimeoutError):
        list(reader.stream)
    log.append(0, ["a"])

    def arrived() -> bool:
        try:
            return next(reader.stream).value == b"a"
        except ConsumerTimeoutError:
            return False

    eventually(arrived)


def test_a_time_out_of_zero_still_delivers_what_is_there(log: Log, readers: list[Reader]) -> None:
    """With `consumer.timeout.ms=0` a call returns a message or raises, without waiting."""
    reader = Reader(log, timeout_s=0)
    readers.append(reader)
    log.append(0, ["a"])
    reader.grant(0, 0)

    def arrived() -> bool:
        try:
            return next(reader.stream).value == b"a"
        except ConsumerTimeoutError:
            return False

    eventually(arrived)
    with pytest.raises(ConsumerTimeoutError):
        next(reader.stream)


def test_an_idle_stream_says_why(log: Log, readers: list[Reader]) -> None:
    """The exception and the status say why a stream waits: no partition, or no lease."""
    reader = Reader(log, timeout_s=0.01)
    readers.append(reader)
    reader.stream.explain("the group has more threads than partitions: 4 for 3", "")
    with pytest.raises(ConsumerTimeoutError, match="more threads than partitions"):
        next(reader.stream)
    reader.grant(0, 0)
    reader.gate.shut()
    with pytest.raises(ConsumerTimeoutError, match="ZooKeeper has not confirmed"):
        next(reader.stream)
    reader.gate.open(reader.gate.clock() + 3600)
    with pytest.raises(ConsumerTimeoutError, match="call again"):
        next(reader.stream)
    assert reader.stream.waiting_for == ""


def test_a_stream_waits_for_a_broker(log: Log, readers: list[Reader]) -> None:
    """While no broker is known, the stream waits and says so; then it continues."""
    known: list[bool] = []
    reader = Reader(log, connect=lambda: log.fetcher() if known else None)
    readers.append(reader)
    log.append(0, ["a"])
    reader.grant(0, 0)
    assert len(reader.stream.poll(timeout_s=0.05)) == 0
    assert "no broker is registered" in reader.stream.waiting_for
    known.append(True)
    assert next(reader.stream).value == b"a"


def test_an_idle_stream_serves_a_new_partition_at_once(log: Log, reader: Reader) -> None:
    """A grant wakes a waiting stream, whether or not the stream already has a partition."""
    log.append(0, ["a"])
    log.append(2, ["c"])
    granted: list[float] = []

    def grant_later(partition: int) -> None:
        eventually(lambda: reader.stream.is_asked)
        granted.append(time.monotonic())
        reader.grant(partition, 0)

    for partition in (0, 2):
        other = threading.Thread(target=grant_later, args=[partition], daemon=True)
        other.start()
        message = next(reader.stream)
        assert message.partition == partition
        assert time.monotonic() - granted[-1] < LIMIT_S / 2
        other.join(LIMIT_S)


# ---- polling ------------------------------------------------------------------------------------


def test_poll_returns_a_lazy_sequence(log: Log, reader: Reader) -> None:
    """A batch has a length, indices and slices, and can be iterated more than once."""
    log.append(0, map(str, range(10)))
    token = reader.grant(0, 0)
    seen: list[int] = []
    while len(seen) < 10:
        batch = reader.stream.poll(max_messages=4)
        assert len(batch) <= 4
        seen += [message.offset for message in batch]
        assert [one.offset for one in batch] == [batch[i].offset for i in range(len(batch))]
        if batch:
            assert batch[-1].token == token
            assert isinstance(batch[:2], Batch)
            assert [one.value for one in batch[:1]] == [str(batch[0].offset).encode()]
    assert seen == list(range(10))


def test_a_wrong_number_of_messages_is_refused(log: Log, reader: Reader) -> None:
    """`max_messages` must be at least 1. The refused call loses no message."""
    log.append(0, ["m"])
    reader.grant(0, 0)
    for wrong in (0, -1, 2.5, None, "5"):
        for poll in (reader.stream.poll, reader.stream.poll_arrow):
            with pytest.raises(ConfigError, match="max_messages"):
                poll(max_messages=wrong)  # type: ignore[arg-type]  # the test's subject
    assert [one.offset for one in reader.stream.poll(timeout_s=LIMIT_S)] == [0]


def test_an_empty_poll_takes_its_time_and_no_more(log: Log, reader: Reader) -> None:
    """If no message arrives within `timeout_s`, the batch is empty, even without a partition."""
    for _ in range(2):
        start = time.monotonic()
        assert len(reader.stream.poll(timeout_s=0.2)) == 0
        assert 0.15 < time.monotonic() - start < LIMIT_S / 2
        reader.grant(0, 0)


def test_iterating_and_polling_can_be_mixed(log: Log, reader: Reader) -> None:
    """If a user leaves a loop, polls, and iterates again, each message is delivered once."""
    log.append(0, map(str, range(300)))
    reader.grant(0, 0)
    seen: list[int] = []
    while len(seen) < 300:
        for message in reader.stream:
            seen.append(message.offset)
            if len(seen) % 7 == 0 or len(seen) >= 300:
                break
        if len(seen) < 300:
            seen += [one.offset for one in reader.stream.poll(max_messages=5)]
        if len(seen) < 300:
            seen.append(next(reader.stream).offset)
    assert seen == list(range(300))


# ---- errors and endings -------------------------------------------------------------------------


def test_a_failure_is_raised_once_and_the_stream_continues(log: Log, reader: Reader) -> None:
    """An error from the member's thread is raised once, before the next message is delivered."""
    log.append(0, map(str, range(10)))
    reader.grant(0, 0)
    assert list(reader.take(3))[-1] == (0, 2)
    reader.stream.fail(RebalanceBlockedError("blocked", where="here"))
    reader.stream.fail(ZkConsumerError("other"))
    with pytest.raises(RebalanceBlockedError):
        next(reader.stream)
    with pytest.raises(ZkConsumerError, match="other"):
        reader.stream.poll()
    assert list(reader.take(2)) == [(0, 3), (0, 4)]


def test_after_close_the_stream_has_ended(log: Log, reader: Reader) -> None:
    """After the stream has ended `next` raises StopIteration, loops end, and `poll` raises."""
    log.append(0, map(str, range(10)))
    reader.grant(0, 0)
    loop = iter(reader.stream)
    assert next(loop).offset == 0
    reader.stream.close()
    assert list(loop) == []
    assert list(reader.stream) == []
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(reader.stream)
    with pytest.raises(ConnectorClosedError):
        reader.stream.poll()
    assert reader.delivered(0) == 1
    reader.stream.close()


@pytest.mark.parametrize("state", ["without partition", "at the end", "lease over"])
def test_close_ends_a_wait_in_another_thread(log: Log, reader: Reader, state: str) -> None:
    """`close` ends a user's wait promptly, without waiting for the user."""
    if state != "without partition":
        reader.grant(0, 0)
    if state == "lease over":
        reader.gate.shut()

    def use() -> None:
        for _ in reader.stream:
            pass

    user = threading.Thread(target=use, daemon=True)
    user.start()
    eventually(lambda: reader.stream.is_asked)
    start = time.monotonic()
    reader.stream.close()
    assert time.monotonic() - start < LIMIT_S / 2
    user.join(LIMIT_S / 2)
    assert not user.is_alive()


@pytest.mark.parametrize("state", ["without partition", "at the end", "lease over"])
def test_an_interrupt_ends_a_wait(log: Log, readers: list[Reader], state: str) -> None:
    """Ctrl-C interrupts a wait without a time limit; then the stream can be used again."""
    reader = Reader(log, timeout_s=None)
    readers.append(reader)
    if state != "without partition":
        reader.grant(0, 0)
    if state == "lease over":
        reader.gate.shut()

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            next(reader.stream)
        assert time.monotonic() - start < LIMIT_S / 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    reader.gate.open(reader.gate.clock() + 3600)
    log.append(0, ["a"])
    reader.grant(0, 0)
    assert list(reader.take(1)) == [(0, 0)]


def test_two_threads_at_once_are_an_error(log: Log, reader: Reader) -> None:
    """If a second thread uses a stream, it gets an error, and the first thread is not affected."""
    reader.grant(0, 0)
    got: list[int] = []
    user = threading.Thread(target=lambda: got.append(next(reader.stream).offset), daemon=True)
    user.start()
    eventually(lambda: reader.stream.is_asked)
    with pytest.raises(ZkConsumerError, match="two threads"):
        reader.stream.poll(timeout_s=0.0)
    log.append(0, ["a"])
    user.join(LIMIT_S)
    assert got == [0]


def test_a_corrupt_message_is_an_error_that_names_it(
    sandbox: Sandbox, unique: Callable[[str], str], readers: list[Reader]
) -> None:
    """A wrong checksum raises FetchError; no message is skipped, and other partitions continue."""
    log = KafkaLog(unique("corrupt"), sandbox)
    sandbox.create_topic(log.topic, partitions=2)
    log.append(0, ["x" * 100])
    log.append(1, ["fine"])
    (segment,) = sandbox.broker.directory.glob(f"data/{log.topic}-0/*.log")
    with segment.open("r+b") as file:
        file.seek(-20, os.SEEK_END)
        file.write(b"?")
    reader = Reader(log)
    readers.append(reader)
    reader.grant(0, 0)
    with pytest.raises(FetchError, match=rf"{log.topic}-0, next offset 0"):
        next(reader.stream)
    assert (reader.delivered(0), log.topic in reader.stream.waiting_for) == (0, True)
    assert [one.kind for one in reader.news] == [ReportKind.FETCH_FAILED]
    reader.grant(1, 0)
    assert list(reader.take(1)) == [(1, 0)]
