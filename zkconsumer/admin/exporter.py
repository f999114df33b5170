"""Serves the lag of groups over HTTP: metrics for Prometheus, and a part of Burrow's API.

The metrics have zkconsumer's names, or those of another exporter (`MetricNames`), so that the
dashboards and alerts for that exporter still work:

- kafka_exporter 1.10 (danielqsj/kafka_exporter);
- Burrow (linkedin/Burrow, core/internal/httpserver/prometheus.go).

The paths below `/v3/kafka` answer as Burrow's HTTP API (core/internal/httpserver/kafka.go). Burrow
has no unknown values. Here an unknown number is null, its partition has the status ERR, and a sum
that contains it is null, too.

A value that could not be read has no sample.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from zkconsumer.admin.lag import (
    NO_SUCH_PARTITION,
    NO_SUCH_TOPIC,
    WINDOW,
    GroupLag,
    PartitionLag,
    SeenCommit,
    Status,
)
from zkconsumer.errors import ConfigError, require
from zkconsumer.protocol.group_health import GroupHealth
from zkconsumer.protocol.model import JsonObject, TopicPartition

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


_GONE: Final = (NO_SUCH_PARTITION, NO_SUCH_TOPIC)


# ---- what is served ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServedGroup:
    """A group as the last reading has found it.

    Attributes:
        health: who uses the group, judged by the readings so far.
        commits: partition -> its last commits, the oldest first.
        statuses: partition -> its status; None if there are too few commits.
    """

    lag: GroupLag
    health: GroupHealth
    commits: Mapping[TopicPartition, Sequence[SeenCommit]]
    statuses: Mapping[TopicPartition, Status | None]

    @property
    def name(self) -> str:
        """The group's name."""
        return self.lag.name

    @property
    def existing(self) -> list[PartitionLag]:
        """The group's partitions, without those of which only an offset or an owner is left."""
        return [one for one in self.lag.partitions if one.log not in _GONE]

    @property
    def partitions(self) -> list[PartitionLag]:
        """The existing partitions for which the group has an offset, or may have one."""
        return [one for one in self.existing if one.committed is not None]

    @property
    def total(self) -> int | None:
        """The sum of the lags of all partitions; None if one of them is unknown."""
        is_whole = not self.lag.image.has_unknown_partitions
        return _sum(map(lag_of, self.partitions)) if is_whole else None

    @property
    def registered(self) -> int | None:
        """The number of registered members; None if this client may not read a registration."""
        return None if self.lag.image.has_unknown_members else len(self.health.live)

    @property
    def unregistered(self) -> int | None:
        """The number of clients without a registration, of which all that write count as one; None
        if this client may not read a znode, because that znode may explain the write."""
        if self.lag.image.unreadable:
            return None
        return len({*self.health.unregistered_owners.values()}) + self.health.is_written

    @property
    def unknown(self) -> int | None:
        """The number of partitions whose lag is unknown; None if none is known to be one, but this
        client does not see all partitions."""
        count = sum(one.is_unknown for one in self.lag.partitions)
        return None if not count and self.lag.image.has_unknown_partitions else count


@dataclass
class ServedCluster:
    """What is served about one cluster.

    Attributes:
        servers: the addresses of its ZooKeeper servers.
        groups: the groups of the last successful reading.
        read_s: the time of this reading, in seconds since 1970; None before the first.
        fault: why the last reading has failed, or "".
        failures: the number of readings that have failed.
    """

    name: str
    servers: Sequence[str] = ()
    groups: Mapping[str, ServedGroup] = field(default_factory=dict)
    read_s: float | None = None
    fault: str = ""
    failures: int = 0

    @property
    def partitions(self) -> dict[TopicPartition, PartitionLag]:
        """The existing partitions of all groups, sorted; each with the answer for one of its
        groups."""
        found = {one.tp: one for group in self.groups.values() for one in group.existing}
        return dict(sorted(found.items()))

    @property
    def topic_sizes(self) -> dict[str, int]:
        """Topic -> the number of its partitions, for the topics of all groups, sorted; topics whose
        znode cannot be read are left out."""
        found: dict[str, int] = {}
        for group in self.groups.values():
            found |= group.lag.topic_sizes
        return dict(sorted(found.items()))

    def read(self, groups: Iterable[ServedGroup]) -> None:
        """Replace the groups by those of a successful reading."""
        self.groups = {one.name: one for one in groups}
        self.read_s, self.fault = time.time(), ""

    def failed(self, why: str) -> None:
        """Count a reading that has failed; the last figures are still served."""
        self.fault = why
        self.failures += 1


