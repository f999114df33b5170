"""zkconsumer members in a group with JVM consumers, compared with a group of JVM consumers.

`scenario.py` has the events: joins, clean leaves, SIGKILL of either kind, an expired session,
a process that is frozen for ten seconds, added partitions, a created topic. After each event, the
owners in both groups are those that the assignor computes, and all members get messages again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from mixed.scenario import ALL_OURS, MESSAGES, Outcome, Record
from support.members.evidence import Delivery, without_taken
from support.members.mixed_groups import SETTINGS, GroupSetup

from zkconsumer.protocol.model import TopicPartition

# A JVM member that loses its session commits its old offsets again in the next session. In a
# scenario this happens twice: after the expiry, and after the freeze. The commit may come before or
# after the next owner's commit, even in a group of JVM members only.
STALE_COMMITS = 2
# In a scenario two members are killed and one is frozen. The messages since the last commit of each
# are redelivered. Their number depends on the time since that commit. It is high if a new partition
# or topic already had many messages (335 messages in the last 0.2 s of a killed member).
STOPPED = 3
BACKLOG_S = 0.8

# Beside five other workers on two cores, a scenario with its reference took 115 to 593 s.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def outcome(setup: GroupSetup, plays: Callable[[GroupSetup], Outcome]) -> Outcome:
    """Return the outcome of the scenario with this set-up."""
    return plays(setup)


@pytest.fixture(scope="module")
def reference(outcome: Outcome) -> Record:
    """Return the results of the group of JVM members only."""
    assert outcome.reference is not None
    return outcome.reference


def test_what_a_killed_jvm_member_may_have_taken() -> None:
    """One message of each stream, the next one of a partition, is no loss; all others are."""
    orders = [TopicPartition("orders", number) for number in range(3)]
    of_killed = [Delivery(0.0, "a-jvm", tp, 0, 5) for tp in orders[:2]]
    assert without_taken({orders[0]: [6]}, of_killed) == {}
    assert without_taken({orders[0]: [6, 7]}, of_killed) == {orders[0]: [7]}
    assert without_taken({orders[0]: [5]}, of_killed) == {orders[0]: [5]}
    assert without_taken({orders[0]: [6], orders[1]: [6]}, of_killed) == {orders[1]: [6]}
    assert without_taken({orders[2]: [0]}, of_killed) == {orders[2]: [0]}


def test_nothing_is_lost(outcome: Outcome) -> None:
    """Despite all events, every message is delivered, and the stored offsets cover it."""
    assert outcome.messages >= MESSAGES
    assert outcome.flowed and all(outcome.flowed.values()), outcome.flowed
    assert outcome.mixed.undelivered == 0
    assert outcome.mixed.uncommitted == 0


def test_nothing_is_redelivered_between_zkconsumer_members(outcome: Outcome) -> None:
    """If a partition moves between zkconsumer members, no message is redelivered."""
    assert outcome.mixed.between_ours == 0


def test_no_more_is_repeated_than_among_jvm_members(outcome: Outcome, reference: Record) -> None:
    """No more messages are redelivered than in a group of JVM members only."""
    since_commit_s = SETTINGS["auto_commit_interval_s"] + BACKLOG_S
    chance = STOPPED * since_commit_s * outcome.messages / outcome.duration_s
    repeated, of_jvm = outcome.mixed.repeated, reference.repeated
    assert repeated.total() <= of_jvm.total() + chance, (repeated, of_jvm)


def test_no_zkconsumer_member_lowers_an_offset(outcome: Outcome) -> None:
    """Only stale writes of JVM members lower an offset."""
    moves = outcome.mixed.moves_back
    assert [move for move in moves if move.consumer in ALL_OURS] == []


def test_no_more_offsets_are_lowered_than_among_jvm_members(
    outcome: Outcome, reference: Record
) -> None:
    """Stale writes lower no more offsets than in a group of JVM members only."""
    moves, of_jvm = outcome.mixed.moves_back, reference.moves_back
    # The partitions vary: a JVM member's timer may commit an offset read before the partition
    # moved.
    partitions = {move.partition for move in moves}
    assert len(moves) <= max(len(of_jvm), STALE_COMMITS * len(partitions))


def test_no_jvm_member_fails_because_of_zkconsumer(outcome: Outcome, reference: Record) -> None:
    """A JVM member's rebalances fail only in the ways in which they fail among JVM members."""
    assert _kinds(outcome.mixed.trouble) <= _kinds(reference.trouble)


def test_the_history_equals_the_log_and_the_traces(outcome: Outcome) -> None:
    """Every table of `zkconsumer history` equals ZooKeeper's log and the members' traces."""
    for record in filter(None, (outcome.mixed, outcome.reference)):
        found = record.history
        assert (found.missed, found.invented) == ([], [])
        assert found.compared["ownership"] and found.compared["commits"]
    assert outcome.mixed.history.compared["members' claims"]


def _kinds(trouble: dict[str, list[str]]) -> set[str]:
    """Return the kinds of failures that were logged, without names and numbers."""
    said = {line for lines in trouble.values() for line in lines}
    return {re.sub(r"/consumers/\S+/|\[\S*\]|\d+", "", line) for line in said}
