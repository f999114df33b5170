"""Explores all interleavings of a user's thread and other threads within one stream.

`explore` runs the production modules `stream_partitions`, `stream_fetcher` and `stream`.
`InstrumentedModules` compiles them from their sources with a call before each read and write of an
attribute that threads share, so the production code has no hooks. At each of these calls (a point)
the scheduler may let another thread continue. One thread runs at a time, so the threads are
greenlets: a change between greenlets takes a hundredth of the time of a change between threads. The
extra `test` contains the package greenlet, because only tests use this module.

The search is stateless: it replays a list of choices and continues from there. During a replay it
does not compute again what the threads have read, because the first run has noted this. It prunes a
schedule at a state that an earlier schedule has reached. A state consists of the shared data, the
judge's state, and what each thread has read since its operation began. A thread's local variables
follow from what it has read, so two schedules that reach the same state continue in the same way.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, TypeAlias

from greenlet import greenlet  # type: ignore[import-untyped]  # it has no types

from zkconsumer.consumer import stream_partitions as production
from zkconsumer.consumer.stream_partitions import Codec, CommitScope, Grant
from zkconsumer.errors import ConnectorClosedError, FetchError
from zkconsumer.kafka.fetcher import (
    BUFFER_MESSAGES,
    IDLE_S,
    AutoOffsetReset,
    FetchFault,
    FetchFaultKind,
    MessageList,
)
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.logs import CountedLog, MemoryFetcher

Observed: TypeAlias = Any
"""An object of the instrumented modules. They are compiled at run time, so mypy does not see
them."""

MODULES: Final = ("stream_partitions", "stream_fetcher", "stream")

_SYNCHRONIZATION: Final = frozenset({"wake", "_writing"})
_CONSTANT: Final = frozenset({"codec", "tp", "epoch", "_codec", "_done", "_states"})

SHARED: Final = (
    frozenset(
        {
            *production.GrantedPartition.__slots__,
            *production._Release.__slots__,
            *vars(production.StreamPartitions(Codec())),
            "deadline",
        }
    )
    - _SYNCHRONIZATION
    - _CONSTANT
)
"""Attributes that one thread writes and another reads.

Locks and events are not listed: `InstrumentedModules` replaces them by the scheduler's own locks
and events, at which threads switch anyway.
"""

TOPIC: Final = "t"

WRITTEN_BY_THE_USER: Final = frozenset({"unfinished", "last", "start"})
"""Attributes of a `GrantedPartition` that only the user's thread writes once others can see the
object.
"""

MAX_POINTS: Final = 20_000
"""Upper bound of the number of points in one schedule. More points count as an endless schedule.
"""

Edit = tuple[str, str]
"""A text in the source of a production module, and its replacement: together a mutant."""


class HandOverViolation(AssertionError):
    """A promise of the hand-over was broken."""


class _ScheduleEnded(BaseException):
    """Raised in the threads of a schedule that has ended, to unwind them."""


# ---- the production code, with points -----------------------------------------------------------


class _PointInserter(ast.NodeTransformer):
    """Replaces `x.shared` by `__point__(x, "shared", is_read).shared`."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr in SHARED:
            is_read = ast.Constant(isinstance(node.ctx, ast.Load))
            arguments: list[ast.expr] = [node.value, ast.Constant(node.attr), is_read]
            node.value = ast.Call(ast.Name("__point__", ast.Load()), arguments, [])
        return node


