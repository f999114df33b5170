"""A run of a group with a coordinator: the classic protocol, eager or cooperative, or KIP-848.

A run has the same form as a run with ZooKeeper: moves (the actions), pictures (whole states) and
frames (changes of state); see `runs` and `camera`. The simulation is a queue of messages in transit
and of timers. The move `serve` lets a request arrive at its broker, `receive` lets a response
arrive at its member, and `time` advances to the next timer. The picture contains the state of the
coordinator instead of ZooKeeper's tree.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Self, TypeAlias

from zkconsumer.errors import RefusedError
from zkconsumer.lab.camera import SHOWN_MESSAGES
from zkconsumer.lab.causality import Causality
from zkconsumer.lab.coordinated_causes import CoordinatedCauses
from zkconsumer.lab.stage import NOBODY, Camera, LabStage, W
from zkconsumer.lab.texts import spoken
from zkconsumer.lab.worlds import (
    COORDINATE,
    DELAY_REPLY,
    DELAY_REQUEST,
    DROP_REQUEST,
    HOLD,
    KILL_BROKER,
    LET_GO,
    NO_COORDINATOR,
    PASS_TIME,
    PRODUCE,
    REMOVE,
    REVIVE_BROKER,
    LabMove,
    WorldSpec,
)
from zkconsumer.later import group_events as ge
from zkconsumer.later.group_coordinator import GroupCoordinator
from zkconsumer.later.group_events import BrokerSettings
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.sim.coordinated.recorder import COORDINATOR, CoordinatedRecorder, short
from zkconsumer.sim.coordinated.search import random_delay
from zkconsumer.sim.coordinated.stories import CoordinatedDirector, plan_for
from zkconsumer.sim.coordinated.view import (
    CoordinatorView,
    describe_generation,
    describe_requests,
    group_view,
    message_text,
)
from zkconsumer.sim.coordinated.world import (
    RECEIVE,
    SERVE,
    TIME,
    CoordinatedWatcher,
    CoordinatedWatchers,
    CoordinatedWorld,
    InTransit,
    Member,
    MemberTransition,
    Move,
)
from zkconsumer.sim.kernel.stories import Emit
from zkconsumer.sim.kernel.world import NEVER, Delivered
from zkconsumer.sim.plan import Do
from zkconsumer.trace.story import listed

DELAY_S = 10.0
"""Seconds by which the move "delay" delays a message: as long as three heartbeat intervals of the
classic protocol."""

IDLE_S = 30.0
"""Virtual seconds after which the move `time` ends even if nothing visible has changed. Without
members, only the regular ticks of the brokers happen."""


# ---- the picture ---------------------------------------------------------------------------------


class CoordinatedCamera(Camera[CoordinatedWorld], CoordinatedWatcher):
    """Watches a world with a coordinator, and turns each move into a frame.

    Attributes:
        has_seen: whether something visible has happened since the attribute was last set to False.
        waiting: the messages in transit after the last frame, by member.
    """

    causes: CoordinatedCauses

    def __init__(self, protocol: str) -> None:
        self._got: list[Delivered] = []
        self._sent: list[str] = []
        super().__init__(CoordinatedCauses(Causality()))
        self.protocol = protocol
        self.requests = 0
        self.has_seen = False
        self.waiting: dict[int, Messages] = {}
        self._recorder = CoordinatedRecorder(self._show)
        self._owners: list[int] = []
        self._last_owners: list[int] = []
        self._rows: list[list[Json]] = []
        self._members: list[JsonObject] = []
        self._numbers: dict[str, int] = {}
        self._shown: list[tuple[object, ...]] = []
        self._group: CoordinatorView | None = None
        self._tree: JsonObject = {}
        self._broker: JsonObject = {}

    def copy(self) -> Self:
        twin = super().copy()
        twin._recorder = self._recorder.copy(twin._show)
        return twin

    def _parts(self, world: CoordinatedWorld) -> JsonObject:
        self._shown = [()] * len(world.members)
        self._members = [{}] * len(world.members)
        self._changes(world, -1)
        return {
            "members": list(self._members),
            "partitions": [[f"t-{n}", *row] for n, row in enumerate(self._rows)],
            "tree": dict(self._tree),
            "zookeeper": self._broker,
        }

    def counters(self) -> list[Json]:
        return [
            *(None, None, None),
            round(self.unowned_s, 3),
            self.tally.redelivered,
            self.changed_owner,
            self.tally.delivered,
            self.requests,
        ]

    def _unowned(self) -> int:
        return self._owners.count(NOBODY)

    def _begin(self) -> None:
        super()._begin()
        self._got, self._sent = [], []

    def happened(self, world: CoordinatedWorld) -> str:
        """Return a sentence that says what the users got, or which requests the members have
        sent."""
        if self._got:
            name = world.members[self._got[0].who].name
            partitions = listed({str(one.tp) for one in self._got})
            return f"the user of {name} gets {len(self._got)} messages of {partitions}"
        return "; ".join(dict.fromkeys(self._sent))

    # ---- what has changed ------------------------------------------------------------------------

    def _changes(self, world: CoordinatedWorld, actor: int) -> JsonObject:
        found: JsonObject = {}
        group = group_view(world)
        if _source(group) != _source(self._group) or not self._tree:
            tree = _tree(group)
            gone = dict.fromkeys(self._tree.keys() - tree.keys())
            changed = {path: one for path, one in tree.items() if one != self._tree.get(path)}
            self._tree = tree
            if changed or gone:
                found["z"] = {**changed, **gone}
        self._group = group
        found |= self._partitions(world)
        members = self._changed_members(world)
        if members:
            found["m"] = members
        broker = self._bar(world)
        if broker != self._broker:
            self._broker = found["k"] = broker
        return found

    def _partitions(self, world: CoordinatedWorld) -> JsonObject:
        added = [f"t-{n}" for n in range(len(self._rows), len(world.log_end))]
        self._owners += [NOBODY] * len(added)
        self._last_owners += [NOBODY] * len(added)
        self._own(world)
        offsets = self._group.offsets if self._group else {}
        rows: list[list[Json]] = []
        for tp, end in world.log_end.items():
            before = self._rows[tp.partition][1] if tp.partition < len(self._rows) else None
            stored = str(offsets[tp]) if tp in offsets else before
            rows.append([self._owners[tp.partition], stored, self.tally.below.get(tp, 0), end])
        known = self._rows + [[]] * len(added)
        changed = {n: row for n, row in enumerate(rows) if row != known[n]}
        moved = [n for n, row in changed.items() if not known[n] or known[n][0] != row[0]]
        self._rows = rows
        found: JsonObject = {"new": added} if added else {}
        if changed:
            found["p"] = changed
        if moved:
            self._events += [["owner", self._owners[n], f"t-{n}"] for n in moved]
        return found

    def _own(self, world: CoordinatedWorld) -> None:
        """Find the owners: a partition's owner is the member that delivers it.

        A partition of a dead or frozen member stays that member's until the coordinator removes the
        member. A member that the coordinator does not know owns nothing, although it may deliver.
        """
        known = None if self._group is None else self._group.members.keys()
        serving = world.serving()
        for tp in world.log_end:
            last = self._owners[tp.partition]
            now = [
                who
                for who in serving.get(tp, ())
                if known is None or world.members[who].state.member in known
            ]
            owner = now[0] if now else NOBODY
            if not now and last != NOBODY:
                member = world.members[last]
                is_kept = known is None or member.state.member in known
                owner = last if is_kept and not member.acts else NOBODY
            self._owners[tp.partition] = owner
            if owner != NOBODY:
                self.changed_owner += self._last_owners[tp.partition] not in (NOBODY, owner)
                self._last_owners[tp.partition] = owner

    def _changed_members(self, world: CoordinatedWorld) -> dict[int, JsonObject]:
        waiting = self.waiting = requests_and_replies(world)
        found = {}
        for who, member in enumerate(world.members):
            messages = waiting.get(who, ([], []))
            now = (
                *(member.state, member.joined, member.dead, member.frozen, member.slow),
                *(member.muted, member.held is None or len(member.held), len(member.inbox)),
                *([number for number, _ in some] for some in messages),
                *(tuple(member.fetching), self._session(world, who)),
            )
            if now == self._shown[who]:
                continue
            self._shown[who] = now
            view = self._member(world, who, messages)
            if view != self._members[who]:
                self._members[who] = found[who] = view
        return found

    def _session(self, world: CoordinatedWorld, who: int) -> float | None:
        return self._group.sessions.get(world.members[who].state.member) if self._group else None

    def _member(self, world: CoordinatedWorld, who: int, messages: Messages) -> JsonObject:
        member = world.members[who]
        requests, replies = messages
        view: JsonObject = {
            "n": member.name,
            "k": "Kafka",
            "s": _status(member),
            "ph": member.state.phase.value,
            "c": "muted" if member.muted else "on",
            "ses": 0,
            "open": not member.frozen,
            "f": sorted(tp.partition for tp in member.fetching),
            "note": self._note(world, who),
        }
        session = self._session(world, who)
        if session is not None and member.lives:
            view["lease"] = round(session, 3)
        for name, is_set in (("slow", member.slow), ("held", member.held is not None)):
            if is_set:
                view[name] = 1
        if requests or member.held:
            texts = [message_text(one.message) for _, one in requests[:SHOWN_MESSAGES]]
            held = len(member.held or ())
            view["w"] = [len(requests) + held, *(texts or ["held back"])]
        if replies or member.inbox:
            texts = [message_text(one.message) for _, one in replies[:SHOWN_MESSAGES]]
            view["i"] = [len(replies) + len(member.inbox), *(texts or ["not handled"])]
        return view

    def _note(self, world: CoordinatedWorld, who: int) -> str:
        return describe_generation(world.members[who].state)

    def _bar(self, world: CoordinatedWorld) -> JsonObject:
        text = self._group.text if self._group else "no broker coordinates the group"
        if self._group is None and world.leader is not None:
            text = "the coordinator reads the group"
        return {
            "protocol": self.protocol,
            "text": text,
            "leader": world.leader,
            "kafka": len(world.brokers),
            "down": sorted(world.down),
        }

    # ---- called by the world ---------------------------------------------------------------------

    def transition(self, world: CoordinatedWorld, step: MemberTransition) -> None:
        who, before, _, commands = step
        self.causes.transition(world, step)
        self.has_seen |= bool(commands) or world.members[who].state.phase is not before.phase
        name = world.members[who].name
        self._numbers[name] = who
        self._sent += [f"{name} sends {text}" for text in describe_requests(commands)]
        self._recorder.transition(world, step)

    def asked(self, world: CoordinatedWorld, who: int, request: msg.Request) -> None:
        self.causes.asked(world, who, request)
        self.has_seen = True

    def coordinated(
        self, world: CoordinatedWorld, broker: int, before: GroupCoordinator, event: ge.Event
    ) -> None:
        self.causes.coordinated(world, broker, before, event)

    def answered(
        self, world: CoordinatedWorld, who: int, request: msg.Request, response: msg.Response
    ) -> None:
        self.has_seen = True
        self.requests += 1
        self._recorder.answered(world, who, request, response)

    def delivered(self, world: CoordinatedWorld, message: Delivered) -> None:
        self.causes.delivered(world, message)
        self.has_seen = True
        if self.tally.count(message) and not any(one.tp == message.tp for one in self._got):
            told = ["delivered", message.who, str(message.tp), message.offset, 1]
            self._events.append(told)
        self._got.append(message)

    def moved(self, world: CoordinatedWorld, broker: int | None) -> None:
        self.has_seen = True
        self._recorder.moved(world, broker)

    def acted(self, world: CoordinatedWorld) -> None:
        self.causes.acted(world)
        before = len(self._events)
        self._recorder.acted(world)
        self.has_seen |= len(self._events) > before

    def _show(self, entry: JsonObject) -> None:
        """Turn an entry of the recorder into an event of the frame."""
        text = entry.get("text", "")
        name = entry.get("member", "")
        if name == COORDINATOR:
            self._events.append(["text", f"coordinator: {text}"])
        elif entry.get("phase"):
            self._events.append(["phase", self._numbers[name], entry["phase"], text])
        elif text:
            self._events.append(["text", f"{name}: {text}"])


Messages: TypeAlias = tuple[list[tuple[int, InTransit]], list[tuple[int, InTransit]]]
"""The requests and the replies in transit of one member, with their numbers in the queue."""


def requests_and_replies(world: CoordinatedWorld) -> dict[int, Messages]:
    """Return the messages in transit of each member, in the order of their arrival."""
    found: dict[int, Messages] = {}
    for number, one in world.in_transit():
        requests, replies = found.setdefault(one.who, ([], []))
        (requests if one.is_request else replies).append((number, one))
    return found


def _source(group: CoordinatorView | None) -> tuple[object, object] | None:
    return None if group is None else group.source


def _tree(group: CoordinatorView | None) -> JsonObject:
    """Return the coordinator's state as a tree: path -> [text, 0]; 0 stands for no session."""
    if group is None:
        return {"/coordinator/group/g": ["not loaded", 0]}
    tree: JsonObject = {"/coordinator/group/g": [group.text, 0]}
    for name, text in group.members.items():
        tree[f"/coordinator/members/{group.names.get(name, short(name))}"] = [text, 0]
    for tp, offset in group.offsets.items():
        tree[f"/coordinator/offsets/{tp}"] = [str(offset), 0]
    return tree


