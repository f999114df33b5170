"""`zkconsumer lag --prometheus`: serve the lag of one or several clusters over HTTP.

Each cluster has a thread, which reads its groups every `--interval` seconds. A cluster whose
ZooKeeper does not answer does not stop the others: its last figures are still served, and a metric
says that the last reading has failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, Protocol

import typer

from zkconsumer.cli import completion
from zkconsumer.cli.output import say
from zkconsumer.cli.urls import REACHABLE, listens_on_all, urls_of
from zkconsumer.errors import ConfigError, ZkConsumerError
from zkconsumer.frozen import dataclass

if TYPE_CHECKING:
    from zkconsumer.admin.exporter import MetricNames, ServedCluster, ServedGroup
    from zkconsumer.admin.lag import GroupLag
    from zkconsumer.cli.options import Connection
    from zkconsumer.config.settings import ConnectionConfig
    from zkconsumer.zk.client import ZooKeeperClient

FIRST_S: Final = 1.0
"""Seconds between the first two readings. One reading does not tell a stopped member from a client
that commits without a registration, so the first figures are served after two."""

STOP_S: Final = 5.0
"""Seconds that the end of the command waits for the end of a reading."""


@dataclass(frozen=True, kw_only=True)
class Exporting:
    """Values of the options that say where and how the lag is served."""

    prometheus: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            metavar="PORT",
            help="Serve /metrics to Prometheus, and Burrow's API below /v3/kafka, on this port"
            " until Ctrl-C; --interval sets how often the groups are read.",
        ),
    ] = None
    prometheus_host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Address to serve on; 0.0.0.0 serves other machines too."
        ),
    ] = "127.0.0.1"
    metric_names: Annotated[
        str,
        typer.Option(
            metavar="PROGRAM",
            help="The program whose metric names are used: zkconsumer, kafka_exporter or burrow.",
        ),
    ] = "zkconsumer"
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=H:P[/CHROOT]]",
            help="With --prometheus: serve the cluster of this context or address; repeatable.",
            autocompletion=completion.contexts,
        ),
    ] = None

    @property
    def names(self) -> MetricNames:
        """The names of the metrics. Raises ConfigError."""
        from zkconsumer.admin.exporter import MetricNames
        from zkconsumer.protocol.suggestions import did_you_mean

        every = [one.value for one in MetricNames]
        if self.metric_names not in every:
            use = f"use {', '.join(every)}"
            raise ConfigError(
                f"no metric names of {self.metric_names!r} are known",
                where="--metric-names",
                remedy=did_you_mean(self.metric_names, every, otherwise=use),
            )
        return MetricNames(self.metric_names)


class GroupReader(Protocol):
    """Reads the groups of one cluster repeatedly (`cli.lag.Reader`)."""

    missing: list[str]  # the groups that were named, and that the last reading has not found

    def unread(self, groups: Sequence[GroupLag]) -> Sequence[str]: ...  # notes on forbidden znodes
    def use(self, connection: ZooKeeperClient) -> None: ...
    def observe(self) -> list[GroupLag]: ...
    def served(self, groups: Sequence[GroupLag]) -> Sequence[ServedGroup]: ...


@dataclass(frozen=True)
class Cluster:
    """A cluster to serve: its name, and the settings of the connection to its ZooKeeper."""

    name: str
    settings: ConnectionConfig


def clusters_of(
    connection: Connection, given: Sequence[str] | None, default: Callable[[], ConnectionConfig]
) -> list[Cluster]:
    """Return the clusters of --cluster; without one, the cluster whose settings `default` returns.

    A cluster takes ZooKeeper's address and the properties file from the context of its name, even
    if the environment names others, or from its own text, `NAME=H:P/CHROOT`. All other settings are
    those of the command. Raises ConfigError.
    """
    if not given:
        settings = default()
        return [Cluster(cluster_name(connection, settings), settings)]
    found = [_cluster(connection, text) for text in given]
    names = [one.name for one in found]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"cluster {repeated[0]} is named twice", where="--cluster")
    return found


def cluster_name(connection: Connection, settings: ConnectionConfig) -> str:
    """Return the name of the context that gives ZooKeeper's address, or else the address."""
    from zkconsumer.cli.sources import SettingSource

    found, context = connection.sources.get("zookeeper.connect"), connection.sources.context
    if found and context and found.source in (SettingSource.CONTEXT, SettingSource.CONFIG_CONTEXT):
        return context
    return settings.zookeeper_connect


