"""The user's rebalance listener, and the thread that calls it.

Kafka: `kafka.consumer.ConsumerRebalanceListener` (0.9.0.0, KAFKA-1650; its Java interface
KAFKA-2347). The JVM calls it on whichever thread rebalances, under the rebalance lock, for as long
as it takes; here it has a thread of its own, so that a listener that hangs holds nobody up.
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
    """What is told of every assignment; see `ConsumerConnector.set_consumer_rebalance_listener`."""

    def before_releasing_partitions(self, partitions: Mapping[str, Set[int]]) -> None:
        """Nothing more of `partitions` (topic -> numbers) is handed out; they are released next.

        What was handed out of them can still be committed, here too. The mapping is empty when a
        new assignment releases nothing, as the first does. `rebalance.mode=eager` releases all.
        """

    def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[str, Mapping[int, ConsumerThreadId]]
    ) -> None:
        """Nothing is fetched by the new assignment yet: topic -> number -> who gets it.

        All members' partitions, as far as the strategy needs to know: of our own topics with
        `range`, of all the group's topics with `roundrobin`.
        """


class ListenerThread:
    """Calls a listener, one call after the other; `post` gets the end of each, on this thread.

    While the listener does not return, calls wait, three at most: a new call replaces those waiting
    that it makes obsolete (`call`).
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
        # A daemon: a callback that never returns must not keep the process from ending.
        self._thread = threading.Thread(
            target=self._run, name=f"{consumer_id}-rebalance-listener", daemon=True
        )
        self._thread.start()

    def call(self, command: CallListener) -> int:
        """Have the listener called, and return at once; the result says how many calls were merged.

        Calls wait only if the listener has taken longer than `release.grace.ms`; the rebalance has
        gone on without it. Two waiting calls about a release become one, with the partitions of
        both. A call about a new assignment replaces every waiting call about an older one.
        """
        with self._changed:
            before, self._waiting = self._waiting, merged([*self._waiting, command])
            self._changed.notify()
            return len(before) + 1 - len(self._waiting)

    def close(self) -> None:
        """Make no more calls; one that is running is not waited for."""
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
        """What the user's code raised, or nothing."""
        try:
            if command.callback is Callback.RELEASING:
                self._listener.before_releasing_partitions(released(command.partitions))
            else:
                assigned = assignment(command.partitions)
                self._listener.before_starting_fetchers(self._consumer_id, assigned)
        except Exception as error:  # the user's code ends here
            logger.exception("%s: %s raised", self._consumer_id, command.callback.value)
            return f"{type(error).__name__}: {error}"
        return ""


def merged(calls: Sequence[CallListener]) -> list[CallListener]:
    """The calls that are left of these, of which all but the last are older than it.

    A merged call has the number of the latest: the member waits for that one, if for any.
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
    """Topic -> the numbers of its partitions."""
    found: dict[str, set[int]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, set()).add(tp.partition)
    return found


def assignment(
    partitions: Mapping[TopicPartition, ThreadId],
) -> dict[str, dict[int, ConsumerThreadId]]:
    """Topic -> partition -> the consumer thread that it goes to, in order."""
    found: dict[str, dict[int, ConsumerThreadId]] = {}
    for tp, owner in sorted(partitions.items()):
        consumer, _, thread = owner.rpartition("-")
        found.setdefault(tp.topic, {})[tp.partition] = ConsumerThreadId(consumer, int(thread))
    return found
