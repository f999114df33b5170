"""A trace in the lab: the owners, phases and texts of a recorded run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from lab.conftest import LIMIT_MS, LabPage, running_lab
from playwright.sync_api import expect
from support.history.simulated import simulated

from zkconsumer.errors import TraceError
from zkconsumer.history.describe import Description
from zkconsumer.history.inputs import find_servers
from zkconsumer.lab.engine import Engine
from zkconsumer.lab.recorded import entries_of, events_of, read_trace
from zkconsumer.lab.stage import NOBODY
from zkconsumer.sim.scenarios import SCENARIOS, run_scenario
from zkconsumer.trace import text

Open = Callable[..., LabPage]


def traces(name: str, directory: Path) -> None:
    """Write the traces of a scenario: a file for each member, and one for the simulator."""

    def emit(entry: dict[str, object]) -> None:
        settings = entry.get("settings")
        consumer = settings["consumer"] if isinstance(settings, dict) else "simulator"
        who = entry.get("member") or consumer
        with (directory / f"{who}.jsonl").open("a", encoding="utf-8") as file:
            print(text(entry), file=file)

    run_scenario(SCENARIOS[name], jvm=None, emit=emit)


def history(directory: Path) -> str:
    """Write the logs of a simulated ZooKeeper, and return the name of the group in them."""
    log, _ = simulated(3)
    log.log.write(directory)
    assert log.world is not None
    return log.world.GROUP


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_trace_of_the_simulator(name: str) -> None:
    """After the last frame of a scenario's trace, each partition has an owner."""
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
    """The error for a line that is no trace event has the number of the line."""
    with pytest.raises(TraceError, match="x:2"):
        read_trace(['{"v": 2}\n', "oops\n"], name="x")


@pytest.mark.parametrize(
    "line",
    [
        "oops",
        "[1]",
        '"t"',
        "[" * 100_000,
        '{"t": 1, "x": ["' + r"]\"]" * 200 + '", ' + "[" * 100 + "]" * 100 + "]}",
        '{"t": "soon"}',
        '{"t": NaN}',
        '{"t": 1e999}',
        '{"t": null}',
        '{"settings": {}}',
        '{"t": 1, "writes": [["+", "/a"]]}',
        '{"t": 1, "writes": [["+", 1, ""]]}',
        '{"t": 1, "writes": [[[], "/a", ""]]}',
        '{"t": 1, "member": "m", "watch": "DELETED", "path": 1}',
    ],
)
def test_a_line_that_cannot_be_shown(line: str) -> None:
    """The engine refuses such a file in one line, with the name, the line and a remedy."""
    good = '{"v": 2, "t": 1, "note": "x"}'
    (event,) = Engine().command({"do": "play", "files": [["x", f"{good}\n{line}\n"]]})
    assert event == {
        "event": "error",
        "text": "the line is not part of a trace (x:2): open a file that `trace.file` or `simulate"
        " --output jsonl` has written",
    }


def test_brackets_in_a_string() -> None:
    """Brackets count as depth only outside of strings, and only while they are open."""
    line = '{"t": 1, "note": "' + r"\"[" * 200 + '", "x": [' + "[], " * 200 + "0]}\n"
    (entry,) = read_trace([line], name="x")
    assert len(entry["x"]) == 201


@pytest.mark.parametrize("content", ["", "one line without an end", '{"v": 2}\n'])
def test_a_file_without_events(content: str) -> None:
    """The engine refuses a file in which it finds no event."""
    (event,) = Engine().command({"do": "play", "files": [["x", content]]})
    assert event["text"].startswith("there is no event of a trace (x): open a file that")


@pytest.mark.parametrize("files", [None, [], "x", [["x"]], [["x", 1]], [[["x"], "y"]]])
def test_files_that_are_none(files: object) -> None:
    """The engine refuses a command whose files are not names and texts."""
    (event,) = Engine().command({"do": "play", "files": files})
    assert event["text"] == "there are no files (files): give names and texts"


