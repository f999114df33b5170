"""Notices are logged; a repeated notice is logged again only after some time."""

from __future__ import annotations

import logging
import queue
from collections import Counter
from collections.abc import ItemsView, Iterator, ValuesView
from types import SimpleNamespace
from typing import Any

import pytest
from support.logged import logged
from support.members.machine import ME, Member, view

from zkconsumer.consumer.executor import Executor
from zkconsumer.consumer.loop import Key, MemberLoop
from zkconsumer.consumer.member_thread import Inbox
from zkconsumer.consumer.metrics import MemberCounters
from zkconsumer.consumer.status import LOG_AGAIN_S, TROUBLE_S, NoticeLog, TroubleLog, error_for
from zkconsumer.consumer.stream_fetcher import ReportKind, StreamReport
from zkconsumer.member import events as ev
from zkconsumer.member.commands import Notice, NoticeKind
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import replace
from zkconsumer.member.unreadable import REPORT_S
from zkconsumer.protocol.model import Position, StoredOffset, TopicPartition
from zkconsumer.safe_logger import SafeLogger

LOGGER = logging.getLogger("test_notices")


class LoggedNotices:
    """A notice log whose clock the test sets."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 5.0
        self._caplog = caplog
        self._log = NoticeLog(LOGGER, "g_a", lambda: self.now)

    def write(self, kind: NoticeKind, where: str, text: str = "why") -> list[str]:
        """Write a notice; return its log lines."""
        self._caplog.clear()
        notice = Notice(kind, where, text)
        self._log.write(notice, error_for(notice))
        return logged(self._caplog, LOGGER.name)


@pytest.fixture
def notices(caplog: pytest.LogCaptureFixture) -> LoggedNotices:
    """A log of all levels."""
    caplog.set_level(logging.DEBUG, LOGGER.name)
    return LoggedNotices(caplog)


@pytest.mark.parametrize(
    "kind", [NoticeKind.COMMIT_RETRIED, NoticeKind.OFFSETS_UNAVAILABLE, NoticeKind.DENIED]
)
def test_repeated_notices_are_logged_rarely(notices: LoggedNotices, kind: NoticeKind) -> None:
    """A new notice is logged at once; the next line counts the repetitions."""
    assert len(notices.write(kind, "t-0", "5 tries left")) == 1
    for left in range(9):
        notices.now += 1
        assert notices.write(kind, "t-0", f"{left} tries left") == []
    assert len(notices.write(kind, "t-1")) == 1  # This notice names a different subject.
    notices.now = 5.0 + LOG_AGAIN_S
    (line,) = notices.write(kind, "t-0")
    assert "and 9 more since" in line
    assert notices.write(kind, "t-0") == []


def test_single_events_are_logged_each_time(notices: LoggedNotices) -> None:
    """If an operator edits twice, both edits are logged."""
    assert notices.write(NoticeKind.OFFSET_EDITED, "t-0")
    assert notices.write(NoticeKind.OFFSET_EDITED, "t-0")


def test_failures_of_one_kind_are_one_line_in_five_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each failure is counted; the first is logged at once, the others after five seconds."""
    now = [100.0]
    log = TroubleLog(SafeLogger(LOGGER), lambda: now[0])

    def fail(kind: ReportKind, times: int) -> list[str]:
        caplog.clear()
        for number in range(times):
            log.add(StreamReport(kind, "g_a-0", f"failure {number}"))
        return logged(caplog, LOGGER.name)

    (line,) = fail(ReportKind.DECODE_FAILED, 1000)
    assert "failure 0" in line
    assert len(fail(ReportKind.FETCH_TROUBLE, 10)) == 1
    now[0] += TROUBLE_S
    (line,) = fail(ReportKind.DECODE_FAILED, 1000)
    assert "and 999 more" in line
    assert log.counts == {"decode_failed": 2000, "fetch_trouble": 10}


def test_an_urgent_item_overtakes_the_queue() -> None:
    """The inbox returns an urgent item first, and the other items in their order of arrival."""
    inbox = Inbox(lambda item: item == "lease")
    for number in range(3):
        inbox.put(number)
    inbox.put("lease")
    inbox.put(3)
    assert [inbox.get() for _ in range(5)] == ["lease", 0, 1, 2, 3]
    with pytest.raises(queue.Empty):
        inbox.get_nowait()


# ---- the work for thousands of notices ----------------------------------------------------------


class Hashed(str):
    """A partition name that counts how often it is hashed."""

    count = 0

    def __hash__(self) -> int:
        Hashed.count += 1
        return super().__hash__()

    __eq__ = str.__eq__


class Walked(dict[TopicPartition, Any]):
    """A mapping that counts how many of its entries are read."""

    visited = 0

    def items(self) -> ItemsView[TopicPartition, Any]:
        self.visited += len(self)
        return super().items()

    def values(self) -> ValuesView[Any]:
        self.visited += len(self)
        return super().values()

    def __iter__(self) -> Iterator[TopicPartition]:
        self.visited += len(self)
        return super().__iter__()


