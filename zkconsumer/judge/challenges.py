"""The ladder: twelve challenges, each with one lesson.

A challenge is a kind of world: who plays in it, which faults its hidden schedules draw, what must
hold at the end, and which promises hold besides those of every member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from zkconsumer.judge.world import Converged, JudgedWorld, JudgeMonitor, Rule
from zkconsumer.member.state import Settings
from zkconsumer.sim import promises
from zkconsumer.sim.kernel.search import Decide
from zkconsumer.sim.plan import Do, Plan

Prepare = Callable[[JudgedWorld], None]
"""Changes the world before the first member joins."""


def _nothing(world: JudgedWorld) -> None:
    """Leave the world as it is."""


def _serves_all(monitor: JudgeMonitor, world: JudgedWorld) -> str | None:
    """Every partition has the owner that the assignor computes, and all messages are delivered."""
    return promises.group_settles.reason(monitor, world)


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """One rung of the ladder.

    Attributes:
        name: its name on the command line.
        title: its lesson in a few words.
        statement: what the program must do.
        lesson: why, and which bug the challenge finds.
        programs: the least and the most members that the program plays.
        jvm, ours: how many further members are models of JVM members, and zkconsumer members.
        partitions, messages: the most of each that a schedule draws.
        faults: the kinds of faults that a schedule may draw, and how often each may happen.
        replicas: the servers of ZooKeeper.
        length: how many actions happen before the faults end; a schedule draws half or all.
        over: says why a schedule is not over; None if it is.
        prepare: what happens before the first member joins.
        rules: make the promises of this challenge alone.
    """

    name: str
    title: str
    statement: str
    lesson: str
    programs: tuple[int, int] = (1, 1)
    jvm: int = 0
    ours: int = 0
    partitions: int = 4
    messages: int = 3
    faults: tuple[tuple[Do, int], ...] = ()
    replicas: int = 1
    length: int = 200
    over: Converged = _serves_all
    prepare: Prepare = _nothing
    rules: Callable[[], Sequence[Rule]] = tuple

    @property
    def most(self) -> int:
        """The most members of a schedule that the program plays."""
        return self.programs[1]


@dataclass(frozen=True)
class Drawn:
    """What a schedule has drawn: the plan, the programs, and the actions before the faults end."""

    plan: Plan
    programs: int
    length: int
    rarity: int


def draw(challenge: Challenge, decide: Decide) -> Drawn:
    """Draw the world of a schedule."""
    least, most = challenge.programs
    programs = least + decide(most - least + 1)
    kinds = [one for one in challenge.faults if decide(4)] or list(challenge.faults)
    plan = Plan(
        members=programs + challenge.jvm + challenge.ours,
        partitions=1 + decide(challenge.partitions),
        messages=1 + decide(challenge.messages),
        messages_per_advance=decide(2),
        replicas=challenge.replicas,
        repair_one_in=1 + decide(4),
        faults={do: 1 + decide(most) for do, most in kinds},
        settings=_settings,
    )
    length = challenge.length // 2 * (1 + decide(2))
    return Drawn(plan, programs, length, 4 + decide(16))


def _settings(one: Settings) -> Settings:
    return replace(one, auto_commit_s=2.0)


CHALLENGES: Final[dict[str, Challenge]] = {
    one.name: one
    for one in (
        Challenge(
            name="claim",
            title="claim, and roll back",
            statement="Your member is alone. Claim every partition, deliver its messages, and "
            "commit. Another client may hold a partition for a while.",
            lesson="A claim can be refused. The other partitions must still be read, the refused "
            "one must be claimed again later, and nobody deletes another client's znode.",
            faults=((Do.STUCK, 3),),
        ),
    )
}
