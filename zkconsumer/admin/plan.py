"""A change to groups, as a value: what is to be written, and what stood there when it was planned.

A plan holds the version of every znode that it read, which is what applying it is bound to: `apply`
writes nothing if anything else stands there by then. A plan is also the way back: it holds all that
it takes away, access control lists included. As a file: `admin.plan`.

A plan as a file: JSON with a version, read strictly, since a file may come from anywhere.

A backup is the same file, written and flushed to the disk before the first write: `undo` reads the
old state from it, and `apply` finishes what a crash has left half done.
"""

from __future__ import annotations

import binascii
import getpass
import hashlib
import json
import os
import socket
import stat
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from zkconsumer.errors import BadFileError, ConfigError, MalformedZnodeError, ZkConsumerError, shown
from zkconsumer.protocol import paths
from zkconsumer.protocol.java.text import MAX_INT32
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.paths import Kind
from zkconsumer.protocol.payloads import decode_offset
from zkconsumer.protocol.requests import (
    MAX_PAYLOAD_BYTES,
    Create,
    Delete,
    Node,
    Right,
    SetData,
    Write,
)


class State(NamedTuple):
    """A znode as it was read; `rights` where the plan takes it away."""

    data: bytes | None
    version: int
    mzxid: int
    rights: tuple[Right, ...] | None = None


class Content(NamedTuple):
    """A znode as it is to be; `rights` None: as the configuration says (`zookeeper.acl`)."""

    data: bytes | None
    rights: tuple[Right, ...] | None = None


class Verb(Enum):
    """What a change does to its znode."""

    CREATE = "create"
    SET = "set"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Change:
    """One znode: `before` is what stood there (None: nothing), `after` what is to (None: nothing).

    A znode that stays keeps its access control list.
    """

    path: str
    before: State | None
    after: Content | None

    @property
    def verb(self) -> Verb:
        if self.after is None:
            return Verb.DELETE
        return Verb.CREATE if self.before is None else Verb.SET

    @property
    def group(self) -> str:
        return self.path.split("/", 3)[2]

    @property
    def write(self) -> Write:
        """The compare-and-set that makes the change."""
        if self.after is None:
            return Delete(self.path, -1 if self._is_swapped else self._version)
        if self.before is None:
            return Create(self.path, self.after.data, rights=self.after.rights)
        return SetData(self.path, self.after.data, self._version)

    @property
    def _version(self) -> int:
        return -1 if self.before is None else self.before.version

    @property
    def _is_swapped(self) -> bool:
        """The parent of the members' znodes, which the guard of `apply` itself puts there anew.

        Nobody writes to it, and while it has a child it cannot be deleted: its data will do.
        """
        return self.path == paths.ids(self.group)

    def is_due(self, node: Node | None) -> bool:
        """Whether this is still what was planned on."""
        if self.before is None or node is None:
            return self.before is None and node is None
        if self._is_swapped:
            return node.data == self.before.data
        return (node.data, node.stat.version, node.stat.mzxid) == self.before[:3]

    def is_done(self, node: Node | None) -> bool:
        """Whether this is what the change leaves, and one write away from what was before."""
        if self.after is None or node is None:
            return self.after is None and node is None
        version = 0 if self.before is None else self.before.version + 1
        return (node.data, node.stat.version) == (self.after.data, version)


@dataclass(frozen=True, slots=True)
class KafkaChange:
    """An offset that Kafka keeps for a group; there is no way to take one away."""

    group: str
    partition: TopicPartition
    before: OffsetAndMetadata | None
    after: OffsetAndMetadata


