"""The requests to a group's coordinator as bytes: the fake broker understands each of them."""

from __future__ import annotations

import queue
import time

import pytest

from zkconsumer.bridge.brokers import BrokerConnections, GroupAdmin
from zkconsumer.bridge.preflight import check_brokers_group
from zkconsumer.errors import RefusedError
from zkconsumer.later import member_events as ev
from zkconsumer.protocol.later import consumer_protocol
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.later.subscriptions import Subscription
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.testing import FakeCluster

LIMIT_S = 60.0
GROUP = "billing"


class _Client:
    """Sends requests one after the other, and waits for the responses."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._events: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        settings = {"bootstrap.servers": cluster.bootstrap, "client.id": "bridge"}
        self.admin = GroupAdmin(settings, GROUP)
        self.brokers = BrokerConnections(settings, lambda make: self._events.put(make(0.0)))
        self._ids = self.brokers.metadata(LIMIT_S).brokers
        self._number, self.coordinator = 0, self._ids[0]

    def ask(self, request: msg.Request) -> msg.Response:
        """Return the response to a request."""
        self._number += 1
        self.brokers.send(ev.Send(self._number, self.coordinator, request))
        event = self._events.get(timeout=LIMIT_S)
        assert isinstance(event, ev.Answered), event
        assert event.number == self._number
        return event.response

    def find_coordinator(self) -> None:
        """Find the coordinator, which a new cluster does not have at once."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            found = self.ask(msg.FindCoordinator(GROUP))
            assert isinstance(found, msg.FoundCoordinator)
            if found.error is Error.NONE:
                self.coordinator = found.broker
                return
            assert time.monotonic() < deadline


def test_a_member_joins_commits_and_leaves() -> None:
    """Each request of a static member gets the response that the machine expects."""
    with FakeCluster() as cluster:
        cluster.create_topic("t", partitions=2)
        client = _Client(cluster)
        client.find_coordinator()
        metadata = consumer_protocol.encode_subscription(Subscription(("t",)))
        protocols = (msg.Protocol("range", metadata),)
        joined = client.ask(msg.JoinGroup(GROUP, "", protocols, "i", 30.0, 60.0, version=5))
        assert isinstance(joined, msg.Joined)
        assert (joined.error, joined.protocol) == (Error.NONE, "range")
        assert joined.leader == joined.member
        assert [(one.instance, one.metadata) for one in joined.members] == [("i", metadata)]
        member, generation = joined.member, joined.generation
        synced = client.ask(msg.SyncGroup(GROUP, member, generation, {member: b"abc"}, "i"))
        assert synced == msg.Synced(Error.NONE, b"abc")
        tp, other = TopicPartition("t", 0), TopicPartition("t", 1)
        offsets = {tp: OffsetAndMetadata(7, "note")}
        committed = client.ask(msg.OffsetCommit(GROUP, offsets, member, generation, "i"))
        assert committed == msg.OffsetsCommitted(Error.NONE)
        assert client.ask(msg.OffsetFetch(GROUP, (tp, other))) == msg.OffsetsFetched(
            Error.NONE, offsets
        )
        assert client.ask(msg.Heartbeat(GROUP, member, generation, "i")).error is Error.NONE
        assert list(client.admin.describe(LIMIT_S).members) == [member]
        wrong = client.ask(msg.Heartbeat(GROUP, "stranger", generation))
        assert wrong.error is Error.UNKNOWN_MEMBER_ID
        left = client.ask(msg.LeaveGroup(GROUP, (msg.Leaver(member, "i"),)))
        assert left.error is Error.NONE
        assert client.admin.describe(LIMIT_S).members == {}
        client.brokers.close()


def test_a_group_without_a_common_assignor() -> None:
    """Members that offer only an assignor of their own are a reason to refuse, with a remedy."""
    with FakeCluster() as cluster:
        client = _Client(cluster)
        client.find_coordinator()
        protocols = (msg.Protocol("stream", b"its own format"),)
        joined = client.ask(msg.JoinGroup(GROUP, "", protocols, "s", 30.0, 60.0, version=5))
        assert isinstance(joined, msg.Joined)
        generation, member = joined.generation, joined.member
        client.ask(msg.SyncGroup(GROUP, member, generation, {member: b""}, "s"))
        found = client.admin.describe(LIMIT_S)
        with pytest.raises(RefusedError, match="the assignor stream") as refused:
            check_brokers_group(found, GROUP, instance="i", takes_lead=True)
        assert "cooperative-sticky" in (refused.value.remedy or "")
        client.brokers.close()


def test_offsets_are_raised_within_a_generation() -> None:
    """Only higher offsets are stored, and none by a member of an earlier generation."""
    with FakeCluster() as cluster:
        cluster.create_topic("t", partitions=3)
        client = _Client(cluster)
        client.find_coordinator()
        tps = [TopicPartition("t", number) for number in range(3)]
        before = {tps[0]: OffsetAndMetadata(7), tps[1]: OffsetAndMetadata(7)}
        assert client.ask(msg.OffsetCommit(GROUP, before)) == msg.OffsetsCommitted(Error.NONE)
        metadata = consumer_protocol.encode_subscription(Subscription(("t",)))
        protocols = (msg.Protocol("range", metadata),)
        joined = client.ask(msg.JoinGroup(GROUP, "", protocols, "i", 30.0, 60.0, version=5))
        assert isinstance(joined, msg.Joined)
        member, generation = joined.member, joined.generation
        client.ask(msg.SyncGroup(GROUP, member, generation, {member: b""}, "i"))
        wanted = dict(zip(tps, (5, 9, 3), strict=True))
        for number, is_stored in ((generation - 1, False), (generation, True)):
            assert is_stored is client.admin.raise_offsets(
                wanted, member=member, generation=number, instance="i", limit_s=LIMIT_S
            )
        found = client.ask(msg.OffsetFetch(GROUP, tuple(tps)))
        assert isinstance(found, msg.OffsetsFetched)
        assert [found.offsets[tp].offset for tp in tps] == [7, 9, 3]
        client.brokers.close()
