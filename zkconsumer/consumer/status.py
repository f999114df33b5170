"""A member's status; the errors and log lines for its notices."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from zkconsumer.errors import (
    AccessDeniedError,
    CommitError,
    ConsumerIdTakenError,
    MalformedZnodeError,
    RebalanceBlockedError,
    UnsupportedPeerError,
    ZkConsumerError,
    escaped_and_cut,
)
from zkconsumer.member.commands import Notice, NoticeKind
from zkconsumer.member.phases import Phase
from zkconsumer.member.session import rival_text
from zkconsumer.member.state import State
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.safe_logger import SafeLogger

if TYPE_CHECKING:
    from zkconsumer.consumer.stream_fetcher import StreamReport
    from zkconsumer.consumer.stream_partitions import LeaseGate


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a member at one moment.

    All texts are safe to display: text that other clients wrote into ZooKeeper is escaped and cut
    after 400 characters.

    Attributes:
        phase: the member's phase, a name of `member.phases.Phase`.
        session: the id of the ZooKeeper session, or None.
        owned: consumer thread id -> the partitions that it owns.
        blocked: partition -> the consumer thread that still owns it, although it is assigned to
            this member.
        idle_peers: partitions that are assigned to registered members that do not claim them.
        waiting_for: what the member waits for; empty if it does not wait.
        malformed_peers: consumer id -> why JVM members cannot read its registration.
        refused: partition -> why ZooKeeper refuses access to it.
        unreadable_offsets: owned partitions that are not fetched because their stored offset is
            malformed.
        lease_s: seconds for which messages may still be handed out if ZooKeeper does not answer.
        error: the error that ended the member; None while it works and after a shutdown.
        stuck_streams: consumer thread id -> why nobody reads its stream, although this member owns
            the stream's partitions.
    """

    phase: str
    session: int | None
    owned: Mapping[str, tuple[TopicPartition, ...]]
    blocked: Mapping[TopicPartition, str]
    idle_peers: frozenset[TopicPartition]
    waiting_for: str
    malformed_peers: Mapping[str, str]
    refused: Mapping[TopicPartition, str]
    unreadable_offsets: frozenset[TopicPartition]
    lease_s: float
    error: ZkConsumerError | None = None
    stuck_streams: Mapping[str, str] = field(default_factory=dict)


def idle_status(phase: Phase) -> Status:
    """Return the status of a connector without streams."""
    return Status(phase.value, None, {}, {}, frozenset(), "", {}, {}, frozenset(), 0.0)


def _waiting_for(state: State, trouble: str) -> str:
    if trouble:
        return f"a connection to ZooKeeper: {trouble}"
    if state.client.reason and state.phase is not Phase.CLOSED:
        return f"a new ZooKeeper client, since the last one failed: {state.client.reason}"
    if state.rival is not None and state.phase is Phase.REGISTERING:
        return rival_text(state.rival)
    return state.waiting_for or state.blocked.reason


def _is_unreadable(state: State, tp: TopicPartition) -> bool:
    """Return whether the stored offset is the reason why a partition is not fetched.

    The partitions of a deleted topic are not fetched either.
    """
    entry = state.offsets.entries.get(tp)
    return entry is not None and bool(entry.error)


def status_of(
    state: State,
    gate: LeaseGate,
    *,
    error: ZkConsumerError | None = None,
    trouble: str = "",
    stuck: Mapping[str, str] = MappingProxyType({}),
) -> Status:
    """Return the status of a member.

    Args:
        error: the error that ended it, or None.
        trouble: why there is no connection to ZooKeeper; empty if there is one.
        stuck: consumer thread id -> why nobody reads its stream.
    """
    owned: dict[str, list[TopicPartition]] = {}
    for tp, mine in sorted(state.owned.items()):
        owned.setdefault(mine.thread, []).append(tp)
    return Status(
        phase=state.phase.value,
        session=state.session.id if state.session else None,
        owned={thread: tuple(held) for thread, held in owned.items()},
        blocked={tp: escaped_and_cut(who.thread) for tp, who in state.blocked.partitions.items()},
        idle_peers=state.idle_peers.partitions,
        waiting_for=escaped_and_cut(_waiting_for(state, trouble)),
        malformed_peers={
            escaped_and_cut(name): escaped_and_cut(why)
            for name, why in (state.view.malformed if state.view else {}).items()
        },
        refused=dict(state.refused),
        unreadable_offsets=frozenset(tp for tp in state.unfetched if _is_unreadable(state, tp)),
        lease_s=max(0.0, gate.deadline - gate.clock()),
        error=error,
        stuck_streams=dict(stuck),
    )


