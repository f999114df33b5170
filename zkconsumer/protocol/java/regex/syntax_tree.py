"""The syntax tree of a Java pattern, its text for `regex`, and checks for differences.

The checks find patterns that Java rejects before it matches (because of a lookbehind's length),
and patterns with which `regex` would match differently from Java.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from zkconsumer.errors import UnsupportedFilterError
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.java.regex.character_sets import CharSet, written

UNBOUNDED = 0x7FFFFFFF  # the count of an unbounded repetition, as in Java


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Assertion:
    """An assertion in the syntax of `regex`; it consumes no character, and "" holds everywhere."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class LineEnd:
    r"""`\R`: one line end of one or two characters."""


@dataclass(frozen=True, slots=True)
class Grapheme:
    r"""`\X`: one extended grapheme cluster, which in ASCII text is one character."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """Several nodes, one after the other."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """Several branches. The matcher uses the first branch with which the rest of the pattern
    matches."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A group, which captures under its number from 1; number 0 does not capture."""

    inner: Node
    number: int = 0


@dataclass(frozen=True, slots=True)
class Lookaround:
    """A lookaround; `sign` is one of ?= ?! ?<= ?<!."""

    inner: Node
    sign: str


@dataclass(frozen=True, slots=True)
class Atomic:
    """`(?>...)`, into which the matcher does not backtrack."""

    inner: Node


