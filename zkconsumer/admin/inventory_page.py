"""The inventory as one page of HTML, with a burn-down over the results of earlier runs.

The page needs no server and loads nothing. A click on the title of a column sorts by it.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from zkconsumer.admin.inventory import Inventory, InventoryEntry, Verdict
from zkconsumer.errors import BadFileError, ConfigError, escaped_and_cut
from zkconsumer.times import time_text

FORMAT: Final = "zkconsumer-inventory"


class PastRun(NamedTuple):
    """An earlier run: its time in milliseconds since 1970, and name -> verdict."""

    at_ms: int
    verdicts: Mapping[str, str]


# ---- earlier runs --------------------------------------------------------------------------------


def remember(directory: Path, found: Inventory) -> list[PastRun]:
    """Write the result of this run into a directory; return all runs in it, the oldest first.

    The directory is created if it is missing. Raises ConfigError if it cannot be written, and
    BadFileError for a file that this function has not written.
    """
    verdicts = {one.name: one.verdict.value for one in found.entries}
    document = {"format": FORMAT, "version": 1, "at_ms": found.at_ms, "verdicts": verdicts}
    file = directory / f"inventory-{found.at_ms}.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # A rename is atomic: another run never reads half a file.
        part = file.with_suffix(".part")
        part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        part.replace(file)
        files = sorted(directory.glob("inventory-*.json"))
    except OSError as error:
        raise ConfigError(
            f"the result cannot be kept: {error.strerror}",
            where=str(directory),
            remedy="name a writable directory",
        ) from error
    return sorted(map(_run, files))


def _run(file: Path) -> PastRun:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _bad(file, str(error)) from error
    match document:
        case {
            "format": "zkconsumer-inventory",
            "version": 1,
            "at_ms": int(at),
            "verdicts": dict(v),
        }:
            return PastRun(at, v)
    raise _bad(file, f"its format is not {FORMAT}, version 1")


def _bad(file: Path, why: str) -> BadFileError:
    return BadFileError(
        f"the file is not the result of an earlier run: {why}",
        where=str(file),
        remedy="remove the file, or name another directory",
    )


# ---- the page ------------------------------------------------------------------------------------

_STYLE: Final = """
body{font:14px/1.4 system-ui,sans-serif;margin:2rem;color:#1c2126}
table{border-collapse:collapse;width:100%}th{cursor:pointer;text-align:left;background:#eef1f4}
th,td{padding:.3rem .6rem;border-bottom:1px solid #dde2e7;vertical-align:top}
.n{text-align:right}.act{color:#b3261e;font-weight:600}.delete{color:#6b7280}
.moved{color:#1a7f37}.unknown{color:#9a6700}small{color:#6b7280}svg{max-width:100%;height:auto}
"""

_SORT: Final = """
document.querySelectorAll('th').forEach((th,n)=>th.onclick=()=>{
 const body=th.closest('table').tBodies[0],up=th.dataset.up=th.dataset.up==='1'?'0':'1';
 const of=row=>row.cells[n].dataset.v??row.cells[n].textContent;
 [...body.rows].sort((a,b)=>{const x=of(a),y=of(b),d=(x!==''&&y!==''&&!isNaN(x)&&!isNaN(y))
  ?x-y:x.localeCompare(y);return up==='1'?d:-d}).forEach(r=>body.append(r))});
"""

_TITLES: Final = (
    *("Name", "State", "Program", "Members", "Topics", "Lag", "Last commit", "Hosts"),
    *("Verdict", "Why", "What blocks its migration"),
)


def page(found: Inventory, past: Sequence[PastRun], place: str) -> str:
    """Return the page; `past` are the runs of the burn-down, and `place` is ZooKeeper's address."""
    counts = Counter(one.verdict for one in found.entries)
    summary = ", ".join(f"{counts[one]} {one.value}" for one in Verdict)
    titles = "".join(f"<th>{_text(one)}</th>" for one in _TITLES)
    unsearched = "".join(f"<p>{_text(one)}.</p>\n" for one in found.unsearched)
    rows = "\n".join(f"<tr>{''.join(_cells(one))}</tr>" for one in found.entries)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Users of ZooKeeper</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>Users of ZooKeeper</h1>\n<p>{_text(place)}, {_text(time_text(found.at_ms))}:"
        f" {_text(summary)}.</p>\n{unsearched}{_burn_down(past)}"
        f"<table><thead><tr>{titles}</tr></thead><tbody>\n{rows}\n</tbody></table>\n"
        "<p><small>Written by <code>zkconsumer inventory</code>. Click a title to sort."
        "</small></p>\n"
        f"<script>{_SORT}</script></body></html>\n"
    )


def _cells(one: InventoryEntry) -> Iterator[str]:
    hint = "?" if one.evidence and all(it.is_hint for it in one.evidence) else ""
    evidence = "; ".join(f"{it.program.value}: {it.reason}" for it in one.evidence)
    none = "unknown" if one.unreadable else "-"
    at = "unknown" if isinstance(one.committed_ms, str) else _time(one.committed_ms)
    lag = "unknown" if isinstance(one.lag, str) else "-" if one.lag is None else str(one.lag)
    members = "unknown" if one.members is None else one.members
    topics = ", ".join(one.topics) or none
    yield f"<td>{_text(one.name)}</td>"
    yield f"<td>{_text(one.state.value if one.state else none)}</td>"
    yield f'<td title="{_text(evidence)}">{_text(one.program.value + hint)}</td>'
    yield f'<td class="n">{members}</td><td>{_text(topics)}</td>'
    yield f'<td class="n" data-v="{one.lag if isinstance(one.lag, int) else -1}">{lag}</td>'
    yield f"<td>{_text(at)}</td><td>{_text(', '.join(one.hosts))}</td>"
    yield f'<td class="{one.verdict.name.lower()}">{_text(one.verdict.value)}</td>'
    yield f"<td>{_text(one.why)}</td><td>{_text('; '.join(one.blocked_by))}</td>"


def _time(at_ms: int | None) -> str:
    return time_text(at_ms) if at_ms else "-"


def _text(value: str) -> str:
    return html.escape(escaped_and_cut(value, 2_000))


_WIDTH, _HEIGHT, _MARGIN = 720, 180, 30  # pixels of the burn-down


def _burn_down(past: Sequence[PastRun]) -> str:
    """Return a chart of the users that must act, and of those that are unknown, run by run."""
    if len(past) < 2:
        return ""
    lines = []
    counts = [Counter(run.verdicts.values()) for run in past]
    top = max(1, *(one[Verdict.ACT.value] + one[Verdict.UNKNOWN.value] for one in counts))
    first, span = past[0].at_ms, max(1, past[-1].at_ms - past[0].at_ms)
    for verdict, color in ((Verdict.ACT, "#b3261e"), (Verdict.UNKNOWN, "#9a6700")):
        points = " ".join(
            f"{_MARGIN + (run.at_ms - first) * (_WIDTH - 2 * _MARGIN) / span:.1f},"
            f"{_HEIGHT - _MARGIN - count[verdict.value] * (_HEIGHT - 2 * _MARGIN) / top:.1f}"
            for run, count in zip(past, counts, strict=True)
        )
        lines.append(
            f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{points}">'
            f"<title>{verdict.value}: {', '.join(str(c[verdict.value]) for c in counts)}</title>"
            "</polyline>"
        )
    dates = f"{time_text(first)[:10]} to {time_text(past[-1].at_ms)[:10]}"
    return (
        f"<h2>Burn-down</h2>\n<p>{len(past)} runs, {dates}; red: must act; brown: unknown;"
        f' up to {top}.</p>\n<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
        f'<path d="M{_MARGIN} {_MARGIN}V{_HEIGHT - _MARGIN}H{_WIDTH - _MARGIN}" fill="none"'
        f' stroke="#9aa4ae"/>{"".join(lines)}</svg>\n'
    )
