"""Assignors under test: what each assignment must be, and the score beside Kafka's assignors."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from jsonschema import Draft202012Validator
from judge.examples import EXAMPLES, example
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.schema import schemas
from zkconsumer.judge.assignors import (
    BESIDE,
    CHALLENGES,
    VOCABULARY,
    AssignorScore,
    by_kafka,
    total_of,
)
from zkconsumer.judge.judging import Verdict
from zkconsumer.judge.ladders import court
from zkconsumer.judge.program import LocalProgram
from zkconsumer.protocol.later.assignors import Assignor
from zkconsumer.protocol.model import JsonObject
from zkconsumer.sim.kernel.search import Decisions

Answer = Callable[[JsonObject], dict[str, dict[str, list[int]]]]


class Speaker:
    """An assignor in this process."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def answer(self, message: JsonObject) -> list[JsonObject]:
        return [{"type": "assignment", "members": self._answer(message)}, {"type": "done"}]


def judged(answer: Answer) -> Verdict[AssignorScore]:
    """Judge an assignor by some schedules."""

    def make(name: str) -> LocalProgram:
        return LocalProgram(name, lambda _: Speaker(answer), VOCABULARY)

    with court(CHALLENGES["assign"], make) as bench:
        return bench.judge(seed=1, schedules=50, limit_s=60.0)


def by_the_example(message: JsonObject) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = example("assignor").assignment(
        message["topics"], message["members"]
    )
    return found


def test_the_example_passes() -> None:
    """The example's assignments are complete; it moves more partitions than a sticky assignor."""
    verdict = judged(by_the_example)
    assert verdict.failure is None
    drawn = (Decisions(random.Random(number)) for number in range(1, 51))
    sticky = total_of(by_kafka(Assignor.STICKY), drawn)
    assert sticky.assignments == verdict.score.assignments
    assert sticky.needless < verdict.score.needless
    assert sticky.uneven < verdict.score.uneven


@pytest.mark.parametrize("assignor", BESIDE)
def test_kafka_s_assignors_keep_the_promises(assignor: Assignor) -> None:
    """Each of Kafka's assignors in the table passes the schedules, too."""
    drawn = (Decisions(random.Random(number)) for number in range(1, 51))
    assert total_of(by_kafka(assignor), drawn).assignments > 100


def to_everybody(message: JsonObject) -> dict[str, dict[str, list[int]]]:
    return {
        name: {topic: list(range(message["topics"][topic])) for topic in one["topics"]}
        for name, one in message["members"].items()
    }


def to_a_stranger(message: JsonObject) -> dict[str, dict[str, list[int]]]:
    return {"stranger": {topic: list(range(n)) for topic, n in message["topics"].items()}}


def without_the_last(message: JsonObject) -> dict[str, dict[str, list[int]]]:
    found = by_the_example(message)
    return {name: {topic: own[:-1] for topic, own in it.items()} for name, it in found.items()}


def one_too_many(message: JsonObject) -> dict[str, dict[str, list[int]]]:
    found = by_the_example(message)
    first = next(iter(found))
    topic = message["members"][first]["topics"][0]
    found[first].setdefault(topic, []).append(message["topics"][topic])
    return found


@pytest.mark.parametrize(
    ("answer", "promise", "words"),
    [
        (to_everybody, "A2", "is assigned to"),
        (to_a_stranger, "A1", "which is no member"),
        (without_the_last, "A3", "no member gets"),
        (one_too_many, "A1", "does not exist"),
        (lambda _: {"m": {"t": ["0"]}}, "P2", "has a wrong value in 'members'"),
    ],
)
def test_what_an_assignor_does_wrong(answer: Answer, promise: str, words: str) -> None:
    """An incomplete, double or impossible assignment is shown in the smallest group."""
    failure = judged(answer).failure
    assert failure is not None
    assert failure.violation.invariant == promise
    assert words in str(failure.violation)
    assert failure.actions <= 2


def test_an_assignor_that_remembers() -> None:
    """An assignor whose answer depends on earlier calls is not deterministic."""
    calls: list[JsonObject] = []

    def answer(message: JsonObject) -> dict[str, dict[str, list[int]]]:
        calls.append(message)
        found = by_the_example(message)
        return dict(reversed(found.items())) if len(calls) % 2 else found | {"m": {}}

    failure = judged(answer).failure
    assert failure is not None
    assert failure.violation.invariant == "P3"


def test_the_command() -> None:
    """The command shows the program beside Kafka's assignors, also as JSON."""
    words = ["judge", "--assignor", str(EXAMPLES / "assignor.py"), "--schedules", "5"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "NEEDLESS" in shown.output
    found = json.loads(CliRunner().invoke(app, [*words, "-o", "json"]).stdout)
    Draft202012Validator(schemas()["judge-assignor"]).validate(found)
    assert [row["assignor"] for row in found[1:]] == [one.value for one in BESIDE]


def test_a_run_that_ends_early_says_so() -> None:
    """If the time ends before the schedules, the verdict says how many schedules were meant."""
    words = ["judge", "--assignor", str(EXAMPLES / "assignor.py")]
    shown = CliRunner().invoke(app, [*words, "--schedules", "100000", "--seconds", "0.1"])
    assert "(--seconds 0.5 runs more of the 100000)" in shown.output
