"""Members of the classic protocol under test: the solution passes, and the naive member fails."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from judge.examples import example

from zkconsumer.judge.classic_court import CHALLENGES
from zkconsumer.judge.classic_messages import VOCABULARY
from zkconsumer.judge.kit import Speaker
from zkconsumer.judge.ladders import AnyCourt, court
from zkconsumer.judge.program import LocalProgram
from zkconsumer.protocol.model import JsonObject
from zkconsumer.sim.kernel.search import Decisions

FAILS = {"heartbeat": "C7", "generation": "K1", "cooperative": "C2"}
"""The challenges that the naive member fails, with a promise that it breaks there."""

Begin = Callable[[JsonObject], Speaker]


def broken(bench: AnyCourt, seed: int) -> str:
    found = bench.run(Decisions(random.Random(seed)))[0].violation
    return "" if found is None else found.invariant


def promises(name: str, begin: Begin, seeds: range) -> set[str]:
    """Return the promises that a member breaks in some schedules of a challenge; "" for none."""
    with court(CHALLENGES[name], lambda one: LocalProgram(one, begin, VOCABULARY)) as bench:
        return {broken(bench, seed) for seed in seeds}


@pytest.mark.parametrize("name", CHALLENGES)
def test_the_solution_passes(name: str) -> None:
    """The solution breaks no promise in some schedules of each challenge, and is deterministic."""
    kind = example("solution_classic").Solution
    with court(CHALLENGES[name], lambda one: LocalProgram(one, kind, VOCABULARY)) as bench:
        assert {broken(bench, seed) for seed in range(1, 3)} == {""}
        assert bench.differs() is None


@pytest.mark.parametrize("name", CHALLENGES)
def test_the_solution_passes_many_schedules(name: str) -> None:
    """The solution breaks no promise in 50 schedules of each challenge."""
    assert promises(name, example("solution_classic").Solution, range(100, 150)) == {""}


def test_the_naive_member_joins() -> None:
    """The first rung encourages: the naive member passes it."""
    assert promises("join", example("naive_classic").Naive, range(1, 6)) == {""}


@pytest.mark.parametrize(("name", "promise"), FAILS.items())
def test_the_naive_member_fails(name: str, promise: str) -> None:
    """One of a hundred schedules shows that the naive member breaks the challenge's promise."""
    kind = example("naive_classic").Naive
    with court(CHALLENGES[name], lambda one: LocalProgram(one, kind, VOCABULARY)) as bench:
        assert any(broken(bench, seed) == promise for seed in range(1, 101))


def test_an_eager_member_stops_what_stays() -> None:
    """A member that gives everything back before it joins fails the cooperative challenge."""
    kind = example("solution_classic").Solution

    def begin(reset: JsonObject) -> Speaker:
        eager: Speaker = kind({**reset, "assignor": "range"})
        return eager

    assert "K2" in promises("cooperative", begin, range(1, 10))


def test_a_failure_is_told() -> None:
    """The story of a failing schedule shows the members, the coordinator and the faults."""
    kind = example("naive_classic").Naive
    with court(CHALLENGES["cooperative"], lambda one: LocalProgram(one, kind, VOCABULARY)) as bench:
        failure = bench.judge(seed=1, schedules=20, limit_s=60.0, shrink_s=1.0).failure
    assert failure is not None
    assert failure.seed is not None
    text = "\n".join(failure.story)
    assert "coordinator" in text
    assert "g_1 joins" in text
    assert "delivers t-0" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"type":"request","id":1,"api":"offset_commit","member":""}', "without 'offsets'"),
        (b'{"type":"request","id":1,"api":"offset_fetch","member":""}', "without 'partitions'"),
        (b'{"type":"deliver","positions":{"t-0":1}}', "is no partition"),
        (b'{"type":"deliver","positions":{"0":-1}}', "has a wrong value in 'positions'"),
        (b'{"type":"request","id":1,"api":"dance","member":""}', "has a wrong value in 'api'"),
    ],
)
def test_wrong_messages(line: bytes, words: str) -> None:
    """A request without what its API needs, and a name that is no partition, are wrong."""
    with pytest.raises(ValueError, match=words):
        VOCABULARY.parse_answer(line)
