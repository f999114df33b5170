"""The bridge's connections to the brokers: threads that send requests and wait for the responses.

A broker answers the requests of a connection in their order, and a JoinGroup waits until all
members have joined. So each broker has two connections: one for JoinGroup and SyncGroup, and one
for all other requests. The first one ends with the rebalance: a firewall could drop it until the
next one, and the bridge would wait `JOIN_S` for an answer.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from zkconsumer.bridge import wire
from zkconsumer.errors import BrokerAccessError, FetchError, ZkConsumerError
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.kafka.columns import requests
from zkconsumer.kafka.columns.connection import AuthenticationError, Connection, connect
from zkconsumer.kafka.columns.lookups import (
    GROUP_DENIED,
    LOST,
    NO_COORDINATOR,
    Lookup,
    addresses_of,
    name_of,
    why,
)
from zkconsumer.later import member_events as ev
from zkconsumer.later.client_state import REQUEST_S
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.subscriptions import Topic
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.safe_logger import SafeLogger

logger = SafeLogger(logging.getLogger(__name__))

JOIN_S: Final = 660.0
"""How long, in seconds, a JoinGroup may wait: twice the default of `max.poll.interval.ms`, and one
minute. At the end the connection is closed, and the bridge joins again."""

LOGIN_AGAIN_S: Final = 5.0
"""The pause, in seconds, after a refused login: a server may lock a user after many attempts."""

PAUSE_S: Final = 0.2
"""The pause, in seconds, between two questions for a coordinator that is not ready."""

_SLOW: Final = (msg.JoinGroup, msg.SyncGroup)

Address = tuple[str, int]
Post = Callable[[Callable[[float], ev.Event]], None]
"""Passes an event, which gets the time, to the thread of the bridge."""


def with_servers(settings: Settings, addresses: Iterable[Address]) -> Settings:
    """Return the settings with more brokers to ask, in case the configured ones have failed."""
    known = dict.fromkeys([*addresses_of(settings), *addresses])
    servers = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in known)
    return {**settings, "bootstrap.servers": ",".join(servers)}


class _Lane(threading.Thread):
    """One connection to one broker, and the thread that waits for its responses."""

    def __init__(self, brokers: BrokerConnections, broker: int, address: Address) -> None:
        super().__init__(name=f"bridge-broker-{broker}", daemon=True)
        self.requests: queue.SimpleQueue[tuple[int, msg.Request] | None] = queue.SimpleQueue()
        self._brokers, self._broker, self._address = brokers, broker, address
        self._connection: Connection | None = None
        self._is_over = threading.Event()

    def run(self) -> None:
        while (item := self.requests.get()) is not None:
            number, request = item
            try:
                response = self._ask(request)
            except AuthenticationError as refused:
                self._brokers.failed(refused.error)
                self._is_over.wait(LOGIN_AGAIN_S)
                self._brokers.lost(self._broker, str(refused.error))
            except (*LOST, FetchError) as lost:
                self.close()
                self._brokers.lost(self._broker, why(lost))
            else:
                if isinstance(request, msg.SyncGroup):
                    self.close()
                self._brokers.answered(number, response)
        self.close()

    def _ask(self, request: msg.Request) -> msg.Response:
        if self._connection is None:
            self._connection = connect(self._address, self._brokers.settings, REQUEST_S)
            self._connection.set_blocking(True)
            self._connection.keep_alive()
            self._brokers.error = None
        api = wire.APIS[type(request)]
        version = self._connection.versions.get(api)
        if version is None:
            raise FetchError(
                "the broker has no consumer groups of its own",
                where=f"{self._address[0]}:{self._address[1]}",
                remedy="the bridge needs brokers 0.11 or later",
            )
        limit_s = JOIN_S if isinstance(request, _SLOW) else REQUEST_S
        response = self._connection.ask(api, wire.write(request, version), limit_s)
        if isinstance(request, msg.FindCoordinator):
            found, address = wire.found(response)
            self._brokers.learn(found.broker, address)
            return found
        return wire.read(request, version, response)

    def end(self) -> None:
        """Let the thread end, whatever it waits for; any thread may call it."""
        self.requests.put(None)
        self._is_over.set()
        self.close()

    def close(self) -> None:
        """Close the connection; another thread may call it to end a wait."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class BrokerConnections:
    """All connections of a bridge to brokers.

    Attributes:
        settings: librdkafka's settings, from `client_settings.broker_settings`.
        error: why the last login was refused; None: it was not. A ticket may be renewed, so the
            bridge logs in again, unless it has just started.
        trouble: why the last connection was lost; empty: none was.
    """

    def __init__(self, settings: Settings, post: Post) -> None:
        self.settings, self._post = settings, post
        self.error: ZkConsumerError | None = None
        self.trouble = ""
        self._lock = threading.Lock()
        self._addresses: dict[int, Address] = {}
        self._lanes: dict[tuple[int, bool], _Lane] = {}

    def metadata(self, limit_s: float = REQUEST_S) -> ev.MetadataChanged:
        """Return the cluster's brokers and topics at time 0. Raises FetchError."""
        lookup = Lookup(with_servers(self.settings, self.addresses()))
        try:
            found = lookup.all_topics(limit_s)
        finally:
            lookup.close()
        with self._lock:
            self._addresses.update(found.addresses)
        topics = {name: Topic(len(numbers)) for name, numbers in found.topics.items()}
        return ev.MetadataChanged(0.0, tuple(sorted(found.addresses)), topics)

    def addresses(self) -> list[Address]:
        """Return the addresses of the brokers that this bridge has learnt of."""
        with self._lock:
            return list(self._addresses.values())

    def learn(self, broker: int, address: Address) -> None:
        """Record the address of a broker."""
        if broker >= 0:
            with self._lock:
                self._addresses[broker] = address

    def send(self, command: ev.Send) -> None:
        """Send a request; the response, or the end of the connection, is posted."""
        with self._lock:
            address = self._addresses.get(command.broker)
            key = command.broker, isinstance(command.request, _SLOW)
            lane = self._lanes.get(key)
            if lane is None and address is not None:
                lane = self._lanes[key] = _Lane(self, command.broker, address)
                lane.start()
        if lane is None:
            self.lost(command.broker, "its address is unknown")
        else:
            lane.requests.put((command.number, command.request))

    def answered(self, number: int, response: msg.Response) -> None:
        """Post a response."""
        self._post(lambda now: ev.Answered(now, number, response))

    def lost(self, broker: int, reason: str) -> None:
        """Post the end of a broker's connections, and forget them."""
        self.trouble = f"broker {broker}: {reason}"
        with self._lock:
            for key in [one for one in self._lanes if one[0] == broker]:
                self._lanes.pop(key).requests.put(None)
        self._post(lambda now: ev.Disconnected(now, broker))

    def failed(self, error: ZkConsumerError) -> None:
        """Record a refused login; the log shows it once."""
        if str(error) != str(self.error):
            logger.warning("bridge: %s", error)
        self.error = error

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            for lane in self._lanes.values():
                lane.end()
            self._lanes.clear()


