"""Drives the machine without ZooKeeper: tests give the events and outcomes of operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from zkconsumer.member import commands as cmd
from zkconsumer.member import events as ev
from zkconsumer.member import peers
from zkconsumer.member.machine import next_deadline, step
from zkconsumer.member.offset_ledger import Commit
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import Settings, State
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_snapshot import GroupView, Topic
from zkconsumer.protocol.model import (
    Blocker,
    Ownership,
    Position,
    Positions,
    Purpose,
    Session,
    StoredOffset,
    TopicPartition,
)
from zkconsumer.protocol.payloads import Broker
from zkconsumer.protocol.registrations import Pattern, Registration
from zkconsumer.protocol.requests import ListedChildren

ME = "g_m"
THREAD = "g_m-0"
SESSION = Session(0xA1, 6.0)
NOBODY = ListedChildren((), 0)
"""The listing of a view, for tests in which the listing does not matter."""
LATER = Session(0xB2, 6.0)
BROKER = Broker("127.0.0.1", 9092, 4, ())
C = TypeVar("C", bound=cmd.Command)


def tps(*numbers: int, topic: str = "t") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


def view(
    members: Iterable[str] = (ME,),
    topics: Mapping[str, int] | None = None,
    *,
    czxid: int = 1,
    brokers: tuple[Broker, ...] = (BROKER,),
    wildcards: Mapping[str, Mapping[str, int] | str] = MappingProxyType({}),
    **more: Any,
) -> GroupView:
    """Return a group in which each of `members` has one stream per topic (name -> partitions).

    `wildcards` maps members with a pattern to the topics that it matches, or to the reason why
    zkconsumer cannot evaluate it.
    """
    topics = {"t": 4} if topics is None else topics
    subscription = dict.fromkeys(topics or {"t": 1}, 1)
    registered = {name: Registration(subscription) for name in members}
    registered |= {name: Registration({".*": 1}, Pattern.WHITE_LIST) for name in wildcards}
    return GroupView(
        members=registered,
        malformed=more.get("malformed", {}),
        topics={name: Topic(tuple(range(count)), czxid) for name, count in topics.items()},
        malformed_topics=more.get("malformed_topics", {}),
        brokers=brokers,
        matched={name: what for name, what in wildcards.items() if not isinstance(what, str)},
        unevaluated={name: what for name, what in wildcards.items() if isinstance(what, str)},
    )


class Member:
    """A state machine, its clock, and all commands that the machine has returned."""

    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {
            "group": "g",
            "consumer": ME,
            "subscription": {"t": 1},
            "strategy": Strategy.RANGE,
        }
        self.state = State(Settings(**(defaults | settings)))
        self.now = 1000.0
        self.zxid = 100
        self.log: list[cmd.Command] = []
        # The positions that streams would report: of finished and of delivered messages.
        self.finished: dict[TopicPartition, int] = {}
        self.delivered: dict[TopicPartition, int] = {}
        self.tokens: dict[TopicPartition, int] = {}

    def _tokens(self) -> dict[TopicPartition, int]:
        return {tp: mine.epoch for tp, mine in self.state.owned.items()}

    # ---- events ----------------------------------------------------------------------------------

    def send(self, kind: type[ev.Event], **fields: Any) -> tuple[cmd.Command, ...]:
        """Call `step` with an event, collect positions as in production, return the commands."""
        self.tokens |= self._tokens()
        self.state, commands = step(self.state, kind(now=self.now, **fields))
        done: list[cmd.Command] = []
        for command in commands:
            done.append(command)
            self.log.append(command)
            if isinstance(command, cmd.CollectPositions):
                done += self.collected(command.purpose, command.partitions)
        return tuple(done)

    def collected(
        self, purpose: Purpose, partitions: Iterable[TopicPartition], request: int = 0
    ) -> tuple[cmd.Command, ...]:
        whole = purpose in (Purpose.EXPLICIT, Purpose.LEAVE)
        known = {**self.finished, **self.delivered} if whole else self.finished
        # The streams know the fencing tokens of partitions that the member has just lost.
        tokens = self.tokens if purpose is Purpose.LOST else self._tokens()
        positions = {
            tp: Position(tokens[tp], known[tp]) for tp in partitions if tp in known and tp in tokens
        }
        return self.commit_at(purpose, positions, request)

    def commit_at(
        self, purpose: Purpose, positions: Positions, request: int = 0, **more: Any
    ) -> tuple[cmd.Command, ...]:
        """Request a commit of these positions; `more` has other fields of the `Commit`."""
        requests = (request,) if request else ()
        asked = Commit(purpose, positions, requests=requests, **more)
        return self.send(ev.PositionsCollected, commit=asked)

    def commit(self, request: int = 1) -> tuple[cmd.Command, ...]:
        """Request an explicit commit."""
        return self.collected(Purpose.EXPLICIT, frozenset(self.state.serving), request)

    def answer(self, outcome: ev.Outcome) -> tuple[cmd.Command, ...]:
        """End the running operation of the rebalance with this outcome."""
        assert self.state.op is not None, f"no operation is running in {self.state.phase}"
        return self.send(ev.Finished, op=self.state.op, outcome=outcome)

    def answer_commit(self, outcome: ev.Outcome | None = None) -> tuple[cmd.Command, ...]:
        """End the running commit with this outcome; by default it stores all positions."""
        commits = self.state.commits
        assert commits.running is not None, "no commit is running"
        if outcome is None:
            versions = {
                tp: 0 if version is None else version + 1
                for tp, (_, version) in commits.plan.writes.items()
            }
            outcome = ev.Committed(versions, {}, frozenset(), {})
        return self.send(ev.Finished, op=commits.op, outcome=outcome)

    def answer_sync(self) -> tuple[cmd.Command, ...]:
        assert self.state.lease.op is not None, "no sync is running"
        outcome = ev.Synced(self.now)
        return self.send(ev.Finished, op=self.state.lease.op, outcome=outcome)

    def wait(self, seconds: float) -> tuple[cmd.Command, ...]:
        """Advance the time with a tick at every deadline, and answer all `sync` requests."""
        end, done = self.now + seconds, ()
        while self.state.phase is not Phase.CLOSED and next_deadline(self.state) <= end:
            self.now = max(self.now, next_deadline(self.state))
            done += self.send(ev.Tick)
            if self.state.lease.op is not None and self.state.connected:
                done += self.answer_sync()
        self.now = end
        return done

    def find_unclaimed(self, owned: Iterable[TopicPartition] = ()) -> tuple[cmd.Command, ...]:
        """Let two looks for idle peers in a row find that only `owned` have owner znodes."""
        settings = self.state.settings
        self.wait(settings.retries * settings.backoff_s)
        self.answer(ev.OwnersListed(frozenset(owned)))
        self.wait(settings.backoff_s + peers.spread_s(self.state))
        return self.answer(ev.OwnersListed(frozenset(owned)))

    def user_finishes(self, partitions: Iterable[TopicPartition]) -> tuple[cmd.Command, ...]:
        """Let the user finish all messages of those of these partitions that this member owns."""
        owned = self.state.owned
        wanted = {tp: owned[tp] for tp in partitions if tp in owned}
        return self.send(ev.ReleaseReady, partitions=wanted)

    def user_resets(self, tp: TopicPartition) -> tuple[cmd.Command, ...]:
        """Let `auto.offset.reset` or the user move a partition to offset 0."""
        epoch = self.state.owned[tp].epoch if tp in self.state.owned else 0
        return self.send(ev.PositionReset, partition=tp, epoch=epoch, offset=0)

    # ---- sequences of events ---------------------------------------------------------------------

    def connect(self, session: Session = SESSION) -> tuple[cmd.Command, ...]:
        done = self.send(ev.Connected, session=session, wall_ms=1)
        return done + self.answer_sync()

    def register(self) -> tuple[cmd.Command, ...]:
        return self.connect() + self.answer(ev.Registered(1))

    def read(self, group: GroupView | None = None) -> tuple[cmd.Command, ...]:
        assert self.state.phase is Phase.READING
        return self.answer(ev.ViewRead(group or view(), NOBODY))

    def claim(self, *blocked: TopicPartition) -> tuple[cmd.Command, ...]:
        """Let the running claim succeed, except for blocked partitions."""
        claim = self.last(cmd.Claim)
        got = {}
        for tp, thread in claim.partitions.items():
            if tp not in blocked:
                self.zxid += 1
                got[tp] = Ownership(thread, self.zxid)
        who = Blocker("g_other-0", 0xC3)
        return self.answer(ev.Claimed(got, dict.fromkeys(blocked, who), {}))

    def load(self, value: int | None = 10, version: int | None = 3) -> tuple[cmd.Command, ...]:
        wanted = self.last(cmd.LoadOffsets).partitions
        for tp in wanted:
            self.finished[tp] = self.delivered[tp] = value or 0
        return self.answer(ev.OffsetsLoaded({tp: StoredOffset(value, version) for tp in wanted}))

    def verify(self, *lost: TopicPartition) -> tuple[cmd.Command, ...]:
        """Let the read-back find all owner znodes of this member, except the given lost ones."""
        asked = self.last(cmd.Verify).partitions
        held = {
            tp: self.state.owned.get(tp, Ownership(thread, 99))
            for tp, thread in asked.items()
            if tp not in lost
        }
        return self.answer(ev.Verified(held, dict.fromkeys(lost)))

    def listened(self, error: str = "") -> tuple[cmd.Command, ...]:
        """Let the user's listener return or raise."""
        return self.answer(ev.ListenerReturned(self.last(cmd.CallListener).callback, error))

    def settle(self, group: GroupView | None = None) -> None:
        """Start the member, and let it settle as the owner of its partitions."""
        self.register()
        self.read(group)
        self.claim()
        self.load()
        self.verify()
        assert self.state.phase is Phase.SETTLED

    def drive(self, group: GroupView | None = None) -> None:
        """Let all operations succeed until the member has settled."""
        for _ in range(100):
            if not self.go_on(group):
                return
        raise AssertionError(f"never at rest: {self.state.phase}")

    def go_on(self, group: GroupView | None) -> bool:
        """Let the next operation succeed; return False if the member awaits no operation."""
        if self.state.lease.op is not None:
            self.answer_sync()
        elif self.state.commits.running is not None:
            self.answer_commit()
        elif self.state.op is None and self.state.phase is not Phase.STOPPING:
            return False
        else:
            return self._succeed(group)
        return True

    def _succeed(self, group: GroupView | None) -> bool:
        match self.state.phase:
            case Phase.REGISTERING:
                self.answer(ev.Registered(1))
            case Phase.RECOVERING | Phase.VERIFYING:
                self.verify()
            case Phase.READING:
                self.read(group)
            case Phase.STOPPING:
                self.user_finishes(self.state.revoking)
            case Phase.BEFORE_RELEASE | Phase.BEFORE_START:
                self.listened()
            case Phase.RELEASING:
                self.answer(ev.Released({}))
            case Phase.CLAIMING:
                self.claim()
            case Phase.LOADING:
                self.load()
            case _:
                return False
        return True

    # ---- queries ---------------------------------------------------------------------------------

    def last(self, kind: type[C]) -> C:
        """Return the latest command of this kind."""
        return next(command for command in reversed(self.log) if isinstance(command, kind))

    def notices(self) -> list[cmd.NoticeKind]:
        return [command.kind for command in self.log if isinstance(command, cmd.Notice)]


