"""`mode=direct` with real brokers: first calls as Spark makes them, then a real Spark."""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient
from kazoo.security import make_acl
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery
from support.kafka.logs import ABORTED, COMMITTED, open_transaction, transact
from support.wait import LIMIT_S
from support.zk.client import data_of, peer_of

from zkconsumer.errors import ConfigError, SparkSourceError
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.logs import LogRange
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import Broker
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.process import until
from zkconsumer.spark import cluster_logs
from zkconsumer.spark.cluster_logs import ClusterLogs
from zkconsumer.spark.direct_stream import DirectStreamReader
from zkconsumer.spark.offset_mirror import OffsetMirror
from zkconsumer.spark.offset_ranges import StreamOffset, from_offset
from zkconsumer.spark.offset_resolution import offsets_of, partitions_of
from zkconsumer.spark.options import SourceOptions

Unique = Callable[[str], str]
Sink = Callable[[DataFrame, int], None]

ALL = ReadAllAvailable()
EARLIEST = {"startingOffsets": "earliest"}


class Driven:
    """A reader in this process; the test calls it as Spark's engine does."""

    def __init__(self, sandbox: Sandbox, **options: str) -> None:
        given = {name.replace("__", "."): text for name, text in options.items()}
        parsed = SourceOptions.parse({"zookeeper": sandbox.zookeeper_connect, **given})
        self.reader = DirectStreamReader(parsed.for_stream(), ("topic", "partition", "offset"))

    def first(self, limit: Any = ALL) -> StreamOffset:
        """Return the end of the first batch."""
        return self.after({}, limit)

    def after(self, start: StreamOffset, limit: Any = ALL) -> StreamOffset:
        """Return the next end offset that differs from `start`."""
        found: list[StreamOffset] = []

        def is_news() -> bool:
            found.append(self.reader.latestOffset(start, limit))
            return found[-1] is not start

        assert until(is_news, limit_s=LIMIT_S)
        return found[-1]

    def is_quiet(self, start: StreamOffset) -> bool:
        """Return whether none of several requests finds new messages."""
        return not until(lambda: self.reader.latestOffset(start, ALL) is not start, limit_s=1.5)

    def read(self, start: StreamOffset, end: StreamOffset) -> list[tuple[str, int, int]]:
        """Return the messages that a batch's tasks read with pickled copies of the reader."""
        copy = pickle.loads(pickle.dumps(self.reader))
        tasks = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        return sorted(
            (row["topic"], row["partition"], row["offset"])
            for task in tasks
            for batch in copy.read(task)
            for row in batch.to_pylist()
        )


@pytest.fixture
def driven(sandbox: Sandbox) -> Iterator[Callable[..., Driven]]:
    """Create readers, and stop them at the end."""
    made: list[Driven] = []

    def make(**options: str) -> Driven:
        made.append(Driven(sandbox, **options))
        return made[-1]

    yield make
    for one in made:
        one.reader.stop()


@pytest.fixture
def topic(sandbox: Sandbox, unique: Unique) -> str:
    """Two partitions with six and four messages."""
    name = unique("direct")
    sandbox.create_topic(name, partitions=2)
    sandbox.produce(name, 6, partition=0)
    sandbox.produce(name, 4, partition=1)
    return name


def test_a_small_batch_waits(driven: Callable[..., Driven], sandbox: Sandbox, topic: str) -> None:
    """After the first batch, one waits for `minOffsetsPerTrigger` or for `maxTriggerDelay`."""
    options = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "3"}
    patient, hasty = driven(**options), driven(**options, maxTriggerDelay="1s")
    first = patient.first()
    assert hasty.first() == first == {topic: {"0": [0, 6], "1": [0, 4]}}
    sandbox.produce(topic, 2, partition=0)
    assert patient.is_quiet(first)
    assert hasty.after(first) == {topic: {"0": [6, 8], "1": [4, 4]}}
    sandbox.produce(topic, 1, partition=1)
    assert patient.after(first) == {topic: {"0": [6, 8], "1": [4, 5]}}


