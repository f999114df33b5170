"""Registrations that stall a group, members that disagree, settings that cannot work.

This module also finds znodes of other clients' layouts, which JVM members ignore or misunderstand.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from zkconsumer.admin.findings import ExaminedGroup, Finding, Severity, partitions_of
from zkconsumer.admin.health import last_write, written
from zkconsumer.admin.verify import MALFORMED, NO_MEMBERS, PERSISTENT_MEMBER, unreadable_topics
from zkconsumer.errors import MalformedZnodeError, first_few, quoted
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition, session_text
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.release_detection import ambiguity, is_escaped_twice

FOREIGN_OWNERS, FOREIGN_OFFSETS, FOREIGN_TOPIC = (
    "foreign-owner-nodes",
    "foreign-offset-nodes",
    "foreign-topic-name",
)
_PYKAFKA = re.compile(r"[0-9]+-[0-9]+")


def foreign_nodes(examined: ExaminedGroup) -> list[str]:
    """Return the znodes of the group that the JVM's layout does not have."""
    found = []
    for parent, at in examined.image.topic_parents.items():
        odd = not paths.is_topic(at.name)
        names = examined.image.listed[parent]
        found += [f"{parent}/{name}" for name in names if odd or not paths.is_partition(name)]
    return found


def of_layouts(examined: ExaminedGroup) -> Iterator[Finding]:
    """Yield topics and partitions whose names no JVM client writes."""
    for parent, at in examined.image.topic_parents.items():
        if not paths.is_topic(at.name):
            yield _topic(examined, parent, at.name)
            continue
        names = examined.image.listed[parent]
        odd = [f"{parent}/{name}" for name in names if not paths.is_partition(name)]
        if odd:
            yield _nodes(examined, at.name, odd, at.kind)


def _topic(examined: ExaminedGroup, parent: str, name: str) -> Finding:
    why, sessions = "no topic can have that name", _sessions_below(examined, [parent])
    if name.startswith(("b'", 'b"')):
        why += ": a Python 3 client wrote the repr of its bytes, as pykafka does (pykafka #888)"
    fixes = examined.fixes_of_tree(parent)
    return Finding(
        Severity.WARNING,
        FOREIGN_TOPIC,
        examined.group,
        quoted(name),
        f"{parent} does not have the name of a topic",
        why + "; JVM members ignore the znode, so both clients may consume the same partitions",
        "delete it" if fixes else _stop_of(sessions),
        fixes=fixes,
        advice=examined.fix_advice if fixes else None,
        sessions=() if fixes else sessions,
    )


def _nodes(examined: ExaminedGroup, topic: str, odd: list[str], kind: ZnodeKind) -> Finding:
    names = [path.rpartition("/")[2] for path in odd]
    listed = first_few(map(quoted, names), 3)
    fixes = tuple(fix for path in odd for fix in examined.fixes_of_tree(path))
    sessions = () if fixes else _sessions_below(examined, odd)
    remedy = "delete them" if fixes else _stop_of(sessions)
    advice = examined.fix_advice if fixes else None
    if kind is ZnodeKind.OFFSETS_OF:
        return Finding(
            Severity.WARNING,
            FOREIGN_OFFSETS,
            examined.group,
            topic,
            f"offset znodes whose names are not partitions: {listed}",
            "JVM members ignore them, so the group does not resume at these offsets",
            remedy,
            fixes=fixes,
            advice=advice,
            sessions=sessions,
        )
    pykafka = any(map(_PYKAFKA.fullmatch, names))
    layout = "pykafka's layout, leader-partition" if pykafka else "an unknown layout"
    return Finding(
        Severity.ERROR,
        FOREIGN_OWNERS,
        examined.group,
        topic,
        f"owner znodes whose names are not partitions: {listed} ({layout})",
        "JVM members ignore them and own the same partitions, so each message is consumed twice",
        remedy,
        fixes=fixes,
        advice=advice,
        sessions=sessions,
    )


