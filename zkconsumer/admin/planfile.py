"""A plan as a file: JSON with a version, read strictly, since a file may come from anywhere.

A backup is the same file, written and flushed to the disk before the first write: `undo` reads the
old state from it, and `apply` finishes what a crash has left half done.
"""

from __future__ import annotations

import binascii
import getpass
import json
import os
import socket
import stat
import tempfile
from base64 import b64decode
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from zkconsumer.admin.plan import (
    Change,
    Content,
    KafkaChange,
    Plan,
    State,
)
from zkconsumer.core import paths
from zkconsumer.core.javatext import MAX_INT32
from zkconsumer.core.model import OffsetAndMetadata, TopicPartition
from zkconsumer.errors import BadFileError, ConfigError, ZkConsumerError, shown
from zkconsumer.zk.requests import MAX_PAYLOAD_BYTES, Right

FORMAT: Final = "zkconsumer-plan"
VERSION: Final = 1

MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""Bytes. A plan of a million offsets; a longer file is refused before it is read."""


def who() -> str:
    """The user and the machine, for the audit line."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def dumps(plan: Plan) -> str:
    """A plan as the text of a file, with who made it and when."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "hash": plan.hash,
        "made": {"by": who(), "at": datetime.now(UTC).isoformat(timespec="seconds")},
        "notes": list(plan.notes),
    }
    lines = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    return f"{{\n{lines}{plan.body}\n}}\n"


def save(plan: Plan, path: Path) -> Path:
    """Write a plan where no file is yet: whole or not at all, readable by its owner alone.

    When this returns the file and its name are on the disk.
    Raises ConfigError when it cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(dumps(plan))
                file.flush()
                os.fsync(file.fileno())
            os.link(name, path)  # unlike a rename, never over another file
        finally:
            os.unlink(name)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise ConfigError(
            f"the plan cannot be written: {error.strerror}", where=str(path),
            remedy="name a file that does not exist, in a directory that may be written",
        ) from error
    return path


def load(path: Path) -> Plan:
    """Read a plan or a backup. Raises BadFileError; nothing of a faulty file is used.

    Only a regular file is read. Another client may have put a FIFO in its place, which would block
    this process for ever, or a device, which has no end.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer.
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _bad(path, "not a regular file")
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise _bad(path, f"longer than {MAX_FILE_BYTES} bytes")
        text = data.decode()
    except OSError as error:
        raise _bad(path, error.strerror or type(error).__name__) from error
    except UnicodeDecodeError as error:
        raise _bad(path, "no UTF-8") from error
    return loads(text, path=path)


def loads(text: str, *, path: Path) -> Plan:
    """As `load`, of a text; `path` is for the errors."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"no JSON: {error}") from error
    try:
        plan = _plan(document, str(path))
    except (_Fault, ZkConsumerError) as error:
        raise _bad(path, str(error)) from error
    if plan.hash != document.get("hash"):
        raise _bad(path, "its contents are not those that its hash stands for: it was changed")
    return plan


def _bad(path: Path, why: str) -> BadFileError:
    return BadFileError(
        f"this is no plan: {why}", where=str(path),
        remedy="use a file of --plan-out, or a backup, as it was written",
    )


# ---- reading ------------------------------------------------------------------------------------


class _Fault(Exception):
    """What is wrong, and in which entry."""


def _plan(document: Any, origin: str) -> Plan:
    fields = {"format", "version", "hash", "made", "notes", "kind", "chroot", "changes", "kafka"}
    one = _object(document, fields, "the file")
    if one["format"] != FORMAT or one["version"] != VERSION or type(one["version"]) is not int:
        raise _Fault(f"format {FORMAT} of version {VERSION} is due")
    changes = tuple(_change(it, f"changes[{n}]") for n, it in enumerate(_list(one["changes"])))
    kafka = tuple(_kafka(it, f"kafka[{n}]") for n, it in enumerate(_list(one["kafka"])))
    _unlike((it.path for it in changes), "path")
    _unlike(((it.group, it.partition) for it in kafka), "partition")
    notes = tuple(_text(it, "notes") for it in _list(one["notes"]))
    return Plan(
        _text(one["kind"], "kind"), _text(one["chroot"], "chroot"), changes, kafka, notes, origin
    )


def _change(value: Any, where: str) -> Change:
    one = _object(value, {"path", "before", "after"}, where)
    path = _text(one["path"], where)
    group, _, below = path.removeprefix(paths.group("")).partition("/")
    if path != paths.group(group) + (below and f"/{below}"):
        raise _Fault(f"{where}: {shown(path)} is not below a group")
    paths.validate_group(group)
    if below and (fault := paths.znode_fault(below)):
        raise _Fault(f"{where}: {shown(path)}: {fault}")
    before = None if one["before"] is None else _state(one["before"], f"{where}.before")
    after = None if one["after"] is None else _content(one["after"], f"{where}.after")
    if before is None and after is None:
        raise _Fault(f"{where} changes nothing")
    return Change(path, before, after)


def _state(value: Any, where: str) -> State:
    one = _object(value, {"data", "acl", "version", "mzxid"}, where)
    content = _content({"data": one["data"], "acl": one["acl"]}, where)
    version, mzxid = (_number(one[name], where, lowest=0) for name in ("version", "mzxid"))
    return State(content.data, version, mzxid, content.rights)


def _content(value: Any, where: str) -> Content:
    one = _object(value, {"data", "acl"}, where)
    rights = None if one["acl"] is None else tuple(_right(it, where) for it in _list(one["acl"]))
    return Content(_bytes(one["data"], where), rights)


def _bytes(value: Any, where: str) -> bytes | None:
    if value is None:
        return None
    try:
        data = b64decode(_text(value, where), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _Fault(f"{where}: data are no base64") from error
    if len(data) > MAX_PAYLOAD_BYTES:
        raise _Fault(f"{where}: data are longer than {MAX_PAYLOAD_BYTES} bytes")
    return data


def _right(value: Any, where: str) -> Right:
    match value:
        case [str(identity), int(permissions)] if 0 <= permissions <= 31 and ":" in identity:
            return Right(identity, permissions)
    raise _Fault(f"{where}: no entry of an access control list")


def _kafka(value: Any, where: str) -> KafkaChange:
    one = _object(value, {"group", "topic", "partition", "before", "after"}, where)
    group = paths.validate_group(_text(one["group"], where))
    topic = paths.validate_topic(_text(one["topic"], where))
    partition = _number(one["partition"], where, lowest=0, highest=MAX_INT32)
    before = None if one["before"] is None else _stored(one["before"], where)
    return KafkaChange(
        group, TopicPartition(topic, partition), before, _stored(one["after"], where)
    )


def _stored(value: Any, where: str) -> OffsetAndMetadata:
    match value:
        case [int(offset), str(metadata)] if offset >= 0:
            return OffsetAndMetadata(offset, metadata)
    raise _Fault(f"{where}: no offset with its metadata")


def _object(value: Any, fields: set[str], where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != fields:
        raise _Fault(f"{where}: an object with {', '.join(sorted(fields))} is due, nothing else")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _Fault("a list is due")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _Fault(f"{where}: a text is due")
    return value


def _number(value: Any, where: str, *, lowest: int, highest: int = 2**63 - 1) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise _Fault(f"{where}: a number from {lowest} on is due")
    return value


def _unlike(keys: Iterable[object], what: str) -> None:
    seen: set[object] = set()
    for key in keys:
        if key in seen:
            raise _Fault(f"{what} {key} is there twice")
        seen.add(key)
