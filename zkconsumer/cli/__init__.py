"""The command line `zkconsumer COMMAND`.

Each top-level command (such as `groups`) has one module, which is imported when the user runs the
command.

Results go to standard output, and everything else goes to standard error. `exits` lists the exit
codes. If the reader of the pipe closes it (`| head`), the exit code is 0; if standard output is
closed (`>&-`) or full, the exit code is 1.

A command runs in the main thread, where Ctrl-C is Python's own KeyboardInterrupt: it ends every
wait, and the `with` blocks of the command clean up. What must not be cut runs on another thread: a
request to ZooKeeper (`ZooKeeperSession.submit`), and the start of a process (`uninterrupted`).
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import logging
import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, cast

import typer
from typer import BadParameter, TyperException
from typer.core import TyperArgument, TyperGroup, TyperOption

from zkconsumer.cli.exits import Exit, exit_code
from zkconsumer.errors import ZkConsumerError
from zkconsumer.safe_logger import SafeLogger

_log = SafeLogger(logging.getLogger(__name__))

Click: TypeAlias = Any
"""A context, a command or an error. Typer's own copy of click is not public, so only the methods
and attributes that click documents are used."""

# Command name -> ("module:Typer application", summary). The help prints the summary without
# importing the module, and lists the commands in this order.
COMMANDS = {
    "demo": ("zkconsumer.cli.demo:app", "Run a real group: members join, leave and die."),
    "consume": ("zkconsumer.cli.consume:app", "Write the messages of topics to standard output."),
    "topics": (
        "zkconsumer.cli.topics:app",
        "List topics and their leaders; remove one from groups.",
    ),
    "groups": ("zkconsumer.cli.groups:app", "List, show, copy, rename or delete groups."),
    "members": ("zkconsumer.cli.members:app", "List registered members and what they own."),
    "lag": ("zkconsumer.cli.lag:app", "Show the lag of groups, once, live, or for Prometheus."),
    "top": ("zkconsumer.cli.top:app", "Watch all groups in a full-screen view."),
    "offsets": ("zkconsumer.cli.offsets:app", "Show, set, export or import committed offsets."),
    "apply": ("zkconsumer.cli.apply:app", "Apply a plan file, or complete an interrupted change."),
    "undo": (
        "zkconsumer.cli.apply:undo_app",
        "Restore the znodes that a change overwrote or deleted.",
    ),
    "backups": ("zkconsumer.cli.backups:app", "List the backups of changes."),
    "owners": ("zkconsumer.cli.owners:app", "Show which thread owns each partition of a group."),
    "assign": (
        "zkconsumer.cli.assign:app",
        "Compute the assignment of a live group, or of groups in a file.",
    ),
    "verify": (
        "zkconsumer.cli.doctor:verify_app",
        "Check that every partition of a group has an owner.",
    ),
    "doctor": ("zkconsumer.cli.doctor:app", "Find what is wrong with groups, and fix it."),
    "inventory": (
        "zkconsumer.cli.inventory:app",
        "List who still uses ZooKeeper, and what must happen before Kafka 4.",
    ),
    "migrate": ("zkconsumer.cli.migrate:app", "Copy offsets from ZooKeeper to Kafka, or back."),
    "bridge": (
        "zkconsumer.cli.bridge:app",
        "Let old and new consumers share a group while it moves to Kafka.",
    ),
    "explain": ("zkconsumer.cli.explain:app", "Explain why each thread owns its partitions."),
    "history": (
        "zkconsumer.cli.history:app",
        "Report what happened to groups, from ZooKeeper's own logs.",
    ),
    "legacy": (
        "zkconsumer.cli.legacy:app",
        "Run Kafka's old tools, with their arguments and output.",
    ),
    "compare": (
        "zkconsumer.cli.compare:app",
        "Compare the cost of joins and failures on the old and the later group protocols.",
    ),
    "simulate": (
        "zkconsumer.cli.simulate:app",
        "Run a group on a simulated ZooKeeper and print each event.",
    ),
    "judge": (
        "zkconsumer.cli.judge:app",
        "Judge a program of yours, in any language, as a member of a simulated group.",
    ),
    "context": (
        "zkconsumer.cli.context:app",
        "Name clusters, choose one, and show the settings in use.",
    ),
    "lab": ("zkconsumer.cli.lab:app", "Watch and control a group in the browser."),
    "completion": (
        "zkconsumer.cli.completion:app",
        "Print the completion script of bash, zsh or fish.",
    ),
    "docs": ("zkconsumer.cli.docs:app", "Show a page of the documentation, or search the pages."),
    "compile": (
        "zkconsumer.cli.compile:app",
        "Compile the columnar readers beforehand, for instance into an image.",
    ),
    "schema": ("zkconsumer.cli.schema:app", "Print the JSON Schema of a command's output."),
    "trace": ("zkconsumer.cli.trace:app", "Show or replay a trace of members' decisions."),
    "sandbox": (
        "zkconsumer.cli.sandbox:app",
        "Start a local ZooKeeper and Kafka broker for trials.",
    ),
}


def _is_plain(one: Click, value: Click) -> bool:
    """Return whether the value of a parameter is an optional one that is absent, a text of ASCII,
    a list of these, or a default value. Such values need no conversion.

    Typer converts each value with pydantic, even None. To load pydantic and to make the converters
    takes a third of the time of a short command. `type_descriptor` is no part of Typer's interface:
    where a release of Typer lacks it, Typer converts every value.
    """
    wanted = getattr(one, "type_descriptor", None)
    if wanted is None or wanted.parameter_info.parser is not None or (one.required and not value):
        return False
    if isinstance(value, (list, tuple)):
        return bool(wanted.annotation == list[str]) and all(map(str.isascii, value))
    if value is None or (isinstance(value, str) and not value.isascii()):
        return value is None
    return type(value) is wanted.annotation and isinstance(value, (str, int, float, Enum))


def _processed(one: Click, ctx: Click, value: Click) -> Click:
    """Return a plain value as `process_value` returns it."""
    if one.multiple or one.nargs == -1:
        value = list(value) if value else ()
    return value if one.callback is None else one.callback(ctx, one, value)


def _check_path(one: Click, ctx: Click, value: Click) -> None:
    """Raise BadParameter for an empty path, such as that of an unset variable of a script.

    Python reads an empty path as the current directory.
    """
    wanted = getattr(one, "type_descriptor", None)
    if wanted is None or wanted.annotation not in (Path, list[Path]):
        return
    if value == "" or (isinstance(value, (list, tuple)) and "" in value):
        raise BadParameter("the path is empty", ctx=ctx, param=one)


class _Option(TyperOption):
    def process_value(self, ctx: Click, value: Click) -> Click:
        _check_path(self, ctx, value)
        if _is_plain(self, value):
            return _processed(self, ctx, value)
        return super().process_value(ctx, value)


class _Argument(TyperArgument):
    """A positional argument without its type in the help, since its name already shows the type."""

    def process_value(self, ctx: Click, value: Click) -> Click:
        _check_path(self, ctx, value)
        if _is_plain(self, value):
            return _processed(self, ctx, value)
        return super().process_value(ctx, value)

    def display_type_rich(self, ctx: Click) -> str | None:
        return None


def _use_classes(command: Click) -> None:
    """Turn the parameters of a command and of its subcommands into `_Option`s and `_Argument`s.

    Typer has no option for the class of a parameter.
    """
    for one in command.get_params(typer.Context(command, **command.context_settings)):
        one.__class__ = _Argument if isinstance(one, TyperArgument) else _Option
    for below in getattr(command, "commands", {}).values():
        _use_classes(below)


class _LazyGroup(TyperGroup):
    """The root command: imports a command's module on use and turns errors into exit codes."""

    def list_commands(self, ctx: Click) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Click, cmd_name: str) -> Click:
        if cmd_name not in COMMANDS:
            return None
        module, _, application = COMMANDS[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(module), application)
        command = typer.main.get_command(found)
        command.name = cmd_name
        _use_classes(command)
        return command

    def parse_args(self, ctx: Click, args: list[str]) -> list[str]:
        """Parse the options before the command. The error of a wrong option is one line, without
        usage text."""
        _use_classes(self)
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            raise (_usage_exit(error) or error) from error

    def resolve_command(self, ctx: Click, args: list[str]) -> Click:
        anything = cast(Any, None)  # Any: only the keys are used, for "did you mean"
        self.commands = dict.fromkeys(COMMANDS, anything)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Click, formatter: Click) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: Click) -> Click:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except OSError as error:
            raise typer.Exit(_stdout_failed(error)) from error
        except ZkConsumerError as error:
            from zkconsumer.cli.output import error_text, say

            say(error_text(error))
            code = exit_code(error)
            if code is Exit.FAILED and was_interrupted(error):
                code = Exit.INTERRUPTED
            raise typer.Exit(code) from error
        except TyperException as error:
            raise (_usage_exit(error) or error) from error
        return result


