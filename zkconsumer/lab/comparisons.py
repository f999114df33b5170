"""The same script of joins and failures on several group protocols, on one axis of time.

The protocols with ZooKeeper run production members, or the model of JVM members. Those of Kafka run
simulated clients and their coordinator. The table is computed from the assignors and the default
session timeouts; the time of a rebalance itself is not modelled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from zkconsumer.errors import ConfigError
from zkconsumer.lab.runs import AnyStage, new_stage
from zkconsumer.lab.worlds import COORDINATED_SESSION_S, Move, WorldSpec
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.assignors import assign as assign_threads
from zkconsumer.protocol.later.assignors import Assignor, assign
from zkconsumer.protocol.later.subscriptions import Subscription, Topic
from zkconsumer.protocol.model import JsonObject, TopicPartition
from zkconsumer.sim.compare.meter import fewest_moves
from zkconsumer.sim.compare.run import Action, Step, check, read_script
from zkconsumer.sim.world import World

SIMULATED: Mapping[str, bool] = {"zookeeper-jvm": True, "zookeeper": False}
"""Protocol that uses ZooKeeper -> whether its simulated members are JVM members."""

SETTLING_S = 12.0
"""Seconds to wait after the longest session timeout before the next step; long enough for three
back-offs."""

MAX_STEPS = 8
"""Maximum number of steps of a script. Each step takes up to a minute of virtual time."""

MOST_MEMBERS, MOST_PARTITIONS = 16, 60
"""Upper bounds of a comparison, which draws a lane for each partition on each protocol."""

DEFAULT_SCRIPT = "join; kill g_1; freeze g_0 20s; leave g_2"
"""The script that the page proposes."""

FIRST_RUN = 1001
"""Number of the first run of a comparison; the engine's own runs have lower numbers."""

APART_S = 0.5
"""Seconds between two frames of a simulated protocol while no owner changes."""

_OURS = re.compile(rf"\b{World.GROUP}_(\d+)\b")


def steps_of(script: str, members: int) -> list[Step]:
    """Return the steps; members are named `g_0` as in the lab, or `c1` as on the command line."""
    return read_script(_OURS.sub(lambda found: f"c{int(found[1]) + 1}", script), members)


def spacing(steps: Sequence[Step], protocols: Sequence[str]) -> float:
    """Return the seconds between two steps, in which even the slowest protocol settles."""
    slowest = max(PROTOCOLS[one].session_s for one in protocols)
    return max(slowest, *(step.frozen_s for step in steps)) + SETTLING_S


def compared(
    script: str, *, members: int, partitions: int, protocols: Sequence[str]
) -> list[JsonObject]:
    """Return a run of each protocol, and a table of moved partitions. Raises ConfigError."""
    if not protocols:
        raise ConfigError("no protocol is chosen", where="protocols", remedy="choose two to five")
    for what, number, most in (
        ("members", members, MOST_MEMBERS),
        ("partitions", partitions, MOST_PARTITIONS),
    ):
        if not 1 <= number <= most:
            raise ConfigError(f"{number} {what}", where=what, remedy=f"give 1 to {most}")
    steps = steps_of(script, members)
    if len(steps) > MAX_STEPS:
        raise ConfigError(
            f"the script has {len(steps)} steps", where="script", remedy=f"give 1 to {MAX_STEPS}"
        )
    table = costs(steps, members=members, partitions=partitions, protocols=protocols)
    every_s = spacing(steps, protocols)
    found: list[JsonObject] = []
    for number, protocol in enumerate(protocols, FIRST_RUN):
        scene, frames = _simulated(protocol, members, partitions, steps, every_s)
        words = "simulated: the members' own code or model, with back-offs and round trips"
        if protocol not in SIMULATED:
            words = "simulated: clients of Kafka's own rules, with a coordinator and round trips"
        opened = {"event": "run", "run": number, "kind": "compared", "scene": scene}
        found.append(
            {**opened, "title": protocol, "base": {}, "parent": 0, "about": {"words": words}}
        )
        found.append(
            {"event": "frames", "run": number, "from": 0, "frames": frames, "moves": "", "rests": 1}
        )
    runs = [{"protocol": protocol, "run": FIRST_RUN + at} for at, protocol in enumerate(protocols)]
    said = [{"t": at * every_s, "text": described(step)} for at, step in enumerate(steps)]
    end = {"event": "compared", "script": script, "runs": runs, "steps": said}
    return [*found, {**end, "seconds": len(steps) * every_s, "costs": [*map(asdict, table)]}]


def described(step: Step) -> str:
    """Return what a step does, as a sentence."""
    name = f"{World.GROUP}_{step.member}"
    return {
        Action.JOIN: f"{name} joins",
        Action.LEAVE: f"{name} is shut down",
        Action.KILL: f"{name} gets SIGKILL",
        Action.FREEZE: f"{name} gets SIGSTOP for {step.frozen_s:g} s",
    }[step.action]


# ---- runs ----------------------------------------------------------------------------------------


