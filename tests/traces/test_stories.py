"""Golden traces: "What happens when…", as stories that reviewers read.

If the behaviour of members changes, a story here changes. `pytest tests/traces --rewrite` writes
the stories again. Read the diff, and commit it only if each change is intended.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zkconsumer.sim.recorder import ROOT, Recorder
from zkconsumer.sim.scenarios import SCENARIOS, Scenario
from zkconsumer.sim.stage import monitor_for, stage
from zkconsumer.trace import text
from zkconsumer.trace.replay import check
from zkconsumer.trace.story import story

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "behaviour.md").read_text(encoding="utf-8")

# Rows of the page that are not about the group protocol: these have tests, but no story.
WITHOUT_STORY = {
    "an offset is out of range, or there is none",
    "another member's registration is malformed",
    "the last offset of a log is a transaction marker",
    "another client deletes the znodes of a live group (`rmr`)",
    "another client registers with two requests (kafka-node)",
    "a topic's znode is malformed",
    "an offset's znode is malformed",
    "another member's filter cannot be evaluated",
    "a matching topic is created or deleted",
    "members assign by different rules",
    "the broker that keeps the group's offsets dies (`offsets.storage=kafka`)",
    "a partition moves during a Spark batch",
    "a Spark query is killed during a batch",
    "your code raises",
    "a decoder raises",
    "another session has the consumer id",
    "ZooKeeper refuses a right",
    "ZooKeeper cannot be reached, or the chroot is missing",
    # The member's part is that of "a session expires". The client's part, the refused connections,
    # has no znodes to show, and JVM members have another client.
    "ZooKeeper comes back with less data (deleted, restored from a backup, or rebuilt under the"
    " same name)",
    "ZooKeeper closes every connection, because `maxClientCnxns` is reached or there is no quorum",
    "one of several ZooKeeper hosts is unknown",
}


def told(one: Scenario) -> tuple[str, list[dict[str, Any]]]:
    """Return a story in the format of its file, and the story's entries."""
    entries: list[dict[str, Any]] = []
    on = stage(one.plan, Recorder(entries.append), monitor_for(one.jvm), jvm=one.jvm)
    one.script(on)
    names = [member.name for member in on.world.members]
    head = [one.title, "=" * len(one.title), one.lesson, f"Decided in {one.decided}.", ""]
    lines = [*head, *story(entries, names, root=ROOT)]
    return "\n".join(lines) + "\n", entries


def rows() -> Iterator[str]:
    """Return the first cells of the table in docs/behaviour.md."""
    section = PAGE.split("\n## What happens when…\n")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    for line in table[2:]:
        yield line.split("|")[1].strip()


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_story_is_the_same(name: str, request: pytest.FixtureRequest) -> None:
    """Each story equals its golden trace, and keeps every promise."""
    found, _ = told(SCENARIOS[name])
    path = HERE / f"{name}.txt"
    if request.config.getoption("--rewrite"):
        path.write_text(found, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == found, "see --rewrite"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_story_is_a_trace(name: str) -> None:
    """The lines of the simulated members can be replayed like the trace of a real member."""
    _, entries = told(SCENARIOS[name])
    steps = [entry for entry in entries if "event" in entry]
    found = check((text(entry) + "\n" for entry in entries), name=name)
    assert found.transitions == len(steps)


def test_two_runs_of_a_story_are_equal() -> None:
    """Two runs of the same story are equal."""
    assert told(SCENARIOS["a-zombie-wakes"]) == told(SCENARIOS["a-zombie-wakes"])


def test_one_set_of_titles() -> None:
    """The rows of the page, the scenarios and the golden traces have the same titles."""
    linked = {}
    for cell in rows():
        found = re.fullmatch(r"\[(.*)\]\(\.\./tests/traces/(.*)\.txt\)(?: \(.*\))?", cell)
        if found:
            linked[found[2]] = found[1]
        else:
            assert cell in WITHOUT_STORY, f"no story is told of: {cell}"
    assert linked == {name: one.title for name, one in SCENARIOS.items()}
    assert {path.stem for path in HERE.glob("*.txt")} == set(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_deciding_function_exists(name: str) -> None:
    """The function that a story names exists in the module that the story names."""
    package, module, path = SCENARIOS[name].decided.split(".", 2)
    found: Any = importlib.import_module(f"zkconsumer.{package}.{module}")
    for part in path.split("."):
        found = getattr(found, part)
    assert found.__module__ == f"zkconsumer.{package}.{module}"
