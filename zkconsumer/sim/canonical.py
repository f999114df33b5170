"""Worlds as keys: two worlds that behave alike from now on have one key, whatever came before.

Numbers that only have to differ, or to be in order, are replaced by their rank (transactions of
ZooKeeper, a member's operations); moments become distances from now. What a monitor remembers is a
part of the key, too, so that no history which could break a promise is taken for another.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from zkconsumer.core.state import State
from zkconsumer.sim.member import Replayed, SimMember
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.world import World
from zkconsumer.zk.executor import Resume

LATEST_S, EARLIEST_S = 100.0, -10.0
"""Distances beyond are all one: an automatic commit that is far off, a lease that ended long ago.
The longest that anything looks back is the patience with a blocker, 8 s."""

MOMENTS = frozenset({
    "now", "deadline", "asked_at", "sent_at", "started", "grace_at", "retry_at", "verify_at",
    "auto_commit_at", "commits_at", "leave_at", "peers_at", "refresh_at", "nudged_at",
    "blocked_since", "muted_at", "recreate_at",
})  # fmt: skip
ZXIDS = frozenset({"epoch", "czxid", "mzxid"})
OPERATIONS = frozenset({"op", "nudge_op"})
LEFT_OUT = frozenset({"settings", "wall_ms", "timestamp_ms", "last_op"})
"""The same in all states, only ever written, or only the source of fresh numbers."""


_NAMES: dict[type[Any], tuple[str, ...]] = {Replayed: ("command", "started", "sent")}


def _names(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a class that matter."""
    if kind not in _NAMES:
        names = kind._fields if hasattr(kind, "_fields") else [one.name for one in fields(kind)]
        _NAMES[kind] = tuple(name for name in names if name not in LEFT_OUT)
    return _NAMES[kind]


class Form:
    """The form of one part of a world, and beside it the numbers that stand in its gaps."""

    def __init__(self) -> None:
        self.zxids: list[int] = []
        self.operations: list[int] = []
        self.moments: list[float] = []

    def of(self, value: Any) -> Hashable:
        """The form of a value; what varies without meaning is noted, and left out."""
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

    def _field(self, name: str, value: Any) -> Hashable:
        if value is None:
            return None
        if name in ZXIDS:
            self.zxids.append(value)
        elif name in OPERATIONS:
            self.operations.append(value)
        elif name in MOMENTS:
            self.moments.append(value)
        else:
            return self.of(value)
        return name


Numbers = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]


class Canon:
    """Keys of worlds; states of members are worked on once each, since most actions leave them."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[State, Hashable, Numbers]] = {}

    def key(self, world: World, monitor: Monitor) -> int:
        """The hash of a world's key: equal for worlds that behave alike from now on."""
        now = world.now
        forms = [self._member(member) for member in world.members]
        forms.append(_surroundings(world, monitor))
        zxids = world.zookeeper.zxids()
        for _, (found, _, _) in forms:
            zxids.update(found)
        ranks = {zxid: rank for rank, zxid in enumerate(sorted(zxids))}
        key: list[Hashable] = [world.zookeeper.key(now, ranks=ranks)]
        for form, (found, operations, moments) in forms:
            order = {op: rank for rank, op in enumerate(sorted({0, *operations}))}
            key.append((
                form,
                tuple([ranks[zxid] for zxid in found]),
                tuple([order[op] for op in operations]),
                tuple([_distance(moment - now) for moment in moments]),
            ))
        return hash(tuple(key))

    def forget(self) -> None:
        """Free the memory; keys stay what they are."""
        self._states.clear()

    def _member(self, member: SimMember) -> tuple[Hashable, Numbers]:
        state, numbers = self._state(member.state)
        form = Form()
        session = member.session
        # Tickets only tell operations apart: each one counts by its place among those under way.
        place = {ticket: n for n, ticket in enumerate(sorted(member.running))}
        rest = (
            form.of(member.feeds), form.of(member.streams.releases),
            tuple([form.of(member.running[ticket]) for ticket in place]),
            tuple([(place[ticket], form.of(request)) for ticket, request in member.wire]),
            tuple([
                (place[item.ticket], form.of(item.replies))
                if type(item) is Resume else form.of(item)
                for item in member.inbox
            ]),
            tuple([
                (place[ticket], session.missing[ticket], form.of(session.partial[ticket]))
                for ticket in sorted(session.partial)
            ]),
            session.session_id, session.read, session.changes,
        )
        form.moments.append(member.gate)
        both = (
            (*numbers[0], *form.zxids),
            (*numbers[1], *form.operations),
            (*numbers[2], *form.moments),
        )
        return (state, rest), both

    def _state(self, state: State) -> tuple[Hashable, Numbers]:
        known = self._states.get(id(state))
        if known is None:
            form = Form()
            whole = form.of(state)
            form.zxids.extend(state.topics[name] for name in sorted(state.topics))
            numbers = tuple(form.zxids), tuple(form.operations), tuple(form.moments)
            known = self._states[id(state)] = (state, whole, numbers)
        return known[1], known[2]


def _surroundings(world: World, monitor: Monitor) -> tuple[Hashable, Numbers]:
    """Connections, what is wrong, the logs, and what the monitor remembers."""
    form = Form()
    owners = world.owners()
    now_owned = {(tp, czxid) for tp, (_, _, czxid) in owners.items()}
    whole = (
        tuple([form.of(link) for link in world.links]),
        form.of(world.wrong),
        form.of({do.value: left for do, left in world.faults_left.items()}),
        form.of(world.log_end),
        form.of(monitor.prefix), form.of(monitor.done), form.of(monitor.committable),
        form.of(monitor.stored), form.of(monitor.edited), form.of(monitor.asked),
        form.of(monitor.lowered), form.of(monitor.by_hand), monitor.harmed,
        form.of(monitor.excused),
        tuple(
            (tp, offset) for tp, (epoch, offset) in sorted(monitor.finished_in.items())
            if (tp, epoch) in now_owned
        ),
        tuple(sorted(monitor.newest)),
        # An ownership that has ended is never delivered under again, or I2 breaks.
        tuple(
            (tp, after) for (tp, epoch), after in sorted(monitor.next_offset.items())
            if (tp, epoch) in now_owned
        ),
    )
    form.zxids.extend(monitor.newest[tp] for tp in sorted(monitor.newest))
    return whole, (tuple(form.zxids), tuple(form.operations), tuple(form.moments))


def _distance(seconds: float) -> float:
    return round(min(max(seconds, EARLIEST_S), LATEST_S), 3)
