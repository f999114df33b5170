"""Where the offsets of the past are read from: servers' files, saved tables, brokers.

sources = PastSources(data_dirs=["/var/lib/zookeeper"])
past = sources.read(connection, Point(Choice.TIME, at_ms), ["billing"], limit_s=6.0)
found = past.plan(connection, limit_s=6.0)
apply(connection, found.plan, backup_dir=Path("."))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from os import PathLike
from typing import TypeAlias

from zkconsumer.admin.groups import Selection, registered_brokers
from zkconsumer.admin.offset_plans import kafka_notes
from zkconsumer.admin.restore import Restoration, plan_restore
from zkconsumer.errors import ConfigError, require
from zkconsumer.history.clients import read_clients
from zkconsumer.history.inputs import Server, find_servers
from zkconsumer.history.offsets import (
    Choice,
    PastKafkaOffsets,
    PastOffsets,
    Point,
    Source,
    name_writers,
    read_past,
    writers_of,
)
from zkconsumer.history.saved_tables import SavedTransactions
from zkconsumer.kafka.client_settings import Settings, broker_settings
from zkconsumer.zk.client import ZooKeeperClient

Paths: TypeAlias = Sequence[str | PathLike[str]]

OnProgress: TypeAlias = Callable[[str, int, int], None]
"""Receives what is read, how much of it has been read, and the total; 0 if it is unknown."""


OnServers: TypeAlias = Callable[[Sequence[Server]], None]
"""Receives the servers whose logs will be read, before any log is read."""


def no_progress(what: str, done: int, total: int) -> None:
    """Show no progress."""


def no_preparation(servers: Sequence[Server]) -> None:
    """Prepare nothing."""


@dataclass(frozen=True, kw_only=True)
class PastSources:
    """The files, or the topic, that contain the offsets of the past.

    Attributes:
        data_dirs: directories, files or archives of ZooKeeper's servers.
        tables: an output of `zkconsumer.spark.history_pipeline`, in place of `data_dirs`.
        offsets_logs: brokers' log directories, for the offsets in Kafka; needs the extra `arrow`.
        offsets_topic: whether the offsets in Kafka are read from the topic itself, through the
            brokers that ZooKeeper names; needs the extra `arrow`.
        server_logs: servers' logs and audit logs, which name the machines behind sessions.
        connections: files of `zkconsumer history record`, for the same purpose.
        chroot: the chroot of the groups in the files; None means that of the connection.
    """

    data_dirs: Paths = ()
    tables: str | PathLike[str] | None = None
    offsets_logs: Paths = ()
    offsets_topic: bool = False
    server_logs: Paths = ()
    connections: Paths = ()
    chroot: str | None = None

    def read(
        self,
        connection: ZooKeeperClient,
        point: Point,
        groups: Collection[str] = (),
        *,
        limit_s: float,
        on_progress: OnProgress = no_progress,
        on_servers: OnServers = no_preparation,
    ) -> PastOfGroups:
        """Read the offsets in effect at a moment, or before an edit.

        Args:
            connection: names the chroot and the brokers.
            groups: names of groups; none means all groups below the chroot.
            limit_s: seconds per request to the brokers.
            on_servers: is called before the files of `data_dirs` are read.

        Raises:
            ConfigError: the sources contradict each other or the point, or contain no such group,
                session or edit; BadFileError for the paths.
            RefusedError: the files do not contain the moment.
            HistoryError: a file cannot be read.
            FetchError: the brokers do not answer, or deny access to the topic.
        """
        self.check(point)
        kafka = self._in_kafka(connection, point, groups, limit_s, on_progress)
        chroot = connection.config.zookeeper_chroot if self.chroot is None else self.chroot
        if (source := self._transactions(on_servers)) is None:
            return PastOfGroups(None, kafka)
        try:
            past = read_past(
                source,
                point,
                chroot=chroot.rstrip("/"),
                groups=groups,
                on_progress=lambda rows: on_progress("operations", rows, 0),
            )
        except ConfigError as error:
            if kafka is None or not kafka.offsets:
                raise
            return PastOfGroups(None, kafka, (f"ZooKeeper: {error.what} ({error.where})",))
        if not self.server_logs and not self.connections:
            return PastOfGroups(past, kafka)
        clients = read_clients(
            past.lifetimes,
            server_logs=self.server_logs,
            connections=self.connections,
            wanted=writers_of(past),
            on_progress=lambda lines: on_progress("lines of servers' logs", lines, 0),
        )
        return PastOfGroups(name_writers(past, clients), kafka, tuple(clients.notes()))

    def check(self, point: Point) -> None:
        """Raise ConfigError if the sources contradict each other or the point."""
        in_kafka = bool(self.offsets_logs) or self.offsets_topic
        if self.offsets_logs and self.offsets_topic:
            raise ConfigError(
                "two sources of the offsets in Kafka are given, files and the topic",
                where="--offsets-log, --offsets-topic",
                remedy="give one of the two",
            )
        if in_kafka and point.choice is not Choice.TIME:
            raise ConfigError(
                "Kafka's offsets have neither transactions nor sessions of ZooKeeper",
                where="--offsets-log, --offsets-topic",
                remedy="choose the moment with --at, or leave out the option",
            )
        if self.tables is not None and self.data_dirs:
            raise ConfigError(
                "two sources of ZooKeeper's transactions are given, files and tables",
                where="--data-dir, --tables",
                remedy="give one of the two",
            )
        if self.tables is None and not self.data_dirs and not in_kafka:
            raise ConfigError(
                "no source of the offsets of the past is given",
                where="--data-dir, --tables, --offsets-log, --offsets-topic",
                remedy="give ZooKeeper's dataDir, the tables that Spark has made of its logs, a"
                " broker's log directory, or --offsets-topic",
            )

    def _transactions(self, on_servers: OnServers) -> Source | None:
        """Return where ZooKeeper's transactions are; None if only Kafka's offsets are read."""
        if self.tables is not None:
            return SavedTransactions(self.tables)
        if not self.data_dirs:
            return None
        servers = find_servers(self.data_dirs)
        on_servers(servers)
        return servers

    def _in_kafka(
        self,
        connection: ZooKeeperClient,
        point: Point,
        groups: Collection[str],
        limit_s: float,
        on_progress: OnProgress,
    ) -> PastKafkaOffsets | None:
        """Return the offsets in Kafka; None if they are not read."""
        if not self.offsets_logs and not self.offsets_topic:
            return None
        require_offset_readers()
        from zkconsumer.history.kafka_offsets import read_past_in_kafka  # noqa: PLC0415 - an extra
        from zkconsumer.history.offset_logs import find_replicas  # noqa: PLC0415 - an extra

        if self.offsets_logs:
            return read_past_in_kafka(
                find_replicas(self.offsets_logs),
                point.value,
                groups=groups,
                on_progress=lambda records: on_progress("records", records, 0),
            )
        from zkconsumer.admin.offsets_topic import OffsetsTopic  # noqa: PLC0415 - an extra

        settings: Settings = broker_settings(registered_brokers(connection))
        with closing(
            OffsetsTopic(
                settings,
                limit_s=limit_s,
                on_progress=lambda done, total: on_progress("offsets of the topic", done, total),
            )
        ) as topic:
            return read_past_in_kafka(topic.replicas(), point.value, groups=groups)


def require_offset_readers() -> None:
    """Raise ConfigError if a package that reads commits in Kafka is missing."""
    where = "reading the offsets in Kafka"
    require("cramjam", "google_crc32c", extra="arrow", where=where)


@dataclass(frozen=True)
class PastOfGroups:
    """The offsets of the past in each store; None if the store is not read.

    Attributes:
        notes: what the operator should know about the sources.
    """

    zookeeper: PastOffsets | None
    kafka: PastKafkaOffsets | None = None
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> list[str]:
        """The groups with an offset of the past, sorted."""
        stores = (self.zookeeper, self.kafka)
        return sorted({name for one in stores if one is not None for name in one.offsets})

    def plan(
        self, connection: ZooKeeperClient, *, topics: Selection | None = None, limit_s: float
    ) -> Restoration:
        """Plan to restore the offsets, each in its store. Raises what `plan_restore` raises."""
        found = plan_restore(
            connection, self.zookeeper, kafka=self.kafka, topics=topics, limit_s=limit_s
        )
        plan = found.plan.noted(*self.notes)
        if self.kafka is None and not plan.is_empty:
            plan = plan.noted(*kafka_notes(connection, plan.groups, limit_s=limit_s))
        return replace(found, plan=plan)
