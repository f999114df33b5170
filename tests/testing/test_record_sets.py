"""A fake broker reads, numbers and converts record sets of every format like a real one."""

from __future__ import annotations

import pytest
from support.kafka import encoded_records as independent
from support.kafka.encoded_records import Record as Sent

from zkconsumer.testing import record_sets
from zkconsumer.testing.errors import ErrorCode, KafkaFault
from zkconsumer.testing.logs import LogSettings, PartitionLog
from zkconsumer.testing.record_sets import CODECS, Record, UnsupportedCodecError

SENT = [
    Sent(0, b"k", b"first", 1_000, (("h", b"1"), ("none", None))),
    Sent(1, None, None, 900),
    Sent(2, b"", bytes(5_000), 1_100),
]


def written(magic: int, codec: str) -> bytes:
    """Return the messages as another implementation writes them."""
    if magic == 2:
        return independent.batch(SENT, codec=codec)
    return independent.message_set(SENT, magic=magic, codec=codec)


def expected(magic: int, first: int = 0) -> list[Record]:
    """Return the records of a log in this format, from an offset on."""
    return [
        Record(
            first + one.offset,
            one.key,
            one.value,
            one.time if magic else record_sets.NO_TIME,
            one.headers if magic == 2 else (),
        )
        for one in SENT
    ]


def in_log(log: PartitionLog) -> list[Record]:
    return [record for _, record in log.records()]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_what_a_producer_sends_is_stored(magic: int, codec: str) -> None:
    """A log numbers the messages anew, in each format and with each codec."""
    log = PartitionLog(LogSettings(magic=magic))
    assert [log.append(written(magic, codec), 0) for _ in range(2)] == [0, 3]
    assert in_log(log) == expected(magic) + expected(magic, 3)
    data = log.read(4, 1 << 20, magic=magic, until=log.end).data
    assert [one for entry in record_sets.parse(data) for one in entry.records][-2:] == (
        expected(magic, 3)[1:]
    )


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
@pytest.mark.parametrize("stored", [0, 1, 2])
@pytest.mark.parametrize("sent", [0, 1, 2])
def test_formats_are_converted(sent: int, stored: int, codec: str) -> None:
    """A log converts what producers send to its format, and then to the format of a consumer."""
    log = PartitionLog(LogSettings(magic=stored))
    log.append(written(sent, codec), 0)
    assert in_log(log) == expected(min(sent, stored))
    for magic in range(stored + 1):
        data = log.read(0, 1 << 20, magic=magic, until=log.end).data
        entries = list(record_sets.parse(data))
        assert {entry.magic for entry in entries} == {magic}
        assert {entry.codec for entry in entries} == {CODECS[codec]}
        found = [one for entry in entries for one in entry.records]
        assert found == expected(min(sent, magic))


def test_the_bytes_equal_those_of_another_implementation() -> None:
    """An uncompressed batch or set has exactly the bytes that another implementation writes."""
    for magic in (0, 1, 2):
        log = PartitionLog(LogSettings(magic=magic))
        log.append_records(expected(2))
        data = log.read(0, 1 << 20, magic=magic, until=3).data
        assert data == written(magic, "none")


def test_damaged_data_are_refused() -> None:
    """A wrong checksum, a cut batch and a batch that is too large are refused by their codes."""
    data = bytearray(written(2, "none"))
    data[-1] ^= 1
    log = PartitionLog(LogSettings(max_bytes=100))
    for wrong, code in (
        (bytes(data), ErrorCode.CORRUPT_MESSAGE),
        (written(2, "none")[:50], ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.CORRUPT_MESSAGE),
        (written(2, "none"), ErrorCode.MESSAGE_TOO_LARGE),
    ):
        with pytest.raises(KafkaFault) as caught:
            log.append(wrong, 0)
        assert caught.value.code is code
    assert log.end == 0


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_the_largest_size_is_that_of_an_entry(magic: int) -> None:
    """A set of small messages may be larger than `max.message.bytes`; a batch v2 may not."""
    sent = [Sent(at, None, bytes(1_000), 1_000) for at in range(5)]
    data = independent.batch(sent) if magic == 2 else independent.message_set(sent, magic=magic)
    log = PartitionLog(LogSettings(magic=magic, max_bytes=2_000))
    if magic == 2:
        with pytest.raises(KafkaFault, match=r"exceed max\.message\.bytes"):
            log.append(data, 0)
    else:
        log.append(data, 0)
    assert log.end == (0 if magic == 2 else 5)
    with pytest.raises(KafkaFault, match=r"exceed max\.message\.bytes"):
        log.append_records([Record(0, None, bytes(2_000), 1_000)])


def test_the_checksum_in_python() -> None:
    """Without google-crc32c, the checksum is computed in Python (RFC 3720, B.4)."""
    assert record_sets.crc32c_in_python(bytes(32)) == 0x8A9136AA
    assert record_sets.crc32c_in_python(b"\xff" * 32) == 0x62A8AB43
    assert record_sets.crc32c_in_python(b"") == record_sets.crc32c(b"")


def test_an_unknown_codec_is_an_error() -> None:
    """A codec that no library has is named."""
    with pytest.raises(UnsupportedCodecError, match="no codec has the number 7"):
        record_sets.decompress(7, b"")
