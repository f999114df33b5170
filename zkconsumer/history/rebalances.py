"""The state of one group while its history is replayed: members, owners, and the running rebalance.

A rebalance begins with a change of the members, of a subscribed topic, or of an owner znode. It
settles when the owners equal the assignment, and its row is complete when the next one begins.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any, Final, TypeAlias

from zkconsumer.errors import MalformedZnodeError, escaped
from zkconsumer.history.assignments import Assignments, RegistrationZnode
from zkconsumer.history.tables import Incident, Member, Ownership, Rebalance, Tables
from zkconsumer.protocol.model import TopicPartition, session_text
from zkconsumer.protocol.paths import consumer_of
from zkconsumer.protocol.payloads import owner_znode
from zkconsumer.protocol.registrations import decode_registration

Fields: TypeAlias = dict[str, Any]
"""Keyword arguments of the fields that all rows have."""

SETTLED_GRACE_MS: Final = 5_000
"""An owner znode that changes within this time after a group settled belongs to that rebalance. A
JVM member waits 2 s (`rebalance.backoff.ms`) before it tries again."""

BLOCKED_AFTER_MS: Final = 10_000
"""A group whose owners do not fit the assignment is reported as blocked after this time without a
change: JVM members give up after four attempts, 2 s apart."""


class Now:
    """The transaction that is being applied.

    Attributes:
        from_ms: the time of the first transaction; the logs say nothing about earlier times.
    """

    __slots__ = ("file", "from_ms", "time_ms", "zxid")

    def __init__(self) -> None:
        self.zxid = self.time_ms = self.from_ms = 0
        self.file = ""

    def event(self) -> Fields:
        """Return the fields that every row has."""
        return {"zxid": self.zxid, "time_ms": self.time_ms, "file": self.file}


class ReplayedGroup:
    """The present state of one group. It adds rows to the tables.

    Attributes:
        members: consumer id -> its registration.
        owners: partition -> the row of its owner.
        owned_before: partition -> the sessions that have owned it.
    """

    def __init__(
        self, chroot: str, name: str, topics: dict[str, bytes | None], now: Now, tables: Tables
    ) -> None:
        self.chroot, self.name = chroot, name
        self.members: dict[str, RegistrationZnode] = {}
        self.owners: dict[TopicPartition, Ownership] = {}
        self.owned_before: dict[TopicPartition, set[int]] = {}
        self.assignments = Assignments(self.members, topics)
        self._now, self._tables = now, tables
        self._threads: dict[TopicPartition, str] = {}
        self._held: dict[str, int] = {}  # consumer id -> number of partitions that it owns
        self._lost_ms: dict[TopicPartition, int] = {}
        self._rebalance: Rebalance | None = None
        # The owners, at the beginning of the rebalance, of the partitions that changed since then.
        self._before: dict[TopicPartition, str | None] = {}
        self._members_before: frozenset[str] = frozenset()
        self._changed_ms = 0

    def fields(self) -> Fields:
        """Return the fields that every row of a group has."""
        now = self._now
        return {
            "zxid": now.zxid,
            "time_ms": now.time_ms,
            "file": now.file,
            "chroot": self.chroot,
            "group": self.name,
        }

    def forget_rebalance(self) -> None:
        """Begin with the present members and owners, whose history is unknown."""
        self._rebalance, self._changed_ms = None, 0

    # ---- members -------------------------------------------------------------------------------

    def joined(self, consumer: str, session: int, data: bytes | None, *, event: str) -> None:
        """Record a registration, or a change of one."""
        changed = " its registration" if consumer in self.members else ""
        self._trigger(f"{consumer} {event}{changed}")
        self.members[consumer] = RegistrationZnode(session, data)
        self._member(consumer, session, event, data)

    def left(self, consumer: str, *, event: str) -> None:
        """Record the end of a registration."""
        self._trigger(f"{consumer} {event}")
        old = self.members.pop(consumer)
        self._member(consumer, old.session, event, old.payload)

    def _member(self, consumer: str, session: int, event: str, data: bytes | None) -> None:
        self._tables.members.append(
            Member(
                **self.fields(),
                consumer=consumer,
                session=session,
                event=event,
                registration=escaped((data or b"").decode(errors="replace")),
                unreadable=_fault(data),
            )
        )
        self.assignments.members_changed()
        self._check()

    def topic_changed(self, topic: str) -> None:
        """Record that a topic has changed the assignment."""
        self._trigger(f"topic {topic} changed")
        self._check()

    # ---- owners --------------------------------------------------------------------------------

    def claimed(self, tp: TopicPartition, session: int, data: bytes | None, *, path: str) -> None:
        """Record an owner znode; `session` is 0 if the znode is not ephemeral."""
        now = self._now
        znode = owner_znode(data, session=session, czxid=now.zxid, where=path)
        self._reopen("owner znodes were created")
        lost = self._lost_ms.pop(tp, None)
        owner = Ownership(
            **self.fields(),
            topic=tp.topic,
            partition=tp.partition,
            thread=escaped(znode.thread),
            consumer=escaped(self._consumer_of(znode.thread)),
            session=session,
            czxid=now.zxid,
            gap_ms=None if lost is None else now.time_ms - lost,
        )
        self._tables.ownership.append(owner)
        old = self.owners.get(tp)
        self._before.setdefault(tp, None if old is None else old.consumer)
        self._hold(old, -1)
        self._hold(owner, 1)
        self.owners[tp], self._threads[tp] = owner, owner.thread
        self.owned_before.setdefault(tp, set()).add(session)
        rebalance = self._rebalance
        if rebalance is not None:
            rebalance.claimed += 1
            rebalance.last_claim_ms = now.time_ms
            if lost is not None:
                rebalance.unowned_s += (now.time_ms - max(lost, rebalance.time_ms)) / 1000
        self._check()

    def _consumer_of(self, thread: str) -> str:
        """Return the consumer id that the text of an owner znode names.

        It is that of `group_health.owner_of`, whose module few histories need.
        """
        return thread if thread in self.members else consumer_of(thread)

    def released(self, tp: TopicPartition, *, how: str) -> None:
        """Record the end of an owner znode."""
        now = self._now
        self._reopen("owner znodes were deleted")
        owner = self.owners.pop(tp)
        del self._threads[tp]
        self._hold(owner, -1)
        self._before.setdefault(tp, owner.consumer)
        owner.ended, owner.ended_ms, owner.ended_zxid = how, now.time_ms, now.zxid
        self._lost_ms[tp] = now.time_ms
        rebalance = self._rebalance
        if rebalance is not None:
            rebalance.released += 1
            if rebalance.first_release_ms is None:
                rebalance.first_release_ms = now.time_ms
        self._check()

    def _hold(self, owner: Ownership | None, change: int) -> None:
        """Count the partitions that a consumer owns."""
        if owner is not None:
            self._held[owner.consumer] = count = self._held.get(owner.consumer, 0) + change
            if not count:
                del self._held[owner.consumer]

    def refused(self, session: int) -> None:
        """Count a refused write of a session, if it belongs to a rebalance."""
        rebalance = self._rebalance
        if rebalance is not None and self._lasts(rebalance):
            name = session_text(session)
            rebalance.refused[name] = rebalance.refused.get(name, 0) + 1

    # ---- rebalances ----------------------------------------------------------------------------

    def _trigger(self, why: str) -> None:
        """Begin a rebalance, or add a trigger to the rebalance that has not settled."""
        self.changes()
        rebalance = self._rebalance
        if rebalance is not None and rebalance.settled_ms is None:
            rebalance.triggers.append(why)
            return
        self._end()
        self._rebalance = Rebalance(**self.fields(), triggers=[why])
        self._before, self._members_before = {}, frozenset(self.members)
        self._tables.rebalances.append(self._rebalance)

    def _reopen(self, why: str) -> None:
        """Continue the rebalance in which an owner znode changes; begin one if there is none."""
        self.changes()
        rebalance = self._rebalance
        if rebalance is None or not self._lasts(rebalance):
            self._trigger(why)
        elif rebalance.settled_ms is not None:
            rebalance.settled_ms = None

    def _lasts(self, rebalance: Rebalance) -> bool:
        """Return whether a change at this moment belongs to a rebalance."""
        settled_ms = rebalance.settled_ms
        return settled_ms is None or self._now.time_ms - settled_ms <= SETTLED_GRACE_MS

    def _check(self) -> None:
        """Record the time if the owners now equal the assignor's assignment."""
        rebalance = self._rebalance
        if rebalance is None:
            return
        if not self.members and not self.owners:
            rebalance.settled_ms, rebalance.why = self._now.time_ms, "no member is left"
            return
        if self._is_partition_free() or self._has_stranger():
            return  # the group has not settled, and the assignment need not be computed
        wanted = self.assignments.wanted()
        if wanted is None:
            consumers = {owner.consumer for owner in self.owners.values()}
            if not self._lost_ms and consumers and consumers <= self.members.keys():
                rebalance.settled_ms = self._now.time_ms
                rebalance.why = "every partition has an owner; the topics' znodes are unknown"
            return
        rules = self.assignments.explaining(self._threads)
        if rules is not None:
            rebalance.settled_ms = self._now.time_ms
            rebalance.why = f"the owners follow {rules}"

    def _is_partition_free(self) -> bool:
        """Return whether a member certainly subscribes to a partition that has no owner."""
        assignments = self.assignments
        if not self.owners:
            return assignments.names_partitions()
        topic = next((tp.topic for tp in self._lost_ms if assignments.exists(tp.topic)), None)
        return topic is not None and assignments.names(topic)

    def _has_stranger(self) -> bool:
        """Return whether a partition's owner is certainly not registered."""
        members = self.members
        return not self._held.keys() <= members.keys() and any(
            one not in members and consumer_of(one) not in members for one in self._held
        )

    def _end(self) -> None:
        """Complete the row of a rebalance."""
        rebalance = self._rebalance
        if rebalance is None:
            return
        self._rebalance = None
        now_ms = self._now.time_ms
        wanted = self.assignments.wanted() if self._lost_ms else None
        for tp, lost in self._lost_ms.items():
            if not self.members or wanted is None or tp in wanted:
                until = rebalance.settled_ms if self.owners else None
                until = now_ms if until is None else until
                rebalance.unowned_s += max(0, until - max(lost, rebalance.time_ms)) / 1000
        rebalance.ended_ms = now_ms
        rebalance.members, rebalance.partitions = len(self.members), len(self.owners)
        staying = self._members_before & self.members.keys()
        for tp, old in self._before.items():
            owner = self.owners.get(tp)
            if owner is not None and old is not None and old != owner.consumer:
                rebalance.moved += 1
                rebalance.moved_without_need += {old, owner.consumer} <= staying
        if rebalance.settled_ms is None:
            rebalance.why = self._disorder()

    def _disorder(self) -> str:
        """Return the reason why the group has not settled."""
        wanted = self.assignments.wanted()
        if wanted is None:
            return "the assignment is unknown: a registration or a topic cannot be read"
        free = [tp for tp in wanted if tp not in self.owners]
        strangers = [one for one in self.owners.values() if one.consumer not in self.members]
        wrong = [tp for tp, thread in self._threads.items() if wanted.get(tp, thread) != thread]
        return (
            f"{len(free)} partitions had no owner, {len(strangers)} an owner that is not "
            f"registered, {len(wrong)} another owner than {self.assignments.rules or 'range'} "
            "assigns"
        )

    def finish(self) -> None:
        """Complete the row of the running rebalance."""
        rebalance = self._rebalance
        self.changes()
        self._end()
        if rebalance is not None:
            rebalance.ended_ms = rebalance.settled_ms

    # ---- incidents -----------------------------------------------------------------------------

    def changes(self) -> None:
        """Report blocked partitions and idle members, before a change of the group or the end."""
        since_ms = max(self._changed_ms, self._now.from_ms)
        rebalance = self._rebalance
        if (
            self._now.time_ms - since_ms >= BLOCKED_AFTER_MS
            and self.members
            and (rebalance is None or rebalance.settled_ms is None)
        ):
            self._stuck(since_ms)
        self._changed_ms = self._now.time_ms

    def _stuck(self, since_ms: int) -> None:
        """Report the members that gave up, and the owners that block partitions.

        While the group's rules are unknown, it reports only what is true under all likely rules.
        """
        likely = self.assignments.likely()
        if not likely:
            return
        from zkconsumer.protocol import group_health  # noqa: PLC0415 - few histories need it

        owners = {tp: owner.consumer for tp, owner in self.owners.items()}
        wrong = [group_health.blocked(one, owners) for one in likely]
        for tp, owner in self.owners.items():
            if not all(tp in one for one in wrong):
                continue
            is_member = owner.consumer in self.members
            why = f"but {wrong[0][tp]} should own it" if is_member else "which is not registered"
            self._incident(
                since_ms,
                "blocked partition",
                f"{tp.topic}-{tp.partition} is held by {owner.thread} (session "
                f"{session_text(owner.session)}), {why}",
                session=owner.session,
            )
        free = [group_health.unclaimed(one, self.owners) for one in likely]
        self._report_idle(free, since_ms)

    def _report_idle(self, unclaimed: list[dict[TopicPartition, str]], since_ms: int) -> None:
        """Report the members that should own partitions that are free by all likely rules."""
        free = [Counter(map(consumer_of, one.values())) for one in unclaimed]
        for consumer in sorted(self.members.keys() & set.intersection(*map(set, free))):
            session = self.members[consumer].session
            counts = self._rebalance.refused if self._rebalance else {}
            self._incident(
                since_ms,
                "member gave up",
                f"{consumer} did not claim {free[0][consumer]} partitions for "
                f"{(self._now.time_ms - since_ms) / 1000:.0f} s, after "
                f"{counts.get(session_text(session), 0)} refused writes",
                session=session,
            )

    def _incident(self, since_ms: int, kind: str, what: str, *, session: int) -> None:
        event = {**self.fields(), "time_ms": since_ms}
        self._tables.incidents.append(
            Incident(**event, kind=kind, what=what, ended_ms=self._now.time_ms, session=session)
        )


@lru_cache(maxsize=1024)
def _fault(payload: bytes | None) -> str:
    """Return why no member can read a registration, or "" if it is readable."""
    try:
        decode_registration(payload, where="")
    except MalformedZnodeError as error:
        return error.what
    return ""
