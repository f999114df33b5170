"""Resets: the new offset for each kind, the limits of the log, and unknown values."""

from __future__ import annotations

import pytest

from zkconsumer.admin.offset_plans import (
    Kind,
    OffsetFacts,
    Reset,
    parse_offset,
    resolve,
)
from zkconsumer.errors import ConfigError, RefusedError
from zkconsumer.kafka.logs import LogRange
from zkconsumer.protocol.model import TopicPartition

TP = TopicPartition("t", 0)
LOG = LogRange(10, 50)


@pytest.mark.parametrize(
    ("reset", "known", "expected", "note"),
    [
        (Reset(Kind.EARLIEST), OffsetFacts(20, LOG), 10, ""),
        (Reset(Kind.LATEST), OffsetFacts(None, LOG), 50, ""),
        (Reset(Kind.OFFSET, 30), OffsetFacts(20, LOG), 30, ""),
        (
            Reset(Kind.OFFSET, 9),
            OffsetFacts(20, LOG),
            10,
            "9 is before the start of the log; set to 10",
        ),
        (
            Reset(Kind.OFFSET, 51),
            OffsetFacts(20, LOG),
            50,
            "51 is beyond the end of the log; set to 50",
        ),
        (Reset(Kind.OFFSET, 51), OffsetFacts(20, "dead"), 51, "not checked against the log: dead"),
        (Reset(Kind.SHIFT, 5), OffsetFacts(20, LOG), 25, ""),
        (Reset(Kind.SHIFT, -5), OffsetFacts(20, LOG), 15, ""),
        (Reset(Kind.SHIFT, -15), OffsetFacts(20, LOG), 10, "5 is before"),
        (Reset(Kind.SHIFT, -25), OffsetFacts(20, LOG), 10, "-5 is before"),
        (Reset(Kind.SHIFT, -25), OffsetFacts(20, "dead"), 0, "not checked"),
        (Reset(Kind.SHIFT, 99), OffsetFacts(20, LOG), 50, "119 is beyond"),
        (Reset(Kind.CURRENT), OffsetFacts(20, LOG), 20, ""),
        (Reset(Kind.CURRENT), OffsetFacts(2, LOG), 10, "2 is before"),
        (Reset(Kind.CURRENT), OffsetFacts(None, LOG), 50, ""),
        (Reset(Kind.DATETIME, 1), OffsetFacts(20, LOG, at=33), 33, ""),
        (Reset(Kind.DURATION, 1), OffsetFacts(20, LOG, at=None), 50, ""),
        (Reset(Kind.FILE), OffsetFacts(20, LOG, wanted=44), 44, ""),
        (Reset(Kind.FILE), OffsetFacts(20, LOG, wanted=4), 10, "4 is before"),
    ],
)
def test_each_kind_of_reset(reset: Reset, known: OffsetFacts, expected: int, note: str) -> None:
    """Each kind of reset gives its offset; an offset outside the log is moved to its near end."""
    targets, notes = resolve(reset, {TP: known})
    assert targets == {TP: expected}
    assert "".join(notes).removeprefix("t-0: ").startswith(note)
    assert bool(notes) == bool(note)


@pytest.mark.parametrize(
    ("reset", "known", "why"),
    [
        (Reset(Kind.EARLIEST), OffsetFacts(20, "dead"), "dead"),
        (Reset(Kind.LATEST), OffsetFacts(20, "dead"), "dead"),
        (Reset(Kind.SHIFT, 1), OffsetFacts(None, LOG), "there is no committed offset"),
        (Reset(Kind.SHIFT, 1), OffsetFacts("odd", LOG), "odd"),
        (Reset(Kind.CURRENT), OffsetFacts("odd", LOG), "odd"),
        (Reset(Kind.DATETIME, 1), OffsetFacts(20, LOG, at="dead"), "dead"),
        (Reset(Kind.FILE), OffsetFacts(20, LOG), "has no offset of it"),
    ],
)
def test_an_unknown_value_changes_no_offset(reset: Reset, known: OffsetFacts, why: str) -> None:
    """If a required value is unknown, the partition's offset is not changed."""
    with pytest.raises(RefusedError, match=f"1 of 2 partitions.*t-0: .*{why}"):
        resolve(reset, {TP: known, TopicPartition("t", 1): OffsetFacts(20, LOG, at=1, wanted=1)})


def test_offsets() -> None:
    """An offset is a number from 0 to the highest long of Java."""
    assert parse_offset("9223372036854775807", where="x") == 2**63 - 1
    for text in ("", "-1", "1.0", "9223372036854775808", "1" * 5000, "٣"):
        with pytest.raises(ConfigError, match="is not an offset"):
            parse_offset(text, where="x")
