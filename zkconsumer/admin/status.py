"""How a group gets on with a partition, told from its commits within a window of time.

The rules are Burrow's (LinkedIn's monitor of consumer lag, `calculatePartitionStatus` in
core/internal/evaluator/caching.go), with two differences. Burrow sees every commit, also one that
changes nothing; the old consumer writes an offset to ZooKeeper only when it has changed, so that
"commits the same offset again" and "commits no more" look alike: whether the partition has an owner
tells a stalled from a stopped one. And a window that has just begun holds one commit only: so long
a silence counts when it is longer than the group may keep between two commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

WINDOW = 10
"""Commits that are kept for a partition, as in Burrow (`intervals`); older ones are forgotten."""

PATIENCE_S = 120.0
"""Seconds without a commit that mean nothing: twice the default of `auto.commit.interval.ms`."""


class Status(Enum):
    """Burrow's states of a partition."""

    OK = "OK"
    WARNING = "WARNING"  # it commits, and falls behind
    STALLED = "STALLED"  # it has an owner, and does not move
    STOPPED = "STOPPED"  # nobody owns it, and nobody commits
    REWOUND = "REWOUND"  # the offset went back


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: when, in seconds since the epoch; the offset; the lag when it was first seen."""

    at_s: float
    offset: int
    lag: int


@dataclass(slots=True)
class Window:
    """The last commits of one partition; `add` tells it what was read."""

    commits: list[Commit] = field(default_factory=list)
    lag: int | None = None
    is_owned: bool = False

    def add(
        self,
        *,
        now_s: float,
        offset: int | None,
        committed_s: float | None,
        lag: int | None,
        is_owned: bool,
    ) -> None:
        """Note a reading: what is committed, and when it was where the store says so."""
        self.lag, self.is_owned = lag, is_owned
        if offset is None or lag is None:
            return
        last = self.commits[-1] if self.commits else None
        if last and last.offset == offset and committed_s in (None, last.at_s):
            return
        self.commits.append(Commit(now_s if committed_s is None else committed_s, offset, lag))
        del self.commits[:-WINDOW]

    def status(self, now_s: float, *, patience_s: float = PATIENCE_S) -> Status | None:
        """What the commits say now; None while they say nothing yet."""
        if self.lag is None or not self.commits:
            return None
        return evaluate(
            self.commits, lag=self.lag, is_owned=self.is_owned, now_s=now_s, patience_s=patience_s
        )


def evaluate(
    commits: Sequence[Commit], *, lag: int, is_owned: bool, now_s: float, patience_s: float
) -> Status | None:
    """The state of a partition with these commits, at least one, whose lag is `lag` now."""
    if lag <= 0 or any(one.lag <= 0 for one in commits):
        return Status.OK
    pairs = list(pairwise(commits))
    if any(after.offset < before.offset for before, after in pairs):
        return Status.REWOUND
    span_s = commits[-1].at_s - commits[0].at_s
    if now_s - commits[-1].at_s > max(span_s, patience_s):
        return Status.STALLED if is_owned else Status.STOPPED
    if not pairs:
        return None
    if all(after.offset == before.offset for before, after in pairs):
        return Status.STALLED
    if all(after.lag >= before.lag for before, after in pairs):
        return Status.WARNING
    return Status.OK
