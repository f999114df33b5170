"""A message takes its contents from its batch when they are asked for, and keeps only its batch."""

from __future__ import annotations

import pickle
import weakref
from collections import deque
from collections.abc import Callable
from mmap import mmap

import pytest
from confluent_kafka import Message as RawMessage
from support.kafka.encoded_records import Record, batch
from support.kafka.streams import MemoryLog, MemoryLogs, Reader

from zkconsumer.consumer.messages import Batch, Message, Part, made
from zkconsumer.consumer.stream_partitions import Codec, Grant, GrantedPartition
from zkconsumer.errors import ConsumerTimeoutError, DecodeError
from zkconsumer.kafka.columns.record_sets import RecordSet, plain_engine
from zkconsumer.kafka.columns.records import Records
from zkconsumer.kafka.columns.responses import response_memory
from zkconsumer.kafka.fetcher import BUFFER_MESSAGES, MessageList, runs_of
from zkconsumer.protocol.model import Position, TopicPartition
from zkconsumer.sim.logs import MemoryFetcher

TP = TopicPartition("topic", 3)
HEADERS = (("name", b"content"), ("empty", None))
LARGE = 3 << 20
"""The size of a response in bytes that is larger than those whose memory is used again."""


def written(count: int, *, value: bytes = b"value", first: int = 100) -> list[Record]:
    """Return records, of which every second has no key, and the third no value."""
    return [
        Record(
            first + number,
            b"key-%d" % number if number % 2 else None,
            None if number == 2 else value + b"-%d" % number,
            1_790_000_000_000 + number,
            HEADERS if number == 1 else (),
        )
        for number in range(count)
    ]


def records_in(data: bytes, *, room: int = LARGE) -> tuple[RecordSet, weakref.ref[mmap]]:
    """Return a record set in a response of at least `room` bytes, and the response's memory."""
    response = response_memory(room)
    response.memory[: len(data)] = data
    found = RecordSet(TP, response.part(0, len(data)), plain_engine())
    return found, weakref.ref(response.memory)


def run_of(data: bytes) -> Records:
    (run,) = records_in(data)[0].records()
    return run


def message_of(
    run: Records | MessageList, number: int, codec: Codec[object, object] | None = None
) -> Message[object, object]:
    return made(run, number, GrantedPartition(Grant(TP, 0, 7, 1), codec or Codec()))


def test_a_decoder_is_called_once_and_only_when_asked() -> None:
    """The first access decodes; later accesses return the same object."""
    calls: list[bytes] = []

    def decode(raw: bytes) -> list[bytes]:
        calls.append(raw)
        return [raw]

    one = message_of(run_of(batch(written(2))), 1, Codec(key=decode, value=decode))
    assert (one.offset, one.token, calls) == (101, 7, [])
    assert one.value is one.value
    assert one.key is one.key
    assert calls == [b"value-1", b"key-1"]


def test_a_decoder_that_failed_is_called_again() -> None:
    """An error is raised at each access until the decoder succeeds."""
    answers = [ValueError("not yet"), None]

    def decode(raw: bytes) -> bytes:
        if (error := answers.pop(0)) is not None:
            raise error
        return raw

    one = message_of(run_of(batch(written(1))), 0, Codec(value=decode))
    with pytest.raises(DecodeError, match="not yet"):
        _ = one.value
    assert one.value == b"value-0"


