"""A member of a group: its session, its thread and its settings, made from a configuration."""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from zkconsumer.config.property_types import AUTO_RELEASE
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer.listener import Callbacks, ConsumerRebalanceListener
from zkconsumer.consumer.loop import PartitionSinks
from zkconsumer.consumer.member_thread import MemberThread
from zkconsumer.consumer.stream_partitions import LeaseGate, require_global_lock
from zkconsumer.errors import (
    AccessDeniedError,
    ConsumerIdTakenError,
    ZkConsumerError,
    ZooKeeperUnreachableError,
    escaped_and_cut,
)
from zkconsumer.kafka.access import check_properties
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.fetcher import LOOKUP_S
from zkconsumer.kafka.offset_storage import offset_store
from zkconsumer.member.read_group import read_raw_group, read_registered_brokers
from zkconsumer.member.session import rival_remedy, rival_text
from zkconsumer.member.state import Settings
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.model import OFFSETS_TOPIC, ConsumerId, RebalanceMode, Session
from zkconsumer.protocol.registrations import Registration, validate_registration
from zkconsumer.protocol.release_detection import detect
from zkconsumer.protocol.releases import Profile, profile
from zkconsumer.protocol.requests import Code, Reply, Requests
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.trace import TraceFile
from zkconsumer.zk.session import ClientDeath, ZooKeeperSession

T = TypeVar("T")

JOIN_MARGIN_S: Final = 10.0
"""The time, in seconds, that a registration may take beyond two session timeouts."""


