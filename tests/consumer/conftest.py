"""A group on the shared servers, with a topic of four partitions and ten messages in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient
from support.members import Group

from zkconsumer.sandbox import Sandbox


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group whose members leave at the end of the test."""
    topic = unique("rules")
    sandbox.create_topic(topic, partitions=4)
    for partition in range(4):
        sandbox.produce(topic, 10, partition=partition)
    with ExitStack() as stack:
        yield Group(sandbox, unique("group"), topic, stack)


@pytest.fixture
def cluster(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[tuple[KazooClient, str]]:
    """A chroot of its own on the sandbox's ZooKeeper; the test registers its brokers."""
    chroot = f"/{unique('moved')}"
    client = KazooClient(sandbox.zookeeper_connect)
    client.start(60)
    try:
        client.ensure_path(chroot)
        client.chroot = chroot
        yield client, f"{sandbox.zookeeper_connect}{chroot}"
    finally:
        client.stop()
        client.close()
