"""Commits: one at a time, in order of request, under the lease, resolved by reading back."""

from __future__ import annotations

from collections.abc import Container, Mapping

from zkconsumer.member import offset_ledger
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
from zkconsumer.member.offset_ledger import CommitPlan, ReadBack
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import CommitRequest, InFlight, State, Step, replace, then
from zkconsumer.protocol.model import Purpose, TopicPartition

MAX_TRIES = 8
"""How often one commit starts over because somebody else keeps writing; then it has failed."""


MAX_WAITING = 16
"""Commits that wait at the same time. Neighbours of one kind are one commit, so that a program
reaches this only where it alternates `commit_offsets()` and `commit_offsets(offsets)` during an
outage. Further commits then fail at once."""


ASKED = frozenset({Purpose.EXPLICIT, Purpose.GIVEN})
URGENT = frozenset({Purpose.RELEASE, Purpose.LEAVE})
"""The user waits for an answer to these; other members wait for those."""


def request(state: State, asked: CommitRequest, now: float) -> Step:
    """Queue a commit; a hand-over's or a leave's goes in front, since others wait for it."""
    if asked.purpose is Purpose.AUTO and any(
        c.purpose is Purpose.AUTO for c in state.queued_commits
    ):
        return state, ()
    if asked.purpose in URGENT:
        state = replace(state, queued_commits=(asked, *state.queued_commits), commits_at=None)
        return pump(state, now)
    before, last = state.queued_commits[:-1], state.queued_commits[-1:]
    if last and last[0].purpose is asked.purpose:
        queue = (*before, _together(last[0], asked))
    elif asked.purpose in ASKED and len(state.queued_commits) >= MAX_WAITING:
        reason = f"{MAX_WAITING} commits wait already, for ZooKeeper or for Kafka"
        return state, (AnswerCommit(asked.request, dict.fromkeys(asked.positions, reason)),)
    else:
        queue = (*state.queued_commits, asked)
    return pump(replace(state, queued_commits=queue), now)


def _together(first: CommitRequest, then: CommitRequest) -> CommitRequest:
    """Two waiting commits as one that stores what the second would leave after the first.

    A loop that commits during an outage therefore keeps one map of positions, and stores it once.
    """
    metadata = {tp: text for tp, text in first.metadata.items() if tp not in then.positions}
    return then._replace(
        positions={**first.positions, **then.positions},
        metadata={**metadata, **then.metadata},
        retries=max(first.retries, then.retries),
        also=(*first.also, first.request),
    )


def timed_out(state: State, request: int) -> State:
    """Drop a waiting commit whose callers have all given up; one under way cannot be recalled."""
    queue = []
    for one in state.queued_commits:
        left = [number for number in (*one.also, one.request) if number != request]
        if one.purpose not in ASKED:
            queue.append(one)
        elif left:
            queue.append(one._replace(request=left[-1], also=tuple(left[:-1])))
    return replace(state, queued_commits=tuple(queue))


def pending(state: State, purpose: Purpose) -> bool:
    """Is a commit of this purpose queued or under way?"""
    running = state.running_commit is not None and state.running_commit.request.purpose is purpose
    return running or any(c.purpose is purpose for c in state.queued_commits)


def touches(state: State, partitions: Container[TopicPartition]) -> bool:
    """Is a commit under way that reads or writes one of these?"""
    if state.running_commit is None:
        return False
    plan = state.running_commit.plan
    return any(tp in partitions for tp in (*plan.writes, *plan.checks, *plan.kafka))


def pump(state: State, now: float) -> Step:
    """Start the next commit if one waits and the lease allows it."""
    commands: tuple[Command, ...] = ()
    while state.queued_commits and state.running_commit is None and _may_write(state, now):
        first, *rest = state.queued_commits
        if state.phase is Phase.COMMITTING and first.purpose not in URGENT:
            break  # a hand-over waits for its own commit, and the others wait for the hand-over
        state = replace(state, queued_commits=tuple(rest))
        state, more = _start(state, first, 1)
        commands += more
    return state, commands


def due(state: State, now: float) -> Step:
    """The back-off before Kafka is asked again is over."""
    if state.commits_at is None or state.commits_at > now:
        return state, ()
    return pump(replace(state, commits_at=None), now)


def _may_write(state: State, now: float) -> bool:
    """Not while owner znodes are on their way out: what is sent behind them would be another's."""
    waits = state.commits_at is not None or state.phase is Phase.RELEASING
    return state.connected and not state.fenced and state.lease.holds(now) and not waits


def _plan(state: State, asked: CommitRequest) -> CommitPlan:
    return offset_ledger.plan(
        state.offsets, asked.positions, state.settings.storage, asked.metadata
    )


