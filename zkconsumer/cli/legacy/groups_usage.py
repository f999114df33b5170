"""The options of ConsumerGroupCommand, in the words of each release.

Those of the new consumer and of `--reset-offsets` are in the help, and refused by the tool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from zkconsumer.cli.legacy.jopt import Option
from zkconsumer.cli.legacy.releases import Release

SUMMARY: Final[Mapping[Release, str]] = {
    Release.R0_9: "List all consumer groups, describe a consumer group, or delete consumer group "
    "info.",
    Release.R0_11: "List all consumer groups, describe a consumer group, delete consumer group "
    "info, or reset consumer group offsets.",
}

ACTIONS: Final[Mapping[Release, str]] = {
    Release.R0_9: "--list, --describe, --delete",
    Release.R0_11: "--list, --describe, --delete, --reset-offset",
    Release.R1: "--list, --describe, --delete, --reset-offsets",
}

_ZOOKEEPER: Final[Mapping[Release, str]] = {
    Release.R0_9: "REQUIRED (unless new-consumer is used)",
    Release.R0_10: "REQUIRED (only when using old consumer)",
    Release.R0_11: "REQUIRED (for consumer groups based on the old consumer)",
}

_BOOTSTRAP: Final[Mapping[Release, str]] = {
    Release.R0_9: "REQUIRED (only when using new-consumer)",
    Release.R0_10: "REQUIRED (unless old consumer is used)",
    Release.R0_11: "REQUIRED (for consumer groups based on the new consumer)",
}

_TOPIC: Final[Mapping[Release, str]] = {
    Release.R0_9: "The topic whose consumer group information should be deleted.",
    Release.R0_11: "The topic whose consumer group information should be deleted or topic whose "
    "should be included in the reset offset process. In `reset-offsets` case, partitions can be "
    "specified using this format: `topic1:0,1,2`, where 0,1,2 are the partition to be included in "
    "the process. Reset-offsets also supports multiple topic inputs.",
}

_DESCRIBE: Final[Mapping[Release, str]] = {
    Release.R0_9: "Describe consumer group and list offset lag related to given group.",
    Release.R0_10: "Describe consumer group and list offset lag (number of messages not yet "
    "processed) related to given group.",
}

_NEW_CONSUMER: Final[Mapping[Release, str]] = {
    Release.R0_9: "Use new consumer.",
    Release.R0_10: "Use new consumer. This is the default.",
    Release.R0_11: "Use new consumer. This option requires that the 'bootstrap-server' option is "
    "used.",
    Release.R1: "Use the new consumer implementation. This is the default, so this option is "
    "deprecated and will be removed in a future release.",
}

_RESET: Final[Mapping[Release, str]] = {
    Release.R0_11: "Reset offsets of consumer group. Supports one consumer group at the time, and "
    "instances should be inactive\nHas 3 execution options: (default) to plan which offsets to "
    "reset, --execute to execute the reset-offsets process, and --export to export the results to "
    "a CSV format.\nHas the following scenarios to choose: --to-datetime, --by-period, "
    "--to-earliest, --to-latest, --shift-by, --from-file, --to-current. One scenario must be "
    "choose\nTo define the scope use: --all-topics or --topic. . One scope must be choose, unless "
    "you use '--from-file' scenario",
    Release.R1: "Reset offsets of consumer group. Supports one consumer group at the time, and "
    "instances should be inactive\nHas 2 execution options: --dry-run (the default) to plan which "
    "offsets to reset, and --execute to update the offsets. Additionally, the --export option is "
    "used to export the results to a CSV format.\nYou must choose one of the following reset "
    "specifications: --to-datetime, --by-period, --to-earliest, --to-latest, --shift-by, "
    "--from-file, --to-current.\nTo define the scope use --all-topics or --topic. One scope must "
    "be specified unless you use '--from-file'.",
}

_DELETE: Final = (
    "Pass in groups to delete topic partition offsets and ownership information over the entire "
    "consumer group. For instance --group g1 --group g2\nPass in groups with a single topic to "
    "just delete the given topic's partition offsets and ownership information for the given "
    "consumer groups. For instance --group g1 --group g2 --topic t1\nPass in just a topic to "
    "delete the given topic's partition offsets and ownership information for every consumer "
    "group. For instance --topic t1\nWARNING: Group deletion only works for old ZK-based consumer "
    "groups, and one has to use it carefully to only delete groups that are not active."
)

# With exactly one of these `--reset-offsets` says what to reset to.
SCENARIOS: Final = (
    "to-offset",
    "to-datetime",
    "by-duration",
    "to-earliest",
    "to-latest",
    "to-current",
    "shift-by",
    "from-file",
)

# What `--describe` of 1.1 shows of groups in Kafka only.
KAFKA_ONLY: Final = ("members", "verbose", "offsets", "state")


def worded(words: Mapping[Release, str], release: Release) -> str:
    """The words of a release: those of the latest that is not later."""
    return next(words[one] for one in reversed(list(words)) if release.since(one))


def options(release: Release) -> Iterator[Option]:
    """The options of `kafka.admin.ConsumerGroupCommand` of a release."""
    zookeeper = (
        f"{worded(_ZOOKEEPER, release)}: The connection string for the zookeeper connection in the "
        "form host:port. Multiple URLS can be given to allow fail-over."
    )
    server = f"{worded(_BOOTSTRAP, release)}: The server to connect to."
    properties = "Property file containing configs to be passed to Admin Client and Consumer."
    yield Option("zookeeper", zookeeper, "urls")
    yield Option("bootstrap-server", server, "server to connect to")
    yield Option("group", "The consumer group we wish to act on.", "consumer group")
    yield Option("topic", worded(_TOPIC, release), "topic")
    yield Option("list", "List all consumer groups.")
    yield Option("describe", worded(_DESCRIBE, release))
    yield Option("delete", _DELETE)
    yield Option("new-consumer", worded(_NEW_CONSUMER, release))
    yield Option("command-config", properties, "command config property file")
    if release.since(Release.R0_11):
        yield from _reset_options(release)
    if release.since(Release.R1):
        yield from _kafka_options()


def _reset_options(release: Release) -> Iterator[Option]:
    end = "." if release.since(Release.R1) else ""
    timeout = (
        "The timeout that can be set for some use cases. For example, it can be used when "
        "describing the group to specify the maximum amount of time in milliseconds to wait before "
        "the group stabilizes (when the group is just created, or is going through some changes)."
    )
    yield Option("timeout", timeout, "timeout (ms)", "Long", "5000")
    yield Option(
        "all-topics", "Consider all topics assigned to a group in the `reset-offsets` process."
    )
    yield Option("reset-offsets", worded(_RESET, release))
    yield Option("execute", "Execute operation. Supported operations: reset-offsets.")
    yield Option(
        "export",
        "Export operation execution to a CSV file. Supported operations: reset-offsets.",
    )
    yield Option("to-offset", "Reset offsets to a specific offset.", "offset", "Long")
    yield Option(
        "from-file", "Reset offsets to values defined in CSV file.", "path to CSV file"
    )
    yield Option(
        "to-datetime",
        "Reset offsets to offset from datetime. Format: 'YYYY-MM-DDTHH:mm:SS.sss'",
        "datetime",
    )
    yield Option(
        "by-duration",
        "Reset offsets to offset by duration from current timestamp. Format: 'PnDTnHnMnS'",
        "duration",
    )
    yield Option("to-earliest", "Reset offsets to earliest offset.")
    yield Option("to-latest", "Reset offsets to latest offset.")
    yield Option("to-current", "Reset offsets to current offset.")
    shift = "Reset offsets shifting current offset by 'n', where 'n' can be positive or negative"
    yield Option("shift-by", shift + end, "number-of-offsets", "Long")


def _kafka_options() -> Iterator[Option]:
    only = "with '--describe' and '--bootstrap-server' options only.\n"
    example = "Example: --bootstrap-server localhost:9092 --describe --group group1 --"
    yield Option(
        "dry-run",
        "Only show results without executing changes on Consumer Groups. Supported operations: "
        "reset-offsets.",
    )
    yield Option(
        "members",
        f"Describe members of the group. This option may be used {only}{example}members",
    )
    yield Option(
        "verbose",
        "Provide additional information, if any, when describing the group. This option may be "
        "used with '--offsets'/'--members'/'--state' and '--bootstrap-server' options only.\n"
        f"{example}members --verbose",
    )
    yield Option(
        "offsets",
        "Describe the group and list all topic partitions in the group along with their offset "
        f"lag. This is the default sub-action of and may be used {only}{example}offsets",
    )
    yield Option(
        "state", f"Describe the group state. This option may be used {only}{example}state"
    )
