"""Parse a Java pattern into a tree: the grammar of `java.util.regex.Pattern` in Java 11.

`QuantifierParser` reads repetitions. The functions under "assertions" write the dot, anchors and
word boundaries for `regex`. `Parser` reads a whole pattern. All topics are matched in one text, in
which a separator follows each topic. So the start and the end of a topic are written as lookarounds
for the separator.
"""

from __future__ import annotations

from collections.abc import Callable

from zkconsumer.errors import FilterTooCostlyError, UnsupportedFilterError, quoted
from zkconsumer.protocol.java.regex.character_sets import (
    BOUND_WORD,
    LINE_ENDS,
    UNICODE_WORD,
    CharSet,
    Mode,
    Negation,
    Text,
    predefined,
    single,
)
from zkconsumer.protocol.java.regex.class_parser import ClassParser
from zkconsumer.protocol.java.regex.syntax_tree import (
    UNBOUNDED,
    Alternation,
    Assertion,
    Atomic,
    Chars,
    Grapheme,
    Group,
    LengthInfo,
    LineEnd,
    Lookaround,
    Node,
    QuantifierKind,
    Reference,
    Repeat,
    Sequence,
    ends_early_in_java,
    length_info,
    refuse_in_look_behind,
    uncertain_groups,
)

# ---- quantifiers ---------------------------------------------------------------------------------


# Maximum count of one repetition; a larger count raises FilterTooCostlyError. `regex` unrolls some
# repetitions: a{99999999} takes 1.9 GB. No topic is longer than 249 characters.
MAX_COUNT = 1_000


class QuantifierParser(ClassParser):
    """Reads the quantifier after a group, a class or a character."""

    def quantified(self, node: Node) -> Node:
        """Return the node, repeated if a quantifier follows."""
        match self.peek():
            case "?":
                return Repeat(node, 0, 1, self._quantifier())
            case "*":
                return Repeat(node, 0, UNBOUNDED, self._quantifier())
            case "+":
                return Repeat(node, 1, UNBOUNDED, self._quantifier())
            case "{":
                least, most = self._counts()
                self.cursor -= 1
                return Repeat(node, least, most, self._quantifier(), braces=True)
        return node

    def _quantifier(self) -> QuantifierKind:
        """Skip one character, and read the `?` or `+` after it."""
        try:
            quantifier = QuantifierKind(self.next())
        except ValueError:
            return QuantifierKind.GREEDY
        self.next()
        return quantifier

    def _counts(self) -> tuple[int, int]:
        if self.at(1) not in "0123456789":
            self.refuse("a { without a number after it")
        self.cursor += 1
        least = self._number()
        most = least
        if self.peek() == ",":
            self.next()
            most = UNBOUNDED if self.peek() == "}" else self._number()
        if self.read() != "}":
            self.refuse("a { without }")
        if most < least:
            self.refuse("a repetition whose maximum is below its minimum")
        return least, most

    def _number(self) -> int:
        digits = ""
        while self.peek() in "0123456789":
            digits += self.read()
        if len(digits.lstrip("0")) > len(str(MAX_COUNT)) or int(digits or "0") > MAX_COUNT:
            raise FilterTooCostlyError(f"a repetition of more than {MAX_COUNT} rounds")
        return int(digits or "0")


# ---- assertions ----------------------------------------------------------------------------------


START = r"(?<![^\uDFFF])"
END = r"(?=\uDFFF)"


def dot(mode: Mode) -> CharSet:
    """Return the characters that `.` matches."""
    if Mode.DOT_ALL in mode:
        return Negation(Text(r"\uDFFF"))
    return Negation(Text(r"\n" if Mode.UNIX_LINES in mode else LINE_ENDS))


def line_start(mode: Mode) -> str:
    """Return the assertion of `^`; with (?m) it does not match at the end of the text."""
    if Mode.MULTILINE not in mode:
        return START
    before = r"(?<=\n)" if Mode.UNIX_LINES in mode else rf"(?<=[{LINE_ENDS}])(?<!\r(?=\n))"
    return f"(?:(?!{END})(?:{START}|{before}))"


def line_end(mode: Mode) -> str:
    """Return the assertion of `$`: the end of the text, or before its last line end.

    With (?m), `$` also matches before every other line end.
    """
    return _before_line_end(mode, "" if Mode.MULTILINE in mode else END)


