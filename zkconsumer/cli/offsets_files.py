"""`zkconsumer offsets export` and `import`: offsets to a file, and from one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from zkconsumer.admin.formats import FileFormat
from zkconsumer.cli.changing import Changing, beside_kafka, carry_out, changing
from zkconsumer.cli.options import Common, Groups, OneGroup, Topics, operator, topics_of
from zkconsumer.cli.output import say, say_all
from zkconsumer.core.model import Storage
from zkconsumer.core.paths import validate_group
from zkconsumer.errors import ConfigError


@operator
def export(
    common: Common,
    *,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="By default, or as -, standard output.")
    ] = None,
    group: Groups = None,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="Every group there is.")] = False,
    topic: Topics = None,
    format_: Annotated[
        FileFormat, typer.Option("--format", "-f", help="legacy: as ExportZkOffsets.")
    ] = FileFormat.JSON,
    storage: Annotated[
        Storage, typer.Option("--storage", help="Where the offsets are kept (offsets.storage).")
    ] = Storage.ZOOKEEPER,
) -> None:
    """Write committed offsets to a file. Reads only.

    For `offsets import`, and for other tools. Exit code 1: some offsets could not be read, which
    are named and left out.

    Example: zkconsumer offsets export offsets.txt -g billing --format legacy
    """
    from zkconsumer.admin.formats import write_offsets  # noqa: PLC0415
    from zkconsumer.admin.images import read_group_names  # noqa: PLC0415
    from zkconsumer.admin.moving import read_committed  # noqa: PLC0415
    from zkconsumer.cli import Exit  # noqa: PLC0415

    if all_groups and group:
        raise ConfigError("all groups, or some: not both", where="--group, --all-groups")
    names = [] if all_groups else [common.group(name) for name in group or (None,)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"group {twice[0]} is named twice", where="--group")
    with common.connect(names[0] if names else None) as connection:
        found, notes = read_committed(
            connection, names or read_group_names(connection), topics=topics_of(topic),
            storage=storage, limit_s=connection.config.zookeeper_connection_timeout_s,
        )  # fmt: skip
    say_all(notes)
    offsets = {name: of for name, of in found.items() if of}
    for name in found.keys() - offsets.keys():
        say(f"group {name} has no such offsets")
    if not offsets:
        raise ConfigError("there is nothing to export", where=storage.value)
    text = write_offsets(offsets, format_)
    file = None if str(file) == "-" else file
    _put(text, file)
    if file is not None:
        say(f"{sum(map(len, offsets.values()))} offsets are in {file}")
    if notes:
        raise typer.Exit(Exit.PROBLEM)


def _put(text: str, file: Path | None) -> None:
    if file is None:
        sys.stdout.write(text)
        return
    try:
        with file.open("x", encoding="utf-8", newline="\n") as out:
            out.write(text)
    except OSError as error:
        raise ConfigError(
            f"the file cannot be written: {error.strerror}", where=str(file),
            remedy="name one that does not exist",
        ) from error


@changing
def import_(
    common: Common,
    how: Changing,
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="In any format of export; - is standard input.")
    ],
    group: OneGroup = None,
) -> None:
    """Set offsets in ZooKeeper as a file says. A dry run without --execute.

    The whole file is checked before anything is written; no broker is needed.

    Example: zkconsumer offsets import offsets.txt --execute
    """
    from zkconsumer.admin.formats import read_file  # noqa: PLC0415
    from zkconsumer.admin.moving import plan_import  # noqa: PLC0415

    offsets = read_file(file, group=None if group is None else validate_group(group))
    with common.connect(next(iter(offsets))) as connection:
        plan = plan_import(connection, offsets)
        carry_out(common, connection, beside_kafka(connection, plan, *offsets), how)