class GroupMember:
    """One member of a group: its ZooKeeper session, its lease and its thread.

    `ConsumerConnector` and Spark's batch reader share this class. Call `connect`, then `start`,
    then `wait_registered`.

    Attributes:
        consumer_id: the member's consumer id, which begins with the group's name.
        gate: the member's lease.
        thread: the thread that takes the member's turns; None before `start`.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        """Create a member that is not connected yet.

        Raises:
            InvalidNameError: `consumer.id` is not a valid name.
            ConfigError: librdkafka refuses a `kafka.` property, or Python runs without its global
                interpreter lock.
        """
        require_global_lock()
        check_properties(config)
        self.config = config
        self.consumer_id = paths.consumer_id(config.group_id, config.consumer_id or suffix())
        self.gate = LeaseGate()
        self.thread: MemberThread | None = None
        # The session may connect, or its client may die, before the thread exists. `start` then
        # reports the connection or the death to the thread.
        self._connection: Session | None = None
        self._last_session: int | None = None
        self._death: ClientDeath | None = None
        self._session: ZooKeeperSession | None = None

    @property
    def session(self) -> ZooKeeperSession:
        """The ZooKeeper session; available after `connect`."""
        assert self._session is not None
        return self._session

    def connect(self) -> None:
        """Connect to ZooKeeper; register nothing.

        Raises:
            ZooKeeperUnreachableError, ChrootMissingError, ConfigError: see `zk.session`.
        """
        self._session = ZooKeeperSession(
            self.config,
            on_state=self._session_changed,
            on_watch=self._watch_fired,
            on_death=self._client_died,
        )
        self._session.start()

    def settings(
        self,
        registration: Registration,
        *,
        listener: ConsumerRebalanceListener | None = None,
        callbacks: Callbacks | None = None,
        release: Profile | None = None,
    ) -> Settings:
        """Return the settings of the state machine; call it after `connect`.

        `release` takes the place of `peers.release`.

        Raises:
            ConfigError: members of the release that `peers.release` names would misread
                `registration`.
            AccessDeniedError, ZooKeeperUnreachableError: `peers.release=auto`, and the group could
                not be read.
        """
        release = release or _profile(self.config, self.session)
        validate_registration(registration, profile=release)
        made = settings(self.config, self.consumer_id, registration, release)
        if listener is None and callbacks is None:
            return made
        # A JVM member gives up if this member releases partitions too late, so this member waits
        # for the user's functions no longer than the grace period.
        return replace(made, listener_s=made.grace_s, announces=callbacks is not None)

    def start(
        self,
        settings: Settings,
        streams: PartitionSinks,
        *,
        trace: TraceFile | None = None,
        listener: ConsumerRebalanceListener | None = None,
        callbacks: Callbacks | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> MemberThread:
        """Start the thread, which registers the member; do not wait for the registration."""
        thread = self.thread = MemberThread(
            settings,
            gate=self.gate,
            session=self.session,
            streams=streams,
            store=offset_store(self.config, self.consumer_id, self.brokers, self.has_offsets_topic),
            trace=trace,
            listener=listener,
            callbacks=callbacks,
            look=look,
        )
        thread.session_changed(self._connection)
        if self._death is not None:
            thread.client_died(self._death)
        thread.start()
        return thread

    def wait_registered(self) -> None:
        """Wait until the member is registered; call it after `start`.

        If a process with the same consumer id has crashed, its registration exists until its
        session expires. So the wait lasts at most twice this member's session timeout plus
        `JOIN_MARGIN_S`.

        Raises:
            ConsumerIdTakenError: another session stayed registered under this consumer id.
            ZooKeeperUnreachableError: ZooKeeper does not answer.
            AccessDeniedError: ZooKeeper forbids the registration.
            ZkConsumerError: the member ended because of this error.
        """
        assert self.thread is not None
        limit_s = 2 * self.config.zookeeper_session_timeout_s + JOIN_MARGIN_S
        try:
            self.thread.joined.result(limit_s)
        except FutureTimeoutError:
            raise self._not_registered(limit_s) from None

    def _not_registered(self, limit_s: float) -> ZkConsumerError:
        assert self.thread is not None
        state = self.thread.state
        if state.rival is not None:
            return ConsumerIdTakenError(
                f"not registered within {limit_s:g} s: {rival_text(state.rival)}",
                where=self.consumer_id,
                remedy=rival_remedy(state.rival),
            )
        why = "ZooKeeper does not answer" if state.connected else "the connection is lost"
        return ZooKeeperUnreachableError(
            f"not registered within {limit_s:g} s: {why}",
            where=f"zookeeper.connect={self.config.zookeeper_connect}",
            remedy="check that the servers are up, and try again",
        )

    def brokers(self) -> Brokers:
        """Return the brokers registered now; if ZooKeeper does not answer, the last known ones.

        If no broker was registered when the member read the group, the result is empty; the member
        reads the group again when a broker registers. The JVM's `LeaderFinderThread` reads the same
        znodes. The call waits at most `LOOKUP_S` seconds for each of ZooKeeper's two replies; the
        session's own threads must not call it.
        """
        view = self.thread.state.view if self.thread is not None else None
        known = view.brokers if view is not None else ()
        if self.thread is not None and not known:
            return Brokers((), self.config)
        with suppress(ZooKeeperUnreachableError):
            found = self.session.run(read_registered_brokers(), limit_s=LOOKUP_S)
            known = found or known
        return Brokers(known, self.config)

    def has_offsets_topic(self) -> bool | None:
        """Return whether the topic of the groups' offsets exists; None if ZooKeeper does not say.

        The call waits at most `LOOKUP_S` seconds. It uses the member's session: what the previous
        owner of a partition has committed to Kafka, it committed before this session could claim
        the partition, so this session then sees the topic.
        """
        with suppress(ZooKeeperUnreachableError):
            (reply,) = self.session.run(_exists(paths.topic(OFFSETS_TOPIC)), limit_s=LOOKUP_S)
            return reply.value is not None if reply.code is Code.OK else None
        return None

    def stop(self) -> None:
        """End the session of a member whose thread never started."""
        if self._session is not None:
            self._session.stop()

    def _session_changed(self, session: Session | None) -> None:
        if session is not None and session.id != self._last_session:
            self._last_session = session.id
            _compare_timeouts(self.consumer_id, self.config, session)
        self._connection = session
        if self.thread is not None:
            self.thread.session_changed(session)

    def _client_died(self, death: ClientDeath) -> None:
        self._death = death
        if self.thread is not None:
            self.thread.client_died(death)

    def _watch_fired(self, kind: str, path: str) -> None:
        if self.thread is not None:
            self.thread.watch_fired(kind, path)


def _compare_timeouts(consumer: ConsumerId, config: ConsumerConfig, session: Session) -> None:
    """Report a session timeout that differs from the requested one; both are in seconds."""
    wanted_s = config.zookeeper_session_timeout_s
    if abs(session.timeout_s - wanted_s) >= 0.001:
        logger.warning(
            "%s: ZooKeeper grants a session timeout of %g s, not of %g s: its settings "
            "minSessionTimeout and maxSessionTimeout (by default 2 and 20 times tickTime) limit "
            "zookeeper.session.timeout.ms",
            consumer,
            session.timeout_s,
            wanted_s,
        )


# ---- settings -----------------------------------------------------------------------------------


logger = SafeLogger(logging.getLogger(__name__))

# Minimum time, in seconds, between two rebalances that `peers.nudge` causes. Each of these
# rebalances concerns the whole group.
NUDGE_S: Final = 60.0

# Time limit, in seconds, of each reply while `peers.release=auto` reads the group. Without a reply,
# the join fails.
REPLY_S: Final = 30.0

# Time, in seconds, after which a settled member reads the group again, in case a watch was lost.
# The read costs one request for each member and a few for each topic.
REFRESH_S: Final = 30.0


def settings(
    config: ConsumerConfig, consumer: ConsumerId, registration: Registration, release: Profile
) -> Settings:
    """Return the settings of the state machine of a member without listener and callbacks."""
    return Settings(
        group=config.group_id,
        consumer=consumer,
        subscription=registration.subscription,
        pattern=registration.pattern,
        internal=release.internal_topics if config.exclude_internal_topics else frozenset(),
        profile=release,
        strategy=Strategy(config.partition_assignment_strategy),
        mode=RebalanceMode(config.rebalance_mode),
        auto_commit_s=config.auto_commit_interval_s if config.auto_commit_enable else None,
        grace_s=config.release_grace_s,
        backoff_s=config.rebalance_backoff_s,
        retries=config.rebalance_max_retries,
        nudge_s=NUDGE_S if config.peers_nudge else None,
        refresh_s=REFRESH_S,
        storage=config.storage,
        channel_backoff_s=config.offsets_channel_backoff_s,
        commit_retries=config.offsets_commit_max_retries,
    )


def _profile(config: ConsumerConfig, session: ZooKeeperSession) -> Profile:
    """Return the profile of `peers.release`. For `auto`, detect it from the owner znodes."""
    if config.peers_release != AUTO_RELEASE:
        return profile(config.peers_release)
    reading = read_raw_group(
        config.group_id,
        Strategy(config.partition_assignment_strategy),
        exclude_internal=config.exclude_internal_topics,
    )
    group, owners = session.run(_readable(reading), limit_s=REPLY_S)
    detected = detect(group, owners)
    logger.info(
        "peers.release=auto: as %s (%s)", detected.profile.release, escaped_and_cut(detected.reason)
    )
    return detected.profile


def _exists(path: str) -> Generator[Requests, Sequence[Reply], Sequence[Reply]]:
    return (yield [rq.Exists(path)])


def _readable(
    running: Generator[Requests, Sequence[Reply], T],
) -> Generator[Requests, Sequence[Reply], T]:
    """Run an operation, and raise AccessDeniedError when ZooKeeper refuses one of its reads."""
    try:
        batch = next(running)
        while True:
            replies = yield batch
            refused = [
                request.path
                for request, reply in zip(batch, replies, strict=True)
                if reply.code is Code.NO_AUTH and not isinstance(request, rq.Multi)
            ]
            if refused:
                raise AccessDeniedError(
                    "the group may not be read",
                    where=", ".join(refused),
                    remedy="ask for read access to these znodes, or set peers.release to a release",
                )
            batch = running.send(replies)
    except StopIteration as end:
        result: T = end.value
        return result


def suffix() -> str:
    """Return a new suffix of a consumer id, for a configuration without `consumer.id`."""
    return paths.default_suffix(
        hostname=socket.gethostname(),
        epoch_ms=int(time.time() * 1000),
        uuid_msb=uuid.uuid4().int >> 64,
    )
