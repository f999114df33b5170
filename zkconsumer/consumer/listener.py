"""The user's rebalance listener, and the thread that calls it.

Kafka: `kafka.consumer.ConsumerRebalanceListener` (0.9.0.0, KAFKA-1650; its Java interface
KAFKA-2347). The JVM calls the listener on the rebalancing thread, under the rebalance lock, and
waits without a limit. Here the listener has its own thread, so a listener that hangs blocks no
rebalance.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple, Protocol

from zkconsumer.member.commands import Callback, CallListener
from zkconsumer.member.events import Finished, ListenerReturned
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

        The offsets of their messages can still be committed, also from this callback.

        Args:
            partitions: topic -> partition numbers. Empty if a new assignment releases nothing, as
                the first one does. With `rebalance.mode=eager` every rebalance releases all
                partitions.
        """

    def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[str, Mapping[int, ConsumerThreadId]]
    ) -> None:
        """Called before the member fetches the partitions of a new assignment.

        Args:
            consumer_id: this member's consumer id.
            assignment: topic -> partition number -> the consumer thread that gets it, for all
                members. With `range` it contains the topics of this member; with `roundrobin` all
                topics of the group.
        """


class ListenerThread:
    """Calls a listener, one call at a time; then `post` gets the event of the call's end.

    While a call runs, at most three others wait. A new call replaces waiting calls that it makes
    obsolete (see `call`). The listener and `post` run on this thread.
    """

    def __init__(
        self,
        listener: ConsumerRebalanceListener,
        consumer_id: str,
        *,
        post: Callable[[Finished], None],
        clock: Callable[[], float],
    ) -> None:
        self._listener, self._consumer_id = listener, consumer_id
        self._post, self._clock = post, clock
        self._waiting: list[CallListener] = []
        self._changed = threading.Condition()
        self._closed = False
        self.is_calling = False
        # A daemon thread, so that a callback that never returns does not keep the process alive.
        self._thread = threading.Thread(
            target=self._run, name=f"{consumer_id}-rebalance-listener", daemon=True
        )
        self._thread.start()

    def call(self, command: CallListener) -> int:
        """Queue a call of the listener; return at once, with the number of calls that were merged.

        Calls queue up only if the listener takes longer than `release.grace.ms`; the rebalance has
        then continued without it. Two queued calls about a release become one with the partitions
        of both. A call about a new assignment replaces the queued calls about older assignments.
        """
        with self._changed:
            before, self._waiting = self._waiting, merged([*self._waiting, command])
            self._changed.notify()
            return len(before) + 1 - len(self._waiting)

    def close(self) -> None:
        """Make no more calls; do not wait for a running one."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _next(self) -> CallListener | None:
        with self._changed:
            self.is_calling = False
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            self.is_calling = True
            return self._waiting.pop(0)

    def _run(self) -> None:
        while (command := self._next()) is not None:
            outcome = ListenerReturned(command.callback, self._called(command))
            self._post(Finished(now=self._clock(), op=command.op, outcome=outcome))

    def _called(self, command: CallListener) -> str:
        """Call the listener; return what it raised as text, or an empty text."""
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
    """Return the calls that remain of these, of which the last is the newest.

    A merged call keeps the number of the newest: the member waits for that one, if for any.
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
    """Return topic -> partition -> the consumer thread that gets it, in order."""
    found: dict[str, dict[int, ConsumerThreadId]] = {}
    for tp, owner in sorted(partitions.items()):
        consumer, _, thread = owner.rpartition("-")
        found.setdefault(tp.topic, {})[tp.partition] = ConsumerThreadId(consumer, int(thread))
    return found
