"""Bad input causes an error or a waiting state with a reason; no message is lost."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl
from support.members.group import SETTINGS, Group, MemberUnderTest
from support.scenes import scenes
from support.wait import LIMIT_S, eventually
from support.zk.client import peer_of
from support.zk.proxies import RawProxy

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.consumer.status import TROUBLE_S
from zkconsumer.errors import (
    AccessDeniedError,
    ChrootMissingError,
    CommitError,
    ConfigError,
    ConnectorClosedError,
    ConsumerIdTakenError,
    DecodeError,
    InvalidNameError,
    MalformedZnodeError,
    MessageStreamsExistError,
    ZooKeeperUnreachableError,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import session_text
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import Sandbox, ZooKeeperServer

READ_ONLY = [make_acl("world", "anyone", read=True)]
HOSTILE = {
    "no JSON": b"hello",
    "empty": b"",
    "deep nesting": b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "huge integer": b'{"version":1,"subscription":{"t":' + b"9" * 5_000 + b'},"pattern":"static"}',
    "wrong types": b'{"version":"1","subscription":["t"],"pattern":7,"timestamp":{}}',
    "no streams": b'{"version":1,"subscription":{"t":0},"pattern":"static"}',
    "a text for a count": b'{"version":1,"subscription":{"t":"1"},"pattern":"static"}',
    "a topic that is a path": b'{"version":1,"subscription":{"../x":1},"pattern":"static"}',
    "one MiB": b'{"x":"' + b"a" * 1_000_000 + b'"}',
    "not UTF-8": b"\xff\xfe\xfd",
}


# ---- peers --------------------------------------------------------------------------------------


def test_hostile_registrations_are_named_and_harmless(group: Group) -> None:
    """If JVM members cannot parse a peer's registration, it is named; all messages arrive."""
    one = group.join()
    one.read(40)
    for name, payload in HOSTILE.items():
        group.admin.create(paths.member(group.name, name), payload, ephemeral=True)
    eventually(lambda: one.status.malformed_peers.keys() == HOSTILE.keys())
    one.settled(0, 1, 2, 3)
    # Each notice is counted separately, so wait until all are counted.
    eventually(lambda: one.counted.get("malformed_peer") == len(HOSTILE))
    assert all(why for why in one.status.malformed_peers.values())
    group.sandbox.produce(group.topic, 1, partition=2)
    one.read(41)
    group.admin.delete(paths.member(group.name, "no JSON"))
    eventually(lambda: "no JSON" not in one.status.malformed_peers)
    assert one.readers[0].errors == []


def test_a_repaired_registration_joins_the_assignment(group: Group) -> None:
    """If a peer's malformed registration is replaced by a correct one, the peer gets its share."""
    one = group.join()
    path = paths.member(group.name, "zzz")
    group.admin.create(path, b"{", ephemeral=True)
    eventually(lambda: "zzz" in one.status.malformed_peers)
    group.admin.delete(path)
    sound = encode_registration(Registration({group.topic: 1}, timestamp_ms=1))
    group.admin.create(path, sound, ephemeral=True)
    one.settled(0, 1)


def test_a_registration_without_a_payload_gets_its_share_when_it_has_one(group: Group) -> None:
    """kafka-node registers empty and writes the payload with a second request; no refresh waits."""
    one = group.join(zookeeper_session_timeout_s=LIMIT_S)
    one.settled(0, 1, 2, 3)
    path = paths.member(group.name, "aaa")
    group.admin.create(path, None, ephemeral=True)
    eventually(lambda: "aaa" in one.status.malformed_peers)
    payload = encode_registration(Registration({group.topic: 1}, timestamp_ms=1))
    group.admin.set(path, payload)
    one.settled(2, 3)
    assert not one.status.malformed_peers


# ---- topics, owners, offsets --------------------------------------------------------------------


def test_a_member_waits_for_the_repair_of_a_topic_node(
    zookeeper: ZooKeeperServer, group: Group, unique: Callable[[str], str]
) -> None:
    """While JVM members cannot parse a topic's znode, the stream names it; nothing is claimed."""
    with scenes(zookeeper, unique("bad")) as scene:
        scene.put(paths.topic("t"), b'{"version":1,"partitions":[0]}')
        one = group.member(zookeeper_connect=scene.connect)
        one.subscribe("t")
        eventually(lambda: "t" in one.status.waiting_for)
        eventually(lambda: one.readers[0].errors)
        (error,) = one.readers[0].errors
        assert isinstance(error, MalformedZnodeError)
        assert error.where == "t"
        assert one.owned == set()


