"""Exhaustive search of a small coordinated group: breadth-first, visiting each state once.

The world is small, and nothing in it takes time except waiting: a message can arrive as soon as it
is sent, in any order with the messages of other connections. The clock advances to the next
deadline only when nothing is due now. Members commit only when they revoke partitions. Static
members are not explored.

`WorldKeys` gives worlds a key. Times count by their distance from the present time, generations and
epochs by their distance from the newest one, and the numbers of requests by their order.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Self, TypeVar

from zkconsumer.later import group_events as ge
from zkconsumer.later.classic_state import Timer, TimerEnd
from zkconsumer.later.client_state import ClientSettings, InFlightRequest
from zkconsumer.later.consumer_member import LocalAssignment
from zkconsumer.later.group_coordinator import CommittedOffset, GroupCoordinator
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.consumer_protocol import (
    decode_sticky_user_data,
    decode_subscription,
)
from zkconsumer.protocol.later.subscriptions import Subscription
from zkconsumer.protocol.model import JsonObject, TopicPartition
from zkconsumer.sim.coordinated.monitor import CoordinatedMonitor
from zkconsumer.sim.coordinated.recorder import CoordinatedRecorder
from zkconsumer.sim.coordinated.search import PROTOCOLS, REST_S, end_faults, rest
from zkconsumer.sim.coordinated.world import (
    GROUP,
    RECEIVE,
    SERVE,
    AnyState,
    BrokerDeadline,
    CoordinatedPlan,
    CoordinatedWatcher,
    CoordinatedWatchers,
    CoordinatedWorld,
    Entry,
    GroupLoaded,
    InTransit,
    LateRequest,
    Move,
)
from zkconsumer.sim.kernel import search
from zkconsumer.sim.kernel.keys import (
    LATEST_S,
    KeyPart,
    KeyRules,
    Numbers,
    Value,
    distance,
    together,
)
from zkconsumer.sim.kernel.search import SearchResult
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.trace.story import story

# ---- what a key contains instead of some values --------------------------------------------------


class _Numbered(NamedTuple):
    """A request or a reply, with the number of the request at its member."""

    number: int
    message: InFlightRequest | msg.Request | msg.Response


class _Parked(NamedTuple):
    """A request to which a broker has not replied; `join` is the request's number at the broker."""

    join: int
    who: int
    number: int
    is_lost: bool
    request: msg.Request


class _Owned(NamedTuple):
    """The user data of a sticky assignor."""

    owned: tuple[TopicPartition, ...]
    generation: int


class _Membership(NamedTuple):
    """The membership with which a request was sent."""

    member: object
    generation: object
    protocol: object


class _OfEpoch(NamedTuple):
    """A member and its epoch."""

    member: str
    epoch: int


class _Local(NamedTuple):
    """A `LocalAssignment`."""

    local: int
    partitions: frozenset[TopicPartition]


class _OfMonitor(NamedTuple):
    """What a monitor remembers."""

    ends: Mapping[TopicPartition, int]
    stored: Mapping[TopicPartition, int]
    assigned: Mapping[TopicPartition, str]
    generation: int


@lru_cache(maxsize=4096)
def _metadata(data: bytes) -> tuple[Subscription, _Owned | None]:
    """Return the subscription in a member's metadata, and the user data of its assignor."""
    subscription, user_data = decode_subscription(data)
    if user_data is None:
        return subscription, None
    if len(user_data) == struct.calcsize(">i"):
        return subscription, _Owned((), *struct.unpack(">i", user_data))
    return subscription, _Owned(*decode_sticky_user_data(user_data))


def _timers(timers: Mapping[Timer, TimerEnd]) -> Value:
    return sorted((one.purpose.value, one.member, due) for one, due in timers.items())


MOMENTS = frozenset(
    {
        "until",
        "next_look_up",
        "retry_at",
        "poll_until",
        "heartbeat_at",
        "auto_commit_at",
        "closing",
        "commit_until",
        "heard_at",
        "at_s",
        "expiry_s",
    }
)
GENERATIONS = frozenset({"generation", "epoch", "target_epoch", "previous_epoch"})
REQUESTS = frozenset({"number", "commit"})
PARKED = frozenset({"join", "sync"})
SERIALS = frozenset({"serial"})
ASSIGNMENTS = frozenset({"local"})
LEFT_OUT = frozenset({"settings", "since_s", "now"})
"""Fields that are equal in all states, or that are never read in this scope."""

