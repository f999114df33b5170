"""What a stream holds: shared by the member's coordinator and the user's thread.

The coordinator writes what the stream should hold, and so does whoever pauses or seeks, one at a
time; the user's thread, and no other, hands messages out. Neither waits for the other. Three rules
carry it:

**Revocation is logical first.** `granted = False` stops delivery at once; that the broker client
still fetches the partition is tidied up at the next turn of the user's thread.

**Say first, look afterwards** (Dekker). Between two messages the user's thread does
    (u1) `in_hand = None` for what it has handed out             (u2) look at `attention`
and before it hands out the next one
    (u3) `in_hand = message`                                     (u4) look at `granted`
while a request to release does
    (c1) `granted = False`                (c2) queue the request, `attention = True`
    (c3) look at `in_hand`
Whatever the order of these steps, one side sees the other:
- c3 sees nothing in hand: then u3 has not happened, so the u4 that follows it comes after c1 and
  hands out nothing. The coordinator may go on, and it answers itself.
- c3 sees a message in hand: then u1 has not happened, so the u2 that follows it comes after c2 and
  finds the request. The user's thread answers.
- Both see it (c1, c2, then u1, u2, then c3): whoever takes the one token of the request answers.

**A torn read is too low, never too high.** The user's thread writes `in_hand`, then
`last`; `positions` reads `last` first. If it has seen the new `last`, it finds the
message still in hand, or finished in the meantime; if it has seen the old one, the result is at
most that. So a commit may cover too little, which costs a repetition, and never too much.

The lease, as the streams see it: until when messages may be handed to the user.

The user's decoders.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from confluent_kafka import Message as RawMessage

from zkconsumer.errors import ConfigError, ZkConsumerError
from zkconsumer.protocol.model import Position, TopicPartition

# ---- codec ---------------------------------------------------------------------------------------


K = TypeVar("K")
V = TypeVar("V")


class Codec(Generic[K, V]):
    """The user's decoders of keys and values; None leaves the bytes as they are.

    `failed` is told of every exception of a decoder, as text, before it is raised.
    """

    __slots__ = ("failed", "key", "value")

    def __init__(
        self,
        key: Callable[[bytes], K] | None = None,
        value: Callable[[bytes], V] | None = None,
        failed: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.key = key
        self.value = value
        self.failed = failed


# ---- holdings ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grant:
    """A partition to be served: from `offset`, or by `auto.offset.reset` where that is None.

    `epoch` is the czxid of the owner znode: the fencing token of every message under this grant.
    """

    tp: TopicPartition
    offset: int | None
    epoch: int


class Coverage(Enum):
    """Which messages a position covers."""

    FINISHED = "those after which the user has asked for another"
    DELIVERED = "all that were handed out"


class PartitionSink(Protocol):
    """What the coordinator serves partitions through: a stream, or whatever stands in for one.

    It is called on the coordinator's thread and never blocks; `Holdings` says what each call means.
    """

    def grant(self, grants: Iterable[Grant]) -> None: ...
    def withdraw(self, tps: Iterable[TopicPartition]) -> None: ...
    def ask_release(self, tps: Iterable[TopicPartition], done: Callable[[], None]) -> None: ...
    def positions(self, which: Coverage) -> dict[TopicPartition, Position]: ...
    def explain(self, idle_reason: str) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def end(self, error: ZkConsumerError) -> None: ...


class PartitionState:
    """One partition under one grant; a new grant is a new object.

    The iterator writes the messages themselves, since asking them for their offsets would cost it a
    tenth of its throughput: `last` is the last that was handed out, `in_hand` the first that the
    user has not finished. Before the first, the next offset is `start` (None: not known yet).
    """

    __slots__ = ("codec", "epoch", "granted", "in_hand", "last", "start", "tp")

    def __init__(self, grant: Grant, codec: Codec[Any, Any]) -> None:
        self.codec = codec  # for its messages
        self.tp = grant.tp
        self.epoch = grant.epoch
        self.granted = True  # coordinator writes, once, to False
        self.start = grant.offset
        self.last: RawMessage | None = None
        self.in_hand: RawMessage | None = None

    @property
    def delivered(self) -> int | None:
        """The next offset to hand out."""
        last = self.last
        return self.start if last is None else last.offset() + 1  # type: ignore[operator]

    def start_at(self, offset: int | None) -> None:
        """Go on from there; whoever looks in between sees the old position or the new one."""
        self.start = offset
        self.last = None

    def position(self, which: Coverage) -> int | None:
        """The next offset to commit; see the third rule above for the order of the reads."""
        delivered = self.delivered
        in_hand = self.in_hand
        if which is Coverage.FINISHED and in_hand is not None and delivered is not None:
            return min(in_hand.offset(), delivered)  # type: ignore[type-var]
        return delivered


class _Release:
    """A request to release `states`; `done` is called once, by whoever takes the token."""

    __slots__ = ("_done", "_states", "_token")

    def __init__(self, states: list[PartitionState], done: Callable[[], None]) -> None:
        self._states = states
        self._done = done
        self._token = [None]

    def answer_if_idle(self) -> None:
        """Answer if no message of the partitions is in hand."""
        if all(state.in_hand is None for state in self._states):  # c3
            self.answer()

    def answer(self) -> None:
        try:
            self._token.pop()
        except IndexError:
            return
        self._done()


class Holdings:
    """The shared part of a stream."""

    def __init__(self, codec: Codec[Any, Any]) -> None:
        self._codec = codec
        # Something here changed. Written last by the coordinator; the user's thread clears it
        # first and looks at everything afterwards, so that no change is overlooked.
        self.attention = False
        self.wake = threading.Event()  # ends a wait of the user's thread
        self.closed = False
        self.failure: ZkConsumerError | None = None  # why the member ended by itself
        self.idle_reason = ""
        # For those that write `_wanted`; reentrant, since a signal's handler may be one of them.
        self._writing = threading.RLock()
        self._wanted: dict[TopicPartition, PartitionState] = {}
        self._paused: dict[TopicPartition, int] = {}  # in which ownership
        self._releases: deque[_Release] = deque()
        self._failures: deque[Exception] = deque()

    @property
    def holds_any(self) -> bool:
        return bool(self._wanted)

    # ---- the coordinator's side: any thread, never blocks ----------------------------------------

    def grant(self, grants: Iterable[Grant]) -> None:
        with self._writing:
            for one in grants:
                old = self._wanted.get(one.tp)
                if old is not None:
                    old.granted = False
                self._wanted[one.tp] = PartitionState(one, self._codec)
                if self._paused.get(one.tp) != one.epoch:
                    self._paused.pop(one.tp, None)
        self.call()

    def withdraw(self, tps: Iterable[TopicPartition]) -> None:
        """Delivery of these stops now; their positions are forgotten."""
        with self._writing:
            for tp in tps:
                state = self._wanted.pop(tp, None)
                if state is not None:
                    state.granted = False
        self.call()

    def ask_release(self, tps: Iterable[TopicPartition], done: Callable[[], None]) -> None:
        """Hand out no more of these, and call `done` once when the user holds none of them.

        That is at once, on this thread, when the user holds none, else when the next message is
        asked for, on the user's thread. Their positions stay known until they are withdrawn.
        """
        with self._writing:
            states = [self._wanted[tp] for tp in tps if tp in self._wanted]
            for state in states:
                state.granted = False  # c1
        release = _Release(states, done)
        self._releases.append(release)
        self.call()  # c2
        release.answer_if_idle()

    def positions(self, which: Coverage) -> dict[TopicPartition, Position]:
        """The known positions of what is granted or was asked to be released."""
        states = self._wanted.copy().values()
        found = ((state, state.position(which)) for state in states)
        return {
            state.tp: Position(state.epoch, offset) for state, offset in found if offset is not None
        }

    def fail(self, error: Exception) -> None:
        """Raise `error` once, when the user next asks; the stream stays usable."""
        self._failures.append(error)
        self.call()

    def end(self, error: ZkConsumerError) -> None:
        """Raise `error` when the user next asks, and hand out nothing more, for good."""
        if self.closed:
            return
        self.failure = error
        self._failures.append(error)  # before `closed`: the user's thread looks at it first
        self.close()

    def close(self) -> None:
        with self._writing:
            for state in self._wanted.values():
                state.granted = False
        self.closed = True
        self.call()

    def call(self) -> None:
        """Have the user's thread look at everything again, and end its sleep; any thread."""
        self.attention = True
        self.wake.set()

    # ---- whoever steers: any thread --------------------------------------------------------------

    def serves(self, tp: TopicPartition) -> bool:
        """Is this partition granted, and nobody has asked for its release?"""
        state = self._wanted.get(tp)
        return state is not None and state.granted

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Hand out no more of these in their present ownership, until they are resumed."""
        with self._writing:
            self._paused |= {tp: self._wanted[tp].epoch for tp in tps if self.serves(tp)}
        self.call()

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        with self._writing:
            for tp in tps:
                self._paused.pop(tp, None)
        self.call()

    def is_paused(self, state: PartitionState) -> bool:
        return self._paused.get(state.tp) == state.epoch

    @property
    def paused(self) -> frozenset[TopicPartition]:
        states = self._wanted.copy().values()
        return frozenset(state.tp for state in states if self.is_paused(state))

    def seek(self, tp: TopicPartition, offset: int, tell: Callable[[int], None]) -> bool:
        """Go on from `offset` in the same ownership; whether the partition is served at all.

        `tell` is called with the epoch before the new position can be seen and when the old one no
        longer can: no commit meets a position that went back unexplained.
        """
        with self._writing:
            if not self.serves(tp):
                return False
            old = self._wanted.pop(tp)
            old.granted = False
            tell(old.epoch)
            new = PartitionState(Grant(tp, offset, old.epoch), self._codec)
            new.in_hand = old.in_hand  # it still is; `attend` lets it go
            self._wanted[tp] = new
        self.call()
        return True

    # ---- the user's side: one thread, nothing in its hands ---------------------------------------

    def attend(self) -> dict[TopicPartition, PartitionState]:
        """Answer what was asked and return what should be held. Raises what `fail` was given."""
        self.attention = False
        for state in self._wanted.copy().values():
            state.in_hand = None  # u1 knows nothing of those that a seek has made
        while self._releases:
            try:
                self._releases.popleft().answer()
            except IndexError:  # a second user's thread; see Stream._turn
                break
        if self._failures:
            self.attention = True  # the rest is looked at after this error
            self.raise_failure()
        return self._wanted.copy()

    def raise_failure(self) -> None:
        """Raise the oldest error that the user has not met, if there is one."""
        try:
            error = self._failures.popleft()
        except IndexError:
            return
        raise error

    def dropped(self) -> None:
        """Answer releases that saw a message in hand which was then not handed out.

        u3 marks a message, the coordinator revokes its partition (c1, c2) and finds the message in
        hand (c3), and u4 drops it. The user holds nothing then, and may not ask again for long.
        """
        for release in self._releases.copy():
            release.answer_if_idle()

    def sleep(self, timeout_s: float | None) -> None:
        """Wait for a change. The event is cleared before the look, so that none is slept over."""
        self.wake.clear()
        if not self.attention:
            self.wake.wait(timeout_s)


# ---- gate ----------------------------------------------------------------------------------------


def lease_clock(platform: str, clocks: Any) -> Callable[[], float]:
    """Return the clock of a platform that goes on while the machine sleeps, in seconds.

    A lease must run out during sleep: ZooKeeper expires the session meanwhile. `time.monotonic`
    stops during sleep on Linux and on macOS (mach_absolute_time, CPython issue 86273), and goes on
    on Windows (PEP 418).

    - Linux: CLOCK_BOOTTIME, see clock_gettime(2). CLOCK_MONOTONIC and CLOCK_MONOTONIC_RAW stop.
    - macOS 10.12 and later: CLOCK_MONOTONIC_RAW, see its clock_gettime(3): it goes on "while the
      system is asleep", and no adjustment of the time changes it. (Linux has a clock of this name
      that stops, so the platform decides.)

    Args:
        platform: as `sys.platform`.
        clocks: the module `time`.

    Raises:
        ConfigError: the platform has no such clock, or none that is known here.
    """
    names = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC_RAW"}
    if platform == "win32":
        monotonic: Callable[[], float] = clocks.monotonic
        return monotonic
    number = getattr(clocks, names.get(platform, ""), None)
    if number is None:
        raise ConfigError(
            "this platform has no clock that is known to go on during sleep, so a sleeping member "
            "could deliver partitions that others own by then",
            where=f"sys.platform={platform}",
            remedy="run the member on Linux, macOS 10.12 or later, or Windows",
        )
    return partial(clocks.clock_gettime, number)


def _unsupported() -> float:
    return lease_clock(sys.platform, time)()


try:
    _chosen = lease_clock(sys.platform, time)
except ConfigError:
    _chosen = _unsupported  # raises when it is asked: tools that need no lease work there

# Seconds of the clock that leases are measured with. Raises ConfigError where there is none.
boottime: Final[Callable[[], float]] = _chosen


class LeaseGate:
    """One per member: written by its coordinator, read by its streams before every message.

    `deadline` is in seconds of `clock`; 0.0 means shut. Reading it needs no lock: it is one
    reference, and a reader that misses a change by an instant is the same as one that came an
    instant earlier.
    """

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        """Raises ConfigError where the platform has no clock for leases."""
        clock()
        self.clock = clock
        self.deadline = 0.0
        self._lock = threading.Lock()
        self._sleepers: set[threading.Event] = set()  # of the streams that wait for the lease

    @property
    def is_open(self) -> bool:
        return self.clock() < self.deadline

    def open(self, deadline: float) -> None:
        """Messages may be handed over until `deadline`; also renews."""
        self.deadline = deadline
        with self._lock:
            for wake in self._sleepers:
                wake.set()

    def shut(self) -> None:
        """No message is handed over from now on."""
        self.deadline = 0.0

    def wait(self, holdings: Holdings, timeout_s: float) -> None:
        """Wait until the gate is open or `holdings` needs attention, at most `timeout_s`.

        The event is cleared first and both are looked at afterwards: a change that comes between
        the two is seen there, and one that comes later sets the event again.
        """
        with self._lock:
            self._sleepers.add(holdings.wake)
        try:
            holdings.wake.clear()
            if not self.is_open and not holdings.attention:
                holdings.wake.wait(timeout_s)
        finally:
            with self._lock:
                self._sleepers.discard(holdings.wake)
