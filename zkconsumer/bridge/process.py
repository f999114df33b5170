"""The process of a bridge: one thread that runs the state machine with real connections.

The thread owns the machine's state. Members' threads and broker threads post events into its inbox.
So do two threads of the process: one reads the old group and the operator's wish, once a second,
because registrations change rarely; the other asks the brokers for topics. Two more threads copy
the old side's offsets to Kafka, and connect the consumers to ZooKeeper. Each may wait for a server
for long, and the bridge's thread must not: it sends heartbeats, and lets the new members revoke
before a lease ends. The thread that reads ZooKeeper waits for no broker: each of its reads proves
that this process is still the active one.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from zkconsumer.admin.groups import registered_brokers
from zkconsumer.admin.what_if import Owners, live_group
from zkconsumer.bridge import machine, preflight, shares, wire
from zkconsumer.bridge import state as bridge
from zkconsumer.bridge.brokers import BrokerConnections, GroupAdmin
from zkconsumer.bridge.control import Control, ReplacedError, Wish
from zkconsumer.bridge.status import CONSUMER_PREFIX
from zkconsumer.bridge.stream import BridgeStream
from zkconsumer.config.property_types import AUTO_RELEASE
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer.commit_requests import CommitRequested
from zkconsumer.consumer.group_member import GroupMember
from zkconsumer.consumer.loop import PartitionSinks
from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.errors import (
    AccessDeniedError,
    BrokerAccessError,
    FetchError,
    MalformedZnodeError,
    RefusedError,
    ZkConsumerError,
    ZooKeeperUnreachableError,
    escaped_and_cut,
    first_few,
)
from zkconsumer.kafka.client_settings import Brokers, broker_settings
from zkconsumer.kafka.client_settings import Settings as BrokerSettings
from zkconsumer.later import member_events as ev
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.protocol import paths, payloads
from zkconsumer.protocol.assignors import RoundRobinRule, Strategy
from zkconsumer.protocol.group_assignment import GroupInput, partitions_in, stream_counts
from zkconsumer.protocol.model import Purpose, TopicPartition
from zkconsumer.protocol.paths import thread_ids
from zkconsumer.protocol.registrations import Registration
from zkconsumer.protocol.release_detection import detect
from zkconsumer.protocol.releases import Profile, profile
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.zk.client import ZooKeeperClient

logger = SafeLogger(logging.getLogger(__name__))

READ_S: Final = 1.0
"""How often, in seconds, the old group is read. Each read costs a request for each registration,
topic and owner znode."""

METADATA_S: Final = 30.0
"""How often, in seconds, the brokers are asked for topics and partitions."""

TICK_S: Final = 0.2
"""How often, in seconds, the consumers' leases are looked at."""

MIRROR_S: Final = 5.0
"""How often, in seconds, Kafka's offsets of the new side are copied to ZooKeeper, and ZooKeeper's
offsets of the old side to Kafka. If the bridge dies, each side redelivers what the other one has
read since the last copy."""

GRACE_S: Final = 600.0
"""How long, in seconds, a consumer waits for the new members to revoke. Eager members revoke at
their next poll, at most `max.poll.interval.ms` later."""

HEARTBEAT_S: Final = 1.0
"""How often, in seconds, the bridge sends a heartbeat."""

LEASE_MARGIN: Final = 0.25
"""The part of ZooKeeper's session timeout before the end of a lease at which the new members must
revoke. A lease lasts two thirds of the timeout, and is renewed six times per timeout."""

LOCK_LASTS: Final = 2 / 3
"""The part of ZooKeeper's session timeout for which an answer proves that this process is still the
active one."""

RECONNECT_S: Final = 5.0
"""The pause, in seconds, before a consumer that did not reach ZooKeeper tries again, and before a
standby that did not reach the brokers does; also between two replacements of a dead client."""

MOST_REFUSALS: Final = 5
"""After this many refused logins at ZooKeeper in a row, the bridge gives its partitions back, and
ends."""

GIVE_BACK_S: Final = 60.0
"""How long, in seconds, a bridge that an error ends waits until the new members have revoked. They
may wait for their next poll, and the error may have ended a consumer that must store offsets."""

END_S: Final = 30.0
"""How long, in seconds, the end waits for the consumers' last commits."""


@dataclass
class _Consumer:
    """A running consumer."""

    member: GroupMember
    stream: BridgeStream
    deadline: float = 0.0


