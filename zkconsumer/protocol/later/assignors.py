"""The assignors by name, and the sticky ones, which share two algorithms.

Releases of the sticky assignors (`StickyAssignor`, `CooperativeStickyAssignor`,
`AbstractStickyAssignor`):

- 0.11: sticky, with the general algorithm.
- 2.4: cooperative-sticky; both share their algorithm.
- 2.5.1: the constrained algorithm, for equal subscriptions.
- 2.8.2: the rules for a partition that two members claim.
- 3.5: racks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from zkconsumer.protocol.later.server_side import assign_server_range, assign_uniform
from zkconsumer.protocol.later.stateless import assign_range, assign_roundrobin
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
from zkconsumer.protocol.later.subscriptions import (
    Assignment,
    Members,
    Subscription,
    Topics,
    members_of,
    subscribed,
)
from zkconsumer.protocol.model import TopicPartition


class Assignor(Enum):
    """An assignor of Kafka 3.9; the value is the name in `partition.assignment.strategy`.

    The last two run on the group coordinator (KIP-848). Kafka names them `uniform` and `range` in
    `group.consumer.assignors`.
    """

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"
    STICKY = "sticky"
    COOPERATIVE_STICKY = "cooperative-sticky"
    UNIFORM = "uniform"
    SERVER_RANGE = "server-range"


# ---- sticky and cooperative-sticky ---------------------------------------------------------------


def assign_sticky(topics: Topics, members: Members) -> Assignment:
    """Return a balanced assignment that moves few partitions (`StickyAssignor`).

    Raises:
        JavaError: Kafka's class throws this exception.
    """
    data = {member: sticky_data(subscription) for member, subscription in members.items()}
    return dict(_assign_sticky(topics, members, data)[0].items())


def assign_cooperative(topics: Topics, members: Members) -> Assignment:
    """Return the sticky assignment without the partitions that another member must revoke first.

    The members revoke them and join again; the next round assigns them
    (`CooperativeStickyAssignor`).

    Raises:
        JavaError: Kafka's class throws this exception.
    """
    data = {member: cooperative_data(subscription) for member, subscription in members.items()}
    assignment, transferring = _assign_sticky(topics, members, data)
    if transferring is None:
        transferring = _added_and_revoked(assignment, data)
    for partition, member in transferring.items():
        remove_first(assignment[member], partition)
    return dict(assignment.items())


def _assign_sticky(
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


# ---- by name -----------------------------------------------------------------------------------

_FUNCTIONS: Mapping[Assignor, Callable[[Topics, Members], Assignment]] = {
    Assignor.RANGE: assign_range,
    Assignor.ROUND_ROBIN: assign_roundrobin,
    Assignor.STICKY: assign_sticky,
    Assignor.COOPERATIVE_STICKY: assign_cooperative,
    Assignor.UNIFORM: assign_uniform,
    Assignor.SERVER_RANGE: assign_server_range,
}


def assign(
    assignor: Assignor, topics: Topics, subscriptions: Mapping[str, Subscription]
) -> Assignment:
    """Return the partitions of every member, as Kafka 3.9.1's class assigns them.

    Args:
        assignor: which class.
        topics: the topics of the cluster, by name.
        subscriptions: at least one member, by member id, in the order in which the leader lists
            them. The order decides only between ids with equal hash codes.

    Raises:
        JavaError: Kafka's class throws this exception.
    """
    return _FUNCTIONS[assignor](topics, members_of(subscriptions))
