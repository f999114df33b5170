"""What the runs of all protocols share: the moves so far, and a camera that makes frames of them.

`lab.camera` describes pictures and frames, and has the camera of the ZooKeeper world.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from zkconsumer.errors import RefusedError
from zkconsumer.lab.causality import Causes
from zkconsumer.lab.worlds import (
    DELAY_REPLY,
    DELAY_REQUEST,
    DROP_REPLY,
    DROP_REQUEST,
    PASS_TIME,
    PRODUCE,
    LabMove,
)
from zkconsumer.protocol.model import Json, JsonObject, TopicPartition
from zkconsumer.sim.kernel.stories import Emit, StoryStage, StoryStuckError
from zkconsumer.sim.kernel.world import Delivered, World
from zkconsumer.sim.world import World as ZooKeeperWorld

W = TypeVar("W", bound=World[Any])  # Any: the class of the world's moves

NOBODY, STRANGER = -1, -2


def copied(one: Any) -> Any:  # Any: a camera or a stage; the result has the class of the argument
    """Return a shallow copy of an object whose dictionaries, lists and sets are copied too."""
    twin = copy.copy(one)
    for name, value in vars(one).items():
        if isinstance(value, dict | list | set):
            setattr(twin, name, value.copy())
    return twin


class DeliveryCount:
    """Counts the messages that users got.

    Attributes:
        below: partition -> the offset after the last message that a user got.
        delivered, redelivered: numbers of messages.
    """

    def __init__(self) -> None:
        self.below: dict[TopicPartition, int] = {}
        self.delivered = self.redelivered = 0

    def count(self, message: Delivered) -> bool:
        """Count a message; return whether it was delivered before."""
        tp, end = message.tp, message.offset + 1
        is_again = end <= self.below.get(tp, 0)
        self.delivered += 1
        self.redelivered += is_again
        self.below[tp] = max(self.below.get(tp, 0), end)
        return is_again


class Camera(ABC, Generic[W]):
    """Watches a world, and turns each move into a frame."""

    def __init__(self, causes: Causes[W]) -> None:
        self.causes = causes
        self.tally = DeliveryCount()
        self.changed_owner = 0
        self.unowned_s = 0.0
        self._now = 0.0
        self._events: list[list[Json]] = []
        self._words: list[str] = []

    def copy(self) -> Self:
        """Return a copy of the camera. The camera and its copy continue independently."""
        twin: Self = copied(self)
        twin.causes = self.causes.copy(self.causes.record.copy())
        twin.tally = copied(self.tally)
        return twin

    def picture(self, world: W) -> JsonObject:
        """Return the whole picture; the next frame contains the changes after it."""
        self._now = world.now
        parts = self._parts(world)
        self.causes.begin(world)
        self._words = []
        self._begin()
        return {"t": round(world.now, 4), **parts, "counters": self.counters()}

    def frame(self, world: W, move: LabMove, text: str) -> JsonObject:
        """Return the frame of a move: the parts of the picture that it has changed."""
        seconds, self._now = world.now - self._now, world.now
        self.unowned_s += seconds * self._unowned()
        frame: JsonObject = {"t": round(world.now, 4), "d": str(move), "l": text}
        frame |= self._changes(world, move.who)
        if any(event[0] == "owner" for event in self._events):
            frame["o"] = 1
        if self._events:
            frame["x"] = self._events
        if self._words:
            frame["say"] = " ".join(self._words)
            self._words = []
        frame["c"] = self.counters()
        self.causes.mark(world, move, text)
        self.causes.finish(world)
        frame |= self.causes.record.take()
        self._begin()
        return frame

    def _begin(self) -> None:
        """Forget what belongs to the last frame."""
        self._events = []

    @abstractmethod
    def counters(self) -> list[Json]:
        """Return the values of `camera.COUNTERS`; None for those that the protocol lacks."""

    @abstractmethod
    def _parts(self, world: W) -> JsonObject:
        """Read the whole world; return the members, partitions, tree and servers of the picture."""

    @abstractmethod
    def _changes(self, world: W, actor: int) -> JsonObject:
        """Read the world again, and return the parts of the picture that have changed."""

    @abstractmethod
    def _unowned(self) -> int:
        """Return the number of partitions without an owner after the last frame."""

    # ---- called by a story -----------------------------------------------------------------------

    def note(self, world: W, text: str) -> None:
        self._words.append(text)

    def scene(self, world: W, text: str) -> None:
        self._words.append(text)


class LabStage(StoryStage[W]):
    """A world, the moves so far, and a frame of each.

    Attributes:
        moves, defaults, frames: each move, whether the run has chosen it itself, and its frame.
        settled: the members that had settled when the picture was taken.
        picture: the whole state before the first move.
        on_move: is called after the picture and after each move.
    """

    IS_A_MESSAGE: ClassVar = (DELAY_REQUEST, DELAY_REPLY, DROP_REQUEST, DROP_REPLY)
    """Moves that name a message in transit."""

    def __init__(self, world: W, camera: Camera[W]) -> None:
        super().__init__(world, camera)
        self.camera = camera
        self.moves: list[LabMove] = []
        self.defaults: list[bool] = []
        self.frames: list[JsonObject] = []
        self.settled: tuple[int, ...] = ()
        self.picture: JsonObject = {}
        self.is_recording = False
        self.on_move: Callable[[], None] = lambda: None
        self._is_default = False

    def copy(self) -> Self:
        """Return a copy of the stage's state, without its moves and frames."""
        twin: Self = copied(self)
        twin.camera = twin._narrator = self.camera.copy()
        twin.world = twin._copy_of_world(twin.camera)
        twin.moves, twin.defaults, twin.frames = [], [], []
        twin.on_move, twin._is_default, twin.is_recording = lambda: None, False, True
        return twin

    def moved_to(self, world: W, camera: Camera[W]) -> Self:
        """Return a copy of the stage of a half of a world, for a copy of the world."""
        twin: Self = copied(self)
        twin.world, twin.camera, twin._narrator = world, camera, camera
        return twin

    @abstractmethod
    def _copy_of_world(self, camera: Camera[W]) -> W:
        """Return a copy of the world that this camera watches."""

    @property
    def now(self) -> float:
        return self.world.now

    def next_due(self) -> float:
        """Return the next time at which something is due; infinity if nothing is."""
        return self.world.next_moment()

    @property
    def zookeeper(self) -> ZooKeeperWorld | None:
        """The world of the members that use ZooKeeper; None if none does."""
        return None

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.world.log_end)

    # ---- the beginning ---------------------------------------------------------------------------

    @abstractmethod
    def record(self, emit: Emit) -> None:
        """Pass everything that happens from now on to `emit`, as entries of a trace."""

    def start(self, *settled: int) -> None:
        """Let these members join and settle, take the picture, and record from now on."""
        self.settled, self.is_recording = settled, False
        self._settle(settled)
        self.picture = self.camera.picture(self.world)
        self.is_recording = True
        self.on_move()

    def _settle(self, members: Sequence[int]) -> None:
        """Let these members join, and wait until the group has settled, if it does."""
        if members:
            self.join(*members)
            with suppress(StoryStuckError):
                self.rest()

    def scene(self, *settled: int) -> None:
        """Begin as a story does, after these members have settled."""
        self.start(*settled)

    # ---- moves -----------------------------------------------------------------------------------

    def move(self, move: LabMove) -> None:
        """Perform any move; the caller has checked that it is possible."""
        if move.do in (DROP_REQUEST, DROP_REPLY):
            self._drop(move)
        else:
            self._perform(move)

    def perform(self, move: LabMove) -> None:
        """Perform a move if it is possible here; otherwise raise RefusedError."""
        self.check(move)
        if move == self.next_move():
            self.step()
        else:
            self.move(move)

    @abstractmethod
    def _drop(self, move: LabMove) -> None:
        """Let the messages before this one arrive; then break the connection."""

    @abstractmethod
    def _perform(self, move: LabMove) -> None:
        """Perform a move other than a drop, and record it."""

    def _record(self, move: LabMove, perform: Callable[[], object]) -> None:
        if not self.is_recording:
            perform()
            return
        text, before = self.sentence(move), self.now
        perform()
        self.moves.append(move)
        self.defaults.append(self._is_default)
        text = self._outcome(move, text, before)
        self.frames.append(self.camera.frame(self.world, move, text))
        self.on_move()

    def _outcome(self, move: LabMove, text: str, before: float) -> str:
        """Return the sentence of a move that has been performed; `before`: the time before it."""
        return text

    def step(self) -> bool:
        """Perform the next ordinary move; return False if there is none."""
        self._is_default = True
        try:
            return self._step()
        finally:
            self._is_default = False

    @abstractmethod
    def _step(self) -> bool: ...

    # ---- which moves are possible ----------------------------------------------------------------

    @abstractmethod
    def choices(self) -> tuple[list[LabMove], LabMove | None, list[LabMove]]:
        """Return the ordinary moves, the move that `step` would perform, and all other moves."""

    @abstractmethod
    def next_move(self) -> LabMove | None:
        """Return the move that `step` would perform; None if there is none."""

    def check(self, move: LabMove) -> None:
        """Raise RefusedError if the move is impossible here."""
        if move.do in self.IS_A_MESSAGE:
            self._check_message(move)
        elif move.do == PRODUCE:
            if not 0 < move.value <= 1000:
                raise RefusedError("give 1 to 1000 messages")
        elif move.do == PASS_TIME:
            if not self.now <= move.value <= self.next_due():
                raise RefusedError(
                    "the clock advances only to the next moment at which something is due"
                )
        else:
            self._check(move)

    @abstractmethod
    def _check_message(self, move: LabMove) -> None:
        """Raise RefusedError if the move names no message in transit."""

    @abstractmethod
    def _check(self, move: LabMove) -> None:
        """Raise RefusedError if any other move is impossible here."""

    @abstractmethod
    def keeps_owners(self) -> bool:
        """Return whether no owner changes without a further action of the user."""

    # ---- texts -----------------------------------------------------------------------------------

    @abstractmethod
    def sentence(self, move: LabMove) -> str:
        """Return a sentence that describes a move before it is performed."""

    @abstractmethod
    def explain(self, number: int) -> str:
        """Return why the owner of a partition should own it, and who owns or delivers it."""


AnyStage: TypeAlias = LabStage[Any]
"""A stage of any world: with ZooKeeper, with a group coordinator, or with both and a bridge."""
