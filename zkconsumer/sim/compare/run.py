"""Run one script on each protocol, for `zkconsumer compare`.

Each step begins some seconds after the group has settled. One message a second arrives in each
partition. The network delay between two hosts is a millisecond, and all timeouts and intervals have
the defaults of each protocol's client, except a session timeout that the caller gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Protocol

from zkconsumer.errors import ConfigError, first_few, quoted
from zkconsumer.frozen import dataclass
from zkconsumer.later.group_events import DEFAULT_SESSION_S as COORDINATED_SESSION_S
from zkconsumer.sim.compare.coordinated_group import COORDINATED_GROUPS
from zkconsumer.sim.compare.meter import Cost, Meter, fewest_moves
from zkconsumer.sim.compare.zookeeper_group import ZOOKEEPER_GROUPS, ZOOKEEPER_SESSION_S
from zkconsumer.sim.world import World

# ---- scripts: what happens to the members of a group, in which order -----------------------------

MAX_MEMBERS = 200
"""Highest number of members of a script, joins included; a larger group is an error. A run with
200 members takes some minutes."""

MAX_PARTITIONS = 2_000
"""Highest number of partitions; a higher number is an error. A run with 2,000 partitions takes some
minutes."""

MAX_STEPS = 100
"""Highest number of steps of a script; a longer script is an error."""

MAX_FREEZE_S = 3_600.0
"""Longest freeze, in seconds; a longer freeze is an error."""


class StepAction(Enum):
    """Kind of a step: what happens to the member."""

    JOIN = "join"
    LEAVE = "leave"
    KILL = "kill"
    FREEZE = "freeze"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a script; `frozen_s` is the length of a freeze in seconds."""

    action: StepAction
    member: int
    frozen_s: float = 0.0

    def __str__(self) -> str:
        """Return the step as a script writes it."""
        name = name_of(self.member)
        if self.action is StepAction.FREEZE:
            return f"freeze {name} {self.frozen_s:g}s"
        return "join" if self.action is StepAction.JOIN else f"{self.action.value} {name}"


_NAME = rf"{World.GROUP}_(\d{{1,6}})"
_STEP = re.compile(rf"(join)|(leave|kill) {_NAME}|(freeze) {_NAME} (\d{{1,9}}(?:\.\d{{1,3}})?)s")


def name_of(member: int) -> str:
    """Return a member's name in scripts and in the lab."""
    return f"{World.GROUP}_{member}"


def read_script(text: str, members: int) -> list[Step]:
    """Return the steps of `join; kill g_1; freeze g_0 10s; leave g_2`.

    The group begins with the members g_0, g_1, ...; each `join` adds the next member.

    Raises:
        ConfigError: a step is unknown, or names a member that is not in the group.
    """
    if not 1 <= members <= MAX_MEMBERS:
        raise ConfigError(
            f"the number of members must be between 1 and {MAX_MEMBERS}", where="--members"
        )
    present, known, steps = set(range(members)), members, []
    for part in filter(None, map(str.strip, text.split(";"))):
        step = _read_step(part, known)
        known += step.action is StepAction.JOIN
        if step.action is not StepAction.JOIN and step.member not in present:
            names = first_few(map(name_of, sorted(present)), 5)
            raise ConfigError(
                f"{name_of(step.member)} is not in the group at the step {quoted(part)}",
                where="--script",
                remedy=f"name one of {names or 'no members'}",
            )
        if step.action is not StepAction.FREEZE:
            present ^= {step.member}
        steps.append(step)
    _check(steps, known)
    return steps


def _read_step(part: str, known: int) -> Step:
    match = _STEP.fullmatch(" ".join(part.split()))
    if match is None:
        raise ConfigError(
            f"{quoted(part)} is not a step of a script",
            where="--script",
            remedy="use join, leave MEMBER, kill MEMBER or freeze MEMBER SECONDSs, as in"
            " 'join; kill g_1; freeze g_0 10s'",
        )
    action = StepAction(match[1] or match[2] or match[4])
    number = match[3] or match[5]
    return Step(action, known if number is None else int(number), float(match[6] or 0))


def _check(steps: list[Step], members: int) -> None:
    if not steps:
        raise ConfigError(
            "the script has no step", where="--script", remedy="use 'join; leave g_0'"
        )
    if len(steps) > MAX_STEPS:
        raise ConfigError(f"the script has more than {MAX_STEPS} steps", where="--script")
    if members > MAX_MEMBERS:
        raise ConfigError(f"the group grows to more than {MAX_MEMBERS} members", where="--script")
    if any(step.frozen_s > MAX_FREEZE_S for step in steps):
        raise ConfigError(f"a freeze is longer than {MAX_FREEZE_S:g} s", where="--script")


# ---- runs ----------------------------------------------------------------------------------------

CHECK_INTERVAL_S = 0.25
"""Interval, in virtual seconds, at which a run checks whether the group has settled."""

LIMIT_S = 900.0
"""Virtual seconds within which a group must settle after a step: several session timeouts and a
rebalance timeout."""

PAUSE_S = 7.5
"""Virtual seconds between two steps. Members of a group with a coordinator commit every 5 s, so a
step falls into the middle of a commit interval."""

PROTOCOLS = (*ZOOKEEPER_GROUPS, *COORDINATED_GROUPS)
"""The names of the protocols."""


