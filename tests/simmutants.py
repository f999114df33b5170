"""Planted faults: each takes away one thing that the protocol needs, and a monitor must notice.

Every mutant replaces functions of the production core or operations, within this process and for as
long as its context lasts. Some are what other clients do to this day (`who`); some are bugs that
the simulator found in this project's own code, planted again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from zkconsumer.core import (
    commands,
    committing,
    connection,
    events,
    lease,
    machine,
    offsets,
    paths,
    reading,
    rebalance,
    triggers,
    view,
)
from zkconsumer.core.state import Phase
from zkconsumer.sim import member as simulated
from zkconsumer.sim.monitor import InvariantViolation
from zkconsumer.sim.swarm import Decisions, run
from zkconsumer.zk import claiming, executor, operations, viewing
from zkconsumer.zk import committing as storing
from zkconsumer.zk import requests as rq

Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class Mutant:
    """One planted fault; `patches` makes (where, name, replacement) of each function.

    `near` is a seed that catches it, or was one when the table was made: tests begin there.
    """

    name: str
    what: str
    patches: Callable[[], list[Patch]]
    who: str = ""
    near: int = 0

    @contextmanager
    def planted(self) -> Iterator[None]:
        undo: list[Any] = []
        try:
            for where, name, replacement in self.patches():
                if isinstance(where, dict):
                    one = patch.dict(where, {name: replacement})
                else:
                    one = patch.object(where, name, replacement)
                one.start()
                undo.append(one)
            yield
        finally:
            for one in reversed(undo):
                one.stop()


def schedules_to_catch(
    mutant: Mutant, *, limit: int = 2_000, first: int = 0
) -> tuple[int, InvariantViolation] | None:
    """How many seeds it takes until a promise is broken, and which; None within the limit."""
    with mutant.planted():
        for count in range(1, limit + 1):
            result = run(Decisions(random.Random(first + count - 1)))
            if result.violation is not None:
                return count, result.violation
    return None


# ---- the lease, the session and the connection --------------------------------------------------


def _no_lease() -> list[Patch]:
    def opened(state: Any, now: float) -> Any:
        return (state, ()) if state.fenced else (state, (commands.OpenGate(float("inf")),))

    return [(connection, "_open", opened)]


def _lease_from_the_reply() -> list[Patch]:
    real = connection.synced

    def synced(state: Any, outcome: Any, now: float) -> Any:
        return real(state, replace(outcome, sent_at=now), now)

    return [(connection, "synced", synced)]


def _lease_by_a_read() -> list[Patch]:
    def sync(me: Any, sent_at: float) -> Any:
        yield [rq.Exists(me.path)]
        return events.Synced(sent_at)

    return [(executor, "_sync", sync)]


def _whole_timeout() -> list[Patch]:
    return [(lease, "SHARE_OF_TIMEOUT", 1.5)]


def _old_session() -> list[Patch]:
    real = connection.connected

    def connected(state: Any, event: Any) -> Any:
        if state.session is None or state.session == event.session or not state.registered:
            return real(state, event)
        held = replace(state.lease, op=None)
        state = replace(state, connected=True, fenced=False, session=event.session, lease=held)
        return connection.renew(state, event.now)

    return [(connection, "connected", connected)]


def _nothing_read_after_a_reconnect() -> list[Patch]:
    def recover(state: Any) -> Any:
        phase = Phase.SETTLED if state.view else Phase.WAITING
        return replace(state, fenced=False, phase=phase, op=None), ()

    return [(rebalance, "recover", recover)]


def _claims_without_a_reply_forgotten() -> list[Patch]:
    real = rebalance.recover

    def recover(state: Any) -> Any:
        return real(replace(state, doubtful={}))

    def identify(work: Any, asked: Any) -> Any:
        yield []
        return set()

    return [(rebalance, "recover", recover), (claiming, "_identify", identify)]


def _stale_operations_go_on() -> list[Patch]:
    return [(simulated, "awaits", lambda state, op: True)]


# ---- handing over -------------------------------------------------------------------------------


def _release_before_stop() -> list[Patch]:
    def stop(state: Any, go: Any, now: float) -> Any:
        state = replace(state, moving=go, ready=frozenset(), phase=Phase.RELEASING)
        state, op = rebalance.start_op(state)
        return state, (commands.Release(op, go),)

    return [(rebalance, "stop", stop)]


def _release_without_commit() -> list[Patch]:
    def stopped(state: Any, now: float) -> Any:
        return rebalance.release(state)

    return [(rebalance, "stopped", stopped)]


def _no_wait_for_the_user() -> list[Patch]:
    def positions(feed: Any, purpose: Any) -> Any:
        if feed.delivered is None:
            return None
        return simulated.Position(feed.epoch, feed.delivered)

    return [(simulated.Feed, "position", positions)]


def _anybodys_owner_deleted() -> list[Patch]:
    def release(member: Any, partitions: Any) -> Any:
        asked = sorted(partitions)
        yield [rq.Multi((rq.Delete(paths.owner(member.group, tp)),)) for tp in asked]
        return events.Released({})

    given_up = rebalance.release

    def wide(state: Any) -> Any:
        state, (*withdraw, command) = given_up(state)
        more = state.wanted.keys() - state.owned
        return state, (*withdraw, commands.Release(command.op, state.moving | more))

    return [(operations, "release", release), (rebalance, "release", wide)]


# ---- claiming -----------------------------------------------------------------------------------


def _no_roll_back() -> list[Patch]:
    def roll_back(work: Any) -> Any:
        return
        yield

    return [(claiming, "_roll_back", roll_back), (rq, "MAX_MULTI_WRITES", 1)]


def _owner_under_a_name_of_its_own() -> list[Patch]:
    real = paths.owner

    class Shim:
        def __getattr__(self, name: str) -> Any:
            return getattr(paths, name)

        @staticmethod
        def owner(group: str, tp: Any) -> str:
            return f"{real(group, tp)}-leader"

    shim = Shim()
    return [(claiming, "paths", shim), (operations, "paths", shim)]


def _blockers_end_overlooked() -> list[Patch]:
    def owners_changed(state: Any, event: Any) -> Any:
        if not any(tp.topic == event.topic for tp in state.blocked):
            return state, ()
        return triggers.owners_changed(state, event)

    return [(machine.TABLE, (None, events.OwnersChanged), owners_changed)]


def _no_watch_on_owners() -> list[Patch]:
    real = executor.meaning

    def meaning(fired: Any, settings: Any, now: float) -> Any:
        event = real(fired, settings, now)
        return None if isinstance(event, events.OwnersChanged) else event

    return [(simulated, "meaning", meaning)]


# ---- the group ----------------------------------------------------------------------------------


def _trigger_during_a_rebalance_lost() -> list[Patch]:
    def triggered(state: Any, event: Any) -> Any:
        if event.trigger is not events.Trigger.OWN_MEMBER_NODE:
            return rebalance.read(state) if state.phase in triggers.RESTING else (state, ())
        return triggers.triggered(state, event)

    return [(machine.TABLE, (None, events.Triggered), triggered)]


def _deaf_to_members() -> list[Patch]:
    real = executor.meaning

    def meaning(fired: Any, settings: Any, now: float) -> Any:
        event = real(fired, settings, now)
        is_members = getattr(event, "trigger", None) is events.Trigger.MEMBERS
        return None if is_members else event

    return [(simulated, "meaning", meaning)]


def _everyone_first() -> list[Patch]:
    """Each member computes an order of its own (a hash that differs from process to process)."""
    real = view.assignment

    def assignment(whole: Any, *, consumer: str, **more: Any) -> Any:
        first = {consumer: whole.members[consumer]} if consumer in whole.members else {}
        others = {f"x{name}": one for name, one in whole.members.items() if name != consumer}
        return real(replace(whole, members=first | others), consumer=consumer, **more)

    return [(reading, "assignment", assignment)]


def _lost_topic_change() -> list[Patch]:
    return [(viewing, "_read_topics", _unwatched(viewing._read_topics))]


def _unwatched(real: Any) -> Any:
    """An operation that arms none of its watches."""

    def operation(*arguments: Any) -> Any:
        running = real(*arguments)
        batch = next(running)
        try:
            while True:
                replies = yield [replace(one, watch=False) for one in batch]
                batch = running.send(replies)
        except StopIteration as end:
            return end.value

    return operation


# ---- offsets ------------------------------------------------------------------------------------


def _unconditional_commit() -> list[Patch]:
    def writes(member: Any, plan: Any) -> Any:
        found: dict[Any, Any] = {}
        for tp, (offset, version) in plan.writes.items():
            path, data = paths.offset(member.group, tp), str(offset).encode()
            found[tp] = rq.Create(path, data) if version is None else rq.SetData(path, data, -1)
        for tp in plan.checks:
            found[tp] = rq.Check(paths.offset(member.group, tp))
        return found

    return [(storing, "_writes", writes)]


def _commit_checks_the_owner() -> list[Patch]:
    def writes(member: Any, plan: Any) -> Any:
        found: dict[Any, Any] = {}
        for tp, (offset, version) in plan.writes.items():
            path, data = paths.offset(member.group, tp), str(offset).encode()
            found[tp] = rq.Create(path, data) if version is None else rq.SetData(path, data, -1)
        for tp in plan.checks:
            found[tp] = rq.Check(paths.owner(member.group, tp), 0)
        return found

    return [(storing, "_writes", writes)]


def _commit_goes_back() -> list[Patch]:
    def plan(ledger: Any, positions: Any, *_: Any) -> Any:
        writes = {
            tp: (at.offset, ledger[tp].version)
            for tp, at in positions.items()
            if tp in ledger and ledger[tp].epoch == at.epoch and not ledger[tp].error
            and ledger[tp].value != at.offset
        }
        return offsets.CommitPlan(writes, {})

    return [(offsets, "plan", plan)]


def _one_further() -> list[Patch]:
    real = operations._stored

    def stored(reply: Any, path: str) -> Any:
        found = real(reply, path)
        return found if found.value is None else replace(found, value=found.value + 1)

    return [(operations, "_stored", stored)]


def _edits_ignored() -> list[Patch]:
    real = committing.committed

    def committed(state: Any, outcome: Any, now: float) -> Any:
        return real(state, replace(outcome, marked=frozenset()), now)

    return [(committing, "committed", committed)]


def _refusals_swallowed() -> list[Patch]:
    real = machine._denied

    def denied(state: Any, outcome: Any, now: float) -> Any:
        state, _ = real(state, outcome, now)
        return state, ()

    return [(machine.OUTCOMES, (None, events.Denied), denied)]


MUTANTS = (
    Mutant("no lease", "the gate stays open until the connection is known to be lost", _no_lease,
           "kafka-python's and pykafka's zombies; every client that fences on LOST",
           near=14),
    Mutant("lease from the reply", "the lease counts from the reply, not from the question",
           _lease_from_the_reply,
           near=1115),
    Mutant("lease by a read", "a follower's answer to a read renews the lease", _lease_by_a_read,
           near=238),
    Mutant("lease too long", "the lease outlives the session", _whole_timeout,
           near=14),
    Mutant("state, not session", "an expiry is taken for a reconnect", _old_session,
           near=11),
    Mutant("no re-read after a reconnect", "watches are not armed again",
           _nothing_read_after_a_reconnect,
           near=6),
    Mutant("lost reply is a conflict", "one's own claim is taken for another's",
           _claims_without_a_reply_forgotten, "Scala, pykafka",
           near=50),
    Mutant("stale operations go on", "a claim goes on after a new registration",
           _stale_operations_go_on, "found in our own code",
           near=1263),
    Mutant("release before stop", "the owner znode goes while messages are handed out",
           _release_before_stop,
           near=13),
    Mutant("release without commit", "the next owner starts from an old offset",
           _release_without_commit,
           near=31),
    Mutant("commit of what is in hand", "automatic commits cover what the user has not finished",
           _no_wait_for_the_user, "the JVM's own behaviour",
           near=6),
    Mutant("anybody's owner deleted", "a release takes what it wants, too, whoever owns it",
           _anybodys_owner_deleted, "Scala: KAFKA-262",
           near=1),
    Mutant("no roll-back", "an eager claim goes one by one, and keeps what it got", _no_roll_back,
           "kafka-node",
           near=230),
    Mutant("owner under another name", "owner znodes carry something else in their name",
           _owner_under_a_name_of_its_own, "pykafka: the leader's id"),
    Mutant("blocker's end overlooked", "it goes while the claim is under way",
           _blockers_end_overlooked, "found in our own code",
           near=228),
    Mutant("owners not watched", "what blocks is only tried again by the clock",
           _no_watch_on_owners, "Scala",
           near=14),
    Mutant("trigger lost", "what changes during a rebalance is forgotten",
           _trigger_during_a_rebalance_lost),
    Mutant("deaf to members", "joins and deaths are not noticed", _deaf_to_members),
    Mutant("orders differ", "threads are not in the order in which the others have them",
           _everyone_first, "round-robin without Java's hash"),
    Mutant("topic not watched", "new partitions are not noticed", _lost_topic_change,
           "Scala before 0.8.2 (KAFKA-1075)",
           near=1406),
    Mutant("unconditional commit", "offsets are written whatever stands there",
           _unconditional_commit, "Scala, pykafka, kafka-node",
           near=152),
    Mutant("commit checks the owner", "the owner znode's version fences, not the offset's",
           _commit_checks_the_owner,
           near=152),
    Mutant("commit goes back", "a lower position of one's own is written", _commit_goes_back,
           near=360),
    Mutant("one further", "reading resumes one message too far", _one_further,
           near=16),
    Mutant("edits ignored", "an operator's reset is taken for a zombie's write", _edits_ignored,
           near=152),
    Mutant("refusals swallowed", "ZooKeeper says no, and nobody is told", _refusals_swallowed,
           near=15),
)
