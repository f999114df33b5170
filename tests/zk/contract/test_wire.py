"""What clients besides members need: numbered znodes, metadata, logins, and watches set again.

The tests run on the fake server and on real ones; the simulated server has no wire.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
from kazoo.security import make_acl, make_digest_acl
from support.wait import eventually
from support.zk.contract import LIMIT_S

Connect = Callable[..., KazooClient]

_directories = count(1)

# `ZooDefs.OpCode`, and the number of watch events.
CREATE, DELETE, GET, CHILDREN, SYNC, MULTI_READ, SET_WATCHES = 1, 2, 4, 8, 9, 22, 101
CHECK_WATCHES, REMOVE_WATCHES, CREATE_CONTAINER = 17, 18, 19
EVENT = -1
# No data, the list that is open to anyone, and no flags; the flags of a container are 4.
_OPEN = struct.pack(">iii", 0, 1, 31) + b"\0\0\0\5world\0\0\0\6anyone"
OPEN_CREATE, OPEN_CONTAINER = (_OPEN + struct.pack(">i", flags) for flags in (0, 4))
# `Watcher.WatcherType`, and the error of a request for watches that do not exist.
OF_CHILDREN, OF_DATA, OF_ANY, NO_WATCHER = 1, 2, 3, -121
LAST = struct.pack(">i?i", -1, True, -1)


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
    """A session that sends requests as bytes.

    `events` has the watch events that have come, as ZooKeeper's number of the type, and the path.
    """

    def __init__(self, address: str, stack: ExitStack, *, timeout_ms: int = 10_000) -> None:
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=LIMIT_S)
        self._file = stack.enter_context(stack.enter_context(connection).makefile("rwb"))
        self.events: list[tuple[int, str]] = []
        self._send(bytes(KazooConnect(0, 0, timeout_ms, 0, bytes(16), False).serialize()))
        _, self.timeout_ms, self.number = struct.unpack(">iiq", self._receive()[:16])

    def ask(self, operation: int, content: bytes = b"") -> tuple[int, bytes]:
        """Send a request; return the number of its error, and the reply's content."""
        self._send(struct.pack(">ii", 1, operation) + content)
        while True:
            frame = self._receive()
            xid, _, error = struct.unpack(">iqi", frame[:16])
            if xid != EVENT:
                return error, frame[16:]
            kind, _, size = struct.unpack(">iii", frame[16:28])
            self.events.append((kind, frame[28 : 28 + size].decode()))

    def is_over(self) -> bool:
        """Return whether the server has ended the connection."""
        return self._file.read(1) == b""

    def _send(self, frame: bytes) -> None:
        self._file.write(struct.pack(">i", len(frame)) + frame)
        self._file.flush()

    def _receive(self) -> bytes:
        return self._file.read(int.from_bytes(self._file.read(4), "big"))


@pytest.fixture
def raw(address: str) -> Iterator[Raw]:
    """A session that sends requests as bytes."""
    with ExitStack() as stack:
        yield Raw(address, stack)


def text(value: str) -> bytes:
    """Encode a text."""
    data = value.encode()
    return struct.pack(">i", len(data)) + data


def strings(*texts: str) -> bytes:
    """Encode a list of texts."""
    return struct.pack(">i", len(texts)) + b"".join(map(text, texts))


# ---- watches and containers, as Curator uses them ------------------------------------------------


@pytest.mark.since("3.5.5")
def test_a_session_asks_for_its_watches_and_removes_them(connect: Connect, raw: Raw) -> None:
    """A removed watch gets no event, and the other kind of watch at the same znode stays."""
    client = connect()
    client.create("/a")
    path = text(client.chroot + "/a")

    def ask(operation: int, kind: int) -> int:
        return raw.ask(operation, path + struct.pack(">i", kind))[0]

    assert ask(CHECK_WATCHES, OF_ANY) == NO_WATCHER
    raw.ask(GET, path + b"\1")
    raw.ask(CHILDREN, path + b"\1")
    assert [ask(CHECK_WATCHES, kind) for kind in (OF_CHILDREN, OF_DATA, OF_ANY)] == [0, 0, 0]
    assert ask(REMOVE_WATCHES, OF_DATA) == 0
    assert ask(CHECK_WATCHES, OF_DATA) == ask(REMOVE_WATCHES, OF_DATA) == NO_WATCHER
    client.set("/a", b"1")
    client.create("/a/b")
    raw.ask(SYNC, text("/"))
    assert raw.events == [(4, client.chroot + "/a")]


