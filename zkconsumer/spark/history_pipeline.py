"""Keep the tables of ensembles as Parquet: each run continues where the last committed run ended.

    history_pipeline.run(spark, {"prod": ["/logs/prod"]}, "/data/history")
    history_pipeline.read(spark, "/data/history", "rebalances")

One task handles one ensemble. It restores the state of the groups, decodes the new transactions,
deduplicates them by zxid, and writes new files under names that no other attempt uses. Then the
driver commits the run by renaming a new manifest of the ensemble. The manifest names all valid
files. A run that ends before the rename has no effect. After the rename, no later run repeats this
work.

A file that arrives late contains transactions with lower zxids than the last committed one. The run
then goes back to the last state before these transactions and continues from there, so that the
result is the same as if the file had been there in time.
"""

from __future__ import annotations

import json
import os
import uuid
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from zkconsumer.errors import ConfigError, DamagedFileError, HistoryError
from zkconsumer.file_lock import try_lock
from zkconsumer.history.columns import ColumnDecoder, can_compile
from zkconsumer.history.describe import STATE_FORMAT, Description
from zkconsumer.history.inputs import by_uncompressed_name, find_servers, uncompressed
from zkconsumer.history.logs import LogReader, RowBatch
from zkconsumer.history.saved_tables import MANIFEST
from zkconsumer.history.tables import TABLES
from zkconsumer.spark.history import (
    KIND_NAMES,
    arrow_schema,
    kind_numbers,
    schema_of,
    table_batches,
    transaction_batch,
    transaction_columns,
)
from zkconsumer.spark.process_lifecycle import errors_as_text, log_to_stderr

STATES: Final = 8
"""Number of saved states per ensemble. The more states there are, the less is read again after a
late file."""

Spans: TypeAlias = list[tuple[int, int]]
"""The first and the last zxid of each contiguous range."""


@dataclass(frozen=True)
class PipelineRun:
    """One committed run: its last transaction, the transactions' file, and the state after it."""

    number: int
    zxid: int
    covered: Spans
    transactions: str | None
    state: str | None


@dataclass(frozen=True)
class Manifest:
    """The valid files and states of an ensemble.

    Attributes:
        runs: the runs whose transactions are valid, oldest first.
        tables: table -> its file.
        scanned: log -> the number of its bytes that a run has already read.
        groups: the groups that the tables describe; an empty list means all groups.
        state_format: the format of the states, which differs between releases.
    """

    groups: list[str]
    state_format: int = STATE_FORMAT
    number: int = 0
    runs: list[PipelineRun] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)
    scanned: dict[str, int] = field(default_factory=dict)

    @property
    def files(self) -> set[str]:
        """The names of all valid files."""
        of_runs = (name for one in self.runs for name in (one.transactions, one.state))
        return {*self.tables.values(), *(name for name in of_runs if name)}


ENCODINGS: Final[Mapping[str, Any]] = {  # Any: the options of a writer
    "use_dictionary": ["ensemble", "file", "session", "kind", "path"],
    "column_encoding": {"zxid": "DELTA_BINARY_PACKED", "time": "DELTA_BINARY_PACKED"},
}
"""How Parquet encodes `transactions`. With dictionaries for all columns, writing takes twice the
time, and the file is half as large again, because the values of most columns hardly repeat."""

GROUP_ROWS: Final = 1 << 17
"""Number of rows that make a row group of `transactions` full. The batches of the logs are smaller,
and a row group for each would cost a fifth more time and space."""

GROUP_BYTES: Final = 32 << 20
"""Number of bytes of the logs that make a row group full, whatever the number of its rows."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run for one ensemble.

    Attributes:
        number: the number of the run; if there were no new transactions, the number of the previous
            run.
        transactions: rows of the table `transactions` that the run wrote.
        replaced_runs: how many earlier runs this run has replaced because of a late file.
    """

    ensemble: str
    number: int
    transactions: int
    replaced_runs: int


