"""Decompress batches that Kafka's producers have compressed with gzip, snappy, lz4 or zstd.

cramjam contains all four codecs in one package of 4 MB, which is imported in 3 ms. pyarrow contains
them too, at about the same speed, but its import takes 40 MB of memory and 0.1 s of processor time.
The other alternatives are three packages (python-snappy, lz4, zstandard).

Kafka: `org.apache.kafka.common.record.KafkaLZ4BlockInputStream` and `SnappyInputStream` of
xerial's snappy-java.
"""

from __future__ import annotations

import mmap
from typing import Final

import cramjam

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

_STREAMS: Final = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}

# Maximum size, in bytes, of a decompressed batch. A larger batch is refused: Kafka's own sizes are
# 32-bit numbers, and a malicious batch could otherwise fill the memory.
MAX_BYTES: Final = 1 << 30

# The expected ratio of a batch's decompressed size to its compressed size. A batch with a higher
# ratio is decompressed again, with this many times as much memory.
_EXPECTED_GROWTH: Final = 8
_LEAST_MEMORY: Final = 64 * 1024

_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = 16  # the magic bytes, and two versions of four bytes

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_CONTENT_SIZE: Final = 8  # this flag says that the frame's header contains the content's size


class CodecError(Exception):
    """The compressed bytes are malformed, or their codec is unknown."""


def decompress(codec: int, data: memoryview) -> memoryview:
    """Return the decompressed bytes of a batch. Raises CodecError."""
    if codec == SNAPPY:
        return memoryview(_snappy(data))
    if codec not in _STREAMS:
        raise CodecError(f"codec {codec} is unknown")
    return _stream(codec, _with_lz4_checksum(data) if codec == LZ4 else data)


def _stream(codec: int, data: memoryview | bytearray) -> memoryview:
    """Decompress a stream whose decompressed size is unknown."""
    size = max(_LEAST_MEMORY, _EXPECTED_GROWTH * len(data))
    while True:
        memory = _memory(min(size, MAX_BYTES))
        try:
            used = _STREAMS[codec].decompress_into(data, memory)
            return memoryview(memory)[:used].toreadonly()
        except cramjam.DecompressionError as error:
            # The memory may be too small. cramjam does not tell this error from others.
            if size >= MAX_BYTES:
                raise CodecError(f"{error}; a batch has at most {MAX_BYTES} bytes") from error
            size *= _EXPECTED_GROWTH


def _memory(size: int) -> bytearray | mmap.mmap:
    """Return memory for a decompressed batch.

    `bytearray` writes each byte. Of a mapping, the system provides only those pages that the codec
    writes, so a malformed batch, which is tried up to the maximum size, costs no memory.
    """
    if size <= _LEAST_MEMORY:
        return bytearray(size)
    try:
        return mmap.mmap(-1, size, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise CodecError(f"the system refuses {size} bytes for a batch: {error}") from error


def _snappy(data: memoryview) -> bytes:
    """Decompress snappy with or without the frames of xerial's library, which the JVM uses."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(data)
    parts = []
    at, size = _XERIAL_HEADER, 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if length > len(data) - at - 4:
            raise CodecError("a block of snappy exceeds its batch")
        parts.append(_snappy_block(data[at + 4 : at + 4 + length]))
        size += len(parts[-1])
        if size > MAX_BYTES:
            raise CodecError(f"a batch has more than {MAX_BYTES} bytes")
        at += 4 + length
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _snappy_block(data: memoryview) -> bytes:
    try:
        # Snappy copies at most 64 bytes for each 3 compressed bytes.
        if (size := cramjam.snappy.decompress_raw_len(data)) > min(MAX_BYTES, 64 * len(data)):
            raise CodecError(f"a block of snappy claims to have {size} bytes")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CodecError(str(error)) from error


def with_old_lz4_checksum(frame: bytes) -> bytes:
    """Give an LZ4 frame the checksum that Kafka's clients and brokers before 0.10 expect."""
    end = 14 if frame[4] & _CONTENT_SIZE else 6
    return frame[:end] + bytes([_xxh32(frame[:end]) >> 8 & 255]) + frame[end + 1 :]


def _with_lz4_checksum(data: memoryview) -> memoryview | bytearray:
    """Correct the checksum of an LZ4 frame's header.

    The producers of 0.8 and 0.9, and brokers that convert messages for them, include the magic
    bytes in this checksum (KAFKA-3160). The frame format excludes them, and decoders verify
    the checksum.
    """
    if len(data) < 7 or bytes(data[:4]) != _LZ4_MAGIC:
        raise CodecError("an LZ4 batch has no frame header")
    end = 14 if data[4] & _CONTENT_SIZE else 6
    if end >= len(data):
        raise CodecError("an LZ4 batch ends in its frame header")
    correct = _xxh32(bytes(data[4:end])) >> 8 & 255
    if data[end] == correct:
        return data
    fixed = bytearray(data)
    fixed[end] = correct
    return fixed


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
