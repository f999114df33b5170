"""What a member is doing, for its user to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.consumer.gate import LeaseGate
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.state import Phase, State
from zkconsumer.errors import ZkConsumerError, displayed


@dataclass(frozen=True, slots=True)
class Status:
    """What a member is doing, at one instant.

    Texts can be displayed as they are: what other clients wrote into ZooKeeper is escaped in them
    and cut after 400 characters.

    Attributes:
        phase: where it stands, a name of `core.state.Phase`.
        session: the ZooKeeper session's number, or None.
        owned: consumer thread id -> the partitions it owns.
        blocked: partition -> who holds what this member should own.
        idle_peers: partitions assigned to members that are registered but do not claim them.
        waiting_for: why nothing more can be done now; empty when nothing is missing.
        malformed_peers: consumer id -> why its registration fails every JVM member.
        refused: partition -> why ZooKeeper refuses it.
        unreadable_offsets: partitions that are owned but not fetched.
        lease_s: how long messages may still be delivered without hearing from ZooKeeper.
        error: why the member has ended by itself; None while it works, and after a shutdown.
    """

    phase: str
    session: int | None
    owned: Mapping[str, tuple[TopicPartition, ...]]
    blocked: Mapping[TopicPartition, str]
    idle_peers: frozenset[TopicPartition]
    waiting_for: str
    malformed_peers: Mapping[str, str]
    refused: Mapping[TopicPartition, str]
    unreadable_offsets: frozenset[TopicPartition]
    lease_s: float
    error: ZkConsumerError | None = None


def idle_status(phase: Phase) -> Status:
    """Of a connector without streams."""
    return Status(phase.value, None, {}, {}, frozenset(), "", {}, {}, frozenset(), 0.0)


def _waiting_for(state: State) -> str:
    if state.client_fault and state.phase is not Phase.CLOSED:
        return f"a new ZooKeeper client, since the last one failed: {state.client_fault}"
    return state.waiting_for


def status_of(state: State, gate: LeaseGate, error: ZkConsumerError | None = None) -> Status:
    """Of a member; `error` is what has ended it."""
    owned: dict[str, list[TopicPartition]] = {}
    for tp, mine in sorted(state.owned.items()):
        owned.setdefault(mine.thread, []).append(tp)
    return Status(
        phase=state.phase.value,
        session=state.session.id if state.session else None,
        owned={thread: tuple(held) for thread, held in owned.items()},
        blocked={tp: displayed(who.thread) for tp, who in state.blocked.items()},
        idle_peers=state.idle_peers,
        waiting_for=displayed(_waiting_for(state)),
        malformed_peers={
            displayed(name): displayed(why)
            for name, why in (state.view.malformed if state.view else {}).items()
        },
        refused=dict(state.refused),
        unreadable_offsets=state.malformed,
        lease_s=max(0.0, gate.deadline - gate.clock()),
        error=error,
    )
