"""`mode=group` without Spark: the member, and a reader called as Spark calls it."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from support.kafka.offsets import foreign
from support.members.group import SETTINGS, Group
from support.wait import LIMIT_S, eventually
from support.zk.client import peer_of
from support.zk.proxies import Proxy, Wire

from zkconsumer import ConsumerConfig
from zkconsumer.errors import MissingShareError, SparkSourceError
from zkconsumer.kafka.logs import LogClient, LogRange
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration
from zkconsumer.sandbox import Sandbox
from zkconsumer.spark import group_stream
from zkconsumer.spark.batch_member import Membership
from zkconsumer.spark.cluster_logs import ENDS_S, MAX_IDLE_DELAY_S, ClusterLogs, IdleDelay
from zkconsumer.spark.group_stream import GroupStreamReader
from zkconsumer.spark.offset_ranges import OffsetRange, StreamOffset, from_offset
from zkconsumer.spark.options import SourceOptions

# The limit that Spark passes with Trigger.Once: the first batch must already read messages.
ALL = ReadAllAvailable()
NO_LIMIT = ReadMaxRows(2**63 - 1)


class Groups(Group):
    """A group and its queries, whose members leave at the end of the test."""

    def __init__(self, sandbox: Sandbox, name: str, topic: str, stack: ExitStack) -> None:
        super().__init__(sandbox, name, topic, stack)
        self.stack = stack


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Groups]:
    """A group on a topic with four partitions."""
    topic = unique("batches")
    sandbox.create_topic(topic, partitions=4)
    with ExitStack() as stack:
        yield Groups(sandbox, unique("group"), topic, stack)


def member(group: Groups, suffix: str, threads: int = 1, **settings: Any) -> Membership:
    """Return a member that has joined."""
    config = ConsumerConfig(
        group_id=group.name,
        zookeeper_connect=group.sandbox.zookeeper_connect,
        consumer_id=suffix,
        **(SETTINGS | {"release_grace_s": 60.0} | settings),
    )
    one = Membership(config, Registration({group.topic: threads}))
    group.stack.callback(one.leave)
    one.join()
    return one


def serves(one: Membership, *partitions: int) -> None:
    """Wait until the member may plan exactly these partitions."""
    eventually(lambda: {tp.partition for tp in one.served()} == set(partitions))


def plan(one: Membership, size: int) -> list[OffsetRange]:
    """Plan this number of messages in each partition, from the stored offset or the beginning."""
    for tp, at in one.served().items():
        if at.offset is None:
            one.reset(tp, at, 0, "nothing is stored")
    begun = [
        OffsetRange(*tp, at.offset or 0, (at.offset or 0) + size) for tp, at in one.served().items()
    ]
    return one.begin(begun)


def ends(batch: list[OffsetRange]) -> dict[TopicPartition, int]:
    return {one.tp: one.end for one in batch}


def test_a_batch_is_committed_when_it_is_finished(group: Groups) -> None:
    """The offsets of a batch are stored only after the batch has finished."""
    one = member(group, "a")
    serves(one, 0, 1, 2, 3)
    batch = plan(one, 10)
    assert len(batch) == 4 and not one.served()
    one.commit().result(LIMIT_S)
    assert group.stored(0) == "0"
    assert one.finish(ends(batch)) and not one.finish(ends(batch))
    one.commit().result(LIMIT_S)
    assert [group.stored(n) for n in range(4)] == ["10"] * 4


def test_a_release_waits_for_the_batch_in_flight(
    group: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    """A new member gets its partitions when the batch has finished, and starts at its end."""
    one = member(group, "a", threads=2)
    serves(one, 0, 1, 2, 3)
    batch = plan(one, 10)
    other = member(group, "b")
    eventually(lambda: one.state.phase.value == "stopping")
    assert not other.served()
    one.finish(ends(batch))
    serves(other, 3)
    assert [at.offset for at in other.served().values()] == [10]
    serves(one, 0, 1, 2)
    assert "no longer owned" not in caplog.text  # The offset was committed before the release.


def test_a_partition_without_a_batch_is_released_at_once(group: Groups) -> None:
    """A new member does not wait for a batch without messages of its partitions."""
    one = member(group, "a")
    serves(one, 0, 1, 2, 3)
    for tp, at in one.served().items():
        one.reset(tp, at, 0, "nothing is stored")
    assert one.begin([OffsetRange(group.topic, 0, 0, 10), OffsetRange(group.topic, 3, 0, 0)])
    other = member(group, "b")
    serves(other, 2, 3)


def test_the_grace_ends_the_wait(group: Groups) -> None:
    """If a batch takes longer than the grace period, the new owner starts at its beginning."""
    one = member(group, "a", release_grace_s=0.3)
    serves(one, 0, 1, 2, 3)
    batch = plan(one, 10)
    other = member(group, "b")
    serves(other, 2, 3)
    assert [at.offset for at in other.served().values()] == [0, 0]
    one.finish(ends(batch))
    one.commit().result(LIMIT_S)
    assert [group.stored(n) for n in range(4)] == ["10", "10", "0", "0"]


def test_beside_a_connector(group: Groups) -> None:
    """A query shares the partitions with a connector, and gets all when the connector leaves."""
    one = member(group, "a")
    other = group.join("b")
    other.settled(2, 3)
    serves(one, 0, 1)
    other.close()
    serves(one, 0, 1, 2, 3)


def test_leaving_commits_finished_batches(group: Groups) -> None:
    """A clean leave stores the offsets of finished batches, not of the batch in flight."""
    one = member(group, "a")
    serves(one, 0, 1, 2, 3)
    one.finish(ends(plan(one, 10)))
    plan(one, 10)
    one.leave()
    assert [group.stored(n) for n in range(4)] == ["10"] * 4
    assert group.owners() == []


def test_a_member_continues_from_an_operator_s_edit(group: Groups) -> None:
    """A member continues from an operator's edit, which it distinguishes from an unmarked write."""
    one = member(group, "a")
    serves(one, 0, 1, 2, 3)
    one.finish(ends(plan(one, 10)))
    one.commit().result(LIMIT_S)
    group.edit(0, 3)
    group.write(1, b"4")
    assert one.marked([group.tp(0), group.tp(1)]) == {group.tp(0)}
    one.commit().result(LIMIT_S)
    eventually(lambda: {at.offset for at in one.served().values()} == {3, 10})
    assert not one.served()[group.tp(0)].is_first


