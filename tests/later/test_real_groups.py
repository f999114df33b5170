"""Groups of real consumers on real brokers go through the states that the model predicts.

The brokers are 3.9.1; for librdkafka's members of KIP-848's protocol there is one of 4.0.1.

Each scenario is a script. The simulated world performs the script first, and then real consumers
do. After each step the real assignments must become those of the model. In the end the broker's log
must contain the model's sequence of states and generations. For KIP-848's protocol, the compared
values are the epochs of the target assignments, and the epoch, state and partitions of each member.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from later.kraft import NEW, KraftBroker
from support.members.crew import Program
from support.members.later_member import LaterMember
from support.wait import eventually

from zkconsumer.later.classic_member_state import ClassicPhase
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.later.consumer_group import ConsumerGroup
from zkconsumer.later.group_coordinator import group_of
from zkconsumer.sandbox import Sandbox
from zkconsumer.sim.coordinated.world import (
    GROUP,
    CoordinatedPlan,
    CoordinatedWatcher,
    CoordinatedWorld,
)

SESSION_S = 6.0
PARTITIONS = 4
METADATA_S = 2.0
LIMIT_S = 90.0

RANGE, ROUND_ROBIN, COOPERATIVE = ("range",), ("roundrobin",), ("cooperative-sticky",)
Owned = dict[int, list[int]]


@dataclass(frozen=True)
class Scenario:
    """A script, and the properties of its members.

    Attributes:
        poll_s: `max.poll.interval.ms`, which is also the rebalance timeout of a member.
        stops: the member that stops itself in its listener, before it reads the offsets of its
            partitions.
        upgraded: the members from this number on use KIP-848's protocol, and the others the
            classic one.
        waits: the virtual seconds to wait after each step; None means the usual times.
    """

    steps: tuple[str, ...]
    clients: tuple[str, ...] = ("confluent", "confluent")
    assignors: tuple[tuple[str, ...], ...] = (RANGE, RANGE)
    is_static: bool = False
    protocol: str = "classic"
    poll_s: float = 300.0
    stops: int | None = None
    upgraded: int = 0
    waits: tuple[float, ...] = ()
    fails: Mapping[int, str] = field(default_factory=dict)

    @property
    def session_s(self) -> float:
        """A static member starts again before its session ends."""
        return 45.0 if self.is_static else SESSION_S


JVM = ("jvm", "jvm")
SCENARIOS = {
    "join": Scenario(("join 0", "join 1")),
    "leave": Scenario(("join 0", "join 1", "leave 0")),
    "kill": Scenario(("join 0", "join 1", "kill 1")),
    "pause": Scenario(("join 0", "join 1", "freeze 1", "thaw 1")),
    "cooperative": Scenario(("join 0", "join 1", "leave 1"), JVM, (COOPERATIVE, COOPERATIVE)),
    "static restart": Scenario(("join 0", "join 1", "leave 1", "revive 1"), is_static=True),
    "partitions are added": Scenario(("join 0", "join 1", "grow"), JVM),
    "a common strategy": Scenario(
        ("join 0", "join 1"), ("jvm", "confluent"), (RANGE + ROUND_ROBIN, ROUND_ROBIN)
    ),
    "no common strategy": Scenario(
        ("join 0", "join 1"),
        ("confluent", "jvm"),
        (RANGE, ROUND_ROBIN),
        fails={1: "InconsistentGroupProtocolException"},
    ),
    "the strategy of the majority": Scenario(
        ("join 0", "join 1", "join 2"),
        ("confluent",) * 3,
        (ROUND_ROBIN + RANGE, ROUND_ROBIN + RANGE, RANGE + ROUND_ROBIN),
    ),
    # A member with both strategies is eager; the last member is cooperative.
    "members change to the cooperative strategy": Scenario(
        ("join 0", "join 1", "leave 0", "join 2", "leave 1"),
        ("jvm",) * 3,
        (RANGE, COOPERATIVE + RANGE, COOPERATIVE),
    ),
    "both clients": Scenario(("join 0", "join 1", "leave 0"), ("jvm", "confluent")),
    # The restarted leader keeps the stored assignment. The new partition is already in the leader's
    # first metadata, so the leader sees no change and does not rebalance.
    "a static leader overlooks a partition": Scenario(
        ("join 0", "join 1", "leave 0", "grow", "revive 0"),
        JVM,
        is_static=True,
        waits=(30.0, 30.0, 1.0, 1.0, 30.0),
    ),
    # The member stays in the group, but the group continues without the member: its generation is
    # fenced.
    "a static member misses a rebalance": Scenario(
        ("join 0", "join 1", "freeze 1", "join 2", "thaw 1"),
        ("jvm",) * 3,
        (RANGE,) * 3,
        is_static=True,
        poll_s=8.0,
        waits=(30.0, 30.0, 1.0, 15.0, 30.0),
    ),
}

CONSUMER = {
    "join": ("join 0", "join 1"),
    "leave": ("join 0", "join 1", "leave 0"),
    "kill": ("join 0", "join 1", "kill 1"),
    "pause": ("join 0", "join 1", "freeze 1", "thaw 1"),
    "pause in the listener": ("join 0", "join 1", "freeze 1", "thaw 1"),
    # With two members, the order of their random ids would decide which member gets the new
    # partition.
    "partitions are added": ("join 0", "grow"),
}
"""Scenarios of KIP-848's protocol."""

