"""Positions of a member and its group: committed offsets, log ends, lag, and offsets by time.

Every call has a time limit, and sends requests to ZooKeeper or the brokers on the caller's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from zkconsumer.consumer.group_member import GroupMember
from zkconsumer.consumer.messages import Batch, Message
from zkconsumer.consumer.stream import MAX_OFFSET, Streams
from zkconsumer.consumer.stream_partitions import CommitScope, Decoded
from zkconsumer.errors import (
    BrokersUnreachableError,
    ConfigError,
    MalformedZnodeError,
    NotOwnedError,
    RefusedError,
)
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.logs import NO_BROKER, LogClient, are_times_exact, committed_in_kafka
from zkconsumer.member.offset_ledger import starting_offset
from zkconsumer.member.operations import read_offsets
from zkconsumer.member.read_group import read_registered_brokers
from zkconsumer.protocol import arguments
from zkconsumer.protocol.model import (
    OffsetAndMetadata,
    Ownership,
    Position,
    Storage,
    TopicPartition,
)

T = TypeVar("T")

ASK_S = 30.0
"""Default time limit, in seconds, of a call that asks ZooKeeper or the brokers.

A restart of a broker takes less time.
"""


class OwnedPartition(NamedTuple):
    """The consumer thread of this member that owns a partition, and the fencing token."""

    thread: str
    token: int


def assignment(owned: Mapping[TopicPartition, Ownership]) -> dict[TopicPartition, OwnedPartition]:
    """Return the owned partitions in order."""
    return {tp: OwnedPartition(one.thread, one.epoch) for tp, one in sorted(owned.items())}


def after(
    messages: Message[Decoded, Decoded] | Iterable[Message[Decoded, Decoded]],
) -> dict[TopicPartition, Position]:
    """Return partition -> position after the last of these messages, with the fencing token.

    Raises NotOwnedError if messages of one partition have different tokens, because this member
    lost the partition between the messages.
    """
    if isinstance(messages, Message):
        return messages.positions
    if isinstance(messages, Batch):
        return messages.positions
    found: dict[TopicPartition, Position] = {}
    right = "a message, a batch, or a list of messages"
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        more = "; for offsets call commit_offsets" if isinstance(messages, Mapping) else ""
        raise arguments.wrong(messages, "a message", where="messages", right=right + more)
    for message in messages:
        if not isinstance(message, Message):
            raise arguments.wrong(message, "a message", where="messages", right=right)
        for tp, at in message.positions.items():
            if (known := found.setdefault(tp, at)).epoch != at.epoch:
                raise NotOwnedError(
                    "the messages were delivered under different fencing tokens",
                    where=str(tp),
                    remedy="commit the messages of each token separately",
                )
            found[tp] = max(known, at)
    return found


def position(streams: Streams, partition: TopicPartition) -> int | None:
    """Return the offset of the next message of a partition; None while it is not known yet."""
    tp = partition
    for stream in streams.values():
        if stream.serves(tp):
            at = stream.positions(CommitScope.DELIVERED).get(tp)
            return None if at is None else at.offset
    raise NotOwnedError(
        "this member is not serving the partition",
        where=str(tp),
        remedy="read `assignment()`; a partition that is being released is no longer served",
    )


def lag(streams: Streams) -> dict[TopicPartition, int | None]:
    """Return each partition's lag in messages; None while its position or log end is unknown."""
    found: dict[TopicPartition, int | None] = {}
    for stream in streams.values():
        ends, positions = stream.ends, stream.positions(CommitScope.DELIVERED)
        for tp in stream.served:
            known = tp in ends and tp in positions
            found[tp] = max(0, ends[tp] - positions[tp].offset) if known else None
    return dict(sorted(found.items()))


def committed(
    member: GroupMember, partitions: Iterable[TopicPartition], *, limit_s: float
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the stored offsets.

    If the group commits to both storages, return the offsets at which a new owner would start.
    """
    asked = [*partitions]
    where, group = member.config.storage, member.config.group_id
    kafka: Mapping[TopicPartition, OffsetAndMetadata | str | None] = {}
    if where is not Storage.ZOOKEEPER:
        kafka = committed_in_kafka(_brokers(member, limit_s), group, asked, limit_s=limit_s)
    stored = member.session.run(read_offsets(group, asked), limit_s=limit_s)
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for tp in asked:
        if stored[tp].error:
            raise MalformedZnodeError(stored[tp].error, where=str(tp), remedy="repair the znode")
        in_kafka = kafka.get(tp)
        if isinstance(in_kafka, str):
            raise _unreachable({tp: in_kafka})
        _, start = starting_offset(where, stored[tp], in_kafka, 0)
        note = in_kafka.metadata if in_kafka is not None and in_kafka.offset == start else ""
        found[tp] = None if start is None else OffsetAndMetadata(start, note)
    return found


def ends(
    member: GroupMember, partitions: Collection[TopicPartition], *, limit_s: float
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the first offset and the end of each log."""
    client = LogClient(_brokers(member, limit_s), limit_s=limit_s)
    return {tp: (log.start, log.end) for tp, log in _known(client.ends(partitions)).items()}


def at_times(
    member: GroupMember, times: Mapping[TopicPartition, object], *, limit_s: float
) -> dict[TopicPartition, int | None]:
    """Return the offset of the first message at or after each time; None if there is none."""
    brokers = _brokers(member, limit_s)
    if not are_times_exact(brokers):
        raise RefusedError(
            "brokers before 0.10 know only the times of log segments, not of messages",
            where=", ".join(map(str, times)),
            remedy="seek to an offset, or to the beginning",
        )
    client = LogClient(brokers, limit_s=limit_s)
    found: dict[TopicPartition, int | None] = {}
    for time_ms in times.values():
        if type(time_ms) is not int or not 0 <= time_ms <= MAX_OFFSET:
            raise ConfigError(
                f"{time_ms!r} is not a time", remedy="give milliseconds since 1970, as an integer"
            )
        wanted = [tp for tp, one in times.items() if one == time_ms and tp not in found]
        found |= _known(client.at(wanted, time_ms)) if wanted else {}
    return {tp: found[tp] for tp in times}


def _brokers(member: GroupMember, limit_s: float) -> Brokers:
    found = member.session.run(read_registered_brokers(), limit_s=limit_s)
    if not found:
        raise BrokersUnreachableError(NO_BROKER, remedy="start a broker, or try again")
    return Brokers(found, member.config, member.has_offsets_topic())


def _known(answers: Mapping[TopicPartition, T | str]) -> dict[TopicPartition, T]:
    """Return the answers; raise BrokersUnreachableError with the reason for a missing one."""
    faults = {tp: one for tp, one in answers.items() if isinstance(one, str)}
    if faults:
        raise _unreachable(faults)
    return {tp: one for tp, one in answers.items() if not isinstance(one, str)}


def _unreachable(faults: Mapping[TopicPartition, str]) -> BrokersUnreachableError:
    (first, why), *others = faults.items()
    more = f", and {len(others)} more partitions" if others else ""
    return BrokersUnreachableError(
        f"the offsets of {first}{more} are unknown: {why}",
        where=str(first),
        remedy="try again, and check that the partition exists and has a leader",
    )
