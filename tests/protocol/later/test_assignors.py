"""The promises of the later assignors, and the inputs that they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from zkconsumer.errors import ConfigError
from zkconsumer.protocol.later.cases import MAX_PARTITIONS, read_case


def member(**fields: Any) -> dict[str, Any]:
    """Return a member of a group."""
    return {
        "topics": ["t"],
        "instance": None,
        "rack": None,
        "owned": {},
        "generation": -1,
        **fields,
    }


def result(assignor: str, topics: dict[str, Any], members: dict[str, Any]) -> dict[str, Any]:
    """Return the assignment of a group."""
    case = {"case": 1, "assignor": assignor, "topics": topics, "members": members}
    found: dict[str, Any] = read_case(case, "here").result()["assignment"]
    return found


def topic(partitions: int, racks: list[list[str]] | None = None) -> dict[str, Any]:
    """Return a topic of a group."""
    return {"t": {"partitions": partitions, "racks": racks}}


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_static_members_come_first(assignor: str) -> None:
    """Members with an instance id come first, sorted by these ids."""
    members = {"a": member(), "b": member(instance="2"), "c": member(instance="1")}
    found = result(assignor, topic(3), members)
    assert found == {"a": {"t": [2]}, "b": {"t": [1]}, "c": {"t": [0]}}


def test_sticky_ignores_instances() -> None:
    """The sticky assignor sorts members only by their member ids."""
    members = {"a": member(), "b": member(instance="1")}
    assert result("sticky", topic(2), members) == {"a": {"t": [0]}, "b": {"t": [1]}}


def test_range_matches_racks() -> None:
    """Range prefers to assign a partition to a member in a rack that has a replica of it."""
    members = {"a": member(rack="east"), "b": member(rack="west")}
    racks = [["west"], ["west"], ["east"], ["east"]]
    assert result("range", topic(4, racks), members) == {"a": {"t": [2, 3]}, "b": {"t": [0, 1]}}


def test_racks_of_all_partitions_do_not_decide() -> None:
    """If each partition has a replica in each rack, range ignores the racks."""
    members = {"a": member(rack="east"), "b": member(rack="west")}
    both = ["east", "west"]
    assert result("range", topic(2, [both, both]), members) == {"a": {"t": [0]}, "b": {"t": [1]}}


def test_cooperative_withholds_owned_partitions() -> None:
    """Cooperative-sticky assigns a partition to no member while its owner must still revoke it."""
    members = {"a": member(owned={"t": [0, 1]}, generation=1), "b": member()}
    found = result("cooperative-sticky", topic(2), members)
    assert found == {"a": {"t": [0]}, "b": {}}
    members = {"a": member(owned={"t": [0]}, generation=2), "b": member(generation=2)}
    assert result("cooperative-sticky", topic(2), members) == {"a": {"t": [0]}, "b": {"t": [1]}}


def test_the_higher_generation_keeps_a_partition() -> None:
    """If two members claim a partition, the member with the higher generation keeps it."""
    for older, newer in (("a", "b"), ("b", "a")):
        members = {
            older: member(owned={"t": [0, 1]}, generation=4),
            newer: member(owned={"t": [0]}, generation=5),
        }
        assert result("sticky", topic(2), members) == {older: {"t": [1]}, newer: {"t": [0]}}


def test_uniform_keeps_the_target_assignment() -> None:
    """Uniform takes from a member only the partitions that exceed the member's quota."""
    members = {"a": member(owned={"t": [0, 1, 2, 3]}), "b": member()}
    assert result("uniform", topic(4), members) == {"a": {"t": [0, 1]}, "b": {"t": [2, 3]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"assignor": "strict"}, "assignor 'strict' is none of range, roundrobin,"),
        ({"members": {}}, "the case has no members"),
        ({"topics": []}, "topics is not an object of objects"),
        ({"topics": topic(10**6)}, "the case has 1000000 partitions"),
        ({"topics": topic(-1)}, "not a number of 0 or more"),
        ({"topics": topic(2, [["a"]])}, "not one list for each partition"),
        ({"topics": {"t": {"partitions": 1, "id": "short"}}}, "is not a topic id"),
        ({"members": {"m": member(topics="t")}}, "topics of member 'm' are not a list"),
        ({"members": {"m": member(owned={"t": 1})}}, "owned of member 'm'"),
        ({"members": {"m": member(owned=[])}}, ""),
        ({"members": {"m": member(generation="5")}}, "generation of member 'm'"),
        ({"members": {"m": member(rack=5)}}, "rack or the instance of member 'm'"),
    ],
)
def test_bad_cases(change: dict[str, Any], message: str) -> None:
    """For an invalid input, one sentence names the place and the wrong field."""
    case = {
        "case": 1,
        "assignor": "range",
        "topics": topic(1),
        "members": {"m": member()},
        **change,
    }
    if not message:
        read_case(case, "file:1")
        return
    with pytest.raises(ConfigError, match=message) as error:
        read_case(case, "file:1")
    assert error.value.where == "file:1"


def test_fields_may_be_left_out() -> None:
    """A member needs only topics; every other field may be missing or null."""
    bare = {"topics": ["t"]}
    nulls = {**bare, "instance": None, "rack": None, "owned": None, "generation": None}
    for one in (bare, nulls):
        assert result("sticky", topic(1), {"m": one}) == {"m": {"t": [0]}}


def test_the_largest_case() -> None:
    """The largest input that is permitted can be computed."""
    members = {"a": member(), "b": member()}
    found = result("cooperative-sticky", topic(MAX_PARTITIONS), members)
    assert [len(one["t"]) for one in found.values()] == [MAX_PARTITIONS // 2] * 2
