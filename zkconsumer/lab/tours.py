"""Guided tours: text, questions and answers at chosen moves of a run.

A tour names a scenario, or a world and a script. Each of its steps names the situation in which it
is shown; `located` finds the move. At any step, the learner may act, which forks the run, and then
return to the tour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.sim.plan import Do
from zkconsumer.sim.stage import Stage

Frames = Sequence[Mapping[str, Json]]
Where = Callable[[Frames], int]
"""Finds the number of moves after which the situation is reached."""


# ---- situations ----------------------------------------------------------------------------------


def start(frames: Frames) -> int:
    return 0


def end(frames: Frames) -> int:
    return len(frames)


def said(number: int) -> Where:
    """Return the situation after the move that follows the announcement with this number."""

    def find(frames: Frames) -> int:
        return _nth(frames, number, lambda frame: "say" in frame)

    return find


def owners_change(number: int, after: int = 1) -> Where:
    """Return the situation after a change of owners that follows the n-th announcement."""

    def find(frames: Frames) -> int:
        first = said(after)(frames)
        return first + _nth(frames[first:], number, lambda frame: "o" in frame)

    return find


def happens(*event: Json, after: int = 1) -> Where:
    """Return the situation after the first event of this kind that follows the n-th
    announcement."""

    def find(frames: Frames) -> int:
        first = said(after)(frames)

        def has(frame: Mapping[str, Json]) -> bool:
            return any(tuple(one[: len(event)]) == event for one in frame.get("x", ()))

        return first + _nth(frames[first:], 1, has)

    return find


def _nth(frames: Frames, number: int, fits: Callable[[Mapping[str, Json]], bool]) -> int:
    """Return the number of frames up to and including the n-th matching frame; if there are fewer
    matches, the number of all frames.
    """
    found = [at for at, frame in enumerate(frames, 1) if fits(frame)]
    return found[number - 1] if len(found) >= number else len(frames)


# ---- tours ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One page of a tour."""

    where: Where
    text: str
    question: str = ""
    answer: str = ""


@dataclass(frozen=True)
class Tour:
    """A guided tour of a scenario, or of a world after a script.

    Attributes:
        table: the counted lesson that the tour's last step shows.
    """

    title: str
    steps: tuple[Step, ...]
    scenario: str = ""
    world: Mapping[str, Json] = field(default_factory=dict)
    script: Callable[[Stage], None] | None = None
    table: str = ""


def located(tour: Tour, frames: Frames) -> list[JsonObject]:
    """Return the steps as JSON with their moves, which are in ascending order."""
    found: list[JsonObject] = []
    at = 0
    for step in tour.steps:
        at = max(at, step.where(frames))
        found.append(
            {"at": at, "text": step.text, "question": step.question, "answer": step.answer}
        )
    return found


def _herd(stage: Stage) -> None:
    stage.say("g_8 joins a group of eight JVM members")
    stage.join(8)
    stage.rest()


def _split_brain(stage: Stage) -> None:
    stage.say("the server that g_1 and g_3 use loses its leader, and keeps its clients")
    stage.do(Do.ISOLATE, 1)
    stage.wait(12.0)
    stage.say("the server finds its leader again")
    stage.do(Do.REJOIN, 1)
    stage.wait(12.0)


