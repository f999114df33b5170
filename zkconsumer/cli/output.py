"""Output of rows: a table that fits the terminal, or a format for programs.

Data goes to standard output and messages go to standard error. A `Column` declares a column once;
rows are mappings of plain values. A table shows None as `-`. A value that could not be read is an
`Unknown` with a reason, never a number. In formats for programs, such a value is null, and the key
`unknown` has the reason.

This module does not use rich, which needs 5 s for 10,000 rows.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from itertools import islice, zip_longest
from typing import Any, Final, Protocol

from zkconsumer.errors import (
    Advice,
    ConfigError,
    RemedyOperation,
    ZkConsumerError,
    escaped,
    shell_word,
)
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import Json, JsonObject

Row = Mapping[str, Json]


class Remediable(Protocol):
    """An error or a finding that has a remedy as text, and sometimes also as data (`advice`)."""

    @property
    def remedy(self) -> str: ...
    @property
    def advice(self) -> Advice | None: ...


class Output(Enum):
    """Output format of a result."""

    TABLE = "table"
    WIDE = "wide"  # a table with all columns, regardless of the terminal's width
    JSON = "json"
    JSONL = "jsonl"  # one object per line
    YAML = "yaml"
    CSV = "csv"
    PROMETHEUS = "prometheus"  # the text format of Prometheus
    HTML = "html"  # a page for a browser
    STORY = "story"  # `simulate` only: an alias of `table`
    LEGACY = "legacy"  # the format of Kafka's own tool; only commands with such a tool


SECTIONS = (Output.TABLE, Output.WIDE, Output.JSON, Output.JSONL, Output.YAML)
"""The output formats of a command whose result is several tables, which do not fit into one CSV
file."""

ROWS = (*SECTIONS, Output.CSV)
"""The output formats of a command whose result is one table."""


class Align(Enum):
    """Alignment of the cells of a column."""

    LEFT = "left"
    RIGHT = "right"


class Color(Enum):
    """Meaning of a coloured cell; the values are SGR codes."""

    GOOD = "32"
    WARNING = "33"
    BAD = "31"
    FAINT = "2"


@dataclass(frozen=True, slots=True)
class Unknown:
    """Placeholder for a value that could not be read, with the reason."""

    reason: str

    def __str__(self) -> str:
        return "unknown"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: key of the column in rows and in the objects that programs get.
        header: title of the column; default is the name in capitals.
        drop_order: order in which a narrow terminal drops columns, 1 first; a column with 0 stays.
        wide_only: show the column only with `--output wide` and in the formats for programs.
        type: JSON type of the values, with a `?` if a value may be null; see `json_type`.
        show: function from a value to its text.
        most: number of items of a list or an object that a terminal shows; None means all.
        color: function from a value to its colour on a terminal.
    """

    name: str
    header: str = ""
    align: Align = Align.LEFT
    drop_order: int = 0
    wide_only: bool = False
    type: str = ""
    show: Callable[[Json], str] = str
    most: int | None = None
    color: Callable[[Json], Color | None] = lambda value: None

    @property
    def title(self) -> str:
        """The title of the column."""
        return self.header or self.name.upper().replace("_", "-")

    @property
    def json_type(self) -> str:
        """The JSON type; by default text for a left-aligned column, else a whole number."""
        return self.type or ("integer?" if self.align is Align.RIGHT else "string?")


