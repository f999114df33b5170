"""Evaluates topic filters apart from the coordinator, so that a slow filter delays only itself.

A peer's filter may take seconds: Java's regular expressions backtrack. The coordinator must renew
the lease meanwhile, so each request is evaluated on a thread of its own, without the interpreter's
lock (`concurrent` of the `regex` library).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from zkconsumer.errors import ConfigError, FilterTooCostlyError
from zkconsumer.protocol.filters import (
    MATCHING_BUDGET_S,
    MatchTopics,
    TopicFilter,
    checked,
    matching,
)
from zkconsumer.protocol.requests import Code, Reply


def match_topics(request: MatchTopics) -> Reply:
    """Answer a request on the caller's thread; each filter has `MATCHING_BUDGET_S` of wall time."""
    found: dict[TopicFilter, tuple[str, ...] | ConfigError] = {}
    for one in request.filters:
        try:
            found[one] = _match(one, request)
        except ConfigError as error:
            found[one] = error
    return Reply(Code.OK, found)


def match_topics_apart(request: MatchTopics, done: Callable[[Sequence[Reply]], None]) -> None:
    """Answer a request on a thread of its own, which calls `done`; return at once."""
    threading.Thread(
        target=lambda: done([match_topics(request)]), name="zkconsumer-filters", daemon=True
    ).start()


def _match(one: TopicFilter, request: MatchTopics) -> tuple[str, ...]:
    """Match one filter.

    `regex` counts the processor time of all threads of the process. A busy process uses the budget
    up early, so the filter is tried again, with twice the budget, until the wall clock agrees.
    """
    checked(one)  # an error of the pattern itself is final
    end, budget_s = time.monotonic() + MATCHING_BUDGET_S, MATCHING_BUDGET_S
    while True:
        try:
            return matching(one, request.topics, internal=request.internal, budget_s=budget_s)
        except FilterTooCostlyError:
            if time.monotonic() >= end:
                raise
            budget_s *= 2
