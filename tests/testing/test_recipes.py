"""kazoo's recipes and kazoo's own test-suite run against the fake ZooKeeper."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.wait import LIMIT_S, eventually

from zkconsumer.testing import FakeZooKeeper

SUITE_S = 280
"""Seconds that kazoo's own tests may take on a busy machine; they take about 60 s."""

SUITE = (
    *("barrier", "client", "connection", "counter", "election", "interrupt", "lease", "lock"),
    *("partitioner", "party", "queue", "watchers"),
)
"""kazoo's modules of tests, without those of other handlers, and without `cache`, which needs a
package (objgraph) that counts Python's objects."""

LACKING = (
    "TestSSLClient",  # TLS
    "TestReconfig",  # reconfig, which changes the servers of an ensemble
    "TestReadOnlyMode",  # a second server
    "test_update_host_list",  # a second server
    # Not lacking: this test fails if a server has answered before the client drops the connection.
    "test_connection_dropped",
)
"""Tests of what the fake lacks, and a test that is a race."""


@pytest.fixture
def clients() -> Iterator[tuple[KazooClient, KazooClient]]:
    """Two clients of a fake server."""
    with FakeZooKeeper() as server:
        one, two = KazooClient(server.connect), KazooClient(server.connect)
        for client in (one, two):
            client.start(LIMIT_S)
        yield one, two
        for client in (one, two):
            client.stop()
            client.close()


def test_a_lock_is_held_by_one_client(clients: tuple[KazooClient, KazooClient]) -> None:
    """The second client gets the lock when the first one releases it."""
    first, second = (client.Lock("/lock", str(n)) for n, client in enumerate(clients))
    assert first.acquire(timeout=LIMIT_S)
    taken = threading.Event()

    def wait() -> None:
        second.acquire()
        taken.set()

    threading.Thread(target=wait, daemon=True).start()
    eventually(lambda: first.contenders() == ["0", "1"])
    assert not taken.is_set()
    first.release()
    assert taken.wait(LIMIT_S)
    second.release()


def test_an_election_has_the_next_leader(clients: tuple[KazooClient, KazooClient]) -> None:
    """The second candidate leads when the first one has finished, not before."""
    elections = [client.Election("/election", str(n)) for n, client in enumerate(clients)]
    leaders: list[int] = []
    may_end = threading.Event()

    def lead(number: int) -> None:
        leaders.append(number)
        may_end.wait(LIMIT_S)

    threads = [
        threading.Thread(target=election.run, args=(lead, number))
        for number, election in enumerate(elections)
    ]
    threads[0].start()
    eventually(lambda: leaders == [0])
    threads[1].start()
    eventually(lambda: elections[0].contenders() == ["0", "1"])
    assert leaders == [0]
    may_end.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert leaders == [0, 1]


def test_a_counter_loses_no_increment(clients: tuple[KazooClient, KazooClient]) -> None:
    """Two clients count at the same time; each lost race is tried again."""

    def count(client: KazooClient) -> None:
        counter = client.Counter("/counter")
        for _ in range(20):
            counter += 1

    threads = [threading.Thread(target=count, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert clients[0].Counter("/counter").value == 40


@pytest.mark.parametrize("release", ["3.4.14", "3.8.4"])
def test_kazoos_own_tests(tmp_path: Path, release: str) -> None:
    """kazoo's test-suite passes, except the tests of what the fake lacks."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "kazoo_on_fake"),
            *("-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", os.devnull),
            *("-k", " and ".join(f"not {name}" for name in LACKING)),
            *("--pyargs", *(f"kazoo.tests.test_{name}" for name in SUITE)),
        ],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "ZOOKEEPER_VERSION": release},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SUITE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
