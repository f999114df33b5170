"""Rebalances: revocations and their order, triggers, blockers, waiting states, eager mode."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.members.machine import (
    LATER,
    ME,
    PEER,
    SESSION,
    THREAD,
    TWO,
    Member,
    joined,
    member_in,
    of,
    one,
    tps,
    view,
)

from zkconsumer.member import commands as cmd
from zkconsumer.member import events as ev
from zkconsumer.member.peers import ASK_S
from zkconsumer.member.phases import Phase
from zkconsumer.member.rebalance import MAX_POSTPONED_READS, RECHECK_S
from zkconsumer.member.state import replace
from zkconsumer.member.unreadable import REPORT_S
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_snapshot import assign_all
from zkconsumer.protocol.model import (
    UNKNOWN_BLOCKER,
    Blocker,
    Ownership,
    Purpose,
    RebalanceMode,
    StoredOffset,
    TopicPartition,
)
from zkconsumer.protocol.registrations import Pattern
from zkconsumer.protocol.releases import DEFAULT, profile

T0, T3 = TopicPartition("t", 0), TopicPartition("t", 3)
FIRST = "g_a"
"""A member that sorts before `ME`, so that `ME` keeps the last two of four partitions."""
BUSY = tuple(
    p
    for p in Phase
    if p not in (Phase.OFFLINE, Phase.CLOSED, Phase.LEAVING, Phase.SETTLED, Phase.WAITING)
)


# ---- which partitions move ----------------------------------------------------------------------


def test_only_reassigned_partitions_are_released() -> None:
    """While another member takes over two of four partitions, the other two are delivered."""
    member = member_in(Phase.SETTLED)
    assert one(joined(member), cmd.AskRelease).partitions == tps(2, 3)
    assert member.state.serving >= tps(0, 1)
    member.drive(TWO)
    assert member.state.owned.keys() == member.state.serving == tps(0, 1)
    assert not [c for c in member.log if isinstance(c, cmd.Withdraw) and c.partitions & tps(0, 1)]


def test_stop_commit_release_claim_start_in_this_order() -> None:
    """Revoked partitions are stopped, committed and released before new ones are claimed."""
    member = Member()
    member.settle(view([FIRST, ME]))
    member.finished |= dict.fromkeys(tps(2, 3), 15)
    before = len(member.log)
    joined(member, view([ME, PEER]))
    member.drive(TWO)
    order = (
        cmd.AskRelease,
        cmd.CollectPositions,
        cmd.Withdraw,
        cmd.CommitOffsets,
        cmd.Release,
        cmd.Claim,
        cmd.LoadOffsets,
        cmd.StartFetching,
    )
    done = [type(c) for c in member.log[before:] if isinstance(c, order)]
    assert sorted(done, key=order.index) == list(order)
    assert [kind for kind in done if kind is not cmd.Withdraw] == [
        kind for kind in order if kind is not cmd.Withdraw
    ]
    assert done.index(cmd.Withdraw) < done.index(cmd.Release)


def test_the_hand_over_commits_finished_messages() -> None:
    """Before the release the finished positions of the revoked partitions are committed."""
    member = member_in(Phase.COMMITTING)
    assert {v[0] for v in member.last(cmd.CommitOffsets).plan.writes.values()} == {15}
    assert not of(member.log, cmd.Release)
    assert one(member.answer_commit(), cmd.Release).partitions == tps(2, 3)


def test_a_failed_commit_does_not_hold_up_a_release() -> None:
    """The partitions are released whether their commit succeeds or not."""
    member = member_in(Phase.COMMITTING)
    assert of(member.answer_commit(ev.Denied("somewhere", "no rights")), cmd.Release)


def test_a_silent_user_holds_a_release_for_the_grace_only() -> None:
    """After `release.grace.ms` a partition is released although a message is still unfinished."""
    member = member_in(Phase.STOPPING, grace_s=1.0)
    assert not of(member.wait(0.9), cmd.CollectPositions)
    done = member.wait(0.2)
    assert one(done, cmd.CollectPositions).partitions == tps(2, 3)
    assert {v[0] for v in one(done, cmd.CommitOffsets).plan.writes.values()} == {15}
    assert one(member.answer_commit(), cmd.Release).partitions == tps(2, 3)


@pytest.mark.parametrize("why", ["reconnect", "own id znode"])
def test_an_interruption_does_not_cut_off_the_grace(why: str) -> None:
    """After an interruption, the member still waits for the user that finishes its messages."""
    member = member_in(Phase.STOPPING, grace_s=1.0)
    before = len(member.log)
    if why == "reconnect":
        member.send(ev.Suspended)
        member.connect()
    else:
        member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
        member.answer(ev.Registered(1))
    member.verify()
    asked = one(member.read(TWO), cmd.AskRelease)
    assert asked.partitions == tps(2, 3)
    assert not of(member.log[before:], cmd.Withdraw)
    assert of(member.user_finishes(tps(2, 3)), cmd.CollectPositions)
    assert one(member.answer_commit(), cmd.Release).partitions == tps(2, 3)


def test_an_automatic_commit_at_the_end_of_the_grace_is_not_the_hand_overs() -> None:
    """If the grace period ends when an automatic commit is due, the release has its own commit."""
    member = member_in(Phase.STOPPING, grace_s=1.0)
    member.state = replace(member.state, auto_commit_at=member.state.grace_at)
    done = member.wait(1.1)
    purposes = [command.purpose for command in of(done, cmd.CollectPositions)]
    assert purposes == [Purpose.AUTO, Purpose.RELEASE]
    assert not of(done, cmd.Release)
    assert one(done, cmd.CommitOffsets).plan.writes.keys() == tps(2, 3)
    assert one(member.answer_commit(), cmd.Release).partitions == tps(2, 3)


def test_a_release_continues_when_the_last_message_is_finished() -> None:
    """The rebalance continues only when all revoked partitions are finished, and then at once."""
    member = member_in(Phase.STOPPING)
    assert not member.user_finishes(tps(2))
    assert of(member.user_finishes(tps(3)), cmd.CollectPositions)


def test_a_refused_release_does_not_delay_the_others() -> None:
    """A release that ZooKeeper refuses is reported; the other partitions are released."""
    member = member_in(Phase.RELEASING)
    done = member.answer(ev.Released({T3: "no rights"}))
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.DENIED
    member.drive(TWO)
    assert member.state.phase is Phase.WAITING
    assert member.state.refused == {T3: "no rights"}
    assert len(of(member.log, cmd.Release)) == 1, "the release was repeated without a back-off"
    assert member.state.serving == tps(0, 1)


def alone_again(member: Member) -> tuple[cmd.Command, ...]:
    """Let ZooKeeper refuse the release of the revoked partitions; then assign them here again."""
    before = len(member.log)
    member.answer(ev.Released(dict.fromkeys(member.state.revoking, "no rights")))
    member.drive(TWO)
    joined(member, view())
    member.drive()
    return tuple(member.log[before:])


def test_a_finished_partition_continues_when_its_release_is_refused() -> None:
    """A finished partition whose release was refused is served again from its stored offset."""
    member = member_in(Phase.RELEASING)
    done = alone_again(member)
    assert one(done, cmd.LoadOffsets).partitions == tps(2, 3)
    assert not of(done, cmd.Release)
    assert member.state.serving == tps(0, 1, 2, 3)


@pytest.mark.parametrize("why", ["in hand", "finished too late", "not stored", "not committed"])
def test_an_unfinished_partition_is_released_even_if_assigned_again(why: str) -> None:
    """If the release of an unfinished partition is refused, it is repeated before a new claim."""
    no_commit = {"auto_commit_s": None} if why == "not committed" else {}
    member = member_in(Phase.STOPPING, **no_commit)
    tokens = {tp: member.state.owned[tp].epoch for tp in tps(2, 3)}
    if why in ("in hand", "finished too late"):
        member.wait(1.1)
    else:
        member.user_finishes(tps(2, 3))
    if why == "finished too late":
        member.user_finishes(tps(2, 3))
    if why == "not stored":
        member.answer_commit(ev.Committed({}, {}, frozenset(), dict.fromkeys(tps(2, 3), "no")))
    elif why != "not committed":
        member.answer_commit()
    done = alone_again(member)
    assert one(done, cmd.Release).partitions == tps(2, 3), "the release was not repeated"
    assert {c.partitions for c in of(done, cmd.LoadOffsets)} == {tps(2, 3)}
    assert member.state.phase is Phase.SETTLED
    assert member.state.serving == tps(0, 1, 2, 3)
    assert all(member.state.owned[tp].epoch > epoch for tp, epoch in tokens.items())


# ---- triggers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("trigger", [ev.Trigger.MEMBERS, ev.Trigger.TOPIC, ev.Trigger.TOPICS])
@pytest.mark.parametrize("phase", BUSY, ids=lambda p: p.value)
def test_a_trigger_during_a_rebalance_is_not_lost(phase: Phase, trigger: ev.Trigger) -> None:
    """After a trigger in any phase, the member reads the group again before it settles."""
    member = member_in(phase)
    before = len(of(member.log, cmd.ReadView))
    member.send(ev.Triggered, trigger=trigger)
    member.drive()
    later = len(of(member.log, cmd.ReadView)) - before
    assert later >= 1, "the trigger was lost"
    assert member.state.phase is Phase.SETTLED
    assert not member.state.read_again


def test_triggers_during_a_reading_are_one() -> None:
    """Many triggers during a reading cause only one further reading."""
    member = member_in(Phase.READING)
    for _ in range(5):
        member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.drive()
    assert len(of(member.log, cmd.ReadView)) == 2


@pytest.mark.parametrize("phase", [Phase.SETTLED, Phase.WAITING])
def test_a_trigger_at_rest_is_acted_on_at_once(phase: Phase) -> None:
    """In SETTLED or WAITING a trigger causes a reading at once."""
    member = member_in(phase)
    assert one(member.send(ev.Triggered, trigger=ev.Trigger.TOPIC), cmd.ReadView)


def test_the_death_of_a_broker_causes_no_reading() -> None:
    """If other brokers are known, a broker's death causes no reading of the group."""
    member = member_in(Phase.SETTLED)
    done = member.send(ev.Triggered, trigger=ev.Trigger.BROKERS)
    assert not done
    done = member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    assert paths.BROKER_IDS not in one(done, cmd.ReadView).known.watched


