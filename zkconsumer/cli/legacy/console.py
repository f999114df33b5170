"""ConsoleConsumer in its ZooKeeper mode, on a member of our own.

What `--topic` names is a pattern, as it was. At the end everything that was written is committed.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from zkconsumer.admin.legacy import JavaError, ZkUtils
from zkconsumer.admin.legacy_writes import forget
from zkconsumer.cli import abandon_stdout
from zkconsumer.cli.legacy import console_usage
from zkconsumer.cli.legacy.formatters import Formatter, Record, formatter
from zkconsumer.cli.legacy.jopt import OptionError, Options, Parser
from zkconsumer.cli.legacy.releases import Release
from zkconsumer.cli.legacy.tool import Ended, Tool
from zkconsumer.config import ConsumerConfig
from zkconsumer.core import paths
from zkconsumer.core.paths import validate_group
from zkconsumer.errors import ConfigError, ConsumerTimeoutError

if TYPE_CHECKING:
    from zkconsumer.core.filters import TopicFilter

GROUP, RESET, SMALLEST = "group.id", "auto.offset.reset", "smallest"
TOPICS = ("topic", "whitelist", "blacklist")

DEPRECATED = (
    "Using the ConsoleConsumer with old consumer is deprecated and will be removed in a future "
    "major release. Consider using the new consumer by passing [bootstrap-server] instead of "
    "[zookeeper]."
)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What one run was asked for."""

    connect: str
    group: str | None
    properties: Mapping[str, str]
    wanted: TopicFilter
    write: Formatter
    most: int
    skips: bool


def run(tool: Tool) -> None:
    parser = Parser(console_usage.options(tool.release), tool.release)
    if not tool.arguments:
        tool.usage(parser, console_usage.SUMMARY)
    try:
        given = parser.parse(tool.arguments)
    except OptionError as error:
        if tool.release.since(Release.R0_11):
            tool.usage(parser, str(error))
        tool.err(str(error))
        raise Ended(1) from None
    asked = _asked(tool, parser, given)
    with tool.zookeeper(asked.connect, asked.properties) as zk:
        group = asked.group or _made_up(zk)
        _prepare(tool, zk, given, asked, group)
        ended = _consume(tool, asked, group)
        _report(tool, ended)
        if asked.group is None:
            forget(zk.connection, group)
    if tool.release.since(Release.R0_10) and given.has("enable-systest-events"):
        tool.out("shutdown_complete")
    if ended.code:
        raise Ended(ended.code)


# ---- what was asked for --------------------------------------------------------------------------


def _asked(tool: Tool, parser: Parser, given: Options) -> _Run:
    modern = tool.release.since(Release.R0_10)
    if not tool.release.since(Release.R0_9):
        tool.require(parser, given, "zookeeper")
    # From 0.10 on all values are read before it is looked at what goes together.
    if not modern:
        _check(tool, parser, given)
    extra = _pairs(tool, given.values("consumer-property")) if modern else {}
    file = given.text("consumer.config")
    kept = {} if file is None else tool.properties(file)
    listed = _pairs(tool, given.values("property"))
    most = given.number("max-messages")
    timeout_ms = given.number("timeout-ms") if tool.release.since(Release.R0_9) else None
    if tool.release.since(Release.R0_11):
        for part in ("key", "value"):
            if java := given.text(f"{part}-deserializer"):
                listed[f"{part}.deserializer"] = java
    write = formatter(given.required("formatter"), listed, tool.release)
    if modern:
        _check(tool, parser, given)
        _check_old(tool, parser, given)
    tool.require(parser, given, "zookeeper")
    if given.has("csv-reporter-enabled"):
        tool.err("zkconsumer: --csv-reporter-enabled has no effect here")
    properties = kept | extra
    if tool.release.since(Release.R1):
        _agree_on_group(tool, parser, properties, [given.text("group"), kept.get(GROUP)])
    _set_reset(tool, given, properties)
    if timeout_ms is not None and timeout_ms >= 0:
        properties["consumer.timeout.ms"] = str(timeout_ms)
    named = properties.get(GROUP)
    return _Run(
        connect=given.required("zookeeper"),
        group=None if named is None else validate_group(named),
        properties=properties,
        wanted=_wanted(given),
        write=write,
        most=-1 if most is None else most,
        skips=given.has("skip-message-on-error"),
    )


