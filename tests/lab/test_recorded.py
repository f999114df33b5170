"""A trace in the lab: owners, phases and words of a recorded run."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkconsumer.errors import TraceError
from zkconsumer.lab.camera import NOBODY
from zkconsumer.lab.recorded import events_of, read_trace
from zkconsumer.sim.scenarios import SCENARIOS, run_scenario
from zkconsumer.trace import text


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_trace_of_the_simulator(name: str) -> None:
    """The frames end with the owners that the story ends with."""
    lines: list[str] = []
    run_scenario(SCENARIOS[name], jvm=None, emit=lambda entry: lines.append(text(entry) + "\n"))
    run, frames = events_of(read_trace(lines, name=name), name)
    rows = [list(row[1:]) for row in run["scene"]["partitions"]]
    for frame in frames["frames"]:
        for number, row in frame["p"].items():
            rows[number] = row
    assert rows
    assert NOBODY not in [row[0] for row in rows]


def test_a_line_that_is_no_trace(tmp_path: Path) -> None:
    """An unreadable line is named with its number."""
    with pytest.raises(TraceError, match="x:2"):
        read_trace(['{"v": 2}\n', "oops\n"], name="x")
