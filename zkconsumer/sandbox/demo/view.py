"""How the demo looks: a live picture on a terminal, else a line a second; on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from zkconsumer.sandbox.demo.play import Result

# Lines of the terminal that are not for partitions: frame, head, totals, what was said last.
_OTHER_LINES = 9


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture: who owns which partition, and how many of its messages were delivered."""

    owners: Mapping[int, str]
    members: Sequence[str]
    delivered: Sequence[int]
    produced: Sequence[int]

    @property
    def total(self) -> str:
        return f"delivered {sum(self.delivered):,} of {sum(self.produced):,}"

    def partitions_of(self, member: str) -> str:
        """`0-3,7`, or `-` for none."""
        return ranges(one for one, owner in self.owners.items() if owner == member) or "-"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers, shortened: `0-3,7`."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    bounds = ([number for _, number in run] for _, run in runs)
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in bounds
    )


class View(Protocol):
    """Where the demo shows itself."""

    def note(self, text: str) -> None:
        """What takes a while now."""

    def event(self, text: str) -> None:
        """What happens in the group."""

    def draw(self, frame: Frame) -> None:
        """How things stand."""


class _Lines:
    """For pipes and logs."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._drawn_s = 0.0

    def note(self, text: str) -> None:
        self._line(f"   {text}")

    def event(self, text: str) -> None:
        self._line(f"** {text}")

    def draw(self, frame: Frame) -> None:
        if time.monotonic() < self._drawn_s + 1.0:
            return
        self._drawn_s = time.monotonic()
        owned = "  ".join(f"{name}: {frame.partitions_of(name)}" for name in frame.members)
        self._line(f"   {owned}  {frame.total}")

    def _line(self, text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._start_s:5.1f} s {text}\n")


class _Picture:
    """For a terminal."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._start_s = time.monotonic()

    def note(self, text: str) -> None:
        from rich.text import Text  # noqa: PLC0415

        self._live.update(Text(text, style="dim"))

    def event(self, text: str) -> None:
        self._live.console.print(f"{time.monotonic() - self._start_s:5.1f} s  [bold]{text}[/]")

    def draw(self, frame: Frame) -> None:
        self._live.update(_picture(frame, self._live.console.height - _OTHER_LINES))


def _picture(frame: Frame, height: int) -> RenderableType:
    from rich.progress_bar import ProgressBar  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(caption=frame.total, caption_justify="left")
    table.add_column("partition", justify="right")
    table.add_column("owner", width=6)
    table.add_column("delivered", width=30)
    table.add_column("", justify="right")
    names = sorted({*frame.owners.values(), *frame.members})
    colours = {name: f"color({2 + number % 5})" for number, name in enumerate(names)}
    rows = list(enumerate(zip(frame.delivered, frame.produced, strict=True)))
    for partition, (delivered, produced) in rows[: max(1, height)]:
        owner = frame.owners.get(partition, "")
        colour = colours.get(owner, "red")
        table.add_row(
            str(partition),
            f"[{colour}]{owner or 'nobody'}[/]",
            ProgressBar(total=max(1, produced), completed=delivered, width=30),
            f"{delivered:,} / {produced:,}",
        )
    if len(rows) > max(1, height):
        table.add_row("...", f"and {len(rows) - max(1, height)} more", "", "")
    return table


@contextmanager
def view() -> Iterator[View]:
    """A picture if standard error is a terminal, else lines."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    with Live(console=Console(stderr=True), refresh_per_second=10, transient=True) as live:
        yield _Picture(live)


def print_result(result: Result, out: Any) -> None:
    """The table at the end."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console(file=out)
    events = Table("event", title="Time to settle", title_justify="left")
    events.add_column("settled after", justify="right")
    events.add_column("partition-seconds without owner", justify="right")
    for event in result.events:
        events.add_row(
            event.text, f"{event.settled_s:.2f} s", f"{event.unowned_partition_seconds:.2f}"
        )
    console.print(events)
    messages = Table("messages", title="What became of the messages", title_justify="left")
    messages.add_column("", justify="right")
    for name, count in (
        ("produced", result.produced),
        ("delivered", result.delivered),
        ("lost", result.lost),
        ("delivered twice", result.duplicates),
        ("partitions that two members owned at once", result.double_owned),
    ):
        messages.add_row(name, f"{count:,}")
    console.print(messages)
    if result.duplicates:
        console.print(
            "Delivered twice: what the killed member had been handed since its last commit.",
            style="dim",
        )
    for reason in result.reasons:
        console.print(reason, markup=False)
