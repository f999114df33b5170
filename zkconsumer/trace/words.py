"""Steps of the machine in a few words each, from the entries of a trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Value = Any
"""A value of the core as it stands in a trace."""


def cause(event: Value) -> str:
    """What happened to the member."""
    match event:
        case {"is": "Connected", "session": session}:
            return f"connected, session {session['id']}"
        case {"is": "Suspended"}:
            return "the connection is gone"
        case {"is": "Tick"}:
            return "it is time"
        case {"is": "Finished", "outcome": outcome}:
            return _outcome(outcome)
        case {"is": "Triggered", "trigger": trigger, "subject": subject}:
            return f"{trigger}: {subject}" if subject else str(trigger)
        case {"is": "TopicDeleted", "topic": topic}:
            return f"topic {topic} is deleted"
        case {"is": "OwnerNodeChanged", "partition": partition}:
            return f"the owner znode of {partition} has changed"
        case {"is": "OwnersChanged", "topic": topic}:
            return f"something changed among the owners of {topic}"
        case {"is": "ReleaseReady", "partitions": partitions}:
            return f"the user has finished {listed(partitions)}"
        case {"is": "PositionsCollected", "purpose": purpose, "positions": positions}:
            at = _starts((tp, offset) for tp, (_, offset) in positions)
            return f"positions to commit ({purpose}): {at.replace(' from ', ' at ') or 'none'}"
        case {"is": "CloseRequested"}:
            return "the user leaves"
    return _spelled(event)


def _outcome(outcome: Value) -> str:
    match outcome:
        case {"is": "ViewRead", "view": view}:
            members = [name for name, _ in view["members"]]
            return f"has read the group: {', '.join(members) or 'nobody'}"
        case {"is": "Claimed", "claimed": claimed, "blocked": blocked}:
            said = f"has claimed {listed(tp for tp, _ in claimed)}" if claimed else "claimed none"
            holders = sorted({who["thread"] for _, who in blocked})
            held = f"; {listed(tp for tp, _ in blocked)} held by {', '.join(holders)}"
            return said + (held if blocked else "")
        case {"is": "Verified", "held": held, "lost": lost}:
            said = f"has read back {listed(tp for tp, _ in held)}" if held else "holds nothing"
            return said + (f"; lost {listed(tp for tp, _ in lost)}" if lost else "")
        case {"is": "OffsetsLoaded", "offsets": offsets}:
            return "has read the offsets of " + listed(tp for tp, _ in offsets)
        case {"is": "Committed", "versions": versions, "kafka": kafka, "foreign": foreign}:
            stored = {*(tp for tp, _ in versions), *kafka}
            said = f"has committed {listed(stored)}" if stored else ""
            other = f"finds {listed(tp for tp, _ in foreign)} written meanwhile" if foreign else ""
            return "; ".join(filter(None, [said, other])) or "had nothing to commit"
        case {"is": "Denied", "where": where, "reason": reason}:
            return f"refused: {where}: {reason}"
        case {"is": "ListenerReturned", "error": error}:
            return f"the listener raised {error}" if error else "the listener has returned"
    return _spelled(outcome)


def deeds(commands: list[Value]) -> Iterator[str]:
    """What the machine wants done, without what shows in ZooKeeper anyway."""
    for command in commands:
        match command:
            case {"is": "StartFetching", "grants": grants}:
                yield f"reads {_starts((tp, offset) for tp, (_, offset) in grants)}"
            case {"is": "AskRelease", "partitions": [*partitions]} if partitions:
                yield f"asks its user to finish {listed(partitions)}"
            case {"is": "Withdraw", "partitions": [*partitions]} if partitions:
                yield f"delivers no more of {listed(partitions)}"
            case {"is": "CallListener", "callback": callback, "partitions": partitions}:
                yield f"calls {callback} with {listed(tp for tp, _ in partitions)}"
            case {"is": "AnswerCommit", "failures": failures}:
                yield "commit failed" if failures else "commit answered"
            case {"is": "CloseSession"}:
                yield "ends its session"
            case {"is": "RecreateClient"}:
                yield "starts a new ZooKeeper client"
            case {"is": "GiveUp", "reason": reason}:
                yield f"gives up: {reason}"
            case {"is": "Notice", "kind": kind, "where": where, "text": text}:
                yield f"says {kind}: " + (f"{where}: {text}" if where else text)


def gate(commands: list[Value]) -> bool | None:
    """Whether the lease's gate is open after these commands; None if they do not touch it."""
    found = [command["is"] == "OpenGate" for command in commands if "Gate" in command["is"]]
    return found[-1] if found else None


def listed(partitions: Any) -> str:
    """`t-0, t-1, t-2, t-5` as `t-0..2, t-5`."""
    runs: list[tuple[str, int, int]] = []
    numbers = [(tp.rpartition("-")[0], int(tp.rpartition("-")[2])) for tp in partitions]
    for topic, number in sorted(numbers):
        if runs and runs[-1][0] == topic and runs[-1][2] == number - 1:
            runs[-1] = (topic, runs[-1][1], number)
        else:
            runs.append((topic, number, number))
    return ", ".join(f"{t}-{a}" + (f"..{b}" if b > a else "") for t, a, b in runs) or "nothing"


def _starts(offsets: Iterable[tuple[str, int | None]]) -> str:
    """`t-0..3 from 7`; what has no stored offset is read from where `auto.offset.reset` says."""
    groups: dict[int | None, list[str]] = {}
    for tp, offset in offsets:
        groups.setdefault(offset, []).append(tp)
    return ", ".join(
        f"{listed(tps)} {'with no stored offset' if offset is None else f'from {offset}'}"
        for offset, tps in groups.items()
    )


def _spelled(value: Mapping[str, Value]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", str(value["is"])).lower()