LIBRDKAFKA = ("confluent", "confluent")
BOTH = ("jvm", "confluent")
NEW_CONSUMER = {
    **{f"{name}, librdkafka": (name, LIBRDKAFKA) for name in CONSUMER},
    **{f"{name}, both clients": (name, BOTH) for name in ("join", "leave", "pause")},
    "pause in the listener, both clients": ("pause in the listener", BOTH[::-1]),
}
"""Scenarios of KIP-848's protocol on the 4.0.1 broker, with the client of each member.

librdkafka 2.16 sends version 1 of ConsumerGroupHeartbeat, in which a member chooses its member id.
The JVM client of 3.9.1 sends version 0 to both brokers.
"""


# ---- the model -----------------------------------------------------------------------------------


class States(CoordinatedWatcher):
    """Collects the group's states and generations, except states during a rebalance."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def acted(self, world: CoordinatedWorld) -> None:
        group = group_of(world.brokers[0], GROUP)
        if group is None or group.phase.value == "PreparingRebalance" or not group.generation:
            return
        now = (group.phase.value, group.generation)
        if not self.seen or self.seen[-1] != now:
            self.seen.append(now)


MemberState = tuple[int, str, tuple[int, ...], tuple[int, ...]]
"""A member's epoch and state, its partitions, and the partitions that it must revoke."""


@dataclass
class Epochs(CoordinatedWatcher):
    """Collects the epochs of target assignments, and the successive states of each member."""

    targets: list[int] = field(default_factory=list)
    members: dict[str, list[MemberState]] = field(default_factory=dict)

    def acted(self, world: CoordinatedWorld) -> None:
        group = group_of(world.brokers[0], GROUP)
        if not isinstance(group, ConsumerGroup):
            return
        self.add_target(group.target_epoch)
        for name, member in group.members.items():
            now = member.current
            parts = [
                tuple(sorted(tp.partition for tp in of)) for of in (now.assigned, now.revoking)
            ]
            self.add(name, (now.epoch, now.state.value, parts[0], parts[1]))

    def add_target(self, epoch: int) -> None:
        if epoch and epoch not in self.targets:
            self.targets.append(epoch)

    def add(self, member: str, state: MemberState) -> None:
        states = self.members.setdefault(member, [])
        if state[0] and states[-1:] != [state]:
            states.append(state)

    @property
    def seen(self) -> tuple[list[int], list[list[MemberState]]]:
        return self.targets, [states for states in self.members.values() if states]


def predicted(scenario: Scenario) -> tuple[list[Owned], object]:
    """Return the model's assignment after each step, and the model's states."""

    def settings(one: ClientSettings, who: int) -> ClientSettings:
        return replace(
            one,
            assignors=scenario.assignors[who],
            instance=f"i{who}" if scenario.is_static else None,
            session_s=scenario.session_s,
            heartbeat_s=0.5,
            poll_s=scenario.poll_s,
        )

    is_classic = scenario.protocol == "classic"
    states = States() if is_classic else Epochs()
    members = len(scenario.clients)
    plan = CoordinatedPlan(
        scenario.protocol, members=members, partitions=PARTITIONS, settings=settings
    )
    world = CoordinatedWorld(plan, states)
    settled_s = 30.0 if is_classic else 120.0  # The session timeout of the coordinator is 45 s.
    found = []
    for number, step in enumerate(scenario.steps):
        what, _, who = step.partition(" ")
        getattr(world, what)(*map(int, who.split()))
        is_short = scenario.is_static and what == "leave"
        usual_s = 1.0 if is_short else 400.0 if what == "grow" else settled_s
        world.run(scenario.waits[number] if scenario.waits else usual_s)
        found.append(
            {
                n: sorted(tp.partition for tp in member.state.owned)
                for n, member in enumerate(world.members)
                if member.acts and member.state.phase.value != ClassicPhase.FAILED.value
            }
        )
    return found, states.seen


