"""Replay a trace: the state machine must produce the same commands and the same states again.

So a trace is evidence: it shows what a member did in production, because the code makes the same
decisions for the same events. If a change of the code changes a decision, the replay fails at the
first line that differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from zkconsumer.errors import TraceDiffersError, TraceError
from zkconsumer.frozen import dataclass
from zkconsumer.member.events import Event
from zkconsumer.member.machine import IllegalTransitionError, step
from zkconsumer.member.state import Settings, State
from zkconsumer.trace import VERSION, Digest, Undecodable, decode, encode

MAX_LINE = 64 << 20
"""Maximum number of characters of a line; a longer line is rejected before it is parsed.

This keeps a file that is not a trace from filling the memory. The longest line of a trace is the
event of a group that was read, in which each znode may have 1 MiB.
"""


# The exceptions that a well-formed but impossible event can cause in the state machine.
_NONSENSE = (IllegalTransitionError, LookupError, TypeError, AttributeError, AssertionError)


@dataclass
class _Run:
    """The state of the replay of one member since the member's start."""

    state: State
    digest: Digest


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay: numbers of member starts and steps, and the members' last phases."""

    runs: int
    transitions: int
    phases: dict[str, str]


def check(lines: Iterable[str], *, name: str) -> ReplayResult:
    """Replay a trace of one member or of several.

    Args:
        lines: the lines with their line ends. A last line without a line end is ignored: the member
            died while it was writing the line.
        name: the name of the file, for errors.

    Raises:
        TraceError: a line is not a line of a trace, or the state machine makes another decision
            there; `where` is `name`:line number.
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
            # The simulator also writes lines about events outside of the members.
        except (Undecodable, RecursionError) as error:
            raise TraceError(f"not a line of a trace: {error}", where=where) from error
    phases = {member: run.state.phase.value for member, run in runs.items()}
    return ReplayResult(starts, transitions, phases)


def _entry(line: str, where: str) -> dict[str, object]:
    if len(line) > MAX_LINE:
        raise TraceError(f"the line is longer than {MAX_LINE} characters", where=where)
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


def _run_of(runs: dict[str, _Run], entry: dict[str, object], where: str) -> _Run:
    member = entry.get("member")
    run = runs.get(member) if isinstance(member, str) else None
    if run is None:
        raise TraceError(
            f"the settings of member {member!r} are missing",
            where=where,
            remedy="start with the first line of the member's trace",
        )
    return run


def _replay(run: _Run, entry: dict[str, object], where: str) -> None:
    event = decode(Event, entry["event"])
    before = run.state
    try:
        run.state, commands = step(before, event)
    except _NONSENSE as error:
        raise TraceDiffersError(
            f"the event is impossible in this state: {error!r}", where=where
        ) from error
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
            raise TraceDiffersError(
                f"{key!r} is {written} in the trace, and {made} in the replay",
                where=where,
                remedy="the line was changed, or another release wrote it",
            )
