"""The observer on a real ZooKeeper: it reports all changes, survives faults, writes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
from support.internals import client_of
from support.wait import LIMIT_S
from support.zk.client import peer_of
from support.zk.takeover import expire

from zkconsumer.errors import (
    AccessDeniedError,
    ChrootMissingError,
    ConfigError,
    ZooKeeperUnreachableError,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import OwnerZnode
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.zk.observer import Change, ChangeKind, GroupPart, GroupSnapshot, Observer

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
REGISTRATION = encode_registration(Registration({"orders": 2}, Pattern.STATIC, 1))


class Followed:
    """The changes that an observer yields, which a separate thread reads."""

    def __init__(self, observer: Observer) -> None:
        self._changes: Queue[Change] = Queue()
        self._thread = threading.Thread(target=self._follow, args=(observer,), daemon=True)
        self._thread.start()

    def _follow(self, observer: Observer) -> None:
        for _, change in observer.changes():
            self._changes.put(change)

    def until(self, wanted: Callable[[Change], bool]) -> list[Change]:
        """Return all changes up to the first expected one; fail if this one does not arrive."""
        seen: list[Change] = []
        try:
            while not (seen and wanted(seen[-1])):
                seen.append(self._changes.get(timeout=LIMIT_S))
        except Empty:
            raise AssertionError(f"only {seen}") from None
        return seen

    def join(self) -> bool:
        """Return whether the observer has stopped yielding changes."""
        self._thread.join(LIMIT_S)
        return not self._thread.is_alive()


@contextmanager
def following(connect: str, group: str) -> Iterator[tuple[Observer, Followed]]:
    """An observer that follows a group and has read it once."""
    with Observer(connect, group) as observer:
        followed = Followed(observer)
        followed.until(lambda change: change.what is ChangeKind.READ)
        yield observer, followed
    assert followed.join()


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """The client that changes the group."""
    with peer_of(zookeeper.connect) as one:
        yield one


@pytest.fixture
def group(unique: Callable[[str], str]) -> str:
    """A group that only this test uses."""
    return unique("group")


def claim(client: KazooClient, group: str, tp: TopicPartition, thread: bytes = b"g_a-0") -> None:
    client.create(paths.owner(group, tp), thread, ephemeral=True, makepath=True)


def is_owner(tp: TopicPartition, thread: str | None) -> Callable[[Change], bool]:
    """Return whether a change makes `thread` the owner of `tp`; None means no owner."""

    def wanted(change: Change) -> bool:
        after = change.after
        found = after.thread if isinstance(after, OwnerZnode) else None
        return (change.what, change.key, found) == (ChangeKind.OWNER, tp, thread)

    return wanted


def test_a_snapshot(zookeeper: ZooKeeperServer, client: KazooClient, group: str) -> None:
    """A snapshot has members, owners with session and epoch, offsets, and reasons for faults."""
    client.create(paths.member(group, "g_a"), REGISTRATION, makepath=True)
    client.create(paths.member(group, "g_b"), b"no json")
    claim(client, group, T0)
    client.create(paths.owner(group, T1), b"\xff", makepath=True)
    client.create(paths.offset(group, T0), b"42", makepath=True)
    client.create(paths.offset(group, T1), b"4 2", makepath=True)
    client.create(f"{paths.owners_of(group, 'orders')}/strange", b"")
    with Observer(zookeeper.connect, group) as observer:
        assert observer.group_exists()
        found = observer.snapshot()
    assert found.members["g_a"] == Registration({"orders": 2}, Pattern.STATIC, 1)
    assert "not the expected JSON" in str(found.members["g_b"])
    epoch = client.exists(paths.owner(group, T0)).czxid
    assert found.owners[T0] == OwnerZnode("g_a-0", client.client_id[0], epoch)
    assert (found.owners[T1].session, set(found.owners)) == (0, {T0, T1})
    assert (found.offsets[T0], set(found.offsets)) == (42, {T0, T1})
    assert "is not an offset" in str(found.offsets[T1])


def test_a_group_that_is_not_there(zookeeper: ZooKeeperServer, group: str) -> None:
    """A group without znodes is reported as missing and empty, and is not created."""
    with Observer(zookeeper.connect, group) as observer:
        assert observer.snapshot() == GroupSnapshot()
        followed = Followed(observer)
        followed.until(lambda change: change.what is ChangeKind.READ)
        assert not observer.group_exists()
    assert followed.join()


def test_only_requested_parts_are_read(
    zookeeper: ZooKeeperServer, client: KazooClient, group: str
) -> None:
    """The observer reads only the parts that were requested."""
    claim(client, group, T0)
    client.create(paths.offset(group, T0), b"42", makepath=True)
    with Observer(zookeeper.connect, group, follow={GroupPart.OWNERS}) as observer:
        found = observer.snapshot()
    assert (set(found.owners), set(found.offsets)) == ({T0}, set())


def test_a_group_that_is_created_and_deleted(
    zookeeper: ZooKeeperServer, client: KazooClient, group: str
) -> None:
    """If a followed group is created or deleted, each of its parts is reported."""
    with following(zookeeper.connect, group) as (_, followed):
        client.create(paths.member(group, "g_a"), REGISTRATION, ephemeral=True, makepath=True)
        followed.until(lambda change: (change.what, change.key) == (ChangeKind.MEMBER, "g_a"))
        claim(client, group, T0)
        followed.until(is_owner(T0, "g_a-0"))
        client.create(paths.offset(group, T0), b"1", makepath=True)
        followed.until(lambda change: change.after == 1)
        client.set(paths.offset(group, T0), b"2")
        last = followed.until(lambda change: change.after == 2)[-1]
        assert last == Change(ChangeKind.OFFSET, T0, 1, 2)
        client.set(paths.offset(group, T0), b"x")
        followed.until(lambda change: "is not an offset" in str(change.after))
        claim(client, group, T1)
        followed.until(is_owner(T1, "g_a-0"))
        client.delete(paths.owners(group), recursive=True)
        seen = followed.until(is_owner(T1, None))
        assert is_owner(T0, None)(seen[-2])
        client.delete(paths.member(group, "g_a"))
        followed.until(lambda change: change.what is ChangeKind.MEMBER and change.after is None)


def test_an_owner_that_is_replaced_at_once(
    zookeeper: ZooKeeperServer, client: KazooClient, group: str
) -> None:
    """If one transaction deletes and re-creates an owner znode, a new owner is reported."""
    claim(client, group, T0)
    claim(client, group, T1)
    with following(zookeeper.connect, group) as (_, followed):
        for thread in ("g_b-0", "g_c-0", "g_c-0"):
            transaction = client.transaction()
            transaction.delete(paths.owner(group, T0))
            transaction.create(paths.owner(group, T0), thread.encode(), ephemeral=True)
            transaction.commit()
            (change,) = followed.until(is_owner(T0, thread))
            assert isinstance(change.before, OwnerZnode)
            assert isinstance(change.after, OwnerZnode)
            assert change.before.czxid < change.after.czxid


def test_the_sum_of_the_changes_equals_the_group(
    zookeeper: ZooKeeperServer, client: KazooClient, group: str
) -> None:
    """In whatever order claims and releases come, all changes together give the group's state."""
    client.ensure_path(paths.owners_of(group, "orders"))
    with following(zookeeper.connect, group) as (observer, followed):
        for turn in range(30):
            for partition in range(turn % 7, 60, 3 + turn % 5):
                path = paths.owner(group, TopicPartition("orders", partition))
                if client.exists(path):
                    client.delete_async(path)
                else:
                    client.create_async(path, b"g_%d-0" % turn, ephemeral=True)
        client.create(paths.owner(group, TopicPartition("orders", 99)), b"last", ephemeral=True)
        owners: dict[object, object] = {}
        for change in followed.until(is_owner(TopicPartition("orders", 99), "last")):
            assert owners.pop(change.key, None) == change.before
            if change.after is not None:
                owners[change.key] = change.after
        assert owners == observer.snapshot().owners


