"""A member's metrics: counted from its transitions, read by the user, exported to Prometheus.

The metrics cover the values of the JVM's MBeans; docs/metrics.md maps the names. No counter is
increased for each message: the number of messages is computed from the offsets.

`prometheus_client` is imported only when metrics are exported (`pip install
'zkconsumer[metrics]'`). The connectors of one process can share a registry and a port.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from types import ModuleType
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from zkconsumer.consumer.stream_fetcher import ReportKind
from zkconsumer.consumer.stream_partitions import CommitScope
from zkconsumer.errors import ConfigError, require
from zkconsumer.frozen import dataclass
from zkconsumer.member import commands as cmd
from zkconsumer.member import events
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import State, own_topics
from zkconsumer.protocol import arguments
from zkconsumer.protocol.model import Position, Positions, TopicPartition

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

    from zkconsumer.config.settings import ConsumerConfig
    from zkconsumer.consumer.stream import Streams
    from zkconsumer.consumer.stream_partitions import LeaseGate

RESTS = frozenset({Phase.SETTLED, Phase.WAITING, Phase.CLOSED})


EVENTS: tuple[str, ...] = (
    "rebalances",
    "commits",
    "listener_merged",
    *(f"{name}_failed" for name in ("trace", "journal", "tally")),
    *(kind.value for kind in cmd.NoticeKind),
    *(kind.value for kind in ReportKind),
)
"""The names of all events that a member counts."""

RESETS_SHARE, COUNT_AGAIN_S = 16, 1.0
"""How often messages are counted while partitions are being reset.

Messages are counted each time a 16th of the partitions has been reset, and at least once a second.
"""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The metrics of one member at one moment; counters start when the member starts.

    Attributes:
        events: event name -> count; the names are those of `ConsumerConnector.metrics`.
        rebalances: number of rebalances that have ended.
        rebalance_s: total duration of these rebalances in seconds.
        zookeeper_commits: offsets written to ZooKeeper.
        kafka_commits: offsets written to Kafka.
        messages: topic -> messages handed out.
        fetched_bytes: topic -> bytes of keys and values fetched, estimated from samples of large
            batches.
        owned: topic -> partitions owned.
        queued: (topic, consumer thread id) -> messages fetched and not yet handed out.
        lag: (topic, partition) -> messages between the position and the end of the log, for
            partitions whose log end is known.
    """

    client_id: str
    group_id: str
    consumer_id: str
    phase: str
    connected: bool
    lease_s: float
    requests: int
    blocked: int
    stuck: int
    events: Mapping[str, int]
    rebalances: int
    rebalance_s: float
    zookeeper_commits: int
    kafka_commits: int
    messages: Mapping[str, int]
    fetched_bytes: Mapping[str, float]
    owned: Mapping[str, int]
    queued: Mapping[tuple[str, str], int]
    lag: Mapping[tuple[str, str], int]

    @property
    def exported_events(self) -> dict[str, int]:
        """The counts of all events: Prometheus sees no increase in a counter that starts with 1."""
        return {**dict.fromkeys(EVENTS, 0), **self.events}

    def flat(self) -> dict[str, float]:
        """Return the metrics under the names of `ConsumerConnector.metrics`."""
        return {
            **{name: float(count) for name, count in self.events.items()},
            "rebalance_seconds": self.rebalance_s,
            "zookeeper_commits": float(self.zookeeper_commits),
            "kafka_commits": float(self.kafka_commits),
            "messages": float(sum(self.messages.values())),
            "fetched_bytes": sum(self.fetched_bytes.values(), 0.0),
            "queued_messages": float(sum(self.queued.values())),
            "max_lag": float(max(self.lag.values(), default=0)),
            "owned_partitions": float(sum(self.owned.values())),
            "blocked_partitions": float(self.blocked),
            "stuck_streams": float(self.stuck),
            "zookeeper_requests": float(self.requests),
        }


class MeasuredMember(Protocol):
    """The part of a `MemberThread` from which the metrics are computed."""

    @property
    def state(self) -> State: ...
    @property
    def tally(self) -> MemberCounters: ...
    @property
    def requests(self) -> int: ...
    @property
    def counters(self) -> Mapping[str, int]: ...
    @property
    def troubles(self) -> StreamErrorCounts: ...


