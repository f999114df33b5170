"""Arrow record batches that a stream hands out: the columns of Spark's connector and `token`.

This module imports pyarrow, so streams import it only for `poll_arrow`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from zkconsumer.consumer.messages import Batch
from zkconsumer.kafka.columns.from_messages import record_batches
from zkconsumer.kafka.columns.record_sets import ROWS, SCHEMA

if TYPE_CHECKING:
    from zkconsumer.kafka.columns.fetcher import Run

TOKEN: Final = pa.field("token", pa.int64())
SCHEMA_WITH_TOKEN: Final = SCHEMA.append(TOKEN)


def of_runs(runs: list[tuple[Run, int]]) -> pa.RecordBatch:
    """Return runs of messages as one record batch; each message has its run's fencing token."""
    return _joined([_with_token(run.batch, token) for run, token in runs])


def of_messages(batch: Batch[object, object]) -> pa.RecordBatch:
    """Return librdkafka's messages as a record batch."""
    return _joined(
        [
            _with_token(made, token)
            for tp, token, messages in batch.runs()
            for made in record_batches([(tp, messages)], SCHEMA.names)
        ]
    )


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
