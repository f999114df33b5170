"""The options of `format("zkconsumer")`, checked strictly and kept as an immutable value.

Names and rules are those of Spark's Kafka connector (`KafkaSourceProvider`, Spark 4.3). In addition
there are `zookeeper`, `mode`, `streams`, `mirrorOffsets` and `pushFilters`, and every property of
the old consumer (`ConsumerConfig`). The case of names does not matter, because Spark passes all
names in lower case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Literal, Self

from zkconsumer.config.settings import SETTINGS, ConsumerConfig
from zkconsumer.errors import ConfigError, InvalidNameError
from zkconsumer.protocol import paths
from zkconsumer.protocol.filters import TopicFilter, white_list
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.spark.option_parsing import (
    EARLIEST,
    LATEST,
    SECRET,
    AtOffsets,
    AtRanges,
    NamedPosition,
    OffsetOption,
    connection_properties,
    did_you_mean,
    parse_choice,
    parse_duration,
    parse_flag,
    parse_offsets,
    parse_partitions,
    parse_positive_integer,
    parse_starting_offsets,
    parse_time,
    parse_times,
    split_kafka_properties,
    with_documented_names,
)
from zkconsumer.spark.schema import HEADERS, TOKEN

_log = SafeLogger(logging.getLogger(__name__))

NO_GROUP: Final = "zkconsumer-spark"
"""The group name of the broker client if `group.id` is not set. No offset is stored under this
name.
"""

REVOKE_GRACE_MS: Final = 4000
"""Default of `revoke.grace.ms`.

JVM members try for 8 s to claim their partitions (`rebalance.max.retries` x `rebalance.backoff.ms`,
0.8 to 1.1), and own nothing if they fail. So this grace should be well under 8 s, and a batch
should take less time than the grace.
"""

PATIENCE_SESSIONS: Final = 10
"""Default of `zookeeper.patience.ms`, in session timeouts."""

POLL_TIMEOUT_MS: Final = 120_000
"""Default of `kafkaConsumer.pollTimeoutMs`, the same as in Spark's connector
(`spark.network.timeout`). A broker's restart or a leader election takes less time.
"""

MAX_TRIGGER_DELAY: Final = "15m"
"""Default of `maxTriggerDelay`, the same as in Spark's connector."""

OnRestart = Literal["max", "zookeeper", "checkpoint"]

_MAX_INT: Final = 2**31 - 1
_MAX_LONG: Final = 2**63 - 1


