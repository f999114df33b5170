"""A trace as a readable story: one column per member, one line per event.

In a member's column, a line shows the phase that the member enters, `*` if it acts without changing
its phase, and `|` while it is alive. ZooKeeper's writes are `+ created`, `= set` and `- deleted`.
The functions under "sentences" describe single events and commands; `Lanes` arranges them in
columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from zkconsumer.errors import escaped
from zkconsumer.protocol.model import Json

# ---- sentences -----------------------------------------------------------------------------------


def cause(event: Json) -> str:
    """Describe the event of a member."""
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
        case {"is": "OwnerNodeChanged" | "OffsetNodeChanged" as kind, "partition": partition}:
            return (
                f"the {kind.removesuffix('NodeChanged').lower()} znode of {partition} has changed"
            )
        case {"is": "OwnersChanged", "topic": topic}:
            return f"something changed among the owners of {topic}"
        case {"is": "ReleaseReady", "partitions": partitions}:
            return f"the user has finished {listed(tp for tp, _ in partitions)}"
        case {
            "is": "PositionsCollected",
            "commit": {"purpose": purpose, "positions": positions},
        }:
            at = _starts((tp, offset) for tp, (_, offset) in positions)
            what = "to keep" if purpose == "lost" else f"to commit ({purpose})"
            return f"positions {what}: {at.replace(' from ', ' at ') or 'none'}"
        case {"is": "CloseRequested"}:
            return "the user leaves"
    return _spelled(event)


def _outcome(outcome: Json) -> str:
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


def actions(commands: list[Json]) -> Iterator[str]:
    """Describe the machine's commands, except those visible as writes to ZooKeeper."""
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


def gate_after(commands: list[Json]) -> bool | None:
    """Return whether the lease's gate is open after these commands; None if unchanged."""
    found = [command["is"] == "OpenGate" for command in commands if "Gate" in command["is"]]
    return found[-1] if found else None


def listed(partitions: Json) -> str:
    """Format `t-0, t-1, t-2, t-5` as `t-0..2, t-5`."""
    runs: list[tuple[str, int, int]] = []
    numbers = [(tp.rpartition("-")[0], int(tp.rpartition("-")[2])) for tp in partitions]
    for topic, number in sorted(numbers):
        if runs and runs[-1][0] == topic and runs[-1][2] == number - 1:
            runs[-1] = (topic, runs[-1][1], number)
        else:
            runs.append((topic, number, number))
    return ", ".join(f"{t}-{a}" + (f"..{b}" if b > a else "") for t, a, b in runs) or "nothing"


def _starts(offsets: Iterable[tuple[str, int | None]]) -> str:
    """Format partitions with their offsets, for example `t-0..3 from 7`."""
    groups: dict[int | None, list[str]] = {}
    for tp, offset in offsets:
        groups.setdefault(offset, []).append(tp)
    return ", ".join(
        f"{listed(tps)} {'with no stored offset' if offset is None else f'from {offset}'}"
        for offset, tps in groups.items()
    )


