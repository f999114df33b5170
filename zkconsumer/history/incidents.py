"""Incidents that the tables show: each kind with the rule that recognises it.

`GroupHistory` itself reports the kinds that require the state of a group at some time: `new
leader`, `member gave up`, `blocked partition` and `offset deleted`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from zkconsumer.history.inputs import Problem
from zkconsumer.history.tables import (
    KAFKA,
    ZOOKEEPER,
    Commits,
    Event,
    Incident,
    Member,
    Ownership,
    Tables,
    in_order,
)
from zkconsumer.protocol.model import session_text

REBALANCE_STORM: Final = (5, 300_000)
"""A storm: at least this number of triggers of a group's rebalances within this time, in
milliseconds."""

SESSION_FLAPPING: Final = (2, 600_000)
"""A flapping session: at least this number of expiries of one consumer id within this time, in
milliseconds. Long pauses of the process cause them."""

STOPPED_AFTER_MS: Final = 60_000
"""Milliseconds without a commit after which a member counts as stopped. Further conditions: it has
committed before, its pause is at least ten times its longest usual pause, and other members still
commit. The log does not show whether the member had messages.
"""

ORPHAN_MS: Final = 5_000
"""Milliseconds after which an owner without a registration is reported. A JVM member that leaves
deletes its registration and its owner znodes one shortly after the other.
"""

UNREADABLE_MS: Final = 5_000
"""Milliseconds after which an unreadable registration is reported. Some clients create a
registration empty, and write its content at once; a member that reads it meanwhile tries again.
"""

KINDS: Final = {
    "new leader": "the ensemble elected a leader, and wrote nothing for a time",
    "rebalance storm": f"{REBALANCE_STORM[0]} triggers within {REBALANCE_STORM[1] // 1000} s",
    "flapping session": (
        f"{SESSION_FLAPPING[0]} expiries of one consumer id within {SESSION_FLAPPING[1] // 1000} s"
    ),
    "member gave up": "a registered member does not claim partitions that are free",
    "blocked partition": "a partition is not held by the member that should own it",
    "late commit": "a former owner commits after another session has claimed the partition",
    "offset moved back": "a commit is lower than the one before it",
    "offset deleted": "a session deleted an offset znode, or an offset in Kafka was deleted",
    "commits stopped": f"an owner commits nothing for {STOPPED_AFTER_MS // 1000} s while others do",
    "owner without a registration": (
        f"an owner is not registered as a member for more than {ORPHAN_MS // 1000} s"
    ),
    "unreadable registration": (
        f"a registration that no member can read exists for more than {UNREADABLE_MS // 1000} s"
    ),
    "damaged": "a file is damaged",
    "unreadable": "a file cannot be read",
    "missing": "transactions between those in the files are missing",
    "torn": "a log that is not a server's last one ends within a transaction",
    "empty": "a log that is not a server's last one has no transaction",
    "contradiction": "files of one server have different transactions, or a wrong order or name",
    "disagreement": "servers of one ensemble wrote different transactions",
}
"""Kind of an incident -> what it means."""

MOMENTARY: Final = frozenset({"offset moved back", "offset deleted"})
"""Incidents without a duration. If an incident of another kind has no end, it still continues."""


def writer(run: Commits) -> str:
    """Return who wrote commits, as text."""
    if run.by or run.session is not None:
        return run.by or f"session {session_text(run.session or 0)}"
    return "a client"


def in_kafka(run: Commits) -> str:
    """Return the words that name the store, if it is Kafka."""
    return " in Kafka" if run.store == KAFKA else ""


def incidents(tables: Tables, *, until_ms: int, problems: list[Problem]) -> list[Incident]:
    """Return all incidents of the tables and of the files, in the order of their times."""
    found = [
        *tables.incidents,
        *_storms(tables),
        *_flapping(tables),
        *_commits(tables),
        *_stopped(tables, until_ms),
        *_orphans(tables, until_ms),
        *_unreadable(tables, until_ms),
        *(_of_problem(one, tables) for one in problems),
    ]
    return in_order(sorted(found, key=lambda one: (one.zxid, one.time_ms, one.kind)))


def _incident(
    row: Member | Commits | Ownership,
    kind: str,
    what: str,
    *,
    time_ms: int | None = None,
    ended_ms: int | None = None,
    evidence: Sequence[str] = (),
) -> Incident:
    return Incident(
        zxid=row.zxid,
        time_ms=row.time_ms if time_ms is None else time_ms,
        file=row.file,
        chroot=row.chroot,
        group=row.group,
        kind=kind,
        what=what,
        ended_ms=ended_ms,
        evidence=list(evidence),
        session=None if kind == "rebalance storm" else row.session,
        store=row.store if isinstance(row, Commits) else ZOOKEEPER,
    )


def _of_problem(problem: Problem, tables: Tables) -> Incident:
    rows: list[Event] = [*tables.members, *tables.ownership, *tables.commits]
    before = [row.time_ms for row in rows if 0 < row.zxid <= problem.zxid]
    return Incident(
        zxid=problem.zxid,
        time_ms=max(before, default=0),
        file=problem.where,
        chroot="",
        group="",
        kind=problem.kind,
        what=problem.what,
        store=problem.store,
    )


def _storms(tables: Tables) -> Iterator[Incident]:
    triggers: dict[tuple[str, str], list[Member]] = defaultdict(list)
    known: set[tuple[str, str, str]] = set()
    for row in tables.members:
        key = (row.chroot, row.group, row.consumer)
        if row.event != "present" and key in known:  # the joins of a starting group are not a storm
            triggers[key[:2]].append(row)
        known.add(key)
    count, span = REBALANCE_STORM
    for rows in triggers.values():
        at = 0
        while at + count <= len(rows):
            end = at + count
            if rows[end - 1].time_ms - rows[at].time_ms > span:
                at += 1
                continue
            while end < len(rows) and rows[end].time_ms - rows[end - 1].time_ms < span // count:
                end += 1
            took = (rows[end - 1].time_ms - rows[at].time_ms) / 1000
            yield _incident(
                rows[at],
                "rebalance storm",
                f"{end - at} changes of members within {took:.0f} s",
                ended_ms=rows[end - 1].time_ms,
                evidence=[f"{row.consumer} {row.event}" for row in rows[at:end][:20]],
            )
            at = end


def _flapping(tables: Tables) -> Iterator[Incident]:
    expiries: dict[tuple[str, str, str], list[Member]] = defaultdict(list)
    for row in tables.members:
        if row.event == "expired":
            expiries[row.chroot, row.group, row.consumer].append(row)
    count, span = SESSION_FLAPPING
    for rows in expiries.values():
        near = [
            (first, last)
            for first, last in zip(rows, rows[count - 1 :], strict=False)
            if last.time_ms - first.time_ms <= span
        ]
        if near:
            first, last = near[0][0], near[-1][1]
            number = sum(first.time_ms <= row.time_ms <= last.time_ms for row in rows)
            yield _incident(
                first,
                "flapping session",
                f"the session of {first.consumer} expired {number} times within "
                f"{(last.time_ms - first.time_ms) / 1000:.0f} s: its process pauses for longer "
                "than its session timeout",
                ended_ms=last.time_ms,
            )


def _commits(tables: Tables) -> Iterator[Incident]:
    for run in tables.commits:
        back = run.before is not None and run.first < run.before and run.begins != "edit"
        if not run.late and not back:
            continue
        where = f"{run.topic}-{run.partition}{in_kafka(run)}"
        who = writer(run)
        if run.late:
            yield _incident(
                run,
                "late commit",
                f"{who} committed {run.last} for {where}, which another session owned",
                ended_ms=run.last_ms,
            )
        if back:
            yield _incident(
                run,
                "offset moved back",
                f"{who} moved {where} back from {run.before} to {run.first}",
            )


def _stopped(tables: Tables, until_ms: int) -> Iterator[Incident]:
    """Find owners that committed regularly and then stopped, while other members continued."""
    last: dict[tuple[str, str, int], tuple[int, int, int]] = {}
    for run in tables.commits:
        if run.session is None:
            continue
        key = (run.chroot, run.group, run.session)
        count, time_ms, pause = last.get(key, (0, 0, 0))
        last[key] = (
            count + run.count,
            max(time_ms, run.last_ms),
            max(pause, run.longest_pause_ms),
        )
    held: dict[tuple[str, str, int], list[Ownership]] = defaultdict(list)
    for owner in tables.ownership:
        held[owner.chroot, owner.group, owner.session].append(owner)
    # For each group, the two sessions that committed last, each with the time of its last commit.
    latest: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for (chroot, group, session), (_, time_ms, _) in last.items():
        found = latest[chroot, group]
        latest[chroot, group] = sorted([*found, (time_ms, session)], reverse=True)[:2]
    for key, owned in held.items():
        count, silent_from, pause = last.get(key, (0, 0, 0))
        end = max(one.ended_ms or until_ms for one in owned)
        others = max((t for t, session in latest[key[:2]] if session != key[2]), default=0)
        limit = max(STOPPED_AFTER_MS, 10 * pause)
        if count >= 5 and min(end, others) - silent_from > limit:
            yield _incident(
                owned[-1],
                "commits stopped",
                f"{owned[-1].consumer} owned {len(owned)} partitions and committed nothing for "
                f"{(end - silent_from) / 1000:.0f} s, while other members committed",
                time_ms=silent_from,
                ended_ms=end,
            )


def _unreadable(tables: Tables, until_ms: int) -> Iterator[Incident]:
    """Find registrations that members cannot read, by the rules of `doctor`."""
    following: dict[tuple[str, str, str], int] = {}
    for row in reversed(tables.members):
        key = (row.chroot, row.group, row.consumer)
        ended_ms = following.get(key)
        following[key] = row.time_ms
        if row.event not in ("present", "joined", "changed") or not row.unreadable:
            continue
        if (until_ms if ended_ms is None else ended_ms) - row.time_ms > UNREADABLE_MS:
            yield _incident(
                row,
                "unreadable registration",
                f"no member could read the registration of {row.consumer}, so every rebalance of "
                f"the group failed: {row.unreadable}",
                ended_ms=ended_ms,
            )


def _orphans(tables: Tables, until_ms: int) -> Iterator[Incident]:
    """Find owner znodes whose consumer was not registered during part of their existence."""
    registered: dict[tuple[str, str, str], list[list[int]]] = defaultdict(list)
    for row in tables.members:
        spans = registered[row.chroot, row.group, row.consumer]
        if row.event in ("present", "joined", "changed"):
            if not spans or spans[-1][1] != until_ms:
                spans.append([row.time_ms, until_ms])
        elif spans:
            spans[-1][1] = row.time_ms
    for owner in tables.ownership:
        begin, end = owner.time_ms, owner.ended_ms or until_ms
        spans = registered[owner.chroot, owner.group, owner.consumer]
        last = spans[bisect_right(spans, begin, key=itemgetter(0)) - 1] if spans else [end, end]
        if last[0] <= begin and end <= last[1]:
            continue  # most owners are registered all the time
        covered = sum(max(0, min(end, b) - max(begin, a)) for a, b in spans)
        if end - begin - covered > ORPHAN_MS:
            yield _incident(
                owner,
                "owner without a registration",
                f"{owner.thread or '?'} (session {session_text(owner.session)}) owned "
                f"{owner.topic}-{owner.partition} for {(end - begin - covered) / 1000:.0f} s "
                "without being registered",
                ended_ms=end,
            )
