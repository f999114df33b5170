"""Notices in the log: each is told, and what repeats itself is not told again at once."""

from __future__ import annotations

import logging

import pytest

from zkconsumer.consumer.notices import LOG_AGAIN_S, NoticeLog, error_for
from zkconsumer.core.commands import Notice, NoticeKind

LOGGER = logging.getLogger("test_notices")


class Told:
    """A log on a clock of its own."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 5.0
        self._caplog = caplog
        self._log = NoticeLog(LOGGER, "g_a", lambda: self.now)

    def write(self, kind: NoticeKind, where: str, text: str = "why") -> list[str]:
        """What is in the log for it."""
        self._caplog.clear()
        notice = Notice(kind, where, text)
        self._log.write(notice, error_for(notice))
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """A log of all levels."""
    caplog.set_level(logging.DEBUG, LOGGER.name)
    return Told(caplog)


@pytest.mark.parametrize(
    "kind", [NoticeKind.COMMIT_RETRIED, NoticeKind.OFFSETS_UNAVAILABLE, NoticeKind.DENIED]
)
def test_what_comes_with_each_back_off_is_logged_once_in_a_while(
    told: Told, kind: NoticeKind
) -> None:
    """The first is logged at once, the others are counted into the next after the pause."""
    assert len(told.write(kind, "t-0", "5 tries left")) == 1
    for left in range(9):
        told.now += 1
        assert told.write(kind, "t-0", f"{left} tries left") == []
    assert len(told.write(kind, "t-1")) == 1  # another subject
    told.now = 5.0 + LOG_AGAIN_S
    (line,) = told.write(kind, "t-0")
    assert "and 9 times since" in line
    assert told.write(kind, "t-0") == []


def test_what_happens_is_logged_each_time(told: Told) -> None:
    """An operator who sets an offset twice is answered twice."""
    assert told.write(NoticeKind.OFFSET_EDITED, "t-0")
    assert told.write(NoticeKind.OFFSET_EDITED, "t-0")
