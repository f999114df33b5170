"""Which right each request needs, and whether it is checked before the znode's existence."""

from __future__ import annotations

import pytest
from support.zk.contract import (
    CLOSED,
    CLOSED_TO_READERS,
    OPEN,
    READ_ONLY,
    Op,
    Server,
    Watch,
    create,
    refusal,
)


def test_a_locked_parent_denies_even_what_exists(server: Server) -> None:
    """Below a read-only parent a create gets NoAuth, even if the znode already exists."""
    session = server.session()
    session.multi(create("/group"), create("/group/ids"))
    session.set_acl("/group", READ_ONLY)
    for name in ("ids", "other"):
        assert refusal(session.create, f"/group/{name}") == "NoAuth"
        assert refusal(session.create_ephemeral, f"/group/{name}") == "NoAuth"
    session.create("/group/ids/member")
    session.set_acl("/group", OPEN)


@pytest.mark.since("3.6.0")
def test_a_locked_parent_denies_the_delete_of_a_missing_node(server: Server) -> None:
    """Without the right to delete, deleting a missing znode gets NoAuth."""
    session = server.session()
    session.create("/group", acl=READ_ONLY)
    assert refusal(session.delete, "/group/none") == "NoAuth"
    session.set_acl("/group", OPEN)


@pytest.mark.until("3.6.0")
def test_deleting_a_missing_node_reports_no_node_whatever_the_rights(server: Server) -> None:
    """Before 3.6, deleting a missing znode gets NoNode, even without the right to delete."""
    session = server.session()
    session.create("/group", acl=READ_ONLY)
    assert refusal(session.delete, "/group/none") == "NoNode"
    session.set_acl("/group", OPEN)


def test_reading_needs_no_right_to_write(server: Server) -> None:
    """A read-only znode can be read and watched by every kind of request."""
    session, other = server.session(), server.session()
    session.create("/a", b"1", acl=READ_ONLY)
    watch = Watch()
    assert session.get("/a", watch)[0] == b"1"
    assert session.children("/a") == []
    assert session.exists("/a") is not None
    other.delete("/a")
    assert watch.wait() == ("DELETED", "/a")


def test_a_right_is_looked_at_before_the_version(server: Server) -> None:
    """Without the right to write, a set gets NoAuth, whatever version it expects."""
    session = server.session()
    session.create("/a", b"1", acl=READ_ONLY)
    for version in (-1, 0, 7):
        assert refusal(session.set, "/a", b"2", version) == "NoAuth"


def test_a_check_needs_the_right_to_read(server: Server) -> None:
    """A transaction that checks a znode without the right to read it is refused."""
    session = server.session()
    session.create("/closed", acl=CLOSED)
    codes = session.multi(create("/a"), Op("check", "/closed"))
    assert codes == ["RolledBack", "NoAuth"]
    session.delete("/closed")


def test_changing_rights_needs_a_right(server: Server) -> None:
    """A client that may not administer a znode cannot change its ACL."""
    session = server.session()
    session.create("/closed", acl=CLOSED)
    assert refusal(session.set_acl, "/closed", OPEN) == "NoAuth"
    assert refusal(session.set_acl, "/nowhere", OPEN) == "NoNode"
    session.delete("/closed")


def test_a_change_of_rights_is_no_change_of_the_node(server: Server) -> None:
    """A change of the ACL changes neither version nor zxid, and fires no watch."""
    session = server.session()
    session.create("/a", b"1")
    data, children = Watch(), Watch()
    before = session.get("/a", data)
    session.children("/a", children)
    session.set_acl("/a", READ_ONLY)
    session.settle()
    assert session.get("/a") == before
    assert data.events == children.events == []


def test_rights_end_with_their_node(server: Server) -> None:
    """A re-created znode has the ACL of the new create, not that of the deleted znode."""
    session = server.session()
    session.create("/a", acl=CLOSED)
    session.delete("/a")
    session.create("/a", b"1")
    assert session.get("/a")[0] == b"1"


