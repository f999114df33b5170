"""The promises of a group that coordinates through ZooKeeper, and what their judge remembers.

Each promise is a predicate that says why it is broken; docs/verification.md explains the promises
by number. They do not cover changes that another client makes to the group's znodes. For the
partitions that such a change concerns (`by_hand`), a monitor checks only the promises that hold
despite the change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from zkconsumer.member import commands as cmd
from zkconsumer.member import events
from zkconsumer.member.commands import NoticeKind
from zkconsumer.member.events import Event
from zkconsumer.member.machine import IllegalTransitionError
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import Settings, State
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.assignors import assign
from zkconsumer.protocol.model import OffsetAndMetadata, RebalanceMode, Storage, TopicPartition
from zkconsumer.protocol.registrations import Pattern
from zkconsumer.sim.kernel.promises import Promise, Reason, promise
from zkconsumer.sim.kernel.world import Delivered
from zkconsumer.sim.member import answers_after_its_user
from zkconsumer.sim.plan import Link
from zkconsumer.sim.world import World

MAX_UNDER_WAY = 16
"""Upper bound of one member's running operations: one each for a rebalance, a lease, a commit and a
diagnosis, and two stale ones for each of six reconnects that a busy member handles late."""

MAX_COMMITS = 16
"""Upper bound of the commits waiting in one member: an automatic commit, the commits of a hand-over
and of a leave, and the user's commits."""


# ---- what the promises are about -----------------------------------------------------------------


