"""From what the options say to partitions and offsets: what is read, where it begins and ends.

Rules: Spark's Kafka connector (`org.apache.spark.sql.kafka010.KafkaOffsetReaderAdmin`, 4.3), and
for `zookeeper` those of the old consumer (`kafka.consumer.ZookeeperConsumerConnector`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

from zkconsumer.admin.groups import registered_brokers
from zkconsumer.config.property_types import AUTO_RELEASE
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer.group_member import storage
from zkconsumer.errors import ConfigError, SparkSourceError
from zkconsumer.kafka.logs import LogRange, are_times_exact, committed_in_kafka
from zkconsumer.protocol import paths
from zkconsumer.protocol.filters import matching
from zkconsumer.protocol.model import Storage, TopicPartition
from zkconsumer.protocol.payloads import decode_offset
from zkconsumer.protocol.releases import DEFAULT, profile
from zkconsumer.spark.cluster_logs import ASK_S, ClusterLogs
from zkconsumer.spark.offset_ranges import OffsetRange
from zkconsumer.spark.option_parsing import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTime,
    AtTimes,
    Place,
    Position,
)
from zkconsumer.spark.options import Assigned, Matching, SourceOptions, Topics
from zkconsumer.zk.client import ZooKeeperClient

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.2

Side = Literal["starting", "ending"]
Logs = Mapping[TopicPartition, LogRange]


# ---- partitions ---------------------------------------------------------------------------------


def partitions_of(
    options: SourceOptions, topics: Mapping[str, tuple[int, ...]]
) -> list[TopicPartition]:
    """Those of the existing `topics` that are asked for, in order."""
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
    """What is asked for by name and is not there."""
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


# ---- logs ---------------------------------------------------------------------------------------


def await_topics(cluster: ClusterLogs, *, limit_s: float) -> Mapping[str, tuple[int, ...]]:
    """Raises SparkSourceError when no broker answers for `limit_s`."""
    deadline = time.monotonic() + limit_s
    while (topics := cluster.topics()) is None:
        if time.monotonic() > deadline:
            raise SparkSourceError(
                f"no broker answered for {limit_s:g} s",
                where=cluster.trouble,
                remedy="see that brokers run and are registered in this ZooKeeper",
            )
        time.sleep(_RETRY_S)
    return topics


def await_ends(
    cluster: ClusterLogs, partitions: Collection[TopicPartition], *, limit_s: float
) -> dict[TopicPartition, LogRange]:
    """Raises SparkSourceError when not all of them are known within `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        ends = cluster.ends(partitions)
        known = {tp: one for tp, one in ends.items() if isinstance(one, LogRange)}
        if len(known) == len(ends):
            return known
        if time.monotonic() > deadline:
            reasons = [f"{tp}: {one}" for tp, one in ends.items() if isinstance(one, str)]
            raise SparkSourceError(
                f"where {len(reasons)} logs end is not known after {limit_s:g} s",
                where="; ".join(reasons[:5]),
                remedy="see that their leaders run",
            )
        time.sleep(_RETRY_S)


# ---- offsets ------------------------------------------------------------------------------------


def offsets_of(
    options: SourceOptions, side: Side, logs: Logs, cluster: ClusterLogs
) -> dict[TopicPartition, int]:
    """Where each of these partitions begins, or ends.

    Raises:
        ConfigError: JSON that names other partitions than there are; times on brokers before 0.10.
        SparkSourceError: an offset that the log has not got (`failOnDataLoss`), a starting time
            that no message has reached, or a time that a broker could not look up.
        ZooKeeperUnreachableError, MalformedZnodeError: of the group's stored offsets.
    """
    position = options.starting if side == "starting" else options.ending
    match position:
        case Place.EARLIEST:
            return {tp: log.start for tp, log in logs.items()}
        case Place.LATEST | None:
            return {tp: log.end for tp, log in logs.items()}
        case Place.ZOOKEEPER:
            return _stored(options, logs, cluster)
        case AtOffsets(offsets):
            _check_named(side, position, logs)
            return {
                tp: {EARLIEST: log.start, LATEST: log.end}.get(offsets[tp], offsets[tp])
                for tp, log in logs.items()
            }
    return _at_times(options, side, logs, cluster)


def _check_named(side: Side, position: Position, logs: Logs) -> None:
    """As in Spark's connector all partitions must be named, so that none is forgotten."""
    named = (
        position.offsets
        if isinstance(position, AtOffsets)
        else (position.timestamps_ms if isinstance(position, AtTimes) else logs)
    )
    option = f"{side}Offsets" + ("ByTimestamp" if isinstance(position, AtTimes) else "")
    if missing := sorted(logs.keys() - named.keys()):
        raise ConfigError(
            f"{option} leaves partitions out",
            where=_few(missing),
            remedy="name all, with -2 for earliest and -1 for latest"
            if isinstance(position, AtOffsets)
            else "name all",
        )
    if unknown := sorted(named.keys() - logs.keys()):
        raise ConfigError(
            f"{option} names partitions that are not read",
            where=_few(unknown),
            remedy="leave them out, or subscribe to them",
        )


def _at_times(
    options: SourceOptions, side: Side, logs: Logs, cluster: ClusterLogs
) -> dict[TopicPartition, int]:
    position = options.starting if side == "starting" else options.ending
    assert isinstance(position, AtTime | AtTimes)
    if not are_times_exact(cluster.bootstrap()):
        raise ConfigError(
            "brokers before 0.10 do not know the times of messages",
            where=f"{side}Timestamp, {side}OffsetsByTimestamp",
            remedy=f"set {side}Offsets; `zkconsumer offsets reset` can plan by the times of"
            " log segments",
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
                    "a broker did not look up a time", where=f"{tp}: {offset}", remedy="try again"
                )
            if offset is None and side == "starting" and options.without_match == "error":
                raise SparkSourceError(
                    f"no message of {tp} is of {at_ms} (ms since 1970) or later",
                    where=f"{side}Timestamp, {side}OffsetsByTimestamp",
                    remedy="startingOffsetsByTimestampStrategy=latest begins at the end then",
                )
            found[tp] = logs[tp].end if offset is None else offset
    return found


def _stored(options: SourceOptions, logs: Logs, cluster: ClusterLogs) -> dict[TopicPartition, int]:
    """What the group has stored; else, or where the log has no longer got it, by the reset."""
    config = options.config
    stored = stored_offsets(config, logs)
    found: dict[TopicPartition, int] = {}
    for tp, log in logs.items():
        reset = log.start if config.auto_offset_reset == "smallest" else log.end
        found[tp] = stored.get(tp, reset)
        if not log.start <= found[tp] <= log.end:
            _log.warning(
                "%s: the group's offset %d is not in the log of %d to %d: reset to %d"
                " (auto.offset.reset)",
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
    """The group's offsets, as a member of it would find them (`offsets.storage`).

    Raises MalformedZnodeError for a znode that holds none, SparkSourceError where Kafka does not
    tell, and what `Connection` raises.
    """
    where = storage(config)
    found: dict[TopicPartition, int] = {}
    with ZooKeeperClient(config) as connection:
        brokers = registered_brokers(connection) if where is not Storage.ZOOKEEPER else []
        if where is not Storage.KAFKA:
            nodes = {paths.offset(config.group_id, tp): tp for tp in partitions}
            for path, node in connection.read(nodes).items():
                offset = decode_offset(node.data, where=path)
                if offset >= 0:
                    found[nodes[path]] = offset
    if where is Storage.ZOOKEEPER:
        return found
    kafka = committed_in_kafka(brokers, config.group_id, partitions, limit_s=ASK_S)
    for tp, one in kafka.items():
        if isinstance(one, str):
            raise SparkSourceError(
                "Kafka does not tell the group's offset", where=f"{tp}: {one}", remedy="try again"
            )
        if one is not None:
            found[tp] = max(one.offset, found.get(tp, 0))
    return found


# ---- what the log no longer has -----------------------------------------------------------------


def within(tp: TopicPartition, offset: int, log: LogRange, *, fail_on_data_loss: bool) -> int:
    """`offset`, or the nearest that the log has.

    A log that begins later has lost messages; one that ends earlier was cut off after an unclean
    election, or its topic was made anew. Raises SparkSourceError, or says so in the log.
    """
    if log.start <= offset <= log.end:
        return offset
    nearest = min(max(offset, log.start), log.end)
    what = (
        f"messages {offset} to {log.start - 1} of {tp} are not in the log any more"
        if offset < log.start
        else f"the log of {tp} ends at {log.end}, before the offset {offset} that was reached"
    )
    if fail_on_data_loss:
        raise SparkSourceError(
            what,
            where=f"the log has {log.start} to {log.end}",
            remedy=f"failOnDataLoss=false goes on at {nearest}",
        )
    _log.warning("%s: going on at %d (failOnDataLoss=false)", what, nearest)
    return nearest


def batch_ranges(options: SourceOptions, cluster: ClusterLogs) -> list[OffsetRange]:
    """What a batch read reads, empty ranges included; `options` are completed by `for_batch`.

    Raises SparkSourceError where a topic that is named does not exist, and as `await_ends`,
    `offsets_of` and `within`.
    """
    limit_s = options.config.socket_timeout_s
    partitions = partitions_of(options, await_topics(cluster, limit_s=limit_s))
    if missing := absent(options, partitions):
        raise SparkSourceError(
            "there is nothing of that name to read",
            where=_few(missing),
            remedy="check the spelling, and the chroot of zookeeper",
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


def _few(things: Iterable[object]) -> str:
    some = list(map(str, things))
    return ", ".join(some[:5]) + (f", and {len(some) - 5} more" if len(some) > 5 else "")
