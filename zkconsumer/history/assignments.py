"""Compute which thread should own each partition of a group, from its registrations and topics.

The logs do not contain the rules that a group follows: its strategy, and the release of its
members. The owners of a settled group show the rules. Before a group has settled, several rules are
possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from zkconsumer.errors import MalformedZnodeError
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import (
    AssignmentFailure,
    GroupInput,
    assign_group,
)
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Pattern, read_registration
from zkconsumer.protocol.releases import DEFAULT, Profile, profile

Threads = Mapping[TopicPartition, str]
"""The thread that owns, or should own, each partition."""

MAX_ASSIGNMENTS: Final = 64
"""Number of assignments that are cached for a group. A flapping member alternates between two."""

MAX_SETTLED: Final = 16
"""Number of settled states of a group that are kept as evidence. Few groups need an assignment by
each of the likely rules, so the states are compared with the rules as late as possible."""


class FollowedRules(NamedTuple):
    """The rules by which the members of a group compute the assignment."""

    strategy: Strategy
    profile: Profile
    name: str

    def __str__(self) -> str:
        return self.name


LIKELIEST: Final = FollowedRules(
    Strategy.RANGE, DEFAULT, f"{Strategy.RANGE.value} of {DEFAULT.release}"
)
"""The rules that a group is expected to follow before it first settles."""

Candidate: TypeAlias = tuple[Strategy, Profile]
"""A strategy, and the release whose rules it follows."""

CANDIDATES: Final = (
    (Strategy.RANGE, DEFAULT),
    (Strategy.ROUND_ROBIN, DEFAULT),
    (Strategy.ROUND_ROBIN, profile("1.1.1")),
)
"""The assignment rules that a group may follow before it first settles, if no member subscribes by
a pattern."""


class RegistrationZnode(NamedTuple):
    """A registration: the session that created it, and its payload."""

    session: int
    payload: bytes | None


class Assignments:
    """The assignments of one group under the rules that its members may follow."""

    def __init__(
        self, members: Mapping[str, RegistrationZnode], topics: Mapping[str, bytes | None]
    ) -> None:
        """`members` and `topics` change; call `members_changed` and `topics_changed` after that."""
        self._members, self._topics = members, topics
        self.rules: FollowedRules | None = None
        self._candidates: Sequence[Candidate] = CANDIDATES
        self._wanted: Threads | None = None
        self._is_known = False
        self._settled: list[tuple[GroupInput, Threads]] = []
        self._cache: dict[object, Threads | None] = {}
        self._unexplained: set[object] = set()
        self._named: dict[str, bool] = {}

    def members_changed(self) -> None:
        """Forget what was computed from the registrations."""
        self._is_known = False
        self._named.clear()

    def topics_changed(self) -> None:
        """Forget what was computed from the topics."""
        self._is_known = False
        self._cache.clear()
        self._unexplained.clear()

    def restore(self, wanted: Threads | None) -> None:
        """Let `wanted` return an assignment that it has returned before."""
        self._wanted = wanted

    def exists(self, topic: str) -> bool:
        """Return whether a topic exists."""
        return topic in self._topics

    def names(self, topic: str) -> bool:
        """Return whether a readable registration without a pattern subscribes to a topic."""
        if topic not in self._named:
            found = any(topic in _topics(one.payload) for one in self._members.values())
            self._named[topic] = found
        return self._named[topic]

    def names_partitions(self) -> bool:
        """Return whether `names` is true for a topic that certainly has partitions."""
        return any(
            b":[" in (self._topics.get(topic) or b"")
            for one in self._members.values()
            for topic in _topics(one.payload)
        )

    def wanted(self) -> Threads | None:
        """Return the assignment by the last known rules; None if a member cannot compute it."""
        if not self._is_known:
            self._is_known = True
            rules = self.rules or LIKELIEST
            key = self._registered(), rules.strategy, rules.profile.release
            if key not in self._cache:
                if len(self._cache) >= MAX_ASSIGNMENTS:
                    self._cache.clear()
                found = None
                if self._topics:
                    found = _by_rules(self._input(), rules.strategy, rules.profile)
                self._cache[key] = found
            self._wanted = self._cache[key]
        return self._wanted

    def explaining(self, threads: Threads) -> FollowedRules | None:
        """Return the rules by which every member owns its share, or None if there are none."""
        if self._wanted is None or self._wanted.keys() != threads.keys():
            return None
        if self._wanted == threads:
            self.rules = self.rules or LIKELIEST
            self._settled_with(threads)
            return self.rules
        found = self._nearest(threads)
        if found is not None:
            self.rules, self._wanted = found, dict(threads)
            self._settled_with(threads)
        return found

    def _nearest(self, threads: Threads) -> FollowedRules | None:
        """Return any rules by which every member owns its share, or None if there are none."""
        from zkconsumer.protocol.release_detection import nearest  # noqa: PLC0415 - rarely needed

        state = self._registered(), frozenset(threads.items())
        if state in self._unexplained:
            return None
        rules = nearest(self._input(), threads)
        parts = [p for p in rules.parts.values() if not isinstance(p, AssignmentFailure)]
        if {tp: thread for part in parts for tp, thread in part.items()} == threads:
            return FollowedRules(rules.strategy, rules.profile, str(rules))
        if len(self._unexplained) >= MAX_ASSIGNMENTS:
            self._unexplained.clear()
        self._unexplained.add(state)
        return None

    def likely(self) -> list[Threads]:
        """Return the assignments that the members may follow; empty if a member cannot compute one.

        Before a group has settled, its owners exclude no rules: the owners may be older than the
        registrations, and another client may have deleted some owner znodes.
        """
        wanted = self.wanted()
        self._exclude()
        if wanted is None or len(self._candidates) < 2:
            return [] if wanted is None else [wanted]
        found = (_by_rules(self._input(), *one) for one in self._candidates)
        return [whole for whole in found if whole is not None]

    def _settled_with(self, threads: Threads) -> None:
        """Keep the owners of the settled group, as evidence against some of the likely rules."""
        if len(self._candidates) > 1:
            topics = dict(self._topics)  # a copy, because the topics change
            self._settled.append((replace(self._input(), topics=topics), dict(threads)))
            if len(self._settled) >= MAX_SETTLED:
                self._exclude()

    def _exclude(self) -> None:
        """Exclude the rules that do not explain the owners of a settled group."""
        for group, threads in self._settled:
            if len(self._candidates) > 1:
                self._candidates = tuple(
                    one for one in self._candidates if _by_rules(group, *one) == threads
                )
        self._settled.clear()

    def _input(self) -> GroupInput:
        registrations = {one: found.payload for one, found in sorted(self._members.items())}
        return GroupInput(Strategy.RANGE, registrations, self._topics)

    def _registered(self) -> frozenset[tuple[str, bytes | None]]:
        """Return the consumer ids with their registrations."""
        return frozenset((one, found.payload) for one, found in self._members.items())


def _by_rules(group: GroupInput, strategy: Strategy, rules: Profile) -> Threads | None:
    """Return the assignment that the members compute by these rules; None if the computation fails
    for a member."""
    return assign_group(replace(group, strategy=strategy), rules)


@lru_cache(maxsize=1024)
def _topics(payload: bytes | None) -> frozenset[str]:
    """Return the topics of a registration; none if it is unreadable or has a pattern."""
    try:
        registration = read_registration(payload, where="")
    except MalformedZnodeError:
        return frozenset()
    if registration.pattern is not Pattern.STATIC:
        return frozenset()
    return frozenset(topic for topic, streams in registration.subscription.items() if streams > 0)
