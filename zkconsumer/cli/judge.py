"""`zkconsumer judge PROGRAM`: judge a program that plays members of a simulated group."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from zkconsumer.cli.exits import Exit
from zkconsumer.cli.options import Format, operator
from zkconsumer.cli.output import SECTIONS, Align, Column, Output, Progress, safe, say, write
from zkconsumer.errors import ConfigError, quoted, shell_word

if TYPE_CHECKING:
    from zkconsumer.judge.assignors import AssignorScore
    from zkconsumer.judge.judging import (
        AnyVerdict,
        Challenge,
        Failure,
        GroupScore,
        Verdict,
    )
    from zkconsumer.judge.ladders import Ladder
    from zkconsumer.protocol.model import JsonObject

app = typer.Typer(add_completion=False, rich_markup_mode=None)

FORMATS: Final = (*SECTIONS, Output.CSV)
LADDER_COLUMNS: Final = (Column("challenge"), Column("lesson"), Column("statement"))
_FAILURE: Final = (
    Column("promise"),
    Column("reason"),
    Column("seed", align=Align.RIGHT),
    Column("schedule"),
    Column("story", type="strings", show="\n".join),
)
ASSIGNOR_SCORES: Final = (
    Column("assignor"),
    Column("assignments", align=Align.RIGHT),
    Column("uneven", align=Align.RIGHT, type="number"),
    Column("moved", align=Align.RIGHT, type="number"),
    Column("needless", align=Align.RIGHT, type="number"),
)
ASSIGNOR_COLUMNS: Final = (*ASSIGNOR_SCORES, Column("result"), *_FAILURE)
COLUMNS: Final = (
    Column("challenge"),
    Column("result"),
    Column("schedules", align=Align.RIGHT),
    Column("states", align=Align.RIGHT),
    Column("seconds", align=Align.RIGHT, type="number"),
    Column("unowned_s", align=Align.RIGHT, type="number"),
    Column("moved", align=Align.RIGHT),
    Column("requests", align=Align.RIGHT),
    Column("redelivered", align=Align.RIGHT),
    *_FAILURE,
)
_WIDTH: Final = 100


class _LadderName(Enum):
    """The kinds of members; `judge.ladders.LADDERS` has the same names."""

    ZOOKEEPER = "zookeeper"
    CLASSIC = "classic"


_ASSIGNOR: Final = "assignor"
"""The ladder of `--assignor`."""

_Schedule = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Run only this schedule, in the form that a verdict prints."),
]
_Schedules = Annotated[
    int,
    typer.Option(
        min=1, help="Maximum number of schedules of a challenge; their numbers begin at 1."
    ),
]


@app.command()
@operator(formats=FORMATS)
def judge(
    format_: Format,
    *,
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROGRAM [ARGUMENT]...",
            help="The program, and its arguments; a .py, .js or .java file needs no interpreter.",
        ),
    ] = None,
    challenge: Annotated[
        str | None, typer.Option(metavar="NAME", help="One challenge; else all, until one fails.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the challenges.")] = False,
    ladder: Annotated[
        _LadderName | None,
        typer.Option(help="The challenges for members of this protocol (default zookeeper)."),
    ] = None,
    assignor: Annotated[
        bool,
        typer.Option(
            "--assignor", help="Judge an assignor instead of a member, and compare it with Kafka's."
        ),
    ] = False,
    sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox", help="Run the program on real servers, in a fixed sequence of steps."
        ),
    ] = False,
    examples: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Copy the example programs into a directory.")
    ] = None,
    messages: Annotated[
        bool, typer.Option("--messages", help="Print the JSON Schemas of the messages.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Run only the schedule with this number."),
    ] = None,
    schedule: _Schedule = None,
    schedules: _Schedules = 200,
    seconds: Annotated[
        float,
        typer.Option(min=0.1, metavar="S", help="Seconds after which no further schedule begins."),
    ] = 10.0,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the failing schedule as a trace, for the lab."),
    ] = None,
) -> None:
    """Judge a program of yours that plays members of a group, in any language.

    The program reads and writes JSON lines (`zkconsumer docs judge`). The judge runs it in a
    simulated ZooKeeper with faults, in virtual time, and checks the promises of a member. A
    schedule that breaks a promise is shrunk, and shown as a story. Crashes, hangs, wrong messages
    and floods of the program are verdicts, too. Exit code 6: a promise was broken.

    Example: zkconsumer judge ./my_member.py --challenge claim
    """
    kind = _kind(ladder, challenge, is_assignor=assignor)
    if examples is not None:
        _copy_examples(examples)
    elif messages:
        format_ = Format(output=Output.JSON) if format_.is_for_people else format_
        format_.write_document(_ladder(kind).vocabulary.schemas())
    elif list_:
        _list(format_, _ladder(kind))
    elif sandbox:
        _refuse_together("--sandbox", {"--seed": seed, "--schedule": schedule, "--trace": trace})
        _judge_really(program or [], kind, challenge)
    else:
        if schedule is not None:
            _refuse_together("--schedule", {"--seed": seed})
        first, count = (1, schedules) if seed is None else (seed, 1)
        docket = _Docket(_chosen(challenge, _ladder(kind)), first, count, seconds, schedule)
        judging = _judge_assignor if kind == _ASSIGNOR else _judge
        _end(judging(format_, program or [], docket), trace)


def _end(failure: Failure | None, trace: Path | None) -> None:
    """Write the trace of a failure if it is wanted, and end the command with its exit code."""
    if failure is not None:
        if trace is not None:
            _write_trace(trace, failure)
        raise typer.Exit(Exit.FOUND)


def _ladder(name: str) -> Ladder:
    from zkconsumer.judge.ladders import LADDERS

    return LADDERS[name]


def _kind(ladder: _LadderName | None, challenge: str | None, *, is_assignor: bool) -> str:
    """Return the name of the ladder that the options and the challenge mean. Raises ConfigError."""
    wanted = _ASSIGNOR if is_assignor else None if ladder is None else ladder.value
    if challenge is None:
        return wanted or _LadderName.ZOOKEEPER.value
    from zkconsumer.judge.ladders import LADDERS

    known = LADDERS if wanted is None else {wanted: LADDERS[wanted]}
    for name, one in known.items():
        if challenge in one.challenges:
            return name
    where = f"no challenge of the ladder {wanted}" if wanted else "no challenge"
    raise ConfigError(
        f"{where} is called {quoted(challenge)}",
        where="--challenge",
        remedy=f"use one of {', '.join(key for it in known.values() for key in it.challenges)}",
    )


def _chosen(name: str | None, ladder: Ladder) -> Sequence[Challenge]:
    """Return one challenge of a ladder, or all of them."""
    return list(ladder.challenges.values()) if name is None else [ladder.challenges[name]]


def _refuse_together(option: str, others: Mapping[str, object]) -> None:
    """Refuse options that have no effect beside another one. Raises ConfigError."""
    for name, value in others.items():
        if value is not None:
            raise ConfigError(
                f"{option} does not use {name}", where=name, remedy=f"leave out {name}"
            )


def _list(format_: Format, ladder: Ladder) -> None:
    if not format_.is_for_people:
        rows = [
            {"challenge": one.name, "lesson": one.title, "statement": one.statement}
            for one in ladder.challenges.values()
        ]
        write(rows, LADDER_COLUMNS, format_.output)
        return
    for number, one in enumerate(ladder.challenges.values(), 1):
        print(f"{number:>2}. {one.name}: {one.title}")
        print(textwrap.indent(textwrap.fill(one.statement, _WIDTH - 4), "    "))


def _copy_examples(directory: Path) -> None:
    """Copy the examples of docs/judge.md. Raises ConfigError if a file exists already."""
    from importlib.resources import files

    try:
        directory.mkdir(parents=True, exist_ok=True)
        for one in (files("zkconsumer") / "docs" / "examples" / "judge").iterdir():
            if one.is_file():
                with (directory / one.name).open("x", encoding="utf-8") as copied:
                    copied.write(one.read_text(encoding="utf-8"))
                print(directory / one.name)
    except OSError as error:
        raise ConfigError(
            f"the examples cannot be written: {error.strerror}",
            where=str(error.filename or directory),
            remedy="name a new directory",
        ) from error


class _Docket(NamedTuple):
    """What is judged: challenges, by the schedules from `first` on, or by a written one."""

    challenges: Sequence[Challenge]
    first: int
    schedules: int
    seconds: float
    written: str | None


def _judge(format_: Format, words: Sequence[str], docket: _Docket) -> Failure | None:
    """Judge the program by each challenge until one fails; return this failure."""
    if docket.written is not None and len(docket.challenges) > 1:
        raise ConfigError(
            "a schedule needs the name of its challenge",
            where="--schedule",
            remedy="give --challenge",
        )
    verdicts: list[Verdict[GroupScore]] = []
    with _command(words) as command:
        for challenge in docket.challenges:
            verdicts.append(_verdict(challenge, command, docket))
            if format_.is_for_people:
                _print(verdicts[-1], _summary(verdicts[-1], docket), words)
            if not verdicts[-1].passed:
                break
    if not format_.is_for_people:
        write([_row(one) for one in verdicts], COLUMNS, format_.output)
    return verdicts[-1].failure


def _judge_assignor(format_: Format, words: Sequence[str], docket: _Docket) -> Failure | None:
    """Judge an assignor, and show its score beside those of Kafka's; return its failure."""
    from zkconsumer.judge.assignors import BESIDE, by_kafka, total_of
    from zkconsumer.sim.kernel.search import Decisions

    with _command(words) as command:
        verdict = _verdict(docket.challenges[0], command, docket)
    rows = [{**_score_row(words[0], verdict.score), **_ending(verdict.failure)}]
    if verdict.passed and docket.written is None:
        numbers = range(docket.first, docket.first + verdict.schedules)
        for one in BESIDE:
            drawn = (Decisions(random.Random(number)) for number in numbers)
            score = total_of(by_kafka(one), drawn)
            rows.append({**_score_row(one.value, score), **_ending(None)})
    if not format_.is_for_people:
        write(rows, ASSIGNOR_COLUMNS, format_.output)
        return verdict.failure
    _print(verdict, _count(verdict, docket), words)
    if verdict.passed:
        print("\nOn average for each assignment:\n")
        write(rows, ASSIGNOR_SCORES, format_.output)
    return verdict.failure


