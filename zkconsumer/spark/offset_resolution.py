"""Resolve a query's options to partitions and to the offsets at which each one starts and ends.

The rules are those of Spark's Kafka connector
(`org.apache.spark.sql.kafka010.KafkaOffsetReaderAdmin`, Spark 4.3). For `zookeeper` they are those
of the old consumer (`kafka.consumer.ZookeeperConsumerConnector`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Final, Literal

from zkconsumer.admin.groups import registered_brokers
from zkconsumer.config.property_types import AUTO_RELEASE
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import ConfigError, SparkSourceError, first_few
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.logs import LogRange, are_times_exact, committed_in_kafka
from zkconsumer.protocol import paths
from zkconsumer.protocol.filters import matching
from zkconsumer.protocol.model import Storage, TopicPartition
from zkconsumer.protocol.payloads import stored_offset
from zkconsumer.protocol.releases import DEFAULT, profile
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.spark.cluster_logs import ASK_S, ClusterLogs
from zkconsumer.spark.offset_ranges import OffsetRange
from zkconsumer.spark.option_parsing import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTime,
    AtTimes,
    NamedPosition,
    OffsetOption,
)
from zkconsumer.spark.options import Assigned, Matching, SourceOptions, Topics
from zkconsumer.zk.client import ZooKeeperClient

_log = SafeLogger(logging.getLogger(__name__))

_RETRY_S: Final = 0.2

Side = Literal["starting", "ending"]
Logs = Mapping[TopicPartition, LogRange]


# ---- partitions ---------------------------------------------------------------------------------


def partitions_of(
    options: SourceOptions, topics: Mapping[str, tuple[int, ...]]
) -> list[TopicPartition]:
    """Return the partitions of `topics` to which the options subscribe, in order."""
    wanted = options.subscription
    if isinstance(wanted, Assigned):
        return sorted(
            TopicPartition(name, number)
            for name, numbers in wanted.partitions.items()
            for number in numbers
            if number in topics.get(name, ())
        )
    if isinstance(wanted, Matching):
        names: Collection[str] = matching(
            wanted.filter, sorted(topics), internal=_internal(options.config)
        )
    else:
        names = wanted.threads.keys() & topics.keys()
    return sorted(TopicPartition(name, number) for name in names for number in topics[name])


def absent(options: SourceOptions, found: Collection[TopicPartition]) -> list[str]:
    """Return the topics and partitions that the options name explicitly and `found` does not
    contain."""
    wanted = options.subscription
    if isinstance(wanted, Topics):
        return sorted(wanted.threads.keys() - {tp.topic for tp in found})
    if isinstance(wanted, Assigned):
        named = {TopicPartition(name, n) for name, some in wanted.partitions.items() for n in some}
        return [str(tp) for tp in sorted(named.difference(found))]
    return []


def _internal(config: ConsumerConfig) -> frozenset[str]:
    if not config.exclude_internal_topics:
        return frozenset()
    release = config.peers_release
    return (DEFAULT if release == AUTO_RELEASE else profile(release)).internal_topics


# ---- Waiting for topics and logs -----------------------------------------------------------------


def await_topics(cluster: ClusterLogs, *, limit_s: float) -> Mapping[str, tuple[int, ...]]:
    """Return the partitions of all topics. Raises SparkSourceError if no broker answers within
    `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    while (topics := cluster.topics()) is None:
        if time.monotonic() > deadline:
            raise SparkSourceError(
                f"the topics are unknown after {limit_s:g} s: {cluster.trouble}",
                remedy="check that the brokers run, and are reachable from here under the addresses"
                " that they register",
            )
        time.sleep(_RETRY_S)
    return topics


def await_ends(
    cluster: ClusterLogs, partitions: Collection[TopicPartition], *, limit_s: float
) -> dict[TopicPartition, LogRange]:
    """Return where the log of each partition begins and ends.

    Raises SparkSourceError if the beginning or end of a log is still unknown after `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    while True:
        ends = cluster.ends(partitions)
        known = {tp: one for tp, one in ends.items() if isinstance(one, LogRange)}
        if len(known) == len(ends):
            return known
        if time.monotonic() > deadline:
            reasons = [f"{tp}: {one}" for tp, one in ends.items() if isinstance(one, str)]
            raise SparkSourceError(
                f"the ends of {len(reasons)} logs are still unknown after {limit_s:g} s",
                where=first_few(reasons, 5, separator="; "),
                remedy="check that the leaders of these partitions run",
            )
        time.sleep(_RETRY_S)


