"""`zkconsumer consume --to`: files of a real topic, and what a killed export leaves."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from cli.conftest import RUN_LIMIT_S, Run, Spawn
from cli.test_consume import committed
from pyarrow import ipc, parquet
from support.kafka.logs import ABORTED, COMMITTED, transact
from support.wait import LIMIT_S, eventually

from zkconsumer.cli.export import COLUMNS, Directory, runs_of
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox

PARTITIONS = 3


@pytest.fixture
def export(sandbox: Sandbox, topic: str, tmp_path: Path) -> tuple[str, ...]:
    """Return the arguments of an export into `tmp_path

    "out"`.
    """
    connect = ("--zookeeper", sandbox.zookeeper_connect, "--group", topic, "--topic", topic)
    return ("consume", *connect, "--from-beginning", "--to", str(tmp_path / "out"))


def rest(sandbox: Sandbox, topic: str, messages: int) -> tuple[str, str]:
    """Run the export until it has written all messages that the group has not committed."""
    return "--max-messages", str(messages - committed(sandbox, topic))


def complete(tmp_path: Path) -> list[Path]:
    """Return the complete files, which are the only ones that readers open."""
    return sorted(one for one in (tmp_path / "out").glob("*") if not one.name.startswith("."))


def rows_of(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".parquet":
        table = parquet.read_table(path)
    elif path.suffix == ".arrow":
        table = ipc.open_file(path).read_all()
    else:
        return [json.loads(line) for line in path.read_text().splitlines()]
    assert tuple(table.schema.names) == COLUMNS
    rows: list[dict[str, object]] = table.to_pylist()
    return rows


def read(tmp_path: Path) -> Counter[tuple[int, int]]:
    """Return how many times each (partition, offset) occurs in the complete files."""
    found: Counter[tuple[int, int]] = Counter()
    for path in complete(tmp_path):
        rows = rows_of(path)
        (first, last) = (int(one) for one in path.stem.rsplit("-", 1)[1].split(".."))
        assert [rows[0]["offset"], rows[-1]["offset"]] == [first, last], path
        found.update((row["partition"], row["offset"]) for row in rows)  # type: ignore[misc]  # numbers
    return found


def named_twice(err: str) -> Counter[tuple[int, int]]:
    """Return the positions that standard error reports as written twice."""
    found: Counter[tuple[int, int]] = Counter()
    for line in err.splitlines():
        if "written twice: offsets " in line and "perhaps" not in line:
            words = line.split("written twice: offsets ")[1].split()
            partition = int(words[4].rstrip(";").rsplit("-", 1)[1])
            found.update((partition, at) for at in range(int(words[0]), int(words[2]) + 1))
    return found


def test_the_reader_is_compiled_before_the_idle_time(
    sandbox: Sandbox, topic: str, export: tuple[str, ...], tmp_path: Path
) -> None:
    """The time in which a first run compiles the columnar reader does not count as idle time."""
    sandbox.produce(topic, [f"value {one}" for one in range(30)], key="k")
    done = subprocess.run(
        [sys.executable, "-m", "zkconsumer", *export, "--output", "jsonl", "--idle-timeout", "8"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
        timeout=RUN_LIMIT_S,
    )
    assert "loading the columnar reader; the first time on a machine, it is compiled" in done.stderr
    assert "30 messages in" in done.stderr


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_everything_once(
    *, sandbox: Sandbox, topic: str, export: tuple[str, ...], run: Run, tmp_path: Path, kind: str
) -> None:
    """The files contain every message once, with key and value, and the group has committed."""
    sandbox.produce(topic, [f"value {one}" for one in range(900)], key="k")
    code, out, err = run(*export, "--output", kind, "--max-messages", "900")
    assert (code, out) == (0, ""), err
    assert "900 messages in" in err
    found = read(tmp_path)
    assert set(found.values()) == {1}
    assert len(found) == 900 == committed(sandbox, topic)
    row = rows_of(complete(tmp_path)[0])[0]
    expected = "k" if kind == "jsonl" else b"k"
    assert (row["topic"], row["key"]) == (topic, expected)


def test_the_position_after_a_marker_is_committed(
    spawn: Spawn, export: tuple[str, ...], sandbox: Sandbox, topic: str, tmp_path: Path
) -> None:
    """The log ends with the marker of a transaction; after the export the group has no lag."""
    for partition, end in ((0, COMMITTED), (1, ABORTED)):
        transact(sandbox, topic, end, partition=partition)
        process = spawn(*export, "-o", "jsonl", "--file-seconds", "1")
        after_marker = 6 * (partition + 1)
        eventually(lambda after_marker=after_marker: committed(sandbox, topic) == after_marker)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=LIMIT_S) == 0
        assert committed(sandbox, topic) == after_marker
    assert sum(len(rows_of(path)) for path in complete(tmp_path)) == 10


def test_files_roll(
    sandbox: Sandbox, topic: str, export: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    """A file is complete at its maximum size, and the next file begins at the next offset."""
    sandbox.produce(topic, [os.urandom(100_000) for _ in range(60)], partition=0)
    code, _, err = run(*export, "-o", "arrow", "--file-mb", "1", "--max-messages", "60")
    assert code == 0, err
    assert len(complete(tmp_path)) >= 3
    assert read(tmp_path) == Counter((0, one) for one in range(60))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal(
    *,
    sandbox: Sandbox,
    topic: str,
    export: tuple[str, ...],
    spawn: Spawn,
    tmp_path: Path,
    number: int,
    code: int,
) -> None:
    """Ctrl-C and SIGTERM complete the open files and commit their messages."""
    sandbox.produce(topic, 300)
    process = spawn(*export, "-o", "parquet")
    eventually(lambda: list((tmp_path / "out").glob(".*.open")))
    process.send_signal(number)
    assert process.wait(timeout=LIMIT_S) == code
    found = read(tmp_path)
    assert set(found.values()) == {1}
    assert len(found) == committed(sandbox, topic)
    assert not list((tmp_path / "out").glob(".*"))


# Kills the process by SIGKILL at a given step of the first file that it completes.
KILLED = """
import os, signal, sys
from zkconsumer.cli import export, main
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
moment = sys.argv.pop(1)
if moment == "before the file is synced":
    export._OpenFile.complete = die
