"""What a pattern of Java's is made of, and its text for `regex`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from zkconsumer.core.javaregex.sets import CharSet, written

ENDLESS = 0x7FFFFFFF  # the count of an unbounded repetition, as in Java


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Assertion:
    """Matches no character; `text` is written for `regex`. The empty text always holds."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class LineEnd:
    """\\R: one line end, of one or two characters."""


@dataclass(frozen=True, slots=True)
class Grapheme:
    r"""\X: one extended grapheme cluster, which is one character wherever the text is ASCII."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """One of several, the first that leads on."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A group, capturing under its number from 1; 0 does not capture."""

    inner: Node
    number: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """A look around; `sign` is one of ?= ?! ?<= ?<!."""

    inner: Node
    sign: str


@dataclass(frozen=True, slots=True)
class Atomic:
    """(?>...): no way back into it."""

    inner: Node


class Greed(Enum):
    """How a repetition gives way; the values are what stands behind the quantifier."""

    GREEDY = ""
    LAZY = "?"
    POSSESSIVE = "+"


@dataclass(frozen=True, slots=True)
class Repeat:
    """`least` to `most` times; `braces` if it was written in them, which Java treats apart."""

    inner: Node
    least: int
    most: int
    greed: Greed
    braces: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """What a group matched."""

    number: int


Node = (
    Chars
    | Assertion
    | LineEnd
    | Grapheme
    | Sequence
    | Alternation
    | Group
    | Look
    | Atomic
    | Repeat
    | Reference
)


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below one."""
    match node:
        case Sequence(items):
            return items
        case Alternation(branches):
            return branches
        case Group(inner) | Look(inner) | Atomic(inner) | Repeat(inner):
            return (inner,)
    return ()


# ---- for `regex` to read ------------------------------------------------------------------------

NEVER = "(?!)"
_LINE_END = r"\r\n|[\n-\r\u0085\u2028\u2029]"


def text_of(node: Node, referenced: frozenset[int]) -> str:
    """The pattern for `regex`; only `referenced` groups capture, under the names g1, g2..."""
    match node:
        case Chars(chars):
            return written(chars)
        case Assertion(text):
            return text
        case LineEnd():
            return f"(?:{_LINE_END})"
        case Grapheme():
            return r"(?>(?!\uDFFF)\X)"  # never SEPARATOR
        case Sequence(items):
            return "".join(text_of(item, referenced) for item in items)
        case Alternation(branches):
            return "|".join(text_of(branch, referenced) for branch in branches)
        case Group(inner, number):
            opening = f"(?P<g{number}>" if number in referenced else "(?:"
            return f"{opening}{text_of(inner, referenced)})"
        case Look(inner, sign):
            return f"({sign}{text_of(inner, referenced)})"
        case Atomic(inner):
            return f"(?>{text_of(inner, referenced)})"
        case Repeat():
            return _repeat_text(node, referenced)
        case Reference(number):
            return f"(?P=g{number})" if number in referenced else NEVER


def _repeat_text(node: Repeat, referenced: frozenset[int]) -> str:
    text = text_of(node.inner, referenced)
    if not isinstance(node.inner, Chars):
        # In Java a possessive repetition never goes back into one of its rounds, and a quantified
        # line end does not try its other length; what else is no group has one way to match only.
        atomic = node.greed is Greed.POSSESSIVE or isinstance(node.inner, LineEnd)
        text = f"(?>{text})" if atomic else f"(?:{text})"
    return text + _quantifier(node.least, node.most) + node.greed.value


def _quantifier(least: int, most: int) -> str:
    if most == ENDLESS:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    if (least, most) == (0, 1):
        return "?"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"
