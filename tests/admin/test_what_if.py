"""What-if: members join or leave, topics grow, and the result lists the moved partitions."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from zkconsumer.admin.what_if import PredictedOwner, places, what_if
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import AssignmentFailure, GroupInput, assign_each_member
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import decode_topic
from zkconsumer.protocol.registrations import (
    Pattern,
    Registration,
    decode_registration,
    encode_registration,
)
from zkconsumer.protocol.releases import DEFAULT


def group(*registrations: Registration, **sizes: int) -> GroupInput:
    """Return the members g_a, g_b, ... and topics of these sizes."""
    return GroupInput(
        Strategy.RANGE,
        {
            f"g_{letter}": encode_registration(one)
            for letter, one in zip("abc", registrations, strict=False)
        },
        {
            topic: json.dumps({"partitions": {str(n): [0] for n in range(size)}}).encode()
            for topic, size in sizes.items()
        },
    )


def owned(one: GroupInput) -> Counter[str]:
    """Return the number of partitions that each thread would own."""
    parts = assign_each_member(one, DEFAULT)
    return Counter(
        thread
        for part in parts.values()
        if not isinstance(part, AssignmentFailure)
        for thread in part.values()
    )


STATIC = Registration({"t": 1}, timestamp_ms=1)
WILD = Registration({"t.*": 1}, Pattern.WHITE_LIST, 1)


def test_a_member_like_the_others() -> None:
    """+MEMBER:N adds a member with the group's topics or pattern, and with N threads."""
    assert owned(what_if(group(STATIC, t=6), ["+g_x:2"])) == {"g_a-0": 2, "g_x-0": 2, "g_x-1": 2}
    wild = what_if(group(WILD, WILD, t=6, t2=3), ["+g_x:1"])
    found = decode_registration(wild.registrations["g_x"], where="")
    assert (found.pattern, dict(found.subscription)) == (Pattern.WHITE_LIST, {"t.*": 1})
    assert owned(wild) == {"g_a-0": 3, "g_b-0": 3, "g_x-0": 3}


def test_changes_are_applied_in_their_order() -> None:
    """Joins with topics, leaves and grown topics are applied in the order of the options."""
    then = what_if(group(STATIC, STATIC, t=4), ["-g_a", "+g_x:t=1,u=2", "t=+4", "u=+2"])
    assert owned(then) == {"g_b-0": 4, "g_x-0": 5, "g_x-1": 1}
    assert decode_topic(then.topics["t"], where="") == tuple(range(8))


def test_new_partitions_follow_the_last_one() -> None:
    """New partitions are numbered from the highest number on, even if other numbers are missing."""
    gaps = group(STATIC)
    gaps = GroupInput(gaps.strategy, gaps.registrations, {"t": b'{"partitions":{"0":[0],"5":[0]}}'})
    assert decode_topic(what_if(gaps, ["t=+2"]).topics["t"], where="") == (0, 5, 6, 7)


@pytest.mark.parametrize(
    "wish",
    [
        "",
        "x",
        "+",
        "+x",
        "+x:",
        "+x:0",
        "+x:-1",
        "+x:t=x",
        "+:2",
        "-",
        "-nobody",
        "t=8",
        "t=+0",
        "t=+",
        "a/b=+1",
        "t=+999999",
        "+a/b:1",
        "+x:999999999",
    ],
)
def test_an_impossible_change_is_refused(wish: str) -> None:
    """Each change that is impossible raises a ConfigError."""
    with pytest.raises(ConfigError):
        what_if(group(STATIC, t=2), [wish])


def test_a_group_without_subscriptions() -> None:
    """If the group has no subscriptions, a member that joins must name its topics."""
    with pytest.raises(ConfigError, match="no member has a subscription"):
        what_if(group(t=2), ["+x:1"])
    assert owned(what_if(group(t=2), ["+x:t=1"])) == {"x-0": 2}


def test_a_move_has_two_owners() -> None:
    """A move has an old and a new owner; to gain or to lose an owner is not a move."""
    now = {TopicPartition("t", n): "g_a-0" for n in (0, 1, 9)}
    found = places(assign_each_member(group(STATIC, STATIC, t=4), DEFAULT), now)
    assert found == [
        PredictedOwner(TopicPartition("t", 0), "g_a-0", "g_a-0"),
        PredictedOwner(TopicPartition("t", 1), "g_a-0", "g_a-0"),
        PredictedOwner(TopicPartition("t", 2), None, "g_b-0"),
        PredictedOwner(TopicPartition("t", 3), None, "g_b-0"),
        PredictedOwner(TopicPartition("t", 9), "g_a-0", None),
    ]
    assert not any(one.moves for one in found)
    assert PredictedOwner(TopicPartition("t", 0), "g_b-0", "g_a-0").moves
