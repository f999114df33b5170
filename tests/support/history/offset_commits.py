"""Real brokers, and clients that commit to them: what OffsetFetch answered at each moment.

The segments of `__consumer_offsets` must say the same about these moments. `python -m
support.history.offset_commits DIRECTORY` records the archives of tests/golden/history.
"""

from __future__ import annotations

import json
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RawPartition

from support.jvm.member import JvmMember
from support.kafka.logs import producer
from support.kafka.offsets import LIMIT_S, foreign
from support.members.group import Group
from support.wait import eventually
from zkconsumer.history.kafka_offsets import LogReplay
from zkconsumer.history.offset_logs import find_replicas
from zkconsumer.kafka.group_offsets import GroupOffsets
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.topics import client_settings

TOPIC = "orders"
TOOL, DUAL, KAFKA, BATCH = "tool", "dual", "kafka", "batch"
NEW, IDLE, JVM = "new", "idle", "jvm"

WITH_MEMBERS = ("0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1", "3.9.1")
"""The releases whose brokers have groups of their own."""

WITH_TRANSACTIONS = ("0.11.0.3", "1.1.1", "3.9.1")

Offsets = dict[str, dict[int, tuple[int, str]]]
"""Group -> partition -> its offset and metadata."""


@dataclass
class Recording:
    """The servers, and what the brokers answered: `moments` has times in ms, and the offsets."""

    sandbox: Sandbox
    groups: tuple[str, ...]
    moments: list[tuple[int, Offsets]] = field(default_factory=list)

    @property
    def log_dirs(self) -> list[Path]:
        return [broker.directory / "data" for broker in self.sandbox.brokers]

    def offsets(self) -> Offsets:
        """Return what the brokers answer."""
        settings = client_settings(self.sandbox.zookeeper_connect)
        reader = GroupOffsets(settings)
        try:
            found = {
                group: reader.read(
                    group, [TopicPartition(TOPIC, n) for n in (0, 1)], limit_s=LIMIT_S
                )
                for group in self.groups
            }
        finally:
            reader.close()
        assert not [one for some in found.values() for one in some.values() if isinstance(one, str)]
        return {
            group: {
                tp.partition: (one.offset, one.metadata)
                for tp, one in sorted(some.items())
                if isinstance(one, OffsetAndMetadata)
            }
            for group, some in found.items()
        }

    def record(self) -> None:
        """Record the offsets of this moment; the next act has a later millisecond."""
        found = self.offsets()
        at_ms = time.time_ns() // 1_000_000
        self.moments.append((at_ms, found))
        while time.time_ns() // 1_000_000 <= at_ms:
            pass

    def commit(self, group: str, *commits: Mapping[int, int], metadata: str = "") -> None:
        """Commit without being a member, and record the offsets after each commit."""
        with foreign(self.sandbox.zookeeper_connect, group, TOPIC) as one:
            for offsets in commits:
                one.commit(offsets, metadata)
                self.record()


@contextmanager
def recorded(release: str, directory: Path, **overrides: object) -> Iterator[Recording]:
    """Return servers of a release with a topic of two partitions and sixty messages."""
    settings = {"offsets.topic.num.partitions": 2, **overrides}
    with Sandbox(directory, release=release, tick_time_s=0.1, overrides=settings) as sandbox:
        sandbox.create_topic(TOPIC, partitions=2)
        sandbox.produce(TOPIC, 60)
        yield Recording(sandbox, (TOOL, DUAL, KAFKA, BATCH, NEW, IDLE, JVM))


def everyone_commits(one: Recording, release: str) -> None:
    """Tools, members of zkconsumer and of Kafka's own protocol, and transactions commit."""
    one.commit(TOOL, {0: 1, 1: 2}, {0: 5}, {0: 2}, metadata="mä")
    members_commit(one)
    if release in WITH_MEMBERS:
        new_members_commit(one)
    if release in WITH_TRANSACTIONS:
        transactions_commit(one)
    one.commit(TOOL, {0: 7})


COMPACTING: Mapping[str, object] = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": 1000,
    "log.segment.bytes": 8000,
    "log.cleaner.enable": "true",
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
}
"""Settings with which the cleaner compacts the topic at once."""


def compaction(one: Recording) -> None:
    """One group commits once; another one commits until the cleaner has removed commits."""
    one.commit(IDLE, {0: 1})
    number = 0

    def commit_more() -> bool:
        nonlocal number
        one.commit(TOOL, *({0: number + n, 1: 1} for n in range(10)))
        number += 10
        (replay,) = (LogReplay(replica) for replica in find_replicas(one.log_dirs))
        list(replay.changes())
        return bool(replay.gaps)

    eventually(commit_more)
    one.commit(TOOL, {0: 3}, {0: 9})


