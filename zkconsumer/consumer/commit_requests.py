"""What the user asks to be committed, and what is answered."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty
from typing import Any, Protocol

from zkconsumer.errors import (
    CommitError,
    ConfigError,
    ConnectorClosedError,
    NotOwnedError,
    ZkConsumerError,
)
from zkconsumer.member.events import PositionsCollected
from zkconsumer.protocol.model import (
    OffsetAndMetadata,
    Ownership,
    Position,
    Purpose,
    Storage,
    TopicPartition,
)

# The greatest offset that can be stored.
MAX_OFFSET = 2**63 - 1

COMMIT_TIMEOUT_S = 120.0
"""Default limit of an explicit commit, in seconds: longer than an outage that a session survives,
and than six tries of Kafka at 10 s each with the pauses between them."""

Given = Mapping[TopicPartition, int | OffsetAndMetadata]
"""A plain offset leaves metadata that stand beside the same offset as they are."""


class Answer(Protocol):
    """Where a commit's outcome goes: the part of a `Future` that a turn uses."""

    def set_result(self, result: None, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


@dataclass(frozen=True, slots=True)
class CommitAsked:
    """A commit of everything handed out, or of what is `given`."""

    retries: int | None
    given: Given | None = None
    answer: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class CommitGivenUp:
    """The caller that waited for `answer` has reached its time-out."""

    answer: Answer


class Queued(Protocol):
    """The part of the coordinator's inbox that is needed to empty it."""

    def get_nowait(self) -> Any:
        """Remove the next item; raise queue.Empty if there is none."""


def refuse_late(inbox: Queued, where: str, failure: ZkConsumerError | None) -> None:
    """Answer what was asked of a coordinator that has ended; any thread may call it.

    The answer is `failure`, the error that ended the member, or ConnectorClosedError.
    """
    while True:
        try:
            item = inbox.get_nowait()
        except Empty:
            return
        if isinstance(item, CommitAsked):
            item.answer.set_exception(
                failure
                or ConnectorClosedError(
                    "the connector was shut down before it came to this commit",
                    where=where,
                    remedy="commit before the shutdown, which commits everything handed out, too",
                )
            )


def asked(given: Given | None, *, retries: int | None, storage: Storage) -> CommitAsked:
    """Check what the user gives; raises ConfigError."""
    if retries is not None and (type(retries) is not int or retries < 0):
        raise ConfigError(
            f"{retries!r} is no number of retries", where="retries", remedy="0 or more, or None"
        )
    if given is None:
        return CommitAsked(retries)
    checked: dict[TopicPartition, int | OffsetAndMetadata] = {}
    for key, value in given.items():
        tp = TopicPartition(*key)
        offset, metadata = value if isinstance(value, tuple) else (value, "")
        if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
            raise ConfigError(
                f"{offset!r} is no offset", where=str(tp), remedy="give an integer of at least 0"
            )
        if metadata and storage is Storage.ZOOKEEPER:
            raise ConfigError(
                "ZooKeeper keeps no metadata of offsets (the JVM drops it in silence)",
                where=str(tp),
                remedy="set offsets.storage=kafka, or leave the metadata out",
            )
        checked[tp] = OffsetAndMetadata(*value) if isinstance(value, tuple) else value
    return CommitAsked(retries, checked)


def positions_given(
    given: Given, owned: Mapping[TopicPartition, Ownership], *, request: int, now: float
) -> PositionsCollected:
    """Exactly these, under our ownerships; raises NotOwnedError where there is none."""
    if missing := sorted(given.keys() - owned.keys()):
        raise NotOwnedError(
            "offsets of partitions that this member does not own are not committed; nor are the "
            "others of this call",
            where=", ".join(map(str, missing)),
            remedy="their owner commits them",
        )
    offsets = {tp: at if isinstance(at, int) else at.offset for tp, at in given.items()}
    return PositionsCollected(
        now=now,
        purpose=Purpose.GIVEN,
        positions={tp: Position(owned[tp].epoch, offset) for tp, offset in offsets.items()},
        request=request,
        metadata={tp: at.metadata for tp, at in given.items() if not isinstance(at, int)},
    )


def failed(failures: Mapping[TopicPartition, str]) -> CommitError:
    """Some offsets were not stored."""
    where = ", ".join(f"{tp}: {why}" for tp, why in sorted(failures.items())[:10])
    return CommitError(
        f"{len(failures)} of the offsets were not committed",
        where=where,
        remedy="their messages are delivered again, to the partition's next owner",
    )
