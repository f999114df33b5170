"""A fake broker says of itself what a real broker of its release says."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import pytest
from kazoo.client import KazooClient
from support.kafka.offsets import Wire, header
from support.zk.client import peer_of

from zkconsumer.sandbox import Sandbox
from zkconsumer.testing import FakeCluster

# Only brokers send these versions of AddPartitionsToTxn, so a fake broker does not offer them.
BROKERS_ONLY = {24: 3}
API_VERSIONS = 18


def offered(address: str) -> dict[int, tuple[int, int]]:
    """Return the lowest and the highest version of each request that a broker offers."""
    wire = Wire(address)
    answer = wire.ask(header(API_VERSIONS, 0))
    wire.close()
    _, error, count = struct.unpack_from(">ihi", answer)
    assert error == 0
    ranges = struct.iter_unpack(">hhh", answer[10 : 10 + 6 * count])
    return {api: (lowest, highest) for api, lowest, highest in ranges}


@pytest.mark.real("it compares the fake broker with a real one")
@pytest.mark.since("0.10.2.2")
def test_the_offered_versions(cluster: Sandbox) -> None:
    """For each request that it serves, the fake offers the versions of the real broker."""
    theirs = offered(cluster.bootstrap)
    with FakeCluster(release=cluster.broker.release) as fake:
        ours = offered(fake.bootstrap)
    assert ours
    for api, versions in ours.items():
        lowest, highest = theirs[api]
        assert (api, versions) == (api, (lowest, min(highest, BROKERS_ONLY.get(api, highest))))


def znodes(client: KazooClient, topic: str) -> dict[str, str | None]:
    """Return the payloads of the brokers' znodes, without what differs between two clusters."""
    found: dict[str, str | None] = {}
    todo = ["/"]
    while todo:
        path = todo.pop()
        data, stat = client.get(path)
        text = None if data is None else data.decode()
        if text is not None:
            text = re.sub(r"\d{4,}", "N", text)  # ports and times
            text = re.sub(r'id":"[\w-]{22}', 'id":"ID', text)
            text += " ephemeral" * bool(stat.ephemeralOwner)
        found[path] = text
        for name in client.get_children(path):
            below = f"{path.rstrip('/')}/{name}"
            # Other tests share the real servers: their topics and groups are not compared.
            is_other = below.startswith(("/brokers/topics/", "/config/topics/")) and (
                below.split("/")[3] != topic
            )
            if not is_other and not below.startswith(("/zookeeper", "/consumers/")):
                todo.append(below)
    return found


@pytest.mark.real("it compares the fake broker with a real one")
def test_the_znodes(cluster: Sandbox, unique: Callable[[str], str]) -> None:
    """A fake cluster writes the znodes of a real one: same paths, payloads and ephemeral znodes."""
    topic = unique("znodes")
    trees = []
    with FakeCluster(release=cluster.broker.release) as fake:
        for servers in (cluster, fake):
            servers.create_topic(topic, partitions=2)
            with peer_of(servers.zookeeper_connect) as client:
                trees.append(znodes(client, topic))
    theirs, ours = trees
    # A real broker of 3.9 has reserved producer ids if a producer of another test has asked.
    for tree in trees:
        tree["/latest_producer_id_block"] = None
    assert ours == theirs
