"""A group under random faults from a seed; the group must keep its promises in spite of them.

Members join, leave, are killed or frozen, and lose their sessions. Half of them connect to
ZooKeeper through a proxy that cuts connections, is silent, or loses replies. Afterwards all faults
end. The group must settle and deliver all messages, and it is checked as in all integration tests.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

from support.members.crew import Crew, MemberProcess
from support.members.evidence import Evidence
from support.wait import wait_for
from support.zk.proxies import Trap, Wire

# With this session timeout the lease is 1.3 s. A timeout of 1.5 s would give a lease of 1 s, but on
# a busy machine a process may pause for longer.
SESSION_S = 2.0
FEWEST, MOST = 2, 5
# Seconds between two acts, and durations of freezes and silences; some durations exceed a session
# timeout.
PAUSE_S = (0.1, 1.5)
TROUBLE_S = (0.2, 2 * SESSION_S)


class Mixture:
    """A group with random acts: `run` for some seconds, then `judge`; `acts` counts the acts."""

    def __init__(self, crew: Crew, trap: Trap, seed: int, say: Callable[[str], None]) -> None:
        self.acts: Counter[str] = Counter()
        self._crew, self._trap, self._say = crew, trap, say
        self._random = random.Random(seed)
        self._never = threading.Event()
        self._began = time.monotonic()
        self.live: list[MemberProcess] = []

    def run(self, seconds: float) -> None:
        """Inject random faults until this number of seconds has passed."""
        acts = [
            self._join,
            self._leave,
            self._kill,
            self._freeze,
            self._expire,
            self._cut,
            self._silence,
            self._lose_replies,
        ]
        while len(self.live) < FEWEST + 1:
            self._join()
        self._crew.settle(*self.live)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._wait(PAUSE_S)
            self._random.choice(acts)()
            self._bury()
            while len(self.live) < FEWEST:
                self._join()

    def judge(self) -> Evidence:
        """Check after the last fault that the group settles and has delivered all messages."""
        wait_for(self._all_joined, "all members to have joined or failed")
        self._crew.settle(*self.live)
        self._crew.flowing(*self.live)
        return self._crew.finish()

    def _bury(self) -> None:
        """Check that only members that could not join have ended, each with an error."""
        for one in [one for one in self.live if one.process.poll() is not None]:
            assert not one.of("joined"), f"{one.name} ended by itself: {one.errors()}"
            self.live.remove(one)
            self._note(f"{one.last('error')['kind']} at the start of", one)

    def _all_joined(self) -> bool:
        self._bury()
        while len(self.live) < FEWEST:
            self._join()
        return all(one.of("joined") for one in self.live)

    def _wait(self, limits: tuple[float, float]) -> None:
        self._never.wait(self._random.uniform(*limits))

    def _note(self, act: str, member: MemberProcess | None = None) -> None:
        self.acts[act] += 1
        name = member.name if member else ""
        self._say(f"{time.monotonic() - self._began:7.2f} {act} {name}".rstrip())

    # ---- acts ------------------------------------------------------------------------------------

    def _join(self) -> None:
        if len(self.live) >= MOST:
            return
        where = self._trap.address if self._random.random() < 0.5 else ""
        member = self._crew.start(zookeeper=where, zookeeper_session_timeout_s=SESSION_S)
        self.live.append(member)
        self._note("join", member)

    def _leave(self) -> None:
        ones = [one for one in self.live if one.of("joined")]
        if len(ones) > 1:
            member = self._random.choice(ones)
            self.live.remove(member)
            self._note("leave", member)
            member.leave()

    def _kill(self) -> None:
        if len(self.live) > 1:
            member = self.live.pop(self._random.randrange(len(self.live)))
            self._note("kill", member)
            member.kill()

    def _freeze(self) -> None:
        ones = [one for one in self.live if one.of("joined")]
        if ones:
            member = self._random.choice(ones)
            self._note("freeze", member)
            member.freeze()
            self._wait(TROUBLE_S)
            member.thaw()

    def _expire(self) -> None:
        ones = [one for one in self.live if one.of("session")]
        if ones:
            member = self._random.choice(ones)
            self._note("expire", member)
            member.expire(self._crew.zookeeper)

    def _cut(self) -> None:
        self._note("cut")
        self._trap.cut()

    def _silence(self) -> None:
        self._disturb("silence", Wire.SILENT)

    def _lose_replies(self) -> None:
        self._disturb("lose replies", Wire.LOSE_REPLIES)

    def _disturb(self, act: str, wire: Wire) -> None:
        self._note(act)
        self._trap.wire = wire
        self._wait(TROUBLE_S)
        self._trap.wire = Wire.PASS
        self._trap.cut()