# ---- the real group ------------------------------------------------------------------------------


class RealGroup:
    """Real consumers that perform a script."""

    def __init__(
        self, scenario: Scenario, servers: Sandbox | KraftBroker, topic: str, place: Path
    ) -> None:
        self._scenario, self._servers, self._topic, self._place = scenario, servers, topic, place
        self.members: dict[int, Program] = {}
        self._started: list[Program] = []
        self._log = servers.log if isinstance(servers, KraftBroker) else servers.broker.log
        self._from = self._log.stat().st_size

    def perform(self, step: str) -> None:
        what, _, who = step.partition(" ")
        if what == "grow":
            self._servers.add_partitions(self._topic, partitions=PARTITIONS + 1)
        elif what in ("join", "revive"):
            self._start(int(who))
        else:
            getattr(self.members[int(who)], what)()
        if what in ("leave", "kill"):
            del self.members[int(who)]

    def _start(self, who: int) -> None:
        client = self._scenario.clients[who]
        member = LaterMember(
            f"c{who}-{len(self._started)}",
            client=client,
            topic=self._topic,
            properties=self._properties(who),
            directory=self._place,
            stops_when_assigned=who == self._scenario.stops,
        )
        self._started.append(member)
        self.members[who] = member

    def _properties(self, who: int) -> dict[str, str]:
        found = {
            "bootstrap.servers": self._servers.bootstrap,
            "group.id": self._topic,
            "client.id": f"c{who}",
            "auto.offset.reset": "earliest",
            "metadata.max.age.ms": str(int(METADATA_S * 1000)),
            "max.poll.interval.ms": str(int(self._scenario.poll_s * 1000)),
        }
        if self._scenario.protocol == "consumer" and who >= self._scenario.upgraded:
            found["group.protocol"] = "consumer"
        else:
            found |= {
                "session.timeout.ms": str(int(self._scenario.session_s * 1000)),
                "heartbeat.interval.ms": "500",
                "partition.assignment.strategy": ",".join(self._scenario.assignors[who]),
            }
        if self._scenario.is_static:
            found["group.instance.id"] = f"i{who}"
        return found

    def owned(self) -> Owned:
        """Return the partitions of each member that has neither failed nor been frozen."""
        found: Owned = {}
        for who, member in self.members.items():
            events = member.events
            is_frozen = bool(member.frozen) and member.frozen[-1][1] == float("inf")
            if is_frozen or any(one["event"] == "error" for one in events):
                continue
            owned = [one["partitions"] for one in events if one["event"] == "owned"]
            found[who] = owned[-1] if owned else []
        return found

    def errors(self) -> dict[int, str]:
        return {
            who: one["name"]
            for who, member in self.members.items()
            for one in member.events
            if one["event"] == "error"
        }

    def _logged(self) -> str:
        with self._log.open("rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")

    def epochs(self) -> object:
        """Return the epochs of the target assignments and the members' states in the
        broker's log."""
        found = Epochs()
        lines = re.compile(
            rf"GroupId {re.escape(self._topic)}\] "
            r"(?:Computed a new target assignment for epoch (\d+)"
            r"|Member (\S+) new assignment state: epoch=(\d+), previousEpoch=-?\d+, state=(\w+),"
            r" assignedPartitions=\[(.*?)\] and revokedPartitions=\[(.*?)\])"
        )
        for target, member, epoch, state, *parts in lines.findall(self._logged()):
            if target:
                found.add_target(int(target))
                continue
            has, revokes = (tuple(sorted(map(int, re.findall(r"-(\d+)(?:,|$)", p)))) for p in parts)
            found.add(member, (int(epoch), state, has, revokes))
        return found.seen

    def states(self) -> object:
        """Return the states and generations in the broker's log."""
        text = self._logged()
        name = re.escape(self._topic)
        lines = re.compile(
            rf"(Stabilized) group {name} generation (\d+)"
            rf"|(Assignment) received from leader \S+ for group {name} for generation (\d+)"
            rf"|(Group) {name} with generation (\d+) is now empty"
        )
        words = {"Stabilized": "CompletingRebalance", "Assignment": "Stable", "Group": "Empty"}
        return [
            (words[one[1] or one[3] or one[5]], int(one[2] or one[4] or one[6]))
            for one in lines.finditer(text)
        ]

    def end(self) -> None:
        for member in self._started:
            member.end()


