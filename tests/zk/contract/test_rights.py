"""Which right which request needs, and what comes first: the right or the node."""

from __future__ import annotations

import pytest
from support.zk_contract import (
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
    """Below a read-only parent a create says NoAuth, also where the node is there already."""
    session = server.session()
    session.multi(create("/group"), create("/group/ids"))
    session.set_acl("/group", READ_ONLY)
    for name in ("ids", "other"):
        assert refusal(session.create, f"/group/{name}") == "NoAuth"
        assert refusal(session.create_ephemeral, f"/group/{name}") == "NoAuth"
    session.create("/group/ids/member")
    session.set_acl("/group", OPEN)


@pytest.mark.since("3.6.0")
def test_a_locked_parent_denies_the_delete_of_what_is_missing(server: Server) -> None:
    """Without the right to delete, not even NoNode is told."""
    session = server.session()
    session.create("/group", acl=READ_ONLY)
    assert refusal(session.delete, "/group/none") == "NoAuth"
    session.set_acl("/group", OPEN)


@pytest.mark.until("3.6.0")
def test_a_delete_of_what_is_missing_finds_no_node_whatever_the_right(server: Server) -> None:
    """Before 3.6 the node is looked for first: NoNode, also below a read-only parent."""
    session = server.session()
    session.create("/group", acl=READ_ONLY)
    assert refusal(session.delete, "/group/none") == "NoNode"
    session.set_acl("/group", OPEN)


def test_reading_needs_no_right_to_write(server: Server) -> None:
    """A read-only node answers every read, and takes watches."""
    session, other = server.session(), server.session()
    session.create("/a", b"1", acl=READ_ONLY)
    watch = Watch()
    assert session.get("/a", watch)[0] == b"1"
    assert session.children("/a") == []
    assert session.exists("/a") is not None
    other.delete("/a")
    assert watch.wait() == ("DELETED", "/a")


def test_a_right_is_looked_at_before_the_version(server: Server) -> None:
    """A set without the right says NoAuth whatever version it names."""
    session = server.session()
    session.create("/a", b"1", acl=READ_ONLY)
    for version in (-1, 0, 7):
        assert refusal(session.set, "/a", b"2", version) == "NoAuth"


def test_a_check_needs_the_right_to_read(server: Server) -> None:
    """A transaction that checks a node closed to us is refused."""
    session = server.session()
    session.create("/closed", acl=CLOSED)
    codes = session.multi(create("/a"), Op("check", "/closed"))
    assert codes == ["RolledBack", "NoAuth"]
    session.delete("/closed")


def test_changing_rights_needs_a_right(server: Server) -> None:
    """Who may not administer a node cannot open it."""
    session = server.session()
    session.create("/closed", acl=CLOSED)
    assert refusal(session.set_acl, "/closed", OPEN) == "NoAuth"
    assert refusal(session.set_acl, "/nowhere", OPEN) == "NoNode"
    session.delete("/closed")


def test_a_change_of_rights_is_no_change_of_the_node(server: Server) -> None:
    """Version and zxid stay, and no watch fires."""
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
    """A node of the same path that is created later has the rights that it is created with."""
    session = server.session()
    session.create("/a", acl=CLOSED)
    session.delete("/a")
    session.create("/a", b"1")
    assert session.get("/a")[0] == b"1"


def test_a_rolled_back_delete_leaves_the_rights(server: Server) -> None:
    """A refused transaction opens nothing."""
    session = server.session()
    session.create("/a", acl=READ_ONLY)
    codes = session.multi(Op("delete", "/a"), create("/a"), Op("check", "/nowhere"))
    assert codes == ["RolledBack", "RolledBack", "NoNode"]
    assert refusal(session.set, "/a", b"1") == "NoAuth"


def test_a_refused_read_leaves_no_watch_behind(server: Server) -> None:
    """A client that may not read a node gets no event of it either."""
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
    """From 3.8.3 on (ZOOKEEPER-2590) `exists` needs READ, and leaves no watch when refused."""
    session, other = server.session(), server.session()
    session.create("/closed", acl=CLOSED)
    watch = Watch()
    assert refusal(session.exists, "/closed", watch) == "NoAuth"
    other.delete("/closed")
    session.settle()
    assert watch.events == []


@pytest.mark.until("3.8.3")
def test_exists_watches_what_may_not_be_read(server: Server) -> None:
    """Before 3.8.3 `exists` needs no right: its stat is returned, and its watch fires."""
    session, other = server.session(), server.session()
    session.create("/closed", acl=CLOSED)
    watch = Watch()
    assert session.exists("/closed", watch) is not None
    other.delete("/closed")
    assert watch.wait() == ("DELETED", "/closed")


@pytest.mark.since("3.8.4")
def test_who_may_not_read_is_told_of_no_change(server: Server) -> None:
    """A watch set before the node was closed is over with the change, and says nothing (3.8.4)."""
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
def test_who_may_not_read_is_told_of_a_change_all_the_same(server: Server) -> None:
    """Before 3.8.4 a watch set before the node was closed fires."""
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
    """Ephemerals go with their session also below a parent that lets nobody delete."""
    leaver, stayer = server.session(), server.session()
    stayer.create("/ids")
    leaver.create_ephemeral("/ids/member")
    stayer.set_acl("/ids", READ_ONLY)
    leaver.close()
    assert stayer.children("/ids") == []
    stayer.set_acl("/ids", OPEN)