def _sessions_below(examined: ExaminedGroup, roots: list[str]) -> tuple[int, ...]:
    sessions = {examined.session_of(path) for root in roots for path in examined.below(root)}
    return tuple(sorted(sessions - {0}))


def _stop_of(sessions: Iterable[int]) -> str:
    held = ", ".join(map(session_text, sessions)) or "of another client"
    return (
        f"stop the process that holds session {held}, or give it another group.id;"
        " then examine the group again"
    )


# ---- members -------------------------------------------------------------------------------------


UNREGISTERED_WRITER = "unregistered-writer"
OF_USERS = frozenset({UNREGISTERED_WRITER, NO_MEMBERS})
"""The codes of `of_users`, which one reading or two readings give."""

DISAGREEMENT, NO_BROKERS, SHORT_RETRIES = "disagreement", "no-brokers", "short-retries"


def of_users(examined: ExaminedGroup) -> Iterator[Finding]:
    """Yield clients that commit without a registration, and lag that no member reads."""
    health = examined.health
    by_topic: dict[str, dict[int, int]] = {}
    for tp, count in health.writers.items():
        by_topic.setdefault(tp.topic, {})[tp.partition] = count
    for topic, counts in by_topic.items():
        count = sum(counts.values())
        yield Finding(
            Severity.WARNING,
            UNREGISTERED_WRITER,
            examined.group,
            topic,
            f"a client without a registration commits offsets of {partitions_of(counts)}"
            f" ({count} write{'' if count == 1 else 's'} between two readings)",
            "a direct Spark job, Flink, or kafka-python up to 0.9.5 does this; it overwrites"
            " offsets that a tool sets, and members that join read the same messages",
            "stop that client before you change the group's offsets or start members",
            tuple(counts),
            written=tuple(
                node.stat.mzxid
                for number in counts
                if (path := paths.offset(examined.group, TopicPartition(topic, number)))
                and (node := examined.image.nodes.get(path))
            ),
        )
    if health.foreign_writers:
        yield Finding(
            Severity.WARNING,
            UNREGISTERED_WRITER,
            examined.group,
            examined.group,
            written(replace(health, writers={})),
            "these znodes probably are that client's offsets: commands for offsets do not change"
            " them, and `groups delete` deletes them",
            "stop that client before you delete or rename the group",
            written=tuple(
                node.stat.mzxid
                for path in health.foreign_writers
                if (node := examined.image.nodes.get(path))
            ),
        )
    waiting = _lag(examined)
    if not health.live and not health.is_written and waiting:
        yield Finding(
            Severity.WARNING,
            NO_MEMBERS,
            examined.group,
            examined.group,
            f"no member is registered, and {waiting} message{'' if waiting == 1 else 's'} wait"
            f"{'s' if waiting == 1 else ''}{last_write(health, time.time())}",
            "no member of the group consumes them",
            "start its members, or delete the group if it is not needed",
        )


def _lag(examined: ExaminedGroup) -> int:
    """Return the messages from the offsets in ZooKeeper to the ends of the logs that are known."""
    return sum(
        max(0, log.end - node.value)
        for tp, node in examined.image.offsets.items()
        if tp not in examined.read
        and (log := examined.logs.get(tp)) is not None
        and not isinstance(log, str)
        and node.value is not None
        and node.value >= 0
    )


def of_members(examined: ExaminedGroup) -> Iterator[Finding]:
    """Yield what is wrong with registrations; faults that make every rebalance fail come first."""
    for consumer, error in examined.wanted.faults.items():
        thrown = error.thrown if isinstance(error, MalformedZnodeError) else ""
        yield _finding(
            examined,
            MALFORMED,
            consumer,
            f"its registration cannot be read: {error.what}",
            "every rebalance of every JVM member of the group fails"
            f"{f' with {thrown}' if thrown else ''}, so no partition changes its owner",
        )
    for consumer in examined.image.registrations:
        path = paths.member(examined.group, consumer)
        if not examined.session_of(path) and consumer not in examined.wanted.faults:
            yield _finding(
                examined,
                PERSISTENT_MEMBER,
                consumer,
                "its registration is persistent: no session expiry deletes it",
                "partitions are assigned to it, and their messages are not consumed",
            )
    yield from unreadable_topics(examined.group, examined.wanted, examined.topics)


