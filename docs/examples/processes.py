"""Several processes, each with a separate member, to use all cores of the machine.

    python docs/examples/processes.py ZOOKEEPER GROUP TOPIC PROCESSES

Each process creates its own connector, because a connector cannot be used after a fork. Ends when
no message has arrived for five seconds, or with Ctrl-C.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from typing import NoReturn

from zkconsumer import ConsumerConfig, ConsumerConnector, ConsumerTimeoutError, Message


def handle(message: Message[bytes, bytes]) -> None:
    """Process a message, possibly again: delivery is at least once."""
    line = f"{message.partition} {message.offset} {message.token} {message.value!r}\n"
    sys.stdout.write(line)  # one call, because other processes also write
    sys.stdout.flush()


def stop(*_: object) -> NoReturn:
    sys.exit(0)


def work(zookeeper: str, group: str, topic: str) -> None:
    """Run in a separate process: read until no message arrives for five seconds."""
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    config = ConsumerConfig(
        zookeeper_connect=zookeeper,
        group_id=group,
        auto_offset_reset="smallest",
        consumer_timeout_s=5.0,
    )
    with ConsumerConnector(config) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        try:
            for message in stream:
                handle(message)
        except ConsumerTimeoutError:
            pass


def main(zookeeper: str, group: str, topic: str, processes: str) -> int:
    # "spawn" starts new interpreters. "fork" works too, because this process has no connector.
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=work, args=(zookeeper, group, topic)) for _ in range(int(processes))
    ]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        return 130
    return max(worker.exitcode or 0 for worker in workers)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
