"""Java's regular expressions: matches, rejected patterns, and limits on cost."""

from __future__ import annotations

import random
import re
import resource
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zkconsumer.errors import (
    ConfigError,
    FilterTooCostlyError,
    InvalidFilterError,
    UnsupportedFilterError,
)
from zkconsumer.protocol.java.regex import MAX_LENGTH, compile_java
from zkconsumer.protocol.java.regex.class_parser import MAX_DEPTH
from zkconsumer.protocol.java.regex.parser import MAX_ALTERNATIVES, MAX_COUNT


def _matches(pattern: str, *texts: str) -> list[str]:
    hits = compile_java(pattern).matches(texts, timeout_s=10.0)
    return [text for text, hit in zip(texts, hits, strict=True) if hit]


# ---- many topics in one go ----------------------------------------------------------------------


def test_matches_stop_at_the_ends_of_a_topic() -> None:
    """Anchors, lookarounds and word boundaries stop at the ends of a topic, even an empty one."""
    texts = ("", "a", "b", "", "ab", "a")
    assert _matches("^a$", *texts) == ["a", "a"]
    assert _matches(r"(?<!b)a(?!b).*|\b", *texts) == ["a", "a"]
    assert _matches("(?s)[^a]*", *texts) == ["", "b", ""]
    assert _matches(r"\P{L}*|[^\x00]b", *texts) == ["", "", "ab"]
    assert _matches("", *texts) == ["", ""]


@given(st.lists(st.text(alphabet="ab\u2028\n_", max_size=4), max_size=8), st.integers(0, 7))
@pytest.mark.parametrize("pattern", [r"\ba.*", "(?m)^a$.*", r".*b\Z", r"(a|b)\1?", r"(?>a*)[^a]*"])
def test_a_text_matches_alone_as_among_others(pattern: str, texts: list[str], at: int) -> None:
    """A text gives the same result whether it is matched alone or in a list of texts."""
    hits = compile_java(pattern).matches(texts, timeout_s=10.0)
    for text, hit in list(zip(texts, hits, strict=True))[at : at + 1]:
        assert compile_java(pattern).matches([text], timeout_s=10.0) == [hit]


def test_any_character_of_a_topic_name() -> None:
    r"""`\X` matches one character of a topic name, repeated or beside others, but no boundary."""
    names = ("a", "ab", "a.b-1_", "", "9")
    assert _matches(r"\X", *names) == ["a", "9"]
    assert _matches(r"\X{2}", *names) == ["ab"]
    assert _matches(r"a\X*", *names) == ["a", "ab", "a.b-1_"]
    assert _matches(r"\X*+", *names) == list(names)


