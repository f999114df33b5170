"""The scripts of `zkconsumer compare`: what happens to the members of a group, in which order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from zkconsumer.errors import ConfigError, shown

MAX_MEMBERS = 200
"""Highest number of members of a script, joins included; a larger group is an error. A run with
200 members takes some minutes."""

MAX_PARTITIONS = 2_000
"""Highest number of partitions; more are an error. A run with 2,000 partitions takes some
minutes."""

MAX_STEPS = 100
"""Highest number of steps of a script; a longer script is an error."""

MAX_FREEZE_S = 3_600.0
"""Longest freeze, in seconds; a longer one is an error."""


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
    member: int
    frozen_s: float = 0.0

    def __str__(self) -> str:
        """Return the step as a script writes it."""
        name = f"c{self.member + 1}"
        if self.action is Action.FREEZE:
            return f"freeze {name} {self.frozen_s:g}s"
        return "join" if self.action is Action.JOIN else f"{self.action.value} {name}"


_STEP = re.compile(r"(join)|(leave|kill) c(\d{1,6})|(freeze) c(\d{1,6}) (\d{1,9}(?:\.\d{1,3})?)s")


def read_script(text: str, members: int) -> list[Step]:
    """Return the steps of `join; kill c2; freeze c1 10s; leave c3`.

    The group begins with the members c1, c2, ...; each `join` adds the next one. A step contains
    the member's number from 0.

    Raises:
        ConfigError: a step is unknown, or names a member that is not in the group.
    """
    if not 1 <= members <= MAX_MEMBERS:
        raise ConfigError(
            f"the number of members is not from 1 to {MAX_MEMBERS}", where="--members"
        )
    present, known, steps = set(range(members)), members, []
    for part in filter(None, map(str.strip, text.split(";"))):
        step = _read_step(part, known)
        known += step.action is Action.JOIN
        if step.action is not Action.JOIN and step.member not in present:
            names = [f"c{one + 1}" for one in sorted(present)[:5]]
            raise ConfigError(
                f"c{step.member + 1} is not in the group at the step {shown(part)}",
                where="--script",
                remedy=f"name one of {', '.join(names) or 'no members'}",
            )
        if step.action is not Action.FREEZE:
            present ^= {step.member}
        steps.append(step)
    _check(steps, known)
    return steps


def _read_step(part: str, known: int) -> Step:
    match = _STEP.fullmatch(" ".join(part.split()))
    if match is None:
        raise ConfigError(
            f"{shown(part)} is not a step of a script",
            where="--script",
            remedy="use join, leave MEMBER, kill MEMBER or freeze MEMBER SECONDSs, as in"
            " 'join; kill c2; freeze c1 10s'",
        )
    action = Action(match[1] or match[2] or match[4])
    number = match[3] or match[5]
    return Step(action, known if number is None else int(number) - 1, float(match[6] or 0))


def _check(steps: list[Step], members: int) -> None:
    if not steps:
        raise ConfigError("the script has no step", where="--script", remedy="use 'join; leave c1'")
    if len(steps) > MAX_STEPS:
        raise ConfigError(f"the script has more than {MAX_STEPS} steps", where="--script")
    if members > MAX_MEMBERS:
        raise ConfigError(f"the group grows to more than {MAX_MEMBERS} members", where="--script")
    if any(step.frozen_s > MAX_FREEZE_S for step in steps):
        raise ConfigError(f"a freeze is longer than {MAX_FREEZE_S:g} s", where="--script")
