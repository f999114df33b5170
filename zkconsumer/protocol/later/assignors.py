"""The assignors by name, and an assignment as it is computed from the values of one group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from zkconsumer.protocol.later.server_side import assign_server_range, assign_uniform
from zkconsumer.protocol.later.stateless import assign_range, assign_roundrobin
from zkconsumer.protocol.later.sticky import assign_cooperative, assign_sticky
from zkconsumer.protocol.later.subscriptions import (
    Assignment,
    Members,
    Subscription,
    Topics,
    members_of,
)


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
