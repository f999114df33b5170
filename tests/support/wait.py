"""Waiting until a condition holds, with a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# In seconds. A condition usually holds within two seconds; on a busy machine on which JVMs start,
# it may take fifty times as long.
LIMIT_S = 120.0
# Seconds between two checks of a condition.
LOOK_S = 0.05


def wait_for(
    condition: Callable[[], object],
    what: str | Callable[[], str],
    limit_s: float = LIMIT_S,
    *,
    look_s: float = LOOK_S,
) -> None:
    """Wait until `condition()` is true; fail with `what` after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {limit_s:g} s: {said}")
        time.sleep(look_s)


def eventually(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait until `condition()` is true; check often at first, then every 0.05 s."""
    deadline, pause_s = time.monotonic() + limit_s, 0.002
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s"
        time.sleep(pause_s)
        pause_s = min(LOOK_S, 1.2 * pause_s)


async def soon(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait in an event loop until `condition()` is true, while other tasks run."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(LOOK_S)
