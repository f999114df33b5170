"""The README says what is so: its commands parse, its links lead somewhere, its tables are true."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from zkconsumer.cli import COMMANDS, Exit, app
from zkconsumer.config.page import _default
from zkconsumer.config.settings import TABLE
from zkconsumer.member.state import Phase
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.ports import free_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Seconds, for the README's own program on a busy machine.
PROGRAM_LIMIT_S = 60


def _blocks(language: str) -> list[str]:
    return [text for name, text in FENCE.findall(README) if name == language]


def _commands() -> list[str]:
    whole = "".join(_blocks("sh")).replace("\\\n", "")
    return [line.partition(" > ")[0] for line in whole.splitlines() if line]


def _rows(heading: str) -> Iterator[list[str]]:
    """The cells of the table below a heading of the README, without its head."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


@cache
def _tests_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _parse(command: Any, words: list[str], parent: Any = None) -> None:
    """Parse down to the last subcommand, and run nothing."""
    context = command.make_context(command.name, list(words), parent=parent)
    if hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        _, subcommand, words = command.resolve_command(context, rest)
        _parse(subcommand, words, context)


@pytest.mark.parametrize("line", [one for one in _commands() if one.startswith("zkconsumer ")])
def test_every_command_parses(line: str) -> None:
    """The command line accepts each command of the README with just these options."""
    _parse(typer.main.get_command(app), shlex.split(line)[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_named_in_passing_exist(page: Path) -> None:
    """No page names a command that the command line does not have."""
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"`zkconsumer ([a-z]+)", text)) <= set(COMMANDS)


def test_every_command_is_shown() -> None:
    """The README shows each command of the command line."""
    shown = {line.split()[1] for line in _commands() if line.startswith("zkconsumer ")}
    assert set(COMMANDS) <= shown


def test_the_session_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's commands do what it says, one after the other, on other ports."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    ports = {"2181": str(free_port()), "9092": str(free_port())}

    def run(line: str) -> str:
        words = shlex.split(re.sub("2181|9092", lambda port: ports[port.group()], line))
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PROGRAM_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    lines = [one for one in _commands() if one.startswith("zkconsumer ")]
    lines.remove("zkconsumer demo")  # tests/cli/test_demo.py
    try:
        said = {line.split()[1]: run(line) for line in lines}
    finally:
        run("zkconsumer sandbox down")
    assert said["consume"].splitlines() == ["first", "second"]
    assert len(said["owners"].splitlines()) == 1 + 12
    assert len(said["assign"].splitlines()) == 1 + 12
    assert "reproduced" in said["trace"]


def test_every_script_is_there() -> None:
    """What the README runs from scripts/ exists and can be run; nothing else is run but pip."""
    for line in _commands():
        if line.startswith("scripts/"):
            assert (ROOT / line.split()[0]).stat().st_mode & 0o111
        else:
            assert line.startswith(("zkconsumer ", "pip install "))


def test_every_row_names_a_test() -> None:
    """Each row of "What happens when" links tests, and every one of them exists."""
    for when, _, tests in _rows("What happens when…"):
        named = LINK.findall(tests)
        assert named, f"no test shows what happens when {when}"
        for name, path in named:
            assert name.strip("`") in _tests_of(ROOT / path), f"{name} is not in {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """Links within the repository name files, and headings of pages, that exist."""
    text = page.read_text(encoding="utf-8")
    for _, target in LINK.findall(text):
        if target.startswith("https://"):
            continue
        file, _, heading = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        assert not heading or heading in _anchors(there), target


def _anchors(page: Path) -> set[str]:
    """The names by which links reach the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}


def test_the_most_used_properties() -> None:
    """Names, defaults and order of the README's configuration table are the code's."""
    settings = {row.name: _default(row) for row in TABLE}
    shown = [(name.strip("`"), default) for name, default, _ in _rows("Configuration")]
    assert all(settings[name] == default for name, default in shown)


def test_the_phases_of_a_rebalance() -> None:
    """The phases that the README lists are the machine's, in its order."""
    (chain,) = re.findall(r"(?:`[a-z]+`\s+→\s+)+`[a-z]+`", README)
    named = re.findall(r"`([a-z]+)`", chain)
    order = [phase.value for phase in Phase]
    assert named == sorted(named, key=order.index)


def test_the_exit_codes() -> None:
    """The README lists the exit codes, all of them."""
    (listed,) = re.findall(r"Exit codes: ([^.]*)\.", README)
    assert [int(code) for code in re.findall(r"\d+", listed)] == [int(code) for code in Exit]


def test_the_layout() -> None:
    """The layout names every room of the package, and nothing that is not there."""
    (layout,) = [block for block in _blocks("") if block.startswith("zkconsumer/\n")]
    rooms = set(re.findall(r"^  (\w+)/ ", layout, re.MULTILINE))
    package = {path.parent.name for path in (ROOT / "zkconsumer").glob("*/__init__.py")}
    assert rooms == package
    outside = re.findall(r"^(\w+)/ ", layout, re.MULTILINE)
    assert all((ROOT / name).is_dir() for name in outside)


def test_the_program(sandbox: Sandbox, tmp_path: Path, unique: Any) -> None:
    """The README's program runs on real servers and prints what it was given."""
    (program,) = _blocks("python")
    orders, payments = unique("orders"), unique("payments")
    for topic in (orders, payments):
        sandbox.create_topic(topic, partitions=2)
        sandbox.produce(topic, 10)
    (tmp_path / "consumer.properties").write_text(
        f"group.id={orders}\nzookeeper.connect={sandbox.zookeeper_connect}\n"
        "auto.offset.reset=smallest\nconsumer.timeout.ms=2000\n"
    )
    program = program.replace('"orders"', f'"{orders}"').replace('"payments"', f'"{payments}"')
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PROGRAM_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.split()[2] == "None" for line in lines[:10]) == 10
    assert lines[10].startswith(f"no message of {payments} within 2 s")
    read = [int(line.split()[0]) for line in lines if "messages under fencing tokens" in line]
    assert sum(read) == 10
