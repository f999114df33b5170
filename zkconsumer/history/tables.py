"""The tables that describe what happened to groups, as rows with typed columns.

Times are milliseconds since the epoch by the leader's wall clock. Each row has the zxid and the
time at which its event begins, and the file that contains it. `ended_ms` is None for an event that
has not ended. `host`, `port` and `user` are those of the session's client at that time, or of its
last connection in the table of sessions; None if they are unknown (`history.clients`). Commits and
incidents name their store: those in Kafka have no zxid, and their time is that of the broker.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Final, NamedTuple, Protocol, TypeVar, get_type_hints

from zkconsumer.history.transactions import KINDS, VERSIONED, Row

ZOOKEEPER: Final = "zookeeper"
KAFKA: Final = "kafka"


class SessionClient(NamedTuple):
    """The client of a session at some time; None for what is unknown."""

    host: str | None = None
    port: int | None = None
    user: str | None = None

    def __str__(self) -> str:
        """Return `HOST:PORT, user NAME` as far as it is known; "" if nothing is known."""
        host = self.host if self.host is None or ":" not in self.host else f"[{self.host}]"
        address = host if host is None or self.port is None else f"{host}:{self.port}"
        return ", ".join(filter(None, (address, self.user and f"user {self.user}")))


UNKNOWN: Final = SessionClient()


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Event:
    """The fields of every row: the time, the transaction and the file in which its event begins.

    `zxid` is 0 for an event in Kafka.
    """

    zxid: int
    time_ms: int
    file: str

    # All tables share these two methods: each command that reads a history imports the tables, and
    # a class takes half the time if `dataclass` does not generate them.

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and as_values(self) == as_values(other)

    __hash__ = None  # type: ignore[assignment]  # a row changes

    def __repr__(self) -> str:
        values = zip(_NAMES[type(self)], as_values(self), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={one!r}' for name, one in values)})"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Transaction(Event):
    """One operation, as ZooKeeper's log has it."""

    session: int
    cxid: int
    kind: str
    part: int | None
    path: str | None
    data: bytes | None
    version: int | None
    ephemeral: bool | None
    timeout_ms: int | None
    ttl_ms: int | None
    error: int | None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Session(Event):
    """A session that a group's member, tool or other client used.

    Attributes:
        ended: `closed` by its client, `expired`, or empty while it lasts.
        silent_ms: the time from the session's last write to its end. Reads and heartbeats are not
            logged, so the client may have been in contact for longer.
        consumers: the consumer ids that registered with it.
    """

    session: int
    timeout_ms: int | None
    ended: str = ""
    ended_ms: int | None = None
    ended_zxid: int | None = None
    silent_ms: int | None = None
    consumers: list[str] = field(default_factory=list)
    host: str | None = None
    port: int | None = None
    user: str | None = None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Member(Event):
    """A change of a registration.

    Attributes:
        event: `present` in the snapshot, `joined`, `changed` its registration, `left`, `expired`,
            or `removed` by another session.
        registration: the payload as text.
        unreadable: why no member can read the registration; "" if it is readable.
    """

    chroot: str
    group: str
    consumer: str
    session: int
    event: str
    registration: str
    unreadable: str
    host: str | None = None
    port: int | None = None
    user: str | None = None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Ownership(Event):
    """An interval in which a thread owned a partition.

    Attributes:
        czxid: the zxid of the owner znode's creation; as a fencing token, it is higher for a later
            owner.
        gap_ms: the time without an owner since the previous one; None for the first owner.
        ended: `released` by its owner, `closed` or `expired` with its session, `removed` by another
            session, or empty while it lasts.
    """

    chroot: str
    group: str
    topic: str
    partition: int
    thread: str
    consumer: str
    session: int
    czxid: int
    gap_ms: int | None
    ended: str = ""
    ended_ms: int | None = None
    ended_zxid: int | None = None
    host: str | None = None
    port: int | None = None
    user: str | None = None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Rebalance(Event):
    """A rebalance, from its first trigger until the owners equal the assignment, or until the next
    one.

    Attributes:
        triggers: the change that began the rebalance, and further changes before its end, one text
            each.
        released, claimed: owner znodes deleted and created; `first_release_ms` and the other `_ms`
            are times.
        refused: session (hexadecimal) -> refused writes. The log names neither path nor operation.
        settled_ms: when the owners equalled the assignment of the release's assignor; None if they
            never did.
        why: the rules that the owners follow, or why the group did not settle.
        unowned_s: partition-seconds without an owner.
        moved: number of partitions whose previous owner was another member.
        moved_without_need: those of `moved` whose old and new owners were members during the whole
            rebalance.
    """

    chroot: str
    group: str
    triggers: list[str]
    members: int = 0
    partitions: int = 0
    released: int = 0
    claimed: int = 0
    first_release_ms: int | None = None
    last_claim_ms: int | None = None
    refused: dict[str, int] = field(default_factory=dict)
    settled_ms: int | None = None
    ended_ms: int | None = None
    why: str = ""
    unowned_s: float = 0.0
    moved: int = 0
    moved_without_need: int = 0


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Commits(Event):
    """Commits of one partition by one session, until another session writes or the offset moves
    back.

    Attributes:
        session: the session that wrote; for a commit in Kafka, the session that owned the partition
            in ZooKeeper then, or None.
        begins: `first` seen, `session` changed, `moved back`, or `edit` by an operator's tool. In
            Kafka `member` instead of `session`.
        by: the consumer id of the session; empty for a tool. In Kafka the member to which the
            partition was assigned, or the consumer that owned it in ZooKeeper.
        late: another session owned the partition when this session committed.
        longest_pause_ms: the longest time between two commits of the run.
        store: `zookeeper` or `kafka`.
        place: in Kafka, the offset of the first commit in its partition of `__consumer_offsets`.
    """

    chroot: str
    group: str
    topic: str
    partition: int
    session: int | None
    by: str
    begins: str
    late: bool
    before: int | None
    first: int
    last: int
    count: int = 1
    last_ms: int = 0
    last_zxid: int = 0
    longest_pause_ms: int = 0
    host: str | None = None
    port: int | None = None
    user: str | None = None
    store: str = ZOOKEEPER
    place: int | None = None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Incident(Event):
    """An incident that an operator should know about.

    Attributes:
        kind: a word for programs; `incidents` documents them.
        what: one sentence.
        evidence: further facts, one text each.
        session: the session that the incident is about; None if there is not exactly one.
        store: `zookeeper` or `kafka`.
    """

    chroot: str
    group: str
    kind: str
    what: str
    ended_ms: int | None = None
    evidence: list[str] = field(default_factory=list)
    session: int | None = None
    host: str | None = None
    port: int | None = None
    user: str | None = None
    store: str = ZOOKEEPER


