"""The files of servers are found, and several logs and servers are read as one history."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
from support.zk.history_logs import HEADER, LogWriter, created, number, sized, transaction

from zkconsumer.errors import BadFileError, HistoryError
from zkconsumer.history import inputs
from zkconsumer.history import transactions as tx
from zkconsumer.history.inputs import History, Server, find_servers
from zkconsumer.history.logs import COMPRESSIONS
from zkconsumer.history.transactions import Row


def entry(zxid: int, name: str = "") -> bytes:
    return transaction(zxid, tx.CREATE, created(f"/{name or zxid}"), time_ms=zxid)


def server(directory: Path, logs: dict[int, Sequence[bytes]]) -> Path:
    """Write the logs of a server, given as a map from first zxid to transactions."""
    folder = directory / "version-2"
    folder.mkdir(parents=True)
    for first, entries in logs.items():
        (folder / f"log.{first:x}").write_bytes(HEADER + b"".join(entries))
    return directory


def read(*directories: Path | str, after: int = 0) -> tuple[list[Row], History]:
    history = History(find_servers(directories), after=after)
    return [row for batch in history.batches() for row in batch.rows], history


def zxids(rows: list[Row]) -> list[int]:
    return [row.zxid for row in rows]


# ---- finding ------------------------------------------------------------------------------------


def test_a_data_directory_and_a_log_directory(tmp_path: Path) -> None:
    """Logs and snapshots in two directories belong to one server."""
    logs = server(tmp_path / "logs", {1: [entry(1)]})
    snapshots = tmp_path / "data" / "version-2"
    snapshots.mkdir(parents=True)
    (snapshots / "snapshot.0").write_bytes(b"")
    (one,) = find_servers([logs, tmp_path / "data"])
    assert [len(one.logs), len(one.snapshots)] == [1, 1]


def test_other_files_are_left_out(tmp_path: Path) -> None:
    """Only files that have the names of logs or snapshots are read."""
    folder = server(tmp_path, {1: [entry(1)]}) / "version-2"
    for name in ("acceptedEpoch", "log.xyz", "log.1.txt", "snapshot", "log.1.swp"):
        (folder / name).write_text("1")
    (one,) = find_servers([tmp_path])
    assert [log.base for log in one.logs] == ["log.1"]


def test_a_directory_that_vanishes_during_the_search(tmp_path: Path) -> None:
    """A directory that a running server deletes during the search is left out."""
    folder = server(tmp_path, {1: [entry(1)]}) / "version-2"
    (folder / "deleted").mkdir()
    found = inputs.sources_at(str(folder), lambda name: name == "log.1", ("", ""))
    first = next(found)
    (folder / "deleted").rmdir()
    assert [first.base, *found] == ["log.1"]


def test_a_file_that_vanishes_during_the_search(tmp_path: Path) -> None:
    """A file that a running server deletes during the search is left out; a wrong link is not."""
    folder = server(tmp_path, {n: [entry(n)] for n in (1, 2, 3)}) / "version-2"
    found = inputs.sources_at(str(folder), lambda name: name.startswith("log."), ("", ""))
    first = next(found)
    kept, deleted = {"log.1", "log.2", "log.3"} - {first.base}
    (folder / deleted).unlink()
    assert [one.base for one in found] == [kept]
    (folder / deleted).symlink_to(folder / "nowhere")
    with pytest.raises(HistoryError, match="No such file"):
        find_servers([folder])


TAR_MODES = {
    "tar": "w",
    **dict.fromkeys(("tar.gz", "tgz", "taz", "TGZ"), "w:gz"),
    **dict.fromkeys(("tar.bz2", "tbz", "tbz2", "tb2"), "w:bz2"),
    **dict.fromkeys(("tar.xz", "txz", "tar.lzma", "tlz"), "w:xz"),
}


@pytest.mark.parametrize("ending", [*TAR_MODES, "zip"])
def test_an_archive(tmp_path: Path, ending: str) -> None:
    """In a tar or zip archive, compressed or not, each directory is a server."""
    for name in ("a", "b"):
        server(tmp_path / name, {1: [entry(1), entry(2)], 3: [entry(3)]})
    packed = tmp_path / f"all.{ending}"
    if ending == "zip":
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for log in tmp_path.glob("?/version-2/*"):
                archive.write(log, log.relative_to(tmp_path))
    else:
        mode: Any = TAR_MODES[ending]
        with tarfile.open(packed, mode) as tar:
            for name in ("a", "b"):
                tar.add(tmp_path / name, arcname=name)
    assert len(find_servers([packed])) == 2
    rows, history = read(packed)
    assert (zxids(rows), history.problems) == ([1, 2, 3], [])


def test_archives_without_directories(tmp_path: Path) -> None:
    """Each archive is a server, if the files are at the archive's top level."""
    for n in (1, 2):
        folder = server(tmp_path / str(n), {1: [entry(1)]}) / "version-2"
        with tarfile.open(tmp_path / f"zk{n}.tar", "w") as archive:
            archive.add(folder / "log.1", arcname="log.1")
    packed = [str(tmp_path / f"zk{n}.tar") for n in (1, 2)]
    assert [one.name for one in find_servers(packed)] == packed


