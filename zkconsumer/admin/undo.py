"""The way back: a plan that restores what a backup holds."""

from __future__ import annotations

from collections.abc import Mapping

from zkconsumer.admin.apply import KafkaStore
from zkconsumer.admin.changes import state_of
from zkconsumer.admin.guards import read_rights
from zkconsumer.admin.plan import Change, Content, KafkaChange, Plan
from zkconsumer.core import paths
from zkconsumer.errors import RefusedError
from zkconsumer.zk.connection import Connection
from zkconsumer.zk.requests import Node


def plan_undo(connection: Connection, done: Plan, *, kafka: KafkaStore | None = None) -> Plan:
    """Put back what stood in each znode before `done`, which `planfile.load` reads from a backup.

    Also where it was applied in part, and over what others have written since, which the notes
    name. Znodes come back with their data and access control lists; versions begin anew. Znodes
    that `done` had made go, unless others have put something below them by now.

    Kafka has no way to take an offset away: where there was none, the new one stays, and a note
    says so; `kafka` is needed where `done` changed any.

    Raises AccessDeniedError, RefusedError for offsets in Kafka without `kafka`.
    """
    nodes = connection.read(one.path for one in done.changes)
    made = {one.path: nodes[one.path] for one in done.changes
            if one.before is None and one.path in nodes}
    for group in done.groups:
        if paths.group(group) in made:
            made |= connection.tree(paths.edits(group))
    kept = _kept(connection, made)
    rights = read_rights(connection, made)
    changes = [
        Change(path, state_of(node, rights.get(path)), None)
        for path, node in made.items() if path not in kept
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
        f"undo {done.kind}", connection.config.zookeeper_chroot, changes, kafka=stored,
        notes=[*notes, *more],
    )


def _kept(connection: Connection, made: Mapping[str, Node]) -> set[str]:
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
