"""The screens of `zkconsumer top`: the list of groups, and one group in three tables.

A table paints only the rows on the screen, so 5,000 groups cost no more than 50. The keys follow
htop (function keys, `<` `>` and F6 to sort) and k9s (`/` to filter, Enter and Esc, `?` for help).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, overload

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from zkconsumer.admin.lag import PartitionLag
from zkconsumer.cli.doctor import clients_of
from zkconsumer.cli.lag import COLUMNS as PARTITION_COLUMNS
from zkconsumer.cli.lag import STATUS, group_notes, partition_row
from zkconsumer.cli.members import COLUMNS as MEMBER_COLUMNS
from zkconsumer.cli.members import member_row
from zkconsumer.cli.output import Align, Color, Column, Row, cell_text, remedy_of, safe, width_of
from zkconsumer.cli.top_feed import SORTS, Detail, Feed, GroupRow, ordered
from zkconsumer.errors import ZkConsumerError

_STYLES = {
    Color.GOOD: "green",
    Color.WARNING: "yellow",
    Color.BAD: "red",
    Color.FAINT: "bright_black",
}
_RATE = Column("rate", "MSG/S", align=Align.RIGHT, show="{:.1f}".format)
_STATES = {
    "live": Color.GOOD,
    "unregistered": Color.WARNING,
    "leftover": Color.FAINT,
    "idle": Color.FAINT,
    "denied": Color.BAD,
}
GROUP_COLUMNS = (
    Column("name", "GROUP"),
    Column("state", color=_STATES.get),
    Column("members", align=Align.RIGHT),
    Column("partitions", align=Align.RIGHT),
    Column("lag", align=Align.RIGHT),
    Column("unknown", align=Align.RIGHT, color=lambda n: Color.WARNING if n else None),
    _RATE,
    STATUS,
)
_OWNER_COLUMNS = (
    *(one for one in PARTITION_COLUMNS if one.name in ("topic", "partition", "offset", "log_end")),
    Column("lag", align=Align.RIGHT),
    _RATE,
    STATUS,
    Column("owner"),
    Column("source"),
)
_SEVERITIES = {"error": Color.BAD, "warning": Color.WARNING, "note": Color.FAINT}
_FINDING_COLUMNS = (
    Column("severity", color=_SEVERITIES.get),
    Column("code"),
    Column("subject"),
    Column("what"),
)
_MEMBERS = tuple(one for one in MEMBER_COLUMNS if one.name not in ("group", "pattern"))
TERMINAL_S = 1.0
"""Seconds between two checks that the terminal still exists."""

VIEWS = ("partitions", "members", "findings")

HELP = """\
Up Down PgUp PgDn Home End, j k    move
Enter                              open the group; Esc or Left goes back
Tab, 1 2 3                         partitions, members, findings of a group
F6, < >                            sort by the next or the previous column
i                                  invert the order
/, F3, F4                          show only groups whose names contain a text
r, F5                              read again now
?, F1, h                           this help
q, F10, Ctrl-C                     quit"""


class Rows(Widget, can_focus=True):
    """A table that paints the rows on the screen, with a cursor."""

    class Opened(Message):
        """Enter was pressed on a row."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("home,g", "end(0)", show=False),
        Binding("end,G", "end(-1)", show=False),
        Binding("enter", "open", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._columns: Sequence[Column] = ()
        self._rows: Sequence[Row] = ()
        self._cursor = self._first = 0

    def fill(self, columns: Sequence[Column], rows: Sequence[Row], *, key: str) -> None:
        """Replace the rows; the cursor stays on the row with the same `key`."""
        same = columns is self._columns
        held = self._rows[self._cursor].get(key) if same and self._rows else None
        self._columns, self._rows = columns, rows
        if held is not None:
            at = (number for number, row in enumerate(rows) if row.get(key) == held)
            self._cursor = next(at, self._cursor) if self._cursor else 0
        else:
            self._cursor = self._first = 0
        self._clip()

    @property
    def painted(self) -> Sequence[Row]:
        """The rows on the screen."""
        return self._rows[self._first : self._first + self._room]

    @property
    def selected(self) -> Row:
        """Return the row under the cursor; the table must have rows."""
        return self._rows[self._cursor]

    @property
    def _room(self) -> int:
        return max(1, self.size.height - 1)

    def _clip(self) -> None:
        self._cursor = max(0, min(self._cursor, len(self._rows) - 1))
        lowest = max(0, len(self._rows) - self._room)
        self._first = min(max(self._first, self._cursor - self._room + 1), self._cursor, lowest)
        self.refresh()

    def action_move(self, by: int) -> None:
        self._cursor += by
        self._clip()

    def action_page(self, by: int) -> None:
        self._cursor += by * self._room
        self._clip()

    def action_end(self, to: int) -> None:
        self._cursor = len(self._rows) - 1 if to else 0
        self._clip()

    def action_open(self) -> None:
        if self._rows:
            self.post_message(self.Opened(self.selected))

    def on_resize(self, _: events.Resize) -> None:
        self._clip()

    def on_mouse_scroll_down(self, _: events.MouseScrollDown) -> None:
        self.action_move(3)

    def on_mouse_scroll_up(self, _: events.MouseScrollUp) -> None:
        self.action_move(-3)

    def render(self) -> Text:
        """Return the titles and the visible rows; text columns share the rest of the width."""
        cells = [[cell_text(one, row) for one in self._columns] for row in self.painted]
        widths = [
            max([width_of(one.title), *(width_of(row[n]) for row in cells)])
            for n, one in enumerate(self._columns)
        ]
        _shrink(widths, self._columns, self.size.width)
        titles = [one.title for one in self._columns]
        text = Text(no_wrap=True, overflow="crop")
        text.append(self._line(titles, widths) + "\n", Style(bold=True, reverse=True))
        for number, (row, shown) in enumerate(zip(self.painted, cells, strict=True)):
            chosen = self._first + number == self._cursor
            for column, part in zip(self._columns, self._parts(shown, widths), strict=True):
                color = column.color(row.get(column.name))
                text.append(part, Style.parse(_STYLES[color]) if color and not chosen else None)
            if chosen:
                text.stylize("black on cyan", -sum(map(len, self._parts(shown, widths))))
            text.append("\n")
        return text

    def _parts(self, cells: Sequence[str], widths: Sequence[int]) -> list[str]:
        last = len(cells) - 1
        return [
            _fit(cell, width, one) + ("" if number == last else "  ")
            for number, (cell, width, one) in enumerate(
                zip(cells, widths, self._columns, strict=True)
            )
        ]

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        return "".join(self._parts(cells, widths)).ljust(self.size.width)


def _fit(text: str, width: int, column: Column) -> str:
    cut = text if width_of(text) <= width else text[: max(0, width - 1)] + "…"
    return cut.rjust(width) if column.align is Align.RIGHT else cut.ljust(width)


def _shrink(widths: list[int], columns: Sequence[Column], room: int) -> None:
    """Reduce the widest text columns until the line fits."""
    text = [n for n, one in enumerate(columns) if one.align is Align.LEFT]
    while text and sum(widths) + 2 * (len(widths) - 1) > room:
        widest = max(text, key=lambda n: widths[n])
        if widths[widest] <= 8:  # characters; the rest is cut at the right edge
            return
        widths[widest] -= 1


class Top(App[ZkConsumerError]):
    """The application; its result is the error that ended it, or None."""

    CSS = """
    Screen { layers: base help; overflow: hidden; }
    Rows { height: 1fr; }
    #title, #keys { height: 1; }
    #notes { height: auto; max-height: 3; color: $warning; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    #help { display: none; layer: help; width: auto; height: auto; padding: 1 2;
            border: round $accent; background: $surface; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,f10", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("escape,left", "leave", show=False),
        Binding("f6,greater_than_sign", "sort(1)", show=False),
        Binding("less_than_sign", "sort(-1)", show=False),
        Binding("i", "invert", show=False),
        Binding("slash,f3,f4", "filter", show=False),
        Binding("r,f5", "reread", show=False),
        Binding("tab", "view(1)", show=False, priority=True),
        Binding("question_mark,f1,h", "help", show=False),
        *(Binding(str(n), f"pick({n})", show=False) for n in (1, 2, 3)),
    ]

    def __init__(self, feed: Feed, *, has_terminal: Callable[[], bool] = lambda: True) -> None:
        """`has_terminal` returns False once the terminal is gone; the application then ends."""
        super().__init__(ansi_color=True)
        self._feed, self._has_terminal = feed, has_terminal
        self._groups: dict[str, GroupRow] = {}
        self._detail: Detail | None = None
        self._open: str | None = None
        self._view = VIEWS[0]
        self._sort, self._reverse, self._filter = SORTS[0], False, ""
        self._fault = ""

    def compose(self) -> ComposeResult:
        """Create the title, the table, the notes, the filter and the line of keys."""
        yield Static(id="title", markup=False)
        yield Rows()
        yield Static(id="notes", markup=False)
        yield Input(id="filter", placeholder="text in the name of a group")
        yield Static(id="keys", markup=False)
        yield Static(HELP, id="help", markup=False)

    def on_mount(self) -> None:
        self.query_one(Rows).focus()
        self._paint()
        threading.Thread(target=self._read, daemon=True).start()
        self.set_interval(TERMINAL_S, self._check_terminal)

    def _check_terminal(self) -> None:
        """Exit if the terminal is gone: only processes of the terminal's own session get SIGHUP."""
        if not self._has_terminal():
            self.exit()

    def on_unmount(self) -> None:
        self._feed.stop()

    # ---- what the feed reports -------------------------------------------------------------------

    def _read(self) -> None:
        try:
            self._feed.run(
                lambda rows, whole: self._send(self._take_rows, rows, whole),
                lambda detail: self._send(self._take_detail, detail),
                lambda fault: self._send(self._take_fault, fault),
            )
        except ZkConsumerError as error:
            self._send(self.exit, error)

    def _send(self, call: Callable[..., object], *arguments: object) -> None:
        if self.is_running and not self._feed.is_stopped:
            self.call_from_thread(call, *arguments)

    def _take_rows(self, rows: Sequence[GroupRow], whole: bool) -> None:
        if whole:  # keep the known figures of groups
            old = self._groups
            self._groups = {
                row.name: _counted(old[row.name], row.members) if row.name in old else row
                for row in rows
            }
        else:
            self._groups |= {row.name: row for row in rows if row.name in self._groups}
        if self._open is None:
            self._paint()

    def _take_detail(self, detail: Detail) -> None:
        if detail.group.name == self._open:
            self._detail = detail
            self._paint()

    def _take_fault(self, fault: str) -> None:
        if fault != self._fault:
            self._fault = fault
            self._paint()

    # ---- painting --------------------------------------------------------------------------------

    def _paint(self) -> None:
        table = self.query_one(Rows)
        if self._open is None:
            rows = ordered(
                self._groups.values(), by=self._sort, reverse=self._reverse, containing=self._filter
            )
            table.fill(GROUP_COLUMNS, _GroupRows(rows), key="name")
            self._feed.visible = tuple(str(row["name"]) for row in table.painted)
        else:
            table.fill(*self._detail_rows(), key="key")
        self.query_one("#title", Static).update(safe(self._headline()))
        self.query_one("#notes", Static).update("\n".join(map(safe, self._notes())))
        self.query_one("#keys", Static).update(self._key_line())

    def _headline(self) -> str:
        if self._open is not None:
            known = "reading ..."
            if self._detail:
                known = f"{len(self._detail.health.live)} members"
                if self._detail.group.image.has_unknown_members:
                    known += " and those that cannot be read"
            return f"zkconsumer top  group {self._open}: {known}  [{self._view}]"
        rows = list(self._groups.values())
        read = sum(row.partitions is not None for row in rows)
        lags = [row.lag for row in rows if row.lag is not None]
        behind = f"{sum(lags)} messages behind" if lags or not rows else "lag unknown"
        order = f"{self._sort}{' (inverted)' if self._reverse else ''}"
        filtered = f"  filter {self._filter!r}" if self._filter else ""
        live = sum(row.state == "live" for row in rows)
        return (
            f"zkconsumer top  {len(rows)} groups, {live} live, {behind}"
            f" ({read} groups read)  sort {order}{filtered}"
        )

    def _notes(self) -> list[str]:
        if self._fault:
            return [self._fault]
        if self._detail is None or self._open is None:
            return []
        words = list(group_notes(self._detail.group, self._detail.health))
        if self._view == "findings" and not self._detail.findings:
            examined = self._detail.findings is not None
            words.insert(0, "no problem found" if examined else "examining the group ...")
        return words[:3]

    def _key_line(self) -> str:
        if self._open is None:
            return "F1 Help  F4 Filter  F5 Read  F6 Sort  i Invert  Enter Open  F10 Quit"
        return "F1 Help  F5 Read  1 Partitions  2 Members  3 Findings  Esc Back  F10 Quit"

    def _detail_rows(self) -> tuple[Sequence[Column], list[Row]]:
        detail = self._detail
        addresses = detail.addresses if detail else None
        if self._view == "members":
            found = detail.group.members if detail else []
            more = {} if addresses else {"client": "reading ..."}
            return _MEMBERS, [
                {**member_row(one, addresses), **more, "key": one.consumer} for one in found
            ]
        if self._view == "findings":
            findings = (detail and detail.findings) or ()
            rows: list[Row] = []
            for number, one in enumerate(findings):
                shown = {"severity": one.severity.value, "code": one.code, "subject": one.subject}
                what = f"{one.what}; {remedy_of(one)}{clients_of(one, addresses)}"
                rows.append(shown | {"what": what, "key": number})
            return _FINDING_COLUMNS, rows
        if detail is None:
            return _OWNER_COLUMNS, []
        return _OWNER_COLUMNS, [_partition(detail, one) for one in detail.group.partitions]

    # ---- keys ------------------------------------------------------------------------------------

    def on_rows_opened(self, message: Rows.Opened) -> None:
        if self._open is None:
            self._open, self._detail = str(message.row["name"]), None
            self._feed.show(self._open)
            self._paint()

    def action_leave(self) -> None:
        help_ = self.query_one("#help")
        if help_.display:
            help_.display = False
        elif self._open is not None:
            self._open = None
            self._feed.show(None)
            self._paint()
        elif self._filter:
            self._filter = ""
            self._paint()

    def action_view(self, by: int) -> None:
        self._view = VIEWS[(VIEWS.index(self._view) + by) % len(VIEWS)]
        self._paint()

    def action_pick(self, number: int) -> None:
        self._view = VIEWS[number - 1]
        self._paint()

    def action_sort(self, by: int) -> None:
        self._sort = SORTS[(SORTS.index(self._sort) + by) % len(SORTS)]
        self._paint()

    def action_invert(self) -> None:
        self._reverse = not self._reverse
        self._paint()

    def action_reread(self) -> None:
        self._feed.refresh()

    def action_help(self) -> None:
        help_ = self.query_one("#help")
        help_.display = not help_.display

    def action_filter(self) -> None:
        if self._open is None:
            field = self.query_one(Input)
            field.display = True
            field.value = self._filter
            field.focus()

    def on_input_changed(self, message: Input.Changed) -> None:
        if self.query_one(Input).display:
            self._filter = message.value
            self._paint()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self.query_one(Input).display = False
        self.query_one(Rows).focus()


def _counted(row: GroupRow, members: int | None) -> GroupRow:
    return replace(row, members=members)


class _GroupRows(Sequence[Row]):
    """The rows of the list of groups. A row is created only when it is on the screen."""

    def __init__(self, groups: Sequence[GroupRow]) -> None:
        self._groups = groups

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | Sequence[Row]:
        if isinstance(at, slice):
            return [_group_row(one) for one in self._groups[at]]
        return _group_row(self._groups[at])


def _group_row(one: GroupRow) -> Row:
    return {
        "name": one.name,
        "state": one.state,
        "members": one.members,
        "partitions": one.partitions,
        "lag": one.lag,
        "unknown": one.unknown if one.partitions is not None else None,
        "rate": one.rate,
        "status": one.status,
    }


def _partition(detail: Detail, one: PartitionLag) -> Row:
    key = (one.topic, one.partition)
    status = detail.statuses.get(key)
    row = partition_row(detail.group.name, one)
    return row | {
        "rate": detail.rates.get(key),
        "status": status.value if status else None,
        "key": key,
    }
