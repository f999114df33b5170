"""If Ctrl-C comes while a process starts, the work is done completely or not at all."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from threading import Lock
from types import FrameType

import pytest

from zkconsumer.sandbox.process import uninterrupted

STARTED = _thread.start_new_thread


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Return a function that interrupts the main thread, and waits until the signal is handled."""
    noticed = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not noticed.is_set():
            noticed.set()
            raise KeyboardInterrupt

    def press() -> None:
        # A signal that comes just before the main thread blocks in `acquire` does not wake it, so
        # Python handles the signal only after the next one.
        for _ in range(600):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if noticed.wait(0.1):
                return
        raise AssertionError("the main thread did not handle the signal")

    before = signal.signal(signal.SIGINT, interrupt)
    yield press
    signal.signal(signal.SIGINT, before)


def test_interrupted_work_is_finished_first(ctrl_c: Callable[[], None]) -> None:
    """KeyboardInterrupt is raised in the caller when the work has ended."""
    done: list[str] = []
    returned = threading.Event()

    def work() -> None:
        ctrl_c()
        done.append("late" if returned.wait(0.2) else "all")

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(work)
    returned.set()
    assert done == ["all"]


def test_a_start_that_is_interrupted_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ctrl-C comes after the thread has begun, the work is finished first."""
    begun, returned = threading.Event(), threading.Event()
    done: list[str] = []

    def work() -> None:
        begun.set()
        done.append("late" if returned.wait(0.2) else "all")

    def start(run: Callable[[], None], arguments: tuple[()]) -> None:
        STARTED(run, arguments)
        assert begun.wait(60.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(_thread, "start_new_thread", start)
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(work)
    returned.set()
    assert done == ["all"]


def test_a_start_that_is_interrupted_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ctrl-C comes before the thread has begun, the work is never done."""
    done: list[str] = []
    late: list[Callable[[], None]] = []

    def start(run: Callable[[], None], arguments: tuple[()]) -> None:
        late.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(_thread, "start_new_thread", start)
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(lambda: done.append("all"))
    late[0]()
    assert done == []


def test_an_error_is_raised_in_the_caller() -> None:
    """If the work raises an error, the caller gets it."""

    def work() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        uninterrupted(work)


class _Interrupted:
    """A lock whose second `acquire` is interrupted just after it has succeeded."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        got = self._lock.acquire(blocking, timeout)
        self._calls += 1
        if self._calls == 2:
            raise KeyboardInterrupt
        return got

    def release(self) -> None:
        self._lock.release()


def test_an_interrupt_just_after_the_end_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ctrl-C comes just after the end of the work, KeyboardInterrupt is raised at once."""
    locks = iter((Lock(), _Interrupted()))
    monkeypatch.setattr(_thread, "allocate_lock", lambda: next(locks, None) or Lock())
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(lambda: done.append("all"))
    assert done == ["all"]
