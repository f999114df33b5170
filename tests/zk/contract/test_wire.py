"""What clients besides members need: numbered znodes, metadata, logins, and watches set again.

The tests run on the fake server and on real ones; the simulated server has no wire.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadArgumentsError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NoNodeError,
    UnimplementedError,
)
from kazoo.protocol.serialization import Connect as KazooConnect
from kazoo.protocol.states import WatchedEvent
from kazoo.security import make_acl, make_digest_acl
from support.wait import eventually
from support.zk.contract import LIMIT_S

Connect = Callable[..., KazooClient]

_directories = count(1)


@pytest.fixture
def connect(address: str) -> Iterator[Connect]:
    """Return new clients, whose root is an empty directory."""
    directory = f"/wire-{next(_directories)}"
    clients: list[KazooClient] = []

    def one(**options: Any) -> KazooClient:
        client = KazooClient(
            f"{address}{directory if clients else ''}",
            connection_retry={"max_tries": -1, "delay": 0.02, "max_delay": 0.2},
            **options,
        )
        clients.append(client)
        client.start(LIMIT_S)
        return client

    one().create(directory)
    yield one
    clients[0].delete(directory, recursive=True)
    for client in clients:
        client.stop()
        client.close()


class Raw:
    """A request of kazoo with any number and content."""

    def __init__(self, number: int, content: bytes) -> None:
        self.type, self._content = number, content

    def serialize(self) -> bytes:
        """Return the content."""
        return self._content

    def deserialize(self, data: bytes, offset: int) -> bytes:
        """Return the reply's content."""
        return data[offset:]


def send(client: KazooClient, number: int, content: bytes = b"") -> bytes:
    """Send a raw request, and return its reply's content."""
    result = client.handler.async_result()
    client._call(Raw(number, content), result)
    return bytes(result.get(timeout=LIMIT_S))


def strings(*texts: str) -> bytes:
    """Encode a list of texts."""
    parts = (struct.pack(">i", len(text)) + text.encode() for text in texts)
    return struct.pack(">i", len(texts)) + b"".join(parts)


# ---- znodes -------------------------------------------------------------------------------------


def test_numbered_znodes_count_the_creates_below_their_parent(connect: Connect) -> None:
    """A deletion does not give a number back, and other children count, too."""
    client = connect()
    client.create("/queue")
    assert client.create("/queue/a-", sequence=True) == "/queue/a-0000000000"
    client.create("/queue/plain")
    assert client.create("/queue/b-", sequence=True) == "/queue/b-0000000002"
    client.delete("/queue/b-0000000002")
    assert client.create("/queue/", sequence=True) == "/queue/0000000003"


def test_an_ephemeral_numbered_znode_names_its_session(connect: Connect) -> None:
    """A znode can be numbered and ephemeral, as those of kazoo's recipes are."""
    client = connect()
    path = client.create("/lock-", ephemeral=True, sequence=True)
    assert client.exists(path).ephemeralOwner == client.client_id[0]


def test_the_metadata_count_children_and_changes(connect: Connect) -> None:
    """`cversion`, `aversion`, `numChildren`, `dataLength` and `pzxid` follow the changes."""
    client = connect()
    client.create("/a", b"12")
    client.create("/a/b")
    client.create("/a/c")
    client.delete("/a/b")
    stat = client.exists("/a")
    assert (stat.version, stat.cversion, stat.aversion) == (0, 3, 0)
    assert (stat.numChildren, stat.dataLength) == (1, 2)
    assert stat.pzxid > client.exists("/a/c").czxid > stat.czxid == stat.mzxid
    client.set_acls("/a", [make_acl("world", "anyone", all=True)])
    client.set("/a", b"123")
    after = client.exists("/a")
    assert (after.version, after.cversion, after.aversion) == (1, 3, 1)
    assert (after.dataLength, after.pzxid) == (3, stat.pzxid)
    assert client.exists("/a/c").pzxid == client.exists("/a/c").czxid


