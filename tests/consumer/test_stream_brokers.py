"""Streams on brokers that die, lose leadership or are old; each test starts its brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from support.kafka.streams import KafkaLog, Reader
from support.wait import LIMIT_S, eventually

from zkconsumer.consumer.stream_fetcher import ReportKind
from zkconsumer.errors import SandboxError
from zkconsumer.kafka.fetcher import AutoOffsetReset
from zkconsumer.sandbox import Sandbox


def read_until(reader: Reader, seen: list[int], last: int) -> None:
    """Read partition 0 up to the offset `last`, and check that the offsets have no gap."""
    deadline = time.monotonic() + 3 * LIMIT_S
    while not seen or seen[-1] < last:
        assert time.monotonic() < deadline, f"stuck after {seen[-1:]}"
        seen += [one.offset for one in reader.stream.poll(timeout_s=0.2)]
    assert seen == list(range(last + 1))


def test_a_broker_that_restarts_costs_nothing_but_time(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """After a SIGKILL and a restart of the broker, the stream continues without a gap."""
    with Sandbox(tmp_path_factory.mktemp("restart"), tick_time_s=0.1) as sandbox:
        sandbox.create_topic("restart", partitions=1)
        log = KafkaLog("restart", sandbox)
        reader = Reader(log)
        log.append(0, map(str, range(100)))
        reader.grant(0, 0)
        seen: list[int] = []
        read_until(reader, seen, 99)
        sandbox.broker.kill()
        started = time.monotonic()

        def reported() -> bool:
            reader.stream.poll(timeout_s=0.1)
            return any(one.kind is ReportKind.FETCH_TROUBLE for one in reader.reports)

        eventually(reported)
        sandbox.broker.start()
        log.append(0, map(str, range(100)))
        read_until(reader, seen, 199)

        def begun_anew() -> bool:
            seen.extend(one.offset for one in reader.stream.poll(timeout_s=0.1))
            return any("all brokers have been down" in one.text for one in reader.reports)

        # librdkafka may never fetch from this broker again, even when the broker is back.
        eventually(begun_anew)
        log.append(0, map(str, range(100)))
        read_until(reader, seen, 299)
        # Several kinds of error occur, and each is reported at most every 5 s.
        assert len(reader.reports) <= 6 * (1 + (time.monotonic() - started) / 5)
        assert {one.kind for one in reader.reports} == {ReportKind.FETCH_TROUBLE}
        reader.stream.close()


def test_a_leader_that_dies_hands_over_to_the_other(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """When a partition leader is killed, the stream reads from the new leader without a gap."""
    overrides = {"offsets.topic.replication.factor": 1, "unclean.leader.election.enable": "false"}
    with Sandbox(
        tmp_path_factory.mktemp("leaders"), brokers=2, tick_time_s=0.1, overrides=overrides
    ) as sandbox:
        (placement,) = sandbox.create_topic("leaders", partitions=1, replicas=2)
        log = KafkaLog("leaders", sandbox)
        reader = Reader(log)
        log.append(0, map(str, range(100)))
        reader.grant(0, 0)
        seen: list[int] = []
        read_until(reader, seen, 99)
        sandbox.brokers[placement.leader].kill()
        deadline = time.monotonic() + 3 * LIMIT_S
        while True:
            try:
                log.append(0, ["after"])
                break
            except SandboxError:
                assert time.monotonic() < deadline
        read_until(reader, seen, 100)
        reader.stream.close()


@pytest.fixture(scope="module", params=["0.8.2.2", "0.9.0.1"])
def old(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Sandbox, int]]:
    """An old broker, and the version of its registration znode."""
    directory = tmp_path_factory.mktemp("old")
    with Sandbox(directory, release=request.param, tick_time_s=0.1) as sandbox:
        yield sandbox, {"0.8.2.2": 1, "0.9.0.1": 2}[request.param]


def test_old_brokers_are_read(old: tuple[Sandbox, int]) -> None:
    """On 0.8 and 0.9 messages arrive in order; a null value and a missing time are None."""
    sandbox, version = old
    sandbox.create_topic("old", partitions=2)
    log = KafkaLog("old", sandbox, version=version)
    log.append(0, map(str, range(500)))
    log.append_keyed(1, "k", None)
    reader = Reader(log)
    reader.grant(0, 0)
    assert list(reader.take(500)) == [(0, offset) for offset in range(500)]
    reader.grant(1, None)
    message = next(reader.stream)
    assert (message.key, message.value, message.timestamp) == (b"k", None, None)
    reader.stream.close()


@pytest.mark.parametrize(
    ("reset", "position"), [(AutoOffsetReset.SMALLEST, 0), (AutoOffsetReset.LARGEST, 30)]
)
@pytest.mark.parametrize("offset", [None, 1000])
def test_old_brokers_resolve_positions(
    old: tuple[Sandbox, int], reset: AutoOffsetReset, position: int, offset: int | None
) -> None:
    """Missing and out-of-range offsets are also resolved with the old protocol (ListOffsets v0)."""
    sandbox, version = old
    topic = f"reset-{reset.value}-{offset}"
    sandbox.create_topic(topic, partitions=1)
    log = KafkaLog(topic, sandbox, version=version)
    log.append(0, map(str, range(30)))
    reader = Reader(log, reset=reset)
    reader.grant(0, offset)

    def reset_reported() -> bool:
        reader.stream.poll(timeout_s=0.05)
        return bool(reader.news)

    eventually(reset_reported)
    assert [(one.kind, one.offset) for one in reader.news] == [
        (ReportKind.POSITION_RESET, position)
    ]
    reader.stream.close()
