"""The user's rebalance listener, and the thread that calls it.

Kafka: `kafka.consumer.ConsumerRebalanceListener` (since 0.9.0.0, KAFKA-1650; since KAFKA-2347 as a
Java interface). The JVM calls the listener on the rebalancing thread, under the rebalance lock, and
waits without a limit. In zkconsumer the listener has its own thread, so a hanging listener blocks
no rebalance.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from zkconsumer.errors import ConfigError
from zkconsumer.member.commands import Callback, CallListener, Command, StartFetching
from zkconsumer.member.events import Event, Finished, ListenerReturned
from zkconsumer.member.state import State
from zkconsumer.protocol.model import ThreadId, TopicPartition

logger = logging.getLogger(__name__)


class ConsumerThreadId(NamedTuple):
    """One thread of a consumer (JVM: `kafka.consumer.ConsumerThreadId`)."""

    consumer: str
    thread: int

    def __str__(self) -> str:
        return f"{self.consumer}-{self.thread}"


class ConsumerRebalanceListener(Protocol):
    """The user's callbacks for rebalances, set by `set_consumer_rebalance_listener`."""

    def before_releasing_partitions(self, partitions: Mapping[str, Set[int]]) -> None:
        """Called after delivery of these partitions has stopped and before they are released.

        The offsets of their messages can still be committed, even from this callback.

        Args:
            partitions: topic -> partition numbers. Empty if a new assignment releases nothing, for
                example the first assignment. With `rebalance.mode=eager` every rebalance releases
                all partitions.
        """

    def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[str, Mapping[int, ConsumerThreadId]]
    ) -> None:
        """Called before the member fetches the partitions of a new assignment.

        Args:
            consumer_id: this member's consumer id.
            assignment: topic -> partition number -> the consumer thread to which it is assigned,
                for all members. With `range` it contains the topics of this member, with
                `roundrobin` all topics of the group.
        """


class RebalanceCallbacks(Protocol):
    """Callbacks with the names of confluent-kafka and franz-go, for the constructor's `callbacks`.

    Each callback receives the affected partitions in order. A callback is not called if no
    partition is affected.
    """

    def on_assigned(self, partitions: list[TopicPartition], /) -> object:
        """Called when this member has claimed partitions.

        Before the member fetches the partitions of a new assignment, it waits for this callback for
        at most `release.grace.ms`. Partitions that another member releases late are fetched without
        this wait.
        """

    def on_revoked(self, partitions: list[TopicPartition], /) -> object:
        """Called before partitions are released, including at the shutdown.

        Their delivery has stopped. Their offsets can still be committed. The member waits for this
        callback for at most `release.grace.ms`.
        """

    def on_lost(self, partitions: list[TopicPartition], /) -> object:
        """Called after the session has ended, or another client has deleted owner znodes.

        Other members may already own the partitions, so their offsets cannot be committed.
        """


PartitionsCallback = Callable[[list[TopicPartition]], object]


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The user's callback functions; None for each callback that the user did not pass."""

    on_assigned: PartitionsCallback | None = None
    on_revoked: PartitionsCallback | None = None
    on_lost: PartitionsCallback | None = None

    @classmethod
    def of(
        cls, given: RebalanceCallbacks | None, **functions: PartitionsCallback | None
    ) -> Callbacks | None:
        """Return an object's callbacks, overridden by `functions`; None if there is no callback.

        Raises ConfigError if a callback cannot be called, or if the object has no callback.
        """
        found = {
            name: function if function is not None else getattr(given, name, None)
            for name, function in functions.items()
        }
        names = ", ".join(found)
        if given is not None and not any(hasattr(given, name) for name in found):
            kind = type(given).__name__
            raise ConfigError(
                f"{kind} has none of the methods {names}", where="callbacks", remedy="add one"
            )
        for name, one in found.items():
            if one is not None and not callable(one):
                raise ConfigError(f"{one!r} cannot be called", where=name, remedy="pass a function")
        return cls(**found) if any(one is not None for one in found.values()) else None


