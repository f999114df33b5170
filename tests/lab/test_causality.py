"""The causal record of a run: each message has a sender, and each step names a rule of the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from zkconsumer.lab.engine import Engine
from zkconsumer.lab.tours import TOURS
from zkconsumer.later import classic_group, classic_member, consumer_member, group_coordinator
from zkconsumer.member import machine
from zkconsumer.sim.weakened import SWITCHES

RUNS: dict[str, dict[str, Any]] = {
    "ZooKeeper": {
        "world": {"members": 3, "partitions": 4},
        "moves": "join:3,30,cut:1,60,kill:0,90",
    },
    "servers": {"world": {"members": 3}, "moves": "lag:0,40,isolate:1,join:3,200,rejoin:1,60"},
    "JVM": {"world": {"members": 3, "jvm": [0, 1]}, "moves": "join:3,90,cut:0,60"},
    "scenario": {"scenario": "a-zombie-wakes"},
    "classic": {
        "world": {"protocol": "classic-eager"},
        "moves": "30,kill:1,60,kill_broker:0,20,coordinate:1,60",
    },
    "consumer": {
        "world": {"protocol": "consumer"},
        "moves": "join:3,40,hold:1,30,let_go:1,freeze:0,50,thaw:0,40,cut:2,20",
    },
}

OF_THE_USER = ("gets SIG", "starts", "breaks", "network", "connect", "connection")
"""Words in the texts of member events that no rule of a member decides."""


def opened(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the frames of a run."""
    _, frames = Engine().command({"do": "open", **run})
    found: list[dict[str, Any]] = frames["frames"]
    return found


def events_of(frames: list[dict[str, Any]]) -> list[tuple[str, str, list[Any], list[str]]]:
    return [tuple(event) for frame in frames for event in frame.get("ev", ())]


Clock = dict[str, int]


def clocks_of(frames: list[dict[str, Any]]) -> Iterator[tuple[str, Clock]]:
    """Yield the line and the vector clock of each event, by the definition of Mattern."""
    latest: dict[str, Clock] = {}
    all_clocks: list[Clock] = []
    for line, _, received, _ in events_of(frames):
        parents = [all_clocks[sent] for _, sent, _ in received if sent >= 0]
        parents.append(latest.get(line, {}))
        clock = {
            name: max(one.get(name, 0) for one in parents)
            for name in {name for one in parents for name in one}
        }
        clock[line] = clock.get(line, 0) + 1
        latest[line] = clock
        all_clocks.append(clock)
        yield line, clock


def check_shiviz(text: str, frames: list[dict[str, Any]]) -> None:
    """Check a file as ShiViz opens it: hosts, clocks, and that each receive follows its send.

    The first line is the regular expression of an entry, the second line says that the file has one
    execution, and the rest is the log.
    """
    entry, delimiter, log = text.split("\n", 2)
    assert delimiter == ""
    found = re.findall("^" + entry.replace("(?<", "(?P<") + "$", log, re.MULTILINE)
    assert log == "".join(f"{host} {clock}\n{event}\n" for host, clock, event in found)
    seen: dict[str, Clock] = {}
    for host, clock_text, event in found:
        clock, before = json.loads(clock_text), seen.get(host, {})
        assert clock[host] == before.get(host, 0) + 1, event
        assert all(clock.get(name, 0) >= count for name, count in before.items()), event
        others = {name: count for name, count in clock.items() if name != host}
        assert all(seen[name][name] >= count for name, count in others.items()), event
        seen[host] = clock
    wanted = [(line.replace(" ", "-"), clock) for line, clock in clocks_of(frames)]
    got = [(host, json.loads(clock)) for host, clock, _ in found]
    assert got == [(line, {k.replace(" ", "-"): n for k, n in one.items()}) for line, one in wanted]


