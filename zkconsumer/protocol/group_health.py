"""Who uses a group: the one answer that all tools give.

A group's znodes do not say directly who uses the group:

- Copies of ZooKeeper (zkcopy, burry) turn ephemeral znodes into persistent ones. Such a
  registration or owner znode looks like a member's, but no process holds it: a *leftover*.
- Other clients (kafka-node, the Go library consumergroup) write their bare consumer id into an
  owner znode, without a thread number.
- Some clients commit offsets and never register: direct Spark jobs, Flink, kafka-python up to
  0.9.5, and the mirrored offsets of a direct query of zkconsumer. Others keep offsets in *foreign*
  znodes, which the consumers' layout does not have, as Storm's spouts do. Only two readings show
  such an *unregistered writer*: between them, the offset of a partition that no registered member
  owns was written, or a foreign znode. One reading shows only the time of the last write, and a
  member that has just stopped has also just committed.

`group_health` answers for one reading of a group, or for two; `unclaimed` and `blocked` say what
keeps a group from settling. Callers decide how long they wait
between the readings (`PATIENCE_S` unless they have a reason), and what to do about the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from enum import Enum
from typing import Final, NamedTuple

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.protocol.paths import consumer_of, thread_id
from zkconsumer.protocol.payloads import OwnerZnode

PATIENCE_S: Final = 5.0
"""Seconds between two readings that show an unregistered writer. Spark jobs, Storm and Flink commit
every few seconds. A client that commits less often is noticed only by chance; tools that read
repeatedly notice it at its next commit."""

RECENT_S: Final = 3600.0
"""Seconds after which a write is too old to suggest that its writer still runs. Without a write in
this time, tools do not wait for a second reading. The limit is far above any usual interval of
commits, because ZooKeeper's clock and the tool's clock may differ."""


class LastWrite(NamedTuple):
    """The last write to a znode: transaction, version, and time by the server's clock."""

    mzxid: int
    version: int
    mtime_ms: int


@dataclass(frozen=True, slots=True)
class GroupReading:
    """The znodes of a group that show who uses it.

    Attributes:
        members: consumer id -> session of its registration; 0 if the registration is persistent.
        owners: partition -> owner znode.
        writes: partition -> the last write to its offset znode.
        foreign: path -> the last write to a znode that the consumers' layout does not have.
    """

    members: Mapping[ConsumerId, int]
    owners: Mapping[TopicPartition, OwnerZnode]
    writes: Mapping[TopicPartition, LastWrite]
    foreign: Mapping[str, LastWrite] = field(default_factory=dict)


class GroupState(Enum):
    """The state of a group in one word; the first state that applies."""

    LIVE = "live"  # a member is registered with a session
    UNREGISTERED = "unregistered"  # no member is registered, but another client uses the group
    LEFTOVER = "leftover"  # only registrations or owner znodes without a session
    IDLE = "idle"  # nobody uses the group


@dataclass(frozen=True, slots=True)
class GroupHealth:
    """Who uses a group.

    Attributes:
        live: member -> session of its registration.
        leftovers: registered consumer ids without a session.
        owned: partition -> the live member that owns it.
        leftover_owners: partitions whose owner znode has no session.
        other_clients: live members whose owner znodes hold the bare consumer id.
        unregistered_owners: partition -> session of an owner znode whose consumer is not
            registered.
        writers: partition -> number of writes between the two readings, by a client that is not
            registered; empty after one reading.
        foreign_writers: path of a foreign znode -> number of writes between the two readings.
        last_write_ms: time of the last write to a foreign znode, or to an offset that no live
            member owns, in milliseconds since 1970 by the server's clock; None without such a
            znode.
    """

    live: Mapping[ConsumerId, int]
    leftovers: tuple[ConsumerId, ...]
    owned: Mapping[TopicPartition, ConsumerId]
    leftover_owners: tuple[TopicPartition, ...]
    other_clients: frozenset[ConsumerId]
    unregistered_owners: Mapping[TopicPartition, int]
    writers: Mapping[TopicPartition, int]
    foreign_writers: Mapping[str, int]
    last_write_ms: int | None

    @property
    def is_written(self) -> bool:
        """Whether a client that is not registered wrote between the two readings."""
        return bool(self.writers or self.foreign_writers)

    @property
    def state(self) -> GroupState:
        """The state of the group in one word."""
        if self.live:
            return GroupState.LIVE
        if self.is_written or self.unregistered_owners:
            return GroupState.UNREGISTERED
        if self.leftovers or self.leftover_owners:
            return GroupState.LEFTOVER
        return GroupState.IDLE

    def write_age_s(self, now_s: float) -> float | None:
        """Return the seconds since `last_write_ms`.

        None if there is no such write, or if it is older than `RECENT_S`. A time in the future,
        from a server whose clock is ahead, counts as now. `now_s` is in seconds since 1970.
        """
        if self.last_write_ms is None:
            return None
        age_s = max(0.0, now_s - self.last_write_ms / 1000)
        return age_s if age_s <= RECENT_S else None


