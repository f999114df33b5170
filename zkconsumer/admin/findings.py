"""What `verify` and `doctor` have to say: one finding for each thing that is wrong.

One group as `doctor` and `explain` look at it: what was read, and what follows from it.
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
from zkconsumer.errors import AccessDeniedError
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import (
    Failure,
    GroupInput,
    MemberAssignment,
    RequestedTopics,
    requested_topics,
)
from zkconsumer.protocol.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.protocol.paths import consumer_of
from zkconsumer.protocol.release_detection import Rules, detect, nearest
from zkconsumer.protocol.releases import DEFAULT
from zkconsumer.protocol.requests import Right


class Severity(Enum):
    """How bad it is; all but a note are problems."""

    ERROR = "error"  # the group does not work, or not wholly
    WARNING = "warning"  # it works, and something is wrong or will be
    NOTE = "note"  # something could not be looked at


@dataclass(frozen=True, slots=True)
class Mend:
    """What `doctor --fix` would do with one znode: write `data`, or delete it where that is None.

    Never a znode of a session, which is alive as long as its znode is there. `mzxid` says which
    state of the znode was found wrong.
    """

    path: str
    mzxid: int
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a group.

    Attributes:
        code: what kind of thing, a word for programs.
        subject: the member, topic, thread or znode concerned; `partitions`: those of the topic.
        what, why: one sentence each: what is wrong, and what comes of it.
        remedy: the command that mends it, or what else to do.
        mends: what `doctor --fix` does about it; empty where that cannot help.
    """

    severity: Severity
    code: str
    group: str
    subject: str
    what: str
    why: str
    remedy: str
    partitions: tuple[int, ...] = ()
    mends: tuple[Mend, ...] = ()

    @property
    def is_problem(self) -> bool:
        """Whether it counts for the exit code."""
        return self.severity is not Severity.NOTE

    def __str__(self) -> str:
        return f"{self.group}: {self.subject}: {self.what}"


_SHOWN_RUNS = 12


def ranges(numbers: Iterable[int]) -> str:
    """Partition numbers in short: `0-3, 7`; of very many runs the first, and how many more."""
    placed = enumerate(sorted(set(numbers)))
    runs = [
        [number for _, number in run] for _, run in groupby(placed, lambda pair: pair[1] - pair[0])
    ]
    shown, rest = runs[:_SHOWN_RUNS], sum(map(len, runs[_SHOWN_RUNS:]))
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in shown)
    return f"{text} and {rest} more" if rest else text


def partitions_of(numbers: Iterable[int]) -> str:
    """The same with the word before it: `partition 7`, `partitions 0-3, 7`."""
    known = set(numbers)
    return f"partition{'s' if len(known) > 1 else ''} {ranges(known)}"


def fix_command(group: str) -> str:
    """Return the command that makes the doctor's changes to a group."""
    return f"zkconsumer doctor --group {group} --fix --execute"


# ---- case ----------------------------------------------------------------------------------------


class Log(Protocol):
    """A partition's log: the first offset it has, and the one after the last."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


@dataclass(frozen=True)
class ExaminedGroup:
    """A group.

    Attributes:
        topics: payloads of all topics there are.
        logs: a partition's log, or why it is not known; those that were asked for.
        rights: znode -> its access control list, of those that were looked at.
        settings: the members', where somebody said them.
        has_brokers: whether a broker is registered.
    """

    image: GroupImage
    topics: Mapping[str, bytes | None]
    logs: Mapping[TopicPartition, Log | str] = field(default_factory=dict)
    rights: Mapping[str, tuple[Right, ...] | AccessDeniedError] = field(default_factory=dict)
    settings: ConsumerConfig | None = None
    has_brokers: bool = True

    @property
    def group(self) -> str:
        """Its name."""
        return self.image.name

    @cached_property
    def owners(self) -> dict[TopicPartition, ThreadId]:
        """Who owns what."""
        return self.image.threads

    @cached_property
    def owned_by(self) -> dict[tuple[str, ThreadId], tuple[int, ...]]:
        """(topic, thread) -> what it owns, ascending."""
        found: dict[tuple[str, ThreadId], list[int]] = {}
        for tp, thread in sorted(self.owners.items()):
            found.setdefault((tp.topic, thread), []).append(tp.partition)
        return {key: tuple(numbers) for key, numbers in found.items()}

    @cached_property
    def live(self) -> GroupInput:
        """What members compute the assignment from, as `settings` say."""
        said = self.settings
        strategy = Strategy(said.partition_assignment_strategy) if said else Strategy.RANGE
        exclude = said.exclude_internal_topics if said else True
        return self.image.group_input(self.topics, strategy, exclude_internal=exclude)

    @cached_property
    def rules(self) -> Rules:
        """Strategy, release and `exclude.internal.topics`, as the owner nodes show them."""
        return nearest(self.live, self.owners)

    @cached_property
    def wanted(self) -> RequestedTopics:
        """What the members ask for."""
        return requested_topics(
            self.image.members, self.topics, exclude_internal=self.rules.exclude_internal
        )

    @cached_property
    def due(self) -> dict[TopicPartition, ThreadId]:
        """Who should own what, by those rules; nothing where members would fail."""
        return {
            tp: thread
            for part in self.rules.parts.values()
            if not isinstance(part, Failure)
            for tp, thread in part.items()
        }

    @cached_property
    def quarrels(self) -> Mapping[ConsumerId, str]:
        """Members that go by other rules than the rest, and which."""
        if self.wanted.faults:
            return {}
        rules = self.rules
        as_found = replace(
            self.live, strategy=rules.strategy, exclude_internal=rules.exclude_internal
        )
        # Where these rules explain all, only registrations that mean two things are left to find.
        left = {} if self._held == rules.parts else self.owners
        return detect(as_found, left, own=rules.profile if left else DEFAULT).disagreements

    @property
    def _held(self) -> dict[ConsumerId, MemberAssignment]:
        held: dict[ConsumerId, MemberAssignment] = {
            consumer: {} for consumer in self.image.registrations
        }
        for tp, thread in self.owners.items():
            held.setdefault(consumer_of(thread), {})[tp] = thread
        return held

    def session_of(self, path: str) -> int:
        """The session that holds a znode; 0 for one that no session will take away."""
        return self.image.nodes[path].stat.owner

    def mend(self, path: str, data: bytes | None = None) -> Mend:
        """Have a znode deleted, or its payload replaced."""
        return Mend(path, self.image.nodes[path].stat.mzxid, data)

    def mends_of_tree(self, root: str) -> tuple[Mend, ...]:
        """Return the deletions of a znode and all below it; none if a session holds one of them."""
        found = list(self.below(root))
        if any(self.session_of(path) for path in found):
            return ()
        return tuple(map(self.mend, reversed(found)))

    def below(self, root: str) -> Iterator[str]:
        """A znode and all that were read below it, parents first."""
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
