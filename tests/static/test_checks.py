"""The linter and the type checker, for the package, the scripts and the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zkconsumer.sandbox.jars import cache_directory

ROOT = Path(__file__).parents[2]
# One run covers the package, the scripts and the tests, because each run reads all sources. A
# module is named after its path below one of SOURCES, as it is when it runs.
MYPY = ("mypy", "--strict", "--explicit-package-bases")
SOURCES = ("tests", "scripts", "docs/examples")
CHECKED = ("zkconsumer", *SOURCES, "docker/build.py")
# The cache is beside the jars, so that all checkouts of a user share it: mypy compares the hashes
# of the sources. Without a cache, mypy needs half a minute of processor time.
MYPY_CACHE = cache_directory().with_name("mypy")


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        (*MYPY, *CHECKED),
    ],
    ids=["ruff", "ruff format", "mypy"],
)
def test_nothing_is_found(command: tuple[str, ...]) -> None:
    """The linter, the formatter and the type checker report nothing."""
    environ = {**os.environ, "MYPYPATH": ":".join(SOURCES), "MYPY_CACHE_DIR": str(MYPY_CACHE)}
    found = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


# A report of mypy: the file, the line, and what is wrong.
REPORT = re.compile(r"^zkconsumer/(\w+).*: error: .*$", re.MULTILINE)


def test_windows_has_every_used_name() -> None:
    """Only the sandbox and the demos use names that Python lacks on Windows."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--platform", "win32"],
        cwd=ROOT,
        env={**os.environ, "MYPY_CACHE_DIR": f"{MYPY_CACHE}-win32"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [one for one in REPORT.finditer(done.stdout) if one[1] not in ("sandbox", "demo")]
    assert not found, "\n".join(one[0] for one in found)
    assert "SIGKILL" in done.stdout  # mypy did look for names that Windows lacks
