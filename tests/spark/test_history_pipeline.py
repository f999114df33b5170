"""The pipeline `spark.history_pipeline`: growing files, late files, copies, killed runs."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.history.simulated import simulated
from support.zk.history_logs import LogWriter, created

from zkconsumer.errors import BadFileError, ConfigError, HistoryError
from zkconsumer.history import transactions as tx
from zkconsumer.history.describe import Description
from zkconsumer.history.inputs import History, find_servers, zxid_of
from zkconsumer.history.logs import LogReader, LogSource, RowBatch
from zkconsumer.history.offsets import Choice, Point, Written, read_past
from zkconsumer.history.saved_tables import SavedTransactions
from zkconsumer.history.tables import TABLES, as_dict, columns_of, transaction
from zkconsumer.spark import history_pipeline
from zkconsumer.spark.history import MOMENTS, column_name
from zkconsumer.spark.history_pipeline import RunResult, Task, commit, manifest_of, remove_invalid

Rows = Counter[str]
SEEDS = (1, 2, 7)
INCIDENT = Path(__file__).parents[1] / "golden" / "history" / "incident.tar.gz"


class Killed(BaseException):
    """Raised at the point where a kill would end the process."""


def update(folder: Path, logs: Path) -> RunResult:
    """Run the pipeline once for one ensemble, without Spark, as `run` does."""
    remove_invalid(folder, manifest_of(folder))
    manifest, ended = Task(folder, [str(logs)], []).run()
    commit(folder, json.dumps(asdict(manifest)))
    return ended


def texts(table: str, rows: list[dict[str, Any]]) -> Rows:
    """Return rows as texts without the file name, which may be that of any server."""
    return Counter(json.dumps({**row, "file": ""}, default=repr, sort_keys=True) for row in rows)


def written(folder: Path, table: str) -> Rows:
    """Return the rows of a table that are valid now."""
    known = manifest_of(folder)
    names = [one.transactions for one in known.runs]
    names = names if table == "transactions" else [known.tables[table]]
    rows = []
    for name in filter(None, names):
        for row in pq.read_table(folder / name).to_pylist():
            found = {}
            for column in columns_of(TABLES[table]):
                value = row[column_name(column)]
                if column in MOMENTS and value is not None:
                    value = round(value.timestamp() * 1000)
                found[column] = dict(value) if column == "refused" else value
            rows.append(found)
    return texts(table, rows)


def expected(logs: Path, table: str) -> Rows:
    """Return the rows that a table has if all files are read at once."""
    if table == "transactions":
        batches = History(find_servers([logs])).batches()
        rows = [as_dict(transaction(row, "")) for batch in batches for row in batch.rows]
        return texts(table, rows)
    description = Description(find_servers([logs]))
    description.read()
    return texts(table, [as_dict(row) for row in getattr(description.result().tables, table)])


def check(folder: Path, logs: Path, *, but: tuple[str, ...] = ()) -> None:
    """Check that all tables equal a reading of all files at once, except these incidents."""
    for table in TABLES:
        found, wanted = written(folder, table), expected(logs, table)
        different = (found - wanted) + (wanted - found)
        assert [one for one in different if json.loads(one).get("kind") not in but] == [], table


def pieces(log: LogWriter, chance: random.Random, parts: int) -> list[tuple[str, bytes]]:
    """Split a log into several files, each named after its first transaction."""
    cuts = sorted(chance.sample(range(1, len(log.entries)), parts - 1))
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(log.entries)], strict=True):
        part = LogWriter(entries=log.entries[begin:end])
        zxid = int.from_bytes(part.entries[0][24:32], "big")
        found.append((f"log.{zxid:x}", part.content()))
    return found


def put(folder: Path, name: str, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


@pytest.fixture
def log() -> LogWriter:
    return simulated(3)[0].log


@pytest.mark.parametrize("seed", SEEDS)
def test_any_order_of_files_and_kills(seed: int, tmp_path: Path) -> None:
    """With files in any order, incomplete files, and kills, each row is written once."""
    chance = random.Random(seed)
    log = simulated(seed)[0].log
    out, logs = tmp_path / "out" / "prod", tmp_path / "logs"
    for server in ("one", "two"):
        for name, content in pieces(log, chance, 4):
            (logs / server).mkdir(parents=True, exist_ok=True)
            (logs / server / f"{name}.coming").write_bytes(content)
    coming = sorted(logs.glob("*/*.coming"))
    chance.shuffle(coming)
    for file in coming:
        content = file.read_bytes()
        file.unlink()
        if chance.random() < 0.3:  # The server is still writing this file.
            put(file.parent, file.stem, content[: chance.randrange(16, len(content))])
            update(out, logs)
        put(file.parent, file.stem, content)
        if chance.random() < 0.5:  # This run is killed before its commit.
            Task(out, [str(logs)], []).run()
        update(out, logs)
    # For these kinds it matters which server lacked transactions when a run read its files.
    check(out, logs, but=("missing", "disagreement"))
    assert update(out, logs).transactions == 0


STEPS: dict[str, tuple[object, str]] = {
    "transactions": (Task, "_read"),
    "state": (Task, "_write"),
    "tables": (Task, "_tables"),
    "commit": (history_pipeline, "commit"),
    "rename": (Path, "replace"),
}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_each_step(
    step: str, after: bool, log: LogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill before or after any step, the next run neither loses nor repeats a row."""
    out, logs = tmp_path / "out", tmp_path / "logs"
    (name, first), (other, second) = pieces(log, random.Random(1), 2)
    put(logs, name, first)
    update(out, logs)
    put(logs, other, second)
    owner, method = STEPS[step]
    original: Callable[..., object] = getattr(owner, method)

    def killed(*given: Any, **named: Any) -> None:
        if after:
            original(*given, **named)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, method, killed)
        remove_invalid(out, manifest_of(out))
        manifest, _ = Task(out, [str(logs)], []).run()
        history_pipeline.commit(out, json.dumps(asdict(manifest)))
    is_done = after and step in ("commit", "rename")
    assert manifest_of(out).number == (2 if is_done else 1)
    assert bool(update(out, logs).transactions) != is_done
    check(out, logs)


