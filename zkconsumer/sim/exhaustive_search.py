"""Exhaustive search of a small world: breadth-first, visiting each state once.

The world is small. Some things that the random search varies are constant here
(docs/verification.md lists them). An action takes no time. Time advances only when the only
possible actions are users' requests for messages. A member handles all received items before any
other action happens; only a fault may come first.

`WorldKeys` gives worlds a key: two worlds that will behave in the same way have the same key,
whatever happened before. Numbers that only have to differ or to be ordered (ZooKeeper's
transactions, a member's operations) are replaced by their rank, and times by their distance from
the present time. The key contains the monitor's state, so that a history that could break a promise
is never merged with another history.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from zkconsumer.consumer.executor import Resume
from zkconsumer.member.state import Settings, State
from zkconsumer.protocol import paths
from zkconsumer.sim.kernel import search
from zkconsumer.sim.kernel.search import SearchResult
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.member import Replayed, SimMember
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.random_search import CONVERGENCE_S
from zkconsumer.sim.world import WALL_MS, World, possible, repairs

Value: TypeAlias = Any  # Any: a value in the state of a world

# ---- keys of worlds ------------------------------------------------------------------------------


LATEST_S, EARLIEST_S = 100.0, -10.0
"""Distance from the present time, in seconds, beyond which all times count as equal: a distant
automatic commit, or a lease that ended long ago. No rule looks back further than 8 s, the time
after which a blocked partition is reported."""

MOMENTS = frozenset(
    {
        "now",
        "deadline",
        "asked_at",
        "sent_at",
        "started",
        "grace_at",
        "retry_at",
        "verify_at",
        "auto_commit_at",
        "leave_at",
        "look_at",
        "refresh_at",
        "nudged_at",
        "since",
        "black_hole_at",
        "recreate_at",
        "report_at",
        "ask_at",
        "tried_at",
    }
)
ZXIDS = frozenset({"epoch", "czxid", "mzxid", "edit_czxid"})
OPERATIONS = frozenset({"op", "nudge_op"})
LEFT_OUT = frozenset({"settings", "wall_ms", "timestamp_ms", "last_op"})
"""Fields that are equal in all states, that are never read, or that only number new operations."""


_NAMES: dict[type[Value], tuple[str, ...]] = {Replayed: ("command", "started", "sent")}


def _names(kind: type[Value]) -> tuple[str, ...]:
    """Return the fields of a class that belong to the key."""
    if kind not in _NAMES:
        names = kind._fields if hasattr(kind, "_fields") else [one.name for one in fields(kind)]
        _NAMES[kind] = tuple(name for name in names if name not in LEFT_OUT)
    return _NAMES[kind]


class KeyPart:
    """One part of a world in the form that its key contains, and the numbers that the form leaves
    out."""

    def __init__(self) -> None:
        self.zxids: list[int] = []
        self.cversions: list[int] = []
        self.operations: list[int] = []
        self.moments: list[float] = []

    def of(self, value: Value) -> Hashable:
        """Return the form of a value; numbers that the key replaces are collected separately."""
        kind = type(value)
        if value is None or kind in (int, str, bytes, bool, float) or isinstance(value, Enum):
            found: Hashable = value
            return found
        if isinstance(value, Mapping):
            return tuple((key, self.of(value[key])) for key in sorted(value))
        if isinstance(value, frozenset | set):
            return tuple(sorted(value))
        if hasattr(kind, "_fields") or is_dataclass(value) or kind is Replayed:
            return kind.__name__, *[
                self._field(name, getattr(value, name)) for name in _names(kind)
            ]
        return tuple([self.of(one) for one in value])

    def _field(self, name: str, value: Value) -> Hashable:
        if value is None:
            return None
        if name in ZXIDS:
            self.zxids.append(value)
        elif name == "cversion":
            self.cversions.append(value)
        elif name in OPERATIONS:
            self.operations.append(value)
        elif name in MOMENTS:
            self.moments.append(value)
        else:
            return self.of(value)
        return name


Numbers = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""The numbers that a form leaves out: zxids, `cversion`s of the list of consumers, operations,
times."""


MOST_STATES = 40_000
"""Number of members' states in the cache of forms; the cache is then emptied."""


