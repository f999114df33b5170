"""How long ownership may be acted on without hearing from ZooKeeper's leader.

A reply to `sync` proves that the leader still knew the session when it answered; a reply to a read
proves nothing, since a follower that is cut off from its leader answers reads while the leader
expires the session. So a `sync` sent at `t` grants a lease until `t` + 2/3 of the session timeout.
The third that is left covers the time in which a follower forwards the session's touches to the
leader, which is why a timeout under three server ticks is refused at the start.

`sync` asks no quorum. A leader that is cut off from its quorum answers for up to `syncLimit` + 1
ticks, while another leader expires the session: docs/differences.md ("What a lease guarantees")
says when the third suffices for that, too.

All times are seconds of one clock that does not stop while the machine sleeps; see
`consumer.gate.lease_clock`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

SHARE_OF_TIMEOUT = 2 / 3
RENEWALS_PER_TIMEOUT = 6
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Lease:
    """`deadline` ends the lease; `asked_at` is when the last `sync` was sent, `op` its number."""

    timeout_s: float = 0.0
    deadline: float = NEVER
    asked_at: float = NEVER
    op: int | None = None

    def due_at(self) -> float:
        """When the next `sync` should be sent; never two at once."""
        return float("inf") if self.op is not None else self.asked_at + (
            self.timeout_s / RENEWALS_PER_TIMEOUT
        )

    def asked(self, op: int, now: float) -> Lease:
        return dataclasses.replace(self, op=op, asked_at=now)

    def granted(self, sent_at: float) -> Lease:
        deadline = max(self.deadline, sent_at + SHARE_OF_TIMEOUT * self.timeout_s)
        return dataclasses.replace(self, op=None, deadline=deadline)

    def holds(self, now: float) -> bool:
        return now < self.deadline
