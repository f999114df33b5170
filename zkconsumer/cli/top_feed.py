"""The data of `zkconsumer top`: a thread reads a cluster's groups, and `top_app` paints them.

A thread reads the groups in slices and rests after each, so that all readings together take at
most `SHARE` of a core. The groups on the screen are read first in each round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from zkconsumer.cli.options import Connection
from zkconsumer.errors import (
    UnknownGroupError,
    ZkConsumerError,
)
from zkconsumer.frozen import dataclass
from zkconsumer.protocol import paths

if TYPE_CHECKING:
    from zkconsumer.admin.findings import Finding
    from zkconsumer.admin.groups import GroupSummary
    from zkconsumer.admin.lag import GroupLag, Status
    from zkconsumer.admin.lag_history import LagHistory
    from zkconsumer.kafka.logs import BrokerReading, KeptLogs
    from zkconsumer.protocol.group_health import GroupHealth
    from zkconsumer.zk.client import ZooKeeperClient
    from zkconsumer.zk.clients import ClientAddresses

SHARE: Final = 0.05
"""Part of a core that `top` may take. After a slice, the thread rests for c / SHARE seconds, where
c is the processor time since the last rest. So with 5,000 groups a round takes longer."""

SLICE: Final = 200
"""Groups that are read together: a slice takes about 0.1 s of processor time."""

DOCTOR_EVERY_S: Final = 10.0
"""Seconds between two examinations of the group that is shown."""


DOCTOR_PATIENCE_S: Final = 1.0
"""Seconds between the doctor's two readings, during which the screen is not updated. The screen's
own readings show a client that commits less often without a registration."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the list.

    Attributes:
        members: members with a session; None if ZooKeeper denies access to their list.
        lag: messages behind in all partitions whose lag is known; None if no lag is known.
        unknown: number of partitions whose lag is unknown, or whose offset is beyond the log.
        beyond: number of partitions whose offset is beyond the end of the log.
        rate: committed messages per second between the last two readings, if there are two.
        status: the worst status of a partition.
        empty: the state of the group if no member is registered (`GroupState`).
    """

    name: str
    members: int | None
    partitions: int | None = None
    lag: int | None = None
    unknown: int = 0
    beyond: int = 0
    rate: float | None = None
    status: str | None = None
    empty: str = "idle"

    @property
    def state(self) -> str:
        """Who uses the group, in one word."""
        if self.members is None:
            return "denied"
        return "live" if self.members else self.empty


@dataclass(frozen=True)
class Detail:
    """One group with its partitions' rates and statuses, the findings of the doctor, and the
    addresses of ZooKeeper's clients; the last two are None before the first examination."""

    group: GroupLag
    health: GroupHealth
    rates: dict[tuple[str, int], float]
    statuses: dict[tuple[str, int], Status | None]
    findings: Sequence[Finding] | None = None
    addresses: ClientAddresses | None = None


# ---- reading -------------------------------------------------------------------------------------


_WORST = ("STOPPED", "STALLED", "REWOUND", "WARNING", "OK")


def row_of(group: GroupLag, history: LagHistory) -> GroupRow:
    """Return the row of a group that was read, and add the reading to the history."""
    health = history.observe(group, time.time())
    lags = [one.messages for one in group.partitions]
    known = [lag for lag in lags if isinstance(lag, int) and lag >= 0]
    rates = [
        rate
        for one in group.partitions
        if (rate := history.window(group.name, one).rate) is not None
    ]
    observed = [history.status(group.name, one) for one in group.partitions]
    statuses = {status.value for status in observed if status is not None}
    image = group.image
    members = len(health.live) + len(image.unread_members)
    return GroupRow(
        group.name,
        None if image.refusal(paths.ids(group.name)) else members,
        empty=replace(health, live={}).state.value,
        partitions=len(lags),
        lag=sum(known) if known or not (lags or image.has_unknown_partitions) else None,
        unknown=len(lags) - len(known),
        beyond=sum(isinstance(lag, int) and lag < 0 for lag in lags),
        rate=sum(rates) if rates else None,
        status=next((one for one in _WORST if one in statuses), None),
    )


def _summary_row(one: GroupSummary) -> GroupRow:
    empty = "leftover" if one.leftovers else "idle"
    return GroupRow(one.name, None if one.fault else one.members or 0, empty=empty)