def _status(member: Member) -> str:
    if not member.joined:
        return "away"
    if member.dead:
        return "left" if member.machine.is_over(member.state) else "dead"
    return "frozen" if member.frozen else "up"


# ---- moves ---------------------------------------------------------------------------------------


ROUND_TRIP_S = 0.005
"""Virtual seconds. If the clock advances by less than this, the sentence of the move does not
mention it."""


class QueueStage(LabStage[W]):
    """A stage of a world whose messages and timers wait in one queue, which a coordinator's has."""

    def __init__(self, world: W, camera: Camera[W], *, flow: int = 0) -> None:
        """`flow`: the messages that each partition gets in each second."""
        super().__init__(world, camera)
        self._flow = flow

    def _step(self) -> bool:
        if not self.is_recording:
            return self._step_unrecorded()
        chosen = self.next_move()
        if chosen is None:
            return False
        self.move(chosen)
        return True

    @abstractmethod
    def _step_unrecorded(self) -> bool:
        """Perform the world's next ordinary move; return False if there is none."""

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.next_due() <= end:
            if self._is_time_next():
                self.move(LabMove(TIME, value=end))
            else:
                self.step()
        if self.now < end:
            self.move(LabMove(PASS_TIME, value=end))

    @abstractmethod
    def _is_time_next(self) -> bool:
        """Return whether the next move is a timer."""

    def _perform(self, move: LabMove) -> None:
        self._record(move, lambda: self._act_with_flow(move))

    def _act_with_flow(self, move: LabMove) -> None:
        before = self.now
        self._act(move)
        seconds = int(self.now) - int(before)
        if move.do in (SERVE, RECEIVE, TIME) and self._flow and seconds:
            self._act(LabMove(PRODUCE, value=self._flow * seconds))

    @abstractmethod
    def _act(self, move: LabMove) -> None:
        """Perform a move other than a drop."""

    def _outcome(self, move: LabMove, text: str, before: float) -> str:
        """Return what an advance of time has brought; the new time only if it took longer than a
        round trip or had no visible effect."""
        if move.do != TIME:
            return text
        happened = self._happened()
        is_short = happened and self.now - before <= ROUND_TRIP_S
        return "; ".join(filter(None, ("" if is_short else f"it is {self.now:.2f} s", happened)))

    @abstractmethod
    def _happened(self) -> str:
        """Return what has happened at the coordinator and its members since the last frame."""


