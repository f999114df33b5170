"""Captured groups: what the JVM's assignors gave each member, or which exception they threw."""

from __future__ import annotations

from typing import Any

import pytest
from support.captures import captured

from zkconsumer.protocol.assignors import PartitionFormat, Strategy
from zkconsumer.protocol.group_assignment import (
    AssignmentFailure,
    GroupInput,
    MemberAssignment,
    assign_each_member,
    assign_group,
)
from zkconsumer.protocol.paths import thread_ids
from zkconsumer.protocol.releases import profile

RELEASES = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1")
CASES = {
    "documented_and_failures": 82,
    "java_regex": 92,
    "malformed_registrations": 82,
    "malformed_topics": 64,
    "range": 427,
    "roundrobin": 390,
    "roundrobin_hash_ties": 38,
}


def group_of(case: dict[str, Any]) -> GroupInput:
    """Return a captured case as a group in ZooKeeper."""

    def payload(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    registrations = case["registrations"]
    return GroupInput(
        Strategy(case["strategy"]),
        {one: payload(registrations[one]) for one in case["ids_child_order"]},
        {topic: payload(text) for topic, text in case["topics"].items()},
        exclude_internal=case["exclude_internal_topics"],
    )


def expected(case: dict[str, Any], release: str) -> dict[str, object]:
    """Return consumer -> its partitions, or the class of the exception that it threw."""
    (result,) = (r for r in case["results"] if release in r["releases"])
    errors = {one: error["class"] for one, error in (result.get("errors") or {}).items()}
    return result["assignment"] | errors


def shown(parts: dict[str, MemberAssignment | AssignmentFailure]) -> dict[str, object]:
    """Return zkconsumer's result in the format of the captures."""
    found: dict[str, object] = {}
    for consumer, part in parts.items():
        if isinstance(part, AssignmentFailure):
            found[consumer] = part.error
            continue
        topics: dict[str, dict[str, str]] = {}
        for tp, thread in part.items():
            topics.setdefault(tp.topic, {})[str(tp.partition)] = thread
        found[consumer] = topics
    return found


def has_ties(case: dict[str, Any], release: str) -> bool:
    """Return whether two partitions hash alike, so that Java's hash maps decide the order."""
    form = "dash" if profile(release).key_form is PartitionFormat.DASH else "bracket"
    return case["strategy"] == "roundrobin" and case["hash_collision"][form]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", CASES)
def test_each_member_computes_what_the_jvm_member_computed(name: str, release: str) -> None:
    """Each share or exception class equals what a JVM member of the same release computed."""
    differing = []
    for case in captured(f"assignor/{name}"):
        theirs = expected(case, release)
        ours = assign_each_member(group_of(case), profile(release), members=theirs)
        if not has_ties(case, release) and shown(ours) != theirs:
            differing.append((case["case"], case.get("name"), shown(ours), theirs))
    assert differing == []


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", CASES)
def test_the_assignment_of_a_group_is_that_of_its_members(name: str, release: str) -> None:
    """`assign_group` returns the shares of all members, or None if any member fails."""
    for case in captured(f"assignor/{name}"):
        group = group_of(case)
        parts = assign_each_member(group, profile(release)).values()
        shares = [part for part in parts if not isinstance(part, AssignmentFailure)]
        whole = {tp: thread for part in shares for tp, thread in part.items()}
        expected_whole = whole if len(shares) == len(parts) else None
        assert assign_group(group, profile(release)) == expected_whole, case["case"]


@pytest.mark.parametrize("release", RELEASES)
def test_equal_hashes_are_dealt_sanely(release: str) -> None:
    """If hashes are equal, the same members fail, and every partition has one owner."""
    dealt = 0
    for case in captured("assignor/roundrobin_hash_ties"):
        theirs = expected(case, release)
        parts = assign_each_member(group_of(case), profile(release))
        failed = {one for one, part in parts.items() if isinstance(part, AssignmentFailure)}
        assert failed == {one for one, part in theirs.items() if isinstance(part, str)}
        theirs_dealt = {
            (topic, number)
            for part in theirs.values()
            if isinstance(part, dict)
            for topic, numbers in part.items()
            for number in numbers
        }
        ours = [
            (tp.topic, str(tp.partition))
            for part in parts.values()
            if isinstance(part, dict)
            for tp in part
        ]
        assert len(ours) == len(set(ours))
        if profile(release).variant.value == "skipping":
            assert set(ours) == theirs_dealt
        for consumer, part in parts.items():
            own = thread_ids(consumer, 100)
            assert isinstance(part, AssignmentFailure) or set(part.values()) <= set(own)
        dealt += bool(ours)
    assert dealt > 10


def test_all_captures_are_there() -> None:
    """Each captured file has all its cases."""
    assert {name: sum(1 for _ in captured(f"assignor/{name}")) for name in CASES} == CASES
