"""A world whose members deliver through production streams, with what their users may do.

The users iterate, poll, hold messages, pause, resume and seek. They commit offsets of their choice,
reach the time-out of a commit, and raise in the middle of a loop or of a fetch.
"""

from __future__ import annotations

from zkconsumer.consumer.stream_fetcher import ReportKind, StreamReport
from zkconsumer.consumer.stream_partitions import Coverage
from zkconsumer.kafka.fetcher import Reset
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.logs import CountedLog
from zkconsumer.sim.member import SimMember
from zkconsumer.sim.plan import Action, Delivered, Do, InvariantViolation
from zkconsumer.sim.stream_member import StreamMember
from zkconsumer.sim.world import STEP_S, World


class StreamWorld(World):
    """A world in which every member is a `StreamMember`."""

    def new_member(self, who: int) -> SimMember:
        return StreamMember(
            self._settings(who),
            self._transition,
            log=CountedLog(self.log_end, self.log_start),
            reset=Reset(self.plan.reset),
            on_report=self._reported,
        )

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
            if not (link.dead or link.frozen) and tp in self.members[who].feeds
        )
        return self._member(who)

    # ---- possible actions ------------------------------------------------------------------------

    def _of_reader(self, actions: list[Action], who: int) -> None:
        if self._member(who).busy_user(self.now):
            actions += Action(Do.ASK, who), Action(Do.POLL, who)

    def of_users(self, do: Do, who: int) -> list[Action]:
        member = self._member(who)
        if do in (Do.PAUSE, Do.SEEK):
            return [Action(do, tp=tp) for tp in sorted(member.feeds)]
        may_act = member.waits_for_commit if do is Do.ABANDON else member.feeds
        return [Action(do, who)] if may_act else []

    def retainable(self) -> list[Action]:
        ends = self.log_end.items()
        return [Action(Do.RETAIN, tp=tp) for tp, end in ends if self.log_start.get(tp, 0) < end]

    def resumes(self) -> list[Action]:
        return [
            Action(Do.RESUME, who)
            for who, link in enumerate(self.links)
            if not link.dead and self._member(who).paused
        ]

    # ---- performing an action --------------------------------------------------------------------

    def _do_ask(self, who: int) -> None:
        self._read(who, is_poll=False)

    def _do_poll(self, who: int) -> None:
        self._read(who, is_poll=True)

    def _read(self, who: int, *, is_poll: bool) -> None:
        """Let a user ask for messages, which finishes those that it holds."""
        member = self._member(who)
        user = member.busy_user(self.now)
        if user is None:
            return
        for tp, offset in member.finished_by(user):
            self.watcher.finished(self, who, tp, offset)
        for tp, offset, epoch in member.ask(user, self.now, is_poll=is_poll):
            self.handed[tp] = max(self.handed.get(tp, 0), offset + 1)
            self.watcher.delivered(self, Delivered(self.now, who, tp, offset, epoch))

    def _do_give(self, who: int) -> None:
        """A user commits offsets of its choice, up to the messages that it was given."""
        member = self._member(who)
        reached = member.loop.positions(Coverage.DELIVERED)
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
        self._server(tp).seek(tp, self._chosen(self.handed.get(tp, 0)), self.now)

    def _do_retain(self, tp: TopicPartition) -> None:
        """Retention deletes messages, also those that nobody has read."""
        first = self._chosen(self.log_end[tp])
        self.log_start[tp] = max(self.log_start.get(tp, 0), first)

    def _chosen(self, limit: int) -> int:
        """Return an offset up to `limit`; the moment determines it."""
        return round(self.now / STEP_S) % (limit + 1)

    def _do_raise(self, who: int) -> None:
        self._member(who).raise_in_loop()

    def _do_interrupt(self, who: int) -> None:
        self._member(who).interrupt()

    def _after(self, who: int) -> None:
        member = self._member(who)
        if member.closed and not self.links[who].dead and (quiet := member.silent_streams()):
            raise InvariantViolation("I15", f"{quiet} do not raise why {who} gave up")
        super()._after(who)
