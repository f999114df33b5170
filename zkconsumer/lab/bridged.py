"""A run of a group that a bridge divides between ZooKeeper and a coordinator.

The two halves of the world have their own stages and cameras, `zookeeper.ZooKeeperStage` and
`coordinated.CoordinatedStage`; this module joins them. The members of a picture are the old
members, the bridges' consumers, the bridges, and the new members, in this order. So a member of the
new half has its number in that half plus the number of members of the old half.

The row of a partition has four more values than in a world with ZooKeeper: no text, the member that
the owner znode names, the offset in Kafka, and the stage of a partition that a bridge holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Self

from zkconsumer.bridge import state as bridge
from zkconsumer.errors import RefusedError
from zkconsumer.lab.camera import ZooKeeperCamera, explain
from zkconsumer.lab.causality import Causality
from zkconsumer.lab.coordinated import (
    IDLE_S,
    CoordinatedCamera,
    CoordinatedStage,
    Messages,
    QueueStage,
)
from zkconsumer.lab.coordinated_causes import CoordinatedCauses
from zkconsumer.lab.stage import NOBODY, Camera
from zkconsumer.lab.texts import spoken
from zkconsumer.lab.worlds import (
    BRIDGE_MOVES,
    COORDINATOR_MOVES,
    FINISH,
    HOLD,
    LET_GO,
    PASS_TIME,
    PAUSE_BRIDGE,
    PRODUCE,
    REMOVE,
    RESUME_BRIDGE,
    ROLLBACK,
    SHARE,
    UNLIMITED_FAULTS,
    LabMove,
    WorldSpec,
)
from zkconsumer.lab.zookeeper import ZooKeeperStage
from zkconsumer.lab.zookeeper_causes import ZooKeeperCauses
from zkconsumer.later import member_events as ev
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.member.state import Settings
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import Json, JsonObject, TopicPartition
from zkconsumer.sim import world as old_world
from zkconsumer.sim.bridged.world import BridgeConsumer, BridgedPlan, BridgedWorld
from zkconsumer.sim.coordinated import world as new_world
from zkconsumer.sim.coordinated.recorder import CoordinatedRecorder
from zkconsumer.sim.coordinated.search import random_delay
from zkconsumer.sim.coordinated.stories import ASSIGNORS
from zkconsumer.sim.coordinated.view import describe_generation
from zkconsumer.sim.coordinated.world import TIME, no_delay
from zkconsumer.sim.kernel.stories import Emit
from zkconsumer.sim.kernel.world import NEVER
from zkconsumer.sim.plan import Action, Do
from zkconsumer.sim.recorder import Recorder
from zkconsumer.trace.story import listed

BRIDGES = 2
"""Number of processes of the bridge: one works, and the other one may wait as a standby."""

LEFT_OUT = frozenset({Do.GROW, Do.DELETE_TOPIC, Do.CREATE_TOPIC, Do.LOSE_DATA, Do.KAFKA_DOWN})
"""Faults of the half with ZooKeeper that are left out: both halves share the logs, the old members
store no offsets in Kafka, and the simulated bridge knows no loss of ZooKeeper's data. A partition
is added to both halves at once."""

OF_PROCESSES = frozenset(
    {
        *(Do.JOIN, Do.LEAVE, Do.KILL, Do.REVIVE, Do.FREEZE, Do.THAW, Do.SLOW, Do.END_SLOW),
        *(Do.COMMIT, Do.CRASH_CLIENT, Do.LOCK_OUT, Do.ADMIT, Do.DELETE_ID, Do.TAKE_ID),
    }
)
"""Actions on a member that a consumer of a bridge does not have, because it is a part of the
bridge's process."""

NOT_OF_BRIDGES = frozenset({"freeze", "thaw", "slow", "hurry", REMOVE})
"""Actions on a new member that a bridge does not have."""

GOALS: Mapping[str, bridge.Goal] = {
    PAUSE_BRIDGE: bridge.Goal.PAUSE,
    RESUME_BRIDGE: bridge.Goal.RUN,
    FINISH: bridge.Goal.FINISH,
    ROLLBACK: bridge.Goal.ROLLBACK,
}

