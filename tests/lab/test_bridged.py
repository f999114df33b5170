"""The lab's world with a bridge: old and new members share one group before the viewer's eyes."""

from __future__ import annotations

from typing import Any

import pytest
from lab.test_engine import Lab

from zkconsumer.lab.runs import MOVES_BETWEEN_COPIES, open_world
from zkconsumer.lab.stage import NOBODY
from zkconsumer.lab.worlds import BRIDGED, parse_world
from zkconsumer.sim.bridged.world import CONSUMERS
from zkconsumer.trace.replay import check

Json = dict[str, Any]

OLD, NEW = 3, 2
BRIDGE = OLD + 2 * CONSUMERS
STANDBY, FIRST = BRIDGE + 1, BRIDGE + 2
"""Numbers of members: the bridge, its standby, and the first new member."""


def world(**given: Any) -> Json:
    """Return the parameters of a small world."""
    spec = {"protocol": "bridge-eager", "members": 2, "spare": 1, "partitions": 4, "flow": 0}
    return {**spec, "jvm": [1], "new_members": NEW, **given}


def rows(lab: Lab, run: int, scene: Json) -> dict[int, list[Any]]:
    """Return the last row of each partition."""
    found = {n: row[1:] for n, row in enumerate(scene["partitions"])}
    for frame in lab.frames[run]:
        found |= {int(n): row for n, row in frame.get("p", {}).items()}
    return found


def deeds(lab: Lab, run: int) -> list[str]:
    """Return what the bridges have done, one word for each deed."""
    frames = lab.frames[run]
    return [one[1] for frame in frames for one in frame.get("x", ()) if one[0] == "bridge"]


class Shared:
    """A world in which the new member reads a share of the partitions."""

    def __init__(self, **given: Any) -> None:
        self.lab, self.world = Lab(), world(**given)
        opened, _ = self.lab.do("open", world=self.world)
        self.run, self.scene = opened["run"], opened["scene"]
        self.act(f"join:{BRIDGE}", 4)
        self.act(f"join:{FIRST}", 8)

    @property
    def length(self) -> int:
        return len(self.lab.frames[self.run])

    def act(self, move: str, seconds: float = 0) -> None:
        self.lab.do("act", run=self.run, at=self.length, move=move)
        if seconds:
            self.lab.do("step", run=self.run, until=seconds)

    def rows(self) -> dict[int, list[Any]]:
        return rows(self.lab, self.run, self.scene)

    def owners(self) -> list[int]:
        return [row[0] for _, row in sorted(self.rows().items())]


@pytest.mark.parametrize("protocol", BRIDGED)
def test_a_partition_changes_sides(protocol: str) -> None:
    """A new member reads a partition that the bridge owns; an address and a fork give this run."""
    shared = Shared(protocol=protocol)
    assert shared.owners() == [0, 0, 1, FIRST]
    owner, stored, _, _, _, znode, kafka, stage = shared.rows()[3]
    assert (owner, znode, stored, kafka, stage) == (FIRST, OLD, "2", "2", "lent")
    assert deeds(shared.lab, shared.run) == ["runs", "seeding", "lent"]
    lab, run = shared.lab, shared.run
    other = Lab()
    assert other.frames[other.open(world=shared.world, moves=lab.moves[run])] == lab.frames[run]
    fork, *_ = lab.do("act", run=run, at=60, move="grow")
    lab.do("step", run=fork["run"], count=40)
    copy = other.open(world=shared.world, moves=lab.moves[fork["run"]])
    assert other.frames[copy] == lab.frames[fork["run"]]
    (trace,) = lab.do("trace", run=run)
    assert check(trace["text"].splitlines(keepends=True), name="lab").transitions > 50
    (why,) = lab.do("explain", run=run, at=shared.length, partition=3)
    for words in ("range assigns t-3 to g_b0-0-0", "t-3 is lent", "t-3 is assigned to new_0"):
        assert words in why["text"]


def test_an_operator_directs_the_bridge() -> None:
    """The bridge follows a share, ends after `finish`, and brings back all after `rollback`."""
    shared = Shared(partitions=6)
    assert shared.owners().count(FIRST) == 2
    shared.act("share:::75", 12)
    assert shared.owners().count(FIRST) == 4
    shared.act("share:::99", 1)
    assert "0 to 99" in shared.lab.refused(
        "act", run=shared.run, at=shared.length, move="share:::100"
    )
    shared.act("rollback", 12)
    assert FIRST not in shared.owners()
    shared.act("resume_bridge")
    shared.act("leave:0")
    shared.act("leave:1", 25)
    shared.act("finish", 10)
    assert set(shared.owners()) == {FIRST}
    assert deeds(shared.lab, shared.run)[-1] == "ends"
    assert "impossible" in shared.lab.refused(
        "act", run=shared.run, at=shared.length, move="rollback"
    )


