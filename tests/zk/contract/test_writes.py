"""The effects of a write, and the order of its checks, for single requests and transactions."""

from __future__ import annotations

import pytest
from support.zk.contract import OK, Op, Server, Watch, ZkError, claim, create, refusal

# Two of these payloads together exceed jute.maxbuffer, but a single payload does not.
HALF = b"x" * 600_000


def test_data_is_kept_byte_by_byte(server: Server) -> None:
    """Payloads with every byte value, of zero bytes, and of a million bytes are read back."""
    session = server.session()
    for number, data in enumerate((bytes(range(256)), b"", b"x" * 1_000_000)):
        session.create(f"/{number}", data)
        assert session.get(f"/{number}")[0] == data


def test_a_new_node_has_version_0_and_equal_zxids(server: Server) -> None:
    """If a znode has not been written since its creation, its czxid equals its mzxid."""
    session = server.session()
    session.create("/a", b"1")
    stat = session.get("/a")[1]
    assert stat.version == 0
    assert stat.czxid == stat.mzxid
    assert session.exists("/a") == stat


def test_zxids_order_the_writes_of_all_sessions(server: Server) -> None:
    """The later of two writes by any clients has the greater zxid."""
    one, two = server.session(), server.session()
    order = []
    for number in range(3):
        for session in (one, two):
            path = f"/{number}-{session is one}"
            session.create(path)
            order.append(session.get(path)[1].czxid)
    assert order == sorted(set(order))


def test_a_set_of_a_missing_node_creates_nothing(server: Server) -> None:
    """A set never creates a znode."""
    session = server.session()
    assert refusal(session.set, "/offset", b"1") == "NoNode"
    assert session.exists("/offset") is None


def test_a_refused_write_leaves_version_and_zxid(server: Server) -> None:
    """A refused write changes neither version nor zxid."""
    session = server.session()
    session.create("/a", b"1")
    before = session.get("/a")
    assert refusal(session.set, "/a", b"2", 7) == "BadVersion"
    assert refusal(session.delete, "/a", 7) == "BadVersion"
    assert refusal(session.create, "/a", b"3") == "NodeExists"
    assert session.get("/a") == before


def test_a_foreign_set_leaves_the_owner(server: Server) -> None:
    """If another session writes an ephemeral znode, `ephemeralOwner` is still its creator."""
    owner, other = server.session(), server.session()
    owner.create_ephemeral("/p0", b"1")
    other.set("/p0", b"2")
    data, stat = owner.get("/p0")
    assert (data, stat.ephemeral_owner) == (b"2", owner.id)


def test_a_version_is_looked_at_before_the_children(server: Server) -> None:
    """A delete with a wrong version gets BadVersion rather than NotEmpty."""
    session = server.session()
    session.multi(create("/a"), create("/a/b"))
    assert refusal(session.delete, "/a", 7) == "BadVersion"
    assert refusal(session.delete, "/a", 0) == "NotEmpty"


def test_a_delete_below_a_missing_parent_finds_no_node(server: Server) -> None:
    """A delete below a missing parent gets NoNode."""
    session = server.session()
    assert refusal(session.delete, "/a/b/c") == "NoNode"


def test_reads_of_a_missing_node(server: Server) -> None:
    """For a missing znode `get` and `children` fail, and `exists` returns None."""
    session = server.session()
    assert refusal(session.get, "/a") == "NoNode"
    assert refusal(session.children, "/a") == "NoNode"
    assert session.exists("/a") is None


def test_children_are_names_of_one_level(server: Server) -> None:
    """A listing contains the name of each direct child exactly once."""
    session = server.session()
    session.multi(create("/a"), create("/a/b"), create("/a/b/c"), create("/a/d"), create("/ab"))
    assert session.children("/a") == ["b", "d"]
    assert session.children("/a/d") == []


# ---- transactions -------------------------------------------------------------------------------


