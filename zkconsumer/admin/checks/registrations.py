"""Nodes as other clients write them: no JVM member ever looks at these, or sees what they mean.

Registrations that stall a group, members that do not agree, and settings that cannot work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from zkconsumer.admin.findings import ExaminedGroup, Finding, Severity, fix_command
from zkconsumer.admin.verify import MALFORMED, MALFORMED_TOPIC
from zkconsumer.errors import MalformedZnodeError, shown
from zkconsumer.protocol import paths
from zkconsumer.protocol.paths import Kind

FOREIGN_OWNERS, FOREIGN_OFFSETS, FOREIGN_TOPIC = (
    "foreign-owner-nodes",
    "foreign-offset-nodes",
    "foreign-topic-name",
)
_PYKAFKA = re.compile(r"[0-9]+-[0-9]+")


def foreign_nodes(case: ExaminedGroup) -> list[str]:
    """Znodes of the group that are none of the JVM's layout: to be read with all below them."""
    found = []
    for parent, at in case.image.topic_rooms.items():
        odd = not paths.is_topic(at.name)
        names = case.image.listed[parent]
        found += [f"{parent}/{name}" for name in names if odd or not paths.is_partition(name)]
    return found


def of_layouts(case: ExaminedGroup) -> Iterator[Finding]:
    """Topics and partitions that are named as no JVM client names them."""
    for parent, at in case.image.topic_rooms.items():
        if not paths.is_topic(at.name):
            yield _topic(case, parent, at.name)
            continue
        names = case.image.listed[parent]
        odd = [f"{parent}/{name}" for name in names if not paths.is_partition(name)]
        if odd:
            yield _nodes(case, at.name, odd, at.kind)


def _topic(case: ExaminedGroup, parent: str, name: str) -> Finding:
    why = "no topic can have that name"
    if name.startswith(("b'", 'b"')):
        why += ": a Python 3 client wrote the text of its bytes, as pykafka does (its issue 888)"
    mends = case.mends_of_tree(parent)
    return Finding(
        Severity.WARNING,
        FOREIGN_TOPIC,
        case.group,
        shown(name),
        f"{parent} is no topic's",
        why + "; to JVM members it means nothing, and both may be reading the same partitions",
        fix_command(case.group) if mends else _stop_of(case, [parent]),
        mends=mends,
    )


def _nodes(case: ExaminedGroup, topic: str, odd: list[str], kind: Kind) -> Finding:
    names = [path.rpartition("/")[2] for path in odd]
    listed = ", ".join(map(shown, names[:3])) + (" ..." if len(names) > 3 else "")
    mends = tuple(mend for path in odd for mend in case.mends_of_tree(path))
    remedy = fix_command(case.group) if mends else _stop_of(case, odd)
    if kind is Kind.OFFSETS_OF:
        return Finding(
            Severity.WARNING,
            FOREIGN_OFFSETS,
            case.group,
            topic,
            f"offset nodes that are no partitions': {listed}",
            "no JVM member reads them: what they say is not where the group goes on",
            remedy,
            mends=mends,
        )
    pykafka = any(map(_PYKAFKA.fullmatch, names))
    layout = "pykafka's layout, leader-partition" if pykafka else "an unknown layout"
    return Finding(
        Severity.ERROR,
        FOREIGN_OWNERS,
        case.group,
        topic,
        f"owner nodes that are no partitions': {listed} ({layout})",
        "JVM members do not see them and own the same partitions as well: everything is read twice",
        remedy,
        mends=mends,
    )


def _stop_of(case: ExaminedGroup, roots: list[str]) -> str:
    sessions = {
        session for root in roots for path in case.below(root) if (session := case.session_of(path))
    }
    held = ", ".join(f"0x{session:x}" for session in sorted(sessions)) or "of another client"
    return (
        f"stop the process that holds session {held}, or give it a group.id of its own;"
        " then doctor again"
    )


