"""`zkconsumer simulate`: run a simulated group and print each event as it happens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from zkconsumer.cli.exits import Exit
from zkconsumer.cli.options import Format, operator
from zkconsumer.cli.output import Column, Output, write, write_document
from zkconsumer.errors import ConfigError
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy

if TYPE_CHECKING:
    from zkconsumer.sim.kernel.stories import StoryRun
    from zkconsumer.sim.lessons import Lesson
    from zkconsumer.sim.plan import Do
    from zkconsumer.sim.scenarios import Scenario

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Peers(StrEnum):
    """The kinds of members in the group."""

    OURS = "ours"
    JVM = "jvm"
    MIXED = "mixed"  # every second member is a JVM member

    def jvm(self, members: int) -> frozenset[int]:
        """Return the numbers of the JVM members."""
        match self:
            case Peers.OURS:
                return frozenset()
            case Peers.JVM:
                return frozenset(range(members))
            case Peers.MIXED:
                return frozenset(range(1, members, 2))


class Protocol(StrEnum):
    """Group protocol: on ZooKeeper with JVM or zkconsumer members, or with a coordinator."""

    ZOOKEEPER_JVM = "zookeeper-jvm"
    ZOOKEEPER = "zookeeper"
    CLASSIC_EAGER = "classic-eager"
    CLASSIC_COOPERATIVE = "classic-cooperative"
    CONSUMER = "consumer"


FORMATS: Final = (
    Output.TABLE,
    Output.STORY,
    Output.JSON,
    Output.JSONL,
    Output.YAML,
    Output.CSV,
    Output.HTML,
)
LIST_COLUMNS: Final = (Column("scenario"), Column("what"))


@app.command()
@operator(formats=FORMATS)
def simulate(
    format_: Format,
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
    protocol: Annotated[
        Protocol,
        typer.Option(
            help="Group protocol: zookeeper or zookeeper-jvm, or a later one of Kafka:"
            " classic-eager, classic-cooperative, or consumer (KIP-848)."
        ),
    ] = Protocol.ZOOKEEPER,
) -> None:
    """Run a group on a simulated ZooKeeper, and print what its members do.

    zkconsumer members run their production code in virtual time. A run of minutes takes a second
    and is the same each time. A table is a timeline with a column for each member. With --output
    jsonl the output is a trace, which `zkconsumer trace check -` replays; html is a page that plays
    the run. Exit code 6: a guarantee was broken.

    Example: zkconsumer simulate --seed 7 --peers mixed
    """
    output = format_.output
    if protocol not in (Protocol.ZOOKEEPER, Protocol.ZOOKEEPER_JVM):
        _check_unused(strategy=strategy is not Strategy.RANGE, peers=peers, fault=fault)
        if list_:
            _list_later(output)
        else:
            _run_coordinated(protocol.value, scenario, output, _Group(seed, members, partitions))
        return
    if protocol is Protocol.ZOOKEEPER_JVM:
        peers = peers or Peers.JVM
    if list_:
        _list(output)
    elif scenario is not None:
        _run_scenario(scenario, peers, output)
    else:
        from zkconsumer.sim.scenarios import names_of, run_seed

        number = 1 if seed is None else seed
        printer = _Printer(f"seed {number}", names_of(members), output)
        ended = run_seed(
            number,
            members=members,
            partitions=partitions,
            strategy=strategy,
            jvm=(peers or Peers.OURS).jvm(members),
            kinds=_faults(fault),
            emit=printer.add,
        )
        printer.end(ended)


def _run_scenario(scenario: str, peers: Peers | None, output: Output) -> None:
    """Print a scenario, a random run or a lesson of a group on ZooKeeper."""
    from zkconsumer.sim.lessons import LESSONS
    from zkconsumer.sim.scenarios import SCENARIOS, names_of, run_scenario

    if scenario in LESSONS:
        _run_lesson(LESSONS[scenario](), output)
        return
    one = SCENARIOS[_scenario_name(scenario)]
    count = one.plan.members
    jvm = None if peers is None else peers.jvm(count)
    if output is Output.HTML:
        _print_player(one if jvm is None else replace(one, jvm=jvm))
        return
    printer = _Printer(one.title, names_of(count), output)
    printer.end(run_scenario(one, jvm=jvm, emit=printer.add))


def _check_unused(**given: object) -> None:
    """Refuse options that only a group on ZooKeeper has."""

    for name, value in given.items():
        if value:
            raise ConfigError(
                f"--{name} is an option of groups on ZooKeeper",
                where="--protocol",
                remedy=f"omit --{name}, or use --protocol zookeeper",
            )


class _Group(NamedTuple):
    """A random run of a group with a coordinator."""

    seed: int | None
    members: int
    partitions: int


def _list_later(output: Output) -> None:
    from zkconsumer.sim.coordinated.stories import STORIES

    _write_list({name: one.lesson for name, one in STORIES.items()}, output)


def _run_coordinated(protocol: str, scenario: str | None, output: Output, group: _Group) -> None:
    """Print a scenario or a random run of a group with a coordinator."""
    from zkconsumer.sim.coordinated.stories import STORIES, run_story, run_story_of_seed
    from zkconsumer.sim.scenarios import names_of

    if scenario is not None:
        story = STORIES[_story_name(scenario)]
        printer = _Printer(story.title, names_of(story.members), output)
        ended = run_story(story, protocol, printer.add)
    else:
        number = 1 if group.seed is None else group.seed
        printer = _Printer(f"seed {number}", names_of(group.members), output)
        ended = run_story_of_seed(
            number,
            protocol,
            members=group.members,
            partitions=group.partitions,
            emit=printer.add,
        )
    printer.end(ended)


def _story_name(scenario: str) -> str:
    """Return the name of a scenario of the later protocols. Raises ConfigError."""
    from zkconsumer.sim.coordinated.stories import STORIES, WITHOUT

    for name, one in STORIES.items():
        if scenario in (name, one.title):
            return name
    why = f": {WITHOUT[scenario]}" if scenario in WITHOUT else ""
    raise ConfigError(
        f"no scenario of this protocol is called {scenario!r}{why}",
        where="--scenario",
        remedy="`zkconsumer simulate --protocol NAME --list` lists the scenarios",
    )


def _print_player(scenario: Scenario) -> None:
    """Print a page that plays a scenario: step, go back, and scrub without a server."""
    from zkconsumer.lab.engine import opened
    from zkconsumer.lab.runs import open_scenario
    from zkconsumer.lab.site import player, recorded

    print(player(recorded(opened(open_scenario(1, scenario))), scenario.title), end="")


def _scenario_name(scenario: str) -> str:
    """Return the name of a scenario from its name or title. Raises ConfigError."""
    from zkconsumer.sim.scenarios import SCENARIOS

    for name, one in SCENARIOS.items():
        if scenario in (name, one.title):
            return name
    raise ConfigError(
        f"no scenario is called {scenario!r}",
        where="--scenario",
        remedy="`zkconsumer simulate --list` lists the scenarios",
    )


def _faults(named: list[str] | None) -> list[Do]:
    from zkconsumer.sim.scenarios import DEFAULT_FAULTS, NAMES

    unknown = [name for name in named or () if name not in NAMES]
    if unknown:
        raise ConfigError(
            f"no fault is called {unknown[0]!r}",
            where="--fault",
            remedy=f"use one of {', '.join(NAMES)}",
        )
    return [NAMES[name] for name in named] if named is not None else list(DEFAULT_FAULTS)


def _list(output: Output) -> None:
    from zkconsumer.sim.lessons import LESSONS
    from zkconsumer.sim.scenarios import SCENARIOS

    lessons = {name: (one.__doc__ or "").splitlines()[0] for name, one in LESSONS.items()}
    _write_list({name: one.lesson for name, one in SCENARIOS.items()} | lessons, output)


def _write_list(scenarios: Mapping[str, str], output: Output) -> None:
    """Write the names of the scenarios, and what each scenario shows. Raises ConfigError for a
    page."""

    if output is Output.HTML:
        raise ConfigError(
            "the list has no page", where="--output html", remedy="use --output table or json"
        )
    if output in _TIMELINES:
        for name, what in scenarios.items():
            print(f"{name:<46}{what}")
        return
    rows = [{"scenario": name, "what": what} for name, what in scenarios.items()]
    write(rows, LIST_COLUMNS, output)


_TIMELINES: Final = (Output.TABLE, Output.STORY)


class _Printer:
    """Prints entries as they arrive, or a page with all of them at the end."""

    def __init__(self, title: str, members: list[str], output: Output) -> None:
        from zkconsumer.trace.story import Lanes

        if output is Output.CSV:
            raise ConfigError(
                "the events of a run have different fields, which CSV cannot hold",
                where="--output csv",
                remedy="use --output jsonl",
            )
        self._title, self._members, self._output = title, members, output
        self._root = paths.ids("g").removesuffix("ids")
        self._lanes = Lanes(members, root=self._root)
        self._entries: list[dict[str, object]] = []
        if output in _TIMELINES:
            print(self._lanes.head())

    def add(self, entry: dict[str, object]) -> None:
        from zkconsumer.trace import text

        match self._output:
            case Output.TABLE | Output.STORY:
                self._print(self._lanes.lines_for(entry))
            case Output.JSONL:
                print(text(entry))
            case _:
                self._entries.append(entry)

    def end(self, ended: StoryRun) -> None:
        """Print the remaining entries and the result. Exits with code 6 if a guarantee was
        broken."""
        from zkconsumer.trace.page import page

        if self._output is Output.HTML:
            print(page(self._title, self._entries, self._members, root=self._root), end="")
        elif self._output in (Output.JSON, Output.YAML):
            write_document(self._entries, self._output)
        self._print(self._lanes.end())
        lines = [
            f"{ended.seconds:.1f} virtual seconds: {ended.deliveries} messages delivered, "
            f"{ended.duplicates} of them redelivered; {ended.unowned} partitions without an owner",
            *([f"the group has not settled: {ended.rest}"] if ended.rest else []),
            *([f"a guarantee is broken: {ended.violation}"] if ended.violation else []),
        ]
        typer.echo("\n" + "\n".join(lines), err=self._output not in _TIMELINES)
        if ended.violation:
            raise typer.Exit(Exit.FOUND)

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            print(line, flush=True)


# ---- lessons ------------------------------------------------------------------------------------


def _run_lesson(lessons: Iterable[Lesson], output: Output) -> None:
    """Print the rows of a lesson as they arrive, or a document or a page at the end."""
    shown = 0
    last = None
    for last in lessons:
        for row in last.rows[shown:]:
            if output in _TIMELINES:
                if not shown:
                    print(f"{last.title}\n")
                    _print_row(last.head, last.head)
                _print_row(last.head, row)
            elif output is Output.JSONL:
                print(json.dumps(dict(zip(last.head, row, strict=True))), flush=True)
            shown += 1
    if last is None:
        return
    if output in _TIMELINES:
        print("\n" + "\n".join(last.words))
    elif output is Output.HTML:
        print(_table(last), end="")
    elif output is not Output.JSONL:
        rows = [dict(zip(last.head, row, strict=True)) for row in last.rows]
        write(rows, [Column(name) for name in last.head], output)


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