def test_an_archive_is_unpacked_again_only_if_it_has_changed(tmp_path: Path) -> None:
    """A reading that follows an archive keeps one copy of each file, and reads what is new."""
    folder = server(tmp_path / "a", {1: [entry(1)]}) / "version-2"
    packed, history, found = tmp_path / "all.tar", History([]), list[Path]()
    for zxid in (2, 3):
        with (folder / "log.1").open("ab") as log:
            log.write(entry(zxid))
        with tarfile.open(packed, "w") as archive:
            archive.add(folder, arcname="a")
        for _ in range(2):
            servers = find_servers([packed])
            history.look_again(servers)
            list(history.batches())
            assert history.last_zxid == zxid
            with servers[0].logs[0].open() as copy:
                found.append(Path(copy.name))
    assert found == [found[0], found[0], found[2], found[2]]
    assert [one.exists() for one in found] == [False, False, True, True]


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    """If a file named .tar is not an archive, the error names the file."""
    for name in ("a.tar", "a.txz", "a.zip"):
        file = tmp_path / name
        file.write_bytes(b"no archive" * 100)
        with pytest.raises(HistoryError, match=name):
            find_servers([file])


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_a_compressed_log(tmp_path: Path, ending: str) -> None:
    """A log that was compressed on its own is read, in a directory and in an archive."""
    compress: Any = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[ending]
    folder = server(tmp_path / "a", {1: [entry(1)]}) / "version-2"
    (folder / f"log.2{ending}").write_bytes(compress(HEADER + entry(2)))
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(tmp_path / "a", arcname="a")
    for path in (tmp_path / "a", tmp_path / "all.tar"):
        rows, history = read(path)
        assert (zxids(rows), history.problems) == ([1, 2], [])


def test_nothing_is_found(tmp_path: Path) -> None:
    """If a directory has no logs, the error says which directory to give."""
    with pytest.raises(BadFileError, match="dataDir"):
        find_servers([tmp_path])


# ---- other filesystems --------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """A filesystem of fsspec in the memory of this process: `memory://`."""
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/", recursive=True)


def test_a_url(memory: fsspec.AbstractFileSystem) -> None:
    """A URL is read like a path: a tree of directories, a log, or a compressed log."""
    memory.pipe("/logs/a/version-2/log.1", HEADER + entry(1))
    memory.pipe("/logs/a/version-2/log.2.gz", gzip.compress(HEADER + entry(2)))
    memory.pipe("/logs/a/version-2/acceptedEpoch", b"1")
    for url in ("memory://logs", "memory://logs/a/"):
        rows, history = read(url)
        assert (zxids(rows), history.problems) == ([1, 2], [])
    (one,) = find_servers(["memory://logs/a/version-2/log.1"])
    assert [log.name for log in one.logs] == ["memory://logs/a/version-2/log.1"]
    assert one.name == "memory://logs/a/version-2"


