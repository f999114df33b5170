"""Golden traces of the other group protocols: JVM members, and groups with a coordinator.

`pytest tests/traces --rewrite` writes them again; read the diff before you commit it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from zkconsumer.sim.coordinated.stories import ASSIGNORS, STORIES, WITHOUT, run_story
from zkconsumer.sim.recorder import ROOT
from zkconsumer.sim.scenarios import SCENARIOS, names_of, run_scenario
from zkconsumer.trace.story import story

HERE = Path(__file__).parent
JVM = "zookeeper-jvm"

# This story needs a group that has both kinds of members.
WITHOUT_JVM = {"a-jvm-peer-joins"}

CASES = [
    *((JVM, name) for name in SCENARIOS if name not in WITHOUT_JVM),
    *((protocol, name) for name in STORIES for protocol in ASSIGNORS),
]


def decider(name: str, protocol: str) -> str:
    """Return the function that decides in a story, as the story names it for this protocol."""
    classic, consumer = STORIES[name].decided
    return consumer if protocol == "consumer" else classic


def told(protocol: str, name: str) -> str:
    """Return a story in the format of its file."""
    entries: list[dict[str, Any]] = []
    if protocol == JVM:
        one = SCENARIOS[name]
        everybody = frozenset(range(one.plan.members))
        run_scenario(one, jvm=everybody, emit=entries.append)
        head = [one.title, "=" * len(one.title), f"Protocol: {protocol}.", ""]
        lines = [*head, *story(entries, names_of(one.plan.members), root=ROOT)]
        return "\n".join(lines) + "\n"
    later = STORIES[name]
    ended = run_story(later, protocol, entries.append)
    assert (ended.violation, ended.rest) == ("", "")
    decided = f"Protocol: {protocol}. Decided in {decider(name, protocol)}."
    head = [later.title, "=" * len(later.title), later.lesson, decided, ""]
    return "\n".join([*head, *story(entries, names_of(later.members), root="")]) + "\n"


@pytest.mark.parametrize(("protocol", "name"), CASES)
def test_the_story_is_the_same(protocol: str, name: str, request: pytest.FixtureRequest) -> None:
    """Each story equals its golden trace, and keeps every promise."""
    found = told(protocol, name)
    path = HERE / protocol / f"{name}.txt"
    if request.config.getoption("--rewrite"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == found, "see --rewrite"


def test_no_other_files() -> None:
    """Each golden trace belongs to a story, and each story has a golden trace."""
    files = {(path.parent.name, path.stem) for path in HERE.glob("*/*.txt")}
    assert files == set(CASES)


def test_every_story_has_a_counterpart_or_a_reason() -> None:
    """Each story about ZooKeeper has a counterpart here, or a reason why it has none."""
    assert set(SCENARIOS) == (set(STORIES) & set(SCENARIOS)) | set(WITHOUT)
    assert not set(STORIES) & set(WITHOUT)


def test_the_deciding_functions_exist() -> None:
    """The function that a story names exists in the module that the story names."""
    for protocol, name in [one for one in CASES if one[0] in ASSIGNORS]:
        package, module, function = decider(name, protocol).split(".")
        found = getattr(importlib.import_module(f"zkconsumer.{package}.{module}"), function)
        assert found.__module__ == f"zkconsumer.{package}.{module}", name
