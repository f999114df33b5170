"""A run in writing: the decisions that replay it, and what they led to as a story in lanes.

A run that breaks a promise is shrunk and saved; whoever reads the file sees what went wrong, and
whoever replays it (`load`, then `swarm.run`) has the same run again, step for step.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Plan
from zkconsumer.sim.recorder import Recorder, Watchers, root_of
from zkconsumer.sim.swarm import Decisions, Result, run, shrink
from zkconsumer.sim.world import World
from zkconsumer.trace.lanes import story

MARK = "decisions:"


def record(decide: Decisions) -> tuple[Result, list[dict[str, Any]], World]:
    """A run, its trace entry for entry, and the world as it was at the end."""
    entries: list[dict[str, Any]] = []
    worlds: list[World] = []

    def make(plan: Plan, monitor: Monitor) -> World:
        worlds.append(World(plan, Watchers(Recorder(entries.append), monitor)))
        return worlds[-1]

    return run(decide, make=make), entries, worlds[0]


SHRINK_S = 60.0
"""Seconds of the wall clock after which shrinking ends with what it has."""


def shrunk(decisions: Sequence[int], *, limit_s: float = SHRINK_S) -> tuple[int, ...]:
    """Return fewer and lower decisions that break the same promise.

    Shrinking stops after `limit_s` seconds and returns the shortest list found by then.
    """
    end = time.monotonic() + limit_s
    wanted = run(Decisions(decisions)).violation
    assert wanted is not None, "this run breaks no promise"

    def fails(shorter: Sequence[int]) -> bool:
        if time.monotonic() > end:
            return False
        found = run(Decisions(shorter)).violation
        return found is not None and found.invariant == wanted.invariant

    return shrink(decisions, fails)


def save(path: Path, *, name: str, decisions: Sequence[int]) -> Result:
    """Write the run of these decisions, under the name of its bug."""
    result, text = _told(name, decisions)
    path.write_text(text, encoding="utf-8")
    return result


def report(decisions: Sequence[int], *, name: str = "a broken promise") -> str:
    """Shrink a run that breaks a promise; return the text of the file that `save` would write."""
    return _told(name, shrunk(decisions))[1]


def _told(name: str, decisions: Sequence[int]) -> tuple[Result, str]:
    result, entries, world = record(Decisions(decisions))
    numbers = textwrap.fill(" ".join(map(str, decisions)), 100)
    names = [member.name for member in world.members]
    lines = [
        name, "=" * len(name), str(result.violation or "no promise is broken"), "",
        MARK, numbers, "", *story(entries, names, root=root_of(world)),
    ]
    return result, "\n".join(lines) + "\n"


def load(path: Path) -> tuple[int, ...]:
    """The decisions of a saved run."""
    _, _, rest = path.read_text(encoding="utf-8").partition(f"\n{MARK}\n")
    return tuple(int(word) for word in rest.partition("\n\n")[0].split())