def test_a_malformed_topic_node_stops_no_owned_partition(group: Group) -> None:
    """If a topic's znode becomes malformed, owned partitions continue, and no message repeats."""
    one = group.join()
    one.read(40)
    path = paths.topic(group.topic)
    sound = group.admin.get(path)[0]
    group.admin.set(path, b"[]")
    eventually(lambda: group.topic in one.status.waiting_for)
    assert one.owned == {0, 1, 2, 3}
    group.admin.set(path, sound)
    one.settled(0, 1, 2, 3)
    assert one.status.waiting_for == ""
    assert len(one.readers[0].messages) == 40


def test_an_unreadable_owner_node_blocks_its_partition(group: Group) -> None:
    """An owner znode that cannot be decoded blocks its partition, and is named."""
    group.admin.create(group.owner(0), b"\xff\x00\xfe" * 50, ephemeral=True, makepath=True)
    one = group.join(rebalance_max_retries=1)
    eventually(lambda: one.counted.get("rebalance_blocked"))
    assert one.owned == {1, 2, 3}
    assert group.tp(0) in one.status.blocked
    group.admin.delete(group.owner(0))
    one.read(40)


@pytest.mark.parametrize("payload", [b"3\n", b"9" * 30, b"x" * 9999])
def test_a_malformed_offset_is_reported_and_left(group: Group, payload: bytes) -> None:
    """If a stored offset is malformed, the partition is claimed but not fetched before a repair."""
    group.write(1, payload)
    one = group.join(auto_commit_interval_s=0.1)
    eventually(lambda: one.readers[0].errors)
    (error,) = one.readers[0].errors
    assert isinstance(error, MalformedZnodeError)
    assert group.offset(1) in str(error)
    one.read(30)
    one.connector.commit_offsets()
    assert one.readers[0].offsets(1) == []
    assert one.owned == {0, 1, 2, 3}
    assert one.status.unreadable_offsets == {group.tp(1)}
    assert group.admin.get(group.offset(1))[0] == payload
    group.write(1, b"4")
    eventually(lambda: one.readers[0].offsets(1) == list(range(4, 10)))
    assert one.status.unreadable_offsets == frozenset()


def test_a_commit_names_a_malformed_offset(group: Group) -> None:
    """If the offset znode of an owned partition becomes malformed, each commit names it."""
    one = group.join(auto_commit_enable=False)
    one.read(40)
    one.connector.commit_offsets()
    group.write(3, b"ten")
    group.sandbox.produce(group.topic, 1, partition=3)
    one.read(41)
    for _ in range(2):
        with pytest.raises(CommitError, match=str(group.tp(3))):
            one.connector.commit_offsets()
    assert group.stored(3) == "ten"
    group.write(3, b"5")
    one.connector.commit_offsets()
    assert group.stored(3) == "11"


def test_an_offset_beyond_the_end_is_reset_by_policy(group: Group) -> None:
    """`auto.offset.reset` replaces a stored offset outside the log, and the result is committed."""
    group.write(0, b"9223372036854775807")
    one = group.join()
    one.read(40)
    one.connector.commit_offsets()
    assert group.stored(0) == "10"


# ---- rights -------------------------------------------------------------------------------------


def test_without_rights_on_ids_the_streams_are_refused(group: Group) -> None:
    """If the member may not register, the error names the znode, and the member ends."""
    group.admin.ensure_path(paths.ids(group.name))
    group.admin.set_acls(paths.ids(group.name), READ_ONLY)
    one = group.member()
    with pytest.raises(AccessDeniedError, match=paths.ids(group.name)):
        one.connector.create_message_streams({group.topic: 1})


def test_without_rights_on_owners_the_stream_raises_one_error(group: Group) -> None:
    """If the member may not claim, its stream gets one error, and the member keeps trying."""
    path = paths.owners_of(group.name, group.topic)
    group.admin.ensure_path(path)
    group.admin.set_acls(path, [make_acl("world", "anyone", read=True, admin=True)])
    one = group.join(rebalance_backoff_s=0.05)
    eventually(lambda: one.counted.get("denied", 0) >= 20 and one.readers[0].errors)
    assert [type(error) for error in one.readers[0].errors] == [AccessDeniedError]
    assert one.status.refused.keys() <= {group.tp(p) for p in range(4)}
    group.admin.set_acls(path, [make_acl("world", "anyone", all=True)])
    one.read(40)
    one.settled(0, 1, 2, 3)


def test_without_rights_on_offsets_a_commit_names_them(group: Group) -> None:
    """If the member may not write one offset, the commit names it and stores the others."""
    for partition in range(4):
        group.write(partition, b"0")
    group.admin.set_acls(group.offset(2), READ_ONLY)
    one = group.join()
    one.read(40)
    with pytest.raises(CommitError, match=str(group.tp(2))) as caught:
        one.connector.commit_offsets()
    assert "1 offsets were not committed" in str(caught.value)
    assert [group.stored(p) for p in range(4)] == ["10", "10", "0", "10"]


# ---- connecting ---------------------------------------------------------------------------------


