"""Server processes: started in a session of their own, known by pid and birth, ended by pid.

A pid alone is not an identity: after the process ended, the number may belong to somebody else. So
a process is named by its pid and the moment it was born, and nothing is ever signalled unless both
still fit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import guard
from zkconsumer.sandbox.guard import born

# Seconds between two looks at a condition: small against the 0.4 s that the fastest server needs.
_LOOK_S = 0.02


class Process:
    """A running process, ours (a child) or adopted (started by an earlier command)."""

    def __init__(self, pid: int, birth: str, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.birth = birth
        self._child = child
        self._stopped = False

    @classmethod
    def spawn(
        cls, command: Sequence[str], *, directory: Path, log: Path, environ: Mapping[str, str]
    ) -> Process:
        """Starts `command` in a new session, so that a Ctrl-C reaches Python only.

        stdout and stderr are appended to `log`.
        """
        with log.open("ab") as out:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=dict(environ),
                start_new_session=True,
            )
        return cls(child.pid, born(child.pid) or "", child)

    @classmethod
    def adopt(cls, pid: int, birth: str) -> Process | None:
        """The process if it still is the one that was born then, else None."""
        return cls(pid, birth) if birth and born(pid) == birth else None

    @property
    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return born(self.pid) == self.birth

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and for an adopted process, whose code only its parent learns."""
        return self._child.poll() if self._child is not None else None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal if the process is still there."""
        if not self.alive:
            return
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return  # an adopted process that ended this very moment
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self._stopped = number == signal.SIGSTOP

    def pause(self) -> None:
        """SIGSTOP, and waits until it has worked: on a busy machine threads run on for a while."""
        self.signal(signal.SIGSTOP)
        if not until(lambda: not self.alive or _stands(self.pid), limit_s=10.0):
            raise SandboxError(
                f"process {self.pid} runs on after SIGSTOP",
                remedy="it hangs in the operating system, look at its disk or its debugger",
            )

    def end(self, *, patience_s: float) -> None:
        """SIGTERM, and SIGKILL after `patience_s` seconds or when interrupted; then it is gone."""
        try:
            if self._stopped:
                self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self._gone_within(patience_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""
        self.signal(signal.SIGKILL)
        if not self._gone_within(10.0):
            raise SandboxError(
                f"process {self.pid} survives SIGKILL",
                remedy="it hangs in the operating system, look at its disk or its debugger",
            )

    def _gone_within(self, limit_s: float) -> bool:
        return until(lambda: not self.alive, limit_s=limit_s)


def _stands(pid: int) -> bool:
    """True if every thread of a process is stopped."""
    if not Path("/proc/self/task").exists():
        answer = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return answer.stdout.startswith("T")
    try:
        stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False  # a thread ended between the two looks
    return all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats)


def launch(
    command: Sequence[str],
    *,
    directory: Path,
    log: Path,
    environ: Mapping[str, str],
    keep: Callable[[Process], object],
) -> None:
    """Spawns a process that is kept by `keep` and known to the guard, or is not there at all.

    KeyboardInterrupt is raised in the main thread, between any two steps: between the birth of the
    process and the note of it, the process would be left behind. So it is born in another thread.
    """

    def spawn() -> None:
        process = Process.spawn(command, directory=directory, log=log, environ=environ)
        keep(process)
        guard.watch(process.pid, process.birth)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(spawn).result()


class Startable(ABC):
    """What is started and stopped; as a context manager, for the time of a block."""

    @abstractmethod
    def start(self) -> None:
        """Starts it, wholly or not at all."""

    @abstractmethod
    def stop(self) -> None:
        """Stops what runs of it; it may be called again."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def until(condition: Callable[[], bool], *, limit_s: float) -> bool:
    """Waits until `condition()` holds; False if it does not within `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True
