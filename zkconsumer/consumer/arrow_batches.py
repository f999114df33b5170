"""Arrow record batches that a stream hands out: the columns of Spark's connector and `token`.

This module imports pyarrow, so streams import it only for `poll_arrow`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

from zkconsumer.kafka.columns.column_batches import SCHEMA
from zkconsumer.kafka.columns.column_fetcher import ColumnRun
from zkconsumer.kafka.columns.from_messages import record_batches
from zkconsumer.kafka.columns.record_sets import ROWS
from zkconsumer.kafka.fetcher import MessageList, Run

TOKEN: Final = pa.field("token", pa.int64())
SCHEMA_WITH_TOKEN: Final = SCHEMA.append(TOKEN)


def joined(parts: Iterable[tuple[Run, Sequence[int], int]]) -> pa.RecordBatch:
    """Return parts of runs as one record batch; each part has its fencing token."""
    return _joined(
        [
            _with_token(batch, token)
            for run, numbers, token in parts
            for batch in _batches(run, numbers)
        ]
    )


def _batches(run: Run, numbers: Sequence[int]) -> Iterable[pa.RecordBatch]:
    """Return consecutive messages of a run as record batches."""
    if isinstance(run, ColumnRun):
        return [run.batch.slice(numbers[0], len(numbers))]
    assert isinstance(run, MessageList)  # another reader returns columns
    messages = run.messages[numbers[0] : numbers[-1] + 1]
    return record_batches([(run.tp, messages)], SCHEMA.names)


def _with_token(batch: pa.RecordBatch, token: int) -> pa.RecordBatch:
    tokens = _tokens(token).slice(0, batch.num_rows)
    if len(tokens) < batch.num_rows:
        tokens = pa.repeat(pa.scalar(token, TOKEN.type), batch.num_rows)
    # This call is much cheaper than a new batch of all columns.
    return batch.append_column(TOKEN, tokens)


@lru_cache(maxsize=64)
def _tokens(token: int) -> pa.Array:
    """Return the token column from a cache: a member rarely has more tokens than partitions."""
    return pa.repeat(pa.scalar(token, TOKEN.type), ROWS)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=SCHEMA_WITH_TOKEN)
    columns = zip(*(one.columns for one in batches), strict=True)
    arrays = [pa.concat_arrays(parts) for parts in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA_WITH_TOKEN)
