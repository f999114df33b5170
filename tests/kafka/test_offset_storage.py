"""The offset store without Kafka: every request gets a reply within its time limit."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

import pytest
from support.kafka.offsets import running, store_of

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import FetchError
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.kafka.offset_storage import KafkaOffsetStore, channel_settings
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.requests import Code, FetchOffsets, NotStored, OffsetRequest, StoreOffsets
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.ports import HOST, free_port

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
