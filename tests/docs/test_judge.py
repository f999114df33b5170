"""docs/judge.md lists the messages, the challenges and the promises as the code has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from zkconsumer.judge import assignors, challenges, classic_court
from zkconsumer.judge.ladders import LADDERS, Ladder
from zkconsumer.judge.promises import CONVERSATION
from zkconsumer.judge.vocabulary import Sender, Vocabulary
from zkconsumer.sim import promises as of_members
from zkconsumer.sim.kernel.promises import Promise

PAGE = Path(__file__).parents[2] / "docs" / "judge.md"


def _messages(vocabulary: Vocabulary) -> Iterator[str]:
    for sender in Sender:
        yield from (f"| From the {sender.value} | Meaning | Fields |", "|---|---|---|")
        for name, one in vocabulary.of(sender).items():
            fields = [
                f"`{key}`: {it.means}" + (" (optional)" if it.optional else "")
                for key, it in one.fields.items()
            ]
            yield f"| `{name}` | {one.means} | {'; '.join(fields)} |"
        yield ""


def _challenges(ladder: Ladder) -> Iterator[str]:
    yield from ("| | Challenge | Task | What it teaches |", "|---|---|---|---|")
    for number, one in enumerate(ladder.challenges.values(), 1):
        yield f"| {number} | `{one.name}`: {one.title} | {one.statement} | {one.lesson} |"


def _promises(promises: Iterable[Promise[...]]) -> Iterator[str]:
    yield from ("| | Promise of a program |", "|---|---|")
    for one in promises:
        yield f"| {one.number} | {one.sentence} |"


def test_the_page(request: pytest.FixtureRequest) -> None:
    """The tables of the page equal those of the code; `pytest THIS_FILE --rewrite` updates them."""
    page = PAGE.read_text(encoding="utf-8")
    made = page
    tables = {
        "conversation": _promises(CONVERSATION),
        "promises of zookeeper": _promises(
            one
            for one in challenges.PROMISES
            if one not in CONVERSATION and one not in of_members.PROMISES
        ),
        "promises of classic": _promises(
            (classic_court.fenced_members_stop, classic_court.keeps_what_stays)
        ),
        "promises of assignor": _promises(assignors.PROMISES[len(CONVERSATION) :]),
    }
    for name, ladder in LADDERS.items():
        tables[f"messages of {name}"] = _messages(ladder.vocabulary)
        tables[f"ladder of {name}"] = _challenges(ladder)
    for name, lines in tables.items():
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        table = "\n".join(lines).strip() + "\n"
        made, count = between.subn(lambda at, table=table: at[1] + table + at[2], made)
        assert count == 1
    if request.config.getoption("--rewrite"):
        PAGE.write_text(made, encoding="utf-8")
    assert made == page or request.config.getoption("--rewrite")
