"""The properties of ZooKeeper on which zkconsumer relies, each shown on real servers.

The design depends on all of them: if a server lacks one of these properties, zkconsumer does not
work with this server.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.zk.contract import (
    CLOSED,
    LIMIT_S,
    OK,
    OPEN,
    READ_ONLY,
    Op,
    Server,
    Session,
    Watch,
    ZkError,
    claim,
    create,
    is_back,
    refusal,
)
from support.zk.proxies import Proxy, Wire

# ZooKeeper's limit for a request, including path and header (jute.maxbuffer), is 1 MiB less one
# byte.
TOO_LARGE = b"x" * (1 << 20)
LARGE = b"x" * 1_000_000


# ---- multi --------------------------------------------------------------------------------------


def test_a_multi_is_all_or_nothing(server: Server) -> None:
    """If one znode exists already, the whole claim fails, and creates no znode."""
    session = server.session()
    session.create("/p1")
    codes = session.multi(claim("/p0"), claim("/p1"), claim("/p2"))
    assert codes == ["RolledBack", "NodeExists", "RuntimeInconsistency"]
    assert session.children("/") == ["p1"]


def test_a_multi_claims_a_thousand_nodes(server: Server) -> None:
    """A claim of 1,000 ephemeral znodes is a single request."""
    session = server.session()
    session.create("/owners")
    assert session.multi(*(claim(f"/owners/{n}") for n in range(1000))) == [OK] * 1000
    assert len(session.children("/owners")) == 1000


def test_a_multi_sees_its_own_earlier_elements(server: Server) -> None:
    """A znode may be created below a znode that the same transaction created."""
    session = server.session()
    assert session.multi(create("/a"), create("/a/b"), Op("set", "/a/b", b"x")) == [OK] * 3
    assert session.get("/a/b")[0] == b"x"


def test_delete_and_create_in_one_multi_replace_a_node(server: Server) -> None:
    """One transaction moves a claim to another thread: same path, different czxid."""
    session = server.session()
    session.create_ephemeral("/p0", b"thread-0")
    before = session.get("/p0")[1]
    assert session.multi(Op("delete", "/p0"), claim("/p0", b"thread-1")) == [OK, OK]
    data, after = session.get("/p0")
    assert data == b"thread-1"
    assert after.czxid > before.czxid


def test_all_of_a_multi_has_one_zxid(server: Server) -> None:
    """The czxid of a mark equals the mzxid of the offset written with it."""
    session = server.session()
    session.create("/offset", b"1")
    assert session.multi(Op("set", "/offset", b"7"), create("/mark")) == [OK, OK]
    assert session.get("/offset")[1].mzxid == session.get("/mark")[1].czxid


def test_a_check_of_an_absent_node_refuses_the_multi(server: Server) -> None:
    """If a claim checks the member's id znode, and this znode is gone, the claim fails."""
    session = server.session()
    codes = session.multi(Op("check", "/id"), claim("/p0"))
    assert codes == ["NoNode", "RuntimeInconsistency"]
    assert session.exists("/p0") is None


def test_delete_and_create_of_a_parent_prove_that_it_is_empty(server: Server) -> None:
    """An operator's transaction that re-creates the ids znode fails if a member has registered."""
    session = server.session()
    session.create("/ids")
    edit = (Op("delete", "/ids"), create("/ids"), create("/edited"))
    session.create_ephemeral("/ids/member")
    assert session.multi(*edit) == ["NotEmpty", "RuntimeInconsistency", "RuntimeInconsistency"]
    session.delete("/ids/member")
    assert session.multi(*edit) == [OK, OK, OK]


# ---- versions -----------------------------------------------------------------------------------


def test_a_check_of_a_version_is_no_check_of_identity(server: Server) -> None:
    """A re-created znode starts again at version 0, so a check for version 0 succeeds."""
    former, present = server.session(), server.session()
    present.create("/offset", b"100")
    former.create_ephemeral("/owner")
    former.delete("/owner")
    present.create_ephemeral("/owner")
    assert former.multi(Op("check", "/owner", version=0), Op("set", "/offset", b"50")) == [OK, OK]
    assert present.get("/offset")[0] == b"50"


def test_compare_and_set_refuses_who_has_not_seen_the_last_write(server: Server) -> None:
    """A former owner's late commit fails at the version of the offset znode."""
    former, present = server.session(), server.session()
    former.create("/offset", b"1")
    seen = former.get("/offset")[1].version
    present.set("/offset", b"100", seen)
    assert refusal(former.set, "/offset", b"50", seen) == "BadVersion"
    assert former.multi(Op("set", "/offset", b"50", version=seen)) == ["BadVersion"]
    assert present.get("/offset")[0] == b"100"


