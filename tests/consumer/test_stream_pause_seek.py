"""Pause, resume and seek as the user's thread sees them."""

from __future__ import annotations

import random
import threading

import pytest
from support.kafka.streams import Log, Reader
from support.wait import LIMIT_S, eventually

from zkconsumer.consumer.stream_fetcher import ReportKind
from zkconsumer.kafka.fetcher import AutoOffsetReset

# ---- pausing ------------------------------------------------------------------------------------


def test_a_paused_partition_resumes_without_a_gap(log: Log, reader: Reader) -> None:
    """A pause takes effect within a fetched buffer; after `resume` the next message follows."""
    reader.grant(0, 0)
    reader.grant(1, 0)
    seen = [0, 0]
    while not all(seen):
        ((number, offset),) = reader.take(1)
        assert offset == seen[number]
        seen[number] += 1
    reader.stream.pause([reader.tp(0)])
    assert reader.stream.paused == {reader.tp(0)}
    assert list(reader.take(3000 - seen[1])) == [(1, at) for at in range(seen[1], 3000)]
    assert len(reader.stream.poll(timeout_s=0.1)) == 0
    assert "paused" in reader.stream.waiting_for
    assert reader.delivered(0) == seen[0]
    reader.stream.resume([reader.tp(0)])
    assert list(reader.take(3000 - seen[0])) == [(0, at) for at in range(seen[0], 3000)]
    assert not reader.stream.paused


def test_resume_wakes_a_waiting_user(log: Log, reader: Reader) -> None:
    """`resume` wakes a user's thread that waits for a paused partition."""
    reader.grant(0, 0)
    reader.stream.pause([reader.tp(0)])
    got: list[int] = []
    user = threading.Thread(target=lambda: got.append(next(reader.stream).offset), daemon=True)
    user.start()
    eventually(lambda: reader.stream.is_asked)
    assert not got
    reader.stream.resume([reader.tp(0)])
    user.join(LIMIT_S)
    assert got == [0]


def test_a_pause_ends_with_the_ownership(log: Log, reader: Reader) -> None:
    """A pause ends with its epoch or session; a partition that is not served is not paused."""
    token = reader.grant(0, 0)
    reader.stream.pause([reader.tp(0)])
    reader.withdraw(0)
    assert not reader.stream.paused
    reader.epoch = token - 1
    assert reader.grant(0, 5) == token
    assert len(reader.stream.poll(timeout_s=0.1)) == 0
    assert reader.stream.paused == {reader.tp(0)}
    reader.stream.ask_release([reader.tp(0)], lambda: None)
    assert not reader.stream.paused
    reader.withdraw(0)
    reader.grant(0, 7)
    assert not reader.stream.paused
    reader.stream.pause([reader.tp(0)])
    reader.withdraw(0)
    reader.epoch, reader.session = reader.epoch - 1, reader.session + 1
    reader.grant(0, 7)
    assert not reader.stream.paused
    assert list(reader.take(1)) == [(0, 7)]


def test_a_partition_paused_without_an_offset_gets_it_on_resume(log: Log) -> None:
    """If a partition is paused before its position is known, `resume` provides the position."""
    reader = Reader(log, reset=AutoOffsetReset.LARGEST)
    reader.grant(0, None)
    reader.stream.pause([reader.tp(0)])
    assert len(reader.stream.poll(timeout_s=0.1)) == 0
    assert reader.delivered(0) is None
    log.append(0, ["more"])
    reader.stream.resume([reader.tp(0)])

    def known() -> bool:
        reader.stream.poll(timeout_s=0.05)
        return reader.delivered(0) is not None

    eventually(known)
    assert reader.delivered(0) == 3001
    reader.stream.close()


def test_a_paused_partition_is_released_like_any_other(log: Log, reader: Reader) -> None:
    """The release of a paused partition waits for its unfinished message."""
    reader.grant(0, 0)
    assert list(reader.take(3)) == [(0, 0), (0, 1), (0, 2)]
    reader.stream.pause([reader.tp(0)])
    done: list[int | None] = []
    reader.stream.ask_release([reader.tp(0)], lambda: done.append(reader.finished(0)))
    assert done == []
    assert not reader.stream.serves(reader.tp(0))
    assert len(reader.stream.poll(timeout_s=0.05)) == 0
    assert done == [3]


