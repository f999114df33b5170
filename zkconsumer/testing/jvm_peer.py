"""A group member that behaves like Kafka's old JVM consumer, without a JVM.

The simulator's model of `ZookeeperConsumerConnector` (`sim.jvm_member`) runs here on a session of a
fake ZooKeeper, in the server's thread. The model subscribes to topics by name, and keeps its
offsets in ZooKeeper. This module is not part of `zkconsumer.testing`, because it imports the whole
simulator, which takes longer than all of `zkconsumer.testing`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final, Self

from zkconsumer.consumer.executor import WatchFired
from zkconsumer.errors import FakeServerError
from zkconsumer.member.state import Settings
from zkconsumer.protocol.model import Session, TopicPartition
from zkconsumer.sim.jvm_member import JvmMember
from zkconsumer.sim.zookeeper import NotConnected
from zkconsumer.testing.zookeeper import FakeZooKeeper, LocalSession

_TURN_S: Final = 0.02
"""How often a peer looks for watch events, messages and its own deadlines, in seconds."""

_LEAVE_S: Final = 60.0
"""How long `leave` waits, in seconds; without a fault a peer leaves within two turns."""

_numbers = count(1)


class JvmPeer:
    """A member of a group; as a context manager it is in the group during the block.

    Attributes:
        consumer_id: the name of its registration.
        delivered: the messages that its user has received, as (partition, offset).
        said: what the member has done, as (phase, text).
    """

    def __init__(
        self,
        zookeeper: FakeZooKeeper,
        group: str,
        subscription: Mapping[str, int],
        *,
        consumer_id: str = "",
        end_offset: Callable[[TopicPartition], int] = lambda _: 0,
        session_timeout_s: float = 6.0,
        auto_commit_s: float | None = 1.0,
        backoff_s: float = 2.0,
        retries: int = 4,
    ) -> None:
        """
        Args:
            zookeeper: the server.
            group: the group's name.
            subscription: topic -> number of streams.
            consumer_id: the name of the registration; by default one with the group's name.
            end_offset: the end of a partition's log, up to which the user takes messages at once;
                by default no partition has messages. It is called on the server's thread.
            session_timeout_s: the seconds after which a dead member's znodes disappear
                (`zookeeper.session.timeout.ms`).
            auto_commit_s: the interval of automatic commits in seconds; None: no commits.
            backoff_s: the pause after a failed attempt, in seconds (`rebalance.backoff.ms`).
            retries: the number of attempts of a rebalance (`rebalance.max.retries`).
        """
        self.consumer_id = consumer_id or f"{group}_jvm-{next(_numbers)}"
        self.delivered: list[tuple[TopicPartition, int]] = []
        self.said: list[tuple[str, str]] = []
        self._zookeeper, self._engine = zookeeper, zookeeper.engine
        self._end_offset, self._timeout_s = end_offset, session_timeout_s
        settings = Settings(
            group=group,
            consumer=self.consumer_id,
            subscription=subscription,
            auto_commit_s=auto_commit_s,
            backoff_s=backoff_s,
            retries=retries,
        )
        self._member = JvmMember(settings, lambda _, *said: self.said.append(said))
        self._session: LocalSession | None = None
        self._is_connected = False
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = threading.Event()

    # ---- called by the test ----------------------------------------------------------------------

    def join(self) -> None:
        """Join the group; the rebalance begins when the call returns.

        Raises:
            FakeServerError: the peer has joined already, or the server is not running.
        """
        if self._session is not None:
            raise FakeServerError(
                "a JVM peer joins once", where=self.consumer_id, remedy="make another JvmPeer"
            )
        if not self._zookeeper.is_up:
            raise FakeServerError("the fake ZooKeeper is not running", remedy="call start()")
        self._engine.call(self._turn)

    def leave(self) -> None:
        """Commit, and end the session; its znodes are gone when the call returns.

        Raises:
            FakeServerError: the peer cannot leave within a minute, because it does not reach
                ZooKeeper.
        """
        if self._session is None or self._has_ended.is_set():
            return
        self._engine.call(lambda: self._member.leave(self._now))
        if not self._has_ended.wait(_LEAVE_S):
            raise FakeServerError(
                f"a JVM peer has not left within {_LEAVE_S:.0f} s",
                where=self.consumer_id,
                remedy="end the faults of ZooKeeper, or call kill()",
            )

    def kill(self) -> None:
        """End the process: nothing is committed, and the znodes stay until the session expires."""
        self._engine.call(lambda: self._end(LocalSession.abandon))

    @property
    def session(self) -> int:
        """The number of its ZooKeeper session, for faults; 0 before `join`."""
        return self._session.id if self._session else 0

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that it delivers, whether or not another member owns them by now."""
        return self._engine.call(lambda: frozenset(self._member.feeds))

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.leave()
        else:
            self.kill()

    # ---- on the server's thread ------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._zookeeper.clock.now()

    def _turn(self) -> None:
        """Do everything that is possible now."""
        if self._has_ended.is_set():
            return
        self._keep_connected()
        if self._member.due <= self._now:
            self._member.wake(self._now)
        if self._is_connected:
            self._converse()
        self._take_messages()
        if self._member.closed:
            self._end(LocalSession.close)
        else:
            self._timer = self._engine.loop.call_later(_TURN_S, self._turn)

    def _keep_connected(self) -> None:
        """Notice the end of a connection, and connect again, in the same session or a new one."""
        session = self._session
        is_reachable = self._zookeeper.is_up and not (session and session.is_isolated())
        if self._is_connected:
            if is_reachable and session and session.is_connected():
                return
            self._is_connected = False
            self._member.disconnect(self._now)
        if not is_reachable:
            return
        try:
            is_same = session is not None and session.reconnect()
        except NotConnected:
            return  # zkclient tries again
        if session is None or not is_same:
            session = self._session = self._zookeeper.session(timeout_s=self._timeout_s)
        self._is_connected = True
        wall_ms = round(self._now * 1000)
        self._member.connect(Session(session.id, self._timeout_s), self._now, wall_ms)

    def _converse(self) -> None:
        """Send requests and handle their replies, until the member waits."""
        member, session = self._member, self._session
        assert session is not None, "the member is connected"
        while True:
            for kind, path in session.take_events():
                member.watch(WatchFired(kind, path))
            if member.inbox:
                member.receive(self._now)
            elif member.wire:
                thread, request = member.wire.popleft()
                reply = session.request(request)
                # The events of a change come before the reply that shows the change.
                for kind, path in session.take_events():
                    member.watch(WatchFired(kind, path))
                member.replied(thread, reply)
            else:
                return

    def _take_messages(self) -> None:
        member = self._member
        for tp in list(member.feeds):
            while member.deliverable(tp, self._end_offset(tp), self._now):
                self.delivered.append((tp, member.deliver(tp)[0]))
        member.finish_all(self._now)

    def _end(self, part: Callable[[LocalSession], None]) -> None:
        """End all turns, and the session by `part`."""
        if self._has_ended.is_set():
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            part(self._session)
        self._has_ended.set()
