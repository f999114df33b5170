"""Weakened parts of a member: each removes one property that the group protocol needs.

Each weakness replaces functions of the production code in this whole process until its block ends,
so only a simulation may run meanwhile (`planted`). The lab offers the weaknesses as switches, and
the tests count them among their mutants, so that the monitor's silence about the complete code
means something.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

from zkconsumer.consumer import loop
from zkconsumer.consumer.stream_partitions import CommitScope
from zkconsumer.errors import ConfigError
from zkconsumer.frozen import dataclass
from zkconsumer.member import assignment as member_assignment
from zkconsumer.member import (
    commands,
    events,
    machine,
    operations,
    phases,
    rebalance,
    session,
)
from zkconsumer.member.offset_ledger import CommitPlan
from zkconsumer.member.operations import MemberIdentity
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import State, Step, replace, start_op
from zkconsumer.protocol import group_snapshot, paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.model import ConsumerId, Purpose, RebalanceMode, ThreadId, TopicPartition
from zkconsumer.protocol.releases import DEFAULT, Profile
from zkconsumer.sim.plan import Do

Patch: TypeAlias = tuple[Any, Any, Any]
"""Where, the name and its replacement. Any: a module, class or table of any kind with its names or
keys, and any function."""


@dataclass(frozen=True)
class Weakness:
    """A weakened part of a member.

    Attributes:
        what: one sentence that says how a weakened member differs.
        patches: returns the replaced functions.
        who: other clients whose members behave in this way; "" if none is known.
        breaks: the promise that this weakness usually breaks, as a question of the lab.
        faults: the faults that usually reveal it.
        mode: the members' rebalance mode in which the weakness has an effect.
    """

    name: str
    what: str
    patches: Callable[[], list[Patch]]
    who: str = ""
    breaks: str = ""
    mode: RebalanceMode = RebalanceMode.INCREMENTAL
    faults: tuple[Do, ...] = ()

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the fault until the block ends.

        The check of phases is off meanwhile, so that only a monitor can notice the effect.
        """
        with ExitStack() as undo:
            unchecked: Patch = (phases, "check_change", lambda before, causes, after: None)
            for one in (unchecked, *self.patches()):
                undo.callback(_replaced(*one))
            yield


def _replaced(
    where: Any,  # Any: as in `Patch`
    name: Any,  # Any: as in `Patch`
    replacement: Any,  # Any: as in `Patch`
) -> Callable[[], None]:
    """Replace a function, and return a function that restores it."""
    if isinstance(where, dict):
        has_own, put, remove = name in where, where.__setitem__, where.__delitem__
        old = where.get(name)
    else:  # a class may inherit the function
        has_own, put, remove = name in vars(where), partial(setattr, where), partial(delattr, where)
        old = vars(where).get(name)
    put(name, replacement)
    return partial(put, name, old) if has_own else partial(remove, name)


@contextmanager
def planted(names: Collection[str]) -> Iterator[None]:
    """Plant the weaknesses with these names in this whole process until the block ends.

    The caller makes sure that no real member and no other simulation runs in this process
    meanwhile. Raises ConfigError if a name is unknown.
    """
    with ExitStack() as undo:
        for name in names:
            undo.enter_context(weakness(name).planted())
        yield


def weakness(name: str) -> Weakness:
    """Return the weakness with this name. Raises ConfigError."""
    for one in SWITCHES:
        if one.name == name:
            return one
    names = ", ".join(repr(one.name) for one in SWITCHES)
    raise ConfigError(
        f"no part is weakened by {str(name)[:60]!r}", where="weak", remedy=f"use some of {names}"
    )


# ---- the patches ---------------------------------------------------------------------------------


def _no_lease() -> list[Patch]:
    def opened(state: State, now: float) -> Step:
        return (state, ()) if not state.may_deliver else (state, (commands.OpenGate(float("inf")),))

    return [(session, "_open", opened)]


def _old_session() -> list[Patch]:
    real = session.connected

    def connected(state: State, event: events.Connected) -> Step:
        if state.session is None or state.session == event.session or not state.registered:
            return real(state, event)
        held = replace(state.lease, op=None)
        state = replace(state, connected=True, may_deliver=True, session=event.session, lease=held)
        return session.renew(state, event.now)

    return [(session, "connected", connected)]


def _nothing_read_after_a_reconnect() -> list[Patch]:
    def recover(state: State) -> Step:
        phase = Phase.SETTLED if state.view else Phase.WAITING
        return replace(state, may_deliver=True, phase=phase, op=None), ()

    return [(rebalance, "recover", recover)]


def _claims_without_a_reply_forgotten() -> list[Patch]:
    real = rebalance.recover

    def recover(state: State) -> Step:
        return real(replace(state, unconfirmed_claims={}))

    def identify(work: object, asked: object) -> Generator[list[rq.Request], object, set[object]]:
        yield []
        return set()

    return [(rebalance, "recover", recover), (operations, "_identify", identify)]


def _release_without_commit() -> list[Patch]:
    def stopped(state: State, now: float) -> Step:
        return rebalance.release(state)

    return [(rebalance, "commit_revoked", stopped)]


def _no_roll_back() -> list[Patch]:
    def roll_back(work: object) -> Generator[list[rq.Request]]:
        yield from ()

    return [(operations, "_roll_back", roll_back), (rq, "MAX_MULTI_WRITES", 1)]


