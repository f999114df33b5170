"""Times and durations as text."""

from __future__ import annotations

import time

import pytest

from zkconsumer.cli.members import of_time
from zkconsumer.errors import ConfigError
from zkconsumer.times import now_text, parse_duration, parse_instant, time_text


@pytest.mark.parametrize("show", [time_text, of_time])
def test_a_time_that_no_calendar_has(show: object) -> None:
    """A client may commit to Kafka with any time: then the result is the number itself."""
    assert callable(show)
    assert show(2**63 - 1) == f"{2**63 - 1} ms"


def test_a_time_in_utc() -> None:
    """A time is cut to the given precision."""
    assert time_text(1_700_000_000_999) == "2023-11-14T22:13:20.999Z"
    assert of_time(1_700_000_000_999) == "2023-11-14T22:13:20Z"
    assert time_text(None) == "-"
    assert time_text(parse_instant(now_text("milliseconds"))) <= now_text("milliseconds")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT1H", 3600),
        ("P1D", 86400),
        ("P7D", 604800),
        ("P2W", 1209600),
        ("PT90M", 5400),
        ("P1DT2H3M4S", 93784),
        ("PT0.5S", 0.5),
        ("PT0S", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """ISO 8601 durations of fixed length are parsed."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "1H",
        "PT1",
        "P1M",
        "P1Y",
        "-PT1H",
        "PT-1H",
        "P1DT",
        "pt1h",
        "PT1H ",
        "PT" + "9" * 99 + "S",
        "P\u0661D",
    ],
)
def test_no_durations(text: str) -> None:
    """Any other text is one clear error."""
    with pytest.raises(ConfigError, match="is not a duration"):
        parse_duration(text)


def test_instants() -> None:
    """ISO 8601 times without a time zone are read as UTC."""
    assert parse_instant("1970-01-01T00:00:01.500") == 1500
    assert parse_instant("1970-01-01T01:00:00+01:00") == 0
    assert parse_instant("1970-01-02") == 86_400_000
    for text in ("", "yesterday", "2026-13-01T00:00:00", "1969-12-31T23:59:59"):
        with pytest.raises(ConfigError):
            parse_instant(text)


def test_times_as_people_type_them() -> None:
    """A time of day is the last one that has passed; a duration is that long ago; zone UTC."""
    day_ms = 86_400_000
    now_ms = time.time() * 1000
    clock = parse_instant("21:15")
    assert now_ms - day_ms - 60_000 < clock <= time.time() * 1000
    assert clock % day_ms == (21 * 60 + 15) * 60_000
    today, yesterday = parse_instant("today 03:00"), parse_instant("yesterday 03:00")
    assert (today - yesterday, yesterday % day_ms) == (day_ms, 3 * 3_600_000)
    assert abs(now_ms - 5_400_000 - parse_instant("1h30m")) < 60_000
