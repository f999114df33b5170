"""The state of the group: the owners as an independent observer sees them, the members' records,
and the producer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zkconsumer.demo.group_judge import ObservedOwner, Tally
from zkconsumer.errors import ZkConsumerError
from zkconsumer.protocol.assignors import Strategy, assign
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import OwnerZnode
from zkconsumer.protocol.registrations import Registration
from zkconsumer.zk.observer import Change, ChangeKind, GroupPart, Observer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message


class Watcher:
    """Follows the group on a separate thread and notifies `changed` at each change."""

    def __init__(self, observer: Observer, topic: str, partitions: int) -> None:
        self.changed = threading.Condition()
        self.owners: dict[int, OwnerZnode] = {}
        self.members: dict[str, Mapping[str, int]] = {}
        self.registered_s: dict[str, float] = {}
        self.log: list[ObservedOwner] = []
        self.last_change_s = time.monotonic()
        self.error: ZkConsumerError | None = None
        self._topic = topic
        self._partitions = range(partitions)
        threading.Thread(target=self._follow, args=(observer,), daemon=True).start()

    def owner_names(self) -> dict[int, str]:
        """Return, by partition, the `consumer.id` of the member that owns it."""
        with self.changed:
            threads = {one: owner.thread for one, owner in self.owners.items()}
        return {one: thread.split("_")[1].split("-")[0] for one, thread in threads.items()}

    def settled(self, members: int) -> bool:
        """Whether the group has this number of members, and the owners are those that the assignor
        requires.

        The caller must hold `changed`.
        """
        if len(self.members) != members:
            return False
        due = assign(
            Strategy.RANGE,
            subscriptions=self.members,
            partitions={self._topic: list(self._partitions)},
        )
        return {tp.partition: thread for tp, thread in due.items()} == {
            partition: owner.thread for partition, owner in self.owners.items()
        }

    def _follow(self, observer: Observer) -> None:
        try:
            for time_s, change in observer.changes():
                with self.changed:
                    self._apply(time_s, change)
                    self.changed.notify_all()
        except ZkConsumerError as error:
            self.error = error

    def _apply(self, time_s: float, change: Change) -> None:
        match change.key, change.after:
            case TopicPartition() as tp, (OwnerZnode() | None) as owner if (
                change.what is ChangeKind.OWNER
            ):
                self.log.append(ObservedOwner(time_s, tp.partition, owner))
                if owner is None:
                    self.owners.pop(tp.partition, None)
                else:
                    self.owners[tp.partition] = owner
            case str(consumer_id), Registration(subscription, _, written_ms):
                self.members[consumer_id] = subscription
                # Use the member's own time, because a busy observer sees the change late.
                age_s = time.time() - written_ms / 1000 if written_ms else 0.0
                self.registered_s[consumer_id] = time.monotonic() - age_s
            case str(consumer_id), _ if change.what is ChangeKind.MEMBER:
                self.members.pop(consumer_id, None)
            case _:
                return
        self.last_change_s = time_s


@contextmanager
def watching(zookeeper: str, group: str, topic: str, partitions: int) -> Iterator[Watcher]:
    """Follow a group within the block."""
    with Observer(zookeeper, group, follow={GroupPart.MEMBERS, GroupPart.OWNERS}) as observer:
        yield Watcher(observer, topic, partitions)


class MemberRecords:
    """Reads the files that the members write, and counts their records."""

    def __init__(self, partitions: int) -> None:
        self.tally = Tally(partitions)
        self._files: dict[str, tuple[Path, int]] = {}

    def follow(self, member: str, path: Path) -> None:
        """Also read the records of this member."""
        path.touch()
        self._files[member] = path, 0

    def read(self) -> None:
        """Count the lines that were written since the last call."""
        for member, (path, position) in self._files.items():
            with path.open("rb") as file:
                file.seek(position)
                text = file.read()
            lines = text[: text.rfind(b"\n") + 1]
            self._files[member] = path, position + len(lines)
            for line in lines.splitlines():
                self._count(member, *json.loads(line))

    def _count(self, member: str, time_s: float, runs: list[list[int]]) -> None:
        for run in runs:
            self.tally.add(member, time_s, run)


class BackgroundProducer:
    """Fills a topic, then produces slowly on a separate thread until `finish`.

    Attributes:
        acknowledged: messages in the log, per partition.
        failed: the error of a message that was not accepted; empty if there is none.
    """

    SLOW_PER_S = 200
    # A hundred requests per second, with the fetches that they cause, took a broker 0.4 of a core.
    BURSTS_PER_S = 20

    def __init__(self, bootstrap: str, topic: str, *, partitions: int, messages: int) -> None:
        from confluent_kafka import Producer

        self.acknowledged = [0] * partitions
        self.failed = ""
        self._topic = topic
        self._number = 0
        # No retries: a retry could store a second copy, but the log must contain exactly the
        # acknowledged messages. An idempotent producer would also work, but waits seconds for a new
        # broker.
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "message.send.max.retries": 0,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self._stop = threading.Event()
        while self._number < messages:
            self._produce(min(2000, messages - self._number))
        self._producer.flush()
        self._thread = threading.Thread(target=self._produce_slowly, daemon=True)
        self._thread.start()

    def finish(self) -> list[int]:
        """Stop producing. Return the number of messages in each partition."""
        self._stop.set()
        self._thread.join()
        self._producer.flush()
        return self.acknowledged

    def _produce_slowly(self) -> None:
        while not self._stop.wait(1 / self.BURSTS_PER_S):
            self._produce(self.SLOW_PER_S // self.BURSTS_PER_S)

    def _produce(self, count: int) -> None:
        for number in range(self._number, self._number + count):
            self._producer.produce(
                self._topic,
                b"%d" % number,
                partition=number % len(self.acknowledged),
                on_delivery=self._delivered,
            )
        self._number += count
        while len(self._producer) > 50_000:
            self._producer.poll(0.05)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed = error.str()
        else:
            self.acknowledged[message.partition() or 0] += 1
