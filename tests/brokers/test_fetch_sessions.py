"""Fetch sessions on real brokers: idle partitions cost nothing, and lost sessions lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from support.kafka.streams import fetched, settings_for
from support.wait import LIMIT_S, eventually

from zkconsumer.kafka.client_settings import Settings
from zkconsumer.kafka.columns import requests
from zkconsumer.kafka.columns.connection import connect
from zkconsumer.kafka.columns.fetch_sessions import FetchSession, SessionRequest
from zkconsumer.kafka.columns.fetcher import SESSION_FROM, RecordFetcher
from zkconsumer.kafka.columns.lookups import addresses_of
from zkconsumer.kafka.columns.requests import FetchLimits
from zkconsumer.kafka.fetcher import FetchFault, FetchFaultKind
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox

pytestmark = pytest.mark.since("1.1.1")

# A response without a session has at least this many bytes for each partition.
ENTRY_BYTES = 30


class Idle:
    """A fetcher of a topic with as many empty partitions as a session needs."""

    def __init__(self, cluster: Sandbox, topic: str, settings: Settings) -> None:
        self.settings = {**settings_for(cluster.bootstrap), **settings}
        self.fetcher = RecordFetcher(self.settings)
        self.tps = [TopicPartition(topic, number) for number in range(SESSION_FROM)]
        self._cluster = cluster
        cluster.create_topic(topic, partitions=SESSION_FROM)

    def await_session(self) -> None:
        """Wait until the fetcher has sent a request in a session."""

        def is_used() -> bool:
            assert not self.fetcher.fetch(0.05)
            return any(one.epoch > 0 for one in self.fetcher.sessions.values())

        eventually(is_used)
        assert self.session.number != 0

    @property
    def session(self) -> FetchSession:
        """The session with the only broker; the broker is unknown before the first metadata."""
        (found,) = self.fetcher.sessions.values()
        return found

    def write(self, tp: TopicPartition, *values: str) -> None:
        self._cluster.produce(tp.topic, values, partition=tp.partition)

    def read(self, count: int) -> list[tuple[int, int, bytes]]:
        """Return partition, offset and value of the next messages."""
        found: list[tuple[int, int, bytes]] = []

        def read() -> bool:
            for one in fetched(self.fetcher, 100, 0.05):
                assert one.value is not None
                found.append((one.partition, one.offset, one.value))
            return len(found) >= count

        eventually(read)
        return found

    def troubles(self) -> list[FetchFault]:
        """Return the reported faults. The end of a log is none."""
        return [one for one in self.fetcher.faults if one.kind is not FetchFaultKind.END]


@pytest.fixture
def idle(cluster: Sandbox, unique: Callable[[str], str], stack: ExitStack) -> Idle:
    """A fetcher in a session; a broker without messages answers after a second."""
    one = Idle(cluster, unique("idle"), {"fetch.wait.max.ms": 1000})
    stack.callback(one.fetcher.close)
    one.fetcher.assign(dict.fromkeys(one.tps, 0))
    one.await_session()
    return one


def meddle(idle: Idle, *, ends: bool) -> None:
    """Send a request in the session of a fetcher, as no other client does. It ends the session, or
    increases its epoch, once the broker has received the fetcher's last request."""
    (address,) = addresses_of(idle.settings)
    other = connect(address, idle.settings, LIMIT_S)
    other.set_blocking(True)
    number, epoch = idle.session.number, idle.session.epoch
    version = other.versions[requests.FETCH]
    body = requests.fetch_request(
        version,
        FetchLimits(wait_ms=0, min_bytes=0, max_bytes=1),
        SessionRequest(number, -1 if ends else epoch + 1, []),
    )

    def is_accepted() -> bool:
        return not requests.fetched(version, other.ask(requests.FETCH, body, LIMIT_S)).error

    eventually(is_accepted)
    other.close()


def test_only_partitions_with_messages_are_in_a_response(idle: Idle) -> None:
    """In a session, a response contains the partition with a new message, and no other."""
    before = idle.fetcher.fetched_bytes
    idle.write(idle.tps[7], "a", "b")
    assert idle.read(2) == [(7, 0, b"a"), (7, 1, b"b")]
    assert 0 < idle.fetcher.fetched_bytes - before < SESSION_FROM * ENTRY_BYTES
    assert not idle.troubles()


@pytest.mark.parametrize("ends", [True, False])
def test_a_refused_session_is_replaced_and_nothing_is_lost(idle: Idle, ends: bool) -> None:
    """If the broker refuses a session, the fetcher begins another one, without a fault."""
    before = idle.session.number
    meddle(idle, ends=ends)
    idle.write(idle.tps[7], "a")
    assert idle.read(1) == [(7, 0, b"a")]
    idle.write(idle.tps[8], "b")
    assert idle.read(1) == [(8, 0, b"b")]
    idle.await_session()
    assert idle.session.number != before
    assert not idle.troubles()


def test_a_session_follows_the_assignment(idle: Idle) -> None:
    """Partitions leave a session, and come back at another offset or at the same one."""
    moved, same, gone = idle.tps[:3]
    for tp in (moved, same, gone):
        idle.write(tp, "a", "b")
    assert len(idle.read(6)) == 6
    idle.fetcher.unassign([moved, same, gone])
    idle.write(gone, "c")
    idle.fetcher.assign({moved: 1, same: 2})
    assert idle.read(1) == [(moved.partition, 1, b"b")]
    eventually(lambda: idle.fetcher.fetch(0.05) or idle.fetcher.ends([same]))
    assert idle.fetcher.ends([moved, same, gone]) == {moved: 2, same: 2}
    idle.write(same, "c")
    assert idle.read(1) == [(same.partition, 2, b"c")]


def test_an_offset_outside_the_log_is_a_fault_in_a_session(idle: Idle) -> None:
    """OFFSET_OUT_OF_RANGE is a fault of one partition, and again after the same assignment."""
    tp = idle.tps[3]
    for _ in range(2):
        idle.fetcher.unassign([tp])
        idle.fetcher.assign({tp: 50})
        idle.write(idle.tps[4], "a")  # ends the wait of the request in flight
        idle.read(1)
        eventually(lambda: idle.fetcher.fetch(0.05) or idle.troubles())
        fault = idle.troubles()[0]
        idle.fetcher.faults.clear()
        assert (fault.kind, fault.tp) == (FetchFaultKind.OUT_OF_RANGE, tp)


def test_a_restarted_broker_gets_another_session(idle: Idle, cluster: Sandbox) -> None:
    """After a restart of the broker, a new session continues at the same offsets."""
    idle.write(idle.tps[5], "a")
    assert idle.read(1) == [(5, 0, b"a")]
    cluster.broker.stop()
    cluster.broker.start()
    idle.write(idle.tps[5], "b")
    idle.write(idle.tps[6], "c")
    assert sorted(idle.read(2)) == [(5, 1, b"b"), (6, 0, b"c")]
    idle.await_session()
    assert {one.kind for one in idle.troubles()} <= {FetchFaultKind.RETRIED}
