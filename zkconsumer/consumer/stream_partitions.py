"""The partitions of a stream, shared by the member's and the user's thread; the lease gate.

The member's thread grants and revokes partitions, and any thread may pause or seek them; these
writers take a lock. Only the user's thread hands out messages. Neither side waits for the other.
Three rules make this safe. They rest on Python's global interpreter lock: every thread sees the
writes of another thread in their order. So `require_global_lock` refuses an interpreter without the
lock.

**A revoked partition stops at once.** `granted = False` ends delivery. The next time that the
user's thread asks for messages, it tells the broker client to stop fetching the partition.

**Each side writes before it reads (Dekker's algorithm).** Before each message the user's thread
takes these steps:
    FINISH   set `unfinished = None` for the message that was handed out before
    LOOK     read `has_changed`
    MARK     set `unfinished = message` for the next message
    CONFIRM  read `granted`
A request to release takes these steps:
    REVOKE   set `granted = False`
    REQUEST  queue the request, then set `has_changed = True`
    INSPECT  read `unfinished`
In every interleaving at least one side sees the other:
- INSPECT finds no unfinished message. Then MARK has not happened yet, so the CONFIRM after MARK
  reads `granted = False`, and the message is not handed out. The member's thread answers the
  request itself.
- INSPECT finds an unfinished message. Then FINISH has not happened yet. So LOOK, which
  follows FINISH, also follows REQUEST, and finds the request. The user's thread answers it.
- Both sides see the other, in the order REVOKE, REQUEST, FINISH, LOOK, INSPECT. Each request has
  one token, and the thread that takes the token answers.

**A position that is read during a change is too low, never too high.** The user's thread writes
`unfinished` and then `last`. `positions` reads `last` first. If it reads the new `last`, there are
two cases: either `unfinished` still has that message, and the position is the message's offset; or
the user has finished the message meanwhile. If it reads the old `last`, the position is at most the
offset after that old message. So a commit may store an offset that is too low, which redelivers
messages. A commit never stores an offset that is too high, which would lose messages.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from zkconsumer.errors import ConfigError, ZkConsumerError
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import Position, TopicPartition

Decoded: TypeAlias = Any  # Any: the result of a user's decoder of unknown type

# ---- decoders ------------------------------------------------------------------------------------


K = TypeVar("K")
V = TypeVar("V")


class Codec(Generic[K, V]):
    """The user's decoders of keys and values; without a decoder, messages return the bytes.

    If a decoder raises an exception, `failed` receives its text before the exception reaches the
    user.
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


# ---- the interpreter -----------------------------------------------------------------------------


def require_global_lock() -> None:
    """Raise ConfigError in an interpreter that runs without the global lock (PEP 703)."""
    # `sys` has this function from Python 3.13 on. The lock can be off only there.
    is_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    if not is_enabled():
        raise ConfigError(
            "this interpreter runs without the global interpreter lock, which orders the steps of "
            "a stream's thread and of the member's thread",
            where=sys.executable,
            remedy="use the standard build of Python, or set PYTHON_GIL=1",
        )


# ---- partitions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grant:
    """A partition to serve from `offset`; None means that `auto.offset.reset` chooses the offset.

    `epoch` is the czxid of the owner znode: the fencing token of every message of this grant.
    `session` is the id of the session that owns the znode. After ZooKeeper has lost its data, the
    owner znode of the next session may by chance have the same czxid.
    """

    tp: TopicPartition
    offset: int | None
    epoch: int
    session: int


class CommitScope(Enum):
    """Which messages a position covers."""

    FINISHED = "the messages after which the user has asked for another"
    DELIVERED = "all messages that were handed out"


class PartitionSink(Protocol):
    """Receives grants of partitions: a stream, Spark's `ThreadPartitions`, or a simulated stream.

    The member's thread calls it, so no call may block. `StreamPartitions` documents the calls.
    """

    def grant(self, grants: Iterable[Grant]) -> None: ...
    def withdraw(self, tps: Iterable[TopicPartition]) -> None: ...
    def ask_release(self, tps: Iterable[TopicPartition], done: Callable[[], None]) -> None: ...
    def positions(self, which: CommitScope) -> dict[TopicPartition, Position]: ...
    def explain(self, idle_reason: str, shortfall: str) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def end(self, error: ZkConsumerError) -> None: ...


class HasOffset(Protocol):
    """A message, or the place of one."""

    @property
    def offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Place:
    """The offset of a message that the stream does not keep."""

    offset: int