def _config(connect: str, **settings: object) -> ConsumerConfig:
    return ConsumerConfig(group_id="g", zookeeper_connect=connect, **(dict(SETTINGS) | settings))


def test_an_unreachable_zookeeper_is_an_error_in_time() -> None:
    """If no ZooKeeper server accepts or answers, an error names the address in time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        # A member that waited for the session timeout would not end within the test's time limit.
        began, patient = time.monotonic(), {"zookeeper_session_timeout_s": 3600.0}
        with pytest.raises(ZooKeeperUnreachableError, match=address):
            ConsumerConnector(_config(address, zookeeper_connection_timeout_s=0.3, **patient))
        assert time.monotonic() - began >= 0.3
    with pytest.raises(ZooKeeperUnreachableError, match=address):
        ConsumerConnector(_config(address, zookeeper_connection_timeout_s=0.3))


def test_a_chroot_that_does_not_exist_is_an_error(
    zookeeper: ZooKeeperServer, unique: Callable[[str], str]
) -> None:
    """ZKPathTest.testCreatePersistentPathThrowsException: a wrong chroot is named, not created."""
    chroot = unique("nowhere")
    with pytest.raises(ChrootMissingError, match=chroot):
        ConsumerConnector(_config(f"{zookeeper.connect}/{chroot}"))
    with pytest.raises(ChrootMissingError, match=chroot):
        ConsumerConnector(_config(f"{zookeeper.connect}/{chroot}"))


# The servers' ticks take 0.1 s. The connection's time limit is the session timeout by default.
TWO_TICKS = {"zookeeper_session_timeout_s": 0.2, "zookeeper_connection_timeout_s": LIMIT_S}


def test_a_session_timeout_under_three_ticks_is_refused(zookeeper: ZooKeeperServer) -> None:
    """If the session timeout is under three ticks, too short for the lease, the error says so."""
    with pytest.raises(ConfigError, match="three ticks"):
        ConsumerConnector(_config(zookeeper.connect, **TWO_TICKS))


class _DeafOnce(RawProxy):
    """Does not pass on the first question about the server's settings."""

    asked = 0

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        first = self._receive(client)
        self.asked += first == b"conf"
        if first != b"conf" or self.asked > 1:
            self._send(server, first)
        super()._requests(client, server)


def test_a_slow_answer_about_the_tick_is_requested_again(zookeeper: ZooKeeperServer) -> None:
    """A busy server that does not answer within the session timeout is asked for its tick again."""
    with _DeafOnce(zookeeper.connect) as proxy:
        with pytest.raises(ConfigError, match="three ticks"):
            ConsumerConnector(_config(proxy.address, **TWO_TICKS))
        assert proxy.asked >= 2  # A busy server may be asked several times.


def test_a_server_that_hides_its_tick_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the server forbids `conf`, the session timeout is not checked, and a warning says so."""
    settings = {"4lw.commands.whitelist": "srvr"}
    with ZooKeeperServer(tmp_path, tick_time_s=2.0, settings=settings) as server:
        ConsumerConnector(_config(server.connect)).shutdown()
    said = [one.getMessage() for one in caplog.records if "tickTime" in one.getMessage()]
    assert len(said) == 1
    assert server.connect in said[0]
    assert "three ticks" in said[0]


# ---- no brokers ---------------------------------------------------------------------------------


@pytest.fixture
def brokerless(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """A ZooKeeper chroot that no broker has used."""
    with peer_of(zookeeper.connect) as client:
        yield client


def test_a_member_waits_for_the_first_broker(
    zookeeper: ZooKeeperServer, brokerless: KazooClient, group: Group, sandbox: Sandbox
) -> None:
    """If no broker is registered the member waits, and says why, until a broker registers."""
    with Elsewhere(brokerless, group, sandbox, zookeeper) as one:
        eventually(lambda: "no brokers" in one.status.waiting_for)
        eventually(lambda: "no brokers" in one.readers[0].stream.waiting_for)
        assert (one.status.phase, one.readers[0].errors) == ("waiting", [])
        for number in group.admin.get_children(paths.BROKER_IDS):
            data = group.admin.get(paths.broker(number))[0]
            brokerless.create(paths.broker(number), data, ephemeral=True, makepath=True)
        one.read(40)
        one.settled(0, 1, 2, 3)
        for number in brokerless.get_children(paths.BROKER_IDS):
            brokerless.delete(paths.broker(number))
        # The group is read again when a member joins; a lack of brokers releases no partition.
        brokerless.create(paths.member(group.name, "zzz"), b"{", ephemeral=True)
        eventually(lambda: "no brokers" in one.status.waiting_for)
        assert one.owned == {0, 1, 2, 3}


class Elsewhere:
    """A member on a ZooKeeper that knows the sandbox's topic but none of its brokers."""

    def __init__(
        self, client: KazooClient, group: Group, sandbox: Sandbox, zookeeper: ZooKeeperServer
    ) -> None:
        client.ensure_path(paths.TOPICS)
        client.create(paths.topic(group.topic), group.admin.get(paths.topic(group.topic))[0])
        settings = dict(SETTINGS) | {"group_id": group.name}
        self.one = MemberUnderTest(ConsumerConfig(zookeeper_connect=zookeeper.connect, **settings))
        self.topic = group.topic

    def __enter__(self) -> MemberUnderTest:
        self.one.subscribe(self.topic)
        return self.one

    def __exit__(self, *_: object) -> None:
        self.one.close()