def test_a_set_raises_the_version_by_one(server: Server) -> None:
    """Each write raises the version of a znode by one, and leaves its czxid unchanged."""
    session = server.session()
    session.create("/offset", b"1")
    before = session.get("/offset")[1]
    after = session.set("/offset", b"1", before.version)
    assert (after.version, after.czxid) == (before.version + 1, before.czxid)
    assert after.mzxid > before.mzxid
    assert session.set("/offset", b"2").version == before.version + 2


def test_a_re_created_node_has_a_greater_czxid(server: Server) -> None:
    """The czxid of an owner znode only grows, so it can serve as a fencing token."""
    session = server.session()
    tokens = []
    for _ in range(3):
        session.create("/p0")
        tokens.append(session.get("/p0")[1].czxid)
        session.delete("/p0")
    assert tokens == sorted(set(tokens))


def test_a_delete_of_another_version_is_refused(server: Server) -> None:
    """A delete with a version fails if the znode has been written since that version."""
    session = server.session()
    session.create("/a")
    session.set("/a", b"x")
    assert refusal(session.delete, "/a", 0) == "BadVersion"
    session.delete("/a", 1)
    assert refusal(session.delete, "/a") == "NoNode"


# ---- nodes --------------------------------------------------------------------------------------


def test_creating_below_a_missing_parent_is_refused(server: Server) -> None:
    """A create of a znode does not create its parents."""
    assert refusal(server.session().create, "/a/b") == "NoNode"


def test_a_node_with_children_stays(server: Server) -> None:
    """A znode that has children cannot be deleted."""
    session = server.session()
    session.multi(create("/a"), create("/a/b"))
    assert refusal(session.delete, "/a") == "NotEmpty"


@pytest.mark.filterwarnings("ignore:No chroot path exists")
def test_a_missing_chroot_shows_as_a_missing_node(server: Server) -> None:
    """If its chroot does not exist, a session works, but finds nothing and creates nothing."""
    session = server.session(directory="/nowhere")
    assert session.exists("/") is None
    assert refusal(session.create, "/consumers") == "NoNode"


def test_requests_of_a_session_are_answered_in_order(server: Server) -> None:
    """Pipelined requests are executed in the order in which they were sent."""
    session = server.session()
    assert session.pipeline("/a", "/a/b", "/c/d", "/a") == [OK, OK, "NoNode", "NodeExists"]


def test_a_request_of_a_mebibyte_loses_the_connection(server: Server) -> None:
    """A write that is too large breaks the connection, but the session survives."""
    session = server.session()
    session.create("/a", LARGE)
    number = session.id
    assert refusal(session.set, "/a", TOO_LARGE) == "ConnectionLoss"
    assert server.until(session.is_connected)
    assert session.get("/a")[0] == LARGE
    assert session.id == number


def test_sync_is_answered_whether_or_not_the_path_exists(server: Server) -> None:
    """A sync is answered whether or not its path exists, so any path serves for the lease."""
    session = server.session()
    session.sync("/")
    session.sync("/nowhere")


def test_after_a_sync_everything_written_before_is_read(server: Server) -> None:
    """After a sync, a session reads what another session wrote before the sync."""
    writer, reader = server.session(), server.session()
    writer.create("/a")
    for number in range(20):
        writer.set("/a", b"%d" % number)
        reader.sync("/a")
        assert reader.get("/a")[0] == b"%d" % number


# ---- ephemerals and sessions --------------------------------------------------------------------


def test_an_ephemeral_node_names_its_session(server: Server) -> None:
    """`ephemeralOwner` is the session that created the znode, or 0 if the znode is persistent."""
    session, other = server.session(), server.session()
    session.create_ephemeral("/mine")
    other.create_ephemeral("/other")
    other.create("/nobodys")
    owners = [session.get(path)[1].ephemeral_owner for path in ("/mine", "/other", "/nobodys")]
    assert owners == [session.id, other.id, 0]
    assert session.id != other.id


def test_an_ephemeral_node_has_no_children(server: Server) -> None:
    """No znode can be created below a member's id znode."""
    session = server.session()
    session.create_ephemeral("/id")
    assert refusal(session.create, "/id/a") == "NoChildrenForEphemerals"


def test_a_clean_close_removes_the_ephemerals(server: Server) -> None:
    """When close returns, other clients see no znode of that session."""
    leaver, stayer = server.session(), server.session()
    leaver.create_ephemeral("/id")
    watch = Watch()
    stayer.exists("/id", watch)
    leaver.close()
    assert stayer.exists("/id") is None
    assert watch.wait() == ("DELETED", "/id")


