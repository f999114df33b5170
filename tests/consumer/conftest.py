"""A group on the shared servers, and streams over logs that contain messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient
from support.kafka.streams import Log, Reader, log_cases, opened
from support.members.group import Group, group_on
from support.zk.client import peer_of

from zkconsumer.sandbox import Sandbox


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group; its members leave at the end of the test."""
    with group_on(sandbox, unique, partitions=4) as one:
        yield one


@pytest.fixture
def cluster(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[tuple[KazooClient, str]]:
    """A separate chroot on the sandbox's ZooKeeper; the test registers its brokers."""
    chroot = f"/{unique('moved')}"
    with peer_of(sandbox.zookeeper_connect) as client:
        client.ensure_path(chroot)
        client.chroot = chroot
        yield client, f"{sandbox.zookeeper_connect}{chroot}"


# Number of messages in each partition of a filled log.
MESSAGES = 3000


@pytest.fixture(params=log_cases("memory", "kafka"))
def log(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> Iterator[Log]:
    """A log of three partitions with 3,000 messages each, in memory and on a real broker."""
    with opened(request, unique("filled")) as log:
        for partition in range(3):
            log.append(partition, map(str, range(MESSAGES)))
        yield log


@pytest.fixture
def reader(log: Log) -> Iterator[Reader]:
    """A stream over the log; no partition is granted to it yet."""
    reader = Reader(log)
    yield reader
    reader.stream.close()
