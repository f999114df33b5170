"""The clock of the lease counts suspended time; platforms without such a clock are refused."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from zkconsumer.consumer.stream_partitions import LeaseGate, boottime, lease_clock
from zkconsumer.errors import ConfigError


def _clocks(**numbers: int) -> SimpleNamespace:
    """Return a `time` module with these clocks, each of which returns a different number."""
    return SimpleNamespace(**numbers, clock_gettime=float, monotonic=lambda: -1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_on_linux_the_clock_counts_from_the_boot() -> None:
    """On Linux the clock is the kernel's uptime, which includes suspended time."""
    before = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    assert before - 0.02 <= boottime() <= before + 60.0
    assert lease_clock("linux", time)() >= before - 0.02


@pytest.mark.parametrize(("platform", "number"), [("linux", 7.0), ("darwin", 4.0)])
def test_each_platform_has_its_clock(platform: str, number: float) -> None:
    """CLOCK_MONOTONIC_RAW counts sleep on macOS; on Linux CLOCK_BOOTTIME does."""
    clocks = _clocks(CLOCK_BOOTTIME=7, CLOCK_MONOTONIC_RAW=4, CLOCK_MONOTONIC=1)
    assert lease_clock(platform, clocks)() == number


def test_on_windows_the_clock_is_monotonic() -> None:
    """On Windows the clock is `time.monotonic`."""
    assert lease_clock("win32", _clocks())() == -1.0


@pytest.mark.parametrize(
    ("platform", "clocks"),
    [("darwin", _clocks(CLOCK_MONOTONIC=6)), ("freebsd14", _clocks(CLOCK_MONOTONIC_RAW=4))],
)
def test_a_platform_without_such_a_clock_is_refused(platform: str, clocks: SimpleNamespace) -> None:
    """On an old macOS or an unknown platform there is an error before the first lease."""
    with pytest.raises(ConfigError, match="continues during sleep") as caught:
        lease_clock(platform, clocks)
    assert platform in caught.value.where

    def unsupported() -> float:
        return lease_clock(platform, clocks)()

    with pytest.raises(ConfigError):
        LeaseGate(unsupported)