def of(commands: Iterable[cmd.Command], kind: type[C]) -> list[C]:
    """Return the commands of one kind."""
    return [command for command in commands if isinstance(command, kind)]


def one(commands: Iterable[cmd.Command], kind: type[C]) -> C:
    """Return the only command of this kind."""
    (command,) = of(commands, kind)
    return command


PEER = "g_z"
"""A member that sorts after `ME`, so that `ME` keeps the first two of four partitions."""
TWO = view([ME, PEER])


def joined(member: Member, group: GroupView = TWO) -> tuple[cmd.Command, ...]:
    """Change the group to `group`, and let the member read it."""
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    return member.read(group)


def member_in(phase: Phase, **settings: Any) -> Member:
    """Return a member in `phase`, which the shortest sequence of events has reached."""
    if phase in (Phase.BEFORE_RELEASE, Phase.BEFORE_START):
        return _at_the_listener(phase, **settings)
    member = Member(**settings)
    if phase is Phase.OFFLINE:
        return member
    member.connect()
    if phase is Phase.REGISTERING:
        return member
    member.answer(ev.Registered(1))
    if phase is Phase.READING:
        return member
    member.read()
    if phase is Phase.CLAIMING:
        return member
    member.claim(*(tps(3) if phase is Phase.WAITING else ()))
    if phase is Phase.LOADING:
        return member
    member.load()
    if phase is Phase.VERIFYING:
        return member
    member.verify()
    if phase not in (Phase.WAITING, Phase.SETTLED):
        _leave_rest(member, phase)
    assert member.state.phase is phase
    return member


def _at_the_listener(phase: Phase, **settings: Any) -> Member:
    member = Member(**({"listener_s": 1.0} | settings))
    member.register()
    member.read()
    if phase is Phase.BEFORE_START:
        member.listened()
        member.claim()
    else:
        member.drive()
        _leave_rest(member, Phase.STOPPING)
        member.user_finishes(tps(2, 3))
        member.answer_commit()
    assert member.state.phase is phase
    return member


def _leave_rest(member: Member, phase: Phase) -> None:
    """Move a settled member into a phase with a running operation."""
    member.finished |= dict.fromkeys(member.state.owned, 15)
    member.delivered |= dict.fromkeys(member.state.owned, 16)
    if phase in (Phase.LEAVING, Phase.CLOSED):
        member.send(ev.CloseRequested)
        if phase is Phase.CLOSED:
            member.answer_commit()
        return
    if phase is Phase.RECOVERING:
        member.send(ev.Suspended)
        member.connect()
        return
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.read(TWO)
    if phase in (Phase.COMMITTING, Phase.RELEASING):
        member.user_finishes(tps(2, 3))
    if phase is Phase.RELEASING:
        member.answer_commit()
