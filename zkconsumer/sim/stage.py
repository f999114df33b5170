"""A world directed by hand: what is to happen is said, and the rest runs by itself, always equally.

Whoever has waited longest goes next, a server before its clients; time passes only when nothing
else can happen. So a story on the stage needs no decisions, and is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable

from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.jvm_member import MixedMonitor, MixedWorld
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.recorder import Recorder, Watchers
from zkconsumer.sim.world import Watcher, World

LIMIT_S = 120.0
"""Virtual seconds for what a story waits for: many session timeouts and back-offs."""

ORDINARY = frozenset({Do.SERVE, Do.RECEIVE, Do.CONNECT, Do.NOTICE, Do.ASK, Do.TIME})
"""What happens without being told to."""


class StoryStuckError(AssertionError):
    """What a story waits for has not come about."""


class Stage:
    """One world, and the words in which a story is told."""

    def __init__(self, world: World, recorder: Recorder) -> None:
        self.world = world
        self._recorder = recorder
        self._turns = 0
        self._last: dict[int, int] = {}

    # ---- what the story does ---------------------------------------------------------------------

    def say(self, text: str) -> None:
        self._recorder.note(self.world, text)

    def scene(self, *settled: int) -> None:
        """These members have joined and settled before the story begins."""
        names = [self.world.members[who].name for who in settled]
        have = "has" if len(names) == 1 else "have"
        self._recorder.scene(self.world, f"{' and '.join(names)} {have} settled")
        self.join(*settled)
        self.rest()

    def do(self, do: Do, who: int = -1, *, partition: int | None = None) -> None:
        """Make this happen now."""
        tp = None if partition is None else TopicPartition(self.world.TOPIC, partition)
        self.world.act(Action(do, who, tp))

    def join(self, *who: int) -> None:
        for one in who:
            self.do(Do.JOIN, one)

    def produce(self, messages: int) -> None:
        """So many more messages in each partition."""
        for tp in self.world.log_end:
            self.world.log_end[tp] += messages

    # ---- what goes on by itself ------------------------------------------------------------------

    def step(self) -> bool:
        """The next ordinary thing happens; False when there is none, not even time."""
        possible = [one for one in self.world.enabled() if one.do in ORDINARY]
        if not possible:
            return False
        busy = [one for one in possible if one.do is not Do.TIME]
        chosen = min(busy, key=lambda one: self._last.get(one.who, 0)) if busy else possible[0]
        self._turns += 1
        self._last[chosen.who] = self._turns
        self.world.act(chosen)
        return True

    def until(self, done: Callable[[], object], what: str) -> None:
        """Run until `done()`; raise StoryStuckError when it does not come about."""
        deadline = self.world.now + LIMIT_S
        while not done():
            if not self.step() or self.world.now > deadline:
                raise StoryStuckError(f"{what} has not come about at {self.world.now:.1f} s")

    def wait(self, seconds: float) -> None:
        """Time goes on, and whatever happens in it happens."""
        world = self.world
        end = world.now + seconds
        while world.now < end:
            busy = any(one.do in ORDINARY - {Do.TIME} for one in world.enabled())
            if not busy and world.next_moment() > end:
                world.now = end
            else:
                self.step()

    def rest(self) -> None:
        """Run until everybody is settled, and all messages are read."""
        self.until(self.rests, "rest")

    # ---- questions -------------------------------------------------------------------------------

    def rests(self) -> bool:
        """Is nothing under way, and nobody expected to go?"""
        links, members = self.world.links, self.world.members
        gone = {link.session for link in links if link.dead}
        return (
            not any(one.do in ORDINARY - {Do.TIME} for one in self.world.enabled())
            and gone.isdisjoint(self.world.zookeeper.sessions)
            and all(
                link.dead or not link.joined or (member.settled and not link.frozen)
                for member, link in zip(members, links, strict=True)
            )
        )

    def owner(self, partition: int) -> int | None:
        """Whose owner znode a partition has."""
        found = self.world.owners().get(TopicPartition(self.world.TOPIC, partition))
        if found is None:
            return None
        sessions = {link.session: who for who, link in enumerate(self.world.links)}
        return sessions.get(found[1])

    def owned_by(self, who: int) -> int:
        """How many owner znodes a member has."""
        session = self.world.links[who].session
        return sum(owner[1] == session for owner in self.world.owners().values())


def stage(
    plan: Plan, recorder: Recorder, *watchers: Watcher, jvm: frozenset[int] = frozenset()
) -> Stage:
    """A stage for a plan; `recorder` writes everything down. Members of `jvm` are JVM members."""
    everybody = Watchers(recorder, *watchers)
    world = MixedWorld(plan, everybody, jvm=jvm) if jvm else World(plan, everybody)
    recorder.begin(world)
    return Stage(world, recorder)


def monitor_for(jvm: frozenset[int]) -> Monitor:
    """What judges a group with these JVM members."""
    return MixedMonitor(jvm) if jvm else Monitor()
