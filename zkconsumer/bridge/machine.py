"""The bridge as a state machine: `step(state, event) -> (state, commands)`.

The membership in the brokers' group is `later.classic_member`, whose settings limit the assignment
to the partitions that the bridge lends (`ClientSettings.lends`). This module decides which
partitions these are. After each event it brings the state closer to what should be:

- A partition that a consumer of the bridge has claimed is lent when Kafka stores an offset that is
  not below ZooKeeper's (`_store`), and the brokers' group then rebalances (`_rejoin`).
- A partition that the old side will get, or whose consumer's lease is about to end, is not assigned
  any more. When no new member owns it, its offset is read in Kafka; only then may the consumer
  commit this offset to ZooKeeper and release the partition (`return_partitions`).
- The consumers of the bridge change only when all partitions that the change takes away from them
  have returned, and their offsets are in ZooKeeper (`change_consumers`). A JVM member reads the
  offset before it claims a partition, and gives up after four attempts.
- An old member that joins unplanned may have read an offset before it was final. So the bridge
  stores the last offset in ZooKeeper, and releases the partition `Settings.claim_s` later: until
  then the member's claims fail, and it reads the offset again.

The coordinator does not say who owns a partition. The leader knows two things: to whom it has just
assigned each partition and, in cooperative mode, which partitions each member lists as owned when
it joins (`learn_members`). Eager members revoke everything before they join.

The coordinator tells a restarted static leader that the leader is its old member id. So the
restarted leader believes that it follows.
It joins again with its new member id, and then leads (`take_lead`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from zkconsumer.bridge import shares
from zkconsumer.bridge.state import (
    BridgeEnded,
    CommitEnded,
    CommitToZooKeeper,
    Event,
    Goal,
    GoalChanged,
    Granted,
    GroupSeen,
    Held,
    LeaseChanged,
    LockKept,
    ReleaseAsked,
    RemoveMembers,
    Return,
    RunConsumers,
    Stage,
    State,
    Stored,
    Withdrawn,
)
from zkconsumer.later import classic_member, client_state
from zkconsumer.later import member_events as ev
from zkconsumer.later.classic_member_state import OVER, ClassicPhase
from zkconsumer.later.client_state import BACKOFF_S, NEVER
from zkconsumer.later.member_events import Commands, then
from zkconsumer.protocol.later import consumer_protocol as wire
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition

Step = tuple[State, Commands]

REMOVE_AGAIN_S = 10.0
"""How long, in seconds, the bridge waits for a rebalance after it has removed the other members.

Then it removes them again: the brokers may have refused the removal, or another broker may have
become the coordinator before the removal was stored.
"""

STOP_S = 10.0
"""How long, in seconds, a stopped bridge waits for the end of a rebalance that it has joined.

Without this wait, the new members would wait for the bridge's assignment until the brokers remove
the bridge. Most members join within three seconds, at their next heartbeat. A member that does not
poll may take up to `max.poll.interval.ms`.
"""

REFUSED_S = 5.0
"""How long, in seconds, the bridge waits before it asks again about a partition whose offset the
brokers alone have refused to show or to store: they may not know its topic yet, or permit it."""

RETURN_ANYWAY_S = 15.0
"""How long, in seconds, the brokers may refuse to show the last offset of a partition that the
bridge must return. Then it returns the partition with the last offset that it knows."""

REGISTER_S = 10.0
"""How long, in seconds, the bridge waits until new consumers have registered."""

GREET_AGAIN_S = 300.0
"""How often, in seconds, a bridge that is alone in the brokers' group joins again.

