"""Claiming owner znodes: what is free at once, what is held as soon as it vanishes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field

from zkconsumer.core import paths, records
from zkconsumer.core.events import Claimed, MemberNodeGone, Outcome, Released
from zkconsumer.core.model import UNNAMED, Blocker, Ownership, ThreadId, TopicPartition
from zkconsumer.zk import requests as rq
from zkconsumer.zk.operations import (
    Member,
    Replies,
    Running,
    chunks,
    create_parents,
    read_owners,
    reason,
    refused,
    release,
)
from zkconsumer.zk.requests import Batch, Code, Reply


class _MemberNodeGoneError(Exception):
    """Ends a claim from any depth."""


@dataclass
class _Claim:
    """One claim under way; `created` holds None for what must still be read back."""

    member: Member
    threads: Mapping[TopicPartition, ThreadId]
    known: dict[TopicPartition, Blocker]
    created: dict[TopicPartition, Ownership | None] = field(default_factory=dict)
    denied: dict[TopicPartition, str] = field(default_factory=dict)

    def missing(self) -> list[TopicPartition]:
        return [tp for tp in self.threads if tp not in self.created and tp not in self.denied]


def claim(
    member: Member,
    threads: Mapping[TopicPartition, ThreadId],
    known: Mapping[TopicPartition, Blocker],
    *,
    ask: frozenset[TopicPartition],
    all_or_nothing: bool,
) -> Running:
    """Create the owner znodes of `threads` (JVM: createEphemeralPathExpectConflict).

    What is free is created in transactions that are all or nothing each; what another session holds
    is returned as blocked, and the next change of the owners is told by a watch. Of those in `ask`
    it is found out who holds them. With `all_or_nothing` (eager) nothing stays created unless
    everything is, but for what ZooKeeper then refuses to delete: that is claimed, and denied. The
    claimed znodes are not watched yet: that is for `verify`, when the partitions are served.
    """
    work = _Claim(member, threads, dict(known))
    try:
        return (yield from _claim(work, ask, all_or_nothing))
    except _MemberNodeGoneError:
        return MemberNodeGone()


def _claim(
    work: _Claim, ask: frozenset[TopicPartition], all_or_nothing: bool
) -> Generator[Batch, Replies, Outcome]:
    held = yield from _list(work)
    held -= yield from _identify(work, held & ask)
    held.intersection_update(work.missing())
    free = [tp for tp in work.missing() if tp not in held]
    if free and not (all_or_nothing and held):
        yield from _create(work, free)
    if all_or_nothing and work.created and (work.missing() or work.denied):
        yield from _roll_back(work)
    claimed = {tp: mine for tp, mine in work.created.items() if mine is not None}
    doubtful = {tp: work.threads[tp] for tp in work.created.keys() - claimed.keys()}
    if doubtful:
        found, lost = yield from read_owners(work.member, doubtful)
        claimed |= found
        work.known |= {tp: who for tp, who in lost.items() if who is not None}
    blocked = {tp: work.known.get(tp, UNNAMED) for tp in work.missing()}
    blocked |= {tp: work.known.get(tp, UNNAMED) for tp in doubtful if tp not in claimed}
    return Claimed(claimed, blocked, work.denied)


def _list(work: _Claim) -> Generator[Batch, Replies, set[TopicPartition]]:
    """Which of the missing partitions have an owner znode; a watch tells when that changes."""
    topics = sorted({tp.topic for tp in work.missing()})
    group = work.member.group
    present: set[TopicPartition] = set()
    for _ in range(2):  # again where the parent was missing: what is not there cannot be watched
        replies = yield [rq.Children(paths.owners_of(group, t), watch=True) for t in topics]
        absent: list[str] = []
        for topic, reply in zip(topics, replies, strict=True):
            if reply.code is Code.OK:
                names = set(reply.value)
                missing = (tp for tp in work.missing() if tp.topic == topic)
                present |= {tp for tp in missing if str(tp.partition) in names}
            elif reply.code is Code.NO_NODE:
                absent.append(topic)
            else:
                _deny(work, topic, reason(reply))
        if not absent:
            break
        made = yield create_parents(paths.owners(group), absent)
        for topic, reply in zip(absent, made[1:], strict=True):
            if reply.code not in (Code.OK, Code.NODE_EXISTS):
                _deny(work, topic, reason(reply))
        topics = absent
    return present


def _deny(work: _Claim, topic: str, why: str) -> None:
    work.denied |= {tp: why for tp in work.missing() if tp.topic == topic}


def _create(work: _Claim, free: Iterable[TopicPartition]) -> Generator[Batch, Replies, None]:
    """Create what is free; one that fails is taken out, and never holds up the others."""
    creates = {
        tp: rq.Create(
            paths.owner(work.member.group, tp),
            records.encode_owner(work.threads[tp]),
            ephemeral=True,
        )
        for tp in free
    }
    for chunk in chunks(creates):
        while chunk:
            failed = yield from _create_all(work, chunk)
            if failed is None:
                break
            tp, reply = failed
            if tp is None:
                raise _MemberNodeGoneError
            if reply.code is Code.NODE_EXISTS:
                held = yield from _list(work)
                chunk = {tp: c for tp, c in chunk.items() if tp not in held}  # noqa: PLW2901
            else:
                work.denied[tp] = reason(reply)
                del chunk[tp]


def _create_all(
    work: _Claim, chunk: Mapping[TopicPartition, rq.Write]
) -> Generator[Batch, Replies, tuple[TopicPartition | None, Reply] | None]:
    """All of `chunk` or none, as `transact`; with the epoch that one of the znodes tells of all.

    What one transaction creates has one czxid: its own zxid. If the one read is not ours any more,
    all must be read back.
    """
    first = paths.owner(work.member.group, next(iter(chunk)))
    made, seen = yield [rq.Multi((work.member.check, *chunk.values())), rq.Exists(first)]
    if made.code is not Code.OK:
        return refused(chunk, made)
    ours = seen.code is Code.OK and seen.value and seen.value.owner == work.member.session
    for tp in chunk:
        work.created[tp] = Ownership(work.threads[tp], seen.value.czxid) if ours else None
    return None


def _identify(
    work: _Claim, asked: set[TopicPartition]
) -> Generator[Batch, Replies, set[TopicPartition]]:
    """Find out who holds what we want, and return what nobody holds any more.

    Our own session, same thread: our own create, whose reply was lost. Another thread: a move
    within the member, one transaction of delete and create, so that the node gets a new epoch.
    Another session, even with equal data: in the way.
    """
    if not asked:
        return set()
    ours, others = yield from read_owners(
        work.member, {tp: work.threads[tp] for tp in asked}, rq.Get
    )
    work.created |= ours
    for tp, who in others.items():
        if who is not None and who.session == work.member.session:
            yield from _move(work, tp)
        elif who is not None:
            work.known[tp] = who
    return {tp for tp, who in others.items() if who is None}


def _move(work: _Claim, tp: TopicPartition) -> Generator[Batch, Replies, None]:
    path = paths.owner(work.member.group, tp)
    data = records.encode_owner(work.threads[tp])
    writes = (work.member.check, rq.Delete(path), rq.Create(path, data, ephemeral=True))
    (reply,) = yield [rq.Multi(writes)]
    if reply.code is Code.OK:
        work.created[tp] = None
    elif reply.code is Code.NO_AUTH:
        work.denied[tp] = reason(reply)


def _roll_back(work: _Claim) -> Generator[Batch, Replies, None]:
    """Eager: no claim outlives the attempt that failed; what somebody took meanwhile is his.

    What ZooKeeper does not let us delete stays ours, and is told as such: an owner znode that its
    own member does not know of would keep everybody else out until the session ends.
    """
    outcome = yield from release(work.member, work.created)
    if not isinstance(outcome, Released):
        raise _MemberNodeGoneError
    work.created = {tp: None for tp in work.created if tp in outcome.denied}
    work.denied |= {tp: f"cannot be given back: {why}" for tp, why in outcome.denied.items()}