def lag_of(one: PartitionLag) -> int | None:
    """Return the messages behind, without transaction markers; None if the lag is unknown, or the
    offset is beyond the end of the log."""
    lag = one.messages
    return lag if isinstance(lag, int) and lag >= 0 else None


# ---- metrics -------------------------------------------------------------------------------------


class MetricNames(Enum):
    """The program whose names the metrics have."""

    ZKCONSUMER = "zkconsumer"
    KAFKA_EXPORTER = "kafka_exporter"
    BURROW = "burrow"


class Family(NamedTuple):
    """A metric: its name, its meaning and its labels."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """A value of a metric, with the values of the metric's labels; None if it is unknown."""

    name: str
    labels: tuple[str, ...]
    value: float | None


PARTITION = ("group", "topic", "partition")

READINGS = (
    Family(
        "zkconsumer_group_read_success",
        "1 if the last reading of ZooKeeper and the brokers has succeeded, else 0.",
    ),
    Family(
        "zkconsumer_group_read_failures",
        "Readings that have failed since the exporter started.",
    ),
    Family(
        "zkconsumer_group_read_timestamp_seconds",
        "Time at which ZooKeeper and the brokers were read.",
    ),
)
"""Metrics on the readings, which are served with all names."""

OWN = (
    Family(
        "zkconsumer_group_lag",
        "Messages between the committed offset and the log's end; transaction markers at the end of"
        " the log do not count.",
        PARTITION,
    ),
    Family("zkconsumer_group_offset", "The committed offset.", PARTITION),
    Family("zkconsumer_group_log_end", "The offset after the log's last.", PARTITION),
    Family(
        "zkconsumer_group_owned",
        "1 if the partition has an owner; 0 if it has none, although a member subscribes to it.",
        PARTITION,
    ),
    Family(
        "zkconsumer_group_status",
        "1 for the state of the partition that follows from its commits.",
        (*PARTITION, "status"),
    ),
    Family(
        "zkconsumer_group_members",
        "Clients that use the group: registered members, and clients that are not registered.",
        ("group", "kind"),
    ),
    Family(
        "zkconsumer_group_unknown_partitions",
        "Partitions whose lag is unknown: an offset or a log end cannot be read, or the offset is"
        " beyond the end of the log.",
        ("group",),
    ),
    Family(
        "zkconsumer_group_unreadable_znodes",
        "Znodes of the group that the exporter may not read.",
        ("group",),
    ),
)

