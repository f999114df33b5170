"""The invariants, checked after every action of a simulated world or along a real run's traces.

docs/verification.md lists the invariants by number. The promises do not cover changes that another
client makes to the group's znodes. For the partitions that such a change concerns (`by_hand`), the
monitor checks only the promises that hold despite the change. The monitor finds such changes in
ZooKeeper's history, which contains the session of each write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import ClassVar, Protocol

from zkconsumer.errors import MalformedZnodeError
from zkconsumer.member import commands as cmd
from zkconsumer.member import events
from zkconsumer.member.commands import NoticeKind
from zkconsumer.member.events import Event
from zkconsumer.member.offset_ledger import Commit
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import Settings, State
from zkconsumer.protocol import paths, payloads
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.assignors import assign
from zkconsumer.protocol.model import (
    OffsetAndMetadata,
    Purpose,
    RebalanceMode,
    Storage,
    TopicPartition,
)
from zkconsumer.protocol.paths import ZnodeKind, consumer_of
from zkconsumer.protocol.registrations import Pattern
from zkconsumer.sim.kernel.world import Delivered, InvariantViolation
from zkconsumer.sim.plan import FAULTS, Action, Do, Link
from zkconsumer.sim.world import Watcher, World
from zkconsumer.sim.znodes import Change, parent_of

MAX_UNDER_WAY = 16
"""Upper bound of one member's running operations: one each for a rebalance, a lease, a commit and a
diagnosis, and two stale ones for each of six reconnects that a busy member handles late."""

MAX_COMMITS = 16
"""Upper bound of the commits waiting in one member: an automatic commit, the commits of a hand-over
and of a leave, and the user's commits."""

COMMIT_SLACK_S = 2.0
"""Seconds, beyond the commit interval, within which a member that can commit must store a finished
message: the back-off before Kafka is asked again, and a commit that starts over.
"""

EXCUSES = frozenset(
    {
        NoticeKind.COMMIT_FAILED,
        NoticeKind.COMMIT_RETRIED,
        NoticeKind.OFFSET_EDITED,
        NoticeKind.OFFSET_LEFT,
        NoticeKind.OFFSET_MALFORMED,
        NoticeKind.OFFSET_OVERWRITTEN,
    }
)
"""Notices that report a failed commit of a partition, or an offset that another client wrote."""

TURNS = frozenset({Do.RECEIVE, Do.OVERTAKE})
"""Actions in which a member's loop handles an item of its inbox."""

LISTENER = frozenset({cmd.Callback.RELEASING, cmd.Callback.STARTING})
"""The calls of the listener; the callbacks have the others."""

HARMLESS = frozenset({Do.GROW, Do.LAG})
"""Faults after which no finished message may be redelivered."""


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


