"""The ladder: the solution passes every challenge, and the naive members fail theirs."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from judge.examples import EXAMPLES, example

from zkconsumer.judge.challenges import CHALLENGES
from zkconsumer.judge.kit import Request
from zkconsumer.judge.ladders import AnyCourt, court
from zkconsumer.judge.messages import VOCABULARY, reply_of
from zkconsumer.judge.program import Answers, LocalProgram
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.paths import consumer_of
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.kernel.world import InvariantViolation

FAILS = {
    "range": "I12",
    "claim": "I3",
    "watches": "I12",
    "lost-reply": "I12",
    "session": "I12",
    "zombie": "I3",
    "fencing": "I3",
    "herd": "I3",
    "release": "C2",
    "recreated": "I12",
    "mixed": "I3",
}
"""The challenges that the naive member fails, with a promise that it breaks there."""

ENOUGH = 40
"""Schedules within which the naive member breaks the promise; one in ten does."""


def broken(bench: AnyCourt, seed: int) -> InvariantViolation | None:
    return bench.run(Decisions(random.Random(seed)))[0].violation


@pytest.mark.parametrize("name", CHALLENGES)
def test_the_solution_passes(name: str) -> None:
    """The solution breaks no promise in a schedule of each challenge, and is deterministic."""
    kind = example("solution").Solution
    with court(CHALLENGES[name], lambda one: LocalProgram(one, kind)) as bench:
        assert broken(bench, 1) is None
        assert bench.differs() is None


@pytest.mark.parametrize("name", CHALLENGES)
def test_the_solution_passes_many_schedules(name: str) -> None:
    """The solution breaks no promise in 100 schedules of each challenge."""
    kind = example("solution").Solution
    with court(CHALLENGES[name], lambda one: LocalProgram(one, kind)) as bench:
        assert [found for seed in range(100, 200) if (found := broken(bench, seed))] == []


@pytest.mark.parametrize("name", CHALLENGES)
def test_the_judge_s_messages_fit_their_schema(name: str) -> None:
    """Each message of the judge in a schedule of each challenge fits the published schema."""
    schema = Draft202012Validator(VOCABULARY.schemas()["judge"])

    class Strict(LocalProgram):
        def _exchange(self, line: bytes) -> Answers:
            schema.validate(json.loads(line))
            return super()._exchange(line)

    kind = example("solution").Solution
    with court(CHALLENGES[name], lambda one: Strict(one, kind)) as bench:
        assert broken(bench, 1) is None


def test_a_reply_has_children_only_if_they_were_asked_for() -> None:
    """The results of a transaction are not told as the names of children."""
    write = rq.Delete("/a")
    for value in ([True], [(1, 2)], (None,)):
        assert reply_of(rq.Multi((write,)), Reply(Code.OK, value)) == {"code": "ok"}
        assert reply_of(write, Reply(Code.OK, value)) == {"code": "ok"}
    told = reply_of(rq.Children("/a"), Reply(Code.OK, ("b",)))
    assert told == {"code": "ok", "children": ["b"]}


@pytest.mark.parametrize(("name", "promise"), FAILS.items())
def test_the_naive_member_fails(name: str, promise: str) -> None:
    """The naive member breaks the promise that the challenge is about."""
    kind = example("naive").Naive
    with court(CHALLENGES[name], lambda one: LocalProgram(one, kind)) as bench:
        found = (broken(bench, seed) for seed in range(1, ENOUGH))
        assert promise in {one.invariant for one in found if one is not None}


def test_a_verdict_names_the_member_and_the_owner() -> None:
    """Who delivers another client's partition is named, and so is the owner with its session."""
    kind = example("naive").Naive
    with court(CHALLENGES["claim"], lambda one: LocalProgram(one, kind)) as bench:
        found = (broken(bench, seed) for seed in range(1, ENOUGH))
        said = next(str(one) for one in found if one is not None and one.invariant == "I3")
    assert re.search(r"g_0 delivers t-\d, which (has no owner|\S+ owns in session \d+)", said), said


def test_the_naive_member_registers() -> None:
    """The first rung encourages: the naive member passes it."""
    kind = example("naive").Naive
    with court(CHALLENGES["register"], lambda one: LocalProgram(one, kind)) as bench:
        assert [found for seed in range(1, 11) if (found := broken(bench, seed))] == []


def test_a_member_that_never_commits_fails() -> None:
    """A member that delivers everything and stores nothing fails the challenge `claim`."""
    kind = example("solution").Solution

    class Silent(kind):  # type: ignore[misc, valid-type] # the example's class is loaded at run time
        async def commit(self, one: int, position: int) -> None:
            """Store nothing."""

    with court(CHALLENGES["claim"], lambda one: LocalProgram(one, Silent)) as bench:
        found = broken(bench, 1)
    assert found is not None and found.promise == "stores_what_it_has_delivered"


def test_offsets_that_nobody_can_read() -> None:
    """An offset that is no decimal number breaks a promise when it is written."""
    kind = example("solution").Solution

    class Writer(kind):  # type: ignore[misc, valid-type] # as above
        def create(self, path: str, **options: Any) -> Request:
            if "/offsets/t/" in path:
                options["data"] = '{"offset": 3}'
            return super().create(path, **options)  # type: ignore[no-any-return] # as above

    with court(CHALLENGES["claim"], lambda one: LocalProgram(one, Writer)) as bench:
        found = broken(bench, 1)
    assert found is not None and found.promise == "writes_readable_offsets"


def test_the_late_commit_moves_an_offset_back() -> None:
    """A careful member whose commit checks nothing breaks the promise that 'zombie' is about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        kind = example("late_commit").LateCommit
    with court(CHALLENGES["zombie"], lambda one: LocalProgram(one, kind)) as bench:
        found = (broken(bench, seed) for seed in range(1, 20))
        assert {one.invariant for one in found if one is not None} == {"I8"}


ORDERS: dict[str, Callable[[str], tuple[str | int, ...]]] = {
    "by number": lambda thread: (thread.rpartition("-")[0], int(thread.rpartition("-")[2])),
    "without case": lambda thread: (thread.lower(),),
    "by consumer": lambda thread: (consumer_of(thread), thread),
    "by letter": lambda thread: (thread.replace("é", "e"),),
}
"""Orders of thread ids that are not Java's order of strings."""


@pytest.mark.parametrize("order", ORDERS)
def test_another_order_fails_range(order: str) -> None:
    """A member that sorts the thread ids otherwise than Java fails the challenge `range`."""
    kind = example("solution").Solution

    class Sorting(kind):  # type: ignore[misc, valid-type] # the example's class is loaded at run time
        async def share(self, partitions: list[int]) -> dict[int, str]:
            members = await self.members()
            ids = [(f"{name}-{one}", name) for name in members for one in range(members[name])]
            ids.sort(key=lambda one: ORDERS[order](one[0]))
            each, more = divmod(len(partitions), len(ids))
            owners = [one for at, one in enumerate(ids) for _ in range(each + (at < more))]
            mine = zip(partitions, owners, strict=True)
            return {number: thread for number, (thread, name) in mine if name == self.name}

    with court(CHALLENGES["range"], lambda one: LocalProgram(one, Sorting)) as bench:
        assert any(broken(bench, seed) is not None for seed in range(1, 25))
