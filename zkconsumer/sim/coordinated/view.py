"""Texts and numbers for the lab's picture of a coordinated group.

The texts describe the group's state at its coordinator, and the messages in transit. No function
here changes the simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from zkconsumer.later import member_events as ev
from zkconsumer.later.classic_state import ClassicGroup, TimerPurpose
from zkconsumer.later.consumer_group import ConsumerGroup
from zkconsumer.later.consumer_member import ConsumerState
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.consumer_protocol import decode_assignment
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.coordinated.recorder import short
from zkconsumer.sim.coordinated.world import GROUP, AnyState, CoordinatedWorld
from zkconsumer.trace.story import listed


class CoordinatorView(NamedTuple):
    """The group as its coordinator knows it.

    Attributes:
        text: the group's phase, and its generation or epoch.
        source: the objects that the view was computed from; equal objects give an equal view.
        names: member id -> the name of the member's process.
        members: member id -> what the coordinator knows about the member.
        sessions: member id -> when the member's session times out, in virtual seconds.
        assigned: partition -> the member id that it is assigned to.
        computed_by: a sentence that says who computes the assignment.
        offsets: partition -> the offset that the coordinator has stored.
    """

    text: str
    source: tuple[object, object]
    names: Mapping[str, str]
    members: Mapping[str, str]
    sessions: Mapping[str, float]
    assigned: Mapping[TopicPartition, str]
    computed_by: str
    offsets: Mapping[TopicPartition, int]


def group_view(world: CoordinatedWorld) -> CoordinatorView | None:
    """Return the group at its coordinator; None if no broker coordinates it now."""
    if world.leader is None:
        return None
    partition = world.brokers[world.leader].partitions.get(world.partition)
    if partition is None or partition.loading:
        return None
    group, offsets = partition.groups.get(GROUP), partition.offsets.get(GROUP, {})
    stored = {tp: one.offset.offset for tp, one in offsets.items()}
    source = group, offsets
    names = {one.state.member: one.name for one in world.members if one.joined}
    if group is None:
        return CoordinatorView("no member has joined", source, names, {}, {}, {}, "", stored)
    sessions = {
        timer.member: due.at_s
        for timer, due in group.timers.items()
        if timer.purpose is TimerPurpose.SESSION
    }
    parts = _consumer(group) if isinstance(group, ConsumerGroup) else _classic(group)
    text, members, assigned, computed_by = parts
    return CoordinatorView(text, source, names, members, sessions, assigned, computed_by, stored)


_Parts = tuple[str, dict[str, str], dict[TopicPartition, str], str]


def _classic(group: ClassicGroup) -> _Parts:
    members, assigned = {}, {}
    for name, one in group.members.items():
        partitions, listing = _assigned(one.assignment)
        assigned.update(dict.fromkeys(partitions, name))
        waits = "; its JoinGroup waits" if one.join is not None else ""
        waits = "; its SyncGroup waits" if one.sync is not None else waits
        leads = "; leader" if name == group.leader else ""
        members[name] = f"{listing}{leads}{waits}"
    leader = short(group.leader or "")
    computed_by = f"The leader {leader} computes the assignment with {group.protocol}."
    text = f"{group.phase.value}, generation {group.generation}"
    return text, members, assigned, computed_by if group.leader else ""


@lru_cache(maxsize=1024)
def _assigned(assignment: bytes) -> tuple[tuple[TopicPartition, ...], str]:
    """Return the partitions of a member's assignment, and their text.

    The result is cached, because the lab calls this function for every member after each action.
    """
    partitions = tuple(decode_assignment(assignment)[0]) if assignment else ()
    return partitions, listed(map(str, partitions))


def _consumer(group: ConsumerGroup) -> _Parts:
    members, assigned = {}, {}
    for name, one in group.members.items():
        current, target = one.current, group.target.get(name, frozenset())
        assigned.update(dict.fromkeys(target, name))
        revokes = f"; revokes {listed(map(str, current.revoking))}" if current.revoking else ""
        aims = f"; target {listed(map(str, target))}" if target != current.assigned else ""
        state = current.state.value.lower().replace("_", " ")
        members[name] = f"epoch {current.epoch}, {state}: {listed(map(str, current.assigned))}"
        members[name] += revokes + aims
    text = f"{group.phase.value}, epoch {group.epoch}"
    return text, members, assigned, "The coordinator computes the assignment."


def describe_generation(state: AnyState) -> str:
    """Return the generation or the epoch in a member's state, as text."""
    if isinstance(state, ConsumerState):
        return f"epoch {state.epoch}"
    leads = ", leader" if state.is_leader else ""
    return f"generation {state.generation}{leads}" if state.generation >= 0 else "no generation"


def describe_requests(commands: Iterable[ev.Command]) -> list[str]:
    """Describe the requests among the commands of a member."""
    return [message_text(one.request) for one in commands if isinstance(one, ev.Send)]


def message_text(message: msg.Request | msg.Response) -> str:
    """Describe a message in transit in a few words."""
    if isinstance(message, msg.Response):
        name = f"reply to {_REQUESTS.get(type(message), type(message).__name__)}"
        more = message.error.name if message.error is not Error.NONE else _content(message)
        return f"{name}: {more}" if more else name
    match message:
        case msg.SyncGroup(assignments=assignments) if assignments:
            return f"SyncGroup with {len(assignments)} assignments"
        case msg.OffsetCommit(offsets=offsets):
            return f"OffsetCommit of {listed(map(str, offsets))}"
        case msg.ConsumerGroupHeartbeat(epoch=epoch, owned=owned):
            return f"heartbeat, epoch {epoch}" + (
                "" if owned is None else f", owns {listed(map(str, owned))}"
            )
    return type(message).__name__


def _content(response: msg.Response) -> str:
    match response:
        case msg.FoundCoordinator(broker=broker):
            return f"broker {broker}"
        case msg.Joined(generation=generation, members=members):
            return f"generation {generation}" + (", leader" if members else "")
        case msg.Synced(assignment=assignment):
            return listed(map(str, decode_assignment(assignment)[0]))
        case msg.ConsumerGroupAnswer(epoch=epoch, assignment=assignment):
            target = "" if assignment is None else f", target {listed(map(str, assignment))}"
            return f"epoch {epoch}{target}"
    return ""


_REQUESTS: dict[type[msg.Response], str] = {
    msg.FoundCoordinator: "FindCoordinator",
    msg.Joined: "JoinGroup",
    msg.Synced: "SyncGroup",
    msg.HeartbeatAnswer: "Heartbeat",
    msg.Left: "LeaveGroup",
    msg.OffsetsCommitted: "OffsetCommit",
    msg.OffsetsFetched: "OffsetFetch",
    msg.ConsumerGroupAnswer: "heartbeat",
}