def _simulated(
    protocol: str, members: int, partitions: int, steps: Sequence[Step], every_s: float
) -> tuple[JsonObject, list[JsonObject]]:
    """Return the picture of a settled group, and a frame of its changes every `every_s` seconds."""
    joins = sum(step.action is Action.JOIN for step in steps)
    spec = WorldSpec(members=members, spare=joins, partitions=partitions, messages=1, flow=0)
    if protocol not in SIMULATED:
        spec = replace(spec, protocol=protocol, session_s=COORDINATED_SESSION_S)
    elif SIMULATED[protocol]:
        spec = replace(spec, jvm=tuple(range(members + joins)))
    stage = new_stage(spec, None)
    stage.start(*range(members))
    begin = stage.now
    scene = {**stage.picture, "t": 0.0}
    for number, step in enumerate(steps):
        who = step.member
        stage.say(described(step))
        stage.move(Move(step.action.value, who))
        if step.action is Action.FREEZE:
            _wait(stage, begin + number * every_s + step.frozen_s)
            stage.say(f"{World.GROUP}_{who} gets SIGCONT")
            stage.move(Move("thaw", who))
        _wait(stage, begin + (number + 1) * every_s)
    return scene, list(condensed(stage.frames, begin))


def _wait(stage: AnyStage, until: float) -> None:
    stage.wait(max(0.0, until - stage.now))


def condensed(frames: Iterable[JsonObject], begin: float) -> Iterator[JsonObject]:
    """Merge frames in which no owner changes; the times of the result count from `begin`."""
    kept: JsonObject = {}
    for frame in frames:
        kept = _joined(kept, {**frame, "t": round(frame["t"] - begin, 4)})
        if "o" in frame or "say" in frame or kept["t"] - kept["since"] >= APART_S:
            yield {name: value for name, value in kept.items() if name != "since"}
            kept = {}
    if kept:
        yield {name: value for name, value in kept.items() if name != "since"}


def _joined(first: JsonObject, second: JsonObject) -> JsonObject:
    """Merge two frames; a value of the second frame replaces the value of the first."""
    found = {"since": second["t"], **first, **second}
    for part in ("m", "p", "z"):
        if part in first or part in second:
            found[part] = {**first.get(part, {}), **second.get(part, {})}
    for part in ("x", "new"):
        if part in first or part in second:
            found[part] = [*first.get(part, ()), *second.get(part, ())]
    if "flow" in first or "flow" in second:
        found["flow"] = first.get("flow", 0) + second.get("flow", 0)
    return found


# ---- the table of costs --------------------------------------------------------------------------

_TOPIC = "t"

Owners = Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of a script on one protocol.

    Attributes:
        protocol: the name of the protocol.
        rebalances: rounds in which members got a new assignment.
        moved: partitions that got another owner.
        without_need: moved partitions beyond the minimum number that a balanced assignment
            requires.
        revoked: partitions that a living member revoked, including those that it got back.
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
"""Protocol -> how it assigns; the session timeouts are Kafka's defaults, in seconds."""


def costs(
    steps: Sequence[Step], *, members: int, partitions: int, protocols: Sequence[str]
) -> list[Cost]:
    """Return the script's costs on each protocol. Raises ConfigError for an unknown protocol."""
    check(partitions, protocols)
    return [_cost(name, steps, members, partitions) for name in protocols]


def _name(member: int) -> str:
    """Return the member's name in a script."""
    return f"c{member + 1}"


def _cost(name: str, steps: Sequence[Step], members: int, partitions: int) -> Cost:
    protocol = PROTOCOLS[name]
    group = [*map(_name, range(members))]
    owners = protocol.assign(group, partitions, {})
    rebalances = moved = without_need = revoked = 0
    unowned_s = 0.0
    for step in steps:
        who = _name(step.member)
        if step.action in (Action.KILL, Action.FREEZE):
            frozen_s = step.frozen_s if step.action is Action.FREEZE else protocol.session_s
            held = sum(owner == who for owner in owners.values())
            unowned_s += held * min(frozen_s, protocol.session_s)
            if step.action is Action.FREEZE and frozen_s < protocol.session_s:
                continue  # The session outlasts the freeze, so nothing moves.
        # A frozen member is removed like a dead one, and joins again when it wakes.
        departs = step.action is not Action.JOIN
        changes = [departs] if step.action is not Action.FREEZE else [True, False]
        for leaving in changes:
            group = [one for one in group if one != who]
            group += [] if leaving else [who]
            after = protocol.assign(group, partitions, owners) if group else {}
            changed = [one for one in after if after[one] != owners.get(one, after[one])]
            stopped = [one for one in owners if owners[one] in group]
            moving = [one for one in stopped if after[one] != owners[one]]
            moved += len(changed)
            without_need += len(changed) - fewest_moves(owners, group, partitions)
            revoked += len(stopped if protocol.stops_all else moving)
            rebalances += protocol.rounds_for_a_move if moving else 1
            owners = after
    return Cost(name, rebalances, moved, without_need, revoked, unowned_s)
