"""The operator's tools on each ZooKeeper release, without the right to write."""

from __future__ import annotations

from cli.test_reading import (
    test_a_malformed_topic,
    test_fail_above,
    test_groups_show,
    test_lag,
    test_offsets_get,
    test_reading_never_writes,
    world,
)

__all__ = [
    "test_a_malformed_topic",
    "test_fail_above",
    "test_groups_show",
    "test_lag",
    "test_offsets_get",
    "test_reading_never_writes",
    "world",
]