class ComparedGroup(Protocol):
    """A simulated group of any protocol."""

    meter: Meter
    server: str

    @property
    def now(self) -> float: ...
    def order(self, what: str, who: int) -> None: ...
    def advance(self, until: float) -> None: ...
    def produce(self) -> None: ...
    def settled(self) -> bool: ...
    def traffic(self) -> tuple[int, int, int]: ...


def new_group(
    protocol: str, members: int, partitions: int, *, session_s: float | None = None
) -> ComparedGroup:
    """Return a group whose members have not joined yet.

    Args:
        protocol: one of `PROTOCOLS`.
        members: members of the group, those that join later included.
        partitions: partitions of the topic.
        session_s: the members' session timeout in seconds; None for `default_session_s`.
    """
    session_s = default_session_s(protocol) if session_s is None else session_s
    if protocol in ZOOKEEPER_GROUPS:
        return ZOOKEEPER_GROUPS[protocol](members, partitions, session_s)
    return COORDINATED_GROUPS[protocol](members, partitions, session_s)


def default_session_s(protocol: str) -> float:
    """Return the default session timeout of the protocol's clients, in seconds."""
    return ZOOKEEPER_SESSION_S if protocol in ZOOKEEPER_GROUPS else COORDINATED_SESSION_S


MIN_SESSION_S, MAX_SESSION_S = 6.0, 60.0
"""Bounds of a session timeout, in seconds. A coordinator refuses less
(`group.min.session.timeout.ms`). With more, a comparison takes long, since it waits for the
timeouts after each step."""


def check(partitions: int, protocols: Sequence[str], session_s: float | None = None) -> None:
    """Check the arguments of a comparison other than its script.

    Raises:
        ConfigError: a number is out of range, or a protocol is unknown.
    """
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise ConfigError(
            f"the number of partitions must be between 1 and {MAX_PARTITIONS}", where="--partitions"
        )
    if session_s is not None and not MIN_SESSION_S <= session_s <= MAX_SESSION_S:
        raise ConfigError(
            f"the session timeout must be between {MIN_SESSION_S:g} and {MAX_SESSION_S:g} seconds",
            where="--session-timeout",
        )
    for name in protocols:
        if name not in PROTOCOLS:
            raise ConfigError(
                f"{quoted(name)} is not a protocol",
                where="--protocols",
                remedy=f"use {', '.join(PROTOCOLS)}",
            )


def compare(
    steps: Sequence[Step],
    *,
    members: int,
    partitions: int,
    protocols: Sequence[str],
    session_s: float | None = None,
) -> Iterator[Cost]:
    """Yield the costs of the script on each protocol.

    With `session_s`, all protocols have this session timeout, in seconds, instead of their own
    default.

    Raises:
        ConfigError: a number is out of range, or a protocol is unknown.
    """
    check(partitions, protocols, session_s)
    for name in protocols:
        used_s = default_session_s(name) if session_s is None else session_s
        yield _Run(name, steps, members, partitions, used_s).cost()


class _Run:
    """One script on one protocol."""

    def __init__(
        self, name: str, steps: Sequence[Step], members: int, partitions: int, session_s: float
    ) -> None:
        self._name, self._steps, self._partitions = name, steps, partitions
        self._session_s = session_s
        joins = sum(step.action is StepAction.JOIN for step in steps)
        self._group = new_group(name, members + joins, partitions, session_s=session_s)
        self._present = set(range(members))
        self._needed = 0
        self._settled_s = 0.0

    def cost(self) -> Cost:
        group = self._group
        for who in sorted(self._present):
            group.order("join", who)
        settle(group)
        group.meter.begin()
        before = group.traffic()
        for step in self._steps:
            pass_time(group, PAUSE_S)
            start = group.now
            self._perform(step)
            settle(group)
            self._settled_s = max(self._settled_s, group.meter.changed_at - start)
        requests, notifications, size = (
            after - earlier for after, earlier in zip(group.traffic(), before, strict=True)
        )
        meter = group.meter
        return Cost(
            self._name,
            meter.moved,
            max(0, meter.moved - self._needed),
            round(meter.unowned_s, 3),
            round(meter.stopped_s, 3),
            group.server,
            requests,
            notifications,
            size,
            meter.redelivered,
            round(meter.pause_s, 3),
            round(self._settled_s, 3),
            self._session_s,
        )

    def _perform(self, step: Step) -> None:
        owners, others = dict(self._group.meter.owners), self._present - {step.member}
        self._group.order(step.action.value, step.member)
        if step.action is not StepAction.FREEZE:
            self._present = others | ({step.member} if step.action is StepAction.JOIN else set())
            self._needed += fewest_moves(owners, self._present, self._partitions)
            return
        pass_time(self._group, step.frozen_s)
        between = dict(self._group.meter.owners)
        if between != owners:
            self._needed += fewest_moves(owners, others, self._partitions)
            self._needed += fewest_moves(between, self._present, self._partitions)
        self._group.order("thaw", step.member)


def pass_time(group: ComparedGroup, seconds: float) -> None:
    """Let time pass, and append a message to each partition every second."""
    end = group.now + seconds
    while group.now < end:
        upto = min(end, float(int(group.now) + 1))
        group.advance(upto)
        if upto < end or upto == int(upto):
            group.produce()


def settle(group: ComparedGroup) -> None:
    """Let time pass until the group has settled."""
    deadline = group.now + LIMIT_S
    pass_time(group, CHECK_INTERVAL_S)
    while not group.settled():
        if group.now > deadline:
            raise AssertionError(f"the group has not settled within {LIMIT_S:g} virtual seconds")
        pass_time(group, CHECK_INTERVAL_S)
