"""What the driver gives a task, and what every reader's `read` does with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from zkconsumer.core.model import TopicPartition
from zkconsumer.core.records import Broker
from zkconsumer.spark.lifecycle import one_sentence
from zkconsumer.spark.options import SourceOptions
from zkconsumer.spark.planning import Ranges, tasks
from zkconsumer.spark.ranges import OffsetRange
from zkconsumer.spark.reading import ReadSettings, client_settings, read_ranges, warm_up

if TYPE_CHECKING:
    import pyarrow


class RangesPartition(InputPartition):
    """Ranges for one task, and how to read them; without any credential of ZooKeeper's."""

    def __init__(self, ranges: Ranges, settings: ReadSettings) -> None:
        self.ranges, self.settings = ranges, settings

    def __repr__(self) -> str:
        return f"RangesPartition({list(self.ranges)})"


class WarmUpPartition(InputPartition):
    """A task that reads no message: its worker imports what reading needs, and connects."""

    def __init__(self, tp: TopicPartition, settings: ReadSettings) -> None:
        self.tp, self.settings = tp, settings


def warm_ups(
    options: SourceOptions, partitions: Iterable[TopicPartition], brokers: Sequence[Broker]
) -> list[WarmUpPartition]:
    """A task for each partition. Raises FetchError as `client_settings`."""
    settings = _settings(options, brokers)
    return [WarmUpPartition(tp, settings) for tp in partitions]


def _settings(options: SourceOptions, brokers: Sequence[Broker]) -> ReadSettings:
    return ReadSettings(
        client=client_settings(options.config, brokers),
        patience_s=options.poll_timeout_s,
        fail_on_data_loss=options.fail_on_data_loss,
    )


def planned(
    options: SourceOptions, ranges: Iterable[OffsetRange], brokers: Sequence[Broker]
) -> list[RangesPartition]:
    """One for each task that `planning.tasks` makes. Raises FetchError as `client_settings`."""
    settings = _settings(options, brokers)
    dealt = tasks(ranges, min_partitions=options.min_partitions)
    return [RangesPartition(one, settings) for one in dealt]


def read_task(
    partition: InputPartition, columns: Sequence[str]
) -> Iterator[pyarrow.RecordBatch]:
    """The records of one task; none where Spark made up a task for an empty plan."""
    if isinstance(partition, RangesPartition):
        with one_sentence():
            yield from read_ranges(partition.ranges, columns, partition.settings)
    elif isinstance(partition, WarmUpPartition):
        with one_sentence():
            warm_up(partition.tp, partition.settings)