def run(
    spark: SparkSession,
    ensembles: Mapping[str, Sequence[str]],
    output: str | os.PathLike[str],
    *,
    groups: Sequence[str] = (),
) -> list[RunResult]:
    """Bring the tables of all ensembles up to date.

    Args:
        ensembles: name -> paths of its servers' files, as `zkconsumer history --data-dir` takes
            them. Each executor must be able to open them.
        output: a directory that the driver and all executors share.
        groups: describe only these groups; by default, all groups.

    Raises:
        ConfigError: another run uses the output, or there are no ensembles.
    """
    if not ensembles:
        raise ConfigError("there are no ensembles", where="ensembles", remedy="name at least one")
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    with _output_lock(folder):
        names = sorted(ensembles)
        for name in names:
            known = manifest_of(folder / name, groups)
            _check(folder / name, known, groups)
            remove_invalid(folder / name, known)
        given = spark.createDataFrame(
            [(name, list(ensembles[name])) for name in names],
            "ensemble string, paths array<string>",
        ).repartitionByRange(len(names), "ensemble")
        task = partial(_tasks, folder=str(folder.absolute()), groups=list(groups))
        rows = given.mapInArrow(task, "ensemble string, manifest string, ended string").collect()
        found = []
        for row in rows:
            commit(folder / row.ensemble, row.manifest)
            found.append(RunResult(**json.loads(row.ended)))
    return sorted(found, key=lambda one: one.ensemble)


def read(spark: SparkSession, output: str | os.PathLike[str], table: str) -> DataFrame:
    """Return a table of all ensembles, as the committed runs wrote it."""
    schema = schema_of(table).add("ensemble", "string")
    files = []
    for manifest in sorted(Path(output).glob(f"*/{MANIFEST}")):
        known = manifest_of(manifest.parent)
        names = [one.transactions for one in known.runs]
        names = names if table == "transactions" else [known.tables.get(table)]
        files += [str(manifest.parent / name) for name in names if name]
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*files)


# ---- committing ---------------------------------------------------------------------------------


