"""From the machine's notices to log levels and to the errors that users catch."""

from __future__ import annotations

import logging

from zkconsumer.core.commands import Notice, NoticeKind
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


def error_for(notice: Notice) -> ZkConsumerError:
    """The notice as the error that names it; its text is what is logged, too."""
    kind = _ERRORS.get(notice.kind, ZkConsumerError)
    return kind(notice.text, where=notice.where, remedy=notice.remedy)


def level_of(kind: NoticeKind) -> int:
    if kind in _GRAVE:
        return logging.ERROR
    return logging.INFO if kind in _ORDINARY else logging.WARNING
