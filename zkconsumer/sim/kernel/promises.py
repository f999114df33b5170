"""The promises of a simulated world, as named predicates.

A monitor remembers what has happened in a run, and checks a promise when something happens that
could break it. The lists of promises are `sim.promises.PROMISES`, `sim.bridged.monitor.PROMISES`
and `sim.coordinated.monitor.PROMISES`; docs/verification.md and docs/later.md explain them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeAlias

from zkconsumer.sim.kernel.world import InvariantViolation

P = ParamSpec("P")

Reason: TypeAlias = str | None
"""Why a promise is broken: what happened to which member and partition; None if it is kept."""


class Promise(Generic[P]):
    """A promise, or one part of it, with the predicate that judges it.

    Attributes:
        number: the number of the promise, such as "I5"; several predicates may judge one promise.
        name: the name of the predicate.
        sentence: what is promised, which is the first paragraph of the predicate's docstring.
        reason: the predicate. It changes nothing.
    """

    __slots__ = ("name", "number", "reason", "sentence")

    def __init__(self, number: str, reason: Callable[P, Reason]) -> None:
        self.number, self.name, self.reason = number, reason.__name__, reason
        self.sentence = " ".join((inspect.getdoc(reason) or "").partition("\n\n")[0].split())

    def check(self, *given: P.args, **named: P.kwargs) -> None:
        """Raise InvariantViolation if the promise is broken."""
        if why := self.reason(*given, **named):
            raise self.broken(why)

    def broken(self, why: str) -> InvariantViolation:
        """Return the exception that reports this promise as broken."""
        return InvariantViolation(self.number, why, promise=self.name)


def promise(number: str) -> Callable[[Callable[P, Reason]], Promise[P]]:
    """Make a predicate the judge of the promise with this number."""

    def named(reason: Callable[P, Reason]) -> Promise[P]:
        return Promise(number, reason)

    return named