def _judge_really(words: Sequence[str], kind: str, challenge: str | None) -> None:
    """Run the program on real servers, and say which promise it breaks, if it breaks one.

    Raises ConfigError if it is no member of a group in ZooKeeper, or if no course fits the
    challenge.
    """
    from zkconsumer.judge.process import ProcessProgram
    from zkconsumer.judge.real import COURSES, MEMBERS, USUAL, judge
    from zkconsumer.sim.scenarios import names_of

    course = USUAL if challenge is None else challenge
    if course not in COURSES or challenge == USUAL:
        raise ConfigError(
            f"{quoted(challenge or '')} is not a challenge on real servers",
            where="--challenge",
            remedy=f"leave out --challenge, or use one of {', '.join(filter(None, COURSES))}",
        )
    if kind != _LadderName.ZOOKEEPER.value:
        raise ConfigError(
            "only members of groups in ZooKeeper can run on real servers",
            where="--sandbox",
            remedy="leave out --sandbox, or --ladder and --assignor",
        )
    with _command(words) as command, ExitStack() as stack:
        make = partial(ProcessProgram, command=command)
        programs = [stack.enter_context(make(name)) for name in names_of(MEMBERS)]
        broken = judge(programs, say, course)
    print("sandbox: passed" if broken is None else f"sandbox: FAILED\n\n{safe(str(broken))}")
    if broken is not None:
        raise typer.Exit(Exit.FOUND)


