"""Readers of groups, topics and brokers in ZooKeeper, and their reports for operators.

A `GroupImage` holds the znodes of a group as they were read, and decodes them on demand. The parts
of the group are read one after the other, not in a transaction, so the image of an active group may
be inconsistent. The image contains each znode's version, so that a later change can compare the
version.

`groups`, `members`, `topics` and `partitions` return reports made of these images.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

from zkconsumer.errors import (
    AccessDeniedError,
    Advice,
    MalformedZnodeError,
    RemedyOperation,
    UnknownGroupError,
)
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import (
    GroupInput,
    RequestedTopics,
    partitions_in,
    requested_topics,
)
from zkconsumer.protocol.group_health import (
    GroupHealth,
    GroupReading,
    GroupState,
    LastWrite,
    as_threads,
    group_health,
)
from zkconsumer.protocol.group_znodes import MEMBERS, OFFSETS, OWNERS, last_write, read_group_znodes
from zkconsumer.protocol.model import OFFSETS_TOPIC, ConsumerId, ThreadId, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind, thread_ids
from zkconsumer.protocol.payloads import (
    Broker,
    OwnerZnode,
    TopicPayloads,
    decode_brokers,
    decode_offset,
    decode_partition_state,
    decode_replicas,
    owner_znode,
    plain_number,
    readable_brokers,
)
from zkconsumer.protocol.registrations import Pattern, Registration, decode_registration
from zkconsumer.protocol.requests import Node, denied
from zkconsumer.protocol.suggestions import did_you_mean
from zkconsumer.zk.client import ZooKeeperClient


@dataclass(frozen=True, slots=True)
class OffsetNode:
    """A decoded offset znode.

    Attributes:
        value: the offset; None if the payload contains no number. A negative value stands for "no
            offset".
        version, mtime_ms: version of the znode, and time of its last write by the server's clock.
        fault: why JVM members cannot read the payload. If the payload plainly contains a number
            nevertheless, such as "12" in quotation marks, `value` is this number.
        is_empty: whether the znode is empty, which means that it has no offset.
    """

    value: int | None
    version: int
    mtime_ms: int
    fault: str = ""
    is_empty: bool = False


@dataclass(frozen=True)
class GroupImage:
    """The part of a group's subtree that was read.

    Attributes:
        name: name of the group.
        nodes: path -> znode, parents first.
        listed: parent -> names of its children, for every parent that was listed.
        foreign: path -> the last write to a znode that the consumers' layout does not have.
        unreadable: path -> the error of a znode that this client may not read. Images
            of `read_groups` and `read_allowed_groups` have no such znode.
        unlisted: path -> the error of a foreign znode below which others may exist unseen.
    """

    name: str
    nodes: Mapping[str, Node]
    listed: Mapping[str, Collection[str]] = field(default_factory=dict)
    foreign: Mapping[str, LastWrite] = field(default_factory=dict)
    unreadable: Mapping[str, AccessDeniedError] = field(default_factory=dict)
    unlisted: Mapping[str, AccessDeniedError] = field(default_factory=dict)

    def refusal(self, path: str) -> AccessDeniedError | None:
        """Return why a znode may exist unseen: this client may not read it, or its parents."""
        while path not in self.unreadable and path:
            if path in self.listed:
                return None  # all children of this parent are known
            path = path.rpartition("/")[0]
        return self.unreadable.get(path)

    @cached_property
    def denial(self) -> AccessDeniedError | None:
        """The error that names what this client may not read; None if it may read everything."""
        return denied(*self.unreadable) if self.unreadable else None

    @cached_property
    def unknown_use(self) -> AccessDeniedError | None:
        """The error that names all znodes that may show, unseen, that the group is in use."""
        hidden = (*self.unreadable, *self.unlisted)
        return denied(*hidden) if hidden else None

    @property
    def has_unknown_members(self) -> bool:
        """Whether members may exist unseen, or this client may not read a registration."""
        return bool(self.unread_members or self.refusal(paths.ids(self.name)))

    @cached_property
    def unread_members(self) -> tuple[ConsumerId, ...]:
        """The registered consumer ids whose registrations this client may not read.

        Their sessions are unknown. Reports count them as members, because few are leftovers.
        """
        found = map(paths.locate, self.unreadable)
        return tuple(at.name for at in found if at.kind is ZnodeKind.MEMBER)

    @property
    def has_unknown_offsets(self) -> bool:
        """Whether offsets may exist unseen, or this client may not read one."""
        kinds = {paths.locate(path).kind for path in self.unreadable}
        is_one = not kinds.isdisjoint((ZnodeKind.OFFSETS_OF, ZnodeKind.OFFSET))
        return is_one or bool(self.refusal(paths.offsets(self.name)))

    def refused_owners(self, topics: Iterable[str]) -> AccessDeniedError | None:
        """Return why partitions of these topics may have owners unseen."""
        wanted = set(topics) if self.unreadable else set()
        for topic in wanted:
            if error := self.refusal(paths.owners_of(self.name, topic)):
                return error
        for path, error in self.unreadable.items():
            at = paths.locate(path)
            if at.kind is ZnodeKind.OWNER and at.name in wanted:
                return error
        return None

    @property
    def has_unknown_partitions(self) -> bool:
        """Whether the group may use partitions of topics that no readable znode names."""
        return self.has_unknown_members or any(
            self.refusal(top) for top in (paths.owners(self.name), paths.offsets(self.name))
        )

    @cached_property
    def registrations(self) -> dict[ConsumerId, bytes | None]:
        """Consumer id -> payload of its registration."""
        return {at.name: node.data for at, node in self._of(ZnodeKind.MEMBER)}

    @cached_property
    def members(self) -> dict[ConsumerId, Registration | MalformedZnodeError]:
        """Consumer id -> decoded registration, or the error with which JVM members would fail."""
        return {
            name: _registration(self.name, name, data) for name, data in self.registrations.items()
        }

    @cached_property
    def owners(self) -> dict[TopicPartition, OwnerZnode]:
        """Partition -> its owner znode, sorted."""
        found = {}
        for at, node in self._of(ZnodeKind.OWNER):
            tp, stat = TopicPartition(at.name, at.partition), node.stat
            where = paths.owner(self.name, tp)
            found[tp] = owner_znode(node.data, session=stat.owner, czxid=stat.czxid, where=where)
        return dict(sorted(found.items()))

    @cached_property
    def threads(self) -> dict[TopicPartition, ThreadId]:
        """Partition -> the thread that owns it, sorted.

        A member whose owner znode holds its bare consumer id has one thread, number 0.
        """
        held = {tp: owner.thread for tp, owner in self.owners.items()}
        return as_threads(held, self.registrations)

    @cached_property
    def reading(self) -> GroupReading:
        """The znodes that show who uses the group."""
        return GroupReading(
            {at.name: node.stat.owner for at, node in self._of(ZnodeKind.MEMBER)},
            self.owners,
            {tp: last_write(node.stat) for tp, node in self.offset_znodes.items()},
            self.foreign,
        )

    @cached_property
    def health(self) -> GroupHealth:
        """Who uses the group, as far as one reading shows."""
        return group_health(self.reading)

    def group_input(
        self,
        topics: TopicPayloads,
        strategy: Strategy,
        *,
        exclude_internal: bool = True,
    ) -> GroupInput:
        """Return the input of the assignment: registrations, topics and partitions.

        Args:
            topics: topic -> payload of its znode, of all topics.
            exclude_internal: the members' `exclude.internal.topics`.
        """
        registrations = dict(sorted(self.registrations.items()))
        return GroupInput(strategy, registrations, topics, exclude_internal=exclude_internal)

    @cached_property
    def offset_znodes(self) -> dict[TopicPartition, Node]:
        """Partition -> its offset znode as it was read."""
        return {
            TopicPartition(at.name, at.partition): node for at, node in self._of(ZnodeKind.OFFSET)
        }

    @cached_property
    def offsets(self) -> dict[TopicPartition, OffsetNode]:
        """Partition -> its decoded offset znode, sorted."""
        found = {}
        for tp, node in self.offset_znodes.items():
            stat, value, fault = node.stat, None, ""
            try:
                if node.data:
                    value = decode_offset(node.data, where=paths.offset(self.name, tp))
            except MalformedZnodeError as error:
                value, fault = plain_number(node.data), error.what
            is_empty = not node.data
            found[tp] = OffsetNode(value, stat.version, stat.mtime_ms, fault, is_empty)
        return dict(sorted(found.items()))

    @cached_property
    def partitions(self) -> set[TopicPartition]:
        """The partitions that have an owner znode or an offset znode, even an unreadable one."""
        refused = (
            TopicPartition(at.name, at.partition)
            for at in map(paths.locate, self.unreadable)
            if at.kind in (ZnodeKind.OWNER, ZnodeKind.OFFSET)
        )
        return {*self.owners, *self.offsets, *refused}

    @cached_property
    def topics(self) -> set[str]:
        """The topics of these partitions, and those whose owners or offsets cannot be listed."""
        refused = (
            at.name
            for at in map(paths.locate, self.unreadable)
            if at.kind in (ZnodeKind.OWNERS_OF, ZnodeKind.OFFSETS_OF)
        )
        return {*(tp.topic for tp in self.partitions), *refused}

    @cached_property
    def topic_parents(self) -> dict[str, paths.ParsedPath]:
        """The listed parents of owner znodes and of offset znodes: path -> group and topic."""
        located = ((path, paths.locate(path)) for path in self.listed)
        return {
            path: at
            for path, at in located
            if at.kind in (ZnodeKind.OWNERS_OF, ZnodeKind.OFFSETS_OF)
        }

    def _of(self, kind: ZnodeKind) -> Iterable[tuple[paths.ParsedPath, Node]]:
        return self._located.get(kind, ())

    @cached_property
    def _located(self) -> dict[ZnodeKind, list[tuple[paths.ParsedPath, Node]]]:
        found: dict[ZnodeKind, list[tuple[paths.ParsedPath, Node]]] = {}
        for path, node in self.nodes.items():
            at = paths.locate(path)
            found.setdefault(at.kind, []).append((at, node))
        return found


def _registration(
    group: str, name: ConsumerId, data: bytes | None
) -> Registration | MalformedZnodeError:
    try:
        return decode_registration(data, where=paths.member(group, name))
    except MalformedZnodeError as error:
        return error


def read_group_names(connection: ZooKeeperClient) -> list[str]:
    """Return the groups that have a znode, sorted (`ConsumerGroupCommand --list`)."""
    return connection.children([paths.CONSUMERS]).get(paths.CONSUMERS, [])


def matching_groups(connection: ZooKeeperClient, wanted: Iterable[str]) -> list[str]:
    """Return the groups with these names, and the groups that match these patterns, sorted.

    A text that is no group's name is a pattern if it contains `*`, `?` or `[`, as in a shell.
    Raises UnknownGroupError for a name that does not exist, and for a pattern without a match.
    """
    names = read_group_names(connection)
    found: set[str] = set()
    for text in wanted:
        is_pattern = text not in names and not _WILDCARDS.isdisjoint(text)
        matches = (
            [one for one in names if fnmatchcase(one, text)]
            if is_pattern
            else [text]
            if text in names
            else []
        )
        if not matches:
            raise unknown_group(text, connection)
        found.update(matches)
    return sorted(found)


_WILDCARDS = frozenset("*?[")

FEWEST_GROUPS, MOST_GROUPS = 16, 500
"""Number of groups that are read together: with fewer of them, a read would mostly consist of
round trips; with more of them, the replies would take much memory."""

SLICE_S: Final = 1.0
"""Duration in seconds that `in_slices` aims at, because it reports the progress once per slice."""


def in_slices(
    names: Sequence[str],
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> Iterator[Sequence[str]]:
    """Yield slices of group names to read together, and report the progress after each slice.

    A group may have one partition or ten thousand, and ZooKeeper may be near or far. Therefore the
    time that the caller takes for one slice decides the size of the next one.

    Args:
        on_progress: called with the number of groups read so far and the total number.
    """
    at, size = 0, FEWEST_GROUPS
    while at < len(names):
        begin_s = time.monotonic()
        some = names[at : at + size]
        yield some
        at += len(some)
        on_progress(at, len(names))
        factor = SLICE_S / max(time.monotonic() - begin_s, SLICE_S / 4)
        size = min(MOST_GROUPS, max(FEWEST_GROUPS, int(size * factor)))


def read_groups(
    connection: ZooKeeperClient,
    names: Iterable[str],
    *,
    directories: Collection[str] = (MEMBERS, OWNERS, OFFSETS),
    topics: Collection[str] | None = None,
) -> dict[str, GroupImage]:
    """Read groups as `read_readable_parts` does.

    Raises AccessDeniedError with the znodes of a group that this client may not read.
    """
    images = read_readable_parts(connection, names, directories=directories, topics=topics)
    for image in images.values():
        if image.denial:
            raise image.denial
    return images


def read_readable_parts(
    connection: ZooKeeperClient,
    names: Iterable[str],
    *,
    directories: Collection[str] = (MEMBERS, OWNERS, OFFSETS),
    topics: Collection[str] | None = None,
) -> dict[str, GroupImage]:
    """Read what this client may read of groups, with few requests.

    Groups that do not exist are left out. `GroupImage.unreadable` has the other znodes.

    Args:
        directories: those of `ids`, `owners` and `offsets` that are read. With all of them, foreign
            znodes are read too, as far as this client may read them.
        topics: whose owners and offsets are read; None means all topics.
    """
    operation = read_group_znodes(names, directories=directories, topics=topics)
    return {
        name: GroupImage(name, one.nodes, one.listed, one.foreign, one.unreadable, one.unlisted)
        for name, one in connection.run(operation).items()
    }


def existing_group(
    connection: ZooKeeperClient,
    name: str,
    *,
    directories: Collection[str] = (MEMBERS, OWNERS, OFFSETS),
    needs_offsets: bool = True,
) -> GroupImage:
    """Read a group. Raises UnknownGroupError if it does not exist, and AccessDeniedError.

    Without `needs_offsets`, offsets that this client may not read are no error.
    """
    images = read_readable_parts(connection, [name], directories=directories)
    if name not in images:
        raise unknown_group(name, connection)
    image = images[name]
    offsets = f"{paths.offsets(name)}/"
    hidden = [
        path for path in image.unreadable if needs_offsets or not f"{path}/".startswith(offsets)
    ]
    if hidden:
        raise denied(*hidden)
    return image


def read_allowed_groups(
    connection: ZooKeeperClient,
    names: Iterable[str],
    *,
    directories: Collection[str] = (MEMBERS, OWNERS, OFFSETS),
    topics: Collection[str] | None = None,
) -> tuple[dict[str, GroupImage], dict[str, AccessDeniedError]]:
    """Return the groups that this client may read entirely, and group -> error of the others."""
    images = read_readable_parts(connection, names, directories=directories, topics=topics)
    refused = {name: image.denial for name, image in images.items() if image.denial}
    return {name: one for name, one in images.items() if name not in refused}, refused


def unknown_group(group: str, connection: ZooKeeperClient) -> UnknownGroupError:
    """Return the error for a missing group, which suggests groups with a similar name."""
    return UnknownGroupError(
        f"group {group} does not exist",
        where=connection.config.zookeeper_connect,
        remedy=did_you_mean(
            group,
            read_group_names(connection),
            otherwise="check its name and the chroot; list the existing groups",
        ),
        advice=Advice(RemedyOperation.LIST_GROUPS),
    )


def unknown_topic_remedy(topic: str, connection: ZooKeeperClient) -> str:
    """Return what to do about a topic that does not exist, with topics of a similar name."""
    names = read_topic_names(connection)
    return did_you_mean(topic, names, otherwise="list the existing topics")


def read_group_tree(connection: ZooKeeperClient, name: str) -> GroupImage | None:
    """Read all znodes below a group's znode; return None if the group does not exist."""
    nodes = connection.tree(paths.group(name))
    return GroupImage(name, nodes) if nodes else None


