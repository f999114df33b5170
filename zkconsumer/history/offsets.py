"""The offsets of groups at a moment of the past, or before an edit, from ZooKeeper's files.

    past = read_past(find_servers(["/var/lib/zookeeper"]), Point(Choice.TIME, at_ms), chroot="")

The offset in effect at a moment is what the last write before this moment stored. Files may lack
transactions: logs begin when the server deleted older ones, and a log may be missing or damaged. A
snapshot after such a gap shows which znodes have not been written since. If no file shows the
offset of a partition, it is unknown, and the reason is returned instead.

The time of a transaction is the wall clock of the leader that wrote it. The moment of a time is
before the first transaction with a later time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from zkconsumer.errors import ConfigError, HistoryError, RefusedError, first_few
from zkconsumer.frozen import dataclass
from zkconsumer.history import transactions as tx
from zkconsumer.history.clients import Clients, Lifetimes
from zkconsumer.history.inputs import History, Problem, Server, has_between, zxid_of
from zkconsumer.history.logs import LogSource
from zkconsumer.history.saved_tables import SavedTransactions
from zkconsumer.history.snapshots import Tree, Znode, read_snapshot
from zkconsumer.history.tables import UNKNOWN, SessionClient
from zkconsumer.history.transactions import RowTuple
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition, is_session, session_text
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.requests import Right
from zkconsumer.times import time_text

_CREATES: Final = frozenset({tx.CREATE, tx.CREATE2, tx.CREATE_CONTAINER, tx.CREATE_TTL})
_DELETES: Final = frozenset({tx.DELETE, tx.DELETE_CONTAINER})
_WRITES: Final = frozenset({*_CREATES, *_DELETES, tx.SET_DATA, tx.SET_ACL})
_GROUPS: Final = f"{paths.CONSUMERS}/"
_FIRST_OF_ENSEMBLE: Final = 0x1_0000_0001


class Choice(Enum):
    """How the offsets are chosen."""

    TIME = "at"  # those in effect at a time: milliseconds since 1970
    ZXID = "before-zxid"  # those in effect before a transaction
    SESSION = "undo-session"  # those that a session overwrote or deleted
    TOOL = "undo-tool"  # those that the last edit by zkconsumer's tools overwrote or deleted


class Point(NamedTuple):
    """A choice, and its value: a time in milliseconds, a zxid, a session, or 0."""

    choice: Choice
    value: int = 0


class Written(NamedTuple):
    """A znode as its last write left it.

    Attributes:
        time_ms, session: of the write; None if the logs that were kept do not contain it.
        consumer: the consumer id that the session registered in this group; "" if none is known.
        plan: the hash of the plan, if an operator's tool of zkconsumer wrote it; else "".
        acl: the access control list; None if it is unknown.
        client: the client of the session, if files about clients show it (`name_writers`).
    """

    data: bytes | None
    zxid: int
    time_ms: int | None = None
    session: int | None = None
    consumer: str = ""
    plan: str = ""
    acl: tuple[Right, ...] | None = None
    client: SessionClient = UNKNOWN


Source: TypeAlias = Sequence[Server] | SavedTransactions
"""Where the transactions are: the files of servers, or tables that a pipeline has made of them."""

Past = Written | str | None
"""The offset in effect: the write, None if there was no offset, or why it is unknown."""


@dataclass(frozen=True)
class PastOffsets:
    """Offsets of groups as they were.

    Attributes:
        offsets: group -> partition -> the offset in effect. With `Choice.SESSION` and `Choice.TOOL`
            only the partitions that the edit concerns.
        rights: path below the chroot -> access control list, of the znodes that existed then.
        zxid, time_ms: the last transaction before the moment; with `Choice.SESSION` and
            `Choice.TOOL` the last transaction of the edit. `time_ms` is None if it is unknown.
        plan, session: the edit; "" and None if a moment was chosen.
        editor: the client of the edit's session, if files about clients show it.
        ends: whether the files end before the moment.
        created: path below the chroot -> zxid of the creation, of the znodes of topics.
        from_ms, until_ms: the times of the first and of the last transaction that was read.
        problems: gaps, damage and contradictions of the files.
        lifetimes: session -> when it began and ended, in milliseconds; None if unknown.
    """

    offsets: Mapping[str, Mapping[TopicPartition, Past]]
    rights: Mapping[str, tuple[Right, ...]]
    zxid: int
    time_ms: int | None
    plan: str
    session: int | None
    ends: bool
    created: Mapping[str, int]
    from_ms: int
    until_ms: int
    problems: tuple[Problem, ...]
    lifetimes: Lifetimes = field(default_factory=dict)
    editor: SessionClient = UNKNOWN

    @property
    def is_edit(self) -> bool:
        """Whether an edit was chosen, and not a moment."""
        return self.session is not None


class KafkaCommit(NamedTuple):
    """A commit in Kafka.

    Attributes:
        time_ms: when it took effect, by the broker's clock.
        member, host: the member that the partition was assigned to then; "" if it is unknown, or if
            the group has no members of Kafka's own protocol.
        place: the offset of its record in its partition of `__consumer_offsets`.
    """

    offset: int
    metadata: str
    time_ms: int
    member: str
    host: str
    place: int
    file: str


@dataclass(frozen=True)
class PastKafkaOffsets:
    """The offsets of groups in Kafka as they were.

    Attributes:
        at_ms: the moment.
        offsets: group -> partition -> the offset in effect; partitions without one are left out.
        ended: group -> the partitions whose log ends before the moment, so that later commits may
            be missing.
        from_ms, until_ms: the times of the first and of the last record that was read; 0 if there
            is none.
        problems: losses and damage of the files.
    """

    at_ms: int
    offsets: Mapping[str, Mapping[TopicPartition, KafkaCommit | str]]
    ended: Mapping[str, frozenset[TopicPartition]]
    from_ms: int
    until_ms: int
    problems: tuple[Problem, ...]


def writers_of(past: PastOffsets) -> set[int]:
    """Return the sessions that wrote the offsets, and that of the edit."""
    found = {
        one.session
        for of in past.offsets.values()
        for one in of.values()
        if isinstance(one, Written) and one.session is not None
    }
    return found if past.session is None else {*found, past.session}


def name_writers(past: PastOffsets, clients: Clients) -> PastOffsets:
    """Return the offsets with the client of each write."""

    def named(one: Past) -> Past:
        if not isinstance(one, Written):
            return one
        return one._replace(client=clients.at(one.session, one.time_ms or 0))

    offsets = {
        group: {tp: named(one) for tp, one in of.items()} for group, of in past.offsets.items()
    }
    return replace(past, offsets=offsets, editor=clients.at(past.session, past.time_ms or 0))


def read_past(
    source: Source,
    point: Point,
    *,
    chroot: str = "",
    groups: Collection[str] = (),
    on_progress: Callable[[int], None] = lambda rows: None,
) -> PastOffsets:
    """Read the offsets below a chroot from the files of servers, or from saved tables.

    Args:
        groups: the groups to read; an empty collection means all groups.
        on_progress: called with the number of operations read so far.

    Raises:
        RefusedError: the logs begin after the moment, or end before the transaction.
        ConfigError: the files contain no such group, session or edit.
    """
    replay = _Replay(source, point, chroot, frozenset(groups))
    replay.read(on_progress)
    return replay.result()


# ---- parts ---------------------------------------------------------------------------------------


class _Doubt(NamedTuple):
    """A znode that may have been written in a gap of the logs.

    Attributes:
        last: its last known write; None if no write is known.
        first, end: the moment is after the transaction `first`, and not after `end`. They are equal
            unless the moment is within a gap.
        gap: the last transaction of the gap before the moment. The logs contain each transaction
            from there to `read`, and none of those up to the moment writes the znode.
        read: a transaction after the moment, or `end`.
        existed: whether the znode existed, by the first operation on it after the moment; None if
            there is none up to `read`.
    """

    last: Written | None
    first: int
    end: int
    gap: int
    read: int
    existed: bool | None


@dataclass
class _Edit:
    """The writes of a session or of a plan.

    Attributes:
        plan: the hash of the plan; "" for a session.
        before: path -> the znode before the first of the writes.
        zxid, time_ms, session: of the last of the writes.
    """

    plan: str = ""
    before: dict[str, Written | _Doubt | None] = field(default_factory=dict)
    zxid: int = 0
    time_ms: int = 0
    session: int | None = None


class _Replay:
    """Replays transactions on the znodes of groups up to a moment."""

    def __init__(
        self,
        source: Source,
        point: Point,
        chroot: str,
        groups: frozenset[str],
    ) -> None:
        servers = [] if isinstance(source, SavedTransactions) else source
        self._servers, self._point, self._groups = servers, point, groups
        self._name = source.name if isinstance(source, SavedTransactions) else source[0].name
        self._chroot = chroot
        self._root, self._brokers = chroot + paths.CONSUMERS, chroot + paths.BROKERS
        self._history = source if isinstance(source, SavedTransactions) else History(servers)
        self._snapshots = sorted((s for one in servers for s in one.snapshots), key=zxid_of)
        self._trees: dict[str, Tree | None] = {}  # name of a snapshot -> its tree, if readable
        self._znodes: dict[str, Written] = {}
        self._deleted: dict[str, int] = {}  # path -> zxid
        self._consumers: dict[int, dict[str, str]] = {}  # session -> group -> consumer id
        self._ephemerals: dict[int, set[str]] = {}  # session -> the paths that end with it
        self._lifetimes: dict[int, tuple[int | None, int | None]] = {}
        self._created: dict[str, int] = {}
        self._edit = _Edit()
        self._gap = -1  # the last transaction before the present one that may be missing
        self._first = self._zxid = 0
        self._end = 0  # the last transaction that may precede the moment, if it is in a gap
        self._read = 0  # the last transaction after the moment up to which none is missing
        self._from_ms = self._time_ms = 0
        self._until_ms = 0
        self._is_over = False  # whether the moment has been reached
        self._is_cut = False  # whether transactions after it are missing
        self._later: dict[str, bool] = {}  # path -> whether it existed at the moment
        self._maybe: set[str] = set()  # the paths that may have existed at the moment
        self._there: set[str] = set()  # the groups in the files
        self._elsewhere: set[str] = set()  # the chroots of other groups in the files

    # ---- reading -----------------------------------------------------------------------------

    def read(self, on_progress: Callable[[int], None]) -> None:
        """Read to the moment, and beyond it as long as later transactions tell more about it."""
        self._begin()
        count = 0
        for batch in self._history.batches():
            rows = batch.tuples
            self._from_ms = self._from_ms or rows[0][1]
            self._apply(rows)
            if self._is_over and not self._needs(batch.last[0]):
                return
            count += len(rows)
            on_progress(count)
        if not self._is_over:
            self._end_of_logs()

    def _end_of_logs(self) -> None:
        """Record what may be missing between the end of the logs and the moment."""
        if self._is_damaged():
            self._gap = self._zxid
        newest = max(map(zxid_of, self._snapshots), default=0)
        if newest > self._zxid and self._point.choice is Choice.TIME:
            # The servers wrote transactions after the end of the last log that is there.
            self._gap = self._end = newest

    def _begin(self) -> None:
        """Begin with the last readable snapshot before the first log."""
        first = min((zxid_of(log) for one in self._servers for log in one.logs), default=1)
        for source in reversed(self._snapshots):
            if zxid_of(source) < first and (tree := self._tree(source)) is not None:
                self._adopt(tree)
                return

    def _adopt(self, tree: Tree) -> None:
        """Begin with the tree of a snapshot, which may contain later transactions."""
        self._zxid = self._gap = tree.zxid
        for path, znode in tree.znodes.items():
            if path.startswith(self._brokers):
                self._created[path] = znode.czxid
            parts = self._parts(path)
            if parts is None:
                continue
            if _is_registration(parts) and is_session(znode.owner):
                self._consumers.setdefault(znode.owner, {})[parts[0]] = parts[2]
            elif _is_kept(parts) and znode.mzxid <= tree.zxid:
                self._znodes[path] = _of_snapshot(tree, znode)
                if is_session(znode.owner):
                    self._ephemerals.setdefault(znode.owner, set()).add(path)

    def _apply(self, rows: Sequence[RowTuple]) -> None:
        """Apply transactions in their order, up to the moment; after it, note what existed."""
        plans = dict[str, str]()
        for at, row in enumerate(rows):
            zxid, time_ms, _, _, kind, part, path, *_ = row
            if self._is_over or (zxid != self._zxid and self._begins_after(zxid, time_ms)):
                self._until_ms = time_ms
                self._note_later(kind, path, is_whole=self._is_over_whole(zxid))
                continue
            if zxid != self._zxid:
                if self._lacks_between(self._zxid, zxid):
                    self._gap = zxid - 1
                self._first = self._first or zxid
                self._zxid = zxid
                self._time_ms = self._until_ms = time_ms
            if part <= 0:
                plans = self._plans(rows, at) if part == 0 else {}
            if path is None:
                self._session(row)
            elif kind in _WRITES:
                self._change(row, path, plans)

    def _begins_after(self, zxid: int, time_ms: int) -> bool:
        """Return whether a transaction is the first one after the moment."""
        choice, value = self._point
        self._is_over = (choice is Choice.TIME and time_ms > value) or (
            choice is Choice.ZXID and zxid >= value
        )
        if self._is_over:
            self._read = self._zxid
            if self._lacks_between(self._zxid, zxid):
                self._stop_in_gap(zxid)
        return self._is_over

    def _is_over_whole(self, zxid: int) -> bool:
        """Return whether no transaction is missing between the moment and this one."""
        if not self._is_cut and zxid != self._read:
            self._is_cut = self._lacks_between(self._read, zxid)
            self._read = self._read if self._is_cut else zxid
        return not self._is_cut

    def _session(self, row: RowTuple) -> None:
        """Note when a session began, or end it with its ephemeral znodes."""
        zxid, time_ms, session, _, kind, *_ = row
        if kind == tx.CREATE_SESSION:
            self._lifetimes[session] = (time_ms, None)
        elif kind == tx.CLOSE_SESSION:
            begin = self._lifetimes.get(session, (None, None))[0]
            self._lifetimes[session] = (begin, time_ms)
            self._consumers.pop(session, None)
            for path in self._ephemerals.pop(session, ()):
                self._znodes.pop(path, None)
                self._deleted[path] = zxid

    def _lacks_between(self, last: int, zxid: int) -> bool:
        """Return whether transactions between two are missing.

        The first transaction of a new leader (epoch) may follow any other, unless the name of a
        snapshot shows a transaction between them. Nothing precedes the first transaction of a
        single server (epoch 0) or of an ensemble (epoch 1).
        """
        if last == 0:
            return zxid not in (1, _FIRST_OF_ENSEMBLE)
        if last >> 32 == zxid >> 32:
            return zxid > last + 1
        is_shown = has_between(self._snapshots, last, zxid)
        return zxid & 0xFFFF_FFFF > 1 or is_shown or self._is_damaged()

    def _stop_in_gap(self, zxid: int) -> None:
        """Record that the moment is in a gap, which ends before the transaction `zxid`.

        It is unknown which transactions of the gap precede a time.
        """
        choice, value = self._point
        if choice is Choice.TIME:
            self._gap = self._end = zxid - 1
            self._is_cut = True
        elif value > self._zxid + 1:
            self._gap = self._zxid = self._read = value - 1
            self._is_cut = zxid != value

    def _is_damaged(self) -> bool:
        """Return whether the only server's log could not be read from here on."""
        return len(self._servers) == 1 and any(
            one.kind in ("damaged", "unreadable") and one.zxid == self._zxid
            for one in self._history.problems
        )

    def _plans(self, rows: Sequence[RowTuple], first: int) -> dict[str, str]:
        """Return group -> the hash of the plan, from the edit marks of a transaction."""
        zxid, found = rows[first][0], {}
        for at in range(first, len(rows)):
            row = rows[at]
            if row[0] != zxid:
                break
            parts = self._parts(row[6]) if row[6] and row[4] in _CREATES else None
            if parts and len(parts) == 3 and parts[1] == "edits":
                found[parts[0]] = (row[7] or b"").decode(errors="replace")
        return found

    # ---- one operation -----------------------------------------------------------------------

    def _parts(self, path: str) -> list[str] | None:
        """Return the parts of a path below `consumers`; None for any other path, and for the groups
        that are not read."""
        if not path.startswith(self._root):
            if _GROUPS in path:
                self._elsewhere.add(path.partition(_GROUPS)[0])
            return None
        below = path[len(self._root) :]
        if not below:
            return []
        if below[0] != "/":
            return None
        parts = below[1:].split("/")
        if len(parts) == 4:
            self._there.add(parts[0])
        return None if self._groups and parts[0] not in self._groups else parts

    def _change(self, row: RowTuple, path: str, plans: Mapping[str, str]) -> None:
        zxid, time_ms, session, _, kind, _, _, data, _, number, acl = row
        if path.startswith(self._brokers) and kind in _CREATES:
            self._created[path] = zxid
        parts = self._parts(path)
        if parts is None:
            return
        if _is_registration(parts) and kind in _CREATES and number == 1:
            self._consumers.setdefault(session, {})[parts[0]] = parts[2]
        if not _is_kept(parts):
            return
        group = parts[0] if parts else ""
        plan = plans.get(group, "")
        self._note_edit(path, session, plan, existed=kind not in _CREATES)
        if parts and self._lacks_root and self._gap < 0:
            self._gap = _FIRST_OF_ENSEMBLE - 1
        old = self._znodes.get(path)
        if kind in _DELETES:
            self._znodes.pop(path, None)
            self._deleted[path] = zxid
            self._ephemerals.get(session, set()).discard(path)
        elif kind == tx.SET_ACL:
            if old is not None:
                self._znodes[path] = old._replace(acl=_rights(acl))
        else:
            consumer = self._consumers.get(session, {}).get(group, "")
            if kind in (tx.CREATE, tx.CREATE2) and number == 1:
                self._ephemerals.setdefault(session, set()).add(path)
            rights = _rights(acl) if kind in _CREATES else None if old is None else old.acl
            self._znodes[path] = Written(data, zxid, time_ms, session, consumer, plan, rights)

    @property
    def _lacks_root(self) -> bool:
        """Whether older transactions must have created the root of all groups: a single server
        wrote them before it became a server of an ensemble."""
        is_known = self._root in self._znodes or self._root in self._deleted
        return self._first == _FIRST_OF_ENSEMBLE and not is_known

    def _note_edit(self, path: str, session: int, plan: str, *, existed: bool) -> None:
        """Keep the state of a znode before the first write of the edit that is to be undone."""
        choice, value = self._point
        if choice is Choice.TOOL and plan:
            if plan != self._edit.plan:
                self._edit = _Edit(plan)
        elif choice is not Choice.SESSION or session != value:
            return
        if choice is Choice.TOOL and not plan:
            return
        if path not in self._edit.before:
            before = self._present(path)
            if isinstance(before, _Doubt):
                last = self._zxid - 1
                before = before._replace(first=last, end=last, read=self._zxid, existed=existed)
            self._edit.before[path] = before
        self._edit.zxid, self._edit.time_ms = self._zxid, self._time_ms
        self._edit.session = session

    def _note_later(self, kind: int, path: str | None, *, is_whole: bool) -> None:
        """Record whether a znode existed at the moment, by the first operation after it; if
        transactions between them are missing, whether it may have existed."""
        if path is not None and kind in _WRITES and self._gap >= 0:
            parts = self._parts(path)
            if parts is None or not _is_kept(parts):
                return
            if is_whole:
                self._later.setdefault(path, kind not in _CREATES)
            elif kind not in _CREATES:
                self._maybe.add(path)

    def _needs(self, zxid: int) -> bool:
        """Return whether the transactions after `zxid` tell more about the moment."""
        if self._gap < 0:
            return False
        tree = self._tree_after(self._gap)
        return tree is None or (zxid < tree.latest and not self._is_cut)

    # ---- znodes at the moment ----------------------------------------------------------------

    def _present(self, path: str) -> Written | _Doubt | None:
        """Return a znode after the last transaction that was applied."""
        last = self._znodes.get(path)
        known = last.zxid if last is not None else self._deleted.get(path, -1)
        if known > self._gap or self._gap < 0:
            return last
        first, end = self._zxid, max(self._zxid, self._end)
        return _Doubt(last, first, end, self._gap, max(end, self._read), self._later.get(path))

    def _settled(self, path: str, now: Written | _Doubt | None) -> Past:
        """Return a znode, from a snapshot if it may have been written in a gap of the logs."""
        if not isinstance(now, _Doubt):
            return now
        tree = self._tree_after(now.gap)
        znode = tree.znodes.get(path) if tree is not None else None
        if tree is not None and znode is not None and self._precedes(znode, now):
            is_known = now.last is not None and now.last.zxid == znode.mzxid
            return now.last if is_known else _of_snapshot(tree, znode)
        if now.first == now.end:
            if now.existed is False:
                return None
            is_absent = tree is not None and znode is None and tree.latest <= now.read
            if is_absent and now.existed is None:
                return None
        return "the logs lack transactions before the moment, which may have written it"

    def _precedes(self, znode: Znode, now: _Doubt) -> bool:
        """Return whether the last write of a znode, by a snapshot after a gap, was before the
        moment."""
        choice, value = self._point
        is_time = choice is Choice.TIME and now.first < znode.mzxid <= now.end
        return znode.mzxid <= now.first or (is_time and 0 < znode.mtime <= value)

    def _tree_after(self, gap: int) -> Tree | None:
        """Return the first readable snapshot after a gap."""
        for source in self._snapshots:
            if zxid_of(source) >= gap and (tree := self._tree(source)) is not None:
                return tree
        return None

    def _tree(self, source: LogSource) -> Tree | None:
        if source.name not in self._trees:
            try:
                self._trees[source.name] = read_snapshot(source)
            except HistoryError:
                self._trees[source.name] = None
        return self._trees[source.name]

    # ---- result ------------------------------------------------------------------------------

    def result(self) -> PastOffsets:
        """Return the offsets. Raises what `read_past` raises."""
        self._check()
        is_edit = self._point.choice in (Choice.SESSION, Choice.TOOL)
        if is_edit:
            touched = self._edit.before
        else:
            touched = {path: self._present(path) for path in self._all_paths()}
        then = {path: self._settled(path, one) for path, one in touched.items()}
        found: dict[str, dict[TopicPartition, Past]] = {}
        for path, past in sorted(then.items()):
            place = paths.locate(path[len(self._chroot) :])
            if place.kind is ZnodeKind.OFFSET and (is_edit or past is not None):
                tp = TopicPartition(place.name, place.partition)
                found.setdefault(place.group, {})[tp] = past
        if not found:
            raise self._nothing()
        rights = {
            path[len(self._chroot) :]: one.acl
            for path, one in (self._znodes | then).items()
            if isinstance(one, Written) and one.acl is not None
        }
        return PastOffsets(
            offsets=found,
            rights=rights,
            zxid=self._edit.zxid if is_edit else self._zxid,
            time_ms=(self._edit.time_ms if is_edit else self._time_ms) or None,
            plan=self._edit.plan,
            session=self._edit.session,
            ends=not self._is_over and not is_edit,
            created={path[len(self._chroot) :]: czxid for path, czxid in self._created.items()},
            from_ms=self._from_ms,
            until_ms=self._until_ms,
            problems=tuple(dict.fromkeys(self._history.problems)),
            lifetimes=self._lifetimes,
        )

    def _all_paths(self) -> set[str]:
        """Return the znodes that existed at the moment, or that may have existed."""
        found = {*self._znodes, *self._maybe}
        found.update(path for path, existed in self._later.items() if existed)
        found.update(path for path, zxid in self._deleted.items() if zxid <= self._gap)
        if self._gap >= 0 and (tree := self._tree_after(self._gap)) is not None:
            for path in tree.znodes:
                parts = self._parts(path)
                if parts is not None and _is_kept(parts):
                    found.add(path)
                    self._created.setdefault(path, tree.znodes[path].czxid)
        return found

    def _check(self) -> None:
        """Raise RefusedError if the moment is outside of the logs."""
        choice, value = self._point
        begin = time_text(self._from_ms or None)
        if not self._from_ms:
            raise RefusedError(
                "the files contain no transaction, so they do not show when an offset was written",
                where=self._name,
                remedy="give the server's dataLogDir too, or older logs",
            )
        if choice is Choice.TIME and value < self._from_ms:
            raise RefusedError(
                f"the logs begin at {begin}, after the moment {time_text(value)}",
                where=self._name,
                remedy=f"choose a moment from {begin} on, or add older logs (--data-dir)",
            )
        if choice is Choice.ZXID and not self._is_over and value > self._zxid + 1:
            raise RefusedError(
                f"the logs end with transaction 0x{self._zxid:x}, before 0x{value:x}",
                where=self._name,
                remedy="choose a transaction of these logs, or add later logs (--data-dir)",
            )
        if choice is Choice.ZXID and not self._time_ms:
            raise RefusedError(
                f"the logs begin at {begin}, with the transaction 0x{value:x} or after it",
                where=self._name,
                remedy="choose a later transaction, or add older logs (--data-dir)",
            )

    def _nothing(self) -> ConfigError:
        """Return the error for files without the offsets that are looked for."""
        choice, value = self._point
        where = self._chroot + paths.CONSUMERS
        of = f" of group {first_few(sorted(self._groups), 5)}" if self._groups else ""
        if choice is Choice.SESSION:
            what = f"session {session_text(value)} wrote no offset{of} in these logs"
            remedy = "`zkconsumer history show commits` lists the sessions that wrote offsets"
        elif choice is Choice.TOOL:
            what = f"no tool of zkconsumer has edited an offset{of} in these logs"
            remedy = (
                "to undo an edit by another program, give its session (--undo-session);"
                " `zkconsumer history show commits` lists the sessions that wrote offsets"
            )
        else:
            what = f"no offset{of} was committed at that moment"
            remedy = "choose a later moment; `zkconsumer history show commits` lists the commits"
        if not self._there & (self._groups or self._there):
            what = f"the files contain no offsets{of or ' of any group'} below this chroot"
            remedy = f"groups below it: {first_few(sorted(self._there), 10)}"
            if not self._there:
                others = first_few((one or "/" for one in sorted(self._elsewhere)), 5)
                remedy = f"there are groups below {others}" if others else "check the paths"
        return ConfigError(what, where=where, remedy=remedy)


def _is_registration(parts: Sequence[str]) -> bool:
    """Return whether the parts of a path below `consumers` are those of a registration."""
    return len(parts) == 3 and parts[1] == "ids"


def _is_kept(parts: Sequence[str]) -> bool:
    """Return whether a path below `consumers` is that of an offset, or of a parent of offsets."""
    return len(parts) < 2 or (parts[1] == "offsets" and len(parts) <= 4)


def _of_snapshot(tree: Tree, znode: Znode) -> Written:
    acl = tree.acls.get(znode.acl)
    rights = None if acl is None else tuple(Right(f"{s}:{who}", bits) for bits, s, who in acl)
    return Written(znode.data, znode.mzxid, znode.mtime or None, acl=rights)


def _rights(encoded: bytes | None) -> tuple[Right, ...] | None:
    if encoded is None:
        return None
    return tuple(Right(f"{scheme}:{who}", bits) for bits, scheme, who in tx.decode_acl(encoded))