class GrantedPartition:
    """One partition under one grant; a new grant makes a new object.

    `last` is the last message that was handed out. `unfinished` is the first message that the user
    has not finished. During an iteration both are messages, because reading the offset of each
    message would cost throughput. Otherwise both are a `Place`, because a message keeps the memory
    of its whole batch. Before the first message, `start` is the next offset; None
    means that it is not known yet.
    """

    __slots__ = (
        "__weakref__",
        "codec",
        "epoch",
        "granted",
        "last",
        "session",
        "start",
        "tp",
        "unfinished",
    )

    def __init__(self, grant: Grant, codec: Codec[Decoded, Decoded]) -> None:
        self.codec = codec
        self.tp = grant.tp
        self.epoch = grant.epoch
        self.session = grant.session
        self.granted = True  # set to False once, by the member's thread or `seek`
        self.start = grant.offset
        self.last: HasOffset | None = None
        self.unfinished: HasOffset | None = None

    @property
    def ownership(self) -> tuple[int, int]:
        """The session and the epoch; a partition that was lost and claimed again has others."""
        return self.session, self.epoch

    @property
    def delivered(self) -> int | None:
        """The offset after the last delivered message; None if it is not known yet."""
        last = self.last
        return self.start if last is None else last.offset + 1

    def start_at(self, offset: int | None) -> None:
        """Continue from `offset`; concurrent readers see either the old or the new position."""
        self.start = offset
        self.last = None

    def position(self, which: CommitScope) -> int | None:
        """Return the next offset to commit; see the module's third rule for the order."""
        delivered = self.delivered
        unfinished = self.unfinished
        if which is CommitScope.FINISHED and unfinished is not None and delivered is not None:
            return min(unfinished.offset, delivered)
        return delivered


class _Release:
    """A request to release `states`; the thread that takes its token calls `done` once."""

    __slots__ = ("_done", "_states", "_token")

    def __init__(self, states: list[GrantedPartition], done: Callable[[], None]) -> None:
        self._states = states
        self._done = done
        self._token = [None]

    def answer_if_idle(self) -> None:
        """Call `done` now if the user has no unfinished message of the partitions."""
        if all(state.unfinished is None for state in self._states):  # INSPECT
            self.answer()

    def answer(self) -> None:
        try:
            self._token.pop()
        except IndexError:
            return
        self._done()