def _usage_exit(error: Click) -> typer.Exit | None:
    """Print the error of a wrong option or argument as one line, and return the process's exit.

    Return None for another error, and for the help of a command that was called without arguments,
    which Typer raises as an error.
    """
    from zkconsumer.cli.output import say

    if error.exit_code != Exit.USAGE or (error.ctx and error.message == error.ctx.get_help()):
        return None
    say(_usage_text(error))
    return typer.Exit(Exit.USAGE)


def _usage_text(error: Click) -> str:
    """Return a wrong option or argument as one line, in the form of the other errors."""
    text: str | None = None
    if hasattr(error, "possibilities"):
        text = _unknown_option_text(error)
    elif isinstance(error, BadParameter):
        text = _number_text(error)
    if text is None:
        text = error.format_message().replace("Value error, ", "").rstrip(".")
    text = " ".join(text.split())
    command = error.ctx.command_path if error.ctx else "zkconsumer"
    return f"{text[:1].lower()}{text[1:]}: see `{command} --help`"


def _unknown_option_text(error: Click) -> str:
    """Return the text for an unknown option, with the nearest valid one.

    Only `--version` and `--help` may precede the command. Before the command, an option of the
    commands is the usual mistake.
    """
    message = str(error.message)
    if error.possibilities:
        return f"{message}; did you mean {error.possibilities[0]}?"
    if error.ctx is not None and error.ctx.parent is None:
        return (
            f"{message} before the command, where only --version and --help are allowed;"
            " put the options of a command after its name"
        )
    return message


