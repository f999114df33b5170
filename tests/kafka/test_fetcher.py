"""The contract of fetchers, checked on the fetcher in memory and those of real brokers."""

from __future__ import annotations

import gc
import json
import random
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest
from support.kafka.logs import ABORTED, COMMITTED, transact
from support.kafka.streams import (
    Fetched,
    KafkaLog,
    Log,
    fetched,
    log_cases,
    opened,
    settings_for,
    with_fakes,
)
from support.wait import LIMIT_S, eventually
from support.zk.client import peer_of

from zkconsumer.errors import BrokerAccessError
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.kafka.columns.column_fetcher import ColumnFetcher
from zkconsumer.kafka.columns.fetcher import RecordFetcher
from zkconsumer.kafka.fetcher import AutoOffsetReset, Fetcher, FetchFaultKind
from zkconsumer.kafka.librdkafka import KafkaFetcher
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.testing import FakeCluster
from zkconsumer.testing import messages as ms
from zkconsumer.testing.messages import MetadataResponseBroker


@pytest.fixture(params=log_cases("memory", *with_fakes("kafka", "shared", "columns", "session")))
def log(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> Iterator[Log]:
    """A log of three empty partitions."""
    with opened(request, unique("fetch")) as log:
        yield log


@pytest.fixture
def fetcher(log: Log) -> Iterator[Fetcher]:
    one = log.fetcher()
    yield one
    one.close()


def offsets(fetcher: Fetcher, partition: int, count: int, *, wanted: int = 1000) -> list[int]:
    """Return the next `count` offsets of a partition, without those of other partitions."""
    found: list[int] = []
    deadline = time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{found} of {count}"
        messages = fetched(fetcher, wanted, 0.05)
        found += [one.offset for one in messages if one.partition == partition]
    return found


def test_reads_in_order_from_the_offset_given(log: Log, fetcher: Fetcher) -> None:
    """Every message from the given offset on is returned once, and in order."""
    log.append(0, map(str, range(500)))
    fetcher.assign({log.tp(0): 123})
    assert offsets(fetcher, 0, 377, wanted=100) == list(range(123, 500))


def test_keys_and_values_may_be_missing(log: Log, fetcher: Fetcher) -> None:
    """A missing key or value is None; an empty one is an empty value."""
    log.append_keyed(0, None, None)
    log.append_keyed(0, "k", "")
    fetcher.assign({log.tp(0): 0})
    found: list[Fetched] = []
    eventually(lambda: found.extend(fetched(fetcher, 1, 0.05)) or len(found) == 2)
    first, second = found
    assert (first.key, first.value) == (None, None)
    assert (second.key, second.value) == (b"k", b"")


def test_no_message_of_an_unassigned_partition_is_returned(log: Log, fetcher: Fetcher) -> None:
    """After unassign no message of the partition is returned; the other partition has no gap."""
    for partition in (0, 1):
        log.append(partition, map(str, range(2000)))
    fetcher.assign({log.tp(0): 0, log.tp(1): 0})
    seen = [one for one in fetched(fetcher, 10, LIMIT_S) if one.partition == 1]
    fetcher.unassign([log.tp(0)])
    deadline = time.monotonic() + LIMIT_S
    while len(seen) < 2000:
        assert time.monotonic() < deadline
        messages = fetched(fetcher, 100, 0.05)
        assert {one.partition for one in messages} <= {1}
        seen += messages
    assert [one.offset for one in seen] == list(range(2000))


def test_a_partition_assigned_again_starts_at_its_new_offset(log: Log, fetcher: Fetcher) -> None:
    """A partition that is assigned again starts at its new offset; old messages are dropped."""
    log.append(0, map(str, range(1000)))
    fetcher.assign({log.tp(0): 0})
    offsets(fetcher, 0, 1, wanted=10)
    fetcher.unassign([log.tp(0)])
    fetcher.assign({log.tp(0): 700})
    assert offsets(fetcher, 0, 300) == list(range(700, 1000))


def test_unassigning_what_is_not_assigned_does_nothing(log: Log, fetcher: Fetcher) -> None:
    """Unknown partitions in the list have no effect on the other partitions."""
    seen: list[tuple[int, int]] = []

    def read(count: int) -> bool:
        seen.extend((one.partition, one.offset) for one in fetched(fetcher, 10, 0.05))
        return len(seen) >= count

    for partition in (0, 1):
        log.append(partition, ["a"])
    fetcher.unassign([log.tp(0), log.tp(1)])
    fetcher.assign({log.tp(0): 0, log.tp(1): 0})
    eventually(lambda: read(2))
    assert sorted(seen) == [(0, 0), (1, 0)]
    for _ in range(2):
        fetcher.unassign([log.tp(2), log.tp(0)])
    for partition in (0, 1):
        log.append(partition, ["b"])
    eventually(lambda: read(3))
    assert seen[2:] == [(1, 1)]
    assert fetched(fetcher, 10, 0.2) == []


def test_a_new_message_ends_the_wait(log: Log, fetcher: Fetcher) -> None:
    """`fetch` returns as soon as a message arrives, even before its timeout."""
    fetcher.assign({log.tp(0): 0})
    assert not fetched(fetcher, 10, 0.2)
    log.append(0, ["a"])
    start = time.monotonic()
    # The end of the log also ends a wait, once.
    assert len(fetched(fetcher, 1000, LIMIT_S) or fetched(fetcher, 1000, LIMIT_S)) == 1
    assert time.monotonic() - start < LIMIT_S / 2


@pytest.mark.parametrize("offset", [50, 7])
def test_out_of_range_is_a_fault_of_that_partition(log: Log, fetcher: Fetcher, offset: int) -> None:
    """An offset outside the log is a fault of its partition, which can be assigned again."""
    log.append(0, map(str, range(30)))
    log.append(1, map(str, range(30)))
    log.cut(0, 20)
    fetcher.assign({log.tp(0): offset, log.tp(1): 0})
    seen: list[tuple[int, int]] = []

    def is_read() -> bool:
        seen.extend((one.partition, one.offset) for one in fetched(fetcher, 100, 0.05))
        return bool(out_of_range()) and len(seen) >= 30

    def out_of_range() -> list[TopicPartition | None]:
        return [one.tp for one in fetcher.faults if one.kind is FetchFaultKind.OUT_OF_RANGE]

    eventually(is_read)
    assert seen == [(1, at) for at in range(30)]
    assert out_of_range() == [log.tp(0)]
    fetcher.unassign([log.tp(0)])
    assert not out_of_range()
    fetcher.assign({log.tp(0): 20})
    assert offsets(fetcher, 0, 10) == list(range(20, 30))


def test_resolves_both_ends_of_many_partitions(log: Log, fetcher: Fetcher) -> None:
    """`smallest` resolves to the first offset in a log, `largest` to the next one to be written."""
    log.append(0, map(str, range(30)))
    log.cut(0, 20)
    log.append(1, ["a"])
    tps = [log.tp(number) for number in range(3)]
    for reset, ends in (
        (AutoOffsetReset.SMALLEST, [20, 0, 0]),
        (AutoOffsetReset.LARGEST, [30, 1, 0]),
    ):
        answer = fetcher.resolve(tps, reset).result(LIMIT_S)
        assert answer == dict(zip(tps, ends, strict=True))


def test_ends_are_known_of_assigned_partitions_only(log: Log, fetcher: Fetcher) -> None:
    """The end of a log is known after its first fetch, and while the partition is assigned."""
    log.append(0, map(str, range(7)))
    log.append(1, ["a"])
    fetcher.assign({log.tp(0): 0})
    offsets(fetcher, 0, 7)
    eventually(lambda: fetched(fetcher, 1, 0.05) or fetcher.ends([log.tp(0)]))
    assert fetcher.ends([log.tp(0), log.tp(1)]) == {log.tp(0): 7}
    fetcher.unassign([log.tp(0)])
    assert fetcher.ends([log.tp(0)]) == {}


@pytest.mark.parametrize("most", [1, 3])
def test_a_low_limit_loses_no_message(log: Log, fetcher: Fetcher, most: int) -> None:
    """With a low `max_messages`, each message of each partition is returned once, and in order."""
    for partition in (0, 1):
        log.append(partition, map(str, range(10)))
    fetcher.assign({log.tp(0): 0, log.tp(1): 0})
    seen: dict[int, list[int]] = {0: [], 1: []}

    def all_seen() -> bool:
        messages = fetched(fetcher, most, 0.05)
        for one in messages:
            seen[one.partition].append(one.offset)
        return sum(map(len, seen.values())) >= 20

    eventually(all_seen)
    assert seen == {0: list(range(10)), 1: list(range(10))}


def test_closing_twice_does_nothing(log: Log) -> None:
    """`close` may be called more than once."""
    fetcher = log.fetcher()
    fetcher.assign({log.tp(0): 0})
    fetcher.close()
    fetcher.close()


# ---- fetchers of real brokers only ---------------------------------------------------------------


@pytest.fixture(params=log_cases(*with_fakes("kafka", "shared", "columns", "session")))
def real_log(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> Iterator[KafkaLog]:
    """A log of three empty partitions on a real broker."""
    with opened(request, unique("end")) as log:
        assert isinstance(log, KafkaLog)
        yield log


def ends(fetcher: Fetcher) -> list[tuple[TopicPartition | None, int]]:
    """Return the partition and the offset of each reported end of a log.

    On a busy machine a look-up may take too long; this fault is reported, too.
    """
    return [(one.tp, one.offset) for one in fetcher.faults if one.kind is FetchFaultKind.END]


@pytest.mark.parametrize("most", [2, 1000])
def test_the_end_of_a_log_comes_after_all_messages(
    real_log: KafkaLog, closing: Closing, most: int
) -> None:
    """The end is reported once, after the last message; it lies after transaction markers."""
    log, tp = real_log, real_log.tp(0)
    transact(log.sandbox, log.topic, COMMITTED, ABORTED)
    fetcher = closing(log.fetcher())
    fetcher.assign({tp: 0})
    seen: list[int] = []

    def has_ended() -> bool:
        seen.extend(one.offset for one in fetched(fetcher, most, 0.05))
        return bool(ends(fetcher))

    eventually(has_ended)
    assert seen == [*range(5), *range(6, 11)]
    assert ends(fetcher) == [(tp, 12)]
    fetcher.faults.clear()
    assert fetched(fetcher, most, 0.3) == []
    assert not ends(fetcher)
    log.append(0, ["later"])
    assert offsets(fetcher, 0, 1) == [12]


def test_an_unassigned_partition_has_no_end(real_log: KafkaLog, closing: Closing) -> None:
    """An end that was not taken yet is dropped, so that it cannot move a later assignment."""
    real_log.append(0, ["a"])
    fetcher = closing(real_log.fetcher())
    fetcher.assign({real_log.tp(0): 0})
    eventually(lambda: (fetched(fetcher, 10, 0.05) and False) or ends(fetcher))
    fetcher.unassign([real_log.tp(0)])
    assert not ends(fetcher)


real = pytest.mark.parametrize("make", [KafkaFetcher, RecordFetcher])
Make = Callable[[Settings], Fetcher]
F = TypeVar("F", bound=Fetcher)


class Closing(ExitStack):
    """Closes fetchers at the end of a test, even if the test fails."""

    def __call__(self, fetcher: F) -> F:
        self.callback(fetcher.close)
        return fetcher


@pytest.fixture
def closing() -> Iterator[Closing]:
    with Closing() as stack:
        yield stack


@real
def test_without_brokers_there_are_few_reports_and_a_reason(make: Make, closing: Closing) -> None:
    """If connections are refused there are a few temporary faults; a look-up gets the reason."""
    fetcher = closing(make(settings_for("127.0.0.1:1")))
    nowhere = [TopicPartition("nowhere", number) for number in range(2)]
    fetcher.assign({nowhere[0]: 0})
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline or not fetcher.faults:
        assert fetched(fetcher, 10, 0.05) == []
    assert len(fetcher.faults) <= 6
    assert {fault.kind for fault in fetcher.faults} == {FetchFaultKind.RETRIED}
    answers = fetcher.resolve(nowhere, AutoOffsetReset.LARGEST).result(LIMIT_S)
    assert answers
    assert all(isinstance(answer, str) and answer for answer in answers.values())


@real
def test_a_look_up_without_brokers_is_a_fault_of_no_partition(make: Make, closing: Closing) -> None:
    """A fetcher's owner sees that no broker answers, even if no partition is assigned."""
    fetcher = closing(make(settings_for("127.0.0.1:1")))
    nowhere = TopicPartition("nowhere", 0)
    answer = fetcher.resolve([nowhere], AutoOffsetReset.SMALLEST)
    eventually(lambda: fetched(fetcher, 10, 0.05) or fetcher.faults)
    fault = fetcher.faults[0]
    assert (fault.kind, fault.tp) == (FetchFaultKind.RETRIED, None)
    assert isinstance(answer.result(LIMIT_S)[nowhere], str)


@pytest.mark.parametrize("host", ["a..b", ".kafka", "k" * 64])
def test_a_host_name_that_python_refuses_concerns_only_its_broker(
    host: str, monkeypatch: pytest.MonkeyPatch, closing: Closing
) -> None:
    """A broker with an impossible name is a temporary fault; other brokers are read."""

    def renamed(**fields: Any) -> MetadataResponseBroker:
        return MetadataResponseBroker(**{**fields, **({"host": host} if fields["node_id"] else {})})

    monkeypatch.setattr(ms, "MetadataResponseBroker", renamed)
    monkeypatch.setattr(random, "sample", lambda addresses, _: list(addresses))
    with FakeCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=2)
        for number in range(2):
            cluster.move_leader("t", number, number)
            cluster.produce("t", ["a"], partition=number)
        settings = settings_for(cluster.broker.bootstrap)
        settings["bootstrap.servers"] = f"{host}:1,h:no-port,{cluster.broker.bootstrap}"
        fetcher = closing(RecordFetcher(settings))
        fetcher.assign({TopicPartition("t", number): 0 for number in range(2)})
        assert offsets(fetcher, 0, 1) == [0]
        eventually(
            lambda: fetched(fetcher, 10, 0.05) or any(host in one.text for one in fetcher.faults)
        )
        assert {one.kind for one in fetcher.faults} <= {FetchFaultKind.RETRIED, FetchFaultKind.END}


def test_a_refused_login_is_repeated_after_a_pause(closing: Closing) -> None:
    """While no broker accepts the login, the fetcher logs in again only every few seconds."""
    with FakeCluster() as cluster:
        settings = settings_for(cluster.bootstrap)
        settings |= {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}
        fetcher = closing(RecordFetcher(settings))
        fetcher.assign({TopicPartition("t", 0): 0})
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline or not fetcher.faults:
            assert fetched(fetcher, 10, 0.05) == []
    assert [type(one.error) for one in fetcher.faults] == [BrokerAccessError]


def test_an_unused_fetcher_is_destroyed_at_once() -> None:
    """A fetcher is in no reference cycle, so dropping the last reference destroys it."""
    fetcher = KafkaFetcher(settings_for("127.0.0.1:1"))
    seen = weakref.ref(fetcher)
    gc.disable()
    try:
        del fetcher
        assert seen() is None
    finally:
        gc.enable()


def test_partitions_take_turns(
    sandbox: Sandbox, unique: Callable[[str], str], closing: Closing
) -> None:
    """The first messages of three partitions come together, and none gets far ahead of others."""
    topic = unique("turns")
    sandbox.create_topic(topic, partitions=3)
    for partition in range(3):
        sandbox.produce(topic, [b"x" * 10_000] * 5, partition=partition)
        sandbox.produce(topic, [b"x" * 10_000] * 400, partition=partition)
    settings = {**settings_for(sandbox.bootstrap), "fetch.message.max.bytes": 1_000_000}
    fetcher = closing(ColumnFetcher({**settings, "fetch.max.bytes": 1_100_000}))
    tps = [TopicPartition(topic, number) for number in range(3)]
    fetcher.assign(dict.fromkeys(tps, 0))
    seen = dict.fromkeys(tps, 0)
    deadline = time.monotonic() + LIMIT_S
    while max(seen.values()) < 400:
        assert time.monotonic() < deadline
        runs = fetcher.fetch(0.05)
        for run in runs:
            seen[run.tp] += len(run)
        if runs:
            assert min(seen.values()) > 0
            assert max(seen.values()) - min(seen.values()) <= 2 * 110


@real
def test_a_fetcher_waits_for_a_leader(
    sandbox: Sandbox, unique: Callable[[str], str], make: Make, closing: Closing
) -> None:
    """A partition without a leader is a temporary fault; once it has a leader, it is fetched."""
    topic = unique("later")
    sandbox.create_topic(topic, partitions=1)
    there, later = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fetcher = closing(make(settings_for(sandbox.bootstrap)))
    fetcher.assign({there: 0, later: 0})
    waits = (FetchFaultKind.RETRIED, later)

    def faults() -> set[tuple[FetchFaultKind, TopicPartition | None]]:
        return {(one.kind, one.tp) for one in fetcher.faults if one.tp is not None}

    eventually(lambda: fetched(fetcher, 1, 0.05) or waits in faults())
    # The other partition is empty, so its end may have been reported by now.
    assert faults() <= {waits, (FetchFaultKind.END, there)}
    assert isinstance(fetcher.resolve([later], AutoOffsetReset.LARGEST).result(LIMIT_S)[later], str)
    sandbox.add_partitions(topic, partitions=2)
    sandbox.produce(topic, ["a"], partition=1)
    assert offsets(fetcher, 1, 1) == [0]


@real
def test_several_topics_at_once(
    sandbox: Sandbox, unique: Callable[[str], str], make: Make, closing: Closing
) -> None:
    """Partitions of several topics are looked up and fetched together, even if one is missing."""
    topics = [unique("several") for _ in range(3)]
    for topic in topics:
        sandbox.create_topic(topic, partitions=2)
        sandbox.produce(topic, [topic, topic], partition=1)
    absent = TopicPartition(unique("absent"), 0)
    tps = [TopicPartition(topic, number) for topic in topics for number in (0, 1)]
    fetcher = closing(make(settings_for(sandbox.bootstrap)))
    ends = fetcher.resolve([*tps, absent], AutoOffsetReset.LARGEST).result(LIMIT_S)
    assert {tp: ends[tp] for tp in tps} == {tp: 2 * tp.partition for tp in tps}
    assert isinstance(ends[absent], str)
    start = time.monotonic()
    fetcher.assign(dict.fromkeys([*tps, absent], 0))
    seen: set[tuple[str, int, int, bytes]] = set()
    while len(seen) < 6:
        for one in fetched(fetcher, 100, 0.05):
            assert one.value is not None
            seen.add((one.topic, one.partition, one.offset, one.value))
        assert time.monotonic() - start < LIMIT_S
    assert seen == {(topic, 1, at, topic.encode()) for topic in topics for at in (0, 1)}


@pytest.mark.real("a fake broker has no quotas")
def test_a_quota_is_obeyed(
    sandbox: Sandbox, unique: Callable[[str], str], closing: Closing
) -> None:
    """If a broker's quota demands a pause, the columnar engine waits, and loses no message."""
    topic, client = unique("quota"), unique("slow")
    sandbox.create_topic(topic, partitions=1)
    sandbox.produce(topic, ["x" * 1000] * 60)
    # The value that kafka-configs --add-config consumer_byte_rate=8000 writes
    # (`kafka.zk.AdminZkClient`).
    path = f"/config/clients/{client}"
    config = {"version": 1, "config": {"consumer_byte_rate": "8000"}}
    change = {"version": 2, "entity_path": f"clients/{client}"}
    with peer_of(sandbox.zookeeper_connect) as zookeeper:
        zookeeper.create(path, json.dumps(config).encode(), makepath=True)
        changes = "/config/changes/config_change_"
        zookeeper.create(changes, json.dumps(change).encode(), sequence=True)
    fetcher = closing(RecordFetcher({**settings_for(sandbox.bootstrap), "client.id": client}))
    tp, start = TopicPartition(topic, 0), time.monotonic()

    def throttled() -> bool:
        fetcher.assign({tp: 0})
        assert offsets(fetcher, 0, 60) == list(range(60))
        fetcher.unassign([tp])
        return fetcher.throttled_s > 0

    eventually(throttled)
    assert time.monotonic() - start >= fetcher.throttled_s
    assert not fetcher.faults