def test_an_archive_at_a_url(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    """A tar archive on another filesystem is unpacked; the names of its logs begin with its URL."""
    server(tmp_path / "a", {1: [entry(1), entry(2)]})
    with memory.open("/all.tar.gz", "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as made:
        made.add(tmp_path / "a", arcname="a")
    rows, history = read("memory://all.tar.gz")
    assert (zxids(rows), history.problems) == ([1, 2], [])
    assert history.servers[0].logs[0].name == "memory://all.tar.gz:a/version-2/log.1"


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("memory://nothing", "the path does not exist (memory://nothing)"),
        ("memory://text", "the name of the file is neither that of a log nor that of a snapshot"),
        ("nosuch://host/logs", "no installed package reads this URL: Protocol not known: nosuch"),
        ("webhdfs://127.0.0.1:1/logs", "Connection refused"),
    ],
)
def test_a_url_that_cannot_be_read(
    memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch, url: str, error: str
) -> None:
    """For a wrong URL, an error of one line names the URL and the fault."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    memory.pipe("/text", b"text")
    with pytest.raises((HistoryError, BadFileError)) as raised:
        find_servers([url])
    assert error in str(raised.value)
    assert url in str(raised.value)
    assert "\n" not in str(raised.value)


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    """If fsspec is missing, the error names the extra to install."""
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(BadFileError, match=r"pip install 'zkconsumer\[hdfs\]'"):
        find_servers(["hdfs://namenode:8020/logs"])


# ---- one server ---------------------------------------------------------------------------------


def test_logs_continue_each_other(tmp_path: Path) -> None:
    """Logs are read in the order of the hexadecimal zxids in their names."""
    logs = {n: [entry(n)] for n in (1, 2, *range(3, 20))}
    rows, history = read(server(tmp_path, logs))
    assert (zxids(rows), history.problems) == (list(range(1, 20)), [])


def test_a_beginning_in_the_middle(tmp_path: Path) -> None:
    """With `after`, rows up to this zxid are left out, even within a log."""
    rows, history = read(server(tmp_path, {1: map(entry, (1, 2)), 3: map(entry, (3, 4))}), after=3)
    assert (zxids(rows), history.problems) == ([4], [])


def test_a_gap_is_named(tmp_path: Path) -> None:
    """If transactions are missing, the problem names the file and their number."""
    rows, history = read(server(tmp_path, {1: [entry(1)], 5: [entry(5)]}))
    (problem,) = history.problems
    assert zxids(rows) == [1, 5]
    assert (problem.kind, problem.zxid) == ("missing", 1)
    assert problem.what == "the file lacks the 3 transactions before 0x5"
    assert problem.where.endswith("log.5")


def test_a_new_epoch_is_no_gap(tmp_path: Path) -> None:
    """A new leader's first transaction may follow any other; if it is missing, there is a gap."""
    first = 2 << 32
    _, history = read(server(tmp_path / "a", {1: [entry(1), entry(first + 1)]}))
    assert history.problems == []
    _, history = read(server(tmp_path / "b", {1: [entry(1), entry(first + 3)]}))
    assert history.problems[0].what == f"the file lacks the 2 transactions before 0x{first + 3:x}"


def test_damage_ends_a_file_and_not_the_history(tmp_path: Path) -> None:
    """After a damaged file the next file is read; both damage and gap are reported."""
    folder = server(tmp_path, {1: map(entry, (1, 2, 3)), 4: [entry(4)]}) / "version-2"
    log = folder / "log.1"
    content = bytearray(log.read_bytes())
    content[16 + len(entry(1)) + 40] ^= 1
    log.write_bytes(content)
    rows, history = read(tmp_path)
    assert zxids(rows) == [1, 4]
    assert [one.kind for one in history.problems] == ["damaged", "missing"]
    assert history.problems[0].where == f"{log}, byte {16 + len(entry(1))}"


