"""How many consumers the bridge registers, and which partitions it must return for a change.

Old members notice new and removed consumer ids, but no changed registration. So the bridge changes
its share of the partitions by the number of its consumers. Each of them has one stream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from math import isclose

from zkconsumer.bridge.state import AssignmentPlan, Division, Goal, Settings, State
from zkconsumer.protocol.group_assignment import (
    AssignmentFailure,
    GroupInput,
    assign_each_member,
    stream_counts,
)
from zkconsumer.protocol.model import ConsumerId, TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration


def old_members(setup: Settings, view: GroupInput) -> tuple[dict[ConsumerId, int], frozenset[str]]:
    """Return the old members, each with its number of streams, and the topics that they read.

    A member whose registration cannot be read has 0 streams.
    """
    counts = stream_counts(view, setup.profile)
    old = [name for name in view.registrations if name not in setup.consumers]
    streams = {name: max(counts.get(name, {}).values(), default=0) for name in old}
    return streams, frozenset(topic for name in old for topic in counts.get(name, ()))


def wanted_consumers(state: State) -> int:
    """Return how many consumers the bridge should run; `with_division` has seen the same state."""
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
    if state.division is None or not any(old.values()):
        return max(1, len(state.running))
    return state.division.consumers


def with_division(state: State) -> State:
    """Return the state with the number of consumers for the present group and share."""
    view, share = state.view, state.share
    if view is None or not any(state.old.values()):
        return state
    if share is None:
        share = len(state.members) / (len(state.members) + len(state.old))
    known = state.division
    if known is not None and known.view is view and known.share == share:
        return state
    return replace(state, division=Division(view, share, _consumers_for(state, share)))


def _consumers_for(state: State, share: float) -> int:
    """Return the number of consumers with which the bridge's part of the partitions is nearest to a
    share; of two such numbers, the smaller one. More consumers get at least as many partitions.
    """
    most = len(state.setup.consumers)
    parts: dict[int, float] = {}

    def part(count: int) -> float:
        if count not in parts:
            parts[count] = _part(state, count)
        return parts[count]

    count = 1 + bisect_left(range(1, most), share, key=part)
    too_much, too_little = part(count) - share, share - part(count - 1)
    if count > 1 and (too_little < too_much or isclose(too_little, too_much)):
        count -= 1
    return 1 + bisect_left(range(1, count), part(count), key=part)


def _part(state: State, count: int) -> float:
    """Return the bridge's part of the partitions, with this number of consumers.

    If nobody can compute the assignment, it is their part of the streams.
    """
    owners = _assigned(state, frozenset(range(count)))
    if not owners:
        return count / (count + sum(state.old.values()))
    mine = set(state.setup.consumers[:count])
    return sum(owner in mine for owner in owners.values()) / len(owners)


def consumers_to_keep(state: State) -> int:
    """Return how many consumers another process should run if this one ends while it is paused."""
    return state.kept if state.goal is Goal.PAUSE else len(state.running)


def present(state: State, now: float) -> frozenset[int]:
    """Return the consumers that run, without those that have not registered in time.

    A consumer may not be able to register, for instance because a server of ZooKeeper limits the
    connections of a machine. It then takes no partition from the others.
    """
    if state.view is None or now < state.counted_until:
        return state.running
    there = {one.consumer for one in state.held.values()}
    names = state.setup.consumers
    registered = state.view.registrations
    return frozenset(one for one in state.running if one in there or names[one] in registered)


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
