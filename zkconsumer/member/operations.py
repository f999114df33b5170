"""A member's operations on ZooKeeper, as generators: each yields batches and receives the replies.

When the connection breaks, the executor ends the operation, and after the reconnect the member
reads back what ZooKeeper has executed. An operation itself handles every reply that it receives.
For instance, if a claim finds an owner znode, it compares the znode's `ephemeralOwner` with the
session, never its data alone.

With `offsets.storage=kafka`, a commit also yields requests to Kafka. The requests to ZooKeeper come
first, even if they only check the member's id znode. Kafka cannot recognise a member that has lost
its session, so the commit goes to Kafka only after ZooKeeper has accepted it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Self

from zkconsumer.errors import MalformedZnodeError, escaped_and_cut
from zkconsumer.frozen import dataclass
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
from zkconsumer.protocol.registrations import (
    Pattern,
    Registration,
    decode_registration,
    encode_registration,
)
from zkconsumer.protocol.releases import DEFAULT, Profile
from zkconsumer.protocol.requests import (
    Code,
    FetchOffsets,
    OffsetRequest,
    Reply,
    Requests,
    StoreOffsets,
)


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """The identity of the member that runs the operations, and its session."""

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
        """Return the first request of every transaction: the member's id znode must exist.

        After a session expiry the id znode is missing until the new session has registered. So a
        transaction that was queued before the expiry has no effect in the new session.
        """
        return rq.Check(self.path)


Replies = Sequence[Reply]
Running = Generator[Requests, Replies, Outcome]
"""An operation; it returns its outcome."""

REASONS = {
    Code.NO_AUTH: "ZooKeeper's access control list forbids it; ask for rights on the znodes",
    Code.TOO_LARGE: f"larger than the {rq.MAX_PAYLOAD_BYTES} bytes that a ZooKeeper server takes",
    Code.NO_NODE: "another client keeps deleting the parent znode of a live group",
}
CHROOT_GONE = "the chroot of zookeeper.connect was deleted; create it again"

MAX_OWNERS = 200
"""Maximum number of owner znodes that a blocked claim reads besides those that block it.

They show whether the owner follows another assignment strategy. A claim that would have to read
more does without this reason; `diagnose` finds it later.
"""

MAX_RECREATED = 8
"""How many times in a row an operation creates missing parent znodes again.

`rmr` deletes a group's znodes one by one, and may delete a parent after the member has created it.
After this many attempts the operation is denied, and the member tries again after the back-off.
"""


def reason(reply: Reply) -> str:
    """Return a text that says why ZooKeeper refused a request."""
    return REASONS.get(reply.code, f"ZooKeeper refused: {reply.value}")


def register(member: MemberIdentity, wall_ms: int) -> Running:
    """Create the member's id znode and its parents (JVM, 0.9 and later: `ZKCheckedEphemeral`).

    If another client has changed the data of this session's znode, this member writes its
    registration again, because all members read it.
    """
    ids = paths.ids(member.group)
    payload = _payload(member, wall_ms)
    create = rq.Create(member.path, payload, ephemeral=True)
    attempts = 0
    while True:
        # A refusal to create a parent does not matter: ZooKeeper may refuse to create a parent
        # although the znodes below it exist.
        root, *_, made, seen = yield [
            rq.Create(paths.CONSUMERS),
            rq.Create(ids.rpartition("/")[0]),
            rq.Create(ids),
            create,
            rq.Get(member.path, watch=True),
        ]
        if root.code is Code.NO_NODE:
            return Denied(paths.CONSUMERS, CHROOT_GONE)
        if made.code is Code.NO_NODE and attempts < MAX_RECREATED:
            attempts += 1
            continue  # another client deletes the group's znodes
        if made.code not in (Code.OK, Code.NODE_EXISTS):
            return Denied(member.path, reason(made))
        if seen.code is Code.NO_NODE:
            continue  # another session's znode was deleted between the two requests
        if seen.code is not Code.OK:
            return Denied(member.path, reason(seen))
        data, stat = seen.value
        if stat.owner != member.session:
            return IdTaken(stat.owner)
        if _subscribes(member, data):
            return Registered(stat.czxid)
        (rewritten,) = yield [rq.Multi((rq.SetData(member.path, payload, stat.version),))]
        if rewritten.code not in (Code.OK, Code.BAD_VERSION, Code.NO_NODE):
            return Denied(member.path, reason(rewritten))


def _subscribes(member: MemberIdentity, data: bytes | None) -> bool:
    """Return whether `data` has the member's pattern and subscription, with any time stamp."""
    try:
        found = decode_registration(data, where=member.path, profile=member.profile)
    except MalformedZnodeError:
        return False
    return (found.pattern, found.subscription) == (member.pattern, member.subscription)


