"""`zkconsumer trace`: show traces of members as a timeline, or replay one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from zkconsumer.cli.options import Format, operator
from zkconsumer.cli.output import SECTIONS, Output
from zkconsumer.errors import TraceError
from zkconsumer.protocol.model import JsonObject

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _trace() -> None:
    """Show or replay traces, which `trace.file` and `simulate --output jsonl` write."""


@app.command()
@operator(formats=SECTIONS)
def show(
    format_: Format,
    *,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Traces of members of one group.")
    ],
) -> None:
    """Print traces of a group as one timeline.

    The timeline has a column per member, and says what each member did, when, and why. The formats
    for programs contain the traces' events in the order of time.
    Lines of several files are merged by time, so the files must come from one machine.

    Example: zkconsumer trace show a.jsonl b.jsonl
    """
    from zkconsumer.protocol import paths
    from zkconsumer.trace.story import story

    entries = [entry for file in files for entry in _entries(file)]
    settings = [entry["settings"] for entry in entries if "settings" in entry]
    members = list(dict.fromkeys(str(one["consumer"]) for one in settings))
    root = paths.ids(str(settings[0]["group"])).removesuffix("ids") if settings else ""
    events = sorted((entry for entry in entries if "t" in entry), key=lambda entry: entry["t"])
    if format_.output is Output.JSONL:
        for event in events:
            print(json.dumps(event))
        return
    if not format_.is_for_people:
        format_.write_document(events)
        return
    for line in story(events, members, root=root):
        print(line)


def _entries(file: Path) -> list[JsonObject]:
    """Return the decoded lines of a trace. Raises TraceError if the replay gives different
    results."""
    from zkconsumer.trace.replay import check as replay

    lines = list(_read(file))
    replay(lines, name=str(file))
    return [json.loads(line) for line in lines if line.endswith("\n")]


@app.command()
@operator(formats=SECTIONS)
def check(
    format_: Format,
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace; - for standard input.")],
) -> None:
    """Replay a trace, and compare the decisions.

    Exit code 6: a decision of the state machine differs from the trace; the error names the line.

    Example: zkconsumer trace check billing.jsonl
    """
    from zkconsumer.trace.replay import check as replay

    found = replay(_read(file), name="standard input" if str(file) == "-" else str(file))
    if not format_.is_for_people:
        numbers = {"transitions": found.transitions, "runs": found.runs}
        format_.write_document(numbers | {"phases": found.phases})
        return
    print(f"{found.transitions} transitions of {found.runs} runs reproduced")
    for member, phase in sorted(found.phases.items()):
        print(f"{member}: {phase}")


def _read(file: Path) -> Iterator[str]:
    """Yield the lines of a file, or of standard input for `-`, with their line ends."""

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
