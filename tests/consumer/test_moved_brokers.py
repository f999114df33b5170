"""All brokers change their addresses at the same time while a stream reads."""

from __future__ import annotations

from collections.abc import Callable

from kazoo.client import KazooClient
from support.members.group import SETTINGS, MemberUnderTest, register_broker
from support.wait import eventually

from zkconsumer import ConsumerConfig
from zkconsumer.protocol import paths
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.ports import free_port


def test_a_stream_follows_brokers_that_have_all_moved(
    sandbox: Sandbox, unique: Callable[[str], str], cluster: tuple[KazooClient, str]
) -> None:
    """If all brokers have moved, the stream reads their addresses again, without a rebalance."""
    client, connect = cluster
    topic = unique("moved")
    sandbox.create_topic(topic, partitions=1)
    sandbox.produce(topic, 5, partition=0)
    register_broker(client, 0, f"127.0.0.1:{free_port()}")  # No process listens at this address.
    client.create(paths.topic(topic), b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
    config = ConsumerConfig(group_id="g", zookeeper_connect=connect, **SETTINGS)
    one = MemberUnderTest(config)
    try:
        one.subscribe(topic)
        one.settled(0)
        eventually(lambda: one.counted.get("fetch_trouble"))
        rebalances = one.counted["rebalances"]
        client.delete(paths.broker(0))
        register_broker(client, 1, sandbox.bootstrap)
        one.read(5)
        assert one.readers[0].offsets(0) == list(range(5))
        assert one.counted["rebalances"] == rebalances
    finally:
        one.close()
