"""What `verify` and `doctor` have to say: one finding for each thing that is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import groupby


class Severity(Enum):
    """How bad it is; all but a note are problems."""

    ERROR = "error"  # the group does not work, or not wholly
    WARNING = "warning"  # it works, and something is wrong or will be
    NOTE = "note"  # something could not be looked at


@dataclass(frozen=True, slots=True)
class Mend:
    """What `doctor --fix` would do with one znode: write `data`, or delete it where that is None.

    Never a znode of a session, which is alive as long as its znode is there. `mzxid` says which
    state of the znode was found wrong.
    """

    path: str
    mzxid: int
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a group.

    Attributes:
        code: what kind of thing, a word for programs.
        subject: the member, topic, thread or znode concerned; `partitions`: those of the topic.
        what, why: one sentence each: what is wrong, and what comes of it.
        remedy: the command that mends it, or what else to do.
        mends: what `doctor --fix` does about it; empty where that cannot help.
    """

    severity: Severity
    code: str
    group: str
    subject: str
    what: str
    why: str
    remedy: str
    partitions: tuple[int, ...] = ()
    mends: tuple[Mend, ...] = ()

    @property
    def is_problem(self) -> bool:
        """Whether it counts for the exit code."""
        return self.severity is not Severity.NOTE

    def __str__(self) -> str:
        return f"{self.group}: {self.subject}: {self.what}"


_SHOWN_RUNS = 12


def ranges(numbers: Iterable[int]) -> str:
    """Partition numbers in short: `0-3, 7`; of very many runs the first, and how many more."""
    placed = enumerate(sorted(set(numbers)))
    runs = [
        [number for _, number in run] for _, run in groupby(placed, lambda pair: pair[1] - pair[0])
    ]
    shown, rest = runs[:_SHOWN_RUNS], sum(map(len, runs[_SHOWN_RUNS:]))
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in shown)
    return f"{text} and {rest} more" if rest else text


def partitions_of(numbers: Iterable[int]) -> str:
    """The same with the word before it: `partition 7`, `partitions 0-3, 7`."""
    known = set(numbers)
    return f"partition{'s' if len(known) > 1 else ''} {ranges(known)}"


def fix_command(group: str) -> str:
    """Return the command that makes the doctor's changes to a group."""
    return f"zkconsumer doctor --group {group} --fix --execute"
