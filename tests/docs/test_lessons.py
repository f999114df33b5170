"""The lessons: each command that is shown gives the output that is shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from zkconsumer.cli import app

FOLDER = Path(__file__).parents[2] / "docs" / "lessons"
LESSONS = sorted(FOLDER.glob("*.md"))
BLOCK = re.compile(r"```console\n\$ zkconsumer ([^\n]*)\n(.*?)```", re.DOTALL)

# Maximum number of lines in a lesson: about one printed page.
MAX_LINES = 66


def output(command: str) -> str:
    """Return the output of a command, without spaces at the ends of lines."""
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    return "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: str(path.stem))
def test_the_commands(
    path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages show the output of their commands; `pytest THIS_FILE --rewrite` updates it."""
    monkeypatch.chdir(FOLDER)
    page = path.read_text(encoding="utf-8")
    wanted = BLOCK.sub(lambda one: f"```console\n$ zkconsumer {one[1]}\n{output(one[1])}```", page)
    if request.config.getoption("--rewrite"):
        path.write_text(wanted, encoding="utf-8")
    assert page == wanted
    assert BLOCK.search(page)


def test_the_lessons_are_short() -> None:
    """There are ten lessons, and each fits on one page."""
    lengths = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in LESSONS}
    assert len(lengths) == 10
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}
