"""One thread that polls batches and commits each batch after it is processed.

    python docs/examples/single_threaded.py ZOOKEEPER GROUP TOPIC

Ends with Ctrl-C or SIGTERM. A batch that is not finished by then is not committed, so it is
redelivered.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from zkconsumer import Batch, ConsumerConfig, ConsumerConnector


def handle(batch: Batch[bytes, bytes]) -> None:
    """Process a batch, possibly again: delivery is at least once."""
    for message in batch:
        print(message.topic, message.partition, message.offset, message.value, flush=True)


def stop(*_: object) -> NoReturn:
    sys.exit(0)


def main(zookeeper: str, group: str, topic: str) -> None:
    # sys.exit raises in the main thread: the `with` block then leaves the group without a commit.
    signal.signal(signal.SIGTERM, stop)
    config = ConsumerConfig(
        zookeeper_connect=zookeeper,
        group_id=group,
        auto_offset_reset="smallest",
        auto_commit_enable=False,
    )
    with ConsumerConnector(config) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        while True:
            batch = stream.poll(max_messages=500, timeout_s=1.0)
            if batch:
                handle(batch)
                connector.commit_offsets(timeout_s=30.0)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
