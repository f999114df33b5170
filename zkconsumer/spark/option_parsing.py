"""Parsing of Spark options for both formats: option names, plain values, and start and end
positions.

Names and values are checked strictly. The words and JSON forms of positions are those of Spark's
Kafka connector (`KafkaOffsetRangeLimit`, `org.apache.spark.sql.kafka010.JsonUtils`), plus
`zookeeper`. Everything here is pure, except that `connection_properties` reads the environment.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from zkconsumer.config.kafka_properties import PREFIX
from zkconsumer.config.secrets import CREDENTIAL_NAME, from_environment
from zkconsumer.errors import ConfigError, InvalidNameError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.safe_logger import SafeLogger

T = TypeVar("T")


def with_documented_names(
    options: Mapping[str, str], names: Mapping[str, str], *, hint: Callable[[str], str]
) -> dict[str, str]:
    """Return the options under their documented names; the case of the given names does not matter.

    Args:
        names: the documented name for each name in lower case.
        hint: returns a hint for a name that is unknown.

    Raises:
        ConfigError: some names are unknown. One error lists all of them, each with its hint.
    """
    given: dict[str, str] = {}
    faults: list[tuple[str, str]] = []
    for key, value in options.items():
        name = names.get(key.lower())
        if name is None:
            faults.append((key, hint(key)))
        else:
            given[name] = str(value).strip()
    if faults:
        raise ConfigError(
            "unknown options" if len(faults) > 1 else "unknown option",
            where=", ".join(name for name, _ in faults),
            remedy="; ".join(f"{name}: {hint}" for name, hint in faults),
        )
    return given


def split_kafka_properties(
    options: Mapping[str, str], *, but: Container[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Split the options into librdkafka's properties, which begin with `kafka.`, and all other
    options.

    Spark passes names in lower case, as are all names of librdkafka. `but` contains names that look
    like librdkafka's properties but are not.
    """
    kafka = {
        key.lower(): str(value).strip()
        for key, value in options.items()
        if key.lower().startswith(PREFIX) and key.lower() not in but
    }
    return kafka, {key: one for key, one in options.items() if key.lower() not in kafka}


ZOOKEEPER: Final = "zookeeper"
"""The option for the property `CONNECT`."""

CONNECT: Final = "zookeeper.connect"

SECRET: Final = "zookeeper.auth.secret"
"""The option for `zookeeper.auth.credential` whose name Spark's `spark.redaction.regex` matches."""


def connection_properties(
    given: Mapping[str, str], known: Container[str], log: SafeLogger
) -> dict[str, str]:
    """Return the properties of a connection among the options: those of `known`, and librdkafka's.

    The credential is that of `SECRET` or of the environment. Warns of a credential in an option
    that Spark shows. Raises ConfigError for two credentials, two ZooKeepers, or none.
    """
    properties = {
        name: one for name, one in given.items() if name in known or name.startswith(PREFIX)
    }
    connect = {given[name] for name in (ZOOKEEPER, CONNECT) if name in given}
    if len(connect) > 1:
        raise ConfigError(
            "ZooKeeper is set twice, with different values",
            where=f"{ZOOKEEPER}, {CONNECT}",
            remedy="set only one of them",
        )
    if not connect:
        raise ConfigError(
            "no ZooKeeper is set",
            where=ZOOKEEPER,
            remedy="set host:port[,host:port...][/chroot]",
        )
    properties[CONNECT] = connect.pop()
    plain = properties.get(CREDENTIAL_NAME)
    if SECRET in given and plain is not None:
        raise ConfigError(
            "two options set the credential",
            where=f"{SECRET}, {CREDENTIAL_NAME}",
            remedy=f"set only {SECRET}",
        )
    if plain is not None and not plain.startswith("@"):
        log.warning(
            "Spark shows the value of %s in its pages and logs. Set %s, which Spark redacts, or"
            " name a file: @PATH.",
            CREDENTIAL_NAME,
            SECRET,
        )
    found = {CREDENTIAL_NAME: given[SECRET]} if SECRET in given else {}
    return properties | found | from_environment(properties | found)


