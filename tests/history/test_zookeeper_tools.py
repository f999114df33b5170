"""Logs and snapshots of real servers of each release, compared with the output of ZooKeeper's
tools."""

from __future__ import annotations

import base64
import re
import struct
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.zk import corpus

from zkconsumer.history import transactions as tx
from zkconsumer.history.inputs import History, Server, find_servers
from zkconsumer.history.logs import HEADER_BYTES, LogReader, LogSource
from zkconsumer.history.snapshots import Tree, Znode, read_snapshot
from zkconsumer.history.transactions import KINDS, Values
from zkconsumer.sandbox import ZOOKEEPER_RELEASES

HEAD = struct.Struct(">Qiqiqqi")
# Transaction types whose names differ from those in `KINDS`, by release.
NAMES = {"createTTL": "createTtl"}  # until 3.8


# ---- logs as text -------------------------------------------------------------------------------


def log_lines(source: LogSource, release: str) -> Iterator[str]:
    """Return a log's lines as the tool of ZooKeeper's release prints them, with whole seconds."""
    content = source.open().read()
    reader = LogReader(source)
    rows = [row for batch in reader.batches() for row in batch.rows]
    first, version, database = struct.unpack(">4siq", content[:HEADER_BYTES])
    assert first == b"ZKLG"
    yield f"ZooKeeper Transactional Log File with dbid {database} txnlog format version {version}"
    at, count = HEADER_BYTES, 0
    while at < reader.offset:
        _, size, session, cxid, zxid, time_ms, kind = HEAD.unpack_from(content, at)
        stop = at + 12 + size
        parts = tx.parts_of(content, at + 44, stop)
        yield (
            f"{date(time_ms)} session 0x{session:x} cxid 0x{cxid & 0xFFFFFFFF:x} zxid 0x{zxid:x}"
            f" {kind_name(kind, release)} {record(kind, parts, release)}"
        ).rstrip()
        check_rows(kind, parts, [row for row in rows if row.zxid == zxid])
        at, count = stop + 1, count + 1
    yield f"EOF reached after {count} txns."


def check_rows(kind: int, parts: list[tuple[int, Values]], rows: list[tx.Row]) -> None:
    """Check that the rows are the parts of the multi; if it failed, that there is one row."""
    if any(part == tx.ERROR for part, _ in parts) and kind == tx.MULTI:
        assert [(row.kind, row.path) for row in rows] == [(tx.MULTI, None)]
    else:
        assert [(row.kind, tuple(row[6:])) for row in rows] == parts