@dataclass(frozen=True, slots=True)
class _QueuedCallback:
    """A queued call of a callback with its partitions; `done` is set when it has returned."""

    name: str
    partitions: list[TopicPartition]
    done: threading.Event


class AssignmentObserver:
    """Detects which partitions were assigned, revoked and lost, and queues the callbacks for them.

    `observe` runs on the coordinator's thread, `remove_all` on the thread that shuts down the
    connector.
    """

    def __init__(
        self, queue_callback: Callable[[str, list[TopicPartition]], threading.Event]
    ) -> None:
        self._queue_callback = queue_callback
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, int] = {}  # assigned partition -> its fencing token

    def observe(
        self, before: State, event: Event, after: State, commands: Iterable[Command]
    ) -> None:
        """Compare the owned partitions with the partitions that the callbacks have reported."""
        owned = {tp: one.epoch for tp, one in after.owned.items()}
        if owned == self._known and not commands:
            return
        with self._lock:
            lost = [tp for tp, epoch in self._known.items() if owned.get(tp) != epoch]
            self._remove("on_lost", lost)
            for command in commands:
                if isinstance(command, CallListener) and command.callback is Callback.RELEASING:
                    self._remove(
                        "on_revoked", [tp for tp in command.partitions if tp in self._known]
                    )
                elif isinstance(command, CallListener):
                    self._add(owned)
                elif isinstance(command, StartFetching):
                    self._add({tp: owned[tp] for tp in command.grants if tp in owned})

    def remove_all(self, name: str, limit_s: float) -> None:
        """Call the callback `name` with all reported partitions; wait at most `limit_s` seconds."""
        with self._lock:
            gone = list(self._known)
            self._known.clear()
        if gone:
            self._queue_callback(name, sorted(gone)).wait(limit_s)

    def _add(self, owned: Mapping[TopicPartition, int]) -> None:
        added = sorted(tp for tp in owned if tp not in self._known)
        self._known |= {tp: owned[tp] for tp in added}
        if added:
            self._queue_callback("on_assigned", added)

    def _remove(self, name: str, partitions: Iterable[TopicPartition]) -> None:
        gone = sorted(partitions)
        for tp in gone:
            del self._known[tp]
        if gone:
            self._queue_callback(name, gone)


