"""What the JVM member does: a small model of `ZookeeperConsumerConnector` of Kafka 1.1.1.

Each step is a program that asks for one thing at a time. What is modelled, and checked against
captured runs of the real one: the order of its writes and reads; claims one by one, with rollback;
a rebalance releases everything; deletes and commits without a look at who owns; offsets read before
the claim; `rebalance.max.retries` attempts with `rebalance.backoff.ms` after each, then idle until
the next trigger; a new session that forgets what was consumed.

What is not: wildcards, offsets in Kafka, the queues between fetchers and streams (a message is
handed out as soon as it is asked for), and the order of a Scala hash map (partitions go by number).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from zkconsumer.core import paths, records, registrations
from zkconsumer.core.assignors import assign
from zkconsumer.core.model import ThreadId, TopicPartition
from zkconsumer.core.registrations import Registration
from zkconsumer.core.state import Settings
from zkconsumer.errors import MalformedZnodeError
from zkconsumer.sim.member import Feed
from zkconsumer.sim.znodes import Write, parent_of
from zkconsumer.zk import requests as rq
from zkconsumer.zk.requests import Code, Reply

NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Lock:
    """Wait for the rebalance lock; it is held to the program's end."""


Request = rq.Request | Write
Asked = Request | Sleep | Lock
Program = Generator[Asked, Any, None]


class _AttemptFailed(Exception):
    """What ends an attempt in the JVM: any exception, or a refused claim."""


