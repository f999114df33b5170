"""The lab's engine: any moment of a run can be reopened, changed, shared, and explained."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from zkconsumer.lab.engine import Engine
from zkconsumer.lab.runs import MOVES_BETWEEN_COPIES, open_world
from zkconsumer.lab.stage import NOBODY
from zkconsumer.lab.texts import request_text
from zkconsumer.lab.tours import TOURS
from zkconsumer.lab.worlds import (
    BRIDGED,
    MAX_MOVES,
    LabMove,
    parse_move,
    parse_world,
    read_moves,
    write_moves,
)
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.compare.run import PROTOCOLS
from zkconsumer.sim.coordinated.stories import ASSIGNORS
from zkconsumer.sim.scenarios import SCENARIOS
from zkconsumer.trace.replay import check

LESSONS = Path(__file__).parents[2] / "docs/lessons"

Json = dict[str, Any]
MIXED = {"members": 2, "jvm": [1], "partitions": 4}


class Lab:
    """An engine, and the frames of its runs, stored as the browser page stores them."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.frames: dict[int, list[Json]] = {}
        self.moves: dict[int, str] = {}

    def do(self, do: str, **keys: Any) -> list[Json]:
        events: list[Json] = json.loads(json.dumps(self.engine.command({"do": do, **keys})))
        for event in events:
            assert event["event"] != "error", event["text"]
            if event["event"] == "frames":
                kept = self.frames.setdefault(event["run"], [])
                kept[event["from"] :] = event["frames"]
                self.moves[event["run"]] = event["moves"]
            elif event["event"] == "run":
                self.frames[event["run"]] = self.frames.get(event["parent"], [])[:]
                del self.frames[event["run"]][event.get("forked_at", 0) :]
        return events

    def open(self, **keys: Any) -> int:
        number: int = self.do("open", **keys)[0]["run"]
        return number

    def refused(self, do: str, **keys: Any) -> str:
        (event,) = self.engine.command({"do": do, **keys})
        assert event["event"] == "error"
        return str(event["text"])


def test_a_killed_members_partitions_are_taken_over() -> None:
    """A kill leaves partitions without a living owner until the session times out."""
    lab = Lab()
    run = lab.open(world={"members": 2, "partitions": 4})
    lab.do("act", run=run, at=0, move="kill:1")
    lab.do("step", run=run, until="owner")
    last = lab.frames[run][-1]
    assert last["t"] > 5
    assert [row[0] for row in last["p"].values()] == [NOBODY, NOBODY]
    lab.do("step", run=run, until="rest")
    counters = lab.frames[run][-1]["c"]
    assert counters[3] > 0, "partition-seconds without an owner"
    assert counters[5] == 2, "partitions that moved"


@pytest.mark.parametrize("world", [{"members": 3}, {"members": 3, "seed": 7}, MIXED])
def test_the_address_gives_the_same_run(world: Json) -> None:
    """In another engine, the world and the moves of a shared URL give the same frames."""
    lab = Lab()
    run = lab.open(world=world)
    for move in ("cut:0", "freeze:1", "hold:0"):
        lab.do("act", run=run, at=len(lab.frames[run]), move=move)
        lab.do("step", run=run, count=30)
    lab.do("act", run=run, at=len(lab.frames[run]), move="let_go:0")
    lab.do("step", run=run, count=200)
    other = Lab()
    copy = other.open(world=world, moves=lab.moves[run])
    assert other.frames[copy] == lab.frames[run]


@pytest.mark.parametrize("world", [{"members": 3}, MIXED])
def test_an_action_in_the_past_forks(world: Json) -> None:
    """A fork keeps the moves before it, and leaves the first run unchanged."""
    lab = Lab()
    run = lab.open(world=world)
    lab.do("step", run=run, count=300)
    before = list(lab.frames[run])
    opened, *_ = lab.do("act", run=run, at=120, move="kill:0")
    fork = opened["run"]
    assert (opened["parent"], opened["forked_at"]) == (run, 120)
    assert lab.frames[fork][:120] == before[:120] == lab.frames[run][:120]
    assert lab.frames[fork][120]["d"] == "kill:0"
    lab.do("step", run=fork, count=400)
    assert lab.frames[run] == before
    other = Lab()
    assert other.frames[other.open(world=world, moves=lab.moves[fork])] == lab.frames[fork]


