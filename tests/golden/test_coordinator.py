"""The answers of Kafka 3.9.1's group coordinator to scripts of requests, one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

import pytest
from support.captures import captured
from support.jvm.coordinator_scripts import Machine, replayed
from support.jvm.live_coordinator import scripts

from zkconsumer.later import group_phases
from zkconsumer.later.consumer_group import ConsumerGroupPhase
from zkconsumer.later.group_phases import Cause, GroupPhase
from zkconsumer.protocol.later.messages import Error

FRESH_SCRIPTS = 150


@cache
def captured_scripts() -> list[dict[str, Any]]:
    """Return the captured scripts."""
    return list(captured("later/coordinator"))


def answers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Return every event of the captured scripts, with each answer that it caused."""
    for script in captured_scripts():
        for event, found, _ in script["steps"]:
            for answer in found.values():
                yield event, answer


def test_captured_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine answers as Kafka's coordinator did, and makes each usual change of phase."""
    made: set[tuple[GroupPhase, Cause, GroupPhase]] = set()
    check = group_phases.check_change

    def note(before: GroupPhase, causes: Collection[Cause], after: GroupPhase) -> None:
        made.update((before, cause, after) for cause in causes)
        check(before, causes, after)

    monkeypatch.setattr(group_phases, "check_change", note)
    machine = Machine()
    assert [found for script in captured_scripts() if (found := replayed(machine, script))] == []
    usual = {
        (before, cause, after)
        for row in group_phases.MAIN_PATH
        for before in row.before
        for cause in row.causes
        for after in row.after
        if cause is not Cause.EXPIRY  # This event deletes the group, which then has no phase.
    }
    assert usual - made == set()


def test_the_captured_scripts_are_various() -> None:
    """There are at least 500 scripts, with every error of a coordinator and every group phase."""
    assert len(captured_scripts()) >= 500
    errors = Counter(answer.get("error", 0) for _, answer in answers())
    assert {
        *(Error.NONE, Error.UNKNOWN_SERVER_ERROR, Error.COORDINATOR_LOAD_IN_PROGRESS),
        *(Error.NOT_COORDINATOR, Error.ILLEGAL_GENERATION, Error.INCONSISTENT_GROUP_PROTOCOL),
        *(Error.UNKNOWN_MEMBER_ID, Error.INVALID_SESSION_TIMEOUT, Error.REBALANCE_IN_PROGRESS),
        *(Error.GROUP_ID_NOT_FOUND, Error.MEMBER_ID_REQUIRED, Error.GROUP_MAX_SIZE_REACHED),
        *(Error.FENCED_INSTANCE_ID, Error.INVALID_REQUEST, Error.FENCED_MEMBER_EPOCH),
        *(Error.UNRELEASED_INSTANCE_ID, Error.UNSUPPORTED_ASSIGNOR, Error.STALE_MEMBER_EPOCH),
    } <= set(errors)
    states = Counter(
        state["state"]
        for script in captured_scripts()
        for _, _, state in script["steps"]
        if state != "=" and "state" in state
    )
    assert {phase.value for phase in (*GroupPhase, *ConsumerGroupPhase)} <= set(states)


def test_fresh_scripts() -> None:
    """To new scripts, Kafka's coordinator, run now, gives the same answers as the machine."""
    seed = random.SystemRandom().randrange(2**40)
    machine = Machine()
    found = [replayed(machine, one) for one in scripts(range(seed, seed + FRESH_SCRIPTS))]
    assert [one for one in found if one] == []
