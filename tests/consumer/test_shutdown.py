"""A shutdown first leaves the group, ends each part in time, and leaves nothing open."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.security import make_acl
from support.members.group import Group, MemberUnderTest
from support.wait import LIMIT_S, eventually
from support.zk.proxies import Proxy, Wire

from zkconsumer.consumer import group_member
from zkconsumer.consumer.listener import Callbacks, ListenerThread, merged, without_unseen
from zkconsumer.errors import AccessDeniedError, ZkConsumerError
from zkconsumer.kafka.columns import fetcher as columns
from zkconsumer.kafka.columns.fetcher import RecordFetcher
from zkconsumer.member.commands import Callback, CallListener
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition

SESSION_S = 240.0
# Time limit on a busy machine, in seconds; the session may need 3 s and the clients 5 s. A shutdown
# that waits for a client or for ZooKeeper takes longer: LIMIT_S, or the lease of the session.
SOON_S = 50.0
READ_ONLY = [make_acl("world", "anyone", read=True)]


@pytest.fixture
def proxy(group: Group) -> Iterator[Proxy]:
    with Proxy(group.sandbox.zookeeper_connect) as one:
        yield one


def took(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_the_group_is_left_before_the_clients_are_closed(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Broker clients that do not close are named; they delay neither the leave nor the shutdown."""
    ids, free = paths.ids(group.name), threading.Event()
    members_at_close: list[list[str]] = []

    class SlowToClose(RecordFetcher):
        def close(self) -> None:
            members_at_close.append(group.admin.get_children(ids))
            free.wait(LIMIT_S)
            super().close()

    monkeypatch.setattr(columns, "RecordFetcher", SlowToClose)
    one = group.join(threads=4, auto_commit_interval_s=60.0)
    try:
        one.settled(0, 1, 2, 3)
        eventually(lambda: sum(len(reader.messages) for reader in one.readers) == 40)
        for reader in one.readers:
            reader.free.clear()  # Each user leaves the next message unfinished.
        for partition in range(4):
            group.sandbox.produce(group.topic, 1, partition=partition)
        eventually(lambda: sum(len(reader.messages) for reader in one.readers) == 44)
        assert took(one.connector.shutdown) < SOON_S
        assert members_at_close == [[]] * 4
        assert [group.stored(partition) for partition in range(4)] == ["11"] * 4
        named = [text for text in caplog.messages if "these are still running" in text]
        assert len(named) == 1 and named[0].count("the broker client of Stream(") == 4
    finally:
        free.set()
    eventually(lambda: not [t for t in threading.enumerate() if "-close-" in t.name])