class BridgeProcess:
    """Runs a bridge until it has reached its goal.

    Attributes:
        state: the machine's state, a frozen value; any thread may read it.
        notices: what the operator should know before the bridge starts.
    """

    def __init__(
        self,
        setup: bridge.Settings,
        *,
        config: Callable[[int], ConsumerConfig],
        zookeeper: ZooKeeperClient,
        brokers: BrokerSettings,
        notices: Sequence[str] = (),
    ) -> None:
        """`config` returns the configuration of the consumer with this number."""
        self.notices = notices
        self.state = bridge.begin(setup)
        self._config, self._zookeeper = config, zookeeper
        self._inbox: queue.SimpleQueue[Callable[[float], ev.Event]] = queue.SimpleQueue()
        self._brokers = BrokerConnections(brokers, self.post)
        self._admin = GroupAdmin(brokers, setup.client.group, self._brokers.addresses)
        self._consumers: dict[int, _Consumer] = {}
        self._closing: list[_Consumer] = []
        self._numbers = frozenset[int]()
        self._missing = frozenset[int]()
        self._connected: queue.SimpleQueue[tuple[int, GroupMember]] = queue.SimpleQueue()
        self._has_ended = False
        self._seen: GroupInput | None = None
        self._topics: frozenset[str] | None = None
        self._old_offsets: tuple[bridge.State, Mapping[TopicPartition, int]] | None = None
        self._copied: Mapping[TopicPartition, int] = {}
        self._copy_at = 0.0
        self._wish = Wish(self.state.goal, self.state.share)
        self._last_goal: bridge.Goal | None = None
        self._warned = ""
        self._refusals, self._replace_at = 0, 0.0
        self._failure: ZkConsumerError | None = None
        self._raise_at = 0.0

    def post(self, event: Callable[[float], ev.Event]) -> None:
        """Pass an event to the bridge; any thread may call it."""
        self._inbox.put(event)

    def stop(self, goal: bridge.Goal = bridge.Goal.STOP) -> None:
        """Pursue this goal from now on, whatever `control` says; a signal handler may call it."""
        self._last_goal = goal

    def run(
        self,
        look: Callable[[bridge.State], None] = lambda state: None,
        control: Control | None = None,
    ) -> str:
        """Run until the end, and return its reason.

        Args:
            look: is called after each turn.
            control: tells what the operator wants, and who is active.

        Raises:
            ZkConsumerError: ZooKeeper or the brokers refuse the bridge.
        """
        self._metadata_thread = _Repeated("bridge-metadata", self._ask_for_metadata, METADATA_S)
        self._offsets_thread = _Repeated("bridge-offsets", self._copy_old_offsets, MIRROR_S)
        group = _Repeated("bridge-group", lambda: self._read_zookeeper(control), READ_S)
        self._connect_thread = _Repeated("bridge-connect", self._connect_missing, RECONNECT_S)
        threads = (self._metadata_thread, self._offsets_thread, self._connect_thread, group)
        if control is None:  # nobody else can be active
            self._step(_lock_kept(float("inf")))
        else:
            self._continue_from(control.wish())
        try:
            self._step(ev.PollStarted)
            for thread in threads:
                thread.start()
            while not machine.is_over(self.state):
                self._turn(threads)
                look(self.state)
            if self._failure is not None:
                raise self._failure
            return self.state.ended
        finally:
            for thread in threads:
                thread.stop()
            self._end()
            for thread in threads:
                thread.join(TICK_S)

    def _continue_from(self, wish: Wish) -> None:
        """Take over the goal, and the number of consumers, that an earlier process has stored."""
        self._wish = wish
        self._step(lambda now: bridge.GoalChanged(now, wish.goal, wish.share, wish.consumers))

    # ---- a turn ----------------------------------------------------------------------------------

    def _turn(self, threads: Sequence[_Repeated]) -> None:
        if self._brokers.error is not None and not self.state.has_led:
            raise self._brokers.error
        for one in threads:
            self._fail(one.failure)
        now = boottime()
        wait_s = min(TICK_S, max(0.0, machine.next_deadline(self.state, now) - now))
        try:
            event = self._inbox.get(timeout=wait_s)
        except queue.Empty:
            event = ev.Tick
        self._step(event)
        self._look_at_leases()
        self._pursue()
        self._start_connected()

    def _step(self, event: Callable[[float], ev.Event]) -> None:
        self.state, commands = machine.step(self.state, event(boottime()))
        for command in commands:
            self._execute(command)

    def _look_at_leases(self) -> None:
        for number, one in list(self._consumers.items()):  # a step may close consumers
            deadline = one.member.gate.deadline
            if deadline != one.deadline:
                one.deadline = deadline
                self._step(_lease(number, deadline))
            thread = one.member.thread
            self._fail(None if thread is None else thread.failure)

    def _fail(self, error: ZkConsumerError | None) -> None:
        """Give all partitions back before this error ends the bridge.

        If the bridge ended at once, old members would claim partitions that new members still read.
        """
        if error is None:
            return
        if self._failure is None and (not self.state.held or isinstance(error, ReplacedError)):
            raise error
        if self._failure is None:
            logger.warning("bridge: it gives all partitions back, and ends: %s", error)
            self._failure, self._raise_at = error, time.monotonic() + GIVE_BACK_S
            self.stop()
        elif time.monotonic() > self._raise_at:
            raise self._failure

    def _pursue(self) -> None:
        """Tell the machine what the operator wants."""
        wish = self._wish
        goal = self._last_goal or wish.goal
        if (goal, wish.share) != (self.state.goal, self.state.share):
            self._step(lambda now: bridge.GoalChanged(now, goal, wish.share))

    # ---- the work of the other threads -----------------------------------------------------------

    def _read_zookeeper(self, control: Control | None) -> None:
        """Read the old group and the operator's wish."""
        trouble = ""
        try:
            if control is not None:
                asked_at = boottime()
                control.keep_lock()
                self.post(_lock_kept(asked_at + self._zookeeper.session_timeout_s * LOCK_LASTS))
                trouble = self._read_wish(control)
            found, _ = _old_group(self._zookeeper, self._config(0))
            if found != self._seen:
                self._seen = found
                self._compare_topics(found)
                self._metadata_thread.hurry()
                self.post(lambda now: bridge.GroupSeen(now, found))
            self._read_old_offsets(found)
            self._refusals = 0
        except (ZooKeeperUnreachableError, AccessDeniedError) as error:
            if not self._replace_client() and isinstance(error, AccessDeniedError):
                raise
            trouble = str(error)
        if trouble not in ("", self._warned):
            logger.warning("bridge: %s", trouble)
        self._warned = trouble

    def _compare_topics(self, group: GroupInput) -> None:
        """Warn of topics that old members have subscribed to since the bridge started.

        The new members must not read them, because the bridge claims none of their partitions.
        """
        found = _topics_of(group, self.state.setup.profile)
        known = found if self._topics is None else self._topics
        for topic in sorted(found - known - set(self.state.settings.topics)):
            logger.warning(
                "bridge: topic %s is read by the old members only, until the bridge is started"
                " again",
                topic,
            )
        self._topics = found | known

    def _replace_client(self) -> bool:
        """Replace the ZooKeeper client if it has failed for good; return whether it could be.

        A server that restarts may refuse a login once; after `MOST_REFUSALS` the next one would be
        refused, too.
        """
        death, now = self._zookeeper.death, time.monotonic()
        if death is None:
            return False
        if now >= self._replace_at:
            self._refusals += death.refused
            if self._refusals >= MOST_REFUSALS:
                return False
            self._replace_at = now + RECONNECT_S
            self._zookeeper.recreate()
        return True

    def _read_wish(self, control: Control) -> str:
        """Read what the operator wants; if nobody can, return why, and keep the last wish."""
        try:
            self._wish = self._store(control, control.wish())
        except MalformedZnodeError as error:
            return str(error)
        return ""

    def _store(self, control: Control, wish: Wish) -> Wish:
        """Store the topics, and how many consumers run, for the process after this one; return the
        stored wish.

        A process that has been told to stop closes its consumers; the stored number then stays.
        """
        state = self.state
        is_told = state.goal is not wish.goal
        count = wish.consumers if is_told else shares.consumers_to_keep(state)
        topics = state.settings.topics
        if (count, topics) == (wish.consumers, wish.topics):
            return wish
        return control.change(lambda stored: replace(stored, consumers=count, topics=topics))

    def _read_old_offsets(self, group: GroupInput) -> None:
        """Read the offsets of the old side, and let another thread copy them to Kafka."""
        state = self.state
        if not state.leads or time.monotonic() < self._copy_at:
            return
        name = state.settings.group
        where = {
            paths.offset(name, TopicPartition(topic, number)): TopicPartition(topic, number)
            for topic in state.settings.topics
            for number in partitions_in(topic, group.topics)[0]
        }
        offsets = {}
        for path, node in self._zookeeper.read(where).items():
            with suppress(ZkConsumerError):  # the doctor reports malformed offsets
                offsets[where[path]] = payloads.decode_offset(node.data, where=path)
        wanted = {
            tp: offset
            for tp, offset in offsets.items()
            if tp not in state.held and offset >= 0 and self._copied.get(tp) != offset
        }
        self._old_offsets = state, wanted
        self._offsets_thread.hurry()

    def _copy_old_offsets(self) -> None:
        """Copy the offsets of the old side to Kafka.

        If the bridge dies, a new member assigns every partition to the new side. Without this copy
        it would read partitions from the beginning, or skip messages, by `auto.offset.reset`.
        """
        if self._old_offsets is None:
            return
        (state, wanted), self._old_offsets = self._old_offsets, None
        instance = state.settings.instance
        try:
            is_done = not wanted or self._admin.raise_offsets(
                wanted, member=state.member, generation=state.generation, instance=instance
            )
        except FetchError as error:
            logger.warning("bridge: the old side's offsets are not copied to Kafka: %s", error)
            is_done = False
        if is_done:
            self._copied = {**self._copied, **wanted}
        # After a refusal, too: a server may lock a user who logs in too often.
        self._copy_at = time.monotonic() + MIRROR_S

    def _ask_for_metadata(self) -> None:
        try:
            found = self._brokers.metadata()
        except FetchError as error:
            logger.warning("bridge: %s", error)
            return
        self.post(lambda now: ev.MetadataChanged(now, found.brokers, found.topics))

    # ---- commands --------------------------------------------------------------------------------

    def _execute(self, command: ev.Command) -> None:
        match command:
            case ev.Send():
                self._brokers.send(command)
            case bridge.Return(number, partitions):
                if number in self._consumers:
                    self._consumers[number].stream.returned(partitions)
            case bridge.CommitToZooKeeper(number, offsets):
                self._commit(number, offsets)
            case bridge.RunConsumers(numbers):
                self._run_consumers(numbers)
            case bridge.RemoveMembers():
                threading.Thread(target=self._remove_members, daemon=True).start()
            case bridge.BridgeEnded(reason):
                logger.info("bridge of %s ends: %s", self.state.settings.group, reason)

    def _commit(self, number: int, offsets: Mapping[TopicPartition, int]) -> None:
        if number not in self._consumers:
            return  # it has been closed, and has lost its partitions
        thread = self._consumers[number].member.thread
        assert thread is not None  # it holds the partitions
        # An old member that has taken the partition away may have committed a higher offset.
        answer = thread.commit(CommitRequested(0, offsets, purpose=Purpose.EXPLICIT))
        answer.add_done_callback(lambda _: self.post(lambda now: bridge.CommitEnded(now, number)))

    def _run_consumers(self, numbers: frozenset[int]) -> None:
        for number in sorted(self._consumers.keys() - numbers):
            one = self._consumers.pop(number)
            assert one.member.thread is not None
            one.member.thread.leave(Purpose.LEAVE)
            self._closing.append(one)
        self._numbers, self._missing = numbers, numbers - self._consumers.keys()
        self._connect_thread.hurry()

    def _connect_missing(self) -> None:
        """Connect the consumers that should run; without ZooKeeper, try again later."""
        for number in sorted(self._missing):
            member = GroupMember(self._config(number))
            try:
                member.connect()
            except ZooKeeperUnreachableError as error:
                logger.warning("bridge: a consumer cannot join: %s", error)
                return
            self._connected.put((number, member))
            if self._has_ended:
                self._disconnect()

    def _start_connected(self) -> None:
        """Start the consumers that another thread has connected.

        This thread starts them, so that it knows a consumer before the consumer claims a partition.
        """
        with suppress(queue.Empty):
            while True:
                number, member = self._connected.get_nowait()
                if number in self._missing:
                    self._consumers[number] = self._started(number, member)
                    self._missing -= {number}
                else:  # it was connected twice, or is not needed any more
                    threading.Thread(target=member.stop, daemon=True).start()

    def _started(self, number: int, member: GroupMember) -> _Consumer:
        stream = BridgeStream(number, post=self.post, held=lambda: self.state.held)
        topics = dict.fromkeys(self.state.settings.topics, 1)
        settings = member.settings(Registration(topics), release=self.state.setup.profile)
        (thread,) = thread_ids(member.consumer_id, 1)
        sinks: PartitionSinks = {(None, thread): stream}
        member.start(settings, sinks)
        return _Consumer(member, stream)

    def _disconnect(self) -> None:
        """End the connections of the consumers that have not started."""
        with suppress(queue.Empty):
            while True:
                self._connected.get_nowait()[1].stop()

    def _remove_members(self) -> None:
        try:
            found = self._admin.describe()
            self._admin.remove([one for one in found.members if one != self.state.member])
        except FetchError as error:
            logger.warning("bridge: the members were not removed: %s", error)

    def _end(self) -> None:
        """Close every consumer, which commits its last offsets."""
        self._run_consumers(frozenset())
        self._has_ended = True
        self._disconnect()
        deadline = time.monotonic() + END_S
        for one in self._closing:
            assert one.member.thread is not None
            one.member.thread.wait_for_end(max(0.1, deadline - time.monotonic()))
        self._brokers.close()