class CoordinatedStage(QueueStage[CoordinatedWorld], CoordinatedDirector):
    """A stage of a group with a coordinator."""

    camera: CoordinatedCamera

    @classmethod
    def of(cls, spec: WorldSpec) -> CoordinatedStage:
        """Return the stage of a world, before its first move."""
        plan = plan_for(
            spec.protocol,
            {"session_s": spec.session_s, "auto_commit_s": spec.auto_commit_s},
            members=spec.slots,
            partitions=spec.partitions,
            messages=spec.messages,
            broker_settings=BrokerSettings(session_s=spec.session_s),
            **({"delay": random_delay(spec.seed)} if spec.seed else {}),
        )
        camera = CoordinatedCamera(spec.protocol)
        return cls(CoordinatedWorld(plan, camera), camera, flow=spec.flow)

    def _copy_of_world(self, camera: Camera[CoordinatedWorld]) -> CoordinatedWorld:
        assert isinstance(camera, CoordinatedCamera)
        return self.world.copy(camera)

    def record(self, emit: Emit) -> None:
        self.world.watcher = CoordinatedWatchers(self.camera, CoordinatedRecorder(emit))

    def keeps_owners(self) -> bool:
        live = [member for member in self.world.members if member.lives]
        return self.rests() and not any(one.slow or one.held is not None for one in live)

    # ---- ordinary moves --------------------------------------------------------------------------

    def possible(self) -> list[LabMove]:
        """Return the ordinary moves: the first message in each direction, and the next timer."""
        found = [self._shown(one) for one in self.world.enabled()]
        return sorted(found, key=lambda one: (one.do == TIME, one.who, one.do == RECEIVE))

    def next_move(self) -> LabMove | None:
        chosen = self.world.next()
        return None if chosen is None else self._shown(chosen)

    def _shown(self, move: Move) -> LabMove:
        """Return a move of the world as the lab names it: by the place of the message."""
        if move.do == TIME:
            return LabMove(TIME)
        messages = self.camera.waiting[move.who][move.do == RECEIVE]
        at = [number for number, _ in messages].index(move.number)
        return LabMove(move.do, move.who, value=at)

    def _step_unrecorded(self) -> bool:
        return self.world.step()

    def _is_time_next(self) -> bool:
        return self.world.next() == Move(TIME)

    # ---- performing moves ------------------------------------------------------------------------

    def _act(self, move: LabMove) -> None:
        world = self.world
        if move.do == TIME:
            self._let_time_come(move.value or NEVER)
        elif move.do in (SERVE, RECEIVE):
            world.act(Move(move.do, move.who, self._message(move)[0]))
        elif move.do in (DELAY_REQUEST, DELAY_REPLY):
            world.delay(self._message(move)[0], DELAY_S)
        elif move.do == PASS_TIME:
            world.now = move.value
        elif move.do == PRODUCE:
            world.produce(int(move.value))
        else:
            world.act(Move(move.do, move.who))

    def _happened(self) -> str:
        return self.camera.happened(self.world)

    def _let_time_come(self, end: float) -> None:
        """Perform entries of the queue until one has a visible effect, or the next entry is a
        message, or is due later than `end`."""
        self.camera.has_seen = False
        until = self.now + IDLE_S
        while self.world.next() == Move(TIME) and not self.camera.has_seen and self.now < until:
            self.world.step()
            if self.world.next_moment() > end:
                break

    def _drop(self, move: LabMove) -> None:
        target, _ = self._message(move)
        do = SERVE if move.do == DROP_REQUEST else RECEIVE
        while True:
            messages = self.camera.waiting[move.who][do == RECEIVE]
            number, one = next(it for it in messages if it[0] == target)
            before = next(it for it in messages if it[1].way == one.way)
            if before[0] == number:
                break
            self.move(LabMove(do, move.who, value=messages.index(before)))
        self.move(LabMove(Do.CUT.value, move.who))

    def _message(self, move: LabMove) -> tuple[int, InTransit]:
        """Return the message that a move names. Raises RefusedError if it is no longer in
        transit."""
        is_request = move.do in (SERVE, DELAY_REQUEST, DROP_REQUEST)
        messages = self.camera.waiting.get(move.who, ([], []))[not is_request]
        if move.value not in range(len(messages)):
            raise RefusedError("this message is no longer in transit")
        return messages[int(move.value)]

    # ---- which moves are possible ----------------------------------------------------------------

    def faults(self) -> list[LabMove]:
        """Return the faults and other commands that are possible now."""
        world = self.world
        found = (
            [LabMove("grow"), LabMove(NO_COORDINATOR)]
            if world.leader is not None
            else [LabMove("grow")]
        )
        for broker in range(len(world.brokers)):
            is_down = broker in world.down
            found.append(LabMove(REVIVE_BROKER if is_down else KILL_BROKER, broker))
            if not is_down and broker != world.leader:
                found.append(LabMove(COORDINATE, broker))
        for who in range(len(world.members)):
            found += [LabMove(do, who) for do in self._of_member(who)]
        return found

    def _of_member(self, who: int) -> list[str]:
        member, world = self.world.members[who], self.world
        if not member.joined:
            return ["join"]
        if member.dead:
            return ["revive"]
        group = group_view(world)
        is_known = group is not None and member.state.member in group.members
        return [
            *(() if member.frozen else ("leave",)),
            *("kill", "cut", "thaw" if member.frozen else "freeze"),
            *("hurry" if member.slow else "slow", "unmute" if member.muted else "mute"),
            HOLD if member.held is None else LET_GO,
            *((REMOVE,) if is_known else ()),
        ]

    def _check(self, move: LabMove) -> None:
        if move.do in (SERVE, RECEIVE, TIME):
            known = self.possible()
            move = LabMove(TIME) if move.do == TIME else move
        else:
            known = self.faults()
        if move not in known:
            raise RefusedError(f"impossible at this moment: {self.sentence(move)}")

    def _check_message(self, move: LabMove) -> None:
        self._message(move)

    def choices(self) -> tuple[list[LabMove], LabMove | None, list[LabMove]]:
        return self.possible(), self.next_move(), self.faults()

    # ---- texts -----------------------------------------------------------------------------------

    def sentence(self, move: LabMove) -> str:
        name = self._name(move.who)
        if move.do == TIME:
            return f"time advances to {max(self.now, self.world.next_moment()):.2f} s"
        if move.do in (SERVE, RECEIVE, DELAY_REQUEST, DELAY_REPLY):
            try:
                _, one = self._message(move)
            except RefusedError:
                return f"{move.do} {name}"
            what = message_text(one.message)
            return {
                SERVE: f"broker {one.broker} receives from {name}: {what}",
                RECEIVE: f"{name} receives: {what}",
                DELAY_REQUEST: f"a request of {name} is late by {DELAY_S:g} s: {what}",
                DELAY_REPLY: f"a reply to {name} is late by {DELAY_S:g} s: {what}",
            }[move.do]
        words = {
            HOLD: f"the network holds back the requests of {name}",
            LET_GO: f"the network delivers the requests of {name}",
            Do.CUT.value: f"the connections of {name} break",
        }
        return words.get(move.do) or spoken(move, name)

    def _name(self, who: int) -> str:
        return self.world.members[who].name if 0 <= who < len(self.world.members) else ""

    def explain(self, number: int) -> str:
        group = group_view(self.world)
        tp = list(self.world.log_end)[number]
        serving = [self._name(who) for who in self.world.serving().get(tp, ())]
        now = f"{' and '.join(serving)} delivers it now." if serving else "No member delivers it."
        if group is None:
            return f"No broker coordinates the group, so nothing is assigned again. {now}"
        name = group.assigned.get(tp)
        if name is None:
            return f"The group is {group.text}; {tp} is assigned to no member. {now}"
        who = group.names.get(name, short(name))
        return f"{tp} is assigned to {who} ({group.text}). {group.computed_by} {now}"
