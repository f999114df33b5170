"""The operations of a member on ZooKeeper: generators that yield batches and are sent the replies.

An operation never sees a broken connection: whoever drives it ends it then, and the member reads
back after the reconnect what may or may not have happened. What it does see it resolves itself:
a claim that meets a znode compares `ephemeralOwner` with the session, never the data alone.

Claiming owner znodes: what is free at once, what is held as soon as it vanishes.

Stored offsets: reading them, compare-and-set transactions, and reading back what refused.

With `offsets.storage=kafka` Kafka is asked in between. ZooKeeper's part of a commit comes first, be
it only the check of our id znode: what it refuses a member that has lost its session, Kafka, which
cannot tell such a member from a live one, is not asked to store.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from zkconsumer.errors import MalformedZnodeError, displayed
from zkconsumer.member.events import (
    Claimed,
    Committed,
    Denied,
    IdTaken,
    MemberNodeGone,
    OffsetsLoaded,
    Outcome,
    OwnersListed,
    Registered,
    Released,
    StoreUnavailable,
    Verified,
)
from zkconsumer.member.offset_ledger import CommitPlan
from zkconsumer.member.state import Settings
from zkconsumer.protocol import paths, payloads
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.model import (
    UNKNOWN_BLOCKER,
    Blocker,
    OffsetAndMetadata,
    Ownership,
    Storage,
    StoredOffset,
    ThreadId,
    TopicPartition,
)
from zkconsumer.protocol.paths import Kind
from zkconsumer.protocol.registrations import (
    Pattern,
    Registration,
    decode_registration,
    encode_registration,
)
from zkconsumer.protocol.releases import DEFAULT, Profile
from zkconsumer.protocol.requests import (
    Batch,
    Code,
    FetchOffsets,
    OffsetRequest,
    Reply,
    StoreOffsets,
)


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Whose operations these are, in which session."""

    group: str
    consumer: str
    subscription: Mapping[str, int]
    strategy: Strategy
    session: int
    pattern: Pattern = Pattern.STATIC
    internal: frozenset[str] = frozenset()
    profile: Profile = DEFAULT

    @classmethod
    def of(cls, settings: Settings, session: int) -> Self:
        s = settings
        return cls(
            s.group,
            s.consumer,
            s.subscription,
            s.strategy,
            session,
            pattern=s.pattern,
            internal=s.internal,
            profile=s.profile,
        )

    @property
    def path(self) -> str:
        return paths.member(self.group, self.consumer)

    @property
    def check(self) -> rq.Check:
        """First in every transaction: absent until this session has registered, so that what was
        queued before an expiry does nothing in the session after it."""
        return rq.Check(self.path)


Replies = Sequence[Reply]
Running = Generator[Batch, Replies, Outcome]
"""An operation; what it returns is its outcome."""
REASONS = {
    Code.NO_AUTH: "ZooKeeper's access control list forbids it; ask for rights on the znodes",
    Code.TOO_LARGE: f"larger than the {rq.MAX_PAYLOAD_BYTES} bytes that a ZooKeeper server takes",
    Code.NO_NODE: "a parent znode is missing; if there is a chroot, it was deleted",
}


def reason(reply: Reply) -> str:
    """Why ZooKeeper refused, in words."""
    return REASONS.get(reply.code, f"ZooKeeper refused: {reply.value}")