def test_moves_that_were_not_shown_are_forgotten() -> None:
    """The page can remove fetched moves; the next action then continues the same run."""
    lab = Lab()
    run = lab.open(world=MIXED)
    lab.do("step", run=run, count=130)
    before = lab.frames[run][:70]
    lab.do("forget", run=run, at=70)
    assert (lab.frames[run], lab.moves[run]) == (before, "70")
    (frames,) = lab.do("act", run=run, at=70, move="kill:0")
    assert frames["run"] == run
    lab.do("step", run=run, count=50)
    other = Lab()
    assert other.frames[other.open(world=MIXED, moves=lab.moves[run])] == lab.frames[run]


def test_a_world_with_jvm_members_is_copied() -> None:
    """A copy repeats the frames of the original, also while programs of JVM members run."""
    moves = (
        "9,join:2,60,cut:1,40,commit:1,9,freeze:1,30,thaw:1,9,hold:2,30,let_go:2,20,no_quorum,25,"
        "quorum,60,kill:1,40,revive:1,90,leave:2,60"
    )
    run = open_world(1, parse_world({"members": 2, "jvm": [1, 2], "partitions": 4}))
    copies, busy = {}, 0
    for move in read_moves(moves):
        if run.length % 5 == 0:
            copies[run.length] = run.stage.copy()
            busy += any(not run.stage.world.members[who].settled for who in (1, 2))
        run.stage.step() if move is None else run.stage.move(move)
    assert len(run.stage.frames) == len(read_moves(moves))
    assert busy > 20
    for at, copy in copies.items():
        twin = copy.copy()
        for stage in (copy, twin):
            for move in run.stage.moves[at : at + 20]:
                stage.move(move)
            assert stage.frames == run.stage.frames[at : at + 20], at
    assert set(range(0, run.length, MOVES_BETWEEN_COPIES)) <= run.copies.keys()


def test_a_jvm_member_that_starts_again_is_a_jvm_member() -> None:
    """After a kill, a JVM member is started again as a JVM member."""
    lab = Lab()
    run = lab.open(world=MIXED, moves="kill:1,revive:1,20")
    kinds = [one["m"]["1"]["k"] for one in lab.frames[run] if "1" in one.get("m", {})]
    assert len(kinds) > 2
    assert set(kinds) == {"jvm"}


def test_any_possible_action_can_be_next() -> None:
    """Each listed action can be performed, and the default action is in the list."""
    lab = Lab()
    run = lab.open(world={"members": 2})
    lab.do("act", run=run, at=0, move="kill:1")
    lab.do("step", run=run, until="owner")
    at = len(lab.frames[run])
    (found,) = lab.do("choices", run=run, at=at)
    assert [one["next"] for one in found["choices"]].count(True) == 1
    for one in found["choices"]:
        lab.do("act", run=run, at=at, move=one["move"])


@pytest.mark.parametrize("world", [{"members": 3}, MIXED])
def test_every_fault_that_is_offered_can_be_chosen(world: Json) -> None:
    """The engine can perform each fault and each repair that it offers."""
    lab = Lab()
    run = lab.open(world=world)
    lab.do("step", run=run, count=50)
    (found,) = lab.do("choices", run=run, at=50)
    assert len(found["faults"]) > 25
    for one in found["faults"]:
        *_, frames = lab.do("act", run=run, at=50, move=one["move"])
        lab.do("step", run=frames["run"], count=60)


def test_messages_of_a_delayed_member_do_not_arrive() -> None:
    """While a member's messages are delayed, neither its requests nor their replies arrive."""
    lab = Lab()
    run = lab.open(world={"members": 2})
    lab.do("act", run=run, at=0, move="hold:0")
    lab.do("step", run=run, until=3)
    moves = [frame["d"] for frame in lab.frames[run]]
    assert "serve:1" in moves
    assert not {"serve:0", "receive:0"} & set(moves)


