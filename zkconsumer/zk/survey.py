"""One raw reading of a group: what its members compute the assignment from, and who owns what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from zkconsumer.core import paths
from zkconsumer.core.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.core.paths import Kind
from zkconsumer.core.records import decode_owner
from zkconsumer.errors import MalformedZnodeError

# Seconds one reply may take; a server that is slower than this is treated like a lost connection.
_REPLY_S = 30.0


@dataclass(frozen=True, slots=True)
class Survey:
    """Payloads as they stand in ZooKeeper; None where a znode has none.

    Not atomic: what goes between listing and reading is left out.
    """

    registrations: dict[ConsumerId, bytes | None]
    topics: dict[str, bytes | None]
    owners: dict[TopicPartition, ThreadId]


def read_survey(client: KazooClient, group: str) -> Survey:
    """Read the registrations, every topic there is, and the owners; kazoo's errors come through."""
    ids = {name: paths.member(group, name) for name in _children(client, paths.ids(group))}
    topics = {name: paths.topic(name) for name in _children(client, paths.TOPICS)}
    owned = _children(client, paths.owners(group))
    below = _get_children(client, [paths.owners_of(group, topic) for topic in owned])
    owners = {}
    for path, data in _get(client, below).items():
        located = paths.locate(path)
        try:
            thread = decode_owner(data, where=path)
        except MalformedZnodeError:
            thread = ""
        if located.kind is Kind.OWNER:
            owners[TopicPartition(located.name, located.partition)] = thread
    payloads = _get(client, [*ids.values(), *topics.values()])
    return Survey(
        registrations={name: payloads[path] for name, path in ids.items() if path in payloads},
        topics={name: payloads[path] for name, path in topics.items() if path in payloads},
        owners=owners,
    )


def _children(client: KazooClient, path: str) -> list[str]:
    return [child.rpartition("/")[2] for child in _get_children(client, [path])]


def _get_children(client: KazooClient, parents: Iterable[str]) -> list[str]:
    """The paths of all children, asked for at once; a parent that does not exist has none."""
    found = []
    for parent, pending in [(one, client.get_children_async(one)) for one in parents]:
        try:
            found += [f"{parent}/{name}" for name in pending.get(timeout=_REPLY_S)]
        except NoNodeError:
            continue
    return found


def _get(client: KazooClient, wanted: Iterable[str]) -> dict[str, bytes | None]:
    """Path -> payload, asked for at once; without those that do not exist."""
    found: dict[str, bytes | None] = {}
    for path, pending in [(one, client.get_async(one)) for one in wanted]:
        try:
            found[path] = pending.get(timeout=_REPLY_S)[0]
        except NoNodeError:
            continue
    return found
