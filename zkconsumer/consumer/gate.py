"""The lease, as the streams see it: until when messages may be handed to the user."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    from zkconsumer.consumer.holdings import Holdings


def lease_clock(platform: str, clocks: Any) -> Callable[[], float]:
    """Return the clock of a platform that goes on while the machine sleeps, in seconds.

    A lease must run out during sleep: ZooKeeper expires the session meanwhile. `time.monotonic`
    stops during sleep on Linux and on macOS (mach_absolute_time, CPython issue 86273), and goes on
    on Windows (PEP 418).

    - Linux: CLOCK_BOOTTIME, see clock_gettime(2). CLOCK_MONOTONIC and CLOCK_MONOTONIC_RAW stop.
    - macOS 10.12 and later: CLOCK_MONOTONIC_RAW, see its clock_gettime(3): it goes on "while the
      system is asleep", and no adjustment of the time changes it. (Linux has a clock of this name
      that stops, so the platform decides.)

    Args:
        platform: as `sys.platform`.
        clocks: the module `time`.

    Raises:
        ConfigError: the platform has no such clock, or none that is known here.
    """
    names = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC_RAW"}
    if platform == "win32":
        monotonic: Callable[[], float] = clocks.monotonic
        return monotonic
    number = getattr(clocks, names.get(platform, ""), None)
    if number is None:
        raise ConfigError(
            "this platform has no clock that is known to go on during sleep, so a sleeping member "
            "could deliver partitions that others own by then", where=f"sys.platform={platform}",
            remedy="run the member on Linux, macOS 10.12 or later, or Windows",
        )
    return partial(clocks.clock_gettime, number)


def _unsupported() -> float:
    return lease_clock(sys.platform, time)()


try:
    _chosen = lease_clock(sys.platform, time)
except ConfigError:
    _chosen = _unsupported  # raises when it is asked: tools that need no lease work there

# Seconds of the clock that leases are measured with. Raises ConfigError where there is none.
boottime: Final[Callable[[], float]] = _chosen


class LeaseGate:
    """One per member: written by its coordinator, read by its streams before every message.

    `deadline` is in seconds of `clock`; 0.0 means shut. Reading it needs no lock: it is one
    reference, and a reader that misses a change by an instant is the same as one that came an
    instant earlier.
    """

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        """Raises ConfigError where the platform has no clock for leases."""
        clock()
        self.clock = clock
        self.deadline = 0.0
        self._lock = threading.Lock()
        self._sleepers: set[threading.Event] = set()  # of the streams that wait for the lease

    @property
    def is_open(self) -> bool:
        return self.clock() < self.deadline

    def open(self, deadline: float) -> None:
        """Messages may be handed over until `deadline`; also renews."""
        self.deadline = deadline
        with self._lock:
            for wake in self._sleepers:
                wake.set()

    def shut(self) -> None:
        """No message is handed over from now on."""
        self.deadline = 0.0

    def wait(self, holdings: Holdings, timeout_s: float) -> None:
        """Wait until the gate is open or `holdings` needs attention, at most `timeout_s`.

        The event is cleared first and both are looked at afterwards: a change that comes between
        the two is seen there, and one that comes later sets the event again.
        """
        with self._lock:
            self._sleepers.add(holdings.wake)
        try:
            holdings.wake.clear()
            if not self.is_open and not holdings.attention:
                holdings.wake.wait(timeout_s)
        finally:
            with self._lock:
                self._sleepers.discard(holdings.wake)
