"""ConsumerGroupCommand in its ZooKeeper mode: list, describe and delete groups."""

from __future__ import annotations

from collections.abc import Sequence

from zkconsumer.admin.legacy import JavaError, NoNodeError, ZkUtils
from zkconsumer.cli.legacy import groups_usage
from zkconsumer.cli.legacy.jopt import Options, Parser
from zkconsumer.cli.legacy.releases import Release
from zkconsumer.cli.legacy.tool import Tool
from zkconsumer.core import paths
from zkconsumer.core.paths import validate_group, validate_topic
from zkconsumer.errors import ConfigError, RefusedError

NOTE = (
    "Note: This will only show information about consumers that use ZooKeeper "
    "(not those using the Java consumer API)."
)


def run(tool: Tool) -> None:
    parser = Parser(groups_usage.options(tool.release), tool.release)
    given = parser.parse(tool.arguments)
    if not tool.arguments:
        tool.usage(parser, groups_usage.worded(groups_usage.SUMMARY, tool.release))
    names = ["list", "describe", "delete"]
    if tool.release.since(Release.R0_11):
        names.append("reset-offsets")
    if sum(map(given.has, names)) != 1:
        actions = groups_usage.worded(groups_usage.ACTIONS, tool.release)
        tool.usage(parser, f"Command must include exactly one action: {actions}")
    _check(tool, parser, given)
    if tool.release.since(Release.R0_10):
        tool.err(NOTE if tool.release.since(Release.R1) else f"{NOTE}\n")
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
        from zkconsumer.cli.legacy.describe import describe  # noqa: PLC0415

        describe(tool, zk, validate_group(given.required("group")))
    elif given.has("delete"):
        _delete(tool, zk, given)
    else:
        raise JavaError("java.lang.UnsupportedOperationException", None)


def _failed(tool: Tool, error: JavaError) -> None:
    """Also a failure is a result, with exit code 0."""
    if tool.release.since(Release.R0_10):
        tool.out(f"Error: Executing consumer group command failed due to {error.text}")
    else:
        # Where the JVM prints its stack as well.
        tool.out(f"Error while executing consumer group command {error.text}")
        tool.out(f"{error.kind}: {error.text}\n")


# ---- what goes together -------------------------------------------------------------------------


def _check(tool: Tool, parser: Parser, given: Options) -> None:
    """`ConsumerGroupCommandOptions.checkArgs`."""
    if tool.release.since(Release.R0_10):
        _check_mode(tool, parser, given)
    else:
        _check_mode_0_9(tool, parser, given)
    if given.has("describe"):
        tool.require(parser, given, "group")
    if given.has("delete") and not given.has("group") and not given.has("topic"):
        tool.usage(parser, "Option [delete] either takes [group], [topic], or both")
    resets = tool.release.since(Release.R0_11) and given.has("reset-offsets")
    if resets:
        _check_reset(tool, parser, given)
    _exclude(tool, parser, given, "group", ["list"])
    _exclude(tool, parser, given, "topic", ["list", "describe"])
    if not given.has("zookeeper"):
        raise ConfigError(
            "this asks for groups that Kafka keeps, not ZooKeeper", where="--bootstrap-server",
            remedy="Kafka's own kafka-consumer-groups.sh answers it",
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
    latest = tool.release.since(Release.R1)
    quote = "" if latest else "'"
    if given.has("zookeeper"):
        for name in ("bootstrap-server", "new-consumer"):
            if given.has(name):
                words = f"Option {quote}[{name}]{quote} is not valid with "
                tool.usage(parser, f"{words}{quote}[zookeeper]{quote}.")
        if latest and (found := [one for one in groups_usage.KAFKA_ONLY if given.has(one)]):
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
    if tool.release.since(Release.R1):
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
    for one in groups_usage.SCENARIOS:
        others = [other for other in groups_usage.SCENARIOS if other != one]
        _exclude(tool, parser, given, one, others)


def _exclude(
    tool: Tool, parser: Parser, given: Options, used: str, others: Sequence[str]
) -> None:
    """`CommandLineUtils.checkInvalidArgs`."""
    for other in others:
        if given.has(used) and given.has(other):
            tool.usage(parser, f'Option "[{used}]" can\'t be used with option"[{other}]"')


# ---- deleting -----------------------------------------------------------------------------------



def _delete(tool: Tool, zk: ZkUtils, given: Options) -> None:
    quote = "'" if tool.release.since(Release.R0_10) else ""
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
                _delete_group(tool, zk, group) if topic is None
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
    """`ZkUtils.getAllConsumerGroupsForTopic`: fails for any group that never had offsets."""
    groups = zk.children_or_none(paths.CONSUMERS) or []
    listed = zk.connection.listed(paths.offsets(group) for group in groups)
    for group in groups:
        if paths.offsets(group) not in listed:
            raise NoNodeError(paths.offsets(group))
    return [group for group in groups if topic in listed[paths.offsets(group)]]


def _delete_group(tool: Tool, zk: ZkUtils, group: str) -> bool:
    """`AdminUtils.deleteConsumerGroupInZK`; False: it is active. Raises NoNodeError."""
    return _take_away(tool, zk, group, paths.group(group))


def _delete_topic(tool: Tool, zk: ZkUtils, group: str, topic: str) -> bool:
    """`AdminUtils.deleteConsumerGroupInfoForTopicInZK`. Raises NoNodeError."""
    if zk.owned_topics(group) == [topic]:
        return _delete_group(tool, zk, group)
    rooms = paths.owners_of(group, topic), paths.offsets_of(group, topic)
    return _take_away(tool, zk, group, *rooms)


def _take_away(tool: Tool, zk: ZkUtils, group: str, *roots: str) -> bool:
    from zkconsumer.admin.apply import Live  # noqa: PLC0415

    if zk.is_active(group):
        return False
    try:
        tool.writing(zk).delete(*roots, live=Live.REFUSE)
    except RefusedError:
        # Somebody may have joined meanwhile.
        if zk.is_active(group):
            return False
        raise
    return True
