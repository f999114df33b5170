"""A message is one line of JSON that every reader of JSON can parse."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from zkconsumer.cli.message_lines import parsed_lines


@pytest.mark.parametrize(
    "value",
    [b'"\\ud83d"', b"[" * 100_000, b"NaN", b'{"a": 1e400}', b"-Infinity", b"no JSON"],
    ids=["half of a surrogate pair", "nested too deeply", "NaN", "infinite", "-Infinity", "text"],
)
def test_a_value_that_is_no_strict_json_remains_text(value: bytes) -> None:
    """A value that Python alone accepts as JSON, or that it cannot nest, is shown as text."""
    message = SimpleNamespace(
        topic="t", partition=0, offset=1, timestamp=None, key=None, value=value, headers=()
    )
    line = json.loads(parsed_lines([message]), parse_constant=pytest.fail)
    assert line["value"] == value.decode()
