"""docs/behaviour.md: its rows name existing tests, and its figures equal those in the code."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from zkconsumer.protocol.assignors import Strategy, assign

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "behaviour.md").read_text(encoding="utf-8")
CONFIGURATION = (DOCS / "configuration.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
SHARES = re.compile(r"^\| (\d+) \D (\d+) \| (\d+) \| ([\d, ]+) \| ([\d, ]+) \|$", re.MULTILINE)
COSTS = re.compile(r"^\| (\d+) \| ([\d.,]+) \| ([\d,]+) \| up to ([\d,]+) \|$", re.MULTILINE)
# The group whose costs the page's table states.
MEMBERS, PARTITIONS, MESSAGES_PER_S = 100, 20, 1_000


def _rows() -> Iterator[list[str]]:
    """Return the cells of the table of "What happens when…", without its header."""
    section = PAGE.split("\n## What happens when…\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


@cache
def _tests_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_row_names_a_test() -> None:
    """Each row of "What happens when…" links existing tests."""
    rows = list(_rows())
    assert rows
    for when, _, tests in rows:
        named = LINK.findall(tests)
        assert named, f"the page names no test of what happens when {when}"
        for name, path in named:
            assert name.strip("`") in _tests_of((DOCS / path).resolve()), f"{name} is not in {path}"


def test_every_property_exists() -> None:
    """The page names only existing properties, with their defaults."""
    rows = re.findall(r"^\| `([\w.]+)` \| `\w+` \| (\S+) ", CONFIGURATION, re.MULTILINE)
    defaults = dict(rows)
    # Properties of the broker and of Spark's source; zkconsumer does not define them.
    others = {"offsets.retention.minutes", "revoke.grace.ms"}
    named = set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)(?:=\w+)?`", PAGE))
    named = {one for one in named if not one.endswith((".md", ".properties", ".jsonl"))}
    assert named - {"stream.waiting_for", "message.key", "message.value"} - others <= set(defaults)
    stated = re.findall(r"`([a-z.]+)` \((\w+) by default\)", PAGE)
    assert stated
    for name, default in stated:
        assert defaults[name] == default
    assert defaults["auto.offset.reset"] == "largest"
    assert defaults["partition.assignment.strategy"] == "range"


@pytest.mark.parametrize(
    ("topics", "partitions", "threads", "by_range", "by_circle"), SHARES.findall(PAGE)
)
def test_the_stated_shares_are_assigned(
    topics: str, partitions: str, threads: str, by_range: str, by_circle: str
) -> None:
    """Both strategies assign the topics of the page in the shares that the page states."""
    names = [f"topic{number}" for number in range(int(topics))]
    subscriptions = {f"g_c{number}": dict.fromkeys(names, 1) for number in range(int(threads))}
    for strategy, stated in ((Strategy.RANGE, by_range), (Strategy.ROUND_ROBIN, by_circle)):
        found = assign(
            strategy,
            subscriptions=subscriptions,
            partitions=dict.fromkeys(names, tuple(range(int(partitions)))),
        )
        shares = Counter(dict.fromkeys((f"{one}-0" for one in subscriptions), 0))
        shares.update(found.values())
        told = [int(one) for one in stated.split(", ")]
        assert told == sorted(shares.values(), reverse=True)


def test_the_table_of_shares_has_rows() -> None:
    """The table of shares has rows; otherwise the test above would check nothing."""
    assert len(SHARES.findall(PAGE)) == 3


def test_what_commits_cost() -> None:
    """Each figure in the table of costs follows from the group that the page describes."""
    rows = COSTS.findall(PAGE)
    assert len(rows) == 3
    assert f"For {MEMBERS} members with {PARTITIONS} partitions each" in PAGE
    for interval_ms, *figures in rows:
        interval_s = int(interval_ms) / 1000
        transactions, writes, redelivered = (float(one.replace(",", "")) for one in figures)
        assert transactions == round(MEMBERS / interval_s, 1)
        assert writes == round(MEMBERS * PARTITIONS / interval_s)
        assert redelivered == MESSAGES_PER_S * interval_s