# ---- notices -------------------------------------------------------------------------------------


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
"""The kinds of notices whose error is also raised by streams that have no partition."""

_REPEATED = frozenset(
    {
        NoticeKind.COMMIT_RETRIED,
        NoticeKind.DENIED,
        NoticeKind.ID_TAKEN,
        NoticeKind.OFFSETS_UNAVAILABLE,
    }
)
"""The kinds of notices that the state machine repeats after each back-off while the cause lasts."""

LOG_AGAIN_S = 60.0
"""The minimum time, in seconds, between two log lines of a repeated notice about the same subject.

During an outage of hours, the same notice may come every second. The next log line says how many
notices were not logged. Every notice is counted, and streams get every notice.
"""

NO_SHARE = "the group has more consumer threads than the topic has partitions"


def error_for(notice: Notice) -> ZkConsumerError:
    """Return the error for a notice; the log line has the same text."""
    kind = _ERRORS.get(notice.kind, ZkConsumerError)
    return kind(notice.text, where=notice.where, remedy=notice.remedy)


def held_by(state: State) -> str:
    """Return a text that names the threads that own the blocked partitions; empty if no partition
    is blocked."""
    holders = sorted({who.thread for who in state.blocked.partitions.values()})
    reason = f"; {state.blocked.reason}" if state.blocked.reason else ""
    return f"its partitions are held by {', '.join(holders)}{reason}" if holders else ""


def level_of(kind: NoticeKind) -> int:
    if kind in _GRAVE:
        return logging.ERROR
    return logging.INFO if kind in _ORDINARY else logging.WARNING


class NoticeLog:
    """Logs one member's notices; a repeated notice at most once in `LOG_AGAIN_S`."""

    def __init__(self, logger: SafeLogger, consumer: str, clock: Callable[[], float]) -> None:
        self._logger, self._consumer, self._clock = logger, consumer, clock
        # (kind, subject) -> when the notice was last logged, and how many have not been logged
        # since. The oldest entry comes first, so that removing old entries takes constant time per
        # notice.
        self._logged: OrderedDict[tuple[NoticeKind, str], tuple[float, int]] = OrderedDict()

    def write(self, notice: Notice, error: ZkConsumerError) -> None:
        """Log a notice with its error's text, unless a recent line had its kind and subject."""
        now, subject = self._clock(), (notice.kind, notice.where)
        at, left_out = self._logged.get(subject, (now - LOG_AGAIN_S, 0))
        if now < at + LOG_AGAIN_S:
            self._logged[subject] = (at, left_out + 1)
            return
        self._logged.pop(subject, None)
        while self._logged and now >= next(iter(self._logged.values()))[0] + LOG_AGAIN_S:
            self._logged.popitem(last=False)
        if notice.kind in _REPEATED:
            self._logged[subject] = (now, 0)
        more = f" (and {left_out} more since it was last logged)" if left_out else ""
        self._logger.log(level_of(notice.kind), "%s: %s%s", self._consumer, error, more)


TROUBLE_S = 5.0
"""The minimum time, in seconds, between two log lines about one kind of failure.

A decoder may fail a million times a second.
"""


class TroubleLog:
    """Counts the failures of a member's streams; logs at most one line per kind and `TROUBLE_S`.

    Any thread may call it. The failures bypass the member's inbox.
    """

    def __init__(self, logger: SafeLogger, clock: Callable[[], float]) -> None:
        self._logger, self._clock = logger, clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        # kind -> when the next line may be logged, and the count at the last line.
        self._logged: dict[str, tuple[float, int]] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Number of failures of each kind, by `ReportKind.value`."""
        with self._lock:
            return dict(self._counts)

    def add(self, report: StreamReport) -> None:
        """Count a failure; log it unless one of its kind was logged less than `TROUBLE_S` s ago."""
        kind, now = report.kind.value, self._clock()
        with self._lock:
            self._counts[kind] += 1
            due, before = self._logged.get(kind, (now, 0))
            if now < due:
                return
            left_out = self._counts[kind] - before - 1
            self._logged[kind] = (now + TROUBLE_S, self._counts[kind])
        more = f" (and {left_out} more of the kind {kind} since its last line)" if left_out else ""
        self._logger.warning("%s: %s %s%s", report.thread_id, report.tp or "", report.text, more)