def test_a_lost_reply_breaks_the_connection_after_the_request() -> None:
    """The server executes the request, but the connection breaks before the reply arrives."""
    lab = Lab()
    run = lab.open(world={"members": 1})
    lab.do("act", run=run, at=0, move="lose_reply:0")
    lab.do("step", run=run, count=200)
    moves = [frame["d"] for frame in lab.frames[run]]
    assert moves[moves.index("serve:0") + 1] == "cut:0"


def test_an_offset_that_another_client_writes_is_shown() -> None:
    """The frame shows the offset that another client wrote."""
    lab = Lab()
    run = lab.open(world={"members": 1, "partitions": 1})
    lab.do("step", run=run, until=7)
    lab.do("act", run=run, at=len(lab.frames[run]), move="set_offset::t~0:1")
    assert lab.frames[run][-1]["p"]["0"][1] == "1"


def test_the_leader_dies() -> None:
    """When the leader dies, the ensemble has no quorum until a new leader is elected."""
    lab = Lab()
    run = lab.open(world={"members": 2})
    lab.do("act", run=run, at=0, move="leader_dies")
    quorums = [frame["k"]["quorum"] for frame in lab.frames[run] if "k" in frame]
    assert quorums == [False, True]


# ---- messages in transit ------------------------------------------------------------------------


def _with_a_watch(lab: Lab) -> tuple[int, list[str]]:
    """Open a group that a member joins; stop when a watch event is on its way to `g_0`."""
    run = lab.open(world={"members": 2})
    lab.do("act", run=run, at=0, move="join:2")
    for _ in range(100):
        view = lab.frames[run][-1].get("m", {}).get("0", {})
        if any(text.startswith("watch") for text in view.get("i", ["", ""])[1:]):
            return run, view["i"][1:]
        lab.do("step", run=run, count=1)
    raise AssertionError("no watch was sent")


def test_one_watch_is_delayed() -> None:
    """A delayed watch event delays all replies behind it, but not the replies before it."""
    lab = Lab()
    run, items = _with_a_watch(lab)
    at = next(n for n, text in enumerate(items) if text.startswith("watch"))
    lab.do("act", run=run, at=len(lab.frames[run]), move=f"delay_reply:0:::{at}")
    assert lab.frames[run][-1]["m"]["0"]["id"] == at
    first = len(lab.frames[run])
    lab.do("step", run=run, until=3)
    assert [one["d"] for one in lab.frames[run][first:]].count("receive:0") == at
    lab.do("act", run=run, at=len(lab.frames[run]), move="let_go:0")
    lab.do("step", run=run, count=20)
    assert "receives: watch" in " ".join(one["l"] for one in lab.frames[run][first:])


def test_one_request_is_delayed() -> None:
    """While a request is delayed, it does not reach the server."""
    lab = Lab()
    run = lab.open(world={"members": 2})
    lab.do("act", run=run, at=0, move="commit:0")
    while "w" not in lab.frames[run][-1].get("m", {}).get("0", {}):
        lab.do("step", run=run, count=1)
    first = len(lab.frames[run])
    lab.do("act", run=run, at=first, move="delay_request:0")
    lab.do("step", run=run, until=2)
    assert "serve:0" not in [one["d"] for one in lab.frames[run][first:]]


