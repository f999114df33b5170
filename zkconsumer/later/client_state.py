"""What members of both later protocols have and do: their client, partitions and user.

The client knows the cluster, finds the coordinator, and counts requests in flight. Source:
`AbstractCoordinator.lookupCoordinator`, `CoordinatorRequestManager` and
`NetworkClient.leastLoadedNode` of Kafka 3.9.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from enum import Enum
from typing import TypeVar

from zkconsumer.frozen import dataclass
from zkconsumer.later import member_events as ev
from zkconsumer.later.group_events import DEFAULT_SESSION_S
from zkconsumer.later.member_events import Commands, Send
from zkconsumer.protocol.later.messages import (
    Error,
    FindCoordinator,
    FoundCoordinator,
    OffsetCommit,
    OffsetFetch,
    OffsetsFetched,
    Request,
    Response,
)
from zkconsumer.protocol.later.subscriptions import Topic
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition

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


# ---- members -------------------------------------------------------------------------------------


class Mode(Enum):
    """When a member revokes partitions (`ConsumerPartitionAssignor.RebalanceProtocol`)."""

    EAGER = "eager"  # it revokes all partitions before each join
    # It revokes only partitions that the new assignment removes, and then joins again.
    COOPERATIVE = "cooperative"


COOPERATIVE_ASSIGNORS = frozenset({"cooperative-sticky"})
"""Assignors that support the cooperative mode; all others are eager."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The consumer's properties; durations in seconds.

    Attributes:
        assignors: `partition.assignment.strategy`, the preferred one first.
        auto_commit_s: `auto.commit.interval.ms`; None: `enable.auto.commit=false`.
        poll_s: `max.poll.interval.ms`, which is also the member's rebalance timeout.
        join_version: the version of JoinGroup (`messages.JoinGroup.version`).
        lends: topic -> the partitions that the member assigns when it leads the group. It assigns
            all partitions of the other topics, and none to itself. None: it assigns all partitions
            to all members, as Kafka's consumers do. Only the bridge sets it (`zkconsumer.bridge`).
    """

    group: str
    client: str
    topics: tuple[str, ...]
    assignors: tuple[str, ...] = ("range", "cooperative-sticky")
    instance: str | None = None
    rack: str | None = None
    session_s: float = DEFAULT_SESSION_S
    heartbeat_s: float = 3.0
    poll_s: float = 300.0
    auto_commit_s: float | None = 5.0
    join_version: int = 9
    lends: Mapping[str, frozenset[int]] | None = None

    @property
    def mode(self) -> Mode:
        """The mode that all assignors support; the default of Kafka 3.0 to 3.9 is eager."""
        cooperative = COOPERATIVE_ASSIGNORS.issuperset(self.assignors)
        return Mode.COOPERATIVE if cooperative else Mode.EAGER


@dataclass(frozen=True, slots=True)
class CommonState:
    """What both protocols keep of a member. All times are in seconds.

    Attributes:
        member: the member id.
        owned: the partitions that the member may deliver.
        loading: owned partitions whose stored offset is not known yet.
        positions: partition -> offset of the next message; partitions with an unknown position are
            absent.
        commit: the number of the commit before a change of the assignment, or of the last commit.
        commit_until: when the member no longer waits for that commit.
        retry_at: the end of the back-off after a failure.
        polling: whether the user's thread is in `poll`.
        poll_until: the time by which the user must call `poll` again.
        heartbeat_at: the time of the next heartbeat.
        auto_commit_at: the time of the next automatic commit.
        closing: the time limit of a closing member's last commit; None: it is not closing.
        error: why the member has failed.
    """

    settings: ClientSettings
    client: ClientState = field(default_factory=ClientState)
    member: str = ""
    owned: frozenset[TopicPartition] = frozenset()
    loading: frozenset[TopicPartition] = frozenset()
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    commit: int | None = None
    commit_until: float | None = None
    retry_at: float = 0.0
    polling: bool = False
    poll_until: float = NEVER
    heartbeat_at: float = NEVER
    auto_commit_at: float = NEVER
    closing: float | None = None
    error: Error = Error.NONE


S = TypeVar("S", bound=CommonState)
Answer = Callable[[S, InFlightRequest, Response, float], tuple[S, Commands]]
"""Handles the response to a request at a time, in seconds."""

Handler = Callable[..., object]
"""A function that handles an event, or the response to a request; the caller only names it."""


def poll_started(state: S, event: ev.Event) -> tuple[S, Commands]:
    """The user's thread is in `poll`, so no time limit applies."""
    return replace(state, polling=True, poll_until=NEVER), ()


