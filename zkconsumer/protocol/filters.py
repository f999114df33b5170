"""Topic filters: white lists and black lists, normalised and matched as the JVM does.

Every member evaluates the filters of all members, so all members must agree on which topics a
filter matches. The rules are those of `kafka.consumer.Whitelist` and `Blacklist` in Kafka
0.8.2-1.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from zkconsumer.errors import FilterTooCostlyError, shown
from zkconsumer.protocol.java.regex import compile_java
from zkconsumer.protocol.registrations import Pattern

# Seconds of processor time for matching one filter against one list of topics; beyond it the filter
# fails with FilterTooCostlyError. `regex` can only measure the time of the whole process. A typical
# filter takes microseconds per topic, but catastrophic backtracking would block the rebalance.
MATCHING_BUDGET_S = 1.0

_TRIMMED = "".join(map(chr, range(0x21)))  # what Java's `String.trim` removes, unlike str.strip
_QUOTES = "\"'"


def normalise(text: str) -> str:
    """Return the regular expression that Kafka 0.8.0-1.1 makes of a user's filter (`TopicFilter`).

    Kafka trims the text as Java does, replaces each comma by `|`, removes all blanks, and strips
    quotes from the start and from the end, in this order. So `a{1,3}` cannot be expressed, and no
    filter can match a blank.
    """
    joined = text.strip(_TRIMMED).replace(",", "|").replace(" ", "")
    return joined.lstrip(_QUOTES).rstrip(_QUOTES)


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """The topics that a member subscribes to; create it with `white_list` or `black_list`.

    Attributes:
        pattern: Pattern.WHITE_LIST or Pattern.BLACK_LIST.
        regex: normalised, in Java's syntax; it is matched against the whole name of a topic.
    """

    pattern: Pattern
    regex: str


def white_list(regex: str) -> TopicFilter:
    """Return the filter for all topics whose whole name matches a Java regular expression
    (`Whitelist`).

    Raises InvalidFilterError, UnsupportedFilterError or FilterTooCostlyError, all ConfigErrors.
    """
    return _checked(TopicFilter(Pattern.WHITE_LIST, normalise(regex)))


def black_list(regex: str) -> TopicFilter:
    """Return the filter for all topics whose whole name does not match (Kafka's `Blacklist`).

    Raises the same errors as `white_list`.
    """
    return _checked(TopicFilter(Pattern.BLACK_LIST, normalise(regex)))


def _checked(topic_filter: TopicFilter) -> TopicFilter:
    compile_java(topic_filter.regex)
    return topic_filter


def matching(
    topic_filter: TopicFilter, topics: Iterable[str], *, internal: frozenset[str]
) -> tuple[str, ...]:
    """Return the topics that a filter matches, in their order (`TopicFilter.isTopicAllowed`).

    Args:
        topic_filter: the filter.
        topics: all candidates.
        internal: topics to leave out: Kafka's internal topics, or none if `exclude.internal.topics`
            is false.

    Raises:
        InvalidFilterError: Java rejects the regular expression.
        UnsupportedFilterError: zkconsumer cannot evaluate it as Java does.
        FilterTooCostlyError: it exceeds a limit.
    """
    candidates = tuple(topic for topic in topics if topic not in internal)
    found = _hits(topic_filter.regex, candidates)
    if found is None:
        raise FilterTooCostlyError(
            f"the regex {shown(topic_filter.regex)} takes more than {MATCHING_BUDGET_S:g} s on"
            f" {len(candidates)} topics",
            remedy="write a filter without nested repetitions such as (a+)+",
        )
    wanted = topic_filter.pattern is Pattern.WHITE_LIST
    return tuple(topic for topic, hit in zip(candidates, found, strict=True) if hit is wanted)


@lru_cache(maxsize=64)
def _hits(regex: str, topics: tuple[str, ...]) -> tuple[bool, ...] | None:
    """Return for each topic whether it matches; None if matching takes too long.

    The result is cached: a member that waits for another member's release reads the group again
    after each back-off.
    """
    try:
        return tuple(compile_java(regex).matches(topics, timeout_s=MATCHING_BUDGET_S))
    except TimeoutError:
        return None
