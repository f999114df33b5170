"""The options of `format("zkconsumer-groups")`: which table, of which groups, and from where.

Names are Spark's where Spark's Kafka connector has them, and else the old consumer's properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from zkconsumer.config.settings import TABLE, ConnectionConfig
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.filters import TopicFilter, matching, white_list
from zkconsumer.protocol.paths import validate_group, validate_topic
from zkconsumer.spark.option_parsing import choice, named, nearest, whole

PARALLELISM: Final = 4
"""Tasks at most, where `parallelism` does not say: a table is read by so many processes at once."""

POLL_INTERVAL_S: Final = 5.0
"""Seconds between two readings of a stream of changes, where `poll.interval.ms` does not say."""


class Table(Enum):
    """What can be read: four tables, and two streams of changes."""

    MEMBERS = "members"
    OWNERS = "owners"
    OFFSETS = "offsets"
    LAG = "lag"
    OWNER_CHANGES = "owner_changes"
    OFFSET_CHANGES = "offset_changes"

    @property
    def is_stream(self) -> bool:
        return self in (Table.OWNER_CHANGES, Table.OFFSET_CHANGES)


_TABLE, _ZOOKEEPER, _CONNECT = "table", "zookeeper", "zookeeper.connect"
_GROUPS, _GROUPS_PATTERN, _TOPICS = "groups", "groupsPattern", "topics"
_STORAGE, _PARALLELISM = "offsets.storage", "parallelism"
_INTERVAL, _STARTING = "poll.interval.ms", "startingOffsets"

OPTIONS: Final = (
    _TABLE,
    _ZOOKEEPER,
    _GROUPS,
    _GROUPS_PATTERN,
    _TOPICS,
    _STORAGE,
    _PARALLELISM,
    _INTERVAL,
    _STARTING,
)
"""The options beside the properties `zookeeper.*`."""

# How ZooKeeper is reached: servers, times, authentication, TLS.
_PROPERTIES: Final = tuple(row.name for row in TABLE if row.name.startswith("zookeeper."))
_NAMES: Final = {name.lower(): name for name in (*OPTIONS, *_PROPERTIES)}
_MAX_INT: Final = 2**31 - 1

# The options that mean something for some tables only.
_FOR: Final[Mapping[str, tuple[Table, ...]]] = {
    _TOPICS: tuple(one for one in Table if one is not Table.MEMBERS),
    _STORAGE: (Table.OFFSETS, Table.LAG),
    _PARALLELISM: tuple(one for one in Table if not one.is_stream),
    _INTERVAL: (Table.OWNER_CHANGES, Table.OFFSET_CHANGES),
    _STARTING: (Table.OWNER_CHANGES, Table.OFFSET_CHANGES),
}

_NOT_FOLLOWED: Final = "; Kafka's storage has no znodes that would change, so it is not followed"


@dataclass(frozen=True, kw_only=True)
class GroupsOptions:
    """What is read; see `parse`.

    Attributes:
        groups: these and no other; None: all there are, or that `pattern` matches.
        topics: whose owners and offsets; None: all.
        ask_kafka: whether Kafka's own storage of offsets is asked, too.
        from_now: a stream begins with what changes after its start.
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
        """Of the groups there are, those that are asked for; in their order."""
        if self.groups is not None:
            return [name for name in names if name in self.groups]
        if self.pattern is not None:
            return list(matching(self.pattern, names, internal=frozenset()))
        return list(names)


def parse(options: Mapping[str, str]) -> GroupsOptions:
    """The options of a reader, whose names Spark compares without regard to case.

    Raises:
        ConfigError: options are unknown (the nearest right ones are named), have bad values, or
            contradict each other.
        InvalidNameError: a group's or a topic's name cannot be one.
    """
    given = named(options, _NAMES, hint=lambda key: nearest(key, _NAMES))
    table = choice(given, _TABLE, {one.value: one for one in Table}, None)
    if table is None:
        raise ConfigError(
            "no table is named", where=_TABLE, remedy=", ".join(one.value for one in Table)
        )
    for name, tables in _FOR.items():
        if name in given and table not in tables:
            raise ConfigError(
                f"no option of the table {table.value}",
                where=name,
                remedy=f"leave it out; it is for {', '.join(one.value for one in tables)}"
                + (_NOT_FOLLOWED if name == _STORAGE and table is Table.OFFSET_CHANGES else ""),
            )
    if _GROUPS in given and _GROUPS_PATTERN in given:
        raise ConfigError(
            "they contradict each other",
            where=f"{_GROUPS}, {_GROUPS_PATTERN}",
            remedy="set one of them",
        )
    groups, topics = _listed(given, _GROUPS), _listed(given, _TOPICS)
    interval_ms = whole(given, _INTERVAL, _MAX_INT)
    return GroupsOptions(
        table=table,
        config=_config(given),
        groups=None if groups is None else frozenset(map(validate_group, groups)),
        pattern=white_list(given[_GROUPS_PATTERN]) if _GROUPS_PATTERN in given else None,
        topics=None if topics is None else frozenset(map(validate_topic, topics)),
        ask_kafka=choice(given, _STORAGE, {"zookeeper": False, "kafka": True}, False),
        parallelism=whole(given, _PARALLELISM, _MAX_INT) or PARALLELISM,
        poll_interval_s=POLL_INTERVAL_S if interval_ms is None else interval_ms / 1000,
        from_now=choice(given, _STARTING, {"earliest": False, "latest": True}, False),
    )


def _config(given: Mapping[str, str]) -> ConnectionConfig:
    properties = {name: given[name] for name in _PROPERTIES if name in given}
    if (_ZOOKEEPER in given) is (_CONNECT in given):
        raise ConfigError(
            "ZooKeeper is named twice" if _CONNECT in given else "no ZooKeeper is named",
            where=_ZOOKEEPER,
            remedy="host:port[,host:port...][/chroot]",
        )
    if _ZOOKEEPER in given:
        properties[_CONNECT] = given[_ZOOKEEPER]
    return ConnectionConfig.from_properties(properties)


def _listed(given: Mapping[str, str], name: str) -> list[str] | None:
    if name not in given:
        return None
    found = [one.strip() for one in given[name].split(",") if one.strip()]
    if not found:
        raise ConfigError("it names nothing", where=name, remedy="leave it out for all")
    return found
