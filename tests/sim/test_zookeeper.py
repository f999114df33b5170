"""The simulated ZooKeeper: replicas, quorum and time, which a single server does not show.

The contract suite and `test_zookeeper_like_real` test what both can show.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sim.znodes import End, ZnodeChange
from zkconsumer.sim.zookeeper import NotConnected, ReplicaBehind, SimZooKeeper, Unreachable

TIMEOUT_S = 1.0


def connect(sim: SimZooKeeper, replica: int = 0, **options: Any) -> int:
    session = sim.connect(now=0.0, timeout_s=TIMEOUT_S, replica=replica, **options)
    assert session is not None
    return session


def ask(sim: SimZooKeeper, session: int, request: Any, now: float = 0.0) -> Reply:
    reply = sim.request(session, request, now)
    assert reply is not None
    return reply


def claim(path: str) -> rq.Create:
    return rq.Create(path, b"", ephemeral=True)


def two_replicas() -> tuple[SimZooKeeper, int, int]:
    """An ensemble with a writer at replica 0 and a reader at replica 1."""
    sim = SimZooKeeper(replicas=2)
    return sim, connect(sim, 0), connect(sim, 1)


# ---- replicas -----------------------------------------------------------------------------------


def test_a_replica_that_lags_serves_an_older_state() -> None:
    """Clients of a replica that lags read an older prefix of the log until it catches up."""
    sim, writer, reader = two_replicas()
    sim.set_lag(1, 2)
    listings = []
    for name in "abcd":
        ask(sim, writer, rq.Create(f"/{name}"))
        listings.append(ask(sim, reader, rq.Children("/")).value)
    assert listings == [(), (), ("a",), ("a", "b")]
    sim.catch_up(1)
    assert ask(sim, reader, rq.Children("/")).value == ("a", "b", "c", "d")


@pytest.mark.parametrize("request_", [rq.SyncLeader("/"), rq.Create("/mine")])
def test_a_sync_or_a_write_brings_its_replica_up_to_date(request_: rq.Request) -> None:
    """Once the leader has replied to a client, the client reads all earlier writes."""
    sim, writer, reader = two_replicas()
    sim.set_lag(1, 10)
    ask(sim, writer, rq.Create("/a"))
    assert ask(sim, reader, rq.Exists("/a")).value is None
    ask(sim, reader, request_)
    assert ask(sim, reader, rq.Exists("/a")).value is not None
    ask(sim, writer, rq.Create("/b"))
    assert ask(sim, reader, rq.Exists("/b")).value is None  # The replica lags again.


def test_a_transaction_is_applied_whole() -> None:
    """A replica that lags by one transaction shows no part of the transaction."""
    sim, writer, reader = two_replicas()
    sim.set_lag(1, 1)
    ask(sim, writer, rq.Multi((rq.Create("/a"), rq.Create("/b"))))
    assert ask(sim, reader, rq.Children("/")).value == ()
    ask(sim, writer, rq.Create("/c"))
    assert ask(sim, reader, rq.Children("/")).value == ("a", "b")


def test_a_watch_fires_when_its_replica_applies_the_change() -> None:
    """A replica that lags sends watch events late; the client then reads what they report."""
    sim, writer, reader = two_replicas()
    sim.set_lag(1, 5)
    ask(sim, reader, rq.Exists("/a", watch=True))
    ask(sim, writer, rq.Create("/a"))
    assert sim.take_events(reader) == []
    sim.catch_up(1)
    assert sim.take_events(reader) == [("CREATED", "/a")]
    assert sim.take_events(reader) == []
    assert ask(sim, reader, rq.Exists("/a")).value is not None


def test_a_session_never_goes_back() -> None:
    """A replica refuses a client that has seen a later zxid; the client's session continues."""
    sim, writer, _ = two_replicas()
    sim.set_lag(1, 5)
    ask(sim, writer, rq.Create("/a"))
    with pytest.raises(ReplicaBehind):
        connect(sim, 1, session=writer)
    assert sim.is_connected(writer)
    sim.catch_up(1)
    assert connect(sim, 1, session=writer) == writer


