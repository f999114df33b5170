"""The phases of a member, and the table of the phase changes that are legal.

A member is in one phase at a time. In tests and in the simulator, `machine.step` compares each
phase change with the table, so the table cannot lack a change that the code makes. `scripts/phases`
writes the table and a diagram of it into docs/architecture.md.

`protocol.phase_table` describes the rows. A cause is the class of an event, the class of an
operation's outcome, or a deadline that a `Tick` finds passed. For instance, a step passes through
several phases when a commit has nothing to write.
"""

from __future__ import annotations

from enum import Enum

from zkconsumer.member.events import (
    Claimed,
    ClientDied,
    CloseRequested,
    Committed,
    CommitTimedOut,
    Connected,
    Denied,
    Event,
    ListenerReturned,
    MemberNodeGone,
    OffsetNodeChanged,
    OffsetsLoaded,
    Outcome,
    OwnerNodeChanged,
    OwnersChanged,
    PositionsCollected,
    Registered,
    Released,
    ReleaseReady,
    StoreUnavailable,
    Synced,
    Triggered,
    Verified,
    ViewRead,
)
from zkconsumer.protocol import phase_table
from zkconsumer.protocol.phase_table import PhaseTable


class Phase(Enum):
    """The phases of a member; each comment says what the member does, and what ends the phase."""

    OFFLINE = "offline"  # never connected yet: Connected
    REGISTERING = "registering"  # creates its id znode: Registered
    RECOVERING = "recovering"  # reads back the owner znodes it may hold: Verified
    READING = "reading"  # reads the group: ViewRead
    STOPPING = "stopping"  # the user finishes revoked partitions: all ReleaseReady, or `grace_at`
    COMMITTING = "committing"  # stores the revoked partitions' positions: the commit's end
    BEFORE_RELEASE = "before_release"  # the user's listener runs: ListenerReturned, or `grace_at`
    RELEASING = "releasing"  # deletes the revoked partitions' owner znodes: Released
    CLAIMING = "claiming"  # creates owner znodes: Claimed
    BEFORE_START = "before_start"  # the user's listener runs: ListenerReturned, or `grace_at`
    LOADING = "loading"  # reads the claimed partitions' stored offsets: OffsetsLoaded
    VERIFYING = "verifying"  # reads back and watches its owner znodes: Verified
    WAITING = "waiting"  # an assigned partition is not available: a watch, or the back-off
    SETTLED = "settled"  # owns and delivers all partitions assigned to it
    LEAVING = "leaving"  # commits for the last time; `on_revoked` runs: both ended, or a deadline
    CLOSED = "closed"


class Deadline(Enum):
    """The deadlines at which a `Tick` is due; each value is the name of a field of the state."""

    RECREATE = "client.recreate_at"
    LEASE = "lease"
    AUTO_COMMIT = "auto_commit_at"
    COMMITS = "commits.retry_at"
    LEAVE = "leave_at"
    GRACE = "grace_at"
    VERIFY = "verify_at"
    REFRESH = "refresh_at"
    PEERS = "idle_peers.look_at"
    RETRY = "retry_at"
    REPORT = "unreadable.report_at"
    OWNERS = "blocked.ask_at"


Cause = type[Event] | type[Outcome] | Deadline


enforced = False
"""Whether `machine.step` checks each phase change. Tests set it; simulated members check in any
case. A member in production does not check: an error would end the member because of a harmless
change that the table lacks."""


Row = phase_table.PhaseChange[Phase, Cause]
"""Legal phase changes of a member."""


def _row(before: Phase, cause: Cause | tuple[Cause, ...], after: str, when: str) -> Row:
    """Return a row; `after` holds the names of the next phases, separated by spaces."""
    causes = cause if isinstance(cause, tuple) else (cause,)
    return Row(frozenset({before}), causes, frozenset(Phase[one] for one in after.split()), when)


# ---- the table ----------------------------------------------------------------------------------

COMMIT_ENDED = (PositionsCollected, Committed, Denied, Synced, Deadline.COMMITS)
"""The causes that can end the last commit that a phase waits for.

A commit that has nothing to write ends as soon as it may start: when its positions are collected,
when the lease is granted, or when the back-off after Kafka's refusal is over.
"""

FINISHED = (ReleaseReady, Deadline.GRACE)
"""The user has finished the revoked partitions, or the grace period is over."""

RETURNED = (ListenerReturned, Deadline.GRACE)
"""The listener has returned, or the grace period is over."""

NEWS = (Triggered, OwnerNodeChanged, OffsetNodeChanged)
"""The group, or an owner znode or offset znode of this member, has changed."""

