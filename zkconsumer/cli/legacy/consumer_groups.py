"""ConsumerGroupCommand in its ZooKeeper mode: list, describe and delete groups.

The help text and the table of a group equal those of the imitated release. The help also lists the
options of the new consumer and of `--reset-offsets`, which this tool refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from zkconsumer.admin.apply import Live
from zkconsumer.admin.legacy import NO_LEADER, NoNodeError, ZkUtils, committed
from zkconsumer.cli.legacy.joptsimple import Option, Options, Parser
from zkconsumer.cli.legacy.releases import KafkaRelease
from zkconsumer.cli.legacy.tool import Tool
from zkconsumer.errors import ConfigError, RefusedError
from zkconsumer.frozen import dataclass
from zkconsumer.kafka.logs import LogRange, log_ends
from zkconsumer.protocol import paths
from zkconsumer.protocol.java import JavaError
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import validate_group, validate_topic

# ---- options -------------------------------------------------------------------------------------


SUMMARY: Final[Mapping[KafkaRelease, str]] = {
    KafkaRelease.R0_9: "List all consumer groups, describe a consumer group, or delete consumer "
    "group info.",
    KafkaRelease.R0_11: "List all consumer groups, describe a consumer group, delete consumer "
    "group info, or reset consumer group offsets.",
}

ACTIONS: Final[Mapping[KafkaRelease, str]] = {
    KafkaRelease.R0_9: "--list, --describe, --delete",
    KafkaRelease.R0_11: "--list, --describe, --delete, --reset-offset",
    KafkaRelease.R1: "--list, --describe, --delete, --reset-offsets",
}

_ZOOKEEPER: Final[Mapping[KafkaRelease, str]] = {
    KafkaRelease.R0_9: "REQUIRED (unless new-consumer is used)",
    KafkaRelease.R0_10: "REQUIRED (only when using old consumer)",
    KafkaRelease.R0_11: "REQUIRED (for consumer groups based on the old consumer)",
}

_BOOTSTRAP: Final[Mapping[KafkaRelease, str]] = {
    KafkaRelease.R0_9: "REQUIRED (only when using new-consumer)",
    KafkaRelease.R0_10: "REQUIRED (unless old consumer is used)",
    KafkaRelease.R0_11: "REQUIRED (for consumer groups based on the new consumer)",
}

_TOPIC: Final[Mapping[KafkaRelease, str]] = {
    KafkaRelease.R0_9: "The topic whose consumer group information should be deleted.",
    KafkaRelease.R0_11: "The topic whose consumer group information should be deleted or topic "
    "whose should be included in the reset offset process. In `reset-offsets` case, partitions can "
    "be specified using this format: `topic1:0,1,2`, where 0,1,2 are the partition to be included "
    "in the process. Reset-offsets also supports multiple topic inputs.",
}

_DESCRIBE: Final[Mapping[KafkaRelease, str]] = {
    KafkaRelease.R0_9: "Describe consumer group and list offset lag related to given group.",
    KafkaRelease.R0_10: "Describe consumer group and list offset lag (number of messages not yet "
    "processed) related to given group.",
}

_NEW_CONSUMER: Final[Mapping[KafkaRelease, str]] = {
    KafkaRelease.R0_9: "Use new consumer.",
    KafkaRelease.R0_10: "Use new consumer. This is the default.",
    KafkaRelease.R0_11: "Use new consumer. This option requires that the 'bootstrap-server' option "
    "is used.",
    KafkaRelease.R1: "Use the new consumer implementation. This is the default, so this option is "
    "deprecated and will be removed in a future release.",
}

_RESET: Final[Mapping[KafkaRelease, str]] = {
    KafkaRelease.R0_11: "Reset offsets of consumer group. Supports one consumer group at the time, "
    "and instances should be inactive\nHas 3 execution options: (default) to plan which offsets to "
    "reset, --execute to execute the reset-offsets process, and --export to export the results to "
    "a CSV format.\nHas the following scenarios to choose: --to-datetime, --by-period, "
    "--to-earliest, --to-latest, --shift-by, --from-file, --to-current. One scenario must be "
    "choose\nTo define the scope use: --all-topics or --topic. . One scope must be choose, unless "
    "you use '--from-file' scenario",
    KafkaRelease.R1: "Reset offsets of consumer group. Supports one consumer group at the time, "
    "and instances should be inactive\nHas 2 execution options: --dry-run (the default) to plan "
    "which offsets to reset, and --execute to update the offsets. Additionally, the --export "
    "option is used to export the results to a CSV format.\nYou must choose one of the following "
    "reset specifications: --to-datetime, --by-period, --to-earliest, --to-latest, --shift-by, "
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

# The options for the target of `--reset-offsets`; exactly one of them must be given.
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

# Options of `--describe` in 1.1 that are valid only for groups in Kafka.
KAFKA_ONLY: Final = ("members", "verbose", "offsets", "state")


def worded(words: Mapping[KafkaRelease, str], release: KafkaRelease) -> str:
    """Return the text for a release: the text of the latest listed release that is not newer than
    `release`."""
    return next(words[one] for one in reversed(list(words)) if release.since(one))


def options(release: KafkaRelease) -> Iterator[Option]:
    """Yield the options of `kafka.admin.ConsumerGroupCommand` of a release."""
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
    if release.since(KafkaRelease.R0_11):
        yield from _reset_options(release)
    if release.since(KafkaRelease.R1):
        yield from _kafka_options()


def _reset_options(release: KafkaRelease) -> Iterator[Option]:
    end = "." if release.since(KafkaRelease.R1) else ""
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
    yield Option("from-file", "Reset offsets to values defined in CSV file.", "path to CSV file")
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
    yield Option("state", f"Describe the group state. This option may be used {only}{example}state")


# ---- the tool ------------------------------------------------------------------------------------


NOTE = (
    "Note: This will only show information about consumers that use ZooKeeper "
    "(not those using the Java consumer API)."
)


def run(tool: Tool) -> None:
    parser = Parser(options(tool.release), tool.release)
    given = parser.parse(tool.arguments)
    if not tool.arguments:
        tool.usage(parser, worded(SUMMARY, tool.release))
    names = ["list", "describe", "delete"]
    if tool.release.since(KafkaRelease.R0_11):
        names.append("reset-offsets")
    if sum(map(given.has, names)) != 1:
        actions = worded(ACTIONS, tool.release)
        tool.usage(parser, f"Command must include exactly one action: {actions}")
    _check(tool, parser, given)
    if tool.release.since(KafkaRelease.R0_10):
        tool.err(NOTE if tool.release.since(KafkaRelease.R1) else f"{NOTE}\n")
    with tool.zookeeper(given.required("zookeeper")) as zk:
        try:
            _act(tool, zk, given)
        except JavaError as error:
            _failed(tool, error)


def _act(tool: Tool, zk: ZkUtils, given: Options) -> None:
    if given.has("list"):
        for group in zk.groups():
            tool.out(group)
    elif given.has("describe"):
        describe(tool, zk, validate_group(given.required("group")))
    elif given.has("delete"):
        _delete(tool, zk, given)
    else:
        raise JavaError("java.lang.UnsupportedOperationException", None)


def _failed(tool: Tool, error: JavaError) -> None:
    """Print a failure on standard output; the exit code stays 0, as in the original tool."""
    if tool.release.since(KafkaRelease.R0_10):
        tool.out(f"Error: Executing consumer group command failed due to {error.text}")
    else:
        # The JVM also prints the stack trace.
        tool.out(f"Error while executing consumer group command {error.text}")
        tool.out(f"{error.kind}: {error.text}\n")


# ---- combinations of options --------------------------------------------------------------------


def _check(tool: Tool, parser: Parser, given: Options) -> None:
    """Check the combination of options (`ConsumerGroupCommandOptions.checkArgs`)."""
    if tool.release.since(KafkaRelease.R0_10):
        _check_mode(tool, parser, given)
    else:
        _check_mode_0_9(tool, parser, given)
    if given.has("describe"):
        tool.require(parser, given, "group")
    if given.has("delete") and not given.has("group") and not given.has("topic"):
        tool.usage(parser, "Option [delete] either takes [group], [topic], or both")
    resets = tool.release.since(KafkaRelease.R0_11) and given.has("reset-offsets")
    if resets:
        _check_reset(tool, parser, given)
    _exclude(tool, parser, given, "group", ["list"])
    _exclude(tool, parser, given, "topic", ["list", "describe"])
    if not given.has("zookeeper"):
        raise ConfigError(
            "groups in Kafka are not supported",
            where="--bootstrap-server",
            remedy="use Kafka's kafka-consumer-groups.sh",
        )


def _check_mode_0_9(tool: Tool, parser: Parser, given: Options) -> None:
    if not given.has("new-consumer"):
        tool.require(parser, given, "zookeeper")
        if given.has("bootstrap-server"):
            tool.usage(parser, "Option [bootstrap-server] is only valid with [new-consumer]")
        return
    tool.require(parser, given, "bootstrap-server")
    if given.has("zookeeper"):
        tool.usage(parser, "Option [zookeeper] is not valid with [new-consumer]")
    if given.has("delete"):
        tool.usage(
            parser,
            "Option [delete] is not valid with [new-consumer]. Note that there's no need to delete "
            "group metadata for the new consumer as it is automatically deleted when the last "
            "member leaves",
        )


def _check_mode(tool: Tool, parser: Parser, given: Options) -> None:
    latest = tool.release.since(KafkaRelease.R1)
    quote = "" if latest else "'"
    if given.has("zookeeper"):
        for name in ("bootstrap-server", "new-consumer"):
            if given.has(name):
                words = f"Option {quote}[{name}]{quote} is not valid with "
                tool.usage(parser, f"{words}{quote}[zookeeper]{quote}.")
        if latest and (found := [one for one in KAFKA_ONLY if given.has(one)]):
            raise parser.error(
                f"Option(s) [{', '.join(found)}] are unavailable given other options on the "
                "command line",
                "UnavailableOptionException",
            )
        return
    tool.require(parser, given, "bootstrap-server")
    if given.has("delete") and latest and given.has("topic"):
        tool.usage(
            parser,
            "When deleting a consumer group the option [topic] is only valid with [zookeeper]. The "
            "new consumer does not support topic-specific offset deletion from a consumer group.",
        )
    if given.has("delete") and not latest:
        tool.usage(
            parser,
            "Option '[delete]' is only valid with '[zookeeper]'. Note that there's no need to "
            "delete group metadata for the new consumer as the group is deleted when the last "
            "committed offset for that group expires.",
        )


def _check_reset(tool: Tool, parser: Parser, given: Options) -> None:
    if tool.release.since(KafkaRelease.R1):
        if not given.has("dry-run") and not given.has("execute"):
            tool.err(
                "WARN: In a future major release, the default behavior of this command will be to "
                "prompt the user before executing the reset rather than doing a dry run. You "
                "should add the --dry-run option explicitly if you are scripting this command and "
                "want to keep the current default behavior without prompting."
            )
        if given.has("dry-run") and given.has("execute"):
            words = "Option [reset-offsets] only accepts one of [execute] and [dry-run]"
            tool.usage(parser, words)
    tool.require(parser, given, "group")
    for one in SCENARIOS:
        others = [other for other in SCENARIOS if other != one]
        _exclude(tool, parser, given, one, others)


def _exclude(tool: Tool, parser: Parser, given: Options, used: str, others: Sequence[str]) -> None:
    """Refuse any of `others` together with `used` (`CommandLineUtils.checkInvalidArgs`)."""
    for other in others:
        if given.has(used) and given.has(other):
            tool.usage(parser, f'Option "[{used}]" can\'t be used with option"[{other}]"')


# ---- --delete -----------------------------------------------------------------------------------


def _delete(tool: Tool, zk: ZkUtils, given: Options) -> None:
    quote = "'" if tool.release.since(KafkaRelease.R0_10) else ""
    error = "Error: " if quote else ""
    topic = validate_topic(given.required("topic")) if given.has("topic") else None
    named = "" if topic is None else f" topic {quote}{topic}{quote}"
    if not given.has("group") and topic is not None:
        for group in _with_offsets_of(zk, topic):
            _delete_topic(tool, zk, group, topic)
        words = "Deleted consumer group information for all inactive consumer groups for"
        tool.out(f"{words}{named} in zookeeper.")
        return
    for group in map(validate_group, given.values("group")):
        whose = f"group {quote}{group}{quote}{named}"
        try:
            gone = (
                _delete_group(tool, zk, group)
                if topic is None
                else _delete_topic(tool, zk, group, topic)
            )
        except NoNodeError:
            tool.out(f"{error}Delete for {whose} failed because group does not exist.")
            continue
        if not gone:
            tool.out(f"{error}Delete for {whose} failed because its consumers are still active.")
        elif topic is None:
            tool.out(f"Deleted all consumer group information for {whose} in zookeeper.")
        else:
            tool.out(f"Deleted consumer group information for {whose} in zookeeper.")


def _with_offsets_of(zk: ZkUtils, topic: str) -> list[str]:
    """Return the groups with offsets of a topic (`ZkUtils.getAllConsumerGroupsForTopic`).

    Raises NoNodeError if any group has no `offsets` znode.
    """
    groups = zk.children_or_none(paths.CONSUMERS) or []
    listed = zk.connection.children_in_server_order(paths.offsets(group) for group in groups)
    for group in groups:
        if paths.offsets(group) not in listed:
            raise NoNodeError(paths.offsets(group))
    return [group for group in groups if topic in listed[paths.offsets(group)]]


def _delete_group(tool: Tool, zk: ZkUtils, group: str) -> bool:
    """Delete a group; return False if it is active (`AdminUtils.deleteConsumerGroupInZK`).

    Raises NoNodeError.
    """
    return _delete_unless_active(tool, zk, group, paths.group(group))


def _delete_topic(tool: Tool, zk: ZkUtils, group: str, topic: str) -> bool:
    """Delete a topic of a group; return False if the group is active.

    Source: `AdminUtils.deleteConsumerGroupInfoForTopicInZK`. Raises NoNodeError.
    """
    if zk.owned_topics(group) == [topic]:
        return _delete_group(tool, zk, group)
    parents = paths.owners_of(group, topic), paths.offsets_of(group, topic)
    return _delete_unless_active(tool, zk, group, *parents)


def _delete_unless_active(tool: Tool, zk: ZkUtils, group: str, *roots: str) -> bool:

    if zk.is_active(group):
        return False
    try:
        tool.writing(zk).delete(*roots, live=Live.REFUSE)
    except RefusedError:
        # A member may have joined since `is_active`.
        if zk.is_active(group):
            return False
        raise
    return True


# ---- --describe ----------------------------------------------------------------------------------


HEAD_0_9 = "GROUP, TOPIC, PARTITION, CURRENT OFFSET, LOG END OFFSET, LAG, OWNER"
HEAD = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID")
ROW = "{:<30} {:<10} {:<15} {:<15} {:<10} {:<50}"

# Minimum width of the columns of topics and of consumers in 1.1, in characters.
_NARROWEST = 15


@dataclass(frozen=True, slots=True)
class _Ends:
    """The logs of partitions; `ignored` partitions are not shown."""

    logs: Mapping[TopicPartition, LogRange | str]
    ignored: frozenset[TopicPartition]

    def of(self, tp: TopicPartition) -> int | None:
        """Return the end of a log; None if the partition has no leader.

        Raises JavaError if the leader does not answer.
        """
        log = self.logs.get(tp)
        if isinstance(log, str):
            raise JavaError("java.io.IOException", log)
        return None if log is None else log.end


def describe(tool: Tool, zk: ZkUtils, group: str) -> None:
    """Print the table of a group in the form of the tool's release. Raises JavaError."""
    if tool.release.since(KafkaRelease.R0_10):
        _describe(tool, zk, group)
    else:
        _describe_0_9(tool, zk, group)