If the coordinator resigns, and is elected again between two heartbeats of the bridge, nothing tells
the bridge that the coordinator has read the group in its log (`greet_coordinator`). This is rare,
and brokers log two warnings whenever a group without assignments rebalances.
"""

FOLLOWS = "another member leads the brokers' group"
"""Why a bridge ends if it was started after the new members and may not remove them."""


LEFT = "it has left the brokers' group"
"""Why a bridge ends that has reached the goal FINISH or ROLLBACK."""


def step(state: State, event: ev.Event) -> Step:
    """Return the state after an event, and the commands to run."""
    if is_over(state):
        return state, ()
    if isinstance(event, Event):
        result: Step = HANDLERS[type(event)](state, event), ()
    elif isinstance(event, ev.Answered) and event.number in _own_requests(state):
        result = _answered(state, event), ()
    else:
        result = _in_brokers_group(state, event)
    result = then(result, lambda s: _advance(s, event.now))
    # The membership acts on what has just been decided, for instance to join again.
    after, commands = then(result, lambda s: _in_brokers_group(s, ev.Tick(event.now)))
    return after, (*commands, BridgeEnded(after.ended)) if after.ended else commands


def is_over(state: State) -> bool:
    """Return whether the bridge has ended."""
    return bool(state.ended)


def is_settled(state: State) -> bool:
    """Return whether the bridge leads, and no partition is on its way to the other side."""
    is_calm = state.change is None and state.wanted[0] == len(state.running)
    return (
        classic_member.is_settled(state.classic)
        and state.leads
        and state.given == lendable(state, float("-inf"))
        and all(one.stage is Stage.LENT for one in state.held.values())
        and shares.holds_all(state)
        and is_calm
    )


def next_deadline(state: State, now: float) -> float:
    """Return the next moment after `now` at which a `Tick` is due; infinity for never."""
    if is_over(state):
        return NEVER
    due = [classic_member.next_deadline(state.classic, now), state.mirror_at]
    due += [state.retry_at, state.remove_at, state.greet_at, state.end_by]
    due += [lease_end(state, one.consumer) for one in state.held.values()]
    due += [at for one in state.held.values() for at in (one.release_at, one.retry_at)]
    due += [state.wanted[1] + state.setup.calm_s, state.counted_until]
    return min((at for at in due if at > now), default=NEVER)


# ---- what may be lent ----------------------------------------------------------------------------


def lease_end(state: State, consumer: int) -> float:
    """Return the time by which the new members must be asked to revoke a consumer's partitions."""
    return state.leases.get(consumer, -NEVER) - state.setup.lease_margin_s


def lendable(state: State, now: float) -> frozenset[TopicPartition]:
    """Return the partitions that the new members may read."""
    return frozenset(
        tp
        for tp, one in state.held.items()
        if one.stage is Stage.LENT and now < lease_end(state, one.consumer)
    )


def _limited(state: State) -> frozenset[str]:
    """Return the topics that new members read only as far as the bridge lends their partitions."""
    return state.old_topics.union(state.settings.topics)


def _limit(state: State, now: float) -> State:
    """Tell the membership which partitions it may assign from now on."""
    lends: dict[str, frozenset[int]] = dict.fromkeys(_limited(state), frozenset())
    for tp in lendable(state, now):
        lends[tp.topic] = lends.get(tp.topic, frozenset()) | {tp.partition}
    if state.settings.lends == lends:
        return state
    settings = replace(state.settings, lends=lends)
    return replace(state, classic=replace(state.classic, settings=settings))


# ---- the membership in the brokers' group --------------------------------------------------------


def _in_brokers_group(state: State, event: ev.Event) -> Step:
    """Let the membership handle an event, and learn from its result."""
    if is_over(state):
        return state, ()
    state = _limit(state, event.now)
    before, polling = state.classic, _may_join(state, event)
    if before.polling is not polling or before.poll_until != NEVER:
        before = replace(before, polling=polling, poll_until=NEVER)
        state = replace(state, classic=before)
    classic, commands = classic_member.step(before, event)
    if classic is before:
        return state, commands
    state = replace(state, classic=classic)
    if classic.generation != before.generation or classic.member != before.member:
        state = forget_generation(state)
    if before.client.coordinator is None:
        state = greet_coordinator(state)
    if isinstance(event, ev.Answered) and isinstance(event.response, msg.Joined):
        state = learn_members(state, event.response, commands, event.now)
    if before.phase is ClassicPhase.COMPLETING and classic.phase is ClassicPhase.STABLE:
        greet_at = event.now + GREET_AGAIN_S
        state = replace(state, occupied=state.joined, stored=classic.member, greet_at=greet_at)
    if classic.phase in OVER:
        # Without a member id, the answer belongs to a membership that has ended already.
        is_stored = before.member == state.stored != msg.UNKNOWN_MEMBER
        if classic.error is Error.FENCED_INSTANCE_ID and not is_stored:
            return join_anew(state), ()
        state = replace(state, ended=f"the brokers refuse the bridge: {classic.error.name}")
    return state, _without_reading(commands)


