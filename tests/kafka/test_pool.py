"""How streams affect each other if they share broker clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from support.kafka.streams import MemoryLog, NoWakeSignal, fetched, fetcher_of
from support.wait import LIMIT_S, eventually

from zkconsumer.errors import FetchError
from zkconsumer.kafka.fetcher import BUFFER_MESSAGES, Fetcher, FetchFault, FetchFaultKind
from zkconsumer.kafka.pool import FetcherPool, SharedFetcher
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.logs import MemoryFetcher

LIMIT = 300  # Maximum number of messages that wait for one stream.


@pytest.fixture
def log() -> MemoryLog:
    """A log of two partitions, with 5,000 messages in each."""
    one = MemoryLog("shared")
    for partition in (0, 1):
        one.append(partition, map(str, range(5000)))
    return one


@pytest.fixture
def made() -> list[MemoryFetcher]:
    """The clients that a pool has created so far."""
    return []


@pytest.fixture
def pool(log: MemoryLog, made: list[MemoryFetcher]) -> Iterator[FetcherPool]:
    """A pool of one client."""
    one = pool_of(lambda: made.append(fetcher_of(log)) or made[-1])
    yield one
    one.close()
    assert not one.join(LIMIT_S)


def pool_of(connect: Callable[[], Fetcher | None]) -> FetcherPool:
    return FetcherPool(connect=connect, clients=1, max_messages=LIMIT, max_bytes=1 << 20)


def read(fetcher: SharedFetcher, count: int) -> list[tuple[int, int]]:
    """Read at least `count` messages; return them by partition and offset."""
    found: list[tuple[int, int]] = []

    def enough() -> bool:
        while len(found) < count and (messages := fetched(fetcher, 50, 0.05)):
            found.extend((one.partition, one.offset) for one in messages)
        return len(found) >= count

    eventually(enough)
    return found


def test_a_slow_stream_delays_no_other_and_its_queue_is_bounded(
    pool: FetcherPool, log: MemoryLog
) -> None:
    """A slow stream has a bounded queue and resumes without a gap; other streams continue."""
    slow, fast = pool.fetcher(NoWakeSignal()), pool.fetcher(NoWakeSignal())
    slow.assign({log.tp(0): 0})
    fast.assign({log.tp(1): 0})
    assert read(fast, 5000) == [(1, offset) for offset in range(5000)]
    eventually(lambda: slow.queued > LIMIT)
    log.append(1, ["one more"])
    assert read(fast, 1) == [(1, 5000)]
    assert slow.queued <= LIMIT + BUFFER_MESSAGES
    assert read(slow, 5000) == [(0, offset) for offset in range(5000)]


def test_a_partition_moves_between_streams_before_the_first_unassigns_it(
    pool: FetcherPool, log: MemoryLog
) -> None:
    """A second stream reads from its offset without a gap, even before the first unassigns."""
    first, second = pool.fetcher(NoWakeSignal()), pool.fetcher(NoWakeSignal())
    first.assign({log.tp(0): 0})
    read(first, 1)
    second.assign({log.tp(0): 100})
    start = read(second, 50)
    first.unassign([log.tp(0)])
    rest = read(second, 4900 - len(start))
    assert start + rest == [(0, offset) for offset in range(100, 5000)]
    assert fetched(first, 50, 0.0) == []


def test_a_stream_that_assigns_too_late_takes_nothing_away(
    pool: FetcherPool, log: MemoryLog
) -> None:
    """If another stream assigns and unassigns a partition, its owner continues without a gap."""
    late, owner = pool.fetcher(NoWakeSignal()), pool.fetcher(NoWakeSignal())
    owner.assign({log.tp(0): 0})
    start = read(owner, 50)
    late.assign({log.tp(0): 0})
    read(late, 1)
    late.unassign([log.tp(0)])
    assert start + read(owner, 5000 - len(start)) == [(0, offset) for offset in range(5000)]


def test_a_client_that_is_lost_is_replaced_without_a_gap(
    pool: FetcherPool, log: MemoryLog, made: list[MemoryFetcher]
) -> None:
    """If a client is lost, a new client continues where the lost client stopped."""
    fetcher = pool.fetcher(NoWakeSignal())
    fetcher.assign({log.tp(0): 0})
    start = read(fetcher, 50)
    made[0].faults.append(FetchFault(FetchFaultKind.LOST, None, "all brokers have been down"))
    assert start + read(fetcher, 5000 - len(start)) == [(0, offset) for offset in range(5000)]
    eventually(lambda: len(made) == 2)
    assert not fetcher.faults


def test_each_stream_raises_why_no_client_can_be_made() -> None:
    """If no client can be created, each stream of the pool gets a fault with the reason."""

    def connect() -> Fetcher:
        raise FetchError("no broker has a PLAINTEXT endpoint", where="here", remedy="add one")

    with closing(pool_of(connect)) as pool:
        fetchers = [pool.fetcher(NoWakeSignal()) for _ in range(2)]
        for number, fetcher in enumerate(fetchers):
            fetcher.assign({TopicPartition("shared", number): 0})
        for fetcher in fetchers:
            eventually(lambda fetcher=fetcher: fetched(fetcher, 1, 0.05) or fetcher.faults)
            assert fetcher.faults[0].kind is FetchFaultKind.PERMANENT
            assert "PLAINTEXT" in fetcher.faults[0].text
    assert not pool.join(LIMIT_S)