class Streams(dict[Key, Any]):
    """Streams by key, with the errors of each; counts the iterations over all streams."""

    def __init__(self, count: int) -> None:
        self.walks = 0
        self.notices: Counter[int] = Counter()
        numbers = range(count)
        super().__init__({("t", f"{ME}-{number}"): self._stream(number) for number in numbers})

    def _stream(self, number: int) -> Any:
        def fail(error: Exception) -> None:
            self.notices[number] += 1

        nothing = lambda *_: None  # noqa: E731  # a value for several attributes
        return SimpleNamespace(
            fail=fail, explain=nothing, withdraw=nothing, ask_release=nothing, grant=nothing
        )

    def __iter__(self) -> Iterator[Key]:
        self.walks += 1
        return super().__iter__()


MANY = 500


def test_logging_many_notices_is_linear(caplog: pytest.LogCaptureFixture) -> None:
    """Logging the refusals of 500 partitions needs only a few look-ups for each notice."""
    caplog.set_level(logging.ERROR, LOGGER.name)
    now, Hashed.count = [5.0], 0
    log = NoticeLog(SafeLogger(LOGGER), "g_a", lambda: now[0])
    for back_off in range(3):
        now[0] += back_off * LOG_AGAIN_S / 2
        for number in range(MANY):
            notice = Notice(NoticeKind.DENIED, Hashed(f"t-{number}"), "no rights")
            log.write(notice, error_for(notice))
    assert len(logged(caplog, LOGGER.name)) == 2 * MANY
    assert Hashed.count <= 10 * 3 * MANY


def refusing_member() -> Member:
    """A member in RELEASING, with 500 partitions that it must release."""
    member = Member()
    member.settle(view(topics={"t": MANY}))
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    while member.state.phase is not Phase.RELEASING or member.state.op is None:
        member.go_on(view(["g_other"], {"t": MANY}))
    assert len(member.state.revoking) == MANY
    return member


def loop_of(member: Member, streams: Streams) -> MemberLoop:
    """The loop of a member whose ZooKeeper requests get no reply."""
    session = SimpleNamespace(is_over=lambda _: False, submit=lambda *_: None)
    ignore = lambda *_: None  # noqa: E731  # a value for several attributes
    host: Any = SimpleNamespace(
        clock=lambda: member.now, wall_ms=lambda: 1, post=ignore, observe=ignore, noticed=ignore
    )
    gate = SimpleNamespace(open=ignore, shut=ignore)
    executor: Any = Executor(
        session,
        member.state.settings,
        post=ignore,
        clock=host.clock,
    )
    loop = MemberLoop(
        member.state.settings,
        host=host,
        gate=gate,
        executor=executor,
        streams=streams,
    )
    loop.state = member.state
    return loop


def test_reporting_many_refusals_is_linear() -> None:
    """Reporting 500 refused releases iterates over the partitions a few times, not 500 times."""
    member, streams = refusing_member(), Streams(3)
    loop = loop_of(member, streams)
    owned = Walked(member.state.owned)
    loop.state = replace(member.state, owned=owned)
    denied = dict.fromkeys(member.state.revoking, "no rights")
    streams.walks = 0
    assert member.state.op is not None
    loop.take(ev.Finished(now=member.now, op=member.state.op, outcome=ev.Released(denied)))
    assert loop.state.refused == denied
    assert streams.notices == {1: 1, 2: 1}, "each idle stream must get one error"
    assert owned.visited <= 20 * MANY
    assert streams.walks <= 10


def test_reporting_many_malformed_offsets_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reporting 500 malformed offsets reads the partitions and the notices a few times."""
    compared = Counter[str]()
    equal = Notice.__eq__

    def count(one: Notice, other: object) -> bool:
        compared["notices"] += 1
        return equal(one, other)

    monkeypatch.setattr(Notice, "__eq__", count)
    member = Member()
    member.register()
    member.read(view(topics={"t": MANY}))
    member.claim()
    streams = Streams(2)
    loop = loop_of(member, streams)
    owned = Walked(member.state.owned)
    loop.state = replace(member.state, owned=owned)
    bad = {tp: StoredOffset(None, 1, error="no offset") for tp in owned.copy()}
    owned.visited = 0
    for outcome in (ev.OffsetsLoaded(bad), ev.Verified(owned, {})):
        assert loop.state.op is not None
        loop.take(ev.Finished(now=member.now, op=loop.state.op, outcome=outcome))
    assert loop.state.phase is Phase.SETTLED
    assert not streams.notices, "a client may still write the payload of an offset's znode"
    member.now += REPORT_S
    loop.take(None)
    assert streams.notices == {0: MANY}
    assert owned.visited <= 20 * MANY
    assert compared["notices"] <= 20 * MANY


def test_counting_many_resets_is_linear() -> None:
    """Counting the messages at 500 resets reads all positions only a few times."""
    read = Counter[str]()
    partitions = [TopicPartition("t", number) for number in range(MANY)]

    def positions() -> dict[TopicPartition, Position]:
        read["positions"] += MANY
        return dict.fromkeys(partitions, Position(7, 10))

    tally = MemberCounters(positions)
    for now in (1.0, 2.0):
        for tp in partitions:
            tally.count_before_reset(tp, now)
            tally.reset(tp, 7, 0)
        assert read["positions"] <= 20 * MANY
        assert tally.messages() == {"t": now * 10 * MANY}
        read.clear()
