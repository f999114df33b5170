"""Files of offsets in four formats. The reader detects the format, and reads the whole file first.

Only the lines of Storm's spouts (`read_storm_file`) are not detected, because they name no group.

- lines of Kafka's ExportZkOffsets, which ImportZkOffsets reads (0.8 to 1.1): path of the offset
  znode, colon, offset;
- CSV of kafka-consumer-groups: `topic,partition,offset`, optionally preceded by the group;
- JSON of kafka-utils (`offset_save`): `{"groupid": G, "offsets": {T: {"0": 5}}}`;
- zkconsumer's JSON, which holds several groups.

A line may end with CR LF, as Java's readers accept. Any fault is an error that names the line: an
empty line before other lines (where the JVM's tool silently stops), a byte order mark, a repeated
partition, an illegal name.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Final

from zkconsumer.errors import Advice, BadFileError, InvalidNameError, RemedyOperation, quoted
from zkconsumer.protocol import paths
from zkconsumer.protocol.java.text import MAX_INT32, parse_int64
from zkconsumer.protocol.model import Json, JsonObject, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.programs import read_spout

Offsets = dict[str, dict[TopicPartition, int]]
"""Group -> partition -> offset."""

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a file in bytes; enough for a million offsets. A larger file is an error, since
the whole file is kept in memory."""

MAX_LINE: Final = 4_096
"""Maximum length of a line in characters; the longest names need 600. A longer line is an error."""

OURS: Final = "zkconsumer-offsets"


_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class FileFormat(Enum):
    """Format of a file of offsets."""

    JSON = "json"
    CSV = "csv"
    KAFKA_UTILS = "kafka-utils"
    LEGACY = "legacy"  # the format of ExportZkOffsets


class FileError(Exception):
    """A fault in a file. `line` is the number of the faulty line, or 0 if the line is unknown."""

    def __init__(self, what: str, line: int = 0) -> None:
        super().__init__(what)
        self.line = line


def read_file(path: Path, *, group: str | None = None) -> Offsets:
    """Return the offsets of a file, or of standard input for "-". Raises BadFileError."""
    return read_offsets(_contents(path), where=str(path), group=group)


def _contents(path: Path) -> bytes:
    """Return a file's contents, up to one byte more than `MAX_FILE_BYTES`. Raises BadFileError."""
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadFileError(f"the file cannot be read: {error.strerror}", where=str(path)) from error


def read_offsets(data: bytes, *, where: str, group: str | None = None) -> Offsets:
    """Return all offsets of a file's contents; errors name the file `where`.

    `group` is the group of a file that names none; a file that names another group is an error.
    Raises BadFileError.
    """
    return _parsed(data, where, lambda text: _collected(_entries(text, group), group))


def _parsed(data: bytes, where: str, parse: Callable[[str], Offsets]) -> Offsets:
    try:
        if len(data) > MAX_FILE_BYTES:
            raise FileError(f"the file is longer than {MAX_FILE_BYTES} bytes")
        return parse(decoded(data))
    except (FileError, InvalidNameError) as error:
        line = getattr(error, "line", 0)
        raise BadFileError(
            str(error) if isinstance(error, FileError) else error.what,
            where=f"{where}:{line}" if line else where,
            remedy="correct the file, and try again; no offset of it was used",
        ) from error


