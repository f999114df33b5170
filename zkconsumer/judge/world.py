"""A simulated group whose members are programs under test, beside members of the other kinds.

`JudgedWorld` is the world of mixed groups with one more kind of actor. `JudgeMonitor` checks the
promises for the programs.

Promises of `sim.promises` that look into a member's state are checked for zkconsumer members only.
For a program, "finished" is "delivered": its commits may cover every message that it has delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import cast

from zkconsumer.judge.judging import GroupScore
from zkconsumer.judge.member import ProgramMember
from zkconsumer.judge.program import Program
from zkconsumer.judge.promises import registers_for_every_release, writes_readable_offsets
from zkconsumer.lab.texts import sentence
from zkconsumer.lab.worlds import LabMove
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.requests import Reply
from zkconsumer.sim import promises
from zkconsumer.sim.compare.meter import Meter
from zkconsumer.sim.jvm_member import MixedMonitor, MixedWorld
from zkconsumer.sim.kernel.world import Delivered
from zkconsumer.sim.member import SimMember
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.promises import ObservedWorld
from zkconsumer.sim.stage import ORDINARY
from zkconsumer.sim.world import Watcher, World
from zkconsumer.sim.znodes import ZnodeChange


class JudgedWorld(MixedWorld):
    """A world in which programs play the first members.

    Attributes:
        announce: gets a sentence before each fault, start or leave; None: nothing is told.
    """

    def __init__(
        self,
        plan: Plan,
        watcher: Watcher,
        *,
        programs: Sequence[Program],
        jvm: frozenset[int] = frozenset(),
    ) -> None:
        self.programs = programs  # `new_member` reads it during the initialisation
        self.announce: Callable[[str], None] | None = None
        super().__init__(plan, watcher, jvm=jvm)

    def act(self, action: Action) -> None:
        """Perform one action; announce it first if a story must show it."""
        if self.announce is not None and action.do not in ORDINARY:
            self.announce(sentence(self, LabMove.of(action)))
        super().act(action)

    def new_member(self, who: int) -> SimMember:
        """Return a new process of a member. A program's process goes on; a `reset` begins it."""
        if who >= len(self.programs):
            return super().new_member(who)
        settings = self._settings(who)
        member = ProgramMember(settings, self.programs[who], self.TOPIC, self._told)
        # The world uses all kinds of members in the same way.
        return cast(SimMember, member)

    def _copy_of(self, member: SimMember) -> SimMember:
        if isinstance(member, ProgramMember):
            return cast(SimMember, member.copy(self._told))
        return super()._copy_of(member)

    def _told(self, member: ProgramMember, phase: str, text: str) -> None:
        who = next(who for who, one in enumerate(self.members) if one is cast(SimMember, member))
        self.watcher.entered(self, who, phase, text)

    def program_member(self, who: int) -> ProgramMember:
        return cast(ProgramMember, self.members[who])

    def ends(self) -> tuple[int, ...]:
        """Return the end of each partition of the topic; a deleted topic has no partitions."""
        return () if self.active_faults.topic_gone else tuple(self.log_end.values())

    # ---- the users of programs -------------------------------------------------------------------

    def _of_reader(self, actions: list[Action], who: int) -> None:
        if who >= len(self.programs):
            super()._of_reader(actions, who)
        elif not self.links[who].slow and self.program_member(who).has_work(self.ends()):
            actions.append(Action(Do.NEXT_MESSAGE, who))

    def _do_ask(self, who: int) -> None:
        if who >= len(self.programs):
            super()._do_ask(who)
            return
        member = self.program_member(who)
        if member.unfinished is not None:
            partition, offset = member.unfinished
            tp = TopicPartition(self.TOPIC, partition)
            self.watcher.finished(self, who, tp, offset + 1)
        found = member.poll(self.now, self.ends())
        if found is not None:
            tp, offset = TopicPartition(self.TOPIC, found[0]), found[1]
            self.handed_out[tp] = max(self.handed_out.get(tp, 0), offset + 1)
            owner = self.owner(tp)
            epoch = owner[2] if owner is not None else 0
            self.watcher.delivered(self, Delivered(self.now, who, tp, offset, epoch))
        self._after(who)


# ---- the score -----------------------------------------------------------------------------------