class InstrumentedModules:
    """The instrumented modules; `edits` changes their sources, to plant a defect.

    Raises ValueError for an edit whose text does not occur exactly once.
    """

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        self.scheduler: Scheduler | None = None
        self.locks: list[_Lock] = []  # `_writing` of the stream that is explored
        todo = dict(edits)
        names = [f"zkconsumer.consumer.{name}" for name in MODULES]
        before = {name: sys.modules.get(name) for name in names}
        modules: dict[str, Observed] = {}
        try:
            # The instrumented modules import each other, so they are in sys.modules during the
            # import.
            for name in names:
                modules[name] = sys.modules[name] = self._compiled(name, todo)
        finally:
            for name, one in before.items():
                if one is None:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = one
        if todo:
            raise ValueError(f"does not occur exactly once in the sources: {[*todo]}")
        self.partitions, _, self.stream = modules.values()
        original = self.partitions.GrantedPartition

        def make(grant: Grant, codec: Codec[Observed, Observed]) -> Observed:
            state = original(grant, codec)
            assert self.scheduler is not None
            self.scheduler.created_states.append(state)
            return state

        self.partitions.GrantedPartition = make

    def _compiled(self, name: str, edits: dict[str, str]) -> ModuleType:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        source = Path(spec.origin).read_text(encoding="utf-8")
        for old in [one for one in edits if source.count(one) == 1]:
            source = source.replace(old, edits.pop(old))
        module = ModuleType(name)
        sys.modules[name] = module
        tree = ast.fix_missing_locations(_PointInserter().visit(ast.parse(source)))
        module.__dict__["__point__"] = self._point
        exec(compile(tree, spec.origin, "exec"), module.__dict__)
        locks = SimpleNamespace(
            Event=lambda: _Event(self),
            Lock=lambda: _Lock(self),
            RLock=lambda: _Lock(self),
            current_thread=threading.current_thread,
        )
        module.__dict__["threading"] = locks
        return module

    @property
    def active(self) -> Scheduler | None:
        """The scheduler while its threads run; None while a schedule is prepared or judged."""
        return self.scheduler if self.scheduler and self.scheduler.active else None

    def _point(self, subject: Observed, name: str, is_read: bool) -> Observed:
        scheduler = self.active
        if scheduler is None:
            return subject
        is_user = scheduler.current is scheduler.threads[0]
        if name in WRITTEN_BY_THE_USER:
            # Only the user's thread writes these attributes, so conflicts arise only between its
            # writes and other threads' reads.
            meets = is_user is not is_read
        else:
            # Other threads write under the lock, so their reads under the lock conflict with no
            # write.
            meets = is_user or not is_read or not self.holds_lock(scheduler.current)
        if meets:
            scheduler.point()
        if is_read and not (is_user and name in WRITTEN_BY_THE_USER):
            scheduler.observed(getattr(subject, name))
        return subject

    def holds_lock(self, thread: _Thread) -> bool:
        return any(one.owner is thread for one in self.locks)


class _Lock:
    """A reentrant lock. It also replaces plain locks, since no thread takes a plain lock twice."""

    def __init__(self, code: InstrumentedModules) -> None:
        self._code = code
        self.owner: _Thread | None = None
        self.count = 0

    def acquire(self, blocking: bool = True) -> bool:
        scheduler = self._code.active
        if scheduler is None:
            return True
        scheduler.point()
        me = scheduler.current
        if blocking:
            scheduler.wait(lambda: self.owner in (None, me))
        taken = self.owner in (None, me)
        if taken:
            self.owner, self.count = me, self.count + 1
        scheduler.observed(taken)
        return taken

    def release(self) -> None:
        scheduler = self._code.active
        if scheduler is None or scheduler.over:
            return
        self.count -= 1
        if not self.count:
            self.owner = None

    def locked(self) -> bool:
        scheduler = self._code.active
        assert scheduler is not None
        scheduler.point()
        scheduler.observed(self.owner is None)
        return self.owner is not None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Event:
    """An event. A wait of at most `TURN_S` may time out once another thread has continued. A longer
    wait never times out, so a lost wake-up leaves the thread asleep.
    """

    def __init__(self, code: InstrumentedModules) -> None:
        self._code = code
        self.flag = False

    def set(self) -> None:
        if (scheduler := self._code.active) is not None:
            scheduler.point()
        self.flag = True

    def clear(self) -> None:
        if (scheduler := self._code.active) is not None:
            scheduler.point()
        self.flag = False

    def wait(self, timeout_s: float | None) -> bool:
        scheduler = self._code.active
        assert scheduler is not None
        scheduler.point()
        if timeout_s is None or timeout_s > self._code.stream.TURN_S:
            scheduler.wait(lambda: self.flag)
        elif timeout_s > 0 and not self.flag:
            scheduler.wait_for_others()
        scheduler.observed(self.flag)
        return self.flag


# ---- threads ------------------------------------------------------------------------------------


class _Thread:
    def __init__(
        self, name: str, body: Callable[[], None], work: Callable[[_Thread], None]
    ) -> None:
        self.name = name
        self.body = body
        self.greenlet = greenlet(partial(work, self))
        self.waits_for: Callable[[], bool] | None = None
        self.operation = 0  # index of the operation in this thread's script
        self.history = 0  # hash of what it has read in this operation
        self.steps = 0
        self.seen = -1  # step count of the other threads at its last wait
        self.finished = False
        self.error: BaseException | None = None

    @property
    def runnable(self) -> bool:
        return not self.finished and (self.waits_for is None or self.waits_for())


Choose = Callable[[list["_Thread"]], "_Thread | None"]
"""Picks the next thread from a list that begins with the last one. None prunes the schedule.
"""