def test_partitions_granted_anew_start_at_the_stored_offset(group: Groups) -> None:
    """If owner znodes are deleted, partitions start again at the stored offset."""
    one = member(group, "a")
    serves(one, 0, 1, 2, 3)
    one.finish(ends(plan(one, 10)))
    one.commit().result(LIMIT_S)
    batch = plan(one, 10)
    for partition in range(4):
        group.admin.delete(group.owner(partition))
    eventually(lambda: len(one.served()) == 4)
    assert not one.finish(ends(batch))
    assert {(at.offset, at.is_first) for at in one.served().values()} == {(10, False)}


# ---- the reader, called as Spark calls it --------------------------------------------------------

OPTIONS = {
    "mode": "group",
    "auto.offset.reset": "smallest",
    "rebalance.backoff.ms": "200",
    "zookeeper.session.timeout.ms": "6000",
}


class Driven:
    """A reader in this process, and the messages of each batch that it has read."""

    def __init__(
        self,
        group: Groups,
        *,
        frame: str | None = None,
        columns: tuple[str, ...] = ("topic", "partition", "offset"),
        **options: str,
    ) -> None:
        given = {"zookeeper": group.sandbox.zookeeper_connect, "group.id": group.name, **OPTIONS}
        if "subscribePattern" not in options:
            given["subscribe"] = group.topic
        given |= {name.replace("__", "."): text for name, text in options.items()}
        parsed = SourceOptions.parse(given).for_stream()
        self.reader = GroupStreamReader(parsed, columns, frame=frame)
        self.read: list[tuple[int, int]] = []
        group.stack.callback(self.reader.stop)

    def after(self, start: StreamOffset, limit: Any = ALL) -> StreamOffset:
        """Return the next end offset that differs from `start`; the batch is planned, not read."""
        found: list[StreamOffset] = []

        def is_news() -> bool:
            found.append(self.reader.latestOffset(start, limit))
            return found[-1] is not start

        eventually(is_news)
        return found[-1]

    def run(self, start: StreamOffset, end: StreamOffset) -> list[tuple[int, int]]:
        """Return the messages that a batch's tasks read with pickled copies of the reader."""
        copy = pickle.loads(pickle.dumps(self.reader))
        tasks = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        rows = sorted(
            (row["partition"], row["offset"])
            for task in tasks
            for batch in copy.read(task)
            for row in batch.to_pylist()
        )
        self.read += rows
        return rows

    def until(self, count: int, start: StreamOffset | None = None) -> StreamOffset:
        """Run batches until this number of messages is read; return the last end offset."""
        end = start or {}
        while len(self.read) < count:
            begun, end = end, self.after(end)
            self.run(begun, end)
        return end

    def is_quiet(self, start: StreamOffset) -> bool:
        """Return whether none of several requests finds new messages."""
        return all(self.reader.latestOffset(start, ALL) is start for _ in range(10))