def test_another_session_may_delete_an_ephemeral_node(server: Server) -> None:
    """Any client can delete an owner znode; a watch reports the deletion to the owner."""
    owner, intruder = server.session(), server.session()
    owner.create_ephemeral("/p0")
    watch = Watch()
    owner.exists("/p0", watch)
    intruder.delete("/p0")
    assert watch.wait() == ("DELETED", "/p0")


def test_ephemerals_survive_a_reconnection(server: Server) -> None:
    """After a reconnect, the session has the same number and still has all its znodes."""
    proxy = server.proxy()
    session = server.session_behind(proxy)
    session.create_ephemeral("/id")
    number = session.id
    proxy.cut()
    assert server.until(lambda: is_back(session))
    assert session.id == number
    assert session.get("/id")[1].ephemeral_owner == number


def test_a_take_over_and_close_expires_a_session_at_once(server: Server) -> None:
    """When a session expires, its ephemeral znodes are deleted; its client gets a new session."""
    session, other = server.session(timeout_s=20.0), server.session()
    session.create_ephemeral("/id")
    before = session.id
    started = server.clock()
    after = session.expire()
    assert other.exists("/id") is None
    assert after != before
    assert server.clock() - started < 15.0


def test_a_silent_session_expires_after_its_timeout(server: Server) -> None:
    """A silent client's ephemeral znodes are deleted after its session timeout, not before."""
    proxy = server.proxy()
    session = server.session_behind(proxy, timeout_s=4.0)
    other = server.session()
    session.create_ephemeral("/id")
    watch = Watch()
    other.exists("/id", watch)
    proxy.wire = Wire.SILENT
    started = server.clock()
    watch.wait()
    # The last ping was sent a third of the timeout before, on a busy machine two thirds; the server
    # checks for expired sessions once per tick.
    assert 1.0 <= server.clock() - started < 40.0


# ---- lost replies -------------------------------------------------------------------------------


def _lose_reply(
    server: Server,
    proxy: Proxy,
    session: Session,
    call: Callable[[Session], object],
    done: Callable[[], bool],
) -> None:
    """Let the server execute `call`, lose its reply, and reconnect in the same session."""
    number = session.id
    proxy.wire = Wire.LOSE_REPLIES
    reply = session.later(call)
    assert server.until(done)
    proxy.cut()
    # The client connects again at once. If this reply is lost too, the session may expire.
    proxy.wire = Wire.PASS
    with pytest.raises(ZkError, match="ConnectionLoss"):
        reply.result(LIMIT_S)
    assert server.until(lambda: is_back(session))
    assert session.id == number


def test_a_create_whose_reply_is_lost_is_recognised_by_its_owner(server: Server) -> None:
    """A repeated create gets NodeExists; the owner's session number shows whose znode it is."""
    proxy = server.proxy()
    session, other = server.session_behind(proxy), server.session()
    _lose_reply(
        server,
        proxy,
        session,
        lambda it: it.create_ephemeral("/p0", b"me"),
        lambda: other.exists("/p0") is not None,
    )
    assert refusal(session.create_ephemeral, "/p0", b"me") == "NodeExists"
    assert session.get("/p0")[1].ephemeral_owner == session.id


def test_a_set_whose_reply_is_lost_is_recognised_by_value_and_version(server: Server) -> None:
    """A repeated set gets BadVersion; the value and a version one higher show that it was done."""
    proxy = server.proxy()
    session, other = server.session_behind(proxy), server.session()
    session.create("/offset", b"1")
    seen = session.get("/offset")[1].version
    _lose_reply(
        server,
        proxy,
        session,
        lambda it: it.set("/offset", b"2", seen),
        lambda: other.get("/offset")[0] == b"2",
    )
    assert refusal(session.set, "/offset", b"2", seen) == "BadVersion"
    data, stat = session.get("/offset")
    assert (data, stat.version) == (b"2", seen + 1)


def test_a_multi_whose_reply_is_lost_took_effect_whole(server: Server) -> None:
    """After a lost reply, either all znodes of a claim exist or none of them."""
    proxy = server.proxy()
    session, other = server.session_behind(proxy), server.session()
    session.create("/owners")
    _lose_reply(
        server,
        proxy,
        session,
        lambda it: it.multi(*(claim(f"/owners/{n}") for n in range(50))),
        lambda: bool(other.children("/owners")),
    )
    owners = {session.get(f"/owners/{n}")[1].ephemeral_owner for n in range(50)}
    assert owners == {session.id}


# ---- watches ------------------------------------------------------------------------------------