def register(member: MemberIdentity, wall_ms: int) -> Running:
    """Create our id znode (JVM 0.9+: ZKCheckedEphemeral); parents as every member creates them.

    If it is there and ours with somebody's bytes in it, ours are written back: all members read it.
    """
    ids = paths.ids(member.group)
    payload = _payload(member, wall_ms)
    create = rq.Create(member.path, payload, ephemeral=True)
    while True:
        # The parents' replies are not looked at: where a locked parent answers "no rights" the
        # node below it may well exist, and what matters is the last one.
        *_, made, seen = yield [
            rq.Create(paths.CONSUMERS),
            rq.Create(ids.rpartition("/")[0]),
            rq.Create(ids),
            create,
            rq.Get(member.path, watch=True),
        ]
        if made.code not in (Code.OK, Code.NODE_EXISTS):
            return Denied(member.path, reason(made))
        if seen.code is Code.NO_NODE:
            continue  # another session's node went between the two requests
        if seen.code is not Code.OK:
            return Denied(member.path, reason(seen))
        data, stat = seen.value
        if stat.owner != member.session:
            return IdTaken(stat.owner)
        if _subscribes(member, data):
            return Registered(stat.czxid)
        (mended,) = yield [rq.Multi((rq.SetData(member.path, payload, stat.version),))]
        if mended.code not in (Code.OK, Code.BAD_VERSION, Code.NO_NODE):
            return Denied(member.path, reason(mended))


def _subscribes(member: MemberIdentity, data: bytes | None) -> bool:
    """Is this our registration, whenever it was written?"""
    try:
        found = decode_registration(data, where=member.path, profile=member.profile)
    except MalformedZnodeError:
        return False
    return (found.pattern, found.subscription) == (member.pattern, member.subscription)


def _payload(member: MemberIdentity, wall_ms: int) -> bytes:
    registration = Registration(member.subscription, member.pattern, wall_ms)
    return encode_registration(registration, profile=member.profile)


def list_owners(member: MemberIdentity, topics: Sequence[str]) -> Running:
    """Which partitions of these topics have an owner znode, whoever's."""
    replies = yield [rq.Children(paths.owners_of(member.group, topic)) for topic in topics]
    at = [
        paths.locate(f"{paths.owners_of(member.group, topic)}/{name}")
        for topic, reply in zip(topics, replies, strict=True)
        if reply.code is Code.OK
        for name in reply.value
    ]
    present = (TopicPartition(one.name, one.partition) for one in at if one.kind is Kind.OWNER)
    return OwnersListed(frozenset(present))


def nudge(member: MemberIdentity, wall_ms: int) -> Running:
    """Delete this session's id znode and create it again, in one transaction.

    The list of members changes twice, so every member of the group rebalances. The znode is read
    first: if it belongs to another session, that session's registration must stay. The version in
    the delete covers the time between the read and the transaction.
    """
    (seen,) = yield [rq.Exists(member.path)]
    if seen.code is not Code.OK:
        return Denied(member.path, reason(seen))
    if seen.value is None or seen.value.owner != member.session:
        return MemberNodeGone()
    create = rq.Create(member.path, _payload(member, wall_ms), ephemeral=True)
    (reply,) = yield [rq.Multi((rq.Delete(member.path, seen.value.version), create))]
    if reply.code in (Code.NO_NODE, Code.BAD_VERSION):
        return MemberNodeGone()
    return Registered(0) if reply.code is Code.OK else Denied(member.path, reason(reply))


def wait_for_topic(topic: str) -> Generator[Batch, Replies, bool]:
    """Watch for a deleted topic's return; True if it is back already."""
    (reply,) = yield [rq.Exists(paths.topic(topic), watch=True)]
    return reply.value is not None


def verify(member: MemberIdentity, partitions: Mapping[TopicPartition, ThreadId]) -> Running:
    """Which of these owner znodes are this session's, for this thread; those are watched."""
    held, lost = yield from read_owners(member, partitions)
    return Verified(held, lost)


def watched(path: str) -> rq.Get:
    """A read that arms the watch on what it reads."""
    return rq.Get(path, watch=True)


