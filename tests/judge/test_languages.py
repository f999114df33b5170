"""The naive member in other languages speaks the protocol, and fails as the one in Python does."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
from judge.examples import EXAMPLES

from zkconsumer.errors import ConfigError
from zkconsumer.judge import assignors, challenges, classic_court
from zkconsumer.judge.commands import runnable
from zkconsumer.judge.judging import Challenge
from zkconsumer.judge.ladders import AnyCourt, court, ladder_of
from zkconsumer.judge.process import ProcessProgram
from zkconsumer.sim.kernel.search import Decisions

BUILD_S = 600
"""Upper bound for a build of Go, which compiles its library on a loaded machine."""


def _needs(tool: str) -> None:
    if shutil.which(tool) is None:
        assert not os.environ.get("CI"), f"CI needs {tool}"
        pytest.skip(f"there is no {tool}")


def _broken(bench: AnyCourt, seed: int) -> str:
    found = bench.run(Decisions(random.Random(seed)))[0].violation
    return "" if found is None else found.invariant


def _is_naive(words: list[str]) -> None:
    """Check which promises a program breaks in a few schedules of four challenges."""
    for name, promise in (
        ("register", ""),
        ("range", "I12"),
        ("lost-reply", "I12"),
        ("claim", "I3"),
    ):
        assert promise in _promises(words, challenges.CHALLENGES[name])


def _promises(words: list[str], challenge: Challenge) -> set[str]:
    """Return the promises that a program breaks in a few schedules; "" for none."""
    with runnable(words) as command:
        vocabulary = ladder_of(challenge).vocabulary
        make = partial(ProcessProgram, command=command, vocabulary=vocabulary)
        with court(challenge, make) as bench:
            return {_broken(bench, seed) for seed in range(1, 7)}


def test_javascript() -> None:
    """The JavaScript member registers, and fails where its bugs concern."""
    _needs("node")
    _is_naive([str(EXAMPLES / "naive.js")])


def test_the_other_ladders_in_javascript() -> None:
    """The member of the classic protocol joins, and fails later; the assignor is complete."""
    _needs("node")
    member, assignor = str(EXAMPLES / "naive_classic.js"), str(EXAMPLES / "assignor.js")
    assert _promises([member], classic_court.CHALLENGES["join"]) == {""}
    assert "C2" in _promises([member], classic_court.CHALLENGES["cooperative"])
    assert _promises([assignor], assignors.CHALLENGES["assign"]) == {""}


def test_go(tmp_path: Path) -> None:
    """The Go member registers, and fails where its bugs concern."""
    _needs("go")
    built = tmp_path / "naive"
    command = ["go", "build", "-o", str(built), str(EXAMPLES / "naive.go")]
    subprocess.run(command, check=True, timeout=BUILD_S, cwd=tmp_path)
    _is_naive([str(built)])


def test_java() -> None:
    """The Java member is compiled and registers, and fails where its bugs concern."""
    _is_naive([str(EXAMPLES / "Naive.java")])


def test_java_with_an_error(tmp_path: Path) -> None:
    """An error of the compiler is an error of the command, with the line."""
    source = tmp_path / "Mine.java"
    source.write_text("public class Mine {\n  void go() { nothing(); }\n}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"nothing\(\) is undefined"), runnable([str(source)]):
        pass
