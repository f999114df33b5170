"""The releases of a group's members, detected from the owner znodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from zkconsumer.protocol.assignors import PartitionFormat, Strategy
from zkconsumer.protocol.group_assignment import (
    AssignmentFailure,
    GroupInput,
    MemberAssignment,
    assign_each_member,
)
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration
from zkconsumer.protocol.release_detection import detect, nearest
from zkconsumer.protocol.releases import DEFAULT, RELEASES, Profile, profile

MIXED = Path(__file__).parents[1] / "golden" / "mixed.jsonl"
ROUND_ROBIN, RANGE = Strategy.ROUND_ROBIN, Strategy.RANGE
INTERNAL = "__consumer_offsets"


def group(
    strategy: Strategy, members: Mapping[str, Registration], sizes: Mapping[str, int]
) -> GroupInput:
    """Return a group whose members registered with the default layout."""
    return GroupInput(
        strategy,
        {name: encode_registration(one, profile=DEFAULT) for name, one in members.items()},
        {
            topic: json.dumps({"partitions": {str(n): [0] for n in range(size)}}).encode()
            for topic, size in sizes.items()
        },
    )


def static(**counts: int) -> Registration:
    """Return the registration of a member that names its topics."""
    return Registration(counts, timestamp_ms=1)


def wildcard(regex: str) -> Registration:
    """Return the registration of a member with a whitelist."""
    return Registration({regex: 1}, Pattern.WHITE_LIST, 1)


def part(one: GroupInput, consumer: str, release: Profile) -> MemberAssignment:
    """Return the partitions that a member of this release would own."""
    found = assign_each_member(one, release)[consumer]
    assert not isinstance(found, AssignmentFailure)
    return found


def all_parts(one: GroupInput, release: Profile) -> MemberAssignment:
    """Return the partitions that each member of this release would own."""
    return owned(*(part(one, consumer, release) for consumer in one.registrations))


SIZES = {"events": 11, "logs": 11}
BOTH = static(events=2, logs=2)
TWO = group(ROUND_ROBIN, {"g_a": BOTH, "g_b": BOTH}, SIZES)
OLD, NEW = profile("0.11"), profile("1.1.1")


@pytest.mark.parametrize("release", [one for one in RELEASES if profile(one).internal_topics])
def test_a_settled_round_robin_group_shows_its_order(release: str) -> None:
    """A round-robin group's owner znodes show whether its members are 0.8.2-0.11 or 1.0-1.1."""
    found = detect(TWO, all_parts(TWO, profile(release)))
    assert found.profile.key_form is profile(release).key_form
    assert found.profile.release == ("1.0-1.1" if release[0] == "1" else "0.8.2-0.11")
    assert found.profile.release in found.reason
    assert not found.disagreements


def test_a_detected_profile_keeps_the_default_format() -> None:
    """A detected profile writes and parses registrations as the default profile does."""
    found = detect(TWO, all_parts(TWO, NEW)).profile
    assert found.layout is DEFAULT.layout
    assert found.parser is DEFAULT.parser
    assert found.key_form is PartitionFormat.DASH


DEFAULTS: list[tuple[str, GroupInput, MemberAssignment]] = [
    ("no member owns", TWO, {}),
    (
        "all releases",
        group(RANGE, {"g_a": static(t=1)}, {"t": 2}),
        {TopicPartition("t", n): "g_a-0" for n in range(2)},
    ),
    ("not registered", TWO, {TopicPartition("logs", 0): "g_gone-0"}),
    ("no release explains", TWO, {TopicPartition("logs", 0): "g_a-0"}),
    ("cannot be read", GroupInput(RANGE, {"g_a": b"x"}, {}), {TopicPartition("t", 0): "g_a-0"}),
]


@pytest.mark.parametrize(("reason", "one", "owners"), DEFAULTS, ids=lambda value: str(value)[:20])
def test_the_default_without_evidence(
    reason: str, one: GroupInput, owners: MemberAssignment
) -> None:
    """If the owner znodes do not show a release, the result is the default, with the reason."""
    found = detect(one, owners)
    assert found.profile is DEFAULT
    assert reason in found.reason
    assert not found.disagreements


def test_an_owned_internal_topic_means_0_10_or_before() -> None:
    """If a member with a pattern owns partitions of __transaction_state, it is 0.10 or older."""
    one = group(RANGE, {"g_a": wildcard(".*")}, {"t": 1, "__transaction_state": 2, INTERNAL: 2})
    found = detect(one, all_parts(one, profile("0.10.2.2")))
    assert found.profile.internal_topics == {INTERNAL}
    assert detect(one, all_parts(one, OLD)).profile is DEFAULT


def owned(*held: MemberAssignment) -> MemberAssignment:
    """Return the owner znodes of members that each own what they compute."""
    return {tp: thread for of_member in held for tp, thread in of_member.items()}


