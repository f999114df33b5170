"""A simulated query of Spark in group mode, with the production membership and start positions.

The query's actor calls the source as Spark does. The query plans a batch, and writes the end of the
batch to the checkpoint. It runs the batch, and finishes it when it plans the next batch. A killed
query starts again from its checkpoint, and first runs the last batch once more, without being a
member.

The simulator replaces Spark and the member's thread. The tasks of a batch hold no lease, so a
batch counts as delivered when it is planned. If a batch runs longer than the release of its
partitions waits, its messages are redelivered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer.commit_requests import CommitRequested
from zkconsumer.consumer.group_member import GroupMember
from zkconsumer.consumer.loop import PartitionSinks
from zkconsumer.consumer.stream_fetcher import StreamReport
from zkconsumer.kafka.logs import LogRange
from zkconsumer.member.machine import OVER
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import Settings, State
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration
from zkconsumer.protocol.requests import Reply, Request, run_operation
from zkconsumer.sim.logs import Log
from zkconsumer.sim.member import OnTransition
from zkconsumer.sim.plan import Rare
from zkconsumer.sim.stream_member import OnReport, ReportingMember
from zkconsumer.spark.batch_member import Membership
from zkconsumer.spark.offset_ranges import OffsetRange, advance
from zkconsumer.spark.options import Mode, SourceOptions
from zkconsumer.spark.start_positions import StartPositions

PER_BATCH = 4
"""Upper bound of the messages of a batch, so that a query needs several batches."""

T = TypeVar("T")
Ask = Callable[[Sequence[Request]], Sequence[Reply]]
Planned = tuple[TopicPartition, int, int, int]
"""A range of messages in a batch: (partition, start, end, fencing token)."""


@dataclass
class Checkpoint:
    """The contents of a query's checkpoint, which outlives the process.

    Attributes:
        batch: the ranges of the last batch, with empty ranges.
        is_done: whether the commit log contains the last batch.
    """

    batch: tuple[OffsetRange, ...] = ()
    is_done: bool = True


@dataclass
class _Connection:
    """The parts of `GroupMember`, `Coordinator` and `ZooKeeperSession` that a membership uses."""

    member: QueryMember
    ask: Ask
    gate: _Connection = field(init=False)
    thread: _Connection = field(init=False)
    session: _Connection = field(init=False)

    def __post_init__(self) -> None:
        self.gate = self.thread = self.session = self

    @property
    def is_open(self) -> bool:
        return self.member.turn_at < self.member.gate

    @property
    def state(self) -> State:
        return self.member.state

    def commit(self, asked: CommitRequested) -> Future[None]:
        self.member.post(asked)
        return asked.answer

    def stream_reported(self, report: StreamReport) -> None:
        self.member.reported(report)

    def run(
        self, operation: Generator[Sequence[Request], Sequence[Reply], T], *, limit_s: float
    ) -> T:
        return run_operation(operation, self.ask)


class QueryMember(ReportingMember):
    """A member whose partitions are read in batches by a query.

    Attributes:
        checkpoint: the query's checkpoint.
    """

    def __init__(
        self,
        settings: Settings,
        on_transition: OnTransition,
        *,
        log: Log,
        reset: Literal["smallest", "largest"],
        on_report: OnReport,
        checkpoint: Checkpoint,
        ask: Ask,
        aim: Phase | None = None,
        rare: Rare | None = None,
    ) -> None:
        """`ask` sends requests of the query itself to ZooKeeper."""
        self._log, self.checkpoint = log, checkpoint
        config = ConsumerConfig(
            zookeeper_connect="simulated:2181",
            group_id=settings.group,
            consumer_id=settings.consumer.removeprefix(f"{settings.group}_"),
            auto_offset_reset=reset,
        )
        wanted = Registration(settings.subscription, settings.pattern, 0)
        self._group = Membership(config, wanted)
        self._group._member = cast(GroupMember, _Connection(self, ask))
        options = SourceOptions(
            config=config,
            mode=Mode.GROUP,
            group=settings.group,
            subscription=cast(Any, None),  # Any: the membership does not read it
            fail_on_data_loss=False,
        )
        self._starts = StartPositions(options, settings.consumer)
        if checkpoint.batch:
            self._starts.checkpoint = {one.tp: one for one in checkpoint.batch}
        self._has_begun = False  # a batch was planned and is not finished
        self._in_flight: dict[TopicPartition, int] = {}
        super().__init__(settings, on_transition, on_report=on_report, aim=aim, rare=rare)

    def _sinks(self) -> PartitionSinks:
        return self._group.sinks

    # ---- what a world and a monitor read ---------------------------------------------------------

    @property
    # A world of queries and streams reads only the keys.
    def feeds(self) -> Mapping[TopicPartition, object]:  # type: ignore[override]
        return self._group.reached()

    @property
    def held(self) -> set[tuple[TopicPartition, int]]:
        return {*self._in_flight.items()} if self._has_begun else set()

    def is_busy(self, now: float) -> bool:
        """Return whether the query can run its batch, finish it, or plan another batch.

        Spark stops the batch in flight before it lets the reader leave the group.
        """
        self.turn_at = now
        if self.state.phase in OVER:
            return False
        if not self.checkpoint.is_done or self._has_begun:
            return True
        served = self._group.served()
        return now < self.gate and any(
            at.offset is None or at.offset != self._log.end(tp) for tp, at in served.items()
        )

    # ---- actions of the query --------------------------------------------------------------------

    def replay(self) -> tuple[OffsetRange, ...]:
        """Run the last batch of the checkpoint again, if it may not have ended; return it."""
        self.checkpoint.is_done = True
        return self.checkpoint.batch

    def run(self) -> None:
        """End the tasks of the batch in flight, and write that to the checkpoint."""
        self.checkpoint.is_done = True

    def ended_batch(self) -> list[OffsetRange]:
        """Return the ranges that the next `plan` finishes; their partitions are still owned."""
        owned, serving = self.state.owned, self.state.serving
        return [
            one
            for one in self.checkpoint.batch
            if self._has_begun
            and one.tp in serving
            and owned[one.tp].epoch == self._in_flight.get(one.tp)
        ]

    def plan(self, now: float) -> list[Planned]:
        """Finish the last batch, and plan the next batch (`GroupStreamReader.latestOffset`)."""
        self.turn_at = now
        group, before = self._group, {one.tp: one for one in self.checkpoint.batch}
        self._finish(before)
        if not group.holds_lease or not self._starts.resume(group, group.served(), before):
            return []
        served = group.served()
        logs = self._logs(served)
        positions = self._starts.positions(group, served, logs)
        ends = {tp: log.end for tp, log in logs.items()}
        begun = group.begin(advance(positions, ends, limit=PER_BATCH))
        if not any(one.size for one in begun):
            group.cancel()
            return []
        self.checkpoint.batch, self.checkpoint.is_done = tuple(begun), False
        self._has_begun = True
        self._in_flight = {one.tp: served[one.tp].epoch for one in begun if one.size}
        return [(one.tp, one.start, one.end, served[one.tp].epoch) for one in begun]

    def _finish(self, before: Mapping[TopicPartition, OffsetRange]) -> None:
        self._has_begun = False
        self._group.finish({tp: one.end for tp, one in before.items()})
        self._group.cancel()

    def _logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange]:
        return {tp: LogRange(self._log.start(tp), self._log.end(tp)) for tp in partitions}
