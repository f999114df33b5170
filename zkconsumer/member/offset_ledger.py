"""The stored offsets of this member's partitions, and what a commit may overwrite.

A commit is a compare-and-set on the versions of the offset znodes. So the member notices every
write by another client, such as a former owner or an operator's tool. If a version differs from the
expected version, the member reads the offset back and resolves the conflict
(`Ledger.after_commit`):

- This member wrote the value in a commit whose reply was lost: the member adopts the value.
- An operator's tool wrote the value and an edit mark: the member adopts the value and continues
  from there.
- The value is lower than this member's: it is a late commit of a former owner, or an edit without a
  mark; these cannot be distinguished. This member overwrites the value, as the JVM would.
- The value is higher than this member's: the member leaves it until its own position is higher.

So a commit only raises the stored offset, except after `auto.offset.reset`, after an operator's
edit, and for offsets that the user names. This member's own commits follow the same rule: an
explicit commit covers the message that the user is processing, and the next automatic commit,
which covers only finished messages, must not lower the stored offset.

Kafka's storage has no versions, so the last commit wins. For Kafka's storage, the ledger only
ensures that this member's own commits never lower the offset. Each commit sends all offsets,
including unchanged ones, so that brokers do not expire them (KAFKA-1510). A commit omits a
partition without a position. The JVM sends the offset -1 for such a partition, which every reader
treats as no offset.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import field, replace

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import (
    OffsetAndMetadata,
    Positions,
    Purpose,
    Storage,
    StoredOffset,
    TopicPartition,
)


@dataclass(frozen=True, slots=True)
class Tracked:
    """The stored offset of one owned partition, as far as this member knows it.

    Attributes:
        epoch: the fencing token under which the member read the offset.
        value: the offset in ZooKeeper, which only a higher position replaces; None: any position
            replaces it.
        version: the offset znode's version; None: the znode does not exist.
        doubt: an offset that this member may have written, in a commit that got no reply.
        error: why the znode cannot be read; no commit writes to it until it is corrected.
        kafka: the offset in Kafka that this member last stored or read, which only a higher
            position replaces; None: any position replaces it.
    """

    epoch: int
    value: int | None
    version: int | None
    doubt: int | None = None
    error: str = ""
    kafka: OffsetAndMetadata | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """A requested commit: its positions, and who waits for its result.

    Attributes:
        metadata: partition -> the text that Kafka stores with the offset.
        requests: the numbers of the explicit commits that it answers: several after a merge, none
            for a commit of the member itself.
        retries: how many more times it may be sent to Kafka; None: as often as its purpose and
            `offsets.commit.max.retries` allow.
    """

    purpose: Purpose
    positions: Positions
    metadata: Mapping[TopicPartition, str] = field(default_factory=dict)
    requests: tuple[int, ...] = ()
    retries: int | None = None

    def without(self, partitions: Container[TopicPartition]) -> Commit:
        """Return this commit without the positions of these partitions."""
        left = {tp: at for tp, at in self.positions.items() if tp not in partitions}
        return replace(self, positions=left)


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The writes and checks that one commit sends.

    Attributes:
        writes: partition -> the offset to write to ZooKeeper, and the version that it replaces;
            None: the znode does not exist yet.
        checks: partition -> the version that an unchanged offset's znode must have.
        kafka: partition -> the offset to store in Kafka.
    """

    writes: Mapping[TopicPartition, tuple[int, int | None]]
    checks: Mapping[TopicPartition, int]
    kafka: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)

    def touches(self, partitions: Container[TopicPartition]) -> bool:
        """Return whether the commit reads or writes one of these partitions."""
        return any(tp in partitions for tp in (*self.writes, *self.checks, *self.kafka))


NOTHING = CommitPlan({}, {})
"""The plan of no commit."""


@dataclass(frozen=True, slots=True)
class ForeignWrites:
    """What other clients wrote, as a member finds it when it reads back a refused commit.

    Attributes:
        overwritten: partition -> this member's offset, and the lower offset that was found.
        left: partition -> this member's offset, and the higher offset that was found.
        edited: for edits by an operator's tool, partition -> the offset to continue from.
        malformed: partition -> why the znode cannot be read.
    """

    overwritten: Mapping[TopicPartition, tuple[int, int | None]] = field(default_factory=dict)
    left: Mapping[TopicPartition, tuple[int, int | None]] = field(default_factory=dict)
    edited: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    malformed: Mapping[TopicPartition, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.overwritten or self.left or self.edited or self.malformed)


def track(stored: StoredOffset, epoch: int, kafka: OffsetAndMetadata | None = None) -> Tracked:
    return Tracked(epoch, stored.value, stored.version, error=stored.error, kafka=kafka)