@contextmanager
def _command(words: Sequence[str]) -> Iterator[list[str]]:
    """Return the command that starts the program. Raises ConfigError."""
    from zkconsumer.judge.commands import runnable

    if not words:
        raise ConfigError(
            "there is no program to judge", where="PROGRAM", remedy="give one, such as ./mine.py"
        )
    with runnable(words) as command:
        yield command


def _verdict(challenge: Challenge, command: Sequence[str], docket: _Docket) -> AnyVerdict:
    from zkconsumer.judge.judging import EXHAUSTIVE_S
    from zkconsumer.judge.ladders import court, ladder_of
    from zkconsumer.judge.process import ProcessProgram

    progress = Progress(f"schedules of {challenge.name}")
    vocabulary = ladder_of(challenge).vocabulary
    make = partial(ProcessProgram, command=command, vocabulary=vocabulary)
    with court(challenge, make) as bench, progress.until_done():
        if docket.written is not None:
            return bench.replay(docket.written)
        return bench.judge(
            seed=docket.first,
            schedules=docket.schedules,
            limit_s=docket.seconds,
            exhaustive_s=EXHAUSTIVE_S if docket.schedules > 1 else 0.0,
            progress=lambda done: progress.advanced(done, docket.schedules),
        )


def _row(verdict: Verdict[GroupScore]) -> JsonObject:
    return {
        "challenge": verdict.challenge.name,
        "schedules": verdict.schedules,
        "states": verdict.states,
        "seconds": round(verdict.seconds, 1),
        **asdict(verdict.score),
        **_ending(verdict.failure),
    }