TABLES: dict[str, type[Event]] = {
    "transactions": Transaction,
    "sessions": Session,
    "members": Member,
    "ownership": Ownership,
    "rebalances": Rebalance,
    "commits": Commits,
    "incidents": Incident,
}
"""Name of a table -> the class of its rows."""

_NAMES = {table: tuple(one.name for one in fields(table)) for table in TABLES.values()}


@dataclass
class Tables:
    """The rows of all tables except `transactions`; the function `transaction` makes those one by
    one.
    """

    sessions: list[Session] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    ownership: list[Ownership] = field(default_factory=list)
    rebalances: list[Rebalance] = field(default_factory=list)
    commits: list[Commits] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)


def columns_of(table: type[Event]) -> dict[str, object]:
    """Return the columns of a table with their Python types."""
    hints = get_type_hints(table)
    return {one.name: hints[one.name] for one in fields(table)}


def as_values(row: Event) -> list[object]:
    """Return the values of a row, in the order of its columns."""
    return [getattr(row, name) for name in _NAMES[type(row)]]


def as_dict(row: Event) -> dict[str, object]:
    """Return a row as a dictionary. A time before the logs is unknown, and not the year 1970."""
    found = dict(zip(_NAMES[type(row)], as_values(row), strict=True))
    unknown = [] if found["time_ms"] else ["time_ms"]
    if found.get("store") == KAFKA:
        unknown += [name for name in ("zxid", "last_zxid") if name in found]
    return {**found, **dict.fromkeys(unknown)} if unknown else found


def as_columns(rows: Sequence[Event], table: type[Event]) -> dict[str, list[object]]:
    """Return rows of one table as the values of each column, which are those of `as_dict`."""
    found = {name: list(map(attrgetter(name), rows)) for name in _NAMES[table]}
    found["time_ms"] = [one or None for one in found["time_ms"]]
    if "store" in found:
        stores = found["store"]
        for name in ("zxid", "last_zxid"):
            if name in found:
                pairs = zip(found[name], stores, strict=True)
                found[name] = [None if store == KAFKA else one for one, store in pairs]
    return found


class Timed(Protocol):
    """A row or a line with a time and a store."""

    @property
    def time_ms(self) -> int: ...
    @property
    def store(self) -> str: ...


P = TypeVar("P", bound=Timed)


def in_order(rows: Sequence[P]) -> list[P]:
    """Return rows of both stores in one order: those of ZooKeeper stay in their order, and those of
    Kafka come in by their times."""
    zookeeper = [row for row in rows if row.store != KAFKA]
    kafka = sorted((row for row in rows if row.store == KAFKA), key=_time_ms)
    return list(heapq.merge(zookeeper, kafka, key=_time_ms)) if kafka else zookeeper


def _time_ms(row: Timed) -> int:
    return row.time_ms


def transaction(row: Row, file: str) -> Transaction:
    """Return a decoded row as a row of the table `transactions`."""
    kind = KINDS[row.kind]
    return Transaction(
        zxid=row.zxid,
        time_ms=row.time_ms,
        file=file,
        session=row.session,
        cxid=row.cxid,
        kind=kind,
        part=None if row.part < 0 else row.part,
        path=row.path,
        data=row.data if kind != "closeSession" else None,
        version=row.version if row.kind in VERSIONED else None,
        ephemeral=bool(row.number) if kind in ("create", "create2") else None,
        timeout_ms=row.number if kind == "createSession" else None,
        ttl_ms=row.number if kind == "createTTL" else None,
        error=row.number if kind in ("error", "multi") else None,
    )
