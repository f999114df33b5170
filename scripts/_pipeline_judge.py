"""Compare the Parquet files of the Spark query, and the JVM consumer's output, with the log.

This module performs no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

# Length of a window in milliseconds (`_pipeline_query.WINDOW`).
WINDOW_MS = 1000

Place = tuple[int, int]
"""A message's partition and offset."""


class Row(NamedTuple):
    """A message as it is in the log or in the Parquet files."""

    partition: int
    offset: int
    timestamp_ms: int
    value: str

    @property
    def place(self) -> Place:
        return self.partition, self.offset


Window = tuple[int, int]
"""A window's start, in milliseconds, and a partition."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result. All fields except the fields about windows count messages.

    Attributes:
        spark, jvm: messages in the query's Parquet files, and messages that the JVM consumer read,
            copies included.
        lost: messages in the log that neither has read.
        wrong: rows of the Parquet files that differ from the log.
        duplicates: copies beyond the first.
        in_flight: duplicates of messages that were in the batch in flight when the query was
            killed.
        wrong_windows: windows whose count differs from the number of rows in the Parquet files.
    """

    produced: int
    spark: int
    jvm: int
    lost: int
    wrong: int
    duplicates: int
    in_flight: int
    windows: int
    wrong_windows: int

    @property
    def good(self) -> bool:
        """Whether nothing is lost or wrong, and all duplicates were in the batch in flight."""
        return (self.lost, self.wrong, self.wrong_windows, self.duplicates - self.in_flight) == (
            0,
            0,
            0,
            0,
        )


def judge(
    log: Iterable[Row],
    *,
    batches: Mapping[int, Iterable[Row]],
    windows: Mapping[Window, int],
    jvm: Iterable[Place],
    killed: int | None,
) -> Verdict:
    """Compare what was written with the log, message by message.

    Args:
        log: all messages, as the broker stores them.
        batches: the rows of the Parquet files, by batch.
        windows: the counts in the Parquet files of windows, over all batches.
        jvm: the messages that the JVM consumer read.
        killed: the batch in flight when the query was killed.
    """
    truth = {row.place: row for row in log}
    by_spark = Counter[Place]()
    wanted = Counter[Window]()
    wrong, open_batch = 0, set[Place]()
    for number, rows in batches.items():
        for row in rows:
            by_spark[row.place] += 1
            wanted[row.timestamp_ms // WINDOW_MS * WINDOW_MS, row.partition] += 1
            wrong += truth.get(row.place) != row
            if number == killed:
                open_batch.add(row.place)
    by_jvm = Counter(jvm)
    copies = by_spark + by_jvm
    again = {place: count - 1 for place, count in copies.items() if count > 1}
    return Verdict(
        produced=len(truth),
        spark=by_spark.total(),
        jvm=by_jvm.total(),
        lost=len(truth.keys() - copies.keys()),
        wrong=wrong + len(by_jvm.keys() - truth.keys()),
        duplicates=sum(again.values()),
        in_flight=sum(count for place, count in again.items() if place in open_batch),
        windows=len(wanted),
        wrong_windows=sum(
            wanted[one] != windows.get(one, 0) for one in wanted.keys() | windows.keys()
        ),
    )
