"""Claiming owner znodes: what is free at once, what is held as soon as it vanishes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field

from zkconsumer.core import paths, records
from zkconsumer.core.events import Claimed, MemberNodeGone, Outcome
from zkconsumer.core.model import Blocker, ThreadId, TopicPartition
from zkconsumer.zk import requests as rq
from zkconsumer.zk.operations import (
    Member,
    Replies,
    Running,
    chunks,
    create_parents,
    read_owners,
    reason,
    transact,
)
from zkconsumer.zk.requests import Batch, Code

MAX_ROUNDS = 5
"""How often one claim looks again because nodes vanished meanwhile; then the watch tells."""


class _MemberNodeGoneError(Exception):
    """Ends a claim from any depth."""


@dataclass
class _Claim:
    """One claim under way."""

    member: Member
    threads: Mapping[TopicPartition, ThreadId]
    known: dict[TopicPartition, Blocker]
    created: set[TopicPartition] = field(default_factory=set)
    denied: dict[TopicPartition, str] = field(default_factory=dict)

    def missing(self) -> list[TopicPartition]:
        return [tp for tp in self.threads if tp not in self.created and tp not in self.denied]


def claim(
    member: Member,
    threads: Mapping[TopicPartition, ThreadId],
    known: Mapping[TopicPartition, Blocker],
    *,
    all_or_nothing: bool,
) -> Running:
    """Create the owner znodes of `threads` (JVM: createEphemeralPathExpectConflict).

    What is free is created in transactions that are all or nothing each; what another session holds
    is returned as blocked, with a watch on its siblings. With `all_or_nothing` (eager) nothing
    stays created unless everything is. A claim counts once its znode was read back: that arms the
    watch on it and gives the epoch.
    """
    work = _Claim(member, threads, dict(known))
    try:
        return (yield from _claim(work, all_or_nothing))
    except _MemberNodeGoneError:
        return MemberNodeGone()


def _claim(work: _Claim, all_or_nothing: bool) -> Generator[Batch, Replies, Outcome]:
    held = yield from _list(work, rq.Children)
    for _ in range(MAX_ROUNDS):
        free = [tp for tp in work.missing() if tp not in held]
        if free and not (all_or_nothing and held):
            yield from _create(work, free)
        missing = work.missing()
        if all_or_nothing and work.created and (missing or work.denied):
            yield from _roll_back(work)
        if not missing:
            break
        held = yield from _list(work, _watched_children)
        yield from _identify(work, held)
        if held >= set(work.missing()) or (all_or_nothing and held):
            break
    claimed, lost = yield from read_owners(
        work.member, {tp: work.threads[tp] for tp in work.created}
    )
    blocked = {tp: work.known.get(tp, _UNSEEN) for tp in work.missing()}
    blocked |= {tp: who or _UNSEEN for tp, who in lost.items()}
    return Claimed(claimed, blocked, work.denied)


_UNSEEN = Blocker("somebody who was gone before we could look", 0)


def _watched_children(path: str) -> rq.Children:
    return rq.Children(path, watch=True)


def _list(
    work: _Claim, request: Callable[[str], rq.Children]
) -> Generator[Batch, Replies, set[TopicPartition]]:
    """Which of the missing partitions have an owner znode."""
    topics = sorted({tp.topic for tp in work.missing()})
    group = work.member.group
    replies = yield [request(paths.owners_of(group, topic)) for topic in topics]
    present: set[TopicPartition] = set()
    absent: list[str] = []
    for topic, reply in zip(topics, replies, strict=True):
        if reply.code is Code.OK:
            names = set(reply.value)
            present |= {tp for tp in work.missing() if tp.topic == topic and str(tp[1]) in names}
        elif reply.code is Code.NO_NODE:
            absent.append(topic)
        else:
            _deny(work, topic, reason(reply))
    if absent:
        made = yield create_parents(paths.owners(group), absent)
        for topic, reply in zip(absent, made[1:], strict=True):
            if reply.code not in (Code.OK, Code.NODE_EXISTS):
                _deny(work, topic, reason(reply))
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
            failed = yield from transact(work.member, chunk)
            if failed is None:
                work.created |= chunk.keys()
                break
            tp, reply = failed
            if tp is None:
                raise _MemberNodeGoneError
            if reply.code is Code.NODE_EXISTS:
                held = yield from _list(work, rq.Children)
                chunk = {tp: c for tp, c in chunk.items() if tp not in held}  # noqa: PLW2901
            else:
                work.denied[tp] = reason(reply)
                del chunk[tp]


def _identify(work: _Claim, held: set[TopicPartition]) -> Generator[Batch, Replies, None]:
    """Find out who holds what we want; what our own session holds is ours.

    Same thread: our own create, whose reply was lost. Another thread: a move within the member,
    one transaction of delete and create, so that the node gets a new epoch. Another session, even
    with equal data: in the way.
    """
    new = {tp: work.threads[tp] for tp in held if tp not in work.known and tp not in work.denied}
    if not new:
        return
    ours, others = yield from read_owners(work.member, new)
    work.created |= ours.keys()
    for tp, who in others.items():
        if who is None:
            held.discard(tp)
        elif who.session == work.member.session:
            yield from _move(work, tp)
        else:
            work.known[tp] = who


def _move(work: _Claim, tp: TopicPartition) -> Generator[Batch, Replies, None]:
    path = paths.owner(work.member.group, tp)
    data = records.encode_owner(work.threads[tp])
    writes = (work.member.check, rq.Delete(path), rq.Create(path, data, ephemeral=True))
    (reply,) = yield [rq.Multi(writes)]
    if reply.code is Code.OK:
        work.created.add(tp)
    elif reply.code is Code.NO_AUTH:
        work.denied[tp] = reason(reply)


def _roll_back(work: _Claim) -> Generator[Batch, Replies, None]:
    """Eager: no claim outlives the attempt that failed."""
    deletes = {tp: rq.Delete(paths.owner(work.member.group, tp)) for tp in work.created}
    for chunk in chunks(deletes):
        failed = yield from transact(work.member, chunk)
        if failed is not None and failed[0] is None:
            raise _MemberNodeGoneError
    work.created.clear()
