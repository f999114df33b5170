"""Plans: planned changes of groups, as Python objects and as JSON files.

A plan holds the data to write, and the present state and version of each znode concerned.
`apply` writes nothing if a znode has changed since. The plan also holds the data and the access
control list of each znode that it deletes, so the change can be undone. A plan that moves offsets
to another store holds the offsets that it moves (`Source`).

A plan file is JSON with a format version. Any client may have written it, so it is read strictly.
A backup is the plan file that `apply` writes to the disk before the first change. `plan_undo`
reads the old state from it, and `apply` uses it to complete a change that was interrupted.
"""

from __future__ import annotations

import binascii
import getpass
import hashlib
import json
import os
import socket
import stat
import sys
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from zkconsumer.errors import (
    Advice,
    BadFileError,
    ConfigError,
    MalformedZnodeError,
    RefusedError,
    RemedyOperation,
    ZkConsumerError,
    quoted,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.java.text import MAX_INT32
from zkconsumer.protocol.model import OffsetAndMetadata, Storage, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
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
from zkconsumer.times import now_text


class ZnodeState(NamedTuple):
    """State of a znode when the plan was made; `rights` only if the plan deletes the znode."""

    data: bytes | None
    version: int
    mzxid: int
    rights: tuple[Right, ...] | None = None


class Content(NamedTuple):
    """New content of a znode. If `rights` is None, the znode gets the rights of `zookeeper.acl`."""

    data: bytes | None
    rights: tuple[Right, ...] | None = None


class Verb(Enum):
    """What a change does to its znode."""

    CREATE = "create"
    SET = "set"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one znode, from `before` to `after`; None stands for a znode that does not
    exist. A znode that exists before and after the change keeps its access control list.
    """

    path: str
    before: ZnodeState | None
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
        """Whether this znode is `ids`, the parent of the registrations. The guard transactions
        delete and create `ids`, so its version and mzxid change. Comparing its data is enough:
        clients do not write to `ids`, and ZooKeeper does not delete it while it has children.
        """
        return self.path == paths.ids(self.group)

    def is_due(self, node: Node | None) -> bool:
        """Return whether the znode still has the state that the plan is based on."""
        if self.before is None or node is None:
            return self.before is None and node is None
        if self._is_swapped:
            return node.data == self.before.data
        return (node.data, node.stat.version, node.stat.mzxid) == self.before[:3]

    def is_done(self, node: Node | None) -> bool:
        """Return whether the znode has its new content, after exactly one write."""
        if self.after is None or node is None:
            return self.after is None and node is None
        version = 0 if self.before is None else self.before.version + 1
        return (node.data, node.stat.version) == (self.after.data, version)


@dataclass(frozen=True, slots=True)
class KafkaChange:
    """A change of a group's offset in Kafka. An offset in Kafka can be set but not deleted."""

    group: str
    partition: TopicPartition
    before: OffsetAndMetadata | None
    after: OffsetAndMetadata


class Source(NamedTuple):
    """An offset that a plan moves to the other store, as it was when the plan was made."""

    store: Storage
    group: str
    partition: TopicPartition
    offset: int


@dataclass(frozen=True)
class Plan:
    """Changes of groups, in the order in which they are made.

    Attributes:
        kind: kind of the plan, such as "offsets reset".
        chroot: chroot of the ZooKeeper connection; "" without one.
        changes: changes of znodes.
        kafka: changes of offsets in Kafka.
        notes: what the operator should know before applying the plan.
        sources: the offsets that the plan moves; `apply` writes nothing if one has changed since.
        origin: the file that the plan was read from; "" if it was made in this process.
    """

    kind: str
    chroot: str
    changes: tuple[Change, ...]
    kafka: tuple[KafkaChange, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
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
        sources: Iterable[Source] = (),
    ) -> Plan:
        """Return a plan of changes in an executable order, without those that change nothing.

        Creations and writes come first, sorted by group, with parents before children. Deletions
        follow, with children before parents. So a group is copied before the old one is deleted.
        """
        wanted = {one.path: one for one in changes if not _is_idle(one)}
        ordered = sorted(wanted.values(), key=_order)
        stored = (one for one in kafka if one.before != one.after)
        said = tuple(dict.fromkeys(notes))
        return cls(kind, chroot, tuple(ordered), tuple(stored), said, tuple(sources))

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups that the plan changes, sorted."""
        found = {one.group for one in self.changes} | {one.group for one in self.kafka}
        return tuple(sorted(found))

    @property
    def needs_kafka(self) -> bool:
        """Whether the plan changes offsets in Kafka, or moves offsets from there."""
        return bool(self.kafka) or any(one.store is Storage.KAFKA for one in self.sources)

    @property
    def is_empty(self) -> bool:
        return not self.changes and not self.kafka

    def __len__(self) -> int:
        return len(self.changes) + len(self.kafka)

    @cached_property
    def body(self) -> str:
        """The changes as they appear in a plan file, one per line."""
        return ",\n".join(
            f" {json.dumps(key)}: {_lines(value)}" for key, value in _contents(self).items()
        )

    @cached_property
    def hash(self) -> str:
        """The first 12 hex digits of the SHA-256 of `body`; they identify these changes."""
        return hashlib.sha256(self.body.encode()).hexdigest()[:12]

    def require_chroot(self, chroot: str) -> None:
        """Raise RefusedError if the plan or backup was made below another chroot."""
        if self.chroot != chroot:
            raise RefusedError(
                f"the plan was made below the chroot {self.chroot or '/'}",
                where=self.origin or self.kind,
                remedy="connect below the same chroot",
                advice=Advice(RemedyOperation.SAME_CHROOT, value=self.chroot),
            )

    def noted(self, *notes: str) -> Plan:
        """Return the same plan with more notes."""
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, *notes))))


def _is_idle(change: Change) -> bool:
    if change.before is None or change.after is None:
        return change.before is None and change.after is None
    return change.before.data == change.after.data


def _order(change: Change) -> tuple[object, ...]:
    depth = change.path.count("/")
    if change.verb is Verb.DELETE:
        return 1, change.group, -depth, change.path
    return 0, change.group, change.verb is Verb.SET, depth, change.path


# ---- writing plan files -------------------------------------------------------------------------


def _lines(value: object) -> str:
    """Return a value as JSON; a list has one entry per line, so that people can compare plans."""
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"


def _contents(plan: Plan) -> dict[str, object]:
    contents: dict[str, object] = {
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
    if plan.sources:  # files without sources keep their hash of earlier releases
        contents["sources"] = [
            {
                "store": one.store.value,
                "group": one.group,
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "offset": one.offset,
            }
            for one in plan.sources
        ]
    return contents


def _state_record(state: ZnodeState | None) -> dict[str, object] | None:
    if state is None:
        return None
    content = _content_record(Content(state.data, state.rights)) or {}
    return content | {"version": state.version, "mzxid": state.mzxid}


def _content_record(content: Content | None) -> dict[str, object] | None:
    if content is None:
        return None
    data = None if content.data is None else b64encode(content.data).decode()
    rights = None if content.rights is None else [list(one) for one in content.rights]
    return {"data": data, "acl": rights}


# ---- rows for display ---------------------------------------------------------------------------


class PlanRow(NamedTuple):
    """One change as a row for display.

    Attributes:
        action: value of the `Verb`.
        store: "zookeeper" or "kafka".
        topic, partition: None if `path` is not an offset znode.
        old, new: an offset, or the payload of another znode; None if there is no znode.
        lag, new_lag: messages from `old` and from `new` to the end of the log, if known.
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


def rows(plan: Plan, *, ends: Mapping[TopicPartition, int] | None = None) -> Iterator[PlanRow]:
    """Yield the changes of a plan as rows; `ends` (partition -> end of its log) adds the lag."""
    known = ends or {}
    for change in plan.changes:
        at = paths.locate(change.path)
        tp = TopicPartition(at.name, at.partition) if at.kind is ZnodeKind.OFFSET else None
        old, new = _value(change.before, tp), _value(change.after, tp)
        end = known.get(tp) if tp else None
        yield PlanRow(
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
        yield PlanRow(
            verb.value,
            "kafka",
            one.group,
            *one.partition,
            before,
            one.after.offset,
            _lag(end, before),
            _lag(end, one.after.offset),
        )


def _value(state: ZnodeState | Content | None, tp: TopicPartition | None) -> int | str | None:
    if state is None:
        return None
    text = (state.data or b"").decode(errors="replace")
    try:
        return text if tp is None else decode_offset(state.data, where="")
    except MalformedZnodeError:
        return quoted(text)


def _lag(end: int | None, offset: int | str | None) -> int | None:
    return end - offset if end is not None and isinstance(offset, int) else None


# ---- plan files ----------------------------------------------------------------------------------


FORMAT: Final = "zkconsumer-plan"
VERSION: Final = 1

MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of a plan file in bytes; enough for a million offsets. A longer file is an error."""


def who() -> str:
    """Return `user@host` for the audit line."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, as in containers
        user = "unknown"
        if sys.platform != "win32":
            user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def dumps(plan: Plan) -> str:
    """Return a plan as the text of a plan file, with its author and time."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "hash": plan.hash,
        "made": {"by": who(), "at": now_text("seconds")},
        "notes": list(plan.notes),
    }
    lines = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    return f"{{\n{lines}{plan.body}\n}}\n"


def save(plan: Plan, path: Path, *, kind: str = "plan") -> Path:
    """Write a plan atomically to a new file that only its owner can read.

    `kind` is the file's name in the error: the plan or the backup. On return the file and its
    directory entry are on the disk. Raises ConfigError if the file exists or cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(dumps(plan))
                file.flush()
                os.fsync(file.fileno())
            os.link(name, path)  # unlike a rename, this fails if the file exists
        finally:
            os.unlink(name)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise ConfigError(
            f"the {kind} cannot be written: {error.strerror}",
            where=str(path),
            remedy="name a file that does not exist, in a writable directory",
        ) from error
    return path


def load_plan(path: Path) -> Plan:
    """Read a plan file or a backup. Raises BadFileError.

    Only a regular file is read: a FIFO could block the process forever, and a device could be
    endless.
    """
    try:
        no_wait = 0
        if sys.platform != "win32":  # without O_NONBLOCK, opening a FIFO waits for a writer
            no_wait = os.O_NONBLOCK
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | no_wait)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _bad(path, "it is not a regular file")
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise _bad(path, f"it is longer than {MAX_FILE_BYTES} bytes")
        text = data.decode()
    except OSError as error:
        raise BadFileError(
            f"the file cannot be read: {error.strerror or type(error).__name__}", where=str(path)
        ) from error
    except UnicodeDecodeError as error:
        raise _bad(path, "it is not UTF-8") from error
    return loads(text, path=path)


def loads(text: str, *, path: Path) -> Plan:
    """Read the text of a plan file; errors name `path`. Raises BadFileError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"it is not JSON: {error}") from error
    try:
        plan = _plan(document, str(path))
    except (_Fault, ZkConsumerError) as error:
        raise _bad(path, str(error)) from error
    if plan.hash != document.get("hash"):
        raise _bad(path, "its contents do not match its hash, so it was changed")
    return plan


def _bad(path: Path, why: str) -> BadFileError:
    return BadFileError(
        f"the file is not a plan: {why}",
        where=str(path),
        remedy="use an unchanged plan file or backup",
    )


# ---- reading plan files -------------------------------------------------------------------------


class _Fault(Exception):
    """A fault in a plan file; the text names the entry."""


def _plan(document: object, origin: str) -> Plan:
    fields = {"format", "version", "hash", "made", "notes", "kind", "chroot", "changes", "kafka"}
    one = _object(document, fields, "the file", optional={"sources"})
    if one["format"] != FORMAT or one["version"] != VERSION or type(one["version"]) is not int:
        raise _Fault(f"its format is not {FORMAT}, version {VERSION}")
    changes = tuple(_change(it, f"changes[{n}]") for n, it in enumerate(_list(one["changes"])))
    kafka = tuple(_kafka(it, f"kafka[{n}]") for n, it in enumerate(_list(one["kafka"])))
    _require_unique((it.path for it in changes), "path")
    _require_unique(((it.group, it.partition) for it in kafka), "partition")
    notes = tuple(_text(it, "notes") for it in _list(one["notes"]))
    sources = (_source(it, f"sources[{n}]") for n, it in enumerate(_list(one.get("sources", []))))
    kind, chroot = _text(one["kind"], "kind"), _text(one["chroot"], "chroot")
    return Plan(kind, chroot, changes, kafka, notes, tuple(sources), origin)


def _change(value: object, where: str) -> Change:
    one = _object(value, {"path", "before", "after"}, where)
    path = _text(one["path"], where)
    group, _, below = path.removeprefix(paths.group("")).partition("/")
    if path != paths.group(group) + (below and f"/{below}"):
        raise _Fault(f"{where}: {quoted(path)} is not below a group")
    paths.validate_group_znode(group)
    if below and (fault := paths.znode_fault(below)):
        raise _Fault(f"{where}: {quoted(path)}: {fault}")
    before = None if one["before"] is None else _read_state(one["before"], f"{where}.before")
    after = None if one["after"] is None else _read_content(one["after"], f"{where}.after")
    if before is None and after is None:
        raise _Fault(f"{where} changes nothing")
    return Change(path, before, after)


def _read_state(value: object, where: str) -> ZnodeState:
    one = _object(value, {"data", "acl", "version", "mzxid"}, where)
    content = _read_content({"data": one["data"], "acl": one["acl"]}, where)
    version, mzxid = (_number(one[name], where) for name in ("version", "mzxid"))
    return ZnodeState(content.data, version, mzxid, content.rights)


def _read_content(value: object, where: str) -> Content:
    one = _object(value, {"data", "acl"}, where)
    rights = None if one["acl"] is None else tuple(_right(it, where) for it in _list(one["acl"]))
    return Content(_bytes(one["data"], where), rights)


def _bytes(value: object, where: str) -> bytes | None:
    if value is None:
        return None
    try:
        data = b64decode(_text(value, where), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _Fault(f"{where}: data is not base64") from error
    if len(data) > MAX_PAYLOAD_BYTES:
        raise _Fault(f"{where}: data is longer than {MAX_PAYLOAD_BYTES} bytes")
    return data


def _right(value: object, where: str) -> Right:
    match value:
        case [str(identity), int(permissions)] if 0 <= permissions <= 31 and ":" in identity:
            return Right(identity, permissions)
    raise _Fault(f"{where}: not an entry of an access control list")


def _kafka(value: object, where: str) -> KafkaChange:
    one = _object(value, {"group", "topic", "partition", "before", "after"}, where)
    before = None if one["before"] is None else _stored(one["before"], where)
    return KafkaChange(*_partition(one, where), before, _stored(one["after"], where))


def _source(value: object, where: str) -> Source:
    one = _object(value, {"store", "group", "topic", "partition", "offset"}, where)
    name = _text(one["store"], where)
    if name not in (Storage.ZOOKEEPER.value, Storage.KAFKA.value):
        raise _Fault(f"{where}: {quoted(name)} is not a store")
    return Source(Storage(name), *_partition(one, where), _number(one["offset"], where))


def _partition(one: Mapping[str, object], where: str) -> tuple[str, TopicPartition]:
    group = paths.validate_group_znode(_text(one["group"], where))
    topic = paths.validate_topic(_text(one["topic"], where))
    return group, TopicPartition(topic, _number(one["partition"], where, highest=MAX_INT32))


def _stored(value: object, where: str) -> OffsetAndMetadata:
    match value:
        case [int(offset), str(metadata)] if offset >= 0:
            return OffsetAndMetadata(offset, metadata)
    raise _Fault(f"{where}: not an offset with its metadata")


def _object(
    value: object, fields: set[str], where: str, *, optional: Collection[str] = ()
) -> dict[str, object]:
    if not isinstance(value, dict) or value.keys() - set(optional) != fields:
        raise _Fault(f"{where}: not an object with exactly {', '.join(sorted(fields))}")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise _Fault("a value is not a list")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _Fault(f"{where}: not a string")
    return value


def _number(value: object, where: str, *, highest: int = 2**63 - 1) -> int:
    if type(value) is not int or not 0 <= value <= highest:
        raise _Fault(f"{where}: not a number from 0 to {highest}")
    return value


def _require_unique(keys: Iterable[object], what: str) -> None:
    seen: set[object] = set()
    for key in keys:
        if key in seen:
            raise _Fault(f"{what} {key} occurs twice")
        seen.add(key)
