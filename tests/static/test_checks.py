"""The linter and the type checker, over all that is ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The programs beside the package.
PROGRAMS = [
    str(path.relative_to(ROOT))
    for folder in ("scripts", "docker", "docs/examples", "tests/typing")
    for path in sorted((ROOT / folder).glob("*.py"))
]
# One run for the package and the programs, because each run reads all sources. mypy takes the
# folder docker/ for a package of that name if it may. It reports nothing of modules that it only
# follows: the soak imports the tests' helpers.
MYPY = ("mypy", "--strict", "--follow-imports=silent", "--no-namespace-packages")


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        (*MYPY, "zkconsumer", *PROGRAMS),
    ],
    ids=["ruff", "ruff format", "mypy"],
)
def test_nothing_is_found(command: tuple[str, ...]) -> None:
    """The linter, the formatter and the type checker find nothing."""
    environ = {**os.environ, "MYPYPATH": "tests"}
    found = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
