"""Suggestions for names that do not exist."""

from __future__ import annotations

import pytest

from zkconsumer.protocol.suggestions import did_you_mean, similar

GROUPS = ("billing", "billing-test", "payments", "search")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("biling", ["billing", "billing-test"]),
        ("serch", ["search"]),
        ("BILLING", ["billing", "billing-test"]),
        ("payment", ["payments"]),
        ("xyz", []),
        ("", []),
    ],
)
def test_similar(name: str, found: list[str]) -> None:
    """The nearest names come first, capital letters do not matter, and others are left out."""
    assert similar(name, GROUPS) == found


def test_the_sentence() -> None:
    """The question names up to three names; without one, only the other remedy is left."""
    assert did_you_mean("t1", ["t10", "t11", "x"]) == "did you mean 't11' or 't10'?"
    both = did_you_mean("biling", GROUPS, otherwise="list them")
    assert both == "did you mean 'billing' or 'billing-test'? Otherwise, list them"
    assert did_you_mean("xyz", GROUPS, otherwise="list them") == "list them"


def test_a_hostile_name_is_escaped() -> None:
    """A name that another client wrote is quoted and escaped."""
    assert did_you_mean("bad", ["bad\n"]) == r"did you mean 'bad\n'?"
