"""A member's figures: counted from its transitions, read by its user, scraped by Prometheus.

What the JVM's MBeans tell, under names of our own; docs/metrics.md maps one to the other. Nothing
is counted where messages are handed out: how many there were is told by their offsets.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zkconsumer.consumer.holdings import Which
from zkconsumer.core import commands as cmd
from zkconsumer.core import events
from zkconsumer.core.model import Position, Positions, TopicPartition
from zkconsumer.core.state import Phase, State, own_topics

if TYPE_CHECKING:
    from zkconsumer.config import ConsumerConfig
    from zkconsumer.consumer.coordinator import Coordinator
    from zkconsumer.consumer.gate import LeaseGate
    from zkconsumer.consumer.stream import Streams

RESTS = frozenset({Phase.SETTLED, Phase.WAITING, Phase.CLOSED})


RESETS_SHARE, COUNT_AGAIN_S = 16, 1.0
"""While partitions are reset, their messages are counted when a 16th of the partitions were reset
since the last count, or 1 s after it."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One member at one instant; the counters run from its start.

    Attributes:
        events: how often what happened; names as in `ConsumerConnector.metrics`.
        rebalances: how many have ended, and `rebalance_s`, the seconds that they took together.
        zookeeper_commits: offsets written to ZooKeeper; `kafka_commits` those to Kafka.
        messages: topic -> messages handed out.
        fetched_bytes: topic -> bytes of keys and values fetched, estimated where many came at once.
        owned: topic -> partitions owned.
        queued: (topic, consumer thread id) -> messages fetched and not yet handed out.
        lag: (topic, partition) -> messages behind the log's end, where that is known.
    """

    client_id: str
    group_id: str
    consumer_id: str
    phase: str
    connected: bool
    lease_s: float
    requests: int
    blocked: int
    events: Mapping[str, int]
    rebalances: int
    rebalance_s: float
    zookeeper_commits: int
    kafka_commits: int
    messages: Mapping[str, int]
    fetched_bytes: Mapping[str, float]
    owned: Mapping[str, int]
    queued: Mapping[tuple[str, str], int]
    lag: Mapping[tuple[str, str], int]

    def flat(self) -> dict[str, float]:
        """As `ConsumerConnector.metrics` gives it."""
        return {
            **{name: float(count) for name, count in self.events.items()},
            "rebalance_seconds": self.rebalance_s,
            "zookeeper_commits": float(self.zookeeper_commits),
            "kafka_commits": float(self.kafka_commits),
            "messages": float(sum(self.messages.values())),
            "fetched_bytes": sum(self.fetched_bytes.values(), 0.0),
            "queued_messages": float(sum(self.queued.values())),
            "max_lag": float(max(self.lag.values(), default=0)),
            "owned_partitions": float(sum(self.owned.values())),
            "blocked_partitions": float(self.blocked),
            "zookeeper_requests": float(self.requests),
        }


def figures(
    config: ConsumerConfig, coordinator: Coordinator, gate: LeaseGate, streams: Streams
) -> Figures:
    """A member's figures now; for any thread."""
    state, tally = coordinator.state, coordinator.tally
    owned = Counter(tp.topic for tp in state.owned)
    fetched_bytes: dict[str, float] = defaultdict(float)
    for stream in streams.values():
        for topic, size in stream.fetched_bytes.items():
            fetched_bytes[topic] += size
    return Figures(
        client_id=config.client_id,
        group_id=config.group_id,
        consumer_id=state.settings.consumer,
        phase=state.phase.value,
        connected=state.connected,
        lease_s=max(0.0, gate.deadline - gate.clock()),
        requests=coordinator.requests,
        blocked=len(state.blocked),
        events={**coordinator.counters, **coordinator.troubles.counts},
        rebalances=tally.rebalances,
        rebalance_s=tally.rebalance_s,
        zookeeper_commits=tally.zookeeper_commits,
        kafka_commits=tally.kafka_commits,
        messages=tally.messages(),
        fetched_bytes=fetched_bytes,
        owned={topic: owned[topic] for topic in {*owned, *own_topics(state)}},
        queued={(topic or "", thread): one.queued for (topic, thread), one in streams.items()},
        lag={
            (tp.topic, str(tp.partition)): max(0, ends[tp] - offset)
            for ends, at in [(s.ends, s.positions(Which.DELIVERED)) for s in streams.values()]
            for tp, (_, offset) in at.items()
            if tp in ends
        },
    )


class Tally:
    """Counts what a member does. `positions` gives those of all messages handed out so far."""

    def __init__(self, positions: Callable[[], Positions]) -> None:
        self.rebalances = 0
        self.rebalance_s = 0.0
        self.zookeeper_commits = 0
        self.kafka_commits = 0
        self._positions = positions
        self._began_at: float | None = None
        self._resets, self._counted_at = 0, float("-inf")  # since the last count; when that was
        self._messages: Counter[str] = Counter()
        self._seen: dict[TopicPartition, Position] = {}
        self._lock = threading.Lock()  # for the two above: the coordinator's thread and a scrape's

    def observe(
        self, before: State, event: events.Event, after: State, commands: Iterable[cmd.Command]
    ) -> None:
        """A transition, before its commands are run: what is withdrawn still has a position."""
        if after.phase is Phase.READING and self._began_at is None:
            self._began_at = event.now
        if after.phase in RESTS and self._began_at is not None:
            self.rebalances += 1
            self.rebalance_s += event.now - self._began_at
            self._began_at = None
        if isinstance(event, events.Finished) and isinstance(event.outcome, events.Committed):
            self.zookeeper_commits += len(event.outcome.versions)
            self.kafka_commits += len(event.outcome.kafka)
        if isinstance(event, events.PositionReset):
            self._begin(event.partition, event.offset, event.now)
        for command in commands:
            if isinstance(command, cmd.Withdraw):
                self.messages()
            elif isinstance(command, cmd.StartFetching):
                self._granted(command)

    def _granted(self, command: cmd.StartFetching) -> None:
        with self._lock:
            for tp, (mine, offset) in command.grants.items():
                if offset is None:
                    self._seen.pop(tp, None)  # `auto.offset.reset` says where it begins
                else:
                    self._seen[tp] = Position(mine.epoch, offset)

    def _begin(self, tp: TopicPartition, offset: int, now: float) -> None:
        """Start counting at the new position: messages that are skipped were not handed out.

        Counting reads the positions of all partitions. Where thousands of partitions are reset at
        once, that is done for every `RESETS_SHARE`th of them only, so that the work stays linear:
        up to `COUNT_AGAIN_S` of a partition's messages are then missing in the figures.
        """
        if tp in self._seen:  # else nothing of it was handed out
            self._resets += 1
            many = self._resets * RESETS_SHARE < len(self._seen)
            if not many or now >= self._counted_at + COUNT_AGAIN_S:
                self._resets, self._counted_at = 0, now
                self.messages()
        with self._lock:
            known = self._seen.get(tp)
            self._seen[tp] = Position(known.epoch if known else 0, offset)

    def messages(self) -> dict[str, int]:
        """Topic -> messages handed out, by their offsets: gaps in a log count as messages."""
        positions = self._positions()
        with self._lock:
            for tp, (epoch, offset) in positions.items():
                seen = self._seen.get(tp)
                if seen is None or seen.epoch not in (0, epoch):
                    continue  # not told yet where it begins
                self._messages[tp.topic] += max(0, offset - seen.offset)
                self._seen[tp] = Position(epoch, max(offset, seen.offset))
            return dict(self._messages)
