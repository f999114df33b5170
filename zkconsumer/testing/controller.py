"""The controller of a fake cluster: it keeps ZooKeeper, the topics and their leaders consistent.

As a real controller does, it follows ZooKeeper: a topic that a tool writes below /brokers/topics
gets leaders and logs, and a topic that a tool names below /admin/delete_topics is deleted.

Kafka: `kafka.controller.KafkaController`, `kafka.zk.ZkData`.
"""

from __future__ import annotations

import base64
import json
import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from zkconsumer.errors import FakeServerError, InvalidNameError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import JsonObject, TopicPartition
from zkconsumer.protocol.payloads import topic_config
from zkconsumer.protocol.requests import Create, SetData
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.sim.znodes import ZnodeChange
from zkconsumer.testing.broker_versions import BrokerProfile
from zkconsumer.testing.clock import Clock
from zkconsumer.testing.cluster_metadata import (
    NO_LEADER,
    ClusterMetadata,
    LiveBroker,
    Partition,
    Topic,
)
from zkconsumer.testing.errors import ErrorCode, KafkaFault
from zkconsumer.testing.logs import LogSettings, PartitionLog
from zkconsumer.testing.record_sets import CODECS
from zkconsumer.testing.server import ServerEngine
from zkconsumer.testing.wire import NO_ID
from zkconsumer.testing.zookeeper import FakeZooKeeper, LocalSession

_DELETE: Final = "/admin/delete_topics"
_CONFIG: Final = "/config/topics"
_CONTROLLER: Final = "/controller"

# Persistent znodes without payload, with the first release that has them.
_ROOTS: Final[Mapping[str, str]] = {
    paths.CONSUMERS: "0.8.2.2",
    paths.BROKER_IDS: "0.8.2.2",
    paths.TOPICS: "0.8.2.2",
    "/config/changes": "0.8.2.2",
    "/config/topics": "0.8.2.2",
    "/admin/delete_topics": "0.8.2.2",
    f"{paths.BROKERS}/seqid": "0.9.0.1",
    "/config/clients": "0.9.0.1",
    "/isr_change_notification": "0.9.0.1",
    f"/config{paths.BROKERS}": "1.1.1",
    "/config/users": "1.1.1",
    "/log_dir_event_notification": "1.1.1",
    "/config/ips": "3.9.1",
    "/latest_producer_id_block": "3.9.1",
}

logger = SafeLogger(logging.getLogger(__name__))


def _compact(record: object) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


def _registration(node: LiveBroker, version: int, now_ms: int) -> bytes:
    """Return a broker's registration, with the fields in the order of the release."""
    time, where = str(now_ms), f"PLAINTEXT://{node.host}:{node.port}"
    host, port = node.host, node.port
    if version == 1:
        fields = {"jmx_port": -1, "timestamp": time, "host": host, "version": 1, "port": port}
        return _compact(fields)
    if version == 2:
        head = {"jmx_port": -1, "timestamp": time, "endpoints": [where]}
        return _compact({**head, "host": host, "version": 2, "port": port})
    listeners = {"PLAINTEXT": "PLAINTEXT"}
    head = {"listener_security_protocol_map": listeners, "endpoints": [where], "jmx_port": -1}
    if version == 4:
        return _compact({**head, "host": host, "timestamp": time, "port": port, "version": 4})
    rest = {"port": port, "host": host, "version": 5, "timestamp": time}
    return _compact({"features": {}, **head, **rest})


