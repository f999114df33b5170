"""A trace of members or of the simulator, as a picture and frames. The trace of a production member
has only the steps of this member, so the picture shows phases. A trace of the simulator also has
writes, watches and deliveries. `trace/__init__.py` describes the format.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from zkconsumer.errors import TraceError, escaped_and_cut
from zkconsumer.lab.stage import NOBODY, STRANGER
from zkconsumer.lab.texts import short
from zkconsumer.lab.worlds import MAX_MOVES
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import Json, JsonObject, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind, consumer_of

if TYPE_CHECKING:
    from zkconsumer.history.tables import Tables


SHOWN = 200
"""Maximum number of characters that a frame shows of a string in the trace."""


MAX_DEPTH = 100
"""Maximum depth of the lists and objects of a line."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACKET = re.compile(r"[\[\]{}]")

WRITERS = "open a file that `trace.file` or `simulate --output jsonl` has written"
"""The remedy if a file is not a trace."""


def read_trace(lines: Iterable[str], *, name: str) -> list[JsonObject]:
    """Return the entries of a trace. Raises TraceError if a line cannot be shown."""
    entries = []
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            break  # the member died while it wrote the line
        try:
            entries.append(_shown(_parsed(line)))
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ):
            raise TraceError(
                "the line is not part of a trace", where=f"{name}:{number}", remedy=WRITERS
            ) from None
    return entries


def _parsed(line: str) -> Json:
    """Return the value of a line. Raises ValueError if it is no JSON or too deep."""
    # In a browser, a deep value would end Python with a stack overflow instead of an error.
    if line.count("[") + line.count("{") > MAX_DEPTH:
        depth = 0
        for one in _BRACKET.findall(_STRING.sub("", line)):
            depth += 1 if one in "[{" else -1
            if depth > MAX_DEPTH:
                raise ValueError(depth)
    return json.loads(line)


def _shown(value: Json) -> JsonObject:
    """Return an entry from which a frame can be made; otherwise, making the frame raises."""
    entry: JsonObject = value
    t = float(entry.get("t", 0))
    if not math.isfinite(t):
        raise ValueError(t)  # JavaScript cannot read such a number
    _FrameBuilder([entry]).frame(entry, t)
    return entry


def play(files: Iterable[tuple[str, str]], number: int) -> list[JsonObject]:
    """Return the events that show trace files, given as names and texts, as one run.

    Raises TraceError if a line cannot be shown, or if no file has an event.
    """
    ordered = sorted(files)
    entries: list[JsonObject] = []
    for name, text in ordered:
        entries += read_trace(io.StringIO(text, newline=None), name=name)
    names = ", ".join(name for name, _ in ordered)
    if not any("t" in entry for entry in entries):
        raise TraceError("there is no event of a trace", where=names, remedy=WRITERS)
    return events_of(entries, names, number)


def events_of(entries: Sequence[JsonObject], title: str, number: int = 1) -> list[JsonObject]:
    """Return the events that show a trace; a sentence counts the entries beyond MAX_MOVES."""
    film = _FrameBuilder(entries)
    timed = [entry for entry in entries if "t" in entry]
    start = min((float(entry["t"]) for entry in timed), default=0.0)
    timed.sort(key=lambda entry: float(entry["t"]))
    scene = film.scene()
    frames = [film.frame(entry, float(entry["t"]) - start) for entry in timed[:MAX_MOVES]]
    words = f"A recorded run: {escaped_and_cut(title, SHOWN)}. Nothing can be changed."
    if len(timed) > MAX_MOVES:
        words += f" {len(timed) - MAX_MOVES} later events are left out."
    run: JsonObject = {
        "event": "run",
        "run": number,
        "kind": "recorded",
        "scene": scene,
        "title": escaped_and_cut(title, SHOWN),
        "base": {},
        "about": {"words": words},
    }
    shown = {"event": "frames", "run": number, "from": 0, "frames": frames, "moves": ""}
    return [run, shown]


def entries_of(tables: Tables, group: str) -> list[JsonObject]:
    """Return the history of a group, read from ZooKeeper's logs, as the entries of a trace."""
    found: list[JsonObject] = []

    def add(time_ms: int, member: str = "", **what: Json) -> None:
        found.append({"t": time_ms / 1000, "member": member, **what})

    for one in tables.members:
        if one.group == group:
            sign = "+" if one.event in ("present", "joined", "changed") else "-"
            writes = [[sign, paths.member(group, one.consumer), one.registration]]
            add(one.time_ms, one.consumer, writes=writes, **({} if sign == "+" else {"gone": True}))
    for own in tables.ownership:
        if own.group == group:
            path = paths.owner(group, TopicPartition(own.topic, own.partition))
            add(own.time_ms, own.consumer, writes=[["+", path, own.thread]])
            if own.ended_ms is not None:
                add(own.ended_ms, own.consumer, writes=[["-", path, ""]])
    for run in tables.commits:
        if run.group == group:
            path = paths.offset(group, TopicPartition(run.topic, run.partition))
            for time_ms, offset in ((run.time_ms, run.first), (run.last_ms, run.last)):
                add(time_ms, run.by, writes=[["=", path, str(offset)]])
    for incident in tables.incidents:
        if incident.group == group:
            add(incident.time_ms, note=f"{incident.kind}: {incident.what}")
    return found