class Mode(Enum):
    """Whether the query is a member of the group."""

    GROUP = "group"  # a member that reads the partitions it owns (KafkaInputDStream)
    DIRECT = "direct"  # all partitions, from the checkpoint's offsets (DirectKafkaInputDStream)


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics by name, each with its number of threads; only group mode uses the numbers."""

    threads: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Matching:
    """All topics that a regex matches, with a number of threads; only group mode uses the
    number."""

    filter: TopicFilter
    threads: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """Exactly these partitions."""

    partitions: Mapping[str, tuple[int, ...]]


Subscription = Topics | Matching | Assigned


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The options of a query. Options can be pickled, and their repr shows no credentials.

    `parse` creates them; `for_stream` or `for_batch` then checks and completes them.

    Attributes:
        config: the old consumer's settings; `group_id` is NO_GROUP if `group` is None.
        group: `group.id`, or None.
        starting: the start of partitions that the checkpoint does not contain; None until the
            options are completed.
        ending: where a batch read ends; None in a stream.
        without_match: what happens if no message has the starting time or a later one.
        max_per_trigger: maximum number of messages in a batch.
        min_per_trigger: minimum number of messages in a batch, or None.
        max_delay_s: seconds after a batch; later batches may be smaller than `min_per_trigger`.
        min_partitions: minimum number of tasks in a batch.
        max_records: maximum number of messages that a task reads.
        more_columns: the columns besides those that Spark's connector always has.
        fail_on_data_loss: whether the query fails if messages are no longer in the log. Otherwise
            it logs a warning and continues.
        mirror_offsets: whether direct mode writes the offsets of finished batches to the group's
            offset znodes.
        push_filters: whether a batch read applies Spark's filters itself.
        revoke_grace_s: group mode: seconds that a release waits for the batch in flight.
        on_restart: group mode: which offset a restarted query uses, the checkpoint's or the
            group's.
        patience_s: group mode: seconds that ZooKeeper may be unreachable before the query fails.
        fail_on_missing_share: group mode with `Trigger.AvailableNow`: whether a query fails if it
            owns less than its share when the run starts. Otherwise it warns and reads what it owns.
        poll_timeout_s: seconds that a task waits for a message from the brokers.
        given: the documented names of the options that the user set.
    """

    config: ConsumerConfig
    mode: Mode
    group: str | None
    subscription: Subscription
    starting: OffsetOption | None = None
    ending: OffsetOption | None = None
    without_match: Literal["error", "latest"] = "error"
    max_per_trigger: int | None = None
    min_per_trigger: int | None = None
    max_delay_s: float = 900.0
    min_partitions: int | None = None
    max_records: int | None = None
    more_columns: tuple[str, ...] = ()
    fail_on_data_loss: bool = True
    mirror_offsets: bool = False
    push_filters: bool = False
    revoke_grace_s: float = 4.0
    on_restart: OnRestart = "max"
    patience_s: float = 60.0
    fail_on_missing_share: bool = True
    poll_timeout_s: float = POLL_TIMEOUT_MS / 1000
    given: frozenset[str] = field(default=frozenset())

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse the options of `option` calls. Raises one ConfigError for all unknown names."""
        given = _named(options)
        mode = parse_choice(given, "mode", {mode.value: mode for mode in Mode}, Mode.DIRECT)
        _check_together(given, mode)
        config, group = _config(given)
        return cls(
            config=config,
            mode=mode,
            group=group,
            subscription=_subscription(given, mode),
            starting=_offset_option(given, "starting"),
            ending=_offset_option(given, "ending"),
            without_match=parse_choice(
                given,
                "startingOffsetsByTimestampStrategy",
                {"error": "error", "latest": "latest"},
                "error",
            ),
            max_per_trigger=parse_positive_integer(given, "maxOffsetsPerTrigger", _MAX_LONG),
            min_per_trigger=parse_positive_integer(given, "minOffsetsPerTrigger", _MAX_LONG),
            max_delay_s=parse_duration(given, "maxTriggerDelay", MAX_TRIGGER_DELAY),
            min_partitions=parse_positive_integer(given, "minPartitions", _MAX_INT),
            max_records=parse_positive_integer(given, "maxRecordsPerPartition", _MAX_LONG),
            more_columns=tuple(
                column for name, column in _COLUMNS.items() if parse_flag(given, name, "false")
            ),
            fail_on_data_loss=parse_flag(given, "failOnDataLoss", "true"),
            mirror_offsets=parse_flag(given, "mirrorOffsets", "false"),
            push_filters=parse_flag(given, "pushFilters", "false"),
            revoke_grace_s=(
                parse_positive_integer(given, "revoke.grace.ms", _MAX_INT) or REVOKE_GRACE_MS
            )
            / 1000,
            on_restart=parse_choice(
                given,
                "offsets.on.restart",
                {"max": "max", "zookeeper": "zookeeper", "checkpoint": "checkpoint"},
                "max",
            ),
            patience_s=(
                parse_positive_integer(given, "zookeeper.patience.ms", _MAX_INT)
                or PATIENCE_SESSIONS * config.zookeeper_session_timeout_s * 1000
            )
            / 1000,
            fail_on_missing_share=parse_flag(given, "failOnMissingShare", "true"),
            poll_timeout_s=(
                parse_positive_integer(given, "kafkaConsumer.pollTimeoutMs", _MAX_INT)
                or POLL_TIMEOUT_MS
            )
            / 1000,
            given=frozenset(given),
        )

    def for_stream(self) -> Self:
        """Complete the options for `readStream`. Raises ConfigError for options that apply to
        batches only.
        """
        self._refuse(
            "readStream",
            _BATCH_ONLY,
            "remove it: a stream has no end; only a batch read (`read`) has one",
        )
        if isinstance(self.starting, AtRanges):
            raise ConfigError(
                "a stream has no end, and a range of offsets has one",
                where="startingOffsets",
                remedy="name one offset for each partition, from which the stream starts:"
                f" {self.starting.ends_as_json()}",
            )
        if self.starting is not None:
            return self._checked()
        default = NamedPosition.LATEST if self.group is None else NamedPosition.ZOOKEEPER
        return replace(self, starting=default)._checked()

    def for_batch(self) -> Self:
        """Complete the options for `read`. Raises ConfigError for options that apply to streams
        only.
        """
        if self.mode is Mode.GROUP:
            raise ConfigError(
                "a batch read cannot be a member of a group",
                where="mode=group",
                remedy="remove mode; startingOffsets=zookeeper starts at the stored offsets",
            )
        self._refuse("read", _STREAM_ONLY, "remove it: it applies to streams (`readStream`)")
        if isinstance(self.starting, AtRanges):
            return self._of_ranges(self.starting)._checked()
        done = replace(
            self,
            starting=self.starting or NamedPosition.EARLIEST,
            ending=self.ending or NamedPosition.LATEST,
        )
        _refuse_empty("startingOffsets", done.starting, NamedPosition.LATEST, LATEST)
        _refuse_empty("endingOffsets", done.ending, NamedPosition.EARLIEST, EARLIEST)
        return done._checked()

    def _of_ranges(self, ranges: AtRanges) -> Self:
        """Return the options for exactly these ranges, as a query's progress contains them."""
        if self.ending is not None:
            raise ConfigError(
                "startingOffsets already says where each range ends",
                where=", ".join(name for name in _ENDING if name in self.given),
                remedy="remove it",
            )
        wanted = self.subscription
        named = {tp.topic for tp in ranges.ranges}
        if isinstance(wanted, Topics) and named <= wanted.threads.keys():
            wanted = Assigned(ranges.partitions())
        return replace(
            self,
            subscription=wanted,
            starting=AtOffsets({tp: start for tp, (start, _) in ranges.ranges.items()}),
            ending=AtOffsets({tp: end for tp, (_, end) in ranges.ranges.items()}),
        )

    def _refuse(self, use: str, names: frozenset[str], remedy: str) -> None:
        if wrong := sorted(self.given & names):
            raise ConfigError(
                f"the option does not apply to {use}", where=", ".join(wrong), remedy=remedy
            )

    def _checked(self) -> Self:
        if self.group is None and NamedPosition.ZOOKEEPER in (self.starting, self.ending):
            raise ConfigError(
                "the offset `zookeeper` means a group's stored offset, and no group is set",
                where="startingOffsets, endingOffsets",
                remedy="set group.id, or use earliest",
            )
        least, most = self.min_per_trigger, self.max_per_trigger
        if least is not None and most is not None and least > most:
            raise ConfigError(
                f"a batch cannot have at least {least} and at most {most} messages",
                where="minOffsetsPerTrigger, maxOffsetsPerTrigger",
                remedy="set minOffsetsPerTrigger to at most maxOffsetsPerTrigger",
            )
        if self.mode is Mode.GROUP and not self.config.auto_commit_enable:
            raise ConfigError(
                "a query with mode=group must commit finished batches: without a commit the next"
                " owner of a partition would read them again",
                where="auto.commit.enable=false",
                remedy="remove it; mode=direct without mirrorOffsets commits nothing",
            )
        return self