class Scheduler:
    """Runs one schedule; only the running thread calls its methods, except `run`."""

    def __init__(self, choose: Choose) -> None:
        self.created_states: list[Observed] = []  # every GrantedPartition of this schedule
        self.active = False
        self.over = False
        self.pruned = False
        self.replays = False  # whether `run` repeats choices of an earlier schedule
        self.points = 0
        self._threads: list[_Thread] = []
        self._choose = choose
        self._running: _Thread | None = None
        self._caller = greenlet.getcurrent()

    @property
    def current(self) -> _Thread:
        assert self._running is not None
        return self._running

    @property
    def threads(self) -> Sequence[_Thread]:
        return self._threads

    def run(self, bodies: dict[str, Callable[[], None]]) -> None:
        """Run the threads until all have ended, none can continue, or `choose` prunes the run."""
        self._threads = [_Thread(name, body, self._work) for name, body in bodies.items()]
        self.active = True
        self._switch(None)
        while not self.over:
            self.current.greenlet.switch()
        for thread in self._threads:
            if thread.greenlet:  # It has begun and has not ended.
                thread.greenlet.throw(_ScheduleEnded)
        self.active = False
        for thread in self._threads:
            if thread.error is not None:
                raise thread.error

    def _work(self, me: _Thread) -> None:
        try:
            me.body()
        except _ScheduleEnded:
            return
        except BaseException as error:  # noqa: BLE001  # `run` raises it
            me.error = error
            self.over = True
            return
        me.finished = True
        self._switch(None)

    def point(self) -> None:
        """Let another thread continue here."""
        if self.over:
            raise _ScheduleEnded
        me = self.current
        self.points += 1
        me.steps += 1
        self.observed(None)  # a write also counts as progress of the thread
        if self.points > MAX_POINTS:
            raise HandOverViolation("the schedule does not end")
        self._switch(me)

    def wait(self, ready: Callable[[], bool]) -> None:
        """Continue when `ready()`; if that never becomes true, the schedule ends here."""
        me = self.current
        while not ready():
            me.waits_for = ready
            self._switch(me)
        me.waits_for = None

    def wait_for_others(self) -> None:
        """Wait until another thread has continued since this thread's last wait of this kind."""
        me = self.current
        self.wait(lambda: self.is_behind(me))
        me.seen = self._steps_of_others(me)

    def is_behind(self, thread: _Thread) -> bool:
        """Return whether another thread has continued since this thread's last wait."""
        return self._steps_of_others(thread) > thread.seen

    def _steps_of_others(self, me: _Thread) -> int:
        return sum(one.steps + one.finished for one in self._threads if one is not me)

    def observed(self, value: Observed) -> None:
        """Note what the running thread has read, except during a replay."""
        if self.replays:
            return
        me = self.current
        me.history = hash((me.history, self.described(value)))

    def end_replay(self, histories: tuple[int, ...]) -> None:
        """If this is a replay, end it, and set what the threads have read until now."""
        if self.replays:
            self.replays = False
            for thread, history in zip(self._threads, histories, strict=True):
                thread.history = history

    def described(self, value: Observed) -> Hashable:
        """Return a value that two schedules can compare."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, dict):
            return tuple([(key, self.described(one)) for key, one in value.items()])
        if hasattr(value, "offset"):
            return value.offset
        if hasattr(value, "unfinished"):
            return self.label(value)
        if hasattr(value, "__iter__"):
            return tuple([self.described(one) for one in copy.copy(value)])
        if isinstance(value, Exception):
            return repr(value)
        if hasattr(value, "_token"):
            return tuple(value._done.partitions), len(value._token)
        raise TypeError(f"cannot compare {value!r}")

    def label(self, state: Observed) -> Hashable:
        """Return a name of a GrantedPartition: its grant, and its number among the states of that
        grant.
        """
        same = [
            one for one in self.created_states if (one.tp, one.epoch) == (state.tp, state.epoch)
        ]
        return state.tp, state.epoch, next(n for n, one in enumerate(same) if one is state)

    def _switch(self, me: _Thread | None) -> None:
        runnable = [one for one in self._threads if one.runnable]
        if me in runnable:
            runnable.remove(me)
            runnable.insert(0, me)
        chosen = self._choose(runnable) if len(runnable) > 1 else next(iter(runnable), None)
        if chosen is None:
            self.pruned = bool(runnable)
            self.over = True
            if me is not None:
                raise _ScheduleEnded
            return
        self._running = chosen
        if me is not None and chosen is not me:
            self._caller.switch()  # `run` continues with the chosen thread


# ---- cases and the judge -------------------------------------------------------------------------

Op = tuple[Observed, ...]
"""A call and its arguments: a method of `_Schedule`."""


@dataclass(frozen=True)
class Case:
    """A small script for each thread, over two partitions of one stream.

    Attributes:
        user: the calls of the user's thread.
        others: the calls of each other thread; the first thread is the member's thread.
        messages: the number of messages of each partition.
        granted: the partitions that are granted, at offset `start`, before the threads begin.
        markers: the number of transaction markers after the last message of each partition.
    """

    name: str
    user: tuple[Op, ...]
    others: tuple[tuple[Op, ...], ...]
    messages: tuple[int, int] = (2, 1)
    granted: tuple[int, ...] = (0, 1)
    start: int = 0
    markers: int = 0


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        outcomes: the hashes of the final states of the schedules that were not pruned.
        violation: the first broken promise; `path` names the threads that continued up to it.
    """

    states: int
    schedules: int
    seconds: float
    complete: bool
    outcomes: frozenset[Hashable]
    violation: HandOverViolation | None = None
    path: tuple[str, ...] = ()


