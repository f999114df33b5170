"""Generators that can be copied, so that a world with running generators can be copied."""

from __future__ import annotations

from collections.abc import Callable, Generator
from copy import copy
from typing import Self, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Result = TypeVar("Result")


class Repeatable(Generator[Asked, Answer, Result]):
    """A generator that can be copied: the function that begins it, and the answers that it got.

    Python cannot copy a generator. When a copy continues, it begins the generator again, and sends
    it the same answers first. So the generator must depend on nothing but its answers, and must
    change nothing outside itself.

    Attributes:
        sent: the answers so far; the first `next` or `send(None)` is not one.
    """

    __slots__ = ("_begin", "_is_begun", "_running", "sent")

    def __init__(self, begin: Callable[[], Generator[Asked, Answer, Result]]) -> None:
        self._begin = begin
        self.sent: tuple[Answer, ...] = ()
        self._is_begun = False
        self._running: Generator[Asked, Answer, Result] | None = None

    def copy(self) -> Self:
        """Return a generator that continues independently from here."""
        twin = copy(self)
        twin._running = None
        return twin

    def unstarted(self) -> Generator[Asked, Answer, Result]:
        """Return a new generator of the same function, which shows the function's name."""
        return self._begin()

    def __next__(self) -> Asked:
        assert not self._is_begun
        self._is_begun = True
        self._running = self._begin()
        return next(self._running)

    def send(self, answer: Answer, /) -> Asked:
        if not self._is_begun:
            return next(self)
        if self._running is None:
            self._running = self._begin()
            next(self._running)
            for earlier in self.sent:
                self._running.send(earlier)
        self.sent = (*self.sent, answer)
        return self._running.send(answer)

    def throw(self, *_: object) -> Asked:
        """Raise NotImplementedError: nothing throws an exception into a member's program."""
        raise NotImplementedError

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
