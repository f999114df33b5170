"""Finds the streams that nobody reads, although this member owns their partitions.

The member stays in its group as long as its process lives, so no other member gets the partitions
of a stream whose thread has ended or hangs. Kafka's new consumer leaves the group after
`max.poll.interval.ms`; the old consumer does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from threading import Thread
from typing import Final, Protocol

from zkconsumer.errors import first_few
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.safe_logger import SafeLogger

logger = SafeLogger(logging.getLogger(__name__))

LOOK_S: Final = 1.0
"""The time, in seconds, between two looks at all streams."""

STUCK_S: Final = 5.0
"""The time, in seconds, for which nobody may ask for a message while messages wait.

A longer time would delay the report; with a shorter one, every slow message would cause a report.
"""

UNREAD_S: Final = 30.0
"""The time, in seconds, for which a stream may have partitions before the first call asks it."""


class WatchedStream(Protocol):
    """The part of a stream that `StuckStreams` reads; any thread may call it."""

    @property
    def thread_id(self) -> str: ...
    @property
    def user(self) -> Thread | None:
        """The thread that has last asked for a message; None if no thread has."""

    @property
    def is_asked(self) -> bool:
        """Whether a thread waits for a message now."""

    @property
    def closed(self) -> bool: ...
    @property
    def may_deliver(self) -> bool:
        """Whether the lease holds."""

    @property
    def unpaused(self) -> Collection[TopicPartition]:
        """The partitions that are served and not paused."""

    @property
    def has_messages(self) -> bool:
        """Whether a message is known to wait."""

    @property
    def progress(self) -> object:
        """A value that changes whenever a thread asks for a message."""


@dataclass
class _Seen:
    """The last change of a stream's progress, and whether it was reported since."""

    progress: object
    since: float
    reported: bool = False


class StuckStreams:
    """Looks at a member's streams, and logs each one that nobody reads, once.

    Attributes:
        reasons: consumer thread id -> why nobody reads its stream, at the last look.
        count: number of reports.
    """

    def __init__(
        self, consumer: str, streams: Collection[WatchedStream], clock: Callable[[], float]
    ) -> None:
        """`clock` returns seconds."""
        self.reasons: Mapping[str, str] = {}
        self.count = 0
        self._consumer, self._streams, self._clock = consumer, streams, clock
        self._look_at = 0.0
        self._seen: dict[int, _Seen] = {}

    def look(self) -> None:
        """Look at every stream, unless the last look was less than `LOOK_S` ago."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        found: dict[str, str] = {}
        for stream in self._streams:
            if (reason := self._reason(stream, now)) is not None:
                earlier = found.get(stream.thread_id)
                found[stream.thread_id] = f"{earlier}; {reason}" if earlier else reason
        self.reasons = found

    def _reason(self, stream: WatchedStream, now: float) -> str | None:
        seen = self._seen.setdefault(id(stream), _Seen(None, now))
        progress = stream.progress
        owned = stream.unpaused
        is_idle = stream.closed or not owned or not stream.may_deliver
        if is_idle or stream.is_asked or progress != seen.progress:
            self._seen[id(stream)] = _Seen(progress, now)
            return None
        user, unasked_s = stream.user, now - seen.since
        listed = first_few(sorted(owned), 5)
        if user is None:
            is_stuck, who = unasked_s >= UNREAD_S, "no thread has asked it for a message"
        elif not user.is_alive():
            is_stuck, who = True, f"its thread {user.name} has ended"
        else:
            is_stuck = unasked_s >= STUCK_S and stream.has_messages
            who = f"its thread {user.name} has not asked for a message for {unasked_s:.0f} s"
        if not is_stuck:
            return None
        reason = f"{who}, and this member owns {listed}"
        if not seen.reported:
            seen.reported = True
            self.count += 1
            logger.warning(
                "%s: nobody reads %s: %s. No other member gets the partitions until this member "
                "shuts down: let the thread continue to read, or call shutdown()",
                self._consumer,
                stream,
                reason,
            )
        return reason