def read_partitions(connection: ZooKeeperClient, names: Iterable[str]) -> dict[str, frozenset[int]]:
    """Return topic -> its partitions, for plans; topics that do not exist are left out.

    A topic whose payload cannot be decoded has no partition. Raises AccessDeniedError for a topic
    that this client may not read, because a plan must not leave out its partitions.
    """
    payloads = topic_payloads(connection, names)
    for payload in payloads.values():
        if isinstance(payload, AccessDeniedError):
            raise payload
    return {name: frozenset(partitions_in(name, payloads)[0]) for name in payloads}


def read_topic_names(connection: ZooKeeperClient) -> list[str]:
    """Return the names of all topics, sorted."""
    return connection.children([paths.TOPICS]).get(paths.TOPICS, [])


def read_all_topic_payloads(connection: ZooKeeperClient) -> TopicPayloads:
    """Return the payloads of all topics."""
    return topic_payloads(connection, read_topic_names(connection))


def require_topics(image: GroupImage, topics: TopicPayloads) -> None:
    """Raise AccessDeniedError for an unreadable topic of the group: its assignment is unknown."""
    for topic in requested_topics(image.members, topics).threads:
        if isinstance(payload := topics.get(topic), AccessDeniedError):
            raise payload


def topic_payloads(connection: ZooKeeperClient, names: Iterable[str]) -> TopicPayloads:
    """Return the payloads of topics; topics that do not exist are left out."""
    return {
        paths.locate(path).name: node.data if isinstance(node, Node) else node
        for path, node in connection.read_allowed(map(paths.topic, names)).items()
    }