class Connector:
    """The connector's state, and its programs.

    Attributes:
        feeds: what is fetched, and handed out.
        registry: what it believes to own, with positions: behind the last message handed out.
        wanted: something has changed, so that the watcher's thread is to rebalance.
        attempts, failed_attempts: of rebalances, so far; `gave_up`: the last one failed for good.
    """

    def __init__(self, settings: Settings, enter: Callable[[str, str], None]) -> None:
        self.settings = settings
        self.feeds: dict[TopicPartition, Feed] = {}
        self.registry: dict[TopicPartition, int] = {}
        self.wanted = self.leaving = self.closed = self.started = False
        self.attempts = self.failed_attempts = 0
        self.gave_up = False
        self.wall_ms = 0
        self._enter = enter
        self._cache: dict[TopicPartition, int] = {}
        self._knows_root = False
        self._watched: dict[str, Any] = {}  # what was last read of what is watched

    @property
    def topics(self) -> list[str]:
        return sorted(self.settings.subscription)

    # ---- listeners -------------------------------------------------------------------------------

    def ids_changed(self) -> Program:
        ids = paths.ids(self.settings.group)
        yield rq.Exists(ids, watch=True)
        yield from self._children(ids)
        self.wanted = True

    def topic_changed(self, topic: str) -> Program:
        """Data changed, or the topic appeared; one that is gone is left to a warning."""
        path = paths.topic(topic)
        seen: Reply = yield rq.Exists(path, watch=True)
        if seen.value is not None:
            yield from self._data(path)
            self.wanted = True

    def brokers_changed(self) -> Program:
        yield rq.Children(paths.BROKER_IDS, watch=True)
        self.wanted = True

    def arm_again(self) -> Program:
        """The same session on another connection: the server tells of what was missed."""
        ids = paths.ids(self.settings.group)
        before = dict(self._watched)
        yield from self._children(ids)
        self.wanted |= self._watched[ids] != before.get(ids)
        for topic in self.topics:
            path = paths.topic(topic)
            reply: Reply = yield rq.Exists(path, watch=True)
            if reply.value is not None:
                yield from self._data(path)
                self.wanted |= self._watched[path] != before.get(path)

    # ---- programs: start, new session, shutdown --------------------------------------------------

    def start(self) -> Program:
        """`createMessageStreams`: register, subscribe, rebalance."""
        yield from self._register()
        ids = paths.ids(self.settings.group)
        yield rq.Exists(ids, watch=True)
        yield from self._children(ids)
        for topic in self.topics:
            yield rq.Exists(paths.topic(topic), watch=True)
        self.started = True  # the scheduler's clock runs from here
        yield from self.rebalance()

    def new_session(self) -> Program:
        """Nothing is committed, nothing released: the registry is forgotten."""
        self._enter("expired", "its session is over: forgets what it owns, registers again")
        self.registry = {}
        yield from self._register()
        yield from self.rebalance()

    def shutdown(self) -> Program:
        """It waits for the rebalance lock; owner and id znodes go with the session."""
        yield Lock()
        self.feeds = {}
        if self.settings.auto_commit_s is not None:
            yield from self.commit()
        self.closed = True
        self._enter("closed", "ends its session")

    def _register(self) -> Program:
        """As 0.9 and later: another session's id znode is an error, and nothing waits for it."""
        group, path = self.settings.group, paths.member(self.settings.group, self.settings.consumer)
        self._enter("registering", "")
        for parent in (paths.CONSUMERS, parent_of(paths.ids(group)), paths.ids(group)):
            yield rq.Create(parent)
        payload = registrations.encode_registration(
            Registration(self.settings.subscription, timestamp_ms=self.wall_ms)
        )
        created: Reply = yield rq.Create(path, payload, ephemeral=True)
        if created.code is Code.NODE_EXISTS:
            yield rq.Get(path)

    # ---- programs: the rebalance -----------------------------------------------------------------

    def rebalance(self) -> Program:
        """`syncedRebalance`: so many attempts, and a sleep after each that fails, the last, too."""
        yield Lock()
        self.gave_up = False
        for number in range(self.settings.retries):
            if self.leaving:
                break
            self.attempts += 1
            self._enter("rebalancing", f"attempt {number + 1}")
            try:
                yield from self._attempt()
                break
            except (_AttemptFailed, MalformedZnodeError) as error:
                self.failed_attempts += 1
                self._enter("failed", str(error))
                self.feeds = {}
                if self.settings.auto_commit_s is not None:
                    yield from self.commit()
                yield Sleep(self.settings.backoff_s)
        else:
            self.gave_up = True
            self._enter("idle", f"can't rebalance after {self.settings.retries} retries")

    def _attempt(self) -> Program:
        group = self.settings.group
        yield from self._brokers()
        yield from self._registration(self.settings.consumer)
        brokers = yield from self._brokers()
        if not brokers:
            yield rq.Children(paths.BROKER_IDS, watch=True)
            self._enter("waiting", "no brokers found when trying to rebalance")
            return
        self.feeds = {}
        if self.settings.auto_commit_s is not None:
            yield from self.commit()
        yield from self._release_all()
        yield from self._registration(self.settings.consumer)
        names = yield from self._children(paths.ids(group))
        members = {}
        for name in names:
            members[name] = yield from self._registration(name)
        partitions = yield from self._partitions()
        yield from self._children(paths.ids(group))
        mine = self._share(members, partitions)
        offsets = {}
        for tp in mine:
            offsets[tp] = yield from self._stored(tp)
        yield from self._claim_all(mine)
        self.registry = dict(offsets)
        self._cache.update(offsets)
        yield from self._brokers()  # the leader finder
        # What has no stored offset starts where auto.offset.reset (here: smallest) says.
        starts = {tp: max(at, 0) for tp, at in offsets.items()}
        self.registry = dict(starts)
        self.feeds = {tp: Feed(0, at) for tp, at in starts.items()}
        shown = ", ".join(f"{tp} from {at}" for tp, at in starts.items())
        self._enter("consuming", f"reads {shown}" if shown else "has no partition")

    def _share(
        self, members: dict[str, Registration], partitions: dict[str, tuple[int, ...]]
    ) -> dict[TopicPartition, ThreadId]:
        whole = assign(
            self.settings.strategy,
            subscriptions={name: one.subscription for name, one in members.items()},
            partitions=partitions,
        )
        name = self.settings.consumer
        mine = {tp: thread for tp, thread in whole.items() if thread.rpartition("-")[0] == name}
        return dict(sorted(mine.items()))

    def _release_all(self) -> Program:
        """Whoever's they are by now."""
        for tp in sorted(self.registry):
            yield rq.Delete(paths.owner(self.settings.group, tp))
        self.registry = {}

    def _claim_all(self, mine: dict[TopicPartition, ThreadId]) -> Program:
        """All are tried, whatever happens; then what was got is given back if one was refused."""
        if not self._knows_root:
            self._knows_root = True
            yield rq.Exists("/")
        got: list[TopicPartition] = []
        refused: list[TopicPartition] = []
        for tp, thread in mine.items():
            path, data = paths.owner(self.settings.group, tp), records.encode_owner(thread)
            reply = yield from self._create(path, data)
            if reply.code is Code.NODE_EXISTS:
                found: Reply = yield rq.Get(path)
                is_ours = found.code is Code.OK and found.value.data == data
                reply = Reply(Code.OK) if is_ours else reply
            (got if reply.code is Code.OK else refused).append(tp)
        if refused:
            for tp in got:
                yield rq.Delete(paths.owner(self.settings.group, tp))
            shown = ", ".join(map(str, refused))
            raise _AttemptFailed(f"waiting for the partition ownership to be deleted: {shown}")

    def _create(self, path: str, data: bytes) -> Generator[Asked, Any, Reply]:
        """An ephemeral znode, and its parents if they are missing."""
        create = rq.Create(path, data, ephemeral=True)
        reply: Reply = yield create
        if reply.code is Code.NO_NODE:
            yield from self._create_parents(path)
            reply = yield create
        return reply

    def _create_parents(self, path: str) -> Program:
        parent = parent_of(path)
        reply: Reply = yield rq.Create(parent)
        if reply.code is Code.NO_NODE:
            yield from self._create_parents(parent)
            yield rq.Create(parent)

    # ---- programs: offsets and reads -------------------------------------------------------------

    def commit(self) -> Program:
        """Changed positions; over whatever stands there."""
        for tp, position in sorted(self.registry.items()):
            if position == self._cache.get(tp, 0):
                continue
            path, data = paths.offset(self.settings.group, tp), records.encode_offset(position)
            reply: Reply = yield rq.SetData(path, data, -1)
            if reply.code is Code.NO_NODE:
                yield from self._create_parents(path)
                yield rq.Create(path, data)
            self._cache[tp] = position

    def _stored(self, tp: TopicPartition) -> Generator[Asked, Any, int]:
        path = paths.offset(self.settings.group, tp)
        reply: Reply = yield rq.Get(path)
        if reply.code is not Code.OK:
            return NO_OFFSET
        return records.decode_offset(reply.value.data, where=path)

    def _brokers(self) -> Generator[Asked, Any, list[str]]:
        reply: Reply = yield rq.Children(paths.BROKER_IDS)
        names = reply.value if reply.code is Code.OK else ()
        for name in names:
            yield rq.Get(paths.broker(int(name)))
        return list(names)

    def _registration(self, name: str) -> Generator[Asked, Any, Registration]:
        path = paths.member(self.settings.group, name)
        reply: Reply = yield rq.Get(path)
        if reply.code is not Code.OK:
            raise _AttemptFailed(f"NoNode for {path}")
        return registrations.decode_registration(reply.value.data, where=path)

    def _partitions(self) -> Generator[Asked, Any, dict[str, tuple[int, ...]]]:
        found = {}
        for topic in self.topics:
            data = yield from self._data(paths.topic(topic))
            found[topic] = () if data is None else records.decode_topic(data, where=topic)
        return found

    def _data(self, path: str) -> Generator[Asked, Any, bytes | None]:
        reply: Reply = yield rq.Get(path, watch=True)
        data = reply.value.data if reply.code is Code.OK else None
        self._watched[path] = data
        return data

    def _children(self, path: str) -> Generator[Asked, Any, tuple[str, ...]]:
        reply: Reply = yield rq.Children(path, watch=True)
        names = tuple(reply.value) if reply.code is Code.OK else ()
        self._watched[path] = names
        return names