def test_a_rolled_back_delete_leaves_the_rights(server: Server) -> None:
    """A refused transaction does not change the ACL."""
    session = server.session()
    session.create("/a", acl=READ_ONLY)
    codes = session.multi(Op("delete", "/a"), create("/a"), Op("check", "/nowhere"))
    assert codes == ["RolledBack", "RolledBack", "NoNode"]
    assert refusal(session.set, "/a", b"1") == "NoAuth"


def test_a_refused_read_leaves_no_watch_behind(server: Server) -> None:
    """A client that may not read a znode gets no event for it."""
    session, other = server.session(), server.session()
    session.create("/closed", acl=CLOSED)
    watches = [Watch(), Watch()]
    assert refusal(session.get, "/closed", watches[0]) == "NoAuth"
    assert refusal(session.children, "/closed", watches[1]) == "NoAuth"
    other.delete("/closed")
    session.settle()
    assert [watch.events for watch in watches] == [[], []]


@pytest.mark.since("3.8.3")
def test_a_refused_exists_leaves_no_watch_behind(server: Server) -> None:
    """From 3.8.3 on (ZOOKEEPER-2590) `exists` needs READ; if it is refused, it sets no watch."""
    session, other = server.session(), server.session()
    session.create("/closed", acl=CLOSED)
    watch = Watch()
    assert refusal(session.exists, "/closed", watch) == "NoAuth"
    other.delete("/closed")
    session.settle()
    assert watch.events == []


@pytest.mark.until("3.8.3")
def test_exists_watches_what_may_not_be_read(server: Server) -> None:
    """Before 3.8.3 `exists` needs no right: it returns the stat and sets a watch."""
    session, other = server.session(), server.session()
    session.create("/closed", acl=CLOSED)
    watch = Watch()
    assert session.exists("/closed", watch) is not None
    other.delete("/closed")
    assert watch.wait() == ("DELETED", "/closed")


@pytest.mark.since("3.8.4")
def test_a_client_without_the_right_to_read_gets_no_event(server: Server) -> None:
    """From 3.8.4 on, a watch does not fire if the client may no longer read the znode."""
    session, other = server.session(), server.session()
    session.multi(create("/a"), create("/a/b"))
    watches = [Watch(), Watch(), Watch()]
    session.get("/a", watches[0])
    session.children("/a", watches[1])
    session.exists("/new", watches[2])
    session.set_acl("/a", CLOSED_TO_READERS)
    other.set("/a", b"1")
    other.delete("/a/b")
    other.create("/new", acl=CLOSED)
    session.set_acl("/a", OPEN)
    other.set("/a", b"2")
    other.create("/a/b")
    session.settle()
    assert [watch.events for watch in watches] == [[], [], []]
    other.delete("/new")


@pytest.mark.until("3.8.4")
def test_a_client_without_the_right_to_read_gets_the_event(server: Server) -> None:
    """Before 3.8.4 a watch fires even if the client may no longer read the znode."""
    session, other = server.session(), server.session()
    session.multi(create("/a"), create("/a/b"))
    watches = [Watch(), Watch()]
    session.get("/a", watches[0])
    session.children("/a", watches[1])
    session.set_acl("/a", CLOSED_TO_READERS)
    other.set("/a", b"1")
    other.delete("/a/b")
    assert [watch.wait() for watch in watches] == [("CHANGED", "/a"), ("CHILD", "/a")]
    session.set_acl("/a", OPEN)


def test_a_session_ends_whatever_the_rights(server: Server) -> None:
    """When a session ends its ephemeral znodes are deleted, even if the parent allows no delete."""
    leaver, stayer = server.session(), server.session()
    stayer.create("/ids")
    leaver.create_ephemeral("/ids/member")
    stayer.set_acl("/ids", READ_ONLY)
    leaver.close()
    assert stayer.children("/ids") == []
    stayer.set_acl("/ids", OPEN)
