"""Runs a member's operations on a real ZooKeeper, one after another on the test's thread."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import make_acl

from support.wait import LIMIT_S
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer.topic_matcher import match_topics
from zkconsumer.member import operations
from zkconsumer.member.events import Outcome, Registered
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.filters import MatchTopics
from zkconsumer.protocol.model import Session, TopicPartition
from zkconsumer.protocol.requests import (
    Children,
    Code,
    Exists,
    Get,
    Listing,
    NotStored,
    OffsetRequest,
    Reply,
)
from zkconsumer.zk.session import ZooKeeperSession

READS = (Get, Exists, Children, Listing)
CLOSED = [make_acl("digest", "nobody:none", all=True)]
READ_ONLY = [make_acl("world", "anyone", read=True)]


def tps(*numbers: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


class OtherClient:
    """Another client of a group, which plays other members and tools in the session `peer`."""

    def __init__(self, peer: KazooClient, group: str) -> None:
        self.group, self.peer = group, peer

    def take(self, tp: TopicPartition, thread: str = "g_other-0") -> None:
        """Let another session claim a partition."""
        path = paths.owner(self.group, tp)
        self.peer.create(path, thread.encode(), ephemeral=True, makepath=True)

    def write(self, tp: TopicPartition, payload: bytes) -> None:
        """Let another client write an offset znode."""
        path = paths.offset(self.group, tp)
        self.peer.ensure_path(path)
        self.peer.set(path, payload)

    def edit(self, tp: TopicPartition, offset: int) -> None:
        """Set an offset as an operator's tool does: the write and its mark in one transaction."""
        self.peer.ensure_path(paths.edits(self.group))
        count = len(self.peer.get_children(paths.edits(self.group)))
        transaction = self.peer.transaction()
        transaction.set_data(paths.offset(self.group, tp), str(offset).encode())
        transaction.create(paths.edit(self.group, count))
        results = transaction.commit()
        assert not any(isinstance(result, Exception) for result in results), results


class Client(OtherClient):
    """The session of a member, beside the other client."""

    def __init__(self, connect: str, group: str, peer: KazooClient, consumer: str) -> None:
        super().__init__(peer, group)
        self.thread = f"{consumer}-0"
        self.watches: list[tuple[str, str]] = []
        self.reads: list[str] = []  # the paths that `run` has read since a test emptied this list
        # The requests to Kafka, and Kafka's replies.
        self.asked: list[OffsetRequest] = []
        self.kafka = Reply(Code.OK, NotStored({}, {}))
        self._sessions: list[Session | None] = []
        config = ConsumerConfig(
            group_id=group, zookeeper_connect=connect, zookeeper_session_timeout_s=10.0
        )
        self.session = ZooKeeperSession(
            config,
            on_state=self._sessions.append,
            on_watch=lambda kind, path: self.watches.append((str(kind), path)),
        )
        self.session.start()
        now = self._sessions[-1]
        assert now is not None
        self.me = operations.MemberIdentity(group, consumer, {"t": 1}, Strategy.RANGE, now.id)

    def run(
        self,
        operation: operations.RunningCommit,
        *,
        before: Mapping[int, Callable[[], object]] | None = None,
    ) -> Outcome:
        """Return the outcome; call `before[n]` just before the n-th batch (from 0) is sent."""
        batch, number = next(operation), 0
        while True:
            if before and number in before:
                before[number]()
            replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
            if isinstance(batch, MatchTopics):
                replies.put([match_topics(batch)])
            elif isinstance(batch, OffsetRequest):
                self.asked.append(batch)
                replies.put([self.kafka])
            else:
                self.reads += [one.path for one in batch if isinstance(one, READS)]
                self.session.submit(batch, replies.put)
            found = replies.get(timeout=LIMIT_S)
            assert all(reply.code is not Code.BROKEN for reply in found)
            try:
                batch = operation.send(found)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            number += 1

    def register(self) -> Registered:
        outcome = self.run(operations.register(self.me, 1_400_000_000_000))
        assert isinstance(outcome, Registered), outcome
        return outcome

    # ---- what others do and see ------------------------------------------------------------------

    def owner(self, tp: TopicPartition) -> str:
        return paths.owner(self.group, tp)

    def offset(self, tp: TopicPartition) -> str:
        return paths.offset(self.group, tp)

    def owners(self) -> dict[TopicPartition, tuple[bytes, int]]:
        """Return the payload and the session of each existing owner znode."""
        parent = paths.owners(self.group)
        found = {}
        for topic in self.peer.get_children(parent) if self.peer.exists(parent) else []:
            for number in self.peer.get_children(paths.owners_of(self.group, topic)):
                tp = TopicPartition(topic, int(number))
                data, stat = self.peer.get(self.owner(tp))
                found[tp] = (data, stat.ephemeralOwner)
        return found


def data_of(client: KazooClient, path: str) -> bytes | None:
    """Return the data of a znode that others may delete at any time; None if it does not exist."""
    with suppress(NoNodeError):
        data: bytes = client.get(path)[0]
        return data
    return None


@contextmanager
def peer_of(connect: str) -> Iterator[KazooClient]:
    """Return another client of the server, which plays other members and tools."""
    client = KazooClient(connect, timeout=10.0)
    client.start(LIMIT_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()
