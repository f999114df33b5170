"""Several threads, one stream each; the auto-commit covers what each has finished.

    python docs/examples/multi_threaded.py ZOOKEEPER GROUP TOPIC THREADS

Ends when no message came for five seconds, with the first error of any thread, or with Ctrl-C.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

from zkconsumer import ConsumerConfig, ConsumerConnector, ConsumerTimeoutError, Message, Stream


def handle(message: Message[str, str]) -> None:
    """Your work. A sink that keeps the greatest token per partition can refuse a late writer."""
    line = f"{message.partition} {message.offset} {message.token} {message.value}\n"
    sys.stdout.write(line)  # one call, since print makes two and other threads write, too


def work(stream: Stream[str, str]) -> int:
    """A stream's messages until there are no more; returns how many."""
    count = 0
    try:
        for message in stream:  # asking for the next message finishes the one before
            handle(message)
            count += 1
    except ConsumerTimeoutError as idle:  # names the reason, such as more threads than partitions
        sys.stderr.write(f"{idle}\n")
    return count


def main(zookeeper: str, group: str, topic: str, threads: str) -> None:
    config = ConsumerConfig(
        zookeeper_connect=zookeeper,
        group_id=group,
        auto_offset_reset="smallest",
        auto_commit_interval_s=5.0,
        consumer_timeout_s=5.0,
    )
    # In this order: an error here ends the connector first, and that ends the threads' loops.
    with ThreadPoolExecutor(int(threads)) as pool, ConsumerConnector(config) as connector:
        streams = connector.create_message_streams(
            {topic: int(threads)}, key_decoder=bytes.decode, value_decoder=bytes.decode
        )[topic]
        jobs = [pool.submit(work, stream) for stream in streams]
        total = sum(job.result() for job in as_completed(jobs))
    print(total, "messages", file=sys.stderr)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