def _describe_0_9(tool: Tool, zk: ZkUtils, group: str) -> None:
    topics = zk.owned_topics(group)
    if not topics:
        tool.out("No topic available for consumer group provided")
    tool.out(HEAD_0_9)
    numbers = zk.partitions(topics)
    for topic in topics:
        partitions = [TopicPartition(topic, number) for number in numbers[topic]]
        owners = zk.owners(group, partitions)
        offsets = _offsets(tool, zk, group, partitions)
        ends = _ends(tool, zk, partitions)
        for tp in partitions:
            if tp in ends.ignored:
                continue
            offset, end = offsets.get(tp), ends.of(tp)
            lag = _lag(offset, end)
            figures = ["unknown" if one is None else str(one) for one in (offset, end, lag)]
            row = (group, topic, str(tp.partition), *figures, owners.get(tp, "none"))
            tool.out(", ".join(row))


def _describe(tool: Tool, zk: ZkUtils, group: str) -> None:
    if group not in zk.groups():
        tool.out(f"Error: The consumer group '{group}' does not exist.")
        return
    topics = zk.owned_topics(group)
    numbers = zk.partitions(topics)
    partitions = [TopicPartition(topic, one) for topic in topics for one in numbers[topic]]
    members = zk.children(paths.ids(group))
    owners = {tp: _consumer(one) for tp, one in zk.owners(group, partitions).items()}
    subscribed = zk.subscriptions(group, internal=tool.profile.internal_topics)
    offsets = _offsets(tool, zk, group, partitions)
    ends = _ends(tool, zk, partitions)
    rows: list[Sequence[object] | None] = []
    for tp in partitions:
        offset, end = offsets.get(tp), ends.of(tp) if tp not in ends.ignored else None
        figures = (offset, end, _lag(offset, end))
        row = (*tp, *figures, owners.get(tp))
        rows.append(None if tp in ends.ignored else row)
    idle = [one for one in members if one not in owners.values()]
    # The original prints one row for each topic of such a member, without the topic's name.
    rows += [(*[None] * 5, one) for one in idle for _ in subscribed.get(one, ())]
    _show(tool, rows)


