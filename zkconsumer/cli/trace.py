"""`zkconsumer trace`: what can be done with a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _trace() -> None:
    """Work with traces, as `trace.file` and `simulate --output jsonl` write them."""


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A trace; - for standard input.")
    ],
) -> None:
    """Replay a trace through the machine, which must come to every state and command again.

    Exits with 1, naming the line, if it does not.
    """
    from zkconsumer.errors import TraceError  # noqa: PLC0415
    from zkconsumer.trace.check import check as replay  # noqa: PLC0415

    try:
        if str(file) == "-":
            found = replay(sys.stdin, name="standard input")
        else:
            with file.open(encoding="utf-8", newline="\n") as lines:
                found = replay(lines, name=str(file))
    except OSError as error:
        raise TraceError(f"the trace cannot be read: {error.strerror}", where=str(file)) from error
    except UnicodeDecodeError as error:
        raise TraceError("the trace is not UTF-8", where=str(file)) from error
    print(f"{found.transitions} transitions of {found.runs} runs reproduced")
    for member, phase in sorted(found.phases.items()):
        print(f"{member}: {phase}")