# ---- From positions to offsets -------------------------------------------------------------------


def offsets_of(
    options: SourceOptions, side: Side, logs: Logs, cluster: ClusterLogs
) -> dict[TopicPartition, int]:
    """Return the offset at which each partition starts, or ends, as `side` says.

    Raises:
        ConfigError: JSON names other partitions than those that are read, or times are given for
            brokers before 0.10.
        SparkSourceError: an offset is outside the log (`failOnDataLoss`), no message has the
            starting time or a later one, or a broker could not look up a time.
        ZooKeeperUnreachableError, MalformedZnodeError: the group's stored offsets cannot be read.
    """
    position = options.starting if side == "starting" else options.ending
    match position:
        case NamedPosition.EARLIEST:
            return {tp: log.start for tp, log in logs.items()}
        case NamedPosition.LATEST | None:
            return {tp: log.end for tp, log in logs.items()}
        case NamedPosition.ZOOKEEPER:
            return _stored(options, logs, cluster)
        case AtOffsets(offsets):
            _check_named(side, position, logs)
            return {
                tp: {EARLIEST: log.start, LATEST: log.end}.get(offsets[tp], offsets[tp])
                for tp, log in logs.items()
            }
    return _at_times(options, side, logs, cluster)


def _check_named(side: Side, position: OffsetOption, logs: Logs) -> None:
    """Check that the position names exactly these partitions, as Spark's connector does."""
    named = (
        position.offsets
        if isinstance(position, AtOffsets)
        else (position.timestamps_ms if isinstance(position, AtTimes) else logs)
    )
    option = f"{side}Offsets" + ("ByTimestamp" if isinstance(position, AtTimes) else "")
    if missing := sorted(logs.keys() - named.keys()):
        raise ConfigError(
            f"{option} does not name all partitions",
            where=first_few(missing, 5),
            remedy="name every partition; -2 means earliest and -1 latest"
            if isinstance(position, AtOffsets)
            else "name every partition",
        )
    if unknown := sorted(named.keys() - logs.keys()):
        raise ConfigError(
            f"{option} names partitions that are not read",
            where=first_few(unknown, 5),
            remedy="remove them, or subscribe to them",
        )


def _at_times(
    options: SourceOptions, side: Side, logs: Logs, cluster: ClusterLogs
) -> dict[TopicPartition, int]:
    position = options.starting if side == "starting" else options.ending
    assert isinstance(position, AtTime | AtTimes)
    if not are_times_exact(cluster.bootstrap()):
        raise ConfigError(
            "brokers before 0.10 do not store the timestamps of messages",
            where=f"{side}Timestamp, {side}OffsetsByTimestamp",
            remedy=f"set {side}Offsets; `zkconsumer offsets reset` can use the times of log"
            " segments",
        )
    _check_named(side, position, logs)
    by_time: dict[int, list[TopicPartition]] = {}
    for tp in logs:
        at_ms = (
            position.timestamp_ms if isinstance(position, AtTime) else (position.timestamps_ms[tp])
        )
        by_time.setdefault(at_ms, []).append(tp)
    found: dict[TopicPartition, int] = {}
    for at_ms, partitions in by_time.items():
        for tp, offset in cluster.at(partitions, at_ms).items():
            if isinstance(offset, str):
                raise SparkSourceError(
                    "a broker could not look up a time", where=f"{tp}: {offset}", remedy="try again"
                )
            if offset is None and side == "starting" and options.without_match == "error":
                raise SparkSourceError(
                    f"no message of {tp} has the timestamp {at_ms} (ms since 1970) or a later one",
                    where=f"{side}Timestamp, {side}OffsetsByTimestamp",
                    remedy="startingOffsetsByTimestampStrategy=latest starts at the log's end",
                )
            found[tp] = logs[tp].end if offset is None else offset
    return found


