"""A random mixture of faults."""

from __future__ import annotations

import os
import random

from support.history.real import compared
from support.members.crew import Crew
from support.members.random_faults import Mixture
from support.zk.proxies import Trap

SECONDS = 40.0


def test_a_random_mixture(crew: Crew, topic: str, trap: Trap) -> None:
    """In 40 s of random faults no message is lost; the history's tables equal the traces."""
    assert crew.counts == {topic: 8}
    seed = int(os.environ.get("ZKCONSUMER_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"ZKCONSUMER_SEED={seed}")  # noqa: T201 - to repeat the same acts
    mixture = Mixture(crew, trap, seed, print)
    mixture.run(SECONDS)
    mixture.judge()
    found = compared(crew.logs, crew.group, crew.records())
    assert (found.missed, found.invented) == ([], [])
    assert sum(mixture.acts.values()) > 5
