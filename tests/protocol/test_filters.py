"""Whitelists and blacklists: the JVM's normalisation, internal topics, and rejected filters."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer import black_list, white_list
from zkconsumer.errors import ConfigError, FilterTooCostlyError, InvalidFilterError
from zkconsumer.protocol.filters import TopicFilter, matching, normalise
from zkconsumer.protocol.registrations import Pattern

INTERNAL = frozenset({"__consumer_offsets"})
NONE: frozenset[str] = frozenset()


def _allowed(topic_filter: TopicFilter, topic: str, internal: frozenset[str] = INTERNAL) -> bool:
    return matching(topic_filter, [topic], internal=internal) == (topic,)


@pytest.mark.parametrize("internal", [INTERNAL, NONE])
def test_white_lists_of_names(internal: frozenset[str]) -> None:
    """Upstream TopicFilterTest.testWhitelists: a comma separates alternatives."""
    topic_filter = white_list("white1,white2")
    assert _allowed(topic_filter, "white2", internal)
    assert not _allowed(topic_filter, "black1", internal)


def test_white_lists_and_internal_topics() -> None:
    """Upstream TopicFilterTest.testWhitelists: internal topics match unless they are excluded."""
    everything = white_list(".+")
    assert _allowed(everything, "alltopics")
    assert not _allowed(everything, "__consumer_offsets")
    assert _allowed(everything, "__consumer_offsets", NONE)
    prefixed = white_list("white_listed-topic.+")
    assert _allowed(prefixed, "white_listed-topic1")
    assert not _allowed(prefixed, "black1")


def test_white_list_that_looks_ahead() -> None:
    """Upstream TopicFilterTest.testWhitelists: a negative lookahead works."""
    topic_filter = white_list(r"test-(?!bad\b)[\w]+")
    assert _allowed(topic_filter, "test-good")
    assert not _allowed(topic_filter, "test-bad")


def test_black_lists() -> None:
    """Upstream TopicFilterTest.testBlacklists: topics that the regex does not match are allowed."""
    topic_filter = black_list("black1")
    for internal in (INTERNAL, NONE):
        assert _allowed(topic_filter, "white2", internal)
        assert not _allowed(topic_filter, "black1", internal)
    assert not _allowed(topic_filter, "__consumer_offsets")
    assert _allowed(topic_filter, "__consumer_offsets", NONE)


def test_a_mirror_maker_s_list() -> None:
    """Upstream MirrorMakerIntegrationTest.testCommaSeparatedRegex: new.* matches new-topic."""
    topic_filter = white_list("another_topic,new.*,foo")
    assert matching(topic_filter, ["foo", "new-topic", "food"], internal=NONE) == (
        "foo",
        "new-topic",
    )


@pytest.mark.parametrize(
    ("written", "regex"),
    [
        ("a,b", "a|b"),
        (" a , b ", "a|b"),
        ("\t\x08a\x00\n", "a"),
        ("\u00a0a\u3000\u0085", "\u00a0a\u3000\u0085"),
        ("a\tb c", "a\tbc"),
        ("\"'\"a'b'\"", "a'b"),
        ('" a"', "a"),
        ("' 'a", "a"),
        ('"\'"', ""),
        ("a{1,3}", "a{1|3}"),
        ("", ""),
        (",", "|"),
    ],
)
def test_normalising(written: str, regex: str) -> None:
    """Java's trim is applied, commas become bars, and blanks and outer quotes are removed."""
    assert normalise(written) == regex
    assert normalise(regex) == regex


@given(st.text(alphabet="ab,| \"'\t\u00a0\x1f", max_size=12))
def test_a_normalised_regex_has_no_comma_blank_or_outer_quote(written: str) -> None:
    """A normalised regular expression has no comma, no blank, and no quote at either end."""
    regex = normalise(written)
    assert "," not in regex
    assert " " not in regex
    assert regex.strip("\"'") == regex


def test_constructors_normalise_the_regex() -> None:
    """`white_list` and `black_list` return a filter with the normalised regular expression."""
    assert white_list(' "a, b" ') == TopicFilter(Pattern.WHITE_LIST, "a|b")
    assert black_list("a, b") == TopicFilter(Pattern.BLACK_LIST, "a|b")


@pytest.mark.parametrize("regex", ["[", "{", "a{1,3}", "*", "(?#c)", "a\\"])
def test_what_java_refuses_is_a_configuration_error(regex: str) -> None:
    """A constructor or an evaluation rejects an invalid filter with the JVM's error text."""
    words = re.escape(f"{normalise(regex)} is an invalid regex")
    with pytest.raises(ConfigError, match=words):
        white_list(regex)
    with pytest.raises(ConfigError, match=words):
        black_list(regex)
    with pytest.raises(InvalidFilterError, match=words):
        matching(TopicFilter(Pattern.BLACK_LIST, normalise(regex)), [], internal=NONE)


def test_the_order_of_the_topics_is_kept() -> None:
    """The matching topics are returned in the given order, with duplicates."""
    topics = ["b", "a", "c", "b"]
    assert matching(black_list("c"), topics, internal=NONE) == ("b", "a", "b")
    assert matching(white_list(".*"), iter(topics), internal=frozenset("a")) == ("b", "c", "b")
    assert matching(white_list(".*"), [], internal=NONE) == ()


COSTLY, TOPICS = white_list("(a|aa)+b"), [f"{'a' * 200}{n}" for n in range(50)]


def test_a_filter_that_takes_too_long_is_given_up() -> None:
    """The time limit of a list ends catastrophic backtracking; the error names the limit."""
    with pytest.raises(FilterTooCostlyError, match="more than 1 s on 50 topics"):
        matching(COSTLY, TOPICS, internal=NONE)


def test_a_time_out_is_not_remembered() -> None:
    """If a filter exceeded its time limit, the next request evaluates it again."""
    slow, topics = white_list("(a|aa)+b|a+1"), ["a" * 22 + "1"]
    with pytest.raises(FilterTooCostlyError):
        matching(slow, topics, internal=NONE, budget_s=0.000_001)
    assert matching(slow, topics, internal=NONE, budget_s=60.0) == tuple(topics)


@given(st.lists(st.text(alphabet="ab.-_1", min_size=1, max_size=8), max_size=20))
def test_a_black_list_is_the_rest_of_a_white_list(topics: list[str]) -> None:
    """A topic passes a blacklist if and only if it fails the whitelist of the same regex."""
    white = matching(white_list("a.*|.*1"), topics, internal=NONE)
    black = matching(black_list("a.*|.*1"), topics, internal=NONE)
    assert sorted(white + black) == sorted(topics)
