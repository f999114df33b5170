"""Figures for Prometheus: in a registry of the user's, or on a port of this process.

`prometheus_client` is imported when somebody asks for it: `pip install 'zkconsumer[metrics]'`.
Several connectors of one process share a registry, and a port.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from zkconsumer.consumer.metrics import Figures
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

Read = Callable[[], Figures | None]
LABELS = ("client_id", "group_id", "consumer_id")

# Name, what it is, further labels, and where it stands. A counter's name gets `_total` on the page.
GAUGES: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("zkconsumer_owned_partitions", "Partitions owned.", ("topic",), "owned"),
    (
        "zkconsumer_fetch_queue_messages", "Messages fetched and not yet handed out.",
        ("topic", "thread_id"), "queued",
    ),
    (
        "zkconsumer_lag", "Messages behind the log's end, a few seconds ago.",
        ("topic", "partition"), "lag",
    ),
    ("zkconsumer_blocked_partitions", "Partitions that others hold.", (), "blocked"),
    ("zkconsumer_zookeeper_connected", "1 while ZooKeeper is connected.", (), "connected"),
    ("zkconsumer_lease_seconds", "Seconds left to deliver in.", (), "lease_s"),
)
COUNTERS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("zkconsumer_messages", "Messages handed out.", ("topic",), "messages"),
    (
        "zkconsumer_fetched_bytes", "Bytes of keys and values fetched.", ("topic",),
        "fetched_bytes",
    ),
    ("zkconsumer_zookeeper_commits", "Offsets written to ZooKeeper.", (), "zookeeper_commits"),
    ("zkconsumer_kafka_commits", "Offsets written to Kafka.", (), "kafka_commits"),
    ("zkconsumer_zookeeper_requests", "Requests sent to ZooKeeper.", (), "requests"),
    ("zkconsumer_events", "How often what happened.", ("event",), "events"),
)


class Collector:
    """All connectors of one registry, as one collector: each metric stands on the page once."""

    def __init__(self) -> None:
        self.reads: list[Read] = []

    def describe(self) -> list[Metric]:
        """Nothing: so that registering does not read."""
        return []

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import (  # noqa: PLC0415
            CounterMetricFamily,
            GaugeMetricFamily,
            SummaryMetricFamily,
        )

        found = [one for read in list(self.reads) if (one := read()) is not None]
        makes: Any
        for makes, rows in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, text, more, attribute in rows:
                family = makes(name, text, labels=(*LABELS, *more))
                for one in found:
                    _add(family, one, getattr(one, attribute))
                yield family
        took = SummaryMetricFamily(
            "zkconsumer_rebalance_seconds", "How many rebalances, and how long.", labels=LABELS
        )
        phase = GaugeMetricFamily(
            "zkconsumer_phase", "1 for where the member stands.", labels=(*LABELS, "phase")
        )
        for one in found:
            took.add_metric(_labels(one), count_value=one.rebalances, sum_value=one.rebalance_s)
            phase.add_metric([*_labels(one), one.phase], 1)
        yield from (took, phase)


def _labels(one: Figures) -> list[str]:
    return [one.client_id, one.group_id, one.consumer_id]


def _add(family: Any, one: Figures, value: Any) -> None:
    if not isinstance(value, dict):
        family.add_metric(_labels(one), float(value))
        return
    for key, number in value.items():
        more = [key] if isinstance(key, str) else list(key)
        family.add_metric([*_labels(one), *more], float(number))


@dataclass
class _Server:
    """A port of this process, and how many connectors use it."""

    registry: Any
    server: Any
    thread: Any
    users: int = 0


@dataclass
class Exports:
    """Where one connector's figures are exported; `end` takes them back."""

    read: Read
    _registries: list[Any] = field(default_factory=list)
    _server: tuple[str, int] | None = None

    def register(self, registry: CollectorRegistry) -> None:
        """Add them to a registry of the user's.

        Raises ConfigError where prometheus-client is not installed.
        """
        _library()
        with _LOCK:
            collector = _COLLECTORS.get(registry)
            if collector is None:
                collector = _COLLECTORS[registry] = Collector()
                registry.register(collector)
            collector.reads.append(self.read)
        self._registries.append(registry)

    def serve(self, host: str, port: int) -> None:
        """Answer scrapes there.

        Raises ConfigError where prometheus-client is not installed, or the port cannot be had.
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
                        where="metrics.port", remedy="choose another port or metrics.host",
                    ) from error
                found = _SERVERS[host, port] = _Server(registry, server, thread)
            found.users += 1
        self._server = (host, port)
        self.register(found.registry)

    def end(self) -> None:
        """Nothing of this connector is exported any more; the last one of a port closes it."""
        registries, self._registries = self._registries, []
        with _LOCK:
            for registry in registries:
                collector = _COLLECTORS[registry]
                collector.reads.remove(self.read)
                if not collector.reads:
                    del _COLLECTORS[registry]
                    with suppress(KeyError):  # its owner has emptied it
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
_COLLECTORS: WeakKeyDictionary[Any, Collector] = WeakKeyDictionary()
_SERVERS: dict[tuple[str, int], _Server] = {}


def _library() -> Any:
    try:
        import prometheus_client  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "prometheus-client is not installed", where="metrics.port",
            remedy="pip install 'zkconsumer[metrics]'",
        ) from error
    return prometheus_client