def _cluster(connection: Connection, text: str) -> Cluster:

    from zkconsumer.cli.sources import load_contexts

    name, equals, address = text.partition("=")
    if equals:
        own = replace(connection, zookeeper=address)
    else:
        context = load_contexts().named(name)
        own = replace(
            connection,
            context=name,
            zookeeper=context.zookeeper,
            config=Path(context.config) if context.config else connection.config,
        )
    return Cluster(name, own.connection_settings())


def serve(
    exporting: Exporting,
    clusters: Sequence[Cluster],
    reader: Callable[[ConnectionConfig], GroupReader],
    *,
    interval_s: float,
    window: int,
) -> NoReturn:
    """Serve the lag of clusters until KeyboardInterrupt; `reader` makes the reader of a cluster.

    Raises ConfigError, for example if the port is in use or a cluster's settings are wrong.
    """
    from zkconsumer.admin.exporter import LagExporter, ServedCluster

    served = [
        ServedCluster(one.name, tuple(one.settings.zookeeper_hosts.split(","))) for one in clusters
    ]
    exporter = LagExporter(
        exporting.prometheus_host,
        exporting.prometheus or 0,
        served,
        names=exporting.names,
        window=window,
        has_cluster=bool(exporting.cluster),
    )
    stopped = threading.Event()
    ended: SimpleQueue[BaseException] = SimpleQueue()
    followers = [
        _Follower(one, to, reader(one.settings), stopped, interval_s)
        for one, to in zip(clusters, served, strict=True)
    ]
    threads = [
        threading.Thread(target=one.run, args=(ended.put,), daemon=True) for one in followers
    ]
    with exporter:
        urls = urls_of(exporting.prometheus_host, exporting.prometheus or 0, "/metrics")
        say(f"serving {' and '.join(urls)}")
        if listens_on_all(exporting.prometheus_host):
            say(REACHABLE)
        try:
            for one in threads:
                one.start()
            raise ended.get()
        finally:
            stopped.set()
            for one in threads:
                one.join(STOP_S)


class _Follower:
    """Reads one cluster repeatedly, on a thread of its own."""

    def __init__(
        self,
        cluster: Cluster,
        served: ServedCluster,
        reader: GroupReader,
        stopped: threading.Event,
        interval_s: float,
    ) -> None:
        self._cluster, self._served, self._reader = cluster, served, reader
        self._stopped, self._interval_s = stopped, interval_s
        self._said: set[str] = set()

    def run(self, on_end: Callable[[BaseException], None]) -> None:
        """Read until the end; report an error that no later reading can solve."""
        while not self._stopped.is_set():
            try:
                self._follow()
            except ConfigError as error:
                on_end(error)
                return
            except (ZkConsumerError, OSError) as error:
                # The exporter keeps the last figures, with their timestamp, and counts the error.
                self._say_once(str(error))
                self._served.failed(str(error))
            except BaseException as error:  # noqa: BLE001 - a thread boundary: the main thread raises it
                on_end(error)
                return
            self._stopped.wait(self._interval_s)

    def _follow(self) -> None:
        """Connect and read until a reading fails. Raises the error."""
        from zkconsumer.zk.client import ZooKeeperClient

        with ZooKeeperClient(self._cluster.settings) as connection:
            self._reader.use(connection)
            while not self._stopped.is_set():
                groups = self._reader.observe()
                if self._served.read_s is None and any(map(_may_be_written, groups)):
                    self._stopped.wait(FIRST_S)
                    groups = self._reader.observe()
                if self._served.fault:
                    say(f"{self._cluster.name}: the groups are read again")
                    self._said.clear()
                self._served.read(self._reader.served(groups))
                for name in self._reader.missing:
                    self._say_once(f"group {name} does not exist; it is served as soon as it does")
                for text in self._reader.unread(groups):
                    self._say_once(text)
                self._stopped.wait(self._interval_s)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            say(f"{self._cluster.name}: {text}")


def _may_be_written(group: GroupLag) -> bool:
    """Return whether a second reading may show a client that commits without a registration, or
    which store the group commits to."""
    return group.image.health.write_age_s(time.time()) is not None or any(
        one.rule for one in group.partitions
    )
