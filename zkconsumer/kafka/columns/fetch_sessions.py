"""Incremental fetch sessions (KIP-227): a request names only the partitions that have changed.

Without a session, each request names all partitions, and each response repeats them, even if no
partition has a new message. In a session, the broker remembers the partitions with their offsets.
A request then contains only the partitions that were added, moved or removed since the last
request, and a response only those with messages, with an error, or with another high watermark.
This module uses no sockets.

Kafka: `org.apache.kafka.clients.FetchSessionHandler`, `kafka.server.FetchSession`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from zkconsumer.protocol.model import TopicPartition

# The first version of Fetch with sessions; Kafka 1.1.
SINCE_VERSION: Final = 7

# Errors of a whole response: the broker does not know the session, for instance after a restart, or
# the epochs differ, for instance after a response was lost.
SESSION_NOT_FOUND: Final = 70
WRONG_EPOCH: Final = 71
ERRORS: Final = frozenset({SESSION_NOT_FOUND, WRONG_EPOCH})

_NO_SESSION: Final = 0
# Epochs of requests that name all partitions: the first one begins a session, the second one does
# not. Both end the session that the request names.
_FIRST: Final = 0
_NONE: Final = -1
# The last epoch of a session; the next one is 1.
LAST_EPOCH: Final = 2**31 - 1

Wanted = tuple[TopicPartition, int, int]
"""A partition, the offset from which it is read, and the limit of its part of the response in
bytes."""


class SessionRequest(NamedTuple):
    """The parts of a Fetch request that depend on the session."""

    session: int
    epoch: int
    wanted: Sequence[Wanted]
    """All partitions, or in a session the changed ones."""
    removed: Sequence[TopicPartition] = ()


class FetchSession:
    """The session of one client with one broker, which answers one request at a time.

    Call `request` before each request, then `answered`, `refused` or `lost`.

    Attributes:
        number: the session's id, or 0 without a session.
        epoch: the epoch of the last request. It counts the requests of a session, from 0; -1 means
            a request without a session.
    """

    def __init__(self) -> None:
        self.number = _NO_SESSION
        self.epoch = _NONE
        self._next_epoch = _FIRST
        self._known: dict[TopicPartition, tuple[int, int]] = {}
        self._ends: dict[TopicPartition, int] = {}

    def request(self, wanted: Sequence[Wanted]) -> SessionRequest:
        """Return the next request of the session, or of a new one."""
        self.epoch = self._next_epoch
        if self.epoch == _FIRST:
            self._known = {tp: (offset, size) for tp, offset, size in wanted}
            return SessionRequest(self.number, _FIRST, wanted)
        known, self._known = self._known, {tp: (offset, size) for tp, offset, size in wanted}
        changed = [one for one in wanted if known.get(one[0]) != one[1:]]
        removed = [tp for tp in known if tp not in self._known]
        for tp in removed:
            self._ends.pop(tp, None)
        return SessionRequest(self.number, self.epoch, changed, removed)

    def request_without(self, wanted: Sequence[Wanted]) -> SessionRequest:
        """Return a request that needs no session, and ends the present one."""
        ended, self.number = self.number, _NO_SESSION
        self.epoch, self._next_epoch = _NONE, _FIRST
        self._ends = {}
        return SessionRequest(ended, _NONE, wanted)

    def answered(self, session: int, ends: Iterable[tuple[TopicPartition, int]]) -> None:
        """Handle a response without an error: the session's id, and the partitions in it."""
        if self.epoch == _NONE:
            return
        if self.epoch == _FIRST:
            # A broker that has no room for another session responds with the id 0; each later
            # request then asks again for a session, and names all partitions.
            self.number = session
            self._ends = {}
        self._next_epoch = _FIRST if self.number == _NO_SESSION else self.epoch % LAST_EPOCH + 1
        self._ends.update(ends)

    def refused(self, error: int) -> None:
        """Handle an error in `ERRORS`: the next request names all partitions."""
        self.lost()
        if error == SESSION_NOT_FOUND:
            self.number = _NO_SESSION

    def lost(self) -> None:
        """Handle a lost connection: the next request ends this session, and begins another."""
        self._next_epoch = _FIRST

    def end(self, tp: TopicPartition) -> int:
        """Return the end of a partition's log, which a response omits if it is unchanged; -1 if
        it is unknown."""
        return self._ends.get(tp, -1)
