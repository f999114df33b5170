"""Groups and their members, as people ask about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from zkconsumer.admin.asking import Asked, asked
from zkconsumer.admin.images import (
    MEMBERS,
    OWNERS,
    GroupImage,
    read_allowed_groups,
    read_group_names,
    read_topic_names,
    read_topics,
)
from zkconsumer.core import paths
from zkconsumer.core.model import ConsumerId, ThreadId
from zkconsumer.core.registrations import Pattern, Registration
from zkconsumer.core.topics import thread_ids
from zkconsumer.errors import AccessDeniedError
from zkconsumer.zk.connection import Connection


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group and how many members it has; None: none, nor a place for them (no `ids` below it).

    `fault`: why it is not known; then `members` is None.
    """

    name: str
    members: int | None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A member: what it asks for, and what it has.

    Attributes:
        subscription: topic (of a pattern: regex) -> streams; empty where `fault` says why.
        threads: its consumer thread ids, of all topics.
        owned: thread -> partitions that its owner nodes name.
        session: the session that keeps it, 0 for a registration that none will take away.
        since_ms: when it registered, by the server's clock.
    """

    group: str
    consumer: ConsumerId
    pattern: Pattern | None
    subscription: Mapping[str, int]
    threads: tuple[ThreadId, ...]
    owned: Mapping[ThreadId, int]
    session: int
    since_ms: int
    fault: str = ""

    @property
    def idle(self) -> tuple[ThreadId, ...]:
        """Threads that own nothing."""
        return tuple(thread for thread in self.threads if thread not in self.owned)


def groups(connection: Connection, *, topic: str | None = None) -> list[GroupSummary]:
    """All groups there are, or those that have offsets or owners of a topic; sorted by name.

    Raises as `Connection.read`. Kafka: `ConsumerGroupCommand --list`.
    """
    names = read_group_names(connection)
    if topic is not None:
        rooms = {paths.offsets_of(name, topic): name for name in names}
        rooms |= {paths.owners_of(name, topic): name for name in names}
        having = {rooms[path] for path in connection.list_allowed(rooms)}
        names = [name for name in names if name in having]
    found = connection.list_allowed(map(paths.ids, names))
    return [_summary(name, found.get(paths.ids(name))) for name in names]


def _summary(name: str, members: list[str] | AccessDeniedError | None) -> GroupSummary:
    if isinstance(members, AccessDeniedError):
        return GroupSummary(name, None, members.what)
    return GroupSummary(name, None if members is None else len(members))


def members(
    connection: Connection,
    names: Iterable[str],
    *,
    on_denied: Callable[[str, AccessDeniedError], None] | None = None,
) -> dict[str, tuple[Asked, list[MemberReport]]]:
    """What the members of these groups ask for and have; of the groups that exist.

    A group that may not be read is told to `on_denied` and left out; without it that is raised.
    """
    images, denied = read_allowed_groups(connection, list(names), rooms=(MEMBERS, OWNERS))
    for name, error in denied.items():
        if on_denied is None:
            raise error
        on_denied(name, error)
    topics = read_topic_payloads(connection, images.values())
    found = {}
    for name, image in images.items():
        wanted = asked(image.members, topics)
        found[name] = wanted, list(member_reports(image, wanted))
    return found


def read_topic_payloads(
    connection: Connection, images: Iterable[GroupImage]
) -> dict[str, bytes | None]:
    """The topics that these groups have to do with; all there are where a member has a pattern."""
    names: set[str] = set()
    for image in images:
        names |= {tp.topic for tp in (*image.owners, *image.offsets)}
        for member in image.members.values():
            if not isinstance(member, Registration):
                continue
            if member.pattern is not Pattern.STATIC:
                names.update(read_topic_names(connection))
            else:
                names.update(topic for topic in member.subscription if not paths.znode_fault(topic))
    return {name: one.node.data for name, one in read_topics(connection, sorted(names)).items()}


def member_reports(image: GroupImage, wanted: Asked) -> Iterator[MemberReport]:
    """Every member of a group, sorted."""
    owned: dict[ThreadId, int] = {}
    for owner in image.owners.values():
        owned[owner.thread] = owned.get(owner.thread, 0) + 1
    for consumer, member in sorted(image.members.items()):
        stat = image.nodes[paths.member(image.name, consumer)].stat
        streams = max(wanted.counts.get(consumer, {}).values(), default=0)
        threads = tuple(thread_ids(consumer, streams))
        registration = member if isinstance(member, Registration) else None
        fault = wanted.faults.get(consumer)
        yield MemberReport(
            image.name,
            consumer,
            registration.pattern if registration else None,
            registration.subscription if registration else {},
            threads,
            {thread: owned[thread] for thread in threads if thread in owned},
            stat.owner,
            stat.mtime_ms,
            fault.what if fault else "",
        )


def idle_by_design(wanted: Asked) -> Iterator[str]:
    """Of each topic with more threads than partitions, why some have nothing to do."""
    for topic, threads in wanted.threads.items():
        partitions = len(wanted.partitions.get(topic, ()))
        if not partitions:
            why = wanted.topic_faults.get(topic) or "the topic has no partitions, or does not exist"
            yield f"{topic}: {_count(len(threads), 'thread')}, nothing to own: {why}"
        elif len(threads) > partitions:
            yield (
                f"{topic}: {_count(len(threads), 'thread')}, {_count(partitions, 'partition')}:"
                f" {len(threads) - partitions} idle by design"
            )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
