"""`zkconsumer consume --offset`: messages by their places, without a group.

The command assigns the partitions to a client of its own. It never joins a group and never commits,
as `kcat` and Kafka's `SimpleConsumerShell`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from itertools import islice, starmap
from typing import TYPE_CHECKING, Final

from zkconsumer.cli.output import say
from zkconsumer.errors import Advice, ConfigError, FetchError, RemedyOperation
from zkconsumer.frozen import dataclass
from zkconsumer.kafka.fetcher import TIMESTAMP_NOT_AVAILABLE, FetchFaultKind
from zkconsumer.protocol.model import TopicPartition

if TYPE_CHECKING:
    from zkconsumer.cli.message_lines import Lines
    from zkconsumer.kafka.client_settings import Brokers
    from zkconsumer.kafka.fetcher import Fetcher, MessageRun
    from zkconsumer.kafka.logs import LogRange
    from zkconsumer.protocol.model import TopicPartition
    from zkconsumer.zk.client import ZooKeeperClient

# librdkafka needs the name of a group; nothing joins this group or commits to it.
_NO_GROUP: Final = "zkconsumer"
# The maximum number of messages of one poll, and the time limit of a poll in seconds.
_BATCH: Final = 500
_TURN_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Start:
    """Where to start: an offset; a number of messages before the end (negative); or a time in ms
    since 1970."""

    offset: int | None = None
    time_ms: int | None = None


class Plain:
    """A message without a group: it has no fencing token."""

    def __init__(self, run: MessageRun, number: int) -> None:
        """Read message `number` of a run."""
        kind, milliseconds = run.timestamp(number)
        self.topic, self.partition = run.tp
        self.offset = run.offset(number)
        self.timestamp = None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds
        self.key, self.value = run.key(number), run.value(number)
        self.headers = run.headers(number)


def parse_start(text: str) -> Start:
    """Return the start of `--offset`: 42, -5, or @TIME. Raises ConfigError."""
    from zkconsumer.times import parse_instant

    if text.startswith("@"):
        return Start(time_ms=parse_instant(text[1:], where="--offset"))
    try:
        return Start(offset=int(text))
    except ValueError:
        raise ConfigError(
            f"{text[:80]!r} is not a place in a log",
            where="--offset",
            remedy="give an offset (42), a number of messages before the end (-5), or a time"
            " (@2026-01-31T03:00)",
        ) from None


def consume_from(
    connection: ZooKeeperClient,
    wanted: Mapping[str, frozenset[int] | None],
    start: Start,
    *,
    lines: Lines,
    max_messages: int | None,
    idle_timeout_s: float | None,
) -> None:
    """Write the messages from `start` on to standard output, until one of the limits.

    Raises ConfigError, FetchError, and what `ZooKeeperClient.read` raises.
    """
    from zkconsumer.admin.groups import registered_brokers
    from zkconsumer.kafka.engines import StreamClients
    from zkconsumer.kafka.logs import NO_BROKER

    brokers = registered_brokers(connection)
    partitions = _partitions(connection, wanted)
    limit_s = connection.config.zookeeper_connection_timeout_s
    offsets = _offsets(brokers, partitions, start, limit_s)
    config = connection.config.for_group(_NO_GROUP)
    fetcher = StreamClients(config, lambda: brokers).messages()
    if fetcher is None:
        raise FetchError(NO_BROKER)
    try:
        fetcher.assign(offsets)
        count = _write(fetcher, lines, max_messages, idle_timeout_s)
    finally:
        fetcher.close()
    say(f"{count} messages; no group was joined, and nothing was committed")


def _write(
    fetcher: Fetcher, lines: Lines, max_messages: int | None, idle_timeout_s: float | None
) -> int:
    count, last_s = 0, time.monotonic()
    while max_messages is None or count < max_messages:
        left = None if max_messages is None else max_messages - count
        most = _BATCH if left is None else min(_BATCH, left)
        runs = fetcher.fetch(_TURN_S, most)
        while fetcher.faults:
            _raise_or_say(fetcher)
        # A run may be longer than `most`.
        found = list(islice(((run, one) for run in runs for one in range(len(run))), left))
        if found:
            sys.stdout.buffer.write(lines(starmap(Plain, found)))
            sys.stdout.buffer.flush()
            count, last_s = count + len(found), time.monotonic()
        elif idle_timeout_s is not None and time.monotonic() - last_s >= idle_timeout_s:
            break
    return count


def _raise_or_say(fetcher: Fetcher) -> None:
    """Handle the oldest fault. Raises FetchError if no retry solves it."""

    fault = fetcher.faults.popleft()
    where = str(fault.tp or "")
    match fault.kind:
        case FetchFaultKind.END:
            return
        case FetchFaultKind.RETRIED:
            say(f"{where}: {fault.text}" if where else fault.text)
        case _:
            raise fault.error or FetchError(fault.text, where=where)


def _partitions(
    connection: ZooKeeperClient, wanted: Mapping[str, frozenset[int] | None]
) -> list[TopicPartition]:
    from zkconsumer.admin.groups import partitions, unknown_topic_remedy

    there = {TopicPartition(one.topic, one.partition) for one in partitions(connection, wanted)}
    found = []
    for topic, numbers in wanted.items():
        known = sorted(tp.partition for tp in there if tp.topic == topic)
        missing = sorted((numbers or frozenset()).difference(known))
        if not known or missing:
            raise ConfigError(
                f"the topic has no partition {missing[0]}" if known else "the topic does not exist",
                where=f"--topic {topic}",
                remedy="show its partitions: `zkconsumer topics show`"
                if known
                else unknown_topic_remedy(topic, connection),
                advice=None if known else Advice(RemedyOperation.LIST_TOPICS),
            )
        found += [TopicPartition(topic, one) for one in numbers or known]
    return sorted(found)


def _offsets(
    brokers: Brokers, partitions: list[TopicPartition], start: Start, limit_s: float
) -> dict[TopicPartition, int]:
    from zkconsumer.kafka.logs import log_ends, offsets_at

    logs = log_ends(brokers, partitions, limit_s=limit_s)
    for tp, log in logs.items():
        if isinstance(log, str):
            raise FetchError(f"the log's ends are unknown: {log}", where=str(tp))
    known = {tp: log for tp, log in logs.items() if not isinstance(log, str)}
    if start.time_ms is None:
        return {tp: _offset(tp, log, start.offset or 0) for tp, log in known.items()}
    found = {}
    for tp, at in offsets_at(brokers, partitions, start.time_ms, limit_s=limit_s).items():
        if isinstance(at, str):
            raise FetchError(f"the offset of the time is unknown: {at}", where=str(tp))
        found[tp] = known[tp].end if at is None else at
    return found


def _offset(tp: TopicPartition, log: LogRange, wanted: int) -> int:
    """Return the offset to start at. Raises ConfigError for an offset outside the log."""
    if wanted < 0:
        return max(log.start, log.end + wanted)
    if not log.start <= wanted <= log.end:
        raise ConfigError(
            f"the offset {wanted} is not in the log, which has the offsets {log.start} to"
            f" {log.end - 1}"
            if log.start < log.end
            else f"the offset {wanted} is not in the log, which is empty and ends at {log.end}",
            where=str(tp),
            remedy="give an offset of the log, or -N for its last N messages",
        )
    return wanted
