"""Which broker coordinates a group, which partition a key gets, where replicas are placed."""

from __future__ import annotations

import pytest

from zkconsumer.errors import ConfigError
from zkconsumer.protocol.later.placement import (
    murmur2,
    partition_of_hash,
    partition_of_key,
    partition_of_masked_hash,
    place_replicas,
    rack_alternated,
    simple_placement,
)
from zkconsumer.protocol.model import coordinator_partition

SMALLEST_HASH = "polygenelubricants"  # The hash code of this name is the smallest 32-bit integer.


def test_the_coordinator_of_the_smallest_hash_code() -> None:
    """A group whose hash code is the smallest 32-bit integer gets partition 0."""
    assert coordinator_partition(SMALLEST_HASH) == 0


def test_murmur2_of_kafka_s_own_test() -> None:
    """The hash of "21" equals the one in Kafka's UtilsTest."""
    assert murmur2(b"21") == -973932308
    assert partition_of_key(b"21", 10) == (-973932308 & 0x7FFFFFFF) % 10


def test_releases_differ_for_negative_codes() -> None:
    """For a negative hash code, Kafka 0.8.0 masks the sign bit; 0.8.2 takes the absolute value."""
    assert (partition_of_hash(-7, 10), partition_of_masked_hash(-7, 10)) == (7, 1)
    assert partition_of_hash(7, 10) == partition_of_masked_hash(7, 10) == 7


def test_the_placement_that_adminutils_documents() -> None:
    """Ten partitions on five brokers are placed as the comment in AdminUtils describes."""
    found = place_replicas(range(5), 10, 3, start=0, shift=0)
    assert found[0] == [0, 1, 2]
    assert found[4] == [4, 0, 1]
    assert found[5] == [0, 2, 3]
    assert found[9] == [4, 1, 2]
    assert simple_placement(range(5), 10, 3)[5] == [0, 1, 2]


def test_racks_alternate() -> None:
    """Brokers that are neighbours in the placement list are in different racks."""
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert rack_alternated(racks, range(6)) == [0, 3, 1, 5, 4, 2]
    found = place_replicas(range(6), 7, 3, start=0, shift=0, racks=racks)
    assert found[0] == [0, 3, 1]
    assert found[6] == [0, 4, 2]


@pytest.mark.parametrize(
    ("brokers", "partitions", "replicas", "racks", "message"),
    [
        ([], 1, 1, None, "do not fit on 0 brokers"),
        ([1], 0, 1, None, "at least one partition"),
        ([1, 1], 1, 1, None, "occurs twice"),
        ([1, 2], 1, 3, None, "3 replicas do not fit"),
        ([1, 2], 1, 1, {1: "a"}, "some brokers have a rack"),
    ],
)
def test_bad_input(
    brokers: list[int], partitions: int, replicas: int, racks: dict[int, str] | None, message: str
) -> None:
    """A placement that Kafka refuses raises an error."""
    with pytest.raises(ConfigError, match=message):
        place_replicas(brokers, partitions, replicas, start=0, shift=0, racks=racks)
