"""A group of zkconsumer members on the shared sandbox, and the tools that an operator runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.members.group import Group, group_on
from support.wait import LIMIT_S, eventually
from typer.testing import CliRunner, Result

from zkconsumer.cli import app
from zkconsumer.sandbox import Sandbox

PARTITIONS, MESSAGES = 4, 10


class Tools:
    """The command line, for one group."""

    def __init__(self, connect: str, group: str) -> None:
        self._connect, self._group = connect, group

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--zookeeper", self._connect])

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the rows of a command's JSON."""
        result = self.run(*arguments, "--output", "json")
        document: Any = json.loads(result.stdout)
        if isinstance(document, dict):
            document = document["partitions"]
        return [one for one in document if one.get("group", self._group) == self._group]

    def listed(self) -> tuple[int, str]:
        """Return the group's number of members, and its state, as `groups list` shows them."""
        (one,) = self.rows("groups", "list")
        return one["members"], one["state"]

    def findings(self, patience_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the doctor's findings about the group."""
        return self.rows("doctor", self._group, "--patience", str(patience_s))

    def only_finding(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Let the doctor examine the group until its only finding is the wanted one; return it."""
        found: list[dict[str, Any]] = []

        def is_found() -> bool:
            found[:] = self.findings(patience_s=1.0)
            assert len(found) <= 1, found
            return bool(found) and wanted(found[0])

        eventually(is_found)
        return found[0]


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group without members; its topic has four partitions of ten messages."""
    with group_on(sandbox, unique, partitions=PARTITIONS, messages=MESSAGES) as one:
        yield one


@pytest.fixture
def tools(group: Group) -> Tools:
    """The tools for this group."""
    return Tools(group.sandbox.zookeeper_connect, group.name)


class Stranger:
    """A program of other people in a process of its own, whose output goes to a file."""

    def __init__(self, command: Sequence[str | Path], directory: Path, **environ: str) -> None:
        self._log = directory / f"{len(list(directory.iterdir()))}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                cwd=directory,
                env=os.environ | environ,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def lines(self) -> list[str]:
        """Return the complete lines that the program has written."""
        return self._log.read_text().rpartition("\n")[0].splitlines()

    def delivered(self) -> list[tuple[int, int]]:
        """Return the messages that it has printed: partition and offset."""
        pairs = (line.split() for line in self.lines())
        return [
            (int(pair[0]), int(pair[1]))
            for pair in pairs
            if len(pair) == 2 and all(map(str.isdecimal, pair))
        ]

    def leave(self) -> None:
        """Close its input, after which it leaves the group, and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(LIMIT_S) == 0, self.lines()[-20:]

    def terminate(self) -> None:
        """Send SIGTERM, and wait for the end of the program."""
        self.process.terminate()
        self.process.wait(LIMIT_S)

    def end(self) -> None:
        """End the process at the end of a test, whatever state the process is in."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


Start = Callable[..., Stranger]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts programs, and ends those that still run at the end of the test."""
    started: list[Stranger] = []

    def run(*command: str | Path, **environ: str) -> Stranger:
        started.append(Stranger(command, tmp_path, **environ))
        return started[-1]

    yield run
    for one in started:
        one.end()