def test_times_are_those_of_the_writes(connect: Connect) -> None:
    """The creation's time stays, and the last write's time grows."""
    client = connect()
    client.create("/a")
    before = client.exists("/a")
    assert before.ctime == before.mtime > 1_000_000_000_000

    def is_later() -> bool:
        return bool(client.set("/a", b"1").mtime > before.mtime)

    eventually(is_later)
    assert client.exists("/a").ctime == before.ctime


def test_children_come_with_the_metadata_of_their_parent(connect: Connect) -> None:
    """`getChildren2` returns the names and the parent's metadata."""
    client = connect()
    client.create("/a")
    client.create("/a/b")
    names, stat = client.get_children("/a", include_data=True)
    assert names == ["b"]
    assert stat == client.exists("/a")


@pytest.mark.since("3.5.0")
def test_a_create_can_return_the_metadata(connect: Connect) -> None:
    """From 3.5 on `create2` returns the metadata of the new znode."""
    client = connect()
    path, stat = client.create("/a", b"123", include_data=True)
    assert stat == client.exists(path)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/wire/", BadArgumentsError),
        ("/wire/..", BadArgumentsError),
        ("/wire/a\x1e", BadArgumentsError),
        ("wire", BadArgumentsError),
        ("/wire//a", NoNodeError),
        ("/wire/./a", NoNodeError),
    ],
)
def test_an_invalid_path_is_refused(
    connect: Connect, path: str, error: type[KazooException]
) -> None:
    """A create with an invalid name gets BadArguments; below an invalid name there is no znode."""
    client = connect()
    acl = struct.pack(">iiii", 0, 1, 31, 5) + b"world" + struct.pack(">i", 6) + b"anyone"
    path = path.replace("/wire", client.chroot)
    with pytest.raises(error):
        send(client, 1, strings(path)[4:] + acl + struct.pack(">i", 0))


def test_a_transaction_names_every_refusal(connect: Connect) -> None:
    """A transaction tells a create below an ephemeral znode from the deletion of the root."""
    client = connect()
    client.create("/id", ephemeral=True)
    below = client.transaction()
    below.create("/id/a")
    assert isinstance(below.commit()[0], NoChildrenForEphemeralsError)
    with pytest.raises(BadArgumentsError):
        send(client, 2, strings("/")[4:] + struct.pack(">i", -1))


# ---- rights -------------------------------------------------------------------------------------


def test_a_login_opens_what_its_user_has_closed(connect: Connect) -> None:
    """A znode that only one user may read is readable after a login with the right password."""
    owner, other = connect(), connect()
    owner.create("/a", b"1", acl=[make_digest_acl("me", "secret", all=True)])
    for password in (None, "wrong"):
        if password is not None:
            other.add_auth("digest", f"me:{password}")
        with pytest.raises(NoAuthError):
            other.get("/a")
    other.add_auth("digest", "me:secret")
    assert other.get("/a")[0] == b"1"
    other.delete("/a")


def test_an_acl_can_name_the_creators_own_logins(connect: Connect) -> None:
    """The scheme `auth` stands for the logins of the connection; without one it is refused."""
    client, other = connect(), connect()
    mine = [make_acl("auth", "", all=True)]
    with pytest.raises(InvalidACLError):
        client.create("/a", acl=mine)
    client.add_auth("digest", "me:secret")
    client.create("/a", acl=mine)
    (entry,), stat = client.get_acls("/a")
    assert (entry.id.scheme, entry.id.id.partition(":")[0], entry.perms) == ("digest", "me", 31)
    assert stat.aversion == 0
    with pytest.raises(NoAuthError):
        other.get("/a")
    client.delete("/a")


def test_an_acl_is_read_as_it_was_written(connect: Connect) -> None:
    """`getACL` returns each entry of an access control list."""
    client = connect()
    acl = [make_acl("world", "anyone", read=True), make_acl("ip", "127.0.0.1", all=True)]
    client.create("/a", acl=acl)
    assert set(client.get_acls("/a")[0]) == {*acl}


def test_an_unknown_scheme_fails_the_login(connect: Connect) -> None:
    """A login with an unknown scheme fails."""
    client = connect()
    with pytest.raises(AuthFailedError):
        client.add_auth("nonsense", "me")


