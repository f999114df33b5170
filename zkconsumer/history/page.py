"""The report of a history as a page of HTML, with a lane for each partition."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

from zkconsumer.errors import escaped_and_cut
from zkconsumer.history.describe import Described
from zkconsumer.history.report import TimeSpan, client_of, report
from zkconsumer.history.tables import Incident, SessionClient
from zkconsumer.times import time_text

MAX_BARS: Final = 20_000
"""Maximum number of intervals of ownership that a page draws; a browser is slow with more."""

_WIDTH, _LEFT, _ROW = 1100, 190, 18  # in pixels: the time axis, the names, the height of a lane
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222255")
_STYLE = """
body { font: 14px/1.4 sans-serif; margin: 2em; color: #222; }
table { border-collapse: collapse; } td, th { padding: 2px 8px; text-align: left;
  border-bottom: 1px solid #ddd; vertical-align: top; }
svg text { font: 11px sans-serif; } #at { font-weight: bold; }
"""
_SCRIPT = """
const slider = document.getElementById("time"), line = document.getElementById("line");
function move() {
  const ms = FROM + (TO - FROM) * slider.value / 10000;
  const x = LEFT + WIDTH * slider.value / 10000;
  line.setAttribute("x1", x); line.setAttribute("x2", x);
  const owned = [...document.querySelectorAll("rect[data-from]")].filter(
    one => +one.dataset.from <= ms && ms < +one.dataset.to).length;
  document.getElementById("at").textContent =
    new Date(ms).toISOString() + ": " + owned + " partitions have an owner";
}
slider.addEventListener("input", move); move();
"""


def page(found: Described, window: TimeSpan, charts: Sequence[str] = ()) -> str:
    """Return a page with the report, a lane for each partition, and a time slider.

    The page is self-contained: it loads no script, style sheet or picture.

    Args:
        charts: elements of HTML to show between the lanes and the report.
    """
    begin = window.from_ms or found.from_ms
    end = max(window.to_ms or found.until_ms, begin + 1)
    sections = "\n".join(_table(name, rows) for name, rows in report(found).items())
    script = _SCRIPT
    for name, value in (("FROM", begin), ("TO", end), ("LEFT", _LEFT), ("WIDTH", _WIDTH)):
        script = script.replace(name, str(value))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>History</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>History, {time_text(begin)} to "
        f'{time_text(end)}</h1>\n<p><input id="time" type="range" min="0" max="10000" value="0" '
        f'style="width:{_LEFT + _WIDTH}px"> <span id="at"></span></p>\n'
        f"{_lanes(found, begin, end)}\n{''.join(charts)}\n{sections}\n"
        f"<script>{script}</script></body></html>\n"
    )


def _escape(value: object) -> str:
    return html.escape(escaped_and_cut("-" if value is None else str(value), 2000))


def _table(name: str, rows: list[dict[str, object]]) -> str:
    if not rows:
        return f"<h2>{name.capitalize()}</h2><p>none</p>"
    names = [
        title
        for title in rows[0]
        if title not in SessionClient._fields or any(row[title] is not None for row in rows)
    ]
    head = "".join(f"<th>{_escape(title)}</th>" for title in names)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{_escape(row[title])}</td>" for title in names) + "</tr>"
        for row in rows
    )
    return f"<h2>{name.capitalize()}</h2><table><tr>{head}</tr>\n{body}</table>"


def _lanes(found: Described, begin: int, end: int) -> str:
    """Return the lanes as SVG: a bar per interval of ownership, a red line per incident."""
    owned = found.tables.ownership[:MAX_BARS]
    lanes = sorted({(one.chroot, one.group, one.topic, one.partition) for one in owned})
    place = {lane: number for number, lane in enumerate(lanes)}
    colour: dict[str, str] = {}
    height = (len(lanes) + 1) * _ROW

    def x(time_ms: int) -> float:
        return _LEFT + _WIDTH * (min(max(time_ms, begin), end) - begin) / (end - begin)

    parts = [f'<svg width="{_LEFT + _WIDTH + 10}" height="{height}">']
    for lane, number in place.items():
        name = _escape(f"{lane[1]} {lane[2]}-{lane[3]}")
        parts.append(f'<text x="0" y="{number * _ROW + 13}">{name}</text>')
    for one in owned:
        fill = colour.setdefault(one.consumer, _COLOURS[len(colour) % len(_COLOURS)])
        left, right = x(one.time_ms), x(one.ended_ms or end)
        y = place[one.chroot, one.group, one.topic, one.partition] * _ROW + 2
        client = "".join(f" ({it})" for it in [str(client_of(one))] if it)
        span = f"{time_text(one.time_ms)} to {time_text(one.ended_ms)}"
        title = _escape(f"{one.thread}{client}, {span}")
        parts.append(
            f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 1):.1f}" height="{_ROW - 4}" '
            f'fill="{fill}" data-from="{one.time_ms}" data-to="{one.ended_ms or end + 1}">'
            f"<title>{title}</title></rect>"
        )
    parts += [_mark(one, x(one.time_ms), height) for one in found.tables.incidents[:1000]]
    parts.append(f'<line id="line" y1="0" y2="{height}" stroke="black"/></svg>')
    return "\n".join(parts)


def _mark(one: Incident, at: float, height: int) -> str:
    title = _escape(f"{time_text(one.time_ms or None)} {one.kind}: {one.what}")
    return (
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height}" stroke="red" stroke-width="2">'
        f"<title>{title}</title></line>"
    )
