"""The phases of a classic group at its coordinator, and the phase changes that are legal.

Each row means: in the phase `before`, one of the `causes` may lead to one of the phases `after`. A
cause is a request, a deadline, or an event of the coordinator. While `enforced` is set,
`classic_group.step` compares each phase change with the table. `scripts/phases` writes the table
into docs/later.md.

One step may pass through PREPARING: if all members have already joined, a rebalance ends in the
same step. The table holds the phase before the step and the phase after it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Phase(Enum):
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


class Row(NamedTuple):
    """Legal phase changes: one of `causes` leads from `before` to one of `after`."""

    before: Phase
    causes: tuple[Cause, ...]
    after: tuple[Phase, ...]
    when: str


enforced = False
"""Whether `classic_group.step` checks each phase change; the tests and the simulator set it."""

_MEMBER_GONE = (Cause.LEAVE, Cause.SESSION_DEADLINE)

MAIN_PATH: tuple[Row, ...] = (
    Row(Phase.EMPTY, (Cause.JOIN,), (Phase.PREPARING,), "the first member joins"),
    Row(
        Phase.PREPARING,
        (Cause.JOIN, Cause.JOIN_DEADLINE, *_MEMBER_GONE),
        (Phase.COMPLETING,),
        "all members have joined, or the time is over",
    ),
    Row(Phase.COMPLETING, (Cause.SYNC,), (Phase.STABLE,), "the leader sends the assignment"),
    Row(
        Phase.STABLE,
        (Cause.JOIN, *_MEMBER_GONE),
        (Phase.PREPARING,),
        "a member joins, changes, leaves or dies",
    ),
    Row(
        Phase.COMPLETING,
        (Cause.JOIN, *_MEMBER_GONE, Cause.SYNC_DEADLINE),
        (Phase.PREPARING,),
        "a member joins, changes, leaves, dies or does not sync",
    ),
    Row(
        Phase.PREPARING,
        (Cause.JOIN_DEADLINE, *_MEMBER_GONE),
        (Phase.EMPTY,),
        "no member is left",
    ),
    Row(Phase.EMPTY, (Cause.EXPIRY,), (Phase.DEAD,), "all offsets have expired"),
)
"""The usual life of a group. The diagram in docs/later.md shows these rows."""

DETOURS: tuple[Row, ...] = (
    Row(
        Phase.STABLE,
        (Cause.SYNC_DEADLINE,),
        (Phase.PREPARING,),
        "a member has not asked for its assignment",
    ),
    Row(
        Phase.STABLE,
        (Cause.JOIN,),
        (Phase.COMPLETING,),
        "the only member joins again, so the rebalance ends at once",
    ),
    Row(
        Phase.STABLE,
        (*_MEMBER_GONE, Cause.SYNC_DEADLINE),
        (Phase.EMPTY,),
        "the last member has left or died",
    ),
    Row(
        Phase.COMPLETING,
        (*_MEMBER_GONE, Cause.SYNC_DEADLINE),
        (Phase.EMPTY,),
        "the last member has left or died",
    ),
    Row(Phase.EMPTY, (Cause.RESIGNED,), (Phase.DEAD,), "another broker coordinates the group"),
    Row(Phase.PREPARING, (Cause.RESIGNED,), (Phase.DEAD,), "another broker coordinates the group"),
    Row(Phase.COMPLETING, (Cause.RESIGNED,), (Phase.DEAD,), "another broker coordinates the group"),
    Row(Phase.STABLE, (Cause.RESIGNED,), (Phase.DEAD,), "another broker coordinates the group"),
)
"""Changes that the diagram leaves out."""

LEGAL_CHANGES = (*MAIN_PATH, *DETOURS)


def _changes() -> dict[tuple[Phase, Cause], frozenset[Phase]]:
    changes: dict[tuple[Phase, Cause], frozenset[Phase]] = {}
    for row in LEGAL_CHANGES:
        for cause in row.causes:
            found = changes.get((row.before, cause), frozenset())
            changes[row.before, cause] = found | frozenset(row.after)
    return changes


CHANGES = _changes()
"""(phase, cause) -> the phases that may follow."""


class IllegalPhaseChangeError(AssertionError):
    """A step made a change of phase that the table does not allow: a defect of the machine."""


def check_change(before: Phase, cause: Cause | None, after: Phase) -> None:
    """Check one step's phase change; `cause` None stands for a cause that changes no phase.

    Raises:
        IllegalPhaseChangeError: the table does not allow the change.
    """
    if cause is None or after not in CHANGES.get((before, cause), ()):
        name = "a request that changes no phase" if cause is None else cause.value
        raise IllegalPhaseChangeError(
            f"{name} led from phase {before.value} to {after.value}, which later.group_phases does"
            " not allow"
        )