@dataclass(frozen=True, slots=True)
class Screen:
    """How a table is shown: its `width` in characters (None: unlimited), with or without colours
    and titles."""

    width: int | None = None
    color: bool = False
    headers: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with their columns."""

    rows: Sequence[Row]
    columns: Sequence[Column]


def screen(*, color: bool = True, headers: bool = True) -> Screen:
    """Return the width and colours of standard output.

    A terminal has colours unless `color` is False, NO_COLOR is set, or TERM is `dumb`.
    """
    if not sys.stdout.isatty():
        return Screen(headers=headers)
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Screen(shutil.get_terminal_size().columns, color and not plain, headers)


# ---- --columns and --sort ------------------------------------------------------------------------


def select(table: Table, columns: str | None, sort: str | None) -> Table:
    """Return a table with the columns of a list of names, sorted by a column.

    Rows without a value come last. Raises ConfigError if a name is not a column.
    """
    by_name = {one.name: one for one in table.columns}
    rows = table.rows
    if sort is not None:
        (name,) = _names(sort.removeprefix("-"), by_name, where="--sort")
        known = [row for row in rows if not _is_missing(row.get(name))]
        known.sort(key=lambda row: _sort_key(row[name]), reverse=sort.startswith("-"))
        rows = [*known, *(row for row in rows if _is_missing(row.get(name)))]
    if columns is None:
        return Table(rows, table.columns)
    chosen = _names(columns, by_name, where="--columns")
    return Table(rows, [replace(by_name[name], drop_order=0, wide_only=False) for name in chosen])


def select_sections(
    sections: Mapping[str, Table], columns: str | None, sort: str | None
) -> dict[str, Table]:
    """Apply `select` to each section that has one of the columns, and drop all other sections."""
    every = {one.name: one for table in sections.values() for one in table.columns}
    chosen = None if columns is None else _names(columns, every, where="--columns")
    order = None if sort is None else _names(sort.removeprefix("-"), every, where="--sort")[0]
    found = {}
    for name, table in sections.items():
        here = {one.name for one in table.columns}
        own = None if chosen is None else ",".join(one for one in chosen if one in here)
        if own != "":
            found[name] = select(table, own, sort if order in here else None)
    return found


def _names(text: str, columns: Mapping[str, Column], *, where: str) -> list[str]:
    """Split a list of column names or titles. Raises ConfigError for an unknown one."""
    names = [one.strip().lower().replace("-", "_") for one in text.split(",")]
    unknown = [name for name in names if name not in columns]
    if unknown:
        raise ConfigError(
            f"no column is called {unknown[0]!r}", where=where, remedy=f"use {', '.join(columns)}"
        )
    return list(dict.fromkeys(names))


def _sort_key(value: Json) -> tuple[bool, Any]:  # Any: a number or a text
    """Return the key of a value: numbers come before texts, and lists and objects are texts."""
    if isinstance(value, int | float):
        return False, value
    return True, value if isinstance(value, str) else json.dumps(value)


def _is_missing(value: Json) -> bool:
    return value is None or isinstance(value, Unknown)


# ---- writing ------------------------------------------------------------------------------------


def write(
    rows: Iterable[Row], columns: Sequence[Column], output: Output, *, to: Screen | None = None
) -> None:
    """Write rows to standard output; `to` gives its width and colours (default: `screen()`).

    `Output.LEGACY` is written as a table; a command with a legacy format writes it without this
    function.
    """
    table = Table(list(rows), columns)
    if output in (Output.TABLE, Output.WIDE, Output.STORY, Output.LEGACY):
        out = to or screen()
        say_all(unknown_reasons(table))
        text, dropped = format_table(table, output, out)
        if dropped:
            say(f"columns hidden to fit: {', '.join(dropped)} (--output wide shows them)")
        sys.stdout.write(text)
    elif output is Output.CSV:
        sys.stdout.write(csv_text(table, headers=to is None or to.headers))
    else:
        sys.stdout.write(_FORMATS[output](table))
    sys.stdout.flush()


def write_sections(
    sections: Mapping[str, Table], output: Output, *, to: Screen | None = None
) -> None:
    """Write several tables, section name -> table.

    A table format prints them below each other under their names. JSON and YAML are one object of
    lists. JSONL names the section in each object. CSV cannot hold several tables.
    """
    if output is Output.JSON or output is Output.YAML:
        write_document({name: _plain(one) for name, one in sections.items()}, output)
    elif output is Output.JSONL:
        for name, table in sections.items():
            lines = [{"section": name, **row} for row in _plain(table)]
            sys.stdout.write("".join(json.dumps(line) + "\n" for line in lines))
    else:
        for number, (name, table) in enumerate(sections.items()):
            sys.stdout.write(f"{chr(10) if number else ''}{safe(name)}\n")
            write(table.rows, table.columns, output, to=to)
    sys.stdout.flush()


def write_document(document: Json, output: Output) -> None:
    """Write one value of plain types, as YAML for `Output.YAML` and else as JSON."""
    if output is Output.YAML:
        sys.stdout.write(_yaml(document))
    else:
        indent = None if output is Output.JSONL else 2
        sys.stdout.write(json.dumps(document, indent=indent) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Write a message to standard error."""
    print(f"zkconsumer: {safe(text)}", file=sys.stderr)


def say_all(texts: Iterable[str]) -> None:
    """Write messages to standard error, without repetitions."""
    for text in dict.fromkeys(texts):
        say(text)


