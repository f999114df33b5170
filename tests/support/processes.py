"""The children of processes, command lines, and programs that must leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.wait import wait_for

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
