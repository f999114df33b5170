"""The options of ConsoleConsumer, in the words of each release.

Those of the new consumer are in the help, and refused by the tool.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from zkconsumer.cli.legacy.jopt import Option
from zkconsumer.cli.legacy.releases import Release

SUMMARY: Final = (
    "The console consumer is a tool that reads data from Kafka and outputs it to standard output."
)

_DIRECTORY = "If csv-reporter-enable is set, and this parameter isset, the csv metrics will be "


def options(release: Release) -> Iterator[Option]:
    """The options of `kafka.tools.ConsoleConsumer` of a release."""
    yield Option("topic", "The topic id to consume on.", "topic")
    yield Option("whitelist", "Whitelist of topics to include for consumption.", "whitelist")
    yield Option("blacklist", "Blacklist of topics to exclude from consumption.", "blacklist")
    required = "REQUIRED (only when using old consumer)"
    if not release.since(Release.R0_10):
        required = "REQUIRED"
    yield Option(
        "zookeeper",
        f"{required}: The connection string for the zookeeper connection in the form host:port. "
        "Multiple URLS can be given to allow fail-over.",
        "urls",
    )
    wins = " Note that [consumer-property] takes precedence over this config."
    yield Option(
        "consumer.config",
        "Consumer config properties file." + (wins if release.since(Release.R0_10) else ""),
        "config file",
    )
    yield from _formatting(release)
    yield from _reading()
    directory = "metrics directory" if release.since(Release.R0_9) else "metrics dictory"
    put = "output here" if release.since(Release.R0_11) else "outputed here"
    yield Option("metrics-dir", _DIRECTORY + put, directory)
    yield Option("csv-reporter-enabled", "If set, the CSV metrics reporter will be enabled")
    if release.since(Release.R0_9):
        yield from _from_0_9(release)
    if release.since(Release.R0_10):
        yield from _from_0_10(release)
    if release.since(Release.R0_11):
        yield Option(
            "isolation-level",
            "Set to read_committed in order to filter out transactional messages which are not "
            "committed. Set to read_uncommittedto read all messages.",
            "",
            default="read_uncommitted",
        )
    if release.since(Release.R1):
        yield Option("group", "The consumer group id of the consumer.", "consumer group id")


def _formatting(release: Release) -> Iterator[Option]:
    yield Option(
        "formatter",
        "The name of a class to use for formatting kafka messages for display.",
        "class",
        default="kafka.tools.DefaultMessageFormatter",
    )
    doc = "The properties to initialize the message formatter."
    yield Option("property", doc if release.since(Release.R0_10) else "", "prop")


def _reading() -> Iterator[Option]:
    yield Option(
        "delete-consumer-offsets",
        "If specified, the consumer path in zookeeper is deleted when starting up",
    )
    yield Option(
        "from-beginning",
        "If the consumer does not already have an established offset to consume from, start with "
        "the earliest message present in the log rather than the latest message.",
    )
    yield Option(
        "max-messages",
        "The maximum number of messages to consume before exiting. If not set, consumption is "
        "continual.",
        "num_messages",
        "Integer",
    )
    yield Option(
        "skip-message-on-error",
        "If there is an error when processing a message, skip it instead of halt.",
    )


def _from_0_9(release: Release) -> Iterator[Option]:
    yield Option(
        "timeout-ms",
        "If specified, exit if no message is available for consumption for the specified interval.",
        "timeout_ms",
        "Integer",
    )
    new = "Use the new consumer implementation."
    if release.since(Release.R1):
        new += " This is the default, so this option is deprecated and will be removed in a future "
        new += "release."
    elif release.since(Release.R0_10):
        new += " This is the default."
    yield Option("new-consumer", new)
    server = "REQUIRED (unless old consumer is used): The server to connect to."
    yield Option(
        "bootstrap-server",
        server if release.since(Release.R0_10) else "",
        "server to connect to",
    )
    yield Option("key-deserializer", "", "deserializer for key")
    yield Option("value-deserializer", "", "deserializer for values")


def _from_0_10(release: Release) -> Iterator[Option]:
    begins = " Consumption starts from the end of the partition unless '--offset' is specified."
    yield Option(
        "partition",
        "The partition to consume from." + (begins if release.since(Release.R0_11) else ""),
        "partition",
        "Integer",
    )
    yield Option(
        "offset",
        "The offset id to consume from (a non-negative number), or 'earliest' which means from "
        "beginning, or 'latest' which means from end",
        "consume offset",
        default="latest",
    )
    yield Option(
        "consumer-property",
        "A mechanism to pass user-defined properties in the form key=value to the consumer.",
        "consumer_prop",
    )
    yield Option(
        "enable-systest-events",
        "Log lifecycle events of the consumer in addition to logging consumed messages. (This is "
        "specific for system tests.)",
    )
