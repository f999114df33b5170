"""Applies a plan: the one module of the operator's tools that changes anything in ZooKeeper.

Before the first write all is read back, the group is looked at for members, and the plan is saved
as a backup. Then the changes are written in transactions of bounded size. In each of them every
change is a compare-and-set, and the *guard* of each group that it touches fails it if the group has
a member at that very instant. So a group that somebody joins meanwhile is not touched any more, and
nothing is ever half of one transaction.

The guard deletes the parent of the members' znodes and creates it again as it was: ZooKeeper
deletes no znode that has children. Members watch that parent only while they are registered below
it, and then the guard fails; so no member is ever told of it.

A reply that was lost is not guessed: what stands there then says whether it happened.

Reading back compares the transaction that wrote a znode, too: one that was deleted and made anew is
another one. ZooKeeper's compare-and-set knows versions alone, so that what is made anew, up to the
very version, between reading back and writing is not told apart.

What a transaction of the operator's tools carries beside its changes: guards, and edit marks.

A *guard* fails the transaction if its group has a member at that instant. It deletes the parent of
the members' znodes, which ZooKeeper refuses while there is one below it, and creates it again with
the same data and access control list. Nothing can come between: a transaction is one step.

A *mark* is a znode that is created in the same transaction in which offsets are written: members of
this package read on from such an offset instead of writing over it (`member.offset_ledger`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from zkconsumer.admin import plan as plan_file
from zkconsumer.admin.plan import Change, KafkaChange, Plan, Verb
from zkconsumer.errors import (
    AccessDeniedError,
    AppliedInPartError,
    RefusedError,
    ZkConsumerError,
    ZooKeeperUnreachableError,
    shown,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.paths import Kind
from zkconsumer.protocol.requests import (
    MAX_MULTI_BYTES,
    MAX_MULTI_WRITES,
    Code,
    Create,
    Delete,
    Node,
    Right,
    Write,
    payload_size,
)
from zkconsumer.zk.client import ZooKeeperClient

# ---- guards --------------------------------------------------------------------------------------


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
            roots[one.path] for one in plan.changes if one.verb is Verb.CREATE and one.path in roots
        }
        self._root: tuple[Write, ...] = ()
        self._groups: set[str] = set()
        self._ids: dict[str, Create] = {}
        self._marks: dict[str, int] = {}
        self._marked: set[str] = set()

    def read(self, connection: ZooKeeperClient) -> None:
        """Return the present znodes. Raises AccessDeniedError if the guard cannot be restored."""
        groups = self._plan.groups
        roots = {paths.group(name): name for name in groups}
        self._groups = {roots[path] for path in connection.stats(roots)}
        guarded = {paths.ids(name): name for name in groups if name not in self._forced}
        rights = read_rights(connection, guarded)
        self._ids = {
            guarded[path]: Create(path, node.data, rights=rights[path])
            for path, node in connection.read(guarded).items()
            if path in rights
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
                    self._ids[one.group] = Create(one.path, one.after.data, rights=one.after.rights)

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

    def prune(self, connection: ZooKeeperClient) -> None:
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


def read_rights(connection: ZooKeeperClient, of: Iterable[str]) -> dict[str, tuple[Right, ...]]:
    """The access control lists of these znodes, so that they can be written again as they are.

    Raises AccessDeniedError for one that is kept from us, in whole or in the hash of a password,
    which ZooKeeper shows only to who may administer the znode.
    """
    found: dict[str, tuple[Right, ...]] = {}
    for path, rights in connection.rights(of).items():
        if isinstance(rights, AccessDeniedError) or any(map(_is_hidden, rights)):
            raise AccessDeniedError(
                "who may do what here is kept from us, so that it could not be put back",
                where=path,
                remedy="authenticate as somebody with the right to administer it",
            )
        found[path] = rights
    return found


def _is_hidden(right: Right) -> bool:
    return right.identity.startswith("digest:") and right.identity.endswith(":x")


# ---- apply ---------------------------------------------------------------------------------------


class Live(Enum):
    """What becomes of a group that has members."""

    REFUSE = "refuse"
    FORCE = "force"  # offsets are written under a mark that members of this package honour


class KafkaStore(Protocol):
    """Where Kafka keeps offsets; `admin.broker_offsets` is the one of a real cluster."""

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """What is stored; absent where nothing is. Raises ZkConsumerError."""

    def store(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Mapping[TopicPartition, str]:
        """Store these; the reasons for those that were not. Raises ZkConsumerError."""


@dataclass(frozen=True, slots=True)
class Report:
    """What `apply` did: `applied` changes now, `already` before; `backup` is the file it wrote."""

    applied: int
    already: int
    backup: Path | None


Progress = Callable[[int, int], None]

ATTEMPTS: Final = 20
"""How often one transaction is sent whose replies get lost, or that another operator's mark is in
the way of; after that the rest is reported as not applied."""

_NAMED = 5  # of many, so many are named
_OF_NOBODY = " (of no session: `zkconsumer doctor` tells how to be rid of it)"


def apply(
    connection: ZooKeeperClient,
    plan: Plan,
    *,
    backup_dir: Path,
    live: Live = Live.REFUSE,
    kafka: KafkaStore | None = None,
    max_writes: int = MAX_MULTI_WRITES,
    on_backup: Callable[[Path], None] = lambda path: None,
    on_progress: Progress = lambda done, total: None,
) -> Report:
    """Make a plan's changes; changes that are made already count as done.

    A plan that was interrupted, by whatever, is finished by applying its file or its backup again.

    Args:
        backup_dir: where the backup is written, which is told to `on_backup` before the first
            write; `undo_plan` leads back from it.
        live: what becomes of groups with members.
        kafka: for plans that change offsets in Kafka; these come last.
        max_writes: changes in one transaction, which is all or nothing.
        on_progress: is told after each transaction how many changes of how many are done.

    Raises:
        RefusedError: something has changed since the plan was made, or a group has members;
            nothing was written.
        AppliedInPartError: the same, or ZooKeeper was lost, after the first write.
        AccessDeniedError: ZooKeeper's access control forbids the first write.
        ZooKeeperUnreachableError: ZooKeeper was lost before the first write.
        ConfigError: the backup cannot be written; nothing else was either.
    """
    run = _Run(
        connection, plan, live=live, max_writes=max_writes, kafka=kafka, on_progress=on_progress
    )
    return run.run(backup_dir, on_backup)


def backup_name(plan: Plan) -> str:
    """The name of a plan's backup: what, of which group, when, and which plan."""
    groups = plan.groups
    whose = groups[0] if len(groups) == 1 else f"{len(groups)}-groups"
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return f"zkconsumer-backup-{whose[:100]}-{now}-{plan.hash}.json"


