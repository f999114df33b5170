"""The lease, as the streams see it: until when messages may be handed to the user."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

# Seconds of a clock that goes on while the machine is suspended, where there is one: a lease must
# run out then. (The monotonic clock of Linux stops.)
boottime: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


class LeaseGate:
    """One per member: written by its coordinator, read by its streams before every message.

    `deadline` is in seconds of `clock`; 0.0 means shut. Reading it needs no lock: it is one
    reference, and a reader that misses a change by an instant is the same as one that came an
    instant earlier.
    """

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self.clock = clock
        self.deadline = 0.0
        self._opened = threading.Event()

    @property
    def is_open(self) -> bool:
        return self.clock() < self.deadline

    def open(self, deadline: float) -> None:
        """Messages may be handed over until `deadline`; also renews."""
        self.deadline = deadline
        self._opened.set()

    def shut(self) -> None:
        """No message is handed over from now on."""
        self.deadline = 0.0

    def wait(self, timeout_s: float) -> bool:
        """Wait until the gate is open, at most `timeout_s`; whether it is.

        The event is cleared first and the deadline looked at afterwards: an `open` that comes
        between the two is seen in the deadline, one that comes later sets the event again.
        """
        self._opened.clear()
        if self.is_open:
            return True
        self._opened.wait(timeout_s)
        return self.is_open
