"""ConsoleConsumer in its ZooKeeper mode: options, message formatters, and the run.

The tool consumes with a zkconsumer member. As in the original, `--topic` is a pattern, and the exit
commits everything that was written. The help text has the words of the imitated release. It also
lists the options of the new consumer, which this tool refuses. The formatters are
`kafka.tools.*MessageFormatter`, 0.8.2 to 1.1.
"""

from __future__ import annotations

import random
import signal
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

from zkconsumer.admin.apply import Live
from zkconsumer.admin.legacy import ZkUtils, forget
from zkconsumer.cli import abandon_stdout, is_of_stdout
from zkconsumer.cli.legacy.joptsimple import Option, OptionError, Options, Parser
from zkconsumer.cli.legacy.releases import KafkaRelease
from zkconsumer.cli.legacy.tool import Tool, ToolExit
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer.messages import Message, TimestampType
from zkconsumer.consumer.stream_partitions import Decoded
from zkconsumer.errors import ConfigError, ConsumerTimeoutError
from zkconsumer.frozen import dataclass
from zkconsumer.protocol import paths
from zkconsumer.protocol.filters import black_list, white_list
from zkconsumer.protocol.java import JavaError
from zkconsumer.protocol.kafka_fields import octets
from zkconsumer.protocol.paths import validate_group

if TYPE_CHECKING:
    from zkconsumer.protocol.filters import TopicFilter


# ---- options -------------------------------------------------------------------------------------


SUMMARY: Final = (
    "The console consumer is a tool that reads data from Kafka and outputs it to standard output."
)

_DIRECTORY = "If csv-reporter-enable is set, and this parameter isset, the csv metrics will be "


def options(release: KafkaRelease) -> Iterator[Option]:
    """Yield the options of `kafka.tools.ConsoleConsumer` of a release."""
    yield Option("topic", "The topic id to consume on.", "topic")
    yield Option("whitelist", "Whitelist of topics to include for consumption.", "whitelist")
    yield Option("blacklist", "Blacklist of topics to exclude from consumption.", "blacklist")
    required = "REQUIRED (only when using old consumer)"
    if not release.since(KafkaRelease.R0_10):
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
        "Consumer config properties file." + (wins if release.since(KafkaRelease.R0_10) else ""),
        "config file",
    )
    yield from _formatting(release)
    yield from _reading()
    directory = "metrics directory" if release.since(KafkaRelease.R0_9) else "metrics dictory"
    put = "output here" if release.since(KafkaRelease.R0_11) else "outputed here"
    yield Option("metrics-dir", _DIRECTORY + put, directory)
    yield Option("csv-reporter-enabled", "If set, the CSV metrics reporter will be enabled")
    if release.since(KafkaRelease.R0_9):
        yield from _from_0_9(release)
    if release.since(KafkaRelease.R0_10):
        yield from _from_0_10(release)
    if release.since(KafkaRelease.R0_11):
        yield Option(
            "isolation-level",
            "Set to read_committed in order to filter out transactional messages which are not "
            "committed. Set to read_uncommittedto read all messages.",
            "",
            default="read_uncommitted",
        )
    if release.since(KafkaRelease.R1):
        yield Option("group", "The consumer group id of the consumer.", "consumer group id")


def _formatting(release: KafkaRelease) -> Iterator[Option]:
    yield Option(
        "formatter",
        "The name of a class to use for formatting kafka messages for display.",
        "class",
        default="kafka.tools.DefaultMessageFormatter",
    )
    doc = "The properties to initialize the message formatter."
    yield Option("property", doc if release.since(KafkaRelease.R0_10) else "", "prop")


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


def _from_0_9(release: KafkaRelease) -> Iterator[Option]:
    yield Option(
        "timeout-ms",
        "If specified, exit if no message is available for consumption for the specified interval.",
        "timeout_ms",
        "Integer",
    )
    new = "Use the new consumer implementation."
    if release.since(KafkaRelease.R1):
        new += " This is the default, so this option is deprecated and will be removed in a future "
        new += "release."
    elif release.since(KafkaRelease.R0_10):
        new += " This is the default."
    yield Option("new-consumer", new)
    server = "REQUIRED (unless old consumer is used): The server to connect to."
    yield Option(
        "bootstrap-server",
        server if release.since(KafkaRelease.R0_10) else "",
        "server to connect to",
    )
    yield Option("key-deserializer", "", "deserializer for key")
    yield Option("value-deserializer", "", "deserializer for values")


