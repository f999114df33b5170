"""Filters as bounds: which filters are applied exactly, and which ranges remain."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from zkconsumer.spark.batch import PushedFilters
from zkconsumer.spark.offset_ranges import OffsetRange

PART, OFF, TOPIC, AT = ("partition",), ("offset",), ("topic",), ("timestamp",)
MOMENT = datetime(2020, 1, 1, 0, 0, 0, 500, tzinfo=UTC)  # half a millisecond later
MOMENT_MS = 1577836800000
WHOLE = [OffsetRange("a", 0, 0, 100), OffsetRange("a", 1, 50, 60), OffsetRange("b", 0, 7, 8)]


def left(*filters: Filter) -> tuple[list[tuple[str, int, int, int]], list[Filter]]:
    """Return the ranges that remain, and the filters that Spark must still evaluate."""
    pushed = PushedFilters()
    rest = [one for one in filters if not pushed.accept(one)]
    return [(*one.tp, one.start, one.end) for one in pushed.apply_to(WHOLE)], rest


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], [("a", 0, 0, 100), ("a", 1, 50, 60), ("b", 0, 7, 8)]),
        ([IsNotNull(TOPIC), EqualTo(TOPIC, "b")], [("b", 0, 7, 8)]),
        ([In(TOPIC, ("a", None, "c")), EqualTo(PART, 1)], [("a", 1, 50, 60)]),
        ([In(PART, (1, None))], [("a", 1, 50, 60)]),
        ([In(PART, (0, 1)), In(PART, (1, 2)), GreaterThan(PART, 0)], [("a", 1, 50, 60)]),
        (
            [IsNotNull(OFF), GreaterThanOrEqual(OFF, 55), LessThan(OFF, 58)],
            [("a", 0, 55, 58), ("a", 1, 55, 58)],
        ),
        ([GreaterThan(OFF, 55), LessThanOrEqual(OFF, 57)], [("a", 0, 56, 58), ("a", 1, 56, 58)]),
        ([EqualTo(OFF, 7)], [("a", 0, 7, 8), ("b", 0, 7, 8)]),
        ([LessThan(PART, 0)], []),
        ([GreaterThan(OFF, 9), LessThan(OFF, 9)], []),
        (
            [LessThan(OFF, 2**63 - 1), GreaterThan(OFF, -(2**63))],
            [("a", 0, 0, 100), ("a", 1, 50, 60), ("b", 0, 7, 8)],
        ),
    ],
)
def test_pushed_filters_are_exact(
    filters: list[Filter], expected: list[tuple[str, int, int, int]]
) -> None:
    """These filters are applied with exact bounds, and Spark evaluates none of them again."""
    assert left(*filters) == (expected, [])


@pytest.mark.parametrize(
    "one",
    [
        IsNotNull(AT),
        IsNotNull(("key",)),
        IsNull(OFF),
        EqualNullSafe(PART, 1),
        Not(EqualTo(PART, 1)),
        StringStartsWith(TOPIC, "a"),
        EqualTo(("value",), b"x"),
        EqualTo(("timestampType",), 0),
        GreaterThan(OFF, 1.5),
        EqualTo(PART, True),
        EqualTo(OFF, None),
        LessThan(AT, MOMENT),
        LessThanOrEqual(AT, MOMENT),
        EqualTo(("value", "offset"), 1),
        In(OFF, (None,)),
        GreaterThan(AT, MOMENT.replace(tzinfo=None)),
    ],
)
def test_filters_that_spark_evaluates(one: Filter) -> None:
    """These filters do not narrow the ranges, so Spark evaluates them."""
    assert left(one) == ([(*each.tp, each.start, each.end) for each in WHOLE], [one])


def test_a_list_of_offsets() -> None:
    """For a list of offsets, the range from the lowest to the highest is read; Spark filters."""
    one = In(OFF, (9, 4, None))
    assert left(one) == ([("a", 0, 4, 10), ("b", 0, 7, 8)], [one])


@pytest.mark.parametrize(
    ("filters", "since_ms"),
    [
        ([GreaterThan(AT, MOMENT)], MOMENT_MS + 1),
        ([GreaterThanOrEqual(AT, MOMENT)], MOMENT_MS + 1),
        ([EqualTo(AT, MOMENT.replace(microsecond=0))], MOMENT_MS),
        ([GreaterThanOrEqual(AT, MOMENT.replace(microsecond=0))], MOMENT_MS),
        ([GreaterThan(AT, MOMENT.replace(microsecond=0))], MOMENT_MS + 1),
        ([GreaterThan(AT, MOMENT), GreaterThan(AT, MOMENT.replace(year=2019))], MOMENT_MS + 1),
    ],
)
def test_timestamps_are_a_lower_bound(filters: list[Filter], since_ms: int) -> None:
    """A timestamp becomes a lower bound in whole milliseconds, and Spark filters the messages."""
    pushed = PushedFilters()
    assert not any(map(pushed.accept, filters))
    assert pushed.since_ms == since_ms