def starting_offset(
    storage: Storage, stored: StoredOffset, kafka: OffsetAndMetadata | None, epoch: int
) -> tuple[Tracked, int | None]:
    """Return the entry of a partition that was just claimed, and the offset to start at.

    The start is None if neither storage has an offset. If both have an offset, the start is the
    higher offset, because a storage may have missed commits (JVM: `fetchOffsets`). If commits go to
    Kafka alone and Kafka has no offset, the group has just moved to Kafka's storage, and this
    member starts at ZooKeeper's offset. The JVM applies `auto.offset.reset` in that case, unless
    dual commit is on.
    """
    if storage is Storage.KAFKA and kafka is not None:
        return Tracked(epoch, None, None, kafka=kafka), kafka.offset
    found = [offset for offset in (stored.value, kafka and kafka.offset) if offset is not None]
    return track(stored, epoch, kafka), max(found, default=None)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The stored offsets of this member's partitions, as far as this member knows them."""

    entries: Mapping[TopicPartition, Tracked] = field(default_factory=dict)

    def without(self, partitions: Container[TopicPartition]) -> Ledger:
        """Return the ledger without these partitions; the same object if it has none of them."""
        if not any(tp in partitions for tp in self.entries):
            return self
        return Ledger({tp: one for tp, one in self.entries.items() if tp not in partitions})

    def plan(self, commit: Commit, storage: Storage = Storage.ZOOKEEPER) -> CommitPlan:
        """Return what a commit sends: higher positions, and checks of unchanged offsets' versions.

        Positions of another epoch are ignored.
        """
        writes: dict[TopicPartition, tuple[int, int | None]] = {}
        checks: dict[TopicPartition, int] = {}
        kafka: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp, position in commit.positions.items():
            known = self.entries.get(tp)
            if known is None or known.epoch != position.epoch:
                continue
            if storage is not Storage.ZOOKEEPER and not known.error:
                kafka[tp] = _for_kafka(known.kafka, position.offset, commit.metadata.get(tp))
            if storage is Storage.KAFKA:
                continue
            passed = known.value is None or position.offset > known.value
            if passed and not known.error:
                writes[tp] = (position.offset, known.version)
            elif known.version is not None:
                checks[tp] = known.version
        return CommitPlan(writes, checks, kafka)

    def after_lost_reply(self, plan: CommitPlan) -> Ledger:
        """Record the offsets that a commit without a reply may have written."""
        entries = dict(self.entries)
        for tp, (offset, _) in plan.writes.items():
            if tp in entries:
                entries[tp] = replace(entries[tp], doubt=offset)
        return Ledger(entries)

    def reset(self, partition: TopicPartition) -> Ledger:
        """Let the next commit lower this offset: `auto.offset.reset` moved the partition."""
        known = self.entries.get(partition)
        if known is None:
            return self
        return Ledger({**self.entries, partition: replace(known, value=None, kafka=None)})

    def allowing(self, positions: Positions) -> Ledger:
        """Let the next commit lower the offsets that the user names explicitly."""
        ledger = self
        for tp, (_, offset) in positions.items():
            known = self.entries.get(tp)
            kafka = known.kafka.offset if known is not None and known.kafka is not None else 0
            if known is not None and offset < max(known.value or 0, kafka):
                ledger = ledger.reset(tp)
        return ledger

    def after_commit(
        self,
        plan: CommitPlan,
        *,
        versions: Mapping[TopicPartition, int],
        foreign: Mapping[TopicPartition, StoredOffset],
        marked: frozenset[TopicPartition],
        kafka: frozenset[TopicPartition] = frozenset(),
    ) -> tuple[Ledger, ForeignWrites]:
        """Return the ledger after a commit, and what other clients wrote meanwhile.

        Args:
            versions: the versions of the offset znodes that the commit wrote.
            foreign: the offsets that other clients wrote, so that the commit was refused.
            marked: the partitions of `foreign` whose offset an operator's tool has written and
                marked.
            kafka: the partitions whose offsets Kafka has stored.
        """
        entries = dict(self.entries)
        overwritten: dict[TopicPartition, tuple[int, int | None]] = {}
        left: dict[TopicPartition, tuple[int, int | None]] = {}
        edited: dict[TopicPartition, int | None] = {}
        malformed: dict[TopicPartition, str] = {}
        for tp, version in versions.items():
            if tp in entries and tp in plan.writes:
                value = plan.writes[tp][0]
                entries[tp] = Tracked(entries[tp].epoch, value, version, kafka=entries[tp].kafka)
        for tp in kafka.intersection(entries, plan.kafka):
            entries[tp] = replace(entries[tp], kafka=plan.kafka[tp])
        for tp, found in foreign.items():
            known = entries.get(tp)
            if known is None:
                continue
            entries[tp] = track(found, known.epoch, None if tp in marked else known.kafka)
            own = plan.writes[tp][0] if tp in plan.writes else known.value or 0
            if found.error:
                malformed[tp] = found.error
            elif tp in marked:
                edited[tp] = found.value
            elif _is_own(known, found) or found.value == own:
                continue
            elif found.value is not None and found.value > own:
                left[tp] = (own, found.value)
            else:
                overwritten[tp] = (own, found.value)
        return Ledger(entries), ForeignWrites(overwritten, left, edited, malformed)


def _for_kafka(
    known: OffsetAndMetadata | None, offset: int, metadata: str | None
) -> OffsetAndMetadata:
    """Return the offset that Kafka is to store; it is never lower than the previous offset.

    An unchanged offset keeps its metadata. The JVM erases the metadata.
    """
    same = known is not None and offset == known.offset and metadata is None
    if known is not None and (same or offset < known.offset):
        return known
    return OffsetAndMetadata(offset, metadata or "")


def _is_own(known: Tracked, found: StoredOffset) -> bool:
    """Return whether this member wrote `found` in a commit without a reply.

    If so, `found` has the value that the member sent, and the version after the known version.
    """
    expected = 0 if known.version is None else known.version + 1
    return known.doubt is not None and found.value == known.doubt and found.version == expected
