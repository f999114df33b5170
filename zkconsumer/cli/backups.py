"""`zkconsumer backups`: the backups that changing commands wrote before their first write.

The default directory is in the user's state directory, with one directory for each ZooKeeper
ensemble. So `undo --last` finds the last change of this cluster, from any working directory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from zkconsumer.cli.options import Display, OneGroup, operator
from zkconsumer.cli.output import LISTED, Align, Column, Unknown
from zkconsumer.errors import BadFileError, ConfigError
from zkconsumer.protocol.model import JsonObject

_NAME = re.compile(r"zkconsumer-backup-.*-(\d{8}T\d{6}\.\d{6}Z)-[0-9a-f]{12}\.json")
_MAX_SLUG: Final = 120
"""Maximum length of a directory's name in characters; a longer list of hosts is cut."""

BackupDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Directory of the backup, which `zkconsumer undo` reads; default: the user's state"
        " directory (`zkconsumer backups list`).",
    ),
]


def backups_directory() -> Path:
    """Return the directory of all backups, in $XDG_STATE_HOME or ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "zkconsumer" / "backups"


def cluster_directory(hosts: str) -> Path:
    """Return the directory of the backups of one ensemble; `hosts` is host:port,host:port,..."""
    name = ",".join(sorted(hosts.split(",")))
    return backups_directory() / re.sub(r"[^\w.,:-]", "_", name)[:_MAX_SLUG]


def made_directory(given: Path | None, hosts: str) -> Path:
    """Return the directory for a new backup; create the default one.

    Raises ConfigError if the directory cannot be created.
    """
    if given is not None:
        return given
    directory = cluster_directory(hosts)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the directory of the backups cannot be created: {error.strerror}",
            where=str(directory),
            remedy="give --backup-dir DIR, or set XDG_STATE_HOME",
        ) from error
    return directory


def last_backup(directory: Path, chroot: str, group: str | None) -> Path:
    """Return the newest backup of this chroot, and of this group if it is given.

    Raises ConfigError if there is none.
    """
    from zkconsumer.admin.plan import load_plan

    for path in sorted(_files(directory), key=_made_at, reverse=True):
        plan = load_plan(path)
        if plan.chroot == chroot and (group is None or group in plan.groups):
            return path
    of = "" if group is None else f" of group {group}"
    raise ConfigError(
        f"there is no backup{of} below the chroot {chroot or '/'}",
        where=str(directory),
        remedy="`zkconsumer backups list` lists the backups; name one as BACKUP",
    )


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.glob("**/zkconsumer-backup-*.json") if _made_at(path))


def _made_at(path: Path) -> str:
    found = _NAME.fullmatch(path.name)
    return found[1] if found else ""


# ---- zkconsumer backups --------------------------------------------------------------------------


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List the backups, which `zkconsumer undo` and `zkconsumer apply` read.",
)

COLUMNS = (
    Column("made", type="string"),
    Column("kind"),
    Column("groups", type="strings?", show=", ".join, most=LISTED),
    Column("changes", align=Align.RIGHT),
    Column("by", drop_order=1),
    Column("chroot", wide_only=True),
    Column("path", type="string"),
)


@app.callback()
def _backups() -> None:
    pass


@app.command("list")
@operator()
def list_(display: Display, *, backup_dir: BackupDir = None, group: OneGroup = None) -> None:
    """List the backups, the newest first. Changes nothing.

    Example: zkconsumer backups list --group billing
    """
    directory = backup_dir or backups_directory()
    files = sorted(_files(directory), key=_made_at, reverse=True)
    rows = map(_row, files)
    display.write((row for row in rows if group is None or group in (row["groups"] or ())), COLUMNS)


def _row(path: Path) -> JsonObject:
    from zkconsumer.admin.plan import load_plan

    made = datetime.strptime(_made_at(path), "%Y%m%dT%H%M%S.%fZ")
    row: JsonObject = {"made": f"{made.isoformat(timespec='seconds')}Z", "path": str(path)}
    try:
        plan = load_plan(path)
        by = json.loads(path.read_text(encoding="utf-8"))["made"]["by"]
    except BadFileError as error:
        unknown = Unknown(str(error))
        return row | {"kind": unknown, "changes": unknown, "groups": None}
    return row | {
        "kind": plan.kind,
        "groups": list(plan.groups),
        "changes": len(plan),
        "by": by,
        "chroot": plan.chroot or "/",
    }
