"""The lanes of the suite: each rule of tests/lanes.py is about tests that exist."""

from __future__ import annotations

from pathlib import Path

import lanes
import pytest
from lanes import Lane, Rule

ROOT = Path(__file__).parents[2]


def test_every_rule_fits_a_test(pytestconfig: pytest.Config) -> None:
    """A rule whose files were all collected in this run fits at least one of their tests.

    A run of a few files checks only that the file or folder of a rule exists.
    """
    missing = [rule for rule in lanes.RULES if not (ROOT / rule.where.partition("::")[0]).exists()]
    assert missing == []
    if pytestconfig.args == pytestconfig.getini("testpaths"):
        assert pytestconfig.stash[lanes.UNUSED_RULES] == []


def test_the_last_rule_that_fits_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later rule overrides an earlier one, by the words of the case in brackets."""
    rules = (
        Rule(Lane.ALL, "tests/a", "all cases", but=("[old]",)),
        Rule(Lane.NORMAL, "tests/a/test_b.py::test_c", "one case", only=("new",)),
    )
    monkeypatch.setattr(lanes, "RULES", rules)
    assert lanes.lane_of("tests/a/test_b.py::test_c[new]", ["sandbox"]) is Lane.NORMAL
    assert lanes.lane_of("tests/a/test_b.py::test_c[other]", []) is Lane.ALL
    assert lanes.lane_of("tests/a/test_b.py::test_c[old]", ["sandbox"]) is Lane.NORMAL
    assert lanes.lane_of("tests/a/test_b.py::test_c[old]", ["tmp_path"]) is Lane.QUICK
