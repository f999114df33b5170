"""Apply a plan to ZooKeeper.

Among the operators' tools, only this module and `admin.legacy`, which imitates Kafka's old tools,
write to ZooKeeper.

Before the first write `apply` reads all znodes of the plan again, checks that the groups have no
members and that no client commits without a registration (`admin.health`), and saves the plan as a
backup. Then it writes the changes in transactions of bounded size,
each of which is applied as a whole or not at all. Each change is a compare-and-set.

A transaction contains two kinds of writes besides its changes:

- A *guard* fails the transaction if a group has a member at that moment. The guard deletes the
  parent of the registrations, which ZooKeeper refuses while the parent has children, and creates
  the parent again with the same data and access control list. No other client sees the parent
  missing, since a transaction is atomic. No member's watch fires: a member watches the parent only
  while its registration is below the parent, and then the guard fails. Registrations without a
  session, which copies of ZooKeeper leave behind, are deleted and created again with the parent.
- An *edit mark* is a znode that is created in the same transaction as new offsets, or as the
  deletion of offsets. A zkconsumer member that finds it adopts the new offset instead of
  overwriting it (`member.offset_ledger`). A member that had lost a partition before the deletion
  does not continue at its old position.

If the reply to a transaction is lost, `apply` reads the znodes to see whether the transaction took
effect.

Before the first write `apply` compares the transaction that last wrote each znode (mzxid), so it
notices a znode that was deleted and created again. ZooKeeper's compare-and-set compares only
versions. A znode that is recreated between this check and the write, and then has the same version
by chance, is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, Protocol, TypeVar

from zkconsumer.admin import plan as plan_file
from zkconsumer.admin.health import GroupWatch, written_places
from zkconsumer.admin.plan import Change, KafkaChange, Plan, Source, Verb
from zkconsumer.errors import (
    AccessDeniedError,
    Advice,
    AppliedInPartError,
    MalformedZnodeError,
    RefusedError,
    RemedyOperation,
    ZkConsumerError,
    ZooKeeperUnreachableError,
    first_few,
    quoted,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_health import GroupHealth
from zkconsumer.protocol.model import OffsetAndMetadata, Storage, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.payloads import stored_offset
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

# ---- guards and edit marks -----------------------------------------------------------------------


MARKS_KEPT_MS: Final = 24 * 3600 * 1000
"""Milliseconds by the server's clock after which an edit mark is deleted. Members need a mark only
until their next commit."""


class Chunk(NamedTuple):
    """The changes of one transaction, and the groups whose guards it carries."""

    changes: tuple[Change, ...]
    groups: tuple[str, ...]


def what_members_do(plan: Plan) -> str:
    """Return what members do with the changes of a plan that is applied while they run."""
    offsets = [one for one in plan.changes if paths.locate(one.path).kind is ZnodeKind.OFFSET]
    effects = []
    if any(one.verb is not Verb.DELETE for one in offsets):
        effects.append(
            "zkconsumer members adopt new offsets at their next commit (auto.commit.interval.ms,"
            " 60 s by default); JVM members overwrite them"
        )
    if any(one.verb is Verb.DELETE for one in offsets):
        effects.append("the next commits of the members create deleted offsets again")
    if plan.kafka:
        effects.append("the members' next commit overwrites offsets in Kafka")
    effects.append("znodes of live sessions are not changed")
    return "; ".join(effects)


class Guards:
    """The guards and edit marks of one plan; groups in `forced` have no guards."""

    def __init__(self, plan: Plan, *, forced: frozenset[str]) -> None:
        self._plan, self._forced = plan, forced
        roots = {paths.group(name): name for name in plan.groups}
        # A group that this plan creates needs no edit mark, because no member has read an older
        # offset of it.
        self._made = {
            roots[one.path] for one in plan.changes if one.verb is Verb.CREATE and one.path in roots
        }
        # The deletion of a group is no edit of its offsets.
        self._deleted = {
            one.group
            for one in plan.changes
            if one.verb is Verb.DELETE and one.path == paths.offsets(one.group)
        }
        self._root: tuple[Write, ...] = ()
        self._groups: set[str] = set()
        self._ids: dict[str, Create] = {}
        self._leftovers: dict[str, dict[str, Leftover]] = {}
        self._marks: dict[str, int] = {}
        self._marked: set[str] = set()

    def read(self, connection: ZooKeeperClient) -> None:
        """Read the znodes of guards and marks.

        Raises AccessDeniedError if an access control list cannot be read, since the guard could not
        restore it.
        """
        groups = self._plan.groups
        roots = {paths.group(name): name for name in groups}
        self._groups = {roots[path] for path in connection.stats(roots)}
        guarded = {paths.ids(name): name for name in groups if name not in self._forced}
        left = read_leftovers(connection, guarded.values())
        rights = read_rights(
            connection, [*guarded, *(path for some in left.values() for path in some)]
        )
        self._leftovers = {
            name: {
                path: Leftover(node, rights[path]) for path, node in some.items() if path in rights
            }
            for name, some in left.items()
        }
        self._ids = {
            guarded[path]: Create(path, node.data, rights=rights[path])
            for path, node in connection.read(guarded).items()
            if path in rights
        }
        parents = {paths.edits(name): name for name in groups}
        self._marks = {
            parents[path]: 1 + max((int(n) for n in names if n.isdecimal()), default=-1)
            for path, names in connection.children(parents).items()
        }
        self._root = () if connection.stats([paths.CONSUMERS]) else (Create(paths.CONSUMERS),)

    def exists(self, group: str) -> bool:
        """Return whether the group exists in ZooKeeper."""
        return group in self._groups

    # ---- transactions ----------------------------------------------------------------------------

    def chunks(self, changes: Iterable[Change], max_writes: int) -> Iterator[Chunk]:
        """Yield the changes in their order, split into transactions of bounded size.

        The deletions of registrations without a session come first, in transactions without a
        guard: no process holds them, and the guard would fail or create them again.
        """
        changes = list(changes)
        first = [one for one in changes if _is_registration(one)]
        for at in range(0, len(first), max_writes):
            yield Chunk(tuple(first[at : at + max_writes]), ())
        chunk: list[Change] = []
        groups: set[str] = set()
        size = writes = 0
        for one in (one for one in changes if not _is_registration(one)):
            # A guard needs two writes, and an edit mark needs two.
            extra = 0 if one.group in groups else 4
            size += payload_size(one.write) + 128 * extra
            writes += 1 + extra
            if chunk and (len(chunk) >= max_writes or size > MAX_MULTI_BYTES or writes > 2_000):
                yield Chunk(tuple(chunk), tuple(sorted(groups)))
                chunk, groups = [], set()
                size, writes = payload_size(one.write) + 512, 5
            chunk.append(one)
            groups.add(one.group)
        if chunk:
            yield Chunk(tuple(chunk), tuple(sorted(groups)))

    def transaction(self, chunk: Chunk) -> list[Write]:
        """Return the writes of one transaction: guards, changes, edit marks."""
        writes = [*self._root]
        for group in chunk.groups:
            writes += self._guard(group, chunk)
        writes += [one.write for one in chunk.changes]
        for group in sorted(self._to_mark(chunk)):
            number = self._marks.get(group)
            if number is None:
                writes.append(Create(paths.edits(group)))
            writes.append(Create(paths.edit(group, number or 0), self._plan.hash.encode()))
        return writes

    def _guard(self, group: str, chunk: Chunk) -> list[Write]:
        """Return the guard of a group; an empty list if the chunk itself creates or deletes
        `ids`."""
        ids = paths.ids(group)
        touched = {one.path for one in chunk.changes}
        if group in self._forced or ids in touched or group not in self._groups:
            return []
        parent = self._ids.get(group)
        if parent is None:
            return [Create(ids), Delete(ids)]
        left = self._leftovers.get(group, {})
        return [
            *(Delete(path, one.node.stat.version) for path, one in left.items()),
            Delete(ids),
            parent,
            *(Create(path, one.node.data, rights=one.rights) for path, one in left.items()),
        ]

    def _to_mark(self, chunk: Chunk) -> set[str]:
        found: set[str] = set()
        for one in chunk.changes:
            group = one.group
            if group not in found | self._made | self._deleted and _is_edit(one):
                found.add(group)
        return found

    def written(self, chunk: Chunk) -> None:
        """Record that the transaction took effect, because the next transaction builds on its
        versions."""
        self._root = ()
        for group in chunk.groups:
            if self._guard(group, chunk):
                self._leftovers[group] = {
                    path: Leftover(
                        one.node._replace(stat=one.node.stat._replace(version=0)), one.rights
                    )
                    for path, one in self._leftovers.get(group, {}).items()
                }
        for group in self._to_mark(chunk):
            self._marks[group] = self._marks.get(group, 0) + 1
            self._marked.add(group)
        for one in chunk.changes:
            self._leftovers.get(one.group, {}).pop(one.path, None)
            if one.path == paths.group(one.group):
                (self._groups.add if one.after is not None else self._groups.discard)(one.group)
            elif one.path == paths.ids(one.group):
                self._ids.pop(one.group, None)
                if one.after is not None:
                    self._ids[one.group] = Create(one.path, one.after.data, rights=one.after.rights)

    def is_guard(self, write: Write) -> bool:
        """Return whether ZooKeeper refuses this write if the group has a member."""
        return paths.locate(write.path).kind is ZnodeKind.IDS

    def is_extra(self, write: Write) -> bool:
        """Return whether the edit marks must be read again if ZooKeeper refuses this write.

        Another operator's tool may have created `/consumers`, or a mark with this number, or
        deleted a registration without a session.
        """
        if write.path == paths.CONSUMERS:
            return True
        if any(write.path in some for some in self._leftovers.values()):
            return True
        parent = paths.edits(write.path.split("/")[2])
        is_below = write.path == parent or write.path.startswith(f"{parent}/")
        return is_below and all(one.path != write.path for one in self._plan.changes)

    def prune(self, connection: ZooKeeperClient) -> None:
        """Delete edit marks that are older than a day; another tool may do so at the same time."""
        for group in self._marked:
            parent = paths.edits(group)
            names = connection.children([parent]).get(parent, [])
            marks = connection.stats(f"{parent}/{name}" for name in names)
            newest = max((stat.mtime_ms for stat in marks.values()), default=0)
            for path, stat in marks.items():
                if stat.mtime_ms < newest - MARKS_KEPT_MS:
                    connection.write([Delete(path, stat.version)])


class Leftover(NamedTuple):
    """A registration without a session, and its access control list."""

    node: Node
    rights: tuple[Right, ...]


def read_leftovers(
    connection: ZooKeeperClient, groups: Iterable[str]
) -> dict[str, dict[str, Node]]:
    """Return group -> the registrations without a session: path -> znode."""
    parents = {paths.ids(name): name for name in groups}
    found: dict[str, dict[str, Node]] = {name: {} for name in parents.values()}
    children = connection.children(parents)
    nodes = connection.read(f"{path}/{name}" for path, some in children.items() for name in some)
    for path, node in nodes.items():
        if not node.stat.owner:
            found[parents[paths.parent(path)]][path] = node
    return found


def _is_registration(change: Change) -> bool:
    """Return whether a change deletes a registration; plans delete only those without a session."""
    return change.after is None and paths.locate(change.path).kind is ZnodeKind.MEMBER


# ---- access control lists -----------------------------------------------------------------------


def read_rights(connection: ZooKeeperClient, of: Iterable[str]) -> dict[str, tuple[Right, ...]]:
    """Return znode -> its access control list, complete enough to be restored.

    Raises AccessDeniedError if ZooKeeper hides a list or the hash of a password in it. ZooKeeper
    shows hashes only to identities with the right to administer the znode.
    """
    found: dict[str, tuple[Right, ...]] = {}
    for path, rights in connection.rights(of).items():
        if isinstance(rights, AccessDeniedError) or any(map(_is_hidden, rights)):
            raise AccessDeniedError(
                "ZooKeeper hides the access control list, so it could not be restored",
                where=path,
                remedy="authenticate as an identity with the right to administer the znode",
            )
        found[path] = rights
    return found


def _is_hidden(right: Right) -> bool:
    return right.identity.startswith("digest:") and right.identity.endswith(":x")


# ---- apply ---------------------------------------------------------------------------------------


class Live(Enum):
    """What `apply` does if a group has members."""

    REFUSE = "refuse"
    FORCE = "force"  # change the group anyway; zkconsumer members adopt offsets with an edit mark


class KafkaStore(Protocol):
    """Kafka's storage of offsets; `admin.broker_offsets` implements it for a real cluster."""

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return partition -> stored offset, for the partitions that have one. Raises
        ZkConsumerError."""

    def members(self, group: str) -> Sequence[str]:
        """Return the group's members of Kafka's own protocol. Raises ZkConsumerError."""

    def store(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Mapping[TopicPartition, str]:
        """Store offsets; return partition -> reason for each failure. Raises ZkConsumerError."""


@dataclass(frozen=True, slots=True)
class Report:
    """Result of `apply`.

    Attributes:
        applied: number of changes that this call made.
        already: number of changes that had been made before.
        backup: the backup file; None if there was nothing to change.
    """

    applied: int
    already: int
    backup: Path | None


Progress = Callable[[int, int], None]

ATTEMPTS: Final = 20
"""Attempts for one transaction, if its replies are lost or its edit mark exists already. After
that the remaining changes are reported as not applied."""

_NAMED = 5  # the maximum number of znodes, offsets or members that an error names


def apply(
    connection: ZooKeeperClient,
    plan: Plan,
    *,
    backup_dir: Path,
    live: Live = Live.REFUSE,
    kafka: KafkaStore | None = None,
    max_writes: int = MAX_MULTI_WRITES,
    watch: GroupWatch | None = None,
    on_backup: Callable[[Path], None] = lambda path: None,
    on_progress: Progress = lambda done, total: None,
) -> Report:
    """Write a backup, then make a plan's changes; changes made before count as done.

    To complete a plan that was interrupted, apply its file or its backup again.

    Args:
        backup_dir: directory of the backup, from which `plan_undo` restores the old state.
        live: what to do if a group has members.
        kafka: Kafka's storage, for plans that change offsets in Kafka; these are written last.
        max_writes: changes per transaction.
        watch: has taken the first reading of the groups, to find clients that commit without a
            registration; None: such clients are not looked for.
        on_backup: called with the path of the backup before the first write.
        on_progress: called after each transaction with the number of changes made and their total
            number.

    Raises:
        RefusedError: a znode, or an offset that the plan moves, has changed since the plan was
            made, a group has members, or a client commits offsets of a group without a
            registration; nothing was written, and no backup is left. If the plan
            changes offsets in Kafka, members of Kafka's own protocol count in any case.
        AppliedInPartError: after the first write, a znode changed, a member joined, or the
            connection was lost.
        AccessDeniedError: ZooKeeper denies the first write.
        ZooKeeperUnreachableError: the connection was lost before the first write.
        ConfigError: the backup cannot be written; nothing else was written.
    """
    run = _Run(
        connection,
        plan,
        live=live,
        max_writes=max_writes,
        kafka=kafka,
        watch=watch,
        on_progress=on_progress,
    )
    return run.run(backup_dir, on_backup)


def backup_name(plan: Plan) -> str:
    """Return the file name of a plan's backup: the group, the time, and the plan's hash."""
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
        watch: GroupWatch | None,
        on_progress: Progress,
    ) -> None:
        self._connection, self._plan, self._live = connection, plan, live
        self._watch = watch if live is Live.REFUSE else None
        self._max_writes, self._kafka, self._on_progress = max_writes, kafka, on_progress
        self._guards = Guards(plan, forced=frozenset(plan.groups if live is Live.FORCE else ()))
        self._backup: Path | None = None
        self._done = self._already = 0
        # Whether this run has written, or may have written in a transaction without a reply.
        self._has_written = False
        self._is_unsure = False  # whether a transaction without a reply may have taken effect
        self._has_asked_kafka = False  # whether Kafka may have stored offsets

    def run(self, backup_dir: Path, on_backup: Callable[[Path], None]) -> Report:
        plan, connection = self._plan, self._connection
        plan.require_chroot(connection.config.zookeeper_chroot)
        connection.sync()
        try:
            due, kafka = self._due()
        except RefusedError:
            self._refuse_writers()  # if there is one, it is the reason
            raise
        self._already = self._done = len(plan) - len(due) - len(kafka)
        if not due and not kafka:
            return Report(0, self._already, None)
        self._refuse_members()
        self._refuse_members_of_brokers(kafka)
        self._refuse_writers()
        if self._watch is not None and self._watch.has_waited:
            due, kafka = self._due()
        self._guards.read(connection)
        self._backup = plan_file.save(plan, backup_dir / backup_name(plan), kind="backup")
        on_backup(self._backup)
        self._on_progress(self._done, len(plan))
        for chunk in self._guards.chunks(due, self._max_writes):
            self._write(chunk)
            self._advance(len(chunk.changes))
        self._write_to_kafka(kafka)
        with suppress(ZkConsumerError):  # the plan is complete; the next one deletes old marks
            self._guards.prune(connection)
        return Report(self._done - self._already, self._already, self._backup)

    def _advance(self, count: int) -> None:
        self._done += count
        self._on_progress(self._done, len(self._plan))

    # ---- before the first write ------------------------------------------------------------------

    def _due(self) -> tuple[list[Change], list[KafkaChange]]:
        """Return the changes still to make, in ZooKeeper and in Kafka.

        Raises RefusedError if a znode or an offset in Kafka has neither its old nor its new state,
        or if an offset that is still to be moved has changed.
        """
        due, kafka = self._due_in_zookeeper(), self._due_in_kafka()
        if due or kafka:
            self._refuse_moved_sources()
        return due, kafka

    def _due_in_zookeeper(self) -> list[Change]:
        nodes = self._connection.read(one.path for one in self._plan.changes)
        due, changed = split_due(self._plan.changes, nodes)
        if changed:
            raise RefusedError(
                f"{count(changed, 'znode')} changed since the plan was made; nothing was written",
                where=_some(_present(one, nodes.get(one.path)) for one in changed),
                remedy="make a new plan",
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
                    stored_now = "no offset" if now is None else str(now.offset)
                    changed.append(f"{group} {one.partition} has {stored_now} in Kafka")
        if changed:
            raise RefusedError(
                f"{count(changed, 'offset')} in Kafka changed since the plan was made; nothing was"
                " written",
                where=_some(changed),
                remedy="make a new plan",
            )
        return due

    def _refuse_moved_sources(self) -> None:
        now = self._sources_now()
        changed = [
            f"{one.group} {one.partition} has {now.get(one, 'no offset')} in {one.store.value}"
            for one in self._plan.sources
            if now.get(one) != one.offset
        ]
        if changed:
            raise RefusedError(
                f"{count(changed, 'offset')} that the plan moves changed since it was made; nothing"
                " was written",
                where=_some(changed),
                remedy="make a new plan",
            )

    def _sources_now(self) -> dict[Source, int | str]:
        """Return source -> its present offset, or why it is none; without the missing ones."""
        found: dict[Source, int | str] = {}
        znodes = {
            paths.offset(one.group, one.partition): one
            for one in self._plan.sources
            if one.store is Storage.ZOOKEEPER
        }
        for path, node in self._connection.read(znodes).items():
            try:
                offset = stored_offset(node.data, where=path)
            except MalformedZnodeError as error:
                found[znodes[path]] = error.what
            else:
                if offset is not None:
                    found[znodes[path]] = offset
        in_kafka = [one for one in self._plan.sources if one.store is Storage.KAFKA]
        for group, sources in _by_group(in_kafka).items():
            stored = self._store.fetch(group, [one.partition for one in sources])
            found |= {
                one: stored[one.partition].offset for one in sources if one.partition in stored
            }
        return found

    @property
    def _store(self) -> KafkaStore:
        if self._kafka is None:
            raise RefusedError(
                "the plan changes or moves offsets in Kafka, but no brokers are given",
                where=self._plan.kind,
            )
        return self._kafka

    def _refuse_members(self) -> None:
        if self._live is Live.REFUSE and (members := self._members()):
            raise _live_error(members, self._plan)

    def _refuse_members_of_brokers(self, due: Iterable[KafkaChange]) -> None:
        """Refuse changes in Kafka of a group with members of Kafka's own protocol.

        The brokers would refuse them, and the changes in ZooKeeper would have been made by then.
        """
        members = {group: self._store.members(group) for group in _by_group(due)}
        found = {group: names for group, names in members.items() if names}
        if found:
            raise RefusedError(
                "the brokers accept offsets only from the members of a group while there are any;"
                " nothing was written",
                where=_by_name(found),
                remedy="stop these consumers",
            )

    def _refuse_writers(self) -> None:
        """Refuse the plan if a client commits without a registration; this may wait for seconds."""
        if self._watch is not None and (writers := self._watch.writers(self._plan.groups)):
            raise _writers_error(writers)

    def _members(self) -> dict[str, list[str]]:
        """Return group -> its live members, in the form in which an error names them."""
        parents = {paths.ids(group): group for group in self._plan.groups}
        found = {parents[path]: names for path, names in self._connection.children(parents).items()}
        nodes = self._connection.stats(
            paths.member(group, name) for group, names in found.items() for name in names
        )
        live = {path for path, stat in nodes.items() if stat.owner}
        named = {
            group: [quoted(name) for name in names if paths.member(group, name) in live]
            for group, names in found.items()
        }
        return {group: names for group, names in named.items() if names}

    # ---- writing ---------------------------------------------------------------------------------

    def _write(self, chunk: Chunk) -> None:
        """Send one transaction; if its reply is lost, send it again until its outcome is known."""
        connection = self._connection
        counted: set[str] = set()
        for _ in range(ATTEMPTS):
            writes = self._guards.transaction(chunk)
            try:
                reply = connection.write(writes)
                if reply.code is Code.OK:
                    self._has_written = True
                    self._guards.written(chunk)
                    return
                connection.sync()
                nodes = connection.read(one.path for one in chunk.changes)
            except ZooKeeperUnreachableError as error:
                self._lost(error)
            if chunk.changes and all(one.is_done(nodes.get(one.path)) for one in chunk.changes):
                self._has_written = True  # the transaction took effect, but its reply was lost
                self._guards.written(chunk)
                return
            if reply.code is Code.BROKEN:
                # If a znode has changed, the transaction may have taken effect before the change.
                if not all(one.is_due(nodes.get(one.path)) for one in chunk.changes):
                    self._has_written = self._is_unsure = True
                continue
            refused = writes[int(reply.value or 0)]
            if reply.code is Code.NOT_EMPTY and not self._has_others(refused.path, writes):
                self._count_again(refused.path, counted)
                continue
            if reply.code is Code.NO_AUTH or not self._may_repeat(refused):
                self._give_up(chunk, reply.code, refused, nodes)
            self._guards.read(connection)
        self._lost(
            ZooKeeperUnreachableError(
                f"a transaction was sent {ATTEMPTS} times without a reply",
                where=connection.config.zookeeper_hosts,
                remedy="check the servers, and try again",
            )
        )

    def _may_repeat(self, refused: Write) -> bool:
        """Return whether the transaction can succeed after the guards and marks are read again.

        A guard is refused if a member has joined. If it has left since, nothing prevents the
        change.
        """
        if self._guards.is_guard(refused) and self._live is Live.REFUSE:
            return not self._members()
        return self._guards.is_extra(refused)

    def _has_others(self, path: str, writes: Sequence[Write]) -> bool:
        """Return whether a znode has children that the transaction does not delete."""
        deleted = {one.path for one in writes if isinstance(one, Delete)}
        try:
            below = self._connection.children([path]).get(path, ())
        except ZooKeeperUnreachableError as error:
            self._lost(error)
        return any(f"{path}/{name}" not in deleted for name in below)

    def _count_again(self, path: str, counted: set[str]) -> None:
        """Let ZooKeeper correct its number of children, once for each znode of a transaction."""
        if path not in counted:
            counted.add(path)
            if self._connection.count_children_again(path).code in (Code.OK, Code.BROKEN):
                return
        self._end(
            RefusedError(
                "ZooKeeper refuses to delete a znode as if it had children, and it has none;"
                " nothing was written",
                where=path,
                remedy="a failed transaction leaves such a state in ZooKeeper before 3.4.7:"
                " create and delete a child of the znode, or restart ZooKeeper's leader",
            )
        )

    def _give_up(
        self, chunk: Chunk, code: Code, refused: Write, nodes: Mapping[str, Node]
    ) -> NoReturn:
        """Raise the error that says why ZooKeeper refused a transaction as a whole."""
        if code is Code.NO_AUTH:
            self._end(
                AccessDeniedError(
                    "ZooKeeper's access control list denies this change",
                    where=refused.path,
                    remedy="authenticate as an identity with the right to it (zookeeper.auth.*)",
                )
            )
        is_guard = self._guards.is_guard(refused) and self._live is Live.REFUSE
        if is_guard and (members := self._members()):
            self._end(_live_error(members, self._plan))
        _, changed = split_due(chunk.changes, nodes)
        where = _some(_present(one, nodes.get(one.path)) for one in changed)
        why = f"{count(changed, 'znode')} changed while the plan was applied"
        if not changed:
            why = _REASONS.get(code, f"ZooKeeper refused the change: {code.name}")
        self._end(
            RefusedError(
                f"{why}; nothing was written",
                where=where or refused.path,
                remedy="make a new plan",
            )
        )

    def _lost(self, error: ZooKeeperUnreachableError) -> NoReturn:
        """Raise the error for a connection that was lost during a transaction."""
        self._has_written = self._is_unsure = True
        self._end(error)

    def _end(self, error: ZkConsumerError) -> NoReturn:
        """Raise an error. After the first write, raise an AppliedInPartError with this error as its
        cause. Before, remove the backup, so that nobody takes it for the last change."""
        if not self._has_written:
            if self._backup is not None and not self._has_asked_kafka:
                self._backup.unlink(missing_ok=True)
            raise error
        what = error.what.removesuffix("; nothing was written")
        least = "at least " if self._is_unsure else ""
        raise AppliedInPartError(
            f"{least}{self._done} of {len(self._plan)} changes are made; then: {what}",
            where=error.where,
            remedy="complete the change, or undo it",
            advice=Advice(RemedyOperation.COMPLETE_OR_UNDO, value=str(self._backup)),
        ) from error

    def _write_to_kafka(self, due: Sequence[KafkaChange]) -> None:
        for group, wanted in _by_group(due).items():
            if self._guards.exists(group):
                self._write(Chunk((), (group,)))
            offsets = {one.partition: one.after for one in wanted}
            self._has_asked_kafka = True
            try:
                failed = self._store.store(group, offsets)
            except ZkConsumerError as error:
                self._has_written = True  # Kafka may have stored some of the offsets
                self._end(error)
            self._has_written = self._has_written or len(failed) < len(wanted)
            self._advance(len(wanted) - len(failed))
            if failed:
                self._end(
                    RefusedError(
                        f"Kafka did not store {count(failed, 'offset')} of group {group}",
                        where=_some(f"{tp}: {why}" for tp, why in failed.items()),
                        remedy="remove the cause, and apply the plan again",
                    )
                )


def _is_edit(change: Change) -> bool:
    """Return whether the change moves or deletes an offset that members can read."""
    if paths.locate(change.path).kind is not ZnodeKind.OFFSET:
        return False
    if change.after is not None or change.before is None:
        return change.after is not None
    try:
        return stored_offset(change.before.data, where=change.path) is not None
    except MalformedZnodeError:
        return False


def split_due(
    changes: Iterable[Change], nodes: Mapping[str, Node]
) -> tuple[list[Change], list[Change]]:
    """Return the changes still to make, and the changes whose znode has neither its old nor its new
    state."""
    due, changed = [], []
    for one in changes:
        node = nodes.get(one.path)
        if one.is_due(node):
            due.append(one)
        elif not one.is_done(node):
            changed.append(one)
    return due, changed


def count(things: Sized, noun: str) -> str:
    """Return a number with its noun in singular or plural."""
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _present(change: Change, node: Node | None) -> str:
    """Return the present state of a change's znode in words."""
    if node is None:
        return f"{change.path} is deleted"
    data = quoted((node.data or b"").decode(errors="replace"))
    return f"{change.path} has {data} in version {node.stat.version}"


