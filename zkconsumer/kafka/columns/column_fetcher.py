"""Fetch messages as columns over zkconsumer's own connections to brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from zkconsumer.frozen import dataclass
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.kafka.columns.column_batches import batches
from zkconsumer.kafka.columns.fetcher import SESSION_FROM, OwnFetcher
from zkconsumer.kafka.columns.record_sets import ParserEngine, RecordSet
from zkconsumer.protocol.model import TopicPartition


@dataclass(frozen=True, slots=True)
class ColumnRun:
    """Messages of one partition, in order, with the columns of `column_batches.SCHEMA`."""

    tp: TopicPartition
    batch: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def offset(self, number: int) -> int:
        """Return the offset of message `number`; the first message is number 0."""
        return int(self.batch.column(_OFFSET)[number].as_py())

    @property
    def size(self) -> int:
        """The size of the run's buffers in bytes."""
        return int(self.batch.get_total_buffer_size())

    estimated_size = size


_OFFSET: Final = 4


class ColumnFetcher(OwnFetcher[ColumnRun]):
    """Fetches columns; with `with_headers`, batches also have the column `headers`."""

    def __init__(
        self,
        settings: Settings,
        *,
        engine: ParserEngine | None = None,
        with_headers: bool = False,
        session_from: int = SESSION_FROM,
    ) -> None:
        super().__init__(settings, engine=engine, session_from=session_from)
        self._with_headers = with_headers

    def _runs(self, found: RecordSet) -> Iterator[ColumnRun]:
        return (ColumnRun(found.tp, one) for one in batches(found, with_headers=self._with_headers))