# ---- what is no pattern, and what is refused ----------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        "[",
        "[]",
        "[^]",
        "[a",
        "(",
        ")",
        "(?",
        "(?<",
        "(?<n",
        "(?<1>a)",
        "(?P<n>a)",
        "(?#c)",
        "*",
        "a**",
        "a{",
        "{",
        "a{1",
        "a{2,1}",
        "a{,2}",
        "\\",
        r"a\E",
        r"\y",
        r"\0",
        r"\08",
        r"\x4",
        r"\x{}",
        r"\x{110000}",
        r"\u12",
        r"\c",
        r"\p",
        r"\p{}",
        r"\p{L",
        r"\p{isL}",
        r"\k<n>",
        "(?<=c(d|e){2})f",
        "[z-a]",
        r"[a-\d]",
        r"[\b]",
        "[&&]",
    ],
)
def test_errors_of_syntax(pattern: str) -> None:
    """A pattern that Java rejects raises InvalidFilterError with the position of the error."""
    with pytest.raises(InvalidFilterError) as raised:
        compile_java(pattern)
    assert raised.value.what == f"{pattern} is an invalid regex"
    assert raised.value.where


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?<=\X)a",
        r"\b{g}",
        r"\N{COLON}",
        "(?c)a",
        r"(?i)(a)\1",
        r"(a\1)",
        r"(?:\2|(a)(b))+",
        r"(?:(\B)*?)\1",
        r"(?!(a))\1",
        "(?<=a+)b",
        "(?<=a?+b)c",
        "(?:^a|^|b){2}",
        "[^a[b]]",
        "[^a&&b]",
        r"\p{IsKawi}",
        r"\p{InKawi}",
        r"\p{javaUnicodeIdentifierStart}",
        r"(?i)\p{Lu}",
        "(?iu)ß",
    ],
)
def test_what_cannot_be_done_as_java_does_is_refused(pattern: str) -> None:
    """A pattern that Python cannot match as Java does raises UnsupportedFilterError."""
    with pytest.raises(UnsupportedFilterError) as raised:
        compile_java(pattern)
    assert raised.value.where


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [
        ("a" * (MAX_LENGTH + 1), "characters"),
        ("(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} nested groups"),
        ("[" * (MAX_DEPTH + 1) + "a" + "]" * (MAX_DEPTH + 1), f"{MAX_DEPTH} nested groups"),
        ("a" + "|a" * MAX_ALTERNATIVES, f"more than {MAX_ALTERNATIVES} alternatives"),
        (f"a{{{MAX_COUNT + 1}}}", f"more than {MAX_COUNT} rounds"),
        ("a{99999999999999999999999}", f"more than {MAX_COUNT} rounds"),
        ("a{1,99999999}", f"more than {MAX_COUNT} rounds"),
        ("(a{200}){200}", "nested repetitions with more than 10000 rounds"),
        (r"(?iu)[\x{0}-\x{10FFFF}]" * 100, "classes of more than 200000 characters"),
    ],
)
def test_limits_are_named(pattern: str, limit: str) -> None:
    """A pattern that exceeds a limit is not compiled; the error names the limit."""
    with pytest.raises(FilterTooCostlyError, match=limit) as raised:
        compile_java(pattern)
    assert len(str(raised.value)) < 400


