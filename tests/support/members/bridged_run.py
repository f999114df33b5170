"""A group that a bridge divides, under kills on both sides, while it moves there and back."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime

from support.members.bridged_group import BACKOFF_S, NEW, OLD, SESSION_S, Bridge, BridgedGroup
from support.members.crew import Program
from support.wait import wait_for
from zkconsumer.consumer.stream_partitions import boottime

KILL_EVERY_S = 20.0
"""How often, in seconds, one member of each side is killed and replaced."""

JVM_RETRIES = {"rebalance.max.retries": math.ceil(2 * SESSION_S / BACKOFF_S)}
"""A JVM member that starts right after a kill waits until the brokers have removed the killed one.

With the default, which is 4, the JVM member's start fails after 8 s.
"""

FEW, MANY = 1, 2
"""The members of the side that has fewer partitions, and of the other side."""


class BridgedRun:
    """Runs the group; `acts` counts what has happened."""

    def __init__(
        self, group: BridgedGroup, *, assignor: str, seed: int, say: Callable[[str], None]
    ) -> None:
        self._group, self._assignor, self._say = group, assignor, say
        self._random = random.Random(seed)
        self._kinds = {"old": itertools.cycle(OLD), "new": itertools.cycle(NEW)}
        self._live: dict[str, list[Program]] = {"old": [], "new": []}
        self._kill_at = 0.0
        self.acts: Counter[str] = Counter()

    def run(self, seconds: float, hand_overs: int) -> None:
        """Move partitions to the new side and back, `hand_overs` times each."""
        began = boottime()
        for _ in range(MANY):
            self._join("old")
        self._group.wait_for_all("old")
        bridge = self._group.bridge()
        bridge.wait("runs")
        self._kill_at = boottime() + KILL_EVERY_S
        for number in range(2 * hand_overs):
            self._hand_over("old" if number % 2 else "new")
            self._kill_until(began + seconds * (number + 1) / (2 * hand_overs), bridge)

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
        every = self._group.partitions
        self._group.wait_for_share(side, *range(every // 2 + 1, every + 1))
        self._note(f"hand-over to {side}")

    def _kill_until(self, end: float, bridge: Bridge) -> None:
        """Kill and replace a member of each side when it is due, at least once.

        The bridge must live on.
        """
        is_killed = False
        while self._kill_at < end or not is_killed:
            bridge.wait_until(self._kill_at)
            self._kill_at, is_killed = boottime() + KILL_EVERY_S, True
            for side in self._live:
                self._replace(side)
        bridge.wait_until(end)

    def _replace(self, side: str) -> None:
        """Kill a member that has joined, and start another one."""
        member = self._random.choice(self._live[side])
        wait_for(lambda: member.of("delivered"), f"{member.name} delivers")
        self._live[side].remove(member)
        self._group.kill(member)
        self._note(f"kill {side}", member)
        self._join(side)

    def _join(self, side: str) -> None:
        kind = next(self._kinds[side])
        group = self._group
        if side == "new":
            member = group.new(kind, self._assignor)
        else:
            member = group.old(kind, **({} if kind == "zkconsumer" else JVM_RETRIES))
        self._live[side].append(member)
        self._note(f"join {side}", member, kind)

    def _note(self, act: str, member: Program | None = None, kind: str = "") -> None:
        """Count an act, and say it with the times of members' logs and of their events."""
        self.acts[act] += 1
        who = "" if member is None else f" {member.name} {kind}".rstrip()
        self._say(f"{datetime.now():%H:%M:%S.%f} {boottime():.3f} {act}{who}")
