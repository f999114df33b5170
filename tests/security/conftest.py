"""Members that authenticate on the shared servers, and on servers with TLS and SASL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient
from support.members.group import Group, group_on
from support.zk.secure import SecureZooKeeper

from zkconsumer.sandbox import BrokerServer, Sandbox
from zkconsumer.sandbox.zookeeper import DEFAULT_ZOOKEEPER


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group of its own, with a topic of four partitions of ten messages each."""
    with group_on(sandbox, unique, partitions=4) as one:
        yield one


@pytest.fixture(scope="session")
def secure(
    tmp_path_factory: pytest.TempPathFactory, zookeeper_release: str
) -> Iterator[SecureZooKeeper]:
    """A ZooKeeper that requires client certificates, in which a broker is registered."""
    # ZooKeeper 3.4 has no TLS for clients.
    release = DEFAULT_ZOOKEEPER if zookeeper_release.startswith("3.4.") else zookeeper_release
    with SecureZooKeeper(tmp_path_factory.mktemp("secure"), release=release) as server:
        yield server


@pytest.fixture(scope="session")
def secure_broker(
    secure: SecureZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerServer]:
    """A broker that is registered in the secure ZooKeeper, to which it connects by a plain port."""
    directory = tmp_path_factory.mktemp("secure-broker")
    with BrokerServer(directory, zookeeper_connect=secure.plain.connect) as broker:
        yield broker


@pytest.fixture
def clients() -> Iterator[Callable[..., KazooClient]]:
    """Start clients; they are stopped at the end of the test."""
    with ExitStack() as stack:

        def start(connect: str, user: str = "") -> KazooClient:
            client = KazooClient(connect, auth_data=[("digest", user)] if user else None)
            client.start(60)
            stack.callback(client.close)
            stack.callback(client.stop)
            return client

        yield start