class MemberScorer(Watcher):
    """Measures the score of one schedule."""

    def __init__(self, programs: int) -> None:
        self._meter, self._requests, self._programs = Meter(), 0, programs
        self._seen = 0

    def served(self, world: World, who: int, request: rq.Request, reply: Reply | None) -> None:
        self._requests += who < self._programs

    def delivered(self, world: World, message: Delivered) -> None:
        self._meter.delivered(message.tp, message.offset)

    def acted(self, world: World, action: Action) -> None:
        history = world.zookeeper.history
        if self._seen == len(history):
            return
        self._seen = len(history)
        sessions = {link.session: who for who, link in enumerate(world.links)}
        owners = world.owners().items()
        serving = {tp: sessions[it[1]] for tp, it in owners if it[1] in sessions}
        self._meter.observe(world.now, serving, ())

    def score(self) -> GroupScore:
        """Return the score so far."""
        return GroupScore.of(self._meter, self._requests)


# ---- the promises --------------------------------------------------------------------------------

Converged = Callable[["JudgeMonitor", JudgedWorld], str | None]
"""Returns why a challenge is not over; None if it is."""


class JudgeMonitor(MixedMonitor):
    """Checks the promises of a group with programs."""

    def __init__(
        self, programs: int, jvm: frozenset[int], *, over: Converged, also: Sequence[Rule] = ()
    ) -> None:
        super().__init__(jvm)
        self.harmed = bool(jvm)  # JVM members redeliver even without a fault
        self._programs, self._over, self._also = programs, over, tuple(also)

    def copy(self) -> JudgeMonitor:
        twin = JudgeMonitor(self._programs, self._jvm, over=self._over)
        for one in fields(self):
            value = getattr(self, one.name)
            setattr(twin, one.name, value.copy() if isinstance(value, set | dict) else value)
        twin._also = tuple(rule.copy() for rule in self._also)
        return twin

    def key(self) -> tuple[object, ...]:
        """Return what the monitor and the challenge's rules remember, as a value."""
        own = [vars(rule) for rule in self._also]
        return ([getattr(self, one.name) for one in fields(self)], own)

    def converged(self, world: ObservedWorld) -> str:
        assert isinstance(world, JudgedWorld)
        return self._over(self, world) or ""

    # ---- what the programs do --------------------------------------------------------------------

    def served(self, world: World, who: int, request: rq.Request, reply: Reply | None) -> None:
        for rule in self._also:
            rule.served(world, who, request, reply)
        if who >= self._programs:
            super().served(world, who, request, reply)

    def delivered(self, world: ObservedWorld, message: Delivered) -> None:
        if message.who >= self._programs:
            super().delivered(world, message)
            return
        tp, offset, epoch = message.tp, message.offset, message.epoch
        if tp not in self.by_hand:
            promises.owner_delivers.check(world, message)
        promises.no_message_is_skipped.check(self, tp, offset)
        if tp not in self.lowered:
            promises.starts_at_the_stored_offset.check(self, tp, offset, epoch)
            promises.offsets_are_consecutive.check(self, tp, offset, epoch)
            promises.repeats_only_after_a_fault.check(self, tp, offset)
        self.deliveries += 1
        end = self.delivered_below.get(tp, 0)
        self.duplicates += offset < end
        self.delivered_below[tp] = max(end, offset + 1)
        self.committable[tp] = max(self.committable.get(tp, 0), offset + 1)
        self.next_offset[tp, epoch] = offset + 1
        self.newest[tp] = epoch

    def _too_late(self, world: ObservedWorld, who: int, tp: TopicPartition) -> bool:
        return who >= self._programs and super()._too_late(world, who, tp)

    def _is_on_time(self, world: World, who: int) -> None:
        if who >= self._programs:
            super()._is_on_time(world, who)

    def _released(
        self, world: ObservedWorld, who: int, tp: TopicPartition, entry: ZnodeChange
    ) -> None:
        if who >= self._programs:
            super()._released(world, who, tp, entry)
            return
        is_foreign = entry.old is not None and entry.old.stat.owner != entry.session
        promises.releases_only_its_own.check(self, who, tp, is_foreign=is_foreign)

    def _offset_written(
        self, world: ObservedWorld, who: int, tp: TopicPartition, data: bytes | None
    ) -> None:
        if 0 <= who < self._programs:
            writes_readable_offsets.check(tp, data)
        super()._offset_written(world, who, tp, data)

    def written(self, world: ObservedWorld, entry: ZnodeChange) -> None:
        for who, link in enumerate(world.links[: self._programs]):
            if link.session == entry.session and entry.new is not None:
                settings = world.members[who].settings
                registers_for_every_release.check(settings, entry.path, entry.new)
        super().written(world, entry)

    def acted(self, world: World, action: Action) -> None:
        super().acted(world, action)
        for rule in self._also:
            rule.acted(world, action)


class Rule(Watcher):
    """A promise of one challenge; it raises InvariantViolation in the action that breaks it."""

    def copy(self) -> Rule:
        """Return a rule that continues independently from here."""
        raise NotImplementedError
