"""ConsumerOffsetChecker and VerifyConsumerRebalance.

ConsumerOffsetChecker prints offset, log size, lag and owner of every partition of a group.
VerifyConsumerRebalance checks that every partition has a registered owner. Up to 0.9 it compares
values of different types, so the check fails for every group with members (KAFKA-3952).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from zkconsumer.admin.legacy import NoNodeError, ZkUtils, committed, mutable_map_order
from zkconsumer.cli.legacy.joptsimple import Option
from zkconsumer.cli.legacy.releases import KafkaRelease
from zkconsumer.cli.legacy.tool import HELP, Tool, connect_string
from zkconsumer.kafka.logs import log_ends
from zkconsumer.protocol import paths
from zkconsumer.protocol.java import JavaError
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import thread_ids, validate_group, validate_topic
from zkconsumer.protocol.payloads import Broker

ROW = "{:<15} {:<30} {:<3} {:<15} {:<15} {:<15} {}"
HEAD = ("Group", "Topic", "Pid", "Offset", "logSize", "Lag", "Owner")


def _options() -> Iterator[Option]:
    topics = "Comma-separated list of consumer topics (all topics if absent)."
    socket = "Socket timeout to use when querying for offsets."
    retry = "Retry back-off to use for failed offset queries."
    yield connect_string("zookeeper")
    yield Option("topic", topics, "")
    yield Option("group", "Consumer group.", "")
    yield Option("socket.timeout.ms", socket, "", "Integer", "6000")
    yield Option("retry.backoff.ms", retry, "", "Integer", "3000")
    yield Option("broker-info", "Print broker info")
    yield HELP


def check_offsets(tool: Tool) -> None:
    tool.deprecated(
        KafkaRelease.R0_9, "releases following 0.9.0. Use ConsumerGroupCommand instead."
    )
    parser, given = tool.options(_options(), "Check the offset of your consumers.")
    tool.require(parser, given, "group", "zookeeper")
    group = validate_group(given.required("group"))
    named = given.text("topic")
    limit_s = max(tool.broker_limit_s, (given.number("socket.timeout.ms") or 0) / 1000)
    given.number("retry.backoff.ms")
    with tool.zookeeper(given.required("zookeeper")) as zk:
        try:
            topics = zk.children(paths.owners(group)) if named is None else named.split(",")
            used = list(_show(tool, zk, group, topics, limit_s))
        except JavaError as error:
            tool.out(f"Exiting due to: {error.text}.")
            return
        if given.has("broker-info"):
            _show_brokers(tool, zk.brokers(), used)


def _show(
    tool: Tool, zk: ZkUtils, group: str, topics: Sequence[str], limit_s: float
) -> Iterator[int]:
    """Print all rows; yield each queried broker once."""

    numbers = zk.partitions(validate_topic(topic) for topic in topics)
    partitions = [TopicPartition(topic, one) for topic in sorted(topics) for one in numbers[topic]]
    # The first partition without an offset may end the tool. So read the offsets in the old tool's
    # order.
    modern = tool.release.since(KafkaRelease.R0_10)
    answered = sorted(numbers) if modern else mutable_map_order(numbers)
    asked_for = [TopicPartition(topic, one) for topic in answered for one in numbers[topic]]
    offsets = _offsets(tool, zk, group, asked_for, limit_s)
    owners, leaders, brokers = zk.owners(group, partitions), zk.leaders(partitions), zk.brokers()
    led = [tp for tp in partitions if leaders.get(tp) in brokers]
    logs = log_ends(zk.cluster(), led, limit_s=limit_s) if led else {}
    tool.out(ROW.format(*HEAD))
    asked: set[int] = set()
    for tp in partitions:
        leader = leaders.get(tp)
        if leader is None:
            tool.out(f"No broker for partition {tp.topic} - {tp.partition}")
            continue
        if leader not in asked and leader not in brokers:
            tool.out("Could not parse broker info due to null")
        if leader not in asked:
            asked.add(leader)
            yield leader
        if tp in logs:
            log = logs[tp]
            if isinstance(log, str):
                raise JavaError("java.io.IOException", log)
            offset = offsets.get(tp)
            lag = "unknown" if offset in (None, -1) else log.end - (offset or 0)
            known = "unknown" if offset is None else offset
            owner = owners.get(tp, "none")
            tool.out(ROW.format(group, tp.topic, tp.partition, known, log.end, lag, owner))


def _offsets(
    tool: Tool, zk: ZkUtils, group: str, partitions: Sequence[TopicPartition], limit_s: float
) -> dict[TopicPartition, int]:
    """Return offsets from Kafka, or else from ZooKeeper.

    -1 means that ZooKeeper has offsets of the topic, but none of this partition. Raises NoNodeError
    if ZooKeeper has no offset of the topic.
    """

    found = committed(zk, group, partitions, limit_s=limit_s)
    for tp, reason in found.unknown.items():
        tool.out(f"Could not fetch offset for {_named(tp)} due to {reason}.")
    present = zk.connection.stats({paths.offsets_of(group, tp.topic) for tp in found.missing})
    for tp in found.missing:
        if paths.offsets_of(group, tp.topic) not in present:
            raise NoNodeError(paths.offset(group, tp))
    return found.offsets | dict.fromkeys(found.missing, -1)


def _named(tp: TopicPartition) -> str:
    return f"[{tp.topic},{tp.partition}]"


def _show_brokers(tool: Tool, brokers: dict[int, Broker], used: Iterable[int]) -> None:
    tool.out("BROKER INFO")
    for number in mutable_map_order(used):
        if number in brokers:
            tool.out(f"{number} -> {brokers[number].host}:{brokers[number].port}")


# ---- VerifyConsumerRebalance ---------------------------------------------------------------------


def verify_rebalance(tool: Tool) -> None:
    tool.deprecated(KafkaRelease.R0_11, "a future release following 0.11.0.0.")
    options = [connect_string("zookeeper.connect"), Option("group", "Consumer group.", ""), HELP]
    parser, given = tool.options(
        options, "Validate that all partitions have a consumer for a given consumer group."
    )
    tool.require(parser, given, "group")
    group = validate_group(given.required("group"))
    with tool.zookeeper(given.required("zookeeper.connect")) as zk:
        try:
            faults = list(_faults(zk, group, tool.release))
        except JavaError as error:
            tool.log("ERROR", "Error while verifying current rebalancing operation")
            tool.err(f"{error.kind}: {error.text}")
            return
    for fault in faults:
        tool.log("ERROR", fault)
    tool.out(f"Rebalance operation {'failed' if faults else 'successful'} !")


def _faults(zk: ZkUtils, group: str, release: KafkaRelease) -> Iterator[str]:
    threads = _threads(zk.subscriptions(group, internal=frozenset()))
    partitions = zk.partitions(threads)
    listed = zk.connection.children_in_server_order(
        paths.owners_of(group, topic) for topic in threads
    )
    every = [TopicPartition(topic, one) for topic in partitions for one in partitions[topic]]
    owners = zk.owners(group, every)
    for topic in mutable_map_order(partitions):
        owned = listed.get(paths.owners_of(group, topic), [])
        if not owned:
            yield f"No owners for any partitions for topic {topic}"
        for number in partitions[topic]:
            # 0.8 searches for a string among numbers, and never finds it.
            if not release.since(KafkaRelease.R0_9) or str(number) not in owned:
                yield f"No owner for partition [{topic},{number}]"
            owner = owners.get(TopicPartition(topic, number))
            if owner is None:
                yield f"No owner for partition [{topic},{number}]"
            # Up to 0.9 the tool searches for a string among thread id objects.
            elif not release.since(KafkaRelease.R0_10) or owner not in threads[topic]:
                yield (
                    f"Owner {owner} for partition [{topic},{number}] "
                    f"is not a valid member of consumer group {group}"
                )


def _threads(subscriptions: Mapping[str, Mapping[str, int]]) -> dict[str, set[str]]:
    """Return topic -> the thread ids that are registered for it."""
    found: dict[str, set[str]] = {}
    for member, topics in subscriptions.items():
        for topic, streams in topics.items():
            found.setdefault(topic, set()).update(thread_ids(member, streams))
    return found
