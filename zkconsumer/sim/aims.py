"""Aimed runs of groups on ZooKeeper: what a run prefers that aims at a phase of its members.

A sharp world also prefers one kind of rare pairs (`Plan.rare`).
"""

from __future__ import annotations

from zkconsumer.member.phases import Phase
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.kernel.aims import Aim
from zkconsumer.sim.member import SimMember
from zkconsumer.sim.plan import MEMBER_FAULTS, Action, Do, Plan, Rare
from zkconsumer.sim.world import World, possible, repairs

CHURN = (Do.LEAVE, Do.REVIVE, Do.COMMIT)
"""Actions that are frequent in aimed worlds."""

RECONNECTED = {Phase.RECOVERING: {Do.CUT}, Phase.REGISTERING: {Do.CUT, Do.EXPIRE}}
"""Phases that follow a new connection, and the faults that lead to them."""

DISTURBANCES = {Do.DELETE_OWNER: 6, Do.GROW: 4}
"""Faults that make a member rebalance during a diagnosis, and how often they happen."""

RARE_CHURN = {
    Rare.TOOL: (Do.APPLY,),
    Rare.COMMIT: (Do.REFUSE,),
    Rare.DIAGNOSIS: (Do.BAD_REGISTRATION, Do.STUCK),
}
"""Actions and faults that sharp worlds choose as often as starts, leaves and commits."""

COMMIT_FAULTS = (Do.CUT, Do.DELETE_ID, Do.COMMIT_TIMEOUT)
"""Faults and timeouts that make an explicit commit fail."""

RESERVED = 3
"""Number of faults that a run reserves for diagnoses, of each kind that disturbs a diagnosis."""

EARLY_REPLIES = 3
"""A diagnosis that has received at most this many replies counts as early."""

ANSWERING = (Do.SERVE, Do.RECEIVE)
"""Actions that bring a member the replies to its requests."""

RECONNECTING = (Do.READ, Do.NOTICE, Do.CONNECT, Do.OVERTAKE)
"""Actions of a client that connects again before the member handles an earlier reply."""


class PhaseAim(Aim[World, Action]):
    """Aims at a phase of members."""

    def __init__(self, plan: Plan, phase: Phase) -> None:
        self._plan, self._phase = plan, phase
        self.is_urgent = plan.rare is Rare.DIAGNOSIS

    def hit(self, world: World) -> list[int]:
        return [who for who in _live(world) if self._is_hit(world.members[who])]

    def _is_hit(self, member: SimMember) -> bool:
        """Return whether faults should hit the member now: it is in the phase of the aim."""
        has_commit = bool(member.state.commits.running) or member.delays_user
        is_there = member.state.phase is self._phase
        return is_there and (has_commit or self._plan.rare is not Rare.COMMIT)

    def near(self, world: World) -> list[int]:
        """Return the members to prepare by a commit, or by an interruption of their diagnosis."""
        return [who for who in _live(world) if self._is_near(world.members[who])]

    def _is_near(self, member: SimMember) -> bool:
        if self._plan.rare is Rare.COMMIT and self._phase in RECONNECTED:
            return bool(member.state.commits.running)
        if self._plan.rare is Rare.COMMIT:
            return bool(member.feeds) and member.unposted is None and not member.settled
        return self._plan.is_ambiguous and _can_disturb(member, self._phase)

    def steps(self, moves: list[Action], world: World, hit: list[int]) -> list[Action]:
        """Return the steps of the diagnoses of the members `hit`, so that they end in this phase,
        if the world prefers such ends."""
        if self._plan.rare is not Rare.DIAGNOSIS:
            return []
        diagnosing = [who for who in hit if world.members[who].diagnosis is not None]
        return [one for one in moves if one.do in ANSWERING and one.who in diagnosing]

    def faults(self, world: World, moves: list[Action], hit: list[int]) -> list[Action]:
        kept = _kept(world, self._phase)
        found = [
            one
            for one in possible(world)
            if (one.do not in MEMBER_FAULTS or one.who in hit) and one.do not in kept
        ]
        return _preferred(world, moves, found, hit) or found

    def preparations(self, world: World, moves: list[Action], near: list[int]) -> list[Action]:
        if self._plan.rare is Rare.COMMIT and self._phase not in RECONNECTED:
            return [one for one in possible(world) if one.do is Do.COMMIT and one.who in near]
        return _disturbing(world, moves, self._phase, near)

    def churn(self, world: World) -> list[Action]:
        return _churn(world)


