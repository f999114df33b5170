"""Stories: a world that a script directs, how a story ends, and its recording as a trace.

The script requests some moves, and a fixed rule of the world's kind chooses the rest. A story
therefore needs no decisions and is the same in every run.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.sim.kernel.search import Counts
from zkconsumer.sim.kernel.world import InvariantViolation, World
from zkconsumer.trace import VERSION

Emit = Callable[[JsonObject], None]


W = TypeVar("W", bound=World[Any])  # Any: the class of the world's moves
W_contra = TypeVar("W_contra", contravariant=True)


class StoryStuckError(AssertionError):
    """A condition that a story waits for has not become true."""


class Narrator(Protocol[W_contra]):
    """Receives the announcements of a story, for instance a `Recorder`."""

    def note(self, world: W_contra, text: str) -> None: ...
    def scene(self, world: W_contra, text: str) -> None: ...


class StoryStage(ABC, Generic[W]):
    """One world, and the commands of a story.

    `LIMIT_S`: the virtual seconds within which a story's condition must become true.
    """

    LIMIT_S: ClassVar[float]

    def __init__(self, world: W, narrator: Narrator[W]) -> None:
        self.world = world
        self._narrator = narrator

    def say(self, text: str) -> None:
        """Announce what happens next."""
        self._narrator.note(self.world, text)

    def scene(self, *settled: int) -> None:
        """Let these members join and settle before the story begins."""
        names = [self.name_of(who) for who in settled]
        have = "has" if len(names) == 1 else "have"
        self._narrator.scene(self.world, f"{' and '.join(names)} {have} settled")
        self.join(*settled)
        self.rest()

    @abstractmethod
    def name_of(self, who: int) -> str:
        """Return a member's name."""

    @abstractmethod
    def join(self, *who: int) -> None:
        """Start these members' processes."""

    @abstractmethod
    def step(self) -> bool:
        """Perform the next move that needs no command; return False if there is none."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Let time pass, and perform everything that becomes due."""

    @abstractmethod
    def rests(self) -> bool:
        """Return whether the group has settled and nothing is in progress."""

    def until(self, done: Callable[[], object], what: str) -> None:
        """Run until `done()` is true; raise StoryStuckError if it is not within `LIMIT_S`."""
        deadline = self.world.now + self.LIMIT_S
        while not done():
            if not self.step() or self.world.now > deadline:
                raise StoryStuckError(f"{what} has not happened by {self.world.now:.1f} s")

    def rest(self) -> None:
        """Run until all members are settled and all messages are read."""
        self.until(self.rests, "rest")


S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Story(Generic[S]):
    """A story: its title, what it shows, and its script."""

    title: str
    lesson: str
    script: Callable[[S], None]

    @property
    def name(self) -> str:
        """The title as a file name."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def lesson_of(script: Callable[[S], None]) -> str:
    """Return what a story shows: the docstring of its script, as one line."""
    return " ".join((script.__doc__ or "").split())


@dataclass(frozen=True)
class StoryRun:
    """How a story or a random run ended.

    Attributes:
        unowned: partitions without an owner at the end; a group with JVM members may settle
            although some partitions have no owner.
        violation: the promise that was broken, if any.
        rest: why the world did not settle, if it did not.
    """

    seconds: float
    deliveries: int
    duplicates: int
    unowned: int
    violation: str = ""
    rest: str = ""


def narrated(
    on: StoryStage[W], monitor: Counts, script: Callable[[], None], unowned: Callable[[], int]
) -> StoryRun:
    """Play a script to its end, and return how it ended."""
    violation = rest = ""
    try:
        script()
    except InvariantViolation as found:
        violation = str(found)
    except StoryStuckError as stuck:
        rest = str(stuck)
    counts = monitor.deliveries, monitor.duplicates, unowned()
    return StoryRun(round(on.world.now, 3), *counts, violation, rest)


class Recorder(Generic[W]):
    """Passes what happens in a world to `emit`, as the entries of a trace."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._gone: set[int] = set()

    def note(self, world: W, text: str) -> None:
        """Record an event that a member cannot know."""
        self._put(world, note=text)

    def scene(self, world: W, text: str) -> None:
        """Record the situation at the start of the story, without the events before it."""
        self._put(world, scene=text)

    def _ended(self, world: W, who: int, name: str) -> None:
        """Record the end of a member's process, once."""
        if who not in self._gone:
            self._gone.add(who)
            self._put(world, member=name, gone=True)

    def _put(self, world: W, **entry: Json) -> None:
        self._emit({"v": VERSION, "t": round(world.now, 6), **entry})
