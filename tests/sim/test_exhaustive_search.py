"""The exhaustive search of a small world: a part of the search, and the keys of states."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from zkconsumer.consumer.executor import Done, Running, WatchFired
from zkconsumer.member import commands, events, offset_ledger, state
from zkconsumer.member import state as core_state
from zkconsumer.member.operations import MemberIdentity
from zkconsumer.member.state import State, replace
from zkconsumer.protocol import group_snapshot, model
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.requests import Code, Reply, SyncLeader
from zkconsumer.sim import member, plan
from zkconsumer.sim.exhaustive_search import (
    KINDS,
    LEFT_OUT,
    MOMENTS,
    Scope,
    SmallWorld,
    WorldKeys,
    explore,
)
from zkconsumer.sim.member import Feed, Replayed
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, ActiveFaults, Do, Link
from zkconsumer.sim.zookeeper import SimZooKeeper

LIMIT_S = 200.0
"""Time limit of a search in seconds. On an idle machine 2,500 states take 2 to 6 s."""


@pytest.mark.parametrize(("faults", "states"), [(1, 2_500), (2, 2_500)])
def test_no_promise_is_broken(faults: int, states: int) -> None:
    """In the searched part, no order of operations and faults breaks a promise."""
    found = explore(Scope(faults=faults), max_states=states, max_s=LIMIT_S)
    assert found.violation is None, [*map(str, found.path)]
    assert found.complete or found.states >= states


def test_a_join_without_faults_is_explored_to_the_end() -> None:
    """When a member joins, the search is complete, and every settled state converges."""
    found = explore(Scope(faults=0))
    assert found.violation is None
    assert found.complete
    assert found.rests


def played(*actions: Action) -> tuple[SmallWorld, Monitor]:
    monitor = Monitor()
    world = SmallWorld(Scope(settled=0), monitor)
    for action in actions:
        world.act(action)
    return world, monitor


def joined(who: int) -> tuple[Action, Action]:
    """Connect a member and let it send its first requests."""
    return Action(Do.JOIN, who), Action(Do.RECEIVE, who)


def test_commuting_actions_lead_to_one_state() -> None:
    """Reads of two members in either order lead to one state; a write before a read does not."""
    canon = WorldKeys()
    both = *joined(0), *joined(1)
    one = played(*both, Action(Do.SERVE, 0), Action(Do.SERVE, 1))
    other = played(*both, Action(Do.SERVE, 1), Action(Do.SERVE, 0))
    assert canon.key(*one) == canon.key(*other)
    assert canon.key(*one) != canon.key(*played(*both, Action(Do.SERVE, 0)))


def test_a_copy_is_the_same_state() -> None:
    """A copied world has the key of the original, and continues independently of it."""
    canon = WorldKeys()
    world, monitor = played(*joined(0))
    twin = monitor.copy()
    copy = world.copy(twin)
    assert canon.key(copy, twin) == canon.key(world, monitor)
    copy.act(Action(Do.SERVE, 0))
    assert canon.key(copy, twin) != canon.key(world, monitor)


def walk(start: float) -> list[int]:
    """Return the keys along a run of two members with one fault; the run begins at `start`."""
    monitor, canon = Monitor(), WorldKeys()
    world = SmallWorld(Scope(settled=0, faults=1), monitor)
    world.now, keys = start, []
    for turn in range(250):
        actions = world.choices()
        ordinary = [action for action in actions if action.do not in KINDS]
        cut = [action for action in actions if action.do is Do.CUT and turn == 150]
        world.act((cut or ordinary)[turn % len(cut or ordinary)])
        keys.append(canon.key(world, monitor))
    return keys


def test_keys_do_not_depend_on_the_time_of_day() -> None:
    """A run at another time of day has the same keys, since times in a key are relative."""
    assert walk(0.0) == walk(64.0)


def test_every_moment_counts_from_now() -> None:
    """Every float field in a key is a duration, or a time that MOMENTS lists."""
    told = {"settings": core_state.Settings, "plan": plan.Plan}
    kinds = [
        kind
        for module in (
            commands,
            events,
            state,
            model,
            offset_ledger,
            group_snapshot,
            core_state,
            member,
            plan,
        )
        for kind in vars(module).values()
        if is_dataclass(kind) and kind not in told.values()
    ]
    floats = {one.name for kind in kinds for one in fields(kind) if "float" in str(one.type)}
    assert {"verify_at", "look_at"} <= floats
    assert floats - MOMENTS == {"timeout_s"}


@pytest.mark.parametrize("name", sorted(one.name for one in fields(State)))
def test_every_field_of_a_members_state_is_in_the_key(name: str) -> None:
    """Each field that `step` may read changes the key, except the fields listed as excluded."""
    world, monitor = played(*joined(0), Action(Do.SERVE, 0))
    before, one = WorldKeys().key(world, monitor), world.members[0]
    other: Any = 1.0 if getattr(one.state, name) is None else None
    one.loop.state = replace(one.state, **{name: {"another": 1} if name == "topics" else other})
    assert (WorldKeys().key(world, monitor) == before) == (name in LEFT_OUT)


TP, OWNED = TopicPartition("t", 0), 12
ME = MemberIdentity.of(core_state.Settings("g", "g_0", {}), 1)
OF_A_WORLD: dict[str, Any] = {
    "now": 1.0,
    "zookeeper": SimZooKeeper(),
    "faults_left": {},
    "log_end": {TP: 9},
    "active_faults": ActiveFaults(topic_gone=True),
    "members": [],
    "links": [Link(dead=True)],
}
OF_A_MEMBER: dict[str, Any] = {"gate": 9.0}
OF_A_LOOP: dict[str, Any] = {"state": State(core_state.Settings("g", "g_0", {}))}
OF_AN_EXECUTOR: dict[str, Any] = {
    "running": {1: Running(1, 1, Replayed(commands.ReadView(1), ME, 0.0))},
}
OF_A_SESSION: dict[str, Any] = {
    "session_id": 9,
    "wire": deque([(1, SyncLeader("/"))]),
    "inbox": deque([WatchFired("", "")]),
    "partial": {1: (Reply(Code.OK),)},
    "read": 1,
    "changes": 1,
}
OF_STREAMS: dict[str, Any] = {"feeds": {TP: Feed(1, 0)}, "releases": (frozenset({TP}),)}
OF_A_MONITOR: dict[str, Any] = {
    "by_hand": {TP},
    "delivered_below": {TP: 1},
    "finished_below": {TP: 1},
    "committable": {TP: 1},
    "stored": {TP: 1},
    "newest": {TP: 0},
    "lowered": {TP},
    "edited": {TP: 0},
    "harmed": True,
    "lost_data": True,
    "asked": {0: 1},
    "next_offset": {(TP, OWNED): 1},
    "excused": {TP},
    "finished_in": {TP: (OWNED, 1)},
}
OF_NO_MATTER = {
    "plan": "the same in all",
    "settings": "the same in all",
    "messages_per_advance": "the same in all",
    "step_s": "the same in all",
    "watcher": "the monitor",
    "_on_transition": "the world",
    "due": "follows from the state",
    "edits": "names the next mark",
    "starts": "no member starts again in this scope",
    "ticket": "only while a request is served",
    "kafka": "not in this scope",
    "handed_out": "for a fault that is not in this scope",
    "_stranger": "not in this scope",
    "log_start": "not in this scope",
    "rewound": "not in this scope",
    "announced": "no member has callbacks in this scope",
    "given": "not in this scope",
    "old_sessions": "no member starts again in this scope",
    "tool": "not in this scope",
    "unmarked": "only within one transaction",
    "seen": "what is judged",
    "deliveries": "a count",
    "duplicates": "a count",
    "rebalances": "a count",
    "simulated": "the same in all",
    "deleted": "not in this scope",
    "can_commit": "as owed",
    "owed": "of automatic commits, which do not happen in this scope",
    "could_commit_s": "as owed",
    "looked_at": "as owed",
    "session": "below",
    "streams": "below",
    "loop": "below",
    "executor": "below",
    "_session": "the same in all",
    "_post": "the same in all",
    "_clock": "the same in all",
    "_ask_kafka": "the same in all",
    "_ask_matcher": "the same in all",
    "_begin": "the same in all",
    "last_ticket": "a count",
    "requests": "a count",
    "_host": "the member",
    "_gate": "the member",
    "_streams": "below",
    "_settings": "the same in all",
    "_overtakes": "the same in all",
    "missing": "below",
    "has_client": "no client dies in this scope",
    "_commit_answers": "explicit commits are not in this scope",
    "_last_request": "as _commit_answers",
    "_refusal_reported": "no stream reads errors here",
    "_refusal_owned": "as _refusal_reported",
    "_owning": "follows from the state",
    "turn_at": "set at each turn",
    "aim": "None in this scope, so that no thread is preempted",
    "rare": "as aim",
    "unposted": "as aim",
    "post_at": "as aim",
    "_wall_ms": "only written",
}


def under_way(world: SmallWorld) -> None:
    """Bring the first member into a state in which it waits for the replies to two requests."""
    one = world.members[0]
    one.running[1] = Running(1, 1, Replayed(commands.ReadView(2), ME, 0.0))
    one.session.submit([SyncLeader("/a"), SyncLeader("/b")], Done(1, one.post))


@pytest.mark.parametrize(
    "whose", ["world", "member", "loop", "executor", "session", "streams", "monitor"]
)
def test_every_part_of_a_world_is_in_the_key(whose: str) -> None:
    """Every other field of a world, member or monitor changes the key or is listed as excluded."""
    world, monitor = played(Action(Do.JOIN, 0))
    while not world.members[0].settled:
        world.act(world.choices()[0])
    assert world.owners()[TP][2] == OWNED
    under_way(world)
    one = world.members[0]
    subject, others = {
        "world": (world, OF_A_WORLD),
        "member": (one, OF_A_MEMBER),
        "loop": (one.loop, OF_A_LOOP),
        "executor": (one.loop.executor, OF_AN_EXECUTOR),
        "session": (one.session, OF_A_SESSION),
        "streams": (one.streams, OF_STREAMS),
        "monitor": (monitor, OF_A_MONITOR),
    }[whose]
    names = getattr(subject, "__slots__", None) or vars(subject)
    assert set(names) - OF_NO_MATTER.keys() == others.keys()
    before = WorldKeys().key(world, monitor)
    for name, other in others.items():
        was = getattr(subject, name)
        setattr(subject, name, other)
        assert WorldKeys().key(world, monitor) != before, name
        setattr(subject, name, was)
    if whose == "session":
        one.session.missing[1] += 1
        assert WorldKeys().key(world, monitor) != before, "missing"
