"""Planted faults. Each fault removes one property that the protocol needs, and the monitor must
detect the violation.

Every mutant replaces functions of the production code in this process, until its `with` block ends.
Some mutants are faults that other clients still have (`who`). Other mutants are defects that the
simulator has found in this project's code. The mutants that the lab offers as switches are in
`sim.weakened`.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from support.sim import handover
from zkconsumer.admin import apply, plan
from zkconsumer.consumer import executor, loop, stream_partitions
from zkconsumer.consumer.executor import Executor
from zkconsumer.consumer.loop import LeaveRequested, MemberLoop, SessionChanged
from zkconsumer.consumer.stream_fetcher import StreamFetcher
from zkconsumer.consumer.stream_partitions import GrantedPartition, LeaseGate
from zkconsumer.kafka.fetcher import AutoOffsetReset
from zkconsumer.member import (
    commands,
    commits,
    events,
    machine,
    offset_ledger,
    operations,
    peers,
    read_group,
    rebalance,
    session,
    state,
)
from zkconsumer.member import operations as storing
from zkconsumer.member.offset_ledger import Commit, CommitPlan, Ledger
from zkconsumer.protocol import group_snapshot, lost_data, paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import Position, Purpose
from zkconsumer.sim import weakened
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.logs import MemoryFetcher
from zkconsumer.sim.random_search import run
from zkconsumer.sim.session import SimSession
from zkconsumer.sim.weakened import Patch
from zkconsumer.spark import batch_member
from zkconsumer.spark.batch_member import ThreadPartitions


class Mutant(weakened.Weakness):
    """A planted fault."""

    @property
    def near(self) -> int:
        """The seed that detected the fault in the last recorded run, or 0. Tests start there."""
        return max(0, recorded(self)["schedules"] - 1)


def function(where: Any, name: str) -> Any:
    """Return the function that a patch replaces; the function may be private."""
    return getattr(where, name)


def recorded(mutant: Mutant) -> dict[str, Any]:
    """Return the promise that the mutant broke in the last recorded run, and its schedule."""
    return _recorded().get(mutant.name, {"schedules": 0, "caught_by": ""})


@cache
def _recorded() -> dict[str, dict[str, Any]]:
    """Return the recorded result of each mutant from docs/records/."""
    scripts = str(Path(__file__).resolve().parents[3] / "scripts")
    if scripts not in sys.path:
        sys.path.append(scripts)
    rows: dict[str, dict[str, Any]] = importlib.import_module("_records").mutant_rows()
    return rows


def schedules_to_catch(
    mutant: Mutant, *, limit: int = 2_000, first: int = 0
) -> tuple[int, InvariantViolation] | None:
    """Return the number of seeds until the mutant breaks a promise, and the violation.

    A seed that also breaks a promise without the mutant is skipped: its violation has another
    cause. The result is None if no seed within `limit` catches the mutant.
    """
    for count in range(1, limit + 1):
        seed = first + count - 1
        with mutant.planted():
            violation = run(Decisions(random.Random(seed))).violation
        if violation is not None and run(Decisions(random.Random(seed))).violation is None:
            return count, violation
    return None


# ---- the lease, the session and the connection --------------------------------------------------


def _lease_from_the_reply() -> list[Patch]:
    real = session.synced

    def synced(state: Any, outcome: Any, now: float) -> Any:
        return real(state, replace(outcome, sent_at=now), now)

    return [(session, "synced", synced)]


def _lease_by_a_read() -> list[Patch]:
    def sync(me: Any, sent_at: float) -> Any:
        yield [rq.Exists(me.path)]
        return events.Synced(sent_at)

    return [(executor, "_sync", sync)]


def _whole_timeout() -> list[Patch]:
    return [(state, "SHARE_OF_TIMEOUT", 1.5)]


def _stale_operations_go_on() -> list[Patch]:
    return [(loop, "awaits", lambda state, op: True)]


def _dead_client_stays_dead() -> list[Patch]:
    def recreate_due(state: Any, now: float) -> Any:
        return replace(state, client=replace(state.client, recreate_at=None)), ()

    return [(session, "recreate_due", recreate_due)]


def _lost_data_overlooked() -> list[Patch]:
    return [(lost_data, "is_lost", lambda refusals, *, seen, last: False)]


def _gives_up_without_an_error() -> list[Patch]:
    real = session.client_died

    def client_died(state: Any, event: Any) -> Any:
        state, given = real(state, event)
        return state, tuple(one for one in given if not isinstance(one, commands.GiveUp))

    return [(machine.HANDLERS, (None, events.ClientDied), client_died)]


# ---- handing over -------------------------------------------------------------------------------


def _anybodys_owner_deleted() -> list[Patch]:
    def release(member: Any, partitions: Any, watched: Any) -> Any:
        asked = sorted(partitions)
        yield [rq.Multi((rq.Delete(paths.owner(member.group, tp)),)) for tp in asked]
        return events.Released({})

    given_up = rebalance.release

    def wide(state: Any) -> Any:
        state, (*withdraw, command) = given_up(state)
        assert isinstance(command, commands.Release)
        more = state.assigned.keys() - state.owned
        return state, (*withdraw, commands.Release(command.op, state.revoking | more))

    return [(operations, "release", release), (rebalance, "release", wide)]


# ---- claiming -----------------------------------------------------------------------------------


def _owner_under_a_name_of_its_own() -> list[Patch]:
    real = paths.owner

    class Shim:
        def __getattr__(self, name: str) -> Any:
            return getattr(paths, name)

        @staticmethod
        def owner(group: str, tp: Any) -> str:
            return f"{real(group, tp)}-leader"

    shim = Shim()
    return [(operations, "paths", shim), (operations, "paths", shim)]


def _blockers_end_overlooked() -> list[Patch]:
    def owners_changed(state: Any, event: Any) -> Any:
        if not any(tp.topic == event.topic for tp in state.blocked.partitions):
            return state, ()
        return rebalance.owners_changed(state, event)

    changed = (machine.HANDLERS, (None, events.OwnersChanged), owners_changed)
    return [changed, *_blocked_until_the_back_off()]


def _blocked_until_the_back_off() -> list[Patch]:
    """Switch the deadline `blocked.ask_at` off: it retries a blocked claim without a watch."""
    return [(peers, "ask_after_s", lambda state: float("inf"))]


def _no_watch_on_owners() -> list[Patch]:
    real = executor.event_of_watch

    def meaning(fired: Any, settings: Any, now: float) -> Any:
        event = real(fired, settings, now)
        return None if isinstance(event, events.OwnersChanged) else event

    return [(loop, "event_of_watch", meaning), *_blocked_until_the_back_off()]


# ---- the group ----------------------------------------------------------------------------------


def _deaf_to_members() -> list[Patch]:
    return _deaf_to(events.Trigger.MEMBERS)


def _deaf_to_payloads() -> list[Patch]:
    return _deaf_to(events.Trigger.REGISTRATION)


def _deaf_to(trigger: events.Trigger) -> list[Patch]:
    real = executor.event_of_watch

    def meaning(fired: Any, settings: Any, now: float) -> Any:
        event = real(fired, settings, now)
        return None if getattr(event, "trigger", None) is trigger else event

    return [(loop, "event_of_watch", meaning)]


def _payload_during_the_read_missed() -> list[Patch]:
    """A malformed registration is watched, but what the second read finds is thrown away."""
    real = function(read_group, "_read_registrations")

    def reading(member: Any, requests: Any) -> Any:
        found = yield from real(member, requests)
        if not any(one.watch for one in requests) or isinstance(found, events.Denied):
            return found
        names = [one.path.rpartition("/")[2] for one in requests]
        return {}, dict.fromkeys(names, "not read again")

    return [(read_group, "_read_registrations", reading)]


def _known_by_name() -> list[Patch]:
    return [(group_snapshot.Known, "has_same_registrations", lambda self, now: True)]


def _fired_watch_forgotten() -> list[Patch]:
    return [(rebalance, "forget", lambda state, path: state)]


def _lost_topic_change() -> list[Patch]:
    return [(read_group, "_read_topics", _unwatched(function(read_group, "_read_topics")))]


def _unwatched(real: Any) -> Any:
    """Return an operation that sets none of its watches."""

    def operation(*arguments: Any) -> Any:
        running = real(*arguments)
        try:
            batch = next(running)
            while True:
                replies = yield [replace(one, watch=False) for one in batch]
                batch = running.send(replies)
        except StopIteration as end:
            return end.value

    return operation


# ---- offsets ------------------------------------------------------------------------------------


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
    def plan(ledger: Ledger, commit: Commit, *_: object) -> CommitPlan:
        entries = ledger.entries
        writes = {
            tp: (at.offset, entries[tp].version)
            for tp, at in commit.positions.items()
            if tp in entries
            and entries[tp].epoch == at.epoch
            and not entries[tp].error
            and entries[tp].value != at.offset
        }
        return CommitPlan(writes, {})

    return [(offset_ledger.Ledger, "plan", plan)]


def _one_further() -> list[Patch]:
    real = function(operations, "_stored")

    def stored(reply: Any, path: str) -> Any:
        found = real(reply, path)
        return found if found.value is None else replace(found, value=found.value + 1)

    return [(operations, "_stored", stored)]


def _edits_ignored() -> list[Patch]:
    real = commits.committed

    def committed(state: Any, outcome: Any, now: float) -> Any:
        return real(state, replace(outcome, marked=frozenset()), now)

    return [(commits, "committed", committed)]


def _no_automatic_commits_after_a_reconnect() -> list[Patch]:
    real = session.connected

    def connected(state: Any, event: Any) -> Any:
        first = state.session is None
        state, commands = real(state, event)
        return (state if first else replace(state, auto_commit_at=None)), commands

    return [(session, "connected", connected)]


def _commit_lost_with_the_connection() -> list[Patch]:
    real = commits.interrupted

    def interrupted(state: Any) -> Any:
        waiting = state.commits.queued
        after = real(state)
        return replace(after, commits=replace(after.commits, queued=waiting))

    return [(commits, "interrupted", interrupted)]


def _refusals_swallowed() -> list[Patch]:
    real = function(machine, "_denied")

    def denied(state: Any, outcome: Any, now: float) -> Any:
        state, _ = real(state, outcome, now)
        return state, ()

    return [(machine.OUTCOME_HANDLERS, (None, events.Denied), denied)]


# ---- the executor, the session and the member's turn ----------------------------------------


def _continues_in_the_next_session() -> list[Patch]:
    class Unending:
        def __init__(self, session: Any) -> None:
            self.submit = session.submit

        def is_over(self, session_id: int) -> bool:
            return False

    real = function(Executor, "_send")

    def send(self: Any, ticket: int, running: Any, batch: Any) -> None:
        session, self._session = self._session, Unending(self._session)
        real(self, ticket, running, batch)
        self._session = session

    return [(Executor, "_send", send)]


def _broken_is_an_answer() -> list[Patch]:
    return [(executor, "Code", _Shim(rq.Code, BROKEN=None))]


class _Shim:
    """An object with some attributes replaced."""

    def __init__(self, real: Any, **others: Any) -> None:
        self._real = real
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _broken_batch_sent_again() -> list[Patch]:
    real_send, real_resume = function(Executor, "_send"), Executor.resume

    def send(self: Any, ticket: int, running: Any, batch: Any) -> None:
        self.__dict__.setdefault("sent", {})[ticket] = batch
        real_send(self, ticket, running, batch)

    def resume(self: Any, resumed: Any, awaits: Any) -> Any:
        sent = self.__dict__.get("sent", {}).get(resumed.ticket)
        if sent and any(one.code is rq.Code.BROKEN for one in resumed.replies):
            self._session.submit(sent, executor.Done(resumed.ticket, self._post))
            return None
        return real_resume(self, resumed, lambda op: True)

    return [(Executor, "_send", send), (Executor, "resume", resume)]


def _first_session_for_ever() -> list[Patch]:
    real = Executor.start

    def start(self: Any, command: Any, session_id: int) -> None:
        real(self, command, self.__dict__.setdefault("first", session_id))

    return [(Executor, "start", start), (SimSession, "is_over", lambda self, session_id: False)]


def _disconnect_ignored() -> list[Patch]:
    def keeps(self: Any, item: Any) -> bool:
        return item == SessionChanged(None)

    return _items_dropped(keeps)


def _watch_during_an_operation_dropped() -> list[Patch]:
    def drops(self: Any, item: Any) -> bool:
        return isinstance(item, executor.WatchFired) and self.state.op is not None

    return _items_dropped(drops)


def _items_dropped(drops: Callable[[Any, Any], bool]) -> list[Patch]:
    real = function(MemberLoop, "_event")

    def event(self: Any, item: Any, now: float) -> Any:
        return None if drops(self, item) else real(self, item, now)

    return [(MemberLoop, "_event", event)]


def _nested_steps_last() -> list[Patch]:
    real, real_run = function(MemberLoop, "_step"), function(MemberLoop, "_run")

    def step(self: Any, event: Any) -> None:
        later: list[Any] = []

        def run(command: Any) -> None:
            if isinstance(command, commands.CollectPositions):
                later.append(command)
            else:
                real_run(self, command)

        self._run = run
        try:
            real(self, event)
        finally:
            del self._run
        for command in later:
            self._run(command)

    return [(MemberLoop, "_step", step)]


def _busy_inbox_starves_deadlines() -> list[Patch]:
    real = MemberLoop.take

    def take(self: Any, item: Any) -> None:
        due = self.due
        if item is None:
            real(self, item)
            return
        with patch.object(loop, "next_deadline", lambda state: float("inf")):
            self.due = float("inf")
            real(self, item)
        self.due = machine.next_deadline(self.state) if due != float("inf") else due

    return [(MemberLoop, "take", take)]


def _leaves_without_its_last_commit() -> list[Patch]:
    real = function(MemberLoop, "_event")

    def event(self: Any, item: Any, now: float) -> Any:
        if isinstance(item, LeaveRequested):
            self._run_on_streams(commands.Withdraw(self.state.serving))
        return real(self, item, now)

    return [(MemberLoop, "_event", event)]


# ---- the streams --------------------------------------------------------------------------------


def _position_after_the_message_in_hand() -> list[Patch]:
    return [(GrantedPartition, "position", lambda self, which: self.delivered)]


def _release_answered_at_once() -> list[Patch]:
    release = function(stream_partitions, "_Release")
    return [(release, "answer_if_idle", release.answer)]


def _interrupted_messages_lost() -> list[Patch]:
    return [(StreamFetcher, "restart", lambda self: None)]


def _stream_without_a_lease() -> list[Patch]:
    def opened(self: Any, deadline: float) -> None:
        self.deadline = float("inf")

    return [(LeaseGate, "open", opened), (LeaseGate, "shut", lambda self: None)]


def _revoked_messages_kept() -> list[Patch]:
    def stop_fetching(self: Any, tps: Any) -> None:
        if self._client is not None:
            self._client.unassign(tps)

    return [(StreamFetcher, "_stop_fetching", stop_fetching)]


def _out_of_range_is_the_other_end() -> list[Patch]:
    def resolve(self: Any, tps: Any, reset: AutoOffsetReset) -> Any:
        return real(
            self,
            tps,
            AutoOffsetReset.LARGEST
            if reset is AutoOffsetReset.SMALLEST
            else AutoOffsetReset.SMALLEST,
        )

    real = MemoryFetcher.resolve
    return [(MemoryFetcher, "resolve", resolve)]


# ---- the partitions of a query of Spark ---------------------------------------------------------


def _batch_in_flight_is_finished() -> list[Patch]:
    def positions(self: Any, which: Any) -> Any:
        held = {tp: (one.epoch, one.until or one.offset) for tp, one in self._held.items()}
        return {tp: Position(*at) for tp, at in held.items() if at[1] is not None}

    return [(ThreadPartitions, "positions", positions)]


def _release_during_a_batch() -> list[Patch]:
    return [(function(batch_member, "_PendingRelease"), "is_due", True)]


def _finish_of_a_new_grant() -> list[Patch]:
    def finish(self: Any, ends: Any) -> int:
        found = [self._held[tp] for tp in ends if tp in self._held]
        for one in found:
            one.offset, one.until = ends[one.tp], None
        return len(found)

    return [(ThreadPartitions, "finish", finish)]


def _batch_of_the_stored_offset() -> list[Patch]:
    real = ThreadPartitions.begin

    def begin(self: Any, ranges: Any) -> Any:
        return [one._replace(start=max(0, one.start - 1)) for one in real(self, ranges)]

    return [(ThreadPartitions, "begin", begin)]


# ---- the operator's tools -----------------------------------------------------------------------


def _apply_without_a_guard() -> list[Patch]:
    return [(apply.Guards, "_guard", lambda self, group, chunk: [])]


def _apply_without_compare_and_set() -> list[Patch]:
    def write(change: Any) -> Any:
        return rq.SetData(change.path, change.after.data, -1)

    return [(plan.Change, "write", property(write))]


def _apply_without_a_mark() -> list[Patch]:
    return [(apply.Guards, "_to_mark", lambda self, chunk: set())]


def _lost_reply_of_a_tool_is_a_refusal() -> list[Patch]:
    return [(plan.Change, "is_done", lambda self, node: False)]


# ---- callbacks ----------------------------------------------------------------------------------


def _loss_without_a_callback() -> list[Patch]:
    real = rebalance.announce

    def announce(state: Any, callback: Any, partitions: Any, op: int = 0) -> Any:
        if callback is commands.Callback.LOST:
            return state, ()
        return real(state, callback, partitions, op)

    return [(rebalance, "announce", announce)]


def _rebalance_after_the_last_callback() -> list[Patch]:
    real = machine.HANDLERS[None, events.CloseRequested]

    def close_requested(state: Any, event: Any) -> Any:
        state, calls = rebalance.announce(state, commands.Callback.REVOKED, state.announced)
        if not calls:
            return real(state, event)
        return state, (*calls, commands.CollectPositions(Purpose.AUTO, state.serving))

    return [(machine.HANDLERS, (None, events.CloseRequested), close_requested)]


MUTANTS = (
    *(Mutant(one.name, one.what, one.patches, one.who) for one in weakened.WEAKNESSES),
    Mutant(
        "lease from the reply",
        "the lease starts at the reply, not at the request",
        _lease_from_the_reply,
    ),
    Mutant("lease by a read", "a follower's answer to a read renews the lease", _lease_by_a_read),
    Mutant("lease too long", "the lease outlives the session", _whole_timeout),
    Mutant(
        "stale operations go on",
        "a claim continues after a new registration",
        _stale_operations_go_on,
        "an earlier version of zkconsumer",
    ),
    Mutant(
        "dead client stays dead",
        "a ZooKeeper client that ended for good is not recreated",
        _dead_client_stays_dead,
        "an earlier version of zkconsumer",
    ),
    Mutant(
        "lost data overlooked",
        "a client waits for ever for servers that have lost its session with their data",
        _lost_data_overlooked,
        "kazoo, ZooKeeper's own client, an earlier version of zkconsumer",
    ),
    Mutant(
        "gives up without an error",
        "a member whose credential is refused closes, and its streams raise no error",
        _gives_up_without_an_error,
    ),
    Mutant(
        "loss without a callback",
        "a member that loses partitions does not call on_lost",
        _loss_without_a_callback,
    ),
    Mutant(
        "rebalance after the last callback",
        "a member calls on_revoked for its shutdown, and goes on until the call has returned",
        _rebalance_after_the_last_callback,
        "an earlier version of zkconsumer",
    ),
    Mutant(
        "anybody's owner deleted",
        "a release deletes owner znodes of other members, too",
        _anybodys_owner_deleted,
        "Scala: KAFKA-262",
    ),
    Mutant(
        "owner under another name",
        "the names of owner znodes have another form",
        _owner_under_a_name_of_its_own,
        "pykafka: the leader's id",
    ),
    Mutant(
        "blocker's end overlooked",
        "a blocking znode's deletion during a claim is ignored",
        _blockers_end_overlooked,
        "an earlier version of zkconsumer",
    ),
    Mutant(
        "owners not watched",
        "a blocked claim is retried only after the back-off",
        _no_watch_on_owners,
        "Scala",
    ),
    Mutant("deaf to members", "joins and deaths of members are ignored", _deaf_to_members),
    Mutant(
        "deaf to payloads",
        "a registration that is created empty is not read again when it is filled",
        _deaf_to_payloads,
        "an earlier version of zkconsumer",
    ),
    Mutant(
        "payload during the read missed",
        "a payload that arrives between the read of a registration and its watch is overlooked",
        _payload_during_the_read_missed,
    ),
    Mutant(
        "registrations known by name",
        "a registration is read once for each name, although its member has started again",
        _known_by_name,
    ),
    Mutant(
        "fired watch forgotten",
        "a topic counts as unchanged although its watch has fired",
        _fired_watch_forgotten,
    ),
    Mutant(
        "topic not watched",
        "new partitions are ignored",
        _lost_topic_change,
        "Scala before 0.8.2 (KAFKA-1075)",
    ),
    Mutant(
        "commit checks the owner",
        "a commit checks the owner znode's version, not the offset's",
        _commit_checks_the_owner,
    ),
    Mutant("commit goes back", "a member's own lower position is written", _commit_goes_back),
    Mutant("one further", "reading resumes one message beyond the right position", _one_further),
    Mutant("edits ignored", "an operator's reset is handled as a zombie's write", _edits_ignored),
    Mutant("refusals swallowed", "a refusal by ZooKeeper is not reported", _refusals_swallowed),
    Mutant(
        "no commits after a reconnect",
        "automatic commits stop when the connection is replaced",
        _no_automatic_commits_after_a_reconnect,
    ),
    Mutant(
        "commit lost with the connection",
        "a commit that a cut interrupted is not repeated",
        _commit_lost_with_the_connection,
    ),
    Mutant(
        "operation outlives its session",
        "a commit in progress continues in the next session",
        _continues_in_the_next_session,
        "an earlier version of zkconsumer",
    ),
    Mutant("broken is an answer", "a lost reply does not end the operation", _broken_is_an_answer),
    Mutant(
        "broken batch sent again",
        "requests without a reply are sent again in the next session",
        _broken_batch_sent_again,
        "zkclient",
    ),
    Mutant(
        "first session for ever",
        "operations use the id of the member's first session",
        _first_session_for_ever,
    ),
    Mutant(
        "disconnect ignored",
        "the loop drops the report of a broken connection",
        _disconnect_ignored,
    ),
    Mutant(
        "watch dropped",
        "the loop drops a watch that fires during an operation",
        _watch_during_an_operation_dropped,
    ),
    Mutant(
        "nested steps last",
        "a nested step runs after the outer step's other commands",
        _nested_steps_last,
    ),
    Mutant(
        "deadline starved",
        "deadlines are ignored while the inbox has items",
        _busy_inbox_starves_deadlines,
    ),
    Mutant(
        "no last commit",
        "the streams are emptied before the leave collects positions",
        _leaves_without_its_last_commit,
    ),
    Mutant(
        "position after the unfinished message",
        "a stream's position covers the message that its user holds",
        _position_after_the_message_in_hand,
        "the JVM consumer",
    ),
    Mutant(
        "release answered at once",
        "a stream answers a release while its user holds a message",
        _release_answered_at_once,
    ),
    Mutant(
        "interrupted messages lost",
        "after an interrupt, a stream does not fetch again the messages that it had not handed out",
        _interrupted_messages_lost,
    ),
    Mutant(
        "stream without a lease",
        "a stream delivers messages after the lease has ended",
        _stream_without_a_lease,
    ),
    Mutant(
        "revoked messages kept",
        "a stream keeps the fetched messages of a revoked partition",
        _revoked_messages_kept,
    ),
    Mutant(
        "reset to the other end",
        "auto.offset.reset chooses the other end of the log",
        _out_of_range_is_the_other_end,
    ),
    Mutant(
        "batch in flight is finished",
        "a query's member commits the batch that is running",
        _batch_in_flight_is_finished,
    ),
    Mutant(
        "release during a batch",
        "a query's member releases a partition whose batch is running",
        _release_during_a_batch,
    ),
    Mutant(
        "batch of a former grant",
        "an old batch's end changes the position of a partition that was granted again meanwhile",
        _finish_of_a_new_grant,
    ),
    Mutant(
        "batch overlaps the one before",
        "a query's batch starts at the last message of the batch before",
        _batch_of_the_stored_offset,
    ),
    Mutant(
        "apply without a guard",
        "a plan is applied although members joined meanwhile",
        _apply_without_a_guard,
        "kafka-consumer-groups, which checks for members only once",
    ),
    Mutant(
        "apply without compare-and-set",
        "a plan overwrites what other clients wrote meanwhile",
        _apply_without_compare_and_set,
        "kafka.tools.ImportZkOffsets",
    ),
    Mutant(
        "apply without a mark",
        "members handle an operator's offset as a zombie's",
        _apply_without_a_mark,
        "kafka.tools.ImportZkOffsets",
    ),
    Mutant(
        "a tool's lost reply is a refusal",
        "a plan that was applied is reported as refused",
        _lost_reply_of_a_tool_is_a_refusal,
    ),
)


# ---- the hand-over between the user's thread and the member's thread -----------------------------


@dataclass(frozen=True)
class HandOverMutant:
    """A planted fault in the streams' code: the `edits` of its text, and the case that finds it."""

    name: str
    what: str
    case: str
    edits: tuple[handover.Edit, ...]

    def caught(self, max_s: float = float("inf")) -> handover.SearchResult:
        """Search the case until a promise is broken, or until no schedule is left."""
        case = next(one for one in handover.CASES if one.name == self.case)
        return handover.explore(case, handover.InstrumentedModules(self.edits), max_s=max_s)


