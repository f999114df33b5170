"""When sessions end, what ends with them, and the effects of lost replies."""

from __future__ import annotations

import pytest
from support.zk.contract import LIMIT_S, Server, ZkError, claim, is_back, refusal
from support.zk.proxies import Wire


def test_a_session_that_pings_lives(server: Server) -> None:
    """The pings of a client keep its session alive without other requests."""
    session, other = server.session(timeout_s=4.0), server.session()
    session.create_ephemeral("/id")
    number, until = session.id, server.clock() + 9.0
    assert server.until(lambda: server.clock() > until)
    assert other.exists("/id") is not None
    assert session.id == number


def test_the_end_of_a_session_leaves_the_nodes_of_others(server: Server) -> None:
    """When a session ends, persistent znodes and the znodes of other sessions stay."""
    leaver, stayer = server.session(), server.session()
    leaver.create("/persistent")
    leaver.create_ephemeral("/leaver")
    stayer.create_ephemeral("/stayer")
    leaver.expire()
    assert stayer.children("/") == ["persistent", "stayer"]


def test_who_takes_over_after_an_expiry_is_not_disturbed(server: Server) -> None:
    """If another session re-creates a znode, it stays when the expired client returns."""
    former, present = server.session(), server.session()
    former.create_ephemeral("/p0")
    former.expire()
    present.create_ephemeral("/p0", b"present")
    assert refusal(former.create_ephemeral, "/p0") == "NodeExists"
    data, stat = former.get("/p0")
    assert (data, stat.ephemeral_owner) == (b"present", present.id)


def test_numbers_of_sessions_are_not_used_again(server: Server) -> None:
    """No two sessions have the same number."""
    numbers = []
    for _ in range(3):
        session = server.session()
        numbers.append(session.id)
        session.close()
    assert len(set(numbers)) == 3
    assert 0 not in numbers


def test_a_delete_and_create_by_others_is_seen_by_owner_and_czxid(server: Server) -> None:
    """If another session re-creates an owner znode, it has another owner and another czxid."""
    owner, intruder = server.session(), server.session()
    owner.create_ephemeral("/p0", b"same")
    before = owner.get("/p0")[1]
    intruder.delete("/p0")
    intruder.create_ephemeral("/p0", b"same")
    data, after = owner.get("/p0")
    assert data == b"same"
    assert after.version == before.version
    assert after.ephemeral_owner != before.ephemeral_owner
    assert after.czxid > before.czxid


def test_a_delete_whose_reply_is_lost_is_no_node_when_tried_again(server: Server) -> None:
    """If the reply to a release is lost, a repeated release gets NoNode."""
    proxy = server.proxy()
    session, other = server.session_behind(proxy), server.session()
    session.create_ephemeral("/p0")
    proxy.wire = Wire.LOSE_REPLIES
    reply = session.later(lambda it: it.delete("/p0"))
    assert server.until(lambda: other.exists("/p0") is None)
    proxy.cut()
    proxy.wire = Wire.PASS
    with pytest.raises(ZkError, match="ConnectionLoss"):
        reply.result(LIMIT_S)
    assert server.until(lambda: is_back(session))
    assert refusal(session.delete, "/p0") == "NoNode"


def test_a_claim_made_before_a_silence_ends_with_the_session(server: Server) -> None:
    """Znodes whose creation was never acknowledged also end with their session."""
    proxy = server.proxy()
    session, other = server.session_behind(proxy), server.session()
    other.create("/owners")
    proxy.wire = Wire.LOSE_REPLIES
    reply = session.later(lambda it: it.multi(*(claim(f"/owners/{n}") for n in range(3))))
    assert server.until(lambda: len(other.children("/owners")) == 3)
    proxy.wire = Wire.SILENT
    assert server.until(lambda: other.children("/owners") == [])
    proxy.cut()
    with pytest.raises(ZkError):
        reply.result(LIMIT_S)


def test_a_silent_client_comes_back_with_another_session(server: Server) -> None:
    """A client that reconnects after the timeout learns that its session has expired."""
    proxy = server.proxy()
    session, other = server.session_behind(proxy), server.session()
    session.create_ephemeral("/id")
    number = session.id
    proxy.wire = Wire.SILENT
    assert server.until(lambda: other.exists("/id") is None)
    proxy.wire = Wire.PASS
    proxy.cut()
    assert server.until(lambda: is_back(session) and session.id != number)
    assert session.exists("/id") is None
