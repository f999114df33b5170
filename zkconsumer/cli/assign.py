"""`zkconsumer assign`: the assignment of a live group, or of the groups in a file."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli import completion
from zkconsumer.cli.exits import Exit
from zkconsumer.cli.options import Common, OneGroup, operator
from zkconsumer.cli.output import Align, Column, Output, say, say_all
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.java import JavaError
from zkconsumer.protocol.later.assignors import Assignor
from zkconsumer.protocol.model import Json, JsonObject

if TYPE_CHECKING:
    from zkconsumer.admin.groups import Selection
    from zkconsumer.admin.what_if import LaterGroup, Owners, PredictedOwner
    from zkconsumer.protocol.group_assignment import AssignmentFailure, GroupInput, MemberAssignment

CASE = Column("case")
COLUMNS = (
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column("thread"),
    Column("owner"),
)
MOVE = Column("move")
PROGRAMS = (Output.JSON, Output.JSONL, Output.YAML)

MAX_CASE_BYTES = 64 * 1024 * 1024
"""Maximum size of one uncompressed line of --cases, in bytes. A group of 1,000 members with
long registrations fits. A longer line is an error, raised before the rest of the line is read."""

MAX_FILE_BYTES = 1024 * 1024 * 1024
"""Maximum size of an uncompressed --cases file, in bytes: a million groups of 1 kB. A longer file
is an error."""
_LATER_COLUMNS = (CASE, Column("member"), Column("topic"), Column("partitions"), Column("error"))

AUTO = "auto"
app = typer.Typer(add_completion=False, rich_markup_mode=None)


Chosen = Annotated[
    Strategy | None,
    typer.Option(help="partition.assignment.strategy; default: the --config file, else range."),
]
Later = Annotated[
    Assignor | None,
    typer.Option(
        help="Compute with this assignor of Kafka 3.9 instead (see `zkconsumer docs later`). Each"
        " thread of the group then counts as one consumer of Kafka's own group protocol."
    ),
]
Wishes = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="WHAT",
        help="Suppose that a member joins (+MEMBER:THREADS), a member leaves (-MEMBER), or a topic"
        " gets 8 more partitions (TOPIC=+8). Separate several changes by blanks, or repeat the"
        " option.",
    ),
]


@app.command()
@operator()
def assign(
    common: Common,
    *,
    group: OneGroup = None,
    cases: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compute the groups of a JSON Lines file, plain or gzipped, instead of a live"
            " group.",
        ),
    ] = None,
    release: Annotated[
        str,
        typer.Option(
            help="Kafka release whose rules are used; auto detects it from the owner znodes."
        ),
    ] = AUTO,
    strategy: Chosen = None,
    assignor: Later = None,
    internal: Annotated[
        bool,
        typer.Option(
            "--internal-topics", help="Assume that the members have exclude.internal.topics=false."
        ),
    ] = False,
    wishes: Wishes = None,
    join: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID:TOPIC=N[,TOPIC=N]",
            help="Suppose that this member joins, with N threads for each topic.",
        ),
    ] = None,
    leave: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="Suppose that this member leaves.",
            autocompletion=completion.consumers,
        ),
    ] = None,
) -> None:
    """Show what each thread of a group would own, and which partitions would move. Changes nothing.

    A live group is read once. With --cases ZooKeeper is not read: each line of the file is a whole
    group, a JSON object with `strategy`, `registrations` {consumer id: payload}, `topics` {topic:
    payload}, and optionally `exclude_internal_topics`, `ids_child_order`, `case` and `name`.

    Example: zkconsumer assign --zookeeper zk1:2181/kafka --group billing --what-if
    "+billing_new:2 -billing_old orders=+8"
    """
    if cases is not None:
        if any((common.zookeeper, common.config, group, wishes, join, leave)):
            raise ConfigError(
                "--cases and the options of a live group exclude each other",
                remedy="see `zkconsumer assign --help`",
            )
        _show_cases(common, cases, release, assignor)
        return
    from zkconsumer.admin.what_if import live_group

    name = common.group(group)
    said = common.settings(name)
    with common.connect(name) as connection:
        now, owners = live_group(
            connection,
            name,
            strategy=strategy or Strategy(said.partition_assignment_strategy),
            exclude_internal=said.exclude_internal_topics and not internal,
        )
    split = [one for text in wishes or () for one in text.split()]
    then = _changed(now, join or (), leave or (), split)
    if assignor is None:
        _show_group(common, owners, now, then, release)
    else:
        show_later_group(common, then, owners, assignor)


# ---- groups in a file ---------------------------------------------------------------------------


def _show_cases(common: Common, path: Path, release: str, assignor: Assignor | None) -> None:
    from zkconsumer.admin.what_if import places
    from zkconsumer.protocol.group_assignment import assign_each_member
    from zkconsumer.protocol.releases import profile

    if assignor is not None:
        _show_later_cases(common, path, assignor)
        return
    if release == AUTO:
        raise ConfigError(
            "the release cannot be detected, since the groups of --cases have no owner znodes",
            remedy="give --release, or --assignor for cases of `zkconsumer docs later`",
        )
    as_release = profile(release)
    documents, rows = [], []
    for where, case in read_cases(path):
        parts = assign_each_member(_group_of(case, where), as_release)
        head = {"case": case.get("case"), "name": case.get("name"), "release": as_release.release}
        if common.output is Output.JSONL:
            print(json.dumps(head | _document(parts)))
        elif common.output in PROGRAMS:
            documents.append(head | _document(parts))
        elif common.output is Output.CSV:
            rows += [{"case": head["case"], **row(one)} for one in places(parts, {})]
        else:
            print(f"case {head['case']} {head['name'] or ''}".rstrip())
            common.write([row(one) for one in places(parts, {})], COLUMNS)
            for line in _errors(parts):
                print(line)
    if common.output is Output.CSV:
        common.write(rows, (CASE, *COLUMNS))
    elif common.output in (Output.JSON, Output.YAML):
        common.write_document(documents)


def _group_of(case: dict[str, object], where: str) -> GroupInput:
    from zkconsumer.protocol.group_assignment import GroupInput

    registrations = _payloads(case, "registrations", where)
    order = case.get("ids_child_order", [])
    if not isinstance(order, list) or not all(isinstance(one, str) for one in order):
        raise bad_case(where, "ids_child_order is not a list of consumer ids")
    ordered = dict.fromkeys([*(one for one in order if one in registrations), *registrations])
    try:
        strategy = Strategy(case.get("strategy"))
    except ValueError as error:
        raise bad_case(where, "strategy is neither range nor roundrobin") from error
    return GroupInput(
        strategy,
        {consumer: registrations[consumer] for consumer in ordered},
        _payloads(case, "topics", where),
        exclude_internal=case.get("exclude_internal_topics") is not False,
    )


def _payloads(case: dict[str, object], field: str, where: str) -> dict[str, bytes | None]:
    found = case.get(field)
    if not isinstance(found, dict) or not all(
        text is None or isinstance(text, str) for text in found.values()
    ):
        raise bad_case(where, f"{field} is not an object of payloads")
    # Java's String.getBytes replaces a lone surrogate by a question mark, too.
    return {
        name: None if text is None else text.encode(errors="replace")
        for name, text in found.items()
    }


# ---- files of cases ------------------------------------------------------------------------------


def read_cases(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (file and line number, group) for each line; only a line feed ends a line.

    One line at a time is in memory, since a gzip file of 13 MB may expand to gigabytes.

    Raises ConfigError if the file cannot be read, or if a line is not a JSON object, is longer than
    `MAX_CASE_BYTES`, or is nested deeper than the JSON of a znode may be.
    """
    try:
        with path.open("rb") as file:
            zipped = file.peek(2)[:2] == b"\x1f\x8b"
            lines = gzip.GzipFile(fileobj=file) if zipped else file
            number = size = 0
            while line := lines.readline(MAX_CASE_BYTES + 1):
                number, size = number + 1, size + len(line)
                where = f"{path}:{number}"
                if size > MAX_FILE_BYTES:
                    raise bad_case(where, f"the file is longer than {MAX_FILE_BYTES} bytes")
                if line.strip() or len(line) > MAX_CASE_BYTES:
                    yield where, _read_case(line, where)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(
            f"the file cannot be read: {error}",
            where=str(path),
            remedy="see `zkconsumer assign --help` for its format",
        ) from error


