"""Who lives in a group, from one reading or two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from zkconsumer.protocol.group_health import (
    RECENT_S,
    GroupReading,
    GroupState,
    LastWrite,
    as_threads,
    blocked,
    group_health,
    owner_of,
    unclaimed,
)
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import OwnerZnode

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
UUID = "knode_7b664118-958e-40d8-b3c5-0aede349b15e"


def reading(
    members: Mapping[str, int] | None = None,
    owners: Mapping[TopicPartition, tuple[str, int]] | None = None,
    writes: Mapping[TopicPartition, tuple[int, int]] | None = None,
) -> GroupReading:
    """A reading: member -> session, partition -> (owner, session), partition -> (mzxid,
    version)."""
    return GroupReading(
        members or {},
        {tp: OwnerZnode(text, session, 1) for tp, (text, session) in (owners or {}).items()},
        {
            tp: LastWrite(mzxid, version, 1_000 * mzxid)
            for tp, (mzxid, version) in (writes or {}).items()
        },
    )


def test_a_registered_member_lives_in_the_group() -> None:
    """A registration with a session is a live member, and its owner znodes are owned."""
    health = group_health(reading({"g_a": 7}, {T0: ("g_a-0", 7)}))
    assert (health.live, health.owned) == ({"g_a": 7}, {T0: "g_a"})
    assert health.state is GroupState.LIVE
    assert not health.other_clients


def test_znodes_without_a_session_are_left_over() -> None:
    """A persistent registration is no member, and a persistent owner znode owns nothing."""
    health = group_health(reading({"g_a": 0}, {T0: ("g_a-0", 0)}))
    assert (health.live, health.owned) == ({}, {})
    assert (health.leftovers, health.leftover_owners) == (("g_a",), (T0,))
    assert health.state is GroupState.LEFTOVER


def test_a_bare_consumer_id_is_a_member_of_another_client() -> None:
    """An owner znode that holds a registered id as it is belongs to that member."""
    health = group_health(reading({UUID: 7}, {T0: (UUID, 7)}))
    assert health.owned == {T0: UUID}
    assert health.other_clients == {UUID}
    assert not health.unregistered_owners


def test_a_bare_id_that_is_not_registered_is_cut_as_the_jvm_cuts_it() -> None:
    """Only a registered id is taken whole; any other text is a thread id."""
    assert owner_of(UUID, ()) == UUID.rpartition("-")[0]
    assert owner_of("g_a-12", ("g_a",)) == "g_a"
    assert as_threads({T0: UUID, T1: "g_a-1"}, (UUID,)) == {T0: f"{UUID}-0", T1: "g_a-1"}


def test_an_owner_without_a_registration() -> None:
    """A session that owns a partition and has not registered uses the group."""
    health = group_health(reading(owners={T0: ("g_a-0", 7)}))
    assert health.unregistered_owners == {T0: 7}
    assert health.state is GroupState.UNREGISTERED


def test_one_reading_shows_no_writer() -> None:
    """The time of the last write alone does not tell a stopped member from a writer."""
    health = group_health(reading(writes={T0: (5, 3)}))
    assert not health.writers
    assert health.state is GroupState.IDLE
    assert health.write_age_s(7.0) == 2.0


def test_a_write_between_two_readings_shows_a_writer() -> None:
    """Each write between the readings counts; an offset that was not written does not."""
    before = reading(writes={T0: (5, 3), T1: (6, 1)})
    health = group_health(reading(writes={T0: (9, 6), T1: (6, 1)}), before)
    assert health.writers == {T0: 3}
    assert health.state is GroupState.UNREGISTERED


def test_a_new_offset_znode_counts_its_writes() -> None:
    """An offset znode that was created between the readings was written."""
    before = reading(writes={T1: (5, 8)})
    health = group_health(reading(writes={T0: (9, 0), T1: (9, 1)}), before)
    assert health.writers == {T0: 1, T1: 2}


def test_members_that_own_the_partition_are_no_writers() -> None:
    """The owner at either reading explains the write: a member commits before it releases."""
    owned, free = {T0: ("g_a-0", 7)}, {T0: (9, 6)}
    members, old = {"g_a": 7}, {T0: (5, 3)}
    assert not group_health(reading(members, owned, free), reading(members, None, old)).writers
    assert not group_health(reading(None, None, free), reading(members, owned, old)).writers
    stranger = reading(members, {T0: ("g_a-0", 0)}, old)
    assert group_health(reading(members, None, free), stranger).writers == {T0: 3}


def test_a_writer_beside_members() -> None:
    """A writer of a partition that no member owns is found even if the group has members."""
    members, owned = {"g_a": 7}, {T0: ("g_a-0", 7)}
    before = reading(members, owned, {T0: (5, 0), T1: (5, 0)})
    health = group_health(reading(members, owned, {T0: (6, 1), T1: (6, 1)}), before)
    assert health.writers == {T1: 1}
    assert health.state is GroupState.LIVE


def test_what_keeps_a_group_from_settling() -> None:
    """A partition is claimed by its consumer, by another one, or by none."""
    assigned = {T0: "g_a-0", T1: "g_b-0"}
    assert unclaimed(assigned, {T0}) == {T1: "g_b-0"}
    assert blocked(assigned, {T0: "g_a", T1: "g_a"}) == {T1: "g_b"}
    assert blocked(assigned, {TopicPartition("other", 0): "g_a"}) == {}


def test_a_writer_of_foreign_znodes() -> None:
    """Each write to a znode that no consumer keeps counts, with members and without."""

    def with_foreign(members: Mapping[str, int], **writes: tuple[int, int]) -> GroupReading:
        foreign = {path: LastWrite(mzxid, n, 1_000 * mzxid) for path, (mzxid, n) in writes.items()}
        return replace(reading(members), foreign=foreign)

    before = with_foreign({}, a=(5, 0), b=(5, 1), gone=(4, 4))
    assert group_health(before).write_age_s(7.0) == 2.0
    health = group_health(with_foreign({}, a=(9, 2), b=(5, 1), new=(9, 0)), before)
    assert (health.writers, health.foreign_writers) == ({}, {"a": 2, "new": 1})
    assert health.state is GroupState.UNREGISTERED
    beside = group_health(with_foreign({"g_a": 7}, a=(9, 1)), before)
    assert (beside.state, beside.is_written) == (GroupState.LIVE, True)


def test_the_age_of_a_write() -> None:
    """Writes of owned partitions and old writes have no age; a time in the future counts as now."""
    owned = group_health(reading({"g_a": 7}, {T0: ("g_a-0", 7)}, {T0: (5, 3)}))
    assert owned.write_age_s(6.0) is None
    free = group_health(reading(writes={T0: (5, 3)}))
    assert free.write_age_s(5.0 + RECENT_S) == RECENT_S
    assert free.write_age_s(6.0 + RECENT_S) is None
    assert free.write_age_s(2.0) == 0.0
