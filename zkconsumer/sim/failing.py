"""A run in writing: the decisions that replay it, and what they led to as a story in lanes.

A run that breaks a promise is shrunk and saved; whoever reads the file sees what went wrong, and
whoever replays it (`load`, then `swarm.run`) has the same run again, step for step.
"""

from __future__ import annotations

import textwrap
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


def shrunk(decisions: Sequence[int]) -> tuple[int, ...]:
    """Fewer and lower decisions that break the same promise."""
    wanted = run(Decisions(decisions)).violation
    assert wanted is not None, "this run breaks no promise"

    def fails(shorter: Sequence[int]) -> bool:
        found = run(Decisions(shorter)).violation
        return found is not None and found.invariant == wanted.invariant

    return shrink(decisions, fails)


def save(path: Path, *, name: str, decisions: Sequence[int]) -> Result:
    """Write the run of these decisions, under the name of its bug."""
    result, entries, world = record(Decisions(decisions))
    numbers = textwrap.fill(" ".join(map(str, decisions)), 100)
    names = [member.name for member in world.members]
    lines = [
        name, "=" * len(name), str(result.violation or "no promise is broken"), "",
        MARK, numbers, "", *story(entries, names, root=root_of(world)),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return result


def load(path: Path) -> tuple[int, ...]:
    """The decisions of a saved run."""
    _, _, rest = path.read_text(encoding="utf-8").partition(f"\n{MARK}\n")
    return tuple(int(word) for word in rest.partition("\n\n")[0].split())
