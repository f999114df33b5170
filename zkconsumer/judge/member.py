"""A program under test as a member of a simulated world: its client of ZooKeeper, and its user.

The world uses the member like the model of a JVM member. Each message to the program is answered at
once, so the program takes no virtual time. Its requests wait until the world lets the server
execute them, and the replies wait until the world lets the program receive them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from types import MappingProxyType
from typing import Final

from zkconsumer.consumer.executor import WatchFired
from zkconsumer.judge import promises
from zkconsumer.judge.messages import LOST, Request, reply_of, request_of
from zkconsumer.judge.program import Exchange, Program
from zkconsumer.member.state import Settings
from zkconsumer.protocol.model import JsonObject, Session, TopicPartition
from zkconsumer.protocol.requests import Reply
from zkconsumer.sim.kernel.world import NEVER
from zkconsumer.sim.member import Feed

LEAST_TICK_S: Final = 0.05
"""The shortest time to the next tick, in seconds; a shorter wish is rounded up, because a program
that asks for a tick at once would stop the virtual time."""


def due_after(done: JsonObject, now: float, due: float) -> float:
    """Return when the next tick is due after a `done`; `due` is when it was due before."""
    return now + max(done["tick_s"], LEAST_TICK_S) if "tick_s" in done else due


OnPhase = Callable[["ProgramMember", str, str], None]


class ProgramMember:
    """One member that a program plays.

    Attributes:
        wire: (id, request) of each request that no server has executed, in order.
        inbox: watch events, and (id, reply) of each reply that the program has not received.
        leaving: whether the user has closed the member.
        due: when the program gets its next tick, in virtual seconds.
        positions: the offset after the last message that the member has delivered.
        unfinished: the message that the user has not finished.
    """

    feeds: Mapping[TopicPartition, Feed] = MappingProxyType({})
    """Empty: only the program knows which partitions it reads."""

    gate, changes, unread, may_overtake, has_client = 0.0, 0, False, False, True
    unposted, post_at = None, NEVER
    """Like a JVM member, it has no lease that the world knows, and no thread is preempted."""

    def __init__(self, settings: Settings, program: Program, topic: str, on_phase: OnPhase) -> None:
        self.settings, self.on_phase = settings, on_phase
        self.wire: deque[tuple[int, Request]] = deque()
        self.inbox: deque[WatchFired | tuple[int, Reply]] = deque()
        self.due = NEVER
        self.closed = self.leaving = False
        self.positions: dict[int, int] = {}
        self.unfinished: tuple[int, int] | None = None
        self.at: Exchange | None = None
        self._program, self._topic = program, topic
        self._waiting: dict[int, Request] = {}  # by id, the requests without a reply, in order
        self._refused_poll: tuple[Exchange | None, tuple[int, ...]] = (None, ())

    def copy(self, on_phase: OnPhase) -> ProgramMember:
        """Return a member that continues independently from here."""
        twin = copy(self)
        twin.on_phase = on_phase
        twin.wire, twin.inbox = self.wire.copy(), self.inbox.copy()
        twin.positions, twin._waiting = self.positions.copy(), self._waiting.copy()
        return twin

    @property
    def name(self) -> str:
        return self.settings.consumer

    @property
    def settled(self) -> bool:
        """Return whether no request is in progress."""
        return not self._waiting and not self.inbox

    is_at_rest = settled

    def key(self) -> tuple[object, ...]:
        """Return everything that affects what the member does next, as a value.

        The number of the last exchange stands for the whole conversation.
        """
        number = 0 if self.at is None else self.at.number
        polled, ends = self._refused_poll
        rest = (self.closed, self.leaving, self.unfinished, polled is self.at, ends)
        return (number, self.due, *rest, list(self.wire), list(self.inbox), list(self._waiting))

    # ---- the conversation ------------------------------------------------------------------------

    def _tell(self, now: float, message: JsonObject) -> list[JsonObject]:
        """Send a message to the program, and carry out its answer; return the deliveries."""
        assert self.at is not None
        stamped = {"type": message["type"], "now": round(now, 6), **message}
        self.at = self._program.tell(self.at, stamped)
        delivered = []
        for answer in self.at.answers:
            match answer["type"]:
                case "request":
                    self._request(answer)
                case "deliver":
                    delivered.append(answer)
                case "phase":
                    self.on_phase(self, answer["phase"][:12], answer.get("text", ""))
                case "done":
                    self._done(now, answer)
        if len(delivered) > (message["type"] == "poll"):
            raise self._wrong("`deliver` is allowed once, in the answer to `poll`")
        return delivered

    def _request(self, answer: JsonObject) -> None:
        number = answer["id"]
        if number in self._waiting:
            raise self._wrong(f"request {number} is sent again, before its reply")
        self._waiting[number] = request_of(answer)
        self.wire.append((number, self._waiting[number]))

    def _done(self, now: float, answer: JsonObject) -> None:
        self.due = due_after(answer, now, self.due)
        if answer.get("closed"):
            self.closed, self.due = True, NEVER

    def _wrong(self, why: str) -> Exception:
        return promises.speaks_the_protocol.broken(f"{self.name}: {why}")

    # ---- called by the world ---------------------------------------------------------------------

    def connect(self, session: Session, now: float, wall_ms: int) -> None:
        """Connect the client. Requests that have waited for a connection are sent now."""
        if self.at is None:
            streams = max(self.settings.subscription.values())
            self.at = self._program.reset(
                {
                    "type": "reset",
                    "member": self.name,
                    "group": self.settings.group,
                    "topic": self._topic,
                    "streams": streams,
                    "session_s": session.timeout_s,
                    "wall_ms": wall_ms,
                }
            )
            self._done(now, self.at.answers[-1])
        self._tell(now, {"type": "connected", "session": session.id})

    def disconnect(self, now: float) -> None:
        """Report the broken connection. What the program has not received is lost."""
        lost, self._waiting = self._waiting, {}
        self.wire.clear()
        self.inbox.clear()
        self._tell(now, {"type": "disconnected"})
        for number in lost:
            self._tell(now, {"type": "reply", "id": number, "code": LOST})

    def replied(self, number: int, reply: Reply) -> None:
        self.inbox.append((number, reply))

    def watch(self, fired: WatchFired) -> None:
        self.inbox.append(fired)

    def overtake(self, now: float) -> None:
        """Do nothing: the inbox keeps its order."""

    def receive(self, now: float) -> None:
        item = self.inbox.popleft()
        if isinstance(item, WatchFired):
            self._tell(now, {"type": "watch", "kind": item.kind.lower(), "path": item.path})
            return
        number, reply = item
        request = self._waiting.pop(number)
        self._tell(now, {"type": "reply", "id": number, **reply_of(request, reply)})

    def wake(self, now: float) -> None:
        self.due = NEVER
        self._tell(now, {"type": "tick"})

    def leave(self, now: float) -> None:
        """Close the member by the user, who has finished the last message."""
        self.unfinished, self.leaving = None, True
        self._tell(now, {"type": "close"})

    def commit(self, now: float) -> None:
        """Do nothing: a program commits when it wants to."""

    def may_post(self, now: float) -> bool:
        return False

    def end_threads(self) -> None:
        """End the process: nothing reaches the program any more."""
        self.inbox.clear()

    # ---- called by the user ----------------------------------------------------------------------

    def may_ask(self, now: float) -> bool:
        """Return whether the user may ask for a message."""
        return not self.closed and self.at is not None

    def has_work(self, ends: tuple[int, ...]) -> bool:
        """Return whether the user could finish a message, or could get one.

        After a refused poll, the user asks again only after the program has learned something.
        """
        if self.closed or self.at is None:
            return False
        if self.unfinished is not None:
            return True
        if self._refused_poll == (self.at, ends):
            return False
        return any(self.positions.get(one, 0) < end for one, end in enumerate(ends))

    def poll(self, now: float, ends: tuple[int, ...]) -> tuple[int, int] | None:
        """Ask the program for the next message; return the partition and the offset, or None."""
        self.unfinished = None
        delivered = self._tell(now, {"type": "poll", "ends": list(ends)})
        if not delivered:
            self._refused_poll = (self.at, ends)
            return None
        partition, offset = delivered[0]["partition"], delivered[0]["offset"]
        if partition >= len(ends) or offset >= ends[partition]:
            raise self._wrong(f"partition {partition} has no message {offset}")
        self.positions[partition] = offset + 1
        self.unfinished = partition, offset
        return self.unfinished
