"""The imports of the simulator's members: only the standard library, so that browsers run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.wait import LIMIT_S

ROOT = Path(__file__).parents[2]

FOREIGN = """
import sys, importlib
before = set(sys.modules)
importlib.import_module(sys.argv[1])
{use}
after = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(after - set(sys.stdlib_module_names) - {{"zkconsumer"}}))
"""

PATTERN = "from zkconsumer.protocol.filters import white_list; white_list('a.*')"


def foreign(module: str, use: str = "") -> str:
    """Return the packages outside of the standard library that a fresh interpreter imports."""
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN.format(use=use), module],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module",
    [
        "zkconsumer.protocol.group_assignment",
        "zkconsumer.member.machine",
        "zkconsumer.member.operations",
        "zkconsumer.later.group_coordinator",
        "zkconsumer.sim.scenarios",
        "zkconsumer.sim.lessons",
        "zkconsumer.lab.engine",
        "zkconsumer.lab.comparisons",
        "zkconsumer.lab.coordinated",
        "zkconsumer.lab.bridged",
    ],
)
def test_it_imports_only_the_standard_library(module: str) -> None:
    """The decisions, the operations and the simulator run without any installed package."""
    assert foreign(module) == ""


def test_the_first_picture_of_the_lab_needs_no_coordinator() -> None:
    """A world with ZooKeeper imports no module of the later protocols, so the lab starts sooner."""
    program = (
        "import sys; from zkconsumer.lab.engine import Engine\n"
        "engine = Engine(); engine.command({'do': 'catalogue'}); engine.command({'do': 'open'})\n"
        "later = ('coordinat', '.compare', 'bridge')\n"
        "print(*[name for name in sys.modules if any(one in name for one in later)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.strip() == ""


def test_a_pattern_filter_needs_regex() -> None:
    """A pattern filter imports `regex`, and no other package."""
    assert foreign("zkconsumer.protocol.filters", PATTERN) == "regex"
