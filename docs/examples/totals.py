"""A consumer to test: it adds up the amounts of each customer, and commits after each batch.

    python docs/examples/totals.py ZOOKEEPER GROUP TOPIC

`test_totals.py` tests it with pytest, and `test_totals_unittest.py` with unittest.
"""

from __future__ import annotations

import sys
from collections import Counter
from threading import Event

from zkconsumer import ConsumerConfig, ConsumerConnector


class Totals:
    """Adds up amounts by customer, the messages' key, until `stop`."""

    def __init__(self) -> None:
        self.by_customer: Counter[str] = Counter()
        self._stopped = Event()

    def run(self, zookeeper: str, group: str, topic: str) -> None:
        config = ConsumerConfig(
            zookeeper_connect=zookeeper,
            group_id=group,
            auto_offset_reset="smallest",
            auto_commit_enable=False,
        )
        with ConsumerConnector(config) as connector:
            (stream,) = connector.create_message_streams({topic: 1})[topic]
            while not self._stopped.is_set():
                batch = stream.poll(max_messages=500, timeout_s=0.1)
                for message in batch:
                    customer = (message.key or b"unknown").decode()
                    self.by_customer[customer] += int(message.value or b"0")
                if batch:
                    connector.commit_offsets(timeout_s=30.0)

    def stop(self) -> None:
        """End `run` after its batch."""
        self._stopped.set()


if __name__ == "__main__":
    totals = Totals()
    try:
        totals.run(*sys.argv[1:])
    except KeyboardInterrupt:
        print(dict(totals.by_customer))
        sys.exit(130)
