"""The lanes of the suite: each rule of tests/lanes.py is about tests that exist."""

from __future__ import annotations

from pathlib import Path

import lanes
import pytest
from lanes import Lane, Rule

ROOT = Path(__file__).parents[2]


def test_every_rule_fits_a_test(pytestconfig: pytest.Config) -> None:
    """In a run of the whole suite each rule fits a test; in any run its file exists."""
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


def test_the_page_shows_the_lanes(request: pytest.FixtureRequest) -> None:
    """CONTRIBUTING.md has the table of the lanes; `pytest THIS_FILE --rewrite` writes it."""
    path = ROOT / "CONTRIBUTING.md"
    page = path.read_text(encoding="utf-8")
    begin, _, rest = page.partition("<!-- lanes -->\n")
    _, end, tail = rest.partition("<!-- /lanes -->")
    wanted = f"{begin}<!-- lanes -->\n{lanes.table()}\n{end}{tail}"
    if request.config.getoption("--rewrite"):
        path.write_text(wanted, encoding="utf-8")
    assert page == wanted
