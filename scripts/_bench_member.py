"""A process with members for `bench_rebalance`: it executes orders from stdin and answers each one.

`warm GROUP` connects to ZooKeeper, `join` creates the streams and iterates each one in a thread,
`leave` shuts the connectors down. `reads` answers with the number of znodes and listings that the
members have read from ZooKeeper since the last `reads`. The process ends when stdin is closed, so
it does not outlive the benchmark.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.consumer.stream import Stream
from zkconsumer.errors import ZkConsumerError
from zkconsumer.protocol.requests import Children, Exists, Get, Listing
from zkconsumer.zk.session import ZooKeeperSession


class Meter:
    """Counts the reads of all members of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads = 0
        submit = ZooKeeperSession.submit

        def counted(
            session: ZooKeeperSession, batch: Sequence[Any], done: Callable[..., None]
        ) -> None:
            reads = sum(isinstance(one, Get | Exists | Children | Listing) for one in batch)
            with self._lock:
                self._reads += reads
            submit(session, batch, done)

        ZooKeeperSession.submit = counted  # type: ignore[method-assign,assignment]  # it counts

    def taken(self) -> int:
        """Return the reads since the last call."""
        with self._lock:
            reads, self._reads = self._reads, 0
        return reads


def iterate(stream: Stream[bytes, bytes]) -> None:
    """Read until the connector is shut down, as a user does."""
    while True:
        try:
            for _ in stream:
                pass
            return
        except ZkConsumerError as error:
            print(f"{stream.thread_id}: {error}", file=sys.stderr)


def join(connector: ConsumerConnector, topic: str) -> None:
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    threading.Thread(target=iterate, args=(stream,), daemon=True).start()


def serve(options: argparse.Namespace, pool: ThreadPoolExecutor) -> None:
    connectors: list[ConsumerConnector] = []
    meter = Meter()

    def connect(config: ConsumerConfig) -> ConsumerConnector:
        return ConsumerConnector(config)

    for line in sys.stdin:
        match line.split():
            case ["warm", group]:
                config = ConsumerConfig(
                    group_id=group,
                    zookeeper_connect=options.zookeeper,
                    zookeeper_session_timeout_s=options.session_s,
                    fetch_wait_max_s=options.fetch_wait_s,
                    auto_offset_reset="smallest",
                )
                connectors = list(pool.map(connect, [config] * options.members))
            case ["join"]:
                list(pool.map(join, connectors, [options.topic] * options.members))
            case ["leave"]:
                list(pool.map(ConsumerConnector.shutdown, connectors))
            case ["reads"]:
                print(meter.taken(), flush=True)
                continue
            case _:
                raise SystemExit(f"unknown order: {line}")
        print("done", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zookeeper", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--session-s", type=float, required=True)
    parser.add_argument("--fetch-wait-s", type=float, default=0.1)
    options = parser.parse_args()
    with ThreadPoolExecutor(options.members) as pool:
        serve(options, pool)
    os._exit(0)  # the benchmark has ended or needs no clean leave


if __name__ == "__main__":
    main()
