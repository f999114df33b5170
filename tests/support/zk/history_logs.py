"""Transaction logs that tests write; each record is encoded as ZooKeeper encodes it."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from zlib import adler32

from zkconsumer.history import transactions as tx
from zkconsumer.history.logs import RowBatch

HEADER = b"ZKLG" + struct.pack(">iq", 2, 0)
OPEN = struct.pack(">iii5si6s", 1, 31, 5, b"world", 6, b"anyone")


def sized(data: bytes | str | None) -> bytes:
    """Encode a text or bytes after its length; None is encoded as the length -1."""
    if data is None:
        return struct.pack(">i", -1)
    content = data.encode() if isinstance(data, str) else data
    return struct.pack(">i", len(content)) + content


def created(path: str, data: bytes = b"", *, ephemeral: bool = False, version: int = 1) -> bytes:
    return sized(path) + sized(data) + OPEN + bytes([ephemeral]) + struct.pack(">i", version)


def changed(path: str, data: bytes, version: int = 1) -> bytes:
    return sized(path) + sized(data) + struct.pack(">i", version)


def number(value: int) -> bytes:
    return struct.pack(">i", value)


def multi(*parts: tuple[int, bytes]) -> bytes:
    return number(len(parts)) + b"".join(number(kind) + sized(body) for kind, body in parts)


def transaction(
    zxid: int, kind: int, body: bytes, *, session: int = 1, cxid: int = 1, time_ms: int = 0
) -> bytes:
    content = struct.pack(">qiqqi", session, cxid, zxid, time_ms, kind) + body
    return struct.pack(">Qi", adler32(content), len(content)) + content + b"B"


@dataclass
class LogWriter:
    """Appends transactions, each with the next zxid, `step_ms` after the previous transaction."""

    zxid: int = 0
    time_ms: int = 1_700_000_000_000
    entries: list[bytes] = field(default_factory=list)

    def add(self, kind: int, body: bytes, *, session: int = 1, cxid: int = 1, ms: int = 0) -> int:
        self.zxid += 1
        self.time_ms += ms
        self.entries.append(
            transaction(self.zxid, kind, body, session=session, cxid=cxid, time_ms=self.time_ms)
        )
        return self.zxid

    def content(self) -> bytes:
        return HEADER + b"".join(self.entries)

    def write(self, directory: Path, name: str = "log.1", *, zeros: int = 0) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / name
        file.write_bytes(self.content() + bytes(zeros))
        return file


def every_kind() -> LogWriter:
    """Return a log with each type of transaction; some of them have a digest."""
    log = LogWriter()
    digest = bytes(12)
    for extra in (b"", digest):
        log.add(tx.CREATE_SESSION, number(6000) + extra)
        log.add(tx.CREATE, created("/a", b"1", ephemeral=True) + extra)
        log.add(tx.CREATE2, created("/b/\u00fc", b"") + extra)
        log.add(tx.SET_DATA, changed("/a", b"2") + extra)
        log.add(tx.SET_DATA, sized("/a") + sized(None) + number(3) + extra)
        log.add(tx.SET_ACL, sized("/a") + OPEN + number(1) + extra)
        log.add(tx.CREATE_CONTAINER, sized("/c") + sized(b"") + OPEN + number(1) + extra)
        ttl = struct.pack(">iq", 1, 3_600_000)
        log.add(tx.CREATE_TTL, sized("/t") + sized(b"") + OPEN + ttl + extra)
        log.add(tx.RECONFIG, changed("/zookeeper/config", b"server.1") + extra)
        log.add(tx.DELETE, sized("/a") + extra)
        log.add(tx.DELETE_CONTAINER, sized("/c") + extra)
        log.add(tx.ERROR, number(-110) + extra)
        good = [(tx.CHECK, sized("/a") + number(1)), (tx.DELETE, sized("/a"))]
        log.add(tx.MULTI, multi(*good, (tx.CREATE, created("/a"))) + extra)
        log.add(tx.MULTI, multi((tx.CREATE, created("/x")), (tx.ERROR, number(-103))) + extra)
        applied = [(tx.ERROR, sized("/a") + number(1)), (tx.ERROR, number(-103))]
        log.add(tx.MULTI, multi(*applied) + extra)
        log.add(tx.MULTI, multi() + extra)
        log.add(tx.CLOSE_SESSION, extra, cxid=0)
        log.add(tx.CLOSE_SESSION, number(2) + sized("/a") + sized("/b") + extra)
        log.add(tx.CLOSE_SESSION, number(1) + sized("/abc") + extra)  # a list of 12 bytes
    # In 3.4.0 this record has no version.
    log.add(tx.CREATE, sized("/old") + sized(b"") + OPEN + b"\0")
    return log


def rows_of(batches: Iterable[RowBatch]) -> list[tx.Row]:
    return [row for batch in batches for row in batch.rows]