def test_a_broker_that_returns_while_none_is_found_is_read() -> None:
    """A reading that found no broker is repeated if the brokers' watch fired in the meantime."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.send(ev.Triggered, trigger=ev.Trigger.BROKERS)
    assert one(member.read(view(brokers=())), cmd.ReadView)
    member.read(view())
    assert member.state.phase is Phase.SETTLED


# ---- what a reading need not read again ---------------------------------------------------------


def test_a_join_reads_only_what_is_new() -> None:
    """The next reading reuses the last view, except znodes whose watches have fired."""
    member = member_in(Phase.SETTLED)
    known = one(member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS), cmd.ReadView).known
    assert known.view == view()
    assert known.watched == {paths.topic("t"), paths.BROKER_IDS}


@pytest.mark.parametrize("phase", [Phase.SETTLED, Phase.READING])
def test_a_topic_whose_watch_has_fired_is_read_again(phase: Phase) -> None:
    """If a topic's watch fires before or during a reading, the next reading reads the topic."""
    member = member_in(phase)
    done = member.send(ev.Triggered, trigger=ev.Trigger.TOPIC, subject="t")
    if phase is Phase.READING:
        done = member.read()
    assert paths.topic("t") not in one(done, cmd.ReadView).known.watched


@pytest.mark.parametrize("why", ["reconnect", "expiry", "refresh", "own id znode", "back-off"])
def test_everything_is_read_after_a_reconnect_or_a_back_off(why: str) -> None:
    """After a reconnect, an expiry or a back-off, and periodically, the whole group is read."""
    member = member_in(Phase.SETTLED, refresh_s=100.0)
    if why == "reconnect":
        member.send(ev.Suspended)
        member.connect()
        done = member.answer(ev.Verified(member.state.owned, {}))
    elif why == "expiry":
        member.connect(LATER)
        done = member.answer(ev.Registered(9))
    elif why == "refresh":
        done = member.wait(121)
    elif why == "own id znode":
        member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
        member.answer(ev.Registered(9))
        done = member.answer(ev.Verified(member.state.owned, {}))
    else:
        member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
        member.answer(ev.Denied("ids", "no rights"))
        done = member.wait(2.1)
    assert one(done, cmd.ReadView).known is None


