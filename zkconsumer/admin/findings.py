"""Findings of `verify` and `doctor`, and the group that their checks examine.

A `Finding` is one thing that is wrong with a group. An `ExaminedGroup` holds the data that were
read of a group, and everything that the checks derive from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import groupby
from typing import Protocol

from zkconsumer.admin.groups import GroupImage
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import AccessDeniedError, Advice, RemedyOperation
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import (
    AssignmentFailure,
    GroupInput,
    RequestedTopics,
    requested_topics,
)
from zkconsumer.protocol.group_health import GroupHealth
from zkconsumer.protocol.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.protocol.paths import consumer_of
from zkconsumer.protocol.payloads import TopicPayloads
from zkconsumer.protocol.release_detection import Rules, detect, held_by_each, nearest
from zkconsumer.protocol.releases import DEFAULT
from zkconsumer.protocol.requests import Right


class Severity(Enum):
    """Severity of a finding; errors and warnings are problems, notes are not."""

    ERROR = "error"  # the group, or a part of it, does not work
    WARNING = "warning"  # the group works, but something is wrong or will go wrong
    NOTE = "note"  # something could not be examined


@dataclass(frozen=True, slots=True)
class Fix:
    """A repair of one znode: write `data` to it, or delete it if `data` is None.

    The znode is always persistent. An ephemeral znode belongs to a live session, and ends with it.
    `mzxid` identifies the state of the znode that was found wrong.
    """

    path: str
    mzxid: int
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a group.

    Attributes:
        code: kind of the finding, for programs.
        subject: the member, topic, thread or znode concerned.
        what: one sentence that says what is wrong.
        why: one sentence that says what the consequence is.
        remedy: what to do about it.
        advice: the remedy as data, where one of zkconsumer's operations is the remedy.
        partitions: the partitions of the topic that are concerned.
        fixes: the repairs that `doctor --fix` plans; empty if it cannot repair this.
        sessions: the sessions that `remedy` names; ZooKeeper's servers know their clients.
        written: zxids of writes whose client is unknown.
    """

    severity: Severity
    code: str
    group: str
    subject: str
    what: str
    why: str
    remedy: str
    partitions: tuple[int, ...] = ()
    fixes: tuple[Fix, ...] = ()
    advice: Advice | None = None
    sessions: tuple[int, ...] = ()
    written: tuple[int, ...] = ()

    @property
    def is_problem(self) -> bool:
        """Whether this is an error or a warning."""
        return self.severity is not Severity.NOTE

    def __str__(self) -> str:
        return f"{self.group}: {self.subject}: {self.what}"


_SHOWN_RUNS = 12


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, such as `0-3, 7`; after 12 ranges, only a count of the further
    numbers."""
    placed = enumerate(sorted(set(numbers)))
    runs = [
        [number for _, number in run] for _, run in groupby(placed, lambda pair: pair[1] - pair[0])
    ]
    first, more = runs[:_SHOWN_RUNS], sum(map(len, runs[_SHOWN_RUNS:]))
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in first)
    return f"{text} and {more} more" if more else text


def partitions_of(numbers: Iterable[int]) -> str:
    """Return partition numbers as ranges with their noun: `partition 7`, `partitions 0-3, 7`."""
    known = set(numbers)
    return f"partition{'s' if len(known) > 1 else ''} {ranges(known)}"


# ---- the examined group --------------------------------------------------------------------------


class LogEnds(Protocol):
    """A partition's log: its first offset, and the offset after its last message."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


