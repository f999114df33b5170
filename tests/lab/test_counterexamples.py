"""The lab's search for a run that breaks a promise, without a browser."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

import pytest

from zkconsumer.errors import ConfigError
from zkconsumer.lab.counterexamples import search
from zkconsumer.lab.engine import Engine
from zkconsumer.lab.famous import FAMOUS
from zkconsumer.lab.questions import QUANTITIES, parse_question
from zkconsumer.lab.worlds import parse_world
from zkconsumer.member import phases, session
from zkconsumer.sim.weakened import SWITCHES, planted

WORLD = {"members": 2, "spare": 1, "partitions": 4}


def searched(engine: Engine, world: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the last events of a search."""
    events = engine.command({"do": "search", "world": world})
    while events[-1].get("state") in ("searching", "shortening"):
        events = engine.command({"do": "search_on"})
    return events


def broken(frames: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Return the number of each move that breaks a promise, and the promise."""
    return [
        (at, event[1])
        for at, frame in enumerate(frames)
        for event in frame.get("x", ())
        if event[0] == "broken"
    ]


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda one: one.name)
def test_a_counterexample_is_found(switch: Any) -> None:
    """The last move of the run breaks the usual promise, and the address opens the same run."""
    engine = Engine()
    opened, frames, found = searched(engine, {**WORLD, "weak": [switch.name]})
    assert found["state"] == "found"
    assert found["chosen"] <= found["before"]
    number = switch.breaks if switch.breaks.startswith("I") else "comparison"
    assert broken(frames["frames"]) == [(len(frames["frames"]) - 1, number)]
    again = Engine().command({"do": "open", **opened["base"], "moves": frames["moves"]})
    assert again[1]["frames"] == frames["frames"]


def test_without_a_weakened_part_nothing_is_found() -> None:
    """The complete members keep every promise in the first schedules of a search."""
    one = search(parse_world({**WORLD, "asks": "any"}))
    while one.schedules < 40:
        one.advance(0.1)
    assert one.found is None
    assert not one.others


def test_nothing_stays_weakened() -> None:
    """After each command, the process runs the complete code again, even after an error."""
    before = vars(session)["_open"], phases.check_change
    engine = Engine()
    run, *_ = engine.command({"do": "open", "world": {**WORLD, "weak": ["no lease"]}})
    engine.command({"do": "step", "run": run["run"], "count": 3})
    engine.command({"do": "act", "run": run["run"], "at": 3, "move": "no such move"})
    with pytest.raises(ZeroDivisionError), planted(["no lease", "trigger lost"]):
        assert vars(session)["_open"] is not before[0]
        raise ZeroDivisionError
    assert (vars(session)["_open"], phases.check_change) == before


@pytest.mark.parametrize(
    "text",
    [
        "any",
        "I3",
        "deliverers(partition) <= 1",
        "offset(partition) <= position(partition)",
        *(f"{name}(partition) >= 0" for name in QUANTITIES),
    ],
)
def test_questions(text: str) -> None:
    """A question that is written out again is the same question."""
    assert parse_question(f" {text} ").text == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I99", "there is no promise I99"),
        ("", "neither a promise nor one comparison"),
        ("owners(partition)", "neither a promise nor one comparison"),
        ("0 < owners(partition) < 2", "neither a promise nor one comparison"),
        ("owner(partition) = 1", "'owner(partition)' is neither a number nor a quantity"),
        ("__import__('os') = 1", "is neither a number nor a quantity"),
        ("1 = 1", "the comparison has no quantity"),
        ("offset(partition) <= 1e9", "'1e9' is neither a number nor a quantity"),
    ],
)
def test_unreadable_questions(text: str, said: str) -> None:
    """An unreadable question is refused; the error says what is wrong and what to ask."""
    with pytest.raises(ConfigError) as error:
        parse_question(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("world", "said"),
    [
        ({"members": 20}, "a search has at most 8 for members, not 23"),
        ({"partitions": 100}, "a search has at most 12 for partitions, not 100"),
        ({"protocol": "consumer"}, "a search needs a group with ZooKeeper, not consumer"),
        ({"weak": ["no luck"]}, "no part is weakened by 'no luck'"),
        ({"asks": "I99"}, "there is no promise I99"),
    ],
)
def test_worlds_without_a_search(world: dict[str, Any], said: str) -> None:
    """A world that cannot be searched is refused with the reason."""
    (error,) = Engine().command({"do": "search", "world": world})
    assert error["event"] == "error"
    assert said in error["text"]


@pytest.mark.parametrize("famous", FAMOUS, ids=lambda one: one.title)
def test_famous_runs(famous: Any) -> None:
    """Each famous run opens, and a run with a question breaks what it asks."""
    given: dict[str, Any] = dict(parse_qsl(famous.address))
    world = json.loads(given.pop("world", "{}"))
    do = {"do": "tour"} if "tour" in given else {"do": "open", "world": world}
    opened, frames, *_ = Engine().command({**do, **given})
    assert opened["event"] == "run", opened
    assert bool(broken(frames["frames"])) == bool(world)
