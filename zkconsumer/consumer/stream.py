"""A stream: what the user iterates. Its thread alone touches the broker client underneath.

Kafka's `kafka.consumer.KafkaStream` and `ConsumerIterator` (0.8.0 to 1.1). See `holdings` for how
the coordinator takes partitions away while the user's thread is handing out messages.

Pausing, resuming and seeking: what the JVM's old consumer never had.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from copy import copy
from operator import length_hint
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import Message as RawMessage

from zkconsumer.consumer.messages import Batch, Message
from zkconsumer.consumer.stream_fetcher import (
    TURN_S,
    Background,
    Feed,
    ReportKind,
    StreamReport,
    inline,
)
from zkconsumer.consumer.stream_partitions import (
    Codec,
    Coverage,
    Grant,
    Holdings,
    LeaseGate,
    PartitionState,
)
from zkconsumer.errors import (
    ConfigError,
    ConnectorClosedError,
    ConsumerTimeoutError,
    NotOwnedError,
    ZkConsumerError,
)
from zkconsumer.kafka.fetcher import Fetcher, Reset
from zkconsumer.protocol.model import Position, TopicPartition

__all__ = [
    "BUFFER_MESSAGES",
    "Grant",
    "ReportKind",
    "Stream",
    "StreamReport",
    "Streams",
    "Coverage",
]

K = TypeVar("K")
V = TypeVar("V")

# Messages taken from the broker client at once, at most; they are filtered again when they are
# handed out. More gains nothing measurable; less costs throughput.
BUFFER_MESSAGES: Final = 1000


class Stream(Generic[K, V]):
    """One thread's messages, in order per partition within one ownership.

    `topic` is None for the stream of a filter, whose topics come and go.

    Iterate it, call `next` on it, or `poll` batches, from one thread at a time. All three raise
    what goes wrong as an error of this package, once per occurrence, and can be used again
    afterwards. A message is finished, and may be committed by the auto-commit, when the next one
    is asked for.
    """

    def __init__(
        self,
        *,
        topic: str | None,
        thread_id: str,
        number: int,
        gate: LeaseGate,
        connect: Callable[[], Fetcher | None],
        moved: Callable[[], bool] = lambda: False,
        reset: Reset,
        timeout_s: float | None,
        retry_s: float,
        codec: Codec[K, V],
        report: Callable[[StreamReport], None],
        background: Background = inline,
        turn_s: float = TURN_S,
    ) -> None:
        """For the connector.

        `connect` makes the fetcher when the first partition comes; None means that no broker is
        known yet. `moved` is asked when brokers cannot be reached: are they all elsewhere by now,
        so that it must be made anew? `background` runs both, so that the user's thread waits for
        neither. `turn_s` is the longest stay in the fetcher's `consume`.

        `timeout_s` is `consumer.timeout.ms`, None for never. `retry_s` is the pause after a failed
        look-up (`refresh.leader.backoff.ms`). `report` is called on the user's thread and must
        only enqueue. All time-outs and pauses count in seconds of `gate.clock`.
        """
        self.topic = topic
        self.thread_id = thread_id
        self.number = number
        self._gate = gate
        self.timeout_s = timeout_s
        self._report = report
        self._holdings = Holdings(codec)
        self._feed = Feed(
            topic=topic,
            thread_id=thread_id,
            holdings=self._holdings,
            connect=connect,
            moved=moved,
            reset=reset,
            retry_s=retry_s,
            report=report,
            clock=gate.clock,
            background=background,
            turn_s=turn_s,
        )
        self._turn_s = turn_s
        self._inside = threading.Lock()  # held while the feed is touched; never waited for
        # An exception that is not ours may have swallowed messages: fetch anew at the next ask.
        self._disturbed = False
        self._iterator: Iterator[Message[K, V]] | None = None

    def __repr__(self) -> str:
        return f"Stream({self.topic!r}, {self.thread_id!r})"

    # ---- the user's side -------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message[K, V]]:
        """The fast way: no call per message but the generator's own.

        Ends when the connector is shut down. Raises the error that ended the member, once, if the
        member ended by itself, and ends after that. Raises ConsumerTimeoutError after
        `consumer.timeout.ms` without a message (JVM: ConsumerTimeoutException), FetchError,
        RebalanceBlockedError and others; iterate anew to go on.
        """
        return itertools.chain.from_iterable(self._rounds())

    def _rounds(self) -> Generator[Iterator[Message[K, V]], None, None]:
        while self.wait(self.timeout_s, BUFFER_MESSAGES):
            yield self.ready()

    def __next__(self) -> Message[K, V]:
        """The next message; StopIteration after the shutdown. Any error leaves it usable."""
        if self._iterator is None:
            self._iterator = iter(self)
        try:
            return next(self._iterator)
        except BaseException:
            self._iterator = None
            raise

    def poll(self, *, max_messages: int = BUFFER_MESSAGES, timeout_s: float = 0.5) -> Batch[K, V]:
        """The messages that are there, at most `max_messages`; empty when none came in time.

        Returns as soon as there is one. The whole batch is finished when the next is asked for.
        Raises as iterating does, but for the timeout; ConnectorClosedError after the shutdown; and
        the error that ended the member, at every call, if the member ended by itself.
        """
        try:
            if self.wait(timeout_s, max_messages):
                return self.take(max_messages)
        except ConsumerTimeoutError:
            return self.take(0)
        raise self.closed_error()

    # ---- waiting and handing out, one after the other and by nobody else meanwhile ---------------

    def wait(self, timeout_s: float | None, max_messages: int) -> bool:
        """Wait until there is something to hand out; False when the stream is closed.

        When it returns True the lease held an instant ago and nothing is in the user's hands.
        Whoever handed messages out before is through with them.
        """
        if self._inside.locked() and not self.closed:
            raise ZkConsumerError(
                "a stream was asked for messages by two threads at once",
                where=self.thread_id,
                remedy="give each thread its own stream",
            )
        try:
            # `with`, because no signal handler runs between the lock and the block; it may between
            # a call of `acquire` and the next line. Waits only for `close` to let the fetcher go.
            with self._inside:
                return self._turns(timeout_s, max_messages)
        except ZkConsumerError:
            raise
        except BaseException:
            # A KeyboardInterrupt may have come between the broker client and us, and the messages
            # it had returned are lost: fetch again from what was handed out.
            self._disturbed = True
            raise
        finally:
            if self.closed:
                self._let_go()

    def ready(self) -> Generator[Message[K, V], None, None]:
        """What is there, one by one, until it is all or something must be looked at again."""
        index, key_of = self._feed.index, self._feed.key_of
        gate, holdings = self._gate, self._holdings
        clock = gate.clock
        state: PartitionState | None = None
        try:
            for raw in self._feed.rest:
                if state is not None:
                    state.in_hand = None  # u1
                if holdings.attention or clock() >= gate.deadline:  # u2
                    self._feed.rest = iter([raw, *self._feed.rest])
                    break
                state = index[key_of(raw)]
                state.in_hand = raw  # u3
                if not state.granted:  # u4
                    state.in_hand = None
                    continue
                state.last = raw
                message: Message[K, V] = Message()  # `wrapped`, without a call
                message._raw = raw
                message._held = state
                yield message
        except GeneratorExit:
            raise
        except BaseException:
            self._hold_back()
            raise

    @property
    def unchanged(self) -> bool:
        """Does the lease still hold, and does nobody want anything, since `wait` returned?"""
        return self._gate.is_open and not self._holdings.attention

    def take(self, max_messages: int) -> Batch[K, V]:
        """What is there, at most so many."""
        try:
            rest = self._feed.rest
            if length_hint(rest) > max_messages:
                rest = itertools.islice(rest, max_messages)
            return self._hand_out(list(rest))
        except BaseException:
            self._hold_back()
            raise

    def _hand_out(self, raws: list[RawMessage]) -> Batch[K, V]:
        key_of = self._feed.key_of
        if not raws:
            return Batch([], {}, key_of)
        if len(self._feed.index) == 1:
            (key,) = self._feed.index
            first, last = {key: raws[0]}, {key: raws[-1]}
        else:
            # The first and the last message of each partition, without a loop in Python.
            keys = list(map(key_of, raws))
            last = dict(zip(keys, raws, strict=True))
            first = dict(zip(reversed(keys), reversed(raws), strict=True))
        held = {key: self._feed.index[key] for key in last}
        for key, state in held.items():
            state.in_hand = first[key]  # u3
        gone = {key for key, state in held.items() if not state.granted}  # u4
        for key in gone:
            held.pop(key).in_hand = None
        for key, state in held.items():
            state.last = last[key]
        if gone:
            self._holdings.dropped()
            raws = [raw for raw in raws if key_of(raw) not in gone]
        return Batch(raws, held, key_of)

    def _turns(self, timeout_s: float | None, max_messages: int) -> bool:
        holdings, gate = self._holdings, self._gate
        limit = None if timeout_s is None else gate.clock() + timeout_s
        for state in self._feed.states.values():
            state.in_hand = None  # u1
        while True:
            if self._disturbed:
                self._feed.start_over()
                holdings.attention = True  # what it said may have been heard in part
                self._disturbed = False
            if holdings.attention:  # u2
                self._feed.settle()
            if holdings.closed:
                # `end` adds its error, then sets `closed`, then `attention`: this thread may have
                # found `attention` False before that, and must not end without the error.
                holdings.raise_failure()
                return False
            left = None if limit is None else max(0.0, limit - gate.clock())
            if not gate.is_open:
                gate.wait(holdings, self._turn_s if left is None else min(left, self._turn_s))
            elif not length_hint(self._feed.rest):
                self._feed.fetch(left, max_messages)
                if length_hint(self._feed.rest):
                    continue  # time has passed: look at everything again
            else:
                return True
            if limit is not None and gate.clock() >= limit:
                raise self.timeout_error(timeout_s)

    def _hold_back(self) -> None:
        """An exception came while messages were being handed out: hand them out again."""
        self._disturbed = True
        self._feed.take_back()

    def _let_go(self) -> None:
        """Close the fetcher unless a thread is inside; that one does it when it comes out.

        The user's thread leaves `_inside` and then looks at `closed`; `close` sets `closed` and
        then tries `_inside`: one of the two sees the other, and a fetcher is dropped once.
        """
        if self._inside.acquire(blocking=False):
            try:
                self._feed.drop()
            finally:
                self._inside.release()

    def timeout_error(self, timeout_s: float | None) -> ConsumerTimeoutError:
        of = f" of {self.topic}" if self.topic is not None else ""
        return ConsumerTimeoutError(
            f"no message{of} within {timeout_s:g} s",
            where=f"thread {self.thread_id}",
            remedy=self.waiting_for or "ask again; consumer.timeout.ms=-1 waits for ever",
        )

    def closed_error(self) -> ZkConsumerError:
        if self._holdings.failure is not None:
            # A copy: an exception that is raised again and again collects tracebacks.
            return copy(self._holdings.failure)
        return ConnectorClosedError(
            "the connector was shut down", where=self.thread_id, remedy="leave the loop"
        )

    def raise_failure(self) -> None:
        """Raise the next error that `fail` or `end` was given and that nobody has met, if any."""
        self._holdings.raise_failure()

    @property
    def closed(self) -> bool:
        """Has the connector been shut down?"""
        return self._holdings.closed

    # ---- the coordinator's side: any thread, never blocks ----------------------------------------

    @property
    def alarm(self) -> Holdings:
        """What ends a wait of the user's thread; a shared fetcher waits for it."""
        return self._holdings

    @property
    def waiting_for(self) -> str:
        """Why no message can come at present; empty when one can."""
        if self._holdings.failure is not None:
            return str(self._holdings.failure)
        if self._holdings.closed:
            return "the connector was shut down"
        if not self._holdings.holds_any:
            return self._holdings.idle_reason or "no partition is assigned to this thread"
        if not self._gate.is_open:
            return "ZooKeeper has not confirmed the session, so the lease is over"
        reasons = self._feed.unplaced.copy()
        return "; ".join(f"{tp}: {reasons[tp].reason}" for tp in sorted(reasons))

    @property
    def queued(self) -> int:
        """Messages taken from the broker client and not yet handed out; what it holds is not known.

        The JVM's FetchQueueSize counts chunks.
        """
        return length_hint(self._feed.rest) + self._feed.queued

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The ends of the logs that it reads, as of a few seconds ago, where they are known."""
        return self._feed.ends

    @property
    def fetched_bytes(self) -> Mapping[str, float]:
        """Topic -> bytes of keys and values fetched, estimated where many came at once."""
        return dict(self._feed.fetched_bytes)

    def explain(self, idle_reason: str) -> None:
        """Why the thread has no partition; shown in time-outs and by `waiting_for`."""
        self._holdings.idle_reason = idle_reason

    def grant(self, grants: Iterable[Grant]) -> None:
        """Serve these partitions; a partition that is held already is served anew."""
        self._holdings.grant(grants)

    def withdraw(self, tps: Iterable[TopicPartition]) -> None:
        """Hand out nothing more of these, from now on."""
        self._holdings.withdraw(tps)

    def ask_release(self, tps: Iterable[TopicPartition], done: Callable[[], None]) -> None:
        """Hand out nothing more of these; `done()`, once, when the user holds nothing of them.

        It is called on this thread or on the user's and must only enqueue.
        """
        self._holdings.ask_release(tps, done)

    def positions(self, which: Coverage) -> dict[TopicPartition, Position]:
        """The known positions of what is granted, or asked to be released."""
        return self._holdings.positions(which)

    def serves(self, tp: TopicPartition) -> bool:
        """Are messages of this partition handed out, or would be if it were not paused?"""
        return self._holdings.serves(tp)

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Hand out no more of these until they are resumed, or come under another ownership."""
        self._holdings.pause(tps)

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Hand these out again, from where they were paused."""
        self._holdings.resume(tps)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """What is paused."""
        return self._holdings.paused

    def seek(self, tp: TopicPartition, offset: int) -> bool:
        """Hand out `offset` next; False when the partition is not served."""

        def tell(epoch: int) -> None:
            text = f"the user goes on from {offset}"
            self._report(StreamReport(ReportKind.SOUGHT, self.thread_id, text, tp, epoch, offset))

        return self._holdings.seek(tp, offset, tell)

    def fail(self, error: Exception) -> None:
        """Raise `error`, once, when the user next asks."""
        self._holdings.fail(error)

    def end(self, error: ZkConsumerError) -> None:
        """The member has ended by itself: raise `error`, and then end the iteration for good.

        The fetcher is closed by the user's thread, or by `close`.
        """
        self._holdings.end(error)

    def halt(self) -> None:
        """End the iteration for good; a user's thread that waits returns within `TURN_S`.

        The fetcher is closed by that thread, or by `close`.
        """
        self._holdings.close()

    def close(self) -> None:
        """As `halt`, and close the fetcher unless a user's thread is inside, which then does it."""
        self.halt()
        self._let_go()


