"""Transactions from the tables that `zkconsumer.spark.history_pipeline` keeps as Parquet.

`SavedTransactions` takes the place of `inputs.History`: it yields the transactions in the order of
their zxids, each once, because the pipeline has merged the servers' logs. Spark is not needed. The
tables lack access control lists.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from zkconsumer.errors import BadFileError, first_few, require
from zkconsumer.history.inputs import Problem
from zkconsumer.history.logs import RowBatch
from zkconsumer.history.transactions import KINDS, RowTuple

MANIFEST: Final = "manifest.json"
"""The file of an ensemble's directory that names its valid files."""

_CODES: Final = {name: code for code, name in KINDS.items()}
_COLUMNS: Final = [
    *("zxid", "time", "file", "session", "cxid", "kind", "part", "path", "data", "version"),
    *("ephemeral", "timeout_ms", "ttl_ms", "error"),
]
_BATCH: Final = 1 << 15  # rows that are converted at a time, in about 30 MB


class SavedTransactions:
    """The transactions of one ensemble.

    Attributes:
        name: the directory.
        problems: always empty: the pipeline keeps the problems of the logs as incidents. A gap
            between two transactions is found by their zxids.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path` is an output of the pipeline, or the directory of one ensemble in it.

        Raises:
            BadFileError: there are no tables at the path, or those of several ensembles.
            ConfigError: pyarrow is not installed.
        """
        require("pyarrow", extra="fast", where="a table of Parquet")
        self.problems: list[Problem] = []
        folder = _ensemble(Path(path))
        self.name = str(folder)
        try:
            runs = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["runs"]
            names = [one["transactions"] for one in runs]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadFileError(
                f"the manifest cannot be read: {error}",
                where=str(folder / MANIFEST),
                remedy="name an output of zkconsumer.spark.history_pipeline",
            ) from None
        self._files = [folder / name for name in names if name]

    def batches(self) -> Iterator[RowBatch]:
        """Yield the rows. Raises BadFileError if a file cannot be read."""
        import pyarrow as pa  # noqa: PLC0415 - an extra
        import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

        for path in self._files:
            try:
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(_BATCH, columns=_COLUMNS):
                        if batch.num_rows:
                            yield RowBatch(str(path), list(_rows(batch)))
            except (OSError, pa.ArrowException) as error:
                raise BadFileError(
                    f"the table cannot be read: {error}",
                    where=str(path),
                    remedy="run the pipeline again, or restore the directory",
                ) from None


def _ensemble(path: Path) -> Path:
    """Return the directory of the only ensemble at a path. Raises BadFileError."""
    if (path / MANIFEST).exists():
        return path
    found = sorted(file.parent for file in path.glob(f"*/{MANIFEST}"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise BadFileError(
            "the directory has no tables",
            where=str(path),
            remedy="name an output of zkconsumer.spark.history_pipeline",
        )
    raise BadFileError(
        f"the directory has the tables of {len(found)} ensembles",
        where=str(path),
        remedy=f"name one of {first_few(found, 10)}",
    )


def _rows(batch: Any) -> Iterator[RowTuple]:  # Any: a RecordBatch of pyarrow
    """Yield rows of the table `transactions` as the decoder of the logs makes them."""
    columns = batch.to_pydict()
    columns["time"] = batch.column("time").cast("int64").to_pylist()
    unit = batch.schema.field("time").type.unit
    per_ms = {"s": 0.001, "ms": 1, "us": 1_000, "ns": 1_000_000}[unit]
    for row in zip(*(columns[name] for name in _COLUMNS), strict=True):
        zxid, time, _, session, cxid, kind, part, path, data, version = row[:10]
        ephemeral, timeout_ms, ttl_ms, error = row[10:]
        code = _CODES[kind]
        number = next((one for one in (timeout_ms, ttl_ms, error) if one is not None), 0)
        yield (
            zxid,
            round(time / per_ms),
            session,
            cxid,
            code,
            -1 if part is None else part,
            path,
            data,
            -1 if version is None else version,
            int(ephemeral) if ephemeral is not None else number,
            None,
        )
