"""The history demo: faults of a real group, and the pipeline that reads the servers' logs.

`DemoRun` injects the faults of `_history_scene`. Meanwhile, and again after all members have
stopped, `history_pipeline` on a standalone Spark cluster brings the tables up to date. The caller
compares the tables with the members' own records.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from _history_scene import GROUP, Claims, Scene
from pyspark.sql import SparkSession

from zkconsumer.history.describe import Described
from zkconsumer.history.tables import TABLES, Event, Tables, columns_of
from zkconsumer.sandbox import guard
from zkconsumer.sandbox import spark as sparks
from zkconsumer.sandbox.real_group import MemberKind
from zkconsumer.spark import history_pipeline
from zkconsumer.spark.history import MOMENTS, column_name

ENSEMBLE = "demo"


@dataclass(frozen=True)
class RunRecords:
    """The result of a run: the servers' logs, the members' records, and the history tables.

    Attributes:
        logs: the directory of each server's transaction log.
        traces: the traces of the zkconsumer members, one for each process.
        claims: the claims that the JVM members logged.
        jvm_interruptions: the number of faults that hit a JVM member. After each of these faults,
            the member's log may lack the claim that was in progress.
        faults: kind of fault -> how often it happened.
        seconds: how long the faults took.
        runs: for each run of the pipeline, the number of transactions that it wrote.
        history: the tables, read from the pipeline's Parquet files.
    """

    logs: list[Path]
    traces: list[Path]
    claims: Claims
    jvm_interruptions: int
    faults: Counter[str]
    seconds: float
    runs: list[int]
    history: Described


class DemoRun:
    """One run of the demo. When it ends, even by Ctrl-C, all its processes have ended."""

    def __init__(
        self, *, faults: int, limit_s: float, seed: int, output: Path, say: Callable[[str], None]
    ) -> None:
        """Args:
        faults: the number of faults.
        limit_s: seconds after which no further fault happens.
        seed: determines the order of the faults.
        output: a directory for the logs, the members' records and the tables; it is kept.
        say: receives a line for each step.
        """
        self._faults, self._limit_s, self._seed = faults, limit_s, seed
        self._output, self._say = output, say

    def run(self) -> RunRecords:
        """Run the demo. Raises SandboxError if a part of the demo itself fails."""
        with ExitStack() as stack:
            directory = Path(tempfile.mkdtemp(prefix="zkconsumer-history-"))
            guard.watch_directory(directory)
            stack.callback(guard.release_directory, directory)
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            with Scene(directory / "group", seed=self._seed, say=self._say) as scene:
                seconds = scene.run(self._faults, self._limit_s)
                spark = self._spark(directory, stack)
                runs = [self._pipeline(spark, scene.logs)]
                self._say("the members and the servers stop")
                scene.leave()
            runs.append(self._pipeline(spark, scene.logs))
            servers, members = enumerate(scene.logs, start=1), scene.members
            logs = [self._kept_logs(one, f"logs/{number}") for number, one in servers]
            return RunRecords(
                logs=logs,
                traces=[self._kept(one, "traces") for m in members for one in m.traces],
                claims=sum((one.claims for one in members), Counter()),
                jvm_interruptions=sum(
                    one.interruptions for one in members if one.kind is MemberKind.JVM
                ),
                faults=scene.faults,
                seconds=seconds,
                runs=runs,
                history=described(spark, self._tables),
            )

    @property
    def _tables(self) -> Path:
        return self._output / "tables"

    def _spark(self, directory: Path, stack: ExitStack) -> SparkSession:
        self._say("starting a standalone Spark cluster with two workers")
        (directory / "cluster").mkdir()
        cluster = stack.enter_context(sparks.SparkCluster(directory / "cluster"))
        settings = {**cluster.settings, "spark.ui.showConsoleProgress": "false"}
        spark = sparks.session(directory / "session", master=cluster.url, settings=settings)
        stack.callback(spark.stop)
        return spark

    def _pipeline(self, spark: SparkSession, logs: list[Path]) -> int:
        """Bring the tables up to date; return the number of new transactions."""
        self._say("the pipeline reads what the servers have written")
        ensembles = {ENSEMBLE: [str(one) for one in logs]}
        (ended,) = history_pipeline.run(spark, ensembles, self._tables, groups=[GROUP])
        self._say(f"run {ended.number} of the pipeline: {ended.transactions:,} transactions")
        return ended.transactions

    def _kept(self, path: Path, name: str) -> Path:
        """Copy a file into a folder of the output."""
        target = self._output / name
        target.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(path, target))

    def _kept_logs(self, logs: Path, name: str) -> Path:
        """Copy logs and snapshots, without the zeros at the end that a server preallocates."""
        for path in sorted(logs.glob("*.*")):
            content = path.read_bytes()
            is_log = path.name.startswith("log.")
            self._kept(path, name).write_bytes(content.rstrip(b"\0") if is_log else content)
        return self._output / name


# ---- tables --------------------------------------------------------------------------------------


def described(spark: SparkSession, output: Path) -> Described:
    """Return the tables that the pipeline has written, in the form of `history.describe`."""
    tables = Tables()
    for table in TABLES:
        if table != "transactions":
            frame = history_pipeline.read(spark, output, table)
            setattr(tables, table, rows_of(frame.toArrow(), table))
    times = [row.time_ms for row in (*tables.members, *tables.ownership, *tables.commits)]
    ends = [row.last_ms for row in tables.commits]
    return Described(
        tables,
        problems=[],
        groups=[("", GROUP)],
        rows=history_pipeline.read(spark, output, "transactions").count(),
        from_ms=min(times, default=0),
        until_ms=max(times + ends, default=0),
    )


def rows_of(found: pa.Table, table: str) -> list[Event]:
    """Return the rows of a table from its columns, in the order of their zxids."""
    columns = {}
    for name in columns_of(TABLES[table]):
        column = found[column_name(name)]
        if name in MOMENTS:
            column = column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        is_map = pa.types.is_map(column.type)
        values: list[Any] = column.to_pylist()  # Any: the column determines the type
        columns[name] = [dict(one) for one in values] if is_map else values
    rows = zip(*columns.values(), strict=True)
    made = [TABLES[table](**dict(zip(columns, row, strict=True))) for row in rows]
    return sorted(made, key=lambda row: (row.zxid, row.time_ms))