def _check(tool: Tool, parser: Parser, given: Options) -> None:
    """Which topics, and which consumer."""
    modern = tool.release.since(Release.R0_10)
    if given.has("new-consumer") if not modern else not given.has("zookeeper"):
        _refuse_new(tool, parser, given)
    for name in ("bootstrap-server", "new-consumer") if modern else ():
        if given.has(name):
            tool.usage(parser, f"Option [{name}] is not valid with [zookeeper].")
    named = [name for name in TOPICS if given.has(name)]
    if len(named) != 1:
        tool.usage(parser, "Exactly one of whitelist/blacklist/topic is required.")
    given.required(named[0])


def _check_old(tool: Tool, parser: Parser, given: Options) -> None:
    tool.err(DEPRECATED)
    if given.has("partition") or given.has("offset"):
        words = "Partition-offset based consumption is supported in the new consumer only."
        tool.usage(parser, words)


def _wanted(given: Options) -> TopicFilter:
    from zkconsumer.core.filters import black_list, white_list  # noqa: PLC0415

    (name,) = [one for one in TOPICS if given.has(one)]
    return (black_list if name == "blacklist" else white_list)(given.required(name))


def _refuse_new(tool: Tool, parser: Parser, given: Options) -> None:
    modern = tool.release.since(Release.R0_10)
    names = ("topic", "whitelist") if modern else ("topic",)
    if sum(map(given.has, names)) != 1:
        tool.usage(
            parser,
            "Exactly one of whitelist/topic is required." if modern else "Topic must be specified.",
        )
    tool.require(parser, given, "bootstrap-server")
    raise ConfigError(
        "this asks for a consumer that has nothing to do with ZooKeeper",
        where="--bootstrap-server", remedy="Kafka's own kafka-console-consumer.sh is one",
    )


def _pairs(tool: Tool, texts: list[str]) -> dict[str, str]:
    """`CommandLineUtils.parseKeyValueArgs`: a name alone has an empty value."""
    found = {}
    for text in texts:
        # As Java's split: empty parts at the end do not count.
        match text.rstrip("=").split("="):
            case [""]:
                continue
            case [name]:
                found[name] = ""
            case [name, value]:
                found[name] = value
            case _:
                tool.err(f"Invalid command line properties: {' '.join(texts)}")
                raise Ended(1)
    return found


def _agree_on_group(
    tool: Tool, parser: Parser, properties: dict[str, str], others: Iterable[str | None]
) -> None:
    """1.0 looked in three places, and wanted one answer."""
    places = (*others, properties.get(GROUP))
    groups = list(dict.fromkeys(one for one in places if one is not None))
    if len(groups) > 1:
        listed = ", ".join(f"'{one}'" for one in groups)
        tool.usage(
            parser,
            "The group ids provided in different places (directly using '--group', via "
            "'--consumer-property', or via '--consumer.config') do not match. "
            f"Detected group ids: {listed}",
        )
    properties.update((GROUP, one) for one in groups)


def _set_reset(tool: Tool, given: Options, properties: dict[str, str]) -> None:
    """Where a group without offsets begins; only 1.0 took what the properties say of it."""
    asked = properties.get(RESET)
    if asked is None or not tool.release.since(Release.R1):
        properties[RESET] = SMALLEST if given.has("from-beginning") else "largest"
    elif given.has("from-beginning") and asked != SMALLEST:
        tool.err(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={asked}', "
            "please remove one option"
        )
        raise Ended(1)


# ---- before and after ----------------------------------------------------------------------------


