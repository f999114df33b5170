"""The options of `format("zkconsumer-groups")`: which table, of which groups, and from where.

The names are those of Spark's Kafka connector if it has the option, and otherwise those of the old
consumer's properties.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from zkconsumer.config.settings import SETTINGS, ConnectionConfig
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.filters import TopicFilter, matching, white_list
from zkconsumer.protocol.paths import validate_group, validate_topic
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.spark.option_parsing import (
    SECRET,
    ZOOKEEPER,
    connection_properties,
    did_you_mean,
    parse_choice,
    parse_positive_integer,
    split_kafka_properties,
    with_documented_names,
)

_log = SafeLogger(logging.getLogger(__name__))

PARALLELISM: Final = 4
"""Default of `parallelism`: the maximum number of tasks, and so of processes, that read a table at
once.
"""

POLL_INTERVAL_S: Final = 5.0
"""Default of `poll.interval.ms`: seconds between two readings of a stream of changes."""


class Table(Enum):
    """The four tables, and the two streams of changes."""

    MEMBERS = "members"
    OWNERS = "owners"
    OFFSETS = "offsets"
    LAG = "lag"
    OWNER_CHANGES = "owner_changes"
    OFFSET_CHANGES = "offset_changes"

    @property
    def is_stream(self) -> bool:
        return self in (Table.OWNER_CHANGES, Table.OFFSET_CHANGES)


_TABLE = "table"
_GROUPS, _GROUPS_PATTERN, _TOPICS = "groups", "groupsPattern", "topics"
_STORAGE, _PARALLELISM = "offsets.storage", "parallelism"
_INTERVAL, _STARTING = "poll.interval.ms", "startingOffsets"

OPTIONS: Final = (
    _TABLE,
    ZOOKEEPER,
    SECRET,
    _GROUPS,
    _GROUPS_PATTERN,
    _TOPICS,
    _STORAGE,
    _PARALLELISM,
    _INTERVAL,
    _STARTING,
)
"""The options besides the properties `zookeeper.*`."""

# The connection to ZooKeeper: servers, time limits, authentication, TLS.
_PROPERTIES: Final = (
    "broker.listener",
    *(row.name for row in SETTINGS if row.name.startswith("zookeeper.")),
)
_NAMES: Final = {name.lower(): name for name in (*OPTIONS, *_PROPERTIES)}
_MAX_INT: Final = 2**31 - 1

# Options that apply to some tables only.
_FOR: Final[Mapping[str, tuple[Table, ...]]] = {
    _TOPICS: tuple(one for one in Table if one is not Table.MEMBERS),
    _STORAGE: (Table.OFFSETS, Table.LAG),
    _PARALLELISM: tuple(one for one in Table if not one.is_stream),
    _INTERVAL: (Table.OWNER_CHANGES, Table.OFFSET_CHANGES),
    _STARTING: (Table.OWNER_CHANGES, Table.OFFSET_CHANGES),
}

_NOT_FOLLOWED: Final = (
    "; changes in Kafka's offset storage cannot be followed, because it has no znodes"
)


@dataclass(frozen=True, kw_only=True)
class GroupsOptions:
    """The parsed options; see `parse`.

    Attributes:
        groups: exactly these groups; None means all groups, or those that `pattern` matches.
        topics: the topics whose owners and offsets are read; None means all.
        ask_kafka: whether Kafka's own offset storage is also read.
        from_now: whether a stream starts with changes after its start.
    """

    table: Table
    config: ConnectionConfig
    groups: frozenset[str] | None = None
    pattern: TopicFilter | None = None
    topics: frozenset[str] | None = None
    ask_kafka: bool = False
    parallelism: int = PARALLELISM
    poll_interval_s: float = POLL_INTERVAL_S
    from_now: bool = False

    def selected(self, names: Iterable[str]) -> list[str]:
        """Return the groups among `names` that the options select, in the same order."""
        if self.groups is not None:
            return [name for name in names if name in self.groups]
        if self.pattern is not None:
            return list(matching(self.pattern, names, internal=frozenset()))
        return list(names)


def parse(options: Mapping[str, str]) -> GroupsOptions:
    """Parse the options of a reader. The case of names does not matter, because Spark ignores it.

    Raises:
        ConfigError: options are unknown (the error names the most similar ones), have bad values,
            or contradict each other.
        InvalidNameError: a group's or a topic's name is not legal.
    """
    kafka, others = split_kafka_properties(options)
    given = (
        with_documented_names(others, _NAMES, hint=lambda key: did_you_mean(key, _NAMES)) | kafka
    )
    table = parse_choice(given, _TABLE, {one.value: one for one in Table}, None)
    if table is None:
        raise ConfigError(
            "no table is set",
            where=_TABLE,
            remedy=f"set one of {', '.join(one.value for one in Table)}",
        )
    for name, tables in _FOR.items():
        if name in given and table not in tables:
            raise ConfigError(
                f"the option does not apply to the table {table.value}",
                where=name,
                remedy=f"remove it; it applies to {', '.join(one.value for one in tables)}"
                + (_NOT_FOLLOWED if name == _STORAGE and table is Table.OFFSET_CHANGES else ""),
            )
    if _GROUPS in given and _GROUPS_PATTERN in given:
        raise ConfigError(
            "options contradict each other",
            where=f"{_GROUPS}, {_GROUPS_PATTERN}",
            remedy="set only one of them",
        )
    groups, topics = _listed(given, _GROUPS), _listed(given, _TOPICS)
    interval_ms = parse_positive_integer(given, _INTERVAL, _MAX_INT)
    return GroupsOptions(
        table=table,
        config=ConnectionConfig.from_properties(connection_properties(given, _PROPERTIES, _log)),
        groups=None if groups is None else frozenset(map(validate_group, groups)),
        pattern=white_list(given[_GROUPS_PATTERN]) if _GROUPS_PATTERN in given else None,
        topics=None if topics is None else frozenset(map(validate_topic, topics)),
        ask_kafka=parse_choice(given, _STORAGE, {"zookeeper": False, "kafka": True}, False),
        parallelism=parse_positive_integer(given, _PARALLELISM, _MAX_INT) or PARALLELISM,
        poll_interval_s=POLL_INTERVAL_S if interval_ms is None else interval_ms / 1000,
        from_now=parse_choice(given, _STARTING, {"earliest": False, "latest": True}, False),
    )


def _listed(given: Mapping[str, str], name: str) -> list[str] | None:
    if name not in given:
        return None
    found = [one.strip() for one in given[name].split(",") if one.strip()]
    if not found:
        raise ConfigError("the option is empty", where=name, remedy="remove it to select all")
    return found
