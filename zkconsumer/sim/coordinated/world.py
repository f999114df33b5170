"""A simulation of the brokers and members of one coordinated group, in virtual time, with faults.

The members run `later.classic_member` or `later.consumer_member`, and the brokers
`later.group_coordinator`. Everything that happens is an entry of one queue, ordered by its time.
`CoordinatedPlan.delay` returns all delays of the network, so the plan and the commands of the
script determine a run. The entries are values, so `CoordinatedWorld.copy` can copy a world at any
moment.

A connection keeps the order of its requests and of its responses. A broken connection loses both.
"""

from __future__ import annotations

import copy
import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from types import ModuleType
from typing import NamedTuple, Self, TypeAlias, TypeGuard

from zkconsumer.frozen import dataclass
from zkconsumer.later import classic_member, consumer_member, group_coordinator
from zkconsumer.later import group_events as ge
from zkconsumer.later import member_events as ev
from zkconsumer.later.classic_member_state import ClassicState
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.later.consumer_group import ConsumerGroup, ConsumerGroupPhase
from zkconsumer.later.consumer_member import ConsumerState
from zkconsumer.later.group_phases import GroupPhase
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.later.subscriptions import Topic
from zkconsumer.protocol.model import OFFSETS_PARTITIONS, TopicPartition, coordinator_partition
from zkconsumer.sim.kernel.world import NEVER, Delivered, Relay, Transition

AnyState: TypeAlias = ClassicState | ConsumerState
"""The state of a member; its class depends on the group protocol."""

MemberTransition: TypeAlias = Transition[AnyState, ev.Event, ev.Command]
"""A step of a member's state machine."""

LATENCY_S = 0.001
"""Seconds that a message takes from one host to another, if the script names no other delay."""

GROUP, TOPIC = "g", "t"

SERVE, RECEIVE, TIME = "serve", "receive", "time"
"""The ordinary moves: a request arrives, a reply arrives, or the time advances to the next
timer."""


Delay = Callable[[int], float]
"""Returns the seconds that a message takes; the argument is the message's number in the world.

The function has no state, so a copy of a world may use it, too. Only a random search passes a
function that draws from a stream of decisions, and it copies no world.
"""


def no_delay(number: int) -> float:
    """Return the time that a message takes in a network without delays."""
    return LATENCY_S


class Move(NamedTuple):
    """A message arrives, a timer is due, or a command is given to a member or a broker (`ORDERS`).

    `number` is the number of the message in the queue.
    """

    do: str
    who: int = -1
    number: int = 0


@dataclass(frozen=True)
class CoordinatedPlan:
    """The parameters of a world.

    Attributes:
        protocol: "classic" or "consumer".
        settings: a function that changes a member's properties.
        broker_settings: the settings of each broker's coordinator.
        delay: the function that returns the delay of each message.
    """

    protocol: str = "classic"
    members: int = 2
    partitions: int = 4
    messages: int = 2
    brokers: int = 3
    settings: Callable[[ClientSettings, int], ClientSettings] = lambda one, who: one
    broker_settings: ge.BrokerSettings = field(default_factory=ge.BrokerSettings)
    delay: Delay = no_delay


class CoordinatedWatcher:
    """Observes a run; each method is called after its event."""

    def transition(self, world: CoordinatedWorld, step: MemberTransition) -> None:
        """A member's state machine has made a step."""

    def asked(self, world: CoordinatedWorld, who: int, request: msg.Request) -> None:
        """A broker has received a member's request."""

    def answered(
        self, world: CoordinatedWorld, who: int, request: msg.Request, response: msg.Response
    ) -> None:
        """A broker has sent a response."""

    def coordinated(
        self,
        world: CoordinatedWorld,
        broker: int,
        before: group_coordinator.GroupCoordinator,
        event: ge.Event,
    ) -> None:
        """A broker's coordinator has made a step; its replies follow."""

    def delivered(self, world: CoordinatedWorld, message: Delivered) -> None:
        """A user has got a message."""

    def moved(self, world: CoordinatedWorld, broker: int | None) -> None:
        """Another broker has become the group's coordinator; None: no broker coordinates the
        group."""

    def acted(self, world: CoordinatedWorld) -> None:
        """Something has happened; called after each change."""


