"""Tables of the phase changes that a state machine may make.

A row says: in one of the phases `before`, one of the `causes` may lead to one of the phases
`after`. A change that no row covers is a defect of the machine. A step may always leave the phase
unchanged. One step may pass through several phases; the table holds the phase before the step and
the phase after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Generic, TypeVar

from zkconsumer.frozen import dataclass

P = TypeVar("P", bound=Enum)
C = TypeVar("C")


@dataclass(frozen=True)
class PhaseChange(Generic[P, C]):
    """Legal phase changes; `when` says in which situation they happen."""

    before: frozenset[P]
    causes: tuple[C, ...]
    after: frozenset[P]
    when: str


class IllegalPhaseChangeError(AssertionError):
    """A step made a phase change that no row allows: a defect of the state machine."""


class PhaseTable(Generic[P, C]):
    """The rows of one machine.

    Attributes:
        changes: (phase, cause) -> the phases that may follow.
    """

    def __init__(
        self, rows: Sequence[PhaseChange[P, C]], *, source: str, name: Callable[[C], str]
    ) -> None:
        """Create the table; `source` is its module, and `name` returns the name of a cause."""
        self.changes: dict[tuple[P, C], frozenset[P]] = {}
        for row in rows:
            for before in row.before:
                for cause in row.causes:
                    known = self.changes.get((before, cause), frozenset())
                    self.changes[before, cause] = known | row.after
        self._source, self._name = source, name

    def check(self, before: P, causes: Iterable[C], after: P) -> None:
        """Check one step's change of phase.

        Raises:
            IllegalPhaseChangeError: none of the `causes` of this step allows the change.
        """
        causes = tuple(causes)
        if not any(after in self.changes.get((before, cause), ()) for cause in causes):
            names = ", ".join(map(self._name, causes)) or "nothing"
            raise IllegalPhaseChangeError(
                f"{names} led from phase {before.value} to {after.value}, which {self._source} "
                "does not allow"
            )
