"""GetOffsetShell: offsets of a topic's partitions at a time, or at the start or end of the log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from zkconsumer.admin.legacy import partitions_of
from zkconsumer.cli.legacy.joptsimple import Option, Options, Parser
from zkconsumer.cli.legacy.releases import KafkaRelease
from zkconsumer.cli.legacy.tool import Tool
from zkconsumer.errors import ConfigError
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.logs import log_ends, offsets_at
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import Broker

LATEST, EARLIEST = -1, -2

# Version of broker registrations in Kafka 0.8.
_VERSION = 1

_PORT = re.compile(r".*?\[?([0-9a-zA-Z\-%._:]*)\]?:([0-9]+)")


def _options(release: KafkaRelease) -> Iterator[Option]:
    modern = release.since(KafkaRelease.R0_10)
    servers = "REQUIRED: The list of hostname and port of the server to connect to."
    yield Option("broker-list", servers, "hostname:port,...,hostname:port")
    yield Option("topic", "REQUIRED: The topic to get offset from.", "topic")
    partitions = "comma separated list of partition ids. If not specified, it will find offsets for"
    yield Option("partitions", f"{partitions} all partitions", "partition ids", default="")
    yield Option(
        "time",
        "timestamp of the offsets before that",
        "timestamp/-1(latest)/-2(earliest)",
        "Long",
        "-1" if modern else None,
    )
    yield Option("offsets", "number of offsets returned", "count", "Integer", "1")
    wait = "The max amount of time each fetch request waits."
    yield Option("max-wait-ms", wait, "ms", "Integer", "1000")


def run(tool: Tool) -> None:
    parser = Parser(_options(tool.release), tool.release)
    if not tool.arguments:
        tool.usage(parser, "An interactive shell for getting consumer offsets.")
    given = parser.parse(tool.arguments)
    required = ["broker-list", "topic"]
    if not tool.release.since(KafkaRelease.R0_10):
        required.append("time")
    tool.require(parser, given, *required)
    brokers = _brokers(tool, parser, given.required("broker-list"))
    topic, time = given.required("topic"), given.number("time") or 0
    if (given.number("offsets") or 1) > 1:
        raise ConfigError(
            "only one offset per partition is supported",
            where="--offsets",
            remedy="leave out --offsets",
        )
    found = _found(tool, brokers, topic, time)
    for number in _numbers(given, found):
        match found.get(number):
            case None:
                tool.err(f"Error: partition {number} does not exist")
            case str(reason):
                tool.err(reason)
            case offset:
                tool.out(f"{topic}:{number}:{'' if offset < 0 else offset}")


def _brokers(tool: Tool, parser: Parser, listed: str) -> Brokers:
    """Return the brokers of --broker-list, as registrations of 0.8.

    The client then uses the protocol of 0.8, as the old tool does. Brokers before 0.10 know no
    other protocol. For a time in --time, brokers up to 3.9 return the start offset of a log
    segment.
    """
    ends = listed.split(",")
    matches = [_PORT.fullmatch(end) for end in ends]
    found = [(match[1], int(match[2])) for match in matches if match]
    if len(found) != len(ends):
        words = "Please provide valid host:port like host1:9091,host2:9092\n "
        tool.usage(parser, words)
    return Brokers(Broker(host, port, _VERSION, ()) for host, port in found)


def _found(tool: Tool, brokers: Brokers, topic: str, time: int) -> dict[int, int | str]:
    """Return partition -> offset, -1 if there is none at that time, or why it is unknown."""

    limit_s = tool.broker_limit_s
    numbers = partitions_of(brokers, topic, limit_s=limit_s)
    partitions = [TopicPartition(topic, number) for number in numbers]
    if time in (LATEST, EARLIEST):
        logs = log_ends(brokers, partitions, limit_s=limit_s)
        return {
            tp.partition: log if isinstance(log, str) else log.end if time == LATEST else log.start
            for tp, log in logs.items()
        }
    at = offsets_at(brokers, partitions, time, limit_s=limit_s)
    return {tp.partition: -1 if one is None else one for tp, one in at.items()}


def _numbers(given: Options, found: dict[int, int | str]) -> list[int]:
    listed = given.text("partitions")
    if not listed:
        return sorted(found)
    try:
        return [int(one) for one in listed.split(",")]
    except ValueError:
        raise ConfigError(
            f"{listed!r} names no partitions", where="--partitions", remedy="use 0,1,2"
        ) from None