_OF_TOPIC = ("topic", "partition")
_OF_CONSUMER = ("consumergroup", "topic", "partition")
KAFKA_EXPORTER = (
    Family("kafka_topic_partitions", "Number of partitions for this Topic", ("topic",)),
    Family(
        "kafka_topic_partition_current_offset",
        "Current Offset of a Broker at Topic/Partition",
        _OF_TOPIC,
    ),
    Family(
        "kafka_topic_partition_oldest_offset",
        "Oldest Offset of a Broker at Topic/Partition",
        _OF_TOPIC,
    ),
    Family(
        "kafka_consumergroup_current_offset",
        "Current Offset of a ConsumerGroup at Topic/Partition",
        _OF_CONSUMER,
    ),
    Family(
        "kafka_consumergroup_current_offset_sum",
        "Current Offset of a ConsumerGroup at Topic for all partitions",
        _OF_CONSUMER[:2],
    ),
    Family(
        "kafka_consumergroup_lag",
        "Current Approximate Lag of a ConsumerGroup at Topic/Partition",
        _OF_CONSUMER,
    ),
    Family(
        "kafka_consumergroup_lag_sum",
        "Current Approximate Lag of a ConsumerGroup at Topic for all partitions",
        _OF_CONSUMER[:2],
    ),
    Family(
        "kafka_consumergroupzookeeper_lag_zookeeper",
        "Current Approximate Lag(zookeeper) of a ConsumerGroup at Topic/Partition",
        _OF_CONSUMER,
    ),
    Family(
        "kafka_consumergroup_members", "Amount of members in a consumer group", _OF_CONSUMER[:1]
    ),
)

_OF_GROUP = ("consumer_group",)
_OF_GROUP_PARTITION = ("consumer_group", "topic", "partition")
BURROW = (
    Family(
        "burrow_kafka_consumer_lag_total",
        "The sum of all partition current lag values for the group",
        _OF_GROUP,
    ),
    Family(
        "burrow_kafka_consumer_status",
        "The status of the consumer group, from the highest status of its partitions: 1 OK, 2 WARN,"
        " 3 ERR",
        _OF_GROUP,
    ),
    Family(
        "burrow_kafka_topic_partition_status",
        "The status of the partition: 1 OK, 2 WARN, 3 ERR, 4 STOP, 5 STALL, 6 REWIND",
        _OF_GROUP_PARTITION,
    ),
    Family(
        "burrow_kafka_consumer_current_offset",
        "Latest offset that was read for this partition",
        _OF_GROUP_PARTITION,
    ),
    Family(
        "burrow_kafka_consumer_partition_lag",
        "Number of messages the consumer group is behind by for a partition",
        _OF_GROUP_PARTITION,
    ),
    Family(
        "burrow_kafka_topic_partition_offset",
        "The end of the log of this partition",
        _OF_TOPIC,
    ),
)

FAMILIES: Final[Mapping[MetricNames, tuple[Family, ...]]] = {
    MetricNames.ZKCONSUMER: OWN,
    MetricNames.KAFKA_EXPORTER: KAFKA_EXPORTER,
    MetricNames.BURROW: BURROW,
}

REGISTERED, UNREGISTERED = "registered", "unregistered"
"""The values of the label `kind`."""


def _readings(cluster: ServedCluster) -> Iterator[Sample]:
    is_read = cluster.read_s is not None and not cluster.fault
    yield Sample("zkconsumer_group_read_success", (), int(is_read))
    yield Sample("zkconsumer_group_read_failures", (), cluster.failures)
    yield Sample("zkconsumer_group_read_timestamp_seconds", (), cluster.read_s)


def _own(cluster: ServedCluster) -> Iterator[Sample]:
    for group in cluster.groups.values():
        name = group.name
        yield Sample("zkconsumer_group_members", (name, REGISTERED), group.registered)
        yield Sample("zkconsumer_group_members", (name, UNREGISTERED), group.unregistered)
        yield Sample("zkconsumer_group_unknown_partitions", (name,), group.unknown)
        yield Sample("zkconsumer_group_unreadable_znodes", (name,), len(group.lag.unreadable))
        subscribed = group.lag.subscribed
        for one in group.lag.partitions:
            labels = (name, one.topic, str(one.partition))
            yield Sample("zkconsumer_group_lag", labels, lag_of(one))
            yield Sample("zkconsumer_group_offset", labels, _number(one.committed))
            yield Sample("zkconsumer_group_log_end", labels, _log_end(one))
            if one.is_owned or (one.tp in subscribed and not one.is_owner_unknown):
                yield Sample("zkconsumer_group_owned", labels, int(one.is_owned))
            if (status := group.statuses.get(one.tp)) is not None:
                yield Sample("zkconsumer_group_status", (*labels, status.value), 1)