class ListenerThread:
    """Calls a listener, one call at a time. When a call ends, `post` receives an event.

    While a call runs, at most three others wait. A new call replaces waiting calls that it makes
    obsolete (see `call`). Callbacks that `queue_callback` has queued run before the next call of
    the listener. The listener, the callbacks and `post` run on this thread.
    """

    def __init__(
        self,
        listener: ConsumerRebalanceListener | None,
        consumer_id: str,
        *,
        callbacks: Callbacks | None = None,
        post: Callable[[Finished], None],
        clock: Callable[[], float],
    ) -> None:
        self._listener, self._consumer_id = listener, consumer_id
        self._callbacks = callbacks or Callbacks()
        self._queued_callbacks: list[_QueuedCallback] = []
        self._post, self._clock = post, clock
        self._queued_calls: list[CallListener] = []
        self._changed = threading.Condition()
        self._closed = False
        self.is_calling = False
        # A daemon thread, so that a callback that never returns does not keep the process alive.
        self._thread = threading.Thread(
            target=self._run, name=f"{consumer_id}-rebalance-listener", daemon=True
        )
        self._thread.start()

    def call(self, command: CallListener) -> int:
        """Queue a call of the listener, without waiting. Return how many calls were merged.

        Calls wait in the queue only if the listener takes longer than `release.grace.ms`; the
        rebalance has then continued without the listener's return. Two queued calls of
        `before_releasing_partitions` become one call with the partitions of both. A call for a new
        assignment replaces the queued calls for older assignments.
        """
        with self._changed:
            before, self._queued_calls = self._queued_calls, merged([*self._queued_calls, command])
            self._changed.notify()
            return len(before) + 1 - len(self._queued_calls)

    def queue_callback(self, name: str, partitions: list[TopicPartition]) -> threading.Event:
        """Queue a call of the callback `name`; the event is set when it has returned.

        If partitions are lost before `on_assigned` was called with them, no callback gets them.
        """
        with self._changed:
            if name == "on_lost":
                unseen = {
                    tp
                    for one in self._queued_callbacks
                    if one.name == "on_assigned"
                    for tp in one.partitions
                }
                for one in self._queued_callbacks:
                    if one.name == "on_assigned":
                        one.partitions[:] = [tp for tp in one.partitions if tp not in partitions]
                partitions = [tp for tp in partitions if tp not in unseen]
            queued = _QueuedCallback(name, partitions, threading.Event())
            self._queued_callbacks.append(queued)
            self._changed.notify()
            return queued.done

    def close(self) -> None:
        """Stop calling the listener; queued callbacks still run. The call returns at once."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _next(self) -> tuple[list[_QueuedCallback], CallListener | None] | None:
        with self._changed:
            self.is_calling = False
            self._changed.wait_for(
                lambda: self._queued_calls or self._queued_callbacks or self._closed
            )
            queued, self._queued_callbacks = self._queued_callbacks, []
            if self._closed and not queued:
                return None
            self.is_calling = True
            return queued, self._queued_calls.pop(
                0
            ) if self._queued_calls and not self._closed else None

    def _run(self) -> None:
        while (work := self._next()) is not None:
            queued, command = work
            errors = [error for one in queued if (error := self._run_callback(one))]
            if command is not None:
                error = self._run_listener(command) or "; ".join(errors)
                outcome = ListenerReturned(command.callback, error)
                self._post(Finished(now=self._clock(), op=command.op, outcome=outcome))

    def _run_callback(self, queued: _QueuedCallback) -> str:
        """Call a callback; return the text of its exception, or an empty text."""
        function = getattr(self._callbacks, queued.name)
        try:
            if function is not None and queued.partitions:
                function(queued.partitions)
        except Exception as error:  # the user's callback may raise anything
            logger.exception("%s: %s raised", self._consumer_id, queued.name)
            return f"{queued.name}: {type(error).__name__}: {error}"
        finally:
            queued.done.set()
        return ""

    def _run_listener(self, command: CallListener) -> str:
        """Call the listener; return the text of its exception, or an empty text."""
        if self._listener is None:
            return ""
        try:
            if command.callback is Callback.RELEASING:
                self._listener.before_releasing_partitions(released(command.partitions))
            else:
                assigned = assignment(command.partitions)
                self._listener.before_starting_fetchers(self._consumer_id, assigned)
        except Exception as error:  # the user's listener may raise anything
            logger.exception("%s: %s raised", self._consumer_id, command.callback.value)
            return f"{type(error).__name__}: {error}"
        return ""


def merged(calls: Sequence[CallListener]) -> list[CallListener]:
    """Return the calls that remain after merging; `calls` has the newest call last.

    A merged call has the operation number of the newest call, because the member no longer waits
    for the older ones.
    """
    *older, last = calls
    if last.callback is Callback.STARTING:
        older = [one for one in older if one.callback is Callback.RELEASING]
    result: list[CallListener] = []
    for one in (*older, last):
        if result and one.callback is Callback.RELEASING is result[-1].callback:
            partitions = {**result.pop().partitions, **one.partitions}
            result.append(replace(one, partitions=partitions))
        else:
            result.append(one)
    return result


def released(partitions: Mapping[TopicPartition, ThreadId]) -> dict[str, set[int]]:
    """Return topic -> the numbers of its partitions."""
    found: dict[str, set[int]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, set()).add(tp.partition)
    return found


def assignment(
    partitions: Mapping[TopicPartition, ThreadId],
) -> dict[str, dict[int, ConsumerThreadId]]:
    """Return topic -> partition -> the consumer thread to which it is assigned, in order."""
    found: dict[str, dict[int, ConsumerThreadId]] = {}
    for tp, owner in sorted(partitions.items()):
        consumer, _, thread = owner.rpartition("-")
        found.setdefault(tp.topic, {})[tp.partition] = ConsumerThreadId(consumer, int(thread))
    return found
