"""Measure the reading of logs on a Spark cluster, and calculate what many ensembles cost.

A standalone cluster on this machine has executors of one core each: an executor's JVM and its
Python worker are bound to that core. Otherwise they would overlap on two. Two queries are measured:

- `transactions`: `spark.read.format("zkconsumer-history")` reads all columns into the sink `noop`;
  one task reads one log.
- `all tables`: `history_pipeline.run` writes all tables as Parquet; one task reads one ensemble.

An ensemble has eight logs of 128 MB. The logs of the first ensemble contain different transactions.
Each other ensemble has the same transactions with other zxids, times and checksums. Executors start
before a measurement and read a small log, so that imports are not measured.

- `spark 1GB`: the transactions of one ensemble: seconds with two executors, and the efficiency of
  two executors (the time with one executor, divided by twice the time with two).
- `spark NGB`: both queries with two executors, for each N of `--gigabytes`. A line through the
  times gives the cost of 1,000 ensembles that write 1 GB a day each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import _records
import numpy as np
from _bench import Result, at_least, without_goal

from zkconsumer.history.columns import ColumnDecoder, _adler, _int, _long, compiled
from zkconsumer.history.logs import LogReader, LogSource
from zkconsumer.sandbox import spark as sparks
from zkconsumer.spark import history_pipeline

LOGS, LOG_BYTES = 8, 1 << 27
EXECUTORS = 2
STEP = 1 << 40  # between the zxids of two ensembles
HEADER_BYTES = 16


class WriteLogs(Protocol):
    """Writes consecutive logs of one ensemble into a directory."""

    def __call__(self, folder: Path, *, logs: int, size: int) -> None: ...


# ---- logs ---------------------------------------------------------------------------------------


@compiled
def _put(buffer: Any, at: int, value: int) -> None:
    for byte in range(8):
        buffer[at + byte] = (value >> (56 - 8 * byte)) & 0xFF


@compiled
def _shift(buffer: Any, at: int, zxids: int, milliseconds: int) -> None:
    """Change the zxid, time and checksum of each transaction from the offset `at` on."""
    while at + 12 <= len(buffer):
        stop = at + 12 + _int(buffer, at + 8)
        _put(buffer, at + 24, _long(buffer, at + 24) + zxids)
        _put(buffer, at + 32, _long(buffer, at + 32) + milliseconds)
        _put(buffer, at, _adler(buffer, at + 12, stop))
        at = stop + 1


def _copy_ensemble(first: Path, folder: Path, number: int) -> None:
    folder.mkdir()
    for log in sorted(first.iterdir()):
        content = np.fromfile(log, np.uint8)
        _shift(content, HEADER_BYTES, number * STEP, number * 1000)
        zxid = _long(content, HEADER_BYTES + 24)
        content.tofile(folder / f"log.{zxid:x}")


def _rows(folder: Path) -> int:
    """Return the number of rows of an ensemble."""
    decoder = ColumnDecoder()
    readers = (LogReader(LogSource.of_path(log), decoder) for log in folder.iterdir())
    return sum(len(batch) for reader in readers for batch in reader.batches())


# ---- queries ------------------------------------------------------------------------------------


@contextmanager
def _session(folder: Path, executors: int, warm: Path) -> Iterator[Any]:
    """Yield a session on a new cluster whose executors have already read logs."""
    directory = folder / f"cluster-{executors}"
    directory.mkdir(exist_ok=True)
    with sparks.SparkCluster(directory, workers=executors, executor_memory_mb=1024) as cluster:
        for core, pid in enumerate(cluster.worker_pids):
            _bind(pid, core)
        settings = {**cluster.settings, "spark.ui.showConsoleProgress": "false"}
        # These executors run long enough to benefit from the second compiler.
        settings["spark.executor.extraJavaOptions"] = "-XX:+UseSerialGC"
        spark = sparks.session(directory / "session", master=cluster.url, settings=settings)
        try:
            for _ in range(2):
                _read(spark, [warm])
                _pipeline(spark, [warm, warm], folder / "tables")
            yield spark
        finally:
            spark.stop()


def _bind(pid: int, core: int) -> None:
    """Bind a process and the processes that it will start to one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def _read(spark: Any, ensembles: Sequence[Path]) -> float:
    rows = spark.read.format("zkconsumer-history").load(",".join(map(str, ensembles)))
    began = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def _pipeline(spark: Any, ensembles: Sequence[Path], output: Path) -> float:
    given = {f"ensemble-{number}": [str(one)] for number, one in enumerate(ensembles)}
    expected = _rows(ensembles[0])
    began = time.perf_counter()
    ended = history_pipeline.run(spark, given, output)
    taken = time.perf_counter() - began
    shutil.rmtree(output)
    assert {one.transactions for one in ended} == {expected}, "rows are missing"
    return taken


QUERIES = ("transactions", _records.ALL)


# ---- measurement --------------------------------------------------------------------------------


def _sizes(
    spark: Any, folder: Path, first: Path, gigabytes: Sequence[int]
) -> dict[str, dict[str, float]]:
    """Return the seconds of each query for each number of GB."""
    taken: dict[str, dict[str, float]] = {query: {} for query in QUERIES}
    ensembles = [first]
    for size in sorted(gigabytes):
        for number in range(len(ensembles), size):
            ensembles.append(folder / f"ensemble-{number}")
            _copy_ensemble(first, ensembles[number], number)
        given = ensembles[:size]
        seconds = _read(spark, given), _pipeline(spark, given, folder / "tables")
        for query, value in zip(QUERIES, seconds, strict=True):
            taken[query][str(size)] = round(value, 1)
            _say(f"{size} GB, {query}: {value:.1f} s")
    return taken


def measure(folder: Path, write: WriteLogs, arguments: argparse.Namespace) -> list[Result]:
    """Write the logs, measure, print the law, and record it if asked to."""
    began = time.monotonic()
    first, warm = folder / "ensemble-0", folder / "warm"
    _say("writing the first ensemble")
    write(first, logs=LOGS, size=LOG_BYTES)
    write(warm, logs=2 * EXECUTORS, size=8 << 20)
    median: dict[int, float] = {}
    for executors in (1, EXECUTORS):
        with _session(folder, executors, warm) as spark:
            seconds = [_read(spark, [first]) for _ in range(min(3, arguments.rounds))]
            median[executors] = statistics.median(seconds)
            _say(f"1 GB, transactions, executors: {executors}: {median[executors]:.1f} s")
            if executors == EXECUTORS:
                taken = _sizes(spark, folder, first, arguments.gigabytes)
    efficiency = median[1] / (EXECUTORS * median[EXECUTORS])
    results = [
        without_goal("spark 1GB", "seconds", median[EXECUTORS], "s"),
        at_least("spark 1GB", "efficiency", efficiency, "", 0.8),
    ]
    results += [
        without_goal(f"spark {size}GB", f"{query}, seconds", seconds, "s")
        for query, found in taken.items()
        for size, seconds in found.items()
    ]
    counts = {"executors": EXECUTORS, "efficiency": round(efficiency, 3), "seconds": taken}
    _say(_records.scale_text(counts))
    if arguments.record:
        _records.write("scale", seconds=time.monotonic() - began, counts=counts)
    return results


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the case `spark`."""
    group = parser.add_argument_group("spark")
    group.add_argument(
        "--gigabytes",
        type=int,
        nargs="+",
        default=[2],
        help="sizes of the logs; the temporary directory needs 1.3 times the largest",
    )
