"""The state of one member: what it knows, what it holds, and what it is waiting for.

How long ownership may be acted on without hearing from ZooKeeper's leader.

A reply to `sync` proves that the leader still knew the session when it answered; a reply to a read
proves nothing, since a follower that is cut off from its leader answers reads while the leader
expires the session. So a `sync` sent at `t` grants a lease until `t` + 2/3 of the session timeout.
The third that is left covers the time in which a follower forwards the session's touches to the
leader, which is why a timeout under three server ticks is refused at the start.

`sync` asks no quorum. A leader that is cut off from its quorum answers for up to `syncLimit` + 1
ticks, while another leader expires the session: docs/differences.md ("What a lease guarantees")
says when the third suffices for that, too.

All times are seconds of one clock that does not stop while the machine sleeps; see
`consumer.gate.lease_clock`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from zkconsumer.member.commands import Callback, Command
from zkconsumer.member.offset_ledger import CommitPlan, Ledger
from zkconsumer.member.phases import Phase
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_snapshot import GroupView
from zkconsumer.protocol.model import (
    Blocker,
    ConsumerId,
    Ownership,
    Positions,
    Purpose,
    RebalanceMode,
    Session,
    Storage,
    ThreadId,
    TopicPartition,
)
from zkconsumer.protocol.registrations import Pattern
from zkconsumer.protocol.releases import DEFAULT, Profile

if TYPE_CHECKING:
    # Type checkers know which names and types that takes.
    from dataclasses import replace as replace  # noqa: PLC0414
else:

    def replace(one: T, **changes: Any) -> T:
        """As `dataclasses.replace`, which takes 16 us for a state's 45 fields; this takes 1.5.

        A step makes several states, and the simulator makes millions of steps.
        """
        if type(one) is not State:
            return dataclasses.replace(one, **changes)
        after = object.__new__(State)
        after.__dict__.update(one.__dict__, **changes)
        return after


# ---- lease ---------------------------------------------------------------------------------------


SHARE_OF_TIMEOUT = 2 / 3
RENEWALS_PER_TIMEOUT = 6
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Lease:
    """`deadline` ends the lease; `asked_at` is when the last `sync` was sent, `op` its number."""

    timeout_s: float = 0.0
    deadline: float = NEVER
    asked_at: float = NEVER
    op: int | None = None

    def due_at(self) -> float:
        """When the next `sync` should be sent; never two at once."""
        return (
            float("inf")
            if self.op is not None
            else self.asked_at + (self.timeout_s / RENEWALS_PER_TIMEOUT)
        )

    def asked(self, op: int, now: float) -> Lease:
        return dataclasses.replace(self, op=op, asked_at=now)

    def granted(self, sent_at: float) -> Lease:
        deadline = max(self.deadline, sent_at + SHARE_OF_TIMEOUT * self.timeout_s)
        return dataclasses.replace(self, op=None, deadline=deadline)

    def holds(self, now: float) -> bool:
        return now < self.deadline


# ---- state ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user configured; durations in seconds.

    Attributes:
        subscription: topic -> number of streams; of a list pattern, its regex -> number of streams.
        internal: topics that no pattern matches, anybody's (`exclude.internal.topics`).
        profile: what the group's JVM members do where releases differ (`peers.release`).
    """

    group: str
    consumer: ConsumerId
    subscription: Mapping[str, int]
    pattern: Pattern = Pattern.STATIC
    internal: frozenset[str] = frozenset()
    strategy: Strategy = Strategy.RANGE
    mode: RebalanceMode = RebalanceMode.INCREMENTAL
    auto_commit_s: float | None = 60.0  # None: auto.commit.enable=false
    grace_s: float = 1.0
    backoff_s: float = 2.0
    retries: int = 4
    nudge_s: float | None = None  # None: peers.nudge=false
    refresh_s: float | None = None  # least time between readings at rest; None: watches only
    listener_s: float | None = None  # how long a listener is waited for; None: there is none
    storage: Storage = Storage.ZOOKEEPER
    channel_backoff_s: float = 1.0  # before Kafka is asked again for offsets, or to store them
    commit_retries: int = 5
    profile: Profile = DEFAULT


class CommitRequest(NamedTuple):
    """`request` numbers an explicit commit, for its answer; 0 for all others.

    `retries` says how often Kafka may be asked again to store it. `also` are the numbers of earlier
    explicit commits that wait together with this one and get the same answer.
    """

    purpose: Purpose
    positions: Positions
    request: int = 0
    metadata: Mapping[TopicPartition, str] = {}
    retries: int = 0
    also: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InFlight:
    """The one commit under way; `tries` counts how often foreign writes made it start over."""

    op: int
    request: CommitRequest
    plan: CommitPlan
    tries: int = 1