class Recording:
    """A trace as the source of a server's page."""

    def __init__(self, events: list[JsonObject]) -> None:
        self._events = events

    def about(self) -> JsonObject:
        return {"kind": "recorded", "events": self._events}

    def after(self, number: int, timeout_s: float) -> list[tuple[int, list[JsonObject]]]:
        """Return nothing, because the page got the whole trace at the start."""
        return []

    def command(self, command: JsonObject) -> list[JsonObject]:
        return [{"event": "error", "text": "a recorded run cannot be changed"}]


class _FrameBuilder:
    """The members and partitions of a trace, in their state after the frames so far."""

    def __init__(self, entries: Sequence[Mapping[str, Json]]) -> None:
        names = [str(one["settings"]["consumer"]) for one in entries if "settings" in one]
        names += [str(one["member"]) for one in entries if one.get("member")]
        self._of = {name: who for who, name in enumerate(dict.fromkeys(names))}
        self._views: list[JsonObject] = [
            {
                **{
                    "n": escaped_and_cut(name, SHOWN),
                    "k": "member",
                    "s": "away",
                    "ph": "",
                    "c": "on",
                },
                **{"ses": 1 + who, "open": True, "f": []},
            }
            for name, who in self._of.items()
        ]
        found = {
            TopicPartition(at.name, at.partition)
            for entry in entries
            for _, path, _ in entry.get("writes", ())
            if (at := paths.locate(path)).kind in (ZnodeKind.OWNER, ZnodeKind.OFFSET)
        }
        self._index = {tp: number for number, tp in enumerate(sorted(found))}
        self._rows: list[list[Json]] = [[NOBODY, None, None, None] for _ in self._index]

    def scene(self) -> JsonObject:
        rows = zip(self._index, self._rows, strict=True)
        return {
            "t": 0.0,
            "members": list(self._views),
            "partitions": [[escaped_and_cut(str(tp), SHOWN), *row] for tp, row in rows],
            "tree": {},
            "zookeeper": {"text": "recorded", "brokers": True, "topic": True},
            "counters": [None] * 7,
        }

    def frame(self, entry: JsonObject, t: float) -> JsonObject:
        frame: JsonObject = {"t": round(t, 4), "d": "", "m": {}, "p": {}, "z": {}, "x": []}
        who = self._of.get(str(entry.get("member", "")), -1)
        name = self._views[who]["n"] if who >= 0 else "another client"
        frame["l"] = escaped_and_cut(self._words(entry, name), SHOWN)
        if who >= 0:
            self._set(frame, who, s="left" if entry.get("gone") else "up", **_phase(entry))
        for sign, path, data in entry.get("writes", ()):
            self._write(frame, who, sign, str(path), escaped_and_cut(str(data), SHOWN))
        if "watch" in entry and who >= 0:
            frame["x"].append(["watch", who, str(entry["watch"]).lower(), short(entry["path"])])
        if "note" in entry or "scene" in entry:
            frame["say"] = escaped_and_cut(str(entry.get("note") or entry.get("scene")), SHOWN)
        return frame

    def _set(self, frame: JsonObject, who: int, **values: Json) -> None:
        view = {**self._views[who], **values}
        if view != self._views[who]:
            self._views[who] = frame["m"][who] = view

    def _write(self, frame: JsonObject, who: int, sign: str, path: str, data: str) -> None:
        at = paths.locate(path)
        frame["z"][path] = None if sign == "-" else [data, 1 + who if who >= 0 else 0]
        if at.kind not in (ZnodeKind.OWNER, ZnodeKind.OFFSET):
            return
        number = self._index[TopicPartition(at.name, at.partition)]
        row = self._rows[number]
        if at.kind is ZnodeKind.OFFSET:
            row[1] = None if sign == "-" else data
        else:
            before = row[0]
            owner = self._of.get(consumer_of(data), STRANGER) if sign != "-" else NOBODY
            row[0], frame["o"] = owner, 1
            frame["x"].append(["owner", owner, escaped_and_cut(f"{at.name}-{at.partition}", SHOWN)])
            for one in {before, owner} - {NOBODY, STRANGER}:
                owned = [n for n, other in enumerate(self._rows) if other[0] == one]
                self._set(frame, one, f=owned)
        frame["p"][number] = list(row)

    @staticmethod
    def _words(entry: JsonObject, name: str) -> str:
        match entry:
            case {"note": text} | {"scene": text}:
                return str(text)
            case {"watch": kind, "path": path}:
                return f"a watch of {name} fires: {short(path)} {str(kind).lower()}"
            case {"delivered": tp, "offset": offset}:
                return f"{name} gets {tp} offset {offset}"
            case {"refused": path, "code": code}:
                return f"ZooKeeper refuses {short(path)} to {name}: {code}"
            case {"writes": [[sign, path, _], *more]}:
                verb = {"+": "creates", "-": "deletes"}.get(sign, "writes")
                rest = f" and {len(more)} more" if more else ""
                return f"{name} {verb} {short(path)}{rest}"
            case {"ended": how}:
                return f"a session has ended: {how}"
            case {"gone": True}:
                return f"{name} is gone"
            case {"event": event} if isinstance(event, dict):
                return f"{name}: {event.get('is', 'step')}"
        return name


def _phase(entry: JsonObject) -> JsonObject:
    """Return the phase after a step of a member (`to`), or of a JVM member (`phase`)."""
    phase = entry.get("to", entry.get("phase"))
    return {"ph": escaped_and_cut(phase, SHOWN)} if isinstance(phase, str) else {}
