"""Files of ExportZkOffsets, read as ImportZkOffsets reads them, but in full and strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core import paths
from zkconsumer.core.javatext import parse_int64
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.paths import Kind, locate, shown, validate_group, validate_topic
from zkconsumer.errors import ConfigError, InvalidNameError

_LINE = re.compile(r"\r\n|\r|\n")  # as Java's BufferedReader


@dataclass(frozen=True, slots=True)
class Exported:
    """The offsets of a file by group and partition, the last line for one winning.

    `unread`: the number of the first line that was not read, since the file ends for the JVM at its
    first empty line; 0 if all were.
    """

    offsets: Mapping[tuple[str, TopicPartition], int]
    unread: int


def read_export(data: bytes, *, where: str) -> Exported:
    """Read a whole file. Raises ConfigError with the line of the first fault.

    Stricter than the JVM, which wrote whatever stood there wherever it said, and so could break
    every member of a group: a line is the path of an offset, a colon, and a number.
    """
    try:
        lines = _LINE.split(data.decode())
    except UnicodeDecodeError as error:
        raise _fault("this is not UTF-8", where, data[: error.start].count(b"\n") + 1) from error
    offsets: dict[tuple[str, TopicPartition], int] = {}
    for number, line in enumerate(lines, start=1):
        if not line:
            rest = any(lines[number:])
            return Exported(offsets, number if rest else 0)
        group, tp, offset = _read(line, where, number)
        offsets[group, tp] = offset
    return Exported(offsets, 0)


def _read(line: str, where: str, number: int) -> tuple[str, TopicPartition, int]:
    path, colon, text = line.partition(":")
    if line.startswith("\ufeff"):
        raise _fault("it begins with a byte order mark", where, number)
    if not colon:
        raise _fault(f"{shown(line)} has no colon", where, number)
    at = locate(path)
    if at.kind is not Kind.OFFSET or at.partition < 0:
        raise _fault(f"{shown(path)} is no path of an offset", where, number)
    try:
        validate_group(at.group)
        validate_topic(at.name)
    except InvalidNameError as error:
        raise _fault(error.what, where, number) from error
    try:
        offset = parse_int64(text)
    except ValueError as error:
        raise _fault(f"{shown(text)} is no offset", where, number) from error
    return at.group, TopicPartition(at.name, at.partition), offset


def _fault(what: str, where: str, number: int) -> ConfigError:
    example = paths.offset("GROUP", TopicPartition("TOPIC", 0))
    return ConfigError(
        what, where=f"{where}:{number}",
        remedy=f"a line is like {example}:42; nothing was imported",
    )
