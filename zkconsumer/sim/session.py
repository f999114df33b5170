"""A simulated ZooKeeper session: the effects of kazoo's threads on the member's inbox.

kazoo calls back on two threads. Its connection thread puts changes of the connection into the inbox
at once. Its completion thread delivers replies and watches one by one and may be late, so a change
of the connection can overtake replies and watches that arrived before it. For the member's thread
this means:

- "suspended" may come before or after replies that arrived before the connection broke;
- "connected" may come while such replies are still queued;
- the session may have been replaced (`is_over`) before the member's thread learns of any change;
- "lost" comes after an expiry, or not at all;
- the client may fail permanently, which it reports before or after "suspended". Requests that it
  gets from then on are answered with BROKEN.

The replies of one batch arrive together, when the last of them arrives. When the connection breaks,
a batch whose last reply has not been read is answered with BROKEN, and unread watches are lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from zkconsumer.consumer.executor import Done, Resume, WatchFired
from zkconsumer.consumer.loop import SessionChanged
from zkconsumer.member.events import ClientDied
from zkconsumer.protocol.model import Session
from zkconsumer.protocol.requests import Code, OffsetRequest, Reply, Request, Requests

BROKEN = Reply(Code.BROKEN, "ConnectionLoss")
CALLBACKS = (Resume, WatchFired)
"""Items of the inbox that come through kazoo's completion thread."""


class SimSession:
    """One member's ZooKeeper client, and the inbox that it posts to.

    Attributes:
        session_id: the client's session; 0 before the first session.
        wire: (ticket, request) of each request that no server has executed, in order.
        partial: ticket -> the replies received so far of an incomplete batch.
        missing: ticket -> the number of replies that the batch still lacks.
        read: number of callbacks at the front of the inbox that the client has certainly read; the
            other callbacks are lost if the connection ends.
        changes: number of connection changes in the inbox.
        has_client: False from the client's death until it is recreated.
    """

    __slots__ = (
        "_overtakes",
        "changes",
        "has_client",
        "inbox",
        "missing",
        "partial",
        "read",
        "session_id",
        "wire",
    )

    def __init__(self, overtakes: Callable[[object], bool]) -> None:
        """`overtakes` selects the items that the inbox hands out before all others."""
        self._overtakes = overtakes
        self.session_id = 0
        self.wire: deque[tuple[int, Request | OffsetRequest]] = deque()
        self.inbox: deque[object] = deque()
        self.partial: dict[int, tuple[Reply, ...]] = {}
        self.missing: dict[int, int] = {}
        self.read = self.changes = 0
        self.has_client = True

    def copy(self, overtakes: Callable[[object], bool]) -> SimSession:
        twin = SimSession(overtakes)
        twin.session_id = self.session_id
        twin.wire, twin.inbox = self.wire.copy(), self.inbox.copy()
        twin.partial, twin.missing = self.partial.copy(), self.missing.copy()
        twin.read, twin.changes = self.read, self.changes
        twin.has_client = self.has_client
        return twin

    # ---- called by the executor (`consumer.executor.Session`, `AskKafka`) ------------------------

    def is_over(self, session_id: int) -> bool:
        """Return whether another session has replaced this one."""
        return self.session_id != session_id

    def submit(self, batch: Requests, done: Done) -> None:
        """Queue a batch; without a connection, the session sends it on its next connection."""
        ticket = done.ticket
        if not batch:
            self.post(Resume(ticket, ()))
            return
        if not self.has_client:
            self.post(Resume(ticket, (BROKEN,)))
            return
        self.partial[ticket], self.missing[ticket] = (), len(batch)
        self.wire.extend((ticket, request) for request in batch)

    def ask_kafka(self, request: OffsetRequest, done: Done) -> None:
        self.partial[done.ticket], self.missing[done.ticket] = (), 1
        self.wire.append((done.ticket, request))

    # ---- called by the member's thread -----------------------------------------------------------

    def post(self, item: object) -> None:
        """Put an item into the inbox."""
        if self._overtakes(item):
            self.inbox.appendleft(item)
            self.read += self.read > 0  # the item comes before the replies that have been read
        else:
            self.inbox.append(item)

    def take(self) -> object:
        """Take the next item of the inbox."""
        item = self.inbox.popleft()
        if isinstance(item, CALLBACKS):
            self.read = max(0, self.read - 1)
        elif isinstance(item, SessionChanged):
            self.changes -= 1
        return item

    def may_overtake(self) -> bool:
        """Return whether a connection change may be handled before earlier replies or watches."""
        return self.changes > 0 and isinstance(self.inbox[0], CALLBACKS)

    def overtake(self) -> object:
        """Take the first item that is neither a reply nor a watch."""
        inbox = self.inbox
        at = next(n for n, item in enumerate(inbox) if not isinstance(item, CALLBACKS))
        item = inbox[at]
        del inbox[at]
        self.changes -= isinstance(item, SessionChanged)
        return item

    # ---- called by the network -------------------------------------------------------------------

    def replied(self, ticket: int, reply: Reply) -> None:
        """Receive the server's reply to the next request of a batch."""
        replies = (*self.partial[ticket], reply)
        self.missing[ticket] -= 1
        if self.missing[ticket]:
            self.partial[ticket] = replies
        else:
            self._complete(ticket, replies)

    def _complete(self, ticket: int, replies: tuple[Reply, ...]) -> None:
        del self.partial[ticket], self.missing[ticket]
        self.post(Resume(ticket, replies))

    def unread(self) -> bool:
        """Return whether a broken connection would lose a reply or a watch."""
        return sum(isinstance(item, CALLBACKS) for item in self.inbox) > self.read

    def broke(self) -> None:
        """The client notices that its connection is broken, and loses what it has not read."""
        self._lose_unread()
        self._changed(None)

    def died(self, death: ClientDied) -> None:
        """The client fails permanently; its two reports come in either order."""
        self._lose_unread()
        self.has_client = False
        if self.session_id % 2:
            self._changed(None)
            self.inbox.append(death)
        else:
            self.inbox.append(death)
            self._changed(None)

    def _lose_unread(self) -> None:
        kept: deque[object] = deque()
        left = self.read
        for item in self.inbox:
            if isinstance(item, CALLBACKS):
                left -= 1
                if left < 0:
                    if isinstance(item, Resume):  # an empty batch was never sent
                        kept.append(Resume(item.ticket, item.replies and (BROKEN,)))
                    continue
            kept.append(item)
        self.inbox.clear()
        self.inbox.extend(kept)
        self._break_batches()
        self.read = sum(isinstance(item, CALLBACKS) for item in self.inbox)

    def connected(self, session: Session) -> None:
        """The client is connected, in its old session or a new one."""
        if self.session_id not in (0, session.id):
            # kazoo answers requests that were queued for the expired session, and reports "lost".
            # The member's thread must not depend on "lost", so here a new session replaces the old
            # session without "lost".
            self._break_batches()
            self.read = sum(isinstance(item, CALLBACKS) for item in self.inbox)
            if session.id % 2:
                self._changed(None)
        self.session_id = session.id
        self._changed(session)

    def _break_batches(self) -> None:
        """Answer every ZooKeeper batch in progress with BROKEN; Kafka's replies still come."""
        kafka = {ticket for ticket, request in self.wire if isinstance(request, OffsetRequest)}
        self.wire = deque(one for one in self.wire if one[0] in kafka)
        for ticket in [one for one in self.partial if one not in kafka]:
            self._complete(ticket, (*self.partial[ticket], BROKEN))

    def _changed(self, session: Session | None) -> None:
        self.changes += 1
        self.inbox.append(SessionChanged(session))