class GroupAdmin:
    """Describes the brokers' group, removes its members, and commits for one of them.

    Each call opens and closes its own connections, so any thread may call it.
    """

    def __init__(
        self, settings: Settings, group: str, known: Callable[[], Iterable[Address]] = tuple
    ) -> None:
        """`known` returns the addresses of brokers that can be asked, besides the configured."""
        self._settings, self._group, self._known = settings, group, known

    def describe(self, limit_s: float = REQUEST_S) -> wire.GroupDescription:
        """Return the group as its coordinator describes it. Raises FetchError."""
        deadline = time.monotonic() + limit_s
        body = requests.members_request(self._group)
        while True:
            with self._coordinator(limit_s) as connection:
                answer = connection.ask(requests.DESCRIBE_GROUPS, body, limit_s)
                found = wire.GroupDescription(answer)
            if not found.error:
                return found
            if found.error == GROUP_DENIED or time.monotonic() > deadline:
                raise _refused(found.error, self._group)
            time.sleep(PAUSE_S)

    def remove(self, members: list[str], limit_s: float = REQUEST_S) -> None:
        """Remove these members; each joins again when it learns of it. Raises FetchError."""
        with self._coordinator(limit_s) as connection:
            version = min(2, connection.versions[requests.LEAVE_GROUP])
            connection.versions = {**connection.versions, requests.LEAVE_GROUP: version}
            for member in members:
                request = msg.LeaveGroup(self._group, (msg.Leaver(member),))
                body = wire.write(request, version)
                wire.read(request, version, connection.ask(requests.LEAVE_GROUP, body, limit_s))

    def raise_offsets(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        member: str,
        generation: int,
        instance: str | None,
        limit_s: float = REQUEST_S,
    ) -> bool:
        """Commit the offsets that are higher than Kafka's, as a member of this generation.

        If the generation is over, the coordinator refuses the commit, so no offset of a partition
        that was assigned since then moves back. Return whether Kafka has offsets that are not lower
        now. Raises FetchError.
        """
        with self._coordinator(limit_s) as connection:

            def ask(request: msg.Request) -> msg.Response:
                api = wire.APIS[type(request)]
                version = connection.versions[api]
                response = connection.ask(api, wire.write(request, version), limit_s)
                return wire.read(request, version, response)

            stored = ask(msg.OffsetFetch(self._group, tuple(sorted(offsets))))
            assert isinstance(stored, msg.OffsetsFetched)
            higher = {
                tp: OffsetAndMetadata(offset)
                for tp, offset in offsets.items()
                if tp not in stored.refused
                and (tp not in stored.offsets or stored.offsets[tp].offset < offset)
            }
            is_complete = stored.error is msg.Error.NONE and not stored.refused
            if stored.error is not msg.Error.NONE or not higher:
                return is_complete
            committed = ask(msg.OffsetCommit(self._group, higher, member, generation, instance))
            assert isinstance(committed, msg.OffsetsCommitted)
            return is_complete and committed.error is msg.Error.NONE and not committed.refused

    def join_version(self, limit_s: float = REQUEST_S) -> int:
        """Return the version of JoinGroup that the coordinator supports. Raises FetchError."""
        with self._coordinator(limit_s) as connection:
            return connection.versions.get(requests.JOIN_GROUP, -1)

    def _coordinator(self, limit_s: float) -> _Closing:
        """Connect to the coordinator. The first request for one creates the topic of the offsets,
        so a new cluster needs some seconds until it has one."""
        lookup = Lookup(with_servers(self._settings, self._known()))
        deadline = time.monotonic() + limit_s
        try:
            while isinstance(found := self._find(lookup, limit_s), int):
                if found == GROUP_DENIED or time.monotonic() > deadline:
                    raise _refused(found, self._group)
                time.sleep(PAUSE_S)
            return _Closing(connect(found, self._settings, limit_s))
        except AuthenticationError as refused:
            raise refused.error from refused
        except LOST as lost:
            raise FetchError(
                f"the group's coordinator does not answer: {why(lost)}",
                where=self._group,
                remedy="check that the brokers run, and try again",
            ) from lost
        finally:
            lookup.close()

    def _find(self, lookup: Lookup, limit_s: float) -> Address | int:
        """Return the coordinator's address, or the error if no broker tells it now."""
        error = NO_COORDINATOR
        for address in lookup.all_topics(limit_s).addresses.values():
            try:
                with _Closing(connect(address, self._settings, limit_s)) as one:
                    body = requests.coordinator_request(self._group)
                    answer = one.ask(requests.FIND_COORDINATOR, body, limit_s)
                    error, place = requests.coordinator(0, answer)
            except (*LOST, FetchError):
                continue
            if not error:
                return place
        return error


def _refused(error: int, group: str) -> FetchError:
    """Return the error for an answer of the group's coordinator."""
    if error == GROUP_DENIED:
        remedy = "permit READ on the group to the user of this client"
        return BrokerAccessError(f"Kafka: {name_of(error)}", where=group, remedy=remedy)
    remedy = "check that the brokers run, and try again"
    return FetchError(f"Kafka: {name_of(error)}", where=group, remedy=remedy)


class _Closing:
    """Closes a connection at the end of a `with` block; requests on it block.

    If the connection is lost in the block, the block raises FetchError.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.set_blocking(True)

    def __enter__(self) -> Connection:
        return self._connection

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._connection.close()
        if isinstance(error, LOST):
            raise FetchError(
                f"the broker does not answer: {why(error)}",
                remedy="check that the brokers run, and try again",
            ) from error
