"""The same script of joins and departures on each group protocol, as the lab compares them.

The assignments are exact: the protocols' own assignors compute them. The times are those of the
default session time-outs; the time of a rebalance itself is not modelled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from zkconsumer.errors import ConfigError, shown
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.assignors import assign as assign_threads
from zkconsumer.protocol.later.assignors import Assignor, assign
from zkconsumer.protocol.later.subscriptions import Subscription, Topic
from zkconsumer.protocol.model import TopicPartition

MAX_MEMBERS = 1_000
"""Highest number of members in a comparison; a larger group is an error."""

MAX_PARTITIONS = 10_000
"""Highest number of partitions in a comparison; more are an error. Each step then takes less than
a second."""

_TOPIC = "t"

Owners = Mapping[TopicPartition, str]


class Action(Enum):
    """What can happen to a member."""

    JOIN = "join"
    LEAVE = "leave"
    KILL = "kill"
    FREEZE = "freeze"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a script; `frozen_s` is the length of a freeze in seconds."""

    action: Action
    member: str
    frozen_s: float = 0.0


_STEP = re.compile(r"(join)|(leave|kill) (\w+)|(freeze) (\w+) (\d{1,9}(?:\.\d{1,3})?)s")


def read_script(text: str, members: int) -> list[Step]:
    """Return the steps of `join; kill c2; freeze c1 10s; leave c3`.

    The group begins with the members c1, c2, ...; each `join` adds the next one.

    Raises:
        ConfigError: a step is unknown, or names a member that is not in the group.
    """
    present = {f"c{number}" for number in range(1, members + 1)}
    known, steps = members, []
    for part in filter(None, map(str.strip, text.split(";"))):
        match = _STEP.fullmatch(" ".join(part.split()))
        if match is None:
            raise ConfigError(
                f"{shown(part)} is not a step of a script",
                where="--script",
                remedy="use join, leave MEMBER, kill MEMBER or freeze MEMBER 10s, as in"
                " 'join; kill c2; freeze c1 10s'",
            )
        action = Action(match[1] or match[2] or match[4])
        known += action is Action.JOIN
        member = match[3] or match[5] or f"c{known}"
        if action is not Action.JOIN and member not in present:
            raise ConfigError(
                f"{shown(member)} is not in the group at the step {shown(part)}",
                where="--script",
                remedy=f"name one of {', '.join(sorted(present)[:5]) or 'no members'}",
            )
        if action is not Action.FREEZE:
            present ^= {member}
        steps.append(Step(action, member, float(match[6] or 0)))
    if not steps:
        raise ConfigError("the script has no step", where="--script", remedy="use 'join; leave c1'")
    return steps


@dataclass(frozen=True, slots=True)
class Cost:
    """What a script cost on one protocol.

    Attributes:
        protocol: the name of the protocol.
        rebalances: rounds in which members got a new assignment.
        moved: partitions that got another owner.
        without_need: moved partitions beyond the fewest that a balanced assignment requires.
        revoked: partitions that a living member stopped, also if it got them back.
        unowned_s: partition-seconds in which a partition had no living owner, because a dead or
            frozen member still counted as a member.
    """

    protocol: str
    rebalances: int
    moved: int
    without_need: int
    revoked: int
    unowned_s: float


@dataclass(frozen=True, slots=True)
class _Protocol:
    assign: Callable[[Sequence[str], int, Owners], Owners]
    session_s: float
    stops_all: bool
    rounds_for_a_move: int = 1


def _by_range_of_threads(members: Sequence[str], partitions: int, before: Owners) -> Owners:
    found = assign_threads(
        Strategy.RANGE,
        subscriptions={member: {_TOPIC: 1} for member in members},
        partitions={_TOPIC: range(partitions)},
    )
    return {partition: thread.rpartition("-")[0] for partition, thread in found.items()}