def test_a_watch_of_a_missing_node_fires_on_its_creation(server: Server) -> None:
    """`exists` sets a watch even on a missing znode."""
    session, other = server.session(), server.session()
    watch = Watch()
    assert session.exists("/a", watch) is None
    other.create("/a")
    assert watch.wait() == ("CREATED", "/a")


def test_a_watch_fires_once(server: Server) -> None:
    """A watch fires only for the first of two writes."""
    session, other = server.session(), server.session()
    session.create("/a")
    watch = Watch()
    session.get("/a", watch)
    other.set("/a", b"1")
    other.set("/a", b"2")
    session.settle()
    assert watch.events == [("CHANGED", "/a")]


def test_a_children_watch_fires_for_names_only(server: Server) -> None:
    """A watch on children fires if a child is created or deleted, but not if a child changes."""
    session, other = server.session(), server.session()
    session.multi(create("/ids"), create("/ids/a"))
    quiet, joined, left = Watch(), Watch(), Watch()
    session.children("/ids", quiet)
    other.set("/ids/a", b"1")
    other.create("/ids/a/b")
    session.settle()
    assert quiet.events == []
    session.children("/ids", joined)
    other.create("/ids/c")
    assert joined.wait() == ("CHILD", "/ids")
    session.children("/ids", left)
    other.delete("/ids/c")
    assert left.wait() == ("CHILD", "/ids")


def test_a_children_watch_fires_when_its_node_is_deleted(server: Server) -> None:
    """If a znode is deleted, the watch on its children fires and ends."""
    session, other = server.session(), server.session()
    session.create("/ids")
    watch = Watch()
    session.children("/ids", watch)
    other.delete("/ids")
    assert watch.wait() == ("DELETED", "/ids")
    other.create("/ids")
    other.create("/ids/a")
    session.settle()
    assert watch.events == [("DELETED", "/ids")]


def test_a_refused_read_leaves_no_watch(server: Server) -> None:
    """On a missing znode, only `exists` sets a watch."""
    session, other = server.session(), server.session()
    watch = Watch()
    assert refusal(session.children, "/ids", watch) == "NoNode"
    other.create("/ids")
    other.create("/ids/a")
    session.settle()
    assert watch.events == []


def test_a_refused_multi_fires_no_watch(server: Server) -> None:
    """A transaction that is rolled back fires no watch."""
    session, other = server.session(), server.session()
    session.create("/taken")
    watch = Watch()
    session.exists("/p0", watch)
    assert other.multi(claim("/p0"), claim("/taken"))[1] == "NodeExists"
    session.settle()
    assert watch.events == []


def test_an_event_arrives_before_the_reply_that_shows_the_change(server: Server) -> None:
    """A session gets the event of a change before any reply that shows the change."""
    proxy = server.proxy()
    session, other = server.session_behind(proxy), server.session()
    session.multi(create("/a"), create("/b"))
    session.get("/a", Watch())
    other.set("/a", b"1")
    other.set("/b", b"1")
    assert server.until(lambda: session.get("/b")[0] == b"1")
    # The last reply is the one that showed the change of /b; the event for /a comes before it.
    assert proxy.received[-1] == "reply"
    assert proxy.received.count("event") == 1


# ---- rights -------------------------------------------------------------------------------------


def test_a_denied_element_refuses_the_multi(server: Server) -> None:
    """If one element of a transaction gets NoAuth, nothing changes; the reply names the element."""
    session = server.session()
    session.create("/denied", b"1", acl=READ_ONLY)
    session.create("/offset", b"1")
    codes = session.multi(Op("set", "/offset", b"2"), Op("set", "/denied", b"2"))
    assert codes == ["RolledBack", "NoAuth"]
    assert session.get("/offset")[0] == b"1"


@pytest.mark.since("3.8.3")
def test_existence_is_hidden_where_reading_is_denied(server: Server) -> None:
    """From 3.8.3 on `exists` needs the right to read."""
    session = server.session()
    session.create("/closed", acl=CLOSED)
    for look in (session.exists, session.get, session.children):
        assert refusal(look, "/closed") == "NoAuth"
    session.delete("/closed")


def test_a_delete_is_governed_by_the_parent(server: Server) -> None:
    """The right to delete a znode is taken from its parent, not from the znode itself."""
    session = server.session()
    session.create("/open")
    session.create("/open/closed", acl=CLOSED)
    session.delete("/open/closed")
    assert session.children("/open") == []
    session.create("/open/open")
    session.set_acl("/open", READ_ONLY)
    assert refusal(session.delete, "/open/open") == "NoAuth"
    session.set_acl("/open", OPEN)