def test_a_restarted_server(tmp_path: Path) -> None:
    """After a restart of ZooKeeper, missed changes are reported, and watches work again."""
    with ZooKeeperServer(tmp_path, tick_time_s=0.1) as server:
        hand = KazooClient(server.connect, timeout=3.0)
        hand.start(LIMIT_S)
        claim(hand, "g", T0)
        hand.ensure_path(paths.offset("g", T0))
        with following(server.connect, "g") as (_, followed):
            server.kill()
            hand.stop()
            followed.until(lambda change: change.after in ("suspended", "lost"))
            server.start()
            followed.until(is_owner(T0, None))  # The session of the client has expired.
            hand = KazooClient(server.connect)
            hand.start(LIMIT_S)
            claim(hand, "g", T0, b"g_b-0")
            followed.until(is_owner(T0, "g_b-0"))
            hand.set(paths.offset("g", T0), b"7")
            followed.until(lambda change: change.after == 7)
        hand.stop()


def test_a_session_that_ends(zookeeper: ZooKeeperServer, client: KazooClient, group: str) -> None:
    """When the observer's own session has expired, the observer continues in a new session."""
    claim(client, group, T0)
    with following(zookeeper.connect, group) as (observer, followed):
        expire(zookeeper.connect, client_of(observer).client_id)
        followed.until(lambda change: change.after == "lost")
        followed.until(lambda change: change.what is ChangeKind.READ)
        client.delete(paths.owner(group, T0))
        followed.until(is_owner(T0, None))