# ---- watches ------------------------------------------------------------------------------------


def test_watches_set_again_tell_what_was_missed(connect: Connect) -> None:
    """`setWatches` sends the events since a zxid, and watches what has not changed."""
    client, other = connect(), connect()
    for path in ("/changed", "/deleted", "/same", "/parent", "/quiet"):
        client.create(path)
    seen = client.exists("/quiet").czxid
    other.set("/changed", b"1")
    other.delete("/deleted")
    other.create("/created")
    other.create("/parent/child")
    events: list[tuple[str, str]] = []
    arrived = threading.Event()

    def note(event: WatchedEvent) -> None:
        events.append((event.type, event.path))
        arrived.set()

    root = client.chroot
    data, absent, children = (
        tuple(root + path for path in paths)
        for paths in (
            ("/changed", "/deleted", "/same"),
            ("/created", "/missing"),
            ("/parent", "/quiet"),
        )
    )
    for path in (*data, *absent):
        client._data_watchers[path].add(note)
    for path in children:
        client._child_watchers[path].add(note)
    watches = strings(*data) + strings(*absent) + strings(*children)
    assert send(client, 101, struct.pack(">q", seen) + watches) == b""
    missed = [
        ("CHANGED", "/changed"),
        ("CHILD", "/parent"),
        ("CREATED", "/created"),
        ("DELETED", "/deleted"),
    ]
    eventually(lambda: sorted(events) == missed)
    events.clear()
    other.set("/changed", b"2")
    other.set("/same", b"1")
    other.create("/missing")
    other.create("/quiet/child")
    later = [("CHANGED", "/same"), ("CHILD", "/quiet"), ("CREATED", "/missing")]
    eventually(lambda: sorted(events) == later)


# ---- sessions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked_ms", "granted_ms"), [(7000, 7000), (99000, 60_000)])
def test_a_session_timeout_has_a_limit(address: str, asked_ms: int, granted_ms: int) -> None:
    """The server grants the timeout that the client asks for, up to 60 s."""
    request = bytes(KazooConnect(0, 0, asked_ms, 0, bytes(16), False).serialize())
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as replies:
            _, _, found = struct.unpack(">iii", replies.read(12))
    assert found == granted_ms


def test_a_session_needs_its_password(connect: Connect, address: str) -> None:
    """A client with another session's number and a wrong password gets a new session."""
    client = connect()
    thief = KazooClient(address, client_id=(client.client_id[0], b"x" * 16))
    thief.start(LIMIT_S)
    assert thief.client_id[0] != client.client_id[0]
    thief.stop()
    thief.close()
    assert client.exists("/") is not None


def test_an_unknown_request_is_refused_and_ends_the_connection(connect: Connect) -> None:
    """The reply is UNIMPLEMENTED; then the client reconnects in the same session."""
    client = connect()
    number = client.client_id[0]
    with pytest.raises(UnimplementedError):
        send(client, 99)

    def is_back() -> bool:
        try:
            return client.exists("/") is not None
        except KazooException:
            return False

    eventually(is_back)
    assert client.client_id[0] == number


@pytest.mark.since("3.6.0")
def test_many_reads_in_one_request(connect: Connect) -> None:
    """From 3.6 on `multiRead` answers each read, or says why not."""
    client = connect()
    client.create("/a", b"1")
    client.create("/a/b")
    root = client.chroot
    reads = b"".join(
        struct.pack(">i?i", kind, False, -1) + strings(root + path)[4:] + b"\0"
        for kind, path in ((4, "/a"), (8, "/a"), (4, "/none"))
    )
    reply = send(client, 22, reads + struct.pack(">i?i", -1, True, -1))
    heads = [struct.pack(">i?i", *head) for head in ((4, False, 0), (8, False, 0))]
    assert reply.startswith(heads[0] + struct.pack(">i", 1) + b"1")
    assert heads[1] + strings("b") + struct.pack(">i?ii", -1, False, -101, -101) in reply
