"""The state of one member: what it knows, what it owns, and what it waits for.

All times are seconds of one clock that does not stop while the computer sleeps
(`consumer.stream_partitions.lease_clock`).
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from zkconsumer.frozen import dataclass
from zkconsumer.member.commands import Callback, Command, Notice
from zkconsumer.member.offset_ledger import NOTHING, Commit, CommitPlan, Ledger
from zkconsumer.member.phases import Phase
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_snapshot import GroupView, Known
from zkconsumer.protocol.model import (
    Blocker,
    ConsumerId,
    Ownership,
    RebalanceMode,
    Session,
    Storage,
    ThreadId,
    TopicPartition,
)
from zkconsumer.protocol.registrations import Pattern
from zkconsumer.protocol.releases import DEFAULT, Profile

if TYPE_CHECKING:
    # Type checkers know which fields `dataclasses.replace` takes, and their types.
    from dataclasses import replace as replace  # noqa: PLC0414 - exports it
else:

    def replace(one: T, **changes: Any) -> T:  # Any: as `dataclasses.replace`
        """Return a changed copy.

        A step makes several states, and the simulator makes millions of steps: docs/performance.md
        says how much slower the random search is with `dataclasses.replace`.
        """
        kind = type(one)
        if kind not in PARTS:
            return dataclasses.replace(one, **changes)
        after = object.__new__(kind)
        after.__dict__.update(one.__dict__, **changes)
        return after


# ---- the lease ----------------------------------------------------------------------------------

SHARE_OF_TIMEOUT = 2 / 3
"""The part of the session timeout for which an answered `sync` grants the lease.

