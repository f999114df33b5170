"""Partitions are granted and revoked, and leases end, while a user reads."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from types import FrameType

import pytest
from support.kafka.streams import Log, Reader
from support.wait import LIMIT_S, eventually

from zkconsumer.consumer.stream_partitions import Grant
from zkconsumer.errors import ConsumerTimeoutError
from zkconsumer.kafka.fetcher import Fetcher


def read_on(reader: Reader, partition: int, until: int, start: int) -> None:
    """Read up to the offset `until` of a partition; its offsets must have no gap."""
    expected = start
    while expected < until:
        ((number, offset),) = reader.take(1)
        if number == partition:
            assert offset == expected
            expected += 1


# ---- withdrawn and granted again ----------------------------------------------------------------


def test_no_message_is_delivered_after_the_withdrawal(log: Log, reader: Reader) -> None:
    """Fetched messages of a revoked partition are dropped; the other partition has no gap."""
    reader.grant(0, 0)
    reader.grant(1, 0)
    seen = list(reader.take(20))
    reader.withdraw(0)
    start = sum(1 for number, _ in seen if number == 1)
    rest = list(reader.take(3000 - start))
    assert rest == [(1, offset) for offset in range(start, 3000)]
    assert reader.finished(0) is None


@pytest.mark.parametrize("again_at", [0, 5, 2500])
def test_a_partition_granted_again_starts_at_its_new_offset(
    log: Log, reader: Reader, again_at: int
) -> None:
    """A partition that is granted again starts at its new offset, under its new token."""
    first = reader.grant(0, 0)
    reader.grant(1, 0)
    while next(reader.stream).partition != 0:
        pass
    reader.withdraw(0)
    second = reader.grant(0, again_at)
    assert second > first
    expected = again_at
    while expected < 3000:
        message = next(reader.stream)
        if message.partition == 0:
            assert (message.offset, message.token) == (expected, second)
            expected += 1


def test_a_grant_replaces_the_one_before(log: Log, reader: Reader) -> None:
    """If a partition is granted twice, it is delivered only under the newer grant."""
    reader.grant(0, 0)
    list(reader.take(5))
    token = reader.grant(0, 100)
    message = next(reader.stream)
    assert (message.offset, message.token) == (100, token)


def test_many_changes_lose_and_repeat_nothing(log: Log, reader: Reader) -> None:
    """If partitions are revoked and granted at random, each message comes once, in order."""
    dice = random.Random(7)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    held = {0, 1, 2}
    for number in held:
        reader.grant(number, 0)
    while sum(map(len, seen.values())) < 9000:
        for _ in range(dice.randrange(1, 400)):
            if all(len(seen[one]) == 3000 for one in held):
                break
            if dice.random() < 0.5:
                for message in reader.stream.poll(max_messages=dice.randrange(1, 300)):
                    seen[message.partition].append(message.offset)
            else:
                message = next(reader.stream)
                seen[message.partition].append(message.offset)
        for number in range(3):
            if dice.random() < 0.3:
                reader.withdraw(number)
                held.discard(number)
            elif number not in held:
                reader.grant(number, len(seen[number]))
                held.add(number)
    assert seen == {number: list(range(3000)) for number in range(3)}


def test_revoking_unknown_partitions_does_nothing(log: Log, reader: Reader) -> None:
    """Partitions that the stream does not have may be revoked; they count as released at once."""
    reader.withdraw(7)
    done: list[int] = []
    reader.stream.ask_release([reader.tp(7)], lambda: done.append(1))
    assert done == [1]
    reader.grant(0, 2999)
    assert list(reader.take(1)) == [(0, 2999)]


# ---- the lease ----------------------------------------------------------------------------------


def test_a_shut_gate_stops_delivery_at_once(log: Log, reader: Reader) -> None:
    """A shut gate withholds the rest of a fetched buffer until the gate opens again."""
    reader.grant(0, 0)
    read_on(reader, 0, 10, 0)
    reader.gate.shut()
    assert len(reader.stream.poll(timeout_s=0.1)) == 0
    reader.gate.open(reader.gate.clock() + 3600)
    read_on(reader, 0, 3000, 10)


def test_a_lease_that_runs_out_stops_delivery_by_itself(log: Log, reader: Reader) -> None:
    """After the deadline of the lease no message is delivered; a renewal loses no message."""
    now = [100.0]
    reader.gate.clock = lambda: now[0]
    reader.gate.open(101.0)
    reader.grant(0, 0)
    read_on(reader, 0, 10, 0)
    now[0] = 101.0  # After the deadline no message is delivered, not even from a fetched buffer.
    got: list[int] = []
    user = threading.Thread(target=lambda: got.append(next(reader.stream).offset), daemon=True)
    user.start()
    eventually(lambda: got or reader.stream.is_asked)
    assert not got
    reader.gate.open(4000.0)
    user.join(LIMIT_S)
    assert got == [10]
    read_on(reader, 0, 3000, 11)


def test_partitions_change_while_the_gate_is_shut(log: Log, reader: Reader) -> None:
    """If a partition is revoked and granted while the gate is shut, no old message is delivered."""
    reader.grant(0, 0)
    read_on(reader, 0, 50, 0)
    reader.gate.shut()
    reader.withdraw(0)
    token = reader.grant(0, 20)
    reader.gate.open(reader.gate.clock() + 3600)
    message = next(reader.stream)
    assert (message.offset, message.token) == (20, token)


# ---- asked to release ---------------------------------------------------------------------------


def test_an_idle_user_delays_no_release(log: Log, reader: Reader) -> None:
    """Before the first message a release is answered at once, and nothing is delivered after it."""
    reader.grant(0, 0)
    done: list[int] = []
    reader.stream.ask_release([reader.tp(0)], lambda: done.append(1))
    assert done == [1]
    assert len(reader.stream.poll(timeout_s=0.2)) == 0
    assert reader.finished(0) == 0
    assert done == [1]


@pytest.mark.parametrize("hand", ["message", "batch"])
def test_a_release_waits_for_the_unfinished_message(log: Log, reader: Reader, hand: str) -> None:
    """A release is answered once, at the user's next request, and includes the message."""
    reader.grant(0, 0)
    reader.grant(1, 0)
    held = (
        reader.stream.poll(max_messages=40, timeout_s=LIMIT_S)
        if hand == "batch"
        else [next(reader.stream)]
    )
    (number,) = {one.partition for one in held}
    other = 1 - number
    done: list[int | None] = []
    reader.stream.ask_release([reader.tp(number)], lambda: done.append(reader.finished(number)))
    assert done == []
    assert reader.finished(number) == 0
    assert reader.delivered(number) == len(held)
    assert next(reader.stream).partition == other
    assert done == [len(held)]
    reader.withdraw(number)
    assert {one for one, _ in reader.take(500)} == {other}
    assert done == [len(held)]


