"""A world that a script directs: the script requests some actions, and a fixed rule chooses the
rest.

The client or server that has waited longest acts next; servers act before their clients. Time
advances only when nothing else can happen. A story on the stage therefore needs no decisions and is
the same in every run.
"""

from __future__ import annotations

from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.jvm_member import MixedMonitor, MixedWorld
from zkconsumer.sim.kernel import stories as kernel
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.recorder import Recorder
from zkconsumer.sim.world import Watcher, Watchers, World

LIMIT_S = 120.0
"""Virtual seconds within which a story's condition must become true: many session timeouts and
back-offs."""

ORDINARY = frozenset({Do.SERVE, Do.RECEIVE, Do.CONNECT, Do.NOTICE, Do.NEXT_MESSAGE, Do.TIME})
"""Actions that happen without a command of the script."""


class ZooKeeperDirector(kernel.StoryStage[World]):
    """One world, and the commands of a story."""

    LIMIT_S = LIMIT_S

    def __init__(self, world: World, narrator: kernel.Narrator[World]) -> None:
        super().__init__(world, narrator)
        self._turns = 0
        self._last: dict[int, int] = {}

    # ---- ordered by the story --------------------------------------------------------------------

    def name_of(self, who: int) -> str:
        return self.world.members[who].name

    def do(self, do: Do, who: int = -1, *, partition: int | None = None) -> None:
        """Perform this action now."""
        tp = None if partition is None else TopicPartition(self.world.TOPIC, partition)
        self.act(Action(do, who, tp))

    def join(self, *who: int) -> None:
        for one in who:
            self.do(Do.JOIN, one)

    def produce(self, messages: int) -> None:
        """Add messages to each partition."""
        for tp in self.world.log_end:
            self.world.log_end[tp] += messages

    def act(self, action: Action) -> None:
        """Perform any action; every action of a story passes through here."""
        self.world.act(action)

    def pass_time(self, until: float) -> None:
        """Advance the clock to `until`; the caller knows that nothing is due before."""
        self.world.now = until

    # ---- actions that need no order --------------------------------------------------------------

    def next(self) -> Action | None:
        """Return the next ordinary action according to the rule; None if there is none."""
        possible = self.possible()
        busy = [one for one in possible if one.do is not Do.TIME]
        if busy:
            return min(busy, key=lambda one: self._last.get(one.who, 0))
        return possible[0] if possible else None

    def possible(self) -> list[Action]:
        """Return the ordinary actions that can happen now."""
        return [one for one in self.world.enabled() if one.do in ORDINARY]

    def step(self) -> bool:
        """Perform the next ordinary action; return False if there is none."""
        chosen = self.next()
        if chosen is None:
            return False
        self.take_turn(chosen)
        return True

    def take_turn(self, action: Action) -> None:
        """Perform an ordinary action; its member or server then waits for its next turn."""
        self._turns += 1
        self._last[action.who] = self._turns
        self.act(action)

    def wait(self, seconds: float) -> None:
        """Let time pass, and perform everything that becomes due."""
        world = self.world
        end = world.now + seconds
        while world.now < end:
            busy = any(one.do in ORDINARY - {Do.TIME} for one in world.enabled())
            if not busy and world.next_moment() > end:
                self.pass_time(end)
            else:
                self.step()

    def probe(self, watcher: Watcher) -> ZooKeeperDirector:
        """Return a plain stage that continues independently from here, with this watcher."""
        twin = ZooKeeperDirector(self.world.copy(watcher), self._narrator)
        twin._turns, twin._last = self._turns, dict(self._last)
        return twin

    # ---- queries ---------------------------------------------------------------------------------

    def rests(self) -> bool:
        """Return whether nothing is in progress and no dead member's session remains."""
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
        """Return which member's owner znode a partition has."""
        found = self.world.owners().get(TopicPartition(self.world.TOPIC, partition))
        if found is None:
            return None
        sessions = {link.session: who for who, link in enumerate(self.world.links)}
        return sessions.get(found[1])

    def owned_by(self, who: int) -> int:
        """Return the number of a member's owner znodes."""
        session = self.world.links[who].session
        return sum(owner[1] == session for owner in self.world.owners().values())


def stage(
    plan: Plan, recorder: Recorder, *watchers: Watcher, jvm: frozenset[int] = frozenset()
) -> ZooKeeperDirector:
    """Return a stage for a plan; `recorder` records everything, and the members in `jvm` are JVM
    members.
    """
    everybody = Watchers(recorder, *watchers)
    world = MixedWorld(plan, everybody, jvm=jvm) if jvm else World(plan, everybody)
    recorder.begin(world)
    return ZooKeeperDirector(world, recorder)


def monitor_for(jvm: frozenset[int]) -> Monitor:
    """Return the monitor for a group with these JVM members."""
    return MixedMonitor(jvm) if jvm else Monitor()
