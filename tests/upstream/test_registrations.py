"""TopicFilterTest and JsonTest: regular expressions and other values are written as JSON."""

from __future__ import annotations

import pytest

from zkconsumer.protocol.java.json import parse_scala
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration


@pytest.mark.parametrize(
    ("regex", "written"),
    [
        ('-"-', r"-\"-"),
        ("-\\-", r"-\\-"),
        ("-/-", r"-\/-"),
        (r"-\b-", r"-\\b-"),
        (r"-\f-", r"-\\f-"),
        (r"-\n-", r"-\\n-"),
        (r"-\r-", r"-\\r-"),
        (r"-\t-", r"-\\t-"),
        (r"-\u0000-", r"-\\u0000-"),
        (r"-\u001f-", r"-\\u001f-"),
        (r"-\u007f-", r"-\\u007f-"),
        (r"-\u009f-", r"-\\u009f-"),
    ],
)
def test_a_regex_is_escaped_once(regex: str, written: str) -> None:
    """TopicFilterTest.testWildcardTopicCountGetTopicCountMapEscapeJson: as JSON and back."""
    payload = encode_registration(Registration({regex: 1}, Pattern.WHITE_LIST, 1234)).decode()
    assert f'"subscription":{{"{written}":1}}' in payload
    document = parse_scala(payload)
    assert isinstance(document, dict)
    assert document["subscription"] == {regex: 1}


def test_values_come_back() -> None:
    """JsonTest.testJsonEncoding: strings, numbers and maps of registrations are read back."""
    subscription = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "éß": 6}
    payload = encode_registration(Registration(subscription, timestamp_ms=1234)).decode()
    assert parse_scala(payload) == {
        "version": 1,
        "subscription": subscription,
        "pattern": "static",
        "timestamp": "1234",
    }
