"""`zkconsumer trace`: what can be done with a trace."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _trace() -> None:
    """Work with traces, as `trace.file` and `simulate --output jsonl` write them."""


@app.command()
def show(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Traces of one group's members.")
    ],
) -> None:
    """Tell traces as a story in lanes: who did what when, and why.

    Lines of several files are merged by their times, so they must come from one machine.

    Example: zkconsumer trace show a.jsonl b.jsonl
    """
    from zkconsumer.protocol import paths
    from zkconsumer.trace.story import story

    entries = [entry for file in files for entry in _entries(file)]
    settings = [entry["settings"] for entry in entries if "settings" in entry]
    members = list(dict.fromkeys(str(one["consumer"]) for one in settings))
    root = paths.ids(str(settings[0]["group"])).removesuffix("ids") if settings else ""
    told = sorted((entry for entry in entries if "t" in entry), key=lambda entry: entry["t"])
    for line in story(told, members, root=root):
        print(line)


def _entries(file: Path) -> list[dict[str, Any]]:
    """A trace's lines; they are checked, so that nothing is told that cannot have happened."""
    from zkconsumer.trace.replay import check as replay

    lines = list(_read(file))
    replay(lines, name=str(file))
    return [json.loads(line) for line in lines if line.endswith("\n")]


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace; - for standard input.")],
) -> None:
    """Replay a trace: the machine must do the same again.

    Exits with 1, naming the line, if it does not.

    Example: zkconsumer trace check billing.jsonl
    """
    from zkconsumer.trace.replay import check as replay

    found = replay(_read(file), name="standard input" if str(file) == "-" else str(file))
    print(f"{found.transitions} transitions of {found.runs} runs reproduced")
    for member, phase in sorted(found.phases.items()):
        print(f"{member}: {phase}")


def _read(file: Path) -> Iterator[str]:
    """The lines of a file, or of standard input (-), with their ends."""
    from zkconsumer.errors import TraceError

    try:
        if str(file) == "-":
            yield from sys.stdin
        else:
            with file.open(encoding="utf-8", newline="\n") as lines:
                yield from lines
    except OSError as error:
        raise TraceError(f"the trace cannot be read: {error.strerror}", where=str(file)) from error
    except UnicodeDecodeError as error:
        raise TraceError("the trace is not UTF-8", where=str(file)) from error