def test_what_is_within_the_limits_compiles() -> None:
    """Patterns just below the limits of size, depth and counts are compiled."""
    assert _matches("(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH, "a", "b") == ["a"]
    assert _matches(f"a{{0,{MAX_COUNT}}}", "a" * 249, "b") == ["a" * 249]
    assert _matches("b" + "|a" * (MAX_ALTERNATIVES - 1), "a", "b", "c") == ["a", "b"]
    assert _matches("a" * MAX_LENGTH, "a" * MAX_LENGTH, "a") == ["a" * MAX_LENGTH]


# ---- hostile patterns ---------------------------------------------------------------------------

_BOMBS = [
    "(a+)+$",
    "(a|aa)+b",
    "(a|a)*b",
    "(a*)*b",
    "(a*?)*?b",
    "(.*)*x{2}",
    "(.*a){20}b",
    "([a-z]+)*!z",
    "(a?){100}a{100}",
    "(?:a?){1000}a{900}",
    "(?:(?:a{0,10}){0,10}){0,100}b",
    "(a|b|ab)*c",
    "(?:a{0,900}b?){0,10}c",
    "(((((a*)*)*)*)*)*b",
    "(.+)+\\.(.+)+\\.(.+)+z",
    "(a+){2,1000}b",
    "(?!(a+)+$)b",
    "(?=(a+)+b)x",
    "(?>(a+)+b)",
    "(\\w+\\d?)+!!",
    "(x+x+)+z",
    ".*.*.*.*.*.*.*.*z",
    "(.*)(.*)(.*)(.*)(.*)\\1\\2\\3\\4\\5z",
    "(?:(?:a|b|c|d|.)*.*)*z",
    "(?i)(a|A)+b",
    "(?:\\b.)+z",
    "a{99999999}",
    "(a{1000}){1000}",
    "a{2147483647}",
    "((a{99}){99}){99}",
    "(?:){1000}{1000}",
    "(" * 400 + ")" * 400,
    "(?:" * 5000,
    "[" * 400,
    "[a&&" * 400,
    "(?<=" * 400,
    "|" * 15000,
    "a|" * 9000,
    "(?=a)" * 3000,
    "(?<=a{1,900})" * 100,
    "\\p{L}" * 3000,
    "[^a]" * 4000,
    "(?i)" * 4000,
    "\\b" * 5000,
    "^*" * 3000,
    "(?:^)*" * 1000,
    "\\Q(a+)+" * 2000,
    "\\Q" + "\\" * 9000,
    "(?iu)[\\x{0}-\\x{10FFFF}]" * 60,
    "\\x{" + "0" * 9000 + "}",
    "\\p{" + "L" * 9000 + "}",
    "(?<" + "n" * 9000 + ">a)",
    "#" * 9000,
    "(?x)" + "#\n" * 5000,
    "\\1" * 5000,
    "(a)" * 3000,
    "(a)\\1" * 2000,
    "a++" * 4000,
    "a*?" * 4000,
    "[a-z&&[b-y&&[c-x]]]" * 500,
    "$" * 5000,
]


def _random_bombs() -> list[str]:
    chance = random.Random(5)
    parts = ["(", ")", "a", "b", ".", "*", "+", "?", "{9}", "{2,99}", "|", "[ab]", "\\w", "(?:"]
    return ["".join(chance.choices(parts, k=60)) for _ in range(60)] + [
        "(" * 9 + "a" + "".join(chance.choices(["*)", "+)", "?)", "{1,9})"], k=9)) + "b"
        for _ in range(30)
    ]


def test_hostile_patterns_cost_little() -> None:
    """150 patterns that were made to use much time or memory end within their limits."""
    topics = ["a" * 249, "a" * 40 + "!", "ab" * 60, "x" * 200, "a.b.c.d" * 20, "t1"] * 20
    bombs = [*_BOMBS, *_random_bombs()]
    assert len(bombs) >= 150
    ended = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for bomb in bombs:
        started = time.process_time()
        try:
            compile_java(bomb).matches(topics, timeout_s=0.05)
        except ConfigError as error:
            assert len(str(error)) < 500
        except TimeoutError:
            ended += 1
        assert time.process_time() - started < 2.0, bomb[:60]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # Linux reports kilobytes.
    assert grown < 200_000
    assert ended > 5  # Only the time limit can stop these patterns.


@settings(max_examples=300)
@given(st.text(alphabet="ab[]^-&\\(){}|?*+.,012:=!<>iuxQEpPLwdDSbckv#$\n\x00é", max_size=20))
@example("\x00")
@example("\\Q\\")
@example("(?x)#")
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    """Any text either compiles as a pattern, or raises one of the three errors."""
    try:
        assert _matches(pattern, "a", "b", "é") is not None
    except (InvalidFilterError, UnsupportedFilterError):
        pass
    except TimeoutError:
        pytest.fail("a short pattern on short texts must not exceed the time limit")


@given(st.text(max_size=20).filter(lambda text: "\\E" not in text and "\udfff" not in text))
def test_quoted_text_matches_itself(text: str) -> None:
    r"""`\Q...\E` matches any text literally."""
    assert _matches(f"\\Q{text}\\E", text, text + "x", "x" + text) == [text]


@given(
    st.lists(st.sampled_from(["a", "b", "[ab]", "a*", "b?", "(a|bb)", "(?:ab)+", "."]), max_size=5),
    st.lists(st.text(alphabet="ab", max_size=6), max_size=10),
)
def test_plain_patterns_match_as_everywhere(parts: list[str], texts: list[str]) -> None:
    """If all engines agree on a pattern, it matches as in Python's `re`."""
    pattern = "".join(parts)
    assert _matches(pattern, *texts) == [text for text in texts if re.fullmatch(pattern, text)]
