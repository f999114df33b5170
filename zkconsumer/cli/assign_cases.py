"""What `zkconsumer assign` reads and shows, whatever computes the assignment."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zkconsumer.cli.output import Align, Column, Output
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    from zkconsumer.admin.what_if import Place

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
"""Bytes of one uncompressed line of --cases. A group of 1,000 members with long registrations fits.
A longer line is an error, raised before the rest of the line is read."""

MAX_FILE_BYTES = 1024 * 1024 * 1024
"""Bytes of an uncompressed --cases file: a million groups of 1 kB. A longer file is an error."""


# ---- cases ---------------------------------------------------------------------------------------


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


# ---- places --------------------------------------------------------------------------------------


def moves(found: Sequence[Place]) -> str:
    """Return how many partitions change their owner, and how many gain or lose one."""
    moving = Counter(one.partition.topic for one in found if one.moves)
    text = f"{moving.total()} of {len(found)} partitions move"
    if moving:
        text += f" ({', '.join(f'{topic}: {count}' for topic, count in moving.items())})"
    new = sum(one.now is None for one in found)
    lost = sum(one.then is None for one in found)
    text += f"; {new} without an owner get one" if new else ""
    return text + (f"; {lost} lose their owner" if lost else "")


def move_documents(found: Iterable[Place]) -> list[dict[str, object]]:
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


def row(one: Place) -> dict[str, object]:
    topic, partition = one.partition
    move = f"{one.now} -> {one.then}" if one.moves else None
    return {
        "topic": topic,
        "partition": partition,
        "thread": one.then,
        "owner": one.now,
        "move": move,
    }
