"""The ladder for members of the classic protocol: a group whose coordinator is a broker.

The world, its faults and its promises are those of `sim.coordinated`. Programs play some members,
and the models of Kafka's own members the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Final, cast

from zkconsumer.frozen import dataclass
from zkconsumer.judge.classic_member import ProgramMachine, ProgramState
from zkconsumer.judge.judging import Challenge, Court, GroupScore, silent
from zkconsumer.judge.program import Program
from zkconsumer.judge.promises import CONVERSATION
from zkconsumer.later import member_events as ev
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.consumer_protocol import decode_assignment
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.compare.meter import Meter
from zkconsumer.sim.coordinated import monitor as of_groups
from zkconsumer.sim.coordinated.monitor import CoordinatedMonitor
from zkconsumer.sim.coordinated.recorder import COORDINATOR, CoordinatedRecorder
from zkconsumer.sim.coordinated.search import REST_S, drawn_delay, end_faults, rest, run_faults
from zkconsumer.sim.coordinated.world import (
    GROUP,
    TOPIC,
    CoordinatedPlan,
    CoordinatedWatcher,
    CoordinatedWatchers,
    CoordinatedWorld,
    Member,
    MemberTransition,
)
from zkconsumer.sim.kernel.promises import Promise, Reason, promise
from zkconsumer.sim.kernel.search import Decisions, Result, judged
from zkconsumer.sim.kernel.stories import Emit
from zkconsumer.sim.kernel.world import Delivered

# ---- the promises --------------------------------------------------------------------------------


@promise("K1")
def fenced_members_stop(state: ProgramState, tp: TopicPartition) -> Reason:
    """A member that has learned that it is fenced delivers no message until it has joined again."""
    if state.generation >= 0:
        return None
    return f"{state.settings.client} delivers {tp}, although it has learned that it is fenced"


@promise("K2")
def keeps_what_stays(name: str, partitions: Iterable[TopicPartition]) -> Reason:
    """A cooperative member does not interrupt the delivery of a partition that it keeps."""
    found = ", ".join(map(str, sorted(partitions)))
    return f"{name} has stopped to deliver {found}, which stays assigned to it" if found else None


PROMISES: Final[tuple[Promise[...], ...]] = (
    *CONVERSATION,
    *of_groups.PROMISES,
    fenced_members_stop,
    keeps_what_stays,
)


class ClassicMonitor(CoordinatedMonitor):
    """Checks the promises of a coordinated group, and those of its programs."""

    def __init__(self, programs: int, *, is_cooperative: bool) -> None:
        super().__init__()
        self._programs, self._is_cooperative = programs, is_cooperative
        self._assigned: dict[int, frozenset[TopicPartition]] = {}
        self._stopped: dict[int, set[TopicPartition]] = {}

    def delivered(self, world: CoordinatedWorld, message: Delivered) -> None:
        super().delivered(world, message)
        if message.who < self._programs:
            fenced_members_stop.check(_program_state(world, message.who), message.tp)

    def transition(self, world: CoordinatedWorld, step: MemberTransition) -> None:
        super().transition(world, step)
        who, _, event, commands = step
        if who >= self._programs or not self._is_cooperative:
            return
        after = _program_state(world, who)
        if after.generation < 0:  # fenced: the member has lost all partitions
            self._assigned.pop(who, None)
            self._stopped.pop(who, None)
        for one in commands:
            if isinstance(one, ev.StopFetching):
                self._stopped.setdefault(who, set()).update(one.partitions)
        match event:
            case ev.Answered(response=msg.Synced(error=msg.Error.NONE, assignment=assignment)):
                now = frozenset(decode_assignment(assignment)[0])
                stays = self._assigned.get(who, frozenset()) & now
                keeps_what_stays.check(after.settings.client, stays & self._stopped.get(who, set()))
                self._assigned[who], self._stopped[who] = now, set()


def _program_state(world: CoordinatedWorld, who: int) -> ProgramState:
    state = world.members[who].state
    assert isinstance(state, ProgramState)
    return state


# ---- the world -----------------------------------------------------------------------------------


class ClassicWorld(CoordinatedWorld):
    """A group of the classic protocol in which programs play the first members."""

    def __init__(
        self, plan: CoordinatedPlan, watcher: CoordinatedWatcher, *, programs: Sequence[Program]
    ) -> None:
        self.programs = programs  # `_new_member` reads it during the initialisation
        super().__init__(plan, watcher)

    def _new_member(self, who: int) -> Member:
        if who >= len(self.programs):
            return super()._new_member(who)
        settings = self.plan.settings(ClientSettings(GROUP, f"{GROUP}_{who}", (TOPIC,)), who)
        # The world calls the methods of the machine as the functions of a module.
        machine = cast(ModuleType, ProgramMachine(self.programs[who]))
        return Member(settings.client, ProgramState(settings), machine)


class ClassicScorer(CoordinatedWatcher):
    """Measures the score of one schedule."""

    def __init__(self, programs: int) -> None:
        self._meter, self._requests, self._programs = Meter(), 0, programs

    def asked(self, world: CoordinatedWorld, who: int, request: msg.Request) -> None:
        self._requests += who < self._programs and not isinstance(request, msg.FindCoordinator)

    def delivered(self, world: CoordinatedWorld, message: Delivered) -> None:
        self._meter.delivered(message.tp, message.offset)

    def acted(self, world: CoordinatedWorld) -> None:
        serving = {tp: who[0] for tp, who in world.serving().items()}
        self._meter.observe(world.now, serving, ())

    def score(self) -> GroupScore:
        """Return the score so far."""
        return GroupScore.of(self._meter, self._requests)


# ---- the challenges ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClassicChallenge(Challenge):
    """One rung of the ladder for members of the classic protocol.

    Attributes:
        programs: the least and the most members that the program plays.
        ours: how many further members are models of Kafka's consumer.
        assignor: the group's assignor.
        faults: the kinds of faults, and of their ends, that a schedule may draw.
    """

    programs: tuple[int, int] = (1, 2)
    ours: int = 0
    assignor: str = "range"
    faults: frozenset[str] = frozenset()

    @property
    def most(self) -> int:
        return self.programs[1]


_CHURN = frozenset({"leave", "kill", "revive"})

CHALLENGES: Final[Mapping[str, ClassicChallenge]] = {
    one.name: one
    for one in (
        ClassicChallenge(
            name="join",
            title="join and sync",
            statement="Join the group. The leader assigns every partition to one member, and sends "
            "the assignments with `sync_group`. Read the stored offsets, deliver, and commit.",
            lesson="The coordinator knows members and generations, but no partitions. The leader "
            "alone computes the assignment, and the others trust it.",
            programs=(1, 1),
        ),
        ClassicChallenge(
            name="heartbeat",
            title="heartbeats, and joining again",
            statement="Members join, leave, and are killed; partitions are added. Send heartbeats, "
            "and join again when the coordinator answers REBALANCE_IN_PROGRESS.",
            lesson="Without heartbeats the coordinator removes a member after its session timeout. "
            "A heartbeat's response is also how a member learns of a rebalance.",
            programs=(1, 3),
            ours=1,
            faults=_CHURN | {"grow"},
        ),
        ClassicChallenge(
            name="generation",
            title="a fenced generation",
            statement="Processes freeze, packets vanish, and the coordinator moves. A member that "
            "gets UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION delivers nothing until it has joined.",
            lesson="The generation is the fencing token: the coordinator refuses the commit of an "
            "earlier one. The member must stop, or its messages are delivered twice.",
            programs=(2, 3),
            faults=frozenset(
                {"freeze", "thaw", "mute", "unmute", "cut", "move", "restart broker", "revive"}
            ),
        ),
        ClassicChallenge(
            name="cooperative",
            title="cooperative rebalancing in two steps",
            statement="The group uses `cooperative-sticky`. Keep delivering the partitions that "
            "stay. A partition that moves is first revoked by its owner, which then joins again.",
            lesson="A leader must not assign a partition while another member owns it. The second "
            "rebalance gives it to the new owner, and nobody stops for the rest.",
            programs=(2, 3),
            ours=1,
            assignor="cooperative-sticky",
            faults=_CHURN,
        ),
    )
}

# ---- the court -----------------------------------------------------------------------------------

SESSION_S, REBALANCE_S = 10.0, 60.0
"""The session timeout and the rebalance timeout of all members in seconds."""


class ClassicCourt(Court[ClassicChallenge, GroupScore]):
    """Runs the schedules of one challenge with a simulated coordinator."""

    score = GroupScore

    def names(self) -> tuple[list[str], str]:
        count = self.challenge.most + self.challenge.ours
        return [*(f"{GROUP}_{who}" for who in range(count)), COORDINATOR], ""

    def run(self, decide: Decisions, emit: Emit | None = None) -> tuple[Result, GroupScore]:
        self.forget()
        challenge = self.challenge
        least, most = challenge.programs
        count = least + decide(most - least + 1)
        plan = CoordinatedPlan(
            members=count + challenge.ours,
            partitions=1 + decide(6),
            messages=1 + decide(2),
            settings=self._settings,
            delay=lambda _: drawn_delay(decide),
        )
        is_cooperative = challenge.assignor == "cooperative-sticky"
        monitor = ClassicMonitor(count, is_cooperative=is_cooperative)
        scorer, recorder = ClassicScorer(count), CoordinatedRecorder(emit or silent)
        watchers = (
            CoordinatedWatchers(recorder, monitor, scorer)
            if emit
            else CoordinatedWatchers(monitor, scorer)
        )
        world = ClassicWorld(plan, watchers, programs=self.programs[:count])
        actions = 0

        def say(text: str) -> None:
            nonlocal actions
            actions += 1
            recorder.note(world, text)

        def play() -> None:
            run_faults(world, decide, say, kinds=challenge.faults)
            recorder.note(world, "all faults end")
            end_faults(world)
            rest(world)
            monitor.check_rest(world, REST_S)

        return judged(play, monitor, decide, lambda: actions), scorer.score()

    def _settings(self, one: ClientSettings, who: int) -> ClientSettings:
        return replace(
            one, assignors=(self.challenge.assignor,), session_s=SESSION_S, poll_s=REBALANCE_S
        )
