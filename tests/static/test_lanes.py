"""The lanes of the suite: each rule of tests/lanes.py names tests that exist."""

from __future__ import annotations

from pathlib import Path

import lanes
import pytest
from lanes import Lane, Rule

from zkconsumer.sandbox import ZooKeeperServer

ROOT = Path(__file__).parents[2]


def test_every_rule_fits_a_test(pytestconfig: pytest.Config) -> None:
    """In a run of the whole suite each rule matches a test; in any run the rule's file exists."""
    missing = [rule for rule in lanes.RULES if not (ROOT / rule.where.partition("::")[0]).exists()]
    assert missing == []
    if pytestconfig.args == pytestconfig.getini("testpaths"):
        lane = lanes.of_run(pytestconfig)
        unused = pytestconfig.stash[lanes.UNUSED_RULES]
        # If all tests of a module belong to later lanes, pytest does not collect the module.
        seen = [one for one in unused if not lanes.is_later(one.where.partition("::")[0], lane)]
        assert seen == []


def test_the_last_rule_that_fits_decides() -> None:
    """The last matching rule decides; a rule may match only cases that contain a word."""
    rules = (
        Rule(Lane.ALL, "tests/a", "all cases", but=("[old]",)),
        Rule(Lane.NORMAL, "tests/a/test_b.py::test_c", "one case", only=("new",)),
    )
    case = "tests/a/test_b.py::test_c[{}]".format
    assert lanes.lane_of(case("new"), ["sandbox"], rules) is Lane.NORMAL
    assert lanes.lane_of(case("other"), [], rules) is Lane.ALL
    assert lanes.lane_of(case("old"), ["sandbox"], rules) is Lane.NORMAL
    assert lanes.lane_of(case("old"), [lanes.MARK], rules) is Lane.NORMAL
    assert lanes.lane_of(case("old"), ["tmp_path"], rules) is Lane.QUICK


def test_a_test_of_the_quick_lane_starts_no_server(tmp_path: Path) -> None:
    """A test of the quick lane cannot start a server, whichever lane is run."""
    with pytest.raises(AssertionError, match=r"quick lane and uses a server \(ZooKeeperServer\)"):
        ZooKeeperServer(tmp_path).start()


def test_a_test_of_the_quick_lane_uses_no_server(request: pytest.FixtureRequest) -> None:
    """A test uses a server even if an earlier test started it and a fixture requests it by name."""
    assert "tmp_path" not in request.fixturenames
    request.getfixturevalue("tmp_path")
    assert "tmp_path" in request.fixturenames
    assert lanes.fault(request.node, []) is None
    assert "uses a server (sandbox)" in str(lanes.fault(request.node, ["sandbox"]))


def test_the_page_shows_the_lanes(request: pytest.FixtureRequest) -> None:
    """docs/test-lanes.md lists the last lane's tests; `pytest THIS_FILE --rewrite` updates it."""
    path = ROOT / "docs" / "test-lanes.md"
    page = path.read_text(encoding="utf-8")
    begin, _, rest = page.partition("<!-- lanes -->\n")
    _, end, tail = rest.partition("<!-- /lanes -->")
    wanted = f"{begin}<!-- lanes -->\n{lanes.table()}\n{end}{tail}"
    if request.config.getoption("--rewrite"):
        path.write_text(wanted, encoding="utf-8")
    assert page == wanted