@pytest.mark.parametrize("way", ["reply", "request"])
def test_a_dropped_message_ends_the_connection(way: str) -> None:
    """A dropped message breaks the connection after the replies before it; the group settles."""
    lab = Lab()
    run, items = _with_a_watch(lab)
    at = next(n for n, text in enumerate(items) if text.startswith("watch"))
    if way == "request":
        lab.do("act", run=run, at=len(lab.frames[run]), move="commit:0")
        while "w" not in lab.frames[run][-1].get("m", {}).get("0", {}):
            lab.do("step", run=run, count=1)
        at = 0
    first = len(lab.frames[run])
    lab.do("act", run=run, at=first, move=f"drop_{way}:0:::{at}")
    moves = [one["d"] for one in lab.frames[run][first:]]
    assert moves == ["receive:0"] * at + ["cut:0", "notice:0"]
    lab.do("step", run=run, until="rest")
    owners = {row[0] for one in lab.frames[run] for row in one.get("p", {}).values()}
    assert 2 in owners, "the group settles with the new member despite the dropped message"
    other = Lab()
    copy = other.open(world={"members": 2}, moves=lab.moves[run])
    assert other.frames[copy] == lab.frames[run]


WORLDS = [{"members": 3}, MIXED, {"protocol": "consumer"}, {"protocol": "classic-eager"}]
LATE_CHANGES = ["kill:1", "freeze:1", "mute:1"]


@pytest.mark.parametrize("world", WORLDS)
def test_the_search_for_a_change_of_owner_ends(world: Json) -> None:
    """The search ends soon in a settled group, and finds the change of owner after a fault."""
    lab = Lab()
    run = lab.open(world=world)
    lab.do("step", run=run, until="owner")
    settled = len(lab.frames[run])
    assert settled < 50
    # With ZooKeeper, heartbeats are not held back.
    for move in [*LATE_CHANGES, *(["hold:1"] if "protocol" in world else [])]:
        run = lab.open(world=world)
        lab.do("act", run=run, at=0, move=move)
        lab.do("step", run=run, until="owner")
        assert lab.frames[run][-1].get("o"), move


# ---- groups with a coordinator -------------------------------------------------------------------

COORDINATED = ["classic-eager", "classic-cooperative", "consumer"]


@pytest.mark.parametrize("protocol", COORDINATED)
def test_a_group_with_a_coordinator(protocol: str) -> None:
    """In a coordinated group, a killed member keeps its partitions until its session ends."""
    lab = Lab()
    world = {"protocol": protocol, "members": 3, "partitions": 6}
    opened, _ = lab.do("open", world=world)
    run = opened["run"]
    assert sorted(row[1] for row in opened["scene"]["partitions"]) == [0, 0, 1, 1, 2, 2]
    lab.do("act", run=run, at=0, move="kill:1")
    lab.do("step", run=run, until="owner")
    assert lab.frames[run][-1]["t"] > opened["scene"]["t"] + 40
    lab.do("step", run=run, until="rest")
    rows = {n: row[1] for n, row in enumerate(opened["scene"]["partitions"])}
    for frame in lab.frames[run]:
        rows |= {int(n): row[0] for n, row in frame.get("p", {}).items()}
    assert sorted(rows.values()) == [0, 0, 0, 2, 2, 2]
    lab.do("act", run=run, at=len(lab.frames[run]), move="join:3")
    lab.do("step", run=run, count=100)
    other = Lab()
    assert other.frames[other.open(world=world, moves=lab.moves[run])] == lab.frames[run]
    fork, *_ = lab.do("act", run=run, at=50, move="freeze:0")
    assert fork["parent"] == run
    assert lab.frames[fork["run"]][50]["d"] == "freeze:0"
    (trace,) = lab.do("trace", run=run)
    assert json.loads(trace["text"].splitlines()[0])["t"] >= 0
    (why,) = lab.do("explain", run=run, at=0, partition=0)
    assert "t-0 is assigned to g_" in why["text"]


@pytest.mark.parametrize("protocol", COORDINATED)
def test_every_move_of_a_coordinated_group(protocol: str) -> None:
    """After each offered action and fault, a coordinated group can continue to run."""
    lab = Lab()
    run = lab.open(world={"protocol": protocol, "members": 2, "seed": 3})
    lab.do("act", run=run, at=0, move="join:2")
    lab.do("step", run=run, count=12)
    (found,) = lab.do("choices", run=run, at=12)
    assert [one["next"] for one in found["choices"]].count(True) == 1
    assert len(found["faults"]) > 20
    for one in [*found["choices"], *found["faults"]]:
        *_, frames = lab.do("act", run=run, at=12, move=one["move"])
        lab.do("step", run=frames["run"], count=30)