class QuantifierKind(Enum):
    """How a repetition backtracks; the values are the characters after the quantifier."""

    GREEDY = ""
    LAZY = "?"
    POSSESSIVE = "+"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A repetition, `least` to `most` times; `braces` says that it is written in braces.

    Java treats repetitions in braces differently.
    """

    inner: Node
    least: int
    most: int
    quantifier: QuantifierKind
    braces: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """The text that a group matched."""

    number: int


Node = (
    Chars
    | Assertion
    | LineEnd
    | Grapheme
    | Sequence
    | Alternation
    | Group
    | Lookaround
    | Atomic
    | Repeat
    | Reference
)


def children(node: Node) -> tuple[Node, ...]:
    """Return the direct children of a node."""
    match node:
        case Sequence(items):
            return items
        case Alternation(branches):
            return branches
        case Group(inner) | Lookaround(inner) | Atomic(inner) | Repeat(inner):
            return (inner,)
    return ()


# ---- text for `regex` ---------------------------------------------------------------------------

NEVER = "(?!)"
_LINE_END = r"\r\n|[\n-\r\u0085\u2028\u2029]"


def text_of(node: Node, referenced: frozenset[int]) -> str:
    """Return the pattern for `regex`; only `referenced` groups capture, named g1, g2..."""
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
        case Lookaround(inner, sign):
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
        # In Java, a possessive repetition never backtracks into an iteration, and a quantified `\R`
        # that has matched `\r\n` does not try `\r` alone. All other nodes without a group match in
        # only one way.
        atomic = node.quantifier is QuantifierKind.POSSESSIVE or isinstance(node.inner, LineEnd)
        text = f"(?>{text})" if atomic else f"(?:{text})"
    return text + _quantifier(node.least, node.most) + node.quantifier.value


def _quantifier(least: int, most: int) -> str:
    if most == UNBOUNDED:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    if (least, most) == (0, 1):
        return "?"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"


# ---- checks --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LengthInfo:
    """Java's knowledge of a match's length, in 32-bit arithmetic (`Pattern.TreeInfo`).

    Attributes:
        longest: the maximum length; meaningless if not `bounded`.
        bounded: whether Java finds a maximum length, without which it rejects a lookbehind.
        fixed: Java's "deterministic": there is only one way to match.
        release_dependent: Java treats the length as bounded although it is unbounded; this depends
            on the release of Java.
    """

    longest: int = 0
    bounded: bool = True
    fixed: bool = True
    release_dependent: bool = False


def length_info(node: Node, before: LengthInfo) -> LengthInfo:
    """Return the length of the preceding nodes together with this node."""
    match node:
        case Chars() | Grapheme():
            return replace(before, longest=_int32(before.longest + 1))
        case LineEnd():
            return replace(before, longest=_int32(before.longest + 2))
        case Sequence(items):
            for item in items:
                before = length_info(item, before)
            return before
        case Alternation(branches):
            return _one_of(before, [length_info(branch, LengthInfo()) for branch in branches])
        case Group(inner) | Atomic(inner):
            return length_info(inner, before)
        case Repeat():
            return _repeated(node, before)
        case Reference():
            return replace(before, bounded=False)
    return before


def _one_of(before: LengthInfo, branches: list[LengthInfo]) -> LengthInfo:
    return LengthInfo(
        longest=_int32(before.longest + max(branch.longest for branch in branches)),
        bounded=before.bounded and all(branch.bounded for branch in branches),
        fixed=False,
        release_dependent=before.release_dependent
        or any(branch.release_dependent for branch in branches),
    )


def _repeated(node: Repeat, before: LengthInfo) -> LengthInfo:
    inner, group = node.inner, isinstance(node.inner, Group)
    once = length_info(inner, LengthInfo())
    if (node.least, node.most) == (0, 1) and not node.braces:
        return _one_of(before, [once, LengthInfo()])
    if group and node.quantifier is not QuantifierKind.POSSESSIVE and not once.fixed:
        return replace(before, bounded=False, fixed=False)
    endless = node.most == UNBOUNDED and once.longest != 0
    whole = _int32(once.longest * node.most + before.longest)
    sign = isinstance(inner, Chars) and node.quantifier is QuantifierKind.GREEDY and not node.braces
    overflow = whole < before.longest and not (endless and sign)
    return LengthInfo(
        longest=whole,
        bounded=before.bounded and once.bounded and not overflow,
        fixed=before.fixed and once.fixed and node.least == node.most,
        release_dependent=before.release_dependent or once.release_dependent or endless,
    )


def _int32(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def refuse_in_look_behind(node: Node) -> None:
    """Raise UnsupportedFilterError for a node that Java matches forwards in a lookbehind.

    `regex` matches it backwards.
    """
    if isinstance(node, Atomic | LineEnd | Grapheme) or (
        isinstance(node, Repeat) and node.quantifier is QuantifierKind.POSSESSIVE
    ):
        raise UnsupportedFilterError("a lookbehind contains a possessive repetition")
    for child in children(node):
        refuse_in_look_behind(child)


def uncertain_groups(node: Node) -> frozenset[int]:
    """Return the capturing groups whose last match may differ between Java and `regex`."""
    if isinstance(node, Lookaround) and node.sign != "?=":
        return _captured(node)
    if isinstance(node, Repeat) and _can_be_empty(node.inner):
        return _captured(node)
    return frozenset().union(*(uncertain_groups(child) for child in children(node)))


def _captured(node: Node) -> frozenset[int]:
    own = {node.number} if isinstance(node, Group) else set()
    return frozenset(own).union(*(_captured(child) for child in children(node)))


def repetition_product(node: Node) -> int:
    """Return the product of nested counted repetitions."""
    inner = max((repetition_product(child) for child in children(node)), default=1)
    if not isinstance(node, Repeat):
        return inner
    return inner * max(node.least if node.most == UNBOUNDED else node.most, 1)


def ends_early_in_java(node: Node) -> bool:
    """Return whether a repetition ends early in Java because an iteration can match the empty text.

    After an empty iteration Java's `Loop` ends, even below the minimum count. This has an effect
    only if the minimum is at least two and an iteration is empty at some positions and not at
    others.
    """
    if isinstance(node, Repeat) and isinstance(node.inner, Group) and node.least > 1:
        loops = (
            node.quantifier is not QuantifierKind.POSSESSIVE
            and not length_info(node.inner, LengthInfo()).fixed
        )
        if loops and _can_be_empty(node.inner) and _asserts(node.inner):
            return True
    return any(ends_early_in_java(child) for child in children(node))


def _can_be_empty(node: Node) -> bool:
    match node:
        case Chars() | LineEnd() | Grapheme():
            return False
        case Sequence(items):
            return all(map(_can_be_empty, items))
        case Alternation(branches):
            return any(map(_can_be_empty, branches))
        case Group(inner) | Atomic(inner):
            return _can_be_empty(inner)
        case Repeat(inner, least):
            return least == 0 or _can_be_empty(inner)
    return True


def _asserts(node: Node) -> bool:
    if isinstance(node, Assertion):
        return bool(node.text)
    return isinstance(node, Lookaround | Reference) or any(map(_asserts, children(node)))