RULES = KeyRules(
    kinds=(MOMENTS, GENERATIONS, REQUESTS, PARKED, SERIALS, ASSIGNMENTS),
    left_out=LEFT_OUT,
    of_class={
        LocalAssignment: lambda one: _Local(one.number, one.partitions),
        CommittedOffset: lambda one: one.offset,
    },
    of_field={
        "sent": lambda sent: [_Numbered(number, one) for number, one in sent.items()],
        "sticky": lambda sticky: _Owned(*sticky),
        "membership": lambda it: _Membership(*it) if it else None,
        "metadata": lambda it: _metadata(it) if isinstance(it, bytes) else it,
        "timers": _timers,
        "revoking": lambda it: (
            [_OfEpoch(*one) for one in sorted(it.items())] if isinstance(it, Mapping) else it
        ),
    },
)


# ---- keys ----------------------------------------------------------------------------------------

_MOMENT, _GENERATION, _REQUEST, _PARKED, _SERIAL, _ASSIGNMENT = range(len(RULES.kinds))

Part = tuple[Hashable, Numbers]
S = TypeVar("S", AnyState, GroupCoordinator)


MOST_STATES = 40_000
"""Number of states in the cache of forms; the cache is then emptied."""


class WorldKeys:
    """Computes keys of worlds; caches the forms of the states of members and brokers, since most
    moves change one of them.
    """

    def __init__(self) -> None:
        self._states: dict[int, tuple[AnyState | GroupCoordinator, Part]] = {}

    def key(self, world: SmallWorld, monitor: CoordinatedMonitor) -> int:
        """Return the hash of a world's key."""
        parts = [self._member(world, who) for who in range(len(world.members))]
        parts += [self._state(one) for one in world.brokers]
        parts.append(self._surroundings(world, monitor))
        newest = max((n for _, numbers in parts for n in numbers[_GENERATION]), default=0)
        parked = [n for _, numbers in parts for n in numbers[_PARKED]]
        return hash(
            tuple(
                (
                    form,
                    tuple([distance(at - world.now) for at in numbers[_MOMENT]]),
                    # A generation below 1 has a meaning of its own, for example "none".
                    tuple([n if n < 1 else newest - n + 1 for n in numbers[_GENERATION]]),
                    _ranks(numbers[_PARKED], among=parked),
                    *(
                        _ranks(numbers[kind], among=numbers[kind])
                        for kind in (_REQUEST, _SERIAL, _ASSIGNMENT)
                    ),
                )
                for form, numbers in parts
            )
        )

    def _state(self, state: AnyState | GroupCoordinator) -> Part:
        known = self._states.get(id(state))
        if known is None:
            if len(self._states) >= MOST_STATES:
                self._states.clear()
            part = KeyPart(RULES)
            known = self._states[id(state)] = state, (part.of(state), part.taken())
        return known[1]

    def _member(self, world: SmallWorld, who: int) -> Part:
        """Return a member, its connections and its messages; nothing remains of a dead member."""
        member = world.members[who]
        if member.dead:
            return (member.dead, *_brokers(world, who)), KeyPart(RULES).taken()
        state, numbers = self._state(member.state)
        part = KeyPart(RULES)
        form = (
            state,
            (member.joined, member.dead, member.frozen, member.slow, member.muted),
            member.is_asking,
            part.of(member.held),
            part.of(member.fetching),
            part.of(member.inbox),
            part.of(self._messages(world, who)),
            part.of(self._parked(world, who)),
            _brokers(world, who),
        )
        return form, together(numbers, part.taken())

    def _messages(self, world: SmallWorld, who: int) -> list[tuple[int, bool, _Numbered]]:
        """Return the messages in transit of a member, in their order on each connection."""
        found = [
            (one.broker, one.is_request, _Numbered(one.sender.number, one.message))
            for _, one in world.in_transit()
            if one.who == who
        ]
        return sorted(found, key=lambda it: it[:2])

    def _parked(self, world: SmallWorld, who: int) -> list[_Parked]:
        """Return the requests of a member to which a broker will still reply."""
        awaited = {n for one in world.brokers for n in self._state(one)[1][_PARKED]}
        return [
            _Parked(number, broker, sender.number, is_lost, request)
            for broker, number, sender, is_lost, request in world.unanswered()
            if sender.who == who and number in awaited
        ]

    def _surroundings(self, world: SmallWorld, monitor: CoordinatedMonitor) -> Part:
        """Return the cluster, what is due, and the monitor's memory."""
        part = KeyPart(RULES)
        seen = _OfMonitor(monitor.ends, monitor.stored, monitor.assigned, monitor.generation)
        due = sorted(
            (type(one).__name__, _where(one), when)
            for when, one in world.due()
            if not isinstance(one, InTransit)
        )
        form = (
            tuple((name, where) for name, where, _ in due),
            (world.faults, world.leader),
            part.of(world.down),
            part.of(world.log_end),
            part.of(world.stored()),
            part.of(seen),
        )
        part.numbers[_MOMENT].extend(when for _, _, when in due)
        return form, part.taken()


