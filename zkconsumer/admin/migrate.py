"""Migration of a group's offsets from ZooKeeper to Kafka, or back: plan it, and verify it.

A group can be migrated if it has no registered members. `apply` then uses a guard that fails if a
member has joined since.

A group whose members commit to both stores (`offsets.storage=kafka` with `dual.commit.enabled`) has
migrated already, and nothing is written. No znode contains this setting, so it is inferred from the
offsets: for each owned partition, both stores have the same offset, or Kafka's offset is higher and
ZooKeeper's offset reaches it within `FOLLOW_S`. Members write to Kafka first
(`ZookeeperConsumerConnector.commitOffsets`, Kafka 0.8.2 to 1.1.1).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from zkconsumer.admin.group_changes import plan_offsets
from zkconsumer.admin.groups import (
    GroupImage,
    OffsetNode,
    Selection,
    existing_group,
    read_groups,
    read_partitions,
    read_topic_names,
    registered_brokers,
    selected,
    unknown_group,
)
from zkconsumer.admin.plan import KafkaChange, Plan, Source
from zkconsumer.errors import RefusedError, first_few
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.logs import committed_in_kafka
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import OffsetAndMetadata, Storage, TopicPartition
from zkconsumer.zk.client import ZooKeeperClient

if TYPE_CHECKING:
    from zkconsumer.admin.doctor import AskLogs
    from zkconsumer.admin.findings import LogEnds

Stored = Mapping[TopicPartition, OffsetAndMetadata | str | None]
AskKafka = Callable[[Brokers, str, Collection[TopicPartition]], Stored]

FOLLOW_S = 3.0
"""Seconds within which ZooKeeper's offset must reach Kafka's; a dual commit writes to one store
after the other. If it takes longer, the group counts as not committing to both stores."""

_POLL_INTERVAL_S = 0.2


class Direction(Enum):
    """Source and target of a migration."""

    TO_KAFKA = "zookeeper-to-kafka"
    TO_ZOOKEEPER = "kafka-to-zookeeper"


class HigherTargetOffset(Enum):
    """Whether a higher offset in the target store is overwritten."""

    KEEP = "keep"
    OVERWRITE = "overwrite"  # overwrite it; messages since the lower offset are redelivered


class TransferAction(Enum):
    """What the plan does with one partition."""

    CREATE = "create"  # the target store has no offset
    ADVANCE = "advance"  # the target store's offset is lower
    SAME = "same"  # both offsets are equal
    BACK = "back"  # the target store's offset is higher, and is overwritten if forced
    LEFT = "left"  # the partition is not migrated; the reason says why
    NONE = "none"  # the source store has no offset


class Activity(Enum):
    """Whether the group has members, and how they commit."""

    IDLE = "idle"
    DUAL = "dual-committing"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One partition: its offsets in both stores (None: no offset), and what the plan does with it.

    `reason` says why the partition is not migrated, or what is unusual about its offset.
    """

    partition: TopicPartition
    zookeeper: int | None
    kafka: int | None
    action: TransferAction
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Migration:
    """A planned migration: `plan` contains the changes, and `transfers` describes the migration of
    each partition."""

    group: str
    direction: Direction
    activity: Activity
    transfers: tuple[Transfer, ...]
    plan: Plan

    @property
    def left(self) -> tuple[Transfer, ...]:
        """The partitions that are not migrated."""
        return tuple(one for one in self.transfers if one.action is TransferAction.LEFT)


def plan_migration(
    connection: ZooKeeperClient,
    group: str,
    direction: Direction,
    *,
    ask_kafka: AskKafka,
    ask_logs: AskLogs | None = None,
    topics: Selection | None = None,
    lower: HigherTargetOffset = HigherTargetOffset.KEEP,
    follow_s: float = FOLLOW_S,
) -> Migration:
    """Plan a group's migration. Writes nothing.

    Args:
        ask_kafka: returns the group's offsets in Kafka.
        ask_logs: returns logs; an offset outside its log is migrated unchanged, with a reason.
        topics: partitions to migrate; None means all partitions of all topics.
        lower: what to do with a partition whose offset in the target store is higher.
        follow_s: seconds within which ZooKeeper's offset must reach Kafka's in a dual commit.

    Raises:
        UnknownGroupError: the group is unknown in the source store.
        RefusedError: the group has members that do not commit to both stores, or Kafka does not
            return every offset.
    """
    image = read_groups(connection, [group]).get(group)
    is_new = image is None
    image = image or GroupImage(group, {})
    partitions = _partitions(connection, topics)
    asked = sorted({*partitions, *_chosen(image.offsets, topics)})
    brokers = registered_brokers(connection)
    stored = _known(ask_kafka(brokers, group, [tp for tp in asked if tp in partitions]))
    if is_new and not (stored and direction is Direction.TO_ZOOKEEPER):
        raise unknown_group(group, connection)
    activity = Activity.IDLE
    if image.health.live:
        activity = _activity(connection, image, stored, follow_s)
    transfers = tuple(
        _transfer(tp, image.offsets.get(tp), stored.get(tp), direction)
        for tp in asked
        if tp in image.offsets or stored.get(tp)
    )
    left, gone = TransferAction.LEFT, "the topic or the partition does not exist"
    transfers = tuple(
        one if one.partition in partitions else replace(one, action=left, reason=gone)
        for one in transfers
    )
    if activity is Activity.LIVE:
        raise _refused(group, image, transfers)
    if activity is Activity.DUAL:
        transfers = tuple(_with_dual_commit(one, image) for one in transfers)
    transfers = tuple(_unless_lower(one, lower) for one in transfers)
    moves = [one.partition for one in transfers if one.action in _MOVES]
    if ask_logs is not None and moves:
        logs = ask_logs(brokers, moves)
        transfers = tuple(
            _compared_with_log(one, logs.get(one.partition), direction) for one in transfers
        )
    plan = _plan(connection, group, direction, transfers, stored)
    return Migration(group, direction, activity, transfers, plan)