def _kafka_exporter(cluster: ServedCluster) -> Iterator[Sample]:
    for tp, one in cluster.partitions.items():
        labels = (tp.topic, str(tp.partition))
        start = None if isinstance(one.log, str) else one.log.start
        yield Sample("kafka_topic_partition_current_offset", labels, _log_end(one))
        yield Sample("kafka_topic_partition_oldest_offset", labels, start)
    for topic, size in cluster.topic_sizes.items():
        yield Sample("kafka_topic_partitions", (topic,), size)
    for group in cluster.groups.values():
        yield Sample("kafka_consumergroup_members", (group.name,), group.registered)
        for topic, partitions in groupby(group.existing, lambda one: one.topic):
            of_topic = list(partitions)
            if any(one.committed is not None for one in of_topic):
                yield from _kafka_exporter_topic(group.name, topic, of_topic)


def _kafka_exporter_topic(
    group: str, topic: str, partitions: Sequence[PartitionLag]
) -> Iterator[Sample]:
    """Yield the metrics of the partitions of a topic of which the group has an offset.

    As in kafka_exporter, transaction markers count as messages, an offset beyond the end of the log
    has a negative lag, and a partition without an offset has the offset and the lag -1.
    """
    lags: list[int | None] = []
    for one in partitions:
        labels = (group, topic, str(one.partition))
        has_none = one.committed is None
        lag = -1 if has_none else _number(one.lag)
        offset = -1 if has_none else _number(one.committed)
        yield Sample("kafka_consumergroup_current_offset", labels, offset)
        yield Sample("kafka_consumergroup_lag", labels, lag)
        end, in_zookeeper = _log_end(one), one.in_zookeeper
        if isinstance(in_zookeeper, int) and end is not None:
            name = "kafka_consumergroupzookeeper_lag_zookeeper"
            yield Sample(name, labels, end - in_zookeeper)
        if not has_none:
            # A negative lag would hide the lag of other partitions in the sum.
            lags.append(None if lag is None or lag < 0 else lag)
    offsets = _sum(_number(one.committed) for one in partitions if one.committed is not None)
    yield Sample("kafka_consumergroup_current_offset_sum", (group, topic), offsets)
    yield Sample("kafka_consumergroup_lag_sum", (group, topic), _sum(lags))


def _burrow(cluster: ServedCluster) -> Iterator[Sample]:
    for group in cluster.groups.values():
        yield Sample("burrow_kafka_consumer_lag_total", (group.name,), group.total)
        status = _group_status(group)
        yield Sample("burrow_kafka_consumer_status", (group.name,), STATUSES.index(status))
        for one in group.partitions:
            labels = (group.name, one.topic, str(one.partition))
            number = STATUSES.index(_partition_status(group, one))
            yield Sample("burrow_kafka_topic_partition_status", labels, number)
            yield Sample("burrow_kafka_consumer_current_offset", labels, _number(one.committed))
            yield Sample("burrow_kafka_consumer_partition_lag", labels, lag_of(one))
    for tp, one in cluster.partitions.items():
        of_topic = (tp.topic, str(tp.partition))
        yield Sample("burrow_kafka_topic_partition_offset", of_topic, _log_end(one))


_SAMPLES: Final[Mapping[MetricNames, Callable[[ServedCluster], Iterator[Sample]]]] = {
    MetricNames.ZKCONSUMER: _own,
    MetricNames.KAFKA_EXPORTER: _kafka_exporter,
    MetricNames.BURROW: _burrow,
}


def _number(value: int | str | None) -> int | None:
    return value if isinstance(value, int) else None


