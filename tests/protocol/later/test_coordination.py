"""The vote of a classic group, and the reconciliation of a KIP-848 group step by step."""

from __future__ import annotations

from zkconsumer.protocol.later.coordination import (
    MemberState,
    ReconcilingMember,
    reconcile,
    vote,
)
from zkconsumer.protocol.model import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
NEW_DEFAULT = ["range", "cooperative-sticky"]


def test_most_votes_win() -> None:
    """Each member votes for the first assignor of its list that all members have."""
    assert (
        vote({"a": ["range", "sticky"], "b": ["sticky", "range"], "c": ["sticky", "range"]})
        == "sticky"
    )
    members = {"a": ["roundrobin", "range"], "b": ["range"], "c": ["range", "sticky"]}
    assert vote(members) == "range"


def test_an_upgrade_to_cooperative() -> None:
    """A group uses range until no member lists range any more."""
    assert vote({"a": NEW_DEFAULT, "b": ["cooperative-sticky", "range"], "c": ["range"]}) == "range"
    assert vote({"a": NEW_DEFAULT, "b": ["cooperative-sticky"]}) == "cooperative-sticky"


def test_no_common_assignor() -> None:
    """Members without a common assignor cannot form a group."""
    assert vote({"a": ["range"], "b": ["sticky"]}) is None


def test_a_partition_moves() -> None:
    """The new owner gets a partition only after the old owner has reported its revocation."""
    old = ReconcilingMember(epoch=1, assigned=frozenset({P0, P1}))
    new = ReconcilingMember()
    old = reconcile(old, target_epoch=2, target=frozenset({P0}), owned=None, held={P0, P1})
    assert (old.state, old.epoch) == (MemberState.UNREVOKED_PARTITIONS, 1)
    assert (old.assigned, old.revoking) == ({P0}, {P1})
    new = reconcile(new, target_epoch=2, target=frozenset({P1}), owned=(), held={P0, P1})
    assert (new.state, new.assigned) == (MemberState.UNRELEASED_PARTITIONS, frozenset())
    waiting = reconcile(old, target_epoch=2, target=frozenset({P0}), owned=(P0, P1), held={P0, P1})
    assert waiting == old
    old = reconcile(old, target_epoch=2, target=frozenset({P0}), owned=(P0,), held={P0, P1})
    assert (old.state, old.epoch, old.revoking) == (MemberState.STABLE, 2, frozenset())
    new = reconcile(new, target_epoch=2, target=frozenset({P1}), owned=(), held={P0})
    assert (new.state, new.epoch, new.assigned) == (MemberState.STABLE, 2, {P1})
    assert reconcile(new, target_epoch=2, target=frozenset({P1}), owned=None, held={P1}) is new