@pytest.mark.since("3.5.5")
def test_a_container(connect: Connect, raw: Raw) -> None:
    """A container is created with its metadata in the reply; it has children and no owner."""
    client = connect()
    path = client.chroot + "/container"
    error, reply = raw.ask(CREATE_CONTAINER, text(path) + OPEN_CONTAINER)
    assert (error, len(reply), reply.startswith(text(path))) == (0, len(text(path)) + 68, True)
    client.create("/container/a")
    found = client.exists("/container")
    assert found is not None
    assert (found.ephemeralOwner, found.numChildren) == (0, 1)


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
    ("end", "error"),
    [
        ("/", BadArgumentsError),
        ("/..", BadArgumentsError),
        ("/a\x1e", BadArgumentsError),
        ("/\U0001f600", BadArgumentsError),
        ("//a", NoNodeError),
        ("/./a", NoNodeError),
    ],
)
def test_an_invalid_path_is_refused(
    connect: Connect, raw: Raw, end: str, error: type[KazooException]
) -> None:
    """A create with an invalid name gets BadArguments; below an invalid name there is no znode."""
    path = connect().chroot + end
    assert raw.ask(CREATE, text(path) + OPEN_CREATE)[0] == error.code


def test_a_path_without_a_slash_is_refused(raw: Raw) -> None:
    """A create with a relative path gets BadArguments."""
    assert raw.ask(CREATE, text("relative") + OPEN_CREATE)[0] == BadArgumentsError.code


def test_refusals_have_different_numbers(connect: Connect, raw: Raw) -> None:
    """A create below an ephemeral znode, and the deletion of the root, are told apart."""
    client = connect()
    client.create("/id", ephemeral=True)
    below = client.transaction()
    below.create("/id/a")
    assert isinstance(below.commit()[0], NoChildrenForEphemeralsError)
    assert raw.ask(DELETE, text("/") + struct.pack(">i", -1))[0] == BadArgumentsError.code


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


def test_watches_set_again_tell_what_was_missed(connect: Connect, raw: Raw) -> None:
    """`setWatches` sends the events since a zxid, and watches what has not changed."""
    client = connect()
    for path in ("/changed", "/deleted", "/same", "/parent", "/quiet"):
        client.create(path)
    seen = client.exists("/quiet").czxid
    client.set("/changed", b"1")
    client.delete("/deleted")
    client.create("/created")
    client.create("/parent/child")
    below = client.chroot
    watches = (
        ("/changed", "/deleted", "/same"),
        ("/created", "/missing"),
        ("/parent", "/quiet"),
    )
    content = b"".join(strings(*(below + path for path in paths)) for paths in watches)
    assert raw.ask(SET_WATCHES, struct.pack(">q", seen) + content) == (0, b"")
    missed = [(1, "/created"), (2, "/deleted"), (3, "/changed"), (4, "/parent")]
    assert sorted(raw.events) == [(kind, below + path) for kind, path in missed]
    raw.events.clear()
    client.set("/changed", b"2")
    client.set("/same", b"1")
    client.create("/missing")
    client.create("/quiet/child")
    assert raw.ask(SYNC, text("/"))[0] == 0
    later = [(1, "/missing"), (3, "/same"), (4, "/quiet")]
    assert sorted(raw.events) == [(kind, below + path) for kind, path in later]


# ---- sessions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked_ms", "granted_ms"), [(7000, 7000), (99000, 60_000)])
def test_a_session_timeout_has_a_limit(address: str, asked_ms: int, granted_ms: int) -> None:
    """The server grants the timeout that the client asks for, up to 60 s."""
    with ExitStack() as stack:
        assert Raw(address, stack, timeout_ms=asked_ms).timeout_ms == granted_ms


def test_a_session_needs_its_password(connect: Connect, address: str) -> None:
    """A client with another session's number and a wrong password gets a new session."""
    client = connect()
    session, _ = client.client_id
    thief = KazooClient(address, client_id=(session, b"x" * 16))
    thief.start(LIMIT_S)
    eventually(lambda: thief.client_id is not None and thief.client_id[0] != session)
    thief.stop()
    thief.close()
    assert client.exists("/") is not None


def test_an_unknown_request_is_refused_and_ends_the_connection(raw: Raw) -> None:
    """The reply is UNIMPLEMENTED."""
    assert raw.ask(99) == (UnimplementedError.code, b"")
    assert raw.is_over()


@pytest.mark.since("3.6.0")
def test_many_reads_in_one_request(connect: Connect, raw: Raw) -> None:
    """From 3.6 on `multiRead` answers each read, or says why not."""
    client = connect()
    client.create("/a", b"1")
    client.create("/a/b")
    reads = b"".join(
        struct.pack(">i?i", kind, False, -1) + text(client.chroot + path) + b"\0"
        for kind, path in ((GET, "/a"), (CHILDREN, "/a"), (GET, "/none"))
    )
    error, reply = raw.ask(MULTI_READ, reads + LAST)
    assert error == 0
    assert reply.startswith(struct.pack(">i?ii", GET, False, 0, 1) + b"1")
    names = struct.pack(">i?i", CHILDREN, False, 0) + strings("b")
    no_node = struct.pack(">i?ii", -1, False, NoNodeError.code, NoNodeError.code)
    assert reply.endswith(names + no_node + LAST)