def test_a_client_that_missed_its_reply_may_read_the_past() -> None:
    """After a lost reply, a replica that lags does not show the claim yet, but shows it later."""
    sim, writer, _ = two_replicas()
    sim.set_lag(1, 5)
    seen = sim.zxid(writer)
    ask(sim, writer, claim("/p0"))  # This reply does not arrive.
    sim.disconnect(writer)
    assert connect(sim, 1, session=writer, seen=seen) == writer
    assert ask(sim, writer, rq.Exists("/p0")).value is None
    assert ask(sim, writer, claim("/p0")).code is Code.NODE_EXISTS
    assert ask(sim, writer, rq.Exists("/p0")).value.owner == writer


def test_a_new_session_finds_its_replica_up_to_date() -> None:
    """Since opening a session is a transaction, the replica first applies all earlier ones."""
    sim, writer, _ = two_replicas()
    sim.set_lag(1, 5)
    ask(sim, writer, rq.Create("/a"))
    assert ask(sim, connect(sim, 1), rq.Exists("/a")).value is not None


def test_a_replica_that_is_cut_off_reads_on_and_writes_nothing() -> None:
    """A replica without its leader answers a client's reads until the client sends a write."""
    sim, writer, reader = two_replicas()
    ask(sim, writer, rq.Create("/a"))
    sim.cut_off(1)
    ask(sim, writer, rq.Create("/b"))
    assert ask(sim, reader, rq.Children("/")).value == ("a",)
    assert sim.ping(reader, 0.0)
    assert sim.request(reader, rq.Create("/c"), 0.0) is None
    assert sim.request(reader, rq.Children("/"), 0.0) is None
    assert not sim.ping(reader, 0.0)
    sim.heal(1)
    assert not sim.is_connected(reader)  # The follower closed the connections of waiting clients.
    connect(sim, 1, session=reader)
    assert ask(sim, reader, rq.Children("/")).value == ("a", "b")


def test_a_sync_shows_a_client_that_its_replica_is_cut_off() -> None:
    """A replica without its leader answers reads and pings as before, but not a sync."""
    sim, _, reader = two_replicas()
    sim.cut_off(1)
    assert sim.ping(reader, 0.0)
    assert ask(sim, reader, rq.Get("/")).code is Code.OK
    assert sim.request(reader, rq.SyncLeader("/"), 0.0) is None


def test_a_session_expires_behind_the_back_of_a_client_that_is_cut_off() -> None:
    """A session expires at the leader although its cut-off replica still answers its pings."""
    sim, writer, reader = two_replicas()
    ask(sim, reader, claim("/p0"))
    sim.cut_off(1)
    for tenth in range(1, 20):
        sim.ping(writer, tenth / 10)
        assert sim.ping(reader, tenth / 10)
        sim.tick(tenth / 10)
    assert sim.sessions == (writer,)
    assert ask(sim, writer, rq.Exists("/p0"), 2.0).value is None
    assert ask(sim, reader, rq.Exists("/p0"), 2.0).value.owner == reader
    sim.heal(1)
    assert not sim.is_connected(reader)
    assert sim.connect(now=2.0, timeout_s=TIMEOUT_S, session=reader) is None


def test_a_write_of_a_session_that_is_over_is_refused_at_a_replica_that_lags() -> None:
    """A session that has ended cannot write, even at a replica that still shows its znodes."""
    sim, writer, reader = two_replicas()
    ask(sim, reader, claim("/p0"))
    sim.set_lag(1, 5)
    sim.expire(reader)
    assert ask(sim, reader, rq.Exists("/p0")).value.owner == reader
    assert ask(sim, reader, rq.Create("/late")).code is Code.BROKEN
    assert not sim.is_connected(reader)
    assert ask(sim, writer, rq.Children("/")).value == ()


