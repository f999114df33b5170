"""A process with members for `bench_rebalance`: it executes orders from stdin and answers each one.

`warm GROUP` connects to ZooKeeper, `join` creates the streams and iterates each one in a thread,
`leave` shuts the connectors down. `counts` answers with what the members have sent to ZooKeeper
since the last `counts`, as JSON: `reads`, the number of znodes and listings that they have read;
`cpu_ms`, the process's processor time; and for each kind of operation the number of its starts,
requests, and listed names. The process ends when stdin is closed, so it does not outlive the
benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.consumer.executor import Executor, RunningOperation
from zkconsumer.consumer.stream import Stream
from zkconsumer.errors import ZkConsumerError
from zkconsumer.member.commands import Command
from zkconsumer.member.operations import MemberIdentity
from zkconsumer.protocol.requests import Children, Code, Exists, Get, Listing
from zkconsumer.zk.session import ZooKeeperSession


class Meter:
    """Counts the operations of all members of this process, and what they send to ZooKeeper."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._cpu_s = time.process_time()
        submit, operation = ZooKeeperSession.submit, Executor.operation

        def counted_submit(
            session: ZooKeeperSession, batch: Sequence[Any], done: Callable[..., None]
        ) -> None:
            reads = sum(isinstance(one, Get | Exists | Children | Listing) for one in batch)
            self._count(reads=reads)
            submit(session, batch, done)

        def counted_operation(
            executor: Executor, command: Command, me: MemberIdentity, now: float
        ) -> tuple[int, RunningOperation]:
            op, steps = operation(executor, command, me, now)
            return op, self._counted(type(command).__name__, steps)

        ZooKeeperSession.submit = counted_submit  # type: ignore[method-assign,assignment]  # it counts
        Executor.operation = counted_operation  # type: ignore[method-assign,assignment]  # it counts

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def _counted(self, kind: str, steps: RunningOperation) -> RunningOperation:
        """Run an operation, and count its requests and the names in its listings."""
        self._count(**{f"{kind} starts": 1})
        batch = next(steps)
        try:
            while True:
                replies = yield batch
                if isinstance(batch, Sequence):
                    listed = sum(
                        len(reply.value)
                        for request, reply in zip(batch, replies, strict=False)
                        if isinstance(request, Children) and reply.code is Code.OK
                    )
                    counts = {f"{kind} requests": len(batch), f"{kind} names": listed}
                    self._count(**counts)
                batch = steps.send(replies)
        except StopIteration as end:
            return end.value

    def taken(self) -> str:
        """Return the counts since the last call, as JSON."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        cpu_s, self._cpu_s = self._cpu_s, time.process_time()
        return json.dumps(counts | {"cpu_ms": round(1000 * (self._cpu_s - cpu_s))})


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
            case ["counts"]:
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
