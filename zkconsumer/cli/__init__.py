"""The command line: `zkconsumer COMMAND`; one module per family, imported when it is asked for.

Exit codes: 0 done, 1 a problem was found, 2 wrong usage or configuration, 3 ZooKeeper cannot be
reached, 4 refused by a safety check, 5 applied in part, 130 interrupted. A reader that closes the
pipe (`| head`) is no problem: 0.
Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import sys
import threading
from enum import IntEnum
from types import FrameType
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperArgument, TyperGroup

from zkconsumer.errors import (
    AppliedInPartError,
    ChrootMissingError,
    ConfigError,
    RefusedError,
    ZkConsumerError,
    ZooKeeperUnreachableError,
)

# Command name -> "module:Typer application", and the summary that the help prints without importing
# the module. The help lists the commands in this order.
COMMANDS = {
    "demo": ("zkconsumer.cli.demo:app", "Show a real group at work: join, leave, kill."),
    "consume": ("zkconsumer.cli.consume:app", "Write the messages of topics to standard output."),
    "topics": ("zkconsumer.cli.topics:app", "Which topics there are, and where they are kept."),
    "groups": ("zkconsumer.cli.groups:app", "List groups, show one in full, change them."),
    "members": ("zkconsumer.cli.members:app", "Who is registered, and what its threads have."),
    "lag": ("zkconsumer.cli.lag:app", "How far groups are behind; also for Prometheus."),
    "offsets": ("zkconsumer.cli.offsets:app", "A group's offsets: see, move, back up, carry over."),
    "apply": ("zkconsumer.cli.apply:app", "Make the changes of a plan, or finish them."),
    "undo": ("zkconsumer.cli.apply:undo_app", "Put back what a change has taken away."),
    "owners": ("zkconsumer.cli.owners:app", "Show which thread owns each partition of a group."),
    "assign": ("zkconsumer.cli.assign:app", "Compute the assignment of a group or of a file."),
    "verify": ("zkconsumer.cli.doctor:verify_app", "Check that a group has settled."),
    "doctor": ("zkconsumer.cli.doctor:app", "What is wrong with groups, and what mends it."),
    "migrate": ("zkconsumer.cli.migrate:app", "Offsets from ZooKeeper to Kafka, or back."),
    "explain": ("zkconsumer.cli.explain:app", "Why a thread owns its partitions: the arithmetic."),
    "legacy": ("zkconsumer.cli.legacy:app", "Kafka's old tools, with their arguments and output."),
    "simulate": ("zkconsumer.cli.simulate:app", "Play groups on a simulated ZooKeeper, and tell."),
    "trace": ("zkconsumer.cli.trace:app", "What a member wrote down of its decisions: replay it."),
    "sandbox": ("zkconsumer.cli.sandbox:app", "A ZooKeeper and a broker of your own, for trying."),
}


class Exit(IntEnum):
    """What the process tells its caller."""

    OK = 0
    PROBLEM = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    IN_PART = 5
    INTERRUPTED = 130


def exit_code(error: ZkConsumerError) -> Exit:
    """The exit code of an error that ends a command."""
    match error:
        case ConfigError():
            return Exit.USAGE
        case ZooKeeperUnreachableError() | ChrootMissingError():
            return Exit.UNREACHABLE
        case RefusedError():
            return Exit.REFUSED
        case AppliedInPartError():
            return Exit.IN_PART
        case _:
            return Exit.PROBLEM


class _Argument(TyperArgument):
    """A positional argument: its name says what it is; in the help no type stands behind it."""

    def display_type_rich(self, ctx: Any) -> str | None:
        return None


def _name_arguments(command: Any) -> None:
    """Of a command, and of all below it; Typer has no option for the class of an argument."""
    for one in command.params:
        if isinstance(one, TyperArgument):
            one.__class__ = _Argument
    for below in getattr(command, "commands", {}).values():
        _name_arguments(below)


class _LazyGroup(TyperGroup):
    """Imports a command's module when the command is asked for; ends every command's errors."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _, application = COMMANDS[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(module), application)
        command = typer.main.get_command(found)
        command.name = cmd_name
        _name_arguments(command)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands = dict.fromkeys(COMMANDS, cast("Any", None))  # what it guesses from
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            abandon_stdout()
            raise typer.Exit(Exit.OK) from None
        except ZkConsumerError as error:
            from zkconsumer.cli.output import say

            say(str(error))
            raise typer.Exit(exit_code(error)) from error
        return result


# Seconds after which a Ctrl-C comes again that was put off.
_AGAIN_S: Final = 0.01


def interrupt(number: int, frame: FrameType | None) -> None:
    """What Ctrl-C does, and SIGTERM where a command takes it for one. Raises KeyboardInterrupt.

    Not while kazoo hands a request to its thread, where it would be swallowed, and the thread left
    one request behind: then a little later.
    """
    while frame is not None:
        if (frame.f_code.co_name, frame.f_globals["__name__"]) == ("_call", "kazoo.client"):
            timer = threading.Timer(_AGAIN_S, signal.pthread_kill, [threading.get_ident(), number])
            timer.daemon = True  # the command may be over by then
            timer.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def abandon_stdout() -> None:
    """Lets what is left in the buffer of a broken pipe go nowhere, at exit as well."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=_LazyGroup,
    help="A member, in Python, of the groups of Kafka's legacy ZooKeeper-based consumer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

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
    # What a tool reads it keeps until it ends: looking for cycles in it again and again takes a
    # fifth of the time, and finds none.
    gc.set_threshold(100_000, 50, 50)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, interrupt)
    app(prog_name="zkconsumer")
