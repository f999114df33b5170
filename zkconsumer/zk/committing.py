"""Stored offsets: reading them, compare-and-set transactions, and reading back what refused.

With `offsets.storage=kafka` Kafka is asked in between. ZooKeeper's part of a commit comes first, be
it only the check of our id znode: what it refuses a member that has lost its session, Kafka, which
cannot tell such a member from a live one, is not asked to store.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace

from zkconsumer.core import paths, records
from zkconsumer.core.events import (
    Committed,
    Denied,
    MemberNodeGone,
    OffsetsLoaded,
    Outcome,
    StoreUnavailable,
)
from zkconsumer.core.model import OffsetAndMetadata, Storage, StoredOffset, TopicPartition
from zkconsumer.core.offsets import CommitPlan
from zkconsumer.zk import requests as rq
from zkconsumer.zk.operations import (
    Member,
    Replies,
    chunks,
    create_parents,
    read_offsets,
    reason,
    transact,
)
from zkconsumer.zk.requests import Batch, Code, FetchOffsets, OffsetRequest, StoreOffsets

Running = Generator[Batch | OffsetRequest, Replies, Outcome]

_FOREIGN = frozenset({Code.BAD_VERSION, Code.NODE_EXISTS, Code.NO_NODE})
"""Somebody wrote, created or deleted an offset znode since we read it."""


def load(member: Member, partitions: Iterable[TopicPartition], storage: Storage) -> Running:
    """Read stored offsets; a malformed znode is reported and left as it is, never reset.

    ZooKeeper answers last: if its connection has broken since Kafka answered, it is all void.
    """
    asked = sorted(partitions)
    kafka: Mapping[TopicPartition, OffsetAndMetadata] = {}
    if storage is not Storage.ZOOKEEPER:
        (reply,) = yield FetchOffsets(tuple(asked))
        if reply.code is not Code.OK:
            return StoreUnavailable(reply.value)
        kafka = reply.value
    stored = yield from read_offsets(member, asked)
    return OffsetsLoaded(stored, kafka)


def commit(member: Member, plan: CommitPlan) -> Running:
    """Write a plan: ZooKeeper's part, and Kafka's unless somebody else wrote meanwhile."""
    to_zookeeper = _transactions if plan.writes or plan.checks else _fence
    outcome = yield from to_zookeeper(member, plan)
    if not plan.kafka or not isinstance(outcome, Committed) or outcome.foreign:
        return outcome
    (reply,) = yield StoreOffsets(plan.kafka)
    denied, unavailable = reply.value
    return replace(
        outcome,
        denied={**outcome.denied, **denied},
        kafka=frozenset(plan.kafka).difference(denied, unavailable),
        unavailable=unavailable,
    )


def _fence(member: Member, plan: CommitPlan) -> Generator[Batch, Replies, Outcome]:
    """Where Kafka alone stores offsets: are we still a member?"""
    (reply,) = yield [rq.Multi((member.check,))]
    if reply.code is Code.NO_NODE:
        return MemberNodeGone()
    if reply.code is not Code.OK:
        return Denied(member.path, reason(reply))
    return Committed({}, {}, frozenset(), {})


def _transactions(member: Member, plan: CommitPlan) -> Generator[Batch, Replies, Outcome]:
    """Where somebody else wrote meanwhile, nothing of that transaction is written."""
    versions: dict[TopicPartition, int] = {}
    denied: dict[TopicPartition, str] = {}
    absent = sorted({tp.topic for tp, (_, version) in plan.writes.items() if version is None})
    if absent:
        yield create_parents(paths.offsets(member.group), absent)
    for chunk in chunks(_writes(member, plan)):
        while chunk:
            failed = yield from transact(member, chunk)
            if failed is None:
                versions |= {tp: _version_after(chunk[tp]) for tp in chunk if tp in plan.writes}
                break
            tp, reply = failed
            if tp is None:
                return MemberNodeGone()
            foreign, marked = yield from _read_back(member, plan, list(chunk))
            if reply.code in _FOREIGN and foreign:
                return Committed(versions, foreign, marked, denied)
            if reply.code not in _FOREIGN or not _topic_exists(chunk[tp]):
                denied[tp] = reason(reply)
                del chunk[tp]
    return Committed(versions, {}, frozenset(), denied)


def _writes(member: Member, plan: CommitPlan) -> dict[TopicPartition, rq.Write]:
    writes: dict[TopicPartition, rq.Write] = {}
    for tp, (offset, version) in plan.writes.items():
        path, data = paths.offset(member.group, tp), records.encode_offset(offset)
        create = version is None
        writes[tp] = rq.Create(path, data) if create else rq.SetData(path, data, version or 0)
    for tp, version in plan.checks.items():
        writes[tp] = rq.Check(paths.offset(member.group, tp), version)
    return writes


def _version_after(write: rq.Write) -> int:
    return write.version + 1 if isinstance(write, rq.SetData) else 0


def _topic_exists(write: rq.Write) -> bool:
    """A create that finds no parent will not find one the next time either."""
    return not isinstance(write, rq.Create)


def _read_back(
    member: Member, plan: CommitPlan, partitions: list[TopicPartition]
) -> Generator[
    Batch, Replies, tuple[Mapping[TopicPartition, StoredOffset], frozenset[TopicPartition]]
]:
    """Offsets that are not at the version we expected, and which of them a tool has marked.

    A marked edit is a write whose mzxid equals a mark's czxid: both in one transaction.
    """
    stored = yield from read_offsets(member, partitions)
    expected = {tp: version for tp, (_, version) in plan.writes.items()} | dict(plan.checks)
    foreign = {tp: found for tp, found in stored.items() if found.version != expected[tp]}
    (listing,) = yield [rq.Children(paths.edits(member.group))]
    names = listing.value if listing.code is Code.OK else ()
    room = paths.edits(member.group)
    seen = yield [rq.Exists(f"{room}/{name}") for name in names]
    marks = {reply.value.czxid for reply in seen if reply.value is not None}
    return foreign, frozenset(tp for tp, found in foreign.items() if found.mzxid in marks)