def test_the_engine_plays_files(tmp_path: Path) -> None:
    """Several files become one run, and no run gets the number of another one."""
    traces("a-consumer-joins", tmp_path)
    found = sorted(tmp_path.iterdir())
    entries = [
        entry for path in found for entry in read_trace(path.open(encoding="utf-8"), name=path.name)
    ]
    files = [[path.name, path.read_text(encoding="utf-8")] for path in found]
    engine = Engine()
    opened = engine.command({"do": "open"})
    played = engine.command({"do": "play", "files": files[::-1]})
    assert played == events_of(entries, ", ".join(path.name for path in found), 2)
    later = engine.command({"do": "open"})
    again = engine.command({"do": "play", "files": files})
    assert [events[0]["run"] for events in (opened, played, later, again)] == [1, 2, 3, 4]


def test_the_logs_of_zookeeper(tmp_path: Path) -> None:
    """The last frame from ZooKeeper's logs has the owners of the simulated group."""
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
    """The page shows two recorded runs, and jumps to the first move at which they differ."""
    for name in ("a-consumer-dies", "a-consumer-leaves"):
        with (tmp_path / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            run_scenario(
                SCENARIOS[name], jvm=None, emit=lambda entry, to=file: print(text(entry), file=to)
            )
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    with running_lab("--trace", paths[0], "--trace", paths[1]) as lab:
        one = open_page().go(lab.url)
        one.has(".axis .lanes", 2)
        expect(one.page.locator(".axis .lanes").nth(1)).to_be_in_viewport(ratio=0.9)
        one.page.get_by_role("button", name="first difference").click()
        expect(one.page.locator(".differ dd")).to_have_count(2)
        one.shows(one.page.locator(".differ dd").first.inner_text()[:30])


def test_an_address_of_a_moment(tmp_path: Path, open_page: Open) -> None:
    """The address of a recorded run opens the same moment, also in an exported file."""
    traces("a-zombie-wakes", tmp_path)
    with running_lab("--trace", str(tmp_path)) as lab:
        one = open_page().go(lab.url)
        one.keys("ArrowRight", "ArrowRight", "ArrowRight")
        one.at(3)
        one.page.wait_for_url(re.compile("at=3$"))
        open_page().go(one.page.url).at(3)
        one.keys("e")
        with one.page.expect_download() as download:
            one.page.get_by_role("button", name="a page with a player").click()
        file = tmp_path / "run.html"
        download.value.save_as(file)
    other = open_page().go(f"{file.as_uri()}#run=1&at=5")
    other.at(5)
    other.keys("ArrowLeft")
    other.page.wait_for_url(re.compile("at=4$"))


def test_a_directory_of_traces(tmp_path: Path, open_page: Open) -> None:
    """The traces of all members in a directory become one run, sorted by time."""
    traces("a-consumer-joins", tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} >= {"g_0", "g_1"}
    with running_lab("--trace", str(tmp_path)) as lab:
        one = open_page().go(lab.url)
        one.keys("End")
        one.has("[data-member]", 2)
        one.has(".partitions .cell.free", 0)
        one.page.locator(".partitions .cell").first.click()
        one.page.get_by_role("menuitem", name="why").click()
        status = one.page.get_by_role("status")
        expect(status).to_contain_text("does not contain the reasons", timeout=LIMIT_MS)


def test_the_page_of_a_history(tmp_path: Path, open_page: Open) -> None:
    """The page plays a group's history from ZooKeeper's logs, and offers no actions."""
    group = history(tmp_path)
    with running_lab("--history", str(tmp_path), "--group", group) as lab:
        one = open_page().go(lab.url)
        expect(one.page.locator("body")).to_contain_text(f"group {group} in ZooKeeper's logs")
        one.keys("End")
        head = one.page.locator("[data-member='0'] .head")
        expect(head).to_be_visible(timeout=LIMIT_MS)
        expect(head).to_be_disabled()