Key = tuple[TopicPartition, int]
"""A partition, and the epoch of one of its grants."""


class _Done:
    """The callback of one request to release."""

    def __init__(self, judge: _Judge, keys: frozenset[Key], point: Callable[[], None]) -> None:
        self._point = point
        self.partitions = tuple(sorted(keys))
        self.called = False
        self._judge = judge

    def __call__(self) -> None:
        self._point()  # the callback posts to an inbox, which threads share
        if self.called:
            raise HandOverViolation(f"the release of {self.partitions} is answered twice")
        self.called = True
        for key in self.partitions:
            if self._judge.unfinished.get(key):
                raise HandOverViolation(
                    f"the release of {key} is answered before its message is finished"
                )
            self._judge.answered.add(key)


@dataclass
class _Judge:
    """Remembers what happened, and raises HandOverViolation at the call that breaks a promise.

    Attributes:
        unfinished: the offsets that the user got and has not finished.
        next: the offset that must be delivered next.
        seeks: an offset that a seek allows instead of `next`, and whether the seek has returned.
        finished: the offset below which the user has finished every message that it got.
        answered: partitions of answered releases; none of their messages may be delivered.
        stopped: partitions that no later call of the user may deliver.
        forbidden: the stopped partitions at the start of the user's current call.
        read: the highest position that `positions` has returned, by kind.
        claimed: positions of delivered messages that the user's current call must still return.
        messages: the number of messages of each partition.
        markers: the number of transaction markers after them.
    """

    messages: dict[TopicPartition, int]
    markers: int

    unfinished: dict[Key, list[int]] = field(default_factory=dict)
    next: dict[Key, int] = field(default_factory=dict)
    seeks: dict[Key, tuple[int, bool]] = field(default_factory=dict)
    finished: dict[Key, int] = field(default_factory=dict)
    answered: set[Key] = field(default_factory=set)
    stopped: set[Key] = field(default_factory=set)
    paused: set[Key] = field(default_factory=set)
    forbidden: set[Key] = field(default_factory=set)
    reported_seeks: dict[Key, int] = field(default_factory=dict)
    read: dict[tuple[str, Key], int] = field(default_factory=dict)
    claimed: dict[Key, int] = field(default_factory=dict)
    asked: list[_Done] = field(default_factory=list)
    failures: int = 0
    is_closed: bool = False
    is_shut: bool = False
    is_inside: bool = False

    def key(self) -> Hashable:
        """Return the judge's whole state, for comparison."""
        return tuple(
            [
                (
                    sorted(value.items())
                    if isinstance(value, dict)
                    else sorted(value)
                    if isinstance(value, set)
                    else [one.called for one in value]
                    if isinstance(value, list)
                    else value
                ).__repr__()
                for value in vars(self).values()
            ]
        )

    # ---- called by the user's thread -------------------------------------------------------------

    def call_begins(self) -> None:
        """The user asks for messages, so it has finished the messages that it got before."""
        self.unfinished.clear()
        self.is_inside = True
        for key, offset in self.next.items():
            self.finished[key] = max(self.finished.get(key, 0), offset)
        self.forbidden = self.stopped | self.paused
        if self.is_closed or self.is_shut:
            self.forbidden |= self.next.keys()
        for key, (offset, returned) in list(self.seeks.items()):
            if returned:
                self.next[key] = offset
                del self.seeks[key]

    def call_returns(self, messages: Iterable[tuple[Key, int]]) -> None:
        self.is_inside = False
        for key, offset in messages:
            if key in self.answered:
                raise HandOverViolation(f"{key} at {offset} comes after its release was answered")
            if key in self.forbidden:
                raise HandOverViolation(f"{key} at {offset} comes although delivery was stopped")
            if offset != self.next[key]:
                if offset != self.seeks.get(key, (None,))[0]:
                    raise HandOverViolation(f"{key} at {offset} comes instead of {self.next[key]}")
                del self.seeks[key]
            self.next[key] = offset + 1
            self.unfinished.setdefault(key, []).append(offset)
        self._settle_claims()

    def _settle_claims(self) -> None:
        for key, offset in self.claimed.items():
            if offset > self.over_markers(key, self.next[key]):
                raise HandOverViolation(f"the delivered position of {key} was {offset}, too high")
        self.claimed.clear()

    # ---- called by other threads -----------------------------------------------------------------

    def bounds(self) -> dict[Key, int]:
        """Return the highest positions that cover only finished messages."""
        found = {key: min(self.unfinished.get(key) or [at]) for key, at in self.next.items()}
        return {key: max(at, self.seeks.get(key, (0,))[0]) for key, at in found.items()}

    def over_markers(self, key: Key, position: int) -> int:
        """Return the highest position that covers no more messages than `position`."""
        return position + self.markers if position == self.messages[key[0]] else position

    def positions(
        self, which: CommitScope, reported: dict[Key, int], found: dict[Key, int]
    ) -> None:
        """Check positions; `reported` are the seeks that were reported before the positions were
        requested.
        """
        bounds = self.bounds()
        for key, offset in found.items():
            if which is CommitScope.FINISHED:
                covered = max(bounds[key], self.finished.get(key, 0))
                if offset > self.over_markers(key, covered):
                    raise HandOverViolation(f"the position of {key} is {offset}, not finished")
            elif key not in self.seeks:
                self.claimed[key] = max(self.claimed.get(key, 0), offset)
            if key in reported and key in self.seeks and offset > reported[key] + 1:
                raise HandOverViolation(f"the position of {key} is {offset}, from before the seek")
            if offset < self.read.get((which.name, key), 0) and key not in self.reported_seeks:
                raise HandOverViolation(
                    f"the position of {key} went back to {offset} without a report"
                )
            self.read[which.name, key] = offset
        if not self.is_inside:
            self._settle_claims()

    # ---- the end ---------------------------------------------------------------------------------

    def schedule_ends(self, user_waits: bool, attention: bool) -> None:
        """Check the state at the end of a schedule, when no thread can continue."""
        if not user_waits:
            self._settle_claims()
        for done in self.asked:
            # After a seek, a finished message counts as unfinished until the user asks again: the
            # user's thread finds the new GrantedPartition at that time.
            held = any(
                self.unfinished.get(key) or key in self.reported_seeks for key in done.partitions
            )
            if not (done.called or (held and not user_waits)):
                raise HandOverViolation(f"the release of {done.partitions} is not answered")
        if not user_waits:
            return
        if attention or self.failures or self.is_closed:
            raise HandOverViolation("the user's thread sleeps although something has changed")
        stopped = self.stopped | self.paused | self.answered
        left = (
            []
            if self.is_shut
            else [
                key
                for key, at in self.bounds().items()
                if key not in stopped
                and at < self.messages[key[0]]
                and not any(key in done.partitions for done in self.asked)
            ]
        )
        if left:
            raise HandOverViolation(f"the user's thread waits although {left} has messages")


