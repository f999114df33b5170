"""The process of a program under test: started, watched and ended.

The process speaks JSON lines on its standard input and output. Its time for an answer and its
memory are bounded. It ends with the judge, even if the judge is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from zkconsumer.errors import ConfigError
from zkconsumer.judge import promises
from zkconsumer.judge.messages import VOCABULARY
from zkconsumer.judge.program import SHOWN, Answers, Program
from zkconsumer.judge.vocabulary import (
    MAX_ANSWERS,
    MAX_LINE_BYTES,
    Vocabulary,
    WrongMessageError,
)
from zkconsumer.protocol.model import JsonObject
from zkconsumer.sandbox import guard
from zkconsumer.sim.kernel.world import InvariantViolation

ANSWER_S: Final = 5.0
"""Seconds within which a program must answer a message; then it counts as hanging, and is killed.
A loaded machine answers in milliseconds."""

START_S: Final = 30.0
"""Seconds within which a program must answer its first message: a JVM may need several."""

MAX_MEMORY_BYTES: Final = 512 << 20
"""Resident memory of a program in bytes; a program that uses more is killed. A JVM uses 60 MiB."""

MAX_ALLOCATED_BYTES: Final = 4 * MAX_MEMORY_BYTES
"""Bytes that a program may allocate (Linux: RLIMIT_DATA); then the system refuses it more. So no
program can use up the machine's memory between two looks of the watchdog. Runtimes allocate more
than they use."""

_STDERR_LINES = 5
_CHECK_S = 0.25
"""Seconds between two looks of the watchdog."""


class Watchdog:
    """Kills the processes that exceed a limit, so that a blocked read ends. One thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[ProcessProgram, float] = {}
        self._thread: threading.Thread | None = None

    def add(self, program: ProcessProgram) -> None:
        """Look after a process that has started."""
        with self._lock:
            self._waiting[program] = float("inf")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="judge", daemon=True)
                self._thread.start()

    def remove(self, program: ProcessProgram) -> None:
        with self._lock:
            self._waiting.pop(program, None)

    def expect(self, program: ProcessProgram, limit_s: float) -> None:
        """Expect an answer within this time; infinity ends the expectation."""
        self._waiting[program] = time.monotonic() + limit_s

    def _run(self) -> None:
        while True:
            time.sleep(_CHECK_S)
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                now = time.monotonic()
                waiting = list(self._waiting.items())
            for program, end in waiting:
                if now > end:
                    program.kill("has not answered in time; does it flush its output?")
                elif program.memory() > MAX_MEMORY_BYTES:
                    program.kill(f"has used more than {MAX_MEMORY_BYTES >> 20} MiB of memory")


_watchdog = Watchdog()


class ProcessProgram(Program):
    """A program in a process of its own."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        vocabulary: Vocabulary = VOCABULARY,
        *,
        answer_s: float = ANSWER_S,
    ) -> None:
        super().__init__(name, vocabulary)
        self._command, self._answer_s = command, answer_s
        self._process: subprocess.Popen[bytes] | None = None
        self._birth = ""
        self._errors: deque[str] = deque(maxlen=_STDERR_LINES)
        self._reader: threading.Thread | None = None
        self._why_killed = ""

    # ---- the conversation ------------------------------------------------------------------------

    def _exchange(self, line: bytes) -> Answers:
        is_first = self._process is None
        process = self._process or self._start()
        _watchdog.expect(self, max(START_S, self._answer_s) if is_first else self._answer_s)
        assert process.stdin is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except OSError:
            raise self._gone(process) from None
        answers: list[JsonObject] = []
        while not answers or answers[-1]["type"] != "done":
            if len(answers) >= MAX_ANSWERS:
                raise WrongMessageError(f"more than {MAX_ANSWERS} messages in one answer")
            answers.append(self._read(process))
        _watchdog.expect(self, float("inf"))
        return tuple(answers)

    def _read(self, process: subprocess.Popen[bytes]) -> JsonObject:
        assert process.stdout is not None
        line = process.stdout.readline(MAX_LINE_BYTES + 1)
        if len(line) > MAX_LINE_BYTES:
            raise WrongMessageError(f"a line of more than {MAX_LINE_BYTES} bytes")
        if not line.endswith(b"\n"):
            raise self._gone(process)
        return self.vocabulary.parse_answer(line)

    def _gone(self, process: subprocess.Popen[bytes]) -> InvariantViolation:
        """Return the violation of a process that has ended, or was killed at a limit."""
        why = self._why_killed
        if not why:
            _kill(process)  # it has closed a pipe; it may live on
            code = process.wait()
            why = (
                f"has ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
            )
        if self._reader is not None:
            self._reader.join(1.0)
        said = "; its last words: " + " / ".join(self._errors) if self._errors else ""
        return promises.program_lives.broken(f"{self.name} {why}{said}")

    # ---- the process -----------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        self._why_killed = ""
        self._errors.clear()
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # so that Ctrl-C reaches only the judge
            )
        except OSError as error:
            raise ConfigError(
                f"the program cannot be started: {error.strerror}",
                where=" ".join(self._command),
                remedy="make it executable, and give its interpreter in its first line",
            ) from error
        self._process, self._birth = process, guard.start_time(process.pid) or ""
        guard.watch(process.pid, self._birth)
        _limit_allocations(process.pid)
        self._reader = threading.Thread(target=self._drain, args=(process,), daemon=True)
        self._reader.start()
        _watchdog.add(self)
        return process

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        """Read what the program writes to stderr, so that it never waits; keep the last lines."""
        assert process.stderr is not None
        errors = self._errors
        while line := process.stderr.readline(MAX_LINE_BYTES):
            text = line.decode(errors="replace").strip()
            if text.strip("^~ "):  # a traceback marks a part of its line with these characters
                errors.append(text[:SHOWN])

    def memory(self) -> int:
        """Return the resident memory of the process in bytes; 0 if it has ended."""
        process = self._process
        return 0 if process is None else _resident_bytes(process.pid)

    def kill(self, why: str) -> None:
        """Kill a process that exceeds a limit; the judge's read then ends."""
        process = self._process
        if process is not None:
            self._why_killed = why
            _kill(process)

    def end(self) -> None:
        process, self._process = self._process, None
        self._at = None
        _watchdog.remove(self)
        if process is None:
            return
        _kill(process)
        process.wait()
        guard.release(process.pid, self._birth)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and the processes that it has started."""
    if process.returncode is not None:
        return  # its number may belong to another process now
    if sys.platform == "win32":
        process.kill()
    else:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _limit_allocations(pid: int) -> None:
    if sys.platform == "linux":
        import resource  # noqa: PLC0415 - other platforms lack it

        limit = MAX_ALLOCATED_BYTES
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))


def _resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it has ended."""
    if sys.platform == "linux":
        try:
            pages = Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]
        except OSError:
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    answer = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return int(answer.stdout.strip() or 0) * 1024
