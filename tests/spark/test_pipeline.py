"""scripts/pipeline_demo: a whole run, its verdict, and its clean-up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes import PATIENCE_S, assert_nothing_is_left, programs

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from _pipeline_judge import Row, Verdict, judge  # needs the path above

SCRIPT = Path(__file__).parents[2] / "scripts" / "_pipeline_demo.py"
# Time limit of a run in seconds. On an idle machine a run takes 60 s.
LIMIT_S = 500.0

Start = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of temporary files, which each process of the run has in its command line."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Start the demo."""
    with programs(SCRIPT, home) as run:
        yield lambda: run("--messages", "5000", "--json")


@pytest.mark.timeout(LIMIT_S + PATIENCE_S)
def test_a_run(home: Path, start: Start) -> None:
    """After a kill within a batch nothing is lost or wrong; only messages in flight repeat."""
    out, err = start().communicate(timeout=LIMIT_S)
    result = json.loads(out.splitlines()[-1])
    assert list(result.pop("settled_s")) == ["query", "join", "kill", "restart"], err
    verdict = Verdict(**result)
    assert verdict.good, (verdict, err[-3000:])
    assert min(verdict.spark, verdict.jvm, verdict.windows) > 0
    assert verdict.spark >= verdict.produced / 2
    assert verdict.spark + verdict.jvm == verdict.produced + verdict.duplicates
    assert_nothing_is_left(home)


@pytest.mark.timeout(LIMIT_S)
def test_ctrl_c(home: Path, start: Start) -> None:
    """Ctrl-C while Spark starts gives exit code 130, and leaves no process and no directory."""
    process = start()
    assert process.stderr is not None
    assert any(b"a Spark query warms up" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    told = process.stderr.read().decode()
    assert (process.wait(timeout=PATIENCE_S), "Traceback" in told) == (130, False), told
    assert_nothing_is_left(home)


# ---- the judge ----------------------------------------------------------------------------------

LOG = [Row(0, offset, 1000 * offset + 5, str(offset)) for offset in range(6)]
GOOD = Verdict(
    produced=6,
    spark=4,
    jvm=2,
    lost=0,
    wrong=0,
    duplicates=0,
    in_flight=0,
    windows=4,
    wrong_windows=0,
)


def judged(
    batches: dict[int, list[Row]], jvm: list[int], *, killed: int, missing: int = -1
) -> Verdict:
    """Judge a run in which only the window with this start is wrong."""
    windows: dict[tuple[int, int], int] = {}
    for rows in batches.values():
        for row in rows:
            start_ms = row.timestamp_ms - row.timestamp_ms % 1000
            windows[start_ms, row.partition] = windows.get((start_ms, row.partition), 0) + 1
    windows.pop((missing, 0), None)
    places = [(0, offset) for offset in jvm]
    return judge(LOG, batches=batches, windows=windows, jvm=places, killed=killed)


def test_a_correct_run_is_good() -> None:
    """A run is good if the query and the JVM consumer together read exactly the topic."""
    verdict = judged({0: LOG[:2], 1: LOG[2:4]}, [4, 5], killed=1)
    assert verdict == GOOD
    assert verdict.good


def test_messages_in_flight_may_be_redelivered() -> None:
    """Duplicates of the batch that was killed are counted and allowed; others are a failure."""
    verdict = judged({0: LOG[:2], 1: LOG[2:4]}, [3, 4, 5], killed=1)
    assert verdict == replace(GOOD, jvm=3, duplicates=1, in_flight=1)
    assert verdict.good
    verdict = judged({0: LOG[:2], 1: LOG[2:4]}, [1, 4, 5], killed=1)
    assert verdict == replace(GOOD, jvm=3, duplicates=1)
    assert not verdict.good


def test_a_duplicate_hides_no_lost_message() -> None:
    """A duplicate does not hide a missing message."""
    verdict = judged({0: LOG[:2], 1: LOG[2:4]}, [4, 4], killed=0)
    assert verdict == replace(GOOD, lost=1, duplicates=1)
    assert not verdict.good


def test_wrong_output_is_found() -> None:
    """Values and times that differ from the topic, and wrong counts of a window, are found."""
    changed = LOG[3]._replace(value="x")
    assert judged({0: LOG[:3], 1: [changed]}, [4, 5], killed=0) == replace(GOOD, wrong=1)
    verdict = judged({0: LOG[:2], 1: LOG[2:4]}, [4, 5], killed=0, missing=2000)
    assert verdict == replace(GOOD, wrong_windows=1)
    assert not verdict.good