# ---- owner nodes that others touch --------------------------------------------------------------


def test_a_vanished_owner_node_stops_that_partition() -> None:
    """If an owner znode is deleted, the member stops the partition at once and claims it again."""
    member = member_in(Phase.SETTLED)
    done = member.send(ev.OwnerNodeChanged, partition=T0)
    assert one(done, cmd.Withdraw).partitions == {T0}
    assert one(done, cmd.ReadView)
    assert member.state.serving == tps(1, 2, 3)
    member.drive()
    assert member.last(cmd.Claim).partitions == {T0: THREAD}
    assert member.state.phase is Phase.SETTLED
    assert member.state.serving == tps(0, 1, 2, 3)


def test_an_owner_node_that_vanishes_while_it_is_claimed_is_claimed_again() -> None:
    """If the watch on a new owner znode fires before the claim ends, the partition is reclaimed."""
    member = member_in(Phase.CLAIMING)
    member.send(ev.OwnerNodeChanged, partition=T0)
    member.claim()
    for _ in range(5):
        if member.state.phase is not Phase.VERIFYING:
            member.go_on(view())
    assert len(of(member.log, cmd.ReadView)) == 2
    assert member.last(cmd.Verify).partitions.keys() == tps(0, 1, 2, 3)
    assert one(member.verify(T0), cmd.Withdraw).partitions == {T0}


def test_a_partition_lost_during_the_read_back_stays_lost() -> None:
    """If an owner znode is deleted during the read-back, the read-back does not restore it."""
    member = member_in(Phase.VERIFYING)
    mine = dict(member.state.owned)
    member.send(ev.OwnerNodeChanged, partition=T0)
    member.answer(ev.Verified(mine, {}))
    assert T0 not in member.state.owned
    member.drive()
    assert member.state.serving == tps(0, 1, 2, 3)


def test_the_members_own_release_is_no_loss() -> None:
    """When the member deletes its own owner znode, the znode's watch event has no effect."""
    member = member_in(Phase.RELEASING)
    assert not member.send(ev.OwnerNodeChanged, partition=T3)
    member.drive(TWO)
    assert cmd.NoticeKind.OWNERSHIP_LOST not in member.notices()


def test_a_reading_of_everything_reads_back_what_it_keeps() -> None:
    """Kept owner znodes are read back; if another member holds one, its partition stops."""
    member = member_in(Phase.SETTLED, refresh_s=100.0)
    member.wait(121)
    member.read()
    member.wait(RECHECK_S)
    assert member.last(cmd.Verify).partitions.keys() == tps(0, 1, 2, 3)
    who = Blocker("g_other-0", 0xC3)
    held = {tp: mine for tp, mine in member.state.owned.items() if tp != T0}
    done = member.answer(ev.Verified(held, {T0: who}))
    assert one(done, cmd.Withdraw).partitions == {T0}
    assert "g_other-0" in of(done, cmd.Notice)[0].text
    assert one(done, cmd.Claim).partitions == {T0: THREAD}


def test_a_recreated_own_owner_node_restarts_fetching() -> None:
    """If an owner znode was re-created (new czxid), fetching restarts under the new token."""
    member = member_in(Phase.VERIFYING)
    held = dict(member.state.owned) | {T0: Ownership(THREAD, 999)}
    done = member.answer(ev.Verified(held, {}))
    assert one(done, cmd.Withdraw).partitions == {T0}
    member.drive()
    assert member.last(cmd.StartFetching).grants[T0][0].epoch == 999


# ---- blocked ------------------------------------------------------------------------------------


def test_free_partitions_are_served_while_others_are_blocked() -> None:
    """A blocked partition does not delay the delivery of the other partitions."""
    member = member_in(Phase.WAITING)
    assert member.state.serving == tps(0, 1, 2)
    assert member.state.blocked.partitions.keys() == tps(3)


def test_a_vanished_blocker_is_replaced_at_once() -> None:
    """When owners change, blocked partitions are claimed at once, without reading the group."""
    member = member_in(Phase.WAITING)
    done = member.send(ev.OwnersChanged, topic="t")
    assert one(done, cmd.Claim).partitions == {T3: THREAD}
    assert not of(done, cmd.ReadView)
    member.claim()
    member.load()
    member.verify()
    assert member.state.phase is Phase.SETTLED


def test_changes_of_irrelevant_owners_are_ignored() -> None:
    """A change of owners has no effect on an unrelated topic, or if no partition is blocked."""
    assert not member_in(Phase.WAITING).send(ev.OwnersChanged, topic="other")
    assert not member_in(Phase.SETTLED).send(ev.OwnersChanged, topic="t")


def wait_blocked(member: Member, seconds: float, *blocked: TopicPartition) -> list[cmd.Notice]:
    """Let time pass; after each back-off the member claims again, and is blocked again."""
    notices: list[cmd.Notice] = []
    end = member.now + seconds
    while member.now < end:
        notices += of(member.wait(0.1), cmd.Notice)
        if member.state.phase is Phase.READING:
            member.read()
        if member.state.phase is Phase.CLAIMING:
            notices += of(member.claim(*blocked), cmd.Notice)
        if member.state.phase is Phase.VERIFYING:
            notices += of(member.verify(), cmd.Notice)
    return notices


def test_a_blocker_is_reported_once_after_retries_times_back_off() -> None:
    """A blocker is reported once, when a JVM member would give up; the claims continue."""
    member = member_in(Phase.WAITING, retries=4, backoff_s=0.5)
    assert not wait_blocked(member, 1.5, T3)
    claims = len(of(member.log, cmd.Claim))
    (notice,) = wait_blocked(member, 10.0, T3)
    assert notice.kind is cmd.NoticeKind.BLOCKED
    assert (str(T3) in notice.where, "g_other-0" in notice.text) == (True, True)
    assert len(of(member.log, cmd.Claim)) >= claims + 12


