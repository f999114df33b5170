"""Which task reads which groups of a table: shares of about the same size.

Listing is cheap beside reading: one request for each topic of a group, and none for a partition.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple

from zkconsumer.admin.asking import asked
from zkconsumer.admin.groups import read_topic_payloads
from zkconsumer.admin.images import MEMBERS, OFFSETS, OWNERS, read_group_names, read_groups
from zkconsumer.core import paths
from zkconsumer.spark.tables.options import GroupsOptions, Table
from zkconsumer.zk.connection import Connection

LEAST: Final = 1_000
"""Znodes that are worth a task: starting one and connecting takes as long as reading so many."""

AT_ONCE: Final = 20_000
"""Znodes that a task reads at once, about; more take more memory and gain nothing."""

_ROOMS: Final[Mapping[Table, tuple[str, ...]]] = {
    Table.MEMBERS: (MEMBERS,),
    Table.OWNERS: (OWNERS,),
    Table.OFFSETS: (OFFSETS,),
    Table.LAG: (OWNERS, OFFSETS),
}


class Piece(NamedTuple):
    """A group, or of a large one some topics (None: all), and about how many znodes that is."""

    group: str
    topics: frozenset[str] | None
    size: int


def plan(connection: Connection, options: GroupsOptions) -> list[list[Piece]]:
    """The pieces of each task; no task where there is no group.

    A group that may not be listed is planned all the same: its task tells of it.
    """
    names = options.selected(read_group_names(connection))
    if options.table is Table.MEMBERS:
        found = connection.listable(map(paths.ids, names))
        sizes = {name: 1 + len(found.get(paths.ids(name), ())) for name in names}
        return _dealt([Piece(name, None, size) for name, size in sizes.items()], options)
    counts = _counts(connection, names, options)
    total = sum(sum(topics.values()) for topics in counts.values())
    share = ceil(max(total, LEAST) / options.parallelism)
    pieces = []
    for name, topics in counts.items():
        size = 1 + sum(topics.values())
        if size <= share or len(topics) == 1:
            pieces.append(Piece(name, options.topics, size))
            continue
        rest = _subscribed(connection, name, options) - topics.keys()
        parts = [*topics.items(), *dict.fromkeys(rest, 1).items()]
        pieces += [Piece(name, frozenset([topic]), 1 + count) for topic, count in parts]
    return _dealt(pieces, options)


def chunks(pieces: Sequence[Piece]) -> Iterator[tuple[list[str], frozenset[str] | None]]:
    """What a task reads at once: groups, and which topics of theirs."""
    groups: list[str] = []
    topics: frozenset[str] | None = None
    size = 0
    for one in sorted(pieces, key=lambda one: sorted(one.topics or ())):
        if groups and (one.topics != topics or size + one.size > AT_ONCE):
            yield groups, topics
            groups, size = [], 0
        groups.append(one.group)
        topics, size = one.topics, size + one.size
    if groups:
        yield groups, topics


def _counts(
    connection: Connection, names: Sequence[str], options: GroupsOptions
) -> dict[str, dict[str, int]]:
    """Group -> topic -> znodes below it."""
    counts: dict[str, dict[str, int]] = {name: {} for name in names}
    rooms = {
        f"{paths.group(name)}/{room}": name for name in names for room in _ROOMS[options.table]
    }
    below = {
        f"{room}/{topic}": (rooms[room], topic)
        for room, topics in connection.listable(rooms).items() for topic in topics
        if options.topics is None or topic in options.topics
    }
    for path, partitions in connection.listable(below).items():
        name, topic = below[path]
        counts[name][topic] = counts[name].get(topic, 0) + len(partitions)
    return counts


def _subscribed(connection: Connection, name: str, options: GroupsOptions) -> Collection[str]:
    """The topics that count though the group has nothing of them yet."""
    if options.table is not Table.LAG and not options.ask_kafka:
        return frozenset()
    images = read_groups(connection, [name], rooms=(MEMBERS,))
    payloads = read_topic_payloads(connection, images.values())
    found = {topic for image in images.values() for topic in asked(image.members, payloads).threads}
    return found if options.topics is None else found & options.topics


def _dealt(pieces: list[Piece], options: GroupsOptions) -> list[list[Piece]]:
    """The largest first, each to whom has least; topics of one group in one task are one piece."""
    total = sum(one.size for one in pieces)
    tasks = min(options.parallelism, ceil(total / LEAST), len(pieces))
    shares: list[dict[str, Piece]] = [{} for _ in range(tasks)]
    least = [(0, number) for number in range(tasks)]
    for piece in sorted(pieces, key=lambda one: (-one.size, one.group)):
        load, number = heapq.heappop(least)
        before = shares[number].get(piece.group)
        if before and before.topics is not None and piece.topics is not None:
            joined = before.topics | piece.topics
            shares[number][piece.group] = Piece(piece.group, joined, before.size + piece.size)
        else:
            shares[number][piece.group] = piece
        heapq.heappush(least, (load + piece.size, number))
    return [list(share.values()) for share in shares]