class ObservedMember(Protocol):
    """The part of a member that a monitor reads; it serves partitions in `feeds` until `gate`."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def state(self) -> State: ...
    @property
    def feeds(self) -> Collection[TopicPartition]: ...
    @property
    def held(self) -> Set[tuple[TopicPartition, int]]: ...
    @property
    def gate(self) -> float: ...
    @property
    def running(self) -> Collection[int]: ...
    @property
    def closed(self) -> bool: ...
    @property
    def settled(self) -> bool: ...


class Sessions(Protocol):
    """The live sessions. Besides the writes, a monitor reads nothing else from ZooKeeper."""

    @property
    def sessions(self) -> Collection[int]: ...


class ObservedWorld(Protocol):
    """The run that a monitor judges: a simulated world, or a real run reconstructed from its
    records.
    """

    @property
    def now(self) -> float: ...
    @property
    def members(self) -> Sequence[ObservedMember]: ...
    @property
    def links(self) -> Sequence[Link]: ...
    @property
    def log_start(self) -> Mapping[TopicPartition, int]: ...
    @property
    def log_end(self) -> Mapping[TopicPartition, int]: ...
    @property
    def zookeeper(self) -> Sessions: ...
    @property
    def old_sessions(self) -> Sequence[int]: ...
    @property
    def kafka(self) -> Mapping[TopicPartition, OffsetAndMetadata]: ...
    def owner(self, tp: TopicPartition) -> tuple[str, int, int] | None: ...
    def owners(self) -> Mapping[TopicPartition, tuple[str, int, int]]: ...
    def settled(self) -> bool: ...


def _subscribed(settings: Settings, topics: Iterable[str]) -> dict[str, int]:
    """Return a member's topics with their numbers of streams.

    In a run, every pattern matches all topics.
    """
    if settings.pattern is Pattern.STATIC:
        return {name: count for name, count in settings.subscription.items() if name in topics}
    return dict.fromkeys(topics, *settings.subscription.values())


def _partitions(world: ObservedWorld) -> dict[str, list[int]]:
    """Return topic -> the numbers of its partitions."""
    partitions: dict[str, list[int]] = {}
    for tp in world.log_end:
        partitions.setdefault(tp.topic, []).append(tp.partition)
    return partitions


def assigned(
    world: ObservedWorld,
    live: Sequence[ObservedMember],
    peers: Mapping[str, dict[str, int]] = MappingProxyType({}),
) -> dict[TopicPartition, str]:
    """Return the assignment to the live members, and to `peers` with these subscriptions."""
    partitions = _partitions(world)
    subscriptions = {one.name: _subscribed(one.settings, partitions) for one in live} | dict(peers)
    read = {topic for topics in subscriptions.values() for topic in topics}
    return assign(
        live[0].settings.strategy,
        subscriptions=subscriptions,
        partitions={topic: numbers for topic, numbers in partitions.items() if topic in read},
    )


@dataclass
class Memory:
    """What the judge of a run remembers of it.

    Attributes:
        by_hand: partitions whose ownership another client has changed.
        delivered_below: partition -> the offset below which every message has been delivered.
        finished_below: partition -> the offset below which every message has been finished.
        committable: the highest offset that may be stored.
        next_offset: (partition, ownership) -> the offset that must be delivered next.
        newest: the newest ownership that has delivered a message.
        stored: the last written offset of each partition.
        lowered: partitions whose offset another client has written since the last delivery.
        edited: operators' edits that no member has read yet.
        unmarked: offsets that other clients wrote in the latest transaction; an edit mark in the
            same transaction turns them into edits.
        harmed: whether a fault has happened that may cause redeliveries.
        finished_in: partition -> (ownership, offset below which the owner's user has finished).
        excused: partitions whose commit has failed with a notice, or whose offset another client
            wrote.
        deleted: ownerships of partitions whose topic was deleted; none of their offsets is
            committed.
        owed: (ownership, offset, the owner's `could_commit_s`) of the first finished message that
            is not stored.
        could_commit_s: member -> number of seconds in which it was able to commit.
        can_commit: the members that can commit now.
        simulated: whether the world is simulated, so that times and the order of actions are exact.
        asked: member -> explicit commits without an answer.
        rewound: partition -> (ownership, offsets): the offsets to which `auto.offset.reset` or the
            user has moved the position, in order. A write may lower the stored offset to one of
            these offsets.
        given: partition -> offsets that a user has named in commits.
        announced: (member, partition) -> the ownership that `on_assigned` has announced, until
            `on_revoked` or `on_lost` is called.
        lost_data: whether ZooKeeper has lost its data. From then on a new owner may get the fencing
            token of an earlier one, so what the monitor knows of an ownership proves nothing.
    """

    by_hand: set[TopicPartition] = field(default_factory=set)
    delivered_below: dict[TopicPartition, int] = field(default_factory=dict)
    finished_below: dict[TopicPartition, int] = field(default_factory=dict)
    committable: dict[TopicPartition, int] = field(default_factory=dict)
    next_offset: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    newest: dict[TopicPartition, int] = field(default_factory=dict)
    stored: dict[TopicPartition, int] = field(default_factory=dict)
    lowered: set[TopicPartition] = field(default_factory=set)
    edited: dict[TopicPartition, int] = field(default_factory=dict)
    unmarked: dict[TopicPartition, int] = field(default_factory=dict)
    harmed: bool = False
    finished_in: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    excused: set[TopicPartition] = field(default_factory=set)
    deleted: dict[TopicPartition, int] = field(default_factory=dict)
    owed: dict[TopicPartition, tuple[int, int, float]] = field(default_factory=dict)
    could_commit_s: dict[int, float] = field(default_factory=dict)
    can_commit: set[int] = field(default_factory=set)
    simulated: bool = False
    asked: dict[int, int] = field(default_factory=dict)
    rewound: dict[TopicPartition, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    given: dict[TopicPartition, frozenset[int]] = field(default_factory=dict)
    announced: dict[tuple[int, TopicPartition], int] = field(default_factory=dict)
    lost_data: bool = False
    deliveries: int = 0
    duplicates: int = 0
    rebalances: int = 0

    def stored_for(self, world: ObservedWorld, storage: Storage, tp: TopicPartition) -> int:
        """Return the offset at which the next owner starts."""
        here = self.stored.get(tp, 0)
        if storage is Storage.ZOOKEEPER:
            return here
        in_kafka = world.kafka.get(tp)
        there = in_kafka.offset if in_kafka is not None else 0
        return there if storage is Storage.KAFKA else max(here, there)

    def asked_offsets(self, tp: TopicPartition, epoch: int) -> tuple[int, ...]:
        """Return the offsets that this owner's seeks and resets still have to store."""
        ownership, asked = self.rewound.get(tp, (epoch, ()))
        return asked if ownership == epoch else ()


# ---- ownership -----------------------------------------------------------------------------------


@promise("I1")
def claims_for_its_own_thread(
    member: ObservedMember, tp: TopicPartition, write: rq.Create, thread: str
) -> Reason:
    """A member creates only ephemeral owner znodes, which name one of its threads."""
    if thread.startswith(f"{member.name}-") and write.ephemeral:
        return None
    return f"{member.name} claims {tp} as {thread}"


@promise("I2")
def newest_owner_delivers(memory: Memory, message: Delivered) -> Reason:
    """No message is delivered under an older ownership than the newest that has delivered."""
    newest = memory.newest.get(message.tp, message.epoch)
    if message.epoch >= newest:
        return None
    return f"{message.tp} delivered under token {message.epoch} after {newest}"


@promise("I2")
def only_one_may_deliver(world: ObservedWorld, message: Delivered) -> Reason:
    """While a member delivers a partition, no other member with a valid lease may deliver it."""
    for other, member in enumerate(world.members):
        may_deliver = message.tp in member.feeds and world.now < member.gate
        lives = not (world.links[other].dead or member.closed)
        if other != message.who and may_deliver and lives:
            deliverer = world.members[message.who].name
            return f"{deliverer} and {member.name} may both deliver {message.tp}"
    return None


@promise("I3")
def owner_delivers(world: ObservedWorld, message: Delivered) -> Reason:
    """When a member delivers a message, ZooKeeper's leader holds the member's owner znode."""
    own = world.links[message.who].session
    owner = world.owner(message.tp)
    if owner is not None and owner[1:] == (own, message.epoch):
        return None
    delivers = f"{world.members[message.who].name} delivers {message.tp}"
    if owner is None:
        return f"{delivers}, which has no owner"
    thread, session, _ = owner
    if session == own:
        return f"{delivers} under an earlier claim than its present one"
    return f"{delivers}, which {thread} owns in session {session}"


@promise("I8")
def sends_in_its_session(world: World, who: int, request: rq.Request) -> Reason:
    """An operation sends nothing after the session in which it began.

    In the next session, the check of the member's id znode may find the next registration, and a
    stale commit would succeed.
    """
    running = world.members[who].running.get(world.ticket)
    session = world.links[who].session
    if running is None or running.session_id == session:
        return None
    return (
        f"{who} sends {request} in session {session}, for an operation that began in session "
        f"{running.session_id}"
    )


@promise("I8")
def releases_only_its_own(
    memory: Memory, who: int, tp: TopicPartition, *, is_foreign: bool
) -> Reason:
    """No member deletes another member's owner znode.

    ZooKeeper cannot delete a znode on the condition that it is still the one that was read. If,
    after the read, another client deletes the znode and a third client creates it again, the
    release deletes the new znode.
    """
    if not is_foreign or tp in memory.by_hand:
        return None
    return f"{who} deletes the owner znode of another for {tp}"


@promise("I8")
def only_the_owner_commits(
    memory: Memory, world: ObservedWorld, who: int, tp: TopicPartition
) -> Reason:
    """Only the owner of a partition writes its offset."""
    owner = world.owner(tp)
    is_owner = owner is not None and owner[1] == world.links[who].session
    if is_owner or tp in memory.by_hand:
        return None
    return f"{tp} committed by {who}, who does not own it"


@promise("I9")
def delivery_stops_before_the_release(world: ObservedWorld, who: int, tp: TopicPartition) -> Reason:
    """An owner znode is deleted only after delivery has stopped."""
    return (
        f"{tp} released by {who} while it is delivered" if tp in world.members[who].feeds else None
    )


@promise("I9")
def users_have_finished(world: ObservedWorld, who: int, before: State) -> Reason:
    """Before the grace period is over, a member gives up only what its users have finished."""
    member = world.members[who]
    if before.phase is not Phase.STOPPING:
        return None
    done = before.revoking & before.serving
    if member.state.phase is Phase.STOPPING:
        done &= member.state.finished
    held = member.held & {(tp, before.owned[tp].epoch) for tp in done}
    return f"{who} gives up {held}, which its users hold" if held else None


@promise("I10")
def failed_claim_leaves_no_znode(
    memory: Memory, world: ObservedWorld, who: int, before: State, outcome: events.Outcome
) -> Reason:
    """A failed eager claim leaves no owner znode, except those that ZooKeeper refuses to delete.

    The member reports such a refusal, and still counts the partition as owned.
    """
    if before.settings.mode is not RebalanceMode.EAGER or not isinstance(outcome, events.Claimed):
        return None
    if not (outcome.blocked or outcome.denied):
        return None
    session = world.links[who].session
    left = {tp for tp, (_, owner, _) in world.owners().items() if owner == session}
    left = left.difference(before.owned, outcome.claimed.keys() & outcome.denied.keys())
    if not left or not memory.by_hand.isdisjoint(before.unconfirmed_claims):
        return None
    return f"{who} keeps {left} of a claim that failed"


@promise("I18")
def keeps_a_living_session(
    memory: Memory, world: ObservedWorld, who: int, before: State, event: events.Connected
) -> Reason:
    """A member gives up its session only after the session has ended, or is lost with its data."""
    old, lives = before.session, world.zookeeper.sessions
    if memory.simulated and old is not None and old.id != event.session.id and old.id in lives:
        return f"{who} leaves its session, which has not ended"
    return None


# ---- messages ------------------------------------------------------------------------------------


@promise("I4")
def starts_at_the_stored_offset(
    memory: Memory, tp: TopicPartition, offset: int, epoch: int
) -> Reason:
    """The first offset of an ownership is not lower than the stored offset.

    If another client's change has made a new owner, the new owner may read before the old owner's
    last commit. If the topic was deleted and created again within one read of the group, the owner
    continues at the position that the user has set.
    """
    stored = memory.stored.get(tp, 0)
    if (tp, epoch) in memory.next_offset or offset >= stored or tp in memory.by_hand:
        return None
    is_asked = offset >= min(memory.asked_offsets(tp, epoch), default=offset + 1)
    return None if is_asked else f"{tp} starts at {offset}, below {stored}"


@promise("I4")
def offsets_are_consecutive(memory: Memory, tp: TopicPartition, offset: int, epoch: int) -> Reason:
    """Within an ownership, offsets are consecutive."""
    expected = memory.next_offset.get((tp, epoch), offset)
    return None if offset == expected else f"{tp} delivers {offset} after {expected - 1}"


@promise("I4")
def resets_to_the_configured_end(
    memory: Memory, world: World, who: int, tp: TopicPartition, *, epoch: int, offset: int
) -> Reason:
    """`auto.offset.reset` moves a partition to the end of the log that it names.

    If retention has deleted messages after a query's own position, the query continues with the
    messages that remain (`failOnDataLoss=false`); `auto.offset.reset` applies to stored offsets
    only.
    """
    start, end = world.log_start.get(tp, 0), world.log_end[tp]
    known = memory.next_offset.get((tp, epoch))
    is_overtaken = who < world.plan.queries and (known is None or known < start)
    wanted = start if world.plan.reset == "smallest" else end
    if offset == wanted or (is_overtaken and offset == start):
        return None
    return f"{tp} is reset to {offset}, not to {wanted}"


@promise("I4")
def resets_only_out_of_range(
    memory: Memory, world: World, tp: TopicPartition, *, epoch: int
) -> Reason:
    """`auto.offset.reset` applies only if the log does not contain the position.

    The position may be another client's offset, which the memory does not contain.
    """
    known = memory.next_offset.get((tp, epoch))
    if known is None or tp in memory.lowered or memory.lost_data:
        return None
    if world.log_start.get(tp, 0) <= known <= world.log_end[tp]:
        return f"{tp} is reset, although {known} is in range"
    return None


@promise("I5")
def no_message_is_skipped(memory: Memory, tp: TopicPartition, offset: int) -> Reason:
    """No message is skipped, except by retention, by `auto.offset.reset` and by the user."""
    end = memory.delivered_below.get(tp, 0)
    return f"{tp} skips from {end} to {offset}: lost" if offset > end else None


@promise("I13")
def repeats_only_after_a_fault(memory: Memory, tp: TopicPartition, offset: int) -> Reason:
    """Without a fault, no finished message is redelivered."""
    if memory.harmed or tp in memory.excused or offset >= memory.finished_below.get(tp, 0):
        return None
    return f"{tp} repeats {offset}, finished, without a fault"


# ---- offsets -------------------------------------------------------------------------------------


@promise("I6")
def commits_only_what_is_finished(memory: Memory, tp: TopicPartition, value: int) -> Reason:
    """Commits cover only finished messages; explicit commits and the last commit of a member that
    leaves cover only delivered messages.
    """
    if value <= memory.committable.get(tp, 0):
        return None
    return f"{tp} committed {value}, not all finished"


@promise("I7")
def honours_edits(memory: Memory, who: int, tp: TopicPartition, value: int) -> Reason:
    """No write replaces an operator's marked edit before the owner has continued from it."""
    if value == memory.edited.get(tp, value):
        return None
    return f"{who} writes {value} over an operator's edit of {tp}"


@promise("I7")
def lowers_only_what_was_moved(
    memory: Memory, world: ObservedWorld, tp: TopicPartition, value: int
) -> Reason:
    """An offset is lowered only if the user names it, or after a seek or `auto.offset.reset`.

    The user may seek again before the position of the first seek is stored. A member that leaves
    still commits a partition whose owner znode another client has deleted.
    """
    epoch = memory.rewound.get(tp, (-1, ()))[0]
    owner = world.owner(tp)
    is_owner = owner[2] == epoch if owner is not None else tp in memory.by_hand
    if is_owner and any(offset <= value for offset in memory.asked_offsets(tp, epoch)):
        return None
    return f"{tp} moved back from {memory.stored[tp]} to {value}"


@promise("I13")
def stores_before_it_gives_up(
    memory: Memory, world: ObservedWorld, who: int, tp: TopicPartition, epoch: int, *, does: str
) -> Reason:
    """A member that releases a partition, or leaves, has stored what its user had finished.

    The only excuses are a failed commit that the member has reported, retention that has deleted
    these messages, and a later commit of a lower offset that the user named. The write of a named
    offset in ZooKeeper excuses the partition (`Monitor.written`).
    """
    settings = world.members[who].settings
    is_judged = memory.simulated and settings.auto_commit_s is not None
    owner, offset = memory.finished_in.get(tp, (-1, 0))
    if not is_judged or owner != epoch or tp in memory.excused or tp in memory.by_hand:
        return None
    if memory.deleted.get(tp) == epoch:
        return None
    stored = memory.stored_for(world, settings.storage, tp)
    is_named = tp in world.kafka and stored in memory.given.get(tp, ())
    if is_named or max(stored, world.log_start.get(tp, 0)) >= offset:
        return None
    return f"{who} {does} {tp} with {offset} finished and {stored} stored"


@promise("I13")
def stores_in_time(memory: Memory, who: int, tp: TopicPartition, limit_s: float) -> Reason:
    """A finished message is stored within the commit interval, and some slack.

    Only time in which the member could commit counts: a fault delays the commit and does not excuse
    it. Redeliveries after a fault are therefore bounded by the messages delivered since the last
    commit that could succeed.
    """
    _, first, since_s = memory.owed[tp]
    waited_s = memory.could_commit_s.get(who, 0.0) - since_s
    if waited_s <= limit_s:
        return None
    return f"{who} has not stored {first} of {tp} for {waited_s:.1f} s"


# ---- work and reports ----------------------------------------------------------------------------


@promise("I14")
def work_is_bounded(member: ObservedMember, who: int) -> Reason:
    """A member has few operations in progress and few waiting commits."""
    operations, commits = len(member.running), len(member.state.commits.queued)
    if operations <= MAX_UNDER_WAY and commits <= MAX_COMMITS:
        return None
    return f"{who} accumulates work: {operations} operations, {commits} commits"


@promise("I14")
def no_deadline_is_missed(world: World, who: int) -> Reason:
    """After a turn, no deadline is overdue, regardless of the number of items in the inbox."""
    member = world.members[who]
    if member.due > world.now or member.closed:
        return None
    return f"{who} misses a deadline while its inbox is busy"


@promise("I15")
def reports_a_refusal(who: int, outcome: events.Outcome, commands: Iterable[cmd.Command]) -> Reason:
    """A refusal is reported, unless the commit is retried with a notice that contains it."""
    denied = getattr(outcome, "denied", None)
    if not (isinstance(outcome, events.Denied) or denied):
        return None
    notices = [one for one in commands if isinstance(one, cmd.Notice)]
    if any(one.kind in (NoticeKind.DENIED, NoticeKind.COMMIT_FAILED) for one in notices):
        return None
    texts = [one.text for one in notices if one.kind is NoticeKind.COMMIT_RETRIED]
    reasons = denied.values() if isinstance(denied, Mapping) else ()
    if any(all(reason in text for reason in reasons) for text in texts):
        return None
    return f"{who} is refused and gives no notice: {outcome}"


@promise("I15")
def says_why_it_gives_up(
    who: int, state: State, event: Event, commands: Iterable[cmd.Command]
) -> Reason:
    """A member that gives up says why."""
    gives_up = isinstance(event, events.ClientDied) and state.phase is Phase.CLOSED
    if not gives_up or any(isinstance(command, cmd.GiveUp) for command in commands):
        return None
    return f"{who} closes itself without a notice"


# ---- callbacks -----------------------------------------------------------------------------------


@promise("I17")
def callbacks_alternate(memory: Memory, who: int, command: cmd.CallListener) -> Reason:
    """Each partition is first assigned, and then either revoked or lost, once."""
    is_assigned = command.callback is cmd.Callback.ASSIGNED
    for tp in command.partitions:
        if ((who, tp) in memory.announced) is is_assigned:
            known = "is assigned already" if is_assigned else "is not assigned"
            return f"{who} calls {command.callback.value} with {tp}, which {known}"
    return None


@promise("I17")
def a_loss_is_announced(memory: Memory, who: int, state: State) -> Reason:
    """A member has no announced partition that it does not own any more."""
    for (member, tp), epoch in memory.announced.items():
        mine = state.owned.get(tp)
        gone = mine is None or mine.epoch != epoch or state.phase is Phase.CLOSED
        if member == who and gone:
            return f"{who} has given up {tp}, and calls no callback"
    return None


@promise("I17")
def delivers_only_what_is_announced(
    memory: Memory, world: ObservedWorld, message: Delivered
) -> Reason:
    """A member with callbacks delivers a partition only after `on_assigned`."""
    announces = world.members[message.who].settings.announces
    if not announces or (message.who, message.tp) in memory.announced:
        return None
    return f"{message.who} delivers {message.tp}, which is not assigned"


# ---- at the end of a run -------------------------------------------------------------------------


def owners_text(owners: Mapping[TopicPartition, str]) -> str:
    """Return the owners in the order of their partitions, for a sentence."""
    return ", ".join(f"{tp}: {thread}" for tp, thread in sorted(owners.items())) or "none"


@promise("I12")
def group_settles(memory: Memory, world: ObservedWorld) -> Reason:
    """Every partition gets the owner that the assignor computes, and all messages are delivered.

    All explicit commits are answered, too (I15).
    """
    if not world.settled():
        return f"not settled: {[m.name for m in world.members if not m.settled]}"
    pairs = list(zip(world.members, world.links, strict=True))
    live = [member for member, link in pairs if not (link.dead or link.frozen)]
    if not live:
        return None
    gone = {link.session for _, link in pairs if link.dead or link.frozen} | {*world.old_sessions}
    if gone.intersection(world.zookeeper.sessions):
        return "a dead member's session has not expired"
    owners = {tp: thread for tp, (thread, _, _) in world.owners().items()}
    wanted = assigned(world, live)
    read = {topic for m in live for topic in _subscribed(m.settings, _partitions(world))}
    left = {
        tp: end
        for tp, end in world.log_end.items()
        if tp.topic in read and memory.delivered_below.get(tp, 0) < end
    }
    if left:
        ends = ", ".join(f"{tp} below {end}" for tp, end in sorted(left.items()))
        return f"not delivered: {ends}; owners are {owners_text(owners)}"
    if owners != wanted:
        return f"owners are {owners_text(owners)}, not {owners_text(wanted)}"
    waiting = [
        who
        for who, asked in memory.asked.items()
        if asked and not (world.links[who].dead or world.links[who].frozen)
    ]
    return f"commits without an answer: {waiting}" if waiting else None


@promise("I12")
def settled_group_rests(memory: Memory, before: int) -> Reason:
    """A settled group rebalances no more while nothing changes.

    `before` is the number of rebalances when it had settled.
    """
    more = memory.rebalances - before
    return f"{more} rebalances at rest" if more else None


@promise("I15")
def every_event_is_handled(error: Exception) -> Reason:
    """The state machine has a transition for every event, and no member's thread crashes."""
    if isinstance(error, IllegalTransitionError):
        return f"an event without a row in the table: {error}"
    return f"the member's thread crashes: {error!r}"


PROMISES: Final[tuple[Promise[...], ...]] = (
    claims_for_its_own_thread,
    newest_owner_delivers,
    only_one_may_deliver,
    owner_delivers,
    starts_at_the_stored_offset,
    offsets_are_consecutive,
    resets_to_the_configured_end,
    resets_only_out_of_range,
    no_message_is_skipped,
    commits_only_what_is_finished,
    honours_edits,
    lowers_only_what_was_moved,
    sends_in_its_session,
    releases_only_its_own,
    only_the_owner_commits,
    delivery_stops_before_the_release,
    users_have_finished,
    answers_after_its_user,
    failed_claim_leaves_no_znode,
    repeats_only_after_a_fault,
    stores_before_it_gives_up,
    stores_in_time,
    work_is_bounded,
    no_deadline_is_missed,
    reports_a_refusal,
    says_why_it_gives_up,
    callbacks_alternate,
    a_loss_is_announced,
    delivers_only_what_is_announced,
    keeps_a_living_session,
    group_settles,
    settled_group_rests,
    every_event_is_handled,
)
"""The promises of a group. Those of an operator's `apply` (I16) are in `sim.tool`, which needs more
than the standard library."""