def _brokers(world: SmallWorld, who: int) -> tuple[int, ...]:
    """Return the brokers to which a member has connections, in the order of their beginning."""
    return tuple(broker for one, broker in world.connections() if one == who)


def _where(one: Entry) -> int:
    """Return the member or the broker that an entry of the queue concerns."""
    match one:
        case BrokerDeadline(broker=broker) | GroupLoaded(broker=broker):
            return broker
        case LateRequest(sender=sender):
            return sender.who
    return one.who


# ---- the search ----------------------------------------------------------------------------------

FAR_OFF_S = 1e6
"""Interval, in seconds, of what happens so rarely that it does not happen within a search:
automatic commits, readings of the metadata, and the search for expired offsets. Members commit when
they revoke partitions."""

SESSION_S, POLL_S = 10.0, 20.0
"""The session timeout and the time limit of the user, in seconds: shorter than `LATEST_S`."""

DUE = "due"
"""The move with which an entry of the queue happens that is not a message."""

FREE = {"thaw": "frozen", "unmute": "muted", "hurry": "slow"}
"""Moves that end a fault, with the attribute of a member that is true until then."""

NO_FAULTS = frozenset({"join", "refresh", "revive_broker", *FREE})
"""Commands that `Scope.faults` does not count."""


@dataclass(frozen=True)
class Scope:
    """The size of the world; the first `settled` members have settled before the search.

    `protocol`: one of `search.PROTOCOLS`.
    """

    protocol: str
    settled: int = 1
    members: int = 2
    partitions: int = 2
    messages: int = 1
    brokers: int = 2
    faults: int = 1

    def plan(self) -> CoordinatedPlan:
        """Return the plan of the world."""
        protocol, assignors = PROTOCOLS[self.protocol]

        def settings(one: ClientSettings, who: int) -> ClientSettings:
            return replace(
                one,
                assignors=assignors,
                session_s=SESSION_S,
                poll_s=POLL_S,
                auto_commit_s=FAR_OFF_S,
            )

        return CoordinatedPlan(
            protocol=protocol,
            members=self.members,
            partitions=self.partitions,
            messages=self.messages,
            brokers=self.brokers,
            settings=settings,
            broker_settings=ge.BrokerSettings(session_s=SESSION_S, retention_check_s=FAR_OFF_S),
            delay=lambda _: 0.0,
        )


