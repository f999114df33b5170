"""Turn transactions into the history of groups: sessions, members, owners, rebalances and commits.

`GroupHistory` takes rows in the order of their zxids and fills `Tables`. `GroupHistory` keeps the
present state of each group but no transactions, so its memory depends on the number of events other
than commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from zkconsumer.errors import MalformedZnodeError, ZkConsumerError, escaped
from zkconsumer.history import transactions as tx
from zkconsumer.history.snapshots import Tree
from zkconsumer.history.tables import (
    Commits,
    Incident,
    Member,
    Ownership,
    Rebalance,
    Session,
    Tables,
)
from zkconsumer.history.transactions import RowTuple
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import (
    AssignmentFailure,
    GroupInput,
    MemberAssignment,
    assign_each_member,
)
from zkconsumer.protocol.group_health import blocked, owner_of, unclaimed
from zkconsumer.protocol.model import TopicPartition, session_text
from zkconsumer.protocol.paths import Kind, ParsedPath, consumer_of, locate_below_chroot
from zkconsumer.protocol.payloads import decode_offset, owner_znode
from zkconsumer.protocol.registrations import decode_registration
from zkconsumer.protocol.release_detection import Rules, nearest
from zkconsumer.protocol.releases import DEFAULT, Profile, profile

if TYPE_CHECKING:
    import pyarrow as pa

    from zkconsumer.history.commits import CommitRuns

Fields: TypeAlias = dict[str, Any]
"""Keyword arguments of the fields that all rows have."""

SETTLED_GRACE_MS: Final = 5_000
"""An owner znode that changes within this time after a group settled belongs to that rebalance. A
JVM member waits 2 s (`rebalance.backoff.ms`) before it tries again."""

BLOCKED_AFTER_MS: Final = 10_000
"""A group whose owners do not fit the assignment is reported as blocked after this time without a
change: JVM members give up after four attempts, 2 s apart."""

MAX_PATHS: Final = 200_000
"""Number of paths whose meaning is cached, in 40 MB. Then the cache is emptied."""

MAX_ASSIGNMENTS: Final = 64
"""Number of assignments that are cached for a group. A flapping member alternates between two.
"""

CANDIDATES: Final = (
    (Strategy.RANGE, DEFAULT),
    (Strategy.ROUND_ROBIN, DEFAULT),
    (Strategy.ROUND_ROBIN, profile("1.1.1")),
)
"""The assignment rules that a group may follow before it first settles, if no member subscribes by
a pattern."""

_CREATES: Final = frozenset({tx.CREATE, tx.CREATE2, tx.CREATE_CONTAINER, tx.CREATE_TTL})
_NOTHING: Final = ParsedPath(Kind.OTHER)

At = tuple[str, ParsedPath]
"""A chroot, and the meaning of a path below it."""


@dataclass(slots=True)
class _Partition:
    """The commits of a partition: the current run, and the content of its znode."""

    group: _Group
    tp: TopicPartition
    run: Commits | None = None
    session: int = -1
    """The session whose next commit continues the run; -1 if the run must be examined."""
    number: int = -1
    """The partition's number in `CommitRuns`; -1 if no compiled loop counts its commits."""


@dataclass(slots=True)
class _Registered:
    session: int
    payload: bytes | None


@dataclass(slots=True)
class _Group:
    """The present state of one group."""

    chroot: str
    name: str
    topics: dict[str, bytes | None]
    members: dict[str, _Registered] = field(default_factory=dict)
    owners: dict[TopicPartition, Ownership] = field(default_factory=dict)
    lost_ms: dict[TopicPartition, int] = field(default_factory=dict)
    owned_before: dict[TopicPartition, set[int]] = field(default_factory=dict)
    partitions: dict[TopicPartition, _Partition] = field(default_factory=dict)
    rebalance: Rebalance | None = None
    before: dict[TopicPartition, str] = field(default_factory=dict)
    members_before: frozenset[str] = frozenset()
    changed_ms: int = 0
    edit_zxid: int = -1
    touched: list[_Partition] = field(default_factory=list)
    """The partitions whose row of commits began in the last transaction that began such a row."""
    continued: list[tuple[int, _Partition, Commits]] = field(default_factory=list)
    """The rows of commits that began with an edit, and that the present transaction has continued.
    Each entry is the zxid of this transaction, the partition, and a copy of the row before it."""
    rules: Rules | None = None
    candidates: tuple[tuple[Strategy, Profile], ...] = CANDIDATES
    """The rules that have explained the owners whenever the group was settled."""
    wanted: dict[TopicPartition, str] | None = None
    wanted_known: bool = False
    known: dict[object, dict[TopicPartition, str] | None] = field(default_factory=dict)
    unexplained: set[object] = field(default_factory=set)
    """Pairs of registrations and owners that no rules explain; emptied when the topics change."""

    def input(self) -> GroupInput:
        """Return the input of the assignment: registrations and topics."""
        registrations = {one: found.payload for one, found in sorted(self.members.items())}
        return GroupInput(Strategy.RANGE, registrations, self.topics)

    def registered(self) -> frozenset[tuple[str, bytes | None]]:
        """Return the consumer ids with their registrations."""
        return frozenset((one, found.payload) for one, found in self.members.items())

    def threads(self) -> dict[TopicPartition, str]:
        """Return the thread in each owner znode."""
        return {tp: owner.thread for tp, owner in self.owners.items()}