STAGES: Mapping[bridge.Stage, str] = {
    bridge.Stage.SEEDING: "the bridge holds {}, and stores the offset in Kafka",
    bridge.Stage.LENT: "the bridge lends {} to the new side",
    bridge.Stage.RETURNING: "the bridge takes {} back from the new side",
    bridge.Stage.RETURNED: "no new member owns {} any more, and the bridge knows the last offset",
}
"""Stage -> a sentence about the partitions that have entered the stage."""


# ---- the picture ---------------------------------------------------------------------------------


def _is_consumer(world: old_world.World, who: int) -> bool:
    return who >= 0 and isinstance(world.members[who], BridgeConsumer)


class _OldCamera(ZooKeeperCamera):
    """Watches the half with ZooKeeper. A consumer of a bridge is shown while it has a session."""

    def owner(self, tp: TopicPartition) -> int:
        """Return the member that the owner znode names."""
        return self._owners.get(tp, NOBODY)

    def _print(self, world: old_world.World, who: int) -> tuple[object, ...]:
        return (*super()._print(world, who), _has_ended(world, who))

    def _member(self, world: old_world.World, who: int) -> JsonObject:
        view = super()._member(world, who)
        if not _is_consumer(world, who):
            return {**view, "side": "old"}
        if _has_ended(world, who):
            view["s"] = "away"
        return {**view, "side": "bridge", "role": "consumer"}


def _has_ended(world: old_world.World, who: int) -> bool:
    link = world.links[who]
    return link.dead and link.session not in world.zookeeper.sessions


class _NewCamera(CoordinatedCamera):
    """Watches the half with the coordinator, and tells what the bridges do.

    Attributes:
        bridges: number of the bridges, which are the first members.
        standbys: the bridges that wait.
        deeds: what the bridges have done since the last frame.
    """

    def __init__(self) -> None:
        super().__init__("classic")
        self.bridges = BRIDGES
        self.standbys: list[int] = []
        self.deeds: list[list[Json]] = []

    def _begin(self) -> None:
        super()._begin()
        self.deeds = []

    def reader(self, tp: TopicPartition) -> int:
        """Return the new member that owns a partition; NOBODY if none does."""
        return self._owners[tp.partition]

    def stored(self, tp: TopicPartition) -> Json:
        """Return the offset in Kafka."""
        return self._rows[tp.partition][1]

    def wait(self, standbys: list[int]) -> None:
        """Note which bridges are standbys now."""
        for who in {*standbys} ^ {*self.standbys}:
            self._shown[who] = ()
        self.standbys = standbys.copy()

    def _member(
        self, world: new_world.CoordinatedWorld, who: int, messages: Messages
    ) -> JsonObject:
        view = super()._member(world, who, messages)
        if who >= self.bridges:
            return {**view, "side": "new"}
        if who in self.standbys:
            view |= {"s": "up", "ph": "standby", "note": "waits for the end of the other sessions"}
        return {**view, "side": "bridge", "role": "bridge"}

    def _note(self, world: new_world.CoordinatedWorld, who: int) -> str:
        if who >= self.bridges:
            return super()._note(world, who)
        return describe_generation(bridge_state(world, who).classic)

    def transition(
        self, world: new_world.CoordinatedWorld, step: new_world.MemberTransition
    ) -> None:
        super().transition(world, step)
        if step.who < self.bridges:
            assert isinstance(step.before, bridge.State)
            after = bridge_state(world, step.who)
            told = [*_moved(step.before, after), *_ordered(step.commands)]
            self.deeds += [["bridge", *one] for one in told]
            self.has_seen |= bool(told)


def bridge_state(world: new_world.CoordinatedWorld, who: int) -> bridge.State:
    """Return the state of a bridge."""
    state = world.members[who].state
    assert isinstance(state, bridge.State)
    return state


Deed = tuple[str, str]
"""What a bridge has done: one word, and a sentence."""


