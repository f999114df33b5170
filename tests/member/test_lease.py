"""The lease: how long a member may deliver messages after the leader's last reply."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.member.state import NEVER, Lease

TIMES = st.floats(0.0, 1e6)


def test_no_lease_before_the_first_answer() -> None:
    """A member that has had no reply to a `sync` yet has no lease."""
    lease = Lease(6.0).asked(1, 100.0)
    assert not lease.holds(100.0)
    assert lease.deadline == NEVER


def test_the_lease_counts_from_the_question() -> None:
    """The lease lasts two thirds of the timeout, counted from when the `sync` was sent."""
    lease = Lease(6.0).asked(1, 100.0).granted(100.0)
    assert lease.holds(103.99)
    assert not lease.holds(104.0)


def test_an_old_answer_does_not_shorten_the_lease() -> None:
    """A late reply to an earlier `sync` does not shorten the lease."""
    lease = Lease(6.0).asked(2, 102.0).granted(102.0).granted(100.0)
    assert lease.deadline == 106.0


def test_one_sync_at_a_time() -> None:
    """While a `sync` has no reply, none is due; the next is due a sixth of the timeout later."""
    lease = Lease(6.0).asked(1, 100.0)
    assert lease.due_at() == float("inf")
    assert lease.granted(100.0).due_at() == 101.0


@given(st.floats(0.1, 100.0), st.lists(st.tuples(TIMES, st.floats(0.0, 10.0)), min_size=1))
def test_the_lease_ends_within_the_session(
    timeout_s: float, answers: list[tuple[float, float]]
) -> None:
    """Whenever replies arrive, the lease ends before the session can expire."""
    lease, last_word = Lease(timeout_s), 0.0
    for sent_at, _ in answers:
        lease = lease.asked(1, sent_at).granted(sent_at)
        last_word = max(last_word, sent_at)
    assert not lease.holds(last_word + timeout_s)
    assert lease.holds(last_word)