def test_a_release_waits_for_a_message_of_the_former_grant(log: Log, reader: Reader) -> None:
    """If an edit moves a partition's offset, its release waits for the unfinished message."""
    epoch = reader.grant(0, 10)
    next(reader.stream)
    reader.withdraw(0)
    reader.stream.grant([Grant(reader.tp(0), 5, epoch, 1)])
    done: list[int] = []
    reader.stream.ask_release([reader.tp(0)], lambda: done.append(1))
    assert done == []
    reader.stream.poll(timeout_s=0)
    assert done == [1]


def test_a_former_owner_s_message_delays_no_release(log: Log, reader: Reader) -> None:
    """A partition that was lost and granted again is released without waiting for old messages."""
    reader.grant(0, 10)
    next(reader.stream)
    reader.withdraw(0)
    reader.grant(0, 5)
    done: list[int] = []
    reader.stream.ask_release([reader.tp(0)], lambda: done.append(1))
    assert done == [1]


def test_an_unfinished_message_delays_no_other_partition(log: Log, reader: Reader) -> None:
    """A release waits only for messages of the partitions that it releases."""
    reader.grant(0, 0)
    message = next(reader.stream)
    assert message.partition == 0
    reader.grant(1, 0)
    done: list[int] = []
    reader.stream.ask_release([reader.tp(1)], lambda: done.append(1))
    assert done == [1]


