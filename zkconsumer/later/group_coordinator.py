"""The group coordinator of one broker: `step(state, event, now_s) -> (state, replies)`.

A broker coordinates the groups of those partitions of `__consumer_offsets` that it leads. For other
groups it answers NOT_COORDINATOR. `FindCoordinator` is not answered here: every broker answers it
from the cluster's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zkconsumer.later.group_events import Event, Reply, Settings
from zkconsumer.protocol.later.subscriptions import Topic


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The state of a broker's group coordinator."""

    settings: Settings = Settings()
    topics: Mapping[str, Topic] = field(default_factory=dict)


Step = tuple[Coordinator, tuple[Reply, ...]]


def step(state: Coordinator, event: Event, now_s: float) -> Step:
    """Return the state after an event, and the replies to send, in their order."""
    raise NotImplementedError


def next_deadline(state: Coordinator) -> float:
    """Return when the next `Tick` is due, in the seconds of `now_s`; infinity for never."""
    raise NotImplementedError