def _computed(group: _Group) -> dict[TopicPartition, str] | None:
    """Return the assignment by the rules found last; None if it fails for a member."""
    if not group.topics:
        return None
    if group.rules is None:
        return _assign_by_rules(group, Strategy.RANGE, DEFAULT)
    return _assign_by_rules(group, group.rules.strategy, group.rules.profile)


def _assign_by_rules(
    group: _Group, strategy: Strategy, rules: Profile
) -> dict[TopicPartition, str] | None:
    """Return the assignment that the members compute by these rules; None if the computation fails
    for a member."""
    return _merged_assignment(assign_each_member(replace(group.input(), strategy=strategy), rules))


def _merged_assignment(
    parts: Mapping[str, MemberAssignment | AssignmentFailure],
) -> dict[TopicPartition, str] | None:
    """Return the assignment that all members compute; None if the computation fails for a
    member."""
    found: dict[TopicPartition, str] = {}
    for part in parts.values():
        if isinstance(part, AssignmentFailure):
            return None
        found |= part
    return found


def _set_topic(topics: dict[str, bytes | None], name: str, data: bytes | None) -> None:
    """Set a topic's payload; None removes the topic."""
    if data is None:
        topics.pop(name, None)
    else:
        topics[name] = data


class GroupHistory:
    """Fills tables from transactions. `finish` completes the rows of events that have not ended."""

    def __init__(self, groups: Collection[str] = ()) -> None:
        """`names` are the groups to describe; an empty collection means all groups."""
        self.tables = Tables()
        self._wanted = frozenset(groups)
        self._groups: dict[tuple[str, str], _Group] = {}
        self._topics: dict[str, dict[str, bytes | None]] = {}
        self._places: dict[str, At | _Partition] = {}
        self._sessions: dict[int, Session] = {}
        self._last_write: dict[int, int] = {}
        self._ephemerals: dict[int, dict[str, None]] = {}
        self._groups_of: dict[int, set[tuple[str, str]]] = {}
        self._file = ""
        self._zxid, self._time_ms = 0, 0
        self.from_ms = 0
        """The time of the first transaction; the logs say nothing about earlier times."""
        self._runs: CommitRuns | None = None

    # ---- input ---------------------------------------------------------------------------------

    def begin(self, tree: Tree, file: str) -> None:
        """Begin with the state in a snapshot; the first transaction changes this state."""
        self._file, self._zxid = file, tree.zxid
        self._sessions = {
            session: Session(zxid=tree.zxid, time_ms=0, file=file, session=session, timeout_ms=ms)
            for session, ms in tree.sessions.items()
        }
        znodes = sorted(tree.znodes.items(), key=lambda item: (item[1].owner > 0, item[0]))
        for path, znode in znodes:
            chroot, place = self._place(path)
            self._time_ms = znode.mtime
            if place.kind is Kind.TOPIC:
                self._topics_of(chroot)[place.name] = znode.data
            elif place.kind is Kind.MEMBER:
                live = znode.owner > 0
                at = (chroot, place)
                self._joined(at, path, znode.owner, znode.data, event="present", ephemeral=live)
            elif place.kind is Kind.OWNER:
                self._zxid = znode.czxid
                self._claimed((chroot, place), path, znode.owner, znode.data)
        for group in self._groups.values():
            group.rebalance, group.changed_ms = None, 0
        self.tables.rebalances.clear()
        self.tables.incidents.clear()
        self._zxid, self._time_ms = tree.zxid, 0

    def apply(self, rows: Iterable[RowTuple], file: str) -> None:
        """Apply the next rows (`transactions.Row`, or plain tuples), in the order of their
        zxids."""
        self._file = file
        places, last_write = self._places, self._last_write
        for row in rows:
            zxid, time_ms, session, _, kind, _, path, data, _, _, _ = row
            if zxid >> 32 != self._zxid >> 32 and self._time_ms:
                self._leader_changed(zxid, time_ms)
            self._zxid, self._time_ms = zxid, time_ms
            if kind != tx.CLOSE_SESSION:
                last_write[session] = time_ms
            if kind == tx.SET_DATA:
                place = places.get(path or "")
                if type(place) is _Partition:
                    run = place.run
                    # Up to 18 digits are always an offset; `_commit` examines longer texts.
                    if session == place.session and data and len(data) < 19 and data.isdigit():
                        offset = int(data)
                        if run is not None and offset >= run.last:
                            pause = time_ms - run.last_ms
                            if pause > run.longest_pause_ms:  # noqa: PLR1730 - `max` takes longer
                                run.longest_pause_ms = pause
                            run.last, run.last_ms, run.last_zxid = offset, time_ms, zxid
                            run.count += 1
                            continue
                    self._commit(place, session, data)
                    continue
            self._other(row)

    def apply_columns(self, batch: pa.RecordBatch, file: str) -> None:
        """Apply the next rows as `apply` does; a compiled loop counts most of the commits."""
        from zkconsumer.history.commits import ColumnRows, CommitRuns  # noqa: PLC0415 - loads numba

        self._file = file
        if self._runs is None:
            self._runs = CommitRuns()
            self._count_from_now(self._runs)
        rows, at = ColumnRows(batch), 0
        while True:
            if 0 < at < len(rows) and rows.number("zxid", at) >> 32 == self._zxid >> 32:
                found = self._runs.continued(rows, at)
                if found > at:
                    self._zxid = rows.number("zxid", found - 1)
                    self._time_ms = rows.number("time_ms", found - 1)
                at = found
            if at >= len(rows):
                return
            row = rows.row(at)
            if row[0] >> 32 != self._zxid >> 32 and self._time_ms:
                self._leader_changed(row[0], row[1])
            self._zxid, self._time_ms = row[:2]
            if row[4] != tx.CLOSE_SESSION:
                self._last_write[row[2]] = row[1]
            self._other(row)
            at += 1

    def _count_from_now(self, runs: CommitRuns) -> None:
        """Give the compiled loop the partitions and paths that are known."""
        for group in self._groups.values():
            for partition in group.partitions.values():
                partition.number = runs.new_partition()
                runs.store(partition.number, partition.session, partition.run)
        for path, place in self._places.items():
            self._register_path(path, place)

    def _register_path(self, path: str, place: At | _Partition) -> None:
        """Tell the compiled loop whether a path is a known partition's, or is to be skipped."""
        if self._runs is None:
            return
        if isinstance(place, _Partition):
            self._runs.learn(path, place.number)
        elif place[1].kind is Kind.OTHER:
            self._runs.skip(path)

    def _other(self, row: RowTuple) -> None:
        """Apply a row that is not a commit of a known partition."""
        _, _, session, cxid, kind, _, path, data, _, number, _ = row
        if kind == tx.CREATE_SESSION:
            self._sessions[session] = Session(**self._event(), session=session, timeout_ms=number)
        elif kind == tx.CLOSE_SESSION:
            self._closed(session, is_expiry=cxid == 0)
        elif kind in (tx.ERROR, tx.MULTI):
            self._refused(session, number)
        elif path is not None:
            if path not in self._places:
                self._place(path)
            place = self._places[path]
            if isinstance(place, _Partition):
                if kind in _CREATES or kind == tx.SET_DATA:
                    self._commit(place, session, data)
                elif kind == tx.DELETE:
                    self._offset_deleted(place, session)
            elif place[1].kind is not Kind.OTHER:
                self._znode(kind, place, path, session, data, ephemeral=number == 1)

    def _znode(
        self,
        kind: int,
        at: At,
        path: str,
        session: int,
        data: bytes | None,
        *,
        ephemeral: bool,
    ) -> None:
        chroot, what = at
        created, deleted = kind in _CREATES, kind in (tx.DELETE, tx.DELETE_CONTAINER)
        match what.kind:
            case Kind.MEMBER if created or kind == tx.SET_DATA:
                self._joined(at, path, session, data, event="joined", ephemeral=ephemeral)
            case Kind.MEMBER if deleted:
                self._left(at, path, session, event="left")
            case Kind.OWNER if created:
                self._claimed(at, path, session if ephemeral else 0, data)
            case Kind.OWNER if deleted:
                self._released(at, path, session, how="released")
            case Kind.TOPIC if deleted:
                self._topic(chroot, what.name, None)
            case Kind.TOPIC if created or kind == tx.SET_DATA:
                self._topic(chroot, what.name, data or b"")
            case Kind.EDITS if created and what.name:
                self._edited(chroot, what)

    # ---- places --------------------------------------------------------------------------------

    def _place(self, path: str) -> At:
        """Return the chroot and the meaning of a path, and cache them; offsets become objects."""
        chroot, place = locate_below_chroot(path)
        if place.group and self._wanted and place.group not in self._wanted:
            chroot, place = "", _NOTHING
        if len(self._places) >= MAX_PATHS:
            self._places.clear()
            if self._runs is not None:
                self._runs.forget_paths()
        if place.kind is Kind.OFFSET:
            group = self._group(chroot, place.group)
            tp = TopicPartition(place.name, place.partition)
            if tp not in group.partitions:
                number = -1 if self._runs is None else self._runs.new_partition()
                group.partitions[tp] = _Partition(group, tp, number=number)
            self._places[path] = group.partitions[tp]
        else:
            self._places[path] = (chroot, place)
        self._register_path(path, self._places[path])
        return chroot, place

    def _topics_of(self, chroot: str) -> dict[str, bytes | None]:
        return self._topics.setdefault(chroot, {})

    def _group(self, chroot: str, name: str) -> _Group:
        key = (chroot, name)
        if key not in self._groups:
            self._groups[key] = _Group(chroot, name, self._topics_of(chroot))
        return self._groups[key]

    def _event(self) -> Fields:
        return {"zxid": self._zxid, "time_ms": self._time_ms, "file": self._file}

    def _of(self, group: _Group) -> Fields:
        return {**self._event(), "chroot": group.chroot, "group": group.name}

    # ---- sessions ------------------------------------------------------------------------------

    def _touch(self, session: int, group: _Group) -> Session:
        """Return a session that a group uses; add its row if it is new."""
        live = self._sessions.get(session)
        if live is None:
            live = Session(**self._event(), session=session, timeout_ms=None)
            self._sessions[session] = live
        used = self._groups_of.setdefault(session, set())
        if not used:
            self.tables.sessions.append(live)
        used.add((group.chroot, group.name))
        return live

    def _closed(self, session: int, *, is_expiry: bool) -> None:
        """End a session. With cxid 0 the server ended it, which is an expiry; otherwise its client
        closed it.
        """
        live = self._sessions.pop(session, None)
        last_ms = self._last_write_ms(session)
        if live is not None:
            live.ended = "expired" if is_expiry else "closed"
            live.ended_ms, live.ended_zxid = self._time_ms, self._zxid
            live.silent_ms = self._time_ms - max(live.time_ms, last_ms) if live.time_ms else None
        self._groups_of.pop(session, None)
        paths = list(self._ephemerals.pop(session, ()))
        places = [(path, *self._place(path)) for path in paths]
        for path, chroot, place in places:
            if place.kind is Kind.MEMBER:
                self._left((chroot, place), path, session, event="expired" if is_expiry else "left")
        for path, chroot, place in places:
            if place.kind is Kind.OWNER:
                how = "expired" if is_expiry else "closed"
                self._released((chroot, place), path, session, how=how)

    def _last_write_ms(self, session: int) -> int:
        """Return the time of the last write of a session that ends now."""
        found = [self._last_write.pop(session, None)]
        if self._runs is not None:
            found.append(self._runs.last_write_ms(session))
        return max((one for one in found if one is not None), default=self._time_ms)

    def _refused(self, session: int, code: int) -> None:
        for key in self._groups_of.get(session, ()):
            rebalance = self._groups[key].rebalance
            if rebalance is not None and code and self._lasts(rebalance):
                name = session_text(session)
                rebalance.refused[name] = rebalance.refused.get(name, 0) + 1

    def _leader_changed(self, zxid: int, time_ms: int) -> None:
        """Record how long no transaction was written before a new leader began."""
        silence = time_ms - self._time_ms
        self.tables.incidents.append(
            Incident(
                zxid=zxid,
                time_ms=self._time_ms,
                file=self._file,
                chroot="",
                group="",
                kind="new leader",
                what=f"a new leader was elected; no write for {silence / 1000:.1f} s",
                ended_ms=time_ms,
            )
        )

    # ---- members -------------------------------------------------------------------------------

    def _joined(
        self,
        at: At,
        path: str,
        session: int,
        data: bytes | None,
        *,
        event: str,
        ephemeral: bool = False,
    ) -> None:
        place = at[1]
        group = self._group(at[0], place.group)
        old = group.members.get(place.name)
        if old is not None and event == "joined":
            event = "changed"
            session = old.session
        consumers = self._touch(session, group).consumers
        if place.name not in consumers:
            consumers.append(place.name)
        self._trigger(group, f"{place.name} {event}{' its registration' if old else ''}")
        group.members[place.name] = _Registered(session, data)
        if ephemeral:
            self._ephemerals.setdefault(session, {})[path] = None
        self._member(group, place.name, session, event, data)
        self._forget_wanted(group)
        self._check(group)

    def _left(self, at: At, path: str, session: int, *, event: str) -> None:
        place = at[1]
        group = self._group(at[0], place.group)
        old = group.members.get(place.name)
        if old is None:
            return
        if old.session != session:
            event = "removed"
        self._trigger(group, f"{place.name} {event}")
        del group.members[place.name]
        self._ephemerals.get(old.session, {}).pop(path, None)
        self._member(group, place.name, old.session, event, old.payload)
        self._forget_wanted(group)
        self._check(group)

    def _member(
        self, group: _Group, consumer: str, session: int, event: str, data: bytes | None
    ) -> None:
        text = escaped((data or b"").decode(errors="replace"))
        unreadable = ""
        try:
            decode_registration(data, where=consumer)
        except MalformedZnodeError as error:
            unreadable = error.what
        self.tables.members.append(
            Member(
                **self._of(group),
                consumer=consumer,
                session=session,
                event=event,
                registration=text,
                unreadable=unreadable,
            )
        )

    def _topic(self, chroot: str, name: str, data: bytes | None) -> None:
        topics = self._topics_of(chroot)
        old = topics.get(name)
        if old == data:
            return
        groups = [one for one in self._groups.values() if one.chroot == chroot and one.members]
        before = [self._assignment(group) for group in groups]
        _set_topic(topics, name, data)
        changed = []
        for group, wanted in zip(groups, before, strict=True):
            self._forget_wanted(group)
            group.known.clear()
            group.unexplained.clear()
            if self._assignment(group) != wanted:
                changed.append((group, wanted, group.wanted))
        _set_topic(topics, name, old)  # so that `_changes` uses the old assignment
        for group, wanted, _ in changed:
            group.wanted = wanted
            self._changes(group)
        _set_topic(topics, name, data)
        for group, _, now in changed:
            group.wanted = now
            self._trigger(group, f"topic {name} changed")
            self._check(group)

    # ---- owners --------------------------------------------------------------------------------

    def _claimed(self, at: At, path: str, session: int, data: bytes | None) -> None:
        place = at[1]
        group, tp = self._group(at[0], place.group), TopicPartition(place.name, place.partition)
        znode = owner_znode(data, session=session, czxid=self._zxid, where=path)
        self._reopen(group, "owner znodes were created")
        lost = group.lost_ms.pop(tp, None)
        owner = Ownership(
            **self._of(group),
            topic=tp.topic,
            partition=tp.partition,
            thread=escaped(znode.thread),
            consumer=escaped(owner_of(znode.thread, group.members)),
            session=session,
            czxid=self._zxid,
            gap_ms=None if lost is None else self._time_ms - lost,
        )
        self._touch(session, group)
        self._ephemerals.setdefault(session, {})[path] = None
        self.tables.ownership.append(owner)
        group.owners[tp] = owner
        group.owned_before.setdefault(tp, set()).add(session)
        self._examine_next(group, tp)
        rebalance = group.rebalance
        if rebalance is not None:
            rebalance.claimed += 1
            rebalance.last_claim_ms = self._time_ms
            if lost is not None:
                rebalance.unowned_s += (self._time_ms - max(lost, rebalance.time_ms)) / 1000
        self._check(group)

    def _released(self, at: At, path: str, session: int, *, how: str) -> None:
        place = at[1]
        group, tp = self._group(at[0], place.group), TopicPartition(place.name, place.partition)
        owner = group.owners.get(tp)
        if owner is None:
            return
        self._reopen(group, "owner znodes were deleted")
        del group.owners[tp]
        self._ephemerals.get(owner.session, {}).pop(path, None)
        owner.ended = how if owner.session == session else "removed"
        owner.ended_ms, owner.ended_zxid = self._time_ms, self._zxid
        group.lost_ms[tp] = self._time_ms
        self._examine_next(group, tp)
        rebalance = group.rebalance
        if rebalance is not None:
            rebalance.released += 1
            if rebalance.first_release_ms is None:
                rebalance.first_release_ms = self._time_ms
        self._check(group)

    # ---- rebalances ----------------------------------------------------------------------------

    def _trigger(self, group: _Group, why: str) -> None:
        """Begin a rebalance, or add a trigger to the rebalance that has not settled."""
        self._changes(group)
        rebalance = group.rebalance
        if rebalance is not None and rebalance.settled_ms is None:
            rebalance.triggers.append(why)
            return
        self._end(group)
        group.rebalance = Rebalance(**self._of(group), triggers=[why])
        group.before = {tp: owner.consumer for tp, owner in group.owners.items()}
        group.members_before = frozenset(group.members)
        self.tables.rebalances.append(group.rebalance)

    def _reopen(self, group: _Group, why: str) -> None:
        """Continue the rebalance in which an owner znode changes; begin one if there is none."""
        self._changes(group)
        rebalance = group.rebalance
        if rebalance is None or not self._lasts(rebalance):
            self._trigger(group, why)
        elif rebalance.settled_ms is not None:
            rebalance.settled_ms = None

    def _lasts(self, rebalance: Rebalance) -> bool:
        """Return whether a change at this moment belongs to a rebalance."""
        settled_ms = rebalance.settled_ms
        return settled_ms is None or self._time_ms - settled_ms <= SETTLED_GRACE_MS

    def _check(self, group: _Group) -> None:
        """Record the time if the owners now equal the assignor's assignment."""
        rebalance = group.rebalance
        if rebalance is None:
            return
        if not group.members and not group.owners:
            rebalance.settled_ms, rebalance.why = self._time_ms, "no member is left"
            return
        if self._is_waiting(group):
            return
        wanted = self._assignment(group)
        if wanted is None:
            consumers = {owner.consumer for owner in group.owners.values()}
            if not group.lost_ms and consumers and consumers <= group.members.keys():
                rebalance.settled_ms = self._time_ms
                rebalance.why = "every partition has an owner; the topics' znodes are unknown"
            return
        if len(group.owners) != len(wanted) or group.owners.keys() != wanted.keys():
            return
        rules = self._explaining(group)
        if rules is not None:
            rebalance.settled_ms = self._time_ms
            rebalance.why = f"the owners follow {rules}"

    def _is_waiting(self, group: _Group) -> bool:
        """Return whether a member certainly subscribes to a partition without an owner. If so, the
        group has not settled, and the assignment need not be computed.
        """
        for tp in group.lost_ms:
            if tp.topic in group.topics:
                name = f'"{tp.topic}"'.encode()
                return any(name in (one.payload or b"") for one in group.members.values())
        return False

    def _assignment(self, group: _Group) -> dict[TopicPartition, str] | None:
        """Return the thread of each partition by the last known rules; None if it is unknown."""
        if not group.wanted_known:
            group.wanted_known = True
            key = (
                group.registered(),
                group.rules and (group.rules.profile.release, group.rules.strategy),
            )
            if key not in group.known:
                if len(group.known) >= MAX_ASSIGNMENTS:
                    group.known.clear()
                group.known[key] = _computed(group)
            group.wanted = group.known[key]
        return group.wanted

    def _forget_wanted(self, group: _Group) -> None:
        group.wanted_known = False

    def _explaining(self, group: _Group) -> Rules | None:
        """Return the rules with which every member owns its share, or None if there are none."""
        threads = group.threads()
        if group.rules is not None and group.wanted == threads:
            self._exclude(group, threads)
            return group.rules
        state = group.registered(), frozenset(threads.items())
        if state in group.unexplained:
            return None
        rules = nearest(group.input(), threads)
        whole = {
            tp: thread
            for part in rules.parts.values()
            if not isinstance(part, AssignmentFailure)
            for tp, thread in part.items()
        }
        if whole != threads:
            if len(group.unexplained) >= MAX_ASSIGNMENTS:
                group.unexplained.clear()
            group.unexplained.add(state)
            return None
        group.rules, group.wanted = rules, whole
        self._exclude(group, threads)
        return rules

    def _exclude(self, group: _Group, threads: dict[TopicPartition, str]) -> None:
        """Exclude the rules that do not explain the owners of the settled group."""
        if len(group.candidates) > 1:
            group.candidates = tuple(
                one for one in group.candidates if _assign_by_rules(group, *one) == threads
            )

    def _end(self, group: _Group) -> None:
        """Complete the row of a rebalance."""
        rebalance = group.rebalance
        if rebalance is None:
            return
        group.rebalance = None
        for tp, lost in group.lost_ms.items():
            wanted = self._assignment(group)
            if not group.members or wanted is None or tp in wanted:
                until = rebalance.settled_ms if group.owners else None
                until = self._time_ms if until is None else until
                rebalance.unowned_s += max(0, until - max(lost, rebalance.time_ms)) / 1000
        rebalance.ended_ms = self._time_ms
        rebalance.members, rebalance.partitions = len(group.members), len(group.owners)
        staying = group.members_before & group.members.keys()
        for tp, owner in group.owners.items():
            old = group.before.get(tp)
            if old is not None and old != owner.consumer:
                rebalance.moved += 1
                rebalance.moved_without_need += {old, owner.consumer} <= staying
        if rebalance.settled_ms is None:
            rebalance.why = self._disorder(group)

    def _disorder(self, group: _Group) -> str:
        """Return the reason why a group has not settled."""
        wanted = self._assignment(group)
        if wanted is None:
            return "the assignment is unknown: a registration or a topic cannot be read"
        free = [tp for tp in wanted if tp not in group.owners]
        strangers = [one for one in group.owners.values() if one.consumer not in group.members]
        wrong = [
            tp for tp, owner in group.owners.items() if wanted.get(tp, owner.thread) != owner.thread
        ]
        return (
            f"{len(free)} partitions had no owner, {len(strangers)} an owner that is not "
            f"registered, {len(wrong)} another owner than {group.rules or 'range'} assigns"
        )

    def _changes(self, group: _Group) -> None:
        """Report blocked partitions and idle members, before a change of the group or the end."""
        since_ms = max(group.changed_ms, self.from_ms)
        rebalance = group.rebalance
        if (
            self._time_ms - since_ms >= BLOCKED_AFTER_MS
            and group.members
            and (rebalance is None or rebalance.settled_ms is None)
        ):
            self._stuck(group, since_ms)
        group.changed_ms = self._time_ms

    def _stuck(self, group: _Group, since_ms: int) -> None:
        """Report the members that gave up, and the owners that block partitions.

        While the group's rules are unknown, it reports only what is true under all likely rules.
        """
        likely = self._likely(group)
        if not likely:
            return
        owners = {tp: owner.consumer for tp, owner in group.owners.items()}
        wrong = [blocked(one, owners) for one in likely]
        for tp, owner in group.owners.items():
            if not all(tp in one for one in wrong):
                continue
            is_member = owner.consumer in group.members
            why = f"but {wrong[0][tp]} should own it" if is_member else "which is not registered"
            self._incident(
                group,
                since_ms,
                "blocked partition",
                f"{tp.topic}-{tp.partition} is held by {owner.thread} (session "
                f"{session_text(owner.session)}), {why}",
            )
        free = [Counter(map(consumer_of, unclaimed(one, owners).values())) for one in likely]
        for consumer in sorted(group.members.keys() & set.intersection(*map(set, free))):
            session = group.members[consumer].session
            counts = group.rebalance.refused if group.rebalance else {}
            self._incident(
                group,
                since_ms,
                "member gave up",
                f"{consumer} did not claim {free[0][consumer]} partitions for "
                f"{(self._time_ms - since_ms) / 1000:.0f} s, after "
                f"{counts.get(session_text(session), 0)} refused writes",
            )

    def _likely(self, group: _Group) -> list[dict[TopicPartition, str]]:
        """Return the assignments that the members may follow; empty if a member cannot compute one.

        Before a group has settled, its owners exclude no rules: the owners may be older than the
        registrations, and another client may have deleted some owner znodes.
        """
        wanted = self._assignment(group)
        if wanted is None or len(group.candidates) < 2:
            return [] if wanted is None else [wanted]
        return [
            whole
            for one in group.candidates
            if (whole := _assign_by_rules(group, *one)) is not None
        ]

    def _incident(self, group: _Group, since_ms: int, kind: str, what: str) -> None:
        event = {**self._of(group), "time_ms": since_ms}
        self.tables.incidents.append(
            Incident(**event, kind=kind, what=what, ended_ms=self._time_ms)
        )

    # ---- commits -------------------------------------------------------------------------------

    def _commit(self, partition: _Partition, session: int, data: bytes | None) -> None:
        """Begin a run of commits, or continue one after the partition's owner has changed."""
        group, run = partition.group, partition.run
        try:
            offset = decode_offset(data, where="")
        except ZkConsumerError:
            return
        self._touch(session, group)
        self._load(partition)
        is_edit = group.edit_zxid == self._zxid
        owner = group.owners.get(partition.tp)
        had = group.owned_before.get(partition.tp, set())
        late = owner is not None and owner.session != session and session in had
        begins = (
            "edit"
            if is_edit
            else "first"
            if run is None
            else "session"
            if run.session != session
            else "moved back"
            if offset < run.last
            else ""
        )
        partition.session = session
        if not begins and run is not None and run.late == late:
            if run.begins == "edit":
                same = [one for one in group.continued if one[0] == self._zxid]
                group.continued = [*same, (self._zxid, partition, replace(run))]
                partition.session = -1
            run.longest_pause_ms = max(run.longest_pause_ms, self._time_ms - run.last_ms)
            run.last, run.last_ms, run.last_zxid = offset, self._time_ms, self._zxid
            run.count += 1
            self._store(partition)
            return
        self._begin_run(partition, session, offset, begins=begins or "session", late=late)

    def _begin_run(
        self, partition: _Partition, session: int, offset: int, *, begins: str, late: bool
    ) -> None:
        """Begin a row of commits."""
        group, run = partition.group, partition.run
        consumers = self._sessions[session].consumers if session in self._sessions else []
        mine = [one for one in consumers if one in group.members]
        partition.run = Commits(
            **self._of(group),
            topic=partition.tp.topic,
            partition=partition.tp.partition,
            session=session,
            by=escaped((mine or consumers or [""])[-1]),
            begins=begins,
            late=late,
            before=None if run is None else run.last,
            first=offset,
            last=offset,
            last_ms=self._time_ms,
            last_zxid=self._zxid,
        )
        if begins == "edit":
            partition.session = -1
        self._store(partition)
        self.tables.commits.append(partition.run)
        group.touched = [one for one in group.touched if one.run and one.run.zxid == self._zxid]
        group.touched.append(partition)

    def _load(self, partition: _Partition) -> None:
        """Update the run of a partition with the commits that the compiled loop has counted."""
        if self._runs is not None and partition.run is not None:
            self._runs.load(partition.number, partition.run)

    def _store(self, partition: _Partition) -> None:
        """Let the compiled loop continue the run of a partition."""
        if self._runs is not None:
            self._runs.store(partition.number, partition.session, partition.run)

    def _examine_next(self, group: _Group, tp: TopicPartition) -> None:
        """Request an examination of a partition's next commit, because its owner has changed."""
        partition = group.partitions.get(tp)
        if partition is not None:
            self._load(partition)
            partition.session = -1
            self._store(partition)

    def _offset_deleted(self, partition: _Partition, session: int) -> None:
        """End the run of commits of a partition whose offset znode was deleted."""
        self._load(partition)
        run, partition.run, partition.session = partition.run, None, -1
        self._store(partition)
        at = f"{partition.tp.topic}-{partition.tp.partition}"
        was = "" if run is None else f", which was {run.last}"
        self.tables.incidents.append(
            Incident(
                **self._of(partition.group),
                kind="offset deleted",
                what=f"session {session_text(session)} deleted the offset of {at}{was}",
            )
        )

    def _edited(self, chroot: str, place: ParsedPath) -> None:
        """Record that an operator's tool changes offsets in this transaction.

        If a commit of this transaction continued a row of commits, the commit is removed from that
        row and begins a new row.
        """
        group = self._group(chroot, place.group)
        group.edit_zxid = self._zxid
        for partition in group.touched:
            if partition.run is not None and partition.run.zxid == self._zxid:
                partition.run.begins, partition.session = "edit", -1
                self._store(partition)
        continued, group.continued = group.continued, []
        for zxid, partition, before in continued:
            run = partition.run
            if zxid == self._zxid and run is not None:
                session, offset, late = run.session, run.last, run.late
                for name in ("last", "last_ms", "last_zxid", "count", "longest_pause_ms"):
                    setattr(run, name, getattr(before, name))
                self._begin_run(partition, session, offset, begins="edit", late=late)

    # ---- output --------------------------------------------------------------------------------

    def update(self) -> Tables:
        """Return the tables with all commits so far."""
        for group in self._groups.values():
            for partition in group.partitions.values():
                self._load(partition)
        return self.tables

    def finish(self) -> Tables:
        """Complete the rows of events that have not ended, and return the tables."""
        for group in self._groups.values():
            rebalance = group.rebalance
            self._changes(group)
            self._end(group)
            if rebalance is not None:
                rebalance.ended_ms = rebalance.settled_ms
        return self.update()

    @property
    def until_ms(self) -> int:
        """The time of the last transaction."""
        return self._time_ms

    def groups(self) -> Iterator[tuple[str, str]]:
        """Yield the chroot and the name of each group that has appeared."""
        yield from self._groups