class WorldKeys:
    """Computes keys of worlds; caches the forms of members' states, since most actions leave them
    unchanged.
    """

    def __init__(self) -> None:
        self._states: dict[int, tuple[State, Hashable, Numbers]] = {}

    def key(self, world: World, monitor: Monitor) -> int:
        """Return the hash of a world's key.

        Worlds that will behave in the same way have equal keys.
        """
        now = world.now
        forms = [self._member(member) for member in world.members]
        forms.append(_surroundings(world, monitor))
        zxids = world.zookeeper.zxids()
        for _, (found, _, _, _) in forms:
            zxids.update(found)
        ranks = {zxid: rank for rank, zxid in enumerate(sorted(zxids))}
        key: list[Hashable] = [world.zookeeper.key(now, ranks=ranks)]
        children = world.zookeeper.cversion(paths.ids(world.GROUP))
        for form, (found, cversions, operations, moments) in forms:
            order = {op: rank for rank, op in enumerate(sorted({0, *operations}))}
            key.append(
                (
                    form,
                    tuple([ranks[zxid] for zxid in found]),
                    tuple([children - cversion for cversion in cversions]),
                    tuple([order[op] for op in operations]),
                    tuple([_distance(moment - now) for moment in moments]),
                )
            )
        return hash(tuple(key))

    def _member(self, member: SimMember) -> tuple[Hashable, Numbers]:
        state, numbers = self._state(member.state)
        form = KeyPart()
        session = member.session
        # Tickets only distinguish operations: use a ticket's rank among the running operations.
        place = {ticket: n for n, ticket in enumerate(sorted(member.running))}
        rest = (
            form.of(member.feeds),
            form.of(member.streams.releases),
            tuple([form.of(member.running[ticket]) for ticket in place]),
            tuple([(place[ticket], form.of(request)) for ticket, request in member.wire]),
            tuple(
                [
                    (place[item.ticket], form.of(item.replies))
                    if type(item) is Resume
                    else form.of(item)
                    for item in member.inbox
                ]
            ),
            tuple(
                [
                    (place[ticket], session.missing[ticket], form.of(session.partial[ticket]))
                    for ticket in sorted(session.partial)
                ]
            ),
            session.session_id,
            session.read,
            session.changes,
        )
        form.moments.append(member.gate)
        both = (
            (*numbers[0], *form.zxids),
            (*numbers[1], *form.cversions),
            (*numbers[2], *form.operations),
            (*numbers[3], *form.moments),
        )
        return (state, rest), both

    def _state(self, state: State) -> tuple[Hashable, Numbers]:
        known = self._states.get(id(state))
        if known is None:
            if len(self._states) >= MOST_STATES:
                self._states.clear()
            form = KeyPart()
            whole = form.of(state)
            form.zxids.extend(state.topics[name] for name in sorted(state.topics))
            numbers = _numbers(form)
            known = self._states[id(state)] = (state, whole, numbers)
        return known[1], known[2]


def _numbers(form: KeyPart) -> Numbers:
    return (
        tuple(form.zxids),
        tuple(form.cversions),
        tuple(form.operations),
        tuple(form.moments),
    )


def _surroundings(world: World, monitor: Monitor) -> tuple[Hashable, Numbers]:
    """Return connections, faults, logs and the monitor's memory."""
    form = KeyPart()
    owners = world.owners()
    now_owned = {(tp, czxid) for tp, (_, _, czxid) in owners.items()}
    whole = (
        tuple([form.of(link) for link in world.links]),
        form.of(world.active_faults),
        form.of({do.value: left for do, left in world.faults_left.items()}),
        form.of(world.log_end),
        form.of(monitor.delivered_below),
        form.of(monitor.finished_below),
        form.of(monitor.committable),
        form.of(monitor.stored),
        form.of(monitor.edited),
        form.of(monitor.asked),
        form.of(monitor.lowered),
        form.of(monitor.by_hand),
        monitor.harmed,
        monitor.lost_data,
        form.of(monitor.excused),
        tuple(
            (tp, offset)
            for tp, (epoch, offset) in sorted(monitor.finished_in.items())
            if (tp, epoch) in now_owned
        ),
        tuple(sorted(monitor.newest)),
        # Offsets of ended ownerships have no effect: a delivery under an ended ownership violates
        # I2.
        tuple(
            (tp, after)
            for (tp, epoch), after in sorted(monitor.next_offset.items())
            if (tp, epoch) in now_owned
        ),
    )
    form.zxids.extend(monitor.newest[tp] for tp in sorted(monitor.newest))
    return whole, _numbers(form)


def _distance(seconds: float) -> float:
    return round(min(max(seconds, EARLIEST_S), LATEST_S), 3)


# ---- the search ----------------------------------------------------------------------------------


FAR_OFF_S = 1e6
"""Interval of automatic commits, in seconds, so long that none happens within a search. Hand-overs
still commit."""

