"""What the operator's commands change, as plans: offsets, whole groups, topics.

Every function reads what it needs over a connection, writes nothing, and returns a `Plan`, which
`apply` makes happen:

    with Connection(config) as connection:
        plan = plan_offsets(connection, "offsets set", {"group": {TopicPartition("t", 0): 42}})
        for row in rows(plan):
            print(row)
        apply(connection, plan, backup_dir=Path("."))

A znode that belongs to a session is never planned on: it is a living member's.

The way back: a plan that restores what a backup holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from zkconsumer.admin.apply import KafkaStore, read_rights
from zkconsumer.admin.groups import (
    OFFSETS,
    GroupImage,
    read_group_names,
    read_group_tree,
    read_groups,
    unknown_group,
)
from zkconsumer.admin.plan import Change, Content, KafkaChange, Plan, State
from zkconsumer.errors import ConfigError, RefusedError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import Kind
from zkconsumer.protocol.payloads import encode_offset
from zkconsumer.protocol.requests import Node, Right
from zkconsumer.zk.client import ZooKeeperClient

MAX_DELETED: Final = 10_000
"""Znodes that one command deletes unless it is told more: a slip should not cost a cluster."""

Targets = Mapping[str, Mapping[TopicPartition, int | None]]
"""Group -> partition -> its new offset; None takes the offset away."""


def plan_offsets(
    connection: ZooKeeperClient, kind: str, targets: Targets, *, notes: Iterable[str] = ()
) -> Plan:
    """Set or delete offsets in ZooKeeper, as `kind`; groups and parents that are missing are made.

    The names must have been validated. Raises what reading raises.
    """
    images = read_groups(connection, targets, rooms=(OFFSETS,))
    changes: list[Change] = []
    for group, wanted in targets.items():
        image = images.get(group) or GroupImage(group, {})
        changes += _offset_changes(image, wanted)
    return Plan.of(kind, connection.config.zookeeper_chroot, changes, notes=notes)


def _offset_changes(
    image: GroupImage, wanted: Mapping[TopicPartition, int | None]
) -> Iterable[Change]:
    group = image.name
    there = {*image.nodes, *image.listed}
    complete: set[str] = set()
    for tp, offset in wanted.items():
        path = paths.offset(group, tp)
        node = image.nodes.get(path)
        before = node and state_of(node)
        if offset is None:
            yield Change(path, before, None)
            continue
        if tp.topic not in complete:
            complete.add(tp.topic)
            rooms = paths.group(group), paths.offsets(group), paths.offsets_of(group, tp.topic)
            for room in rooms:
                if room not in there:
                    there.add(room)
                    yield Change(room, None, Content(b""))
        yield Change(path, before, Content(encode_offset(offset)))


def plan_delete_offsets(
    connection: ZooKeeperClient,
    group: str,
    *,
    topics: Mapping[str, Collection[int] | None],
    max_deleted: int = MAX_DELETED,
) -> Plan:
    """Delete a group's offsets in ZooKeeper: of these topics, or of those partitions of them.

    A topic that has no offset left goes as a whole.
    Raises UnknownGroupError, ConfigError where there is no such offset, RefusedError beyond
    `max_deleted` znodes.
    """
    tree = _tree(connection, group)
    doomed: dict[str, Node] = {}
    for topic, partitions in topics.items():
        room = paths.offsets_of(group, topic)
        offsets = {path: node for path, node in tree.nodes.items() if path.startswith(f"{room}/")}
        if partitions is None:
            going = {path: tree.nodes[path] for path in (room, *offsets) if path in tree.nodes}
        else:
            named = {paths.offset(group, TopicPartition(topic, number)) for number in partitions}
            going = {path: node for path, node in offsets.items() if path in named}
            if going and going.keys() == offsets.keys():
                going[room] = tree.nodes[room]
        if not going:
            raise ConfigError(
                f"group {group} has no such offset of topic {topic} in ZooKeeper",
                where=room,
                remedy="`zkconsumer offsets get` shows those it has",
            )
        doomed |= going
    changes = _deletion(connection, doomed, max_deleted)
    return Plan.of("offsets delete", connection.config.zookeeper_chroot, changes)


def plan_delete_group(
    connection: ZooKeeperClient, group: str, *, max_deleted: int = MAX_DELETED
) -> Plan:
    """Delete all that ZooKeeper holds of a group (`kafka.admin.ConsumerGroupCommand --delete`).

    What belongs to a living session stays, with its parents, and a note says so.
    Raises UnknownGroupError; RefusedError beyond `max_deleted` znodes.
    """
    tree = _tree(connection, group)
    held = _held(tree.nodes)
    doomed = {path: node for path, node in tree.nodes.items() if path not in held}
    changes = _deletion(connection, doomed, max_deleted)
    notes = [
        f"{path} belongs to the session 0x{node.stat.owner:x} and stays"
        for path, node in tree.nodes.items()
        if node.stat.owner
    ]
    return Plan.of("groups delete", connection.config.zookeeper_chroot, changes, notes=notes)


def plan_copy_group(connection: ZooKeeperClient, source: str, target: str) -> Plan:
    """Give a new group all offsets of another, with the access control lists of their znodes.

    Raises UnknownGroupError; RefusedError when the target exists.
    """
    tree = _tree(connection, source)
    changes = _copy(connection, tree, target)
    chroot = connection.config.zookeeper_chroot
    return Plan.of("groups copy", chroot, changes, notes=_malformed(tree))


def plan_rename_group(
    connection: ZooKeeperClient, source: str, target: str, *, max_deleted: int = MAX_DELETED
) -> Plan:
    """As `plan_copy_group`, and the old group goes once the new one is complete.

    Raises UnknownGroupError; RefusedError when the target exists, when anything of the group
    belongs to a living session, and beyond `max_deleted` znodes.
    """
    tree = _tree(connection, source)
    if held := sorted(path for path, node in tree.nodes.items() if node.stat.owner):
        raise RefusedError(
            "something of the group belongs to a living session",
            where=", ".join(held[:5]),
            remedy="stop its members first",
        )
    changes = [*_copy(connection, tree, target), *_deletion(connection, tree.nodes, max_deleted)]
    chroot = connection.config.zookeeper_chroot
    return Plan.of("groups rename", chroot, changes, notes=_malformed(tree))


def plan_forget_topics(
    connection: ZooKeeperClient,
    topics: Collection[str],
    *,
    groups: Collection[str] | None = None,
    max_deleted: int = MAX_DELETED,
) -> Plan:
    """Take topics out of groups: their owner and offset znodes (`--delete --topic` of Kafka's).

    `groups` None: all that know one of them. Owner znodes of living sessions stay, with a note.
    Raises UnknownGroupError; ConfigError where no group knows the topics; RefusedError beyond
    `max_deleted` znodes.
    """
    names = read_group_names(connection) if groups is None else list(groups)
    known = connection.stats(map(paths.group, names))
    for name in names:
        if groups is not None and paths.group(name) not in known:
            raise unknown_group(name)
    rooms = [
        room
        for name in names
        for topic in topics
        for room in (paths.offsets_of(name, topic), paths.owners_of(name, topic))
    ]
    nodes: dict[str, Node] = connection.read(rooms)
    below = connection.children(list(nodes))
    nodes |= connection.read(f"{room}/{name}" for room, some in below.items() for name in some)
    if not nodes:
        raise ConfigError(
            f"no group knows {', '.join(topics)}",
            where=paths.CONSUMERS,
            remedy="`zkconsumer groups show` tells which topics a group knows",
        )
    held = _held(nodes)
    notes = [
        f"{path} belongs to the session 0x{node.stat.owner:x} and stays"
        for path, node in nodes.items()
        if node.stat.owner
    ]
    doomed = {path: node for path, node in nodes.items() if path not in held}
    changes = _deletion(connection, doomed, max_deleted)
    return Plan.of("topics forget", connection.config.zookeeper_chroot, changes, notes=notes)


def plan_writes(connection: ZooKeeperClient, kind: str, writes: Mapping[str, bytes | None]) -> Plan:
    """Write these payloads to znodes of groups, or delete them where there is None; for `doctor`.

    Raises RefusedError for a znode that belongs to a session.
    """
    nodes = connection.read(writes)
    rights = read_rights(connection, [path for path, data in writes.items() if data is None])
    changes = []
    for path, data in writes.items():
        node = nodes.get(path)
        if node is not None and node.stat.owner:
            raise RefusedError("the znode belongs to a living session", where=path)
        before = None if node is None else state_of(node, rights.get(path))
        changes.append(Change(path, before, None if data is None else Content(data)))
    return Plan.of(kind, connection.config.zookeeper_chroot, changes)


# ---- parts --------------------------------------------------------------------------------------


def _tree(connection: ZooKeeperClient, group: str) -> GroupImage:
    tree = read_group_tree(connection, group)
    if tree is None:
        raise unknown_group(group)
    return tree


def state_of(node: Node, rights: tuple[Right, ...] | None = None) -> State:
    """A znode as it was read, as a plan has it."""
    return State(node.data, node.stat.version, node.stat.mzxid, rights)


def _held(nodes: Mapping[str, Node]) -> set[str]:
    """The znodes of living sessions, and all their parents."""
    held: set[str] = set()
    for path, node in nodes.items():
        parts = path.split("/")
        while node.stat.owner and parts:
            held.add("/".join(parts))
            parts.pop()
    return held


def _deletion(
    connection: ZooKeeperClient, nodes: Mapping[str, Node], max_deleted: int
) -> list[Change]:
    if len(nodes) > max_deleted:
        raise RefusedError(
            f"{len(nodes)} znodes would be deleted, more than {max_deleted}",
            where=next(iter(nodes)),
            remedy=f"--max-znodes {len(nodes)}, if it is meant so",
        )
    rights = read_rights(connection, nodes)
    return [Change(path, state_of(node, rights.get(path)), None) for path, node in nodes.items()]


def _malformed(tree: GroupImage) -> list[str]:
    return [
        f"{tp} is copied as it is: {node.fault}" for tp, node in tree.offsets.items() if node.fault
    ]


def _copy(connection: ZooKeeperClient, tree: GroupImage, target: str) -> list[Change]:
    if connection.stats([paths.group(target)]):
        raise RefusedError(
            f"group {target} exists",
            where=paths.group(target),
            remedy="name another; `zkconsumer offsets copy` writes into a group that exists",
        )
    rooms = {paths.group(tree.name), paths.offsets(tree.name)}
    wanted = [
        path
        for path in tree.nodes
        if path in rooms or paths.locate(path).kind in (Kind.OFFSETS_OF, Kind.OFFSET)
    ]
    rights = read_rights(connection, wanted)
    root, copy = paths.group(tree.name), paths.group(target)
    return [
        Change(
            copy + path.removeprefix(root),
            None,
            Content(tree.nodes[path].data, rights.get(path)),
        )
        for path in wanted
    ]


# ---- undo ----------------------------------------------------------------------------------------


def plan_undo(connection: ZooKeeperClient, done: Plan, *, kafka: KafkaStore | None = None) -> Plan:
    """Put back what stood in each znode before `done`, which `planfile.load` reads from a backup.

    Also where it was applied in part, and over what others have written since, which the notes
    name. Znodes come back with their data and access control lists; versions begin anew. Znodes
    that `done` had made go, unless others have put something below them by now.

    Kafka has no way to take an offset away: where there was none, the new one stays, and a note
    says so; `kafka` is needed where `done` changed any.

    Raises AccessDeniedError, RefusedError for offsets in Kafka without `kafka`.
    """
    nodes = connection.read(one.path for one in done.changes)
    made = {
        one.path: nodes[one.path]
        for one in done.changes
        if one.before is None and one.path in nodes
    }
    for group in done.groups:
        if paths.group(group) in made:
            made |= connection.tree(paths.edits(group))
    kept = _kept(connection, made)
    rights = read_rights(connection, made)
    changes = [
        Change(path, state_of(node, rights.get(path)), None)
        for path, node in made.items()
        if path not in kept
    ]
    notes = [f"{path} stays: something else is below it by now" for path in sorted(kept)]
    for one in done.changes:
        node = nodes.get(one.path)
        if not one.is_due(node) and not one.is_done(node) and one.path not in kept:
            notes.append(f"{one.path} was changed since, and goes back all the same")
        if one.before is not None:
            before = None if node is None else state_of(node)
            changes.append(Change(one.path, before, Content(one.before.data, one.before.rights)))
    stored, more = _kafka(done, kafka)
    return Plan.of(
        f"undo {done.kind}",
        connection.config.zookeeper_chroot,
        changes,
        kafka=stored,
        notes=[*notes, *more],
    )


def _kept(connection: ZooKeeperClient, made: Mapping[str, Node]) -> set[str]:
    """Those that cannot go, because somebody else's znode is below them."""
    kept: set[str] = set()
    below = connection.children(made)
    for path in sorted(made, key=lambda path: -path.count("/")):
        children = {f"{path}/{name}" for name in below.get(path, ())}
        if not children <= made.keys() - kept:
            kept.add(path)
    return kept


def _kafka(done: Plan, kafka: KafkaStore | None) -> tuple[list[KafkaChange], list[str]]:
    changes, notes = [], []
    for group in {one.group for one in done.kafka}:
        if kafka is None:
            raise RefusedError(
                "the backup holds offsets in Kafka, and no broker is known", where=done.origin
            )
        wanted = [one for one in done.kafka if one.group == group]
        stored = kafka.fetch(group, [one.partition for one in wanted])
        for one in wanted:
            now = stored.get(one.partition)
            if one.before is not None:
                changes.append(KafkaChange(group, one.partition, now, one.before))
            elif now is not None:
                notes.append(
                    f"{group} {one.partition} had no offset in Kafka, and keeps {now.offset}:"
                    " Kafka takes none away"
                )
    return changes, notes
