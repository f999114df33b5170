"""docs/operators.md, "Try the commands on your own machine": the commands run unchanged."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from support.wait import LIMIT_S

from zkconsumer.cli import COMMANDS, app
from zkconsumer.sandbox.ports import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text(encoding="utf-8")
TOUR = PAGE.split("\n## Try the commands on your own machine\n")[1].split("\n## ")[0]


def _lines() -> list[str]:
    (block,) = re.findall(r"^```sh\n(.*?)^```$", TOUR, re.MULTILINE | re.DOTALL)
    whole = block.replace("\\\n", "")
    return [line.partition(" > ")[0] for line in whole.splitlines() if line]


COMMAND_LINES = [line for line in _lines() if line.startswith("zkconsumer ")]


def _parse(command: Any, words: list[str], parent: Any = None) -> None:
    """Parse a command down to its last subcommand, without running it."""
    context = command.make_context(command.name, list(words), parent=parent)
    if hasattr(command, "resolve_command"):
        rest = words[-len(context.args) - 1 :]  # the words from the subcommand's name on
        _, subcommand, words = command.resolve_command(context, rest)
        _parse(subcommand, words, context)


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_every_command_parses(line: str) -> None:
    """The command line accepts each command with the options on the page."""
    with suppress(typer.Exit):  # --help ends the parser.
        _parse(typer.main.get_command(app), shlex.split(line)[1:])


def test_every_command_is_shown() -> None:
    """The tour shows every command of the command line, and installs only with pip."""
    assert set(COMMANDS) <= {line.split()[1] for line in COMMAND_LINES}
    others = [line for line in _lines() if line not in COMMAND_LINES]
    assert [line.split()[0] for line in others] == ["pip", "export"]


def test_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands, run one after the other on other ports, print what the page says."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    ports = {"2181": str(free_port()), "9092": str(free_port())}

    def real(line: str) -> str:
        line = line.replace("~/.local/share", str(tmp_path / "data"))
        return re.sub("2181|9092", lambda port: ports[port.group()], line)

    def run(line: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(real(line))],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    (export,) = [line for line in _lines() if line.startswith("export ")]
    name, _, value = real(export).removeprefix("export ").partition("=")
    monkeypatch.setenv(name, value)
    # tests/cli/test_demo.py, tests/cli/test_top.py
    elsewhere = {"zkconsumer demo", "zkconsumer top"}
    lines = [line for line in COMMAND_LINES if line not in elsewhere]
    assert len(lines) == len(COMMAND_LINES) - 2
    try:
        said = {line.split()[1]: run(line) for line in lines}
    finally:
        run("zkconsumer sandbox down")
    assert said["consume"].splitlines() == ["first", "second"]
    assert len(said["owners"].splitlines()) == 1 + 12
    assert len(said["assign"].splitlines()) == 1 + 12
    assert "reproduced" in said["trace"]
    assert "billing" in said["history"]
