"""Replays a real run for the monitor that checks the simulator's runs.

The replay uses three records: each member's trace, its user's log of messages, and ZooKeeper's
transaction log. The production machine replays the traces, so a trace that does not conform is also
a violation. All records have times of the same machine.

In a simulated world everything happens at one instant. A real run differs in three ways:

- A message is logged a little after it was handed out. If the ownership or the lease has ended by
  then, the replay reports the message as handed out at that end. Such a delay may last up to
  LATE_S, or longer if the process was frozen.
- After a newer owner's first message, the older owner must deliver no message (I2). The exception
  is one message, or one batch, that each stream's user was processing while the process was frozen.
- If another client ends a session, the session is over for the monitor at once. The member of the
  session learns this a moment later, and until then its messages count as late.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from support.zk.log import Written
from zkconsumer.member import commands as cmd
from zkconsumer.member import events
from zkconsumer.member.events import Event
from zkconsumer.member.machine import step
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import Settings, State
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.sim.kernel.world import Delivered, InvariantViolation, Transition
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Link
from zkconsumer.trace import decode
from zkconsumer.trace.replay import check

# Maximum time, in seconds, from the check of the lease to the line in the user's log, on a busy
# machine. 0.25 is usual, but a process without processor time takes longer. A later message is a
# violation.
LATE_S = 1.0
# Seconds. ZooKeeper's clock is truncated to milliseconds; a write is reported when it has certainly
# begun.
MILLISECOND_S = 0.001


class Step(NamedTuple):
    """A line of a trace, decoded and replayed."""

    t: float
    before: State
    event: Event
    commands: tuple[cmd.Command, ...]
    after: State


class HandedOut(NamedTuple):
    """Messages that a user logged together at `t`: a single message, or a polled batch."""

    t: float
    messages: tuple[tuple[TopicPartition, int, int], ...]  # partition, token, offset


class Late(NamedTuple):
    """A message logged at `t`, which is `late_s` after the end of its ownership or lease.

    `overlap_s` is the time since the next owner's first message, 0 if there was none yet.
    """

    t: float
    member: str
    partition: TopicPartition
    offset: int
    late_s: float
    overlap_s: float


@dataclass
class Record:
    """The records of one member: its trace, its user's log, and the faults it suffered."""

    name: str
    trace: Path
    logged: Sequence[Mapping[str, Any]]
    frozen: Sequence[tuple[float, float]] = ()
    gone_at: float | None = None

    def steps(self) -> list[Step]:
        """Return the trace's steps; raise TraceError if the machine makes another decision."""
        with self.trace.open() as file:
            check(file, name=self.name)
        found: list[Step] = []
        state, t = None, 0.0
        with self.trace.open() as file:
            for line in file:
                if not line.endswith("\n"):
                    break  # The process died while it was writing this line.
                entry = json.loads(line)
                if "settings" in entry:
                    state = State(decode(Settings, entry["settings"]))
                    continue
                assert state is not None
                event = decode(Event, entry["event"])
                after, commands = step(state, event)
                t = max(t, entry["t"])  # The steps have the order of the lines.
                found.append(Step(t, state, event, commands, after))
                state = after
        return found

    def handed(self) -> Iterator[HandedOut]:
        for entry in self.logged:
            if entry["event"] == "delivered":
                messages = tuple(
                    (TopicPartition(topic, number), token, offset)
                    for topic, number, token, offsets in entry["runs"]
                    for offset in offsets
                )
                yield HandedOut(entry["t"], messages)

    def finished(self) -> Iterator[tuple[float, TopicPartition, int]]:
        for entry in self.logged:
            if entry["event"] == "finished":
                for topic, number, offset in entry["ends"]:
                    yield entry["t"], TopicPartition(topic, number), offset

    def stood_still(self, start: float, end: float) -> bool:
        return any(stop <= end and go >= start for stop, go in self.frozen)


