"""Owner nodes that block the group, and partitions that nobody owns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from zkconsumer.admin.findings import ExaminedGroup, Finding, Severity, fix_command, partitions_of
from zkconsumer.admin.verify import NO_OWNER, UNREGISTERED, unowned, unregistered
from zkconsumer.errors import shown
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_assignment import partitions_in
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import consumer_of
from zkconsumer.protocol.payloads import OwnerZnode

PERSISTENT_OWNER, STALE = "persistent-owner", "stale-owner"
OWNER_OF_NOTHING, FOREIGN_OWNER = "owner-of-nothing", "foreign-owner"


def of_owners(case: ExaminedGroup) -> Iterator[Finding]:
    """What is wrong with the owner nodes; of several things with one node the first."""
    # What lies below a name that no topic can have is named by the finding on that name.
    left = {tp: node for tp, node in case.image.owners.items() if paths.is_topic(tp.topic)}
    for topic, held in groupby(list(left), lambda tp: tp.topic):
        there, fault = partitions_in(topic, case.topics)
        known = frozenset(there)
        gone = [tp for tp in held if tp.partition not in known and not fault]
        if gone:
            yield _of_nothing(case, topic, [left.pop(tp) for tp in gone], gone)
    for tp in [tp for tp, node in left.items() if not node.session]:
        yield _persistent(case, tp, left.pop(tp))
    yield from _unregistered(case, left)
    yield from _unowned(case)


def _stop(*sessions: int) -> str:
    held = ", ".join(f"0x{session:x}" for session in sorted(set(sessions)))
    return f"stop the process that holds session {held}: its znodes go with it"


def _persistent(case: ExaminedGroup, tp: TopicPartition, node: OwnerZnode) -> Finding:
    return Finding(
        Severity.ERROR,
        PERSISTENT_OWNER,
        case.group,
        tp.topic,
        f"the owner node of {partitions_of([tp.partition])}, {shown(node.thread)}, is persistent:"
        " no session will ever take it away",
        "no member can claim the partition, and JVM members give up after their retries",
        fix_command(case.group),
        (tp.partition,),
        (case.mend(paths.owner(case.group, tp)),),
    )


def _of_nothing(
    case: ExaminedGroup, topic: str, nodes: list[OwnerZnode], gone: list[TopicPartition]
) -> Finding:
    numbers = tuple(tp.partition for tp in gone)
    exists = topic in case.topics
    sessions = {node.session for node in nodes} - {0}
    dead = [
        paths.owner(case.group, tp)
        for tp, node in zip(gone, nodes, strict=True)
        if not node.session
    ]
    root = paths.owners_of(case.group, topic)
    mends = tuple(map(case.mend, dead)) if exists or sessions else case.mends_of_tree(root)
    return Finding(
        Severity.WARNING,
        OWNER_OF_NOTHING,
        case.group,
        topic,
        f"{partitions_of(numbers)}: an owner node, and the topic "
        + ("has no such partition" if exists else "does not exist"),
        "the topic was deleted or never there; members that hold it read nothing",
        _stop(*sessions) if sessions else fix_command(case.group),
        numbers,
        mends,
    )


def _unregistered(case: ExaminedGroup, left: dict[TopicPartition, OwnerZnode]) -> Iterator[Finding]:
    members = case.image.registrations
    for (topic, thread), numbers in _unknown(case, left).items():
        sessions = {left[TopicPartition(topic, number)].session for number in numbers}
        consumer = consumer_of(thread)
        if thread in members:
            code = FOREIGN_OWNER
            why = (
                "a consumer id without the number of a thread, as kafka-node writes it: it is no"
                " thread of anybody to JVM members and tools, which wait for it to go"
            )
        else:
            code = UNREGISTERED
            why = (
                f"member {consumer} has not registered that thread for this topic"
                if consumer in members
                else "nobody of that name is registered"
            ) + ", so that no member of the group may be reading"
        yield Finding(
            Severity.ERROR,
            code,
            case.group,
            topic,
            f"{partitions_of(numbers)}: the owner is {shown(thread)}, which no member registered",
            why,
            _stop(*sessions),
            numbers,
        )
    mine_of = {one: case.session_of(paths.member(case.group, one)) for one in members}
    held: dict[str, list[TopicPartition]] = {}
    for tp, node in left.items():
        consumer = consumer_of(node.thread)
        if consumer in mine_of and node.session != mine_of[consumer]:
            held.setdefault(consumer, []).append(tp)
    for consumer, old in held.items():
        mine = mine_of[consumer]
        if mine:
            sessions = {left[tp].session for tp in old}
            yield Finding(
                Severity.WARNING,
                STALE,
                case.group,
                consumer,
                f"it owns {', '.join(map(str, old[:5]))}{' ...' if len(old) > 5 else ''} under"
                f" another session than the one it is registered by, 0x{mine:x}",
                "a process of the same consumer.id that died or froze; it blocks the partitions"
                " until its session ends",
                _stop(*sessions),
            )


def _unknown(
    case: ExaminedGroup, left: dict[TopicPartition, OwnerZnode]
) -> dict[tuple[str, str], tuple[int, ...]]:
    """Owners that are no registered thread; also of topics that no member asks for."""
    found = unregistered(case.wanted, left)
    others: dict[tuple[str, str], list[int]] = {}
    for tp, node in left.items():
        consumer = consumer_of(node.thread)
        if tp.topic not in case.wanted.threads and consumer not in case.wanted.faults:
            others.setdefault((tp.topic, node.thread), []).append(tp.partition)
    return found | {key: tuple(numbers) for key, numbers in others.items()}


def _unowned(case: ExaminedGroup) -> Iterator[Finding]:
    for topic, missing in unowned(case.wanted, case.image.owners).items():
        due = dict.fromkeys(
            consumer_of(thread)
            for number in missing
            if (thread := case.due.get(TopicPartition(topic, number)))
        )
        yield Finding(
            Severity.ERROR,
            NO_OWNER,
            case.group,
            topic,
            f"{partitions_of(missing)} without owner" + (f"; due to {_some(due)}" if due else ""),
            "nobody reads them, and their lag grows",
            f"zkconsumer explain {case.group}; then restart the members they are due to",
            missing,
        )


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
