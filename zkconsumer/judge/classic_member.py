"""A program under test as a member of the classic protocol, in a simulated group.

The world runs members as state machines. `ProgramMachine` is one that asks the program. It does
what a Kafka client does below the group protocol: it finds the coordinator, and gives up requests
without a response.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from zkconsumer.frozen import dataclass
from zkconsumer.judge import promises
from zkconsumer.judge.classic_messages import positions_of, request_of, response_of
from zkconsumer.judge.member import due_after
from zkconsumer.judge.program import Exchange, Program
from zkconsumer.later import client_state
from zkconsumer.later import member_events as ev
from zkconsumer.later.classic_member import JOIN_LAPSE_S
from zkconsumer.later.classic_member_state import OVER, ClassicPhase, ClassicState
from zkconsumer.later.client_state import COORDINATOR_MOVED, NEVER, REQUEST_S
from zkconsumer.later.member_events import Commands
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.messages import NO_GENERATION, Error
from zkconsumer.protocol.model import JsonObject, TopicPartition

FENCED: Final = frozenset({Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION})
"""Errors that tell a member that it is fenced."""


@dataclass(frozen=True, slots=True)
class ProgramState(ClassicState):
    """What the judge knows of a program.

    Attributes:
        at: the last exchange with the program.
        due: when the program gets its next tick, in virtual seconds.
        waiting: (id, request) of each request that waits for the coordinator to be found.
        ids: for each request without a response, the program's number.
        delivers: the partitions that the program delivers.
    """

    at: Exchange | None = None
    due: float = NEVER
    waiting: tuple[tuple[int, msg.Request], ...] = ()
    ids: tuple[tuple[int, int], ...] = ()
    delivers: frozenset[TopicPartition] = frozenset()


Step = tuple[ProgramState, Commands]


class ProgramMachine:
    """Makes the steps of a member that a program plays; the methods are those of
    `later.classic_member`."""

    def __init__(self, program: Program) -> None:
        self._program = program

    # ---- called by the world ---------------------------------------------------------------------

    def step(self, state: ProgramState, event: ev.Event) -> Step:
        """Return the state after an event, and the commands to run."""
        if state.phase in OVER:
            return state, ()
        if state.at is None:
            begun = self._program.reset(self._reset(state))
            state, _ = _done(replace(state, at=begun), message=begun.answers[-1], now=event.now)
        result = self._handle(state, event)
        return ev.then(result, lambda s: self._send_waiting(s, event.now))

    def next_deadline(self, state: ProgramState, now: float) -> float:
        """Return the next moment after `now` at which a `Tick` is due."""
        if state.phase in OVER:
            return NEVER
        due = [state.due, *(one.until for one in state.client.sent.values())]
        if state.waiting:
            due.append(state.client.next_look_up)
        return min((at for at in due if at > now), default=NEVER)

    def is_over(self, state: ProgramState) -> bool:
        return state.phase in OVER

    def is_settled(self, state: ProgramState) -> bool:
        """Return whether the program is stable, and waits for no response except to heartbeats."""
        routine = (msg.Heartbeat, msg.OffsetCommit)
        waits = any(not isinstance(it.request, routine) for it in state.client.sent.values())
        return state.phase is ClassicPhase.STABLE and not waits and not state.waiting

    # ---- events ----------------------------------------------------------------------------------

    def _handle(self, state: ProgramState, event: ev.Event) -> Step:
        now = event.now
        match event:
            case ev.Tick():
                return self._ticked(state, now)
            case ev.Answered(number=number, response=response):
                return self._answered(state, number, response, now)
            case ev.Disconnected(broker=broker):
                return self._lost(state, broker, now)
            case ev.MetadataChanged(topics=topics):
                state, _ = client_state.metadata_changed(state, event)
                topic = topics.get(state.settings.topics[0])
                count = 0 if topic is None else topic.partitions
                return self._tell(state, {"type": "metadata", "now": now, "partitions": count})
            case ev.Consumed(partition=tp, position=position):
                delivered = {"partition": tp.partition, "offset": position}
                return self._tell(state, {"type": "delivered", "now": now, **delivered})
            case ev.CloseRequested():
                return self._tell(state, {"type": "close", "now": now})
        return state, ()

    def _ticked(self, state: ProgramState, now: float) -> Step:
        result: Step = state, ()
        for broker in sorted(client_state.overdue(state.client, now)):
            result = ev.then(result, partial(self._lost, broker=broker, now=now))
        if state.due > now:
            return result
        return ev.then(
            result, lambda s: self._tell(replace(s, due=NEVER), {"type": "tick", "now": now})
        )

    def _lost(self, state: ProgramState, broker: int, now: float) -> Step:
        """Tell the program that its requests to the coordinator get no response."""
        was_waiting = any(
            one.broker == broker and not isinstance(one.request, msg.FindCoordinator)
            for one in state.client.sent.values()
        )
        client = client_state.dropped(state.client, broker, now)
        state = replace(state, client=client)
        if not was_waiting:
            return state, ()
        ids = tuple(one for one in state.ids if one[0] in client.sent)
        return self._tell(replace(state, ids=ids), {"type": "disconnected", "now": now})

    def _answered(
        self, state: ProgramState, number: int, response: msg.Response, now: float
    ) -> Step:
        sent, client = client_state.answered(state.client, number)
        if sent is None:
            return state, ()
        state = replace(state, client=client)
        if isinstance(response, msg.FoundCoordinator):
            return replace(state, client=client_state.found(client, response, now)), ()
        id_ = dict(state.ids)[number]
        state = replace(state, ids=tuple(one for one in state.ids if one[0] != number))
        state = _learned(state, sent.request, response)
        answer = {"type": "response", "now": now, "id": id_, **response_of(response)}
        result = self._tell(state, answer)
        if response.error in COORDINATOR_MOVED and client.coordinator == sent.broker:
            result = ev.then(result, lambda s: self._lost(s, sent.broker, now))
        return result

    # ---- the program -----------------------------------------------------------------------------

    def _reset(self, state: ProgramState) -> JsonObject:
        settings = state.settings
        return {
            "type": "reset",
            "client": settings.client,
            "group": settings.group,
            "topic": settings.topics[0],
            "assignor": settings.assignors[0],
            "session_s": settings.session_s,
        }

    def _tell(self, state: ProgramState, message: JsonObject) -> Step:
        """Send a message to the program, and carry out its answer."""
        assert state.at is not None
        now = message["now"]
        at = self._program.tell(state.at, {**message, "now": round(now, 6)})
        result: Step = replace(state, at=at), ()
        for answer in at.answers:
            match answer["type"]:
                case "request":
                    result = ev.then(result, partial(self._asks, message=answer))
                case "deliver":
                    result = ev.then(result, partial(_delivers, message=answer))
                case "done":
                    result = ev.then(result, partial(_done, message=answer, now=now))
        return result

    def _asks(self, state: ProgramState, message: JsonObject) -> Step:
        """Queue a request of the program."""
        id_ = message["id"]
        if id_ in dict(state.waiting) or id_ in dict(state.ids).values():
            raise promises.speaks_the_protocol.broken(
                f"{state.settings.client}: request {id_} is sent again, before its response"
            )
        settings = state.settings
        request = request_of(
            message,
            settings.assignors[0],
            session_s=settings.session_s,
            rebalance_s=settings.poll_s,
        )
        if isinstance(request, msg.JoinGroup):
            state = replace(state, phase=ClassicPhase.PREPARING)
        return replace(state, waiting=(*state.waiting, (id_, request))), ()

    def _send_waiting(self, state: ProgramState, now: float) -> Step:
        """Send the requests that wait, or look for the coordinator first."""
        if not state.waiting:
            return state, ()
        if state.client.coordinator is None:
            client, look_up = client_state.look_up(state.client, state.settings.group, now)
            return replace(state, client=client), look_up
        commands: Commands = ()
        client, ids = state.client, state.ids
        for id_, request in state.waiting:
            is_join = isinstance(request, msg.JoinGroup)
            timeout_s = state.settings.poll_s + JOIN_LAPSE_S if is_join else REQUEST_S
            ids = (*ids, (client.number, id_))
            client, sent = client_state.send(client, request, now, timeout_s=timeout_s)
            commands += sent
        return replace(state, client=client, ids=ids, waiting=()), commands


def _learned(state: ProgramState, request: msg.Request, response: msg.Response) -> ProgramState:
    """Record what a response says about the membership."""
    match response:
        case msg.Joined(error=Error.NONE):
            return replace(
                state,
                phase=ClassicPhase.COMPLETING,
                member=response.member,
                generation=response.generation,
            )
        case msg.Synced(error=Error.NONE):
            return replace(state, phase=ClassicPhase.STABLE)
    named = getattr(request, "member", None), getattr(request, "generation", state.generation)
    is_present = named == (state.member, state.generation)
    if response.error in FENCED and is_present and state.generation != NO_GENERATION:
        return replace(state, phase=ClassicPhase.UNJOINED, generation=NO_GENERATION)
    return state


def _delivers(state: ProgramState, message: JsonObject) -> Step:
    positions = positions_of(message["positions"])
    gone = state.delivers - positions.keys()
    stop: Commands = (ev.StopFetching(gone),) if gone else ()
    start: Commands = (ev.StartFetching(positions),) if positions else ()
    return replace(state, delivers=frozenset(positions)), stop + start


def _done(state: ProgramState, message: JsonObject, now: float) -> Step:
    state = replace(state, due=due_after(message, now, state.due))
    if message.get("closed"):
        stop: Commands = (ev.StopFetching(state.delivers),) if state.delivers else ()
        return replace(state, phase=ClassicPhase.CLOSED, delivers=frozenset()), stop
    return state, ()