def test_many_blocked_partitions_make_one_report() -> None:
    """One report names all the partitions that are blocked."""
    member = Member(retries=1, backoff_s=0.5)
    member.register()
    member.read()
    member.claim(*tps(0, 1, 2, 3))
    (notice,) = wait_blocked(member, 3.0, *tps(0, 1, 2, 3))
    assert all(str(tp) in notice.where for tp in tps(0, 1, 2, 3))


def test_the_end_of_a_blockade_is_reported() -> None:
    """The end of a reported blockade is reported, and its start time is forgotten."""
    member = member_in(Phase.WAITING, retries=1, backoff_s=0.5)
    wait_blocked(member, 2.0, T3)
    member.send(ev.OwnersChanged, topic="t")
    assert one(member.claim(), cmd.Notice).kind is cmd.NoticeKind.UNBLOCKED
    member.load()
    member.verify()
    assert member.state.phase is Phase.SETTLED
    assert member.state.blocked.since is None


def test_partitions_of_idle_peers_make_one_report() -> None:
    """One report counts the partitions that idle peers do not claim, and names some of them."""
    member = Member(retries=1, backoff_s=0.5)
    member.settle(view((ME, "g_y", "g_z"), {"t": 90}))
    (notice, _) = member.find_unclaimed(member.state.owned)
    assert isinstance(notice, cmd.Notice)
    assert notice.kind is cmd.NoticeKind.IDLE_PEER
    assert (notice.where.count("t-"), "and 40 more" in notice.where) == (20, True)
    assert "g_y-0, g_z-0" in notice.text
    assert not of(member.find_unclaimed(member.state.owned), cmd.Notice)


def test_peers_that_still_claim_are_not_idle() -> None:
    """While the partitions without an owner change, the group settles and no peer is idle."""
    member = Member(retries=1, backoff_s=0.5)
    member.settle(view((ME, "g_z"), {"t": 8}))
    member.wait(0.5)
    for owned in (4, 5, 6):
        assert not of(member.answer(ev.OwnersListed(tps(*range(owned)))), cmd.Notice)
        member.wait(0.6)
    (notice, diagnose) = member.answer(ev.OwnersListed(tps(*range(6))))
    assert isinstance(notice, cmd.Notice)
    assert (notice.where, diagnose) == ("t-6, t-7", cmd.Diagnose())
    assert member.state.idle_peers.partitions == tps(6, 7)


def test_members_of_a_large_group_diagnose_it_one_after_the_other() -> None:
    """Members of a large group read all its owners at different times, and of a small one soon."""

    def waits(members: int, partitions: int) -> list[float]:
        names = [f"g_{number}" for number in range(members)]
        found = []
        for name in names[:20]:
            member = Member(consumer=name, retries=1, backoff_s=0.5)
            member.register()
            member.read(view(names, {"t": partitions}))
            member.claim(*member.last(cmd.Claim).partitions)
            began = member.now
            while not of(member.log, cmd.Diagnose):
                member.wait(0.5)
                if member.state.phase is Phase.READING:
                    member.read(view(names, {"t": partitions}))
                if member.state.phase is Phase.CLAIMING:
                    member.claim(*member.last(cmd.Claim).partitions)
            found.append(member.now - began)
        return sorted(found)

    assert waits(2, 8) == pytest.approx([0.5, 0.5], abs=0.5)
    late = waits(100, 2000)
    assert late[-1] <= 0.5 + 20.0 + 1.0  # 100 x 2,000 znodes at 10,000 in a second
    assert late[-1] - late[0] > 10.0
    assert len(set(late)) > 10


def test_the_remedy_names_a_persistent_owner_node() -> None:
    """The remedy for a persistent owner znode, which outlives sessions, is a command."""
    member = member_in(Phase.CLAIMING, retries=1, backoff_s=0.5)
    claim = member.last(cmd.Claim)
    held = {T3: Blocker("by hand", 0)}
    got = {tp: Ownership(THREAD, 9) for tp in claim.partitions if tp != T3}
    member.answer(ev.Claimed(got, held, {}))
    member.load()
    member.verify()
    reported = of(member.wait(1.0), cmd.Notice)
    assert "doctor --fix" in reported[0].remedy


def test_a_denied_claim_is_reported_and_retried() -> None:
    """A claim that ZooKeeper refuses is reported and retried; other partitions are delivered."""
    member = member_in(Phase.CLAIMING)
    got = {tp: Ownership(THREAD, 9) for tp in tps(0, 1, 2)}
    done = member.answer(ev.Claimed(got, {}, {T3: "no rights"}))
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.DENIED
    member.load()
    member.verify()
    assert member.state.serving == tps(0, 1, 2)
    assert of(member.wait(2.1), cmd.ReadView)
    member.read()
    assert member.last(cmd.Claim).partitions == {T3: THREAD}


@pytest.mark.parametrize("mode", RebalanceMode)
def test_at_rest_the_group_is_read_again_from_time_to_time(mode: RebalanceMode) -> None:
    """A settled member reads the group periodically, and revokes nothing if it is unchanged."""
    member = member_in(Phase.SETTLED, mode=mode, refresh_s=100.0)
    assert not of(member.wait(99), cmd.ReadView)
    assert of(member.wait(21), cmd.ReadView)
    assert member.state.serving == tps(0, 1, 2, 3)
    assert not [c for c in member.read() if isinstance(c, cmd.AskRelease | cmd.Withdraw)]
    member.drive()
    assert (member.state.phase, member.state.serving) == (Phase.SETTLED, tps(0, 1, 2, 3))
    member.wait(1)
    member.verify()  # Kept owner znodes are read back, as after every reading.
    assert of(member.wait(121), cmd.ReadView)
    assert one(member.read(TWO), cmd.AskRelease).partitions >= tps(2, 3)