def _assigned(
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


def made_room(world: World, peer: str, subscription: dict[str, int]) -> bool:
    """Return whether the members have settled beside a peer that claims no partition.

    A user's thread may still be preempted after its member has settled: the grace period ended
    before the user finished the messages. That thread does not unsettle the group. To wait for it
    would be wrong, because members with `peers.nudge` rebalance beside this idle peer again and
    again, and each rebalance may preempt the user's thread anew.
    """
    pairs = zip(world.members, world.links, strict=True)
    live = [(member, link) for member, link in pairs if not (link.dead or link.frozen)]
    if not all(member.is_at_rest and link.connected for member, link in live):
        return False
    if not live:
        return True
    wanted = _assigned(world, [member for member, _ in live], {peer: subscription})
    owners = {tp: thread for tp, (thread, _, _) in world.owners().items()}
    return owners == {tp: thread for tp, thread in wanted.items() if consumer_of(thread) != peer}


def _can_commit(world: World, who: int) -> bool:
    """Return whether a member can commit: no fault prevents it, and no work is in progress."""
    link, member, wrong = world.links[who], world.members[who], world.active_faults
    if not link.joined or not link.connected or link.black_hole_at is not None or link.lost:
        return False
    if link.dead or link.frozen or member.wire or member.inbox or wrong.refused or wrong.kafka:
        return False
    if wrong.no_quorum or link.replica in (*wrong.isolated, *wrong.lagging):
        return False
    # The world may let other members act while a member's timer is due; then this member has not
    # had its turn.
    has_turned = member.due > world.now
    state = member.state
    return has_turned and state.connected and state.registered and state.may_deliver


def _retried_with(notices: Iterable[cmd.Notice], refused: object) -> bool:
    """Return whether a commit is retried after a notice that contains the refusals."""
    texts = [one.text for one in notices if one.kind is NoticeKind.COMMIT_RETRIED]
    reasons = refused.values() if isinstance(refused, Mapping) else ()
    return any(all(reason in text for reason in reasons) for text in texts)


@dataclass
class Monitor(Watcher):
    """Judges one run; raises InvariantViolation at the action that breaks a promise.

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

    JUDGES_COMMITS: ClassVar = True

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
    looked_at: float = 0.0
    simulated: bool = False
    asked: dict[int, int] = field(default_factory=dict)
    rewound: dict[TopicPartition, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    given: dict[TopicPartition, frozenset[int]] = field(default_factory=dict)
    announced: dict[tuple[int, TopicPartition], int] = field(default_factory=dict)
    lost_data: bool = False
    seen: int = 0
    deliveries: int = 0
    duplicates: int = 0
    rebalances: int = 0

    def copy(self) -> Monitor:
        twin = Monitor()
        for one in fields(self):
            value = getattr(self, one.name)
            setattr(twin, one.name, value.copy() if isinstance(value, set | dict) else value)
        return twin

    # ---- a member's steps ------------------------------------------------------------------------

    def transition(
        self,
        world: ObservedWorld,
        who: int,
        before: State,
        event: Event,
        commands: Iterable[cmd.Command],
    ) -> None:
        member = world.members[who]
        state = member.state
        self.rebalances += state.phase is Phase.READING and before.phase is not Phase.READING
        if len(member.running) > MAX_UNDER_WAY or len(state.commits.queued) > MAX_COMMITS:
            raise InvariantViolation(
                "I14",
                f"{who} accumulates work: {len(member.running)} "
                f"operations, {len(state.commits.queued)} commits",
            )
        if isinstance(event, events.PositionsCollected):
            self._collected(who, event.commit)
        elif isinstance(event, events.CommitTimedOut):
            # A queued commit is dropped without an answer; a running commit is still answered.
            if any(event.request in one.requests for one in before.commits.queued):
                self.asked[who] = self.asked.get(who, 0) - 1
        elif isinstance(event, events.Finished):
            self._ended(world, who, before, event, commands)
        elif isinstance(event, events.ReleaseReady):
            self._users_have_finished(world, who, before)
        if isinstance(event, events.Connected):
            self._connected(world, who, before, event)
        self._commanded(who, before, commands)
        if state.settings.announces:
            self._announced(who, state, commands)
        gives_up = isinstance(event, events.ClientDied) and state.phase is Phase.CLOSED
        if gives_up and not any(isinstance(command, cmd.GiveUp) for command in commands):
            raise InvariantViolation("I15", f"{who} closes itself without a notice")
        if state.phase is Phase.CLOSED and before.phase is not Phase.CLOSED:
            for tp, mine in before.owned.items():
                self._must_be_stored(world, who, tp, mine.epoch, "leaves")

    def _connected(
        self, world: ObservedWorld, who: int, before: State, event: events.Connected
    ) -> None:
        """Check that a client gives up only a session that has ended, or that is lost (I18)."""
        old, lives = before.session, world.zookeeper.sessions
        if self.simulated and old is not None and old.id != event.session.id and old.id in lives:
            raise InvariantViolation("I18", f"{who} leaves its session, which has not ended")

    def _users_have_finished(self, world: ObservedWorld, who: int, before: State) -> None:
        """Check that a rebalance goes on only after the users have finished, or after the grace
        period (I9).
        """
        member = world.members[who]
        if before.phase is not Phase.STOPPING:
            return
        done = before.revoking & before.serving
        if member.state.phase is Phase.STOPPING:
            done &= member.state.finished
        if held := member.held & {(tp, before.owned[tp].epoch) for tp in done}:
            raise InvariantViolation("I9", f"{who} gives up {held}, which its users hold")

    def _commanded(self, who: int, before: State, commands: Iterable[cmd.Command]) -> None:
        for command in commands:
            if isinstance(command, cmd.AnswerCommit):
                self.asked[who] = self.asked.get(who, 0) - 1
            elif isinstance(command, cmd.Notice) and command.kind in EXCUSES:
                self._excuse(before, command)
            elif isinstance(command, cmd.GiveUp):
                self.excused |= {*before.owned}  # every stream raises the reason

    def _announced(self, who: int, state: State, commands: Iterable[cmd.Command]) -> None:
        """Check the calls of the callbacks (I17).

        Each partition is first assigned, and then either revoked or lost, once. The member has no
        announced partition that it does not own any more.
        """
        for command in commands:
            if not isinstance(command, cmd.CallListener) or command.callback in LISTENER:
                continue
            is_assigned = command.callback is cmd.Callback.ASSIGNED
            for tp in command.partitions:
                if ((who, tp) in self.announced) is is_assigned:
                    known = "is assigned already" if is_assigned else "is not assigned"
                    does = f"{who} calls {command.callback.value} with {tp}"
                    raise InvariantViolation("I17", f"{does}, which {known}")
                if is_assigned:
                    self.announced[who, tp] = state.owned[tp].epoch
                else:
                    del self.announced[who, tp]
        for (member, tp), epoch in self.announced.items():
            mine = state.owned.get(tp)
            gone = mine is None or mine.epoch != epoch or state.phase is Phase.CLOSED
            if member == who and gone:
                raise InvariantViolation("I17", f"{who} has given up {tp}, and calls no callback")

    def _excuse(self, before: State, notice: cmd.Notice) -> None:
        named = {tp for tp in self.finished_in if str(tp) == notice.where}
        self.excused |= named or {*before.owned}

    def _must_be_stored(
        self, world: ObservedWorld, who: int, tp: TopicPartition, epoch: int, does: str
    ) -> None:
        """Check that a member that gives up a partition has stored what its user had finished
        (I13).

        The only excuses are a failed commit that the member has reported, retention that has
        deleted these messages, and a later commit of a lower offset that the user named.
        """
        settings = world.members[who].settings
        is_judged = self.simulated and settings.auto_commit_s is not None
        owner, offset = self.finished_in.get(tp, (-1, 0))
        if not is_judged or owner != epoch or tp in self.excused or tp in self.by_hand:
            return
        if self.deleted.get(tp) == epoch:
            return
        stored = self._stored(world, settings.storage, tp)
        # A named offset in ZooKeeper excuses the partition when it is written (`_offset_written`).
        is_named = tp in world.kafka and stored in self.given.get(tp, ())
        if is_named:
            return
        if max(stored, world.log_start.get(tp, 0)) < offset:
            raise InvariantViolation(
                "I13", f"{who} {does} {tp} with {offset} finished and {stored} stored"
            )

    def _stored(self, world: ObservedWorld, storage: Storage, tp: TopicPartition) -> int:
        """Return the offset at which the next owner starts."""
        in_kafka = world.kafka.get(tp)
        there = in_kafka.offset if in_kafka is not None else 0
        here = self.stored.get(tp, 0)
        return {Storage.ZOOKEEPER: here, Storage.KAFKA: there}.get(storage, max(here, there))

    def _collected(self, who: int, commit: Commit) -> None:
        """Allow the offsets that the user commits explicitly, including the unfinished message."""
        if commit.purpose in (Purpose.EXPLICIT, Purpose.LEAVE):
            for tp, (_, offset) in commit.positions.items():
                self.committable[tp] = max(self.committable.get(tp, 0), offset)
        if commit.purpose is Purpose.GIVEN:
            for tp, (_, offset) in commit.positions.items():
                self.committable[tp] = max(self.committable.get(tp, 0), offset)
                self.given[tp] = self.given.get(tp, frozenset()) | {offset}
                self.finished_below[tp] = min(self.finished_below.get(tp, 0), offset)
                self.edited.pop(tp, None)  # the user's offset replaces the edit
        if commit.purpose in (Purpose.EXPLICIT, Purpose.GIVEN):
            self.asked[who] = self.asked.get(who, 0) + 1

    def _ended(
        self,
        world: ObservedWorld,
        who: int,
        before: State,
        event: events.Finished,
        commands: Iterable[cmd.Command],
    ) -> None:
        """Check that a refusal is reported (I15), and that a failed eager claim leaves no znode
        (I10).
        """
        outcome = event.outcome
        # The state machine ignores the result of an operation that it no longer awaits.
        awaited = event.op in (before.op, before.commits.op)
        if not awaited:
            return
        refused = isinstance(outcome, events.Denied) or getattr(outcome, "denied", None)
        kinds = (NoticeKind.DENIED, NoticeKind.COMMIT_FAILED)
        notices = [c for c in commands if isinstance(c, cmd.Notice)]
        reported = any(notice.kind in kinds for notice in notices)
        if refused and not (reported or _retried_with(notices, refused)):
            raise InvariantViolation("I15", f"{who} is refused and gives no notice: {outcome}")
        eager = before.settings.mode is RebalanceMode.EAGER
        if eager and isinstance(outcome, events.Claimed) and (outcome.blocked or outcome.denied):
            session = world.links[who].session
            owners = world.owners().items()
            left = {tp for tp, (_, owner, _) in owners if owner == session}
            # A znode that ZooKeeper refuses to delete remains. The member reports the refusal and
            # still counts the partition as owned.
            left = left.difference(before.owned, outcome.claimed.keys() & outcome.denied.keys())
            if left and self.by_hand.isdisjoint(before.unconfirmed_claims):
                raise InvariantViolation("I10", f"{who} keeps {left} of a claim that failed")

    # ---- requests --------------------------------------------------------------------------------

    def served(self, world: World, who: int, request: rq.Request, reply: rq.Reply | None) -> None:
        """Check that an operation sends nothing after the session in which it began (I8).

        In the next session, the check of the member's id znode may find the next registration, and
        a stale commit would succeed.
        """
        running = world.members[who].running.get(world.ticket)
        session = world.links[who].session
        if running is not None and running.session_id != session:
            raise InvariantViolation(
                "I8",
                f"{who} sends {request} in session {session}, for an operation that began in "
                f"session {running.session_id}",
            )

    # ---- messages --------------------------------------------------------------------------------

    def finished(self, world: ObservedWorld, who: int, tp: TopicPartition, offset: int) -> None:
        if not self._too_late(world, who, tp):
            self.finished_below[tp] = max(self.finished_below.get(tp, 0), offset)
            if self.simulated and (mine := world.members[who].state.owned.get(tp)) is not None:
                self.finished_in[tp] = (mine.epoch, offset)
        self.committable[tp] = max(self.committable.get(tp, 0), offset)

    def _too_late(self, world: ObservedWorld, who: int, tp: TopicPartition) -> bool:
        """Return whether a message was finished after the grace period, and so is redelivered."""
        state = world.members[who].state
        return tp in state.revoking and state.phase is not Phase.STOPPING

    def delivered(self, world: ObservedWorld, message: Delivered) -> None:
        tp, offset, epoch = message.tp, message.offset, message.epoch
        self.deliveries += 1
        end = self.delivered_below.get(tp, 0)
        if offset > end:
            raise InvariantViolation("I5", f"{tp} skips from {end} to {offset}: lost")
        self.duplicates += offset < end
        self.delivered_below[tp] = max(end, offset + 1)
        if offset <= self.edited.get(tp, -1):
            del self.edited[tp]
        self._order(tp, offset, epoch)
        announces = world.members[message.who].settings.announces
        if announces and (message.who, tp) not in self.announced:
            raise InvariantViolation("I17", f"{message.who} delivers {tp}, which is not assigned")
        if tp not in self.by_hand:
            self._ownership(world, message)

    def _order(self, tp: TopicPartition, offset: int, epoch: int) -> None:
        expected = self.next_offset.get((tp, epoch))
        self.next_offset[tp, epoch] = offset + 1
        if tp in self.lowered or self.lost_data:
            return
        # If another client's change has made a new owner, the new owner may read before the old
        # owner's last commit. If the topic was deleted and created again within one read of the
        # group, the owner continues at the position that the user has set.
        is_asked = offset >= min(self._asked(tp, epoch), default=offset + 1)
        may_start = is_asked or tp in self.by_hand
        if expected is None and offset < self.stored.get(tp, 0) and not may_start:
            raise InvariantViolation("I4", f"{tp} starts at {offset}, below {self.stored[tp]}")
        if expected is not None and offset != expected:
            raise InvariantViolation("I4", f"{tp} delivers {offset} after {expected - 1}")
        is_excused = self.harmed or tp in self.excused
        if not is_excused and offset < self.finished_below.get(tp, 0):
            raise InvariantViolation("I13", f"{tp} repeats {offset}, finished, without a fault")

    def _ownership(self, world: ObservedWorld, message: Delivered) -> None:
        tp, epoch, who = message.tp, message.epoch, message.who
        if epoch < self.newest.get(tp, epoch):
            raise InvariantViolation(
                "I2", f"{tp} delivered under token {epoch} after {self.newest[tp]}"
            )
        self.newest[tp] = epoch
        for other, member in enumerate(world.members):
            if other != who and tp in member.feeds and world.now < member.gate:
                link = world.links[other]
                if not (link.dead or member.closed):
                    raise InvariantViolation("I2", f"{who} and {other} may both deliver {tp}")
        owner = world.owner(tp)
        session = world.links[who].session
        if owner is None or owner[1:] != (session, epoch):
            raise InvariantViolation("I3", f"{tp} delivered to {who}, owned by {owner}")

    def repositioned(
        self, world: World, who: int, tp: TopicPartition, *, epoch: int, offset: int, is_seek: bool
    ) -> None:
        """Record a changed position; check that `auto.offset.reset` is applied only if needed.

        If retention has deleted messages after a query's own position, the query continues with the
        messages that remain (`failOnDataLoss=false`); `auto.offset.reset` applies to stored offsets
        only.
        """
        start, end = world.log_start.get(tp, 0), world.log_end[tp]
        if not is_seek:
            known = self.next_offset.get((tp, epoch))
            is_overtaken = who < world.plan.queries and (known is None or known < start)
            wanted = start if world.plan.reset == "smallest" else end
            if offset != wanted and not (is_overtaken and offset == start):
                raise InvariantViolation("I4", f"{tp} is reset to {offset}, not to {wanted}")
            is_edited = (
                tp in self.lowered or self.lost_data
            )  # the position may be another client's offset
            if known is not None and start <= known <= end and not is_edited:
                raise InvariantViolation("I4", f"{tp} is reset, although {known} is in range")
            self.delivered_below[tp] = max(self.delivered_below.get(tp, 0), offset)
        self.committable[tp] = max(self.committable.get(tp, 0), offset)
        self.finished_below[tp] = min(self.finished_below.get(tp, 0), offset)
        self.rewound[tp] = epoch, (*self._asked(tp, epoch), offset)
        self.edited.pop(tp, None)  # the user's seek overrides the edit, or the edit is out of range
        self.next_offset[tp, epoch] = offset
        self.owed.pop(tp, None)
        owner, finished = self.finished_in.get(tp, (-1, 0))
        self.finished_in[tp] = owner, min(finished, offset)
        if is_seek:
            # Until the stream has fetched again, there is no position to store.
            del self.finished_in[tp]

    # ---- znodes ----------------------------------------------------------------------------------

    def _is_on_time(self, world: World, who: int) -> None:
        """Check that no deadline is overdue after a turn, regardless of the number of items in the
        inbox.
        """
        member = world.members[who]
        if member.due <= world.now and not member.closed:
            raise InvariantViolation("I14", f"{who} misses a deadline while its inbox is busy")

    def acted(self, world: World, action: Action) -> None:
        self.harmed |= action.do in FAULTS and action.do not in HARMLESS
        if action.do is Do.DELETE_TOPIC:
            # The owners of the topic's partitions withdraw them, and start no further commits of
            # them.
            owners = world.owners().items()
            self.deleted = {tp: at for tp, (_, _, at) in owners if tp.topic == world.TOPIC}
        if action.do is Do.LOSE_DATA:
            self._data_lost(world)
        if action.do is Do.REVIVE:
            self.asked.pop(action.who, None)  # the callers ended with the process
            for announced in [one for one in self.announced if one[0] == action.who]:
                del self.announced[announced]
        if action.do is Do.CREATE_TOPIC:
            # Offsets of the old topic do not apply to the new one.
            for ownership in [one for one in self.next_offset if one[0].topic == world.TOPIC]:
                del self.next_offset[ownership]
        history = world.zookeeper.history
        if self.seen < len(history):
            for entry in history[self.seen :]:
                self.written(world, entry)
            self.seen = len(history)
        self._owes(world)
        if action.do in TURNS:
            self._is_on_time(world, action.who)

    def _data_lost(self, world: World) -> None:
        """Forget what ZooKeeper has forgotten.

        The owner znodes and offsets are gone, as if another client had deleted all of them: until
        its lease ends, an old owner delivers beside a new one, and messages are redelivered.
        """
        self.lost_data = True
        self.by_hand.update(world.log_end)
        self.lowered.update(world.log_end)
        self.excused.update(world.log_end)
        for offsets in (self.stored, self.edited, self.unmarked):
            offsets.clear()
        for memory in (self.newest, self.deleted, self.finished_in, self.owed, self.rewound):
            memory.clear()
        self.next_offset.clear()

    def _owes(self, world: World) -> None:
        """Check that finished messages are stored within the commit interval (I13).

        Only time in which the member could commit counts: a fault delays the commit and does not
        excuse it. Redeliveries after a fault are therefore bounded by the messages delivered since
        the last commit that could succeed.
        """
        if not self.JUDGES_COMMITS:
            return
        self.simulated = True
        elapsed, self.looked_at = world.now - self.looked_at, world.now
        for who in self.can_commit:
            self.could_commit_s[who] = self.could_commit_s.get(who, 0.0) + elapsed
        self.can_commit = {who for who in range(len(world.members)) if _can_commit(world, who)}
        for who, member in enumerate(world.members):
            interval = member.state.settings.auto_commit_s
            for tp in member.state.serving if interval is not None else ():
                self._owes_of(world, who, tp, COMMIT_SLACK_S + (interval or 0.0))

    def _owes_of(self, world: World, who: int, tp: TopicPartition, limit_s: float) -> None:
        state = world.members[who].state
        epoch = state.owned[tp].epoch
        stored = self._stored(world, state.settings.storage, tp)
        owner, offset = self.finished_in.get(tp, (-1, 0))
        is_excused = tp in self.excused or self.deleted.get(tp) == epoch or self.lost_data
        if owner != epoch or offset <= stored or is_excused:
            self.owed.pop(tp, None)
            return
        # Compare even while the member works: its user may commit a lower offset before it rests.
        if tp in self.owed and (self.owed[tp][0] != epoch or self.owed[tp][1] <= stored):
            del self.owed[tp]
        if who not in self.can_commit:
            return
        could_s = self.could_commit_s.get(who, 0.0)
        _, first, since_s = self.owed.setdefault(tp, (epoch, offset, could_s))
        if could_s - since_s > limit_s:
            raise InvariantViolation(
                "I13", f"{who} has not stored {first} of {tp} for {could_s - since_s:.1f} s"
            )

    def written(self, world: ObservedWorld, entry: Change) -> None:
        """Check one write in ZooKeeper's history."""
        if "/" not in entry.path:
            return
        session, write = entry.session, entry.write
        members = (n for n, link in enumerate(world.links) if link.session == session)
        who = next(members, -1) if session else -1
        at = paths.locate(entry.path)
        tp = TopicPartition(at.name, at.partition)
        if who < 0 and isinstance(write, rq.Create | rq.SetData | rq.Delete):
            self._by_hand(world, at.kind, tp, entry)
        if at.kind is ZnodeKind.OFFSET:
            if isinstance(write, rq.SetData | rq.Create):
                self._offset_written(world, who, tp, write.data)
            elif isinstance(write, rq.Delete):
                self.lowered.add(tp)
                self.excused.add(tp)
                self.stored.pop(tp, None)
        elif at.kind is not ZnodeKind.OWNER or who < 0:
            return
        elif isinstance(write, rq.Delete):
            self._released(world, who, tp, entry)
        elif isinstance(write, rq.Create):
            thread = payloads.decode_owner(write.data, where="")
            if not thread.startswith(f"{world.members[who].name}-") or not write.ephemeral:
                raise InvariantViolation("I1", f"{who} claims {tp} as {thread}")

    def _by_hand(
        self, world: ObservedWorld, kind: ZnodeKind, tp: TopicPartition, entry: Change
    ) -> None:
        """Record a write of a client that is not a member."""
        sessions = {link.session for link in world.links}
        is_members = entry.old is not None and entry.old.stat.owner in sessions
        self.unmarked = {tp: at for tp, at in self.unmarked.items() if at == entry.zxid}
        if kind is ZnodeKind.OWNER and is_members:
            self.by_hand.add(tp)
        elif kind is ZnodeKind.MEMBER and is_members:
            self.by_hand.update(world.log_end)
        elif kind is ZnodeKind.OFFSET:
            self.edited.pop(tp, None)  # the present value is not a marked edit
            self.unmarked[tp] = entry.zxid
        elif paths.locate(parent_of(entry.path)).kind is ZnodeKind.EDITS:
            self.edited.update({tp: self.stored.get(tp, 0) for tp in self.unmarked})

    def _released(self, world: ObservedWorld, who: int, tp: TopicPartition, entry: Change) -> None:
        member = world.members[who]
        foreign = entry.old is not None and entry.old.stat.owner != entry.session
        # ZooKeeper cannot delete a znode on the condition that it is still the one that was read.
        # If, after the read, another client deletes the znode and a third client creates it again,
        # the release deletes the new znode.
        if foreign and tp not in self.by_hand:
            raise InvariantViolation("I8", f"{who} deletes the owner znode of another for {tp}")
        if tp in member.feeds:
            raise InvariantViolation("I9", f"{tp} released by {who} while it is delivered")
        if entry.old is not None and not foreign:
            epoch = entry.old.stat.czxid
            self._must_be_stored(world, who, tp, epoch, "releases")

    def _offset_written(
        self, world: ObservedWorld, who: int, tp: TopicPartition, data: bytes | None
    ) -> None:
        try:
            value = payloads.decode_offset(data, where="")
        except MalformedZnodeError:
            value = 0
        if who < 0:
            self.lowered.add(tp)
            self.excused.add(tp)
            self.stored[tp] = value
            if not self.deliveries:  # an earlier run of the group has read up to this offset
                self.delivered_below.setdefault(tp, value)
                self.committable.setdefault(tp, value)
            return
        if value != self.edited.get(tp, value):
            raise InvariantViolation("I7", f"{who} writes {value} over an operator's edit of {tp}")
        if value > self.committable.get(tp, 0):
            raise InvariantViolation("I6", f"{tp} committed {value}, not all finished")
        is_named = value in self.given.get(tp, ())
        if value < self.stored.get(tp, 0) and not is_named:
            self._lowered(world, tp, value)
        self.stored[tp] = value
        if value >= self.finished_in.get(tp, (-1, 0))[1]:
            # A lower value means that an older commit has replaced another client's offset: keep
            # the excuse.
            self.excused.discard(tp)
        if is_named:  # the next automatic commit stores the position again
            self.excused.add(tp)
            self.owed.pop(tp, None)
        owner = world.owner(tp)
        if tp not in self.by_hand and (owner is None or owner[1] != world.links[who].session):
            raise InvariantViolation("I8", f"{tp} committed by {who}, who does not own it")

    def _lowered(self, world: ObservedWorld, tp: TopicPartition, value: int) -> None:
        """Check that a seek or `auto.offset.reset` asked for this lower offset.

        The user may seek again before the position of the first seek is stored. A member that
        leaves still commits a partition whose owner znode another client has deleted.
        """
        epoch = self.rewound.get(tp, (-1, ()))[0]
        asked = self._asked(tp, epoch)
        owner = world.owner(tp)
        is_owner = owner[2] == epoch if owner is not None else tp in self.by_hand
        first = next((at for at, offset in enumerate(asked) if offset <= value), None)
        if first is None or not is_owner:
            raise InvariantViolation("I7", f"{tp} moved back from {self.stored[tp]} to {value}")
        self.rewound[tp] = epoch, asked[first + 1 :]

    def _asked(self, tp: TopicPartition, epoch: int) -> tuple[int, ...]:
        """Return the offsets that this owner's seeks and resets still have to store."""
        ownership, asked = self.rewound.get(tp, (epoch, ()))
        return asked if ownership == epoch else ()

    # ---- at the end ------------------------------------------------------------------------------

    def converged(self, world: ObservedWorld) -> str:
        """Return why the world has not converged; empty if it has (I5, I12, I15)."""
        if not world.settled():
            return f"not settled: {[m.name for m in world.members if not m.settled]}"
        pairs = list(zip(world.members, world.links, strict=True))
        live = [member for member, link in pairs if not (link.dead or link.frozen)]
        if not live:
            return ""
        gone = {link.session for _, link in pairs if link.dead or link.frozen} | {
            *world.old_sessions
        }
        if gone.intersection(world.zookeeper.sessions):
            return "a dead member's session has not expired"
        owners = {tp: thread for tp, (thread, _, _) in world.owners().items()}
        wanted = _assigned(world, live)
        read = {topic for m in live for topic in _subscribed(m.settings, _partitions(world))}
        left = {
            tp: end
            for tp, end in world.log_end.items()
            if tp.topic in read and self.delivered_below.get(tp, 0) < end
        }
        if left:
            return f"not delivered: {left}; owners are {owners}"
        if owners != wanted:
            return f"owners are {owners}, not {wanted}"
        waiting = [
            who
            for who, asked in self.asked.items()
            if asked and not (world.links[who].dead or world.links[who].frozen)
        ]
        return f"commits without an answer: {waiting}" if waiting else ""