def did_you_mean(key: str, names: Mapping[str, str]) -> str:
    """Return a hint that suggests the known name that is most similar to `key`."""
    near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {names[near[0]]}?"
    return "`zkconsumer docs spark` lists all options"


def parse_choice(given: Mapping[str, str], name: str, words: Mapping[str, T], default: T) -> T:
    """Return the value of the word that the option holds, or `default`. Raises ConfigError for any
    other word.
    """
    text = given.get(name)
    if text is None:
        return default
    if text.lower() not in words:
        raise ConfigError(
            f"bad value {text[:80]!r} of {name}", where=name, remedy=" or ".join(words)
        )
    return words[text.lower()]


def parse_flag(given: Mapping[str, str], name: str, default: str) -> bool:
    """Return the option as a boolean. Raises ConfigError for anything but `true` and `false`."""
    return parse_choice({name: default, **given}, name, {"true": True, "false": False}, False)


def parse_positive_integer(given: Mapping[str, str], name: str, most: int) -> int | None:
    """Return the option as an integer from 1 to `most`, or None if it is absent. Raises
    ConfigError.
    """
    text = given.get(name)
    if text is None:
        return None
    if not _is_number(text) or not 0 < int(text) <= most:
        raise ConfigError(
            f"bad value {text[:80]!r} of {name}",
            where=name,
            remedy=f"set a whole number from 1 to {most}",
        )
    return int(text)


def _is_number(text: str) -> bool:
    """Return whether `text` consists of 1 to 19 digits, as numbers up to Java's largest long do."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(_MAX))


_MAX: Final = 2**63 - 1


# ---- Where a query starts and where a batch read ends --------------------------------------------


# In JSON offsets, these numbers stand for the two ends of a log (Spark:
# `KafkaOffsetRangeLimit.LATEST` and `EARLIEST`).
LATEST: Final = -1
EARLIEST: Final = -2


class NamedPosition(Enum):
    """A position that is resolved for each log separately."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ZOOKEEPER = "zookeeper"  # the group's stored offset, or auto.offset.reset if there is none


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; `EARLIEST` and `LATEST` are allowed."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message with this timestamp (ms since 1970) or a later one, in every partition."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first message with a timestamp (ms since 1970) or a later one; each partition has its own
    timestamp.
    """

    timestamps_ms: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtRanges:
    """A first offset for each partition, and the offset after the last one (for batches)."""

    ranges: Mapping[TopicPartition, tuple[int, int]]

    def partitions(self) -> dict[str, tuple[int, ...]]:
        """Return the partitions by topic."""
        found: dict[str, tuple[int, ...]] = {}
        for tp in sorted(self.ranges):
            found[tp.topic] = (*found.get(tp.topic, ()), tp.partition)
        return found

    def ends_as_json(self) -> str:
        """Return the ends in the JSON form of `startingOffsets`."""
        found: dict[str, dict[str, int]] = {}
        for tp, (_, end) in sorted(self.ranges.items()):
            found.setdefault(tp.topic, {})[str(tp.partition)] = end
        return json.dumps(found, separators=(",", ":"))


OffsetOption = NamedPosition | AtOffsets | AtTime | AtTimes | AtRanges
"""The value of an option that says where a query starts or ends."""


def parse_offsets(option: str, text: str) -> NamedPosition | AtOffsets:
    """Parse `earliest`, `latest`, `zookeeper` or `{"topic":{"0":23}}`. Raises ConfigError."""
    word = text.strip().lower()
    if word in {place.value for place in NamedPosition}:
        return NamedPosition(word)
    form = '{"topic":{"0":23,"1":-2}} with -2 for earliest and -1 for latest'
    if not text.strip().startswith("{"):
        raise ConfigError(
            f"bad value {text[:80]!r} of {option}",
            where=option,
            remedy=f"set earliest, latest, zookeeper, or JSON such as {form}",
        )
    return AtOffsets(_by_partition(option, text, least=EARLIEST, form=form))


def parse_starting_offsets(option: str, text: str) -> NamedPosition | AtOffsets | AtRanges:
    """Parse `startingOffsets`: what `parse_offsets` accepts, or `{"topic":{"0":[23,42]}}`, the form
    of a batch in a query's progress. Raises ConfigError.
    """
    form = '{"topic":{"0":[23,42]}}: the first offset, and the offset after the last one'
    found: dict[TopicPartition, tuple[int, int]] = {}
    if "[" not in text:
        return parse_offsets(option, text)
    for tp, value in _items(option, text, form):
        # The progress of a repeated batch, or of one with tokens, has up to two more numbers.
        if not isinstance(value, list) or not 2 <= len(value) <= 4:
            raise _bad(option, text, form)
        start, end = (_number(option, text, one, least=0, form=form) for one in value[:2])
        if end < start:
            raise _bad(option, text, form)
        found[tp] = start, end
    return AtRanges(found)


_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def parse_duration(given: Mapping[str, str], name: str, default: str) -> float:
    """Return a time span in seconds. A number without a unit means milliseconds, as in Spark
    (`org.apache.spark.network.util.JavaUtils.timeStringAsMs`). Raises ConfigError.
    """
    text = given.get(name, default)
    number = text.lower().rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text.lower()[len(number) :] or "ms"
    if not _is_number(number) or unit not in _UNITS_S:
        raise ConfigError(
            f"bad value {text[:80]!r} of {name}",
            where=name,
            remedy="set a whole number and a unit, such as 30s, 15m or 1h",
        )
    return int(number) * _UNITS_S[unit]


def parse_time(option: str, text: str) -> AtTime:
    """Parse a time in milliseconds since 1970. Raises ConfigError."""
    digits = text.strip()
    if not _is_number(digits) or int(digits) > _MAX:
        raise ConfigError(
            f"bad value {text[:80]!r} of {option}",
            where=option,
            remedy="set a whole number of milliseconds since 1970; it applies to all partitions",
        )
    return AtTime(int(digits))


def parse_times(option: str, text: str) -> AtTimes:
    """Parse `{"topic":{"0":1700000000000}}`; times are in ms since 1970. Raises ConfigError."""
    form = '{"topic":{"0":1700000000000}}, in ms since 1970'
    return AtTimes(_by_partition(option, text, least=0, form=form))


def parse_partitions(option: str, text: str) -> Mapping[str, tuple[int, ...]]:
    """Parse `{"topic":[0,1]}`, the form of Spark's option `assign`. Raises ConfigError."""
    form = '{"topic":[0,1]}'
    found: dict[str, tuple[int, ...]] = {}
    for topic, numbers in _object(option, text, form).items():
        if not isinstance(numbers, list) or not numbers:
            raise _bad(option, text, form)
        found[_topic(option, topic)] = tuple(
            sorted({_number(option, text, one, least=0, form=form) for one in numbers})
        )
    return found


