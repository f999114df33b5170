"""A trace as a story in lanes: one column for each member, one line for each thing that happened.

In a member's column stands the phase that it enters, `*` when it does something within one, and `|`
while it is there. ZooKeeper's writes are `+ created`, `= set`, `- deleted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from zkconsumer.errors import printable
from zkconsumer.trace import words

Entry = dict[str, Any]
WIDTH = 13  # characters: the longest phase and a space
NOT_THERE = " "


class Lanes:
    """Tells a story line by line; `tell` is given the entries of a trace in their order."""

    def __init__(self, members: Sequence[str], *, root: str) -> None:
        """
        Args:
            members: a lane each, from left to right.
            root: what every path of the group begins with; it is left out.
        """
        self._members, self._root = members, root
        self._alive: dict[str, bool] = {}
        self._open: dict[str, bool] = {}
        self._reading: dict[str, list[Entry]] = {}
        self._hidden = False

    def head(self) -> str:
        return self._line("seconds", {name: name for name in self._members}, "")

    def tell(self, entry: Entry) -> Iterator[str]:
        """The lines that this entry adds; messages are gathered until something else happens.

        A `scene` is set without being told: what follows it is left out, until the next `note`.
        """
        if "delivered" in entry:
            if not self._hidden:
                self._reading.setdefault(entry["member"], []).append(entry)
            return
        hidden, self._hidden = self._hidden, "note" not in entry and self._hidden
        lines = list(self._told(entry))
        if lines and not (hidden and self._hidden):
            yield from self.end()
            yield from lines
        self._hidden = self._hidden or "scene" in entry

    def end(self) -> Iterator[str]:
        """What is still gathered."""
        gathered, self._reading = self._reading, {}
        for entries in gathered.values():
            yield self._act(entries[0], "", f"delivers {_messages(entries)}")

    def _told(self, entry: Entry) -> Iterator[str]:
        match entry:
            case {"scene": text} | {"note": text}:
                yield ""
                yield printable(f"{entry['t']:9.3f}  ---- {text}")
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

    def _step(self, entry: Entry, event: Any, commands: Any) -> Iterator[str]:
        member = entry["member"]
        self._alive[member] = True
        done = list(words.deeds(commands))
        gate = words.gate(commands)
        if gate is not None and gate != self._open.get(member, False):
            done.append("may deliver" if gate else "may not deliver")
            self._open[member] = gate
        phase = entry["to"] if entry["to"] != entry["from"] else ""
        if phase or done:
            yield self._act(entry, phase, "; ".join([words.cause(event), *done]))
        self._alive[member] = entry["to"] != "closed"

    def _act(self, entry: Entry, phase: str, text: str) -> str:
        member = entry.get("member", "")
        cells = {
            name: "|" if self._alive.get(name) else NOT_THERE for name in self._members
        }
        if member in cells:
            cells[member] = phase or "*"
        else:
            text = f"ZooKeeper: {text}" if not member else f"{member}: {text}"
        return self._line(f"{entry['t']:.3f}", cells, text)

    def _line(self, time: str, cells: dict[str, str], text: str) -> str:
        lanes = "".join(f"{cells[name]:<{WIDTH}}" for name in self._members)
        return printable(f"{time:>9}  {lanes}{text}".rstrip())

    def _writes(self, writes: list[tuple[str, str, str]]) -> Iterator[str]:
        """Each write; those that differ in a partition's number alone, as one."""
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
    """Delivered messages as `t-0 0..2, t-1 0`."""
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
    """All lines of a story."""
    lanes = Lanes(members, root=root)
    yield lanes.head()
    for entry in entries:
        yield from lanes.tell(entry)
    yield from lanes.end()
