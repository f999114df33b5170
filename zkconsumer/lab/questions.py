"""Questions about runs: a promise by its number, or a comparison of a partition's quantities.

A question is a text, such as `I3`, `any`, or `deliverers(partition) <= 1`. It has watchers, which
raise InvariantViolation at the action after which the answer is no. A search looks for such a run,
and a run that was opened with a question shows the action.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection
from typing import Final, ParamSpec, Self, TypeAlias

from zkconsumer.errors import ConfigError, escaped_and_cut
from zkconsumer.frozen import dataclass
from zkconsumer.lab.stage import copied
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim import promises
from zkconsumer.sim.kernel.world import Delivered, InvariantViolation
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action
from zkconsumer.sim.promises import PROMISES
from zkconsumer.sim.stage import ORDINARY, monitor_for
from zkconsumer.sim.world import Watcher, Watchers, World, repairs

P = ParamSpec("P")

ANY: Final = "any"
"""The question whether any promise is broken."""

SETTLES_S: Final = 30.0
"""Virtual seconds within which a group settles after its dead members' sessions have expired. They
include back-offs and the grace period of a user that has been slow.
"""

COMPARISON: Final = "comparison"
"""The number of a violation that a comparison reports."""


# ---- comparisons ---------------------------------------------------------------------------------


class Measure(Watcher):
    """What the quantities need to remember of a run."""

    def __init__(self) -> None:
        self.delivered_below: dict[TopicPartition, int] = {}
        self.redelivered: dict[TopicPartition, int] = {}
        self.skipped: dict[TopicPartition, int] = {}
        self.highest: dict[TopicPartition, int] = {}
        self.owned_at: dict[TopicPartition, float] = {}

    def copy(self) -> Self:
        twin: Self = copied(self)
        return twin

    def delivered(self, world: World, message: Delivered) -> None:
        tp, offset = message.tp, message.offset
        below = self.delivered_below.get(tp, 0)
        self.redelivered[tp] = self.redelivered.get(tp, 0) + (offset < below)
        self.skipped[tp] = self.skipped.get(tp, 0) + max(0, offset - below)
        self.delivered_below[tp] = max(below, offset + 1)

    def acted(self, world: World, action: Action) -> None:
        for tp in world.log_end:
            if world.owner(tp) is not None:
                self.owned_at[tp] = world.now
            self.owned_at.setdefault(tp, world.now)
            self.highest[tp] = max(self.highest.get(tp, 0), stored(world, tp))


def stored(world: World, tp: TopicPartition) -> int:
    """Return the offset that ZooKeeper stores; 0 if there is none, or if it is unreadable."""
    node = world.zookeeper.nodes.get(paths.offset(world.GROUP, tp))
    data = b"" if node is None else node.data or b""
    return int(data) if data.isdigit() else 0


Quantity = Callable[[World, Measure, TopicPartition], float]


def _owners(world: World, _: Measure, tp: TopicPartition) -> float:
    """owner znodes of the partition: 0 or 1"""
    return float(world.owner(tp) is not None)


def _deliverers(world: World, _: Measure, tp: TopicPartition) -> float:
    """members that may hand out the partition's messages now"""
    pairs = zip(world.members, world.links, strict=True)
    return sum(
        tp in member.feeds
        and link.joined
        and not (link.dead or link.frozen)
        and member.may_ask(world.now)
        for member, link in pairs
    )


def _position(_: World, measure: Measure, tp: TopicPartition) -> float:
    """the offset after the last message that was delivered"""
    return measure.delivered_below.get(tp, 0)


def _offset(world: World, _: Measure, tp: TopicPartition) -> float:
    """the offset that ZooKeeper stores; 0 if none is stored"""
    return stored(world, tp)


def _lowered(world: World, measure: Measure, tp: TopicPartition) -> float:
    """messages by which the stored offset is below its highest value so far"""
    return measure.highest.get(tp, 0) - stored(world, tp)


def _redelivered(_: World, measure: Measure, tp: TopicPartition) -> float:
    """messages that were delivered again"""
    return measure.redelivered.get(tp, 0)


def _skipped(_: World, measure: Measure, tp: TopicPartition) -> float:
    """messages that were skipped"""
    return measure.skipped.get(tp, 0)


def _seconds_without_owner(world: World, measure: Measure, tp: TopicPartition) -> float:
    """seconds since the partition had an owner; 0 while it has one"""
    return world.now - measure.owned_at.get(tp, world.now)


QUANTITIES: Final[dict[str, Quantity]] = {
    "owners": _owners,
    "deliverers": _deliverers,
    "position": _position,
    "offset": _offset,
    "lowered": _lowered,
    "redelivered": _redelivered,
    "skipped": _skipped,
    "seconds_without_owner": _seconds_without_owner,
}
"""The quantities of a comparison. The docstring of each one says what it is."""

OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}


@dataclass(frozen=True)
class Term:
    """One side of a comparison: a quantity of a partition, or a number."""

    text: str
    value: Quantity

    @classmethod
    def parse(cls, text: str, whole: str) -> Term:
        named = re.fullmatch(r"(\w+)\s*\(\s*partition\s*\)", text)
        if named and named[1] in QUANTITIES:
            return cls(f"{named[1]}(partition)", QUANTITIES[named[1]])
        if re.fullmatch(r"\d{1,9}(\.\d{1,3})?", text):
            number = float(text)
            return cls(text, lambda world, measure, tp: number)
        names = ", ".join(f"{name}(partition)" for name in QUANTITIES)
        raise _refused(
            f"{escaped_and_cut(text, 60)!r} is neither a number nor a quantity",
            where=escaped_and_cut(whole, 120),
            remedy=f"use one of {names}",
        )


