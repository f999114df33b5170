"""`zkconsumer explain GROUP`: why each thread owns its partitions.

`explain coordinator`, `vote`, `partitioner` and `placement` show decisions of brokers and clients.
None of these four commands connects to a server. Each can also compute all cases of a file.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer.core import TyperGroup

from zkconsumer.cli.exits import Exit
from zkconsumer.cli.options import Common, Display, OneGroup, Topics, operator, topics_of
from zkconsumer.cli.output import Align, Column, Output, safe, say
from zkconsumer.errors import ConfigError, quoted
from zkconsumer.protocol.java.text import java_hash
from zkconsumer.protocol.model import OFFSETS_PARTITIONS, Json, JsonObject, coordinator_partition
from zkconsumer.protocol.suggestions import did_you_mean

if TYPE_CHECKING:
    from zkconsumer.admin.explain import Explanation, Share
    from zkconsumer.admin.groups import Selection

Click: TypeAlias = Any  # Any: typer's copy of click is not public

_WIDTH = 80
"""Characters per line of a paragraph if standard output is not a terminal."""


class _GroupByDefault(TyperGroup):
    """Runs the command `group` if the first argument names no other command."""

    def parse_args(self, ctx: Click, args: list[str]) -> list[str]:
        is_help = bool(args) and args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if is_help else self._with_command(args))

    def resolve_command(self, ctx: Click, args: list[str]) -> Click:
        return super().resolve_command(ctx, self._with_command(args))

    def _with_command(self, args: list[str]) -> list[str]:
        return args if args and args[0] in self.commands else ["group", *args]


app = typer.Typer(
    cls=_GroupByDefault,
    add_completion=False,
    rich_markup_mode=None,
    help="Explain why each thread of a group owns its partitions: `zkconsumer explain GROUP`.\n\n"
    "The other commands show where Kafka puts coordinators, keys and replicas.",
)


def _columns() -> tuple[Column, ...]:
    from zkconsumer.admin.findings import ranges

    def short(numbers: Iterable[int]) -> str:
        return ranges(numbers) or "-"

    return (
        Column("position", "#", align=Align.RIGHT),
        Column("thread"),
        Column("partitions", show=short),
        Column("owned", "OWNS NOW", show=short, drop_order=1),
        Column("why"),
    )


@app.command("group")
@operator()
def explain(
    common: Common,
    *,
    group: OneGroup = None,
    topic: Topics = None,
) -> None:
    """Explain how the members of a live group compute owners.

    The command changes nothing. The owner znodes show the strategy and the release
    (`zkconsumer docs releases`). If no partition has an owner, partition.assignment.strategy of
    --config is used. Exit code 6: the assignment fails for a member that may be a JVM member. Exit
    code 1: no member subscribes to a topic of --topic.

    Example: zkconsumer explain group billing --zookeeper zk1:2181/kafka
    """
    from zkconsumer.admin.explain import explain as explained

    name = common.group(group)
    only = topics_of(topic)
    settings = common.member_settings(name)
    with common.connect(name) as connection:
        found = explained(connection, name, settings=settings)
    wanted = set(only or found.topics)
    unknown = sorted(wanted - found.topics.keys())
    for one in unknown:
        nearest = did_you_mean(one, found.topics)
        say(f"no member subscribes to topic {one}" + (f"; {nearest}" if nearest else ""))
    _write(common, found, wanted, only or {})
    for consumer, why in found.failures.items():
        say(f"member {consumer} fails if it is a JVM member: {why}")
    if found.failures:
        say("zkconsumer members report what JVM members fail on, and continue without it")
        raise typer.Exit(Exit.FOUND)
    if unknown:
        raise typer.Exit(Exit.FAILED)


def _has_any(share: Share, partitions: frozenset[int] | None) -> bool:
    """Return whether a thread owns, or should own, one of the partitions; None means all
    partitions."""
    return partitions is None or bool(partitions & {*share.partitions, *share.owned})


def _write(common: Common, found: Explanation, wanted: set[str], only: Selection) -> None:
    rows = [
        {
            "topic": one.topic,
            "position": one.position,
            "thread": one.thread,
            "partitions": list(one.partitions),
            "owned": list(one.owned),
            "why": one.why,
        }
        for one in found.shares
        if one.topic in wanted and _has_any(one, only.get(one.topic))
    ]
    if common.output in (Output.JSON, Output.YAML):
        topics = {name: text for name, text in found.topics.items() if name in wanted}
        document = {
            "group": found.group,
            "rules": found.rules,
            "words": list(found.words),
            "topics": topics,
            "threads": rows,
            "failures": found.failures,
        }
        common.write_document(document)
        return
    columns = _columns()
    if common.output in (Output.JSONL, Output.CSV):
        common.write(rows, (Column("topic"), *columns))
        return
    width = common.screen.width or _WIDTH
    print("\n\n".join(textwrap.fill(safe(text), width) for text in found.words))
    for name, text in found.topics.items():
        if name not in wanted:
            continue
        print(f"\n{safe(name)}\n{textwrap.fill(safe(text), width)}")
        common.write([row for row in rows if row["topic"] == name], columns)


# ---- what brokers decide -------------------------------------------------------------------------

MAX_PARTITIONS = 200_000
"""Highest number of partitions of one topic or of one placement. A cluster of Kafka 3.9 with
ZooKeeper has at most 200,000 partitions. A higher number is an error."""

_REMEDY = "see `zkconsumer explain --help` and `zkconsumer docs later`"

Case = Mapping[str, Json]
Answer = Mapping[str, Json]

Cases = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Compute the cases of a JSON Lines file, plain or gzipped (`zkconsumer docs later`).",
    ),
]


def _joined(values: Json) -> str:
    return ",".join(map(str, values))


COORDINATOR_COLUMNS = (
    Column("group"),
    Column("hash", align=Align.RIGHT),
    Column("partitions", align=Align.RIGHT),
    Column("partition", align=Align.RIGHT),
)
VOTE_COLUMNS = (
    Column("member"),
    Column("assignors", type="strings", show=_joined),
    Column("choice"),
)
PARTITIONER_COLUMNS = (
    Column("key"),
    Column("partitioner"),
    Column("hash", align=Align.RIGHT),
    Column("partition", align=Align.RIGHT),
)
PLACEMENT_COLUMNS = (
    Column("partition", align=Align.RIGHT),
    Column("replicas", type="integers", show=_joined),
    Column("simple", type="integers", show=_joined),
)


# ---- the coordinator of a group ------------------------------------------------------------------


@app.command("coordinator")
@operator()
def coordinator(
    display: Display,
    *,
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="Group name.")] = None,
    partitions: Annotated[
        int, typer.Option(help="offsets.topic.num.partitions of the brokers.")
    ] = 50,
    cases: Cases = None,
) -> None:
    """Show the partition whose leader coordinates a group.

    The partition of __consumer_offsets is the absolute value of the name's hash code (Java's
    String.hashCode), modulo the number of partitions. The smallest hash code counts as 0. No server
    is asked.

    Example: zkconsumer explain coordinator billing
    """
    one = None if group is None else {"group": group, "partitions": partitions}
    _show(display, COORDINATOR_COLUMNS, _coordinator, one, cases)


def _coordinator(case: Case) -> list[Answer]:

    name, count = case.get("group"), case.get("partitions", OFFSETS_PARTITIONS)
    if not isinstance(name, str):
        raise ConfigError("group is not a name", remedy=_REMEDY)
    count = _number(count, "partitions", least=1)
    found = coordinator_partition(name, count)
    return [{"group": name, "hash": java_hash(name), "partitions": count, "partition": found}]


# ---- the vote ------------------------------------------------------------------------------------


@app.command("vote")
@operator()
def vote(
    display: Display,
    *,
    members: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MEMBER=ASSIGNOR,...",
            help="A member with its assignors, the preferred one first; repeatable.",
        ),
    ] = None,
    cases: Cases = None,
) -> None:
    """Show which assignor a group of the classic protocol chooses.

    Each member votes for the first of its assignors that all members have, and the assignor with
    the most votes wins. A dash as the choice means that no assignor is common to all: Kafka refuses
    the last member with INCONSISTENT_GROUP_PROTOCOL. No server is asked.

    Example: zkconsumer explain vote m1=range,sticky m2=sticky,range m3=sticky
    """
    one = {"members": dict(map(_ballot, members))} if members else None
    _show(display, VOTE_COLUMNS, _vote, one, cases)


def _vote(case: Case) -> list[Answer]:
    from zkconsumer.protocol.later import coordination

    members = case.get("members")
    if not isinstance(members, dict) or not members:
        raise ConfigError("members is not an object with at least one member", remedy=_REMEDY)
    for name, assignors in members.items():
        if not isinstance(assignors, list) or not all(isinstance(one, str) for one in assignors):
            raise ConfigError(f"{quoted(name)} has no list of assignors", remedy=_REMEDY)
    choice = coordination.vote(members)
    return [
        {"member": name, "assignors": assignors, "choice": choice}
        for name, assignors in members.items()
    ]


def _ballot(text: str) -> tuple[str, list[str]]:
    member, equals, assignors = text.partition("=")
    if not equals or not member or not all(assignors.split(",")):
        raise ConfigError(
            f"{quoted(text)} does not name a member and its assignors",
            where="MEMBER=ASSIGNOR,...",
            remedy="use m1=range,sticky",
        )
    return member, assignors.split(",")


# ---- the partition of a key ----------------------------------------------------------------------


@app.command("partitioner")
@operator()
def partitioner(
    display: Display,
    *,
    key: Annotated[str | None, typer.Option(help="The key as text, sent as UTF-8.")] = None,
    key_hex: Annotated[
        str | None, typer.Option(metavar="HEX", help="The key's bytes as hexadecimal digits.")
    ] = None,
    partitions: Annotated[int | None, typer.Option(help="Partitions of the topic.")] = None,
    cases: Cases = None,
) -> None:
    """Show the partition of a key with old and Java producers.

    The old Scala producer takes the hash code of the key, as bytes (ByteArrayPartitioner) or as a
    string (DefaultPartitioner): (code & 0x7fffffff) % n in Kafka 0.8.0-0.8.1, |code| % n from 0.8.2
    on.
    The Java producer takes (murmur2(bytes) & 0x7fffffff) % n. So the partition of a key may change
    when the producer changes. No server is asked.

    Example: zkconsumer explain partitioner --key-hex 6b6579 --partitions 12
    """
    if key is not None and key_hex is not None:
        raise ConfigError("--key and --key-hex exclude each other", remedy="give one of them")
    if key is not None:
        key_hex = key.encode(errors="replace").hex()
    one = None if key_hex is None else {"key": key_hex, "partitions": partitions}
    _show(display, PARTITIONER_COLUMNS, _partitioner, one, cases)


def _partitioner(case: Case) -> list[Answer]:
    from zkconsumer.protocol.later import placement as rules

    text, count = case.get("key"), _number(case.get("partitions"), "partitions", least=1)
    try:
        key = bytes.fromhex(text if isinstance(text, str) else "-")
    except ValueError as error:
        raise ConfigError("key is not hexadecimal", remedy="write two digits a byte") from error
    code = rules.murmur2(key)
    rows = [("murmur2", code, rules.partition_of_key(key, count))]
    codes = {"bytes": rules.bytes_hash(key)}
    with suppress(UnicodeDecodeError):  # only UTF-8 keys can be strings
        codes["string"] = java_hash(key.decode())
    for form, code in codes.items():
        rows.append((f"old-{form}", code, rules.partition_of_hash(code, count)))
        masked = rules.partition_of_masked_hash(code, count)
        rows.append((f"old-{form}-0.8.0", code, masked))
    return [
        {"key": text, "partitioner": name, "hash": code, "partition": found}
        for name, code, found in rows
    ]


# ---- replicas ------------------------------------------------------------------------------------


@app.command("placement")
@operator()
def placement(
    display: Display,
    *,
    brokers: Annotated[str | None, typer.Option(metavar="ID,...", help="Broker ids.")] = None,
    racks: Annotated[
        str | None,
        typer.Option(metavar="ID=RACK,...", help="The rack of each broker; default: no racks."),
    ] = None,
    partitions: Annotated[int, typer.Option(help="Partitions to place.")] = 1,
    replicas: Annotated[int, typer.Option(help="Replicas of each partition.")] = 1,
    start: Annotated[
        int, typer.Option(help="Index of partition 0's leader; Kafka chooses it at random.")
    ] = 0,
    shift: Annotated[
        int | None,
        typer.Option(help="Distance to the second replica, minus 1; default: the same as --start."),
    ] = None,
    first_partition: Annotated[
        int, typer.Option(help="Number of the first partition, if partitions are added.")
    ] = 0,
    cases: Cases = None,
) -> None:
    """Show the brokers that AdminUtils chooses for replicas.

    The first broker is the leader. Kafka 0.8.2-3.9 with ZooKeeper uses these rules. The column
    `simple` shows the simpler rule that many descriptions give: replica j of partition i is on
    broker (i + j) mod n. No server is asked.

    Example: zkconsumer explain placement --brokers 0,1,2,3,4 --partitions 10 --replicas 3
    """
    one = None
    if brokers is not None:
        one = {
            "brokers": _ids(brokers),
            "racks": None if racks is None else _racks(racks),
            "partitions": partitions,
            "replicas": replicas,
            "start": start,
            "shift": shift,
            "first_partition": first_partition,
        }
    _show(display, PLACEMENT_COLUMNS, _placement, one, cases)


def _placement(case: Case) -> list[Answer]:
    from zkconsumer.protocol.later.placement import place_replicas, simple_placement

    brokers, racks = case.get("brokers"), case.get("racks")
    if not isinstance(brokers, list) or not all(type(one) is int for one in brokers):
        raise ConfigError("brokers is not a list of broker ids", remedy=_REMEDY)
    if not (racks is None or isinstance(racks, dict)) or not all(
        isinstance(rack, str) for rack in (racks or {}).values()
    ):
        raise ConfigError("racks is not an object of names", remedy=_REMEDY)
    count = _number(case.get("partitions"), "partitions", least=1)
    replicas = _number(case.get("replicas", 1), "replicas", least=1)
    start = _number(case.get("start", 0), "start")
    shift = case.get("shift")
    found = place_replicas(
        brokers,
        count,
        replicas,
        start=start,
        shift=start if shift is None else _number(shift, "shift"),
        first_partition=_number(case.get("first_partition", 0), "first_partition"),
        racks={one: racks[str(one)] for one in brokers if str(one) in racks} if racks else None,
    )
    simple = simple_placement(brokers, max(found) + 1, replicas)
    return [
        {"partition": number, "replicas": chosen, "simple": simple[number]}
        for number, chosen in found.items()
    ]


def _ids(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a list of broker ids", where="--brokers", remedy="use 0,1,2"
        ) from error


def _racks(text: str) -> dict[str, str]:
    pairs = [one.partition("=") for one in text.split(",")]
    if not all(equals and broker.isdigit() for broker, equals, _ in pairs):
        raise ConfigError(
            f"{text!r} does not name racks", where="--racks", remedy="use 0=RACK,1=RACK"
        )
    return {broker: rack for broker, _, rack in pairs}


# ---- one case, or a file -------------------------------------------------------------------------


def _number(value: Json, name: str, *, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= MAX_PARTITIONS:
        raise ConfigError(
            f"{name} must be an integer between {least} and {MAX_PARTITIONS}", remedy=_REMEDY
        )
    return value


def _show(
    display: Display,
    columns: Sequence[Column],
    compute: Callable[[Case], list[Answer]],
    one: Case | None,
    path: Path | None,
) -> None:
    """Write the rows of one case, or the results of a file of cases, after all are computed."""
    if (one is None) == (path is None):
        raise ConfigError("give either the command's own values or --cases", remedy=_REMEDY)
    if path is None:
        assert one is not None
        display.write(compute(one), columns)
        return
    results = list(_results(path, compute))
    if display.output is Output.JSONL:
        for result in results:
            print(json.dumps(result))
    elif display.output in (Output.JSON, Output.YAML):
        display.write_document(results)
    else:
        rows = [{"case": one["case"], **row} for one in results for row in one["result"]]
        display.write(rows, (Column("case"), *columns))


def _results(path: Path, compute: Callable[[Case], list[Answer]]) -> Iterable[JsonObject]:
    from zkconsumer.cli.assign import read_cases

    for where, case in read_cases(path):
        try:
            yield {"case": case.get("case"), "result": compute(case)}
        except ConfigError as error:
            raise ConfigError(error.what, where=where, remedy=error.remedy) from error