def _payload(member: MemberIdentity, wall_ms: int) -> bytes:
    registration = Registration(member.subscription, member.pattern, wall_ms)
    return encode_registration(registration, profile=member.profile)


def list_owners(member: MemberIdentity, topics: Sequence[str]) -> Running:
    """Return the partitions of these topics that have an owner znode."""
    replies = yield [rq.Children(paths.owners_of(member.group, topic)) for topic in topics]
    listed = zip(topics, replies, strict=True)
    owned = (_owned(topic, reply.value) for topic, reply in listed if reply.code is Code.OK)
    return OwnersListed(frozenset().union(*owned))


def _owned(topic: str, names: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions of the owner znodes in a listing of the topic."""
    return [TopicPartition(topic, int(name)) for name in names if paths.is_partition(name)]


def nudge(member: MemberIdentity, wall_ms: int) -> Running:
    """Delete this session's id znode and create it again, in one transaction.

    The list of members changes twice, so every member of the group rebalances. The znode is read
    first, because another session's registration must stay. The delete names the version that was
    read, so it fails if the znode has changed since.
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


def wait_for_topic(topic: str) -> Generator[Requests, Replies, bool]:
    """Watch for a deleted topic to be created again; return whether it already exists."""
    (reply,) = yield [rq.Exists(paths.topic(topic), watch=True)]
    return reply.value is not None


def verify(member: MemberIdentity, partitions: Mapping[TopicPartition, ThreadId]) -> Running:
    """Read and watch owner znodes; find those that this session created for the given threads."""
    held, lost = yield from read_owners(member, partitions)
    return Verified(held, lost)


def get_watched(path: str) -> rq.Get:
    """Return a read that arms a watch on the znode."""
    return rq.Get(path, watch=True)


def read_owners(
    member: MemberIdentity,
    partitions: Mapping[TopicPartition, ThreadId],
    read: Callable[[str], rq.Get] = get_watched,
) -> Generator[
    Requests, Replies, tuple[dict[TopicPartition, Ownership], dict[TopicPartition, Blocker | None]]
]:
    """Return two mappings: the partitions that this session owns for the given threads, and the
    other partitions.

    The second mapping contains the owner of each partition, or None if it has no owner znode. An
    owner that cannot be read is watched, because its client may write the payload with a second
    request.
    """
    held: dict[TopicPartition, Ownership] = {}
    other: dict[TopicPartition, Blocker | None] = {}
    replies = yield [read(paths.owner(member.group, tp)) for tp in partitions]
    found = dict(zip(partitions, replies, strict=True))
    unread = [
        tp
        for tp, reply in found.items()
        if reply.code is Code.OK and _thread_of(reply.value.data) is None
    ]
    if unread:
        replies = yield [get_watched(paths.owner(member.group, tp)) for tp in unread]
        found |= zip(unread, replies, strict=True)
    for tp, reply in found.items():
        if reply.code is Code.NO_NODE:
            other[tp] = None
        elif reply.code is not Code.OK:
            other[tp] = Blocker(f"an unknown client ({reason(reply)})", 0)
        else:
            data, stat = reply.value
            thread = _thread_of(data)
            if stat.owner == member.session and thread == partitions[tp]:
                held[tp] = Ownership(partitions[tp], stat.czxid)
            else:
                name = "an unreadable owner" if thread is None else escaped_and_cut(thread)
                other[tp] = Blocker(name, stat.owner)
    return held, other


def _thread_of(data: bytes | None) -> ThreadId | None:
    """Return the thread id in an owner znode; None if the payload is empty or malformed."""
    try:
        return payloads.decode_owner(data, where="") or None
    except MalformedZnodeError:
        return None


def release(
    member: MemberIdentity,
    partitions: Iterable[TopicPartition],
    watched: Collection[TopicPartition] = (),
) -> Running:
    """Delete owner znodes of this session only.

    The owner of a znode is read first, unless the znode is watched. For a watched znode the read is
    not needed: if the owner had changed, the watch event would have arrived no later than the reply
    to the read.

    The JVM also deletes znodes of other sessions.
    """
    asked = sorted(partitions)
    certain = [tp for tp in asked if tp in watched]
    asked = [tp for tp in asked if tp not in watched]
    seen = yield [rq.Exists(paths.owner(member.group, tp)) for tp in asked]
    found = dict(zip(asked, seen, strict=True))
    denied = {tp: reason(reply) for tp, reply in found.items() if reply.code is not Code.OK}
    ours = [
        tp
        for tp, reply in found.items()
        if tp not in denied and reply.value is not None and reply.value.owner == member.session
    ]
    deletes = {tp: rq.Delete(paths.owner(member.group, tp)) for tp in sorted([*ours, *certain])}
    for chunk in chunks(deletes):
        while chunk:
            failed = yield from transact(member, chunk)
            if failed is None:
                break
            tp, reply = failed
            if tp is None:
                return MemberNodeGone()
            del chunk[tp]  # the transaction is sent again without this partition
            if reply.code is not Code.NO_NODE:
                denied[tp] = reason(reply)
    return Released(denied)


def read_offsets(
    group: str, partitions: Sequence[TopicPartition]
) -> Generator[Requests, Replies, dict[TopicPartition, StoredOffset]]:
    """Read the group's offset znodes."""
    return (yield from _read_offsets(group, partitions, rq.Get))


def _read_offsets(
    group: str, partitions: Sequence[TopicPartition], read: Callable[[str], rq.Get]
) -> Generator[Requests, Replies, dict[TopicPartition, StoredOffset]]:
    replies = yield [read(paths.offset(group, tp)) for tp in partitions]
    return {
        tp: _stored(reply, paths.offset(group, tp))
        for tp, reply in zip(partitions, replies, strict=True)
    }


def _read_and_watch_offsets(
    group: str, partitions: Sequence[TopicPartition]
) -> Generator[Requests, Replies, dict[TopicPartition, StoredOffset]]:
    """Read the group's offset znodes; watch those that cannot be read."""
    found = yield from read_offsets(group, partitions)
    if unread := [tp for tp, one in found.items() if one.error]:
        found |= yield from _read_offsets(group, unread, get_watched)
    return found


def _stored(reply: Reply, path: str) -> StoredOffset:
    if reply.code is Code.NO_NODE:
        return StoredOffset(None, None)
    if reply.code is not Code.OK:
        return StoredOffset(None, None, error=f"{path}: {reason(reply)}")
    data, stat = reply.value
    try:
        value = payloads.stored_offset(data, where=path)
    except MalformedZnodeError as error:
        return StoredOffset(None, stat.version, stat.mzxid, error=str(error))
    return StoredOffset(value, stat.version, stat.mzxid)


# ---- transactions -------------------------------------------------------------------------------


def transact(
    member: MemberIdentity, writes: Mapping[TopicPartition, rq.Write]
) -> Generator[Requests, Replies, tuple[TopicPartition | None, Reply] | None]:
    """Execute all of `writes` or none.

    Returns None after success. Otherwise returns the reply and the partition whose write failed.
    The partition is None if the check of the id znode failed.
    """
    (reply,) = yield [rq.Multi((member.check, *writes.values()))]
    return None if reply.code is Code.OK else refused(writes, reply)


def refused(
    writes: Mapping[TopicPartition, rq.Write], reply: Reply
) -> tuple[TopicPartition | None, Reply]:
    """Return the partition whose write failed; None if the check of the id znode failed."""
    index = reply.value if isinstance(reply.value, int) else 0
    if index == 0 and reply.code is Code.NO_NODE:
        return None, reply
    return list(writes)[max(index - 1, 0)], reply


def chunks(
    writes: Mapping[TopicPartition, rq.Write],
) -> Iterator[dict[TopicPartition, rq.Write]]:
    """Split writes that are too large for one transaction; each chunk is one transaction."""
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


def create_parents(parent: str, topics: Iterable[str]) -> Requests:
    """Return the requests that create the persistent parents of owner or offset znodes."""
    below = [f"{parent}/{topic}" for topic in topics]
    return [rq.Create(parent), *(rq.Create(path) for path in below)]


# ---- claiming ------------------------------------------------------------------------------------


class _MemberNodeGoneError(Exception):
    """The member's id znode is gone; this exception ends the whole claim."""


@dataclass
class _Claim:
    """A running claim; a value None in `created` means that the owner znode must be read back."""

    member: MemberIdentity
    threads: Mapping[TopicPartition, ThreadId]
    known: dict[TopicPartition, Blocker]
    created: dict[TopicPartition, Ownership | None] = field(default_factory=dict)
    denied: dict[TopicPartition, str] = field(default_factory=dict)
    watched: list[TopicPartition] = field(default_factory=list)
    names: dict[str, frozenset[str]] = field(default_factory=dict)  # topic -> its owner znodes
    others: dict[TopicPartition, ThreadId] = field(default_factory=dict)

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
    """Create the owner znodes of `threads` (JVM: `createEphemeralPathExpectConflict`).

    Transactions create the owner znodes of the free partitions. Partitions that another session
    owns are returned as blocked, and a watch reports the next change of the owners. The claim sets
    a watch on one znode of each transaction. `verify` later sets watches on the other znodes, while
    the partitions are already delivered.

    Args:
        known: owners that an earlier claim has found.
        ask: the partitions whose owners are read.
        all_or_nothing: keep no claim unless all claims succeed (`rebalance.mode=eager`). If
            ZooKeeper then refuses to delete a claimed znode, its partition is returned both as
            claimed and as denied.
    """
    work = _Claim(member, threads, dict(known))
    try:
        return (yield from _claim(work, ask, all_or_nothing))
    except _MemberNodeGoneError:
        return MemberNodeGone()


def _claim(
    work: _Claim, ask: frozenset[TopicPartition], all_or_nothing: bool
) -> Generator[Requests, Replies, Outcome]:
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
    watched = frozenset(tp for tp in work.watched if tp in claimed and tp not in doubtful)
    return Claimed(claimed, blocked, work.denied, watched, work.others)


def _list(work: _Claim) -> Generator[Requests, Replies, set[TopicPartition]]:
    """Return the missing partitions that have an owner znode, and watch for a change."""
    topics = sorted({tp.topic for tp in work.missing()})
    group = work.member.group
    present: set[TopicPartition] = set()
    for last in (*[False] * MAX_RECREATED, True):
        # After creating missing parents, list again to watch them.
        replies = yield [rq.Children(paths.owners_of(group, t), watch=True) for t in topics]
        absent: list[str] = []
        for topic, reply in zip(topics, replies, strict=True):
            if reply.code is Code.OK:
                names = work.names[topic] = frozenset(reply.value)
                missing = (tp for tp in work.missing() if tp.topic == topic)
                present |= {tp for tp in missing if str(tp.partition) in names}
            elif reply.code is Code.NO_NODE:
                absent.append(topic)
            else:
                _deny(work, topic, reason(reply))
        if not absent:
            break
        root, *made = yield create_parents(paths.owners(group), absent)
        if root.code is Code.NO_NODE:  # the group's znode is gone, and the member's id znode too
            raise _MemberNodeGoneError
        for topic, reply in zip(absent, made, strict=True):
            refusal = _refusal(root, reply)
            if refusal is not None and (refusal.code is not Code.NO_NODE or last):
                _deny(work, topic, reason(refusal))
        topics = [topic for topic in absent if any(tp.topic == topic for tp in work.missing())]
    return present


def _refusal(root: Reply, reply: Reply) -> Reply | None:
    """Return why the parent of a topic's znodes was not created; None if it exists.

    `root` is the reply to the creation of the parent's parent.
    """
    if reply.code in (Code.OK, Code.NODE_EXISTS):
        return None
    is_of_root = reply.code is Code.NO_NODE and root.code not in (Code.OK, Code.NODE_EXISTS)
    return root if is_of_root else reply


def _deny(work: _Claim, topic: str, why: str) -> None:
    work.denied |= {tp: why for tp in work.missing() if tp.topic == topic}


def _create(work: _Claim, free: Iterable[TopicPartition]) -> Generator[Requests, Replies, None]:
    """Create the owner znodes of free partitions; a failed create does not end the claim."""
    creates = {
        tp: rq.Create(
            paths.owner(work.member.group, tp),
            payloads.encode_owner(work.threads[tp]),
            ephemeral=True,
        )
        for tp in free
    }
    recreated = 0
    for chunk in chunks(creates):
        while chunk:
            failed = yield from _create_all(work, chunk)
            if failed is None:
                break
            tp, reply = failed
            if tp is None:
                raise _MemberNodeGoneError
            is_parent_gone = reply.code is Code.NO_NODE and recreated < MAX_RECREATED
            if reply.code is Code.NODE_EXISTS or is_parent_gone:
                recreated += is_parent_gone
                held = yield from _list(work)  # creates missing parents
                left = {*work.threads}.difference(held, work.denied)
                chunk = {tp: c for tp, c in chunk.items() if tp in left}  # noqa: PLW2901 - its rest
            else:
                work.denied[tp] = reason(reply)
                del chunk[tp]


def _create_all(
    work: _Claim, chunk: Mapping[TopicPartition, rq.Write]
) -> Generator[Requests, Replies, tuple[TopicPartition | None, Reply] | None]:
    """Execute all of `chunk` or none, as `transact` does, and record the epoch of the new znodes.

    All znodes that one transaction creates have the same czxid, so it is enough to read and watch
    one znode. If that znode no longer belongs to this session, all znodes must be read back.
    """
    first = next(iter(chunk))
    made, seen = yield [
        rq.Multi((work.member.check, *chunk.values())),
        get_watched(paths.owner(work.member.group, first)),
    ]
    if made.code is not Code.OK:
        return refused(chunk, made)
    stat = seen.value.stat if seen.code is Code.OK else None
    epoch = stat.czxid if stat is not None and stat.owner == work.member.session else None
    for tp in chunk:
        work.created[tp] = Ownership(work.threads[tp], epoch) if epoch is not None else None
    work.watched.append(first)
    return None


def _identify(
    work: _Claim, asked: set[TopicPartition]
) -> Generator[Requests, Replies, set[TopicPartition]]:
    """Read the owners of the `asked` partitions, and return the partitions that are now free.

    - The owner is this session, for the same thread: an earlier claim succeeded, and its reply was
      lost.
    - The owner is this session, for another thread: the partition moves within the member. One
      transaction deletes and creates the znode, so that it gets a new epoch.
    - The owner is another session, even if it wrote the same data: the partition is blocked.
    """
    if not asked:
        return set()
    ours, others = yield from read_owners(
        work.member, {tp: work.threads[tp] for tp in sorted(asked)}, rq.Get
    )
    work.created |= ours
    for tp, who in others.items():
        if who is not None and who.session == work.member.session:
            yield from _move(work, tp)
        elif who is not None:
            work.known[tp] = who
    if work.known:
        yield from _read_other_owners(work, {tp.topic for tp in work.known})
    return {tp for tp, who in others.items() if who is None}


def _read_other_owners(work: _Claim, topics: Collection[str]) -> Generator[Requests, Replies, None]:
    """Read the owners of all partitions of these topics, unless there are too many."""
    wanted = [
        tp for topic in sorted(topics) for tp in _owned(topic, sorted(work.names.get(topic, ())))
    ]
    if len(wanted) > MAX_OWNERS:
        return
    replies = yield [rq.Get(paths.owner(work.member.group, tp)) for tp in wanted]
    for tp, reply in zip(wanted, replies, strict=True):
        if reply.code is Code.OK and (thread := _thread_of(reply.value.data)) is not None:
            work.others[tp] = thread


def _move(work: _Claim, tp: TopicPartition) -> Generator[Requests, Replies, None]:
    path = paths.owner(work.member.group, tp)
    data = payloads.encode_owner(work.threads[tp])
    writes = (work.member.check, rq.Delete(path), rq.Create(path, data, ephemeral=True))
    (reply,) = yield [rq.Multi(writes)]
    if reply.code is Code.OK:
        work.created[tp] = None
    elif reply.code is Code.NO_AUTH:
        work.denied[tp] = reason(reply)


def _roll_back(work: _Claim) -> Generator[Requests, Replies, None]:
    """Delete the owner znodes of an eager claim that failed in part.

    Znodes that another member has claimed meanwhile are left alone. If ZooKeeper refuses to delete
    a znode, its partition is returned as claimed. If the member did not know of the znode, the
    znode would block every other member until the session ends.
    """
    outcome = yield from release(work.member, work.created)
    if not isinstance(outcome, Released):
        raise _MemberNodeGoneError
    work.created = {tp: None for tp in work.created if tp in outcome.denied}
    work.denied |= {tp: f"the claim cannot be undone: {why}" for tp, why in outcome.denied.items()}


# ---- committing ----------------------------------------------------------------------------------


RunningCommit = Generator[Requests | OffsetRequest, Replies, Outcome]

_FOREIGN = frozenset({Code.BAD_VERSION, Code.NODE_EXISTS, Code.NO_NODE})
"""Another client wrote, created or deleted an offset znode after this member read it."""


def load(
    member: MemberIdentity,
    partitions: Iterable[TopicPartition],
    storage: Storage,
    kept: frozenset[TopicPartition] = frozenset(),
) -> RunningCommit:
    """Read the stored offsets; a malformed offset znode is reported, and never reset.

    Kafka is read before ZooKeeper. If ZooKeeper's connection breaks in between, both replies are
    dropped. If a partition in `kept` has no offset, the edit marks are read too.
    """
    asked = sorted(partitions)
    kafka: Mapping[TopicPartition, OffsetAndMetadata] = {}
    if storage is not Storage.ZOOKEEPER:
        (reply,) = yield FetchOffsets(tuple(asked))
        if reply.code is not Code.OK:
            return StoreUnavailable(reply.value)
        kafka = reply.value
    stored = yield from _read_and_watch_offsets(member.group, asked)
    if all(stored[tp].value is not None or tp in kafka for tp in kept):
        return OffsetsLoaded(stored, kafka)
    marks = yield from _read_marks(member.group)
    return OffsetsLoaded(stored, kafka, max((mark.czxid for mark in marks), default=0))


def commit(member: MemberIdentity, plan: CommitPlan) -> RunningCommit:
    """Commit to ZooKeeper, and then to Kafka unless another client has written meanwhile."""
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


def _fence(member: MemberIdentity, plan: CommitPlan) -> Generator[Requests, Replies, Outcome]:
    """Check the member's id znode before a commit to Kafka alone."""
    (reply,) = yield [rq.Multi((member.check,))]
    if reply.code is Code.NO_NODE:
        return MemberNodeGone()
    if reply.code is not Code.OK:
        return Denied(member.path, reason(reply))
    return Committed({}, {}, frozenset(), {})


def _transactions(
    member: MemberIdentity, plan: CommitPlan
) -> Generator[Requests, Replies, Outcome]:
    """Write the offsets to ZooKeeper; stop if another client's write makes a transaction fail."""
    versions: dict[TopicPartition, int] = {}
    denied: dict[TopicPartition, str] = {}
    absent = sorted({tp.topic for tp, (_, version) in plan.writes.items() if version is None})
    if absent:
        yield create_parents(paths.offsets(member.group), absent)
    recreated = 0
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
            if isinstance(chunk[tp], rq.Create) and reply.code is Code.NO_NODE:
                # Another client has deleted the parent.
                root, made = yield create_parents(paths.offsets(member.group), [tp.topic])
                reply, recreated = _refusal(root, made) or reply, recreated + 1
                if reply.code is Code.NO_NODE and recreated <= MAX_RECREATED:
                    continue
            if isinstance(chunk[tp], rq.Create) or reply.code not in _FOREIGN:
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


def _read_back(
    member: MemberIdentity, plan: CommitPlan, partitions: list[TopicPartition]
) -> Generator[
    Requests, Replies, tuple[Mapping[TopicPartition, StoredOffset], frozenset[TopicPartition]]
]:
    """Return the offsets with unexpected versions, and the partitions whose offset an operator's
    tool has marked as edited."""
    stored = yield from read_offsets(member.group, partitions)
    expected = {tp: version for tp, (_, version) in plan.writes.items()} | dict(plan.checks)
    foreign = {tp: found for tp, found in stored.items() if found.version != expected[tp]}
    marks = yield from _read_marks(member.group)
    return foreign, payloads.marked({tp: found.mzxid for tp, found in foreign.items()}, marks)


def read_edited(
    group: str, partitions: Collection[TopicPartition]
) -> Generator[Requests, Replies, frozenset[TopicPartition]]:
    """Return the partitions whose offset was last written by an operator's tool."""
    replies = yield [rq.Exists(paths.offset(group, tp)) for tp in partitions]
    marks = yield from _read_marks(group)
    found = zip(partitions, replies, strict=True)
    mzxids = {tp: reply.value.mzxid for tp, reply in found if reply.value is not None}
    return payloads.marked(mzxids, marks)


def _read_marks(group: str) -> Generator[Requests, Replies, list[rq.Stat]]:
    """Return the marks of operators' edits."""
    (listing,) = yield [rq.Children(paths.edits(group))]
    names = listing.value if listing.code is Code.OK else ()
    seen = yield [rq.Exists(f"{paths.edits(group)}/{name}") for name in names]
    return [reply.value for reply in seen if reply.value is not None]