class _Fetcher(MemoryFetcher):
    """A fetcher whose `fetch` restarts the history of reads of the calling thread, and that
    reports the end of a log with markers, as the clients of read_committed streams do.

    Later decisions do not depend on what `StreamFetcher.fetch` and `Stream._wait_for_messages`
    read before the call of the client's `fetch`.
    """

    def __init__(self, log: CountedLog, scheduler: Scheduler, markers: int) -> None:
        super().__init__(log, lambda *_: scheduler.wait_for_others())
        self._scheduler, self._markers = scheduler, markers

    def fetch(self, timeout_s: float, max_messages: int = BUFFER_MESSAGES) -> list[MessageList]:
        self._scheduler.current.history = 0
        self._scheduler.observed(timeout_s)
        self._report_ends()
        found = super().fetch(timeout_s, max_messages)
        self._report_ends()
        return found

    def _report_ends(self) -> None:
        """Move over the markers at the ends of the logs, and report these ends."""
        for tp, offset in self.positions.items() if self._markers else ():
            if offset == self._log.end(tp):
                self.positions[tp] = end = offset + self._markers
                self.faults.append(FetchFault(FetchFaultKind.END, tp, "the end of the log", end))

    def _is_out_of_range(self, tp: TopicPartition, offset: int) -> bool:
        return super()._is_out_of_range(tp, min(offset, self._log.end(tp)))


