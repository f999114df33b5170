"""`zkconsumer simulate`: stories, seeds and lessons, as a timeline, a trace and a page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from cli.conftest import Run

TRACES = Path(__file__).parents[1] / "traces"


def test_the_scenarios_are_listed(run: Run) -> None:
    """`simulate` lists every story that has a golden trace, and both lessons."""
    code, out, err = run("simulate", "--list")
    assert (code, err) == (0, "")
    listed = {line.split()[0] for line in out.splitlines()}
    assert listed == {path.stem for path in TRACES.glob("*.txt")} | {"herd-effect", "split-brain"}


def test_a_story(call: Run) -> None:
    """A scenario, selected by name or title, prints its golden trace."""
    golden = (TRACES / "a-reply-is-lost.txt").read_text(encoding="utf-8")
    for name in ("a-reply-is-lost", "a reply is lost"):
        code, out, err = call("simulate", "--scenario", name)
        assert (code, err) == (0, "")
        assert out.startswith(golden.split("\n\n", 1)[1])
        assert "8 messages delivered, 0 of them redelivered" in out


def test_a_story_of_jvm_members(call: Run) -> None:
    """With --jvm, JVM members run the same story."""
    code, out, _ = call("simulate", "--scenario", "a-consumer-leaves", "--peers", "jvm")
    assert code == 0
    assert "rebalancing" in out and "recovering" not in out


@pytest.mark.parametrize("peers", ["ours", "mixed", "jvm"])
def test_a_seed_is_a_trace(call: Run, tmp_path: Path, peers: str) -> None:
    """A seed always gives the same run, whose trace can be replayed."""
    arguments = (
        "simulate",
        "--seed",
        "7",
        "--members",
        "4",
        "--partitions",
        "6",
        "--strategy",
        "roundrobin",
        "--peers",
        peers,
        "--fault",
        "kill",
        "--fault",
        "expire",
        "--output",
        "jsonl",
    )
    code, first, err = call(*arguments)
    assert code == 0 and "virtual seconds" in err
    assert call(*arguments) == (0, first, err)
    path = tmp_path / "trace.jsonl"
    path.write_text(first, encoding="utf-8")
    code, out, err = call("trace", "check", str(path))
    assert (code, err) == (0, "")
    members = {"ours": 4, "mixed": 2, "jvm": 0}[peers]
    assert f" transitions of {members} runs reproduced" in out


class Links(HTMLParser):
    """The resources that an HTML page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]


def test_a_page(call: Run) -> None:
    """The page of a random run has its timeline and story, and loads no resource."""
    code, out, _ = call("simulate", "--seed", "3", "--members", "2", "--output", "html")
    assert code == 0
    page = Links()
    page.feed(out)
    assert page.fetched == [] and "script" not in page.tags
    assert page.tags.count("svg") == 1 and "circle" in page.tags
    assert "has read the group" in out


def test_a_player(call: Run) -> None:
    """The page of a scenario is the lab's player with the run, and loads no resource."""
    code, out, _ = call("simulate", "--scenario", "a-consumer-joins", "--output", "html")
    assert code == 0
    page = Links()
    page.feed(out)
    # The first script shows the reason if the page cannot start.
    assert page.tags.count("script") == 4
    assert all(one.startswith("data:") for one in page.fetched)
    assert "g_1 joins" in out


def test_split_brain(call: Run) -> None:
    """JVM members deliver lost partitions and leave some unowned; zkconsumer's do neither."""
    code, out, err = call("simulate", "--scenario", "split-brain", "--output", "jsonl")
    assert (code, err) == (0, "")
    rows = {row["group"]: row for row in map(json.loads, out.splitlines())}
    lost, back = "delivered after losing ownership", "offsets moved back"
    assert rows["JVM, cut-off server"][lost] > 0
    assert rows["JVM, hung owner"]["claims refused"] > 0
    assert rows["JVM, hung owner"]["unowned at the end"] > 0
    for kind in ("zkconsumer, cut-off server", "zkconsumer, hung owner"):
        assert rows[kind][lost] == rows[kind][back] == rows[kind]["unowned at the end"] == 0


def test_formats(call: Run) -> None:
    """A story is a table, and a lesson is rows; CSV is refused for the events of a run."""
    story = ("simulate", "--scenario", "a-reply-is-lost")
    assert call(*story, "-o", "story") == call(*story, "-o", "table") == call(*story)
    code, out, _ = call("simulate", "--scenario", "split-brain", "-o", "csv")
    assert code == 0
    assert out.startswith("group,claims refused,")
    code, out, err = call(*story, "-o", "csv")
    assert (code, out) == (2, "")
    assert "which CSV cannot hold (--output csv): use --output jsonl" in err
    code, out, err = call("simulate", "--list", "-o", "html")
    assert (code, out) == (2, "") and "the list has no page" in err


def test_wrong_use(call: Run) -> None:
    """The error for an unknown scenario names --list; for an unknown fault it lists the faults."""
    code, _, err = call("simulate", "--scenario", "nonsense")
    assert code == 2 and "no scenario is called 'nonsense'" in err and "--list" in err
    code, _, err = call("simulate", "--fault", "nonsense")
    assert code == 2 and re.search(r"use one of .*kill", err)
