"""Members join, leave, are killed and freeze."""

from __future__ import annotations

import time

import pytest
from support.members.crew import BRIEF, LIMIT_S, Crew, frozen, wait_for

from zkconsumer.sandbox import Sandbox

# How long a member is frozen, in seconds.
FREEZE_S = 0.6

BOTH_MODES = pytest.mark.parametrize("mode", ["incremental", "eager"])
pytestmark = pytest.mark.usefixtures("topic")


@BOTH_MODES
def test_a_member_joins(crew: Crew, mode: str) -> None:
    """A second member takes over half of the partitions, and no message is redelivered."""
    first = crew.join(rebalance_mode=mode)
    crew.settle(first)
    crew.flowing(first)
    second = crew.join(rebalance_mode=mode)
    crew.settle(first, second)
    crew.flowing(first, second)
    assert len(first.owned) == len(second.owned) == 4
    assert crew.finish().duplicates() == 0


@BOTH_MODES
def test_a_member_leaves(crew: Crew, mode: str) -> None:
    """After a clean leave, the other member continues exactly where the first one stopped."""
    first, second = crew.join(rebalance_mode=mode), crew.join(rebalance_mode=mode)
    crew.settle(first, second)
    crew.flowing(first, second)
    second.leave()
    crew.settle(first)
    crew.flowing(first)
    assert second.last("left")
    assert crew.finish().duplicates() == 0


def test_a_member_is_killed(crew: Crew) -> None:
    """After a SIGKILL the others own the member's partitions once its session has expired."""
    first, second, third = crew.join(), crew.join(), crew.join(**BRIEF)
    crew.settle(first, second, third)
    crew.flowing(first, second, third)
    third.kill()
    crew.settle(first, second)
    crew.flowing(first, second)
    crew.finish()


def test_a_member_is_killed_at_work(crew: Crew) -> None:
    """The message that the user was handling at a SIGKILL is redelivered."""
    first = crew.join(work_s=10 * LIMIT_S, **BRIEF)
    wait_for(lambda: first.delivered, "a message")
    (in_hand,) = first.delivered
    wait_for(lambda: in_hand.partition in crew.observer.snapshot().offsets, "an auto-commit")
    first.kill()
    second = crew.join()
    crew.settle(second)
    evidence = crew.finish()
    again = [d.offset for d in evidence.deliveries if d.partition == in_hand.partition]
    assert again.count(in_hand.offset) == 2


def test_a_slow_user(crew: Crew) -> None:
    """A hand-over waits only for release.grace.ms, even if a message is never finished."""
    first = crew.join(work_s=600.0, release_grace_s=0.3, **BRIEF)
    wait_for(lambda: first.delivered, "a message")
    second = crew.join()
    wait_for(lambda: len(second.owned) == 4, "the second member to own its half")
    assert len(first.delivered) == 1
    first.kill()
    crew.settle(second)
    crew.finish()


def test_a_frozen_member(crew: Crew) -> None:
    """If a freeze outlasts the session, only the unfinished message is finished late."""
    first, second = crew.join(), crew.join(work_s=0.0003, **BRIEF)
    crew.settle(first, second)
    for partition in sorted(second.owned):
        crew.traffic.burst(partition, 500)
    crew.flowing(first, second)
    with frozen(second):
        crew.settle(first)
        crew.flowing(first)
    crew.settle(first, second)
    crew.flowing(first, second)
    crew.finish()


def test_a_freeze_within_the_session_moves_nothing(crew: Crew) -> None:
    """If a freeze is shorter than the session, nothing moves and nothing is redelivered."""
    # A busy machine may thaw the member late, so the session is much longer than the freeze.
    first, second = crew.join(), crew.join()
    crew.settle(first, second)
    crew.flowing(first, second)
    owners = crew.observer.snapshot().owners
    with frozen(second):
        began = time.monotonic()
        wait_for(lambda: time.monotonic() > began + FREEZE_S, "time to pass")
    crew.flowing(first, second)
    assert crew.observer.snapshot().owners == owners
    assert crew.finish().duplicates() == 0


def test_partitions_are_added(crew: Crew, sandbox: Sandbox, topic: str) -> None:
    """New partitions of a topic are served from their first message."""
    first, second = crew.join(), crew.join()
    crew.settle(first, second)
    crew.flowing(first, second)
    sandbox.add_partitions(topic, partitions=12)
    crew.feed(topic, 12)
    crew.settle(first, second)
    crew.flowing(first, second)
    assert len(first.owned) == len(second.owned) == 6
    assert crew.finish().duplicates() == 0


def test_more_threads_than_partitions(crew: Crew) -> None:
    """If there are too many threads, the timeout of an idle stream gives this reason."""
    first = crew.join(threads=6)
    second = crew.join(threads=4, consumer_timeout_s=1.0)
    crew.settle(first, second)
    # On a busy machine the streams with partitions can time out, too.
    reason = "more consumer threads than the topic has partitions"
    wait_for(
        lambda: (
            [one["kind"] for one in second.of("error") if reason in one["text"]][:2]
            == ["ConsumerTimeoutError"] * 2
        ),
        "idle streams to time out",
    )
    crew.flowing(first, second)
    assert crew.finish().duplicates() == 0
