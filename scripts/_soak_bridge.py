"""A group that a bridge divides, on real servers, under kills on both sides."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from support.members.bridged_group import BridgedGroup, Verdict
from support.members.bridged_run import BridgedRun

from zkconsumer.sandbox import Sandbox

HAND_OVERS = 4
"""How often partitions move to the new side and back."""


def run(seconds: float, seed: int, *, release: str, assignor: str) -> tuple[Verdict, BridgedRun]:
    """Run the group, print each act, and return what happened to its messages and offsets."""
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="zkconsumer-soak-"))
        sandbox = stack.enter_context(Sandbox(release=release))
        group = BridgedGroup(sandbox, Path(place), stack)
        done = BridgedRun(
            group, assignor=assignor, seed=seed, say=lambda line: print(line, flush=True)
        )
        done.run(seconds, HAND_OVERS)
        return group.finish(), done
