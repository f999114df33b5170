"""The options of `format("zkconsumer")`: strict, and as an immutable value.

Names and rules are those of Spark's Kafka connector (`KafkaSourceProvider`, Spark 4.3), with
`zookeeper`, `mode`, `streams`, `mirrorOffsets` and `pushFilters` added, and every property name of
the old consumer (`ConsumerConfig`). Case does not matter: Spark hands all names over in lower case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Literal, Self

from zkconsumer.config.settings import TABLE, ConsumerConfig
from zkconsumer.errors import ConfigError, InvalidNameError
from zkconsumer.protocol import paths
from zkconsumer.protocol.filters import TopicFilter, white_list
from zkconsumer.spark.option_parsing import (
    EARLIEST,
    LATEST,
    AtOffsets,
    Place,
    Position,
    choice,
    flag,
    named,
    nearest,
    parse_offsets,
    parse_partitions,
    parse_time,
    parse_times,
    whole,
)

NO_GROUP: Final = "zkconsumer-spark"
"""The name by which the brokers know a client without `group.id`; nothing is stored under it."""

REVOKE_GRACE_MS: Final = 4000
"""Default of `revoke.grace.ms`. JVM members try for 8 seconds to claim what they are due
(`rebalance.max.retries` x `rebalance.backoff.ms`, 0.8 to 1.1) and then own nothing: so it should
stay well under that, and a batch under it."""

PATIENCE_SESSIONS: Final = 10
"""Default of `zookeeper.patience.ms`, in session timeouts."""

POLL_TIMEOUT_MS: Final = 120_000
"""Default of `kafkaConsumer.pollTimeoutMs`, that of Spark's connector (`spark.network.timeout`): a
broker is restarted, or a leader found, in less."""

OnRestart = Literal["max", "zookeeper", "checkpoint"]

_MAX_INT: Final = 2**31 - 1
_MAX_LONG: Final = 2**63 - 1


class Mode(Enum):
    """How the query stands to the group."""

    GROUP = "group"  # a member: it reads what it owns (KafkaInputDStream)
    DIRECT = "direct"  # all partitions, as the checkpoint says (DirectKafkaInputDStream)


@dataclass(frozen=True, slots=True)
class Topics:
    """These topics by name; in group mode with the number of threads of each."""

    threads: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Matching:
    """All topics that a regex matches; in group mode with that number of threads."""

    filter: TopicFilter
    threads: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions and no others."""

    partitions: Mapping[str, tuple[int, ...]]


