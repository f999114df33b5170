"""The examples of docs/testing.md run in an empty environment that contains the wheel."""

from __future__ import annotations

import shutil
import subprocess
import venv
from pathlib import Path

import pytest
from support.packages import LIMIT_S, ROOT, Built, pip

FILES = (
    "totals.py",
    "test_totals.py",
    "test_totals_unittest.py",
    "test_totals_faults.py",
    "test_beside_jvm.py",
)


def run(directory: Path, *command: str | Path) -> str:
    """Run a command in the directory, outside of the checkout, and return its output."""
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.timeout(2 * LIMIT_S)
def test_the_examples_in_an_empty_environment(built: Built, tmp_path: Path) -> None:
    """With only the wheel and pytest, the example's tests pass with pytest and with unittest."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip("--python", str(python), "install", str(built.wheel), "pytest")
    work = tmp_path / "work"
    work.mkdir()
    for name in FILES:
        shutil.copy(ROOT / "docs" / "examples" / name, work)
    (work / "conftest.py").write_text('pytest_plugins = ["zkconsumer.testing.plugin"]\n')
    assert "9 passed" in run(work, python, "-m", "pytest")
    assert "OK" in run(work, python, "-m", "unittest", "test_totals_unittest.py")
    installed = run(work, python, "-c", "import zkconsumer; print(zkconsumer.__file__)")
    assert Path(installed.strip()).is_relative_to(tmp_path)