class Feed:
    """Reads groups on its own thread and reports rows, details and faults.

    Attributes:
        visible: the groups on the screen, which are read first.
        shown: the group whose details are shown, or None.
    """

    def __init__(self, connection: Connection, *, interval_s: float) -> None:
        self._connection = connection
        self._interval_s = interval_s
        from zkconsumer.admin.lag_history import LagHistory

        # The details of a group are read with its offsets in Kafka, and the list without them.
        self._history, self._detailed = LagHistory(), LagHistory()
        self._kept: KeptLogs | None = None
        self._stopped, self._woken = threading.Event(), threading.Event()
        # The group that was examined last, the time of this, and the results.
        self._examined: tuple[str, float, Sequence[Finding], ClientAddresses | None]
        self._examined = "", 0.0, (), None
        self.visible: tuple[str, ...] = ()
        self.shown: str | None = None

    def show(self, group: str | None) -> None:
        """Choose the group whose details are read, or None for the list."""
        self.shown = group
        self._woken.set()

    def refresh(self) -> None:
        """Start the next reading at once."""
        self._woken.set()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End `run` after its current request."""
        self._stopped.set()
        self._woken.set()

    def run(
        self,
        on_rows: Callable[[Sequence[GroupRow], bool], object],
        on_detail: Callable[[Detail], object],
        on_fault: Callable[[str], object],
    ) -> None:
        """Read until `stop`.

        Args:
            on_rows: gets rows, and whether they are all groups of the cluster.
            on_detail: gets the details of the group that is shown.
            on_fault: gets the text of an error, and "" after the next success.
        """
        with self._connection.connect() as zk:
            while not self._stopped.is_set():
                self._woken.clear()
                zk.recreate_if_dead()
                try:
                    if self.shown is not None:
                        self._detail(zk, self.shown, on_detail)
                    else:
                        self._round(zk, on_rows)
                    on_fault("")
                except ZkConsumerError as error:
                    on_fault(str(error))
                self._woken.wait(self._interval_s)

    # ---- the list --------------------------------------------------------------------------------

    def _round(self, zk: ZooKeeperClient, on_rows: Callable[..., object]) -> None:
        """Read all groups once, the visible ones first."""
        from zkconsumer.admin.groups import groups

        started = time.process_time()
        summaries = groups(zk)
        names = [one.name for one in summaries]
        self._history.keep(names)
        self._detailed.keep(names)
        reading = self._logs(zk).reading()
        on_rows(list(map(_summary_row, summaries)), True)
        # A dict instead of a set, because a dict keeps the order.
        left = {one.name: None for one in summaries}
        while left:
            visible = [name for name in self.visible if name in left]
            now = visible or list(islice(left, SLICE))
            for name in now:
                del left[name]
            on_rows(self._slice(zk, now, reading), False)
            # CPU time of all threads: kazoo's thread decodes the replies, and the main thread
            # paints.
            now_s = time.process_time()
            used, started = now_s - started, now_s
            if self._woken.wait(used / SHARE if left else 0):
                return  # the user has switched to another view

    def _slice(
        self, zk: ZooKeeperClient, names: Sequence[str], reading: BrokerReading
    ) -> list[GroupRow]:
        """Read some groups, as far as this client may read them."""
        from zkconsumer.admin.lag import group_lags, unasked_kafka

        # Kafka's offsets would take a request per group; only the details of a group read them.
        found = group_lags(
            zk,
            names,
            limit_s=self._limit_s(zk),
            logs=reading.ends,
            kafka=unasked_kafka,
            tails=self._history.tails,
        )
        return [row_of(one, self._history) for one in found.values()]

    # ---- one group -------------------------------------------------------------------------------

    def _detail(
        self, zk: ZooKeeperClient, name: str, on_detail: Callable[[Detail], object]
    ) -> None:
        from zkconsumer.admin.doctor import doctor, kafka_logs
        from zkconsumer.admin.groups import unknown_group
        from zkconsumer.admin.lag import group_lags
        from zkconsumer.zk.clients import client_addresses

        reading = self._logs(zk).reading()
        group = group_lags(
            zk,
            [name],
            limit_s=self._limit_s(zk),
            logs=reading.ends,
            kafka=reading.committed,
            tails=self._detailed.tails,
            stores=self._detailed.stores,
        ).get(name)
        if group is None:
            raise unknown_group(name, zk)
        health = self._detailed.observe(group, time.time())
        rates, statuses = {}, {}
        for one in group.partitions:
            statuses[one.topic, one.partition] = self._detailed.status(name, one)
            rate = self._detailed.window(name, one).rate
            if rate is not None:
                rates[one.topic, one.partition] = rate
        last, at_s, findings, addresses = self._examined
        known = Detail(group, health, rates, statuses)
        if last == name:
            known = replace(known, findings=findings, addresses=addresses)
        on_detail(known)
        if last == name and time.monotonic() - at_s < DOCTOR_EVERY_S:
            return
        try:
            findings = doctor(
                zk, [name], ask_logs=kafka_logs(self._limit_s(zk)), patience_s=DOCTOR_PATIENCE_S
            )
        except UnknownGroupError:
            return
        addresses = client_addresses(zk.config)
        self._examined = name, time.monotonic(), findings, addresses
        on_detail(replace(known, findings=findings, addresses=addresses))

    def _logs(self, zk: ZooKeeperClient) -> KeptLogs:
        from zkconsumer.kafka.logs import KeptLogs

        self._kept = self._kept or KeptLogs(limit_s=self._limit_s(zk))
        return self._kept

    def _limit_s(self, zk: ZooKeeperClient) -> float:
        return zk.config.zookeeper_connection_timeout_s


# ---- order and filter ----------------------------------------------------------------------------


SORTS: Final = ("lag", "state", "name", "members", "rate", "status")


def ordered(rows: Iterable[GroupRow], *, by: str, reverse: bool, containing: str) -> list[GroupRow]:
    """Return the rows whose names contain a text, sorted; equal rows are sorted by name.

    The default direction puts first what needs attention: an offset beyond the end of its log, the
    highest lag, the worst status.
    """

    def key(row: GroupRow) -> tuple[object, ...]:
        match by:
            case "lag":
                return not row.beyond, row.lag is None, -(row.lag or 0)
            case "members":
                return row.members is None, -(row.members or 0)
            case "rate":
                return row.rate is None, -(row.rate or 0)
            case "status":
                return (_WORST.index(row.status) if row.status else len(_WORST),)
            case "state":
                return row.state != "live", row.lag is None, -(row.lag or 0)
        return ()

    wanted = containing.lower()
    found = [row for row in rows if wanted in row.name.lower()]
    return sorted(found, key=lambda row: (*key(row), row.name), reverse=reverse)
