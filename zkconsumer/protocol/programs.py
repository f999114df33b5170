"""Which program uses a group, by what it has written into ZooKeeper.

Only what a program leaves behind is evidence: the form of its registrations, of its owner znodes
and of its offsets. A program that embeds the JVM consumer, such as Logstash, leaves what the JVM
consumer leaves. Its default group name is then a *hint*, which a user may have changed or imitated.

Sources: `TopicCount` and `ZkUtils` (Kafka), `lib/zookeeper.js` (kafka-node 2.6.1),
`consumergroup.go` and kazoo-go (wvanbergen), `balancedconsumer.py` (pykafka 2.8.0),
`ZookeeperOffsetHandler` (Flink 0.8 connector), `ZookeeperConnector` and `Uploader` (Secor), and
`PartitionManager` and `ZkState` (storm-kafka).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from zkconsumer.protocol.model import TopicPartition


class Program(Enum):
    """A program, or a kind of programs that leave the same evidence; the values are for people."""

    JVM = "JVM consumer"
    ZKCONSUMER = "zkconsumer"
    KAFKA_NODE = "kafka-node"
    GO = "Go consumergroup"
    PYKAFKA = "pykafka"
    FLINK = "Flink"
    SECOR = "Secor"
    STORM = "Storm"
    CONSOLE = "console consumer"
    GRAYLOG = "Graylog"
    LOGSTASH = "Logstash"
    FLUME = "Flume"
    DRUID = "Druid"
    MIRROR_MAKER = "MirrorMaker"
    SPARK = "Spark"
    WRITER = "offset-only writer"
    UNKNOWN = "unknown"


class Evidence(NamedTuple):
    """A program and what shows it; a hint is not certain."""

    program: Program
    reason: str
    is_hint: bool = False


# The timestamp of the Go library is in seconds, that of kafka-node in milliseconds.
_KAFKA_NODE: Final = re.compile(
    rb'\{"version":1,"subscription":\{"[^"]*": \d+(, ?"[^"]*": \d+)*\}'
    rb',"pattern":"white_list","timestamp":"\d{13}"\}'
)
_GO: Final = re.compile(
    rb'\{"pattern":"\w+","subscription":\{.*\},"timestamp":"\d{10}","version":1\}', re.DOTALL
)
_PYKAFKA: Final = re.compile(rb"[A-Za-z0-9._-]{1,249}")
_PYKAFKA_OWNER: Final = re.compile(r"\d+-\d+")
_ADDRESS: Final = re.compile(rb"\d{1,3}(\.\d{1,3}){3}")
_SPOUT: Final = re.compile(r"partition_(\d{1,10})")

_HINTS: Final = (
    (re.compile(r"console-consumer-\d+"), Program.CONSOLE),
    (re.compile(r"graylog.*", re.IGNORECASE), Program.GRAYLOG),
    (re.compile(r"logstash.*", re.IGNORECASE), Program.LOGSTASH),
    (re.compile(r"flume.*", re.IGNORECASE), Program.FLUME),
    (re.compile(r"druid.*", re.IGNORECASE), Program.DRUID),
    (re.compile(r"secor.*", re.IGNORECASE), Program.SECOR),
    (re.compile(r"(kafka-)?mirror-?maker.*", re.IGNORECASE), Program.MIRROR_MAKER),
    (re.compile(r"spark.*", re.IGNORECASE), Program.SPARK),
    (re.compile(r"flink.*", re.IGNORECASE), Program.FLINK),
    (re.compile(r"storm.*", re.IGNORECASE), Program.STORM),
)
"""Names of groups: the defaults of programs, and what users call groups of programs."""


def of_registration(payload: bytes | None) -> Evidence | None:
    """Return the program that wrote a registration, if its form is not that of the JVM consumer."""
    data = payload or b""
    if _KAFKA_NODE.fullmatch(data):
        return Evidence(Program.KAFKA_NODE, "its registration calls a topic's name a white list")
    if _GO.fullmatch(data):
        return Evidence(Program.GO, "its registration has a timestamp in seconds")
    if _PYKAFKA.fullmatch(data):
        return Evidence(Program.PYKAFKA, "its registration is the name of a topic")
    return None


def of_owners(claims: Mapping[str, Iterable[int]]) -> Evidence | None:
    """Return the program that claimed partitions; `claims` is consumer id -> zxids of its claims.

    The JVM consumer creates each owner znode in a transaction of its own. Only zkconsumer creates
    several in one transaction.
    """
    for zxids in claims.values():
        found = list(zxids)
        if len(set(found)) < len(found):
            reason = "a member claimed several partitions in one transaction"
            return Evidence(Program.ZKCONSUMER, reason)
    if any(len(list(zxids)) > 1 for zxids in claims.values()):
        return Evidence(Program.JVM, "each partition was claimed in a transaction of its own")
    return None


def of_offsets(offsets: Mapping[TopicPartition, tuple[bytes | None, int]]) -> Evidence | None:
    """Return the program that wrote offsets; `offsets` is partition -> payload, mzxid."""
    if any(data and _ADDRESS.fullmatch(data) for data, _ in offsets.values()):
        return Evidence(Program.SECOR, "an offset znode has the address of a host")
    if any(not data for data, _ in offsets.values()):
        return Evidence(Program.FLINK, "an offset znode is empty")
    zxids = [mzxid for _, mzxid in offsets.values()]
    if len(set(zxids)) < len(zxids):
        return Evidence(Program.ZKCONSUMER, "several offsets were written in one transaction")
    return None


def is_pykafka_owner(name: str) -> bool:
    """Return whether a znode below `owners/TOPIC` has a name as pykafka gives it."""
    return _PYKAFKA_OWNER.fullmatch(name) is not None


def by_name(group: str) -> Evidence | None:
    """Return the program that a group's name suggests, as a hint."""
    for pattern, program in _HINTS:
        if pattern.fullmatch(group):
            return Evidence(program, "the group's name suggests it", is_hint=True)
    return None


# ---- Storm ---------------------------------------------------------------------------------------


class SpoutOffset(NamedTuple):
    """An offset that a Storm spout has stored: topology, partition, offset."""

    topology: str
    partition: TopicPartition
    offset: int


def is_spout_znode(name: str) -> bool:
    """Return whether a znode has a name as `PartitionManager` of storm-kafka gives it."""
    return _SPOUT.fullmatch(name) is not None


def read_spout(payload: bytes | None) -> SpoutOffset | None:
    """Return the offset in a znode of a Storm spout; None for any other payload."""
    try:
        document = json.loads(payload or b"")
    except ValueError:
        return None
    match document:
        case {
            "topology": {"name": str(topology)},
            "offset": int(offset),
            "partition": int(partition),
            "topic": str(topic),
        } if offset >= 0 and partition >= 0:
            return SpoutOffset(topology, TopicPartition(topic, partition), offset)
    return None


def spout_offsets(payloads: Iterable[bytes | None]) -> Iterator[SpoutOffset]:
    """Yield the offsets in znodes of Storm spouts; other payloads are left out."""
    for payload in payloads:
        found = read_spout(payload)
        if found is not None:
            yield found