class _Schedule:
    """One schedule of a case: the stream, the judge, and the threads' scripts."""

    def __init__(self, code: InstrumentedModules, case: Case, choose: Choose) -> None:
        self.case = case
        messages = {
            TopicPartition(TOPIC, number): count for number, count in enumerate(case.messages)
        }
        self.judge = _Judge(messages, case.markers)
        self.scheduler = Scheduler(choose)
        self.code = code
        code.scheduler = self.scheduler
        self.gate = code.partitions.LeaseGate(clock=lambda: 0.0)
        self.gate.open(1.0)
        self.fetcher = _Fetcher(CountedLog(messages, {}), self.scheduler, case.markers)
        self.stream = code.stream.StreamReader(
            topic=TOPIC,
            thread_id="g_0-0",
            number=0,
            gate=self.gate,
            connect=lambda: self.fetcher,
            reset=AutoOffsetReset.SMALLEST,
            timeout_s=None,
            retry_s=0.0,
            codec=Codec(),
            report=self._on_report,
            turn_s=IDLE_S,
        )
        code.locks = [self.stream._partitions._writing]
        self._epoch = 100
        self._held: Observed = None  # the state of the last message that the user got
        for number in case.granted:
            self.grant(number, case.start)

    def run(self) -> None:
        """Run the schedule; raises HandOverViolation."""
        bodies: dict[str, Callable[[], None]] = {"user": partial(self._script, self.case.user)}
        for number, script in enumerate(self.case.others, 1):
            bodies[f"other {number}"] = partial(self._script, script)
        scheduler = self.scheduler
        scheduler.run(bodies)
        if not scheduler.pruned:
            partitions = self.stream._partitions
            user_waits = not scheduler.threads[0].finished
            self.judge.schedule_ends(user_waits, partitions.has_changed)
        self.code.scheduler = None

    def _script(self, ops: tuple[Op, ...]) -> None:
        me = self.scheduler.current
        for number, (name, *arguments) in enumerate(ops):
            # Local variables do not survive an operation, with one exception: while `Stream.ready`
            # is suspended, it keeps the state of the message that it has yielded.
            me.history, me.operation = 0, number
            if me is self.scheduler.threads[0]:
                self.scheduler.observed(self._held)
            self.scheduler.point()
            getattr(self, name)(*arguments)

    def state(self) -> Hashable:
        """Return a value that is equal for two schedules that continue in the same way."""
        scheduler, stream, gate = self.scheduler, self.stream, self.gate
        partitions, fetcher = stream._partitions, stream._fetcher
        described, label = scheduler.described, scheduler.label
        threads = [
            (one.operation, one.history, one.finished, one.runnable, scheduler.is_behind(one))
            for one in scheduler.threads
        ]
        states = [
            (label(one), one.granted, *map(described, (one.start, one.last, one.unfinished)))
            for one in scheduler.created_states
        ]
        names = {one: one.name for one in scheduler.threads}
        locks = [
            (one.owner and names[one.owner], one.count)
            for one in (partitions._writing, stream._in_use, gate._lock)
        ]
        flags = [
            partitions.wake.flag,
            len(gate._sleepers),
            gate.deadline,
            stream._is_interrupted,
            stream._iterator is None,
            partitions.has_changed,
            partitions.closed,
            len(partitions._failures),
        ]
        tables = [
            described(one)
            for one in (
                partitions._wanted,
                partitions._paused,
                partitions._releases,
                fetcher.states,
                [
                    (one.run.tp, one.run.offset(0), [*copy.copy(one.numbers)])
                    for one in fetcher.unread
                ],
                self.fetcher.positions,
                [(one.tp, one.offset) for one in self.fetcher.faults],
                fetcher._ends_after_buffer,
            )
        ]
        not_fetched = [(tp, one.reason) for tp, one in fetcher.not_fetched.items()]
        return (
            tuple(map(tuple, (threads, states, locks, flags, tables, not_fetched))),
            fetcher._client is None,
            self.judge.key(),
        )

    # ---- called by the user's thread -------------------------------------------------------------

    def next(self) -> None:
        """Ask for one message; wait until there is a message or the stream is closed."""
        self._ask(lambda: [next(self.stream)])

    def poll(self, most: int, timeout_s: float) -> None:
        self._ask(lambda: list(self.stream.poll(max_messages=most, timeout_s=timeout_s)))

    def _ask(self, ask: Callable[[], list[Observed]]) -> None:
        judge = self.judge
        judge.call_begins()
        try:
            messages = ask()
        except (StopIteration, ConnectorClosedError):
            judge.call_returns([])
            if not self.stream.closed or judge.failures:
                raise HandOverViolation("the stream ends although it is open, or failed") from None
        except FetchError:
            judge.call_returns([])
            judge.failures -= 1
        else:
            self._held = messages[-1]._held if messages else None
            judge.call_returns(
                ((TopicPartition(one.topic, one.partition), one.token), one.offset)
                for one in messages
            )

    # ---- the calls of other threads --------------------------------------------------------------

    def _keys(self, *numbers: int) -> set[Key]:
        """Return the current grants of these partitions."""
        tps = {TopicPartition(TOPIC, number) for number in numbers}
        found = {key for key in self.judge.next if key[0] in tps}
        return {max(key for key in found if key[0] == tp) for tp in {key[0] for key in found}}

    def grant(self, number: int, offset: int) -> None:
        self._epoch += 1
        tp = TopicPartition(TOPIC, number)
        old = self._keys(number)
        self.judge.next[tp, self._epoch] = offset
        self.stream.grant([Grant(tp, offset, self._epoch, 1)])
        self.judge.stopped |= old

    def withdraw(self, *numbers: int) -> None:
        keys = self._keys(*numbers)
        self.stream.withdraw([tp for tp, _ in keys])
        self.judge.stopped |= keys

    def ask_release(self, *numbers: int) -> _Done:
        keys = self._keys(*numbers)
        done = _Done(self.judge, frozenset(keys), self.scheduler.point)
        self.judge.asked.append(done)
        self.stream.ask_release(sorted(tp for tp, _ in keys), done)
        return done

    def hand_over(self, number: int) -> None:
        """Release a partition, commit its position, and grant it again from there."""
        done = self.ask_release(number)
        self.scheduler.wait(lambda: done.called)
        (key,) = done.partitions
        self._forget(key)
        offset = self.positions(CommitScope.FINISHED)[key]
        self._forget(key, offset)
        due = self.judge.next[key]
        if not due <= offset <= self.judge.over_markers(key, due):
            raise HandOverViolation(f"released, {key} is at {offset}, not {due}")
        self.withdraw(number)
        self.grant(number, offset)

    def _forget(self, *remembered: Observed) -> None:
        """Declare that the rest of an operation depends only on `remembered`."""
        self.scheduler.current.history = 0
        self.scheduler.observed(remembered)

    def positions(self, which: CommitScope) -> dict[Key, int]:
        reported = dict(self.judge.reported_seeks)
        read = self.stream.positions(self.code.partitions.CommitScope[which.name])
        found = {(tp, at.epoch): at.offset for tp, at in read.items()}
        self.judge.positions(which, reported, found)
        return found

    def seek(self, number: int, offset: int) -> None:
        (key,) = self._keys(number)
        self.judge.seeks[key] = offset, False
        self.judge.claimed.pop(key, None)
        if not self.stream.seek(key[0], offset):
            self.judge.seeks.pop(key, None)
            return
        if key not in self.judge.reported_seeks:
            raise HandOverViolation(f"{key} was moved by a seek without a report")
        if key in self.judge.seeks:
            self.judge.seeks[key] = offset, True

    def _on_report(self, report: Observed) -> None:
        self.scheduler.point()  # a report goes into an inbox, which threads share
        if report.offset is not None:
            self.judge.reported_seeks[report.tp, report.epoch] = report.offset

    def pause(self, *numbers: int) -> None:
        keys = self._keys(*numbers)
        self.stream.pause([tp for tp, _ in keys])
        self.judge.paused |= keys

    def resume(self, *numbers: int) -> None:
        keys = self._keys(*numbers)
        self.judge.paused -= keys
        self.judge.forbidden -= keys
        self.stream.resume([tp for tp, _ in keys])

    def fail(self) -> None:
        self.judge.failures += 1
        self.stream.fail(FetchError("planted", where="", remedy=""))

    def end(self) -> None:
        """End the member with an error."""
        self.judge.failures += 1
        self.stream.end(FetchError("planted", where="", remedy=""))
        self.judge.is_closed = True

    def close(self) -> None:
        self.stream.close()
        self.judge.is_closed = True

    def shut(self) -> None:
        self.gate.shut()
        self.judge.is_shut = True

    def open(self) -> None:
        self.judge.is_shut = False
        self.judge.forbidden = self.judge.stopped | self.judge.paused
        self.gate.open(1.0)


