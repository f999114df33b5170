"""The judge of the other tests: it finds what must not be."""

from __future__ import annotations

from evidence import Delivery, Evidence

from zkconsumer.core.model import TopicPartition

ZERO = TopicPartition("t", 0)


def _violations(*deliveries: Delivery, in_hand: int = 0) -> list[str]:
    evidence = Evidence(deliveries, {ZERO: frozenset({0, 1})}, ())
    return evidence.violations(in_hand={"a": in_hand})


FIRST, SECOND = Delivery(1.0, "a", ZERO, 7, 0), Delivery(2.0, "b", ZERO, 8, 1)


def test_a_good_group() -> None:
    """A clean hand-over, and a repetition by the next owner, are no violations."""
    assert _violations(FIRST, SECOND) == []
    assert _violations(FIRST, Delivery(1.5, "b", ZERO, 8, 0), SECOND) == []


def test_a_lost_message() -> None:
    """A message that nobody was given is found."""
    assert _violations(FIRST) == ["never delivered: t-0 [1]"]


def test_disorder() -> None:
    """Offsets that do not grow within an ownership, and an ownership of two members, are found."""
    assert len(_violations(FIRST, Delivery(1.5, "a", ZERO, 7, 0), SECOND)) == 1
    assert len(_violations(FIRST, Delivery(1.5, "b", ZERO, 7, 1))) == 1


def test_a_late_delivery() -> None:
    """More deliveries under an older token than a frozen member had in hand are found."""
    late = Delivery(3.0, "a", ZERO, 7, 1)
    assert len(_violations(FIRST, SECOND, late)) == 1
    assert _violations(FIRST, SECOND, late, in_hand=1) == []
    assert len(_violations(FIRST, SECOND, late, late._replace(offset=2), in_hand=1)) == 1
