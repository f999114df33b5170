"""A trace in the lab: owners, phases and words of a recorded run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from lab.conftest import Opened, running_lab
from playwright.sync_api import expect
from support.history.simulated import simulated

from zkconsumer.errors import TraceError
from zkconsumer.history.describe import Description
from zkconsumer.history.inputs import find_servers
from zkconsumer.lab.camera import NOBODY
from zkconsumer.lab.recorded import entries_of, events_of, read_trace
from zkconsumer.sim.scenarios import SCENARIOS, run_scenario
from zkconsumer.trace import text

Open = Callable[..., Opened]


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


def test_the_logs_of_zookeeper(tmp_path: Path) -> None:
    """A group's history ends with the owners that the simulated group ends with."""
    log, _ = simulated(3)
    log.log.write(tmp_path)
    description = Description(find_servers([tmp_path]))
    description.read()
    assert log.world is not None
    group = log.world.GROUP
    entries = entries_of(description.result().tables, group)
    run, frames = events_of(entries, group)
    names = [member["n"] for member in run["scene"]["members"]]
    rows = {row[0]: list(row[1:]) for row in run["scene"]["partitions"]}
    cells = list(rows)
    for frame in frames["frames"]:
        for number, row in frame["p"].items():
            rows[cells[number]] = row
    found = {cell: names[row[0]] for cell, row in rows.items() if row[0] >= 0}
    due = {str(tp): owner[0].rpartition("-")[0] for tp, owner in log.world.owners().items()}
    assert found == due
    assert due


def test_two_traces_side_by_side(tmp_path: Path, open_page: Open) -> None:
    """The page shows two recorded runs, and goes to the first move that differs."""
    for name in ("a-consumer-dies", "a-consumer-leaves"):
        with (tmp_path / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            run_scenario(
                SCENARIOS[name], jvm=None, emit=lambda entry, to=file: print(text(entry), file=to)
            )
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    with running_lab("--trace", paths[0], "--trace", paths[1]) as lab:
        one = open_page().go(lab.url)
        one.has(".axis .lanes", 2)
        one.page.get_by_role("button", name="first difference").click()
        expect(one.page.locator(".differ dd")).to_have_count(2)
        one.shows(one.page.locator(".differ dd").first.inner_text()[:30])