@dataclass(frozen=True)
class Plan:
    """What one command is to change, in the order in which it will be done.

    Attributes:
        kind: the command, such as "offsets reset".
        chroot: that of the ZooKeeper it was planned on; "" for none.
        notes: what the operator should know before applying it.
        origin: the file it was read from; "" if it was made in this process.
    """

    kind: str
    chroot: str
    changes: tuple[Change, ...]
    kafka: tuple[KafkaChange, ...] = ()
    notes: tuple[str, ...] = ()
    origin: str = field(default="", compare=False)

    @classmethod
    def of(
        cls,
        kind: str,
        chroot: str,
        changes: Iterable[Change],
        *,
        kafka: Iterable[KafkaChange] = (),
        notes: Iterable[str] = (),
    ) -> Plan:
        """A plan of these changes, less those that change nothing, in an order that can be done.

        First what is written, group by group, parents first; then what is deleted, children first:
        a group is copied before the old one goes.
        """
        wanted = {one.path: one for one in changes if not _is_idle(one)}
        ordered = sorted(wanted.values(), key=_order)
        stored = (one for one in kafka if one.before != one.after)
        return cls(kind, chroot, tuple(ordered), tuple(stored), tuple(dict.fromkeys(notes)))

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups that it changes, sorted."""
        found = {one.group for one in self.changes} | {one.group for one in self.kafka}
        return tuple(sorted(found))

    @property
    def is_empty(self) -> bool:
        return not self.changes and not self.kafka

    def __len__(self) -> int:
        return len(self.changes) + len(self.kafka)

    @cached_property
    def body(self) -> str:
        """What it would change, as the lines of a plan file; one change a line."""
        return ",\n".join(
            f" {json.dumps(key)}: {_lines(value)}" for key, value in _contents(self).items()
        )

    @cached_property
    def hash(self) -> str:
        """Twelve hex digits that name exactly these changes: of SHA-256 over `body`."""
        return hashlib.sha256(self.body.encode()).hexdigest()[:12]

    def noted(self, *notes: str) -> Plan:
        """The same with more notes."""
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, *notes))))


def _is_idle(change: Change) -> bool:
    if change.before is None or change.after is None:
        return change.before is None and change.after is None
    return change.before.data == change.after.data


def _order(change: Change) -> tuple[Any, ...]:
    depth = change.path.count("/")
    if change.verb is Verb.DELETE:
        return 1, change.group, -depth, change.path
    return 0, change.group, change.verb is Verb.SET, depth, change.path


# ---- as plain values ----------------------------------------------------------------------------


def _lines(value: Any) -> str:
    """One entry of a list a line, so that a plan can be read and compared."""
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"


def _contents(plan: Plan) -> dict[str, Any]:
    return {
        "kind": plan.kind,
        "chroot": plan.chroot,
        "changes": [
            {
                "path": one.path,
                "before": _state_record(one.before),
                "after": _content_record(one.after),
            }
            for one in plan.changes
        ],
        "kafka": [
            {
                "group": one.group,
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "before": one.before and list(one.before),
                "after": list(one.after),
            }
            for one in plan.kafka
        ],
    }


def _state_record(state: State | None) -> dict[str, Any] | None:
    if state is None:
        return None
    content = _content_record(Content(state.data, state.rights)) or {}
    return content | {"version": state.version, "mzxid": state.mzxid}


def _content_record(content: Content | None) -> dict[str, Any] | None:
    if content is None:
        return None
    data = None if content.data is None else b64encode(content.data).decode()
    rights = None if content.rights is None else [list(one) for one in content.rights]
    return {"data": data, "acl": rights}


# ---- for people ---------------------------------------------------------------------------------


class Row(NamedTuple):
    """One line of what a plan shows.

    `old`, `new`: offsets, or whatever text stands there; None where there is nothing. `topic` and
    `partition` are None where `path` is no offset's. `lag`, `new_lag`: messages to the log's end,
    where that is known.
    """

    action: str
    store: str
    group: str
    topic: str | None
    partition: int | None
    old: int | str | None
    new: int | str | None
    lag: int | None = None
    new_lag: int | None = None
    path: str = ""


def rows(plan: Plan, *, ends: Mapping[TopicPartition, int] | None = None) -> Iterator[Row]:
    """What a plan changes, old and new, with the change of lag where the logs' `ends` are given."""
    known = ends or {}
    for change in plan.changes:
        at = paths.locate(change.path)
        tp = TopicPartition(at.name, at.partition) if at.kind is Kind.OFFSET else None
        old, new = _value(change.before, tp), _value(change.after, tp)
        end = known.get(tp) if tp else None
        yield Row(
            change.verb.value,
            "zookeeper",
            change.group,
            tp and tp.topic,
            tp and tp.partition,
            old,
            new,
            _lag(end, old),
            _lag(end, new),
            change.path,
        )
    for one in plan.kafka:
        before, end = one.before and one.before.offset, known.get(one.partition)
        verb = Verb.CREATE if one.before is None else Verb.SET
        yield Row(
            verb.value,
            "kafka",
            one.group,
            *one.partition,
            before,
            one.after.offset,
            _lag(end, before),
            _lag(end, one.after.offset),
        )


def _value(state: State | Content | None, tp: TopicPartition | None) -> int | str | None:
    if state is None:
        return None
    text = (state.data or b"").decode(errors="replace")
    try:
        return text if tp is None else decode_offset(state.data, where="")
    except MalformedZnodeError:
        return shown(text)


def _lag(end: int | None, offset: int | str | None) -> int | None:
    return end - offset if end is not None and isinstance(offset, int) else None


# ---- planfile ------------------------------------------------------------------------------------


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
            f"the plan cannot be written: {error.strerror}",
            where=str(path),
            remedy="name a file that does not exist, in a directory that may be written",
        ) from error
    return path


def load_plan(path: Path) -> Plan:
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
        f"this is no plan: {why}",
        where=str(path),
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
    before = None if one["before"] is None else _read_state(one["before"], f"{where}.before")
    after = None if one["after"] is None else _read_content(one["after"], f"{where}.after")
    if before is None and after is None:
        raise _Fault(f"{where} changes nothing")
    return Change(path, before, after)


def _read_state(value: Any, where: str) -> State:
    one = _object(value, {"data", "acl", "version", "mzxid"}, where)
    content = _read_content({"data": one["data"], "acl": one["acl"]}, where)
    version, mzxid = (_number(one[name], where, lowest=0) for name in ("version", "mzxid"))
    return State(content.data, version, mzxid, content.rights)


def _read_content(value: Any, where: str) -> Content:
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