def join_anew(state: State) -> State:
    """Begin another membership after the coordinator has refused a member id that it never stored.

    1. A restarted bridge gets a new member id. 2. Before the generation is stored, another broker
    becomes the coordinator. It knows the previous member id only, and so fences the new one. If
    another process has fenced this one, the lock is lost, and the bridge does not join
    (`_may_join`).
    """
    classic = classic_member.begin_again(state.classic)
    return forget_generation(replace(state, classic=classic))


def forget_generation(state: State) -> State:
    """Forget what was known of the last generation of the brokers' group.

    Nobody knows what the new members own, unless the bridge leads the next generation. Another
    leader may have assigned a partition meanwhile, and its member may have committed a higher
    offset than the bridge has read.
    """
    held = {
        tp: replace(one, is_read=False) if one.stage is Stage.SEEDING else one
        for tp, one in state.held.items()
    }
    known = replace(state, held=held, final=frozenset(), given=None, occupied=None, joined=None)
    return replace(known, remove_at=0.0)


def _may_join(state: State, event: ev.Event) -> bool:
    """Return whether the membership may join while it handles an event.

    A JoinGroup without a member id fences a process that has become active meanwhile. An answer may
    take the member id away, so the JoinGroup then waits for the `Tick` that follows each event.
    """
    if event.now < state.lock_until:
        return True
    return state.member != msg.UNKNOWN_MEMBER and not isinstance(event, ev.Answered)


def greet_coordinator(state: State) -> State:
    """Join again if the bridge is alone in the group, and another broker may coordinate the group.

    The log that a new coordinator reads contains only the assignor that the members had voted for.
    It would refuse a first new member that does not offer this assignor, although the bridge offers
    all of them. If there are new members, a vote among them has excluded the others already.
    """
    may_join = state.client.coordinator is not None and state.leaving is None
    is_alone = state.leads and not state.members
    if not may_join or not is_alone:
        return state
    return replace(state, classic=replace(state.classic, rejoin=True))


def _without_reading(commands: Commands) -> Commands:
    """Drop the commands for a member that reads: a bridge that follows may be assigned partitions,
    and reads none."""
    reading = (ev.CallListener, ev.StartFetching, ev.StopFetching)
    return tuple(one for one in commands if not isinstance(one, reading))


def learn_members(state: State, joined: msg.Joined, commands: Commands, now: float) -> State:
    """Record the members of the generation, if the bridge leads it.

    What they own counts only when the coordinator has stored the assignment: 1. A member is removed
    from generation 4. 2. The bridge joins generation 5. 3. Another broker becomes the coordinator,
    and reads generation 4 in its log. The removed member is a member again, and goes on reading.
    """
    if joined.error is not Error.NONE:
        return state
    state = replace(state, given=None, occupied=None, joined=None)
    if joined.leader != joined.member or not joined.members:
        return state
    synced = [
        one.request
        for one in commands
        if isinstance(one, ev.Send) and isinstance(one.request, msg.SyncGroup)
    ]
    if not synced:
        return state
    owned: set[TopicPartition] = set()
    for one in joined.members:
        if one.member != joined.member:
            owned.update(wire.decode_subscription(one.metadata)[0].owned)
    owners = {
        tp: member
        for member, assignment in synced[0].assignments.items()
        for tp in wire.decode_assignment(assignment)[0]
    }
    is_restarted = joined.skip_assignment
    return replace(
        state,
        given=None if is_restarted else lendable(state, now),
        given_topics=_limited(state),
        joined=None if is_restarted else frozenset(owned).union(owners),
        owners=owners,
        members=frozenset(one.member for one in joined.members) - {joined.member},
        has_led=True,
        asked_lead=False,
        remove_at=0.0,
    )


# ---- answers to the bridge's own requests --------------------------------------------------------


def _own_requests(state: State) -> frozenset[int]:
    own = (state.reading, state.storing, state.leaving)
    return frozenset(number for number in own if number is not None)


