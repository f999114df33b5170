"""Replays a trace: the machine must come to the same commands and the same states again.

So a trace is evidence: what a member did in production is what the code does with these events,
and a change of the code that changes its decisions shows as the first line that differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from zkconsumer.errors import TraceError
from zkconsumer.member.events import Event
from zkconsumer.member.machine import IllegalTransitionError, step
from zkconsumer.member.state import Settings, State
from zkconsumer.trace import VERSION, Digest, Undecodable, decode, encode

MAX_LINE = 64 << 20
"""Characters. The largest line of ours is a view of a group: ZooKeeper's limit of 1 MiB for each
znode in it. A longer line is refused unread, so that a file which is no trace cannot fill memory.
"""


# What a well-formed event that never happened can do to the machine.
_NONSENSE = (IllegalTransitionError, LookupError, TypeError, AttributeError, AssertionError)


@dataclass
class _Run:
    """One member from its start on."""

    state: State
    digest: Digest


@dataclass(frozen=True)
class Checked:
    """What a trace held: starts of members, transitions, and the members' last phases."""

    runs: int
    transitions: int
    phases: dict[str, str]


def check(lines: Iterable[str], *, name: str) -> Checked:
    """Replay a trace, of one member or of several.

    Args:
        lines: with their ends; a last line without one was being written when the member died, and
            does not count.
        name: the file's, for errors.

    Raises:
        TraceError: a line is not one of a trace, or the machine does something else there; `where`
            is `name`:line number.
    """
    runs: dict[str, _Run] = {}
    starts = transitions = 0
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        if not line.endswith("\n"):
            break
        entry = _entry(line, where)
        try:
            if "settings" in entry:
                settings = decode(Settings, entry["settings"])
                runs[settings.consumer] = _Run(State(settings), Digest())
                starts += 1
            elif "event" in entry:
                _replay(_run_of(runs, entry, where), entry, where)
                transitions += 1
            # Other lines are the simulator's, of what happens around the members.
        except (Undecodable, RecursionError) as error:
            raise TraceError(f"not a line of a trace: {error}", where=where) from error
    phases = {member: run.state.phase.value for member, run in runs.items()}
    return Checked(starts, transitions, phases)


def _entry(line: str, where: str) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise TraceError("the line is longer than any of a trace", where=where)
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"not a line of a trace: {error}", where=where) from error
    if not isinstance(entry, dict) or entry.get("v") != VERSION:
        raise TraceError(
            f"not a line of a trace of version {VERSION}",
            where=where,
            remedy="check it with the release that wrote it",
        )
    return entry


def _run_of(runs: dict[str, _Run], entry: dict[str, Any], where: str) -> _Run:
    member = entry.get("member")
    run = runs.get(member) if isinstance(member, str) else None
    if run is None:
        raise TraceError(
            f"nothing says how {member!r} was set up",
            where=where,
            remedy="a trace is checked from its member's first line on",
        )
    return run


def _replay(run: _Run, entry: dict[str, Any], where: str) -> None:
    event = decode(Event, entry["event"])
    before = run.state
    try:
        run.state, commands = step(before, event)
    except _NONSENSE as error:
        raise TraceError(f"not possible: {error!r}", where=where) from error
    found = {
        "t": round(event.now, 6),
        "from": before.phase.value,
        "to": run.state.phase.value,
        "commands": [encode(command) for command in commands],
        "state": run.digest.of(run.state),
    }
    for key, value in found.items():
        if entry.get(key) != value:
            written, made = (json.dumps(one)[:200] for one in (entry.get(key), value))
            raise TraceError(
                f"{key!r} was {written}, and is {made}",
                where=where,
                remedy="the line was changed, or another release wrote it",
            )
