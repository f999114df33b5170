"""One run of the lab: a world, the moves so far, and a frame for each of them.

A run can be continued from any of its moves: `at` returns the world as it was at that move. A world
is copied every few moves; `at` repeats only the moves after the nearest copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from zkconsumer.errors import RefusedError
from zkconsumer.lab.camera import ZooKeeperCamera
from zkconsumer.lab.questions import Witness, parse_question
from zkconsumer.lab.stage import AnyStage
from zkconsumer.lab.worlds import (
    BRIDGED,
    COORDINATED,
    MAX_MOVES,
    UNLIMITED_FAULTS,
    WorldSpec,
)
from zkconsumer.lab.zookeeper import ZooKeeperStage
from zkconsumer.sim.jvm_member import MixedWorld
from zkconsumer.sim.scenarios import Scenario
from zkconsumer.sim.world import World

MOVES_BETWEEN_COPIES = 50
"""Minimum number of moves between two copies of a world; large worlds are copied less often."""


@dataclass
class Run:
    """The moves of one run, and copies of its world.

    Attributes:
        spec: the world; None if a scenario opened the run.
        scripted: number of moves that the scenario made.
        parent, forked_at: the run that this one continues, and the move from which it differs.
    """

    number: int
    spec: WorldSpec | None
    scenario: Scenario | None
    stage: AnyStage
    scripted: int = 0
    parent: int = 0
    forked_at: int = 0
    copies: dict[int, AnyStage] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return len(self.stage.moves)

    @property
    def weak(self) -> tuple[str, ...]:
        """The weakened parts, which must be planted whenever the run's world moves."""
        return () if self.spec is None else self.spec.weak

    def keep_copies(self) -> None:
        """Copy the world every few moves from now on."""
        stage = self.stage
        world = stage.world
        apart = max(MOVES_BETWEEN_COPIES, (len(world.members) + len(world.log_end)) // 4)

        def copy() -> None:
            if len(stage.moves) % apart == 0:
                self.copies[len(stage.moves)] = stage.copy()

        stage.on_move = copy

    def at(self, index: int) -> AnyStage:
        """Return a stage at a move, without moves and frames; the run stays as it is."""
        start = max(one for one in self.copies if one <= index)
        stage = self.copies[start].copy()
        for move in self.stage.moves[start:index]:
            stage.move(move)
        stage.moves, stage.frames, stage.defaults = [], [], []
        return stage

    def fork(self, number: int, index: int) -> Run:
        """Return a run with the same moves up to `index`."""
        run = replace(self, number=number, parent=self.number, forked_at=index)
        run.cut(index)
        return run

    def cut(self, index: int) -> None:
        """Remove the moves after `index`."""
        stage, old = self.at(index), self.stage
        stage.moves, stage.frames = old.moves[:index], old.frames[:index]
        stage.defaults = old.defaults[:index]
        stage.settled, stage.picture = old.settled, old.picture
        self.stage, self.scripted = stage, min(self.scripted, index)
        self.copies = {at: one for at, one in self.copies.items() if at <= index}
        self.keep_copies()

    def check_room(self) -> None:
        if self.length >= MAX_MOVES:
            raise RefusedError(
                f"the run has {MAX_MOVES} moves, the most that the lab keeps",
                where="run",
                remedy="go back and fork, or open a new world",
            )


def new_stage(spec: WorldSpec | None, scenario: Scenario | None) -> AnyStage:
    """Return the stage of a world or of a scenario, before its first move."""
    if spec is not None and spec.protocol in COORDINATED:
        from zkconsumer.lab.coordinated import CoordinatedStage  # noqa: PLC0415 - see `worlds`

        return CoordinatedStage.of(spec)
    if spec is not None and spec.protocol in BRIDGED:
        from zkconsumer.lab.bridged import BridgedStage  # noqa: PLC0415 - see `worlds`

        return BridgedStage.of(spec)
    if spec is not None:
        plan, jvm, seed = spec.plan(), frozenset(spec.jvm), spec.seed
    else:
        assert scenario is not None
        plan, jvm, seed = replace(scenario.plan, faults=UNLIMITED_FAULTS), scenario.jvm, 0
    camera = ZooKeeperCamera()
    world = MixedWorld(plan, camera, jvm=jvm) if jvm else World(plan, camera)
    asks = "" if spec is None else spec.asks
    witness = Witness(parse_question(asks).judge(jvm)) if asks else None
    return ZooKeeperStage(world, camera, seed=seed, witness=witness)


def open_world(number: int, spec: WorldSpec) -> Run:
    """Return a run of a world."""
    run = Run(number, spec, None, new_stage(spec, None))
    run.keep_copies()
    run.stage.start(*range(spec.members))
    return run


def open_scenario(number: int, scenario: Scenario) -> Run:
    """Return a run with all moves of a scenario."""
    run = Run(number, None, scenario, new_stage(None, scenario))
    run.keep_copies()
    run.stage.start()
    assert isinstance(run.stage, ZooKeeperStage)
    scenario.script(run.stage)
    run.scripted = run.length
    return run