def _final_end(mode: Mode) -> str:
    r"""Return the assertion of `\Z`: the end of the text, or before its last line end."""
    return _before_line_end(mode, END)


def _before_line_end(mode: Mode, then: str) -> str:
    if Mode.UNIX_LINES in mode:
        return rf"(?:{END}|(?=\n{then}))"
    return rf"(?:{END}|(?=\r\n{then}|[\r\u0085\u2028\u2029]{then})|(?<!\r)(?=\n{then}))"


def _word_bound(mode: Mode) -> str:
    r"""Return the assertion of `\b`; a combining mark belongs to the word of its base character."""
    word = UNICODE_WORD if Mode.UNICODE_CLASSES in mode else BOUND_WORD
    base = r"[\p{L}\p{Nd}]"
    left = rf"(?:(?<=[{word}])|(?<={base}\p{{Mn}}+))"
    right = rf"(?:(?=[{word}])|(?=\p{{Mn}})(?<={base}\p{{Mn}}*))"
    return rf"(?:{left}(?!{right})|(?!{left}){right})"


# letter of an escape -> its assertion
ASSERTIONS: dict[str, Callable[[Mode], str]] = {
    "A": lambda _: START,
    "G": lambda _: START,
    "Z": _final_end,
    "z": lambda _: END,
    "b": _word_bound,
    "B": lambda mode: f"(?!{_word_bound(mode)})",
}


# ---- patterns ------------------------------------------------------------------------------------


# Maximum number of alternatives in a pattern; a larger number raises FilterTooCostlyError, because
# `regex` tries the alternatives one by one.
MAX_ALTERNATIVES = 2_000

_FLAGS = {
    "i": Mode.CASE_INSENSITIVE,
    "m": Mode.MULTILINE,
    "s": Mode.DOT_ALL,
    "d": Mode.UNIX_LINES,
    "u": Mode.UNICODE_CASE,
    "x": Mode.COMMENTS,
    "U": Mode.UNICODE_CLASSES | Mode.UNICODE_CASE,
}


