"""`zkconsumer assign --assignor`: the assignors of Kafka 3.9 on cases and on a live group."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zkconsumer.cli.assign_cases import (
    CASE,
    COLUMNS,
    MOVE,
    PROGRAMS,
    move_documents,
    moves,
    read_cases,
    row,
)
from zkconsumer.cli.options import Common
from zkconsumer.cli.output import Column, Output, say, say_all
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.model import Json, JsonObject

if TYPE_CHECKING:
    from zkconsumer.admin.groups import Selection
    from zkconsumer.admin.what_if import LaterGroup, Owners
    from zkconsumer.protocol.group_assignment import GroupInput

_CASE_COLUMNS = (CASE, Column("member"), Column("topic"), Column("partitions"), Column("error"))


def show_cases(common: Common, path: Path, assignor: str) -> None:
    """Compute the cases of a file; the `assignor` of a case overrides the option.

    All cases are read before the first result is written, so a bad case leaves no partial output.
    """
    from zkconsumer.protocol.later.assignors import Assignor
    from zkconsumer.protocol.later.cases import read_case

    default = Assignor(assignor)
    cases = [read_case(document, where, default) for where, document in read_cases(path)]
    results = (case.result() for case in cases)
    if common.output is Output.JSONL:
        for result in results:
            print(json.dumps(result))
    elif common.output in PROGRAMS:
        common.write_document(list(results))
    else:
        common.write([one for result in results for one in _rows(result)], _CASE_COLUMNS)


def _rows(result: Mapping[str, Json]) -> Iterable[JsonObject]:
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


def show_group(
    common: Common,
    group: GroupInput,
    owners: Owners,
    assignor: str,
    *,
    topics: Selection | None = None,
) -> None:
    """Show what each thread of a live group would own as one consumer of Kafka's own protocol.

    `topics` limits what is shown, and not what is computed.

    Raises ConfigError if the group has no threads, or if Kafka's assignor fails for it.
    """
    from zkconsumer.admin.groups import selected
    from zkconsumer.admin.what_if import with_later_consumers
    from zkconsumer.protocol.later.assignors import Assignor
    from zkconsumer.protocol.later.subscriptions import JavaError

    try:
        found = with_later_consumers(group, owners, Assignor(assignor))
    except JavaError as error:
        raise ConfigError(
            f"Kafka 3.9.1's assignor {assignor} throws {error.kind} for this group",
            remedy="choose another --assignor",
        ) from error
    if topics is not None:
        chosen = set(selected((one.partition for one in found.places), topics))
        shown = [one for one in found.places if one.partition in chosen]
        found = replace(found, places=shown)
    if common.output in PROGRAMS:
        common.write_document(_document(found, assignor))
        return
    common.write(map(row, found.places), (*COLUMNS, MOVE))
    say_all(f"member {consumer} is left out: {why}" for consumer, why in found.faults.items())
    say_all(
        f"thread {thread}: {now} partitions now, {then} with {assignor}"
        for thread, (now, then) in found.shares().items()
    )
    say(moves(found.places))


def _document(found: LaterGroup, assignor: str) -> JsonObject:
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