def _by_partition(option: str, text: str, *, least: int, form: str) -> dict[TopicPartition, int]:
    return {
        tp: _number(option, text, value, least=least, form=form)
        for tp, value in _items(option, text, form)
    }


def _items(option: str, text: str, form: str) -> Iterator[tuple[TopicPartition, object]]:
    """Yield the value of each partition in JSON. Raises ConfigError."""
    for topic, partitions in _object(option, text, form).items():
        if not isinstance(partitions, dict) or not partitions:
            raise _bad(option, text, form)
        for number, value in partitions.items():
            if not (number.isascii() and number.isdigit()) or len(number) > len(str(2**31)):
                raise _bad(option, text, form)
            yield TopicPartition(_topic(option, topic), int(number)), value


def _object(option: str, text: str, form: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _bad(option, text, form) from None
    if not isinstance(found, dict) or not found:
        raise _bad(option, text, form)
    return found


def _number(option: str, text: str, value: object, *, least: int, form: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX:
        raise _bad(option, text, form)
    return value


def _topic(option: str, name: str) -> str:
    try:
        return paths.validate_topic(name)
    except InvalidNameError as error:
        raise ConfigError(error.what, where=option, remedy=error.remedy) from None


def _bad(option: str, text: str, form: str) -> ConfigError:
    return ConfigError(
        f"bad value {text[:80]!r} of {option}", where=option, remedy=f"set JSON such as {form}"
    )
