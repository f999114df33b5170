"""What happened to a group, determined by code that shares nothing with `zkconsumer.history`.

The writes come from the history of the simulator, or from a reader of ZooKeeper's logs that belongs
to the test suite. The claims, registrations and commits come from the members themselves.
`differences` compares all this with the tables. This module follows the definitions of
docs/history.md directly: it keeps the whole state after each transaction, and searches all states
for each question.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from zkconsumer.history.describe import Described
from zkconsumer.history.tables import Incident, Rebalance, Tables
from zkconsumer.member import events
from zkconsumer.member.events import Event
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import AssignmentFailure, GroupInput, assign_each_member
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import ZnodeKind, locate, locate_below_chroot
from zkconsumer.protocol.releases import DEFAULT, Profile, profile
from zkconsumer.sim.znodes import End, ZnodeChange

QUIET_MS, STUCK_MS, ORPHAN_MS, SILENCE_MS = 5_000, 10_000, 5_000, 60_000
STORM, STORM_MS, FLAP_MS = 5, 300_000, 600_000

OTHER_RULES = (
    (Strategy.RANGE, DEFAULT),
    (Strategy.ROUND_ROBIN, DEFAULT),
    (Strategy.ROUND_ROBIN, profile("1.1.1")),
)

Row = tuple[object, ...]


@dataclass(frozen=True)
class Moment:
    """A transaction: the changes, the refusal, or the beginning of a session."""

    zxid: int
    t_ms: int
    session: int
    changes: tuple[ZnodeChange, ...] = ()
    is_refused: bool = False


@dataclass
class MemberReports:
    """The events that members report, by the zxids in the replies that the members received."""

    claimed: set[tuple[str, TopicPartition, int]] = field(default_factory=set)
    registered: set[tuple[str, int]] = field(default_factory=set)
    sessions: dict[int, str] = field(default_factory=dict)
    committed: Counter[tuple[int, TopicPartition]] = field(default_factory=Counter)
    delivered: set[tuple[TopicPartition, int]] = field(default_factory=set)

    def add(self, consumer: str, session: int, event: Event) -> None:
        """Add what an event reports to the reports of the member with this session."""
        match event:
            case events.Connected(session=new):
                self.sessions[new.id] = consumer
            case events.Finished(outcome=events.Registered(czxid=czxid)) if czxid:
                self.registered.add((consumer, czxid))
            case events.Finished(outcome=events.Claimed(claimed=held)):
                self.claimed |= {(consumer, tp, mine.epoch) for tp, mine in held.items()}
            case events.Finished(outcome=events.Committed(versions=versions)):
                self.committed.update((session, tp) for tp in versions)

    def with_zxids(self, zxids: Mapping[int, int]) -> MemberReports:
        """Return these reports with their zxids replaced."""
        return replace(
            self,
            claimed={(who, tp, zxids[czxid]) for who, tp, czxid in self.claimed},
            registered={(who, zxids[czxid]) for who, czxid in self.registered},
        )


@dataclass(frozen=True)
class State:
    """The group after a transaction: its members and owners, and all topics."""

    zxid: int
    t_ms: int
    members: Mapping[str, bytes | None]
    owners: Mapping[TopicPartition, str]
    topics: Mapping[str, bytes | None]


@dataclass
class Interval:
    """The life of an owner znode, from its creation to its deletion."""

    tp: TopicPartition
    thread: str
    session: int
    czxid: int
    since_ms: int
    gap_ms: int | None
    ended: str = ""
    ended_zxid: int | None = None
    until_ms: int | None = None


@dataclass
class Run:
    """Successive commits of a partition by one session."""

    zxid: int
    tp: TopicPartition
    session: int
    begins: str
    late: bool
    before: int | None
    first: int
    last: int
    last_ms: int
    count: int = 1
    pause_ms: int = 0


class Truth:
    """The events of a group, derived from the transactions in their order."""

    def __init__(
        self,
        moments: Sequence[Moment],
        group: str,
        *,
        strategy: Strategy = Strategy.RANGE,
        rules: Profile = DEFAULT,
    ) -> None:
        self._rules = rules
        self.moments, self._group, self._strategy = moments, group, strategy
        self.states: list[State] = []
        self.members: list[tuple[Moment, str, int, str]] = []  # consumer, session, event
        self.intervals: list[Interval] = []
        self.runs: list[Run] = []
        self.deleted: list[int] = []
        self.used: set[int] = set()
        self.ends: dict[int, tuple[str, int]] = {}
        self._sessions: dict[str, int] = {}
        self._open: dict[TopicPartition, Interval] = {}
        self._last: dict[TopicPartition, Run] = {}
        self._had: dict[TopicPartition, set[int]] = defaultdict(set)
        self._lost: dict[TopicPartition, int] = {}
        self._now = State(0, 0, {}, {}, {})
        for moment in moments:
            self._take(moment)
        self.until_ms = moments[-1].t_ms if moments else 0

    # ---- states --------------------------------------------------------------------------------

    def _take(self, moment: Moment) -> None:
        before = self._now
        edited = any(_is_mark(change, self._group) for change in moment.changes)
        for change in moment.changes:
            at = locate(change.path)
            if isinstance(change.write, End) and not change.path:
                ended = "expired" if change.write is End.EXPIRED else "closed"
                self.ends[change.session] = ended, moment.zxid
            elif at.kind is ZnodeKind.TOPIC:
                self._now = replace(self._now, topics=_with(before.topics, at.name, change))
            elif at.group != self._group:
                continue
            elif at.kind is ZnodeKind.MEMBER:
                self._member(moment, change, at.name)
            elif at.kind is ZnodeKind.OWNER:
                self._owner(moment, change, TopicPartition(at.name, at.partition))
            elif at.kind is ZnodeKind.OFFSET:
                self._offset(moment, change, TopicPartition(at.name, at.partition), edited=edited)
            # A transaction of several changes causes one state for each change.
            if self._now is not before:
                self._now = replace(self._now, zxid=moment.zxid, t_ms=moment.t_ms)
                self.states.append(self._now)
                before = self._now

    def _member(self, moment: Moment, change: ZnodeChange, name: str) -> None:
        if change.old is None:
            self._sessions[name] = change.session
        session = self._sessions[name]
        self.members.append((moment, name, session, _event(change, session)))
        self.used.add(session)
        self._now = replace(self._now, members=_with(self._now.members, name, change))

    def _owner(self, moment: Moment, change: ZnodeChange, tp: TopicPartition) -> None:
        owners = dict(self._now.owners)
        if change.new is None:
            one = self._open.pop(tp)
            one.ended, one.until_ms, one.ended_zxid = (
                _end(change, one.session),
                moment.t_ms,
                moment.zxid,
            )
            self._lost[tp] = moment.t_ms
            del owners[tp]
        elif change.old is None:
            lost = self._lost.get(tp)
            gap = None if lost is None else moment.t_ms - lost
            thread, session = (change.new.data or b"").decode(), change.new.stat.owner
            one = Interval(tp, thread, session, moment.zxid, moment.t_ms, gap)
            self._open[tp] = one
            self._had[tp].add(session)
            self.used.add(session)
            self.intervals.append(one)
            owners[tp] = thread
        self._now = replace(self._now, owners=owners)

    def _offset(
        self, moment: Moment, change: ZnodeChange, tp: TopicPartition, *, edited: bool
    ) -> None:
        if change.new is None:
            self.deleted.append(moment.zxid)
            self._last.pop(tp, None)
            return
        text = (change.new.data or b"").decode(errors="replace")
        if not text.removeprefix("-").isdigit():
            return
        offset, last, owner = int(text), self._last.get(tp), self._open.get(tp)
        self.used.add(change.session)
        late = (
            owner is not None
            and owner.session != change.session
            and change.session in self._had[tp]
        )
        begins = (
            "first"
            if last is None
            else "edit"
            if edited
            else "session"
            if last.session != change.session
            else "moved back"
            if offset < last.last
            else "session"
            if last.late != late
            else ""
        )
        if edited:
            begins = "edit"
        if last is not None and not begins:
            last.pause_ms = max(last.pause_ms, moment.t_ms - last.last_ms)
            last.last, last.last_ms, last.count = offset, moment.t_ms, last.count + 1
            return
        before = None if last is None else last.last
        run = Run(
            moment.zxid, tp, change.session, begins, late, before, offset, offset, moment.t_ms
        )
        self._last[tp] = run
        self.runs.append(run)

    def wanted(
        self, state: State, strategy: Strategy | None = None, rules: Profile | None = None
    ) -> dict[TopicPartition, str] | None:
        """Return the assignment that the members compute; None if a member cannot compute it."""
        strategy = strategy or self._strategy
        given = GroupInput(strategy, dict(sorted(state.members.items())), state.topics)
        found: dict[TopicPartition, str] = {}
        for part in assign_each_member(given, rules or self._rules).values():
            if isinstance(part, AssignmentFailure):
                return None
            found |= part
        return found

    # ---- incidents -----------------------------------------------------------------------------

    def incidents(self) -> Iterator[Row]:
        """Yield the kind of each incident, and the values that identify the incident."""
        yield from (("offset deleted", zxid) for zxid in self.deleted)
        for run in self.runs:
            if run.late:
                yield "late commit", run.zxid
            if run.before is not None and run.first < run.before and run.begins != "edit":
                yield "offset moved back", run.zxid
        for before, after in pairwise(self.moments):
            if before.zxid >> 32 != after.zxid >> 32:
                yield "new leader", after.zxid
        yield from self._storms()
        yield from self._flapping()
        yield from self._orphans()
        yield from self._stuck()
        yield from self._stopped()

    def _storms(self) -> Iterator[Row]:
        known: set[str] = set()
        changes = []
        for moment, name, _, _ in self.members:
            if name in known:
                changes.append(moment)
            known.add(name)
        while len(changes) >= STORM:
            if changes[STORM - 1].t_ms - changes[0].t_ms > STORM_MS:
                changes = changes[1:]
                continue
            yield "rebalance storm", changes[0].zxid
            last, changes = changes[STORM - 1], changes[STORM:]
            while changes and changes[0].t_ms - last.t_ms < STORM_MS // STORM:
                last, changes = changes[0], changes[1:]

    def _flapping(self) -> Iterator[Row]:
        for name in {name for _, name, _, _ in self.members}:
            expired = [m for m, one, _, event in self.members if (one, event) == (name, "expired")]
            near = [a for a, b in pairwise(expired) if b.t_ms - a.t_ms <= FLAP_MS]
            if near:
                yield "flapping session", near[0].zxid

    def _spans(self) -> Iterator[tuple[State, int]]:
        """Yield each state of the group that lasted, and the time at which it ended.

        A change of topics begins a new state only if it changes the assignment.
        """
        states: list[State] = []
        for state in self.states:
            last = states[-1] if states else None
            is_topic = last and (last.members, last.owners) == (state.members, state.owners)
            if not (is_topic and last and self.wanted(last) == self.wanted(state)):
                states.append(state)
        for state, after in pairwise(states):
            if after.t_ms > state.t_ms:
                yield state, after.t_ms
        if states:
            yield states[-1], self.until_ms

    def _orphans(self) -> Iterator[Row]:
        for one in self.intervals:
            until = self.until_ms if one.until_ms is None else one.until_ms
            consumer = one.thread.rpartition("-")[0]
            alone = sum(
                max(0, min(end, until) - max(state.t_ms, one.since_ms))
                for state, end in self._spans()
                if consumer not in state.members
            )
            if alone > ORPHAN_MS:
                yield "owner without a registration", one.czxid

    def _stuck(self) -> Iterator[Row]:
        """Yield the incidents that lasted while members, owners and topics did not change."""
        for state, end in self._spans():
            wanted = self.wanted(state) if end - state.t_ms >= STUCK_MS and state.members else None
            if not wanted:
                continue
            yield from _stuck_in(state, wanted)

    def unknowable(self) -> Iterator[Row]:
        """Yield the rows of `_stuck` that the logs cannot show.

        The logs do not name the assignor, and the owners before that state also fit another one.
        """
        excluded = set()
        for state, _ in self._spans():
            wanted = self.wanted(state)
            if not state.members or wanted is None:
                continue
            for other in OTHER_RULES:
                assigned = self.wanted(state, *other)
                if state.owners == wanted != assigned:
                    excluded.add(other)
                if assigned is not None and other not in excluded:
                    yield from set(_stuck_in(state, wanted)) - set(_stuck_in(state, assigned))

    def _stopped(self) -> Iterator[Row]:
        mine: dict[int, list[Run]] = defaultdict(list)
        for run in self.runs:
            mine[run.session].append(run)
        for session, runs in mine.items():
            owned = [one for one in self.intervals if one.session == session]
            others = [run.last_ms for run in self.runs if run.session != session]
            if not owned or not others or sum(run.count for run in runs) < 5:
                continue
            end = max(self.until_ms if one.until_ms is None else one.until_ms for one in owned)
            last = max(run.last_ms for run in runs)
            limit = max(SILENCE_MS, 10 * max(run.pause_ms for run in runs))
            if min(end, max(others)) - last > limit:
                yield "commits stopped", last


def _stuck_in(state: State, wanted: Mapping[TopicPartition, str]) -> Iterator[Row]:
    """Yield partitions that other members hold, and members that do not claim free partitions."""
    idle = set()
    for tp, thread in wanted.items():
        due, owner = thread.rpartition("-")[0], state.owners.get(tp, "").rpartition("-")[0]
        if not owner:
            idle.add(due)
        elif owner != due:
            yield "blocked partition", state.t_ms, f"{tp.topic}-{tp.partition}"
    for consumer in idle & state.members.keys():
        yield "member gave up", state.t_ms, consumer


def _with(
    before: Mapping[str, bytes | None], name: str, change: ZnodeChange
) -> dict[str, bytes | None]:
    after = dict(before)
    if change.new is None:
        after.pop(name, None)
    else:
        after[name] = change.new.data
    return after


def _is_mark(change: ZnodeChange, group: str) -> bool:
    at = locate_below_chroot(change.path)[1]
    is_new = change.old is None and change.new is not None
    return at.kind is ZnodeKind.EDITS and at.group == group and bool(at.name) and is_new


def _event(change: ZnodeChange, session: int) -> str:
    if change.new is not None:
        return "joined" if change.old is None else "changed"
    if change.write is End.EXPIRED:
        return "expired"
    return "left" if change.session == session else "removed"


def _end(change: ZnodeChange, session: int) -> str:
    if isinstance(change.write, End):
        return "expired" if change.write is End.EXPIRED else "closed"
    return "released" if change.session == session else "removed"


# ---- comparison ---------------------------------------------------------------------------------


@dataclass
class Differences:
    """The result: `missed` rows, which the tables lack, and `invented` rows, of no real event."""

    missed: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)

    def table(self, name: str, expected: Iterable[Row], found: Iterable[Row]) -> None:
        """Compare the rows of a table."""
        wanted, given = Counter(expected), Counter(found)
        self.compared[name] += wanted.total()
        self.missed += [f"{name}: {row}" for row in (wanted - given).elements()]
        self.invented += [f"{name}: {row}" for row in (given - wanted).elements()]

    def equal(self, name: str, expected: object, found: object) -> None:
        """Compare one value of a row: a wrong value is invented, and the right value is missed."""
        if expected != found:
            self.missed.append(f"{name}: {expected}")
            self.invented.append(f"{name}: {found}")


def differences(truth: Truth, found: Described, reports: MemberReports) -> Differences:
    """Compare all tables with the events of the group and with the members' reports."""
    tables, result = found.tables, Differences()
    result.invented += [f"problem: {one}" for one in found.problems]
    compare_rows(truth, tables, result)
    incidents = [incident(row) for row in tables.incidents]
    hidden = set(truth.unknowable()).difference(incidents)
    expected = [row for row in truth.incidents() if row not in hidden]
    result.table("incidents", expected, incidents)
    rows = Rebalances(truth, tables.rebalances, result)
    rows.compare()
    compare_members(reports, tables, result)
    return result


