"""A task reads exactly its ranges, in Spark's Arrow types, from every kind of log."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from support.internals import idle_readers, let_another_thread_close
from support.kafka.logs import ABORTED, CODECS, COMMITTED, REQUEST_S, producer, transact, write
from support.kafka.streams import KafkaLog
from support.logged import logged
from support.wait import LIMIT_S

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import SparkSourceError
from zkconsumer.kafka import engines, librdkafka
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.columns import from_messages, record_sets
from zkconsumer.kafka.librdkafka import KafkaFetcher
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import Broker
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.process import until
from zkconsumer.spark import task_reader
from zkconsumer.spark.offset_ranges import OffsetRange
from zkconsumer.spark.schema import SCHEMA, schema_with
from zkconsumer.spark.task_reader import ReadSettings, client_settings, read_ranges

# A time in ms that no clock shows while these tests run.
MOMENT_MS = 1_600_000_000_123


def settings_of(
    sandbox: Sandbox,
    *,
    patience_s: float = 120.0,
    isolation_level: Any = "read_uncommitted",
    **more: Any,
) -> ReadSettings:
    config = ConsumerConfig(
        group_id="none", zookeeper_connect="unused:2181", isolation_level=isolation_level
    )
    broker = Broker(None, -1, 4, tuple(f"PLAINTEXT://{one.bootstrap}" for one in sandbox.brokers))
    return ReadSettings(client_settings(config, Brokers([broker])), patience_s, **more)


def rows(
    sandbox: Sandbox, *ranges: OffsetRange, columns: tuple[str, ...] = ("offset",), **more: Any
) -> list[tuple[Any, ...]]:
    """Return the rows in these ranges as tuples."""
    found = read_ranges(ranges, columns, settings_of(sandbox, **more))
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()]


def offsets(sandbox: Sandbox, *ranges: OffsetRange, **more: Any) -> list[int]:
    return [offset for (offset,) in rows(sandbox, *ranges, **more)]


@pytest.fixture
def topic(sandbox: Sandbox, unique: Callable[[str], str]) -> str:
    """An empty topic of four partitions that never deletes messages, however old they are."""
    name = unique("read")
    sandbox.create_topic(name, partitions=4, config={"retention.ms": -1})
    return name


@pytest.fixture
def hundred(sandbox: Sandbox, topic: str) -> str:
    """A topic whose partition 0 contains the values 0 to 99."""
    sandbox.produce(topic, 100, partition=0)
    return topic


@pytest.fixture(scope="module", autouse=True)
def nothing_kept() -> Iterator[None]:
    """Close the consumers that these tests kept open for further tasks."""
    yield
    for kept, _ in idle_readers().values():
        kept.close()
    idle_readers().clear()


@pytest.mark.parametrize("columns", [SCHEMA.names, ["value"], ["timestampType", "key", "offset"]])
def test_the_types_are_those_that_spark_compares_with(
    sandbox: Sandbox, hundred: str, columns: list[str]
) -> None:
    """Each batch has the requested columns in their order, of the types of `to_arrow_schema`."""
    found = read_ranges([OffsetRange(hundred, 0, 0, 100)], columns, settings_of(sandbox))
    schemas = [batch.schema for batch in found]
    asked = to_arrow_schema(StructType([SCHEMA[name] for name in columns]), timezone="UTC")
    assert schemas and all(asked.equals(schema) for schema in schemas)


@pytest.mark.parametrize("engine", ["columns", "librdkafka"])
def test_headers_and_tokens(sandbox: Sandbox, topic: str, engine: str) -> None:
    """Both readers return the headers, null if there are none, and each partition's token."""
    sent = [[("a", b"1"), ("a", None), ("ü", b"\xff")], [], None, [("b", b"")]]
    one = producer(sandbox)
    for partition in (0, 1):
        for number, headers in enumerate(sent):
            one.produce(topic, f"{number}", partition=partition, headers=headers)
    assert one.flush(REQUEST_S) == 0
    ranges = OffsetRange(topic, 0, 0, 4, 70), OffsetRange(topic, 1, 1, 4)
    columns = ("token", "headers", "partition", "offset")
    batches = [*read_ranges(ranges, columns, settings_of(sandbox, engine=engine))]
    asked = to_arrow_schema(
        StructType([schema_with(("headers", "token"))[name] for name in columns]), timezone="UTC"
    )
    assert all(asked.equals(batch.schema) for batch in batches)
    found = sorted(
        (row["partition"], row["offset"], row["token"], row["headers"])
        for batch in batches
        for row in batch.to_pylist()
    )
    shown = [[{"key": key, "value": value} for key, value in one or ()] or None for one in sent]
    expected = [(0, number, 70, shown[number]) for number in range(4)]
    assert found == expected + [(1, number, None, shown[number]) for number in range(1, 4)]