def _start(state: State, asked: CommitRequest, tries: int) -> Step:
    if asked.purpose is Purpose.GIVEN and tries == 1:
        state = replace(state, offsets=offset_ledger.allow(state.offsets, asked.positions))
    plan = _plan(state, asked)
    # A hand-over leaves alone what it does not write; the others look at that, too, since checking
    # the versions is how an operator's edit is noticed.
    looks = plan.checks and asked.purpose not in URGENT
    if not plan.writes and not plan.kafka and not looks:
        return state, _answer(state, asked, _unstored(state, asked))
    op = state.last_op + 1
    state = replace(state, last_op=op, running_commit=InFlight(op, asked, plan, tries))
    return state, (CommitOffsets(op, plan),)


def _unstored(
    state: State, asked: CommitRequest, stored: Container[TopicPartition] = ()
) -> Mapping[TopicPartition, str]:
    """An explicit commit names what it could not store: lost meanwhile, or an unreadable node."""
    failures: dict[TopicPartition, str] = {}
    if asked.purpose not in ASKED:
        return failures
    for tp, at in asked.positions.items():
        known = state.offsets.get(tp)
        if known is not None and known.epoch == at.epoch:
            failures |= {tp: known.error} if known.error else {}
        elif known is None and tp in state.owned:
            failures[tp] = "just claimed: what is stored is not known yet; commit again"
        elif tp not in stored:
            failures[tp] = "no longer owned; the new owner goes on from the last committed offset"
    return failures


def rewind(state: State, partition: TopicPartition) -> State:
    """`auto.offset.reset` moved a partition: positions from before it count for nothing.

    1. A commit is sent; 2. the reset moves the position back; 3. the commit's answer says that the
    old position is stored. What is stored must still follow the position back.
    """
    return replace(
        state,
        offsets=offset_ledger.reset(state.offsets, partition),
        queued_commits=tuple(_without(c, {partition: None}) for c in state.queued_commits),
        rewound=state.rewound | {partition} if state.running_commit else frozenset(),
    )


def interrupted(state: State) -> State:
    """The connection broke: the running commit waits for the next one, its effect in doubt."""
    if state.running_commit is None:
        return state
    return replace(
        state,
        offsets=offset_ledger.doubt(state.offsets, state.running_commit.plan),
        queued_commits=_first(
            _without(state.running_commit.request, dict.fromkeys(state.rewound)),
            state.queued_commits,
        ),
        running_commit=None,
        rewound=frozenset(),
    )


def _first(asked: CommitRequest, waiting: tuple[CommitRequest, ...]) -> tuple[CommitRequest, ...]:
    """Return the queue with a commit that is sent again: first, but behind a hand-over's.

    1. An automatic commit is sent; 2. a hand-over queues its own; 3. the first gets no reply, or
    Kafka refuses it. In front of the hand-over's commit, its retry would wait for the hand-over,
    which waits for its own commit; or the release would begin when the retry has ended.
    """
    if asked.purpose in URGENT:
        return (asked, *waiting)
    urgent = tuple(one for one in waiting if one.purpose in URGENT)
    return (*urgent, asked, *(one for one in waiting if one.purpose not in URGENT))


def abandon(state: State, reason: str) -> Step:
    """Answer every waiting commit with a failure: what they are about is no longer ours."""
    waiting = (
        (state.running_commit.request,) if state.running_commit else ()
    ) + state.queued_commits
    commands = tuple(
        command
        for asked in waiting
        for command in _answer(state, asked, {tp: reason for tp in asked.positions})
    )
    return replace(state, running_commit=None, queued_commits=(), commits_at=None), commands


def committed(state: State, outcome: Committed, now: float) -> Step:
    """A commit's operation ended: take in what it says, and start over if it must."""
    running = state.running_commit
    assert running is not None
    offsets, findings = offset_ledger.apply_commit_result(
        state.offsets,
        running.plan,
        versions=outcome.versions,
        foreign=outcome.foreign,
        marked=outcome.marked,
        kafka=outcome.kafka,
    )
    # What was found ahead of us was no old position of ours: told to be left, it is left.
    for tp in state.rewound.difference(findings.left):
        offsets = offset_ledger.reset(offsets, tp)
    asked = _without(_without(running.request, findings.edited), dict.fromkeys(state.rewound))
    state = replace(state, offsets=offsets, running_commit=None, rewound=frozenset())
    state, commands = _act_on(state, findings)
    again = _plan(state, asked)
    # Where somebody else wrote to ZooKeeper meanwhile, Kafka was not asked yet.
    told = {*outcome.kafka, *outcome.unavailable, *outcome.denied}
    left = dict.fromkeys({*again.writes, *(again.kafka.keys() - told)}, "others wrote it meanwhile")
    if left and not outcome.denied and running.tries < MAX_TRIES:
        state, more = _start(state, asked, running.tries + 1)
        return then((state, commands + more), lambda s: pump(s, now))
    if outcome.unavailable and asked.retries:
        state, notice = _again_later(state, asked, outcome.unavailable, now)
        return then((state, (*commands, notice)), lambda s: pump(s, now))
    failures = left | dict(outcome.unavailable) | dict(outcome.denied)
    failures |= _unstored(state, asked, {*outcome.versions, *outcome.kafka})
    state = _unready(state, asked, failures)
    return then((state, commands + _answer(state, asked, failures)), lambda s: pump(s, now))