@pytest.mark.parametrize("protocol", COORDINATED)
def test_a_coordinated_group_is_copied(protocol: str) -> None:
    """A fork from a saved copy of the world gives the frames of a replay from the start."""
    lab = Lab()
    moves = "join:3,20,freeze:0,10,hold:1,30,kill_broker:0,40,coordinate:1,9,thaw:0,let_go:1,40"
    world = {"protocol": protocol, "members": 3, "seed": 3}
    run = lab.open(world=world, moves=moves)
    before, length = list(lab.frames[run]), len(lab.frames[run])
    copied = open_world(1, parse_world(world))
    while copied.length < 2 * MOVES_BETWEEN_COPIES:
        copied.stage.step()
    assert list(copied.copies) == [0, MOVES_BETWEEN_COPIES, 2 * MOVES_BETWEEN_COPIES]
    for at in (30, 55, 100, 110, length - 1):
        opened, *_ = lab.do("act", run=run, at=at, move="grow")
        fork = opened["run"]
        lab.do("step", run=fork, count=80)
        other = Lab()
        assert other.frames[other.open(world=world, moves=lab.moves[fork])] == lab.frames[fork]
    lab.do("step", run=run, count=40)
    assert lab.frames[run][:length] == before
    other = Lab()
    assert other.frames[other.open(world=world, moves=lab.moves[run])] == lab.frames[run]


def test_a_coordinated_group_without_members() -> None:
    """If nothing happens time advances in steps, and a member can still join."""
    lab = Lab()
    run = lab.open(world={"protocol": "consumer", "members": 0})
    lab.do("step", run=run, count=20)
    assert len(lab.frames[run]) == 20
    lab.do("act", run=run, at=20, move="join:0")
    lab.do("step", run=run, until="owner")
    assert lab.frames[run][-1]["o"]


def test_the_coordinator_moves() -> None:
    """If another broker becomes coordinator, the members find it and keep their partitions."""
    lab = Lab()
    run = lab.open(world={"protocol": "classic-eager", "members": 2})
    lab.do("act", run=run, at=0, move="coordinate:1")
    assert lab.frames[run][0]["k"]["leader"] == 1
    lab.do("step", run=run, until=10)
    asked = [one["l"] for one in lab.frames[run] if one["d"].startswith("serve")]
    assert any("broker 1 receives from g_0: Heartbeat" in text for text in asked)
    assert not [one for one in lab.frames[run] if "o" in one]


@pytest.mark.parametrize("do", ["delay", "drop"])
def test_a_reply_of_a_coordinator_in_transit(do: str) -> None:
    """A delayed reply arrives ten seconds later; a dropped reply breaks the connections."""
    lab = Lab()
    run = lab.open(world={"protocol": "classic-eager", "members": 1, "flow": 0})
    while "i" not in (lab.frames[run] or [{}])[-1].get("m", {}).get("0", {}):
        lab.do("step", run=run, count=1)
    first, before = len(lab.frames[run]), lab.frames[run][-1]["t"]
    lab.do("act", run=run, at=first, move=f"{do}_reply:0")
    if do == "drop":
        assert [one["d"] for one in lab.frames[run][first:]] == ["cut:0"]
        return
    lab.do("step", run=run, until=11)
    replies = [one["t"] for one in lab.frames[run][first:] if one["d"].startswith("receive:0")]
    assert replies[0] > before + 9


