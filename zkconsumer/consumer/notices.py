"""From the machine's notices to log levels and to the errors that users catch."""

from __future__ import annotations

import logging
from collections.abc import Callable

from zkconsumer.core.commands import Notice, NoticeKind
from zkconsumer.core.state import State
from zkconsumer.errors import (
    AccessDeniedError,
    CommitError,
    ConsumerIdTakenError,
    MalformedZnodeError,
    RebalanceBlockedError,
    UnsupportedPeerError,
    ZkConsumerError,
)

_ERRORS: dict[NoticeKind, type[ZkConsumerError]] = {
    NoticeKind.BLOCKED: RebalanceBlockedError,
    NoticeKind.ID_TAKEN: ConsumerIdTakenError,
    NoticeKind.DENIED: AccessDeniedError,
    NoticeKind.MALFORMED_PEER: MalformedZnodeError,
    NoticeKind.MALFORMED_TOPIC: MalformedZnodeError,
    NoticeKind.UNSUPPORTED_PEER: UnsupportedPeerError,
    NoticeKind.OFFSET_MALFORMED: MalformedZnodeError,
    NoticeKind.COMMIT_FAILED: CommitError,
}
_ORDINARY = frozenset({NoticeKind.UNBLOCKED, NoticeKind.OFFSET_EDITED})
_GRAVE = frozenset(
    {
        NoticeKind.DENIED,
        NoticeKind.OFFSET_MALFORMED,
        NoticeKind.MALFORMED_PEER,
        NoticeKind.MALFORMED_TOPIC,
    }
)
FOR_IDLE = frozenset({NoticeKind.UNSUPPORTED_PEER, NoticeKind.MALFORMED_TOPIC})
"""What streams without a partition raise."""

_REPEATED = frozenset(
    {
        NoticeKind.COMMIT_RETRIED,
        NoticeKind.DENIED,
        NoticeKind.ID_TAKEN,
        NoticeKind.OFFSETS_UNAVAILABLE,
    }
)
"""What the machine says again after each back-off, as long as it lasts."""

LOG_AGAIN_S = 60.0
"""Seconds in which such a notice is not logged again about the same thing: a back-off may be a
second, and an outage hours. The next one that is logged tells how many were left out. All are
counted, and told to streams."""

NO_SHARE = "the group has more consumer threads than the topic has partitions"


def error_for(notice: Notice) -> ZkConsumerError:
    """The notice as the error that names it; its text is what is logged, too."""
    kind = _ERRORS.get(notice.kind, ZkConsumerError)
    return kind(notice.text, where=notice.where, remedy=notice.remedy)


def held_by(state: State) -> str:
    """Why a stream does not have what it should have; empty if it will in a moment."""
    holders = sorted({who.thread for who in state.blocked.values()})
    return f"its partitions are held by {', '.join(holders)}" if holders else ""


def level_of(kind: NoticeKind) -> int:
    if kind in _GRAVE:
        return logging.ERROR
    return logging.INFO if kind in _ORDINARY else logging.WARNING


class NoticeLog:
    """Logs one member's notices; what repeats itself at most once in `LOG_AGAIN_S`."""

    def __init__(
        self, logger: logging.Logger, consumer: str, clock: Callable[[], float]
    ) -> None:
        self._logger, self._consumer, self._clock = logger, consumer, clock
        # By kind and subject: when it was logged, and how often it was left out since.
        self._logged: dict[tuple[NoticeKind, str], tuple[float, int]] = {}

    def write(self, notice: Notice, error: ZkConsumerError) -> None:
        """Log a notice in its error's words, unless it has just been logged."""
        now, subject = self._clock(), (notice.kind, notice.where)
        self._logged = {
            one: (at, left_out)
            for one, (at, left_out) in self._logged.items()
            if now < at + LOG_AGAIN_S or one == subject
        }
        at, left_out = self._logged.get(subject, (now - LOG_AGAIN_S, 0))
        if now < at + LOG_AGAIN_S:
            self._logged[subject] = (at, left_out + 1)
            return
        if notice.kind in _REPEATED:
            self._logged[subject] = (now, 0)
        more = f" (and {left_out} times since it was last logged)" if left_out else ""
        self._logger.log(level_of(notice.kind), "%s: %s%s", self._consumer, error, more)
