"""`zkconsumer assign`: who would get what, in a live group or in a file of cases."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zkconsumer.errors import ConfigError, UnknownGroupError

if TYPE_CHECKING:
    from zkconsumer.core.computing import Failure, Group, Part
    from zkconsumer.zk.survey import Survey

AUTO = "auto"
HEAD = ("TOPIC", "PARTITION", "THREAD", "OWNER")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Output(Enum):
    """How the result is written."""

    TABLE = "table"
    JSONL = "jsonl"  # one object per group


class StrategyName(Enum):
    """`partition.assignment.strategy`."""

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"


@app.command()
def assign(
    *,
    zookeeper: Annotated[
        str | None, typer.Option(metavar="H:P[,H:P...][/CHROOT]", help="A live group's ZooKeeper.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="The live group.")] = None,
    cases: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Groups to compute, a JSON object a line; or .gz."),
    ] = None,
    release: Annotated[
        str,
        typer.Option(help="As members of this Kafka release do it; auto: as the owner nodes show."),
    ] = AUTO,
    strategy: Annotated[
        StrategyName, typer.Option(help="partition.assignment.strategy of the live group.")
    ] = StrategyName.RANGE,
    internal: Annotated[
        bool,
        typer.Option("--internal-topics", help="With exclude.internal.topics=false."),
    ] = False,
    join: Annotated[
        list[str] | None,
        typer.Option(metavar="ID:TOPIC=N[,TOPIC=N]", help="What if this member came."),
    ] = None,
    leave: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="What if this member went.")
    ] = None,
    output: Annotated[Output, typer.Option(help="How to write it.")] = Output.TABLE,
) -> None:
    """Show what the members of a group would own. Reads only.

    A live group is read once, with everything that its members look at. A file of cases holds
    whole groups, so nothing else is read: `strategy`, `registrations` {consumer id: payload},
    `topics` {topic: payload}, and `exclude_internal_topics`, `ids_child_order`, `case` and `name`.
    """
    from zkconsumer.core.assignors import Strategy  # noqa: PLC0415
    from zkconsumer.core.computing import Group  # noqa: PLC0415

    live = (zookeeper, group, *(join or ()), *(leave or ()))
    if cases is not None and not any(live):
        _show_cases(cases, release, output)
    elif cases is None and zookeeper and group:
        survey = _survey(zookeeper, group)
        members = dict(sorted(survey.registrations.items()))
        now = Group(Strategy(strategy.value), members, survey.topics, exclude_internal=not internal)
        _show_group(survey, now, _what_if(now, join or (), leave or ()), release, output)
    else:
        raise ConfigError(
            "one of the two: --cases, or --zookeeper and --group",
            remedy="see zkconsumer assign --help",
        )


# ---- cases --------------------------------------------------------------------------------------


def _show_cases(path: Path, release: str, output: Output) -> None:
    from zkconsumer.core.computing import compute  # noqa: PLC0415
    from zkconsumer.core.releases import profile  # noqa: PLC0415

    if release == AUTO:
        raise ConfigError("cases have no owner nodes to tell the release", remedy="say --release")
    as_release = profile(release)
    for where, case in _read_cases(path):
        parts = compute(_group_of(case, where), as_release)
        head = {"case": case.get("case"), "name": case.get("name"), "release": as_release.release}
        if output is Output.JSONL:
            print(json.dumps(head | _document(parts)))
        else:
            print(f"case {head['case']} {head['name'] or ''}".rstrip())
            _print_all(_table(parts, {}))
            _print_all(_errors(parts))


def _read_cases(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, case) of each line; the lines end at line feeds only."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    except (OSError, EOFError) as error:
        raise ConfigError(
            f"cannot read: {error}", where=str(path), remedy="name a file of cases"
        ) from error
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            case = json.loads(line)
        except ValueError as error:
            raise _bad_case(where, f"no JSON: {error}") from error
        if not isinstance(case, dict):
            raise _bad_case(where, "no object")
        yield where, case


def _group_of(case: dict[str, Any], where: str) -> Group:
    from zkconsumer.core.assignors import Strategy  # noqa: PLC0415
    from zkconsumer.core.computing import Group  # noqa: PLC0415

    registrations = _payloads(case, "registrations", where)
    order = case.get("ids_child_order", [])
    if not isinstance(order, list) or not all(isinstance(one, str) for one in order):
        raise _bad_case(where, "ids_child_order is no list of consumer ids")
    ordered = dict.fromkeys([*(one for one in order if one in registrations), *registrations])
    try:
        strategy = Strategy(case.get("strategy"))
    except ValueError as error:
        raise _bad_case(where, "strategy is neither range nor roundrobin") from error
    return Group(
        strategy,
        {consumer: registrations[consumer] for consumer in ordered},
        _payloads(case, "topics", where),
        exclude_internal=case.get("exclude_internal_topics") is not False,
    )


def _payloads(case: dict[str, Any], field: str, where: str) -> dict[str, bytes | None]:
    found = case.get(field)
    if not isinstance(found, dict) or not all(
        text is None or isinstance(text, str) for text in found.values()
    ):
        raise _bad_case(where, f"{field} is no object of payloads")
    # As Java's String.getBytes: what is no character becomes a question mark.
    return {
        name: None if text is None else text.encode(errors="replace")
        for name, text in found.items()
    }


def _bad_case(where: str, what: str) -> ConfigError:
    return ConfigError(what, where=where, remedy="see zkconsumer assign --help")


# ---- a live group -------------------------------------------------------------------------------


def _survey(zookeeper: str, group: str) -> Survey:
    from zkconsumer.zk.observer import Observer  # noqa: PLC0415

    with Observer(zookeeper, group) as observer:
        if not observer.group_exists():
            raise UnknownGroupError(
                f"group {group} does not exist", where=zookeeper, remedy="check name and chroot"
            )
        return observer.survey()


def _show_group(survey: Survey, now: Group, then: Group, release: str, output: Output) -> None:
    """Show what members of `then` would own; `now` says by which rules."""
    from zkconsumer.cli import Exit  # noqa: PLC0415
    from zkconsumer.core.computing import compute  # noqa: PLC0415
    from zkconsumer.core.detecting import detect  # noqa: PLC0415
    from zkconsumer.core.releases import profile  # noqa: PLC0415

    finding = detect(now, survey.owners)
    as_release, reason = finding.profile, finding.reason
    if release != AUTO:
        as_release, reason = profile(release), "as asked"
    parts = compute(then, as_release)
    if output is Output.JSONL:
        head = {"release": as_release.release, "reason": reason, "quarrels": finding.quarrels}
        print(json.dumps(head | _document(parts)))
    else:
        _print_all(_table(parts, survey.owners))
        _complain(f"as {as_release.release}: {reason}")
        for consumer, why in finding.quarrels.items():
            _complain(f"member {consumer}: {why}")
        for line in _errors(parts):
            _complain(line)
    if not all(isinstance(part, dict) for part in parts.values()):
        raise typer.Exit(Exit.PROBLEM)


def _complain(text: str) -> None:
    typer.echo(f"zkconsumer: {text}", err=True)


def _what_if(group: Group, join: Iterable[str], leave: Iterable[str]) -> Group:
    """The group after members have come and gone."""
    from zkconsumer.core.records import Registration, encode_registration  # noqa: PLC0415
    from zkconsumer.core.topics import validate_topic_counts  # noqa: PLC0415

    registrations = dict(group.registrations)
    for consumer in leave:
        if consumer not in registrations:
            raise ConfigError(
                f"{consumer} is no member", where="--leave", remedy="see zkconsumer owners"
            )
        del registrations[consumer]
    for text in join:
        consumer, _, topics = text.rpartition(":")
        try:
            pairs = [one.rpartition("=") for one in topics.split(",")]
            counts = {topic: int(count) for topic, _, count in pairs}
        except ValueError as error:
            raise ConfigError(
                f"{text} names no member", where="--join", remedy="ID:TOPIC=STREAMS[,...]"
            ) from error
        registration = Registration(validate_topic_counts(counts), timestamp_ms=0)
        registrations[consumer] = encode_registration(registration)
    return replace(group, registrations=registrations)


# ---- what is shown ------------------------------------------------------------------------------


def _document(parts: Mapping[str, Part | Failure]) -> dict[str, Any]:
    assignment: dict[str, dict[str, dict[str, str]]] = {}
    errors = {}
    for consumer, part in parts.items():
        if not isinstance(part, dict):
            errors[consumer] = {"error": str(part.error), "message": part.message}
            continue
        topics = assignment.setdefault(consumer, {})
        for tp, thread in sorted(part.items()):
            topics.setdefault(tp.topic, {})[str(tp.partition)] = thread
    return {"assignment": assignment, "errors": errors}


def _errors(parts: Mapping[str, Part | Failure]) -> Iterator[str]:
    for consumer, part in parts.items():
        if not isinstance(part, dict):
            yield f"member {consumer} would fail: {part.error}: {part.message}"


def _table(parts: Mapping[str, Part | Failure], owners: Mapping[Any, str]) -> Iterator[str]:
    gets = {tp: thread for part in parts.values() if isinstance(part, dict)
            for tp, thread in part.items()}
    rows = [HEAD, *(
        (tp.topic, str(tp.partition), gets.get(tp, "-"), owners.get(tp, "-"))
        for tp in sorted({*gets, *owners})
    )]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _print_all(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
