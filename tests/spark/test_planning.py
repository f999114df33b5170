"""Rate limits and the division into tasks: pure arithmetic for any partitions."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import Broker
from zkconsumer.spark.cluster_logs import TriggerDelay
from zkconsumer.spark.offset_ranges import (
    SHARED_TASK,
    OffsetRange,
    Ranges,
    advance,
    from_offset,
    shared,
    tasks,
    to_offset,
)
from zkconsumer.spark.options import SourceOptions
from zkconsumer.spark.task_reader import planned

PARTITIONS = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 30))
SIZES = st.dictionaries(
    PARTITIONS,
    st.one_of(st.integers(0, 20), st.integers(0, 3 * SHARED_TASK), st.integers(0, 2**40)),
    max_size=25,
)
WANTED = st.none() | st.integers(1, 100)
# There is no deadline, since a busy machine is slow.
STURDY = settings(suppress_health_check=[HealthCheck.too_slow])


def ranges_of(sizes: dict[TopicPartition, int]) -> list[OffsetRange]:
    """Return a range of each of these sizes; the starts are arbitrary."""
    return [OffsetRange(*tp, 7 * tp.partition, 7 * tp.partition + n) for tp, n in sizes.items()]


def flat(dealt: Iterable[Ranges]) -> list[OffsetRange]:
    """Return all ranges of all tasks, in order."""
    return sorted(one for task in dealt for one in task)


@STURDY
@given(SIZES, st.integers(1, 2**41))
def test_a_limit_is_kept_and_starves_no_partition(
    sizes: dict[TopicPartition, int], limit: int
) -> None:
    """A batch keeps its limit, plus at most one message per partition that has messages."""
    dealt = shared(limit, sizes)
    assert dealt.keys() == sizes.keys()
    assert all((0 < dealt[tp] <= size) if size else dealt[tp] == 0 for tp, size in sizes.items())
    some = sum(1 for size in sizes.values() if size)
    assert sum(dealt.values()) < limit + max(1, some)
    # Because of rounding, fewer messages may be planned, by less than one per partition.
    assert sum(dealt.values()) >= min(limit, sum(sizes.values())) - some


def test_a_limit_is_in_proportion() -> None:
    """As in the example of Spark's rule, a limit of 11 gives 10 of 100 messages and 1 of 10."""
    a, b, c = (TopicPartition("t", number) for number in range(3))
    assert shared(11, {a: 100, b: 10, c: 0}) == {a: 10, b: 1, c: 0}
    assert shared(1, {a: 100, b: 10, c: 0}) == {a: 1, b: 1, c: 0}
    assert shared(1000, {a: 100, b: 10}) == {a: 100, b: 10}


@STURDY
@given(SIZES, SIZES, st.none() | st.integers(1, 1000))
def test_a_batch_never_leaves_its_log(
    positions: dict[TopicPartition, int], ends: dict[TopicPartition, int], limit: int | None
) -> None:
    """Each range starts at its position, and ends at the end of its log at most."""
    found = advance(positions, ends, limit=limit)
    assert {one.tp: one.start for one in found} == positions
    for one in found:
        assert one.start <= one.end <= max(one.start, ends.get(one.tp, one.start))


@STURDY
@given(SIZES, WANTED)
def test_tasks_read_every_message_once(
    sizes: dict[TopicPartition, int], wanted: int | None
) -> None:
    """The ranges of all tasks together are exactly the planned ranges."""
    ranges = ranges_of(sizes)
    read: dict[TopicPartition, list[OffsetRange]] = {}
    for one in flat(tasks(ranges, min_partitions=wanted)):
        assert one.size > 0
        read.setdefault(one.tp, []).append(one)
    for one in ranges:
        parts = read.pop(one.tp, [])
        edges = [one.start, *(part.end for part in parts)]
        assert [part.start for part in parts] == edges[:-1]
        assert edges[-1] == one.end
    assert not read


@STURDY
@given(SIZES, WANTED)
def test_tasks_do_not_depend_on_the_order_of_ranges(
    sizes: dict[TopicPartition, int], wanted: int | None
) -> None:
    """The tasks do not depend on the order of the ranges, and no task is empty."""
    dealt = tasks(ranges_of(sizes), min_partitions=wanted)
    assert all(dealt)
    assert tasks(reversed(ranges_of(sizes)), min_partitions=wanted) == dealt