def _everyone_first() -> list[Patch]:
    """Each member sorts in another order, as by a hash that differs between processes."""
    real = group_snapshot.assignment

    def assignment(
        whole: group_snapshot.GroupView,
        *,
        consumer: ConsumerId,
        own: Mapping[str, int],
        strategy: Strategy,
        profile: Profile = DEFAULT,
    ) -> dict[TopicPartition, ThreadId]:
        first = {consumer: whole.members[consumer]} if consumer in whole.members else {}
        others = {f"x{name}": one for name, one in whole.members.items() if name != consumer}
        mixed = replace(whole, members=first | others)
        return real(mixed, consumer=consumer, own=own, strategy=strategy, profile=profile)

    return [(member_assignment, "assignment", assignment)]


def _unconditional_commit() -> list[Patch]:
    def writes(member: MemberIdentity, plan: CommitPlan) -> dict[TopicPartition, rq.Write]:
        found: dict[TopicPartition, rq.Write] = {}
        for tp, (offset, version) in plan.writes.items():
            path, data = paths.offset(member.group, tp), str(offset).encode()
            found[tp] = rq.Create(path, data) if version is None else rq.SetData(path, data, -1)
        for tp in plan.checks:
            found[tp] = rq.Check(paths.offset(member.group, tp))
        return found

    return [(operations, "_writes", writes)]


def _release_before_stop() -> list[Patch]:
    def stop(state: State, go: frozenset[TopicPartition], now: float) -> Step:
        state = replace(state, revoking=go, finished=frozenset(), phase=Phase.RELEASING)
        state, op = start_op(state)
        return state, (commands.Release(op, go),)

    return [(rebalance, "revoke", stop)]


def _no_wait_for_the_user() -> list[Patch]:
    covered = vars(loop)["_WHICH"]
    return [(covered, purpose, CommitScope.DELIVERED) for purpose in Purpose]


def _trigger_during_a_rebalance_lost() -> list[Patch]:
    def triggered(state: State, event: events.Triggered) -> Step:
        if event.trigger is not events.Trigger.OWN_MEMBER_NODE:
            return rebalance.read(state) if state.phase in rebalance.RESTING else (state, ())
        return rebalance.triggered(state, event)

    return [(machine.HANDLERS, (None, events.Triggered), triggered)]


WEAKNESSES: Final = (
    Weakness(
        "no lease",
        "A member delivers until it notices that its connection is broken, without a lease.",
        _no_lease,
        "kafka-python's and pykafka's zombies; every client that fences on LOST",
        breaks="I3",
        faults=(Do.FREEZE, Do.BLACK_HOLE),
    ),
    Weakness(
        "state, not session",
        "A member handles the end of its session as a mere reconnect.",
        _old_session,
        breaks="I3",
        faults=(Do.EXPIRE, Do.BLACK_HOLE),
    ),
    Weakness(
        "no re-read after a reconnect",
        "After a reconnect, a member neither reads the group again nor sets its watches again.",
        _nothing_read_after_a_reconnect,
        breaks="I12",
        faults=(Do.CUT, Do.LEAVE),
    ),
    Weakness(
        "lost reply is a conflict",
        "A member forgets a claim whose reply is lost, and handles its owner znode as another "
        "member's.",
        _claims_without_a_reply_forgotten,
        "Scala, pykafka",
        breaks="I12",
        faults=(Do.CUT, Do.DELETE_OWNER),
    ),
    Weakness(
        "trigger lost",
        "A member ignores a change of the group that it learns of during a rebalance.",
        _trigger_during_a_rebalance_lost,
        breaks="I12",
        faults=(Do.GROW, Do.LEAVE, Do.KILL),
    ),
    Weakness(
        "release before stop",
        "A member deletes its owner znode while it still delivers the partition.",
        _release_before_stop,
        breaks="I9",
        faults=(Do.LEAVE, Do.KILL),
    ),
    Weakness(
        "release without commit",
        "A member releases a partition without a commit, so the next owner starts from an old "
        "offset.",
        _release_without_commit,
        breaks="I13",
        faults=(Do.LEAVE,),
    ),
    Weakness(
        "no roll-back",
        "An eager member claims partitions one by one, and keeps some of them if one claim fails.",
        _no_roll_back,
        "kafka-node",
        breaks="I10",
        faults=(Do.LEAVE, Do.ORPHAN, Do.STUCK, Do.DELETE_OWNER),
        mode=RebalanceMode.EAGER,
    ),
    Weakness(
        "orders differ",
        "Each member sorts the group's threads in another order.",
        _everyone_first,
        "round-robin without Java's hash",
        breaks="I12",
    ),
    Weakness(
        "unconditional commit",
        "A member writes offsets without compare-and-set.",
        _unconditional_commit,
        "Scala, pykafka, kafka-node",
        breaks="I7",
        faults=(Do.EDIT,),
    ),
    Weakness(
        "commit of unfinished messages",
        "An automatic commit also covers the message that the user has not finished.",
        _no_wait_for_the_user,
        "the JVM consumer",
        breaks="I6",
        faults=(Do.SLOW,),
    ),
)
"""The weakened parts. Their names are part of the lab's addresses, so they must not change."""

JVM_RULES: Final = Weakness(
    "JVM rules",
    "All members are JVM members: no lease, commits without a condition, four attempts to claim.",
    list,
    "Kafka's own consumer",
    breaks="deliverers(partition) <= 1",
    faults=(Do.FREEZE, Do.BLACK_HOLE),
)
"""Other members rather than a weakened part, so nothing is replaced."""

SWITCHES: Final = (*WEAKNESSES, JVM_RULES)
"""What the lab's search can weaken."""
