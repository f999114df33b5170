"""The common options: ZooKeeper's address, the group, the topics.

tests/cli/test_context.py checks which source of a setting overrides which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from zkconsumer.cli import COMMANDS, app
from zkconsumer.cli.options import Common, topics_of
from zkconsumer.cli.sources import ZOOKEEPER as ENVIRONMENT
from zkconsumer.errors import ConfigError, InvalidNameError


def test_no_address_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ZooKeeper's address a command is wrong usage; the error names all its sources."""
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    for command in (["topics", "list"], ["groups", "show", "g"], ["lag", "-g", "g"], ["members"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert all(way in result.stderr for way in ("--zookeeper", ENVIRONMENT, "--config"))


def test_the_group_of_a_command(tmp_path: Path) -> None:
    """--group overrides the file's group.id; a missing or illegal name is an error."""
    file = tmp_path / "consumer.properties"
    file.write_text("group.id=billing\n")
    assert Common(config=file, zookeeper="h:1").group(None) == "billing"
    assert Common(config=file, zookeeper="h:1").group("other") == "other"
    with pytest.raises(ConfigError, match="no group is named"):
        Common(zookeeper="h:1").group(None)
    with pytest.raises(InvalidNameError):
        Common(zookeeper="h:1").group("../etc")


def test_properties_and_time(tmp_path: Path) -> None:
    """Authentication is taken from file and properties; --timeout limits the connection."""
    file = tmp_path / "consumer.properties"
    file.write_text("zookeeper.auth.scheme=digest\nzookeeper.auth.credential=ops:secret\n")
    settings = Common(zookeeper="127.0.0.1:1", config=file, timeout=1.5).settings("g")
    assert (settings.zookeeper_auth_scheme, settings.group_id) == ("digest", "g")
    assert settings.zookeeper_connection_timeout_s == 1.5
    with pytest.raises(ConfigError, match="is not a property"):
        Common(zookeeper="h:1", properties=["nonsense"]).connection_settings()


def test_the_groups_of_a_command(tmp_path: Path) -> None:
    """Without --group, commands read all groups; to change all groups, --all-groups is needed."""
    bare, named = Common(zookeeper="h:1"), Common(zookeeper="h:1", properties=["group.id=billing"])
    assert bare.groups(None, all_groups=False) is None
    assert bare.groups(["a", "b"], all_groups=False) == ["a", "b"]
    assert named.groups(None, all_groups=False) == ["billing"]
    assert named.groups(None, all_groups=True) is None
    assert named.groups_to_change(None, all_groups=False) == ["billing"]
    assert bare.groups_to_change(None, all_groups=True) is None
    with pytest.raises(ConfigError, match="must be requested"):
        bare.groups_to_change(None, all_groups=False)
    with pytest.raises(ConfigError, match="exclude each other"):
        bare.groups(["a"], all_groups=True)
    with pytest.raises(ConfigError, match="named twice"):
        bare.groups(["a", "a"], all_groups=False)


@pytest.mark.parametrize("words", [("lag",), ("owners",), ("verify",), ("groups", "show")])
def test_argument_and_option(words: tuple[str, ...]) -> None:
    """The group is an argument or --group; two different names are wrong usage."""
    for given in (("a/b",), ("-g", "a/b")):
        result = CliRunner().invoke(app, [*words, *given, "-z", "h:1"])
        assert (result.exit_code, "a/b" in result.stderr) == (2, True)
    if words != ("lag",):
        result = CliRunner().invoke(app, [*words, "a", "-g", "b", "-z", "h:1"])
        assert (result.exit_code, "two groups are named" in result.stderr) == (2, True)


def test_topics() -> None:
    """TOPIC selects all partitions, TOPIC:0,1 only these; if both are given, all count."""
    assert topics_of(None) is None
    assert topics_of(["a", "b:0,2", "b:5"]) == {"a": None, "b": frozenset({0, 2, 5})}
    assert topics_of(["a:1", "a"]) == {"a": None}
    for bad in ("a:", "a:x", "a:-1", "a:1,", "a:٣", "a/b:1"):
        with pytest.raises(ConfigError):
            topics_of([bad])


def _commands(family: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return all commands with their names."""
    below = getattr(family, "commands", None)
    if below is None:
        yield words, family
    for name, command in (below or {}).items():
        yield from _commands(command, *words, name)


ROOT: Any = typer.main.get_command(app)  # Typer's own copy of click has no types.
ALL = [found for name in COMMANDS for found in _commands(ROOT.get_command(None, name), name)]


@pytest.mark.parametrize(("words", "command"), ALL, ids=[" ".join(words) for words, _ in ALL])
def test_every_help(words: tuple[str, ...], command: Any) -> None:
    """The help of each command has an example, and names the positional arguments."""
    shown = CliRunner().invoke(app, [*words, "--help"]).stdout
    examples = " ".join(shown.partition("xample: ")[2].split())
    assert f"zkconsumer {' '.join(words)} " in examples
    arguments = shown.partition("Arguments:\n")[2].partition("\n\n")[0]
    assert "<" not in arguments
    lines = arguments.splitlines()
    for line in lines:
        assert re.match(r"  ([A-Z]|  )", line), line
    named = [one for one in command.params if one.param_type_name == "argument"]
    assert len([line for line in lines if re.match("  [A-Z]", line)]) == len(named)


@pytest.mark.parametrize(("words", "command"), ALL, ids=[" ".join(words) for words, _ in ALL])
def test_plain_values(words: tuple[str, ...], command: Any) -> None:
    """A value that the command line does not give to Typer becomes what Typer would return."""
    context = typer.Context(command, info_name=words[-1])
    for one in command.params:
        if one.name == "help" or one.callback is not None:
            continue
        kind = one.type_descriptor.annotation
        texts = ["a", "0"] if kind in (str, str | None) else []
        lists = [["a", "b"]] if kind in (list[str], list[str] | None) else []
        defaults = [] if one.required or one.get_default(context) == () else [None]
        for value in [*texts, *lists, *defaults]:
            typers = super(type(one), one).process_value(context, value)
            assert one.process_value(context, value) == typers, one.name
            assert type(one.process_value(context, value)) is type(typers), one.name


def test_summaries_are_whole() -> None:
    """The summary of each subcommand fits on its line of the help."""
    for family in sorted({words[0] for words, _ in ALL if len(words) > 1}):
        result = CliRunner().invoke(app, [family, "--help"], terminal_width=80)
        commands = result.stdout.partition("Commands:")[2]
        assert commands
        assert "..." not in commands, family


def test_a_misspelt_command_is_corrected() -> None:
    """The error for a misspelt command suggests the right one."""
    result = CliRunner().invoke(app, ["lags"])
    assert (result.exit_code, "Did you mean 'lag'?" in result.stderr) == (2, True)