def test_a_check_changes_nothing(server: Server) -> None:
    """A check changes neither version nor zxid, and fires no watch."""
    session = server.session()
    session.create("/a", b"1")
    watch = Watch()
    before = session.get("/a", watch)
    assert session.multi(Op("check", "/a", version=0)) == [OK]
    session.settle()
    assert session.get("/a") == before
    assert watch.events == []


def test_a_check_of_another_version_refuses_the_multi(server: Server) -> None:
    """A transaction that checks for an old version is refused."""
    session = server.session()
    session.create("/a")
    session.set("/a", b"1")
    codes = session.multi(Op("check", "/a", version=0), create("/b"))
    assert codes == ["BadVersion", "RuntimeInconsistency"]
    assert session.children("/") == ["a"]


def test_a_check_sees_what_stands_before_it_in_the_multi(server: Server) -> None:
    """A check sees the versions that earlier elements of its transaction produce."""
    session = server.session()
    session.create("/a")
    assert session.multi(Op("set", "/a", b"1"), Op("check", "/a", version=1)) == [OK, OK]
    codes = session.multi(Op("set", "/a", b"2"), Op("check", "/a", version=1))
    assert codes == ["RolledBack", "BadVersion"]
    assert session.get("/a")[0] == b"1"


def test_two_sets_in_one_multi_are_two_versions(server: Server) -> None:
    """Two sets in one transaction raise the version twice, with one zxid."""
    session = server.session()
    session.create("/a")
    assert session.multi(Op("set", "/a", b"1"), Op("set", "/a", b"2", version=1)) == [OK, OK]
    data, stat = session.get("/a")
    assert (data, stat.version) == (b"2", 2)


def test_a_rolled_back_delete_was_never_made(server: Server) -> None:
    """If a transaction that deletes and re-creates a znode is refused, the znode is unchanged."""
    session = server.session()
    session.multi(create("/a", b"1"), create("/a/b"))
    before = session.get("/a"), session.get("/a/b")
    codes = session.multi(
        Op("delete", "/a/b"), Op("delete", "/a"), create("/a", b"2"), Op("check", "/nowhere")
    )
    assert codes == ["RolledBack", "RolledBack", "RolledBack", "NoNode"]
    assert (session.get("/a"), session.get("/a/b")) == before
    assert session.children("/a") == ["b"]


def test_a_multi_deletes_a_subtree_from_below(server: Server) -> None:
    """One transaction can delete a whole group, if children are deleted first."""
    session = server.session()
    session.multi(create("/g"), create("/g/a"), create("/g/b"))
    top_first = [Op("delete", path) for path in ("/g", "/g/a", "/g/b")]
    assert session.multi(*top_first)[0] == "NotEmpty"
    assert session.multi(*reversed(top_first)) == [OK] * 3
    assert session.exists("/g") is None


def test_a_claim_of_one_node_twice_is_refused(server: Server) -> None:
    """If a transaction creates a path twice, the second create gets NodeExists."""
    session = server.session()
    assert session.multi(claim("/p0"), claim("/p0")) == ["RolledBack", "NodeExists"]
    assert session.exists("/p0") is None


def test_nothing_is_created_below_an_ephemeral_of_the_same_multi(server: Server) -> None:
    """Even within one transaction, no child can be created below an ephemeral znode."""
    session = server.session()
    assert session.multi(claim("/a"), create("/a/b")) == ["RolledBack", "NoChildrenForEphemerals"]
    assert session.exists("/a") is None


def test_an_empty_multi_succeeds(server: Server) -> None:
    """A transaction without elements succeeds, and returns no results."""
    assert server.session().multi() == []


def test_a_multi_of_more_than_a_mebibyte_loses_the_connection(server: Server) -> None:
    """The size limit applies to the whole request; a request above the limit has no effect."""
    session, other = server.session(), server.session()
    with pytest.raises(ZkError, match="ConnectionLoss"):
        session.multi(create("/a", HALF), create("/b", HALF))
    assert other.children("/") == []