def _moved(before: bridge.State, after: bridge.State) -> Iterable[Deed]:
    """Yield the changes of stages."""
    for stage, sentence in STAGES.items():
        was = {tp for tp, one in before.held.items() if one.stage is stage}
        now = {tp for tp, one in after.held.items() if one.stage is stage}
        if now - was:
            yield stage.value, sentence.format(listed(map(str, now - was)))


def _ordered(commands: Iterable[ev.Command]) -> Iterable[Deed]:
    """Yield the bridge's orders to its consumers and to itself."""
    for command in commands:
        match command:
            case bridge.RunConsumers(consumers):
                count = len(consumers)
                yield "runs", f"the bridge runs {count} consumer{'' if count == 1 else 's'}"
            case bridge.CommitToZooKeeper(_, offsets):
                which = listed(map(str, offsets))
                yield "commits", f"the bridge writes Kafka's offset of {which} to ZooKeeper"
            case bridge.Return(_, partitions):
                yield "returns", f"the bridge's consumer may release {listed(map(str, partitions))}"
            case bridge.RemoveMembers():
                yield "removes", "the bridge removes all other members of the brokers' group once"
            case bridge.BridgeEnded(reason):
                yield "ends", f"the bridge ends: {reason}"


class BridgedCauses:
    """The watchers of both halves, which write one causal record."""

    def __init__(self, record: Causality, old: ZooKeeperCauses, new: CoordinatedCauses) -> None:
        self.record, self.old, self.new = record, old, new

    def copy(self, record: Causality) -> BridgedCauses:
        old, new = self.old.record, self.new.record
        return BridgedCauses(
            record, self.old.copy(record.half(old)), self.new.copy(record.half(new))
        )

    def begin(self, world: BridgedWorld) -> None:
        self.old.begin(world.old)
        self.new.begin(world.new)

    def finish(self, world: BridgedWorld) -> None:
        self.old.finish(world.old)
        self.new.finish(world.new)

    def mark(self, world: BridgedWorld, move: LabMove, text: str) -> None:
        first = len(world.old.members)
        if move.do in OF_BROKERS:
            self.new.mark(world.new, move, text)
        elif move.who < first:
            self.old.mark(world.old, move, text)
        else:
            self.new.mark(world.new, move._replace(who=move.who - first), text)