def test_committed_messages_only(
    driven: Callable[..., Driven], sandbox: Sandbox, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With read_committed, batches end before open transactions, and leave out aborted messages."""
    monkeypatch.setattr(cluster_logs, "STALE_END_S", 0.1)
    transact(sandbox, topic, COMMITTED, ABORTED)
    one = driven(subscribe=topic, isolation__level="read_committed", **EARLIEST)
    with open_transaction(sandbox, topic):
        first = one.first()
        assert first == {topic: {"0": [0, 18], "1": [0, 4]}}
        assert [at for _, number, at in one.read({}, first) if number == 0] == [*range(11)]
        assert one.is_quiet(first)
        # A query that read uncommitted messages has moved its checkpoint over the transaction.
        ahead = {topic: {"0": [18, 19], "1": [4, 4]}}
        assert one.is_quiet(ahead)
    after = one.after(ahead)
    assert after == {topic: {"0": [19, 20], "1": [4, 4]}}
    assert one.read(ahead, after) == []


def stored(sandbox: Sandbox, group: str, topic: str) -> list[bytes | None]:
    """Return the contents of the offset znodes of partitions 0 and 1."""
    znodes = [paths.offset(group, TopicPartition(topic, number)) for number in (0, 1)]
    with peer_of(sandbox.zookeeper_connect) as zk:
        return [data_of(zk, path) for path in znodes]


# ---- the reader by itself -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({"startingOffsets": "earliest"}, [0, 0]),
        ({"startingOffsets": "latest"}, [6, 4]),
        ({}, [6, 4]),
        ({"startingOffsets": '{"TOPIC":{"0":3,"1":-1}}'}, [3, 4]),
        ({"startingOffsets": '{"TOPIC":{"0":-2,"1":1}}'}, [0, 1]),
        ({"startingTimestamp": "1"}, [0, 0]),
        (
            {
                "startingOffsetsByTimestamp": '{"TOPIC":{"0":1,"1":99999999999999}}',
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [0, 4],
        ),
    ],
)
def test_where_a_query_begins(
    driven: Callable[..., Driven], topic: str, options: dict[str, str], starts: list[int]
) -> None:
    """Each start option gives its offsets, and the first batch ends at the logs' ends."""
    given = {name: text.replace("TOPIC", topic) for name, text in options.items()}
    one = driven(subscribe=topic, **given)
    assert one.first() == {topic: {"0": [starts[0], 6], "1": [starts[1], 4]}}


def test_a_query_starts_at_the_groups_offsets(
    sandbox: Sandbox, driven: Callable[..., Driven], topic: str, unique: Unique
) -> None:
    """Stored offsets are used; `auto.offset.reset` replaces missing and out-of-range offsets."""
    group = unique("group")
    with peer_of(sandbox.zookeeper_connect) as zk:
        zk.create(paths.offset(group, TopicPartition(topic, 0)), b"2", makepath=True)
    one = driven(subscribe=topic, group__id=group)
    assert one.first() == {topic: {"0": [2, 6], "1": [4, 4]}}
    smallest = driven(subscribe=topic, group__id=group, auto__offset__reset="smallest")
    assert smallest.first() == {topic: {"0": [2, 6], "1": [0, 4]}}
    with peer_of(sandbox.zookeeper_connect) as zk:
        zk.set(paths.offset(group, TopicPartition(topic, 0)), b"77")
    assert driven(subscribe=topic, group__id=group).first()[topic]["0"] == [6, 6]


def test_a_query_starts_at_the_groups_offsets_in_kafka(
    sandbox: Sandbox, driven: Callable[..., Driven], topic: str, unique: Unique
) -> None:
    """With dual commit a query starts at the higher stored offset, without it at Kafka's offset."""
    group = unique("group")
    with peer_of(sandbox.zookeeper_connect) as zk:
        zk.create(paths.offset(group, TopicPartition(topic, 0)), b"5", makepath=True)
    committer = Consumer({"bootstrap.servers": sandbox.bootstrap, "group.id": group})
    committer.commit(
        offsets=[RawPartition(topic, 0, 2), RawPartition(topic, 1, 3)], asynchronous=False
    )
    committer.close()
    both = {"subscribe": topic, "group__id": group, "offsets__storage": "kafka"}
    assert driven(**both).first() == {topic: {"0": [5, 6], "1": [3, 4]}}
    kafka = driven(**both, dual__commit__enabled="false")
    assert kafka.first() == {topic: {"0": [2, 6], "1": [3, 4]}}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"startingOffsets": '{"TOPIC":{"0":3}}'}, ConfigError),
        ({"startingOffsets": '{"TOPIC":{"0":0,"1":0,"2":0}}'}, ConfigError),
        ({"startingOffsets": '{"TOPIC":{"0":0,"1":5}}'}, SparkSourceError),
        ({"startingTimestamp": "99999999999999"}, SparkSourceError),
    ],
)
def test_a_start_that_is_impossible(
    driven: Callable[..., Driven], topic: str, options: dict[str, str], error: type[Exception]
) -> None:
    """Missing or unknown partitions, offsets beyond the log, and unmatched times are errors."""
    given = {name: text.replace("TOPIC", topic) for name, text in options.items()}
    one = driven(subscribe=topic, **given)
    with pytest.raises(error):
        until(lambda: one.reader.latestOffset({}, ALL) != {}, limit_s=LIMIT_S)


