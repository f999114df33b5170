"""Groups' lag for Prometheus, served by its own library.

What is not known has no sample: it is never 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from zkconsumer.admin.status import Status
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    from zkconsumer.admin.lag import GroupLag, PartitionLag

PARTITION = ("group", "topic", "partition")

GAUGES = (
    ("zkconsumer_group_lag", "Messages between the committed offset and the log's end.", PARTITION),
    ("zkconsumer_group_offset", "The committed offset.", PARTITION),
    ("zkconsumer_group_log_end", "The offset after the log's last.", PARTITION),
    ("zkconsumer_group_owned", "1 where the partition has an owner, else 0.", PARTITION),
    (
        "zkconsumer_group_status", "1 for the state that the partition is in, by its commits.",
        (*PARTITION, "status"),
    ),
    ("zkconsumer_group_members", "Registered members.", ("group",)),
    ("zkconsumer_group_read_timestamp_seconds", "When ZooKeeper and brokers were asked.", ()),
)  # fmt: skip

Samples = dict[str, list[tuple[Sequence[str], float]]]


def samples(
    groups: Iterable[GroupLag],
    status_of: Callable[[str, PartitionLag], Status | None],
    *,
    at_s: float,
) -> Samples:
    """The figures of these groups: metric -> (values of its labels, value)."""
    found: Samples = {name: [] for name, _, _ in GAUGES}
    found["zkconsumer_group_read_timestamp_seconds"].append(((), at_s))
    for group in groups:
        found["zkconsumer_group_members"].append(((group.name,), len(group.image.registrations)))
        for one in group.partitions:
            labels = (group.name, one.topic, str(one.partition))
            figures = {
                "lag": one.lag,
                "offset": one.committed,
                "log_end": one.log if isinstance(one.log, str) else one.log.end,
                "owned": int(one.owner is not None),
            }
            for name, value in figures.items():
                if isinstance(value, int):
                    found[f"zkconsumer_group_{name}"].append((labels, value))
            status = status_of(group.name, one)
            if status is not None:
                found["zkconsumer_group_status"].append(((*labels, status.value), 1))
    return found


class LagExporter:
    """Answers Prometheus with what `update` was given last, for as long as it is entered.

    Raises ConfigError where prometheus-client is not installed, or the port cannot be had.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._samples: Samples = {}
        self._server: Any = None

    def __enter__(self) -> Self:
        try:
            import prometheus_client  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "prometheus-client is not installed", where="--prometheus",
                remedy="pip install 'zkconsumer[metrics]'",
            ) from error
        registry = prometheus_client.CollectorRegistry()
        registry.register(self)
        try:
            self._server, _ = prometheus_client.start_http_server(
                self._port, self._host, registry
            )
        except OSError as error:
            raise ConfigError(
                f"nothing can be served at {self._host}:{self._port}: {error.strerror}",
                where="--prometheus", remedy="choose another port or address",
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def update(
        self,
        groups: Iterable[GroupLag],
        status_of: Callable[[str, PartitionLag], Status | None],
    ) -> None:
        """Answer with these from now on."""
        self._samples = samples(groups, status_of, at_s=time.time())

    def collect(self) -> Iterator[Any]:
        """What prometheus-client asks for; on its thread."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

        now = self._samples
        for name, meaning, labels in GAUGES:
            family = GaugeMetricFamily(name, meaning, labels=labels)
            for values, value in now.get(name, ()):
                family.add_metric(values, value)
            yield family
