"""A run with ZooKeeper: its moves, and the delays of its messages."""

from __future__ import annotations

import random
from collections.abc import Sequence

from zkconsumer.consumer.executor import Resume, WatchFired
from zkconsumer.errors import RefusedError
from zkconsumer.lab.camera import ZooKeeperCamera, explain
from zkconsumer.lab.questions import Witness
from zkconsumer.lab.stage import Camera, LabStage
from zkconsumer.lab.texts import sentence
from zkconsumer.lab.worlds import (
    COORDINATOR_MOVES,
    DELAY_REQUEST,
    DROP_REQUEST,
    EXCLUDED_FAULTS,
    HOLD,
    LET_GO,
    LOSE_REPLY,
    PASS_TIME,
    PRODUCE,
    SET_OFFSET,
    LabMove,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.payloads import encode_offset
from zkconsumer.protocol.requests import Reply
from zkconsumer.sim import promises
from zkconsumer.sim.jvm_member import JvmMember
from zkconsumer.sim.kernel.stories import Emit
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.plan import Action, Do
from zkconsumer.sim.recorder import Recorder
from zkconsumer.sim.stage import ORDINARY, ZooKeeperDirector
from zkconsumer.sim.world import Watchers, World, possible, repairs

_DELAYED = (Do.SERVE, Do.RECEIVE)


class ZooKeeperStage(LabStage[World], ZooKeeperDirector):
    """A stage with ZooKeeper, which also delays messages and loses replies."""

    camera: ZooKeeperCamera

    def __init__(
        self,
        world: World,
        camera: ZooKeeperCamera,
        *,
        seed: int = 0,
        witness: Witness | None = None,
    ) -> None:
        super().__init__(world, camera)
        self._seed = seed
        self.witness = witness
        self._watch(world)
        self._lossy: frozenset[int] = frozenset()
        self._to_cut: tuple[int, ...] = ()

    def _copy_of_world(self, camera: Camera[World]) -> World:
        assert isinstance(camera, ZooKeeperCamera)
        world = self.world.copy(camera)
        self.witness = None if self.witness is None else self.witness.copy()
        self._watch(world)
        return world

    def _watch(self, world: World) -> None:
        """Let the witness watch the world, too, if the run has a question."""
        if self.witness is not None:
            world.watcher = Watchers(self.camera, self.witness)

    @property
    def zookeeper(self) -> World:
        return self.world

    def record(self, emit: Emit) -> None:
        recorder = Recorder(emit)
        self.world.watcher = Watchers(self.world.watcher, recorder)
        recorder.begin(self.world)

    def _settle(self, members: Sequence[int]) -> None:
        """Let no messages arrive meanwhile."""
        world = self.world
        flow, world.messages_per_advance = world.messages_per_advance, 0
        super()._settle(members)
        world.messages_per_advance = flow

    # ---- moves -----------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        self._record(LabMove.of(action), lambda: self._act(action))

    def produce(self, messages: int) -> None:
        more = super().produce
        self._record(LabMove(PRODUCE, value=messages), lambda: more(messages))

    def pass_time(self, until: float) -> None:
        jump = super().pass_time
        self._record(LabMove(PASS_TIME, value=until), lambda: jump(until))

    def _perform(self, move: LabMove) -> None:
        action = move.action
        if action is not None and action.do in ORDINARY:
            self.take_turn(action)
        elif action is not None:
            self.act(action)
        elif move.do == PRODUCE:
            self.produce(int(move.value))
        elif move.do == PASS_TIME:
            self.pass_time(move.value)
        else:
            self._record(move, lambda: self._of_the_lab(move))

    def _step(self) -> bool:
        return ZooKeeperDirector.step(self)

    def _drop(self, move: LabMove) -> None:
        """Let the messages before this one arrive; then break the connection.

        The client notices the break at once, because otherwise it could still handle the messages
        that it has received.
        """
        do = Do.SERVE if move.do == DROP_REQUEST else Do.RECEIVE
        for one in (*[do] * int(move.value), Do.CUT, Do.NOTICE):
            step = LabMove(one.value, move.who)
            self.check(step)
            self.move(step)

    def _act(self, action: Action) -> None:
        way = action.who, action.do is Do.SERVE
        if action.do in _DELAYED and self._is_network(action) and self.camera.waits.get(way):
            self.camera.waits = {**self.camera.waits, way: self.camera.waits[way] - 1}
        if self.witness is None:
            self.world.act(action)
        else:
            self._witnessed(action, self.witness)
        if action.do is Do.CUT:
            self._to_cut = tuple(who for who in self._to_cut if who != action.who)
        if action.do is Do.SERVE and action.who in self._lossy:
            self._lossy -= {action.who}
            self._to_cut += (action.who,)

    def _witnessed(self, action: Action, witness: Witness) -> None:
        """Perform an action, and announce the violation that it causes.

        An exception of a weakened member is a violation, too: it would end the member's thread.
        """
        before = witness.violation
        try:
            self.world.act(action)
        except Exception as error:  # noqa: BLE001 - it would end a weakened member's thread
            why = promises.every_event_is_handled.reason(error) or ""
            witness.tell(_raise, promises.every_event_is_handled.broken(why))
        if witness.violation is not None and witness.violation is not before:
            self.camera.broken(witness.violation)

    def _of_the_lab(self, move: LabMove) -> None:
        camera, world = self.camera, self.world
        match move.do:
            case "hold":
                camera.held |= {move.who}
            case "let_go":
                camera.held -= {move.who}
                camera.waits = {way: n for way, n in camera.waits.items() if way[0] != move.who}
            case "delay_request":
                camera.waits = {**camera.waits, (move.who, True): int(move.value)}
            case "delay_reply":
                items = list(world.members[move.who].inbox)[: int(move.value)]
                camera.waits = {**camera.waits, (move.who, False): sum(map(_is_message, items))}
            case "lose_reply":
                self._lossy |= {move.who}
            case "set_offset":
                assert move.tp is not None
                path = paths.offset(world.GROUP, move.tp)
                world.zookeeper.write(rq.SetData(path, encode_offset(int(move.value)), -1))
                world.distribute()

    # ---- which move is next ----------------------------------------------------------------------

    def possible(self) -> list[Action]:
        """Return the ordinary actions that can happen now, without delayed messages."""
        for who in self._to_cut:
            if self.world.links[who].connected:
                return [Action(Do.CUT, who)]
        held = self.camera.held
        actions = super().possible()
        return [
            one
            for one in actions
            if one.do not in _DELAYED or not (one.who in held or self._waits(one))
        ]

    def keeps_owners(self) -> bool:
        delayed = self.camera.held or self.camera.waits or self._lossy or self._to_cut
        return not delayed and self.rests() and not repairs(self.world)

    def _waits(self, action: Action) -> bool:
        """Return whether the network delays the next message in this direction."""
        left = self.camera.waits.get((action.who, action.do is Do.SERVE))
        return left == 0 and self._is_network(action)

    def _is_network(self, action: Action) -> bool:
        """Return whether the action concerns a message; an inbox has other items too."""
        inbox = self.world.members[action.who].inbox
        return action.do is Do.SERVE or (bool(inbox) and _is_message(inbox[0]))

    def choices(self) -> tuple[list[LabMove], LabMove | None, list[LabMove]]:
        world = self.world
        others: list[Action] = [*possible(world), *repairs(world)]
        others += [one for one in world.enabled() if one.do is Do.JOIN]
        faults = [one for one in others if one.tp is None and not self._is_left_out(one)]
        return (
            [LabMove.of(one) for one in self.possible()],
            self.next_move(),
            [LabMove.of(one) for one in faults],
        )

    def sentence(self, move: LabMove) -> str:
        return sentence(self.world, move)

    def explain(self, number: int) -> str:
        return explain(self.world, list(self.world.log_end)[number])

    def next(self) -> Action | None:
        """Return the next action. With seed 0 it is the action that has waited longest; otherwise
        the seed's random numbers choose it."""
        if not self._seed:
            return super().next()
        actions = self.possible()
        if len(actions) > 1:
            actions = [one for one in actions if one.do is not Do.TIME]
        draw = random.Random(f"{self._seed}:{self._turns}")
        return draw.choice(actions) if actions else None

    def next_move(self) -> LabMove | None:
        chosen = self.next()
        return None if chosen is None else LabMove.of(chosen)

    def check(self, move: LabMove) -> None:
        if move.do in COORDINATOR_MOVES:
            raise RefusedError("the group has no coordinator: ZooKeeper coordinates it")
        super().check(move)

    def _check(self, move: LabMove) -> None:
        world, action = self.world, move.action
        if action is not None:
            known = [*world.enabled(), *possible(world), *repairs(world)]
            if action not in known or self._is_left_out(action):
                raise RefusedError(f"impossible at this moment: {sentence(world, move)}")
        elif move.do in (HOLD, LET_GO, LOSE_REPLY) and not 0 <= move.who < len(world.members):
            raise RefusedError(f"there is no member {move.who}")
        elif move.do == SET_OFFSET and (
            move.tp is None
            or paths.offset(world.GROUP, move.tp) not in world.zookeeper.nodes
            or move.value < 0
        ):
            raise RefusedError("the partition has no offset znode yet, or the offset is negative")

    def _is_left_out(self, action: Action) -> bool:
        """Return whether the lab does not offer a fault, for example because the model of a JVM
        member lacks it."""
        is_of_client = action.do in (Do.CRASH_CLIENT, Do.LOCK_OUT)
        return action.do in EXCLUDED_FAULTS or (
            is_of_client and isinstance(self.world.members[action.who], JvmMember)
        )

    def _check_message(self, move: LabMove) -> None:
        if not 0 <= move.who < len(self.world.members):
            raise RefusedError(f"there is no member {move.who}")
        member, link = self.world.members[move.who], self.world.links[move.who]
        is_request = move.do in (DELAY_REQUEST, DROP_REQUEST)
        items = list(member.wire if is_request else member.inbox)
        at = int(move.value)
        if move.value not in range(len(items)) or not (is_request or _is_message(items[at])):
            raise RefusedError("this message is no longer in transit")
        if not link.connected or link.dead:
            raise RefusedError("the connection is broken, so its messages are lost already")


def _raise(violation: InvariantViolation) -> None:
    raise violation


def _is_message(item: object) -> bool:
    """Return whether an item of an inbox came from the network: a reply or a watch event."""
    match item:
        case Resume() | WatchFired() | (_, Reply()):
            return True
    return False
