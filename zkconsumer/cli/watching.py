"""`--watch`: repeat a reading. On a terminal, a reading replaces the previous one; in a pipe, it
follows the previous one.

On a terminal, a single write draws the whole reading, so the display does not flicker. The display
uses the terminal's alternate screen, so the previous contents return at the end, even after a
signal.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.options import Common
from zkconsumer.cli.output import (
    Column,
    Output,
    Table,
    format_table,
    safe,
    say_all,
    unknown_reasons,
    write,
)
from zkconsumer.errors import ConfigError, ZkConsumerError, ZooKeeperUnreachableError
from zkconsumer.times import now_text

if TYPE_CHECKING:
    from zkconsumer.zk.client import ZooKeeperClient

Watch = Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")]
Interval = Annotated[
    float, typer.Option(min=0.1, metavar="S", help="Seconds between two readings, with --watch.")
]

# Alternate screen, cursor hidden, and long lines cut instead of continued on the next line.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _TO_LINE_END, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


Reading = tuple[str, Table, list[str]]
"""A title, a table, and the notes below the table."""


def watch(
    common: Common,
    connection: ZooKeeperClient,
    read: Callable[[], Reading],
    *,
    interval_s: float,
) -> None:
    """Show the result of `read` every `interval_s` seconds, until KeyboardInterrupt.

    While ZooKeeper is unreachable, a terminal shows the last reading and the error; in a pipe, only
    the error is written. If `connection` has failed for good, it is replaced.

    Rows for programs have the time of their reading. JSON is written as JSON Lines, and YAML as a
    stream of documents; CSV begins with one line of titles.

    Raises what `read` raises. ZooKeeperUnreachableError is raised only for the first reading, and
    so is an error of a `connection` that has failed for good: a server that restarts may refuse a
    login.
    Raises ConfigError for an output format that cannot be repeated.
    """
    tables = common.output in (Output.TABLE, Output.WIDE)
    if common.output in (Output.LEGACY, Output.PROMETHEUS):
        raise ConfigError(
            f"--output {common.output.value} cannot be repeated",
            where="--watch",
            remedy="leave out --watch, or use another format (`lag --prometheus PORT` serves)",
        )
    if tables and common.screen.width is not None:
        with _alternate_screen():
            for reading, fault in _readings(connection, read, interval_s):
                title, table, words = reading
                _paint(_picture(common, title, table, [*fault, *words]))
    is_first = True
    for (title, table, _), fault in _readings(connection, read, interval_s):
        say_all(fault)
        if fault:
            continue
        if tables:
            print(title)
            common.write(table.rows, table.columns)
        else:
            _stream(common, table, headers=is_first and not common.no_headers)
        is_first = False


AT = Column("at", type="string")


def _stream(common: Common, table: Table, *, headers: bool) -> None:
    """Write one reading so that all readings together can be parsed."""
    chosen = common.selected(table)
    now = now_text("milliseconds")
    rows = [{"at": now, **row} for row in chosen.rows]
    output = Output.JSONL if common.output is Output.JSON else common.output
    if output is Output.YAML:
        print("---")
    write(rows, (AT, *chosen.columns), output, to=replace(common.screen, headers=headers))


def _readings(
    connection: ZooKeeperClient, read: Callable[[], Reading], interval_s: float
) -> Iterator[tuple[Reading, list[str]]]:
    """Yield readings; while ZooKeeper is unreachable, yield the last reading with the error."""
    last = read()
    yield last, []
    while True:
        time.sleep(interval_s)
        connection.recreate_if_dead()
        try:
            last = read()
            fault = []
        except ZkConsumerError as error:
            # A client that fails for good reports its last request as refused before it is dead.
            is_refused = type(error) is ZkConsumerError
            is_lost = isinstance(error, ZooKeeperUnreachableError) or connection.death is not None
            if not (is_lost or is_refused):
                raise
            fault = [str(error)]
        yield last, fault


def _picture(common: Common, title: str, table: Table, words: list[str]) -> list[str]:
    """Return the lines of a reading, cut to the width and height of the terminal."""
    text, dropped = format_table(common.selected(table), common.output, common.screen)
    below = [*unknown_reasons(table), *words]
    if dropped:
        below.append(f"columns hidden to fit: {', '.join(dropped)}")
    now = datetime.now().strftime("%H:%M:%S")
    width, height = shutil.get_terminal_size()
    lines = [f"{now}  {safe(title)}"[:width], "", *text.splitlines()]
    notes = [safe(word)[:width] for word in below]
    room = max(3, height - len(notes) - 1)
    if len(lines) > room:
        notes.insert(0, f"... {len(lines) - room + 1} more lines"[:width])
        lines = lines[: room - 1]
    return [*lines, *notes][: height - 1]


def _paint(lines: list[str]) -> None:
    picture = "".join(f"{line}{_TO_LINE_END}\n" for line in lines)
    sys.stdout.write(f"{_HOME}{picture}{_BELOW}")
    sys.stdout.flush()


@contextmanager
def _alternate_screen() -> Iterator[None]:
    # SIGTERM must restore the terminal as well.
    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, before)