def _read_case(line: bytes, where: str) -> dict[str, object]:
    from zkconsumer.protocol.java.json import require_shallow

    if len(line) > MAX_CASE_BYTES:
        raise bad_case(where, f"the line is longer than {MAX_CASE_BYTES} bytes")
    try:
        require_shallow(line.decode())
        case = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise bad_case(where, f"the line is not JSON: {error}") from error
    if not isinstance(case, dict):
        raise bad_case(where, "the line is not a JSON object")
    return case


def bad_case(where: str, what: str) -> ConfigError:
    return ConfigError(what, where=where, remedy="see `zkconsumer assign --help`")


# ---- a live group -------------------------------------------------------------------------------


def _changed(
    now: GroupInput, join: Sequence[str], leave: Sequence[str], wishes: Sequence[str]
) -> GroupInput:
    """Return the group after the changes of --leave, --join and --what-if, in this order."""
    from zkconsumer.admin.what_if import joined, left, topic_counts, what_if
    from zkconsumer.protocol.registrations import Registration

    for consumer in leave:
        now = left(now, consumer, where="--leave")
    for text in join:
        consumer, _, topics = text.rpartition(":")
        now = joined(now, consumer, Registration(topic_counts(topics, where="--join")))
    return what_if(now, wishes)


def _show_group(
    common: Common, owners: Owners, now: GroupInput, then: GroupInput, release: str
) -> None:
    """Show what the members of `then` would own. The release's rules are detected from the owners
    of `now`."""
    from zkconsumer.admin.what_if import places
    from zkconsumer.protocol.group_assignment import assign_each_member
    from zkconsumer.protocol.release_detection import detect
    from zkconsumer.protocol.releases import profile

    finding = detect(now, owners)
    as_release, reason = finding.profile, finding.reason
    if release != AUTO:
        as_release, reason = profile(release), "set with --release"
    parts = assign_each_member(then, as_release)
    found = places(parts, owners)
    if common.output in PROGRAMS:
        head = {
            "release": as_release.release,
            "reason": reason,
            "disagreements": finding.disagreements,
        }
        common.write_document(head | _document(parts) | {"moves": move_documents(found)})
    else:
        columns = COLUMNS if then is now else (*COLUMNS, MOVE)
        common.write([row(one) for one in found], columns)
        say(f"computed by the rules of {as_release.release} ({reason})")
        say_all(f"member {consumer}: {why}" for consumer, why in finding.disagreements.items())
        say_all(_errors(parts))
        say(moves(found))
    if not all(isinstance(part, dict) for part in parts.values()):
        raise typer.Exit(Exit.FOUND)


