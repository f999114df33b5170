"""The time of fake servers: the machine's, or the test's own."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """A clock that runs with the machine's, and that a test can also put forward."""

    def __init__(self) -> None:
        # The monotonic clock does not jump when the machine's time is set.
        self._offset = time.time() - time.monotonic()
        self._listeners: list[Callable[[], object]] = []

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return time.monotonic() + self._offset

    def advance(self, seconds: float) -> None:
        """Put the clock forward, and let the servers do at once what has become due.

        Raises:
            ValueError: `seconds` is negative, because sessions and timestamps never go back.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._offset += seconds
        for listener in list(self._listeners):
            listener()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` after each `advance`, on the thread that advances the clock."""
        self._listeners.append(listener)

    def forget(self, listener: Callable[[], object]) -> None:
        """End `listen`."""
        self._listeners.remove(listener)


class StoppedClock(Clock):
    """The test's own time: it stands still until `advance`."""

    def __init__(self, start: float = 1_500_000_000.0) -> None:
        """`start` is the first time, in seconds since 1970."""
        super().__init__()
        self._offset = start

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return self._offset