def date(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{moment.month}/{moment.day}/{moment:%y}, {moment:%I:%M:%S %p} UTC".replace(", 0", ", ")


def kind_name(kind: int, release: str) -> str:
    name = KINDS[kind]
    return NAMES.get(name, name) if release < "3.9" else name


def record(kind: int, parts: list[tuple[int, Values]], release: str) -> str:
    if kind == tx.MULTI:
        if release < "3.6":
            each = (f"s{{{part},{hexed(encoded(part, values))}}}" for part, values in parts)
            return f"v{{{','.join(each)}}}"
        return ";".join(
            f"{kind_name(part, release)}:{encoded(part, values).decode(errors='replace')}"
            for part, values in parts
        )
    ((_, values),) = parts
    return plain(kind, values, release) if release < "3.5" else pretty(kind, values, release)


def plain(kind: int, values: Values, release: str) -> str:
    """Return jute's text of a record, in which each string begins with a single quote."""
    path, data, version, number, acl = values
    rights = ",".join(f"s{{{r},s{{'{s},'{i}}}}}" for r, s, i in tx.decode_acl(acl))
    match kind:
        case tx.CREATE | tx.CREATE2:
            return f"'{path},{hexed(data)},v{{{rights}}},{'FT'[number]},{version}"
        case tx.DELETE | tx.DELETE_CONTAINER:
            return f"'{path}"
        case tx.SET_DATA:
            return f"'{path},{hexed(data)},{version}"
        case tx.SET_ACL:
            return f"'{path},v{{{rights}}},{version}"
        case tx.CLOSE_SESSION if data is None:
            return "null" if release < "3.5" else ""
        case tx.CLOSE_SESSION:
            paths = ",".join(f"'{path}" for path in tx.deleted_paths(data))
            return f"v{{{paths}}}"
        case _:
            return str(number)


def pretty(kind: int, values: Values, release: str) -> str:
    """Return the text that `TxnLogToolkit` prints."""
    path, data, version, number, acl = values
    text = (data or b"").decode()
    rights = ", ".join(f"{r},s{{'{s},'{i}}}" for r, s, i in tx.decode_acl(acl))
    match kind:
        case tx.CREATE | tx.CREATE2:
            return f"{path},{text},[{rights}],{'true' if number else 'false'},{version}"
        case tx.CREATE_CONTAINER:
            return f"{path},{text},[{rights}],{version}"
        case tx.CREATE_TTL:
            return f"{path},{text},[{rights}],{version},{number}"
        case tx.SET_DATA:
            return f"{path},{text},{version}"
        case _:
            return plain(kind, values, release)


def hexed(data: bytes | None) -> str:
    """Return bytes as jute prints them: sign-extended integers without leading zeros."""
    return "#" + "".join(f"{b if b < 128 else b | 0xFFFFFF00:x}" for b in data) if data else ""


def encoded(kind: int, values: Values) -> bytes:
    """Encode a part of a multi as the server does."""
    path, data, version, number, acl = values
    if kind == tx.ERROR:
        return struct.pack(">i", number)
    found = text_bytes((path or "").encode())
    if kind in (tx.CREATE, tx.CREATE2, tx.SET_DATA):
        found += text_bytes(data) if data is not None else struct.pack(">i", -1)
    if kind in (tx.CREATE, tx.CREATE2):
        found += (acl or b"") + bytes([number])
    return found if kind == tx.DELETE else found + struct.pack(">i", version)


def text_bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


# ---- snapshots as text --------------------------------------------------------------------------


def znode_lines(path: str, znode: Znode, *, with_data: bool) -> Iterator[str]:
    def hexadecimal(value: int) -> str:
        return f"0x{value & 0xFFFFFFFFFFFFFFFF:014x}"

    def time(value: int) -> str:
        return f"{datetime.fromtimestamp(value / 1000, UTC):%a %b %d %H:%M:%S UTC %Y}"

    yield path
    yield f"  cZxid = {hexadecimal(znode.czxid)}"
    yield f"  ctime = {time(znode.ctime)}"
    yield f"  mZxid = {hexadecimal(znode.mzxid)}"
    yield f"  mtime = {time(znode.mtime)}"
    yield f"  pZxid = {hexadecimal(znode.pzxid)}"
    yield f"  cversion = {znode.cversion}"
    yield f"  dataVersion = {znode.version}"
    yield f"  aclVersion = {znode.aversion}"
    yield f"  ephemeralOwner = {hexadecimal(znode.owner)}"
    if with_data:
        yield f"  data = {base64.b64encode(znode.data or b'').decode()}".rstrip()
    else:
        yield f"  dataLength = {len(znode.data or b'')}"


def snapshot_blocks(tree: Tree, release: str) -> set[tuple[str, ...]]:
    return {
        tuple(znode_lines(path, znode, with_data=release >= "3.5"))
        for path, znode in tree.znodes.items()
    }


def printed_blocks(lines: list[str]) -> set[tuple[str, ...]]:
    """Return the znodes that `SnapshotFormatter` prints, with the lines of each."""
    text = "\n".join(line.rstrip() for line in lines)
    body = text.partition("----\n")[2].partition("----\nSession Details")[0]
    return {tuple(block.strip("\n").split("\n")) for block in body.split("----\n") if block.strip()}


def printed_sessions(lines: list[str]) -> dict[int, tuple[int, ...]]:
    begin = next(n for n, line in enumerate(lines) if line.startswith("Session Details"))
    found = (re.fullmatch(r"(0x[0-9a-f]+), (\d+), (\d+)", line) for line in lines[begin:])
    return {int(m[1], 16): (int(m[2]), int(m[3])) for m in found if m}


# ---- tests --------------------------------------------------------------------------------------


def compare_log(source: LogSource, printed: list[str], release: str) -> None:
    """Compare line by line; each line begins with a time, because the tools print raw newlines."""
    expected = re.split(_BEGIN, "\n".join(printed).replace("\u202f", " "))
    found = re.split(_BEGIN, "\n".join(log_lines(source, release)))
    assert list(map(_unfolded, found)) == list(map(_unfolded, expected))


_BEGIN = re.compile(r"\n(?=\d+/\d+/\d\d, |EOF reached)")


def _unfolded(line: str) -> str:
    return line.replace("\n", "").rstrip()


def compare_snapshot(source: LogSource, printed: list[str], release: str) -> None:
    tree = read_snapshot(source)
    assert snapshot_blocks(tree, release) == printed_blocks(printed)
    owned = Counter(znode.owner for znode in tree.znodes.values())
    sessions = {s: (timeout, owned[s]) for s, timeout in tree.sessions.items()}
    assert sessions == printed_sessions(printed)


def fewest_snapshots(release: str) -> int:
    """Return the number of kinds of snapshots: later releases also write two compressed ones."""
    return 2 if release < "3.6" else 4


def golden(release: str) -> tuple[Server, dict[str, list[str]]]:
    archive = corpus.GOLDEN / f"{release}.tar.gz"
    (server,) = find_servers([archive])
    return server, corpus.printed_in(archive)


@pytest.mark.parametrize("release", ZOOKEEPER_RELEASES)
def test_recorded_logs(release: str) -> None:
    """Each log is decoded line by line as the tool of the same release has printed it."""
    server, printed = golden(release)
    assert server.logs
    for log in server.logs:
        compare_log(log, printed[log.base], release)


@pytest.mark.parametrize("release", ZOOKEEPER_RELEASES)
def test_recorded_snapshots(release: str) -> None:
    """Each snapshot, compressed or not, has the znodes and sessions that the tool printed."""
    server, printed = golden(release)
    assert len(server.snapshots) >= fewest_snapshots(release)
    for snapshot in server.snapshots:
        compare_snapshot(snapshot, printed[snapshot.base], release)


@pytest.mark.parametrize("release", ZOOKEEPER_RELEASES)
def test_a_replay_gives_the_next_snapshot(release: str) -> None:
    """Logs replayed on an empty tree, or on any snapshot, give the tree of the next snapshot."""
    server, _ = golden(release)
    trees = [Tree.fresh(), *map(read_snapshot, server.snapshots)]
    for tree in trees:
        for batch in History([server], after=tree.zxid).batches():
            tree.apply(batch.rows)
    assert len(trees) >= 2
    for tree in trees:
        assert comparable(tree) == comparable(trees[0])
        assert tree.sessions == trees[0].sessions == {}


def comparable(tree: Tree) -> dict[str, tuple[object, ...]]:
    """Return znodes with ACLs, without /zookeeper, to which servers add an ACL at their start."""
    return {
        path: (
            *(z.data, z.czxid, z.mzxid, z.ctime, z.mtime, z.version, z.cversion, z.aversion),
            *(z.owner, z.pzxid, tree.acls.get(z.acl)),
        )
        for path, z in tree.znodes.items()
        if not path.startswith("/zookeeper")
    }


@pytest.mark.parametrize("release", ZOOKEEPER_RELEASES)
def test_a_live_server(release: str, tmp_path: Path) -> None:
    """Logs and snapshots of a running server are decoded as the tools of its release print them."""
    corpus.serve(release, tmp_path)
    (server,) = find_servers([tmp_path / "data"])
    assert server.logs
    assert len(server.snapshots) >= fewest_snapshots(release)
    for log in server.logs:
        compare_log(log, corpus.printed_log(release, Path(log.name)), release)
    for one in server.snapshots:
        compare_snapshot(one, corpus.printed_snapshot(release, Path(one.name)), release)
