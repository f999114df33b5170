"""The group demo: its live view, its course of events, and the table at the end.

On a terminal the view is a live picture, otherwise one line per second; both go to standard error.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from zkconsumer.demo.group_judge import double_ownership, unowned_partition_seconds
from zkconsumer.demo.group_member import Member
from zkconsumer.demo.group_scene import BackgroundProducer, MemberRecords, watching
from zkconsumer.errors import SandboxError
from zkconsumer.frozen import dataclass
from zkconsumer.sandbox import Sandbox

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


# ---- View ----------------------------------------------------------------------------------------


# Number of terminal lines besides those of the partitions: frame, header, totals, last event.
_OTHER_LINES = 9


@dataclass(frozen=True, slots=True)
class Frame:
    """The content of one refresh of the view: the owner of each partition, and how many of its
    messages were delivered.
    """

    owners: Mapping[int, str]
    members: Sequence[str]
    delivered: Sequence[int]
    produced: Sequence[int]

    @property
    def total(self) -> str:
        return f"delivered {sum(self.delivered):,} of {sum(self.produced):,}"

    def partitions_of(self, member: str) -> str:
        """Return the member's partitions, such as `0-3,7`, or `-` for none."""
        return ranges(one for one, owner in self.owners.items() if owner == member) or "-"


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers in short form: `0-3,7`."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    bounds = ([number for _, number in run] for _, run in runs)
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in bounds)


class View(Protocol):
    """The output of a running demo."""

    def note(self, text: str) -> None:
        """Show what the demo is doing if it takes a while."""

    def event(self, text: str) -> None:
        """Show what happens in the group."""

    def draw(self, frame: Frame) -> None:
        """Show the present state of the group."""


class _LineView:
    """The view for pipes and logs."""

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


class _TerminalView:
    """The view for a terminal."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._start_s = time.monotonic()

    def note(self, text: str) -> None:
        from rich.text import Text

        self._live.update(Text(text, style="dim"))

    def event(self, text: str) -> None:
        self._live.console.print(f"{time.monotonic() - self._start_s:5.1f} s  [bold]{text}[/]")

    def draw(self, frame: Frame) -> None:
        self._live.update(_picture(frame, self._live.console.height - _OTHER_LINES))


def _picture(frame: Frame, height: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

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
            f"[{colour}]{owner or 'none'}[/]",
            ProgressBar(total=max(1, produced), completed=delivered, width=30),
            f"{delivered:,} / {produced:,}",
        )
    if len(rows) > max(1, height):
        table.add_row("...", f"and {len(rows) - max(1, height)} more", "", "")
    return table


@contextmanager
def view() -> Iterator[View]:
    """Yield a live picture if standard error is a terminal, otherwise lines."""
    if not sys.stderr.isatty():
        yield _LineView()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=10, transient=True) as live:
        yield _TerminalView(live)


def print_result(result: Result, out: IO[str]) -> None:
    """Print the tables at the end."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=out)
    events = Table("event", title="Time to settle", title_justify="left")
    events.add_column("settled after", justify="right")
    events.add_column("partition-seconds without owner", justify="right")
    for event in result.events:
        events.add_row(
            event.text, f"{event.settled_s:.2f} s", f"{event.unowned_partition_seconds:.2f}"
        )
    console.print(events)
    messages = Table("messages", title="Messages", title_justify="left")
    messages.add_column("", justify="right")
    for name, count in (
        ("produced", result.produced),
        ("delivered", result.delivered),
        ("lost", result.lost),
        ("redelivered", result.duplicates),
        ("partitions that two members owned at once", result.double_owned),
    ):
        messages.add_row(name, f"{count:,}")
    console.print(messages)
    if result.duplicates:
        console.print(
            "Redelivered: the messages that the killed member received after its last commit.",
            style="dim",
        )
    for reason in result.reasons:
        console.print(reason, markup=False)


# ---- Course of events ----------------------------------------------------------------------------


