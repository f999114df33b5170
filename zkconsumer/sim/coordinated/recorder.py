"""Records a coordinated world as entries that `trace.story` shows, one column for each member.

Two kinds of events are left out: heartbeats that change nothing, and automatic commits while
nothing else happens.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping

from zkconsumer.later import member_events as ev
from zkconsumer.later.consumer_group import ConsumerGroup
from zkconsumer.later.group_coordinator import GroupCoordinator, group_of
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.consumer_protocol import decode_assignment
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.sim.coordinated.world import (
    GROUP,
    AnyState,
    CoordinatedWatcher,
    CoordinatedWorld,
    MemberTransition,
)
from zkconsumer.sim.kernel import stories as kernel
from zkconsumer.sim.kernel.stories import Emit
from zkconsumer.sim.kernel.world import Delivered
from zkconsumer.trace.story import listed

COORDINATOR = "coordinator"
"""The name under which a story shows what the group's coordinator does."""


class CoordinatedRecorder(kernel.Recorder[CoordinatedWorld], CoordinatedWatcher):
    """Passes every entry to `emit`."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._group = ""
        self._committed: dict[int, Mapping[TopicPartition, OffsetAndMetadata]] = {}
        self._searching: set[int] = set()
        self._last = -1.0, ""

    def copy(self, emit: Emit) -> CoordinatedRecorder:
        """Return a recorder that continues where this one is, and passes its entries to `emit`."""
        twin = copy.copy(self)
        twin._emit = emit
        twin._gone, twin._searching = self._gone.copy(), self._searching.copy()
        twin._committed = self._committed.copy()
        return twin

    def transition(self, world: CoordinatedWorld, step: MemberTransition) -> None:
        who, before, event, commands = step
        member = world.members[who]
        self._gone.discard(who)
        after = member.state
        phase = after.phase.value if after.phase is not before.phase else ""
        if self._repeats(who, event, commands) or self._searches_again(who, after, commands):
            return
        done = list(_actions(commands))
        why = _cause(before, event)
        if phase or done or why.startswith("refused"):
            text = "; ".join(filter(None, [why, *done]))
            self._put(world, member=member.name, phase=phase, text=text)

    def _repeats(self, who: int, event: ev.Event, commands: Iterable[ev.Command]) -> bool:
        """Return whether a member only commits again what it has committed before."""
        commits = [
            one.request.offsets
            for one in commands
            if isinstance(one, ev.Send) and isinstance(one.request, msg.OffsetCommit)
        ]
        before = self._committed.get(who)
        if commits:
            self._committed[who] = commits[-1]
        is_alone = len(commits) == 1 and all(map(_is_routine, commands))
        return is_alone and isinstance(event, ev.Tick) and commits[-1] == before

    def _searches_again(self, who: int, after: AnyState, commands: Iterable[ev.Command]) -> bool:
        """Return whether a member only repeats its search for the coordinator."""
        if after.client.coordinator is not None:
            self._searching.discard(who)
            return False
        searches = [isinstance(getattr(one, "request", 0), msg.FindCoordinator) for one in commands]
        was_searching = who in self._searching
        if any(searches):
            self._searching.add(who)
        return was_searching and all(searches)

    def answered(
        self, world: CoordinatedWorld, who: int, request: msg.Request, response: msg.Response
    ) -> None:
        if isinstance(request, msg.OffsetCommit) and response.error is not Error.NONE:
            self._by_coordinator(
                world, f"refuses the commit of {world.members[who].name}: {response.error.name}"
            )

    def delivered(self, world: CoordinatedWorld, message: Delivered) -> None:
        self._put(
            world,
            member=world.members[message.who].name,
            delivered=str(message.tp),
            offset=message.offset,
        )

    def moved(self, world: CoordinatedWorld, broker: int | None) -> None:
        text = "there is none" if broker is None else f"now broker {broker}"
        self._by_coordinator(world, text)
        self._group = ""

    def acted(self, world: CoordinatedWorld) -> None:
        self._of_group(world)
        for who, member in enumerate(world.members):
            if member.dead:
                self._ended(world, who, member.name)

    def _of_group(self, world: CoordinatedWorld) -> None:
        """Record a change of the group's phase or generation."""
        broker = None if world.leader is None else world.brokers[world.leader]
        text = "" if broker is None else _situation(broker)
        if not text:
            return
        if text != self._group:
            self._group = text
            self._by_coordinator(world, text)

    def _by_coordinator(self, world: CoordinatedWorld, text: str) -> None:
        """Record the coordinator's actions; equal actions at one moment are recorded only once."""
        if (world.now, text) != self._last:
            self._last = world.now, text
            self._put(world, member=COORDINATOR, phase="", text=text)


