"""What a stream reports of its fetching."""

from __future__ import annotations

from collections.abc import Iterable

from topiclogs import MemoryFetcher, MemoryLog, Reader

from zkconsumer.consumer.stream import ReportKind
from zkconsumer.core.model import TopicPartition
from zkconsumer.kafka.fetcher import Reset


class Unanswered(MemoryFetcher):
    """The brokers answer no question for offsets."""

    def resolve(
        self, tps: Iterable[TopicPartition], reset: Reset
    ) -> dict[TopicPartition, int | str]:
        return dict.fromkeys(tps, "timed out")


def test_what_ails_many_partitions_alike_is_one_report() -> None:
    """A broker that does not answer for 600 partitions is one line in the log, not 600."""
    log = MemoryLog("many")
    reader = Reader(log, connect=lambda: Unanswered(log))
    for partition in range(600):
        reader.grant(partition, None)
    reader.stream.poll(timeout_s=0.2)  # and asked again every 0.05 s
    reader.stream.close()
    (report,) = reader.reports
    assert report.kind is ReportKind.FETCH_TROUBLE
    assert report.text == "timed out (and 599 more partitions)"
