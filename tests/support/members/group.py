"""Members of a group in this process, with a thread for each stream, on the shared servers."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from support.wait import LIMIT_S, eventually
from support.zk.client import OtherClient, data_of, peer_of
from zkconsumer import ConsumerConfig, ConsumerConnector, TopicPartition
from zkconsumer.consumer.messages import Message
from zkconsumer.consumer.status import Status
from zkconsumer.consumer.stream import Stream, reader_of
from zkconsumer.errors import ConsumerTimeoutError, ZkConsumerError
from zkconsumer.protocol import paths
from zkconsumer.sandbox import Sandbox

# The session timeout of a member, in seconds. No stall of a busy machine lasts so long, so only the
# test ends a session.
STEADY_S = 30.0

SETTINGS: Mapping[str, Any] = {
    "auto_offset_reset": "smallest",
    "zookeeper_session_timeout_s": STEADY_S,
    "zookeeper_connection_timeout_s": LIMIT_S,
    "rebalance_backoff_s": 0.2,
    "consumer_timeout_s": 0.1,
}


class Reader(threading.Thread):
    """A user's thread: takes one message after another, or stops at the current one on demand."""

    def __init__(self, stream: Stream[Any, Any]) -> None:
        super().__init__(daemon=True)
        self.stream = stream
        self.messages: list[Message[Any, Any]] = []
        self.errors: list[ZkConsumerError] = []
        self.timeouts = 0
        self.ended = threading.Event()
        self.free = threading.Event()
        self.free.set()

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                for message in self.stream:
                    # Only a message that comes after `free` was cleared is held. Otherwise, a test
                    # that has seen the last message and clears `free` could still stop the reader
                    # at this message.
                    is_held = not self.free.is_set()
                    self.messages.append(message)
                    if is_held:
                        self.free.wait(LIMIT_S)
                return
            except ConsumerTimeoutError:
                self.timeouts += 1
            except ZkConsumerError as error:
                self.errors.append(error)

    @property
    def is_waiting(self) -> bool:
        """Whether the user waits for a message now, and has finished all earlier messages."""
        return reader_of(self.stream).is_asked

    def offsets(self, partition: int) -> list[int]:
        return [m.offset for m in self.messages if m.partition == partition]


class MemberUnderTest:
    """A member: a connector, and a reader for each stream."""

    def __init__(self, config: ConsumerConfig) -> None:
        self.connector = ConsumerConnector(config)
        self.readers: list[Reader] = []

    def subscribe(self, topic: str, threads: int = 1) -> None:
        for stream in self.connector.create_message_streams({topic: threads})[topic]:
            self.readers.append(Reader(stream))
            self.readers[-1].start()

    @property
    def status(self) -> Status:
        return self.connector.status()

    @property
    def owned(self) -> set[int]:
        return {tp.partition for held in self.status.owned.values() for tp in held}

    @property
    def counted(self) -> dict[str, float]:
        return self.connector.metrics()

    def read(self, count: int) -> None:
        """Wait until this number of messages was delivered to the first stream.

        Unless the reader is held, wait also until it asks for the next message: the last message is
        then finished, so a commit includes it.
        """
        (reader, *_) = self.readers
        eventually(
            lambda: (
                len(reader.messages) >= count and (reader.is_waiting or not reader.free.is_set())
            )
        )

    def settled(self, *partitions: int) -> None:
        """Wait until the member has settled and owns exactly these partitions."""
        eventually(lambda: self.status.phase == "settled" and self.owned == set(partitions))

    def close(self) -> None:
        for reader in self.readers:
            reader.ended.set()
            reader.free.set()
        self.connector.shutdown()
        for reader in self.readers:
            reader.join(LIMIT_S)


class Group:
    """A group on the sandbox: its members, and another client that plays other programs."""

    def __init__(self, sandbox: Sandbox, name: str, topic: str, stack: ExitStack) -> None:
        self.sandbox, self.name, self.topic = sandbox, name, topic
        self._stack = stack
        self.admin = stack.enter_context(peer_of(sandbox.zookeeper_connect))
        self._other = OtherClient(self.admin, name)

    def member(self, suffix: str = "m", **settings: Any) -> MemberUnderTest:
        """Return a connected member without a subscription; it leaves at the end of the test."""
        where = {"zookeeper_connect": self.sandbox.zookeeper_connect}
        config = ConsumerConfig(
            group_id=self.name, consumer_id=suffix, **{**where, **SETTINGS, **settings}
        )
        one = MemberUnderTest(config)
        self._stack.callback(one.close)
        return one

    def join(self, suffix: str = "m", threads: int = 1, **settings: Any) -> MemberUnderTest:
        """Return a member that subscribes to the topic."""
        one = self.member(suffix, **settings)
        one.subscribe(self.topic, threads)
        return one

    # ---- znodes ----------------------------------------------------------------------------------

    def tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def owner(self, partition: int) -> str:
        return paths.owner(self.name, self.tp(partition))

    def offset(self, partition: int) -> str:
        return paths.offset(self.name, self.tp(partition))

    def owners(self) -> list[str]:
        """Return the thread ids in the existing owner znodes, in the order of the partitions."""
        topic, found = paths.owners_of(self.name, self.topic), []
        numbers = self.admin.get_children(topic) if self.admin.exists(topic) else []
        for number in sorted(map(int, numbers)):
            with contextlib.suppress(NoNodeError):  # The owner may change in between.
                found.append(self.admin.get(self.owner(number))[0].decode())
        return found

    def owner_session(self, partition: int) -> int | None:
        """Return the session of an owner znode, or None if there is none."""
        stat = self.admin.exists(self.owner(partition))
        return None if stat is None else int(stat.ephemeralOwner)

    def stored(self, partition: int) -> str | None:
        """Return the payload of an offset znode, or None if there is none."""
        data = data_of(self.admin, self.offset(partition))
        return None if data is None else data.decode()

    def write(self, partition: int, payload: bytes) -> None:
        """Let another client write an offset znode."""
        self._other.write(self.tp(partition), payload)

    def hold(self, partition: int, thread: str = "somebody-0") -> None:
        """Let a session of another client claim a partition."""
        self._other.take(self.tp(partition), thread)

    def edit(self, partition: int, offset: int) -> None:
        """Set an offset as an operator's tool does: the write and its mark in one transaction."""
        self._other.edit(self.tp(partition), offset)


@contextmanager
def group_on(
    sandbox: Sandbox, unique: Callable[[str], str], *, partitions: int, messages: int = 10
) -> Iterator[Group]:
    """Return a group without members, whose topic has this number of messages per partition."""
    topic = unique("topic")
    sandbox.create_topic(topic, partitions=partitions)
    for partition in range(partitions):
        sandbox.produce(topic, messages, partition=partition)
    with ExitStack() as stack:
        yield Group(sandbox, unique("group"), topic, stack)


def register_broker(client: KazooClient, number: int, address: str) -> None:
    """Register a broker of 0.10 or later that has one listener."""
    host, _, port = address.rpartition(":")
    entry = {
        "version": 4,
        "host": host,
        "port": int(port),
        "endpoints": [f"PLAINTEXT://{address}"],
        "jmx_port": -1,
        "timestamp": "1",
    }
    client.create(paths.broker(number), json.dumps(entry).encode(), makepath=True)