def test_a_standby_replaces_the_bridge() -> None:
    """After a kill, an old member claims the bridge's partition, until the standby lends it."""
    shared = Shared()
    shared.act(f"join:{STANDBY}")
    views = shared.lab.frames[shared.run][-1]["m"]
    assert views[str(STANDBY)]["ph"] == "standby"
    shared.act(f"kill:{BRIDGE}")
    start = shared.length
    shared.lab.do("step", run=shared.run, until=25)
    frames = shared.lab.frames[shared.run][start:]
    read = [row[0] for frame in frames for n, row in frame.get("p", {}).items() if n == "3"]
    changes = [one for n, one in enumerate(read) if n == 0 or one != read[n - 1]]
    assert changes[:2] == [NOBODY, 1]
    assert changes[-1] == FIRST


def test_every_move_of_a_group_with_a_bridge() -> None:
    """Each offered action and fault can be performed while a partition changes sides."""
    lab = Lab()
    run = lab.open(world=world(seed=3))
    lab.do("act", run=run, at=0, move=f"join:{BRIDGE}")
    lab.do("step", run=run, until=4)
    lab.do("act", run=run, at=len(lab.frames[run]), move=f"join:{FIRST}")
    while "seeding" not in deeds(lab, run):
        lab.do("step", run=run, count=1)
    at = len(lab.frames[run])
    (found,) = lab.do("choices", run=run, at=at)
    assert [one["next"] for one in found["choices"]].count(True) == 1
    moves = {one["move"] for one in found["faults"]}
    assert {f"kill:{BRIDGE}", f"cut:{OLD}", "finish", "coordinate:1", "no_quorum"} <= moves
    assert not {f"kill:{OLD}", f"freeze:{BRIDGE}", "delete_topic"} & moves
    for one in [*found["choices"], *found["faults"]]:
        *_, frames = lab.do("act", run=run, at=at, move=one["move"])
        lab.do("step", run=frames["run"], count=12)


def test_a_world_with_a_bridge_is_copied() -> None:
    """A copy repeats the frames of the original, also while the bridge changes its share."""
    run = open_world(1, parse_world(world()))
    stage, copies = run.stage, {}
    for move in (BRIDGE, FIRST, FIRST + 1):
        stage.join(move)
        for _ in range(60):
            if run.length % 9 == 0:
                copies[run.length] = stage.copy()
            stage.step()
    assert set(range(0, run.length, MOVES_BETWEEN_COPIES)) <= run.copies.keys()
    for at, copy in copies.items():
        twin = copy.copy()
        for one in (copy, twin):
            for move in stage.moves[at : at + 20]:
                one.move(move)
            assert one.frames == stage.frames[at : at + 20], at


def test_a_message_to_each_side_is_delayed_and_dropped() -> None:
    """Messages of both halves can be delayed and dropped, and a drop breaks the connection."""
    lab = Lab()
    for who, move in ((OLD, "delay_request"), (OLD, "drop_request"), (BRIDGE, "drop_request")):
        run = lab.open(world=world())
        lab.do("act", run=run, at=0, move=f"join:{BRIDGE}")
        lab.do("step", run=run, until=4)
        lab.do("act", run=run, at=len(lab.frames[run]), move=f"join:{FIRST}")
        while "w" not in lab.frames[run][-1].get("m", {}).get(str(who), {}):
            lab.do("step", run=run, count=1)
        at = len(lab.frames[run])
        lab.do("act", run=run, at=at, move=f"{move}:{who}")
        done = [one["d"] for one in lab.frames[run][at:]]
        assert done[0] == (f"cut:{who}" if move.startswith("drop") else f"{move}:{who}")
        lab.do("step", run=run, count=20)
        other = Lab()
        assert other.frames[other.open(world=world(), moves=lab.moves[run])] == lab.frames[run]


def test_zookeeper_loses_its_leader() -> None:
    """ZooKeeper's leader dies in a world with a bridge, too, and another one is elected."""
    lab = Lab()
    run = lab.open(world=world())
    lab.do("act", run=run, at=0, move="leader_dies")
    assert [one["k"]["quorum"] for one in lab.frames[run] if "k" in one] == [False, True]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"session_s": 9}, "give 10 or more"),
        ({"threads": 2}, "no parameter 'threads'"),
        ({"jvm": [3]}, "jvm is [3]"),
        ({"new_members": 65}, "new_members is 65"),
    ],
)
def test_a_refused_world(given: Json, words: str) -> None:
    """An invalid parameter gives one error that says what is wrong."""
    assert words in Lab().refused("open", world=world(**given))
