"""Ends the servers when the Python process that started them is gone, however it went.

`with` blocks end servers on errors and on Ctrl-C; nothing inside a process helps against its own
SIGKILL. So the first server brings a guard: this very file, run as a script, reading a pipe that
only our process holds open. When the pipe closes, the guard ends the servers on its list (by pid
and time of birth) and removes the temporary directories on it.

The file is run without the package around it, so it imports the standard library alone.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

# Seconds between SIGTERM and SIGKILL for servers that have lost their owner.
_PATIENCE_S = 5.0

_lock = threading.Lock()
_guard: subprocess.Popen[bytes] | None = None


def born(pid: int) -> str | None:
    """What tells the process `pid` from an earlier or later one; None if it is gone or a zombie."""
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        # After the name, which may itself hold parentheses: state, ..., 20th: start in clock ticks.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, start = answer.stdout.strip().partition(" ")
    return None if not start or state.startswith("Z") else start.strip()


def watch(pid: int, birth: str) -> None:
    """Puts a process on the guard's list."""
    _tell("watch", pid, birth)


def release(pid: int, birth: str) -> None:
    """Takes it off."""
    _tell("release", pid, birth)


def watch_directory(path: Path) -> None:
    """Puts a temporary directory on the list."""
    _tell("watch", str(path), "")


def release_directory(path: Path) -> None:
    """Takes it off."""
    _tell("release", str(path), "")


def _tell(order: str, what: int | str, birth: str) -> None:
    global _guard  # noqa: PLW0603 - one guard per process, brought by the first who needs it
    with _lock:
        if _guard is None:
            if order == "release":
                return
            _guard = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            atexit.register(_dismiss, _guard)
        assert _guard.stdin is not None
        # A guard that somebody killed is no reason to fail: the `with` blocks are still there.
        with contextlib.suppress(BrokenPipeError):
            _guard.stdin.write(json.dumps([order, what, birth]).encode() + b"\n")
            _guard.stdin.flush()


def _dismiss(guard: subprocess.Popen[bytes]) -> None:
    assert guard.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        guard.stdin.close()
    guard.wait()


def _main() -> None:
    """The guard's own life: read orders until the owner is gone, then clear up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listed: dict[int | str, str] = {}
    for line in sys.stdin.buffer:
        order, what, birth = json.loads(line)
        if order == "watch":
            listed[what] = birth
        else:
            listed.pop(what, None)
    # The last started first: brokers before their ZooKeeper; the directories after their servers.
    servers = [(what, listed[what]) for what in reversed(listed) if isinstance(what, int)]
    for number in (signal.SIGCONT, signal.SIGTERM):
        _signal(servers, number)
    deadline = time.monotonic() + _PATIENCE_S
    while any(born(pid) == birth for pid, birth in servers) and time.monotonic() < deadline:
        time.sleep(0.05)
    _signal(servers, signal.SIGKILL)
    for path in listed:
        if isinstance(path, str):
            shutil.rmtree(path, ignore_errors=True)


def _signal(servers: list[tuple[int, str]], number: signal.Signals) -> None:
    for pid, birth in servers:
        if born(pid) == birth:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


if __name__ == "__main__":
    _main()
