"""When a member reports a znode that it cannot read or decode.

Some clients create a znode without a payload, and write the payload with a second request.
kafka-node registers in this way at every join. So the operations watch a znode that they cannot
decode, and the member reads it again as soon as it changes. This module delays the report: the
member reports only a znode that it still cannot read after `REPORT_S` seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from zkconsumer.member.commands import Notice, NoticeKind
from zkconsumer.member.state import State, Step, Unreadable, replace
from zkconsumer.protocol.model import TopicPartition

REPORT_S = 1.0
"""The time, in seconds, for which a znode must stay unreadable before the member reports it.

It is longer than the time between two requests of a client over a slow network.
"""

Kinds = Collection[NoticeKind]

OF_VIEW: Kinds = frozenset(
    {NoticeKind.MALFORMED_PEER, NoticeKind.MALFORMED_TOPIC, NoticeKind.MALFORMED_BROKER}
)
"""The kinds of notices about znodes that a read of the group covers."""


def found(
    state: State,
    kinds: Kinds,
    notices: Iterable[Notice],
    now: float,
    *,
    among: Collection[str] | None = None,
) -> State:
    """Record what a read could not read.

    A znode that could not be read before keeps the time of its report, even if the reason has
    changed. After the report, only a new reason is reported.

    Args:
        kinds: the kinds of notices about the znodes that were read.
        notices: the reports of those that could not be read.
        among: the subjects of the notices about the znodes that were read; None: all.
    """
    before = {(one.notice.kind, one.notice.where): one for one in state.unreadable}
    kept = [
        one
        for one in state.unreadable
        if one.notice.kind not in kinds or (among is not None and one.notice.where not in among)
    ]
    for notice in notices:
        old = before.get((notice.kind, notice.where))
        if old is not None and (old.report_at is not None or old.notice == notice):
            kept.append(Unreadable(notice, old.report_at))
        else:
            kept.append(Unreadable(notice, now + REPORT_S))
    return replace(state, unreadable=tuple(kept))


def forget(state: State, kind: NoticeKind, where: Collection[str] | None = None) -> State:
    """Drop the reports of this kind about these subjects (None: about all)."""
    left = tuple(
        one
        for one in state.unreadable
        if one.notice.kind is not kind or (where is not None and one.notice.where not in where)
    )
    return state if len(left) == len(state.unreadable) else replace(state, unreadable=left)


def forget_offsets(state: State, partitions: Iterable[TopicPartition]) -> State:
    """Drop the reports about the offsets of these partitions."""
    if not state.unreadable:
        return state
    return forget(state, NoticeKind.OFFSET_MALFORMED, {str(tp) for tp in partitions})


def next_report(state: State) -> float | None:
    """Return when the next report is due; None if none is."""
    return min(
        (one.report_at for one in state.unreadable if one.report_at is not None), default=None
    )


def report(state: State, now: float) -> Step:
    """Report the znodes that are still unreadable."""
    due: list[Notice] = []
    left: list[Unreadable] = []
    for one in state.unreadable:
        is_due = one.report_at is not None and one.report_at <= now
        if is_due:
            due.append(one.notice)
        left.append(Unreadable(one.notice, None) if is_due else one)
    return (replace(state, unreadable=tuple(left)), tuple(due)) if due else (state, ())