class _Run:
    """One application of one plan."""

    def __init__(
        self,
        connection: ZooKeeperClient,
        plan: Plan,
        *,
        live: Live,
        max_writes: int,
        kafka: KafkaStore | None,
        on_progress: Progress,
    ) -> None:
        self._connection, self._plan, self._live = connection, plan, live
        self._max_writes, self._kafka, self._on_progress = max_writes, kafka, on_progress
        self._guards = Guards(plan, forced=frozenset(plan.groups if live is Live.FORCE else ()))
        self._backup: Path | None = None
        self._done = self._already = 0
        self._has_written = False

    def run(self, backup_dir: Path, on_backup: Callable[[Path], None]) -> Report:
        plan, connection = self._plan, self._connection
        if plan.chroot != connection.config.zookeeper_chroot:
            raise RefusedError(
                f"the plan was made below {plan.chroot or '/'}",
                where=plan.origin or plan.kind,
                remedy="name the same chroot in --zookeeper",
            )
        connection.sync(paths.CONSUMERS)
        due, kafka = self._due(), self._due_in_kafka()
        self._already = self._done = len(plan) - len(due) - len(kafka)
        if not due and not kafka:
            return Report(0, self._already, None)
        self._refuse_members()
        self._guards.read(connection)
        self._backup = plan_file.save(plan, backup_dir / backup_name(plan))
        on_backup(self._backup)
        self._on_progress(self._done, len(plan))
        for piece in self._guards.pieces(due, self._max_writes):
            self._write(piece)
            self._advance(len(piece.changes))
        self._write_to_kafka(kafka)
        self._guards.prune(connection)
        return Report(self._done - self._already, self._already, self._backup)

    def _advance(self, count: int) -> None:
        self._done += count
        self._on_progress(self._done, len(self._plan))

    # ---- before the first write ------------------------------------------------------------------

    def _due(self) -> list[Change]:
        """What is still to be done. Raises RefusedError where neither old nor new state stands."""
        nodes = self._connection.read(one.path for one in self._plan.changes)
        due, changed = sort_out(self._plan.changes, nodes)
        if changed:
            raise RefusedError(
                f"{count(changed, 'znode')} changed since the plan was made",
                where="; ".join(_told(one, nodes.get(one.path)) for one in changed[:_NAMED]),
                remedy="nothing was written: make the plan anew",
            )
        return due

    def _due_in_kafka(self) -> list[KafkaChange]:
        due: list[KafkaChange] = []
        changed: list[str] = []
        for group, wanted in _by_group(self._plan.kafka).items():
            stored = self._store.fetch(group, [one.partition for one in wanted])
            for one in wanted:
                now = stored.get(one.partition)
                if now == one.before:
                    due.append(one)
                elif now != one.after:
                    told = "nothing" if now is None else str(now.offset)
                    changed.append(f"{group} {one.partition} has {told} in Kafka")
        if changed:
            raise RefusedError(
                f"{count(changed, 'offset')} in Kafka changed since the plan was made",
                where="; ".join(changed[:_NAMED]),
                remedy="nothing was written: make the plan anew",
            )
        return due

    @property
    def _store(self) -> KafkaStore:
        if self._kafka is None:
            raise RefusedError(
                "the plan changes offsets in Kafka, and no broker is named", where=self._plan.kind
            )
        return self._kafka

    def _refuse_members(self) -> None:
        if self._live is Live.REFUSE and (members := self._members()):
            raise _live_error("nothing was written", members, self._plan)

    def _members(self) -> dict[str, list[str]]:
        """The members by group, as they are told of."""
        rooms = {paths.ids(group): group for group in self._plan.groups}
        found = {rooms[path]: names for path, names in self._connection.children(rooms).items()}
        nodes = self._connection.stats(
            paths.member(group, name) for group, names in found.items() for name in names
        )
        left = {path for path, stat in nodes.items() if not stat.owner}
        return {
            group: [
                shown(name) + (_OF_NOBODY if paths.member(group, name) in left else "")
                for name in names
            ]
            for group, names in found.items()
            if names
        }

    # ---- writing ---------------------------------------------------------------------------------

    def _write(self, piece: Piece) -> None:
        """One transaction, until it is known what became of it."""
        connection = self._connection
        for _ in range(ATTEMPTS):
            writes = self._guards.transaction(piece)
            try:
                reply = connection.write(writes)
                if reply.code is Code.OK:
                    self._has_written = True
                    self._guards.written(piece)
                    return
                connection.sync(paths.CONSUMERS)
                nodes = connection.read(one.path for one in piece.changes)
            except ZooKeeperUnreachableError as error:
                self._lost(error)
            if piece.changes and all(one.is_done(nodes.get(one.path)) for one in piece.changes):
                self._has_written = True  # it had happened, and its reply was lost
                self._guards.written(piece)
                return
            if reply.code is Code.BROKEN:
                continue
            refused = writes[int(reply.value or 0)]
            if reply.code is Code.NO_AUTH or not self._guards.is_extra(refused):
                self._give_up(piece, reply.code, refused, nodes)
            self._guards.read(connection)
        self._lost(
            ZooKeeperUnreachableError(
                f"{ATTEMPTS} times there was no answer to a transaction",
                where=connection.config.zookeeper_hosts,
                remedy="try again when the servers are well",
            )
        )

    def _give_up(
        self, piece: Piece, code: Code, refused: Write, nodes: Mapping[str, Node]
    ) -> NoReturn:
        """Say why a transaction was refused; none of it was written."""
        if code is Code.NO_AUTH:
            self._end(
                AccessDeniedError(
                    "ZooKeeper's access control forbids this change",
                    where=refused.path,
                    remedy="authenticate as somebody who may (zookeeper.auth.*)",
                )
            )
        if self._guards.is_guard(refused):
            gone = {refused.path.split("/")[2]: ["one that has gone again"]}
            self._end(_live_error("nothing was written", self._members() or gone, self._plan))
        _, changed = sort_out(piece.changes, nodes)
        told = "; ".join(_told(one, nodes.get(one.path)) for one in changed[:_NAMED])
        why = f"{count(changed, 'znode')} changed meanwhile"
        if not changed:
            why = _REASONS.get(code, f"ZooKeeper refused it: {code.name}")
        self._end(
            RefusedError(
                why, where=told or refused.path, remedy="nothing was written: make the plan anew"
            )
        )

    def _lost(self, error: ZooKeeperUnreachableError) -> NoReturn:
        """The connection is gone while a transaction was under way."""
        self._has_written = True  # for all we know
        self._end(error)

    def _end(self, error: ZkConsumerError) -> NoReturn:
        """What ends it is an error of its own before the first write, and after that a part."""
        if not self._has_written:
            raise error
        raise AppliedInPartError(
            f"{self._done} of {len(self._plan)} changes are made; then: {error.what}",
            where=error.where,
            remedy=way_on(self._backup),
        ) from error

    def _write_to_kafka(self, due: Sequence[KafkaChange]) -> None:
        for group, wanted in _by_group(due).items():
            self._write(Piece((), (group,)))
            offsets = {one.partition: one.after for one in wanted}
            try:
                failed = self._store.store(group, offsets)
            except ZkConsumerError as error:
                self._has_written = True  # for all we know
                self._end(error)
            self._has_written = self._has_written or len(failed) < len(wanted)
            self._advance(len(wanted) - len(failed))
            if failed:
                told = [f"{tp}: {why}" for tp, why in list(failed.items())[:_NAMED]]
                self._end(
                    RefusedError(
                        f"Kafka did not store {count(failed, 'offset')} of group {group}",
                        where="; ".join(told),
                        remedy="mend that, and apply it again",
                    )
                )


