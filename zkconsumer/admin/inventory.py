"""The inventory: every group in ZooKeeper, and what must happen to it before Kafka 4.

    with ZooKeeperClient(config) as connection:
        for entry in inventory(connection, idle_s=30 * 86_400, limit_s=6.0).entries:
            print(entry.name, entry.verdict.value, entry.why)

The groups are read as all tools read them: `protocol.group_health` says who uses a group, after two
readings if an offset was written recently, and `admin.lag` compares both stores with the logs.
`protocol.programs` says which program has left the znodes. Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from zkconsumer.admin.groups import (
    GroupImage,
    in_slices,
    read_all_topic_payloads,
    read_group_names,
    read_readable_parts,
    registered_brokers,
)
from zkconsumer.admin.health import age, listed, read_again, written
from zkconsumer.admin.lag import (
    NOTHING_TO_READ,
    GroupLag,
    PartitionLag,
    lags_of,
    total_lag,
    unasked_kafka,
)
from zkconsumer.errors import first_few
from zkconsumer.kafka.logs import LogRange, log_ends
from zkconsumer.protocol import paths, programs
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import partitions_in
from zkconsumer.protocol.group_health import (
    PATIENCE_S,
    RECENT_S,
    GroupHealth,
    GroupReading,
    GroupState,
)
from zkconsumer.protocol.model import OFFSETS_TOPIC, OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.payloads import TopicPayloads
from zkconsumer.protocol.programs import Evidence, Program, SpoutOffset
from zkconsumer.protocol.registrations import Registration
from zkconsumer.protocol.release_detection import detect
from zkconsumer.protocol.requests import Node, denied
from zkconsumer.zk.client import ZooKeeperClient
from zkconsumer.zk.clients import ClientAddresses

IDLE_S: Final = 30 * 86_400.0
"""Seconds without a commit after which a group without members counts as dead. A monthly job may
look dead, so the user decides what to delete."""


class Verdict(Enum):
    """What must happen to a user of ZooKeeper."""

    ACT = "must act"
    DELETE = "may be deleted"
    MOVED = "already moved"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class InventoryEntry:
    """A user of ZooKeeper.

    Attributes:
        name: the group, or the path of another program's tree.
        state: who uses it; None if it is not a group, or if unreadable znodes may show another
            state.
        evidence: the programs that left it, certain ones first.
        members: the number of live members, and of registrations that this client may not read;
            None if it may not list the registrations.
        topics: the topics of its offsets, owners and subscriptions.
        lag: messages from its offsets to the ends of the logs; a string that says why it is
            unknown; None without an offset.
        committed_ms: time of the last commit in ZooKeeper by the server's clock, in milliseconds
            since 1970; a string that says why it is unknown; None without an offset.
        hosts: the hosts of its members, from their consumer ids or from ZooKeeper's connections.
        blocked_by: what prevents its migration, one clause each.
        why: the reason for the verdict.
        unreadable: which znodes this client may not read, and what to do; "" if it may read
            everything. Topics and hosts may then be missing.
    """

    name: str
    state: GroupState | None
    evidence: tuple[Evidence, ...] = ()
    members: int | None = 0
    topics: tuple[str, ...] = ()
    lag: int | str | None = None
    committed_ms: int | str | None = None
    hosts: tuple[str, ...] = ()
    blocked_by: tuple[str, ...] = ()
    verdict: Verdict = Verdict.UNKNOWN
    why: str = ""
    unreadable: str = ""

    @property
    def program(self) -> Program:
        """The program with the best evidence, a hint before the JVM consumer that it embeds."""
        found = [one.program for one in self.evidence]
        named = [one for one in found if one not in (Program.JVM, Program.WRITER)]
        return (named or found or [Program.UNKNOWN])[0]


@dataclass(frozen=True, slots=True)
class Inventory:
    """All users of a cluster's ZooKeeper, sorted by name; and when they were read.

    `unsearched` says which znodes outside of the consumers' layout were not searched for the
    offsets of a Storm spout, and why.
    """

    entries: tuple[InventoryEntry, ...]
    at_ms: int
    unsearched: tuple[str, ...] = ()


def inventory(
    connection: ZooKeeperClient,
    *,
    limit_s: float,
    groups: Collection[str] | None = None,
    idle_s: float = IDLE_S,
    patience_s: float = PATIENCE_S,
    addresses: Callable[[], ClientAddresses] = ClientAddresses,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_wait: Callable[[int, float], None] = lambda groups, left_s: None,
) -> Inventory:
    """Read all groups, or these, and other programs' trees; return what must happen to each.

    Args:
        limit_s: seconds per request to the brokers.
        idle_s: seconds without a commit after which a group without members may be deleted.
        patience_s: seconds between two readings of a group that was written recently.
        addresses: asks ZooKeeper's servers for the addresses of their clients.
        on_progress: called with the number of groups read, and their total number.
        on_wait: called before the wait for the second readings, with the number of these groups and
            the seconds.

    Raises what `ZooKeeperClient.read` raises.
    """
    survey = _Survey(connection, limit_s, idle_s)
    names = read_group_names(connection) if groups is None else sorted(groups)
    for some in in_slices(names, on_progress):
        survey.read(some)
    survey.ask_brokers()
    survey.look_again(patience_s, on_wait)
    survey.clients = addresses()
    entries = [*survey.entries(), *(survey.trees() if groups is None else ())]
    entries.sort(key=lambda one: one.name)
    return Inventory(tuple(entries), round(survey.now_s * 1000), tuple(survey.unsearched))


# ---- reading -------------------------------------------------------------------------------------


@dataclass
class _Survey:
    """The groups that have been read so far."""

    connection: ZooKeeperClient
    limit_s: float
    idle_s: float
    now_s: float = field(default_factory=time.time)
    clients: ClientAddresses = field(default_factory=ClientAddresses)
    unsearched: list[str] = field(default_factory=list)
    _images: dict[str, GroupImage] = field(default_factory=dict)
    _lags: dict[str, GroupLag] = field(default_factory=dict)
    _health: dict[str, GroupHealth] = field(default_factory=dict)
    _first: dict[str, GroupReading] = field(default_factory=dict)
    _spouts: dict[str, list[SpoutOffset]] = field(default_factory=dict)
    _read_s: float = 0.0

    def __post_init__(self) -> None:
        self._topics = read_all_topic_payloads(self.connection)
        found = {name: partitions_in(name, self._topics) for name in self._topics}
        self._partitions = {name: frozenset(numbers) for name, (numbers, _) in found.items()}
        self._unread_topics = {name: fault for name, (_, fault) in found.items() if fault}

    def read(self, names: Collection[str]) -> None:
        """Read some groups."""
        images = read_readable_parts(self.connection, names)
        self._images |= images
        self._read_s = time.monotonic()
        for name, image in images.items():
            self._health[name] = image.health
            self._first[name] = image.reading
        spouts = {
            path: name
            for name, image in images.items()
            for path in image.foreign
            if programs.is_spout_znode(path.rpartition("/")[2])
        }
        for path, node in self.connection.read_allowed(spouts).items():
            if isinstance(node, Node) and (found := programs.read_spout(node.data)) is not None:
                self._spouts.setdefault(spouts[path], []).append(found)

    def ask_brokers(self) -> None:
        """Read the lag of all groups and their offsets in Kafka.

        The brokers are asked once for all groups, because silent brokers use up a time limit.
        """
        # Without this topic no group has an offset in Kafka, and no broker needs to be asked.
        ask = None if OFFSETS_TOPIC in self._topics else unasked_kafka
        self._lags = lags_of(self.connection, self._images, limit_s=self.limit_s, kafka=ask)

    def look_again(self, patience_s: float, on_wait: Callable[[int, float], None]) -> None:
        """Read the groups again in which an offset was written recently, after `patience_s`."""
        suspects = {
            name: self._first[name]
            for name, one in self._health.items()
            if one.write_age_s(self.now_s) is not None and not self._images[name].denial
        }
        if suspects:
            left_s = max(0.0, self._read_s + patience_s - time.monotonic())
            on_wait(len(suspects), left_s)
            time.sleep(left_s)
            self._health |= read_again(self.connection, suspects)

    # ---- entries -------------------------------------------------------------------------------

    def entries(self) -> Iterator[InventoryEntry]:
        """Yield each group, with its verdict."""
        for name, group in self._lags.items():
            yield self._judged(self._described(group, self._health[name]), group)

    def _described(self, group: GroupLag, health: GroupHealth) -> InventoryEntry:
        image, unreadable = group.image, str(group.image.unknown_use or "")
        committed = [node.mtime_ms for node in image.offsets.values()]
        committed += [write.mtime_ms for write in image.foreign.values()]
        last_ms = max(committed, default=None)
        members = len(health.live) + len(image.unread_members)
        state = GroupState.LIVE if members else None if unreadable else health.state
        topics = {tp.topic for tp in (*image.offsets, *image.owners)}
        topics |= group.requested_topics.threads.keys()
        spouts = self._spouts.get(image.name, [])
        readable = (one for one in group.partitions if one.log not in NOTHING_TO_READ)
        lag = total_lag(replace(group, partitions=tuple(readable)))
        return InventoryEntry(
            image.name,
            state,
            evidence=tuple(self._evidence(group, health)),
            members=None if image.refusal(paths.ids(image.name)) else members,
            topics=tuple(sorted(topics | {one.partition.topic for one in spouts})),
            lag=self._spout_lag(spouts) if spouts and lag is None else lag,
            committed_ms=unreadable if image.has_unknown_offsets or image.unlisted else last_ms,
            hosts=tuple(sorted(set(self._hosts(image, health)))),
            blocked_by=tuple(self._blockers(group, health)),
            unreadable=unreadable,
        )

    def _evidence(self, group: GroupLag, health: GroupHealth) -> Iterator[Evidence]:
        image = group.image
        found = [programs.of_registration(data) for data in image.registrations.values()]
        offsets = {tp: (one.data, one.stat.mzxid) for tp, one in image.offset_znodes.items()}
        if health.live and not any(found):
            found.append(_of_members(image, health, self._topics))
        elif any(map(programs.is_pykafka_owner, _odd_owners(image))):
            found.append(Evidence(Program.PYKAFKA, "its owner znodes name the leader's broker"))
        if image.name in self._spouts:
            reason = "JSON in a znode partition_N, as storm-kafka writes it"
            found.append(Evidence(Program.STORM, reason))
        if not health.live or programs.of_offsets(offsets) is not None:
            found.append(programs.of_offsets(offsets))
        if health.writers and not any(found):
            reason = "it commits without a registration: direct Spark, Flink, kafka-python"
            found.append(Evidence(Program.WRITER, reason))
        found.append(programs.by_name(image.name))
        yield from dict.fromkeys(one for one in found if one is not None)

    def _hosts(self, image: GroupImage, health: GroupHealth) -> Iterator[str]:
        for consumer, session in health.live.items():
            host = paths.host_of(image.name, consumer) or self.clients.of(session)
            if host:
                yield host
        for consumer in image.unread_members:
            if host := paths.host_of(image.name, consumer):
                yield host
        for session in health.unregistered_owners.values():
            if (address := self.clients.of(session)) is not None:
                yield address

    def _spout_lag(self, spouts: Iterable[SpoutOffset]) -> int | str | None:
        """Return the lag of a Storm spout's offsets."""
        wanted = {one.partition: one.offset for one in spouts}
        if faults := [fault for tp in wanted if (fault := self._unread_topics.get(tp.topic))]:
            return faults[0]
        there = [tp for tp in wanted if tp.partition in self._partitions.get(tp.topic, ())]
        if not there:
            return None
        logs = log_ends(registered_brokers(self.connection), there, limit_s=self.limit_s)
        total = 0
        for tp in there:
            log = logs[tp]
            if isinstance(log, str):
                return log
            total += max(0, log.end - wanted[tp])
        return total

    # ---- the verdict ---------------------------------------------------------------------------

    def _blockers(self, group: GroupLag, health: GroupHealth) -> Iterator[str]:
        """Yield what prevents the migration of a group's offsets."""
        image = group.image
        if count := len(health.live) + len(image.unread_members):
            yield f"{count} live member{'' if count == 1 else 's'}"
        if image.unknown_use:
            yield f"this client may not read {image.unknown_use.where}"
        if health.is_written:
            yield written(health)
        if health.leftovers or health.leftover_owners:
            yield "registrations or owner znodes without a session"
        faults = [tp for tp, node in image.offsets.items() if node.value is None]
        if faults:
            yield f"unreadable or empty offsets of {listed(faults)}"
        if outside := [one.tp for one in group.partitions if _is_outside(one)]:
            yield f"offsets outside of the log: {listed(outside)}"
        if deleted := self._deleted(group):
            yield f"offsets of deleted topics: {', '.join(deleted)}"
        if higher := [one.tp for one in group.partitions if _is_higher_in_kafka(one)]:
            yield f"Kafka has higher offsets: {listed(higher)}"
        if not paths.is_topic(image.name):
            yield "Kafka does not allow the group's name"

    def _deleted(self, group: GroupLag) -> list[str]:
        """Return the topics of a group's offsets that do not exist."""
        return sorted({tp.topic for tp in group.image.offsets} - self._topics.keys())

    def _judged(self, one: InventoryEntry, group: GroupLag) -> InventoryEntry:
        verdict, why = self._verdict(one, group, self._health[one.name])
        if one.unreadable and verdict is Verdict.ACT:
            why = f"{why}; {one.unreadable}"
        return replace(one, verdict=verdict, why=why)

    def _verdict(
        self, one: InventoryEntry, group: GroupLag, health: GroupHealth
    ) -> tuple[Verdict, str]:
        if health.live or group.image.unread_members:
            return Verdict.ACT, "members are registered in ZooKeeper"
        if health.is_written or health.unregistered_owners:
            which = "" if group.image.has_unknown_members else " without a registration"
            return Verdict.ACT, f"a client{which} uses it"
        if one.unreadable:
            return Verdict.UNKNOWN, one.unreadable
        stored = [part for part in group.partitions if isinstance(part.in_zookeeper, int)]
        in_kafka = [p for p in group.partitions if isinstance(p.in_kafka, OffsetAndMetadata)]
        if in_kafka and all(_has_moved(part) for part in stored if self._exists(part.tp)):
            return Verdict.MOVED, "Kafka has its offsets, none lower than ZooKeeper's"
        if one.committed_ms is None and not in_kafka:
            return Verdict.DELETE, "it has no offset and no member"
        if stored and not any(self._exists(part.tp) for part in stored):
            return Verdict.DELETE, "all its topics have been deleted"
        last = "its last commit is unknown"
        if isinstance(one.committed_ms, int):
            ago_s = self.now_s - one.committed_ms / 1000
            last = f"its last commit was {age(max(0.0, ago_s))} ago"
            if ago_s > self.idle_s:
                return Verdict.DELETE, f"nobody uses it, and {last}"
            if one.program is Program.CONSOLE:
                return Verdict.DELETE, f"a console consumer that has ended; {last}"
        return Verdict.UNKNOWN, f"nobody uses it now, and {last}: ask its owner"

    def _exists(self, tp: TopicPartition) -> bool:
        """Return whether a partition exists, or may exist because its topic cannot be read."""
        return tp.topic in self._unread_topics or (
            tp.partition in self._partitions.get(tp.topic, ())
        )

    # ---- other trees ---------------------------------------------------------------------------

    def trees(self) -> Iterator[InventoryEntry]:
        """Yield the trees of Storm and Secor outside of the consumers' layout."""
        listed_below = self._children(["/"]).get("/", [])
        level = [f"/{name}" for name in listed_below if name not in KAFKA_ROOTS]
        for depth in range(1, TREE_DEPTH + 1):
            if len(level) > MOST_TREES:
                self.unsearched.append(
                    f"only {MOST_TREES} of {len(level)} znodes of level {depth} were searched for a"
                    " Storm spout's offsets"
                )
            below = self._children(level[:MOST_TREES])
            for path, names in below.items():
                spouts = [f"{path}/{name}" for name in names if programs.is_spout_znode(name)]
                if spouts:
                    yield self._spout_tree(path, spouts)
            level = [f"{path}/{name}" for path, names in below.items() for name in names]
        if SECOR_ROOT.strip("/") in listed_below:
            reason = "Secor locks the partitions that it uploads here"
            why = "Secor's locks, without offsets: delete the tree after Secor has been stopped"
            evidence = (Evidence(Program.SECOR, reason),)
            yield InventoryEntry(SECOR_ROOT, None, evidence, why=why)

    def _children(self, parents: Iterable[str]) -> dict[str, list[str]]:
        """Return the children of znodes, and note which ones this client may not list."""
        answers = self.connection.list_allowed(parents)
        forbidden = [path for path, names in answers.items() if not isinstance(names, list)]
        if forbidden:
            self.unsearched.append(
                f"this client may not list {first_few(forbidden, 5)}: a Storm spout's offsets below"
                " would not be found"
            )
        return {path: sorted(names) for path, names in answers.items() if isinstance(names, list)}

    def _spout_tree(self, path: str, znodes: Iterable[str]) -> InventoryEntry:
        answers = self.connection.read_allowed(znodes)
        hidden = [one for one, node in answers.items() if not isinstance(node, Node)]
        unreadable = str(denied(*hidden)) if hidden else ""
        nodes = [node for node in answers.values() if isinstance(node, Node)]
        spouts = list(programs.spout_offsets(node.data for node in nodes))
        last_ms = max((node.stat.mtime_ms for node in nodes), default=0)
        ago_s = max(0.0, self.now_s - last_ms / 1000)
        verdict, why = Verdict.UNKNOWN, f"a Storm spout stored its last offset {age(ago_s)} ago"
        if ago_s <= RECENT_S:
            verdict = Verdict.ACT
        elif ago_s > self.idle_s:
            verdict = Verdict.DELETE
        if unreadable:
            verdict = verdict if verdict is Verdict.ACT else Verdict.UNKNOWN
            why = f"{why}; {unreadable}" if nodes else unreadable
        elif not nodes:
            verdict, why = Verdict.UNKNOWN, "its offsets have just been deleted"
        names = ", ".join(sorted({one.topology for one in spouts})) or "unknown"
        return InventoryEntry(
            path,
            None,
            evidence=(Evidence(Program.STORM, f"offsets in JSON, of topology {names}"),),
            topics=tuple(sorted({one.partition.topic for one in spouts})),
            lag=unreadable or self._spout_lag(spouts),
            committed_ms=unreadable or last_ms or None,
            verdict=verdict,
            why=why,
            unreadable=unreadable,
        )