class Grants:
    """The times at which a member may deliver: its fetched partitions by token, and its lease."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._spans: dict[tuple[TopicPartition, int], list[list[float]]] = defaultdict(list)
        # the times at which the gate opens and closes
        self._gate: list[tuple[float, float]] = [(0.0, 0.0)]
        running: dict[TopicPartition, list[float]] = {}
        for one in steps:
            for command in one.commands:
                match command:
                    case cmd.StartFetching(grants):
                        for tp, (mine, _) in grants.items():
                            running[tp] = [one.t, float("inf")]
                            self._spans[tp, mine.epoch].append(running[tp])
                    case cmd.Withdraw(partitions):
                        for tp in partitions & running.keys():
                            running.pop(tp)[1] = one.t
                    case cmd.OpenGate(deadline):
                        self._gate.append((one.t, deadline))
                    case cmd.ShutGate():
                        self._gate.append((one.t, 0.0))

    def last_moment(self, tp: TopicPartition, token: int, t: float) -> float | None:
        """Return the last time up to `t` at which this message may be handed out, or None."""
        for start, end in reversed(self._spans[tp, token]):
            until = min(end, t)
            if start <= until and (moment := self._open_before(until)) is not None:
                return moment if moment >= start else start
        return None

    def _open_before(self, t: float) -> float | None:
        number = bisect_right(self._gate, (t, float("inf"))) - 1
        following = t
        while number >= 0:
            since, deadline = self._gate[number]
            if deadline > since:
                return min(deadline, following)
            number, following = number - 1, since
        return None


@dataclass
class TracedMember:
    """A member according to its trace."""

    settings: Settings
    state: State
    gate: float = 0.0
    feeds: dict[TopicPartition, int] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    is_over: bool = False
    # A trace does not say which messages users hold.
    held: frozenset[tuple[TopicPartition, int]] = frozenset()

    @property
    def name(self) -> str:
        return self.settings.consumer

    @property
    def closed(self) -> bool:
        return self.state.phase is Phase.CLOSED

    @property
    def settled(self) -> bool:
        # A settled member reads back the owner znodes of the partitions that it has kept.
        return self.state.phase in (Phase.SETTLED, Phase.VERIFYING)

    def do(self, command: cmd.Command) -> None:
        match command:
            case cmd.StartFetching(grants):
                self.feeds |= {tp: mine.epoch for tp, (mine, _) in grants.items()}
            case cmd.Withdraw(partitions):
                for tp in partitions:
                    self.feeds.pop(tp, None)
            case cmd.OpenGate(deadline):
                self.gate = 0.0 if self.is_over else deadline
            case cmd.ShutGate():
                self.gate = 0.0
        op = getattr(command, "op", None)
        if op is not None:
            self.running.add(op)


class Server:
    """ZooKeeper's state: live sessions, and owner znodes."""

    def __init__(self) -> None:
        self.sessions: set[int] = set()
        self.owners: dict[TopicPartition, tuple[str, int, int]] = {}

    def take(self, written: Written) -> None:
        change = written.change
        if change is None:
            self.sessions.add(written.session)
        elif not change.path:
            self.sessions.discard(written.session)
        elif (at := paths.locate(change.path)).kind is ZnodeKind.OWNER:
            tp = TopicPartition(at.name, at.partition)
            if change.new is None:
                self.owners.pop(tp, None)
            else:
                thread, stat = (change.new.data or b"").decode(), change.new.stat
                self.owners[tp] = thread, stat.owner, stat.czxid


