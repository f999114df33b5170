"""JSON Schemas of each command's output with `--output json`, and of the files that they write.

The schema of a table is derived from the columns that its command writes. docs/schemas/ contains
all schemas, and `zkconsumer schema` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from zkconsumer.cli import (
    apply,
    backups,
    bridge,
    compare,
    context,
    doctor,
    explain,
    groups,
    history,
    inventory,
    judge,
    lag,
    members,
    migrate,
    offsets,
    restore,
    sandbox,
    simulate,
    topics,
)
from zkconsumer.cli.output import Column
from zkconsumer.history.tables import TABLES
from zkconsumer.protocol.model import JsonObject

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Schema = JsonObject

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer"}
FLAG: Final[Schema] = {"type": "boolean"}
_TYPES: Mapping[str, Schema] = {
    "string": TEXT,
    "integer": NUMBER,
    "number": {"type": "number"},
    "boolean": FLAG,
    "strings": {"type": "array", "items": TEXT},
    "integers": {"type": "array", "items": NUMBER},
    "counts": {"type": "object", "additionalProperties": NUMBER},
}


def json_schema(type_: str) -> Schema:
    """Return the schema of a `Column.json_type`, such as `integer?` or `integer|string?`."""
    names = type_.removesuffix("?").split("|")
    found = [_TYPES[name] for name in names]
    if type_.endswith("?"):
        found.append({"type": "null"})
    return found[0] if len(found) == 1 else {"anyOf": found}


def record(fields: Mapping[str, Schema], *, optional: Sequence[str] = ()) -> Schema:
    """Return the schema of an object with these fields; all but `optional` are required."""
    return {
        "type": "object",
        "properties": dict(fields),
        "required": [name for name in fields if name not in optional],
    }


def each(item: Schema) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": item}


def mapping(value: Schema) -> Schema:
    """Return the schema of an object with any names."""
    return {"type": "object", "additionalProperties": value}


def null_or(one: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [one, {"type": "null"}]}


def row(columns: Sequence[Column], *, optional: Sequence[Column] = ()) -> Schema:
    """Return the schema of a row: one line of JSON Lines, one item of JSON.

    `unknown` gives the reason of each value that could not be read and is null. `at` is the time of
    a reading of `--watch`.
    """
    fields = {one.name: json_schema(one.json_type) for one in (*columns, *optional)}
    extra = {"unknown": mapping(TEXT), "at": TEXT}
    return record(fields | extra, optional=[*(one.name for one in optional), *extra])


def rows(columns: Sequence[Column], *, optional: Sequence[Column] = ()) -> Schema:
    """Return the schema of a table as JSON."""
    return each(row(columns, optional=optional))


# ---- the schemas ---------------------------------------------------------------------------------


def _tables() -> dict[str, Schema]:
    partitions = rows(lag.ONE_GROUP_COLUMNS, optional=(lag.STATUS,))
    return {
        "lag": partitions,
        "members": rows(members.COLUMNS),
        "groups-list": rows(
            groups.LIST_COLUMNS, optional=groups.IDLE_COLUMNS[len(groups.LIST_COLUMNS) :]
        ),
        "groups-show": record({"members": rows(members.COLUMNS), "partitions": partitions}),
        "topics-list": rows(topics.LIST_COLUMNS),
        "topics-show": rows(topics.SHOW_COLUMNS),
        "offsets-get": rows(offsets.COLUMNS),
        "offsets-restore": rows(restore.COLUMNS),
        "verify": rows(doctor.VERIFY_COLUMNS),
        "doctor": rows(doctor.COLUMNS),
        "inventory": rows(inventory.COLUMNS),
        "migrate": rows(migrate.COLUMNS),
        "bridge-status": rows(bridge.COLUMNS),
        "compare": rows(compare.COLUMNS),
        "compare-growth": rows(compare.GROWTH),
        "compare-sizes": rows(compare.SIZES),
        "compare-split-brain": rows(compare.SPLIT),
        "explain-coordinator": rows(explain.COORDINATOR_COLUMNS),
        "explain-vote": rows(explain.VOTE_COLUMNS),
        "explain-partitioner": rows(explain.PARTITIONER_COLUMNS),
        "explain-placement": rows(explain.PLACEMENT_COLUMNS),
        "history-report": record({name: rows(one) for name, one in history.REPORT.items()}),
        "history-timeline": rows(history.LINES),
        **{f"history-show-{name}": rows(history.table_columns(name)) for name in TABLES},
        "simulate-list": rows(simulate.LIST_COLUMNS),
        "judge": rows(judge.COLUMNS),
        "judge-assignor": rows(judge.ASSIGNOR_COLUMNS),
        "judge-list": rows(judge.LADDER_COLUMNS),
        "changes": rows(apply.COLUMNS, optional=[c for c in apply.COLUMNS if "lag" in c.name]),
        "backups-list": rows(backups.COLUMNS),
        "context-list": rows(context.LIST_COLUMNS),
        "context-show": record(
            {
                "settings": rows(context.SETTING_COLUMNS),
                "precedence": rows(context.PRECEDENCE_COLUMNS),
            }
        ),
    }


def _documents() -> dict[str, Schema]:
    partition = {"topic": TEXT, "partition": NUMBER}
    header = record(
        {"name": TEXT, "value": null_or(TEXT), "value_base64": TEXT},
        optional=("value", "value_base64"),
    )
    owner = null_or(TEXT)
    return {
        "owners": record(
            {
                "members": mapping({"anyOf": [mapping(NUMBER), TEXT]}),
                "partitions": each(
                    record(
                        {"group": TEXT}
                        | partition
                        | {"owner": owner, "consumer": owner, "session": owner, "client": owner}
                        | {"offset": null_or(NUMBER), "fault": TEXT}
                    )
                ),
            }
        ),
        "explain": record(
            {
                "group": TEXT,
                "rules": TEXT,
                "words": each(TEXT),
                "topics": mapping(TEXT),
                "threads": each(
                    record(
                        {"topic": TEXT, "position": NUMBER, "thread": TEXT, "why": TEXT}
                        | {"partitions": each(NUMBER), "owned": each(NUMBER)}
                    )
                ),
                "failures": mapping(TEXT),
            }
        ),
        "consume": record(
            partition
            | {"offset": NUMBER, "timestamp": null_or(NUMBER)}
            | {"key": owner, "key_base64": TEXT, "value": owner, "value_base64": TEXT}
            | {"headers": each(header)},
            optional=("key", "key_base64", "value", "value_base64", "headers"),
        ),
    }


_ANY: Final[Schema] = {}
"""A value that the command copies from its input."""


def _assignments() -> dict[str, Schema]:
    """Return the schemas of `assign` and of the files of cases."""
    owner = null_or(TEXT)
    moves = each(record({"topic": TEXT, "partition": NUMBER, "from": owner, "to": owner}))
    computed = {
        "assignment": mapping(mapping(mapping(TEXT))),  # consumer -> topic -> partition -> thread
        "errors": mapping(record({"error": TEXT, "message": owner})),
    }
    partitions = mapping(mapping(each(NUMBER)))  # member -> topic -> partitions
    answers = {
        "explain-coordinator-cases": explain.COORDINATOR_COLUMNS,
        "explain-vote-cases": explain.VOTE_COLUMNS,
        "explain-partitioner-cases": explain.PARTITIONER_COLUMNS,
        "explain-placement-cases": explain.PLACEMENT_COLUMNS,
    }
    return {
        "assign": record(
            {"release": TEXT, "reason": TEXT, "disagreements": mapping(TEXT)}
            | computed
            | {"moves": moves}
        ),
        "assign-cases": each(record({"case": _ANY, "name": _ANY, "release": TEXT} | computed)),
        "assign-assignor": record(
            {
                "assignor": TEXT,
                "assignment": partitions,
                "shares": mapping(record({"now": NUMBER, "then": NUMBER})),
                "faults": mapping(TEXT),
                "moves": moves,
            }
        ),
        "assign-assignor-cases": each(
            {
                "anyOf": [
                    record({"case": _ANY, "assignment": partitions}),
                    record({"case": _ANY, "error": TEXT}),
                ]
            }
        ),
        **{
            name: each(record({"case": _ANY, "result": rows(columns)}))
            for name, columns in answers.items()
        },
    }


def _trials() -> dict[str, Schema]:
    """Return the schemas of the sandbox, the demonstration, the simulator and the lab."""
    event = record(
        {"name": TEXT, "settled_s": _TYPES["number"], "unowned_partition_seconds": _TYPES["number"]}
    )
    entries = each(_trace_line())
    member = record({"n": TEXT, "k": TEXT, "s": TEXT, "ph": TEXT, "c": TEXT})
    at = {"t": _TYPES["number"]}
    return {
        "sandbox": record(
            {
                "zookeeper": null_or(TEXT),
                "bootstrap": null_or(TEXT),
                "directory": TEXT,
                "servers": rows(sandbox.SERVER_COLUMNS),
            }
        ),
        "sandbox-down": record({"stopped": each(TEXT), "directory": TEXT}),
        "sandbox-topic-create": record({"topic": TEXT, "partitions": rows(sandbox.PLACE_COLUMNS)}),
        "sandbox-topic-produce": record({"topic": TEXT, "messages": rows(sandbox.MESSAGE_COLUMNS)}),
        "demo": record(
            {"produced": NUMBER, "delivered": NUMBER, "lost": NUMBER, "duplicates": NUMBER}
            | {"double_owned": NUMBER, "events": each(event)}
        ),
        "simulate": entries,
        "simulate-lesson": each(mapping({"type": ["string", "number", "null"]})),
        "trace-show": entries,
        "trace-check": record({"transitions": NUMBER, "runs": NUMBER, "phases": mapping(TEXT)}),
        "lab-build": record({"directory": TEXT}),
        "lab-frames": {
            "anyOf": [
                record(at | {"members": each(member), "partitions": each({"type": "array"})}),
                {**record(at), "not": {"required": ["members"]}},
            ]
        },
    }


def _files() -> dict[str, Schema]:
    rights = null_or(each({"type": "array", "prefixItems": [TEXT, NUMBER], "items": False}))
    content = {"data": null_or({"type": "string", "contentEncoding": "base64"}), "acl": rights}
    stored = {"type": "array", "prefixItems": [NUMBER, TEXT], "items": False}
    change = {
        "path": TEXT,
        "before": null_or(record(content | {"version": NUMBER, "mzxid": NUMBER})),
        "after": null_or(record(content)),
    }
    in_kafka = {
        "group": TEXT,
        "topic": TEXT,
        "partition": NUMBER,
        "before": null_or(stored),
        "after": stored,
    }
    place = {"group": TEXT, "topic": TEXT, "partition": NUMBER}
    source = {"store": {"enum": ["zookeeper", "kafka"]}, **place, "offset": NUMBER}
    return {
        "plan": record(
            {
                "format": TEXT,
                "version": {"const": 1},
                "hash": TEXT,
                "made": record({"by": TEXT, "at": TEXT}),
                "notes": each(TEXT),
                "kind": TEXT,
                "chroot": TEXT,
                "changes": each(record(change)),
                "kafka": each(record(in_kafka)),
                "sources": each(record(source)),
            },
            optional=("sources",),
        ),
        "offsets": record(
            {"format": TEXT, "version": {"const": 1}, "groups": mapping(mapping(mapping(NUMBER)))}
        ),
        "trace": _trace_line(),
    }


def _trace_line() -> Schema:
    """Return the schema of a line of a trace."""
    decided = {
        "v": NUMBER,
        "t": {"type": "number"},
        "member": TEXT,
        "event": {"type": "object", "required": ["is"]},
        "from": TEXT,
        "to": TEXT,
        "commands": each({"type": "object", "required": ["is"]}),
        "state": TEXT,
    }
    return {
        "anyOf": [
            record({"v": NUMBER, "settings": {"type": "object", "required": ["is"]}}),
            record(decided),
            # The simulator's lines about events outside of the members.
            {**record({"v": NUMBER, "t": {"type": "number"}}), "not": {"required": ["event"]}},
        ]
    }


_TITLES: Mapping[str, str] = {
    "changes": "Output of every command that changes something, and of apply and undo",
    "offsets": "A file of `offsets export --format json`",
    "plan": "A plan file of --plan-out, and a backup",
    "trace": "A line of a trace file, and of `simulate --output jsonl`",
    "consume": "A line of `consume --output jsonl`",
    "sandbox": "Output of `sandbox up --output json` and of `sandbox status --output json`",
    "assign-assignor": (
        "Output of `assign --assignor NAME --output json`, and of `migrate --preview`"
    ),
    "assign-cases": "Output of `assign --cases FILE --output json`",
    "assign-assignor-cases": "Output of `assign --assignor NAME --cases FILE --output json`",
    **{
        f"compare-{name}": f"Output of `compare --show {name} --output json`"
        for name in ("growth", "sizes", "split-brain")
    },
    "simulate-list": "Output of `simulate --list --output json`",
    "judge-assignor": "Output of `judge --assignor --output json`",
    "judge-list": "Output of `judge --list --output json`",
    "simulate-lesson": "Output of `simulate --scenario LESSON --output json`",
    "lab-frames": "A line of the file of frames that the page of `lab` exports",
    **{
        f"explain-{name}-cases": f"Output of `explain {name} --cases FILE --output json`"
        for name in ("coordinator", "vote", "partitioner", "placement")
    },
}


def published() -> dict[str, Schema]:
    """Return all schemas by name."""
    parts: list[Callable[[], dict[str, Schema]]] = [
        _tables,
        _documents,
        _assignments,
        _trials,
        _files,
    ]
    found = {name: one for part in parts for name, one in part().items()}
    return {
        name: {
            "$schema": DIALECT,
            "title": _TITLES.get(name, f"Output of `{name.replace('-', ' ')} --output json`"),
            **one,
        }
        for name, one in sorted(found.items())
    }
