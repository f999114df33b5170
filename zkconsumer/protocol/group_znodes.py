"""The znodes of groups, read by an operation that every client of ZooKeeper can run.

A member reads its group in another way (`member.read_group`): it watches what it reads, and the
order of its requests is known.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from zkconsumer.errors import AccessDeniedError
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_health import LastWrite
from zkconsumer.protocol.requests import (
    Children,
    Code,
    Exists,
    Get,
    Node,
    Reply,
    Result,
    Stat,
    denied,
)

MEMBERS, OWNERS, OFFSETS = "ids", "owners", "offsets"

MOST_FOREIGN: Final = 1_000
"""Number of foreign znodes of a group that are read: another program may keep a large tree there.
A program that writes some of them is then noticed only by chance."""


@dataclass(slots=True)
class GroupZnodes:
    """The part of a group's subtree that was read.

    Attributes:
        nodes: path -> znode, parents first.
        listed: parent -> sorted names of its children, for every parent that was listed.
        foreign: path -> the last write to a znode that the consumers' layout does not have.
        unreadable: path -> the error of a znode of the layout that this client may not read.
        unlisted: path -> the error of a foreign znode below which others may exist unseen.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    listed: dict[str, list[str]] = field(default_factory=dict)
    foreign: dict[str, LastWrite] = field(default_factory=dict)
    unreadable: dict[str, AccessDeniedError] = field(default_factory=dict)
    unlisted: dict[str, AccessDeniedError] = field(default_factory=dict)


Reads = Sequence[Get | Exists | Children]
"""Requests that change nothing, and set no watch."""

Values = Generator[Reads, Sequence[Reply], dict[str, Result]]
"""An operation that returns path -> the value of the reply, for the replies with the code OK."""


def read_group_znodes(
    names: Iterable[str],
    *,
    directories: Collection[str] = (MEMBERS, OWNERS, OFFSETS),
    topics: Collection[str] | None = None,
) -> Generator[Reads, Sequence[Reply], dict[str, GroupZnodes]]:
    """Read groups with few requests; groups that do not exist are left out.

    Args:
        directories: those of `ids`, `owners` and `offsets` that are read. With all of them, foreign
            znodes are read too, as far as this client may read them.
        topics: whose owners and offsets are read; None means all topics.
    """
    found: dict[str, GroupZnodes] = {}
    refused: dict[str, AccessDeniedError] = {}
    for path, node in (yield from _values(map(Get, map(paths.group, names)), refused)).items():
        found[_group_of(path)] = GroupZnodes({path: node})
    found |= {_group_of(path): GroupZnodes() for path in refused}
    tops = [f"{paths.group(name)}/{directory}" for name in found for directory in directories]
    listed: dict[str, list[str]] = yield from _listed(tops, refused)
    deeper = [
        f"{top}/{name}"
        for top, below in listed.items()
        if not top.endswith(f"/{MEMBERS}")
        for name in below
        if topics is None or name in topics
    ]
    listed |= yield from _listed(deeper, refused)
    leaves = [
        f"{top}/{name}"
        for top in tops
        if top.endswith(f"/{MEMBERS}")
        for name in listed.get(top, ())
    ]
    below_topics = [f"{path}/{name}" for path in deeper for name in listed.get(path, ())]
    leaves += (path for path in below_topics if paths.is_partition(path.rpartition("/")[2]))
    for path, node in (yield from _values(map(Get, leaves), refused)).items():
        found[_group_of(path)].nodes[path] = node
    for path, error in refused.items():
        found[_group_of(path)].unreadable[path] = error
    for path, below in listed.items():
        found[_group_of(path)].listed[path] = below
    if {MEMBERS, OWNERS, OFFSETS}.issubset(directories):
        odd = (
            path
            for path in below_topics
            if path.split("/", 4)[3] == OFFSETS and not paths.is_partition(path.rpartition("/")[2])
        )
        unlisted: dict[str, AccessDeniedError] = {}
        roots = map(paths.group, found)
        for path, stat in (yield from _foreign_stats(roots, odd, unlisted)).items():
            found[_group_of(path)].foreign[path] = last_write(stat)
        for path, error in unlisted.items():
            found[_group_of(path)].unlisted[path] = error
    return found


def last_write(stat: Stat) -> LastWrite:
    """Return the last write to a znode with this stat."""
    return LastWrite(stat.mzxid, stat.version, stat.mtime_ms)


def _group_of(path: str) -> str:
    return path.split("/", 3)[2]


def _foreign_stats(
    roots: Iterable[str], odd: Iterable[str], unlisted: dict[str, AccessDeniedError]
) -> Values:
    """Return the stats of foreign znodes; add an error to `unlisted` for each forbidden one.

    These are the znodes `odd` below `offsets`, other children of the groups' znodes (`roots`), and
    all znodes below them.
    """
    tops = yield from _permitted(map(Children, roots))
    level = [
        f"{root}/{name}"
        for root, names in tops.items()
        for name in sorted(names)
        if name not in paths.GROUP_PARTS
    ]
    level += odd
    found: dict[str, Stat] = {}
    counts: dict[str, int] = {}
    while level:
        wanted = []
        for path in level:
            group = _group_of(path)
            counts[group] = counts.get(group, 0) + 1
            if counts[group] <= MOST_FOREIGN:
                wanted.append(path)
        stats = yield from _permitted(map(Exists, wanted))
        found |= {path: stat for path, stat in stats.items() if stat is not None}
        below = yield from _values(map(Children, wanted), unlisted)
        level = [f"{path}/{name}" for path, names in below.items() for name in sorted(names)]
    return found


def _listed(wanted: Iterable[str], refused: dict[str, AccessDeniedError]) -> Values:
    """Return the sorted names of the children of each existing znode."""
    found = yield from _values(map(Children, wanted), refused)
    return {path: sorted(names) for path, names in found.items()}


def _values(requests: Iterable[Get | Children], refused: dict[str, AccessDeniedError]) -> Values:
    """Add an error to `refused` for each znode that this client may not read."""
    asked = list(requests)
    replies = (yield asked) if asked else ()
    for request, reply in zip(asked, replies, strict=True):
        if reply.code is Code.NO_AUTH:
            refused[request.path] = denied(request.path)
    return _answered(asked, replies)


def _permitted(requests: Iterable[Exists | Children]) -> Values:
    """Leave out what this client may not read."""
    asked = list(requests)
    return _answered(asked, (yield asked) if asked else ())


def _answered(
    asked: Sequence[Get | Exists | Children], replies: Sequence[Reply]
) -> dict[str, Result]:
    pairs = zip(asked, replies, strict=True)
    return {request.path: reply.value for request, reply in pairs if reply.code is Code.OK}