def test_the_next_request_finishes_the_message(log: Log, reader: Reader) -> None:
    """A user who requests the next message has finished all earlier messages."""
    reader.grant(0, 2999)
    list(reader.take(1))
    done: list[int] = []
    reader.stream.ask_release([reader.tp(0)], lambda: done.append(1))
    assert len(reader.stream.poll(timeout_s=0.0)) == 0
    assert done == [1]
    assert reader.finished(0) == 3000


def test_handing_over_under_load_is_exact(log: Log, reader: Reader) -> None:
    """Whenever partitions are released and granted, each message is delivered once."""
    # While the user's thread reads, the member's thread revokes every partition some hundred
    # times. Each new grant starts at the position that the release reported. If a message came
    # after the report, or the report came too early, offsets would be missing or repeated; if the
    # report were lost, the test would not end.
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    total = 9000
    finished = threading.Event()

    def use() -> None:
        try:
            while sum(map(len, seen.values())) < total:
                message = next(reader.stream)
                seen[message.partition].append(message.offset)
                if message.offset % 20 == 0:
                    time.sleep(0.0005)  # The interpreter switches threads even within a buffer.
        except ConsumerTimeoutError:
            pass
        finished.set()
        # From now on, only the user's next call finishes the message of this call.
        reader.stream.poll(timeout_s=0.0)

    for number in range(3):
        reader.grant(number, 0)
    user = threading.Thread(target=use, daemon=True)
    user.start()
    rounds = 0
    dice = random.Random(11)
    while not finished.is_set():
        number = rounds % 3
        # If a partition were moved before its first fetch returned, it would never be read.
        goal = min(total, sum(map(len, seen.values())) + dice.randrange(1, 100))
        eventually(lambda goal=goal: sum(map(len, seen.values())) >= goal)
        answered = threading.Event()
        reader.stream.ask_release([reader.tp(number)], answered.set)
        assert answered.wait(LIMIT_S)
        offset = reader.finished(number)
        reader.withdraw(number)
        reader.grant(number, offset)
        rounds += 1
    user.join(LIMIT_S)
    assert seen == {number: list(range(3000)) for number in range(3)}
    assert rounds > 10


# ---- positions ----------------------------------------------------------------------------------


def test_finished_and_delivered_differ_by_the_unfinished_message(log: Log, reader: Reader) -> None:
    """The next call finishes a message, and the next poll finishes the whole batch."""
    reader.grant(0, 10)
    assert (reader.finished(0), reader.delivered(0)) == (10, 10)
    next(reader.stream)
    assert (reader.finished(0), reader.delivered(0)) == (10, 11)
    next(reader.stream)
    assert (reader.finished(0), reader.delivered(0)) == (11, 12)
    batch = reader.stream.poll(max_messages=30)
    assert (reader.finished(0), reader.delivered(0)) == (12, 12 + len(batch))
    reader.stream.poll(max_messages=1)
    assert reader.finished(0) == 12 + len(batch)


def test_an_iteration_that_continues_finishes_a_polled_batch(log: Log, reader: Reader) -> None:
    """If a loop's body polls, the loop's next message finishes the polled batch."""
    for partition in range(3):
        reader.grant(partition, 2999)
    iterator = iter(reader.stream)
    first = next(iterator)
    (polled,) = reader.stream.poll(max_messages=1, timeout_s=LIMIT_S)
    last = next(iterator)
    assert {first.partition, polled.partition, last.partition} == {0, 1, 2}
    assert reader.finished(first.partition) == 3000
    assert reader.finished(polled.partition) == 3000
    assert reader.finished(last.partition) == 2999


