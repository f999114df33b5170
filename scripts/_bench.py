"""What every bench prints: a table, and with `--json` one JSON object as the last line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Result:
    """One figure; `goal` is a text such as `>= 0.9`."""

    case: str
    metric: str
    value: float
    unit: str
    goal: str
    met: bool


def at_least(case: str, metric: str, value: float, unit: str, goal: float) -> Result:
    return Result(case, metric, round(value, 3), unit, f">= {goal:g}", value >= goal)


def at_most(case: str, metric: str, value: float, unit: str, goal: float) -> Result:
    return Result(case, metric, round(value, 3), unit, f"<= {goal:g}", value <= goal)


def show(bench: str, results: list[Result], *, output: str) -> int:
    """Print the results; `output` is `table` or `json`. The exit code: 1 when a goal is missed."""
    for one in results:
        verdict = "met" if one.met else "MISSED"
        print(
            f"{one.case:<16} {one.metric:<28} {one.value:>10.3f} {one.unit:<8}"
            f" goal {one.goal:<9} {verdict}",
            flush=True,
        )
    if output == "json":
        print(json.dumps({"bench": bench, "results": [asdict(one) for one in results]}))
    return 0 if all(one.met for one in results) else 1
