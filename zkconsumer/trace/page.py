"""A story as one HTML page with the owners over time, the writes, and the watch notifications.

The page is self-contained: it loads no script, style sheet or picture.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from zkconsumer.errors import escaped_and_cut
from zkconsumer.protocol.model import JsonObject, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind, consumer_of, locate
from zkconsumer.trace.story import story

Entry = JsonObject

# In pixels: length of the time axis, width of the names, height of a row.
WIDTH, LEFT, ROW = 1000, 110, 18
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222255")
"""Colours that colour-blind readers can distinguish; the ninth member has the first one again."""

MAX_TEXT = 10_000
"""Maximum number of characters of one line or tool tip; a payload may have a million."""

_STYLE = """
body { font: 14px/1.4 sans-serif; margin: 2em; color: #222; }
pre { font-size: 12px; overflow-x: auto; }
svg text { font: 11px sans-serif; }
"""


def page(title: str, entries: Sequence[Entry], members: Sequence[str], *, root: str) -> str:
    """Return the page of a story; `root` is the common prefix of the group's paths."""
    chart = "\n".join(_Chart(entries, members).draw())
    text = "\n".join(map(escape, story(entries, members, root=root)))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n"
        "<p>A bar is an owner znode, in its member's colour. Below, for each member: its writes "
        "(filled) and the watch notifications that it got (hollow). Point at a mark to see its "
        "details.</p>"
        f"\n{chart}\n<pre>{text}</pre>\n</body></html>\n"
    )


def escape(text: str) -> str:
    """Return text from another client escaped for HTML and for display."""
    return html.escape(escaped_and_cut(text, MAX_TEXT))


class _Chart:
    """The timeline as SVG."""

    def __init__(self, entries: Sequence[Entry], members: Sequence[str]) -> None:
        self._entries = [entry for entry in entries if "t" in entry]
        self._members = members
        self._end = max((entry["t"] for entry in self._entries), default=0.0) or 1.0
        self._bars = list(self._ownerships())
        self._partitions = sorted({tp for tp, *_ in self._bars})

    def draw(self) -> Iterator[str]:
        rows = [str(tp) for tp in self._partitions] + list(self._members)
        height = ROW * (len(rows) + 2)
        yield f'<svg width="{LEFT + WIDTH + 20}" height="{height}" role="img">'
        for number, name in enumerate(rows):
            yield f'<text x="4" y="{ROW * (number + 1) - 5}">{escape(name)}</text>'
        yield from self._axis(len(rows))
        for tp, start, end, thread in self._bars:
            y = ROW * self._partitions.index(tp) + 3
            width = max(1.0, self._x(end) - self._x(start))
            colour = self._colour(consumer_of(thread))
            yield (
                f'<rect x="{self._x(start):.1f}" y="{y}" width="{width:.1f}" height="{ROW - 6}" '
                f'fill="{colour}"><title>{escape(f"{tp}: {thread}")}, {start:.3f} to {end:.3f} s'
                "</title></rect>"
            )
        yield from self._marks()
        yield "</svg>"

    def _axis(self, rows: int) -> Iterator[str]:
        bottom = ROW * rows
        for tenth in range(11):
            at = self._end * tenth / 10
            yield f'<text x="{self._x(at):.0f}" y="{bottom + 14}">{at:.3g} s</text>'
        for entry in self._entries:
            text = entry.get("note") or entry.get("scene")
            if text:
                x = self._x(entry["t"])
                yield (
                    f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}" stroke="#999" '
                    f'stroke-dasharray="3 3"><title>{escape(text)}</title></line>'
                )

    def _marks(self) -> Iterator[str]:
        for entry in self._entries:
            if entry.get("member") not in self._members:
                continue
            number = self._members.index(entry["member"])
            y = ROW * (len(self._partitions) + number) + ROW // 2
            colour, x = self._colour(entry["member"]), self._x(entry["t"])
            if "writes" in entry:
                text = ", ".join(f"{sign} {path} {data}" for sign, path, data in entry["writes"])
                look = f'r="3" fill="{colour}"'
            elif "watch" in entry:
                text = f"{entry['watch']} {entry['path']}"
                look = f'r="4" fill="none" stroke="{colour}"'
            else:
                continue
            said = escape(f"{entry['t']:.3f} s: {text}")
            yield f'<circle cx="{x:.1f}" cy="{y}" {look}><title>{said}</title></circle>'

    def _ownerships(self) -> Iterator[tuple[TopicPartition, float, float, str]]:
        """Yield (partition, from, to, thread) for every owner znode of the trace."""
        since: dict[TopicPartition, tuple[float, str]] = {}
        for entry in self._entries:
            for sign, path, data in entry.get("writes", ()):
                at = locate(path)
                if at.kind is not ZnodeKind.OWNER:
                    continue
                tp = TopicPartition(at.name, at.partition)
                if tp in since:
                    start, thread = since.pop(tp)
                    yield tp, start, entry["t"], thread
                if sign != "-":
                    since[tp] = entry["t"], data
        for tp, (start, thread) in sorted(since.items()):
            yield tp, start, self._end, thread

    def _colour(self, member: str) -> str:
        known = member in self._members
        return COLOURS[self._members.index(member) % len(COLOURS)] if known else "#888888"

    def _x(self, t: float) -> float:
        return LEFT + WIDTH * t / self._end
