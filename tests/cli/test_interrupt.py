"""Ctrl-C at every step of the main thread ends a command with exit code 130."""

from __future__ import annotations

import itertools
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from zkconsumer.cli import interrupt, was_interrupted
from zkconsumer.sandbox.process import uninterrupted

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """SIGINT is handled as in a command."""
    before = signal.signal(signal.SIGINT, interrupt)
    yield
    signal.signal(signal.SIGINT, before)


def press_at(step: int, action: Callable[[], object]) -> bool:
    """Run the action, and call the handler at a step of it. Return whether it has so many steps.

    CPython runs the handler of a signal when a Python function begins and when a C function has
    returned. KeyboardInterrupt must be raised at this step, or soon after it.
    """
    steps = 0

    # Any: what `sys.setprofile` passes as the third argument depends on the event.
    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal steps
        steps += event in ("call", "c_return")
        if steps == step:
            sys.setprofile(None)
            interrupt(signal.SIGINT, frame)

    try:
        sys.setprofile(count)
        try:
            action()
        finally:
            sys.setprofile(None)
        if steps < step:
            return False
        threading.Event().wait(LIMIT_S)
    except KeyboardInterrupt:
        return True
    raise AssertionError(f"Ctrl-C at step {step} was swallowed")


class Finalized:
    """An object with a finalizer, whose exceptions Python swallows."""

    def __del__(self) -> None:
        str(self)


def free(lock: threading.Lock) -> bool:
    """Return whether nothing holds the lock."""
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


LOCK = threading.Lock()
CONDITION = threading.Condition(LOCK)


def wait_for_a_condition() -> None:
    with CONDITION:
        CONDITION.wait(0.001)


def take_from_a_queue() -> None:
    with pytest.raises(queue.Empty):
        queue.Queue[int]().get(timeout=0.001)


def drop_an_object() -> None:
    one = Finalized()
    references = weakref.WeakSet([one])
    del one
    assert not references


@pytest.mark.parametrize(
    "action",
    [
        wait_for_a_condition,
        lambda: threading.Event().wait(0.001),
        take_from_a_queue,
        drop_an_object,
        lambda: threading.Thread(target=LOCK.locked).start(),
        lambda: uninterrupted(LOCK.locked),
    ],
)
def test_every_step(action: Callable[[], object]) -> None:
    """Ctrl-C raises KeyboardInterrupt and no other error, is never lost, and leaves no lock."""
    for step in itertools.count(1):
        if not press_at(step, action):
            break
        assert free(LOCK), step
    assert step > 3


def test_a_blocked_function_does_not_disable_ctrl_c() -> None:
    """Ctrl-C is postponed only for a limited time."""
    press = [threading.get_ident(), signal.SIGINT]
    with LOCK:
        threading.Timer(0.01, signal.pthread_kill, press).start()
        with pytest.raises(KeyboardInterrupt):
            CONDITION.__enter__()
    assert free(LOCK)


MASKED = """
import sys
from zkconsumer import cli

def fail(*arguments, **options):
    try:
        raise KeyboardInterrupt
    finally:
        raise RuntimeError("release unlocked lock")

cli.app = fail
cli.main()
"""


def test_an_error_after_ctrl_c() -> None:
    """An error in the clean-up after Ctrl-C does not change the exit code."""
    done = subprocess.run(
        [sys.executable, "-c", MASKED], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_another_error_is_no_interrupt() -> None:
    """An error that no Ctrl-C preceded is not reported as an interrupt."""
    try:
        try:
            raise OSError
        finally:
            raise ValueError
    except ValueError as error:
        assert not was_interrupted(error)
