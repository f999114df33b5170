"""A program under test: its process, and the conversations that the judge has with it.

A process cannot be copied. So a conversation is a path in a tree of exchanges, which begins with a
`reset`. The process stands at one exchange. To continue from another one, the judge sends `reset`
and all messages of its path again, and compares the answers with the former ones: different answers
mean that the program is not deterministic. The tree also remembers answers, so that an exhaustive
search asks nothing twice.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, Self

from zkconsumer.errors import ConfigError, quoted
from zkconsumer.judge import promises
from zkconsumer.judge.messages import (
    MAX_ANSWERS,
    MAX_LINE_BYTES,
    WrongMessageError,
    parse_answer,
)
from zkconsumer.protocol.model import JsonObject
from zkconsumer.sim.kernel.world import InvariantViolation

# ---- conversations -------------------------------------------------------------------------------

MAX_EXCHANGES: Final = 20_000
"""Maximum number of exchanges of one conversation. A schedule has a few hundred; a program that
asks for a tick again and again reaches the limit, and is stopped as a flood."""

Answers = tuple[JsonObject, ...]


class Exchange:
    """One message of the judge with its answers, and the exchanges that have followed it.

    Attributes:
        depth: number of exchanges before this one, from the `reset` on.
        number: identifies the exchange among all exchanges of its program.
    """

    __slots__ = ("answers", "depth", "following", "message", "number", "parent")

    def __init__(
        self, parent: Exchange | None, message: bytes, answers: Answers, number: int
    ) -> None:
        self.parent, self.message, self.answers, self.number = parent, message, answers, number
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.following: dict[bytes, Exchange] = {}

    def path(self) -> list[Exchange]:
        """Return the exchanges from the `reset` to this one."""
        found: list[Exchange] = []
        one: Exchange | None = self
        while one is not None:
            found.append(one)
            one = one.parent
        return found[::-1]


class Program(ABC):
    """One member's program, whatever runs it.

    Attributes:
        name: the name of the program in verdicts.
        told: number of messages that the program has answered.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.told = 0
        self._roots: dict[bytes, Exchange] = {}
        self._at: Exchange | None = None
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def forget(self) -> None:
        """Forget all conversations; the next one begins with a `reset` of the process."""
        self._roots, self._at = {}, None

    def begin(self, reset: JsonObject) -> Exchange:
        """Begin a conversation. Raises InvariantViolation if the program misbehaves."""
        return self._following(None, self._roots, reset)

    def tell(self, after: Exchange, message: JsonObject) -> Exchange:
        """Send a message after an exchange, and return the exchange with the answers.

        Raises InvariantViolation if the program misbehaves.
        """
        if after.depth >= MAX_EXCHANGES:
            raise self._wrong(f"more than {MAX_EXCHANGES} messages in one schedule")
        return self._following(after, after.following, message)

    def _following(
        self, after: Exchange | None, known: dict[bytes, Exchange], message: JsonObject
    ) -> Exchange:
        line = encoded(message)
        found = known.get(line)
        if found is None:
            if after is not None and self._at is not after:
                self._return_to(after)
            self._number += 1
            found = known[line] = Exchange(after, line, self._ask(line), self._number)
            self._at = found
        return found

    def repeat(self) -> None:
        """Repeat the last conversation. Raises InvariantViolation if an answer differs."""
        if self._at is not None:
            self._return_to(self._at)

    def _return_to(self, end: Exchange) -> None:
        self._at = None
        for one in end.path():
            answers = self._ask(one.message)
            if answers != one.answers:
                raise promises.is_deterministic.broken(
                    f"{self.name}: to the message {_shown(one.message)} it answered first "
                    f"{_shown(_text(one.answers))} and then {_shown(_text(answers))}"
                )
        self._at = end

    def _ask(self, line: bytes) -> Answers:
        self.told += 1
        try:
            return self._exchange(line)
        except WrongMessageError as error:
            raise self._wrong(str(error)) from None
        except InvariantViolation:
            self.end()  # a process that has crashed or hangs starts again with the next schedule
            raise

    def _wrong(self, why: str) -> InvariantViolation:
        self.end()
        return promises.speaks_the_protocol.broken(f"{self.name}: {why}")

    @abstractmethod
    def _exchange(self, line: bytes) -> Answers:
        """Send a line, and return the answers. Raises InvariantViolation, WrongMessageError."""

    @abstractmethod
    def end(self) -> None:
        """End the program; the next message starts it again."""


