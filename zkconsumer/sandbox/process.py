"""Server processes: started in sessions of their own, identified by pid and start time, ended by
pid.

A pid alone does not identify a process: after the process has ended, another process may get the
same pid. So a process is identified by its pid and start time, and receives a signal only if both
match.
"""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import guard
from zkconsumer.sandbox.guard import start_time

# Seconds between two checks of a condition. The interval is short compared with the 0.4 s that the
# fastest server needs to start.
_POLL_INTERVAL_S = 0.02


class Process:
    """A running process: a child of this process, or one that an earlier command started
    (adopted).
    """

    def __init__(self, pid: int, birth: str, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.birth = birth
        self._child = child
        self._stopped = False

    @classmethod
    def spawn(
        cls,
        command: Sequence[str],
        *,
        directory: Path,
        log: Path,
        environ: Mapping[str, str],
        out: Path | None = None,
    ) -> Process:
        """Start `command` in a new session, so that Ctrl-C reaches only Python.

        stderr is appended to `log`, and stdout to `out`, or to `log` if `out` is None.
        """
        with log.open("ab") as errors, (out or log).open("ab") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=directory,
                env=dict(environ),
                start_new_session=True,
            )
        return cls(child.pid, start_time(child.pid) or "", child)

    @classmethod
    def adopt(cls, pid: int, birth: str) -> Process | None:
        """Return the process if its start time still matches, else None."""
        return cls(pid, birth) if birth and start_time(pid) == birth else None

    @property
    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return start_time(self.pid) == self.birth

    @property
    def exit_code(self) -> int | None:
        """The exit code. None while the process runs, and for an adopted process, whose code only
        its parent learns.
        """
        return self._child.poll() if self._child is not None else None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if the process still exists."""
        if not self.alive:
            return
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return  # an adopted process that has just ended
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self._stopped = number == signal.SIGSTOP

    def pause(self) -> None:
        """Send SIGSTOP and wait until all threads are stopped; on a busy machine they run for a
        while.
        """
        self.signal(signal.SIGSTOP)
        if not until(lambda: not self.alive or _is_stopped(self.pid), limit_s=10.0):
            raise SandboxError(
                f"process {self.pid} still runs after SIGSTOP",
                remedy="it hangs in a system call; check its disk and debuggers",
            )

    def end(self, *, patience_s: float) -> None:
        """Send SIGTERM, and SIGKILL after `patience_s` seconds or when interrupted. The process has
        ended afterwards.
        """
        try:
            if self._stopped:
                self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self._gone_within(patience_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        self.signal(signal.SIGKILL)
        if not self._gone_within(10.0):
            raise SandboxError(
                f"process {self.pid} still exists after SIGKILL",
                remedy="it hangs in a system call; check its disk and debuggers",
            )

    def _gone_within(self, limit_s: float) -> bool:
        return until(lambda: not self.alive, limit_s=limit_s)


def _is_stopped(pid: int) -> bool:
    """Whether every thread of the process is stopped."""
    if not Path("/proc/self/task").exists():
        answer = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return answer.stdout.startswith("T")
    try:
        stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False  # a thread ended between the two reads
    return all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats)


def launch(
    command: Sequence[str],
    *,
    directory: Path,
    log: Path,
    environ: Mapping[str, str],
    keep: Callable[[Process], object],
    out: Path | None = None,
) -> None:
    """Start a process, pass it to `keep`, and put it on the guard's list; if a step fails, leave no
    process behind.

    Without `uninterrupted`, Ctrl-C between the start of the process and the call of `keep` would
    leave the process behind.
    """

    def spawn() -> None:
        process = Process.spawn(command, directory=directory, log=log, environ=environ, out=out)
        keep(process)
        guard.watch(process.pid, process.birth)

    uninterrupted(spawn)


def uninterrupted(work: Callable[[], object]) -> None:
    """Run `work` completely or not at all, even if Ctrl-C arrives. Raises what `work` raises.

    Python raises KeyboardInterrupt in the main thread between any two steps, so `work` runs on
    another thread. An interrupted main thread waits until `work` has ended, and raises the
    KeyboardInterrupt then.

    `Thread.join` cannot do that: up to Python 3.12, an interrupted `join` marks the thread as
    ended, and a second `join` returns at once. `Thread.start` cannot do that either: if Ctrl-C
    arrives at certain steps, it raises RuntimeError ("release unlocked lock") instead of
    KeyboardInterrupt.
    """
    claim, end = _thread.allocate_lock(), _thread.allocate_lock()
    failures: list[BaseException] = []
    ended: list[bool] = []
    end.acquire()

    def run() -> None:
        if not claim.acquire(blocking=False):
            return  # the main thread was interrupted before, and has abandoned the work
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a thread's boundary; raised below
            failures.append(error)
        finally:
            ended.append(True)
            end.release()

    try:
        _thread.start_new_thread(run, ())
        end.acquire()
    except BaseException:
        if not claim.acquire(blocking=False):
            # If the interrupt came just after `end` was acquired, no thread releases it again.
            while not ended:
                with suppress(KeyboardInterrupt):  # another Ctrl-C
                    end.acquire(timeout=_POLL_INTERVAL_S)
        raise
    if failures:
        raise failures[0]


class Startable(ABC):
    """An object that can be started and stopped; as a context manager it runs during the block."""

    @abstractmethod
    def start(self) -> None:
        """Start the object completely; after an error none of its processes runs."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all processes of the object that run; another call does nothing."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def until(condition: Callable[[], bool], *, limit_s: float) -> bool:
    """Wait until `condition()` holds. Return False if it does not within `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True