# ---- output -------------------------------------------------------------------------------------


def _document(parts: Mapping[str, MemberAssignment | AssignmentFailure]) -> dict[str, object]:
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


def _errors(parts: Mapping[str, MemberAssignment | AssignmentFailure]) -> Iterator[str]:
    for consumer, part in parts.items():
        if not isinstance(part, dict):
            yield f"member {consumer} fails if it is a JVM member: {part.error}: {part.message}"


def moves(found: Sequence[PredictedOwner]) -> str:
    """Return how many partitions change their owner, and how many gain or lose one."""
    moving = Counter(one.partition.topic for one in found if one.moves)
    text = f"{moving.total()} of {len(found)} partitions move"
    if moving:
        text += f" ({', '.join(f'{topic}: {count}' for topic, count in moving.items())})"
    new = sum(one.now is None for one in found)
    lost = sum(one.then is None for one in found)
    text += f"; {new} without an owner get one" if new else ""
    return text + (f"; {lost} lose their owner" if lost else "")


def move_documents(found: Iterable[PredictedOwner]) -> list[dict[str, object]]:
    """Return the partitions that change their owner, as JSON objects."""
    return [
        {
            **dict(zip(("topic", "partition"), one.partition, strict=True)),
            "from": one.now,
            "to": one.then,
        }
        for one in found
        if one.moves
    ]


