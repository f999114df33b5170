"""From a reading of the group to our part of it, and to what keeps us from knowing it."""

from __future__ import annotations

from collections.abc import Mapping

from zkconsumer.errors import ConfigError, displayed
from zkconsumer.member import peers, rebalance
from zkconsumer.member.commands import Command, Notice, NoticeKind
from zkconsumer.member.events import ViewRead
from zkconsumer.member.state import State, Step, own_topics, replace, then
from zkconsumer.protocol.group_snapshot import GroupView, assignment, recreated, undecidable
from zkconsumer.protocol.model import RebalanceMode, ThreadId, TopicPartition
from zkconsumer.protocol.registrations import Pattern


def view_read(state: State, outcome: ViewRead, now: float) -> Step:
    """Compute our part; without brokers, or with a peer we cannot evaluate, keep what we have."""
    view, settings = outcome.view, state.settings
    notices = _new_peers(state.view, view)
    again = recreated(state.topics, view)
    news = view != state.view
    state = replace(
        state,
        view=view,
        topics={**state.topics, **{name: topic.czxid for name, topic in view.topics.items()}},
        refused={},
        claim_due=True,
        unverified=frozenset(state.owned),
        malformed=_still_malformed(state, view),
    )
    held: Mapping[TopicPartition, ThreadId] = {tp: mine.thread for tp, mine in state.owned.items()}
    subject, reason = undecidable(view)
    if not view.brokers:
        assigned, waiting_for, subject = held, "no brokers are registered in ZooKeeper", ""
    elif reason:
        assigned, waiting_for = held, f"{displayed(subject)}: {displayed(reason)}"
    else:
        assigned, waiting_for = _our_part(state, view, held)
    # Eager stops the world for a change, not for each look at what it waits for.
    eager = settings.mode is RebalanceMode.EAGER and assigned is not held
    eager = eager and (news or assigned != held)
    # What a broken connection has kept from being given up still is to be.
    reassign = frozenset(tp for tp in held if eager or tp.topic in again or tp in state.reassign)
    notices += tuple(
        Notice(
            NoticeKind.TOPIC_RECREATED,
            topic,
            "the topic was deleted and created again; stored offsets belong to the old one",
            "reset the group's offsets of this topic",
        )
        for topic in sorted(again)
    )
    if waiting_for and waiting_for != state.waiting_for:
        kind = NoticeKind.WAITING
        if subject:
            topic = subject in view.malformed_topics
            kind = NoticeKind.MALFORMED_TOPIC if topic else NoticeKind.UNSUPPORTED_PEER
        notices += (Notice(kind, subject, waiting_for),)
    state = replace(state, assigned=assigned, waiting_for=waiting_for, reassign=reassign)
    state = state if assigned is held else rebalance.learn_assignment(state)
    state, unblocked = peers.drop_cleared_blockers(state)
    return then((state, notices + unblocked), lambda s: rebalance.advance(s, now))


def _still_malformed(state: State, view: GroupView) -> frozenset[TopicPartition]:
    """Every rebalance looks at unreadable offsets again: somebody may have mended them.

    Not one with news in it: 1. a topic is read; 2. it is deleted, which withdraws its partitions;
    3. the reading ends, with a topic that is no more.
    """
    if state.read_again:
        return state.malformed
    return frozenset(tp for tp in state.malformed if tp.topic not in view.topics)


def _our_part(
    state: State, view: GroupView, held: Mapping[TopicPartition, ThreadId]
) -> tuple[Mapping[TopicPartition, ThreadId], str]:
    """What we should own, and what is missing; where the JVM has no assignment, what we hold."""
    settings = state.settings
    try:
        assigned = assignment(
            view,
            consumer=settings.consumer,
            own=own_topics(state),
            strategy=settings.strategy,
            profile=settings.profile,
        )
    except ConfigError as error:
        return held, str(error)
    return assigned, _absent_topics(state, view)


def _absent_topics(state: State, view: GroupView) -> str:
    own = sorted(own_topics(state))
    if not own and state.settings.pattern is not Pattern.STATIC:
        (regex,) = state.settings.subscription
        return f"no topic matches the {state.settings.pattern.value} {regex}"
    absent = [t for t in own if t not in view.topics]
    if absent:
        return f"topic {', '.join(absent)} does not exist"
    empty = [t for t in own if not view.topics[t].partitions]
    return f"topic {', '.join(empty)} has no partitions" if empty else ""


def _new_peers(before: GroupView | None, view: GroupView) -> tuple[Command, ...]:
    known = before.malformed if before else {}
    return tuple(
        Notice(
            NoticeKind.MALFORMED_PEER,
            f"ids/{displayed(consumer)}",
            f"this registration fails every JVM member of the group: {reason}",
            "stop that consumer, or delete its id znode",
        )
        for consumer, reason in sorted(view.malformed.items())
        if known.get(consumer) != reason
    )
