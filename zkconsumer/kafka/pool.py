"""Broker clients that many streams share.

One client per stream is the fastest design, because no other thread touches the messages (see
`fetcher`). But it does not scale to hundreds of streams: sixteen idle streams cost 2 % of a CPU,
and each stream needs five threads and eight file descriptors. A connector with more than
`OWN_CLIENTS` streams uses a `FetcherPool`: a few clients, each driven by one fetch thread. (The JVM
also has a few fetcher threads for all streams.) Each stream gets a `SharedFetcher`, which
implements `Fetcher` without using a client.

    stream's thread --assign, unassign--> queue of commands --> fetch thread --> client
    stream's thread <--messages, faults-- queue of the stream <-- fetch thread <-- client

**A partition belongs to one client.** Topic and partition number determine the client; the stream
does not matter. When a partition moves between two streams, the same fetch thread ends the old
fetch and starts the new one, so no message is fetched twice.

**A message is delivered only under the assignment for which it was fetched.** Each assignment of a
partition is a new `_Route`. The stream's thread sets `live = False` when it unassigns the
partition, and takes no message of a route that is not live. The fetch thread looks up the route
after it has fetched. The fetch thread applies commands between two fetches, and after an unassign
the client returns nothing that it fetched before. So the following sequence is harmless:
    1. The fetch thread fetches messages of the old assignment.
    2. The stream's thread unassigns the partition and assigns it at another offset. The old route
       is not live, and the new route waits in the queue of commands.
    3. The fetch thread adds the messages to the old route, so they are dropped.
    4. The fetch thread unassigns and assigns the partition. Messages that it fetches from now on
       belong to the new route.

**A slow stream delays no other stream, and its memory is bounded.** When the queue of a stream is
full (it has the size that a separate client would prefetch), the fetch thread stops fetching the
stream's partitions. When the stream has taken half of the queue, the fetch thread resumes at the
next offset.

**A stream sleeps until there is work.** The fetch thread sets the stream's event when it adds to
the stream's queue, and the member's thread sets the same event, so an idle stream causes no
wake-ups.

**A fetch thread replaces a failed client without involving the streams.** Each route knows the next
offset, so the fetch thread continues from there with a new client. The fetch thread takes a new
client when all brokers have been down (`LOST_AFTER_S`), when their addresses have changed, and when
messages have been available for a long time and none was fetched.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from copy import copy
from typing import Final, Protocol

from zkconsumer.errors import FetchError, ZkConsumerError
from zkconsumer.kafka.fetcher import (
    BUFFER_MESSAGES,
    FAILED_S,
    IDLE_S,
    TURN_S,
    Answers,
    AutoOffsetReset,
    Fetcher,
    FetchFault,
    FetchFaultKind,
    MessageRun,
    drop_faults,
)
from zkconsumer.kafka.log_answers import NO_BROKER
from zkconsumer.kafka.progress import ProgressWatch
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.safe_logger import SafeLogger

logger = SafeLogger(logging.getLogger(__name__))

# Number of clients in a pool. With two, half of the partitions are still fetched while one client
# waits for a silent broker. More clients gain nothing: all fetch threads share one interpreter
# lock.
CLIENTS: Final = 2

# Seconds for which a fetch thread waits for the look-up of a topic before its first fetch; see
# `fetcher.LOOKUP_S`. All streams of the client wait during this time.
POOL_LOOKUP_S: Final = 0.2

# Seconds for which a fetch thread waits for a command while it has partitions and no client.
RETRY_S: Final = 0.2


class WakeSignal(Protocol):
    """The event that wakes the thread of a stream."""

    wake: threading.Event

    @property
    def has_changed(self) -> bool:
        """Whether the thread has other work; it becomes True before `wake` is set."""


class _Route:
    """One assignment of a partition to a stream."""

    __slots__ = ("below", "end", "fetcher", "live", "next", "tp")

    def __init__(self, fetcher: SharedFetcher, tp: TopicPartition, offset: int) -> None:
        self.fetcher, self.tp = fetcher, tp
        self.live = True  # the stream's thread sets it to False, once
        # Only the fetch thread uses these:
        self.next = offset  # the offset after the last queued message
        self.end = -1  # the log's end, if it is known
        self.below: _Route | None = None  # the route of another stream that this route replaced


class SharedFetcher:
    """The `Fetcher` of a stream that shares its clients with other streams; see the module's
    docstring."""

    is_instant = False  # the queue has a lock
    wait_s = math.inf  # the pool itself checks that messages arrive

    def __init__(self, pool: FetcherPool, wake_signal: WakeSignal) -> None:
        self.faults: deque[FetchFault] = deque()
        self._pool, self._wake_signal = pool, wake_signal
        self._routes: dict[TopicPartition, _Route] = {}
        # The stream's thread and the fetch threads use the following fields under this lock: the
        # queued messages and faults with their size in bytes, the totals, and the fetch threads
        # that have stopped because the queue is full.
        self._lock = threading.Lock()
        self._ready: deque[tuple[_Route | None, MessageRun | FetchFault, int]] = deque()
        self._messages = self._bytes = 0
        self._stopped: set[_FetchThread] = set()

    @property
    def queued(self) -> int:
        """The number of messages in the queue of the stream; any thread may read it."""
        return self._messages

    # ---- the stream's thread ---------------------------------------------------------------------

    def assign(self, offsets: Mapping[TopicPartition, int], timeout_s: float = 0.0) -> None:
        for tp, offset in offsets.items():
            route = self._routes[tp] = _Route(self, tp, offset)
            self._pool.thread_of(tp).post(route)

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        gone = [route for tp in tps if (route := self._routes.pop(tp, None)) is not None]
        if not gone:
            return
        for route in gone:
            route.live = False
            self._pool.thread_of(route.tp).post(route)
        with self._lock:
            kept = [one for one in self._ready if one[0] is None or one[0].live]
            self._ready = deque(kept)
            runs = (one[1] for one in kept if not isinstance(one[1], FetchFault))
            self._messages = sum(map(len, runs))
            self._bytes = sum(one[2] for one in kept)
            self._resume_fetching()
        drop_faults(self.faults, {route.tp for route in gone})

    def fetch(self, timeout_s: float, max_messages: int = BUFFER_MESSAGES) -> list[MessageRun]:
        if not self._ready and timeout_s > 0:
            # Clear the event before the check: a message that arrives after the check sets the
            # event again.
            self._wake_signal.wake.clear()
            if not self._ready and not self._wake_signal.has_changed:
                self._wake_signal.wake.wait(timeout_s)
        found: list[MessageRun] = []
        count = 0
        with self._lock:
            while self._ready and count < max_messages:
                _, what, size = self._ready[0]
                if isinstance(what, FetchFault):
                    is_end = what.kind is FetchFaultKind.END
                    if found and not is_end:
                        break
                    self._ready.popleft()
                    self.faults.append(what)
                    if is_end:
                        continue
                    break
                self._ready.popleft()
                found.append(what)
                count += len(what)
                self._messages -= len(what)
                self._bytes -= size
            self._resume_fetching()
        return found

    def resolve(self, tps: Iterable[TopicPartition], reset: AutoOffsetReset) -> Future[Answers]:
        return self._pool.resolve(list(tps), reset)

    def ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        routes = ((tp, self._routes.get(tp)) for tp in tps)
        return {tp: one.end for tp, one in routes if one is not None and one.end >= 0}

    def close(self) -> None:
        self.unassign(list(self._routes))

    def _resume_fetching(self) -> None:
        """Resume stopped partitions if there is room again; the caller holds the lock."""
        if self._stopped and self._pool.has_room(2 * self._messages, 2 * self._bytes):
            for thread in self._stopped:
                thread.post(self)
            self._stopped.clear()

    # ---- the fetch threads -----------------------------------------------------------------------

    def add(self, route: _Route, run: MessageRun, thread: _FetchThread) -> bool:
        """Queue messages of a route; return whether there is room for more.

        If there is no more room, `thread` receives a command as soon as there is room again.
        """
        size = run.size
        with self._lock:
            if not route.live:
                return True
            self._ready.append((route, run, size))
            self._messages += len(run)
            self._bytes += size
            has_room = self._pool.has_room(self._messages, self._bytes)
            if not has_room:
                self._stopped.add(thread)
        self._wake_signal.wake.set()
        return has_room

    def fail(self, route: _Route | None, fault: FetchFault) -> None:
        """Queue a fault of one route, or of all partitions that the stream fetches."""
        with self._lock:
            if route is not None and not route.live:
                return
            self._ready.append((route, fault, 0))
        self._wake_signal.wake.set()


class FetcherPool:
    """The clients that the streams of a connector share."""

    def __init__(
        self,
        *,
        connect: Callable[[], Fetcher | None],
        brokers_moved: Callable[[], bool] = lambda: False,
        trouble: Callable[[str], None] = lambda text: None,
        clients: int = CLIENTS,
        max_messages: int,
        max_bytes: int,
        name: str = "",
    ) -> None:
        """Store the settings. Each client is made when it is first needed.

        Args:
            connect: makes a client, on a fetch thread; returns None while no broker is registered.
            brokers_moved: whether all brokers' addresses have changed since the last `connect`.
            trouble: receives a description of each temporary error of the brokers, on a fetch
                thread.
            clients: the maximum number of clients.
            max_messages, max_bytes: the limits of the messages prefetched for one stream.
            name: the prefix of the threads' names.
        """
        self.connect, self.brokers_moved, self.trouble = connect, brokers_moved, trouble
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._threads = [_FetchThread(self, f"{name}-fetch-{one}") for one in range(clients)]

    def fetcher(self, wake_signal: WakeSignal) -> SharedFetcher:
        """Return the fetcher of one stream, whose thread waits for `wake_signal`."""
        return SharedFetcher(self, wake_signal)

    def close(self) -> None:
        """End the threads soon, and return at once; each thread closes its client."""
        for thread in self._threads:
            thread.end()

    def join(self, limit_s: float) -> list[str]:
        """Wait at most `limit_s` seconds in all; return the names of threads that still run."""
        limit = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))
        return [thread.name for thread in self._threads if thread.is_alive()]

    def thread_of(self, tp: TopicPartition) -> _FetchThread:
        """Return the thread whose client fetches a partition."""
        return self._threads[(zlib.crc32(tp.topic.encode()) + tp.partition) % len(self._threads)]

    def has_room(self, messages: int, size: int) -> bool:
        """Return whether a stream may fetch more, given the messages and bytes in its queue."""
        return messages <= self._max_messages and size <= self._max_bytes

    def resolve(self, tps: list[TopicPartition], reset: AutoOffsetReset) -> Future[Answers]:
        """See `Fetcher.resolve`."""
        answer: Future[Answers] = Future()
        if tps:
            self.thread_of(tps[0]).post(_OffsetQuery(tps, reset, answer))
        else:
            answer.set_result({})
        return answer


class _OffsetQuery:
    """A look-up of offsets that waits for a client."""

    __slots__ = ("answer", "reset", "tps")

    def __init__(
        self, tps: list[TopicPartition], reset: AutoOffsetReset, answer: Future[Answers]
    ) -> None:
        self.tps, self.reset, self.answer = tps, reset, answer

    def take(self, asked: Future[Answers]) -> None:
        error = asked.exception()
        if error is None:
            self.answer.set_result(asked.result())
        else:
            self.answer.set_exception(error)


class _FetchThread:
    """One shared client, and the thread that drives it."""

    def __init__(self, pool: FetcherPool, name: str) -> None:
        self.name = name
        self._pool = pool
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._ended = False
        # Commands from any thread: a route to start or (if not live) to end, a stream with room
        # again, or a look-up of offsets.
        self._commands: deque[_Route | SharedFetcher | _OffsetQuery] = deque()
        self._wake = threading.Event()
        # Only the fetch thread uses these:
        self._client: Fetcher | None = None
        self._routes: dict[TopicPartition, _Route] = {}  # the partitions to fetch
        self._fetching: dict[TopicPartition, _Route] = {}  # the partitions that the client fetches
        self._full: set[SharedFetcher] = set()
        self._queries: list[_OffsetQuery] = []
        self._watch = ProgressWatch()

    # ---- any thread ------------------------------------------------------------------------------

    def post(self, command: _Route | SharedFetcher | _OffsetQuery) -> None:
        """Queue a command, and start the thread if it does not run; never blocks."""
        self._commands.append(command)
        self._wake.set()
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._ended:
                    # A daemon thread, because a silent broker must not prevent the process from
                    # ending.
                    self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                    self._thread.start()

    def end(self) -> None:
        """End the thread soon."""
        with self._starting:
            self._ended = True
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            try:
                self._turn()
            except Exception as error:  # the thread's boundary: all streams of the client raise it
                logger.debug("%s: starts over", self.name, exc_info=error)
                what = error if isinstance(error, ZkConsumerError) else f"fetching failed: {error}"
                known = error if isinstance(error, FetchError) else None
                self._fail_all(FetchFault(FetchFaultKind.PERMANENT, None, str(what), error=known))
                questions, self._queries = self._queries, []
                for one in questions:
                    if known is None:
                        one.answer.set_result(dict.fromkeys(one.tps, str(what)))
                    else:
                        one.answer.set_exception(copy(known))  # several streams raise it
                self._start_over()
                self._pause(FAILED_S)
        if self._client is not None:
            self._client.close()

    def _turn(self) -> None:
        # Clear the event before reading the commands: a later command sets it again.
        self._wake.clear()
        changed = self._apply()
        if self._client is None and (self._routes or self._queries):
            self._client = self._pool.connect()
            if self._client is not None:
                self._watch.begin(self._client, time.monotonic())
            changed = set(self._routes)
        client = self._client
        questions, self._queries = self._queries, []
        for one in questions:
            if client is None:
                one.answer.set_result(dict.fromkeys(one.tps, NO_BROKER))
            else:
                client.resolve(one.tps, one.reset).add_done_callback(one.take)
        if client is None:
            self._pause(RETRY_S if self._routes else IDLE_S)
            return
        self._place(client, changed)
        if not self._routes:
            self._pause(IDLE_S)
        runs = client.fetch(TURN_S if self._routes else 0.0)
        self._queue_runs(runs)
        self._take_faults(client)
        if self._client is client:
            self._check_progress(client, sum(map(len, runs)))

    def _pause(self, pause_s: float) -> None:
        if not self._ended:
            self._wake.wait(pause_s)

    def _apply(self) -> set[TopicPartition]:
        """Apply the commands; return the partitions that they change."""
        changed: set[TopicPartition] = set()
        while self._commands:
            command = self._commands.popleft()
            if isinstance(command, _OffsetQuery):
                self._queries.append(command)
            elif isinstance(command, SharedFetcher):
                self._full.discard(command)
                changed.update(tp for tp, one in self._routes.items() if one.fetcher is command)
            elif command.live:
                command.below = self._routes.get(command.tp)
                self._routes[command.tp] = command
                changed.add(command.tp)
            elif self._routes.get(command.tp) is command:
                self._end_route(command)
                changed.add(command.tp)
        return changed

    def _end_route(self, route: _Route) -> None:
        """End a route, and resume the route of another stream that it replaced.

        A partition moves from stream A to stream B:
            1. A's thread reads that it should fetch the partition.
            2. The member's thread withdraws the partition from A and grants it to B.
            3. B's thread assigns it.
            4. A's thread assigns it too late, detects that, and unassigns it.
        After step 4, B's route is fetched again. If A's thread assigned the partition in time but
        unassigns it late, B's route has already replaced A's route, and the end of A's route has no
        effect.
        """
        below = route.below
        while below is not None and not below.live:
            below = below.below
        if below is None:
            del self._routes[route.tp]
        else:
            self._routes[route.tp] = below

    def _place(self, client: Fetcher, changed: Iterable[TopicPartition]) -> None:
        """Make the client fetch these partitions according to their routes."""
        gone: list[TopicPartition] = []
        offsets: dict[TopicPartition, int] = {}
        for tp in changed:
            route = self._routes.get(tp)
            wanted = None if route is None or route.fetcher in self._full else route
            if self._fetching.get(tp) is wanted:
                continue
            if self._fetching.pop(tp, None) is not None:
                gone.append(tp)
            if wanted is not None:
                self._fetching[tp] = wanted
                offsets[tp] = wanted.next
        if gone:
            client.unassign(gone)
        if offsets:
            client.assign(offsets, POOL_LOOKUP_S)
        if gone or offsets:
            self._watch.forget()

    def _queue_runs(self, runs: Iterable[MessageRun]) -> None:
        """Queue messages for their streams."""
        full = set[SharedFetcher]()
        for run in runs:
            route = self._fetching.get(run.tp)
            if route is not None and route.live:
                route.next = run.offset(len(run) - 1) + 1
                if not route.fetcher.add(route, run, self):
                    full.add(route.fetcher)
        if full and self._client is not None:
            self._full |= full
            stopped = [tp for tp, one in self._fetching.items() if one.fetcher in full]
            self._place(self._client, stopped)

    def _take_faults(self, client: Fetcher) -> None:
        while client.faults:
            fault = client.faults.popleft()
            if fault.kind is FetchFaultKind.LOST:
                self._pool.trouble(fault.text)
                self._start_over()
                return
            elif fault.tp is not None:
                route = self._fetching.get(fault.tp)
                if route is not None:
                    if fault.kind is FetchFaultKind.END:
                        route.next = max(route.next, fault.offset)
                    route.fetcher.fail(route, fault)
            elif fault.kind in (FetchFaultKind.PERMANENT, FetchFaultKind.REFUSED):
                self._fail_all(fault)
            else:
                self._pool.trouble(fault.text)
                if self._pool.brokers_moved():
                    self._start_over()
                    return

    def _fail_all(self, fault: FetchFault) -> None:
        for fetcher in {route.fetcher for route in self._routes.values()}:
            fetcher.fail(None, fault)

    def _start_over(self) -> None:
        """Continue with a new client, which fetches each partition from its next offset."""
        client, self._client = self._client, None
        self._fetching = {}
        if client is not None:
            # `close` runs on a separate thread, because it may wait for silent brokers.
            threading.Thread(target=client.close, name=f"{self.name}-close", daemon=True).start()

    def _check_progress(self, client: Fetcher, messages: int) -> None:
        """Store the log ends; start a new client if messages are available but none arrive."""
        now = time.monotonic()
        if self._watch.are_ends_due(now):
            for tp, end in client.ends(self._fetching).items():
                self._fetching[tp].end = end
        positions = {tp: one.next for tp, one in self._fetching.items()}
        stall = self._watch.check(client, positions, now, messages=messages)
        if stall is not None:
            self._pool.trouble(
                f"no message of {stall.tp} arrives, although its log ends at {stall.end}; the"
                " client is replaced"
            )
            self._start_over()