TOURS: dict[str, Tour] = {
    "join": Tour(
        "A member joins",
        (
            Step(
                start,
                "One member, g_0, owns all four partitions. Each coloured cell is a partition, and "
                "its colour is the owner's. ZooKeeper stores three things for the group: who is a "
                "member (ids), who owns which partition (owners), and how far each partition was "
                "read (offsets).",
                "Where would you look to find out who owns t-2?",
                "In the znode owners/t/2. Its data is the id of the owner's thread, and it is "
                "ephemeral: it ends with the owner's session.",
            ),
            Step(
                said(1),
                "g_1 starts. It opens a session and will create its id znode. No member leads the "
                "group: each one watches ids, and each one computes the assignment for itself.",
                "How does g_0 learn that g_1 is there?",
                "Its watch on ids fires. A watch tells only that something has changed, so g_0 "
                "reads the group again.",
            ),
            Step(
                happens("watch", 0),
                "The watch of g_0 has fired. g_0 reads all registrations and computes: two members "
                "share four partitions, so each owns two.",
            ),
            Step(
                happens("phase", 0, "releasing"),
                "g_0 stops the delivery of the two partitions that it loses, stores their offsets, "
                "and only then deletes their owner znodes. The cells will be hatched: no member"
                " owns them for a moment.",
                "Why does g_0 commit before it releases?",
                "The next owner starts at the stored offset. Without the commit it would deliver "
                "again what g_0 has delivered.",
            ),
            Step(
                end,
                "g_1 has created the owner znodes of its two partitions, has read their offsets, "
                "and delivers. Nothing more happens until the group changes.",
            ),
        ),
        scenario="a-consumer-joins",
    ),
    "leave": Tour(
        "A member leaves",
        (
            Step(start, "g_0 and g_1 own two partitions each."),
            Step(
                said(1),
                "The user shuts g_1 down. It commits for the last time, then ends its session.",
                "Which znodes disappear when a session ends?",
                "All ephemeral ones of the session: the id znode and the owner znodes.",
            ),
            Step(
                end,
                "g_0 owns everything. A clean shut-down needs no session timeout, so the "
                "partitions were without an owner for milliseconds.",
            ),
        ),
        scenario="a-consumer-leaves",
    ),
    "die": Tour(
        "A member dies",
        (
            Step(start, "g_0 and g_1 own two partitions each."),
            Step(
                said(1),
                "g_1 gets SIGKILL. Its process is gone, but its session lives on in ZooKeeper, "
                "and so do its owner znodes. No member reads its partitions now.",
                "How long will this last?",
                "As long as the session timeout: 6 s here. ZooKeeper cannot distinguish a dead"
                " client from one whose heartbeats do not arrive.",
            ),
            Step(
                happens("ended", 1),
                "The session has expired. ZooKeeper deletes the znodes of g_1, and the watch of "
                "g_0 fires.",
            ),
            Step(
                end,
                "g_0 owns everything. It starts at the stored offsets, so the messages that g_1 "
                "had delivered and not committed are delivered again: at least once, not exactly "
                "once.",
            ),
        ),
        scenario="a-consumer-dies",
    ),
    "freeze": Tour(
        "A member freezes",
        (
            Step(start, "g_0 and g_1 own two partitions each."),
            Step(
                said(1),
                "g_1 gets SIGSTOP: a long garbage collection or a suspended machine looks the "
                "same. It does nothing, and it does not know that time passes.",
                "Could g_1 deliver a message after it wakes up, even though it is no longer the"
                " owner?",
                "A JVM member does. A member of zkconsumer checks its lease before each message; "
                "the lease ends before the session can.",
            ),
            Step(
                end,
                "ZooKeeper has ended the session of g_1, and g_0 owns everything. g_1 still "
                "believes that it owns its partitions, but its lease has ended.",
            ),
        ),
        scenario="a-consumer-freezes",
    ),
    "zombie": Tour(
        "A zombie wakes",
        (
            Step(start, "g_0 and g_1 own two partitions each."),
            Step(said(1), "g_1 freezes."),
            Step(
                owners_change(1, after=1),
                "The session of g_1 has expired: its owner znodes are gone.",
            ),
            Step(
                said(2),
                "g_1 wakes up. It still has its list of partitions and messages in memory.",
                "What does it do first?",
                "Its lease has ended, so it delivers nothing. It notices that its connection is"
                " broken, gets a new session, and registers again.",
            ),
            Step(end, "g_1 has joined as a new member would: it owns two partitions again."),
        ),
        scenario="a-zombie-wakes",
    ),
    "race": Tour(
        "Two members want one partition",
        (
            Step(start, "g_0 owns all four partitions."),
            Step(
                said(1),
                "g_0 freezes with its session alive, and g_1 joins. g_1 will compute that two"
                " partitions are assigned to it.",
                "What happens when g_1 creates the owner znode of a partition that g_0 has not "
                "released?",
                "ZooKeeper refuses: the znode exists. A partition has one owner znode, so it has "
                "at most one owner.",
            ),
            Step(
                happens("phase", 1, "waiting"),
                "The claim of g_1 was refused. It watches the owners and waits. A JVM member "
                "would delete the znodes that it has just created, sleep, and try again.",
            ),
            Step(
                said(2),
                "g_0 wakes in time. It reads the group, and releases what it must give up.",
            ),
            Step(end, "g_1 has claimed its partitions as soon as their owner znodes were gone."),
        ),
        scenario="an-assigned-partition-still-has-an-owner",
    ),
    "gives-up": Tour(
        "A JVM member gives up",
        (
            Step(
                start,
                "The group may contain Kafka's own consumers. g_1 will be one: it follows the "
                "rules of Kafka 1.1.1.",
            ),
            Step(said(1), "g_0 freezes, and g_1, the JVM member, joins."),
            Step(
                happens("phase", 1, "failed"),
                "An attempt of g_1 has failed: g_0 holds the partitions. The JVM member undoes its "
                "claims, sleeps for its back-off, and tries again, four times in all.",
                "What does it do after the fourth failure?",
                "Nothing. It logs an exception and stays idle until the next change in the group.",
            ),
            Step(
                happens("phase", 1, "idle"),
                "g_1 has given up. The partitions that are assigned to it will stay without an "
                "owner even after g_0 has released them.",
            ),
            Step(
                said(2),
                "g_0 wakes up and releases the partitions that are assigned to g_1. No member"
                " claims them, so their cells stay hatched. This is the famous state of a group"
                ' after "can\'t rebalance after 4 retries".',
            ),
            Step(
                end,
                "The next change, here a third member, wakes g_1, and every partition has an"
                " owner again.",
            ),
        ),
        scenario="a-jvm-peer-has-given-up",
    ),
    "quorum": Tour(
        "ZooKeeper loses its quorum",
        (
            Step(start, "g_0 and g_1 own two partitions each."),
            Step(
                said(1),
                "Two of three servers are down. No session can expire and nothing can be written: "
                "owners stay as they are.",
                "May members continue to deliver?",
                "A JVM member does. A member of zkconsumer stops when its lease ends, because it "
                "can no longer know that it is the owner.",
            ),
            Step(
                said(2),
                "The servers are back after ten session timeouts. The sessions live on.",
            ),
            Step(end, "Each member has read back what it owns and delivers. Nothing has moved."),
        ),
        scenario="quorum-is-lost",
    ),
    "herd": Tour(
        "The herd effect",
        (
            Step(start, "Eight JVM members own sixteen partitions. The counters are below."),
            Step(
                said(1),
                "A ninth member joins. Watch the counters of notifications and reads.",
                "How many members react?",
                "All of them: every member watches ids, and every member then reads every "
                "registration. Ten times the members cause a hundred times the reads.",
            ),
            Step(
                end,
                "The group has settled. Every JVM member has released and claimed all its "
                "partitions again. The chart shows how the cost grows with the size of the group.",
            ),
        ),
        world={
            "members": 8,
            "spare": 1,
            "partitions": 16,
            "flow": 0,
            "jvm": list(range(9)),
        },
        script=_herd,
        table="herd-effect",
    ),
    "split-brain": Tour(
        "Split brain",
        (
            Step(
                start,
                "Four JVM members own twelve partitions. Two of them are connected to a server "
                "that is about to lose its leader.",
            ),
            Step(
                said(1),
                "The server is cut off. Its clients keep their connections, and it still answers "
                "their reads, from old data.",
                "What will the leader do with their sessions?",
                "It receives no heartbeats from their clients, so it ends the sessions after the"
                " timeout. The server that is cut off does not know this.",
            ),
            Step(
                owners_change(1, after=1),
                "The leader has ended the sessions, and the other members take over. The cells "
                "that two members deliver are red: the members have two views of the owners.",
            ),
            Step(
                end,
                "The server is back, and the members have new sessions. Compare what the table "
                "counts for JVM members and for members of zkconsumer.",
            ),
        ),
        world={
            "members": 4,
            "spare": 0,
            "partitions": 12,
            "flow": 1,
            "messages": 1,
            "jvm": [0, 1, 2, 3],
        },
        script=_split_brain,
        table="split-brain",
    ),
}
"""The tours, in the order in which the page lists them."""
