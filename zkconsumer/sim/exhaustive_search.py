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

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

from zkconsumer.consumer.executor import Resume
from zkconsumer.frozen import dataclass
from zkconsumer.member.state import Settings, State
from zkconsumer.protocol import paths
from zkconsumer.sim import promises
from zkconsumer.sim.kernel import search
from zkconsumer.sim.kernel.keys import KeyPart, KeyRules, Numbers, Value, distance, together
from zkconsumer.sim.kernel.search import SearchResult
from zkconsumer.sim.member import Replayed, SimMember
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.random_search import CONVERGENCE_S
from zkconsumer.sim.world import WALL_MS, Watcher, Watchers, World, possible, repairs

# ---- keys of worlds ------------------------------------------------------------------------------


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


class _Operation(NamedTuple):
    """What a key contains of a running operation."""

    command: Value
    started: float
    sent: Value


RULES = KeyRules(
    kinds=(ZXIDS, frozenset({"cversion"}), OPERATIONS, MOMENTS),
    left_out=LEFT_OUT,
    of_class={Replayed: lambda one: _Operation(one.command, one.started, one.sent)},
)
_ZXID, _MOMENT = 0, 3


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
                    tuple([distance(moment - now) for moment in moments]),
                )
            )
        return hash(tuple(key))

    def _member(self, member: SimMember) -> tuple[Hashable, Numbers]:
        state, numbers = self._state(member.state)
        form = KeyPart(RULES)
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
        form.numbers[_MOMENT].append(member.gate)
        return (state, rest), together(numbers, form.taken())

    def _state(self, state: State) -> tuple[Hashable, Numbers]:
        known = self._states.get(id(state))
        if known is None:
            if len(self._states) >= MOST_STATES:
                self._states.clear()
            form = KeyPart(RULES)
            whole = form.of(state)
            form.numbers[_ZXID].extend(state.topics[name] for name in sorted(state.topics))
            known = self._states[id(state)] = (state, whole, form.taken())
        return known[1], known[2]


def _surroundings(world: World, monitor: Monitor) -> tuple[Hashable, Numbers]:
    """Return connections, faults, logs and the monitor's memory."""
    form = KeyPart(RULES)
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
    form.numbers[_ZXID].extend(monitor.newest[tp] for tp in sorted(monitor.newest))
    return whole, form.taken()


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


class TimelessWorld(World):
    """A world in which actions take no time and few faults happen.

    `kinds`: the faults that may happen, in any order.
    """

    kinds: Sequence[Do] = KINDS

    def may_fail(self, faults: int) -> None:
        """Allow this number of further faults, of any kinds."""
        self.step_s = 0.0
        self.faults_left = dict.fromkeys(self.kinds, faults)

    def _wall_ms(self) -> int:
        return WALL_MS

    def act(self, action: Action) -> None:
        super().act(action)
        if action.do in self.kinds:
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


class SmallWorld(TimelessWorld):
    """A small world of production members."""

    def __init__(self, scope: Scope, watcher: Watcher) -> None:
        plan = Plan(
            members=scope.members,
            partitions=scope.partitions,
            messages=scope.messages,
            settings=_quiet,
        )
        super().__init__(plan, watcher)
        self.may_fail(scope.faults)


def _quiet(one: Settings) -> Settings:
    return replace(one, auto_commit_s=FAR_OFF_S)


class SearchNode(search.StateNode[TimelessWorld, Monitor, Action]):
    """A small world and its monitor, as the exhaustive search visits them."""

    __slots__ = ()

    def rests(self, move: Action) -> bool:
        return move.do is Do.TIME

    def settle(self) -> None:
        """End all faults, and check that the group settles correctly (I12)."""
        world, monitor = self.world, self.monitor
        world.may_fail(0)
        for repair in repairs(world):
            world.act(repair)
        deadline = world.now + CONVERGENCE_S
        turn = 0
        while reason := monitor.converged(world):
            actions = world.choices()
            if not actions or world.now > deadline:
                raise promises.group_settles.broken(reason)
            world.act(actions[turn % len(actions)])
            turn += 1


def first_node(scope: Scope, *watchers: Watcher) -> SearchNode:
    """Return the state from which a search starts: the first members have joined one after the
    other, and have settled. The watchers see what happens, as long as no node is copied."""
    monitor = Monitor()
    world = SmallWorld(scope, Watchers(*watchers, monitor) if watchers else monitor)
    world.may_fail(0)
    for who in range(scope.settled):
        world.act(Action(Do.JOIN, who))
        while busy := [one for one in world.choices() if one.do not in (Do.JOIN, Do.TIME)]:
            world.act(busy[0])
        assert world.members[who].settled
    world.may_fail(scope.faults)
    return SearchNode(world, monitor, WorldKeys().key)


def explore(
    scope: Scope, *, max_states: int = 10**9, max_s: float = float("inf")
) -> SearchResult[Action]:
    """Search breadth-first from the scope's first state; stop at the first violation."""
    return search.explore(lambda: first_node(scope), max_states=max_states, max_s=max_s)