def read_owners(
    member: MemberIdentity,
    partitions: Mapping[TopicPartition, ThreadId],
    read: Callable[[str], rq.Get] = watched,
) -> Generator[
    Batch, Replies, tuple[dict[TopicPartition, Ownership], dict[TopicPartition, Blocker | None]]
]:
    """Owner znodes that are ours for the given thread, and who or nobody has the others."""
    held: dict[TopicPartition, Ownership] = {}
    other: dict[TopicPartition, Blocker | None] = {}
    replies = yield [read(paths.owner(member.group, tp)) for tp in partitions]
    for (tp, thread), reply in zip(partitions.items(), replies, strict=True):
        if reply.code is Code.NO_NODE:
            other[tp] = None
        elif reply.code is not Code.OK:
            other[tp] = Blocker(f"somebody unknown ({reason(reply)})", 0)
        else:
            data, stat = reply.value
            found = _thread_of(data)
            if stat.owner == member.session and found == thread:
                held[tp] = Ownership(thread, stat.czxid)
            else:
                other[tp] = Blocker(displayed(found), stat.owner)
    return held, other


def _thread_of(data: bytes | None) -> str:
    try:
        return payloads.decode_owner(data, where="")
    except MalformedZnodeError as error:
        return f"nobody legible ({error.what})"


def release(member: MemberIdentity, partitions: Iterable[TopicPartition]) -> Running:
    """Delete owner znodes of ours; never one of another session (the JVM deletes whatever)."""
    asked = sorted(partitions)
    seen = yield [rq.Exists(paths.owner(member.group, tp)) for tp in asked]
    found = dict(zip(asked, seen, strict=True))
    denied = {tp: reason(reply) for tp, reply in found.items() if reply.code is not Code.OK}
    ours = [
        tp
        for tp, reply in found.items()
        if tp not in denied and reply.value is not None and reply.value.owner == member.session
    ]
    for chunk in chunks({tp: rq.Delete(paths.owner(member.group, tp)) for tp in ours}):
        while chunk:
            failed = yield from transact(member, chunk)
            if failed is None:
                break
            tp, reply = failed
            if tp is None:
                return MemberNodeGone()
            del chunk[tp]  # taken out; the others go on without it
            if reply.code is not Code.NO_NODE:
                denied[tp] = reason(reply)
    return Released(denied)


def read_offsets(
    member: MemberIdentity, partitions: Sequence[TopicPartition]
) -> Generator[Batch, Replies, dict[TopicPartition, StoredOffset]]:
    replies = yield [rq.Get(paths.offset(member.group, tp)) for tp in partitions]
    return {
        tp: _stored(reply, paths.offset(member.group, tp))
        for tp, reply in zip(partitions, replies, strict=True)
    }


def _stored(reply: Reply, path: str) -> StoredOffset:
    if reply.code is Code.NO_NODE:
        return StoredOffset(None, None)
    if reply.code is not Code.OK:
        return StoredOffset(None, None, error=f"{path}: {reason(reply)}")
    data, stat = reply.value
    try:
        value = payloads.decode_offset(data, where=path)
    except MalformedZnodeError as error:
        return StoredOffset(None, stat.version, stat.mzxid, error=str(error))
    return StoredOffset(value if value >= 0 else None, stat.version, stat.mzxid)


# ---- transactions -------------------------------------------------------------------------------


def transact(
    member: MemberIdentity, writes: Mapping[TopicPartition, rq.Write]
) -> Generator[Batch, Replies, tuple[TopicPartition | None, Reply] | None]:
    """All of `writes` or none. None when done; else which one failed, None for our own check."""
    (reply,) = yield [rq.Multi((member.check, *writes.values()))]
    return None if reply.code is Code.OK else refused(writes, reply)


def refused(
    writes: Mapping[TopicPartition, rq.Write], reply: Reply
) -> tuple[TopicPartition | None, Reply]:
    """Which of a refused transaction's writes failed; None for the check of our id node."""
    index = reply.value if isinstance(reply.value, int) else 0
    if index == 0 and reply.code is Code.NO_NODE:
        return None, reply
    return list(writes)[max(index - 1, 0)], reply


def chunks(
    writes: Mapping[TopicPartition, rq.Write],
) -> Iterator[dict[TopicPartition, rq.Write]]:
    """Cut what is too large for one transaction; each piece is all-or-nothing for itself."""
    piece: dict[TopicPartition, rq.Write] = {}
    size = 0
    for tp, write in writes.items():
        size += rq.payload_size(write)
        if piece and (len(piece) >= rq.MAX_MULTI_WRITES or size > rq.MAX_MULTI_BYTES):
            yield piece
            piece, size = {}, rq.payload_size(write)
        piece[tp] = write
    if piece:
        yield piece


