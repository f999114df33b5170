"""What tests ask about groups: the helpers say what is missing, lost or delivered twice."""

from __future__ import annotations

import threading

import pytest
from kazoo.security import make_digest_acl
from support.wait import eventually
from support.zk.client import peer_of

from zkconsumer.errors import AccessDeniedError
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.testing import (
    Deliveries,
    FakeCluster,
    FakeZooKeeper,
    Fault,
    Rebalances,
    committed,
    owners,
    wait_until_settled,
)

TP = TopicPartition("t", 0)


def test_lost_and_repeated_messages_are_named() -> None:
    """`check` names lost, repeated and unknown messages; it passes if each came once."""
    deliveries = Deliveries()
    for offset in (0, 1, 1, 9):
        deliveries.record_place("t", 0, offset)
    with pytest.raises(AssertionError) as caught:
        deliveries.check((TP, offset) for offset in range(4))
    assert str(caught.value) == (
        f"2 lost: {TP} offset 2, {TP} offset 3; "
        f"1 delivered more than once: {TP} offset 1; "
        f"1 delivered but not in the log: {TP} offset 9"
    )
    with pytest.raises(AssertionError, match="3 of 4 messages arrived within 0 s"):
        deliveries.wait_for(4, timeout_s=0)
    fine = Deliveries()
    fine.record_place("t", 0, 0)
    fine.wait_for(1)
    fine.check([(TP, 0)])


def test_a_group_that_does_not_settle() -> None:
    """The error of `wait_until_settled` says what the group lacks."""
    with FakeCluster() as kafka:
        where = kafka.zookeeper_connect
        with pytest.raises(AssertionError, match="g has not settled in 0 s: the group does not"):
            wait_until_settled(where, "g", timeout_s=0)
        kafka.create_topic("t")
        registration = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
        kafka.zookeeper.create("/consumers/g/ids/g_a", registration)
        with pytest.raises(AssertionError, match=r"t: no partition has an owner.*1 members, not 2"):
            wait_until_settled(where, "g", members=2, timeout_s=0)
        with pytest.raises(AssertionError, match=r"its members are \['g_a'\], not \['g_b'\]"):
            wait_until_settled(where, "g", members={"g_b"}, timeout_s=0)
        kafka.zookeeper.create("/consumers/g/owners/t/0", b"g_a-0")
        with pytest.raises(AssertionError, match="are persistent"):
            wait_until_settled(where, "g", members={"g_a"}, timeout_s=0)
        kafka.zookeeper.delete("/consumers/g/owners/t/0")
        assert owners(where, "g") == {}
        assert committed(where, "nobody") == {}
        kafka.zookeeper.create("/consumers/g/offsets/t/0", b"7")
        assert committed(where, "g") == {TP: 7}


def test_a_group_that_is_not_read_in_time() -> None:
    """If ZooKeeper is silent, the block of `Rebalances` does not begin, and says so."""
    with FakeZooKeeper() as zookeeper:
        zookeeper.inject(Fault.SILENCE, path="/consumers/g", times=None)
        recorder = Rebalances(zookeeper.connect, "g", timeout_s=0.1)
        with pytest.raises(AssertionError, match=r"group g could not be read in 0\.1 s"), recorder:
            pass


def test_a_group_that_may_no_longer_be_read() -> None:
    """If the owners may not be read, `Rebalances` raises the error, at its begin or its end."""
    nobody = [make_digest_acl("somebody", "else", all=True)]
    with FakeZooKeeper() as zookeeper, peer_of(zookeeper.connect) as client:
        client.create("/consumers/g/owners/t", makepath=True)
        with pytest.raises(AccessDeniedError), Rebalances(zookeeper.connect, "g"):
            client.set_acls("/consumers/g/owners/t", nobody)
            zookeeper.cut()  # after the reconnect, everything is read again
            eventually(lambda: "rebalances of g" not in {one.name for one in threading.enumerate()})
        with pytest.raises(AccessDeniedError), Rebalances(zookeeper.connect, "g"):
            pass