def _id_text(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def _id_of(text: str) -> bytes:
    return base64.urlsafe_b64decode(f"{text}==")


@dataclass
class _Due:
    """What the controller reads again, because ZooKeeper has changed.

    Attributes:
        brokers: whether brokers have registered or gone.
        deletions: whether a topic is to be deleted.
        topics: the topics whose znodes have changed.
        settings: the topics whose settings have changed.
    """

    brokers: bool = False
    deletions: bool = False
    topics: set[str] = field(default_factory=set)
    settings: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return self.brokers or self.deletions or bool(self.topics or self.settings)

    def note(self, path: str) -> None:
        """Note that a znode has changed."""
        parent, _, name = path.rpartition("/")
        self.brokers |= parent == paths.BROKER_IDS
        self.deletions |= parent == _DELETE
        if parent == paths.TOPICS:
            self.topics.add(name)
        elif parent == _CONFIG:
            self.settings.add(name)


class Controller:
    """Keeps ZooKeeper and the cluster's metadata consistent.

    Attributes:
        metadata: the brokers and topics.
        groups: the groups of each partition of `__consumer_offsets` that no live broker leads.
    """

    def __init__(
        self, zookeeper: FakeZooKeeper, profile: BrokerProfile, clock: Clock, engine: ServerEngine
    ) -> None:
        self.metadata = ClusterMetadata(_id_text(uuid.uuid4().bytes))
        self.groups: dict[int, Mapping[str, object]] = {}
        self._zookeeper, self._profile = zookeeper, profile
        self._clock, self._engine = clock, engine
        self._sessions: dict[int, LocalSession] = {}
        self._known: dict[int, LiveBroker] = {}
        self._due = _Due()
        self._is_running = False
        zookeeper.listen(self._noticed)

    def start(self) -> None:
        """Create the znodes that brokers expect, and follow ZooKeeper."""
        self._is_running = True
        self._write_roots()
        self._due = self._everything()
        self.follow()

    def stop(self) -> None:
        """Follow ZooKeeper no more."""
        self._is_running = False

    # ---- znodes ---------------------------------------------------------------------------------

    def read(self, path: str) -> bytes | None:
        """Return a znode's payload; None if there is no such znode."""
        return self._zookeeper.get(path) if self._zookeeper.exists(path) else None

    def write(self, path: str, data: bytes | None) -> None:
        """Write a persistent znode, and its parents if they are missing."""
        self._write_all({path: data})

    def _write_all(self, payloads: Mapping[str, bytes | None]) -> None:
        """Write persistent znodes in one transaction, and the parents that are missing."""
        writes: dict[str, Create | SetData] = {}
        for path, data in payloads.items():
            parts = path.split("/")
            for above in ("/".join(parts[:end]) for end in range(2, len(parts))):
                if above not in writes and not self._zookeeper.exists(above):
                    writes[above] = Create(above, None)
            exists = self._zookeeper.exists(path)
            writes[path] = SetData(path, data, -1) if exists else Create(path, data)
        if writes:
            self._zookeeper.write(*writes.values())

    def _write_roots(self) -> None:
        """Create the znodes that brokers of this release create when the first of them starts."""
        release = self._profile.release
        order = [*dict.fromkeys(_ROOTS.values())]
        rank = _rank(release, order)
        roots: dict[str, bytes | None] = {
            path: None for path, since in _ROOTS.items() if order.index(since) <= rank
        }
        if rank >= 1 and release != "0.9.0.1":
            roots["/cluster/id"] = _compact({"version": "1", "id": self.metadata.cluster_id})
        if release in ("0.11.0.3", "1.1.1"):
            block = {"version": 1, "broker": 0, "block_start": "0", "block_end": "999"}
            roots["/latest_producer_id_block"] = _compact(block)
        if release == "3.9.1":
            roots["/feature"] = _compact({"features": {}, "version": 2, "status": 1})
        roots["/controller_epoch"] = b"1"
        exists = self._zookeeper.exists
        self._write_all({path: data for path, data in roots.items() if not exists(path)})

    # ---- brokers --------------------------------------------------------------------------------

    def register(self, node: LiveBroker) -> None:
        """Register a broker in a ZooKeeper session of its own. Raises FakeServerError."""
        self._known[node.id] = node
        path = paths.broker(node.id)
        if self._zookeeper.exists(path):
            raise FakeServerError(f"another broker with id {node.id} is registered", where=path)
        session = self._sessions[node.id] = self._zookeeper.session()
        now_ms = round(self._clock.now() * 1000)
        data = _registration(node, self._profile.registration, now_ms)
        session.request(Create(path, data, ephemeral=True))
        self.follow()

    def unregister(self, broker: int) -> None:
        """End a broker's ZooKeeper session; without one, nothing happens."""
        session = self._sessions.pop(broker, None)
        if session is not None:
            session.close()
        self.follow()

    # ---- topics ---------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int = 1,
        config: Mapping[str, object] | None = None,
        assignment: Mapping[int, Iterable[int]] | None = None,
    ) -> None:
        """Create a topic as tools do, by its znodes. Raises KafkaFault."""
        try:
            paths.validate_topic(name)
        except InvalidNameError as error:
            raise KafkaFault(ErrorCode.INVALID_TOPIC, str(error)) from error
        if self._zookeeper.exists(paths.topic(name)):
            raise KafkaFault(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists")
        placed = assignment or self._placed(range(partitions), replicas)
        settings = _compact(topic_config(config))
        record = self._record(placed, self._new_id())
        self._write_all({f"{_CONFIG}/{name}": settings, paths.topic(name): record})
        self.follow()

    def add_partitions(self, name: str, partitions: int) -> None:
        """Raise a topic's number of partitions. Raises KafkaFault."""
        topic = self.metadata.topics.get(name)
        if topic is None:
            raise KafkaFault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        count = len(topic.partitions)
        if partitions <= count:
            text = f"topic {name} has {count} partitions already"
            raise KafkaFault(ErrorCode.INVALID_PARTITIONS, text)
        old = {number: one.replicas for number, one in topic.partitions.items()}
        replicas = len(next(iter(old.values()), (0,)))
        placed = {**old, **self._placed(range(count, partitions), replicas)}
        self.write(paths.topic(name), self._record(placed, topic.id))
        self.follow()

    def delete_topic(self, name: str) -> None:
        """Delete a topic as tools do. Raises KafkaFault."""
        if name not in self.metadata.topics:
            raise KafkaFault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        self.write(f"{_DELETE}/{name}", None)
        self.follow()

    def move_leader(self, tp: TopicPartition, leader: int) -> None:
        """Make a live broker the leader of a partition, as its first replica. Raises KafkaFault."""
        partition = self.metadata.partition(tp)
        if leader not in self.metadata.nodes:
            raise KafkaFault(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {leader} is not alive")
        others = [one for one in partition.replicas if one != leader]
        # A new replica replaces the old leader, unless it is one of the replicas already.
        kept = others if leader in partition.replicas else others[1:]
        partition.replicas = (leader, *kept)
        topic = self.metadata.topics[tp.topic]
        placed = {number: one.replicas for number, one in topic.partitions.items()}
        self._write_all(
            {
                **self._led(tp, partition, leader),
                paths.topic(tp.topic): self._record(placed, topic.id),
            }
        )
        self.follow()
        self.metadata.changed()

    def _placed(self, numbers: Iterable[int], replicas: int) -> dict[int, list[int]]:
        alive = sorted(self.metadata.nodes)
        if not 1 <= replicas <= len(alive):
            text = f"{replicas} replicas cannot be placed on {len(alive)} live brokers"
            raise KafkaFault(ErrorCode.INVALID_REPLICATION_FACTOR, text)
        placed = {
            number: [alive[(number + at) % len(alive)] for at in range(replicas)]
            for number in numbers
        }
        if not placed:
            raise KafkaFault(ErrorCode.INVALID_PARTITIONS, "a topic has at least one partition")
        return placed

    def _new_id(self) -> bytes:
        return uuid.uuid4().bytes if self._profile.has_topic_ids else NO_ID

    @staticmethod
    def _record(assignment: Mapping[int, Iterable[int]], topic_id: bytes) -> bytes:
        partitions = {str(number): list(ids) for number, ids in sorted(assignment.items())}
        if topic_id == NO_ID:
            return _compact({"version": 1, "partitions": partitions})
        moving = {"adding_replicas": {}, "removing_replicas": {}, "version": 3}
        return _compact({"partitions": partitions, "topic_id": _id_text(topic_id), **moving})

    # ---- following ZooKeeper --------------------------------------------------------------------

    def _noticed(self, change: ZnodeChange) -> None:
        """Follow a change of ZooKeeper soon; the transaction may have further changes."""
        if not self._is_running:
            return
        was_due = bool(self._due)
        self._due.note(change.path)
        if self._due and not was_due:
            self._engine.loop.call_soon(self.follow)

    def _everything(self) -> _Due:
        """Return what is due after a start: everything that ZooKeeper or the metadata contain."""
        topics = {*self._zookeeper.children(paths.TOPICS), *self.metadata.topics}
        return _Due(brokers=True, deletions=True, topics=topics, settings=set(topics))

    def follow(self) -> None:
        """Make the metadata and the leaders what ZooKeeper says, and tell the brokers."""
        due, self._due = self._due, _Due()
        if not self._is_running or not due:
            return
        has_changed = due.brokers and self._follow_brokers()
        to_elect = {*self.metadata.topics} if has_changed else set()
        if due.deletions:
            has_changed |= self._follow_deletions()
        for name in due.topics:
            is_new = name not in self.metadata.topics
            if self._follow_topic(name):
                has_changed = True
                to_elect.add(name)
            if is_new:
                due.settings.add(name)
        for name in due.settings & self.metadata.topics.keys():
            self._follow_settings(name)
        has_changed |= self._elect(to_elect & self.metadata.topics.keys())
        if has_changed:
            self.metadata.changed()

    def lose_sessions(self) -> None:
        """Follow a ZooKeeper that has lost data. Its sessions are gone, so no broker is alive.

        Topics that ZooKeeper no longer has are gone, as for real brokers.
        """
        if self._is_running:
            self._sessions.clear()
            self.start()

    def _follow_brokers(self) -> bool:
        alive = {
            number: self._known[number]
            for name in self._zookeeper.children(paths.BROKER_IDS)
            if (number := int(name)) in self._known
        }
        if alive == self.metadata.nodes:
            return False
        self.metadata.nodes = alive
        if self.metadata.controller not in alive or not self._zookeeper.exists(_CONTROLLER):
            self._elect_controller()
        return True

    def _elect_controller(self) -> None:
        epoch = int(self.read("/controller_epoch") or b"0")
        if self.metadata.controller >= 0:
            epoch += 1
            self.write("/controller_epoch", str(epoch).encode())
        self.metadata.controller = broker = min(self.metadata.nodes, default=-1)
        if broker < 0:
            return
        time = str(round(self._clock.now() * 1000))
        is_last = self._profile.release == "3.9.1"
        record: JsonObject = {"version": 2 if is_last else 1, "brokerid": broker, "timestamp": time}
        if is_last:
            record["kraftControllerEpoch"] = -1
        self._sessions[broker].request(Create(_CONTROLLER, _compact(record), ephemeral=True))

    def _follow_deletions(self) -> bool:
        wanted = self._zookeeper.children(_DELETE)
        for name in wanted:
            self.metadata.topics.pop(name, None)
            for path in (paths.topic(name), f"{_CONFIG}/{name}", f"{_DELETE}/{name}"):
                if self._zookeeper.exists(path):
                    self._zookeeper.delete(path)
        return bool(wanted)

    def _follow_topic(self, name: str) -> bool:
        """Take a topic's partitions from its znode; return whether this changes the metadata."""
        payload = self.read(paths.topic(name))
        if payload is None:
            return self.metadata.topics.pop(name, None) is not None
        try:
            record = json.loads(payload)
            assignment = {int(key): tuple(ids) for key, ids in record["partitions"].items()}
            topic_id = _id_of(record["topic_id"]) if "topic_id" in record else NO_ID
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("the controller cannot read topic %s: %s", name, error)
            return False
        topic = self.metadata.topics.setdefault(
            name, Topic(name, topic_id, LogSettings(self._profile.magic))
        )
        for number in topic.partitions.keys() - assignment.keys():
            del topic.partitions[number]
        for number, replicas in assignment.items():
            if number in topic.partitions:
                topic.partitions[number].replicas = replicas
            else:
                topic.partitions[number] = Partition(replicas, PartitionLog(topic.settings))
        if self._profile.has_topic_ids and topic_id == NO_ID:
            # A tool has created the topic without an id; the controller adds it (KIP-516).
            topic.id = self._new_id()
            self.write(paths.topic(name), self._record(assignment, topic.id))
        return True

    def _follow_settings(self, name: str) -> None:
        payload = self.read(f"{_CONFIG}/{name}")
        try:
            config = json.loads(payload)["config"] if payload else {}
            settings = self._settings_of(config)
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("the controller cannot read the settings of %s: %s", name, error)
            return
        topic = self.metadata.topics[name]
        topic.settings = settings
        for one in topic.partitions.values():
            one.log.settings = settings

    def _settings_of(self, config: Mapping[str, str]) -> LogSettings:
        version = config.get("message.format.version", "")
        magic = self._profile.magic
        if version and self._profile.sets_format:
            number = tuple(int(part) for part in version.split("-")[0].split(".")[:2])
            magic = min(magic, 0 if number < (0, 10) else 1 if number < (0, 11) else 2)
        codec = config.get("compression.type", "producer")
        default = LogSettings()
        return LogSettings(
            magic=magic,
            append_time=magic > 0 and config.get("message.timestamp.type") == "LogAppendTime",
            codec=None
            if codec == "producer"
            else CODECS["none" if codec == "uncompressed" else codec],
            max_bytes=int(config.get("max.message.bytes", default.max_bytes)),
        )

    # ---- leaders --------------------------------------------------------------------------------

    def _elect(self, topics: Iterable[str]) -> bool:
        """Elect leaders for partitions whose leader is not alive, or that have none."""
        states: dict[str, bytes | None] = {}
        for name in topics:
            for number, partition in self.metadata.topics[name].partitions.items():
                isr = tuple(one for one in partition.replicas if one in self.metadata.nodes)
                leader = partition.leader
                if leader not in isr:
                    leader = next(iter(isr), NO_LEADER)
                tp = TopicPartition(name, number)
                is_written = self._zookeeper.exists(paths.partition_state(name, number))
                if leader != partition.leader or isr != partition.isr or not is_written:
                    states |= self._led(tp, partition, leader)
        self._write_all(states)
        return bool(states)

    def _led(
        self, tp: TopicPartition, partition: Partition, leader: int
    ) -> dict[str, bytes | None]:
        """Let a broker lead a partition; return the znode that says so, and its payload."""
        is_new = partition.leader == NO_LEADER and not partition.isr
        if leader != partition.leader and not is_new:
            partition.epoch += 1
        partition.leader = leader
        isr = tuple(one for one in partition.replicas if one in self.metadata.nodes)
        # A partition without a leader keeps its last in-sync replica.
        partition.isr = isr or partition.isr[:1]
        state = {
            "controller_epoch": int(self.read("/controller_epoch") or b"1"),
            "leader": leader,
            "version": 1,
            "leader_epoch": partition.epoch,
            "isr": list(partition.isr),
        }
        return {paths.partition_state(tp.topic, tp.partition): _compact(state)}


def _rank(release: str, order: list[str]) -> int:
    """Return the position of the last release of `order` that is not later than `release`."""
    numbers = [tuple(map(int, one.split("."))) for one in order]
    mine = tuple(map(int, release.split(".")))
    return max(at for at, one in enumerate(numbers) if one <= mine)