def _send(state: State, request: msg.Request, now: float) -> tuple[State, Commands, int]:
    number = state.client.number
    client, commands = client_state.send(state.client, request, now)
    return replace(state, classic=replace(state.classic, client=client)), commands, number


def _answered(state: State, event: ev.Answered) -> State:
    sent, client = client_state.answered(state.client, event.number)
    state = replace(state, classic=replace(state.classic, client=client))
    error = event.response.error
    if error in client_state.COORDINATOR_MOVED:
        forgotten = client_state.forget_coordinator(client)
        state = replace(state, classic=replace(state.classic, client=forgotten))
    if event.number == state.leaving:
        return state if sent is None else replace(state, ended=state.farewell)
    if event.number == state.reading:
        state = replace(state, reading=None)
        if sent is None or error is not Error.NONE:
            return replace(state, retry_at=event.now + BACKOFF_S)
        assert isinstance(sent.request, msg.OffsetFetch)
        assert isinstance(event.response, msg.OffsetsFetched)
        return offsets_read(state, sent.request.partitions or (), event.response, event.now)
    state = replace(state, storing=None)
    if sent is None or error is not Error.NONE:
        return replace(state, retry_at=event.now + BACKOFF_S)
    assert isinstance(sent.request, msg.OffsetCommit)
    assert isinstance(event.response, msg.OffsetsCommitted)
    return _offsets_stored(state, sent.request, event.response, event.now)


def _refused(one: Held, error: Error, now: float) -> Held:
    first = min(one.refused_at, now)
    return replace(one, refusal=error, retry_at=now + REFUSED_S, refused_at=first)


def _accepted(one: Held) -> Held:
    return replace(one, refusal=Error.NONE, retry_at=0.0, refused_at=NEVER)


def offsets_read(
    state: State, asked: tuple[TopicPartition, ...], answer: msg.OffsetsFetched, now: float
) -> State:
    """Record Kafka's offsets. A partition in RETURNING whose offset is final has now returned."""
    held = dict(state.held)
    for tp in asked:
        if tp not in held:
            continue
        if tp in answer.refused:
            one = held[tp] = _refused(held[tp], answer.refused[tp], now)
            is_final = one.stage is Stage.RETURNING and tp in state.final
            if is_final and now >= one.refused_at + RETURN_ANYWAY_S:
                held[tp] = replace(one, stage=Stage.RETURNED)
            continue
        one, found = _accepted(held[tp]), answer.offsets.get(tp)
        kafka = None if found is None else found.offset
        highest = max((at for at in (one.offset, kafka) if at is not None), default=None)
        if one.stage is Stage.LENT:
            held[tp] = replace(one, offset=highest)
        elif one.stage is Stage.SEEDING and tp in state.final:
            held[tp] = replace(one, kafka=kafka, is_read=True)
        elif one.stage is Stage.RETURNING and tp in state.final:
            held[tp] = replace(one, offset=highest, stage=Stage.RETURNED)
    return replace(state, held=held, final=frozenset())


def _offsets_stored(
    state: State, request: msg.OffsetCommit, answer: msg.OffsetsCommitted, now: float
) -> State:
    held = dict(state.held)
    for tp, stored in request.offsets.items():
        if tp not in held or held[tp].stage is not Stage.SEEDING:
            continue
        if tp in answer.refused:
            held[tp] = _refused(held[tp], answer.refused[tp], now)
        elif held[tp].offset == stored.offset:
            held[tp] = replace(_accepted(held[tp]), stage=Stage.LENT)
    return replace(state, held=held)


# ---- events --------------------------------------------------------------------------------------


def _granted(state: State, event: Event) -> State:
    assert isinstance(event, Granted)
    new = {tp: Held(event.consumer, epoch, offset) for tp, (epoch, offset) in event.grants.items()}
    return replace(state, held={**state.held, **new}, final=state.final - new.keys())


def _release_asked(state: State, event: Event) -> State:
    assert isinstance(event, ReleaseAsked)
    held = {
        tp: replace(one, asked=True)
        if tp in event.partitions and one.consumer == event.consumer
        else one
        for tp, one in state.held.items()
    }
    return replace(state, held=held)


