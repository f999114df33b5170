"""In a forked child process a connector raises an error; the parent's member continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.members.group import Group
from support.processes import in_child
from support.wait import LIMIT_S

from zkconsumer import ConsumerConnector, ForkedError, Stream


def refused(*calls: Callable[[], object]) -> None:
    for call in calls:
        with pytest.raises(ForkedError, match="created in the parent process"):
            call()


def test_use_after_fork_raises_at_once(group: Group) -> None:
    """In the child, each call of connector and stream raises ForkedError; the parent continues."""
    connector: ConsumerConnector = group.member(consumer_timeout_s=LIMIT_S).connector
    stream: Stream[bytes, bytes]
    (stream,) = connector.create_message_streams({group.topic: 1})[group.topic]
    iterator = iter(stream)
    first = next(iterator)  # The member has already fetched the rest of its batch.

    def act() -> None:
        refused(lambda: next(iterator), lambda: next(stream), stream.poll)
        refused(connector.commit_offsets, connector.shutdown, lambda: connector.pause([]))
        refused(connector.assignment, connector.lag, connector.paused)
        refused(connector.status, connector.metrics)
        with connector:
            pass

    assert in_child(act) == 0
    offsets = {(first.partition, first.offset)}
    while len(offsets) < 40:
        batch = stream.poll(timeout_s=LIMIT_S)
        assert batch
        offsets |= {(one.partition, one.offset) for one in batch}
    connector.commit()
    assert group.stored(0) == "10"


def test_a_forked_child_can_end(group: Group) -> None:
    """If a child process deletes its copy of the connector, it does not hang."""
    connector = group.member(consumer_timeout_s=LIMIT_S).connector
    held: list[Any] = [connector, *connector.create_message_streams({group.topic: 1})[group.topic]]
    next(held[1])

    def act() -> None:
        nonlocal connector
        held.clear()
        del connector

    assert in_child(act) == 0
