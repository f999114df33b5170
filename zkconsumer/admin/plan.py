"""A change to groups, as a value: what is to be written, and what stood there when it was planned.

A plan holds the version of every znode that it read, which is what applying it is bound to: `apply`
writes nothing if anything else stands there by then. A plan is also the way back: it holds all that
it takes away, access control lists included. As a file: `admin.planfile`.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from zkconsumer.core import paths
from zkconsumer.core.model import OffsetAndMetadata, TopicPartition
from zkconsumer.core.paths import Kind
from zkconsumer.core.records import decode_offset
from zkconsumer.errors import MalformedZnodeError, shown
from zkconsumer.zk.requests import Create, Delete, Node, Right, SetData, Write


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
            f' {json.dumps(key)}: {_lines(value)}' for key, value in _contents(self).items()
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
            {"path": one.path, "before": _state(one.before), "after": _content(one.after)}
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


def _state(state: State | None) -> dict[str, Any] | None:
    if state is None:
        return None
    content = _content(Content(state.data, state.rights)) or {}
    return content | {"version": state.version, "mzxid": state.mzxid}


def _content(content: Content | None) -> dict[str, Any] | None:
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
            change.verb.value, "zookeeper", change.group, tp and tp.topic, tp and tp.partition,
            old, new, _lag(end, old), _lag(end, new), change.path,
        )
    for one in plan.kafka:
        before, end = one.before and one.before.offset, known.get(one.partition)
        verb = Verb.CREATE if one.before is None else Verb.SET
        yield Row(
            verb.value, "kafka", one.group, *one.partition, before, one.after.offset,
            _lag(end, before), _lag(end, one.after.offset),
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