def members_commit(one: Recording) -> None:
    """Members of zkconsumer commit to Kafka, and to both stores."""
    for group, dual in ((KAFKA, False), (DUAL, True)):
        with ExitStack() as stack:
            members = Group(one.sandbox, group, TOPIC, stack)
            member = members.join(
                offsets_storage="kafka", dual_commit_enabled=dual, auto_commit_enable=False
            )
            member.read(60)
            member.connector.commit_offsets()
            one.record()


def jvm_member_commits(one: Recording, directory: Path) -> None:
    """A JVM member of 0.8.2.2 commits to both stores."""
    member = JvmMember(
        "0.8.2.2",
        one.sandbox.zookeeper_connect,
        JVM,
        name="jvm",
        directory=directory,
        topics=[TOPIC],
        properties={"offsets.storage": "kafka", "auto.commit.enable": "true"},
        consume=60,
    )
    try:
        eventually(lambda: sum(at for at, _ in one.offsets()[JVM].values()) >= 60)
        one.record()
    finally:
        member.end()


def new_members_commit(one: Recording) -> None:
    """A consumer of Kafka's own protocol commits as a member."""
    settings = client_settings(one.sandbox.zookeeper_connect)
    own = {"group.id": NEW, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**settings, **own})
    try:
        consumer.subscribe([TOPIC])
        eventually(lambda: consumer.poll(0.1) is not None)
        for offset in (3, 8):
            consumer.commit(
                offsets=[RawPartition(TOPIC, n, offset) for n in (0, 1)], asynchronous=False
            )
            one.record()
    finally:
        consumer.close()


def transactions_commit(one: Recording) -> None:
    """A producer commits offsets in a transaction that it commits, and in one that it aborts."""
    settings = client_settings(one.sandbox.zookeeper_connect)
    consumer = Consumer({**settings, "group.id": BATCH, "enable.auto.commit": False})
    writer = producer(one.sandbox, transactional_id=BATCH)
    writer.init_transactions(LIMIT_S)
    try:
        one.commit(BATCH, {0: 1})
        for offset, commits in ((5, True), (9, False), (11, True)):
            writer.begin_transaction()
            writer.produce(TOPIC, b"in the transaction", partition=0)
            places = [RawPartition(TOPIC, 0, offset), RawPartition(TOPIC, 1, offset)]
            metadata = consumer.consumer_group_metadata()
            writer.send_offsets_to_transaction(places, metadata, LIMIT_S)
            one.record()
            (writer.commit_transaction if commits else writer.abort_transaction)(LIMIT_S)
            _await_end(one, offset if commits else 0)
            one.record()
    finally:
        consumer.close()
    one.commit(BATCH, {0: 3})


def _await_end(one: Recording, offset: int) -> None:
    """Wait until the offset of a committed transaction is in effect."""
    if offset:
        eventually(lambda: one.offsets()[BATCH].get(1, (0, ""))[0] == offset)


# ---- recordings ----------------------------------------------------------------------------------

MOMENTS = "moments.json"


def archive(one: Recording, path: Path) -> None:
    """Write the segments, the cleaner's checkpoint and the moments into an archive."""
    moments = one.log_dirs[0] / MOMENTS
    moments.write_text(json.dumps(one.moments))
    with tarfile.open(path, "w:gz") as target:
        for log_dir in one.log_dirs:
            wanted = [moments, *log_dir.glob("cleaner-offset-checkpoint")]
            wanted += sorted(log_dir.glob("__consumer_offsets-*/*.log"))
            for file in wanted:
                target.add(file, str(file.relative_to(log_dir)))


def moments_of(path: Path) -> list[tuple[int, Offsets]]:
    """Return the moments of an archive."""
    with tarfile.open(path) as source:
        file = source.extractfile(MOMENTS)
        assert file is not None
        return [
            (
                at_ms,
                {
                    group: {int(n): (offset, text) for n, (offset, text) in some.items()}
                    for group, some in found.items()
                },
            )
            for at_ms, found in json.loads(file.read())
        ]


def main(target: Path) -> None:
    """Record each release, and the compaction of an old and of the newest one."""
    for release in ("0.8.2.2", "0.10.2.2", "0.11.0.3", "1.1.1", "3.9.1"):
        with TemporaryDirectory() as folder, recorded(release, Path(folder)) as one:
            everyone_commits(one, release)
            archive(one, target / f"{release}.tar.gz")
    for release in ("0.10.2.2", "3.9.1"):
        with TemporaryDirectory() as folder, recorded(release, Path(folder), **COMPACTING) as one:
            compaction(one)
            archive(one, target / f"{release}-compacted.tar.gz")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