# ---- errors and remedies ------------------------------------------------------------------------

_COMMANDS: Mapping[RemedyOperation, str] = {
    RemedyOperation.LIST_GROUPS: "zkconsumer groups list",
    RemedyOperation.LIST_TOPICS: "zkconsumer topics list",
    RemedyOperation.SHOW_GROUP: "zkconsumer groups show GROUP",
    RemedyOperation.SHOW_OFFSETS: "zkconsumer offsets get --group {group}",
    RemedyOperation.COPY_OFFSETS: "zkconsumer offsets copy --group {group} --from {value}",
    RemedyOperation.SELECT_PARTITIONS: "--topic TOPIC:P,P...",
    RemedyOperation.EXAMINE: "zkconsumer doctor --group {group}",
    RemedyOperation.FIX: "zkconsumer doctor --group {group} --fix --execute",
    RemedyOperation.EXPLAIN: "zkconsumer explain --group {group}",
    RemedyOperation.RESET_TO_CURRENT: (
        "zkconsumer offsets reset --group {group} --topic {value} --to-current --execute"
    ),
    RemedyOperation.FORCE_LIVE: "--force-live",
    RemedyOperation.RAISE_LIMIT: "--max-znodes {value}",
    RemedyOperation.APPROXIMATE: "--approximate",
    RemedyOperation.ZOOKEEPER_ONLY: "--storage zookeeper",
    RemedyOperation.OTHER_FORMAT: "--format",
    RemedyOperation.SAME_CHROOT: "--zookeeper HOST:PORT{value}",
    RemedyOperation.COMPLETE_OR_UNDO: (
        "zkconsumer apply {value} --execute` or `zkconsumer undo {value} --execute"
    ),
}
"""The command or option that performs each step that an error or a finding of `admin` advises.

A group is always an option, since its name can begin with a hyphen or be that of a subcommand.
"""


def command_of(advice: Advice) -> str:
    """Return the command or option for a piece of advice."""
    return _COMMANDS[advice.step].format(
        group=shell_word(advice.group), value=shell_word(advice.value)
    )


def remedy_of(one: Remediable) -> str:
    """Return the remedy of an error or a finding, with the command or option for it."""
    if one.advice is None:
        return one.remedy
    return f"{one.remedy}: `{command_of(one.advice)}`"


def error_text(error: ZkConsumerError) -> str:
    """Return an error as one line: what, where, and the remedy in terms of this command line."""
    text = error.what + (f" ({error.where})" if error.where else "")
    remedy = remedy_of(error)
    return f"{text}: {remedy}" if remedy else text


_SHOWN_REASONS = 10


def unknown_reasons(table: Table) -> list[str]:
    """Return the reasons for unknown values: each reason once, with its columns and its number of
    rows.

    The last line has the number of further reasons after the first ten.
    """
    found: dict[str, tuple[dict[str, None], set[int]]] = {}
    for number, row in enumerate(table.rows):
        if Unknown not in map(type, row.values()):
            continue
        for column in table.columns:
            value = row.get(column.name)
            if isinstance(value, Unknown):
                titles, numbers = found.setdefault(value.reason, ({}, set()))
                titles[column.title] = None
                numbers.add(number)
    lines = [
        f"{', '.join(titles)} unknown: {reason}"
        + (f" ({len(numbers)} rows)" if len(numbers) > 1 else "")
        for reason, (titles, numbers) in found.items()
    ]
    more = len(lines) - _SHOWN_REASONS
    if more <= 0:
        return lines
    return [*lines[:_SHOWN_REASONS], f"and {more} more reasons (-o json shows all)"]


# ---- for programs -------------------------------------------------------------------------------


def plain_row(row: Row, columns: Sequence[Column]) -> JsonObject:
    """Return a row for JSON, in the order of the columns.

    An unknown value becomes null, and its reason goes under the key `unknown`.
    """
    values = {column.name: row.get(column.name) for column in columns}
    unknown = {name: one.reason for name, one in values.items() if isinstance(one, Unknown)}
    if unknown:
        values |= dict.fromkeys(unknown)
        values["unknown"] = unknown
    return values


def _plain(table: Table) -> list[JsonObject]:
    return [plain_row(row, table.columns) for row in table.rows]


def _json(table: Table) -> str:
    rows = ",\n".join(f"  {json.dumps(row)}" for row in _plain(table))
    return f"[\n{rows}\n]\n" if rows else "[]\n"


