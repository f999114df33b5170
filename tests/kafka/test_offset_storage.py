"""The offset store without Kafka: every request gets a reply within its time limit."""

from __future__ import annotations

import pickle
import queue
import random
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.kafka.offsets import commit_as_another_client, coordinator_of, running, store_of
from support.wait import LIMIT_S as PATIENT_S

from zkconsumer import ConsumerConnector
from zkconsumer.admin.groups import registered_brokers
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import FetchError
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.kafka.columns.lookups import time_shares
from zkconsumer.kafka.logs import committed_in_kafka
from zkconsumer.kafka.offset_storage import KafkaOffsetStore, channel_settings
from zkconsumer.protocol.model import OFFSETS_TOPIC, OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.requests import (
    Code,
    FetchOffsets,
    NotStored,
    OffsetRequest,
    Reply,
    StoreOffsets,
)
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.ports import HOST, free_port
from zkconsumer.sandbox.topics import client_settings
from zkconsumer.testing import FakeCluster
from zkconsumer.testing import messages as ms
from zkconsumer.testing.messages import (
    MetadataResponse,
    OffsetCommitResponsePartition,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
)
from zkconsumer.zk.client import ZooKeeperClient

TP = TopicPartition("t", 0)
FETCH, STORE = FetchOffsets((TP,)), StoreOffsets({TP: OffsetAndMetadata(5)})
LIMIT_S = 0.5
# The reason of a fetch; librdkafka, which commits, waits until the limit and does not know it.
REFUSED = "Connection refused"
# Seconds by which a request may exceed its limit on a busy machine.
GENEROUS_S = 20.0


def nobody() -> Settings:
    """An address at which no server listens."""
    config = ConsumerConfig(
        group_id="g", zookeeper_connect="h:1", offsets_channel_socket_timeout_s=LIMIT_S
    )
    return {**channel_settings(config), "bootstrap.servers": f"{HOST}:{free_port()}"}


def only_tls() -> Settings:
    raise FetchError("no PLAINTEXT endpoint")


@pytest.mark.parametrize(
    ("connect", "reason"),
    [(nobody, REFUSED), (lambda: None, "no broker"), (only_tls, "PLAINTEXT")],
)
def test_without_kafka_every_request_is_answered_in_time(
    connect: Callable[[], Settings | None], reason: str
) -> None:
    """Fetch and commit return a reason within the time limit, and both may be retried."""
    with running(KafkaOffsetStore("g", connect=connect, limit_s=LIMIT_S)) as ask:
        begun = time.monotonic()
        told = ask(FETCH)
        assert told.code is Code.OTHER
        assert reason in told.value
        denied, unavailable = ask(STORE).value
        assert not denied
        assert (reason if reason != REFUSED else "Timed out") in unavailable[TP]
        assert time.monotonic() - begun < GENEROUS_S


def test_requests_are_answered_in_order_also_those_before_the_end() -> None:
    """Requests that were submitted before `stop` get their replies in order."""
    store = KafkaOffsetStore("g", connect=lambda: None, limit_s=LIMIT_S)
    replies: queue.SimpleQueue[OffsetRequest] = queue.SimpleQueue()
    asked: list[OffsetRequest] = [FETCH, STORE, FETCH]
    for request in asked:
        # mypy cannot infer the type of a lambda with a default.
        store.submit(request, lambda _, request=request: replies.put(request))  # type: ignore[misc]
    store.start()
    store.stop()
    store.join(GENEROUS_S)
    assert [replies.get_nowait() for _ in asked] == asked


def test_an_unforeseen_error_is_an_answer() -> None:
    """An unexpected error becomes a reply, and the next request is executed."""

    def broken() -> Settings:
        raise RuntimeError("a bug")

    with running(KafkaOffsetStore("g", connect=broken, limit_s=LIMIT_S)) as ask:
        for _ in range(2):
            assert "a bug" in ask(FETCH).value