def _stored(options: SourceOptions, logs: Logs, cluster: ClusterLogs) -> dict[TopicPartition, int]:
    """Return the group's stored offsets; apply `auto.offset.reset` where there is none or the log
    does not contain it.
    """
    config = options.config
    stored = stored_offsets(config, logs)
    found: dict[TopicPartition, int] = {}
    for tp, log in logs.items():
        reset = log.start if config.auto_offset_reset == "smallest" else log.end
        found[tp] = stored.get(tp, reset)
        if config.isolation_level == "read_committed":
            # Readers of uncommitted messages may have stored an offset after the last stable one.
            found[tp] = min(found[tp], log.end)
        if not log.start <= found[tp] <= log.end:
            _log.warning(
                "%s: the group's offset %d is outside the log, which has offsets %d to %d;"
                " reset to %d (auto.offset.reset)",
                tp,
                found[tp],
                log.start,
                log.end,
                reset,
            )
            found[tp] = reset
    return found


def stored_offsets(
    config: ConsumerConfig, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the group's stored offsets, as a member of the group would find them
    (`offsets.storage`).

    Raises:
        MalformedZnodeError: an offset znode does not hold an offset.
        SparkSourceError: Kafka does not return an offset of the group.
        ZooKeeperUnreachableError, ChrootMissingError, ConfigError: see `ZooKeeperClient`.
    """
    where = config.storage
    found: dict[TopicPartition, int] = {}
    with ZooKeeperClient(config) as connection:
        brokers = registered_brokers(connection) if where is not Storage.ZOOKEEPER else Brokers()
        if where is not Storage.KAFKA:
            nodes = {paths.offset(config.group_id, tp): tp for tp in partitions}
            for path, node in connection.read(nodes).items():
                offset = stored_offset(node.data, where=path)
                if offset is not None:
                    found[nodes[path]] = offset
    if where is Storage.ZOOKEEPER:
        return found
    kafka = committed_in_kafka(brokers, config.group_id, partitions, limit_s=ASK_S)
    for tp, one in kafka.items():
        if isinstance(one, str):
            raise SparkSourceError(
                "Kafka did not return the group's offset", where=f"{tp}: {one}", remedy="try again"
            )
        if one is not None:
            found[tp] = max(one.offset, found.get(tp, 0))
    return found


# ---- Offsets outside the log ---------------------------------------------------------------------


def within(tp: TopicPartition, offset: int, log: LogRange, *, fail_on_data_loss: bool) -> int:
    """Return `offset` if the log contains it, or else the nearest offset that it contains.

    A log that starts after `offset` has lost messages. A log that ends before `offset` was
    truncated by an unclean leader election, or its topic was deleted and created again.

    Raises:
        SparkSourceError: the log does not contain `offset`, and `fail_on_data_loss` is true.
            Otherwise a warning is logged.
    """
    if log.start <= offset <= log.end:
        return offset
    nearest = min(max(offset, log.start), log.end)
    what = (
        f"messages {offset} to {log.start - 1} of {tp} are no longer in the log"
        if offset < log.start
        else f"the log of {tp} ends at {log.end}, before offset {offset}, which was reached earlier"
    )
    if fail_on_data_loss:
        raise SparkSourceError(
            what,
            where=f"the log has offsets {log.start} to {log.end}",
            remedy=f"failOnDataLoss=false continues at offset {nearest}",
        )
    _log.warning("%s; reading continues at offset %d (failOnDataLoss=false)", what, nearest)
    return nearest


def batch_ranges(options: SourceOptions, cluster: ClusterLogs) -> list[OffsetRange]:
    """Return the ranges that a batch read reads, empty ones included.

    `options` must come from `for_batch`. Raises SparkSourceError if a topic or partition that the
    options name does not exist, and what `await_ends`, `offsets_of` and `within` raise.
    """
    limit_s = options.config.socket_timeout_s
    partitions = partitions_of(options, await_topics(cluster, limit_s=limit_s))
    if missing := absent(options, partitions):
        raise SparkSourceError(
            "a topic or partition to read does not exist",
            where=first_few(missing, 5),
            remedy="check the spelling, and the chroot in the option zookeeper",
        )
    logs = await_ends(cluster, partitions, limit_s=limit_s)
    strict = options.fail_on_data_loss
    starts = offsets_of(options, "starting", logs, cluster)
    ends = offsets_of(options, "ending", logs, cluster)
    found: list[OffsetRange] = []
    for tp, log in logs.items():
        start = within(tp, starts[tp], log, fail_on_data_loss=strict)
        end = within(tp, ends[tp], log, fail_on_data_loss=strict)
        found.append(OffsetRange(*tp, start, max(start, end)))
    return found