def _ending(failure: Failure | None) -> JsonObject:
    """Return the fields that say whether a program has passed, and why not."""
    return {
        "result": "passed" if failure is None else "failed",
        "promise": "" if failure is None else failure.violation.invariant,
        "reason": "" if failure is None else str(failure.violation),
        "seed": None if failure is None else failure.seed,
        "schedule": "" if failure is None else failure.schedule,
        "story": [] if failure is None else list(failure.story),
    }


def _score_row(name: str, score: AssignorScore) -> JsonObject:
    """Return an assignor's averages for each assignment."""
    count = max(1, score.assignments)
    return {
        "assignor": name,
        "assignments": score.assignments,
        "uneven": round(score.uneven / count, 2),
        "moved": round(score.moved / count, 2),
        "needless": round(score.needless / count, 2),
    }


def _count(verdict: AnyVerdict, docket: _Docket) -> str:
    """Return how many schedules were run, and why not more."""
    count = f"{verdict.schedules}, in {verdict.seconds:.1f} s"
    if docket.written is not None or verdict.schedules == docket.schedules:
        return count
    return f"{count} (--seconds {5 * docket.seconds:g} runs more of the {docket.schedules})"


def _summary(verdict: Verdict[GroupScore], docket: _Docket) -> str:
    """Return what the schedules of a group have cost."""
    score, count = verdict.score, max(1, verdict.schedules)
    return (
        f"{_count(verdict, docket)}; on average "
        f"{score.unowned_s / count:.2f} partition-seconds without an owner, "
        f"{score.moved / count:.2f} partitions moved, "
        f"{score.requests / count:.1f} requests, "
        f"{score.redelivered / count:.2f} messages redelivered"
    ) + (
        f"; then the first actions in every order: {verdict.states} states"
        if verdict.states
        else ""
    )


def _print(verdict: AnyVerdict, summary: str, words: Sequence[str]) -> None:
    challenge, failure = verdict.challenge, verdict.failure
    result = "passed" if failure is None else "FAILED"
    print(f"{challenge.name}: {result} ({challenge.title})")
    if failure is None:
        print(f"  schedules: {summary}")
        return
    print(textwrap.fill(challenge.statement, _WIDTH, initial_indent="  ", subsequent_indent="  "))
    print("\nThe shortest failing schedule that was found:\n")
    for line in failure.story:
        print(safe(line))
    print(f"\n{safe(str(failure.violation))}")
    if sentence := _sentence(verdict.challenge, failure):
        print(f"The promise: {sentence}")
    print(textwrap.fill(f"The lesson: {challenge.lesson}", _WIDTH))
    kind = "--assignor " if challenge.name in _ladder(_ASSIGNOR).challenges else ""
    command = " ".join(map(shell_word, words))
    again = f"zkconsumer judge {kind}{command} --challenge {challenge.name}"
    again += (
        f" --schedule {failure.schedule}" if failure.seed is None else f" --seed {failure.seed}"
    )
    print(f"\nAgain: {again}")
    if challenge.name in _ladder(_LadderName.ZOOKEEPER.value).challenges:
        print(f"In the lab: {again} --trace run.jsonl; zkconsumer lab --trace run.jsonl")


def _sentence(challenge: Challenge, failure: Failure) -> str:
    """Return the broken promise in words."""
    from zkconsumer.judge.ladders import ladder_of

    promises = ladder_of(challenge).promises
    found = [one.sentence for one in promises if one.name == failure.violation.promise]
    return found[0] if found else ""


def _write_trace(path: Path, failure: Failure) -> None:
    from zkconsumer.trace import text

    lines = [text(entry) + "\n" for entry in failure.entries]
    try:
        path.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the trace cannot be written: {error.strerror}",
            where=str(path),
            remedy="name a file in a directory that you may write",
        ) from error
    say(f"The trace is in {path}.")
