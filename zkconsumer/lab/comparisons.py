"""The same script of joins and failures on several group protocols, on one axis of time.

The protocols with ZooKeeper run production members, or the model of JVM members. Those of Kafka run
simulated clients and their coordinator (`lab.coordinated`). The table is computed from the
assignors and the default session time-outs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from zkconsumer.errors import ConfigError
from zkconsumer.lab import coordinated
from zkconsumer.lab.runs import LabStage, new_stage
from zkconsumer.lab.worlds import Move, WorldSpec
from zkconsumer.protocol.later.comparison import PROTOCOLS, Action, Step, compare, read_script
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.sim.world import World

SIMULATED: Mapping[str, bool] = {"zookeeper-jvm": True, "zookeeper": False}
"""Protocol with a simulated world -> whether its members are JVM members."""

SETTLING_S = 12.0
"""Seconds after the longest session time-out until the next step: three back-offs fit into them."""

MAX_STEPS = 8
"""Upper bound of the steps of a script: each is up to a minute of virtual time."""

MOST_MEMBERS, MOST_PARTITIONS = 16, 60
"""Upper bounds of a comparison, which draws a lane for each partition on each protocol."""

DEFAULT_SCRIPT = "join; kill g_1; freeze g_0 20s; leave g_2"
"""What the page proposes."""

FIRST_RUN = 1001
"""Number of the first run of a comparison; the engine's own runs have lower numbers."""

APART_S = 0.5
"""Seconds between two frames of a simulated protocol while no owner changes."""

_OURS = re.compile(rf"\b{World.GROUP}_(\d+)\b")


def steps_of(script: str, members: int) -> list[Step]:
    """Return the steps; members are named `g_0` as in the lab, or `c1` as on the command line."""
    return read_script(_OURS.sub(lambda found: f"c{int(found[1]) + 1}", script), members)


def spacing(steps: Sequence[Step], protocols: Sequence[str]) -> float:
    """Return the seconds between two steps: enough for the slowest protocol to settle."""
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
    table = compare(steps, members=members, partitions=partitions, protocols=protocols)
    every_s = spacing(steps, protocols)
    found: list[JsonObject] = []
    for number, protocol in enumerate(protocols, FIRST_RUN):
        if protocol in SIMULATED:
            scene, frames = _simulated(protocol, members, partitions, steps, every_s)
            words = "simulated: the members' own code or model, with back-offs and round trips"
        else:
            scene, frames = _coordinated(protocol, members, partitions, steps, every_s)
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


# ---- simulated protocols -------------------------------------------------------------------------


def _simulated(
    protocol: str, members: int, partitions: int, steps: Sequence[Step], every_s: float
) -> tuple[JsonObject, list[JsonObject]]:
    """Return the picture of a settled group, and frames of the steps, one each `every_s`."""
    joins = sum(step.action is Action.JOIN for step in steps)
    jvm = tuple(range(members + joins)) if SIMULATED[protocol] else ()
    spec = WorldSpec(
        members=members, spare=joins, partitions=partitions, jvm=jvm, messages=1, flow=0
    )
    stage = new_stage(spec, None)
    stage.start(*range(members))
    begin = stage.world.now
    scene = {**stage.picture, "t": 0.0}
    for number, step in enumerate(steps):
        who = int(step.member.removeprefix("c")) - 1
        stage.say(described(step))
        stage.move(Move(step.action.value, who))
        if step.action is Action.FREEZE:
            _wait(stage, begin + number * every_s + step.frozen_s)
            stage.say(f"{World.GROUP}_{who} gets SIGCONT")
            stage.move(Move("thaw", who))
        _wait(stage, begin + (number + 1) * every_s)
    return scene, list(condensed(stage.frames, begin))


def _coordinated(
    protocol: str, members: int, partitions: int, steps: Sequence[Step], every_s: float
) -> tuple[Json, list[Json]]:
    """Return the picture and the frames of a group with a coordinator."""
    slots = members + sum(step.action is Action.JOIN for step in steps)
    film = coordinated.Film(protocol, members=slots, joined=members, partitions=partitions)
    world = film.world
    orders: dict[Action, Callable[[int], None]] = {
        Action.JOIN: world.join,
        Action.LEAVE: world.leave,
        Action.KILL: world.kill,
        Action.FREEZE: world.freeze,
    }
    for number, step in enumerate(steps):
        who = int(step.member.removeprefix("c")) - 1
        film.order(described(step), orders[step.action], who)
        if step.action is Action.FREEZE:
            film.run(number * every_s + step.frozen_s)
            film.order(f"{World.GROUP}_{who} gets SIGCONT", world.thaw, who)
        film.run((number + 1) * every_s)
    return film.scene, film.frames


def _wait(stage: LabStage, until: float) -> None:
    stage.wait(max(0.0, until - stage.world.now))


def condensed(frames: Iterable[JsonObject], begin: float) -> Iterator[JsonObject]:
    """Join frames in which no owner changes, and count their time from `begin`."""
    kept: JsonObject = {}
    for frame in frames:
        kept = _joined(kept, {**frame, "t": round(frame["t"] - begin, 4)})
        if "o" in frame or "say" in frame or kept["t"] - kept["since"] >= APART_S:
            yield {name: value for name, value in kept.items() if name != "since"}
            kept = {}
    if kept:
        yield {name: value for name, value in kept.items() if name != "since"}


def _joined(first: JsonObject, second: JsonObject) -> JsonObject:
    """Return a frame that does what both do, with the words of the second one."""
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


def described(step: Step) -> str:
    """Return what a step does, as a sentence."""
    name = f"{World.GROUP}_{int(step.member.removeprefix('c')) - 1}"
    return {
        Action.JOIN: f"{name} joins",
        Action.LEAVE: f"{name} is shut down",
        Action.KILL: f"{name} gets SIGKILL",
        Action.FREEZE: f"{name} gets SIGSTOP for {step.frozen_s:g} s",
    }[step.action]
