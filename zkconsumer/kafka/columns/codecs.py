"""Decompress batches that Kafka's producers have compressed with gzip, snappy, lz4 or zstd.

pyarrow contains all four codecs, and the columns need pyarrow in any case. The alternatives are
three more packages (python-snappy, lz4, zstandard), or cramjam, whose speed for lz4 and zstd was
within 10 % of pyarrow's (measured with 1 MB of hexadecimal digits).

Kafka: `org.apache.kafka.common.record.KafkaLZ4BlockInputStream` and `SnappyInputStream` of
xerial's snappy-java.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

_STREAMS: Final = {GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd"}

# Maximum size, in bytes, of a decompressed batch. A larger batch is refused: Kafka's own sizes are
# 32-bit numbers, and a malicious batch could otherwise fill the memory.
MAX_BYTES: Final = 1 << 30

# The expected ratio of a batch's decompressed size to its compressed size. A batch with a higher
# ratio is decompressed in several steps.
_EXPECTED_GROWTH: Final = 8
_SMALLEST_STEP: Final = 64 * 1024

_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = 16  # the magic bytes, and two versions of four bytes

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_CONTENT_SIZE: Final = 8  # this flag says that the frame's header contains the content's size


class CodecError(Exception):
    """The compressed bytes are malformed, or their codec is unknown."""


def decompress(codec: int, data: pa.Buffer) -> pa.Buffer:
    """Return the decompressed bytes of a batch. Raises CodecError."""
    try:
        if codec == SNAPPY:
            return _snappy(data)
        if codec not in _STREAMS:
            raise CodecError(f"codec {codec} is unknown")
        return _stream(_STREAMS[codec], _with_lz4_checksum(data) if codec == LZ4 else data)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise CodecError(str(error)) from error


def _stream(name: str, data: pa.Buffer) -> pa.Buffer:
    """Decompress a stream whose decompressed size is unknown."""
    step = max(_SMALLEST_STEP, _EXPECTED_GROWTH * data.size)
    parts: list[pa.Buffer] = []
    size = 0
    with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
        while (part := stream.read_buffer(step)).size:
            parts.append(part)
            size += part.size
            if size > MAX_BYTES:
                raise CodecError(f"a batch has more than {MAX_BYTES} bytes")
    return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))


def _snappy(data: pa.Buffer) -> pa.Buffer:
    """Decompress snappy with or without the frames of xerial's library, which the JVM uses."""
    raw = memoryview(data).cast("B")
    if bytes(raw[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(data)
    parts = []
    at, size = _XERIAL_HEADER, 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 4], "big")
        if length > len(raw) - at - 4:
            raise CodecError("a block of snappy exceeds its batch")
        parts.append(_snappy_block(data.slice(at + 4, length)))
        size += parts[-1].size
        if size > MAX_BYTES:
            raise CodecError(f"a batch has more than {MAX_BYTES} bytes")
        at += 4 + length
    return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))


def _snappy_block(data: pa.Buffer) -> pa.Buffer:
    size = shift = 0
    for byte in bytes(memoryview(data)[:5]):
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    # Snappy copies at most 64 bytes for each 3 compressed bytes.
    if size > min(MAX_BYTES, 64 * data.size):
        raise CodecError(f"a block of snappy claims to have {size} bytes")
    return pa.decompress(data, decompressed_size=size, codec="snappy")


def with_old_lz4_checksum(frame: bytes) -> bytes:
    """Give an LZ4 frame the checksum that Kafka's clients and brokers before 0.10 expect."""
    end = 14 if frame[4] & _CONTENT_SIZE else 6
    return frame[:end] + bytes([_xxh32(frame[:end]) >> 8 & 255]) + frame[end + 1 :]


def _with_lz4_checksum(data: pa.Buffer) -> pa.Buffer:
    """Correct the checksum of an LZ4 frame's header.

    The producers of 0.8 and 0.9, and brokers that convert messages for them, include the magic
    bytes in this checksum (KAFKA-3160). The frame format excludes them, and pyarrow verifies the
    checksum.
    """
    raw = memoryview(data).cast("B")
    if len(raw) < 7 or bytes(raw[:4]) != _LZ4_MAGIC:
        raise CodecError("an LZ4 batch has no frame header")
    end = 14 if raw[4] & _CONTENT_SIZE else 6
    if end >= len(raw):
        raise CodecError("an LZ4 batch ends in its frame header")
    correct = _xxh32(bytes(raw[4:end])) >> 8 & 255
    if raw[end] == correct:
        return data
    fixed = bytearray(raw)
    fixed[end] = correct
    return pa.py_buffer(fixed)


def _xxh32(data: bytes) -> int:
    """Return the XXH32 hash of fewer than 16 bytes, with seed 0.

    https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
    """
    p1, p2, p3, p4, p5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    mask = 0xFFFFFFFF

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & mask

    value = p5 + len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little")
        value = rotated((value + word * p3) & mask, 17) * p4 & mask
    for byte in data[whole:]:
        value = rotated((value + byte * p5) & mask, 11) * p1 & mask
    value = (value ^ value >> 15) * p2 & mask
    value = (value ^ value >> 13) * p3 & mask
    return value ^ value >> 16
