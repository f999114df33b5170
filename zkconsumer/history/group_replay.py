"""Turn transactions into the history of groups: sessions, members, owners, rebalances and commits.

`GroupHistory` takes batches in the order of their zxids and fills `Tables`. `GroupHistory` keeps
the present state of each group but no transactions, so its memory depends on the number of events
other than commits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from zkconsumer.errors import ZkConsumerError, escaped
from zkconsumer.history import transactions as tx
from zkconsumer.history.commits import DIGITS, CommitRun, CommitRuns, PathParts
from zkconsumer.history.logs import RowBatch
from zkconsumer.history.rebalances import Now, ReplayedGroup
from zkconsumer.history.tables import Commits, Incident, Session, Tables
from zkconsumer.history.transactions import RowTuple
from zkconsumer.protocol.model import TopicPartition, is_session, session_text
from zkconsumer.protocol.paths import CONSUMERS, TOPICS, ParsedPath, ZnodeKind, locate_below_chroot
from zkconsumer.protocol.payloads import decode_offset

if TYPE_CHECKING:
    from zkconsumer.history.snapshots import Tree

MAX_PATHS: Final = 200_000
"""Number of paths whose meaning is cached, in 40 MB. Then the cache is emptied."""

EXPIRIES_A_DAY: Final = 500
"""Number of expired sessions per day whose times are kept for the zones of servers' logs. Further
ones would only be further evidence of the same zone."""

_DAY_MS: Final = 86_400_000

PARTS: Final = PathParts((f"{CONSUMERS}/", f"{TOPICS}/"), "/edits/")

At: TypeAlias = tuple[str, ParsedPath]
"""A chroot, and the meaning of a path below it."""

_CREATES: Final = frozenset({tx.CREATE, tx.CREATE2, tx.CREATE_CONTAINER, tx.CREATE_TTL})
_DELETES: Final = frozenset({tx.DELETE, tx.DELETE_CONTAINER})


class Partition(CommitRun):
    """A partition whose offset a group has committed, with its present run."""

    __slots__ = ("group", "tp")

    def __init__(self, group: ReplayedGroup, tp: TopicPartition) -> None:
        super().__init__()
        self.group, self.tp = group, tp


Place: TypeAlias = At | Partition | None
"""The meaning of a path: the path of an offset means a partition. None: its rows change no
table."""


class GroupHistory:
    """Fills tables from transactions. `finish` completes the rows of events that have not ended."""

    def __init__(self, groups: Collection[str] = ()) -> None:
        """`groups` are the groups to describe; an empty collection means all groups."""
        self.tables = Tables()
        self._wanted = frozenset(groups)
        self._groups: dict[tuple[str, str], ReplayedGroup] = {}
        self._edited: dict[tuple[str, str], int] = {}  # group -> the zxid of its last edit
        self._topics: dict[str, dict[str, bytes | None]] = {}
        self._sessions: dict[int, Session] = {}
        self._expiries: dict[int, dict[int, tuple[int, int]]] = {}  # day -> session -> times
        self._ephemerals: dict[int, dict[str, None]] = {}
        self._groups_of: dict[int, dict[ReplayedGroup, None]] = {}
        self._now = Now()
        self._runs = CommitRuns(PARTS)
        self._partitions: dict[tuple[ReplayedGroup, TopicPartition], Partition] = {}
        self._is_compiled = False

    def __getstate__(self) -> dict[str, Any]:  # Any: the attributes
        return {**self.__dict__, "_runs": self._runs.plain(), "_is_compiled": False}

    # ---- input ---------------------------------------------------------------------------------

    def begin(self, tree: Tree, file: str) -> None:
        """Begin with the state in a snapshot; the first transaction changes this state."""
        self._now.file, self._now.zxid = file, tree.zxid
        self._sessions = {
            session: Session(zxid=tree.zxid, time_ms=0, file=file, session=session, timeout_ms=ms)
            for session, ms in tree.sessions.items()
        }
        znodes = sorted(tree.znodes.items(), key=lambda item: (is_session(item[1].owner), item[0]))
        for path, znode in znodes:
            place = self._place(path)
            if place is None or isinstance(place, Partition):
                continue
            session = znode.owner if is_session(znode.owner) else 0
            if session and znode.czxid > tree.zxid:
                continue  # the snapshot is fuzzy, and the logs contain the creation
            chroot, what = place
            self._now.zxid, self._now.time_ms = tree.zxid, znode.mtime
            if what.kind is ZnodeKind.TOPIC:
                self._topics_of(chroot)[what.name] = znode.data
            elif what.kind is ZnodeKind.MEMBER:
                live = session != 0
                self._joined(place, path, session, znode.data, event="present", ephemeral=live)
            elif what.kind is ZnodeKind.OWNER:
                self._now.zxid = znode.czxid
                self._claimed(place, path, session, znode.data)
        for group in self._groups.values():
            group.forget_rebalance()
        self.tables.rebalances.clear()
        self.tables.incidents.clear()
        self._now.zxid, self._now.time_ms = tree.zxid, 0

    def apply(self, batch: RowBatch) -> None:
        """Apply the next transactions, in the order of their zxids."""
        now = self._now
        now.file, now.from_ms = batch.file, now.from_ms or batch.time_ms
        self._elections(batch)
        if batch.is_compiled and not self._is_compiled:
            from zkconsumer.history.commit_loop import CompiledRuns  # noqa: PLC0415 - loads numba

            self._runs, self._is_compiled = CompiledRuns(self._runs), True
        for row in self._runs.others(batch):
            now.zxid, now.time_ms = row[:2]
            self._apply(row)
        now.zxid, now.time_ms = batch.last

    def _apply(self, row: RowTuple) -> None:
        """Apply a row that does not continue a run of commits."""
        _, _, session, cxid, kind, _, path, data, _, number, _ = row
        if kind == tx.CREATE_SESSION:
            found = Session(**self._now.event(), session=session, timeout_ms=number)
            self._sessions[session] = found
        elif kind == tx.CLOSE_SESSION:
            self._closed(session, is_expiry=cxid == 0)
        elif kind in (tx.ERROR, tx.MULTI):
            if number:
                for group in self._groups_of.get(session, ()):
                    group.refused(session)
        elif path is not None:
            place = self._place(path)
            if isinstance(place, Partition):
                if kind in _CREATES or kind == tx.SET_DATA:
                    self._commit(place, session, data)
                elif kind in _DELETES:
                    self._offset_deleted(place, session)
            elif place is not None:
                self._znode(kind, place, path, session, data, ephemeral=number == 1)

    def _znode(
        self, kind: int, at: At, path: str, session: int, data: bytes | None, *, ephemeral: bool
    ) -> None:
        chroot, what = at
        created, deleted = kind in _CREATES, kind in _DELETES
        match what.kind:
            case ZnodeKind.MEMBER if created or kind == tx.SET_DATA:
                self._joined(at, path, session, data, event="joined", ephemeral=ephemeral)
            case ZnodeKind.MEMBER if deleted:
                self._left(at, path, session, event="left")
            case ZnodeKind.OWNER if created:
                self._claimed(at, path, session if ephemeral else 0, data)
            case ZnodeKind.OWNER if deleted:
                self._released(at, path, session, how="released")
            case ZnodeKind.TOPIC if deleted:
                self._topic(chroot, what.name, None)
            case ZnodeKind.TOPIC if created or kind == tx.SET_DATA:
                self._topic(chroot, what.name, data or b"")
            case ZnodeKind.EDITS if created and what.name:
                self._group(chroot, what.group)
                self._edited[chroot, what.group] = self._now.zxid

    def _elections(self, batch: RowBatch) -> None:
        """Record how long no transaction was written before each new leader began."""
        zxids, epoch, time_ms = batch.zxids, self._now.zxid >> 32, self._now.time_ms
        if zxids[0] >> 32 == epoch == zxids[-1] >> 32:
            return
        for at, zxid in enumerate(map(int, zxids)):
            if zxid >> 32 == epoch:
                continue
            epoch = zxid >> 32
            if at:
                time_ms = batch.part(at - 1, at).time_ms
            if time_ms:
                self._elected(zxid, time_ms, batch.part(at, at + 1).time_ms)

    def _elected(self, zxid: int, before_ms: int, time_ms: int) -> None:
        silence = time_ms - before_ms
        self.tables.incidents.append(
            Incident(
                zxid=zxid,
                time_ms=before_ms,
                file=self._now.file,
                chroot="",
                group="",
                kind="new leader",
                what=f"a new leader was elected; no write for {silence / 1000:.1f} s",
                ended_ms=time_ms,
            )
        )

    # ---- places --------------------------------------------------------------------------------

    def _place(self, path: str) -> Place:
        """Return the meaning of a path, and cache it if the path may have one."""
        places = self._runs.places
        if path in places:
            return cast(Place, places[path])
        consumers, topics = PARTS.meanings
        if consumers not in path and topics not in path:
            return None
        if len(places) >= MAX_PATHS:
            self._runs.forget_paths()
        found = self._meaning(*locate_below_chroot(path))
        self._runs.learn(path, found)
        return found

    def _meaning(self, chroot: str, place: ParsedPath) -> Place:
        if place.kind is ZnodeKind.OTHER:
            return None
        if place.group and self._wanted and place.group not in self._wanted:
            return None
        if place.kind is not ZnodeKind.OFFSET:
            return chroot, place
        group, tp = self._group(chroot, place.group), TopicPartition(place.name, place.partition)
        if (group, tp) not in self._partitions:
            self._partitions[group, tp] = Partition(group, tp)
        return self._partitions[group, tp]

    def _topics_of(self, chroot: str) -> dict[str, bytes | None]:
        return self._topics.setdefault(chroot, {})

    def _group(self, chroot: str, name: str) -> ReplayedGroup:
        key = (chroot, name)
        if key not in self._groups:
            topics = self._topics_of(chroot)
            self._groups[key] = ReplayedGroup(chroot, name, topics, self._now, self.tables)
        return self._groups[key]

    # ---- sessions ------------------------------------------------------------------------------

    def _touch(self, session: int, group: ReplayedGroup) -> Session:
        """Return a session that a group uses; add its row if it is new."""
        live = self._sessions.get(session)
        if live is None:
            live = Session(**self._now.event(), session=session, timeout_ms=None)
            self._sessions[session] = live
        used = self._groups_of.setdefault(session, {})
        if not used:
            self.tables.sessions.append(live)
        used[group] = None
        return live

    def _closed(self, session: int, *, is_expiry: bool) -> None:
        """End a session. With cxid 0 the server ended it, which is an expiry; otherwise its client
        closed it.
        """
        live = self._sessions.pop(session, None)
        now, last_ms = self._now, self._runs.pop_last_write_ms(session)
        if live is not None:
            live.ended = "expired" if is_expiry else "closed"
            live.ended_ms, live.ended_zxid = now.time_ms, now.zxid
            last_ms = now.time_ms if last_ms is None else last_ms
            live.silent_ms = now.time_ms - max(live.time_ms, last_ms) if live.time_ms else None
            expiries = self._expiries.setdefault(now.time_ms // _DAY_MS, {}) if is_expiry else {}
            if len(expiries) < EXPIRIES_A_DAY:
                expiries[session] = (live.time_ms, now.time_ms)
        self._groups_of.pop(session, None)
        places = [(path, self._place(path)) for path in self._ephemerals.pop(session, ())]
        for path, place in places:
            if isinstance(place, tuple) and place[1].kind is ZnodeKind.MEMBER:
                self._left(place, path, session, event="expired" if is_expiry else "left")
        for path, place in places:
            if isinstance(place, tuple) and place[1].kind is ZnodeKind.OWNER:
                how = "expired" if is_expiry else "closed"
                self._released(place, path, session, how=how)

    # ---- members, owners and topics ------------------------------------------------------------

    def _joined(
        self, at: At, path: str, session: int, data: bytes | None, *, event: str, ephemeral: bool
    ) -> None:
        chroot, place = at
        group = self._group(chroot, place.group)
        old = group.members.get(place.name)
        if old is not None and event == "joined":
            event = "changed"
            session = old.session
        if session:  # a persistent znode of a snapshot has no session
            consumers = self._touch(session, group).consumers
            if place.name not in consumers:
                consumers.append(place.name)
        if ephemeral:
            self._ephemerals.setdefault(session, {})[path] = None
        group.joined(place.name, session, data, event=event)

    def _left(self, at: At, path: str, session: int, *, event: str) -> None:
        chroot, place = at
        group = self._group(chroot, place.group)
        old = group.members.get(place.name)
        if old is not None:
            self._ephemerals.get(old.session, {}).pop(path, None)
            group.left(place.name, event=event if old.session == session else "removed")

    def _claimed(self, at: At, path: str, session: int, data: bytes | None) -> None:
        chroot, place = at
        group, tp = self._group(chroot, place.group), TopicPartition(place.name, place.partition)
        if tp in group.owners:  # the logs lack the deletion of the old znode
            self._released(at, path, session, how="removed")
        if session:
            self._touch(session, group)
            self._ephemerals.setdefault(session, {})[path] = None
        group.claimed(tp, session, data, path=path)
        self._examine_next(group, tp)

    def _released(self, at: At, path: str, session: int, *, how: str) -> None:
        chroot, place = at
        group, tp = self._group(chroot, place.group), TopicPartition(place.name, place.partition)
        owner = group.owners.get(tp)
        if owner is not None:
            self._ephemerals.get(owner.session, {}).pop(path, None)
            group.released(tp, how=how if owner.session == session else "removed")
            self._examine_next(group, tp)

    def _topic(self, chroot: str, name: str, data: bytes | None) -> None:
        """Change or delete a topic, which can change the assignment of each group with members."""
        topics = self._topics_of(chroot)
        old = topics.get(name)
        if old == data:
            return
        groups = [one for one in self._groups.values() if one.chroot == chroot and one.members]
        before = [group.assignments.wanted() for group in groups]
        _set_topic(topics, name, data)
        changed = []
        for group, wanted in zip(groups, before, strict=True):
            group.assignments.topics_changed()
            if (now := group.assignments.wanted()) != wanted:
                changed.append((group, wanted, now))
        _set_topic(topics, name, old)  # so that `changes` uses the old assignment
        for group, wanted, _ in changed:
            group.assignments.restore(wanted)
            group.changes()
        _set_topic(topics, name, data)
        for group, _, now in changed:
            group.assignments.restore(now)
            group.topic_changed(name)

    # ---- commits -------------------------------------------------------------------------------

    def _commit(self, run: Partition, session: int, data: bytes | None) -> None:
        """Begin a run of commits, or continue one after the partition's owner has changed."""
        group, row, now = run.group, run.row, self._now
        if data and data.isdigit() and len(data) <= DIGITS:
            offset = int(data)
        else:
            try:
                offset = decode_offset(data, where="")
            except ZkConsumerError:
                return
        consumers = self._touch(session, group).consumers
        owner = group.owners.get(run.tp)
        had = group.owned_before.get(run.tp, ())
        late = owner is not None and owner.session != session and session in had
        is_edit = self._edited.get((group.chroot, group.name)) == now.zxid
        if is_edit:
            begins = "edit"
        elif row is None:
            begins = "first"
        elif row.session != session:
            begins = "session"
        elif offset < row.last:
            begins = "moved back"
        else:
            begins = "" if row.late == late else "session"
        run.session = session
        if begins or row is None:
            mine = [one for one in consumers if one in group.members]
            by = escaped((mine or consumers or [""])[-1])
            self._begin_run(run, offset, by=by, begins=begins, late=late)
            return
        row.longest_pause_ms = max(row.longest_pause_ms, now.time_ms - row.last_ms)
        row.last, row.last_ms, row.last_zxid = offset, now.time_ms, now.zxid
        row.count += 1

    def _begin_run(self, run: Partition, offset: int, *, by: str, begins: str, late: bool) -> None:
        """Begin a row of commits of the run's session."""
        group, before, now = run.group, run.row, self._now
        run.row = Commits(
            **group.fields(),
            topic=run.tp.topic,
            partition=run.tp.partition,
            session=run.session,
            by=by,
            begins=begins,
            late=late,
            before=None if before is None else before.last,
            first=offset,
            last=offset,
            last_ms=now.time_ms,
            last_zxid=now.zxid,
        )
        self.tables.commits.append(run.row)

    def _examine_next(self, group: ReplayedGroup, tp: TopicPartition) -> None:
        """Request an examination of a partition's next commit, because its owner has changed."""
        run = self._partitions.get((group, tp))
        if run is not None:
            self._runs.examine(run)

    def _offset_deleted(self, run: Partition, session: int) -> None:
        """End the run of commits of a partition whose offset znode was deleted."""
        row, run.row, run.session = run.row, None, -1
        was = "" if row is None else f", which was {row.last}"
        who = f"session {session_text(session)}" if session else "a server"  # after its TTL
        self.tables.incidents.append(
            Incident(
                **run.group.fields(),
                kind="offset deleted",
                what=f"{who} deleted the offset of {run.tp}{was}",
                session=session or None,
            )
        )

    # ---- output --------------------------------------------------------------------------------

    def update(self) -> Tables:
        """Return the tables with all commits so far."""
        self._runs.update()
        return self.tables

    def finish(self) -> Tables:
        """Complete the rows of events that have not ended, and return the tables."""
        for group in self._groups.values():
            group.finish()
        return self.update()

    @property
    def from_ms(self) -> int:
        """The time of the first transaction; 0 before it."""
        return self._now.from_ms

    @property
    def until_ms(self) -> int:
        """The time of the last transaction."""
        return self._now.time_ms

    def lifetimes(self) -> dict[int, tuple[int | None, int | None]]:
        """Return when sessions began and ended, in milliseconds: those of groups, and of others
        some that expired. None means unknown, or not yet."""
        found = {session: times for of in self._expiries.values() for session, times in of.items()}
        of_groups = {row.session: (row.time_ms, row.ended_ms) for row in self.tables.sessions}
        return {one: (begin or None, end) for one, (begin, end) in (found | of_groups).items()}

    def groups(self) -> Iterator[tuple[str, str]]:
        """Yield the chroot and the name of each group that has appeared."""
        yield from self._groups


def _set_topic(topics: dict[str, bytes | None], name: str, data: bytes | None) -> None:
    """Set a topic's payload; None removes the topic."""
    if data is None:
        topics.pop(name, None)
    else:
        topics[name] = data