@dataclass(frozen=True)
class ExaminedGroup:
    """The data that were read of a group, and the values that the checks derive from them.

    Attributes:
        image: the group's znodes.
        topics: topic -> payload of its znode, of all topics.
        logs: partition -> its log, or why the log is unknown; only the requested partitions.
        rights: znode -> its access control list, or ZooKeeper's refusal; only the znodes that were
            read.
        settings: the members' settings, if the user gave them.
        has_brokers: whether a broker is registered.
        seen: who uses the group, if it was read twice.
        read: partitions with only transaction markers between offset and log end, as far as the
            brokers were asked.
    """

    image: GroupImage
    topics: TopicPayloads
    logs: Mapping[TopicPartition, LogEnds | str] = field(default_factory=dict)
    rights: Mapping[str, tuple[Right, ...] | AccessDeniedError] = field(default_factory=dict)
    settings: ConsumerConfig | None = None
    has_brokers: bool = True
    seen: GroupHealth | None = None
    read: frozenset[TopicPartition] = frozenset()

    @property
    def health(self) -> GroupHealth:
        """Who uses the group."""
        return self.image.health if self.seen is None else self.seen

    @property
    def group(self) -> str:
        """The group's name."""
        return self.image.name

    @cached_property
    def owners(self) -> dict[TopicPartition, ThreadId]:
        """Partition -> the thread that owns it."""
        return self.image.threads

    @cached_property
    def owned_by(self) -> dict[tuple[str, ThreadId], tuple[int, ...]]:
        """(topic, thread) -> the partitions that the thread owns, ascending."""
        found: dict[tuple[str, ThreadId], list[int]] = {}
        for tp, thread in sorted(self.owners.items()):
            found.setdefault((tp.topic, thread), []).append(tp.partition)
        return {key: tuple(numbers) for key, numbers in found.items()}

    @cached_property
    def owning(self) -> frozenset[ConsumerId]:
        """The consumer ids that own a partition."""
        return frozenset(map(consumer_of, self.owners.values()))

    @cached_property
    def live(self) -> GroupInput:
        """The input from which the members compute the assignment, with the strategy of
        `settings`."""
        given = self.settings
        strategy = Strategy(given.partition_assignment_strategy) if given else Strategy.RANGE
        exclude = given.exclude_internal_topics if given else True
        return self.image.group_input(self.topics, strategy, exclude_internal=exclude)

    @cached_property
    def rules(self) -> Rules:
        """Strategy, release and `exclude.internal.topics` that explain the owner znodes best."""
        return nearest(self.live, self.owners)

    @cached_property
    def wanted(self) -> RequestedTopics:
        """The topics that the members subscribe to."""
        return requested_topics(
            self.image.members, self.topics, exclude_internal=self.rules.exclude_internal
        )

    @cached_property
    def due(self) -> dict[TopicPartition, ThreadId]:
        """Partition -> the thread that should own it by `rules`; members that fail are left out."""
        return {
            tp: thread
            for part in self.rules.parts.values()
            if not isinstance(part, AssignmentFailure)
            for tp, thread in part.items()
        }

    @cached_property
    def disagreements(self) -> Mapping[ConsumerId, str]:
        """Member -> the rules by which it assigns partitions, for members whose rules differ from
        the others'."""
        if self.wanted.faults:
            return {}
        rules = self.rules
        as_found = replace(
            self.live, strategy=rules.strategy, exclude_internal=rules.exclude_internal
        )
        # If these rules explain every owner, only ambiguous registrations can still disagree.
        held = held_by_each(self.image.registrations, self.owners)
        left = {} if held == rules.parts else self.owners
        return detect(as_found, left, own=rules.profile if left else DEFAULT).disagreements

    def session_of(self, path: str) -> int:
        """Return the session that holds a znode; 0 for a persistent znode."""
        return self.image.nodes[path].stat.owner

    @property
    def fix_advice(self) -> Advice:
        """Advice to apply the doctor's fixes to this group."""
        return Advice(RemedyOperation.FIX, self.group)

    def fix(self, path: str, data: bytes | None = None) -> Fix:
        """Return the fix that replaces the payload of a znode, or deletes the znode if `data` is
        None."""
        return Fix(path, self.image.nodes[path].stat.mzxid, data)

    def fixes_of_tree(self, root: str) -> tuple[Fix, ...]:
        """Return the fixes that delete a znode's subtree; empty if a session holds a znode of the
        subtree."""
        found = list(self.below(root))
        if any(self.session_of(path) for path in found):
            return ()
        return tuple(map(self.fix, reversed(found)))

    def below(self, root: str) -> Iterator[str]:
        """Yield a znode and all znodes that were read below it, parents first."""
        if root in self.image.nodes:
            yield root
        for child in self._children.get(root, ()):
            yield from self.below(child)

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in self.image.nodes:
            found.setdefault(path.rpartition("/")[0], []).append(path)
        return found