def read_brokers(connection: ZooKeeperClient) -> dict[str, Broker | MalformedZnodeError]:
    """Return broker id -> registered broker, or the error if its registration cannot be read."""
    ids = connection.children([paths.BROKER_IDS]).get(paths.BROKER_IDS, [])
    nodes = connection.read(paths.broker(number) for number in ids)
    return decode_brokers({paths.locate(path).name: node.data for path, node in nodes.items()})


def registered_brokers(connection: ZooKeeperClient) -> Brokers:
    """Return the registered brokers whose registrations can be read."""
    found = readable_brokers(read_brokers(connection))
    return Brokers(found, connection.config, has_offsets_topic(connection))


def has_offsets_topic(connection: ZooKeeperClient) -> bool | None:
    """Return whether ZooKeeper has the topic of the groups' offsets; None if access is denied."""
    topic = paths.topic(OFFSETS_TOPIC)
    there = connection.stats_allowed([topic]).get(topic)
    return None if isinstance(there, AccessDeniedError) else there is not None


# ---- groups --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group and its number of members.

    Attributes:
        members: registrations with a session; None if the group has no `ids` znode, or if `fault`
            says why the number is unknown.
        leftovers: registrations without a session, which no process holds.
    """

    name: str
    members: int | None
    fault: str = ""
    leftovers: int = 0

    @property
    def state(self) -> GroupState | None:
        """The group's state, as far as its registrations show it; None if it is unknown."""
        if self.fault:
            return None
        if self.members:
            return GroupState.LIVE
        return GroupState.LEFTOVER if self.leftovers else GroupState.IDLE


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A registered member: its subscription, and what it owns.

    Attributes:
        pattern: kind of its subscription; None if the registration cannot be read.
        subscription: topic -> number of streams; for a filter, the key is its regex.
        threads: its consumer thread ids, of all topics.
        owned: thread -> number of partitions that it owns; threads that own none are left out.
        session: the session of the registration; 0 if it is persistent, which is left over from a
            copy of ZooKeeper.
        since_ms: time of the registration by the server's clock, in ms since 1970.
        fault: why the registration cannot be read.
        is_other_client: whether its owner znodes hold the consumer id without a thread number, as
            kafka-node and the Go library consumergroup write them.
        owned_fault: why it may own more than `owned`: this client may not read owner znodes of its
            topics.
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
    is_other_client: bool = False
    owned_fault: str = ""

    @property
    def idle(self) -> tuple[ThreadId, ...]:
        """Threads that own no partition, as far as the readable owner znodes show."""
        return tuple(thread for thread in self.threads if thread not in self.owned)