def _log_end(one: PartitionLag) -> int | None:
    return None if isinstance(one.log, str) else one.log.end


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum; None if one of the values is unknown."""
    total = 0
    for one in values:
        if one is None:
            return None
        total += one
    return total


class Metrics:
    """The metrics of clusters, for a registry of prometheus-client.

    Burrow's metrics always have the label `cluster`. The others have it if `has_cluster` is True.
    """

    def __init__(
        self, clusters: Sequence[ServedCluster], names: MetricNames, *, has_cluster: bool
    ) -> None:
        self._clusters, self._names = clusters, names
        self._has_cluster = has_cluster or names is MetricNames.BURROW

    def collect(self) -> Iterator[object]:
        """Yield the metrics; prometheus-client calls this on its own thread."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - the extra `metrics`

        more = ("cluster",) if self._has_cluster else ()
        families = {
            one.name: GaugeMetricFamily(one.name, one.meaning, labels=(*more, *one.labels))
            for one in (*FAMILIES[self._names], *READINGS)
        }
        for cluster in self._clusters:
            mine = (cluster.name,) if self._has_cluster else ()
            for samples in (_SAMPLES[self._names](cluster), _readings(cluster)):
                for one in samples:
                    if one.value is not None:
                        families[one.name].add_metric((*mine, *one.labels), one.value)
        yield from families.values()


# ---- Burrow's HTTP API ---------------------------------------------------------------------------


STATUSES: Final = ("NOTFOUND", "OK", "WARN", "ERR", "STOP", "STALL", "REWIND")
"""Burrow's statuses; the metrics have their numbers (core/protocol/evaluator.go)."""

_OF_STATUS: Final[Mapping[Status | None, str]] = {
    None: "OK",  # too few commits: `complete` is below 1
    Status.OK: "OK",
    Status.WARNING: "WARN",
    Status.STALLED: "STALL",
    Status.STOPPED: "STOP",
    Status.REWOUND: "REWIND",
}


def _partition_status(group: ServedGroup, one: PartitionLag) -> str:
    return "ERR" if one.is_unknown else _OF_STATUS[group.statuses.get(one.tp)]


def _group_status(group: ServedGroup) -> str:
    """Return OK, WARN, or ERR for every status that is worse, and if partitions may be hidden."""
    if group.lag.image.has_unknown_partitions:
        return "ERR"
    found = [STATUSES.index(_partition_status(group, one)) for one in group.partitions]
    return STATUSES[min(max(found, default=1), STATUSES.index("ERR"))]


