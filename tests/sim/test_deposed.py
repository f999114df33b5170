"""The lease while a leader that has lost its quorum still answers `sync`."""

from __future__ import annotations

import pytest

from zkconsumer.member.state import SHARE_OF_TIMEOUT
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Plan
from zkconsumer.sim.recorder import Recorder
from zkconsumer.sim.stage import ZooKeeperDirector
from zkconsumer.sim.world import Watchers, World

SESSION_S = 6.0
MARGIN_S = (1 - SHARE_OF_TIMEOUT) * SESSION_S
"""The margin of the lease: the seconds of a 6 s session that remain after the lease ends."""


def take_over(answers_for_s: float) -> ZooKeeperDirector:
    """Run until another member owns the partitions of the member that the old leader serves.

    The new leader is elected at once. The old leader answers `sync` for `answers_for_s` more
    seconds.
    """
    recorder = Recorder(lambda entry: None)
    plan = Plan(members=2, partitions=2, messages=50, session_s=SESSION_S, replicas=2)
    monitor = Monitor()
    on = ZooKeeperDirector(World(plan, Watchers(recorder, monitor)), recorder)
    on.join(0, 1)
    on.until(lambda: on.owned_by(0) == on.owned_by(1) == 1, "a share for each member")
    monitor.harmed = True
    on.world.zookeeper.depose(0, leads_until=on.world.now + answers_for_s)
    while on.owned_by(1) < 2:
        on.produce(1)
        on.wait(0.1)
    for _ in range(20):
        on.produce(1)
        on.wait(0.1)
    return on


@pytest.mark.parametrize("answers_for_s", [0.0, MARGIN_S / 2, MARGIN_S - 0.1])
def test_within_a_third_of_the_session_only_one_member_delivers(answers_for_s: float) -> None:
    """The lease's margin covers an old leader that answers for T/3 after the election."""
    on = take_over(answers_for_s)
    assert on.owned_by(1) == 2


def test_beyond_a_third_of_the_session_two_members_may_deliver() -> None:
    """An old leader that answers for 12 s (syncLimit 5, ticks of 2 s) breaks the promise."""
    # 1. The new leader expires the session after 6 s. 2. Another member claims the partition. 3.
    # The member that the old leader serves still delivers under its old fencing token.
    with pytest.raises(InvariantViolation) as caught:
        take_over(12.0)
    assert str(caught.value).startswith("I2")
