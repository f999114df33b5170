"""Topic filters: white lists and black lists, normalised and matched as in the JVM.

Every member evaluates the filters of all members, so all members must agree on the topics that a
filter matches. The rules are those of `kafka.consumer.Whitelist` and `Blacklist` in Kafka
0.8.2-1.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from zkconsumer.errors import FilterTooCostlyError, quoted
from zkconsumer.protocol import arguments
from zkconsumer.protocol.registrations import Pattern

if TYPE_CHECKING:
    from zkconsumer.protocol.java.regex import JavaPattern

MATCHING_BUDGET_S = 1.0
"""The limit, in seconds of processor time, for one filter on one list of topics.

A usual filter takes microseconds for each topic. A filter that backtracks without end raises
FilterTooCostlyError after this time. The `regex` library measures the time of the whole process, so
other threads' work also counts. Members use `consumer.topic_matcher`, which corrects for the work
of other threads.
"""

_TRIMMED = "".join(map(chr, range(0x21)))  # Java's `String.trim` removes these, unlike str.strip
_QUOTES = "\"'"


def normalise(text: str) -> str:
    """Return the regular expression that Kafka 0.8.0-1.1 makes of a user's filter (`TopicFilter`).

    Kafka trims the text as Java does, replaces each comma with `|`, removes all blanks, and strips
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
    """Return the filter for all topics that match a Java regex as a whole (`Whitelist`).

    Raises InvalidFilterError, UnsupportedFilterError or FilterTooCostlyError, all ConfigErrors.
    """
    return checked(TopicFilter(Pattern.WHITE_LIST, normalise(_text(regex))))


def black_list(regex: str) -> TopicFilter:
    """Return the filter for all topics whose whole name does not match (Kafka's `Blacklist`).

    Raises the same errors as `white_list`.
    """
    return checked(TopicFilter(Pattern.BLACK_LIST, normalise(_text(regex))))


def _text(regex: object) -> str:
    if not isinstance(regex, str):
        right = "a Java regular expression as a text: 'orders.*'"
        raise arguments.wrong(regex, "a regular expression", where="regex", right=right)
    return regex


def checked(topic_filter: TopicFilter) -> TopicFilter:
    """Return the filter if its regex compiles; raises the same errors as `white_list`."""
    _compile(topic_filter.regex)
    return topic_filter


@dataclass(frozen=True, slots=True)
class MatchTopics:
    """Find the topics that each of these filters matches.

    This request is not sent to a server. The executor lets another thread evaluate it, because a
    filter may take long. The value of the reply maps each filter to its topics, in the order of
    `topics`, or to the UnsupportedFilterError or InvalidFilterError that the filter raises.
    """

    filters: tuple[TopicFilter, ...]
    topics: tuple[str, ...]
    internal: frozenset[str]


def matching(
    topic_filter: TopicFilter,
    topics: Iterable[str],
    *,
    internal: frozenset[str],
    budget_s: float = MATCHING_BUDGET_S,
) -> tuple[str, ...]:
    """Return the topics that a filter selects, in the given order (`TopicFilter.isTopicAllowed`).

    Args:
        topic_filter: a white list or a black list.
        topics: the existing topics.
        internal: the topics to leave out; none with `exclude.internal.topics=false`.
        budget_s: the limit in seconds of the process's processor time.

    Raises:
        InvalidFilterError: Java refuses the regex.
        UnsupportedFilterError: the regex cannot be evaluated as Java evaluates it.
        FilterTooCostlyError: the regex exceeds a limit or the budget. A later call tries again.
    """
    candidates = tuple(topic for topic in topics if topic not in internal)
    try:
        found = _hits(topic_filter.regex, candidates, budget_s)
    except TimeoutError:
        raise FilterTooCostlyError(
            f"the regex {quoted(topic_filter.regex)} takes more than {MATCHING_BUDGET_S:g} s on"
            f" {len(candidates)} topics",
            remedy="write a filter without nested repetitions such as (a+)+",
        ) from None
    wanted = topic_filter.pattern is Pattern.WHITE_LIST
    return tuple(topic for topic, hit in zip(candidates, found, strict=True) if hit is wanted)


@lru_cache(maxsize=64)
def _hits(regex: str, topics: tuple[str, ...], budget_s: float) -> tuple[bool, ...]:
    """Return for each topic whether it matches; raises TimeoutError, which is not cached.

    A group with a blocked member reads the same patterns and topics again after each back-off.
    """
    return tuple(_compile(regex).matches(topics, timeout_s=budget_s))


def _compile(regex: str) -> JavaPattern:
    """Compile; import `regex` late, because only filters need it and the lab's browser lacks it."""
    from zkconsumer.protocol.java.regex import compile_java  # noqa: PLC0415 - see above

    return compile_java(regex)
