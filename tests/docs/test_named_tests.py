"""docs/compatibility.md and docs/verification.md name existing tests of what they say."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from zkconsumer.sim import promises, tool
from zkconsumer.sim.bridged import monitor as bridged
from zkconsumer.sim.coordinated import monitor
from zkconsumer.sim.kernel.promises import Promise

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
PAGE = (DOCS / "compatibility.md").read_text(encoding="utf-8")
PROMISES = (DOCS / "verification.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w/]+)::(test_\w+)`")
ROWS = [
    line
    for line, following in pairwise(PAGE.splitlines())
    if line.startswith("| ") and not following.startswith("|--")
]


@cache
def _docstrings(module: str) -> dict[str, str]:
    """Return the test functions of a module with their docstrings."""
    tree = ast.parse((TESTS / f"{module}.py").read_text(encoding="utf-8"))
    tests = (one for one in tree.body if isinstance(one, ast.FunctionDef))
    return {one.name: ast.get_docstring(one) or "" for one in tests}


@pytest.mark.parametrize(("page", "least"), [(PAGE, 100), (PROMISES, 25)], ids=["compat", "proof"])
def test_every_named_test_exists(page: str, least: int) -> None:
    """Each test that a page names is a function of the module that the page names."""
    named = sorted(set(NAMED.findall(page)))
    assert len(named) > least
    assert [(module, test) for module, test in named if test not in _docstrings(module)] == []


def test_every_row_is_shown_by_a_test() -> None:
    """Each row names a test or says that none applies; limits and figures have explanations."""
    without = [row for row in ROWS if not NAMED.search(row) and "not applicable" not in row]
    limits = PAGE.split("\n## Regexes\n")[1].split("\n## ")[0]
    figures = PAGE.split("\n## Mixed groups\n")[1].split("\n## ")[0]
    assert [row for row in without if row not in limits + figures] == [
        "| The consumer is deprecated from 0.11 on | does not apply | |"
    ]


def test_each_promise_names_its_tests() -> None:
    """Each promise is numbered once and names a test, and the simulator checks all but I11."""
    rows = re.findall(r"^\| (I\d+) [SLE] \|(.*)\|$", PROMISES, re.MULTILINE)
    assert [number for number, _ in rows] == [f"I{number}" for number in range(1, len(rows) + 1)]
    assert len(rows) >= 18
    assert [number for number, row in rows if not NAMED.search(row)] == []
    simulator = (TESTS.parent / "zkconsumer" / "sim").rglob("*.py")
    checks = " ".join(path.read_text(encoding="utf-8") for path in simulator)
    assert [number for number, _ in rows if f'"{number}"' not in checks] == ["I11"]


@pytest.mark.parametrize(
    ("page", "promises"),
    [("verification.md", (*promises.PROMISES, *tool.PROMISES)), ("later.md", monitor.PROMISES)],
    ids=["zookeeper", "coordinated"],
)
def test_each_promise_names_its_predicates(page: str, promises: Sequence[Promise[...]]) -> None:
    """The row of each promise names the predicates with its number, and each has a sentence."""
    text = (DOCS / page).read_text(encoding="utf-8")
    rows = {
        number: re.findall(r"`(\w+)`(?! \()", cells.split(" | ")[-3 if "::" in cells else -1])
        for number, cells in re.findall(r"^\| ([IC]\d+)(?: [SLE])? \|(.*)\|$", text, re.MULTILINE)
    }
    for number in {one.number for one in promises}:
        assert rows[number] == [one.name for one in promises if one.number == number]
    assert [one.name for one in promises if not one.sentence.endswith(".")] == []


def test_each_promise_of_the_bridge_has_a_row() -> None:
    """The table of the bridge's promises has one row for each promise, in their order."""
    rows = re.findall(r"^\| (B\d+) \|", PROMISES, re.MULTILINE)
    assert rows == [one.number for one in bridged.PROMISES]


UPSTREAM = [
    row.strip("| ").split(" | ")
    for row in PAGE.split("\n## Upstream's own tests\n")[1].split("\n## ")[0].splitlines()
    if NAMED.search(row)
]


@pytest.mark.parametrize(("upstream", "ours"), UPSTREAM, ids=[row[0] for row in UPSTREAM])
def test_each_upstream_test_is_named_by_an_equivalent(upstream: str, ours: str) -> None:
    """For each upstream test on the page, a docstring has upstream's class and method."""
    name = re.match(r"(?:javaapi )?(\w+(?:\.\w+)?)", upstream)
    assert name is not None
    for module, test in NAMED.findall(ours):
        assert name[1] in _docstrings(module)[test]
