"""The group coordinator's decisions: the vote on an assignor, and KIP-848's reconciliation.

Classic protocol: each member lists its assignors in its order of preference, and `vote` chooses the
assignor of the next generation. The group's leader then computes the assignment.

KIP-848: the coordinator computes a target assignment. Each member moves to it independently,
through its heartbeats, and `reconcile` returns its next state. A partition goes to its new member
only after its old member has revoked it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.java.hash_map import StringMap
from zkconsumer.protocol.model import TopicPartition

# ---- the vote ------------------------------------------------------------------------------------


def vote(members: Mapping[str, Sequence[str]]) -> str | None:
    """Return the assignor that a classic group uses; None if the members have none in common.

    Each member votes for the first of its assignors that all members support. The assignor with the
    most votes wins; with equal votes, the first one in the order of a hash map wins. Kafka refuses
    a member if no common assignor would remain (INCONSISTENT_GROUP_PROTOCOL).

    Args:
        members: member id -> its assignors, the preferred one first; at least one member.

    Source: `ClassicGroup.selectProtocol` of Kafka 3.9.1.
    """
    common = set.intersection(*map(set, members.values()))
    if not common:
        return None
    order: StringMap[Sequence[str]] = StringMap()
    for member, assignors in members.items():
        order[member] = assignors
    votes: StringMap[int] = StringMap()
    for _, assignors in order.items():
        choice = next(one for one in assignors if one in common)
        votes[choice] = (votes.get(choice) or 0) + 1
    return max(votes, key=lambda one: votes[one])


# ---- reconciliation ------------------------------------------------------------------------------


class MemberState(Enum):
    """The states of a member of KIP-848."""

    STABLE = "STABLE"  # the member has its target assignment
    UNREVOKED_PARTITIONS = "UNREVOKED_PARTITIONS"  # the member must revoke partitions first
    UNRELEASED_PARTITIONS = "UNRELEASED_PARTITIONS"  # other members still hold partitions


@dataclass(frozen=True, slots=True)
class ReconcilingMember:
    """A member as the coordinator knows it.

    Attributes:
        state: the member's progress in the reconciliation.
        epoch: the member epoch.
        previous_epoch: the member epoch before the last change.
        assigned: the partitions that the member may consume.
        revoking: the partitions that the member has to revoke.
    """

    state: MemberState = MemberState.STABLE
    epoch: int = 0
    previous_epoch: int = 0
    assigned: frozenset[TopicPartition] = frozenset()
    revoking: frozenset[TopicPartition] = frozenset()


def reconcile(
    member: ReconcilingMember,
    *,
    target_epoch: int,
    target: frozenset[TopicPartition],
    owned: Collection[TopicPartition] | None,
    held: Collection[TopicPartition],
) -> ReconcilingMember:
    """Return the member after a heartbeat.

    Args:
        member: the member before the heartbeat.
        target_epoch: the epoch of the group's target assignment.
        target: the member's part of the target assignment.
        owned: the partitions that the heartbeat reports; None if it contains no list, as in
            heartbeats of Kafka's client while nothing changes.
        held: the partitions that are assigned to any member, or that a member still has to revoke.

    Source: `CurrentAssignmentBuilder.build` of Kafka 3.9.1.
    """
    match member.state:
        case MemberState.STABLE if member.epoch == target_epoch:
            return member
        case MemberState.UNREVOKED_PARTITIONS:
            if _owns_any(owned, member.revoking):
                return member
            epoch = member.epoch + 1
        case _:
            epoch = member.epoch
    kept = member.assigned & target
    revoking = member.assigned - kept
    if revoking and _owns_any(owned, revoking):
        state = MemberState.UNREVOKED_PARTITIONS
        return ReconcilingMember(state, epoch, member.epoch, kept, revoking)
    unreleased = (target - kept).intersection(held)
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return ReconcilingMember(state, target_epoch, member.epoch, target - unreleased)


def _owns_any(
    owned: Collection[TopicPartition] | None, partitions: frozenset[TopicPartition]
) -> bool:
    """Return whether the member may still own one of the partitions."""
    return owned is None or not partitions.isdisjoint(owned)
