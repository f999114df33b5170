"""The paths of znodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.errors import InvalidNameError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import ParsedPath, ZnodeKind

TP = TopicPartition("orders", 7)
EVERY = {
    paths.ids("g"): ParsedPath(ZnodeKind.IDS, "g"),
    paths.member("g", "g_a b"): ParsedPath(ZnodeKind.MEMBER, "g", "g_a b"),
    paths.owners_of("g", "orders"): ParsedPath(ZnodeKind.OWNERS_OF, "g", "orders"),
    paths.owner("g", TP): ParsedPath(ZnodeKind.OWNER, "g", "orders", 7),
    paths.offsets_of("g", "orders"): ParsedPath(ZnodeKind.OFFSETS_OF, "g", "orders"),
    paths.offset("g", TP): ParsedPath(ZnodeKind.OFFSET, "g", "orders", 7),
    paths.edits("g"): ParsedPath(ZnodeKind.EDITS, "g"),
    paths.BROKER_IDS: ParsedPath(ZnodeKind.BROKER_IDS),
    paths.broker(3): ParsedPath(ZnodeKind.BROKER, "", "3"),
    paths.TOPICS: ParsedPath(ZnodeKind.TOPICS),
    paths.topic("orders"): ParsedPath(ZnodeKind.TOPIC, "", "orders"),
}
OTHERS = ["", "/", "/consumers", "/consumers/g", "/brokers", "/brokers/ids/1/x", "/controller"]
OTHERS += [paths.owners("g"), paths.offsets("g"), paths.edit("g", 1), "consumers/g/ids"]
NUMBERS = ("", "x", "01", "+1", "-0", "٣", "2147483648", "1/2")
OTHERS += [f"/consumers/g/owners/t/{number}" for number in NUMBERS]


@pytest.mark.parametrize(("path", "located"), EVERY.items())
def test_locate_undoes_the_builders(path: str, located: ParsedPath) -> None:
    """`locate` recognises every path that a builder returns."""
    assert paths.locate(path) == located


@pytest.mark.parametrize("path", OTHERS, ids=ascii)
def test_locate_recognises_unknown_paths(path: str) -> None:
    """Unknown paths, and partition numbers in another notation, have the kind OTHER."""
    assert paths.locate(path) == ParsedPath(ZnodeKind.OTHER)


@given(st.text() | st.lists(st.text(), max_size=6).map("/".join))
def test_locate_never_raises(path: str) -> None:
    """For any text `locate` returns a kind, at least OTHER."""
    assert isinstance(paths.locate(path), ParsedPath)


@given(st.integers(-(2**31), 2**31 - 1))
def test_every_partition_is_found_again(partition: int) -> None:
    """Every partition number that the JVM accepts in a topic can be read back from its path."""
    tp = TopicPartition("t", partition)
    assert paths.locate(paths.owner("g", tp)).partition == partition


@pytest.mark.parametrize("name", ["g", "my.group_3-x", "...", "G" * 249])
def test_legal_names(name: str) -> None:
    """Names with legal characters and lengths are returned unchanged."""
    assert paths.validate_group(name) == name
    assert paths.validate_topic(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "g\n", "G:1", "G" * 250, "\0"])
def test_illegal_names(name: str) -> None:
    """The error for an illegal name contains the name and the allowed characters."""
    for validate in (paths.validate_group, paths.validate_topic):
        with pytest.raises(InvalidNameError, match="use 1 to 249"):
            validate(name)


ODD = ["a b", "a,b", "a:b", 'a"b', "\u00a0", "\ud7ff", "\uf900", "\uffe0"]


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_odd_consumer_ids_pass(name: str) -> None:
    """A consumer id may contain every character that ZooKeeper accepts, as in the captures."""
    assert paths.validate_consumer_id(name) == name


REFUSED = ["", ".", "..", "a/b", "\0", "\x1f", "\x7f", "\x9f"]
REFUSED += ["\ud800", "\ue000", "\uf8ff", "\ufff0", "\U0001f600"]


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_impossible_consumer_ids_are_refused(name: str) -> None:
    """A consumer id that cannot be a znode's name is rejected before any request is sent."""
    with pytest.raises(InvalidNameError, match="consumer id"):
        paths.validate_consumer_id(name)


def test_topics_of_two_levels() -> None:
    """As in the JVM, topic a/b is a path of two levels; empty levels and ".." are rejected."""
    assert paths.znode_fault("a/b") == ""
    for name in ("a//b", "/a", "a/", "a/../b"):
        assert paths.znode_fault(name)