def test_no_client_connects_to_a_replica_without_a_leader() -> None:
    """A replica without a leader or a quorum accepts neither new nor existing sessions."""
    sim, writer, _ = two_replicas()
    sim.cut_off(1)
    for session in (0, writer):
        with pytest.raises(Unreachable):
            connect(sim, 1, session=session)
    sim.lose_quorum()
    with pytest.raises(NotConnected):
        connect(sim, 0)


# ---- quorum, restarts, time ---------------------------------------------------------------------


def test_without_a_quorum_no_write_succeeds_and_no_session_expires() -> None:
    """Without a quorum reads work and no session expires; an election restarts all timeouts."""
    sim, writer, reader = two_replicas()
    ask(sim, writer, claim("/p0"))
    sim.lose_quorum()
    assert sim.tick(100.0) == []
    assert ask(sim, reader, rq.Exists("/p0"), 100.0).value.owner == writer
    assert sim.request(writer, rq.Delete("/p0"), 100.0) is None
    assert not sim.close(writer, 100.0)
    sim.regain_quorum()
    assert sim.tick(100.0) == []
    assert sim.tick(100.9) == []
    assert sim.tick(101.2) == [writer, reader]


def test_a_restart_keeps_data_and_sessions_and_drops_connections() -> None:
    """A restart restarts all timeouts, so a session survives an outage of any length."""
    sim, writer, reader = two_replicas()
    sim.cut_off(1)
    ask(sim, writer, claim("/p0"))
    ask(sim, writer, rq.Get("/p0", watch=True))
    sim.restart(100.0)
    assert not sim.is_connected(writer)
    assert sim.tick(100.9) == []
    assert connect(sim, 1, session=writer) == writer
    assert ask(sim, writer, rq.Exists("/p0"), 100.9).value.owner == writer
    ask(sim, writer, rq.Delete("/p0"), 100.9)
    assert sim.take_events(writer) == []  # The watch ended with the connection.
    assert sim.tick(101.2) == [reader]


@pytest.mark.parametrize(("heard_at", "expires_at"), [(0.0, 1.1), (0.04, 1.1), (0.27, 1.3)])
def test_a_session_expires_at_the_tick_after_its_timeout(
    heard_at: float, expires_at: float
) -> None:
    """A session never expires before its timeout, and at most one tick after it."""
    sim = SimZooKeeper(tick_s=0.1)
    session = connect(sim)
    sim.ping(session, heard_at)
    assert sim.tick(expires_at - 0.01) == []
    assert sim.tick(expires_at + 1e-9) == [session]
    assert sim.tick(expires_at + 1.0) == []


def test_every_request_is_a_sign_of_life() -> None:
    """A client that sends requests needs to send no pings."""
    sim = SimZooKeeper()
    session = connect(sim)
    for second in range(5):
        ask(sim, session, rq.Exists("/"), second * 0.9)
        assert sim.tick(second * 0.9) == []
    assert sim.tick(5.0) == [session]


def test_an_expired_session_is_broken_for_good() -> None:
    """After its end a session gets only refusals, and its id is not used again."""
    sim = SimZooKeeper()
    session = connect(sim)
    sim.expire(session)
    assert ask(sim, session, rq.Exists("/")).code is Code.BROKEN
    assert sim.connect(now=0.0, timeout_s=TIMEOUT_S, session=session) is None
    assert connect(sim) != session


def test_a_session_that_moves_leaves_its_watches() -> None:
    """When a session moves to another connection, watches of its old connection do not fire."""
    sim, writer, reader = two_replicas()
    ask(sim, reader, rq.Exists("/a", watch=True))
    connect(sim, 0, session=reader)
    ask(sim, writer, rq.Create("/a"))
    assert sim.take_events(reader) == []


# ---- rights, sizes, history ---------------------------------------------------------------------


def test_permissions_are_withdrawn_and_granted_during_a_session() -> None:
    """Rights on a subtree are withdrawn from all clients but the operator, then granted again."""
    sim = SimZooKeeper()
    anyone, admin = connect(sim), connect(sim, auth=frozenset({"super"}))
    ask(sim, anyone, rq.Create("/owners"))
    sim.forbid("/owners", "create", "delete")
    assert ask(sim, anyone, claim("/owners/0")).code is Code.NO_AUTH
    assert ask(sim, anyone, rq.Children("/owners")).code is Code.OK
    assert ask(sim, admin, claim("/owners/0")).code is Code.OK
    sim.forbid("/owners")
    assert ask(sim, anyone, rq.Delete("/owners/0")).code is Code.OK


