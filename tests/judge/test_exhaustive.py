"""The exhaustive search of programs, which continues from any state by a replay from `reset`."""

from __future__ import annotations

from judge.examples import example

from zkconsumer.judge.challenges import CHALLENGES
from zkconsumer.judge.exhaustive import explore, numbered, retrace
from zkconsumer.judge.program import LocalProgram
from zkconsumer.protocol.model import JsonObject


def test_the_naive_member_loses_a_reply() -> None:
    """The search finds and tells that the naive member never recovers from a lost connection."""
    programs = [LocalProgram("g_0", example("naive").Naive)]
    found = explore(CHALLENGES["lost-reply"], programs, max_s=60.0)
    assert found.violation is not None
    assert found.violation.invariant == "I12"
    assert found.depth <= 6
    numbers = numbered(CHALLENGES["lost-reply"], programs, found.path)
    entries: list[JsonObject] = []
    again = retrace(CHALLENGES["lost-reply"], programs, numbers, entries.append)
    assert str(again) == str(found.violation)
    assert "the connection of g_0 breaks" in [one.get("note") for one in entries]


def test_the_solution_recovers() -> None:
    """The solution survives what the naive member does not, at the same depth."""
    programs = [LocalProgram("g_0", example("solution").Solution)]
    found = explore(CHALLENGES["lost-reply"], programs, max_s=1.0)
    assert found.violation is None
    assert found.states > 3