def _withdrawn(state: State, event: Event) -> State:
    assert isinstance(event, Withdrawn)
    held = {
        tp: one
        for tp, one in state.held.items()
        if tp not in event.partitions or one.consumer != event.consumer
    }
    return replace(state, held=held)


def _committed(state: State, event: Event) -> State:
    """Record that a commit has ended.

    If ZooKeeper has refused it, the consumer commits again before it releases the partitions. A JVM
    member that has read the offset before this second commit redelivers messages.
    """
    assert isinstance(event, CommitEnded)
    release_at = event.now + state.setup.claim_s
    held = {
        tp: replace(one, stored=Stored.YES, release_at=release_at)
        if one.stored is Stored.SENT and one.consumer == event.consumer
        else one
        for tp, one in state.held.items()
    }
    return replace(state, held=held)


def _lease_changed(state: State, event: Event) -> State:
    assert isinstance(event, LeaseChanged)
    return replace(state, leases={**state.leases, event.consumer: event.deadline})


def _group_seen(state: State, event: Event) -> State:
    assert isinstance(event, GroupSeen)
    old, topics = shares.old_members(state.setup, event.view)
    return replace(state, view=event.view, old=old, old_topics=state.old_topics | topics)


def _lock_kept(state: State, event: Event) -> State:
    assert isinstance(event, LockKept)
    return replace(state, lock_until=event.until)


def _goal_changed(state: State, event: Event) -> State:
    assert isinstance(event, GoalChanged)
    kept = state.kept
    if event.consumers is not None:
        kept = event.consumers
    elif state.goal is not Goal.PAUSE:
        kept = len(state.running)
    return replace(state, goal=event.goal, share=event.share, kept=kept)


HANDLERS: Mapping[type[Event], Callable[[State, Event], State]] = {
    Granted: _granted,
    ReleaseAsked: _release_asked,
    Withdrawn: _withdrawn,
    CommitEnded: _committed,
    LeaseChanged: _lease_changed,
    GroupSeen: _group_seen,
    LockKept: _lock_kept,
    GoalChanged: _goal_changed,
}


# ---- decisions -----------------------------------------------------------------------------------


def _advance(state: State, now: float) -> Step:
    """Decide everything that can be decided now."""
    if is_over(state):
        return state, ()
    state = _forget_lost_requests(state)
    state = _want(state, now)
    state = _stages(state, now)
    result: Step = take_lead(state, now)
    result = then(result, lambda s: _store(s, now))
    result = then(result, lambda s: _read(s, now))
    result = then(result, lambda s: return_partitions(s, now))
    result = then(result, lambda s: change_consumers(s, now))
    result = then(result, lambda s: _end(s, now))
    return then(result, lambda s: (_rejoin(s, now), ()))


def _forget_lost_requests(state: State) -> State:
    """Forget the bridge's requests whose connection is lost."""
    sent = state.client.sent
    if _own_requests(state) <= sent.keys():
        return state
    return replace(
        state,
        reading=state.reading if state.reading in sent else None,
        storing=state.storing if state.storing in sent else None,
        leaving=state.leaving if state.leaving in sent else None,
    )


def _want(state: State, now: float) -> State:
    """Decide which consumers the bridge should run, when the wish has been the same for a while."""
    state = shares.with_division(state)
    count = shares.wanted_consumers(state)
    if count != state.wanted[0]:
        state = replace(state, wanted=(count, now))
    is_urgent = state.goal in (Goal.ROLLBACK, Goal.STOP)
    is_due = is_urgent or now >= state.wanted[1] + state.setup.calm_s
    target = frozenset(range(count))
    change = target if is_due and target != state.running else None
    return state if change == state.change else replace(state, change=change)


def target(state: State, now: float) -> frozenset[int]:
    """Return the consumers whose assignment counts: those after the change that is due, if any."""
    return shares.present(state, now) if state.change is None else state.change


def _stages(state: State, now: float) -> State:
    """Move each held partition to the stage that follows from what is known."""
    state = shares.with_plan(state, target(state, now))
    leaving = shares.leaving(state)
    held = {tp: staged_partition(one, is_leaving=tp in leaving) for tp, one in state.held.items()}
    if held == state.held:
        return state
    moved = {tp for tp, one in held.items() if one.stage is not state.held[tp].stage}
    return replace(state, held=held, final=state.final - moved)


