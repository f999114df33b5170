"""Record sets as a broker stores, checks and converts them: message formats v0, v1 and v2.

The data of a record batch that a producer sent are kept as they are, so its compression and its
checksum survive. Records are decoded only if they are needed: for conversions and for tests.

Kafka: `org.apache.kafka.common.record` and `kafka.log.LogValidator`.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Final, NamedTuple

from zkconsumer.protocol.kafka_fields import FieldReader, MalformedError, octets
from zkconsumer.testing.wire import read_varint, write_varint

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
CODECS: Final = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
"""The codecs by the names of `compression.type`."""

NO_TIME: Final = -1
"""The timestamp of a message of format v0, in ms."""

NO_PRODUCER: Final = -1
"""The producer id of a producer that is not idempotent."""

# Bits of a batch's attributes.
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 7, 8, 16, 32

_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
"""The header of a batch v2: base offset, length, leader epoch, magic, checksum, attributes, last
offset delta, first and last timestamp, producer id, epoch and first sequence number, count."""
_CHECKED_FROM: Final = 21  # the checksum covers everything after itself
_MESSAGE: Final = struct.Struct(">qiIbb")
"""The beginning of a message v0 or v1: offset, size, checksum, magic, attributes."""

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """A record, with its timestamp in ms since 1970 (`NO_TIME`: none)."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = NO_TIME
    headers: Headers = ()


class UnsupportedCodecError(Exception):
    """The codec is unknown, or its library is not installed."""


# ---- codecs --------------------------------------------------------------------------------------


def _require(package: str, codec: int) -> None:
    """Raise UnsupportedCodecError unless the codec exists and the package for it is installed."""
    if codec not in CODECS.values():
        raise UnsupportedCodecError(f"no codec has the number {codec}")
    if find_spec(package) is None:
        name = next(name for name, one in CODECS.items() if one == codec)
        raise UnsupportedCodecError(
            f"the codec {name} needs {package}: pip install 'zkconsumer[arrow]'"
        )


def decompress(codec: int, data: bytes) -> bytes:
    """Return the decompressed records of a batch. Raises UnsupportedCodecError, MalformedError."""
    if codec == GZIP:
        try:
            return gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise MalformedError(f"the gzip data of a batch are damaged: {error}") from error
    _require("cramjam", codec)
    from zkconsumer.kafka.columns import codecs  # noqa: PLC0415 - the extra `arrow`

    try:
        return bytes(codecs.decompress(codec, memoryview(data)))
    except codecs.CodecError as error:
        raise MalformedError(str(error)) from error


def compress(codec: int, data: bytes) -> bytes:
    """Compress the records of a batch. Raises UnsupportedCodecError."""
    if codec == GZIP:
        return gzip.compress(data, mtime=0)
    _require("pyarrow", codec)
    import pyarrow as pa  # noqa: PLC0415 - the extra `arrow`

    name = {SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}[codec]
    found: bytes = pa.compress(data, codec=name, asbytes=True)
    return found


