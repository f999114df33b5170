"""The command line: `zkconsumer COMMAND`; one module per family, imported when it is asked for.

Exit codes: 0 done, 1 a problem was found, 2 wrong usage or configuration, 3 ZooKeeper cannot be
reached, 130 interrupted. A reader that closes the pipe (`| head`) is no problem: 0.
Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from enum import IntEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from zkconsumer.errors import (
    ChrootMissingError,
    ConfigError,
    ZkConsumerError,
    ZooKeeperUnreachableError,
)

# name -> module; each has a Typer `app`. In the order of the help.
COMMANDS = {
    "demo": "zkconsumer.cli.demo",
    "consume": "zkconsumer.cli.consume",
    "owners": "zkconsumer.cli.owners",
    "assign": "zkconsumer.cli.assign",
    "simulate": "zkconsumer.cli.simulate",
    "trace": "zkconsumer.cli.trace",
    "sandbox": "zkconsumer.cli.sandbox",
}


class Exit(IntEnum):
    """What the process tells its caller."""

    OK = 0
    PROBLEM = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


def exit_code(error: ZkConsumerError) -> Exit:
    """The exit code of an error that ends a command."""
    match error:
        case ConfigError():
            return Exit.USAGE
        case ZooKeeperUnreachableError() | ChrootMissingError():
            return Exit.UNREACHABLE
        case _:
            return Exit.PROBLEM


class _LazyGroup(TyperGroup):
    """Imports a command's module when the command is asked for; ends every command's errors."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(COMMANDS[cmd_name]).app)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            abandon_stdout()
            raise typer.Exit(Exit.OK) from None
        except ZkConsumerError as error:
            typer.echo(f"zkconsumer: {error}", err=True)
            raise typer.Exit(exit_code(error)) from error
        return result


def abandon_stdout() -> None:
    """Lets what is left in the buffer of a broken pipe go nowhere, at exit as well."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=_LazyGroup,
    help="A member, in Python, of the groups of Kafka's legacy ZooKeeper-based consumer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version  # noqa: PLC0415

        typer.echo(f"zkconsumer {version('zkconsumer')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    # kazoo warns of every lost connection; the errors below say it once, and better.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def main() -> None:
    """The entry point of `zkconsumer` and of `python -m zkconsumer`; exits the process."""
    app(prog_name="zkconsumer")