def _show(tool: Tool, rows: Iterable[Sequence[object] | None]) -> None:
    cells = [
        None if row is None else ["-" if one is None else str(one) for one in row] for row in rows
    ]
    if tool.release.since(KafkaRelease.R1):
        # The JVM's tool fails on an ignored partition; the tool of 1.1 fails before it prints the
        # first row.
        shown = [_cells(row) for row in cells]
        wide = max(_NARROWEST, *(len(row[0]) for row in shown), 0)
        wider = max(_NARROWEST, *(len(row[5]) for row in shown), 0)
        form = f"{{:<{wide}}} {{:<10}} {{:<15}} {{:<15}} {{:<15}} {{:<{wider}}} "
    else:
        form = ROW
    tool.out("\n" + form.format(*HEAD))
    for row in cells:
        tool.out(form.format(*_cells(row)))


def _cells(row: list[str] | None) -> list[str]:
    if row is None:
        raise JavaError("java.lang.NullPointerException", None)
    return row


def _consumer(owner: str) -> str:
    end = owner.rfind("-")
    if end < 0:
        text = f"begin 0, end -1, length {len(owner)}"
        raise JavaError("java.lang.StringIndexOutOfBoundsException", text)
    return owner[:end]


def _lag(offset: int | None, end: int | None) -> int | None:
    return None if offset in (None, -1) or end is None else end - (offset or 0)


