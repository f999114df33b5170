"""The invariants, checked after every action of a simulated world.

The numbers are those of docs/verification.md. What somebody does to the znodes by hand is outside
the promises (`by_hand`): for those partitions only what holds regardless is checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from zkconsumer.core import commands as cmd
from zkconsumer.core import paths, records
from zkconsumer.core.assignors import assign
from zkconsumer.core.events import Event
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.paths import Kind
from zkconsumer.core.state import Phase, State
from zkconsumer.sim.plan import Action, Delivered, Do
from zkconsumer.sim.world import Watcher, World
from zkconsumer.sim.znodes import Change
from zkconsumer.zk import requests as rq
from zkconsumer.zk.requests import Code


class InvariantViolation(AssertionError):
    """A promise was broken; `invariant` is its number."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


@dataclass
class Monitor(Watcher):
    """Judges one run; raises InvariantViolation at the action that breaks a promise."""

    by_hand: set[TopicPartition] = field(default_factory=set)
    prefix: dict[TopicPartition, int] = field(default_factory=dict)  # delivered below, to anybody
    next_offset: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)  # by epoch
    newest: dict[TopicPartition, int] = field(default_factory=dict)  # greatest epoch delivered
    stored: dict[TopicPartition, int] = field(default_factory=dict)
    lowered: set[TopicPartition] = field(default_factory=set)  # somebody else moved it last
    seen: int = 0
    deliveries: int = 0
    duplicates: int = 0
    rebalances: int = 0

    def copy(self) -> Monitor:
        return Monitor(
            set(self.by_hand), dict(self.prefix), dict(self.next_offset), dict(self.newest),
            dict(self.stored), set(self.lowered), self.seen, self.deliveries, self.duplicates,
            self.rebalances,
        )

    # ---- what happens ----------------------------------------------------------------------------

    def transition(
        self, world: World, who: int, before: State, event: Event, commands: Iterable[cmd.Command]
    ) -> None:
        entered = world.members[who].state.phase
        self.rebalances += entered is Phase.READING and before.phase is not Phase.READING

    def acted(self, world: World, action: Action) -> None:
        if action.do is Do.DELETE_OWNER and action.tp is not None:
            self.by_hand.add(action.tp)
        elif action.do is Do.DELETE_ID:
            self.by_hand.update(world.log_end)
        for entry in world.zookeeper.history[self.seen :]:
            self._written(world, entry)
        self.seen = len(world.zookeeper.history)

    def delivered(self, world: World, message: Delivered) -> None:
        tp, offset, epoch = message.tp, message.offset, message.epoch
        self.deliveries += 1
        prefix = self.prefix.get(tp, 0)
        if offset > prefix:
            raise InvariantViolation("I5", f"{tp} skips from {prefix} to {offset}: lost")
        self.duplicates += offset < prefix
        self.prefix[tp] = max(prefix, offset + 1)
        expected = self.next_offset.get((tp, epoch), offset)
        if offset != expected and tp not in self.lowered:
            raise InvariantViolation("I4", f"{tp} delivers {offset} after {expected - 1}")
        self.next_offset[tp, epoch] = offset + 1
        if tp in self.by_hand:
            return
        if epoch < self.newest.get(tp, epoch):
            raise InvariantViolation(
                "I2", f"{tp} delivered under token {epoch} after {self.newest[tp]}"
            )
        self.newest[tp] = epoch
        owner = world.owners().get(tp)
        session = world.links[message.who].session
        if owner is None or owner[1:] != (session, epoch):
            raise InvariantViolation("I3", f"{tp} delivered to {message.who}, owned by {owner}")

    def _written(self, world: World, entry: Change) -> None:
        """One write in ZooKeeper's history."""
        session, write = entry.session, entry.write
        at = paths.locate(entry.path)
        who = next((n for n, link in enumerate(world.links) if link.session == session), -1)
        tp = TopicPartition(at.name, at.partition)
        if at.kind is Kind.OFFSET and isinstance(write, rq.SetData | rq.Create):
            self._offset_written(world, who, tp, write.data)
        elif (
            at.kind is Kind.OWNER
            and isinstance(write, rq.Delete)
            and who >= 0
            and tp in world.members[who].feeds
        ):
            raise InvariantViolation("I9", f"{tp} released by {who} while it is delivered")

    def _offset_written(self, world: World, who: int, tp: TopicPartition, data: bytes) -> None:
        value = records.decode_offset(data, where="")
        if who < 0:
            self.lowered.add(tp)
            self.stored[tp] = value
            return
        if value > self.prefix.get(tp, 0):
            raise InvariantViolation("I6", f"{tp} committed {value}, not all delivered")
        if value < self.stored.get(tp, 0):
            raise InvariantViolation("I7", f"{tp} moved back from {self.stored[tp]} to {value}")
        self.stored[tp] = value
        reply = world.admin(rq.Get(paths.owner(world.GROUP, tp)))
        owner = reply.value.stat.owner if reply.code is Code.OK else 0
        if tp not in self.by_hand and owner != world.links[who].session:
            raise InvariantViolation("I8", f"{tp} committed by {who}, who does not own it")

    # ---- at the end ------------------------------------------------------------------------------

    def converged(self, world: World) -> str:
        """Why the world has not come to what it should be; empty when it has (I12, I5)."""
        live = [m for m, link in zip(world.members, world.links, strict=True) if not link.dead]
        if not live:
            return ""
        dead = {link.session for link in world.links if link.dead}
        if dead.intersection(world.zookeeper.sessions):
            return "a dead member's session has not expired"
        if not world.settled():
            return f"not settled: {[m.state.phase.value for m in live]}"
        wanted = assign(
            live[0].settings.strategy,
            subscriptions={m.name: m.settings.subscription for m in live},
            partitions={world.TOPIC: [tp.partition for tp in world.log_end]},
        )
        owners = {tp: thread for tp, (thread, _, _) in world.owners().items()}
        if owners != wanted:
            return f"owners are {owners}, not {wanted}"
        left = {tp: end for tp, end in world.log_end.items() if self.prefix.get(tp, 0) < end}
        return f"not delivered: {left}" if left else ""
