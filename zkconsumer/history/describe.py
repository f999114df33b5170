"""Read the files of servers into the tables of their groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from zkconsumer.errors import HistoryError
from zkconsumer.history.group_replay import GroupHistory
from zkconsumer.history.incidents import incidents
from zkconsumer.history.inputs import History, Problem, Server, zxid_of
from zkconsumer.history.logs import RowBatch
from zkconsumer.history.tables import Ownership, Tables, in_order

if TYPE_CHECKING:
    from zkconsumer.history.kafka_offsets import KafkaCommits

STATE_FORMAT: Final = 7
"""The format of `Description.state`; raise it when a class that a state contains changes."""

Progress = Callable[[int], None]
"""Receives the number of rows read so far."""


class KafkaSource(Protocol):
    """Where commits in Kafka come from; `kafka_offsets.KafkaLogs` reads brokers' logs."""

    def read(self, owners: Iterable[Ownership] = ()) -> KafkaCommits:
        """Return the commits; `owners` are the owners of partitions in ZooKeeper."""


class Described(NamedTuple):
    """The tables of a history, the problems of its files, and its first and last time.

    Attributes:
        snapshot: the file with the state at the beginning; "" if the state was unknown.
        skipped: the number of operations that precede this state and are left out.
        lifetimes: session -> when it began and ended; see `GroupHistory.lifetimes`.
        kafka: what the brokers' logs contain; None if none are read.
    """

    tables: Tables
    problems: list[Problem]
    groups: list[tuple[str, str]]
    rows: int
    from_ms: int
    until_ms: int
    snapshot: str = ""
    skipped: int = 0
    lifetimes: Mapping[int, tuple[int | None, int | None]] = MappingProxyType({})
    kafka: KafkaCommits | None = None