class StreamErrorCounts(Protocol):
    """Counts of the failures that streams report: name -> count."""

    @property
    def counts(self) -> Mapping[str, int]: ...


def figures(
    config: ConsumerConfig,
    thread: MeasuredMember,
    gate: LeaseGate,
    streams: Streams,
    *,
    stuck: int,
) -> MetricsSnapshot:
    """Return a member's metrics; any thread may call it. `stuck` counts unread streams."""
    state, tally = thread.state, thread.tally
    owned = Counter(tp.topic for tp in state.owned)
    topics = {*owned, *own_topics(state)}
    # Each counter of a topic starts at 0: Prometheus sees no increase in one that starts higher.
    fetched_bytes = dict.fromkeys(topics, 0.0)
    for stream in streams.values():
        for topic, size in stream.fetched_bytes.items():
            fetched_bytes[topic] = fetched_bytes.get(topic, 0.0) + size
    return MetricsSnapshot(
        client_id=config.client_id,
        group_id=config.group_id,
        consumer_id=state.settings.consumer,
        phase=state.phase.value,
        connected=state.connected,
        lease_s=max(0.0, gate.deadline - gate.clock()),
        requests=thread.requests,
        blocked=len(state.blocked.partitions),
        stuck=stuck,
        events={**thread.counters, **thread.troubles.counts},
        rebalances=tally.rebalances,
        rebalance_s=tally.rebalance_s,
        zookeeper_commits=tally.zookeeper_commits,
        kafka_commits=tally.kafka_commits,
        messages={**dict.fromkeys(topics, 0), **tally.messages()},
        fetched_bytes=fetched_bytes,
        owned={topic: owned[topic] for topic in topics},
        queued={(topic or "", thread): one.queued for (topic, thread), one in streams.items()},
        lag={
            (tp.topic, str(tp.partition)): max(0, ends[tp] - offset)
            for ends, at in [(s.ends, s.positions(CommitScope.DELIVERED)) for s in streams.values()]
            for tp, (_, offset) in at.items()
            if tp in ends
        },
    )


class MemberCounters:
    """Counts a member's actions; `positions` returns the positions after handed-out messages."""

    def __init__(self, positions: Callable[[], Positions]) -> None:
        self.rebalances = 0
        self.rebalance_s = 0.0
        self.zookeeper_commits = 0
        self.kafka_commits = 0
        self._positions = positions
        self._began_at: float | None = None
        # The number of resets since the last count of messages, and the time of that count.
        self._resets, self._counted_at = 0, float("-inf")
        self._resets_done = 0
        self._messages: Counter[str] = Counter()
        self._seen: dict[TopicPartition, Position] = {}
        self._lock = threading.Lock()  # the member, a stream and a scrape change both mappings

    def observe(
        self, before: State, event: events.Event, after: State, commands: Iterable[cmd.Command]
    ) -> None:
        """Count a transition before its commands run.

        Withdrawn partitions still have positions at that time.
        """
        if after.phase is Phase.READING and self._began_at is None:
            self._began_at = event.now
        if after.phase in RESTS and self._began_at is not None:
            self.rebalances += 1
            self.rebalance_s += event.now - self._began_at
            self._began_at = None
        if isinstance(event, events.Finished) and isinstance(event.outcome, events.Committed):
            self.zookeeper_commits += len(event.outcome.versions)
            self.kafka_commits += len(event.outcome.kafka)
        for command in commands:
            if isinstance(command, cmd.Withdraw):
                self.messages()
            elif isinstance(command, cmd.StartFetching):
                self._granted(command)

    def _granted(self, command: cmd.StartFetching) -> None:
        with self._lock:
            for tp, (mine, offset) in command.grants.items():
                if offset is None:
                    self._seen.pop(tp, None)  # a later `reset` has the first position
                else:
                    self._seen[tp] = Position(mine.epoch, offset)

    def count_before_reset(self, tp: TopicPartition, now: float) -> None:
        """Count the messages, because the position of `tp` is about to be reset.

        Each count reads the positions of all partitions. When thousands of partitions are reset at
        once, messages are counted only each time a 16th of the partitions (`RESETS_SHARE`) has been
        reset, so the work stays linear. The metrics then miss up to `COUNT_AGAIN_S` seconds of a
        partition's messages.
        """
        if tp not in self._seen:
            return  # no message of the partition was handed out
        with self._lock:
            self._resets += 1
            is_due = (
                self._resets * RESETS_SHARE >= len(self._seen)
                or now >= self._counted_at + COUNT_AGAIN_S
            )
            if is_due:
                self._resets, self._counted_at = 0, now
        if is_due:
            self.messages()

    def reset(self, tp: TopicPartition, epoch: int, offset: int) -> None:
        """Continue to count at a new position: skipped messages were not handed out.

        The stream calls this method before the new position can be read.
        """
        with self._lock:
            self._resets_done += 1
            self._seen[tp] = Position(epoch, offset)

    def messages(self) -> dict[str, int]:
        """Return topic -> messages handed out, by offsets; gaps in a log count as messages."""
        while True:
            before = self._resets_done
            positions = self._positions()
            with self._lock:
                if self._resets_done != before:
                    continue  # `positions` may contain the position before the reset
                for tp, (epoch, offset) in positions.items():
                    seen = self._seen.get(tp)
                    if seen is None or seen.epoch != epoch:
                        continue  # the partition's first position is not known yet
                    self._messages[tp.topic] += max(0, offset - seen.offset)
                    self._seen[tp] = Position(epoch, max(offset, seen.offset))
                return dict(self._messages)