# Class of pydantic's error -> the expected kind of value; "" for a number out of range.
_NUMBERS: Final = {
    "int_parsing": "an integer",
    "int_parsing_size": "an integer",
    "float_parsing": "a number",
    "greater_than_equal": "",
    "less_than_equal": "",
}


def _number_text(error: BadParameter) -> str | None:
    """Return the text for a value that is not a number or is out of range; None for other errors.

    The text names both ends of the range; pydantic's text names only the exceeded end.
    """
    cause = cast(Any, error.__cause__)  # Any: pydantic's ValidationError, which has `errors`
    if error.param is None or not hasattr(cause, "errors"):
        return None
    fault = cause.errors()[0]
    if fault["type"] not in _NUMBERS:
        return None
    least, most = getattr(error.param, "min", None), getattr(error.param, "max", None)
    limits = ""
    if least is not None and most is not None:
        limits = f"between {least} and {most}"
    elif least is not None or most is not None:
        limits = f"at least {least}" if most is None else f"at most {most}"
    wanted = f"{_NUMBERS[fault['type']]} {limits}".strip()
    return f"{error.param.get_error_hint()} must be {wanted}, not {str(fault['input'])[:80]}"


def was_interrupted(error: BaseException | None) -> bool:
    """Return whether the error is a KeyboardInterrupt, or was raised while one was handled.

    The clean-up after Ctrl-C can fail with an error of its own. So can a function of Python's
    library: `Condition.wait` raises RuntimeError if Ctrl-C arrives before it has released its lock.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def is_of_stdout(error: OSError) -> bool:
    """Return whether a write to standard output failed: its reader has gone, or its disk is full.

    A command that cannot write another file raises ZkConsumerError instead.
    """
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
    return isinstance(error, BrokenPipeError) or (full and error.filename is None)


def _stdout_failed(error: OSError) -> Exit:
    """Report a failed write to standard output, and return the exit code. Raises other errors.

    A reader of the pipe that has left (`| head`) is no failure.
    """
    if not is_of_stdout(error):
        raise error
    abandon_stdout()
    if isinstance(error, BrokenPipeError):
        return Exit.OK
    from zkconsumer.cli.output import say

    closed = "it is closed" if error.errno == errno.EBADF else error.strerror
    say(f"standard output cannot be written: {closed}")
    return Exit.FAILED


def open_closed_streams() -> None:
    """Open the standard streams that the caller has closed, as `>&-` does.

    Otherwise the next file or socket would get the number of a closed stream, and its text. A write
    to a closed standard output fails, as in other programs; messages to a closed standard error are
    dropped.
    """
    modes = (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),  # each write fails with EBADF
        ("stderr", "w", os.O_WRONLY),
    )
    for name, mode, flags in modes:
        if getattr(sys, name) is None:
            # The lowest free number is that of the closed stream.
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))


def write_every_character() -> None:
    """Let standard output escape the characters that its encoding lacks, as standard error does.

    Names in ZooKeeper may be of any script, and the terminal may be one of Latin-1.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def abandon_stdout() -> None:
    """Redirect standard output to /dev/null, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=_LazyGroup,
    help="A Python client for consumer groups of Kafka's legacy ZooKeeper-based consumer.",
    no_args_is_help=True,
    add_completion=False,
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
    # kazoo logs each lost connection several times; the command's own error reports it once.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def main() -> None:
    """Run the command line and exit. `zkconsumer.__main__` calls this function."""
    # A command keeps nearly all objects that it creates until it ends. With the default thresholds
    # the garbage collector searches these objects for cycles repeatedly, which takes a fifth of the
    # run time.
    gc.set_threshold(100_000, 50, 50)
    open_closed_streams()
    write_every_character()
    if "_ZKCONSUMER_COMPLETE" in os.environ:
        from zkconsumer.cli.completion import complete_line

        described = {name: summary for name, (_, summary) in COMMANDS.items()}
        complete_line(typer.main.get_command(app), described)
        return
    try:
        app(prog_name="zkconsumer")
    except OSError as error:  # of a text that was written without a command, such as the help
        sys.exit(_stdout_failed(error))
    except Exception as error:
        if not was_interrupted(error):
            raise
        _log.debug("the clean-up after Ctrl-C failed", exc_info=error)
        sys.exit(Exit.INTERRUPTED)
    finally:
        # Before the interpreter ends, it would search all objects for cycles once more, which takes
        # a sixth of the run time of a short command.
        gc.freeze()