def decoded(data: bytes) -> str:
    """Return the text of a file. Raises FileError."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FileError("the file is not UTF-8", data[: error.start].count(b"\n") + 1) from error
    if text.startswith("\ufeff"):
        raise FileError("the file begins with a byte order mark", 1)
    return text


_Entry = tuple[int, str, str, int, int]  # line, group, topic, partition, offset


def _entries(text: str, group: str | None) -> Iterable[_Entry]:
    start = text.lstrip()[:1]
    if start == "{":
        return _json(text)
    return (_path_line if start == "/" else _csv_line)(_lines(text), group)


def _collected(entries: Iterable[_Entry], only: str | None) -> Offsets:
    found: Offsets = {}
    legal: set[tuple[str, str]] = set()
    for line, group, topic, partition, offset in entries:
        if (group, topic) not in legal:
            check_names(line, group, topic)
            legal.add((group, topic))
        if only is not None and group != only:
            raise FileError(f"the offset is of group {quoted(group)}, not of {quoted(only)}", line)
        tp = TopicPartition(topic, partition)
        of_group = found.setdefault(group, {})
        if tp in of_group:
            raise FileError(f"{tp} of group {group} occurs twice", line)
        of_group[tp] = offset
    if not found:
        raise FileError("the file holds no offsets")
    return found


def check_names(line: int, group: str, topic: str) -> None:
    """Check the names of a group that may exist, and of a topic. Raises FileError."""
    try:
        paths.validate_group_znode(group)
        paths.validate_topic(topic)
    except InvalidNameError as error:
        raise FileError(error.what, line) from error


def read_storm_file(path: Path, *, group: str) -> Offsets:
    """Return the offsets of a file with the payloads of a Storm spout's znodes, one per line.

    Storm's `PartitionManager` writes the payloads; the group is the one that will continue. Raises
    BadFileError.
    """

    def entries(lines: Iterable[tuple[int, str]]) -> Iterator[_Entry]:
        for number, line in lines:
            found = read_spout(line.encode())
            if found is None:
                raise FileError(f"{quoted(line)} is not an offset of a Storm spout", number)
            yield number, group, *found.partition, found.offset

    return _parsed(
        _contents(path), str(path), lambda text: _collected(entries(_lines(text)), group)
    )


# ---- lines --------------------------------------------------------------------------------------


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers. Raises FileError for an empty line before other lines."""
    empty = 0
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.removesuffix("\r")
        _check_length(line, number)
        if not line:
            empty = empty or number
            continue
        if empty:
            raise FileError("the line is empty, and other lines follow", empty)
        yield number, line


def _check_length(line: str, number: int) -> None:
    if len(line) > MAX_LINE:
        raise FileError(f"the line is longer than {MAX_LINE} characters", number)


def _path_line(lines: Iterable[tuple[int, str]], group: str | None) -> Iterator[_Entry]:
    for number, line in lines:
        of, tp, text = path_line(line, number)
        yield number, of, *tp, _offset(text, number)


def path_line(line: str, number: int) -> tuple[str, TopicPartition, str]:
    """Return the group, the partition and the offset's text of a line of ExportZkOffsets.

    The caller validates the names. Raises FileError.
    """
    _check_length(line, number)
    path, colon, text = line.rpartition(":")  # the name of a group may contain a colon
    at = paths.locate(path)
    if not colon or at.kind is not ZnodeKind.OFFSET:
        example = paths.offset("GROUP", TopicPartition("TOPIC", 0))
        raise FileError(f"{quoted(line)} is not of the form {example}:42", number)
    return at.group, TopicPartition(at.name, _partition(at.partition, number)), text


_HEADERS = (["topic", "partition", "offset"], ["group", "topic", "partition", "offset"])


def _csv_line(lines: Iterable[tuple[int, str]], group: str | None) -> Iterator[_Entry]:
    for number, line in lines:
        try:
            (cells,) = csv.reader([line], strict=True)
        except (csv.Error, ValueError) as error:
            raise FileError(f"{quoted(line)} is not a line of CSV", number) from error
        if number == 1 and [one.strip().lower() for one in cells] in _HEADERS:
            continue
        if len(cells) not in (3, 4):
            raise FileError(
                f"{quoted(line)} is not of the form [group,]topic,partition,offset", number
            )
        if len(cells) == 3 and group is None:
            raise FileError("the line names no group, and no group is given for the file", number)
        of = cells[0] if len(cells) == 4 else group or ""
        topic, partition, offset = cells[-3:]
        if not _PARTITION.fullmatch(partition):
            raise FileError(f"{quoted(partition)} is not a partition", number)
        yield number, of, topic, _partition(int(partition), number), _offset(offset, number)


def _partition(number: int, line: int) -> int:
    if not 0 <= number <= MAX_INT32:
        raise FileError(f"{number} is not a partition", line)
    return number


