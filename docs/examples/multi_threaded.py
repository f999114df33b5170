"""Several threads with one stream each; the automatic commit covers finished messages.

    python docs/examples/multi_threaded.py ZOOKEEPER GROUP TOPIC THREADS

Ends when no message has arrived for five seconds, at the first error of a thread, or with Ctrl-C.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

from zkconsumer import ConsumerConfig, ConsumerConnector, ConsumerTimeoutError, Message, Stream


def handle(message: Message[str, str]) -> None:
    """Process a message. A sink that stores each partition's highest token can reject late
    writes."""
    line = f"{message.partition} {message.offset} {message.token} {message.value}\n"
    sys.stdout.write(line)  # one call: print makes two, and other threads also write


def work(stream: Stream[str, str]) -> int:
    """Process a stream's messages until none arrives in time; return their number."""
    count = 0
    try:
        for message in stream:  # requesting the next message finishes the last one
            handle(message)
            count += 1
    except ConsumerTimeoutError as idle:  # its text names the reason, if it is known
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
    # In this order, an error first ends the connector, and this ends the loops of the threads.
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
