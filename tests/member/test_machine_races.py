"""Races that have caused defects: each test repeats one sequence of events."""

from __future__ import annotations

import pytest
from support.members.machine import ME, TWO, Member, joined, member_in, of, tps, view

from zkconsumer.member import commands as cmd
from zkconsumer.member import events as ev
from zkconsumer.member.machine import awaits
from zkconsumer.member.phases import Phase
from zkconsumer.protocol.model import Blocker


def test_a_watch_that_fires_during_a_claim_causes_another_claim() -> None:
    """If the watch of a claim fires before the claim ends, the member claims again."""
    member = member_in(Phase.CLAIMING)
    member.send(ev.OwnersChanged, topic="t")
    wanted = frozenset(member.state.assigned)
    blocked = {tp: Blocker("g_z-0", 7) for tp in wanted}
    commands = member.answer(ev.Claimed({}, blocked, {}))
    assert [c.partitions.keys() for c in commands if isinstance(c, cmd.Claim)] == [wanted]
    assert member.state.phase is Phase.CLAIMING
    assert wanted == tps(0, 1, 2, 3)


def test_an_abandoned_operation_sends_nothing_more() -> None:
    """After its id znode is lost, a claim sends nothing: the read-back would not see it."""
    member = member_in(Phase.CLAIMING)
    claim = member.state.op
    assert claim is not None
    assert awaits(member.state, claim)
    member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
    assert not awaits(member.state, claim)
    assert member.state.phase is Phase.REGISTERING


def test_a_hand_over_without_a_commit_continues_when_the_lease_is_renewed() -> None:
    """If a commit that waits for the lease has nothing to write, the release does not wait."""
    member = member_in(Phase.STOPPING)
    member.now += 100.0  # The lease has ended.
    member.finished.clear()
    member.user_finishes(member.state.revoking)
    assert member.state.phase is Phase.COMMITTING
    member.send(ev.Tick)
    member.answer_sync()
    assert member.state.commits.running is None
    assert member.state.phase is Phase.RELEASING


def test_a_late_answer_to_an_earlier_release_does_not_count() -> None:
    """A user that finishes after the grace period does not release what another user holds."""
    # 1. The grace period ends while a user holds messages, and the partitions are released. 2. The
    # member claims them again, for another stream. 3. They are revoked again, while the second
    # user holds messages. 4. The first user finishes.
    member = member_in(Phase.STOPPING)
    asked = {tp: member.state.owned[tp] for tp in member.state.revoking}
    member.wait(member.state.settings.grace_s)
    assert member.state.phase is Phase.COMMITTING
    member.drive(TWO)
    joined(member, view())
    member.drive()
    joined(member)
    assert member.state.phase is Phase.STOPPING
    assert not member.send(ev.ReleaseReady, partitions=asked)
    assert member.state.phase is Phase.STOPPING
    assert of(member.user_finishes(asked), cmd.CollectPositions)


def test_a_topic_that_is_deleted_while_the_group_is_read_is_not_taken_up_again() -> None:
    """If a topic is deleted during a reading, the view of that reading does not restore it."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.send(ev.TopicDeleted, topic="t")
    member.read(view(brokers=()))
    assert member.state.phase is Phase.READING
    member.drive(view(topics={}, brokers=()))
    assert member.state.owned.keys() == tps(0, 1, 2, 3)
    assert not member.state.serving


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.COMMITTING, Phase.RELEASING])
def test_an_interrupted_revocation_gives_a_new_token(phase: Phase) -> None:
    """If a revocation is interrupted and the member gets the partition again, its token changes."""
    member = member_in(phase)
    old = dict(member.state.owned)
    member.send(ev.Suspended)
    member.connect()
    member.drive(view())
    assert member.state.serving == tps(0, 1, 2, 3)
    kept = {tp for tp, mine in member.state.owned.items() if mine == old[tp]}
    assert kept == tps(0, 1)


def test_a_reading_ends_the_wait_for_the_watch_of_a_nudge() -> None:
    """If the watch after a nudge was lost, the member registers at once if its id is deleted."""
    # 1. A nudge deletes and creates the id znode. 2. The connection breaks, so the watch event of
    # the nudge is lost. 3. The member reads the group. 4. Another client deletes the id znode.
    member = Member(nudge_s=2.0, retries=1, backoff_s=1.0)
    group = view((ME, "g_z"))
    member.settle(group)
    member.find_unclaimed()
    assert isinstance(member.log[-1], cmd.Nudge)
    member.send(ev.Suspended)
    member.connect()
    member.drive(group)
    member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
    assert member.state.phase is Phase.REGISTERING


def test_a_read_starts_again_after_the_watch_of_a_nudge_that_nobody_awaits() -> None:
    """If a read replaces a nudge and then the id znode's watch fires, the read starts again."""
    # 1. A nudge is sent. 2. Another client deletes an owner znode, so the member reads the group
    # and no longer awaits the nudge. 3. Another client deletes the id znode. The watch event may
    # be the nudge's, and the read may have found the id znode before its deletion.
    member = Member(nudge_s=2.0, retries=1, backoff_s=1.0)
    member.settle(view((ME, "g_z")))
    member.find_unclaimed()
    assert isinstance(member.log[-1], cmd.Nudge)
    member.send(ev.OwnerNodeChanged, partition=min(member.state.owned))
    first = member.last(cmd.ReadView)
    member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
    assert member.state.phase is Phase.READING
    assert member.state.op == member.last(cmd.ReadView).op > first.op
    assert member.last(cmd.ReadView).known is None


def test_a_release_that_starts_again_reads_the_owners_first() -> None:
    """A release that was interrupted relies on no watch: another member may own the znodes."""
    # 1. The release deletes the owner znodes. 2. The connection breaks before the reply. 3. Another
    # member claims the partitions. 4. The release starts again before the loss is handled.
    member = member_in(Phase.RELEASING)
    assert member.last(cmd.Release).watched == member.state.revoking
    member.answer(ev.Interrupted())
    member.send(ev.Tick)
    assert member.last(cmd.Release).watched == frozenset()
    assert member.last(cmd.Release).partitions == member.state.revoking


def test_a_release_reads_the_owner_of_a_znode_that_has_changed() -> None:
    """If a revoked partition's owner znode was deleted, the release reads its owner first."""
    member = member_in(Phase.STOPPING)
    (changed, *others) = sorted(member.state.revoking)
    member.send(ev.OwnerNodeChanged, partition=changed)
    member.user_finishes(member.state.revoking)
    while member.state.phase is not Phase.RELEASING:
        assert member.go_on(None)
    assert member.last(cmd.Release).watched == frozenset(others)
    assert member.last(cmd.Release).partitions == frozenset([changed, *others])