def create_parents(room: str, topics: Iterable[str]) -> Batch:
    """Persistent parents of owner or offset znodes, as every member creates them."""
    below = [f"{room}/{topic}" for topic in topics]
    return [rq.Create(room), *(rq.Create(path) for path in below)]


# ---- claiming ------------------------------------------------------------------------------------


class _MemberNodeGoneError(Exception):
    """Ends a claim from any depth."""


@dataclass
class _Claim:
    """One claim under way; `created` holds None for what must still be read back."""

    member: MemberIdentity
    threads: Mapping[TopicPartition, ThreadId]
    known: dict[TopicPartition, Blocker]
    created: dict[TopicPartition, Ownership | None] = field(default_factory=dict)
    denied: dict[TopicPartition, str] = field(default_factory=dict)

    def missing(self) -> list[TopicPartition]:
        return [tp for tp in self.threads if tp not in self.created and tp not in self.denied]


def claim(
    member: MemberIdentity,
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
    blocked = {tp: work.known.get(tp, UNKNOWN_BLOCKER) for tp in work.missing()}
    blocked |= {tp: work.known.get(tp, UNKNOWN_BLOCKER) for tp in doubtful if tp not in claimed}
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
            payloads.encode_owner(work.threads[tp]),
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
    data = payloads.encode_owner(work.threads[tp])
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


# ---- committing ----------------------------------------------------------------------------------


RunningCommit = Generator[Batch | OffsetRequest, Replies, Outcome]

_FOREIGN = frozenset({Code.BAD_VERSION, Code.NODE_EXISTS, Code.NO_NODE})
"""Somebody wrote, created or deleted an offset znode since we read it."""


def load(
    member: MemberIdentity, partitions: Iterable[TopicPartition], storage: Storage
) -> RunningCommit:
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


def commit(member: MemberIdentity, plan: CommitPlan) -> RunningCommit:
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


def _fence(member: MemberIdentity, plan: CommitPlan) -> Generator[Batch, Replies, Outcome]:
    """Where Kafka alone stores offsets: are we still a member?"""
    (reply,) = yield [rq.Multi((member.check,))]
    if reply.code is Code.NO_NODE:
        return MemberNodeGone()
    if reply.code is not Code.OK:
        return Denied(member.path, reason(reply))
    return Committed({}, {}, frozenset(), {})


def _transactions(member: MemberIdentity, plan: CommitPlan) -> Generator[Batch, Replies, Outcome]:
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


def _writes(member: MemberIdentity, plan: CommitPlan) -> dict[TopicPartition, rq.Write]:
    writes: dict[TopicPartition, rq.Write] = {}
    for tp, (offset, version) in plan.writes.items():
        path, data = paths.offset(member.group, tp), payloads.encode_offset(offset)
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
    member: MemberIdentity, plan: CommitPlan, partitions: list[TopicPartition]
) -> Generator[
    Batch, Replies, tuple[Mapping[TopicPartition, StoredOffset], frozenset[TopicPartition]]
]:
    """Offsets that are not at the version we expected, and which of them a tool has marked."""
    stored = yield from read_offsets(member, partitions)
    expected = {tp: version for tp, (_, version) in plan.writes.items()} | dict(plan.checks)
    foreign = {tp: found for tp, found in stored.items() if found.version != expected[tp]}
    (listing,) = yield [rq.Children(paths.edits(member.group))]
    names = listing.value if listing.code is Code.OK else ()
    room = paths.edits(member.group)
    seen = yield [rq.Exists(f"{room}/{name}") for name in names]
    mzxids = {tp: found.mzxid for tp, found in foreign.items()}
    return foreign, payloads.marked(mzxids, [reply.value for reply in seen])
