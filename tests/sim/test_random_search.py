"""Random runs of the production code: no promise is broken, and each run can be replayed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import lanes
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.sim import mutants

from zkconsumer.member import machine, phases
from zkconsumer.member.events import Triggered
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import State, Step, enter
from zkconsumer.sim.kernel.search import Decisions, shrunk
from zkconsumer.sim.random_search import load, record, report, run, save

# The seeds are fixed, so that a failure names a seed that others can run.
SEEDS = range(240)
CHUNK = 40


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_no_invariant_is_broken(first: int) -> None:
    """For every seed, each promise holds after every action, and the group settles."""
    for seed in range(first, first + CHUNK):
        _holds(seed)


def _holds(seed: int) -> None:
    """Run a seed; if it fails, show the shrunk run as decisions and as a story."""
    result = run(Decisions(random.Random(seed)))
    if result.violation is not None:
        told = report(result.decisions, name=f"seed {seed}")
        pytest.fail(f"seed {seed}: {result.violation}\n\n{told}", pytrace=False)


def test_no_invariant_is_broken_by_fresh_seeds(
    pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> None:
    """Each run of the suite explores new seeds for some seconds, and prints the seeds."""
    first = random.SystemRandom().randrange(10**9, 10**12)
    seed, end = first, time.monotonic() + lanes.FRESH_SEEDS_S[lanes.of_run(pytestconfig)]
    while time.monotonic() < end:
        _holds(seed)
        seed += 1
    assert seed > first
    record_property("summary", f"simulator: fresh seeds {first} to {seed - 1}, 0 violations")


def test_a_failure_shows_the_run_that_replays_it(tmp_path: Path) -> None:
    """A failure shows the shrunk decisions, and a story with one column for each member."""
    mutant = next(one for one in mutants.MUTANTS if one.name == "release before stop")
    with mutant.planted():
        seed = next(n for n in range(100) if run(Decisions(random.Random(n))).violation)
        with pytest.raises(pytest.fail.Exception) as failure:
            _holds(seed)
        shown = str(failure.value)
        kept = tmp_path / "found.txt"
        kept.write_text(shown, encoding="utf-8")
        again = run(Decisions(load(kept)))
    assert again.violation is not None
    assert str(again.violation) in shown
    assert len(again.decisions) < len(run(Decisions(random.Random(seed))).decisions)
    assert "g_0" in shown.partition("decisions:")[2]


@settings(
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_no_invariant_is_broken_by_drawn_decisions(data: st.DataObject) -> None:
    """Decisions that Hypothesis draws do not break a promise."""
    result = run(Decisions(lambda below: data.draw(st.integers(0, below - 1))))
    assert result.violation is None


def test_a_simulated_member_checks_its_changes_of_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in which a handler skips a phase breaks I15, even if `step` does not check phases."""

    def skip(state: State, _: Triggered) -> Step:
        return enter(state, Phase.LOADING), ()

    monkeypatch.setattr(phases, "enforced", False)
    monkeypatch.setitem(machine.HANDLERS, (None, Triggered), skip)
    violation = run(Decisions(random.Random(1))).violation
    assert violation is not None and violation.invariant == "I15"
    assert "member.phases does not allow" in str(violation)


def test_a_run_is_its_decisions() -> None:
    """The recorded decisions of a seed repeat its run, entry by entry."""
    first, story, _ = record(Decisions(random.Random(7)))
    again, same_story, _ = record(Decisions(first.decisions))
    assert (again, same_story) == (first, story)


def fingerprint(seed: int) -> str:
    """Return a hash of a seed's trace and decisions."""
    result, entries, _ = record(Decisions(random.Random(seed)))
    lines = [json.dumps(entry) for entry in entries]
    return hashlib.sha256("\n".join([*lines, str(result.decisions)]).encode()).hexdigest()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_is_one_run_in_every_process(hash_seed: str) -> None:
    """For one seed, two processes with different hash seeds write the same bytes of a trace."""
    seeds = range(400, 404)
    done = subprocess.run(
        [sys.executable, __file__, *map(str, seeds)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == [fingerprint(seed) for seed in seeds]


def test_a_failing_run_is_shrunk_and_saved(tmp_path: Path) -> None:
    """A failing run is saved with fewer decisions and a story, and the file can be replayed."""
    mutant = next(one for one in mutants.MUTANTS if one.name == "release before stop")
    with mutant.planted():
        found = next(
            result
            for seed in range(100)
            if (result := run(Decisions(random.Random(seed)))).violation is not None
        )
        fewer = shrunk(run, found.decisions)
        path = tmp_path / "release-before-stop.txt"
        saved = save(path, name=mutant.name, decisions=fewer)
        again = run(Decisions(load(path)))
    assert (again.decisions, str(again.violation)) == (saved.decisions, str(saved.violation))
    assert len(fewer) < len(found.decisions)
    assert saved.violation is not None
    assert saved.violation.invariant == "I9"
    story = path.read_text(encoding="utf-8")
    assert "I9" in story
    assert "claiming" in story


if __name__ == "__main__":
    sys.stdout.write("\n".join(fingerprint(int(seed)) for seed in sys.argv[1:]))