def explore(
    case: Case, code: InstrumentedModules, *, prune: bool = True, max_s: float = float("inf")
) -> SearchResult:
    """Run a case until every thread has continued from every state; stop at the first violation.

    Without `prune` all schedules run to their ends, which is feasible only for tiny cases.
    """
    started = time.monotonic()
    open_: dict[Hashable, list[int]] = {}  # state -> threads that have not continued from there
    # Schedules to run: the choices that lead to a state with an open choice, that state, and the
    # threads' histories in it.
    todo: deque[tuple[tuple[int, ...], Hashable, tuple[int, ...]]] = deque()
    prefix: tuple[int, ...] = ()
    histories: tuple[int, ...] = ()
    schedules = 0
    outcomes: set[Hashable] = set()

    def found(complete: bool, violation: HandOverViolation | None = None) -> SearchResult:
        path = tuple([schedule.scheduler.threads[one].name for one in taken]) if violation else ()
        seconds = time.monotonic() - started
        return SearchResult(
            len(open_), schedules, seconds, complete, frozenset(outcomes), violation, path
        )

    def choose(runnable: list[_Thread]) -> _Thread | None:
        threads = schedule.scheduler.threads
        if len(taken) < len(prefix):
            taken.append(prefix[len(taken)])
            return threads[taken[-1]]
        schedule.scheduler.end_replay(histories)
        key = hash(schedule.state()) if prune else (*taken, None)
        left = open_.get(key)
        if left is None:
            left = open_[key] = [threads.index(one) for one in reversed(runnable)]
            todo.append((tuple(taken), key, tuple([one.history for one in threads])))
        if not left:
            return None
        taken.append(left.pop())
        return threads[taken[-1]]

    while time.monotonic() - started < max_s:
        taken: list[int] = []
        schedules += 1
        schedule = _Schedule(code, case, choose)
        schedule.scheduler.replays = bool(prefix)
        try:
            schedule.run()
        except HandOverViolation as violation:
            return found(False, violation)
        if not schedule.scheduler.pruned:
            outcomes.add(hash(schedule.state()))
        while todo and not open_[todo[0][1]]:
            todo.popleft()
        if not todo:
            break
        prefix, _, histories = todo[0]
    return found(not todo)


