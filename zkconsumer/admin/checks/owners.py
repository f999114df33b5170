"""Owner znodes that block the group, and partitions without an owner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from zkconsumer.admin.findings import ExaminedGroup, Finding, Severity, partitions_of
from zkconsumer.admin.verify import NO_OWNER, PERSISTENT_OWNER, UNREGISTERED, unowned, unregistered
from zkconsumer.errors import Advice, RemedyOperation, first_few, quoted
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_assignment import partitions_in
from zkconsumer.protocol.group_health import unclaimed
from zkconsumer.protocol.model import TopicPartition, session_text
from zkconsumer.protocol.paths import consumer_of
from zkconsumer.protocol.payloads import OwnerZnode

STALE, OWNER_OF_NOTHING = "stale-owner", "owner-of-nothing"


def of_owners(examined: ExaminedGroup) -> Iterator[Finding]:
    """Yield what is wrong with the owner znodes, with at most one finding for each znode."""
    # Another check reports parents whose names are not topic names, and all znodes below such
    # parents.
    left = {tp: node for tp, node in examined.image.owners.items() if paths.is_topic(tp.topic)}
    for topic, held in groupby(list(left), lambda tp: tp.topic):
        there, fault = partitions_in(topic, examined.topics)
        known = frozenset(there)
        gone = [tp for tp in held if tp.partition not in known and not fault]
        if gone:
            yield _without_partition(examined, topic, [left.pop(tp) for tp in gone], gone)
    for tp in [tp for tp, node in left.items() if not node.session]:
        yield _persistent(examined, tp, left.pop(tp))
    yield from _unregistered(examined, left)
    yield from _unowned(examined)


def _stop(*sessions: int) -> str:
    ids = ", ".join(session_text(session) for session in sorted(set(sessions)))
    return f"stop the process that holds session {ids}: this deletes its znodes"


def _persistent(examined: ExaminedGroup, tp: TopicPartition, node: OwnerZnode) -> Finding:
    return Finding(
        Severity.ERROR,
        PERSISTENT_OWNER,
        examined.group,
        tp.topic,
        f"the owner znode of {partitions_of([tp.partition])}, {quoted(node.thread)}, is persistent:"
        " no session expiry deletes it",
        "no member can claim the partition, and JVM members give up after their retries",
        "delete it",
        (tp.partition,),
        (examined.fix(paths.owner(examined.group, tp)),),
        examined.fix_advice,
    )


def _without_partition(
    examined: ExaminedGroup, topic: str, nodes: list[OwnerZnode], gone: list[TopicPartition]
) -> Finding:
    numbers = tuple(tp.partition for tp in gone)
    exists = topic in examined.topics
    sessions = {node.session for node in nodes} - {0}
    dead = [
        paths.owner(examined.group, tp)
        for tp, node in zip(gone, nodes, strict=True)
        if not node.session
    ]
    root = paths.owners_of(examined.group, topic)
    fixes = tuple(map(examined.fix, dead)) if exists or sessions else examined.fixes_of_tree(root)
    return Finding(
        Severity.WARNING,
        OWNER_OF_NOTHING,
        examined.group,
        topic,
        f"{partitions_of(numbers)}: there is an owner znode, but the topic "
        + ("has no such partition" if exists else "does not exist"),
        "the topic was deleted or never existed; the owner consumes nothing",
        _stop(*sessions) if sessions else "delete it",
        numbers,
        fixes,
        None if sessions else examined.fix_advice,
        sessions=tuple(sorted(sessions)),
    )


def _unregistered(
    examined: ExaminedGroup, left: dict[TopicPartition, OwnerZnode]
) -> Iterator[Finding]:
    members = examined.image.registrations
    for (topic, thread), numbers in _unknown(examined, left).items():
        sessions = {left[TopicPartition(topic, number)].session for number in numbers}
        consumer = consumer_of(thread)
        why = (
            f"member {consumer} has not registered that thread for this topic"
            if consumer in members
            else "no member of that name is registered"
        ) + ", so perhaps no member consumes the partition"
        yield Finding(
            Severity.ERROR,
            UNREGISTERED,
            examined.group,
            topic,
            f"{partitions_of(numbers)}: the owner is {quoted(thread)}, which no member registered",
            why,
            _stop(*sessions),
            numbers,
            sessions=tuple(sorted(sessions)),
        )
    registered_in = {one: examined.session_of(paths.member(examined.group, one)) for one in members}
    held: dict[str, list[TopicPartition]] = {}
    for tp, node in left.items():
        consumer = consumer_of(examined.owners[tp])
        if consumer in registered_in and node.session != registered_in[consumer]:
            held.setdefault(consumer, []).append(tp)
    for consumer, old in held.items():
        present = registered_in[consumer]
        if present:
            sessions = {left[tp].session for tp in old}
            yield Finding(
                Severity.WARNING,
                STALE,
                examined.group,
                consumer,
                f"it is registered in session {session_text(present)}, but owns"
                f" {first_few(old, 5)}"
                " in another session",
                "a process with the same consumer.id died or froze; it blocks the partitions"
                " until its session expires",
                _stop(*sessions),
                sessions=tuple(sorted(sessions)),
            )


def _unknown(
    examined: ExaminedGroup, left: dict[TopicPartition, OwnerZnode]
) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return (topic, owner) -> partitions whose owner is not a registered thread.

    Unlike `unregistered` this includes topics to which no member subscribes.
    """
    threads = {tp: examined.owners[tp] for tp in left}
    found = unregistered(examined.wanted, threads)
    others: dict[tuple[str, str], list[int]] = {}
    for tp, thread in threads.items():
        consumer = consumer_of(thread)
        if tp.topic not in examined.wanted.threads and consumer not in examined.wanted.faults:
            others.setdefault((tp.topic, thread), []).append(tp.partition)
    return found | {key: tuple(numbers) for key, numbers in others.items()}


def _unowned(examined: ExaminedGroup) -> Iterator[Finding]:
    free = unclaimed(examined.due, examined.image.owners)
    for topic, missing in unowned(examined.wanted, examined.image.owners).items():
        due = dict.fromkeys(
            consumer_of(thread)
            for number in missing
            if (thread := free.get(TopicPartition(topic, number)))
        )
        yield Finding(
            Severity.ERROR,
            NO_OWNER,
            examined.group,
            topic,
            f"{partitions_of(missing)} without an owner"
            + (f"; assigned to {first_few(due, 3)}" if due else ""),
            "their messages are not consumed, and their lag grows" + _idle(examined, due),
            "restart the members to which the partitions are assigned; see how they are assigned",
            missing,
            advice=Advice(RemedyOperation.EXPLAIN, examined.group),
        )


def _idle(examined: ExaminedGroup, due: Iterable[str]) -> str:
    """Return why members to which partitions are assigned own nothing, as far as it is known."""
    idle = [name for name in due if name not in examined.owning]
    if not idle:
        return ""
    who = first_few(idle, 3)
    text = f"; {who} owns nothing: it has just joined, or has given up after its retries"
    if other := next(
        (examined.disagreements[one] for one in idle if one in examined.disagreements), ""
    ):
        text += f", or follows other rules ({other})"
    return text