def test_a_position_read_at_any_moment_is_never_too_high(log: Log, reader: Reader) -> None:
    """At any moment another thread reads a position that does not exceed the finished messages."""
    finished, reads = [0], [0]
    failures: list[tuple[int, int]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            reads[0] += 1
            position = reader.finished(0) or 0
            bound = finished[0]  # This count is read after `position`, so it is equal or higher.
            if position > bound:
                failures.append((position, bound))

    reader.grant(0, 0)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    for count in range(3000):
        finished[0] = count  # The next request finishes all messages delivered before it.
        assert next(reader.stream).offset == count
        if count % 100 == 0:  # Also switch to the other thread within a buffer.
            eventually(lambda before=reads[0]: reads[0] > before + 1)
    over.set()
    watcher.join(LIMIT_S)
    assert failures == []


class _Interrupt(BaseException):
    """The exception that the signal handler raises, instead of KeyboardInterrupt."""


def read_through_interrupts(reader: Reader, dice: random.Random) -> tuple[list[int], int]:
    """Read up to the last offset while signals interrupt; return the number of signals."""
    seen: list[int] = []
    interrupts = 0
    reading = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not reading:
            return  # A signal that was pending when the timer stopped must not restart the timer.
        # Raise only below the stream: a message that has left it belongs to the user. Do not raise
        # in a Consumer's constructor, which replaces exceptions by its own, or in Hypothesis's
        # garbage collection callback, which swallows them.
        inner = frame
        while inner is not None and inner.f_code.co_name not in ("__init__", "gc_callback"):
            if inner.f_code.co_filename.endswith("/consumer/stream.py"):
                raise _Interrupt
            inner = inner.f_back
        signal.setitimer(signal.ITIMER_REAL, 0.0002)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while not seen or seen[-1] < 2999:
            try:
                # The timer is started again only after this signal has been handled.
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.0001, 0.002))
                for message in reader.stream:
                    seen.append(message.offset)
                    if seen[-1] == 2999:
                        break
            except _Interrupt:
                interrupts += 1
                if interrupts > 100:  # On a slow machine, signals would arrive before any message.
                    break
    finally:
        reading = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return seen, interrupts


def test_an_interrupt_inside_the_stream_loses_nothing(log: Log) -> None:
    """If a signal raises an exception in this package's code, the next loop skips no message."""
    # The interrupted message may be redelivered, but no message is skipped.
    dice = random.Random(3)
    total = 0
    for _ in range(50):
        reader = Reader(log)
        reader.grant(0, 0)
        seen, interrupts = read_through_interrupts(reader, dice)
        while seen[-1:] != [2999]:
            seen.append(next(reader.stream).offset)
        reader.stream.close()
        assert seen[0] == 0
        assert max(after - one for one, after in itertools.pairwise(seen)) == 1
        total += interrupts
        if total >= 5:
            break
    assert total >= 5


def test_a_closed_stream_closes_its_broker_client_at_once(log: Log) -> None:
    """`close` closes the broker client, even while a user's thread waits in the stream."""
    closed: list[object] = []

    def connect() -> Fetcher:
        made = log.fetcher()
        real = made.close
        made.close = lambda: (real(), closed.append(made))[0]  # type: ignore[method-assign]  # notes it
        return made

    reader = Reader(log, connect=connect)
    user = threading.Thread(target=lambda: list(reader.stream), daemon=True)
    reader.grant(0, 2990)
    user.start()
    eventually(lambda: reader.delivered(0) == 3000)
    reader.stream.close()
    user.join(LIMIT_S)
    assert not user.is_alive()
    assert len(closed) == 1
