"""The status of a partition in a group follows the rules of Burrow."""

from __future__ import annotations

import pytest

from zkconsumer.admin.lag import PATIENCE_S, WINDOW, CommitWindow, SeenCommit, Status, evaluate

MINUTE_S = 60.0


def _judge(
    commits: list[tuple[float, int, int]], *, lag: int, now_s: float, is_owned: bool = True
) -> Status | None:
    return evaluate(
        [SeenCommit(*one) for one in commits],
        lag=lag,
        is_owned=is_owned,
        now_s=now_s,
        patience_s=PATIENCE_S,
    )


MOVING = [(0.0, 10, 5), (MINUTE_S, 20, 4), (2 * MINUTE_S, 30, 6)]


@pytest.mark.parametrize(
    ("commits", "lag", "minutes", "owned", "status"),
    [
        (MOVING, 0, 60, True, Status.OK),  # no lag at the moment
        ([(0.0, 10, 0), (MINUTE_S, 10, 9)], 9, 2, True, Status.OK),  # no lag within the window
        ([(0.0, 10, 0), (MINUTE_S, 10, 9)], 9, 60, True, Status.STALLED),  # no lag, but long ago
        (MOVING, 6, 2, True, Status.OK),  # the lag decreased once
        ([(0.0, 10, 5), (MINUTE_S, 20, 5), (2 * MINUTE_S, 30, 9)], 9, 2, True, Status.WARNING),
        ([(0.0, 10, 5), (MINUTE_S, 10, 8)], 8, 1, True, Status.STALLED),
        (MOVING, 6, 2 + 2.1, True, Status.STALLED),  # no further commits, although owned
        (MOVING, 6, 2 + 2.1, False, Status.STOPPED),  # no further commits, and no owner
        (MOVING, 6, 2 + 1.9, False, Status.OK),  # a pause shorter than MOVING's span
        ([(0.0, 30, 5), (MINUTE_S, 20, 15)], 15, 1, True, Status.REWOUND),
        ([(0.0, 30, 0), (MINUTE_S, 20, 15)], 15, 1, True, Status.REWOUND),
        # the rule of pauses comes first, as in Burrow
        ([(0.0, 30, 5), (MINUTE_S, 20, 15)], 15, 60, False, Status.STOPPED),
        ([(0.0, 10, 5)], 5, 1, True, None),  # one commit is too few for a rule
        ([(0.0, 10, 5)], 5, 3, True, Status.STALLED),
    ],
)
def test_burrows_rules(
    commits: list[tuple[float, int, int]],
    lag: int,
    minutes: float,
    owned: bool,
    status: Status | None,
) -> None:
    """Each rule of Burrow gives its status."""
    assert _judge(commits, lag=lag, now_s=minutes * MINUTE_S, is_owned=owned) is status


@pytest.mark.parametrize(("allowed", "status"), [(7, Status.STALLED), (8, Status.OK)])
def test_an_allowed_lag(allowed: int, status: Status) -> None:
    """A lag up to the allowed one is OK, although the offset does not move."""
    window = CommitWindow(2)
    for now_s in (0.0, MINUTE_S, 2 * MINUTE_S):
        window.add(now_s=now_s, offset=10, committed_s=now_s, lag=8, is_owned=True)
    assert len(window.commits) == 2
    assert window.status(2 * MINUTE_S, allowed_lag=allowed) is status


def test_only_a_changed_offset_counts_as_a_commit() -> None:
    """Only an offset that was changed or written again counts as a commit."""
    window = CommitWindow()
    for now_s in (1.0, 2.0, 3.0):
        window.add(now_s=now_s, offset=5, committed_s=0.5, lag=3, is_owned=True)
    assert window.commits == [SeenCommit(0.5, 5, 3)]
    window.add(now_s=4.0, offset=5, committed_s=3.5, lag=4, is_owned=True)
    assert window.commits[1:] == [SeenCommit(3.5, 5, 4)]
    assert window.status(4.0) is Status.STALLED


def test_a_store_without_times() -> None:
    """Kafka stores no commit times, so the time of the first reading of an offset counts."""
    window = CommitWindow()
    for now_s, offset in ((1.0, 5), (2.0, 5), (3.0, 6)):
        window.add(now_s=now_s, offset=offset, committed_s=None, lag=3, is_owned=True)
    assert [one.at_s for one in window.commits] == [1.0, 3.0]


def test_a_pause_counts_only_while_messages_wait() -> None:
    """A member that had nothing to read is not STALLED as soon as a message arrives."""
    window = CommitWindow()
    for now_s, lag in ((0.0, 3), (MINUTE_S, 0), (60 * MINUTE_S, 0), (61 * MINUTE_S, 1)):
        offset = 5 if now_s == 0 else 8
        committed_s = min(now_s, MINUTE_S)
        window.add(now_s=now_s, offset=offset, committed_s=committed_s, lag=lag, is_owned=True)
    assert window.status(61 * MINUTE_S) is Status.OK
    assert window.status(63 * MINUTE_S) is Status.STALLED


def test_only_the_last_commits_count() -> None:
    """Only the latest commits count, so an old rewind is no longer reported."""
    window = CommitWindow()
    for number in range(2 * WINDOW):
        window.add(now_s=number, offset=number % WINDOW, committed_s=number, lag=1, is_owned=True)
        assert len(window.commits) <= WINDOW
    assert window.status(2 * WINDOW) is Status.WARNING


def test_an_unknown_lag_has_no_status() -> None:
    """If the lag is unknown there is no status, whatever the last status was."""
    window = CommitWindow()
    window.add(now_s=1, offset=1, committed_s=1, lag=1, is_owned=True)
    window.add(now_s=900, offset=1, committed_s=1, lag=None, is_owned=True)
    assert window.status(900) is None
