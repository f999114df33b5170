"""A group of zkconsumer members on the shared sandbox, and the tools that an operator runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.members.group import Group, group_on
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


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group without members; its topic has four partitions of ten messages."""
    with group_on(sandbox, unique, partitions=PARTITIONS, messages=MESSAGES) as one:
        yield one


@pytest.fixture
def tools(group: Group) -> Tools:
    """The tools for this group."""
    return Tools(group.sandbox.zookeeper_connect, group.name)