@STURDY
@given(SIZES, WANTED, st.integers(1, 10 * SHARED_TASK))
def test_no_task_has_more_than_its_maximum(
    sizes: dict[TopicPartition, int], wanted: int | None, most: int
) -> None:
    """With `maxRecordsPerPartition` each message is read once, by a task that is not too large."""
    sizes = {tp: min(size, 100 * most) for tp, size in sizes.items()}
    ranges = ranges_of(sizes)
    found = tasks(ranges, min_partitions=wanted, max_records=most)
    assert all(sum(one.size for one in task) <= most for task in found)
    assert sum(one.size for one in flat(found)) == sum(sizes.values())
    assert len(found) >= sum(-(-size // most) for size in sizes.values()) or most > SHARED_TASK
    assert {one.tp for one in flat(found)} == {tp for tp, size in sizes.items() if size}


def test_a_token_is_part_of_the_checkpoint() -> None:
    """The checkpoint keeps tokens, a repeated batch's too; ranges without one keep their form."""
    one, other = OffsetRange("t", 0, 5, 9, 1 << 40), OffsetRange("t", 1, 3, 3, 7)
    found = to_offset([one, other])
    assert found == {"t": {"0": [5, 9, 0, 1 << 40], "1": [3, 3, 0, 7]}}
    again = to_offset([one, other], unlike=found)
    assert again != found
    assert from_offset(found) == from_offset(again) == [one, other]
    assert to_offset([one._replace(token=None)]) == {"t": {"0": [5, 9]}}
    assert from_offset({"t": {"0": [5, 9, 1]}}) == [one._replace(token=None)]


def test_a_batch_waits_for_its_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch after the first waits for `minOffsetsPerTrigger` or for `maxTriggerDelay`."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    delay = TriggerDelay(100, 60.0)
    assert not delay.must_wait(1)  # the first batch
    assert delay.must_wait(99)
    assert not delay.must_wait(100)
    now += 59.0
    assert delay.must_wait(99)
    now += 1.0
    assert not delay.must_wait(0)  # no batch begins
    assert not delay.must_wait(1)
    assert delay.must_wait(1)
    assert not TriggerDelay(None, 60.0).must_wait(1)


@STURDY
@given(SIZES, WANTED)
def test_only_small_ranges_share(sizes: dict[TopicPartition, int], wanted: int | None) -> None:
    """Only small ranges share a task, whose size is less than twice the shared size."""
    for task in tasks(ranges_of(sizes), min_partitions=wanted):
        if len(task) > 1:
            assert all(one.size < SHARED_TASK for one in task)
            assert sum(one.size for one in task) < 2 * SHARED_TASK


@STURDY
@given(SIZES, st.integers(1, 100))
def test_there_are_enough_tasks(sizes: dict[TopicPartition, int], wanted: int) -> None:
    """There are `minPartitions` tasks, except for the rounding of split ranges, as in Spark."""
    ranges = [one for one in ranges_of(sizes) if one.size]
    dealt = tasks(ranges, min_partitions=wanted)
    if len(ranges) >= wanted:
        assert len(dealt) >= wanted
    elif ranges and min(one.size for one in ranges) >= wanted:
        assert len(dealt) >= wanted - len(ranges)
        assert all(len(task) == 1 for task in dealt)


def test_one_partition_is_split_evenly() -> None:
    """With `minPartitions` of four, one partition is split into four tasks of a quarter each."""
    dealt = tasks([OffsetRange("t", 0, 10, 50)], min_partitions=4)
    assert [(one.start, one.end) for (one,) in dealt] == [(10, 20), (20, 30), (30, 40), (40, 50)]


def test_few_messages_in_many_partitions_are_one_task() -> None:
    """64 partitions with three messages each become one task, or `minPartitions` tasks."""
    ranges = [OffsetRange("t", number, 0, 3) for number in range(64)]
    assert len(tasks(ranges)) == 1
    assert Counter(len(task) for task in tasks(ranges, min_partitions=4)) == {16: 4}
    assert len(tasks(ranges, min_partitions=64)) == 64
    full = [OffsetRange("t", number, 0, SHARED_TASK) for number in range(64)]
    assert len(tasks(full)) == 64


def test_a_range_is_a_value_of_any_size() -> None:
    """A range of any size is pickled as four fields."""
    vast = OffsetRange("t", 0, 0, 2**62)
    assert pickle.loads(pickle.dumps(vast)) == vast
    assert len(pickle.dumps(vast)) < 200


def test_a_rewind_changes_the_text_of_the_offset() -> None:
    """After a rewind the offset's text differs from the last one, so Spark reads again."""
    ranges = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 5, 5)]
    first = to_offset(ranges)
    second = to_offset(ranges, unlike=first)
    assert first != second != to_offset(ranges, unlike=second) == first
    assert from_offset(first) == from_offset(second) == ranges


def test_only_a_limited_batch_has_a_backlog() -> None:
    """A batch leaves messages beyond its ranges only if `maxOffsetsPerTrigger` limits it."""
    given = {"zookeeper": "unused:2181", "subscribe": "a"}
    limited = {**given, "maxOffsetsPerTrigger": "100"}
    ranges = [OffsetRange("a", number, 0, 33) for number in range(3)]

    def has_backlog(options: dict[str, str], ranges: list[OffsetRange]) -> bool:
        made = planned(
            SourceOptions.parse(options).for_stream(),
            ranges,
            Brokers([Broker("unused", 9092, 1, ())]),
        )
        (backlog,) = {one.settings.has_backlog for one in made}
        return backlog

    assert has_backlog(limited, ranges)
    assert not has_backlog(limited, ranges[:2])
    assert not has_backlog(given, ranges)
