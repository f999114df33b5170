"""`--watch`: the same again and again, in place on a terminal, one after the other in a pipe.

On a terminal each picture is written at once over the last one, on the terminal's second page, so
that nothing flickers and what stood there before comes back at the end, however it ends.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer

from zkconsumer.cli.options import Common
from zkconsumer.cli.output import Output, Table, format_table, safe, unknown_reasons, write

Watch = Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")]
Interval = Annotated[
    float, typer.Option(min=0.1, metavar="S", help="Seconds between two readings, with --watch.")
]

_ENTER = "\x1b[?1049h\x1b[?25l"  # the second page, and no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _TO_LINE_END, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def watch(
    common: Common, read: Callable[[], tuple[str, Table, list[str]]], *, interval_s: float
) -> None:
    """Show what `read` gives (a title, a table, and words) until somebody interrupts.

    Raises KeyboardInterrupt, as Ctrl-C does, and what `read` raises.
    """
    if common.output in (Output.TABLE, Output.WIDE) and common.screen.width is not None:
        with _second_page():
            while True:
                title, table, words = read()
                _paint(_picture(common, title, table, words))
                time.sleep(interval_s)
    while True:
        title, table, words = read()
        if common.output in (Output.TABLE, Output.WIDE):
            print(title)
        write(table.rows, table.columns, common.output, to=common.screen)
        time.sleep(interval_s)


def _picture(common: Common, title: str, table: Table, words: list[str]) -> list[str]:
    """The lines of a picture, as many as the terminal has."""
    text, dropped = format_table(table, common.output, common.screen)
    below = [*unknown_reasons(table), *words]
    if dropped:
        below.append(f"left out for want of room: {', '.join(dropped)}")
    now = datetime.now().strftime("%H:%M:%S")
    width, height = shutil.get_terminal_size()
    lines = [f"{now}  {safe(title)}"[:width], "", *text.splitlines()]
    notes = [safe(word)[:width] for word in below]
    room = max(3, height - len(notes) - 1)
    if len(lines) > room:
        notes.insert(0, f"... {len(lines) - room + 1} lines more"[:width])
        lines = lines[: room - 1]
    return [*lines, *notes][: height - 1]


def _paint(lines: list[str]) -> None:
    picture = "".join(f"{line}{_TO_LINE_END}\n" for line in lines)
    sys.stdout.write(f"{_HOME}{picture}{_BELOW}")
    sys.stdout.flush()


@contextmanager
def _second_page() -> Iterator[None]:
    # A signal that would just end the process must leave a clean terminal, too.
    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, before)