@pytest.mark.parametrize(
    ("do", "keys", "words"),
    [
        ("fly", {}, "no command"),
        ("open", {"world": {"members": 65}}, "members is 65"),
        ("open", {"world": {"partitions": "many"}}, "partitions is 'many'"),
        ("open", {"world": {"colour": 1}}, "no parameter 'colour'"),
        ("open", {"world": {"jvm": [9]}}, "jvm is"),
        ("open", {"world": {"release": "2.0"}}, "not a Kafka release"),
        ("open", {"moves": "10,jump:1"}, "not a move"),
        ("open", {"moves": "99999"}, "more than"),
        ("open", {"scenario": "<script>"}, "no scenario"),
        ("step", {"run": 99}, "no run"),
        ("open", {"world": {"protocol": "raft"}}, "protocol is 'raft'"),
        ("open", {"world": {"protocol": "consumer", "threads": 2}}, "no parameter 'threads'"),
        ("open", {"world": {"protocol": "consumer", "session_s": 5}}, "session_s is 5"),
        ("open", {"world": {"protocol": "classic-eager", "session_s": 5}}, "give 6 or more"),
        ("act", {"run": 1, "at": 0, "move": "coordinate:1"}, "no coordinator"),
        ("act", {"run": 1, "at": 0, "move": "drop_reply:0"}, "no longer in transit"),
        ("act", {"run": 1, "at": 0, "move": "delay_request:9"}, "no member 9"),
        ("act", {"run": 1, "at": 0, "move": "thaw:0"}, "impossible"),
        ("act", {"run": 1, "at": -1, "move": "kill:0"}, "no move -1"),
        ("act", {"run": 1, "at": 0, "move": "produce:::0"}, "1 to 1000"),
        ("open", {"moves": "pass_time:::nan"}, "'pass_time:::nan' is not a move"),
        ("open", {"moves": "pass_time:::-inf"}, "'pass_time:::-inf' is not a move"),
        ("open", {"scenario": ["x"]}, "no scenario"),
        ("step", {"run": 1, "count": "x"}, "count is 'x'"),
        ("step", {"run": {}}, "there is no run {}"),
        ("table", {"table": {}}, "no table"),
        ("tour", {"tour": []}, "no tour"),
        ("explain", {"run": 1, "at": 0, "partition": 99}, "no partition"),
        ("tour", {"tour": "nowhere"}, "no tour"),
        ("table", {"table": "x"}, "no table"),
        ("compare", {"protocols": []}, "no protocol"),
        ("compare", {"protocols": ["raft"]}, "not a protocol"),
        ("compare", {"members": 17}, "17 members"),
        ("compare", {"members": "x"}, "members is 'x'"),
        ("compare", {"script": "kill g_7"}, "not in the group"),
        ("compare", {"script": "join;" * 9}, "9 steps"),
    ],
)
def test_a_refusal_says_what_is_wrong(do: str, keys: Json, words: str) -> None:
    """An invalid command gives one error that says what is wrong."""
    lab = Lab()
    lab.open()
    assert words in lab.refused(do, **keys)


@pytest.mark.parametrize("name", TOURS)
def test_a_tour_reaches_its_situations(name: str) -> None:
    """Each step of a tour shows a later time than the step before it."""
    lab = Lab()
    *_, tour = lab.do("tour", tour=name)
    at = [step["at"] for step in tour["steps"]]
    assert at == sorted(set(at))
    assert at[-1] == len(lab.frames[tour["run"]])


@pytest.mark.parametrize("name", TOURS)
def test_a_tour_opens_again_from_its_moves(name: str) -> None:
    """The moves in a page's address reproduce a tour, except for its announcements."""
    lab = Lab()
    run, frames, _ = lab.do("tour", tour=name)
    copy = lab.open(**run["base"], moves=frames["moves"])
    for one, other in zip(lab.frames[copy], lab.frames[run["run"]], strict=True):
        assert one | {"say": ""} == other | {"say": ""}


def test_each_lesson_has_a_tour() -> None:
    """A tour teaches each lesson of docs/lessons, and each of its steps has a question."""
    lessons = sorted(LESSONS.glob("*.md"))
    found = [one.lesson for one in TOURS.values() if one.lesson]
    assert found == [int(path.name[:2]) for path in lessons]
    for tour in TOURS.values():
        assert all(step.question and step.answer for step in tour.steps)