def fields(one: Message[object, object]) -> dict[str, object]:
    names = [name for name, kind in vars(Message).items() if isinstance(kind, property)]
    return {name: getattr(one, name) for name in names}


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("change", [Message.detach, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_message_without_its_batch_is_the_same(
    number: int, change: Callable[[Message[object, object]], Message[object, object]]
) -> None:
    """A detached and an unpickled message have all fields and the same text."""
    one = message_of(run_of(batch(written(3))), number)
    before, text = fields(one), repr(one)
    changed = change(one)
    assert fields(changed) == before
    assert repr(changed) == text


def test_messages_are_equal_only_to_themselves() -> None:
    """Two objects of one place in the log are not equal, and both can be keys."""
    run = run_of(batch(written(2)))
    one, other = message_of(run, 0), message_of(run, 0)
    assert one == one  # noqa: PLR0124 - the comparison is tested
    assert one != other
    assert len({one, other, one.detach()}) == 2


def test_a_message_keeps_one_batch_until_it_is_detached() -> None:
    """Ten messages of ten responses keep ten responses; a detached message keeps none."""
    kept: list[Message[object, object]] = []
    memories: list[weakref.ref[mmap]] = []
    for _ in range(10):
        found, memory = records_in(batch(written(300, value=bytes(1000))))
        kept += [message_of(run, 5) for run in found.records()]
        memories.append(memory)
        del found
    assert len(kept) == 10
    assert all(memory() is not None for memory in memories)
    value = kept[0].value
    for one in kept:
        assert one.detach() is one
    assert not any(memory() is not None for memory in memories)
    assert kept[0].value == value


def test_a_small_response_is_copied() -> None:
    """A message of a response of 1 KB does not keep the memory for 2 MB."""
    found, memory = records_in(batch(written(3)))
    one = message_of(next(found.records()), 1)
    assert memory() is not None
    del found
    assert memory() is None
    assert one.value == b"value-1"


class Watched(MessageList):
    """A run whose destruction can be observed."""

    __slots__ = ("__weakref__",)


class WatchedFetcher(MemoryFetcher):
    """A fetcher that remembers its runs weakly."""

    def __init__(self, logs: MemoryLogs) -> None:
        super().__init__(logs)
        self.runs = weakref.WeakSet[Watched]()

    def fetch(self, timeout_s: float, max_messages: int = BUFFER_MESSAGES) -> list[MessageList]:
        found = [Watched(one.tp, one.messages) for one in super().fetch(timeout_s, max_messages)]
        self.runs.update(found)
        return list[MessageList](found)


@pytest.mark.parametrize("way", ["iterate", "poll"])
def test_a_stream_keeps_no_batch_that_was_handed_out(way: str) -> None:
    """After the user has dropped the messages of a batch, the stream does not keep the batch."""
    log = MemoryLog("kept")
    log.append(0, map(str, range(3)))
    fetcher = WatchedFetcher(MemoryLogs(log))
    reader = Reader(log, connect=lambda: fetcher, timeout_s=0.0)
    reader.grant(0, 0)
    if way == "iterate":
        with pytest.raises(ConsumerTimeoutError):
            deque(reader.stream, maxlen=0)
    else:
        assert len(reader.stream.poll()) == 3
    assert not reader.stream.poll(timeout_s=0.0)
    assert reader.finished(0) == 3
    assert not fetcher.runs
    reader.stream.close()


def test_a_reversed_batch_ends_where_the_batch_ends() -> None:
    """The position after a slice is the one after its highest offset, in every order."""
    runs = [run_of(batch(written(3, first=100 * n))) for n in range(3)]
    held = GrantedPartition(Grant(TP, 0, 7, 1), Codec())
    whole: Batch[bytes, bytes] = Batch([Part(one, range(3), held) for one in runs])
    assert whole.positions == whole[::-1].positions == {TP: Position(7, 203)}
    assert whole[4::-1].positions == {TP: Position(7, 102)}
    assert whole[5:5].positions == {}


def test_batches_are_sequences() -> None:
    """A batch of several runs has indexes and slices like a list."""
    runs = [run_of(batch(written(3, first=100 * n))) for n in range(3)]
    held = GrantedPartition(Grant(TP, 0, 7, 1), Codec())
    whole: Batch[bytes, bytes] = Batch([Part(one, range(3), held) for one in runs])
    offsets = [one.offset for one in whole]
    assert offsets == [0, 1, 2, 100, 101, 102, 200, 201, 202]
    for wanted in (slice(None), slice(2, 7), slice(1, None, 3), slice(None, None, -2), slice(5, 5)):
        assert [one.offset for one in whole[wanted]] == offsets[wanted]
        assert len(whole[wanted]) == len(offsets[wanted])
    for index in range(-9, 9):
        assert whole[index].offset == offsets[index]
    for index in (-10, 9):
        with pytest.raises(IndexError):
            _ = whole[index]
    assert [one.offset for one in pickle.loads(pickle.dumps(whole))] == offsets


def test_librdkafka_s_messages_become_runs() -> None:
    """Consecutive messages of one partition form a run."""
    places = [("a", 0), ("a", 0), ("a", 1), ("b", 1), ("b", 1), ("a", 0)]
    messages = [
        RawMessage(topic=topic, partition=number, offset=at)
        for at, (topic, number) in enumerate(places)
    ]
    found = [(*one.tp, [one.offset(n) for n in range(len(one))]) for one in runs_of(messages)]
    assert found == [("a", 0, [0, 1]), ("a", 1, [2]), ("b", 1, [3, 4]), ("a", 0, [5])]
    assert runs_of([]) == []
