"""The order of keys in `java.util.HashMap`. tests/golden/test_later.py compares with Java's
results."""

from __future__ import annotations

import itertools

from zkconsumer.protocol.java.hash_map import HashMap, HashSet, StringMap, compare_strings
from zkconsumer.protocol.java.text import java_hash


def test_order_of_a_small_map() -> None:
    """Keys are sorted by their bins, and in one bin by the time of their insertion."""
    numbers: HashSet[int] = HashSet(int, elements=[33, 17, 2, 1])
    assert list(numbers) == [33, 17, 1, 2]


def test_a_removed_key_returns_at_the_end_of_its_bin() -> None:
    """A key that is removed and inserted again becomes the last of its bin."""
    numbers: HashSet[int] = HashSet(int, elements=[1, 17])
    numbers.discard(1)
    numbers.discard(5)
    numbers.add(1)
    assert list(numbers) == [17, 1]


def test_a_cleared_map_keeps_its_table() -> None:
    """`clear` does not shrink the table: afterwards 16 and 1 are in different bins."""
    grown: HashMap[int, None] = HashMap(int)
    for number in range(13):
        grown[number] = None
    grown.clear()
    fresh: HashMap[int, None] = HashMap(int)
    for found in (grown, fresh):
        found[16] = found[1] = None
    assert (list(grown), list(fresh)) == ([1, 16], [16, 1])


def test_trees_hold_what_was_inserted() -> None:
    """When bins become trees, are split, or shrink to lists, no key is lost."""
    names = ["".join(parts) for parts in itertools.product(["Aa", "BB", "C#"], repeat=4)]
    assert len({java_hash(name) for name in names}) == 1
    found: StringMap[int] = StringMap()
    for place, name in enumerate(names):
        found[name] = place
    assert sorted(found) == sorted(names)
    assert list(found) != names
    for place, name in enumerate(names):
        assert found[name] == place
        del found[name]
        assert sorted(found) == sorted(names[place + 1 :])


def test_strings_are_compared_by_utf16_units() -> None:
    """A character beyond U+FFFF sorts before U+FFFF."""
    assert compare_strings("\U0001f600", "\uffff") < 0 < compare_strings("b", "a")
