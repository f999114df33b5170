"""VerifyConsumerRebalance: has every partition an owner that is registered?

Up to 0.9 it compared what never is equal, so that a group with members always failed (KAFKA-3952).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zkconsumer.admin.legacy import JavaError, ZkUtils, mutable_map_order
from zkconsumer.cli.legacy.jopt import Option
from zkconsumer.cli.legacy.releases import Release
from zkconsumer.cli.legacy.tool import HELP, Tool, connect_string
from zkconsumer.core import paths
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.paths import validate_group
from zkconsumer.core.topics import thread_ids


def run(tool: Tool) -> None:
    tool.deprecated(Release.R0_11, "a future release following 0.11.0.0.")
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


def _faults(zk: ZkUtils, group: str, release: Release) -> Iterator[str]:
    threads = _threads(zk.subscriptions(group, internal=frozenset()))
    partitions = zk.partitions(threads)
    listed = zk.connection.listed(paths.owners_of(group, topic) for topic in threads)
    every = [TopicPartition(topic, one) for topic in partitions for one in partitions[topic]]
    owners = zk.owners(group, every)
    for topic in mutable_map_order(partitions):
        owned = listed.get(paths.owners_of(group, topic), [])
        if not owned:
            yield f"No owners for any partitions for topic {topic}"
        for number in partitions[topic]:
            # 0.8: strings are looked for among numbers.
            if not release.since(Release.R0_9) or str(number) not in owned:
                yield f"No owner for partition [{topic},{number}]"
            owner = owners.get(TopicPartition(topic, number))
            if owner is None:
                yield f"No owner for partition [{topic},{number}]"
            # Up to 0.9 a string is looked for among thread ids.
            elif not release.since(Release.R0_10) or owner not in threads[topic]:
                yield (
                    f"Owner {owner} for partition [{topic},{number}] "
                    f"is not a valid member of consumer group {group}"
                )


def _threads(subscriptions: Mapping[str, Mapping[str, int]]) -> dict[str, set[str]]:
    """Topic -> the thread ids that are registered for it."""
    found: dict[str, set[str]] = {}
    for member, topics in subscriptions.items():
        for topic, streams in topics.items():
            found.setdefault(topic, set()).update(thread_ids(member, streams))
    return found
