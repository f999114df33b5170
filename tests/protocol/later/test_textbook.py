"""Examples of assignments from published texts about Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zkconsumer.protocol import assignors as old
from zkconsumer.protocol.java.text import java_hash
from zkconsumer.protocol.later.assignors import Assignor, assign
from zkconsumer.protocol.later.subscriptions import Subscription, Topic
from zkconsumer.protocol.model import TopicPartition

Members = Mapping[str, Sequence[str]]


def owners(
    assignor: Assignor, topics: Mapping[str, int], members: Members, before: Owners | None = None
) -> Owners:
    """Return partition -> member; `before` is the previous assignment."""
    owned = {
        member: tuple(one for one, owner in (before or {}).items() if owner == member)
        for member in members
    }
    found = assign(
        assignor,
        {name: Topic(count) for name, count in topics.items()},
        {
            member: Subscription(tuple(wanted), owned[member], 1 if before else -1)
            for member, wanted in members.items()
        },
    )
    return {one: member for member, partitions in found.items() for one in partitions}


Owners = dict[TopicPartition, str]


def ranges(found: Owners, topic: str) -> dict[str, tuple[int, int]]:
    """Return the first and last partition of a topic that each member owns."""
    numbers: dict[str, list[int]] = {}
    for (name, number), member in found.items():
        if name == topic:
            numbers.setdefault(member, []).append(number)
    return {member: (min(own), max(own)) for member, own in sorted(numbers.items())}


THREE = {member: ["t"] for member in ("c1", "c2", "c3")}


def test_range_of_ten() -> None:
    """Range divides 10 partitions into 0-3, 4-6 and 7-9."""
    found = owners(Assignor.RANGE, {"t": 10}, THREE)
    assert ranges(found, "t") == {"c1": (0, 3), "c2": (4, 6), "c3": (7, 9)}


def test_range_of_eleven() -> None:
    """Range divides 11 partitions into 0-3, 4-7 and 8-10."""
    found = owners(Assignor.RANGE, {"t": 11}, THREE)
    assert ranges(found, "t") == {"c1": (0, 3), "c2": (4, 7), "c3": (8, 10)}


def test_range_of_two_topics() -> None:
    """With two topics of 10 partitions, range gives c1 two more partitions than the others."""
    members = {member: ["t1", "t2"] for member in THREE}
    found = list(owners(Assignor.RANGE, {"t1": 10, "t2": 10}, members).values())
    assert [found.count(member) for member in members] == [8, 6, 6]


def test_range_is_uneven() -> None:
    """With k topics of four partitions, the first of three members gets k more partitions."""
    for k in range(1, 20):
        topics = {f"t{one}": 4 for one in range(k)}
        found = list(owners(Assignor.RANGE, topics, {one: list(topics) for one in THREE}).values())
        assert found.count("c1") - found.count("c2") == k
        assert found.count("c2") == found.count("c3")


def test_roundrobin_with_unequal_subscriptions() -> None:
    """Round-robin deals on from topic to topic, and skips members that do not subscribe."""
    members = {"c0": ["t0", "t1"], "c1": ["t1", "t2"], "c2": ["t2", "t0"]}
    found = owners(Assignor.ROUND_ROBIN, {"t0": 3, "t1": 2, "t2": 4}, members)
    assert {str(one): member for one, member in found.items()} == {
        **{"t0-0": "c0", "t0-1": "c2", "t0-2": "c0"},
        **{"t1-0": "c1", "t1-1": "c0"},
        **{"t2-0": "c1", "t2-1": "c2", "t2-2": "c1", "t2-3": "c2"},
    }


# The order in which the texts assign the partitions of T1 and T2 to C1, C2 and C3.
PRINTED = ["T2-0", "T1-3", "T1-0", "T2-1", "T1-2", "T2-2", "T1-1", "T2-3"]


def test_the_old_roundrobin_of_threads() -> None:
    """The old consumer deals partitions in the order of hash codes, unlike the printed example."""
    form = old.PartitionFormat.BRACKET
    order = sorted(
        (TopicPartition(topic, number) for topic in ("T1", "T2") for number in range(4)),
        key=lambda one: java_hash(form.value.format(**one._asdict())),
    )
    assert [str(one) for one in order] == sorted(PRINTED)
    found = old.assign(
        old.Strategy.ROUND_ROBIN,
        subscriptions={member: {"T1": 1, "T2": 1} for member in ("C1", "C2", "C3")},
        partitions={"T1": range(4), "T2": range(4)},
        key_form=form,
    )
    turn = ["C1-0", "C2-0", "C3-0"]
    assert [found[one] for one in order] == [turn[one % 3] for one in range(8)]


def test_sticky_against_roundrobin() -> None:
    """If C1 leaves, round-robin moves five partitions; sticky moves only those of C1."""
    topics = dict.fromkeys(["t0", "t1", "t2", "t3"], 2)
    before = {member: list(topics) for member in ("C0", "C1", "C2")}
    after = {member: list(topics) for member in ("C0", "C2")}
    moved = {}
    for assignor in (Assignor.ROUND_ROBIN, Assignor.STICKY):
        first = owners(assignor, topics, before)
        second = owners(assignor, topics, after, first)
        moved[assignor] = {one for one in first if first[one] != second[one]}
        lost = {one for one in first if first[one] == "C1"}
        assert lost <= moved[assignor]
        assert assignor is Assignor.ROUND_ROBIN or lost == moved[assignor]
    assert len(moved[Assignor.ROUND_ROBIN]) == 5