def test_a_first_run_reads_each_log_once(
    log: LogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first run reads the transactions of each log once; the next one reads what is new."""
    out, logs = tmp_path / "out", tmp_path / "logs"
    for name, content in pieces(log, random.Random(1), 3):
        put(logs, name, content)
    read = Counter[str]()
    original = LogReader.batches

    def counted(reader: LogReader) -> Iterator[RowBatch]:
        read[reader.source.name] += 1
        return original(reader)

    monkeypatch.setattr(LogReader, "batches", counted)
    assert update(out, logs).transactions
    assert read == {str(file): 1 for file in logs.iterdir()}
    assert manifest_of(out).scanned == {str(file): file.stat().st_size for file in logs.iterdir()}
    assert update(out, logs).number == 1


def test_a_first_run_with_a_log_before_the_state(tmp_path: Path) -> None:
    """A log that precedes the state at the beginning is known, and does not count as late."""
    with tarfile.open(INCIDENT) as archive:
        archive.extractall(tmp_path, filter="data")
    out, logs = tmp_path / "out", tmp_path / "zookeeper-2"
    for name in ("snapshot.0", "snapshot.100000065"):
        (logs / name).unlink()
    assert update(out, logs).transactions
    assert set(manifest_of(out).scanned) == {str(log) for log in logs.glob("log.*")}
    assert update(out, logs) == RunResult("out", 1, 0, 0)


def test_a_first_run_without_a_readable_log(
    log: LogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a log cannot be read, the first run fails, and the next one reads it."""
    out, logs = tmp_path / "out", tmp_path / "logs"
    put(logs, "log.1", log.content())

    def refused(source: LogSource) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch, pytest.raises(HistoryError, match="Permission denied"):
        patch.setattr(LogSource, "open", refused)
        update(out, logs)
    assert update(out, logs).number == 1
    check(out, logs)


def test_a_late_file(log: LogWriter, tmp_path: Path) -> None:
    """A file that arrives late replaces only the results of the runs after it."""
    out, logs = tmp_path / "out", tmp_path / "logs"
    first, late, *rest = pieces(log, random.Random(1), 4)
    for file in (first, *rest):
        put(logs, *file)
        update(out, logs)
    put(logs, *late)
    assert update(out, logs).replaced_runs == len(rest)
    check(out, logs)


def test_a_compressed_log_is_not_late(log: LogWriter, tmp_path: Path) -> None:
    """A log that is compressed is the same log, and each run reads only what is new."""
    out, logs = tmp_path / "out", tmp_path / "logs"
    first, second, (newest, content) = pieces(log, random.Random(1), 3)
    put(logs, *first)
    put(logs, *second)
    newer = LogWriter(entries=log.entries[-3:])
    rest = content[: -sum(map(len, newer.entries))]
    put(logs, newest, rest)
    update(out, logs)
    (logs / first[0]).unlink()
    put(logs, f"{first[0]}.gz", gzip.compress(first[1]))
    for entry in newer.entries:
        rest += entry
        put(logs, newest, rest)
        ended = update(out, logs)
        assert (ended.transactions, ended.replaced_runs) == (1, 0)
    check(out, logs)


def test_an_older_log_of_another_server_is_not_late(log: LogWriter, tmp_path: Path) -> None:
    """Between an older log and what a newer one has got, the server has logs that are known."""
    out, logs = tmp_path / "out", tmp_path / "logs"
    first, second, (newest, content) = pieces(log, random.Random(1), 3)
    for server in ("a", "b"):
        put(logs / server, *second)
        put(logs / server, newest, content[: -len(log.entries[-1])])
    put(logs / "a", *first)
    update(out, logs)
    put(logs / "b", *first)
    for server in ("a", "b"):
        put(logs / server, newest, content)
    ended = update(out, logs)
    assert (ended.transactions, ended.replaced_runs) == (1, 0)
    check(out, logs)


def test_a_late_file_that_contradicts(log: LogWriter, tmp_path: Path) -> None:
    """A late file with other transactions for known zxids is an incident; no row is dropped."""
    logs = tmp_path / "logs"
    logs.mkdir()
    put(logs, "log.1", log.content())
    update(tmp_path / "out", logs)
    second = [row for batch in History(find_servers([logs])).batches() for row in batch.rows][1]
    other = LogWriter(zxid=second.zxid - 1, time_ms=second.time_ms)
    other.add(tx.CREATE, created("/other"))
    put(logs, f"log.{second.zxid:x}", other.content())
    update(tmp_path / "out", logs)
    check(tmp_path / "out", logs)
    rows = [json.loads(row) for row in written(tmp_path / "out", "incidents").elements()]
    assert ("contradiction", second.zxid) in {(row["kind"], row["zxid"]) for row in rows}
    rows = [json.loads(row) for row in written(tmp_path / "out", "transactions").elements()]
    assert "/other" in {row["path"] for row in rows}


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_late_file_after_its_logs_were_deleted(
    log: LogWriter, tmp_path: Path, missing: int
) -> None:
    """If logs that must be read again were deleted, the run says so, and changes nothing."""
    out, logs = tmp_path / "out", tmp_path / "logs"
    *some, last = pieces(log, random.Random(1), 4)
    late = some.pop(0 if missing else 1)
    for file in (*some, last):
        put(logs, *file)
    update(out, logs)
    before = {table: written(out, table) for table in TABLES}
    (logs / (*some, last)[missing][0]).unlink()
    put(logs, *late)
    with pytest.raises(HistoryError, match="restore the older logs, or remove the late file"):
        update(out, logs)
    assert {table: written(out, table) for table in TABLES} == before


def test_a_late_file_that_shows_a_deposed_leader(tmp_path: Path) -> None:
    """Late files of other servers may show that a transaction was never committed."""
    out, logs = tmp_path / "out", tmp_path / "logs"
    log = LogWriter()
    for _ in range(3):
        log.add(tx.CREATE, created("/one"))
    lost = log.entries.pop()
    log.zxid = 1 << 32
    log.add(tx.CREATE, created("/two"))
    common = log.content()
    log.entries.insert(2, lost)
    put(logs / "a", "log.1", log.content())
    update(out, logs)
    for name in ("b", "c"):
        put(logs / name, "log.1", common)
    assert update(out, logs).replaced_runs == 1
    check(out, logs)


@pytest.mark.parametrize("at", [0.3, 0.9])
def test_offsets_from_the_tables(incident: tuple[Path, Path], at: float) -> None:
    """The tables show the same offsets at a moment as the logs, apart from the rights."""
    logs, output = incident
    servers = find_servers([logs])
    history = History(servers)
    times = [row.time_ms for batch in history.batches() for row in batch.rows]
    point = Point(Choice.TIME, round(times[0] + at * (times[-1] - times[0])))
    of_logs, of_tables = read_past(servers, point), read_past(SavedTransactions(output), point)
    assert (of_tables.zxid, of_tables.time_ms) == (of_logs.zxid, of_logs.time_ms)
    assert of_tables.created == of_logs.created
    assert of_tables.lifetimes == of_logs.lifetimes
    assert of_tables.offsets == {
        group: {tp: one._replace(acl=None) for tp, one in of.items() if isinstance(one, Written)}
        for group, of in of_logs.offsets.items()
    }
    edit = Point(Choice.SESSION, 0x20001644E490000)  # it wrote no offset, in both
    for source in (servers, SavedTransactions(output)):
        with pytest.raises(ConfigError, match="wrote no offset"):
            read_past(source, edit)


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The logs of a real incident, and the output of two runs of the pipeline."""
    folder = tmp_path_factory.mktemp("incident")
    logs, output = folder / "logs", folder / "output"
    with tarfile.open(INCIDENT) as archive:
        archive.extractall(folder / "all", filter="data")
    files = sorted(find_servers([folder / "all"])[0].logs, key=zxid_of)
    logs.mkdir()
    for some in (files[:1], files[1:]):
        for file in some:
            shutil.copy(file.name, logs)
        update(output / "prod", logs)
    return logs, output


def test_tables_that_cannot_be_read(tmp_path: Path) -> None:
    """A directory without tables, one with several ensembles, and a damaged file are errors."""
    with pytest.raises(BadFileError, match="the directory has no tables"):
        SavedTransactions(tmp_path)
    log = LogWriter()
    log.add(tx.CREATE, created("/a"))
    log.write(tmp_path / "logs")
    for name in ("prod", "test"):
        update(tmp_path / "out" / name, tmp_path / "logs")
    with pytest.raises(BadFileError, match="the tables of 2 ensembles") as raised:
        SavedTransactions(tmp_path / "out")
    assert str(tmp_path / "out" / "prod") in raised.value.remedy
    tables = SavedTransactions(tmp_path / "out" / "prod")
    (file,) = (tmp_path / "out" / "prod").glob("transactions-*")
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(BadFileError, match="the table cannot be read"):
        list(tables.batches())
    file.unlink()
    with pytest.raises(BadFileError, match="the table cannot be read"):
        list(tables.batches())


def test_on_spark(spark: SparkSession, log: LogWriter, tmp_path: Path) -> None:
    """Spark tasks update two ensembles, whose tables can be read as DataFrames."""
    out = tmp_path / "out"
    (name, first), (other, second) = pieces(log, random.Random(1), 2)
    ensembles = {one: [str(tmp_path / one)] for one in ("east", "west")}
    for one in ensembles:
        put(tmp_path / one / "a", name, first)
    assert [one.number for one in history_pipeline.run(spark, ensembles, out)] == [1, 1]
    put(tmp_path / "west" / "a", other, second)
    found = history_pipeline.run(spark, ensembles, out)
    assert [(one.ensemble, one.number) for one in found] == [("east", 1), ("west", 2)]
    for one in ensembles:
        check(out / one, tmp_path / one)
    rows = history_pipeline.read(spark, out, "members").where("ensemble = 'west'")
    assert rows.count() == sum(written(out / "west", "members").values()) > 0
    with pytest.raises(ConfigError, match="another groups"):
        history_pipeline.run(spark, ensembles, out, groups=["other"])
