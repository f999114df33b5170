"""Groups of Kafka's later protocols in the comparison: simulated members and their coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zkconsumer.lab.camera import NOBODY
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.sim.coordinated.stories import ASSIGNORS, plan_for
from zkconsumer.sim.coordinated.world import World

PROTOCOLS: Sequence[str] = tuple(ASSIGNORS)
"""The protocols whose members are simulated."""

PATIENCE_S = 120.0
"""Virtual seconds within which a new group settles; its first rebalance takes 3 s."""


class Film:
    """A group with a coordinator as a picture and frames: who delivers each partition.

    A partition of a dead or frozen member stays that member's until the coordinator removes it.
    """

    def __init__(self, protocol: str, *, members: int, joined: int, partitions: int) -> None:
        self.world = World(
            plan_for(protocol, {}, members=members, partitions=partitions, messages=1)
        )
        self.world.join(*range(joined))
        while not self.world.settled() and self.world.now < PATIENCE_S:
            self.world.step()
        self._begin = self.world.now
        self._left: set[int] = set()
        self._owners = [NOBODY] * partitions
        self._rows = self._read()
        self._views = self._members()
        self.scene: JsonObject = {
            "t": 0.0,
            "members": list(self._views),
            "partitions": [[f"t-{number}", *row] for number, row in enumerate(self._rows)],
            "tree": {},
            "zookeeper": {"text": "no ZooKeeper: a coordinator", "brokers": True, "topic": True},
            "counters": [None] * 7,
        }
        self.frames: list[JsonObject] = []

    def order(self, words: str, order: Callable[[int], None], who: int) -> None:
        """Let something happen to a member, and make a frame of it."""
        if order == self.world.leave:
            self._left.add(who)
        order(who)
        self._frame(words)

    def run(self, until: float) -> None:
        """Let time pass until this second of the film; each change of an owner is a frame."""
        end = self._begin + until
        while self.world.next_moment() <= end:
            self.world.step()
            if self._read() != self._rows:
                self._frame("")
        self.world.now = max(self.world.now, end)
        self._frame("")

    def _frame(self, words: str) -> None:
        frame: JsonObject = {"t": round(self.world.now - self._begin, 4), "d": "", "l": words}
        rows, views = self._read(), self._members()
        changed = {at: row for at, row in enumerate(rows) if row != self._rows[at]}
        if changed:
            frame |= {"p": changed, "o": 1}
        frame["m"] = {who: one for who, one in enumerate(views) if one != self._views[who]}
        self._rows, self._views = rows, views
        if words:
            frame["say"] = words
        self.frames.append(frame)

    def _read(self) -> list[list[Json]]:
        known = self.world.known()
        members = self.world.members
        serving = self.world.serving()
        for tp in self.world.log_end:
            now = serving.get(tp)
            last = self._owners[tp.partition]
            if now:
                self._owners[tp.partition] = now[0]
            elif last != NOBODY:
                member = members[last]
                is_kept = known is None or member.state.member in known
                if member.acts or not is_kept:
                    self._owners[tp.partition] = NOBODY
        return [[owner, None, None, None] for owner in self._owners]

    def _members(self) -> list[JsonObject]:
        found = []
        for who, member in enumerate(self.world.members):
            state = "frozen" if member.frozen else "up"
            state = "left" if who in self._left else "dead" if member.dead else state
            owned = [at for at, owner in enumerate(self._owners) if owner == who]
            found.append(
                {
                    **{"n": member.name, "k": "Kafka", "s": state if member.joined else "away"},
                    **{"ph": "settled", "c": "on", "ses": 1 + who, "open": True, "f": owned},
                }
            )
        return found