def group_health(now: GroupReading, earlier: GroupReading | None = None) -> GroupHealth:
    """Return who uses a group, from one reading or from two.

    A partition counts as written by an unregistered client only if no registered member owned it
    at either reading, since a member also commits before it releases a partition.
    """
    owned = owned_by_members(now)
    before = {} if earlier is None else owned_by_members(earlier)
    free = {tp: write for tp, write in now.writes.items() if tp not in owned}
    return GroupHealth(
        live={name: session for name, session in now.members.items() if session},
        leftovers=tuple(name for name, session in now.members.items() if not session),
        owned=owned,
        leftover_owners=tuple(tp for tp, node in now.owners.items() if not node.session),
        other_clients=frozenset(
            owned[tp] for tp, node in now.owners.items() if tp in owned and node.thread == owned[tp]
        ),
        unregistered_owners={
            tp: node.session
            for tp, node in now.owners.items()
            if node.session and owner_of(node.thread, now.members) not in now.members
        },
        writers={
            tp: count
            for tp, write in free.items()
            if earlier is not None
            and tp not in before
            and (count := _writes_between(earlier.writes.get(tp), write))
        },
        foreign_writers={
            path: count
            for path, write in now.foreign.items()
            if earlier is not None and (count := _writes_between(earlier.foreign.get(path), write))
        },
        last_write_ms=max(
            (write.mtime_ms for write in (*free.values(), *now.foreign.values())), default=None
        ),
    )


def owned_by_members(reading: GroupReading) -> dict[TopicPartition, ConsumerId]:
    """Return partition -> the live member that owns it, by an owner znode with a session."""
    live = {name for name, session in reading.members.items() if session}
    found = {}
    for tp, node in reading.owners.items():
        consumer = owner_of(node.thread, reading.members)
        if node.session and consumer in live:
            found[tp] = consumer
    return found


def unclaimed(
    assigned: Mapping[TopicPartition, ThreadId], owned: Collection[TopicPartition]
) -> dict[TopicPartition, ThreadId]:
    """Return the partitions without an owner, each with the thread to which it is assigned.

    The thread's member has just joined or waits for another owner to release partitions, or it is
    idle, since its rebalance failed. Only the time for which this lasts distinguishes these cases,
    and each caller knows how long it waits.
    """
    return {tp: thread for tp, thread in assigned.items() if tp not in owned}


def blocked(
    assigned: Mapping[TopicPartition, ThreadId], owners: Mapping[TopicPartition, ConsumerId]
) -> dict[TopicPartition, ConsumerId]:
    """Return the partitions that another consumer owns, each with the one that should own it.

    As with `unclaimed`, only the time for which this lasts distinguishes a blocked partition from
    one that its owner is about to release.
    """
    due = {tp: consumer_of(assigned[tp]) for tp in owners if tp in assigned}
    return {tp: consumer for tp, consumer in due.items() if owners[tp] != consumer}


def owner_of(thread: str, registered: Collection[ConsumerId]) -> ConsumerId:
    """Return the consumer id that the text of an owner znode names.

    A JVM member writes a thread id, `<consumer id>-<n>`. kafka-node and the Go library
    consumergroup write the bare consumer id, which may contain hyphens. The text is a bare consumer
    id exactly if that id is registered.
    """
    return thread if thread in registered else consumer_of(thread)


def as_threads(
    owners: Mapping[TopicPartition, ThreadId], registered: Collection[ConsumerId]
) -> dict[TopicPartition, ThreadId]:
    """Return the owners with the first thread of a member in place of its bare consumer id.

    A client that writes its bare consumer id has one thread, which the assignment rules number 0.
    """
    return {
        tp: thread_id(thread, 0) if thread in registered else thread
        for tp, thread in owners.items()
    }


def _writes_between(before: LastWrite | None, after: LastWrite) -> int:
    """Return the number of writes to a znode between two readings, at least one if any.

    A znode that was created between the readings, or deleted and created, counts its writes since
    then.
    """
    if before is not None and before.mzxid == after.mzxid:
        return 0
    if before is None or after.version <= before.version:
        return after.version + 1
    return after.version - before.version
