"""When a client that ZooKeeper refuses concludes that the servers have lost its session.

A server refuses a client that has seen a later transaction than the server has
(`ZooKeeperServer.processConnectRequest` compares the client's last zxid), and closes the connection
without a reason. A server that is behind the others does so, and so does a server whose data were
deleted or restored from an older backup. A server without a quorum, and a server with too many
connections (`maxClientCnxns`), close each connection too.

So a client that is refused for one session timeout opens a second session, without the old id and
zxid. If ZooKeeper grants it, the last zxid of its server decides.
"""

from __future__ import annotations

from dataclasses import replace

from zkconsumer.frozen import dataclass


@dataclass(frozen=True, slots=True)
class RefusedHandshakes:
    """A series of connections that a server has accepted and closed.

    Attributes:
        since: the time of the first one, in seconds.
        tried_at: when a second session was tried last; None: never.
        was_granted: whether a second session was granted, and proved nothing.
    """

    since: float
    tried_at: float | None = None
    was_granted: bool = False

    def due_at(self, timeout_s: float) -> float:
        """Return when the client tries a second session: once for each session timeout."""
        return timeout_s + (self.since if self.tried_at is None else self.tried_at)

    def is_due(self, now: float, *, timeout_s: float) -> bool:
        """Return whether the client tries a second session now."""
        return now >= self.due_at(timeout_s)

    def tried(self, now: float) -> RefusedHandshakes:
        """Return the row after the client has tried a second session."""
        return replace(self, tried_at=now)

    def granted(self) -> RefusedHandshakes:
        """Return the row after a second session was granted, and proved nothing."""
        return replace(self, was_granted=True)


def is_lost(refusals: RefusedHandshakes, *, seen: int, last: int) -> bool:
    """Return whether the servers have lost the client's session, after granting a second one.

    They have lost their data if the last zxid of the server is lower than the one that the client
    has seen. Without this comparison, a server that has just got its quorum back would count as
    one that has lost its data, and an outage would end a session. A second grant decides even if
    the zxids do not: nothing else would end the wait.
    """
    return last < seen or refusals.was_granted