# ---- entries -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A batch v2, a compressed wrapper of format v0 or v1, or one uncompressed message of these.

    `data` begins with the base offset, which `at` replaces. In a log of format v0 or v1, this
    number is the offset of the last message.
    """

    data: bytes
    magic: int
    attributes: int
    base: int
    last: int
    newest: int
    """The highest timestamp in ms."""
    producer: int = NO_PRODUCER
    epoch: int = -1
    sequence: int = -1

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC

    @property
    def has_append_time(self) -> bool:
        return bool(self.attributes & _APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """The records. Raises MalformedError, UnsupportedCodecError."""
        return tuple(_records_of_batch(self) if self.magic == 2 else _messages_of(self))

    def at(self, base: int) -> Entry:
        """Return the entry as it lies in a log at this base offset."""
        last = base + self.last - self.base
        data = struct.pack(">q", base if self.magic == 2 else last) + self.data[8:]
        return replace(self, data=data, base=base, last=last)


def parse(data: bytes) -> Iterator[Entry]:
    """Yield the entries of a record set. Raises MalformedError, UnsupportedCodecError.

    The last entry may be cut off, as in a Fetch response; it is left out.
    """
    at = 0
    while len(data) - at >= _MESSAGE.size:
        first, size, _, _, _ = _MESSAGE.unpack_from(data, at)
        end = at + 12 + size
        if size < _MESSAGE.size - 12:
            raise MalformedError(f"a message set has an entry of {size} bytes")
        if end > len(data):
            return
        part = data[at:end]
        # The magic number of all formats is at the same place.
        yield _batch(part) if part[16] == 2 else _message(part, first)
        at = end


def _batch(data: bytes) -> Entry:
    if len(data) < _BATCH.size:
        raise MalformedError(f"a batch has only {len(data)} bytes")
    fields = _BATCH.unpack_from(data)
    base, _, _, _, checksum, attributes, delta, _, newest, producer, epoch, sequence, _ = fields
    if checksum != crc32c(data[_CHECKED_FROM:]):
        raise MalformedError("the checksum of a batch is wrong")
    return Entry(data, 2, attributes, base, base + delta, newest, producer, epoch, sequence)


def _message(data: bytes, offset: int) -> Entry:
    _, _, checksum, magic, attributes = _MESSAGE.unpack_from(data)
    if magic not in (0, 1):
        raise MalformedError(f"a message has the unknown format {magic}")
    if checksum != zlib.crc32(data[16:]):
        raise MalformedError("the checksum of a message is wrong")
    newest = struct.unpack_from(">q", data, _MESSAGE.size)[0] if magic else NO_TIME
    entry = Entry(data, magic, attributes, offset, offset, newest)
    if entry.codec:
        records = entry.records
        if not records:
            raise MalformedError("a compressed message contains no message")
        entry = replace(entry, base=records[0].offset, last=records[-1].offset)
    return entry


# ---- format v2 -----------------------------------------------------------------------------------


def _signed(number: int) -> int:
    return number >> 1 ^ -(number & 1)


def _zigzag(number: int) -> int:
    return number << 1 ^ number >> 63


def _records_of_batch(entry: Entry) -> Iterator[Record]:
    fields = _BATCH.unpack_from(entry.data)
    base, first, newest, count = fields[0], fields[7], fields[8], fields[12]
    content = entry.data[_BATCH.size :]
    if entry.codec:
        content = decompress(entry.codec, content)
    reader = FieldReader(memoryview(content))

    def sized() -> bytes | None:
        size = _signed(read_varint(reader))
        if size < 0:
            return None
        at = reader.skip(size)
        return content[at : at + size]

    for _ in range(count):
        read_varint(reader)
        reader.skip(1)
        time = first + _signed(read_varint(reader))
        offset = base + _signed(read_varint(reader))
        key, value = sized(), sized()
        headers = tuple(
            ((sized() or b"").decode(), sized()) for _ in range(_signed(read_varint(reader)))
        )
        yield Record(offset, key, value, newest if entry.has_append_time else time, headers)


def _put_sized(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # -1
        return
    write_varint(out, _zigzag(len(data)))
    out += data


class Producer(NamedTuple):
    """The producer of a batch: its id, its epoch, and the sequence number of the first record."""

    id: int = NO_PRODUCER
    epoch: int = -1
    sequence: int = -1


ANYBODY: Final = Producer()


def batch(
    records: Sequence[Record],
    *,
    codec: int = NONE,
    attributes: int = 0,
    producer: Producer = ANYBODY,
) -> Entry:
    """Return a batch v2. Raises UnsupportedCodecError."""
    base, first = records[0].offset, records[0].timestamp
    content = bytearray()
    for one in records:
        body = bytearray(1)
        write_varint(body, _zigzag(one.timestamp - first))
        write_varint(body, _zigzag(one.offset - base))
        _put_sized(body, one.key)
        _put_sized(body, one.value)
        write_varint(body, _zigzag(len(one.headers)))
        for name, value in one.headers:
            _put_sized(body, name.encode())
            _put_sized(body, value)
        write_varint(content, _zigzag(len(body)))
        content += body
    data = compress(codec, bytes(content)) if codec else bytes(content)
    newest, last = max(one.timestamp for one in records), records[-1].offset
    attributes = attributes & ~_CODEC | codec
    head = _BATCH.pack(
        *(base, _BATCH.size - 12 + len(data), 0, 2, 0, attributes, last - base),
        *(first, newest, *producer, len(records)),
    )
    checked = head[_CHECKED_FROM:] + data
    whole = head[:17] + struct.pack(">I", crc32c(checked)) + checked
    return Entry(whole, 2, attributes, base, last, newest, *producer)


def marker(offset: int, timestamp: int, producer: Producer, *, commits: bool) -> Entry:
    """Return the control batch that ends a producer's transaction at an offset."""
    key = struct.pack(">hh", 0, int(commits))
    record = Record(offset, key, struct.pack(">hi", 0, 0), timestamp)
    return batch([record], attributes=_TRANSACTIONAL | _CONTROL, producer=producer)


