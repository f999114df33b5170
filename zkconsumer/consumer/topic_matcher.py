"""Evaluates topic filters on other threads, so that a slow filter does not delay the member.

Another member's filter may take seconds, because Java's regular expressions backtrack. During this
time the member's thread must renew the lease. So each request is evaluated on its own thread,
without the interpreter's lock (`concurrent` of the `regex` library).
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
    """Answer a request on a new thread, which calls `done`; return at once."""
    threading.Thread(
        target=lambda: done([match_topics(request)]), name="zkconsumer-filters", daemon=True
    ).start()


def _match(one: TopicFilter, request: MatchTopics) -> tuple[str, ...]:
    """Match one filter.

    `regex` counts the processor time of all threads of the process, so a busy process uses up the
    budget early. The filter is then tried again with twice the budget, until `MATCHING_BUDGET_S`
    of wall time has passed.
    """
    checked(one)  # an error of the pattern itself is permanent
    end, budget_s = time.monotonic() + MATCHING_BUDGET_S, MATCHING_BUDGET_S
    while True:
        try:
            return matching(one, request.topics, internal=request.internal, budget_s=budget_s)
        except FilterTooCostlyError:
            if time.monotonic() >= end:
                raise
            budget_s *= 2