class CoordinatedWatchers(Relay[CoordinatedWatcher], CoordinatedWatcher):
    """Passes each call to several watchers, in their order."""


@dataclass
class Member:
    """A member's process.

    Attributes:
        machine: the module of its state machine.
        life: number of starts of the process.
        fetching: partition -> position, of the partitions that are delivered.
        held: requests that a slow network holds back; None if the network does not hold them back.
        inbox: events that arrived while the process was frozen.
    """

    name: str
    state: AnyState
    machine: ModuleType
    life: int = 0
    joined: bool = False
    dead: bool = False
    frozen: bool = False
    slow: bool = False
    muted: bool = False
    held: list[LateRequest] | None = None
    fetching: dict[TopicPartition, int] = field(default_factory=dict)
    inbox: deque[ev.Event] = field(default_factory=deque)
    tick_at: float = NEVER
    is_asking: bool = False

    @property
    def lives(self) -> bool:
        return self.joined and not self.dead

    @property
    def acts(self) -> bool:
        return self.lives and not self.frozen

    def copy(self) -> Member:
        held = None if self.held is None else self.held.copy()
        return replace(self, held=held, fetching=self.fetching.copy(), inbox=self.inbox.copy())


@dataclass
class Wire:
    """One connection: the number of reconnects, and the last arrival time in each direction."""

    epoch: int = 0
    request_at: float = 0.0
    response_at: float = 0.0


# ---- entries of the queue ------------------------------------------------------------------------


class Sender(NamedTuple):
    """The origin of a request: the member, the start of its process, and the request's number."""

    who: int
    life: int
    broker: int
    number: int


@dataclass(frozen=True, slots=True)
class InTransit:
    """A message between a member and a broker arrives.

    Attributes:
        sender: the origin of the request, even if this message is the response to it.
        epoch: the number of the connection's reconnects when the message was sent; if the
            connection has reconnected since, the message is lost.
        message: the request, or the response to it.
    """

    sender: Sender
    epoch: int
    message: msg.Request | msg.Response

    @property
    def who(self) -> int:
        return self.sender.who

    @property
    def broker(self) -> int:
        return self.sender.broker

    @property
    def is_request(self) -> bool:
        return isinstance(self.message, msg.Request)

    @property
    def way(self) -> tuple[int, int, bool]:
        """The connection and the direction of the message; such messages keep their order."""
        return self.who, self.broker, self.is_request


@dataclass(frozen=True, slots=True)
class LateRequest:
    """A request arrives that a slow network has held back, even if its connection is gone."""

    sender: Sender
    request: msg.Request


@dataclass(frozen=True, slots=True)
class Refused:
    """A member learns that a broker does not accept its connection."""

    who: int
    broker: int


@dataclass(frozen=True, slots=True)
class MemberDeadline:
    """A deadline of a member's state machine has passed."""

    who: int
    life: int
    due: float


@dataclass(frozen=True, slots=True)
class BrokerDeadline:
    """A deadline of a broker's coordinator has passed."""

    broker: int
    due: float


@dataclass(frozen=True, slots=True)
class MetadataDue:
    """A member reads the metadata; `life` None: even if its process has started again since."""

    who: int
    life: int | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A member's fetch request is answered."""

    who: int
    life: int


@dataclass(frozen=True, slots=True)
class GroupLoaded:
    """A broker has read the group's partition of `__consumer_offsets` after its election."""

    broker: int
    election: int
    records: Mapping[str, object]


Entry = (
    InTransit
    | LateRequest
    | Refused
    | MemberDeadline
    | BrokerDeadline
    | MetadataDue
    | Fetched
    | GroupLoaded
)


