"""`scripts/soak --lab`: the memory of the lab's page and server must not grow."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from zkconsumer.lab.live import MAX_MESSAGES

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.append(str(SCRIPTS))

from _engine import (  # noqa: E402  # needs the path above
    CHROMIUM,
    HEADLESS,
    EngineError,
    chromium,
)
from _soak_lab import MEASURES, SAMPLES, Sample, growths  # noqa: E402  # needs the path above

FULL = Sample(
    seconds=600.0,
    events=MAX_MESSAGES + 1,
    drawn_s=0.1,
    page_heap=20_000_000,
    page_nodes=5_000,
    browser_resident=200_000_000,
    server_resident=90_000_000,
)
"""A measurement that was made after the lab reached its limit of kept events."""

LINE = re.compile(
    r"(?P<seconds>\d+) s, (?P<events>\d+) events: heap of the page (?P<heap>[\d.]+) MB, "
    r"(?P<nodes>\d+) nodes, browser (?P<browser>[\d.]+) MB, server (?P<server>[\d.]+) MB; .*"
)


def test_a_short_run() -> None:
    """The command measures page, browser and server; it judges no run that is too short."""
    command = [sys.executable, str(SCRIPTS / "_soak.py"), "--lab", "--minutes", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    *lines, verdict, reason = done.stdout.splitlines()
    assert verdict == "FAILED" and reason.startswith("the run was too short")
    samples = [one for one in map(LINE.fullmatch, lines) if one]
    assert 0 < len(samples) == len(lines) <= SAMPLES
    assert all(float(one[name]) > 0 for one in samples for name in ("heap", "browser", "server"))
    assert int(samples[-1]["events"]) > int(samples[0]["events"])


def test_equal_measurements_pass() -> None:
    """Measurements that do not change pass, whatever they were before the limit."""
    start = replace(FULL, events=MAX_MESSAGES, page_heap=1, server_resident=1)
    assert growths([start] * 4 + [FULL] * 8) == []


@pytest.mark.parametrize("measure", MEASURES)
def test_growth_fails(measure: str) -> None:
    """If one measurement grows after the limit, the verdict names it."""
    grown = replace(FULL, **{measure: 2 * getattr(FULL, measure)})
    (sentence,) = growths([FULL] * 6 + [grown] * 6)
    assert sentence.startswith(f"{measure} grew from")


def test_too_few_measurements_fail() -> None:
    """If there are too few measurements after the limit, the run is not judged."""
    assert growths([replace(FULL, events=1)] * 30 + [FULL] * 3)[0].startswith("the run was too")


def test_the_browser_of_the_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts run the complete browser, or else its headless shell; without one they fail."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="Chromium is missing"):
        chromium()
    for program in (HEADLESS, CHROMIUM):
        (tmp_path / program).touch(mode=0o755)
        assert chromium() == str(tmp_path / program)