def test_a_silent_zookeeper(group: Group, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    """If ZooKeeper does not answer, a shutdown without a commit does not wait for it."""
    one = group.join(
        zookeeper_connect=proxy.address,
        zookeeper_session_timeout_s=SESSION_S,
        auto_commit_enable=False,
    )
    one.settled(0, 1, 2, 3)
    proxy.wire = Wire.SILENT
    assert took(one.connector.shutdown) < SOON_S
    assert "these are still running: the connection to ZooKeeper" in caplog.text


def test_a_host_name_that_is_being_resolved(
    group: Group, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system takes long to resolve a host name, the shutdown does not wait for it."""
    resolve, asked, free = socket.getaddrinfo, threading.Event(), threading.Event()
    hangs = threading.Event()

    def slowly(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "slow.invalid":
            if hangs.is_set():
                asked.set()
                free.wait(LIMIT_S)
            raise socket.gaierror(socket.EAI_AGAIN, "a name server does not answer")
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    one = group.join(
        zookeeper_connect=f"{proxy.address},slow.invalid:2181",
        auto_commit_enable=False,
        zookeeper_session_timeout_s=SESSION_S,
    )
    try:
        one.settled(0, 1, 2, 3)
        hangs.set()
        proxy.cut()
        assert asked.wait(LIMIT_S)
        assert took(one.connector.shutdown) < SOON_S
    finally:
        free.set()


# ---- joins that fail ----------------------------------------------------------------------------


def _open_files() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return found


class Listener:
    def before_releasing_partitions(self, partitions: Any) -> None: ...
    def before_starting_fetchers(self, consumer_id: str, assignment: Any) -> None: ...


@pytest.mark.parametrize("fails", ["the settings", "the registration"])
def test_a_join_that_fails_leaves_nothing_open(
    group: Group, proxy: Proxy, tmp_path: Any, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a join has failed, neither the trace file nor the listener's thread is left open."""
    trace = tmp_path / "trace"
    one: MemberUnderTest = group.member(
        zookeeper_connect=proxy.address,
        trace_file=str(trace),
        peers_release="auto" if fails == "the settings" else "0.9",
    )
    one.connector.set_consumer_rebalance_listener(Listener())
    if fails == "the settings":
        monkeypatch.setattr(group_member, "REPLY_S", 3.0)
        proxy.wire = Wire.SILENT
        proxy.cut()
    else:
        group.admin.ensure_path(paths.ids(group.name))
        group.admin.set_acls(paths.ids(group.name), READ_ONLY)
    with pytest.raises(ZkConsumerError) as caught:
        one.subscribe(group.topic)
    assert isinstance(caught.value, AccessDeniedError) == (fails == "the registration")
    assert str(trace) not in _open_files()
    name = f"{one.connector.consumer_id}-rebalance-listener"
    eventually(lambda: name not in [thread.name for thread in threading.enumerate()])
    proxy.wire = Wire.PASS


# ---- a listener that hangs ----------------------------------------------------------------------


def _call(op: int, callback: Callback, *numbers: int) -> CallListener:
    return CallListener(op, callback, {TopicPartition("t", n): f"g_m-{op}" for n in numbers})


def test_calls_that_wait_for_a_listener_are_merged() -> None:
    """At most three calls wait: releases are merged, and a new assignment replaces an old one."""
    released, assigned = Callback.RELEASING, Callback.STARTING
    waiting: list[CallListener] = []
    for op in range(0, 100, 2):
        waiting = merged([*waiting, _call(op, released, op)])
        assert len(waiting) <= 3
        waiting = merged([*waiting, _call(op + 1, assigned, op)])
    first, second = waiting
    assert (first.op, first.callback, len(first.partitions)) == (98, released, 50)
    assert second == _call(99, assigned, 98)
    assert merged([*waiting, _call(100, released, 1)])[2] == _call(100, released, 1)


def test_a_partition_that_was_never_announced_is_not_taken_back() -> None:
    """Waiting on_assigned calls lose the partitions that a later on_revoked or on_lost names."""
    seen = _call(0, Callback.REVOKED, 1)
    waiting = [seen, _call(0, Callback.ASSIGNED, 2, 3)]
    assert without_unseen([*waiting, _call(0, Callback.LOST, 2)]) == [
        seen,
        _call(0, Callback.ASSIGNED, 3),
    ]
    assert without_unseen([*waiting, _call(0, Callback.REVOKED, 2, 3, 4)]) == [
        seen,
        _call(0, Callback.REVOKED, 4),
    ]
    # The member waits for the call of its shutdown, even if no partition is left.
    assert without_unseen([*waiting, _call(9, Callback.REVOKED, 2, 3)])[1:] == [
        CallListener(9, Callback.REVOKED, {})
    ]


def test_a_listener_that_hangs_has_a_bounded_queue() -> None:
    """If a thousand calls wait for a running call, only the last one of each kind is made."""
    entered, free = threading.Event(), threading.Event()
    calls: list[tuple[str, int]] = []

    class Hanging(Listener):
        def before_releasing_partitions(self, partitions: Any) -> None:
            calls.append(("released", len(partitions.get("t", ()))))
            entered.set()
            free.wait(LIMIT_S)

        def before_starting_fetchers(self, consumer_id: str, assignment: Any) -> None:
            calls.append(("assigned", len(assignment["t"])))

    ended: list[Any] = []
    thread = ListenerThread(Hanging(), "g_m", post=ended.append, clock=time.monotonic)
    thread.start()
    thread.call(_call(1, Callback.RELEASING))
    assert entered.wait(LIMIT_S)
    dropped = 0
    for op in range(2, 1002, 2):
        dropped += thread.call(_call(op, Callback.RELEASING, op))
        dropped += thread.call(_call(op + 1, Callback.STARTING, op))
    free.set()
    eventually(lambda: len(ended) == 3)
    thread.close()
    assert calls == [("released", 0), ("released", 500), ("assigned", 1)]
    assert ([one.op for one in ended], dropped) == ([1, 1000, 1001], 998)


def test_a_callback_that_exits_is_reported_and_the_next_callback_is_called() -> None:
    """If a callback calls sys.exit, the member gets the error, and later callbacks still run."""
    revoked: list[list[TopicPartition]] = []
    ended: list[Any] = []
    callbacks = Callbacks(on_assigned=lambda _: sys.exit("no disk"), on_revoked=revoked.append)
    thread = ListenerThread(None, "g_m", callbacks=callbacks, post=ended.append, clock=time.time)
    thread.start()
    thread.call(_call(0, Callback.ASSIGNED, 1))
    eventually(lambda: len(ended) == 1)
    thread.call(_call(7, Callback.REVOKED, 1))
    eventually(lambda: len(ended) == 2)
    thread.close()
    assert [one.outcome.error for one in ended] == ["SystemExit: no disk", ""]
    assert revoked == [[TopicPartition("t", 1)]]