def _next(times: int) -> tuple[Op, ...]:
    return (("next",),) * times


_FINISHED, _DELIVERED = ("positions", CommitScope.FINISHED), ("positions", CommitScope.DELIVERED)

CASES: Final = (
    Case("release while iterating", _next(2), ((("ask_release", 0), _FINISHED),)),
    Case("release of both partitions", _next(2), ((("ask_release", 0, 1),),)),
    Case("withdraw", _next(2), ((("withdraw", 0, 1),),)),
    Case("release of an unfinished message", _next(2), ((("ask_release", 0),),), (1, 1)),
    Case(
        "release before a marker", _next(2), ((("ask_release", 0), _FINISHED),), (1, 0), markers=1
    ),
    Case("hand over before a marker", _next(2), ((("hand_over", 0),),), (1, 0), markers=1),
    Case("release while polling", (("poll", 10, 0.0),) * 2, ((("ask_release", 0), _FINISHED),)),
    Case("hand over and back, iterating", _next(2), ((("hand_over", 0),),), (2, 0)),
    Case("hand over and back, polling", (("poll", 1, 1.0),) * 2, ((("hand_over", 0),),)),
    Case("withdraw and grant again", _next(2), ((("withdraw", 0), ("grant", 0, 0)),)),
    Case("replace a grant", _next(3), ((("grant", 0, 1),),)),
    Case("first grant wakes the user", _next(3), ((("grant", 0, 0), ("grant", 1, 0)),), granted=()),
    Case("positions", _next(3), ((_FINISHED, _DELIVERED, _FINISHED),)),
    Case("positions of batches", (("poll", 10, 0.0),) * 3, ((_FINISHED, _DELIVERED),)),
    Case(
        "seek back",
        (("next",), ("seek", 0, 0), ("next",)),
        ((_FINISHED, _FINISHED),),
        (4, 3),
        start=2,
    ),
    Case("seek ahead", _next(2), ((("seek", 0, 4), _DELIVERED),), (5, 0)),
    Case(
        "seek and release",
        (("poll", 9, 0.0),),
        ((("ask_release", 0),), (("seek", 0, 0),)),
        (4, 3),
        start=2,
    ),
    Case("pause and resume", _next(3), ((("pause", 0), ("resume", 0)),)),
    Case("pause and release", (("poll", 9, 0.0),), ((("ask_release", 0),), (("pause", 0, 1),))),
    Case("fail", _next(3), ((("fail",), ("fail",)),)),
    Case("the member ends by itself", _next(3), ((("end",),),)),
    Case("close", _next(3), ((("close",),),)),
    Case("the lease ends", _next(3), ((("shut",), ("open",), ("shut",)),)),
    Case("release behind a shut gate", _next(2), ((("shut",), ("ask_release", 0)),)),
)
"""Cases for each request of the member's thread, each pause and each seek, during each kind of call
that a user makes."""