# ---- export to Prometheus ------------------------------------------------------------------------


Read = Callable[[], MetricsSnapshot | None]
LABELS = ("client_id", "group_id", "consumer_id")

# Each row: name, help text, further labels, and the attribute of `MetricsSnapshot`. Prometheus adds
# `_total` to a counter's name.
GAUGES: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("zkconsumer_owned_partitions", "Partitions owned.", ("topic",), "owned"),
    (
        "zkconsumer_fetch_queue_messages",
        "Messages fetched and not yet handed out.",
        ("topic", "thread_id"),
        "queued",
    ),
    (
        "zkconsumer_lag",
        "Messages behind the log's end, a few seconds ago.",
        ("topic", "partition"),
        "lag",
    ),
    (
        "zkconsumer_blocked_partitions",
        "Assigned partitions that other members own.",
        (),
        "blocked",
    ),
    (
        "zkconsumer_stuck_streams",
        "Streams that nobody reads, although the member owns their partitions.",
        (),
        "stuck",
    ),
    ("zkconsumer_zookeeper_connected", "1 while ZooKeeper is connected.", (), "connected"),
    ("zkconsumer_lease_seconds", "Seconds until the lease ends.", (), "lease_s"),
)
COUNTERS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("zkconsumer_messages", "Messages handed out.", ("topic",), "messages"),
    (
        "zkconsumer_fetched_bytes",
        "Bytes of keys and values fetched.",
        ("topic",),
        "fetched_bytes",
    ),
    ("zkconsumer_zookeeper_commits", "Offsets written to ZooKeeper.", (), "zookeeper_commits"),
    ("zkconsumer_kafka_commits", "Offsets written to Kafka.", (), "kafka_commits"),
    ("zkconsumer_zookeeper_requests", "Requests sent to ZooKeeper.", (), "requests"),
    ("zkconsumer_events", "Events by kind.", ("event",), "exported_events"),
)


