"""What ConsumerGroupCommand shows of one group: a table in each release's own form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zkconsumer.admin.legacy import NO_LEADER, JavaError, ZkUtils
from zkconsumer.admin.legacy_offsets import committed
from zkconsumer.cli.legacy.releases import Release
from zkconsumer.cli.legacy.tool import Tool
from zkconsumer.core import paths
from zkconsumer.core.model import TopicPartition
from zkconsumer.kafka.logs import LogRange, log_ends

HEAD_0_9 = "GROUP, TOPIC, PARTITION, CURRENT OFFSET, LOG END OFFSET, LAG, OWNER"
HEAD = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID")
ROW = "{:<30} {:<10} {:<15} {:<15} {:<10} {:<50}"

# Columns at least, for a topic and a consumer (1.1).
_NARROWEST = 15


@dataclass(frozen=True, slots=True)
class _Ends:
    """What is known of logs; `ignored` are the partitions that are not shown."""

    logs: Mapping[TopicPartition, LogRange | str]
    ignored: frozenset[TopicPartition]

    def of(self, tp: TopicPartition) -> int | None:
        """None: the partition has no leader. Raises JavaError where the leader does not answer."""
        log = self.logs.get(tp)
        if isinstance(log, str):
            raise JavaError("java.io.IOException", log)
        return None if log is None else log.end


def describe(tool: Tool, zk: ZkUtils, group: str) -> None:
    """Raises JavaError."""
    if tool.release.since(Release.R0_10):
        _describe(tool, zk, group)
    else:
        _describe_0_9(tool, zk, group)


def _describe_0_9(tool: Tool, zk: ZkUtils, group: str) -> None:
    topics = zk.owned_topics(group)
    if not topics:
        tool.out("No topic available for consumer group provided")
    tool.out(HEAD_0_9)
    numbers = zk.partitions(topics)
    for topic in topics:
        partitions = [TopicPartition(topic, number) for number in numbers[topic]]
        owners = zk.owners(group, partitions)
        offsets = _offsets(tool, zk, group, partitions)
        ends = _ends(tool, zk, partitions)
        for tp in partitions:
            if tp in ends.ignored:
                continue
            offset, end = offsets.get(tp), ends.of(tp)
            lag = _lag(offset, end)
            figures = ["unknown" if one is None else str(one) for one in (offset, end, lag)]
            row = (group, topic, str(tp.partition), *figures, owners.get(tp, "none"))
            tool.out(", ".join(row))


def _describe(tool: Tool, zk: ZkUtils, group: str) -> None:
    if group not in zk.groups():
        tool.out(f"Error: The consumer group '{group}' does not exist.")
        return
    topics = zk.owned_topics(group)
    numbers = zk.partitions(topics)
    partitions = [TopicPartition(topic, one) for topic in topics for one in numbers[topic]]
    members = zk.children(paths.ids(group))
    owners = {tp: _consumer(one) for tp, one in zk.owners(group, partitions).items()}
    subscribed = zk.subscriptions(group, internal=tool.profile.internal_topics)
    offsets = _offsets(tool, zk, group, partitions)
    ends = _ends(tool, zk, partitions)
    rows: list[Sequence[object] | None] = []
    for tp in partitions:
        offset, end = offsets.get(tp), ends.of(tp) if tp not in ends.ignored else None
        figures = (offset, end, _lag(offset, end))
        row = (*tp, *figures, owners.get(tp))
        rows.append(None if tp in ends.ignored else row)
    idle = [one for one in members if one not in owners.values()]
    # A row for each topic that such a member asks for, and it does not say which.
    rows += [(*[None] * 5, one) for one in idle for _ in subscribed.get(one, ())]
    _show(tool, rows)


def _show(tool: Tool, rows: Iterable[Sequence[object] | None]) -> None:
    cells = [None if row is None else ["-" if one is None else str(one) for one in row]
             for row in rows]
    if tool.release.since(Release.R1):
        # The JVM trips over what is not shown, here before it has shown anything.
        shown = [_cells(row) for row in cells]
        wide = max(_NARROWEST, *(len(row[0]) for row in shown), 0)
        wider = max(_NARROWEST, *(len(row[5]) for row in shown), 0)
        form = f"{{:<{wide}}} {{:<10}} {{:<15}} {{:<15}} {{:<15}} {{:<{wider}}} "
    else:
        form = ROW
    tool.out("\n" + form.format(*HEAD))
    for row in cells:
        tool.out(form.format(*_cells(row)))


def _cells(row: list[str] | None) -> list[str]:
    if row is None:
        raise JavaError("java.lang.NullPointerException", None)
    return row


def _consumer(owner: str) -> str:
    end = owner.rfind("-")
    if end < 0:
        text = f"begin 0, end -1, length {len(owner)}"
        raise JavaError("java.lang.StringIndexOutOfBoundsException", text)
    return owner[:end]


def _lag(offset: int | None, end: int | None) -> int | None:
    return None if offset in (None, -1) or end is None else end - (offset or 0)


def _offsets(
    tool: Tool, zk: ZkUtils, group: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    found = committed(zk, group, partitions, limit_s=tool.broker_limit_s)
    modern = tool.release.since(Release.R0_10)
    quote, error = ("'", "Error: ") if modern else ("", "")
    for tp in partitions:
        form = "{}-{}" if tool.release.since(Release.R1) else "[{},{}]"
        whose = f"for group {quote}{group}{quote} partition {quote}{form.format(*tp)}{quote}"
        if tp in found.unknown:
            reason = found.unknown[tp]
            tool.out(f"{error}Could not fetch offset from kafka {whose} due to {reason}.")
        elif tp in found.missing:
            tool.out(
                f"{error}Could not fetch offset from zookeeper {whose} "
                "due to missing offset data in zookeeper."
            )
    return found.offsets


def _ends(tool: Tool, zk: ZkUtils, partitions: Sequence[TopicPartition]) -> _Ends:
    leaders, brokers = zk.leaders(partitions), zk.brokers()
    modern = tool.release.since(Release.R0_10)
    ignored = set()
    for tp in partitions:
        leader = leaders.get(tp)
        name = f"{tp.topic}-{tp.partition}"
        if leader is None:
            ignored.add(tp)
            tool.out(
                f"Error: No broker for partition '{name}'" if modern
                else f"No broker for partition {name}"
            )
        elif leader != NO_LEADER and leader not in brokers:
            ignored.add(tp)
            tool.out(
                f"{'Error: ' if modern else ''}Could not parse broker info due to "
                f"Broker id {leader} does not exist"
            )
    led = [tp for tp in partitions if leaders.get(tp) in brokers]
    limit_s = tool.broker_limit_s
    logs = log_ends(list(brokers.values()), led, limit_s=limit_s) if led else {}
    return _Ends(logs, frozenset(ignored))
