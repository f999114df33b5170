"""`zkconsumer demo`: a real group, before your eyes."""

from __future__ import annotations

import json
import signal
import sys
from typing import Annotated, Any

import typer

from zkconsumer.cli import interrupt

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    *,
    messages: Annotated[int, typer.Option(min=1, help="How many are there to begin with.")] = (
        200_000
    ),
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Of the topic.")] = 12,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one object on the last line.")
    ] = False,
) -> None:
    """Watch a group: ZooKeeper, a broker and three consumers; one joins, one leaves, one dies.

    Everything is real, in a temporary directory, on the loopback interface, and gone at the end.
    Exits with 1 if a message was lost or two members owned one partition at once.

    Example: zkconsumer demo --partitions 12 --json
    """
    from zkconsumer.demo.group import Play, print_result, view

    signal.signal(signal.SIGTERM, interrupt)
    with view() as shown:
        result = Play(messages=messages, partitions=partitions, view=shown).run()
    if as_json:
        print_result(result, sys.stderr)
        print(_as_json(result))
    else:
        print_result(result, sys.stdout)
    if not result.good:
        raise typer.Exit(1)


def _as_json(result: Any) -> str:
    from dataclasses import asdict

    document = asdict(result)
    del document["reasons"]
    for event in document["events"]:
        del event["text"]
    return json.dumps(document)
