"""Charts of the tables of a history, as SVG elements for the page of its report.

pygal draws them in pure Python, without a display. pygal is in the extra `charts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pygal
from pygal.style import CleanStyle

from zkconsumer.history.describe import Described

_WIDTH, _HEIGHT = 1290, 300  # pixels; the charts are as wide as the lanes
_SHOWN = 60
"""Maximum number of rebalances in a chart; if there are more, it shows those that took longest."""


def charts(found: Described) -> list[str]:
    """Return the charts: incidents by kind, durations of rebalances, and owned partitions."""
    return [_incidents(found), _rebalances(found), _owners(found)]


def _chart(kind: str, title: str, **more: object) -> Any:  # Any: pygal has no types

    style = CleanStyle(font_family="sans-serif")
    # Without `js`, the picture would load a script from another host.
    settings = {"js": (), "explicit_size": True, "width": _WIDTH, "height": _HEIGHT}
    return getattr(pygal, kind)(title=title, style=style, **settings, **more)


def _svg(chart: Any) -> str:  # Any: pygal has no types
    return str(chart.render(is_unicode=True, disable_xml_declaration=True))


def _incidents(found: Described) -> str:
    kinds = Counter(one.kind for one in found.tables.incidents)
    chart = _chart("HorizontalBar", "Incidents", show_legend=False, print_values=True)
    chart.x_labels = [kind for kind, _ in sorted(kinds.items())]
    chart.add("incidents", [count for _, count in sorted(kinds.items())])
    return _svg(chart)


def _rebalances(found: Described) -> str:
    rows = sorted(found.tables.rebalances, key=lambda row: row.unowned_s)[-_SHOWN:]
    rows.sort(key=lambda row: row.zxid)
    chart = _chart("Bar", "Rebalances: seconds", legend_at_bottom=True, show_x_labels=False)
    chart.add(
        "until the group had settled",
        [
            {"value": (row.settled_ms - row.time_ms) / 1000, "label": row.triggers[0]}
            if row.settled_ms is not None
            else None
            for row in rows
        ],
    )
    unowned = [{"value": row.unowned_s, "label": row.triggers[0]} for row in rows]
    chart.add("without an owner, summed over partitions", unowned)
    return _svg(chart)


def _owners(found: Described) -> str:
    """Chart the number of partitions that have an owner, over time."""
    changes: list[tuple[int, int]] = []
    for row in found.tables.ownership:
        changes.append((row.time_ms, 1))
        if row.ended_ms is not None:
            changes.append((row.ended_ms, -1))
    chart = _chart(
        "XY", "Partitions with an owner", show_legend=False, show_dots=False, x_title="seconds"
    )
    chart.add("partitions", _steps(sorted(changes), found.from_ms))
    return _svg(chart)


def _steps(changes: Sequence[tuple[int, int]], from_ms: int) -> list[tuple[float, int]]:
    """Return the corners of a step line: the sum of all changes up to each time."""
    total, corners = 0, [(0.0, 0)]
    for time_ms, change in changes:
        at = (time_ms - from_ms) / 1000
        corners.append((at, total))
        total += change
        corners.append((at, total))
    return corners