@contextmanager
def _output_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the output directory; the lock ends with the process."""
    with (folder / ".lock").open("w") as file:
        try:
            try_lock(file)
        except BlockingIOError:
            raise ConfigError(
                "another run writes into the output",
                where=str(folder),
                remedy="wait until it has ended, or use another output",
            ) from None
        yield


def manifest_of(folder: Path, groups: Sequence[str] = ()) -> Manifest:
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Manifest(sorted(groups))
    runs = [
        PipelineRun(**{**one, "covered": [(first, last) for first, last in one["covered"]]})
        for one in content.pop("runs")
    ]
    return Manifest(runs=runs, **content)


def _check(folder: Path, known: Manifest, groups: Sequence[str]) -> None:
    """Raise ConfigError if the output was written for other groups, or in another state format."""
    for what, here, now in (
        ("groups", ", ".join(known.groups) or "all", ", ".join(sorted(groups)) or "all"),
        ("format of the states", known.state_format, STATE_FORMAT),
    ):
        if here != now:
            raise ConfigError(
                f"the output was written with another {what}: {here} instead of {now}",
                where=str(folder),
                remedy="use another output, or remove this one and read the logs again",
            )


def commit(folder: Path, text: str) -> None:
    """Rename a new manifest, which makes its files valid all at once."""
    fresh = folder / f"{MANIFEST}.new"
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / MANIFEST)


def remove_invalid(folder: Path, manifest: Manifest) -> None:
    """Remove the files of runs that ended before their commit, and those that a run has replaced.

    Each run removes files at its start, so a query can read replaced files until the next run.
    """
    for file in folder.glob("*.*"):
        if file.name != MANIFEST and file.name not in manifest.files:
            file.unlink()


# ---- one ensemble -------------------------------------------------------------------------------


def _tasks(
    batches: Iterator[pa.RecordBatch], *, folder: str, groups: list[str]
) -> Iterator[pa.RecordBatch]:
    """Run the task of each ensemble; `mapInArrow` calls this function."""
    log_to_stderr()
    for batch in batches:
        for row in batch.to_pylist():
            with errors_as_text():
                task = Task(Path(folder, row["ensemble"]), row["paths"], groups)
                manifest, ended = task.run()
            texts = [row["ensemble"], json.dumps(asdict(manifest)), json.dumps(asdict(ended))]
            columns = [pa.array([text]) for text in texts]
            yield pa.RecordBatch.from_arrays(columns, ["ensemble", "manifest", "ended"])


class Task:
    """The run for one ensemble. It writes files that no manifest names yet."""

    def __init__(self, folder: Path, paths: Sequence[str], groups: Sequence[str]) -> None:
        self._folder, self._groups = folder, groups
        self._known = manifest_of(folder, groups)
        self._servers = find_servers(paths)
        self._suffix = uuid.uuid4().hex[:12]
        folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> tuple[Manifest, RunResult]:
        """Return the manifest to commit, and the result of the run."""
        known = self._known
        if not known.runs:
            return self._first_run()
        first_new, scanned = self._scan()
        if first_new is None:
            return known, RunResult(self._folder.name, known.number, 0, 0)
        kept = [one for one in known.runs if one.zxid < first_new]
        while kept and kept[-1].state is None:
            kept.pop()
        description = self._description(kept)
        one, count = self._read(description)
        self._check_logs(known.runs[len(kept) :], one, first_new)
        return self._ended(description, [*kept, one], count, scanned)

    def _first_run(self) -> tuple[Manifest, RunResult]:
        """Read all files once: there is no earlier run to compare them with."""
        description = self._description([])
        one, count = self._read(description)
        known, scanned = self._known, description.offsets
        others, found = self._scan(scanned)
        if not count and not description.skipped and others is None:
            return known, RunResult(self._folder.name, known.number, 0, 0)
        return self._ended(description, [one], count, {**found, **scanned})

    def _ended(
        self, description: Description, runs: list[PipelineRun], count: int, scanned: dict[str, int]
    ) -> tuple[Manifest, RunResult]:
        """Write the tables, and return the manifest and the result of the run `runs[-1]`."""
        known, number = self._known, runs[-1].number
        tables = self._tables(description, number)
        replaced_runs = len(known.runs) - len(runs) + 1
        ended = RunResult(self._folder.name, number, count, replaced_runs)
        runs = _with_few_states(runs)
        manifest = Manifest(known.groups, known.state_format, number, runs, tables, scanned)
        return manifest, ended

    def _check_logs(
        self, replaced: Sequence[PipelineRun], one: PipelineRun, first_new: int
    ) -> None:
        """Raise HistoryError if logs that the run `one` had to read again have been deleted.

        The run may leave out transactions that are in the logs, such as those of a deposed leader.
        """
        covered = _joined(span for old in replaced for span in old.covered)
        if _first_lacking(covered, one.covered) is None:
            return
        lost = _first_lacking(covered, _joined(self._spans_of_logs()))
        if lost is not None:
            raise HistoryError(
                f"a late file contains the transaction 0x{first_new:x}, so the logs must be read "
                f"again, but none of them contains the transaction 0x{lost:x} any more",
                where=self._folder.name,
                remedy="restore the older logs, or remove the late file",
            )

    def _spans_of_logs(self) -> Iterator[tuple[int, int]]:
        decoder = ColumnDecoder() if can_compile() else None
        for log in (log for server in self._servers for log in server.logs):
            with suppress(DamagedFileError):
                for batch in LogReader(log, decoder).batches():
                    yield from _spans(batch)

    def _scan(self, but: Collection[str] = ()) -> tuple[int | None, dict[str, int]]:
        """Return the first zxid at which the logs differ from the committed runs, and the number of
        bytes of each log that have now been read. The logs `but` are left out.
        """
        covered = _joined(span for one in self._known.runs for span in one.covered)
        known = by_uncompressed_name(self._known.scanned)
        scanned, found = dict[str, int](), list[int]()
        decoder = ColumnDecoder() if can_compile() else None
        for server in self._servers:
            spans: Spans = []
            for log in (one for one in server.logs if one.name not in but):
                begin = known.get(uncompressed(log.name), 0)
                if begin > log.size and uncompressed(log.name) == log.name:
                    begin = 0
                if begin:  # the transactions between the last span and the new ones are not read
                    found += _differing_zxids(_joined(spans), covered)
                    spans = []
                reader = LogReader(log, decoder, begin)
                try:
                    for batch in reader.batches():
                        spans += _spans(batch)
                        found += self._contradictions(batch)
                except DamagedFileError:
                    pass  # an incident reports the damage; the rows before it are used
                scanned[log.name] = reader.offset
            found += _differing_zxids(_joined(spans), covered)
        return min(found, default=None), scanned

    def _contradictions(self, batch: RowBatch) -> Iterator[int]:
        """Yield the zxid of the first new row that a committed run has with another content."""
        if not self._known.runs:
            return
        rows = transaction_batch(batch).drop_columns(["file", "damage"])
        for one in self._known.runs:
            within = pc.and_(
                pc.greater_equal(rows["zxid"], one.covered[0][0] if one.covered else 0),
                pc.less_equal(rows["zxid"], one.zxid),
            )
            here = rows.filter(within)
            if one.transactions is None or not here.num_rows:
                continue
            committed = pq.read_table(
                self._folder / one.transactions,
                columns=here.schema.names,
                filters=pc.field("zxid").isin(here["zxid"]),
            )
            here = here.filter(pc.is_in(here["zxid"], committed["zxid"].combine_chunks()))
            yield from _first_difference(here, committed)

    def _description(self, kept: Sequence[PipelineRun]) -> Description:
        if not kept:
            return Description(self._servers, self._groups)
        state = (self._folder / str(kept[-1].state)).read_bytes()
        return Description.resumed(self._servers, state)

    def _read(self, description: Description) -> tuple[PipelineRun, int]:
        """Read the new transactions, and write the table `transactions` and the state.

        Return the run and the number of transactions.
        """
        number, spans, count, name = self._known.number + 1, Spans(), 0, None
        path = self._folder / f"transactions-{number}-{self._suffix}.parquet"
        with ExitStack() as stack:
            for batches in _row_groups(description.batches()):
                rows = _row_group(batches, self._folder.name)
                if name is None:
                    writer = pq.ParquetWriter(path, rows.schema, store_schema=False, **ENCODINGS)
                    stack.enter_context(writer)
                    name = path.name
                writer.write_table(rows)
                spans = _joined([*spans, *(span for one in batches for span in _spans(one))])
                count += rows.num_rows
        state = self._write(f"state-{number}", "pickle", description.state())
        return PipelineRun(number, description.last_zxid, spans, name, state), count

    def _tables(self, description: Description, number: int) -> dict[str, str]:
        """Write all tables but `transactions`."""
        tables, names = description.result().tables, {}
        for table in TABLES:
            if table != "transactions":
                path = self._folder / f"{table}-{number}-{self._suffix}.parquet"
                with pq.ParquetWriter(path, _schema(table)) as writer:
                    for rows in table_batches(getattr(tables, table), table):
                        writer.write_table(_of_ensemble(rows, self._folder.name))
                names[table] = path.name
        return names

    def _write(self, name: str, kind: str, content: bytes) -> str:
        path = self._folder / f"{name}-{self._suffix}.{kind}"
        path.write_bytes(content)
        return path.name


def _first_difference(here: pa.RecordBatch, committed: pa.Table) -> list[int]:
    """Return the zxid of the first row that differs; both have the same zxids, in their order."""
    known = committed.cast(here.schema)
    if known.equals(pa.Table.from_batches([here])):
        return []
    pairs = zip_longest(here.to_pylist(), known.to_pylist())
    one, other = next((one, other) for one, other in pairs if one != other)
    return [min(row["zxid"] for row in (one, other) if row)]


def _with_few_states(runs: list[PipelineRun]) -> list[PipelineRun]:
    """Drop the saved states of all but the last `STATES` runs."""
    old = len(runs) - STATES
    return [replace(one, state=None) if n < old else one for n, one in enumerate(runs)]


def _row_groups(batches: Iterator[RowBatch]) -> Iterator[list[RowBatch]]:
    """Yield consecutive batches that make one row group."""
    group, rows, size = list[RowBatch](), 0, 0
    for batch in batches:
        columns = batch.columns  # made now if the plain decoder has read the rows
        group.append(RowBatch(batch.file, None, columns))
        rows += len(batch)
        size += columns.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def _row_group(batches: Sequence[RowBatch], ensemble: str) -> pa.Table:
    """Return batches as one row group of `transactions`.

    The columns with few different values have dictionaries, which Parquet need not look for.
    """
    rows = pa.concat_batches([one.columns for one in batches])
    files = list(dict.fromkeys(one.file for one in batches))
    numbers = [pa.repeat(files.index(one.file), len(one)) for one in batches]
    found = {
        **transaction_columns(rows),
        "file": _dictionary(pa.concat_arrays(numbers), pa.array(files)),
        "kind": _dictionary(kind_numbers(rows), KIND_NAMES),
        "ensemble": _dictionary(pa.repeat(0, rows.num_rows), pa.array([ensemble])),
    }
    names = [*arrow_schema("transactions").names, "ensemble"]
    return pa.Table.from_arrays([found[name] for name in names], names)


def _dictionary(numbers: pa.Array, values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(numbers.cast(pa.int32()), values)


def _of_ensemble(rows: pa.RecordBatch, ensemble: str) -> pa.Table:
    names = pa.repeat(ensemble, rows.num_rows)
    return pa.Table.from_batches([rows]).append_column("ensemble", names)


def _schema(table: str) -> pa.Schema:
    empty = next(iter(table_batches([], table)))
    return _of_ensemble(empty, "").schema


# ---- zxids --------------------------------------------------------------------------------------


def _spans(batch: RowBatch) -> Spans:
    """Return the contiguous zxid ranges of a batch."""
    zxids = batch.zxids
    if batch.is_compiled:  # then `zxids` is an array
        ends = [*((zxids[1:] - zxids[:-1]) > 1).nonzero()[0].tolist(), len(zxids) - 1]
    else:
        ends = [n for n, one in enumerate(zxids) if zxids[n + 1 : n + 2] not in ([one], [one + 1])]
    begins = [0, *(end + 1 for end in ends[:-1])]
    return [(int(zxids[a]), int(zxids[b])) for a, b in zip(begins, ends, strict=True)]


def _joined(spans: Iterator[tuple[int, int]] | Spans) -> Spans:
    """Return spans in order; adjacent and overlapping spans are merged."""
    found: Spans = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def _first_lacking(covered: Spans, spans: Spans) -> int | None:
    """Return the first zxid of `covered` that is in none of the joined spans."""
    for first, last in covered:
        at = bisect_right(spans, (first, 1 << 64)) - 1
        end = spans[at][1] if at >= 0 else 0
        if end < last:
            return max(first, end + 1)
    return None


def _differing_zxids(spans: Spans, covered: Spans) -> Iterator[int]:
    """Yield the first zxid of each difference between a server's logs and the ranges in
    `covered`."""
    before = 0
    for first, last in spans:
        at = bisect_right(covered, (first, 1 << 64)) - 1
        if at < 0 or covered[at][1] < last:
            yield max(first, covered[at][1] + 1) if at >= 0 else first
        lacking = [one for one in covered if before and one[0] < first and one[1] > before]
        if lacking:
            yield max(before + 1, lacking[0][0])
        before = last
