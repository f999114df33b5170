"""`zkconsumer completion`: scripts for bash, zsh and fish, and the values that they complete.

A shell calls the command line for each Tab. Groups, topics and consumer ids come from ZooKeeper.
The whole call must end within 300 ms, so reads from ZooKeeper have a time limit. After any failure
nothing is completed and nothing is printed: a message would destroy the line that the user is
typing.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from typer import core

from zkconsumer.errors import ZkConsumerError

if TYPE_CHECKING:
    from pathlib import Path

    from zkconsumer.cli.sources import Sources
    from zkconsumer.zk.client import ZooKeeperClient

Click: TypeAlias = Any
"""A command, an option, an argument or a context. Typer's own copy of click is not public, so only
the methods and attributes that click documents are used."""

LIMIT_S: Final = 0.08
"""Seconds that reading ZooKeeper may take. Starting Python and importing the clients take up to 0.2
s more, so the whole call ends within 300 ms. Results that arrive later are dropped."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]+")


# ---- values --------------------------------------------------------------------------------------


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the groups that begin with the text."""
    from zkconsumer.protocol import paths

    return _starting(incomplete, _read(ctx, lambda zk: _children(zk, paths.CONSUMERS)))


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin with the text."""
    from zkconsumer.protocol import paths

    return _starting(incomplete, _read(ctx, lambda zk: _children(zk, paths.TOPICS)))


def consumers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the consumer ids that begin with the text, of the group that the command line
    names."""
    from zkconsumer.protocol import paths

    # If the last option has no value yet, click leaves the arguments in `ctx.args` unparsed.
    given = [ctx.params.get("group"), ctx.params.get("group_argument"), *ctx.args]
    name = next(filter(None, given), None)
    try:
        found = _sources(ctx).get("group.id")
    except ZkConsumerError:
        return []
    name = name or (found and found.value)
    if name is None:
        return []
    return _starting(incomplete, _read(ctx, lambda zk: _children(zk, paths.ids(name))))


def contexts(incomplete: str) -> list[str]:
    """Return the contexts that begin with the text."""
    from zkconsumer.cli.sources import load_contexts

    try:
        return _starting(incomplete, load_contexts().contexts)
    except ZkConsumerError:
        return []


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with the text and that a shell inserts unchanged.

    Every client can create znodes, and bash does not quote a completed word. A group named
    `x;reboot` would become a command.
    """
    return sorted(
        name for name in names if name.startswith(incomplete) and _PLAIN.fullmatch(name) is not None
    )


def _children(zk: ZooKeeperClient, path: str) -> Iterable[str]:
    return zk.children([path]).get(path, ())


def _read(ctx: typer.Context, read: Callable[[ZooKeeperClient], Iterable[str]]) -> Iterable[str]:
    """Return what `read` returns; after `LIMIT_S` or any failure, return nothing."""
    found: list[str] = []
    logging.disable()
    try:
        client = _client(ctx)
    except (ZkConsumerError, OSError):
        return []

    def work() -> None:
        try:
            with client as zk:
                found.extend(read(zk))
        except BaseException:  # noqa: BLE001 - a thread boundary: completion is silent
            found.clear()

    # A daemon thread does not keep the process alive if DNS or a server does not answer.
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(LIMIT_S)
    return [] if worker.is_alive() else found


def _client(ctx: typer.Context) -> ZooKeeperClient:
    from zkconsumer.config.settings import ConnectionConfig
    from zkconsumer.zk.client import ZooKeeperClient

    given: list[Path | Mapping[str, str]] = _sources(ctx).lowest_first()
    return ZooKeeperClient(
        ConnectionConfig.from_properties(*given, zookeeper_connection_timeout_s=LIMIT_S)
    )


def _sources(ctx: typer.Context) -> Sources:
    from zkconsumer.cli.sources import sources_of

    given = [ctx.params.get(name) for name in ("zookeeper", "properties", "config", "context")]
    return sources_of(*given)


# ---- zkconsumer completion -----------------------------------------------------------------------

LINE: Final = "_ZKCONSUMER_LINE"
"""The environment variable in which a script passes the command line up to the cursor."""

DESCRIBED: Final = "_ZKCONSUMER_DESCRIBED"
"""The environment variable with which a script requests descriptions. The value of the variable
separates a description from the completed value: a tab for fish, and a colon for zsh (other colons
get a backslash)."""

_CALL = f"_ZKCONSUMER_COMPLETE=complete_bash {LINE}"

BASH = f"""\
_zkconsumer() {{
    local IFS=$'\\n' line=${{COMP_LINE:0:COMP_POINT}}
    COMPREPLY=( $({_CALL}=$line "$1" 2>/dev/null) )
}}
complete -o default -F _zkconsumer zkconsumer
"""

