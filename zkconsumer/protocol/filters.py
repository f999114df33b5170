"""Topic filters: white lists and black lists, by the JVM's normalisation and its regex engine.

Every member evaluates every other member's filter, so all must agree on which topics it matches.
The rules are those of `kafka.consumer.Whitelist` and `Blacklist` in Kafka 0.8.2-1.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from zkconsumer.errors import FilterTooCostlyError, shown
from zkconsumer.protocol.java.regex import compile_java
from zkconsumer.protocol.registrations import Pattern

# Seconds of processor time (of the whole process: `regex` measures nothing finer) for one filter
# on one list of topics. A sane filter takes microseconds a topic; one that backtracks without end
# would hold up the rebalance, so it is given up with FilterTooCostlyError.
MATCHING_BUDGET_S = 1.0

_TRIMMED = "".join(map(chr, range(0x21)))  # what `String.trim` strips: not what str.strip does
_QUOTES = "\"'"


def normalise(text: str) -> str:
    """The regex that Kafka makes of what a user wrote (`TopicFilter`, 0.8.0-1.1), in its order.

    Trimmed as in Java; a comma is an alternative, so `a{1,3}` cannot be said; no blank can be
    matched; runs of quotes go from the start, then from the end.
    """
    joined = text.strip(_TRIMMED).replace(",", "|").replace(" ", "")
    return joined.lstrip(_QUOTES).rstrip(_QUOTES)


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Which topics a member asks for: make one with `white_list` or `black_list`.

    Attributes:
        pattern: Pattern.WHITE_LIST or Pattern.BLACK_LIST.
        regex: normalised, in Java's syntax; it must match the whole name of a topic.
    """

    pattern: Pattern
    regex: str


def white_list(regex: str) -> TopicFilter:
    """All topics that a regex of Java's syntax matches as a whole (Kafka's `Whitelist`).

    Raises InvalidFilterError, UnsupportedFilterError or FilterTooCostlyError, all ConfigErrors.
    """
    return _checked(TopicFilter(Pattern.WHITE_LIST, normalise(regex)))


def black_list(regex: str) -> TopicFilter:
    """All topics that a regex of Java's syntax does not match as a whole (Kafka's `Blacklist`).

    Raises as `white_list` does.
    """
    return _checked(TopicFilter(Pattern.BLACK_LIST, normalise(regex)))


def _checked(topic_filter: TopicFilter) -> TopicFilter:
    compile_java(topic_filter.regex)
    return topic_filter


def matching(
    topic_filter: TopicFilter, topics: Iterable[str], *, internal: frozenset[str]
) -> tuple[str, ...]:
    """The topics that a filter asks for, in their order (`TopicFilter.isTopicAllowed`).

    `internal` are the topics to leave out: Kafka's own, or none with `exclude.internal.topics`
    false. Raises InvalidFilterError for a regex that Java refuses, UnsupportedFilterError for one
    that cannot be evaluated here as Java does, and FilterTooCostlyError beyond a limit.
    """
    candidates = tuple(topic for topic in topics if topic not in internal)
    found = _hits(topic_filter.regex, candidates)
    if found is None:
        raise FilterTooCostlyError(
            f"the regex {shown(topic_filter.regex)} takes more than {MATCHING_BUDGET_S:g} s on"
            f" {len(candidates)} topics",
            remedy="write a filter without repetitions inside repetitions",
        )
    wanted = topic_filter.pattern is Pattern.WHITE_LIST
    return tuple(topic for topic, hit in zip(candidates, found, strict=True) if hit is wanted)


@lru_cache(maxsize=64)
def _hits(regex: str, topics: tuple[str, ...]) -> tuple[bool, ...] | None:
    """Which topics match; None: that takes too long. Remembered, for it is asked again and again:
    a member that waits for such a peer to go reads the group after each back-off."""
    try:
        return tuple(compile_java(regex).matches(topics, timeout_s=MATCHING_BUDGET_S))
    except TimeoutError:
        return None