def java_offset(text: str, line: int) -> int:
    """Return the number that Java's `Long.parseLong` returns. Raises FileError."""
    try:
        return parse_int64(text)
    except ValueError as error:
        raise FileError(f"{quoted(text)} is not an offset", line) from error


def _offset(text: str, line: int) -> int:
    offset = java_offset(text, line)
    if offset < 0:
        raise FileError(f"{offset} is not an offset: a negative number means no offset", line)
    return offset


# ---- JSON ---------------------------------------------------------------------------------------


def _json(text: str) -> Iterator[_Entry]:
    try:
        document = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise FileError(f"the file is not JSON: {error.msg}", error.lineno) from error
    except (RecursionError, ValueError) as error:
        raise FileError(f"the file is not JSON: {error}") from error
    match document:
        case {"format": str(name), "version": int(version), "groups": dict(groups)}:
            if (name, version, len(document)) != (OURS, 1, 3):
                raise FileError(f"the format is not {OURS}, version 1")
        case {"groupid": str(group), "offsets": dict(offsets)}:
            groups = {group: offsets}
        case _:
            raise FileError(
                f"the file is neither {OURS} nor JSON of kafka-utils (groupid, offsets)"
            )
    for group, topics in groups.items():
        for topic, partitions in _object(topics, group).items():
            for number, offset in _object(partitions, topic).items():
                if type(offset) is not int or not 0 <= offset < 2**63:
                    raise FileError(
                        f"{group} {topic} {number}: {quoted(str(offset))} is not an offset"
                    )
                if not _PARTITION.fullmatch(number):
                    raise FileError(f"{group} {topic}: {quoted(number)} is not a partition")
                yield 0, group, topic, _partition(int(number), 0), offset


def _object(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise FileError(f"{quoted(name)} is not an object")
    return value


def _once(pairs: list[tuple[str, Json]]) -> JsonObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FileError("an object has a name twice")
    return found


# ---- writing ------------------------------------------------------------------------------------


def importable(
    offsets: Mapping[str, Mapping[TopicPartition, int]],
) -> tuple[Offsets, list[str]]:
    """Return the offsets that `read_offsets` accepts, and a note on each of the others.

    Other clients write offsets of topics that Kafka does not allow, and of negative partitions.
    """
    found: Offsets = {}
    notes = []
    for group, of_group in offsets.items():
        found[group] = {}
        for tp, offset in of_group.items():
            if paths.is_topic(tp.topic) and tp.partition >= 0:
                found[group][tp] = offset
            else:
                notes.append(f"{group} {tp} is left out: Kafka allows no such partition")
    return found, notes


def write_offsets(offsets: Mapping[str, Mapping[TopicPartition, int]], to: FileFormat) -> str:
    """Return offsets as the text of a file, sorted; `read_offsets` reads it.

    Raises BadFileError if several groups are to be written in the format of kafka-utils, which
    holds one group.
    """
    entries = [
        (group, *tp, at) for group, of in sorted(offsets.items()) for tp, at in sorted(of.items())
    ]
    if to is FileFormat.LEGACY:
        return "".join(
            f"{paths.offset(group, TopicPartition(topic, partition))}:{at}\n"
            for group, topic, partition, at in entries
        )
    if to is FileFormat.CSV:
        out = io.StringIO()
        single = 1 if len(offsets) == 1 else 0
        csv.writer(out, lineterminator="\n").writerows(one[single:] for one in entries)
        return out.getvalue()
    groups: dict[str, dict[str, dict[str, int]]] = {}
    for group, topic, partition, at in entries:
        groups.setdefault(group, {}).setdefault(topic, {})[str(partition)] = at
    if to is FileFormat.JSON:
        document: dict[str, object] = {"format": OURS, "version": 1, "groups": groups}
        return json.dumps(document, indent=1) + "\n"
    if len(groups) != 1:
        raise BadFileError(
            f"{len(groups)} groups do not fit into the JSON of kafka-utils, which holds one group",
            remedy="write one group per file, or choose another format",
            advice=Advice(RemedyOperation.OTHER_FORMAT),
        )
    ((group, of_group),) = groups.items()
    return json.dumps({"groupid": group, "offsets": of_group}, indent=1) + "\n"