GROUP, TOPIC = "demo", "orders"
# The session timeout in seconds. The timeout is half the JVM's default, so that the killed member's
# session expires sooner.
SESSION_TIMEOUT_S = 3.0
# Seconds between two events; during them the view shows the group at work.
_PAUSE_S = 1.5
# Seconds after which a group that has not settled counts as stuck: ten session timeouts.
_PATIENCE_S = 30.0
# Seconds between two reads of the members' records, and between two refreshes of the view.
_UPDATE_S = 0.1


@dataclass(frozen=True, slots=True)
class Event:
    """An event in the group.

    Attributes:
        text: a description of the event.
        settled_s: seconds until the owners of all partitions were those that the assignor requires.
        unowned_partition_seconds: the time without an owner until then, summed over partitions.
    """

    name: str
    text: str
    settled_s: float
    unowned_partition_seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """The demo's result. Messages are counted; `delivered` counts each message once.

    Attributes:
        double_owned: partitions that two members owned at once; `reasons` explains each.
    """

    produced: int
    delivered: int
    lost: int
    duplicates: int
    double_owned: int
    events: tuple[Event, ...]
    reasons: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return not self.lost and not self.double_owned


class DemoRun:
    """One run of the demo. When it ends, even by Ctrl-C, it ends all processes and removes all
    files.
    """

    def __init__(self, *, messages: int, partitions: int, view: View) -> None:
        self._messages = messages
        self._partitions = partitions
        self._view = view
        self._records = MemberRecords(partitions)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, Path] = {}
        self._events: list[tuple[str, str, float, float]] = []
        self._updated_s = 0.0

    def run(self) -> Result:
        """Run the demo. Raises SandboxError if a part of the demo itself fails."""
        with ExitStack() as stack:
            self._sandbox = stack.enter_context(Sandbox(progress=self._view.note))
            stack.callback(self._kill_all)
            self._view.note(f"creating topic {TOPIC} with {self._partitions} partitions")
            self._sandbox.create_topic(TOPIC, partitions=self._partitions)
            connect = self._sandbox.zookeeper_connect
            self._watcher = stack.enter_context(watching(connect, GROUP, TOPIC, self._partitions))
            # The members start while the messages are produced; both take about as long.
            for number in (1, 2, 3):
                self._start(f"m{number}")
            self._view.note(f"producing {self._messages:,} messages")
            self._producer = BackgroundProducer(
                self._sandbox.bootstrap,
                TOPIC,
                partitions=self._partitions,
                messages=self._messages,
            )
            self._run_events()
            return self._judge(self._drain())

    # ---- Events ----------------------------------------------------------------------------------

    def _run_events(self) -> None:
        with self._event("start", "three members join", members=3) as since:
            since(lambda: min(self._watcher.registered_s.values()))
        with self._event("join", "a fourth member joins", members=4) as since:
            self._start("m4")
            since(lambda: self._watcher.registered_s[f"{GROUP}_m4"])
        with self._event("leave", "m1 stops cleanly (SIGTERM)", members=3) as since:
            self._end("m1", signal.SIGTERM)
        text = f"m2 is killed (SIGKILL; session timeout {SESSION_TIMEOUT_S:g} s)"
        with self._event("kill", text, members=2) as since:
            self._end("m2", signal.SIGKILL)

    @contextmanager
    def _event(
        self, name: str, text: str, *, members: int
    ) -> Iterator[Callable[[Callable[[], float]], None]]:
        """Run the body as the cause of an event, and wait until this number of `members` has
        settled.

        The event starts with the body. If the start time is known only later, the body provides a
        function that returns it.
        """
        self._view.event(text)
        now_s = time.monotonic()
        began: list[Callable[[], float]] = [lambda: now_s]
        yield began.append
        if not self._wait(lambda: self._watcher.settled(members)):
            raise SandboxError(
                f"the group has not settled within {_PATIENCE_S:g} s after: {text}",
                where=f"{len(self._watcher.owners)} of {self._partitions} partitions are owned",
                remedy="the machine may be very busy: run the demo again",
            )
        start_s, end_s = began[-1](), self._watcher.last_change_s
        self._events.append((name, text, start_s, end_s))
        self._view.event(f"settled after {end_s - start_s:.2f} s")
        self._pause(_PAUSE_S)

    def _drain(self) -> list[int]:
        """Stop producing, wait until the group has read everything, and stop the members."""
        self._view.event("producing has ended; the group reads the remaining messages")
        produced = self._producer.finish()
        tally, before = self._records.tally, -1
        while before < tally.delivered < sum(produced):  # while there is progress
            before = tally.delivered
            self._wait(lambda: tally.delivered >= sum(produced))
        for name in list(self._processes):
            self._end(name, signal.SIGTERM)
        self._records.read()
        return produced

    def _judge(self, produced: list[int]) -> Result:
        tally, log = self._records.tally, self._watcher.log
        found = list(double_ownership(tally, log, group=GROUP))
        return Result(
            produced=sum(produced),
            delivered=tally.delivered,
            lost=tally.lost(produced),
            duplicates=tally.duplicates,
            double_owned=len({partition for partition, _ in found}),
            events=tuple(
                Event(
                    name,
                    text,
                    round(end_s - start_s, 3),
                    round(
                        unowned_partition_seconds(
                            log, self._partitions, start_s=start_s, end_s=end_s
                        ),
                        3,
                    ),
                )
                for name, text, start_s, end_s in self._events
            ),
            reasons=tuple(f"{TOPIC}-{partition}: {reason}" for partition, reason in found),
        )

    # ---- Members ---------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        notes = self._sandbox.directory / f"{name}.notes"
        self._logs[name] = self._sandbox.directory / f"{name}.log"
        self._records.follow(name, notes)
        # At this rate the members need about as long to read everything as the events take.
        rate = max(2000.0, self._messages / 25)
        member = Member(
            zookeeper=self._sandbox.zookeeper_connect,
            group=GROUP,
            topic=TOPIC,
            name=name,
            notes=str(notes),
            rate=rate,
            batch=round(rate / 80),
            session_timeout_s=SESSION_TIMEOUT_S,
        )
        with self._logs[name].open("wb") as log:
            # The member gets its own session, so that Ctrl-C reaches only the demo. If the demo
            # dies, the pipe closes and the member ends.
            self._processes[name] = subprocess.Popen(
                member.command(), stdin=subprocess.PIPE, stderr=log, start_new_session=True
            )

    def _end(self, name: str, number: signal.Signals) -> None:
        process = self._processes.pop(name)
        process.send_signal(number)
        limit_s = time.monotonic() + _PATIENCE_S
        while process.poll() is None and time.monotonic() < limit_s:
            self._update()
            time.sleep(0.01)
        process.kill()
        process.wait()
        if process.returncode != (-number if number is signal.SIGKILL else 0):
            raise self._failure(name, process.returncode)

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def _failure(self, name: str, code: int) -> SandboxError:
        lines = self._logs[name].read_text(errors="replace").splitlines()
        return SandboxError(
            f"member {name} ended with exit code {code}",
            where=lines[-1] if lines else "",
            remedy="this is a bug in zkconsumer: report it with that line",
        )

    # ---- Waiting ---------------------------------------------------------------------------------

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Return whether `condition` becomes true in time; check it after each group change."""
        limit_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < limit_s:
            with self._watcher.changed:
                if condition():
                    return True
                self._watcher.changed.wait(_UPDATE_S)
            self._update()
        return False

    def _pause(self, pause_s: float) -> None:
        limit_s = time.monotonic() + pause_s
        while time.monotonic() < limit_s:
            time.sleep(_UPDATE_S)
            self._update()

    def _update(self) -> None:
        """Read the records and draw, at most ten times a second. Raise errors of background threads
        and processes.
        """
        if time.monotonic() < self._updated_s + _UPDATE_S:
            return
        self._updated_s = time.monotonic()
        self._records.read()
        if self._watcher.error is not None:
            raise self._watcher.error
        if self._producer.failed:
            raise SandboxError("a message was not accepted", where=self._producer.failed)
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise self._failure(name, process.returncode)
        self._view.draw(
            Frame(
                owners=self._watcher.owner_names(),
                members=sorted(self._processes),
                delivered=tuple(self._records.tally.unique),
                produced=tuple(self._producer.acknowledged),
            )
        )
