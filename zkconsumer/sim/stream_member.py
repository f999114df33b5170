"""A simulated member whose partitions are delivered by production streams, and their users.

The streams (`consumer.stream`, `stream_fetcher`, `stream_partitions`, `messages`) read the world's
logs through `sim.logs.MemoryFetcher`. No thread runs: a call of a user begins and ends within one
action of the world, and never waits. `tests/support/sim/handover.py` explores what the member's
thread may do while such a call is running.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Self

from zkconsumer.consumer.commit_requests import CommitAbandoned, CommitRequested
from zkconsumer.consumer.loop import PartitionSinks
from zkconsumer.consumer.messages import Message
from zkconsumer.consumer.stream import AnyStream, StreamReader
from zkconsumer.consumer.stream_fetcher import StreamReport
from zkconsumer.consumer.stream_partitions import Codec, CommitScope, Decoded, LeaseGate
from zkconsumer.errors import ZkConsumerError
from zkconsumer.kafka.fetcher import BUFFER_MESSAGES, AutoOffsetReset, MessageList
from zkconsumer.member import commands as cmd
from zkconsumer.member import events
from zkconsumer.member.events import Event
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import Settings
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import thread_ids
from zkconsumer.protocol.registrations import Pattern
from zkconsumer.sim.logs import Log, MemoryFetcher
from zkconsumer.sim.member import OnTransition, SimMember
from zkconsumer.sim.plan import Rare

POLLED = 3
"""Upper bound of the messages of a polled batch, so that some fetched messages remain."""

OnReport = Callable[[SimMember, StreamReport], None]
Read = tuple[TopicPartition, int, int]
"""A message that the user got: (partition, offset, fencing token)."""


class _Fetcher(MemoryFetcher):
    """A fetcher that an interrupt of the user's thread may stop after it has taken messages."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.is_interrupted = False

    def fetch(self, timeout_s: float, max_messages: int = BUFFER_MESSAGES) -> list[MessageList]:
        runs = super().fetch(timeout_s, max_messages)
        if self.is_interrupted:
            self.is_interrupted = False
            raise KeyboardInterrupt
        return runs


@dataclass
class User:
    """The user's thread of one stream.

    Attributes:
        held: partition -> (fencing token, offset after the last message) of the messages that the
            user got and has not finished.
    """

    stream: AnyStream
    fetcher: _Fetcher
    held: dict[TopicPartition, tuple[int, int]]
    iterator: Iterator[Message[Decoded, Decoded]] | None = None

    def next(self) -> list[Message[Decoded, Decoded]]:
        """Iterate to the next message; the list is empty if there is none."""
        try:
            self.iterator = self.iterator or iter(self.stream)
            return list(itertools.islice(self.iterator, 1))
        except (ZkConsumerError, KeyboardInterrupt):
            self.iterator = None
            return []

    def poll(self) -> list[Message[Decoded, Decoded]]:
        try:
            return list(self.stream.poll(max_messages=POLLED, timeout_s=0.0))
        except (ZkConsumerError, KeyboardInterrupt):
            return []

    def keep(self, messages: Iterable[Message[Decoded, Decoded]]) -> list[Read]:
        """Hold these messages."""
        found = [(TopicPartition(m.topic, m.partition), m.offset, m.token) for m in messages]
        for tp, offset, epoch in found:
            self.held[tp] = epoch, offset + 1
        return found


class ReportingMember(SimMember):
    """A member that reports changed positions to its loop, and cannot be copied."""

    def __init__(
        self,
        settings: Settings,
        on_transition: OnTransition,
        *,
        on_report: OnReport,
        aim: Phase | None = None,
        rare: Rare | None = None,
    ) -> None:
        """`on_report` gets each change of a position by a user or by `auto.offset.reset`."""
        self._on_report = on_report
        super().__init__(settings, on_transition, aim=aim, rare=rare)

    def copy(self, on_transition: OnTransition) -> Self:
        raise NotImplementedError(f"a {type(self).__name__} cannot be copied")

    def reported(self, report: StreamReport) -> None:
        if report.offset is not None:
            self._on_report(self, report)
            self.post(report)

    def translate(self, item: object) -> Event | None:
        if not isinstance(item, StreamReport):
            raise TypeError(f"unknown item: {item!r}")
        assert item.tp is not None
        assert item.offset is not None
        return events.PositionReset(
            now=self.turn_at, partition=item.tp, epoch=item.epoch, offset=item.offset
        )