Selection = Mapping[str, frozenset[int] | None]
"""Topic -> partitions; None means all partitions of the topic."""


def selected(
    partitions: Iterable[TopicPartition], only: Selection | None
) -> Iterator[TopicPartition]:
    """Return the given partitions that are also selected; None selects all."""
    for tp in partitions:
        numbers = None if only is None else only.get(tp.topic, frozenset())
        if numbers is None or tp.partition in numbers:
            yield tp


def groups(connection: ZooKeeperClient, *, topics: Selection | None = None) -> list[GroupSummary]:
    """Return all groups, or those with offsets or owners of selected partitions, sorted by name.

    A group is also returned if ZooKeeper denies access to its owners or offsets of a selected
    topic, because it may have some. Raises what `ZooKeeperClient.read` raises.

    Kafka: `ConsumerGroupCommand --list`.
    """
    names = read_group_names(connection)
    if topics is not None:
        having = _groups_with_selected_znodes(connection, names, topics)
        names = [name for name in names if name in having]
    found = connection.list_allowed(map(paths.ids, names))
    registered = [
        f"{path}/{name}" for path, some in found.items() if isinstance(some, list) for name in some
    ]
    # A registration that this client may not read exists, and counts as a member's.
    sessions = {
        path: 1 if isinstance(stat, AccessDeniedError) else stat.owner
        for path, stat in connection.stats_allowed(registered).items()
    }
    return [_group_summary(name, found.get(paths.ids(name)), sessions) for name in names]


