"""A group that a bridge divides, on real servers, under kills on both sides."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from support.members.bridged_group import BridgedGroup, Verdict
from support.members.bridged_run import BridgedRun

from zkconsumer.sandbox import Sandbox

HAND_OVERS = 4
"""How often partitions move to the new side and back."""


def run(seconds: float, seed: int, *, release: str, assignor: str) -> tuple[Verdict, BridgedRun]:
    """Run the group, print each act, and return what happened to its messages and offsets.

    The logs of all members, bridges and servers are kept if the run fails or breaks a promise.
    """
    place = Path(tempfile.mkdtemp(prefix="zkconsumer-soak-"))
    _say(f"the logs are in {place}; they are removed if no promise is broken")
    with ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox(place / "servers", release=release))
        group = BridgedGroup(sandbox, place, stack)
        done = BridgedRun(group, assignor=assignor, seed=seed, say=_say)
        done.run(seconds, HAND_OVERS)
        verdict = group.finish()
    if not verdict.violations:
        shutil.rmtree(place)
    return verdict, done


def _say(line: str) -> None:
    print(line, flush=True)