def _offsets(
    tool: Tool, zk: ZkUtils, group: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    found = committed(zk, group, partitions, limit_s=tool.broker_limit_s)
    modern = tool.release.since(KafkaRelease.R0_10)
    quote, error = ("'", "Error: ") if modern else ("", "")
    for tp in partitions:
        form = "{}-{}" if tool.release.since(KafkaRelease.R1) else "[{},{}]"
        whose = f"for group {quote}{group}{quote} partition {quote}{form.format(*tp)}{quote}"
        if tp in found.unknown:
            reason = found.unknown[tp]
            tool.out(f"{error}Could not fetch offset from kafka {whose} due to {reason}.")
        elif tp in found.missing:
            tool.out(
                f"{error}Could not fetch offset from zookeeper {whose} "
                "due to missing offset data in zookeeper."
            )
    return found.offsets


def _ends(tool: Tool, zk: ZkUtils, partitions: Sequence[TopicPartition]) -> _Ends:
    leaders, brokers = zk.leaders(partitions), zk.brokers()
    modern = tool.release.since(KafkaRelease.R0_10)
    ignored = set()
    for tp in partitions:
        leader = leaders.get(tp)
        name = f"{tp.topic}-{tp.partition}"
        if leader is None:
            ignored.add(tp)
            tool.out(
                f"Error: No broker for partition '{name}'"
                if modern
                else f"No broker for partition {name}"
            )
        elif leader != NO_LEADER and leader not in brokers:
            ignored.add(tp)
            tool.out(
                f"{'Error: ' if modern else ''}Could not parse broker info due to "
                f"Broker id {leader} does not exist"
            )
    led = [tp for tp in partitions if leaders.get(tp) in brokers]
    limit_s = tool.broker_limit_s
    logs = log_ends(zk.cluster(), led, limit_s=limit_s) if led else {}
    return _Ends(logs, frozenset(ignored))