def test_a_second_reading_continues(tmp_path: Path) -> None:
    """A later reading returns what was written since the previous reading, even in a new log."""
    folder = server(tmp_path, {1: [entry(1)]}) / "version-2"
    rows, history = read(tmp_path)
    with (folder / "log.1").open("ab") as log:
        log.write(entry(2))
    (folder / "log.3").write_bytes(HEADER + entry(3))
    history.servers = find_servers([tmp_path])
    rows += [row for batch in history.batches() for row in batch.rows]
    assert (zxids(rows), history.problems) == ([1, 2, 3], [])


def test_a_file_that_comes_late(tmp_path: Path) -> None:
    """A new log with older transactions, and an older log that grows, are returned as late."""
    folder = server(tmp_path, {5: [entry(5)], 7: [entry(7)]}) / "version-2"
    _, history = read(tmp_path)
    assert history.look_again(find_servers([tmp_path])) == []
    (folder / "log.1").write_bytes(HEADER + entry(1))
    assert history.look_again(find_servers([tmp_path])) == [str(folder / "log.1")]
    assert history.look_again(find_servers([tmp_path])) == []
    with (folder / "log.5").open("ab") as log:
        log.write(entry(6))
    assert history.look_again(find_servers([tmp_path])) == [str(folder / "log.5")]


def test_no_file_comes_late(tmp_path: Path) -> None:
    """The newest log grows, a newer one begins, and an older one is compressed: none is late."""
    folder = server(tmp_path, {1: [entry(1)], 2: [entry(2)]}) / "version-2"
    _, history = read(tmp_path)
    (folder / "log.1.gz").write_bytes(gzip.compress((folder / "log.1").read_bytes()))
    (folder / "log.1").unlink()
    with (folder / "log.2").open("ab") as log:
        log.write(entry(3))
    (folder / "log.4").write_bytes(HEADER + entry(4))
    assert history.look_again(find_servers([tmp_path])) == []
    assert [row.zxid for batch in history.batches() for row in batch.rows] == [3, 4]


# ---- logs that contradict each other -------------------------------------------------------------

EPOCH = 0x88 << 32


def test_a_log_of_a_later_epoch_among_others(tmp_path: Path) -> None:
    """A log whose name sorts before its place hides no other log, and it is named."""
    logs = {1: [entry(1), entry(2)], 2: [entry(EPOCH + 1)], 3: [entry(3), entry(4)]}
    rows, history = read(server(tmp_path, logs))
    assert zxids(rows) == [1, 2, 3, 4, EPOCH + 1]
    assert {(one.kind, one.where[-5:]) for one in history.problems} == {("contradiction", "log.2")}


def test_overlapping_logs_are_merged(tmp_path: Path) -> None:
    """Transactions that two logs of a server have are returned once, and no other is dropped."""
    all_ = [entry(n) for n in range(1, 21)]
    rows, history = read(server(tmp_path, {1: [*all_[:7], *all_[9:12]], 5: all_[4:]}))
    assert zxids(rows) == list(range(1, 21))
    assert history.problems == []


def test_different_transactions_with_one_zxid_are_all_returned(tmp_path: Path) -> None:
    """Where two logs of one server contradict each other, both transactions stay, and are named."""
    other = [entry(n, f"other-{n}") for n in (2, 3)]
    logs = {1: [entry(1), entry(2), entry(3), entry(4)], 2: other}
    rows, history = read(server(tmp_path, logs))
    assert [row.path for row in rows] == ["/1", "/2", "/other-2", "/3", "/other-3", "/4"]
    (problem,) = history.problems
    assert (problem.kind, problem.zxid) == ("contradiction", 2)
    assert "log.1, " in problem.where
    assert problem.where.endswith("log.2")