def _finding(examined: ExaminedGroup, code: str, consumer: str, what: str, why: str) -> Finding:
    path = paths.member(examined.group, consumer)
    session = examined.session_of(path)
    if session:
        remedy = f"stop the process that holds session {session_text(session)}: this deletes {path}"
        return Finding(
            Severity.ERROR,
            code,
            examined.group,
            consumer,
            what,
            why,
            remedy,
            sessions=(session,),
        )
    return Finding(
        Severity.ERROR,
        code,
        examined.group,
        consumer,
        what,
        why,
        "delete it",
        fixes=(examined.fix(path),),
        advice=examined.fix_advice,
    )


def of_agreement(examined: ExaminedGroup) -> Iterator[Finding]:
    """Yield a finding for each member whose assignment differs from that of the other members.

    A member that owns no partition has perhaps just joined, or has given up, so it is not reported
    here: `no-owner` names it, if partitions are assigned to it.
    """
    for consumer, payload in examined.image.registrations.items():
        if why := ambiguity(payload):
            yield _misread(examined, consumer, why, is_escaped_twice(payload))
    for consumer, why in examined.disagreements.items():
        if consumer not in examined.owning or ambiguity(examined.image.registrations[consumer]):
            continue
        yield Finding(
            Severity.ERROR,
            DISAGREEMENT,
            examined.group,
            consumer,
            f"it assigns by other rules than the other members: {why}",
            "two members claim the same partition, one of them fails, and other partitions have no"
            " owner",
            "give all members the same partition.assignment.strategy, the same"
            " exclude.internal.topics, and Kafka releases that are"
            " all before 1.0 or all from 1.0 on (see `zkconsumer docs releases`)",
        )


def _misread(examined: ExaminedGroup, consumer: str, why: str, is_escaped_twice: bool) -> Finding:
    remedy = "write the topic filter of that member so that all releases read it alike"
    if is_escaped_twice:
        remedy = r"use [.] instead of \. in the topic filter of that member, and no other backslash"
    return Finding(
        Severity.ERROR,
        DISAGREEMENT,
        examined.group,
        consumer,
        why,
        "members compute different assignments, or this member gets no partition",
        remedy,
    )


def of_settings(examined: ExaminedGroup) -> Iterator[Finding]:
    """Yield missing brokers, and retries that end before a dead member's session expires."""
    if examined.image.registrations and not examined.has_brokers:
        yield Finding(
            Severity.ERROR,
            NO_BROKERS,
            examined.group,
            examined.group,
            "no broker is registered",
            "members have nothing to consume, and do not rebalance",
            f"start the brokers, or check the chroot: brokers register below {paths.BROKER_IDS}",
        )
    given = examined.settings
    if given is None:
        return
    tried_s = given.rebalance_max_retries * given.rebalance_backoff_s
    if tried_s < given.zookeeper_session_timeout_s:
        needed_ms = 1000 * given.zookeeper_session_timeout_s / given.rebalance_max_retries
        yield Finding(
            Severity.WARNING,
            SHORT_RETRIES,
            examined.group,
            "rebalance.backoff.ms",
            f"rebalance.max.retries x rebalance.backoff.ms is {given.rebalance_max_retries} x"
            f" {given.rebalance_backoff_s:g} s = {tried_s:g} s, less than"
            f" zookeeper.session.timeout.ms, {given.zookeeper_session_timeout_s:g} s",
            "when a member dies, JVM members give up before ZooKeeper deletes its owner znodes, and"
            " then stay in the group without a partition",
            f"set rebalance.backoff.ms={needed_ms + 500:.0f}, or more retries, in all members",
        )
