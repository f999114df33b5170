"""Races that were lost once: each walks through the sequence of events that hit it."""

from __future__ import annotations

from memberdriver import member_in, tps

from zkconsumer.core import commands as cmd
from zkconsumer.core import events as ev
from zkconsumer.core.model import Blocker
from zkconsumer.core.state import Phase


def test_a_blocker_that_goes_while_we_claim_is_not_overlooked() -> None:
    """The watch that a claim has armed fires before the claim's end is known: claim again."""
    member = member_in(Phase.CLAIMING)
    member.send(ev.OwnersChanged, topic="t")
    wanted = frozenset(member.state.wanted)
    blocked = {tp: Blocker("g_z-0", 7) for tp in wanted}
    commands = member.answer(ev.Claimed({}, blocked, {}))
    assert [c.partitions.keys() for c in commands if isinstance(c, cmd.Claim)] == [wanted]
    assert member.state.phase is Phase.CLAIMING
    assert wanted == tps(0, 1, 2, 3)
