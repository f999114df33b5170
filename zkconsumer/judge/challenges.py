"""The ladder: twelve challenges, each with one lesson.

A challenge is a kind of world: who plays in it, which faults its hidden schedules draw, what must
hold at the end, and which promises hold besides those of every member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from zkconsumer.frozen import dataclass
from zkconsumer.judge import rules
from zkconsumer.judge.judging import Challenge
from zkconsumer.judge.promises import (
    CONVERSATION,
    registers_for_every_release,
    writes_readable_offsets,
)
from zkconsumer.judge.world import Converged, JudgedWorld, Rule
from zkconsumer.member.state import Settings
from zkconsumer.sim import promises as of_members
from zkconsumer.sim.kernel.promises import Promise
from zkconsumer.sim.kernel.search import Decide, one_of
from zkconsumer.sim.plan import Do, Plan

Prepare = Callable[[JudgedWorld], None]
"""Changes the world before the first member joins."""


def _nothing(world: JudgedWorld) -> None:
    """Leave the world as it is."""


@dataclass(frozen=True, kw_only=True)
class MemberChallenge(Challenge):
    """One rung of the ladder for members of a group in ZooKeeper.

    Attributes:
        programs: the least and the most members that the program plays.
        jvm, ours: how many further members are models of JVM members, and zkconsumer members.
        partitions, messages: the most of each that a schedule draws.
        faults: the kinds of faults that a schedule may draw, and how often each may happen.
        replicas: the servers of ZooKeeper.
        length: how many actions happen before the faults end; a schedule draws half or all.
        identities: suffixes of consumer ids with their numbers of streams; a schedule draws one for
            its only member. If empty, the ids end with numbers, and members have one stream.
        oversleeps: whether in most schedules a frozen member freezes until its session has expired.
        commits: whether the users close the members at the end, which then must have stored what
            they have delivered.
        over: says why a schedule is not over; None if it is.
        prepare: what happens before the first member joins.
        own: makes the rules of this challenge alone.
    """

    programs: tuple[int, int] = (1, 1)
    jvm: int = 0
    ours: int = 0
    partitions: int = 4
    messages: int = 3
    faults: tuple[tuple[Do, int], ...] = ()
    replicas: int = 1
    length: int = 200
    identities: tuple[tuple[str, int], ...] = ()
    oversleeps: bool = False
    commits: bool = False
    over: Converged = rules.serves_all
    prepare: Prepare = _nothing
    own: Callable[[], Sequence[Rule]] = tuple

    @property
    def most(self) -> int:
        """The most members of a schedule that the program plays."""
        return self.programs[1]


@dataclass(frozen=True)
class Drawn:
    """What a schedule has drawn.

    Attributes:
        programs: how many members the program plays.
        length: number of actions before the faults end.
        rarity: one action in `rarity` begins or ends a fault.
        is_aimed: whether most faults hit members with a reply on the way.
        oversleeps: whether a frozen member freezes until its session has expired.
    """

    plan: Plan
    programs: int
    length: int
    rarity: int
    is_aimed: bool
    oversleeps: bool


def draw(challenge: MemberChallenge, decide: Decide) -> Drawn:
    """Draw the world of a schedule."""
    least, most = challenge.programs
    identity = one_of(challenge.identities, decide) if challenge.identities else None
    programs = least + decide(most - least + 1)
    kinds = [one for one in challenge.faults if decide(4)] or list(challenge.faults)
    plan = Plan(
        members=programs + challenge.jvm + challenge.ours,
        partitions=1 + decide(challenge.partitions),
        messages=1 + decide(challenge.messages),
        messages_per_advance=decide(2),
        replicas=challenge.replicas,
        repair_one_in=1 + decide(4),
        faults={do: 1 + decide(most) for do, most in kinds},
        settings=partial(_settings, identity=identity),
    )
    length = challenge.length // 2 * (1 + decide(2))
    rarity, is_aimed = 3 + decide(8), decide(3) == 1
    return Drawn(plan, programs, length, rarity, is_aimed, challenge.oversleeps and decide(4) > 0)


def _settings(one: Settings, identity: tuple[str, int] | None) -> Settings:
    settings = replace(one, auto_commit_s=2.0)
    if identity is None:
        return settings
    suffix, streams = identity
    return replace(
        settings,
        consumer=f"{one.group}_{suffix}",
        subscription=dict.fromkeys(one.subscription, streams),
    )


CHALLENGES: Final[dict[str, MemberChallenge]] = {
    one.name: one
    for one in (
        MemberChallenge(
            name="register",
            title="register, so that the others can read it",
            statement="Create your id znode below `ids`, and its parents, which may exist already. "
            "Whatever else your member does is not judged yet.",
            lesson="A member exists for the group as long as its ephemeral id znode exists. The "
            "other members decode it to compute the assignment, so its form is a contract. They "
            "read it as soon as it exists, and JVM members set no watch on it.",
            length=60,
            identities=rules.IDENTITIES,
            over=rules.is_registered,
            prepare=rules.create_some_parents,
        ),
        MemberChallenge(
            name="range",
            title="range, in Java's order",
            statement="Your member is in a group with silent members, which claim nothing. Claim "
            "exactly the partitions that the range assignor gives your threads, and deliver them.",
            lesson="Nobody tells a member what it gets. All members must compute the same "
            "assignment; otherwise two of them claim one partition. They sort thread ids, not "
            "consumer ids. The order is that of Java's strings: `Z` is before `a`, and `-10` "
            "before `-2`.",
            partitions=12,
            length=60,
            identities=rules.IDENTITIES,
            over=rules.has_its_share,
            prepare=rules.register_peers,
        ),
        MemberChallenge(
            name="claim",
            title="claim, and roll back",
            statement="Your member is alone. Claim every partition, deliver its messages, and "
            "commit. Another client may hold a partition for a while.",
            lesson="A claim can be refused. The other partitions must still be read, the refused "
            "one must be claimed again later, and nobody deletes another client's znode.",
            faults=((Do.STUCK, 3),),
            commits=True,
        ),
        MemberChallenge(
            name="watches",
            title="watches are one-shot",
            statement="Members join and leave, and partitions are added. The group must settle "
            "after each change, and hand over without redelivering a message.",
            lesson="A watch fires once. Whoever reads without setting it again, or sets it after "
            "the read, misses the next change.",
            programs=(2, 3),
            faults=((Do.GROW, 2), (Do.LEAVE, 1)),
        ),
        MemberChallenge(
            name="lost-reply",
            title="a lost reply",
            statement="The connection breaks while replies are on the way. The session lives on, "
            "and ZooKeeper may have executed the requests.",
            lesson="A request without a reply has succeeded or failed. Only a read after the "
            "reconnect tells which. It must compare the session, not only the name.",
            programs=(1, 2),
            faults=((Do.CUT, 4),),
        ),
        MemberChallenge(
            name="session",
            title="session expiry against a lost connection",
            statement="Connections break, packets vanish, sessions expire, and members are killed "
            "and start again under their old id, with another number of threads.",
            lesson="After a lost connection everything may still be there; after an expiry "
            "everything ephemeral is gone. Only the session's id tells which of the two it was.",
            programs=(1, 2),
            faults=(
                (Do.CUT, 2),
                (Do.BLACK_HOLE, 2),
                (Do.EXPIRE, 2),
                (Do.KILL, 1),
                (Do.REVIVE, 1),
            ),
            length=300,
        ),
        MemberChallenge(
            name="zombie",
            title="the zombie's commit",
            statement="Processes freeze until after the expiry of their session, and go on as if "
            "nothing had happened. A process that wakes must neither commit nor deliver.",
            lesson="Between a check and a write a process can sleep for a minute. A commit must "
            "be a transaction that fails if the member has lost its registration.",
            programs=(2, 2),
            faults=((Do.FREEZE, 3),),
            length=300,
            oversleeps=True,
        ),
        MemberChallenge(
            name="fencing",
            title="fencing",
            statement="Processes freeze, packets vanish, and a server loses its leader but keeps "
            "its clients. Deliver a message only while you certainly own its partition.",
            lesson="Only the leader knows which sessions live. A lease that counts from the "
            "moment when `sync` was sent ends before another member can own the partition.",
            programs=(2, 3),
            replicas=2,
            faults=((Do.FREEZE, 2), (Do.BLACK_HOLE, 2), (Do.ISOLATE, 2)),
            length=300,
        ),
        MemberChallenge(
            name="herd",
            title="the herd effect, with a budget of reads",
            statement="Eight members join one after the other. Each join wakes all of them. Read "
            "the list of members and the registrations at most 144 times altogether.",
            lesson="If each member reads all registrations at each change, the reads for a change "
            "grow with the square of the group. Registrations that are known need no read.",
            programs=(8, 8),
            partitions=16,
            messages=1,
            length=800,
            own=lambda: (rules.ReadBudget(),),
        ),
        MemberChallenge(
            name="release",
            title="incremental release",
            statement="Members join and leave. Release a partition only if another member gets it.",
            lesson="Stop-the-world is simple, and every member pays for it at each change. What "
            "stays assigned can stay owned.",
            programs=(3, 4),
            partitions=8,
            faults=((Do.LEAVE, 2),),
            length=400,
            own=lambda: (rules.Incremental(),),
        ),
        MemberChallenge(
            name="recreated",
            title="a topic deleted and created",
            statement="The topic is deleted, created again, and grows. While it is deleted, it has "
            "no partitions and no messages.",
            lesson="A znode that a member has read can vanish. `get` sets no watch on a "
            "missing znode; `exists` does, and waits for the creation.",
            programs=(1, 2),
            faults=((Do.DELETE_TOPIC, 2), (Do.GROW, 2)),
            length=300,
        ),
        MemberChallenge(
            name="mixed",
            title="a mixed group, with JVM members' rules",
            statement="Your members share a group with a JVM member and a zkconsumer member. "
            "Members leave, and are killed. At the end the JVM member is gone.",
            lesson="A JVM member releases everything at each change, gives up after four attempts, "
            "and may delete your owner znodes. Watch what you own, and try again.",
            programs=(1, 2),
            jvm=1,
            ours=1,
            faults=((Do.LEAVE, 1), (Do.KILL, 1), (Do.REVIVE, 1)),
            length=1200,
        ),
    )
}

PROMISES: Final[tuple[Promise[...], ...]] = (
    *CONVERSATION,
    writes_readable_offsets,
    registers_for_every_release,
    *of_members.PROMISES,
    rules.reads_within_the_budget,
    rules.keeps_what_stays,
    rules.stores_what_it_has_delivered,
)
"""All promises that a verdict may name."""