Subscription = Topics | Matching | Assigned


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What a query asks for; picklable, and its repr shows no credential.

    Made by `parse`, and then checked and completed by `for_stream` or `for_batch`.

    Attributes:
        config: the old consumer's settings; `group_id` is NO_GROUP where there is no `group`.
        group: `group.id`, if one is given.
        starting: where partitions begin that no checkpoint knows; None until completed.
        ending: where a batch read ends; None in a stream.
        without_match: what becomes of a starting time that no message has reached.
        max_per_trigger: messages of one batch at most.
        min_partitions: tasks of one batch at least.
        fail_on_data_loss: messages that are gone end the query; else it goes on, and says so.
        mirror_offsets: direct mode writes finished batches into the group's offset znodes.
        push_filters: a batch read takes Spark's filters over.
        revoke_grace_s: how long a release waits for the batch in flight, in group mode.
        on_restart: group mode: which counts of the checkpoint's offset and the group's.
        patience_s: group mode: how long ZooKeeper may be away before the query fails.
        fail_on_missing_share: group mode with `Trigger.AvailableNow`: a query that owns less than
            its share when the run begins fails; else it reads what it owns, and warns.
        poll_timeout_s: how long a task waits for brokers from which nothing comes.
        given: the names of the options that were given, as they are written in the documentation.
    """

    config: ConsumerConfig
    mode: Mode
    group: str | None
    subscription: Subscription
    starting: Position | None = None
    ending: Position | None = None
    without_match: Literal["error", "latest"] = "error"
    max_per_trigger: int | None = None
    min_partitions: int | None = None
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
        """From what was given to `option`; raises one ConfigError for all names that are wrong."""
        given = _named(options)
        mode = choice(given, "mode", {mode.value: mode for mode in Mode}, Mode.DIRECT)
        _check_together(given, mode)
        config, group = _config(given)
        return cls(
            config=config,
            mode=mode,
            group=group,
            subscription=_subscription(given, mode),
            starting=_position(given, "starting"),
            ending=_position(given, "ending"),
            without_match=choice(
                given,
                "startingOffsetsByTimestampStrategy",
                {"error": "error", "latest": "latest"},
                "error",
            ),
            max_per_trigger=whole(given, "maxOffsetsPerTrigger", _MAX_LONG),
            min_partitions=whole(given, "minPartitions", _MAX_INT),
            fail_on_data_loss=flag(given, "failOnDataLoss", "true"),
            mirror_offsets=flag(given, "mirrorOffsets", "false"),
            push_filters=flag(given, "pushFilters", "false"),
            revoke_grace_s=(whole(given, "revoke.grace.ms", _MAX_INT) or REVOKE_GRACE_MS) / 1000,
            on_restart=choice(
                given,
                "offsets.on.restart",
                {"max": "max", "zookeeper": "zookeeper", "checkpoint": "checkpoint"},
                "max",
            ),
            patience_s=(
                whole(given, "zookeeper.patience.ms", _MAX_INT)
                or PATIENCE_SESSIONS * config.zookeeper_session_timeout_s * 1000
            )
            / 1000,
            fail_on_missing_share=flag(given, "failOnMissingShare", "true"),
            poll_timeout_s=(
                whole(given, "kafkaConsumer.pollTimeoutMs", _MAX_INT) or POLL_TIMEOUT_MS
            )
            / 1000,
            given=frozenset(given),
        )

    def for_stream(self) -> Self:
        """Complete for `readStream`. Raises ConfigError for what makes sense in batches only."""
        self._refuse("readStream", _BATCH_ONLY, "a stream has no end; a batch read (`read`) has")
        if self.starting is not None:
            return self._checked()
        default = Place.LATEST if self.group is None else Place.ZOOKEEPER
        return replace(self, starting=default)._checked()

    def for_batch(self) -> Self:
        """Complete for `read`. Raises ConfigError for what makes sense in streams only."""
        if self.mode is Mode.GROUP:
            raise ConfigError(
                "a batch read is no member of a group",
                where="mode=group",
                remedy="leave mode out; startingOffsets=zookeeper begins where the group stands",
            )
        self._refuse("read", _STREAM_ONLY, "it is for streams (`readStream`)")
        done = replace(
            self, starting=self.starting or Place.EARLIEST, ending=self.ending or Place.LATEST
        )
        _refuse_empty("startingOffsets", done.starting, Place.LATEST, LATEST)
        _refuse_empty("endingOffsets", done.ending, Place.EARLIEST, EARLIEST)
        return done._checked()

    def _refuse(self, use: str, names: frozenset[str], remedy: str) -> None:
        if wrong := sorted(self.given & names):
            raise ConfigError(f"no option of {use}", where=", ".join(wrong), remedy=remedy)

    def _checked(self) -> Self:
        if self.group is None and Place.ZOOKEEPER in (self.starting, self.ending):
            raise ConfigError(
                "zookeeper as an offset means what a group has stored, and no group is named",
                where="startingOffsets, endingOffsets",
                remedy="set group.id, or say earliest",
            )
        if self.mode is Mode.GROUP and not self.config.auto_commit_enable:
            raise ConfigError(
                "a query in a group commits what it has finished: nobody else knows that, and"
                " whoever owns a partition next would read it again from the last commit",
                where="auto.commit.enable=false",
                remedy="leave it out; mode=direct without mirrorOffsets commits nothing",
            )
        return self


# ---- names --------------------------------------------------------------------------------------

_STARTING: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDING: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_TOPICS: Final = ("subscribe", "subscribePattern", "assign")
_BATCH_ONLY: Final = frozenset({*_ENDING, "pushFilters"})
_STREAM_ONLY: Final = frozenset({"maxOffsetsPerTrigger", "mirrorOffsets"})
_GROUP_ONLY: Final = frozenset(
    {
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
    "mode",
    *_TOPICS,
    "streams",
    *_STARTING,
    "startingOffsetsByTimestampStrategy",
    *_ENDING,
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "mirrorOffsets",
    "pushFilters",
    "includeHeaders",
    "revoke.grace.ms",
    "offsets.on.restart",
    "zookeeper.patience.ms",
    "failOnMissingShare",
)
"""The options beside the old consumer's property names."""

_PROPERTIES: Final = tuple(row.name for row in TABLE)
_NAMES: Final = {name.lower(): name for name in (*OPTIONS, *_PROPERTIES)}

# Options of Spark's connector that are none of ours, and why.
_FOREIGN: Final = {
    "path": "load() and table() take no path here: name topics with subscribe",
    "kafka.bootstrap.servers": "the brokers are found in ZooKeeper: set zookeeper",
    "kafka.group.id": "the group is named by group.id",
    "groupidprefix": "the group is named by group.id",
    "minoffsetspertrigger": "set the trigger's interval instead",
    "maxtriggerdelay": "set the trigger's interval instead",
    "maxrecordsperpartition": "set minPartitions instead",
    "fetchoffset.numretries": "offsets are asked for until socket.timeout.ms is over",
    "fetchoffset.retryintervalms": "offsets are asked for until socket.timeout.ms is over",
}


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """The options by the names of the documentation, values as text."""
    given = named(options, _NAMES, hint=_hint)
    if given.pop("includeHeaders", "false").lower() != "false":
        raise ConfigError(
            "headers are not read",
            where="includeHeaders",
            remedy="leave it out: the old consumer and the record formats it reads have none",
        )
    return given