elif moment == "before the directory is synced":
    export.Directory.sync = die
elif moment == "before the commit":
    export.Export._commit = die
else:
    commit = export.Export._commit
    def after(*given):
        commit(*given)
        die()
    export.Export._commit = after
main()
"""


@pytest.mark.parametrize(
    "moment",
    [
        "before the file is synced",
        "before the directory is synced",
        "before the commit",
        "after the commit",
    ],
)
def test_killed(
    *, sandbox: Sandbox, topic: str, export: tuple[str, ...], run: Run, tmp_path: Path, moment: str
) -> None:
    """SIGKILL at any step loses no message; the next run names messages written twice."""
    sandbox.produce(topic, 600)
    shown = ("-o", "parquet", "--file-seconds", "0.5")
    command = [sys.executable, "-c", KILLED, moment, *export, *shown]
    assert subprocess.run(command, timeout=RUN_LIMIT_S, check=False).returncode == -signal.SIGKILL
    before = read(tmp_path)
    sandbox.produce(topic, 30)
    code, _, err = run(*export, *shown, *rest(sandbox, topic, 630))
    assert code == 0, err
    found = read(tmp_path)
    assert len(found) == 630 == committed(sandbox, topic)
    twice = Counter({place: count - 1 for place, count in found.items() if count > 1})
    # A file of the second run has replaced the first run's file of the same name.
    assert twice <= named_twice(err) <= before
    assert bool(named_twice(err)) is (
        moment in {"before the directory is synced", "before the commit"}
    )
    assert not list((tmp_path / "out").glob(".*"))


def test_killed_while_it_writes(
    *, sandbox: Sandbox, topic: str, export: tuple[str, ...], spawn: Spawn, run: Run, tmp_path: Path
) -> None:
    """An export that is killed several times at any moment loses no message."""
    shown = ("-o", "parquet", "--file-seconds", "0.1")
    named: Counter[tuple[int, int]] = Counter()
    for number in range(1, PARTITIONS + 1):
        # Each partition gets messages, and so a file. Without a key, a producer may choose one.
        for partition in range(PARTITIONS):
            sandbox.produce(topic, 70, partition=partition)
        process = spawn(*export, *shown)
        seen = len(complete(tmp_path))
        eventually(lambda seen=seen, number=number: len(complete(tmp_path)) >= seen + number)
        process.kill()
        named += named_twice(process.communicate()[1].decode())
    sandbox.produce(topic, 30)
    code, _, err = run(*export, *shown, *rest(sandbox, topic, 660))
    assert code == 0, err
    found = read(tmp_path)
    assert len(found) == 660 == committed(sandbox, topic)
    assert {place for place, count in found.items() if count > 1} <= set(named + named_twice(err))


def test_a_member_joins(
    *, sandbox: Sandbox, topic: str, export: tuple[str, ...], spawn: Spawn, tmp_path: Path
) -> None:
    """Before a rebalance the export completes and commits its files, so nothing is repeated."""
    for partition in range(PARTITIONS):  # each gets a file
        sandbox.produce(topic, 100, partition=partition)
    first = spawn(*export, "-o", "jsonl", "--file-seconds", "600")
    eventually(lambda: len(list((tmp_path / "out").glob(".*.open"))) == PARTITIONS)
    second = spawn(*export, "-o", "jsonl", "--file-seconds", "600")
    # The first member releases at least one partition to the second member.
    eventually(lambda: complete(tmp_path))
    for partition in range(PARTITIONS):  # each gets a file
        sandbox.produce(topic, 100, partition=partition)
    eventually(lambda: len(list((tmp_path / "out").glob(".*.open"))) == PARTITIONS)
    for one in (first, second):
        one.send_signal(signal.SIGINT)
        assert one.wait(timeout=LIMIT_S) == 130
    found = read(tmp_path)
    assert set(found.values()) == {1}
    assert len(found) == committed(sandbox, topic)


# ---- without servers -----------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    one = Directory(tmp_path / "new" / "out")
    yield one
    one.close()


def test_files_are_found_by_their_names(directory: Directory) -> None:
    """A file overlaps if its last offset is not below the position; other files are ignored."""
    names = ("a-b-1-0000..0009.parquet", "a-b-1-0010..0019.arrow", "a-b-11-0010..0019.jsonl")
    for name in (*names, "notes.txt", ".a-b-1-20.7.parquet.open"):
        (directory.path / name).touch()
    tp = TopicPartition("a-b", 1)
    assert [one.path.name for one in directory.overlapping(tp, 9)] == list(names[:2])
    assert [one.path.name for one in directory.overlapping(tp, 10)] == [names[1]]
    assert directory.overlapping(tp, 20) == []


def test_only_abandoned_files_are_removed(directory: Directory) -> None:
    """A hidden file is not removed if a live process has locked it."""
    mine, abandoned = (directory.path / f".t-0-{one}.parquet.open" for one in (1, 2))
    abandoned.touch()
    with mine.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert directory.remove_incomplete() == [abandoned]
        assert mine.exists()
    assert directory.remove_incomplete() == [mine]


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    """If the output directory is a file, the command gives one clear error."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="the directory cannot be used"):
        Directory(tmp_path / "file")


def test_a_batch_is_split_into_runs() -> None:
    """Each run of messages has one partition of one topic, under one fencing token."""
    places = [("a", 0, 1), ("a", 0, 1), ("a", 1, 1), ("b", 1, 1), ("b", 1, 2)]
    columns = zip(*places, strict=True)
    batch = pa.RecordBatch.from_arrays(
        list(map(pa.array, columns)), ["topic", "partition", "token"]
    )
    assert [one.num_rows for one in runs_of(batch)] == [2, 1, 1, 1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("-o", "parquet"), "parquet is not written to standard output"),
        (("--to", "out"), "raw values are not written to files"),
    ],
)
def test_formats_and_destinations(call: Run, given: tuple[str, ...], said: str) -> None:
    """If a format does not fit its destination, there is one clear error with code 2."""
    code, _, err = call("consume", "-t", "t", "-z", "h:1", "-g", "g", *given)
    assert code == 2
    assert said in err