def encoded(message: JsonObject) -> bytes:
    """Return a message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _text(answers: Answers) -> bytes:
    return " ".join(json.dumps(one) for one in answers).encode()


_SHOWN = 300
"""Number of characters of a message that a verdict contains."""


def _shown(line: bytes) -> str:
    text = line.decode().strip()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# ---- processes -----------------------------------------------------------------------------------

ANSWER_S: Final = 5.0
"""Seconds within which a program must answer a message; then it counts as hanging, and is killed.
A loaded machine answers in milliseconds."""

START_S: Final = 30.0
"""Seconds within which a program must answer its first message: a JVM may need several."""

_STDERR_LINES = 5
_CHECK_S = 0.25
"""Seconds between two looks of the watchdog."""


class Watchdog:
    """Kills the processes whose answer is overdue, so that a blocked read ends. One thread."""

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
                late = [it for it, end in self._waiting.items() if now > end]
            for program in late:
                program.kill_late()


_watchdog = Watchdog()


class ProcessProgram(Program):
    """A program in a process of its own, which speaks JSON lines on its stdin and stdout."""

    def __init__(self, name: str, command: Sequence[str], *, answer_s: float = ANSWER_S) -> None:
        super().__init__(name)
        self._command, self._answer_s = command, answer_s
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: deque[str] = deque(maxlen=_STDERR_LINES)
        self._reader: threading.Thread | None = None
        self._is_late = False

    def _exchange(self, line: bytes) -> Answers:
        first = self._process is None
        process = self._process or self._start()
        limit_s = max(START_S, self._answer_s) if first else self._answer_s
        _watchdog.expect(self, limit_s)
        assert process.stdin is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except OSError:
            raise self._gone(limit_s) from None
        answers: list[JsonObject] = []
        while not answers or answers[-1]["type"] != "done":
            if len(answers) >= MAX_ANSWERS:
                raise WrongMessageError(f"more than {MAX_ANSWERS} messages in one answer")
            answers.append(self._read(process, limit_s))
        _watchdog.expect(self, float("inf"))
        return tuple(answers)

    def _read(self, process: subprocess.Popen[bytes], limit_s: float) -> JsonObject:
        assert process.stdout is not None
        line = process.stdout.readline(MAX_LINE_BYTES + 1)
        if len(line) > MAX_LINE_BYTES:
            raise WrongMessageError(f"a line of more than {MAX_LINE_BYTES} bytes")
        if not line.endswith(b"\n"):
            raise self._gone(limit_s)
        return parse_answer(line)

    def _gone(self, limit_s: float) -> InvariantViolation:
        """Return the violation of a process that has ended, or was killed because it hung."""
        process = self._process
        assert process is not None
        if self._is_late:
            why = f"has not answered for {limit_s:g} s; does it flush its output?"
        else:
            process.kill()  # it has closed a pipe; it may live on
            code = process.wait()
            why = (
                f"has ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
            )
        if self._reader is not None:
            self._reader.join(1.0)
        said = "; its last words: " + " / ".join(self._errors) if self._errors else ""
        return promises.program_lives.broken(f"{self.name} {why}{said}")

    def _start(self) -> subprocess.Popen[bytes]:
        self._is_late = False
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
        self._process = process
        self._reader = threading.Thread(target=self._drain, args=(process,), daemon=True)
        self._reader.start()
        _watchdog.add(self)
        return process

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        """Read what the program writes to stderr, so that it never waits; keep the last lines."""
        assert process.stderr is not None
        errors = self._errors
        while line := process.stderr.readline(MAX_LINE_BYTES):
            if text := line.decode(errors="replace").strip():
                errors.append(text[:_SHOWN])

    def kill_late(self) -> None:
        """Kill a process that has not answered in time; the judge's read then ends."""
        process = self._process
        if process is not None:
            self._is_late = True
            process.kill()

    def end(self) -> None:
        process, self._process = self._process, None
        self._at = None
        _watchdog.remove(self)
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


# ---- which command -------------------------------------------------------------------------------

_INTERPRETERS: Final[dict[str, str]] = {".py": sys.executable, ".js": "node", ".mjs": "node"}


def command_of(words: Sequence[str]) -> list[str]:
    """Return the command that starts a program; a `.py` or `.js` file needs no interpreter.

    Raises ConfigError if there is no such program.
    """
    first = words[0]
    interpreter = _INTERPRETERS.get(Path(first).suffix)
    if interpreter is not None and Path(first).is_file():
        return [_found(interpreter), first, *words[1:]]
    return [_found(first), *words[1:]]


def _found(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        is_file = Path(name).is_file()
        raise ConfigError(
            f"{quoted(name)} is not executable"
            if is_file
            else f"there is no program {quoted(name)}",
            where="PROGRAM",
            remedy="chmod +x the file"
            if is_file
            else "give the path of a program, such as ./mine.py",
        )
    return found


# ---- members in this process ---------------------------------------------------------------------


class Speaker(Protocol):
    """Answers the judge's messages after the `reset`, like a member of `judge.kit`."""

    def answer(self, message: JsonObject, /) -> list[JsonObject]: ...


class LocalProgram(Program):
    """A member in this process, for tests of one's own: it has no pipe and no time limit.

    `begin` makes the member of a `reset`, for instance a subclass of `judge.kit.Member`. A member
    that raises counts as crashed.
    """

    def __init__(self, name: str, begin: Callable[[JsonObject], Speaker]) -> None:
        super().__init__(name)
        self._begin = begin
        self._member: Speaker | None = None

    def _exchange(self, line: bytes) -> Answers:
        message = json.loads(line)
        if message["type"] == "reset":
            self._member = self._begin(message)
        assert self._member is not None
        try:
            answers = self._member.answer(message)
        except Exception as error:
            raise promises.program_lives.broken(f"{self.name} has raised {error!r}") from error
        if len(answers) > MAX_ANSWERS:
            raise WrongMessageError(f"more than {MAX_ANSWERS} messages in one answer")
        return tuple(parse_answer(encoded(one)) for one in answers)

    def end(self) -> None:
        self._member = self._at = None
