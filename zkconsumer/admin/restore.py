"""Plans that restore the offsets of groups from the servers' own logs: in ZooKeeper, in Kafka, or
in both stores.

    past = read_past(find_servers([data_dir]), Point(Choice.TIME, at_ms))
    with ZooKeeperClient(config) as connection:
        found = plan_restore(connection, past, limit_s=6.0)
        apply(connection, found.plan, backup_dir=Path("."))

`history.offsets` and `history.kafka_offsets` find the offsets in the logs; this module compares
them with the present ones, and with the brokers' logs. Each store gets back the offsets that it
had, so a group continues in the stores that it used. The connection may be to another ensemble than
the one that wrote the logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Final

from zkconsumer.admin.broker_offsets import BrokerOffsets
from zkconsumer.admin.group_changes import plan_offsets
from zkconsumer.admin.groups import (
    GroupImage,
    OffsetNode,
    Selection,
    read_groups,
    registered_brokers,
    selected,
)
from zkconsumer.admin.lag import Source
from zkconsumer.admin.offset_plans import at_most, clamped_to_log
from zkconsumer.admin.plan import KafkaChange, Plan
from zkconsumer.errors import ConfigError, MalformedZnodeError, RefusedError, first_few
from zkconsumer.history.offsets import (
    KafkaCommit,
    Past,
    PastKafkaOffsets,
    PastOffsets,
    Written,
)
from zkconsumer.kafka.logs import LogRange, log_ends
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_znodes import OFFSETS
from zkconsumer.protocol.model import (
    OFFSETS_TOPIC,
    OffsetAndMetadata,
    TopicPartition,
    session_text,
)
from zkconsumer.protocol.payloads import stored_offset
from zkconsumer.protocol.requests import Right
from zkconsumer.times import time_text
from zkconsumer.zk.client import ZooKeeperClient

_UNKNOWN: Final = "unknown: "
_NONE_THEN: Final = "no offset was committed then; the present one is kept"
_NO_TOPIC: Final = "the topic does not exist"
_OTHER_TOPIC: Final = "the topic was deleted and created again since, so its messages are others"


class RestoreAction(Enum):
    """What the plan does with one partition."""

    CREATE = "create"  # the znode does not exist now
    SET = "set"
    DELETE = "delete"  # the edit that is undone created the offset
    SAME = "same"  # the present offset is that of the moment
    LEFT = "left"  # the partition is not restored; the reason says why


@dataclass(frozen=True, slots=True)
class Restored:
    """One partition in one store: its offset then and now, and what the plan does with it.

    Attributes:
        store: ZOOKEEPER or KAFKA.
        then: the offset in effect then; None if there was none, or it is unknown.
        now: the present offset; None if there is none. A string says why it is unreadable.
        new: the offset that the plan stores; None if it stores none.
        again, skipped: the number of messages that the move lets members read again, or skip; None
            if there is no present offset.
        written: the write that stored `then`.
        reason: why the partition is not restored, or what is unusual about the offset.
        before: the present offset in Kafka with its metadata.
    """

    group: str
    partition: TopicPartition
    then: int | None
    now: int | str | None
    action: RestoreAction
    new: int | None = None
    written: Written | KafkaCommit | None = None
    reason: str = ""
    store: Source = Source.ZOOKEEPER
    before: OffsetAndMetadata | None = None

    @property
    def is_unknown(self) -> bool:
        """Whether the files do not show the offset of the moment."""
        return self.reason.startswith(_UNKNOWN)

    @property
    def again(self) -> int | None:
        return None if self._forward is None else max(0, -self._forward)

    @property
    def skipped(self) -> int | None:
        return None if self._forward is None else max(0, self._forward)

    @property
    def _forward(self) -> int | None:
        if self.action is RestoreAction.SAME:
            return 0
        if self.new is None or not isinstance(self.now, int):
            return None
        return self.new - self.now

    @property
    def host(self) -> str:
        """The host that wrote `then`: of its connection, or else from the consumer id; in Kafka, as
        the broker saw it; "" if it is unknown."""
        if isinstance(self.written, Written):
            return self.written.client.host or paths.host_of(self.group, self.written.consumer)
        return "" if self.written is None else self.written.host


@dataclass(frozen=True, slots=True)
class Restoration:
    """A planned restoration: `plan` has the changes, and `partitions` describes each partition."""

    partitions: tuple[Restored, ...]
    plan: Plan


def plan_restore(
    connection: ZooKeeperClient,
    past: PastOffsets | None,
    *,
    limit_s: float,
    kafka: PastKafkaOffsets | None = None,
    topics: Selection | None = None,
) -> Restoration:
    """Plan to restore offsets as they were, each in the store that had it. Writes nothing.

    An offset outside of its log is moved to the nearest end of the log, with a reason. A partition
    without an offset at that moment keeps its present one.

    Args:
        past: the offsets to restore in ZooKeeper.
        limit_s: seconds per request to the brokers.
        kafka: the offsets to restore in Kafka.
        topics: the partitions to restore; None means all.

    Raises:
        ConfigError: there was no offset of these topics.
        RefusedError: ZooKeeper has written offsets after the end of the logs, and the logs end
            before the moment. Or the brokers do not return the offsets in Kafka.
    """
    view = None if past is None else _Present(connection, past, topics, limit_s)
    rows = [] if view is None else list(view.rows())
    notes = [] if view is None else list(view.notes(rows))
    if kafka is not None:
        is_other = view is not None and view.is_other_ensemble
        beside = {} if past is None else past.offsets
        stored = _PresentInKafka(
            connection, kafka, topics, limit_s, beside=beside, is_other_cluster=is_other
        )
        in_kafka = list(stored.rows())
        notes += stored.notes(in_kafka)
        rows += in_kafka
    if not rows:
        groups = {*(past.offsets if past else ()), *(kafka.offsets if kafka else ())}
        raise ConfigError(
            "these groups had no offset of these topics then",
            where=first_few(sorted(groups), 5),
            remedy="`zkconsumer history show commits` lists the commits in the logs",
        )
    rows.sort(key=lambda one: (one.group, one.partition, one.store.value))
    if unknown := sum(one.is_unknown for one in rows):
        notes.append(f"the offsets of {unknown} partitions are unknown, and are not restored")
    rights = {} if past is None else past.rights
    return Restoration(tuple(rows), _plan(connection, rows, notes, rights))


def _plan(
    connection: ZooKeeperClient,
    rows: Iterable[Restored],
    notes: Iterable[str],
    rights: Mapping[str, tuple[Right, ...]],
) -> Plan:
    targets: dict[str, dict[TopicPartition, int | None]] = {}
    changes = []
    for one in rows:
        if one.action in (RestoreAction.SAME, RestoreAction.LEFT):
            continue
        if one.store is Source.ZOOKEEPER:
            targets.setdefault(one.group, {})[one.partition] = one.new
        else:
            changes.append(_kafka_change(one))
    kind = "offsets restore"
    return plan_offsets(connection, kind, targets, kafka=changes, notes=notes, rights=rights)


def _kafka_change(row: Restored) -> KafkaChange:
    """Return the change of an offset in Kafka. The metadata belong to the offset of the moment."""
    assert row.new is not None
    metadata = row.written.metadata if isinstance(row.written, KafkaCommit) else ""
    after = OffsetAndMetadata(row.new, metadata if row.new == row.then else "")
    return KafkaChange(row.group, row.partition, row.before, after)


def _to(row: Restored, then: int, log: LogRange | str) -> Restored:
    """Return a row with what the plan does to restore an offset."""
    new, why = clamped_to_log(then, log)
    if isinstance(log, LogRange) and then < log.start:
        why = f"{log.start - then} messages from {then} on are gone; set to {log.start}"
    action = (
        RestoreAction.CREATE
        if row.now is None
        else RestoreAction.SAME
        if new == row.now
        else RestoreAction.SET
    )
    return replace(row, action=action, new=new, reason=why)


# ---- parts ---------------------------------------------------------------------------------------


class _Present:
    """The present state of the groups, beside the state then."""

    def __init__(
        self,
        connection: ZooKeeperClient,
        past: PastOffsets,
        topics: Selection | None,
        limit_s: float,
    ) -> None:
        self._connection, self._past = connection, past
        self._topics, self._limit_s = topics, limit_s
        self._images = read_groups(connection, past.offsets, directories=(OFFSETS,))
        self._then: dict[tuple[str, TopicPartition], Past] = {
            (group, tp): of[tp] for group, of in past.offsets.items() for tp in selected(of, topics)
        }
        names = {tp.topic for _, tp in self._then}
        stats = connection.stats(map(paths.topic, names))
        self._topic_czxids = {paths.locate(path).name: stat.czxid for path, stat in stats.items()}
        partitions = {tp for _, tp in self._then if tp.topic in self._topic_czxids}
        self._logs: Mapping[TopicPartition, LogRange | str] = {}
        if partitions:
            self._logs = log_ends(registered_brokers(connection), partitions, limit_s=limit_s)

    @cached_property
    def is_other_ensemble(self) -> bool:
        """Whether the logs are not those of the ensemble that is connected.

        Brokers create the znodes above the topics once. If the logs do not contain their creation,
        the ensemble counts as the same.
        """
        wanted = [
            path
            for path in (paths.BROKERS, paths.BROKER_IDS, paths.TOPICS)
            if path in self._past.created
        ]
        stats = self._connection.stats(wanted)
        return any(stat.czxid != self._past.created[path] for path, stat in stats.items())

    def rows(self) -> Iterator[Restored]:
        """Yield each partition. Raises RefusedError."""
        if self._past.ends and not self.is_other_ensemble:
            self._refuse_later_writes()
        for (group, tp), past in self._then.items():
            yield self._row(group, tp, past)
        if self._past.is_edit:
            return
        for group, image in self._images.items():
            for tp in selected(image.offsets, self._topics):
                if (group, tp) not in self._then:
                    now = _value(image.offsets[tp])
                    yield Restored(group, tp, None, now, RestoreAction.LEFT, reason=_NONE_THEN)

    def _refuse_later_writes(self) -> None:
        """Refuse a moment after the end of the logs if offsets have been written since."""
        end = time_text(self._past.until_ms)
        for group, image in self._images.items():
            for tp in selected(image.offsets, self._topics):
                stat = image.nodes[paths.offset(group, tp)].stat
                if stat.mzxid > self._past.zxid:
                    raise RefusedError(
                        f"the logs end at {end}, and ZooKeeper has written offsets since, so the"
                        " offsets of a later moment are unknown",
                        where=f"group {group}, {tp}: {time_text(stat.mtime_ms)}",
                        remedy=f"choose a moment up to {end}, or add later logs (--data-dir)",
                    )

    def _row(self, group: str, tp: TopicPartition, past: Past) -> Restored:
        image = self._images.get(group) or GroupImage(group, {})
        node = image.offsets.get(tp)
        now = None if node is None else _value(node)
        row = Restored(group, tp, None, now, RestoreAction.LEFT)
        if past is None:  # the edit created it
            action = RestoreAction.SAME if node is None else RestoreAction.DELETE
            return replace(row, action=action, reason="the edit created this offset")
        if isinstance(past, str):
            return replace(row, reason=f"{_UNKNOWN}{past}")
        row = replace(row, written=past)
        try:
            then = stored_offset(past.data, where="")
        except MalformedZnodeError as error:
            return replace(row, reason=f"the payload then was malformed: {error.what}")
        if then is None:
            return replace(row, reason=_NONE_THEN)
        row = replace(row, then=then)
        if self._is_created_again(tp, past):
            return replace(row, reason=_OTHER_TOPIC)
        return _to(row, then, self._logs.get(tp, _NO_TOPIC))

    def _is_created_again(self, tp: TopicPartition, past: Written) -> bool:
        """Return whether the topic is another one than at the moment."""
        moment = past.zxid if self._past.is_edit else self._past.zxid
        czxid = self._topic_czxids.get(tp.topic)
        return czxid is not None and czxid > moment and not self.is_other_ensemble

    def notes(self, rows: Collection[Restored]) -> Iterator[str]:
        """Yield what the operator should know about the whole plan."""
        past = self._past
        at = "an unknown time" if past.time_ms is None else time_text(past.time_ms)
        if past.is_edit:
            who = f"plan {past.plan}" if past.plan else f"session {session_text(past.session or 0)}"
            who += f" from {past.editor}" if str(past.editor) else ""
            yield f"undoes the edit of {who}, last at {at} (transaction 0x{past.zxid:x})"
            since = sum(map(self._is_written_since, rows))
            if since:
                yield f"{since} of the offsets have been written since the edit"
        else:
            yield f"restores the offsets after transaction 0x{past.zxid:x} of {at}"
        if past.ends:
            yield f"the logs end at {time_text(past.until_ms)}, before the moment"
        if self.is_other_ensemble:
            yield "the logs are those of another ensemble than the one that is changed"
        yield from self._note_on_root()
        missing = {one.partition.topic for one in rows} - self._topic_czxids.keys()
        yield from at_most([f"topic {name} does not exist" for name in sorted(missing)], _NOTES)
        yield from at_most([f"{p.kind}: {p.where}: {p.what}" for p in past.problems], _NOTES)

    def _note_on_root(self) -> Iterator[str]:
        """Yield a note if `/consumers` is missing and had an access control list of its own."""
        rights = self._past.rights.get(paths.CONSUMERS, ())
        is_open = all(one.identity == "world:anyone" and one.permissions == 31 for one in rights)
        if not is_open and not self._connection.stats([paths.CONSUMERS]):
            had = ", ".join(f"{one.identity} {one.permissions}" for one in rights)
            yield f"{paths.CONSUMERS} is created with the rights of zookeeper.acl; it had {had}"

    def _is_written_since(self, row: Restored) -> bool:
        image = self._images.get(row.group) or GroupImage(row.group, {})
        node = image.nodes.get(paths.offset(row.group, row.partition))
        return node is not None and node.stat.mzxid > self._past.zxid


_NOTES = 20  # the maximum number of notes of one kind


def _value(node: OffsetNode) -> int | str | None:
    """Return the present offset; None if there is none, a string if it is unreadable."""
    if node.value is None:
        return node.fault or None
    return None if node.value < 0 else node.value


class _PresentInKafka:
    """The present offsets of the groups in Kafka, beside those of the moment.

    Args:
        beside: the partitions of the groups that are restored in ZooKeeper. Their offsets in Kafka
            are shown even if Kafka had none then.
        is_other_cluster: whether the logs are those of other servers, so that the times at which
            topics were created say nothing.
    """

    def __init__(
        self,
        connection: ZooKeeperClient,
        past: PastKafkaOffsets,
        topics: Selection | None,
        limit_s: float,
        *,
        beside: Mapping[str, Collection[TopicPartition]],
        is_other_cluster: bool,
    ) -> None:
        self._past, self._is_other_cluster = past, is_other_cluster
        self._then = {
            (group, tp): of[tp] for group, of in past.offsets.items() for tp in selected(of, topics)
        }
        asked: dict[str, set[TopicPartition]] = {}
        for group, of in (*past.offsets.items(), *beside.items()):
            asked.setdefault(group, set()).update(selected(of, topics))
        names = {tp.topic for some in asked.values() for tp in some}
        known = connection.stats(map(paths.topic, names))
        self._topics = {name for name in names if paths.topic(name) in known}
        # Brokers create this znode with the topic, and never write it again.
        made = {f"{paths.topic(name)}/partitions": name for name in self._topics}
        stats = connection.stats(made)
        self._made_ms = {made[path]: stat.mtime_ms for path, stat in stats.items()}
        store = BrokerOffsets.of(connection)
        self._now = {
            (group, tp): one
            for group, tps in asked.items()
            if tps
            for tp, one in store.fetch(group, sorted(tps)).items()
        }
        partitions = {tp for _, tp in self._then if tp.topic in self._topics}
        self._logs: Mapping[TopicPartition, LogRange | str] = {}
        if partitions:
            self._logs = log_ends(registered_brokers(connection), partitions, limit_s=limit_s)

    def rows(self) -> Iterator[Restored]:
        for (group, tp), past in self._then.items():
            yield self._row(group, tp, past)
        for (group, tp), now in self._now.items():
            if (group, tp) not in self._then:
                row = Restored(group, tp, None, now.offset, RestoreAction.LEFT, store=Source.KAFKA)
                yield replace(row, reason=_NONE_THEN)

    def _row(self, group: str, tp: TopicPartition, past: KafkaCommit | str) -> Restored:
        before = self._now.get((group, tp))
        now = None if before is None else before.offset
        row = Restored(group, tp, None, now, RestoreAction.LEFT, store=Source.KAFKA, before=before)
        if isinstance(past, str):
            return replace(row, reason=f"{_UNKNOWN}{past}")
        is_ended = tp in self._past.ended.get(group, ())
        if is_ended and now != past.offset:
            end = time_text(self._past.until_ms)
            why = f"the logs end at {end}, before the moment, and the offset has changed since"
            return replace(row, reason=f"{_UNKNOWN}{why}")
        row = replace(row, then=past.offset, written=past)
        if tp.topic not in self._topics:
            return replace(row, reason=f"{_NO_TOPIC}, so the brokers store no offset of it")
        if self._made_ms.get(tp.topic, 0) > self._past.at_ms and not self._is_other_cluster:
            return replace(row, reason=_OTHER_TOPIC)
        return _to(row, past.offset, self._logs.get(tp, _NO_TOPIC))

    def notes(self, rows: Collection[Restored]) -> Iterator[str]:
        """Yield what the operator should know about the part of the plan for Kafka."""
        if any(one.then is not None for one in rows):
            yield f"restores the offsets in Kafka of {time_text(self._past.at_ms)}"
        if self._past.ended:
            yield f"some logs of {OFFSETS_TOPIC} end before the moment"
        yield from at_most([f"{p.kind}: {p.where}: {p.what}" for p in self._past.problems], _NOTES)
