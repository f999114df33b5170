"""ExportZkOffsets, ImportZkOffsets and UpdateOffsetsInZK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from zkconsumer.admin.legacy import NO_LEADER, NoNodeError, ZkUtils, read_export
from zkconsumer.cli.legacy.joptsimple import Option
from zkconsumer.cli.legacy.releases import KafkaRelease
from zkconsumer.cli.legacy.tool import HELP, Tool, ToolExit, connect_string, no_file
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.kafka.logs import log_ends
from zkconsumer.protocol import paths
from zkconsumer.protocol.java import JavaError
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import validate_group, validate_topic
from zkconsumer.protocol.payloads import JvmException, encode_offset


def export(tool: Tool) -> None:
    """Imitate `kafka.tools.ExportZkOffsets`."""
    tool.deprecated(KafkaRelease.R0_11, "a future release following 0.11.0.0.")
    group = Option("group", "Consumer group.", "")
    options = [connect_string("zkconnect"), group, Option("output-file", "Output file", ""), HELP]
    parser, given = tool.options(options, "Export consumer offsets to an output file.")
    tool.require(parser, given, "zkconnect", "output-file")
    named = [validate_group(one) for one in given.values("group")]
    file = Path(given.required("output-file"))
    try:
        file.write_bytes(b"")
    except OSError as error:
        raise no_file(error) from error
    lines: list[str] = []
    try:
        with tool.zookeeper(given.required("zkconnect")) as zk:
            lines.extend(_exported(zk, named or zk.groups()))
    finally:
        # As in the JVM, the lines before an exception are written, too.
        file.write_text("".join(lines), encoding="utf-8", newline="\n")


def _exported(zk: ZkUtils, groups: list[str]) -> Iterator[str]:
    """Yield lines in ZooKeeper's order. Raises NoNodeError for a group without offsets."""
    parents = zk.connection.children_in_server_order(paths.offsets(group) for group in groups)
    tops = {
        group: [paths.offsets_of(group, topic) for topic in parents.get(paths.offsets(group), [])]
        for group in groups
    }
    listed = zk.connection.children_in_server_order(top for group in groups for top in tops[group])
    texts = zk.texts(f"{top}/{number}" for top, numbers in listed.items() for number in numbers)
    for group in groups:
        if paths.offsets(group) not in parents:
            raise NoNodeError(paths.offsets(group))
        for top in tops[group]:
            for path in (f"{top}/{number}" for number in listed.get(top, [])):
                if path in texts:
                    yield f"{path}:{texts[path]}\n"


def import_(tool: Tool) -> None:
    """Imitate `kafka.tools.ImportZkOffsets`; unlike it, write nothing if a line is invalid."""

    options = [connect_string("zkconnect"), Option("input-file", "Input file", ""), HELP]
    parser, given = tool.options(options, "Import offsets to zookeeper from files.")
    tool.require(parser, given, "input-file")
    name = given.required("input-file")
    with tool.zookeeper(given.required("zkconnect")) as zk:
        try:
            data = Path(name).read_bytes()
        except OSError as error:
            raise no_file(error) from error
        found = read_export(data, where=name)
        if found.unread:
            tool.err(
                f"zkconsumer: {name}:{found.unread}: not read: like Kafka's tool, this command "
                "stops at the first empty line"
            )
        if found.offsets:
            _put(tool, zk, found.offsets)


USAGE = "USAGE: kafka.tools.UpdateOffsetsInZK$ [earliest | latest] consumer.properties topic"


def update(tool: Tool) -> None:
    """Imitate `kafka.tools.UpdateOffsetsInZK`; unlike it, write all partitions or none."""
    tool.deprecated(KafkaRelease.R0_11, "releases following 0.11.0.0.")
    if len(tool.arguments) < 3:
        tool.out(USAGE)
        raise ToolExit(1)
    which, file, topic = tool.arguments[:3]
    properties = tool.properties(file)
    config = ConsumerConfig.from_properties(properties)
    if which not in ("earliest", "latest"):
        tool.out(USAGE)
        raise ToolExit(1)
    group = validate_group(config.group_id)
    with tool.zookeeper(config.zookeeper_connect, properties) as zk:
        found = _ends(zk, validate_topic(topic), which, tool.broker_limit_s)
        if found:
            _put(tool, zk, {(group, tp): offset for tp, offset in found.items()})
    for tp, offset in found.items():
        tool.out(f"updating partition {tp.partition} with new offset: {offset}")
    tool.out(f"updated the offset for {len(found)} partitions")


def _ends(zk: ZkUtils, topic: str, which: str, limit_s: float) -> dict[TopicPartition, int]:
    """Return partition -> start or end of its log. Raises JavaError if a broker does not answer."""

    partitions = [TopicPartition(topic, one) for one in zk.partitions([topic])[topic]]
    leaders = zk.leaders(partitions)
    brokers = zk.brokers()
    for tp in partitions:
        leader = leaders.get(tp)
        if leader is None:
            words = "Broker None is unavailable. Cannot issue getOffsetsBefore request"
            raise JavaError(JvmException.KAFKA, words)
        if leader == NO_LEADER or leader not in brokers:
            words = f"Broker information for broker id {leader} does not exist in ZK"
            raise JavaError(JvmException.KAFKA, words)
    found = {}
    for tp, log in log_ends(zk.cluster(), partitions, limit_s=limit_s).items():
        if isinstance(log, str):
            raise JavaError("java.io.IOException", f"{tp.topic}-{tp.partition}: {log}")
        found[tp] = log.start if which == "earliest" else log.end
    return dict(sorted(found.items()))


def _put(tool: Tool, zk: ZkUtils, offsets: Mapping[tuple[str, TopicPartition], int]) -> None:
    values = {paths.offset(*at): encode_offset(offset) for at, offset in offsets.items()}
    tool.writing(zk).put(values)
