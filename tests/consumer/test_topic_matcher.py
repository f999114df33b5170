"""Peers' filters are evaluated outside the member's thread, with a limit of wall time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

import pytest

from zkconsumer.consumer import topic_matcher
from zkconsumer.consumer.topic_matcher import match_topics, match_topics_apart
from zkconsumer.errors import FilterTooCostlyError, InvalidFilterError
from zkconsumer.protocol.filters import MatchTopics, TopicFilter, black_list, white_list
from zkconsumer.protocol.registrations import Pattern
from zkconsumer.protocol.requests import Reply

NONE: frozenset[str] = frozenset()
COSTLY, TOPICS = white_list("(a|aa)+b"), tuple(f"{'a' * 200}{n}" for n in range(50))


def test_each_filter_has_its_topics_or_its_error() -> None:
    """The reply has a result for each filter; an invalid filter does not affect the others."""
    broken = TopicFilter(Pattern.WHITE_LIST, "a{")
    filters = (white_list("a.*"), black_list("a.*"), broken)
    found = match_topics(MatchTopics(filters, ("a1", "b1", "a2"), NONE)).value
    assert (found[filters[0]], found[filters[1]]) == (("a1", "a2"), ("b1",))
    assert isinstance(found[broken], InvalidFilterError)


def test_a_slow_filter_does_not_hold_its_caller_up() -> None:
    """The call returns at once, other threads run on, and the reply names the slow filter."""
    replies: queue.SimpleQueue[Sequence[Reply]] = queue.SimpleQueue()
    match_topics_apart(MatchTopics((COSTLY,), TOPICS, NONE), replies.put)
    with pytest.raises(queue.Empty):
        replies.get_nowait()
    ((reply,),) = [replies.get(timeout=300)]
    assert isinstance(reply.value[COSTLY], FilterTooCostlyError)


def test_work_of_other_threads_is_no_filter_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter's limit is wall time: processor time of other threads does not shorten it."""
    monkeypatch.setattr(topic_matcher, "MATCHING_BUDGET_S", 0.2)
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(1000))

    burning = [threading.Thread(target=burn, daemon=True) for _ in range(4)]
    for one in burning:
        one.start()
    began = time.monotonic()
    try:
        found = match_topics(MatchTopics((COSTLY,), TOPICS, NONE)).value
    finally:
        stop.set()
    assert isinstance(found[COSTLY], FilterTooCostlyError)
    assert time.monotonic() - began >= 0.2