class Replay:
    """The replay of one run. `run` raises InvariantViolation (or TraceError) at a violation.

    Args:
        records: the records of the members with a trace; other members never began.
        writes: ZooKeeper's writes to the group's znodes (`zk.log.history`).
        ahead_s: the difference between the wall clock and the clock of the traces.
        log_end: partition -> the offset after its last message.
    """

    def __init__(
        self,
        records: Sequence[Record],
        writes: Sequence[Written],
        *,
        ahead_s: float,
        log_end: Mapping[TopicPartition, int],
    ) -> None:
        self.now = 0.0
        self.log_start: Mapping[TopicPartition, int] = {}  # retention deletes nothing
        self.log_end = log_end
        self.zookeeper = Server()
        self.kafka: dict[TopicPartition, OffsetAndMetadata] = {}
        self.old_sessions: Sequence[int] = ()
        self.monitor = Monitor()
        self.late: list[Late] = []
        self._doubts: list[tuple[TopicPartition, InvariantViolation]] = []
        self.records, self.writes, self.ahead_s = records, writes, ahead_s
        self._steps = [one.steps() for one in records]
        settings = [steps[0].before.settings for steps in self._steps]
        self.members = [TracedMember(one, State(one)) for one in settings]
        self.links = [Link() for _ in records]
        self._firsts = _first_logged(records)
        self._begun = {one.session: one.zxid for one in writes if one.change is None}
        by_zxid = groupby(writes, attrgetter("zxid"))
        self._writes = [(zxid, list(changes)) for zxid, changes in by_zxid]
        self._next_write = 0

    def again(self, **other: Any) -> Replay:
        """Return the same run for another check; `other` replaces its records or its writes."""
        given = {"records": self.records, "writes": self.writes, **other}
        return Replay(**given, ahead_s=self.ahead_s, log_end=self.log_end)

    # ---- what the monitor asks -------------------------------------------------------------------

    def owner(self, tp: TopicPartition) -> tuple[str, int, int] | None:
        return self.zookeeper.owners.get(tp)

    def owners(self) -> Mapping[TopicPartition, tuple[str, int, int]]:
        return self.zookeeper.owners

    def settled(self) -> bool:
        pairs = zip(self.members, self.links, strict=True)
        return all(link.dead or member.settled for member, link in pairs)

    # ---- the run ---------------------------------------------------------------------------------

    def run(self, *, rest_at: float | None = None) -> None:
        """Report all events in order; at `rest_at` the group must have converged (I12, I5)."""
        moments: list[tuple[float, int, Callable[[], None]]] = []
        for who, record in enumerate(self.records):
            # The order of events at one instant: deliveries, then the step that ends them.
            moments += ((t, 0, act) for t, act in self._deliveries(who, record))
            moments += (
                (one.t, 1, lambda who=who, one=one: self._stepped(who, one))
                for one in self._steps[who]
            )
            moments += (
                (t, 1, lambda who=who, tp=tp, end=end: self._finished(who, tp, end))
                for t, tp, end in record.finished()
            )
            if record.gone_at is not None:
                moments.append((record.gone_at, 1, lambda who=who: self._gone(who)))
        if rest_at is not None:
            moments.append((rest_at, 2, self._at_rest))
        for t, _, act in sorted(moments, key=lambda one: one[:2]):
            self._write_until(t)
            self.now = max(self.now, t)
            act()
        self._write_until(float("inf"))
        for tp, doubt in self._doubts:
            if tp not in self.monitor.by_hand:
                raise doubt

    def _stepped(self, who: int, one: Step) -> None:
        member, event = self.members[who], one.event
        self._write_up_to(_known_by(event, self._begun))
        member.state = one.after
        match event:
            case events.Connected(session=session):
                member.running.clear()
                member.is_over = False
                self.links[who].session = session.id
            case events.Suspended():
                member.running.clear()
                self.monitor.harmed = True
            case events.Finished(op=op):
                member.running.discard(op)
        self.monitor.transition(self, Transition(who, one.before, event, one.commands))
        for command in one.commands:
            member.do(command)
        self.links[who].dead |= member.closed

    def _finished(self, who: int, tp: TopicPartition, end: int) -> None:
        self.monitor.finished(self, who, tp, end)

    def _gone(self, who: int) -> None:
        self.links[who].dead = True

    def _at_rest(self) -> None:
        reason = self.monitor.converged(self)
        if reason:
            raise InvariantViolation("I12", reason)

    # ---- messages --------------------------------------------------------------------------------

    def _deliveries(self, who: int, record: Record) -> Iterator[tuple[float, Callable[[], None]]]:
        grants = Grants(self._steps[who])
        forced = self._forced_ends(who, record)
        overlapping = Counter[tuple[float, float]]()
        for handed in record.handed():
            overlaps = False
            for tp, token, offset in handed.messages:
                granted = grants.last_moment(tp, token, handed.t)
                if granted is None:
                    raise InvariantViolation("I3", f"{record.name} was never granted {tp}:{offset}")
                moment = min(granted, forced.get(token, granted))
                message = Delivered(moment, who, tp, offset, token)
                if moment < handed.t and self._came_late(record, handed.t, message, granted):
                    overlaps |= moment == granted
                yield moment, lambda message=message: self._delivered(message)
            if overlaps:
                self._excuse(record, overlapping, who)

    def _delivered(self, message: Delivered) -> None:
        self._write_up_to(message.epoch)
        self.monitor.delivered(self, message)

    def _came_late(self, record: Record, t: float, message: Delivered, granted: float) -> bool:
        """Record a message that was logged too late, and whether a newer owner had begun.

        A member whose session another client has ended may deliver while it knows nothing of this
        and its lease lasts: until `granted`.
        """
        tp, late_s = message.tp, t - message.now
        later = (first for token, first in self._firsts[tp].items() if token > message.epoch)
        overlap_s = max(0.0, t - min(later, default=t))
        self.late.append(Late(t, record.name, tp, message.offset, late_s, overlap_s))
        if t - granted > LATE_S and not record.stood_still(granted, t):
            self._doubt(tp, "I3", f"{record.name} was given {tp} {late_s:.3f} s after its end")
        return overlap_s > 0

    def _excuse(self, record: Record, overlapping: Counter[tuple[float, float]], who: int) -> None:
        """Check that late messages were being processed while the process was frozen."""
        late = self.late[-1]
        freeze = max((one for one in record.frozen if one[1] <= late.t), default=None)
        streams = sum(self.members[who].settings.subscription.values())
        if freeze is not None:
            overlapping[freeze] += 1
        if freeze is None or overlapping[freeze] > streams:
            said = f"{record.name} was given messages after the next owner: {late}"
            self._doubt(late.partition, "I2", said)

    def _doubt(self, tp: TopicPartition, invariant: str, text: str) -> None:
        """Record a violation, to be dropped if another client's act turns out to be the cause."""
        self._doubts.append((tp, InvariantViolation(invariant, text)))

    def _forced_ends(self, who: int, record: Record) -> dict[int, float]:
        """Return czxid of an owner znode -> when another client ended the znode's session."""
        own = {
            one.event.session.id
            for one in self._steps[who]
            if isinstance(one.event, events.Connected)
        }
        left = [one.t for one in self._steps[who] if _has(one.commands, cmd.CloseSession)]
        ended: dict[int, float] = {}
        for _, changes in self._writes:
            for written in changes:
                t = written.t_ms / 1000 - self.ahead_s - MILLISECOND_S
                if written.forced and written.session in own and not any(at <= t for at in left):
                    ended[written.session] = t
        return {
            written.change.zxid: ended[written.session]
            for _, changes in self._writes
            for written in changes
            if written.change is not None
            and written.change.new is not None
            and written.session in ended
        }

    # ---- ZooKeeper -------------------------------------------------------------------------------

    def _time(self, written: Written) -> float:
        return written.t_ms / 1000 - self.ahead_s + MILLISECOND_S

    def _write_until(self, t: float) -> None:
        while self._pending() and self._time(self._writes[self._next_write][1][0]) <= t:
            self._write()

    def _write_up_to(self, zxid: int) -> None:
        """Report the writes that a member already knows, even if the clocks differ."""
        while self._pending() and self._writes[self._next_write][0] <= zxid:
            self._write()

    def _pending(self) -> bool:
        return self._next_write < len(self._writes)

    def _write(self) -> None:
        _, changes = self._writes[self._next_write]
        self._next_write += 1
        self.now = max(self.now, self._time(changes[0]))
        for written in changes:
            self.zookeeper.take(written)
        for written in changes:
            if written.change is None:
                continue
            if not written.change.path:
                self._session_ended(written)
            else:
                self._judge(written)

    def _judge(self, written: Written) -> None:
        assert written.change is not None
        known = {link.session for link in self.links}
        self.monitor.harmed |= written.session not in known
        self.monitor.written(self, written.change)

    def _session_ended(self, written: Written) -> None:
        for member, link in zip(self.members, self.links, strict=True):
            if link.session != written.session or member.closed:
                continue
            self.monitor.harmed = True
            if written.forced:
                member.gate, member.is_over = 0.0, True


def _first_logged(records: Sequence[Record]) -> Mapping[TopicPartition, Mapping[int, float]]:
    """Return (partition, token) -> the time at which its first message was logged."""
    found: dict[TopicPartition, dict[int, float]] = defaultdict(dict)
    for record in records:
        for handed in record.handed():
            for tp, token, _ in handed.messages:
                found[tp][token] = min(handed.t, found[tp].get(token, handed.t))
    return found


def _has(commands: Sequence[cmd.Command], kind: type) -> bool:
    return any(isinstance(one, kind) for one in commands)


def _known_by(event: Event, begun: Mapping[int, int]) -> int:
    """Return the zxid of the last transaction whose effect the event contains."""
    match event:
        case events.Connected(session=session):
            return begun.get(session.id, 0)
        case events.Finished(outcome=events.Claimed(claimed=held)):
            return max((mine.epoch for mine in held.values()), default=0)
        case events.Finished(outcome=events.Verified(held=held)):
            return max((mine.epoch for mine in held.values()), default=0)
        case events.Finished(outcome=events.Registered(czxid=czxid)):
            return czxid
    return 0