def test_readings_at_rest_are_rare_and_not_all_at_once() -> None:
    """The refresh time is at least five session timeouts and 1 s per member; a part is random."""
    pauses = []
    for name in (ME, "g_x"):
        member = Member(consumer=name, refresh_s=0.0)
        member.settle(view([name]))
        assert member.state.refresh_at is not None
        pauses.append(member.state.refresh_at - member.now)
        assert 5 * SESSION.timeout_s <= pauses[-1] <= 6 * SESSION.timeout_s
        many = view([name, *(f"g_{n}" for n in range(200))], {"t": 201})
        joined(member, many)
        member.drive(many)
        assert member.state.refresh_at - member.now >= 201
    assert pauses[0] != pauses[1]
    assert member_in(Phase.SETTLED).state.refresh_at is None


# ---- eager --------------------------------------------------------------------------------------


def test_eager_releases_everything_and_claims_all_or_nothing() -> None:
    """An eager member releases everything first, and then claims all its partitions or none."""
    member = member_in(Phase.SETTLED, mode=RebalanceMode.EAGER)
    assert one(joined(member), cmd.AskRelease).partitions == tps(0, 1, 2, 3)
    member.drive(TWO)
    assert member.last(cmd.Release).partitions == tps(0, 1, 2, 3)
    assert member.last(cmd.Claim).partitions.keys() == tps(0, 1)
    assert member.last(cmd.Claim).mode_all_or_nothing
    assert member.state.phase is Phase.SETTLED


def test_an_eager_claim_that_could_not_be_undone_is_released_later() -> None:
    """A claim that cannot be undone is reported; the partition is served until its revocation."""
    member = member_in(Phase.CLAIMING, mode=RebalanceMode.EAGER)
    got, held = {T0: Ownership(THREAD, 9)}, dict.fromkeys(tps(1, 2, 3), UNKNOWN_BLOCKER)
    done = member.answer(ev.Claimed(got, held, {T0: "no rights"}))
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.DENIED
    member.load()
    member.verify()
    assert (member.state.phase, member.state.serving) == (Phase.WAITING, {T0})
    assert one(joined(member, view([FIRST, ME])), cmd.AskRelease).partitions == {T0}
    member.user_finishes([T0])
    assert member.last(cmd.Release).partitions == {T0}


def test_eager_does_not_stop_the_world_for_a_retry() -> None:
    """While an eager member waits for a missing topic, it reads again but keeps delivering."""
    member = Member(subscription={"t": 1, "u": 1}, mode=RebalanceMode.EAGER)
    member.register()
    member.drive()
    assert member.state.phase is Phase.WAITING
    assert of(member.wait(2.1), cmd.ReadView)
    assert not of(member.read(), cmd.AskRelease)
    assert one(joined(member_in(Phase.SETTLED, mode=RebalanceMode.EAGER), TWO), cmd.AskRelease)


def test_eager_keeps_everything_without_brokers() -> None:
    """An eager member releases nothing while there are no brokers."""
    member = member_in(Phase.SETTLED, mode=RebalanceMode.EAGER)
    assert not of(joined(member, view(brokers=())), cmd.AskRelease)
    assert member.state.serving == tps(0, 1, 2, 3)


# ---- views --------------------------------------------------------------------------------------


def test_no_brokers_is_a_waiting_state() -> None:
    """Without brokers nothing is released or claimed, and the status says why."""
    member = member_in(Phase.SETTLED)
    joined(member, view([ME, PEER], brokers=()))
    member.drive(view([ME, PEER], brokers=()))
    assert member.state.phase is Phase.WAITING
    assert "no brokers" in member.state.waiting_for
    assert member.state.serving == tps(0, 1, 2, 3)


def test_an_unknown_topic_is_a_waiting_state() -> None:
    """A member waits for a missing topic, names it, and delivers the other topics."""
    member = Member(subscription={"t": 1, "u": 1})
    member.register()
    member.read()
    member.claim()
    member.load()
    member.verify()
    assert member.state.phase is Phase.WAITING
    assert "u does not exist" in member.state.waiting_for
    assert member.state.serving == tps(0, 1, 2, 3)


def test_a_peer_that_cannot_be_evaluated_is_named() -> None:
    """If this member cannot evaluate another member's pattern, it keeps its own partitions."""
    member = member_in(Phase.SETTLED)
    group = view([ME], {"t": 6}, wildcards={"g_w": "over 1 s"})
    notice = one(joined(member, group), cmd.Notice)
    assert (notice.kind, notice.where) == (cmd.NoticeKind.UNSUPPORTED_PEER, "g_w")
    member.drive(group)
    assert member.state.phase is Phase.WAITING
    assert member.state.serving == tps(0, 1, 2, 3)
    fresh = member_in(Phase.READING)
    fresh.read(group)
    assert not of(fresh.log, cmd.Claim)


def test_a_member_with_a_pattern_follows_the_matching_topics() -> None:
    """A member with a pattern claims new matching topics and releases deleted ones."""
    member = Member(subscription={"t.*": 1}, pattern=Pattern.WHITE_LIST)
    member.register()
    member.drive(view([], {}, wildcards={ME: {}}))
    assert member.state.phase is Phase.WAITING
    assert member.state.waiting_for == "no topic matches the white_list t.*"
    for topics in ({"t": 2}, {"t": 2, "t2": 1}, {"t2": 1}):
        member.send(ev.Triggered, trigger=ev.Trigger.TOPICS)
        member.drive(view([], topics, wildcards={ME: dict.fromkeys(topics, 1)}))
        owned = {TopicPartition(name, n) for name, count in topics.items() for n in range(count)}
        assert (member.state.phase, set(member.state.serving)) == (Phase.SETTLED, owned)


def test_subscriptions_that_the_release_has_no_assignment_for() -> None:
    """If 0.9's round-robin finds unequal subscriptions, the member keeps its partitions."""
    member = Member(strategy=Strategy.ROUND_ROBIN, profile=profile("0.9.0.1"))
    member.register()
    member.drive(view())
    group = view([ME], {"t": 4}, wildcards={"g_w": {"t": 1, "u": 1}})
    joined(member, group)
    member.drive(group)
    assert member.state.phase is Phase.WAITING
    assert "round-robin as in Kafka 0.8.2-0.10.1" in member.state.waiting_for
    assert member.state.serving == tps(0, 1, 2, 3)


