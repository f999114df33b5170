"""A test of a consumer in a group with a JVM member, without a JVM.

pytest test_beside_jvm.py
"""

from __future__ import annotations

from zkconsumer import ConsumerConfig, ConsumerConnector, TopicPartition
from zkconsumer.testing import Deliveries, FakeCluster, wait_until_settled
from zkconsumer.testing.jvm_peer import JvmPeer

LIMIT_S = 60.0


def test_a_jvm_member_dies() -> None:
    """The consumer takes over the partitions of a JVM member that dies, and misses no message."""
    with FakeCluster(release="1.1.1") as kafka:
        kafka.create_topic("amounts", partitions=4)
        peer = JvmPeer(
            kafka.zookeeper,
            "billing",
            {"amounts": 1},
            end_offset=lambda tp: kafka.log_range(tp.topic, tp.partition)[1],
        )
        peer.join()
        config = ConsumerConfig(
            zookeeper_connect=kafka.zookeeper_connect,
            group_id="billing",
            auto_offset_reset="smallest",
            rebalance_backoff_s=0.1,
        )
        deliveries = Deliveries()
        with ConsumerConnector(config) as connector:
            (stream,) = connector.create_message_streams({"amounts": 1})["amounts"]
            owners = wait_until_settled(kafka.zookeeper_connect, "billing", members=2)
            assert list(owners.values()).count(f"{peer.consumer_id}-0") == 2
            peer.kill()
            kafka.advance(6.1)  # the session timeout of the JVM member
            for partition in range(4):
                kafka.produce("amounts", ["1", "2"], partition=partition)
            while len(deliveries) < 8:
                for message in stream.poll(max_messages=10, timeout_s=LIMIT_S):
                    deliveries.record(message)
            owners = wait_until_settled(kafka.zookeeper_connect, "billing", members=1)
        assert set(owners) == {TopicPartition("amounts", number) for number in range(4)}
        deliveries.check((tp, offset) for tp in owners for offset in range(2))