# ---- Names ---------------------------------------------------------------------------------------

_STARTING: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDING: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_TOPICS: Final = ("subscribe", "subscribePattern", "assign")
_BATCH_ONLY: Final = frozenset({*_ENDING, "pushFilters"})
_STREAM_ONLY: Final = frozenset(
    {"maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "mirrorOffsets"}
)
# Option -> the column that it adds to the default schema.
_COLUMNS: Final = {"includeHeaders": HEADERS, "includeToken": TOKEN}
_GROUP_ONLY: Final = frozenset(
    {
        "includeToken",
        "streams",
        "revoke.grace.ms",
        "offsets.on.restart",
        "zookeeper.patience.ms",
        "failOnMissingShare",
    }
)
_DIRECT_ONLY: Final = frozenset(
    {
        "assign",
        "mirrorOffsets",
        "startingOffsetsByTimestampStrategy",
        "release.grace.ms",
        *_STARTING[1:],
        *_ENDING,
    }
)

OPTIONS: Final = (
    "zookeeper",
    SECRET,
    "mode",
    *_TOPICS,
    "streams",
    *_STARTING,
    "startingOffsetsByTimestampStrategy",
    *_ENDING,
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "mirrorOffsets",
    "pushFilters",
    *_COLUMNS,
    "revoke.grace.ms",
    "offsets.on.restart",
    "zookeeper.patience.ms",
    "failOnMissingShare",
)
"""The options besides the old consumer's property names."""

_PROPERTIES: Final = tuple(row.name for row in SETTINGS)
_NAMES: Final = {name.lower(): name for name in (*OPTIONS, *_PROPERTIES)}

# Options of Spark's connector that this source does not have, each with the alternative.
_FOREIGN: Final = {
    "path": "load() and table() take no path here; set subscribe to the topics",
    "kafka.bootstrap.servers": "the brokers are found in ZooKeeper; set zookeeper",
    "kafka.group.id": "set group.id instead",
    "groupidprefix": "set group.id instead",
    "fetchoffset.numretries": "offset requests are retried for socket.timeout.ms",
    "fetchoffset.retryintervalms": "offset requests are retried for socket.timeout.ms",
}


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under their documented names, with their values as text."""
    kafka, others = split_kafka_properties(options, but=_FOREIGN)
    return with_documented_names(others, _NAMES, hint=_hint) | kafka


def _hint(key: str) -> str:
    name = key.lower()
    if name in _FOREIGN:
        return _FOREIGN[name]
    return did_you_mean(name, _NAMES)


def _check_together(given: Mapping[str, str], mode: Mode) -> None:
    """Refuse options that contradict each other or that do not apply to the mode."""
    topics = [name for name in _TOPICS if name in given]
    if len(topics) != 1:
        raise ConfigError(
            "several options name the topics to read"
            if topics
            else "no option names the topics to read",
            where=", ".join(topics or _TOPICS),
            remedy="set exactly one of these options",
        )
    for names in (_STARTING, _ENDING):
        several = [name for name in names if name in given]
        if len(several) > 1:
            raise ConfigError(
                "options contradict each other",
                where=", ".join(several),
                remedy="set only one of them",
            )
    if wrong := sorted(given.keys() & (_DIRECT_ONLY if mode is Mode.GROUP else _GROUP_ONLY)):
        other = Mode.DIRECT if mode is Mode.GROUP else Mode.GROUP
        raise ConfigError(
            f"the option does not apply to mode={mode.value}",
            where=", ".join(wrong),
            remedy=f"remove it, or set mode={other.value}",
        )
    if mode is Mode.GROUP and given.get("startingOffsets", "zookeeper").lower() != "zookeeper":
        raise ConfigError(
            "a member of a group starts at the group's stored offsets",
            where="startingOffsets",
            remedy="remove it; auto.offset.reset applies if no offset is stored, and"
            " `zkconsumer offsets set` changes a group's offsets",
        )
    if given.get("mirrorOffsets", "false").lower() == "true" and "group.id" not in given:
        raise ConfigError(
            "no group is set, so offsets cannot be written",
            where="mirrorOffsets",
            remedy="set group.id",
        )


# ---- Values --------------------------------------------------------------------------------------


def _config(given: Mapping[str, str]) -> tuple[ConsumerConfig, str | None]:
    properties = connection_properties(given, _PROPERTIES, _log)
    group = properties.setdefault("group.id", NO_GROUP)
    return ConsumerConfig.from_properties(properties), group if "group.id" in given else None


def _subscription(given: Mapping[str, str], mode: Mode) -> Subscription:
    if mode is Mode.GROUP and "group.id" not in given:
        raise ConfigError("mode=group needs a group", where="group.id", remedy="set it")
    streams = parse_positive_integer(given, "streams", _MAX_INT) or 1
    if "assign" in given:
        return Assigned(parse_partitions("assign", given["assign"]))
    if "subscribePattern" in given:
        return Matching(white_list(given["subscribePattern"]), streams)
    threads: dict[str, int] = {}
    for part in filter(None, map(str.strip, given["subscribe"].split(","))):
        topic, colon, count = part.partition(":")
        if colon and mode is Mode.DIRECT:
            raise ConfigError(
                f"{part!r} sets a number of threads, which applies to mode=group only",
                where="subscribe",
                remedy=f"subscribe={topic}, or mode=group",
            )
        try:
            paths.validate_topic(topic.strip())
        except InvalidNameError as error:
            raise ConfigError(error.what, where="subscribe", remedy=error.remedy) from None
        if topic.strip() in threads:
            raise ConfigError(
                f"topic {topic.strip()} is named twice", where="subscribe", remedy="name it once"
            )
        number = (
            parse_positive_integer({"subscribe": count}, "subscribe", _MAX_INT)
            if colon
            else streams
        )
        threads[topic.strip()] = number or streams
    if not threads:
        raise ConfigError(
            "no topic is set", where="subscribe", remedy="set topics, separated by commas"
        )
    return Topics(threads)


def _offset_option(
    given: Mapping[str, str], side: Literal["starting", "ending"]
) -> OffsetOption | None:
    parsers: dict[str, Callable[[str, str], OffsetOption]] = {
        f"{side}Offsets": parse_starting_offsets if side == "starting" else parse_offsets,
        f"{side}Timestamp": parse_time,
        f"{side}OffsetsByTimestamp": parse_times,
    }
    found = [parse(name, given[name]) for name, parse in parsers.items() if name in given]
    return found[0] if found else None


def _refuse_empty(
    option: str, given: OffsetOption | None, place: NamedPosition, number: int
) -> None:
    """Refuse a batch that starts at the end or ends at the beginning: it is a mistake, and Spark
    refuses it too.
    """
    if given is place or (isinstance(given, AtOffsets) and number in given.offsets.values()):
        raise ConfigError(
            f"with {place.value} a batch would be empty",
            where=option,
            remedy="use another offset, or readStream",
        )
