"""Explicit commits: the user's requests, and their answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import field
from functools import partial
from queue import Empty
from typing import Protocol, TypeGuard

from zkconsumer.errors import (
    CommitError,
    ConfigError,
    ConnectorClosedError,
    NotOwnedError,
    ZkConsumerError,
    first_few,
)
from zkconsumer.frozen import dataclass
from zkconsumer.member.events import PositionsCollected
from zkconsumer.member.offset_ledger import Commit
from zkconsumer.protocol import arguments
from zkconsumer.protocol.model import (
    OffsetAndMetadata,
    Ownership,
    Position,
    Purpose,
    Storage,
    TopicPartition,
)
from zkconsumer.safe_logger import SafeLogger

logger = SafeLogger(logging.getLogger(__name__))

# The greatest offset that can be stored.
MAX_OFFSET = 2**63 - 1

COMMIT_TIMEOUT_S = 120.0
"""Default timeout of an explicit commit, in seconds.

It is longer than an outage that a session survives. With offsets in Kafka, it is also longer than
six attempts of 10 s each and their back-offs.
"""

ExplicitOffsets = Mapping[TopicPartition, int | OffsetAndMetadata]
"""Partition -> the next offset to read, with or without metadata.

A commit without metadata keeps the metadata that is stored with the same offset.
"""


class _CommitFuture(Future[None]):
    """A future whose callbacks may raise anything, because the member's thread calls them.

    A `Future` passes on the exceptions that are no `Exception`, such as that of `sys.exit`.
    """

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        # The caller's own thread calls a callback of a commit that has ended.
        super().add_done_callback(fn if self.done() else partial(_call, fn))


def _call(function: Callable[[Future[None]], object], future: Future[None]) -> None:
    try:
        function(future)
    except BaseException:  # `sys.exit` must not end the member's thread
        logger.exception("a callback of a commit raised")


def _running_future() -> Future[None]:
    """Return a future that its user cannot cancel: a commit that was sent cannot be undone."""
    future = _CommitFuture()
    future.set_running_or_notify_cancel()
    return future


class Answer(Protocol):
    """Receives the outcome of a commit: the methods of a `Future` that the loop calls."""

    def set_result(self, result: None, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


@dataclass(frozen=True, slots=True)
class CommitRequested:
    """A request to commit every message handed out, or the offsets in `given`."""

    retries: int | None
    given: ExplicitOffsets | None = None
    answer: Future[None] = field(default_factory=_running_future)
    # Partition -> the fencing token under which this member must still own the partition.
    tokens: Mapping[TopicPartition, int] = field(default_factory=dict)
    # GIVEN stores exactly `given`. EXPLICIT leaves a higher offset that is stored already.
    purpose: Purpose = Purpose.GIVEN


@dataclass(frozen=True, slots=True)
class CommitAbandoned:
    """The caller that waits for `answer` has reached its timeout."""

    answer: Answer


class ItemQueue(Protocol):
    """The part of the member's inbox that `refuse_late` uses."""

    def get_nowait(self) -> object:
        """Remove the next item; raise queue.Empty if there is none."""


def refuse_late(inbox: ItemQueue, where: str, failure: ZkConsumerError | None) -> None:
    """Answer the commits that remain in the inbox of an ended member; any thread may call it.

    The answer is `failure`, the error that ended the member. If `failure` is None, the answer is
    ConnectorClosedError.
    """
    while True:
        try:
            item = inbox.get_nowait()
        except Empty:
            return
        if isinstance(item, CommitRequested):
            item.answer.set_exception(
                failure
                or ConnectorClosedError(
                    "the connector was shut down before this commit was sent",
                    where=where,
                    remedy="commit before the shutdown; the shutdown commits every message handed "
                    "out",
                )
            )


def new_commit_request(
    given: ExplicitOffsets | None, *, retries: int | None, storage: Storage
) -> CommitRequested:
    """Return the request for the user's arguments; raise ConfigError if an argument is invalid."""
    _check_retries(retries)
    if given is None:
        return CommitRequested(retries)
    checked: dict[TopicPartition, int | OffsetAndMetadata] = {}
    for tp, value in arguments.by_partition(given, "offsets", "43").items():
        offset, metadata = value if _is_pair(value) else (value, "")
        if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
            raise ConfigError(
                f"{offset!r} is not an offset",
                where=str(tp),
                remedy="give an integer of at least 0",
            )
        if metadata and storage is Storage.ZOOKEEPER:
            raise ConfigError(
                "ZooKeeper stores no metadata with offsets (the JVM drops it silently)",
                where=str(tp),
                remedy="set offsets.storage=kafka, or omit the metadata",
            )
        checked[tp] = OffsetAndMetadata(offset, metadata) if metadata else offset
    return CommitRequested(retries, checked)


def _is_pair(value: object) -> TypeGuard[tuple[object, str]]:
    """Return whether a value is an offset with metadata."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str)


def commit_request_after(
    positions: Mapping[TopicPartition, Position], *, retries: int | None
) -> CommitRequested:
    """Return the request that commits these positions under their fencing tokens."""
    _check_retries(retries)
    offsets = {tp: at.offset for tp, at in positions.items()}
    return CommitRequested(retries, offsets, tokens={tp: at.epoch for tp, at in positions.items()})


def _check_retries(retries: int | None) -> None:
    if retries is not None and (type(retries) is not int or retries < 0):
        raise ConfigError(
            f"{retries!r} is not a number of retries", where="retries", remedy="0 or more, or None"
        )


def commit_event(
    asked: CommitRequested,
    owned: Mapping[TopicPartition, Ownership],
    *,
    request: int,
    now: float,
) -> PositionsCollected:
    """Return the event that commits these offsets, with this member's epochs.

    Raises NotOwnedError if this member does not own all of the partitions, or if the fencing token
    of a partition has changed since its messages were delivered. Nothing is committed then.
    """
    given = asked.given or {}
    lost = {tp for tp, token in asked.tokens.items() if tp in owned and owned[tp].epoch != token}
    if missing := sorted((given.keys() - owned.keys()) | lost):
        raise NotOwnedError(
            "this member does not own these partitions, so no offset of this call was committed",
            where=", ".join(map(str, missing)),
            remedy="commit them at the member that owns them",
        )
    offsets = {tp: at if isinstance(at, int) else at.offset for tp, at in given.items()}
    commit = Commit(
        asked.purpose,
        {tp: Position(owned[tp].epoch, offset) for tp, offset in offsets.items()},
        metadata={tp: at.metadata for tp, at in given.items() if not isinstance(at, int)},
        requests=(request,),
    )
    return PositionsCollected(now=now, commit=commit)


def commit_error(failures: Mapping[TopicPartition, str]) -> CommitError:
    """Return the error of a commit that did not store all offsets."""
    where = first_few((f"{tp}: {why}" for tp, why in sorted(failures.items())), 10)
    return CommitError(
        f"{len(failures)} offsets were not committed",
        where=where,
        remedy="the partition's next owner redelivers their messages",
    )
