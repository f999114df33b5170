"""Assignors under test: a program gets members and topics, and answers who reads which partition.

A schedule is a group that changes: members come and go, and topics grow. After each change the
program assigns the partitions, and sees its previous assignment. The promises (A) say what every
assignment must be; the score says how balanced and how sticky it is, beside Kafka's assignors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from zkconsumer.frozen import dataclass
from zkconsumer.judge.judging import Challenge, Court, Score, silent
from zkconsumer.judge.promises import CONVERSATION, speaks_the_protocol
from zkconsumer.judge.vocabulary import (
    COUNT,
    COUNTS,
    Message,
    MessageField,
    Sender,
    Vocabulary,
    table_of,
)
from zkconsumer.protocol.later.assignors import Assignor, assign
from zkconsumer.protocol.later.subscriptions import Subscription, Topic
from zkconsumer.protocol.model import JsonObject, TopicPartition
from zkconsumer.sim.kernel.promises import Promise, Reason, promise
from zkconsumer.sim.kernel.search import Decide, Decisions, Result, judged, one_of
from zkconsumer.sim.kernel.stories import Emit
from zkconsumer.trace import VERSION

# ---- the messages --------------------------------------------------------------------------------

_PARTITIONS = table_of(COUNTS)

VOCABULARY: Final = Vocabulary(
    {
        "assign": Message(
            Sender.JUDGE,
            "The group has changed; the program answers with one `assignment`. Equal messages must "
            "have equal answers: nothing else may matter.",
            {
                "topics": MessageField(table_of(COUNT), "the number of partitions of each topic"),
                "members": MessageField(
                    table_of({"type": "object"}),
                    "for each member, `topics`: the topics that it subscribes to; and `owned`: its "
                    "partitions of each topic before the change",
                ),
            },
        ),
        "assignment": Message(
            Sender.PROGRAM,
            "Who reads which partitions from now on.",
            {
                "members": MessageField(
                    table_of(_PARTITIONS),
                    "for each member, its partitions of each topic; a member that is left out gets "
                    "none",
                )
            },
        ),
        "done": Message(Sender.PROGRAM, "The end of the answer.", {}),
    }
)

# ---- the group -----------------------------------------------------------------------------------

Assignment = Mapping[str, frozenset[TopicPartition]]


@dataclass(frozen=True)
class Group:
    """A group before an assignment.

    Attributes:
        topics: the number of partitions of each topic.
        members: the topics that each member subscribes to.
        owned: the present partitions of each member.
    """

    topics: Mapping[str, int]
    members: Mapping[str, tuple[str, ...]]
    owned: Assignment

    def wanted(self) -> set[TopicPartition]:
        """Return the partitions that have a subscriber."""
        topics = {topic for own in self.members.values() for topic in own}
        return {TopicPartition(one, n) for one in topics for n in range(self.topics[one])}

    def may_have(self, member: str, tp: TopicPartition) -> bool:
        return tp.topic in self.members.get(member, ())


def _by_topic(partitions: frozenset[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found


def question(group: Group) -> JsonObject:
    """Return the message that asks for an assignment."""
    members = {
        name: {"topics": list(topics), "owned": _by_topic(group.owned.get(name, frozenset()))}
        for name, topics in group.members.items()
    }
    return {"type": "assign", "topics": dict(group.topics), "members": members}


# ---- the promises --------------------------------------------------------------------------------


@promise("A1")
def assigns_only_what_exists(group: Group, member: str, tp: TopicPartition) -> Reason:
    """Only members get partitions, and only existing partitions of topics they subscribe to."""
    if member not in group.members:
        return f"{tp} is given to {member}, which is no member"
    if tp not in group.wanted():
        return f"{member} gets {tp}, which does not exist or has no subscriber"
    if not group.may_have(member, tp):
        return f"{member} gets {tp}, but does not subscribe to {tp.topic}"
    return None


@promise("A2")
def assigns_to_one_member(tp: TopicPartition, first: str, second: str) -> Reason:
    """No partition is assigned to two members."""
    return f"{tp} is assigned to {first} and to {second}"


@promise("A3")
def assigns_everything(group: Group, assigned: set[TopicPartition]) -> Reason:
    """Every partition that has a subscriber is assigned."""
    left = sorted(group.wanted() - assigned)
    return f"no member gets {', '.join(map(str, left))}" if left else None


PROMISES: Final[tuple[Promise[...], ...]] = (
    *CONVERSATION,
    assigns_only_what_exists,
    assigns_to_one_member,
    assigns_everything,
)


def checked(group: Group, assignment: Assignment) -> Assignment:
    """Return the assignment. Raises InvariantViolation if it breaks a promise."""
    owner: dict[TopicPartition, str] = {}
    for member, partitions in assignment.items():
        for tp in sorted(partitions):
            assigns_only_what_exists.check(group, member, tp)
            if tp in owner:
                assigns_to_one_member.check(tp, owner[tp], member)
            owner[tp] = member
    assigns_everything.check(group, set(owner))
    return assignment


# ---- the score -----------------------------------------------------------------------------------


@dataclass
class AssignorScore(Score):
    """What an assignor's assignments cost.

    Attributes:
        assignments: how many assignments there were.
        uneven: sum over the assignments of the largest difference between the numbers of partitions
            of two members, of which the one with more could give a partition to the other; 0 or 1
            is balanced.
        moved: partitions that left a member which could have kept them.
        needless: of these, partitions beyond the number that balance needs: what the members that
            stayed had above an equal share.
    """

    assignments: int = 0
    uneven: int = 0
    moved: int = 0
    needless: int = 0


def score_of(group: Group, assignment: Assignment) -> AssignorScore:
    """Return the score of one assignment."""
    owner = {tp: member for member, own in assignment.items() for tp in own}
    kept = {
        tp: member
        for member, own in group.owned.items()
        for tp in own
        if group.may_have(member, tp) and tp in group.wanted()
    }
    moved = sum(owner[tp] != member for tp, member in kept.items())
    share = -(-len(group.wanted()) // len(group.members))
    count: dict[str, int] = dict.fromkeys(group.members, 0)
    for member in kept.values():
        count[member] += 1
    needed = sum(max(0, one - share) for one in count.values())
    return AssignorScore(1, _uneven(group, assignment), moved, max(0, moved - needed))


def _uneven(group: Group, assignment: Assignment) -> int:
    size = {name: len(assignment.get(name, ())) for name in group.members}
    differences = [
        size[rich] - size[poor]
        for rich in group.members
        for poor in group.members
        if any(group.may_have(poor, tp) for tp in assignment.get(rich, ()))
    ]
    return max(differences, default=0)


# ---- schedules -----------------------------------------------------------------------------------

Assign = Callable[[Group], Assignment]

_CHANGES: Final = ("join", "leave", "grow", "other topics")


def changes(decide: Decide) -> Iterator[Callable[[Assignment], Group]]:
    """Draw a group and its changes; each step makes a group from the assignment before it."""
    topics = {name: 1 + decide(8) for name in "tuv"[: 1 + decide(3)]}
    is_equal = decide(2) == 0
    members: dict[str, tuple[str, ...]] = {}
    number = 0

    def subscription() -> tuple[str, ...]:
        chosen = tuple(topics) if is_equal else tuple(it for it in topics if decide(2))
        return chosen or tuple(topics)[:1]

    for change in ["join", *(one_of(_CHANGES, decide) for _ in range(decide(8)))]:
        match change:
            case "leave" if len(members) > 1:
                del members[one_of(list(members), decide)]
            case "grow":
                topics[one_of(list(topics), decide)] += 1 + decide(3)
            case "other topics":
                members[one_of(list(members), decide)] = subscription()
            case _:
                # A restarted member has another id, as in Kafka; ids have no order in time.
                number += 1
                members[f"m{(number * 7) % 10}{number}"] = subscription()
        now, there = dict(topics), dict(members)

        def group(
            before: Assignment,
            now: dict[str, int] = now,
            there: dict[str, tuple[str, ...]] = there,
        ) -> Group:
            return Group(now, there, {one: own for one, own in before.items() if one in there})

        yield group


def play(assigning: Assign, decide: Decide) -> Iterator[tuple[Group, Assignment]]:
    """Yield each group of a schedule with its assignment. Raises InvariantViolation."""
    before: Assignment = {}
    for change in changes(decide):
        group = change(before)
        before = checked(group, assigning(group))
        yield group, before


class NoCounts:
    """A schedule of assignments delivers nothing."""

    deliveries = duplicates = rebalances = 0


class AssignorCourt(Court[Challenge, AssignorScore]):
    """Runs schedules of assignments."""

    score = AssignorScore

    def names(self) -> tuple[list[str], str]:
        return [], ""

    def run(self, decide: Decisions, emit: Emit | None = None) -> tuple[Result, AssignorScore]:
        self.forget()
        total = AssignorScore()
        told = 0

        def ask(group: Group) -> Assignment:
            nonlocal told
            told += 1
            _tell(emit or silent, told, "members", _spoken(group))
            found = self._answer(group)
            _tell(emit or silent, told, "the program assigns", _assigned(found))
            return found

        def run() -> None:
            nonlocal total
            for group, assignment in play(ask, decide):
                total = total + score_of(group, assignment)

        return judged(run, NoCounts(), decide, lambda: told), total

    def _answer(self, group: Group) -> Assignment:
        """Ask the program. Raises InvariantViolation."""
        program = self.programs[0]
        answers = [it for it in program.begin(question(group)).answers if it["type"] != "done"]
        if len(answers) != 1:
            raise speaks_the_protocol.broken(
                f"{program.name}: {len(answers)} messages `assignment`, not one"
            )
        return {
            member: frozenset(
                TopicPartition(topic, number) for topic in topics for number in topics[topic]
            )
            for member, topics in answers[0]["members"].items()
        }


def _tell(emit: Emit, at: int, what: str, words: str) -> None:
    emit({"v": VERSION, "t": float(at), "note": f"{what}: {words or 'none'}"})


def _spoken(group: Group) -> str:
    topics = ", ".join(f"{name} has {count} partitions" for name, count in group.topics.items())
    members = "; ".join(f"{name} ({', '.join(own)})" for name, own in group.members.items())
    return f"{members}; {topics}; owned: {_assigned(group.owned) or 'nothing'}"


def _assigned(assignment: Assignment) -> str:
    return "; ".join(
        f"{member}: {', '.join(map(str, sorted(own)))}" for member, own in assignment.items() if own
    )


CHALLENGES: Final[Mapping[str, Challenge]] = {
    "assign": Challenge(
        name="assign",
        title="an assignor",
        statement="Members come and go, topics grow, and subscriptions change. Assign every "
        "partition to exactly one member that subscribes to its topic.",
        lesson="Every member trusts the assignment of one leader. It must be complete, and should "
        "be balanced, and move few partitions: each moved partition is a pause.",
    )
}

# ---- Kafka's assignors ---------------------------------------------------------------------------


def by_kafka(assignor: Assignor) -> Assign:
    """Return the assignor of Kafka 3.9.1 for the groups of this module."""

    def assigning(group: Group) -> Assignment:
        subscriptions = {
            name: Subscription(topics, tuple(sorted(group.owned.get(name, ()))), 1)
            for name, topics in group.members.items()
        }
        topics = {
            name: Topic(count, id=(0, number))
            for number, (name, count) in enumerate(group.topics.items(), 1)
        }
        found = assign(assignor, topics, subscriptions)
        return {member: frozenset(own) for member, own in found.items()}

    return assigning


BESIDE: Final = (Assignor.RANGE, Assignor.ROUND_ROBIN, Assignor.STICKY, Assignor.UNIFORM)
"""The assignors in the table beside the program's."""


def total_of(assigning: Assign, schedules: Iterator[Decisions]) -> AssignorScore:
    """Return the score of an assignor over some schedules."""
    total = AssignorScore()
    for decide in schedules:
        for group, assignment in play(assigning, decide):
            total = total + score_of(group, assignment)
    return total
