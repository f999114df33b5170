"""The sticky assignors, which keep as much of the previous assignment as a balanced one allows.

Releases (`StickyAssignor`, `CooperativeStickyAssignor`, `AbstractStickyAssignor`):

- 0.11: sticky, with the general algorithm.
- 2.4: cooperative-sticky; both share their algorithm.
- 2.5.1: the constrained algorithm, for equal subscriptions.
- 2.8.2: the rules for a partition that two members claim.
- 3.5: racks.
"""

from __future__ import annotations

from zkconsumer.protocol.later.sticky_constrained import Constrained
from zkconsumer.protocol.later.sticky_general import General
from zkconsumer.protocol.later.sticky_input import (
    MemberData,
    Owned,
    Racks,
    cooperative_data,
    ownership,
    remove_first,
    sticky_data,
)
from zkconsumer.protocol.later.subscriptions import Assignment, Members, Topics, subscribed
from zkconsumer.protocol.model import TopicPartition


def assign_sticky(topics: Topics, members: Members) -> Assignment:
    """Return a balanced assignment that moves few partitions (`StickyAssignor`).

    Raises:
        JavaError: Kafka's class throws this exception.
    """
    data = {member: sticky_data(subscription) for member, subscription in members.items()}
    return dict(_assign(topics, members, data)[0].items())


def assign_cooperative(topics: Topics, members: Members) -> Assignment:
    """Return the sticky assignment without the partitions that another member must revoke first.

    The members revoke them and join again; the next round assigns them
    (`CooperativeStickyAssignor`).

    Raises:
        JavaError: Kafka's class throws this exception.
    """
    data = {member: cooperative_data(subscription) for member, subscription in members.items()}
    assignment, transferring = _assign(topics, members, data)
    if transferring is None:
        transferring = _added_and_revoked(assignment, data)
    for partition, member in transferring.items():
        remove_first(assignment[member], partition)
    return dict(assignment.items())


def _assign(
    topics: Topics, members: Members, data: dict[str, MemberData]
) -> tuple[Owned, dict[TopicPartition, str] | None]:
    topics = subscribed(topics, members)
    racks = Racks(topics, members)
    before = ownership(topics, members, data)
    if before.equal:
        constrained = Constrained(topics, racks, before)
        return constrained.build(), constrained.transferring
    return General(topics, racks, before, members, data).build(), None


def _added_and_revoked(assignment: Owned, data: dict[str, MemberData]) -> dict[TopicPartition, str]:
    added: dict[TopicPartition, str] = {}
    revoked: set[TopicPartition] = set()
    for member, partitions in assignment.items():
        owned, assigned = set(data[member].partitions), set(partitions)
        added.update((one, member) for one in partitions if one not in owned)
        revoked.update(owned - assigned)
    return {partition: member for partition, member in added.items() if partition in revoked}