def verify_migration(
    connection: ZooKeeperClient, done: Migration, *, ask_kafka: AskKafka
) -> list[Transfer]:
    """Read the target store again, and return the partitions whose offset is not there."""
    moved = [one for one in done.transfers if one.action in _MOVES]
    image = existing_group(connection, done.group)
    brokers = registered_brokers(connection)
    stored = _known(ask_kafka(brokers, done.group, [one.partition for one in moved]))
    missing = []
    for one in moved:
        node, kafka = image.offsets.get(one.partition), stored.get(one.partition)
        now = _transfer(one.partition, node, kafka, done.direction)
        if done.direction is Direction.TO_KAFKA:
            arrived = now.kafka == one.zookeeper
        else:
            arrived = now.zookeeper == one.kafka
        if not arrived:
            missing.append(now)
    return missing


def kafka_offsets(
    limit_s: float, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> AskKafka:
    """Return a function that asks the brokers for offsets, with `limit_s` seconds per request.

    `on_progress(done, total)` is called with the number of offsets read so far and their total
    number.
    """

    def ask(brokers: Brokers, group: str, partitions: Collection[TopicPartition]) -> Stored:
        return committed_in_kafka(
            brokers, group, partitions, limit_s=limit_s, on_progress=on_progress
        )

    return ask


# ---- reading ------------------------------------------------------------------------------------


def _partitions(connection: ZooKeeperClient, topics: Selection | None) -> set[TopicPartition]:
    names = read_topic_names(connection) if topics is None else topics
    every = (
        TopicPartition(name, number)
        for name, numbers in read_partitions(connection, names).items()
        for number in numbers
    )
    return set(selected(every, topics))


def _chosen(
    offsets: Mapping[TopicPartition, OffsetNode], topics: Selection | None
) -> list[TopicPartition]:
    return [tp for tp in selected(offsets, topics) if paths.is_topic(tp.topic)]


def _known(stored: Stored) -> dict[TopicPartition, OffsetAndMetadata]:
    unknown = {tp: why for tp, why in stored.items() if isinstance(why, str)}
    if unknown:
        tp, why = next(iter(unknown.items()))
        raise RefusedError(
            f"Kafka does not return the offsets of {len(unknown)} partitions, such as {tp}: {why};"
            " nothing was written",
            remedy="check the brokers, and try again",
        )
    return {tp: one for tp, one in stored.items() if isinstance(one, OffsetAndMetadata)}


def _activity(
    connection: ZooKeeperClient,
    image: GroupImage,
    stored: Mapping[TopicPartition, OffsetAndMetadata],
    follow_s: float,
) -> Activity:
    """Return DUAL if ZooKeeper's offset of every owned partition equals or soon reaches Kafka's."""
    if not image.health.owned:
        return Activity.LIVE
    deadline = time.monotonic() + follow_s
    for tp in image.health.owned:
        kafka, node = stored.get(tp), image.offsets.get(tp)
        if kafka is None or node is None or node.value is None or node.value > kafka.offset:
            return Activity.LIVE
    offsets = image.offsets
    while any((offsets[tp].value or 0) < stored[tp].offset for tp in image.health.owned):
        if time.monotonic() > deadline:
            return Activity.LIVE
        time.sleep(_POLL_INTERVAL_S)
        offsets = {**offsets, **existing_group(connection, image.name).offsets}
    return Activity.DUAL


# ---- transfers ----------------------------------------------------------------------------------

_MOVES = (TransferAction.CREATE, TransferAction.ADVANCE, TransferAction.BACK)


def _transfer(
    tp: TopicPartition,
    node: OffsetNode | None,
    kafka: OffsetAndMetadata | None,
    direction: Direction,
) -> Transfer:
    here = node.value if node is not None and (node.value or 0) >= 0 else None
    there = None if kafka is None else kafka.offset
    fault = node.fault if node is not None else ""
    source, target = (here, there) if direction is Direction.TO_KAFKA else (there, here)
    if fault:
        repair = "" if here is None else f"; the doctor can rewrite it as {here}"
        why = f"ZooKeeper's offset is malformed: {fault}{repair}"
        return Transfer(tp, here, there, TransferAction.LEFT, why)
    if source is None:
        return Transfer(tp, here, there, TransferAction.NONE)
    if target is None:
        return Transfer(tp, here, there, TransferAction.CREATE)
    if source == target:
        return Transfer(tp, here, there, TransferAction.SAME)
    return Transfer(
        tp, here, there, TransferAction.ADVANCE if source > target else TransferAction.BACK
    )


def _with_dual_commit(one: Transfer, image: GroupImage) -> Transfer:
    if one.partition in image.health.owned:
        return replace(one, action=TransferAction.SAME, reason="its owner commits to both stores")
    if one.action in _MOVES:
        why = "it has no owner, and the group has members: stop them to migrate it"
        return replace(one, action=TransferAction.LEFT, reason=why)
    return one


def _unless_lower(one: Transfer, lower: HigherTargetOffset) -> Transfer:
    if one.action is TransferAction.BACK and lower is HigherTargetOffset.KEEP:
        why = "the target's offset is higher, and is not lowered unless forced"
        return replace(one, action=TransferAction.LEFT, reason=why)
    return one


def _compared_with_log(one: Transfer, log: LogEnds | str | None, direction: Direction) -> Transfer:
    """Return the transfer with a reason if its offset is outside the log.

    The offset is migrated unchanged, since members treat it in the same way in both stores.
    """
    offset = one.zookeeper if direction is Direction.TO_KAFKA else one.kafka
    if log is None or offset is None:
        return one
    if isinstance(log, str):
        return replace(one, reason=f"not compared with the log: {log}")
    if log.start <= offset <= log.end:
        return one
    place = f"beyond the end of the log ({log.end})"
    if offset < log.start:
        place = f"before the start of the log ({log.start})"
    return replace(one, reason=f"{place}: members will apply auto.offset.reset")


def _refused(group: str, image: GroupImage, transfers: Sequence[Transfer]) -> RefusedError:
    owned = [one for one in transfers if one.partition in image.health.owned]
    different = [one for one in owned if one.action is not TransferAction.SAME] or owned
    offsets = [
        f"{one.partition}: ZooKeeper {'-' if one.zookeeper is None else one.zookeeper},"
        f" Kafka {'-' if one.kafka is None else one.kafka}"
        for one in different
    ]
    members = first_few(image.health.live, 3)
    return RefusedError(
        f"group {group} has live members ({members}) that do not commit to both stores; nothing"
        " was written",
        where=first_few(offsets, 3, separator="; "),
        remedy="stop the members; or restart them one by one with offsets.storage=kafka and"
        " dual.commit.enabled=true, and try again",
    )


def _plan(
    connection: ZooKeeperClient,
    group: str,
    direction: Direction,
    transfers: Sequence[Transfer],
    stored: Mapping[TopicPartition, OffsetAndMetadata],
) -> Plan:
    kind = f"migrate {direction.value}"
    moves = [one for one in transfers if one.action in _MOVES]
    sources = _sources(group, direction, moves)
    if direction is Direction.TO_KAFKA:
        changes = [
            KafkaChange(
                group, one.partition, stored.get(one.partition), OffsetAndMetadata(one.zookeeper)
            )
            for one in moves
            if one.zookeeper is not None
        ]
        chroot = connection.config.zookeeper_chroot
        return Plan.of(kind, chroot, (), kafka=changes, sources=sources)
    targets = {one.partition: one.kafka for one in moves}
    plan = plan_offsets(connection, kind, {group: targets} if targets else {})
    seen = {paths.offset(group, one.partition): one.zookeeper for one in moves}
    for change in plan.changes:
        found = change.before and change.before.data
        value = int(found) if found and found.isdigit() else None
        if change.path in seen and value != seen[change.path]:
            raise RefusedError(
                "an offset changed while the plan was made; nothing was written",
                where=change.path,
                remedy="try again",
            )
    return replace(plan, sources=sources)


def _sources(group: str, direction: Direction, moves: Iterable[Transfer]) -> tuple[Source, ...]:
    """Return the offsets that a plan moves, in the store from which it moves them."""
    from_kafka = direction is Direction.TO_ZOOKEEPER
    store = Storage.KAFKA if from_kafka else Storage.ZOOKEEPER
    offsets = ((one.partition, one.kafka if from_kafka else one.zookeeper) for one in moves)
    return tuple(Source(store, group, tp, at) for tp, at in offsets if at is not None)
