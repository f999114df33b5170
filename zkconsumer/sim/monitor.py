"""The judge of a run: remembers what happens, and checks the promises of `sim.promises`.

It judges simulated worlds after every action, and real runs along their traces. It finds the
changes of other clients in ZooKeeper's history, which contains the session of each write.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, fields
from typing import ClassVar, Self

from zkconsumer.errors import MalformedZnodeError
from zkconsumer.member import commands as cmd
from zkconsumer.member import events
from zkconsumer.member.commands import NoticeKind
from zkconsumer.member.offset_ledger import Commit
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import State
from zkconsumer.protocol import paths, payloads
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import (
    Purpose,
    TopicPartition,
)
from zkconsumer.protocol.paths import ZnodeKind, consumer_of
from zkconsumer.sim import promises
from zkconsumer.sim.kernel.world import Delivered
from zkconsumer.sim.plan import FAULTS, Action, Do
from zkconsumer.sim.promises import Memory, ObservedWorld, assigned
from zkconsumer.sim.world import MemberTransition, Watcher, World
from zkconsumer.sim.znodes import ZnodeChange, parent_of

COMMIT_SLACK_S = 2.0
"""Seconds, beyond the commit interval, within which a member that can commit must store a finished
message: the back-off before Kafka is asked again, and a commit that starts over.
"""

EXCUSES = frozenset(
    {
        NoticeKind.COMMIT_FAILED,
        NoticeKind.COMMIT_RETRIED,
        NoticeKind.OFFSET_EDITED,
        NoticeKind.OFFSET_LEFT,
        NoticeKind.OFFSET_MALFORMED,
        NoticeKind.OFFSET_OVERWRITTEN,
    }
)
"""Notices that report a failed commit of a partition, or an offset that another client wrote."""

TURNS = frozenset({Do.RECEIVE, Do.OVERTAKE})
"""Actions in which a member's loop handles an item of its inbox."""

LISTENER = frozenset({cmd.Callback.RELEASING, cmd.Callback.STARTING})
"""The calls of the listener; the callbacks have the others."""

HARMLESS = frozenset({Do.GROW, Do.LAG})
"""Faults after which no finished message may be redelivered."""


def made_room(world: World, peer: str, subscription: dict[str, int]) -> bool:
    """Return whether the members have settled beside a peer that claims no partition.

    A user's thread may still be preempted after its member has settled: the grace period ended
    before the user finished the messages. That thread does not unsettle the group. To wait for it
    would be wrong, because members with `peers.nudge` rebalance beside this idle peer again and
    again, and each rebalance may preempt the user's thread anew.
    """
    pairs = zip(world.members, world.links, strict=True)
    live = [(member, link) for member, link in pairs if not (link.dead or link.frozen)]
    if not all(member.is_at_rest and link.connected for member, link in live):
        return False
    if not live:
        return True
    wanted = assigned(world, [member for member, _ in live], {peer: subscription})
    owners = {tp: thread for tp, (thread, _, _) in world.owners().items()}
    return owners == {tp: thread for tp, thread in wanted.items() if consumer_of(thread) != peer}


def _can_commit(world: World, who: int) -> bool:
    """Return whether a member can commit: no fault prevents it, and no work is in progress."""
    link, member, wrong = world.links[who], world.members[who], world.active_faults
    if not link.joined or not link.connected or link.black_hole_at is not None or link.lost:
        return False
    if link.dead or link.frozen or member.wire or member.inbox or wrong.refused or wrong.kafka:
        return False
    if wrong.no_quorum or link.replica in (*wrong.isolated, *wrong.lagging):
        return False
    # The world may let other members act while a member's timer is due; then this member has not
    # had its turn.
    has_turned = member.due > world.now
    state = member.state
    return has_turned and state.connected and state.registered and state.may_deliver


