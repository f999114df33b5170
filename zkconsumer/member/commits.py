"""Commits. They run one at a time, in the order of the requests, while the lease is valid.

A commit has four forms. `CommitRequested` (in `consumer.commit_requests`) is the user's call.
`Commit` says which positions to store, and who waits: the event, the queue and the running commit
have this form. `CommitPlan` is what is sent, and `Committed` says how it ended.

If the reply to a commit is lost, the member sends the commit again after the reconnect. The member
then reads back what the first attempt wrote.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from zkconsumer.member.commands import (
    AnswerCommit,
    Command,
    CommitOffsets,
    Notice,
    NoticeKind,
    StartFetching,
    Withdraw,
)
from zkconsumer.member.events import Committed, Denied
from zkconsumer.member.offset_ledger import Commit, ForeignWrites
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import (
    Commits,
    State,
    Step,
    replace,
    then,
)
from zkconsumer.protocol.model import Purpose, TopicPartition

MAX_TRIES = 8
"""Maximum number of attempts of one commit while other clients keep writing its offsets."""

MAX_WAITING = 16
"""Maximum number of commits that wait at the same time; a further commit fails at once.

Adjacent commits in the queue are merged if they have the same purpose. So a program reaches this
limit only if it alternates `commit_offsets()` and `commit_offsets(offsets)` during an outage.
"""

ASKED = frozenset({Purpose.EXPLICIT, Purpose.GIVEN})
"""The purposes of commits whose result the user waits for."""

URGENT = frozenset({Purpose.RELEASE, Purpose.LEAVE})
"""The purposes of commits that other members wait for: their partitions are released afterwards."""


# ---- the queue ----------------------------------------------------------------------------------


def request(state: State, commit: Commit, now: float) -> Step:
    """Queue a commit, and start it if possible; an urgent commit goes to the front of the queue."""
    queued = state.commits.queued
    if commit.purpose is Purpose.AUTO and any(one.purpose is Purpose.AUTO for one in queued):
        return state, ()
    if commit.purpose in URGENT:
        later = tuple(_not_lowering(one, commit) for one in queued)
        commits = replace(state.commits, queued=(commit, *later), retry_at=None)
        return start_next(replace(state, commits=commits), now)
    before, last = queued[:-1], queued[-1:]
    if last and last[0].purpose is commit.purpose:
        queued = (*before, _merged(last[0], commit))
    elif commit.purpose in ASKED and len(queued) >= MAX_WAITING:
        reason = f"{MAX_WAITING} commits already wait for ZooKeeper or for Kafka"
        return state, _answers(commit, dict.fromkeys(commit.positions, reason))
    else:
        queued = (*queued, commit)
    return start_next(_with_queue(state, queued), now)


def _not_lowering(waiting: Commit, urgent: Commit) -> Commit:
    """Return a waiting commit whose positions are not lower than those of an urgent commit.

    The urgent commit was requested later and overtakes the waiting commit. A user may commit lower
    offsets of its choice, so the waiting commit could lower the offsets that the urgent commit has
    stored.
    """
    positions = {
        tp: max(at, newer) if (newer := urgent.positions.get(tp, at)).epoch == at.epoch else at
        for tp, at in waiting.positions.items()
    }
    return replace(waiting, positions=positions)


def _with_queue(state: State, queued: tuple[Commit, ...]) -> State:
    return replace(state, commits=replace(state.commits, queued=queued))


def _merged(first: Commit, second: Commit) -> Commit:
    """Merge two adjacent commits into one commit that has the same result.

    So if a program commits in a loop during an outage, the queue contains only one commit.
    """
    metadata = {tp: text for tp, text in first.metadata.items() if tp not in second.positions}
    return replace(
        second,
        positions={**first.positions, **second.positions},
        metadata={**metadata, **second.metadata},
        requests=(*first.requests, *second.requests),
        retries=max(first.retries or 0, second.retries or 0),
    )


def timed_out(state: State, request: int) -> State:
    """Drop a queued commit whose caller no longer waits; a running commit cannot be cancelled."""
    queued = []
    for one in state.commits.queued:
        left = tuple(number for number in one.requests if number != request)
        if left or one.purpose not in ASKED:
            queued.append(replace(one, requests=left))
    return _with_queue(state, tuple(queued))


def pending(state: State, purpose: Purpose) -> bool:
    """Return whether a commit of this purpose is queued or running."""
    commits = state.commits
    running = commits.running is not None and commits.running.purpose is purpose
    return running or any(one.purpose is purpose for one in commits.queued)


def is_urgent_pending(state: State) -> bool:
    """Return whether a commit for which a phase waits is queued or running."""
    return any(pending(state, purpose) for purpose in URGENT)


def is_awaited(state: State) -> bool:
    """Return whether a commit is queued or running for which a phase or the user waits."""
    return any(pending(state, purpose) for purpose in URGENT | ASKED)


def start_next(state: State, now: float) -> Step:
    """Start the first queued commit, unless a commit is running or no commit may start now."""
    commands: tuple[Command, ...] = ()
    while state.commits.queued and state.commits.running is None and _may_start(state, now):
        first, *rest = state.commits.queued
        if state.phase is Phase.COMMITTING and first.purpose not in URGENT:
            break  # the rebalance waits for its own commit, which must start first
        state, more = _start(_with_queue(state, tuple(rest)), first, 1)
        commands += more
    return state, commands


def due(state: State, now: float) -> Step:
    """Start the next commit if the back-off after a refusal by Kafka is over."""
    if state.commits.retry_at is None or state.commits.retry_at > now:
        return state, ()
    return start_next(replace(state, commits=replace(state.commits, retry_at=None)), now)


def _may_start(state: State, now: float) -> bool:
    """Return whether a commit may start.

    No commit may start while owner znodes are being released. ZooKeeper would execute the commit
    after the release, when another member may own the partition.
    """
    waits = state.commits.retry_at is not None or state.phase is Phase.RELEASING
    return state.connected and state.may_deliver and state.lease.holds(now) and not waits


def _start(state: State, commit: Commit, tries: int) -> Step:
    if commit.purpose is Purpose.GIVEN and tries == 1:
        state = replace(state, offsets=state.offsets.allowing(commit.positions))
    plan = state.offsets.plan(commit, state.settings.storage)
    # A commit also checks the versions of unchanged offsets, to detect an operator's edit. An
    # urgent commit skips these checks.
    checks = plan.checks and commit.purpose not in URGENT
    if not plan.writes and not plan.kafka and not checks:
        return state, _answer(commit, _not_stored(state, commit))
    op = state.last_op + 1
    commits = replace(state.commits, running=commit, op=op, plan=plan, tries=tries)
    return replace(state, last_op=op, commits=commits), (CommitOffsets(op, plan),)


def _not_stored(
    state: State, commit: Commit, stored: Container[TopicPartition] = ()
) -> Mapping[TopicPartition, str]:
    """Return why positions of an explicit commit were not stored: partition -> reason.

    `stored` holds the partitions whose positions this commit stored before the member lost them.
    """
    failures: dict[TopicPartition, str] = {}
    if commit.purpose not in ASKED:
        return failures
    for tp, at in commit.positions.items():
        known = state.offsets.entries.get(tp)
        if known is not None and known.epoch == at.epoch:
            failures |= {tp: known.error} if known.error else {}
        elif known is None and tp in state.owned:
            failures[tp] = (
                "this member has just claimed the partition and has not read its stored offset"
                " yet; commit again"
            )
        elif tp not in stored:
            failures[tp] = (
                "this member no longer owns the partition; its new owner starts at the last"
                " committed offset"
            )
    return failures


# ---- changes to waiting commits -----------------------------------------------------------------


def rewind(state: State, partition: TopicPartition) -> State:
    """Discard the positions of a partition that `auto.offset.reset` or the user has moved.

    1. A commit is sent. 2. The reset moves the position back. 3. The commit's reply says that the
    old position is stored. The next commit must still lower the stored offset, so `rewound`
    remembers the partition until the reply.

    An urgent commit keeps its positions. Delivery of the partition has stopped before these
    positions are collected, so the reset came earlier; and no later commit would store the
    positions.
    """
    commits = state.commits
    return replace(
        state,
        offsets=state.offsets.reset(partition),
        commits=replace(
            commits,
            queued=tuple(_without_moved(one, {partition}) for one in commits.queued),
            rewound=commits.rewound | {partition} if commits.running else frozenset(),
        ),
    )


def interrupted(state: State) -> State:
    """Queue the running commit again, because the connection broke before its reply."""
    commits = state.commits
    if commits.running is None:
        return state
    again = _without_moved(commits.running, commits.rewound)
    return replace(
        state,
        offsets=state.offsets.after_lost_reply(commits.plan),
        commits=_ended(commits, queued=_first(again, commits.queued)),
    )


def _first(commit: Commit, waiting: tuple[Commit, ...]) -> tuple[Commit, ...]:
    """Return the queue with a commit to retry, inserted directly after the urgent commits.

    1. An automatic commit is sent. 2. A rebalance queues its own commit. 3. The automatic commit
    gets no reply, or Kafka refuses it. If the retry were first in the queue, the rebalance would
    be delayed or blocked: the release would wait for the retry, or the retry would wait for the
    rebalance, which waits for its own commit behind the retry.
    """
    if commit.purpose in URGENT:
        return (commit, *waiting)
    urgent = tuple(one for one in waiting if one.purpose in URGENT)
    for one in urgent:
        commit = _not_lowering(commit, one)
    return (*urgent, commit, *(one for one in waiting if one.purpose not in URGENT))


def abandon(state: State, reason: str) -> Step:
    """Drop all commits and report them as failed, because the member has lost its partitions."""
    commits = state.commits
    waiting = ((commits.running,) if commits.running else ()) + commits.queued
    commands = tuple(
        command
        for commit in waiting
        for command in _answer(commit, {tp: reason for tp in commit.positions})
    )
    return replace(state, commits=Commits(rewound=commits.rewound)), commands


# ---- the end of a commit ------------------------------------------------------------------------


def committed(state: State, outcome: Committed, now: float) -> Step:
    """Record the result of a commit; start the commit again if other clients wrote meanwhile."""
    before = state.commits
    assert before.running is not None
    offsets, findings = state.offsets.after_commit(
        before.plan,
        versions=outcome.versions,
        foreign=outcome.foreign,
        marked=outcome.marked,
        kafka=outcome.kafka,
    )
    # A higher offset that another client wrote is not an old position of this member, so it stays.
    for tp in before.rewound.difference(findings.left):
        if not _has_stored(before, outcome, tp):
            offsets = offsets.reset(tp)
    commit = _without_moved(before.running.without(findings.edited), before.rewound)
    state = replace(state, offsets=offsets, commits=_ended(before, queued=before.queued))
    state, commands = _act_on(state, findings)
    again = state.offsets.plan(commit, state.settings.storage)
    # If another client wrote to ZooKeeper meanwhile, the commit has not been sent to Kafka yet.
    answered = {*outcome.kafka, *outcome.unavailable, *outcome.denied}
    unasked = again.kafka.keys() - answered
    left = dict.fromkeys({*again.writes, *unasked}, "other clients keep writing this offset")
    if left and not outcome.denied and before.tries < MAX_TRIES:
        state, more = _start(state, commit, before.tries + 1)
        return then((state, commands + more), lambda s: start_next(s, now))
    if outcome.unavailable and commit.retries:
        reasons = {**outcome.unavailable, **outcome.denied}
        state, notice = _again_later(state, commit, reasons, now)
        return then((state, (*commands, notice)), lambda s: start_next(s, now))
    failures = left | dict(outcome.unavailable) | dict(outcome.denied)
    failures |= _not_stored(state, commit, {*outcome.versions, *outcome.kafka})
    state = _not_finished(state, commit, failures)
    return then((state, commands + _answer(commit, failures)), lambda s: start_next(s, now))


def _ended(commits: Commits, *, queued: tuple[Commit, ...]) -> Commits:
    """Return the commits after the end of the running one."""
    return Commits(queued=queued, retry_at=commits.retry_at)


def _again_later(
    state: State, commit: Commit, reasons: Mapping[TopicPartition, str], now: float
) -> tuple[State, Notice]:
    """Queue a commit that Kafka could not store; it starts after the back-off.

    With dual commit, `reasons` also contains ZooKeeper's refusals. A waiting urgent commit cancels
    the back-off.

    JVM (0.9 and later): `offsets.commit.max.retries` applies to the automatic commit; it applies to
    an explicit commit only with `retryOnFailure=false`.
    """
    tp, *others = sorted(reasons)
    why = "; ".join(sorted({*reasons.values()}))
    more = f" and {len(others)} more" if others else ""
    notice = Notice(
        NoticeKind.COMMIT_RETRIED,
        f"{tp}{more}",
        f"{commit.purpose.value} commit: {why}; it is tried again at most {commit.retries} times",
    )
    queued = _first(replace(commit, retries=(commit.retries or 0) - 1), state.commits.queued)
    urgent = queued[0].purpose in URGENT
    retry_at = None if urgent else now + state.settings.channel_backoff_s
    commits = replace(state.commits, queued=queued, retry_at=retry_at)
    return replace(state, commits=commits), notice


def denied(state: State, outcome: Denied, now: float) -> Step:
    """Report a commit that ZooKeeper refused completely."""
    before = state.commits
    assert before.running is not None
    ended = replace(_ended(before, queued=before.queued), rewound=before.rewound)
    failures = dict.fromkeys({**before.plan.writes, **before.plan.kafka}, outcome.reason)
    state = _not_finished(replace(state, commits=ended), before.running, failures)
    return then((state, _answer(before.running, failures)), lambda s: start_next(s, now))


def _not_finished(state: State, commit: Commit, failures: Container[TopicPartition]) -> State:
    """Mark revoked partitions whose positions were not stored; their messages are redelivered."""
    if commit.purpose is not Purpose.RELEASE:
        return state
    return replace(state, finished=frozenset(tp for tp in state.finished if tp not in failures))


def _without_moved(commit: Commit, moved: Container[TopicPartition]) -> Commit:
    """Return a commit without the positions that `rewind` discards."""
    return commit if commit.purpose in URGENT else commit.without(moved)


def _has_stored(commits: Commits, outcome: Committed, tp: TopicPartition) -> bool:
    """Return whether an urgent commit has stored exactly the position that it was to store."""
    assert commits.running is not None
    plan, at, in_kafka = commits.plan, commits.running.positions.get(tp), commits.plan.kafka.get(tp)
    if commits.running.purpose not in URGENT or at is None or tp in plan.checks:
        return False
    is_written = tp not in plan.writes or tp in outcome.versions
    return is_written and (
        in_kafka is None or (tp in outcome.kafka and in_kafka.offset == at.offset)
    )


def _act_on(state: State, findings: ForeignWrites) -> Step:
    """Report other clients' writes, and continue from an operator's edit.

    Positions that were collected before the edit are discarded.
    """
    notices = [
        *(
            Notice(
                NoticeKind.OFFSET_OVERWRITTEN,
                str(tp),
                f"another client wrote offset {found}; this member overwrites it with {ours}"
                if found is not None
                else f"another client deleted the offset; this member stores {ours} again",
            )
            for tp, (ours, found) in sorted(findings.overwritten.items())
        ),
        *(
            Notice(
                NoticeKind.OFFSET_LEFT,
                str(tp),
                f"another client wrote offset {found}, which is higher than this member's {ours};"
                f" it stays until this member's position is higher than {found}",
            )
            for tp, (ours, found) in sorted(findings.left.items())
        ),
        *(
            Notice(
                NoticeKind.OFFSET_EDITED,
                str(tp),
                f"an operator set the offset to {to}; this member continues from there",
            )
            for tp, to in sorted(findings.edited.items())
        ),
        *(
            Notice(NoticeKind.OFFSET_MALFORMED, str(tp), reason)
            for tp, reason in sorted(findings.malformed.items())
        ),
    ]
    queued = tuple(one.without(findings.edited) for one in state.commits.queued)
    state = _with_queue(state, queued)
    grants = {
        tp: (state.owned[tp], to)
        for tp, to in findings.edited.items()
        if tp in state.serving
        and tp in state.owned
        and tp not in state.revoking
        # A member that leaves has called `on_revoked`.
        and state.phase is not Phase.LEAVING
    }
    # A partition that is being revoked is not delivered again here: its next owner starts at the
    # edited offset.
    gone = state.serving.intersection(findings.edited)
    moves: tuple[Command, ...] = (Withdraw(gone),) if gone else ()
    moves += (StartFetching(grants),) if grants else ()
    return state, (*notices, *moves)


def _answer(commit: Commit, failures: Mapping[TopicPartition, str]) -> tuple[Command, ...]:
    notices = tuple(
        Notice(NoticeKind.COMMIT_FAILED, str(tp), f"{commit.purpose.value} commit: {reason}")
        for tp, reason in sorted(failures.items())
    )
    return (*notices, *_answers(commit, failures))


def _answers(commit: Commit, failures: Mapping[TopicPartition, str]) -> tuple[Command, ...]:
    return tuple(AnswerCommit(number, failures) for number in commit.requests)