def _groups_with_selected_znodes(
    connection: ZooKeeperClient, names: Collection[str], topics: Selection
) -> set[str]:
    """Return the groups with an offset or owner znode of a selected partition."""
    parents = {
        parent(name, topic): (name, numbers)
        for topic, numbers in topics.items()
        for parent in (paths.offsets_of, paths.owners_of)
        for name in names
    }
    found = set()
    for path, children in connection.list_allowed(parents).items():
        name, numbers = parents[path]
        if (
            numbers is None
            or isinstance(children, AccessDeniedError)
            or not numbers.isdisjoint(int(one) for one in children if one.isdigit())
        ):
            found.add(name)
    return found


def _group_summary(
    name: str, listed: list[str] | AccessDeniedError | None, sessions: Mapping[str, int]
) -> GroupSummary:
    if isinstance(listed, AccessDeniedError):
        return GroupSummary(name, None, str(listed))
    if listed is None:
        return GroupSummary(name, None)
    # A registration that was deleted since the listing is in neither number.
    found = [sessions[path] for one in listed if (path := paths.member(name, one)) in sessions]
    members = sum(map(bool, found))
    return GroupSummary(name, members, leftovers=len(found) - members)


def members(
    connection: ZooKeeperClient,
    names: Iterable[str],
    *,
    on_denied: Callable[[str, AccessDeniedError], None] | None = None,
) -> dict[str, tuple[RequestedTopics, list[MemberReport]]]:
    """Return group -> (its requested topics, its members), for the groups that exist.

    `on_denied` is called with each group that this client may not read entirely, and with an error
    that names the znodes. The result has the readable members; a group whose registrations cannot
    be listed is left out. If `on_denied` is None, the first error is raised.
    """
    images = read_readable_parts(connection, list(names), directories=(MEMBERS, OWNERS))
    for name, image in images.items():
        if image.denial and on_denied is None:
            raise image.denial
        if image.denial and on_denied is not None:
            on_denied(name, image.denial)
    images = {name: one for name, one in images.items() if not one.refusal(paths.ids(name))}
    topics = read_topic_payloads(connection, images.values())
    found = {}
    for name, image in images.items():
        wanted = requested_topics(image.members, topics)
        found[name] = wanted, list(member_reports(image, wanted))
    return found


