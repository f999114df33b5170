"""Detect a broker client that fetches nothing although the logs have more messages."""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Final, NamedTuple

from zkconsumer.kafka.fetcher import Answers, AutoOffsetReset, BrokerClient
from zkconsumer.protocol.model import TopicPartition

# librdkafka 2.16 sometimes stops fetching all its partitions without an error. So if no message has
# come for this time, in seconds, the owner of a client asks the brokers for the log ends. If the
# previous check already found messages that have still not been fetched, the owner replaces the
# client. The maximum time for which a broker may delay a fetch is added to this time.
SILENT_S: Final = 10.0

# Upper bound of the number of partitions in a check. A sample suffices: a stalled client stalls in
# most partitions.
_CHECKED: Final = 100

# Interval, in seconds, at which the log ends are read from the client for the lag. A read takes a
# few microseconds for each partition.
ENDS_S: Final = 5.0


class Stall(NamedTuple):
    """A partition whose messages do not arrive, and the end of its log."""

    tp: TopicPartition
    end: int


class ProgressWatch:
    """Watches one client at a time. The thread that drives the client calls all methods.

    Times are in seconds of one clock, which the caller reads.
    """

    def __init__(self) -> None:
        self._check_due = self._ends_due = 0.0
        # The log ends that the last check found, and the running check with the partitions that
        # were behind these ends when it began.
        self._found: Mapping[TopicPartition, int] = {}
        self._checking: tuple[Future[Answers], list[TopicPartition]] | None = None

    def begin(self, client: BrokerClient, now: float) -> None:
        """Watch a new client."""
        self._check_due = now + SILENT_S + client.wait_s
        self.forget()

    def forget(self) -> None:
        """Forget what earlier checks found, because partitions or positions have changed."""
        self._found, self._checking = {}, None

    def are_ends_due(self, now: float) -> bool:
        """Return, every `ENDS_S` seconds, whether to read the log ends that the client knows."""
        if now < self._ends_due:
            return False
        self._ends_due = now + ENDS_S
        return True

    def check(
        self,
        client: BrokerClient,
        fetched: Mapping[TopicPartition, int],
        now: float,
        *,
        messages: int,
    ) -> Stall | None:
        """Check the client after a call that returned this number of messages.

        Return a stall if the client must be replaced. `fetched` maps each partition that the client
        fetches to the next offset that it has to return. The call never waits for the brokers.

        A busy broker may answer no fetch for a long time. A partition whose next offset is the end
        of its log, such as an empty one, lacks no message then.
        """
        if messages:
            self._checking = None
        elif self._checking is None and fetched and now >= self._check_due:
            self._check_due = now + SILENT_S + client.wait_s
            reached = client.ends(fetched)
            behind = [
                tp for tp, at in fetched.items() if reached.get(tp, at) < self._found.get(tp, at)
            ]
            # Ask again for the partitions that are behind: if the brokers do not answer, a new
            # client would not help.
            some = behind or random.sample(list(fetched), min(_CHECKED, len(fetched)))
            self._checking = client.resolve(some, AutoOffsetReset.LARGEST), behind
        if self._checking is None or not self._checking[0].done():
            return None
        (answer, behind), self._checking = self._checking, None
        self._found = {tp: end for tp, end in answer.result().items() if isinstance(end, int)}
        if behind and self._found:
            return Stall(*next(iter(self._found.items())))
        return None
