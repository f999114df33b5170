"""Other clients that block a group: idle peers, and sessions that own this member's partitions.

A JVM member whose rebalance failed `rebalance.max.retries` times stays registered and waits for a
trigger that may never come. No member reads the partitions that are assigned to it, and no other
member may claim them. After this member has been settled for retries x back-off, it looks for
partitions without an owner. If the next look finds the same partitions, this member reports their
idle peer. If it finds others, the group is still settling. With `peers.nudge` this member also
registers again, at most once a minute (a nudge), which makes every member of the group rebalance.
If every partition has an owner, a member with `peers.nudge` looks again after a minute: a frozen
process may own the partitions of an idle peer, and no watch reports that it releases them later.

If another session owns a partition that is assigned to this member, this member reports the
partition once, after the time in which a blocked JVM member gives up.

When a member reports, it also reads the whole group (`Diagnose`). The members of a large group
report one after the other (`spread_s`), because their reads would otherwise delay what they wait
for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from zkconsumer.errors import ConfigError, escaped_and_cut, first_few
from zkconsumer.member.commands import Command, Diagnose, ListOwners, Notice, NoticeKind, Nudge
from zkconsumer.member.events import Claimed, Diagnosed, OwnersListed
from zkconsumer.member.state import Blocked, State, Step, own_topics, replace, share, start_op
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_health import unclaimed
from zkconsumer.protocol.group_snapshot import assign_all, assignment_of_others
from zkconsumer.protocol.model import UNKNOWN_BLOCKER, ThreadId, TopicPartition, session_text

# ---- idle peers ---------------------------------------------------------------------------------


def look_for_idle_peers(state: State) -> Step:
    """List the owner znodes of the member's topics."""
    state, op = start_op(schedule_check(state, None))
    return state, (ListOwners(op, frozenset(own_topics(state))),)


def schedule_check(state: State, at: float | None) -> State:
    """Set the time of the next check for idle peers; None for never."""
    return replace(state, idle_peers=replace(state.idle_peers, look_at=at))


def owners_listed(state: State, outcome: OwnersListed, now: float) -> Step:
    """Report the partitions that idle members do not claim; check again while any remain.

    With `peers.nudge`, also check again if none remain.
    """
    state = replace(state, op=None)
    if state.view is None:
        return state, ()
    settings, before = state.settings, state.idle_peers
    assigned = assignment_of_others(
        state.view,
        consumer=settings.consumer,
        strategy=settings.strategy,
        profile=settings.profile,
    )
    idle = unclaimed(assigned, outcome.present)
    found = frozenset(idle)
    known = found if found == before.unclaimed else before.partitions & found
    state = replace(state, idle_peers=replace(before, partitions=known, unclaimed=found))
    if not idle:
        again = None if settings.nudge_s is None else now + settings.nudge_s
        return schedule_check(state, again), ()
    if found != before.unclaimed:
        return schedule_check(state, now + settings.backoff_s + spread_s(state)), ()
    fresh = known - before.partitions
    notices = (_idle_notice({tp: idle[tp] for tp in fresh}), Diagnose()) if fresh else ()
    nudge_s = settings.nudge_s
    if nudge_s is None:
        return schedule_check(state, now + patience_s(state)), notices
    if now < before.nudged_at + nudge_s:
        return schedule_check(state, before.nudged_at + nudge_s), notices
    state, op = start_op(state)
    state = replace(state, idle_peers=replace(state.idle_peers, nudged_at=now, nudge_op=op))
    return state, (*notices, Nudge(op, state.wall_ms))


def _idle_notice(idle: Mapping[TopicPartition, ThreadId]) -> Notice:
    return Notice(
        NoticeKind.IDLE_PEER,
        listed(idle),
        f"assigned to registered members that do not claim them: {listed(idle.values())}",
        "restart these consumers; peers.nudge=true makes the whole group rebalance once a minute",
    )


def patience_s(state: State) -> float:
    """Return the seconds after which a blocked JVM member gives up."""
    return state.settings.retries * state.settings.backoff_s


SPREAD_READS_PER_S = 10_000
"""How many owner znodes all members of a group together read in a second to diagnose the group.

A ZooKeeper server on two cores serves five times as many.
"""


def spread_s(state: State) -> float:
    """Return this member's delay, in seconds, before it reports and reads the whole group.

    The delays of a group's members are spread evenly. 100 members with 20,000 partitions spread
    their reads over 200 s; groups that need less than a second do not wait. If the group settles
    meanwhile, nothing is left to report.
    """
    if state.view is None:
        return 0.0
    topics = (state.view.topics.get(topic) for topic in own_topics(state))
    partitions = sum(len(topic.partitions) for topic in topics if topic is not None)
    reads = len(state.view.members) * partitions
    return share(state) * reads / SPREAD_READS_PER_S if reads > SPREAD_READS_PER_S else 0.0