@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_times_are_refused_with_old_brokers(option: str) -> None:
    """If brokers are older than 0.10, starting at a time is refused with this reason."""
    text = "5" if option == "startingTimestamp" else '{"t":{"0":5}}'
    options = SourceOptions.parse({"zookeeper": "none:1", "subscribe": "t", option: text})
    cluster = ClusterLogs(lambda: Brokers([Broker("none", 1, 2, ())]))
    logs = {TopicPartition("t", 0): LogRange(0, 9)}
    with pytest.raises(ConfigError, match=r"before 0\.10 .*startingOffsetsByTimestamp"):
        offsets_of(options.for_stream(), "starting", logs, cluster)


def test_batches_are_limited_and_read_exactly(
    sandbox: Sandbox, driven: Callable[..., Driven], topic: str
) -> None:
    """maxOffsetsPerTrigger is divided in proportion to the lag; each message is in one batch."""
    one = driven(subscribe=topic, maxOffsetsPerTrigger="5", **EARLIEST)
    limit = one.reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(5)
    assert driven(subscribe=topic).reader.getDefaultReadLimit() == ALL
    ends = [one.first(limit)]
    assert ends[0] == {topic: {"0": [0, 3], "1": [0, 2]}}
    assert one.reader.reportLatestOffset() == {topic: {"0": [3, 6], "1": [2, 4]}}
    ends.append(one.after(ends[0], limit))
    assert ends[1] == {topic: {"0": [3, 6], "1": [2, 4]}}
    read = [one.read({}, end) for end in ends]
    assert sorted(read[0] + read[1]) == [
        *((topic, 0, n) for n in range(6)),
        *((topic, 1, n) for n in range(4)),
    ]
    assert one.is_quiet(ends[1])
    sandbox.produce(topic, 1, partition=1)
    last = one.after(ends[1], limit)
    assert last == {topic: {"0": [6, 6], "1": [4, 5]}}
    assert one.read(ends[1], last) == [(topic, 1, 4)]


def test_a_replay_needs_nothing_but_its_offset(driven: Callable[..., Driven], topic: str) -> None:
    """A new reader can plan a batch from nothing but the checkpoint's offsets."""
    one = driven(subscribe=topic, startingOffsets="latest")
    assert one.read({}, {topic: {"0": [1, 3], "1": [4, 4]}}) == [(topic, 0, 1), (topic, 0, 2)]
    assert one.after({topic: {"0": [1, 3], "1": [4, 4]}}) == {topic: {"0": [3, 6], "1": [4, 4]}}


def test_the_calls_of_older_releases(driven: Callable[..., Driven], topic: str) -> None:
    """Spark 4.0 and 4.1 pass no start to latestOffset: the query continues from its last result."""
    one = driven(subscribe=topic, maxOffsetsPerTrigger="5", **EARLIEST)
    first: StreamOffset = {}

    def is_there() -> bool:
        first.update(one.reader.latestOffset())
        return bool(first)

    assert until(is_there, limit_s=LIMIT_S)
    assert first == {topic: {"0": [0, 3], "1": [0, 2]}}
    assert one.reader.latestOffset() == {topic: {"0": [3, 6], "1": [2, 4]}}
    again = driven(subscribe=topic)
    again.reader.partitions(first, first)
    assert again.reader.latestOffset() == {topic: {"0": [3, 6], "1": [2, 4]}}


