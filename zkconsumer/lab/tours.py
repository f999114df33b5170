"""Guided tours: text, questions and answers at chosen moves of a run.

A tour names a scenario, or a world and a script. Each of its steps names the situation in which it
is shown; `located` finds the move. At any step, the learner may act, which forks the run, and then
return to the tour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from zkconsumer.frozen import dataclass
from zkconsumer.lab.stage import AnyStage
from zkconsumer.lab.worlds import COORDINATE, FINISH, KILL_BROKER, PRODUCE, LabMove
from zkconsumer.lab.zookeeper import ZooKeeperStage
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.sim.plan import Do

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


def performs(move: str) -> Where:
    """Return the situation after the first such move, such as `thaw:1`."""

    def find(frames: Frames) -> int:
        return _nth(frames, 1, lambda frame: frame["d"] == move)

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
    question: str
    answer: str


@dataclass(frozen=True)
class PreparedSearch:
    """What a tour's last step asks the learner to break: a prepared search for a counterexample.

    Attributes:
        weak: the part of the members that is weakened, as in `sim.weakened`.
        text: what the weakened part did in the tour.
    """

    weak: str
    text: str

    def as_json(self) -> JsonObject:
        """Return the text, and the search as the page's form has it."""
        search = {"weak": [self.weak], "members": 2, "spare": 1, "partitions": 4}
        return {"text": self.text, "search": search}


@dataclass(frozen=True)
class Tour:
    """A guided tour of a scenario, or of a world after a script.

    Attributes:
        breaks: what the learner breaks after the last step.
        table: the counted lesson that the tour's last step shows.
        lesson: the number of the lesson in docs/lessons, or 0.
    """

    title: str
    steps: tuple[Step, ...]
    breaks: PreparedSearch
    scenario: str = ""
    world: Mapping[str, Json] = field(default_factory=dict)
    script: Callable[[AnyStage], None] | None = None
    table: str = ""
    lesson: int = 0


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


def _herd(stage: AnyStage) -> None:
    stage.say("g_8 joins a group of eight JVM members")
    stage.join(8)
    stage.rest()


def _split_brain(stage: AnyStage) -> None:
    assert isinstance(stage, ZooKeeperStage)
    stage.say("the server that g_1 and g_3 use loses its leader, and keeps its clients")
    stage.do(Do.ISOLATE, 1)
    stage.wait(12.0)
    stage.say("the server finds its leader again")
    stage.do(Do.REJOIN, 1)
    stage.wait(12.0)


SETTLING_S = 10.0
"""Virtual seconds after which a group with a coordinator has settled and committed again."""


def _fourth(stage: AnyStage) -> None:
    stage.say("g_3 joins")
    stage.join(3)
    stage.rest()


def _new_coordinator(stage: AnyStage) -> None:
    stage.say("broker 0, the coordinator, dies")
    stage.move(LabMove(KILL_BROKER, 0))
    stage.wait(3.0)
    stage.say("broker 1 becomes the coordinator")
    stage.move(LabMove(COORDINATE, 1))
    stage.wait(5.0)


def _second(stage: AnyStage) -> None:
    _join(stage, 1)


def _third(stage: AnyStage) -> None:
    _join(stage, 2)


def _join(stage: AnyStage, who: int) -> None:
    stage.say(f"g_{who} joins")
    stage.move(LabMove(Do.JOIN.value, who))
    stage.wait(SETTLING_S)


OLD, CONSUMER, BRIDGE, STANDBY, NEW, NEXT = 2, 3, 11, 12, 13, 14
"""Numbers of members in the tour of the bridge: an old member that joins later, a consumer of the
bridge, the bridge, its standby, and two new members."""