def _again_later(
    state: State, asked: CommitRequest, reasons: Mapping[TopicPartition, str], now: float
) -> tuple[State, Notice]:
    """Kafka could not take it: once more after the back-off, unless a hand-over comes first.

    JVM (0.9 and later): `offsets.commit.max.retries` holds for the automatic commit, and for an
    explicit one only with `retryOnFailure=false`.
    """
    (tp, reason), *others = sorted(reasons.items())
    more = f" and {len(others)} more" if others else ""
    notice = Notice(
        NoticeKind.COMMIT_RETRIED,
        f"{tp}{more}",
        f"{asked.purpose.value} commit: {reason}; tried again, at most {asked.retries} times more",
    )
    queue = _first(asked._replace(retries=asked.retries - 1), state.queued_commits)
    urgent = bool(queue) and queue[0].purpose in URGENT
    commits_at = None if urgent else now + state.settings.channel_backoff_s
    return replace(state, queued_commits=queue, commits_at=commits_at), notice


def denied(state: State, outcome: Denied, now: float) -> Step:
    """The whole commit was refused."""
    running = state.running_commit
    assert running is not None
    state = replace(state, running_commit=None)
    failures = dict.fromkeys({**running.plan.writes, **running.plan.kafka}, outcome.reason)
    state = _unready(state, running.request, failures)
    return then((state, _answer(state, running.request, failures)), lambda s: pump(s, now))


def _unready(state: State, asked: CommitRequest, failures: Container[TopicPartition]) -> State:
    """What a hand-over could not store comes again, as what is not finished."""
    if asked.purpose is not Purpose.RELEASE:
        return state
    return replace(state, finished=frozenset(tp for tp in state.finished if tp not in failures))


def _without(asked: CommitRequest, edited: Mapping[TopicPartition, int | None]) -> CommitRequest:
    return asked._replace(positions=offset_ledger.without(asked.positions, edited))


def _act_on(state: State, findings: ReadBack) -> Step:
    """Report foreign writes; go on from an operator's edit, whatever was collected before it."""
    notices = [
        *(
            Notice(
                NoticeKind.OFFSET_OVERWRITTEN,
                str(tp),
                f"somebody wrote {theirs} where this member had committed {ours}; written over",
            )
            for tp, (ours, theirs) in sorted(findings.overwritten.items())
        ),
        *(
            Notice(
                NoticeKind.OFFSET_LEFT,
                str(tp),
                f"somebody wrote {theirs}, ahead of this "
                f"member's {ours}; left standing until {theirs} is passed",
            )
            for tp, (ours, theirs) in sorted(findings.left.items())
        ),
        *(
            Notice(
                NoticeKind.OFFSET_EDITED,
                str(tp),
                f"an operator set the offset to {to}; reading on from there",
            )
            for tp, to in sorted(findings.edited.items())
        ),
        *(
            Notice(NoticeKind.OFFSET_MALFORMED, str(tp), reason)
            for tp, reason in sorted(findings.malformed.items())
        ),
    ]
    state = replace(
        state, queued_commits=tuple(_without(c, findings.edited) for c in state.queued_commits)
    )
    grants = {
        tp: (state.owned[tp], to)
        for tp, to in findings.edited.items()
        if tp in state.serving and tp in state.owned and tp not in state.revoking
    }
    # What is about to move is not delivered again: its next owner begins at the edit.
    gone = state.serving.intersection(findings.edited)
    moves: tuple[Command, ...] = (Withdraw(gone),) if gone else ()
    moves += (StartFetching(grants),) if grants else ()
    return state, (*notices, *moves)


def _answer(
    state: State, asked: CommitRequest, failures: Mapping[TopicPartition, str]
) -> tuple[Command, ...]:
    answer: tuple[Command, ...] = ()
    if asked.purpose in ASKED:
        answer = tuple(AnswerCommit(number, failures) for number in (*asked.also, asked.request))
    notices = tuple(
        Notice(NoticeKind.COMMIT_FAILED, str(tp), f"{asked.purpose.value} commit: {reason}")
        for tp, reason in sorted(failures.items())
    )
    return (*notices, *answer)
