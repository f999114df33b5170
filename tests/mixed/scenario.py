"""A scenario of joins, failures and changes for one or two groups, while messages flow.

One group has zkconsumer members and JVM members. The other group, if any, has JVM members in place
of the zkconsumer members, and its behaviour is the reference for the first group.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from support.history.real import compared
from support.history.truth import Differences
from support.members.evidence import Delivery, missing, without_taken
from support.members.mixed_groups import Group, GroupSetup, Topics
from support.wait import wait_for
from support.zk.log import history

from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox

# The names in the order in which assignors sort them: the zkconsumer members are between the JVM
# members.
FIRST, OURS, SECOND, OURS_TOO, THIRD = NAMES = ("a-jvm", "b-ours", "c-jvm", "d-ours", "e-jvm")
ALL_OURS = frozenset({OURS, OURS_TOO})

EXPIRES, GOES_ON = "its session expires", "the frozen JVM member continues"

STANDSTILL_S = 10.0  # Seconds for which a JVM member is frozen, longer than three sessions.
MESSAGES = 20_000  # Minimum number of messages that are produced during a scenario.


@dataclass(frozen=True)
class MoveBack:
    """An offset znode whose value was lowered."""

    partition: TopicPartition
    consumer: str
    before: int
    after: int


@dataclass(frozen=True)
class Record:
    """The results of one group.

    A JVM member whose session has expired continues to deliver until it notices the expiry, and
    then reads the messages again. Messages that it delivered meanwhile are counted separately.

    Attributes:
        undelivered: messages that no member received.
        uncommitted: messages that the stored offsets did not cover when all members had left.
        repeated: messages that were delivered more than once, by (preceding event, first receiver,
            second receiver).
        zombie: like `repeated`, for messages that a member without a session received.
        between_ours: those of `repeated` that two live zkconsumer members received.
        moves_back: offset znodes whose value was lowered.
        trouble: the failed rebalances that a JVM member logged, by name.
        settled: seconds from an event until the group had settled.
        history: the rows that the tables of `zkconsumer history` lack, and their superfluous rows.
    """

    undelivered: int
    uncommitted: int
    repeated: Counter[tuple[str, str, str]]
    zombie: Counter[tuple[str, str, str]]
    between_ours: int
    moves_back: list[MoveBack]
    trouble: dict[str, list[str]]
    settled: dict[str, float]
    history: Differences


@dataclass(frozen=True)
class Outcome:
    """The results of a scenario: its groups, the messages that each consumed, and the seconds.

    `flowed` has the number of messages between each event and the next one. `reference` is the
    group of JVM members, if there is one.
    """

    messages: int
    flowed: dict[str, int]
    duration_s: float
    mixed: Record
    reference: Record | None


class Scenario:
    """One or two groups on the same topics; every step is applied to each."""

    def __init__(
        self,
        setup: GroupSetup,
        sandbox: Sandbox,
        name: str,
        directory: Path,
        stack: ExitStack,
        *,
        is_compared: bool,
    ) -> None:
        self._sandbox, self._pool = sandbox, stack.enter_context(ThreadPoolExecutor(2))
        self._first, self._created = f"{name}-a", f"{name}-b"
        self.stage = Topics(sandbox, (self._first, self._created), stack)
        self.mixed = Group(
            self.stage, setup, f"{name}-mixed", ours=ALL_OURS, directory=directory, stack=stack
        )
        self._groups = [self.mixed]
        if is_compared:
            self._groups.append(
                Group(self.stage, setup, f"{name}-jvm", ours=(), directory=directory, stack=stack)
            )
        # In seconds of `boottime`: the times at which THIRD may have had no session, and the time
        # at which OURS_TOO was killed.
        self._without_session: list[tuple[float, float]] = []
        self._killed_at = 0.0
        self._events: list[tuple[float, str]] = []

    def play(self) -> Outcome:
        """Run the whole scenario, until the last message is delivered."""
        self._each(lambda group: group.prepare(NAMES))
        began = boottime()
        self.stage.create(self._first, 8)
        self._each(Group.prepared)
        flow, flowed = self.stage.flow, {}
        for title, step in self._steps():
            since, known = boottime(), flow.count
            self._events.append((since, title))
            step()
            self._each(lambda group, name=title: group.settle(name))
            # A producer looks for new partitions once a second, so the groups may be settled
            # before.
            wait_for(lambda before=known: flow.count > before, f"messages, {title}")
            if title in (EXPIRES, GOES_ON):
                self._without_session.append((since, boottime()))
            flowed[title] = flow.count - known
        wait_for(lambda: flow.count >= MESSAGES, "enough messages", limit_s=120)
        flow.stop()
        duration_s = boottime() - began
        self._each(self._drained)
        mixed, *others = map(self._record, self._groups)
        return Outcome(flow.count, flowed, duration_s, mixed, next(iter(others), None))

    def _steps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        def each(act: Callable[[Group, str], None], *names: str) -> Callable[[], object]:
            def step(group: Group) -> None:
                for name in names:
                    act(group, name)

            return lambda: self._each(step)

        yield "two join", each(Group.join, FIRST, OURS)
        yield "a JVM member joins", each(Group.join, SECOND)
        yield "a zkconsumer member joins", each(Group.join, OURS_TOO)
        yield "a JVM member leaves", each(Group.leave, SECOND)
        yield "a JVM member is killed", each(Group.kill, FIRST)
        yield "another JVM member joins", each(Group.join, THIRD)
        yield EXPIRES, each(Group.expire, THIRD)
        yield "partitions are added", lambda: self.stage.grow(self._first, 12)
        yield "a topic is created", lambda: self.stage.create(self._created, 5)
        self._killed_at = boottime()
        yield "a zkconsumer member is killed", each(Group.kill, OURS_TOO)
        began = boottime()
        yield "a JVM member freezes", each(Group.freeze, THIRD)
        wait_for(lambda: boottime() > began + STANDSTILL_S, "the freeze of the JVM member to end")
        yield GOES_ON, each(Group.thaw, THIRD)
        yield "the last zkconsumer member leaves", each(Group.leave, OURS)

    def _each(self, act: Callable[[Group], object]) -> None:
        for done in [self._pool.submit(act, group) for group in self._groups]:
            done.result()

    # ---- the evidence ----------------------------------------------------------------------------

    def _missing(self, group: Group) -> dict[TopicPartition, list[int]]:
        given = group.deliveries
        of_killed = (one for one in given if one.member == FIRST)  # a JVM member in each group
        return without_taken(missing(given, self.stage.flow.produced), of_killed)

    def _drained(self, group: Group) -> None:
        """Wait until all messages are delivered; offsets are stored when all members have left."""
        wait_for(
            lambda: not self._missing(group),
            f"all messages to be delivered to {group.name}",
            look_s=0.5,
        )
        for name in list(group.live):
            group.leave(name)

    def _record(self, group: Group) -> Record:
        given: dict[tuple[TopicPartition, int], list[Delivery]] = defaultdict(list)
        for one in group.deliveries:
            given[one.partition, one.offset].append(one)
        repeated: Counter[tuple[str, str, str]] = Counter()
        zombie: Counter[tuple[str, str, str]] = Counter()
        between_ours = 0
        for ones in given.values():
            is_zombie = any(map(self._is_zombie, ones))
            counter = zombie if is_zombie else repeated
            for first, again in itertools.pairwise(ones):
                event = max((since, name) for since, name in self._events if since <= again.t)[1]
                counter[event, first.member, again.member] += 1
                both_ours = {first.member, again.member} == group.ours
                between_ours += both_ours and not is_zombie and again.t < self._killed_at
        offsets, moves_back = self._offsets(group)
        return Record(
            undelivered=sum(map(len, self._missing(group).values())),
            uncommitted=sum(end - offsets.get(tp, 0) for tp, end in self.stage.flow.ends.items()),
            repeated=repeated,
            zombie=zombie,
            between_ours=between_ours,
            moves_back=moves_back,
            trouble=group.trouble(),
            settled=group.settled,
            history=self._history(group),
        )

    def _history(self, group: Group) -> Differences:
        """Compare the group's tables with ZooKeeper's log and the zkconsumer members' records."""
        log = self._sandbox.zookeeper.directory / "data" / "version-2"
        setup = group.setup
        return compared(
            [log], group.name, group.records(), strategy=setup.strategy, rules=setup.profile
        )

    def _is_zombie(self, one: Delivery) -> bool:
        windows = self._without_session
        return one.member == THIRD and any(begin <= one.t <= end for begin, end in windows)

    def _offsets(self, group: Group) -> tuple[dict[TopicPartition, int], list[MoveBack]]:
        """Check the offsets stored at the end, and the offsets that were lowered before."""
        log = self._sandbox.zookeeper.directory / "data" / "version-2"
        written = [
            (one, one.change.new, paths.locate(one.change.path))
            for one in history([log], root=f"{paths.CONSUMERS}/{group.name}/")
            if one.change is not None
        ]
        # In a new session, a JVM member may write offsets before it registers.
        consumers = {
            one.session: where.name.removeprefix(f"{group.name}_")
            for one, node, where in written
            if node is not None and where.kind is paths.ZnodeKind.MEMBER
        }
        offsets: dict[TopicPartition, int] = {}
        moves = []
        for one, node, where in written:
            if node is not None and where.kind is paths.ZnodeKind.OFFSET:
                tp, value = TopicPartition(where.name, where.partition), int(node.data)
                if value < offsets.get(tp, 0):
                    who = consumers.get(one.session, hex(one.session))
                    moves.append(MoveBack(tp, who, offsets[tp], value))
                offsets[tp] = value
        return offsets, moves