def _bridge(stage: AnyStage) -> None:
    stage.say("bridge_0, the bridge, starts")
    stage.move(LabMove(Do.JOIN.value, BRIDGE))
    stage.wait(4.0)
    stage.say("new_0, the first new member, starts")
    stage.move(LabMove(Do.JOIN.value, NEW))
    stage.wait(6.0)
    _produced(stage)
    stage.say("g_2, an old member, starts without a plan")
    stage.move(LabMove(Do.JOIN.value, OLD))
    stage.wait(5.0)
    stage.say("bridge_1 waits as a standby, and bridge_0 gets SIGKILL")
    stage.move(LabMove(Do.JOIN.value, STANDBY))
    _produced(stage)
    stage.move(LabMove(Do.KILL.value, BRIDGE))
    stage.wait(20.0)
    _produced(stage)
    stage.say("the old members stop, and new_1 starts")
    for who in range(OLD + 1):
        stage.move(LabMove(Do.LEAVE.value, who))
    stage.move(LabMove(Do.JOIN.value, NEXT))
    stage.wait(15.0)
    stage.say("the operator runs `zkconsumer bridge finish`")
    stage.move(LabMove(FINISH))
    stage.wait(5.0)


def _produced(stage: AnyStage) -> None:
    stage.move(LabMove(PRODUCE, value=2))
    stage.wait(1.0)


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
                "Its watch on ids fires. A watch says only that something has changed, so g_0 "
                "reads the group again.",
            ),
            Step(
                happens("watch", 0),
                "The watch of g_0 has fired. g_0 reads all registrations and computes: two members "
                "share four partitions, so each owns two.",
                "Does g_0 ask g_1 which partitions it may keep?",
                "No. Both members have read the same registrations and compute the same "
                "assignment, so they need no messages to each other.",
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
                "Was any message redelivered?",
                "No. g_0 had committed before it released the partitions, and g_1 started at the "
                "stored offsets. The counter of redelivered messages is 0.",
            ),
        ),
        scenario="a-consumer-joins",
        lesson=1,
        breaks=PreparedSearch(
            "release without commit",
            "g_1 has started at the offsets that g_0 committed before the release. Let the "
            "members release without this commit.",
        ),
    ),
    "range": Tour(
        "Range, and why it is uneven",
        (
            Step(
                start,
                "Three members own the seven partitions of the topic t and the two of the topic u. "
                "The strategy range divides each topic into consecutive ranges, one for each "
                "thread. If a remainder is left, the first threads get one partition more.",
                "Why does g_0 own four partitions, and g_2 only two?",
                "Range divides each topic separately: t into 3, 2 and 2 partitions, and u into 1, "
                "1 and 0. The first members get the remainder of every topic.",
            ),
            Step(
                said(1),
                "g_3 starts. Range will divide t into 2, 2, 2 and 1 partitions.",
                "Which members will own the partitions of u?",
                "g_0 and g_1, as before. u has only two partitions, so g_2 and g_3 get none.",
            ),
            Step(
                owners_change(1),
                "A member has released the first partition. A balanced assignment would move two "
                "of the nine partitions, both of them to g_3.",
                "How many partitions does range move?",
                "Three. The borders of the ranges shift, so t-2 and t-4 move between old members, "
                "and g_3 gets only t-6.",
            ),
            Step(
                end,
                "The group has settled: the members own three, three, two and one partitions.",
                "Would round-robin be more even here?",
                "Yes. It deals the partitions of all topics in turn, so each of the four threads "
                "would get two or three.",
            ),
        ),
        world={"members": 3, "spare": 1, "partitions": 7, "topics": ["u"], "flow": 0},
        script=_fourth,
        lesson=2,
        breaks=PreparedSearch(
            "orders differ",
            "All members compute the same assignment, because they sort the threads in the same "
            "order. Let each member sort in another order.",
        ),
    ),
    "round-robin": Tour(
        "Round-robin, and the order of hash codes",
        (
            Step(
                start,
                "Three members own the twelve partitions of t and the two of u. The strategy "
                "roundrobin deals the partitions of all topics to the threads in turn.",
                "g_0 has the first turn. Why does it not own t-0?",
                "Kafka's ZooKeeper consumer sorts the partitions by the hash codes of their names, "
                "such as [t,10]. t-10 and t-11 come first, then t-0 to t-9, and then u-0 and u-1.",
            ),
            Step(
                said(1),
                "g_3 starts, and each member deals the partitions again. All threads must have the "
                "same subscription; otherwise the members refuse this strategy.",
                "What happens if one member sorts the partitions differently?",
                "It claims partitions that are assigned to another member. So the order is a part "
                "of the protocol.",
            ),
            Step(
                owners_change(1),
                "A member has released the first partition. A balanced assignment would move three "
                "of the fourteen partitions.",
                "How many partitions does round-robin move?",
                "Nine. With four threads instead of three, most partitions are dealt to another "
                "thread.",
            ),
            Step(
                end,
                "The group has settled: the members own four, four, three and three partitions.",
                "Which assignors avoid the unnecessary moves?",
                "The sticky assignors of later releases. They start from the previous assignment.",
            ),
        ),
        world={
            "members": 3,
            "spare": 1,
            "partitions": 12,
            "topics": ["u"],
            "strategy": "roundrobin",
            "flow": 0,
        },
        script=_fourth,
        lesson=3,
        breaks=PreparedSearch(
            "orders differ",
            "Each member must compute the hash codes as Java does. Let each member sort the "
            "threads in another order.",
        ),
    ),
    "herd": Tour(
        "The herd effect",
        (
            Step(
                start,
                "Eight JVM members own sixteen partitions. The counters are below.",
                "A ninth member will join. What is the smallest number of partitions that must "
                "move?",
                "One: sixteen partitions are at best divided into seven shares of two and two of "
                "one.",
            ),
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
                "Why do the reads grow faster than the number of members?",
                "Each of n members reads all n registrations, so the reads grow with the square of "
                "n. In the chart, the line of the JVM reads is the steepest.",
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
        lesson=4,
        breaks=PreparedSearch(
            "trigger lost",
            "Each change of the group wakes all members, even those that are already "
            "rebalancing. Let them ignore a change that they learn of during a rebalance.",
        ),
    ),
    "split-brain": Tour(
        "Split brain",
        (
            Step(
                start,
                "Four JVM members own twelve partitions. Two of them are connected to a server "
                "that is about to lose its leader.",
                "Can a client see that its server has lost the leader?",
                "Not from its reads: the server still answers them. A request that needs the "
                "leader, such as a write or a sync, gets no answer.",
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
                "The leader has ended the sessions of g_1 and g_3, so their owner znodes are gone. "
                "Both members still see the old data, and deliver. Their cells are red, because no "
                "member owns what they deliver.",
                "Why does the lease of zkconsumer prevent this?",
                "Only the reply to a sync renews the lease, and a server without a leader cannot "
                "answer it. So the lease ends before the leader ends the session.",
            ),
            Step(
                happens("delivered", 0, "t-3"),
                "g_0 and g_2 have claimed the partitions, and deliver them too. Two members now "
                "deliver each red cell: they have two views of the owners.",
                "Which messages are redelivered?",
                "Those from the stored offset on. g_0 and g_2 start there, and g_1 and g_3 have "
                "already delivered more.",
            ),
            Step(
                end,
                "The server is back, and the members have new sessions. Compare what the table "
                "counts for JVM members and for zkconsumer members.",
                "Which column of the table shows the damage of a split brain?",
                "The messages delivered after losing ownership, and the offsets moved back. Both "
                "are 0 for zkconsumer.",
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
        lesson=5,
        breaks=PreparedSearch(
            "JVM rules",
            "The leader has ended the session of members that still deliver. Let the search "
            "find the shortest run in which two JVM members deliver one partition.",
        ),
    ),
    "zombie": Tour(
        "A zombie wakes",
        (
            Step(
                start,
                "g_0 and g_1 own two partitions each.",
                "Which member is the owner while a member freezes for a short time?",
                "The same as before: its session lives until the session timeout has passed.",
            ),
            Step(
                said(1),
                "g_1 freezes.",
                "How does g_0 notice this?",
                "It does not notice it. The connection of g_1 is still open, and its znodes exist.",
            ),
            Step(
                owners_change(1, after=1),
                "The session of g_1 has expired: its owner znodes are gone.",
                "g_1 does not know this yet. When will it find out?",
                "After it wakes up and connects again: ZooKeeper then answers that the session has "
                "expired.",
            ),
            Step(
                performs("thaw:1"),
                "g_1 wakes up. It still has its list of partitions and messages in memory.",
                "What does it do first?",
                "Its lease has ended, so it delivers nothing. It notices that its connection is"
                " broken, gets a new session, and registers again.",
            ),
            Step(
                end,
                "g_1 has joined as a new member would: it owns two partitions again.",
                "Which messages were redelivered, and by which member?",
                "Those that g_1 had delivered and not committed before it froze. g_0 delivered "
                "them again when it took over the partitions.",
            ),
        ),
        scenario="a-zombie-wakes",
        lesson=6,
        breaks=PreparedSearch(
            "no lease",
            "The lease has stopped the zombie. Let the members deliver without a lease.",
        ),
    ),
    "coordinator": Tour(
        "The coordinator",
        (
            Step(
                start,
                "Since Kafka 0.9, a broker coordinates each group; here it is broker 0. It stores "
                "the members and the offsets, and the members do not use ZooKeeper. There are no "
                "watches: each member sends a heartbeat every three seconds.",
                "How does a member find the coordinator?",
                "It sends FindCoordinator to any broker. The coordinator is the leader of one "
                "partition of __consumer_offsets. The hash code of the group's name determines the "
                "partition.",
            ),
            Step(
                said(1),
                "Broker 0 dies. No broker coordinates the group, but both members still deliver.",
                "What is impossible without a coordinator?",
                "Commits and rebalances. A new member gets no partitions.",
            ),
            Step(
                said(2),
                "Broker 1 becomes the leader of the group's partition, so it is the coordinator.",
                "How does broker 1 know the members and the offsets?",
                "Broker 0 has written them to the partition, and broker 1 reads its own replica.",
            ),
            Step(
                end,
                "The members have found broker 1, and have committed there. Each member has kept "
                "its partitions, and the generation is still 1.",
                "What do members with ZooKeeper do if the server that they use dies?",
                "The same: they connect to another server. Within the session timeout, nothing "
                "moves.",
            ),
        ),
        world={"protocol": "classic-eager", "members": 2, "spare": 0, "partitions": 4},
        script=_new_coordinator,
        lesson=7,
        breaks=PreparedSearch(
            "unconditional commit",
            "The coordinator refuses the commit of a removed member. ZooKeeper does not refuse "
            "it, so a member must commit by compare-and-set. Let the members of a ZooKeeper "
            "group commit without it.",
        ),
    ),
    "vote": Tour(
        "Vote, leader, sync",
        (
            Step(
                start,
                "g_0 owns four partitions. The group uses Kafka's classic protocol, with an eager "
                "assignor. A rebalance has two steps: JoinGroup and SyncGroup.",
                "Which program will compute the assignment?",
                "One of the members. The first member that has joined is the leader. In a group "
                "with ZooKeeper, every member computes the whole assignment.",
            ),
            Step(
                happens("phase", 1, "preparing"),
                "g_1 has found the coordinator, and sends JoinGroup. The request lists the "
                "assignors that g_1 supports.",
                "How does the coordinator choose the assignor?",
                "By a vote: each member votes for the first of its assignors that all members "
                "have.",
            ),
            Step(
                owners_change(1),
                "The answer to a heartbeat has told g_0 that the group rebalances. An eager member "
                "stops all its partitions, and commits them, before it joins again.",
                "Why did this take seconds, and not milliseconds as with a watch?",
                "The coordinator sends nothing on its own. g_0 learns of the rebalance from the "
                "answer to its next heartbeat.",
            ),
            Step(
                happens("phase", 0, "completing"),
                "The coordinator has answered JoinGroup. Only g_0, the leader, gets the list of "
                "the members. It computes the assignment, and sends it with SyncGroup.",
                "How does g_1 learn its partitions?",
                "From the answer to its own SyncGroup.",
            ),
            Step(
                end,
                "Each member owns two partitions. The generation is 2.",
                "What would happen to a commit of generation 1?",
                "The coordinator would refuse it (ILLEGAL_GENERATION). So no member of an old "
                "generation can lower a stored offset.",
            ),
        ),
        world={"protocol": "classic-eager", "members": 1, "spare": 1, "partitions": 4},
        script=_second,
        lesson=8,
        breaks=PreparedSearch(
            "orders differ",
            "One leader computes the assignment, so the members cannot disagree. In a ZooKeeper "
            "group, each member computes the assignment. Let each of them sort in another "
            "order.",
        ),
    ),
    "sticky": Tour(
        "Sticky and cooperative",
        (
            Step(
                start,
                "Two members own three partitions each. The assignor is cooperative-sticky: it "
                "keeps what it can of the previous assignment.",
                "g_2 will join. What is the smallest number of partitions that must move?",
                "Two, because each of three members will own two of the six.",
            ),
            Step(
                happens("phase", 0, "preparing"),
                "g_0 joins the rebalance. Unlike an eager member, it continues to deliver its "
                "partitions.",
                "Why may g_0 keep its partitions during the rebalance?",
                "Its JoinGroup names the partitions that it owns. The leader assigns none of them "
                "to another member in this round.",
            ),
            Step(
                owners_change(1),
                "The first round is over. g_0 has stopped t-4, and g_1 will stop t-5. Neither is "
                "assigned to a member.",
                "Why does g_2 not get them at once?",
                "Their old owners still delivered them when the round ended. With them, g_2 would "
                "have been a second owner.",
            ),
            Step(
                owners_change(3),
                "g_0 and g_1 have joined again, and the second round has given t-4 and t-5 to g_2.",
                "Why did the second round take three seconds?",
                "It waited for g_2, which learned of it from the answer to its next heartbeat.",
            ),
            Step(
                end,
                "The group has settled. Four of the six partitions were never stopped.",
                "What is the price of the second round?",
                "t-4 and t-5 had no owner for three seconds. With an eager assignor, all six "
                "partitions stop, but only for milliseconds.",
            ),
        ),
        world={"protocol": "classic-cooperative", "members": 2, "spare": 1, "partitions": 6},
        script=_third,
        lesson=9,
        breaks=PreparedSearch(
            "release before stop",
            "A cooperative member stops a partition before it gives the partition up. Let the "
            "members of a ZooKeeper group release first, and stop later.",
        ),
    ),
    "kip-848": Tour(
        "KIP-848",
        (
            Step(
                start,
                "Two members own three partitions each. With the protocol of KIP-848, there is "
                "neither JoinGroup nor SyncGroup: members only send heartbeats.",
                "Which program computes the assignment?",
                "The coordinator. Its result is the target of the group, and has an epoch.",
            ),
            Step(
                happens("phase", 2, "stable"),
                "g_2 has joined with its first heartbeat. The answer contains no partitions yet.",
                "Why does g_2 have to wait?",
                "The other members still own the partitions of its target. The coordinator gives "
                "a partition away only after its owner no longer reports it.",
            ),
            Step(
                happens("phase", 0, "reconciling"),
                "The answer to the heartbeat of g_0 contains a new target, without t-2. g_0 "
                "commits, and will then stop t-2.",
                "Does g_0 wait for g_1?",
                "No. Each member changes to its part of the target on its own, so the members "
                "never all stop at the same time.",
            ),
            Step(
                owners_change(3),
                "g_2 has received t-2 and t-5, and delivers them.",
                "For how long had t-2 no owner?",
                "For milliseconds here: until the next heartbeat of g_2. In general for at most "
                "one heartbeat interval, which is five seconds.",
            ),
            Step(
                end,
                "All members have reached the target, and four of the six partitions were never "
                "stopped.",
                "What happens if a member does not give up a partition?",
                "After the rebalance timeout of this member, the coordinator removes it from the "
                "group. The others continue undisturbed.",
            ),
        ),
        world={"protocol": "consumer", "members": 2, "spare": 1, "partitions": 6},
        script=_third,
        lesson=10,
        breaks=PreparedSearch(
            "no re-read after a reconnect",
            "The coordinator of KIP-848 tells each member its target at every heartbeat. In a "
            "ZooKeeper group, a member reads the group itself. Let it forget to do so after a "
            "reconnect.",
        ),
    ),
    "leave": Tour(
        "A member leaves",
        (
            Step(
                start,
                "g_0 and g_1 own two partitions each.",
                "g_1 will be shut down. Which znodes show that it is a member and an owner?",
                "Its id znode in ids, and the znodes of its two partitions in owners.",
            ),
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
                "Why is no message redelivered?",
                "g_1 has committed everything that it had delivered, and g_0 continues at these "
                "offsets.",
            ),
        ),
        scenario="a-consumer-leaves",
        breaks=PreparedSearch(
            "commit of unfinished messages",
            "The leaving member has committed only messages that its user has finished. Let the "
            "automatic commit cover the unfinished message, too.",
        ),
    ),
    "die": Tour(
        "A member dies",
        (
            Step(
                start,
                "g_0 and g_1 own two partitions each.",
                "What distinguishes the znodes in ids and owners from those in offsets?",
                "Those in ids and owners are ephemeral: they end with the session of their member. "
                "Offsets stay.",
            ),
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
                "How does g_0 learn that g_1 is gone, and not only slow?",
                "It does not distinguish the two. It only sees that the id znode is gone. "
                "ZooKeeper has decided when it ended the session.",
            ),
            Step(
                end,
                "g_0 owns everything. It starts at the stored offsets, so the messages that g_1 "
                "had delivered and not committed are delivered again: at least once, not exactly "
                "once.",
                "How can a user reduce the number of redelivered messages after a crash?",
                "By shorter commit intervals. At most the messages since the last commit are "
                "redelivered.",
            ),
        ),
        scenario="a-consumer-dies",
        breaks=PreparedSearch(
            "lost reply is a conflict",
            "The owner znodes of the dead member ended with its session. A member whose "
            "connection breaks must recognise its own znodes. Let it take them for another "
            "member's.",
        ),
    ),
    "freeze": Tour(
        "A member freezes",
        (
            Step(
                start,
                "g_0 and g_1 own two partitions each.",
                "A frozen process sends no heartbeats. What will ZooKeeper do?",
                "It waits for the session timeout, and then ends the session as if the process "
                "were dead.",
            ),
            Step(
                said(1),
                "g_1 gets SIGSTOP: a long garbage collection or a suspended machine looks the "
                "same. It does nothing, and it does not know that time passes.",
                "Could g_1 deliver a message after it wakes up, even though it is no longer the"
                " owner?",
                "A JVM member does. A zkconsumer member checks its lease before each message; "
                "the lease ends before the session can.",
            ),
            Step(
                end,
                "ZooKeeper has ended the session of g_1, and g_0 owns everything. g_1 still "
                "believes that it owns its partitions, but its lease has ended.",
                "Why does the lease end before the session?",
                "The lease is shorter than the session timeout, and begins when the member sends a "
                "request that ZooKeeper answers. So it has ended before another member can become "
                "the owner.",
            ),
        ),
        scenario="a-consumer-freezes",
        breaks=PreparedSearch(
            "state, not session",
            "The frozen member has lost its session, and knows this from the new session's "
            "number. Let the members handle the end of a session as a mere reconnect.",
        ),
    ),
    "race": Tour(
        "Two members want one partition",
        (
            Step(
                start,
                "g_0 owns all four partitions.",
                "g_0 is about to freeze, and g_1 to join. Which member must act first?",
                "g_0: it must release two partitions before g_1 can claim them.",
            ),
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
                "What ends the waiting of g_1?",
                "Its watch fires when an owner znode is deleted: because g_0 releases it, or "
                "because the session of g_0 ends.",
            ),
            Step(
                said(2),
                "g_0 wakes in time. It reads the group, and releases what it must give up.",
                "What would have happened if g_0 had slept longer than its session timeout?",
                "ZooKeeper would have ended its session and deleted its owner znodes. g_1 would "
                "have claimed the partitions, and read them from the stored offsets.",
            ),
            Step(
                end,
                "g_1 has claimed its partitions as soon as their owner znodes were gone.",
                "How often did g_1 have to try again?",
                "Not once by a timer. A watch told it the moment at which it could claim, so it "
                "needed no back-off.",
            ),
        ),
        scenario="an-assigned-partition-still-has-an-owner",
        breaks=PreparedSearch(
            "no roll-back",
            "The loser of the race has rolled its claims back. Let eager members keep the "
            "partitions of a failed attempt.",
        ),
    ),
    "gives-up": Tour(
        "A JVM member gives up",
        (
            Step(
                start,
                "The group may contain Kafka's own consumers. g_1 will be one: it follows the "
                "rules of Kafka 1.1.1.",
                "Which of these rules differ from those of zkconsumer?",
                "Not the assignment: all members must compute the same one. But a JVM member "
                "releases all its partitions in each rebalance, and gives up after four attempts.",
            ),
            Step(
                said(1),
                "g_0 freezes, and g_1, the JVM member, joins.",
                "Which partitions are assigned to g_1, and which member owns them now?",
                "t-2 and t-3, and g_0 owns them. It cannot release them while it is frozen.",
            ),
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
                "What would an operator see in ZooKeeper?",
                "A member that is registered, partitions without owner znodes, and a lag that "
                "grows. Nothing shows that the member has given up.",
            ),
            Step(
                owners_change(1, after=2),
                "g_0 has woken up, and has released the partitions that are assigned to g_1. No "
                "member claims them, so their cells stay hatched. This is the famous state of a "
                'group after "can\'t rebalance after 4 retries".',
                "How can an operator end this state?",
                "By any change in the group that wakes g_1. For example, restart a member, or let "
                "another one join.",
            ),
            Step(
                end,
                "The next change, here a third member, wakes g_1, and every partition has an"
                " owner again.",
                "Does a zkconsumer member need such a change, too?",
                "No. It waits for the owner znodes with a watch, and it never gives up.",
            ),
        ),
        scenario="a-jvm-peer-has-given-up",
        breaks=PreparedSearch(
            "JVM rules",
            "A JVM member gives up after four attempts, and it has no lease. Let the search "
            "find the shortest run in which two JVM members deliver one partition.",
        ),
    ),
    "quorum": Tour(
        "ZooKeeper loses its quorum",
        (
            Step(
                start,
                "g_0 and g_1 own two partitions each.",
                "How many of three ZooKeeper servers must work?",
                "Two: a majority must confirm each write.",
            ),
            Step(
                said(1),
                "Two of three servers are down. No session can expire and nothing can be written: "
                "owners stay as they are.",
                "May members continue to deliver?",
                "A JVM member does. A zkconsumer member stops when its lease ends, because it "
                "can no longer know that it is the owner.",
            ),
            Step(
                said(2),
                "The servers are back after ten session timeouts. The sessions live on.",
                "Why did the sessions not expire in the meantime?",
                "Only a leader can end a session. When a new leader is elected, it gives every "
                "session its full timeout again.",
            ),
            Step(
                end,
                "Each member has read back what it owns and delivers. Nothing has moved.",
                "What did the zkconsumer members lose in this time?",
                "Only time: they delivered nothing after their leases had ended.",
            ),
        ),
        scenario="quorum-is-lost",
        breaks=PreparedSearch(
            "no lease",
            "Without a quorum, no leader confirms the sessions, so the members stop. Let the "
            "members deliver without a lease.",
        ),
    ),
    "bridge": Tour(
        "A group moves to the new protocol",
        (
            Step(
                start,
                "Two old members share six partitions by means of ZooKeeper: g_0 is a zkconsumer "
                "member, and g_1 is a JVM member. Their programs will be replaced by consumers of "
                "Kafka's own protocol, one by one, and no program waits for another one.",
                "What would happen if a new consumer with the same group id started now?",
                "It would read all six partitions, too. A broker coordinates the new consumers, "
                "and does not know the old members.",
            ),
            Step(
                happens("phase", BRIDGE, "stable", after=1),
                "The bridge has joined the brokers' group of the same name, and leads it. So the "
                "bridge computes the assignment of the new members. It holds no partition yet.",
                "Why has nothing changed in ZooKeeper?",
                "The bridge registers consumers in ZooKeeper only for the share of the new "
                "members, and there are none.",
            ),
            Step(
                happens("bridge", "runs", after=2),
                "new_0 has joined, and was assigned nothing. The bridge starts one consumer in "
                "ZooKeeper, g_b0-0, because one of three members is new.",
                "How do the old members learn that they must release partitions?",
                "As always: their watches on ids fire. For them, g_b0-0 is a third member.",
            ),
            Step(
                happens("bridge", "seeding", after=2),
                "The old members have committed and released t-4 and t-5, and g_b0-0 has claimed "
                "them. The bridge knows the offsets in ZooKeeper, and stores them in Kafka.",
                "What would happen if the bridge did not store the offsets in Kafka?",
                "new_0 would find no offset there. By its setting auto.offset.reset it would "
                "read everything again, or skip messages.",
            ),
            Step(
                happens("bridge", "lent", after=2),
                "Kafka has the offsets. The bridge lends both partitions, and joins the brokers' "
                "group again: the rebalance assigns them.",
                "When does new_0 learn of the rebalance?",
                "From the answer to its next heartbeat, which it sends every three seconds.",
            ),
            Step(
                happens("owner", NEW, "t-5", after=2),
                "new_0 reads t-4 and t-5 from the offsets at which the old members have stopped. "
                "In ZooKeeper, g_b0-0 owns them, so no old member reads them.",
                "Was a message redelivered?",
                "No: the old members had committed before they released the partitions.",
            ),
            Step(
                happens("bridge", "returning", after=3),
                "g_2, an old member, has started, and nobody has told the bridge. With four "
                "members, range assigns t-4 to g_2. The bridge assigns t-4 to no new member any "
                "more, and joins again.",
                "Why does g_b0-0 not release t-4 at once?",
                "new_0 still delivers t-4. It stops when it learns of the rebalance.",
            ),
            Step(
                happens("bridge", "returned", after=3),
                "new_0 has revoked its partitions and committed them in Kafka, and has joined "
                "again. The bridge has read the last offset of t-4 in Kafka. Its consumer writes "
                "the offset to ZooKeeper by compare-and-set, and then deletes the owner znode.",
                "In which order must these steps happen?",
                "Revoke, commit in Kafka, write to ZooKeeper, release, claim. g_2 reads the offset "
                "in ZooKeeper when it has claimed t-4.",
            ),
            Step(
                happens("owner", OLD, "t-4", after=3),
                "g_2 has claimed t-4, and continues at the offset at which new_0 has stopped.",
                "What does a JVM member do in the place of g_2?",
                "It tries to claim t-4 four times, two seconds apart. If new_0 takes longer than "
                "that, it waits for the next change, and the bridge registers again to wake it.",
            ),
            Step(
                performs(f"kill:{BRIDGE}"),
                "The bridge is dead, and new_0 continues to read t-5. The owner znode of t-5 "
                "stays until ZooKeeper ends the session of g_b0-0.",
                "Why does the standby not join at once?",
                "In the brokers' group, the standby has the same instance id, and would replace "
                "the other bridge. It first waits until no session of that bridge is left.",
            ),
            Step(
                happens("owner", OLD, "t-5", after=4),
                "The session has expired, and g_2 has claimed t-5, while new_0 still reads it: "
                "until the standby leads, two members may deliver the same messages.",
                "Can this lose messages?",
                "No. g_2 starts at the last offset that the bridge has copied to ZooKeeper, so "
                "the worst effect is that messages are redelivered.",
            ),
            Step(
                happens("owner", NEW, "t-5", after=4),
                "The standby has taken over the brokers' group without an election: its instance "
                "id is that of the leader. It has lent t-5 to new_0 again.",
                "What would happen without a standby?",
                "After its session timeout, the brokers would remove the bridge. new_0 would "
                "lead, and would assign all partitions to itself, while old members own them.",
            ),
            Step(
                performs(f"join:{NEXT}"),
                "All old programs stop at once, and new_1 starts. The bridge will claim all six "
                "partitions, and lend them to both new members.",
                "What if an old program must come back now?",
                "It starts again, and the bridge returns its share. The way back is open until "
                "`finish`.",
            ),
            Step(
                performs("finish"),
                "No old member is left, and Kafka has all offsets. The operator runs "
                "`zkconsumer bridge finish`.",
                "What will the bridge do?",
                "It leaves the brokers' group, and closes its consumers in ZooKeeper.",
            ),
            Step(
                end,
                "The bridge has left, and a new member leads the brokers' group. It is an ordinary "
                "group of Kafka's own protocol now. `zkconsumer docs migrating` says how to "
                "do this with your group.",
                "When were messages redelivered?",
                "Only after the kill of the bridge. No planned step has redelivered or skipped a "
                "message.",
            ),
        ),
        world={
            "protocol": "bridge-eager",
            "members": 2,
            "jvm": [1],
            "spare": 1,
            "new_members": 2,
            "partitions": 6,
            "flow": 0,
        },
        script=_bridge,
        breaks=PreparedSearch(
            "unconditional commit",
            "The bridge's consumer writes offsets by compare-and-set, so that no offset in "
            "ZooKeeper moves back. Let the members of a ZooKeeper group commit without it.",
        ),
    ),
}
"""The tours, in the order in which the page lists them."""
