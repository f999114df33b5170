"""How many consumers the bridge registers, and which partitions it must return for a change.

Old members notice new and removed consumer ids, but no changed registration. So the bridge changes
its share of the partitions by the number of its consumers. Each of them has one stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from zkconsumer.bridge.state import AssignmentPlan, Goal, Settings, State
from zkconsumer.errors import ZkConsumerError
from zkconsumer.protocol.group_assignment import (
    AssignmentFailure,
    GroupInput,
    assign_each_member,
    requested_topics,
)
from zkconsumer.protocol.model import ConsumerId, TopicPartition
from zkconsumer.protocol.registrations import (
    Registration,
    encode_registration,
    read_registration,
)


def old_members(setup: Settings, view: GroupInput) -> dict[ConsumerId, int]:
    """Return the old members, each with its number of streams.

    A member whose registration cannot be read has 0 streams.
    """
    names = [name for name in view.registrations if name not in setup.consumers]
    members = {}
    for name in names:
        with suppress(ZkConsumerError):
            payload = view.registrations[name]
            members[name] = read_registration(payload, where=name, profile=setup.profile)
    counts = requested_topics(members, view.topics, profile=setup.profile).counts
    return {name: max(counts.get(name, {}).values(), default=0) for name in names}


def wanted_consumers(state: State) -> int:
    """Return how many consumers the bridge should run.

    With the share s and T streams of old members, n consumers are n / (T + n) = s of all streams.
    Without a configured share, s is the new members' part of all members.
    """
    if state.goal in (Goal.ROLLBACK, Goal.STOP):
        return 0
    if state.view is None:
        return len(state.running)
    if state.goal is Goal.PAUSE:
        # A bridge that has just started waits until a new member can read the partitions.
        may_run = state.running or state.members
        return min(state.kept, len(state.setup.consumers)) if may_run else 0
    old = state.old
    # Before it finishes, the bridge carries the offsets of an empty old side to Kafka.
    if not state.members and (old or state.goal is not Goal.FINISH):
        return 0
    streams = sum(old.values())
    if not streams:
        return max(1, len(state.running))
    share = state.share
    if share is None:
        share = len(state.members) / (len(state.members) + len(old))
    return min(max(1, round(streams * share / (1 - share))), len(state.setup.consumers))


def consumers_to_keep(state: State) -> int:
    """Return how many consumers another process should run if this one ends while it is paused."""
    return state.kept if state.goal is Goal.PAUSE else len(state.running)


def with_plan(state: State, running: frozenset[int]) -> State:
    """Return the state with the old group's assignment if exactly `running` were registered."""
    plan = state.plan
    if plan is not None and plan.view is state.view and plan.running == running:
        return state
    owners = _assigned(state, running)
    return replace(state, plan=AssignmentPlan(state.view, running, owners))


def _assigned(state: State, running: frozenset[int]) -> Mapping[TopicPartition, ConsumerId] | None:
    setup, view = state.setup, state.view
    if view is None:
        return None
    own = encode_registration(
        Registration(dict.fromkeys(setup.client.topics, 1), timestamp_ms=0), profile=setup.profile
    )
    old = {name: one for name, one in view.registrations.items() if name not in setup.consumers}
    mine = {setup.consumers[number]: own for number in sorted(running)}
    planned = replace(view, registrations={**old, **mine})
    owners: dict[TopicPartition, ConsumerId] = {}
    for consumer, part in assign_each_member(planned, setup.profile).items():
        if isinstance(part, AssignmentFailure):
            return None
        owners.update(dict.fromkeys(part, consumer))
    return owners


def leaving(state: State) -> frozenset[TopicPartition]:
    """Return the held partitions that their consumer loses according to the plan.

    If nobody can compute the assignment, these are the partitions of consumers that will not run.
    """
    plan = state.plan
    if plan is None:
        return frozenset()
    if plan.owners is None:
        return frozenset(tp for tp, one in state.held.items() if one.consumer not in plan.running)
    names, owners = state.setup.consumers, plan.owners
    return frozenset(tp for tp, one in state.held.items() if owners.get(tp) != names[one.consumer])


def holds_all(state: State) -> bool:
    """Return whether the bridge holds every partition that its consumers get by the plan."""
    plan = state.plan
    if plan is None or plan.owners is None:
        return False
    mine = {state.setup.consumers[number] for number in state.running}
    return {tp for tp, owner in plan.owners.items() if owner in mine} <= state.held.keys()