def test_a_request_in_words() -> None:
    """The page describes each request on a znode with a verb and the path of the znode."""
    kinds = {*get_args(rq.Request), *get_args(rq.Write), rq.Rights} - {rq.Multi, rq.SyncLeader}
    for kind in kinds:
        words = request_text(kind("/consumers/g/ids", *[0] * (len(fields(kind)) - 1)))
        assert re.fullmatch("[a-z ]+ ids", words), words


def test_every_scenario_opens() -> None:
    """Opening any scenario gives a run with at least one frame."""
    lab = Lab()
    for name in SCENARIOS:
        run = lab.open(scenario=name)
        assert lab.frames[run], name


def test_a_scenario_can_be_cut_and_continued() -> None:
    """A URL holds a scenario, the number of moves taken from it, and the user's later moves."""
    lab = Lab()
    run = lab.open(scenario="a-jvm-peer-has-given-up")
    *_, frames = lab.do("act", run=run, at=40, move="kill:0")
    lab.do("step", run=frames["run"], count=100)
    other = Lab()
    copy = other.open(scenario="a-jvm-peer-has-given-up", cut=40, moves=lab.moves[frames["run"]])
    assert other.frames[copy] == lab.frames[frames["run"]]


def test_the_trace_can_be_replayed() -> None:
    """The exported trace has the production format, and replays without any difference."""
    lab = Lab()
    run = lab.open(world={"members": 2})
    lab.do("act", run=run, at=0, move="kill:1")
    lab.do("step", run=run, count=300)
    (event,) = lab.do("trace", run=run)
    assert check(event["text"].splitlines(keepends=True), name="lab").transitions > 50


def test_why_a_thread_owns_a_partition() -> None:
    """The explanation names the strategy, the thread, and the thread's place among all threads."""
    lab = Lab()
    run = lab.open(world={"members": 3, "partitions": 6})
    (event,) = lab.do("explain", run=run, at=0, partition=2)
    assert "range assigns t-2 to g_1-0: thread 2 of 3" in event["text"]


def test_protocols_are_compared_on_one_axis() -> None:
    """Under each protocol the run lasts as long as the script, and ends with its assignment."""
    lab = Lab()
    script = "join; kill g_1; freeze g_0 20s"
    *events, table = lab.do("compare", script=script, protocols=list(PROTOCOLS))
    assert [one["protocol"] for one in table["costs"]] == list(PROTOCOLS)
    owners = {}
    for run, frames in zip(events[::2], events[1::2], strict=True):
        rows = [row[1] for row in run["scene"]["partitions"]]
        for frame in frames["frames"]:
            for number, row in frame.get("p", {}).items():
                rows[int(number)] = row[0]
        assert NOBODY not in rows
        assert 1 not in rows, "the killed member owns nothing at the end"
        assert abs(frames["frames"][-1]["t"] - table["seconds"]) < 1
        owners[run["title"]] = rows
    # In the classic protocol members have random ids, and range assigns in the order of the ids.
    shares = {name: sorted(Counter(rows).values()) for name, rows in owners.items()}
    assert owners["zookeeper"] == owners["zookeeper-jvm"]
    assert set(map(tuple, shares.values())) == {(4, 4, 4)}


def test_the_lab_offers_all_protocols() -> None:
    """Worlds and comparisons have all protocols that the simulator has."""
    (catalogue,) = Engine().command({"do": "catalogue"})
    assert catalogue["worlds"] == ["zookeeper", *ASSIGNORS, *BRIDGED]
    assert catalogue["protocols"] == list(PROTOCOLS)


def test_moves_as_text() -> None:
    """Moves are read back from their text in a URL, up to the limit of their number."""
    moves = [
        None,
        None,
        LabMove("kill", 3),
        None,
        LabMove("delete_owner", tp=TopicPartition("t", 12)),
        LabMove("produce", value=2),
    ]
    text = write_moves(moves)
    assert text == "2,kill:3,1,delete_owner::t~12,produce:::2"
    assert read_moves(text) == moves
    assert parse_move("pass_time:::1.5").value == 1.5
    assert len(read_moves(str(MAX_MOVES))) == MAX_MOVES
