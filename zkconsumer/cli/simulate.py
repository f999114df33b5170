"""`zkconsumer simulate`: run a simulated group and print each event as it happens."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zkconsumer.cli import Exit
from zkconsumer.protocol.assignors import Strategy

if TYPE_CHECKING:
    from zkconsumer.sim.lessons import Lesson
    from zkconsumer.sim.scenarios import NarratedRun, Scenario

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Peers(StrEnum):
    """The members of the group: `sim.scenarios.Peers`, so that --help needs no simulator."""

    OURS = "ours"
    JVM = "jvm"
    MIXED = "mixed"


class Output(StrEnum):
    """Output format."""

    STORY = "story"
    JSONL = "jsonl"
    HTML = "html"


@app.command()
def simulate(
    *,
    scenario: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of a scenario or of a lesson; see --list."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seed of a random run; the same seed gives the same run."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the scenarios and lessons.")] = False,
    members: Annotated[
        int, typer.Option(min=1, max=50, help="Number of members of a random run.")
    ] = 5,
    partitions: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of partitions of a random run.")
    ] = 12,
    strategy: Annotated[
        Strategy, typer.Option(help="partition.assignment.strategy of a random run.")
    ] = Strategy.RANGE,
    peers: Annotated[
        Peers | None,
        typer.Option(help="Members: zkconsumer's (ours, the default), Kafka's (jvm), or mixed."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="A fault that a random run may inject once; repeatable."),
    ] = None,
    output: Annotated[
        Output,
        typer.Option(help="Output format: a timeline, a trace (jsonl), or a standalone page."),
    ] = Output.STORY,
) -> None:
    """Run a group on a simulated ZooKeeper, and print what its members do.

    zkconsumer's members run their production code in virtual time. A run of minutes takes a second
    and is the same each time. With --output jsonl the output is a trace, which `zkconsumer trace
    check -` replays. Exit code 6: a guarantee was broken.

    Example: zkconsumer simulate --seed 7 --peers mixed
    """
    from zkconsumer.sim.lessons import LESSONS
    from zkconsumer.sim.scenarios import SCENARIOS, names_of, run_scenario, run_seed
    from zkconsumer.sim.scenarios import Peers as Kinds

    if list_:
        _list()
        return
    if scenario is not None and scenario in LESSONS:
        _teach(LESSONS[scenario](), output)
        return
    if scenario is not None:
        one = SCENARIOS[_known(scenario)]
        count = one.plan.members
        jvm = None if peers is None else Kinds(peers.value).jvm(count)
        if output is Output.HTML:
            _play(one if jvm is None else replace(one, jvm=jvm))
            return
        show = _Show(one.title, names_of(count), output)
        ended = run_scenario(one, jvm=jvm, emit=show.add)
    else:
        number = 1 if seed is None else seed
        show = _Show(f"seed {number}", names_of(members), output)
        ended = run_seed(
            number,
            members=members,
            partitions=partitions,
            strategy=strategy,
            peers=Kinds((peers or Peers.OURS).value),
            kinds=_faults(fault),
            emit=show.add,
        )
    show.end(ended)
    if ended.violation:
        raise typer.Exit(Exit.FOUND)


def _play(scenario: Scenario) -> None:
    """Print a page that plays a scenario: step, go back, and scrub without a server."""
    from zkconsumer.lab.engine import opened
    from zkconsumer.lab.runs import open_scenario
    from zkconsumer.lab.site import player, recorded

    print(player(recorded(opened(open_scenario(1, scenario))), scenario.title), end="")


def _known(scenario: str) -> str:
    """Return the name of a scenario from its name or title. Raises ConfigError."""
    from zkconsumer.errors import ConfigError
    from zkconsumer.sim.scenarios import SCENARIOS

    for name, one in SCENARIOS.items():
        if scenario in (name, one.title):
            return name
    raise ConfigError(
        f"no scenario is called {scenario!r}",
        where="--scenario",
        remedy="`zkconsumer simulate --list` lists the scenarios",
    )


def _faults(named: list[str] | None) -> list[Any]:
    from zkconsumer.errors import ConfigError
    from zkconsumer.sim.scenarios import DEFAULT_FAULTS, NAMES

    unknown = [name for name in named or () if name not in NAMES]
    if unknown:
        raise ConfigError(
            f"no fault is called {unknown[0]!r}",
            where="--fault",
            remedy=f"use one of {', '.join(NAMES)}",
        )
    return [NAMES[name] for name in named] if named is not None else list(DEFAULT_FAULTS)


def _list() -> None:
    from zkconsumer.sim.lessons import LESSONS
    from zkconsumer.sim.scenarios import SCENARIOS

    for name, one in SCENARIOS.items():
        print(f"{name:<46}{one.lesson}")
    for name, lesson in LESSONS.items():
        print(f"{name:<46}{(lesson.__doc__ or '').splitlines()[0]}")


class _Show:
    """Prints entries as they arrive, or a page with all of them at the end."""

    def __init__(self, title: str, members: list[str], output: Output) -> None:
        from zkconsumer.protocol import paths
        from zkconsumer.trace.story import Lanes

        self._title, self._members, self._output = title, members, output
        self._root = paths.ids("g").removesuffix("ids")
        self._lanes = Lanes(members, root=self._root)
        self._entries: list[dict[str, Any]] = []
        if output is Output.STORY:
            print(self._lanes.head())

    def add(self, entry: dict[str, Any]) -> None:
        from zkconsumer.trace import text

        match self._output:
            case Output.STORY:
                self._print(self._lanes.tell(entry))
            case Output.JSONL:
                print(text(entry))
            case Output.HTML:
                self._entries.append(entry)

    def end(self, ended: NarratedRun) -> None:
        from zkconsumer.trace.page import page

        if self._output is Output.HTML:
            print(page(self._title, self._entries, self._members, root=self._root), end="")
        self._print(self._lanes.end())
        lines = [
            f"{ended.seconds:.1f} virtual seconds: {ended.deliveries} messages delivered, "
            f"{ended.duplicates} of them redelivered; {ended.unowned} partitions without an owner",
            *([f"the group has not settled: {ended.rest}"] if ended.rest else []),
            *([f"a guarantee is broken: {ended.violation}"] if ended.violation else []),
        ]
        typer.echo("\n" + "\n".join(lines), err=self._output is not Output.STORY)

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            print(line, flush=True)


# ---- lessons ------------------------------------------------------------------------------------


def _teach(lessons: Iterable[Lesson], output: Output) -> None:
    """Print the rows of a lesson as they arrive, or a page at the end."""
    shown = 0
    last = None
    for last in lessons:
        for row in last.rows[shown:]:
            if output is Output.STORY:
                if not shown:
                    print(f"{last.title}\n")
                    _print_row(last.head, last.head)
                _print_row(last.head, row)
            elif output is Output.JSONL:
                print(json.dumps(dict(zip(last.head, row, strict=True))), flush=True)
            shown += 1
    if last is None:
        return
    if output is Output.STORY:
        print("\n" + "\n".join(last.words))
    elif output is Output.HTML:
        print(_table(last), end="")


def _print_row(head: tuple[str, ...], row: tuple[object, ...]) -> None:
    cells = [
        f"{cell!s:<{max(len(name), 22 if at == 0 else 0)}}"
        for at, (name, cell) in enumerate(zip(head, row, strict=True))
    ]
    print("  ".join(cells).rstrip(), flush=True)


def _table(lesson: Lesson) -> str:
    from html import escape

    def line(cells: Iterable[object], tag: str) -> str:
        inner = "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells)
        return f"<tr>{inner}</tr>\n"

    rows = "".join(line(row, "td") for row in lesson.rows)
    words = "".join(f"<p>{escape(text)}</p>\n" for text in lesson.words)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>'
        f"{escape(lesson.title)}</title></head>\n<body><h1>{escape(lesson.title)}</h1>\n"
        f"<table border>{line(lesson.head, 'th')}{rows}</table>\n{words}</body></html>\n"
    )
