"""Many members join at once."""

from __future__ import annotations

from collections.abc import Callable

from support.members.crew import Crew

from zkconsumer.sandbox import Sandbox


def test_sixteen_processes_join_at_once(
    crew: Crew, sandbox: Sandbox, unique: Callable[[str], str]
) -> None:
    """If 16 processes join at once, each owns four of 64 partitions; no message repeats."""
    name = unique("wide")
    sandbox.create_topic(name, partitions=64)
    crew.feed(name, 64)
    members = [crew.start() for _ in range(16)]
    crew.settle(*members)
    crew.flowing(*members)
    assert {len(member.owned) for member in members} == {4}
    assert crew.finish().duplicates() == 0