ZSH = f"""\
#compdef zkconsumer
_zkconsumer() {{
    local -a found
    local line="${{(j: :)words[1,CURRENT]}}"
    found=(${{(f)"$({DESCRIBED}=: {_CALL}=$line $words[1] 2>/dev/null)"}})
    if (( $#found )); then _describe -t values value found; else _files; fi
}}
if [[ $funcstack[1] == _zkconsumer ]]; then _zkconsumer; else compdef _zkconsumer zkconsumer; fi
"""

FISH = f"""\
function __zkconsumer_complete
    set -l line (commandline -cp)
    set -l found (env {DESCRIBED}=\\t {_CALL}="$line" zkconsumer 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command zkconsumer --no-files --arguments '(__zkconsumer_complete)'
"""


def complete_line(root: Click, commands: Mapping[str, str]) -> None:
    """Print the values that complete the command line of a completion script.

    bash itself splits words at `:` and `=`, so the words that it passes cannot be used.

    Args:
        root: the command `zkconsumer`.
        commands: the names of its commands, with a description of each.
    """
    # Typer imports Pydantic to convert values. The import is slow, and completion needs only words.
    vars(core)["build_runtime_param"] = lambda descriptor: _Word()
    line = os.environ.get(LINE, "")
    words = _split(line)[1:]
    incomplete = words.pop() if words and not line[-1].isspace() else ""
    separator = os.environ.get(DESCRIBED, "")
    found = _completions(root, commands, words, incomplete)
    sys.stdout.write("".join(f"{_described(*one, separator)}\n" for one in found))


def _described(value: str, description: str, separator: str) -> str:
    words = " ".join(description.split())
    if not separator or not words:
        return value
    if separator == ":":
        value = value.replace("\\", "\\\\").replace(":", "\\:")
    return f"{value}{separator}{words}"


def _split(line: str) -> list[str]:
    """Return the words of a line whose last word may be within quotation marks."""
    for closed in (line, f'{line}"', f"{line}'"):
        with suppress(ValueError):
            return shlex.split(closed)
    return line.split()


def _completions(
    root: Click, commands: Mapping[str, str], words: Sequence[str], incomplete: str
) -> Iterable[tuple[str, str]]:
    """Return the values that may follow these words, with their descriptions."""
    command, left = root, list(words)
    ctx = root.make_context("zkconsumer", [], resilient_parsing=True)
    while left and isinstance(command, core.TyperGroup):
        name = left.pop(0)
        if name.startswith("-"):
            continue
        command = command.get_command(ctx, name)
        if command is None:
            return []
        given = [] if isinstance(command, core.TyperGroup) else left
        ctx = command.make_context(name, list(given), parent=ctx, resilient_parsing=True)
    if incomplete.startswith("-") and "=" in incomplete:
        name, _, incomplete = incomplete.partition("=")
        left.append(name)
    if command is root and not incomplete.startswith("-"):
        # The modules of the commands are not imported.
        return [one for one in commands.items() if one[0].startswith(incomplete)]
    found = _wanted(command, ctx, left, incomplete).shell_complete(ctx, incomplete)
    return [(str(item.value), item.help or "") for item in found]


def _wanted(command: Click, ctx: Click, words: Sequence[str], incomplete: str) -> Click:
    """Return what has the values: the option before the cursor, the next argument, or the command.

    The rules are those of click's `shell_completion`.
    """
    if incomplete.startswith("-") and "--" not in words:
        return command
    last = words[-1] if words else ""
    for one in command.get_params(ctx):
        takes_value = isinstance(one, core.TyperOption) and not one.is_flag and not one.count
        if takes_value and last in one.opts:
            return one
    for one in command.get_params(ctx):
        if isinstance(one, core.TyperArgument):
            source = ctx.get_parameter_source(one.name)
            if one.nargs == -1 or source is None or source.name != "COMMANDLINE":
                return one
    return command


class _Word:
    """A parameter type that keeps the value as the user typed it."""

    def coerce(self, value: object, **_: object) -> object:
        return value


class Shell(StrEnum):
    """Shells that have a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script that completes commands, options, groups, topics and contexts.

    For bash, add `eval "$(zkconsumer completion bash)"` to ~/.bashrc. For zsh, write the script
    into a file `_zkconsumer` in a directory of $fpath. For fish, write it into the file
    ~/.config/fish/completions/zkconsumer.fish.

    Example: zkconsumer completion bash
    """
    typer.echo({Shell.BASH: BASH, Shell.ZSH: ZSH, Shell.FISH: FISH}[shell], nl=False)