ALIVE = frozenset(Phase) - {Phase.CLOSED}
STAYING = ALIVE - {Phase.LEAVING}
OPERATING = frozenset(
    {
        Phase.READING,
        Phase.BEFORE_RELEASE,
        Phase.RELEASING,
        Phase.CLAIMING,
        Phase.BEFORE_START,
        Phase.LOADING,
        Phase.VERIFYING,
        Phase.SETTLED,
    }
)
"""The phases of a registered member in which an operation may run."""

ACTIVE = ALIVE - {Phase.OFFLINE, Phase.LEAVING}

MAIN_PATH: tuple[Row, ...] = (
    _row(Phase.OFFLINE, Connected, "REGISTERING", "the first connection"),
    _row(Phase.REGISTERING, Registered, "RECOVERING", "owner znodes of this session may exist"),
    _row(Phase.REGISTERING, Registered, "READING", "this session has no owner znode"),
    _row(Phase.RECOVERING, Verified, "READING", "the owner znodes are known again"),
    _row(Phase.READING, ViewRead, "STOPPING", "a delivered partition is revoked"),
    _row(Phase.READING, ViewRead, "CLAIMING", "nothing is revoked, and a partition is missing"),
    _row(Phase.READING, ViewRead, "SETTLED", "nothing has changed"),
    _row(
        Phase.STOPPING, FINISHED, "COMMITTING", "the user has finished, or the grace period is over"
    ),
    _row(Phase.COMMITTING, COMMIT_ENDED, "BEFORE_RELEASE", "there is a listener"),
    _row(Phase.COMMITTING, COMMIT_ENDED, "RELEASING", "there is no listener"),
    _row(Phase.BEFORE_RELEASE, RETURNED, "RELEASING", "a partition is revoked"),
    _row(Phase.RELEASING, Released, "CLAIMING", "a partition is missing"),
    _row(Phase.RELEASING, Released, "SETTLED", "nothing is missing"),
    _row(Phase.CLAIMING, Claimed, "BEFORE_START", "all is claimed, and there is a listener"),
    _row(Phase.CLAIMING, Claimed, "LOADING", "a partition was claimed"),
    _row(Phase.CLAIMING, Claimed, "WAITING", "other members hold all missing partitions"),
    _row(Phase.BEFORE_START, RETURNED, "LOADING", "an owned partition is not fetched"),
    _row(Phase.LOADING, OffsetsLoaded, "VERIFYING", "new owner znodes are not watched yet"),
    _row(Phase.VERIFYING, Verified, "SETTLED", "all assigned partitions are delivered"),
    _row(Phase.VERIFYING, Verified, "WAITING", "a partition is missing"),
    _row(
        Phase.WAITING,
        (OwnersChanged, OwnerNodeChanged, Deadline.OWNERS),
        "CLAIMING",
        "a missing partition may be free, or its owner is not known yet",
    ),
    _row(
        Phase.WAITING,
        (*NEWS, Deadline.RETRY),
        "READING",
        "the group changed, or the back-off is over",
    ),
    _row(
        Phase.SETTLED,
        (*NEWS, Deadline.REFRESH),
        "READING",
        "the group changed, or a refresh is due",
    ),
    _row(Phase.SETTLED, CloseRequested, "LEAVING", "the user closes the member"),
    _row(
        Phase.LEAVING,
        (*COMMIT_ENDED, *RETURNED),
        "CLOSED",
        "the last commit has ended, and `on_revoked` has returned",
    ),
)
"""The usual life of a member. The diagram in docs/architecture.md shows these rows."""

KEPT_ARE_READ = "the member reads again the owner znodes that it kept through the last rebalance"