class StreamPartitions:
    """The part of a stream that the member's thread and the user's thread share."""

    def __init__(self, codec: Codec[Decoded, Decoded]) -> None:
        self._codec = codec
        # Whether grants, pauses or releases have changed, or the stream has failed or ended. Other
        # threads set this flag after their change. The user's thread clears it before it reads
        # anything, so it misses no change.
        self.has_changed = False
        self.wake = threading.Event()  # ends a sleep of the user's thread
        self.closed = False
        self.failure: ZkConsumerError | None = None  # the error that ended the member
        self.idle_reason = ""
        self.shortfall = ""  # why the thread lacks some of its partitions; "" if it soon has them
        # Threads hold this lock while they change `_wanted`. The lock is reentrant, because a
        # signal handler may pause or seek while the interrupted thread holds the lock.
        self._writing = threading.RLock()
        self._wanted: dict[TopicPartition, GrantedPartition] = {}
        # The last withdrawn grant of each partition, as long as the user's thread refers to it.
        self._withdrawn = weakref.WeakValueDictionary[TopicPartition, GrantedPartition]()
        # partition -> its ownership when it was paused
        self._paused: dict[TopicPartition, tuple[int, int]] = {}
        self._releases: deque[_Release] = deque()
        self._failures: deque[Exception] = deque()

    @property
    def holds_any(self) -> bool:
        return bool(self._wanted)

    # ---- called by the member's thread: any thread, never blocks ---------------------------------

    def grant(self, grants: Iterable[Grant]) -> None:
        with self._writing:
            for one in grants:
                old = self._wanted.get(one.tp)
                if old is not None:
                    old.granted = False
                self._wanted[one.tp] = new = GrantedPartition(one, self._codec)
                if not self.is_paused(new):
                    self._paused.pop(one.tp, None)
        self.notify()

    def withdraw(self, tps: Iterable[TopicPartition]) -> None:
        """Stop delivering these partitions now, and forget their positions."""
        with self._writing:
            for tp in tps:
                state = self._wanted.pop(tp, None)
                if state is not None:
                    state.granted = False
                    self._withdrawn[tp] = state
        self.notify()

    def ask_release(self, tps: Iterable[TopicPartition], done: Callable[[], None]) -> None:
        """Stop delivering these partitions; call `done` once, when the user has finished.

        If the user has no unfinished message, this thread calls `done` at once. Otherwise the
        user's thread calls `done` when it asks for the next message. The positions stay known until
        `withdraw`.

        A partition that is withdrawn and granted again under the same ownership continues at
        another offset, and the user may still hold a message of the former grant. So the request
        also waits for that message.
        """
        with self._writing:
            states = [self._wanted[tp] for tp in tps if tp in self._wanted]
            for state in states:
                state.granted = False  # REVOKE
            former = (self._withdrawn.get(state.tp) for state in states)
            owned = {state.tp: state.ownership for state in states}
            states += [one for one in former if one is not None and one.ownership == owned[one.tp]]
        release = _Release(states, done)
        self._releases.append(release)
        self.notify()  # REQUEST
        release.answer_if_idle()

    def positions(self, which: CommitScope) -> dict[TopicPartition, Position]:
        """Return the known positions of the partitions that were granted and not withdrawn."""
        states = self._wanted.copy().values()
        found = ((state, state.position(which)) for state in states)
        return {
            state.tp: Position(state.epoch, offset) for state, offset in found if offset is not None
        }

    def fail(self, error: Exception) -> None:
        """Raise `error` once, when the user next asks for messages; the stream stays usable."""
        self._failures.append(error)
        self.notify()

    def end(self, error: ZkConsumerError) -> None:
        """Raise `error` when the user next asks for messages, and deliver no more."""
        if self.closed:
            return
        self.failure = error
        self._failures.append(error)  # before `closed`: see `StreamReader._wait_for_messages`
        self.close()

    def close(self) -> None:
        with self._writing:
            for state in self._wanted.values():
                state.granted = False
        self.closed = True
        self.notify()

    def notify(self) -> None:
        """Wake the user's thread and make it check for changes; any thread may call this method."""
        self.has_changed = True
        self.wake.set()

    # ---- pause and seek: any thread --------------------------------------------------------------

    @property
    def served(self) -> list[TopicPartition]:
        """The partitions for which `serves` returns True."""
        return [tp for tp, state in self._wanted.copy().items() if state.granted]

    def serves(self, tp: TopicPartition) -> bool:
        """Return whether the partition is granted and no release was requested."""
        state = self._wanted.get(tp)
        return state is not None and state.granted

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Stop delivering these partitions until `resume`, or until the next ownership."""
        with self._writing:
            self._paused |= {tp: self._wanted[tp].ownership for tp in tps if self.serves(tp)}
        self.notify()

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        with self._writing:
            for tp in tps:
                self._paused.pop(tp, None)
        self.notify()

    def is_paused(self, state: GrantedPartition) -> bool:
        return self._paused.get(state.tp) == state.ownership

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are served and paused."""
        states = self._wanted.copy().values()
        return frozenset(one.tp for one in states if one.granted and self.is_paused(one))

    def seek(self, tp: TopicPartition, offset: int, report: Callable[[int], None]) -> bool:
        """Continue from `offset` under the same epoch; return False if the partition is not served.

        `report` is called with the epoch while neither the old nor the new position can be read. So
        a commit never finds a lower position before the member's state machine knows of the seek.
        """
        with self._writing:
            if not self.serves(tp):
                return False
            old = self._wanted.pop(tp)
            old.granted = False
            report(old.epoch)
            new = GrantedPartition(Grant(tp, offset, old.epoch, old.session), self._codec)
            new.unfinished = old.unfinished  # until `take_requests` clears it
            self._wanted[tp] = new
        self.notify()
        return True

    # ---- called by the user's thread, with no unfinished message ---------------------------------

    def take_requests(self) -> dict[TopicPartition, GrantedPartition]:
        """Answer the release requests, and return the partitions that the stream should fetch.

        Raises the next error that `fail` or `end` has queued.
        """
        self.has_changed = False
        for state in self._wanted.copy().values():
            state.unfinished = None  # FINISH, also for a state that `seek` has made
        while self._releases:
            try:
                self._releases.popleft().answer()
            except IndexError:  # a second thread uses the stream; see `StreamReader.wait`
                break
        if self._failures:
            self.has_changed = True  # `raise_failure` ends this call; the next call continues
            self.raise_failure()
        return self._wanted.copy()

    def raise_failure(self) -> None:
        """Raise the oldest queued error, if any."""
        try:
            error = self._failures.popleft()
        except IndexError:
            return
        raise error

    def recheck_releases(self) -> None:
        """Answer release requests after CONFIRM has dropped their last unfinished message.

        1. MARK marks a message. 2. The member's thread revokes the partition (REVOKE, REQUEST) and
        finds the message unfinished (INSPECT). 3. CONFIRM drops the message. The user then has no
        unfinished message, and may not ask for the next one for a long time. So this call answers
        the request.
        """
        for release in self._releases.copy():
            release.answer_if_idle()

    def sleep(self, timeout_s: float | None) -> None:
        """Wait for a change, at most `timeout_s` seconds.

        The event is cleared before `has_changed` is read, so a change in between is not missed.
        """
        self.wake.clear()
        if not self.has_changed:
            self.wake.wait(timeout_s)