def metadata_changed(state: S, event: ev.Event) -> tuple[S, Commands]:
    """Take over the brokers and topics of new metadata."""
    assert isinstance(event, ev.MetadataChanged)
    client = replace(state.client, brokers=event.brokers, topics=event.topics)
    return replace(state, client=client), ()


def consumed(state: S, event: ev.Event) -> tuple[S, Commands]:
    """Record the position after a message, unless the partition has been revoked."""
    assert isinstance(event, ev.Consumed)
    if event.partition not in state.owned:
        return state, ()
    return replace(state, positions={**state.positions, event.partition: event.position}), ()


def ticked(state: S, event: ev.Event) -> tuple[S, Commands]:
    """Do nothing: after each event, the machines look at the clock anyway."""
    return state, ()


def take_answer(
    state: S, event: ev.Event, answers: Mapping[type[Request], Answer[S]]
) -> tuple[S, Commands]:
    """Pass a response to the handler of its request, unless its connection has been closed."""
    assert isinstance(event, ev.Answered)
    sent, client = answered(state.client, event.number)
    if sent is None:
        return state, ()
    state = replace(state, client=client)
    return answers[type(sent.request)](state, sent, event.response, event.now)


def handler_of(
    state: CommonState,
    event: ev.Event,
    handlers: Mapping[type[ev.Event], Handler],
    answers: Mapping[type[Request], Handler],
) -> Handler:
    """Return the function that handles an event, or the response to a request of this member."""
    if isinstance(event, ev.Answered) and event.number in state.client.sent:
        return answers[type(state.client.sent[event.number].request)]
    return handlers[type(event)]


def drop_overdue(state: S, now: float, drop: Callable[[S, int, float], S]) -> tuple[S, Commands]:
    """Close the connections on which a response is overdue."""
    for broker in overdue(state.client, now):
        state = drop(state, broker, now)
    return state, ()


def is_committing(state: CommonState) -> bool:
    """Return whether the commit that `commit` names has no response yet."""
    return state.commit is not None and state.commit in state.client.sent


def has_uncommitted(state: CommonState) -> bool:
    """Return whether commits are automatic, and a position of an owned partition is known."""
    return state.settings.auto_commit_s is not None and bool(state.owned & state.positions.keys())


def commit_request(state: CommonState, generation: int) -> OffsetCommit:
    """Return the commit of the positions of all owned partitions."""
    offsets = {
        tp: OffsetAndMetadata(state.positions[tp])
        for tp in sorted(state.owned)
        if tp in state.positions
    }
    settings = state.settings
    return OffsetCommit(settings.group, offsets, state.member, generation, settings.instance)


def start_loaded(state: S, request: Request, response: OffsetsFetched) -> tuple[S, Commands]:
    """Deliver the partitions whose stored offsets have been read, if they are still owned."""
    assert isinstance(request, OffsetFetch)
    known = state.loading.intersection(request.partitions or ())
    if not known:
        return state, ()
    starts = {tp: response.offsets.get(tp) for tp in sorted(known)}
    offsets = {tp: None if one is None else one.offset for tp, one in starts.items()}
    positions = {**state.positions, **{tp: offset or 0 for tp, offset in offsets.items()}}
    state = replace(state, loading=state.loading - known, positions=positions)
    return state, (ev.StartFetching(offsets),)


def revoke(
    state: S, partitions: frozenset[TopicPartition], callback: ev.Callback
) -> tuple[S, Commands]:
    """Stop the delivery of partitions, forget their positions, and call the listener."""
    state = replace(
        state,
        owned=state.owned - partitions,
        loading=state.loading - partitions,
        positions={tp: at for tp, at in state.positions.items() if tp not in partitions},
    )
    stop: Commands = (ev.StopFetching(partitions),) if partitions else ()
    return state, (*stop, ev.CallListener(callback, partitions))


def retry(state: S, error: Error, now: float) -> S:
    """Wait before sending the same request again; look up the coordinator if it has moved."""
    if error in COORDINATOR_MOVED:
        state = replace(state, client=forget_coordinator(state.client))
    return replace(state, retry_at=now + BACKOFF_S)
