"""A world whose members deliver through production streams, with the actions of their users.

The users iterate, poll, hold messages, pause, resume and seek. They commit offsets of their choice,
reach the timeout of a commit, and raise in the middle of a loop or of a fetch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from zkconsumer.consumer.stream_fetcher import ReportKind, StreamReport
from zkconsumer.consumer.stream_partitions import CommitScope
from zkconsumer.kafka.fetcher import AutoOffsetReset
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.requests import Reply, Request
from zkconsumer.sim.kernel.world import Delivered
from zkconsumer.sim.logs import CountedLog
from zkconsumer.sim.member import SimMember
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.promises import says_why_it_gives_up
from zkconsumer.sim.session import BROKEN
from zkconsumer.sim.stream_member import StreamMember
from zkconsumer.sim.world import STEP_S, Watcher, World, end_slow, revive, slow
from zkconsumer.sim.zookeeper import Unreachable

if TYPE_CHECKING:
    from zkconsumer.sim.query_member import Checkpoint, QueryMember


class StreamWorld(World):
    """A world whose first members are queries (`sim.query_member`); all others have streams.

    Attributes:
        checkpoints: query -> its checkpoint.
    """

    def __init__(self, plan: Plan, watcher: Watcher | None = None) -> None:
        self.checkpoints: dict[int, Checkpoint] = {}
        super().__init__(plan, watcher)

    def new_member(self, who: int) -> SimMember:
        if who < self.plan.queries:
            return self._new_query(who)
        return StreamMember(
            self._settings(who),
            self._transition,
            log=CountedLog(self.log_end, self.log_start),
            reset=AutoOffsetReset(self.plan.reset),
            on_report=self._reported,
            aim=self.plan.aim,
            rare=self.plan.rare,
        )

    def _new_query(self, who: int) -> QueryMember:
        # `query_member` imports `spark`, which small worlds need not load.
        from zkconsumer.sim.query_member import Checkpoint, QueryMember  # noqa: PLC0415 - see above

        return QueryMember(
            self._settings(who),
            self._transition,
            log=CountedLog(self.log_end, self.log_start),
            reset=self.plan.reset,
            on_report=self._reported,
            checkpoint=self.checkpoints.setdefault(who, Checkpoint()),
            ask=self._ask_of_query,
            aim=self.plan.aim,
            rare=self.plan.rare,
        )

    def _ask_of_query(self, batch: Sequence[Request]) -> list[Reply]:
        """Send requests of a query itself; without a quorum, the query gets no connection."""
        try:
            return [self.foreign(request) for request in batch]
        except Unreachable:
            return [BROKEN]

    def _query(self, who: int) -> QueryMember | None:
        """Return a member if it is a query."""
        return cast("QueryMember", self.members[who]) if who < self.plan.queries else None

    def _reported(self, member: SimMember, report: StreamReport) -> None:
        assert report.tp is not None
        assert report.offset is not None
        self.watcher.repositioned(
            self,
            int(member.name.rpartition("_")[2]),
            report.tp,
            epoch=report.epoch,
            offset=report.offset,
            is_seek=report.kind is ReportKind.SOUGHT,
        )

    def _member(self, who: int) -> StreamMember:
        member = self.members[who]
        assert isinstance(member, StreamMember)
        return member

    def _server(self, tp: TopicPartition) -> StreamMember:
        """Return the running member whose stream delivers a partition."""
        who = next(
            who
            for who, link in enumerate(self.links)
            if not (link.dead or link.frozen or self._query(who)) and tp in self.members[who].feeds
        )
        return self._member(who)

    # ---- possible actions ------------------------------------------------------------------------

    def _of_reader(self, actions: list[Action], who: int) -> None:
        if query := self._query(who):
            is_busy = not self.links[who].slow and query.is_busy(self.now)
            actions += [Action(Do.NEXT_MESSAGE, who)] if is_busy else []
        elif self._member(who).busy_user(self.now):
            actions += Action(Do.NEXT_MESSAGE, who), Action(Do.POLL, who)

    def user_actions(self, do: Do, who: int) -> list[Action]:
        if self._query(who):
            return []
        member = self._member(who)
        if do in (Do.PAUSE, Do.SEEK):
            return [Action(do, tp=tp) for tp in sorted(member.feeds)]
        may_act = member.waits_for_commit if do is Do.COMMIT_TIMEOUT else member.feeds
        return [Action(do, who)] if may_act else []

    def retainable(self) -> list[Action]:
        ends = self.log_end.items()
        return [
            Action(Do.APPLY_RETENTION, tp=tp) for tp, end in ends if self.log_start.get(tp, 0) < end
        ]

    def resumes(self) -> list[Action]:
        return [
            Action(Do.RESUME, who)
            for who, link in enumerate(self.links)
            if not (link.dead or self._query(who)) and self._member(who).paused
        ]

    # ---- performing an action --------------------------------------------------------------------

    def _do_ask(self, who: int) -> None:
        query = self._query(who)
        if query is None:
            self._read(who, is_poll=False)
        elif not query.checkpoint.is_done:
            query.run()
        else:
            self._plan(who, query)

    def _plan(self, who: int, query: QueryMember) -> None:
        for one in query.ended_batch():
            self.watcher.finished(self, who, one.tp, one.end)
        for tp, start, end, epoch in query.plan(self.now):
            for offset in range(start, end):
                self.watcher.delivered(self, Delivered(self.now, who, tp, offset, epoch))
            self.handed_out[tp] = max(self.handed_out.get(tp, 0), end)

    def _do_revive(self, who: int) -> None:
        """A query that starts again first runs the last batch of its checkpoint."""
        revive(self, who)
        if query := self._query(who):
            for one in query.replay():
                self.watcher.finished(self, who, one.tp, one.end)

    def _do_slow(self, who: int) -> None:
        """Of a member with streams, only one user is slow: each stream has its own thread."""
        slow(self, who)
        if not self._query(who):
            self._member(who).slow_user = self._member(who).last_user

    def _do_hurry(self, who: int) -> None:
        end_slow(self, who)
        if not self._query(who):
            self._member(who).slow_user = None

    def _do_poll(self, who: int) -> None:
        self._read(who, is_poll=True)

    def _read(self, who: int, *, is_poll: bool) -> None:
        """Let a user ask for messages; this finishes the messages that it holds."""
        member = self._member(who)
        user = member.busy_user(self.now)
        if user is None:
            return
        for tp, offset in member.finished_by(user):
            self.watcher.finished(self, who, tp, offset)
        for tp, offset, epoch in member.ask(user, self.now, is_poll=is_poll):
            self.handed_out[tp] = max(self.handed_out.get(tp, 0), offset + 1)
            self.watcher.delivered(self, Delivered(self.now, who, tp, offset, epoch))

    def _do_give(self, who: int) -> None:
        """A user commits offsets of its choice, up to the messages that it got."""
        member = self._member(who)
        reached = member.loop.positions(CommitScope.DELIVERED)
        given = {tp: self._chosen(at.offset) for tp, at in reached.items() if tp in member.feeds}
        if given:
            member.give(given, self.now)

    def _do_abandon(self, who: int) -> None:
        self._member(who).abandon(self.now)

    def _do_pause(self, tp: TopicPartition) -> None:
        self._server(tp).pause(tp, self.now)

    def _do_resume(self, who: int) -> None:
        self._member(who).resume(self.now)

    def _do_seek(self, tp: TopicPartition) -> None:
        """A user continues at a position that a member has reached."""
        self._server(tp).seek(tp, self._chosen(self.handed_out.get(tp, 0)), self.now)

    def _do_retain(self, tp: TopicPartition) -> None:
        """Retention deletes messages, including those that no member has read."""
        first = self._chosen(self.log_end[tp])
        self.log_start[tp] = max(self.log_start.get(tp, 0), first)

    def _chosen(self, limit: int) -> int:
        """Return an offset up to `limit`; the virtual time determines it."""
        return round(self.now / STEP_S) % (limit + 1)

    def _do_raise(self, who: int) -> None:
        self._member(who).raise_in_loop()

    def _do_interrupt(self, who: int) -> None:
        self._member(who).interrupt()

    def _after(self, who: int) -> None:
        is_over = self.members[who].closed and not self.links[who].dead
        if is_over and not self._query(who) and (quiet := self._member(who).silent_streams()):
            why = f"{quiet} do not raise why {who} gave up"
            raise says_why_it_gives_up.broken(why)
        super()._after(who)
