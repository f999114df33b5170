"""Registrations that stall a group, members that do not agree, and settings that cannot work."""

from __future__ import annotations

from collections.abc import Iterator

from zkconsumer.admin.case import Case
from zkconsumer.admin.findings import Finding, Severity, fix_command
from zkconsumer.admin.verify import MALFORMED, MALFORMED_TOPIC
from zkconsumer.core import paths
from zkconsumer.errors import MalformedZnodeError

PERSISTENT_MEMBER, DISAGREEMENT = "persistent-registration", "disagreement"
NO_BROKERS, SHORT_RETRIES = "no-brokers", "short-retries"


def of_members(case: Case) -> Iterator[Finding]:
    """What is wrong with registrations, those first that fail every member."""
    for consumer, error in case.wanted.faults.items():
        thrown = error.thrown if isinstance(error, MalformedZnodeError) else ""
        yield _finding(
            case, MALFORMED, consumer, f"its registration cannot be read: {error.what}",
            "every rebalance of every JVM member of the group fails on it"
            f"{f' with {thrown}' if thrown else ''}, so that nobody takes a partition over",
        )
    for consumer in case.image.registrations:
        path = paths.member(case.group, consumer)
        if not case.session_of(path) and consumer not in case.wanted.faults:
            yield _finding(
                case, PERSISTENT_MEMBER, consumer,
                "its registration is persistent: no session will ever take it away",
                "partitions are given to it that nobody reads",
            )
    for topic, fault in case.wanted.topic_faults.items():
        yield Finding(
            Severity.ERROR, MALFORMED_TOPIC, case.group, topic,
            f"its partitions cannot be read: {fault}",
            "members that ask for it fail in every rebalance",
            f"compare {paths.topic(topic)} with another topic's znode, and mend it",
        )


def _finding(case: Case, code: str, consumer: str, what: str, why: str) -> Finding:
    path = paths.member(case.group, consumer)
    session = case.session_of(path)
    if session:
        remedy = f"stop the process that holds session 0x{session:x}: {path} goes with it"
        return Finding(Severity.ERROR, code, case.group, consumer, what, why, remedy)
    return Finding(
        Severity.ERROR, code, case.group, consumer, what, why, fix_command(case.group),
        mends=(case.mend(path),),
    )


def of_agreement(case: Case) -> Iterator[Finding]:
    """Members that compute another assignment than the rest."""
    for consumer, why in case.quarrels.items():
        yield Finding(
            Severity.ERROR, DISAGREEMENT, case.group, consumer,
            f"it goes by other rules than the rest of the group: {why}",
            "two members want the same partition, one of them fails, and others stay unread",
            "give all members one partition.assignment.strategy, one exclude.internal.topics, and"
            " Kafka releases on one side of 1.0 (docs/releases.md)",
        )


def of_settings(case: Case) -> Iterator[Finding]:
    """Brokers that are missing, and retries that end before a dead member's session does."""
    if case.image.registrations and not case.has_brokers:
        yield Finding(
            Severity.ERROR, NO_BROKERS, case.group, case.group, "no broker is registered",
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
            Severity.WARNING, SHORT_RETRIES, case.group, "rebalance.backoff.ms",
            f"rebalance.max.retries x rebalance.backoff.ms is {said.rebalance_max_retries} x"
            f" {said.rebalance_backoff_s:g} s = {tried_s:g} s, less than"
            f" zookeeper.session.timeout.ms, {said.zookeeper_session_timeout_s:g} s",
            "when a member dies, JVM members give up before ZooKeeper frees what it owned, and"
            " stay in the group idle",
            f"rebalance.backoff.ms={needed_ms + 500:.0f}, or more retries, at all members",
        )