The remaining third covers the time that a follower takes to forward the session's heartbeats to the
leader. Therefore a member does not start with a session timeout below three server ticks.
"""

RENEWALS_PER_TIMEOUT = 6
"""How many times per session timeout the lease is renewed."""

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Lease:
    """The time for which this member may act on its ownership without asking ZooKeeper's leader.

    A reply to `sync` proves that the leader still knew the session when it answered. A reply to a
    read proves nothing, because a follower that is cut off from the leader answers reads while the
    leader expires the session. So a `sync` that was sent at `t` grants the lease until `t` + 2/3 of
    the session timeout.

    `sync` needs no quorum. A leader that is cut off from its quorum answers for up to `syncLimit`
    + 1 ticks, while another leader expires the session. docs/differences.md ("What a lease
    guarantees") says when the remaining third covers this case too.

    Attributes:
        timeout_s: the session timeout.
        deadline: when the lease ends.
        asked_at: when the last `sync` was sent.
        op: the number of the last `sync` while it has no reply; otherwise None.
    """

    timeout_s: float = 0.0
    deadline: float = NEVER
    asked_at: float = NEVER
    op: int | None = None

    def due_at(self) -> float:
        """Return when to send the next `sync`; infinity while the last one has no reply."""
        if self.op is not None:
            return float("inf")
        return self.asked_at + self.timeout_s / RENEWALS_PER_TIMEOUT

    def asked(self, op: int, now: float) -> Lease:
        return dataclasses.replace(self, op=op, asked_at=now)

    def granted(self, sent_at: float) -> Lease:
        deadline = max(self.deadline, sent_at + SHARE_OF_TIMEOUT * self.timeout_s)
        return dataclasses.replace(self, op=None, deadline=deadline)

    def holds(self, now: float) -> bool:
        return now < self.deadline


# ---- settings -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """The user's configuration; durations in seconds.

    Attributes:
        subscription: topic -> number of streams; for a whitelist or blacklist, the key is its
            regex.
        internal: topics that no member's pattern matches (`exclude.internal.topics`).
        auto_commit_s: the interval; None: `auto.commit.enable=false`.
        grace_s: how long the user may take to finish revoked partitions.
        nudge_s: the minimum time between two nudges, and the time between two looks that find no
            idle peer (see `member.peers`); None: `peers.nudge=false`.
        refresh_s: the minimum time after which a settled member reads the group again; None: only
            watches make it read.
        listener_s: how long to wait for the rebalance listener or a callback; None: there is
            neither.
        announces: whether the user has callbacks (`on_assigned`, `on_revoked`, `on_lost`).
        channel_backoff_s: the back-off before the member asks Kafka again to return or to store
            offsets.
        profile: how the group's JVM members behave where releases differ (`peers.release`).
    """

    group: str
    consumer: ConsumerId
    subscription: Mapping[str, int]
    pattern: Pattern = Pattern.STATIC
    internal: frozenset[str] = frozenset()
    strategy: Strategy = Strategy.RANGE
    mode: RebalanceMode = RebalanceMode.INCREMENTAL
    auto_commit_s: float | None = 60.0
    grace_s: float = 1.0
    backoff_s: float = 2.0
    retries: int = 4
    nudge_s: float | None = None
    refresh_s: float | None = None
    listener_s: float | None = None
    announces: bool = False
    storage: Storage = Storage.ZOOKEEPER
    channel_backoff_s: float = 1.0
    commit_retries: int = 5
    profile: Profile = DEFAULT


# ---- parts of the state -------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientDeaths:
    """How often the ZooKeeper client has died. Each new connection resets all fields.

    Attributes:
        reason: why the last client died; empty while a client works.
        deaths: how many clients died.
        refusals: how many of them died because the server refused the login.
        recreate_at: when a new client replaces the dead client.
    """

    reason: str = ""
    deaths: int = 0
    refusals: int = 0
    recreate_at: float | None = None


@dataclass(frozen=True)
class Blocked:
    """Partitions that are assigned to this member while another session owns them.

    The outcome `Claimed` adds partitions. They are removed when all partitions are free.

    Attributes:
        partitions: partition -> its owner.
        since: when the first claim was blocked.
        reported: whether the member has reported the blocked partitions to the user.
        ask_at: when the member reads the owners; None: it has read them.
        reason: the owners' assignment strategy, if it differs from this member's; otherwise empty.
    """

    partitions: Mapping[TopicPartition, Blocker] = field(default_factory=dict)
    since: float | None = None
    reported: bool = False
    ask_at: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class IdlePeers:
    """Other members that do not claim their assigned partitions. Used in SETTLED.

    Attributes:
        partitions: the partitions of idle peers. They are assigned to another member and had no
            owner znode in two checks in a row; in between, no partition without an owner was
            claimed, and none was released.
        unclaimed: all partitions without an owner znode at the last check; a peer may still claim
            them.
        look_at: when the member checks again.
        nudged_at: when the member last nudged the group.
        nudge_op: the number of the last nudge, until the watch reports the deleted id znode or
            the member has read the group.
    """

    partitions: frozenset[TopicPartition] = frozenset()
    unclaimed: frozenset[TopicPartition] = frozenset()
    look_at: float | None = None
    nudged_at: float = NEVER
    nudge_op: int | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A znode that the member could not read.

    Attributes:
        notice: the report of it.
        report_at: when the member reports it, unless it can be read by then; None: it is reported.
    """

    notice: Notice
    report_at: float | None


@dataclass(frozen=True, slots=True)
class Kept:
    """The position of a partition that this member has lost.

    The member continues there if it claims the partition again and the stored offset is gone.

    Attributes:
        epoch: the fencing token of the lost ownership.
        offset: the next offset to read.
        czxid: the czxid of the topic's znode, which a topic that is created again does not have.
    """

    epoch: int
    offset: int
    czxid: int


@dataclass(frozen=True)
class Commits:
    """The commits, in any phase; none starts in RELEASING.

    Attributes:
        running: the one commit that was sent and has no reply yet.
        op: the number of its operation.
        plan: what it sends to ZooKeeper and Kafka.
        tries: how many times it has started, because another client's write restarts it.
        queued: the waiting commits in the order in which they start.
        retry_at: the end of the back-off after Kafka could not store the last commit.
        rewound: partitions that `auto.offset.reset` moved while the running commit had no reply.
    """

    running: Commit | None = None
    op: int | None = None
    plan: CommitPlan = NOTHING
    tries: int = 0
    queued: tuple[Commit, ...] = ()
    retry_at: float | None = None
    rewound: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True)
