"""Reading a group raw that does not settle, to find members that go by other rules."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from zkconsumer.core import paths
from zkconsumer.core.computing import Group
from zkconsumer.core.detecting import detect
from zkconsumer.core.events import Diagnosed, Event
from zkconsumer.core.model import ThreadId, TopicPartition
from zkconsumer.core.paths import Kind
from zkconsumer.core.records import decode_owner
from zkconsumer.errors import MalformedZnodeError
from zkconsumer.zk import requests as rq
from zkconsumer.zk.operations import Member, Replies
from zkconsumer.zk.requests import Batch, Code

Diagnosis = Callable[[float], Event] | None


def diagnose(member: Member) -> Generator[Batch, Replies, Diagnosis]:
    """Which members own what other rules than ours give them; None when the nodes show nothing.

    Watches nothing: it is asked for once, when the group has not settled for a while.
    """
    consumers = yield from _list(paths.ids(member.group))
    listing = yield from _list(paths.TOPICS)
    owning = yield from _list(paths.owners(member.group))
    registrations = yield from _read([paths.member(member.group, one) for one in consumers])
    topics = yield from _read([paths.topic(one) for one in listing])
    owners = yield from _read_owners(member.group, owning)
    group = Group(
        member.strategy,
        {path.rpartition("/")[2]: data for path, data in registrations.items()},
        {path.rpartition("/")[2]: data for path, data in topics.items()},
        exclude_internal=bool(member.internal),
    )
    quarrels = detect(group, owners, own=member.profile).quarrels
    return (lambda now: Diagnosed(now=now, quarrels=quarrels)) if quarrels else None


def _list(path: str) -> Generator[Batch, Replies, Sequence[str]]:
    (listing,) = yield [rq.Children(path)]
    return sorted(listing.value) if listing.code is Code.OK else ()


def _read(names: Sequence[str]) -> Generator[Batch, Replies, dict[str, bytes | None]]:
    """The payloads of those that are there and may be read."""
    replies = yield [rq.Get(path) for path in names]
    return {
        path: reply.value.data
        for path, reply in zip(names, replies, strict=True)
        if reply.code is Code.OK
    }


def _read_owners(
    group: str, topics: Sequence[str]
) -> Generator[Batch, Replies, dict[TopicPartition, ThreadId]]:
    listings = yield [rq.Children(paths.owners_of(group, topic)) for topic in topics]
    nodes = [
        f"{paths.owners_of(group, topic)}/{name}"
        for topic, listing in zip(topics, listings, strict=True)
        if listing.code is Code.OK
        for name in listing.value
    ]
    owners: dict[TopicPartition, ThreadId] = {}
    for path, data in (yield from _read(nodes)).items():
        at = paths.locate(path)
        if at.kind is Kind.OWNER:
            try:
                owners[TopicPartition(at.name, at.partition)] = decode_owner(data, where=path)
            except MalformedZnodeError:
                continue  # nobody legible: it blocks, and is named as such
    return owners