def _prepare(tool: Tool, zk: ZkUtils, given: Options, asked: _Run, group: str) -> None:
    from zkconsumer.admin.apply import Live  # noqa: PLC0415

    if tool.release.since(Release.R0_9) and not zk.exists(paths.BROKER_IDS):
        tool.err("No brokers found in ZK.")
        raise Ended(1)
    if given.has("delete-consumer-offsets"):
        tool.writing(zk).delete(paths.group(group), live=Live.FORCE)
        return
    begins = given.has("from-beginning")
    if tool.release.since(Release.R1):
        begins = begins or asked.properties[RESET] == SMALLEST
    if begins and zk.exists(paths.offsets(group)):
        tool.err(
            f"Found previous offset information for this group {group}. Please use "
            "--delete-consumer-offsets to delete previous offsets metadata"
        )
        raise Ended(1)


def _made_up(zk: ZkUtils) -> str:
    """A group of this run alone, which goes with it: so not one that somebody has already."""
    while zk.exists(paths.group(name := f"console-consumer-{random.randrange(100_000)}")):
        pass
    return name


# ---- consuming -----------------------------------------------------------------------------------


class _SignalError(Exception):
    """SIGINT or SIGTERM came."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _signals() -> Iterator[None]:
    """The first signal is an exception, a second one what it was; only for the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        restore()
        raise _SignalError(number)

    def restore() -> None:
        for one, handler in before.items():
            signal.signal(one, handler)

    before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()


class _End(NamedTuple):
    """How many messages, the exit code, and what the formatter threw."""

    messages: int
    code: int = 0
    error: JavaError | None = None


def _report(tool: Tool, ended: _End) -> None:
    modern = tool.release.since(Release.R0_9)
    count = f"{'Processed a total of' if modern else 'Consumed'} {ended.messages} messages"
    if modern:
        tool.err(count)
    if ended.error is not None:
        words = "Unknown error when running consumer" if modern else (
            "Error processing message, stopping consumer"
        )
        tool.log("ERROR", f"{words}: ")
        tool.err(f"{ended.error.kind}: {ended.error.text}")
    if not modern:
        tool.err(count)


def _consume(tool: Tool, asked: _Run, group: str) -> _End:
    """Consume to the end.

    What is cut off by a signal or a closed pipe was not written, and is delivered again.
    """
    from zkconsumer import ConsumerConnector  # noqa: PLC0415

    config = ConsumerConfig.from_properties(
        dict(asked.properties), tool.own_properties(),
        zookeeper_connect=asked.connect, group_id=group,
    )
    messages = _Messages(tool, asked)
    try:
        with _signals(), ConsumerConnector(config) as connector:
            (stream,) = connector.create_message_streams_by_filter(asked.wanted, 1)
            messages.take(stream)
    except BrokenPipeError:
        abandon_stdout()
        tool.err("Unable to write to standard out, closing consumer.")
        return _End(messages.count, 0 if tool.release.since(Release.R0_10) else 1)
    except JavaError as error:
        return _End(messages.count, 1 if tool.release.since(Release.R0_9) else 0, error)
    except _SignalError as error:
        return _End(messages.count, 128 + error.number)
    return _End(messages.count)


class _Messages:
    """What has been taken from the stream, and written."""

    def __init__(self, tool: Tool, asked: _Run) -> None:
        self._tool, self._asked = tool, asked
        self.count = 0

    def take(self, stream: Iterable[Record]) -> None:
        if self._asked.most == 0:
            return
        try:
            for message in stream:
                self.count += 1
                self._write(message)
                if self.count == self._asked.most:
                    return
        except ConsumerTimeoutError:
            modern = self._tool.release.since(Release.R0_9)
            ending = "terminating consumer process" if modern else "stopping consumer"
            self._tool.log("ERROR", f"Error processing message, {ending}: ")
            self._tool.err("kafka.consumer.ConsumerTimeoutException")

    def _write(self, message: Record) -> None:
        try:
            data = memoryview(self._asked.write(message))
        except JavaError as error:
            if not self._asked.skips:
                raise
            self._tool.log("ERROR", "Error processing message, skipping this message: ")
            self._tool.err(f"{error.kind}: {error.text}")
            return
        # Under PYTHONUNBUFFERED `buffer` is the bare file, which writes what a pipe takes.
        while data:
            data = data[sys.stdout.buffer.write(data) :]
        sys.stdout.buffer.flush()