# ---- blocked partitions -------------------------------------------------------------------------

ASK_S = 0.5
"""The time, in seconds, after which a member reads the owners of blocked partitions.

Most owners release within milliseconds. If the back-off is shorter, it applies instead.
"""


def ask_after_s(state: State) -> float:
    """Return the seconds after which a blocked member reads the owners."""
    return min(ASK_S, state.settings.backoff_s)


def ask_owners(state: State) -> State:
    """Make the next claim due, which reads the owners of the blocked partitions."""
    return replace(state, blocked=replace(state.blocked, ask_at=None), claim_due=True)


def blocked_by(state: State, outcome: Claimed, now: float) -> Blocked:
    """Return the blocked partitions after a claim."""
    before = state.blocked
    if not outcome.blocked:
        return Blocked(reported=before.reported)
    is_new = before.since is None
    return Blocked(
        outcome.blocked,
        now if is_new else before.since,
        before.reported,
        now + ask_after_s(state) if is_new else before.ask_at,
        _other_strategy(state, outcome) if outcome.owners else before.reason,
    )


def _other_strategy(state: State, outcome: Claimed) -> str:
    """Return a text that says which strategy the owners follow; empty if it is this member's.

    An owner that still has to release partitions owns more than either strategy assigns to it. So
    an owner counts only if it owns exactly what the other strategy assigns to it.
    """
    view, settings = state.view, state.settings
    if view is None:
        return ""
    blockers = {who.thread for who in outcome.blocked.values() if who != UNKNOWN_BLOCKER}
    topics = {tp.topic for tp in outcome.blocked}
    for strategy in Strategy:
        if strategy is settings.strategy:
            continue
        try:
            due = assign_all(view, strategy, settings.profile)
        except ConfigError:
            continue
        for thread in sorted(blockers):
            owned = {tp for tp, owner in outcome.owners.items() if owner == thread}
            if owned == {tp for tp, owner in due.items() if owner == thread and tp.topic in topics}:
                return (
                    f"{escaped_and_cut(thread)} owns the partitions that {strategy.value} assigns "
                    f"to it, but this member follows {settings.strategy.value}: give all members "
                    "one partition.assignment.strategy"
                )
    return ""


MAX_NAMED = 20
"""The maximum number of partitions or owners that a report names; it counts the remaining ones."""


Named = TypeVar("Named", TopicPartition, ThreadId)


def listed(names: Iterable[Named]) -> str:
    """Name at most `MAX_NAMED` partitions or threads, and count the remaining ones."""
    return first_few((escaped_and_cut(str(one)) for one in sorted(set(names))), MAX_NAMED)


def report_blocked(state: State, now: float) -> Step:
    """Report, once, which partitions have been blocked for retries x back-off, and their owners."""
    blocked = state.blocked
    if blocked.reported or blocked.since is None:
        return state, ()
    if now - blocked.since < patience_s(state) + spread_s(state):
        return state, ()
    named = {
        tp: who
        for tp, who in blocked.partitions.items()
        if who != UNKNOWN_BLOCKER and who.session not in state.former
    }
    if not named:
        # The next claim reads their owners, or they belong to a former session of this member,
        # which ZooKeeper ends after the session timeout.
        return state, ()
    holders = sorted({(who.thread, who.session) for who in named.values()})
    names = first_few(
        (f"{thread} (session {session_text(session)})" for thread, session in holders), MAX_NAMED
    )
    persistent = any(not session for _, session in holders)
    notice = Notice(
        NoticeKind.BLOCKED,
        listed(named),
        f"held by {names} for {now - blocked.since:.0f} s",
        "stop that consumer; if its session is 0x0, run `zkconsumer doctor --fix`"
        if persistent
        else "stop that consumer, or wait for its session to end",
    )
    return replace(state, blocked=replace(blocked, reported=True)), (notice, Diagnose())


def drop_cleared_blockers(state: State) -> Step:
    """Drop blocked partitions that are no longer assigned; report when no partition is blocked."""
    blocked = state.blocked
    left = {tp: who for tp, who in blocked.partitions.items() if tp in state.assigned}
    if left:
        return replace(state, blocked=replace(blocked, partitions=left)), ()
    notice = Notice(NoticeKind.UNBLOCKED, "", "no other session blocks this member any more")
    return replace(state, blocked=Blocked()), (notice,) if blocked.reported else ()


def diagnosed(state: State, event: Diagnosed) -> Step:
    """Report members that never agree with this member, because their assignment rules differ."""
    notices: tuple[Command, ...] = tuple(
        Notice(
            NoticeKind.DISAGREEMENT,
            f"ids/{escaped_and_cut(consumer)}",
            reason,
            "give all members one partition.assignment.strategy and exclude.internal.topics;"
            " set peers.release to the release of the JVM members; see zkconsumer assign",
        )
        for consumer, reason in sorted(event.disagreements.items())
    )
    return state, notices