class Parser(QuantifierParser):
    """Parses one pattern; `parse` may be called once."""

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self.groups = 0
        self.names: dict[str, int] = {}
        self.closed: set[int] = set()
        self.referenced: set[int] = set()
        self.early: set[int] = set()  # groups that are missing, or are referenced before their end
        self.alternatives = 1

    def parse(self) -> Node:
        """Parse the whole pattern, or raise InvalidFilterError or UnsupportedFilterError."""
        try:
            whole = self._alternation()
            if self.cursor != self.length:
                self.refuse("a ) without a (, or a \\ at the end")
        except IndexError:
            self.refuse("the pattern ends too early")
        self._check_references(whole)
        if ends_early_in_java(whole):
            raise UnsupportedFilterError("a repetition whose content may match the empty text")
        return whole

    def _check_references(self, whole: Node) -> None:
        """Refuse a reference whose group may be unmatched, or matched differently in Java.

        A reference to a group that does not exist is allowed; it never matches.
        """
        if any(number <= self.groups for number in self.early):
            raise UnsupportedFilterError("a reference to a group before its end")
        if self.referenced & uncertain_groups(whole):
            raise UnsupportedFilterError("a reference to a group whose last match is ambiguous")

    def _alternation(self) -> Node:
        branches = [self._sequence()]
        while self.peek() == "|":
            self.next()
            self.alternatives += 1
            if self.alternatives > MAX_ALTERNATIVES:
                raise FilterTooCostlyError(f"more than {MAX_ALTERNATIVES} alternatives")
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Alternation(tuple(branches))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while True:
            char = self.peek()
            if char in "|)" or (char == "\0" and self.ended()):
                return Sequence(tuple(items))
            if char in "?*+":
                self.refuse(f"a {char} with nothing to repeat before it")
            if char == "(":
                group = self._group()
                if group is not None:
                    items.append(group)
            else:
                items.append(self.quantified(self._atom(char)))

    # ---- atoms ----------------------------------------------------------------------------------

    def _atom(self, char: str) -> Node:
        if char == "[":
            return Chars(self.char_class())
        if char == "\\":
            return self._escape()
        if char == "{":  # in Java, it quantifies the empty text
            return Assertion()
        self.next()
        if char == "^":
            return Assertion(line_start(self.mode))
        if char == "$":
            return Assertion(line_end(self.mode))
        if char == ".":
            return Chars(dot(self.mode))
        return Chars(single(ord(char), self.mode))

    def _escape(self) -> Node:
        letter = self.at(1)
        if letter in "pP":
            self.cursor += 1
            return Chars(self.family())
        self.skip()
        if letter in "123456789":
            return self._numbered(int(letter))
        if letter == "X":
            return Grapheme()
        if letter == "b" and self.peek() == "{":
            raise UnsupportedFilterError("Java's releases differ in what \\b{g} matches")
        if letter in ASSERTIONS:
            return Assertion(ASSERTIONS[letter](self.mode))
        if letter == "R":
            return LineEnd()
        if letter == "k":
            return self._named_reference()
        chars = predefined(letter, self.mode)
        if chars is not None:
            return Chars(chars)
        code = self.literal_escape(letter)
        if code is None:
            self.refuse(f"Java has no escape \\{letter}")
        return Chars(single(code, self.mode))

    # ---- references -----------------------------------------------------------------------------

    def _numbered(self, number: int) -> Node:
        while self.peek() in "0123456789" and number * 10 + int(self.peek()) <= self.groups:
            number = number * 10 + int(self.read())
        return self._reference(number)

    def _named_reference(self) -> Node:
        if self.read() != "<":
            self.refuse("\\k without <")
        name = self._group_name(self.read())
        if name not in self.names:
            self.refuse(f"no group before the reference is named {quoted(name)}")
        return self._reference(self.names[name])

    def _reference(self, number: int) -> Node:
        if Mode.CASE_INSENSITIVE in self.mode:
            raise UnsupportedFilterError("a case-insensitive reference to a group")
        (self.referenced if number in self.closed else self.early).add(number)
        return Reference(number)

    def _group_name(self, char: str) -> str:
        name = ""
        while char.isascii() and (char.isalpha() or (name and char.isdigit())):
            name += char
            char = self.read()
        if not name or char != ">":
            self.refuse("a group's name needs letters and digits between < and >")
        return name

    # ---- groups ---------------------------------------------------------------------------------

    def _group(self) -> Node | None:
        """Read a group and its quantifier; return None for flags only. The cursor is on the `(`."""
        self.deeper()
        before = self.mode
        found: Node | None
        if self.next() == "?":
            found = self._special(self.skip())
            if found is None:
                self.depth -= 1
                return None
        else:
            found = self._capturing()
        if self.read() != ")":
            self.refuse("a group without )")
        self.mode = before
        self.depth -= 1
        return self.quantified(found)

    def _capturing(self) -> Node:
        self.groups += 1
        number = self.groups
        inner = self._alternation()
        self.closed.add(number)
        return Group(inner, number)

    def _special(self, char: str) -> Node | None:
        """Read the rest of a group after `(?x`; the cursor is after the x."""
        match char:
            case ":":
                return Group(self._alternation())
            case "=" | "!":
                return Lookaround(Group(self._alternation()), f"?{char}")
            case ">":
                return Atomic(self._alternation())
            case "<":
                return self._named_or_behind(self.read())
        self.cursor -= 1
        self._flags()
        char = self.read()
        if char == ")":
            return None
        if char != ":":
            self.refuse(f"Java has no group that begins with (?{char}")
        return Group(self._alternation())

    def _named_or_behind(self, char: str) -> Node:
        if char in "=!":
            inner = self._alternation()
            self._check_behind(inner)
            return Lookaround(Group(inner), f"?<{char}")
        name = self._group_name(char)
        if name in self.names:
            self.refuse(f"two groups are named {quoted(name)}")
        self.names[name] = self.groups + 1
        return self._capturing()

    def _check_behind(self, inner: Node) -> None:
        found = length_info(inner, LengthInfo())
        if found.release_dependent:
            raise UnsupportedFilterError("Java's releases differ in unbounded lookbehinds")
        if not found.bounded:
            self.refuse("a lookbehind without an obvious maximum length")
        refuse_in_look_behind(inner)

    def _flags(self) -> None:
        char, on = self.peek(), True
        while char in _FLAGS or char in "c-":
            if char == "-":
                if not on:
                    return
                on = False
            elif char == "c":
                if on:
                    raise UnsupportedFilterError("canonical equivalence, (?c)")
            elif on:
                self.mode |= _FLAGS[char]
            else:
                self.mode &= ~_FLAGS[char]
            char = self.next()