class BurrowApi:
    """Answers to the GET requests of Burrow's HTTP API that read clusters, groups and topics.

    `window` is the number of commits of a complete partition.
    """

    def __init__(self, clusters: Sequence[ServedCluster], *, window: int = WINDOW) -> None:
        self._clusters = {one.name: one for one in clusters}
        self._window = window
        self._host = socket.gethostname()

    def answer(self, path: str) -> tuple[int, JsonObject]:
        """Return the HTTP status and the JSON object for a path, such as
        `/v3/kafka/prod/consumer/billing/lag`."""
        parts = path.strip("/").split("/")
        if parts[:2] != ["v3", "kafka"]:
            return self._error(404, "invalid request type", path)
        if len(parts) == 2:
            return self._found("cluster list returned", path, clusters=list(self._clusters))
        # A name may contain slashes: without a context it is ZooKeeper's address with the chroot.
        name = "/".join(parts[2:])
        named = [one for one in self._clusters if f"{name}/".startswith(f"{one}/")]
        if not named:
            return self._error(404, "cluster not found", path)
        cluster = self._clusters[max(named, key=len)]
        below = name[len(cluster.name) + 1 :].split("/") if name != cluster.name else []
        if cluster.read_s is None and below:
            why = cluster.fault or "the first reading has not ended"
            return self._error(503, f"the cluster has not been read yet: {why}", path)
        return self._of_cluster(cluster, below, path)

    def _of_cluster(
        self, cluster: ServedCluster, parts: list[str], path: str
    ) -> tuple[int, JsonObject]:
        match parts:
            case []:
                module = {"class-name": "zookeeper", "servers": list(cluster.servers)}
                return self._found("cluster module detail returned", path, module=module)
            case ["consumer"]:
                found = list(cluster.groups)
                return self._found("consumer list returned", path, consumers=found)
            case ["consumer", name, *rest] if rest in ([], ["status"], ["lag"]):
                return self._of_group(cluster, name, rest, path)
            case ["topic"]:
                topics = list(dict.fromkeys(tp.topic for tp in cluster.partitions))
                return self._found("topic list returned", path, topics=topics)
            case ["topic", name, *rest] if rest in ([], ["consumers"]):
                return self._of_topic(cluster, name, rest, path)
            case _:
                return self._error(404, "invalid request type", path)

    def _of_topic(
        self, cluster: ServedCluster, name: str, rest: list[str], path: str
    ) -> tuple[int, JsonObject]:
        ends = {tp.partition: one for tp, one in cluster.partitions.items() if tp.topic == name}
        if not ends:
            return self._error(404, "cluster or topic not found", path)
        if rest:
            consumers = [
                group.name
                for group in cluster.groups.values()
                if any(one.topic == name for one in group.partitions)
            ]
            return self._found("consumers of topic returned", path, consumers=consumers)
        size = cluster.topic_sizes.get(name)
        offsets = None
        if size is not None:
            offsets = [_log_end(ends[n]) if n in ends else None for n in range(size)]
        return self._found("topic offsets returned", path, offsets=offsets)

    def _of_group(
        self, cluster: ServedCluster, name: str, rest: list[str], path: str
    ) -> tuple[int, JsonObject]:
        group = cluster.groups.get(name)
        if not rest:
            if group is None:
                return self._error(404, "cluster or consumer not found", path)
            return self._found("consumer detail returned", path, topics=self._topics(group))
        status: JsonObject = {"cluster": cluster.name, "group": name}
        if group is None:
            nothing = {"complete": 0, "partitions": [], "partition_count": 0, "totallag": 0}
            status |= {"status": "NOTFOUND", **nothing, "maxlag": None}
            return 404, self._found("consumer status returned", path, status=status)[1]
        partitions = [self._partition(group, one) for one in group.partitions]
        known = [one for one in partitions if one["current_lag"] is not None]
        complete = sum(one["complete"] == 1 for one in partitions)
        bad = [one for one in partitions if one["status"] != "OK"]
        status |= {
            "status": _group_status(group),
            "complete": complete / len(partitions) if partitions else 0,
            "partitions": partitions if rest == ["lag"] else bad,
            "partition_count": len(partitions),
            "maxlag": max(known, key=lambda one: one["current_lag"], default=None),
            "totallag": group.total,
        }
        return self._found("consumer status returned", path, status=status)

    def _partition(self, group: ServedGroup, one: PartitionLag) -> JsonObject:
        commits = group.commits.get(one.tp, ())
        return {
            "topic": one.topic,
            "partition": one.partition,
            "owner": one.owner or "",
            "client_id": "",
            "status": _partition_status(group, one),
            "start": _offset(commits[0]) if commits else None,
            "end": _offset(commits[-1]) if commits else None,
            "current_lag": lag_of(one),
            "complete": min(1, len(commits) / self._window),
        }

    def _topics(self, group: ServedGroup) -> JsonObject:
        """Return topic -> its partitions in a list; Burrow fills missing commits with null.

        As in Burrow, the length of the list is the number of the topic's partitions: an offset
        znode may have any number as its name. If that number is unknown, there is no list.
        """
        sizes = group.lag.topic_sizes
        found: JsonObject = {}
        for topic in dict.fromkeys(one.topic for one in group.partitions):
            size = sizes.get(topic)
            found[topic] = None if size is None else [self._commits(None, ())] * size
        for one in group.partitions:
            if one.partition < sizes.get(one.topic, 0):
                commits = group.commits.get(one.tp, ())
                found[one.topic][one.partition] = self._commits(one, commits)
        return found

    def _commits(self, one: PartitionLag | None, commits: Sequence[SeenCommit]) -> JsonObject:
        missing = [None] * (self._window - len(commits)) if one else []
        return {
            "offsets": [*missing, *map(_offset, commits)],
            "owner": one.owner or "" if one else "",
            "client_id": "",
            "current-lag": lag_of(one) if one else None,
        }

    def _found(self, message: str, path: str, **more: object) -> tuple[int, JsonObject]:
        return 200, {"error": False, "message": message, **more, "request": self._request(path)}

    def _error(self, code: int, message: str, path: str) -> tuple[int, JsonObject]:
        return code, {"error": True, "message": message, "request": self._request(path)}

    def _request(self, path: str) -> JsonObject:
        return {"url": path, "host": self._host}


