"""From the machine's notices to log levels and to the errors that users catch."""

from __future__ import annotations

import logging

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
