"""The ladders: the challenges of each kind of program, and the court that judges it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from zkconsumer.frozen import dataclass
from zkconsumer.judge import assignors, challenges, classic_court, classic_messages
from zkconsumer.judge.judging import Challenge, Court
from zkconsumer.judge.member_court import MemberCourt
from zkconsumer.judge.messages import VOCABULARY
from zkconsumer.judge.program import Program
from zkconsumer.judge.vocabulary import Vocabulary
from zkconsumer.sim.kernel.promises import Promise
from zkconsumer.sim.scenarios import names_of

AnyCourt = Court[Any, Any]  # Any: each kind of program has its challenges and its score

MakeProgram = Callable[[str], Program]
"""Returns the program of the member with this name."""


@dataclass(frozen=True)
class Ladder:
    """The challenges of one kind of program.

    Attributes:
        vocabulary: the messages of such a program.
        promises: all promises that a verdict may name.
    """

    challenges: Mapping[str, Challenge]
    vocabulary: Vocabulary
    court: Callable[..., AnyCourt]
    promises: tuple[Promise[...], ...]


LADDERS: Final[Mapping[str, Ladder]] = {
    "zookeeper": Ladder(challenges.CHALLENGES, VOCABULARY, MemberCourt, challenges.PROMISES),
    "classic": Ladder(
        classic_court.CHALLENGES,
        classic_messages.VOCABULARY,
        classic_court.ClassicCourt,
        classic_court.PROMISES,
    ),
    "assignor": Ladder(
        assignors.CHALLENGES, assignors.VOCABULARY, assignors.AssignorCourt, assignors.PROMISES
    ),
}


def ladder_of(challenge: Challenge) -> Ladder:
    """Return the ladder of a challenge."""
    return next(one for one in LADDERS.values() if challenge.name in one.challenges)


@contextmanager
def court(challenge: Challenge, make: MakeProgram) -> Iterator[AnyCourt]:
    """Return a court whose programs end with the block."""
    with ExitStack() as stack:
        programs = [stack.enter_context(make(name)) for name in names_of(challenge.most)]
        yield ladder_of(challenge).court(challenge, programs)
