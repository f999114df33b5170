"""One script on each protocol: the lanes and the table of a comparison."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from zkconsumer.errors import ConfigError
from zkconsumer.lab.comparisons import compared
from zkconsumer.sim.compare.run import PROTOCOLS, compare, read_script


def test_the_table_is_that_of_the_command() -> None:
    """The table has the rows of `zkconsumer compare` for the same script."""
    *_, shown = compared(
        "join; kill g_1; freeze g_0 10s", members=3, partitions=4, protocols=PROTOCOLS
    )
    steps = read_script("join; kill g_1; freeze g_0 10s", 3)
    rows = compare(steps, members=3, partitions=4, protocols=PROTOCOLS)
    assert shown["costs"] == [asdict(row) for row in rows]


def test_the_last_member_leaves() -> None:
    """A group without members owns no partition; the next member gets all partitions."""
    *found, _ = compared("leave g_0; join", members=1, partitions=2, protocols=PROTOCOLS)
    for frames in found[1::2]:
        owners = [frame["p"] for frame in frames["frames"] if frame.get("p")]
        last = {number: row[0] for rows in owners for number, row in rows.items()}
        assert last == {0: 1, 1: 1}


def test_an_unknown_protocol() -> None:
    """The error for an unknown protocol lists the known ones."""
    with pytest.raises(ConfigError, match="is not a protocol"):
        compared("join", members=1, partitions=1, protocols=["consumers"])