def compare_rows(truth: Truth, tables: Tables, result: Differences) -> None:
    """Compare sessions, members, ownership and commits."""
    result.table(
        "sessions",
        ((one, *truth.ends.get(one, ("", None))) for one in truth.used),
        ((one.session, one.ended, one.ended_zxid) for one in tables.sessions),
    )
    result.table(
        "members",
        ((m.zxid, m.t_ms, name, session, event) for m, name, session, event in truth.members),
        ((m.zxid, m.time_ms, m.consumer, m.session, m.event) for m in tables.members),
    )
    result.table(
        "ownership",
        (
            (o.tp, o.thread, o.session, o.czxid, o.gap_ms, o.ended, o.ended_zxid, o.until_ms)
            for o in truth.intervals
        ),
        (
            (
                TopicPartition(o.topic, o.partition),
                *(o.thread, o.session, o.czxid, o.gap_ms, o.ended, o.ended_zxid, o.ended_ms),
            )
            for o in tables.ownership
        ),
    )
    result.table(
        "commits",
        (
            (
                *(r.zxid, r.tp, r.session, r.begins, r.late, r.before),
                *(r.first, r.last, r.count, r.last_ms, r.pause_ms),
            )
            for r in truth.runs
        ),
        (
            (
                *(r.zxid, TopicPartition(r.topic, r.partition), r.session, r.begins, r.late),
                *(r.before, r.first, r.last, r.count, r.last_ms, r.longest_pause_ms),
            )
            for r in tables.commits
        ),
    )


