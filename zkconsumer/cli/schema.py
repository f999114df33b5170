"""`zkconsumer schema`: the JSON Schemas of commands' output, and of the files that they write.

docs/schemas/ contains the schemas, and the package contains these files. The fields are stable: a
minor release may add fields. Only a major release renames or removes a field, or changes its type.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Annotated

import typer

from zkconsumer.errors import ConfigError
from zkconsumer.protocol.model import JsonObject


def schemas() -> dict[str, JsonObject]:
    """Return all schemas by name."""
    found = sorted((files("zkconsumer") / "docs" / "schemas").iterdir(), key=lambda one: one.name)
    return {
        one.name.removesuffix(".json"): json.loads(one.read_text(encoding="utf-8")) for one in found
    }


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
            typer.echo(f"{one:<27}{document['title']}")
        return
    if name not in found:
        raise ConfigError(
            f"no schema is called {name!r}", remedy="`zkconsumer schema` lists the schemas"
        )
    typer.echo(json.dumps(found[name], indent=2))
