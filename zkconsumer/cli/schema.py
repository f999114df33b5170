"""`zkconsumer schema`: JSON Schemas of the commands' output and of the files that they write.

The schema of a table is derived from the columns that its command writes. docs/schemas/ contains
all schemas. Their fields are promises: a later release may add fields, and does not rename, retype
or remove one without a new major version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

import typer

from zkconsumer.cli.output import Column
from zkconsumer.errors import ConfigError
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
    from zkconsumer.cli import (
        apply,
        backups,
        compare,
        context,
        doctor,
        groups,
        lag,
        members,
        migrate,
        offsets,
        topics,
    )

    partitions = rows(lag.COLUMNS, optional=(lag.GROUP, lag.STATUS))
    return {
        "lag": partitions,
        "members": rows(members.COLUMNS),
        "groups-list": rows(groups.LIST_COLUMNS),
        "groups-show": record({"members": rows(members.COLUMNS), "partitions": partitions}),
        "topics-list": rows(topics.LIST_COLUMNS),
        "topics-show": rows(topics.SHOW_COLUMNS),
        "offsets-get": rows(offsets.COLUMNS),
        "verify": rows(doctor.VERIFY_COLUMNS),
        "doctor": rows(doctor.COLUMNS),
        "migrate": rows(migrate.COLUMNS),
        "compare": rows(compare.COLUMNS),
        "compare-growth": rows(compare.GROWTH),
        "compare-sizes": rows(compare.SIZES),
        "compare-split-brain": rows(compare.SPLIT),
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
    assignment = mapping(mapping(mapping(TEXT)))  # consumer -> topic -> partition -> thread
    partition = {"topic": TEXT, "partition": NUMBER}
    owner = null_or(TEXT)
    return {
        "owners": record(
            {
                "members": mapping({"anyOf": [mapping(NUMBER), TEXT]}),
                "partitions": each(
                    record(
                        partition
                        | {"owner": owner, "consumer": owner, "session": owner}
                        | {"offset": null_or(NUMBER), "fault": TEXT}
                    )
                ),
            }
        ),
        "assign": record(
            {
                "release": TEXT,
                "reason": TEXT,
                "disagreements": mapping(TEXT),
                "assignment": assignment,
                "errors": mapping(record({"error": TEXT, "message": null_or(TEXT)})),
                "moves": each(record(partition | {"from": owner, "to": owner})),
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
            | {"key": owner, "key_base64": TEXT, "value": owner, "value_base64": TEXT},
            optional=("key", "key_base64", "value", "value_base64"),
        ),
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
            }
        ),
        "offsets": record(
            {"format": TEXT, "version": {"const": 1}, "groups": mapping(mapping(mapping(NUMBER)))}
        ),
        "trace": {
            "anyOf": [
                record({"v": NUMBER, "settings": {"type": "object", "required": ["is"]}}),
                record(decided),
                # The simulator's lines about events outside of the members.
                {**record({"v": NUMBER, "t": {"type": "number"}}), "not": {"required": ["event"]}},
            ]
        },
    }


_TITLES: Mapping[str, str] = {
    "changes": "Output of every command that changes something, and of apply and undo",
    "offsets": "A file of `offsets export --format json`",
    "plan": "A plan file of --plan-out, and a backup",
    "trace": "A line of a trace file, and of `simulate --output jsonl`",
    "consume": "A line of `consume --output jsonl`",
}


def schemas() -> dict[str, Schema]:
    """Return all schemas by name."""
    parts: list[Callable[[], dict[str, Schema]]] = [_tables, _documents, _files]
    found = {name: one for part in parts for name, one in part().items()}
    return {
        name: {
            "$schema": DIALECT,
            "title": _TITLES.get(name, f"Output of `{name.replace('-', ' ')} --output json`"),
            **one,
        }
        for name, one in sorted(found.items())
    }


# ---- zkconsumer schema ---------------------------------------------------------------------------


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of a schema; without it, all names.")
    ] = None,
) -> None:
    """Print the JSON Schema of a command's output, of a plan, or of a trace.

    A schema of a table describes the array of `--output json`; its `items` describe a line of
    `--output jsonl`.

    Example: zkconsumer schema lag
    """
    found = schemas()
    if name is None:
        for one, document in found.items():
            typer.echo(f"{one:<14}{document['title']}")
        return
    if name not in found:
        raise ConfigError(
            f"no schema is called {name!r}", remedy="`zkconsumer schema` lists the schemas"
        )
    typer.echo(json.dumps(found[name], indent=2))
