"""A real session expires in each phase of a rebalance, while its member is alive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from enum import Enum
from functools import partial

import pytest
from kazoo.client import KazooClient
from support.internals import client_of, member_of, observers_of
from support.members.crew import LIMIT_S, MEASURED, Crew, LocalMember, wait_for
from support.zk.takeover import expire

from zkconsumer.consumer import group_member
from zkconsumer.member import rebalance
from zkconsumer.member.commands import Command
from zkconsumer.member.events import Event
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import State
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition

PARTITIONS = 8
NEVER_S = 3600.0

pytestmark = pytest.mark.usefixtures("topic")


class Recovery(Enum):
    """How far the client has recovered when the member continues with the phase."""

    AT_ONCE = "its requests use the session that has ended"
    RECONNECTED = "its requests of the old session arrive in the new session"
    OVERTAKEN = "its requests arrive after other members have taken all its partitions"


class ExpiryAtPhase:
    """Expires a member's session when it enters a phase, before its first action there.

    The member's thread calls `write` in place of the trace's writer. An expired session
    has no lease, so `write` closes the gate first. In a real expiry, the lease in the member's
    state also ends before other members can take over. So after a take-over `write` waits until
    this lease has ended.
    """

    def __init__(self, crew: Crew, member: LocalMember, phase: Phase, recovery: Recovery) -> None:
        self._crew, self._member, self._phase, self._recovery = crew, member, phase, recovery
        self._connector = member.connector
        self.has_happened = threading.Event()
        # There is no other hook on the member's thread.
        observers = observers_of(self._connector)
        self._write_trace = observers["trace"]
        observers["trace"] = self.write

    def write(self, before: State, event: Event, after: State, commands: Iterable[Command]) -> None:
        self._write_trace(before, event, after, commands)
        entered = after.phase is self._phase and before.phase is not self._phase
        if not entered or self.has_happened.is_set():
            return
        client, gate = client_of(self._connector), member_of(self._connector).gate
        identity = client.client_id
        gate.shut()
        expire(self._crew.zookeeper, identity)
        if self._recovery is not Recovery.AT_ONCE:
            wait_for(lambda: _is_new(client, identity), "a new session")
        if self._recovery is Recovery.OVERTAKEN:
            wait_for(self._is_overtaken, "others to own everything")
            wait_for(lambda: not after.lease.holds(gate.clock()), "the lease to end")
        self.has_happened.set()

    def _is_overtaken(self) -> bool:
        others = [one for one in self._crew.members if one is not self._member]
        return sum(len(one.owned) for one in others if one.phase == "settled") == PARTITIONS


Scene = Callable[[Crew, KazooClient, Phase, Recovery], None]


def _pair(crew: Crew) -> tuple[LocalMember, LocalMember]:
    member, partner = crew.join_here(**MEASURED), crew.join_here(**MEASURED)
    crew.settle(member, partner)
    crew.flowing(member, partner)
    return member, partner


def _await_expiry(expiry: ExpiryAtPhase, phase: Phase) -> None:
    assert expiry.has_happened.wait(LIMIT_S), f"never {phase.value}"


def _another_joins(crew: Crew, _: KazooClient, phase: Phase, recovery: Recovery) -> None:
    # A late commit of the member conflicts only if another commit came before it.
    member = crew.join_here(auto_commit_interval_s=NEVER_S, **MEASURED)
    crew.settle(member)
    crew.flowing(member)
    member.connector.commit_offsets(timeout_s=LIMIT_S)
    crew.flowing(member)
    expiry = ExpiryAtPhase(crew, member, phase, recovery)
    partner = crew.join_here(auto_commit_interval_s=NEVER_S, **MEASURED)
    _await_expiry(expiry, phase)
    crew.settle(member, partner)
    crew.flowing(member, partner)
    for one in (member, partner):
        one.connector.commit_offsets(timeout_s=LIMIT_S)


def _another_leaves(crew: Crew, _: KazooClient, phase: Phase, recovery: Recovery) -> None:
    member, partner = _pair(crew)
    expiry = ExpiryAtPhase(crew, member, phase, recovery)
    partner.leave()
    _await_expiry(expiry, phase)
    crew.settle(member)
    crew.flowing(member)


def _its_id_is_deleted(crew: Crew, admin: KazooClient, phase: Phase, recovery: Recovery) -> None:
    member, partner = _pair(crew)
    expiry = ExpiryAtPhase(crew, member, phase, recovery)
    admin.delete(paths.member(crew.group, member.consumer))
    _await_expiry(expiry, phase)
    crew.settle(member, partner)
    crew.flowing(member, partner)


def _another_is_in_the_way(
    crew: Crew, admin: KazooClient, phase: Phase, recovery: Recovery
) -> None:
    (topic,) = crew.counts
    path = paths.owner(crew.group, TopicPartition(topic, 0))
    admin.create(path, b"stranger-0", ephemeral=True, makepath=True)
    member = crew.join_here(**MEASURED)
    expiry = ExpiryAtPhase(crew, member, phase, recovery)
    _await_expiry(expiry, phase)
    crew.flowing(member)
    admin.delete(path)
    crew.settle(member)
    crew.flowing(member)


def _it_leaves(crew: Crew, _: KazooClient, phase: Phase, recovery: Recovery) -> None:
    member, partner = _pair(crew)
    expiry = ExpiryAtPhase(crew, member, phase, recovery)
    member.leave()
    _await_expiry(expiry, phase)
    crew.settle(partner)
    crew.flowing(partner)


SCENES: dict[Phase, Scene] = {
    Phase.REGISTERING: _its_id_is_deleted,
    Phase.RECOVERING: _its_id_is_deleted,
    Phase.READING: _another_joins,
    Phase.STOPPING: _another_joins,
    Phase.COMMITTING: _another_joins,
    Phase.RELEASING: _another_joins,
    Phase.VERIFYING: _another_joins,
    Phase.SETTLED: _another_joins,
    Phase.CLAIMING: _another_leaves,
    Phase.LOADING: _another_leaves,
    Phase.WAITING: _another_is_in_the_way,
    Phase.LEAVING: _it_leaves,
}
# Scenes in which no other member could take over.
LONELY = (_another_leaves, _another_is_in_the_way)
CASES = [
    (phase, recovery)
    for phase, scene in SCENES.items()
    for recovery in Recovery
    if recovery is not Recovery.OVERTAKEN or scene not in LONELY
]


def test_every_phase_has_a_scene() -> None:
    """Only the phases without a session, and those of a listener, have no scene."""
    needless = {Phase.OFFLINE, Phase.CLOSED, Phase.BEFORE_RELEASE, Phase.BEFORE_START}
    assert set(Phase) - SCENES.keys() == needless


@pytest.mark.parametrize(
    ("phase", "recovery"),
    CASES,
    ids=[f"{phase.value}-{recovery.name.lower()}" for phase, recovery in CASES],
)
def test_expiry(
    crew: Crew,
    admin: KazooClient,
    phase: Phase,
    recovery: Recovery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a member expires in any phase, it claims again; no message and no offset is lost."""
    if phase is Phase.VERIFYING:
        # A settled member reads back its kept partitions at its next regular reading of the group,
        # 30 s later. With these settings the reading comes after a session timeout.
        monkeypatch.setattr(group_member, "REFRESH_S", 0.0)
        monkeypatch.setattr(rebalance, "REFRESH_SESSIONS", 1)
    SCENES[phase](crew, admin, phase, recovery)
    crew.finish()
    for member in crew.members:
        assert not {name for name in member.metrics() if name.startswith("foreign")}


def test_ten_expiries_in_a_row(crew: Crew, stack: ExitStack) -> None:
    """A member settles after ten successive expiries, each as soon as it has a session again."""
    member, partner = _pair(crew)
    client = client_of(member.connector)
    for _ in range(10):
        identity = client.client_id
        expire(crew.zookeeper, identity)
        wait_for(partial(_is_new, client, identity), "a new session")
    crew.settle(member, partner)
    crew.flowing(member, partner)
    crew.finish()


def _is_new(client: KazooClient, identity: tuple[int, bytes]) -> bool:
    return bool(client.connected and client.client_id != identity)