def test_a_log_that_goes_back(tmp_path: Path) -> None:
    """If zxids fall within a log, all its rows are returned, and the log is named."""
    rows, history = read(server(tmp_path, {1: [entry(1), entry(5), entry(2), entry(3), entry(6)]}))
    assert sorted(zxids(rows)) == [1, 2, 3, 5, 6]
    assert ("contradiction", 2) in {(one.kind, one.zxid) for one in history.problems}


@pytest.mark.parametrize("is_compiled", [False, True], ids=["plain", "compiled"])
def test_a_file_that_is_given_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_compiled: bool
) -> None:
    """A log that two paths or two copies contain is read once, by either decoder."""
    if is_compiled:
        monkeypatch.setattr(inputs, "FAST_FROM", 0)
    all_ = [entry(n) for n in range(1, 6)]
    folder = server(tmp_path, {1: all_}) / "version-2"
    (folder / "log.1.gz").write_bytes(gzip.compress(HEADER + b"".join(all_)))
    rows, history = read(tmp_path, folder)
    assert (zxids(rows), history.problems) == ([1, 2, 3, 4, 5], [])


def test_a_continued_reading_knows_overlapping_logs(tmp_path: Path) -> None:
    """A history that continues another one reads an older log that reaches beyond a later one."""
    folder = server(tmp_path, {1: map(entry, range(1, 9)), 4: map(entry, (4, 5))}) / "version-2"
    _, history = read(tmp_path)
    with (folder / "log.1").open("ab") as log:
        log.write(entry(9))
    following = History(find_servers([tmp_path]), after=8, overlapping=history.overlapping)
    assert [row.zxid for batch in following.batches() for row in batch.rows] == [9]


def test_a_torn_and_an_empty_log_between_others(tmp_path: Path) -> None:
    """A log that ends within a transaction, or has none, is named unless it is the newest."""
    folder = server(tmp_path, {1: [entry(1)], 2: [], 3: [entry(2)]}) / "version-2"
    with (folder / "log.1").open("ab") as log:
        log.write(entry(2)[:20])
    (folder / "log.4").write_bytes(HEADER + entry(3)[:20])
    rows, history = read(tmp_path)
    assert zxids(rows) == [1, 2]
    named = [(one.kind, one.where.rpartition("/")[2]) for one in history.problems]
    assert named == [("torn", "log.1"), ("empty", "log.2")]


# ---- ensembles ----------------------------------------------------------------------------------


def ensemble(tmp_path: Path, *servers: Sequence[bytes]) -> list[Path]:
    return [server(tmp_path / f"s{n}", {1: entries}) for n, entries in enumerate(servers)]


def test_servers_are_merged(tmp_path: Path) -> None:
    """Each transaction of an ensemble is returned once, even if some servers lag."""
    all_ = [entry(n) for n in range(1, 9)]
    rows, history = read(*ensemble(tmp_path, all_, all_[:5], all_[3:]))
    assert (zxids(rows), history.problems) == (list(range(1, 9)), [])


def test_a_gap_of_one_server_is_filled(tmp_path: Path) -> None:
    """If servers lack transactions, they are read from another one, and the servers are named."""
    all_ = [entry(n) for n in range(1, 9)]
    rows, history = read(*ensemble(tmp_path, all_, [*all_[:3], *all_[5:]], [*all_[:2], *all_[6:]]))
    assert zxids(rows) == list(range(1, 9))
    assert {one.kind for one in history.problems} == {"missing"}
    assert [Path(one.where).parents[1].name for one in history.problems] == ["s1", "s2"]


def test_transactions_of_a_deposed_leader_are_left_out(tmp_path: Path) -> None:
    """A transaction that only a deposed leader wrote is left out, and is reported."""
    epoch = 1 << 32
    common = [entry(1), entry(2)]
    later = [entry(epoch + 1), entry(epoch + 2)]
    rows, history = read(
        *ensemble(tmp_path, [*common, entry(3, "lost"), *later], common + later, common + later)
    )
    assert zxids(rows) == [1, 2, epoch + 1, epoch + 2]
    (problem,) = history.problems
    assert (problem.kind, problem.zxid) == ("disagreement", 3)
    assert "left out" in problem.what