def row(one: PredictedOwner) -> dict[str, object]:
    topic, partition = one.partition
    move = f"{one.now} -> {one.then}" if one.moves else None
    return {
        "topic": topic,
        "partition": partition,
        "thread": one.then,
        "owner": one.now,
        "move": move,
    }


# ---- with an assignor of Kafka 3.9 ---------------------------------------------------------------


def _show_later_cases(common: Common, path: Path, assignor: Assignor) -> None:
    """Compute the cases of a file; the `assignor` of a case overrides the option.

    All cases are read before the first result is written, so a bad case leaves no partial output.
    """
    from zkconsumer.protocol.later.cases import read_case

    cases = [read_case(document, where, assignor) for where, document in read_cases(path)]
    results = (case.result() for case in cases)
    if common.output is Output.JSONL:
        for result in results:
            print(json.dumps(result))
    elif common.output in PROGRAMS:
        common.write_document(list(results))
    else:
        common.write([one for result in results for one in _later_rows(result)], _LATER_COLUMNS)


def _later_rows(result: Mapping[str, Json]) -> Iterable[JsonObject]:
    blank = {"case": result["case"], "member": None, "topic": None, "partitions": None}
    if "error" in result:
        yield {**blank, "error": result["error"]}
        return
    for member, topics in result["assignment"].items():
        if not topics:
            yield {**blank, "member": member, "error": None}
        for topic, numbers in topics.items():
            yield {
                **blank,
                "member": member,
                "topic": topic,
                "partitions": ",".join(map(str, numbers)),
                "error": None,
            }


def show_later_group(
    common: Common,
    group: GroupInput,
    owners: Owners,
    assignor: Assignor,
    *,
    topics: Selection | None = None,
) -> None:
    """Show what each thread of a live group would own as a consumer of Kafka's own protocol.

    `topics` limits what is shown, and not what is computed.

    Raises ConfigError if the group has no threads, or if Kafka's assignor fails for it.
    """
    from zkconsumer.admin.groups import selected
    from zkconsumer.admin.what_if import with_later_consumers

    try:
        found = with_later_consumers(group, owners, assignor)
    except JavaError as error:
        raise ConfigError(
            f"Kafka 3.9.1's assignor {assignor.value} throws {error.kind} for this group",
            remedy="choose another --assignor",
        ) from error
    if topics is not None:
        chosen = set(selected((one.partition for one in found.places), topics))
        shown = [one for one in found.places if one.partition in chosen]
        found = replace(found, places=shown)
    if common.output in PROGRAMS:
        common.write_document(_later_document(found, assignor.value))
        return
    common.write(map(row, found.places), (*COLUMNS, MOVE))
    say_all(f"member {consumer} is left out: {why}" for consumer, why in found.faults.items())
    say_all(
        f"thread {thread}: {now} partitions now, {then} with {assignor.value}"
        for thread, (now, then) in found.shares().items()
    )
    say(moves(found.places))


def _later_document(found: LaterGroup, assignor: str) -> JsonObject:
    assignment: dict[str, dict[str, list[int]]] = {}
    for one in found.places:
        if one.then is not None:
            topics = assignment.setdefault(one.then, {})
            topics.setdefault(one.partition.topic, []).append(one.partition.partition)
    return {
        "assignor": assignor,
        "assignment": assignment,
        "shares": {
            thread: {"now": now, "then": then} for thread, (now, then) in found.shares().items()
        },
        "faults": dict(found.faults),
        "moves": move_documents(found.places),
    }
