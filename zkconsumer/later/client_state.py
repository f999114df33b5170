"""The state of a member's client: the known cluster, the coordinator, and requests in flight.

Both member machines find their coordinator here. Source: `AbstractCoordinator.lookupCoordinator`,
`CoordinatorRequestManager` and `NetworkClient.leastLoadedNode` of Kafka 3.9.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zkconsumer.later.member_events import Commands, Send
from zkconsumer.protocol.later.messages import Error, FindCoordinator, FoundCoordinator, Request
from zkconsumer.protocol.later.subscriptions import Topic

BACKOFF_S = 0.1
"""`retry.backoff.ms`: the back-off after the first failure, in seconds; it doubles each time."""

MOST_BACKOFF_S = 1.0
"""`retry.backoff.max.ms`: the maximum back-off, in seconds."""

REQUEST_S = 30.0
"""`request.timeout.ms`: after this time without a response, the client breaks the connection."""

COORDINATOR_MOVED = frozenset({Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE})
"""Errors after which a member looks for its coordinator again."""

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class InFlightRequest:
    """A request without a response yet.

    Attributes:
        broker: the broker to which the request was sent.
        request: the request.
        until: the time, in seconds, at which the client stops waiting for the response.
        membership: the member's id, generation and protocol when the request was sent. The handler
            of the response compares them with the member's present values.
    """

    broker: int
    request: Request
    until: float
    membership: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientState:
    """The cluster in one member's view, and the member's requests.

    Attributes:
        brokers: the broker ids of the metadata.
        topics: the topics of the metadata, by name.
        coordinator: the broker that coordinates the group; None if it is unknown.
        sent: number -> request without a response.
        number: the number of the next request.
        attempts: failed look-ups since the last success.
        next_look_up: the time of the next look-up, in seconds.
        last_lost: the broker whose connection was lost last; the member prefers to ask other
            brokers.
    """

    brokers: tuple[int, ...] = ()
    topics: Mapping[str, Topic] = field(default_factory=dict)
    coordinator: int | None = None
    sent: Mapping[int, InFlightRequest] = field(default_factory=dict)
    number: int = 1
    attempts: int = 0
    next_look_up: float = 0.0
    last_lost: int | None = None

    def awaits(self, kind: type[Request]) -> bool:
        """Return whether a request of this class has no response yet."""
        return any(isinstance(one.request, kind) for one in self.sent.values())


def send(
    client: ClientState,
    request: Request,
    now: float,
    *,
    broker: int | None = None,
    timeout_s: float = REQUEST_S,
    membership: tuple[object, ...] = (),
) -> tuple[ClientState, Commands]:
    """Send a request, by default to the coordinator."""
    to = client.coordinator if broker is None else broker
    assert to is not None, "the coordinator is unknown"
    number = client.number
    sent = {**client.sent, number: InFlightRequest(to, request, now + timeout_s, membership)}
    return replace(client, sent=sent, number=number + 1), (Send(number, to, request),)


def look_up(client: ClientState, group: str, now: float) -> tuple[ClientState, Commands]:
    """Ask the least loaded broker for the coordinator, if it is unknown and no answer is awaited.

    The least loaded broker has the fewest requests without a response. If several are equal, the
    first one is asked. Kafka's client begins at a random broker instead, and avoids brokers that it
    cannot reach.
    """
    is_known = client.coordinator is not None
    if is_known or client.awaits(FindCoordinator) or now < client.next_look_up:
        return client, ()
    load = [one.broker for one in client.sent.values()]
    broker = min(
        client.brokers,
        key=lambda one: (one == client.last_lost, load.count(one)),
        default=None,
    )
    if broker is None:
        return failed(client, now), ()
    return send(client, FindCoordinator(group), now, broker=broker)


def found(client: ClientState, answer: FoundCoordinator, now: float) -> ClientState:
    """Record the coordinator that a response names; after an error, delay the next look-up."""
    if answer.error is not Error.NONE:
        return failed(client, now)
    return replace(client, coordinator=answer.broker, attempts=0)


def failed(client: ClientState, now: float) -> ClientState:
    """Delay the next look-up; Kafka also varies the back-off at random by 20 %."""
    pause = min(MOST_BACKOFF_S, BACKOFF_S * 2.0 ** min(client.attempts, 16))
    return replace(client, attempts=client.attempts + 1, next_look_up=now + pause)


def answered(client: ClientState, number: int) -> tuple[InFlightRequest | None, ClientState]:
    """Remove and return the request of a response; None if its connection was closed meanwhile."""
    left = dict(client.sent)
    sent = left.pop(number, None)
    return sent, replace(client, sent=left)


def overdue(client: ClientState, now: float) -> set[int]:
    """Return the brokers that have not responded in time."""
    return {one.broker for one in client.sent.values() if one.until <= now}


def dropped(client: ClientState, broker: int, now: float) -> ClientState:
    """Forget the requests to a broker whose connection is lost."""
    if any(
        one.broker == broker and isinstance(one.request, FindCoordinator)
        for one in client.sent.values()
    ):
        client = failed(client, now)
    left = {number: one for number, one in client.sent.items() if one.broker != broker}
    is_coordinator = broker == client.coordinator
    coordinator = None if is_coordinator else client.coordinator
    return replace(client, sent=left, coordinator=coordinator, last_lost=broker)


def forget_coordinator(client: ClientState) -> ClientState:
    """Look for the coordinator again, and ignore responses from the old coordinator."""
    left = {
        number: one
        for number, one in client.sent.items()
        if one.broker != client.coordinator or isinstance(one.request, FindCoordinator)
    }
    return replace(client, coordinator=None, sent=left)
