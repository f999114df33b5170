"""What is stored of our partitions' offsets, and what a commit may write over.

A commit is a compare-and-set on the offset znodes' own versions: nobody can move an offset unseen,
neither a zombie of ours nor a tool. A version that is not the expected one is resolved by reading
back, in `absorb`:

- the value is the one we wrote ourselves in a commit whose reply was lost: adopted;
- an operator's tool wrote and marked it: honoured, the partition is read on from there;
- it is lower than ours: a zombie's late commit or an unmarked hand edit, which look the same; the
  live owner writes over it, as the JVM would;
- it is higher: left standing until our own position has passed it.

So a commit only ever raises what is stored, but for what `auto.offset.reset`, operators and
offsets that the user names do. That holds for our own commits among themselves, too: an explicit
commit covers the message in hand, and the next automatic one, of finished messages, does not.

Kafka's storage has no versions and no compare-and-set: whoever commits last has committed. There
only our own commits among themselves are kept from going back. Everything is sent each time, also
what has not changed, so that brokers do not forget it (KAFKA-1510); and nothing where no position
is known, for which the JVM sends -1: to every reader both mean that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zkconsumer.protocol.model import (
    OffsetAndMetadata,
    Position,
    Positions,
    Storage,
    StoredOffset,
    TopicPartition,
)

_NO_METADATA: Mapping[TopicPartition, str] = {}


@dataclass(frozen=True, slots=True)
class Tracked:
    """One owned partition's offset as we know it.

    `value` stands until our position is higher; None: whatever is written next is right. `doubt` is
    a value of ours whose write got no reply. With an `error` nothing is written until it is mended.
    `kafka` is what Kafka has from us or had when we asked; None as for `value`.
    """

    epoch: int
    value: int | None
    version: int | None
    doubt: int | None = None
    error: str = ""
    kafka: OffsetAndMetadata | None = None


Ledger = Mapping[TopicPartition, Tracked]


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """One commit: `writes` (offset and the version it replaces, None: no node yet) and `checks`.

    Both are for ZooKeeper; `kafka` is what Kafka is to store.
    """

    writes: Mapping[TopicPartition, tuple[int, int | None]]
    checks: Mapping[TopicPartition, int]
    kafka: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What reading back has shown: our offset and theirs; `edited` are to be read on from."""

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
    """What is known of a partition that was just claimed, and the offset to read on from.

    In both stores: the larger one, since one of them may have missed commits (JVM: fetchOffsets).
    Where Kafka alone is written and has none, ZooKeeper's counts: the group has just moved. The JVM
    then goes by `auto.offset.reset`, unless dual commit is on.
    """
    if storage is Storage.KAFKA and kafka is not None:
        return Tracked(epoch, None, None, kafka=kafka), kafka.offset
    found = [offset for offset in (stored.value, kafka and kafka.offset) if offset is not None]
    return track(stored, epoch, kafka), max(found, default=None)


def plan(
    ledger: Ledger,
    positions: Positions,
    storage: Storage = Storage.ZOOKEEPER,
    metadata: Mapping[TopicPartition, str] = _NO_METADATA,
) -> CommitPlan:
    """Write what is passed, check what is not; positions of another epoch count for nothing."""
    writes: dict[TopicPartition, tuple[int, int | None]] = {}
    checks: dict[TopicPartition, int] = {}
    kafka: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, position in positions.items():
        known = ledger.get(tp)
        if known is None or known.epoch != position.epoch:
            continue
        if storage is not Storage.ZOOKEEPER and not known.error:
            kafka[tp] = _for_kafka(known.kafka, position.offset, metadata.get(tp))
        if storage is Storage.KAFKA:
            continue
        passed = known.value is None or position.offset > known.value
        if passed and not known.error:
            writes[tp] = (position.offset, known.version)
        elif known.version is not None:
            checks[tp] = known.version
    return CommitPlan(writes, checks, kafka)


def _for_kafka(
    known: OffsetAndMetadata | None, offset: int, metadata: str | None
) -> OffsetAndMetadata:
    """Never back; and what stays as it is keeps its metadata, which the JVM wipes."""
    same = known is not None and offset == known.offset and metadata is None
    if known is not None and (same or offset < known.offset):
        return known
    return OffsetAndMetadata(offset, metadata or "")


def doubt(ledger: Ledger, plan: CommitPlan) -> Ledger:
    """Remember what a commit may have written whose reply was lost."""
    entries = dict(ledger)
    for tp, (offset, _) in plan.writes.items():
        if tp in entries:
            entries[tp] = replace(entries[tp], doubt=offset)
    return entries


def reset(ledger: Ledger, partition: TopicPartition) -> Ledger:
    """`auto.offset.reset` moved this partition: the next commit may go back."""
    if partition not in ledger:
        return ledger
    return {**ledger, partition: replace(ledger[partition], value=None, kafka=None)}


def allow(ledger: Ledger, positions: Positions) -> Ledger:
    """The user names these offsets: lower ones than were committed before are meant so."""
    for tp, (_, offset) in positions.items():
        known = ledger.get(tp)
        kafka = known.kafka.offset if known is not None and known.kafka is not None else 0
        if known is not None and offset < max(known.value or 0, kafka):
            ledger = reset(ledger, tp)
    return ledger


def apply_commit_result(
    ledger: Ledger,
    plan: CommitPlan,
    *,
    versions: Mapping[TopicPartition, int],
    foreign: Mapping[TopicPartition, StoredOffset],
    marked: frozenset[TopicPartition],
    kafka: frozenset[TopicPartition] = frozenset(),
) -> tuple[Ledger, ReadBack]:
    """Take in how a commit ended: our `versions` where it wrote, `foreign` values where not.

    `kafka` are those that Kafka has stored.
    """
    entries = dict(ledger)
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
    for tp, theirs in foreign.items():
        known = entries.get(tp)
        if known is None:
            continue
        entries[tp] = track(theirs, known.epoch, None if tp in marked else known.kafka)
        ours = plan.writes[tp][0] if tp in plan.writes else known.value or 0
        if theirs.error:
            malformed[tp] = theirs.error
        elif tp in marked:
            edited[tp] = theirs.value
        elif _is_ours(known, theirs) or theirs.value == ours:
            continue
        elif theirs.value is not None and theirs.value > ours:
            left[tp] = (ours, theirs.value)
        else:
            overwritten[tp] = (ours, theirs.value)
    return entries, ReadBack(overwritten, left, edited, malformed)


def _is_ours(known: Tracked, theirs: StoredOffset) -> bool:
    """A write of ours whose reply was lost: our value, one version on."""
    expected = 0 if known.version is None else known.version + 1
    return known.doubt is not None and theirs.value == known.doubt and theirs.version == expected


def without(positions: Positions, partitions: Mapping[TopicPartition, object]) -> Positions:
    """Positions less those of `partitions`."""
    return {tp: Position(*at) for tp, at in positions.items() if tp not in partitions}
