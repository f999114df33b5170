"""`zkconsumer bridge`: mistakes that it reports before it changes anything, and how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from cli.conftest import Run, Spawn
from confluent_kafka import Consumer
from kazoo.client import KazooClient
from support.wait import wait_for

from zkconsumer.bridge.brokers import GroupAdmin
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer.connector import ConsumerConnector
from zkconsumer.protocol import paths
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.testing import FakeCluster, owners

MISTAKES = [
    (["run", "nobody"], 1, "group nobody does not exist"),
    (["status", "nobody"], 1, "group nobody does not exist"),
    (["run", "GROUP", "--topic", "nothing"], 2, "the topic does not exist (--topic nothing)"),
    (["run", "GROUP", "--share", "120%"], 2, "120% is not a share between 0% and 100%"),
    (["finish", "GROUP"], 4, "no bridge is active (GROUP)"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[" ".join(one[0]) for one in MISTAKES])
def test_mistakes(
    mistake: tuple[list[str], int, str],
    zookeeper: ZooKeeperServer,
    client: KazooClient,
    unique: Callable[[str], str],
    call: Run,
) -> None:
    """Each mistake has its exit code, and a line that says what is wrong."""
    arguments, code, words = mistake
    group = unique("group")
    client.ensure_path(paths.ids(group))
    given = [group if one == "GROUP" else one for one in arguments]
    found, out, err = call("bridge", *given, "--zookeeper", zookeeper.connect)
    assert (found, out) == (code, "")
    assert words.replace("GROUP", group) in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_nobody_reads_what_the_bridge_says(number: signal.Signals, spawn: Spawn) -> None:
    """A closed standard error ends no bridge; a signal then gives all partitions back."""
    with FakeCluster() as cluster, ExitStack() as stack:
        cluster.create_topic("pay", partitions=4)
        config = ConsumerConfig(zookeeper_connect=cluster.zookeeper_connect, group_id="billing")
        connector = stack.enter_context(ConsumerConnector(config))
        connector.create_message_streams({"pay": 1})
        bridge = spawn("bridge", "run", "billing", "-z", cluster.zookeeper_connect)
        assert bridge.stderr is not None
        settings = {"bootstrap.servers": cluster.bootstrap, "client.id": "new"}
        admin = GroupAdmin(settings, "billing")
        wait_for(lambda: admin.describe().state == "Stable", "the bridge leads")
        bridge.stderr.close()
        consumer = Consumer({**settings, "group.id": "billing", "heartbeat.interval.ms": 500})
        stack.callback(consumer.close)
        consumer.subscribe(["pay"])
        wait_for(lambda: consumer.poll(0.1) or len(consumer.assignment()) == 2, "a share")
        assert bridge.poll() is None
        os.kill(bridge.pid, number)
        wait_for(lambda: consumer.poll(0.1) or bridge.poll() is not None, "the bridge's end")
        assert bridge.returncode == 0
        assert not consumer.assignment()
        found = owners(cluster.zookeeper_connect, "billing")
        assert set(found.values()) == {f"{connector.consumer_id}-0"}
