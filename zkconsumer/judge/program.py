"""A program under test, and the conversations that the judge has with it.

A process cannot be copied. So a conversation is a path in a tree of exchanges, which begins with a
`reset`. The process stands at one exchange. To continue from another one, the judge sends `reset`
and all messages of its path again, and compares the answers with the former ones: different answers
mean that the program is not deterministic. The tree also remembers answers, so that an exhaustive
search asks nothing twice.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Self

from zkconsumer.judge import promises
from zkconsumer.judge.kit import Speaker
from zkconsumer.judge.messages import VOCABULARY
from zkconsumer.judge.vocabulary import MAX_ANSWERS, Vocabulary, WrongMessageError
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
        vocabulary: the messages that the program understands and sends.
        told: number of messages that the program has answered.
    """

    def __init__(self, name: str, vocabulary: Vocabulary = VOCABULARY) -> None:
        self.name, self.vocabulary = name, vocabulary
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

    def reset(self, message: JsonObject) -> Exchange:
        """Begin a conversation with `reset`, to which the program answers without requests.

        Raises InvariantViolation if the program misbehaves.
        """
        exchange = self.begin(message)
        for one in exchange.answers:
            if one["type"] in ("request", "deliver"):
                raise self._wrong(
                    f"it answers `{one['type']}` to `reset`: nothing is connected yet"
                )
        return exchange

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
                    f"{self.name}: to the message {shown(one.message)} it answered first "
                    f"{shown(_text(one.answers))} and then {shown(_text(answers))}"
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


_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
"""`json.dumps` would make such an encoder for each message."""


def encoded(message: JsonObject) -> bytes:
    """Return a message as a line."""
    return _encode(message).encode() + b"\n"


def _text(answers: Answers) -> bytes:
    return " ".join(json.dumps(one) for one in answers).encode()


SHOWN = 300
"""Number of characters of a message that a verdict contains."""


def shown(line: bytes) -> str:
    """Return a line as a verdict shows it."""
    text = line.decode().strip()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


# ---- members in this process ---------------------------------------------------------------------


class LocalProgram(Program):
    """A member in this process, for tests of one's own: it has no pipe and no time limit.

    `begin` makes the member of a first message, for instance a subclass of `judge.kit.Member`. A
    member that raises counts as crashed.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[JsonObject], Speaker],
        vocabulary: Vocabulary = VOCABULARY,
    ) -> None:
        super().__init__(name, vocabulary)
        self._begin = begin
        self._member: Speaker | None = None

    def _exchange(self, line: bytes) -> Answers:
        message = json.loads(line)
        if self._member is None or message["type"] == "reset":
            self._member = self._begin(message)
        try:
            answers = self._member.answer(message)
        except Exception as error:
            raise promises.program_lives.broken(f"{self.name} has raised {error!r}") from error
        if len(answers) > MAX_ANSWERS:
            raise WrongMessageError(f"more than {MAX_ANSWERS} messages in one answer")
        return tuple(self.vocabulary.parse_answer(encoded(one)) for one in answers)

    def end(self) -> None:
        self._member = self._at = None