KINDS = (
    Do.CUT,
    Do.EXPIRE,
    Do.KILL,
    Do.FREEZE,
    Do.LEAVE,
    Do.DELETE_OWNER,
    Do.DELETE_ID,
    Do.EDIT,
    Do.ZOMBIE,
    Do.RESTART,
)
"""Faults that may happen, in any order; `Scope.faults` limits their number."""

_OF_A_CLIENT = (Do.RECEIVE, Do.OVERTAKE, Do.READ, Do.NEXT_MESSAGE, Do.NOTICE, Do.CONNECT)


@dataclass(frozen=True)
class Scope:
    """The size of the world; the first `settled` members have settled before the search."""

    settled: int = 1
    members: int = 2
    partitions: int = 2
    messages: int = 1
    faults: int = 2


class SmallWorld(World):
    """A world in which actions take no time and few faults happen."""

    def __init__(self, scope: Scope, watcher: Monitor) -> None:
        plan = Plan(
            members=scope.members,
            partitions=scope.partitions,
            messages=scope.messages,
            settings=_quiet,
        )
        super().__init__(plan, watcher)
        self.step_s = 0.0
        self.may_fail(scope.faults)

    def may_fail(self, faults: int) -> None:
        """Allow this number of further faults, of any kinds."""
        self.faults_left = dict.fromkeys(KINDS, faults)

    def _wall_ms(self) -> int:
        return WALL_MS

    def act(self, action: Action) -> None:
        super().act(action)
        if action.do in KINDS:
            self.may_fail(self.faults_left[action.do])

    def choices(self) -> list[Action]:
        """Return all actions to try, in a fixed order."""
        actions = self.enabled()
        # A member first handles the items that it received: later items are handled after them
        # anyway.
        first = next((action.who for action in actions if action.do is Do.RECEIVE), None)
        if first is not None:
            actions = [one for one in actions if one.who == first and one.do in _OF_A_CLIENT]
        elif any(action.do not in (Do.NEXT_MESSAGE, Do.TIME) for action in actions):
            actions = [one for one in actions if one.do is not Do.TIME]
        actions += (one for one in repairs(self) if one.do is Do.THAW)
        return actions + possible(self)


def _quiet(one: Settings) -> Settings:
    return replace(one, auto_commit_s=FAR_OFF_S)


class SearchNode:
    """A small world and its monitor, as the exhaustive search visits them."""

    __slots__ = ("_keys", "monitor", "world")

    def __init__(self, world: SmallWorld, monitor: Monitor, keys: WorldKeys) -> None:
        self.world, self.monitor, self._keys = world, monitor, keys

    def choices(self) -> list[Action]:
        return self.world.choices()

    def copy(self) -> SearchNode:
        """Return a node that continues independently from here."""
        monitor = self.monitor.copy()
        world = self.world.copy(monitor)
        assert isinstance(world, SmallWorld)
        return SearchNode(world, monitor, self._keys)

    def after(self, move: Action) -> SearchNode:
        twin = self.copy()
        twin.world.act(move)
        return twin

    def key(self) -> int:
        return self._keys.key(self.world, self.monitor)

    def rests(self, move: Action) -> bool:
        return move.do is Do.TIME

    def must_settle(self) -> None:
        """Check that the group settles correctly when all members run and no further fault happens
        (I12).
        """
        copy = self.copy()
        world, monitor = copy.world, copy.monitor
        world.may_fail(0)
        for repair in repairs(world):
            world.act(repair)
        deadline = world.now + CONVERGENCE_S
        turn = 0
        while reason := monitor.converged(world):
            actions = world.choices()
            if not actions or world.now > deadline:
                raise InvariantViolation("I12", reason)
            world.act(actions[turn % len(actions)])
            turn += 1


def explore(
    scope: Scope, *, max_states: int = 10**9, max_s: float = float("inf")
) -> SearchResult[Action]:
    """Search breadth-first from the scope's first state; stop at the first violation."""
    monitor = Monitor()
    world = SmallWorld(scope, monitor)
    world.may_fail(0)
    for who in range(scope.settled):  # these members join one after the other, and settle
        world.act(Action(Do.JOIN, who))
        while busy := [one for one in world.choices() if one.do not in (Do.JOIN, Do.TIME)]:
            world.act(busy[0])
        assert world.members[who].settled
    world.may_fail(scope.faults)
    root = SearchNode(world, monitor, WorldKeys())
    return search.explore(root, max_states=max_states, max_s=max_s)