def test_each_field_is_what_was_produced(sandbox: Sandbox, topic: str) -> None:
    """Null and empty keys and values, bytes, and times in ms are read as they were produced."""
    sent = [(None, None), (b"", b""), (b"\x00\xff", None), (None, b"v"), (b"k", os.urandom(3000))]
    one = producer(sandbox)
    for number, (key, value) in enumerate(sent):
        one.produce(topic, value, key, partition=2, timestamp=MOMENT_MS + number)
    assert one.flush(REQUEST_S) == 0
    found = rows(sandbox, OffsetRange(topic, 2, 0, 5), columns=tuple(SCHEMA.names))
    times = [datetime.fromtimestamp((MOMENT_MS + n) / 1000, UTC) for n in range(5)]
    assert found == [(key, value, topic, 2, n, times[n], 0) for n, (key, value) in enumerate(sent)]


def test_the_broker_s_own_timestamps(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """Messages of a LogAppendTime topic have timestamp type 1, which is Kafka's number for it."""
    name = unique("append")
    sandbox.create_topic(name, config={"message.timestamp.type": "LogAppendTime"})
    sandbox.produce(name, 3)
    found = rows(sandbox, OffsetRange(name, 0, 0, 3), columns=("timestampType", "timestamp"))
    assert [kind for kind, _ in found] == [1] * 3
    assert all(abs(at.timestamp() - time.time()) < 3600 for _, at in found)


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_ranges(sandbox: Sandbox, topic: str, codec: str) -> None:
    """A range that begins and ends within compressed batches is read exactly."""
    for part in range(3):
        write(
            sandbox,
            topic,
            [("k", f"{part * 1000 + n}") for n in range(1000)],
            partition=1,
            codec=codec,
        )
    found = rows(sandbox, OffsetRange(topic, 1, 123, 2345), columns=("offset", "value"))
    assert found == [(n, b"%d" % n) for n in range(123, 2345)]


def test_several_ranges_in_one_task(sandbox: Sandbox, topic: str) -> None:
    """A task reads several partitions, or two ranges of one partition, each in order."""
    for partition in range(4):
        sandbox.produce(topic, 3000, partition=partition)
    ranges = [OffsetRange(topic, n, 10 * n, 2500 + n) for n in range(4)]
    twice, empty = OffsetRange(topic, 0, 2600, 2700), OffsetRange(topic, 3, 5, 5)
    found = rows(sandbox, *ranges, twice, empty, columns=("partition", "offset", "value", "topic"))
    assert all((value, name) == (b"%d" % at, topic) for _, at, value, name in found)
    by_partition: dict[int, list[int]] = {}
    for partition, offset, _, _ in found:
        by_partition.setdefault(partition, []).append(offset)
    expected = {one.partition: [*range(one.start, one.end)] for one in ranges}
    expected[0] += range(twice.start, twice.end)
    assert by_partition == expected


@pytest.mark.parametrize("engine", ["librdkafka", "columns"])
def test_batches_are_neither_small_nor_large(sandbox: Sandbox, topic: str, engine: str) -> None:
    """A batch has thousands of small messages, or less than 8 MB of large messages."""
    sandbox.produce(topic, 20_000, partition=0)
    sizes = [
        batch.num_rows
        for batch in read_ranges(
            [OffsetRange(topic, 0, 0, 20_000)], ["value"], settings_of(sandbox, engine=engine)
        )
    ]
    assert sum(sizes) == 20_000
    if engine == "librdkafka":
        least, most = from_messages.ROWS, from_messages.ROWS + task_reader.ROWS_PER_BATCH
    else:
        least, most = task_reader.ENOUGH_ROWS, task_reader.ENOUGH_ROWS + record_sets.ROWS
    assert max(sizes) < most
    assert all(size >= least for size in sizes[:-1])
    sandbox.produce(topic, [os.urandom(50_000)] * 200, partition=1)
    wide = [
        batch.nbytes
        for batch in read_ranges([OffsetRange(topic, 1, 0, 200)], ["value"], settings_of(sandbox))
    ]
    assert sum(wide) > 10_000_000
    assert max(wide) < 8_000_000


def test_oversized_messages(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """A message above `fetch.message.max.bytes` is read; the JVM's consumer would stop there."""
    name, large = unique("large"), os.urandom(1_900_000)
    sandbox.create_topic(name, config={"max.message.bytes": 3_000_000})
    write(sandbox, name, [("k", "a"), ("k", large), ("k", "b")], partition=0, codec="none")
    found = rows(sandbox, OffsetRange(name, 0, 0, 3), columns=("value",))
    assert found == [(b"a",), (large,), (b"b",)]


def test_every_try_reads_the_same(sandbox: Sandbox, hundred: str) -> None:
    """A task that is abandoned and attempted again reads the same range of a growing log."""
    asked = OffsetRange(hundred, 0, 20, 80)
    first = read_ranges([asked], ["offset"], settings_of(sandbox))
    next(first)
    first.close()
    sandbox.produce(hundred, 100, partition=0)
    for _ in range(2):
        assert offsets(sandbox, asked) == [*range(20, 80)]


def test_a_consumer_is_kept_for_the_next_task(sandbox: Sandbox, hundred: str) -> None:
    """Successive tasks of a process share a consumer; two tasks at once have two consumers."""
    asked, settings = [OffsetRange(hundred, 0, 0, 100)], settings_of(sandbox)
    idle_readers().clear()  # Drop the consumers that earlier tests of this process kept open.
    offsets(sandbox, *asked)
    ((kept, _),) = idle_readers().values()
    one = read_ranges(asked, ["offset"], settings)
    other = read_ranges(asked, ["offset"], settings)
    assert next(one).num_rows == next(other).num_rows == 100
    assert not idle_readers()
    one.close()
    other.close()
    assert [one for one, _ in idle_readers().values()] == [kept]


def test_an_idle_consumer_is_closed(
    sandbox: Sandbox, hundred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without tasks closes its consumer after a while; the next task opens a new one."""
    monkeypatch.setattr(task_reader, "IDLE_S", 0.2)
    let_another_thread_close(monkeypatch)
    idle_readers().clear()
    offsets(sandbox, OffsetRange(hundred, 0, 0, 100))
    assert until(lambda: not idle_readers(), limit_s=LIMIT_S)
    assert offsets(sandbox, OffsetRange(hundred, 0, 0, 100)) == [*range(100)]


def test_a_forked_process_leaves_its_parent_s_consumer_alone(
    sandbox: Sandbox, hundred: str
) -> None:
    """If a forked worker inherits a consumer, it reads with a new consumer instead."""
    program = """
import os, sys, warnings
from zkconsumer.spark.offset_ranges import OffsetRange
from zkconsumer.spark.task_reader import ReadSettings, read_ranges
warnings.simplefilter("ignore")
settings = ReadSettings(eval(sys.argv[1]), patience_s=120.0)
def count():
    asked = [OffsetRange(sys.argv[2], 0, 0, 100)]
    return sum(batch.num_rows for batch in read_ranges(asked, ["value"], settings))
assert count() == 100
child = os.fork()
if child == 0:
    os._exit(count())
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), count())
"""
    arguments = [repr(settings_of(sandbox).client), hundred]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout.split() == ["100", "100"]


def test_transactions(sandbox: Sandbox, topic: str) -> None:
    """Aborted messages are read, as by the JVM's consumer; a range may end at a marker."""
    one = producer(sandbox, transactional_id=topic)
    one.init_transactions(REQUEST_S)
    for is_kept in (True, False):
        one.begin_transaction()
        for number in range(5):
            one.produce(topic, f"{number}", partition=0)
        assert one.flush(REQUEST_S) == 0
        (one.commit_transaction if is_kept else one.abort_transaction)(REQUEST_S)
    all_there = [*range(5), *range(6, 11)]
    assert offsets(sandbox, OffsetRange(topic, 0, 0, 12)) == all_there
    assert offsets(sandbox, OffsetRange(topic, 0, 5, 6)) == []
    assert offsets(sandbox, OffsetRange(topic, 0, 11, 12)) == []
    assert offsets(sandbox, OffsetRange(topic, 0, 3, 7)) == [3, 4, 6]


@pytest.mark.parametrize("engine", ["librdkafka", "columns"])
def test_committed_messages_only(sandbox: Sandbox, topic: str, engine: str) -> None:
    """With read_committed, aborted messages are left out; a range may consist of them."""
    transact(sandbox, topic, COMMITTED, ABORTED)

    def read(start: int, end: int) -> list[int]:
        return offsets(
            sandbox,
            OffsetRange(topic, 0, start, end),
            engine=engine,
            isolation_level="read_committed",
        )

    assert read(0, 12) == [*range(5)]
    assert read(6, 12) == []
    transact(sandbox, topic, COMMITTED)
    assert read(6, 11) == []
    assert read(3, 14) == [3, 4, 12, 13]


# ---- what is missing -----------------------------------------------------------------------------


def test_a_cut_log_is_an_error(sandbox: Sandbox, hundred: str) -> None:
    """If messages of a range are lost, one sentence names partition, range, and the log's ends."""
    KafkaLog(hundred, sandbox).cut(0, 30)
    with pytest.raises(SparkSourceError) as caught:
        offsets(sandbox, OffsetRange(hundred, 0, 20, 80))
    assert str(caught.value) == (
        f"10 messages are no longer in the log ({hundred}-0: offsets 20 to 29 of the range 20 to"
        " 79; the log has offsets 30 to 99): failOnDataLoss=false reads the messages that are left"
    )


def test_a_log_without_its_beginning_is_read_with_a_warning(
    sandbox: Sandbox, hundred: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With failOnDataLoss=false the remaining messages are read; a warning names the others."""
    KafkaLog(hundred, sandbox).cut(0, 30)
    with caplog.at_level(logging.WARNING):
        lossy = {"fail_on_data_loss": False}
        assert offsets(sandbox, OffsetRange(hundred, 0, 20, 80), **lossy) == [*range(30, 80)]
        assert offsets(sandbox, OffsetRange(hundred, 0, 0, 10), **lossy) == []
    assert [line[:39] for line in logged(caplog, "zkconsumer.spark")] == [
        "10 messages are no longer in the log (r",
        "10 messages are no longer in the log (r",
    ]


def test_a_log_that_ends_too_early(
    sandbox: Sandbox, hundred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a range lies beyond the log's end, the task raises an error, or reads what exists."""
    monkeypatch.setattr(task_reader, "STALE_END_S", 0.5)
    with pytest.raises(
        SparkSourceError, match=r"50 messages are no .* 100 to 149 of the range 90 to 149"
    ):
        offsets(sandbox, OffsetRange(hundred, 0, 90, 150))
    with pytest.raises(
        SparkSourceError, match=r"50 messages are no .* 200 to 249 of the range 200 to 249"
    ):
        offsets(sandbox, OffsetRange(hundred, 0, 200, 250))
    lossy = {"fail_on_data_loss": False}
    assert offsets(sandbox, OffsetRange(hundred, 0, 90, 150), **lossy) == [*range(90, 100)]
    assert offsets(sandbox, OffsetRange(hundred, 0, 200, 250), **lossy) == []


def test_a_log_that_is_about_to_grow(sandbox: Sandbox, hundred: str) -> None:
    """If a leader reports an end below the range's end, the task waits for the messages."""
    late = threading.Timer(1.0, sandbox.produce, [hundred, 50], {"partition": 0})
    late.start()
    assert offsets(sandbox, OffsetRange(hundred, 0, 90, 150)) == [*range(90, 150)]
    late.join(LIMIT_S)


def test_no_such_partition(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """If a topic does not exist, the task fails after its time limit with the last broker error."""
    name = unique("none")
    for patience_s in (1, 10, 60):
        with pytest.raises(SparkSourceError) as caught:
            offsets(sandbox, OffsetRange(name, 0, 0, 10), patience_s=patience_s)
        if "last error:" in str(caught.value):
            break  # A busy broker may answer too late for the first limit.
    where = f"{name}-0 from 0 to 9; last error:"
    assert f"no message arrived from the brokers for {patience_s} s ({where}" in str(caught.value)


def test_brokers_that_stop_and_return(unique: Callable[[str], str]) -> None:
    """A task finds a new leader and a restarted broker; it fails if a broker stays down."""
    name, fast = unique("away"), {"zookeeper.session.timeout.ms": 1500}
    with Sandbox(brokers=2, tick_time_s=0.1, overrides=fast) as own:
        (placed,) = own.create_topic(name, replicas=2)
        own.produce(name, 30_000)
        reading_on = read_ranges([OffsetRange(name, 0, 0, 30_000)], ["offset"], settings_of(own))
        found = next(reading_on).num_rows
        leader = own.brokers[placed.leader or 0]
        leader.kill()
        assert found + sum(batch.num_rows for batch in reading_on) == 30_000
        asked = OffsetRange(name, 0, 100, 200)
        assert offsets(own, asked) == [*range(100, 200)]
        (other,) = (one for one in own.brokers if one is not leader)
        other.kill()
        with pytest.raises(SparkSourceError, match="no message arrived from the brokers for 1 s"):
            offsets(own, asked, patience_s=1.0)
        back = threading.Timer(1.0, other.start)
        back.start()
        assert offsets(own, asked) == [*range(100, 200)]
        back.join(LIMIT_S)


def test_fetches_are_sized_to_the_range(
    sandbox: Sandbox, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the size of messages is known, fetches match the range's size; the rows are exact."""
    made: list[dict[str, Any]] = []

    class Recorded(KafkaFetcher):
        def __init__(self, settings: dict[str, Any]) -> None:
            made.append(settings)
            super().__init__(settings)

    monkeypatch.setattr(librdkafka, "KafkaFetcher", Recorded)
    values = [f"{number:0200}" for number in range(12_000)]
    sandbox.produce(topic, values, partition=3)
    for start in (0, 1000, 2000, 2500, 9000):
        asked = OffsetRange(topic, 3, start, start + 1000)
        found = offsets(sandbox, asked, has_backlog=True, engine="librdkafka")
        assert found == [*range(start, start + 1000)]
    (sized,) = [one for one in made if one["queued.min.messages"] == 1]
    assert 200_000 < sized["fetch.message.max.bytes"] < 300_000
    long = OffsetRange(topic, 3, 0, 12_000)
    for engine in ("librdkafka", "columns"):
        assert offsets(sandbox, long, has_backlog=True, engine=engine) == [*range(12_000)]
        assert offsets(sandbox, long, engine=engine) == [*range(12_000)]


def test_a_reader_is_closed_while_a_task_looks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task finds no error when other threads keep and close readers while it looks for one."""

    class Silent(task_reader.MessageReader):
        """A reader without a consumer."""

        def _open(self) -> None: ...

        def close(self) -> None: ...

    cache, ended = task_reader.ReaderCache(), threading.Event()

    def keep() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            cache.keep(Silent({"number": number}))

    before = sys.getswitchinterval()
    thread = threading.Thread(target=keep)
    thread.start()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20_000):
            assert len(cache.settings(Silent)) <= task_reader.KEPT_CONSUMERS
    finally:
        sys.setswitchinterval(before)
        ended.set()
        thread.join()


def test_a_warm_up_connects_the_consumer_that_it_keeps(sandbox: Sandbox, hundred: str) -> None:
    """The consumer kept by a warm-up task is connected to the leader, and the next task uses it."""
    settings = settings_of(sandbox, engine="columns")
    for kept, _ in idle_readers().values():
        kept.close()
    idle_readers().clear()
    task_reader.warm_up(TopicPartition(hundred, 0), settings)
    ((kept, _),) = idle_readers().values()
    assert kept.client.sessions  # one for each broker to which the consumer has connected
    found = offsets(sandbox, OffsetRange(hundred, 0, 0, 100), engine="columns")
    assert found == [*range(100)]
    ((used, _),) = idle_readers().values()
    assert used is kept


@pytest.mark.parametrize("engine", ["columns", "librdkafka"])
def test_a_task_after_a_warm_up_reads_everything(
    sandbox: Sandbox, hundred: str, engine: str
) -> None:
    """A warm-up leaves neither messages nor faults to the next task."""
    settings = settings_of(sandbox, engine=engine)
    task_reader.warm_up(TopicPartition(hundred, 0), settings)
    found = offsets(sandbox, OffsetRange(hundred, 0, 0, 100), engine=engine)
    assert found == [*range(100)]


def test_an_executor_without_the_extra_logs_one_line(
    sandbox: Sandbox, hundred: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """If numba is missing, a task reads through librdkafka, and one log line says so."""
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    task_reader.log_once.cache_clear()
    for _ in range(2):
        assert offsets(sandbox, OffsetRange(hundred, 0, 0, 100)) == [*range(100)]
    lines = [one for one in caplog.messages if "reads through librdkafka" in one]
    assert len(lines) == 1
    task_reader.log_once.cache_clear()


# Reads a range in a process that has no compiled code; stops the compiling process.
FIRST_READ = """
import json, logging, pickle, sys
from zkconsumer import loops
from zkconsumer.spark.task_reader import read_ranges
logging.basicConfig(stream=sys.stderr)
ranges, settings = pickle.loads(bytes.fromhex(sys.argv[1]))
for _ in range(2):
    print(sum(batch.num_rows for batch in read_ranges(ranges, ["value"], settings)))
compiling = loops.start_compiling()
compiling.kill()
print(compiling.args[1:3])
"""


def test_the_first_task_does_not_wait_for_the_compiler(
    sandbox: Sandbox, hundred: str, tmp_path: Path
) -> None:
    """Without compiled code a task reads through librdkafka, says so, and starts the compiler."""
    task = [OffsetRange(hundred, 0, 0, 100)], settings_of(sandbox)
    done = subprocess.run(
        [sys.executable, "-c", FIRST_READ, pickle.dumps(task).hex()],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout.splitlines() == ["100", "100", "['-m', 'zkconsumer.loops']"]
    assert done.stderr.count("reads through librdkafka; another process compiles it now") == 1


def test_a_task_restores_the_garbage_collectors_thresholds(sandbox: Sandbox, hundred: str) -> None:
    """Every task, even an abandoned one, restores the garbage collector's thresholds."""
    before = gc.get_threshold()
    assert offsets(sandbox, OffsetRange(hundred, 0, 0, 100)) == [*range(100)]
    left = read_ranges([OffsetRange(hundred, 0, 0, 100)], ["value"], settings_of(sandbox))
    next(left)
    left.close()
    assert gc.get_threshold() == before


def test_a_broken_package_on_an_executor(
    sandbox: Sandbox, hundred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If `fetch.engine=columns` lacks a package, one sentence names the package and the extra."""
    for module in ("fetcher", "column_fetcher"):
        monkeypatch.delitem(sys.modules, f"zkconsumer.kafka.columns.{module}", raising=False)
        monkeypatch.delattr(f"zkconsumer.kafka.columns.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "selectors", None)
    settings = ReadSettings(
        {**settings_of(sandbox).client, "client.id": "x"}, 1.0, engine="columns"
    )
    with pytest.raises(SparkSourceError, match=r"an executor cannot read: .*selectors") as caught:
        next(read_ranges([OffsetRange(hundred, 0, 0, 1)], ["value"], settings))
    assert f"({sys.executable} on " in str(caught.value)
    assert "install zkconsumer[spark,fast] there" in str(caught.value)


@pytest.mark.parametrize("name", ["", "_groups", "_history"])
def test_no_pyarrow_on_the_driver(name: str) -> None:
    """Spark still finds each format, and the format says what is missing."""
    program = f"""
import sys
sys.modules["pyarrow"] = None
from pyspark_zkconsumer{name} import DefaultSource
print(DefaultSource.name())
try:
    DefaultSource({{}}).schema()
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout.splitlines() == [
        f"zkconsumer{name.replace('_', '-')}",
        "zkconsumer.spark needs pyarrow: pip install 'zkconsumer[spark]'",
    ]


def test_no_pyarrow_on_an_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """If pyarrow is missing, one sentence names the interpreter and what to install."""
    monkeypatch.delitem(sys.modules, "zkconsumer.kafka.columns.from_messages")
    monkeypatch.delattr("zkconsumer.kafka.columns.from_messages")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SparkSourceError) as caught:
        next(read_ranges([OffsetRange("t", 0, 0, 1)], ["value"], ReadSettings({}, 1.0)))
    assert "an executor cannot read" in str(caught.value)
    assert sys.executable in str(caught.value)
    assert "install zkconsumer[spark] there" in str(caught.value)