class State:
    """All values that `machine.step` uses to decide, grouped by the phases that use them.

    In every phase:
        settings, phase: see the classes `Settings` and `Phase`.
        last_op: the number of the last operation of any kind.
        op: the phase's operation that has no reply yet; a reply to any other number is ignored.
        commits: see the class `Commits`.

    From the first Connected on, the connection:
        session, connected: the session, and whether it has a connection.
        registered: the member's id znode exists in this session.
        rival: the session that is registered under this member's consumer id; None if none is.
        former: the sessions that this member has had before this one.
        may_deliver: the member knows which owner znodes it has, so it may deliver and commit while
            the lease holds; False from a lost connection until they are read back.
        wall_ms: the wall clock's time at the last Connected, for the registration.
        client, lease: see the classes `ClientDeaths` and `Lease`.
        auto_commit_at: when the next automatic commit is due.

    From the first ViewRead on, the group:
        view: the group as the member last read it.
        known: what the next read of the group can reuse; None: it reads everything.
        fired: paths of topics, of the list of brokers and of claimed owner znodes whose watch has
            fired since the last read of the group began.
        topics: the czxid of every topic ever read, to recognise a topic that was created again.
        waiting_for: why no complete assignment is known; empty if the assignment is complete.
        assigned: this member's partitions according to the last view.
        assignment: the known partitions of every member; None if there is no listener.
        last_callback: the listener's last call for this assignment; None: not called yet.
        idle_peers: see the class `IdlePeers`.
        unreadable: the znodes of the group, and the offset znodes of owned partitions, that could
            not be read at the last attempt.

    From the first Claimed on, ownership:
        owned: the owner znodes of this session.
        announced: the owned partitions that the last callback announced as assigned; empty without
            callbacks.
        serving: the owned partitions that streams fetch.
        offsets: the stored offset of each owned partition whose offset was loaded.
        kept: the positions of partitions that this member has lost, until it loads their offset.
        unconfirmed_claims: claims without a reply; the member reads them back after a reconnect.
        refused: partition -> why ZooKeeper refuses its claim or release, or the read of its offset.
            The next view clears it.
        unfetched: owned partition -> why it is not fetched: its offset cannot be read, or its topic
            was deleted.
        unverified: partitions that were owned before this rebalance and are not yet read back.
        unwatched: owned partitions whose owner znode is not watched; a read-back watches it.
        blocked: see the class `Blocked`.

    While a rebalance runs:
        revoking: partitions that are being revoked, from STOPPING to RELEASING.
        finished: revoked partitions whose messages the user had finished when delivery stopped, and
            whose positions could be stored.
        reassign: partitions that are released and claimed again although they stay assigned,
            because their topic was re-created, or because their messages would be redelivered under
            the same fencing token.
        read_again: the group changed after the view was read.
        postponed_reads: how many times in a row the member has read the group again instead of
            claiming or loading, because the group had changed.
        claim_due: a claim of the missing partitions may succeed.

    Deadlines of single phases:
        grace_at: STOPPING: the end of the user's grace period. BEFORE_RELEASE and BEFORE_START:
            the end of the wait for the rebalance listener. LEAVING: the end of the wait for
            `on_revoked`.
        retry_at: REGISTERING and WAITING: the end of the back-off, which a read-back does not
            change.
        verify_at: WAITING and SETTLED: when the partitions in `unverified` are read back.
        refresh_at: SETTLED: when the group is read again although no watch has fired.
        leave_at: LEAVING: when the member no longer waits for its last commit.
    """

    settings: Settings
    phase: Phase = Phase.OFFLINE
    op: int | None = None
    last_op: int = 0
    commits: Commits = field(default_factory=Commits)

    session: Session | None = None
    connected: bool = False
    registered: bool = False
    rival: int | None = None
    former: frozenset[int] = frozenset()
    may_deliver: bool = False
    wall_ms: int = 0
    client: ClientDeaths = field(default_factory=ClientDeaths)
    lease: Lease = field(default_factory=Lease)
    auto_commit_at: float | None = None

    view: GroupView | None = None
    known: Known | None = None
    fired: frozenset[str] = frozenset()
    topics: Mapping[str, int] = field(default_factory=dict)
    waiting_for: str = ""
    assigned: Mapping[TopicPartition, ThreadId] = field(default_factory=dict)
    assignment: Mapping[TopicPartition, ThreadId] | None = None
    last_callback: Callback | None = None
    idle_peers: IdlePeers = field(default_factory=IdlePeers)
    unreadable: tuple[Unreadable, ...] = ()

    owned: Mapping[TopicPartition, Ownership] = field(default_factory=dict)
    announced: frozenset[TopicPartition] = frozenset()
    serving: frozenset[TopicPartition] = frozenset()
    offsets: Ledger = field(default_factory=Ledger)
    kept: Mapping[TopicPartition, Kept] = field(default_factory=dict)
    unconfirmed_claims: Mapping[TopicPartition, ThreadId] = field(default_factory=dict)
    refused: Mapping[TopicPartition, str] = field(default_factory=dict)
    unfetched: Mapping[TopicPartition, str] = field(default_factory=dict)
    unverified: frozenset[TopicPartition] = frozenset()
    unwatched: frozenset[TopicPartition] = frozenset()
    blocked: Blocked = field(default_factory=Blocked)

    revoking: frozenset[TopicPartition] = frozenset()
    finished: frozenset[TopicPartition] = frozenset()
    reassign: frozenset[TopicPartition] = frozenset()
    read_again: bool = False
    postponed_reads: int = 0
    claim_due: bool = False

    grace_at: float | None = None
    retry_at: float | None = None
    verify_at: float | None = None
    refresh_at: float | None = None
    leave_at: float | None = None