@dataclass(frozen=True)
class Comparison:
    """What is asked about each partition after each action."""

    left: Term
    sign: str
    right: Term

    def __str__(self) -> str:
        return f"{self.left.text} {self.sign} {self.right.text}"

    @staticmethod
    def parse(text: str) -> Comparison:
        """Return the comparison that a text describes. Raises ConfigError."""
        parts = re.split(r"(<=|>=|!=|<|>|=+)", text)
        if len(parts) != 3:
            raise _refused(
                "the question is neither a promise nor one comparison",
                where=escaped_and_cut(text, 120),
                remedy="ask for example I3, any, or deliverers(partition) <= 1",
            )
        left, sign, right = (part.strip() for part in parts)
        if sign.strip("=") == "":
            sign = "="
        one, other = Term.parse(left, text), Term.parse(right, text)
        if one.text[0].isdigit() and other.text[0].isdigit():
            raise _refused(
                "the comparison has no quantity",
                where=escaped_and_cut(text, 120),
                remedy="compare for example deliverers(partition) with 1",
            )
        return Comparison(one, sign, other)

    def reason(self, world: World, measure: Measure) -> str | None:
        """Return for which partition the comparison is false; None if for none."""
        holds = OPERATORS[self.sign]
        for tp in world.log_end:
            left, right = (one.value(world, measure, tp) for one in (self.left, self.right))
            if not holds(left, right):
                shown = [
                    f"{one.text.replace('partition', str(tp))} is {value:g}"
                    for one, value in ((self.left, left), (self.right, right))
                    if not one.text[0].isdigit()
                ]
                return " and ".join(shown)
        return None


class Compared(Measure):
    """Checks a comparison after each action."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison

    def acted(self, world: World, action: Action) -> None:
        super().acted(world, action)
        if why := self.comparison.reason(world, self):
            raise InvariantViolation(COMPARISON, why, promise=str(self.comparison))


# ---- promises ------------------------------------------------------------------------------------


class Promised(Watchers):
    """Checks all promises after each action, including that the group settles in time (I12).

    The group must settle within `SETTLES_S` seconds and two session timeouts after the last
    fault has ended. JVM members need not settle.
    """

    def __init__(self, monitor: Monitor, *, settles: bool) -> None:
        super().__init__(monitor)
        self._monitor = monitor
        self._settles = settles
        self._since = 0.0
        self._has_settled = False

    def copy(self) -> Promised:
        twin = Promised(self._monitor.copy(), settles=self._settles)
        twin._since, twin._has_settled = self._since, self._has_settled
        return twin

    def acted(self, world: World, action: Action) -> None:
        super().acted(world, action)
        if not self._settles:
            return
        if action.do not in ORDINARY or repairs(world):
            self._since, self._has_settled = world.now, False
        elif not self._has_settled:
            why = self._monitor.converged(world)
            self._has_settled = not why
            if why and world.now > self._since + settles_within_s(world):
                raise promises.group_settles.broken(why)


def settles_within_s(world: World) -> float:
    """Return within how many virtual seconds a group must settle when nothing happens to it."""
    return SETTLES_S + 2 * world.plan.session_s


# ---- questions -----------------------------------------------------------------------------------


Judge: TypeAlias = Promised | Compared
"""The watcher of a question. It raises InvariantViolation when the answer is no."""


@dataclass(frozen=True)
class Question:
    """What is asked about a run.

    Attributes:
        text: `any`, the number of a promise, or a comparison.
        sentence: the promise, or the comparison in words.
    """

    text: str
    sentence: str
    comparison: Comparison | None = None

    def judge(self, jvm: Collection[int]) -> Judge:
        """Return the watcher of a run with these JVM members."""
        if self.comparison is not None:
            return Compared(self.comparison)
        return Promised(monitor_for(frozenset(jvm)), settles=not jvm)

    def is_answered_by(self, violation: InvariantViolation) -> bool:
        """Return whether this violation is the one that the question asks for."""
        return self.text in (ANY, violation.invariant) or violation.invariant == COMPARISON


def parse_question(text: str) -> Question:
    """Return the question that a text describes. Raises ConfigError."""
    text = text.strip()
    if text.lower() == ANY:
        return Question(ANY, "Every promise is kept.")
    number = text.upper()
    if re.fullmatch(r"I\d+", number):
        if number not in NUMBERS:
            raise _refused(
                f"there is no promise {number}", where=number, remedy=f"use {', '.join(NUMBERS)}"
            )
        return Question(number, NUMBERS[number])
    comparison = Comparison.parse(text)
    return Question(str(comparison), f"{comparison} for each partition, at any time.", comparison)


NUMBERS: Final = {
    number: " ".join(one.sentence for one in PROMISES if one.number == number)
    for number in sorted({one.number for one in PROMISES}, key=lambda one: int(one[1:]))
}
"""Number of a promise -> its sentences."""


def _refused(what: str, *, where: str, remedy: str) -> ConfigError:
    return ConfigError(what, where=where, remedy=remedy)


class Witness(Watchers):
    """Watches a run with a question, and remembers the first violation; the run goes on."""

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._judge = judge
        self.violation: InvariantViolation | None = None

    def copy(self) -> Witness:
        twin = Witness(self._judge.copy())
        twin.violation = self.violation
        return twin

    def judge(self) -> Judge:
        """Return a watcher that continues from here, and raises at the first violation."""
        return self._judge.copy()

    def tell(self, call: Callable[P, None], *given: P.args, **named: P.kwargs) -> None:
        if self.violation is None:
            try:
                call(*given, **named)
            except InvariantViolation as violation:
                self.violation = violation