def staged_partition(one: Held, *, is_leaving: bool) -> Held:
    if one.asked or is_leaving:
        if has_returned(one):
            return one
        return replace(one, stage=Stage.RETURNING, stored=Stored.NO, release_at=NEVER)
    if one.stage in (Stage.RETURNING, Stage.RETURNED):
        # The partition stays with the new side. No old member has owned it since.
        return replace(one, stage=Stage.SEEDING, is_read=False)
    if one.stage is Stage.SEEDING and one.is_read and needs_no_commit(one):
        return replace(one, stage=Stage.LENT, offset=one.offset if one.kafka is None else one.kafka)
    return one


def needs_no_commit(one: Held) -> bool:
    """Return whether Kafka's offset is at least ZooKeeper's, or neither store has one."""
    return one.offset is None or (one.kafka is not None and one.kafka >= one.offset)


def take_lead(state: State, now: float) -> Step:
    """Lead the group: join again with the member id, or remove the other members.

    The bridge leaves a group that another member leads, if it may not remove the others. As a
    follower it would be assigned partitions that nobody reads.
    """
    if state.phase is not ClassicPhase.STABLE or state.leads or state.classic.rejoin:
        return state, ()
    if not state.asked_lead:
        return replace(state, asked_lead=True, classic=replace(state.classic, rejoin=True)), ()
    if not (state.setup.takes_lead or state.has_led):
        return (state, ()) if state.leaving is not None else _leave(state, now, FOLLOWS)
    if now < state.remove_at or now >= state.lock_until:
        return state, ()
    return replace(state, remove_at=now + REMOVE_AGAIN_S), (RemoveMembers(),)


def _leave(state: State, now: float, reason: str) -> Step:
    settings = state.settings
    leaver = msg.Leaver(state.member, settings.instance)
    state, commands, number = _send(state, msg.LeaveGroup(settings.group, (leaver,)), now)
    return replace(state, leaving=number, farewell=reason), commands


def _store(state: State, now: float) -> Step:
    """Commit ZooKeeper's offsets to Kafka, as a member of the current generation.

    During a rebalance the coordinator refuses the commit.
    """
    offsets = {
        tp: OffsetAndMetadata(one.offset)
        for tp, one in sorted(state.held.items())
        if one.stage is Stage.SEEDING
        and one.is_read
        and one.offset is not None
        and now >= one.retry_at
    }
    may = state.leads and state.client.coordinator is not None and now >= state.retry_at
    if not offsets or not may or state.storing is not None or state.classic.rejoin:
        return state, ()
    settings = state.settings
    request = msg.OffsetCommit(
        settings.group, offsets, state.member, state.generation, settings.instance
    )
    state, commands, number = _send(state, request, now)
    return replace(state, storing=number), commands


def _read(state: State, now: float) -> Step:
    """Read Kafka's offsets of the partitions that need them.

    New members commit before they join a rebalance, or in cooperative mode before they join the
    second one. So the offset of a partition that no member owns any more is final.
    """
    if state.client.coordinator is None or state.reading is not None or now < state.retry_at:
        return state, ()
    if state.occupied is None:
        return state, ()
    free = {
        tp
        for tp, one in state.held.items()
        if (one.stage is Stage.RETURNING or (one.stage is Stage.SEEDING and not one.is_read))
        and tp not in state.occupied
        and now >= one.retry_at
    }
    is_due = now >= state.mirror_at
    lent = {tp for tp, one in state.held.items() if one.stage is Stage.LENT} if is_due else set()
    if not free and not lent:
        return state, ()
    state = replace(state, final=frozenset(free), mirror_at=now + state.setup.mirror_s)
    request = msg.OffsetFetch(state.settings.group, tuple(sorted(free | lent)))
    state, commands, number = _send(state, request, now)
    return replace(state, reading=number), commands