def test_a_malformed_topic_is_named_as_malformed() -> None:
    """If JVM members cannot parse a topic znode, the member reports it and keeps its partitions."""
    member = member_in(Phase.SETTLED)
    group = view(topics={}, malformed_topics={"t": "no payload"})
    assert not of(joined(member, group), cmd.Notice)
    notice = one(member.wait(REPORT_S), cmd.Notice)
    assert (notice.kind, notice.where) == (cmd.NoticeKind.MALFORMED_TOPIC, "t")
    assert member.state.serving == tps(0, 1, 2, 3)


def test_a_malformed_peer_is_skipped_and_named_once() -> None:
    """A registration that JVM members cannot parse gets no partitions, and is reported once."""
    member = member_in(Phase.SETTLED)
    group = view(malformed={"g_bad": "not JSON"})
    joined(member, group)
    member.drive(group)
    assert one(member.wait(REPORT_S), cmd.Notice).kind is cmd.NoticeKind.MALFORMED_PEER
    joined(member, group)
    member.drive(group)
    assert not of(member.wait(2 * REPORT_S), cmd.Notice)
    assert member.state.owned.keys() == tps(0, 1, 2, 3)


@pytest.mark.parametrize("kind", ["registration", "topic", "broker"])
def test_what_can_be_read_within_a_second_is_not_reported(kind: str) -> None:
    """If a client writes a znode's payload with a second request, nothing is reported."""
    member = member_in(Phase.SETTLED)
    unread = {
        "registration": view(malformed={"g_new": "no payload"}),
        "topic": view(topics={}, malformed_topics={"t": "no payload"}),
        "broker": dataclasses.replace(view(), malformed_brokers={"1": "no payload"}),
    }
    joined(member, unread[kind])
    member.drive(unread[kind])
    assert not of(member.wait(0.9 * REPORT_S), cmd.Notice)
    member.send(ev.Triggered, trigger=ev.Trigger.REGISTRATION, subject="g_new")
    member.drive(view())
    assert not of(member.wait(2 * REPORT_S), cmd.Notice)


def test_an_unreadable_broker_is_reported_after_a_second() -> None:
    """A broker whose registration cannot be read is reported, but not if it changes in time."""
    member = member_in(Phase.SETTLED)
    unread = dataclasses.replace(view(), malformed_brokers={"1": "no payload"})
    joined(member, unread)
    member.drive(unread)
    member.send(ev.Triggered, trigger=ev.Trigger.BROKERS, subject="1")
    assert not of(member.wait(2 * REPORT_S), cmd.Notice)
    joined(member, unread)
    member.drive(unread)
    notice = one(member.wait(REPORT_S), cmd.Notice)
    assert (notice.kind, notice.where) == (cmd.NoticeKind.MALFORMED_BROKER, "/brokers/ids/1")


def test_a_lost_connection_postpones_the_report() -> None:
    """A report waits until the member has read the group again after a reconnect."""
    member = member_in(Phase.SETTLED)
    group = view(malformed={"g_bad": "not JSON"})
    joined(member, group)
    member.drive(group)
    member.send(ev.Suspended)
    assert not of(member.wait(2 * REPORT_S), cmd.Notice)
    member.connect()
    member.drive(view())
    assert not of(member.wait(2 * REPORT_S), cmd.Notice)


def test_a_deleted_topic_is_no_longer_fetched() -> None:
    """A deleted topic is no longer fetched; its owner znodes stay until the next rebalance."""
    member = member_in(Phase.SETTLED)
    done = member.send(ev.TopicDeleted, topic="t")
    assert one(done, cmd.Withdraw).partitions == tps(0, 1, 2, 3)
    assert one(done, cmd.RearmTopic).topic == "t"
    assert member.state.owned.keys() == tps(0, 1, 2, 3)
    joined(member, view(topics={}))
    member.drive(view(topics={}))
    assert not member.state.owned
    assert "t does not exist" in member.state.waiting_for


@pytest.mark.parametrize("phase", [Phase.READING, Phase.CLAIMING, Phase.LOADING, Phase.VERIFYING])
def test_a_topic_deleted_during_a_rebalance_is_read_again(phase: Phase) -> None:
    """If a topic is deleted in any phase of a rebalance, its partitions stop in the end."""
    member = member_in(phase)
    member.send(ev.TopicDeleted, topic="t")
    for _ in range(20):
        ended = member.state.phase in (Phase.SETTLED, Phase.WAITING)
        late = of(member.log, cmd.ReadView)[1:] and member.state.phase is Phase.READING
        if ended or (late and not member.state.read_again):
            break
        member.go_on(view())
    member.drive(view(topics={}))
    assert not member.state.serving


@pytest.mark.parametrize("between", ["seen absent", "not seen"])
def test_a_recreated_topic_is_claimed_again_with_a_warning(between: str) -> None:
    """If a topic was re-created, it is claimed again, with a warning about the old offsets."""
    member = member_in(Phase.SETTLED)
    old = dict(member.state.owned)
    member.send(ev.TopicDeleted, topic="t")
    if between == "seen absent":
        joined(member, view(topics={}))
        member.drive(view(topics={}))
    member.send(ev.Triggered, trigger=ev.Trigger.TOPIC)
    member.drive(view(czxid=2))
    assert cmd.NoticeKind.TOPIC_RECREATED in member.notices()
    assert member.state.serving == tps(0, 1, 2, 3)
    assert not set(old.values()) & set(member.state.owned.values())


def test_a_malformed_offset_is_owned_but_not_fetched() -> None:
    """If its offset is unreadable, a partition is claimed but not fetched, and this is reported."""
    member = member_in(Phase.LOADING)
    offsets = {tp: StoredOffset(5, 1) for tp in tps(0, 1, 2)}
    done = member.answer(
        ev.OffsetsLoaded(offsets | {T3: StoredOffset(None, 1, error="'x' is not an offset")})
    )
    assert one(done, cmd.StartFetching).grants.keys() == tps(0, 1, 2)
    member.drive()
    assert one(member.wait(REPORT_S), cmd.Notice).kind is cmd.NoticeKind.OFFSET_MALFORMED
    assert member.state.owned.keys() == tps(0, 1, 2, 3)