KAFKA_ROOTS: Final = frozenset(
    {
        *("admin", "brokers", "cluster", "config", "consumers", "controller", "controller_epoch"),
        *(
            "delegation_token",
            "feature",
            "isr_change_notification",
            "kafka-acl",
            "kafka-acl-changes",
        ),
        *("kafka-acl-extended", "kafka-acl-extended-changes", "latest_producer_id_block"),
        *("log_dir_event_notification", "migration", "zookeeper"),
    }
)
"""The children of the chroot that belong to Kafka and to ZooKeeper (`kafka.zk.ZkData`)."""

SECOR_ROOT: Final = "/secor"

TREE_DEPTH: Final = 3
"""Levels below the chroot that are searched for spouts: the root, the id, and a topic."""

MOST_TREES: Final = 1_000
"""Number of znodes of a level that are searched. ZooKeeper may serve other programs with large
trees; a spout in the rest is not found, and `Inventory.unsearched` says so."""


# ---- parts ---------------------------------------------------------------------------------------


def _of_members(image: GroupImage, health: GroupHealth, topics: TopicPayloads) -> Evidence | None:
    """Return whether live members are zkconsumer's or the JVM's, and the release if it shows.

    Return None if nothing shows it, because no registration can be read.
    """
    if any(data and data.startswith(b'{ "pattern"') for data in image.registrations.values()):
        return Evidence(Program.JVM, "release 0.8.0, by the form of its registration")
    claims: dict[str, list[int]] = {}
    for tp, consumer in health.owned.items():
        claims.setdefault(consumer, []).append(image.owners[tp].czxid)
    found = programs.of_owners(claims)
    if found is not None and found.program is Program.ZKCONSUMER:
        return found
    if found is None and not any(isinstance(one, Registration) for one in image.members.values()):
        return None
    detected = detect(image.group_input(topics, Strategy.RANGE), image.threads)
    reason = found.reason if found else "its registrations have the form of the JVM's"
    if not detected.reason.startswith("default"):
        reason = f"{reason}; {detected.reason}"
    return Evidence(Program.JVM, reason)


def _odd_owners(image: GroupImage) -> Iterator[str]:
    for parent, names in image.listed.items():
        if paths.locate(parent).kind is paths.ZnodeKind.OWNERS_OF:
            yield from names


def _is_outside(one: PartitionLag) -> bool:
    at, log = one.in_zookeeper, one.log
    return isinstance(at, int) and isinstance(log, LogRange) and not log.start <= at <= log.end


def _is_higher_in_kafka(one: PartitionLag) -> bool:
    there = one.in_kafka
    return (
        isinstance(there, OffsetAndMetadata)
        and isinstance(one.in_zookeeper, int)
        and there.offset > one.in_zookeeper
    )


def _has_moved(one: PartitionLag) -> bool:
    """Return whether Kafka has the partition's offset, and no lower one than ZooKeeper."""
    there = one.in_kafka
    return (
        isinstance(there, OffsetAndMetadata)
        and isinstance(one.in_zookeeper, int)
        and there.offset >= one.in_zookeeper
    )