@dataclass
class Monitor(Memory, Watcher):
    """Judges one run; raises InvariantViolation at the action that breaks a promise.

    Attributes:
        looked_at: the time of the last action, in virtual seconds.
        seen: number of entries of ZooKeeper's history that were judged.
    """

    JUDGES_COMMITS: ClassVar = True

    looked_at: float = 0.0
    seen: int = 0

    def copy(self) -> Self:
        twin = copy(self)
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, set | dict):
                setattr(twin, one.name, value.copy())
        return twin

    # ---- a member's steps ------------------------------------------------------------------------

    def transition(self, world: ObservedWorld, step: MemberTransition) -> None:
        who, before, event, commands = step
        member = world.members[who]
        state = member.state
        self.rebalances += state.phase is Phase.READING and before.phase is not Phase.READING
        promises.work_is_bounded.check(member, who)
        if isinstance(event, events.PositionsCollected):
            self._collected(who, event.commit)
        elif isinstance(event, events.CommitTimedOut):
            # A queued commit is dropped without an answer; a running commit is still answered.
            if any(event.request in one.requests for one in before.commits.queued):
                self.asked[who] = self.asked.get(who, 0) - 1
        elif isinstance(event, events.Finished):
            self._ended(world, who, before, event, commands)
        elif isinstance(event, events.ReleaseReady):
            promises.users_have_finished.check(world, who, before)
        elif isinstance(event, events.Connected):
            promises.keeps_a_living_session.check(self, world, who, before, event)
        self._commanded(who, before, commands)
        if state.settings.announces:
            self._announced(who, state, commands)
        promises.says_why_it_gives_up.check(who, state, event, commands)
        if state.phase is Phase.CLOSED and before.phase is not Phase.CLOSED:
            for tp, mine in before.owned.items():
                promises.stores_before_it_gives_up.check(
                    self, world, who, tp, mine.epoch, does="leaves"
                )

    def _commanded(self, who: int, before: State, commands: Iterable[cmd.Command]) -> None:
        for command in commands:
            if isinstance(command, cmd.AnswerCommit):
                self.asked[who] = self.asked.get(who, 0) - 1
            elif isinstance(command, cmd.Notice) and command.kind in EXCUSES:
                self._excuse(before, command)
            elif isinstance(command, cmd.GiveUp):
                self.excused |= {*before.owned}  # every stream raises the reason

    def _announced(self, who: int, state: State, commands: Iterable[cmd.Command]) -> None:
        for command in commands:
            if not isinstance(command, cmd.CallListener) or command.callback in LISTENER:
                continue
            promises.callbacks_alternate.check(self, who, command)
            for tp in command.partitions:
                if command.callback is cmd.Callback.ASSIGNED:
                    self.announced[who, tp] = state.owned[tp].epoch
                else:
                    del self.announced[who, tp]
        promises.a_loss_is_announced.check(self, who, state)

    def _excuse(self, before: State, notice: cmd.Notice) -> None:
        named = {tp for tp in self.finished_in if str(tp) == notice.where}
        self.excused |= named or {*before.owned}

    def _collected(self, who: int, commit: Commit) -> None:
        """Allow the offsets that the user commits explicitly, including the unfinished message."""
        if commit.purpose in (Purpose.EXPLICIT, Purpose.LEAVE):
            for tp, (_, offset) in commit.positions.items():
                self.committable[tp] = max(self.committable.get(tp, 0), offset)
        if commit.purpose is Purpose.GIVEN:
            for tp, (_, offset) in commit.positions.items():
                self.committable[tp] = max(self.committable.get(tp, 0), offset)
                self.given[tp] = self.given.get(tp, frozenset()) | {offset}
                self.finished_below[tp] = min(self.finished_below.get(tp, 0), offset)
                self.edited.pop(tp, None)  # the user's offset replaces the edit
        if commit.purpose in (Purpose.EXPLICIT, Purpose.GIVEN):
            self.asked[who] = self.asked.get(who, 0) + 1

    def _ended(
        self,
        world: ObservedWorld,
        who: int,
        before: State,
        event: events.Finished,
        commands: Iterable[cmd.Command],
    ) -> None:
        # The state machine ignores the result of an operation that it no longer awaits.
        if event.op in (before.op, before.commits.op):
            promises.reports_a_refusal.check(who, event.outcome, commands)
            promises.failed_claim_leaves_no_znode.check(self, world, who, before, event.outcome)

    # ---- requests --------------------------------------------------------------------------------

    def served(self, world: World, who: int, request: rq.Request, reply: rq.Reply | None) -> None:
        promises.sends_in_its_session.check(world, who, request)

    # ---- messages --------------------------------------------------------------------------------

    def finished(self, world: ObservedWorld, who: int, tp: TopicPartition, offset: int) -> None:
        if not self._too_late(world, who, tp):
            self.finished_below[tp] = max(self.finished_below.get(tp, 0), offset)
            if self.simulated and (mine := world.members[who].state.owned.get(tp)) is not None:
                self.finished_in[tp] = (mine.epoch, offset)
        self.committable[tp] = max(self.committable.get(tp, 0), offset)

    def _too_late(self, world: ObservedWorld, who: int, tp: TopicPartition) -> bool:
        """Return whether a message was finished after the grace period, and so is redelivered."""
        state = world.members[who].state
        return tp in state.revoking and state.phase is not Phase.STOPPING

    def delivered(self, world: ObservedWorld, message: Delivered) -> None:
        tp, offset, epoch = message.tp, message.offset, message.epoch
        promises.no_message_is_skipped.check(self, tp, offset)
        self.deliveries += 1
        end = self.delivered_below.get(tp, 0)
        self.duplicates += offset < end
        self.delivered_below[tp] = max(end, offset + 1)
        if offset <= self.edited.get(tp, -1):
            del self.edited[tp]
        if tp not in self.lowered and not self.lost_data:
            promises.starts_at_the_stored_offset.check(self, tp, offset, epoch)
            promises.offsets_are_consecutive.check(self, tp, offset, epoch)
            promises.repeats_only_after_a_fault.check(self, tp, offset)
        self.next_offset[tp, epoch] = offset + 1
        promises.delivers_only_what_is_announced.check(self, world, message)
        if tp not in self.by_hand:
            promises.newest_owner_delivers.check(self, message)
            self.newest[tp] = epoch
            promises.only_one_may_deliver.check(world, message)
            promises.owner_delivers.check(world, message)

    def repositioned(
        self, world: World, who: int, tp: TopicPartition, *, epoch: int, offset: int, is_seek: bool
    ) -> None:
        """Record a changed position; check that `auto.offset.reset` is applied only if needed."""
        if not is_seek:
            promises.resets_to_the_configured_end.check(
                self, world, who, tp, epoch=epoch, offset=offset
            )
            promises.resets_only_out_of_range.check(self, world, tp, epoch=epoch)
            self.delivered_below[tp] = max(self.delivered_below.get(tp, 0), offset)
        self.committable[tp] = max(self.committable.get(tp, 0), offset)
        self.finished_below[tp] = min(self.finished_below.get(tp, 0), offset)
        self.rewound[tp] = epoch, (*self.asked_offsets(tp, epoch), offset)
        self.edited.pop(tp, None)  # the user's seek overrides the edit, or the edit is out of range
        self.next_offset[tp, epoch] = offset
        self.owed.pop(tp, None)
        owner, finished = self.finished_in.get(tp, (-1, 0))
        self.finished_in[tp] = owner, min(finished, offset)
        if is_seek:
            # Until the stream has fetched again, there is no position to store.
            del self.finished_in[tp]

    # ---- znodes ----------------------------------------------------------------------------------

    def _is_on_time(self, world: World, who: int) -> None:
        promises.no_deadline_is_missed.check(world, who)

    def acted(self, world: World, action: Action) -> None:
        self.harmed |= action.do in FAULTS and action.do not in HARMLESS
        if action.do is Do.DELETE_TOPIC:
            # The owners of the topic's partitions withdraw them, and start no further commits of
            # them.
            owners = world.owners().items()
            self.deleted = {tp: at for tp, (_, _, at) in owners if tp.topic == world.TOPIC}
        if action.do is Do.LOSE_DATA:
            self._data_lost(world)
        if action.do is Do.REVIVE:
            self.asked.pop(action.who, None)  # the callers ended with the process
            for announced in [one for one in self.announced if one[0] == action.who]:
                del self.announced[announced]
        if action.do is Do.CREATE_TOPIC:
            # Offsets of the old topic do not apply to the new one.
            for ownership in [one for one in self.next_offset if one[0].topic == world.TOPIC]:
                del self.next_offset[ownership]
        history = world.zookeeper.history
        if self.seen < len(history):
            for entry in history[self.seen :]:
                self.written(world, entry)
            self.seen = len(history)
        self._owes(world)
        if action.do in TURNS:
            self._is_on_time(world, action.who)

    def _data_lost(self, world: World) -> None:
        """Forget what ZooKeeper has forgotten.

        The owner znodes and offsets are gone, as if another client had deleted all of them: until
        its lease ends, an old owner delivers beside a new one, and messages are redelivered.
        """
        self.lost_data = True
        self.by_hand.update(world.log_end)
        self.lowered.update(world.log_end)
        self.excused.update(world.log_end)
        for offsets in (self.stored, self.edited, self.unmarked):
            offsets.clear()
        for memory in (self.newest, self.deleted, self.finished_in, self.owed, self.rewound):
            memory.clear()
        self.next_offset.clear()

    def _owes(self, world: World) -> None:
        """Check that finished messages are stored within the commit interval."""
        if not self.JUDGES_COMMITS:
            return
        self.simulated = True
        elapsed, self.looked_at = world.now - self.looked_at, world.now
        for who in self.can_commit:
            self.could_commit_s[who] = self.could_commit_s.get(who, 0.0) + elapsed
        self.can_commit = {who for who in range(len(world.members)) if _can_commit(world, who)}
        for who, member in enumerate(world.members):
            interval = member.state.settings.auto_commit_s
            for tp in member.state.serving if interval is not None else ():
                self._owes_of(world, who, tp, COMMIT_SLACK_S + (interval or 0.0))

    def _owes_of(self, world: World, who: int, tp: TopicPartition, limit_s: float) -> None:
        state = world.members[who].state
        epoch = state.owned[tp].epoch
        owner, offset = self.finished_in.get(tp, (-1, 0))
        is_excused = tp in self.excused or self.deleted.get(tp) == epoch or self.lost_data
        if owner != epoch or is_excused:
            self.owed.pop(tp, None)
            return
        stored = self.stored_for(world, state.settings.storage, tp)
        if offset <= stored:
            self.owed.pop(tp, None)
            return
        # Compare even while the member works: its user may commit a lower offset before it rests.
        if tp in self.owed and (self.owed[tp][0] != epoch or self.owed[tp][1] <= stored):
            del self.owed[tp]
        if who not in self.can_commit:
            return
        could_s = self.could_commit_s.get(who, 0.0)
        self.owed.setdefault(tp, (epoch, offset, could_s))
        promises.stores_in_time.check(self, who, tp, limit_s)

    def written(self, world: ObservedWorld, entry: ZnodeChange) -> None:
        """Check one write in ZooKeeper's history."""
        if "/" not in entry.path:
            return
        session, write = entry.session, entry.write
        members = (n for n, link in enumerate(world.links) if link.session == session)
        who = next(members, -1) if session else -1
        at = paths.locate(entry.path)
        tp = TopicPartition(at.name, at.partition)
        if who < 0 and isinstance(write, rq.Create | rq.SetData | rq.Delete):
            self._by_hand(world, at.kind, tp, entry)
        if at.kind is ZnodeKind.OFFSET:
            if isinstance(write, rq.SetData | rq.Create):
                self._offset_written(world, who, tp, write.data)
            elif isinstance(write, rq.Delete):
                self.lowered.add(tp)
                self.excused.add(tp)
                self.stored.pop(tp, None)
        elif at.kind is not ZnodeKind.OWNER or who < 0:
            return
        elif isinstance(write, rq.Delete):
            self._released(world, who, tp, entry)
        elif isinstance(write, rq.Create):
            thread = payloads.decode_owner(write.data, where="")
            promises.claims_for_its_own_thread.check(world.members[who], tp, write, thread)

    def _by_hand(
        self, world: ObservedWorld, kind: ZnodeKind, tp: TopicPartition, entry: ZnodeChange
    ) -> None:
        """Record a write of a client that is not a member."""
        sessions = {link.session for link in world.links}
        is_members = entry.old is not None and entry.old.stat.owner in sessions
        self.unmarked = {tp: at for tp, at in self.unmarked.items() if at == entry.zxid}
        if kind is ZnodeKind.OWNER and is_members:
            self.by_hand.add(tp)
        elif kind is ZnodeKind.MEMBER and is_members:
            self.by_hand.update(world.log_end)
        elif kind is ZnodeKind.OFFSET:
            self.edited.pop(tp, None)  # the present value is not a marked edit
            self.unmarked[tp] = entry.zxid
        elif paths.locate(parent_of(entry.path)).kind is ZnodeKind.EDITS:
            self.edited.update({tp: self.stored.get(tp, 0) for tp in self.unmarked})

    def _released(
        self, world: ObservedWorld, who: int, tp: TopicPartition, entry: ZnodeChange
    ) -> None:
        is_foreign = entry.old is not None and entry.old.stat.owner != entry.session
        promises.releases_only_its_own.check(self, who, tp, is_foreign=is_foreign)
        promises.delivery_stops_before_the_release.check(world, who, tp)
        if entry.old is not None and not is_foreign:
            epoch = entry.old.stat.czxid
            promises.stores_before_it_gives_up.check(self, world, who, tp, epoch, does="releases")

    def _offset_written(
        self, world: ObservedWorld, who: int, tp: TopicPartition, data: bytes | None
    ) -> None:
        try:
            value = payloads.decode_offset(data, where="")
        except MalformedZnodeError:
            value = 0
        if who < 0:
            self.lowered.add(tp)
            self.excused.add(tp)
            self.stored[tp] = value
            if not self.deliveries:  # an earlier run of the group has read up to this offset
                self.delivered_below.setdefault(tp, value)
                self.committable.setdefault(tp, value)
            return
        promises.honours_edits.check(self, who, tp, value)
        promises.commits_only_what_is_finished.check(self, tp, value)
        is_named = value in self.given.get(tp, ())
        if value < self.stored.get(tp, 0) and not is_named:
            self._lowered(world, tp, value)
        self.stored[tp] = value
        if value >= self.finished_in.get(tp, (-1, 0))[1]:
            # A lower value means that an older commit has replaced another client's offset: keep
            # the excuse.
            self.excused.discard(tp)
        if is_named:  # the next automatic commit stores the position again
            self.excused.add(tp)
            self.owed.pop(tp, None)
        promises.only_the_owner_commits.check(self, world, who, tp)

    def _lowered(self, world: ObservedWorld, tp: TopicPartition, value: int) -> None:
        """Forget the seeks and resets that this lower offset has stored."""
        promises.lowers_only_what_was_moved.check(self, world, tp, value)
        epoch, asked = self.rewound[tp]
        first = next(at for at, offset in enumerate(asked) if offset <= value)
        self.rewound[tp] = epoch, asked[first + 1 :]

    # ---- at the end ------------------------------------------------------------------------------

    def converged(self, world: ObservedWorld) -> str:
        """Return why the world has not converged; empty if it has."""
        return promises.group_settles.reason(self, world) or ""