def _live(world: World) -> list[int]:
    return [who for who, link in enumerate(world.links) if link.joined and not link.dead]


def _preferred(
    world: World, actions: list[Action], found: list[Action], hit: list[int]
) -> list[Action]:
    """Return what a sharp world prefers while the members `hit` are in the phase of its aim.

    Args:
        actions: the ordinary actions that are possible now.
        found: the possible faults.
    """
    if world.plan.rare is Rare.TOOL and world.tool is not None and world.tool.writes:
        return [one for one in found if one.do is Do.LOSE_TOOL]
    if world.plan.rare is Rare.COMMIT:
        delayed = [who for who in hit if world.members[who].delays_user]
        if posts := [one for one in actions if one.do is Do.POST and one.who in delayed]:
            return posts
        busy = [who for who in hit if world.members[who].state.commits.running]
        return [one for one in found if one.do in COMMIT_FAULTS and one.who in busy]
    return []


def _kept(world: World, aim: Phase) -> set[Do]:
    """Return the kinds of faults of which the run keeps the last `RESERVED` for diagnoses."""
    if not world.plan.is_ambiguous:
        return set()
    kinds = DISTURBANCES.keys() | RECONNECTED.get(aim, set()) | {Do.DELETE_ID}
    return {do for do in kinds if world.faults_left.get(do, 0) <= RESERVED}


def _churn(world: World) -> list[Action]:
    """Return the possible starts, leaves and commits, and in some sharp worlds the tool's starts.

    A member leaves only while it owns partitions to hand over.
    """
    kinds = CHURN + (RARE_CHURN.get(world.plan.rare, ()) if world.plan.rare else ())
    found = [one for one in possible(world) if one.do in kinds]
    return [one for one in found if one.do is not Do.LEAVE or world.members[one.who].feeds]


def _can_disturb(member: SimMember, aim: Phase) -> bool:
    """Return whether an interruption now could make the member's diagnosis end in the phase `aim`.

    The report of a diagnosis (`Diagnosed`) comes seven round trips after its start. A rebalance
    that starts early reaches a later phase by then. A registration takes few round trips, so it
    starts while the member awaits the last reply. A recovery comes before the report only if the
    last reply waits in the inbox while the client connects again.
    """
    if aim is Phase.REGISTERING and member.awaits_last_reply:
        return True
    if aim in RECONNECTED:
        return member.is_diagnosed
    if aim is Phase.COMMITTING and member.may_release_early:
        return True
    return member.diagnosis is not None and member.diagnosis <= EARLY_REPLIES


def _disturbing(
    world: World, actions: list[Action], aim: Phase, diagnosing: list[int]
) -> list[Action]:
    """Return actions that bring a member into another phase during its diagnosis."""
    if aim in RECONNECTED:
        return _reconnecting(world, actions, aim, diagnosing)
    if posts := [one for one in actions if one.do is Do.POST and one.who in diagnosing]:
        return posts
    freed = [one for one in repairs(world) if one.do is Do.UNSTICK]
    if freed and any(world.members[who].state.phase is Phase.WAITING for who in diagnosing):
        return freed
    disturbing = [one for one in possible(world) if one.do in DISTURBANCES]
    owned = set[TopicPartition]().union(*(world.members[who].state.owned for who in diagnosing))
    if world.plan.rare and (lost := [one for one in disturbing if one.tp in owned]):
        is_late = all(world.members[who].state.phase is not Phase.SETTLED for who in diagnosing)
        return [] if is_late and aim is Phase.BEFORE_START else lost
    return [*_churn(world), *disturbing]


def _reconnecting(
    world: World, actions: list[Action], aim: Phase, diagnosing: list[int]
) -> list[Action]:
    """Return actions after which a member registers or connects again before it handles the last
    reply to its diagnosis.
    """
    found = [one for one in possible(world) if one.who in diagnosing]
    if any(world.members[who].awaits_last_reply for who in diagnosing):
        return [one for one in found if one.do is Do.DELETE_ID]
    for kind in RECONNECTING:
        if steps := [one for one in actions if one.do is kind and one.who in diagnosing]:
            return steps
    return [one for one in found if one.do in RECONNECTED[aim]]
