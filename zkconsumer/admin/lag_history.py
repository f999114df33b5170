"""What repeated readings of groups show: who uses a group, and how its partitions move."""

from __future__ import annotations

from collections.abc import Iterable

from zkconsumer.admin.health import HealthTracker
from zkconsumer.admin.lag import (
    PATIENCE_S,
    WINDOW,
    CommitWindow,
    GroupLag,
    PartitionLag,
    Status,
    StoreWatch,
    TailCheck,
)
from zkconsumer.protocol.group_health import GroupHealth
from zkconsumer.protocol.model import TopicPartition


class LagHistory:
    """The readings of a tool that reads groups again and again.

    Args:
        patience_s: the longest normal time between two commits, in seconds.
        allowed_lag: the lag, in messages, up to which a partition is OK.
        window: the number of commits of a partition that are kept.

    Attributes:
        tails, stores: the arguments of `group_lags` with these names.
    """

    def __init__(
        self, *, patience_s: float = PATIENCE_S, allowed_lag: int = 0, window: int = WINDOW
    ) -> None:
        self._allowed_lag, self._window = allowed_lag, window
        self.tails, self.stores = TailCheck(), StoreWatch()
        self._patience_s = patience_s
        self._memory = HealthTracker(patience_s)
        self._healths: dict[str, GroupHealth] = {}
        self._windows: dict[tuple[str, TopicPartition], CommitWindow] = {}
        self._now_s = 0.0

    def keep(self, groups: Iterable[str]) -> None:
        """Forget all other groups."""
        kept = set(groups)
        for one in (self._memory, self.tails, self.stores):
            one.keep(kept)
        self._healths = {name: one for name, one in self._healths.items() if name in kept}
        self._windows = {key: one for key, one in self._windows.items() if key[0] in kept}

    def observe(self, group: GroupLag, now_s: float) -> GroupHealth:
        """Record a reading at `now_s`, in seconds since 1970; return who uses the group."""
        self._now_s = now_s
        self._healths[group.name] = health = self._memory.observe(group.image, now_s)
        for one in group.partitions:
            self._windows.setdefault((group.name, one.tp), CommitWindow(self._window)).observe(
                one, now_s
            )
        return health

    def health(self, group: GroupLag) -> GroupHealth:
        """Return who uses the group, judged by the readings so far."""
        return self._healths[group.name]

    def window(self, group: str, one: PartitionLag) -> CommitWindow:
        """Return the last commits of a partition that was read."""
        return self._windows[group, one.tp]

    def status(self, group: str, one: PartitionLag) -> Status | None:
        """Return the status of a partition, judged by the readings so far."""
        window = self.window(group, one)
        return window.status(
            self._now_s, patience_s=self._patience_s, allowed_lag=self._allowed_lag
        )
