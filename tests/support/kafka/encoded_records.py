"""Record sets in every format, which only this module writes, and the rows in them."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c
import pyarrow as pa

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """A record as a consumer sees it, with the `time` in ms."""

    offset: int
    key: bytes | None
    value: bytes | None
    time: int = 0
    headers: Headers = ()


def varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def _old_sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def compressed(codec: str, data: bytes) -> bytes:
    """Return compressed bytes.

    `snappy` is raw, `xerial` consists of blocks, and `lz4-0.8` has the header checksum of 0.8 and
    0.9.
    """
    if codec == "gzip":
        return gzip.compress(data)
    if codec == "xerial":
        blocks = [data[at : at + 100] for at in range(0, len(data), 100)]
        parts = [pa.compress(block, codec="snappy", asbytes=True) for block in blocks]
        return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(map(_old_sized, parts))
    if codec == "lz4-0.8":
        frame = bytearray(pa.compress(data, codec="lz4", asbytes=True))
        frame[14 if frame[4] & 8 else 6] ^= 255
        return bytes(frame)
    return bytes(pa.compress(data, codec=codec, asbytes=True))


def _codec(name: str) -> int:
    return CODECS[{"xerial": "snappy", "lz4-0.8": "lz4"}.get(name, name)]


def batch(
    records: Sequence[Record],
    *,
    codec: str = "none",
    append_time: int | None = None,
    is_control: bool = False,
    count: int | None = None,
) -> bytes:
    """Return a batch of format v2."""
    base, first = records[0].offset, records[0].time
    content = b"".join(_record(one, base, first) for one in records)
    if codec != "none":
        content = compressed(codec, content)
    attributes = _codec(codec) | (0 if append_time is None else 8) | (32 if is_control else 0)
    newest = max(one.time for one in records) if append_time is None else append_time
    rest = struct.pack(
        ">hiqqqhii",
        attributes,
        records[-1].offset - base,
        first,
        newest,
        -1,
        -1,
        -1,
        len(records) if count is None else count,
    )
    rest += content
    head = struct.pack(">ibI", 0, 2, google_crc32c.value(rest))
    return struct.pack(">qi", base, len(head) + len(rest)) + head + rest


def _record(one: Record, base: int, first: int) -> bytes:
    body = b"\0" + varint(one.time - first) + varint(one.offset - base)
    body += _sized(one.key) + _sized(one.value) + varint(len(one.headers))
    for name, value in one.headers:
        body += _sized(name.encode()) + _sized(value)
    return varint(len(body)) + body


def message(record: Record, *, magic: int, attributes: int = 0, offset: int | None = None) -> bytes:
    """Return a message of format v0 or v1."""
    rest = struct.pack(">bb", magic, attributes)
    rest += struct.pack(">q", record.time) if magic else b""
    rest += _old_sized(record.key) + _old_sized(record.value)
    rest = struct.pack(">I", zlib.crc32(rest)) + rest
    return struct.pack(">qi", record.offset if offset is None else offset, len(rest)) + rest


def message_set(
    records: Sequence[Record], *, magic: int, codec: str = "none", append_time: int | None = None
) -> bytes:
    """Return messages of format v0 or v1, in one wrapper if they are compressed.

    The offsets within a wrapper of format v1 are relative.
    """
    flag = 8 if magic and append_time is not None else 0
    if codec == "none":
        stamped = [
            one if append_time is None else one._replace(time=append_time) for one in records
        ]
        return b"".join(message(one, magic=magic, attributes=flag) for one in stamped)
    first = records[0].offset if magic else 0
    inner = b"".join(message(one, magic=magic, offset=one.offset - first) for one in records)
    newest = max(one.time for one in records) if append_time is None else append_time
    wrapper = Record(records[-1].offset, None, compressed(codec, inner), newest)
    return message(wrapper, magic=magic, attributes=_codec(codec) | flag)