PARTS = frozenset({State, ClientDeaths, Blocked, IdlePeers, Commits})
"""The classes that `replace` copies fast. Without slots, they have a `__dict__` to copy."""


# ---- functions on states ------------------------------------------------------------------------


def own_topics(state: State) -> Mapping[str, int]:
    """Return the member's topics with their numbers of streams.

    For a whitelist or blacklist, these are the topics that it matches in the last view.
    """
    if state.settings.pattern is Pattern.STATIC:
        return state.settings.subscription
    return state.view.matched.get(state.settings.consumer, {}) if state.view else {}


def share(state: State) -> float:
    """Return a number from 0 to 1 that spreads the members of a group; the consumer id gives it."""
    return zlib.crc32(state.settings.consumer.encode()) / 2**32


Step = tuple[State, tuple[Command, ...]]
"""The result of a step: the new state, and the commands in the order in which to run them."""

T = TypeVar("T")


def drop_from(
    mapping: Mapping[TopicPartition, T], partitions: frozenset[TopicPartition]
) -> Mapping[TopicPartition, T]:
    """Return `mapping` without `partitions`; the same object if nothing is to be removed."""
    if partitions.isdisjoint(mapping):
        return mapping
    return {tp: value for tp, value in mapping.items() if tp not in partitions}


def enter(state: State, phase: Phase) -> State:
    """Enter a phase. No other function gives a state another phase.

    `machine.step` checks the phase change of each step against the table in `member.phases`.
    """
    return replace(state, phase=phase)


def start_op(state: State) -> tuple[State, int]:
    """Number a new operation of the phase; replies to the previous operation are then ignored."""
    op = state.last_op + 1
    return replace(state, op=op, last_op=op), op


def then(step: Step, following: Callable[[State], Step]) -> Step:
    """Apply `following` to the state of `step`; the commands of `step` come first."""
    state, commands = step
    state, more = following(state)
    return state, commands + more
