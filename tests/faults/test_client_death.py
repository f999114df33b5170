"""A ZooKeeper client that ends is replaced if this helps; otherwise the user gets an error.

kazoo's connection loop ends, and never comes back, when the server refuses the credential at a
reconnect, when the connection breaks during the login, and on an exception that it does not expect.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cli.terminal import Terminal
from kazoo.client import KazooClient
from support.members.group import SETTINGS, MemberUnderTest
from support.wait import LIMIT_S, eventually
from support.zk.client import peer_of
from support.zk.proxies import Proxy

from zkconsumer import ConsumerConfig, ConsumerConnector, TopicPartition
from zkconsumer.cli.options import Connection
from zkconsumer.cli.top_feed import Feed
from zkconsumer.errors import AccessDeniedError, ZkConsumerError, ZooKeeperUnreachableError
from zkconsumer.protocol import paths
from zkconsumer.sandbox import BrokerServer, ZooKeeperServer
from zkconsumer.sandbox.topics import ServerTopics
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zk.client import ZooKeeperClient
from zkconsumer.zk.observer import Change, ChangeKind, Observer

USER, PASSWORD = "carol", "canary-first-8831"
_SASL = 102  # ZooKeeper's number for a login request.


class Spoiler(Proxy):
    """Breaks the next `logins` SASL logins, or falsifies the number of one reply (`spoil`)."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.logins = 0
        self.hung_up = 0
        self.spoil = threading.Event()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        while chunk := self._receive(client):
            if self.logins and int.from_bytes(chunk[8:12], "big") == _SASL:
                self.logins, self.hung_up = self.logins - 1, self.hung_up + 1
                break
            self._send(server, chunk)
        self.end(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        while chunk := self._receive(server):
            number = int.from_bytes(chunk[4:8], "big", signed=True)
            if number > 0 and self.spoil.is_set() and len(chunk) < 1000:
                self.spoil.clear()
                chunk = chunk[:4] + (number + 1000).to_bytes(4, "big") + chunk[8:]
            self._send(client, chunk)
        self.end(client, server)


class Guarded:
    """A ZooKeeper with one user, a broker that is registered in it, and a proxy before it."""

    def __init__(self, directory: Path) -> None:
        self._jaas = directory / "jaas.conf"
        self.password(PASSWORD)
        self.zookeeper = ZooKeeperServer(
            directory / "zookeeper",
            tick_time_s=0.1,
            settings={
                "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
            },
            properties={"java.security.auth.login.config": self._jaas},
        )

    def password(self, password: str) -> None:
        """Set the user's password, which the server uses after its next start."""
        self._jaas.write_text(
            "Server { org.apache.zookeeper.server.auth.DigestLoginModule required "
            f'user_{USER}="{password}"; }};\n'
        )

    def config(self, group: str, connect: str, **more: Any) -> ConsumerConfig:
        sasl = {"zookeeper_auth_scheme": "sasl", "zookeeper_auth_credential": f"{USER}:{PASSWORD}"}
        return ConsumerConfig(
            group_id=group, zookeeper_connect=connect, **{**SETTINGS, **sasl, **more}
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    one = Guarded(tmp_path_factory.mktemp("guarded"))
    with one.zookeeper:
        yield one


@pytest.fixture(scope="module")
def broker(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory, connect = tmp_path_factory.mktemp("broker"), guarded.zookeeper.connect
    with BrokerServer(directory, zookeeper_connect=connect):
        yield


@pytest.fixture
def changed_password(guarded: Guarded) -> Iterator[str]:
    """Another password that a test may set; after the test the user has the first one again."""
    yield "canary-second-1190"
    guarded.zookeeper.kill()
    guarded.password(PASSWORD)
    guarded.zookeeper.start()


@pytest.fixture
def topic(guarded: Guarded, broker: None, unique: Callable[[str], str]) -> str:
    name = unique("topic")
    ServerTopics(guarded.zookeeper.connect).create_topic(name, partitions=2)
    return name


@pytest.fixture
def spoiler(guarded: Guarded) -> Iterator[Spoiler]:
    with Spoiler(guarded.zookeeper.connect) as proxy:
        yield proxy


@contextmanager
def joined(config: ConsumerConfig, topic: str) -> Iterator[MemberUnderTest]:
    """A settled member with two partitions; `with` ends it, unless it has ended already."""
    one = MemberUnderTest(config)
    try:
        one.subscribe(topic)
        one.settled(0, 1)
        yield one
    finally:
        with ExitStack() as stack:
            stack.enter_context(pytest.raises(ZkConsumerError) if one.status.error else stack)
            one.close()


def test_a_credential_that_is_refused_from_now_on(
    guarded: Guarded, topic: str, changed_password: str
) -> None:
    """If the user's password is changed, streams, calls and the status report the error."""
    config = guarded.config(topic, guarded.zookeeper.connect, auto_commit_enable=False)
    with joined(config, topic) as one, ThreadPoolExecutor() as pool:
        guarded.password(changed_password)
        guarded.zookeeper.kill()
        eventually(lambda: one.status.lease_s == 0.0)
        waiting = pool.submit(one.connector.commit_offsets, timeout_s=LIMIT_S)
        guarded.zookeeper.start()
        (reader,) = one.readers
        reader.join(LIMIT_S)
        (error,) = reader.errors
        assert isinstance(error, AccessDeniedError)
        assert guarded.zookeeper.connect in error.where and "credential" in error.remedy
        assert "canary" not in str(error)
        with pytest.raises(AccessDeniedError):
            waiting.result(LIMIT_S)
        with pytest.raises(AccessDeniedError):
            one.connector.commit_offsets()
        with pytest.raises(AccessDeniedError):
            reader.stream.poll()
        assert (one.status.phase, str(one.status.error)) == ("closed", str(error))
        assert one.counted["client_died"] >= 1


def _survives(one: MemberUnderTest, admin: KazooClient, spoil: Callable[[], object]) -> None:
    """Break the client once through `spoil`; the member keeps its session and its partitions."""
    topic = one.readers[0].stream.topic or ""
    owner = paths.owner(one.connector.config.group_id, TopicPartition(topic, 0))
    session, czxid = one.status.session, admin.exists(owner).czxid
    spoil()
    eventually(lambda: one.counted.get("client_died"))
    one.settled(0, 1)
    eventually(lambda: one.status.lease_s > 0)
    one.connector.commit_offsets(timeout_s=LIMIT_S)
    assert (one.status.session, admin.exists(owner).czxid) == (session, czxid)
    assert (one.readers[0].errors, one.status.error, one.status.waiting_for) == ([], None, "")


@pytest.fixture
def admin(guarded: Guarded) -> Iterator[KazooClient]:
    with peer_of(guarded.zookeeper.connect) as client:
        yield client


def test_a_login_that_breaks_off(
    guarded: Guarded, topic: str, spoiler: Spoiler, admin: KazooClient
) -> None:
    """If a server breaks off two logins, as during a restart, the session does not end."""
    config = guarded.config(topic, spoiler.address, zookeeper_session_timeout_s=20.0)
    with joined(config, topic) as one:

        def hang_up() -> None:
            spoiler.logins = 2
            spoiler.cut()

        _survives(one, admin, hang_up)
        assert (spoiler.hung_up, one.counted["client_died"]) == (2, 2)


def test_an_exception_that_kazoo_does_not_expect(
    guarded: Guarded, topic: str, spoiler: Spoiler, admin: KazooClient
) -> None:
    """If an exception ends kazoo's loop, a new client continues the session."""
    config = guarded.config(topic, spoiler.address, zookeeper_session_timeout_s=20.0)
    with joined(config, topic) as one:
        _survives(one, admin, spoiler.spoil.set)


def test_a_client_that_dies_before_there_are_streams(
    guarded: Guarded, topic: str, spoiler: Spoiler
) -> None:
    """If the client dies before the connector joins, the connector uses a new client."""
    connector = ConsumerConnector(guarded.config(topic, spoiler.address))
    spoiler.logins = 1
    spoiler.cut()
    eventually(lambda: spoiler.hung_up)
    one = MemberUnderTest.__new__(MemberUnderTest)
    one.connector, one.readers = connector, []
    one.subscribe(topic)
    one.settled(0, 1)
    one.close()


def test_a_tool_gets_an_error_at_once(guarded: Guarded, spoiler: Spoiler) -> None:
    """If a command's client dies, the command fails before its time limit, with the reason."""
    config = guarded.config("g", spoiler.address, zookeeper_connection_timeout_s=LIMIT_S)
    with ZooKeeperClient(config) as connection:
        assert connection.children([paths.CONSUMERS]) is not None
        spoiler.logins = 1
        spoiler.cut()
        with pytest.raises(AccessDeniedError, match="refused the credential"):
            while True:
                connection.children([paths.CONSUMERS])


def _next(changes: Iterator[tuple[float, Change]], wanted: ChangeKind) -> Change:
    """Return the next change of this kind."""
    return next(change for _, change in changes if change.what is wanted)


def test_an_observer_follows_the_group_with_a_new_client() -> None:
    """If an exception ends kazoo's loop, the observer reports what has changed since."""
    tp = TopicPartition("t", 0)
    with (
        FakeZooKeeper() as zookeeper,
        peer_of(zookeeper.connect) as client,
        Spoiler(zookeeper.connect) as proxy,
        Observer(proxy.address, "g", timeout_s=LIMIT_S) as observer,
    ):
        changes = observer.changes()
        _next(changes, ChangeKind.READ)
        proxy.spoil.set()
        with suppress(ZooKeeperUnreachableError):
            observer.snapshot()  # the reply ends kazoo's loop
        client.create(paths.offset("g", tp), b"7", makepath=True)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(_next, changes, ChangeKind.OFFSET)
            try:
                assert waiting.result(LIMIT_S).after == 7
            finally:
                observer.close()


def test_a_watching_command_continues_with_a_new_client() -> None:
    """If an exception ends kazoo's loop, `--watch` shows the error, and then what has changed."""
    with (
        FakeZooKeeper() as zookeeper,
        peer_of(zookeeper.connect) as client,
        Spoiler(zookeeper.connect) as proxy,
    ):
        client.create(paths.group("old"), makepath=True)
        watched = ("groups", "list", "--watch", "--interval", "0.2", "-z", proxy.address)
        with Terminal(sys.executable, "-m", "zkconsumer", *watched, environ={}) as one:
            one.read_until(lambda written: b"old" in written)
            proxy.spoil.set()
            one.read_until(lambda written: b"xids do not match" in written)
            client.create(paths.group("new"))
            one.read_until(lambda written: b"new" in written)


def test_top_continues_with_a_new_client() -> None:
    """If an exception ends kazoo's loop, `top` reports the error, and then lists new groups."""
    with (
        FakeZooKeeper() as zookeeper,
        peer_of(zookeeper.connect) as client,
        Spoiler(zookeeper.connect) as proxy,
        ThreadPoolExecutor() as pool,
    ):
        client.create(paths.group("old"), makepath=True)
        names, faults = set[str](), list[str]()
        feed = Feed(Connection(zookeeper=proxy.address), interval_s=0.1)
        running = pool.submit(
            feed.run, lambda rows, _: names.update(one.name for one in rows), print, faults.append
        )
        try:
            eventually(lambda: "old" in names)
            proxy.spoil.set()
            eventually(lambda: any("xids do not match" in fault for fault in faults))
            client.create(paths.group("new"))
            eventually(lambda: "new" in names)
        finally:
            feed.stop()
        running.result(LIMIT_S)


def test_an_observer_whose_credential_is_refused_says_so(
    guarded: Guarded, spoiler: Spoiler
) -> None:
    """If the server refuses the login, the changes end with the error."""
    config = guarded.config("g", spoiler.address)
    with Observer(spoiler.address, "g", timeout_s=LIMIT_S, config=config) as observer:
        changes = observer.changes()
        _next(changes, ChangeKind.READ)
        spoiler.logins = 1
        spoiler.cut()
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(_next, changes, ChangeKind.OWNER)
            try:
                with pytest.raises(AccessDeniedError, match="refused the credential"):
                    waiting.result(LIMIT_S)
                with pytest.raises(AccessDeniedError):
                    next(observer.changes())
            finally:
                observer.close()
