"""The naive member in other languages speaks the protocol, and fails as the one in Python does."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from judge.examples import EXAMPLES

from zkconsumer.judge.challenges import CHALLENGES
from zkconsumer.judge.judging import Court, court
from zkconsumer.judge.program import ProcessProgram, command_of
from zkconsumer.sim.kernel.search import Decisions

BUILD_S = 600
"""Upper bound for a build of Go, which compiles its library on a loaded machine."""


def _needs(tool: str) -> None:
    if shutil.which(tool) is None:
        assert not os.environ.get("CI"), f"CI needs {tool}"
        pytest.skip(f"there is no {tool}")


def _reasons(words: list[str], name: str) -> set[str]:
    """Return the promises that a program breaks in a few schedules of a challenge."""
    command = command_of(words)

    def run(bench: Court, seed: int) -> str:
        found = bench.run(Decisions(random.Random(seed)))[0].violation
        return "" if found is None else found.invariant

    with court(CHALLENGES[name], lambda one: ProcessProgram(one, command)) as bench:
        return {run(bench, seed) for seed in range(1, 7)}


def _is_naive(words: list[str]) -> None:
    assert _reasons(words, "register") == {""}
    assert "I12" in _reasons(words, "lost-reply")
    assert "I3" in _reasons(words, "claim")


def test_javascript() -> None:
    """The JavaScript member registers, and fails where its bugs concern."""
    _needs("node")
    _is_naive([str(EXAMPLES / "naive.js")])


def test_go(tmp_path: Path) -> None:
    """The Go member registers, and fails where its bugs concern."""
    _needs("go")
    built = tmp_path / "naive"
    command = ["go", "build", "-o", str(built), str(EXAMPLES / "naive.go")]
    subprocess.run(command, check=True, timeout=BUILD_S, cwd=tmp_path)
    _is_naive([str(built)])