# ---- the caller ---------------------------------------------------------------------------------


def test_streams_are_created_once(group: Group) -> None:
    """A second `create_message_streams` raises the JVM's error, and changes nothing."""
    one = group.join()
    with pytest.raises(MessageStreamsExistError):
        one.connector.create_message_streams({group.topic: 1})
    one.read(40)


def test_bad_subscriptions_are_the_callers_errors(group: Group) -> None:
    """Invalid topics and counts are refused before the member registers."""
    one = group.member()
    with pytest.raises(InvalidNameError):
        one.connector.create_message_streams({"a/b": 1})
    with pytest.raises(ConfigError):
        one.connector.create_message_streams({group.topic: 0})
    one.subscribe(group.topic)
    one.read(40)


def test_a_closed_connector_says_so(group: Group) -> None:
    """After two shutdowns, a commit and new streams raise ConnectorClosedError."""
    one = group.join()
    one.close()
    one.close()
    with pytest.raises(ConnectorClosedError):
        one.connector.commit_offsets()
    with pytest.raises(ConnectorClosedError):
        one.connector.create_message_streams({group.topic: 1})
    assert one.status.phase == "closed"


def test_a_taken_consumer_id_is_an_error_in_time(group: Group) -> None:
    """If a live session has this consumer id, joining fails in time; the error names the id."""
    first = group.join("same")
    first.settled(0, 1, 2, 3)
    second = group.member("same", zookeeper_session_timeout_s=2.0)
    with pytest.raises(ConsumerIdTakenError, match="same") as caught:
        second.connector.create_message_streams({group.topic: 1})
    assert f"session {session_text(first.status.session or 0)} is registered" in str(caught.value)
    assert first.owned == {0, 1, 2, 3}
    first.read(40)


def test_a_consumer_id_that_becomes_free_is_taken_over(group: Group) -> None:
    """When the predecessor's id znode is deleted, the member with the same id registers at once."""
    path = paths.member(group.name, f"{group.name}_same")
    group.admin.create(path, b"{}", ephemeral=True, makepath=True)
    second = group.member("same")
    subscribing = threading.Thread(target=second.subscribe, args=(group.topic,), daemon=True)
    subscribing.start()
    eventually(lambda: second.counted.get("consumer_id_taken"))
    group.admin.delete(path)
    subscribing.join(LIMIT_S)
    assert not subscribing.is_alive()
    second.read(40)


def test_a_wrong_decoder_raises_at_the_message(group: Group) -> None:
    """If a decoder fails, the error names the message, and later messages are delivered."""
    one = group.member()
    streams = one.connector.create_message_streams({group.topic: 1}, value_decoder=_fails)
    stream, failed, seen = streams[group.topic][0], 0, 0
    while seen < 40:
        for message in stream.poll(timeout_s=0.5):
            seen += 1
            try:
                _ = message.value
            except DecodeError as error:
                failed += 1
                where = f"{group.topic}-{message.partition} at offset {message.offset}"
                assert where in str(error)
    assert failed == 40
    one.connector.commit_offsets()
    assert [group.stored(p) for p in range(4)] == ["10"] * 4


def test_a_decoder_that_always_fails_keeps_the_lease(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """200,000 decoder errors are counted, few are logged, and none delays a lease or commit."""
    caplog.set_level(logging.WARNING, "zkconsumer")
    one = group.member(zookeeper_session_timeout_s=12.0, consumer_timeout_s=LIMIT_S)
    (stream,) = one.connector.create_message_streams({group.topic: 1}, value_decoder=_fails)[
        group.topic
    ]
    message = next(stream)
    started = time.monotonic()
    for number in range(1, 200_001):
        with pytest.raises(DecodeError) if number % 1000 == 0 else suppress(DecodeError):
            _ = message.value
        if number % 1000 == 0:
            assert one.status.lease_s > 0
            assert one.counted["decode_failed"] == number
    one.connector.commit_offsets(timeout_s=LIMIT_S)
    lines = [record for record in caplog.records if "decoder raised" in record.getMessage()]
    assert len(lines) <= 1 + (time.monotonic() - started) / TROUBLE_S


def _fails(payload: bytes) -> object:
    raise ValueError(f"not mine: {payload!r}")
