"""Fetch sessions: what a broker remembers is always what the client wants to read."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zkconsumer.kafka.columns import fetch_sessions
from zkconsumer.kafka.columns.fetch_sessions import (
    SESSION_NOT_FOUND,
    WRONG_EPOCH,
    FetchSession,
    SessionRequest,
    Wanted,
)
from zkconsumer.protocol.model import TopicPartition

A, B, C = (TopicPartition("topic", number) for number in range(3))


def wanted(**offsets: int) -> list[Wanted]:
    """Return a list of partitions of 100 bytes each, by their letters."""
    return [({"a": A, "b": B, "c": C}[name], offset, 100) for name, offset in offsets.items()]


def begun(*, number: int = 7) -> FetchSession:
    """Return a session of the partitions A and B, which a broker has accepted."""
    session = FetchSession()
    assert session.request(wanted(a=1, b=2)) == SessionRequest(0, 0, wanted(a=1, b=2))
    session.answered(number, [(A, 1), (B, 2)])
    return session


def test_a_request_names_only_what_has_changed() -> None:
    """Moved and new partitions are sent, unknown ones are removed, and the others are omitted."""
    session = begun()
    assert session.request(wanted(a=1, b=2)) == SessionRequest(7, 1, [], [])
    session.answered(7, [])
    assert session.request(wanted(b=5, c=0)) == SessionRequest(7, 2, wanted(b=5, c=0), [A])


def test_another_limit_of_a_partition_is_a_change() -> None:
    """A partition whose message was too large is sent with the larger limit."""
    session = begun()
    assert session.request([(A, 1, 500), (B, 2, 100)]).wanted == [(A, 1, 500)]


def test_a_broker_without_room_gets_all_partitions() -> None:
    """After a response with the id 0, the next request names all partitions, and asks again."""
    session = begun(number=0)
    assert session.request(wanted(a=1, b=2)) == SessionRequest(0, 0, wanted(a=1, b=2))


def test_an_unknown_session_is_replaced() -> None:
    """If the broker does not know the session, the next request begins another one."""
    session = begun()
    session.request(wanted(a=1))
    session.refused(SESSION_NOT_FOUND)
    assert session.request(wanted(a=1)) == SessionRequest(0, 0, wanted(a=1))


def test_a_session_with_another_epoch_is_ended() -> None:
    """If the epochs differ, or a response was lost, the next request ends the session."""
    for end in (lambda one: one.refused(WRONG_EPOCH), FetchSession.lost):
        session = begun()
        session.request(wanted(a=1))
        end(session)
        assert session.request(wanted(a=1)) == SessionRequest(7, 0, wanted(a=1))


def test_a_request_without_a_session_ends_it() -> None:
    """When few partitions are left, one request ends the session; later ones name none."""
    session = begun()
    for number in (7, 0):
        assert session.request_without(wanted(a=1)) == SessionRequest(number, -1, wanted(a=1))
        session.answered(0, [(A, 1)])
        assert session.end(A) == -1
    assert session.request(wanted(a=1)) == SessionRequest(0, 0, wanted(a=1))


def test_ends_of_logs_are_known_until_a_partition_is_removed() -> None:
    """The last high watermark of each partition of the session is known."""
    session = begun()
    assert [session.end(one) for one in (A, B, C)] == [1, 2, -1]
    session.request(wanted(b=2, c=0))
    session.answered(7, [(B, 9)])
    assert [session.end(one) for one in (A, B, C)] == [-1, 9, -1]


class Broker:
    """A broker with one client, in memory (`kafka.server.FetchManager.newContext`)."""

    def __init__(self) -> None:
        self.sessions: dict[int, tuple[int, dict[TopicPartition, tuple[int, int]]]] = {}
        self._number = 0

    def read(self, request: SessionRequest, *, has_room: bool) -> tuple[int, int, list[Wanted]]:
        """Return the error, the session's id, and what the broker reads."""
        sent = {tp: (offset, size) for tp, offset, size in request.wanted}
        if request.epoch in (0, -1):
            self.sessions.pop(request.session, None)
            number = 0
            if request.epoch == 0 and has_room:
                self._number = number = self._number + 1
                self.sessions[number] = 1, sent
            return 0, number, list(request.wanted)
        if request.session not in self.sessions:
            return SESSION_NOT_FOUND, 0, []
        epoch, known = self.sessions[request.session]
        if epoch != request.epoch:
            return WRONG_EPOCH, request.session, []
        assert all(known.get(tp) != new for tp, new in sent.items())
        assert set(request.removed) <= known.keys() - sent.keys()
        known = {tp: old for tp, old in (known | sent).items() if tp not in request.removed}
        self.sessions[request.session] = epoch % fetch_sessions.LAST_EPOCH + 1, known
        return 0, request.session, [(tp, *rest) for tp, rest in known.items()]


PARTITIONS = st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 2))
STEPS = st.lists(
    st.tuples(
        PARTITIONS,
        st.sampled_from(["answered", "answered", "lost", "restarted", "full", "without"]),
    ),
    max_size=20,
)


@pytest.fixture(params=[2, 2**31 - 1])
def last_epoch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last epoch, after which the next one is 1; a test reaches only a low one."""
    monkeypatch.setattr(fetch_sessions, "LAST_EPOCH", request.param)


@given(STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("last_epoch")
def test_the_broker_always_reads_what_is_wanted(
    steps: list[tuple[dict[TopicPartition, int], str]],
) -> None:
    """Each answered request reads what is wanted; only a restarted broker refuses a request."""
    session, broker = FetchSession(), Broker()
    for offsets, event in steps:
        asked = [(tp, offset, 100) for tp, offset in offsets.items()]
        if event == "restarted":
            broker.sessions.clear()
        request = (session.request_without if event == "without" else session.request)(asked)
        error, number, read = broker.read(request, has_room=event != "full")
        if event == "lost":
            session.lost()
        elif error:
            assert (error, event) == (SESSION_NOT_FOUND, "restarted")
            session.refused(error)
        else:
            assert sorted(read) == sorted(asked)
            session.answered(number, [])
    # The client never learns the id of a session if the response to the first request is lost.
    assert len(broker.sessions) <= 1 + sum(event == "lost" for _, event in steps)