def fill(group: Groups, count: int, *partitions: int) -> None:
    for partition in partitions or range(4):
        group.sandbox.produce(group.topic, count, partition=partition)


def all_of(count: int, *partitions: int) -> list[tuple[int, int]]:
    return [(p, offset) for p in partitions or range(4) for offset in range(count)]


def test_rows_have_the_token_of_their_batch(group: Groups) -> None:
    """A row's token is the owner znode's czxid, even when a later member replays the batch."""
    fill(group, 5)
    columns = ("token", "partition", "offset")

    def tokens(query: Driven, end: StreamOffset) -> dict[int, int]:
        copy = pickle.loads(pickle.dumps(query.reader))
        batches = [one for task in query.reader.partitions({}, end) for one in copy.read(task)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert len(rows) == 20
        return {row["partition"]: row["token"] for row in rows}

    query = Driven(group, columns=columns)
    end = query.after({})
    nodes = [paths.owner(group.name, TopicPartition(group.topic, number)) for number in range(4)]
    with peer_of(group.sandbox.zookeeper_connect) as client:
        owners = {number: client.exists(node).czxid for number, node in enumerate(nodes)}
    assert tokens(query, end) == owners
    query.reader.stop()
    assert tokens(Driven(group, columns=columns), end) == owners


def test_a_small_batch_waits(group: Groups) -> None:
    """A member's second batch waits for `minOffsetsPerTrigger`."""
    fill(group, 5)
    query = Driven(group, minOffsetsPerTrigger="10")
    end = query.until(20)
    fill(group, 9, 0)
    assert query.is_quiet(end)
    fill(group, 1, 1)
    query.run(end, query.after(end))
    assert len(query.read) == 30


def test_a_query_reads_and_commits_owned_partitions(group: Groups) -> None:
    """Batches are limited and read each message once; the next request stores the offsets."""
    fill(group, 10)
    query = Driven(group, maxOffsetsPerTrigger="20")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(20)
    warm = query.after({}, ReadMaxRows(20))
    assert query.run({}, warm) == []
    first = query.after(warm, ReadMaxRows(20))
    assert len(query.run(warm, first)) == 20 and group.stored(0) in (None, "0")
    second = query.after(first, ReadMaxRows(20))
    eventually(lambda: group.stored(0) == "5")
    query.run(first, second)
    assert sorted(query.read) == all_of(10)
    assert query.is_quiet(second)
    eventually(lambda: [group.stored(n) for n in range(4)] == ["10"] * 4)
    fill(group, 1, 2)
    third = query.after(second)
    assert third[group.topic] == {"0": [10, 10], "1": [10, 10], "2": [10, 11], "3": [10, 10]}
    assert query.reader.reportLatestOffset() == {
        group.topic: {"0": [10, 10], "1": [10, 10], "2": [11, 11], "3": [10, 10]}
    }


@pytest.mark.parametrize("dual", ["true", "false"])
def test_finished_batches_are_stored_in_kafka(group: Groups, dual: str) -> None:
    """offsets.storage=kafka stores offsets in Kafka, and with dual commit also in ZooKeeper."""
    fill(group, 10)
    query = Driven(group, offsets__storage="kafka", dual__commit__enabled=dual)
    end = query.until(40)
    assert query.is_quiet(end)
    with foreign(group.sandbox.zookeeper_connect, group.name, group.topic) as somebody:
        eventually(lambda: somebody.offsets(*range(4)) == dict.fromkeys(range(4), 10))
    eventually(
        lambda: (
            [group.stored(n) for n in range(4)] == (["10"] * 4 if dual == "true" else [None] * 4)
        )
    )
    query.reader.stop()
    fill(group, 1)
    again = Driven(group, offsets__storage="kafka", dual__commit__enabled=dual)
    again.until(4)
    assert again.read == [(number, 10) for number in range(4)]


def test_two_queries_hand_over_without_a_repetition(group: Groups) -> None:
    """A partition's new owner starts at the end of the old owner's last finished batch."""
    fill(group, 10)
    one, other = Driven(group, consumer__id="a"), Driven(group, consumer__id="b")
    end = one.after({})
    one.run({}, end)
    fill(group, 5)
    assert other.reader.latestOffset({}, ALL) == {}  # All messages belong to the batch in flight.
    end = one.until(50, end)
    theirs = other.until(10)
    assert set(end[group.topic]) >= {"0", "1"} and set(theirs[group.topic]) == {"2", "3"}
    other.reader.latestOffset(theirs, ALL)
    other.reader.stop()
    fill(group, 5)
    one.until(70, end)
    assert sorted(one.read + other.read) == all_of(20)


def test_a_replay_needs_no_membership(group: Groups) -> None:
    """After a crash the query first replays the unfinished batch identically, and then joins."""
    fill(group, 10)
    query = Driven(group)
    first = query.after({})
    query.reader.stop()  # The crash happens before the batch has finished.
    assert group.stored(0) in (None, "0")
    fill(group, 5)
    again = Driven(group)
    assert again.run({}, first) == all_of(10)
    assert group.admin.get_children(f"/consumers/{group.name}/ids") == []
    again.until(60, first)
    assert sorted(again.read) == all_of(15)


@pytest.mark.parametrize(
    ("rule", "goes_on"), [("max", [10, 12]), ("zookeeper", [4, 12]), ("checkpoint", [10, 10])]
)
def test_the_position_of_a_restarted_query(group: Groups, rule: str, goes_on: list[int]) -> None:
    """offsets.on.restart selects the start: the group's offset, the checkpoint's, or the higher."""
    fill(group, 10)
    query = Driven(group)
    end = query.until(40)
    assert query.is_quiet(end)
    query.reader.stop()
    group.write(0, b"4")
    group.write(1, b"12")
    fill(group, 5)
    again = Driven(group, offsets__on__restart=rule)
    begun = {one.partition: one.start for one in from_offset(again.after(end))}
    assert [begun[0], begun[1]] == goes_on and begun[2] == 10


def test_a_reset_by_another_tool_is_reported(
    group: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    """After a restart an unmarked reset has no effect; the log names both offsets."""
    fill(group, 10)
    query = Driven(group)
    end = query.until(40)
    assert query.is_quiet(end)
    query.reader.stop()
    group.write(1, b"4")  # kafka.tools.UpdateOffsetsInZK writes offsets in this way.
    group.admin.delete(group.offset(2))
    # This offset is the start of the last batch: the query ended before it committed the end.
    group.write(3, b"0")
    with caplog.at_level(logging.WARNING, "zkconsumer.spark"):
        again = Driven(group)
        warm = again.reader.latestOffset(end, NO_LIMIT)
        again.run(end, warm)
        assert again.is_quiet(warm)
    (line,) = [one for one in caplog.messages if "behind the checkpoint's" in one]
    name = group.topic
    assert f"{name}-1 4 behind 10, {name}-2 none behind 10." in line
    eventually(lambda: [group.stored(n) for n in range(4)] == ["10"] * 4)


def test_a_marked_edit_wins_on_restart(group: Groups) -> None:
    """A lower offset that an operator set is used, and again after a crash in the first batch."""
    fill(group, 10)
    query = Driven(group)
    end = query.until(40)
    assert query.is_quiet(end)
    query.reader.stop()
    group.edit(0, 4)
    again = Driven(group)
    rewound = again.after(end)
    assert rewound[group.topic]["0"] == [4, 10] and rewound[group.topic]["1"] == [10, 10]
    again.reader.stop()  # The query crashed within this batch, so the batch is now replayed.
    last = Driven(group)
    assert last.run(end, rewound) == [(0, offset) for offset in range(4, 10)]
    repeated = last.after(rewound)
    # The third number distinguishes this end from the last one, or Spark would run no batch.
    assert repeated[group.topic]["0"] == [4, 10, 1]
    last.run(rewound, repeated)
    assert last.is_quiet(repeated) and group.stored(0) == "10"


def test_a_marked_edit_during_a_replay_wins(group: Groups) -> None:
    """An operator moves the group to the start of the batch that the restarted query replays."""
    fill(group, 10)
    query = Driven(group)
    first = query.after({})
    query.reader.stop()  # The crash happens before the batch has finished.
    again = Driven(group)
    again.run({}, first)
    group.edit(0, 0)
    rewound = again.after(first)
    assert rewound[group.topic]["0"] == [0, 10] and rewound[group.topic]["1"] == [10, 10]


def test_available_now_ends_at_the_ends_of_the_logs(group: Groups) -> None:
    """AvailableNow reads its partitions in limited batches up to the logs' ends at its start."""
    fill(group, 10)
    query = Driven(group)
    query.reader.prepareForTriggerAvailableNow()
    end = query.reader.latestOffset({}, ReadMaxRows(12))
    assert query.run({}, end) == []  # The first batch is empty.
    following = query.reader.latestOffset(end, ReadMaxRows(12))
    fill(group, 10)
    while following != end:
        assert len(query.run(end, following)) <= 12
        end, following = following, query.reader.latestOffset(following, ReadMaxRows(12))
    assert sorted(query.read) == all_of(10)


def test_available_now_waits_for_a_leader(group: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition without a leader when the run fixes its end is read, too."""
    fill(group, 5)
    query = Driven(group)
    query.reader.prepareForTriggerAvailableNow()
    end = query.reader.latestOffset({}, NO_LIMIT)
    original, leaderless = ClusterLogs.ends, [TopicPartition(group.topic, 1)]

    def ends(
        cluster: ClusterLogs, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogRange | str]:
        found = dict(original(cluster, partitions))
        if found:
            found |= {leaderless.pop(): "no leader" for _ in leaderless[:]}
        return found

    monkeypatch.setattr(ClusterLogs, "ends", ends)
    following = query.reader.latestOffset(end, NO_LIMIT)
    assert query.run(end, following) == all_of(5)


def test_available_now_fails_without_zookeeper(
    group: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run does not end as if it had read its share while ZooKeeper does not answer."""
    fill(group, 5)
    line = group.stack.enter_context(Proxy(group.sandbox.zookeeper_connect))
    query = Driven(group, zookeeper=line.address, zookeeper__patience__ms="1000")
    query.reader.prepareForTriggerAvailableNow()
    original, joined = Membership.join, list[Membership]()
    monkeypatch.setattr(Membership, "join", lambda one: [joined.append(one), original(one)])
    warm = query.reader.latestOffset({}, ReadMaxRows(8))
    end = query.reader.latestOffset(warm, ReadMaxRows(8))
    assert len(query.run(warm, end)) == 8
    line.wire = Wire.SILENT
    eventually(lambda: not joined[0].holds_lease)
    with pytest.raises(SparkSourceError, match="ZooKeeper has been unreachable for"):
        query.reader.latestOffset(end, ReadMaxRows(8))
    line.wire = Wire.PASS
    line.cut()


def test_a_query_warms_up_before_it_joins(group: Groups) -> None:
    """The first batch is empty, on a restarted driver too; then the member joins."""
    fill(group, 5)
    query = Driven(group)
    assert query.reader.getDefaultReadLimit() == NO_LIMIT
    end = query.reader.latestOffset({}, NO_LIMIT)
    assert end == {"": {}}  # This end differs from the start; else Spark would run no batch.
    assert len(query.reader.partitions({}, end)) == 4 and query.run({}, end) == []
    assert not group.admin.exists(f"/consumers/{group.name}/ids")
    end = query.after(end, NO_LIMIT)
    assert query.run({}, end) == all_of(5)
    assert query.is_quiet(end)
    query.reader.stop()
    again = Driven(group)
    warm = again.reader.latestOffset(end, NO_LIMIT)
    assert warm[group.topic] == {str(number): [5, 5] for number in range(4)}
    assert again.run(end, warm) == [] and group.owners() == []
    assert again.reader.latestOffset(warm, NO_LIMIT) is warm
    eventually(lambda: len(group.owners()) == 4)


def test_a_query_without_a_share_logs_the_reason(
    group: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    """A query that owns no partition waits, and one sentence in the log gives the reason."""
    fill(group, 5)
    others = member(group, "a", threads=4)
    serves(others, 0, 1, 2, 3)
    query = Driven(group, consumer__id="z")

    def told() -> list[str]:
        return [line for line in caplog.messages if "owns no partition" in line]

    with caplog.at_level(logging.INFO, "zkconsumer.spark"):
        eventually(lambda: query.is_quiet({}) and bool(told()))
        assert query.is_quiet({})
    (once,) = told()
    assert "more consumer threads than the topic has partitions" in once
    others.leave()
    assert query.until(20)


def test_without_zookeeper_no_batch_is_planned(group: Groups) -> None:
    """Without ZooKeeper no batch is planned; after the time limit the query fails."""
    fill(group, 5)
    line = group.stack.enter_context(Proxy(group.sandbox.zookeeper_connect))
    query = Driven(group, zookeeper=line.address, zookeeper__patience__ms="1000")
    end = query.until(20)
    line.wire = Wire.SILENT
    with pytest.raises(SparkSourceError) as raised:
        eventually(lambda: query.reader.latestOffset(end, ALL) is not end)
    line.wire = Wire.PASS
    line.cut()
    assert "ZooKeeper has been unreachable for" in str(raised.value)


def test_a_deleted_topic_is_named(group: Groups) -> None:
    """If a topic is deleted after it was read, the query fails with a sentence that names it."""
    fill(group, 5)
    query = Driven(group)
    end = query.until(20)
    group.sandbox.delete_topic(group.topic)
    with pytest.raises(SparkSourceError, match=f"topic {group.topic} was deleted"):
        eventually(lambda: query.reader.latestOffset(end, ALL) is not end)


def test_a_pattern_includes_created_topics(group: Groups) -> None:
    """A member with a pattern reads new partitions and topics from the beginning."""
    fill(group, 5)
    query = Driven(group, subscribePattern=f"{group.topic}.*", streams="2")
    end = query.until(20)
    group.sandbox.create_topic(f"{group.topic}-2")
    group.sandbox.add_partitions(group.topic, partitions=5)
    group.sandbox.produce(f"{group.topic}-2", 3)
    fill(group, 3, 4)
    end = query.until(26, end)
    created = [(0, offset) for offset in range(3)]
    assert sorted(query.read) == sorted([*all_of(5), *created, *all_of(3, 4)])


def test_an_offset_outside_the_log_is_reset(
    group: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    """`auto.offset.reset` replaces a stored offset that is outside the log."""
    fill(group, 5)
    group.admin.ensure_path(group.offset(0))
    group.write(0, b"100")
    query = Driven(group)
    started = time.monotonic()
    query.until(20)
    assert sorted(query.read) == all_of(5) and time.monotonic() - started > 1
    assert any(
        "the log has offsets 0 to 5, and the group's is 100" in line for line in caplog.messages
    )


def test_an_idle_query_requests_only_log_ends(
    group: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle query requests the ends of logs, but neither metadata nor the logs' beginnings."""
    fill(group, 5)
    query = Driven(group)
    end = query.until(20)
    assert query.is_quiet(end)
    asked: list[str] = []
    for name in ("topics", "starts", "latest", "ends"):
        real = getattr(LogClient, name)
        monkeypatch.setattr(
            LogClient,
            name,
            lambda *given, name=name, real=real: (asked.append(name), real(*given))[1],
        )
    begun_s = time.monotonic()
    while (took_s := time.monotonic() - begun_s) < 2.5:
        assert query.reader.latestOffset(end, ALL) is end
    assert set(asked) == {"latest"} and len(asked) <= took_s / ENDS_S + 1
    fill(group, 1, 0)
    assert query.run(end, query.after(end)) == [(0, 5)]


def test_a_frame_has_one_reader(group: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a DataFrame has a reader, a second one is refused; another DataFrame may have one."""
    monkeypatch.setattr(group_stream, "PREVIOUS_READER_WAIT_S", 0.1)
    first, second = Driven(group, frame=group.name), Driven(group, frame=group.name)
    assert first.reader.initialOffset() == {}
    with pytest.raises(SparkSourceError, match="has another reader, in this query"):
        second.reader.initialOffset()
    assert Driven(group, frame=f"{group.name}-2").reader.initialOffset() == {}
    first.reader.stop()
    assert Driven(group, frame=group.name).reader.initialOffset() == {}


def test_an_answer_without_messages_waits_for_its_cost() -> None:
    """A reply without messages is delayed by 30 times its processor time, up to a maximum."""
    pause = IdleDelay()

    def held_s(cost_s: float) -> float:
        limit_s = time.process_time() + cost_s
        while time.process_time() < limit_s:
            pass
        started = time.monotonic()
        pause.hold()
        return time.monotonic() - started

    assert held_s(0.1) < MAX_IDLE_DELAY_S  # The batch before this request does not count.
    assert held_s(0.02) >= 30 * 0.02
    assert held_s(0.1) >= MAX_IDLE_DELAY_S
    pause.end()
    assert held_s(0.1) < MAX_IDLE_DELAY_S


def test_a_run_that_owns_nothing_fails(group: Groups) -> None:
    """If the group gives the query no partition, AvailableNow fails with the reason."""
    fill(group, 5)
    serves(member(group, "a", threads=4), 0, 1, 2, 3)
    query = Driven(group, consumer__id="z")
    query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(MissingShareError, match="more consumer threads than the topic"):
        query.reader.latestOffset({}, ALL)


def test_a_run_without_a_share_reports_an_empty_batch(
    group: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    """With failOnMissingShare=false, progress reports unread partitions of an empty batch."""
    fill(group, 5)
    serves(member(group, "a", threads=4), 0, 1, 2, 3)
    query = Driven(group, consumer__id="z", failOnMissingShare="false")
    query.reader.prepareForTriggerAvailableNow()
    before: StreamOffset = {group.topic: {"0": [0, 5]}}
    with caplog.at_level(logging.WARNING, "zkconsumer.spark"):
        end = query.reader.latestOffset(before, ALL)
    assert "reads 0 of 4 partitions" in caplog.text
    assert end != before and query.run(before, end) == []
    assert query.reader.latestOffset(end, ALL) is end
    assert query.reader.reportLatestOffset() == {
        group.topic: {str(number): [0, 5] for number in range(4)}
    }