class Collector:
    """All connectors of a registry as one collector, so that each metric name is exported once."""

    def __init__(self) -> None:
        self.reads: list[Read] = []

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering reads no metrics."""
        return []

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import (  # noqa: PLC0415 - the extra `metrics`
            CounterMetricFamily,
            GaugeMetricFamily,
            SummaryMetricFamily,
        )

        found = [one for read in list(self.reads) if (one := read()) is not None]
        makes: tuple[type[GaugeMetricFamily | CounterMetricFamily], ...]
        makes = (GaugeMetricFamily, CounterMetricFamily)
        for make, rows in zip(makes, (GAUGES, COUNTERS), strict=True):
            for name, text, more, attribute in rows:
                family = make(name, text, labels=(*LABELS, *more))
                for one in found:
                    _add(family, one, getattr(one, attribute))
                yield family
        took = SummaryMetricFamily(
            "zkconsumer_rebalance_seconds", "Rebalances, and the seconds they took.", labels=LABELS
        )
        phase = GaugeMetricFamily(
            "zkconsumer_phase", "1 for the member's phase.", labels=(*LABELS, "phase")
        )
        for one in found:
            took.add_metric(_labels(one), count_value=one.rebalances, sum_value=one.rebalance_s)
            phase.add_metric([*_labels(one), one.phase], 1)
        yield from (took, phase)


def _labels(one: MetricsSnapshot) -> list[str]:
    return [one.client_id, one.group_id, one.consumer_id]


def _add(
    family: GaugeMetricFamily | CounterMetricFamily,
    one: MetricsSnapshot,
    value: float | Mapping[str | tuple[str, ...], float],
) -> None:
    if not isinstance(value, Mapping):
        family.add_metric(_labels(one), float(value))
        return
    for key, number in value.items():
        more = [key] if isinstance(key, str) else list(key)
        family.add_metric([*_labels(one), *more], float(number))


@dataclass
class _Server:
    """A port of this process, and the number of connectors that use it."""

    registry: CollectorRegistry
    server: WSGIServer
    thread: threading.Thread
    users: int = 0


@dataclass
class Exports:
    """The places to which one connector's metrics are exported; `end` removes the metrics."""

    read: Read
    _registries: list[CollectorRegistry] = field(default_factory=list)
    _server: tuple[str, int] | None = None

    def register(self, registry: CollectorRegistry) -> None:
        """Add the metrics to a user's registry.

        Raises ConfigError if prometheus-client is not installed.
        """
        if not isinstance(registry, _library().CollectorRegistry):
            right = "prometheus_client.REGISTRY, or a CollectorRegistry"
            raise arguments.wrong(registry, "a registry", where="registry", right=right)
        with _LOCK:
            collector = _COLLECTORS.get(registry)
            if collector is None:
                collector = _COLLECTORS[registry] = Collector()
                registry.register(collector)
            collector.reads.append(self.read)
        self._registries.append(registry)

    def serve(self, host: str, port: int) -> None:
        """Serve the metrics over HTTP at this address.

        Raises ConfigError if prometheus-client is not installed or the port cannot be opened.
        """
        library = _library()
        with _LOCK:
            found = _SERVERS.get((host, port))
            if found is None:
                registry = library.CollectorRegistry()
                try:
                    server, thread = library.start_http_server(port, host, registry)
                except OSError as error:
                    raise ConfigError(
                        f"metrics cannot be served at {host}:{port}: {error.strerror}",
                        where="metrics.port",
                        remedy="choose another port or metrics.host",
                    ) from error
                found = _SERVERS[host, port] = _Server(registry, server, thread)
            found.users += 1
        self._server = (host, port)
        self.register(found.registry)

    def end(self) -> None:
        """Remove this connector's metrics everywhere; the last connector of a port closes it."""
        registries, self._registries = self._registries, []
        with _LOCK:
            for registry in registries:
                collector = _COLLECTORS[registry]
                collector.reads.remove(self.read)
                if not collector.reads:
                    del _COLLECTORS[registry]
                    with suppress(KeyError):  # the registry's owner has unregistered the collector
                        registry.unregister(collector)
            where, self._server = self._server, None
            found = _SERVERS.get(where) if where else None
            if where is None or found is None:
                return
            found.users -= 1
            if found.users:
                return
            del _SERVERS[where]
        found.server.shutdown()
        found.server.server_close()
        found.thread.join()


_LOCK = threading.Lock()
_COLLECTORS: WeakKeyDictionary[CollectorRegistry, Collector] = WeakKeyDictionary()
_SERVERS: dict[tuple[str, int], _Server] = {}


def _library() -> ModuleType:
    require("prometheus_client", extra="metrics", where="metrics.port")
    import prometheus_client  # noqa: PLC0415 - the extra `metrics`

    return prometheus_client
