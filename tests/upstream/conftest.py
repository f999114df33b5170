"""Upstream's test harness: a group, and an empty topic of two partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from support.members.group import Group

from zkconsumer.sandbox import Sandbox


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group; its members leave at the end of the test."""
    topic = unique("topic1")
    sandbox.create_topic(topic, partitions=2)
    with ExitStack() as stack:
        yield Group(sandbox, unique("group1"), topic, stack)