def test_patterns_new_topics_and_added_partitions(
    sandbox: Sandbox, driven: Callable[..., Driven], unique: Unique
) -> None:
    """Topics and partitions that are created while the query runs are read from the beginning."""
    stem = unique("pattern")
    sandbox.create_topic(f"{stem}.a")
    sandbox.produce(f"{stem}.a", 2)
    one = driven(subscribePattern=f"{stem}\\.[ab]", startingOffsets="latest")
    first = one.first()
    assert first == {f"{stem}.a": {"0": [2, 2]}}
    sandbox.create_topic(f"{stem}.c")
    sandbox.create_topic(f"{stem}.b")
    sandbox.produce(f"{stem}.b", 3)
    second = one.after(first)
    assert second == {f"{stem}.a": {"0": [2, 2]}, f"{stem}.b": {"0": [0, 3]}}
    sandbox.add_partitions(f"{stem}.a", partitions=2)
    sandbox.produce(f"{stem}.a", 1, partition=1)
    assert one.after(second) == {
        f"{stem}.a": {"0": [2, 2], "1": [0, 1]},
        f"{stem}.b": {"0": [3, 3]},
    }


def test_kafkas_own_topics_match_no_pattern() -> None:
    """Internal topics match no pattern, unless `exclude.internal.topics` is false."""
    topics = {"__consumer_offsets": (0,), "a": (0, 1)}
    given = {"zookeeper": "none:1", "subscribePattern": ".*"}
    mine = [TopicPartition("a", 0), TopicPartition("a", 1)]
    assert partitions_of(SourceOptions.parse(given), topics) == mine
    every = SourceOptions.parse({**given, "exclude.internal.topics": "false"})
    assert partitions_of(every, topics) == [TopicPartition("__consumer_offsets", 0), *mine]


def test_assigned_partitions_and_no_others(driven: Callable[..., Driven], topic: str) -> None:
    """`assign` reads exactly the named partitions."""
    one = driven(assign=json.dumps({topic: [1]}), **EARLIEST)
    assert one.first() == {topic: {"1": [0, 4]}}