_LAST_OF_A_RUN_UNFINISHED: Final = (
    "                state.unfinished = None  # FINISH\n                if (last",
    "                if (last",
)

HAND_OVER = (
    HandOverMutant(
        "LOOK before FINISH",
        "the user's thread reads `has_changed` before it finishes the message",
        "release of an unfinished message",
        (
            (
                "    state.unfinished = None  # FINISH\n                    if "
                "partitions.has_changed or clock() >= gate.deadline:  # LOOK\n",
                "    noticed = partitions.has_changed or clock() >= gate.deadline\n"
                "                    for one in self._fetcher.states.values():\n"
                "                        one.unfinished = None\n"
                "                    if noticed:\n",
            ),
            # Between two messages of one partition this order does no harm: CONFIRM finds the
            # revocation. So the mutant also moves the FINISH of a run's last message.
            _LAST_OF_A_RUN_UNFINISHED,
        ),
    ),
    HandOverMutant(
        "FINISH skipped at the end of a run",
        "a run's last message stays unfinished while the user gets another partition's message",
        "release of an unfinished message",
        (_LAST_OF_A_RUN_UNFINISHED,),
    ),
    HandOverMutant(
        "CONFIRM skipped",
        "a message is handed out without reading the grant",
        "release while iterating",
        (("if not state.granted:  # CONFIRM", "if False:"),),
    ),
    HandOverMutant(
        "CONFIRM before MARK",
        "the grant is read before the message is marked as unfinished",
        "release while iterating",
        (
            (
                "                    state.unfinished = message  # MARK\n"
                "                    if not state.granted:  # CONFIRM\n"
                "                        state.unfinished = None\n"
                "                        continue\n",
                "                    if not state.granted:\n"
                "                        continue\n"
                "                    state.unfinished = message\n",
            ),
        ),
    ),
    HandOverMutant(
        "CONFIRM of batches skipped",
        "a batch is handed out without reading the grants",
        "release while polling",
        (("if not state.granted}  # CONFIRM", "if False}"),),
    ),
    HandOverMutant(
        "revoked positions over markers",
        "the position of a revoked partition moves over the marker after a dropped message",
        "release before a marker",
        (
            (
                "at is not None and at < end and self.states[tp].granted:",
                "at is not None and at < end:",
            ),
        ),
    ),
    HandOverMutant(
        "INSPECT before REVOKE",
        "the member's thread reads `unfinished` before it revokes",
        "release while iterating",
        (
            (
                "            for state in states:\n"
                "                state.granted = False  # REVOKE\n",
                "            idle = all(state.unfinished is None for state in states)\n"
                "            for state in states:\n"
                "                state.granted = False\n",
            ),
            (
                "# REQUEST\n        release.answer_if_idle()\n",
                "# REQUEST\n        if idle:\n            release.answer()\n",
            ),
        ),
    ),
    HandOverMutant(
        "INSPECT skipped",
        "only the user's thread answers a release",
        "release while polling",
        (("# REQUEST\n        release.answer_if_idle()\n", "# REQUEST\n"),),
    ),
    HandOverMutant(
        "a dropped batch forgotten",
        "a release waits for a batch that was never handed out",
        "hand over and back, polling",
        (
            (
                "        if gone:\n            self._partitions.recheck_releases()\n        return",
                "        return",
            ),
        ),
    ),
    HandOverMutant(
        "REQUEST before the request",
        "`has_changed` is set before the release is queued",
        "release of both partitions",
        (
            (
                "        self._releases.append(release)\n        self.notify()  # REQUEST\n",
                "        self.notify()\n        self._releases.append(release)\n",
            ),
        ),
    ),
    HandOverMutant(
        "has_changed cleared after the read",
        "a change during the read is forgotten",
        "first grant wakes the user",
        (
            ("        self.has_changed = False\n        for state", "        for state"),
            (
                "            self.raise_failure()\n        return self._wanted.copy()\n",
                "            self.raise_failure()\n"
                "        wanted = self._wanted.copy()\n"
                "        self.has_changed = False\n"
                "        return wanted\n",
            ),
        ),
    ),
    HandOverMutant(
        "wake cleared after the read",
        "a wake-up between the read and the wait is lost",
        "first grant wakes the user",
        (
            (
                "        self.wake.clear()\n"
                "        if not self.has_changed:\n"
                "            self.wake.wait(timeout_s)",
                "        if not self.has_changed:\n"
                "            self.wake.clear()\n"
                "            self.wake.wait(timeout_s)",
            ),
        ),
    ),
    HandOverMutant(
        "release answered twice",
        "a thread reads the token and takes it afterwards",
        "release while iterating",
        (
            (
                "        try:\n"
                "            self._token.pop()\n"
                "        except IndexError:\n"
                "            return\n"
                "        self._done()\n",
                "        if self._token:\n"
                "            self._done()\n"
                "            self._token.clear()\n",
            ),
        ),
    ),
    HandOverMutant(
        "unfinished read before last",
        "a position reads the two fields in the wrong order",
        "positions",
        (
            (
                "        delivered = self.delivered\n        unfinished = self.unfinished\n",
                "        unfinished = self.unfinished\n        delivered = self.delivered\n",
            ),
        ),
    ),
    HandOverMutant(
        "seek reported too late",
        "the new position can be read before the seek is reported",
        "seek back",
        (
            ("            report(old.epoch)\n", ""),
            (
                "            self._wanted[tp] = new\n        self.notify()\n        return True\n",
                "            self._wanted[tp] = new\n"
                "            report(old.epoch)\n"
                "        self.notify()\n"
                "        return True\n",
            ),
        ),
    ),
    HandOverMutant(
        "old position seen after the seek",
        "the old position can be read while the seek is reported",
        "seek back",
        (("            old = self._wanted.pop(tp)\n", "            old = self._wanted[tp]\n"),),
    ),
    HandOverMutant(
        "a paused partition handed out",
        "a pause does not reach the fetcher",
        "pause and resume",
        (("is_paused = self._partitions.is_paused(state)", "is_paused = False"),),
    ),
    HandOverMutant(
        "the error lost at the end",
        "the iteration ends before it raises what ended the member",
        "the member ends by itself",
        (("                partitions.raise_failure()\n", ""),),
    ),
)
"""Faults that are planted into the sources of the streams.

FINISH, LOOK, MARK, CONFIRM, and REVOKE, REQUEST, INSPECT are the steps that the docstring of
`consumer.stream_partitions` describes.
"""
