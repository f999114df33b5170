"""The exhaustive search of a small coordinated group, and the keys of its states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from support.sim.coordinated_exhaustive import (
    DUE,
    LEFT_OUT,
    RULES,
    Scope,
    SearchNode,
    explore,
    first_node,
    story_of,
)
from support.sim.later_mutants import MUTANTS, Mutant

from zkconsumer.later import (
    classic_member_state,
    classic_state,
    client_state,
    consumer_group,
    consumer_member,
    group_coordinator,
    group_events,
)
from zkconsumer.protocol.later import coordination, messages, subscriptions
from zkconsumer.sim.coordinated.search import PROTOCOLS
from zkconsumer.sim.coordinated.world import RECEIVE, SERVE, Move

LIMIT_S = 200.0
"""Time limit of a search in seconds. On an idle machine 3,000 states take 2 to 4 s."""


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_a_join_without_faults_is_explored_to_the_end(protocol: str) -> None:
    """When a member joins, the search is complete, and every state at rest settles."""
    found = explore(Scope(protocol, faults=0))
    assert found.violation is None, story_of(Scope(protocol, faults=0), found.path)
    assert found.complete
    assert found.rests


@pytest.mark.parametrize("faults", [1, 2])
@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_no_promise_is_broken(protocol: str, faults: int) -> None:
    """In the searched part, no order of messages, deadlines and faults breaks a promise."""
    scope = Scope(protocol, faults=faults)
    found = explore(scope, max_states=3_000, max_s=LIMIT_S)
    assert found.violation is None, "\n".join(story_of(scope, found.path))
    assert found.complete or found.states >= 3_000


# The number of faults after which a mutant breaks its promise, if it needs any.
NEEDS_FAULTS = {"commits of any generation are stored": 2, "commits of any epoch are stored": 2}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: str(one.name))
def test_a_mutant_is_found(mutant: Mutant) -> None:
    """The search finds a path to the promise that a planted fault breaks; its story ends there."""
    scope = Scope(mutant.protocol, faults=NEEDS_FAULTS.get(mutant.name, 0))
    with mutant.planted():
        found = explore(scope, max_states=5_000, max_s=LIMIT_S)
        assert found.violation is not None
        assert found.violation.invariant == mutant.promise
        assert story_of(scope, found.path)


# ---- keys ----------------------------------------------------------------------------------------


def after(node: SearchNode, *steps: tuple[str, int]) -> SearchNode:
    """Return the node after the first move of each kind and member."""
    for do, who in steps:
        move = next(one for one in node.world.choices() if (one.do, one.who) == (do, who))
        node = node.after(move)
    return node


@pytest.mark.parametrize("protocol", ["classic-cooperative", "consumer"])
def test_commuting_moves_lead_to_one_state(protocol: str) -> None:
    """Requests of two members that arrive in either order lead to one state."""
    root = after(first_node(Scope(protocol, settled=0)), ("join", 0), ("join", 1))
    one = after(root, (SERVE, 0), (SERVE, 1))
    other = after(root, (SERVE, 1), (SERVE, 0))
    assert one.key() == other.key()
    assert one.key() != after(root, (SERVE, 0)).key()


@pytest.mark.parametrize("protocol", ["classic-cooperative", "consumer"])
def test_a_copy_is_the_same_state(protocol: str) -> None:
    """A copied node has the key of the original, and continues independently of it."""
    node = after(first_node(Scope(protocol)), ("join", 1))
    before = node.key()
    twin = node.copy()
    assert twin.key() == before
    twin.world.act(Move("kill", 0))
    assert twin.key() != before == node.key()


def walk(node: SearchNode) -> Iterator[int]:
    """Yield the keys along a run in which a member joins, and a connection breaks."""
    for turn in range(60):
        moves = node.world.choices()
        cut = [one for one in moves if one == Move("cut", 0) and turn == 20]
        ordinary = [one for one in moves if one.do in (SERVE, RECEIVE, DUE, "join")]
        node = node.after((cut or ordinary)[turn % len(cut or ordinary)])
        yield node.key()


@pytest.mark.parametrize("protocol", ["classic-cooperative", "consumer"])
def test_keys_do_not_depend_on_the_past(protocol: str) -> None:
    """A group has the same keys each time a member joins and leaves, whatever time has passed."""
    # Time, generations, numbers and ids have grown meanwhile.
    node = first_node(Scope(protocol))
    keys, walks = [], []
    for command in ("join", "revive"):
        world = node.world
        world.faults = 2
        world.act(Move(command, 1))
        world.run(60.0)
        world.act(Move("leave", 1))
        world.run(60.0)
        world.drop_ineffective()
        world.now, world.joins[1], world.faults = world.next_moment(), 0, 1
        keys.append(node.key())
        walks.append(list(walk(node)))
    assert keys[0] == keys[1]
    assert walks[0] == walks[1]


DURATIONS = {
    "session_timeout_s",
    "rebalance_timeout_s",
    "heartbeat_interval_s",
    "interval_s",
    "session_s",
    "rebalance_s",
    "delay_s",
    "remaining_s",
    "heartbeat_s",
    "poll_s",
    "auto_commit_s",
}


def test_every_moment_counts_from_now() -> None:
    """Every float field in a key is a duration, a moment that RULES lists, or left out."""
    kinds = {
        kind
        for module in (
            client_state,
            classic_member_state,
            consumer_member,
            classic_state,
            consumer_group,
            group_coordinator,
            messages,
            coordination,
            subscriptions,
        )
        for kind in vars(module).values()
        if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))
    }
    settings = {client_state.ClientSettings, group_events.BrokerSettings}
    floats = {
        name
        for kind in kinds - settings
        for name, declared in vars(kind).get("__annotations__", {}).items()
        if "float" in str(declared)
    }
    known = RULES.kinds[0] | DURATIONS | LEFT_OUT
    assert {"retry_at", "at_s"} <= floats
    assert floats - known - {"now_s", "since_s"} == set()


OF_A_WORLD: dict[str, Any] = {
    "log_end": {},
    "members": [],
    "leader": None,
    "brokers": [group_coordinator.GroupCoordinator()] * 2,
    "down": {1},
    "faults": 9,
}
ELSEWHERE = {
    "plan": "the same in all",
    "watcher": "the monitor",
    "now": "moments count from it",
    "partition": "the same in all",
    "_records": "only while no coordinator has read the group",
    "_elections": "entries of an earlier election have no effect, and are dropped",
    "_broker_ticks": "an entry of the queue for each",
    "_wires": "a message of a broken connection is dropped; the times of arrival are past",
    "_queue": "messages with the members, the rest with the surroundings",
    "_number": "a count",
    "_unanswered": "with the members",
    "joins": "only numbers the next member ids",
}
OF_A_MEMBER: dict[str, Any] = {
    "state": client_state.ClientState(),
    "joined": False,
    "dead": True,
    "frozen": True,
    "slow": True,
    "muted": True,
    "held": [],
    "fetching": {},
    "is_asking": None,
}
NOT_OF_A_MEMBER = {
    "name": "the same in all",
    "machine": "the same in all",
    "life": "a message of an earlier life is dropped",
    "tick_at": "an entry of the queue",
    "inbox": "checked with a frozen member",
}
OF_A_MONITOR: dict[str, Any] = {"ends": {}, "stored": {1: 1}, "assigned": {1: ""}, "generation": 0}
NOT_OF_A_MONITOR = {
    "deliveries": "a count",
    "duplicates": "a count",
    "refused": "a count",
    "rebalances": "a count",
}


@pytest.mark.parametrize("whose", ["world", "member", "monitor"])
def test_every_part_of_a_world_is_in_the_key(whose: str) -> None:
    """Every field of a world, member or monitor changes the key or is listed as left out."""
    node = first_node(Scope("classic-eager"))
    subject, others, left = {
        "world": (node.world, OF_A_WORLD, ELSEWHERE),
        "member": (node.world.members[0], OF_A_MEMBER, NOT_OF_A_MEMBER),
        "monitor": (node.monitor, OF_A_MONITOR, NOT_OF_A_MONITOR),
    }[whose]
    assert vars(subject).keys() == others.keys() | left.keys()
    before = node.key()
    for name, other in others.items():
        was = getattr(subject, name)
        setattr(subject, name, other)
        if name == "brokers":
            node.world.leader = None
        assert node.key() != before, name
        setattr(subject, name, was)


def test_what_a_frozen_member_has_not_handled_is_in_the_key() -> None:
    """Two states differ if a frozen member has received different replies."""
    node = first_node(Scope("consumer", settled=0))
    node.world.faults = 1
    node = after(node, ("join", 0), (SERVE, 0), ("freeze", 0))
    assert after(node, (RECEIVE, 0)).key() != node.key()


@pytest.mark.parametrize(
    "kind",
    [classic_member_state.ClassicState, consumer_member.ConsumerState],
    ids=["classic", "consumer"],
)
def test_every_field_of_a_members_state_is_in_the_key(kind: type) -> None:
    """Each field of a member's state changes the key, except those that are left out."""
    protocol = "consumer" if kind is consumer_member.ConsumerState else "classic-sticky"
    node = first_node(Scope(protocol))
    before, member = node.key(), node.world.members[0]
    genuine = member.state
    assert isinstance(genuine, kind)
    for one in fields(kind):  # type: ignore[arg-type]  # a dataclass
        member.state = replace(genuine, **{one.name: _another(getattr(genuine, one.name))})
        assert (node.key() == before) == (one.name in LEFT_OUT), one.name
    member.state = genuine


def _another(value: Any) -> Any:
    """Return a value of the same kind that differs."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value - 5 if value < 1e5 else 1.0
        case (frozenset() as owned, int(generation)):
            return owned, generation + 1
        case frozenset():
            return value | {("u", 0)}
        case None:
            return 1.0
    return None