@pytest.mark.parametrize("when", ["at rest", "while it is read"])
def test_an_offset_that_changes_is_read_again(when: str) -> None:
    """When an unreadable offset's znode changes, the member reads it again, and reports nothing."""
    member = member_in(Phase.LOADING)
    bad = StoredOffset(None, 1, error="'x' is not an offset")
    if when == "while it is read":
        member.send(ev.OffsetNodeChanged, partition=T3)
    member.answer(ev.OffsetsLoaded({**dict.fromkeys(tps(0, 1, 2), StoredOffset(5, 1)), T3: bad}))
    if when == "at rest":
        member.drive()
        assert member.state.serving == tps(0, 1, 2)
        member.send(ev.OffsetNodeChanged, partition=T3)
    member.drive()
    assert member.state.serving == tps(0, 1, 2, 3)
    assert not of(member.wait(2 * REPORT_S), cmd.Notice)


def test_an_offset_that_may_not_be_read_is_read_again_after_the_back_off() -> None:
    """No watch reports new rights, so the member reads a refused offset after each back-off."""
    member = member_in(Phase.LOADING)
    shut = StoredOffset(None, None, error="forbidden")
    member.answer(ev.OffsetsLoaded({**dict.fromkeys(tps(0, 1, 2), StoredOffset(5, 1)), T3: shut}))
    member.drive()
    assert (member.state.phase, member.state.refused.keys()) == (Phase.WAITING, {T3})
    member.wait(member.state.settings.backoff_s)
    member.drive()
    assert (member.state.phase, member.state.serving) == (Phase.SETTLED, tps(0, 1, 2, 3))


def lost(**settings: Any) -> Member:
    """Return a member that was at 7 in partition 3, has lost it, and has claimed it again."""
    member = Member(**settings)
    member.settle()
    member.finished[T3] = 7
    member.send(ev.OwnerNodeChanged, partition=T3)
    while member.state.phase is not Phase.LOADING:
        member.go_on(view())
    return member


GONE = StoredOffset(None, None)


def test_a_kept_position_is_used_if_the_offset_is_gone() -> None:
    """Without a stored offset and an edit mark, a member continues at its position and warns."""
    member = lost()
    assert member.last(cmd.LoadOffsets).kept == tps(3)
    done = member.answer(ev.OffsetsLoaded({T3: GONE}))
    assert one(done, cmd.StartFetching).grants[T3][1] == 7
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.POSITION_KEPT
    member.drive()
    member.collected(Purpose.AUTO, tps(3))
    assert member.last(cmd.CommitOffsets).plan.writes == {T3: (7, None)}


def test_a_stored_offset_replaces_a_kept_position() -> None:
    """A stored offset decides, even if it is lower than the position that the member had."""
    done = lost().answer(ev.OffsetsLoaded({T3: StoredOffset(5, 1)}))
    assert one(done, cmd.StartFetching).grants[T3][1] == 5
    assert not of(done, cmd.Notice)


def test_a_kept_position_is_not_used_after_an_edit() -> None:
    """If an operator has edited the group's offsets since, `auto.offset.reset` decides."""
    member = lost()
    done = member.answer(ev.OffsetsLoaded({T3: GONE}, edit_czxid=member.zxid))
    assert one(done, cmd.StartFetching).grants[T3][1] is None


def test_a_kept_position_is_not_used_after_an_edit_in_restored_data() -> None:
    """In data restored from a backup, an edit with a lower zxid is newer than the position."""
    member = Member()
    member.zxid = 1_000
    member.settle()
    member.finished[T3] = 7
    member.connect(LATER)
    member.zxid = 500
    while member.state.phase is not Phase.LOADING:
        member.go_on(view())
    assert max(mine.epoch for mine in member.state.owned.values()) < 1_000
    done = member.answer(ev.OffsetsLoaded(dict.fromkeys(tps(0, 1, 2, 3), GONE), edit_czxid=490))
    assert {start for _, start in one(done, cmd.StartFetching).grants.values()} == {None}
    assert not of(done, cmd.Notice)


def test_a_kept_position_is_not_used_in_a_new_topic() -> None:
    """The position belongs to the topic that was deleted, so `auto.offset.reset` decides."""
    member = Member()
    member.settle()
    member.finished[T3] = 7
    member.send(ev.OwnerNodeChanged, partition=T3)
    while member.state.phase is not Phase.LOADING:
        member.go_on(view(czxid=2))
    done = member.answer(ev.OffsetsLoaded(dict.fromkeys(tps(0, 1, 2, 3), GONE)))
    assert one(done, cmd.StartFetching).grants[T3][1] is None


def test_without_automatic_commits_the_last_committed_offset_is_kept() -> None:
    """Messages that the user has not committed are redelivered, even if the offset is gone."""
    member = lost(auto_commit_s=None)
    done = member.answer(ev.OffsetsLoaded({T3: GONE}))
    assert one(done, cmd.StartFetching).grants[T3][1] == 10


def test_a_former_session_of_the_member_is_only_waited_for() -> None:
    """A registration of the member's own former session is no conflict, and is named once."""
    member = member_in(Phase.SETTLED)
    member.connect(LATER)
    done = member.answer(ev.IdTaken(SESSION.id))
    notice = one(done, cmd.Notice)
    assert notice.kind is cmd.NoticeKind.WAITING
    assert "this member's former session" in notice.text
    member.wait(member.state.settings.backoff_s)
    assert not of(member.answer(ev.IdTaken(SESSION.id)), cmd.Notice)
    assert member.state.rival == SESSION.id
    member.wait(member.state.settings.backoff_s)
    member.answer(ev.Registered(9))
    assert member.state.rival is None


