"""The phases of a classic group at its coordinator, and the phase changes that are legal.

`protocol.phase_table` describes the rows. A cause is a request, a deadline, or an event of the
coordinator. `classic_group.step` compares each phase change with the table. `scripts/phases` writes
the table into docs/later.md.

One step may pass through PREPARING: if all members have already joined, a rebalance ends in the
same step.
"""

from __future__ import annotations

from enum import Enum

from zkconsumer.protocol import phase_table
from zkconsumer.protocol.phase_table import PhaseTable


class GroupPhase(Enum):
    """The phase of a classic group; the value is Kafka's name."""

    EMPTY = "Empty"  # no member; the group keeps its offsets until they expire
    PREPARING = "PreparingRebalance"  # waits until all members have joined
    COMPLETING = "CompletingRebalance"  # waits for the assignment of the leader
    STABLE = "Stable"  # every member can get its assignment
    DEAD = "Dead"  # deleted, or coordinated by another broker now


class Cause(Enum):
    """The causes of a phase change; the value is the name in docs/later.md."""

    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    LEAVE = "LeaveGroup"
    JOIN_DEADLINE = "rebalance timeout"
    SYNC_DEADLINE = "sync timeout"
    SESSION_DEADLINE = "session timeout"
    EXPIRY = "offset expiry"
    RESIGNED = "coordinator moves"


Row = phase_table.PhaseChange[GroupPhase, Cause]
"""Legal phase changes of a classic group."""


def _row(
    before: GroupPhase, causes: tuple[Cause, ...], after: tuple[GroupPhase, ...], when: str
) -> Row:
    return Row(frozenset({before}), causes, frozenset(after), when)


_MEMBER_GONE = (Cause.LEAVE, Cause.SESSION_DEADLINE)

MAIN_PATH: tuple[Row, ...] = (
    _row(GroupPhase.EMPTY, (Cause.JOIN,), (GroupPhase.PREPARING,), "the first member joins"),
    _row(
        GroupPhase.PREPARING,
        (Cause.JOIN, Cause.JOIN_DEADLINE, *_MEMBER_GONE),
        (GroupPhase.COMPLETING,),
        "all members have joined, or the time is over",
    ),
    _row(
        GroupPhase.COMPLETING,
        (Cause.SYNC,),
        (GroupPhase.STABLE,),
        "the leader sends the assignment",
    ),
    _row(
        GroupPhase.STABLE,
        (Cause.JOIN, *_MEMBER_GONE),
        (GroupPhase.PREPARING,),
        "a member joins, changes, leaves or dies",
    ),
    _row(
        GroupPhase.COMPLETING,
        (Cause.JOIN, *_MEMBER_GONE, Cause.SYNC_DEADLINE),
        (GroupPhase.PREPARING,),
        "a member joins, changes, leaves, dies or does not sync",
    ),
    _row(
        GroupPhase.PREPARING,
        (Cause.JOIN_DEADLINE, *_MEMBER_GONE),
        (GroupPhase.EMPTY,),
        "no member is left",
    ),
    _row(GroupPhase.EMPTY, (Cause.EXPIRY,), (GroupPhase.DEAD,), "all offsets have expired"),
)
"""The usual life of a group. The diagram in docs/later.md shows these rows."""

DETOURS: tuple[Row, ...] = (
    _row(
        GroupPhase.STABLE,
        (Cause.SYNC_DEADLINE,),
        (GroupPhase.PREPARING,),
        "a member has not asked for its assignment",
    ),
    _row(
        GroupPhase.STABLE,
        (Cause.JOIN,),
        (GroupPhase.COMPLETING,),
        "the only member joins again, so the rebalance ends at once",
    ),
    _row(
        GroupPhase.STABLE,
        (*_MEMBER_GONE, Cause.SYNC_DEADLINE),
        (GroupPhase.EMPTY,),
        "the last member has left or died",
    ),
    _row(
        GroupPhase.COMPLETING,
        (*_MEMBER_GONE, Cause.SYNC_DEADLINE),
        (GroupPhase.EMPTY,),
        "the last member has left or died",
    ),
    *(
        _row(one, (Cause.RESIGNED,), (GroupPhase.DEAD,), "another broker coordinates the group")
        for one in GroupPhase
        if one is not GroupPhase.DEAD
    ),
)
"""Changes that the diagram leaves out."""

LEGAL_CHANGES = (*MAIN_PATH, *DETOURS)


TABLE = PhaseTable(LEGAL_CHANGES, source="later.group_phases", name=lambda cause: cause.value)
check_change = TABLE.check
