"""Ctrl-C ends a command with exit code 130, and is not lost within a request to ZooKeeper."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from support.wait import LIMIT_S

from zkconsumer.cli import was_interrupted
from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.sandbox.process import uninterrupted
from zkconsumer.zk.client import ZooKeeperClient


def press_at(step: int, action: Callable[[], object]) -> bool:
    """Run the action, and press Ctrl-C at a step of it. Return whether it has so many steps.

    CPython runs the handler of a signal when a Python function begins and when a C function has
    returned. KeyboardInterrupt must be raised at this step, or when the action has ended.
    """
    steps = 0

    # Any: what `sys.setprofile` passes as the third argument depends on the event.
    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal steps
        steps += event in ("call", "c_return")
        if steps == step:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

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


def test_every_step_of_a_request(zookeeper: ZooKeeperServer) -> None:
    """At every step of a request, Ctrl-C is raised, and the client answers the next request."""
    config = ConnectionConfig(zookeeper_connect=zookeeper.connect)
    with ZooKeeperClient(config) as client:
        for step in itertools.count(1):
            if not press_at(step, lambda: client.read(["/"])):
                break
            assert list(client.read(["/"])) == ["/"]
    assert step > 10


def test_every_step_of_uninterrupted_work() -> None:
    """At every step of uninterrupted work, Ctrl-C is raised, and the work is done or not begun."""
    done: list[int] = []
    steps = itertools.count(1)
    while press_at(next(steps), lambda: uninterrupted(lambda: done.append(0))):
        assert len(done) <= 1
        done.clear()
    assert next(steps) > 4


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


EARLY = """
import os, signal, sys

class Press:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Press())
from zkconsumer.__main__ import main
main()
"""


def test_ctrl_c_during_the_imports() -> None:
    """Ctrl-C before the command line is imported gives the same exit code, and no traceback."""
    done = subprocess.run(
        [sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


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
