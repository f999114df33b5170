"""Files of ExportZkOffsets, read as ImportZkOffsets reads them, but in full and strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.admin.formats import Fault, check_names, decoded, java_offset, path_line
from zkconsumer.core.model import TopicPartition
from zkconsumer.errors import ConfigError

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
    offsets: dict[tuple[str, TopicPartition], int] = {}
    try:
        lines = _LINE.split(decoded(data))
        for number, line in enumerate(lines, start=1):
            if not line:
                rest = any(lines[number:])
                return Exported(offsets, number if rest else 0)
            group, tp, text = path_line(line, number)
            check_names(number, group, tp.topic)
            offsets[group, tp] = java_offset(text, number)
    except Fault as fault:
        raise ConfigError(
            str(fault), where=f"{where}:{fault.line}", remedy="mend it; nothing was imported"
        ) from fault
    return Exported(offsets, 0)