def incident(row: Incident) -> Row:
    """Return the values that identify an incident."""
    if row.kind in ("member gave up", "blocked partition"):
        return row.kind, row.time_ms, row.what.split()[0]
    if row.kind == "commits stopped":
        return row.kind, row.time_ms
    return row.kind, row.zxid


def compare_members(reports: MemberReports, tables: Tables, result: Differences) -> None:
    """Compare the tables with the events that the members report."""
    owned = {
        (one.consumer, TopicPartition(one.topic, one.partition), one.czxid)
        for one in tables.ownership
    }
    joined = {(one.consumer, one.zxid) for one in tables.members if one.event == "joined"}
    result.missed += [f"claimed: {one}" for one in reports.claimed - owned]
    result.missed += [f"registered: {one}" for one in reports.registered - joined]
    czxids = {(tp, czxid) for _, tp, czxid in owned}
    result.missed += [f"delivered under: {one}" for one in reports.delivered - czxids]
    result.compared["members' claims"] += len(reports.claimed)
    result.compared["members' registrations"] += len(reports.registered)
    commits: Counter[tuple[int, TopicPartition]] = Counter()
    for run in tables.commits:
        commits[run.session, TopicPartition(run.topic, run.partition)] += run.count
        if run.by and run.session in reports.sessions:
            result.equal(f"commits at {run.zxid:#x} by", reports.sessions[run.session], run.by)
    result.missed += [f"committed: {one}" for one in (reports.committed - commits).elements()]
    result.compared["members' commits"] += reports.committed.total()


