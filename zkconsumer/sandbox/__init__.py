"""Real servers on this machine: ZooKeeper, and Kafka brokers in ZooKeeper mode.

    with Sandbox() as sandbox:
        sandbox.create_topic("orders", partitions=12)
        sandbox.produce("orders", ["first", "second"], key="customer-7")
        print(sandbox.zookeeper_connect, sandbox.bootstrap)

The extra `zkconsumer[sandbox]` is required, and a network until the jars are in the user's cache.
Every failure is a `SandboxError` whose text is one line.
"""

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox.broker import RELEASES, BrokerServer
from zkconsumer.sandbox.sandbox import Sandbox
from zkconsumer.sandbox.topics import PartitionPlacement, Placed
from zkconsumer.sandbox.zookeeper import ZOOKEEPER_RELEASES, ZooKeeperEnsemble, ZooKeeperServer

__all__ = [
    "RELEASES",
    "ZOOKEEPER_RELEASES",
    "BrokerServer",
    "PartitionPlacement",
    "Placed",
    "Sandbox",
    "SandboxError",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]
