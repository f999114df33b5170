"""Plans that change offsets in ZooKeeper, groups and topics, and plans that undo a change.

Each function reads the znodes that it needs, writes nothing, and returns a `Plan`, which `apply`
executes:

    with ZooKeeperClient(config) as connection:
        plan = plan_offsets(connection, "offsets set", {"group": {TopicPartition("t", 0): 42}})
        for row in rows(plan):
            print(row)
        apply(connection, plan, backup_dir=Path("."))

No plan changes an ephemeral znode, since such a znode belongs to a live session.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from zkconsumer.admin.apply import KafkaStore, read_rights
from zkconsumer.admin.groups import (
    GroupImage,
    read_group_names,
    read_group_tree,
    read_groups,
    unknown_group,
)
from zkconsumer.admin.plan import Change, Content, KafkaChange, Plan, Verb, ZnodeState
from zkconsumer.errors import Advice, ConfigError, RefusedError, RemedyOperation, first_few
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_znodes import OFFSETS
from zkconsumer.protocol.model import TopicPartition, session_text
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.payloads import encode_offset
from zkconsumer.protocol.requests import Node, Right
from zkconsumer.zk.client import ZooKeeperClient

MAX_DELETED: Final = 10_000
"""Default for the number of znodes that a plan may delete; a larger plan is refused. The limit
reduces the damage of a mistyped command."""

Targets = Mapping[str, Mapping[TopicPartition, int | None]]
"""Group -> partition -> its new offset; None deletes the offset."""

Rights = Mapping[str, tuple[Right, ...]]
"""Path -> access control list."""


def plan_offsets(
    connection: ZooKeeperClient,
    kind: str,
    targets: Targets,
    *,
    kafka: Iterable[KafkaChange] = (),
    notes: Iterable[str] = (),
    rights: Rights = MappingProxyType({}),
) -> Plan:
    """Plan to set or delete offsets in ZooKeeper; missing groups and parents are created.

    `kind` is the kind of the plan. The caller has validated the names. `kafka` are the changes that
    the plan makes in Kafka. `rights` is path -> access control list, for znodes that the plan may
    create; others get that of `zookeeper.acl`. Raises what `ZooKeeperClient.read` raises.
    """
    images = read_groups(connection, targets, directories=(OFFSETS,))
    deleted = (
        paths.offset(group, tp) for group, of in targets.items() for tp in of if of[tp] is None
    )
    known = read_rights(connection, deleted)
    changes: list[Change] = []
    for group, wanted in targets.items():
        image = images.get(group) or GroupImage(group, {})
        changes += _offset_changes(image, wanted, {**rights, **known})
    return Plan.of(kind, connection.config.zookeeper_chroot, changes, kafka=kafka, notes=notes)


def _offset_changes(
    image: GroupImage, wanted: Mapping[TopicPartition, int | None], rights: Rights
) -> Iterable[Change]:
    group = image.name
    there = {*image.nodes, *image.listed}
    complete: set[str] = set()
    for tp, offset in wanted.items():
        path = paths.offset(group, tp)
        node = image.nodes.get(path)
        if offset is None:
            yield Change(path, node and state_of(node, rights.get(path)), None)
            continue
        if tp.topic not in complete:
            complete.add(tp.topic)
            parents = paths.group(group), paths.offsets(group), paths.offsets_of(group, tp.topic)
            for parent in parents:
                if parent not in there:
                    there.add(parent)
                    yield Change(parent, None, Content(b"", rights.get(parent)))
        acl = rights.get(path) if node is None else None
        yield Change(path, node and state_of(node), Content(encode_offset(offset), acl))


def plan_delete_offsets(
    connection: ZooKeeperClient,
    group: str,
    *,
    topics: Mapping[str, Collection[int] | None],
    max_deleted: int = MAX_DELETED,
) -> Plan:
    """Plan to delete a group's offsets of topics in ZooKeeper.

    `topics` is topic -> partitions; None means all partitions. If no offset of a topic remains, its
    parent znode is deleted, too.

    Raises UnknownGroupError; ConfigError if there is no such offset; RefusedError for more than
    `max_deleted` znodes.
    """
    tree = _tree(connection, group)
    to_delete: dict[str, Node] = {}
    for topic, partitions in topics.items():
        parent = paths.offsets_of(group, topic)
        offsets = {path: node for path, node in tree.nodes.items() if path.startswith(f"{parent}/")}
        if partitions is None:
            found = {path: tree.nodes[path] for path in (parent, *offsets) if path in tree.nodes}
        else:
            named = {paths.offset(group, TopicPartition(topic, number)) for number in partitions}
            found = {path: node for path, node in offsets.items() if path in named}
            if found and found.keys() == offsets.keys():
                found[parent] = tree.nodes[parent]
        if not found:
            raise ConfigError(
                f"group {group} has no such offset of topic {topic} in ZooKeeper",
                where=parent,
                remedy="see which offsets the group has",
                advice=Advice(RemedyOperation.SHOW_OFFSETS, group),
            )
        to_delete |= found
    changes = _deletion(connection, to_delete, max_deleted)
    return Plan.of("offsets delete", connection.config.zookeeper_chroot, changes)


def plan_delete_group(
    connection: ZooKeeperClient, *groups: str, max_deleted: int = MAX_DELETED
) -> Plan:
    """Plan to delete all znodes of groups (`kafka.admin.ConsumerGroupCommand --delete`).

    Znodes of live sessions and their parents are kept, with a note. Raises UnknownGroupError;
    RefusedError for more than `max_deleted` znodes in all groups together.
    """
    nodes: dict[str, Node] = {}
    for group in groups:
        nodes |= _tree(connection, group).nodes
    held = _held(nodes)
    to_delete = {path: node for path, node in nodes.items() if path not in held}
    changes = _deletion(connection, to_delete, max_deleted)
    notes = _notes_on_kept(nodes)
    return Plan.of("groups delete", connection.config.zookeeper_chroot, changes, notes=notes)


def plan_copy_group(connection: ZooKeeperClient, source: str, target: str) -> Plan:
    """Plan to copy all offsets of a group to a new group, with their access control lists.

    Raises UnknownGroupError; RefusedError if the target exists.
    """
    tree = _tree(connection, source)
    changes = _copy(connection, tree, target)
    chroot = connection.config.zookeeper_chroot
    return Plan.of("groups copy", chroot, changes, notes=_malformed(tree))


def plan_rename_group(
    connection: ZooKeeperClient, source: str, target: str, *, max_deleted: int = MAX_DELETED
) -> Plan:
    """Plan to copy a group as `plan_copy_group` does, and then to delete the old group.

    Raises UnknownGroupError; RefusedError if the target exists, if a live session holds a znode of
    the group, or for more than `max_deleted` znodes.
    """
    tree = _tree(connection, source)
    if held := sorted(path for path, node in tree.nodes.items() if node.stat.owner):
        raise RefusedError(
            "live sessions hold znodes of the group",
            where=first_few(held, 5),
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
    """Plan to delete the owner and offset znodes of topics (Kafka: `--delete --topic`).

    `groups` None means all groups. Owner znodes of live sessions are kept, with a note. Raises
    UnknownGroupError; ConfigError if no group has such znodes; RefusedError for more than
    `max_deleted` znodes.
    """
    names = read_group_names(connection) if groups is None else list(groups)
    known = connection.stats(map(paths.group, names))
    for name in names:
        if groups is not None and paths.group(name) not in known:
            raise unknown_group(name, connection)
    parents = [
        parent
        for name in names
        for topic in topics
        for parent in (paths.offsets_of(name, topic), paths.owners_of(name, topic))
    ]
    nodes: dict[str, Node] = connection.read(parents)
    below = connection.children(list(nodes))
    nodes |= connection.read(f"{parent}/{name}" for parent, some in below.items() for name in some)
    if not nodes:
        raise ConfigError(
            f"no group has owners or offsets of {', '.join(topics)}",
            where=paths.CONSUMERS,
            remedy="see the topics of a group",
            advice=Advice(RemedyOperation.SHOW_GROUP),
        )
    held = _held(nodes)
    notes = _notes_on_kept(nodes)
    to_delete = {path: node for path, node in nodes.items() if path not in held}
    changes = _deletion(connection, to_delete, max_deleted)
    return Plan.of("topics forget", connection.config.zookeeper_chroot, changes, notes=notes)


def plan_writes(connection: ZooKeeperClient, kind: str, writes: Mapping[str, bytes | None]) -> Plan:
    """Plan to write payloads to znodes of groups, for `doctor`; None deletes the znode.

    Raises RefusedError for an ephemeral znode.
    """
    nodes = connection.read(writes)
    rights = read_rights(connection, [path for path, data in writes.items() if data is None])
    changes = []
    for path, data in writes.items():
        node = nodes.get(path)
        if node is not None and node.stat.owner:
            raise RefusedError("the znode belongs to a live session", where=path)
        before = None if node is None else state_of(node, rights.get(path))
        changes.append(Change(path, before, None if data is None else Content(data)))
    return Plan.of(kind, connection.config.zookeeper_chroot, changes)


# ---- parts --------------------------------------------------------------------------------------


def _tree(connection: ZooKeeperClient, group: str) -> GroupImage:
    tree = read_group_tree(connection, group)
    if tree is None:
        raise unknown_group(group, connection)
    return tree


def state_of(node: Node, rights: tuple[Right, ...] | None = None) -> ZnodeState:
    """Return the state of a znode as a plan records it."""
    return ZnodeState(node.data, node.stat.version, node.stat.mzxid, rights)


def _held(nodes: Mapping[str, Node]) -> set[str]:
    """Return the znodes of live sessions and all their parents."""
    held: set[str] = set()
    for path, node in nodes.items():
        parts = path.split("/")
        while node.stat.owner and parts:
            held.add("/".join(parts))
            parts.pop()
    return held


def _notes_on_kept(nodes: Mapping[str, Node]) -> list[str]:
    """Return a note on each znode that is kept because a live session holds it."""
    return [
        f"{path} is kept: session {session_text(node.stat.owner)} holds it"
        for path, node in nodes.items()
        if node.stat.owner
    ]


def _deletion(
    connection: ZooKeeperClient, nodes: Mapping[str, Node], max_deleted: int
) -> list[Change]:
    if len(nodes) > max_deleted:
        raise RefusedError(
            f"the plan would delete {len(nodes)} znodes, more than {max_deleted}",
            where=next(iter(nodes)),
            remedy="if this is intended, raise the limit",
            advice=Advice(RemedyOperation.RAISE_LIMIT, value=str(len(nodes))),
        )
    rights = read_rights(connection, nodes)
    return [Change(path, state_of(node, rights.get(path)), None) for path, node in nodes.items()]


def _malformed(tree: GroupImage) -> list[str]:
    return [
        f"{tp} is copied as it is: {node.fault}" for tp, node in tree.offsets.items() if node.fault
    ]


def _copy(connection: ZooKeeperClient, tree: GroupImage, target: str) -> list[Change]:
    if connection.stats([paths.group(target)]):
        remedy, advice = "name a group that does not exist", None
        if target != tree.name:
            remedy += ", or copy offsets into the existing group"
            advice = Advice(RemedyOperation.COPY_OFFSETS, target, tree.name)
        where = paths.group(target)
        raise RefusedError(f"group {target} exists", where=where, remedy=remedy, advice=advice)
    parents = {paths.group(tree.name), paths.offsets(tree.name)}
    wanted = [
        path
        for path in tree.nodes
        if path in parents or paths.locate(path).kind in (ZnodeKind.OFFSETS_OF, ZnodeKind.OFFSET)
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
    """Plan to restore each znode to its state before the plan `done`, as `load_plan` reads it from
    a backup.

    `done` may have been applied in part. Later writes of other clients are overwritten, with a
    note. A restored znode has its old data and access control list, and a new version. Znodes that
    `done` created are deleted, unless another client has created znodes below them.

    Parents that another client has deleted since are created again, empty, with a note.

    Offsets in Kafka cannot be deleted. If Kafka had no offset before the change, the new offset is
    kept, with a note. `kafka` is required if `done` changed offsets in Kafka.

    Raises AccessDeniedError; RefusedError if `done` was made below another chroot, or if `kafka` is
    required and missing.
    """
    done.require_chroot(connection.config.zookeeper_chroot)
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
    notes = [f"{path} is kept: another client has created znodes below it" for path in sorted(kept)]
    for one in done.changes:
        node = nodes.get(one.path)
        if not one.is_due(node) and not one.is_done(node) and one.path not in kept:
            notes.append(f"{one.path} has changed since, and is restored nevertheless")
        if one.before is not None:
            before = None if node is None else state_of(node)
            changes.append(Change(one.path, before, Content(one.before.data, one.before.rights)))
    parents = _missing_parents(connection, changes)
    changes += [Change(path, None, Content(b"")) for path in parents]
    notes += [f"{path} is created again: it has been deleted since" for path in parents]
    stored, more = _kafka(done, kafka)
    return Plan.of(
        f"undo {done.kind}",
        connection.config.zookeeper_chroot,
        changes,
        kafka=stored,
        notes=[*notes, *more],
    )


def _missing_parents(connection: ZooKeeperClient, changes: Iterable[Change]) -> list[str]:
    """Return the parents that the created znodes need, and that do not exist, sorted."""
    made = [one for one in changes if one.verb is Verb.CREATE]
    needed: set[str] = set()
    for one in made:
        path, root = one.path, paths.group(one.group)
        while path != root:
            path = paths.parent(path)
            needed.add(path)
    needed -= {one.path for one in made}
    return sorted(needed - connection.stats(needed).keys())


def _kept(connection: ZooKeeperClient, made: Mapping[str, Node]) -> set[str]:
    """Return the znodes that cannot be deleted because another client's znode is below them."""
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
                "the backup holds offsets in Kafka, but no brokers are given", where=done.origin
            )
        wanted = [one for one in done.kafka if one.group == group]
        stored = kafka.fetch(group, [one.partition for one in wanted])
        for one in wanted:
            now = stored.get(one.partition)
            if one.before is not None:
                changes.append(KafkaChange(group, one.partition, now, one.before))
            elif now is not None:
                notes.append(
                    f"{group} {one.partition} had no offset in Kafka and keeps {now.offset}:"
                    " offsets in Kafka cannot be deleted"
                )
    return changes, notes