def test_unreachable_servers_and_bad_names(zookeeper: ZooKeeperServer) -> None:
    """A missing server, a missing chroot, and a bad name each raise a different error."""
    with pytest.raises(ZooKeeperUnreachableError), Observer("127.0.0.1:1", "g", timeout_s=0.5):
        pass
    with pytest.raises(ChrootMissingError), Observer(f"{zookeeper.connect}/missing", "g"):
        pass
    with pytest.raises(ConfigError):
        Observer("h:x", "g")
    with pytest.raises(ConfigError):
        Observer("h:1", "a/b")


def test_access_denied(zookeeper: ZooKeeperServer, client: KazooClient, group: str) -> None:
    """If a group may not be read, the error names the path; with the credential it is read."""
    client.add_auth("digest", "u:p")
    ids = paths.ids(group)
    client.ensure_path(ids.rpartition("/")[0])  # kazoo would restrict the parents, too.
    client.create(ids, b"", acl=[make_digest_acl("u", "p", all=True)])
    with Observer(zookeeper.connect, group) as observer:
        with pytest.raises(AccessDeniedError, match=group):
            observer.snapshot()
        with pytest.raises(AccessDeniedError, match=group):
            next(observer.changes())
    with Observer(zookeeper.connect, group, auth=("digest", "u:p")) as observer:
        assert observer.snapshot() == GroupSnapshot()


def test_an_offset_that_may_not_be_read(
    zookeeper: ZooKeeperServer, client: KazooClient, group: str
) -> None:
    """The offset is unknown, with a reason; everything else is reported, and so are changes."""
    claim(client, group, T0)
    client.add_auth("digest", "u:p")
    client.ensure_path(paths.offsets_of(group, "orders"))
    only_u = [make_digest_acl("u", "p", all=True)]
    client.create(paths.offset(group, T0), b"1", acl=only_u)
    client.create(paths.offset(group, T1), b"2", acl=OPEN_ACL_UNSAFE)
    reason = "ZooKeeper does not allow this client to read the znode"
    with following(zookeeper.connect, group) as (observer, followed):
        assert observer.snapshot().offsets == {T0: reason, T1: 2}
        assert T0 in observer.snapshot().owners
        client.set(paths.offset(group, T1), b"3")
        assert followed.until(lambda change: change.after == 3) == [
            Change(ChangeKind.OFFSET, T1, 2, 3)
        ]
        client.delete(paths.offset(group, T0))
        last = followed.until(lambda change: change.after is None)[-1]
        assert last == Change(ChangeKind.OFFSET, T0, reason, None)