# ---- members -------------------------------------------------------------------------------------


PERSISTENT_MEMBER, DISAGREEMENT = "persistent-registration", "disagreement"
NO_BROKERS, SHORT_RETRIES = "no-brokers", "short-retries"


def of_members(case: ExaminedGroup) -> Iterator[Finding]:
    """What is wrong with registrations, those first that fail every member."""
    for consumer, error in case.wanted.faults.items():
        thrown = error.thrown if isinstance(error, MalformedZnodeError) else ""
        yield _finding(
            case,
            MALFORMED,
            consumer,
            f"its registration cannot be read: {error.what}",
            "every rebalance of every JVM member of the group fails on it"
            f"{f' with {thrown}' if thrown else ''}, so that nobody takes a partition over",
        )
    for consumer in case.image.registrations:
        path = paths.member(case.group, consumer)
        if not case.session_of(path) and consumer not in case.wanted.faults:
            yield _finding(
                case,
                PERSISTENT_MEMBER,
                consumer,
                "its registration is persistent: no session will ever take it away",
                "partitions are given to it that nobody reads",
            )
    for topic, fault in case.wanted.topic_faults.items():
        yield Finding(
            Severity.ERROR,
            MALFORMED_TOPIC,
            case.group,
            topic,
            f"its partitions cannot be read: {fault}",
            "members that ask for it fail in every rebalance",
            f"compare {paths.topic(topic)} with another topic's znode, and mend it",
        )


def _finding(case: ExaminedGroup, code: str, consumer: str, what: str, why: str) -> Finding:
    path = paths.member(case.group, consumer)
    session = case.session_of(path)
    if session:
        remedy = f"stop the process that holds session 0x{session:x}: {path} goes with it"
        return Finding(Severity.ERROR, code, case.group, consumer, what, why, remedy)
    return Finding(
        Severity.ERROR,
        code,
        case.group,
        consumer,
        what,
        why,
        fix_command(case.group),
        mends=(case.mend(path),),
    )


def of_agreement(case: ExaminedGroup) -> Iterator[Finding]:
    """Members that compute another assignment than the rest."""
    for consumer, why in case.quarrels.items():
        yield Finding(
            Severity.ERROR,
            DISAGREEMENT,
            case.group,
            consumer,
            f"it goes by other rules than the rest of the group: {why}",
            "two members want the same partition, one of them fails, and others stay unread",
            "give all members one partition.assignment.strategy, one exclude.internal.topics, and"
            " Kafka releases on one side of 1.0 (docs/releases.md)",
        )


def of_settings(case: ExaminedGroup) -> Iterator[Finding]:
    """Brokers that are missing, and retries that end before a dead member's session does."""
    if case.image.registrations and not case.has_brokers:
        yield Finding(
            Severity.ERROR,
            NO_BROKERS,
            case.group,
            case.group,
            "no broker is registered",
            "members find nothing to read, and do not rebalance",
            f"start the brokers, or check the chroot: they register below {paths.BROKER_IDS}",
        )
    said = case.settings
    if said is None:
        return
    tried_s = said.rebalance_max_retries * said.rebalance_backoff_s
    if tried_s < said.zookeeper_session_timeout_s:
        needed_ms = 1000 * said.zookeeper_session_timeout_s / said.rebalance_max_retries
        yield Finding(
            Severity.WARNING,
            SHORT_RETRIES,
            case.group,
            "rebalance.backoff.ms",
            f"rebalance.max.retries x rebalance.backoff.ms is {said.rebalance_max_retries} x"
            f" {said.rebalance_backoff_s:g} s = {tried_s:g} s, less than"
            f" zookeeper.session.timeout.ms, {said.zookeeper_session_timeout_s:g} s",
            "when a member dies, JVM members give up before ZooKeeper frees what it owned, and"
            " stay in the group idle",
            f"rebalance.backoff.ms={needed_ms + 500:.0f}, or more retries, at all members",
        )