class CoordinatedWorld:
    """One run: `step` performs the next event, and the other methods are commands of a script.

    Attributes:
        FETCH_S: seconds until a fetch request is answered.
        LOAD_S: seconds in which a new coordinator reads its partition of `__consumer_offsets`.
        METADATA_S: `metadata.max.age.ms`: seconds after which a client reads the cluster's metadata
            again.
        MISSING_S: seconds after which a client reads the metadata again while a topic does not
            exist (`retry.backoff.max.ms`).
    """

    FETCH_S = 2 * LATENCY_S
    LOAD_S = 0.05
    METADATA_S = 300.0
    MISSING_S = 1.0

    def __init__(self, plan: CoordinatedPlan, watcher: CoordinatedWatcher | None = None) -> None:
        self.plan = plan
        self.watcher = watcher or CoordinatedWatcher()
        self.now = 0.0
        self._records: Mapping[str, object] = {}
        self._elections = 0
        self.log_end = {TopicPartition(TOPIC, n): plan.messages for n in range(plan.partitions)}
        self.members = [self._new_member(who) for who in range(plan.members)]
        self.leader: int | None = 0
        self.partition = coordinator_partition(GROUP, OFFSETS_PARTITIONS)
        self.brokers = [self._coordinator() for _ in range(plan.brokers)]
        self.down: set[int] = set()
        self._broker_ticks = [NEVER] * plan.brokers
        self._wires: dict[tuple[int, int], Wire] = {}
        self._queue: list[tuple[float, int, Entry]] = []
        self._number = 0
        self._unanswered: dict[tuple[int, int], tuple[Sender, int, msg.Request]] = {}
        for broker in range(plan.brokers):
            self._at_broker(broker, ge.TopicsChanged(self.topics()))
        self._at_broker(0, ge.Elected(self.partition))
        self._at_broker(0, ge.Loaded(self.partition, {}))

    def copy(self, watcher: CoordinatedWatcher | None = None) -> Self:
        """Return a world in the same state, which does from now on what this one would do."""
        twin = copy.copy(self)
        twin.watcher = watcher or CoordinatedWatcher()
        twin.log_end, twin.down = self.log_end.copy(), self.down.copy()
        twin.members = [member.copy() for member in self.members]
        twin.brokers, twin._broker_ticks = self.brokers.copy(), self._broker_ticks.copy()
        twin._wires = {way: replace(wire) for way, wire in self._wires.items()}
        twin._queue, twin._unanswered = self._queue.copy(), self._unanswered.copy()
        return twin

    # ---- parts -----------------------------------------------------------------------------------

    def _new_member(self, who: int) -> Member:
        settings = self.plan.settings(ClientSettings(GROUP, f"{GROUP}_{who}", (TOPIC,)), who)
        name = f"{GROUP}_{who}"
        if self.plan.protocol == "consumer":
            return Member(name, ConsumerState(settings), consumer_member)
        return Member(name, ClassicState(settings), classic_member)

    def _coordinator(self) -> group_coordinator.GroupCoordinator:
        return group_coordinator.GroupCoordinator(self.plan.broker_settings)

    def topics(self) -> dict[str, Topic]:
        """Return the cluster's topics."""
        counts: dict[str, int] = {}
        for tp in self.log_end:
            counts[tp.topic] = counts.get(tp.topic, 0) + 1
        return {name: Topic(count) for name, count in counts.items()}

    def known(self) -> dict[str, int] | None:
        """Return the known members with their generation or epoch; None if there is no
        coordinator."""
        if self.leader is None:
            return None
        broker = self.brokers[self.leader]
        group = group_coordinator.group_of(broker, GROUP)
        if isinstance(group, ConsumerGroup):
            return {name: one.current.epoch for name, one in group.members.items()}
        return {} if group is None else dict.fromkeys(group.members, group.generation)

    def serving(self) -> dict[TopicPartition, list[int]]:
        """Return which living members deliver each partition."""
        found: dict[TopicPartition, list[int]] = {}
        for who, member in enumerate(self.members):
            if member.acts:
                for tp in member.fetching:
                    found.setdefault(tp, []).append(who)
        return found

    def settled(self) -> bool:
        """Return whether every partition is delivered, and all members are stable.

        Ended processes must no longer be members, and all messages must be delivered.
        """
        known = self.known()
        live = [one for one in self.members if one.lives]
        if known is None or any(one.frozen or one.muted for one in live):
            return False
        names = {one.state.member for one in live}
        positions = {tp: at for one in live for tp, at in one.fetching.items()}
        return (
            set(known) == names
            and self._is_steady()
            and all(one.machine.is_settled(one.state) for one in live)
            and (positions == self.log_end or not live)
        )

    def _is_steady(self) -> bool:
        """Return whether the coordinator has nothing to change."""
        broker = self.brokers[self.leader or 0]
        group = group_coordinator.group_of(broker, GROUP)
        if isinstance(group, ConsumerGroup):
            return group.phase in (ConsumerGroupPhase.STABLE, ConsumerGroupPhase.EMPTY)
        return group is None or group.phase in (GroupPhase.STABLE, GroupPhase.EMPTY)

    # ---- the queue -------------------------------------------------------------------------------

    def _at(self, when: float, entry: Entry) -> None:
        """Queue an entry for this time."""
        self._number += 1
        heapq.heappush(self._queue, (max(when, self.now), self._number, entry))

    def next_moment(self) -> float:
        """Return the time of the next event; infinity if there is none."""
        return self._queue[0][0] if self._queue else NEVER

    def next_message(self) -> tuple[int, InTransit] | None:
        """Return the next event with its number if it is the arrival of a message, else None."""
        if not self._queue:
            return None
        _, number, entry = self._queue[0]
        return (number, entry) if self._will_arrive(entry) else None

    def _will_arrive(self, entry: Entry) -> TypeGuard[InTransit]:
        """Return whether an entry of the queue is a message whose connection still exists."""
        return (
            isinstance(entry, InTransit)
            and self._wire(entry.who, entry.broker).epoch == entry.epoch
        )

    def enabled(self) -> list[Move]:
        """Return the ordinary moves, in the order of the queue.

        The first message in each direction of a connection may arrive. Time may advance only if the
        next event of the queue is not a message.
        """
        found: dict[tuple[int, int, bool], Move] = {}
        for number, one in self.in_transit():
            move = Move(SERVE if one.is_request else RECEIVE, one.who, number)
            found.setdefault(one.way, move)
        waits = self._queue and self.next_message() is None
        return [*found.values(), *([Move(TIME)] if waits else [])]

    def next(self) -> Move | None:
        """Return the move that the queue performs next; None if there is none."""
        first = self.next_message()
        if first is None:
            return Move(TIME) if self._queue else None
        number, one = first
        return Move(SERVE if one.is_request else RECEIVE, one.who, number)

    def act(self, move: Move) -> None:
        """Perform a move."""
        if move.do == TIME or (move.do in (SERVE, RECEIVE) and move == self.next()):
            self.step()
        elif move.do in (SERVE, RECEIVE):
            self.perform(move.number)
        else:
            ORDERS[move.do](self, move.who)

    def step(self) -> bool:
        """Perform the next event; return False if there is none."""
        if not self._queue:
            return False
        self.now, _, entry = heapq.heappop(self._queue)
        self._perform(entry)
        self.watcher.acted(self)
        return True

    def _perform(self, entry: Entry) -> None:
        match entry:
            case InTransit():
                self._arrive(entry)
            case LateRequest(sender, request):
                self._receive(sender, -1, request)
            case Refused(who, broker):
                self._happens(who, ev.Disconnected(self.now, broker))
            case BrokerDeadline(broker, due):
                if self._broker_ticks[broker] == due:
                    self._broker_ticks[broker] = NEVER
                    self._at_broker(broker, ge.Tick())
            case GroupLoaded(broker, election, records):
                # A broker that has lost its election, by a move or a restart, loads no records.
                if election == self._elections:
                    self._at_broker(broker, ge.Loaded(self.partition, records))
            case MemberDeadline() | MetadataDue() | Fetched():
                if entry.life in (None, self.members[entry.who].life):
                    self._perform_in_member(entry)

    def _perform_in_member(self, entry: MemberDeadline | MetadataDue | Fetched) -> None:
        who, member = entry.who, self.members[entry.who]
        match entry:
            case MemberDeadline(due=due):
                if member.tick_at == due:
                    member.tick_at = NEVER
                    self._happens(who, ev.Tick(self.now))
            case MetadataDue():
                self._read_metadata(who)
            case Fetched():
                member.is_asking = False
                self._deliver(who)

    def in_transit(self) -> list[tuple[int, InTransit]]:
        """Return the messages in transit with their numbers, in the order of their arrival."""
        found = [
            (when, number, entry) for when, number, entry in self._queue if self._will_arrive(entry)
        ]
        return [(number, entry) for _, number, entry in sorted(found, key=lambda it: it[:2])]

    def due(self) -> list[tuple[float, Entry]]:
        """Return the entries of the queue with their times."""
        return [(when, entry) for when, _, entry in self._queue]

    def unanswered(self) -> Iterator[tuple[int, int, Sender, bool, msg.Request]]:
        """Yield the requests to which a broker has not replied: the broker, the request's number
        there, its origin, whether the connection has broken since, and the request."""
        for (broker, number), (sender, epoch, request) in self._unanswered.items():
            yield broker, number, sender, self._wire(sender.who, broker).epoch != epoch, request

    def connections(self) -> list[tuple[int, int]]:
        """Return the member and the broker of each connection, in the order of their beginning."""
        return list(self._wires)

    def stored(self) -> Mapping[str, object]:
        """Return what the next coordinator reads if the present one has not read the group; empty
        if it has."""
        leader = None if self.leader is None else self.brokers[self.leader]
        is_known = leader is not None and not leader.partitions[self.partition].loading
        return {} if is_known else self._records

    def drop_ineffective(self) -> None:
        """Remove the entries of the queue that would do nothing."""
        self._queue = [one for one in self._queue if self._has_effect(one[2])]
        heapq.heapify(self._queue)

    def _has_effect(self, entry: Entry) -> bool:
        """Return whether an entry of the queue changes anything when its time comes."""
        match entry:
            case InTransit() if entry.is_request:
                return self._will_arrive(entry)
            case InTransit():
                return self._will_arrive(entry) and self._is_alive(entry.who, entry.sender.life)
            case LateRequest():
                return True
            case Refused(who):
                return self.members[who].lives
            case BrokerDeadline(broker, due):
                return self._broker_ticks[broker] == due
            case GroupLoaded():
                return entry.election == self._elections
            case MemberDeadline(who, life, due):
                return self._is_alive(who, life) and self.members[who].tick_at == due
        return self._is_alive(entry.who, entry.life)

    def _is_alive(self, who: int, life: int | None) -> bool:
        member = self.members[who]
        return member.lives and life in (None, member.life)

    def perform(self, number: int) -> None:
        """Perform an entry of the queue now, before everything else that is in the queue.

        A message must be the first one in its direction of the connection.
        """
        first = next(one for one in self._queue if one[1] == number)
        self._queue.remove(first)
        heapq.heapify(self._queue)
        self._perform(first[2])
        self.watcher.acted(self)

    def delay(self, number: int, seconds: float) -> None:
        """Delay a message in transit, and the messages behind it on its connection."""
        first = next(one for one in self._queue if one[1] == number)
        assert isinstance(first[2], InTransit)
        way = first[2].way

        def is_behind(one: tuple[float, int, Entry]) -> bool:
            return isinstance(one[2], InTransit) and one[2].way == way and one[:2] >= first[:2]

        self._queue = [
            (one[0] + seconds, *one[1:]) if is_behind(one) else one for one in self._queue
        ]
        heapq.heapify(self._queue)
        wire = self._wire(*way[:2])
        if first[2].is_request:
            wire.request_at += seconds
        else:
            wire.response_at += seconds

    def run(self, seconds: float) -> None:
        """Let this many seconds pass."""
        end = self.now + seconds
        while self.next_moment() <= end:
            self.step()
        self.now = end

    # ---- orders: members -------------------------------------------------------------------------

    def join(self, *numbers: int) -> None:
        """Start members' processes; their users call `poll`."""
        for who in numbers:
            self.members[who].joined = True
            self._read_metadata(who)
            self._happens(who, ev.PollStarted(self.now))

    def leave(self, who: int) -> None:
        """The user closes the consumer, and takes no more messages."""
        self.members[who].slow = True
        self._happens(who, ev.CloseRequested(self.now))

    def kill(self, who: int) -> None:
        """The process ends; its connections break."""
        self.members[who].dead = True
        self.members[who].fetching = {}
        self._break(who)
        self.watcher.acted(self)

    def revive(self, who: int) -> None:
        """Start the process of a dead member again, with the same properties."""
        life = self.members[who].life + 1
        self.members[who] = replace(self._new_member(who), life=life)
        self.join(who)

    def freeze(self, who: int) -> None:
        """The process stops, as after SIGSTOP; its connections stay open."""
        self.members[who].frozen = True
        self.watcher.acted(self)

    def thaw(self, who: int) -> None:
        """The process continues, and handles what arrived while it was frozen."""
        member = self.members[who]
        member.frozen = False
        waiting, member.inbox = member.inbox, deque()
        self._fetch(who)
        for event in waiting:
            self._happens(who, replace(event, now=self.now))
        self._happens(who, ev.Tick(self.now))
        self.watcher.acted(self)

    def slow(self, who: int) -> None:
        """The user works on a message and does not call `poll`."""
        self.members[who].slow = True
        self._happens(who, ev.PollReturned(self.now))

    def hurry(self, who: int) -> None:
        """The user calls `poll` again."""
        self.members[who].slow = False
        self._happens(who, ev.PollStarted(self.now))
        self._fetch(who)

    # ---- orders: the network ---------------------------------------------------------------------

    def cut(self, who: int) -> None:
        """Break the connections of a member; it may connect again at once."""
        for broker in self._break(who):
            self._happens(who, ev.Disconnected(self.now, broker))

    def mute(self, who: int) -> None:
        """Drop everything from and to a member; no side gets an error."""
        self.members[who].muted = True

    def unmute(self, who: int) -> None:
        """The network carries the member's messages again."""
        self.members[who].muted = False

    def hold(self, who: int) -> None:
        """The network holds back what a member sends."""
        self.members[who].held = []

    def release(self, who: int) -> None:
        """The network delivers what it has held back, even if the member no longer waits for it."""
        held, self.members[who].held = self.members[who].held or [], None
        for request in held:
            self._at(self.now + LATENCY_S, request)

    def remove(self, who: int) -> None:
        """An operator removes a member from the group, as `removeMembersFromConsumerGroup` does."""
        leaver = msg.Leaver(self.members[who].state.member)
        request: msg.Request = msg.LeaveGroup(GROUP, (leaver,))
        if self.plan.protocol == "consumer":
            request = msg.ConsumerGroupHeartbeat(GROUP, leaver.member, msg.LEAVE_EPOCH)
        assert self.leader is not None
        self._number += 1
        self._at_broker(self.leader, ge.Received(self._number, request, "operator"))
        self.watcher.acted(self)

    def _break(self, who: int) -> list[int]:
        broken = [broker for (one, broker) in self._wires if one == who]
        for broker in broken:
            self._wires[who, broker] = Wire(self._wires[who, broker].epoch + 1)
        return broken

    # ---- orders: brokers and topics --------------------------------------------------------------

    def move_coordinator(self, to: int | None) -> None:
        """Let another broker lead the group's partition; None: no broker leads it for now."""
        before = self.leader
        if before is not None:
            if not self.brokers[before].partitions[self.partition].loading:
                self._records = group_coordinator.stored(self.brokers[before], self.partition)
            self.leader = None
            self._at_broker(before, ge.Resigned(self.partition))
        records = self._records
        self.leader = to
        self._elections += 1
        self.watcher.moved(self, to)
        if to is not None:
            self._at_broker(to, ge.Elected(self.partition))
            self._at(self.now + self.LOAD_S, GroupLoaded(to, self._elections, records))

    def kill_broker(self, broker: int) -> None:
        """A broker dies: its connections break, and its coordinator's state in memory is lost."""
        self.down.add(broker)
        if self.leader == broker:
            self.move_coordinator(None)
        self.brokers[broker] = self._coordinator()
        self._broker_ticks[broker] = NEVER
        self._unanswered = {
            where: one for where, one in self._unanswered.items() if where[0] != broker
        }
        for who, member in enumerate(self.members):
            if (who, broker) in self._wires and member.lives:
                self._wires[who, broker].epoch += 1
                self._happens(who, ev.Disconnected(self.now, broker))
        self.watcher.acted(self)

    def revive_broker(self, broker: int) -> None:
        """A broker starts again."""
        self.down.discard(broker)
        self._at_broker(broker, ge.TopicsChanged(self.topics()))

    def grow(self) -> None:
        """Add a partition to the topic."""
        self.log_end[TopicPartition(TOPIC, len(self.log_end))] = self.plan.messages
        self._topics_changed()

    def delete_topic(self) -> dict[TopicPartition, int]:
        """Delete the topic; return the log ends, which `create_topic` needs to create it again."""
        gone, self.log_end = self.log_end, {}
        self._topics_changed()
        for who, member in enumerate(self.members):
            if member.fetching:  # the answer to a fetch reports that the topic is unknown
                self._at(self.now + self.FETCH_S, MetadataDue(who, None))
        return gone

    def create_topic(self, logs: Mapping[TopicPartition, int]) -> None:
        """Create the topic."""
        self.log_end = dict(logs)
        self._topics_changed()

    def produce(self, messages: int = 1) -> None:
        """Add messages to each partition."""
        for tp in self.log_end:
            self.log_end[tp] += messages
        for who in range(len(self.members)):
            self._fetch(who)

    def _topics_changed(self) -> None:
        for broker in range(len(self.brokers)):
            if broker not in self.down:
                self._at_broker(broker, ge.TopicsChanged(self.topics()))

    # ---- members ---------------------------------------------------------------------------------

    def _happens(self, who: int, event: ev.Event) -> None:
        """Pass an event to a member now, or when it is no longer frozen."""
        member = self.members[who]
        if not member.lives:
            return
        if member.frozen:
            member.inbox.append(event)
            return
        before = member.state
        member.state, commands = member.machine.step(before, event)
        for command in commands:
            self._run(who, command)
        self.watcher.transition(self, Transition(who, before, event, commands))
        if member.machine.is_over(member.state):
            member.dead = True
            member.fetching = {}
            return
        self._set_tick(who)
        self._fetch(who)

    def _set_tick(self, who: int) -> None:
        member = self.members[who]
        due = member.machine.next_deadline(member.state, self.now)
        if due in (member.tick_at, NEVER):
            return
        member.tick_at = due
        self._at(due, MemberDeadline(who, member.life, due))

    def _run(self, who: int, command: ev.Command) -> None:
        member = self.members[who]
        match command:
            case ev.Send(number, broker, request):
                self._send(who, number, broker, request)
            case ev.StartFetching(positions):
                member.fetching |= {tp: offset or 0 for tp, offset in positions.items()}
            case ev.StopFetching(partitions):
                for tp in partitions:
                    member.fetching.pop(tp, None)

    def _read_metadata(self, who: int) -> None:
        """Give a member the cluster's metadata, now and at regular intervals."""
        member = self.members[who]
        if not member.lives:
            return
        life = member.life
        self.refresh_metadata(who)
        is_missing = not set(member.state.settings.topics) <= self.topics().keys()
        self._at(
            self.now + (self.MISSING_S if is_missing else self.METADATA_S), MetadataDue(who, life)
        )

    def refresh_metadata(self, who: int) -> None:
        """Let a member read the cluster's metadata now."""
        self._happens(who, ev.MetadataChanged(self.now, *self.metadata()))

    def metadata(self) -> tuple[tuple[int, ...], dict[str, Topic]]:
        """Return the cluster's brokers and topics, as a client reads them."""
        return tuple(n for n in range(len(self.brokers)) if n not in self.down), self.topics()

    def _fetch(self, who: int) -> None:
        """Let a member's user get the messages that it can get, after a round trip."""
        member = self.members[who]
        has_some = any(at < self.log_end.get(tp, 0) for tp, at in member.fetching.items())
        if not has_some or member.is_asking or member.slow or not member.acts:
            return
        member.is_asking = True
        self._at(self.now + self.FETCH_S, Fetched(who, member.life))

    def _deliver(self, who: int) -> None:
        """Give a member's user everything that has been fetched."""
        member = self.members[who]
        if not member.acts or member.slow:
            return
        for tp in sorted(member.fetching):
            if tp not in member.fetching:
                continue  # an earlier `Consumed` has revoked the partition
            first, end = member.fetching[tp], self.log_end.get(tp, 0)
            for offset in range(first, end):
                self.watcher.delivered(self, Delivered(self.now, who, tp, offset))
            if end > first:
                member.fetching[tp] = end
                self._happens(who, ev.Consumed(self.now, tp, end))

    # ---- requests and responses ------------------------------------------------------------------

    def _wire(self, who: int, broker: int) -> Wire:
        return self._wires.setdefault((who, broker), Wire())

    def _send(self, who: int, number: int, broker: int, request: msg.Request) -> None:
        member, wire = self.members[who], self._wire(who, broker)
        if broker in self.down:
            self._at(self.now, Refused(who, broker))
            return
        if member.muted:
            return
        sender = Sender(who, member.life, broker, number)
        if member.held is not None:
            member.held.append(LateRequest(sender, request))
            return
        wire.request_at = max(self.now + self.plan.delay(self._number), wire.request_at)
        self._at(wire.request_at, InTransit(sender, wire.epoch, request))

    def _arrive(self, one: InTransit) -> None:
        """A message arrives, unless its connection has broken."""
        who, life, broker, number = one.sender
        if self._wire(who, broker).epoch != one.epoch:
            return
        if isinstance(one.message, msg.Request):
            self._receive(one.sender, one.epoch, one.message)
        elif self.members[who].life == life and not self.members[who].muted:
            self._happens(who, ev.Answered(self.now, number, one.message))

    def _receive(self, sender: Sender, epoch: int, request: msg.Request) -> None:
        """A broker executes a request."""
        who, broker = sender.who, sender.broker
        self.watcher.asked(self, who, request)
        if isinstance(request, msg.FindCoordinator):
            answer = msg.FoundCoordinator(Error.NONE, -1 if self.leader is None else self.leader)
            if self.leader is None:
                answer = msg.FoundCoordinator(Error.COORDINATOR_NOT_AVAILABLE)
            self._respond(sender, epoch, request, answer)
            return
        self._number += 1
        self._unanswered[broker, self._number] = (sender, epoch, request)
        client, fresh = self.members[who].name, self._fresh(who, request)
        self._at_broker(broker, ge.Received(self._number, request, client, fresh))

    def _fresh(self, who: int, request: msg.Request) -> str:
        """Return the end of the member id that the coordinator may choose for this request; it is
        as long as a UUID, which Kafka draws."""
        return f"{self._number:036d}"

    def _at_broker(self, broker: int, event: ge.Event) -> None:
        """Pass an event to a broker's coordinator, and send its replies."""
        if broker in self.down:
            return
        before = self.brokers[broker]
        self.brokers[broker], replies = group_coordinator.step(before, event, self.now)
        self.watcher.coordinated(self, broker, before, event)
        for reply in replies:
            asked = self._unanswered.pop((broker, reply.number), None)
            if asked is not None:
                sender, epoch, request = asked
                self._respond(sender, epoch, request, reply.response)
        self._set_broker_tick(broker)

    def _set_broker_tick(self, broker: int) -> None:
        due = group_coordinator.next_deadline(self.brokers[broker])
        if due in (self._broker_ticks[broker], NEVER):
            return
        self._broker_ticks[broker] = due
        self._at(due, BrokerDeadline(broker, due))

    def _respond(
        self, sender: Sender, epoch: int, request: msg.Request, response: msg.Response
    ) -> None:
        who = sender.who
        self.watcher.answered(self, who, request, response)
        wire = self._wire(who, sender.broker)
        if wire.epoch != epoch or self.members[who].muted:
            return
        wire.response_at = max(self.now + self.plan.delay(self._number), wire.response_at)
        self._at(wire.response_at, InTransit(sender, epoch, response))


ORDERS: dict[str, Callable[[CoordinatedWorld, int], object]] = {
    "grow": lambda world, _: world.grow(),
    "no_coordinator": lambda world, _: world.move_coordinator(None),
    "coordinate": CoordinatedWorld.move_coordinator,
    "kill_broker": CoordinatedWorld.kill_broker,
    "revive_broker": CoordinatedWorld.revive_broker,
    "remove": CoordinatedWorld.remove,
    "hold": CoordinatedWorld.hold,
    "let_go": CoordinatedWorld.release,
    "join": CoordinatedWorld.join,
    "leave": CoordinatedWorld.leave,
    "kill": CoordinatedWorld.kill,
    "revive": CoordinatedWorld.revive,
    "freeze": CoordinatedWorld.freeze,
    "thaw": CoordinatedWorld.thaw,
    "slow": CoordinatedWorld.slow,
    "hurry": CoordinatedWorld.hurry,
    "cut": CoordinatedWorld.cut,
    "mute": CoordinatedWorld.mute,
    "unmute": CoordinatedWorld.unmute,
    "refresh": CoordinatedWorld.refresh_metadata,
}
"""Move -> what it does to a member or a broker. The lab has moves of the same names."""
