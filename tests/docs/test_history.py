"""docs/history.md: its example runs unchanged, and its tables equal those in the code."""

from __future__ import annotations

import re
import shlex
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.history.incidents import KINDS
from zkconsumer.history.tables import TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "history.md").read_text(encoding="utf-8")


LOGS = Path(__file__).parents[1] / "golden" / "history"
EXAMPLES = re.findall(r"```console\n\$ (zkconsumer history .*?)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), EXAMPLES)
def test_the_example(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, shown: str
) -> None:
    """The command prints what the page shows, for the recorded logs of real servers."""
    monkeypatch.chdir(LOGS)
    if "--server-log" in command:
        with tarfile.open(LOGS.parent / "server_logs" / "3.9.6-info.tar.gz") as archive:
            archive.extractall(tmp_path, filter="data")
        monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert (done.exit_code, done.stdout) == (0, shown)


def test_the_page_has_an_example() -> None:
    """The page has the example's three commands, one with names, and no other with output."""
    commands = [command.split()[2] for command, _ in EXAMPLES]
    assert commands == ["report", "timeline", "show", "timeline"]


def test_the_tables() -> None:
    """The page lists every table, and exactly the existing kinds of incidents."""
    assert set(first_cells(PAGE)) >= TABLES.keys()
    section = PAGE.partition("\n## Incidents\n")[2].partition("\n## ")[0]
    assert first_cells(section) == list(KINDS)


def first_cells(text: str) -> list[str]:
    """Return the names in backticks in the first column of each table."""
    return re.findall(r"^\| `([a-z ]+)` \|", text, re.MULTILINE)
