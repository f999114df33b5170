"""A scripted group with a coordinator: classic protocol (eager or cooperative), or KIP-848."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from zkconsumer.frozen import dataclass
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.later.group_events import BrokerSettings
from zkconsumer.protocol.later import messages as msg
from zkconsumer.sim.compare import wire_sizes
from zkconsumer.sim.compare.meter import Meter
from zkconsumer.sim.coordinated.world import (
    CoordinatedPlan,
    CoordinatedWatcher,
    CoordinatedWorld,
    Move,
)
from zkconsumer.sim.kernel.world import Delivered


@dataclass(frozen=True)
class ProtocolSetup:
    """The set-up of a group with a coordinator."""

    messages: str  # "classic" or "consumer"
    assignors: tuple[str, ...] = ()

    def settings(self, one: ClientSettings, session_s: float) -> ClientSettings:
        """Return the properties of a member with the protocol's assignors and a session timeout."""
        return replace(one, assignors=self.assignors or one.assignors, session_s=session_s)


PROTOCOLS = {
    "classic-eager": ProtocolSetup("classic", ("range",)),
    "classic-cooperative": ProtocolSetup("classic", ("cooperative-sticky",)),
    "consumer": ProtocolSetup("consumer"),
}


class _Observer(CoordinatedWatcher):
    """Passes its observations to a meter."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.requests = self.bytes = 0

    def answered(
        self, world: CoordinatedWorld, who: int, request: msg.Request, response: msg.Response
    ) -> None:
        self.requests += 1
        self.bytes += wire_sizes.of_kafka(world.members[who].name, request, response)

    def delivered(self, world: CoordinatedWorld, message: Delivered) -> None:
        self.meter.delivered(message.tp, message.offset)

    def acted(self, world: CoordinatedWorld) -> None:
        serving = {tp: members[-1] for tp, members in world.serving().items()}
        away = {who for who, one in enumerate(world.members) if one.dead or one.frozen}
        self.meter.observe(world.now, serving, away)


class CoordinatedGroup:
    """One group; `sim.compare.run` directs it."""

    server = "coordinator"

    def __init__(self, members: int, partitions: int, session_s: float, *, protocol: str) -> None:
        self.meter = Meter()
        self._observer = _Observer(self.meter)
        one = PROTOCOLS[protocol]
        plan = CoordinatedPlan(
            protocol=one.messages,
            members=members,
            partitions=partitions,
            messages=1,
            settings=lambda settings, _: one.settings(settings, session_s),
            broker_settings=BrokerSettings(session_s=session_s),
        )
        self.world = CoordinatedWorld(plan, self._observer)

    @property
    def now(self) -> float:
        return self.world.now

    def order(self, what: str, who: int) -> None:
        """Let a member join, leave, be killed, frozen or thawed."""
        self.world.act(Move(what, who))

    def advance(self, until: float) -> None:
        """Advance the clock to `until`, and execute everything that is due by then."""
        self.world.run(until - self.now)

    def produce(self) -> None:
        self.world.produce()

    def settled(self) -> bool:
        return self.world.settled()

    def traffic(self) -> tuple[int, int, int]:
        """Return the requests, watch events and bytes."""
        return self._observer.requests, 0, self._observer.bytes


COORDINATED_GROUPS: dict[str, Callable[[int, int, float], CoordinatedGroup]] = {
    name: partial(CoordinatedGroup, protocol=name) for name in PROTOCOLS
}