def read_topic_payloads(connection: ZooKeeperClient, images: Iterable[GroupImage]) -> TopicPayloads:
    """Return the payloads of all topics that concern these groups.

    If a member subscribes with a topic filter, the result has all topics.
    """
    names: set[str] = set()
    for image in images:
        names |= image.topics
        for member in image.members.values():
            if not isinstance(member, Registration):
                continue
            if member.pattern is not Pattern.STATIC:
                names.update(read_topic_names(connection))
            else:
                names.update(topic for topic in member.subscription if not paths.znode_fault(topic))
    return topic_payloads(connection, sorted(names))


def member_reports(image: GroupImage, wanted: RequestedTopics) -> Iterator[MemberReport]:
    """Yield a report on each member of a group, sorted."""
    owned: dict[ConsumerId, dict[ThreadId, int]] = {}
    for thread in image.threads.values():
        of_member = owned.setdefault(paths.consumer_of(thread), {})
        of_member[thread] = of_member.get(thread, 0) + 1
    for consumer, member in sorted(image.members.items()):
        stat = image.nodes[paths.member(image.name, consumer)].stat
        streams = max(wanted.counts.get(consumer, {}).values(), default=0)
        threads = tuple(thread_ids(consumer, streams))
        registration = member if isinstance(member, Registration) else None
        fault = wanted.faults.get(consumer)
        unread = image.refused_owners(wanted.counts.get(consumer, ()))
        yield MemberReport(
            image.name,
            consumer,
            registration.pattern if registration else None,
            registration.subscription if registration else {},
            threads,
            owned.get(consumer, {}),
            stat.owner,
            stat.mtime_ms,
            fault.what if fault else "",
            consumer in image.health.other_clients,
            str(unread or ""),
        )


