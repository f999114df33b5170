"""Transaction logs of simulated groups, and the truth about them from the simulator's own history.

The truth is replayed here from the simulator's changes, by code that shares nothing with
`zkconsumer.history`.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import groupby
from pathlib import Path

from support.zk import history_logs as logs
from support.zk.history_logs import LogWriter
from zkconsumer.history import transactions as tx
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.paths import Kind, locate
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, Plan
from zkconsumer.sim.random_search import Decisions, Result, run
from zkconsumer.sim.recorder import Watchers
from zkconsumer.sim.world import Watcher, World
from zkconsumer.sim.znodes import Change, End

BEGIN_MS = 1_700_000_000_000


class LogOfWorld(Watcher):
    """Writes the transactions of a simulated ZooKeeper as a log, with the world's clock."""

    def __init__(self) -> None:
        self.log = LogWriter()
        self.times: list[int] = []
        self.history: list[Change] = []
        self.world: World | None = None
        self._sessions: set[int] = set()

    def acted(self, world: World, action: Action) -> None:
        """Write what the last action changed."""
        self.world = world
        history = world.zookeeper.history
        news = history[len(self.history) :]
        self.history += news
        self.log.time_ms = BEGIN_MS + round(world.now * 1000)
        for session in sorted(set(world.zookeeper.sessions) - self._sessions):
            self._sessions.add(session)
            self.log.add(tx.CREATE_SESSION, logs.number(6000), session=session)
        for _, changes in groupby(news, lambda change: change.zxid):
            self._transaction(list(changes))

    def _transaction(self, changes: list[Change]) -> None:
        first = changes[0]
        self.times += [self.log.time_ms] * len(changes)
        if isinstance(first.write, End):
            cxid = 0 if first.write is End.EXPIRED else 5
            self.log.add(tx.CLOSE_SESSION, b"", session=first.session, cxid=cxid)
            return
        parts = [encoded(change) for change in changes]
        if len(parts) == 1:
            self.log.add(*parts[0], session=first.session)
        else:
            self.log.add(tx.MULTI, logs.multi(*parts), session=first.session)


def encoded(change: Change) -> tuple[int, bytes]:
    """Return the type and the record of one change of a znode."""
    if change.new is None:
        return tx.DELETE, logs.sized(change.path)
    if change.old is not None:
        return tx.SET_DATA, logs.changed(change.path, change.new.data, change.new.stat.version)
    ephemeral = isinstance(change.write, rq.Create) and change.write.ephemeral
    return tx.CREATE, logs.created(change.path, change.new.data, ephemeral=ephemeral)


def simulated(seed: int) -> tuple[LogOfWorld, Result]:
    """Run a seed of the random search, and return its log and its result."""
    watcher = LogOfWorld()

    def make(plan: Plan, monitor: Monitor) -> World:
        return World(plan, Watchers(watcher, monitor))

    result = run(Decisions(random.Random(seed)), make=make)
    assert watcher.world is not None
    watcher.acted(watcher.world, None)  # type: ignore[arg-type]
    return watcher, result


class Truth:
    """What really happened: owner znodes with their sessions and times, members, commits."""

    def __init__(self, log: LogOfWorld) -> None:
        self.intervals: list[list[object]] = []  # topic, partition, thread, session, from, to
        self.members: Counter[str] = Counter()
        self.commits: Counter[tuple[str, int]] = Counter()
        self.moved_back: list[tuple[str, int, int]] = []
        self.late = self.deleted = 0
        self._open: dict[str, list[object]] = {}
        self._last: dict[str, int] = {}
        self._had: dict[str, set[int]] = {}
        for change, time_ms in zip(log.history, log.times, strict=True):
            self._take(change, time_ms)

    def _take(self, change: Change, time_ms: int) -> None:
        at = locate(change.path)
        if at.kind is Kind.OWNER and change.new is not None and change.old is None:
            thread = change.new.data.decode()
            row = [at.name, at.partition, thread, change.new.stat.owner, time_ms, None]
            self._open[f"{at.name}/{at.partition}"] = row
            self._had.setdefault(f"{at.name}/{at.partition}", set()).add(change.session)
            self.intervals.append(row)
        elif at.kind is Kind.OWNER and change.new is None:
            self._open.pop(f"{at.name}/{at.partition}")[5] = time_ms
        elif at.kind is Kind.MEMBER:
            how = "joined" if change.old is None else "gone" if change.new is None else "changed"
            self.members[how] += 1
        elif at.kind is Kind.OFFSET and change.new is None:
            self.deleted += 1
            self._last.pop(f"{at.name}/{at.partition}", None)
        elif at.kind is Kind.OFFSET and change.new is not None:
            self._commit(change, f"{at.name}/{at.partition}")

    def _commit(self, change: Change, name: str) -> None:
        at = locate(change.path)
        try:
            offset = int(change.new.data)  # type: ignore[union-attr]
        except ValueError:
            return
        self.commits[at.name, at.partition] += 1
        owner = self._open.get(name)
        others = owner is not None and owner[3] != change.session
        self.late += others and change.session in self._had.get(name, set())
        if offset < self._last.get(name, offset):
            self.moved_back.append((at.name, at.partition, offset))
        self._last[name] = offset


def write(log: LogOfWorld, directory: Path) -> Path:
    return log.log.write(directory)