class BridgedCamera(Camera[BridgedWorld]):
    """Joins the frames of both halves."""

    causes: BridgedCauses

    def __init__(self) -> None:
        record = Causality()
        old, new = ZooKeeperCauses(record.half()), CoordinatedCauses(record.half())
        super().__init__(BridgedCauses(record, old, new))
        self.old, self.new = _OldCamera(), _NewCamera()
        self._share()
        self._rows: list[list[Json]] = []
        self._last_owners: list[int] = []

    def copy(self) -> Self:
        twin = super().copy()
        twin.old, twin.new = self.old.copy(), self.new.copy()
        twin._share()
        return twin

    def _share(self) -> None:
        """Let the cameras of both halves count together, and write into one causal record."""
        self.old.tally = self.new.tally = self.tally
        self.old.causes, self.new.causes = self.causes.old, self.causes.new

    def _begin(self) -> None:
        super()._begin()
        self.old._begin()
        self.new._begin()

    def counters(self) -> list[Json]:
        return [
            *(self.old.notifications, self.old.reads, self.old.writes),
            round(self.unowned_s, 3),
            self.tally.redelivered,
            self.changed_owner,
            self.tally.delivered,
            self.new.requests,
        ]

    def _unowned(self) -> int:
        return sum(row[0] == NOBODY for row in self._rows)

    def _parts(self, world: BridgedWorld) -> JsonObject:
        self.new.wait(world.standbys) if self.new._shown else None
        old, new = self.old._parts(world.old), self.new._parts(world.new)
        self._rows = [self._row(world, tp) for tp in world.log_end]
        self._last_owners = [NOBODY] * len(self._rows)
        return {
            "members": [*old["members"], *new["members"]],
            "partitions": [
                [str(tp), *row] for tp, row in zip(world.log_end, self._rows, strict=True)
            ],
            "tree": {**old["tree"], **new["tree"]},
            "zookeeper": {**old["zookeeper"], "coordinator": new["zookeeper"]},
        }

    # ---- what has changed ------------------------------------------------------------------------

    def _changes(self, world: BridgedWorld, actor: int) -> JsonObject:
        first = len(world.old.members)
        self.new.wait(world.standbys)
        old = self.old._changes(world.old, actor)
        new = self.new._changes(world.new, actor - first)
        self._events = [one for one in self.old._events if one[0] != "owner"]
        self._events += [_shifted(one, first) for one in self.new._events if one[0] != "owner"]
        self._events += self.new.deeds
        members = {**old.get("m", {}), **{first + who: it for who, it in new.get("m", {}).items()}}
        tree = {**old.get("z", {}), **new.get("z", {})}
        found: JsonObject = {name: it for name, it in (("m", members), ("z", tree)) if it}
        if "new" in old:
            found["new"] = old["new"]
        if "k" in old or "k" in new:
            found["k"] = {**self.old._zookeeper, "coordinator": self.new._broker}
        rows = self._changed_rows(world)
        return {**found, "p": rows} if rows else found

    def _changed_rows(self, world: BridgedWorld) -> dict[int, list[Json]]:
        before = self._rows + [[NOBODY]] * (len(world.log_end) - len(self._rows))
        self._last_owners += [NOBODY] * (len(world.log_end) - len(self._last_owners))
        self._rows = [self._row(world, tp) for tp in world.log_end]
        changed = {n: row for n, row in enumerate(self._rows) if row != before[n]}
        for number, row in changed.items():
            if row[0] != before[number][0]:
                self._events.append(["owner", row[0], str(list(world.log_end)[number])])
                self._count_owner(world, number, row[0])
        return changed

    def _count_owner(self, world: BridgedWorld, number: int, owner: int) -> None:
        """Count a change of the member that reads a partition; no consumer of a bridge reads."""
        if owner < 0 or (owner < len(world.old.members) and _is_consumer(world.old, owner)):
            return
        self.changed_owner += self._last_owners[number] not in (NOBODY, owner)
        self._last_owners[number] = owner

    def _row(self, world: BridgedWorld, tp: TopicPartition) -> list[Json]:
        """Return the values of a partition.

        The owner is the member that the owner znode names. If it is a consumer of the bridge, the
        owner is the new member that the partition is lent to. The brokers' assignment counts alone
        when ZooKeeper has no member of the group.
        """
        znode, reader = self.old.owner(tp), self.new.reader(tp)
        is_of_bridge = _is_consumer(world.old, znode)
        is_ordinary = znode == NOBODY and not _has_old_group(world)
        owner = znode
        if reader != NOBODY and (is_of_bridge or is_ordinary):
            owner = len(world.old.members) + reader
        stored = self.old._partition(world.old, tp)[1]
        end = world.log_end[tp]
        stage = _stage(world, tp) if is_of_bridge else ""
        counts = self.tally.below.get(tp, 0), end
        return [owner, stored, *counts, "", znode, self.new.stored(tp), stage]


def _has_old_group(world: BridgedWorld) -> bool:
    prefix = f"{paths.ids(world.old.GROUP)}/"
    return any(path.startswith(prefix) for path in world.old.zookeeper.nodes)


def _stage(world: BridgedWorld, tp: TopicPartition) -> str:
    """Return the stage of a partition that a consumer of a bridge owns."""
    if world.active is None or not world.bridge_lives(world.active):
        return ""
    held = world.bridge_state(world.active).held.get(tp)
    return "" if held is None else held.stage.value


def _shifted(event: list[Json], first: int) -> list[Json]:
    """Return an event of the new half with the member's number in the picture."""
    return [event[0], first + event[1], *event[2:]] if type(event[1]) is int else event


# ---- moves ---------------------------------------------------------------------------------------