Streams = Mapping[tuple[str | None, str], Stream[Any, Any]]
"""By topic and consumer thread id: a thread id has one stream for each of its topics; or, by a
pattern, one for whatever topics match, under None."""


# ---- steering ------------------------------------------------------------------------------------


AnyStream = Stream[Any, Any]

# The greatest offset of a log; more does not fit into a request to a broker.
MAX_OFFSET = 2**63 - 2


def by_stream(
    streams: Iterable[AnyStream], partitions: Iterable[TopicPartition]
) -> dict[AnyStream, list[TopicPartition]]:
    """Who serves each of these; raises NotOwnedError, naming all that nobody serves."""
    found: dict[AnyStream, list[TopicPartition]] = {}
    wanted = [TopicPartition(*one) for one in partitions]
    for stream in streams:
        served = [tp for tp in wanted if stream.serves(tp)]
        if served:
            found[stream] = served
    missing = sorted(set(wanted).difference(*found.values()))
    if missing:
        raise _not_owned(missing)
    return found


def seek(streams: Iterable[AnyStream], partition: TopicPartition, offset: int) -> None:
    """Go on from `offset`; raises NotOwnedError, or ConfigError for an impossible offset."""
    if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
        raise ConfigError(
            f"{offset!r} is no offset",
            where=str(TopicPartition(*partition)),
            remedy="give an integer of at least 0",
        )
    for stream, (tp,) in by_stream(streams, [partition]).items():
        if not stream.seek(tp, offset):
            raise _not_owned([tp])


def _not_owned(missing: Iterable[TopicPartition]) -> NotOwnedError:
    return NotOwnedError(
        "this member is not serving the partition",
        where=", ".join(map(str, missing)),
        remedy="ask `status().owned` first; what is about to move away counts no more",
    )