def _by(assignor: Assignor) -> Callable[[Sequence[str], int, Owners], Owners]:
    def compute(members: Sequence[str], partitions: int, before: Owners) -> Owners:
        owned: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for partition, member in before.items():
            if member in owned:
                owned[member].append(partition)
        found = assign(
            assignor,
            {_TOPIC: Topic(partitions)},
            {
                member: Subscription((_TOPIC,), tuple(own), 1 if own else -1)
                for member, own in owned.items()
            },
        )
        return {partition: member for member, own in found.items() for partition in own}

    return compute


PROTOCOLS: Mapping[str, _Protocol] = {
    "zookeeper-jvm": _Protocol(_by_range_of_threads, 6.0, stops_all=True),
    "zookeeper": _Protocol(_by_range_of_threads, 6.0, stops_all=False),
    "classic-eager": _Protocol(_by(Assignor.RANGE), 45.0, stops_all=True),
    # The two rounds of cooperative-sticky lead to the assignment of sticky.
    "classic-cooperative": _Protocol(
        _by(Assignor.STICKY), 45.0, stops_all=False, rounds_for_a_move=2
    ),
    "consumer": _Protocol(_by(Assignor.UNIFORM), 45.0, stops_all=False),
}
"""Protocol -> how it assigns; the session time-outs are Kafka's defaults, in seconds."""


def compare(
    steps: Sequence[Step], *, members: int, partitions: int, protocols: Sequence[str]
) -> list[Cost]:
    """Return what the script costs on each protocol.

    Raises:
        ConfigError: a number is out of range, or a protocol is unknown.
    """
    for name, number, most in (
        ("members", members, MAX_MEMBERS),
        ("partitions", partitions, MAX_PARTITIONS),
    ):
        if not 1 <= number <= most:
            raise ConfigError(f"the number of {name} is not from 1 to {most}", where=f"--{name}")
    for name in protocols:
        if name not in PROTOCOLS:
            raise ConfigError(
                f"{shown(name)} is not a protocol",
                where="--protocols",
                remedy=f"use {', '.join(PROTOCOLS)}",
            )
    return [_cost(name, steps, members, partitions) for name in protocols]


def _cost(name: str, steps: Sequence[Step], members: int, partitions: int) -> Cost:
    protocol = PROTOCOLS[name]
    group = [f"c{number}" for number in range(1, members + 1)]
    owners = protocol.assign(group, partitions, {})
    rebalances = moved = without_need = revoked = 0
    unowned_s = 0.0
    for step in steps:
        if step.action in (Action.KILL, Action.FREEZE):
            frozen_s = step.frozen_s if step.action is Action.FREEZE else protocol.session_s
            held = sum(owner == step.member for owner in owners.values())
            unowned_s += held * min(frozen_s, protocol.session_s)
            if step.action is Action.FREEZE and frozen_s < protocol.session_s:
                continue  # The session outlasts the freeze, so nothing moves.
        # A frozen member is removed like a dead one, and joins again when it wakes.
        departs = step.action is not Action.JOIN
        changes = [departs] if step.action is not Action.FREEZE else [True, False]
        for leaving in changes:
            group = [one for one in group if one != step.member]
            group += [] if leaving else [step.member]
            after = protocol.assign(group, partitions, owners) if group else {}
            changed = [one for one in after if after[one] != owners.get(one, after[one])]
            stopped = [one for one in owners if owners[one] in group]
            moving = [one for one in stopped if after[one] != owners[one]]
            moved += len(changed)
            without_need += len(changed) - _fewest_moves(owners, group, partitions)
            revoked += len(stopped if protocol.stops_all else moving)
            rebalances += protocol.rounds_for_a_move if moving else 1
            owners = after
    return Cost(name, rebalances, moved, without_need, revoked, unowned_s)


def _fewest_moves(owners: Owners, group: Sequence[str], partitions: int) -> int:
    """Return the fewest partitions that must change their owner for a balanced assignment."""
    if not group or not owners:
        return 0
    sizes = Counter(owner for owner in owners.values() if owner in group)
    share, extras = divmod(partitions, len(group))
    kept = 0
    for place, (_, size) in enumerate(sizes.most_common()):
        kept += min(size, share + (place < extras))
    return partitions - kept
