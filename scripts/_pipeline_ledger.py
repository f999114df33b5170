"""The messages that the query and the JVM consumer have read so far, according to their files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from _pipeline_judge import Place, Row, Window
from _pipeline_query import Query

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox.topics import ServerTopics

FromSpark: TypeAlias = Any
"""A message or a row of Spark's output, from libraries without types."""


class Ledger:
    """Reads the two files as they grow.

    The producer's n-th message has the value n, and is in the partition n modulo the number of
    partitions.

    Attributes:
        jvm: the messages that the JVM consumer has printed.
        began, ended: the numbers of the query's batches.
        rows: messages in the query's Parquet files; those of a replayed batch count again.
        progress: lines of the query's listener that were not shown yet.
        seen: per partition, the offsets that the query or the JVM consumer has read.
    """

    def __init__(self, query: Query, values: Path, *, partitions: int) -> None:
        self.jvm: list[Place] = []
        self.began: list[int] = []
        self.ended: list[int] = []
        self.rows = 0
        self.progress: list[str] = []
        self.seen = [set[int]() for _ in range(partitions)]
        self._query = query
        self._read = {query.notes: 0, values: 0}
        self._values = values

    def read_new(self) -> None:
        """Read what was written since the last call."""
        for line in filter(bytes.isdigit, self._lines(self._values)):  # skip warnings
            partition, offset = int(line) % len(self.seen), int(line) // len(self.seen)
            self.jvm.append((partition, offset))
            self.seen[partition].add(offset)
        for line in self._lines(self._query.notes):
            what, of = json.loads(line)
            getattr(self, what).append(of)
            if what == "ended":
                batch = self.batch(of)
                self.rows += len(batch)
                for row in batch:
                    self.seen[row.partition].add(row.offset)

    def batch(self, number: int) -> list[Row]:
        """Return the rows of a finished batch."""
        table = _parquet(self._query.rows / f"batch={number}")
        columns = [
            table[name].to_pylist() for name in ("partition", "offset", "timestamp", "value")
        ]
        return [Row(*one) for one in zip(*columns, strict=True)]

    def windows(self) -> dict[Window, int]:
        """Return the sums of the counts of all finished batches."""
        found = Counter[Window]()
        for number in set(self.ended):
            table = _parquet(self._query.windows / f"batch={number}")
            columns = [table[name].to_pylist() for name in ("timestamp", "partition", "count")]
            for start_ms, partition, count in zip(*columns, strict=True):
                found[start_ms, partition] += count
        return dict(found)

    def _lines(self, path: Path) -> Iterator[bytes]:
        """Yield complete new lines of a file, which may not exist yet."""
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read[path])
            lines, newline, _ = file.read().rpartition(b"\n")
        self._read[path] += len(lines) + len(newline)
        yield from lines.splitlines()


def _parquet(path: Path) -> FromSpark:
    """Return the Parquet files of a directory as one table; its only time column becomes
    `timestamp`, in milliseconds.
    """
    files = sorted(path.glob("*.parquet"))
    if not files:
        raise SandboxError(
            "a batch that the query recorded as written does not exist", where=str(path)
        )
    table = pa.concat_tables([pq.ParquetFile(one).read() for one in files])
    (name,) = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    times = table[name].cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    table = table.set_column(table.schema.get_field_index(name), "timestamp", times)
    return table


def whole_log(connect: str, topic: str, counts: list[int]) -> list[Row]:
    """Return all messages of the topic, which has `counts` messages in its partitions."""
    rows = [_row(one) for one in ServerTopics(connect).messages(topic)]
    if len(rows) != sum(counts):
        raise SandboxError(
            "the topic does not contain all produced messages",
            where=f"{topic}: {len(rows)} of {sum(counts)} messages",
        )
    return rows


def _row(message: FromSpark) -> Row:
    place = message.partition(), message.offset()
    return Row(*place, message.timestamp()[1], message.value().decode())