def test_a_create_that_the_client_would_not_send_is_refused_before() -> None:
    """As in kazoo, a create that is too large gets TOO_LARGE, and the connection stays open."""
    sim = SimZooKeeper()
    session = connect(sim)
    large = rq.Create("/a", b"x" * (rq.MAX_PAYLOAD_BYTES + 1))
    assert ask(sim, session, large).code is Code.TOO_LARGE
    assert sim.is_connected(session)


def test_the_history_names_the_author_of_each_change() -> None:
    """The history has one entry, with the session, for each changed znode; none for a refusal."""
    sim = SimZooKeeper()
    session = connect(sim)
    multi = rq.Multi((rq.Create("/a", b"1"), rq.SetData("/a", b"2", 0), rq.Check("/a", 1)))
    ask(sim, session, multi)
    ask(sim, session, claim("/p0"))
    ask(sim, session, rq.Multi((rq.Delete("/a"), rq.Check("/none"))))
    sim.expire(session)
    told = [(it.zxid, it.session, it.write, it.path) for it in sim.history]
    assert told == [
        (1, session, multi.writes[0], "/a"),
        (1, session, multi.writes[1], "/a"),
        (2, session, claim("/p0"), "/p0"),
        (3, session, End.EXPIRED, "/p0"),
        (3, session, End.EXPIRED, ""),
    ]
    values = [[it and it.data for it in (change.old, change.new)] for change in sim.history]
    assert values == [[None, b"1"], [b"1", b"2"], [None, b""], [b"", None], [None, None]]


# ---- states as values ---------------------------------------------------------------------------

names = st.sampled_from(["/a", "/b", "/a/x", "/b/x"])
requests = st.one_of(
    st.builds(rq.Create, names, st.sampled_from([b"", b"1"]), st.booleans()),
    st.builds(rq.SetData, names, st.sampled_from([b"", b"1"]), st.just(-1)),
    st.builds(rq.Delete, names),
    st.builds(rq.Get, names, st.booleans()),
    st.builds(rq.Exists, names, st.booleans()),
    st.builds(rq.Children, names, st.booleans()),
    st.builds(rq.Listing, names, st.booleans()),
    st.builds(rq.SyncLeader, names),
    st.builds(lambda *it: rq.Multi(it), st.builds(rq.Delete, names), st.builds(claim, names)),
)


def _connect(sim: SimZooKeeper, session: int, now: float) -> Any:
    try:
        return sim.connect(
            now=now, timeout_s=1.0, replica=session % 2, session=session if session < 3 else 0
        )
    except NotConnected as error:
        return type(error)


faults = st.sampled_from(
    [
        lambda sim, it, now: sim.set_lag(it % 2, 2),
        lambda sim, it, now: sim.catch_up(it % 2),
        lambda sim, it, now: sim.cut_off(it % 2),
        lambda sim, it, now: sim.heal(it % 2),
        lambda sim, it, now: sim.expire(it),
        lambda sim, it, now: sim.disconnect(it),
        lambda sim, it, now: sim.lose_quorum(),
        lambda sim, it, now: sim.regain_quorum(),
        lambda sim, it, now: sim.restart(now),
        lambda sim, it, now: sim.forbid("/a", "read", "create"),
        lambda sim, it, now: sim.forbid("/a"),
        lambda sim, it, now: sim.tick(now),
        _connect,
        _connect,
    ]
)
acts = st.tuples(st.integers(1, 3), st.one_of(requests, requests, requests, faults))
runs = st.lists(acts, max_size=30)