def follow(group: RealGroup, scenario: Scenario, assignments: list[Owned]) -> None:
    """Perform the steps; after each, wait until the real group has the model's assignment."""
    for step, wanted in zip(scenario.steps, assignments, strict=True):
        group.perform(step)
        eventually(lambda wanted=wanted: group.owned() == wanted, LIMIT_S)


Make = Callable[[Scenario, Sandbox | KraftBroker], RealGroup]


def follow_epochs(
    name: str, clients: tuple[str, ...], group_for: Make, broker: KraftBroker
) -> None:
    """Compare assignments, epochs of target assignments, and states of members."""
    stops = 1 if "listener" in name else None
    scenario = Scenario(CONSUMER[name], clients, protocol="consumer", stops=stops)
    assignments, epochs = predicted(scenario)
    group = group_for(scenario, broker)
    follow(group, scenario, assignments)
    eventually(lambda: group.epochs() == epochs, LIMIT_S)
    assert group.errors() == {}


@pytest.fixture
def group_for(unique: Callable[[str], str], tmp_path: Path) -> Iterator[Make]:
    """Creates a group on a topic of this test only; ends the members after the test."""
    with ExitStack() as ends:

        def make(scenario: Scenario, servers: Sandbox | KraftBroker) -> RealGroup:
            topic = unique("later")
            servers.create_topic(topic, partitions=PARTITIONS)
            group = RealGroup(scenario, servers, topic, tmp_path)
            ends.callback(group.end)
            return group

        yield make


@pytest.fixture(scope="module")
def kraft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftBroker]:
    """A broker that supports KIP-848's protocol."""
    with KraftBroker(tmp_path_factory.mktemp("kraft")) as broker:
        yield broker


@pytest.fixture(scope="module")
def new_kraft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftBroker]:
    """A broker of 4.0.1."""
    with KraftBroker(tmp_path_factory.mktemp("kraft"), NEW) as broker:
        yield broker


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario(name: str, group_for: Make, sandbox: Sandbox) -> None:
    """The real group has the states, generations and assignments of the model."""
    scenario = SCENARIOS[name]
    assignments, states = predicted(scenario)
    group = group_for(scenario, sandbox)
    follow(group, scenario, assignments)
    eventually(lambda: group.states() == states, LIMIT_S)
    assert group.errors() == scenario.fails
    if "overlooks" in name:  # Nor does the next read of metadata start a rebalance.
        wanted, until = (assignments[-1], states), time.monotonic() + 3 * METADATA_S
        eventually(lambda: time.monotonic() > until or (group.owned(), group.states()) != wanted)
        assert (group.owned(), group.states()) == wanted


@pytest.mark.server
@pytest.mark.parametrize("name", CONSUMER)
def test_kip_848(name: str, group_for: Make, kraft: KraftBroker) -> None:
    """The real group has the epochs, member states and assignments of the model."""
    follow_epochs(name, JVM, group_for, kraft)


@pytest.mark.server
@pytest.mark.parametrize("name", NEW_CONSUMER)
def test_kip_848_of_4_0(name: str, group_for: Make, new_kraft: KraftBroker) -> None:
    """The model also predicts groups of librdkafka members, and of both clients, on 4.0.1."""
    steps, clients = NEW_CONSUMER[name]
    follow_epochs(steps, clients, group_for, new_kraft)


@pytest.mark.server
@pytest.mark.parametrize("clients", [BOTH, LIBRDKAFKA, JVM], ids="-".join)
def test_a_group_changes_its_protocol(
    clients: tuple[str, ...], group_for: Make, new_kraft: KraftBroker
) -> None:
    """If a KIP-848 member joins a classic group, the group gets the assignments of KIP-848."""
    steps = CONSUMER["leave"]
    scenario = Scenario(steps, clients, protocol="consumer", upgraded=1)
    assignments, _ = predicted(scenario)
    group = group_for(scenario, new_kraft)
    follow(group, scenario, assignments)
    assert group.errors() == {}