@dataclass(frozen=True)  # without slots: see `replace`
class State:
    """All that `machine.step` decides from.

    Attributes:
        fenced: nothing may be delivered or committed until what we own was read back.
        client_fault: why the ZooKeeper client died last; empty while one works. `client_deaths`
            counts its deaths since the last connection, `client_refusals` those by a refusal.
        recreate_at: when the dead client is replaced by a new one.
        owned: owner znodes of ours; `serving` are those among them that a stream fetches.
        unconfirmed_claims: claims without a reply; they are read back after a reconnect.
        topics: the czxid of every topic ever seen, so that a re-created one is known.
        assigned: this member's partitions by the last view.
        revoking: partitions that this rebalance revokes. `finished` are those whose messages the
            user had finished when delivery stopped, and whose positions could be stored.
        reassign: partitions that are released and claimed again although they stay assigned: those
            of re-created topics, and those whose messages would be redelivered under one token.
        refused: partition -> why ZooKeeper refuses; left alone until the next view.
        malformed: partitions whose offset znode cannot be read: owned, never fetched.
        commits_at: the next commit waits until then, since Kafka could not take the last one.
        rewound: reset by `auto.offset.reset` while the commit under way was on its way.
        unverified: what we kept in this rebalance and have not yet re-read.
        unwatched: what we claimed and have not yet re-read, which arms the watch.
        blocked: who holds what we want, since when, and whether that was reported.
        idle_peers: partitions that their members do not claim; looked for again at `peers_at`.
        nudge_op: the last nudge whose deletion of the id znode has not been notified yet.
        refresh_at: a settled member reads the group again then, though no watch has fired.
        assignment: who should own what, all members' as far as we know it; for a listener only.
        last_callback: the listener's last call for this assignment; None: not called yet.
        read_again: the group changed after the view was read.
        postponed_reads: readings in a row that postponed a claim or a load because of news.
        claim_due: the blocked partitions are worth another try.
        op: number of the rebalance's operation under way; results of others are stale.
    """

    settings: Settings
    phase: Phase = Phase.OFFLINE
    session: Session | None = None
    connected: bool = False
    registered: bool = False
    fenced: bool = True
    wall_ms: int = 0
    client_fault: str = ""
    client_deaths: int = 0
    client_refusals: int = 0
    recreate_at: float | None = None
    view: GroupView | None = None
    topics: Mapping[str, int] = field(default_factory=dict)
    waiting_for: str = ""
    assigned: Mapping[TopicPartition, ThreadId] = field(default_factory=dict)
    owned: Mapping[TopicPartition, Ownership] = field(default_factory=dict)
    serving: frozenset[TopicPartition] = frozenset()
    unconfirmed_claims: Mapping[TopicPartition, ThreadId] = field(default_factory=dict)
    revoking: frozenset[TopicPartition] = frozenset()
    finished: frozenset[TopicPartition] = frozenset()
    reassign: frozenset[TopicPartition] = frozenset()
    refused: Mapping[TopicPartition, str] = field(default_factory=dict)
    malformed: frozenset[TopicPartition] = frozenset()
    unverified: frozenset[TopicPartition] = frozenset()
    unwatched: frozenset[TopicPartition] = frozenset()
    blocked: Mapping[TopicPartition, Blocker] = field(default_factory=dict)
    blocked_since: float | None = None
    blocked_reported: bool = False
    assignment: Mapping[TopicPartition, ThreadId] | None = None
    last_callback: Callback | None = None
    read_again: bool = False
    postponed_reads: int = 0
    claim_due: bool = False
    op: int | None = None
    last_op: int = 0
    grace_at: float | None = None
    retry_at: float | None = None
    verify_at: float | None = None
    auto_commit_at: float | None = None
    leave_at: float | None = None
    peers_at: float | None = None
    refresh_at: float | None = None
    nudged_at: float = float("-inf")
    nudge_op: int | None = None
    idle_peers: frozenset[TopicPartition] = frozenset()
    lease: Lease = field(default_factory=Lease)
    offsets: Ledger = field(default_factory=dict)
    running_commit: InFlight | None = None
    rewound: frozenset[TopicPartition] = frozenset()
    queued_commits: tuple[CommitRequest, ...] = ()
    commits_at: float | None = None


def own_topics(state: State) -> Mapping[str, int]:
    """Our topics with their numbers of streams; of a pattern, those that it matches by the view."""
    if state.settings.pattern is Pattern.STATIC:
        return state.settings.subscription
    return state.view.matched.get(state.settings.consumer, {}) if state.view else {}


Step = tuple[State, tuple[Command, ...]]
T = TypeVar("T")


def drop_from(
    mapping: Mapping[TopicPartition, T], partitions: frozenset[TopicPartition]
) -> Mapping[TopicPartition, T]:
    """`mapping` less `partitions`; the same object when there is nothing to take away."""
    if partitions.isdisjoint(mapping):
        return mapping
    return {tp: value for tp, value in mapping.items() if tp not in partitions}


def enter(state: State, phase: Phase) -> State:
    """Enter a phase: the one place where a state gets another phase.

    `machine.step` checks the change of a whole step with the table in `member.phases`.
    """
    return replace(state, phase=phase)


def start_op(state: State) -> tuple[State, int]:
    """A fresh operation number for the rebalance; results of the one before become stale."""
    op = state.last_op + 1
    return replace(state, op=op, last_op=op), op


def then(step: Step, following: Callable[[State], Step]) -> Step:
    """Go on from a step's state, keeping its commands in front."""
    state, commands = step
    state, more = following(state)
    return state, commands + more