# ---- seeking ------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0, 7, 12, 1500])
@pytest.mark.parametrize("way", ["iterate", "poll"])
def test_after_a_seek_the_next_message_is_the_one_sought(
    log: Log, reader: Reader, target: int, way: str
) -> None:
    """After a seek no message of the old position is delivered, and the token stays the same."""
    token = reader.grant(0, 0)
    reader.grant(1, 0)
    while next(reader.stream).partition != 0 or (reader.delivered(0) or 0) < 10:
        pass
    before = reader.delivered(1) or 0
    assert reader.stream.seek(reader.tp(0), target)
    assert reader.delivered(0) == target
    seen: list[list[int]] = [[], []]
    while len(seen[0]) < 3000 - target or len(seen[1]) < 3000 - before:
        for message in [next(reader.stream)] if way == "iterate" else reader.stream.poll():
            seen[message.partition].append(message.offset)
            assert message.partition == 1 or message.token == token
    assert seen == [list(range(target, 3000)), list(range(before, 3000))]
    assert [(one.kind, one.tp, one.epoch, one.offset) for one in reader.news] == [
        (ReportKind.SOUGHT, reader.tp(0), token, target)
    ]


def test_a_seek_does_not_finish_the_unfinished_message(log: Log, reader: Reader) -> None:
    """A seek does not finish the current message; until the next call a release waits for it."""
    reader.grant(0, 0)
    assert list(reader.take(4))[-1] == (0, 3)
    assert reader.stream.seek(reader.tp(0), 1000)
    assert (reader.finished(0), reader.delivered(0)) == (3, 1000)
    done: list[int | None] = []
    reader.stream.ask_release([reader.tp(0)], lambda: done.append(reader.finished(0)))
    assert done == []
    assert len(reader.stream.poll(timeout_s=0.0)) == 0
    assert done == [1000]


def test_the_position_that_a_seek_leaves_is_never_seen_after_its_report(log: Log) -> None:
    """While a seek is being reported, the stream has no position; then it has the new one."""
    found: list[int | None] = []
    reader = Reader(log, report=lambda _: found.append(reader.delivered(0)))
    reader.grant(0, 0)
    assert list(reader.take(3))[-1] == (0, 2)
    found.clear()
    assert reader.stream.seek(reader.tp(0), 1)
    assert found == [None]
    assert reader.delivered(0) == 1
    reader.stream.close()


def test_a_partition_that_is_not_served_cannot_be_sought(log: Log, reader: Reader) -> None:
    """Seeking a partition that is not delivered returns False, and changes nothing."""
    assert not reader.stream.seek(reader.tp(0), 5)
    reader.grant(0, 0)
    reader.grant(1, 0)
    reader.withdraw(0)
    assert not reader.stream.seek(reader.tp(0), 5)
    reader.stream.ask_release([reader.tp(1)], lambda: None)
    assert not reader.stream.seek(reader.tp(1), 5)
    assert reader.finished(1) == 0
    assert not reader.news


def test_an_offset_sought_beyond_the_log_is_reset_by_policy(log: Log, reader: Reader) -> None:
    """`auto.offset.reset` replaces and reports a position that was sought outside the log."""
    reader.grant(0, 0)
    reader.stream.seek(reader.tp(0), 99_999)
    assert list(reader.take(1)) == [(0, 0)]
    assert [one.kind for one in reader.news] == [ReportKind.SOUGHT, ReportKind.POSITION_RESET]


def test_a_paused_partition_can_be_sought(log: Log, reader: Reader) -> None:
    """A paused partition stays paused after a seek; on `resume` it continues at the new offset."""
    reader.grant(0, 0)
    reader.stream.pause([reader.tp(0)])
    reader.stream.seek(reader.tp(0), 42)
    assert len(reader.stream.poll(timeout_s=0.1)) == 0
    reader.stream.resume([reader.tp(0)])
    assert list(reader.take(2)) == [(0, 42), (0, 43)]


def test_seeking_and_pausing_under_load_keep_every_partition_in_order(
    log: Log, reader: Reader
) -> None:
    """Whenever another thread seeks, the messages continue in order from the sought offset."""
    reader.grant(0, 0)
    reader.grant(1, 0)
    runs: list[list[int]] = [[], []]
    over = threading.Event()

    def use() -> None:
        while not over.is_set():
            for message in reader.stream.poll(max_messages=50, timeout_s=0.05):
                runs[message.partition].append(message.offset)

    user = threading.Thread(target=use, daemon=True)
    user.start()
    dice = random.Random(5)
    sought: list[set[int]] = [{0}, {0}]
    try:
        for _ in range(150):
            number = dice.randrange(2)
            so_far = len(runs[number])
            if dice.random() < 0.3:
                reader.stream.pause([reader.tp(number)])
                reader.stream.resume([reader.tp(number)])
            else:
                target = dice.randrange(1990)
                sought[number].add(target)
                assert reader.stream.seek(reader.tp(number), target)
                eventually(lambda n=number, c=so_far, at=target: at in runs[n][c:])
    finally:
        over.set()
        user.join(LIMIT_S)
    for number in range(2):
        starts = {runs[number][0]} | {
            after
            for before, after in zip(runs[number], runs[number][1:], strict=False)
            if after != before + 1
        }
        assert starts <= sought[number]