class StreamMember(ReportingMember):
    """A member with production streams.

    Attributes:
        users: one user for each stream.
        slow_user: the user that asks for no messages now; None if no user is slow.
        paused: the partitions that the users have paused and not resumed. A pause may outlast a
            withdrawal: the partition may be granted again under the same fencing token.
    """

    def __init__(
        self,
        settings: Settings,
        on_transition: OnTransition,
        *,
        log: Log,
        reset: AutoOffsetReset,
        on_report: OnReport,
        aim: Phase | None = None,
        rare: Rare | None = None,
    ) -> None:
        self._log, self._reset = log, reset
        self.users: list[User] = []
        self.slow_user: User | None = None
        self.paused: set[TopicPartition] = set()
        self._turns = 0
        self.has_given_up = False
        self._asked: list[Future[None]] = []
        self.turn_at = 0.0
        self._lease = LeaseGate(self.clock)
        super().__init__(settings, on_transition, on_report=on_report, aim=aim, rare=rare)

    def _sinks(self) -> PartitionSinks:
        subscription = self.settings.subscription
        is_filter = self.settings.pattern is not Pattern.STATIC
        threads = {
            topic: thread_ids(self.name, count) for topic, count in sorted(subscription.items())
        }
        keys = [
            (None if is_filter else topic, thread) for topic in threads for thread in threads[topic]
        ]
        sinks: PartitionSinks = {key: self._stream(*key, number=n) for n, key in enumerate(keys)}
        return sinks

    def _stream(self, topic: str | None, thread: str, *, number: int) -> AnyStream:
        fetcher = _Fetcher(self._log)
        codec: Codec[Decoded, Decoded] = Codec()
        stream: AnyStream = StreamReader(
            topic=topic,
            thread_id=thread,
            number=number,
            gate=self._lease,
            connect=lambda: fetcher,
            reset=self._reset,
            timeout_s=0.0,
            retry_s=0.2,
            codec=codec,
            report=self.reported,
        )
        self.users.append(User(stream, fetcher, {}))
        return stream

    # ---- what a world and a monitor read ---------------------------------------------------------

    @property
    # A world of queries and streams reads only the keys.
    def feeds(self) -> Mapping[TopicPartition, AnyStream]:  # type: ignore[override]
        """The partitions that are delivered now, with their streams."""
        serving = self.state.serving
        return {tp: user.stream for user in self.users for tp in serving if user.stream.serves(tp)}

    @property
    def held(self) -> set[tuple[TopicPartition, int]]:
        return {(tp, epoch) for user in self.users for tp, (epoch, _) in user.held.items()}

    @property
    def last_user(self) -> User:
        """The user that asked for messages last."""
        return self.users[self._turns - 1]

    def busy_user(self, now: float) -> User | None:
        """Return the next user, in turn, whose call would finish, receive or change something."""
        count = len(self.users)
        for turn in range(self._turns, self._turns + count):
            user = self.users[turn % count]
            if user is not self.slow_user and self._has_work(user, now):
                return user
        return None

    def _has_work(self, user: User, now: float) -> bool:
        stream = user.stream
        if user.held or stream.wake_signal.has_changed:
            return True
        if now >= self.gate:
            return False
        reached, paused = stream.positions(CommitScope.DELIVERED), stream.paused
        for tp in self.state.serving:
            if stream.serves(tp) and tp not in paused:
                at = reached.get(tp)
                if at is None or at.offset != self._log.end(tp):
                    return True
        return False

    # ---- actions of the users --------------------------------------------------------------------

    def ask(self, user: User, now: float, *, is_poll: bool) -> list[Read]:
        """Let a user ask for messages; this finishes the earlier messages. Return the messages it
        gets."""
        self.turn_at = now
        self._turns = self.users.index(user) + 1
        user.held.clear()
        return user.keep(user.poll() if is_poll else user.next())

    def finished_by(self, user: User) -> list[tuple[TopicPartition, int]]:
        """Return the partitions whose messages this user's next call finishes.

        Each partition comes with the offset after its last message.
        """
        owned = self.state.owned
        return [
            (tp, offset)
            for tp, (epoch, offset) in user.held.items()
            if tp in owned and owned[tp].epoch == epoch and tp in self.state.serving
        ]

    def pause(self, tp: TopicPartition, now: float) -> None:
        self.turn_at = now
        self.feeds[tp].pause([tp])
        self.paused.add(tp)

    def resume(self, now: float) -> None:
        """Resume every paused partition."""
        self.turn_at = now
        for user in self.users:
            user.stream.resume(self.paused)
        self.paused.clear()

    def seek(self, tp: TopicPartition, offset: int, now: float) -> None:
        """Continue at `offset`. The unfinished message may then be redelivered."""
        self.turn_at = now
        self.feeds[tp].seek(tp, offset)
        for user in self.users:
            user.held.pop(tp, None)

    def give(self, given: Mapping[TopicPartition, int], now: float) -> None:
        """Commit exactly these offsets."""
        self.turn_at = now
        self._ask(CommitRequested(None, given))

    def commit(self, now: float) -> None:
        self._ask(CommitRequested(None))

    def _ask(self, request: CommitRequested) -> None:
        self._asked = [*(one for one in self._asked if not one.done()), request.answer]
        self.post(request)

    @property
    def waits_for_commit(self) -> bool:
        """Whether a user waits for the answer to an explicit commit."""
        return any(not one.done() for one in self._asked)

    def abandon(self, now: float) -> None:
        """The oldest explicit commit reaches its timeout."""
        self.turn_at = now
        oldest = next(one for one in self._asked if not one.done())
        self._asked.remove(oldest)
        self.post(CommitAbandoned(oldest))

    def interrupt(self) -> None:
        """A signal ends each user's next call while it takes messages."""
        for user in self.users:
            user.fetcher.is_interrupted = True

    def raise_in_loop(self) -> None:
        """The body of each user's loop raises, so that a new loop begins."""
        for user in self.users:
            user.iterator = None

    def silent_streams(self) -> list[str]:
        """Return the streams that do not raise the error with which their member has given up."""
        quiet: list[str] = []
        if not self.has_given_up:
            return quiet
        for user in self.users:
            try:
                user.stream.poll(timeout_s=0.0)
                quiet.append(user.stream.thread_id)
            except ZkConsumerError:
                continue
        return quiet

    # ---- the loop's host and gate ----------------------------------------------------------------

    def gave_up(self, command: cmd.GiveUp) -> ZkConsumerError:
        self.has_given_up = True
        return super().gave_up(command)

    def open(self, deadline: float) -> None:
        super().open(deadline)
        self._lease.open(deadline)

    def shut(self) -> None:
        super().shut()
        self._lease.shut()