def test_stored_offsets_are_returned(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """Stored offsets are returned with metadata; missing offsets and unknown topics are absent."""
    topic = unique("t")
    sandbox.create_topic(topic, partitions=3)
    tps = [TopicPartition(topic, number) for number in range(3)]
    wanted = {tps[0]: OffsetAndMetadata(0), tps[1]: OffsetAndMetadata(2**62, "näh")}
    with store_of(sandbox.zookeeper_connect, unique("g")) as ask:
        assert ask(FetchOffsets(tuple(tps))).value == {}
        assert ask(StoreOffsets(wanted)).value == NotStored({}, {})
        unknown = TopicPartition(unique("nowhere"), 0)
        assert ask(FetchOffsets((*tps, unknown))).value == wanted
        denied, unavailable = ask(StoreOffsets({**wanted, unknown: OffsetAndMetadata(1)})).value
        assert (denied.keys(), unavailable) == ({unknown}, {})
        assert "no longer exists" in denied[unknown]


OFFSET = OffsetAndMetadata(7)


@pytest.fixture
def secretive(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Brokers that leave the topic of the groups' offsets out of their metadata, as for a client
    that may not describe it; the group `g` has an offset."""

    def shown(*, topics: Iterable[ms.MetadataResponseTopic], **more: Any) -> MetadataResponse:
        shown = [one for one in topics if one.name != OFFSETS_TOPIC]
        return MetadataResponse(topics=shown, **more)

    with FakeCluster(release="0.10.2.2", auto_create_topics=False) as cluster:
        cluster.create_topic(TP.topic)
        cluster.produce(TP.topic, 10)
        commit_as_another_client(cluster.bootstrap, "g", TP, OFFSET.offset, b"")
        monkeypatch.setattr(ms, "MetadataResponse", shown)
        yield cluster


# On a PLAINTEXT listener the property has no effect, but only librdkafka honours it.
ONLY_LIBRDKAFKA = {"ssl.curves.list": "P-256"}


@pytest.mark.parametrize("more", [{}, ONLY_LIBRDKAFKA], ids=["own", "librdkafka"])
def test_zookeeper_decides_about_a_topic_of_offsets_that_brokers_hide(
    secretive: FakeCluster, more: Settings
) -> None:
    """Without the topic in the metadata, an offset is absent only if ZooKeeper lacks it, too."""

    def fetched(has_offsets_topic: bool | None) -> Reply:
        settings = {**client_settings(secretive.zookeeper_connect), **more, "group.id": "g"}
        store = KafkaOffsetStore(
            "g",
            connect=lambda: settings,
            has_offsets_topic=lambda: has_offsets_topic,
            limit_s=PATIENT_S,
        )
        with running(store) as ask:
            return ask(FETCH)

    assert fetched(True) == Reply(Code.OK, {TP: OFFSET})
    assert fetched(False) == Reply(Code.OK, {})
    unknown = fetched(None)
    assert unknown.code is Code.OTHER
    assert f"unknown whether the topic {OFFSETS_TOPIC} exists" in unknown.value


def test_members_and_tools_read_from_zookeeper_whether_the_topic_exists(
    secretive: FakeCluster,
) -> None:
    """A member and a tool find the group's offset on brokers that hide the topic."""
    config = ConsumerConfig(
        group_id="g", zookeeper_connect=secretive.zookeeper_connect, offsets_storage="kafka"
    )
    with ZooKeeperClient(config) as connection:
        brokers = registered_brokers(connection)
    assert pickle.loads(pickle.dumps(brokers)).has_offsets_topic
    assert committed_in_kafka(brokers, "g", [TP], limit_s=PATIENT_S) == {TP: OFFSET}
    with ConsumerConnector(config) as connector:
        (stream,) = connector.create_message_streams({TP.topic: 1})[TP.topic]
        assert connector.committed([TP]) == {TP: OFFSET}
        assert stream.poll(timeout_s=PATIENT_S)[0].offset == OFFSET.offset


def test_a_partition_that_an_answer_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator whose answer lacks a partition does not say that there is no offset."""

    def empty(**more: Any) -> OffsetFetchResponse:
        return OffsetFetchResponse(**{**more, "topics": []})

    monkeypatch.setattr(ms, "OffsetFetchResponse", empty)
    with FakeCluster() as cluster:
        cluster.create_topic(TP.topic)
        coordinator_of(cluster.bootstrap, "g")  # creates the topic of the offsets
        with store_of(cluster.zookeeper_connect, "g") as ask:
            reply = ask(FETCH)
    assert (reply.code, "left the partition out" in reply.value) == (Code.OTHER, True)


def test_each_of_many_brokers_has_a_second() -> None:
    """With many brokers, a share of the time limit is still enough for TLS and a login."""
    addresses = [("b", port) for port in range(100)]
    _, share = next(time_shares(addresses, time.monotonic() + 10))
    assert share == 1.0


def test_silent_brokers_do_not_multiply_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up of the coordinator and the fetch together take at most the time limit."""
    limit_s = 2.0
    # The silent brokers are asked first.
    monkeypatch.setattr(random, "sample", lambda addresses, _: list(addresses))
    with ExitStack() as stack:
        cluster = stack.enter_context(FakeCluster())
        cluster.create_topic(TP.topic)
        commit_as_another_client(cluster.bootstrap, "g", TP, OFFSET.offset, b"")
        silent = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(2)]
        servers = [f"{HOST}:{one.getsockname()[1]}" for one in silent]
        settings = {"bootstrap.servers": ",".join([*servers, cluster.bootstrap]), "group.id": "g"}
        store = KafkaOffsetStore("g", connect=lambda: settings, limit_s=limit_s)
        ask = stack.enter_context(running(store))
        begun = time.monotonic()
        assert ask(FETCH) == Reply(Code.OK, {TP: OFFSET})
        assert time.monotonic() - begun < 2 * limit_s


def test_a_denied_commit_is_no_temporary_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that the brokers deny is denied with its cause, even if the fetch is denied, too."""

    def denied(**more: Any) -> OffsetCommitResponsePartition:
        return OffsetCommitResponsePartition(**{**more, "error_code": 30})

    def hidden(**more: Any) -> OffsetFetchResponsePartition:
        return OffsetFetchResponsePartition(**{**more, "error_code": 30})

    monkeypatch.setattr(ms, "OffsetCommitResponsePartition", denied)
    monkeypatch.setattr(ms, "OffsetFetchResponsePartition", hidden)
    with FakeCluster() as cluster:
        cluster.create_topic(TP.topic)
        with store_of(cluster.zookeeper_connect, "g") as ask:
            reply = ask(STORE).value
    assert (reply.denied.keys(), reply.unavailable) == ({TP}, {})
    assert "access control" in reply.denied[TP]