def test_a_blocker_of_a_former_session_is_not_reported() -> None:
    """Owner znodes of the member's own former session end with that session, without a report."""
    member = member_in(Phase.SETTLED)
    member.connect(LATER)
    member.answer(ev.Registered(9))
    member.read()
    claim = member.last(cmd.Claim)
    blocked = dict.fromkeys(claim.partitions, Blocker(THREAD, SESSION.id))
    member.answer(ev.Claimed({}, blocked, {}))
    for _ in range(40):
        member.wait(0.5)
        if member.state.phase is Phase.READING:
            member.read()
        if member.state.phase is Phase.CLAIMING:
            member.answer(ev.Claimed({}, blocked, {}))
    assert cmd.NoticeKind.BLOCKED not in member.notices()


def test_an_owner_with_another_strategy_is_named() -> None:
    """Half a second after the first blocked claim, an owner's strategy is known from its share."""
    member = Member(strategy=Strategy.ROUND_ROBIN)
    member.register()
    group = view([FIRST, ME])
    member.read(group)
    shares = assign_all(group, Strategy.RANGE, DEFAULT)
    theirs = {tp for tp, thread in shares.items() if thread == f"{FIRST}-0"}
    blocked = theirs.intersection(member.last(cmd.Claim).partitions)
    unknown = dict.fromkeys(blocked, UNKNOWN_BLOCKER)
    member.answer(ev.Claimed({}, unknown, {}))
    member.drive(group)
    assert (member.state.phase, member.state.blocked.reason) == (Phase.WAITING, "")
    member.wait(ASK_S)
    assert member.last(cmd.Claim).ask >= blocked
    owners = dict.fromkeys(theirs, f"{FIRST}-0")
    who = dict.fromkeys(blocked, Blocker(f"{FIRST}-0", 0xC3))
    member.answer(ev.Claimed({}, who, {}, owners=owners))
    assert "range" in member.state.blocked.reason


def test_an_owner_that_still_releases_is_not_named() -> None:
    """An owner that owns more than its share has not yet released, so it follows any strategy."""
    member = Member()
    member.register()
    group = view([FIRST, ME])
    member.read(group)
    blocked = [*member.last(cmd.Claim).partitions]
    member.claim(*blocked)
    member.wait(ASK_S)
    owners = dict.fromkeys(tps(0, 1, 2, 3), f"{FIRST}-0")
    who = dict.fromkeys(blocked, Blocker(f"{FIRST}-0", 0xC3))
    member.answer(ev.Claimed({}, who, {}, owners=owners))
    assert member.state.blocked.reason == ""


def test_an_owner_that_changes_is_read_again() -> None:
    """When the payload of a blocking owner znode changes, the member reads the owner again."""
    member = member_in(Phase.CLAIMING)
    member.claim(T3)
    member.drive()
    assert member.state.phase is Phase.WAITING
    member.now += member.state.settings.backoff_s
    done = member.send(ev.OwnerNodeChanged, partition=T3)
    claim = one(done, cmd.Claim)
    assert (claim.known, claim.ask) == ({}, {T3})


def test_a_mended_offset_is_fetched_with_the_next_rebalance() -> None:
    """Each rebalance reads an unreadable offset again; delivery starts when it is readable."""
    member = member_in(Phase.LOADING)
    bad = StoredOffset(None, 1, error="'x' is not an offset")
    member.answer(ev.OffsetsLoaded(dict.fromkeys(tps(0, 1, 2, 3), bad)))
    member.verify()
    assert len(of(member.wait(REPORT_S), cmd.Notice)) == 4
    joined(member, view())
    member.answer(ev.OffsetsLoaded(dict.fromkeys(tps(0, 1, 2, 3), bad)))
    member.drive()
    assert not of(member.wait(2 * REPORT_S), cmd.Notice)
    joined(member, view())
    member.load(7)
    assert member.state.serving == tps(0, 1, 2, 3)


def test_a_session_that_was_settled_stays_so() -> None:
    """If a reading finds the group unchanged, nothing is released, claimed or fetched anew."""
    member = member_in(Phase.SETTLED)
    before = len(member.log)
    joined(member, view())
    member.drive()
    busy = (cmd.AskRelease, cmd.Release, cmd.Claim, cmd.LoadOffsets, cmd.StartFetching)
    assert not [c for c in member.log[before:] if isinstance(c, busy)]
    assert member.state.session == SESSION


def test_a_recreated_topic_is_claimed_again_after_a_lost_connection() -> None:
    """After a lost connection, the old claims of a re-created topic are still replaced."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Triggered, trigger=ev.Trigger.TOPIC)
    member.read(view(czxid=2))
    member.user_finishes(tps(0, 1, 2, 3))
    assert member.state.phase is Phase.RELEASING
    old = dict(member.state.owned)
    member.send(ev.Suspended)
    member.connect()
    member.drive(view(czxid=2))
    assert member.state.serving == tps(0, 1, 2, 3)
    assert not set(old.values()) & set(member.state.owned.values())


# ---- a group that changes all the time ----------------------------------------------------------


def test_a_changed_group_is_read_again_before_a_claim() -> None:
    """If the group changes during a reading, the member reads again before it claims."""
    member = member_in(Phase.READING)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    assert one(member.read(), cmd.ReadView)
    assert one(member.read(), cmd.Claim)


def test_a_group_that_changes_all_the_time_does_not_prevent_a_claim() -> None:
    """If the group changes in every reading, the member claims after `MAX_POSTPONED_READS`."""
    member = member_in(Phase.READING)
    for _ in range(MAX_POSTPONED_READS):
        member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
        assert one(member.read(), cmd.ReadView)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    assert one(member.read(), cmd.Claim)
    assert one(member.claim(), cmd.LoadOffsets)
    done = member.load()
    assert one(done, cmd.StartFetching).grants.keys() == tps(0, 1, 2, 3)
    assert one(done, cmd.ReadView), "the postponed change was not read"
    member.drive()
    assert (member.state.phase, member.state.postponed_reads) == (Phase.SETTLED, 0)


def test_a_revocation_is_never_postponed() -> None:
    """Revocations are not postponed, however often the group changes."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    assert one(member.read(TWO), cmd.AskRelease).partitions == tps(2, 3)
