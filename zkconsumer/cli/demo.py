"""`zkconsumer demo`: a demonstration of a real group in the terminal."""

from __future__ import annotations

import signal
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.exits import Exit
from zkconsumer.cli.options import Format, operator
from zkconsumer.cli.output import SECTIONS, Output

if TYPE_CHECKING:
    from zkconsumer.demo.group import Result
    from zkconsumer.protocol.model import JsonObject


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@operator(formats=SECTIONS)
def demo(
    format_: Format,
    *,
    messages: Annotated[
        int, typer.Option(min=1, help="Number of messages in the topic at the start.")
    ] = 200_000,
    partitions: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of partitions of the topic.")
    ] = 12,
    as_json: Annotated[
        bool, typer.Option("--json", help="The same as --output jsonl: the result on one line.")
    ] = False,
) -> None:
    """Watch a group of three consumers: one joins, one leaves, and one is killed.

    The demonstration starts a real ZooKeeper and a real broker on the loopback interface, with a
    temporary directory, and removes everything at the end. Exit code 6: a message was lost, or two
    members owned one partition at the same time.

    Example: zkconsumer demo --partitions 12 --json
    """
    from zkconsumer.demo.group import DemoRun, print_result, view

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    with view() as shown:
        result = DemoRun(messages=messages, partitions=partitions, view=shown).run()
    if as_json:
        format_ = replace(format_, output=Output.JSONL)
    if format_.is_for_people:
        print_result(result, sys.stdout)
    else:
        print_result(result, sys.stderr)
        format_.write_document(_document(result))
    if not result.good:
        raise typer.Exit(Exit.FOUND)


def _document(result: Result) -> JsonObject:

    document = asdict(result)
    del document["reasons"]
    for event in document["events"]:
        del event["text"]
    return document