def test_a_continued_reading_leaves_out_transactions_of_a_deposed_leader(tmp_path: Path) -> None:
    """A deposed leader's transaction is left out even if it is the first one of a later reading."""
    epoch = 1 << 32
    common, later = [entry(1), entry(2)], [entry(epoch + 1)]
    rows, history = read(
        *ensemble(tmp_path, [*common, entry(3, "lost"), *later], common + later, common + later),
        after=2,
    )
    assert zxids(rows) == [epoch + 1]
    (problem,) = history.problems
    assert (problem.kind, problem.zxid) == ("disagreement", 3)


def test_rows_name_the_file_that_contains_them(tmp_path: Path) -> None:
    """Rows that a server lacks name the file of a server that has them."""
    all_ = [entry(n) for n in range(1, 10)]
    a = server(tmp_path / "a", {1: all_[:2], 9: all_[8:]})
    b = server(tmp_path / "b", {1: [all_[0], all_[2]], 4: all_[3:]})
    found = [
        (zxid, str(Path(batch.file).relative_to(tmp_path)).replace("/version-2", ""))
        for batch in History(find_servers([a, b])).batches()
        for zxid in batch.zxids
    ]
    later = [(n, "b/log.4") for n in range(4, 9)]
    assert found == [(1, "a/log.1"), (2, "a/log.1"), (3, "b/log.1"), *later, (9, "a/log.9")]


@pytest.mark.parametrize("whole", [0, 1])
def test_damage_is_reported_once(tmp_path: Path, whole: int) -> None:
    """A damaged log that is read again is the same problem, even if another server continues."""
    damaged = bytearray(entry(whole + 1))
    damaged[40] ^= 1
    broken = [*map(entry, range(1, whole + 1)), bytes(damaged), entry(whole + 2)]
    a, b = ensemble(tmp_path, [entry(1)], broken)
    _, history = read(a, b)
    for zxid in (2, 3):
        with (a / "version-2" / "log.1").open("ab") as log:
            log.write(entry(zxid))
        assert [row.zxid for batch in history.batches() for row in batch.rows] == [zxid]
    assert {(one.kind, one.zxid) for one in history.problems} == {("damaged", whole)}


def test_different_contents(tmp_path: Path) -> None:
    """If servers have different transactions with one zxid, the majority's is returned."""
    all_ = [entry(1), entry(2), entry(3)]
    other = [entry(1), entry(2, "other"), entry(3)]
    rows, history = read(*ensemble(tmp_path, other, all_, all_))
    assert [row.path for row in rows] == ["/1", "/2", "/3"]
    (problem,) = history.problems
    assert "different" in problem.what


def test_a_multi_stays_whole(tmp_path: Path) -> None:
    """If two servers wrote a multi, each part is returned once, and in order."""
    log = LogWriter()
    log.add(tx.CREATE, created("/a"))
    parts = b"".join(number(tx.DELETE) + sized(sized(f"/{n}")) for n in range(3))
    log.add(tx.MULTI, number(3) + parts)
    for name in ("a", "b"):
        log.write(tmp_path / name)
    rows, history = read(tmp_path / "a", tmp_path / "b")
    assert [row.path for row in rows] == ["/a", "/0", "/1", "/2"]
    assert history.problems == []


def test_servers_of_an_ensemble_have_their_names(tmp_path: Path) -> None:
    """Each server of an ensemble has the name of its directory."""
    servers: list[Server] = find_servers(ensemble(tmp_path, [entry(1)], [entry(1)]))
    assert [one.name for one in servers] == [
        str(tmp_path / "s0" / "version-2"),
        str(tmp_path / "s1" / "version-2"),
    ]
