"""Filters match the same topics as `java.util.regex`."""

from __future__ import annotations

from typing import Any

import pytest
from support.captures import captured

from zkconsumer.errors import FilterTooCostlyError, InvalidFilterError, UnsupportedFilterError
from zkconsumer.protocol import registrations
from zkconsumer.protocol.filters import TopicFilter, matching, normalise
from zkconsumer.protocol.java.regex import compile_java

CONSUMERS = list(captured("java_regex"))


@pytest.mark.parametrize("case", CONSUMERS, ids=[str(n) for n in range(len(CONSUMERS))])
def test_a_filter_matches_the_topics_that_it_matches_in_the_jvm(case: dict[str, Any]) -> None:
    """A registered white or black list gives the topics that five JVM releases gave."""
    registration = registrations.decode_registration(case["registration"].encode(), where="ids")
    regex = normalise(next(iter(registration.subscription)))
    topic_filter = TopicFilter(registration.pattern, regex)
    if case["matched"] is None:
        with pytest.raises(InvalidFilterError):
            matching(topic_filter, case["topics"], internal=frozenset())
    else:
        found = matching(topic_filter, case["topics"], internal=frozenset())
        assert sorted(found) == case["matched"]


def test_all_captures_are_here() -> None:
    """The file has every captured filter."""
    assert len(CONSUMERS) == 92


ENGINE = list(captured("java_engine"))


def _matched(case: dict[str, Any]) -> list[str] | None:
    """Return the texts that match in zkconsumer; None for an error of syntax."""
    try:
        hits = compile_java(case["regex"]).matches(case["topics"], timeout_s=10.0)
    except InvalidFilterError:
        return None
    return [topic for topic, hit in zip(case["topics"], hits, strict=True) if hit]


def test_patterns_match_what_java_matches() -> None:
    """Hand-made and random patterns give the matches and errors of Java 11 and 17."""
    refused = 0
    for case in ENGINE:
        try:
            assert _matched(case) == case["matched"], case["regex"]
        except FilterTooCostlyError:
            raise
        except UnsupportedFilterError:
            refused += 1
    assert len(ENGINE) == 667
    assert refused < 50
