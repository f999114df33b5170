"""The user's rebalance listener, and the thread that calls it.

Kafka: `kafka.consumer.ConsumerRebalanceListener` (since 0.9.0.0, KAFKA-1650; since KAFKA-2347 as a
Java interface). The JVM calls the listener on the rebalancing thread, under the rebalance lock, and
waits without a limit. In zkconsumer the listener has its own thread, so a hanging listener blocks
no rebalance.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from zkconsumer.errors import ConfigError
from zkconsumer.member.commands import Callback, CallListener
from zkconsumer.member.events import Finished, ListenerReturned
from zkconsumer.protocol.model import ThreadId, TopicPartition
from zkconsumer.safe_logger import SafeLogger

logger = SafeLogger(logging.getLogger(__name__))


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


CALLBACKS = frozenset({Callback.ASSIGNED, Callback.REVOKED, Callback.LOST})

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


class ListenerThread(threading.Thread):
    """Calls the user's functions, one at a time. When a call ends, `post` receives an event.

    Of the listener's calls, at most three wait; a new call replaces waiting calls that it makes
    obsolete (see `call`). Waiting calls of the callbacks run before the next call of the listener.
    The listener, the callbacks and `post` run on this thread.
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
        # A daemon thread, so that a callback that never returns does not keep the process alive.
        super().__init__(name=f"{consumer_id}-rebalance-listener", daemon=True)
        self._listener, self._consumer_id = listener, consumer_id
        self._callbacks = callbacks or Callbacks()
        self._post, self._clock = post, clock
        self._queued_calls: list[CallListener] = []  # of the listener
        self._queued_callbacks: list[CallListener] = []
        self._changed = threading.Condition()
        self._closed = False
        self.is_calling = False

    def call(self, command: CallListener) -> int:
        """Queue a call, without waiting. Return how many calls of the listener were merged.

        Calls wait in the queue only if the user's functions take longer than `release.grace.ms`;
        the rebalance has then continued without their return. Two queued calls of
        `before_releasing_partitions` become one call with the partitions of both. A call for a new
        assignment replaces the queued calls for older assignments. No callback gets a partition
        that was assigned and given up before `on_assigned` could be called with it.
        """
        with self._changed:
            self._changed.notify()
            if command.callback in CALLBACKS:
                self._queued_callbacks = without_unseen([*self._queued_callbacks, command])
                return 0
            before, self._queued_calls = self._queued_calls, merged([*self._queued_calls, command])
            return len(before) + 1 - len(self._queued_calls)

    def close(self) -> None:
        """Stop calling the listener; queued callbacks still run. The call returns at once."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _next(self) -> CallListener | None:
        with self._changed:
            self.is_calling = False
            self._changed.wait_for(
                lambda: self._queued_calls or self._queued_callbacks or self._closed
            )
            if self._queued_callbacks:
                command = self._queued_callbacks.pop(0)
            elif self._queued_calls and not self._closed:
                command = self._queued_calls.pop(0)
            else:
                return None
            self.is_calling = True
            return command

    def run(self) -> None:
        while (command := self._next()) is not None:
            error = ""
            try:
                self._call(command)
            except BaseException as raised:  # `sys.exit` must not end this thread
                logger.exception("%s: %s raised", self._consumer_id, command.callback.value)
                error = f"{type(raised).__name__}: {raised}"
            if command.op or error:
                outcome = ListenerReturned(command.callback, error)
                self._post(Finished(now=self._clock(), op=command.op, outcome=outcome))

    def _call(self, command: CallListener) -> None:
        if command.callback in CALLBACKS:
            function = getattr(self._callbacks, command.callback.value)
            if function is not None and command.partitions:
                function(sorted(command.partitions))
        elif self._listener is None:
            return
        elif command.callback is Callback.RELEASING:
            self._listener.before_releasing_partitions(released(command.partitions))
        else:
            assigned = assignment(command.partitions)
            self._listener.before_starting_fetchers(self._consumer_id, assigned)


def without_unseen(calls: Sequence[CallListener]) -> list[CallListener]:
    """Return waiting calls of callbacks without partitions that the newest call takes back.

    `calls` has the newest call last. If it is `on_revoked` or `on_lost`, it takes back the
    partitions of the waiting calls of `on_assigned`. The newest call remains even without
    partitions, because the member may wait for it.
    """
    *older, last = calls
    if last.callback is Callback.ASSIGNED:
        return [*calls]
    unseen = {
        tp for one in older if one.callback is Callback.ASSIGNED for tp in one.partitions
    }.intersection(last.partitions)
    left = [
        replace(one, partitions={tp: at for tp, at in one.partitions.items() if tp not in unseen})
        if one.callback is Callback.ASSIGNED or one is last
        else one
        for one in calls
    ]
    return [one for one in left if one.partitions or one.op]


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