DETOURS: tuple[Row, ...] = (
    _row(Phase.READING, ViewRead, "COMMITTING", "a lost connection cut off the last commit"),
    _row(
        Phase.READING,
        ViewRead,
        "BEFORE_RELEASE",
        "the listener must run, and no partition that is delivered is revoked",
    ),
    _row(Phase.READING, ViewRead, "RELEASING", "revoked partitions are not delivered"),
    _row(
        Phase.READING,
        ViewRead,
        "BEFORE_START LOADING VERIFYING",
        "an interrupted rebalance continues, or an unreadable offset is read again",
    ),
    _row(Phase.READING, ViewRead, "WAITING", "the assignment or a topic is unknown"),
    _row(Phase.STOPPING, FINISHED, "BEFORE_RELEASE RELEASING", "there are no automatic commits"),
    _row(
        Phase.BEFORE_RELEASE,
        RETURNED,
        "READING CLAIMING BEFORE_START",
        "no partition is revoked; the rebalance continues",
    ),
    _row(
        Phase.RELEASING,
        Released,
        "READING BEFORE_START LOADING VERIFYING WAITING",
        "the group changed, or no partition is missing",
    ),
    _row(Phase.CLAIMING, Claimed, "READING", "the group changed during the claim"),
    _row(Phase.CLAIMING, Claimed, "VERIFYING", "the claimed partitions' topic was deleted"),
    _row(
        Phase.BEFORE_START,
        RETURNED,
        "READING CLAIMING VERIFYING WAITING SETTLED",
        "the group changed, or no partition is to be fetched",
    ),
    _row(
        Phase.LOADING,
        OffsetsLoaded,
        "READING CLAIMING WAITING SETTLED",
        "the group changed, or all owner znodes are watched",
    ),
    _row(Phase.LOADING, StoreUnavailable, "WAITING", "Kafka does not return the offsets"),
    _row(
        Phase.VERIFYING,
        Verified,
        "READING BEFORE_RELEASE CLAIMING LOADING",
        "the group changed, or an owner znode was lost",
    ),
    _row(
        Phase.WAITING,
        OwnersChanged,
        "READING",
        "the group changed before ZooKeeper or Kafka refused a request of this member",
    ),
    _row(Phase.WAITING, Deadline.VERIFY, "VERIFYING", KEPT_ARE_READ),
    _row(Phase.SETTLED, Deadline.VERIFY, "VERIFYING", KEPT_ARE_READ),
    _row(
        Phase.SETTLED,
        Registered,
        "READING",
        "the member has registered again to wake an idle JVM member (`peers.nudge`)",
    ),
    _row(
        Phase.LEAVING,
        (MemberNodeGone, Connected, CommitTimedOut, Deadline.LEAVE),
        "CLOSED",
        "the last commit cannot end any more",
    ),
)
"""Changes that the diagram leaves out."""

ANY_TIME: tuple[Row, ...] = (
    Row(ACTIVE, (Connected,), frozenset({Phase.REGISTERING}), "a new session"),
    Row(ACTIVE, (Connected,), frozenset({Phase.RECOVERING}), "the same session, registered"),
    Row(
        ACTIVE,
        (Triggered, MemberNodeGone),
        frozenset({Phase.REGISTERING}),
        "another client deleted or replaced the member's id znode",
    ),
    Row(
        STAYING,
        (CloseRequested,),
        frozenset({Phase.LEAVING, Phase.CLOSED}),
        "the user closes the member, with positions to store or without",
    ),
    Row(
        OPERATING,
        (Denied,),
        frozenset({Phase.WAITING}),
        "ZooKeeper denies a read of the group, or the registration of a nudge (`peers.nudge`)",
    ),
    Row(
        ALIVE,
        (ClientDied,),
        frozenset({Phase.CLOSED}),
        "the ZooKeeper client failed permanently, and a new client would fail too",
    ),
)
"""Changes that can interrupt the life of a member in any phase."""

_ADVANCING = (
    (Phase.BEFORE_RELEASE, ListenerReturned),
    (Phase.BEFORE_RELEASE, Deadline.GRACE),
    (Phase.RELEASING, Released),
    (Phase.CLAIMING, Claimed),
    (Phase.BEFORE_START, ListenerReturned),
    (Phase.BEFORE_START, Deadline.GRACE),
    (Phase.LOADING, OffsetsLoaded),
    (Phase.VERIFYING, Verified),
    (Phase.WAITING, OwnersChanged),
    (Phase.WAITING, OwnerNodeChanged),
    (Phase.WAITING, Deadline.OWNERS),
)
_ADVANCED = (
    "READING STOPPING COMMITTING BEFORE_RELEASE RELEASING CLAIMING BEFORE_START LOADING VERIFYING"
    " WAITING SETTLED"
)
RARE: tuple[Row, ...] = tuple(
    _row(before, cause, _ADVANCED, "an interrupted rebalance continues")
    for before, cause in _ADVANCING
)
"""Changes after an interruption: every phase that `rebalance.enter_next_phase` can choose.

Two sequences lead to them (tests/member/test_phases.py has an example of each):

- 1. A lost connection aborts a rebalance whose partitions must still be released. 2. ZooKeeper
  refuses the next read of the group, so the member waits. 3. A watch or a read-back ends the
  wait, and the member revokes the partitions without reading the group first.
- 1. The group changes so often that `MAX_POSTPONED_READS` reads in a row postpone a claim. The
  member then acts on an outdated view. 2. Another client deletes an owner znode, so the listener is
  called again in the middle of the rebalance.
"""

LEGAL_CHANGES = (*MAIN_PATH, *DETOURS, *ANY_TIME, *RARE)


def cause_name(cause: Cause) -> str:
    """Return the name of a cause: the name of a class, or of a deadline's field."""
    return cause.value if isinstance(cause, Deadline) else cause.__name__


TABLE = PhaseTable(LEGAL_CHANGES, source="member.phases", name=cause_name)
check_change = TABLE.check