class _OldHalf(ZooKeeperStage):
    """The stage of the half with ZooKeeper; its moves are moves of the whole world."""

    whole: BridgedStage

    def move(self, move: LabMove) -> None:
        self.whole.move(move)

    def play(self, move: LabMove) -> None:
        """Change this half only."""
        super().move(move)

    def busy(self) -> bool:
        """Return whether a move is possible that needs no time."""
        return any(one.do is not Do.TIME for one in self.possible())

    def _is_left_out(self, action: Action) -> bool:
        is_part = action.do in OF_PROCESSES and _is_consumer(self.world, action.who)
        return is_part or action.do in LEFT_OUT or super()._is_left_out(action)


class _NewHalf(CoordinatedStage):
    """The stage of the half with the coordinator; its moves are moves of the whole world."""

    whole: BridgedStage

    def move(self, move: LabMove) -> None:
        self.whole.move(self.whole.flat(move))

    def play(self, move: LabMove) -> None:
        """Change this half only."""
        super().move(move)

    def faults(self) -> list[LabMove]:
        bridges = range(self.whole.world.plan.bridges)
        return [
            one
            for one in super().faults()
            if one.who not in bridges or one.do in OF_BROKERS or one.do not in NOT_OF_BRIDGES
        ]

    def rests(self) -> bool:
        """Return whether the brokers' group has settled, and its members have read everything."""
        world, known = self.world, self.world.known()
        live = [one for one in world.members if one.lives]
        if any(one.frozen or one.muted for one in live) or (known is None and live):
            return False
        read = all(world.log_end[tp] == at for one in live for tp, at in one.fetching.items())
        is_known = set(known or {}) == {one.state.member for one in live}
        return read and is_known and all(one.machine.is_settled(one.state) for one in live)


OF_BROKERS = COORDINATOR_MOVES - {REMOVE}
"""Moves whose number is that of a broker."""