def test_round_robin_across_1_0() -> None:
    """If a joining member owns nothing since its round-robin order differs, it is reported."""
    found = detect(TWO, part(TWO, "g_a", OLD))
    assert list(found.disagreements) == ["g_b"]
    assert "1.0-1.1" in found.disagreements["g_b"]
    assert found.profile is DEFAULT


def test_members_with_another_order_are_reported() -> None:
    """If no member uses this member's round-robin order, all members are reported."""
    found = detect(TWO, part(TWO, "g_a", NEW))
    assert "this member follows roundrobin of 0.8.2-0.11" in found.disagreements["g_a"]
    assert "0.8.2-0.11" in found.disagreements["g_b"]


def test_members_of_the_own_release_are_not_reported() -> None:
    """A member of 1.1.1 reports members that sort as 0.11 does, but none that sort as 1.1.1."""
    assert not detect(TWO, all_parts(TWO, NEW), own=NEW).disagreements
    found = detect(TWO, part(TWO, "g_a", OLD), own=NEW)
    assert "this member follows roundrobin of 1.1.1" in found.disagreements["g_a"]


def test_unequal_exclusion_of_internal_topics() -> None:
    """A member that subscribes to internal topics is reported if the others exclude them."""
    one = group(RANGE, {"g_a": wildcard(".*"), "g_b": wildcard("t|_.*")}, {"t": 2, INTERNAL: 2})
    taking = assign_each_member(
        GroupInput(RANGE, one.registrations, one.topics, exclude_internal=False), OLD
    )
    of_b = taking["g_b"]
    assert not isinstance(of_b, AssignmentFailure)
    found = detect(one, owned(part(one, "g_a", OLD), of_b))
    assert list(found.disagreements) == ["g_b"]
    assert "exclude.internal.topics" in found.disagreements["g_b"]


def test_another_strategy() -> None:
    """If a group uses another strategy than this member, the owner znodes show it."""
    ranged = GroupInput(RANGE, TWO.registrations, TWO.topics)
    found = detect(TWO, all_parts(ranged, OLD))
    assert set(found.disagreements) == {"g_a", "g_b"}
    assert "range" in found.disagreements["g_a"]


@pytest.mark.parametrize(
    ("key", "said"),
    [(r"t\\\\d+", "escaped twice"), (r"t\.\\d", "one thing to 0.8-0.11"), (r"t\\d+", "")],
)
def test_regexes_that_were_written_badly(key: str, said: str) -> None:
    """Doubled escapes and ambiguous filters are reported even if there are no owners."""
    payload = f'{{"subscription":{{"{key}":1}},"pattern":"white_list"}}'.encode()
    found = detect(GroupInput(RANGE, {"g_a": payload}, {}), {})
    assert said in found.disagreements.get("g_a", "")
    assert bool(found.disagreements) is bool(said)


def _captured() -> list[dict[str, Any]]:
    return [json.loads(line) for line in MIXED.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("case", _captured(), ids=lambda case: ",".join(case["members"]))
def test_groups_of_real_members(case: dict[str, Any]) -> None:
    """In captures of real groups, members that failed or that follow other rules are reported."""
    owners = {
        TopicPartition(name, int(number)): thread
        for key, thread in case["owners"].items()
        for name, _, number in [key.rpartition("-")]
    }
    sizes = {"goldmix": 7, "goldmixb": 12, "goldrr-t": 11}
    members = {
        name: Registration(dict(one["subscription"]), timestamp_ms=1)
        for name, one in case["members"].items()
    }
    found = detect(group(Strategy(case["strategy"]), members, sizes), owners)
    last = list(members)[-1]
    unlike_us = [name for name, one in case["members"].items() if one["release"] == "1.1.1"]
    assert set(found.disagreements) == ({last, *unlike_us} if case["failed"] else set())


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("release", ["0.8.2.2", "1.1.1"])
def test_the_nearest_rules_explain_a_settled_group(strategy: Strategy, release: str) -> None:
    """Whatever rules are assumed at first, the detected rules explain every owner."""
    settled = group(strategy, {"g_a": BOTH, "g_b": BOTH}, SIZES)
    owners = all_parts(settled, profile(release))
    for assumed in Strategy:
        found = nearest(group(assumed, {"g_a": BOTH, "g_b": BOTH}, SIZES), owners)
        assert found.strategy is strategy
        assert owned(*(one for one in found.parts.values() if isinstance(one, dict))) == owners


def test_if_no_rules_fit_the_rules_of_most_members_are_returned() -> None:
    """If no rules explain all owners, those for most owners win, or without owners the group's."""
    owners = part(TWO, "g_a", NEW) | {min(part(TWO, "g_b", NEW)): "g_gone-0"}
    found = nearest(TWO, owners)
    assert (found.strategy, found.profile.key_form) == (ROUND_ROBIN, PartitionFormat.DASH)
    assert nearest(TWO, {}).strategy is ROUND_ROBIN