@pytest.mark.parametrize("name", RUNS)
def test_each_message_is_received_after_it_was_sent(name: str) -> None:
    """Each message has a sender on another line with a smaller number; faults lose messages."""
    frames = opened(RUNS[name])
    events = events_of(frames)
    lost = [one for frame in frames for one in frame.get("lost", ())]
    for number, (line, _, received, _) in enumerate(events):
        for kind, sent, text in received:
            assert sent < number, (number, kind, text)
            assert sent < 0 or events[sent][0] != line
    arrived = [(kind, sent, text) for _, _, received, _ in events for kind, sent, text in received]
    assert sum(kind in ("request", "commit") for kind, _, _ in arrived) >= 20
    if name in ("ZooKeeper", "JVM", "classic"):
        assert lost, "a connection broke or a process ended while messages were in transit"


@pytest.mark.parametrize("name", RUNS)
def test_each_step_has_its_message(name: str) -> None:
    """A served request and a received reply or watch event arrive in the event of their move."""
    for frame in opened(RUNS[name]):
        # After a fault, a client may answer its requests itself: their connection is broken.
        if frame["d"].startswith(("cut", "isolate", "kill")):
            break
        kinds = [kind for _, _, received, _ in frame.get("ev", ()) for kind, *_ in received]
        if frame["d"].startswith("serve:"):
            assert sum(kind in ("request", "commit") for kind in kinds) == 1, frame
        is_answer = re.search(r"receives: (?:reply|watch|[1-9]\d* replies)", frame["l"])
        if frame["d"].startswith("receive:") and is_answer:
            assert "reply" in kinds or "watch" in kinds, frame


@pytest.mark.parametrize("name", RUNS)
def test_each_step_names_its_rule(name: str) -> None:
    """Each event of a member names at least one function, with a docstring, that decides it."""
    members = re.compile(r"g_\d+")
    for frame in opened(RUNS[name]):
        for line, text, _, rules in frame.get("ev", ()):
            assert all(re.fullmatch(r"[\w.<>]+( \([\w., ]+\))?: \S.*", rule) for rule in rules), (
                rules
            )
            if members.fullmatch(line) and not any(one in text for one in OF_THE_USER):
                is_jvm = name == "JVM" and line in ("g_0", "g_1")
                assert rules or is_jvm, (line, text, frame["l"])


def test_every_handler_says_what_it_decides() -> None:
    """Every handler of a state machine has a docstring, whose first line the lab shows."""
    tables = (
        *(machine.HANDLERS, machine.OUTCOME_HANDLERS, classic_group.HANDLERS),
        *(classic_member.HANDLERS, classic_member.ANSWERS, group_coordinator.HANDLERS),
        *(consumer_member.HANDLERS, consumer_member.ANSWERS),
    )
    silent = {it.__qualname__ for table in tables for it in table.values() if not it.__doc__}
    assert silent == set()


def test_a_fork_keeps_the_record() -> None:
    """A run that goes back and repeats its moves has the same events with the same numbers."""
    engine = Engine()
    run, before = engine.command({"do": "open", **RUNS["ZooKeeper"]})
    at = len(before["frames"]) - 70
    *_, after = engine.command({"do": "act", "run": run["run"], "at": at, "move": "cut:2"})
    again = opened({**RUNS["ZooKeeper"], "moves": after["moves"]})
    number = len(events_of(before["frames"][:at]))
    assert events_of(again)[number:] == events_of(after["frames"])
    assert events_of(again)[:number] == events_of(before["frames"][:at])


def test_every_tour_ends_with_a_search() -> None:
    """The last step of each tour offers a search whose switch exists; the page fills the form."""
    known = {one.name for one in SWITCHES}
    for name in TOURS:
        *_, tour = Engine().command({"do": "tour", "tour": name})
        assert set(tour["breaks"]["search"]["weak"]) <= known
        (begun,) = Engine().command({"do": "search", "world": tour["breaks"]["search"]})
        assert begun["state"] == "searching", name
