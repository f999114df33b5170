"""Ends the servers when the Python process that started them has ended, for whatever reason.

`with` blocks end servers after errors and Ctrl-C, but nothing inside a process can react to its own
SIGKILL. So the first server starts a guard: this file, run as a script, which reads from a pipe
that only the owning process holds open. When the pipe closes, the guard ends the servers on its
list, which it identifies by pid and start time, and removes the temporary directories on its list.

The script runs without the rest of the package, so this file imports only the standard library.
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

# Seconds between SIGTERM and SIGKILL for servers whose owning process has ended.
_PATIENCE_S = 5.0

_lock = threading.Lock()
_guard: subprocess.Popen[bytes] | None = None


def start_time(pid: int) -> str | None:
    """Return a string that identifies the start of the process and differs between processes with
    the same pid. Return None if the process has ended or is a zombie.
    """
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        # The fields after the name, which may contain parentheses: the first is the state, the 20th
        # is the start time in clock ticks.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, start = answer.stdout.strip().partition(" ")
    return None if not start or state.startswith("Z") else start.strip()


def watch(pid: int, birth: str) -> None:
    """Put a process on the guard's list."""
    _send("watch", pid, birth)


def release(pid: int, birth: str) -> None:
    """Take a process off the guard's list."""
    _send("release", pid, birth)


def watch_directory(path: Path) -> None:
    """Put a temporary directory on the guard's list."""
    _send("watch", str(path), "")


def release_directory(path: Path) -> None:
    """Take a temporary directory off the guard's list."""
    _send("release", str(path), "")


def _send(order: str, what: int | str, birth: str) -> None:
    global _guard  # noqa: PLW0603 - one guard per process, started when it is first needed
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
        # If another process killed the guard, continue: the `with` blocks still end the servers.
        with contextlib.suppress(BrokenPipeError):
            _guard.stdin.write(json.dumps([order, what, birth]).encode() + b"\n")
            _guard.stdin.flush()


def _dismiss(guard: subprocess.Popen[bytes]) -> None:
    assert guard.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        guard.stdin.close()
    guard.wait()


def _main() -> None:
    """Run the guard: read orders until the owning process ends, then clean up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listed: dict[int | str, str] = {}
    for line in sys.stdin.buffer:
        order, what, birth = json.loads(line)
        if order == "watch":
            listed[what] = birth
        else:
            listed.pop(what, None)
    # End the last started server first, so brokers before their ZooKeeper; remove directories after
    # their servers.
    servers = [(what, listed[what]) for what in reversed(listed) if isinstance(what, int)]
    for number in (signal.SIGCONT, signal.SIGTERM):
        _signal(servers, number)
    deadline = time.monotonic() + _PATIENCE_S
    while any(start_time(pid) == birth for pid, birth in servers) and time.monotonic() < deadline:
        time.sleep(0.05)
    _signal(servers, signal.SIGKILL)
    for path in listed:
        if isinstance(path, str):
            shutil.rmtree(path, ignore_errors=True)


def _signal(servers: list[tuple[int, str]], number: signal.Signals) -> None:
    for pid, birth in servers:
        if start_time(pid) == birth:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


if __name__ == "__main__":
    _main()
