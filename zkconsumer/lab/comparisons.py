"""The same script of joins and failures on several group protocols, on one axis of time.

The protocols with ZooKeeper run production members, or the model of JVM members. Those of Kafka run
simulated clients and their coordinator. The table below the lanes is that of `zkconsumer compare`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from zkconsumer.errors import ConfigError
from zkconsumer.lab.runs import new_stage
from zkconsumer.lab.stage import AnyStage
from zkconsumer.lab.worlds import LabMove, WorldSpec
from zkconsumer.protocol.model import JsonObject
from zkconsumer.sim.compare.run import (
    Step,
    StepAction,
    check,
    compare,
    default_session_s,
    name_of,
    read_script,
)

SIMULATED: Mapping[str, bool] = {"zookeeper-jvm": True, "zookeeper": False}
"""Protocol that uses ZooKeeper -> whether its simulated members are JVM members."""

SETTLING_S = 12.0
"""Seconds to wait after the longest session timeout before the next step; long enough for three
back-offs."""

MAX_STEPS = 8
"""Maximum number of steps of a script. Each step takes up to a minute of virtual time."""

MOST_MEMBERS, MOST_PARTITIONS = 16, 60
"""Upper bounds of a comparison, which draws a lane for each partition on each protocol."""

FIRST_RUN = 1001
"""Number of the first run of a comparison; the engine's own runs have lower numbers."""

APART_S = 0.5
"""Seconds between two frames of a simulated protocol while no owner changes."""


def spacing(steps: Sequence[Step], sessions: Iterable[float]) -> float:
    """Return the seconds between two steps, in which even the slowest protocol settles."""
    return max(*sessions, *(step.frozen_s for step in steps)) + SETTLING_S


def compared(
    script: str,
    *,
    members: int,
    partitions: int,
    protocols: Sequence[str],
    session_s: float | None = None,
) -> list[JsonObject]:
    """Return a run of each protocol, and the table of `zkconsumer compare`.

    With `session_s`, all protocols have this session timeout, in seconds, instead of their own
    default. Raises ConfigError.
    """
    if not protocols:
        raise ConfigError("no protocol is chosen", where="protocols", remedy="choose two to five")
    for what, number, most in (
        ("members", members, MOST_MEMBERS),
        ("partitions", partitions, MOST_PARTITIONS),
    ):
        if not 1 <= number <= most:
            raise ConfigError(f"{number} {what}", where=what, remedy=f"give 1 to {most}")
    steps = read_script(script, members)
    if len(steps) > MAX_STEPS:
        raise ConfigError(
            f"the script has {len(steps)} steps", where="script", remedy=f"give 1 to {MAX_STEPS}"
        )
    check(partitions, protocols, session_s)
    sessions = {one: session_s or default_session_s(one) for one in protocols}
    every_s = spacing(steps, sessions.values())
    found: list[JsonObject] = []
    for number, protocol in enumerate(protocols, FIRST_RUN):
        spec = WorldSpec(
            members=members,
            spare=sum(step.action is StepAction.JOIN for step in steps),
            partitions=partitions,
            messages=1,
            flow=0,
            session_s=sessions[protocol],
        )
        scene, frames = _simulated(protocol, spec, steps, every_s)
        words = "simulated: the members' own code or model, with back-offs and round trips"
        if protocol not in SIMULATED:
            words = "simulated: clients of Kafka's own rules, with a coordinator and round trips"
        words = f"session timeout {sessions[protocol]:g} s; {words}"
        opened = {"event": "run", "run": number, "kind": "compared", "scene": scene}
        found.append(
            {**opened, "title": protocol, "base": {}, "parent": 0, "about": {"words": words}}
        )
        found.append(
            {"event": "frames", "run": number, "from": 0, "frames": frames, "moves": "", "rests": 1}
        )
    runs = [{"protocol": protocol, "run": FIRST_RUN + at} for at, protocol in enumerate(protocols)]
    said = [{"t": at * every_s, "text": described(step)} for at, step in enumerate(steps)]
    table = compare(
        steps, members=members, partitions=partitions, protocols=protocols, session_s=session_s
    )
    end = {"event": "compared", "script": script, "runs": runs, "steps": said}
    return [*found, {**end, "seconds": len(steps) * every_s, "costs": [*map(asdict, table)]}]


def described(step: Step) -> str:
    """Return what a step does, as a sentence."""
    name = name_of(step.member)
    return {
        StepAction.JOIN: f"{name} joins",
        StepAction.LEAVE: f"{name} is shut down",
        StepAction.KILL: f"{name} gets SIGKILL",
        StepAction.FREEZE: f"{name} gets SIGSTOP for {step.frozen_s:g} s",
    }[step.action]


# ---- runs ----------------------------------------------------------------------------------------


def _simulated(
    protocol: str, spec: WorldSpec, steps: Sequence[Step], every_s: float
) -> tuple[JsonObject, list[JsonObject]]:
    """Return the picture of a settled group, and a frame of its changes every `every_s` seconds."""
    if protocol not in SIMULATED:
        spec = replace(spec, protocol=protocol)
    elif SIMULATED[protocol]:
        spec = replace(spec, jvm=tuple(range(spec.slots)))
    stage = new_stage(spec, None)
    stage.start(*range(spec.members))
    begin = stage.now
    scene = {**stage.picture, "t": 0.0}
    for number, step in enumerate(steps):
        who = step.member
        stage.say(described(step))
        stage.move(LabMove(step.action.value, who))
        if step.action is StepAction.FREEZE:
            _wait(stage, begin + number * every_s + step.frozen_s)
            stage.say(f"{name_of(who)} gets SIGCONT")
            stage.move(LabMove("thaw", who))
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