def way_on(backup: Path | None) -> str:
    """What to do about a change that was made in part."""
    undo = f"`zkconsumer undo {backup} --execute`"
    return f"`zkconsumer apply {backup}` finishes it, {undo} takes it back"


def sort_out(
    changes: Iterable[Change], nodes: Mapping[str, Node]
) -> tuple[list[Change], list[Change]]:
    """Those that are still to be made, and those whose znode is neither as before nor as after."""
    due, changed = [], []
    for one in changes:
        node = nodes.get(one.path)
        if one.is_due(node):
            due.append(one)
        elif not one.is_done(node):
            changed.append(one)
    return due, changed


def count(things: Sequence[Any] | Mapping[Any, Any], noun: str) -> str:
    """A number and a noun in the right form."""
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _told(change: Change, node: Node | None) -> str:
    if node is None:
        return f"{change.path} is gone"
    data = shown((node.data or b"").decode(errors="replace"))
    return f"{change.path} has {data} in version {node.stat.version}"


_REASONS = {
    Code.NOT_EMPTY: "somebody has created something below a znode that was to be deleted",
    Code.NO_NODE: "somebody has deleted the parent of a znode that was to be created",
}


def _live_error(done: str, members: Mapping[str, Sequence[str]], plan: Plan) -> RefusedError:
    told = "; ".join(f"{group}: {', '.join(names[:_NAMED])}" for group, names in members.items())
    one = len(members) == 1
    return RefusedError(
        f"{'the group has' if one else f'{len(members)} groups have'} live members",
        where=told,
        remedy=f"{done}: stop them first; or --force-live: {what_members_do(plan)}",
    )


def _by_group(changes: Iterable[KafkaChange]) -> dict[str, list[KafkaChange]]:
    found: dict[str, list[KafkaChange]] = {}
    for one in changes:
        found.setdefault(one.group, []).append(one)
    return found