# ---- formats v0 and v1 ---------------------------------------------------------------------------


def _messages_of(entry: Entry) -> Iterator[Record]:
    """Yield the records of a message or of a compressed wrapper."""
    reader = FieldReader(memoryview(entry.data), _MESSAGE.size)
    time = reader.int64() if entry.magic else NO_TIME
    key, value = reader.optional_octets(), reader.optional_octets()
    if not entry.codec:
        yield Record(entry.last, key, value, time)
        return
    inner = list(parse(decompress(entry.codec, value or b"")))
    # The offsets within a wrapper of format v1 are relative (KIP-31).
    shift = entry.last - inner[-1].last if inner and entry.magic else 0
    for one in inner:
        for record in one.records:
            stamp = time if entry.has_append_time else record.timestamp
            yield record._replace(offset=record.offset + shift, timestamp=stamp)


def message(record: Record, *, magic: int, attributes: int = 0) -> Entry:
    """Return a message of format v0 or v1."""
    rest = bytearray(struct.pack(">bb", magic, attributes))
    if magic:
        rest += struct.pack(">q", record.timestamp)
    rest += octets(record.key) + octets(record.value)
    head = struct.pack(">qiI", record.offset, 4 + len(rest), zlib.crc32(rest))
    time = record.timestamp if magic else NO_TIME
    return Entry(head + rest, magic, attributes, record.offset, record.offset, time)


def wrapper(records: Sequence[Record], *, magic: int, codec: int, attributes: int = 0) -> Entry:
    """Return a compressed message set of format v0 or v1. Raises UnsupportedCodecError."""
    first = records[0].offset if magic else 0
    inner = (message(one._replace(offset=one.offset - first), magic=magic) for one in records)
    data = compress(codec, b"".join(one.data for one in inner))
    if magic == 0 and codec == LZ4:
        from zkconsumer.kafka.columns import codecs  # noqa: PLC0415 - the extra `arrow`

        data = codecs.with_old_lz4_checksum(data)
    newest = max(one.timestamp for one in records)
    last = records[-1].offset
    attributes = attributes & ~_CODEC | codec
    outer = message(Record(last, None, data, newest), magic=magic, attributes=attributes)
    return replace(outer, base=records[0].offset)


# ---- conversions ---------------------------------------------------------------------------------


def entries(
    records: Sequence[Record], *, magic: int, codec: int = NONE, append_time: bool = False
) -> list[Entry]:
    """Return records in this format; the formats v0 and v1 know no headers."""
    attributes = _APPEND_TIME if append_time and magic else 0
    if magic == 2:
        return [batch(records, codec=codec, attributes=attributes)]
    if codec:
        return [wrapper(records, magic=magic, codec=codec, attributes=attributes)]
    return [message(one, magic=magic, attributes=attributes) for one in records]


def converted(entry: Entry, magic: int) -> list[Entry]:
    """Return an entry for a consumer that knows the formats up to `magic`; markers disappear."""
    if entry.magic <= magic:
        return [entry]
    if entry.is_control:
        return []
    codec = entry.codec
    return entries(entry.records, magic=magic, codec=codec, append_time=entry.has_append_time)


# ---- checksums -----------------------------------------------------------------------------------


def _table() -> list[int]:
    table = []
    for octet in range(256):
        crc = octet
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


def crc32c_in_python(data: bytes) -> int:
    """Return the CRC-32C of some bytes; a few megabytes take a second."""
    crc, table = 0xFFFFFFFF, _TABLE
    for octet in data:
        crc = table[(crc ^ octet) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


_TABLE: Final = _table()

crc32c: Callable[[bytes], int]
try:
    import google_crc32c
except ImportError:  # the extra `arrow` is not installed
    crc32c = crc32c_in_python
else:
    crc32c = google_crc32c.value