class _Repeated(threading.Thread):
    """Does some work every `every_s` seconds; `failure` is the error that has ended the thread."""

    def __init__(self, name: str, work: Callable[[], None], every_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: ZkConsumerError | None = None
        self._work, self._every_s = work, every_s
        self._is_due, self._is_over = threading.Event(), threading.Event()

    def run(self) -> None:
        try:
            while not self._is_over.is_set():
                self._is_due.clear()
                self._work()
                self._is_due.wait(self._every_s)
        except ZkConsumerError as error:
            self.failure = error

    def hurry(self) -> None:
        """Let the thread work again at once; any thread may call it."""
        self._is_due.set()

    def stop(self) -> None:
        """Let the thread end after its present work."""
        self._is_over.set()
        self.hurry()


def _lock_kept(until: float) -> Callable[[float], ev.Event]:
    return lambda now: bridge.LockKept(now, until)


def _lease(number: int, deadline: float) -> Callable[[float], ev.Event]:
    return lambda now: bridge.LeaseChanged(now, number, deadline)


# ---- from the operator's settings ----------------------------------------------------------------


_membership = partial(
    ClientSettings,
    assignors=bridge.ASSIGNORS,
    heartbeat_s=HEARTBEAT_S,
    auto_commit_s=None,
    join_version=bridge.JOIN_VERSION,
)


def new_process(
    config: ConsumerConfig,
    connection: ZooKeeperClient,
    *,
    bootstrap: str | None,
    topics: tuple[str, ...],
    share: float | None,
    takes_lead: bool,
    session_s: float,
    consumers: int,
    stored: tuple[str, ...] = (),
) -> BridgeProcess:
    """Check the group, and return its bridge.

    Args:
        config: the settings of the old members, and of the connection to both sides.
        bootstrap: brokers to ask first; None: those that are registered in ZooKeeper.
        topics: the topics to share; empty: all topics of the old members, or `stored` if no old
            member is registered.
        session_s: the session timeout in the brokers' group, in seconds.
        consumers: the maximum number of consumers in ZooKeeper.
        stored: the topics that the process before this one has shared.

    Raises ConfigError or RefusedError if `preflight` finds a reason, and ZkConsumerError.
    """
    group = config.group_id
    preflight.check_topics(connection, topics)
    brokers = settings_of_brokers(config, connection, bootstrap)
    admin, instance = GroupAdmin(brokers, group), f"{group}-zkconsumer-bridge"
    notices = preflight.check_group(
        *(connection, admin, group, brokers),
        instance=instance,
        takes_lead=takes_lead,
        limit_s=config.zookeeper_connection_timeout_s,
    )
    is_static = admin.join_version() >= wire.STATIC_SINCE
    notices += [] if is_static else [preflight.LOSES_MEMBERSHIP]
    names, release = _consumer_names(consumers), _release(connection, config)
    setup = bridge.Settings(
        _membership(
            group,
            str(brokers["client.id"]),
            _shared_topics(connection, config, release, topics, stored),
            instance=instance if is_static else None,
            session_s=session_s,
        ),
        tuple(paths.consumer_id(group, name) for name in names),
        profile=release,
        share=share,
        takes_lead=takes_lead,
        mirror_s=MIRROR_S,
        lease_margin_s=connection.session_timeout_s * LEASE_MARGIN,
    )
    return BridgeProcess(
        setup,
        config=lambda number: _of_consumer(config, names[number]),
        zookeeper=connection,
        brokers=brokers,
        notices=notices,
    )


def when_brokers_answer(
    make: Callable[[], BridgeProcess], zookeeper: ZooKeeperClient, say: Callable[[str], None]
) -> BridgeProcess:
    """Return the bridge of a standby that has become active, as soon as the brokers answer.

    A broker may have failed together with the process before this one. If the standby ended, nobody
    would lead the group. Raises ZkConsumerError, also if the brokers refuse this client.
    """
    while True:
        try:
            return make()
        except BrokerAccessError:
            raise
        except (FetchError, ZooKeeperUnreachableError) as error:
            say(f"tries again in {RECONNECT_S:g} s: {error}")
            time.sleep(RECONNECT_S)
            if zookeeper.death is not None:
                zookeeper.recreate()


def _consumer_names(count: int) -> list[str]:
    """Return the `consumer.id` of each consumer in ZooKeeper."""
    place = f"{CONSUMER_PREFIX}{socket.gethostname()}-{os.getpid()}"
    return [f"{place}-{number}" for number in range(count)]


def _of_consumer(config: ConsumerConfig, name: str) -> ConsumerConfig:
    """Return the configuration of one of the bridge's consumers."""
    return replace(
        config,
        consumer_id=name,
        auto_commit_enable=True,
        auto_commit_interval_s=MIRROR_S,
        release_grace_s=GRACE_S,
        peers_nudge=True,
        offsets_storage="zookeeper",
    )


def settings_of_brokers(
    config: ConsumerConfig, connection: ZooKeeperClient, bootstrap: str | None
) -> BrokerSettings:
    """Return librdkafka's settings for the brokers' group; see `new_process`. Raises FetchError."""
    found = broker_settings(Brokers(registered_brokers(connection), config))
    found = {"client.id": "zkconsumer-bridge", **found}
    return found if bootstrap is None else {**found, "bootstrap.servers": bootstrap}


def _old_group(connection: ZooKeeperClient, config: ConsumerConfig) -> tuple[GroupInput, Owners]:
    """Return the input of the old group's assignment, and partition -> present owner."""
    return live_group(
        connection,
        config.group_id,
        strategy=Strategy(config.partition_assignment_strategy),
        exclude_internal=config.exclude_internal_topics,
    )


def _release(connection: ZooKeeperClient, config: ConsumerConfig) -> Profile:
    """Return the rules of `peers.release`; `auto` is detected once, for the plan and the consumers.

    Otherwise the consumers could follow other rules than the plan. A partition that only the plan
    takes away from them would return, and nobody would read it.
    """
    if config.peers_release != AUTO_RELEASE:
        return profile(config.peers_release)
    detected = detect(*_old_group(connection, config))
    reason = escaped_and_cut(detected.reason)
    logger.info("peers.release=auto: as %s (%s)", detected.profile.release, reason)
    return detected.profile


def _topics_of(group: GroupInput, release: Profile) -> frozenset[str]:
    """Return the topics that the members of a group subscribe to."""
    counts = stream_counts(group, release)
    return frozenset(topic for of_member in counts.values() for topic in of_member)


def _shared_topics(
    connection: ZooKeeperClient,
    config: ConsumerConfig,
    release: Profile,
    wanted: tuple[str, ...],
    stored: tuple[str, ...],
) -> tuple[str, ...]:
    """Return the topics to share: the wanted ones, or those of the old members.

    Raises RefusedError if there is none, or if the old members' round-robin refuses a member with
    other topics.
    """
    if not wanted:
        return _old_topics(connection, config, release, stored)
    view, _ = _old_group(connection, config)
    old = _topics_of(view, release)
    is_strict = release.variant is RoundRobinRule.IDENTICAL
    if view.strategy is Strategy.ROUND_ROBIN and is_strict and old and old != set(wanted):
        names = first_few(sorted(old), 5)
        raise RefusedError(
            "round-robin of Kafka 0.8.2 to 0.10.1 refuses every rebalance of a group whose members"
            f" subscribe to different topics; the old members subscribe to {names}",
            where=config.group_id,
            remedy="leave out --topic",
        )
    return wanted


def _old_topics(
    connection: ZooKeeperClient, config: ConsumerConfig, release: Profile, stored: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the topics that the old members subscribe to; without old members, the stored ones.

    Raises RefusedError if there is none.
    """
    view, _ = _old_group(connection, config)
    found = _topics_of(view, release) or view.topics.keys() & set(stored)
    if not found:
        raise RefusedError(
            "no old member is registered, so the topics are unknown",
            where=config.group_id,
            remedy="start the old members first, or name the topics with --topic",
        )
    return tuple(sorted(found))
