"""Compute this member's assignment from a view of the group, or why the assignment is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zkconsumer.errors import ConfigError, escaped_and_cut
from zkconsumer.member import peers, rebalance, unreadable
from zkconsumer.member.commands import Command, Notice, NoticeKind
from zkconsumer.member.events import ViewRead
from zkconsumer.member.state import State, Step, own_topics, replace, then
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_snapshot import (
    GroupView,
    Known,
    assignment,
    recreated,
    undecidable,
)
from zkconsumer.protocol.model import RebalanceMode, ThreadId, TopicPartition
from zkconsumer.protocol.registrations import Pattern


def view_read(state: State, outcome: ViewRead, now: float) -> Step:
    """Compute the assignment, and start the rebalance.

    The member keeps its partitions while there are no brokers, and while another member subscribes
    in a way that zkconsumer cannot evaluate.
    """
    view, settings = outcome.view, state.settings
    notices: tuple[Command, ...] = ()
    malformed = [*_malformed_peers(view), *_malformed_brokers(view)]
    again = recreated(state.topics, view)
    changed = view != state.view
    state = replace(
        state,
        view=view,
        read_again=state.read_again or _misses_brokers(state, view),
        known=Known(view, outcome.listing, _watched(view) - state.fired),
        topics={**state.topics, **{name: topic.czxid for name, topic in view.topics.items()}},
        refused={},
        claim_due=True,
        # Watch events and replies arrive in order, so an event that arrives after this reply is not
        # about an earlier nudge.
        idle_peers=replace(state.idle_peers, nudge_op=None),
        # The member reads everything only if a watch may be lost. Then every owner znode is read
        # back.
        unverified=frozenset(state.owned) if state.known is None else state.unverified,
        unfetched=_still_unfetched(state, view),
    )
    held: Mapping[TopicPartition, ThreadId] = {tp: mine.thread for tp, mine in state.owned.items()}
    subject, reason = undecidable(view)
    if not view.brokers:
        assigned, waiting_for, subject = held, "no brokers are registered in ZooKeeper", ""
    elif reason:
        assigned, waiting_for = held, f"{escaped_and_cut(subject)}: {escaped_and_cut(reason)}"
    else:
        assigned, waiting_for = _own_assignment(state, view, held)
    # A waiting member repeatedly reads an unchanged group. So an eager member releases everything
    # only if the group has changed.
    eager = settings.mode is RebalanceMode.EAGER and assigned is not held
    eager = eager and (changed or assigned != held)
    # `state.reassign` contains the partitions that an aborted rebalance still has to release.
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
    if subject in view.malformed_topics:
        malformed.append(Notice(NoticeKind.MALFORMED_TOPIC, subject, waiting_for))
    elif waiting_for and waiting_for != state.waiting_for:
        kind = NoticeKind.UNSUPPORTED_PEER if subject else NoticeKind.WAITING
        notices += (Notice(kind, subject, waiting_for),)
    state = unreadable.found(state, unreadable.OF_VIEW, malformed, now)
    state = replace(state, assigned=assigned, waiting_for=waiting_for, reassign=reassign)
    state = state if assigned is held else rebalance.learn_assignment(state)
    state, unblocked = peers.drop_cleared_blockers(state)
    return then((state, notices + unblocked), lambda s: rebalance.enter_next_phase(s, now))


def _misses_brokers(state: State, view: GroupView) -> bool:
    """Return whether a broker may have registered since this read found none.

    1. The member reads that there are no brokers, and watches the list. 2. A broker returns. 3. The
    watch event arrives before the read ends. The member ignores the event, because the previous
    view had brokers.
    """
    return not view.brokers and paths.BROKER_IDS in state.fired


def _watched(view: GroupView) -> frozenset[str]:
    """Return the paths of the znodes that this read watches and has found well-formed."""
    topics = [paths.topic(name) for name in view.topics]
    return frozenset([*topics, paths.BROKER_IDS] if view.brokers else topics)


def _still_unfetched(state: State, view: GroupView) -> Mapping[TopicPartition, str]:
    """Return the partitions that are not fetched in this rebalance, and why.

    Each rebalance reads malformed offsets again, because an operator may have corrected them. A
    rebalance with an outdated view does not: 1. The member reads the topic. 2. The topic is
    deleted, and the member withdraws its partitions. 3. The read ends with a view that still has
    the topic.
    """
    if state.read_again:
        return state.unfetched
    return {tp: why for tp, why in state.unfetched.items() if tp.topic not in view.topics}


def _own_assignment(
    state: State, view: GroupView, held: Mapping[TopicPartition, ThreadId]
) -> tuple[Mapping[TopicPartition, ThreadId], str]:
    """Return the partitions that this member should own, and why the result is incomplete.

    The reason is empty if the result is complete. If the JVM members fail to compute an assignment,
    this member keeps `held`.
    """
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
    """Return a text that names the subscribed topics that do not exist; empty if all exist."""
    own = sorted(own_topics(state))
    if not own and state.settings.pattern is not Pattern.STATIC:
        (regex,) = state.settings.subscription
        return f"no topic matches the {state.settings.pattern.value} {regex}"
    absent = [t for t in own if t not in view.topics]
    if absent:
        return f"topic {', '.join(absent)} does not exist"
    empty = [t for t in own if not view.topics[t].partitions]
    return f"topic {', '.join(empty)} has no partitions" if empty else ""


def _malformed_peers(view: GroupView) -> Iterator[Notice]:
    for consumer, reason in sorted(view.malformed.items()):
        yield Notice(
            NoticeKind.MALFORMED_PEER,
            f"ids/{escaped_and_cut(consumer)}",
            f"this registration fails every JVM member of the group: {reason}",
            "stop that consumer, or delete its id znode",
        )


def _malformed_brokers(view: GroupView) -> Iterator[Notice]:
    for number, reason in sorted(view.malformed_brokers.items()):
        yield Notice(
            NoticeKind.MALFORMED_BROKER,
            paths.broker(escaped_and_cut(number)),
            reason,
            "the broker writes this znode when it starts: restart it",
        )