# ---- lease gate ----------------------------------------------------------------------------------


def lease_clock(platform: str, clocks: ModuleType) -> Callable[[], float]:
    """Return a platform's clock that continues while the computer sleeps, in seconds.

    A lease must also end while the computer sleeps, because ZooKeeper expires the session
    meanwhile. `time.monotonic` stops during sleep on Linux and on macOS (mach_absolute_time,
    CPython issue 86273), and continues on Windows (PEP 418).

    - Linux: CLOCK_BOOTTIME, see clock_gettime(2). CLOCK_MONOTONIC and CLOCK_MONOTONIC_RAW stop.
    - macOS 10.12 and later: CLOCK_MONOTONIC_RAW. The manual page clock_gettime(3) says that this
      clock increments "while the system is asleep", and that setting the time does not change it.
      Linux's clock of the same name stops during sleep, so this function chooses by platform.

    Args:
        platform: a value of `sys.platform`.
        clocks: the module `time`.

    Raises:
        ConfigError: the platform has no such clock, or none that this function knows.
    """
    names = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC_RAW"}
    if platform == "win32":
        monotonic: Callable[[], float] = clocks.monotonic
        return monotonic
    number = getattr(clocks, names.get(platform, ""), None)
    if number is None:
        raise ConfigError(
            "this platform has no known clock that continues during sleep, so a sleeping member "
            "could deliver partitions that other members own by then",
            where=f"sys.platform={platform}",
            remedy="run the member on Linux, macOS 10.12 or later, or Windows",
        )
    return partial(clocks.clock_gettime, number)


def _unsupported() -> float:
    return lease_clock(sys.platform, time)()


try:
    _chosen = lease_clock(sys.platform, time)
except ConfigError:
    _chosen = _unsupported  # raises only when it is called, so tools that need no lease still work

# Returns the lease clock's time in seconds. Raises ConfigError on a platform without such a clock.
boottime: Final[Callable[[], float]] = _chosen


class LeaseGate:
    """The time until which messages may be handed out; the member sets it, streams read it.

    `deadline` is in seconds of `clock`; 0.0 means that the gate is shut. Streams read it before
    every message without a lock. No lock is needed, because `deadline` is replaced by one
    assignment: a stream that reads the old value acts like a stream that read it a moment earlier.
    """

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        """Raises ConfigError on a platform without a clock for leases."""
        clock()
        self.clock = clock
        self.deadline = 0.0
        self._lock = threading.Lock()
        self._sleepers: set[threading.Event] = set()  # the events of the waiting streams

    @property
    def is_open(self) -> bool:
        return self.clock() < self.deadline

    def open(self, deadline: float) -> None:
        """Allow messages to be handed out until `deadline`; call it again to renew the lease."""
        self.deadline = deadline
        with self._lock:
            for wake in self._sleepers:
                wake.set()

    def shut(self) -> None:
        """Allow no more messages to be handed out."""
        self.deadline = 0.0

    def wait(self, partitions: StreamPartitions, timeout_s: float) -> None:
        """Wait until the gate is open or `partitions.has_changed`, at most `timeout_s` seconds.

        The event is cleared before both conditions are read. The read sees an earlier change, and a
        later change sets the event again.
        """
        with self._lock:
            self._sleepers.add(partitions.wake)
        try:
            partitions.wake.clear()
            if not self.is_open and not partitions.has_changed:
                partitions.wake.wait(timeout_s)
        finally:
            with self._lock:
                self._sleepers.discard(partitions.wake)
