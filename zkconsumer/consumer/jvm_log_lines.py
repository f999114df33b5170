"""Log lines in the JVM consumer's wording, for operators who search their logs for this wording.

Wording, order and levels follow `kafka.consumer.ZookeeperConsumerConnector`, `PartitionAssignor`,
`PartitionTopicInfo` and `kafka.utils.ZkUtils`, Kafka 0.9 to 1.1. docs/metrics.md lists the lines.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from zkconsumer.errors import escaped_and_cut
from zkconsumer.member import commands as cmd
from zkconsumer.member import events
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import State, own_topics
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.model import UNKNOWN_BLOCKER, Purpose, TopicPartition
from zkconsumer.protocol.paths import thread_ids
from zkconsumer.protocol.registrations import Pattern
from zkconsumer.safe_logger import SafeLogger

# Users' logging configurations name this logger.
logger = SafeLogger(logging.getLogger("zkconsumer.consumer.journal"))

Line = tuple[int, str]
DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
RESTS = frozenset({Phase.SETTLED, Phase.WAITING})


class JvmLogWriter:
    """Observes a member's transitions and logs what the JVM consumer would log."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self._try = 0  # rebalance attempts since the last successful one
        self._rebalancing = False
        self._closing_at = 0.0

    def observe(
        self, before: State, event: events.Event, after: State, commands: Iterable[cmd.Command]
    ) -> None:
        commands = tuple(commands)
        for level, text in self._warnings(before, event, after, commands):
            logger.log(level, "[%s], %s", self._consumer, text)
        if logger.isEnabledFor(INFO):  # thousands of partitions may need a line each
            for level, text in self._lines(before, event, after, commands):
                logger.log(level, "[%s], %s", self._consumer, text)

    def _warnings(
        self, before: State, event: events.Event, after: State, commands: Iterable[cmd.Command]
    ) -> Iterator[Line]:
        if isinstance(event, events.TopicDeleted):
            path = paths.topic(event.topic)
            text = f"Topic for path {path} gets deleted, which should not happen at this time"
            yield WARNING, text
        if after.view is not None and after.view != before.view:
            if not after.view.brokers:
                yield WARNING, "no brokers found when trying to rebalance."
            busy = {(tp.topic, thread) for tp, thread in after.assigned.items()}
            for topic, count in sorted(own_topics(after).items()):
                for thread in thread_ids(self._consumer, count):
                    if (topic, thread) not in busy:
                        yield (
                            WARNING,
                            (
                                f"No broker partitions consumed by consumer thread {thread} "
                                "for topic "
                                f"{topic}"
                            ),
                        )
        for one in commands:
            match one:
                case cmd.Notice(kind=cmd.NoticeKind.COMMIT_FAILED, where=where, text=text):
                    if text.startswith(f"{Purpose.AUTO.value} commit"):
                        yield ERROR, f"exception during autoCommit: {where}: {text}"

    def _lines(
        self, before: State, event: events.Event, after: State, commands: Iterable[cmd.Command]
    ) -> Iterator[Line]:
        yield from self._event_lines(before, event, after)
        if before.phase is Phase.STOPPING is not after.phase:
            yield INFO, "Cleared all relevant queues for this fetcher"
            yield INFO, "Cleared the data chunks in all the consumer message iterators"
        for command in commands:
            yield from self._command_lines(after, command)
        if self._rebalancing and after.phase in RESTS:
            yield from self._end_lines(after)
        if after.phase is Phase.CLOSED is not before.phase:
            took_ms = round((event.now - self._closing_at) * 1000) if self._closing_at else 0
            yield INFO, f"ZKConsumerConnector shutdown completed in {took_ms} ms"

    def _end_lines(self, state: State) -> Iterator[Line]:
        self._rebalancing = False
        yield INFO, f"end rebalancing consumer {self._consumer} try #{self._try}"
        if state.phase is Phase.SETTLED:
            self._try = 0
            return
        self._try += 1
        if state.blocked.partitions or state.refused:
            yield (
                INFO,
                (
                    "Rebalancing attempt failed. Clearing the cache before the next rebalancing "
                    "operation is triggered"
                ),
            )

    # ---- lines about events ----------------------------------------------------------------------

    def _event_lines(self, before: State, event: events.Event, after: State) -> Iterator[Line]:
        match event:
            case events.Connected() if before.session and before.session.id != event.session.id:
                yield (
                    INFO,
                    (
                        "ZK expired; release old broker parition ownership; re-register consumer "
                        f"{self._consumer}"
                    ),
                )
            case events.Triggered(trigger=events.Trigger.TOPIC, subject=topic) if topic:
                path = paths.topic(topic)
                yield INFO, f"Topic info for path {path} changed, triggering rebalance"
            case events.PositionReset(partition=tp, offset=offset):
                known = before.offsets.entries.get(tp)
                consumed = -1 if known is None or known.value is None else known.value
                yield DEBUG, f"reset fetch offset of ( {_info(tp, offset, consumed)} ) to {offset}"
            case events.CloseRequested() if before.phase is not Phase.LEAVING:
                self._closing_at = event.now
                yield INFO, "ZKConsumerConnector shutting down"
            case events.Finished(op=op, outcome=outcome) if op == before.op:
                yield from self._outcome_lines(before, outcome, after)

    def _outcome_lines(
        self, before: State, outcome: events.Outcome, after: State
    ) -> Iterator[Line]:
        match outcome:
            case events.Registered() if before.phase is Phase.REGISTERING:
                yield INFO, f"end registering consumer {self._consumer} in ZK"
            case events.ViewRead(view=view) if view != before.view:
                yield from self._topic_lines(before, after)
                yield from self._assignment_lines(after)
            case events.Claimed(claimed=claimed, blocked=blocked, denied=denied):
                for tp, mine in sorted(claimed.items()):
                    yield (
                        INFO,
                        (
                            f"{mine.thread} successfully owned partition {tp.partition} for topic "
                            f"{tp.topic}"
                        ),
                    )
                for tp, who in sorted(blocked.items()):
                    if who != UNKNOWN_BLOCKER and before.blocked.partitions.get(tp) != who:
                        path = paths.owner(after.settings.group, tp)
                        mine_ = after.assigned.get(tp, "")
                        yield INFO, f"conflict in {path} data: {mine_} stored data: {who.thread}"
                    if tp not in before.blocked.partitions:
                        yield (
                            INFO,
                            (
                                "waiting for the partition ownership to be deleted: "
                                f"{tp.partition} for topic {tp.topic}"
                            ),
                        )
                for tp, reason in sorted(denied.items()):
                    yield INFO, f"exception during rebalance {tp}: {reason}"
            case events.Denied(where=where, reason=reason):
                yield INFO, f"exception during rebalance {where}: {reason}"
            case events.MemberNodeGone():
                yield INFO, f"exception during rebalance NoNode for ids/{self._consumer}"

    def _topic_lines(self, before: State, after: State) -> Iterator[Line]:
        """Log the topics that a wildcard member gained or lost."""
        if after.settings.pattern is Pattern.STATIC:
            return
        old, new = set(own_topics(before)), set(own_topics(after))
        for word, topics in (("added", new - old), ("deleted", old - new)):
            if topics:
                yield INFO, f"Topic event: {word} topics = {_sequence(sorted(topics))}"

    def _assignment_lines(self, state: State) -> Iterator[Line]:
        view = state.view
        if view is None:
            return
        for topic in sorted(own_topics(state)):
            known = view.topics.get(topic)
            partitions = _sequence(known.partitions if known else ())
            if state.settings.strategy is Strategy.RANGE:
                threads = sorted(
                    thread
                    for member, counts in view.counts().items()
                    for thread in thread_ids(member, counts.get(topic, 0))
                )
                yield (
                    INFO,
                    (
                        f"Consumer {self._consumer} rebalancing the following partitions: "
                        f"{partitions} "
                        f"for topic {topic} with consumers: "
                        f"List({', '.join(map(escaped_and_cut, threads))})"
                    ),
                )
            else:
                yield (
                    INFO,
                    (
                        f"Consumer {self._consumer} rebalancing the following partitions for topic "
                        f"{topic}: {partitions}"
                    ),
                )

    # ---- lines about commands --------------------------------------------------------------------

    def _command_lines(self, state: State, command: cmd.Command) -> Iterator[Line]:
        match command:
            case cmd.Register():
                yield INFO, f"begin registering consumer {self._consumer} in ZK"
            case cmd.ReadView():
                if self._rebalancing:
                    yield from self._end_lines(state)
                self._rebalancing = True
                yield INFO, f"begin rebalancing consumer {self._consumer} try #{self._try}"
            case cmd.Release(partitions=partitions):
                yield INFO, "Releasing partition ownership"
                for tp in sorted(partitions):
                    path = paths.owner(state.settings.group, tp)
                    yield DEBUG, f"Consumer {self._consumer} releasing {path}"
            case cmd.Claim(partitions=threads):
                for tp, thread in sorted(threads.items()):
                    yield INFO, f"{thread} attempting to claim partition {tp.partition}"
            case _:
                yield from self._stream_lines(state, command)

    def _stream_lines(self, state: State, command: cmd.Command) -> Iterator[Line]:
        """Log the commands for the streams and the user's listener."""
        match command:
            case cmd.CollectPositions(purpose=Purpose.RELEASE) if state.phase is Phase.COMMITTING:
                yield INFO, "Committing all offsets after clearing the fetcher queues"
            case cmd.CallListener(callback=cmd.Callback.RELEASING):
                # The JVM's line contains this misspelling, and operators search for it.
                yield INFO, "Invoking rebalance listener before relasing partition ownerships."
            case cmd.CallListener(callback=cmd.Callback.STARTING):
                yield INFO, "Invoking rebalance listener before starting fetchers."
            case cmd.StartFetching(grants=grants):
                by_number = sorted(grants, key=lambda tp: (tp.partition, tp.topic))
                offsets = {tp: -1 if grants[tp][1] is None else grants[tp][1] for tp in by_number}
                selected = ",".join(_info(tp, at, at) for tp, at in offsets.items())
                yield INFO, f"Consumer {self._consumer} selected partitions : {selected}"


def _info(tp: TopicPartition, fetched: int | None, consumed: int | None) -> str:
    """Return the JVM's text of `PartitionTopicInfo.toString`."""
    return f"{tp.topic}:{tp.partition}: fetched offset = {fetched}: consumed offset = {consumed}"


def _sequence(items: Iterable[object]) -> str:
    """Return a Scala sequence as the JVM's log shows it."""
    return f"ArrayBuffer({', '.join(escaped_and_cut(str(item)) for item in items)})"