def _hint(key: str) -> str:
    name = key.lower()
    if name in _FOREIGN:
        return _FOREIGN[name]
    found = nearest(name.removeprefix("kafka."), _NAMES)
    if name.startswith("kafka."):
        return f"settings of the new consumer do not apply; {found}"
    return found


def _check_together(given: Mapping[str, str], mode: Mode) -> None:
    """Options that exclude one another, or that the mode excludes."""
    topics = [name for name in _TOPICS if name in given]
    if len(topics) != 1:
        raise ConfigError(
            "one option must say which topics are read" + ("" if not topics else ", and only one"),
            where=", ".join(topics or _TOPICS),
            remedy="set exactly one of them",
        )
    for names in (_STARTING, _ENDING):
        several = [name for name in names if name in given]
        if len(several) > 1:
            raise ConfigError(
                "they contradict each other", where=", ".join(several), remedy="set one of them"
            )
    if wrong := sorted(given.keys() & (_DIRECT_ONLY if mode is Mode.GROUP else _GROUP_ONLY)):
        other = Mode.DIRECT if mode is Mode.GROUP else Mode.GROUP
        raise ConfigError(
            f"no option of mode={mode.value}",
            where=", ".join(wrong),
            remedy=f"leave it out, or set mode={other.value}",
        )
    if mode is Mode.GROUP and given.get("startingOffsets", "zookeeper").lower() != "zookeeper":
        raise ConfigError(
            "a member of a group begins where the group stands",
            where="startingOffsets",
            remedy="leave it out; auto.offset.reset decides where nothing is stored, and"
            " `zkconsumer offsets set` moves a group",
        )
    if given.get("mirrorOffsets", "false").lower() == "true" and "group.id" not in given:
        raise ConfigError(
            "no group is named whose offsets are to be written",
            where="mirrorOffsets",
            remedy="set group.id",
        )


# ---- values -------------------------------------------------------------------------------------


def _config(given: Mapping[str, str]) -> tuple[ConsumerConfig, str | None]:
    properties = {name: given[name] for name in _PROPERTIES if name in given}
    connect = {given[name] for name in ("zookeeper", "zookeeper.connect") if name in given}
    if len(connect) > 1:
        raise ConfigError(
            "they are two names of one option and differ",
            where="zookeeper, zookeeper.connect",
            remedy="set one of them",
        )
    if not connect:
        raise ConfigError(
            "no ZooKeeper is named", where="zookeeper", remedy="host:port[,host:port...][/chroot]"
        )
    properties["zookeeper.connect"] = connect.pop()
    group = properties.setdefault("group.id", NO_GROUP)
    return ConsumerConfig.from_properties(properties), group if "group.id" in given else None


def _subscription(given: Mapping[str, str], mode: Mode) -> Subscription:
    if mode is Mode.GROUP and "group.id" not in given:
        raise ConfigError("no group is named to be a member of", where="group.id", remedy="set it")
    streams = whole(given, "streams", _MAX_INT) or 1
    if "assign" in given:
        return Assigned(parse_partitions("assign", given["assign"]))
    if "subscribePattern" in given:
        return Matching(white_list(given["subscribePattern"]), streams)
    threads: dict[str, int] = {}
    for part in filter(None, map(str.strip, given["subscribe"].split(","))):
        topic, colon, count = part.partition(":")
        if colon and mode is Mode.DIRECT:
            raise ConfigError(
                f"{part!r}: threads are for members of a group",
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
        number = whole({"subscribe": count}, "subscribe", _MAX_INT) if colon else streams
        threads[topic.strip()] = number or streams
    if not threads:
        raise ConfigError(
            "no topic is named", where="subscribe", remedy="topics, separated by commas"
        )
    return Topics(threads)


def _position(given: Mapping[str, str], side: Literal["starting", "ending"]) -> Position | None:
    parsers: dict[str, Callable[[str, str], Position]] = {
        f"{side}Offsets": parse_offsets,
        f"{side}Timestamp": parse_time,
        f"{side}OffsetsByTimestamp": parse_times,
    }
    found = [parse(name, given[name]) for name, parse in parsers.items() if name in given]
    return found[0] if found else None


def _refuse_empty(option: str, given: Position | None, place: Place, number: int) -> None:
    """A batch that begins at the end, or ends at the beginning, is a slip (Spark refuses it)."""
    if given is place or (isinstance(given, AtOffsets) and number in given.offsets.values()):
        raise ConfigError(
            f"{place.value} leaves nothing to read in a batch",
            where=option,
            remedy="another offset, or readStream",
        )