def play(sim: SimZooKeeper, run: list[tuple[int, Any]], now: float) -> list[Any]:
    """Return all answers of the ensemble, without their zxids."""
    answers: list[Any] = []
    for session, act in run:
        now += 0.125
        if callable(act):
            answers.append(act(sim, session, now))
        else:
            reply = sim.request(session, act, now)
            answers.append(reply and (reply.code, _without_zxids(reply.value)))
        answers.append([sim.take_events(number) for number in range(1, 4)])
    return answers


def _without_zxids(value: Any) -> Any:
    if isinstance(value, rq.Node):
        return value.data, _without_zxids(value.stat)
    return value[2:] if isinstance(value, rq.Stat) else value if isinstance(value, str) else None


def _started() -> SimZooKeeper:
    sim = SimZooKeeper(replicas=2)
    for replica in (0, 1, 0):
        connect(sim, replica)
    return sim


@settings(max_examples=200)
@given(before=runs, left=runs, right=runs)
def test_a_copy_is_independent(before: Any, left: Any, right: Any) -> None:
    """Changes to a copy do not affect the original, and vice versa."""
    alone = _started()
    play(alone, before, 0.0)
    expected = play(alone, right, 10.0)
    sim = _started()
    play(sim, before, 0.0)
    twin = sim.copy()
    assert twin.key(0.0) == sim.key(0.0)
    assert twin.history == sim.history
    play(twin, left, 10.0)
    of_twin = twin.key(0.0)
    assert play(sim, right, 10.0) == expected
    assert twin.key(0.0) == of_twin
    assert sim.key(0.0) == alone.key(0.0)


@settings(max_examples=200)
@given(wasted=st.integers(0, 3), before=runs, after=runs)
def test_equal_keys_behave_alike(wasted: int, before: Any, after: Any) -> None:
    """States whose zxids have the same order have equal keys, and afterwards behave alike."""
    plain, other = _started(), _started()
    for _ in range(wasted):
        other.write(rq.Create("/wasted"))
        other.write(rq.Delete("/wasted"))
    play(plain, before, 0.0)
    play(other, before, 0.0)
    assert plain.key(5.0) == other.key(5.0)
    assert hash(plain.key(5.0)) == hash(other.key(5.0))
    assert play(plain, after, 5.0) == play(other, after, 5.0)
    assert plain.key(9.0) == other.key(9.0)


def test_a_key_tells_states_apart() -> None:
    """The key depends on data, versions, watches, lag, connections, and the order of zxids."""

    def state(*acts: Any) -> Any:
        sim = _started()
        sim.write(rq.Create("/a"), rq.Create("/b"))
        play(sim, list(enumerate_at_1(acts)), 0.0)
        return sim.key()

    different = [
        state(),
        state(rq.SetData("/a", b"", -1)),
        state(rq.SetData("/a", b"1", -1)),
        state(rq.SetData("/b", b"1", -1), rq.SetData("/a", b"1", -1)),
        state(rq.SetData("/a", b"1", -1), rq.SetData("/b", b"1", -1)),
        state(rq.Get("/a", watch=True)),
        state(rq.Children("/a", watch=True)),
        state(lambda sim, it, now: sim.set_lag(0, 2)),
        state(lambda sim, it, now: sim.cut_off(0)),
        state(lambda sim, it, now: sim.disconnect(1)),
        state(lambda sim, it, now: sim.lose_quorum()),
        state(lambda sim, it, now: sim.forbid("/a", "read")),
        state(claim("/p0")),
    ]
    assert len(set(different)) == len(different)


def enumerate_at_1(acts: Any) -> Any:
    return ((1, act) for act in acts)


def test_ranks_may_be_given_for_all_that_holds_zxids() -> None:
    """The zxids that a caller keeps can be ranked together with the zxids of the ensemble."""
    sim = SimZooKeeper()
    sim.write(rq.Create("/a"))
    sim.write(rq.Create("/b"))
    assert sim.zxids() == {0, 1, 2}
    assert sim.key() == sim.key(ranks={0: 0, 1: 1, 2: 2})
    assert sim.key() != sim.key(ranks={0: 0, 1: 1, 2: 3})
    assert isinstance(sim.history[0], ZnodeChange)