class Rebalances:
    """Compares the rows of rebalances with the states of the group."""

    def __init__(self, truth: Truth, rows: Sequence[Rebalance], result: Differences) -> None:
        self._truth, self._rows, self._result = truth, rows, result
        self._zxids = [state.zxid for state in truth.states]

    def compare(self) -> None:
        """Compare all rows."""
        self._triggers()
        ends = [*(row.zxid for row in self._rows[1:]), 1 << 63]
        for row, end in zip(self._rows, ends, strict=False):
            self._row(row, end)

    def _triggers(self) -> None:
        words = {"changed": "changed its registration"}
        self._result.table(
            "rebalances",
            ((f"{name} {words.get(event, event)}",) for _, name, _, event in self._truth.members),
            (
                (text,)
                for row in self._rows
                for text in row.triggers
                if not text.startswith(("topic ", "owner znodes"))
            ),
        )

    def _row(self, row: Rebalance, end: int) -> None:
        truth, equal = self._truth, self._result.equal
        name = f"rebalance at {row.zxid:#x}"
        first = bisect_right(self._zxids, row.zxid - 1)
        states = [one for one in truth.states[first:] if one.zxid < end]
        before = truth.states[first - 1] if first else State(0, 0, {}, {}, {})
        after = states[-1] if states else before
        claimed = [one for one in truth.intervals if row.zxid <= one.czxid < end]
        released = [one for one in truth.intervals if row.zxid <= (one.ended_zxid or 0) < end]
        equal(f"{name} claimed", len(claimed), row.claimed)
        equal(f"{name} released", len(released), row.released)
        equal(f"{name} members", len(after.members), row.members)
        equal(f"{name} partitions", len(after.owners), row.partitions)
        self._moved(name, row, before, after)
        self._settled(name, row, states or [before])
        refused: Counter[str] = Counter()
        limit = end if row.settled_ms is None else row.settled_ms + QUIET_MS
        for one in truth.moments:
            in_time = row.settled_ms is None or one.t_ms <= limit
            if one.is_refused and row.zxid < one.zxid < end and in_time:
                refused[f"0x{one.session:x}"] += one.session in self._seen(one.zxid)
        equal(f"{name} refused", dict(+refused), row.refused)
        if row.settled_ms is not None:
            gaps = sum(min(one.gap_ms or 0, one.since_ms - row.time_ms) for one in claimed)
            if not after.members and not after.owners:  # No member can claim these partitions.
                lost = {one.tp: one.until_ms or 0 for one in truth.intervals if one.czxid < end}
                until = self._until(end)
                gaps += sum(until - max(one, row.time_ms) for one in lost.values())
            equal(f"{name} unowned", round(gaps / 1000, 3), round(row.unowned_s, 3))

    def _until(self, end: int) -> int:
        """Return the time of a transaction, or of the last one if there is no such transaction."""
        truth = self._truth
        return next((one.t_ms for one in truth.moments if one.zxid == end), truth.until_ms)

    def _seen(self, zxid: int) -> set[int]:
        """Return the sessions that the group used before a transaction."""
        truth = self._truth
        return {
            *(session for moment, _, session, _ in truth.members if moment.zxid <= zxid),
            *(one.session for one in truth.intervals if one.czxid <= zxid),
            *(run.session for run in truth.runs if run.zxid <= zxid),
        }

    def _moved(self, name: str, row: Rebalance, before: State, after: State) -> None:
        staying = before.members.keys() & after.members.keys()
        moves = [
            (before.owners[tp].rpartition("-")[0], thread.rpartition("-")[0])
            for tp, thread in after.owners.items()
            if tp in before.owners
        ]
        moves = [(old, new) for old, new in moves if old != new]
        self._result.equal(f"{name} moved", len(moves), row.moved)
        needless = sum({old, new} <= staying for old, new in moves)
        self._result.equal(f"{name} moved without need", needless, row.moved_without_need)

    def _settled(self, name: str, row: Rebalance, states: Sequence[State]) -> None:
        """Check that the owners equal the assignment since the row's `settled_ms`, or that they
        differ at the end if the row has none."""
        truth, after = self._truth, states[-1]
        wanted = truth.wanted(after)
        if wanted is None or not after.topics:
            return
        is_settled = (not after.owners and not after.members) or after.owners == wanted
        self._result.equal(f"{name} settled", is_settled, row.settled_ms is not None)
        if is_settled and row.settled_ms is not None and after.owners:
            first = after
            for state in reversed(states):
                same = (state.members, state.owners) == (after.members, after.owners)
                if not same or truth.wanted(state) != wanted:
                    break
                first = state
            self._result.equal(f"{name} settled at", first.t_ms, row.settled_ms)