class BridgedStage(QueueStage[BridgedWorld]):
    """A stage of a group that a bridge divides."""

    LIMIT_S = 120.0
    camera: BridgedCamera

    def __init__(
        self, world: BridgedWorld, camera: BridgedCamera, *, seed: int = 0, flow: int = 0
    ) -> None:
        super().__init__(world, camera, flow=flow)
        self._old = _OldHalf(world.old, camera.old, seed=seed)
        self._new = _NewHalf(world.new, camera.new)
        self._old.whole = self._new.whole = self

    @classmethod
    def of(cls, spec: WorldSpec) -> BridgedStage:
        """Return the stage of a world, before its first move."""
        assignors = ASSIGNORS[spec.protocol.replace("bridge", "classic")]

        def new_settings(one: ClientSettings) -> ClientSettings:
            return replace(one, assignors=assignors, auto_commit_s=spec.auto_commit_s)

        def old_settings(one: Settings) -> Settings:
            return replace(one, auto_commit_s=spec.auto_commit_s)

        plan = BridgedPlan(
            old=spec.slots,
            jvm=frozenset(spec.jvm),
            new=spec.new_members,
            bridges=BRIDGES,
            partitions=spec.partitions,
            messages=spec.messages,
            replicas=2,
            settings=new_settings,
            old_settings=old_settings,
            delay=random_delay(spec.seed) if spec.seed else no_delay,
            session_s=spec.session_s,
            faults={do: most for do, most in UNLIMITED_FAULTS.items() if do not in LEFT_OUT},
        )
        camera = BridgedCamera()
        world = BridgedWorld(plan, camera.old, camera.new)
        return cls(world, camera, seed=spec.seed, flow=spec.flow)

    def _copy_of_world(self, camera: Camera[BridgedWorld]) -> BridgedWorld:
        assert isinstance(camera, BridgedCamera)
        world = self.world.copy(camera.old, camera.new)
        self._old = self._old.moved_to(world.old, camera.old)
        self._new = self._new.moved_to(world.new, camera.new)
        self._old.whole = self._new.whole = self
        return world

    @property
    def zookeeper(self) -> old_world.World:
        return self.world.old

    def record(self, emit: Emit) -> None:
        old, new = self.world.old, self.world.new
        recorder = Recorder(emit)
        old.watcher = old_world.Watchers(old.watcher, recorder)
        recorder.begin(old)
        new.watcher = new_world.CoordinatedWatchers(new.watcher, CoordinatedRecorder(emit))

    # ---- numbers of members ----------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The number of the first member of the new half, a bridge."""
        return len(self.world.old.members)

    def flat(self, move: LabMove) -> LabMove:
        """Return a move of the new half with the member's number in the picture."""
        is_of_member = move.who >= 0 and move.do not in OF_BROKERS
        return move._replace(who=self.first + move.who) if is_of_member else move

    def _half(self, move: LabMove) -> tuple[_OldHalf | _NewHalf, LabMove]:
        """Return the half that performs a move, and the move with its own number of the member."""
        if move.do in OF_BROKERS:
            return self._new, move
        if move.who < self.first:
            return self._old, move
        return self._new, move._replace(who=move.who - self.first)

    def _bridge(self, move: LabMove) -> int | None:
        """Return the number of the bridge that a move starts or ends; None if it does neither."""
        number = move.who - self.first
        is_of_process = move.do in ("join", "leave", "kill", "revive")
        return number if is_of_process and 0 <= number < self.world.plan.bridges else None

    def name_of(self, who: int) -> str:
        members = self.world.members
        return members[who].name if 0 <= who < len(members) else ""

    # ---- ordinary moves --------------------------------------------------------------------------

    def next_move(self) -> LabMove | None:
        if self._is_turn_of_new_half():
            chosen = self._new.next_move()
            return None if chosen is None else self.flat(chosen)
        return self._old.next_move() or LabMove(TIME)

    def _is_turn_of_new_half(self) -> bool:
        return self.world.is_turn_of_new_side(busy=self._old.busy())

    def _step_unrecorded(self) -> bool:
        self.world.step(lambda moves: moves[0])
        return True

    def _is_time_next(self) -> bool:
        return self.next_move() == LabMove(TIME)

    def next_due(self) -> float:
        if self._old.busy():
            return self.now
        return min(self.world.old.next_moment(), self.world.new.next_moment())

    def join(self, *who: int) -> None:
        for one in who:
            self.move(LabMove("join", one))

    def rests(self) -> bool:
        return self._old.rests() and self._new.rests()

    def keeps_owners(self) -> bool:
        return self._old.keeps_owners() and self._new.keeps_owners()

    # ---- performing moves ------------------------------------------------------------------------

    def _act(self, move: LabMove) -> None:
        world = self.world
        number = self._bridge(move)
        if move.do == TIME:
            self._let_time_come(move.value or NEVER)
        elif move.do == PASS_TIME:
            world.pass_time(move.value)
        elif move.do == PRODUCE:
            world.produce(int(move.value))
        elif move.do == "grow":
            world.grow()
        elif move.do in BRIDGE_MOVES:
            self._order(move)
        elif number is not None:
            self._change_bridge(move.do, number)
        else:
            half, local = self._half(move)
            world.perform(lambda: half.play(local))

    def _let_time_come(self, end: float) -> None:
        """Let timers expire until something visible has happened, or until the next move is no
        timer, or is due later than `end`."""
        world, camera = self.world, self.camera.new
        camera.has_seen = False
        until, writes = self.now + IDLE_S, len(world.old.zookeeper.history)
        while self._is_time_next():
            is_new = self._is_turn_of_new_half()
            world.perform(world.new.step if is_new else lambda: world.old.act(Action(Do.TIME)))
            has_seen = camera.has_seen or len(world.old.zookeeper.history) > writes
            if has_seen or self.now >= until or self.next_due() > end:
                break

    def _change_bridge(self, do: str, number: int) -> None:
        """Start, stop or kill the process of a bridge; it waits if the other one has sessions."""
        world = self.world
        if do == "leave":
            share, stop = world.bridge_state(number).share, bridge.Goal.STOP
            world.perform(
                lambda: world.tell(number, lambda now: bridge.GoalChanged(now, stop, share))
            )
        elif do == "kill" and number in world.standbys:
            world.standbys.remove(number)
        elif do == "kill":
            world.kill_bridge(number)
        elif world.may_start(number):
            world.start(number)
        else:
            world.standbys.append(number)

    def _order(self, move: LabMove) -> None:
        """Pass an operator's command to the active bridge."""
        world, number = self.world, self.world.active
        assert number is not None
        state = world.bridge_state(number)
        goal, share = GOALS.get(move.do, state.goal), state.share
        if move.do == SHARE:
            share = move.value / 100 or None
        world.perform(lambda: world.set_wish(goal, share))

    def _drop(self, move: LabMove) -> None:
        half, local = self._half(move)
        half._drop(local)

    def _happened(self) -> str:
        return self.camera.new.happened(self.world.new)

    # ---- which moves are possible ----------------------------------------------------------------

    def possible(self) -> list[LabMove]:
        """Return the ordinary moves of both halves; the clock advances only if it is its turn."""
        chosen = self.next_move()
        found = [LabMove.of(one) for one in self._old.possible()]
        found += [self.flat(one) for one in self._new.possible()]
        time = [LabMove(TIME)] if chosen == LabMove(TIME) else []
        return [*(one for one in found if one.do != TIME), *time]

    def choices(self) -> tuple[list[LabMove], LabMove | None, list[LabMove]]:
        _, _, old = self._old.choices()
        new = [self.flat(one) for one in self._new.faults()]
        new = [one for one in new if self._bridge(one) not in self.world.standbys]
        return self.possible(), self.next_move(), [*self._of_bridges(), *old, *new]

    def _of_bridges(self) -> list[LabMove]:
        """Return the commands to the active bridge, and the ends of waiting standbys."""
        world, number = self.world, self.world.active
        found = [LabMove("kill", self.first + one) for one in world.standbys]
        if number is None or not world.bridge_lives(number):
            return found
        return [*found, *map(LabMove, GOALS), LabMove(SHARE, value=50.0)]

    def _check(self, move: LabMove) -> None:
        if move.do == SHARE and not 0 <= move.value < 100:
            raise RefusedError("give a share from 0 to 99 percent; 0 follows the members")
        if move.do == SHARE:
            move = move._replace(value=50.0)
        number = self._bridge(move)
        is_known = move.do != TIME or move._replace(value=0.0) in self.possible()
        if move.do in BRIDGE_MOVES or (number in self.world.standbys):
            is_known = move in self._of_bridges()
        elif move.do == "grow":
            return
        elif move.do != TIME:
            half, local = self._half(move)
            half._check(local)
        if not is_known:
            raise RefusedError(f"impossible at this moment: {self.sentence(move)}")

    def _check_message(self, move: LabMove) -> None:
        half, local = self._half(move)
        half._check_message(local)

    # ---- texts -----------------------------------------------------------------------------------

    def sentence(self, move: LabMove) -> str:
        name = self.name_of(move.who)
        if move.do == TIME:
            return f"time advances to {max(self.now, self.next_due()):.2f} s"
        if self._bridge(move) is not None:
            return {"leave": f"{name} gets SIGINT", "kill": f"{name} gets SIGKILL"}.get(
                move.do, f"{name} starts"
            )
        if move.do in BRIDGE_MOVES or move.do in (PRODUCE, PASS_TIME, HOLD, LET_GO):
            return spoken(move, name)
        half, local = self._half(move)
        return half.sentence(local)

    def explain(self, number: int) -> str:
        tp = list(self.world.log_end)[number]
        stage = _stage(self.world, tp)
        on_old = explain(self.world.old, tp) if _has_old_group(self.world) else ""
        lent = f"For the bridge, {tp} is {stage}." if stage else ""
        has_new = any(one.lives for one in self.world.new.members)
        on_new = self._new.explain(number) if has_new else ""
        return " ".join(filter(None, (on_old, lent, on_new)))