_REASONS = {
    Code.NOT_EMPTY: "another client has created a znode below a znode that the plan deletes",
    Code.NO_NODE: "another client has deleted the parent of a znode that the plan creates",
}


def _some(sentences: Iterable[str]) -> str:
    return first_few(sentences, _NAMED, separator="; ")


def _by_name(members: Mapping[str, Sequence[str]]) -> str:
    """Return some members of each group."""
    return "; ".join(f"{group}: {first_few(some, _NAMED)}" for group, some in members.items())


def _live_error(members: Mapping[str, Sequence[str]], plan: Plan) -> RefusedError:
    has = "the group has" if len(members) == 1 else f"{len(members)} groups have"
    return RefusedError(
        f"{has} live members; nothing was written",
        where=_by_name(members),
        remedy=f"stop the members, or change the group anyway ({what_members_do(plan)})",
        advice=Advice(RemedyOperation.FORCE_LIVE),
    )


def _writers_error(writers: Mapping[str, GroupHealth]) -> RefusedError:
    has = "the group" if len(writers) == 1 else f"{len(writers)} groups"
    commits = any(one.writers for one in writers.values())
    does = f"commits offsets of {has}" if commits else f"writes znodes of {has}"
    return RefusedError(
        f"a client without a registration {does}; nothing was written",
        where="; ".join(f"{name}: {written_places(one)}" for name, one in writers.items()),
        remedy="stop that client (a direct Spark job, Flink, Storm, or kafka-python up to 0.9.5"
        " commits without a registration), or change the group anyway: that client overwrites the"
        " change, or does not see it",
        advice=Advice(RemedyOperation.FORCE_LIVE),
    )


_OfGroup = TypeVar("_OfGroup", KafkaChange, Source)


def _by_group(some: Iterable[_OfGroup]) -> dict[str, list[_OfGroup]]:
    found: dict[str, list[_OfGroup]] = {}
    for one in some:
        found.setdefault(one.group, []).append(one)
    return found
