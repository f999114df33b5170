"""Which watch fires for which change, how often, and in which order."""

from __future__ import annotations

from support.zk.contract import CLOSED, OK, Op, Server, Watch, claim, create, is_back, refusal


def test_a_watch_fires_for_ones_own_write(server: Server) -> None:
    """A client's own write fires the watch that the client has set."""
    session = server.session()
    session.create("/a")
    watch = Watch()
    session.get("/a", watch)
    session.set("/a", b"1")
    assert watch.wait() == ("CHANGED", "/a")


def test_get_and_exists_set_the_same_watch(server: Server) -> None:
    """One change calls the watches of both `get` and `exists`; the next change calls neither."""
    session, other = server.session(), server.session()
    session.create("/a")
    by_get, by_exists = Watch(), Watch()
    session.get("/a", by_get)
    session.exists("/a", by_exists)
    other.set("/a", b"1")
    other.set("/a", b"2")
    session.settle()
    assert by_get.events == by_exists.events == [("CHANGED", "/a")]


def test_a_data_watch_fires_for_the_deletion(server: Server) -> None:
    """Watches of `get` and `exists` fire for the deletion of a znode, not for its re-creation."""
    session, other = server.session(), server.session()
    session.create("/a")
    by_get, by_exists = Watch(), Watch()
    session.get("/a", by_get)
    session.exists("/a", by_exists)
    other.delete("/a")
    other.create("/a")
    session.settle()
    assert by_get.events == by_exists.events == [("DELETED", "/a")]


def test_a_data_watch_does_not_fire_for_children(server: Server) -> None:
    """If a child is created, changed or deleted, no data watch of its parent fires."""
    session, other = server.session(), server.session()
    session.create("/a")
    watch = Watch()
    session.get("/a", watch)
    other.create("/a/b")
    other.set("/a/b", b"1")
    other.delete("/a/b")
    session.settle()
    assert watch.events == []


def test_a_children_watch_does_not_fire_for_data(server: Server) -> None:
    """If a znode's data changes, no watch on its children fires."""
    session, other = server.session(), server.session()
    session.create("/a")
    watch = Watch()
    session.children("/a", watch)
    other.set("/a", b"1")
    session.settle()
    assert watch.events == []


def test_replacing_a_node_in_one_multi_is_a_deletion_to_watchers(server: Server) -> None:
    """If one transaction replaces an owner znode, its watch fires once, with DELETED."""
    session, other = server.session(), server.session()
    other.create_ephemeral("/p0")
    watch = Watch()
    session.get("/p0", watch)
    assert other.multi(Op("delete", "/p0"), claim("/p0")) == [OK, OK]
    session.settle()
    assert watch.events == [("DELETED", "/p0")]


def test_a_node_created_and_deleted_in_one_multi_was_created(server: Server) -> None:
    """A watch fires for a creation even if the same transaction deletes the znode again."""
    session, other = server.session(), server.session()
    watch, parent = Watch(), Watch()
    session.exists("/a", watch)
    session.children("/", parent)
    other.multi(create("/a"), Op("delete", "/a"))
    assert watch.wait() == ("CREATED", "/a")
    assert parent.wait() == ("CHILD", "/")


def test_a_multi_of_many_children_is_one_event(server: Server) -> None:
    """A claim of ten partitions fires the watch on their parent once."""
    session, other = server.session(), server.session()
    session.create("/owners")
    watch = Watch()
    session.children("/owners", watch)
    other.multi(*(claim(f"/owners/{number}") for number in range(10)))
    session.settle()
    assert watch.events == [("CHILD", "/owners")]


def test_events_arrive_in_the_order_of_the_changes(server: Server) -> None:
    """Watches on several znodes fire in the order of the writes."""
    session, other = server.session(), server.session()
    watch = Watch()
    for name in "abc":
        session.create(f"/{name}")
        session.get(f"/{name}", watch)
    for name in "bca":
        other.set(f"/{name}", b"1")
    session.settle()
    assert watch.events == [("CHANGED", "/b"), ("CHANGED", "/c"), ("CHANGED", "/a")]


def test_a_watch_ends_with_its_connection(server: Server) -> None:
    """After a reconnect, watches that were set before it do not fire."""
    proxy = server.proxy()
    session, other = server.session_behind(proxy), server.session()
    session.create("/a")
    watch = Watch()
    session.get("/a", watch)
    proxy.cut()
    assert server.until(lambda: is_back(session))
    again = Watch()
    session.get("/a", again)
    other.set("/a", b"1")
    assert again.wait() == ("CHANGED", "/a")
    session.settle()
    assert watch.events == []


def test_a_deletion_is_sent_once_to_who_watches_both_ways(server: Server) -> None:
    """If one session watches both a znode and its children, a deletion is sent once for both."""
    proxy = server.proxy()
    session, other = server.session_behind(proxy), server.session()
    session.create("/a")
    data, children = Watch(), Watch()
    session.get("/a", data)
    session.children("/a", children)
    other.delete("/a")
    session.sync("/")
    assert data.wait() == children.wait() == ("DELETED", "/a")
    assert proxy.received.count("event") == 1


def test_a_refused_read_is_not_watched_by_the_server(server: Server) -> None:
    """If the server refuses to read a znode, it sends no event for the znode."""
    proxy = server.proxy()
    session, other = server.session_behind(proxy), server.session()
    other.create("/closed", acl=CLOSED)
    for path, code in (("/closed", "NoAuth"), ("/none", "NoNode")):
        for look in (session.get, session.children):
            assert refusal(look, path, Watch()) == code
    other.delete("/closed")
    other.multi(create("/none"), create("/none/a"), Op("set", "/none", b"1"))
    session.sync("/")
    assert session.exists("/none") is not None
    assert proxy.received.count("event") == 0


def test_ephemerals_deleted_together_are_one_event_of_their_parent(server: Server) -> None:
    """If a session with three znodes ends, the watch on their parent fires once."""
    leaver, stayer = server.session(), server.session()
    stayer.create("/owners")
    leaver.multi(*(claim(f"/owners/{number}") for number in range(3)))
    watch, node = Watch(), Watch()
    stayer.children("/owners", watch)
    stayer.get("/owners/1", node)
    leaver.close()
    stayer.settle()
    assert watch.events == [("CHILD", "/owners")]
    assert node.events == [("DELETED", "/owners/1")]