def test_a_topic_that_does_not_exist_yet_is_waited_for(
    sandbox: Sandbox,
    driven: Callable[..., Driven],
    unique: Unique,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If a topic is missing, the log names it, and no batch is planned until the topic exists."""
    name = unique("later")
    one = driven(subscribe=name, **EARLIEST)
    start: StreamOffset = {}
    with caplog.at_level(logging.WARNING, "zkconsumer.spark"):
        assert one.is_quiet(start)
    assert [name in line for line in caplog.messages if "not exist yet" in line] == [True]
    sandbox.create_topic(name)
    sandbox.produce(name, 1)
    assert one.after(start) == {name: {"0": [0, 1]}}


def test_a_topic_that_is_deleted_ends_the_query_or_is_dropped(
    sandbox: Sandbox,
    driven: Callable[..., Driven],
    topic: str,
    unique: Unique,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """failOnDataLoss decides if a deleted topic ends a query; a recreated topic is read whole."""
    doomed = unique("doomed")
    sandbox.create_topic(doomed)
    sandbox.produce(doomed, 3)
    names = f"{topic},{doomed}"
    strict = driven(subscribe=names, **EARLIEST)
    loose = driven(subscribe=names, failOnDataLoss="false", **EARLIEST)
    start = strict.first()
    assert start == loose.first()
    sandbox.delete_topic(doomed)
    with pytest.raises(SparkSourceError, match=f"topic {doomed} was deleted"):
        until(lambda: strict.reader.latestOffset(start, ALL) is not start, limit_s=LIMIT_S)
    with caplog.at_level(logging.WARNING, "zkconsumer.spark"):
        assert until(
            lambda: (
                loose.reader.latestOffset(start, ALL) is start
                and any(doomed in line for line in caplog.messages)
            ),
            limit_s=LIMIT_S,
        )
    sandbox.produce(topic, 1, partition=0)
    second = loose.after(start)
    assert second == {topic: {"0": [6, 7], "1": [4, 4]}}
    sandbox.create_topic(doomed)
    sandbox.produce(doomed, 1)
    assert loose.after(second)[doomed] == {"0": [0, 1]}


def test_deleted_messages_are_data_loss(
    sandbox: Sandbox, driven: Callable[..., Driven], topic: str
) -> None:
    """If a log starts after the checkpoint's offset or ends before it, this is data loss."""
    admin = AdminClient({"bootstrap.servers": sandbox.bootstrap})
    for done in admin.delete_records([RawPartition(topic, 0, 4)]).values():
        done.result(LIMIT_S)
    options = {"subscribe": topic, "failOnDataLoss": "false"}
    begins_later: StreamOffset = {topic: {"0": [0, 2], "1": [4, 4]}}
    with pytest.raises(SparkSourceError, match=r"2 to 3 of .* are no longer in the log"):
        driven(subscribe=topic).after(begins_later)
    assert driven(**options).after(begins_later) == {topic: {"0": [4, 6], "1": [4, 4]}}
    ends_before: StreamOffset = {topic: {"0": [6, 6], "1": [4, 9]}}
    with pytest.raises(SparkSourceError, match="ends at 4, before offset 9"):
        driven(subscribe=topic).after(ends_before)
    assert driven(**options).after(ends_before) == {topic: {"0": [6, 6], "1": [4, 4]}}


def test_available_now_reads_existing_messages(
    sandbox: Sandbox, driven: Callable[..., Driven], topic: str
) -> None:
    """An AvailableNow run reads limited batches up to the logs' ends at its start."""
    one = driven(subscribe=topic, maxOffsetsPerTrigger="6", **EARLIEST)
    one.reader.prepareForTriggerAvailableNow()
    sandbox.produce(topic, 5, partition=0)
    sandbox.add_partitions(topic, partitions=3)
    sandbox.produce(topic, 1, partition=2)
    end = one.first(ReadMaxRows(6))
    while (more := one.reader.latestOffset(end, ReadMaxRows(6))) is not end:
        end = more
    assert [(*one.tp, one.end) for one in from_offset(end)] == [(topic, 0, 6), (topic, 1, 4)]


def test_an_idle_query_costs_little(driven: Callable[..., Driven], topic: str) -> None:
    """A query that is called every 10 ms uses less than a twentieth of a core."""
    one = driven(subscribe=topic, **EARLIEST)
    start = one.first()
    cpu, begun = time.process_time(), time.monotonic()
    assert one.is_quiet(start)
    assert time.process_time() - cpu < 0.05 * (time.monotonic() - begun)


# ---- the mirror ---------------------------------------------------------------------------------


def test_finished_batches_are_mirrored(
    sandbox: Sandbox, driven: Callable[..., Driven], topic: str, unique: Unique
) -> None:
    """If the option is set, latestOffset and commit write finished offsets to ZooKeeper."""
    group = unique("group")
    one = driven(subscribe=topic, group__id=group, mirrorOffsets="true", **EARLIEST)
    first = one.first(ReadMaxRows(5))
    assert stored(sandbox, group, topic) == [None, None]
    second = one.after(first)
    assert until(lambda: stored(sandbox, group, topic) == [b"3", b"2"], limit_s=LIMIT_S)
    one.reader.commit(second)
    one.reader.stop()  # This call writes the offsets of the batch that has finished.
    assert stored(sandbox, group, topic) == [b"6", b"4"]
    other = unique("group")
    silent = driven(subscribe=topic, group__id=other, **EARLIEST)
    silent.after(silent.first(ReadMaxRows(5)))
    with peer_of(sandbox.zookeeper_connect) as zk:
        assert not zk.exists(paths.group(other))


def test_the_mirror_only_moves_forward(sandbox: Sandbox, topic: str, unique: Unique) -> None:
    """Higher offsets and malformed znodes stay; a repaired znode is written again."""
    group = unique("group")
    config = SourceOptions.parse(
        {
            "zookeeper": sandbox.zookeeper_connect,
            "subscribe": topic,
            "group.id": group,
        }
    ).config
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    mirror = OffsetMirror(config)
    mirror.commit({zero: 5, one: 5})
    with peer_of(sandbox.zookeeper_connect) as zk:
        zk.set(paths.offset(group, zero), b"9")
        zk.set(paths.offset(group, one), b"1")
    mirror.commit({zero: 6, one: 6})
    assert stored(sandbox, group, topic) == [b"9", b"6"]
    mirror.commit({zero: 3, one: 3})
    assert stored(sandbox, group, topic) == [b"9", b"6"]
    with peer_of(sandbox.zookeeper_connect) as zk:
        zk.delete(paths.group(group), recursive=True)
    mirror.commit({zero: 10, one: 10})
    assert stored(sandbox, group, topic) == [b"10", b"10"]
    with peer_of(sandbox.zookeeper_connect) as zk:
        zk.set(paths.offset(group, one), b"what?")
    mirror.commit({zero: 11, one: 11})
    assert stored(sandbox, group, topic) == [b"11", b"what?"]
    mirror.close()
    mirror.commit({zero: 12})
    assert stored(sandbox, group, topic) == [b"12", b"what?"]
    with peer_of(sandbox.zookeeper_connect) as zk:
        zk.set(paths.offset(group, one), b"2")
    mirror.commit({zero: 12, one: 13})
    assert stored(sandbox, group, topic) == [b"12", b"13"]
    mirror.close()


def test_a_group_with_members_causes_a_warning(
    sandbox: Sandbox, topic: str, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """If the group has members, a warning says that they skip messages; offsets are written."""
    group = unique("group")
    config = SourceOptions.parse(
        {
            "zookeeper": sandbox.zookeeper_connect,
            "subscribe": topic,
            "group.id": group,
        }
    ).config
    with peer_of(sandbox.zookeeper_connect) as zk:
        zk.create(paths.member(group, f"{group}_other"), b"{}", ephemeral=True, makepath=True)
        mirror = OffsetMirror(config)
        with caplog.at_level(logging.WARNING, "zkconsumer.spark"):
            mirror.commit({TopicPartition(topic, 0): 5})
        mirror.close()
    assert any(f"group {group} has members" in line for line in caplog.messages)
    assert stored(sandbox, group, topic) == [b"5", None]


def test_a_refused_offset_write_stops_no_query(
    sandbox: Sandbox,
    driven: Callable[..., Driven],
    topic: str,
    unique: Unique,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If ZooKeeper denies the write of offsets, the log says so once, and batches continue."""
    group = unique("group")
    with peer_of(sandbox.zookeeper_connect) as zk:
        zk.ensure_path(paths.CONSUMERS)  # The znodes above stay open: kazoo would lock them.
        zk.create(paths.group(group), acl=[make_acl("world", "anyone", read=True)])
    one = driven(subscribe=topic, group__id=group, mirrorOffsets="true", **EARLIEST)
    first = one.first(ReadMaxRows(4))
    with caplog.at_level(logging.WARNING, "zkconsumer.spark"):
        end = one.after(one.after(first, ReadMaxRows(4)))
        one.reader.stop()
    assert [one.end for one in from_offset(end)] == [6, 4]
    assert sum("mirroring offsets failed" in line for line in caplog.messages) == 1


def test_a_mirror_holds_no_batch(
    unique: Unique, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If ZooKeeper is unavailable, batches continue; offsets are written when it returns."""
    monkeypatch.setattr("zkconsumer.spark.offset_mirror.RETRY_S", 0.2)
    name, group = unique("direct"), unique("group")
    caplog.set_level(logging.INFO, "zkconsumer.spark")
    with Sandbox(tick_time_s=0.1) as own:
        own.create_topic(name, partitions=2)
        own.produce(name, 60, partition=0)
        options = {"group__id": group, "zookeeper__connection__timeout__ms": "10000", **EARLIEST}
        one = Driven(own, subscribe=name, mirrorOffsets="true", **options)
        try:
            end = one.after(one.first(ReadMaxRows(1)), ReadMaxRows(1))
            assert until(lambda: stored(own, group, name)[0] == b"1", limit_s=LIMIT_S)
            own.zookeeper.stop()
            taken = []
            for _ in range(20):
                started = time.monotonic()
                end = one.after(end, ReadMaxRows(1))
                taken.append(time.monotonic() - started)
            assert [one.end for one in from_offset(end)] == [22, 0]
            # If each batch waited for `zookeeper.connection.timeout.ms`, they would take 200 s.
            assert sum(taken) < 100
            assert until(lambda: "mirroring offsets failed" in caplog.text, limit_s=LIMIT_S)
            own.zookeeper.start()
            one.reader.latestOffset(end, ReadMaxRows(1))
            assert until(lambda: stored(own, group, name)[0] == b"22", limit_s=LIMIT_S)
            assert until(
                lambda: "mirroring offsets works again, after" in caplog.text, limit_s=LIMIT_S
            )
        finally:
            one.reader.stop()


# ---- on a real Spark ----------------------------------------------------------------------------


def ended(rows: DataFrame, checkpoint: Path, sink: Sink, **trigger: Any) -> StreamingQuery:
    """Wait until a query has ended by itself, and raise its error."""
    query = (
        rows.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    try:
        assert query.awaitTermination(LIMIT_S * 8)
    finally:
        query.stop()
    return query


def ignored(batch: DataFrame, number: int) -> None:
    """A sink that reads the rows and drops them; without reading, Spark would plan no task."""
    batch.count()


def stream(spark: SparkSession, sandbox: Sandbox, **options: str) -> Any:
    """Return a stream without registering the format."""
    given = {name.replace("__", "."): text for name, text in options.items()}
    return spark.readStream.format("zkconsumer").options(
        zookeeper=sandbox.zookeeper_connect, startingOffsets="earliest", **given
    )


def test_a_query_replays_a_batch_and_continues(
    spark: SparkSession, sandbox: Sandbox, topic: str, unique: Unique, tmp_path: Path
) -> None:
    """If a batch fails it is replayed identically, and the next batch has the new messages."""
    group = unique("group")
    rows = stream(
        spark,
        sandbox,
        subscribe=topic,
        group__id=group,
        mirrorOffsets="true",
        maxOffsetsPerTrigger="5",
    ).load()
    seen: list[tuple[int, list[tuple[int, int, str]]]] = []

    def sink(batch: DataFrame, number: int) -> None:
        found = batch.selectExpr("partition", "offset", "cast(value as string) v").collect()
        seen.append((number, sorted((r["partition"], r["offset"], r["v"]) for r in found)))
        if len(seen) == 2:
            raise RuntimeError("the sink has failed")

    with pytest.raises(StreamingQueryException, match="the sink has failed"):
        ended(rows, tmp_path / "checkpoint", sink)
    assert until(lambda: stored(sandbox, group, topic) == [b"3", b"2"], limit_s=LIMIT_S)
    sandbox.produce(topic, ["new"], partition=1)
    query = ended(rows, tmp_path / "checkpoint", sink)
    (source,) = json.loads(query.lastProgress.json)["sources"]
    assert seen[2] == seen[1]
    assert [number for number, _ in seen] == [0, 1, 1, 2]
    assert seen[0][1] == [(0, n, str(n)) for n in range(3)] + [(1, n, str(n)) for n in range(2)]
    assert seen[3][1] == [(1, 4, "new")]
    assert source["latestOffset"] == {topic: {"0": [6, 6], "1": [5, 5]}}
    assert until(lambda: stored(sandbox, group, topic) == [b"6", b"5"], limit_s=LIMIT_S)


def test_columns_of_the_users_schema_in_a_self_union(
    spark: SparkSession, sandbox: Sandbox, topic: str, tmp_path: Path
) -> None:
    """Both sides of a self-union read all messages, and only the columns of the user's schema."""
    rows = stream(spark, sandbox, subscribe=topic).schema("value binary, offset long").load()
    assert rows.columns == ["value", "offset"]
    seen: list[tuple[bytes, int]] = []

    def sink(batch: DataFrame, number: int) -> None:
        seen.extend((bytes(row["value"]), row["offset"]) for row in batch.collect())

    ended(rows.union(rows), tmp_path / "checkpoint", sink)
    once = [(str(n).encode(), n) for n in (*range(6), *range(4))]
    assert sorted(seen) == sorted(once * 2)


def test_a_wrong_option_or_column_fails_early(
    spark: SparkSession, sandbox: Sandbox, topic: str, tmp_path: Path
) -> None:
    """A wrong option fails at load(), a wrong column when the query starts; one sentence each."""
    with pytest.raises(AnalysisException, match="did you mean failOnDataLoss") as caught:
        stream(spark, sandbox, subscribe=topic, failOnDataLos="false").load()
    assert "Traceback" not in str(caught.value)
    wrong = stream(spark, sandbox, subscribe=topic).schema("valeu binary").load()
    with pytest.raises(StreamingQueryException, match="did you mean value") as failed:
        ended(wrong, tmp_path / "checkpoint", ignored)
    assert "Traceback" not in str(failed.value)


def test_a_deleted_topic_ends_a_query_with_its_name(
    spark: SparkSession, sandbox: Sandbox, topic: str, tmp_path: Path
) -> None:
    """If a topic is deleted, the error names topic and remedy, without a traceback."""
    rows = stream(spark, sandbox, subscribe=topic).load()
    ended(rows, tmp_path / "checkpoint", ignored)
    sandbox.delete_topic(topic)
    with pytest.raises(StreamingQueryException, match=f"topic {topic} was deleted") as caught:
        ended(rows, tmp_path / "checkpoint", ignored, processingTime="0 seconds")
    assert "failOnDataLoss=false" in str(caught.value)
    assert "Traceback" not in str(caught.value)