def _is_routine(command: ev.Command) -> bool:
    """Return whether a command is a commit, or a heartbeat without news."""
    match command:
        case ev.Send(request=msg.ConsumerGroupHeartbeat(epoch=epoch, owned=None)):
            return epoch > 0
        case ev.Send(request=msg.OffsetCommit() | msg.Heartbeat()):
            return True
    return False


def _situation(broker: GroupCoordinator) -> str:
    """Describe the group at its coordinator."""
    group = group_of(broker, GROUP)
    if group is None:
        return ""
    if isinstance(group, ConsumerGroup):
        return f"the group is {group.phase.value}, epoch {group.epoch}"
    return f"the group is {group.phase.value}, generation {group.generation}"


# ---- sentences -----------------------------------------------------------------------------------


def _cause(before: AnyState, event: ev.Event) -> str:
    match event:
        case ev.PollStarted():
            return "the user polls"
        case ev.PollReturned():
            return "the user works on a message"
        case ev.CloseRequested():
            return "the user leaves"
        case ev.Disconnected(broker=broker):
            return f"the connection to broker {broker} is gone"
        case ev.MetadataChanged():
            return "new metadata"
        case ev.Answered(number=number, response=response):
            sent = before.client.sent.get(number)
            return "" if sent is None else _answer(sent.request, response)
    return ""


def _answer(request: msg.Request, response: msg.Response) -> str:
    name = type(request).__name__
    if response.error is not Error.NONE:
        is_usual = response.error in (Error.REBALANCE_IN_PROGRESS, Error.MEMBER_ID_REQUIRED)
        return f"{'' if is_usual else 'refused, '}{name}: {response.error.name}"
    match response:
        case msg.FoundCoordinator(broker=broker):
            return f"the coordinator is broker {broker}"
        case msg.Joined(generation=generation, members=members):
            others = ", ".join(sorted(short(one.member) for one in members))
            return f"generation {generation}" + (f", leads {others}" if members else "")
        case msg.Synced(assignment=assignment):
            return f"assigned {_named(decode_assignment(assignment)[0])}"
        case msg.OffsetsCommitted():
            return "has committed"
        case msg.ConsumerGroupAnswer(epoch=epoch, assignment=assignment):
            target = "" if assignment is None else f", target {_named(assignment)}"
            return f"epoch {epoch}{target}"
    return ""


def _actions(commands: Iterable[ev.Command]) -> Iterator[str]:
    stopped: frozenset[TopicPartition] = frozenset()
    for command in commands:
        match command:
            case ev.Send(broker=broker, request=request):
                yield from _sent(request, broker)
            case ev.CallListener(callback, partitions) if partitions:
                yield f"{callback.value} {_named(partitions)}"
            case ev.StartFetching(positions):
                yield f"reads {_positions(positions)}"
            case ev.StopFetching(partitions) if partitions and partitions != stopped:
                stopped = partitions
                yield f"delivers no more of {_named(partitions)}"
            case ev.Fail(error):
                yield f"fails: {error.name}"
            case ev.Raise(error):
                yield f"poll raises {error.name}"


def _sent(request: msg.Request, broker: int) -> Iterator[str]:
    match request:
        case msg.FindCoordinator():
            yield f"asks broker {broker} for the coordinator"
        case msg.SyncGroup(assignments=assignments) if assignments:
            yield f"assigns with {request.protocol}; sends SyncGroup"
        case msg.OffsetCommit(offsets=offsets):
            yield f"commits {_positions({tp: one.offset for tp, one in offsets.items()}, 'at')}"
        case msg.ConsumerGroupHeartbeat(epoch=epoch, owned=owned):
            if epoch <= 0:
                yield f"sends a heartbeat with epoch {epoch}"
            elif owned is not None:
                yield f"tells that it owns {_named(owned)}"
        case msg.JoinGroup() | msg.SyncGroup() | msg.LeaveGroup():
            yield f"sends {type(request).__name__}"


def short(member: str) -> str:
    """Return the client id in a member id; stories use it as the member's name."""
    return member.rpartition("-")[0] or member


def _named(partitions: Iterable[TopicPartition]) -> str:
    return listed(str(tp) for tp in partitions)


def _positions(positions: Mapping[TopicPartition, int | None], word: str = "from") -> str:
    groups: dict[int | None, list[TopicPartition]] = {}
    for tp, offset in positions.items():
        groups.setdefault(offset, []).append(tp)
    return ", ".join(
        f"{_named(tps)} " + ("with no stored offset" if at is None else f"{word} {at}")
        for at, tps in groups.items()
    )