def _jsonl(table: Table) -> str:
    return "".join(json.dumps(row) + "\n" for row in _plain(table))


def _yaml(document: Json) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, default_flow_style=False))


def csv_text(table: Table, *, headers: bool = True) -> str:
    """Return a table as CSV.

    Lists and objects are JSON. Null is an empty cell. A value that could not be read is the word
    `unknown`; the last column, `unknown`, has the reasons as a JSON object of columns.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if headers:
        writer.writerow([*(column.name for column in table.columns), "unknown"])
    for row in table.rows:
        values = [row.get(column.name) for column in table.columns]
        reasons = plain_row(row, table.columns).get("unknown")
        writer.writerow([*map(_csv_cell, values), json.dumps(reasons) if reasons else ""])
    return out.getvalue()


def _csv_cell(value: Json) -> str:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, list | dict | bool) else safe(str(value))


_FORMATS: Mapping[Output, Callable[[Table], str]] = {
    Output.JSON: _json,
    Output.JSONL: _jsonl,
    Output.YAML: lambda table: _yaml(_plain(table)),
}


# ---- tables -------------------------------------------------------------------------------------

GAP = "  "
LISTED: Final = 10
"""Number of topics or groups in a cell that a terminal shows; see `Column.most`."""
_NARROWEST = 8
"""Minimum width of a text column in characters, even if the line is then too long."""


def safe(text: str) -> str:
    """Return untrusted text with all characters escaped that control a terminal."""
    return escaped(text)


def width_of(text: str) -> int:
    """Return the number of terminal cells that printable text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def format_table(table: Table, output: Output, to: Screen) -> tuple[str, list[str]]:
    """Return a table as text, and the titles of the columns dropped to fit the width."""
    shown = [one for one in table.columns if output is Output.WIDE or not one.wide_only]
    limit = to.width if output is not Output.WIDE else None
    cell = cell_text if limit is None else _short_cell
    cells = [[cell(one, row) for row in table.rows] for one in shown]
    widths = [_width_of_all([one.title, *column]) for one, column in zip(shown, cells, strict=True)]
    keep, dropped = _fitting(shown, widths, limit)
    if limit is not None:
        _narrow([shown[i] for i in keep], widths, keep, limit)
    lines = [_line([(shown[i], shown[i].title, widths[i], None) for i in keep])]
    lines = lines if to.headers else []
    if limit is None and not to.color:  # a pipe: formatting a long table by column is faster
        columns = [_padded(shown[i], cells[i], widths[i]) for i in keep]
        lines += [GAP.join(row).rstrip() for row in zip(*columns, strict=True)]
        return "".join(f"{line}\n" for line in lines), []
    for number, row in enumerate(table.rows):
        colors = [shown[i].color(row.get(shown[i].name)) if to.color else None for i in keep]
        parts = [
            (shown[i], cells[i][number], widths[i], color)
            for i, color in zip(keep, colors, strict=True)
        ]
        lines.append(_line(parts) if limit is None else _wrapped(parts))
    return "".join(f"{line}\n" for line in lines), [shown[i].title for i in dropped]


def _width_of_all(texts: Sequence[str]) -> int:
    return max(map(len if "".join(texts).isascii() else width_of, texts))


def _padded(column: Column, texts: Iterable[str], width: int) -> list[str]:
    pad = str.rjust if column.align is Align.RIGHT else str.ljust
    return [pad(text, width - width_of(text) + len(text)) for text in texts]


def cell_text(column: Column, row: Row) -> str:
    """Return the whole text of a cell; `show` gets neither a missing nor an unknown value."""
    value = row.get(column.name)
    if value is None:
        return "-"
    return safe(str(value) if isinstance(value, Unknown) else column.show(value))


def _short_cell(column: Column, row: Row) -> str:
    """Return the text for a terminal: the first items of a long list, and the number of the others.

    Hundreds of topics would fill the screen for each group.
    """
    value = row.get(column.name)
    if column.most is None or not isinstance(value, list | dict) or len(value) <= column.most:
        return cell_text(column, row)
    items = value.items() if isinstance(value, dict) else value
    first = type(value)(islice(items, column.most))
    return f"{cell_text(column, {column.name: first})} and {len(value) - column.most} more"


def _total(widths: Iterable[int]) -> int:
    return sum(width + len(GAP) for width in widths) - len(GAP)


