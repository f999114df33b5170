"""The partitions of a Spark query's consumer thread, without a session of Spark."""

from __future__ import annotations

import pytest

from zkconsumer.consumer.stream_partitions import Grant
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.spark.batch_member import ThreadPartitions
from zkconsumer.spark.offset_ranges import OffsetRange

T0 = TopicPartition("t", 0)


@pytest.fixture
def partitions() -> ThreadPartitions:
    """A thread with one partition, of which a batch reads the messages 10 to 19."""
    made = ThreadPartitions("g_1-0", set())
    made.grant([Grant(T0, 10, 7, 1)])
    (begun,) = made.begin([OffsetRange("t", 0, 10, 20)])
    assert begun.size == 10
    return made


def test_a_release_waits_for_a_batch_although_the_partition_is_withdrawn(
    partitions: ThreadPartitions,
) -> None:
    """If an edit withdraws a partition during its release, the release waits for the batch."""
    done: list[int] = []
    partitions.ask_release([T0], lambda: done.append(1))
    partitions.withdraw([T0])
    assert done == []
    assert partitions.finish({T0: 20}) == 0
    partitions.answer_releases()
    assert done == [1]


@pytest.mark.parametrize(("epoch", "waits"), [(7, True), (8, False)])
def test_a_release_waits_for_the_batch_before_an_edit(
    partitions: ThreadPartitions, epoch: int, waits: bool
) -> None:
    """A batch from before an edit delays a release; a batch of a lost ownership does not."""
    partitions.withdraw([T0])
    partitions.grant([Grant(T0, 3, epoch, 1)])
    done: list[int] = []
    partitions.ask_release([T0], lambda: done.append(1))
    assert done == ([] if waits else [1])
    partitions.cancel()
    assert done == [1]
