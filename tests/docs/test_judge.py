"""docs/judge.md lists the messages, the challenges and the promises as the code has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from zkconsumer.judge.challenges import CHALLENGES
from zkconsumer.judge.messages import TYPES, Sender
from zkconsumer.judge.promises import CONVERSATION

PAGE = Path(__file__).parents[2] / "docs" / "judge.md"


def _messages() -> Iterator[str]:
    for sender in Sender:
        yield from (f"| From the {sender.value} | Meaning | Fields |", "|---|---|---|")
        for name, one in TYPES.items():
            if one.sender is sender:
                fields = [
                    f"`{key}`: {it.means}" + (" (optional)" if it.optional else "")
                    for key, it in one.fields.items()
                ]
                yield f"| `{name}` | {one.means} | {'; '.join(fields)} |"
        yield ""


def _ladder() -> Iterator[str]:
    yield from ("| | Challenge | Task | What it teaches |", "|---|---|---|---|")
    for number, one in enumerate(CHALLENGES.values(), 1):
        yield f"| {number} | `{one.name}`: {one.title} | {one.statement} | {one.lesson} |"


def _conversation() -> Iterator[str]:
    yield from ("| | Promise of a program |", "|---|---|")
    for one in CONVERSATION:
        yield f"| {one.number} | {one.sentence} |"


def test_the_page(request: pytest.FixtureRequest) -> None:
    """The tables of the page equal those of the code; `pytest THIS_FILE --rewrite` updates them."""
    page = PAGE.read_text(encoding="utf-8")
    made = page
    for name, lines in {
        "messages": _messages(),
        "ladder": _ladder(),
        "conversation": _conversation(),
    }.items():
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        table = "\n".join(lines).strip() + "\n"
        made, count = between.subn(lambda at, table=table: at[1] + table + at[2], made)
        assert count == 1
    if request.config.getoption("--rewrite"):
        PAGE.write_text(made, encoding="utf-8")
    assert made == page or request.config.getoption("--rewrite")
