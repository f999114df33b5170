"""Times as text."""

from __future__ import annotations

import pytest

from zkconsumer.admin.times import parse_instant
from zkconsumer.cli.members import of_time
from zkconsumer.history.times import now_text, time_text


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
