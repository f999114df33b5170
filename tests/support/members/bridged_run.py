"""A group that a bridge divides, under kills on both sides, while it moves there and back."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable

from support.members.bridged_group import NEW, OLD, BridgedGroup
from support.members.crew import Program
from support.wait import wait_for

KILL_EVERY_S = 20.0
"""How often, in seconds, one member of each side is killed and replaced."""

FEW, MANY = 1, 2
"""The members of the side that has fewer partitions, and of the other side."""


class BridgedRun:
    """Runs the group; `acts` counts what has happened."""

    def __init__(
        self, group: BridgedGroup, *, assignor: str, seed: int, say: Callable[[str], None]
    ) -> None:
        self._group, self._assignor, self._say = group, assignor, say
        self._random = random.Random(seed)
        self._began = time.monotonic()
        self._kinds = {"old": itertools.cycle(OLD), "new": itertools.cycle(NEW)}
        self._live: dict[str, list[Program]] = {"old": [], "new": []}
        self._kill_at = 0.0
        self.acts: Counter[str] = Counter()

    def run(self, seconds: float, hand_overs: int) -> None:
        """Move partitions to the new side and back, `hand_overs` times each."""
        every = self._group.partitions
        for _ in range(MANY):
            self._join("old")
        self._group.wait_for_share("old", lambda n: n == every, "the old members read everything")
        bridge = self._group.bridge()
        bridge.wait("runs")
        self._kill_at = time.monotonic() + KILL_EVERY_S
        for number in range(2 * hand_overs):
            wanted = "old" if number % 2 else "new"
            self._hand_over(wanted)
            self._kill_until(self._began + seconds * (number + 1) / (2 * hand_overs))
        assert bridge.process.poll() is None, bridge.text()

    def _hand_over(self, side: str) -> None:
        """Let a side have more members than the other one, and wait for its share."""
        other = "old" if side == "new" else "new"
        while len(self._live[side]) < MANY:
            self._join(side)
        while len(self._live[other]) > FEW:
            member = self._live[other].pop(0)
            self._note(f"leave {other}", member)
            member.leave()
        while len(self._live[other]) < FEW:
            self._join(other)
        more = self._group.partitions // 2
        self._group.wait_for_share(side, lambda n: n > more, f"{side} members read most")
        self._say(f"{self._seconds():6.1f} {side} members read most partitions")
        self.acts[f"hand-over to {side}"] += 1

    def _kill_until(self, end: float) -> None:
        while time.monotonic() < end:
            if time.monotonic() > self._kill_at:
                self._kill_at = time.monotonic() + KILL_EVERY_S
                for side in self._live:
                    self._replace(side)
            time.sleep(0.2)

    def _replace(self, side: str) -> None:
        """Kill a member that has joined, and start another one."""
        member = self._random.choice(self._live[side])
        wait_for(lambda: member.of("delivered"), f"{member.name} delivers")
        self._live[side].remove(member)
        self._note(f"kill {side}", member)
        self._group.kill(member)
        self._join(side)

    def _join(self, side: str) -> None:
        kind = next(self._kinds[side])
        group = self._group
        member = group.old(kind) if side == "old" else group.new(kind, self._assignor)
        self._live[side].append(member)
        self._note(f"join {side}", member, kind)

    def _note(self, act: str, member: Program, kind: str = "") -> None:
        self.acts[act] += 1
        self._say(f"{self._seconds():6.1f} {act} {member.name} {kind}".rstrip())

    def _seconds(self) -> float:
        return time.monotonic() - self._began