def _from_0_10(release: KafkaRelease) -> Iterator[Option]:
    begins = " Consumption starts from the end of the partition unless '--offset' is specified."
    yield Option(
        "partition",
        "The partition to consume from." + (begins if release.since(KafkaRelease.R0_11) else ""),
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


# ---- formatters ----------------------------------------------------------------------------------


Record = Message[Decoded, Decoded]
Formatter = Callable[[Record], bytes]

_NULL: Final = b"null"

# librdkafka's timestamp types, as the old tools print them.


def formatter(java: str, properties: Mapping[str, str], release: KafkaRelease) -> Formatter:
    """Return the function that formats a message as a Java class does.

    Raises JavaError for an unknown class.
    """
    modern = release.since(KafkaRelease.R0_10)
    match java:
        case "kafka.tools.DefaultMessageFormatter":
            return _default(properties, release)
        case "kafka.tools.LoggingMessageFormatter" if modern:
            # Kafka's class also logs each message, but the tools switch off its logger.
            return _default(properties, release)
        case "kafka.tools.NoOpMessageFormatter":
            return lambda message: b""
        case "kafka.tools.ChecksumMessageFormatter":
            topic = f"{properties['topic']}:" if "topic" in properties else ""
            checksum = _checksum if modern else _checksum_0
            return lambda message: f"{topic}checksum:{checksum(message)}\n".encode()
    raise JavaError("java.lang.ClassNotFoundException", java)


def _default(properties: Mapping[str, str], release: KafkaRelease) -> Formatter:
    modern = release.since(KafkaRelease.R0_10)

    def is_on(name: str, default: str) -> bool:
        return properties.get(name, default).strip().lower() == "true"

    tab = properties.get("key.separator", "\t").encode()
    end = properties.get("line.separator", "\n").encode()
    has_time = modern and is_on("print.timestamp", "false")
    has_key = is_on("print.key", "false")
    has_value = not release.since(KafkaRelease.R0_11) or is_on("print.value", "true")
    key = _deserializer(properties.get("key.deserializer") if modern else None)
    value = _deserializer(properties.get("value.deserializer") if modern else None)

    def write(message: Record) -> bytes:
        parts = []
        if has_time:
            parts += [_time(message), tab if has_key or has_value else end]
        if has_key:
            parts += [key(_NULL if message.key is None else message.key)]
            parts += [tab if has_value else end]
        if has_value:
            parts += [value(_NULL if message.value is None else message.value), end]
        return b"".join(parts)

    return write


def _time(message: Record) -> bytes:
    kind, milliseconds = message.timestamp_type, message.timestamp
    if kind is None or milliseconds is None:
        return b"NO_TIMESTAMP"
    return f"{kind.value}:{milliseconds}".encode()


# ---- deserializers ------------------------------------------------------------------------------

_PACKAGE: Final = "org.apache.kafka.common.serialization."
_NUMBERS: Final = {
    "LongDeserializer": ">q",
    "IntegerDeserializer": ">i",
    "ShortDeserializer": ">h",
}


def _deserializer(java: str | None) -> Callable[[bytes], bytes]:
    name = (java or "").removeprefix(_PACKAGE)
    if not name:
        return bytes
    if name == "StringDeserializer":
        return lambda data: data.decode(errors="replace").encode()
    if name not in _NUMBERS:
        raise JavaError("java.lang.ClassNotFoundException", java)
    form = struct.Struct(_NUMBERS[name])

    def decode(data: bytes) -> bytes:
        if len(data) != form.size:
            raise JavaError(
                "org.apache.kafka.common.errors.SerializationException",
                f"Size of data received by {name} is not {form.size}",
            )
        return str(form.unpack(data)[0]).encode()

    return decode


def _checksum(message: Record) -> int:
    """Return the CRC of the message in format 1, or in format 0 if it has no timestamp.

    Source: `Message.checksum`.
    """
    kind, milliseconds = message.timestamp_type, message.timestamp
    if kind is None or milliseconds is None:
        return _checksum_0(message)
    attributes = 8 if kind is TimestampType.LOG_APPEND_TIME else 0
    return _crc(message, struct.pack(">bbq", 1, attributes, milliseconds))


def _checksum_0(message: Record) -> int:
    """Return the CRC of the message in format 0, the only one that consumers up to 0.9 know."""
    return _crc(message, bytes(2))


def _crc(message: Record, head: bytes) -> int:
    return zlib.crc32(head + octets(message.key) + octets(message.value))


# ---- the tool ------------------------------------------------------------------------------------


GROUP, RESET, SMALLEST = "group.id", "auto.offset.reset", "smallest"
TOPICS = ("topic", "whitelist", "blacklist")

DEPRECATED = (
    "Using the ConsoleConsumer with old consumer is deprecated and will be removed in a future "
    "major release. Consider using the new consumer by passing [bootstrap-server] instead of "
    "[zookeeper]."
)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The arguments of one run, parsed; `skips` is `--skip-message-on-error`."""

    connect: str
    group: str | None
    properties: Mapping[str, str]
    wanted: TopicFilter
    write: Formatter
    most: int
    skips: bool


def run(tool: Tool) -> None:
    parser = Parser(options(tool.release), tool.release)
    if not tool.arguments:
        tool.usage(parser, SUMMARY)
    try:
        given = parser.parse(tool.arguments)
    except OptionError as error:
        if tool.release.since(KafkaRelease.R0_11):
            tool.usage(parser, str(error))
        tool.err(str(error))
        raise ToolExit(1) from None
    request = _parsed(tool, parser, given)
    with tool.zookeeper(request.connect, request.properties) as zk:
        group = request.group or _new_group(zk)
        _prepare(tool, zk, given, request, group)
        ended = _consume(tool, request, group)
        _report(tool, ended)
        if request.group is None:
            forget(zk.connection, group)
    if tool.release.since(KafkaRelease.R0_10) and given.has("enable-systest-events"):
        tool.out("shutdown_complete")
    if ended.code:
        raise ToolExit(ended.code)


# ---- arguments -----------------------------------------------------------------------------------


def _parsed(tool: Tool, parser: Parser, given: Options) -> _Request:
    modern = tool.release.since(KafkaRelease.R0_10)
    if not tool.release.since(KafkaRelease.R0_9):
        tool.require(parser, given, "zookeeper")
    # From 0.10 on the tool parses all values before it checks the combination of options.
    if not modern:
        _check(tool, parser, given)
    extra = _pairs(tool, given.values("consumer-property")) if modern else {}
    file = given.text("consumer.config")
    kept = {} if file is None else tool.properties(file)
    listed = _pairs(tool, given.values("property"))
    most = given.number("max-messages")
    timeout_ms = given.number("timeout-ms") if tool.release.since(KafkaRelease.R0_9) else None
    if tool.release.since(KafkaRelease.R0_11):
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
    if tool.release.since(KafkaRelease.R1):
        _agree_on_group(tool, parser, properties, [given.text("group"), kept.get(GROUP)])
    _set_reset(tool, given, properties)
    if timeout_ms is not None and timeout_ms >= 0:
        properties["consumer.timeout.ms"] = str(timeout_ms)
    named = properties.get(GROUP)
    return _Request(
        connect=given.required("zookeeper"),
        group=None if named is None else validate_group(named),
        properties=properties,
        wanted=_wanted(given),
        write=write,
        most=-1 if most is None else most,
        skips=given.has("skip-message-on-error"),
    )


def _check(tool: Tool, parser: Parser, given: Options) -> None:
    """Check that the options name exactly one set of topics, and the old consumer."""
    modern = tool.release.since(KafkaRelease.R0_10)
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

    (name,) = [one for one in TOPICS if given.has(one)]
    return (black_list if name == "blacklist" else white_list)(given.required(name))


def _refuse_new(tool: Tool, parser: Parser, given: Options) -> None:
    modern = tool.release.since(KafkaRelease.R0_10)
    names = ("topic", "whitelist") if modern else ("topic",)
    if sum(map(given.has, names)) != 1:
        tool.usage(
            parser,
            "Exactly one of whitelist/topic is required." if modern else "Topic must be specified.",
        )
    tool.require(parser, given, "bootstrap-server")
    raise ConfigError(
        "the new consumer is not supported",
        where="--bootstrap-server",
        remedy="use Kafka's kafka-console-consumer.sh",
    )


def _pairs(tool: Tool, texts: list[str]) -> dict[str, str]:
    """Parse NAME=VALUE arguments; a name without a value gets the value ""
    (`parseKeyValueArgs`)."""
    found = {}
    for text in texts:
        # Java's String.split drops empty parts at the end.
        match text.rstrip("=").split("="):
            case [""]:
                continue
            case [name]:
                found[name] = ""
            case [name, value]:
                found[name] = value
            case _:
                tool.err(f"Invalid command line properties: {' '.join(texts)}")
                raise ToolExit(1)
    return found


def _agree_on_group(
    tool: Tool, parser: Parser, properties: dict[str, str], others: Iterable[str | None]
) -> None:
    """Require that all options and properties name the same group, as release 1.0 does."""
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
    """Set `auto.offset.reset`; only release 1.0 uses the value in the properties."""
    value = properties.get(RESET)
    if value is None or not tool.release.since(KafkaRelease.R1):
        properties[RESET] = SMALLEST if given.has("from-beginning") else "largest"
    elif given.has("from-beginning") and value != SMALLEST:
        tool.err(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={value}', "
            "please remove one option"
        )
        raise ToolExit(1)


# ---- preparation ---------------------------------------------------------------------------------


def _prepare(tool: Tool, zk: ZkUtils, given: Options, request: _Request, group: str) -> None:

    if tool.release.since(KafkaRelease.R0_9) and not zk.exists(paths.BROKER_IDS):
        tool.err("No brokers found in ZK.")
        raise ToolExit(1)
    if given.has("delete-consumer-offsets"):
        tool.writing(zk).delete(paths.group(group), live=Live.FORCE)
        return
    begins = given.has("from-beginning")
    if tool.release.since(KafkaRelease.R1):
        begins = begins or request.properties[RESET] == SMALLEST
    if begins and zk.exists(paths.offsets(group)):
        tool.err(
            f"Found previous offset information for this group {group}. Please use "
            "--delete-consumer-offsets to delete previous offsets metadata"
        )
        raise ToolExit(1)


def _new_group(zk: ZkUtils) -> str:
    """Return a random group name that is not in use; the group is deleted after the run."""
    while zk.exists(paths.group(name := f"console-consumer-{random.randrange(100_000)}")):
        pass
    return name


# ---- consuming -----------------------------------------------------------------------------------


class _SignalError(Exception):
    """SIGINT or SIGTERM was received."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _signals() -> Iterator[None]:
    """Raise `_SignalError` on the first signal, and restore the old handlers for a second one.

    Only the main thread can set handlers; in another thread nothing changes.
    """
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
    """Result of a run: number of messages, exit code, and the formatter's exception."""

    messages: int
    code: int = 0
    error: JavaError | None = None


def _report(tool: Tool, ended: _End) -> None:
    modern = tool.release.since(KafkaRelease.R0_9)
    count = f"{'Processed a total of' if modern else 'Consumed'} {ended.messages} messages"
    if modern:
        tool.err(count)
    if ended.error is not None:
        words = (
            "Unknown error when running consumer"
            if modern
            else ("Error processing message, stopping consumer")
        )
        tool.log("ERROR", f"{words}: ")
        tool.err(f"{ended.error.kind}: {ended.error.text}")
    if not modern:
        tool.err(count)


def _consume(tool: Tool, request: _Request, group: str) -> _End:
    """Consume until a limit, a timeout, a signal or an error ends the run.

    A message that a signal or a closed pipe interrupts counts as unwritten, and is redelivered.
    """
    from zkconsumer import ConsumerConnector

    config = ConsumerConfig.from_properties(
        dict(request.properties),
        tool.own_properties(),
        zookeeper_connect=request.connect,
        group_id=group,
    )
    messages = _Messages(tool, request)
    try:
        with _signals(), ConsumerConnector(config) as connector:
            (stream,) = connector.create_message_streams_by_filter(request.wanted, 1)
            messages.take(stream)
    except OSError as error:
        if not is_of_stdout(error):
            raise
        abandon_stdout()
        tool.err("Unable to write to standard out, closing consumer.")
        return _End(messages.count, 0 if tool.release.since(KafkaRelease.R0_10) else 1)
    except JavaError as error:
        return _End(messages.count, 1 if tool.release.since(KafkaRelease.R0_9) else 0, error)
    except _SignalError as error:
        return _End(messages.count, 128 + error.number)
    return _End(messages.count)


class _Messages:
    """Takes messages from the stream, writes them, and counts them."""

    def __init__(self, tool: Tool, request: _Request) -> None:
        self._tool, self._request = tool, request
        self.count = 0

    def take(self, stream: Iterable[Record]) -> None:
        if self._request.most == 0:
            return
        try:
            for message in stream:
                self.count += 1
                self._write(message)
                if self.count == self._request.most:
                    return
        except ConsumerTimeoutError:
            modern = self._tool.release.since(KafkaRelease.R0_9)
            ending = "terminating consumer process" if modern else "stopping consumer"
            self._tool.log("ERROR", f"Error processing message, {ending}: ")
            self._tool.err("kafka.consumer.ConsumerTimeoutException")

    def _write(self, message: Record) -> None:
        try:
            data = memoryview(self._request.write(message))
        except JavaError as error:
            if not self._request.skips:
                raise
            self._tool.log("ERROR", "Error processing message, skipping this message: ")
            self._tool.err(f"{error.kind}: {error.text}")
            return
        # With PYTHONUNBUFFERED `buffer` is the raw file, whose write() may be partial.
        while data:
            data = data[sys.stdout.buffer.write(data) :]
        sys.stdout.buffer.flush()
