"""What must be true before a bridge starts, and what an operator should know."""

from __future__ import annotations

from zkconsumer.admin.migrate import Activity, Direction, kafka_offsets, plan_migration
from zkconsumer.bridge import wire
from zkconsumer.bridge.brokers import GroupAdmin
from zkconsumer.bridge.state import ASSIGNORS
from zkconsumer.errors import RefusedError
from zkconsumer.zk.client import ZooKeeperClient

LOSES_MEMBERSHIP = (
    "the brokers are older than 2.3 and have no static members: if the bridge restarts, the new"
    " members read every partition until it leads the group again"
)


def check_brokers_group(admin: GroupAdmin, group: str, *, takes_lead: bool) -> None:
    """Check that the bridge can lead the brokers' group.

    Raises:
        RefusedError: the group has no assignor that the bridge can compute, it is not a group of
            consumers, or its members must be removed first.
        FetchError: the brokers do not answer.
    """
    found = admin.describe()
    if not found.members:
        return
    if found.kind != "consumer":
        raise RefusedError(
            f"the brokers' group is one of {found.kind or 'an unknown protocol'}, not of consumers",
            where=group,
            remedy="use the name of a group of consumers",
        )
    if found.protocol and found.protocol not in ASSIGNORS:
        raise RefusedError(
            f"the new members use the assignor {found.protocol}, which the bridge cannot compute",
            where=group,
            remedy=f"set partition.assignment.strategy to one of {', '.join(ASSIGNORS)}; Kafka"
            " Streams cannot share a group with a bridge",
        )
    if not takes_lead:
        shown = ", ".join(sorted(found.members.values())[:5])
        raise RefusedError(
            f"the brokers' group already has {len(found.members)} members, and one of them leads"
            f" it: {shown}",
            where=group,
            remedy="start the bridge before the new members, or give --take-lead: the bridge then"
            " removes them once, and they join again at once",
        )


def check_offsets(connection: ZooKeeperClient, group: str, *, limit_s: float) -> None:
    """Check that no old member stores its offsets in Kafka.

    As soon as the bridge is a member of the brokers' group, the brokers refuse commits without a
    member id, which such a member sends.

    Raises RefusedError and FetchError.
    """
    try:
        found = plan_migration(
            connection, group, Direction.TO_KAFKA, ask_kafka=kafka_offsets(limit_s)
        )
    except RefusedError:
        return  # the old members do not commit to both stores
    if found.activity is Activity.DUAL:
        raise RefusedError(
            "the old members commit their offsets to Kafka, too; the brokers refuse these commits"
            " as soon as the bridge joins the group",
            where=group,
            remedy="restart the old members one by one with offsets.storage=zookeeper and"
            " dual.commit.enabled=false",
        )


def notices(admin: GroupAdmin) -> list[str]:
    """Return what an operator should know before the bridge starts. Raises FetchError."""
    return [LOSES_MEMBERSHIP] if admin.join_version() < wire.STATIC_SINCE else []
