"""Quantifiers of Java's patterns."""

from __future__ import annotations

from zkconsumer.core.javaregex.classes import ClassParser
from zkconsumer.core.javaregex.nodes import ENDLESS, Greed, Node, Repeat
from zkconsumer.errors import FilterTooCostlyError

# Rounds of one counted repetition. `regex` lays some of them out one by one: a{99999999} takes
# 1.9 GB. No topic is longer than 249 characters. More raise FilterTooCostlyError.
MAX_COUNT = 1_000


class QuantifierParser(ClassParser):
    """Reads what stands behind a group, a class or a character."""

    def quantified(self, node: Node) -> Node:
        """The node, repeated if a quantifier follows."""
        match self.peek():
            case "?":
                return Repeat(node, 0, 1, self._greed())
            case "*":
                return Repeat(node, 0, ENDLESS, self._greed())
            case "+":
                return Repeat(node, 1, ENDLESS, self._greed())
            case "{":
                least, most = self._counts()
                self.cursor -= 1
                return Repeat(node, least, most, self._greed(), braces=True)
        return node

    def _greed(self) -> Greed:
        """Leave out one character and read the sign behind it."""
        try:
            greed = Greed(self.next())
        except ValueError:
            return Greed.GREEDY
        self.next()
        return greed

    def _counts(self) -> tuple[int, int]:
        if self.at(1) not in "0123456789":
            self.refuse("a { that repeats nothing")
        self.cursor += 1
        least = self._number()
        most = least
        if self.peek() == ",":
            self.next()
            most = ENDLESS if self.peek() == "}" else self._number()
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
