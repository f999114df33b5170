"""One script under each protocol: which partitions move, stop, or have no owner."""

from __future__ import annotations

import pytest

from zkconsumer.errors import ConfigError
from zkconsumer.lab.comparisons import PROTOCOLS, Cost
from zkconsumer.lab.comparisons import costs as cost_rows
from zkconsumer.sim.compare.run import read_script


def costs(script: str, members: int = 5, partitions: int = 24) -> dict[str, Cost]:
    """Return protocol -> the costs of the script under this protocol."""
    steps = read_script(script, members)
    found = cost_rows(steps, members=members, partitions=partitions, protocols=list(PROTOCOLS))
    return {one.protocol: one for one in found}


def test_a_join() -> None:
    """Sticky protocols move only the new member's share; range moves more; eager ones stop all."""
    found = costs("join", members=3, partitions=12)
    assert {name: one.without_need for name, one in found.items()} == {
        **{"zookeeper-jvm": 3, "zookeeper": 3, "classic-eager": 3},
        **{"classic-cooperative": 0, "consumer": 0},
    }
    assert found["classic-cooperative"].moved == found["consumer"].moved == 3
    assert found["zookeeper-jvm"].revoked == found["classic-eager"].revoked == 12
    assert found["zookeeper"].revoked == 6
    assert found["classic-cooperative"].rebalances == 2


def test_a_kill() -> None:
    """The partitions of a killed member have no owner until its session times out."""
    found = costs("kill c2", members=4, partitions=8)
    assert found["zookeeper"].unowned_s == 2 * 6.0
    assert found["consumer"].unowned_s == 2 * 45.0
    assert all(one.moved >= 2 for one in found.values())


def test_a_freeze() -> None:
    """A freeze moves partitions only if it lasts longer than the protocol's session timeout."""
    found = costs("freeze c1 10s", members=2, partitions=4)
    assert (found["consumer"].moved, found["consumer"].rebalances) == (0, 0)
    assert found["consumer"].unowned_s == 20.0
    assert (found["zookeeper"].moved, found["zookeeper"].rebalances) == (4, 2)
    assert found["zookeeper"].unowned_s == 12.0


def test_the_last_member_leaves() -> None:
    """An empty group owns no partition; the next member to join gets all partitions."""
    for cost in costs("leave c1; join", members=1, partitions=4).values():
        assert (cost.moved, cost.revoked, cost.rebalances) == (0, 0, 2)


def test_an_unknown_protocol() -> None:
    """The error for an unknown protocol lists the known ones."""
    with pytest.raises(ConfigError, match="is not a protocol"):
        cost_rows([], members=1, partitions=1, protocols=["consumers"])
