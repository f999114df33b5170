"""What makes a member rebalance: each trigger is acted on at once at rest, else when it is next."""

from __future__ import annotations

from zkconsumer.core import events, holding, rebalance
from zkconsumer.core.commands import Notice, NoticeKind, RearmTopic, Withdraw
from zkconsumer.core.events import Trigger
from zkconsumer.core.state import Phase, State, Step, replace, then

RESTING = frozenset({Phase.SETTLED, Phase.WAITING})


def triggered(state: State, event: events.Triggered) -> Step:
    """The group changed: read it now, or when the phase under way has ended."""
    if event.trigger is Trigger.OWN_MEMBER_NODE and state.nudge_op is not None:
        return _own_nudge(state)
    if event.trigger is Trigger.OWN_MEMBER_NODE and state.phase is not Phase.REGISTERING:
        notice = Notice(NoticeKind.OWNERSHIP_LOST, "our id znode", "somebody deleted or replaced "
                        "it; nothing is delivered until this member is registered again")
        return then((state, (notice,)), rebalance.register)
    if event.trigger is Trigger.OWN_MEMBER_NODE:
        return rebalance.register(state) if state.op is None else (state, ())
    state = replace(state, stale=True)
    return rebalance.read(state) if state.phase in RESTING else (state, ())


def _own_nudge(state: State) -> Step:
    """Attribute one event about the own id znode to this member's nudge.

    1. The nudge deletes and creates the id znode; 2. the watch on the id znode fires; 3. the reply
    to the nudge arrives, and the member reads the group. If the watch event arrives after step 3,
    the member reads the group again now. Each reading arms the watch and compares the znode's
    owner with the session, so another client's deletion that is attributed to the nudge still
    leads to a new registration.
    """
    awaited, state = state.op == state.nudge_op, replace(state, nudge_op=None)
    if awaited:
        return state, ()
    state = replace(state, stale=True)
    return rebalance.read(state) if state.phase in RESTING else (state, ())


def owner_node_changed(state: State, event: events.OwnerNodeChanged) -> Step:
    """An owner znode of ours went or changed, and not by our own release: it is ours no more."""
    tp = event.partition
    if tp in state.doubtful:
        # 1. A claim creates the node and reads it back; 2. somebody deletes it, the watch fires;
        # 3. the claim ends, as if the node were there. So everything is read again after it.
        return replace(state, stale=True), ()
    if tp not in state.owned or tp in state.moving:
        return state, ()
    state, commands = holding.lose(state, frozenset({tp}))
    notice = Notice(NoticeKind.OWNERSHIP_LOST, str(tp), "somebody touched our owner znode")
    state = replace(state, stale=True, claim_due=True)
    result: Step = (state, (*commands, notice))
    return then(result, rebalance.read) if state.phase in RESTING else result


def owners_changed(state: State, event: events.OwnersChanged) -> Step:
    """What blocks us may have gone: try again now, or when the claim under way has ended.

    While we claim, `blocked` does not yet hold what the claim finds: 1. it lists the owners and
    arms the watch; 2. the blocker goes, the watch fires; 3. the claim ends.
    """
    claiming = state.phase is Phase.CLAIMING
    if not claiming and not any(tp.topic == event.topic for tp in state.blocked):
        return state, ()
    state = replace(state, claim_due=True)
    if state.phase is Phase.WAITING:
        return rebalance.advance(state, event.now)
    return state, ()


def topic_deleted(state: State, event: events.TopicDeleted) -> Step:
    """Fetching stops; the owner znodes stay until the next rebalance, as in the JVM."""
    gone = frozenset(tp for tp in state.serving if tp.topic == event.topic)
    notice = Notice(NoticeKind.TOPIC_DELETED, event.topic, "the topic was deleted")
    # Not served and not to be served again before the next view: as with a malformed offset. What
    # is being claimed or loaded will be served by a view that may be older than this.
    stale = state.stale or state.phase not in RESTING
    serving, malformed = state.serving - gone, state.malformed | gone
    state = replace(state, serving=serving, malformed=malformed, stale=stale)
    return state, (Withdraw(gone), RearmTopic(event.topic), notice)