class SmallWorld(CoordinatedWorld):
    """A world in which messages and fetches take no time, and few faults happen.

    Attributes:
        faults: number of faults that may still happen.
        joins: number of member ids that coordinators were asked to choose, by members.
    """

    FETCH_S = LOAD_S = 0.0
    METADATA_S = FAR_OFF_S

    def __init__(self, scope: Scope, watcher: CoordinatedWatcher) -> None:
        self.faults = 0
        self.joins = [0] * scope.members
        super().__init__(scope.plan(), watcher)

    def copy(self, watcher: CoordinatedWatcher | None = None) -> Self:
        twin = super().copy(watcher)
        twin.joins = self.joins.copy()
        return twin

    def _fresh(self, who: int, request: msg.Request) -> str:
        """Return the end of a member id that does not depend on other members' requests."""
        if not getattr(request, "member", ""):
            self.joins[who] += 1
        return f"{who}.{self.joins[who]}"

    def choices(self) -> list[Move]:
        """Return all moves to try, in a fixed order: first those that need no fault."""
        moves = self._due()
        moves += [Move("join", who) for who, one in enumerate(self.members) if not one.joined][:1]
        for who, member in enumerate(self.members):
            moves += [Move(do, who) for do, name in FREE.items() if getattr(member, name)]
        moves += [Move("refresh", who) for who in self._outdated()]
        moves += [Move("revive_broker", broker) for broker in sorted(self.down)]
        return moves + (self._possible() if self.faults else [])

    def _outdated(self) -> list[int]:
        """Return the members whose metadata is not the cluster's."""
        now = self.metadata()
        clients = [(who, one.state.client) for who, one in enumerate(self.members) if one.acts]
        return [who for who, client in clients if (client.brokers, client.topics) != now]

    def heal(self) -> None:
        """Let every member and every broker run, and end all faults."""
        self.faults = 0
        for broker in sorted(self.down):
            self.revive_broker(broker)
        self.join(*[who for who, one in enumerate(self.members) if not one.joined])
        end_faults(self)
        for who in self._outdated():
            self.refresh_metadata(who)

    def _due(self) -> list[Move]:
        """Return the moves that are due at the next moment."""
        moment = max(self.now, self.next_moment())
        if moment > self.now + LATEST_S:
            return []
        found: dict[object, Move] = {}
        for when, number, one in sorted(self._queue, key=lambda it: it[:2]):
            if when > moment:
                break
            if isinstance(one, InTransit):
                move = Move(SERVE if one.is_request else RECEIVE, one.who, number)
                found.setdefault(one.way, move)
            else:
                found[number] = Move(DUE, _where(one), number)
        return list(found.values())

    def _possible(self) -> list[Move]:
        """Return the faults that may happen now."""
        moves = [Move("grow")]
        alive = [broker for broker in range(len(self.brokers)) if broker not in self.down]
        moves += [Move("coordinate", broker) for broker in alive if broker != self.leader]
        moves += [Move("kill_broker", broker) for broker in alive]
        for who, member in enumerate(self.members):
            if member.dead:
                moves.append(Move("revive", who))
            elif member.joined:
                kinds = ["kill", "cut"]
                kinds += ["leave", "freeze"] if not member.frozen else []
                kinds += ["slow"] if not member.slow else []
                kinds += ["mute"] if not member.muted else []
                moves += [Move(do, who) for do in kinds]
        return moves

    def act(self, move: Move) -> None:
        if move.do in (SERVE, RECEIVE, DUE):
            self.now = max(self.now, self.next_moment())
            self.perform(move.number)
        else:
            self.faults -= move.do not in NO_FAULTS
            super().act(move)
        self.drop_ineffective()


class SearchNode(search.StateNode[SmallWorld, CoordinatedMonitor, Move]):
    """A small world and its monitor, as the exhaustive search visits them."""

    __slots__ = ()

    def rests(self, move: Move) -> bool:
        return self.world.next_moment() > self.world.now

    def settle(self) -> None:
        """End all faults, and check that the group settles (C7)."""
        self.world.heal()
        rest(self.world)
        self.monitor.check_rest(self.world, REST_S)


def first_node(scope: Scope, *watchers: CoordinatedWatcher) -> SearchNode:
    """Return the state from which a search starts: the first members have settled. The watchers
    see what happens, as long as no node is copied."""
    monitor = CoordinatedMonitor()
    world = SmallWorld(scope, CoordinatedWatchers(*watchers, monitor) if watchers else monitor)
    for who in range(scope.settled):
        world.act(Move("join", who))
        while not world.settled():
            world.act(world.choices()[0])
    world.faults = scope.faults
    return SearchNode(world, monitor, WorldKeys().key)


def explore(
    scope: Scope, *, max_states: int = 10**9, max_s: float = float("inf")
) -> SearchResult[Move]:
    """Search breadth-first from the scope's first state; stop at the first violation."""
    return search.explore(lambda: first_node(scope), max_states=max_states, max_s=max_s)


def story_of(scope: Scope, path: Sequence[Move]) -> list[str]:
    """Return the story of a path that `explore` has found, up to the violation."""
    entries: list[JsonObject] = []
    with suppress(InvariantViolation):
        first_node(scope, CoordinatedRecorder(entries.append)).retrace(path)
    names = [f"{GROUP}_{who}" for who in range(scope.members)]
    return list(story(entries, names, root=""))


def _ranks(numbers: Iterable[Value], *, among: Iterable[Value]) -> tuple[int, ...]:
    """Return the rank of each number among the others."""
    order = {number: rank for rank, number in enumerate(sorted(set(among)))}
    return tuple([order[number] for number in numbers])