def _offset(commit: SeenCommit) -> JsonObject:
    """Return a commit as Burrow shows it. The time at which it was first read is not kept."""
    at_ms = round(commit.at_s * 1000)
    return {"offset": commit.offset, "timestamp": at_ms, "observedAt": None, "lag": commit.lag}


# ---- the server ----------------------------------------------------------------------------------


def _client() -> ModuleType:
    require("prometheus_client", extra="metrics", where="the lag exporter")
    import prometheus_client  # noqa: PLC0415 - the extra `metrics`

    return prometheus_client


def exposition(groups: Iterable[ServedGroup], *, names: MetricNames, cluster: str) -> str:
    """Return the metrics of groups in the text format of Prometheus.

    Raises ConfigError if prometheus-client is not installed.
    """
    client = _client()
    served = ServedCluster(cluster, groups={one.name: one for one in groups}, read_s=time.time())
    registry = client.CollectorRegistry()
    registry.register(Metrics([served], names, has_cluster=False))
    return str(client.generate_latest(registry).decode())


class LagExporter:
    """HTTP server with the groups of the last readings: `/metrics`, and Burrow's API below `/v3`.

    The server runs during its `with` block. The start of the block raises ConfigError if
    prometheus-client is not installed, or if the address cannot be used. The threads that read the
    clusters call `ServedCluster.read` and `failed`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        clusters: Sequence[ServedCluster],
        *,
        names: MetricNames = MetricNames.ZKCONSUMER,
        window: int = WINDOW,
        has_cluster: bool = False,
    ) -> None:
        self._host, self._port = host, port
        self._metrics = Metrics(clusters, names, has_cluster=has_cluster)
        self._api = BurrowApi(clusters, window=window)
        self._server: WSGIServer

    def __enter__(self) -> Self:
        prometheus_client = _client()
        registry = prometheus_client.CollectorRegistry()
        registry.register(self._metrics)
        try:
            self._server, _ = prometheus_client.start_http_server(self._port, self._host, registry)
        except OSError as error:
            raise ConfigError(
                f"the address cannot be used: {error.strerror}",
                where=f"{self._host}:{self._port}",
                remedy="choose another port or address",
            ) from error
        metrics = self._server.get_app()
        assert metrics is not None
        self._server.set_app(lambda request, start: self._respond(metrics, request, start))
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _respond(
        self, metrics: WSGIApplication, request: WSGIEnvironment, start: StartResponse
    ) -> Iterable[bytes]:
        """Answer a request of WSGI: Burrow's paths here, and all others with the metrics."""
        path = request["PATH_INFO"].encode("latin-1").decode(errors="replace")  # as WSGI says
        if path == "/burrow/admin":
            start("200 OK", [("Content-Type", "text/plain")])
            return [b"GOOD"]
        if not path.startswith("/v3"):
            answer: Iterable[bytes] = metrics(request, start)
            return answer
        if request["REQUEST_METHOD"] != "GET":
            start("405 Method Not Allowed", [("Allow", "GET")])
            return [b""]
        code, document = self._api.answer(path)
        reason = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}[code]
        start(f"{code} {reason}", [("Content-Type", "application/json")])
        return [json.dumps(document).encode()]
