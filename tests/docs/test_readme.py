"""README.md: its commands parse, and its program and session run on real servers."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import typer
from support.wait import LIMIT_S
from support.zk.client import peer_of

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.cli import COMMANDS, app
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.process import until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PAGES.append(ROOT / "docs" / "monitoring" / "README.md")
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SIZE_MAX = 9_000  # In bytes: README.md is one page, and every other subject has its own page.


def _blocks(language: str) -> list[str]:
    return [text for name, text in FENCE.findall(README) if name == language]


def _scripts() -> list[str]:
    return [line for line in "".join(_blocks("sh")).splitlines() if line]


def _steps() -> list[tuple[str, str]]:
    """Return the commands in the operator's session, with the output of each."""
    (session,) = _blocks("console")
    steps = [part.partition("\n") for part in session.split("$ ")[1:]]
    return [(line, printed) for line, _, printed in steps]


def _parse(command: Any, words: list[str], parent: Any = None) -> None:
    """Parse a command down to its last subcommand, without running it."""
    context = command.make_context(command.name, list(words), parent=parent)
    if hasattr(command, "resolve_command"):
        rest = words[-len(context.args) - 1 :]  # the words from the subcommand's name on
        _, subcommand, words = command.resolve_command(context, rest)
        _parse(subcommand, words, context)


def test_the_readme_is_short() -> None:
    """README.md has at most 9 kB."""
    assert len((ROOT / "README.md").read_bytes()) <= SIZE_MAX


def test_every_command_parses() -> None:
    """The command line accepts each command of the README with its options."""
    lines = [line for line, _ in _steps() if line.startswith("zkconsumer ")]
    assert lines
    for line in lines:
        _parse(typer.main.get_command(app), shlex.split(line)[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_named_in_passing_exist(page: Path) -> None:
    """No page names a command that does not exist."""
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"`zkconsumer ([a-z]+)", text)) <= set(COMMANDS)


def test_every_script_is_there() -> None:
    """Each script that the README names exists, and is executable."""
    lines = _scripts()
    assert lines
    for line in [*lines, *re.findall(r"`(scripts/\w+)[^`]*`", README)]:
        assert line.startswith("scripts/")
        assert (ROOT / line.split()[0]).stat().st_mode & 0o111


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    """Each link within the repository leads to an existing file and an existing heading."""
    text = page.read_text(encoding="utf-8")
    for _, target in LINK.findall(text):
        if target.startswith("https://"):
            continue
        file, _, heading = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        assert not heading or heading in _anchors(there), target


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub creates them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}


def test_the_index_names_every_page() -> None:
    """docs/README.md lists every page together with its purpose."""
    index = ROOT / "docs" / "README.md"
    text = index.read_text(encoding="utf-8")
    linked = {(index.parent / target).resolve() for _, target in LINK.findall(text)}
    assert {page for page in PAGES if page != index} <= linked


def test_the_program(sandbox: Sandbox, tmp_path: Path, unique: Any) -> None:
    """The README's program has twelve lines, and prints the messages that were produced."""
    (program,) = _blocks("python")
    assert len(program.splitlines()) <= 12
    topic = unique("orders")
    sandbox.create_topic(topic, partitions=2)
    sandbox.produce(topic, 10)
    (tmp_path / "consumer.properties").write_text(
        f"group.id={topic}\nzookeeper.connect={sandbox.zookeeper_connect}\n"
        "auto.offset.reset=smallest\nconsumer.timeout.ms=10000\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program.replace('"orders"', f'"{topic}"')],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 12
    assert sum(line.split()[2] == "None" for line in lines[:10]) == 10
    assert lines[10].startswith(f"no message of {topic} within 10 s")
    assert lines[11].startswith("Status(phase='settled'")


def words_of(text: str) -> list[str]:
    """Return the words of an output, without the times of commits."""
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "TIME", text).split()


def test_the_session(
    sandbox: Sandbox, unique: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the README's members, offsets and logs, the commands print what the README shows."""
    (export, _), (lag, table), *others = _steps()
    variable, _, address = export.removeprefix("export ").partition("=")
    suffix = unique("")
    group, topic = f"billing{suffix}", f"orders{suffix}"
    rows = [line.split() for line in table.splitlines() if line.startswith("orders ")]
    sandbox.create_topic(topic, partitions=len(rows))
    for row in rows:
        sandbox.produce(topic, int(row[5]), partition=int(row[1]))
    with peer_of(sandbox.zookeeper_connect) as client:
        for row in rows:
            path = f"/consumers/{group}/offsets/{topic}/{row[1]}"
            client.create(path, row[2].encode(), makepath=True)
    assert address.startswith("zk1")
    monkeypatch.setenv(variable, sandbox.zookeeper_connect)

    def run(line: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(line.replace("billing", group))],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    with ExitStack() as stack:
        for consumer in ("web1", "web2"):
            config = ConsumerConfig(
                group_id=group, zookeeper_connect=sandbox.zookeeper_connect, consumer_id=consumer
            )
            connector = stack.enter_context(ConsumerConnector(config))
            connector.create_message_streams({topic: 1})
        settled = f"zkconsumer verify -g {group}".replace(group, "billing")
        assert until(lambda: run(settled)[0] == 0, limit_s=LIMIT_S)
        for line, printed in [(lag, table), *others]:
            code, shown = run(line)
            assert code == 0, shown
            assert words_of(shown.replace(suffix, "")) == words_of(printed)
