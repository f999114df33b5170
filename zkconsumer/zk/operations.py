"""The operations of a member on ZooKeeper: generators that yield batches and are sent the replies.

An operation never sees a broken connection: whoever drives it ends it then, and the member reads
back after the reconnect what may or may not have happened. What it does see it resolves itself:
a claim that meets a znode compares `ephemeralOwner` with the session, never the data alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from zkconsumer.core import paths, records
from zkconsumer.core.assignors import Strategy
from zkconsumer.core.events import (
    Denied,
    IdTaken,
    MemberNodeGone,
    Outcome,
    OwnersListed,
    Registered,
    Released,
    Verified,
)
from zkconsumer.core.model import Blocker, Ownership, StoredOffset, ThreadId, TopicPartition
from zkconsumer.core.paths import Kind
from zkconsumer.core.registrations import (
    Pattern,
    Registration,
    decode_registration,
    encode_registration,
)
from zkconsumer.core.releases import DEFAULT, Profile
from zkconsumer.core.state import Settings
from zkconsumer.errors import MalformedZnodeError, displayed
from zkconsumer.zk import requests as rq
from zkconsumer.zk.requests import Batch, Code, Reply


@dataclass(frozen=True, slots=True)
class Member:
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


def register(member: Member, wall_ms: int) -> Running:
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


def _subscribes(member: Member, data: bytes | None) -> bool:
    """Is this our registration, whenever it was written?"""
    try:
        found = decode_registration(data, where=member.path, profile=member.profile)
    except MalformedZnodeError:
        return False
    return (found.pattern, found.subscription) == (member.pattern, member.subscription)


def _payload(member: Member, wall_ms: int) -> bytes:
    registration = Registration(member.subscription, member.pattern, wall_ms)
    return encode_registration(registration, profile=member.profile)


def list_owners(member: Member, topics: Sequence[str]) -> Running:
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


def nudge(member: Member, wall_ms: int) -> Running:
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


def verify(member: Member, partitions: Mapping[TopicPartition, ThreadId]) -> Running:
    """Which of these owner znodes are this session's, for this thread; those are watched."""
    held, lost = yield from read_owners(member, partitions)
    return Verified(held, lost)


def watched(path: str) -> rq.Get:
    """A read that arms the watch on what it reads."""
    return rq.Get(path, watch=True)


def read_owners(
    member: Member,
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
        return records.decode_owner(data, where="")
    except MalformedZnodeError as error:
        return f"nobody legible ({error.what})"


def release(member: Member, partitions: Iterable[TopicPartition]) -> Running:
    """Delete owner znodes of ours; never one of another session (the JVM deletes whatever)."""
    asked = sorted(partitions)
    seen = yield [rq.Exists(paths.owner(member.group, tp)) for tp in asked]
    found = dict(zip(asked, seen, strict=True))
    denied = {tp: reason(reply) for tp, reply in found.items() if reply.code is not Code.OK}
    ours = [
        tp for tp, reply in found.items()
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
    member: Member, partitions: Sequence[TopicPartition]
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
        value = records.decode_offset(data, where=path)
    except MalformedZnodeError as error:
        return StoredOffset(None, stat.version, stat.mzxid, error=str(error))
    return StoredOffset(value if value >= 0 else None, stat.version, stat.mzxid)


# ---- transactions -------------------------------------------------------------------------------


def transact(
    member: Member, writes: Mapping[TopicPartition, rq.Write]
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
