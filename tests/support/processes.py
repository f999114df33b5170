"""The children of processes, command lines, and programs that must leave nothing behind."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.wait import LOOK_S, eventually, wait_for

PATIENCE_S = 60.0
"""Seconds within which all processes and files of an ended program must have disappeared. On an
idle machine this takes 2 s."""


def children(parent: int) -> set[int]:
    """Return the pids of a process's children that are still running."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


def command(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def processes_of(home: Path) -> list[str]:
    """Return the command lines of all processes on this machine that name a file below `home`."""
    shown = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in shown.stdout.splitlines() if str(home) in line]


def assert_nothing_is_left(home: Path) -> None:
    """Wait until no process names `home`, and the directory `home` is empty."""

    def left() -> list[object]:
        return [*processes_of(home), *home.iterdir()]

    wait_for(
        lambda: not left(), lambda: f"these processes and files are left: {left()}", PATIENCE_S
    )


def ending_with_this_process(command: Sequence[str]) -> list[str]:
    """Return a command that gets SIGTERM when this process ends, even if SIGKILL ends it.

    pytest-xdist kills its workers when a run stops early, so no `finally` is executed. The kernel
    sends the signal through setpriv, which Linux distributions have; without it, nothing changes.
    """
    setpriv = shutil.which("setpriv")
    return [*((setpriv, "--pdeathsig", "TERM") if setpriv else ()), *command]


# linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 10.0
"""Seconds in which orphans may end by themselves, such as a guard that stops its servers."""


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_and_bury(process: subprocess.Popen[Any]) -> int:
    """Wait for the end of a child, and return its exit code; meanwhile, reap adopted orphans."""
    while process.returncode is None:
        pid, status = os.wait()
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode


def end_orphans(kept: Collection[int] = (), *, grace_s: float = GRACE_S) -> list[str]:
    """End the children of this process, except `kept`; return the command lines of those killed."""
    killed: dict[int, str] = {}
    deadline = time.monotonic() + grace_s
    while left := children(os.getpid()) - {*kept}:
        if time.monotonic() > deadline:
            killed |= {pid: command(pid) for pid in left - killed.keys()}
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(LOOK_S)
    return list(killed.values())


@contextmanager
def programs(script: Path, directory: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield a function that starts a script; at the end, stop the runs that still exist."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), *arguments]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=directory))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.communicate()


def exit_code(child: int) -> int:
    """Wait until a child process has ended; kill a child that hangs."""
    ended: list[tuple[int, int]] = []

    def has_ended() -> bool:
        ended.append(os.waitpid(child, os.WNOHANG))
        return ended[-1][0] == child

    try:
        eventually(has_ended)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return os.waitstatus_to_exitcode(ended[-1][1])


def in_child(act: Callable[[], None]) -> int:
    """Call `act` in a forked process, which then ends as a program does; return its exit code."""
    child = os.fork()
    if child:
        return exit_code(child)
    code = 1
    try:
        act()
        code = 0
    except BaseException:  # noqa: BLE001  # the child must not return into pytest
        traceback.print_exc()
    os._exit(code)
