"""The linter and the type checker, over all that is ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Beside the package. mypy takes the folder docker/ for a package of that name if it may.
PROGRAMS = [
    str(path.relative_to(ROOT))
    for folder in ("scripts", "docker", "docs/examples")
    for path in sorted((ROOT / folder).glob("*.py"))
]
STRICTLY = ("--strict", "--follow-imports=silent", "--no-namespace-packages")


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("mypy",),
        ("mypy", *STRICTLY, *PROGRAMS),
    ],
    ids=["ruff", "ruff format", "mypy", "mypy of programs"],
)
def test_nothing_is_found(command: tuple[str, ...]) -> None:
    """The linter, the formatter and the type checker find nothing."""
    # The soak is made of the tests' helpers.
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
