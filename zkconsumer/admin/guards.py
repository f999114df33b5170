"""What a transaction of the operator's tools carries beside its changes: guards, and edit marks.

A *guard* fails the transaction if its group has a member at that instant. It deletes the parent of
the members' znodes, which ZooKeeper refuses while there is one below it, and creates it again with
the same data and access control list. Nothing can come between: a transaction is one step.

A *mark* is a znode that is created in the same transaction in which offsets are written: members of
this package read on from such an offset instead of writing over it (`core.offsets`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from zkconsumer.admin.plan import Change, Plan, Verb
from zkconsumer.core import paths
from zkconsumer.core.paths import Kind
from zkconsumer.errors import AccessDeniedError
from zkconsumer.zk.connection import Connection
from zkconsumer.zk.requests import (
    MAX_MULTI_BYTES,
    Create,
    Delete,
    Right,
    Write,
    payload_size,
)

MARKS_KEPT_MS: Final = 24 * 3600 * 1000
"""Milliseconds by the server's clock. A mark is of use until the members have met it, at their next
commit; the next edit after a day takes it away."""


class Piece(NamedTuple):
    """The changes of one transaction, and the groups that it must find without a member."""

    changes: tuple[Change, ...]
    groups: tuple[str, ...]


def what_members_do(plan: Plan) -> str:
    """What becomes of a plan that is applied to groups with members (`--force-live`)."""
    offsets = [one for one in plan.changes if paths.locate(one.path).kind is Kind.OFFSET]
    told = []
    if any(one.verb is not Verb.DELETE for one in offsets):
        told.append(
            "members of this package read on from new offsets, which they notice at their next"
            " commit (auto.commit.interval.ms, 60 s by default); members of the JVM do not look,"
            " and write over them"
        )
    if any(one.verb is Verb.DELETE for one in offsets):
        told.append("deleted offsets are there again once members commit further")
    if plan.kafka:
        told.append("offsets in Kafka are written over by the members' next commit")
    told.append("what belongs to living sessions stays")
    return "; ".join(told)


class Guards:
    """The guards and marks of one plan; those groups that are `forced` have marks alone."""

    def __init__(self, plan: Plan, *, forced: frozenset[str]) -> None:
        self._plan, self._forced = plan, forced
        roots = {paths.group(name): name for name in plan.groups}
        # A group that this plan makes has no member that could have read an older offset.
        self._made = {
            roots[one.path] for one in plan.changes
            if one.verb is Verb.CREATE and one.path in roots
        }
        self._root: tuple[Write, ...] = ()
        self._groups: set[str] = set()
        self._ids: dict[str, Create] = {}
        self._marks: dict[str, int] = {}
        self._marked: set[str] = set()

    def read(self, connection: Connection) -> None:
        """How it all is now. Raises AccessDeniedError if the guard could not be put back as it was.
        """
        groups = self._plan.groups
        roots = {paths.group(name): name for name in groups}
        self._groups = {roots[path] for path in connection.stats(roots)}
        guarded = {paths.ids(name): name for name in groups if name not in self._forced}
        rights = read_rights(connection, guarded)
        self._ids = {
            guarded[path]: Create(path, node.data, rights=rights[path])
            for path, node in connection.read(guarded).items() if path in rights
        }
        rooms = {paths.edits(name): name for name in groups}
        self._marks = {
            rooms[path]: 1 + max((int(n) for n in names if n.isdecimal()), default=-1)
            for path, names in connection.children(rooms).items()
        }
        if not connection.stats([paths.CONSUMERS]):
            self._root = (Create(paths.CONSUMERS),)

    # ---- transactions ----------------------------------------------------------------------------

    def pieces(self, changes: Iterable[Change], max_writes: int) -> Iterator[Piece]:
        """The changes in their order, cut to transactions of bounded size."""
        piece: list[Change] = []
        groups: set[str] = set()
        size = writes = 0
        for one in changes:
            # Two writes of a guard, two of a mark.
            extra = 0 if one.group in groups else 4
            size += payload_size(one.write) + 128 * extra
            writes += 1 + extra
            if piece and (len(piece) >= max_writes or size > MAX_MULTI_BYTES or writes > 2_000):
                yield Piece(tuple(piece), tuple(sorted(groups)))
                piece, groups = [], set()
                size, writes = payload_size(one.write) + 512, 5
            piece.append(one)
            groups.add(one.group)
        if piece:
            yield Piece(tuple(piece), tuple(sorted(groups)))

    def transaction(self, piece: Piece) -> list[Write]:
        """All that is written at once: guards first, the changes, then the marks."""
        writes = [*self._root]
        for group in piece.groups:
            writes += self._guard(group, piece)
        writes += [one.write for one in piece.changes]
        for group in sorted(self._to_mark(piece)):
            number = self._marks.get(group)
            if number is None:
                writes.append(Create(paths.edits(group)))
            writes.append(Create(paths.edit(group, number or 0), self._plan.hash.encode()))
        return writes

    def _guard(self, group: str, piece: Piece) -> list[Write]:
        """Where the piece itself creates or deletes the members' parent, that is the guard."""
        ids = paths.ids(group)
        touched = {one.path for one in piece.changes}
        if group in self._forced or ids in touched or group not in self._groups:
            return []
        parent = self._ids.get(group)
        if parent is None:
            return [Create(ids), Delete(ids)]
        return [Delete(ids), parent]

    def _to_mark(self, piece: Piece) -> set[str]:
        found: set[str] = set()
        for one in piece.changes:
            group = one.group
            if group in found or group in self._made or one.after is None:
                continue
            if paths.locate(one.path).kind is Kind.OFFSET:
                found.add(group)
        return found

    def written(self, piece: Piece) -> None:
        """The transaction has happened: the next one finds what it has left."""
        self._root = ()
        for group in self._to_mark(piece):
            self._marks[group] = self._marks.get(group, 0) + 1
            self._marked.add(group)
        for one in piece.changes:
            if one.path == paths.group(one.group):
                (self._groups.add if one.after is not None else self._groups.discard)(one.group)
            elif one.path == paths.ids(one.group):
                self._ids.pop(one.group, None)
                if one.after is not None:
                    self._ids[one.group] = Create(
                        one.path, one.after.data, rights=one.after.rights
                    )

    def is_guard(self, write: Write) -> bool:
        """Whether it is refused because of a member."""
        return paths.locate(write.path).kind is Kind.IDS

    def is_extra(self, write: Write) -> bool:
        """Whether it is refused because another operator's mark has that number, or the like."""
        if write.path == paths.CONSUMERS:
            return True
        room = paths.edits(write.path.split("/")[2])
        is_below = write.path == room or write.path.startswith(f"{room}/")
        return is_below and all(one.path != write.path for one in self._plan.changes)

    def prune(self, connection: Connection) -> None:
        """Take away marks that are older than a day; somebody else may do so at the same time."""
        for group in self._marked:
            room = paths.edits(group)
            names = connection.children([room]).get(room, [])
            marks = connection.stats(f"{room}/{name}" for name in names)
            newest = max((stat.mtime_ms for stat in marks.values()), default=0)
            for path, stat in marks.items():
                if stat.mtime_ms < newest - MARKS_KEPT_MS:
                    connection.write([Delete(path, stat.version)])


# ---- access control -----------------------------------------------------------------------------


def read_rights(
    connection: Connection, of: Iterable[str]
) -> dict[str, tuple[Right, ...]]:
    """The access control lists of these znodes, so that they can be written again as they are.

    Raises AccessDeniedError for one that is kept from us, in whole or in the hash of a password,
    which ZooKeeper shows only to who may administer the znode.
    """
    found: dict[str, tuple[Right, ...]] = {}
    for path, rights in connection.rights(of).items():
        if isinstance(rights, AccessDeniedError) or any(map(_is_hidden, rights)):
            raise AccessDeniedError(
                "who may do what here is kept from us, so that it could not be put back",
                where=path, remedy="authenticate as somebody with the right to administer it",
            )
        found[path] = rights
    return found


def _is_hidden(right: Right) -> bool:
    return right.identity.startswith("digest:") and right.identity.endswith(":x")