def idle_by_design(wanted: RequestedTopics) -> Iterator[str]:
    """Yield a sentence for each topic that has more threads than partitions."""
    for topic, threads in wanted.threads.items():
        partitions = len(wanted.partitions.get(topic, ()))
        if not partitions:
            why = wanted.topic_faults.get(topic) or "the topic has no partitions, or does not exist"
            yield f"{topic}: {_count(len(threads), 'thread')} without a partition: {why}"
        elif len(threads) > partitions:
            yield (
                f"{topic}: {_count(len(threads), 'thread')}, {_count(partitions, 'partition')}:"
                f" {len(threads) - partitions} idle by design"
            )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# ---- topics --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic and its number of partitions, or `fault`, which says why its znode cannot be read.

    Partitions may have different numbers of replicas; `replicas` is the lowest and the highest
    number. `partitions` is None with a `fault`.
    """

    name: str
    partitions: int | None = None
    replicas: tuple[int, int] = (0, 0)
    fault: str = ""


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """The brokers of a partition.

    `leader` is a broker id, None if the partition has no leader, or a string that says why the
    leader is unknown.
    """

    topic: str
    partition: int
    leader: int | str | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def out_of_sync(self) -> tuple[int, ...]:
        """Replicas that are not in sync."""
        return tuple(one for one in self.replicas if one not in self.isr)


def topics(connection: ZooKeeperClient, names: Iterable[str] | None = None) -> list[TopicSummary]:
    """Return topics, sorted; None means all, and topics that do not exist are left out.

    Raises ZooKeeperUnreachableError.
    """
    wanted = read_topic_names(connection) if names is None else sorted(set(names))
    payloads = topic_payloads(connection, wanted)
    return [_topic_summary(name, payload) for name, payload in payloads.items()]


def _topic_summary(name: str, payload: bytes | AccessDeniedError | None) -> TopicSummary:
    try:
        counts = [len(brokers) for brokers in _replicas(name, payload).values()]
    except MalformedZnodeError as error:
        return TopicSummary(name, fault=error.what)
    except AccessDeniedError as error:
        return TopicSummary(name, fault=str(error))
    return TopicSummary(name, len(counts), (min(counts, default=0), max(counts, default=0)))


def _replicas(name: str, payload: bytes | AccessDeniedError | None) -> dict[int, tuple[int, ...]]:
    if isinstance(payload, AccessDeniedError):
        raise payload
    return decode_replicas(payload, where=paths.topic(name))


def partitions(connection: ZooKeeperClient, names: Iterable[str]) -> list[PartitionReplicas]:
    """Return every partition of these topics, sorted; topics that do not exist are left out.

    Raises MalformedZnodeError for a topic whose znode cannot be decoded, and AccessDeniedError for
    one that this client may not read.
    """
    placed = {
        (name, number): replicas
        for name, payload in topic_payloads(connection, sorted(set(names))).items()
        for number, replicas in _replicas(name, payload).items()
    }
    return list(_partition_replicas(connection, placed))


def _partition_replicas(
    connection: ZooKeeperClient, placed: dict[tuple[str, int], tuple[int, ...]]
) -> Iterator[PartitionReplicas]:
    states = connection.read(paths.partition_state(*key) for key in placed)
    for (topic, number), replicas in placed.items():
        path = paths.partition_state(topic, number)
        leader: int | str | None
        isr: tuple[int, ...] = ()
        try:
            if path not in states:
                leader = "the partition has no state znode yet"
            else:
                state = decode_partition_state(states[path].data, where=path)
                leader, isr = (state.leader if state.leader >= 0 else None), state.isr
        except MalformedZnodeError as error:
            leader = error.what
        yield PartitionReplicas(topic, number, leader, replicas, isr)
