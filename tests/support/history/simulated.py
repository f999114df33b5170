"""Transaction logs of simulated groups, and the same events recorded by the simulator."""

from __future__ import annotations

import random
from itertools import groupby

from support.history.truth import MemberReports, Moment, Truth
from support.zk import history_logs as logs
from support.zk.history_logs import LogWriter
from zkconsumer.history import transactions as tx
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sim.kernel.search import Decisions, Result
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.random_search import run, world_of
from zkconsumer.sim.world import MemberTransition, Watcher, Watchers, World
from zkconsumer.sim.znodes import End, ZnodeChange

BEGIN_MS = 1_700_000_000_000
WRITES = (rq.Multi, rq.Create, rq.SetData, rq.Delete)
REFUSALS = {Code.NODE_EXISTS: -110, Code.NO_NODE: -101, Code.BAD_VERSION: -103, Code.NO_AUTH: -102}
REST_OF_A_MULTI = -2
OTHERS = 1 << 40
"""The first session id that belongs to no member: brokers, operators and others have one each."""


class LogOfWorld(Watcher):
    """Writes the transactions of a simulated ZooKeeper as a log, with the virtual clock.

    After a restart the server has a new leader. As in a real log, refused writes are included: a
    refused transaction also contains the writes before the refused write.

    Attributes:
        moments: the same transactions, from the simulator's own history.
        reports: the events that the members received.
        zxids: the simulator's zxid -> the log's, because refused writes have zxids only there.
    """

    def __init__(self) -> None:
        self.log = LogWriter()
        self.moments: list[Moment] = []
        self.reports = MemberReports()
        self.zxids: dict[int, int] = {}
        self.world: World | None = None
        self._seen = 0
        self._sessions: set[int] = set()

    def acted(self, world: World, action: Action | None) -> None:
        """Write the changes of the last action to the log."""
        self._written(world)
        if action is not None and action.do in (Do.RESTART, Do.QUORUM) and self.log.zxid:
            self.log.zxid = ((self.log.zxid >> 32) + 1) << 32

    def served(self, world: World, who: int, request: rq.Request, reply: Reply | None) -> None:
        """Write the log entry of a refused write."""
        self._written(world)
        if reply is None or reply.code not in REFUSALS or not isinstance(request, WRITES):
            return
        session = world.links[who].session
        if isinstance(request, rq.Multi):
            parts: list[tuple[int, bytes]] = []
            for number, write in enumerate(request.writes):
                refused = number - int(reply.value)
                code = REFUSALS[reply.code] if refused == 0 else REST_OF_A_MULTI
                error = (tx.ERROR, logs.number(code))
                parts.append(error if refused >= 0 else intended(write))
            zxid = self.log.add(tx.MULTI, logs.multi(*parts), session=session)
        else:
            zxid = self.log.add(tx.ERROR, logs.number(REFUSALS[reply.code]), session=session)
        self.moments.append(Moment(zxid, self.log.time_ms, session, is_refused=True))

    def transition(self, world: World, step: MemberTransition) -> None:
        """Record an event that a member receives."""
        before = step.before
        session = before.session.id if before.session else 0
        self.reports.add(before.settings.consumer, session, step.event)

    def _written(self, world: World) -> None:
        self.world = world
        history = world.zookeeper.history
        news, self._seen = history[self._seen :], len(history)
        self.log.time_ms = BEGIN_MS + round(world.now * 1000)
        for session in sorted(set(world.zookeeper.sessions) - self._sessions):
            self._sessions.add(session)
            zxid = self.log.add(tx.CREATE_SESSION, logs.number(6000), session=session)
            self.moments.append(Moment(zxid, self.log.time_ms, session))
        for _, changes in groupby(news, lambda change: change.zxid):
            self._transaction(tuple(changes))

    def _transaction(self, changes: tuple[ZnodeChange, ...]) -> None:
        if not changes[0].session:  # In the simulator, every client with all rights is number 0.
            others = OTHERS + self.log.zxid
            changes = tuple(change._replace(session=others) for change in changes)
        first = changes[0]
        if isinstance(first.write, End):
            cxid = 0 if first.write is End.EXPIRED else 5
            zxid = self.log.add(tx.CLOSE_SESSION, b"", session=first.session, cxid=cxid)
        else:
            parts = [encoded(change) for change in changes]
            kind, body = parts[0] if len(parts) == 1 else (tx.MULTI, logs.multi(*parts))
            zxid = self.log.add(kind, body, session=first.session)
        self.zxids[first.zxid] = zxid
        self.moments.append(Moment(zxid, self.log.time_ms, first.session, changes))

    def truth(self) -> tuple[Truth, MemberReports]:
        """Return what happened, and what the members have reported."""
        assert self.world is not None
        strategy = self.world.members[0].settings.strategy
        truth = Truth(self.moments, self.world.GROUP, strategy=strategy)
        return truth, self.reports.with_zxids(self.zxids)


def encoded(change: ZnodeChange) -> tuple[int, bytes]:
    """Return the type and the record of one change of a znode."""
    if change.new is None:
        return tx.DELETE, logs.sized(change.path)
    if change.old is not None:
        return tx.SET_DATA, logs.changed(change.path, change.new.data, change.new.stat.version)
    ephemeral = isinstance(change.write, rq.Create) and change.write.ephemeral
    return tx.CREATE, logs.created(change.path, change.new.data, ephemeral=ephemeral)


def intended(write: object) -> tuple[int, bytes]:
    """Return the type and the record of a write that was refused with its transaction."""
    match write:
        case rq.Create(path, data, ephemeral):
            return tx.CREATE, logs.created(path, data or b"", ephemeral=ephemeral)
        case rq.SetData(path, data, version):
            return tx.SET_DATA, logs.changed(path, data or b"", version + 1)
        case rq.Check(path, version):
            return tx.CHECK, logs.sized(path) + logs.number(version + 1)
        case rq.Delete(path):
            return tx.DELETE, logs.sized(path)
    raise TypeError(write)


def simulated(seed: int) -> tuple[LogOfWorld, Result]:
    """Run a seed of the random search, and return its log and its result."""
    watcher = LogOfWorld()

    def make(plan: Plan, monitor: Monitor) -> World:
        return world_of(plan, Watchers(watcher, monitor))

    result = run(Decisions(random.Random(seed)), make=make)
    assert watcher.world is not None
    watcher.acted(watcher.world, None)
    return watcher, result