def _spelled(value: Mapping[str, Json]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", str(value["is"])).lower()


# ---- columns -------------------------------------------------------------------------------------


Entry = dict[str, Json]
WIDTH = 13  # characters of a column: the longest phase and a space
NOT_THERE = " "
ANNOUNCED = "  ---- "
"""What stands between the time and the text of an announcement."""


class Lanes:
    """Formats a story line by line; `lines_for` takes the entries of a trace in their order."""

    def __init__(self, members: Sequence[str], *, root: str) -> None:
        """Start a story without entries.

        Args:
            members: the members, one column each, from left to right.
            root: the common prefix of the group's paths; it is left out.
        """
        self._members, self._root = members, root
        self._alive: dict[str, bool] = {}
        self._open: dict[str, bool] = {}
        self._reading: dict[str, list[Entry]] = {}
        self._hidden = False

    def head(self) -> str:
        return self._line("seconds", {name: name for name in self._members}, "")

    def lines_for(self, entry: Entry) -> Iterator[str]:
        """Yield the lines for this entry; consecutive deliveries are collected into one line.

        A `scene` produces no lines: it and the entries up to the next `note` are left out.
        """
        if "delivered" in entry:
            if not self._hidden:
                self._reading.setdefault(entry["member"], []).append(entry)
            return
        hidden, self._hidden = self._hidden, "note" not in entry and self._hidden
        lines = list(self._lines(entry))
        if lines and not (hidden and self._hidden):
            yield from self.end()
            yield from lines
        self._hidden = self._hidden or "scene" in entry

    def end(self) -> Iterator[str]:
        """Yield the lines for deliveries that are still collected."""
        gathered, self._reading = self._reading, {}
        for entries in gathered.values():
            yield self._act(entries[0], "", f"delivers {_messages(entries)}")

    def _lines(self, entry: Entry) -> Iterator[str]:
        match entry:
            case {"scene": text} | {"note": text}:
                yield ""
                yield escaped(f"{entry['t']:9.3f}{ANNOUNCED}{text}")
            case {"event": event, "commands": commands}:
                yield from self._step(entry, event, commands)
            case {"phase": phase, "text": text}:
                yield self._act(entry, phase, text)
                self._alive[entry["member"]] = phase != "closed"
            case {"writes": writes}:
                by = f"session {entry['session']} {entry['ended']}: " if "ended" in entry else ""
                text = ", ".join(self._writes(writes))
                yield self._act(entry, "", by + (text or "it had no znodes"))
            case {"refused": path, "code": code}:
                yield self._act(entry, "", f"refused, {code}: {self._short(path)}")
            case {"gone": True}:
                self._alive[entry["member"]] = False

    def _step(self, entry: Entry, event: Json, commands: Json) -> Iterator[str]:
        member = entry["member"]
        self._alive[member] = True
        done = list(actions(commands))
        gate = gate_after(commands)
        if gate is not None and gate != self._open.get(member, False):
            done.append("may deliver" if gate else "may not deliver")
            self._open[member] = gate
        phase = entry["to"] if entry["to"] != entry["from"] else ""
        if phase or done:
            yield self._act(entry, phase, "; ".join([cause(event), *done]))
        self._alive[member] = entry["to"] != "closed"

    def _act(self, entry: Entry, phase: str, text: str) -> str:
        member = entry.get("member", "")
        cells = {name: "|" if self._alive.get(name) else NOT_THERE for name in self._members}
        if member in cells:
            cells[member] = phase or "*"
        else:
            text = f"ZooKeeper: {text}" if not member else f"{member}: {text}"
        return self._line(f"{entry['t']:.3f}", cells, text)

    def _line(self, time: str, cells: dict[str, str], text: str) -> str:
        lanes = "".join(f"{cells[name]:<{WIDTH}}" for name in self._members)
        return escaped(f"{time:>9}  {lanes}{text}".rstrip())

    def _writes(self, writes: list[tuple[str, str, str]]) -> Iterator[str]:
        """Format each write; join writes that differ only in consecutive partition numbers."""
        runs: list[tuple[str, str, str, list[int]]] = []
        for sign, path, data in writes:
            parent, _, name = self._short(path).rpartition("/")
            number = int(name) if name.isdigit() else -1
            alike = runs and runs[-1][:3] == (sign, parent, data) and number >= 0
            if alike and runs[-1][3][-1] == number - 1:
                runs[-1][3].append(number)
            elif number >= 0:
                runs.append((sign, parent, data, [number]))
            else:
                runs.append((sign, self._short(path), data, []))
        for sign, path, data, numbers in runs:
            last = f"/{numbers[0]}" if numbers else ""
            span = f"..{numbers[-1]}" if numbers[1:] else ""
            yield f"{sign} {path}{last}{span}" + (f" {data}" if data else "")

    def _short(self, path: str) -> str:
        return path.removeprefix(self._root)


def _messages(entries: list[Entry]) -> str:
    """Format delivered messages as `t-0 0..2, t-1 0`."""
    offsets: dict[str, list[int]] = {}
    for entry in entries:
        offsets.setdefault(entry["delivered"], []).append(entry["offset"])
    return ", ".join(f"{tp} {_run(run)}" for tp, run in sorted(offsets.items()))


def _run(offsets: list[int]) -> str:
    first, last = offsets[0], offsets[-1]
    if offsets != list(range(first, last + 1)):
        return " ".join(map(str, offsets))
    return f"{first}..{last}" if last > first else str(first)


def story(entries: Iterable[Entry], members: Sequence[str], *, root: str) -> Iterator[str]:
    """Yield all lines of a story."""
    lanes = Lanes(members, root=root)
    yield lanes.head()
    for entry in entries:
        yield from lanes.lines_for(entry)
    yield from lanes.end()