class Description:
    """Reads the files of servers into tables. Call `read` again to continue with the data that the
    servers have appended."""

    def __init__(
        self,
        servers: Sequence[Server],
        groups: Collection[str] = (),
        kafka: KafkaSource | None = None,
    ) -> None:
        """Create a description of these groups from the files of these servers; an empty list of
        groups means all groups. `kafka` are the logs of brokers, with commits of the groups."""
        self._kafka = kafka
        self._fold = GroupHistory(groups)
        self._problems: list[Problem] = []
        self._rows = 0
        self._snapshot = ""
        self._history = History(servers, after=self._begin(servers))

    @classmethod
    def resumed(cls, servers: Sequence[Server], state: bytes) -> Description:
        """Return a description that continues after `state`, which another description has
        returned.

        The state contains pickled objects, so it must come from a place that only you can write.
        """
        import pickle  # noqa: PLC0415 - 2 ms, and only Spark's pipeline keeps a state

        description = cls.__new__(cls)
        description._snapshot, description._kafka = "", None
        fold, problems, rows, zxid, found, overlapping = pickle.loads(state)
        description._fold, description._problems = fold, problems
        description._rows = rows
        description._history = History(servers, after=zxid, overlapping=overlapping)
        description._history.problems = found
        return description

    def state(self) -> bytes:
        """Return the state from which `resumed` continues. Call it before `result`."""
        import pickle  # noqa: PLC0415 - see `resumed`

        history = self._history
        state = (self._fold, self._problems, self._rows)
        return pickle.dumps((*state, history.last_zxid, history.problems, history.overlapping))

    @property
    def last_zxid(self) -> int:
        """The last transaction that has been read."""
        return self._history.last_zxid

    @property
    def skipped(self) -> int:
        """The number of rows that precede the state at the beginning and are left out."""
        return self._history.skipped

    @property
    def offsets(self) -> dict[str, int]:
        """Each log that has been opened, and the number of its bytes that have been read.

        Raises HistoryError if a log could not be read to its end.
        """
        return self._history.offsets

    def _begin(self, servers: Sequence[Server]) -> int:
        """Read the state before the first log from a snapshot, and return the zxid of the state.
        The snapshot is the newest readable one before the first log, or else the oldest one after
        it. Without a snapshot, and with logs that do not begin with the first transaction, the
        state at the beginning is unknown.
        """
        first = min((zxid_of(log) for one in servers for log in one.logs), default=2**63)
        snapshots = sorted((s for one in servers for s in one.snapshots), key=zxid_of)
        before = [one for one in snapshots if zxid_of(one) < first]
        after = [] if first <= 1 else [one for one in snapshots if zxid_of(one) >= first]
        for source in (*reversed(before), *after):
            from zkconsumer.history.snapshots import read_snapshot  # noqa: PLC0415 - often none

            try:
                tree = read_snapshot(source)
            except HistoryError as error:
                self._problems.append(Problem("damaged", error.where, zxid_of(source), error.what))
                continue
            self._fold.begin(tree, source.name)
            self._snapshot = source.name
            return tree.zxid
        if first > 1 and servers:
            what = "no snapshot precedes the first log: the state at its beginning is unknown"
            self._problems.append(Problem("missing", servers[0].name, first, what))
        return 0

    def read(self, progress: Progress | None = None) -> None:
        """Read the logs to their present end."""
        for _ in self.batches():
            if progress is not None:
                progress(self._rows)

    def batches(self) -> Iterator[RowBatch]:
        """Read the logs to their present end, and yield each batch after it has been applied."""
        for batch in self._history.batches():
            self._fold.apply(batch)
            self._rows += len(batch)
            yield batch

    def look_again(self, servers: Sequence[Server]) -> list[str]:
        """Look for files that the servers have created since the last check, such as a new log.

        Return the names of files that came too late, as `History.look_again` does.
        """
        return self._history.look_again(servers)

    def so_far(self) -> Described:
        """Return the tables up to now; running rebalances are incomplete."""
        return self._described(self._fold.update())

    def result(self) -> Described:
        """Return the tables; after this, the description is complete and reads no more."""
        return self._described(self._fold.finish())

    def _described(self, tables: Tables) -> Described:
        # If a damaged log has grown and is read again, it reports the same damage again.
        problems = list(dict.fromkeys([*self._problems, *self._history.problems]))
        from_ms, until_ms = self._fold.from_ms, self._fold.until_ms
        groups = sorted(self._fold.groups())
        kafka = None if self._kafka is None else self._kafka.read(tables.ownership)
        if kafka is not None:
            tables, groups = _with_kafka(tables, groups, kafka)
            problems += kafka.problems
            from_ms = min(filter(None, (from_ms, kafka.from_ms)), default=0)
            until_ms = max(until_ms, kafka.until_ms)
        found = incidents(tables, until_ms=until_ms, problems=problems)
        tables = replace(tables, incidents=found)
        skipped = self._history.skipped if self._snapshot else 0
        return Described(
            tables,
            problems,
            groups,
            self._rows,
            from_ms,
            until_ms,
            self._snapshot,
            skipped,
            self._fold.lifetimes(),
            kafka,
        )


def _with_kafka(
    tables: Tables, groups: Sequence[tuple[str, str]], kafka: KafkaCommits
) -> tuple[Tables, list[tuple[str, str]]]:
    """Return the tables and the groups of both stores.

    A group in Kafka has no chroot: it is the group of the same name in ZooKeeper, if only one
    chroot has such a group.
    """
    chroots: dict[str, list[str]] = {}
    for chroot, group in groups:
        chroots.setdefault(group, []).append(chroot)
    only = {group: some[0] for group, some in chroots.items() if len(some) == 1}
    for row in kafka.commits:
        row.chroot = only.get(row.group, "")
    for incident in kafka.incidents:
        incident.chroot = only.get(incident.group, "")
    every = {*groups, *((only.get(group, ""), group) for group in kafka.groups)}
    commits = in_order([*tables.commits, *kafka.commits])
    return (
        replace(tables, commits=commits, incidents=[*tables.incidents, *kafka.incidents]),
        sorted(every),
    )