def _fitting(
    columns: Sequence[Column], widths: Sequence[int], limit: int | None
) -> tuple[list[int], list[int]]:
    """Return the indices of the columns that stay, and of the columns that are dropped.

    The second list is in the order in which columns are dropped.
    """
    keep, dropped = list(range(len(columns))), []
    for i in sorted(keep, key=lambda i: columns[i].drop_order):
        if limit is None or _total(widths[k] for k in keep) <= limit:
            break
        if columns[i].drop_order:
            keep.remove(i)
            dropped.append(i)
    return keep, dropped


def _narrow(columns: Sequence[Column], widths: list[int], keep: list[int], limit: int) -> None:
    """Reduce the widths of the widest text columns, in place, until the line fits `limit`."""
    text = [i for i, one in zip(keep, columns, strict=True) if one.align is Align.LEFT]
    while text and (over := _total(widths[i] for i in keep) - limit) > 0:
        widest = max(text, key=lambda i: widths[i])
        others = [widths[i] for i in text if i != widest]
        step = max(1, min(over, widths[widest] - max(others, default=_NARROWEST)))
        if widths[widest] - step < _NARROWEST:
            return
        widths[widest] -= step


_Part = tuple[Column, str, int, Color | None]


def _wrapped(parts: Sequence[_Part]) -> str:
    """Return a row, wrapped to as many lines as its longest cell needs."""
    if all(len(text) <= width for _, text, width, _ in parts):
        return _line(parts)
    texts = [
        textwrap.wrap(text, width, break_on_hyphens=True) or [""] for _, text, width, _ in parts
    ]
    return "\n".join(
        _line(
            [
                (column, text, width, color)
                for (column, _, width, color), text in zip(parts, line, strict=True)
            ]
        )
        for line in zip_longest(*texts, fillvalue="")
    )


def _line(parts: Sequence[_Part]) -> str:
    cells = []
    for column, text, width, color in parts:
        blanks = " " * (width - width_of(text))
        painted = f"\x1b[{color.value}m{text}\x1b[0m" if color and text else text
        cells.append(blanks + painted if column.align is Align.RIGHT else painted + blanks)
    return GAP.join(cells).rstrip()


# ---- progress on standard error ------------------------------------------------------------------

BAR: Final = 30
"""Characters of the bar. With the numbers beside it, a line fits a terminal of 80 columns."""


class Progress:
    """Shows how much of some work is done; work that ends within `DELAY_S` shows nothing.

    Attributes:
        done, total: the amount of work that is known to be done, and the total amount.
    """

    DELAY_S = 1.0  # time before the first line; most work ends earlier
    TERMINAL_S, PIPE_S = 0.1, 1.0  # time between two lines

    def __init__(self, what: str) -> None:
        """`what` is a plural noun, such as "changes"."""
        self.done = self.total = 0
        self._what = what
        self._next_s = time.monotonic() + self.DELAY_S
        self._is_open = False

    def restart(self) -> None:
        """Count the time before the first line from now, because the work begins only now."""
        self._next_s = time.monotonic() + self.DELAY_S

    def advanced(self, done: int, total: int) -> None:
        """Record the amount, and show it at intervals, except at the end of the work."""
        self.done, self.total = done, total
        now = time.monotonic()
        if now < self._next_s or done == total:
            return
        is_terminal = sys.stderr.isatty()
        self._next_s = now + (self.TERMINAL_S if is_terminal else self.PIPE_S)
        if not is_terminal:
            say(f"{done} of {total} {self._what}")
            return
        full = BAR * done // total
        bar = "#" * full + "." * (BAR - full)
        sys.stderr.write(f"\r[{bar}] {done} of {total} {self._what}\x1b[K")
        sys.stderr.flush()
        self._is_open = True

    @contextmanager
    def until_done(self, interrupt_note: str = "") -> Iterator[None]:
        """Remove the bar at the end; on Ctrl-C, print how much was read, and the note."""
        try:
            yield
        except KeyboardInterrupt:
            self.end()
            read = f"{self.done} of {self.total} {self._what} were read" if self.done else ""
            if read or interrupt_note:
                say(f"interrupted: {'; '.join(filter(None, [read, interrupt_note]))}")
            raise
        finally:
            self.end()

    def end(self) -> None:
        """Remove the bar from the terminal."""
        if self._is_open:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_open = False
