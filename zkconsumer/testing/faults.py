"""Faults that a test asks a fake server for, and the requests that they hit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Self, TypeVar


class Fault(Enum):
    """What happens to a request and to its connection."""

    CUT_BEFORE = "the connection ends, and the request is not executed"
    CUT_AFTER = "the request is executed, and the connection ends without a reply"
    SILENCE = "the request is executed, and the connection carries nothing more to the client"


@dataclass(frozen=True, slots=True)
class Delay:
    """The request is executed at once; its reply and all later ones wait."""

    seconds: float


Call = TypeVar("Call")


@dataclass(eq=False)
class Injection(Generic[Call]):
    """A fault that hits certain requests; as a context manager it ends with the block.

    Attributes:
        fault: what happens.
        fits: whether the fault hits a request.
        times: how many requests it hits at most; None: each one, until `cancel`.
        count: how many requests it has hit.
    """

    fault: Fault | Delay
    fits: Callable[[Call], bool]
    times: int | None = 1
    count: int = 0
    _has_hit: threading.Event = field(default_factory=threading.Event)

    @property
    def is_over(self) -> bool:
        """Whether the fault hits no further request."""
        return self.times is not None and self.count >= self.times

    def take(self, call: Call) -> bool:
        """Return whether the fault hits this request, and count it."""
        if self.is_over or not self.fits(call):
            return False
        self.count += 1
        self._has_hit.set()
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until the fault has hit a request; return False after `timeout_s` seconds."""
        return self._has_hit.wait(timeout_s)

    def cancel(self) -> None:
        """Hit no further request."""
        self.times = self.count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class Injections(Generic[Call]):
    """The faults of one server, in the order in which the test asked for them."""

    def __init__(self) -> None:
        self._all: list[Injection[Call]] = []

    def add(self, injection: Injection[Call]) -> Injection[Call]:
        """Let a fault hit the next requests that it fits."""
        self._all = [one for one in self._all if not one.is_over] + [injection]
        return injection

    def take(self, call: Call) -> Fault | Delay | None:
        """Return the first fault that hits this request."""
        return next((one.fault for one in self._all if one.take(call)), None)