def return_partitions(state: State, now: float) -> Step:
    """Let the consumers release the partitions that have returned, some time after ZooKeeper has
    stored their offsets.

    Without this time: 1. A JVM member reads the offset in ZooKeeper. 2. The consumer stores the new
    side's last offset, and releases the partition. 3. The JVM member claims it, and redelivers.
    """
    asked = {tp: one for tp, one in state.held.items() if one.asked and has_returned(one)}
    state, commits = _store_in_zookeeper(state, asked)
    ready: dict[int, set[TopicPartition]] = {}
    for tp in sorted(asked):
        if now >= state.held[tp].release_at:
            ready.setdefault(state.held[tp].consumer, set()).add(tp)
    returns = tuple(Return(number, frozenset(tps)) for number, tps in ready.items())
    return state, (*commits, *returns)


def has_returned(one: Held) -> bool:
    """Return whether no new member reads a partition, and its last offset is known."""
    return one.stage is Stage.RETURNED


def change_consumers(state: State, now: float) -> Step:
    """Start and close consumers, if every partition that they will lose has returned.

    Old members learn of the change after ZooKeeper has the offsets, so the partitions that only the
    change takes away can be released at once.
    """
    change = state.change
    if change is None:
        return state, ()
    leaving = {tp: state.held[tp] for tp in sorted(shares.leaving(state))}
    if not all(map(has_returned, leaving.values())):
        return state, ()
    if any(one.stored is not Stored.YES for one in leaving.values()):
        return _store_in_zookeeper(state, leaving)
    claimed = shares.leaving(shares.with_plan(state, shares.present(state, now)))
    free = {tp: replace(one, release_at=0.0) for tp, one in leaving.items() if tp not in claimed}
    state = replace(state, held={**state.held, **free}, running=change, change=None)
    return replace(state, counted_until=now + REGISTER_S), (RunConsumers(change),)


def _store_in_zookeeper(state: State, returned: Mapping[TopicPartition, Held]) -> Step:
    """Let the consumers commit the offsets that the new side has reached, one commit at a time."""
    if all(one.stored is not Stored.NO for one in returned.values()):
        return state, ()
    held, offsets = dict(state.held), dict[int, dict[TopicPartition, int]]()
    busy = {one.consumer for one in held.values() if one.stored is Stored.SENT}
    for tp, one in sorted(returned.items()):
        if one.offset is None:
            held[tp] = replace(one, stored=Stored.YES, release_at=0.0)
        elif one.stored is Stored.NO and one.consumer not in busy:
            held[tp] = replace(one, stored=Stored.SENT)
            offsets.setdefault(one.consumer, {})[tp] = one.offset
    commits = tuple(CommitToZooKeeper(number, found) for number, found in offsets.items())
    return replace(state, held=held), commits


def _end(state: State, now: float) -> Step:
    """End the bridge when its goal is reached."""
    is_empty = not state.running and not state.held and state.change is None
    if state.goal is Goal.STOP and is_empty:
        return _stop(state, now), ()
    is_done = (state.goal is Goal.ROLLBACK and is_empty and not state.members) or (
        state.goal is Goal.FINISH and is_settled(state) and not state.old
    )
    if not is_done or not state.leads or state.leaving is not None:
        return state, ()
    return _leave(state, now, LEFT)


def _stop(state: State, now: float) -> State:
    """End a bridge that has given all partitions back, if it owes the new members no assignment.

    The bridge stays a member of the brokers' group, so that a bridge that starts soon leads it
    again. If the bridge left, the next leader would assign every partition to the new side at once.
    """
    is_joining = state.phase in (ClassicPhase.PREPARING, ClassicPhase.COMPLETING)
    if is_joining and now < state.end_by:
        return replace(state, end_by=min(state.end_by, now + STOP_S))
    return replace(state, ended="it has given all partitions back")


def _rejoin(state: State, now: float) -> State:
    """Start a rebalance of the brokers' group if other partitions are to be assigned, or if a
    bridge that is alone is due to join again (`GREET_AGAIN_S`)."""
    if now >= state.greet_at:
        state = greet_coordinator(state)
    is_given = (state.given, state.given_topics) == (lendable(state, now), _limited(state))
    if not state.leads or is_given:
        return state
    return replace(state, classic=replace(state.classic, rejoin=True))
